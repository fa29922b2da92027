// Package graphtest runs one app in memory, with a clock that the test moves:
//
//	x := graphtest.New(t, kind, graph.Args{"mode": "write"})
//	got := x.Push("a", frame)
//	if len(got.Out["b"]) != 1 { ... }
//
// At its end every test checks the conservation of frames, and prints what
// happened to them when it has failed.
package graphtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// App is the name of the app under test.
const App = "app"

// Start is the time at which a test begins.
const Start = clock.Time(1_000_000_000)

// Slots and SlotSize are those of the test's pool; jumbo frames fit.
const Slots, SlotSize = 2048, 16384

// Frame is a frame that came out, or was dropped or punted.
type Frame struct {
	Bytes   []byte
	Verdict packet.Verdict
	Reason  string // "" when nobody gave one; a framework reason under its own name
}

// Result is what one Push or Advance led to.
type Result struct {
	Out     map[string][]Frame // by output
	Dropped []Frame
	Punted  []Frame
}

// Test runs one app.
type Test struct {
	Clock *clock.Manual
	Inst  *graph.Instance
	Pool  *packet.Pool
	// Guard is the guard of the ports, from when the app first asks for it on: before
	// that, a test may give it one that an app before this one had.
	Guard *port.Guard
	// Bound are the queue pairs that the app has bound.
	Bound map[port.QueuePair]bool
	// NoBind, if not nil, is why no queue pair can be bound any more.
	NoBind error

	t     testing.TB
	kind  graph.Kind
	got   Result
	ports map[string]*end
	punts *graph.Tap
}

// end is a port of the graph under test: it yields nothing, and keeps copies
// of what is sent to it.
type end struct {
	x      *Test
	name   string // of the output
	record bool
	stats  port.Stats
}

func (e *end) Name() string                                     { return e.name }
func (e *end) Pool() *packet.Pool                               { return e.x.Pool }
func (e *end) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (e *end) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (e *end) Stats() port.Stats                                { return e.stats }
func (e *end) Close() error                                     { return nil }

// Guard implements port.Guarder.
func (e *end) Guard() (*port.Guard, error) {
	if e.x.Guard == nil {
		e.x.Guard = port.NewGuard(nil)
	}
	return e.x.Guard, nil
}

// Bind implements port.Binder.
func (e *end) Bind(q port.QueuePair, on bool) error {
	if e.x.NoBind != nil && on {
		return e.x.NoBind
	}
	if e.x.Bound == nil {
		e.x.Bound = map[port.QueuePair]bool{}
	}
	if e.x.Bound[q] = true; !on {
		delete(e.x.Bound, q)
	}
	return nil
}

// Rebind implements port.Binder.
func (e *end) Rebind(was, is []port.QueuePair) error {
	if e.x.Bound == nil {
		e.x.Bound = map[port.QueuePair]bool{}
	}
	for _, q := range was {
		delete(e.x.Bound, q)
	}
	for _, q := range is {
		e.x.Bound[q] = true
	}
	return nil
}

func (e *end) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		if e.record {
			e.x.got.Out[e.name] = append(e.x.got.Out[e.name], e.x.frame(x))
		}
		e.stats.TxPackets++
		e.stats.TxBytes += uint64(x.Len())
		x.Put()
	}
	b.Shift(n)
	return n, nil
}

func (x *Test) frame(b *packet.Buf) Frame {
	f := Frame{Bytes: slices.Clone(b.Bytes()), Verdict: b.Verdict}
	_, f.Reason = x.Inst.ReasonOf(&b.Meta)
	return f
}

// New makes an app of kind with every input and output joined to the test.
func New(t testing.TB, kind graph.Kind, args graph.Args) *Test {
	t.Helper()
	return NewOuter(t, []graph.Kind{kind}, args)
}

// NewSmall is New with a pool of 64 frames of at most 2 KB, and without copies of
// frames that are punted: each execution of a fuzz target can have its own, and a test
// many, which it has until its end. The others may run inside it.
func NewSmall(t testing.TB, kind graph.Kind, args graph.Args, others ...graph.Kind) *Test {
	t.Helper()
	x := build(t, append([]graph.Kind{kind}, others...), args, true, 64, packet.Headroom+2048, nil)
	t.Cleanup(x.check)
	return x
}

