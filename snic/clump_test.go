package snic

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
)

// TestScaleClumps: what comes for a task is half as much again as it can do, in clumps that are some milliseconds apart. The task gets another
// region, of those that are free, and nothing is lost once it has.
func TestScaleClumps(t *testing.T) {
	for _, state := range []bool{false, true} {
		for _, gap := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond, 4 * time.Millisecond} {
			t.Run(fmt.Sprintf("state=%v/%v", state, gap), func(t *testing.T) {
				const mbit, size = 40, 1000
				x := newCrew(t, scripts(), 1, graph.Args{"deployment": fmt.Sprintf(`
regions: {count: 4, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, throughput: %dMbit, reads: [ports], state: %v}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`, mbit, state)})
				x.advance(20 * time.Millisecond)
				n := max(2, int(1.5*mbit*1e6/8/size*gap.Seconds()))
				begin, sent := x.now, 0
				for x.now < begin.Add(400*time.Millisecond) {
					for i := range n {
						x.push(0, 0, frameLong(byte(1+(sent+i)%50), fmt.Sprintf("%08d-%0*d", sent+i, size-payload-9, 0)))
					}
					sent += n
					x.advance(gap)
					if x.now <= begin.Add(200*time.Millisecond) {
						x.Result()
						sent = 0
					}
				}
				x.advance(20 * time.Millisecond)
				if out := len(x.Result().Out["p1"]); out < sent {
					t.Errorf("of %d frames, %d came out", sent, out)
				}
			})
		}
	}
}
