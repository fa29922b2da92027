package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/replay"
)

func newReplayCmd() *cobra.Command {
	var (
		nfs   []string
		file  string
		in    []string
		hosts []string
		files replay.Files
		cfg   replay.Config
	)
	cmd := &cobra.Command{
		Use:   "replay [IN]",
		Short: "Run network functions over captures, on the captures' clock",
		Long: `Runs a graph over a capture (pcap or pcapng), each frame at its own time. The
same input gives the same output, byte for byte. A capture of one interface is
replayed as it stands, whatever directions it holds: its frames enter port a,
and what comes out of any port is written. Two directions come as the interfaces
of one pcapng file, or as two files: --in a=FILE,b=FILE. In one capture of both directions
--a-hosts tells them apart: what these hosts sent, by MAC address or by subnet, enters
port a (of a spec: the first port by name), all else port b. IN may be compressed by gzip
or zstd; - is the standard input. Frames of Linux cooked captures (of "any") get
Ethernet headers, without the destination, which such a capture does not know.

An output named *.pcapng gets a comment per packet: its verdict and the reason; one
named *.gz or *.zst, as in out.pcapng.gz, is compressed.
With --expect the output is compared with a capture, differences are shown
decoded, and the exit status is 1 when there are any.`,
		Example: `  quillon replay --nf clover-steer,servers=192.0.2.1,mode=write in.pcap -o out.pcap
  quillon replay --nf clover-steer,servers=192.0.2.1 --in a=clients.pcap,b=server.pcap -o out.pcapng
  quillon replay --nf firewall,rules=allow+in:a --a-hosts 10.0.0.0/24 both.pcap -o out.pcapng --all
  quillon replay --nf napt,public=198.51.100.1 --a-hosts 02:00:00:00:00:01,fd00::/64 both.pcap
  quillon replay --nf clover-steer,servers=192.0.2.1 in.pcap --expect golden.pcap`,
		Args: optional(0, "IN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if files.Out == "-" {
				return errors.New("-o -: replay writes to files: name one")
			}
			if err := shown(&files.Compare.Shown); err != nil {
				return err
			}
			var err error
			if files.In, err = inputs(args, in); err != nil {
				return err
			}
			if cfg.Spec, err = replaySpec(file, nfs); err != nil {
				return err
			}
			if cfg.AHosts, err = aHosts(hosts, in, cfg.Spec); err != nil {
				return err
			}
			cfg.Kinds = kinds()
			res, err := replay.RunFiles(cfg, files)
			if res != nil {
				if n := res.FromA; n != nil && res.Read > 0 && (*n == 0 || *n == res.Read) {
					fmt.Fprintf(cmd.ErrOrStderr(), "quillon: --a-hosts %s sent %d of %d frames: one direction only was replayed\n", strings.Join(hosts, ","), *n, res.Read)
				}
				if e := show(cmd, res, func(w io.Writer) { replayText(w, res) }); e != nil {
					return e
				}
			}
			return different(err)
		},
	}
	f := cmd.Flags()
	addNFFlag(cmd, &nfs)
	f.StringVar(&file, "spec", "", "the graph, as a `SPEC.yaml`, instead of --nf")
	f.StringSliceVar(&in, "in", nil, "captures by port, as `a=FILE,b=FILE`")
	f.StringSliceVar(&hosts, "a-hosts", nil, "of a capture of both directions: `hosts` whose frames enter port a, as 02:00:00:00:00:01,10.0.0.0/24")
	f.StringVarP(&files.Out, "output", "o", "", "capture to write")
	f.StringVar(&files.Expect, "expect", "", "capture that the output must equal")
	f.BoolVar(&files.Compare.IgnoreTime, "ignore-time", false, "with --expect: leave timestamps out")
	f.IntVar(&files.Compare.Shown, "show", replay.ShownDifferences, "with --expect: how many differing packets to show")
	f.BoolVar(&cfg.All, "all", false, "write dropped packets too, with their reason (pcapng)")
	f.Uint64Var(&cfg.Seed, "seed", 0, "seed of the functions' randomness")
	return cmd
}

