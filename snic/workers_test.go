package snic

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// sink is a port that takes everything.
type sink struct {
	pool *packet.Pool
	got  int
}

func (s *sink) Name() string                                     { return "sink" }
func (s *sink) Pool() *packet.Pool                               { return s.pool }
func (s *sink) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (s *sink) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (s *sink) Stats() port.Stats                                { return port.Stats{} }
func (s *sink) Close() error                                     { return nil }
func (s *sink) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		s.got++
		x.Put()
	}
	b.Shift(n)
	return n, nil
}

// Two workers are boards of their own, redeployed together under traffic.
func TestWorkers(t *testing.T) {
	text := func(letter string) string {
		return fmt.Sprintf(`
regions: {count: 1, area: 2}
tasks: {a: {kind: hold, args: {letter: %s, time: 30us}}, b: {kind: quick, args: {letter: b}, throughput: 10Gbit}}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a -> b}, {uid: 2, tenant: v, run: b}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`, letter)
	}
	spec := &graph.Spec{
		Ports: map[string]graph.PortSpec{"x": {Kind: "test"}, "y": {Kind: "test"}},
		Apps:  map[string]graph.AppSpec{"nic": {Kind: "snic", Args: graph.Args{"deployment": text("a"), "packets": "256", "flows": "64"}}},
		Links: []string{"x.out -> nic.p0", "nic.p1 -> y.in", "y.out -> nic.p1", "nic.p0 -> x.in"},
	}
	ports := map[string][]port.Port{}
	var pools []*packet.Pool
	for range 2 {
		pool, err := packet.NewPool(1024, 2048, nil)
		if err != nil {
			t.Fatal(err)
		}
		pools = append(pools, pool)
		ports["x"] = append(ports["x"], &sink{pool: pool})
		ports["y"] = append(ports["y"], &sink{pool: pool})
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: scripts(), Ports: ports, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			now := clock.Time(time.Second)
			var b packet.Batch
			for i := range 3000 {
				now = now.Add(10 * time.Microsecond)
				b.Reset()
				for k := range 8 {
					x := pools[w].Get()
					if x == nil {
						t.Error("no buffer")
						return
					}
					f, in := frame(byte(k%3+1), fmt.Sprintf("%08d-.", i)), "x"
					if i%3 == 0 {
						f = back(byte(k%3+1), fmt.Sprintf("%08d-.", i))
					}
					x.SetBytes(f)
					b.Add(x)
					if k == 7 {
						if i%3 == 0 {
							in = "y"
						}
						if err := inst.PushTo(w, in, now, &b); err != nil {
							t.Error(err)
							return
						}
					}
				}
				runtime.Gosched()
			}
		})
	}
	for i := range 20 {
		if _, err := inst.Set("nic", graph.Args{"deployment": text(string(rune('a' + i%2)))}); err != nil {
			t.Error(err)
		}
		inst.Counters()
		runtime.Gosched()
	}
	wg.Wait()
	for range 2000 {
		if _, err := inst.Step(clock.Time(2 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if err := inst.Conservation(); err != nil {
		t.Error(err)
	}
	for w := range 2 {
		if n := ports["y"][w].(*sink).got; n < 3000 {
			t.Errorf("worker %d has sent %d", w, n)
		}
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	for w, pool := range pools {
		if n := pool.InUse(); n != 0 {
			t.Errorf("worker %d: %d buffers are still in use", w, n)
		}
	}
}
