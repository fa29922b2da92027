package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/rack/demo"
)

func newDemoCmd() *cobra.Command {
	c := demo.Default()
	var jsonFile, plot string
	var mem bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what steering gains, on a rack in network namespaces",
		Long: `Builds a rack of network namespaces on a Linux bridge: compute nodes, a memory
node and a metadata node. The middlebox runs as a process of its own, inline on
the memory node's cable. Clover clients run a YCSB mix in three phases: the
middlebox passes everything, steers writes, steers writes and reads. Connections
are made by the connection manager, over the wire, and ended at the end.

At the end it prints the phases side by side and the verdict of integrity:
every key's chain is walked in the memory node's memory, and each acknowledged
write must be in it. A loss makes the exit status 1.

Without root everything runs in this process, on wires in memory. However it
ends, no namespace, link or process is left behind.`,
		Example: `  quillon demo
  quillon demo --workload W --clients 16 --seconds 10
  quillon demo --mem --json demo.json --plot demo`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.Check(); err != nil {
				return fmt.Errorf("--%w", err)
			}
			for _, name := range []string{jsonFile, plot} {
				if err := canWrite(name); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			signals := make(chan os.Signal, 1)
			signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer signal.Stop(signals)
			go func() {
				if s, ok := <-signals; ok {
					cancel(failed{fmt.Errorf("stopped by signal: %s", s)})
				}
			}()
			defer close(signals)
			return runDemo(ctx, cmd, c, mem, jsonFile, plot)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&c.Workload, "workload", c.Workload, "YCSB `mix`: A (50 % writes), B (5 %), C (0 %) or W (100 %)")
	f.IntVar(&c.Clients, "clients", c.Clients, "clients on each compute node")
	f.Float64Var(&c.Seconds, "seconds", c.Seconds, "measured in each phase")
	f.Float64Var(&c.Warmup, "warmup", c.Warmup, "seconds before that; the middlebox only learns for the first 0.2 s")
	f.IntVar(&c.Keys, "keys", c.Keys, "keys in the store")
	f.IntVar(&c.Entry, "entry", c.Entry, "bytes of an entry: a power of two")
	f.Float64Var(&c.Zipf, "zipf", c.Zipf, "skew of the keys; 0 = all alike")
	f.IntVar(&c.Nodes, "nodes", c.Nodes, "compute nodes")
	f.IntVar(&c.MTU, "mtu", c.MTU, "of all links")
	f.BoolVar(&c.IPv6, "ipv6", c.IPv6, "RoCE over IPv6")
	f.BoolVar(&c.CM, "cm", c.CM, "make and end connections by the connection manager, over the wire; --cm=false: by configuration")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "of the workload")
	f.BoolVar(&mem, "mem", false, "run in this process, on wires in memory")
	f.StringVar(&jsonFile, "json", "", "write the result to `FILE`")
	f.StringVar(&plot, "plot", "", "write the figure to `PREFIX`.png and PREFIX.svg")
	return cmd
}

// canWrite says early that a file could not be written at the end; "" is none.
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

// canWriteTo says early that no file could be made in a directory.
func canWriteTo(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func runDemo(ctx context.Context, cmd *cobra.Command, c demo.Config, mem bool, jsonFile, plot string) error {
	clk := clock.NewWall()
	line := newProgress(cmd)
	defer line.done()
	show := func(now clock.Time, p demo.Progress) { line.show(now, p.Phase+p.Step, p.String()) }
	var r *demo.Result
	var err error
	if !mem {
		r, err = demo.InNamespaces(ctx, clk, c, demo.Command{Path: "/proc/self/exe", Args: os.Args[:1]}, show)
		if errors.Is(err, port.ErrNotSupported) {
			line.done()
			fmt.Fprintf(cmd.ErrOrStderr(), "%v\nrunning in one process on wires in memory instead\n", err)
			mem = true
		}
	}
	if mem {
		r, err = demo.InMemory(ctx, clk, c, show)
	}
	line.done()
	if err != nil {
		return err
	}
	r.Command = os.Args
	if err := r.WriteReport(cmd.OutOrStdout()); err != nil {
		return err
	}
	if jsonFile != "" {
		if err := r.SaveJSON(jsonFile); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "result: %s\n", jsonFile)
	}
	if plot != "" {
		if err := r.Plot(plot); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "figure: %s.png, %s.svg\n", plot, plot)
	}
	if !r.Integrity.OK() {
		return failed{errors.New("acknowledged writes were lost or links are broken")}
	}
	return nil
}
