package graph_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// coy passes frames on like a wire, and wants RoCE alone.
type coy struct{}

func (coy) Push(c *graph.Ctx, in int, b *packet.Batch) { c.EmitAll(1-in, b.Bufs()) }
func (coy) Wants() port.Filter                         { return port.Filter{RoCE: true} }

func coyKinds() []graph.Kind {
	both := []string{"a", "b"}
	return append(kinds(), graph.Kind{
		Name: "coy", Summary: "wants RoCE", In: both, Out: both,
		New: func(graph.Env, graph.Args) (graph.App, error) { return coy{}, nil },
	})
}

const pair = "ports: {a: {kind: s, args: {pair: b}}, b: {kind: s, args: {pair: a}}"

// A wire wants to see nothing where what it does not see goes the same way in the kernel.
func TestWireWants(t *testing.T) {
	nothing, all, roce := port.Filter{}, port.Filter{All: true}, port.Filter{RoCE: true}
	const w = "a.out -> w.a, w.b -> b.in, b.out -> w.b, w.a -> a.in"
	for _, c := range []struct {
		name, spec string
		want       port.Filter
	}{
		{"a pair", pair + "}\napps: {w: {kind: wire}}\nlinks: [" + w + "]", nothing},
		{"see=none", pair + "}\napps: {w: {kind: wire, args: {see: none}}}\nlinks: [" + w + "]", nothing},
		{"see=all", pair + "}\napps: {w: {kind: wire, args: {see: all}}}\nlinks: [" + w + "]", all},
		{"no pair", "ports: {a: {kind: s}, b: {kind: s}}\napps: {w: {kind: wire}}\nlinks: [" + w + "]", all},
		{"to the stack", "ports: {a: {kind: s, args: {pair: b, fallback: pass}}, b: {kind: s, args: {pair: a, fallback: pass}}}\napps: {w: {kind: wire}}\nlinks: [" + w + "]", all},
		{"one way", pair + "}\napps: {w: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> b.in]", all},
		{"nowhere", pair + "}\napps: {w: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> b.in, b.out -> w.b]", all},
		{"back", pair + "}\napps: {w: {kind: wire}, x: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> a.in, b.out -> x.a, x.b -> b.in]", all},
		{"past the wire", pair + "}\napps: {w: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> b.in, b.out -> a.in]", nothing},
		{"a third port", pair + ", c: {kind: s}}\napps: {w: {kind: wire}}\nlinks: [" + w + "]", all},
		{"to a sink", pair + "}\napps: {w: {kind: wire}, s: {kind: sink}}\nlinks: [a.out -> w.a, w.b -> s.in, b.out -> w.b, w.a -> a.in]", all},
		{"two wires", pair + "}\napps: {w: {kind: wire}, x: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> x.a, x.b -> b.in, b.out -> x.b, x.a -> w.b, w.a -> a.in]", nothing},
		{"between two that want", pair + "}\napps: {c: {kind: coy}, w: {kind: wire}, d: {kind: coy}}\n" +
			"links: [a.out -> c.a, c.b -> w.a, w.b -> d.a, d.b -> b.in, b.out -> d.b, d.a -> w.b, w.a -> c.b, c.a -> a.in]", roce},
		{"two pairs", pair + ", c: {kind: s, args: {pair: d}}, d: {kind: s, args: {pair: c}}}\napps: {w: {kind: wire}, x: {kind: wire}}\n" +
			"links: [" + w + ", c.out -> x.a, x.b -> d.in, d.out -> x.b, x.a -> c.in]", nothing},
		{"two pairs that are crossed", pair + ", c: {kind: s, args: {pair: d}}, d: {kind: s, args: {pair: c}}}\napps: {w: {kind: wire}, x: {kind: wire}}\n" +
			"links: [a.out -> w.a, w.b -> c.in, c.out -> w.b, w.a -> a.in, b.out -> x.a, x.b -> d.in, d.out -> x.b, x.a -> b.in]", all},
	} {
		f, err := graph.Wants(parse(t, c.spec), coyKinds())
		if err != nil || f.All != c.want.All || f.RoCE != c.want.RoCE {
			t.Errorf("%s: %+v %v", c.name, f, err)
		}
	}
	if _, err := graph.Wants(parse(t, "apps: {w: {kind: wire, args: {see: some}}}\n"), kinds()); err == nil {
		t.Error("see=some was accepted")
	}
}

