package snic

import (
	"errors"
	"math/bits"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/sched"
	"github.com/quillon/quillon/snic/vmem"
)

// maxDepth is the most tasks that a frame may come to in one go, forward and back.
// Frames that tasks send to each other beyond that are dropped.
const maxDepth = 3 * sched.MaxTasks

// runner has the packets inside the board, and runs them through tasks: at once, or one by one as the scheduler says, on lanes side by
// side.
type runner struct {
	cargo
	set   *settings
	stock *stock
	split *shares
	gates *gates

	sched    *sched.Scheduler
	backs    [maxDAGs]int32 // packets inside that go back, by service
	waits    [maxDAGs]int32 // packets inside, by service
	wait     []delay        // of each task in each region, when it is modelled
	passes   delay          // lanes on their way through the scheduler, where that is modelled
	syncs    delay          // lanes on their way through the synchronisation buffer, likewise
	resumed  int32          // the lane that goes on now, after it was kept: it takes no time of the scheduler
	decided  int            // the packet of the scheduler's last decision
	modelled []int32        // of wait, those with packets
	lost     func(tag uint64)
	one      [1]*packet.Buf
	fed      []int32        // lanes of the batch that a task is given
	began    []int32        // lanes of the packets that began since open
	work     ring           // lanes that go on; first come, first served, so that flows keep their order
	batches  []packet.Batch // by depth
	depth    int
	convoy   convoy
}

// side is the input of a task for packets of a direction. Packets of the other
// direction leave by the output of the same number; this direction leaves by 1-side.
func side(back bool) int {
	if back {
		return 1
	}
	return 0
}

// run takes frames through the tasks of a DAG, from task i on in the direction of w,
// and out; also frames with which tasks answer, or which they make. Frames that tasks
// make use no credits.
func (rn *runner) run(c *graph.Ctx, d *service, i int, w way, frames []*packet.Buf) {
	step := 1 - 2*side(w.back)
	for i >= 0 && i < len(d.tasks) && rn.cat.tasks[d.tasks[i]].absent() {
		i += step // the task is no longer deployed, or halted with fault: pass
	}
	if i < 0 || i >= len(d.tasks) {
		if w.out < ports && rn.gates.pauses == nil {
			rn.gates.send(c, int(w.out), frames)
			return
		}
		for _, x := range frames {
			rn.gates.emit(c, w, x)
		}
		return
	}
	if rn.depth == maxDepth {
		for _, x := range frames {
			c.Drop(x, reasonLoop)
		}
		return
	}
	t := &rn.cat.tasks[d.tasks[i]]
	if t.halted {
		for _, x := range frames {
			c.Drop(x, reasonFaulted)
		}
		return
	}
	batch := &rn.batches[rn.depth]
	batch.Reset()
	batch.Append(frames)
	if t.holds {
		for _, x := range frames {
			x.Tag = w.tag()
		}
	}
	t.way = w
	in := side(w.back)
	if rn.split.timed(t, d, i, len(frames)) {
		start := rn.split.spent.clock.Now()
		rn.push(c, t, in, batch)
		rn.split.took(d, i, rn.split.spent.clock.Now().Sub(start), len(frames))
	} else {
		rn.push(c, t, in, batch)
	}
	t.in.Gone(rn.lost)
	rn.depth++
	for t.in.Emitted(1-in) > 0 {
		batch.Reset()
		t.in.Take(c, 1-in, batch)
		if t.holds {
			rn.known(c, t, batch, 1-in, w)
		}
		rn.run(c, d, i+step, w, batch.Bufs())
	}
	for t.in.Emitted(in) > 0 {
		batch.Reset()
		t.in.Take(c, in, batch)
		if t.holds {
			rn.known(c, t, batch, in, w.turned())
		}
		rn.run(c, d, i-step, w.turned(), batch.Bufs())
	}
	rn.depth--
	batch.Reset()
}

