package snic

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// arena is a tenant beside another one that floods, on a board of several workers, each of which has a clock and a ring of its own. Frames
// come to the worker that their flow chooses.
type arena struct {
	workers int
	each    time.Duration // what a frame takes in the task
	look    time.Duration // what a frame takes of a worker before the board sees it
	on      time.Duration // what a frame that is sent takes of a worker besides
	rates   [2]float64    // frames a second of the tenant and of the flood
	flows   [2]int
	ring    int           // frames that wait for a worker
	late    time.Duration // the tenant begins so long after the flood
	during  time.Duration // the latter half of it counts
	wrong   float64       // what the worker begins with as the time that looking at a frame takes, in ns
	args    graph.Args
}

// flowFrame is a frame of a tenant's flow.
func flowFrame(src byte, flow int) []byte {
	f := frame(src, "0123456789")
	binary.BigEndian.PutUint16(f[34:], uint16(1000+flow))
	return f
}

// core is a worker of an arena, with what comes to it.
type core struct {
	clk   *clock.Manual
	queue [][]byte
	come  [2]arrivals
	rng   *rand.Rand

	sent, lost, out [2]int
}

// arrivals are frames of a tenant, at times that are not quite regular.
type arrivals struct {
	next   clock.Time
	gap    float64 // ns
	frames [][]byte
	n      int
}

// arrive puts what comes until then into the ring; what comes after half counts.
func (k *core) arrive(until, half clock.Time, ring int) {
	for {
		i := 0
		if k.come[1].next < k.come[0].next {
			i = 1
		}
		a := &k.come[i]
		if a.next > until {
			return
		}
		one := 0
		if a.next > half {
			one = 1
		}
		k.sent[i] += one
		if len(k.queue) < ring {
			k.queue = append(k.queue, a.frames[a.n%len(a.frames)])
		} else {
			k.lost[i] += one
		}
		a.n++
		a.next = a.next.Add(time.Duration(2 * a.gap * k.rng.Float64()))
	}
}

// run has frames come and go, and returns which part of its fair part the tenant got: of what it asks for, or of half of the time of the worker
// that it comes to which looking at all frames leaves. used is how much of the time is used that can be.
func (t *arena) run(tb testing.TB) (part, used float64) {
	tb.Helper()
	cores := make([]*core, t.workers)
	for i := range cores {
		cores[i] = &core{clk: clock.NewManual(graphtest.Start)}
	}
	two := []string{"a", "b"}
	kinds := []graph.Kind{*Kind(), {Name: "burn", In: two, Out: two, New: func(env graph.Env, _ graph.Args) (graph.App, error) {
		return &burner{clock: cores[env.Worker].clk, each: t.each}, nil
	}}}
	args := graph.Args{"burst": "4k", "deployment": fmt.Sprintf(`
regions: {count: %d, area: 1}
tasks: {a: {kind: burn, reads: [ports]}}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`, t.workers)}
	maps.Copy(args, t.args)
	x := newCrew(tb, kinds, t.workers, args)
	for w, k := range cores {
		b := x.board(w)
		b.split.spent.clock, b.split.spent.look = k.clk, t.wrong
		if err := b.split.deployShares(x.now); err != nil {
			tb.Fatal(err)
		}
	}
	x.advance(20 * time.Millisecond)
	start, half, end := x.now, x.now.Add(t.during/2), x.now.Add(t.during)
	for _, k := range cores {
		k.clk.Set(max(start, k.clk.Now()))
	}
	for i, rate := range t.rates {
		for f := range t.flows[i] {
			// The flows of each are spread over the workers, as by the hash of a network card.
			k := cores[(f+i)%t.workers]
			k.come[i].frames = append(k.come[i].frames, flowFrame(byte(1+i), f))
			k.come[i].gap = 1e9 / rate * float64(t.flows[i]) / float64(len(k.come[i].frames))
		}
	}
	for w, k := range cores {
		for i := range k.come {
			k.come[i].next = start
			if i == 0 {
				k.come[i].next = start.Add(t.late)
			}
			if len(k.come[i].frames) == 0 {
				k.come[i].next = clock.Never
			}
		}
		k.rng = rand.New(rand.NewPCG(1, uint64(w)))
	}
	var b packet.Batch
	for {
		w := 0
		for i := range cores {
			if cores[i].clk.Now() < cores[w].clk.Now() {
				w = i
			}
		}
		k := cores[w]
		now := k.clk.Now()
		if now >= end {
			break
		}
		// Timers first, then what has come to the ring, as in a breath.
		b.Reset()
		if err := x.inst.PushTo(w, "x0", now, &b); err != nil {
			tb.Fatal(err)
		}
		k.arrive(k.clk.Now(), half, t.ring)
		n := min(len(k.queue), packet.MaxBatch)
		for _, f := range k.queue[:n] {
			y := x.pools[w].Get()
			if y == nil || !y.SetBytes(f) || !b.Add(y) {
				tb.Fatal("no room for a frame")
			}
		}
		k.queue = append(k.queue[:0], k.queue[n:]...)
		k.clk.Advance(time.Duration(n) * t.look)
		if err := x.inst.PushTo(w, "x0", now, &b); err != nil {
			tb.Fatal(err)
		}
		got := x.Result().Out["p1"]
		for _, f := range got {
			if now > half {
				k.out[f.Bytes[29]-1]++
			}
		}
		k.clk.Advance(time.Duration(len(got)) * t.on)
		if k.clk.Now() == now {
			k.clk.Set(max(now+100, min(k.come[0].next, k.come[1].next, x.inst.NextTick())))
		}
	}
	cost, secs := (t.each + t.on).Seconds(), t.during.Seconds()/2
	fair, got, all, can := 0., 0., 0., 0.
	for w, k := range cores {
		asks, flood := float64(k.sent[0])*cost/secs, float64(k.sent[1])*cost/secs
		work := 1 - t.look.Seconds()*float64(k.sent[0]+k.sent[1])/secs
		fair += min(asks, max(work/2, work-flood))
		got += float64(k.out[0]) * cost / secs
		all += float64(k.out[0]+k.out[1]) * cost / secs
		can += min(work, asks+flood)
		s := &x.board(w).split.spent
		tb.Logf("worker %d: of %d, %d were lost at the port, and %d came out; a frame takes %.0f ns to look at, %.0f ns to go on", w, k.sent, k.lost, k.out, s.look, s.onward)
	}
	return got / fair, all / can
}

