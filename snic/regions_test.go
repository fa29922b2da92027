package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/snic/region"
)

// count is how often something happened to regions.
func count(x *graphtest.Test, k region.Kind) int {
	n := 0
	for _, e := range x.App().(*board).placing.log {
		if e.Kind == k {
			n++
		}
	}
	return n
}

// instances are the regions in which a task runs.
func instances(x *graphtest.Test, name string) int {
	b := x.App().(*board)
	n := 0
	for _, ch := range b.cat.placed {
		if ch >= 0 && strings.Contains(b.cat.names(b.cat.chains[ch].tasks), name) {
			n++
		}
	}
	return n
}

const turns = `
regions: {count: 1, area: 1}
tasks:
  a: {kind: quick, args: {letter: a}%s}
  b: {kind: quick, args: {letter: b}}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: b}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`

// Two chains take turns in one region: what comes for the one that is not there waits, and is
// served in its order; nothing is dropped, and no chain leaves before its period is over.
func TestTurns(t *testing.T) {
	x := scripted(t, fmt.Sprintf(turns, ""))
	got := map[byte][]string{}
	sent := 0
	take := func(r graphtest.Result) {
		if len(r.Dropped) > 0 {
			t.Fatalf("dropped as %s", r.Dropped[0].Reason)
		}
		for _, f := range r.Out["p1"] {
			got[f.Bytes[29]] = append(got[f.Bytes[29]], string(f.Bytes[payload:]))
		}
	}
	for range 100 {
		sent++
		take(x.Push("p0", frame(1, fmt.Sprintf("%08d-.", sent)), frame(2, fmt.Sprintf("%08d-.", sent))))
		take(x.Advance(time.Millisecond))
	}
	take(x.Advance(40 * time.Millisecond))
	for src := range byte(2) {
		if len(got[src+1]) != sent {
			t.Errorf("%d of %d frames of DAG %d came out", len(got[src+1]), sent, src+1)
		}
		for i, p := range got[src+1] {
			if want := fmt.Sprintf("%08d-.%c", i+1, 'a'+src); p != want {
				t.Fatalf("%s, not %s", p, want)
			}
		}
	}
	if runs := count(x, region.Run); runs < 6 || runs > 140/5 {
		t.Errorf("%d launches in 140 ms", runs)
	}
}

// Who waits for a credit while the chain is stopped for another one is served afterwards, also
// if nobody sends any more.
func TestWaitingIsNotForgotten(t *testing.T) {
	x := scripted(t, fmt.Sprintf(turns, ", latency: 2ms, credits: 1"))
	x.Advance(20 * time.Millisecond)
	var frames [][]byte
	for i := range 20 {
		frames = append(frames, frame(1, fmt.Sprintf("%08d-.", i)))
	}
	x.Push("p0", frames...)
	x.Push("p0", frame(2, "00000099-."))
	out := x.Advance(200 * time.Millisecond).Out["p1"]
	if len(out) != 21 {
		t.Errorf("%d of 21 came out: %s", len(out), marks(out))
	}
	if count(x, region.Stop) < 2 {
		t.Errorf("the region has stopped %d times", count(x, region.Stop))
	}
}

// A DAG that fits no region as a whole runs by turns.
func TestHalves(t *testing.T) {
	x := scripted(t, `
regions: {count: 1, area: 1}
tasks:
  a: {kind: quick, args: {letter: a}}
  b: {kind: quick, args: {letter: b}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a -> b}]
rules: [{match: all, dag: 1}]
`)
	var out []graphtest.Frame
	for i := range 40 {
		r := x.Push("p0", frame(1, fmt.Sprintf("%08d-.", i)))
		out = append(out, r.Out["p1"]...)
		r = x.Advance(time.Millisecond)
		out = append(out, r.Out["p1"]...)
		if len(r.Dropped) > 0 {
			t.Fatalf("%d: dropped as %s", i, r.Dropped[0].Reason)
		}
	}
	out = append(out, x.Advance(100 * time.Millisecond).Out["p1"]...)
	if len(out) != 40 || strings.Count(marks(out), "ab") != 40 {
		t.Errorf("%d of 40: %s", len(out), marks(out))
	}
}

