package sched

import "math/bits"

// packet is a descriptor.
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
	begun         bool // a task has run
	finished      bool
	woken         bool   // is in work
	back          bool   // its flow's other direction
	seq           uint64 // of all that arrived; each packet is one line of the processor's cache
}

// What a header does. A header that runs may have a place in a queue as well.
const (
	idle    uint8 = iota // nothing in this stage, or nothing any more
	held                 // waits for the packet before it in its flow
	parked               // waits for an instance of its chain
	waiting              // for a credit
	ready                // for Next
	running              // is in the region
)

// header is a copy of a packet's header, of one branch of a stage. Four are a line of the processor's cache.
type header struct {
	region  int16  // where it waits or runs
	rest    uint16 // tasks of the visit that it has no credit for yet
	credits uint16 // tasks that it is told to run, later those of them whose credits it has
	kept    uint8  // the task that keeps it, + 1; 0: none
	queue   int8   // the task in whose queue it is; -1: in none
	state   uint8
	visit   uint8
	end     uint8 // of the branch's visits
	_       [4]byte
}

// links are a header's in the queue of a task, or among the parked of a chain.
type links struct{ next, prev int32 }

// Arrive takes a packet of so many bytes in, for a route; flow is its hash. The
// result is its number, 0 to Config.Packets-1, which is its own until Leave. With
// a reason, the packet was refused and has no number.
func (s *Scheduler) Arrive(route, bytes int, flow uint64, tenant int) (int, Reason) {
	if uint(route) >= uint(len(s.routes)) || s.routes[route].plan == none {
		return s.refuse(UnknownRoute)
	}
	if uint(bytes) > 1<<30 || uint(tenant) >= uint(len(s.tenants)) {
		return s.refuse(BadPacket)
	}
	if len(s.free) == 0 {
		return s.refuse(NoDescriptor)
	}
	if s.store+int64(bytes) > s.storeSize {
		return s.refuse(StoreFull)
	}
	tn := &s.tenants[tenant]
	s.books.Arrived++
	s.store += int64(bytes)
	tn.packets++
	tn.bytes += int64(bytes)
	rt := &s.routes[route]
	rt.inside++
	pl := s.plans[rt.plan]
	pl.users++
	p := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	pk := &s.packets[p]
	pk.flow, pk.bytes, pk.tenant, pk.route, pk.plan = flow, int32(bytes), int32(tenant), int32(route), rt.plan
	pk.queue, pk.next, pk.before, pk.after = none, none, none, none
	pk.held, pk.reason, pk.seq = 0, None, s.books.Arrived
	pk.inside, pk.begun, pk.finished, pk.back = true, false, false, pl.back
	if pl.spread == PerFlow || !pl.anyOrder {
		s.join(p)
	}
	s.begin(p, pl)
	s.settle()
	return int(p), None
}

func (s *Scheduler) refuse(r Reason) (int, Reason) {
	s.books.Refused[r]++
	return -1, r
}

// Run is what to run now: the tasks in Mask of the chain in Region, in a lane. A lane is a packet in one of the branches of a
// stage, on that branch's copy of the header: its number is (packet << bits | branch), with as many bits as Config.Branches
// need. The compiler keeps a struct of up to four fields in registers; a longer one, of which
// some million a second are returned, costs a wait for what has just been stored.
type Run struct {
	Lane   int
	Region int
	Mask   uint16
}

// Next is what to run now. Runs of a region are to be begun in the order of Next.
func (s *Scheduler) Next() (Run, bool) {
	if s.ready.n == 0 {
		return Run{}, false
	}
	h := s.ready.pop()
	x := &s.headers[h]
	x.state = running
	s.books.Runs++
	return Run{Lane: int(h), Region: int(x.region), Mask: x.credits}, true
}

// Stage is the stage of its plan that a packet is in, of which Next has told, and how many branches that has: with several,
// each is on a copy of the header.
func (s *Scheduler) Stage(packet int) (stage, branches int) {
	pk := &s.packets[packet]
	return int(pk.stage), int(pk.branches)
}

// out is the header of a run that Next told of, or nil.
func (s *Scheduler) out(lane int) *header {
	if uint(lane) >= uint(len(s.headers)) || s.headers[lane].state != running {
		s.misuse++
		return nil
	}
	return &s.headers[lane]
}

