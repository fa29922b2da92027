package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/bridge"
	"github.com/quillon/quillon/nf/port/afxdp"
	"github.com/quillon/quillon/nf/port/open"
)

// defaultStateDir is the default of --state. It keeps what must survive this process.
const defaultStateDir = "/run/quillon"

func newBridgeCmd() *cobra.Command {
	cmd := group("bridge", "Splice a middlebox between a bridge and one of its ports", "  quillon bridge insert br0 eth1\n  quillon bridge remove br0 eth1",
		newBridgeInsertCmd(), newBridgeRemoveCmd(), newBridgeListCmd())
	cmd.PersistentFlags().String("state", defaultStateDir, "`directory` of the files that remember how it was before")
	return cmd
}

func newBridgeInsertCmd() *cobra.Command {
	cfg := bridge.Config{}
	var f runFlags
	var start bool
	cmd := &cobra.Command{
		Use:   "insert BRIDGE PORT",
		Short: "Splice a middlebox between a bridge and one of its ports",
		Long: `Takes PORT out of BRIDGE and puts one end of a new veth pair in its place, with
the same MAC address, MTU, port settings, VLANs, static forwarding entries and
permanent multicast groups. A port with options for single VLANs is refused.
The middlebox then runs inline between the other end and PORT: the command line
for it is printed. Until it runs, and whenever it is not there, frames cross
between BRIDGE and PORT in the kernel, by XDP: an instance that is stopped leaves
that wire, and "quillon bridge remove" takes it away.

With --run it is started at once with the functions of --nf, and everything is
put back when it stops, but for a splice that holds frames back which must not cross
without the process ("quillon help run"): that is said.

An error on the way, or an interrupt, undoes what was done. "quillon bridge remove"
undoes all.`,
		Example: `  quillon bridge insert br0 eth1
  quillon run --inline eth1-q,eth1 --nf clover-steer,servers=192.0.2.1
  quillon bridge insert br0 eth1 --run --nf clover-steer,servers=192.0.2.1,keys=4096`,
		Args: exactly("BRIDGE", "PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Bridge, cfg.Port = args[0], args[1]
			cfg.StateDir, _ = cmd.Flags().GetString("state")
			f.orders = takeOrders() // never released: a second signal does not change how the process ends
			if !start {
				if len(f.nfs) > 0 {
					return errors.New("--nf goes with --run")
				}
				return insertOnly(cmd, cfg, f.orders)
			}
			return f.insertAndRun(cmd, cfg)
		},
	}
	cmd.Flags().StringVar(&cfg.Name, "veth", "", "what the veth pair is called after (default PORT)")
	cmd.Flags().BoolVar(&start, "run", false, "run the middlebox too, and put everything back when it stops")
	addNFFlag(cmd, &f.nfs)
	f.add(cmd)
	return cmd
}

// splice calls bridge.Insert. It refuses a port that an instance runs on. First it puts back settings that a
// killed instance left changed on the port, so that the splice records the original settings.
func splice(cfg bridge.Config) (*bridge.Splice, error) {
	cfg.Ready = func() error {
		if err := unused(cfg.Port); err != nil {
			return err
		}
		return asRoot(afxdp.PutBack(cfg.Port))
	}
	return bridge.Insert(cfg)
}

// insertAndRun inserts a splice and runs a middlebox in it. At the end it stops the middlebox and removes the
// splice, unless the splice must hold frames back.
func (f *runFlags) insertAndRun(cmd *cobra.Command, cfg bridge.Config) error {
	// Errors in the functions are reported before anything changes.
	if _, err := chain(f.nfs); err != nil {
		return err
	}
	log, err := f.logs.logger(cmd.ErrOrStderr(), cmp.Or(f.name, cfg.Port))
	if err != nil {
		return err
	}
	l := begin(f.orders, log)
	l.at("inserting the splice")
	s, err := splice(cfg)
	l.done()
	if err != nil {
		return err
	}
	f.inline, f.root.splice = s.Inner+","+s.Port, true
	spec, err := f.spec("")
	if err == nil && !l.ordered() {
		err = f.run(cmd, spec, "")
	}
	if f.held { // without the splice the bridge would carry frames that must not cross
		return err
	}
	l = begin(f.orders, log)
	defer l.done()
	l.at("taking the splice away")
	return errors.Join(err, unsplice(cfg.StateDir, s))
}

