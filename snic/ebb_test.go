package snic

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// limited is a board of several workers, a region each, on which a DAG of one task of 100 Mbit/s is deployed; rate= is another one.
func limited(t testing.TB, workers int, effects string, more ...string) *crew {
	rate := "100Mbit"
	if len(more) > 0 && more[0] == "rate" {
		rate, more = more[1], more[2:]
	}
	args := graph.Args{"packets": "4096", "deployment": fmt.Sprintf(`
regions: {count: %d, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, %s, throughput: %s, credits: 64}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`, workers, effects, rate)}
	for i := 0; i < len(more); i += 2 {
		args[more[i]] = more[i+1]
	}
	x := newCrew(t, scripts(), workers, args)
	x.advance(time.Duration(workers) * 20 * time.Millisecond)
	return x
}

// hosts is how many workers of a board have an instance of task 0.
func (x *crew) hosts() (n int) {
	for _, b := range x.boards() {
		n += min(1, b.cat.instances(0))
	}
	return n
}

// TestScaleInAcrossWorkers: a DAG that runs in several workers goes back to its home, and the region it had is free, when less
// comes than the home alone can do; at a load between both bounds nothing changes. No frame is lost or overtaken by that.
func TestScaleInAcrossWorkers(t *testing.T) {
	for _, effects := range []string{"reads: [ports]", "state: true"} {
		for _, workers := range []int{2, 4} {
			for _, flows := range []int{4, 16, 1000} {
				if testing.Short() && flows != 16 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d workers/%d flows", effects, workers, flows), func(t *testing.T) {
					x := limited(t, workers, effects)
					next, last := 0, map[int]string{}
					high := 80 * float64(workers)
					x.offer(60*time.Millisecond, high, flows, &next, last)
					if n := x.hosts(); n != workers {
						t.Fatalf("at %v Mbit/s %d workers have an instance\n%s", high, n, timeline(x.board(0)))
					}
					x.offer(20*time.Millisecond, 95, flows, &next, last) // what waits leaves
					sent, out, dropped := x.offer(60*time.Millisecond, 95, flows, &next, last)
					if n := x.hosts(); n != 2 {
						t.Errorf("at 95 Mbit/s %d workers have an instance, not two", n)
					}
					sent2, out2, dropped2 := x.offer(60*time.Millisecond, 60, flows, &next, last)
					if n := x.hosts(); n != 1 || x.board(0).cat.instances(0) != 1 {
						t.Errorf("at 60 Mbit/s %d workers have an instance", n)
					}
					if sent+sent2 != out+out2 || dropped+dropped2 > 0 {
						t.Errorf("of %d and %d frames %d and %d came out, %d and %d were dropped", sent, sent2, out, out2, dropped, dropped2)
					}
					moved := x.counter("handed")
					x.offer(40*time.Millisecond, 60, flows, &next, last)
					if x.counter("handed") == moved {
						t.Error("nothing is handed to the home")
					}
					x.offer(60*time.Millisecond, high, flows, &next, last)
					if n := x.hosts(); n != workers {
						t.Errorf("at %v Mbit/s again %d workers have an instance", high, n)
					}
				})
			}
		}
	}
}

// TestEbbMachine: loads of several DAGs and flows rise and fall at random in a board of several workers, so that DAGs go to other workers and
// are given back. No frame is lost, doubled or overtaken, and when hardly anything comes all DAGs are at home.
func TestEbbMachine(t *testing.T) {
	total := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) { ebbMachine(t, rt, total) })
	t.Log(total)
	if !testing.Short() && (total["came"] == 0 || total["given back"] == 0) { // few tries may not have it
		t.Errorf("nothing went to and fro: %v", total)
	}
}

