package graph_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// keeper passes frames from a to b and back, and may not go while it keeps
// something. Its generations notice each other.
type keeper struct {
	keeps    *atomic.Bool
	running  *[32]atomic.Int32 // instances that were not stopped, by generation
	made     *atomic.Int32
	gen      int
	together *atomic.Int32 // times that one ran beside those before it
}

func (k *keeper) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if k.gen > 0 && k.running[k.gen-1].Load() != 0 {
		k.together.Add(1)
	}
	for _, x := range b.Bufs() {
		c.Emit(1-in, x)
	}
}

func (*keeper) Held() int         { return 0 }
func (k *keeper) Stop(*graph.Ctx) { k.running[k.gen].Add(-1) }

func (k *keeper) Hooks() graph.Hooks { return graph.Hooks{Keeps: k.keep} }

func (k *keeper) keep(succeeded bool) error {
	if k.keeps.Load() && !succeeded {
		return errors.New("there is something in it")
	}
	return nil
}

// keeperKind is the kind, and what its instances share.
func keeperKind() (graph.Kind, *keeper) {
	all := &keeper{keeps: new(atomic.Bool), running: new([32]atomic.Int32), made: new(atomic.Int32), together: new(atomic.Int32)}
	return graph.Kind{Name: "keeper", In: []string{"a", "b"}, Out: []string{"a", "b"}, Params: []graph.Param{{Name: "n"}},
		New: func(env graph.Env, _ graph.Args) (graph.App, error) {
			one := *all
			one.gen = env.Share(func() any { return int(all.made.Add(1) - 1) }).(int)
			all.running[one.gen].Add(1)
			return &one, nil
		}}, all
}

const kept = `
ports: {a: {kind: mem}, b: {kind: mem}, c: {kind: mem}, d: {kind: mem}}
apps: {k: {kind: keeper}}
links: [a.out -> k.a, k.b -> b.in, b.out -> k.b, k.a -> a.in]
`

// What traffic depends on is neither taken away, nor linked to other ports, nor
// passed by; everything else may change.
func TestKeeper(t *testing.T) {
	kind, all := keeperKind()
	all.keeps.Store(true)
	ports := map[string][]port.Port{}
	for _, n := range []string{"a", "b", "c", "d"} {
		ports[n] = []port.Port{newSpring(t, n, 1<<40)}
	}
	inst, err := graph.New(graph.Config{Spec: parse(t, kept), Kinds: append(kinds(), kind), Ports: ports})
	if err != nil {
		t.Fatal(err)
	}
	plan := func(old ...string) error {
		spec, err := graph.ParseSpec([]byte(strings.NewReplacer(old...).Replace(kept)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = inst.Plan(spec)
		return err
	}
	for what, change := range map[string][]string{
		"gone":             {"k: {kind: keeper}", "k: {kind: stamp}", "links: [a.out -> k.a, k.b -> b.in, b.out -> k.b, k.a -> a.in]", ""},
		"unlinked":         {"a.out -> k.a, k.b -> b.in, ", "a.out -> b.in, "},
		"another port":     {"a.out -> k.a", "c.out -> k.a", "k.a -> a.in", "k.a -> c.in"},
		"the other way":    {"a.out -> k.a, k.b -> b.in, b.out -> k.b, k.a -> a.in", "b.out -> k.a, k.b -> a.in, a.out -> k.b, k.a -> b.in"},
		"past it":          {"apps: {", "apps: {f: {kind: fork}, ", "a.out -> k.a", "a.out -> f.in, f.left -> k.a, f.right -> b.in"},
		"a port's device":  {"a: {kind: mem}", "a: {kind: mem, args: {dev: x}}"},
		"one more into it": {"k.a -> a.in", "k.a -> a.in, c.out -> k.a"},
	} {
		if err := plan(change...); err == nil || !strings.Contains(err.Error(), "app k cannot go or move now: there is something in it") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, change := range map[string][]string{
		"other arguments":   {"k: {kind: keeper}", "k: {kind: keeper, args: {n: 1}}"},
		"an app before it":  {"apps: {", "apps: {s: {kind: stamp}, ", "a.out -> k.a", "a.out -> s.in, s.out -> k.a"},
		"elsewhere":         {"k.a -> a.in", "k.a -> a.in, c.out -> d.in"},
		"nothing":           {},
		"a port elsewhere":  {", d: {kind: mem}", ""},
		"copies to a third": {"apps: {", "apps: {f: {kind: fork}, ", "a.out -> k.a", "a.out -> f.in, f.left -> k.a, f.right -> c.in"},
	} {
		if err := plan(change...); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	all.keeps.Store(false)
	if err := plan("k: {kind: keeper}", "k: {kind: stamp}", "links: [a.out -> k.a, k.b -> b.in, b.out -> k.b, k.a -> a.in]", ""); err != nil {
		t.Error(err)
	}
}

// What keeps nothing when a Plan is made may do so when it is carried out: then
// nothing changes.
func TestKeepsMeanwhile(t *testing.T) {
	kind, all := keeperKind()
	asked := 0
	late := &late{keeper: all, asked: &asked}
	kind.New = func(graph.Env, graph.Args) (graph.App, error) { return late, nil }
	ports := map[string][]port.Port{"a": {newSpring(t, "a", 0)}, "b": {newSpring(t, "b", 0)}}
	spec := parse(t, strings.ReplaceAll(kept, ", c: {kind: mem}, d: {kind: mem}", ""))
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: append(kinds(), kind), Ports: ports})
	if err != nil {
		t.Fatal(err)
	}
	p, err := inst.Plan(parse(t, "ports: {a: {kind: mem}, b: {kind: mem}}\nlinks: [a.out -> b.in]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Apply(p); err == nil || !strings.Contains(err.Error(), "since lately") {
		t.Error(err)
	}
	if got := fmt.Sprint(inst.Spec().Links); got != fmt.Sprint(spec.Links) || inst.App("k", 0) != graph.App(late) {
		t.Errorf("it changed: %s", got)
	}
}

// late keeps something when it is asked for the third time: when workers wait.
type late struct {
	*keeper
	asked *int
}

func (l *late) Hooks() graph.Hooks { return graph.Hooks{Keeps: l.keep} }

func (l *late) keep(bool) error {
	if *l.asked++; *l.asked == 3 {
		return errors.New("since lately")
	}
	return nil
}

// An app that takes another's place runs in no worker before that has stopped in
// all.
func TestChangesTogether(t *testing.T) {
	kind, all := keeperKind()
	ports := map[string][]port.Port{}
	for _, n := range []string{"a", "b"} {
		for q := range 3 {
			ports[n] = append(ports[n], newSpring(t, fmt.Sprintf("%s:%d", n, q), 1<<40))
		}
	}
	inst, err := graph.New(graph.Config{Spec: parse(t, strings.ReplaceAll(kept, ", c: {kind: mem}, d: {kind: mem}", "")), Kinds: append(kinds(), kind),
		Ports: ports, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	for n := range 20 {
		if _, err := inst.Set("k", graph.Args{"n": fmt.Sprint(n)}); err != nil {
			t.Fatal(err)
		}
		inst.Counters()
	}
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	if n := all.together.Load(); n != 0 {
		t.Errorf("%d batches went through an app while the one before it had not stopped", n)
	}
	if err := errors.Join(inst.Conservation(), inst.Close()); err != nil {
		t.Error(err)
	}
}
