package snic

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
)

// TestCrowded: more frames are done at once than a link has room for. None is lost, and those of a flow leave in order: when a DAG is launched for
// which many wait; when many have been in a task for its latency; and when a second instance, launched beside a long queue, has done with
// those that are to leave behind that.
func TestCrowded(t *testing.T) {
	for _, c := range []struct {
		name, task, launch string
		before, after      int           // frames at once, and then one every gap
		gap                time.Duration // 0: all before time passes
	}{
		{"launch", "reads: [ports]", "off", 1500, 0, 0},
		{"latency", "reads: [ports], latency: 5ms, credits: 2000", "on", 1500, 0, 0},
		{"second instance", "reads: [ports], throughput: 20Mbit, credits: 8", "on", 1200, 3000, 60 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newCrew(t, scripts(), 1, graph.Args{"packets": "4096", "fair": "off", "pre-launch": c.launch, "deployment": fmt.Sprintf(`
regions: {count: 4, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, %s}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`, c.task)})
			x.advance(20 * time.Millisecond)
			n, out, most, last := 0, 0, 0, ""
			take := func() {
				r := x.Result()
				most = max(most, len(r.Out["p1"]))
				for _, f := range r.Out["p1"] {
					out++
					if s := string(f.Bytes[payload : payload+8]); s <= last {
						t.Fatalf("%s came out after %s", s, last)
					} else {
						last = s
					}
				}
				for _, f := range r.Dropped {
					t.Fatalf("dropped as %s", f.Reason)
				}
			}
			send := func() {
				n++
				x.push(0, 0, frameLong(1, fmt.Sprintf("%08d-%0*d", n, 200-payload-9, 0)))
			}
			for range c.before {
				send()
			}
			for range c.after {
				if x.board(0).runner.sched.Books().Inside < 1800 {
					send()
				}
				x.advance(c.gap)
				take()
			}
			for range 1000 {
				x.advance(time.Millisecond)
				take()
			}
			if out != n || most < 600 {
				t.Errorf("of %d, %d came out, %d at most within a step", n, out, most)
			}
		})
	}
}
