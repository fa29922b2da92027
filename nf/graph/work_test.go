package graph_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// working is an instance with an app s, whose port a has so many frames.
func working(t *testing.T, frames int) *graph.Instance {
	t.Helper()
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: spring}}\napps: {s: {kind: sink}}\nlinks: [a.out -> s.in]\n"),
		Kinds: kinds(), Clock: clock.NewWall(),
		Ports: map[string][]port.Port{"a": {newSpring(t, "a", frames)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return inst
}

// moved is how many frames came.
func moved(inst *graph.Instance) (n uint64) {
	for _, c := range inst.Counters() {
		if c.Name == "in" {
			n += c.Value
		}
	}
	return n
}

// Two that work at the same time beside frames take turns in short slices, and frames
// go on meanwhile.
func TestWork(t *testing.T) {
	inst := working(t, 1<<40)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	for moved(inst) == 0 { // before it runs, all is done at once
	}
	before := moved(inst)
	var turns [2]int // of the worker's goroutine
	last, row, most := -1, 0, 0
	var wg sync.WaitGroup
	for n := range turns {
		wg.Go(func() {
			if err := inst.Work("s", 0, func(_ graph.App, slice clock.Duration) bool {
				if last != n {
					last, row = n, 0
				}
				if row++; turns[0] > 0 && turns[1] > 0 && min(turns[0], turns[1]) < 100 {
					most = max(most, row)
				}
				turns[n]++
				if slice != 8_000 {
					t.Errorf("a slice of %d ns beside frames", slice)
					return false
				}
				return min(turns[0], turns[1]) < 100
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if min(turns[0], turns[1]) < 99 || most > 2 {
		t.Errorf("%d turns, up to %d in a row", turns, most)
	}
	if moved(inst) == before {
		t.Error("no frame moved meanwhile")
	}
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
}

// Who waits for work that is done goes on at once, also where the worker with its frames has the
// only core.
func TestWorkAlone(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	inst := working(t, 1<<40)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	for moved(inst) == 0 {
		runtime.Gosched()
	}
	clk := clock.NewWall()
	const orders = 20
	took := func(order func() error) clock.Duration {
		start := clk.Now()
		for range orders {
			if err := order(); err != nil {
				t.Fatal(err)
			}
		}
		return clk.Now().Sub(start)
	}
	var visits, works clock.Duration
	for range 10 { // other programs may have the processor in some of them
		visits = took(func() error { return inst.Visit("s", 0, func(graph.App) {}) })
		works = took(func() error {
			return inst.Work("s", 0, func(graph.App, clock.Duration) bool { return false })
		})
		if works <= 4*visits+100_000_000 { // it may be preempted every 10 ms
			break
		}
	}
	if works > 4*visits+100_000_000 {
		t.Errorf("%d orders took %v by Work, %v by Visit", orders, works, visits)
	}
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
}

// A worker that ends finishes what was begun, and one that does not run does it all.
func TestWorkEnds(t *testing.T) {
	inst := working(t, 1<<40)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	turns := 0
	work := func(graph.App, clock.Duration) bool {
		if turns++; turns == 3 {
			cancel()
		}
		return turns < 5000
	}
	if err := inst.Work("s", 0, work); err != nil || turns != 5000 {
		t.Errorf("%d turns, %v", turns, err)
	}
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	turns = 3
	if err := inst.Work("s", 0, work); err != nil || turns != 5000 {
		t.Errorf("alone: %d turns, %v", turns, err)
	}
	if inst.Work("no", 0, work) == nil || inst.Work("s", 1, work) == nil {
		t.Error("of nobody")
	}
}

// Work that panics stops the worker, as an app does, and who waits for it is told.
func TestWorkPanics(t *testing.T) {
	inst := working(t, 1<<40)
	ran := make(chan error)
	go func() { ran <- inst.Run(t.Context()) }()
	turns := 0
	if err := inst.Work("s", 0, func(graph.App, clock.Duration) bool {
		if turns++; turns == 3 {
			panic("asked to")
		}
		return true
	}); err != nil || turns != 3 {
		t.Errorf("%d turns, %v", turns, err)
	}
	var p *graph.PanicError
	if err := <-ran; !errors.As(err, &p) || p.App != "s" {
		t.Errorf("%v", err)
	}
}

// Frames are counted by how long they stay with a worker, and others' orders are no part of that.
func TestStaysOfFrames(t *testing.T) {
	const slow = 20_000_000 // ns: that of the app
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: spring}}\napps: {s: {kind: slow}}\nlinks: [a.out -> s.in]\n"),
		Kinds: append(kinds(), graph.Kind{Name: "slow", In: []string{"in"}, New: func(graph.Env, graph.Args) (graph.App, error) { return dawdler(slow), nil }}),
		Clock: clock.NewWall(),
		Ports: map[string][]port.Port{"a": {newSpring(t, "a", 1<<40)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	for moved(inst) < 1000 {
		if err := inst.Visit("s", 0, func(graph.App) {}); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	run := inst.Runtime()
	frames := uint64(0)
	for _, s := range run.Stays {
		frames += s.Frames
	}
	if half := graph.StayOf(run.Stays, 0.5); half < slow || frames == 0 || frames > moved(inst) || run.Stayed < clock.Duration(frames)*slow {
		t.Errorf("half of %d frames stayed %v, all together %v; %d moved", frames, half, run.Stayed, moved(inst))
	}
}

// dawdler is an app that keeps its worker for so long a batch.
type dawdler clock.Duration

func (a dawdler) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for clk, end := clock.NewWall(), clock.NewWall().Now().Add(clock.Duration(a)); clk.Now() < end; {
	}
	for _, x := range b.Bufs() {
		c.Drop(x, 0)
	}
}
