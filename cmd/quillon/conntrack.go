package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/track"
)

// prefixFlag is a flag whose value is an address or a prefix.
type prefixFlag struct{ to *netip.Prefix }

func (p prefixFlag) String() string {
	if p.to == nil || !p.to.IsValid() {
		return ""
	}
	return p.to.String()
}

func (prefixFlag) Type() string { return "addr" }

func (p prefixFlag) Set(s string) (err error) {
	if a, e := netip.ParseAddr(s); e == nil {
		*p.to = netip.PrefixFrom(a, a.BitLen())
		return nil
	}
	if *p.to, err = netip.ParsePrefix(s); err != nil {
		return fmt.Errorf("want an address, or a prefix as 10.0.0.0/8")
	}
	return nil
}

func newConntrackCmd() *cobra.Command {
	var t target
	var f track.Filter
	var proto string
	var count bool
	cmd := &cobra.Command{
		Use:   "conntrack [APP]",
		Short: "List the connections that firewalls, NATs and balancers remember",
		Long: `Lists connections as conntrack -L does: protocol, its number, seconds until the
connection is forgotten if nothing comes, state, who opened it and where to, and the
answers' direction, in which a NAT's public end and a balancer's backend are. [UNREPLIED]:
nothing came back; [ASSURED]: it keeps its place when there are too many; [OFFLOAD]: its
packets cross in the kernel (show flows).

A NAT also has MAPPINGs: of a private end to a public one, for whoever its peers are
(0.0.0.0); without --state they are listed, too. UDP and ICMP have an entry for each
peer that may answer, unless filter=endpoint. Packets and bytes are not
counted, and a balancer does not see whether its backend has answered.

The workers go on between pieces of a long list. A connection that stays while it is
listed is shown once.`,
		Example: "  quillon conntrack\n  quillon conntrack -p tcp --dport 443 --state ESTABLISHED\n  quillon conntrack nat -s 10.0.0.0/8 --count",
		Args:    optional(0, "APP"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			f.App = strings.Join(args, "")
			if f.State != "" {
				if f.State, err = track.ParseState(f.State); err != nil {
					return fmt.Errorf("--state: %w", err)
				}
			}
			if proto != "" {
				if f.Proto, err = track.ParseProto(proto); err != nil {
					return fmt.Errorf("--proto: %w", err)
				}
			}
			c, err := t.dial()
			if err != nil {
				return err
			}
			defer c.Close()
			asJSON, _ := cmd.Flags().GetBool("json")
			out := bufio.NewWriter(cmd.OutOrStdout())
			enc, n := json.NewEncoder(out), 0
			err = c.Connections(f, func(x *admin.Connection) error {
				n++
				switch {
				case count:
					return nil
				case asJSON:
					return enc.Encode(x)
				}
				_, err := fmt.Fprintln(out, x)
				return err
			})
			switch {
			case err != nil:
			case count && asJSON:
				err = enc.Encode(map[string]int{"connections": n})
			case count:
				fmt.Fprintln(out, n)
			}
			if e := out.Flush(); err == nil {
				err = e
			}
			return err
		},
	}
	t.add(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&proto, "proto", "p", "", "only of this `protocol`: tcp, udp, icmp or a number")
	flags.VarP(prefixFlag{&f.Src}, "src", "s", "only from this `address` or prefix")
	flags.VarP(prefixFlag{&f.Dst}, "dst", "d", "only to this `address` or prefix")
	flags.Uint16Var(&f.SPort, "sport", 0, "only from this `port`")
	flags.Uint16Var(&f.DPort, "dport", 0, "only to this `port`")
	flags.VarP(prefixFlag{&f.ReplySrc}, "reply-src", "r", "only those that this `address` or prefix answers: of a backend")
	flags.VarP(prefixFlag{&f.ReplyDst}, "reply-dst", "q", "only those whose answers go to this `address` or prefix: of a NAT")
	flags.Uint16Var(&f.ReplySPort, "reply-port-src", 0, "only those whose answers come from this `port`")
	flags.Uint16Var(&f.ReplyDPort, "reply-port-dst", 0, "only those whose answers go to this `port`")
	flags.StringVar(&f.State, "state", "", "only in this `state`: "+strings.Join(track.States, ", "))
	flags.BoolVarP(&count, "count", "C", false, "only say how many")
	return cmd
}
