package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/hop"
)

// burning is a board whose tasks of kind burn take a known time for each frame, of a clock that each worker has.
func burning(t *testing.T, workers int, each time.Duration, args graph.Args) *crew {
	var clocks []*clock.Manual
	two := []string{"a", "b"}
	burn := graph.Kind{Name: "burn", In: two, Out: two, New: func(env graph.Env, _ graph.Args) (graph.App, error) {
		return &burner{clock: clocks[env.Worker], each: each}, nil
	}}
	for range workers {
		clocks = append(clocks, &clock.Manual{})
	}
	x := newCrew(t, append(scripts(), burn), workers, args)
	for w := range workers {
		b := x.board(w)
		b.split.spent.clock = clocks[w] // it moves while a breath lasts
		if err := b.split.deployShares(x.now); err != nil {
			t.Fatal(err)
		}
	}
	x.advance(20 * time.Millisecond)
	return x
}

// TestToilScales: nobody has said what a task can do, and measured is that one worker has not the time for all of its frames: another
// one, which hands them over, runs them. With less than that, or where most of the time is other work that would be the same there, nothing moves.
func TestToilScales(t *testing.T) {
	for _, c := range []struct {
		load float64 // of a worker
		each time.Duration
		own  time.Duration // of the worker, for a frame, besides tasks
		want int
	}{
		{1.5, 10 * time.Microsecond, 0, 1},
		{1.05, 10 * time.Microsecond, 0, 1},
		{.8, 10 * time.Microsecond, 0, 0},
		{1.5, 10 * time.Microsecond, time.Microsecond, 1},
		{1.5, time.Microsecond, 2 * time.Microsecond, 0},
	} {
		for _, effects := range []string{"reads: [ports]", "state: true"} {
			t.Run(fmt.Sprintf("%v of %v and %v/%s", c.load, c.each, c.own, effects), func(t *testing.T) {
				// With a limit, a DAG is at its home until there is too much of it.
				x := burning(t, 2, c.each, graph.Args{"fair": "off", "packets": "4096", "deployment": fmt.Sprintf(`
regions: {count: 2, area: 2}
tasks:
  a: {kind: quick, args: {letter: a}, throughput: 100Gbit, credits: 64}
  b: {kind: burn, %s}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a -> b}]
rules: [{match: all, dag: 1}]
`, effects)})
				for w := range 2 {
					x.board(w).split.spent.overhead = float64(c.own)
				}
				next, last := 0, map[int]string{}
				mbit := c.load * 500 * 8 * 1e3 / float64(c.each+c.own)
				sent, out, dropped := x.offer(40*time.Millisecond, mbit, 8, &next, last)
				if b := x.board(1); int(b.near.came) != c.want || b.cat.instances(1) != c.want || out != sent || dropped > 0 {
					t.Errorf("the other worker took it %d times, and has %d instances; of %d, %d came out, %d were dropped; %+v", b.near.came, b.cat.instances(1), sent, out, dropped, x.board(0).placing.toil)
				}
			})
		}
	}
}

// TestToilScalesWhilePausing: of senders that obey pauses no more comes than a worker has time for. That they are held back says that
// it is too little.
func TestToilScalesWhilePausing(t *testing.T) {
	for _, c := range []struct {
		load float64 // what each of two tenants wants to send into worker 0, in parts of a worker
		want int
	}{{1, 1}, {.2, 0}} {
		t.Run(fmt.Sprint(c.load), func(t *testing.T) {
			const size, each = 500, 10 * time.Microsecond
			x := burning(t, 2, each, graph.Args{"packets": "1024", "lossless": "p0:0", "burst": "32k", "deployment": `
regions: {count: 2, area: 2}
tasks:
  a: {kind: quick, args: {letter: a}, throughput: 100Gbit, credits: 64}
  b: {kind: burn, reads: [ports]}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a -> b}, {uid: 2, tenant: v, run: a -> b}, {uid: 3, tenant: v, run: a -> b}] # 2 is at worker 1
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 3}]
`})
			b := x.board(0)
			long := "00000000-" + strings.Repeat(".", size-payload-9)
			gap := time.Duration(float64(each) / c.load)
			until, paused, dropped := x.now, 0, 0
			owed, clk := 0, b.split.spent.clock.(*clock.Manual)
			little := x.now
			for next, end := x.now, x.now.Add(100*time.Millisecond); x.now < end; {
				for ; next <= x.now; next = next.Add(gap) {
					owed = min(owed+1, 64)
				}
				was := clk.Now()
				for ; owed > 0 && x.now >= until; owed-- {
					x.push(0, 0, frameLong(1, long), frameLong(2, long))
				}
				if owed > 0 {
					paused++
				}
				for ; little <= x.now; little = little.Add(10 * gap) {
					x.push(1, 0, frameLong(1, long)) // little comes by the other worker
				}
				x.advance(0)
				if busy := clk.Now().Sub(was); busy > 0 {
					x.now = x.now.Add(busy)
				} else {
					x.now = max(x.now+1, min(next, x.inst.NextTick()))
				}
				r := x.Result()
				dropped += len(r.Dropped)
				for _, f := range r.Out["p0"] {
					if q, ok := hop.DecodePause(f.Bytes, 0); ok {
						until = x.now.Add(hop.PauseTime(q, 1e11))
					}
				}
			}
			if n := int(x.board(1).near.came); n != c.want || (paused > 0) != (c.want > 0) || dropped > 0 {
				t.Errorf("the other worker took a DAG %d times; %d times paused, %d dropped; %+v %v", n, paused, dropped, b.placing.toil, b.gates.anyAskedToSlow())
			}
		})
	}
}

