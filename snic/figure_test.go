package snic

import (
	"testing"
	"time"

	"github.com/quillon/quillon/snic/region"
)

// The example of the source's figures 5.7 and 5.20, at a tenth of its rates: two tenants, four
// tasks of which one becomes scarce; shares by DRF from the next epochs on, and all that is asked for
// when a monitor period and a reconfiguration have passed.
func TestWorkedExample(t *testing.T) {
	x := scripted(t, `
regions: {count: 2, area: 4}
tasks:
  nt1: {kind: quick, args: {letter: a}, throughput: 10Gbit, latency: 100ns, credits: 64}
  nt2: {kind: quick, args: {letter: b}, throughput: 10Gbit, latency: 100ns, credits: 64}
  nt3: {kind: quick, args: {letter: c}, throughput: 7Gbit, latency: 100ns, credits: 64}
  nt4: {kind: quick, args: {letter: d}, throughput: 10Gbit, latency: 100ns, credits: 64}
tenants: {u1: {}, u2: {}}
dags:
  - {uid: 1, tenant: u1, run: nt1 -> nt2 -> nt3 -> nt4}
  - {uid: 2, tenant: u1, run: nt1 -> nt2 -> nt3}
  - {uid: 3, tenant: u1, run: nt1 -> nt2}
  - {uid: 4, tenant: u1, run: nt2}
  - {uid: 5, tenant: u2, run: nt2 -> nt4}
  - {uid: 6, tenant: u2, run: nt4}
rules:
  - {match: "src:10.0.0.1", dag: 1}
  - {match: "src:10.0.0.2", dag: 2}
  - {match: "src:10.0.0.3", dag: 3}
  - {match: "src:10.0.0.4", dag: 4}
  - {match: "src:10.0.0.5", dag: 5}
  - {match: "src:10.0.0.6", dag: 6}
`, "monitor", "10ms", "packets", "1024", "burst", "4k")
	x.Advance(20 * time.Millisecond)
	if n := instances(x, "nt2"); n != 1 {
		t.Fatalf("nt2 runs in %d regions", n)
	}
	one := []offer{{1, 2000, 1}, {2, 2000, 1}, {3, 1000, 1}, {4, 3000, 1}}
	phase := func(name string, d time.Duration, two5, two6 int, want [2]float64) {
		t.Helper()
		got := serve(x, d, append(one[:4:4], offer{5, two5, 1}, offer{6, two6, 1})...)
		u1 := got[1].mbit + got[2].mbit + got[3].mbit + got[4].mbit
		u2 := got[5].mbit
		t.Logf("%s: nt2 does %.0f and %.0f Mbit/s, published (a tenth) %.0f and %.0f", name, u1, u2, want[0], want[1])
		for i, v := range []float64{u1, u2} {
			if v < 0.93*want[i] || v > 1.07*want[i] {
				t.Errorf("%s: tenant %d gets %.0f Mbit/s of nt2, not %.0f", name, i+1, v, want[i])
			}
		}
	}
	phase("before", 4*time.Millisecond, 1000, 500, [2]float64{8010, 970})
	phase("after DRF", 8*time.Millisecond, 5000, 2500, [2]float64{5970, 4030})
	if n := count(x, region.ScaleOut); n != 0 {
		t.Errorf("scaled out before the period is over")
	}
	serve(x, 9*time.Millisecond, append(one[:4:4], offer{5, 5000, 1}, offer{6, 2500, 1})...)
	phase("after scale-out", 6*time.Millisecond, 5000, 2500, [2]float64{7970, 5000})
	if n := count(x, region.ScaleOut); n != 1 {
		t.Errorf("scaled out %d times", n)
	}
}