func insertOnly(cmd *cobra.Command, cfg bridge.Config, orders *orders) error {
	l := begin(orders, forPeople(cmd.ErrOrStderr()))
	defer l.done()
	l.at("inserting the splice")
	s, err := splice(cfg)
	if err != nil {
		return err
	}
	if _, err := afxdp.Wire(s.Inner, s.Port); err != nil {
		err = fmt.Errorf("nothing would cross until the middlebox runs (%w): insert it with --run", err)
		return errors.Join(err, bridge.Remove(cfg.StateDir, s)) // the programs were attached before the splice
	}
	if l.ordered() {
		return errors.Join(errors.New("interrupted, and undone"), unsplice(cfg.StateDir, s))
	}
	crossing := "frames cross in the kernel until the middlebox runs"
	run := fmt.Sprintf("quillon run --inline %s,%s --nf wire", s.Inner, s.Port)
	return show(cmd, struct {
		*bridge.Splice
		Run      string `json:"run"`
		Crossing string `json:"crossing"`
	}{s, run, crossing}, func(w io.Writer) {
		fmt.Fprintf(w, "%s is spliced off %s: %s is in the bridge; %s:\n", s.Port, s.Bridge, s.Outer, crossing)
		fmt.Fprintf(w, "  %s   # or another function: quillon nf list\n", run)
		fmt.Fprintf(w, "undo: quillon bridge remove %s %s\n", s.Bridge, s.Port)
	})
}

// spliceOf returns the splice that both interfaces belong to, nil if they belong to none.
func spliceOf(a, b string) (*open.Splice, error) {
	s, err := bridge.Of(a, b)
	if s == nil || err != nil {
		return nil, err
	}
	return &open.Splice{Inner: s.Inner, Port: s.Port, Remove: "quillon bridge remove " + s.Bridge + " " + s.Port}, nil
}

// unsplice detaches what the middlebox left attached to the interfaces, and then removes the splice.
func unsplice(dir string, s *bridge.Splice) error {
	found, err := open.Present(s.Inner, s.Port)
	if errors.As(err, new(open.NoInterface)) {
		return bridge.Remove(dir, s)
	}
	if err != nil {
		return err
	}
	if err = afxdp.Detach(found...); err != nil {
		// A port must not go back to its bridge with an XDP program that leads nowhere. If the first attempt
		// only failed to restore a setting, the program is gone, and the second attempt succeeds.
		if again := afxdp.Detach(found...); again != nil {
			return again
		}
	}
	return errors.Join(err, bridge.Remove(dir, s))
}

func newBridgeRemoveCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "remove BRIDGE PORT",
		Short: "Put the port back into the bridge as it was",
		Long: `Detaches XDP programs from PORT and from the veth pair, gives PORT everything
back that it had (bridge, settings, VLANs, static forwarding entries, permanent
multicast groups, MTU, flags, offloads) and deletes the veth pair. It also
finishes what a crash left.`,
		Example: "  quillon bridge remove br0 eth1",
		Args:    exactly("BRIDGE", "PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, _ := cmd.Flags().GetString("state")
			s, err := bridge.Load(dir, args[1])
			if err != nil {
				return err
			}
			if s.Bridge != args[0] {
				return fmt.Errorf("%s was spliced off %s, not %s", s.Port, s.Bridge, args[0])
			}
			if err := unused(s.Inner, s.Port); err != nil {
				return err
			}
			defer undisturbed(cmd, "taking the splice away")()
			if err := unsplice(dir, s); err != nil {
				return err
			}
			return show(cmd, s, func(w io.Writer) {
				fmt.Fprintf(w, "%s is back in %s as it was\n", s.Port, s.Bridge)
			})
		},
	}
}

func newBridgeListCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the splices",
		Example: "  quillon bridge list",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, _ := cmd.Flags().GetString("state")
			all, err := bridge.List(dir)
			if err != nil {
				return err
			}
			here, err := bridge.Namespace()
			if err != nil {
				return err
			}
			return show(cmd, list(all), func(w io.Writer) {
				for _, s := range all {
					fmt.Fprintf(w, "%s\t%s\t%s,%s", s.Bridge, s.Port, s.Inner, s.Port)
					if s.Namespace != here {
						fmt.Fprintf(w, "\tin another network namespace, %s", s.Namespace)
					}
					fmt.Fprintln(w)
				}
			})
		},
	}
}
