package graph_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// binder is a port whose interface knows queue pairs; all that it is told is in told.
type binder struct {
	spring
	told   *[]string
	refuse error
	guard  *port.Guard
}

func (b *binder) Guard() (*port.Guard, error) { return b.guard, b.refuse }

func (b *binder) Bind(q port.QueuePair, on bool) error {
	*b.told = append(*b.told, fmt.Sprint(b.name, q, on))
	return b.refuse
}

func (b *binder) Rebind(was, is []port.QueuePair) error {
	*b.told = append(*b.told, fmt.Sprint(b.name, was, is))
	return b.refuse
}

// does calls do in each Push.
type does struct{ do func(*graph.Ctx) }

func (d does) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	d.do(c)
	for _, x := range b.Bufs() {
		c.Emit(0, x)
	}
}

// An app binds at each interface once, however many queues of it its worker has, also
// when one refuses, and ports that know no queue pairs are left alone.
func TestBind(t *testing.T) {
	q := port.QueuePair{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 7}
	full := errors.New("full")
	var told []string
	var errs []error
	var guards [][]*port.Guard
	one := port.NewGuard(nil)
	kind := graph.Kind{Name: "does", In: []string{"in"}, Out: []string{"out"}, New: func(graph.Env, graph.Args) (graph.App, error) {
		return does{func(c *graph.Ctx) {
			guards = append(guards, c.Guards())
			errs = append(errs, c.Bind(q, true), c.Bind(q, false), c.Rebind(nil, []port.QueuePair{q}))
		}}, nil
	}}
	at := func(name string, refuse error) *binder {
		return &binder{spring: *newSpring(t, name, 1), told: &told, refuse: refuse, guard: one}
	}
	inst, err := graph.New(graph.Config{
		Spec: parse(t, `
ports: {a: {kind: binder}, b: {kind: binder}, c: {kind: spring}, e: {kind: binder}}
apps: {d: {kind: does}}
links: [a.out -> d.in, d.out -> b.in, c.out -> b.in, b.out -> c.in, e.out -> e.in]
`),
		Kinds: append(kinds(), kind), Clock: clock.NewManual(1),
		Ports: map[string][]port.Port{"a": {at("a:0", full), at("a:1", full)}, "b": {at("b:0", nil), at("b:1", nil)}, "c": {newSpring(t, "c", 0)}, "e": {at("e:0", nil)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inst.Step(1); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, what := range []string{fmt.Sprint(q, true), fmt.Sprint(q, false), fmt.Sprint([]port.QueuePair{}, []port.QueuePair{q})} {
		want = append(want, "a:0"+what, "b:0"+what, "e:0"+what)
	}
	if len(told) < len(want) || !slices.Equal(told[:len(want)], want) {
		t.Errorf("the ports were told %q, not %q", told, want)
	}
	// Two interfaces of a pair have one guard.
	if len(guards) == 0 || !slices.Equal(guards[0], []*port.Guard{one}) {
		t.Errorf("the guards are %v", guards)
	}
	for _, err := range errs {
		if err != full {
			t.Errorf("the app was told %v", err)
		}
	}
}

// ticks calls do in each Tick.
type ticks struct {
	does
	tick func(*graph.Ctx)
}

func (x ticks) Tick(c *graph.Ctx) clock.Time {
	x.tick(c)
	return c.Now().Add(1e6)
}

// What an app binds in its first Tick is bound when Begin returns, and nothing was
// received; an app that panics there fails the instance.
func TestBegin(t *testing.T) {
	q := []port.QueuePair{{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 7}}
	for _, bad := range []bool{false, true} {
		var told []string
		pushed := 0
		kind := graph.Kind{Name: "ticks", In: []string{"in"}, Out: []string{"out"}, New: func(graph.Env, graph.Args) (graph.App, error) {
			return ticks{does{func(*graph.Ctx) { pushed++ }}, func(c *graph.Ctx) {
				if bad {
					panic("bad")
				}
				if err := c.Rebind(nil, q); err != nil {
					t.Error(err)
				}
			}}, nil
		}}
		inst, err := graph.New(graph.Config{
			Spec: parse(t, `
ports: {a: {kind: binder}, b: {kind: spring}}
apps: {d: {kind: ticks}}
links: [a.out -> d.in, d.out -> b.in]
`),
			Kinds: append(kinds(), kind), Clock: clock.NewManual(1),
			Ports: map[string][]port.Port{"a": {&binder{spring: *newSpring(t, "a:0", 1), told: &told}}, "b": {newSpring(t, "b", 0)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := inst.Begin(1); (err != nil) != bad {
			t.Errorf("bad=%v: %v", bad, err)
		}
		if want := []string{fmt.Sprint("a:0", []port.QueuePair{}, q)}; pushed != 0 || !bad && !slices.Equal(told, want) {
			t.Errorf("the port was told %q, not %q, and %d batches were received", told, want, pushed)
		}
		if n, err := inst.Step(2); (err != nil) != bad || !bad && (n == 0 || pushed == 0 || len(told) != 1) {
			t.Errorf("bad=%v: a breath moved %d frames, %d batches came, %q: %v", bad, n, pushed, told, err)
		}
	}
}

// knows is an app that knows what a process before has bound.
type knows struct {
	does
	q []port.QueuePair
}

func (k knows) Hooks() graph.Hooks {
	return graph.Hooks{Bound: func() ([]port.QueuePair, bool) { return k.q, false }}
}

// An app that runs inside another one is asked what it has bound, as any app is.
func TestBoundInside(t *testing.T) {
	q := []port.QueuePair{{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 7}}
	kind := graph.Kind{Name: "knows", In: []string{"in"}, Out: []string{"out"}, New: func(graph.Env, graph.Args) (graph.App, error) {
		return knows{does{func(*graph.Ctx) {}}, q}, nil
	}}
	for _, app := range []string{"{kind: knows}", `{kind: nest, args: {run: "k=knows"}}`} {
		inst, err := graph.New(graph.Config{
			Spec:  parse(t, "ports: {a: {kind: spring}, b: {kind: spring}}\napps: {d: "+app+"}\nlinks: [a.out -> d.in, d.out -> b.in]\n"),
			Kinds: append(kinds(), kind), Clock: clock.NewManual(1),
			Ports: map[string][]port.Port{"a": {newSpring(t, "a", 0)}, "b": {newSpring(t, "b", 0)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if known, more := inst.Bound(); !slices.Equal(known, q) || more {
			t.Errorf("%s: %v, more: %v", app, known, more)
		}
	}
}
