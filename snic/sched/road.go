package sched

import "math/bits"

// road is the full road: it takes packets from Arrive to the point where their flow lets them leave.
type road struct {
	queues  queues
	in      Instances
	order   order
	plans   plans
	shift   uint  // below 32, which shifts say so that the compiler knows
	last    int32 // 1<<shift - 1
	instead func(route, chain int, mask uint16) (int, uint16, uint16)
	misuse  int // calls for what the caller does not have
}

// packet is the descriptor of a packet.
type packet struct {
	flow          uint64
	bytes         int32
	tenant        int32
	route         int32
	plan          int32 // none when it needs none
	queue         int32 // of flows; none: its order does not matter
	next          int32 // after it in its flow, of those that have not left
	before, after int32 // in its flow, of those that are not finished
	held          uint16
	stage         uint8
	branches      uint8 // of the stage
	pending       uint8 // of these, how many are not back
	reason        Reason
	inside        bool
	finished      bool
	woken         bool   // is in work
	back          bool   // its flow's other direction
	seq           uint64 // of all that arrived; each packet is one line of the processor's cache
}

// out returns the header of a run that is under way, or nil; then it counts a misuse.
func (rd *road) out(lane int) *header {
	if uint(lane) >= uint(len(rd.queues.headers)) || rd.queues.headers[lane].state != running {
		rd.misuse++
		return nil
	}
	return &rd.queues.headers[lane]
}

// release implements Scheduler.Release.
func (rd *road) release(lane, task int) {
	x := rd.out(lane)
	if x == nil {
		return
	}
	if uint(task) >= MaxTasks || x.credits&(1<<task) == 0 {
		rd.misuse++
		return
	}
	x.credits &^= 1 << task
	rg := &rd.queues.regions[x.region]
	rg.tasks[task].free++
	if rg.queued&(1<<task) != 0 {
		rd.queues.serve(int32(x.region), task)
		rd.settle()
	}
}

// keep implements Scheduler.Keep: it gives back all credits of a header that a task keeps.
func (rd *road) keep(lane, task int) {
	x := rd.out(lane)
	if x == nil {
		return
	}
	if uint(task) >= MaxTasks || x.credits&(1<<task) == 0 {
		rd.misuse++
		return
	}
	r := int32(x.region)
	rg := &rd.queues.regions[r]
	wanted := x.credits & rg.queued
	for m := x.credits; m != 0; m &= m - 1 {
		rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free++
	}
	x.rest |= x.credits &^ (2<<task - 1)
	x.credits, x.kept = 0, uint8(task)+1
	if x.queue >= 0 {
		wanted |= 1 << x.queue
		rd.queues.dequeue(int32(lane))
	}
	for m := wanted; m != 0; m &= m - 1 {
		rd.queues.serve(r, bits.TrailingZeros16(m))
	}
	rd.settle()
}

// goOn lets a header that was kept go on in its region, as far as earlier packets of its flow allow. It reports
// false if it cannot go on at all and cannot wait there, because the region takes no more packets.
func (rd *road) goOn(h int32, x *header, rg *region) bool {
	now, at := x.rest, none
	if pk := &rd.order.packets[h>>(rd.shift&31)]; pk.before != none && rd.plans.all[pk.plan].spread == PerFlow && (rg.queued&x.rest != 0 || rg.paused) {
		var open uint16
		open, at = rd.ahead(h, x, pk)
		now &= open
	}
	if now == 0 && (at == none || rg.paused) {
		return false
	}
	for m := now; m != 0; m &= m - 1 {
		rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free--
	}
	x.credits, x.rest, x.state = now, x.rest&^now, waiting
	if now != 0 {
		x.state = ready
		rg.running++
		rd.queues.ready.push(h)
	}
	if at != none {
		rd.queues.enqueueBehind(h, at)
	}
	return true
}

// ahead looks at the headers before h in its flow, the nearest first. It returns the tasks that are open to h:
// those in front of the first task that the nearest header which bars the way has yet to run elsewhere, or
// waits for in the same region. In the latter case at is that header, in the queue of a task that h is to run;
// otherwise at is none.
func (rd *road) ahead(h int32, x *header, pk *packet) (open uint16, at int32) {
	for p := pk.before; p != none; p = rd.order.packets[p].before {
		q, i := &rd.order.packets[p], p<<(rd.shift&31)|h&rd.last
		y := &rd.queues.headers[i]
		switch {
		case q.plan != pk.plan || q.stage != pk.stage || y.visit != x.visit:
			return ^uint16(0), none // it has got on, and all before it
		case y.state == idle: // it was dropped here, and is waited for in other branches
		case y.state < waiting || y.region != x.region:
			undone := y.rest | y.credits
			if y.kept != 0 {
				undone |= 1 << (y.kept - 1)
			}
			return undone&-undone - 1, none
		case y.queue >= 0 && x.rest&(1<<y.queue) != 0:
			return 1<<y.queue - 1, i
		}
	}
	return ^uint16(0), none
}

