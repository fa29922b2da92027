package bed

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
)

// Most worlds are wider than what RandomWorld draws first. What is wide in them are the numbers that
// connections count with, their path MTUs, how they begin and end, what is lost behind a first READ, and where
// frames of the adversary's lie.

// widen makes w wider.
func (w *World) widen(rng *rand.Rand, l Limits) {
	yes := func(of int) bool { return rng.IntN(of) == 0 }
	w.Workers = 1 + rng.IntN(2)
	if yes(2) {
		w.numbers(rng)
	}
	if !yes(3) {
		w.paths(rng)
	}
	for i := range w.Queues {
		q := &w.Queues[i]
		q.Unseen = yes(8)
		if yes(3) {
			w.opening(rng, i)
		}
		if yes(3) {
			w.ends(rng, i)
		}
	}
	if !l.NoRestart && yes(8) {
		for range 1 + rng.IntN(3) {
			w.Events = append(w.Events, Event{At: time.Duration(rng.IntN(800)) * time.Microsecond, What: BoxReloads, Value: rng.Uint64()})
		}
		slices.SortStableFunc(w.Events, func(a, b Event) int { return int(a.At - b.At) })
	}
	if yes(2) {
		for range 1 + rng.IntN(3) {
			w.spoofs(rng, numTricks, numWideTricks, l)
		}
	}
}

// numbers has first PSNs lie in front of the end of the numbering, so near that they wrap.
func (w *World) numbers(rng *rand.Rand) {
	near := func() uint32 { return hdr.PSNMask - rng.Uint32N(4)*rng.Uint32N(16) }
	up, down := near(), near()
	same := rng.IntN(3) == 0
	for i := range w.Queues {
		q := &w.Queues[i]
		if q.Far.SQPSN = near(); same {
			q.Far.SQPSN = up
		}
		if q.Far.RQPSN = near(); same {
			q.Far.RQPSN = down
		}
		q.Near.SQPSN, q.Near.RQPSN = q.Far.SQPSN, q.Far.RQPSN
	}
}

// paths has connections have path MTUs of their own.
func (w *World) paths(rng *rand.Rand) {
	sizes := 1
	for 256<<sizes <= w.MTU {
		sizes++
	}
	for i := range w.Queues {
		q := &w.Queues[i]
		for range 1 + rng.IntN(3) {
			q.Paths = append(q.Paths, 256<<rng.IntN(sizes))
		}
	}
}

// opening has session i begin with a READ of several packets, behind as many short operations as it takes to be
// followed or fewer, and with others right behind it, of which some may be lost.
func (w *World) opening(rng *rand.Rand, i int) {
	q := &w.Queues[i]
	able := slices.DeleteFunc(indices(len(w.Regions)), func(k int) bool {
		r := &w.Regions[k]
		return r.Domain != q.Domain || r.Access&rnic.RemoteRead == 0 || r.Length < w.memorySize() || r.Window == rnic.WindowType2B && r.Owner != i
	})
	if len(able) == 0 || q.Gives&rnic.RemoteRead == 0 || q.Far.MaxDestRdAtomic < 0 {
		return
	}
	short := func(think time.Duration) Step {
		s := Step{Think: think, Swap: value(rng), Compare: value(rng), Mask: rng.Uint64()}
		w.operation(rng, i, &s, false)
		s.Length = min(s.Length, 16)
		return s
	}
	var all []Step
	think := time.Duration(rng.IntN(3)*70) * time.Microsecond
	for range rng.IntN(8) {
		all = append(all, short(think))
	}
	long := Step{Think: think, Op: rnic.OpRead, Region: able[rng.IntN(len(able))], Offset: firstBlock, Block: true}
	long.Length = 8 * (1 + rng.IntN((w.memorySize()-firstBlock)/8))
	if rng.IntN(3) > 0 {
		long.Length = min(long.Length, 300+8*rng.IntN(256))
	}
	all = append(all, long)
	for range 1 + rng.IntN(6) {
		all = append(all, short(0))
	}
	q.Outstanding = max(q.Outstanding, 8)
	q.Steps = append(all, q.Steps...)
	if rng.IntN(2) == 0 {
		way := rng.IntN(2)
		for range 1 + rng.IntN(2) {
			q.Lost[way] = append(q.Lost[way], 1+rng.IntN(6))
		}
	}
}