// push gives a task frames. If it panics it is halted: what it has emitted goes on, what it held is dropped.
func (rn *runner) push(c *graph.Ctx, t *task, in int, batch *packet.Batch) {
	if !t.in.Push(c, t.app, in, batch) {
		t.fell()
	}
}

// start is where a DAG begins in a direction.
func (d *service) start(back bool) int {
	if back {
		return len(d.tasks) - 1
	}
	return 0
}

// pump runs the scheduler's packets until none can go on, or a link is nearly full, and reports whether any ran.
func (rn *runner) pump(c *graph.Ctx) (some bool) {
	for ; ; some = true {
		if rn.gates.crowded {
			c.Wake(c.Now())
			return some
		}
		if r, ok := rn.sched.Next(); ok {
			rn.begin(c, r, false)
		} else if l, ok := rn.sched.Leave(); ok {
			rn.leave(c, l)
			continue
		} else if rn.work.n == 0 {
			return some
		}
		for rn.work.n > 0 {
			id := rn.work.pop()
			l := &rn.lanes[id]
			rn.advance(c, id, l, l.region, l.mask)
		}
	}
}

// begin starts a run that the scheduler has decided on; behind: it waits behind the lanes that are to go on.
func (rn *runner) begin(c *graph.Ctx, r sched.Run, behind bool) {
	n, id := r.Lane>>laneBits, int32(r.Lane)
	p, l := &rn.packets[n], &rn.lanes[r.Lane]
	p.begun = true
	if stage, branches := rn.sched.Stage(n); p.branches > 0 && int(p.stage) != stage || p.branches == 0 && branches > 1 {
		rn.enter(c, n, stage, branches)
	}
	if p.lost || p.failed {
		rn.sched.Return(r.Lane, true)
		return
	}
	if rn.set.pass == 0 && rn.work.n == 0 && !behind {
		rn.advance(c, id, l, int16(r.Region), r.Mask)
		return
	}
	l.region, l.mask = int16(r.Region), r.Mask
	if rn.set.pass == 0 || behind && id == rn.resumed {
		rn.work.push(id)
		return
	}
	// Copies of a header go together.
	if now := c.Now(); rn.passes.busy < now || n != rn.decided {
		rn.passes.busy, rn.decided = max(now, rn.passes.busy.Add(rn.set.decide)), n
	}
	at := rn.passes.busy.Add(rn.set.pass)
	rn.passes.push(id, at)
	c.Wake(at)
}

// leave ends a packet on the full road.
func (rn *runner) leave(c *graph.Ctx, l sched.Left) {
	p := &rn.packets[l.Packet]
	d, k := &rn.cat.services[p.way.dag], &rn.stock.kept[p.tenant]
	rn.stock.inside--
	if int(p.tenant) < len(rn.cat.tenants) {
		d.stay += (float64(c.Now().Sub(p.since)) - d.stay) / stays
	}
	rn.waits[p.way.dag]--
	if p.from > 0 && d.term == p.way.term && d.UID != 0 {
		d.lodge.guests[p.from-1].inside--
	}
	rn.promised -= int(p.promised)
	p.promised = 0
	rn.stock.stored -= int64(p.size)
	k.packets--
	k.bytes -= int64(p.size)
	if p.way.back {
		rn.backs[p.way.dag]--
	}
	if p.branches > 0 {
		if l.Dropped == sched.None {
			rn.merge(c, l.Packet)
		} else {
			rn.scrap(c, l.Packet)
		}
	}
	first := &rn.lanes[l.Packet<<laneBits]
	x := first.buf
	w, begun := p.way, p.begun
	first.buf, p.begun = nil, false
	if x == nil {
		return // a task dropped it
	}
	rn.held--
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
		if d.term == w.term && d.where.to > 0 {
			rn.gates.request(c, d, w, x)
		} else if d.term == w.term && d.where.to < 0 {
			rn.gates.hand(c, d, w, x, true)
		} else {
			c.Drop(x, reasonGone)
		}
		return
	}
	rn.gates.emit(c, w, x)
}