// filtered is a port that has frames, and remembers its filter.
type filtered struct {
	spring
	mu     sync.Mutex
	filter port.Filter
	refuse error
}

func (p *filtered) SetFilter(f port.Filter) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse == nil {
		p.filter = f
	}
	return p.refuse
}

func (p *filtered) watched() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.filter.Watched
}

func watchable(t *testing.T, spec string, frames int) (*graph.Instance, [2]*filtered) {
	t.Helper()
	var all [2]*filtered
	ports := map[string][]port.Port{}
	for n, name := range []string{"a", "b"} {
		all[n] = &filtered{spring: *newSpring(t, name, frames)}
		ports[name] = []port.Port{all[n]}
	}
	inst, err := graph.New(graph.Config{Spec: parse(t, spec), Kinds: coyKinds(), Ports: ports, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	return inst, all
}

const between = "}\napps: {w: {kind: wire}, c: {kind: coy}}\n" +
	"links: [a.out -> w.a, w.b -> c.a, c.b -> b.in, b.out -> c.b, c.a -> w.b, w.a -> a.in]"

// While somebody looks the ports take up what no app wants, and no longer.
func TestWatched(t *testing.T) {
	inst, ports := watchable(t, pair+between, 0)
	is := func(when string, want bool) {
		t.Helper()
		for _, p := range ports {
			if p.watched() != want || !p.filter.RoCE {
				t.Errorf("%s: %+v", when, p.filter)
			}
		}
	}
	tap := func(at string) *graph.Tap {
		t.Helper()
		x, err := inst.Tap(at)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	is("at the start", false)
	one := tap("w.b")
	is("with a tap", true)
	two := tap("a.out")
	one.Close()
	is("with the second tap", true)
	two.Close()
	is("without a tap", false)
	two.Close() // again, as by a client that has gone
	one = tap("w.b")
	two.Close()
	is("with a tap at another place than one that has ended", true)

	next := parse(t, pair+"}\napps: {c: {kind: coy}}\nlinks: [a.out -> c.a, c.b -> b.in, b.out -> c.b, c.a -> a.in]")
	p, err := inst.Plan(next)
	if err == nil {
		err = inst.Apply(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	is("when what was tapped is gone", false)
	one.Close()

	if err := inst.AddTrace("a", 3, ""); err != nil {
		t.Fatal(err)
	}
	is("with a trace", true)
	inst.ClearTrace()
	is("when it is cleared", false)
	if err := inst.AddTrace("a", 3, "unlinked"); err != nil {
		t.Fatal(err)
	}
	is("with a trace of a reason", false)

	// A port that cannot do it: nobody looks in vain.
	ports[1].refuse = errors.New("not now")
	if _, err := inst.Tap("a.out"); !errors.Is(err, ports[1].refuse) {
		t.Errorf("%v", err)
	}
	if ports[0].watched() {
		t.Error("the other port goes on")
	}
	ports[1].refuse = nil
	tap("a.out").Close() // it is free
	is("after one that could not be", false)
	if err := inst.Close(); err != nil {
		t.Fatal(err)
	}
}

// Where frames would take another way in the kernel than in the graph, a look does not change their way.
func TestWatchedOnlyWhereStraight(t *testing.T) {
	inst, ports := watchable(t, pair+"}\napps: {c: {kind: coy}}\nlinks: [a.out -> c.a, c.b -> b.in]", 0)
	tap, err := inst.Tap("c.b")
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	if ports[0].watched() || ports[1].watched() {
		t.Errorf("%+v %+v", ports[0].filter, ports[1].filter)
	}
}

// A trace that has its frames ends the look by itself.
func TestTraceEndsItsLook(t *testing.T) {
	inst, ports := watchable(t, pair+between, 1<<40)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- inst.Run(ctx) }()
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	for range 3 {
		if err := inst.AddTrace("a", 20, ""); err != nil {
			t.Fatal(err)
		}
		until("20 frames are traced", func() bool { return len(inst.Trace()) == 20 })
		until("nobody looks any more", func() bool {
			return !slices.ContainsFunc(ports[:], func(p *filtered) bool { return p.watched() })
		})
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
