package graph_test

import (
	"context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
)

// place is where a thread runs, and before which others.
type place struct {
	policy   uint32
	nice     int32
	priority uint32
	slice    uint64 // nanoseconds; 0: the kernel does not say
	cpus     unix.CPUSet
}

func placeOf(t *testing.T) place {
	t.Helper()
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Error(err)
		return place{}
	}
	p := place{policy: a.Policy, nice: a.Nice, priority: a.Priority, slice: a.Runtime}
	if err := unix.SchedGetaffinity(0, &p.cpus); err != nil {
		t.Error(err)
	}
	return p
}

// TestPriority: the threads of live workers go before others, on the processor that they were told.
func TestPriority(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("a priority needs root")
	}
	mine := placeOf(t)
	last := 0 // of the processors that the test may use
	for c := range 1024 {
		if mine.cpus.IsSet(c) {
			last = c
		}
	}
	slice := min(mine.slice, 100_000)
	pinned := mine.cpus
	pinned.Zero()
	pinned.Set(last)
	for _, c := range []struct {
		cfg  graph.Config
		want place
	}{
		{graph.Config{Nice: -5}, place{unix.SCHED_NORMAL, -5, 0, slice, mine.cpus}},
		{graph.Config{Realtime: 3, CPUs: []int{last}}, place{unix.SCHED_FIFO, 0, 3, 0, pinned}},
	} {
		c.cfg.Spec, c.cfg.Kinds, c.cfg.Clock = parse(t, "apps: {s: {kind: sink}}\n"), kinds(), clock.NewWall()
		inst, err := graph.New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- inst.Run(ctx) }()
		for runs := false; !runs; {
			var got place
			var at int
			if err := inst.Visit("s", 0, func(graph.App) { got, at = placeOf(t), unix.Gettid() }); err != nil {
				t.Fatal(err)
			}
			// Before the worker runs, Visit is this goroutine's.
			w := inst.Times()
			if runs = len(w) == 1 && w[0].Thread == at; runs && got != c.want {
				t.Errorf("%+v, not %+v", got, c.want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	inst, err := graph.New(graph.Config{Spec: parse(t, "apps: {s: {kind: sink}}\n"), Kinds: kinds(), Clock: clock.NewWall(), CPUs: []int{1023}})
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "pin worker 0 to processor 1023") {
		t.Error(err)
	}
}