// advance takes lane l, whose number is id, to the next task of its run, or back to the scheduler. Region and mask are arguments and
// are not loaded from the lane, where they may just have been stored.
func (rn *runner) advance(c *graph.Ctx, id int32, l *lane, region int16, mask uint16) {
	if mask == 0 {
		if rn.set.sync > 0 && rn.packets[id>>laneBits].branches > 0 {
			at := c.Now().Add(rn.set.sync)
			rn.syncs.push(id, at)
			c.Wake(at)
			return
		}
		rn.back(id, l, false)
		return
	}
	i := bits.TrailingZeros16(mask)
	l.region, l.mask, l.at = region, mask&(mask-1), int8(i)
	slot := int(region)*sched.MaxTasks + i
	d := &rn.wait[slot]
	t := &rn.cat.tasks[d.task]
	if t.absent() {
		rn.work.push(id)
		return
	}
	if !t.modelled {
		rn.feed(c, t, delayed{lane: id})
		return
	}
	rn.enqueue(c, slot, d, t, 0, id)
}

// back returns a lane to the scheduler.
func (rn *runner) back(id int32, l *lane, dropped bool) {
	l.region, l.at, l.mask, l.kept = -1, -1, 0, false
	rn.sched.Return(int(id), dropped)
}

// feed gives frames to a task, in batches of frames that go the same way. If the task makes no frames of its own, whose way would
// have to be known, the frames of a batch only go in the same direction.
func (rn *runner) feed(c *graph.Ctx, t *task, frames ...delayed) {
	frames = frames[rn.feedAlike(c, t, frames):]
	batch := &rn.batches[rn.depth]
	batch.Reset()
	var w way
	timed := rn.split.spent.clock != nil
	several, joint := false, t.quiet && !timed // joint: only the direction counts
	for i := range frames {
		id := frames[i].lane
		p, l := &rn.packets[id>>laneBits], &rn.lanes[id]
		if n := batch.Len(); n > 0 && !(joint && p.way.back == w.back) && (several || p.way != w) {
			several = t.quiet && p.way.back == w.back && timed && rn.split.untimed(t, w, p.way, n+1)
			if !several {
				rn.give(c, t, w, batch)
				batch.Reset()
			}
		}
		if w = p.way; rn.ripe(c, t, id, p, l) {
			l.buf.Tag = uint64(id) + 1
			l.lent = true
			rn.held--
			batch.Add(l.buf)
			rn.fed = append(rn.fed, id)
		}
	}
	if batch.Len() > 0 {
		rn.give(c, t, w, batch)
	}
}

// ripe reports whether a frame can go to a task now. A frame that cannot has been sent on without the task.
func (rn *runner) ripe(c *graph.Ctx, t *task, id int32, p *inside, l *lane) bool {
	switch {
	case t.absent():
		rn.work.push(id)
	case p.lost || p.failed:
		rn.back(id, l, true)
	case t.halted:
		rn.turnAway(c, id)
	case p.branches > 0 && !rn.ready(c, id, p, l, t):
		rn.back(id, l, true)
	default:
		return true
	}
	return false
}

// give gives a task a batch whose frames go the way w (if they go several ways, w is that of the last), and takes the frames that the
// task lets go of.
func (rn *runner) give(c *graph.Ctx, t *task, w way, batch *packet.Batch) {
	t.way = w
	d, n := &rn.cat.services[w.dag], batch.Len()
	if k := rn.split.place(d, t); k >= 0 && rn.split.timed(t, d, k, n) {
		start := rn.split.spent.clock.Now()
		rn.push(c, t, side(w.back), batch)
		rn.split.took(d, k, rn.split.spent.clock.Now().Sub(start), n)
	} else {
		rn.push(c, t, side(w.back), batch)
	}
	if !rn.passed(c, t, 1-side(w.back)) {
		rn.sweep(c, t, t.in)
		rn.keeps(t)
	}
	rn.fed = rn.fed[:0]
}