// NewKept is NewSmall with memory that outlives the app: what an app before it left
// there, from size bytes on zeros. It begins at a time.
func NewKept(t testing.TB, kind graph.Kind, args graph.Args, now clock.Time, memory *[]byte) *Test {
	t.Helper()
	x := build(t, []graph.Kind{kind}, args, true, 256, packet.Headroom+2048, func(_ string, size int) ([]byte, error) {
		if len(*memory) < size {
			*memory = append(*memory, make([]byte, size-len(*memory))...)
		}
		return (*memory)[:size], nil
	})
	x.Clock.Set(now)
	t.Cleanup(x.check)
	return x
}

// NewOuter is New of the first kind; the others may run inside it.
func NewOuter(t testing.TB, kinds []graph.Kind, args graph.Args) *Test {
	t.Helper()
	kind := kinds[0]
	x := build(t, kinds, args, true, Slots, SlotSize, nil)
	for _, in := range kind.In {
		if err := x.Inst.AddTrace("in-"+in, 64, ""); err != nil {
			t.Fatal(err)
		}
	}
	punts, err := x.Inst.Listen()
	if err != nil {
		t.Fatal(err)
	}
	x.punts = punts
	t.Cleanup(func() {
		x.check()
		if t.Failed() {
			for _, p := range x.Inst.Trace() {
				t.Log(p)
			}
		}
	})
	return x
}

