package clover

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// box stands between the bridge and a memory node. up is the direction to the memory node.
type box interface {
	// pass takes b and emits the frames that go on.
	pass(now clock.Time, up bool, b *packet.Buf, emit func(*packet.Buf))
}

// series is boxes in a row, the first next to the memory node.
type series []box

func (series) pass(clock.Time, bool, *packet.Buf, func(*packet.Buf)) {}

// bump is a wire with a box in it; it implements host.Worker.
type bump struct {
	box  box
	a, b port.Port // bridge side, memory node's side
	out  [2]packet.Batch
}

func (w *bump) Breath(now clock.Time) (int, error) {
	moved := 0
	for _, up := range []bool{true, false} {
		from, side := w.a, 0
		if !up {
			from, side = w.b, 1
		}
		var rx packet.Batch
		n, err := from.Rx(&rx)
		if err != nil {
			return moved, err
		}
		moved += n
		for _, x := range rx.Bufs() {
			w.box.pass(now, up, x, func(y *packet.Buf) {
				if !w.out[side].Add(y) {
					y.Put()
				}
			})
		}
		to := w.b
		if !up {
			to = w.a
		}
		if _, err := to.Tx(&w.out[side]); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

func (w *bump) Deadline() clock.Time { return clock.Never }

// noisy loses, repeats and reorders frames.
type noisy struct {
	rng             *rand.Rand
	loss, dup, swap float64
	held            [2]*packet.Buf
	lost            int
}

func (n *noisy) pass(now clock.Time, up bool, b *packet.Buf, emit func(*packet.Buf)) {
	i := 0
	if up {
		i = 1
	}
	if n.rng.Float64() < n.loss {
		n.lost++
		b.Put()
		return
	}
	if n.held[i] == nil && n.rng.Float64() < n.swap {
		n.held[i] = b
		return
	}
	if n.rng.Float64() < n.dup {
		if c := b.Pool().Get(); c != nil {
			c.SetBytes(b.Bytes())
			emit(c)
		}
	}
	emit(b)
	if n.held[i] != nil {
		emit(n.held[i])
		n.held[i] = nil
	}
}

// rig is a rack in memory and in virtual time.
type rig struct {
	t      testing.TB
	clk    *clock.Manual
	cl     *Cluster
	sim    *host.Sim
	inline []host.Worker
}

func newRig(t testing.TB, c Config, compute, memory int, boxes ...box) *rig {
	t.Helper()
	pool, err := packet.NewPool(16384, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, clk: clock.NewManual(1)}
	var ends []port.Port
	id := byte(0)
	machine := func(name string, x box) Machine {
		id++
		m := Machine{Name: name, MAC: [6]byte{2, 0, 0, 0, 0, id}, IP: netip.AddrFrom4([4]byte{10, 77, 0, id})}
		near, far := mem.NewWire(name, name+"-br", pool, 1024, r.clk)
		m.Port = near
		boxes := series{x}
		if s, ok := x.(series); ok {
			boxes = s
		}
		for _, x := range boxes {
			if x == nil {
				continue
			}
			mid, br := mem.NewWire(name+"-box", name+"-br2", pool, 1024, r.clk)
			if w, ok := x.(interface {
				worker(a, b port.Port) host.Worker
			}); ok {
				r.inline = append(r.inline, w.worker(mid, far))
			} else {
				r.inline = append(r.inline, &bump{box: x, a: mid, b: far})
			}
			far = br
		}
		ends = append(ends, far)
		return m
	}
	var rack Rack
	for range compute {
		rack.Compute = append(rack.Compute, machine("compute", nil))
	}
	for i := range memory {
		var x box
		if i < len(boxes) {
			x = boxes[i]
		}
		rack.Memory = append(rack.Memory, machine("memory", x))
	}
	var x box
	if memory < len(boxes) {
		x = boxes[memory]
	}
	rack.Metadata = machine("metadata", x)
	if r.cl, err = New(c, rack); err != nil {
		t.Fatal(err)
	}
	r.sim = &host.Sim{Clock: r.clk, Workers: append(r.cl.Workers(), host.NewBridge(ends...))}
	r.sim.Workers = append(r.sim.Workers, r.inline...)
	return r
}

// op runs one operation of one session to its end.
func (r *rig) op(node, session int, write bool, key uint64, value []byte) Result {
	r.t.Helper()
	c := r.cl.compute[node].c
	var res Result
	done := false
	was := c.done
	c.done = func(x *Result) {
		res, done = *x, true
		res.Value = append([]byte(nil), x.Value...)
	}
	defer func() { c.done = was }()
	if err := r.sim.Run(func() bool { ok, err := c.Ready(); return ok || err != nil }, time.Minute); err != nil {
		r.t.Fatal(err)
	}
	var err error
	if write {
		err = c.sessions[session].Write(r.clk.Now(), key, value)
	} else {
		err = c.sessions[session].Read(r.clk.Now(), key)
	}
	if err != nil {
		return Result{Err: err}
	}
	if err := r.sim.Run(func() bool { return done }, time.Minute); err != nil {
		r.t.Fatal(err)
	}
	return res
}

// settle waits until the background has no work.
func (r *rig) settle() {
	r.t.Helper()
	if err := r.sim.Run(func() bool {
		for _, n := range r.cl.compute {
			if !n.c.Quiet() {
				return false
			}
		}
		return true
	}, time.Minute); err != nil {
		r.t.Fatal(err)
	}
}

// run lets every session do ops operations and returns the measurement.
func (r *rig) run(ops int, limit time.Duration) *Measured {
	r.t.Helper()
	w := r.cl.Begin()
	r.cl.Start(Load{MaxOps: ops})
	if err := r.sim.Run(r.cl.Stopped, limit); err != nil {
		r.t.Fatalf("%v at %v: %v; clients %+v; metadata %+v", err, r.clk.Now(), r.cl.Err(), r.cl.ClientStats(), r.cl.meta.Stats())
	}
	w.EndSoon()
	if err := r.sim.Run(w.Ended, time.Second); err != nil {
		r.t.Fatal(err)
	}
	return w.Measured()
}

// sound fails the test if the store is damaged, or an operation failed.
func (r *rig) sound(acked int) Integrity {
	r.t.Helper()
	if err := r.cl.Err(); err != nil {
		r.t.Error(err)
	}
	v := r.cl.Integrity()
	if !v.OK() || acked >= 0 && v.AckedWrites != uint64(acked) {
		r.t.Errorf("integrity %+v, %d writes were acknowledged; clients %+v; metadata %+v", v, acked, r.cl.ClientStats(), r.cl.meta.Stats())
	}
	return v
}

// testRack is a rack whose ports are never used.
func testRack() Rack {
	m := func(n byte) Machine {
		return Machine{Name: "m", MAC: [6]byte{2, 0, 0, 0, 0, n}, IP: netip.AddrFrom4([4]byte{10, 77, 0, n})}
	}
	return Rack{Compute: []Machine{m(1)}, Memory: []Machine{m(2)}, Metadata: m(3)}
}
