package engine_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/nf/graph"
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
	w := newWorld(t, p4rt.Config{})
	info, json := programFiles(t, "l2_bridge")
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					engine.Restore(w.dev)
					runtime.Gosched()
				}
			}
		})
	}
	for n := range 200 {
		p, err := w.dev.Build(info, json)
		if err == nil {
			err = w.dev.Commit(p)
		}
		if err != nil {
			t.Fatal(err)
		}
		engine.Restore(w.dev)
		if yes, err := engine.Runs(w.dev); !yes || err != nil {
			t.Errorf("commit %d: the pipeline before runs; %v", n, err)
			break
		}
	}
	close(done)
	wg.Wait()
}
