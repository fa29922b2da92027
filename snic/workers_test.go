package snic

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// tap is a queue of a port that yields so many frames, and takes everything.
type tap struct {
	pool *packet.Pool
	odd  bool
	left int
	got  int
}

func (p *tap) Name() string                                     { return "tap" }
func (p *tap) Pool() *packet.Pool                               { return p.pool }
func (p *tap) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (p *tap) Stats() port.Stats                                { return port.Stats{} }
func (p *tap) Close() error                                     { return nil }

func (p *tap) Rx(b *packet.Batch) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := 0
	for p.left > 0 && n < 8 {
		x := p.pool.Get()
		if x == nil {
			break
		}
		f := frame(byte(p.left%3+1), "00000000-.")
		if p.odd {
			f = back(byte(p.left%3+1), "00000000-.")
		}
		x.SetBytes(f)
		b.Add(x)
		p.left--
		n++
	}
	return n, nil
}

func (p *tap) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		p.got++
		x.Put()
	}
	b.Shift(n)
	return n, nil
}

// A board of two workers is redeployed under traffic.
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
		ports["x"] = append(ports["x"], &tap{pool: pool, left: 20_000})
		ports["y"] = append(ports["y"], &tap{pool: pool, left: 20_000, odd: true})
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: scripts(), Ports: ports, Clock: clock.NewWall(), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- inst.Run(t.Context()) }()
	for i := range 20 {
		if _, err := inst.Set("nic", graph.Args{"deployment": text(string(rune('a' + i%2)))}); err != nil {
			t.Error(err)
		}
		inst.Counters()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := inst.Conservation(); err != nil {
		t.Error(err)
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	for w, pool := range pools {
		if n := pool.InUse(); n != 0 {
			t.Errorf("worker %d: %d buffers are still in use", w, n)
		}
		for _, name := range []string{"x", "y"} {
			if n := ports[name][w].(*tap).got; n < 1000 {
				t.Errorf("worker %d has sent %d by %s", w, n, name)
			}
		}
	}
}
