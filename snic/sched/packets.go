package sched

// Arrive takes in a packet of so many bytes, for a route; flow is the hash of its flow. Arrive
// returns the packet's number, 0 to Config.Packets-1, which is valid until Leave returns the
// packet. If the reason is not None, the packet was refused and has no number.
func (s *Scheduler) Arrive(route, bytes int, flow uint64, tenant int) (int, Reason) {
	p, why := s.take(route, bytes, flow, tenant)
	if why != None {
		return int(p), why
	}
	s.road.begin(p, s.road.plans.all[s.road.order.packets[p].plan])
	s.road.settle()
	return int(p), None
}

// take takes in a packet; its callers, Arrive and Start, send the packet on its way.
func (s *Scheduler) take(route, bytes int, flow uint64, tenant int) (int32, Reason) {
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
	pl := s.road.plans.all[rt.plan]
	pl.users++
	p := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	pk := &s.road.order.packets[p]
	pk.flow, pk.bytes, pk.tenant, pk.route, pk.plan = flow, int32(bytes), int32(tenant), int32(route), rt.plan
	pk.queue, pk.next, pk.before, pk.after = none, none, none, none
	pk.held, pk.reason, pk.seq = 0, None, s.books.Arrived
	pk.inside, pk.finished, pk.back = true, false, pl.back
	if pl.spread == PerFlow || !pl.anyOrder {
		s.road.order.join(p)
	}
	return p, None
}

func (s *Scheduler) refuse(r Reason) (int32, Reason) {
	s.books.Refused[r]++
	return -1, r
}

// Run is an order to the owner: run the tasks in Mask of the chain in Region, in a lane. A lane is a packet in
// one of the branches of a stage, on that branch's copy of the header; its number is (packet << bits | branch),
// with as many bits as Config.Branches needs. Run has at most four fields, because the compiler keeps such a
// struct in registers: a longer one would be stored to memory and read back at once, some million times a
// second.
type Run struct {
	Lane   int
	Region int
	Mask   uint16
}

// Next returns the next run, or false if there is none. The owner must begin runs of a region in the
// order in which Next returned them.
func (s *Scheduler) Next() (Run, bool) {
	if s.road.queues.ready.n == 0 {
		return Run{}, false
	}
	h := s.road.queues.ready.pop()
	x := &s.road.queues.headers[h]
	x.state = running
	s.books.Runs++
	return Run{Lane: int(h), Region: int(x.region), Mask: x.credits}, true
}

// Stage returns the stage of its plan that a packet is in, and how many branches the stage has. Next must have
// returned a run of the packet. With several branches, each is on a copy of the header.
func (s *Scheduler) Stage(packet int) (stage, branches int) {
	pk := &s.road.order.packets[packet]
	return int(pk.stage), int(pk.branches)
}

// Release gives back the credit of a task that the packet has left. If the packet has no such
// credit, Release changes nothing and Check reports the caller's fault.
func (s *Scheduler) Release(lane, task int) { s.road.release(lane, task) }

// Keep reports that a task keeps a packet for some time, for example until an answer comes through the same
// tasks. The packet gives back all of its credits, for this task and for later ones, and its place in a queue.
// The packet store, and the task, bound how many packets are kept. The packet remains in the region. It goes on
// by Return and Next, which the owner must call before the task lets other packets go. Return gives it credits
// for the rest of its visit even if none is free: if it waited for one, later packets of its flow, which have
// their credits, would overtake it. But it waits if an earlier packet of its flow waits. If the packet has no
// credit of the task, Keep changes nothing and Check reports the caller's fault.
func (s *Scheduler) Keep(lane, task int) { s.road.keep(lane, task) }

// Return reports that the run of a lane is over, and gives back the remaining credits. dropped says
// that a task dropped the packet. If no such run is under way, Return changes nothing and Check
// reports the caller's fault.
func (s *Scheduler) Return(lane int, dropped bool) { s.road.comeBack(lane, dropped) }

// ReturnAll is Return for several lanes, in their order, none of whose packets was dropped.
func (s *Scheduler) ReturnAll(lanes []int32) { s.road.comeBackAll(lanes) }

// Left describes a packet that leaves the scheduler.
type Left struct {
	Packet  int
	Route   int
	Tenant  int
	Dropped Reason // None: it goes on its way
}

// Leave returns the next packet that is done, or false if there is none. It frees the packet's
// number and its room in the packet store.
func (s *Scheduler) Leave() (Left, bool) {
	if s.road.order.leaving.n == 0 {
		return Left{}, false
	}
	p := s.road.order.leaving.pop()
	pk := &s.road.order.packets[p]
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
