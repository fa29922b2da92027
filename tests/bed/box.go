package bed

import (
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/tor/conn"
)

// box is the place of the network function; it is a host.Worker. Without a
// function, or while it is down, frames cross untouched.
type box struct {
	bed    *Bed
	a, b   *spread
	inst   *graph.Instance // nil: down
	starts uint64
	memory map[string][]byte // that outlives the function, by app
	bound  map[port.QueuePair]bool
	guard  *port.Guard
	filter port.Filter      // of the function that went down
	torn   map[string]*torn // of memory, where the box is killed
	// asleep: until then it does not run, and what need not be held crosses: missed
	// frames did.
	asleep clock.Time
	missed uint64
	// dying: it is to be killed. killed: it was, and its books are not closed.
	dying, killed bool
	rng           *rand.Rand
	out           [2]packet.Batch
	disk          *disk // nil: apps have no journal
}

// lent is a port that a graph may close without hurting the bed.
type lent struct {
	port.Port
	box *box
}

func (lent) Close() error { return nil }

// Missed implements port.Bypasser.
func (l lent) Missed() uint64 { return l.box.missed }

// Bind implements port.Binder.
func (l lent) Bind(q port.QueuePair, on bool) error {
	if l.box.bound[q] = true; !on {
		delete(l.box.bound, q)
	}
	return nil
}

// Rebind implements port.Binder.
func (l lent) Rebind(was, is []port.QueuePair) error {
	for _, q := range was {
		delete(l.box.bound, q)
	}
	for _, q := range is {
		l.box.bound[q] = true
	}
	return nil
}

// Guard implements port.Guarder.
func (l lent) Guard() (*port.Guard, error) { return l.box.guard, nil }

// holds reports whether frame b must not cross while the function is down.
func (x *box) holds(b []byte) bool {
	var f hdr.Frame
	if hdr.Parse(b, &f); f.BTH == 0 {
		return false
	}
	to := conn.Target(b, &f).Netip()
	return x.filter.Bound && x.bound[port.QueuePair{Addr: to, QPN: f.BTHOf(b).DestQP()}] ||
		x.filter.Guarded && x.guard.Stops(to, b[f.BTH:])
}

// up starts the function with nothing remembered.
func (x *box) up() error {
	f := x.bed.cfg.Box
	if x.dying {
		if err := x.down(); err != nil {
			return err
		}
	}
	if f == nil || x.inst != nil {
		return nil
	}
	for i := range x.out {
		x.out[i].PutAll() // there was no room for it
	}
	args := f.Args
	if f.Configure != nil {
		args = f.Configure(x.bed)
	}
	x.starts++
	kept := f.Journals
	if kept == nil && x.disk != nil {
		kept = x.disk.open
	}
	inst, err := graph.New(graph.Config{
		Journal: kept,
		Spec:    chain(append(slices.Clone(f.Front), Stage{"box", f.Kind, args})),
		Kinds:   kinds(f),
		Ports:   map[string][]port.Port{"a": x.queues(x.a), "b": x.queues(x.b)},
		Seed:    x.bed.cfg.Seed + x.starts<<32,
		Memory: func(app string, size int) ([]byte, error) {
			if len(x.memory[app]) == size {
				return x.memory[app], nil
			}
			if f.Reloads != nil { // the file of a state grows in place
				if x.memory[app] == nil {
					x.memory[app] = make([]byte, 12<<20)
				}
				if size <= len(x.memory[app]) {
					return x.memory[app][:size:size], nil
				}
			}
			was := x.memory[app] // the file of a state grows
			x.memory[app] = make([]byte, size)
			copy(x.memory[app], was)
			if f.Killed {
				t, err := newTorn(size)
				if err != nil {
					return nil, err
				}
				copy(t.b, was)
				x.torn[app], x.memory[app] = t, t.b
			}
			return x.memory[app], nil
		},
	})
	x.inst = inst
	return err
}

// chain is apps one after another, from the clients' side on.
func chain(stages []Stage) *graph.Spec {
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"a": {Kind: "mem"}, "b": {Kind: "mem"}},
		Apps:  map[string]graph.AppSpec{},
	}
	up, down := "a.out", "a.in"
	for _, x := range stages {
		s.Apps[x.Name] = graph.AppSpec{Kind: x.Kind.Name, Args: x.Args}
		s.Links = append(s.Links, up+" -> "+x.Name+".a", x.Name+".a -> "+down)
		up, down = x.Name+".b", x.Name+".b"
	}
	s.Links = append(s.Links, up+" -> b.in", "b.out -> "+down)
	return s
}

func kinds(f *Box) []graph.Kind {
	k := []graph.Kind{f.Kind}
	for _, x := range f.Front {
		k = append(k, x.Kind)
	}
	return k
}

// down stops the function, as a crash does unless it is to stop cleanly. The
// books must be right at the end.
func (x *box) down() error {
	if x.inst == nil {
		return nil
	}
	left := map[string][]byte{}
	for app, m := range x.memory {
		left[app] = slices.Clone(m)
	}
	return x.end(left)
}

// die is a kill.
func (x *box) die() error {
	if x.inst == nil || !x.bed.cfg.Box.Killed {
		return x.down()
	}
	x.dying = true
	return nil
}

// lastBreath is a breath that the function dies in if it writes to some page of its
// memory: then nothing of what it would have sent leaves.
func (x *box) lastBreath(now clock.Time) (n int, err error) {
	step := func() error { n, err = x.inst.Step(now); return err }
	for _, t := range x.torn {
		died, err := t.kill(x.rng, step)
		if died {
			// It is in no state to be closed, and its frames are gone with it.
			x.inst, x.filter, x.dying, x.killed = nil, x.inst.Wants(), false, true
		}
		return n, err
	}
	return n, step()
}

// end ends the function, which leaves that in its memories.
func (x *box) end(left map[string][]byte) error {
	inst := x.inst
	x.inst, x.filter, x.dying = nil, inst.Wants(), false
	err := errors.Join(inst.Conservation(), inst.Close(), inst.Conservation())
	if !x.bed.cfg.Box.Clean {
		for app, m := range left {
			copy(x.memory[app], m)
		}
	}
	return err
}

// Breath implements host.Worker.
func (x *box) Breath(now clock.Time) (int, error) {
	if x.dying {
		return x.lastBreath(now)
	}
	if x.inst != nil && now < x.asleep {
		x.filter = x.inst.Wants()
	} else if x.inst != nil {
		n, err := x.inst.Step(now)
		if err == nil && x.disk != nil {
			err = x.named()
		}
		return n, err
	}
	n, err := x.cross(x.a, x.b, &x.out[0])
	if err != nil {
		return n, err
	}
	k, err := x.cross(x.b, x.a, &x.out[1])
	return n + k, err
}

func (x *box) cross(from, to port.Port, b *packet.Batch) (int, error) {
	n, err := from.Rx(b)
	kept := packet.Batch{}
	for _, y := range b.Bufs() {
		if x.filter.Closed || x.holds(y.Bytes()) {
			y.Put()
		} else {
			kept.Add(y)
			x.missed++
		}
	}
	*b = kept
	if err == nil && b.Len() > 0 {
		_, err = to.Tx(b)
	}
	return n, err
}

// Deadline implements host.Worker.
func (x *box) Deadline() clock.Time {
	if x.inst == nil {
		return clock.Never
	}
	return max(x.inst.NextTick(), x.asleep)
}