func ebbMachine(t *testing.T, rt *rapid.T, total map[string]int) {
	workers := rapid.IntRange(2, 4).Draw(rt, "workers")
	j := &judge{TB: t, rt: rt}
	kind := func() string { return rapid.SampledFrom([]string{"quick", "hold"}).Draw(rt, "kind") }
	v := version{map[byte]string{}, map[uint32]string{1: "a", 2: "ab", 3: "ba"}, map[byte]uint32{1: 1, 2: 2, 3: 3, 4: 1, 5: 2}}
	for _, l := range []byte("ab") {
		v.tasks[l] = fmt.Sprintf("{kind: %s, args: {letter: %c, time: 100us}, reads: [ports], writes: [payload], state: %v, %s, credits: %d}", kind(), l, rapid.Bool().Draw(rt, "state"),
			rapid.SampledFrom([]string{"throughput: 5Mbit", "latency: 20us"}).Draw(rt, "model"), rapid.IntRange(1, 8).Draw(rt, "credits"))
	}
	if !strings.Contains(v.tasks['b'], "throughput") {
		v.tasks['a'] = strings.Replace(v.tasks['a'], "latency: 20us", "throughput: 5Mbit", 1)
	}
	x := newCrew(j, scripts(), workers, graph.Args{"deployment": v.text(fmt.Sprintf("{count: %d, area: 2}", rapid.IntRange(workers, 2*workers).Draw(rt, "regions"))),
		"epoch": "50us", "monitor": "6ms", "fair": "off", "packets": "8192", "store": "16M"})
	w := &world{t: j, x: x, versions: []version{v}, inside: map[string]sent{}, last: map[string]string{}, reasons: total}
	w.never = []string{"gone", "throttled", "over-quota", "no-descriptor", "store-full", "no-region", "hand-over-full"}
	w.flows = rapid.SampledFrom([]int{1, 2, 3, 5, 8, 16, 1000}).Draw(rt, "flows")
	defer func() {
		if err := recover(); err != nil {
			panic(err)
		}
		for _, f := range j.cleanups {
			f()
		}
	}()
	w.settle(x.Advance(50 * time.Millisecond))
	load := func(gap, d time.Duration, backs int) {
		for end := x.now.Add(d); x.now < end; {
			port := 0
			if w.next%10 < backs {
				port = 1
			}
			if len(w.inside) < 500 { // those of a flow may leave at once, and a link takes 512
				w.settle(x.Push(fmt.Sprintf("p%d", port), w.send(port, w.next*7%w.flows, '-', 'a')))
			}
			w.settle(x.Advance(gap))
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"": func(*rapid.T) {
			if err := x.inst.Conservation(); err != nil {
				rt.Fatal(err)
			}
			for _, b := range x.boards() {
				if err := b.runner.sched.Check(); err != nil {
					rt.Fatal(err)
				}
			}
		},
		"load": func(rt *rapid.T) {
			gap := rapid.SampledFrom([]time.Duration{25, 40, 60, 90, 200, 1000}).Draw(rt, "gap") * time.Microsecond
			load(gap, time.Duration(rapid.IntRange(1, 40).Draw(rt, "time"))*time.Millisecond, rapid.IntRange(0, 5).Draw(rt, "back"))
		},
		"wait": func(rt *rapid.T) {
			w.settle(x.Advance(rapid.SampledFrom([]time.Duration{30 * time.Microsecond, 3 * time.Millisecond, 20 * time.Millisecond}).Draw(rt, "time")))
		},
	})
	for range 500 {
		if len(w.inside) == 0 {
			break
		}
		w.settle(x.Advance(20 * time.Millisecond))
	}
	load(time.Millisecond, 2*mostPatience*6*time.Millisecond, 3)
	w.settle(x.Advance(20 * time.Millisecond))
	if len(w.inside) > 0 {
		rt.Fatalf("%d frames are still inside: %v", len(w.inside), w.inside)
	}
	for _, b := range x.boards() {
		total["came"] += int(b.near.came)
		total["given back"] += int(b.near.gave)
		for n := range b.cat.services {
			if s := &b.cat.services[n]; b.cat.lodges(s) {
				rt.Errorf("worker %d has DAG %d of worker %d still: %+v", b.cat.worker, s.UID, s.lodge.home, s.lodge)
			}
		}
	}
}

