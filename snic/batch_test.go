package snic

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// probe passes frames on, and notes how many come at a time. One that is late keeps every second frame until the next comes,
// and does not say so.
type probe struct {
	came *[]int
	late bool
	kept *packet.Buf
}

func (p *probe) Push(c *graph.Ctx, in int, b *packet.Batch) {
	*p.came = append(*p.came, b.Len())
	for _, x := range b.Bufs() {
		if p.late && p.kept == nil {
			p.kept = x
			continue
		}
		if p.late {
			c.Emit(1-in, p.kept)
			p.kept = nil
		}
		c.Emit(1-in, x)
	}
}

// probes are kinds of which it is known that they make no frames, and one of which nothing is known.
func probes(came map[string]*[]int) (all []graph.Kind) {
	two := []string{"a", "b"}
	for _, name := range []string{"quiet", "end", "late", "unknown"} {
		came[name] = new([]int)
		k := graph.Kind{Name: name, In: two, Out: two, Effects: graph.Always(effect.Effects{}),
			New: func(graph.Env, graph.Args) (graph.App, error) {
				return &probe{came: came[name], late: name == "late"}, nil
			}}
		if name == "unknown" {
			k.Effects = nil
		}
		all = append(all, k)
	}
	return append([]graph.Kind{*Kind(all...)}, all...)
}

// Frames of several DAGs come to a task together, and each goes on through the tasks of its own DAG: where the task's time is
// modelled if it makes no frames of its own, and else if the DAGs have the same tasks.
func TestBatchOfSeveralDAGs(t *testing.T) {
	for _, x := range []struct {
		kind, more, rest string
		want             []int
	}{
		{"quiet", ", latency: 1us", "", []int{60}},
		{"quiet", ", latency: 1us", " -> e", []int{60}},
		{"unknown", ", latency: 1us", "", []int{20, 20, 20}},
		{"quiet", "", "", []int{60}},
		{"unknown", "", "", []int{60}},
		{"unknown", "", " -> e", []int{20, 40}},
	} {
		text := fmt.Sprintf(`
regions: {count: 4, area: 4}
tasks:
  t: {kind: %s%s, credits: 64}
  e: {kind: end, reads: [payload]}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: t%s}, {uid: 2, tenant: v, run: t}, {uid: 3, tenant: v, run: t}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}, {match: "src:10.0.0.3", dag: 3}]
`, x.kind, x.more, x.rest)
		came := map[string]*[]int{}
		g := graphtest.NewOuter(t, probes(came), graph.Args{"deployment": text, "fair": "off"})
		g.Advance(20 * time.Millisecond)
		var frames [][]byte
		for i := range 60 {
			frames = append(frames, frame(byte(i%3+1), fmt.Sprintf("%08d", i)))
		}
		out := len(g.Push("p0", frames...).Out["p1"]) + len(g.Advance(time.Millisecond).Out["p1"])
		ends := 0
		for _, n := range *came["end"] {
			ends += n
		}
		if out != 60 || !slices.Equal(*came[x.kind], x.want) || ends != map[string]int{"": 0, " -> e": 20}[x.rest] {
			t.Errorf("%s%s%s: %d came out, in batches of %v, %d through e", x.kind, x.more, x.rest, out, *came[x.kind], ends)
		}
	}
}

// What a task costs is known of each DAG, though frames of several come to it together: a batch that is timed is of one.
func TestCostOfEachDAG(t *testing.T) {
	for _, more := range []string{"", ", latency: 1us"} {
		var clk *clock.Manual
		two := []string{"a", "b"}
		kinds := []graph.Kind{{}, {Name: "burn", In: two, Out: two, Effects: graph.Always(effect.Effects{}), New: func(graph.Env, graph.Args) (graph.App, error) {
			return pushing(func(c *graph.Ctx, in int, b *packet.Batch) {
				for _, x := range b.Bufs() {
					if x.Bytes()[29] == 1 {
						clk.Advance(time.Microsecond)
					}
					clk.Advance(10 * time.Nanosecond)
					c.Emit(1-in, x)
				}
			}), nil
		}}}
		kinds[0] = *Kind(kinds[1:]...)
		x := graphtest.NewOuter(t, kinds, graph.Args{"fair": "off", "deployment": fmt.Sprintf(`
regions: {count: 1, area: 1}
tasks: {a: {kind: burn, credits: 64%s}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: u, run: a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`, more)})
		clk = x.Clock
		b := boardOf(x)
		b.split.spent.clock = clk
		x.Advance(20 * time.Millisecond)
		x.Push("p0", frame(2, "a"))
		x.Advance(10 * time.Microsecond)
		for n := range 600 {
			frames := [][]byte{frame(1, "a"), frame(2, "b"), frame(2, "c")}
			if n%2 > 0 {
				slices.Reverse(frames)
			}
			x.Push("p0", frames...)
			x.Advance(10 * time.Microsecond)
		}
		if u, v := b.cat.services[0].costs[0], b.cat.services[1].costs[0]; u != 1010 || v != 10 {
			t.Errorf("%q: a packet of one DAG costs %v ns, of the other %v, not 1010 and 10", more, u, v)
		}
	}
}

