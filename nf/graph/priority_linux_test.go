package graph_test

import (
	"context"
	"syscall"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
)

// TestNice: the threads of live workers go before others.
func TestNice(t *testing.T) {
	if syscall.Geteuid() != 0 {
		t.Skip("a nice value below 0 needs root")
	}
	inst, err := graph.New(graph.Config{Spec: parse(t, "apps: {s: {kind: sink}}\n"), Kinds: kinds(), Clock: clock.NewWall(), Nice: -5})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- inst.Run(ctx) }()
	was, err := syscall.Getpriority(syscall.PRIO_PROCESS, syscall.Gettid())
	if err != nil {
		t.Fatal(err)
	}
	own := 20 - was
	nice := own
	for nice == own && ctx.Err() == nil { // before it runs, Visit is this goroutine's
		if err := inst.Visit("s", 0, func(graph.App) {
			was, _ := syscall.Getpriority(syscall.PRIO_PROCESS, syscall.Gettid())
			nice = 20 - was
		}); err != nil {
			t.Fatal(err)
		}
	}
	if nice != -5 {
		t.Errorf("nice value %d", nice)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
