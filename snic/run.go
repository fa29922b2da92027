package snic

import (
	"math"
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
	for i >= 0 && i < len(d.tasks) && b.cat.tasks[d.tasks[i]].absent() {
		i += step // no longer deployed, or out of order
	}
	if i < 0 || i >= len(d.tasks) {
		if w.out < ports && b.pauses == nil {
			c.EmitAll(int(w.out), frames)
			return
		}
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
	t := &b.cat.tasks[d.tasks[i]]
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
		b.push(c, t, in, batch)
		d.took(i, b.spent.clock.Now().Sub(start), len(frames))
	} else {
		b.push(c, t, in, batch)
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

// push gives a task frames. If it panics it is halted: what it has emitted goes on, what it held is dropped.
func (b *board) push(c *graph.Ctx, t *task, in int, batch *packet.Batch) {
	if !t.in.Push(c, t.app, in, batch) {
		b.fell(t)
	}
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
	if stage, branches := b.sched.Stage(r.Packet); p.branches > 0 && int(p.stage) != stage || p.branches == 0 && branches > 1 {
		b.enter(c, r.Packet, stage, branches)
	}
	if p.lost || p.failed {
		b.sched.Return(r.Packet, r.Branch, true)
		return
	}
	id := int32(r.Packet<<laneBits | r.Branch)
	l := &b.lanes[id]
	l.region, l.mask = int32(r.Region), r.Mask
	if b.pass == 0 {
		if b.work.n == 0 {
			b.advance(c, id)
		} else {
			b.work.push(id)
		}
		return
	}
	// Copies of a header go together.
	if now := c.Now(); b.passes.busy < now || r.Packet != b.decided {
		b.passes.busy, b.decided = max(now, b.passes.busy.Add(b.decide)), r.Packet
	}
	at := b.passes.busy.Add(b.pass)
	b.passes.push(id, at)
	c.Wake(at)
}

// leave is the end of a packet on the full road.
func (b *board) leave(c *graph.Ctx, l sched.Left) {
	p := &b.packets[l.Packet]
	b.inside--
	if int(p.tenant) < len(b.cat.tenants) {
		d := &b.cat.services[p.way.dag]
		d.stay += (float64(c.Now().Sub(p.since)) - d.stay) / stays
	}
	b.waits[p.way.dag]--
	if p.from > 0 {
		if d := &b.cat.services[p.way.dag]; d.term == p.way.term && d.UID != 0 {
			d.lodge.guests[p.from-1].inside--
		}
	}
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
		if d := &b.cat.services[w.dag]; d.term == w.term && d.abroad.peer > 0 {
			b.request(c, d, w, x)
		} else if d.term == w.term && d.lodge.at > 0 {
			b.hand(c, d, w, x)
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
		if b.sync > 0 && b.packets[id>>laneBits].branches > 0 {
			at := c.Now().Add(b.sync)
			b.syncs.push(id, at)
			c.Wake(at)
			return
		}
		b.back(id, false)
		return
	}
	i := bits.TrailingZeros16(l.mask)
	l.mask &= l.mask - 1
	l.at = int8(i)
	n := b.cat.chains[b.cat.placed[l.region]].tasks[i]
	t := &b.cat.tasks[n]
	if t.absent() {
		b.work.push(id)
		return
	}
	if !t.modelled {
		b.feed(c, t, delayed{lane: id})
		return
	}
	slot := int(l.region)*sched.MaxTasks + i
	d := &b.wait[slot]
	if d.head == len(d.q) {
		b.modelled = append(b.modelled, int32(slot))
	}
	start := max(c.Now(), d.busy)
	if start > d.busy {
		d.rest = 0
	}
	d.busy = start
	if t.Throughput > 0 {
		size := int(b.packets[id>>laneBits].size) // of a frame that another branch has ended
		if l.buf != nil {
			size = l.buf.Len()
		}
		ns := float64(size)*8e9/float64(t.Throughput) + d.rest
		d.busy = start.Add(clock.Duration(ns))
		d.rest = ns - math.Floor(ns)
	}
	if d.head == len(d.q) {
		c.Wake(start.Add(t.Latency)) // else that of the first of them counts
	}
	d.push(id, start.Add(t.Latency))
}

// back returns a lane to the scheduler.
func (b *board) back(id int32, dropped bool) {
	l := &b.lanes[id]
	l.region, l.at, l.mask = -1, -1, 0
	b.sched.Return(int(id>>laneBits), int(id&(maxLanes-1)), dropped)
}

// feed gives frames to a task, in batches of those that go the same way, or, where the task makes none of its own, of which it
// would have to be known which way they go, in the same direction.
func (b *board) feed(c *graph.Ctx, t *task, frames ...delayed) {
	batch := &b.batches[b.depth]
	batch.Reset()
	var w way
	several := false
	for _, f := range frames {
		id := f.lane
		p := &b.packets[id>>laneBits]
		if n := batch.Len(); n > 0 && (several || p.way != w) {
			several = t.quiet && p.way.back == w.back && (b.spent.clock == nil || b.untimed(t, w, p.way, n+1))
			if !several {
				b.give(c, t, w, batch)
				batch.Reset()
			}
		}
		if w = p.way; b.ripe(c, t, id) {
			l := &b.lanes[id]
			l.buf.Tag = uint64(id) + 1
			l.lent = true
			b.held--
			batch.Add(l.buf)
		}
	}
	if batch.Len() > 0 {
		b.give(c, t, w, batch)
	}
}

// ripe reports whether a frame can go to a task now. One that cannot has been sent on without it.
func (b *board) ripe(c *graph.Ctx, t *task, id int32) bool {
	p := &b.packets[id>>laneBits]
	switch {
	case t.absent():
		b.work.push(id)
	case p.lost || p.failed:
		b.back(id, true)
	case t.halted:
		b.turnAway(c, id)
	case p.branches > 0 && !b.ready(c, p, &b.lanes[id], t):
		b.back(id, true)
	default:
		return true
	}
	return false
}

// untimed reports whether a task may have n packets in one batch that go several ways, two of which are given: one that is to be
// timed has to be of one DAG.
func (b *board) untimed(t *task, x, y way, n int) bool {
	return t.untimed+n < timedEvery && b.costKnown(t, x.dag) && b.costKnown(t, y.dag)
}

// costKnown reports whether it has been measured what a packet of a DAG costs in a task.
func (b *board) costKnown(t *task, dag int32) bool {
	d := &b.cat.services[dag]
	k := b.place(d, t)
	return k < 0 || d.costs[k] > 0
}

// give gives a task a batch whose frames go the way w, the last of them if they go several, and takes what the task lets go of.
func (b *board) give(c *graph.Ctx, t *task, w way, batch *packet.Batch) {
	t.way = w
	d, n := &b.cat.services[w.dag], batch.Len()
	if k := b.place(d, t); k >= 0 && b.timed(t, d, k, n) {
		start := b.spent.clock.Now()
		b.push(c, t, side(w.back), batch)
		d.took(k, b.spent.clock.Now().Sub(start), n)
	} else {
		b.push(c, t, side(w.back), batch)
	}
	b.sweep(c, t, t.in)
}

// place is where a task is in a DAG; -1: it is not there, or nobody asks as nothing is timed.
func (b *board) place(d *service, t *task) int {
	if b.spent.clock != nil {
		for i, n := range d.tasks {
			if &b.cat.tasks[n] == t {
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
		w = wayOf(x.Tag)
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

// wayOf is the way that a tag was made of.
func wayOf(t uint64) way {
	return way{int32(t >> 32 & (maxDAGs - 1)), t&(1<<10) != 0, uint16(t & (1<<10 - 1)), uint16(t >> 16 & (numberTerms - 1))}
}

// turned is the way back.
func (w way) turned() way { return way{w.dag, !w.back, w.out ^ 1, w.term} }

// onward takes a frame that a task made on from there.
func (b *board) onward(c *graph.Ctx, t *task, w way, x *packet.Buf) {
	if w.dag < 0 {
		b.emit(c, w, x)
		return
	}
	d := &b.cat.services[w.dag]
	if d.term != w.term {
		b.emit(c, w, x)
		return
	}
	for i, n := range d.tasks {
		if &b.cat.tasks[n] == t {
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
		b.returned(p, l, t)
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
	l, p := &b.lanes[id], &b.packets[id>>laneBits]
	if p.branches > 0 && l.buf == p.original { // it was the frame of other branches, too
		for i := range int(p.branches) {
			if y := &b.lanes[int(id)&^(maxLanes-1)+i]; y.buf == p.original {
				y.buf = nil
			}
		}
		p.original, p.lent = nil, false
	}
	l.buf, l.lent = nil, false
	p.lost = true
	b.back(id, true)
}

// due takes packets out of modelled tasks whose time has come, and returns when the
// next one's does.
func (b *board) due(c *graph.Ctx) clock.Time {
	now, next := c.Now(), clock.Never
	for id, ok := b.passes.pop(now); ok; id, ok = b.passes.pop(now) {
		b.work.push(id)
	}
	for id, ok := b.syncs.pop(now); ok; id, ok = b.syncs.pop(now) {
		b.back(id, false)
	}
	next = min(b.passes.next(), b.syncs.next())
	slots := b.modelled
	n := 0
	for i := 0; i < len(slots); i++ {
		d := &b.wait[slots[i]]
		for d.head < len(d.q) && d.q[d.head].at <= now {
			from := d.head
			for d.head < min(len(d.q), from+packet.MaxBatch) && d.q[d.head].at <= now {
				d.head++
			}
			l := &b.lanes[d.q[from].lane] // all are in one region, which runs one chain
			b.feed(c, &b.cat.tasks[b.cat.chains[b.cat.placed[l.region]].tasks[l.at]], d.q[from:d.head]...)
		}
		if d.head == len(d.q) {
			d.q, d.head = d.q[:0], 0
			continue
		}
		next = min(next, d.next())
		slots[n] = slots[i]
		n++
	}
	b.modelled = slots[:n]
	return next
}
