package snic

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// spinner takes real time for each frame.
type spinner struct {
	clock *clock.Wall
	each  time.Duration
}

func (s *spinner) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		for end := s.clock.Now().Add(s.each); s.clock.Now() < end; {
		}
		c.Emit(1-in, x)
	}
}

// TestCostOfSpinning: what a task costs by the wall clock is shown, and no less than it spins; how much more is the machine's
// matter. Where no clock moves in a breath nothing is.
func TestCostOfSpinning(t *testing.T) {
	const each = 5 * time.Microsecond
	two := []string{"a", "b"}
	wall := clock.NewWall()
	spin := graph.Kind{Name: "spin", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return &spinner{wall, each}, nil }}
	for _, live := range []bool{true, false} {
		board := *Kind()
		board.New = func(env graph.Env, args graph.Args) (graph.App, error) {
			if live {
				env.Clock = wall
			}
			return Kind().New(env, args)
		}
		x := graphtest.NewOuter(t, []graph.Kind{board, spin, idle()}, graph.Args{"deployment": `
regions: {count: 1, area: 2}
tasks: {a: {kind: spin, reads: [ports]}, b: {kind: nothing, reads: [ports]}}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a -> b}, {uid: 2, tenant: v, run: b}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`})
		x.Advance(20 * time.Millisecond)
		for range 100 {
			var frames [][]byte
			for i := range 32 {
				frames = append(frames, frame(byte(1+i&1), "0123456789"))
			}
			out := len(x.Push("p0", frames...).Out["p1"])
			for i := 0; out < len(frames) && i < len(frames); i++ {
				out += len(x.Advance(time.Microsecond).Out["p1"]) // what has no time at once, has it in one of the next breaths
			}
			if out != len(frames) {
				t.Fatalf("%d of %d frames came out", out, len(frames))
			}
			x.Advance(time.Millisecond)
		}
		a, b := taskOf(x, "a").Cost, taskOf(x, "b").Cost
		t.Logf("live: %v: %.0f ns and %.0f ns a frame", live, a, b)
		if live && (a < float64(each) || b <= 0) || !live && (a != 0 || b != 0) {
			t.Errorf("live: %v: a costs %v, b %v", live, a, b)
		}
	}
}

// BenchmarkFairLive is a tenant beside a flood of a million frames a second, by the wall clock: which part of what it asks for it gets, which part
// of it is lost at the port, a ring of 1,024 frames, and which parts of the time both have. What comes is reckoned when the worker looks, so
// nobody else needs the processor for it.
func BenchmarkFairLive(b *testing.B) {
	for _, fair := range []string{"on", "off"} {
		for _, each := range []time.Duration{5 * time.Microsecond, 20 * time.Microsecond} {
			for _, asks := range []float64{.12, .4, 1} {
				b.Run(fmt.Sprintf("fair=%s/%v/asks=%v", fair, each, asks), func(b *testing.B) {
					var sent, out, lost [2]int
					for range b.N {
						besideFloodLive(b, fair, each, [2]time.Duration{time.Duration(float64(each) / asks), time.Microsecond}, &sent, &out, &lost)
					}
					u, all := float64(sent[0]), float64(sent[1])*1e-6 // seconds
					b.ReportMetric(100*float64(out[0])/u, "%-of-asked")
					b.ReportMetric(100*float64(lost[0])/u, "%-lost")
					b.ReportMetric(100*float64(out[0])*each.Seconds()/all, "%-of-time")
					b.ReportMetric(100*float64(out[1])*each.Seconds()/all, "%-of-time-flood")
				})
			}
		}
	}
}

// besideFloodLive has two tenants send a frame every gap for half a second, and adds up what became of them.
func besideFloodLive(b *testing.B, fair string, each time.Duration, gaps [2]time.Duration, sent, out, lost *[2]int) {
	wall, two := clock.NewWall(), []string{"a", "b"}
	kinds := []graph.Kind{*Kind(), {Name: "burn", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return &spinner{wall, each}, nil }}}
	x := newCrew(b, kinds, 1, graph.Args{"fair": fair, "burst": "4k", "deployment": `
regions: {count: 1, area: 1}
tasks: {a: {kind: burn, reads: [ports]}}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`})
	x.now = wall.Now()
	x.board(0).split.spent.clock = wall
	if err := x.board(0).split.deployShares(x.now); err != nil {
		b.Fatal(err)
	}
	run := func(d time.Duration) {
		for end := wall.Now().Add(d); wall.Now() < end; {
			x.now = wall.Now()
			if _, err := x.inst.Step(x.now); err != nil {
				b.Fatal(err)
			}
			for _, f := range x.Result().Out["p1"] {
				out[f.Bytes[29]-1]++
			}
		}
	}
	run(20 * time.Millisecond)
	frames := [2][]byte{frame(1, "0123456789"), frame(2, "0123456789")}
	next := []clock.Time{wall.Now(), wall.Now()}
	var queue []byte
	x.ends[0][0].rx = func(batch *packet.Batch) {
		for now := wall.Now(); slices.Min(next) <= now; {
			k := slices.Index(next, slices.Min(next))
			if sent[k]++; len(queue) < 1024 {
				queue = append(queue, byte(k))
			} else {
				lost[k]++
			}
			next[k] = next[k].Add(gaps[k])
		}
		n := min(len(queue), packet.MaxBatch)
		for _, k := range queue[:n] {
			y := x.pools[0].Get()
			if y == nil || !y.SetBytes(frames[k]) || !batch.Add(y) {
				b.Fatal("no room for a frame")
			}
		}
		queue = append(queue[:0], queue[n:]...)
	}
	run(500 * time.Millisecond)
	x.ends[0][0].rx = nil
}