func inputs(args, in []string) ([]string, error) {
	switch {
	case len(args) == 0 && len(in) == 0:
		return nil, errors.New("no capture given: quillon replay IN, or --in a=FILE,b=FILE")
	case len(args) > 0 && len(in) > 0:
		return nil, fmt.Errorf("%s and --in exclude each other", args[0])
	case len(args) > 0:
		return args, nil
	}
	for _, i := range in {
		if !strings.Contains(i, "=") {
			return nil, fmt.Errorf("--in %s: say which port it enters, as in a=%s", i, i)
		}
	}
	return in, nil
}

// aHosts returns the hosts of --a-hosts, nil without that flag.
func aHosts(hosts, in []string, spec *graph.Spec) (*replay.Hosts, error) {
	switch {
	case hosts == nil:
		return nil, nil
	case len(in) > 0:
		return nil, errors.New("--a-hosts and --in exclude each other: --in says for each file which port it enters")
	case len(spec.Ports) != 2:
		return nil, fmt.Errorf("--a-hosts is for a graph with two ports, and this one has %d", len(spec.Ports))
	}
	h, err := replay.ParseHosts(hosts)
	if err != nil {
		return nil, fmt.Errorf("--a-hosts %w", err)
	}
	return h, nil
}

func replaySpec(file string, nfs []string) (*graph.Spec, error) {
	switch {
	case file != "" && len(nfs) > 0:
		return nil, errors.New("--spec and --nf exclude each other")
	case file != "":
		return readSpec(file, nil)
	}
	return chain(nfs)
}

// shown refuses a negative --show, and makes 0 what CompareOptions has for none.
func shown(n *int) error {
	switch {
	case *n < 0:
		return fmt.Errorf("--show %d: want a number from 0", *n)
	case *n == 0:
		*n = -1
	}
	return nil
}

// different turns the error of a comparison that found differences into a failed check.
func different(err error) error {
	if errors.As(err, new(*replay.DifferentError)) {
		return failed{err}
	}
	return err
}

func replayText(w io.Writer, r *replay.Result) {
	fmt.Fprintf(w, "read %d, written %d, of these changed %d, dropped %d\n", r.Read, r.Written, r.Changed, r.Dropped)
	if r.Oversized > 0 {
		fmt.Fprintf(w, "%d frames were too long for any buffer and went past the graph\n", r.Oversized)
	}
	fmt.Fprint(w, r.CounterText())
	if c := r.Comparison; c != nil {
		fmt.Fprint(w, c)
	}
}

func newPcapCmd() *cobra.Command {
	var o replay.CompareOptions
	diff := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two captures, packet by packet, decoded",
		Long: `Compares frames, lengths on the wire, timestamps and, between two pcapng files,
comments. Shows what differs field by field. Exit status 1 when anything does.`,
		Example: "  quillon pcap diff got.pcap want.pcap --ignore-time",
		Args:    exactly("A", "B"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := shown(&o.Shown); err != nil {
				return err
			}
			c, err := replay.CompareFiles(args[0], args[1], o)
			if c != nil {
				if e := show(cmd, c, func(w io.Writer) { fmt.Fprint(w, c) }); e != nil {
					return e
				}
			}
			return different(err)
		},
	}
	diff.Flags().BoolVar(&o.IgnoreTime, "ignore-time", false, "leave timestamps out")
	diff.Flags().BoolVar(&o.IgnoreComments, "ignore-comments", false, "leave the packets' comments out")
	diff.Flags().IntVar(&o.Shown, "show", replay.ShownDifferences, "how many differing packets to show")
	return group("pcap", "Work on captures", "  quillon pcap diff got.pcap want.pcap", diff, newDissectorCmd())
}
