package snic

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// Whatever road a packet takes, it costs no allocation, nor does an epoch.
func TestNoAllocation(t *testing.T) {
	text := func(regions, task, more string) string {
		return fmt.Sprintf(`
regions: {%s}
tasks:
  a: {%s, args: {letter: a}}
  b: {kind: quick, args: {letter: b}%s}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a -> b}, {uid: 2, tenant: v, run: b}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}, {match: "src:10.0.0.3", road: refuse}]
`, regions, task, more)
	}
	plain := text("count: 2, area: 2", "kind: quick", "")
	both := []string{"00000000-.", "00000001-.", "00000002!a", "00000003!b", "00000004?b"}
	for _, c := range []struct {
		name, text, port string
		args             []string
		payloads         []string
		settle           time.Duration
	}{
		{"bulk", plain, "p0", nil, both, 20 * time.Millisecond},
		{"bulk back", plain, "p1", nil, both, 20 * time.Millisecond},
		{"modelled", text("count: 2, area: 2", "kind: quick, throughput: 10Gbit", ", latency: 2us"), "p0", nil, both, 20 * time.Millisecond},
		{"modelled back", text("count: 2, area: 2", "kind: quick, throughput: 10Gbit", ", latency: 2us"), "p1", nil, both, 20 * time.Millisecond},
		{"side by side", text("count: 2, area: 2", "kind: quick, latency: 1us, reads: [ports], drops: true", ", latency: 2us, reads: [ports], drops: true"), "p0", nil, both, 20 * time.Millisecond},
		{"side by side back", text("count: 2, area: 1", "kind: quick, reads: [ports], drops: true", ", reads: [payload], drops: true"), "p1", []string{"parallel", "on"}, both, 20 * time.Millisecond},
		{"two visits", text("count: 2, area: 1", "kind: quick", ""), "p0", nil, both, 20 * time.Millisecond},
		{"throttled", text("count: 2, area: 2", "kind: quick, throughput: 100Mbit", ", throughput: 100Mbit"), "p0", []string{"burst", "2k"}, both, 20 * time.Millisecond},
		{"full store", text("count: 2, area: 2", "kind: quick, throughput: 1Mbit", ", throughput: 1Mbit"), "p0", []string{"fair", "off", "store", "4k"}, both, 20 * time.Millisecond},
		{"no descriptor", text("count: 2, area: 2", "kind: quick, throughput: 1Mbit", ", throughput: 1Mbit"), "p0", []string{"fair", "off"}, both, 20 * time.Millisecond},
		{"waiting for a region", plain, "p0", []string{"pr-rate", "800k", "monitor", "6s"}, both, 20 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := graph.Args{"deployment": c.text, "packets": "256", "flows": "256"}
			for i := 0; i < len(c.args); i += 2 {
				a[c.args[i]] = c.args[i+1]
			}
			var frames [][]byte
			for i, p := range c.payloads {
				for src := range byte(4) {
					f := frame(src+1, p)
					if c.port == "p1" {
						f = back(src+1, p)
					}
					f[34+i%2] ^= byte(i) // several flows
					frames = append(frames, f)
				}
			}
			l := graphtest.NewOuterLoop(t, scripts(), a, c.port, frames...)
			l.Wait(c.settle)
			for range 2000 {
				l.Breath()
			}
			if n := testing.AllocsPerRun(500, l.Breath); n != 0 {
				t.Errorf("%v allocations a breath", n)
			}
		})
	}
}