// TestManyGiveBack: of several workers that could each give a DAG back, one does, and the next only when that has been measured: at a load that
// two of four can do, two have it, and none comes back.
func TestManyGiveBack(t *testing.T) {
	x := limited(t, 4, "state: true", "fair", "off")
	next, last := 0, map[int]string{}
	x.offer(60*time.Millisecond, 320, 16, &next, last)
	if n := x.hosts(); n != 4 {
		t.Fatalf("%d workers have an instance", n)
	}
	came := func() (n uint64) {
		for _, b := range x.boards() {
			n += b.near.came
		}
		return n
	}
	before := came()
	x.offer(200*time.Millisecond, 110, 16, &next, last)
	if n := x.hosts(); n != 2 || came() != before {
		t.Errorf("%d workers have an instance, %d came back", n, came()-before)
	}
}

// TestThrift: a DAG that comes back soon after it was given back stays twice as long each time, up to a bound; one that comes later does not.
func TestThrift(t *testing.T) {
	const period = 5 * time.Millisecond
	var x thrift
	at := clock.Time(time.Second)
	for i := range 10 {
		x.came(at, at.Add(-period), period)
		want := min(period<<i, mostPatience*period)
		if got := x.stays.Sub(at); got != want {
			t.Errorf("the %d. time it stays %v, not %v", i+1, got, want)
		}
		for d := clock.Duration(0); d < patient*period; d += period {
			if x.due(at.Add(d), true, period) {
				t.Errorf("it is given back after %v", d)
			}
		}
		if x.due(at.Add(want+patient*period), false, period) || x.due(at.Add(want+patient*period), true, period) {
			t.Error("it is given back though there was no room a moment ago")
		}
		if !x.due(at.Add(want+2*patient*period), true, period) {
			t.Error("it stays")
		}
		at = at.Add(time.Second)
	}
	x.came(at, at.Add(-time.Minute), period)
	if got := x.stays.Sub(at); got != period {
		t.Errorf("after a minute it stays %v", got)
	}
}

// TestLates: more frames wait for their DAG to go to another worker than its ring has room for. All arrive, in their order; what comes while some
// wait still goes behind them.
func TestLates(t *testing.T) {
	for _, size := range []int{80, 1400} {
		x := newCrew(t, scripts(), 2, graph.Args{"fair": "off", "packets": "4096", "store": "16M", "deployment": `
regions: {count: 2, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, throughput: 100Mbit}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`})
		x.advance(20 * time.Millisecond)
		b := x.board(1)
		b.cat.house.crying[0].Store(true)
		b.cat.house.cries.Add(1)
		x.push(1, 0, frame(1, "00000000-."))
		x.advance(10 * time.Millisecond)
		if b.near.came != 1 {
			t.Fatal("it did not come")
		}
		last, n, out, most := "00000000", 0, 0, 0
		see := func(d time.Duration) {
			x.advance(d)
			most = max(most, b.gates.late)
			r := x.Result()
			for _, f := range r.Out["p1"] {
				if s := string(f.Bytes[payload : payload+8]); s > last {
					last = s
					out++
				} else if s != "00000000" {
					t.Fatalf("%s came out after %s", s, last)
				}
			}
			for _, f := range r.Dropped {
				t.Fatalf("dropped as %s", f.Reason)
			}
		}
		send := func(frames int) {
			for range frames {
				n++
				x.push(1, 0, frameLong(1, fmt.Sprintf("%08d-%0*d", n, size-payload-9, 0)))
			}
		}
		see(0)
		send(900)
		b.near.leaveFor(0)
		for range 200 {
			send(1)
			see(time.Microsecond)
		}
		if inst, used, _ := x.Books(); used != inst.Held()-x.between() {
			t.Errorf("%d buffers are in use, %d are held", used, inst.Held())
		}
		for range 2000 {
			see(100 * time.Microsecond)
		}
		if out != n || most == 0 || b.stock.inside != 0 || b.stock.stored != 0 || b.stock.kept[0] != (kept{}) {
			t.Errorf("of %d frames of %d bytes %d came out, %d waited; %+v", n, size, out, most, b.stock)
		}
	}
}

