package snic

import (
	"math/bits"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/sched"
)

// maxDepth is how many tasks a frame may come to in one go, there and back: what
// tasks throw at each other beyond that is dropped.
const maxDepth = 3 * sched.MaxTasks

// side is the input of a task for a direction, and the output of the other one;
// its other output is 1-side.
func side(back bool) int {
	if back {
		return 1
	}
	return 0
}

// run takes frames through the tasks of a DAG from number i on, in the direction
// of w, with whatever tasks answer or make on the way, and out. Nobody has a credit
// for what tasks make.
func (b *board) run(c *graph.Ctx, d *service, i int, w way, frames []*packet.Buf) {
	step := 1 - 2*side(w.back)
	for i >= 0 && i < len(d.tasks) && b.tasks[d.tasks[i]].absent() {
		i += step // no longer deployed, or out of order
	}
	if i < 0 || i >= len(d.tasks) {
		for _, x := range frames {
			b.emit(c, w, x)
		}
		return
	}
	if b.depth == maxDepth {
		for _, x := range frames {
			c.Drop(x, reasonLoop)
		}
		return
	}
	t := &b.tasks[d.tasks[i]]
	if t.halted {
		for _, x := range frames {
			c.Drop(x, reasonFaulted)
		}
		return
	}
	batch := &b.batches[b.depth]
	batch.Reset()
	batch.Append(frames)
	if t.holds {
		for _, x := range frames {
			x.Tag = w.tag()
		}
	}
	t.way = w
	in := side(w.back)
	if b.timed(t, d, i, len(frames)) {
		start := b.spent.clock.Now()
		t.in.Push(c, t.app, in, batch)
		d.took(i, b.spent.clock.Now().Sub(start), len(frames))
	} else {
		t.in.Push(c, t.app, in, batch)
	}
	b.gone(t)
	b.depth++
	for t.in.Emitted(1-in) > 0 {
		batch.Reset()
		t.in.Take(c, 1-in, batch)
		if t.holds {
			b.known(c, t, batch, 1-in, w)
		}
		b.run(c, d, i+step, w, batch.Bufs())
	}
	for t.in.Emitted(in) > 0 {
		batch.Reset()
		t.in.Take(c, in, batch)
		if t.holds {
			b.known(c, t, batch, in, w.turned())
		}
		b.run(c, d, i-step, w.turned(), batch.Bufs())
	}
	b.depth--
	batch.Reset()
}

// start is where a DAG begins in a direction.
func (d *service) start(back bool) int {
	if back {
		return len(d.tasks) - 1
	}
	return 0
}

// pump has the scheduler's packets run until none can go on, and reports whether some could.
func (b *board) pump(c *graph.Ctx) (some bool) {
	for ; ; some = true {
		if r, ok := b.sched.Next(); ok {
			b.begin(c, r)
		} else if l, ok := b.sched.Leave(); ok {
			b.leave(c, l)
			continue
		} else if b.work.n == 0 {
			return some
		}
		for b.work.n > 0 {
			b.advance(c, b.work.pop())
		}
	}
}

// begin begins a run that the scheduler tells of.
func (b *board) begin(c *graph.Ctx, r sched.Run) {
	p := &b.packets[r.Packet]
	p.begun = true
	if r.Branches > 1 || p.branches > 0 {
		b.enter(c, r)
	}
	if p.lost || p.failed {
		b.sched.Return(r.Packet, r.Branch, true)
		return
	}
	id := int32(r.Packet<<laneBits | r.Branch)
	l := &b.lanes[id]
	l.region, l.mask = int32(r.Region), r.Mask
	b.work.push(id)
}

