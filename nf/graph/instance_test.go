package graph_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

func TestInline(t *testing.T) {
	x := newBench(t, parse(t, inline), 256)
	x.send("a", "1", "2")
	x.send("b", "3")
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"1m", "2m"}) {
		t.Errorf("b sent %q", got)
	}
	if got := x.recv("a"); !slices.Equal(got, []string{"3"}) {
		t.Errorf("a sent %q", got)
	}
	if n := x.count("mark", "stamped"); n != 2 {
		t.Errorf("stamped %d", n)
	}
	if a, b := x.count("a", "in"), x.count("b", "out"); a != 2 || b != 2 {
		t.Errorf("a received %d, b sent %d", a, b)
	}
}

// A breath runs the apps in the order of the links, ties by name: a frame
// crosses any number of them in one breath.
func TestOneBreathThroughAll(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps:
  z: {kind: stamp, args: {tag: "1"}}
  m: {kind: stamp, args: {tag: "2"}}
  a1: {kind: stamp, args: {tag: "3"}}
links: [a.out -> z.in, z.out -> m.in, m.out -> a1.in, a1.out -> b.in, b.out -> a.in]
`), 256)
	x.send("a", "f")
	x.send("b", "g")
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"f123"}) {
		t.Errorf("%q", got)
	}
	if got := x.recv("a"); !slices.Equal(got, []string{"g"}) {
		t.Errorf("port to port: %q", got)
	}
}

// Functions one behind the other, both directions: a breath takes frames
// through all of them either way, whatever they are called.
func TestThereAndBack(t *testing.T) {
	for _, names := range [][3]string{{"p", "q", "r"}, {"r", "q", "p"}, {"q", "r", "p"}} {
		x := newBench(t, parse(t, strings.NewReplacer("X", names[0], "Y", names[1], "Z", names[2]).Replace(`
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {X: {kind: wire}, Y: {kind: wire}, Z: {kind: wire}}
links:
  - a.out -> X.a
  - X.b -> Y.a
  - Y.b -> Z.a
  - Z.b -> b.in
  - b.out -> Z.b
  - Z.a -> Y.b
  - Y.a -> X.b
  - X.a -> a.in
`)), 256)
		x.send("a", "1", "2")
		x.send("b", "3", "4")
		x.step()
		if got := x.recv("b"); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("%v: b sent %q", names, got)
		}
		if got := x.recv("a"); !slices.Equal(got, []string{"3", "4"}) {
			t.Errorf("%v: a sent %q", names, got)
		}
	}
}

// Two wires tied into a ring keep their frames in the books, also when the
// ring is cut.
func TestRingOfTwo(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {x: {kind: wire}, y: {kind: wire}, f: {kind: stamp}}
links: [a.out -> f.in, f.out -> x.a, x.b -> y.a, y.b -> x.a]
`), 64)
	for range 20 {
		x.send("a", "1", "2")
		x.step()
		x.conserve()
	}
	if n := x.inst.Held(); n != 40 {
		t.Errorf("%d frames go round", n)
	}
	spec := x.inst.Spec()
	spec.Links = spec.Links[:2]
	p, err := x.inst.Plan(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.inst.Apply(p); err != nil {
		t.Fatal(err)
	}
	if n := x.inst.Held(); n != 0 {
		t.Errorf("%d frames are still held", n)
	}
	x.conserve()
}

func TestBackPressure(t *testing.T) {
	x := newBench(t, parse(t, inline), 64)
	frames := slices.Repeat([]string{"x"}, 64)
	for range 12 { // 768 frames towards a wire that holds 64 and a link that holds 512
		x.send("a", frames...)
		x.step()
		x.conserve()
	}
	if held := x.inst.Held(); held != 512 {
		t.Errorf("%d frames wait on the link", held)
	}
	if n := x.count("wire", "link-full"); n != 768-64-512 {
		t.Errorf("link-full = %d", n)
	}
	i := slices.IndexFunc(x.inst.Runtime().Links, func(l graph.LinkRuntime) bool { return l.Link == "wire.b -> b.in" })
	if l := x.inst.Runtime().Links[i]; l.Depth != 512 || l.Drops != 192 || l.Packets != 64 {
		t.Errorf("%+v", l)
	}
	total := 0
	for range 9 {
		total += len(x.recv("b"))
		x.step()
	}
	if total != 576 || x.inst.Held() != 0 {
		t.Errorf("%d frames arrived, %d held", total, x.inst.Held())
	}
}