// TestStopLates: a board that ends drops what waits for room at another worker.
func TestStopLates(t *testing.T) {
	x, b := lodging(t)
	for range 900 {
		x.push(1, 0, frame(1, "00000001-."))
	}
	b.near.leaveFor(0)
	for range 10_000 {
		x.advance(time.Microsecond)
		if b.gates.late > 0 {
			return // it is closed with the test, which looks for frames that are left
		}
	}
	t.Error("nothing waits for room")
}

// lodging is a board of two workers, the second of which runs the DAG, too, since it was asked to.
func lodging(t *testing.T, more ...string) (*crew, *board) {
	x := limited(t, 2, "state: true", append(more, "fair", "off")...)
	b := x.board(1)
	b.cat.house.crying[0].Store(true)
	b.cat.house.cries.Add(1)
	x.push(1, 0, frame(1, "00000000-."))
	x.advance(9 * time.Millisecond)
	if b.near.came != 1 || !b.cat.lodges(&b.cat.services[0]) {
		t.Fatal("it did not come")
	}
	return x, b
}

// TestIdleGoesHome: a DAG of which nothing comes any more goes to its home, however much that has.
func TestIdleGoesHome(t *testing.T) {
	x, b := lodging(t)
	for i := range 2000 {
		long := fmt.Sprintf("00000001-%0*d", 1188-payload-9, 0)
		x.push(0, 0, frameLong(2, long)) // 95 Mbit/s
		if i < 300 && i%2 == 0 {
			x.push(1, 0, frameLong(1, long))
		} else if i == 300 && b.near.gave > 0 {
			t.Error("both have more than one of them can do")
		}
		x.advance(100 * time.Microsecond)
		x.Result()
	}
	if b.near.gave != 1 || b.cat.instances(0) != 0 {
		t.Errorf("it is still there: %+v", b.cat.services[0].lodge)
	}
}

// TestBacklogStays: while more waits than the home could do at once, a DAG stays.
func TestBacklogStays(t *testing.T) {
	x, b := lodging(t)
	home, s := &b.cat.house.tides[0], &b.cat.services[0]
	for range 800 {
		x.push(1, 0, frame(1, "00000001-."))
	}
	if b.near.hasRoom(home, s) {
		t.Error("the home is to have room for what waits")
	}
	x.advance(8 * time.Millisecond) // all of it has run
	s.recent = 0
	if !b.near.hasRoom(home, s) {
		t.Errorf("the home is to have no room for nothing: %v waits", b.placing.backlog(s))
	}
}

// TestLatesAreBounded: no more frames wait for room than the packet store has room for, and those that come later no longer than for
// lateFor.
func TestLatesAreBounded(t *testing.T) {
	x, b := lodging(t, "packets", "600")
	for range 300 {
		x.push(1, 0, frame(1, "00000001-."))
	}
	x.advance(0)
	b.near.leaveFor(0)
	for range 4000 {
		x.push(1, 0, frame(1, "00000002-."))
		if b.gates.late > 300 || b.stock.inside > 300 {
			t.Fatalf("%d frames wait for room, %d are inside", b.gates.late, b.stock.inside)
		}
	}
	x.advance(50 * time.Millisecond)
	if x.Result(); b.gates.late > 0 {
		t.Fatal("frames wait still")
	}
	// A ring that stays full: the other worker takes nothing.
	l := &b.gates.lates[0]
	for n := range 700 {
		if n > 0 && n%64 == 0 && l.waiting() == 0 {
			l.since = x.now
		}
		x.push(1, 0, frame(1, "00000003-."))
	}
	if l.waiting() > 0 {
		t.Errorf("%d frames wait that came when none did", l.waiting())
	}
}

