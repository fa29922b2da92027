package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/snic/region"
)

// offered sends frames of so many flows in turn, mbit in all, and returns how many were sent, came out and were dropped.
// Those of a flow are to come out in order.
func offered(t *testing.T, x *graphtest.Test, d time.Duration, mbit float64, flows int) (sent, out, dropped int) {
	t.Helper()
	const size = 1000
	long := strings.Repeat(".", size-payload-9)
	gap := time.Duration(size * 8 * 1000 / mbit)
	last := make([]string, flows)
	take := func(r graphtest.Result) {
		dropped += len(r.Dropped)
		for _, f := range r.Out["p1"] {
			flow := int(f.Bytes[28])<<8 | int(f.Bytes[29])
			if n := string(f.Bytes[payload : payload+8]); n <= last[flow] {
				t.Fatalf("of flow %d, %s came out after %s", flow, n, last[flow])
			} else {
				last[flow] = n
			}
			out++
		}
	}
	for ; d > 0; d -= gap {
		sent++
		f := frameLong(byte(sent%flows), fmt.Sprintf("%08d-%s", sent, long))
		f[28] = byte(sent % flows >> 8)
		take(x.Push("p0", f))
		take(x.Advance(gap))
	}
	take(x.Advance(2 * time.Millisecond))
	return sent, out, dropped
}

// TestSkew: a task gets instances until it can do what comes, however few flows bring it. Only one flow of a
// task with state gets what one instance can, and the board says why.
func TestSkew(t *testing.T) {
	for _, effects := range []string{"reads: [ports]", "state: true"} {
		for _, flows := range []int{1, 2, 3, 4, 7, 16, 64, 1000} {
			t.Run(fmt.Sprintf("%s/flows=%d", effects, flows), func(t *testing.T) {
				x := scripted(t, fmt.Sprintf(`
regions: {count: 8, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, %s, throughput: 100Mbit, credits: 64}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`, effects), "fair", "off", "packets", "1024")
				x.Advance(20 * time.Millisecond)
				// Until it is scaled; what waits then is done.
				offered(t, x, 100*time.Millisecond, 180, flows)
				x.Advance(200 * time.Millisecond)
				before := instances(x, "a")
				sent, out, dropped := offered(t, x, 200*time.Millisecond, 180, flows)
				after := instances(x, "a")
				v := taskOf(x, "a")
				t.Logf("%d sent, %.1f %% out, %d dropped, %d instances, then %d; %+v, moved %d", sent, 100*float64(out)/float64(sent), dropped, before, after, v, viewOf(x).Board.Moved)
				if flows == 1 && effects != "reads: [ports]" {
					// A second's hundred: 2,500 frames in 200 ms, and what waits in the end.
					if after != 1 || v.OneFlow < 1.6 || v.OneFlow > 1.9 || out < 2475 || viewOf(x).Board.OneFlow == 0 {
						t.Errorf("one flow: %d instances, %d out, %+v", after, out, v)
					}
					if !strings.Contains(timeline(boardOf(x)), region.Overload.String()) || !strings.Contains(fmt.Sprint(viewOf(x).Events), "overload for a: a (one flow alone is too much for an instance)") {
						t.Errorf("nothing is said of it: %v", viewOf(x).Events)
					}
					return
				}
				if float64(out) < .97*float64(sent) || dropped > 0 || v.OneFlow != 0 || viewOf(x).Board.OneFlow != 0 {
					t.Errorf("%d of %d came out, %d were dropped: %+v\n%s", out, sent, dropped, v, timeline(boardOf(x)))
				}
				if most := 3; after > most {
					t.Errorf("%d instances", after)
				}
			})
		}
	}
}