func TestUnlinkedAndPunt(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {f: {kind: fork}}
links: [a.out -> f.in, f.left -> b.in]
`), 256)
	x.send("a", "0", "1", "p")
	x.send("b", "nowhere")
	x.step()
	if x.count("f", "unlinked") != 1 || x.count("f", "no-controller") != 1 || x.count("b", "unlinked") != 1 {
		t.Error(x.inst.Counters())
	}
	tap, err := x.inst.Listen()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.inst.Listen(); !errors.Is(err, graph.ErrListening) {
		t.Errorf("a second listener: %v", err)
	}
	x.send("a", "p1")
	x.step()
	f, ok := tap.Next()
	if !ok || string(f.Data) != "p1" || f.App != "f" || f.Reason != "asked" || f.Verdict != packet.Punted || f.Node != "f" {
		t.Errorf("%v %+v", ok, f)
	}
	tap.Close()
	x.send("a", "p2")
	x.step()
	if n := x.count("f", "no-controller"); n != 2 {
		t.Errorf("no-controller = %d", n)
	}
	if n := x.count("f", "punted"); n != 1 {
		t.Errorf("punted = %d", n)
	}
}

func TestConservationNamesTheApp(t *testing.T) {
	pool, _ := packet.NewPool(64, 512, nil)
	clk := clock.NewManual(1)
	a, far := mem.NewWire("a", "far", pool, 8, clk)
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: mem}}\napps: {f: {kind: fork}}\nlinks: [a.out -> f.in]\n"),
		Kinds: kinds(), Ports: map[string][]port.Port{"a": {a}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var b packet.Batch
	x := pool.Get()
	x.SetBytes([]byte("?"))
	b.Add(x)
	if _, err := far.Tx(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := inst.Step(2); err != nil {
		t.Fatal(err)
	}
	if err := inst.Conservation(); err == nil || !strings.Contains(err.Error(), "app f: in+generated 1, out+dropped+punted+held 0") {
		t.Errorf("a lost frame: %v", err)
	}
}

func TestPanicStopsTheInstance(t *testing.T) {
	pool, _ := packet.NewPool(64, 512, nil)
	clk := clock.NewManual(1)
	a, far := mem.NewWire("a", "far", pool, 8, clk)
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: mem}}\napps: {f: {kind: fork}}\nlinks: [a.out -> f.in]\n"),
		Kinds: kinds(), Ports: map[string][]port.Port{"a": {a}}, Clock: clock.NewWall(),
	})
	if err != nil {
		t.Fatal(err)
	}
	var b packet.Batch
	x := pool.Get()
	x.SetBytes([]byte("!"))
	b.Add(x)
	if _, err := far.Tx(&b); err != nil {
		t.Fatal(err)
	}
	err = inst.Run(t.Context())
	var p *graph.PanicError
	if !errors.As(err, &p) || p.App != "f" || p.Kind != "fork" || !strings.Contains(string(p.Stack), "Push") {
		t.Fatalf("%v", err)
	}
	if err.Error() != "app f (fork) panicked: asked to" {
		t.Errorf("%q", err)
	}
	if _, again := inst.Step(3); !errors.As(again, &p) {
		t.Errorf("afterwards: %v", again)
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
}

func TestPanicBetweenBreaths(t *testing.T) {
	x := newBench(t, parse(t, inline), 8)
	if _, err := x.inst.Set("mark", graph.Args{"tag": "!"}); err == nil || !strings.Contains(err.Error(), "app mark: it panicked") {
		t.Errorf("%v", err)
	}
	_, err := x.inst.Step(2)
	var p *graph.PanicError
	if !errors.As(err, &p) || p.App != "mark" {
		t.Errorf("%v", err)
	}
}

// Ports at their end, and an app without a timer that keeps frames: Run ends,
// and Close lets go of them.
func TestRunEndsWithFramesHeld(t *testing.T) {
	s := newSpring(t, "a", 100)
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: spring}}\napps: {h: {kind: hold}}\nlinks: [a.out -> h.in, h.out -> a.in]\n"),
		Kinds: kinds(), Ports: map[string][]port.Port{"a": {s}}, Clock: clock.NewWall(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if inst.Held() != 4 || s.pool.InUse() != 4 {
		t.Errorf("%d held, %d in use", inst.Held(), s.pool.InUse())
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	if inst.Held() != 0 || s.pool.InUse() != 0 {
		t.Errorf("after Close: %d held, %d in use", inst.Held(), s.pool.InUse())
	}
	if err := inst.Conservation(); err != nil {
		t.Error(err)
	}
}

// A receive error that is not the end of the input stops the instance.
func TestPortFailureStops(t *testing.T) {
	pool, _ := packet.NewPool(64, 512, nil)
	a, _ := mem.NewWire("a", "far", pool, 8, clock.NewManual(1))
	inst, err := graph.New(graph.Config{Spec: parse(t, "ports: {a: {kind: mem}}\n"), Ports: map[string][]port.Port{"a": {a}}})
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	if _, err := inst.Step(1); !errors.Is(err, port.ErrClosed) || err.Error() != "port a: receive: port closed" {
		t.Errorf("%v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	pool, _ := packet.NewPool(64, 512, nil)
	a, b := mem.NewWire("a", "b", pool, 8, clock.NewManual(1))
	one := parse(t, "ports: {a: {kind: mem}}\napps: {s: {kind: stamp, args: {tag: long}}}\n")
	for want, cfg := range map[string]graph.Config{
		"graph: no spec": {},
		"graph: port a of the spec was not opened":           {Spec: one, Kinds: kinds()},
		"graph: port b was opened and is not in the spec":    {Spec: one, Kinds: kinds(), Ports: map[string][]port.Port{"a": {a}, "b": {b}}},
		`spec:2:12: app s: tag "long" must be one character`: {Spec: one, Kinds: kinds(), Ports: map[string][]port.Port{"a": {a}}},
	} {
		if _, err := graph.New(cfg); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestBypassFlushes(t *testing.T) {
	s := newSpring(t, "a", 1000)
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: spring}}\napps: {s: {kind: stamp}}\nlinks: [a.out -> s.in, s.out -> a.in]\n"),
		Kinds: kinds(), Ports: map[string][]port.Port{"a": {s}},
	})
	if err != nil {
		t.Fatal(err)
	}
	app := inst.App("s", 0).(*stamp)
	for i, missed := range []uint64{0, 0, 3, 3, 4} {
		s.missed = missed
		if _, err := inst.Step(clock.Time(i)); err != nil {
			t.Fatal(err)
		}
	}
	if app.flushed != 2 {
		t.Errorf("flushed %d times", app.flushed)
	}
}

// A worker that gets nothing at all, because all of it goes past, is told too.
func TestBypassOfEverything(t *testing.T) {
	p := &idle{spring: *newSpring(t, "a", 0)}
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: idle}}\napps: {s: {kind: stamp}}\nlinks: [a.out -> s.in, s.out -> a.in]\n"),
		Kinds: kinds(), Ports: map[string][]port.Port{"a": {p}},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.missed = 7
	if _, err := inst.Step(1); err != nil {
		t.Fatal(err)
	}
	if n := inst.App("s", 0).(*stamp).flushed; n != 1 {
		t.Errorf("flushed %d times", n)
	}
}

// Frames that passed unseen before a batch are known before it is pushed.
func TestBypassIsSeenBeforeTheBatch(t *testing.T) {
	s := newSpring(t, "a", 64)
	s.missEach = 1
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: spring}}\napps: {s: {kind: stamp}}\nlinks: [a.out -> s.in, s.out -> a.in]\n"),
		Kinds: kinds(), Ports: map[string][]port.Port{"a": {s}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inst.Step(1); err != nil {
		t.Fatal(err)
	}
	if app := inst.App("s", 0).(*stamp); app.seenAtFlush != 0 || app.flushed != 1 {
		t.Errorf("flushed %d times, after %d frames", app.flushed, app.seenAtFlush)
	}
}

// A Plan that takes links and apps away while frames wait accounts for each.
func TestApplyWithBacklog(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {h: {kind: hoard}, k: {kind: hold}, m: {kind: stamp}}
links: [a.out -> m.in, m.out -> k.in, k.out -> b.in, b.out -> h.in]
`), 8)
	for range 3 {
		x.send("a", slices.Repeat([]string{"f"}, 8)...)
		x.step()
	}
	x.send("b", "1", "2")
	x.step()
	if n := x.inst.Held(); n != 4+12+2 {
		t.Fatalf("%d held", n)
	}
	p, err := x.inst.Plan(parse(t, "ports: {a: {kind: mem}, b: {kind: mem}}\napps: {m: {kind: stamp}}\nlinks: [a.out -> m.in, m.out -> a.in]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := x.inst.Apply(p); err != nil {
		t.Fatal(err)
	}
	x.conserve()
	// What the hold gave up was still sent to b's link; all of that is gone
	// with it. The hoard cannot give up anything: its two are held for ever.
	if n := x.count("b", "stopped"); n != 16 || x.inst.Held() != 2 {
		t.Errorf("%d stopped, %d held", n, x.inst.Held())
	}
	x.send("a", "g")
	x.step()
	if got := x.recv("a"); !slices.Equal(got, []string{"g-"}) {
		t.Errorf("%q", got)
	}
}

