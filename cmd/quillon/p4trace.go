package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/packettrace"
	"github.com/quillon/quillon/nf/p4/stf"
	"github.com/quillon/quillon/nf/port/pcap"
)

// p4Trace has the flags and the state of quillon p4 trace.
type p4Trace struct {
	entries    string
	port       int
	count      int
	only       []string
	notes      bool
	view, diff bool

	wanted []packettrace.Filter
	shown  int
}

func newP4TraceCmd() *cobra.Command {
	var o p4Trace
	cmd := &cobra.Command{
		Use:   "trace PROG.json IN.pcap | --view FILE... | --diff A B",
		Short: "Show what a P4 program does with each packet, step by step",
		Long: `Runs the packets of a capture through a P4 program and prints for each one what
happened: parser states, checksums, conditions, tables with the key, the entry that
was hit and its action, copies, where each left or why it was dropped. Entries,
multicast groups and clone sessions come from a file of the Simple Test Framework,
of which packets and expectations are left out. A packet comes in on --port, else on
the port that its pcapng interface has for a name, or on the interface's number.

--view shows in the same form what bmv2 wrote: the log of simple_switch (--log-console
or --log-file; all of it at level trace), a PacketTrace as text or JSON, or a folder
of such; and what this command wrote with --json.

--diff compares two such traces, packet by packet and copy by copy, and shows the
first step at which they part. Steps count that both sources tell. Exit status 1 when
there is a difference.

--only takes drop, drop=REASON, table=NAME or port=N; of several, all must hold.`,
		Example: `  quillon p4 trace ipv4_router.json in.pcap --entries routes.stf
  quillon p4 trace ipv4_router.json in.pcap --entries routes.stf --only drop --count 3
  quillon p4 trace --view simple_switch.log
  quillon p4 trace ipv4_router.json in.pcap --entries routes.stf --json > ours.json
  quillon p4 trace --diff ours.json simple_switch.log`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.wanted, err = filters(o.only); err != nil {
				return err
			}
			if o.count < 0 || o.port < -1 || o.port > 1<<16-1 {
				return errors.New("--count and --port take a number from 0 (ports: to 65535)")
			}
			switch {
			case o.view && o.diff:
				return errors.New("--view and --diff exclude each other")
			case o.view:
				return o.showFiles(cmd, args)
			case o.diff:
				return o.compare(cmd, args)
			}
			return o.run(cmd, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.entries, "entries", "", "`FILE.stf` with table entries, groups and sessions")
	f.IntVar(&o.port, "port", -1, "ingress port of all packets; -1: by their pcapng interface")
	f.IntVar(&o.count, "count", 0, "stop behind so many packets that are shown; 0: all")
	f.StringSliceVar(&o.only, "only", nil, "show only packets with `drop|table=NAME|port=N`")
	f.BoolVar(&o.notes, "notes", false, "with --view: also what only bmv2 tells (primitives, headers, counters)")
	f.BoolVar(&o.view, "view", false, "show traces that are in files")
	f.BoolVar(&o.diff, "diff", false, "compare the traces in two files")
	return cmd
}

func filters(all []string) ([]packettrace.Filter, error) {
	var out []packettrace.Filter
	for _, s := range all {
		f, err := packettrace.ParseFilter(s)
		if err != nil {
			return nil, fmt.Errorf("--only %w", err)
		}
		out = append(out, f)
	}
	return out, nil
}

// show prints a trace if it is wanted. It returns false when no more traces are wanted.
func (o *p4Trace) show(cmd *cobra.Command, t packettrace.Trace) (bool, error) {
	for _, f := range o.wanted {
		if !f(t) {
			return true, nil
		}
	}
	o.shown++
	more := o.count == 0 || o.shown < o.count
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		return more, packettrace.Write(cmd.OutOrStdout(), []packettrace.Trace{t})
	}
	return more, packettrace.Show(cmd.OutOrStdout(), []packettrace.Trace{t}, o.notes)
}

