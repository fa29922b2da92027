package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph/graphtest"
)

// twoChains is a board whose two regions have chains of their own, both of which can run what DAG 1 wants.
func twoChains(t *testing.T, effects string, args ...string) *graphtest.Test {
	x := scripted(t, fmt.Sprintf(`
regions: {count: 2, area: 3}
tasks:
  a: {kind: quick, args: {letter: a}, %s, throughput: 100Mbit, credits: 64}
  b: {kind: quick, args: {letter: b}, reads: [ports], throughput: 1Gbit, credits: 64}
  c: {kind: quick, args: {letter: c}, reads: [ports], throughput: 1Gbit, credits: 64}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a -> b}, {uid: 2, tenant: v, run: a -> b -> c}]
rules: [{match: "src:10.0.1.0/24", dag: 2, priority: 1}, {match: all, dag: 1}]
`, effects), append([]string{"packets", "1024"}, args...)...)
	x.Advance(20 * time.Millisecond)
	return x
}

// both offers frames of both DAGs for some time, mbit of each and 1,000 bytes long, those of DAG 1 of so many flows. It returns which
// part of each came out. Frames of a flow are to come out in order, and none is to be lost.
func both(t *testing.T, x *graphtest.Test, d time.Duration, one, two float64, flows int, n *int, last map[int]string) (part [2]float64) {
	t.Helper()
	const size = 1000
	long := strings.Repeat(".", size-payload-9)
	rates := [2]float64{one, two}
	var sent, out [2]int
	take := func(r graphtest.Result) {
		for _, f := range r.Dropped {
			t.Errorf("dropped: %v", f.Reason)
		}
		for _, f := range r.Out["p1"] {
			flow := int(f.Bytes[28])<<16 | int(f.Bytes[34])<<8 | int(f.Bytes[35])
			if n := string(f.Bytes[payload : payload+8]); n <= last[flow] {
				t.Fatalf("of flow %d, %s came out after %s", flow, n, last[flow])
			} else {
				last[flow] = n
			}
			out[f.Bytes[28]]++
		}
	}
	var next [2]time.Duration
	for at := time.Duration(0); at < d; at = min(next[0], next[1]) {
		for k, mbit := range rates {
			if mbit == 0 {
				next[k] = d
			} else if next[k] <= at {
				*n++
				sent[k]++
				f := frameLong(7, fmt.Sprintf("%08d-%s", *n, long))
				f[28] = byte(k)
				flow := 0
				if k == 0 {
					flow = sent[k] % flows
				}
				f[34], f[35] = byte(flow>>8), byte(flow)
				take(x.Push("p0", f))
				next[k] += time.Duration(size * 8 * 1000 / mbit)
			}
		}
		take(x.Advance(min(next[0], next[1]) - at))
	}
	take(x.Advance(time.Millisecond))
	for k := range part {
		part[k] = float64(out[k]) / float64(max(sent[k], 1))
	}
	return part
}

// TestAside: a DAG that has more than its chain can do, on a board without a free region, has some of its flows go through another chain
// that has room. None is lost or overtaken. When the other chain's own load grows they give way, and when they find room with the
// rest they come back.
func TestAside(t *testing.T) {
	for _, effects := range []string{"reads: [ports]", "state: true"} {
		for _, flows := range []int{2, 3, 4, 16, 1000} {
			t.Run(fmt.Sprintf("%s/flows=%d", effects, flows), func(t *testing.T) {
				x := twoChains(t, effects, "fair", "off")
				b, n, last := boardOf(x), 0, map[int]string{}
				s := &b.cat.services[0]
				both(t, x, 50*time.Millisecond, 80, 20, flows, &n, last)
				if s.aside != nil {
					t.Fatal("80 of 100 go aside")
				}
				both(t, x, 40*time.Millisecond, 150, 20, flows, &n, last)
				x.Advance(100 * time.Millisecond)
				both(t, x, 20*time.Millisecond, 150, 20, flows, &n, last)
				if part := both(t, x, 100*time.Millisecond, 150, 20, flows, &n, last); part[0] < .97 || part[1] < .97 {
					t.Errorf("of 150 and 20 Mbit/s come out %.3f and %.3f; %d moved\n%s", part[0], part[1], b.place.moved, timeline(b))
				}
				if s.aside == nil || s.aside.part < .2 || s.aside.part > .7 {
					t.Errorf("%+v", s.aside)
				}
				x.Advance(50 * time.Millisecond)
				both(t, x, 50*time.Millisecond, 60, 20, flows, &n, last)
				if s.aside != nil {
					t.Errorf("of 60 Mbit/s, %.2f go aside", s.aside.part)
				}
				if part := both(t, x, 50*time.Millisecond, 60, 90, flows, &n, last); part[0] < .97 || part[1] < .97 {
					t.Errorf("of 60 and 90 Mbit/s come out %.3f and %.3f", part[0], part[1])
				}
			})
		}
	}
}

// TestAsideGivesWay: flows that went to another chain go back when that has too much of its own.
func TestAsideGivesWay(t *testing.T) {
	x := twoChains(t, "state: true", "fair", "off")
	b, n, last := boardOf(x), 0, map[int]string{}
	s := &b.cat.services[0]
	both(t, x, 50*time.Millisecond, 80, 20, 16, &n, last) // both chains are needed
	both(t, x, 60*time.Millisecond, 140, 10, 16, &n, last)
	if s.aside == nil || s.aside.part < .2 {
		t.Fatalf("%+v %s", s.aside, timeline(b))
	}
	before := s.aside.part
	both(t, x, 60*time.Millisecond, 140, 90, 16, &n, last)
	x.Advance(300 * time.Millisecond)
	if s.aside != nil && s.aside.part >= before {
		t.Errorf("%.2f of it went aside, now %.2f", before, s.aside.part)
	}
}