// keeps notes which frames of a batch a task has kept.
func (rn *runner) keeps(t *task) {
	if !t.holds {
		return
	}
	for _, id := range rn.fed {
		if l := &rn.lanes[id]; l.lent {
			l.kept = true
			rn.sched.Keep(int(id), int(l.at))
		}
	}
}

// sweep takes the frames that a task has let go of, from the app that is or was the task's.
func (rn *runner) sweep(c *graph.Ctx, t *task, in *graph.Inside) {
	in.Gone(rn.lost)
	for out := range 2 {
		for in.Emitted(out) > 0 {
			batch := &rn.batches[rn.depth]
			batch.Reset()
			in.Take(c, out, batch)
			rn.depth++
			for _, x := range batch.Bufs() {
				if w, ok := rn.let(c, t, x, out); ok {
					rn.onward(c, t, w, x)
				}
			}
			rn.depth--
		}
	}
}

// let settles a frame that a task has let go of. Unless it goes on with its credits, as a
// packet of the full road that the task is done with, let says which way it goes
// from there: of what came to the task the way that it came, turned if it is sent
// back; of what the task made the way of what came last.
func (rn *runner) let(c *graph.Ctx, t *task, x *packet.Buf, out int) (way, bool) {
	w := t.way
	if id, l := rn.own(x); l != nil {
		p := &rn.packets[id>>laneBits]
		if side(p.way.back) != out {
			rn.done(c, t, id, p, l)
			return way{}, false
		}
		w = p.way
		whole := p.branches == 0 || rn.fetch(id, p, l) // a copy that leaves its stage by itself, as an answer, is to be whole
		rn.forsake(id)
		if !whole {
			x.Tag = 0
			c.Drop(x, reasonFaulted)
			return way{}, false
		}
	} else if x.Tag&tagged != 0 {
		w = wayOf(x.Tag)
	}
	x.Tag = 0
	if side(w.back) == out {
		w = w.turned()
	}
	return w, true
}

// tagged is set in the tag of a frame that goes its way without credits, and not in that
// of a packet of the full road.
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

// port is the port by which frames leave; pool is the number of the port to peers.
func (w way) port(pool int) int {
	if w.out < ports {
		return int(w.out)
	}
	return pool
}

// turned is the way back.
func (w way) turned() way { return way{w.dag, !w.back, w.out ^ 1, w.term} }

// onward takes a frame that a task made on from there.
func (rn *runner) onward(c *graph.Ctx, t *task, w way, x *packet.Buf) {
	if w.dag < 0 {
		rn.gates.emit(c, w, x)
		return
	}
	d := &rn.cat.services[w.dag]
	if d.term != w.term {
		rn.gates.emit(c, w, x)
		return
	}
	for i, n := range d.tasks {
		if &rn.cat.tasks[n] == t {
			rn.one[0] = x
			rn.run(c, d, i+1-2*side(w.back), w, rn.one[:])
			return
		}
	}
	rn.gates.emit(c, w, x)
}

// known sorts the frames that a task emits while a batch runs through it at once. Frames
// that the task held before, and that go another way, are taken out of the batch.
func (rn *runner) known(c *graph.Ctx, t *task, batch *packet.Batch, out int, w way) {
	bufs := batch.Bufs()
	n := 0
	for _, x := range bufs {
		own, ok := rn.let(c, t, x, out)
		switch {
		case !ok:
		case own == w:
			bufs[n] = x
			n++
		default:
			rn.onward(c, t, own, x)
		}
	}
	batch.Reset()
	batch.Append(bufs[:n])
}