// run traces the packets of a capture.
func (o *p4Trace) run(cmd *cobra.Command, args []string) error {
	if err := exactly("PROG.json", "IN.pcap")(cmd, args); err != nil {
		return err
	}
	prog, err := loadP4(args[0])
	if err != nil {
		return err
	}
	f, err := os.Open(args[1])
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := pcap.NewReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	var sw *p4.Switch
	var p pcap.Packet
	cut := 0
	for n := uint64(0); ; n++ {
		err := r.Next(&p)
		if err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("%s: %w", args[1], err)
		}
		if sw == nil {
			if sw, err = p4.NewSwitch(prog, p4.Config{Start: p.Time}); err != nil {
				return err
			}
			if err := o.configure(sw); err != nil {
				return err
			}
		}
		if int(p.OrigLen) > len(p.Data) {
			cut++
		}
		t := sw.Trace(n, p.Time, o.ingress(r, &p), p.Data, func(uint32, []byte) {})
		if more, err := o.show(cmd, t); err != nil {
			return err
		} else if !more {
			break
		}
	}
	if cut > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: of %d packets the capture has only the beginning\n", args[1], cut)
	}
	return nil
}

// ingress returns the port on which a packet came in: that of --port, or the name of its capture interface if
// that is a number, or the index of that interface.
func (o *p4Trace) ingress(r *pcap.Reader, p *pcap.Packet) uint32 {
	if o.port >= 0 {
		return uint32(o.port)
	}
	if all := r.Interfaces(); p.Interface < len(all) {
		if n, err := strconv.ParseUint(all[p.Interface].Name, 10, 16); err == nil {
			return uint32(n)
		}
	}
	return uint32(p.Interface)
}

// configure gives a switch the entries of the file of --entries.
func (o *p4Trace) configure(sw *p4.Switch) error {
	if o.entries == "" {
		return nil
	}
	b, err := os.ReadFile(o.entries)
	if err != nil {
		return err
	}
	statements, err := stf.Parse(bytes.NewReader(b))
	if err == nil {
		err = stf.Configure(sw, statements)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.entries, err)
	}
	return nil
}

func (o *p4Trace) showFiles(cmd *cobra.Command, names []string) error {
	if err := atLeast("FILE")(cmd, names); err != nil {
		return err
	}
	for _, name := range names {
		traces, err := readTraces(name)
		if err != nil {
			return err
		}
		for _, t := range traces {
			if more, err := o.show(cmd, t); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// readTraces reads the traces of a file, or of a folder: bmv2 writes one file for each packet.
func readTraces(name string) ([]packettrace.Trace, error) {
	names := []string{name}
	folder := false
	if about, err := os.Stat(name); err != nil {
		return nil, err
	} else if folder = about.IsDir(); folder {
		if names, err = filepath.Glob(filepath.Join(name, "*.txtpb")); err != nil || len(names) == 0 {
			return nil, fmt.Errorf("%s: no *.txtpb files in this folder", name)
		}
	}
	var all []packettrace.Trace
	for _, n := range names {
		f, err := os.Open(n)
		if err != nil {
			return nil, err
		}
		traces, err := packettrace.Read(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		all = append(all, traces...)
	}
	if folder {
		slices.SortStableFunc(all, func(a, b packettrace.Trace) int {
			return cmp.Compare(a.Packet, b.Packet)
		})
	}
	return all, nil
}

func (o *p4Trace) compare(cmd *cobra.Command, names []string) error {
	if err := exactly("A", "B")(cmd, names); err != nil {
		return err
	}
	var sides [2][]packettrace.Trace
	for i, name := range names {
		traces, err := readTraces(name)
		if err != nil {
			return err
		}
		for _, t := range traces {
			if !slices.ContainsFunc(o.wanted, func(f packettrace.Filter) bool { return !f(t) }) {
				sides[i] = append(sides[i], t)
			}
		}
		if o.count > 0 && len(sides[i]) > o.count {
			sides[i] = sides[i][:o.count]
		}
	}
	c := packettrace.Diff(sides[0], sides[1])
	if err := show(cmd, c, func(w io.Writer) { fmt.Fprint(w, c.Text(names[0], names[1])) }); err != nil {
		return err
	}
	if c.Difference != nil {
		return failed{errors.New("the traces differ")}
	}
	return nil
}
