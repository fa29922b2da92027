package engine_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
)

// TestRebuild: what controllers wrote outlives an app that a plan makes anew.
func TestRebuild(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	c := w.primary()
	w.program("l2_bridge")
	w.do(op("INSERT", dmac), op("INSERT", digest))
	if _, err := w.inst.Set("sw", graph.Args{"passes": "100"}); err != nil {
		t.Fatal(err)
	}
	// It is found out within a second or so; what is written meanwhile stays too.
	w.do(op("INSERT", smac))
	for n := 0; ; n++ {
		w.send(1, ether(10, byte(n)))
		if len(w.got(0)) == 1 {
			break
		}
		if n == 1000 {
			t.Fatal("the pipeline did not come back")
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.send(1, ether(10, 200), ether(10, 201))
	for {
		m := c.next()
		if l := m.GetDigest(); len(l.GetData()) > 0 {
			break
		}
		t.Log(m, c.err)
	}
	w.texts("table_entry { table_id: 43557776 }", "table bridge_ingress.dmac meta.vid=1 hdr.ethernet.dst=02:00:00:00:00:0a -> bridge_ingress.forward(port=0)")
}

// TestCommitStays: what looks whether the app was made anew does not take a pipeline
// that is just being committed for that.
func TestCommitStays(t *testing.T) {
	spec := &graph.Spec{Apps: map[string]graph.AppSpec{"sw": {Kind: "p4"}}}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{*p4.Kind()}, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := engine.New(engine.Config{Instance: inst, App: "sw"})
	if err != nil {
		t.Fatal(err)
	}
	info, json := programFiles(t, "l2_bridge")
	var wg sync.WaitGroup
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() { _ = inst.Run(ctx) }) // a worker reads several orders at once
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				engine.Restore(dev)
			}
		}
	})
	var two [2]p4rt.Pipeline
	for i := range two {
		p, err := dev.Build(info, json)
		if err != nil {
			t.Fatal(err)
		}
		two[i] = p
	}
	for n := range 100 {
		if err := dev.Commit(two[n&1]); err != nil {
			t.Fatal(err)
		}
		if yes, err := engine.Runs(dev); !yes || err != nil {
			t.Errorf("commit %d: the pipeline before runs; %v", n, err)
			break
		}
		time.Sleep(time.Duration(n%10) * time.Millisecond)
	}
	close(done)
	cancel()
	wg.Wait()
}