// done is a packet of the full road that comes back from a task.
func (rn *runner) done(c *graph.Ctx, t *task, id int32, p *inside, l *lane) {
	l.lent = false
	rn.held++
	if p.branches > 0 {
		rn.returned(id, p, l, t)
	}
	if l.mask == 0 && (rn.set.sync == 0 || p.branches == 0) {
		rn.back(id, l, false)
		return
	}
	if l.kept && l.mask != 0 {
		rn.back(id, l, false)
		// Before the task lets others go, which have their credits still.
		rn.resumed = id
		for r, ok := rn.sched.Next(); ok; r, ok = rn.sched.Next() {
			rn.begin(c, r, true)
		}
		return
	}
	if !l.kept {
		rn.sched.Release(int(id), int(l.at))
	}
	rn.work.push(id)
}

// own is the lane of the full road that a frame belongs to, and its number; nil: none.
func (rn *runner) own(x *packet.Buf) (int32, *lane) {
	id := x.Tag - 1
	if id >= uint64(len(rn.lanes)) {
		return 0, nil
	}
	l := &rn.lanes[id]
	if !l.lent || l.buf != x {
		return 0, nil
	}
	return int32(id), l
}

// forsake ends a packet's way whose frame is no longer the board's.
func (rn *runner) forsake(id int32) {
	l, p := &rn.lanes[id], &rn.packets[id>>laneBits]
	if p.branches > 0 && l.buf == p.original { // it was the frame of other branches, too
		for i := range int(p.branches) {
			if y := &rn.lanes[int(id)&^(maxLanes-1)+i]; y.buf == p.original {
				y.buf = nil
			}
		}
		p.original, p.lent = nil, false
	}
	l.buf, l.lent = nil, false
	p.lost = true
	rn.back(id, l, true)
}

// due takes packets whose time has come out of modelled tasks, and returns the time of
// the next one.
func (rn *runner) due(c *graph.Ctx) clock.Time {
	now, next := c.Now(), clock.Never
	for id, ok := rn.passes.pop(now); ok; id, ok = rn.passes.pop(now) {
		rn.work.push(id)
	}
	for id, ok := rn.syncs.pop(now); ok; id, ok = rn.syncs.pop(now) {
		rn.back(id, &rn.lanes[id], false)
	}
	next = min(rn.passes.next(), rn.syncs.next())
	slots := rn.modelled
	n := 0
	for i := 0; i < len(slots); i++ {
		d := &rn.wait[slots[i]]
		for d.head < len(d.q) && d.q[d.head].at <= now {
			ripe := d.q[d.head:min(len(d.q), d.head+packet.MaxBatch)]
			for k := range ripe {
				if ripe[k].at > now {
					ripe = ripe[:k]
					break
				}
			}
			d.head += len(ripe)
			rn.feed(c, &rn.cat.tasks[d.task], ripe...)
		}
		if d.head == len(d.q) {
			d.q, d.head = d.q[:0], 0
			continue
		}
		next = min(next, d.next())
		slots[n] = slots[i]
		n++
	}
	rn.modelled = slots[:n]
	return next
}

// init makes a runner of a board's size, without a scheduler.
func (rn *runner) init(s *settings, cat *catalog, stock *stock, split *shares, gates *gates) {
	*rn = runner{
		cargo: cargo{cat: cat, packets: make([]inside, s.packets), lanes: make([]lane, s.packets<<laneBits), branches: make([]branch, s.packets<<laneBits)},
		set:   s, stock: stock, split: split, gates: gates,
		wait:    make([]delay, max(s.regions, 1)*sched.MaxTasks),
		work:    newRing(s.packets << laneBits),
		batches: make([]packet.Batch, 2*maxDepth),
		fed:     make([]int32, 0, packet.MaxBatch),
		began:   make([]int32, 0, packet.MaxBatch),
		convoy:  convoy{taken: make([]taken, 0, packet.MaxBatch)},
	}
	rn.lost = func(tag uint64) {
		if tag-1 < uint64(len(rn.lanes)) && rn.lanes[tag-1].lent {
			rn.forsake(int32(tag - 1))
		}
	}
}