// A worker that loses the processor while it measures a task for the first time takes the task for no slower than it is: nothing is refused.
func TestFirstCostMeasuredAway(t *testing.T) {
	var clk *clock.Manual
	first := true
	two := []string{"a", "b"}
	kinds := []graph.Kind{{}, {Name: "burn", In: two, Out: two, Effects: graph.Always(effect.Effects{}), New: func(graph.Env, graph.Args) (graph.App, error) {
		return pushing(func(c *graph.Ctx, in int, b *packet.Batch) {
			if first {
				first = false
				clk.Advance(145 * time.Millisecond)
			}
			for _, x := range b.Bufs() {
				clk.Advance(10 * time.Nanosecond)
				c.Emit(1-in, x)
			}
		}), nil
	}}}
	kinds[0] = *Kind(kinds[1:]...)
	x := graphtest.NewOuter(t, kinds, graph.Args{"deployment": `
regions: {count: 1, area: 1}
tasks: {a: {kind: burn, credits: 64}}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`})
	clk = x.Clock
	b := boardOf(x)
	b.split.spent.clock = clk
	if err := b.split.deployShares(clk.Now()); err != nil {
		t.Fatal(err)
	}
	x.Advance(20 * time.Millisecond)
	x.Push("p0", frame(1, "a"), frame(2, "b"))
	x.Advance(10 * time.Microsecond)
	many := slices.Repeat([][]byte{frame(1, "c"), frame(2, "d")}, 50)
	for range 10 {
		x.Push("p0", many...)
		x.Advance(10 * time.Microsecond)
	}
	x.Advance(time.Millisecond)
	for i := range b.cat.services {
		if d := &b.cat.services[i]; d.throttled > 0 || d.cost > 11 {
			t.Errorf("DAG %d: a frame is taken to cost %.0f ns, and %d of %d were refused", d.UID, d.cost, d.throttled, d.packets)
		}
	}
}

// pushing is an app that is a function.
type pushing func(c *graph.Ctx, in int, b *packet.Batch)

func (f pushing) Push(c *graph.Ctx, in int, b *packet.Batch) { f(c, in, b) }

// Of two tasks side by side that only look at a frame, one keeps it, and has not said that it may: the other does not get it,
// and it is dropped as one that there is no copy of. It is given back once.
func TestKeptBesideOthers(t *testing.T) {
	came := map[string]*[]int{}
	x := graphtest.NewOuter(t, probes(came), graph.Args{"fair": "off", "deployment": `
regions: {count: 2, area: 4}
tasks:
  a: {kind: late, latency: 1us}
  b: {kind: end, latency: 2us}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a -> b}]
rules: [{match: all, dag: 1}]
`})
	x.Advance(20 * time.Millisecond)
	const n = 10
	out, dropped := 0, 0
	for i := range n {
		for _, r := range []graphtest.Result{x.Push("p0", frame(byte(i), "")), x.Advance(10 * time.Microsecond)} {
			out += len(r.Out["p1"])
			for _, f := range r.Dropped {
				if dropped++; f.Reason != "no-copy" {
					t.Errorf("dropped as %s", f.Reason)
				}
			}
		}
		if err := boardOf(x).runner.sched.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if out != n/2 || dropped != n/2 || len(*came["end"]) != n/2 || x.Pool.InUse() != 0 {
		t.Errorf("%d came out, %d were dropped, %v came to the other, %d are in use", out, dropped, *came["end"], x.Pool.InUse())
	}
}
