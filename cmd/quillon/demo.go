package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/demo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

func newDemoCmd() *cobra.Command {
	c := demo.Default()
	var p playing
	var stores strings.Builder
	for _, name := range demo.Stores() {
		fmt.Fprintf(&stores, "  %-8s %s\n", name, demo.About(name))
	}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what a middlebox gains a store, on a rack in network namespaces",
		Long: `Builds a rack of network namespaces on a Linux bridge: compute nodes, a memory
node and a metadata node. The middlebox runs as a process of its own, inline on
the memory node's cable. Clients of a store run a YCSB mix in three phases.
Connections are made by the connection manager, over the wire, and ended at the end.
The stores (--store):

` + stores.String() + `
With Clover the middlebox is clover-steer: it passes everything, steers writes, steers
writes and reads. With all others it is swordbox: it passes everything, has clients
share connections, and sends atomics on the store's locks as WRITEs as well.

At the end it prints the phases side by side and the verdict of integrity. Clover:
every key's chain is walked in the memory node's memory, and each acknowledged
write must be in it. Others: the memory is walked, and one order of all operations
must explain what clients were told and what is there (a phase ends early when a third
of 500,000 operations are kept). What is wrong makes the exit status 1.

Without root everything runs in this process, on wires in memory. However it
ends, no namespace, link or process is left behind.`,
		Example: `  quillon demo
  quillon demo --workload W --clients 16 --seconds 10
  quillon demo --store rcuckoo --workload A
  quillon demo --store locks --work spin --keys 8
  quillon demo --mem --json demo.json --plot demo`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := onlyOf(cmd, &c); err != nil {
				return err
			}
			return p.run(cmd, c.Check, func(ctx context.Context) error { return runDemo(ctx, cmd, c, p) })
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&c.Store, "store", c.Store, "`store` to show: "+strings.Join(demo.Stores(), ", "))
	f.StringVar(&c.Workload, "workload", c.Workload, "YCSB `mix`: A (50 % writes), B (5 %), C (0 %) or W (100 %)")
	f.IntVar(&c.Clients, "clients", c.Clients, "clients on each compute node")
	f.Float64Var(&c.Seconds, "seconds", c.Seconds, "measured in each phase")
	f.Float64Var(&c.Warmup, "warmup", c.Warmup, "seconds before that; the middlebox only learns for the first 0.2 s")
	f.IntVar(&c.Keys, "keys", c.Keys, "keys in the store; of locks words, 8 unless said otherwise")
	f.IntVar(&c.Entry, "entry", c.Entry, "bytes of an entry of Clover: a power of two")
	f.IntVar(&c.Value, "value", c.Value, "bytes of a value, of others: 8, and with rcuckoo more")
	f.StringVar(&c.Work, "work", c.Work, "what sessions of locks do: "+strings.Join(demo.Works("locks"), ", "))
	f.Float64Var(&c.Zipf, "zipf", c.Zipf, "skew of the keys; 0 = all alike")
	f.Float64Var(&c.Deletes, "deletes", c.Deletes, "share of the writes that delete a key: of sherman")
	f.Float64Var(&c.Ranges, "ranges", c.Ranges, "share of the reads that are of up to 16 keys in a row: of sherman")
	f.StringVar(&c.Search, "search", c.Search, "how clients find tails: headers (default), or library, as Clover's own did, with more packets under conflict")
	f.IntVar(&c.Nodes, "nodes", c.Nodes, "compute nodes")
	f.IntVar(&c.MTU, "mtu", c.MTU, "of all links")
	f.BoolVar(&c.IPv6, "ipv6", c.IPv6, "RoCE over IPv6")
	f.BoolVar(&c.CM, "cm", c.CM, "make and end connections by the connection manager, over the wire; --cm=false: by configuration")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "of the workload")
	p.add(f)
	_ = cmd.RegisterFlagCompletionFunc("store", completion(demo.Stores))
	return cmd
}

