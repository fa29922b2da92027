package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Middlebox is a graph between the machines and some servers. Its chain of
// apps has the ports a (towards the clients) and b (towards the servers).
type Middlebox struct {
	// Kind and Args are the app's; Kind.Name "" is a middlebox that forwards.
	Kind graph.Kind
	Args graph.Args
	// Latency is what a frame takes through it beyond the switch's own.
	Latency time.Duration
	// PerPacket is a core's time for a frame; 0: line rate. Cores are the
	// number of them; a connection's frames meet at one core. 0 = 1.
	PerPacket time.Duration
	Cores     int
}

// side of a middlebox.
type side uint64

const (
	sideA side = iota // towards the clients
	sideB
)

// Box is a middlebox that runs.
type Box struct {
	w       *World
	id      uint32
	cfg     Middlebox
	inst    *graph.Instance
	ends    [2]end
	batch   packet.Batch
	cores   []Time // when each is free
	tickAt  Time
	per     Time
	latency Time
	frame   hdr.Frame
	down    bool
	stats   BoxStats
	seed    uint64
}

// BoxStats are a middlebox's totals.
type BoxStats struct {
	In, Out uint64
	// Missed frames came while it was down, and went past.
	Missed uint64
}

// outlet is a port of a graph from which nothing comes: frames are pushed into the graph. What is sent there, its owner takes (Tx).
type outlet struct {
	name  string
	pool  *packet.Pool
	stats port.Stats
}

func (o *outlet) Name() string                                     { return o.name }
func (o *outlet) Pool() *packet.Pool                               { return o.pool }
func (o *outlet) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (o *outlet) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (o *outlet) Stats() port.Stats                                { return o.stats }
func (o *outlet) Close() error                                     { return nil }

// end is a port of the middlebox's graph.
type end struct {
	outlet
	b *Box
}

func (e *end) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		e.stats.TxPackets++
		e.stats.TxBytes += uint64(x.Len())
		x.Meta = packet.Meta{}
		e.b.send(x)
	}
	b.Shift(n)
	return n, nil
}

const (
	kindServed uint32 = iota // a core is through with a frame
	kindLeave                // a frame goes to the switch's port
	kindTick
)

// appName is the app's name in the graph.
const appName = "app"

// Insert puts a middlebox into the way of everything that goes to or comes
// from the servers.
func (w *World) Insert(c Middlebox, servers ...*Machine) (*Box, error) {
	if w.box != nil {
		return nil, errors.New("sim: there is a middlebox already")
	}
	c.Cores = cmp.Or(c.Cores, 1)
	if c.Cores < 1 || c.PerPacket < 0 || c.Latency < 0 || len(servers) == 0 {
		return nil, fmt.Errorf("sim: a middlebox needs servers, at least one core, and no negative times")
	}
	b := &Box{w: w, cfg: c, per: From(c.PerPacket), latency: From(c.Latency), cores: make([]Time, c.Cores), tickAt: never}
	b.ends = [2]end{{outlet{name: "a", pool: b.w.pool}, b}, {outlet{name: "b", pool: b.w.pool}, b}}
	if err := b.start(); err != nil {
		return nil, err
	}
	for _, m := range servers {
		m.guarded = true
	}
	b.id = w.k.add(b)
	w.box = b
	return b, nil
}

// start makes the graph anew, with nothing in its memory.
func (b *Box) start() error {
	b.down = false
	if b.cfg.Kind.Name == "" {
		return nil
	}
	b.seed++
	inst, err := graph.New(graph.Config{
		Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"a": {Kind: "sim"}, "b": {Kind: "sim"}},
			Apps:  map[string]graph.AppSpec{appName: {Kind: b.cfg.Kind.Name, Args: b.cfg.Args}},
			Links: []string{"a.out -> app.a", "app.b -> b.in", "b.out -> app.b", "app.a -> a.in"},
		},
		Kinds: []graph.Kind{b.cfg.Kind},
		Ports: map[string][]port.Port{"a": {&b.ends[sideA]}, "b": {&b.ends[sideB]}},
		Seed:  b.w.seed<<8 + b.seed,
	})
	if err != nil {
		return fmt.Errorf("sim: middlebox: %w", err)
	}
	b.inst = inst
	return nil
}

// Stats are the totals so far.
func (b *Box) Stats() BoxStats { return b.stats }

// take has a frame come in from one side.
func (b *Box) take(s side, x *packet.Buf) {
	now := b.w.k.now
	if b.down {
		b.stats.Missed++
		b.w.sw.out(now+From(b.w.net.Switch), x)
		return
	}
	b.stats.In++
	t := now
	if b.per > 0 {
		c := &b.cores[b.core(x)]
		t = max(t, *c) + b.per
		*c = t
	}
	if t > now {
		b.w.k.plan(t, b.id, kindServed, uint64(s), x)
		return
	}
	b.serve(s, x)
}

// core is the one that a connection's frames meet at.
func (b *Box) core(x *packet.Buf) int {
	if len(b.cores) == 1 {
		return 0
	}
	p := x.Bytes()
	if hdr.Parse(p, &b.frame) != hdr.IsRoCE {
		return 0
	}
	return int(b.frame.BTHOf(p).DestQP()) % len(b.cores)
}

func (b *Box) serve(s side, x *packet.Buf) {
	if b.inst == nil {
		b.send(x)
		return
	}
	b.batch.Reset()
	b.batch.Add(x)
	if err := b.inst.Push(b.ends[s].name, b.w.k.now.Clock(), &b.batch); err != nil {
		b.w.fail(err)
		return
	}
	b.tick()
}

// tick plans the next timer.
func (b *Box) tick() {
	if b.inst == nil {
		return
	}
	if at := b.inst.NextTick(); at != clock.Never {
		if t := max(fromClock(at), b.w.k.now+Nanosecond); t < b.tickAt {
			b.tickAt = t
			b.w.k.plan(t, b.id, kindTick, 0, nil)
		}
	}
}

func (b *Box) fire(kind uint32, arg uint64, x *packet.Buf) {
	switch kind {
	case kindServed:
		if b.down {
			b.stats.Missed++
			b.w.sw.out(b.w.k.now+From(b.w.net.Switch), x)
			return
		}
		b.serve(side(arg), x)
	case kindLeave:
		b.w.sw.out(b.w.k.now, x)
	case kindTick:
		if b.tickAt > b.w.k.now {
			return
		}
		b.tickAt = never
		if b.inst == nil {
			return
		}
		if _, err := b.inst.Step(b.w.k.now.Clock()); err != nil {
			b.w.fail(err)
			return
		}
		b.tick()
	}
}

// send forwards a frame that the graph is through with.
func (b *Box) send(x *packet.Buf) {
	b.stats.Out++
	t := b.w.k.now + From(b.w.net.Switch) + b.latency
	if b.latency > 0 {
		b.w.k.plan(t, b.id, kindLeave, 0, x)
		return
	}
	b.w.sw.out(t, x)
}
