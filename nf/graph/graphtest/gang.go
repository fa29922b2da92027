package graphtest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Gang runs one app with two inputs and outputs, a and b, and several workers, which
// may all take frames at the same time. What the app keeps beyond its process lies in the Gang's memory.
type Gang struct {
	Inst *graph.Instance
	Now  clock.Time
	// Quiet: what is sent is forgotten at once, and nothing is allocated.
	Quiet bool

	t     testing.TB
	ports [2][]*queue // a and b, by worker
}

// queue is a port of one worker: it yields nothing, and keeps what is sent to it.
type queue struct {
	x    *Gang
	name string
	pool *packet.Pool
	sent [][]byte
}

func (q *queue) Name() string                                     { return q.name }
func (q *queue) Pool() *packet.Pool                               { return q.pool }
func (q *queue) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (q *queue) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (q *queue) Stats() port.Stats                                { return port.Stats{} }
func (q *queue) Close() error                                     { return nil }
func (q *queue) Tx(b *packet.Batch) (int, error) {
	for _, y := range b.Bufs() {
		if !q.x.Quiet {
			q.sent = append(q.sent, slices.Clone(y.Bytes()))
		}
	}
	n := b.Len()
	b.PutAll()
	return n, nil
}

// NewGang makes an app of kind with so many workers.
func NewGang(t testing.TB, kind graph.Kind, workers int, args graph.Args) *Gang {
	t.Helper()
	x := &Gang{t: t, Now: Start}
	cfg := graph.Config{Kinds: []graph.Kind{kind}, Ports: map[string][]port.Port{}, Seed: 1,
		Memory: func(_ string, size int) ([]byte, error) { return make([]byte, size), nil }, Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"pa": {Kind: "test"}, "pb": {Kind: "test"}},
			Apps:  map[string]graph.AppSpec{App: {Kind: kind.Name, Args: args}},
			Links: []string{"pa.out -> app.a", "app.b -> pb.in", "pb.out -> app.b", "app.a -> pa.in"},
		}}
	for range workers {
		pool, err := packet.NewPool(Slots, 2048, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"pa", "pb"} {
			q := &queue{x: x, name: name, pool: pool}
			x.ports[i] = append(x.ports[i], q)
			cfg.Ports[name] = append(cfg.Ports[name], q)
		}
	}
	var err error
	if x.Inst, err = graph.New(cfg); err != nil {
		t.Fatal(err)
	}
	return x
}

// Benchmark has each worker push the same frames to port a (0) or b (1) again and again, all at the same time, and
// reports ns/packet of all of them together.
func (x *Gang) Benchmark(b *testing.B, port int, frames [][]byte) {
	x.Quiet = true
	workers := len(x.ports[0])
	rounds := max(1, b.N/(workers*len(frames)))
	var wg sync.WaitGroup
	b.ResetTimer()
	for w := range workers {
		wg.Go(func() {
			var batch packet.Batch
			q, now := x.ports[port][w], x.Now
			for range rounds {
				for _, f := range frames {
					y := q.pool.Get()
					if y == nil || !y.SetBytes(f) || !batch.Add(y) {
						x.t.Error("no room for a frame")
						return
					}
				}
				now += 1000
				if err := x.Inst.PushTo(w, q.name, now, &batch); err != nil {
					x.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rounds*workers*len(frames)), "ns/packet")
}

// Push gives a worker frames that came by port a (0) or b (1).
func (x *Gang) Push(worker, port int, frames [][]byte) {
	var b packet.Batch
	q := x.ports[port][worker]
	for _, f := range frames {
		y := q.pool.Get()
		if y == nil || !y.SetBytes(f) || !b.Add(y) {
			x.t.Error("no room for a frame")
			return
		}
	}
	if err := x.Inst.PushTo(worker, q.name, x.Now, &b); err != nil {
		x.t.Error(err)
	}
}

// Took is what all workers sent by a port, and forgets it; each worker's in its
// order.
func (x *Gang) Took(port int) (frames [][]byte) {
	for _, q := range x.ports[port] {
		frames = append(frames, q.sent...)
		q.sent = nil
	}
	return frames
}

// Close ends the app, whose counters it returns.
func (x *Gang) Close() map[string]uint64 {
	x.t.Helper()
	count := map[string]uint64{}
	for _, c := range x.Inst.Counters() {
		count[c.Name] += c.Value
	}
	if err := x.Inst.Conservation(); err != nil {
		x.t.Error(err)
	}
	if err := x.Inst.Close(); err != nil {
		x.t.Error(err)
	}
	return count
}