// Release gives the credit of a task back, which the packet has left. When it
// has given it back already, or has none, that is a fault of the caller, which
// Check tells of, and nothing happens.
func (s *Scheduler) Release(lane, task int) {
	x := s.out(lane)
	if x == nil {
		return
	}
	if uint(task) >= MaxTasks || x.credits&(1<<task) == 0 {
		s.misuse++
		return
	}
	x.credits &^= 1 << task
	rg := &s.regions[x.region]
	rg.tasks[task].free++
	if rg.queued&(1<<task) != 0 {
		s.serve(int32(x.region), task)
		s.settle()
	}
}

// Keep says that a task keeps a packet for a time of its own: for an answer, say, which comes through the same tasks. All of the
// packet's credits go back, for this task and for those behind it, and its place in a queue. How many packets are kept is bounded by the packet
// store, and by the task. The packet is in the region still. It goes on by Return and Next, which are called before the task lets others go. Return gives it credits for what is left though others may have
// them all: if it waited for one, those of its flow that come out of the task behind it, and have theirs, would overtake it. It does wait where one
// before it in its flow waits. It is a fault of the caller, and nothing happens, when the packet has no credit of the task.
func (s *Scheduler) Keep(lane, task int) {
	x := s.out(lane)
	if x == nil {
		return
	}
	if uint(task) >= MaxTasks || x.credits&(1<<task) == 0 {
		s.misuse++
		return
	}
	r := int32(x.region)
	rg := &s.regions[r]
	wanted := x.credits & rg.queued
	for m := x.credits; m != 0; m &= m - 1 {
		rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free++
	}
	x.rest |= x.credits &^ (2<<task - 1)
	x.credits, x.kept = 0, uint8(task)+1
	if x.queue >= 0 {
		wanted |= 1 << x.queue
		s.dequeue(int32(lane))
	}
	for m := wanted; m != 0; m &= m - 1 {
		s.serve(r, bits.TrailingZeros16(m))
	}
	s.settle()
}

// goOn has a header that was kept go on in its region, as far as those before it in its flow have. It reports false where that is not at all, and it
// cannot wait there, as the region takes no more.
func (s *Scheduler) goOn(h int32, x *header, rg *region) bool {
	now, at := x.rest, none
	if pk := &s.packets[h>>(s.shift&31)]; pk.before != none && s.plans[pk.plan].spread == PerFlow && (rg.queued&x.rest != 0 || rg.paused) {
		var open uint16
		open, at = s.ahead(h, x, pk)
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
		s.ready.push(h)
	}
	if at != none {
		s.enqueueBehind(h, at)
	}
	return true
}