// TestBackWhileLate: a DAG that is to come back while frames of it wait for room at its home comes behind these.
func TestBackWhileLate(t *testing.T) {
	for _, rate := range []string{"100Mbit", "100Gbit"} { // what the home has got it has still, or has run at once
		x, b := lodging(t, "rate", rate)
		s, n, last := &b.cat.services[0], 0, ""
		send := func(frames int) {
			for range frames {
				n++
				x.push(1, 0, frameLong(1, fmt.Sprintf("%08d-%0*d", n, 900, 0)))
			}
		}
		x.Result()
		most := 900 // the home runs them within leftWithin
		if rate == "100Gbit" {
			most = 1800
		}
		send(most)
		b.near.leaveFor(0)
		back, at, took := false, x.now, time.Duration(0)
		for range 20_000 {
			if step := 10 * time.Microsecond; back {
				x.advance(step)
			} else {
				x.advance(step / 10)
			}
			if b.gates.late > 0 && s.where.phase == away && !back {
				back, at = true, x.now
				b.cat.house.crying[0].Store(true)
				b.cat.house.cries.Add(1)
			}
			if back && took == 0 && s.where.phase == here {
				took = x.now.Sub(at)
			}
			if n < most+100 && s.where.phase != leaving {
				send(1)
			}
			for _, f := range x.Result().Out["p1"] {
				if k := string(f.Bytes[payload : payload+8]); k <= last {
					t.Fatalf("%s came out after %s", k, last)
				} else {
					last = k
				}
			}
		}
		if !back || last != fmt.Sprintf("%08d", most+100) || b.near.came != 2 || took > leftWithin*9/10 {
			t.Errorf("%s: back %v, %d times, in %v: %s came out last", rate, back, b.near.came, took, last)
		}
	}
}

// TestOvertaken: frames of a flow overtake others where a worker runs a DAG before those that it handed over have left, and tests see
// that.
func TestOvertaken(t *testing.T) {
	for _, early := range []bool{false, true} {
		x := newCrew(t, scripts(), 2, graph.Args{"fair": "off", "deployment": `
regions: {count: 2, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, throughput: 1Mbit, credits: 64}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`})
		x.advance(20 * time.Millisecond)
		b, s := x.board(1), &x.board(1).cat.services[0]
		over, last := 0, ""
		for n := range 100 {
			if n == 4 { // the home has frames of another flow to run for some time
				for range 100 {
					x.push(0, 0, frame(2, "00000000-."))
				}
				b.cat.house.crying[0].Store(true)
				b.cat.house.cries.Add(1)
			}
			x.push(1, 0, frame(1, fmt.Sprintf("%08d-.", n)))
			for range 100 {
				x.advance(10 * time.Microsecond)
				if early && s.where.phase == arriving {
					b.near.runHere(x.now, 0)
				}
			}
			for _, f := range x.Result().Out["p1"] {
				switch n := string(f.Bytes[payload : payload+8]); {
				case f.Bytes[29] == 2:
				case n <= last:
					over++
				default:
					last = n
				}
			}
		}
		if b.near.came == 0 || (over > 0) != early {
			t.Errorf("early %v: it came %d times, %d were overtaken", early, b.near.came, over)
		}
	}
}

// TestLatesOfStuck: the home of a DAG takes nothing. No more frames wait for it than the packet store has room for; those that come when some
// wait have half of it, and no longer than lateFor.
func TestLatesOfStuck(t *testing.T) {
	const packets = 1024
	x, b := lodging(t, "packets", fmt.Sprint(2*packets)) // of both workers
	alone := func(d time.Duration) {                     // the other worker stands still
		x.now = x.now.Add(d)
		var none packet.Batch
		if err := x.inst.PushTo(1, "x0", x.now, &none); err != nil {
			t.Fatal(err)
		}
		for _, f := range x.Result().Dropped {
			if f.Reason != "hand-over-full" && f.Reason != "no-descriptor" {
				t.Fatalf("dropped as %s", f.Reason)
			}
		}
	}
	send := func(frames int) {
		for range frames {
			x.push(1, 0, frame(1, "00000001-."))
		}
	}
	s, l := &b.cat.services[0], &b.gates.lates[0]
	leave := func() {
		t.Helper()
		b.near.leaveFor(0)
		for i := 0; s.where.phase != away; i++ {
			if alone(10 * time.Microsecond); i > 10_000 {
				t.Fatalf("it does not leave: %+v", s.where)
			}
		}
		alone(1)
	}
	send(900)
	leave()
	first := l.waiting()
	if first < 100 || first > 512 {
		t.Fatalf("%d wait", first)
	}
	send(1)
	x.now = l.since.Add(lateFor)
	send(1)
	if n := l.waiting(); n != first+1 {
		t.Errorf("%d wait, with one that came in time, and %d without", n, first)
	}
	l.since = x.now
	send(packets)
	if n := l.waiting(); n <= first || n > packets/2 {
		t.Errorf("%d wait with those that came later, %d without", n, first)
	}
	k := &b.stock.kept[0]
	if int(k.packets) != l.waiting() || b.stock.inside != l.waiting() || b.gates.late != l.waiting() {
		t.Errorf("%d wait; %+v %+v", l.waiting(), k, b.stock)
	}
	// It comes back, and goes again with as many as there is room for.
	b.cat.house.crying[0].Store(true)
	b.cat.house.cries.Add(1)
	for i := 0; s.where.phase != here; i++ {
		send(1) // else it need not come
		if alone(time.Millisecond); i > 1000 {
			t.Fatalf("it does not come back: %+v", s.where)
		}
	}
	send(900)
	leave()
	if n := l.waiting(); n <= packets/2 || n > packets {
		t.Errorf("%d wait: the packet store has room for %d", n, packets)
	}
}