// Whoever sees drops may ask for the reason, also of those that a Plan or
// Close causes.
func TestOnDrop(t *testing.T) {
	pool, _ := packet.NewPool(64, 512, nil)
	a, far := mem.NewWire("a", "far", pool, 8, clock.NewManual(1))
	var inst *graph.Instance
	var got []string
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: mem}}\napps: {h: {kind: hold}}\nlinks: [a.out -> h.in]\n"),
		Kinds: kinds(), Ports: map[string][]port.Port{"a": {a}},
		OnDrop: func(b *packet.Buf) {
			app, reason := inst.ReasonOf(&b.Meta)
			got = append(got, b.Verdict.String()+" "+app+"."+reason+" "+string(b.Bytes()))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	send := func(s string) {
		var b packet.Batch
		x := pool.Get()
		x.SetBytes([]byte(s))
		b.Add(x)
		if _, err := far.Tx(&b); err != nil {
			t.Fatal(err)
		}
		if _, err := inst.Step(1); err != nil {
			t.Fatal(err)
		}
	}
	send("1")
	p, err := inst.Plan(parse(t, "ports: {a: {kind: mem}}\napps: {k: {kind: hold}}\nlinks: [a.out -> k.in]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Apply(p); err != nil {
		t.Fatal(err)
	}
	send("2")
	if err := inst.Close(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"dropped h.unlinked 1", "dropped k.unlinked 2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// When one app refuses its new arguments, those that took theirs go back.
func TestReconfigureAllOrNothing(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {m: {kind: stamp, args: {tag: m}}, n: {kind: stamp, args: {tag: n}}}
links: [a.out -> m.in, m.out -> n.in, n.out -> b.in]
`), 8)
	next := x.inst.Spec()
	next.Apps["m"] = graph.AppSpec{Kind: "stamp", Args: graph.Args{"tag": "x"}}
	next.Apps["n"] = graph.AppSpec{Kind: "stamp", Args: graph.Args{"tag": "long"}}
	p, err := x.inst.Plan(next)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.inst.Apply(p); err == nil || !strings.Contains(err.Error(), "app n: tag") {
		t.Errorf("%v", err)
	}
	x.send("a", "f")
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"fmn"}) {
		t.Errorf("%q", got)
	}
}

// A frame that an app took from the pool by itself is counted when it emits
// or drops it.
func TestGeneratedWithoutGet(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {t: {kind: twin}}
links: [a.out -> t.in, t.out -> b.in]
`), 8)
	x.send("a", "f", "g")
	x.step()
	if got := x.recv("b"); len(got) != 4 || x.count("t", "generated") != 2 {
		t.Errorf("%q, %d generated", got, x.count("t", "generated"))
	}
}

func TestOrder(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {z: {kind: tee}, c: {kind: stamp}, y: {kind: stamp}, b1: {kind: stamp}, a1: {kind: sink}}
links: [a.out -> z.in, z.copy -> y.in, z.out -> b1.in, y.out -> a1.in, b1.out -> a1.in]
`), 8)
	var got []string
	for _, n := range x.inst.Runtime().Nodes {
		got = append(got, n.Node)
	}
	if want := "c z b1 y a1 a b"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

func TestApplyKeepsState(t *testing.T) {
	x := newBench(t, parse(t, inline), 256)
	x.send("a", "1")
	x.step()
	x.recv("b")
	before := x.inst.App("mark", 0)
	next := x.inst.Spec()
	next.Apps["mark"] = graph.AppSpec{Kind: "stamp", Args: graph.Args{"tag": "n"}}
	next.Apps["late"] = graph.AppSpec{Kind: "fixed", Args: graph.Args{"tag": "l"}}
	next.Links[1] = "mark.out -> late.in"
	next.Links = append(next.Links, "late.out -> wire.a")
	plan, err := x.inst.Plan(next)
	if err != nil {
		t.Fatal(err)
	}
	want := `unlink mark.out -> wire.a
start late: fixed,tag=l
reconfigure mark: tag=n (was m)
link late.out -> wire.a
link mark.out -> late.in
`
	if d := cmp.Diff(want, plan.String()); d != "" {
		t.Error(d)
	}
	if err := x.inst.Apply(plan); err != nil {
		t.Fatal(err)
	}
	if err := x.inst.Apply(plan); !errors.Is(err, graph.ErrStale) {
		t.Errorf("applied twice: %v", err)
	}
	x.send("a", "2")
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"2nl"}) {
		t.Errorf("%q", got)
	}
	if x.inst.App("mark", 0) != before || before.(*stamp).seen != 2 || x.count("mark", "stamps") != 2 {
		t.Error("mark lost its state")
	}
	// An app that cannot be reconfigured starts anew, and the plan says so.
	late := x.inst.App("late", 0)
	plan, err = x.inst.Set("late", graph.Args{"tag": "k"})
	if err != nil || !strings.Contains(plan.String(), "starts anew") || x.inst.App("late", 0) == late {
		t.Errorf("%v %v", plan, err)
	}
	// Bad arguments change nothing.
	for _, app := range []string{"mark", "late"} {
		spec := x.inst.Spec()
		if _, err := x.inst.Set(app, graph.Args{"tag": "long"}); err == nil || !strings.Contains(err.Error(), `app `+app+`: tag "long" must be one character`) {
			t.Errorf("%s: %v", app, err)
		}
		if d := cmp.Diff(spec, x.inst.Spec(), specOpts); d != "" {
			t.Error(d)
		}
	}
	if _, err := x.inst.Set("marc", nil); err == nil || err.Error() != `no app is named "marc" (did you mean "mark"?)` {
		t.Errorf("%v", err)
	}
	next = x.inst.Spec()
	next.Ports["c"] = graph.PortSpec{Kind: "mem"}
	if _, err := x.inst.Plan(next); err == nil {
		t.Error("a port was added without OpenPort")
	}
	x.send("a", "3")
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"3nk"}) {
		t.Errorf("%q", got)
	}
}

func TestApplyOpensAndClosesPorts(t *testing.T) {
	pool, _ := packet.NewPool(256, 512, nil)
	clk := clock.NewManual(1)
	a, aFar := mem.NewWire("a", "a-far", pool, 64, clk)
	b, bFar := mem.NewWire("b", "b-far", pool, 64, clk)
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: mem}}\nlinks: [a.out -> a.in]\n"),
		Kinds: kinds(), Ports: map[string][]port.Port{"a": {a}},
		OpenPort: func(name string, s graph.PortSpec) ([]port.Port, error) {
			if name != "b" {
				return nil, errors.New("no such thing")
			}
			return []port.Port{b}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(src string) error {
		p, err := inst.Plan(parse(t, src))
		if err != nil {
			return err
		}
		return inst.Apply(p)
	}
	if err := apply("ports: {a: {kind: mem}, c: {kind: mem}}\nlinks: [a.out -> c.in]\n"); err == nil || err.Error() != "port c: no such thing" {
		t.Fatalf("%v", err)
	}
	if err := apply("ports: {a: {kind: mem}, b: {kind: mem}}\nlinks: [a.out -> b.in]\n"); err != nil {
		t.Fatal(err)
	}
	var batch packet.Batch
	x := pool.Get()
	x.SetBytes([]byte("f"))
	batch.Add(x)
	if _, err := aFar.Tx(&batch); err != nil {
		t.Fatal(err)
	}
	if _, err := inst.Step(2); err != nil {
		t.Fatal(err)
	}
	if bFar.Pending() != 1 {
		t.Error("nothing arrived at the new port")
	}
	if err := apply("ports: {a: {kind: mem}}\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Rx(&batch); !errors.Is(err, port.ErrClosed) {
		t.Errorf("the port that went was not closed: %v", err)
	}
	if err := inst.Conservation(); err != nil {
		t.Error(err)
	}
}

// From any graph to any other: Apply ends with what building the other one
// gives, whatever is under way, and leaves alone what did not change.
func TestApplyConverges(t *testing.T) {
	frames := []string{"0", "1", "2", "p", "3"}
	rapid.Check(t, func(rt *rapid.T) {
		from, to := genSpec(rt), genSpec(rt)
		x, y := newBench(t, from, 8), newBench(t, to, 8)
		for range rapid.IntRange(0, 6).Draw(rt, "breaths") {
			x.send("a", rapid.SampledFrom(frames).Draw(rt, "frame"))
			x.step()
			if n := x.inst.Held(); n > 8 {
				x.recv("a")
				x.recv("b")
			}
		}
		apps := map[string]graph.App{}
		for n := range from.Apps {
			apps[n] = x.inst.App(n, 0)
		}
		plan, err := x.inst.Plan(to)
		if err != nil {
			rt.Fatal(err)
		}
		if err := x.inst.Apply(plan); err != nil {
			rt.Fatal(err)
		}
		if err := x.inst.Conservation(); err != nil {
			rt.Fatal(err)
		}
		for n, a := range to.Apps {
			old, had := from.Apps[n]
			same := had && old.Kind == a.Kind
			if a.Kind == "fixed" {
				same = same && maps.Equal(old.Args, a.Args)
			}
			if same && a.Kind != "tee" && a.Kind != "fork" && x.inst.App(n, 0) != apps[n] {
				rt.Fatalf("%s was made anew", n)
			}
		}
		if p, err := x.inst.Plan(to); err != nil || !p.Empty() {
			rt.Fatalf("not there yet: %v %v", p, err)
		}
		// Both behave alike once what was held has gone.
		quiet := func(z *bench) {
			for range 8 {
				z.step()
				z.recv("a")
				z.recv("b")
			}
		}
		quiet(x)
		quiet(y)
		hasHold := false
		for _, a := range to.Apps {
			hasHold = hasHold || a.Kind == "hold"
		}
		for _, f := range frames {
			for _, z := range []*bench{x, y} {
				z.send("a", f)
				z.send("b", f)
				z.step()
			}
			for _, p := range []string{"a", "b"} {
				if a, b := x.recv(p), y.recv(p); !hasHold && !slices.Equal(a, b) {
					rt.Fatalf("%s: %q, want %q", p, a, b)
				}
			}
		}
		for _, z := range []*bench{x, y} {
			if err := z.inst.Close(); err != nil {
				rt.Fatal(err)
			}
			for _, far := range z.far {
				far.Close()
			}
			if n := z.pool.InUse(); n != 0 {
				rt.Fatalf("%d buffers are lost", n)
			}
		}
	})
}

func TestTap(t *testing.T) {
	x := newBench(t, parse(t, inline), 4)
	for _, at := range []string{"mark.out", "wire.b", "b.in", "a.out", "wire.a"} {
		tap, err := x.inst.Tap(at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.inst.Tap(at); err == nil {
			t.Errorf("%s: two taps", at)
		}
		// Six frames towards a wire of four: two wait, and are copied once.
		x.send("a", "1", "2", "3")
		x.step()
		x.send("a", "4", "5", "6")
		x.step()
		x.step()
		n := len(x.recv("b"))
		x.step()
		n += len(x.recv("b"))
		var got []string
		for f, ok := tap.Next(); ok; f, ok = tap.Next() {
			got = append(got, string(f.Data))
		}
		tap.Close()
		want := 6
		if at == "wire.a" {
			want = 0 // the output: nothing came back from b
		}
		if n != 6 || len(got) != want || tap.Dropped() != 0 {
			t.Errorf("%s: %d arrived, tapped %q, dropped %d", at, n, got, tap.Dropped())
		}
		x.send("a", "7")
		x.step()
		x.recv("b")
		if _, ok := tap.Next(); ok {
			t.Errorf("%s: a closed tap yields frames", at)
		}
	}
	if _, err := x.inst.Tap("mark.oot"); err == nil || err.Error() != `no link is at "mark.oot" (did you mean "mark.out"?)` {
		t.Errorf("%v", err)
	}
}

func TestTrace(t *testing.T) {
	x := newBench(t, parse(t, strings.Replace(inline, "wire:\n    kind: wire", "wire:\n    kind: wire\n  f: {kind: fork}", 1)), 256)
	if err := x.inst.AddTrace("a", 2, ""); err != nil {
		t.Fatal(err)
	}
	x.send("a", "1", "2", "3")
	x.send("b", "4")
	x.step()
	tr := x.inst.Trace()
	if len(tr) != 2 {
		t.Fatalf("%v", tr)
	}
	want := `packet 1, 1970-01-01T00:00:01.000001Z
  a          +0s       received, 1 bytes
  mark       +0s       in in
  mark       +0s       stamp m
  mark       +0s       out out
  wire       +0s       in a
  wire       +0s       out b
  b          +0s       transmitted rewritten: mark.stamped
`
	if d := cmp.Diff(want, tr[0].String()); d != "" {
		t.Error(d)
	}
	x.inst.ClearTrace()
	if tr := x.inst.Trace(); len(tr) != 0 {
		t.Errorf("%v", tr)
	}
	if err := x.inst.AddTrace("c", 1, ""); err == nil {
		t.Error("a port that is not there")
	}
	if err := x.inst.AddTrace("a", 1, "stampd"); err == nil || !strings.Contains(err.Error(), `did you mean "stamped"?`) {
		t.Errorf("%v", err)
	}
}

func TestTraceByReason(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {f: {kind: fork}, s: {kind: stamp}}
links: [a.out -> f.in, f.left -> b.in, f.right -> s.in]
`), 256)
	if err := x.inst.AddTrace("a", 2, "unlinked"); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		x.send("a", slices.Repeat([]string{"0"}, 60)...)
		x.step()
		x.recv("b")
	}
	x.send("a", "1", "0", "3", "5")
	x.step()
	x.send("a", "7")
	x.step()
	x.recv("b")
	tr := x.inst.Trace()
	if len(tr) != 2 {
		t.Fatalf("%d packets kept: %v", len(tr), tr)
	}
	for _, p := range tr {
		if last := p.Lines[len(p.Lines)-1]; last.Text != "dropped: s.unlinked" || len(p.Lines) != 6 {
			t.Errorf("%v", p)
		}
	}
}

