package graph_test

import (
	"context"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// many remembers many things, and reports how many there are.
type many struct{}

func (many) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Drop(x, 0)
	}
}

func (many) Report() any {
	r := &census{}
	return &graph.Gradual{Look: r.look, Value: func() any { return *r }}
}

const thousands = 100_000

type census struct{ At, Looks, Most int }

func (r *census) look(n int) bool {
	r.At, r.Looks, r.Most = min(r.At+n, thousands), r.Looks+1, max(r.Most, n)
	return r.At < thousands
}

// TestGradual: a report over many things is made in pieces, between which frames move; the end of it is what is shown.
func TestGradual(t *testing.T) {
	inst, err := graph.New(graph.Config{
		Spec:  parse(t, "ports: {a: {kind: spring}}\napps: {s: {kind: many}}\nlinks: [a.out -> s.in]\n"),
		Kinds: append(kinds(), graph.Kind{Name: "many", In: []string{"in"}, New: func(graph.Env, graph.Args) (graph.App, error) { return many{}, nil }}),
		Clock: clock.NewWall(),
		Ports: map[string][]port.Port{"a": {newSpring(t, "a", 1<<40)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	for moved(inst) == 0 { // before it runs, all is done at once
	}
	before := moved(inst)
	all, err := inst.Report("s")
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if r, ok := all[0].(census); !ok || r.At != thousands || r.Looks < 100 || r.Most > 1000 {
		t.Errorf("%+v", all[0])
	}
	if moved(inst)-before < 100 {
		t.Errorf("%d frames moved meanwhile", moved(inst)-before)
	}
	if v := graph.Report(many{}); v.(census).At != thousands {
		t.Errorf("at once: %+v", v)
	}
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
}
