package snic

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// nothing passes frames on: a task that costs as little as one can.
type nothing struct{}

func (nothing) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Emit(1-in, x)
	}
}

func idle() graph.Kind {
	two := []string{"a", "b"}
	return graph.Kind{Name: "nothing", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return nothing{}, nil }}
}

// load is a batch of frames of so many tenants, one flow each.
func load(tenants int) (string, [][]byte) {
	text := "regions: {count: 4, area: 8}\ntasks:\n"
	run := ""
	for i := range 4 {
		text += fmt.Sprintf("  t%d: {kind: nothing}\n", i)
		if i > 0 {
			run += " -> "
		}
		run += fmt.Sprintf("t%d", i)
	}
	text += "tenants:\n"
	for i := range tenants {
		text += fmt.Sprintf("  u%d: {}\n", i)
	}
	text += "dags:\n"
	for i := range tenants {
		text += fmt.Sprintf("  - {uid: %d, tenant: u%d, run: t0}\n", i+1, i)
	}
	text += "rules:\n"
	for i := range tenants {
		text += fmt.Sprintf("  - {match: 'src:10.0.0.%d', dag: %d}\n", i+1, i+1)
	}
	var frames [][]byte
	for i := range packet.MaxBatch {
		frames = append(frames, frame(byte(i%tenants+1), "0123456789012345678901"))
	}
	return text, frames
}

// The whole way of a frame through a board whose task does nothing, beside that
// task alone: the difference is parsing, classification, admission, credits and
// dispatch.
func BenchmarkBoard(b *testing.B) {
	for _, tenants := range []int{1, 4, 16} {
		text, frames := load(tenants)
		for _, fair := range []string{"on", "off"} {
			b.Run(fmt.Sprintf("tenants=%d/fair=%s", tenants, fair), func(b *testing.B) {
				l := graphtest.NewOuterLoop(b, []graph.Kind{*Kind(declared()...), idle()}, graph.Args{"deployment": text, "fair": fair, "port-rate": "10000G"}, "p0", frames...)
				l.Wait(20 * time.Millisecond)
				l.Benchmark(b)
			})
		}
	}
	b.Run("alone", func(b *testing.B) {
		_, frames := load(1)
		graphtest.Benchmark(b, idle(), nil, "a", frames...)
	})
}

// A board whose tasks' time is modelled: each packet is scheduled by itself. Four tasks that take
// none, one after the other and side by side on copies; and one whose frame is long.
func BenchmarkFull(b *testing.B) {
	for _, parallel := range []string{"off", "on"} {
		for _, size := range []int{64, 1400} {
			b.Run(fmt.Sprintf("parallel=%s/bytes=%d", parallel, size), func(b *testing.B) {
				text := "regions: {count: 4, area: 8}\ntasks:\n"
				for i := range 4 {
					text += fmt.Sprintf("  t%d: {kind: nothing, reads: [ports], latency: 100ns, credits: 1000}\n", i)
				}
				text += "tenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: t0 -> t1 -> t2 -> t3}]\nrules: [{match: all, dag: 1}]\n"
				var frames [][]byte
				for i := range packet.MaxBatch {
					frames = append(frames, wordy(i, byte(i), 6, size))
				}
				l := graphtest.NewOuterLoop(b, []graph.Kind{*Kind(declared()...), idle()}, graph.Args{"deployment": text, "parallel": parallel, "port-rate": "10000G"}, "p0", frames...)
				l.Wait(20 * time.Millisecond)
				l.Benchmark(b)
			})
		}
	}
}
