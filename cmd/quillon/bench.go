package main

import (
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/clock"
)

// benchmark is one thing to measure, and the plain pass-through of the same
// frames to hold it against.
type benchmark struct {
	name, about string
	// prepare makes the two runs; an error that wraps port.ErrNotSupported
	// leaves the benchmark out.
	prepare func(clk clock.Clock) (*contest, error)
}

// contest is a prepared benchmark.
type contest struct {
	bytes      float64 // mean length of a frame
	work, pass run
	race       *race // times what it runs; nil: all of a round is timed
	close      func()
}

// run prepares one round and returns what is timed: a function that moves some
// frames and says how many.
type run func() (timed func() (packets int, err error), err error)

// spread of a figure over the rounds.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// figures of one side of a contest.
type figures struct {
	NsPerPacket spread  `json:"ns_per_packet"`
	Mpps        float64 `json:"mpps"`
	Gbps        float64 `json:"gbit_per_s"`
	Allocs      float64 `json:"allocs_per_packet"`
}

// benchResult is what bench --json prints for a benchmark.
type benchResult struct {
	Name        string  `json:"name"`
	About       string  `json:"about"`
	Bytes       float64 `json:"bytes_per_packet"`
	Rounds      int     `json:"rounds"`
	Work        figures `json:"work"`
	PassThrough figures `json:"pass_through"`
	Skipped     string  `json:"skipped,omitempty"`
}

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
			chosen, err := chooseBenchmarks(args)
			if err != nil {
				return err
			}
			if list {
				return show(cmd, names(chosen), func(w io.Writer) {
					for _, b := range chosen {
						fmt.Fprintf(w, "%s\t%s\n", b.name, b.about)
					}
				})
			}
			var results []benchResult
			for _, b := range chosen {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s...\n", b.name)
				r, err := measure(b, rounds, clock.NewWall())
				if err != nil {
					return fmt.Errorf("%s: %w", b.name, err)
				}
				results = append(results, r)
			}
			return show(cmd, results, func(w io.Writer) { benchTable(w, results) })
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 11, "rounds to take the median of")
	cmd.Flags().BoolVar(&list, "list", false, "list the benchmarks")
	cmd.AddCommand(newBenchP4Cmd(), newBenchP4RuntimeCmd(), newBenchVPCCmd())
	return cmd
}

func names(bs []benchmark) (n []string) {
	for _, b := range bs {
		n = append(n, b.name)
	}
	return n
}

func chooseBenchmarks(patterns []string) ([]benchmark, error) {
	all := benchmarks()
	if len(patterns) == 0 {
		return all, nil
	}
	var chosen []benchmark
	for _, p := range patterns {
		n := len(chosen)
		for _, b := range all {
			if ok, err := path.Match(p, b.name); err != nil {
				return nil, fmt.Errorf("%s: %w", p, err)
			} else if ok {
				chosen = append(chosen, b)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("no benchmark is called %s; there are: %s", p, strings.Join(names(all), ", "))
		}
	}
	return chosen, nil
}

// measure runs the two sides in turns.
func measure(b benchmark, rounds int, clk clock.Clock) (benchResult, error) {
	r := benchResult{Name: b.name, About: b.about, Rounds: rounds}
	c, err := b.prepare(clk)
	if missing(err) {
		r.Skipped = err.Error()
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer c.close()
	r.Bytes = c.bytes
	var work, pass side
	for n := -1; n < rounds; n++ { // the first is to warm up
		for _, s := range []struct {
			*side
			run
		}{{&work, c.work}, {&pass, c.pass}} {
			if err := s.side.round(s.run, c.race, clk, n >= 0); err != nil {
				return r, err
			}
		}
	}
	r.Work, r.PassThrough = work.figures(c.bytes), pass.figures(c.bytes)
	return r, nil
}

// side gathers the rounds of one side.
type side struct {
	ns      []float64
	packets int
	allocs  uint64
}

func (s *side) round(f run, r *race, clk clock.Clock, count bool) error {
	timed, err := f()
	if err != nil {
		return err
	}
	// What the preparation left is collected before, not beside, what is timed.
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := clk.Now()
	packets, err := timed()
	took := clk.Now().Sub(start)
	if r != nil {
		took = r.took
	}
	runtime.ReadMemStats(&after)
	if err != nil {
		return err
	}
	if packets == 0 {
		return errors.New("no packet arrived")
	}
	if count {
		s.ns = append(s.ns, float64(took.Nanoseconds())/float64(packets))
		s.packets += packets
		s.allocs += after.Mallocs - before.Mallocs
	}
	return nil
}

func (s *side) figures(bytes float64) figures {
	sort.Float64s(s.ns)
	f := figures{NsPerPacket: spread{Median: median(s.ns), Min: s.ns[0], Max: s.ns[len(s.ns)-1]}}
	f.Mpps = 1e3 / f.NsPerPacket.Median
	f.Gbps = bytes * 8 / f.NsPerPacket.Median
	f.Allocs = float64(s.allocs) / float64(s.packets)
	return f
}

// median of sorted values.
func median(v []float64) float64 {
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

func benchTable(w io.Writer, results []benchResult) {
	fmt.Fprintln(w, "\tbytes\tns/packet\tmin\tmax\tMpps\tGbit/s\tallocs\tpass-through ns\tMpps")
	for _, r := range results {
		if r.Skipped != "" {
			fmt.Fprintf(w, "%s\tleft out: %s\n", r.Name, r.Skipped)
			continue
		}
		x, y := r.Work, r.PassThrough
		fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2g\t%.1f\t%.2f\n", r.Name, r.Bytes,
			x.NsPerPacket.Median, x.NsPerPacket.Min, x.NsPerPacket.Max, x.Mpps, x.Gbps, round3(x.Allocs),
			y.NsPerPacket.Median, y.Mpps)
	}
}

// round3 drops what a handful of allocations of the run time leave.
func round3(x float64) float64 {
	if x < 0.001 {
		return 0
	}
	return x
}

// undoing is what is to be undone in the end, what was done last first.
type undoing []func()

func (u undoing) all() {
	for _, f := range slices.Backward(u) {
		f()
	}
}