// stride is a clock that is so much later each time that somebody looks.
type stride struct {
	now  clock.Time
	step time.Duration
}

func (s *stride) Now() clock.Time {
	s.now = s.now.Add(s.step)
	return s.now
}

// TestPeerRelievesWorker: a board whose worker has not the time for all frames, as it was measured what they cost, has the DAG that takes
// most of it go to a peer, where it stays while as much comes.
func TestPeerRelievesWorker(t *testing.T) {
	r := newRack(t, []string{pair(4), pair(4)}, "fair", "off", "store", "1M")
	b := r.members[0].App().(*board)
	b.split.spent.clock = &stride{step: 150 * time.Microsecond} // for each frame that is measured
	r.run(20 * time.Millisecond)
	sent := 0
	offer := func(d, gap time.Duration) {
		r.run(d, func() {
			if r.now%gap == 0 {
				sent++
				r.push(0, "p0", seq(2, sent))
			}
		})
	}
	offer(400*time.Millisecond, 200*time.Microsecond)
	if s := r.state(0, 8); s != "ready" {
		t.Fatalf("with time for all frames it is %s; %+v", s, b.placing.toil)
	}
	offer(400*time.Millisecond, 100*time.Microsecond)
	if s := r.state(0, 8); s != "at peer 1" {
		t.Errorf("without, it is %s; %+v", s, b.placing.toil)
	}
	if p := b.near.pool; p.sent < 3000 {
		t.Errorf("%d frames went there: it goes to and fro", p.sent)
	}
	offer(800*time.Millisecond, 400*time.Microsecond)
	if s := r.state(0, 8); s != "ready" {
		t.Errorf("with time for all frames again, it is %s; %+v", s, b.placing.toil)
	}
	r.run(100 * time.Millisecond)
	inOrder(t, r.flush(0, "p1"), 1)
	if len(r.members[0].drop)+len(r.members[1].drop) > 0 {
		t.Errorf("dropped: %v %v", r.members[0].drop, r.members[1].drop)
	}
}

// TestPeersWithoutTime: boards that have no time for more, but regions, are not asked to help.
func TestPeersWithoutTime(t *testing.T) {
	r := newRack(t, []string{pair(4), pair(4)}, "fair", "off", "store", "1M")
	for _, m := range r.members {
		m.App().(*board).split.spent.clock = &stride{step: 150 * time.Microsecond}
	}
	r.run(20 * time.Millisecond)
	sent := 0
	r.run(200*time.Millisecond, func() {
		if r.now%(100*time.Microsecond) == 0 {
			sent++
			r.push(0, "p0", seq(2, sent))
			r.push(1, "p0", seq(1, sent))
		}
	})
	if a, b := r.state(0, 8), r.state(1, 7); a != "ready" || b != "ready" {
		t.Errorf("they are %s and %s", a, b)
	}
	for i, m := range r.members {
		if p := m.App().(*board).near.pool; p.sent > 0 || len(m.drop) > 0 {
			t.Errorf("board %d has sent %d; %v", i, p.sent, m.drop)
		}
	}
}