// leave is the end of a packet on the full road.
func (b *board) leave(c *graph.Ctx, l sched.Left) {
	p := &b.packets[l.Packet]
	b.inside--
	if b.fair != nil && int(p.tenant) < len(b.tenants) {
		d := &b.services[p.way.dag]
		d.stay += (float64(c.Now().Sub(p.since)) - d.stay) / stays
	}
	b.waits[p.way.dag]--
	b.promised -= int(p.promised)
	p.promised = 0
	b.stored -= int64(p.size)
	b.kept[p.tenant].packets--
	b.kept[p.tenant].bytes -= int64(p.size)
	if p.way.back {
		b.backs[p.way.dag]--
	}
	if p.branches > 0 {
		if l.Dropped == sched.None {
			b.merge(c, l.Packet)
		} else {
			b.scrap(c, l.Packet)
		}
	}
	first := &b.lanes[l.Packet<<laneBits]
	x := first.buf
	w, begun := p.way, p.begun
	first.buf, p.begun = nil, false
	if x == nil {
		return // a task dropped it
	}
	b.held--
	x.Tag = 0
	switch {
	case p.failed:
		c.Drop(x, reasonNoCopy)
		return
	case l.Dropped != sched.None:
		c.Drop(x, refusals[l.Dropped])
		return
	}
	if !begun {
		// No task was on its way: its DAG is, or was, at a peer.
		if d := &b.services[w.dag]; d.term == w.term && d.abroad.peer > 0 {
			b.request(c, d, w, x)
		} else {
			c.Drop(x, reasonGone)
		}
		return
	}
	b.emit(c, w, x)
}

// advance takes a lane to the next task of its run, or back to the scheduler.
func (b *board) advance(c *graph.Ctx, id int32) {
	l := &b.lanes[id]
	if l.mask == 0 {
		b.back(id, false)
		return
	}
	i := bits.TrailingZeros16(l.mask)
	l.mask &= l.mask - 1
	l.at = int8(i)
	n := b.chains[b.placed[l.region]].tasks[i]
	t := &b.tasks[n]
	if t.absent() {
		b.work.push(id)
		return
	}
	if !t.modelled {
		b.feed(c, id, t)
		return
	}
	slot := int(l.region)*sched.MaxTasks + i
	d := &b.wait[slot]
	if d.head == len(d.q) {
		b.modelled = append(b.modelled, int32(slot))
	}
	start := max(c.Now(), d.busy)
	d.busy = start
	if t.Throughput > 0 {
		d.busy = start.Add(clock.Duration(float64(l.buf.Len()) * 8e9 / float64(t.Throughput)))
	}
	d.push(id, start.Add(t.Latency))
	c.Wake(start.Add(t.Latency))
}

// back returns a lane to the scheduler.
func (b *board) back(id int32, dropped bool) {
	l := &b.lanes[id]
	l.region, l.at, l.mask = -1, -1, 0
	b.sched.Return(int(id>>laneBits), int(id&(maxLanes-1)), dropped)
}

// feed gives a frame to a task.
func (b *board) feed(c *graph.Ctx, id int32, t *task) {
	p := &b.packets[id>>laneBits]
	l := &b.lanes[id]
	switch {
	case t.absent():
		b.work.push(id)
		return
	case p.lost:
		b.back(id, true)
		return
	case t.halted:
		b.turnAway(c, id)
		return
	case p.branches > 0:
		b.ready(p, l, t)
	}
	batch := &b.batches[b.depth]
	batch.Reset()
	l.buf.Tag = uint64(id) + 1
	batch.Add(l.buf)
	t.way = p.way
	b.held--
	l.lent = true
	d := &b.services[p.way.dag]
	if k := b.place(d, t); k >= 0 && b.timed(t, d, k, 1) {
		start := b.spent.clock.Now()
		t.in.Push(c, t.app, side(p.way.back), batch)
		d.took(k, b.spent.clock.Now().Sub(start), 1)
	} else {
		t.in.Push(c, t.app, side(p.way.back), batch)
	}
	b.sweep(c, t, t.in)
}

// place is where a task is in a DAG; -1: it is not there, or nobody asks as nothing is timed.
func (b *board) place(d *service, t *task) int {
	if b.spent.clock != nil {
		for i, n := range d.tasks {
			if &b.tasks[n] == t {
				return i
			}
		}
	}
	return -1
}

// sweep takes what a task has let go of, by the app that it is or was.
func (b *board) sweep(c *graph.Ctx, t *task, in *graph.Inside) {
	in.Gone(b.lost)
	for out := range 2 {
		for in.Emitted(out) > 0 {
			batch := &b.batches[b.depth]
			batch.Reset()
			in.Take(c, out, batch)
			b.depth++
			for _, x := range batch.Bufs() {
				if w, ok := b.let(t, x, out); ok {
					b.onward(c, t, w, x)
				}
			}
			b.depth--
		}
	}
}

