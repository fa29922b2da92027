package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/graph"
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
					t.Errorf("of 150 and 20 Mbit/s come out %.3f and %.3f; %d moved\n%s", part[0], part[1], b.placing.moved, timeline(b))
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

// TestAsideMachine: flows go another way and back at any time, there and back, while regions get other chains. None is lost, doubled or
// overtaken, and each runs through the tasks of its DAG.
func TestAsideMachine(t *testing.T) {
	total := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		task := func(l byte) string {
			kind, model := rapid.SampledFrom([]string{"quick", "quick", "hold"}).Draw(rt, "kind"), rapid.SampledFrom([]string{"latency: 20us", "throughput: 50Mbit", "throughput: 1Gbit"}).Draw(rt, "model")
			if l == 'a' {
				model = "throughput: 2Mbit" // so that it is scheduled one by one
			}
			return fmt.Sprintf("{kind: %s, args: {letter: %c, time: 100us}, reads: [ports], writes: [payload], %s, credits: %d}", kind, l, model, rapid.IntRange(1, 8).Draw(rt, "credits"))
		}
		v := version{map[byte]string{}, map[uint32]string{1: "ab", 2: "abc", 3: "cab", 4: "d"}, map[byte]uint32{1: 1, 2: 2, 3: 3, 4: 4, 5: 1}}
		for _, l := range []byte("abcd") {
			v.tasks[l] = task(l)
		}
		j := &judge{TB: t, rt: rt}
		x := single{graphtest.NewOuter(j, scripts(), graph.Args{"deployment": v.text(fmt.Sprintf("{count: %d, area: 3}", rapid.IntRange(2, 4).Draw(rt, "regions"))),
			"epoch": "50us", "monitor": "40ms", "fair": "off", "packets": "2048", "store": "1M"})}
		w := &world{t: j, x: x, versions: []version{v}, inside: map[string]sent{}, last: map[string]string{}, reasons: total}
		w.flows = rapid.SampledFrom([]int{3, 10, 40}).Draw(rt, "flows")
		w.never = []string{"gone", "throttled", "over-quota", "no-descriptor", "store-full"}
		defer func() {
			if err := recover(); err != nil {
				panic(err)
			}
			for _, f := range j.cleanups {
				f()
			}
		}()
		w.settle(x.Advance(30 * time.Millisecond))
		b := boardOf(x.Test)
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {
				if err := x.Inst.Conservation(); err != nil {
					rt.Fatal(err)
				}
				if err := b.runner.sched.Check(); err != nil {
					rt.Fatal(err)
				}
			},
			"send": func(rt *rapid.T) {
				if x.Pool.InUse() > graphtest.Slots/2 {
					rt.Skip("the pool is busy")
				}
				port := rapid.IntRange(0, 1).Draw(rt, "port")
				var frames [][]byte
				for range rapid.IntRange(1, 60).Draw(rt, "frames") {
					op := rapid.SampledFrom([]byte("---------!?")).Draw(rt, "op")
					frames = append(frames, w.send(port, rapid.IntRange(0, w.flows-1).Draw(rt, "flow"), op, rapid.SampledFrom([]byte("abcd")).Draw(rt, "task")))
				}
				w.settle(x.Push(fmt.Sprintf("p%d", port), frames...))
			},
			"wait": func(rt *rapid.T) {
				w.settle(x.Advance(rapid.SampledFrom([]time.Duration{time.Microsecond, 30 * time.Microsecond, 300 * time.Microsecond, 3 * time.Millisecond, 20 * time.Millisecond}).Draw(rt, "time")))
			},
			"send flows another way": func(rt *rapid.T) {
				n := b.cat.dagOf[rapid.IntRange(0, 2).Draw(rt, "DAG")]
				s := &b.cat.services[n]
				if s.visits == nil {
					return
				}
				if s.aside == nil {
					b.cat.weighAll()
					visits := b.placing.otherWay(n, s.visits[0].Chain)
					if visits == nil {
						return
					}
					b.placing.divide(b.cat.seen, n, visits)
				}
				bits := rapid.Uint16().Draw(rt, "flows")
				for k := range s.aside.taken {
					s.aside.taken[k] = bits>>(k%16)&1 > 0
				}
				total["sent another way"]++
			},
			"send all the same way": func(rt *rapid.T) {
				if n := b.cat.dagOf[rapid.IntRange(0, 2).Draw(rt, "DAG")]; b.cat.services[n].aside != nil {
					b.placing.together(n)
				}
			},
		})
		for i := 0; i < 500 && len(w.inside) > 0; i++ {
			w.settle(x.Advance(20 * time.Millisecond))
		}
		if len(w.inside) > 0 {
			rt.Fatalf("%d frames are still inside: %v", len(w.inside), w.inside)
		}
	})
	t.Log(total)
	if total["sent another way"] == 0 {
		t.Error("no flows went another way")
	}
}
