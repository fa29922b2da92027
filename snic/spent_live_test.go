package snic

import (
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
