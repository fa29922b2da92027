package snic

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// burner takes a known time of the graph's clock for each frame, by its sender.
type burner struct {
	clock *clock.Manual
	each  time.Duration
	of    func(src byte) time.Duration // nil: all take each
}

func (s *burner) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if s.of != nil {
			s.clock.Advance(s.of(x.Bytes()[29]))
		} else {
			s.clock.Advance(s.each)
		}
		c.Emit(1-in, x)
	}
}

// rival is a tenant that sends a frame every gap, at times that are not quite regular.
type rival struct {
	frame  []byte
	gap    time.Duration
	weight string
	from   time.Duration // it begins so long after the others
}

// contest is a worker whose port has a ring of 1024 frames: what comes while it is at work waits there, and what finds no
// room is lost.
type contest struct {
	rivals []rival
	args   graph.Args
	of     func(src byte) time.Duration // what a frame takes in the task
	during time.Duration                // the latter half of it counts
}

// own is what a frame takes of a worker besides tasks.
const own = 50 * time.Nanosecond

// run returns how much was sent, and came out.
func (t *contest) run(tb testing.TB) (sent, out []int, b *board) {
	const ring = 1024
	hot := &burner{of: t.of}
	two := []string{"a", "b"}
	kinds := []graph.Kind{*Kind(), {Name: "burn", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return hot, nil }}}
	text := "regions: {count: 1, area: 1}\ntasks: {a: {kind: burn, reads: [ports]}}\ntenants:\n"
	dags, rules := "dags:\n", "rules:\n"
	for i, r := range t.rivals {
		text += fmt.Sprintf("  u%d: {weight: %s}\n", i+1, cmp.Or(r.weight, "1"))
		dags += fmt.Sprintf("- {uid: %d, tenant: u%d, run: a}\n", i+1, i+1)
		rules += fmt.Sprintf("- {match: 'src:10.0.0.%d', dag: %d}\n", i+1, i+1)
	}
	args := graph.Args{"burst": "4k", "deployment": text + dags + rules}
	maps.Copy(args, t.args)
	x := newCrew(tb, kinds, 1, args)
	clk := clock.NewManual(x.now)
	hot.clock = clk
	b = x.board(0)
	b.split.spent.clock = clk // it moves while a breath lasts
	if err := b.split.deployShares(x.now); err != nil {
		tb.Fatal(err)
	}
	x.advance(20 * time.Millisecond)
	clk.Set(x.now)
	rng := rand.New(rand.NewPCG(1, 1))
	start, half := x.now, x.now.Add(t.during/2)
	var next []clock.Time
	for _, r := range t.rivals {
		next = append(next, start.Add(r.from))
	}
	sent, out = make([]int, len(next)), make([]int, len(next))
	lost := make([]int, len(next))
	var queue []byte
	x.ends[0][0].rx = func(batch *packet.Batch) {
		for now := clk.Now(); slices.Min(next) <= now; {
			k := slices.Index(next, slices.Min(next))
			if next[k] > half {
				sent[k]++
			}
			if len(queue) < ring {
				queue = append(queue, byte(k))
			} else if next[k] > half {
				lost[k]++
			}
			next[k] = next[k].Add(time.Duration(1 + rng.Int64N(int64(2*t.rivals[k].gap))))
		}
		n := min(len(queue), packet.MaxBatch)
		for _, k := range queue[:n] {
			y := x.pools[0].Get()
			if y == nil || !y.SetBytes(t.rivals[k].frame) || !batch.Add(y) {
				tb.Fatal("no room for a frame")
			}
		}
		queue = append(queue[:0], queue[n:]...)
		clk.Advance(time.Duration(n) * own)
	}
	for x.now < start.Add(t.during) {
		if _, err := x.inst.Step(x.now); err != nil {
			tb.Fatal(err)
		}
		for _, f := range x.Result().Out["p1"] {
			if x.now > half {
				out[f.Bytes[29]-1]++
			}
		}
		if len(queue) == 0 && clk.Now() == x.now {
			clk.Set(max(x.now+1, min(slices.Min(next), x.inst.NextTick())))
		}
		x.now = clk.Now()
	}
	x.ends[0][0].rx = nil
	tb.Logf("%v: of %d, %d were lost at the port, and %d came out; a frame takes %.0f ns to look at, %.0f ns to go on", t.args, sent, lost, out, b.split.spent.look, b.split.spent.onward)
	return sent, out, b
}

// besideFlood is a tenant u that sends one frame every small beside a tenant v that sends one every flood, all of which take each. It returns
// which part of each came out.
func besideFlood(t *testing.T, fair string, small, flood, each, d time.Duration) (u, v float64, board *board) {
	return besideFloodOf(t, fair, frame(2, "0123456789"), small, flood, each, d)
}

// besideFloodOf is besideFlood, with the flood's frame.
func besideFloodOf(t *testing.T, fair string, floods []byte, small, flood, each, d time.Duration) (u, v float64, board *board) {
	x := contest{
		rivals: []rival{{frame: frame(1, "0123456789"), gap: small}, {frame: floods, gap: flood}},
		args:   graph.Args{"fair": fair}, of: func(byte) time.Duration { return each }, during: d,
	}
	sent, out, b := x.run(t)
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
// floods of small and of large frames. The part is what it asks for, or half of the time that is left when all frames were looked at, where it
// asks for more. And all of that time is used.
func TestFairByMeasuredCost(t *testing.T) {
	for _, each := range []time.Duration{500 * time.Nanosecond, 2 * time.Microsecond, 5 * time.Microsecond, 20 * time.Microsecond, 100 * time.Microsecond} {
		for _, size := range []int{60, 1514} {
			floods := frameLong(2, fmt.Sprintf("%0*d", size-payload, 0))
			for _, rate := range []int{1, 2, 4, 8} { // million frames a second
				if rate != 4 && size > 60 || testing.Short() && (rate != 4 || size > 60) {
					continue
				}
				for _, asks := range []float64{.12, .4, 1} { // parts of the worker
					t.Run(fmt.Sprintf("%v/%d bytes/%d Mpps/asks %v", each, size, rate, asks), func(t *testing.T) {
						flood := time.Second / time.Duration(rate*1e6)
						u, v, _ := besideFloodOf(t, "on", floods, time.Duration(float64(each)/asks), flood, each, 200*time.Millisecond)
						work := 1 - own.Seconds()*(float64(rate)*1e6+asks/each.Seconds()) // what looking at all frames leaves
						part := u * asks / min(asks, max(work/2, work-float64(rate)*1e6*each.Seconds()))
						used := (u*asks + v*each.Seconds()*float64(rate)*1e6) / min(work, asks+float64(rate)*1e6*each.Seconds())
						t.Logf("%.1f %% of its part; %.1f %% of the time is used", 100*part, 100*used)
						if part < .95 || used < .95 {
							t.Errorf("it gets %.3f of its part, and %.3f of the time is used", part, used)
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
