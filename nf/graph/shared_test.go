package graph_test

import (
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// sharing is an app that shares its tag, and sees what app y shares.
type sharing struct{ saw any }

func (s *sharing) Tick(c *graph.Ctx) clock.Time {
	s.saw = c.Shared("y")
	return c.Now() + 1
}

func (s *sharing) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Emit(0, x)
	}
}

// TestShared: an app sees what the instances of another one share now, and nothing where that shares nothing or is not there.
func TestShared(t *testing.T) {
	all := append(kinds(), graph.Kind{Name: "sharing", In: []string{"in"}, Out: []string{"out"}, Params: []graph.Param{{Name: "tag"}},
		New: func(env graph.Env, a graph.Args) (graph.App, error) {
			if a["tag"] != "" {
				env.Share(func() any { return a["tag"] })
			}
			return &sharing{}, nil
		}})
	for tag, want := range map[string]any{"": nil, "one": "one"} {
		inst, err := graph.New(graph.Config{Spec: parse(t, `
ports: {a: {kind: spring}, b: {kind: spring}}
apps: {x: {kind: sharing}, y: {kind: sharing, args: {tag: "`+tag+`"}}}
links: [a.out -> x.in, x.out -> y.in, y.out -> b.in]
`), Kinds: all, Clock: clock.NewManual(1), Ports: map[string][]port.Port{"a": {newSpring(t, "a", 1)}, "b": {newSpring(t, "b", 0)}}})
		if err != nil {
			t.Fatal(err)
		}
		now := clock.Time(1)
		see := func(want any) {
			t.Helper()
			now++
			if _, err := inst.Step(now); err != nil {
				t.Fatal(err)
			}
			if x := inst.App("x", 0).(*sharing); x.saw != want {
				t.Errorf("x sees %v, want %v", x.saw, want)
			}
		}
		see(want)
		// y starts anew.
		if _, err := inst.Set("y", graph.Args{"tag": "two"}); err != nil {
			t.Fatal(err)
		}
		see("two")
	}
}