// ahead looks at headers before h in its flow. It returns tasks that none of them has yet to run elsewhere, or waits for in the same region, and the
// nearest that has a place in a queue there for a task of which h is to run; none if there is none.
func (s *Scheduler) ahead(h int32, x *header, pk *packet) (open uint16, at int32) {
	for p := pk.before; p != none; p = s.packets[p].before {
		q, i := &s.packets[p], p<<(s.shift&31)|h&s.last
		y := &s.headers[i]
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

// Return says that what Next told has been run, as far as it came, and gives the
// credits back that are left. dropped: a task dropped the packet. It is a fault
// of the caller, and nothing happens, when Next has not told of it.
func (s *Scheduler) Return(lane int, dropped bool) {
	x := s.out(lane)
	if x == nil {
		return
	}
	h := int32(lane)
	p := h >> (s.shift & 31)
	pk := &s.packets[p]
	r := int32(x.region)
	rg := &s.regions[r]
	wanted := x.credits & rg.queued // tasks whose queue may move
	for m := x.credits; m != 0; m &= m - 1 {
		rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free++
	}
	x.credits = 0
	rg.running--
	again := x.rest != 0 && !dropped
	stay := again && !rg.paused
	if x.kept != 0 {
		if x.kept = 0; again && !s.panic && s.goOn(h, x, rg) {
			return // it had no credits, which others could have now
		}
	}
	if stay {
		x.state = waiting
		if x.queue < 0 {
			s.enqueue(h, bits.TrailingZeros16(x.rest))
		}
		wanted |= 1 << x.queue
	} else {
		x.state = idle
		rg.load--
		if x.queue >= 0 {
			wanted |= 1 << x.queue // who is behind it may be the first now
			s.dequeue(h)
		}
	}
	// Packets that wait here come before this packet's next visit.
	for m := wanted; m != 0; m &= m - 1 {
		s.serve(r, bits.TrailingZeros16(m))
	}
	switch {
	case stay:
	case dropped:
		pk.drop(ByTask)
		s.back(p, pk)
	case again:
		s.admit(h, x, pk, s.plans[pk.plan])
	default:
		s.wake(pk)
		if x.visit++; x.visit < x.end {
			s.startVisit(h, x, pk, s.plans[pk.plan])
		} else {
			s.back(p, pk)
		}
	}
	s.settle()
}

// Left is a packet that leaves.
type Left struct {
	Packet  int
	Route   int
	Tenant  int
	Dropped Reason // None: it goes on its way
}

// Leave is the next packet that is done. Its number and its room in the packet
// store are free from now on.
func (s *Scheduler) Leave() (Left, bool) {
	if s.leaving.n == 0 {
		return Left{}, false
	}
	p := s.leaving.pop()
	pk := &s.packets[p]
	pk.inside = false
	s.free = append(s.free, p)
	s.store -= int64(pk.bytes)
	tn := &s.tenants[pk.tenant]
	tn.packets--
	tn.bytes -= int64(pk.bytes)
	s.routes[pk.route].inside--
	if pk.reason == None {
		s.books.Left++
	} else {
		s.books.Dropped[pk.reason]++
	}
	return Left{int(p), int(pk.route), int(pk.tenant), pk.reason}, true
}

// begin sends a packet on its way.
func (s *Scheduler) begin(p int32, pl *plan) {
	if len(pl.stages) == 0 {
		s.finish(p)
	} else {
		s.startStage(p, 0)
	}
}

// startStage sends a packet into the branches of a stage.
func (s *Scheduler) startStage(p int32, stage uint8) {
	pk := &s.packets[p]
	pl := s.plans[pk.plan]
	st := pl.stages[stage]
	branches := pl.branches[st.from:st.to]
	n := uint8(len(branches))
	pk.stage, pk.branches, pk.pending = stage, n, n
	first := p << (s.shift & 31)
	headers := s.headers[first:][:len(branches)]
	// All headers say where they are before one of them moves.
	for i, b := range branches {
		x := &headers[i]
		x.visit, x.end, x.state, x.queue = b.from, b.to, idle, -1
	}
	for i := range headers {
		s.startVisit(first+int32(i), &headers[i], pk, pl)
	}
}

// startVisit sends a header into the visit that it is at.
func (s *Scheduler) startVisit(h int32, x *header, pk *packet, pl *plan) {
	v := &pl.visits[x.visit]
	x.rest = v.mask
	s.admitTo(&s.chains[v.chain], h, x, pk, pl)
}

// visitOf is the visit that a header is at.
func (s *Scheduler) visitOf(h int32) *visit {
	return &s.plans[s.packets[h>>(s.shift&31)].plan].visits[s.headers[h].visit]
}

// admit chooses an instance for what is left of the visit of header x, number h, of packet pk and its plan, and sends it
// there if it may go. It takes part in no list and has no credits.
func (s *Scheduler) admit(h int32, x *header, pk *packet, pl *plan) {
	s.admitTo(&s.chains[pl.visits[x.visit].chain], h, x, pk, pl)
}

// admitTo is admit, with the chain that is visited.
func (s *Scheduler) admitTo(c *chain, h int32, x *header, pk *packet, pl *plan) {
	r := c.only
	if r == none {
		r = s.choose(c, pl.spread, pk.flow, x.rest)
	}
	if r == none {
		if c.placed == 0 && !pl.current {
			if s.inherit(h, pk) {
				return
			}
			x.state = idle
			pk.drop(Gone)
			s.back(h>>(s.shift&31), pk)
			return
		}
		s.park(c, h)
		return
	}
	if pk.before != none && pl.spread == PerFlow && !s.mayFollow(pk, h, r) {
		x.state = held
		pk.held |= 1 << (h & s.last & 31)
		return
	}
	rg := &s.regions[r]
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
	if missing == 0 && (!s.panic || x.rest&(x.rest-1) == 0) {
		x.credits, x.rest, x.state = x.rest, 0, ready
		rg.running++
		pk.begun = true
		s.ready.push(h)
	} else { // as far as possible
		for m := x.rest; m != 0; m &= m - 1 {
			rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free++
		}
		s.reserve(h, r, false)
	}
	if pk.after != none {
		s.look(pk.after)
	}
}

// choose is an instance of a chain that takes packets, for some of its tasks; none if there is none.
func (s *Scheduler) choose(c *chain, spread Spread, flow uint64, mask uint16) int32 {
	switch len(c.open) {
	case 0:
		return none
	case 1:
		return c.open[0]
	}
	best := c.open[0]
	switch spread {
	case RoundRobin:
		c.turn++
		if int(c.turn) >= len(c.open) {
			c.turn = 0
		}
		best = c.open[c.turn]
	case LeastLoaded:
		// Among equals it is that one whose tasks have less to do, and then that one's turn which comes next, so that all have
		// as much to do. By turns alone the branches of a stage, two tasks of a chain with two instances, would each go to
		// an instance of its own for good, one of whose tasks then has all to do, and the other nothing.
		if int(c.turn) >= len(c.open) {
			c.turn = 0
		}
		at := int(c.turn)
		for i, k := at, len(c.open); k > 0; k-- {
			x, y := &s.regions[c.open[i]], &s.regions[c.open[at]]
			if x.load < y.load || x.load == y.load && i != at && x.doing(mask) < y.doing(mask) {
				at = i
			}
			if i++; i == len(c.open) {
				i = 0
			}
		}
		best, c.turn = c.open[at], int32(at+1)
	default:
		if c.seats != nil {
			k, _ := s.bucketOf(flow)
			if r := c.seats.region[k]; r != none {
				return r
			}
		}
		return rendezvous(c.open, flow)
	}
	return best
}

// doing is how many packets some of its tasks have, or are to have.
func (rg *region) doing(mask uint16) (n int32) {
	for m := mask; m != 0; m &= m - 1 {
		t := &rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)]
		n += t.total - t.free + t.waiting
	}
	return n
}