func TestWants(t *testing.T) {
	for _, c := range []struct {
		apps string
		want port.Filter
	}{
		{"{}", port.Filter{}},
		{"{w: {kind: wire}}", port.Filter{All: true}}, // with ports: TestWireWants
		{"{w: {kind: wire}, s: {kind: stamp}}", port.Filter{All: true}},
	} {
		s := parse(t, "apps: "+c.apps+"\n")
		f, err := graph.Wants(s, kinds())
		if err != nil || cmp.Diff(c.want, f) != "" {
			t.Errorf("%s: %+v %v", c.apps, f, err)
		}
	}
	s := parse(t, "apps: {s: {kind: stamp, args: {tag: x}}, u: {kind: stamp, args: {tag: y}}, v: {kind: stamp, args: {tag: x}}}\n")
	f, err := graph.Wants(s, kinds())
	if err != nil || f.All || !f.RoCE || fmt.Sprint(f.Hosts) != "[10.0.0.120 10.0.0.121]" {
		t.Errorf("%+v %v", f, err)
	}
	inst, err := graph.New(graph.Config{Spec: s, Kinds: kinds()})
	if err != nil {
		t.Fatal(err)
	}
	if got := inst.Wants(); fmt.Sprint(got) != fmt.Sprint(f) {
		t.Errorf("%v", got)
	}
}