// accept takes a group of packets in: they run at once, or go to the packet store and the scheduler.
func (rn *runner) accept(c *graph.Ctx, g *group, d *service) {
	bufs := g.batch.Bufs()
	at := 0
	if d.bulk && !(g.way.back && rn.backs[g.way.dag] > 0) {
		at = rn.rush(c, g, d)
	}
	route := 2 * int(g.way.dag)
	if g.way.back {
		route++
	}
	if at < len(bufs) {
		rn.store(c, g, d, route, at)
	}
}

// store takes the packets of a group, from number at on, into the packet store: they begin at once, or wait for the scheduler.
func (rn *runner) store(c *graph.Ctx, g *group, d *service, route, at int) {
	bufs := g.batch.Bufs()
	k := &rn.stock.kept[d.tenant]
	runs := rn.open(d, route, len(bufs)-at)
	for i := at; i < len(bufs); i++ {
		x := bufs[i]
		// No tenant may have more of the packet store than it leaves free. So a tenant that
		// floods, or waits for a region, does not fill the store (dynamic thresholds, Choudhury
		// and Hahne, 1998).
		if rn.split.fair != nil && rn.stock.full(k, x.Len()) {
			c.Drop(x, reasonOverQuota)
			continue
		}
		way := route
		if d.aside != nil && rn.goesAside(d, g.flows[i]) {
			way += besides
		}
		copies := 0
		if d.width > 0 && d.copies > 0 {
			if copies = d.copies; !rn.canCopy(x, copies) {
				copies, way = 0, way+inLine
			}
		}
		var id int
		var begun bool
		var r sched.Reason
		if runs != nil && way == route {
			id, begun, r = rn.sched.Start(x.Len(), g.flows[i], d.tenant)
		} else {
			rn.start(c, runs)
			runs = nil
			id, r = rn.sched.Arrive(way, x.Len(), g.flows[i], d.tenant)
		}
		if r != sched.None {
			c.Drop(x, refusals[r])
			continue
		}
		rn.promised += copies
		p := &rn.packets[id]
		p.begun, p.lost, p.failed, p.lent = begun, false, false, false
		p.way, p.promised, p.since, p.size, p.tenant, p.from = g.way, uint8(copies), c.Now(), int32(x.Len()), int32(d.tenant), int8(g.from)
		p.original, p.stage, p.branches, p.changed = nil, 0, 0, false
		if g.from > 0 {
			d.lodge.guests[g.from-1].inside++
		}
		first := id << laneBits
		rn.stock.inside++
		rn.stock.stored += int64(x.Len())
		k.packets++
		k.bytes += int64(x.Len())
		rn.held++
		rn.waits[g.way.dag]++
		if g.way.back {
			rn.backs[g.way.dag]++
		}
		x.Tag = uint64(first) + 1
		if !begun {
			rn.lanes[first].take(x)
			continue
		}
		if len(runs) > 1 {
			rn.share(c, p, x, len(runs))
		}
		for i := range runs {
			rn.lanes[first+i].begin(x, &runs[i])
		}
		rn.began = append(rn.began, int32(first))
	}
	rn.start(c, runs)
}

