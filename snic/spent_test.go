package snic

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// burner takes a known time of the graph's clock for each frame.
type burner struct {
	clock *clock.Manual
	each  time.Duration
}

func (s *burner) Push(c *graph.Ctx, in int, b *packet.Batch) {
	s.clock.Advance(time.Duration(b.Len()) * s.each)
	for _, x := range b.Bufs() {
		c.Emit(1-in, x)
	}
}

// besideFlood is a worker whose port has a ring of 1024 frames: what comes while it is at work waits there, and what finds no
// room is lost. Tenant u sends one frame every small, tenant v one every flood. It returns which part of each came out in the
// latter half of d.
func besideFlood(t *testing.T, fair string, small, flood, each, d time.Duration) (u, v float64, board *board) {
	return besideFloodOf(t, fair, frame(2, "0123456789"), small, flood, each, d)
}

// besideFloodOf is besideFlood, with the flood's frame.
func besideFloodOf(t *testing.T, fair string, floods []byte, small, flood, each, d time.Duration) (u, v float64, board *board) {
	const (
		ring = 1024
		own  = 50 * time.Nanosecond // of the worker, for a frame, besides tasks
	)
	hot := &burner{each: each}
	two := []string{"a", "b"}
	kinds := []graph.Kind{*Kind(), {Name: "burn", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return hot, nil }}}
	x := graphtest.NewOuter(t, kinds, graph.Args{"fair": fair, "burst": "4k", "deployment": `
regions: {count: 1, area: 1}
tasks: {a: {kind: burn, reads: [ports]}}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`})
	hot.clock = x.Clock
	b := boardOf(x)
	b.split.spent.clock = x.Clock // it moves while a breath lasts
	if err := b.split.deployShares(x.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	x.Advance(20 * time.Millisecond)
	rng := rand.New(rand.NewPCG(1, 1))
	frames := [2][]byte{frame(1, "0123456789"), floods}
	gaps := [2]time.Duration{small, flood}
	start := x.Clock.Now()
	next := [2]clock.Time{start, start}
	var queue []byte
	var sent, out, lost [2]int
	for x.Clock.Now() < start.Add(d) {
		late := x.Clock.Now() > start.Add(d/2)
		for min(next[0], next[1]) <= x.Clock.Now() {
			k := 0
			if next[1] < next[0] {
				k = 1
			}
			if late {
				sent[k]++
			}
			if len(queue) < ring {
				queue = append(queue, byte(k))
			} else if late {
				lost[k]++
			}
			next[k] = next[k].Add(time.Duration(1 + rng.Int64N(int64(2*gaps[k]))))
		}
		if len(queue) == 0 {
			x.Advance(min(next[0], next[1]).Sub(x.Clock.Now()))
			continue
		}
		n := min(len(queue), packet.MaxBatch)
		var batch [][]byte
		for _, k := range queue[:n] {
			batch = append(batch, frames[k])
		}
		queue = append(queue[:0], queue[n:]...)
		x.Clock.Advance(time.Duration(n) * own)
		r := x.Push("p0", batch...)
		if late {
			for _, f := range r.Out["p1"] {
				out[f.Bytes[29]-1]++
			}
		}
		x.Advance(0)
	}
	t.Logf("fair=%s: of %d and %d, %d and %d were lost at the port, %d and %d throttled", fair, sent[0], sent[1], lost[0], lost[1], b.cat.services[0].throttled, b.cat.services[1].throttled)
	return float64(out[0]) / float64(sent[0]), float64(out[1]) / float64(sent[1]), b
}

// TestMeasuredCost: a tenant that asks for less than its share of a worker has all of it beside a flood, though nobody has said what
// its tasks cost. Without fairness it has what it finds room for.
func TestMeasuredCost(t *testing.T) {
	for _, flood := range []time.Duration{250 * time.Nanosecond, 500 * time.Nanosecond, time.Microsecond} {
		t.Run(fmt.Sprint(flood), func(t *testing.T) {
			// 2 µs of 16.7: 12 % of the worker.
			u, v, b := besideFlood(t, "on", 16700*time.Nanosecond, flood, 2*time.Microsecond, 200*time.Millisecond)
			off, _, _ := besideFlood(t, "off", 16700*time.Nanosecond, flood, 2*time.Microsecond, 50*time.Millisecond)
			t.Logf("%.1f %% of what it asks for, the flood %.1f %%; %.1f %% without fairness; %+v", 100*u, 100*v, 100*off, b.split.spent)
			if u < .95 || off > .9 {
				t.Errorf("it gets %.3f, without fairness %.3f", u, off)
			}
			// Time is not left unused for that: 2 µs for each frame of either, and 50 ns for whatever comes.
			if used := 2000*(v/float64(flood)+u/16700) + 50*(1/float64(flood)+1./16700); used < .9 {
				t.Errorf("%.2f of the worker's time is used", used)
			}
			if c := b.cat.services[0].cost; c < 1990 || c > 2010 {
				t.Errorf("a frame costs %v ns", c)
			}
		})
	}
}

// TestFairByMeasuredCost: what a tenant gets of its fair part of a worker beside a flood, for tasks of several costs that nobody has declared, for
// floods of small and of large frames. The part is what it asks for, or half of the worker where it asks for more.
func TestFairByMeasuredCost(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes half a minute")
	}
	for _, each := range []time.Duration{2 * time.Microsecond, 5 * time.Microsecond, 20 * time.Microsecond} {
		for _, size := range []int{60, 1514} {
			floods := frameLong(2, fmt.Sprintf("%0*d", size-payload, 0))
			for _, rate := range []int{1, 2, 4} { // million frames a second
				for _, asks := range []float64{.12, .4, 1} { // parts of the worker
					t.Run(fmt.Sprintf("%v/%d bytes/%d Mpps/asks %v", each, size, rate, asks), func(t *testing.T) {
						flood := time.Second / time.Duration(rate*1e6)
						u, v, b := besideFloodOf(t, "on", floods, time.Duration(float64(each)/asks), flood, each, 300*time.Millisecond)
						work := 1 - 50e-9*float64(rate)*1e6 // what looking at all frames leaves
						part := u * asks / min(asks, work/2)
						t.Logf("%.1f %% of its part; tasks take %.2f of the worker, %.3f is given away", 100*part, u*asks+v*float64(each)/float64(flood), b.split.spent.trust)
						if asks < .2 && each == 2*time.Microsecond && part < .95 {
							t.Errorf("it gets %.3f of its part", part)
						}
					})
				}
			}
		}
	}
}

// TestRareAmongLongTasks: the frames of a tenant are most often lost at the port, and come to the board more seldom than it looks
// who is there, since each of the flood's takes long. It has a share for all that: several times what it would find room for.
func TestRareAmongLongTasks(t *testing.T) {
	const each = 20 * time.Microsecond
	on, _, _ := besideFlood(t, "on", each*100/12, time.Microsecond, each, 400*time.Millisecond)
	off, _, _ := besideFlood(t, "off", each*100/12, time.Microsecond, each, 100*time.Millisecond)
	t.Logf("%.1f %% of what it asks for; %.1f %% without fairness", 100*on, 100*off)
	if on < 5*off {
		t.Errorf("it gets %.3f, without fairness %.3f", on, off)
	}
}
