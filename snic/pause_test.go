package snic

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/snic/pool"
)

// stampAt is where that of a UDP datagram over IPv4 is.
const stampAt = 42

// clockwork is a port by which a frame comes every so often, or, without a frame, one that takes what comes of
// them: it notes how long after its time each was there.
type clockwork struct {
	pool  *packet.Pool
	clk   clock.Clock
	frame []byte
	every clock.Duration
	due   clock.Time
	took  []clock.Duration // as long as there is room
	on    atomic.Bool      // it is noted
	last  atomic.Int64     // when the last one was due
}

func (p *clockwork) Name() string                               { return "clockwork" }
func (p *clockwork) Pool() *packet.Pool                         { return p.pool }
func (p *clockwork) Wait(context.Context, clock.Duration) error { return nil }
func (p *clockwork) Stats() port.Stats                          { return port.Stats{} }
func (p *clockwork) Close() error                               { return nil }

func (p *clockwork) Rx(b *packet.Batch) (n int, err error) {
	if p.frame == nil {
		return 0, nil
	}
	for now := p.clk.Now(); p.due <= now && !b.Full(); n++ {
		x := p.pool.Get()
		if x == nil {
			break
		}
		x.SetBytes(p.frame)
		f := x.Bytes()
		binary.BigEndian.PutUint64(f[stampAt:], uint64(p.due))
		b.Add(x)
		p.due = p.due.Add(p.every)
	}
	return n, nil
}

func (p *clockwork) Tx(b *packet.Batch) (int, error) {
	now, n := p.clk.Now(), b.Len()
	for _, x := range b.Bufs() {
		f := x.Bytes()
		due := clock.Time(binary.BigEndian.Uint64(f[stampAt:]))
		if p.on.Load() && len(p.took) < cap(p.took) {
			p.took = append(p.took, now.Sub(due))
		}
		p.last.Store(int64(due))
		x.Put()
	}
	b.Reset()
	return n, nil
}

