package graph_test

import (
	"context"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// TestControlWhileRunStarts: what is asked of an instance just as it begins to
// run is answered, not kept until the run ends.
func TestControlWhileRunStarts(t *testing.T) {
	for range 300 {
		inst, err := graph.New(graph.Config{
			Spec: parse(t, "ports: {a: {kind: spring}}\n"), Clock: clock.NewWall(),
			Ports: map[string][]port.Port{"a": {newSpring(t, "a", 1<<40)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error)
		go func() { ran <- inst.Run(ctx) }()
		for range 20 {
			inst.Counters()
			if err := inst.AddTrace("a", 1, ""); err != nil {
				t.Error(err)
			}
		}
		cancel()
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
	}
}

// Each app is made once a worker to run. To be asked what it wants it is made
// beside that, and told so.
func TestMadeOnce(t *testing.T) {
	made := map[bool]int{}
	kinds := graph.Builtin()
	for i := range kinds {
		start := kinds[i].New
		kinds[i].New = func(env graph.Env, args graph.Args) (graph.App, error) {
			made[env.Asked]++
			return start(env, args)
		}
	}
	spec := parse(t, "ports: {a: {kind: spring}}\napps: {app: {kind: tee}}\nlinks: [a.out -> app.in]\n")
	if _, err := graph.Wants(spec, kinds); err != nil {
		t.Fatal(err)
	}
	if made[false] != 0 || made[true] != 1 {
		t.Errorf("asked: %v", made)
	}
	queues := []port.Port{newSpring(t, "a:0", 1), newSpring(t, "a:1", 1)}
	i, err := graph.New(graph.Config{Spec: spec, Kinds: kinds, Ports: map[string][]port.Port{"a": queues}})
	if err != nil {
		t.Fatal(err)
	}
	if made[false] != i.Workers() || made[true] != 1 {
		t.Errorf("of %d workers: %v", i.Workers(), made)
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
}