// A task that has too little for a whole period gets another region, and gives it up when it
// has one too many; square waves shorter than a period change nothing.
func TestScale(t *testing.T) {
	const size = 1000
	x := scripted(t, `
regions: {count: 3, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, throughput: 100Mbit, credits: 64}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`, "fair", "off", "monitor", "10ms")
	x.Advance(20 * time.Millisecond)
	long := strings.Repeat(".", size-payload-9)
	n := 0
	offer := func(mbit int, d time.Duration) {
		gap := time.Duration(size * 8 * 1000 / mbit)
		for ; d > 0; d -= gap {
			n++
			x.Push("p0", frameLong(byte(n%8), fmt.Sprintf("%08d-%s", n, long)))
			x.Advance(gap)
		}
	}
	offer(60, 40*time.Millisecond)
	if k := instances(x, "a"); k != 1 {
		t.Errorf("at 0.6: %d instances", k)
	}
	for range 10 {
		offer(160, 4*time.Millisecond)
		offer(10, 4*time.Millisecond)
	}
	if k := instances(x, "a"); k != 1 {
		t.Errorf("in square waves: %d instances", k)
	}
	offer(160, 40*time.Millisecond)
	if k := instances(x, "a"); k != 2 {
		t.Errorf("at 1.6: %d instances", k)
	}
	offer(60, 60*time.Millisecond)
	if k := instances(x, "a"); k != 1 {
		t.Errorf("at 0.6 again: %d instances", k)
	}
	if k := count(x, region.ScaleOut) + count(x, region.ScaleIn); k != 2 {
		t.Errorf("scaled %d times", k)
	}
	// The second instance is still there: no reconfiguration.
	loads := count(x, region.Load)
	offer(160, 25*time.Millisecond)
	if k := instances(x, "a"); k != 2 || count(x, region.Load) != loads {
		t.Errorf("%d instances, %d loads more", k, count(x, region.Load)-loads)
	}
}

// Each flow of a batch goes to one instance, by what its frames say inside their service header,
// where they have one: also where a whole batch may run at once, as no time of DAG 2 is modelled.
func TestInstancesShareABatch(t *testing.T) {
	x := scripted(t, `
regions: {count: 2, area: 2}
tasks: {a: {kind: quick, args: {letter: a}, throughput: 100Mbit, credits: 64}, b: {kind: quick, args: {letter: b}}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a -> b}, {uid: 2, tenant: u, run: b}]
rules: [{match: "src:10.0.0.0/27", dag: 2}, {match: all, dag: 1}]
`, "fair", "off", "monitor", "100ms")
	x.Advance(20 * time.Millisecond)
	const size = 1000
	of := func(src int) []byte { return frameLong(byte(src), "00000000-"+strings.Repeat(".", size-payload-9)) }
	b := x.App().(*board)
	more := 2000                            // for as long as it takes to share out the flows
	for i := 0; i < 5000 && more > 0; i++ { // 120 Mbit/s
		x.Push("p0", of(100+i%16))
		x.Advance(66 * time.Microsecond)
		if len(b.cat.chains[b.cat.services[0].visits[0].Chain].running) == 2 {
			more--
		}
	}
	x.Advance(40 * time.Millisecond) // what was too much leaves
	for uid, first := range map[uint32]int{1: 100, 2: 0} {
		if bulk := b.cat.services[uid-1].bulk; bulk != (uid == 2) {
			t.Fatalf("DAG %d, all at once: %v", uid, bulk)
		}
		var seen [2]uint64
		// sent is how many of the frames each instance got.
		sent := func(frames ...[]byte) (n [2]uint64) {
			x.Push("p0", frames...)
			x.Advance(200 * time.Microsecond)
			for r := range n {
				all := b.runner.sched.Task(r, 1).Packets
				n[r], seen[r] = all-seen[r], all
			}
			return n
		}
		sent()
		var batch, inside [][]byte
		var want [2]uint64
		for src := first; src < first+16; src++ {
			f := of(src)
			batch, inside = append(batch, f, f), append(inside, onPath(uid, hdr.NSHNextIPv4, f))
			n := sent(f, f)
			if n[0]+n[1] != 2 || n[0] == 1 {
				t.Errorf("DAG %d, flow %d: %v", uid, src, n)
			}
			want[0], want[1] = want[0]+n[0], want[1]+n[1]
		}
		if want[0] == 0 || want[1] == 0 {
			t.Errorf("DAG %d, 16 flows of two frames: %v", uid, want)
		}
		if n := sent(batch...); n != want {
			t.Errorf("DAG %d, all in a batch: %v, want %v", uid, n, want)
		}
		if n := sent(append(inside, inside...)...); n != want {
			t.Errorf("DAG %d, with service headers: %v, want %v", uid, n, want)
		}
		x.Advance(10 * time.Millisecond)
	}
}

// A chain is loaded for as long as a bitstream of its region takes, or its own, where it has one;
// another bitstream is another chain.
func TestBitstreams(t *testing.T) {
	text := func(bytes string) string {
		return `
regions: {count: 2, area: 3}
tasks:
  a: {kind: quick, args: {letter: a}, area: 1}
  b: {kind: quick, args: {letter: b}, area: 2, bitstream: ` + bytes + `}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: u, run: b}]
`
	}
	loads := func(x *graphtest.Test) map[string]time.Duration {
		b := x.App().(*board)
		took := map[string]time.Duration{}
		for _, e := range b.placing.log {
			if e.Kind == region.Load {
				took[b.cat.names(b.cat.chains[e.Chain].tasks)] = e.Until.Sub(e.At)
			}
		}
		return took
	}
	x := scripted(t, text("1600000"), "monitor", "8ms")
	x.Advance(20 * time.Millisecond)
	if got := loads(x); got["a"] != 5*time.Millisecond || got["b"] != 2*time.Millisecond {
		t.Errorf("loaded in %v", got)
	}
	if err := x.Set(graph.Args{"deployment": text("6400000"), "monitor": "8ms"}); err != nil {
		t.Fatal(err)
	}
	x.Advance(20 * time.Millisecond)
	if got := loads(x); got["b"] != 8*time.Millisecond {
		t.Errorf("loaded in %v", got)
	}
	err := x.Set(graph.Args{"deployment": text("6400001"), "monitor": "8ms"})
	if err == nil || !strings.Contains(err.Error(), "monitor=8ms: loading a region takes 8.000002ms") {
		t.Errorf("%v", err)
	}
}

