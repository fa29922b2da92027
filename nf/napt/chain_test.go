package napt

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/vxlan"
)

// sink is a port that yields nothing, and keeps the last frame that is sent to it.
type sink struct {
	name string
	pool *packet.Pool
	last []byte
	n    uint64
}

func (s *sink) Name() string                                     { return s.name }
func (s *sink) Pool() *packet.Pool                               { return s.pool }
func (s *sink) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (s *sink) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (s *sink) Stats() port.Stats                                { return port.Stats{TxPackets: s.n} }
func (s *sink) Close() error                                     { return nil }
func (s *sink) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	s.n += uint64(n)
	for _, x := range b.Bufs() {
		s.last = append(s.last[:0], x.Bytes()...)
		x.Put()
	}
	b.Shift(n)
	return n, nil
}

// chain is firewall, NAPT and VXLAN in one graph, in memory.
type chain struct {
	t     testing.TB
	inst  *graph.Instance
	pool  *packet.Pool
	ports [2]*sink // plain, tunnel
	batch packet.Batch
	now   clock.Time
}

func newChain(t testing.TB) *chain {
	pool, err := packet.NewPool(1024, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &chain{t: t, pool: pool, now: graphtest.Start, ports: [2]*sink{{name: "plain", pool: pool}, {name: "tunnel", pool: pool}}}
	c.inst, err = graph.New(graph.Config{
		Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"plain": {Kind: "test"}, "tunnel": {Kind: "test"}},
			Apps: map[string]graph.AppSpec{
				"fw":  {Kind: "firewall", Args: graph.Args{"rules": "allow+in:a", "half-per-source": "100000"}},
				"nat": {Kind: "napt", Args: args("mappings", "65536", "sessions", "131072")},
				"vx": {Kind: "vxlan", Args: graph.Args{"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2",
					"local-mac": "02:00:00:00:00:11", "remote-mac": "02:00:00:00:00:12"}},
			},
			Links: []string{"plain.out -> fw.a", "fw.b -> nat.a", "nat.b -> vx.a", "vx.b -> tunnel.in",
				"tunnel.out -> vx.b", "vx.a -> nat.b", "nat.a -> fw.b", "fw.a -> plain.in"},
		},
		Kinds: []graph.Kind{*firewall.Kind(), *Kind(), *vxlan.Kind()},
		Ports: map[string][]port.Port{"plain": {c.ports[0]}, "tunnel": {c.ports[1]}},
		Clock: clock.NewManual(c.now), Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.inst.Conservation(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *chain) push(in string, frames ...[]byte) {
	c.now += 1000
	for _, f := range frames {
		b := c.pool.Get()
		if b == nil || !b.SetBytes(f) {
			c.t.Fatal("no buffer")
		}
		c.batch.Add(b)
	}
	if err := c.inst.Push(in, c.now, &c.batch); err != nil {
		c.t.Fatal(err)
	}
}

// flows are 64 UDP packets.
func flows(t testing.TB) (frames [][]byte) {
	for i := range packet.MaxBatch {
		frames = append(frames, pkt{proto: "udp", src: fmt.Sprintf("10.0.%d.1:5000", i), dst: far + ":80", payload: "0123456789abcdef"}.bytes(t))
	}
	return frames
}

// TestChain: a packet goes through all three, its answer comes back, and nothing
// is allocated.
func TestChain(t *testing.T) {
	c := newChain(t)
	all := flows(t)
	c.push("plain", all...)
	if n := c.ports[1].n; n != packet.MaxBatch {
		t.Fatalf("%d packets leave", n)
	}
	out := slices.Clone(c.ports[1].last)
	var d hdr.Layers
	if !hdr.Walk(out[50:], &d) || d.Proto != hdr.ProtoUDP || !sums(out[50:]) || hdr.IPv4(out[50+14:]).Src().String() != pub || be.Uint32(out[46:]) != 5000<<8 {
		t.Fatalf("%x", out)
	}
	// The answer: all ends are exchanged.
	back := slices.Clone(out)
	swap := func(a, b, n int) { copy(back[a:a+n], out[b:b+n]); copy(back[b:b+n], out[a:a+n]) }
	swap(0, 6, 6)
	swap(26, 30, 4)
	for _, at := range []int{50} {
		swap(at, at+6, 6)
		swap(at+26, at+30, 4)
		swap(at+34, at+36, 2)
	}
	c.push("tunnel", back)
	got := c.ports[0].last
	if c.ports[0].n != 1 || !sums(got) || hdr.IPv4(got[14:]).Dst().String() != "10.0.63.1" {
		t.Fatalf("%x", got)
	}
	if n := testing.AllocsPerRun(100, func() { c.push("plain", all...) }); n != 0 {
		t.Errorf("%v allocations a breath", n)
	}
}

// BenchmarkChain is firewall, NAPT and VXLAN in one graph on one core, with the
// copy of each frame into its buffer.
func BenchmarkChain(b *testing.B) {
	for _, n := range []int{64, 32768} {
		b.Run(fmt.Sprintf("flows=%d", n), func(b *testing.B) {
			c := newChain(b)
			base := flows(b)
			frames := make([][]byte, n)
			for i := range frames {
				frames[i] = base[0]
				if n > 64 {
					frames[i] = pkt{proto: "udp", src: fmt.Sprintf("10.0.%d.%d:%d", i>>8, i&255, 2000+i), dst: far + ":80", payload: "0123456789abcdef"}.bytes(b)
				} else {
					frames[i] = base[i]
				}
			}
			at := 0
			breath := func() {
				c.push("plain", frames[at:at+64]...)
				at = (at + 64) % n
			}
			for range n / 64 {
				breath()
			}
			b.ReportAllocs()
			packets := 0
			for b.Loop() {
				breath()
				packets += 64
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/packet")
			b.ReportMetric(float64(packets)/b.Elapsed().Seconds()/1e6, "Mpps")
		})
	}
}