// rush takes packets of a group through their DAG at once, while there are credits
// for the whole of it and nobody waits, and returns how many.
func (rn *runner) rush(c *graph.Ctx, g *group, d *service) int {
	route := 2 * int(g.way.dag)
	bufs := g.batch.Bufs()
	at := 0
	for at < len(bufs) {
		n, bytes := len(bufs)-at, g.bytes
		if d.spread == sched.PerFlow && len(rn.cat.chains[d.visits[0].Chain].running) > 1 {
			first := rn.sched.Choose(route, g.flows[at])
			for n = 1; at+n < len(bufs) && rn.sched.Choose(route, g.flows[at+n]) == first; n++ {
			}
			bytes = 0
			for _, x := range bufs[at : at+n] {
				bytes += x.Len()
			}
		}
		r, mask, k := rn.sched.Take(route, g.flows[at], n, bytes)
		if k == 0 {
			if rn.convoy.batch.Len() > 0 {
				rn.runConvoy(c) // and gives back credits
				continue
			}
			return at
		}
		rn.gather(c, d, g.way, bufs[at:at+k])
		rn.convoy.took(r, mask, k)
		if at += k; !rn.convoy.open || k < n {
			rn.runConvoy(c)
		}
	}
	return at
}

// gather has packets run with those that were taken before them. They, and what tasks answer or make on the way, go the way of
// the first of them. The ways of all differ in the number of the DAG alone, by which nothing is told apart any more, but for
// frames that go back to a peer: these say which DAG they are of, and each DAG's run by themselves.
func (rn *runner) gather(c *graph.Ctx, d *service, w way, frames []*packet.Buf) {
	k := &rn.convoy
	if n := k.batch.Len(); n > 0 {
		if !k.alone && w.out < ports && k.batch.Room() >= len(frames) && slices.Equal(k.d.tasks, d.tasks) && rn.split.unmeasured(d, n+len(frames)) {
			k.batch.Append(frames)
			return
		}
		rn.runConvoy(c)
	}
	k.d, k.way, k.alone = d, w, !rn.split.unmeasured(d, len(frames))
	k.batch.Append(frames)
}

// took notes credits of the scheduler, to give them back together: most of them are for the same tasks.
func (k *convoy) took(region int, mask uint16, n int) {
	if i := len(k.taken) - 1; i >= 0 && k.taken[i].region == region && k.taken[i].mask == mask {
		k.taken[i].n += n
		return
	}
	k.taken = append(k.taken, taken{region, mask, n})
}

// runConvoy runs what was gathered.
func (rn *runner) runConvoy(c *graph.Ctx) {
	k := &rn.convoy
	if k.batch.Len() == 0 {
		return
	}
	rn.run(c, k.d, k.d.start(k.way.back), k.way, k.batch.Bufs())
	k.batch.Reset()
	for _, t := range k.taken {
		rn.sched.Give(t.region, t.mask, t.n, 0)
	}
	k.taken = k.taken[:0]
}

// halt ends a task that must not go on. The task stays halted until it is started anew.
func (rn *runner) halt(c *graph.Ctx, n int) {
	t := &rn.cat.tasks[n]
	var f vmem.Fault
	if t.space != nil && errors.As(t.space.m.Err(n), &f) {
		t.fault = f.Cause()
	}
	app := t.app
	t.app, t.next = nil, clock.Never
	t.in.Remove(c, app)
	t.vacate()
	if t.Pass {
		rn.sweep(c, t, t.in)
		return
	}
	t.in.Gone(rn.lost)
	batch := &rn.batches[rn.depth]
	for out := range 2 {
		for t.in.Emitted(out) > 0 {
			batch.Reset()
			t.in.Take(c, out, batch)
			for _, x := range batch.Bufs() {
				if id, l := rn.own(x); l != nil {
					rn.forsake(id)
				}
				x.Tag = 0
				c.Drop(x, reasonFaulted)
			}
		}
	}
	batch.Reset()
}

// turnAway drops a frame of the full road whose task is halted.
func (rn *runner) turnAway(c *graph.Ctx, id int32) {
	x := rn.lanes[id].buf
	rn.held--
	rn.forsake(id)
	x.Tag = 0
	c.Drop(x, reasonFaulted)
}

// begun reports that packets of a DAG are in the middle of it.
func (rn *runner) begun(n int) bool {
	return rn.waits[n] > 0 && slices.ContainsFunc(rn.packets, func(p inside) bool { return p.begun && int(p.way.dag) == n })
}