// comeBack implements Scheduler.Return: it lets a header whose run is over go on.
func (rd *road) comeBack(lane int, dropped bool) {
	x := rd.out(lane)
	if x == nil {
		return
	}
	h := int32(lane)
	p := h >> (rd.shift & 31)
	pk := &rd.order.packets[p]
	r := int32(x.region)
	rg := &rd.queues.regions[r]
	wanted := x.credits & rg.queued // tasks whose queue may move
	for m := x.credits; m != 0; m &= m - 1 {
		rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free++
	}
	x.credits = 0
	rg.running--
	again := x.rest != 0 && !dropped
	stay := again && !rg.paused
	if x.kept != 0 {
		if x.kept = 0; again && !rd.queues.panic && rd.goOn(h, x, rg) {
			return // it had no credits that others could get now
		}
	}
	if stay {
		x.state = waiting
		if x.queue < 0 {
			rd.queues.enqueue(h, bits.TrailingZeros16(x.rest))
		}
		wanted |= 1 << x.queue
	} else {
		x.state = idle
		rg.load--
		if x.queue >= 0 {
			wanted |= 1 << x.queue // the header behind it may be the first now
			rd.queues.dequeue(h)
		}
	}
	// Packets that wait here come before this packet's next visit.
	for m := wanted; m != 0; m &= m - 1 {
		rd.queues.serve(r, bits.TrailingZeros16(m))
	}
	switch {
	case stay:
	case dropped:
		pk.drop(ByTask)
		rd.back(p, pk)
	case again:
		rd.admit(h, x, pk, rd.plans.all[pk.plan])
	default:
		rd.order.wake(pk)
		if x.visit++; x.visit < x.end {
			rd.startVisit(h, x, pk, rd.plans.all[pk.plan])
		} else {
			rd.back(p, pk)
		}
	}
	rd.settle()
}

// comeBackAll is comeBack for lanes whose packets were not dropped.
func (rd *road) comeBackAll(lanes []int32) {
	for _, h := range lanes {
		if uint(h) >= uint(len(rd.queues.headers)) {
			rd.misuse++
			continue
		}
		x := &rd.queues.headers[h]
		if x.state != running || x.rest != 0 || x.kept != 0 || x.queue >= 0 {
			rd.comeBack(int(h), false)
			continue
		}
		rg := &rd.queues.regions[x.region]
		if x.credits&rg.queued != 0 {
			rd.comeBack(int(h), false)
			continue
		}
		// Nobody waits for its credits, and its visit is over.
		for m := x.credits; m != 0; m &= m - 1 {
			rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free++
		}
		rg.running--
		rg.load--
		x.credits, x.state = 0, idle
		p := h >> (rd.shift & 31)
		pk := &rd.order.packets[p]
		rd.order.wake(pk)
		if x.visit++; x.visit < x.end {
			rd.startVisit(h, x, pk, rd.plans.all[pk.plan])
		} else if pk.pending > 1 {
			pk.pending--
		} else {
			rd.back(p, pk)
		}
		rd.settle()
	}
}

// begin sends a packet on its way.
func (rd *road) begin(p int32, pl *plan) {
	if len(pl.stages) == 0 {
		rd.finish(p)
	} else {
		rd.startStage(p, 0)
	}
}

// startStage sends a packet into the branches of a stage.
func (rd *road) startStage(p int32, stage uint8) {
	pk := &rd.order.packets[p]
	pl := rd.plans.all[pk.plan]
	st := pl.stages[stage]
	branches := pl.branches[st.from:st.to]
	n := uint8(len(branches))
	pk.stage, pk.branches, pk.pending = stage, n, n
	first := p << (rd.shift & 31)
	headers := rd.queues.headers[first:][:len(branches)]
	// All headers say where they are before one of them moves.
	for i, b := range branches {
		x := &headers[i]
		x.visit, x.end, x.state, x.queue, x.begun = b.from, b.to, idle, -1, false
	}
	for i := range headers {
		rd.startVisit(first+int32(i), &headers[i], pk, pl)
	}
}

// startVisit sends a header into the visit that it is at.
func (rd *road) startVisit(h int32, x *header, pk *packet, pl *plan) {
	v := &pl.visits[x.visit]
	x.rest = v.mask
	rd.admitTo(&rd.in.chains[v.chain], h, x, pk, pl)
}

// visitOf returns the visit that a header is at.
func (rd *road) visitOf(h int32) *visit {
	return &rd.plans.all[rd.order.packets[h>>(rd.shift&31)].plan].visits[rd.queues.headers[h].visit]
}