// BenchmarkPause is how long frames of one tenant wait on a live board, 50,000 a second, while 100,000
// connections of another one leave it and come, and while nothing moves, in turns; and how long all of that takes. To
// compare, the same at once, with the worker standing still.
func BenchmarkPause(b *testing.B) {
	mem, err := packet.NewPool(4096, 2048, nil)
	if err != nil {
		b.Fatal(err)
	}
	clk := clock.NewWall()
	gen := &clockwork{pool: mem, clk: clk, frame: frame(1, "12345678"), every: 20_000, due: clk.Now()}
	sink := &clockwork{pool: mem, clk: clk, took: make([]clock.Duration, 0, 1<<16)}
	kinds := peerKinds()
	spec := &graph.Spec{Ports: map[string]graph.PortSpec{}, Apps: map[string]graph.AppSpec{"board": {Kind: kinds[0].Name, Args: graph.Args{
		"pool-port": "p14", "fair": "off", "deployment": `
regions: {count: 2, area: 2}
tasks:
  m:   {kind: mark, args: {letter: m}}
  fw:  {kind: firewall, args: {rules: "allow+in:a", conns: 131072, half: 131072, half-per-source: 131072}, state: true}
  nat: {kind: napt, args: {public: 203.0.113.1+203.0.113.2+203.0.113.3, mappings: 131072}, state: true}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: fw -> nat}, {uid: 2, tenant: v, run: m}]
rules: [{match: "src:10.0.0.1", dag: 2}, {match: "src:10.0.0.0/8", dag: 1}]
`}}}}
	ports := map[string][]port.Port{}
	for i, n := range kinds[0].In {
		p := &clockwork{pool: mem, clk: clk}
		if n == "p0" {
			p = gen
		}
		spec.Ports["in-"+n] = graph.PortSpec{Kind: "test"}
		ports["in-"+n] = []port.Port{p}
		spec.Links = append(spec.Links, "in-"+n+".out -> board."+n)
		out := kinds[0].Out[i]
		p = &clockwork{pool: mem, clk: clk}
		if out == "p1" {
			p = sink
		}
		spec.Ports["out-"+out] = graph.PortSpec{Kind: "test"}
		ports["out-"+out] = []port.Port{p}
		spec.Links = append(spec.Links, "board."+out+" -> out-"+out+".in")
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: kinds, Ports: ports, Clock: clk, Nice: -10})
	if err != nil {
		b.Fatal(err)
	}
	wait := func(d clock.Duration) { <-time.After(d) }
	for end := clk.Now().Add(50_000_000); clk.Now() < end; { // until all is launched
		if _, err := inst.Step(clk.Now()); err != nil {
			b.Fatal(err)
		}
	}
	f := frame(2, "hello123")
	for i := range 100_000 {
		x := mem.Get()
		binary.BigEndian.PutUint16(f[34:], uint16(1000+i%50000))
		f[29] = byte(2 + i/50000)
		x.SetBytes(f)
		var batch packet.Batch
		batch.Add(x)
		if err := inst.Push("in-p0", clk.Now(), &batch); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	visit := func(f func(b *board, s *service)) {
		if err := inst.Visit("board", 0, func(a graph.App) {
			x := a.(*board)
			f(x, &x.cat.services[x.cat.dagOf[0]])
		}); err != nil {
			b.Fatal(err)
		}
	}
	var state []byte
	// until asks now and then, as the board's part of the pool does.
	until := func(done func(b *board, s *service) bool) {
		for is := false; !is; {
			wait(500_000)
			visit(func(b *board, s *service) { is = done(b, s) })
		}
	}
	phases := []struct {
		name string
		do   func()
	}{
		{"still", func() { wait(60_000_000) }},
		{"save", func() {
			visit(func(b *board, s *service) {
				b.near.pool.say = nil
				b.placing.hold(b.cat.dagOf[0])
				s.where.hand()
				b.near.pool.busy = []int{0}
			})
			var out *outgoing
			until(func(b *board, s *service) bool {
				if len(b.near.pool.say) > 0 {
					out, b.near.pool.say = b.near.pool.say[0].out, nil
				}
				return out != nil
			})
			state = out.out.bytes()
			visit(func(b *board, s *service) { b.near.local(b.cat.seen, b.cat.dagOf[0]) })
		}},
		{"restore", func() {
			o := order{kind: toRemember, event: pool.Event{Want: 0}, state: state}
			visit(func(b *board, s *service) {
				s.where.hold()
				b.placing.hold(b.cat.dagOf[0])
				o.deployment = b.near.pool.hash
				o.in = b.near.open(&o)
			})
			o.in.read()
			visit(func(b *board, s *service) { b.near.pool.orders = append(b.near.pool.orders, o) })
			until(func(b *board, s *service) bool { return len(b.near.pool.orders) == 0 })
			visit(func(b *board, s *service) { b.near.local(b.cat.seen, b.cat.dagOf[0]) })
		}},
		{"save-at-once", func() { visit(func(b *board, s *service) { state = b.near.save(s) }) }},
		{"restore-at-once", func() { visit(func(b *board, s *service) { b.near.restore(s, state, nil) }) }},
	}
	at := make([][3][]float64, len(phases)) // 99.9th percentile, most, duration
	for range b.N {
		for i, p := range phases {
			wait(20_000_000)
			visit(func(*board, *service) { sink.took = sink.took[:0] })
			sink.on.Store(true)
			start := clk.Now()
			p.do()
			end := clk.Now()
			all := end.Sub(start)
			for sink.last.Load() < int64(end) {
				wait(100_000)
			}
			sink.on.Store(false)
			visit(func(b *board, s *service) {
				if n := b.near.pool.failed; n > 0 {
					all = 0
				}
				slices.Sort(sink.took)
				n := len(sink.took)
				at[i][0] = append(at[i][0], float64(sink.took[n-1-n/1000]))
				at[i][1] = append(at[i][1], float64(sink.took[n-1]))
				at[i][2] = append(at[i][2], float64(all))
			})
			if all == 0 || len(state) < 100_000*(90+31) && i > 0 {
				b.Fatalf("%s failed: %d bytes", p.name, len(state))
			}
		}
	}
	cancel()
	if err := <-ran; err != nil {
		b.Fatal(err)
	}
	if err := inst.Conservation(); err != nil {
		b.Fatal(err)
	}
	for i, p := range phases {
		line := ""
		for k, what := range []string{"p99.9", "most", "all"} {
			x := at[i][k]
			slices.Sort(x)
			line += fmt.Sprintf("  %s %.0f (%.0f-%.0f)", what, x[len(x)/2]/1e3, x[0]/1e3, x[len(x)-1]/1e3)
		}
		b.Logf("%-15s%s us", p.name, line)
		b.ReportMetric(math.Round(at[i][1][b.N/2]/1e3), p.name+"-us")
	}
}
