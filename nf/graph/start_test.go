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
