// Package bench measures the packet paths on this machine: each benchmark in turns with a plain pass-through of the same
// frames, so that their ratio holds on a noisy machine.
package bench

import (
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"sort"
	"strings"

	"github.com/quillon/quillon/nf/clock"
)

// Benchmark is one thing to measure, and the plain pass-through of the same
// frames to hold it against.
type Benchmark struct {
	Name, About string
	// prepare makes the two runs; an error that wraps port.ErrNotSupported
	// leaves the benchmark out.
	prepare func(clk clock.Clock) (*contest, error)
}

// contest is a prepared benchmark.
type contest struct {
	bytes      float64 // mean length of a frame
	work, pass Run
	race       *race           // times what it runs; nil: all of a round is timed
	after      func(r *Result) // adds to the result; nil: nothing
	close      func()
}

// Run prepares one round and returns what is timed: a function that moves some
// frames and says how many.
type Run func() (timed func() (packets int, err error), err error)

// Spread of a figure over the rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Figures of one side of a contest.
type Figures struct {
	NsPerPacket Spread  `json:"ns_per_packet"`
	Mpps        float64 `json:"mpps"`
	Gbps        float64 `json:"gbit_per_s"`
	Allocs      float64 `json:"allocs_per_packet"`
}

// Result is what bench --json prints for a benchmark.
type Result struct {
	Name        string  `json:"name"`
	About       string  `json:"about"`
	Bytes       float64 `json:"bytes_per_packet"`
	Rounds      int     `json:"rounds"`
	Work        Figures `json:"work"`
	PassThrough Figures `json:"pass_through"`
	Skipped     string  `json:"skipped,omitempty"`
	// Kernel: of what runs in the kernel.
	Kernel *KernelFigures `json:"kernel,omitempty"`
}

func names(bs []Benchmark) (n []string) {
	for _, b := range bs {
		n = append(n, b.Name)
	}
	return n
}

// Choose are the benchmarks that the patterns name, all without any.
func Choose(patterns []string) ([]Benchmark, error) {
	all := All()
	if len(patterns) == 0 {
		return all, nil
	}
	var chosen []Benchmark
	for _, p := range patterns {
		n := len(chosen)
		for _, b := range all {
			if ok, err := path.Match(p, b.Name); err != nil {
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

// Measure runs the two sides in turns.
func Measure(b Benchmark, rounds int, clk clock.Clock) (Result, error) {
	r := Result{Name: b.Name, About: b.About, Rounds: rounds}
	c, err := b.prepare(clk)
	if Missing(err) {
		r.Skipped = err.Error()
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer c.close()
	r.Bytes = c.bytes
	var work, pass Side
	for n := -1; n < rounds; n++ { // the first is to warm up
		for _, s := range []struct {
			*Side
			Run
		}{{&work, c.work}, {&pass, c.pass}} {
			if err := s.Side.round(s.Run, c.race, clk, n >= 0); err != nil {
				return r, err
			}
		}
	}
	r.Work, r.PassThrough = work.Figures(c.bytes), pass.Figures(c.bytes)
	if c.after != nil {
		c.after(&r)
	}
	return r, nil
}

// Side gathers the rounds of one side.
type Side struct {
	ns      []float64
	packets int
	allocs  uint64
}

// Round runs one round, which counts or is to warm up.
func (s *Side) Round(f Run, clk clock.Clock, count bool) error { return s.round(f, nil, clk, count) }

// round is Round; of what r has run only the time counts in which it runs.
func (s *Side) round(f Run, r *race, clk clock.Clock, count bool) error {
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

// Figures are those of all rounds that count, of frames of so many bytes on average.
func (s *Side) Figures(bytes float64) Figures {
	sort.Float64s(s.ns)
	f := Figures{NsPerPacket: Spread{Median: Median(s.ns), Min: s.ns[0], Max: s.ns[len(s.ns)-1]}}
	f.Mpps = 1e3 / f.NsPerPacket.Median
	f.Gbps = bytes * 8 / f.NsPerPacket.Median
	f.Allocs = float64(s.allocs) / float64(s.packets)
	return f
}

// Median of sorted values.
func Median(v []float64) float64 {
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// Table prints results, in columns that tabs separate.
func Table(w io.Writer, results []Result) {
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
		if k := r.Kernel; k != nil {
			fmt.Fprintf(w, "  of which the kernel ran %.1f %%, %.0f ns each\n", 100*k.Share, k.NsPerRun)
		}
	}
}

// round3 drops what a handful of allocations of the run time leave.
func round3(x float64) float64 {
	if x < 0.001 {
		return 0
	}
	return x
}

// Undoing is what is to be undone in the end, what was done last first.
type Undoing []func()

// All undoes it.
func (u Undoing) All() {
	for _, f := range slices.Backward(u) {
		f()
	}
}
