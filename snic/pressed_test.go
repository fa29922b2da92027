package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/snic/hop"
	"github.com/quillon/quillon/snic/region"
)

// TestScalesWhilePausing: senders who obey pauses of a lossless port, so that no more comes in than a task can do, get as many
// instances as what they want to send needs, and no more; these are given up when the senders are done.
func TestScalesWhilePausing(t *testing.T) {
	const size, mbit = 1000, 340
	for _, fair := range []string{"off", "on"} {
		for _, effects := range []string{"reads: [ports]", "state: true"} {
			for _, flows := range []int{1, 4, 16, 1000} {
				if testing.Short() && flows != 16 {
					continue
				}
				t.Run(fmt.Sprintf("fair=%s/%s/flows=%d", fair, effects, flows), func(t *testing.T) {
					x := scripted(t, fmt.Sprintf(`
regions: {count: 8, area: 1}
tasks:
  a: {kind: quick, args: {letter: a}, reads: [payload], writes: [payload], throughput: 1Gbit, credits: 64}
  b: {kind: quick, args: {letter: b}, %s, writes: [payload], throughput: 100Mbit, credits: 64}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a -> b}]
rules: [{match: all, dag: 1}]
`, effects), "fair", fair, "packets", "1024", "lossless", "p0:0")
					x.Advance(20 * time.Millisecond)
					long := strings.Repeat(".", size-payload-9)
					gap := time.Duration(size * 8 * 1000 / mbit)
					until := x.Clock.Now()
					paused, dropped := 0, 0
					take := func(r graphtest.Result) {
						dropped += len(r.Dropped)
						for _, f := range r.Out["p0"] {
							if q, ok := hop.DecodePause(f.Bytes, 0); ok {
								until = x.Clock.Now().Add(hop.PauseTime(q, 1e11))
							}
						}
					}
					owed, n := 0, 0
					for range 400 * time.Millisecond / gap {
						// What a sender could not send it sends later: no more than some frames wait with it.
						owed = min(owed+1, 64)
						for ; owed > 0 && x.Clock.Now() >= until; owed-- {
							n++
							f := frameLong(byte(n%flows), fmt.Sprintf("%08d-%s", n, long))
							f[28] = byte(n % flows >> 8)
							take(x.Push("p0", f))
						}
						if owed > 0 {
							paused++
						}
						take(x.Advance(gap))
					}
					most, launches := instances(x, "b"), count(x, region.ScaleOut)
					want := 4
					if flows == 1 && effects == "state: true" {
						want = 1 // one flow alone
					}
					if most < want || most > want+1 || launches > most || dropped > 0 || paused == 0 {
						t.Errorf("%d instances of b, %d of a, after %d launches; %d dropped, %d times paused\n%s", most, instances(x, "a"), launches, dropped, paused, timeline(boardOf(x)))
					}
					x.Advance(400 * time.Millisecond)
					if k := instances(x, "b"); k != 1 || count(x, region.ScaleOut) != launches {
						t.Errorf("%d instances when nobody sends, after %d launches", k, count(x, region.ScaleOut))
					}
				})
			}
		}
	}
}