func indices(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// ends has session i's connection end sometimes, and another one begin.
func (w *World) ends(rng *rand.Rand, i int) {
	q := &w.Queues[i]
	// A window of type 2B stays bound to a queue pair that is connected anew.
	owns := slices.ContainsFunc(w.Regions, func(r Region) bool { return r.Window == rnic.WindowType2B && r.Owner == i })
	q.Again = [2]bool{rng.IntN(2) == 0, rng.IntN(2) == 0 && !owns}
	for range 1 + rng.IntN(3) {
		q.Steps[rng.IntN(len(q.Steps))].Anew = true
	}
	q.Steps[0].Anew = false
}

// lessOften has connections not end of their own accord.
func (w *World) lessOften() {
	w.Queues = slices.Clone(w.Queues)
	for i := range w.Queues {
		q := &w.Queues[i]
		q.Steps = slices.Clone(q.Steps)
		for k := range q.Steps {
			q.Steps[k].Anew = false
		}
	}
}

// loses reports whether frames are lost behind first READs.
func (w *World) loses() bool {
	return slices.ContainsFunc(w.Queues, func(q Queue) bool { return len(q.Lost[0])+len(q.Lost[1]) > 0 })
}

// loseNothing has no frames be lost behind first READs.
func (w *World) loseNothing() {
	w.Queues = slices.Clone(w.Queues)
	for i := range w.Queues {
		w.Queues[i].Lost = [2][]int{}
	}
}

// losses are what is lost behind the first READs of connections.
type losses struct {
	up, down map[uint32]*loss // by queue pair: the server's, which requests name, and the client's
	n        int              // frames that were lost
}

// loss is what is lost of a connection.
type loss struct {
	*Queue
	mtu    uint32
	behind [2]int // how many frames there were behind the READ, by direction
	read   bool   // it was sent
}

// lost reports whether a frame in one direction is lost.
func (x *loss) lost(way int) bool {
	if !x.read {
		return false
	}
	x.behind[way]++
	return slices.Contains(x.Lost[way], x.behind[way])
}

// watchLosses waits for the first READ of a connection that begins.
func (p *play) watchLosses(q *queue) {
	delete(p.losses.up, q.far.QPN)
	delete(p.losses.down, q.qp.QPN)
	if len(q.Lost[0])+len(q.Lost[1]) > 0 {
		x := &loss{Queue: &q.Queue, mtu: uint32(q.qp.Conn().PathMTU)}
		p.losses.up[q.far.QPN], p.losses.down[q.qp.QPN] = x, x
	}
}

// out reports whether frame b of a client's is lost.
func (l *losses) out(b []byte) bool {
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE {
		return false
	}
	x := l.up[f.BTHOf(b).DestQP()]
	switch {
	case x == nil:
		return false
	case x.lost(int(fault.Up)):
		l.n++
		return true
	case f.Op == hdr.ReadRequest && f.RETHOf(b).DMALength() > x.mtu:
		x.read = true
	}
	return false
}

// in reports whether frame b for a client is lost.
func (l *losses) in(b []byte) bool {
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE {
		return false
	}
	x := l.down[f.BTHOf(b).DestQP()]
	if x == nil || !x.lost(int(fault.Down)) {
		return false
	}
	l.n++
	return true
}

// Struck is how many frames a fault befell.
func (p *play) Struck() int { return p.Bed.Struck() + p.losses.n }

// reload gives the box another setting, as n has it. One that it cannot take while it runs has it start anew.
func (p *play) reload(n uint64) {
	if p.box.inst == nil {
		return
	}
	args := []graph.Args{{"bad": "drop"}, {"bad": "pass"}, {"settle": "61us"}, {"settle": "60us"}}
	if p.cfg.Box.Reloads != nil {
		args = p.cfg.Box.Reloads
	}
	// A box that others depend on may refuse to start anew.
	_, _ = p.box.inst.Set("box", args[n%uint64(len(args))])
}

// wilder gives the box more workers, and settings that change under traffic.
func (w *World) wilder(rng *rand.Rand, l Limits) {
	w.Workers = 1 + rng.IntN(4)
	if l.NoRestart || rng.IntN(2) == 0 {
		return
	}
	for range 1 + rng.IntN(5) {
		w.Events = append(w.Events, Event{At: time.Duration(rng.IntN(800)) * time.Microsecond, What: BoxReloads, Value: rng.Uint64()})
	}
	slices.SortStableFunc(w.Events, func(a, b Event) int { return int(a.At - b.At) })
}

// Spread has the shared words lie in three lines of memory, and not in one: set it before worlds are made.
var Spread bool

// sharedAt is where shared word number i is in a memory.
func sharedAt(i int) uint64 {
	if Spread {
		return []uint64{0, 136, 192}[i]
	}
	return 8 * uint64(i)
}

// isShared reports whether byte at of a memory is the first of a shared word.
func isShared[T int | uint64](at T) bool {
	for i := range sharedWords {
		if uint64(at) == sharedAt(i) {
			return true
		}
	}
	return false
}
