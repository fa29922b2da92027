package sched

import "math/bits"

// Take reserves the whole chain for as many as possible of n packets of a flow, whose route is one
// visit; bytes is their size together. Take returns the region, the mask and how many packets it
// took. It takes 0 when the bulk road is closed: then all packets take the full road. If the chain has
// one instance, or Spread is not PerFlow, the packets may be of several flows; otherwise Choose says
// which flows go to the same instance.
//
// Give returns the credits of the packets.
func (s *Scheduler) Take(route int, flow uint64, n, bytes int) (region int, mask uint16, taken int) {
	if uint(route) >= uint(len(s.routes)) || n <= 0 || bytes < 0 {
		return 0, 0, 0
	}
	rt := &s.routes[route]
	if rt.plan == none {
		return 0, 0, 0
	}
	pl := s.road.plans.all[rt.plan]
	if !pl.bulk || rt.inside > 0 && (pl.spread == PerFlow || !pl.anyOrder) {
		return 0, 0, 0
	}
	v := &pl.visits[0]
	r := s.road.in.choose(&s.road.in.chains[v.chain], pl.spread, flow, v.mask)
	if r == none {
		return 0, 0, 0
	}
	rg := &s.road.queues.regions[r]
	if rg.queued&v.mask != 0 {
		return 0, 0, 0
	}
	got := int32(min(n, MaxCredits))
	for m := v.mask; m != 0; m &= m - 1 {
		got = min(got, rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)].free)
	}
	if got <= 0 {
		return 0, 0, 0
	}
	if int(got) < n {
		bytes = int(float64(bytes) / float64(n) * float64(got))
	}
	for m := v.mask; m != 0; m &= m - 1 {
		t := &rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)]
		t.free -= got
		t.taken += got
		t.packets += uint64(got)
		t.bytes += uint64(bytes)
	}
	rg.taken += got
	s.taken += int64(got)
	s.books.Arrived += uint64(got)
	s.books.Bulk += uint64(got)
	return int(r), v.mask, int(got)
}

// Give returns the credits of n packets of Take; dropped says how many of them were dropped. If
// Take did not take so many packets, Give changes nothing and Check reports the caller's fault.
func (s *Scheduler) Give(region int, mask uint16, n, dropped int) {
	if uint(region) >= uint(len(s.road.queues.regions)) || n < 0 || dropped < 0 || dropped > n || n > int(s.road.queues.regions[region].taken) {
		s.road.misuse++
		return
	}
	rg := &s.road.queues.regions[region]
	for m := mask; m != 0; m &= m - 1 {
		if int(rg.tasks[bits.TrailingZeros16(m)].taken) < n {
			s.road.misuse++
			return
		}
	}
	rg.taken -= int32(n)
	s.taken -= int64(n)
	s.books.Left += uint64(n - dropped)
	s.books.Dropped[ByTask] += uint64(dropped)
	for m := mask; m != 0; m &= m - 1 {
		t := &rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)]
		t.taken -= int32(n)
		t.free += int32(n)
	}
	for m := mask & rg.queued; m != 0; m &= m - 1 {
		s.road.queues.serve(int32(region), bits.TrailingZeros16(m))
	}
	s.road.settle()
}

// Choose returns the region that a flow of a route would go to in its first visit with Spread
// PerFlow, or -1 if no region takes its packets.
func (s *Scheduler) Choose(route int, flow uint64) int {
	if uint(route) >= uint(len(s.routes)) || s.routes[route].plan == none {
		return -1
	}
	pl := s.road.plans.all[s.routes[route].plan]
	if len(pl.visits) == 0 {
		return -1
	}
	return int(s.road.in.choose(&s.road.in.chains[pl.visits[0].chain], PerFlow, flow, pl.visits[0].mask))
}