func TestQueuesAndWorkers(t *testing.T) {
	ports := map[string][]port.Port{}
	for _, n := range []string{"a", "b"} {
		for q := range map[string]int{"a": 4, "b": 2}[n] {
			ports[n] = append(ports[n], newSpring(t, fmt.Sprintf("%s:%d", n, q), 100))
		}
	}
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, strings.ReplaceAll(inline, "depth: 64", "x: y")),
		Kinds: kinds(), Ports: ports, Clock: clock.NewWall(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if inst.Workers() != 2 || !slices.Equal(inst.Notes(), []string{"port a has 4 queues for 2 workers, which receive from several of them in turn"}) {
		t.Errorf("%d workers, %q", inst.Workers(), inst.Notes())
	}
	if err := inst.Run(t.Context()); err != nil { // until the springs are dry
		t.Fatal(err)
	}
	for _, c := range inst.Counters() {
		if c.Node == "a" && c.Name == "in" && c.Value != 400 || c.Node == "b" && c.Name == "in" && c.Value != 200 {
			t.Errorf("%+v", c)
		}
	}
	if err := inst.Conservation(); err != nil {
		t.Error(err)
	}
}

// Everything that a controller can do, while two workers run as fast as they
// can: for the race detector.
func TestControlUnderTraffic(t *testing.T) {
	ports := map[string][]port.Port{}
	for _, n := range []string{"a", "b"} {
		for q := range 2 {
			ports[n] = append(ports[n], newSpring(t, fmt.Sprintf("%s:%d", n, q), 1<<40))
		}
	}
	first := parse(t, inline)
	inst, err := graph.New(graph.Config{Spec: first, Kinds: kinds(), Ports: ports, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	second := first.Clone()
	second.Apps["hold"] = graph.AppSpec{Kind: "hold"}
	second.Links[1] = "mark.out -> hold.in"
	second.Links = append(second.Links, "hold.out -> wire.a")
	var wg sync.WaitGroup
	try := func(f func(i int) error) {
		wg.Go(func() {
			for i := range 10 {
				if err := f(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	try(func(i int) error {
		p, err := inst.Plan([]*graph.Spec{second, first}[i%2])
		if err == nil {
			err = inst.Apply(p)
		}
		if errors.Is(err, graph.ErrStale) {
			return nil
		}
		return err
	})
	try(func(i int) error {
		_, err := inst.Set("mark", graph.Args{"tag": string(rune('a' + i%26))})
		if errors.Is(err, graph.ErrStale) {
			return nil
		}
		return err
	})
	try(func(i int) error {
		if err := inst.AddTrace("a", 3, []string{"", "stamped"}[i%2]); err != nil {
			return err
		}
		inst.Trace()
		if i%5 == 4 {
			inst.ClearTrace()
		}
		return nil
	})
	try(func(i int) error {
		tap, err := inst.Tap("mark.out")
		if err != nil {
			return err
		}
		for range 50 {
			if f, ok := tap.Next(); ok && len(f.Data) != 3 {
				return fmt.Errorf("tapped %q", f.Data)
			}
		}
		tap.Close()
		return nil
	})
	try(func(int) error {
		inst.Counters()
		inst.Runtime()
		inst.Wants()
		if r, err := inst.Report("mark"); err != nil || len(r) != 2 {
			return fmt.Errorf("%v %v", r, err)
		}
		return inst.Conservation()
	})
	wg.Wait()
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	if err := inst.Conservation(); err != nil {
		t.Error(err)
	}
	if r := inst.Runtime(); r.Nodes[0].Packets == 0 || r.Nodes[0].NsPer == 0 {
		t.Errorf("%+v", r)
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	for _, qs := range ports {
		for _, q := range qs {
			if n := q.Pool().InUse(); n != 0 {
				t.Errorf("%s: %d buffers are lost", q.Name(), n)
			}
		}
	}
}

// idle is a port without traffic that notes how long it was waited for.
type idle struct {
	spring
	waited []time.Duration
	stop   func()
}

func (p *idle) Rx(*packet.Batch) (int, error) { return 0, nil }
func (p *idle) Wait(ctx context.Context, d clock.Duration) error {
	if p.waited = append(p.waited, d); len(p.waited) == 3 {
		p.stop()
	}
	return ctx.Err()
}

func TestIdleWorkerSleeps(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &idle{spring: *newSpring(t, "a", 0), stop: cancel}
	inst, err := graph.New(graph.Config{
		Spec: parse(t, "ports: {a: {kind: idle}}\n"), Ports: map[string][]port.Port{"a": {p}},
		Clock: clock.NewWall(), Spin: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if len(p.waited) < 3 || p.waited[0] != 10*time.Millisecond {
		t.Errorf("waited %v", p.waited)
	}
}

// A sleep ends in time for the next timer.
func TestIdleWorkerWakesForTimers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &idle{spring: *newSpring(t, "a", 0), stop: cancel}
	inst, err := graph.New(graph.Config{
		Spec: parse(t, "ports: {a: {kind: idle}}\napps: {b: {kind: beat}}\nlinks: [b.out -> a.in]\n"), Kinds: kinds(),
		Ports: map[string][]port.Port{"a": {p}}, Clock: clock.NewWall(), Spin: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Run(ctx); err != nil {
		t.Fatal(err)
	}
	for _, d := range p.waited {
		if d > 3*time.Millisecond {
			t.Errorf("waited %v with a timer every 3ms", d)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	const chain = `
ports: {a: {kind: mem}, b: {kind: mem}, c: {kind: mem}}
apps:
  t: {kind: tee}
  f: {kind: fork}
  s: {kind: stamp}
  h: {kind: hold}
  k: {kind: sink}
links: [a.out -> t.in, t.out -> f.in, t.copy -> k.in, f.left -> s.in, s.out -> h.in, h.out -> b.in]
`
	for name, setup := range map[string]func(x *bench){
		"plain":  func(*bench) {},
		"traced": func(x *bench) { _ = x.inst.AddTrace("a", 1<<40, "") },
		"tapped": func(x *bench) {
			if _, err := x.inst.Tap("s.out"); err != nil {
				t.Fatal(err)
			}
			if _, err := x.inst.Listen(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newBench(t, parse(t, chain), 1024)
			setup(x)
			var b packet.Batch
			// Forwarded, unlinked, punted; b is never read: link-full at last.
			frames := [][]byte{{'0'}, {'1'}, {'p'}, {'2'}}
			breath := func() {
				for _, f := range frames {
					p := x.pool.Get()
					p.SetBytes(f)
					b.Add(p)
				}
				if _, err := x.far["a"].Tx(&b); err != nil {
					t.Fatal(err)
				}
				x.step()
			}
			if n := testing.AllocsPerRun(1000, breath); n != 0 {
				t.Errorf("%v allocations a breath", n)
			}
			if x.count("h", "link-full") == 0 || x.count("f", "unlinked") == 0 {
				t.Error("the drop paths were not taken")
			}
		})
	}
}

func BenchmarkBreath(b *testing.B) {
	run := func(b *testing.B, src string) {
		s := newSpring(b, "a", 1<<62)
		inst, err := graph.New(graph.Config{Spec: parse(b, src), Kinds: kinds(), Ports: map[string][]port.Port{"a": {s}}})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		n, now := 0, clock.Time(0)
		for b.Loop() {
			now++
			if _, err := inst.Step(now); err != nil {
				b.Fatal(err)
			}
			n += packet.MaxBatch
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/packet")
	}
	b.Run("port-to-port", func(b *testing.B) {
		run(b, "ports: {a: {kind: spring}}\nlinks: [a.out -> a.in]\n")
	})
	b.Run("1-app", func(b *testing.B) {
		run(b, "ports: {a: {kind: spring}}\napps: {w: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> a.in]\n")
	})
	b.Run("2-apps", func(b *testing.B) {
		run(b, "ports: {a: {kind: spring}}\napps: {w: {kind: wire}, x: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> x.a, x.b -> a.in]\n")
	})
}