// TestFairNewcomer: a tenant has its part soon although a flood was there before it, whose frames take so long that nearly all of the tenant's are
// lost at the port while the worker looks there for the flood alone.
func TestFairNewcomer(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			a := arena{workers: workers, each: 100 * time.Microsecond, look: own, ring: 2048, late: 30 * time.Millisecond, during: 200 * time.Millisecond, flows: [2]int{4, 4}}
			a.rates = [2]float64{500 * float64(workers), 4e6 * float64(workers)}
			if part, used := a.run(t); part < .95 || used < .95 {
				t.Errorf("it gets %.3f of its part, and %.3f of the time is used", part, used)
			}
		})
	}
}

// TestFairAmongMany: a tenant has its part although most of the time is used to look at the frames of a flood.
func TestFairAmongMany(t *testing.T) {
	for _, asks := range []float64{.05, .12} {
		t.Run(fmt.Sprint(asks), func(t *testing.T) {
			a := arena{workers: 1, each: time.Microsecond, look: own, ring: 2048, during: 50 * time.Millisecond, flows: [2]int{1, 1}}
			a.rates = [2]float64{asks * 1e6, 12e6}
			if part, used := a.run(t); part < .95 || used < .95 {
				t.Errorf("it gets %.3f of its part, and %.3f of the time is used", part, used)
			}
		})
	}
}

// TestFairBySparing: a tenant has its part although tasks take less than looking at the frames does, where to send a frame takes long: when those of the
// flood are refused, that is spared. The figures are about those of AF_XDP between two veths.
func TestFairBySparing(t *testing.T) {
	for _, each := range []time.Duration{50, 200} {
		if testing.Short() && each == 50 {
			continue
		}
		for _, asks := range []float64{.05, .12, .3} {
			t.Run(fmt.Sprint(each, asks), func(t *testing.T) {
				a := arena{workers: 1, each: each, look: 115, on: 1200, ring: 2048, late: 20 * time.Millisecond, during: 100 * time.Millisecond, flows: [2]int{1, 1}}
				a.rates = [2]float64{asks / (each + a.on).Seconds(), 3.5e6}
				if part, used := a.run(t); part < .95 || used < .95 {
					t.Errorf("it gets %.3f of its part, and %.3f of the time is used", part, used)
				}
			})
		}
	}
}

// TestFairThoughLookWasWrong: a worker that was kept from its work while it measured for the first time how long looking at a frame takes learns better.
func TestFairThoughLookWasWrong(t *testing.T) {
	for _, each := range []time.Duration{time.Microsecond, 5 * time.Microsecond, 100 * time.Microsecond} {
		t.Run(each.String(), func(t *testing.T) {
			a := arena{workers: 1, each: each, look: 115, on: 1200, ring: 2048, late: 20 * time.Millisecond, during: 200 * time.Millisecond, flows: [2]int{1, 1}, wrong: 1e5}
			a.rates = [2]float64{.12 / (each + a.on).Seconds(), 3.5e6}
			if part, used := a.run(t); part < .95 || used < .95 {
				t.Errorf("it gets %.3f of its part, and %.3f of the time is used", part, used)
			}
		})
	}
}

// BenchmarkFairTable prints what a tenant gets of its fair part of one worker and of two beside a flood, and how much of the time is used, by what
// a frame takes in the task, by what part of a worker it asks for, by the flows of the flood, and by its rate: 1, 4, 8 and 12 million frames
// a second and worker.
func BenchmarkFairTable(b *testing.B) {
	for _, workers := range []int{1, 2} {
		for _, each := range []time.Duration{50, 200, 1000, 5000, 20_000, 100_000, 200_000} {
			b.Run(fmt.Sprintf("%d/%v", workers, each), func(b *testing.B) {
				for _, asks := range []float64{.05, .12, .3} {
					line := fmt.Sprintf("%d workers %6v asks %3.0f %%:", workers, each, 100*asks)
					for _, flows := range []int{1, 4, 64}[:2*workers-1] { // of one worker all come to the same ring
						for _, mpps := range []float64{1, 4, 8, 12} {
							t := arena{workers: workers, each: each, look: own, ring: 2048, during: 60 * time.Millisecond, flows: [2]int{4, flows}}
							if each >= 100_000 {
								t.during = 200 * time.Millisecond // enough frames to count
							}
							t.rates = [2]float64{asks / each.Seconds() * float64(workers), mpps * 1e6 * float64(workers)}
							if flows == 1 {
								t.rates[1] = mpps * 1e6 // to one of them
							}
							part, used := t.run(b)
							line += fmt.Sprintf(" %4.0f(%3.0f)", 100*part, 100*used)
						}
						line += " |"
					}
					fmt.Println(line)
				}
			})
		}
	}
}