// rendezvous is the region that has the greatest weight for a flow.
func rendezvous(open []int32, flow uint64) int32 {
	best, most := open[0], weight(flow, open[0])
	for _, r := range open[1:] {
		if w := weight(flow, r); w > most {
			best, most = r, w
		}
	}
	return best
}

// weight is that of a region for a flow: the greatest wins (rendezvous hashing).
func weight(flow uint64, region int32) uint64 {
	x := flow ^ uint64(region+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// mayFollow reports whether a header may go to region r for its visit: the packet
// before it in its flow is there, or has done the visit. When that one was
// dropped in this branch, and is waited for in others, nothing is known of those
// before it: no.
func (s *Scheduler) mayFollow(pk *packet, h, r int32) bool {
	q := &s.packets[pk.before]
	if q.plan != pk.plan || q.stage < pk.stage {
		return false
	}
	if q.stage > pk.stage {
		return true
	}
	y := &s.headers[pk.before<<(s.shift&31)|h&s.last]
	if visit := s.headers[h].visit; y.visit != visit {
		return y.visit > visit
	}
	return y.state >= waiting && int32(y.region) == r
}

// reserve takes credits for what is left of a header's visit in region r, as far
// as possible, and puts it into the queue of the first task that is missing.
// first: it is the first in the queue of its first task, and leaves it.
func (s *Scheduler) reserve(h, r int32, first bool) {
	x := &s.headers[h]
	rg := &s.regions[r]
	if first {
		s.dequeue(h)
	}
	m := x.rest
	for ; m != 0; m &= m - 1 {
		t := &rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)]
		if t.free <= 0 || rg.queued&m&-m != 0 && !first {
			break
		}
		t.free--
		first = false
		if s.panic {
			m &= m - 1
			break
		}
	}
	got := x.rest &^ m
	x.rest = m
	if got == 0 {
		x.state = waiting
		s.enqueue(h, bits.TrailingZeros16(m))
		return
	}
	x.credits = got
	x.state = ready
	rg.running++
	s.packets[h>>(s.shift&31)].begun = true
	s.ready.push(h)
	if m != 0 && !s.panic {
		s.enqueue(h, bits.TrailingZeros16(m))
	}
}

// serve gives credits of a task to those who wait for it.
func (s *Scheduler) serve(r int32, task int) {
	t := &s.regions[r].tasks[task]
	for t.free > 0 && t.head != none && s.headers[t.head].state == waiting {
		s.reserve(t.head, r, true)
	}
}

// drop notes why a packet does not go on: the first reason counts.
func (pk *packet) drop(why Reason) {
	if pk.reason == None {
		pk.reason = why
	}
}

// back is called when a branch of a stage is done, or has dropped the packet.
func (s *Scheduler) back(p int32, pk *packet) {
	pk.pending--
	switch {
	case pk.pending > 0:
	case pk.reason != None || int(pk.stage)+1 == len(s.plans[pk.plan].stages):
		s.finish(p)
	default:
		s.startStage(p, pk.stage+1)
	}
}

