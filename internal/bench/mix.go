package bench

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// The recorded mix: YCSB A over 1,024 keys of 128 bytes, Zipf 0.99, so many
// frames, of so many clients on each node.
const (
	mixFrames  = 1 << 16
	mixClients = 32
	mixNodes   = 3
	// So many frames of each client pass before the recording begins: by then the server has executed an atomic
	// of all of them, without which nobody is led behind their appends.
	mixBefore = 64
)

// recorded plays a recorded load through an app in memory, with so many batches of buffers; beside it the same frames pass
// through.
func recorded(name, about string, record func(net byte) (*mix, error), batches int, kind string, args graph.Args) Benchmark {
	return Benchmark{name, about, func(clock.Clock) (*contest, error) {
		m, err := record(0)
		if err != nil {
			return nil, fmt.Errorf("record the load: %w", err)
		}
		return m.contest(batches, kind, args)
	}}
}

// contest is the mix through an app, beside a plain pass-through.
func (m *mix) contest(batches int, kind string, args graph.Args) (*contest, error) {
	pool, err := packet.NewPool(batches*packet.MaxBatch, 2048, nil)
	if err != nil {
		return nil, err
	}
	return &contest{
		bytes: float64(len(m.bytes)) / float64(m.frames),
		work:  m.through(pool, kind, args),
		pass:  m.through(pool, "wire", nil),
		close: func() {},
	}, nil
}

// price is a recorded load through an app that keeps what outlives the process; in the place of pass-through, the
// same without.
func price(of Benchmark, record func(net byte) (*mix, error), batches int, kind string, args graph.Args) Benchmark {
	about := of.About + ", with what outlives the process kept; in the place of pass-through: without"
	return Benchmark{of.Name + "-record", about, func(clock.Clock) (*contest, error) {
		m, err := record(0)
		if err != nil {
			return nil, fmt.Errorf("record the load: %w", err)
		}
		c, err := m.contest(batches, kind, args)
		if err != nil {
			return nil, err
		}
		pool, err := packet.NewPool(batches*packet.MaxBatch, 2048, nil)
		if err != nil {
			return nil, err
		}
		without := drained(kind, args, pool)
		without.Memory = nil
		c.pass = m.run(pool, without)
		return c, nil
	}}
}

// steerBatches and lockBatches are the buffers that the two apps need for their loads, in batches.
const (
	steerBatches = 4
	lockBatches  = 64
)

func steerBenchmark() Benchmark {
	return recorded("steer", "clover-steer, reads and writes, on a recorded Clover mix in memory, of clients that were at work before", recordMix, steerBatches, "clover-steer", steerArgs())
}

func steerArgs() graph.Args {
	return graph.Args{"mode": "read-write", "settle": "0", "pair": "0", "answers": "any"}
}

// mix is what a middlebox received, in its order.
type mix struct {
	bytes   []byte
	batches []mixBatch
	frames  int
	before  int            // frames to pass before the first that is recorded
	lap     clock.Duration // what is played again and again takes so long; 0: it is played once
}

// mixBatch is what one port received in one breath.
type mixBatch struct {
	port string
	at   clock.Time
	ends []int // of the frames, in mix.bytes
}

// warm is how many batches are not counted: a quarter, or many laps. By then the app has met
// all connections and keys.
func (m *mix) warm() int {
	if m.lap > 0 {
		return warmLaps * len(m.batches)
	}
	return len(m.batches) / 4
}

const warmLaps = 128

// through is a run of the mix through a fresh instance of an app.
func (m *mix) through(pool *packet.Pool, kind string, args graph.Args) Run {
	return m.run(pool, drained(kind, args, pool))
}

// run is a run of the mix through a fresh instance, whose ports take their buffers from pool.
func (m *mix) run(pool *packet.Pool, c graph.Config) Run {
	return func() (func() (int, error), error) {
		inst, err := graph.New(c)
		if err != nil {
			return nil, err
		}
		p := &playback{mix: m, inst: inst, pool: pool}
		if _, err := p.play(m.warm()); err != nil {
			return nil, err
		}
		return func() (int, error) {
			defer inst.Close()
			return p.play(len(m.batches))
		}, nil
	}
}

// drained is an instance whose ports take everything: a worker for each pool. Its
// app has memory to keep what outlives it, as when it runs.
func drained(kind string, args graph.Args, pools ...*packet.Pool) graph.Config {
	c := graph.Config{Spec: Between(kind, args), Kinds: registry.Kinds(), Ports: map[string][]port.Port{},
		Memory: func(_ string, size int) ([]byte, error) { return make([]byte, size), nil }}
	for _, pool := range pools {
		for _, name := range []string{"pa", "pb"} {
			c.Ports[name] = append(c.Ports[name], &drain{name: name, pool: pool})
		}
	}
	return c
}

// playback is a mix on its way through one worker of an instance.
type playback struct {
	mix      *mix
	inst     *graph.Instance
	worker   int
	pool     *packet.Pool
	batch    packet.Batch
	at, from int        // what is next: the batch of this lap, and where it is in mix.bytes
	played   int        // batches
	since    clock.Time // of this lap
	pace     *pace      // nil: it waits for nobody
}

