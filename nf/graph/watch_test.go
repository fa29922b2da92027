package graph_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// swamp does not come back from Push until it is let go: it computes, or sleeps.
type swamp struct {
	in, out atomic.Bool
	sleeps  chan struct{}
}

func (s *swamp) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Drop(x, 0)
	}
	s.in.Store(true)
	if s.sleeps != nil {
		<-s.sleeps
	}
	for !s.out.Load() {
	}
}

// A worker that is stuck in an app is found, and the app named, whether it computes or sleeps; before
// that, and afterwards, all breathe.
func TestWatch(t *testing.T) {
	for _, c := range []struct {
		name   string
		sleeps chan struct{}
	}{{"computes", nil}, {"sleeps", make(chan struct{})}} {
		t.Run(c.name, func(t *testing.T) {
			s := &swamp{sleeps: c.sleeps}
			kind := graph.Kind{Name: "swamp", In: []string{"in"}, Reasons: []counter.Def{{Name: "sunk"}},
				New: func(graph.Env, graph.Args) (graph.App, error) { return s, nil }}
			spring := newSpring(t, "a", 1<<40)
			inst, err := graph.New(graph.Config{
				Spec:  parse(t, "ports: {a: {kind: spring}}\napps: {bog: {kind: swamp}}\nlinks: [a.out -> bog.in]\n"),
				Kinds: append(kinds(), kind), Clock: clock.NewWall(), Ports: map[string][]port.Port{"a": {spring}},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- inst.Run(ctx) }()
			for !s.in.Load() {
			}
			beats := 0
			stuck := inst.Watch(ctx, 200*time.Millisecond, func() { beats++ })
			if stuck == nil || stuck.App != "bog" || stuck.Kind != "swamp" || stuck.For < 200*time.Millisecond || beats == 0 {
				t.Errorf("%v after %d looks", stuck, beats)
			}
			if err := inst.Breathe(100*time.Millisecond, time.Minute); !errors.As(err, &stuck) || stuck.App != "bog" {
				t.Error(err)
			}
			if apps := inst.Running(); len(apps) != 1 || apps[0] != "bog" {
				t.Error(apps)
			}
			s.out.Store(true)
			if s.sleeps != nil {
				close(s.sleeps)
			}
			if err := inst.Breathe(time.Minute, time.Minute); err != nil {
				t.Error(err)
			}
			cancel()
			if err := <-ran; err != nil {
				t.Error(err)
			}
			if s := inst.Watch(ctx, time.Second, func() {}); s != nil {
				t.Error(s)
			}
		})
	}
}