// onlyOf refuses flags that the chosen store does not have. For stores with locks it changes the default of
// --keys to 8.
func onlyOf(cmd *cobra.Command, c *demo.Config) error {
	works := len(demo.Works(c.Store)) > 0
	clover := c.Store == demo.Default().Store
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"entry", clover}, {"search", clover}, {"cm", clover}, {"workload", !works}, {"zipf", !works}, {"value", !clover && !works}, {"work", works}, {"deletes", demo.Ordered(c.Store)}, {"ranges", demo.Ordered(c.Store)},
	} {
		if cmd.Flags().Changed(f.name) && !f.has && slices.Contains(demo.Stores(), c.Store) {
			return fmt.Errorf("--%s: there is no such thing with --store %s", f.name, c.Store)
		}
	}
	if works && !cmd.Flags().Changed("keys") {
		c.Keys = 8
	}
	return nil
}

// canWrite returns an error if the file cannot be written, so that a long run does not fail at its end; ""
// stands for no file.
func canWrite(name string) error {
	if name == "" {
		return nil
	}
	dir := filepath.Dir(name)
	if err := canWriteTo(dir); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	return nil
}

// canWriteTo returns an error if no file can be made in a directory.
func canWriteTo(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func runDemo(ctx context.Context, cmd *cobra.Command, c demo.Config, p playing) error {
	clk := clock.NewWall()
	line := newProgress(cmd)
	show := func(now clock.Time, s demo.Progress) { line.show(now, s.Phase+s.Step, s.String()) }
	r, err := play(cmd, line, p, func() (*demo.Result, error) {
		return demo.InNamespaces(ctx, clk, c, demo.Command{Path: "/proc/self/exe", Args: os.Args[:1]}, show)
	}, func() (*demo.Result, error) {
		return demo.InMemory(ctx, clk, c, show)
	})
	if err == nil && !r.Integrity.OK() {
		err = failed{errors.New("acknowledged writes were lost, or what clients were told cannot be")}
	}
	return err
}

// playing are the flags that say where a demo runs, and where its result is written.
type playing struct {
	mem        bool
	json, plot string // the name of a file, and the prefix of two files; "": none
}

func (p *playing) add(f *pflag.FlagSet) {
	f.BoolVar(&p.mem, "mem", false, "run in this process, on wires in memory")
	f.StringVar(&p.json, "json", "", "write the result to `FILE`")
	f.StringVar(&p.plot, "plot", "", "write the figure to `PREFIX`.png and PREFIX.svg")
}

// run runs a demo until it ends or a signal comes. Settings that check refuses and files that cannot be
// written are errors before the demo begins.
func (p *playing) run(cmd *cobra.Command, check func() error, demo func(context.Context) error) error {
	if err := check(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if err := errors.Join(canWrite(p.json), canWrite(p.plot)); err != nil {
		return err
	}
	ctx, done := interrupted(cmd.Context())
	defer done()
	return demo(ctx)
}

// demoResult is the result of a demo.
type demoResult interface {
	By(command []string) // stores the command line in the result
	WriteReport(io.Writer) error
	SaveJSON(file string) error
	Plot(prefix string) error
}

// play runs a demo in network namespaces, or in memory if namespaces cannot be made; then it prints and saves
// the result.
func play[R demoResult](cmd *cobra.Command, line *progress, p playing, namespaces, memory func() (R, error)) (r R, err error) {
	defer line.done()
	if !p.mem {
		r, err = namespaces()
		if errors.Is(err, port.ErrNotSupported) {
			line.done()
			fmt.Fprintf(cmd.ErrOrStderr(), "%v\nrunning in one process on wires in memory instead\n", err)
			p.mem = true
		}
	}
	if p.mem {
		r, err = memory()
	}
	line.done()
	if err != nil {
		return r, err
	}
	r.By(os.Args)
	if err := r.WriteReport(cmd.OutOrStdout()); err != nil {
		return r, err
	}
	if p.json != "" {
		if err := r.SaveJSON(p.json); err != nil {
			return r, err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "result: %s\n", p.json)
	}
	if p.plot != "" {
		if err := r.Plot(p.plot); err != nil {
			return r, err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "figure: %s.png, %[1]s.svg\n", p.plot)
	}
	return r, nil
}
