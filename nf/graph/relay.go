package graph

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/packet"
)

// Taker is an app whose instances hand frames to each other (Ctx.Hand), from one worker
// to another. Taken gets those that others have handed to this one: in the order in
// which each of them did, with the Meta that they had there (Tag above all; a trace
// ends with the hand-over), in buffers of this worker's. It disposes of them as Push
// does of what comes in.
type Taker interface {
	Taken(c *Ctx, b *packet.Batch)
}

// A ring between two workers holds a few batches of full Ethernet frames. More would
// wait longer than it helps, and not stay in the caches.
const relayFrames, relayBytes = 512, 256 << 10

// relay is how the instances of an app hand frames to each other: a ring from every
// worker to every other one.
type relay struct {
	rings [][]*ring // from, to; nil: the same worker
	// over: an instance has been stopped, and nothing more is handed over. It is set
	// while no other worker is in a breath.
	over bool
}

// newRelay is for the instances of an app; nil if they are no Takers, or there is one.
func newRelay(app App, workers int) *relay {
	if _, ok := app.(Taker); !ok || workers < 2 {
		return nil
	}
	r := &relay{rings: make([][]*ring, workers)}
	for from := range workers {
		r.rings[from] = make([]*ring, workers)
		for to := range workers {
			if to != from {
				r.rings[from][to] = newRing(relayFrames, relayBytes)
			}
		}
	}
	return r
}

// Hand gives b to the app's instance in another worker, which must be a Taker: it gets
// a copy in its next breath, and b is back in its pool. False: there is no room, no such worker, the
// app runs inside another one, or it is being stopped; b is still the caller's then.
func (c *Ctx) Hand(worker int, b *packet.Buf) bool {
	n, w := c.node, c.worker
	if n.relay == nil || n.relay.over || worker < 0 || worker >= len(n.relay.rings) || worker == w.index {
		return false
	}
	if !b.Counted {
		c.adopt(b)
	}
	r := n.relay.rings[w.index][worker]
	if !r.stage(b, c.now, n.index) {
		return false
	}
	if r.in == r.put.Load()+1 {
		w.staged = append(w.staged, staged{r, worker})
	}
	n.stats.Add(statHanded, 1)
	if c.tracer != nil && b.Trace != 0 {
		c.tracer.end(c, b, TraceHand, 0, uint16(worker))
	}
	b.Put()
	return true
}

// staged is a ring that has frames which its reader does not see yet.
type staged struct {
	ring *ring
	to   int
}

// publish has others see what was handed to them, and wakes those that sleep.
func (w *worker) publish() {
	for _, s := range w.staged {
		s.ring.publish()
		w.all[s.to].bell.ring()
	}
	w.staged = w.staged[:0]
}

// take gives the apps what was handed to them: at most a batch of each other worker's.
func (w *worker) take() (moved int) {
	for _, n := range w.graph.relays {
		for from := range w.all {
			if from != w.index {
				moved += w.takeFrom(n, from)
			}
		}
	}
	return moved
}

// takeFrom gives an app a batch of what a worker has handed to it, as far as there are buffers.
func (w *worker) takeFrom(n *node, from int) int {
	r := n.relay.rings[from][w.index]
	e := r.next()
	if e == nil || w.pool == nil {
		return 0
	}
	w.goesOn() // before the frames leave the ring: see allAtEnd
	c, b := &w.ctx, &w.batch
	c.node = n
	b.Reset()
	for k := 0; e != nil && k < packet.MaxBatch; k++ {
		x := w.pool.Get()
		if x == nil {
			break
		}
		off, size := packet.Headroom, int(e.n)
		if off+size > len(x.Mem()) {
			off = 0
		}
		if size > len(x.Mem()) {
			x.Put()
			w.lose(n, reasonTooLong)
			r.skip(e)
			e = r.next()
			continue
		}
		x.Meta = e.Meta
		x.Trace = 0
		x.SetFrame(off, size)
		r.read(e, x.Bytes())
		b.Add(x)
		e = r.next()
	}
	r.free()
	k := b.Len()
	n.stats.Add(statTaken, uint64(k))
	if k > 0 {
		n.app.(Taker).Taken(c, b)
		b.Reset()
	}
	return k
}

// lose counts a frame that was handed over, and for which there is no buffer, as dropped.
func (w *worker) lose(n *node, why Reason) {
	n.stats.Add(statTaken, 1)
	n.stats.Add(statDropped, 1)
	n.reasons.Add(counter.ID(n.framework(why)), 1)
}

// handedOver is how many frames wait that were handed to this worker.
func (w *worker) handedOver() (frames int) {
	for _, n := range w.graph.relays {
		frames += n.handedTo(w.index)
	}
	return frames
}

// handedTo is how many frames wait that the instances of other workers have handed to that of one.
func (n *node) handedTo(worker int) (frames int) {
	if n.relay == nil {
		return 0
	}
	for from, rings := range n.relay.rings {
		if from != worker {
			frames += rings[worker].waiting()
		}
	}
	return frames
}

// handing reports that another worker has not yet taken all that this one handed to it.
func (w *worker) handing() bool {
	for _, n := range w.graph.relays {
		for to, r := range n.relay.rings[w.index] {
			if to != w.index && r.waiting() > 0 {
				return true
			}
		}
	}
	return false
}

// endRelay has an app that is stopped take what was handed to it, and nothing be handed over any more.
// That for which there is no buffer is dropped.
func (w *worker) endRelay(n *node) {
	if n.relay == nil {
		return
	}
	n.relay.over = true
	for from := range w.all {
		if from == w.index {
			continue
		}
		for w.err == nil && w.takeFrom(n, from) > 0 {
			w.drain()
		}
		r := n.relay.rings[from][w.index]
		for e := r.next(); e != nil; e = r.next() {
			w.lose(n, reasonStopped)
			r.skip(e)
		}
		r.free()
	}
}

// allAtEnd reports that no worker will receive or hand over anything any more: this one has said so of itself,
// and all others have. One that is handed a frame says that it is not before the frame leaves the ring, and
// who has handed it over is not at its end as long as it is there: so nobody goes too early.
func (w *worker) allAtEnd() bool {
	if len(w.graph.relays) == 0 {
		return true
	}
	if w.handedOver() > 0 || w.handing() {
		w.goesOn()
		return false
	}
	w.atEnd.Store(true)
	for _, o := range w.all {
		if !o.atEnd.Load() {
			return false
		}
	}
	return true
}

// goesOn says that the worker is not at its end.
func (w *worker) goesOn() {
	if w.atEnd.Load() {
		w.atEnd.Store(false)
	}
}

// relayTick is when somebody who owns the time is to have the worker breathe because of
// what was handed to it.
func (w *worker) relayTick(at clock.Time) clock.Time {
	if w.handedOver() > 0 {
		at = min(at, w.ctx.now.Add(1000))
	}
	return at
}
