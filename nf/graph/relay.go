package graph

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/packet"
)

// A ring between two workers holds a few batches of full Ethernet frames. More would
// wait longer than it helps, and not stay in the caches.
const relayFrames, relayBytes = 512, 256 << 10

// relay has the rings by which the instances of an app hand frames to each other: one ring for
// each pair of workers and direction.
type relay struct {
	rings [][]*ring // from, to; nil: the same worker
	// over: an instance has been stopped, and nothing more is handed over. It is set
	// while no other worker is in a breath.
	over bool
}

// newRelay returns a relay for the instances of app, or nil if the app has no Taken (Hooks) or there is only one
// worker.
func newRelay(app App, workers int) *relay {
	if HooksOf(app).Taken == nil || workers < 2 {
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

// Hand gives b to the app's instance in another worker. The app must have a Taken (Hooks). The instance gets
// a copy in its next breath, and b goes back to its pool. Hand returns false, and the caller keeps b, if the
// ring is full, if no other worker has that number, or if the app runs inside another app or is being stopped.
func (c *Ctx) Hand(worker int, b *packet.Buf) bool {
	n, w := c.node, c.mover
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

// staged is a ring with frames that were not published.
type staged struct {
	ring *ring
	to   int
}

// publish makes the frames that were handed to other workers visible to them, and wakes those that sleep.
func (w *mover) publish() {
	for _, s := range w.staged {
		s.ring.publish()
		w.all[s.to].bell.ring()
	}
	w.staged = w.staged[:0]
}

// take gives each app the frames that other workers handed to it, at most one batch from each worker.
func (w *mover) take() (moved int) {
	for _, n := range w.graph.relays {
		for from := range w.all {
			if from != w.index {
				moved += w.takeFrom(n, from)
			}
		}
	}
	return moved
}

// takeFrom gives app n the frames that worker from has handed to it: at most one batch, and no more than
// the pool has buffers for. It returns their number.
func (w *mover) takeFrom(n *node, from int) int {
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
		x.Trace, x.Draft = 0, 0
		x.SetFrame(off, size)
		r.read(e, x.Bytes())
		b.Add(x)
		e = r.next()
	}
	r.free()
	k := b.Len()
	n.stats.Add(statTaken, uint64(k))
	if k > 0 {
		n.hooks.Taken(c, b)
		b.Reset()
	}
	return k
}

// lose counts a frame that was handed over to app n as taken and dropped. The caller removes it from the ring.
func (w *mover) lose(n *node, why Reason) {
	n.stats.Add(statTaken, 1)
	n.stats.Add(statDropped, 1)
	n.reasons.Add(counter.ID(n.framework(why)), 1)
}

// handedOver returns the number of frames that were handed to this worker and are not taken yet.
func (w *mover) handedOver() (frames int) {
	for _, n := range w.graph.relays {
		frames += n.handedTo(w.index)
	}
	return frames
}

// handedTo returns the number of frames that other workers handed to the app's instance in the given worker and
// that it has not taken yet.
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

// handing reports whether another worker has not yet taken all frames that this one handed to it.
func (w *mover) handing() bool {
	for _, n := range w.graph.relays {
		for to, r := range n.relay.rings[w.index] {
			if to != w.index && r.waiting() > 0 {
				return true
			}
		}
	}
	return false
}

// endRelay gives an app that is being stopped the frames that were handed to it, and ends handing over. Frames
// without a buffer are dropped.
func (w *mover) endRelay(n *node) {
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

// allAtEnd reports whether no worker will receive or hand over a frame any more: all have set atEnd. A worker that
// takes a frame from a ring clears its atEnd first, and the worker that handed the frame over does not set its own before
// the ring is empty, so that none ends too early.
func (w *mover) allAtEnd() bool {
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

// goesOn clears atEnd, because the worker may still hand over or send frames.
func (w *mover) goesOn() {
	if w.atEnd.Load() {
		w.atEnd.Store(false)
	}
}

// relayTick returns the time of the worker's next step: at, or a microsecond after its last breath if
// frames wait that were handed to it, whichever is earlier.
func (w *mover) relayTick(at clock.Time) clock.Time {
	if w.handedOver() > 0 {
		at = min(at, w.ctx.now.Add(1000))
	}
	return at
}