// step implements player.
func (p *playback) step() (frames int, err error) {
	if p.at == len(p.mix.batches) {
		return 0, io.EOF
	}
	return p.play(p.played + 1)
}

// leave implements player.
func (p *playback) leave() {
	if p.pace != nil {
		p.pace.done(p.worker)
	}
}

// play goes on until so many batches were played.
func (p *playback) play(end int) (frames int, err error) {
	for ; p.played < end; p.played++ {
		x := &p.mix.batches[p.at]
		if p.pace != nil {
			p.pace.wait(p.worker, x.at)
		}
		p.batch.Reset()
		for _, end := range x.ends {
			b := p.pool.Get()
			b.SetBytes(p.mix.bytes[p.from:end])
			p.batch.Add(b)
			p.from = end
		}
		frames += len(x.ends)
		if err := p.inst.PushTo(p.worker, x.port, p.since+x.at, &p.batch); err != nil {
			return 0, err
		}
		if p.at++; p.mix.lap > 0 && p.at == len(p.mix.batches) {
			p.at, p.from, p.since = 0, 0, p.since.Add(p.mix.lap)
		}
	}
	return frames, nil
}

// drain is a port that takes everything and yields nothing.
type drain struct {
	name string
	pool *packet.Pool
}

// Drain is a port that takes everything and yields nothing.
func Drain(name string, pool *packet.Pool) port.Port { return &drain{name: name, pool: pool} }

func (d *drain) Name() string                                     { return d.name }
func (d *drain) Pool() *packet.Pool                               { return d.pool }
func (d *drain) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (d *drain) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (d *drain) Stats() port.Stats                                { return port.Stats{} }
func (d *drain) Close() error                                     { return nil }
func (d *drain) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	b.PutAll()
	return n, nil
}

// tape is a port that records what the middlebox receives on it, up to so many
// frames.
type tape struct {
	port.Port
	name   string
	mix    *mix
	frames int
	now    clock.Clock
}

func (t *tape) Rx(b *packet.Batch) (int, error) {
	first := b.Len()
	n, err := t.Port.Rx(b)
	if n == 0 || t.mix.frames >= t.frames {
		return n, err
	}
	if t.mix.before > 0 {
		t.mix.before -= n
		return n, err
	}
	x := mixBatch{port: t.name, at: t.now.Now()}
	for _, f := range b.Bufs()[first:] {
		t.mix.bytes = append(t.mix.bytes, f.Bytes()...)
		x.ends = append(x.ends, len(t.mix.bytes))
	}
	t.mix.batches = append(t.mix.batches, x)
	t.mix.frames += n
	return n, err
}

// recordMix runs Clover clients of network 10.77.net.0 through a steering
// middlebox in virtual time and keeps what the middlebox received.
func recordMix(net byte) (*mix, error) {
	return recordClover(net, mixNodes, mixFrames, steerArgs())
}

// recordClover is recordMix for so many compute nodes and frames, and a middlebox with
// such arguments.
func recordClover(net byte, nodes, frames int, args graph.Args) (*mix, error) {
	clk := clock.NewManual(1)
	const depth = 4096
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprint("c", i))
	}
	names = append(names, "ms")
	pool, err := packet.NewPool(2*depth*(len(names)+2), 2048, nil)
	if err != nil {
		return nil, err
	}
	machine := func(name string, n byte, p port.Port) clover.Machine {
		return clover.Machine{Name: name, Port: p, MAC: [6]byte{2, 0x77, 0, 0, net, n}, IP: netip.AddrFrom4([4]byte{10, 77, net, n})}
	}
	m0, m1 := mem.NewWire("m0", "m1", pool, depth, clk)
	n0, mn := mem.NewWire("n0", "mn", pool, depth, clk)
	rack := clover.Rack{Memory: []clover.Machine{machine("mn", 101, mn)}}
	bridged := []port.Port{m0}
	for i, name := range names {
		in, out := mem.NewWire(name, name+"-br", pool, depth, clk)
		bridged = append(bridged, out)
		if x := machine(name, byte(11+i), in); name == "ms" {
			rack.Metadata = x
		} else {
			rack.Compute = append(rack.Compute, x)
		}
	}
	store, err := clover.New(clover.Config{Sessions: mixClients, Mix: ycsb.A, Theta: 0.99, Seed: 1}, rack)
	if err != nil {
		return nil, err
	}
	m := &mix{before: nodes * mixClients * mixBefore}
	inst, err := graph.New(graph.Config{
		Spec: Between("clover-steer", args), Kinds: registry.Kinds(),
		Ports: map[string][]port.Port{"pa": {&tape{m1, "pa", m, frames, clk}}, "pb": {&tape{n0, "pb", m, frames, clk}}},
	})
	if err != nil {
		return nil, err
	}
	defer inst.Close()
	sim := host.Sim{Clock: clk, Workers: append(store.Workers(), host.NewBridge(bridged...), stepper{inst})}
	store.Start(clover.Load{})
	if err := sim.Run(func() bool { return m.frames >= frames }, time.Minute); err != nil {
		return nil, err
	}
	return m, store.Err()
}

// stepper breathes a graph among the rack's machines.
type stepper struct{ *graph.Instance }

func (s stepper) Breath(now clock.Time) (int, error) { return s.Step(now) }
func (s stepper) Deadline() clock.Time               { return s.NextTick() }