// frameLong is frame with a payload of more than 227 bytes.
func frameLong(src byte, p string) []byte {
	b := frame(src, "")
	b = append(b, p...)
	n := len(b) - 14
	b[16], b[17] = byte(n>>8), byte(n)
	b[38], b[39] = byte((n-20)>>8), byte(n-20)
	return b
}

// With idle= the last instance goes, and comes back without a reconfiguration.
func TestIdle(t *testing.T) {
	x := scripted(t, fmt.Sprintf(turns, ""), "idle", "20ms")
	x.Advance(10 * time.Millisecond)
	x.Push("p0", frame(1, "00000000-."))
	x.Advance(50 * time.Millisecond)
	if k := instances(x, "a"); k != 0 {
		t.Errorf("%d instances when idle", k)
	}
	loads := count(x, region.Load)
	r := x.Push("p0", frame(1, "00000001-."))
	out := append(r.Out["p1"], x.Advance(time.Millisecond).Out["p1"]...)
	if marks(out) != "-.a" || count(x, region.Load) != loads {
		t.Errorf("%s after %d loads", marks(out), count(x, region.Load)-loads)
	}
}

// The region of a DAG that comes back is freed before those are let on that wait for what is still elsewhere: it is launched again.
func TestIdleWhileComingBack(t *testing.T) {
	x := scripted(t, fmt.Sprintf(turns, ""), "idle", "20ms")
	b := x.App().(*board)
	x.Advance(10 * time.Millisecond)
	w := &b.cat.services[0].where
	w.depart(b.cat.seen, workerAt(1))
	w.comeBack()
	w.arrive(b.cat.seen)
	b.placing.hold(0)
	x.Push("p0", frame(1, "00000000-."))
	x.Advance(50 * time.Millisecond)
	if k := instances(x, "a"); k != 0 {
		t.Fatalf("%d instances when idle", k)
	}
	b.placing.settleHere(b.cat.seen, 0)
	if out := x.Advance(20 * time.Millisecond).Out["p1"]; marks(out) != "-.a" {
		t.Errorf("%s", marks(out))
	}
}

// What the endpoint has done comes back when a region is free.
func TestEndpoint(t *testing.T) {
	x := scripted(t, `
regions: {count: 1, area: 1}
tasks:
  a: {kind: quick, args: {letter: a}}
  b: {kind: quick, args: {letter: b}, endpoint: true}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: b}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`, "idle", "20ms")
	for range 8 {
		x.Push("p0", frame(1, "00000000-."))
		x.Advance(2 * time.Millisecond)
	}
	for range 2 {
		if r := x.Push("p0", frame(2, "00000000-.")); marks(r.Out["p1"]) != "-." {
			t.Fatalf("not to the endpoint: %v", r)
		}
	}
	if n := x.Counter("endpoint"); n != 2 {
		t.Errorf("%d went to the endpoint", n)
	}
	x.Advance(60 * time.Millisecond) // a is idle
	r := x.Push("p0", frame(2, "00000000-."))
	if out := append(r.Out["p1"], x.Advance(20 * time.Millisecond).Out["p1"]...); marks(out) != "-.b" {
		t.Errorf("%s", marks(out))
	}
}

// A flow's directions do not wait for each other: as many frames each way through a task take
// the time that they take as two flows.
func TestBothWays(t *testing.T) {
	took := func(there, here byte) (d time.Duration) {
		x := scripted(t, `
regions: {count: 1, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, latency: 100us}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`)
		x.Advance(20 * time.Millisecond) // the chain is there
		out := 0
		for range 20 {
			for _, r := range []graphtest.Result{x.Push("p0", frame(there, "00000000-.")), x.Push("p1", back(here, "00000000-."))} {
				out += len(r.Out["p0"]) + len(r.Out["p1"])
			}
		}
		for ; out < 40 && d < 10*time.Millisecond; d += 10 * time.Microsecond {
			r := x.Advance(10 * time.Microsecond)
			out += len(r.Out["p0"]) + len(r.Out["p1"])
		}
		return d
	}
	if one, two := took(1, 1), took(1, 2); one != two || two > 600*time.Microsecond {
		t.Errorf("%v as one flow, %v as two", one, two)
	}
}