// let settles a frame that a task has let go of. Unless it goes on with its credits, as a
// packet of the full road that the task is done with, let says which way it goes
// from there: of what came to the task the way that it came, turned if it is sent
// back; of what the task made the way of what came last.
func (b *board) let(t *task, x *packet.Buf, out int) (way, bool) {
	w := t.way
	if id, ok := b.own(x); ok {
		w = b.packets[id>>laneBits].way
		if side(w.back) != out {
			b.done(t, id)
			return w, false
		}
		b.complete(id)
		b.forsake(id)
	} else if x.Tag&tagged != 0 {
		w = way{int32(x.Tag >> 32 & (maxDAGs - 1)), x.Tag&(1<<10) != 0, uint16(x.Tag & (1<<10 - 1)), uint16(x.Tag >> 16 & (numberTerms - 1))}
	}
	x.Tag = 0
	if side(w.back) == out {
		w = w.turned()
	}
	return w, true
}

// tagged tells the tag of a frame that goes its way without credits from that of a
// packet of the full road.
const tagged = 1 << 63

// numberTerms is how many DAGs of a number are told apart.
const numberTerms = 1 << 10

// tag is a way as the tag of a frame.
func (w way) tag() uint64 {
	t := tagged | uint64(w.term)<<16 | uint64(w.dag)<<32 | uint64(w.out)
	if w.back {
		t |= 1 << 10
	}
	return t
}

// turned is the way back.
func (w way) turned() way { return way{w.dag, !w.back, w.out ^ 1, w.term} }

// onward takes a frame that a task made on from there.
func (b *board) onward(c *graph.Ctx, t *task, w way, x *packet.Buf) {
	if w.dag < 0 {
		b.emit(c, w, x)
		return
	}
	d := &b.services[w.dag]
	if d.term != w.term {
		b.emit(c, w, x)
		return
	}
	for i, n := range d.tasks {
		if &b.tasks[n] == t {
			b.one[0] = x
			b.run(c, d, i+1-2*side(w.back), w, b.one[:])
			return
		}
	}
	b.emit(c, w, x)
}

// known settles what a task that holds packets emits while others run through it at
// once: what does not go their way is taken out of the batch.
func (b *board) known(c *graph.Ctx, t *task, batch *packet.Batch, out int, w way) {
	bufs := batch.Bufs()
	n := 0
	for _, x := range bufs {
		own, ok := b.let(t, x, out)
		switch {
		case !ok:
		case own == w:
			bufs[n] = x
			n++
		default:
			b.onward(c, t, own, x)
		}
	}
	batch.Reset()
	batch.Append(bufs[:n])
}

// done is a packet of the full road that comes back from a task.
func (b *board) done(t *task, id int32) {
	l := &b.lanes[id]
	l.lent = false
	b.held++
	if p := &b.packets[id>>laneBits]; p.branches > 0 {
		b.remarked(p, l, t)
	}
	b.sched.Release(int(id>>laneBits), int(id&(maxLanes-1)), int(l.at))
	b.work.push(id)
}

// own is the lane of the full road whose frame it is.
func (b *board) own(x *packet.Buf) (int32, bool) {
	if x.Tag == 0 || x.Tag > uint64(len(b.lanes)) {
		return 0, false
	}
	l := &b.lanes[x.Tag-1]
	return int32(x.Tag - 1), l.lent && l.buf == x
}

// gone settles packets that a task has dropped.
func (b *board) gone(t *task) {
	t.in.Gone(b.lost)
}

// forsake ends a packet's way whose frame is no longer the board's.
func (b *board) forsake(id int32) {
	l := &b.lanes[id]
	l.buf, l.lent = nil, false
	b.packets[id>>laneBits].lost = true
	b.back(id, true)
}

// due takes packets out of modelled tasks whose time has come, and returns when the
// next one's does.
func (b *board) due(c *graph.Ctx) clock.Time {
	now, next := c.Now(), clock.Never
	slots := b.modelled
	n := 0
	for i := 0; i < len(slots); i++ {
		d := &b.wait[slots[i]]
		for d.head < len(d.q) && d.q[d.head].at <= now {
			id := d.q[d.head].lane
			d.head++
			p := &b.lanes[id]
			b.feed(c, id, &b.tasks[b.chains[b.placed[p.region]].tasks[p.at]])
		}
		if d.head == len(d.q) {
			d.q, d.head = d.q[:0], 0
			continue
		}
		next = min(next, d.q[d.head].at)
		slots[n] = slots[i]
		n++
	}
	b.modelled = slots[:n]
	return next
}