// finish is called when a packet is done: it leaves when those before it in its
// flow have.
func (s *Scheduler) finish(p int32) {
	pk := &s.packets[p]
	pk.finished = true
	if pk.plan != none {
		s.unuse(pk.plan)
		pk.plan = none
	}
	if pk.queue == none {
		s.leaving.push(p)
		return
	}
	s.wake(pk)
	s.part(p)
}

// wake has the packet after pk in its flow looked at: pk got on.
func (s *Scheduler) wake(pk *packet) {
	if pk.after != none {
		s.look(pk.after)
	}
}

func (s *Scheduler) look(a int32) {
	if q := &s.packets[a]; q.held != 0 && !q.woken {
		q.woken = true
		s.work = append(s.work, a)
	}
}

// settle lets those get on whose predecessors did.
func (s *Scheduler) settle() {
	if len(s.work) > 0 {
		s.follow()
	}
}

func (s *Scheduler) follow() {
	for len(s.work) > 0 {
		p := s.work[len(s.work)-1]
		s.work = s.work[:len(s.work)-1]
		pk := &s.packets[p]
		pk.woken = false
		m := pk.held
		pk.held = 0
		for ; m != 0; m &= m - 1 {
			h := p<<(s.shift&31) | int32(bits.TrailingZeros16(m))
			s.admit(h, &s.headers[h], pk, s.plans[pk.plan])
		}
	}
}

// park lets a header wait for an instance of its chain.
func (s *Scheduler) park(c *chain, h int32) {
	s.headers[h].state = parked
	s.add(h, &c.head, &c.tail)
	c.parked++
}

// unlink takes a header out of those that wait for an instance.
func (s *Scheduler) unlink(c *chain, h int32) {
	s.cut(h, &c.head, &c.tail)
	c.parked--
}

// unpark has all that wait for an instance of a chain choose again.
func (s *Scheduler) unpark(c *chain) {
	// One that is parked again comes behind those that are not looked at yet.
	for n := c.parked; n > 0; n-- {
		h := c.head
		s.unlink(c, h)
		pk := &s.packets[h>>(s.shift&31)]
		s.admit(h, &s.headers[h], pk, s.plans[pk.plan])
	}
}

// enqueue puts a header at the end of the queue of a task.
func (s *Scheduler) enqueue(h int32, task int) {
	x := &s.headers[h]
	rg := &s.regions[x.region]
	t := &rg.tasks[task]
	rg.queued |= 1 << task
	x.queue = int8(task)
	s.add(h, &t.head, &t.tail)
	t.waiting++
}

// enqueueBehind puts a header into the queue that another one is in, next to that.
func (s *Scheduler) enqueueBehind(h, other int32) {
	y := &s.headers[other]
	t := &s.regions[y.region].tasks[y.queue]
	s.headers[h].queue = y.queue
	next := s.links[other].next
	s.links[h] = links{next, other}
	s.links[other].next = h
	if next == none {
		t.tail = h
	} else {
		s.links[next].prev = h
	}
	t.waiting++
}

// dequeue takes a header out of the queue that it is in.
func (s *Scheduler) dequeue(h int32) {
	x := &s.headers[h]
	rg := &s.regions[x.region]
	t := &rg.tasks[x.queue]
	s.cut(h, &t.head, &t.tail)
	if t.waiting--; t.waiting == 0 {
		rg.queued &^= 1 << x.queue
	}
	x.queue = -1
}

// add puts a header at the end of a list.
func (s *Scheduler) add(h int32, head, tail *int32) {
	s.links[h] = links{none, *tail}
	if *tail == none {
		*head = h
	} else {
		s.links[*tail].next = h
	}
	*tail = h
}

// cut takes a header out of a list.
func (s *Scheduler) cut(h int32, head, tail *int32) {
	x := &s.links[h]
	if x.prev == none {
		*head = x.next
	} else {
		s.links[x.prev].next = x.next
	}
	if x.next == none {
		*tail = x.prev
	} else {
		s.links[x.next].prev = x.prev
	}
	*x = links{none, none}
}

// ring is a queue of bounded size.
type ring struct {
	e    []int32
	at   uint32 // the first
	n    uint32
	mask uint32
}

func newRing(n int) ring {
	size := 1
	for size < n {
		size *= 2
	}
	return ring{e: make([]int32, size), mask: uint32(size - 1)}
}

func (r *ring) push(v int32) {
	r.e[(r.at+r.n)&r.mask] = v
	r.n++
}

func (r *ring) pop() int32 {
	v := r.e[r.at&r.mask]
	r.at++
	r.n--
	return v
}