// admit chooses an instance for the rest of the visit of header x, which has number h and is of packet pk and
// plan pl, and sends the header there if it may go. The header must be in no list and have no credits.
func (rd *road) admit(h int32, x *header, pk *packet, pl *plan) {
	rd.admitTo(&rd.in.chains[pl.visits[x.visit].chain], h, x, pk, pl)
}

// admitTo is admit for a caller that has looked up the chain of the visit.
func (rd *road) admitTo(c *chain, h int32, x *header, pk *packet, pl *plan) {
	r := c.only
	if r == none {
		r = rd.in.choose(c, pl.spread, pk.flow, x.rest)
	}
	if r == none {
		if c.placed == 0 && !pl.current {
			if rd.inherit(h, pk) {
				return
			}
			x.state = idle
			pk.drop(Gone)
			rd.back(h>>(rd.shift&31), pk)
			return
		}
		rd.in.park(c, h)
		return
	}
	if pk.before != none && pl.spread == PerFlow && !rd.mayFollow(pk, h, r) {
		x.state = held
		pk.held |= 1 << (h & rd.last & 31)
		return
	}
	rg := &rd.queues.regions[r]
	x.region = int16(r)
	rg.load++
	missing := rg.queued & x.rest
	for m := x.rest; m != 0; m &= m - 1 {
		t := &rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)]
		t.packets++
		t.bytes += uint64(pk.bytes)
		if t.free--; t.free < 0 {
			missing |= m & -m
		}
	}
	if missing == 0 && (!rd.queues.panic || x.rest&(x.rest-1) == 0) {
		x.credits, x.rest, x.state = x.rest, 0, ready
		rg.running++
		x.begun = true
		rd.queues.ready.push(h)
	} else { // as far as possible
		for m := x.rest; m != 0; m &= m - 1 {
			rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free++
		}
		rd.queues.reserve(h, r, false)
	}
	if pk.after != none {
		rd.order.look(pk.after)
	}
}

// mayFollow reports whether header h may go to region r for its visit: it may if the packet before it
// in its flow is in r, or has done the visit. If that packet was dropped in this branch and is still in
// other branches, h may not go, because mayFollow does not look at earlier packets.
func (rd *road) mayFollow(pk *packet, h, r int32) bool {
	q := &rd.order.packets[pk.before]
	if q.plan != pk.plan || q.stage < pk.stage {
		return false
	}
	if q.stage > pk.stage {
		return true
	}
	y := &rd.queues.headers[pk.before<<(rd.shift&31)|h&rd.last]
	if visit := rd.queues.headers[h].visit; y.visit != visit {
		return y.visit > visit
	}
	return y.state >= waiting && int32(y.region) == r
}

// drop notes why a packet is dropped; the first reason counts.
func (pk *packet) drop(why Reason) {
	if pk.reason == None {
		pk.reason = why
	}
}

// back is called when a branch of a stage is done, or has dropped the packet.
func (rd *road) back(p int32, pk *packet) {
	pk.pending--
	switch {
	case pk.pending > 0:
	case pk.reason != None || int(pk.stage)+1 == len(rd.plans.all[pk.plan].stages):
		rd.finish(p)
	default:
		rd.startStage(p, pk.stage+1)
	}
}

// finish is called when a packet is done. The packet leaves when all packets before it in its flow have left.
func (rd *road) finish(p int32) {
	pk := &rd.order.packets[p]
	pk.finished = true
	if pk.plan != none {
		rd.plans.unuse(pk.plan)
		pk.plan = none
	}
	if pk.queue == none {
		rd.order.leaving.push(p)
		return
	}
	rd.order.wake(pk)
	rd.order.part(p)
}

// settle lets held packets go on if the packets before them in their flows have gone on.
func (rd *road) settle() {
	if len(rd.order.work) > 0 {
		rd.follow()
	}
}

func (rd *road) follow() {
	for len(rd.order.work) > 0 {
		p := rd.order.work[len(rd.order.work)-1]
		rd.order.work = rd.order.work[:len(rd.order.work)-1]
		pk := &rd.order.packets[p]
		pk.woken = false
		m := pk.held
		pk.held = 0
		for ; m != 0; m &= m - 1 {
			h := p<<(rd.shift&31) | int32(bits.TrailingZeros16(m))
			rd.admit(h, &rd.queues.headers[h], pk, rd.plans.all[pk.plan])
		}
	}
}

// unpark makes all headers that wait for an instance of a chain choose again.
func (rd *road) unpark(c *chain) {
	// One that is parked again comes behind those that are not looked at yet.
	for n := c.parked; n > 0; n-- {
		h := c.head
		rd.in.unlink(c, h)
		pk := &rd.order.packets[h>>(rd.shift&31)]
		rd.admit(h, &rd.queues.headers[h], pk, rd.plans.all[pk.plan])
	}
}
