package sched

import "math/bits"

// opening holds the credits that are kept ready for packets of one route, between Open and Close.
type opening struct {
	plan    *plan // nil: nothing is open
	route   int32
	left    int32 // packets that there are credits for
	started int32 // since Open
	bytes   int64 // of these
}

// Open keeps credits ready for up to n packets of a route, which the caller passes to Start one after the
// other. Open returns the runs that each of these packets begins with, one for each branch of the first stage;
// Lane is the branch. It returns nil if the packets cannot all begin with the same runs at once: several
// instances of a chain take packets, a credit is missing, a packet waits for a credit, or Next has runs to
// return. The runs are valid until Close; until then the caller may call only Start.
func (s *Scheduler) Open(route, n int) []Run {
	if uint(route) >= uint(len(s.routes)) || s.routes[route].plan == none || s.road.queues.ready.n > 0 || s.road.queues.panic {
		return nil
	}
	pl := s.road.plans.all[s.routes[route].plan]
	room := int32(min(n, MaxCredits))
	for i := range pl.heads {
		x := &pl.heads[i]
		r := s.road.in.chains[pl.visits[x.visit].chain].only
		if r == none {
			return nil
		}
		rg := &s.road.queues.regions[r]
		if rg.queued&x.credits != 0 {
			return nil
		}
		for m := x.credits; m != 0; m &= m - 1 {
			room = min(room, rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free)
		}
		if x.region != int16(r) {
			x.region, pl.first[i].Region = int16(r), int(r)
		}
	}
	if len(pl.heads) == 0 || room <= 0 {
		return nil
	}
	s.opening.plan, s.opening.route, s.opening.left, s.opening.started, s.opening.bytes = pl, int32(route), room, 0, 0
	s.road.queues.ration(pl.heads, -room)
	return pl.first
}

// Start takes in a packet on the route of Open, as Arrive does. If started, the packet runs in all branches of
// its first stage, as the runs of Open say, and Next does not return these runs.
func (s *Scheduler) Start(bytes int, flow uint64, tenant int) (packet int, started bool, why Reason) {
	o := &s.opening
	p, why := s.take(int(o.route), bytes, flow, tenant)
	if why != None {
		return int(p), false, why
	}
	rd, pl := &s.road, o.plan
	pk := &rd.order.packets[p]
	first := p << (rd.shift & 31)
	pk.stage = 0
	if o.left > 0 && rd.queues.ready.n == 0 && copy(rd.queues.headers[first:], pl.heads) > 0 && rd.followsAll(pk, pl, first) {
		n := uint8(len(pl.heads))
		pk.branches, pk.pending = n, n
		o.left--
		o.started++
		o.bytes += int64(bytes)
		s.books.Runs += uint64(n)
		return int(p), true, None
	}
	clear(rd.queues.headers[first:][:len(pl.heads)])
	if o.left > 0 {
		o.left--
		rd.queues.ration(pl.heads, 1)
	}
	rd.begin(p, pl)
	rd.settle()
	return int(p), false, None
}

// followsAll reports whether the headers of a packet, from number first on, may go to the regions of their
// plan's heads.
func (rd *road) followsAll(pk *packet, pl *plan, first int32) bool {
	if pk.before == none || pl.spread != PerFlow {
		return true
	}
	for i := range pl.heads {
		if !rd.mayFollow(pk, first+int32(i), int32(pl.heads[i].region)) {
			return false
		}
	}
	return true
}

// Close ends what Open began: it frees the credits that Start did not use.
func (s *Scheduler) Close() {
	o := &s.opening
	if o.plan == nil {
		return
	}
	heads := o.plan.heads
	o.plan = nil
	for i := range heads {
		rg := &s.road.queues.regions[heads[i].region]
		rg.running += o.started
		rg.load += o.started
		for m := heads[i].credits; m != 0; m &= m - 1 {
			t := &rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)]
			t.packets += uint64(o.started)
			t.bytes += uint64(o.bytes)
		}
	}
	if o.left == 0 {
		return
	}
	s.road.queues.ration(heads, o.left)
	for i := range heads {
		r := int32(heads[i].region)
		for m := heads[i].credits & s.road.queues.regions[r].queued; m != 0; m &= m - 1 {
			s.road.queues.serve(r, bits.TrailingZeros16(m))
		}
	}
	s.road.settle()
}

// ration adds n to the free credits of each task for which one of the headers has a credit.
func (q *queues) ration(heads []header, n int32) {
	for i := range heads {
		rg := &q.regions[heads[i].region]
		for m := heads[i].credits; m != 0; m &= m - 1 {
			rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free += n
		}
	}
}

// setHeads sets heads, the headers of a packet that runs in all branches of the first stage, and first, its
// runs. Open sets their regions. A plan has no heads if two branches run the same task of a chain, because a
// packet takes two of its credits.
func (pl *plan) setHeads() {
	if len(pl.stages) == 0 {
		return
	}
	var heads []header
	for _, b := range pl.branches[pl.stages[0].from:pl.stages[0].to] {
		v := pl.visits[b.from]
		for _, x := range heads {
			if o := pl.visits[x.visit]; o.chain == v.chain && o.mask&v.mask != 0 {
				return
			}
		}
		heads = append(heads, header{region: -1, credits: v.mask, begun: true, queue: -1, state: running, visit: b.from, end: b.to})
	}
	pl.heads, pl.first = heads, make([]Run, len(heads))
	for i := range heads {
		pl.first[i] = Run{Lane: i, Mask: heads[i].credits}
	}
}
