package bed

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
)

// Twins are worlds that are played on a bare wire and through a box.
type Twins struct {
	Box    *Box // nil: on the wire only
	Limits Limits
	// Args, if not nil, are a seed's own arguments of the box, beside Box.Args.
	Args func(seed uint64) graph.Args
	// Front are apps in front of the box, in worlds with Front.
	Front []Stage
}

// box is the box of a seed.
func (t Twins) box(seed uint64) *Box {
	b := *t.Box
	if t.Args != nil {
		b.Args = maps.Clone(b.Args)
		maps.Copy(b.Args, t.Args(seed))
	}
	return &b
}

// Try plays the world of a seed.
func (t Twins) Try(seed uint64) (wire, box *TwinResult, err error) {
	w := RandomWorld(seed, t.Limits)
	return t.play(w, seed, fault.Random(seed, w.Faults))
}

// ErrLaw: on a bare wire something happened that the law does not allow, so that the
// law is wrong.
var ErrLaw = errors.New("the law is wrong: this is a bare wire")

func (t Twins) play(w World, seed uint64, s fault.Schedule) (wire, box *TwinResult, err error) {
	if wire, err = (Twin{World: w}).Run(seed, s); err != nil {
		return wire, nil, errors.Join(ErrLaw, err)
	}
	if t.Box == nil {
		return wire, nil, nil
	}
	b := t.box(seed)
	if w.Front = w.Front && t.Front != nil; w.Front {
		b.Front = slices.Clone(t.Front)
	}
	if box, err = (Twin{World: w, Box: b}).Run(seed, s); err != nil {
		return wire, box, err
	}
	return wire, box, w.Compare(wire, box)
}

// effort is how many runs are spent on making a failure small.
const effort = 1500

// Shrink returns the least of a seed's world and schedule with which the law is
// still broken, and how it is then.
func (t Twins) Shrink(seed uint64) (w World, s fault.Schedule, err error) {
	w = RandomWorld(seed, t.Limits)
	s = fault.Random(seed, w.Faults)
	if _, _, err = t.play(w, seed, s); err == nil {
		return w, s, nil
	}
	tries, first := 0, kind(err)
	fails := func(w World, s fault.Schedule) bool {
		tries++
		_, _, e := t.play(w, seed, s)
		if e == nil || errors.Is(e, history.ErrUndecided) || kind(e) != first {
			return false
		}
		err = e
		return true
	}
	s = fault.Shrink(s, effort/8, func(s fault.Schedule) bool { return fails(w, s) })
	w.Spoofs = fewer(w.Spoofs, func(x []Spoof) bool { v := w; v.Spoofs = x; return tries < effort && fails(v, s) })
	w.Events = fewer(w.Events, func(x []Event) bool { v := w; v.Events = x; return tries < effort && fails(v, s) })
	w.Odd = fewer(w.Odd, func(x []Odd) bool { v := w; v.Odd = x; return tries < effort && fails(v, s) })
	for _, simple := range []func(*World){
		func(w *World) { w.IPv6 = false }, func(w *World) { w.Link = rnic.Link{} }, func(w *World) { w.CE = 0 }, func(w *World) { w.Managed = false }, func(w *World) { w.AckCoalesce = 0 },
		func(w *World) { w.Profile = rnic.RXE }, func(w *World) { w.Workers = 1 }, (*World).lessOften, (*World).loseNothing,
		func(w *World) { w.Recycle = false }, func(w *World) { w.Chaos = 0 }, func(w *World) { w.Journal = 0 }, func(w *World) { w.Front = false }, (*World).askNothing, func(w *World) { w.Joined = false },
	} {
		v := w
		if simple(&v); fails(v, s) {
			w = v
		}
	}
	for i := range w.Queues {
		w.Queues = slices.Clone(w.Queues)
		w.Queues[i].Steps = fewer(w.Queues[i].Steps, func(x []Step) bool {
			v := w
			v.Queues = slices.Clone(w.Queues)
			v.Queues[i].Steps = x
			return tries < effort && fails(v, s)
		})
	}
	return w, s, err
}

// kind is what sort of breach an error tells of first: its line without numbers and
// names.
func kind(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if _, what, ok := strings.Cut(line, "): "); ok {
		line = what
	}
	return strings.Join(strings.FieldsFunc(line, func(r rune) bool { return r >= '0' && r <= '9' || r == 'x' }), "")
}

// fewer leaves out what it can while bad holds: halves, then quarters, and so on.
func fewer[T any](all []T, bad func([]T) bool) []T {
	for size := len(all); size > 0; size /= 2 {
		for at := 0; at < len(all); {
			rest := slices.Delete(slices.Clone(all), at, min(at+size, len(all)))
			if bad(rest) {
				all = rest
			} else {
				at += size
			}
		}
	}
	return all
}

