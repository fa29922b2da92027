package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// offer sends frames of so many flows in turn, mbit in all, each flow's by one worker, and returns how many were
// sent, came out and were dropped. Those of a flow are to come out in order.
func (x *crew) offer(d time.Duration, mbit float64, flows int, next *int, last map[int]string) (sent, out, dropped int) {
	x.t.Helper()
	const size = 500
	long := fmt.Sprintf("%0*d", size-payload-9, 0)
	gap := time.Duration(size * 8 * 1000 / mbit)
	take := func() {
		r := x.Result()
		dropped += len(r.Dropped)
		for _, f := range r.Out["p1"] {
			flow := int(f.Bytes[28])<<8 | int(f.Bytes[29])
			if n := string(f.Bytes[payload : payload+8]); n <= last[flow] {
				x.t.Fatalf("of flow %d, %s came out after %s", flow, n, last[flow])
			} else {
				last[flow] = n
			}
			out++
		}
	}
	for end := x.now.Add(d); x.now < end; {
		*next++
		sent++
		flow := *next % flows
		f := frameLong(byte(flow), fmt.Sprintf("%08d-%s", *next, long))
		f[28] = byte(flow >> 8)
		x.push(flow%len(x.pools), 0, f)
		x.advance(gap)
		take()
	}
	x.advance(2 * time.Millisecond)
	take()
	return sent, out, dropped
}

// A task that has too much in the one region of a worker gets one of another, which takes what comes in there; no frame is
// lost or overtaken by that.
func TestScaleToAnotherWorker(t *testing.T) {
	for _, effects := range []string{"reads: [ports]", "state: true"} {
		for _, fair := range []string{"on", "off"} {
			for _, flows := range []int{2, 4, 16, 1000} {
				if fair == "off" && flows != 16 {
					continue
				}
				t.Run(fmt.Sprintf("%s/fair=%s/flows=%d", effects, fair, flows), func(t *testing.T) {
					x := newCrew(t, scripts(), 2, graph.Args{"fair": fair, "packets": "4096", "deployment": fmt.Sprintf(`
regions: {count: 2, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, %s, throughput: 100Mbit, credits: 64}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`, effects)})
					x.advance(20 * time.Millisecond)
					next, last := 0, map[int]string{}
					// A load that one instance can do stays there.
					sent, out, dropped := x.offer(50*time.Millisecond, 80, flows, &next, last)
					if sent != out || dropped > 0 || x.board(1).cat.instances(0) != 0 || x.counter("handed") == 0 {
						t.Fatalf("before: of %d, %d came out, %d were dropped; %d in the other worker", sent, out, dropped, x.board(1).cat.instances(0))
					}
					x.offer(60*time.Millisecond, 160, flows, &next, last)
					x.advance(60 * time.Millisecond) // when nothing comes, it goes back
					x.Result()
					sent, out, dropped = x.offer(60*time.Millisecond, 160, flows, &next, last)
					if float64(out) < .97*float64(sent) || dropped > 0 || x.board(1).cat.instances(0) != 1 || x.board(1).near.came != 2 || x.board(1).near.gave != 1 {
						t.Errorf("of %d, %d came out, %d were dropped\n%s", sent, out, dropped, timeline(x.board(0)))
					}
				})
			}
		}
	}
}

// Frames of one flow that come in by a worker without a region for them, before, while and after it gets one, stay in
// their order, and none is lost.
func TestOrderAcrossWorkers(t *testing.T) {
	for _, kind := range []string{"quick", "hold"} {
		x := newCrew(t, scripts(), 2, graph.Args{"deployment": fmt.Sprintf(`
regions: {count: 2, area: 1}
tasks: {a: {kind: %s, args: {letter: a, time: 300us}, throughput: 10Gbit, credits: 64}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`, kind)})
		x.advance(20 * time.Millisecond)
		b, last, sent, out := x.board(1), "", 0, 0
		step := func(d time.Duration) {
			for end := x.now.Add(d); x.now < end; {
				sent++
				x.push(1, 0, frame(1, fmt.Sprintf("%08d-.", sent)))
				x.advance(7 * time.Microsecond)
				for _, f := range x.took(1) {
					if n := string(f[payload : payload+8]); n <= last {
						t.Fatalf("%s: %s came out after %s", kind, n, last)
					} else {
						last = n
					}
					out++
				}
			}
		}
		step(5 * time.Millisecond)
		if b.cat.services[0].where.to.worker() != 0 {
			t.Fatalf("%s: it is not handed over", kind)
		}
		b.cat.house.crying[0].Store(true)
		b.cat.house.cries.Add(1)
		step(9 * time.Millisecond)
		if b.cat.services[0].where.to != 0 || b.near.came != 1 {
			t.Fatalf("%s: it is not here: %+v", kind, b.cat.services[0].where)
		}
		step(21 * time.Millisecond) // its home could do all
		if b.cat.services[0].where.to.worker() != 0 || b.near.went != 1 {
			t.Fatalf("%s: it has not gone: %+v", kind, b.cat.services[0].where)
		}
		x.advance(10 * time.Millisecond)
		out += len(x.took(1))
		if out != sent {
			t.Errorf("%s: of %d, %d came out", kind, sent, out)
		}
	}
}

// A worker that skips a deployment, since the next one came before its time, knows DAGs by the same numbers as the others.
func TestSkippedDeployment(t *testing.T) {
	text := func(dags, rules string) string {
		return "regions: {count: 1, area: 1}\ntasks: {a: {kind: quick, args: {letter: a}}, b: {kind: quick, args: {letter: b}}}\n" +
			"tenants: {u: {}, v: {}}\ndags: [" + dags + "{uid: 2, tenant: v, run: b}]\nrules: [" + rules + "{match: \"src:10.0.0.2\", dag: 2}]\n"
	}
	both := text("{uid: 1, tenant: u, run: a}, ", `{match: "src:10.0.0.1", dag: 1}, `)
	for worker := range 2 { // that has frames
		x := newCrew(t, scripts(), 2, graph.Args{"deployment": both})
		if worker == 1 {
			for _, d := range []string{text("", ""), both} {
				if err := x.Set(graph.Args{"deployment": d}); err != nil {
					t.Fatal(err)
				}
			}
		}
		see := func(r graphtest.Result) {
			for name, frames := range r.Out {
				for _, f := range frames {
					if strings.Contains(string(f.Bytes[payload:]), "b") {
						t.Errorf("a frame of DAG 1 ran in DAG 2 and left by %s", name)
					}
				}
			}
		}
		for range 4 {
			see(x.Push(fmt.Sprintf("p%d", worker), frame(1, "00000000--")))
		}
		if err := x.Set(graph.Args{"deployment": text("", "")}); err != nil {
			t.Fatal(err)
		}
		see(x.Advance(20 * time.Millisecond))
		n := map[uint32]int{}
		for w := range 2 {
			b := x.board(w)
			for i := range b.cat.services {
				if s := &b.cat.services[i]; s.UID != 0 {
					n[s.UID<<16|uint32(i)<<8|uint32(s.term)]++
				}
			}
		}
		if len(n) != 1 {
			t.Errorf("workers have different numbers: %v", n)
		}
	}
}
