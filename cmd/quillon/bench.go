package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/bench"
	"github.com/quillon/quillon/nf/clock"
)

func newBenchCmd() *cobra.Command {
	var rounds int
	var list bool
	cmd := &cobra.Command{
		Use:   "bench [NAME...]",
		Short: "Measure header parsing, ICRC, steering and AF_XDP on this machine",
		Long: `Measures the packet path. Beside each figure stands a plain pass-through of the
same frames, measured in turns with it, so that the ratio holds on a noisy
machine. Figures are medians over the rounds; ns/packet also shows the least
and the most. NAME may be a pattern (icrc-*). The veth benchmarks need root.

The Clover mix is what a middlebox received while 96 clients ran YCSB A over
1,024 keys of 128 bytes in virtual time: 65,536 frames. veth-steer plays them
in laps: in each lap the sequence numbers of every connection go on where they
were, as those of clients that keep running do. It is timed from the second lap
on, when the app has met all connections and keys.`,
		Example: "  quillon bench\n  quillon bench 'icrc-*' steer --rounds 21 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if rounds < 1 {
				return fmt.Errorf("--rounds %d: want 1 or more", rounds)
			}
			chosen, err := bench.Choose(args)
			if err != nil {
				return err
			}
			if list {
				var names []string
				for _, b := range chosen {
					names = append(names, b.Name)
				}
				return show(cmd, names, func(w io.Writer) {
					for _, b := range chosen {
						fmt.Fprintf(w, "%s\t%s\n", b.Name, b.About)
					}
				})
			}
			var results []bench.Result
			for _, b := range chosen {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s...\n", b.Name)
				r, err := bench.Measure(b, rounds, clock.NewWall())
				if err != nil {
					return fmt.Errorf("%s: %w", b.Name, err)
				}
				results = append(results, r)
			}
			return show(cmd, results, func(w io.Writer) { bench.Table(w, results) })
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 11, "rounds to take the median of")
	cmd.Flags().BoolVar(&list, "list", false, "list the benchmarks")
	cmd.AddCommand(newBenchP4Cmd(), newBenchP4RuntimeCmd(), newBenchACLCmd())
	return cmd
}

func newBenchP4Cmd() *cobra.Command {
	var rounds, routes int
	cmd := &cobra.Command{
		Use:   "p4",
		Short: "Measure the P4 engine",
		Long: `Runs two P4 programs in memory, each beside a plain pass-through of the same
frames: ipv4_router routes frames of 64 bytes by many routes, and swordbox_steer
steers a recorded Clover mix. Also measures how long it takes to load a program,
and what memory a million exact entries take.`,
		Example: "  quillon bench p4\n  quillon bench p4 --routes 1000 --rounds 5 --json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rounds < 1 || routes < 1 || routes > bench.MaxRoutes {
				return fmt.Errorf("--rounds %d --routes %d: want 1 or more, and 1 to %d", rounds, routes, bench.MaxRoutes)
			}
			r, err := bench.P4(cmd.ErrOrStderr(), rounds, routes)
			if err != nil {
				return err
			}
			return show(cmd, r, r.Table)
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 11, "rounds to take the median of")
	cmd.Flags().IntVar(&routes, "routes", 10_000, "routes of ipv4_router")
	return cmd
}

func newBenchACLCmd() *cobra.Command {
	var rounds, rules int
	cmd := &cobra.Command{
		Use:   "acl-10000",
		Short: "Measure how 10,000 rules are searched and changed",
		Long: `Searches rules about addresses, ports and protocols as P4 tables and the firewall
do, in memory: rules as ClassBench's seeds acl, fw and ipc have them, made here, and
keys of packets that mostly meet one, beside a walk of the list. Then rules are
replaced: one that is taken out, and one that is put in, are two updates.`,
		Example: "  quillon bench acl-10000\n  quillon bench acl-10000 --rules 100000 --rounds 5 --json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rounds < 1 || rules < 1 || rules > bench.MaxRules {
				return fmt.Errorf("--rounds %d --rules %d: want 1 or more, and 1 to %d", rounds, rules, bench.MaxRules)
			}
			r, err := bench.ACL(cmd.ErrOrStderr(), rounds, rules)
			if err != nil {
				return err
			}
			return show(cmd, r, r.Table)
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 11, "rounds to take the median of")
	cmd.Flags().IntVar(&rules, "rules", 10_000, "rules of each sort")
	return cmd
}

func newBenchP4RuntimeCmd() *cobra.Command {
	var rounds, batch, entries, writes int
	var rate, load float64
	var last time.Duration
	var client string
	cmd := &cobra.Command{
		Use:   "p4runtime",
		Short: "Measure writes and reads by P4Runtime into an engine that forwards",
		Long: `Runs ipv4_router with 10,000 routes behind a P4Runtime server, in memory, and
offers it frames of 64 bytes at a steady rate, as a queue of 4,096 frames would:
what finds it full is lost. The rate is --rate, or else that share (--load) of
what it forwards when frames never run out. A client, a process of its own,
writes routes over TCP, in turns with phases without writes: it inserts,
modifies and deletes, in batches. A frame's delay is the time from when it was
due to when it left.

Then a table gets a million entries, and they are read: how fast, and by how much
the process grew meanwhile, its client included.`,
		Example: "  quillon bench p4runtime\n  quillon bench p4runtime --load 0.9 --rounds 3 --json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rounds < 1 || batch < 1 || batch > 6000 || rate < 0 || load <= 0 || load > 1 || last <= 0 || entries < 0 || entries > 1<<24 || writes < 0 {
				return errors.New("want --rounds of 1 or more, --batch of 1 to 6000, --time above 0, --load of 0 to 1, --entries of 0 to 16777216, --writes of 0 or more")
			}
			if client != "" {
				return bench.WriteRoutes(cmd.InOrStdin(), cmd.OutOrStdout(), client, batch, writes)
			}
			r, err := bench.P4Runtime(cmd.ErrOrStderr(), bench.P4RuntimeConfig{
				Rounds: rounds, Time: last, Batch: batch, Mpps: rate, Load: load, Entries: entries,
				Client: func(address string) (*exec.Cmd, error) {
					self, err := os.Executable()
					return exec.Command(self, "bench", "p4runtime", "--client", address, "--batch", strconv.Itoa(batch), "--writes", strconv.Itoa(writes)), err
				},
			})
			if err != nil {
				return err
			}
			return show(cmd, r, r.Table)
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 5, "phases with and without writes")
	cmd.Flags().IntVar(&batch, "batch", 1000, "updates in a request")
	cmd.Flags().IntVar(&writes, "writes", 55_000, "updates a second that the client asks for while frames are forwarded; 0: all it can")
	cmd.Flags().IntVar(&entries, "entries", 1_000_000, "entries to write and read, without traffic; 0: none")
	cmd.Flags().Float64Var(&rate, "rate", 0, "frames to forward, in millions a second; 0: by --load")
	cmd.Flags().Float64Var(&load, "load", 0.8, "share of the most that can be forwarded")
	cmd.Flags().StringVar(&client, "client", "", "be the client of a server at this address")
	_ = cmd.Flags().MarkHidden("client") // the flag is defined above
	cmd.Flags().DurationVar(&last, "time", time.Second, "how long a phase lasts")
	return cmd
}
