package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/kvcache"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/snic/hop/wire"
)

// TestAloneOnWorkers: functions whose instances know nothing of each other run in a board of any number of workers: all of their frames, whatever
// worker they come in by, go to one, in their order.
func TestAloneOnWorkers(t *testing.T) {
	kinds := append(scripts(), *dummy.Kind(), *kvcache.Kind(), *p4.Kind(), *wire.Kind())
	for name, task := range map[string]string{
		"p4":      "kind: p4, args: {program: ../p4src/l2_bridge.json}, endpoint: false",
		"hop":     "kind: hop",
		"kvcache": "kind: kvcache, args: {value: 64}, memory: 64k",
	} {
		for _, workers := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s/%d workers", name, workers), func(t *testing.T) {
				args := graph.Args{"fair": "off", "memory": "1M", "page": "4k", "deployment": fmt.Sprintf(`
regions: {count: %d, area: 2}
tasks: {a: {%s}, b: {kind: quick, args: {letter: b}}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: b}, {uid: 2, tenant: u, run: b -> a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: all, dag: 2}]
`, 2*workers, task)}
				x := newCrew(t, kinds, workers, args)
				x.advance(20 * time.Millisecond)
				for i := range 40 * workers {
					x.push(i%workers, 0, frame(byte(2+i%workers), fmt.Sprintf("%08d-.", i)))
					x.advance(5 * time.Microsecond)
				}
				x.advance(50 * time.Microsecond)
				for w, b := range x.boards() {
					s := &b.cat.services[1]
					if s.lodge.home != 0 && workers > 1 || (s.where.to == 0) != (w == 0) {
						t.Errorf("worker %d: its home is %d, it is at %d", w, s.lodge.home, s.where.to)
					}
				}
				in := uint64(0)
				for _, c := range x.inst.Counters() {
					if c.Node == "nic/a" && c.Name == "in" {
						in += c.Value
					}
				}
				if in == 0 {
					for _, c := range x.inst.Counters() {
						if c.Value > 0 {
							t.Log(c.Node, c.Name, c.Value)
						}
					}
				}
				if in < uint64(40*workers) || x.counter("dropped") > 0 && name != "p4" || workers > 1 && x.counter("handed") != uint64(40*(workers-1)) {
					t.Errorf("%d frames of %d came to the task, %d were handed over, %d dropped", in, 40*workers, x.counter("handed"), x.counter("dropped"))
				}
			})
		}
	}
}

// TestAloneLater: a DAG whose home is not the first worker gets no task that is there alone. What runs goes on as it was.
func TestAloneLater(t *testing.T) {
	kinds := append(scripts(), *p4.Kind())
	kinds[0] = *Kind(*p4.Kind())
	text := func(run string) graph.Args {
		return graph.Args{"fair": "off", "deployment": fmt.Sprintf(`
regions: {count: 4, area: 2}
tasks: {a: {kind: p4, args: {program: ../p4src/l2_bridge.json}, endpoint: false}, b: {kind: quick, args: {letter: b}}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: b}, {uid: 2, tenant: u, run: %s}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: all, dag: 2}]
`, run)}
	}
	x := newCrew(t, kinds, 2, text("b"))
	x.advance(20 * time.Millisecond)
	const want = "DAG 2 runs in worker 1, and its task a is in the first one alone: take the DAG out, and deploy it anew"
	if err := x.Set(text("b -> a")); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("%v, want %s", err, want)
	}
	for i := range 20 {
		x.push(i%2, 0, frame(2, fmt.Sprintf("%08d-.", i)))
		x.advance(time.Millisecond)
	}
	if out := x.Result().Out["p1"]; len(out) != 20 {
		t.Errorf("%d of 20 frames came out", len(out))
	}
}
