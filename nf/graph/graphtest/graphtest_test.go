package graphtest_test

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// sieve passes even first bytes, drops 1, punts 3, and beats once a second.
func sieve() graph.Kind {
	return graph.Kind{
		Name: "sieve", In: []string{"in"}, Out: []string{"out"},
		Reasons: []counter.Def{{Name: "odd"}, {Name: "strange"}, {Name: "fine"}},
		New:     func(graph.Env, graph.Args) (graph.App, error) { return sieveApp{}, nil },
	}
}

type sieveApp struct{}

func (sieveApp) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		switch x.Bytes()[0] {
		case 1:
			c.Drop(x, 0)
		case 3:
			c.Punt(x, 1)
		default:
			c.Mark(x, packet.Rewritten, 2)
			c.Emit(0, x)
		}
	}
}

func (sieveApp) Tick(c *graph.Ctx) clock.Time {
	if x := c.Get(); x != nil {
		x.SetBytes([]byte{0xBE})
		c.Emit(0, x)
	}
	return c.Now().Add(time.Second)
}

func TestVerdicts(t *testing.T) {
	x := graphtest.New(t, sieve(), nil)
	got := x.Push("in", []byte{0}, []byte{1}, []byte{2}, []byte{3})
	out := got.Out["out"]
	// The first timer runs in the first breath.
	if len(out) != 3 || out[0].Bytes[0] != 0xBE || out[0].Verdict != packet.Generated {
		t.Fatalf("out: %v", out)
	}
	if out[1].Bytes[0] != 0 || out[2].Bytes[0] != 2 || out[1].Reason != "fine" || out[1].Verdict != packet.Rewritten {
		t.Errorf("out: %v", out)
	}
	if len(got.Dropped) != 1 || got.Dropped[0].Reason != "odd" || got.Dropped[0].Bytes[0] != 1 {
		t.Errorf("dropped: %v", got.Dropped)
	}
	if len(got.Punted) != 1 || got.Punted[0].Reason != "strange" || got.Punted[0].Bytes[0] != 3 {
		t.Errorf("punted: %v", got.Punted)
	}
	for name, want := range map[string]uint64{"in": 4, "out": 3, "generated": 1, "dropped": 1, "punted": 1, "odd": 1, "fine": 2} {
		if v := x.Counter(name); v != want {
			t.Errorf("%s = %d, want %d", name, v, want)
		}
	}
	if got := x.Advance(2500 * time.Millisecond); len(got.Out["out"]) != 2 {
		t.Errorf("%d beats in 2.5 s", len(got.Out["out"]))
	}
}

func TestAllocs(t *testing.T) {
	if n := graphtest.Allocs(t, sieve(), nil, "in", []byte{0}, []byte{1}, []byte{2}, []byte{3}); n != 0 {
		t.Errorf("%v allocations a breath", n)
	}
}

func BenchmarkWire(b *testing.B) {
	frames := make([][]byte, packet.MaxBatch)
	for i := range frames {
		frames[i] = make([]byte, 64)
	}
	graphtest.Benchmark(b, graph.Builtin()[0], nil, "a", frames...)
}