func build(t testing.TB, kinds []graph.Kind, args graph.Args, record bool, slots, size int, memory func(string, int) ([]byte, error)) *Test {
	t.Helper()
	kind := kinds[0]
	pool, err := packet.NewPool(slots, size, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := &Test{Clock: clock.NewManual(Start), Pool: pool, t: t, kind: kind, ports: map[string]*end{}}
	x.got.Out = map[string][]Frame{}
	spec := &graph.Spec{
		Ports: map[string]graph.PortSpec{},
		Apps:  map[string]graph.AppSpec{App: {Kind: kind.Name, Args: args}},
	}
	ports := map[string][]port.Port{}
	for _, n := range kind.In {
		spec.Ports["in-"+n] = graph.PortSpec{Kind: "test"}
		ports["in-"+n] = []port.Port{&end{x: x, name: n}}
		spec.Links = append(spec.Links, "in-"+n+".out -> "+App+"."+n)
	}
	for _, n := range kind.Out {
		spec.Ports["out-"+n] = graph.PortSpec{Kind: "test"}
		e := &end{x: x, name: n, record: record}
		x.ports[n] = e
		ports["out-"+n] = []port.Port{e}
		spec.Links = append(spec.Links, App+"."+n+" -> out-"+n+".in")
	}
	cfg := graph.Config{Spec: spec, Kinds: kinds, Ports: ports, Clock: x.Clock, Memory: memory, Seed: 1}
	if record {
		cfg.OnDrop = func(b *packet.Buf) { x.got.Dropped = append(x.got.Dropped, x.frame(b)) }
	}
	if x.Inst, err = graph.New(cfg); err != nil {
		t.Fatal(err)
	}
	return x
}

// Push gives frames to an input in one breath (in several, when they are more
// than a batch) and returns what came of it.
func (x *Test) Push(in string, frames ...[]byte) Result {
	x.t.Helper()
	var b packet.Batch
	for len(frames) > 0 || b.Len() > 0 {
		for len(frames) > 0 && !b.Full() {
			f := x.Pool.Get()
			if f == nil || !f.SetBytes(frames[0]) {
				x.t.Fatalf("no buffer for a frame of %d bytes (%d of %d in use)", len(frames[0]), x.Pool.InUse(), x.Pool.Slots())
			}
			f.RxTime = int64(x.Clock.Now())
			b.Add(f)
			frames = frames[1:]
		}
		if err := x.Inst.Push("in-"+in, x.Clock.Now(), &b); err != nil {
			x.fatal(err)
		}
	}
	return x.take()
}

// Advance moves the clock on by d, running every timer at its time, and
// returns what came of it.
func (x *Test) Advance(d time.Duration) Result {
	x.t.Helper()
	end := x.Clock.Now().Add(d)
	for {
		at := x.Inst.NextTick()
		if at > end {
			break
		}
		x.Clock.Set(at)
		if _, err := x.Inst.Step(x.Clock.Now()); err != nil {
			x.fatal(err)
		}
	}
	x.Clock.Set(end)
	return x.take()
}

func (x *Test) take() Result {
	for x.punts != nil {
		f, ok := x.punts.Next()
		if !ok {
			break
		}
		x.got.Punted = append(x.got.Punted, Frame{Bytes: f.Data, Verdict: f.Verdict, Reason: f.Reason})
	}
	r := x.got
	x.got = Result{Out: map[string][]Frame{}}
	return r
}

func (x *Test) fatal(err error) {
	x.t.Helper()
	if p, ok := errors.AsType[*graph.PanicError](err); ok {
		x.t.Fatalf("%v\n%s", err, p.Stack)
	}
	x.t.Fatal(err)
}

// Counter is the value of one of the app's counters, reasons, or counts of
// frames ("in", "out", "generated", "dropped", "punted").
func (x *Test) Counter(name string) uint64 {
	x.t.Helper()
	var known []string
	for _, c := range x.Inst.Counters() {
		if c.Node != App {
			continue
		}
		if c.Name == name {
			return c.Value
		}
		known = append(known, c.Name)
	}
	x.t.Fatalf("the app has no counter %q; it has %s", name, strings.Join(known, ", "))
	return 0
}

// App is the app itself.
func (x *Test) App() graph.App { return x.Inst.App(App, 0) }

// Set changes arguments of the running app.
func (x *Test) Set(args graph.Args) error {
	_, err := x.Inst.Set(App, args)
	return err
}

// check holds the law of conservation, and that no buffer was lost.
func (x *Test) check() {
	if err := x.Inst.Conservation(); err != nil {
		x.t.Error(err)
	}
	if used, held := x.Pool.InUse(), x.Inst.Held(); used != held {
		x.t.Errorf("%d buffers are in use and %d are held", used, held)
	}
}

// Loop pushes the same frames again and again, as fast as they go: for
// benchmarks and for the proof that nothing is allocated.
type Loop struct {
	x      *Test
	in     string
	frames [][]byte
	batch  packet.Batch
	now    clock.Time
}

// NewLoop makes an app and a Loop over at most packet.MaxBatch frames for one
// of its inputs.
func NewLoop(t testing.TB, kind graph.Kind, args graph.Args, in string, frames ...[]byte) *Loop {
	t.Helper()
	return NewOuterLoop(t, []graph.Kind{kind}, args, in, frames...)
}

// NewOuterLoop is NewLoop of the first kind; the others may run inside it.
func NewOuterLoop(t testing.TB, kinds []graph.Kind, args graph.Args, in string, frames ...[]byte) *Loop {
	t.Helper()
	if len(frames) > packet.MaxBatch {
		t.Fatalf("%d frames are more than a batch", len(frames))
	}
	l := &Loop{x: build(t, kinds, args, false, Slots, SlotSize, nil), in: "in-" + in, frames: frames, now: Start}
	t.Cleanup(l.x.check)
	return l
}

// Breath pushes the frames once, a microsecond after the last time.
func (l *Loop) Breath() {
	l.now += 1000
	for _, f := range l.frames {
		b := l.x.Pool.Get()
		if b == nil || !b.SetBytes(f) {
			l.x.t.Fatal("no buffer")
		}
		l.batch.Add(b)
	}
	if err := l.x.Inst.Push(l.in, l.now, &l.batch); err != nil {
		l.x.fatal(err)
	}
}

// App is the app itself.
func (l *Loop) App() graph.App { return l.x.App() }

// Wait lets time pass without frames.
func (l *Loop) Wait(d time.Duration) {
	for end := l.now.Add(d); l.now < end; {
		l.now += 10_000
		if _, err := l.x.Inst.Step(l.now); err != nil {
			l.x.fatal(err)
		}
	}
}

// Allocs is the number of allocations a breath of the frames costs, once warm.
func Allocs(t testing.TB, kind graph.Kind, args graph.Args, in string, frames ...[]byte) float64 {
	t.Helper()
	l := NewLoop(t, kind, args, in, frames...)
	for range 16 {
		l.Breath()
	}
	return testing.AllocsPerRun(100, l.Breath)
}

// Benchmark reports ns/packet of the frames through one app, with the copy of
// each frame into its buffer.
func Benchmark(b *testing.B, kind graph.Kind, args graph.Args, in string, frames ...[]byte) {
	NewLoop(b, kind, args, in, frames...).Benchmark(b)
}

// Benchmark reports ns/packet of the frames, with the copy of each frame into its
// buffer.
func (l *Loop) Benchmark(b *testing.B) {
	l.Breath()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		l.Breath()
		n += len(l.frames)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/packet")
}