// String shows what is left of a world.
func (w World) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "IPv6 %v, MTU %d, profile %d, link %+v, coalesce %d, CE %d, managed %v, late %v, crash %v, workers %d, journal %v, recycle %v, chaos %d, second %d, joined %v\n", w.IPv6, w.MTU, w.Profile, w.Link, w.AckCoalesce, w.CE, w.Managed, w.Late, w.Crash, w.Workers, w.Journal, w.Recycle, w.Chaos, w.Second, w.Joined)
	for i, r := range w.Regions {
		fmt.Fprintf(&b, "region %d: domain %d, memory %d at %#x, %d bytes, access %d, fast %v, window %d of session %d\n", i, r.Domain, r.Memory, r.VA, r.Length, r.Access, r.Fast, r.Window, r.Owner)
	}
	for i, q := range w.Queues {
		if len(q.Steps) == 0 {
			continue
		}
		fmt.Fprintf(&b, "session %d: client %d, domain %d, gives %d, resources %d, asks %d, timeout %d, retries %d, RNR retries %d of timer %d, %d receives and one each %v, outstanding %d, first PSNs %#x %#x, paths %d, again %v, unseen %v, lost %v\n",
			i, q.Client, q.Domain, q.Gives, q.Far.MaxDestRdAtomic, q.Near.MaxRdAtomic, q.Near.Timeout, q.Near.RetryCnt, q.Near.RNRRetry, q.Far.MinRNRTimer, q.Receives, q.Gap, q.Outstanding, q.Far.SQPSN, q.Far.RQPSN, q.Paths, q.Again, q.Unseen, q.Lost)
		for _, x := range q.Back {
			fmt.Fprintf(&b, "\tat %v the server asks: operation %d of %d bytes\n", x.At, x.Op, x.Length)
		}
		for _, s := range q.Steps {
			r := record{Step: s, region: &w.Regions[s.Region], data: make([]byte, s.Length)}
			if s.Anew {
				b.WriteString("\tanew:\n")
			}
			fmt.Fprintf(&b, "\tafter %v %v (region %d, compare %#x, swap %#x)\n", s.Think, &r, s.Region, s.Compare, s.Swap)
		}
	}
	for _, e := range w.Events {
		fmt.Fprintf(&b, "at %v: %v region %d offset %d value %d for %v\n", e.At, e.What, e.Region, e.Offset, e.Value, e.For)
	}
	for _, o := range w.Odd {
		fmt.Fprintf(&b, "at %v: way %d, operation %d, region %d, offset %d, compare %#x, swap %#x\n", o.At, o.Way, o.Op, o.Region, o.Offset, o.Compare, o.Swap)
	}
	for _, x := range w.Spoofs {
		fmt.Fprintf(&b, "at %v: trick %d, victim %d, turn %d, seed %d\n", x.At, x.Trick, x.Victim, x.Turn, x.Seed)
	}
	return b.String()
}

func (h Happening) String() string {
	return [...]string{"a new R_Key", "the CPU writes", "the server stalls", "the server is frozen", "the box ends", "the box is reloaded", "the box sleeps", "the box comes", "the fence shuts out session", "the box's machine is started anew"}[h]
}

// Sum is what many runs came to.
type Sum struct {
	Worlds, Undecided, Failed int
	Struck, Spoofs            int
	Ops                       [numClasses]int
	Counts                    map[string]uint64
}

// Sweep plays the worlds of the seeds from first on, on all cores, until most of
// them have failed, and calls failed, one at a time, for each that did.
func (t Twins) Sweep(first uint64, n, most int, failed func(seed uint64, err error)) Sum {
	var mu sync.Mutex
	sum := Sum{Counts: map[string]uint64{}}
	wrong, undecided := each(first, n, most, func(seed uint64) error {
		_, box, err := t.Try(seed)
		mu.Lock()
		defer mu.Unlock()
		sum.Worlds++
		if box != nil {
			sum.Struck += box.Struck
			for c, n := range box.Ops {
				sum.Ops[c] += n
			}
			for name, v := range box.Counts {
				sum.Counts[name] += v
			}
		}
		if err != nil && !errors.Is(err, history.ErrUndecided) {
			failed(seed, err)
		}
		return err
	})
	sum.Failed, sum.Undecided = len(wrong), undecided
	return sum
}

// SweepTwins is Sweep in a test: it fails with the first worlds that break the law,
// made small, and says how to repeat each.
func SweepTwins(tb testing.TB, t Twins, first uint64, n int) {
	tb.Helper()
	var seeds []uint64
	sum := t.Sweep(first, n, 2, func(seed uint64, _ error) { seeds = append(seeds, seed) })
	for _, seed := range seeds {
		t.Show(tb, seed)
	}
	tb.Logf("%d worlds, %d undecided, %d frames struck, operations by class %v", sum.Worlds, sum.Undecided, sum.Struck, sum.Ops)
	if sum.Undecided > 1+n/100 {
		tb.Errorf("%d of %d histories are undecided", sum.Undecided, n)
	}
}

// Show fails the test with what the world of a seed does wrong.
func (t Twins) Show(tb testing.TB, seed uint64) {
	tb.Helper()
	w, s, err := t.Shrink(seed)
	if err != nil {
		tb.Errorf("seed %d (QUILLON_CROWDS=%d QUILLON_SEED=%d repeats it): %v\n%v%v", seed, crowds, seed, err, w, s)
	}
}