// TestClaim: one DAG at a time is given back to a worker.
func TestClaim(t *testing.T) {
	var x tide
	for _, c := range []struct {
		now, until clock.Time
		want       bool
	}{{10, 20, true}, {15, 30, false}, {20, 30, true}, {29, 40, false}, {30, 31, true}} {
		if x.claim(c.now, c.until) != c.want {
			t.Errorf("at %d: it is %v", c.now, !c.want)
		}
	}
}

// TestThriftRemembers: who has to go again within twice the time that it stayed, and within eight periods whatever that was, stays twice
// as long; who stayed at home for longer begins anew.
func TestThriftRemembers(t *testing.T) {
	const period = clock.Duration(time.Millisecond)
	at := clock.Time(time.Hour)
	for _, c := range []struct{ stayed, ago, want clock.Duration }{{16, 20, 32}, {16, 31, 32}, {16, 33, 1}, {1, 7, 2}, {1, 8, 1}, {2, 7, 4}} {
		x := thrift{patience: c.stayed * period}
		if x.came(at, at.Add(-c.ago*period), period); x.patience != c.want*period {
			t.Errorf("stayed %d periods, left %d periods ago: it stays %v", c.stayed, c.ago, x.patience)
		}
	}
}

// TestTrifleGoesHome: a DAG that brings less than a hundredth of an instance goes home, however much the home has.
func TestTrifleGoesHome(t *testing.T) {
	_, b := lodging(t)
	home, s := &b.cat.house.tides[0], &b.cat.services[0]
	home.tasks[0].Store(uint64(math.Float32bits(2))<<32 | 1<<16 | uint64(uint16(b.near.whole.gen))) // twice what its instance can do
	s.recentAt = b.cat.seen
	s.toil = 0
	for _, c := range []struct {
		part float64
		want bool
	}{{.008, true}, {.02, false}} {
		s.recent = c.part * 1e8 / 8 * b.monitor.Seconds()
		if got := b.near.hasRoom(home, s); got != c.want {
			t.Errorf("with %g of an instance: %v", c.part, got)
		}
	}
}

// TestGivenBackOneByOne: of workers that could all give a DAG back, one does at a time, and the next when four monitor periods later the home
// has measured what it got.
func TestGivenBackOneByOne(t *testing.T) {
	x := limited(t, 4, "state: true", "fair", "off")
	next, last := 0, map[int]string{}
	x.offer(60*time.Millisecond, 320, 16, &next, last)
	var at []clock.Time
	gave := 0
	for range 1000 {
		x.offer(1, 20, 16, &next, last)
		n := 0
		for _, b := range x.boards() {
			n += int(b.near.gave)
		}
		for ; gave < n; gave++ {
			at = append(at, x.now)
		}
	}
	if len(at) != 3 {
		t.Fatalf("given back at %v", at)
	}
	const step = 200 * time.Microsecond // between two frames
	period := x.board(0).monitor
	for i, a := range at[1:] {
		if d := a.Sub(at[i]); d < 4*period-step || d > (4+patient)*period {
			t.Errorf("given back %v after another: %v", d, at)
		}
	}
}
