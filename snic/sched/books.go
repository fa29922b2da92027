package sched

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// Books counts packets. Arrived is the sum of Left, all Dropped, Inside and Taken.
type Books struct {
	Arrived uint64 // on both roads; without those refused
	Left    uint64
	Dropped [reasons]uint64 // by reason
	Refused [reasons]uint64 // by reason
	Runs    uint64          // that Next returned: passes through the scheduler
	Bulk    uint64          // how many of Arrived took the bulk road
	Inside  int             // on the full road
	Taken   int             // on the bulk road
	Stored  int             // bytes in the packet store
}

// Books returns the counts since New.
func (s *Scheduler) Books() Books {
	b := s.books
	b.Inside, b.Taken, b.Stored = len(s.road.order.packets)-len(s.free), int(s.taken), int(s.store)
	return b
}

// Instance describes what a region holds.
type Instance struct {
	Chain   int // -1: nothing
	Tasks   int
	Paused  bool
	Inside  int // packets that run, on both roads
	Waiting int // packets that wait at the scheduler for a credit here
}

// Instance describes what a region holds; an unknown region holds nothing.
func (s *Scheduler) Instance(region int) Instance {
	rg, err := s.road.in.instance(region)
	if err != nil {
		return Instance{Chain: -1}
	}
	return Instance{int(rg.chain), int(rg.n), rg.paused, int(rg.running + rg.taken), int(rg.load - rg.running)}
}

// Task describes an instance of a task. Packets and Bytes count what was sent to it since Place,
// before credits were assigned.
type Task struct {
	Credits, Free  int
	Waiting        int // in its queue, with those on their way back to it
	Packets, Bytes uint64
}

// Task describes a task in a region. It returns the zero Task if there is none.
func (s *Scheduler) Task(region, task int) Task {
	rg, err := s.road.in.instance(region)
	if err != nil || uint(task) >= uint(rg.n) {
		return Task{}
	}
	t := &rg.tasks[task]
	return Task{int(t.total), int(t.free), int(t.waiting), t.packets, t.bytes}
}

// Tenant returns how many packets and bytes of a tenant are inside, on the full road.
func (s *Scheduler) Tenant(tenant int) (packets, bytes int) {
	if uint(tenant) >= uint(len(s.tenants)) {
		return 0, 0
	}
	return int(s.tenants[tenant].packets), int(s.tenants[tenant].bytes)
}

// Check goes through all data of the scheduler and returns an error for contradictions, which are faults
// of the scheduler, and for wrong calls of its owner.
func (s *Scheduler) Check() error {
	if s.road.misuse > 0 {
		return fmt.Errorf("sched: %d calls for what the caller does not have", s.road.misuse)
	}
	return errors.Join(s.checkPackets(), s.checkRegions(), s.checkHeaders(), s.road.order.checkFlows())
}

func (s *Scheduler) checkPackets() error {
	b := s.Books()
	sum := b.Left + uint64(b.Inside) + uint64(b.Taken)
	for _, n := range b.Dropped {
		sum += n
	}
	if sum != b.Arrived {
		return fmt.Errorf("sched: %d packets arrived, %d are accounted for", b.Arrived, sum)
	}
	if len(s.road.order.work) > 0 {
		return fmt.Errorf("sched: %d packets were not looked at", len(s.road.order.work))
	}
	inside, bytes := 0, int64(0)
	tenants, routes, users := make([]tenantState, len(s.tenants)), make([]int32, len(s.routes)), make([]int32, len(s.road.plans.all))
	for p := range s.road.order.packets {
		pk := &s.road.order.packets[p]
		if !pk.inside {
			continue
		}
		inside++
		bytes += int64(pk.bytes)
		tenants[pk.tenant].packets++
		tenants[pk.tenant].bytes += int64(pk.bytes)
		routes[pk.route]++
		if pk.finished != (pk.plan == none) {
			return fmt.Errorf("sched: packet %d has plan %d, finished: %v", p, pk.plan, pk.finished)
		}
		if pk.plan != none {
			users[pk.plan]++
		}
	}
	if inside != b.Inside || bytes != s.store {
		return fmt.Errorf("sched: %d packets of %d bytes are inside, not %d of %d", inside, bytes, b.Inside, s.store)
	}
	for i := range tenants {
		if t := &s.tenants[i]; t.packets != tenants[i].packets || t.bytes != tenants[i].bytes {
			return fmt.Errorf("sched: tenant %d has %d packets inside, not %d", i, tenants[i].packets, t.packets)
		}
	}
	for i := range routes {
		if s.routes[i].inside != routes[i] {
			return fmt.Errorf("sched: route %d has %d packets inside, not %d", i, routes[i], s.routes[i].inside)
		}
	}
	for i, pl := range s.road.plans.all {
		if pl != nil && (pl.users != users[i] || !pl.current && users[i] == 0) {
			return fmt.Errorf("sched: plan %d (in force: %v) has %d packets, not %d", i, pl.current, users[i], pl.users)
		}
	}
	return nil
}

// checkRegions goes through credits and queues.
func (s *Scheduler) checkRegions() error {
	taken := int64(0)
	for r := range s.road.queues.regions {
		rg := &s.road.queues.regions[r]
		var credits [MaxTasks]int32
		running, load := int32(0), int32(0)
		for h := range s.road.queues.headers {
			x := &s.road.queues.headers[h]
			if int(x.region) != r || x.state < waiting || !s.road.order.packets[h>>s.road.shift].inside {
				continue
			}
			load++
			if x.state >= ready {
				running++
			}
			for m := x.credits; m != 0; m &= m - 1 {
				credits[bits.TrailingZeros16(m)]++
			}
		}
		if running != rg.running || load != rg.load {
			return fmt.Errorf("sched: region %d: %d run and %d in all, not %d and %d", r, running, load, rg.running, rg.load)
		}
		taken += int64(rg.taken)
		for i := range rg.tasks {
			t := &rg.tasks[i]
			if t.total-t.free != credits[i]+t.taken {
				return fmt.Errorf("sched: region %d task %d: %d of %d credits are free, %d and %d are out", r, i, t.free, t.total, credits[i], t.taken)
			}
			if rg.chain == none {
				continue
			}
			if err := s.road.queues.checkQueue(r, i); err != nil {
				return err
			}
		}
	}
	if taken != s.taken {
		return fmt.Errorf("sched: %d packets are taken, not %d", taken, s.taken)
	}
	return nil
}

// checkHeaders goes through headers that wait for something other than credits.
func (s *Scheduler) checkHeaders() error {
	parks := 0
	for h := range s.road.queues.headers {
		x := &s.road.queues.headers[h]
		pk := &s.road.order.packets[h>>s.road.shift]
		branch := h & (1<<s.road.shift - 1)
		if !pk.inside || pk.finished || branch >= int(pk.branches) {
			continue
		}
		if x.state < waiting && (x.credits != 0 || x.queue >= 0) {
			return fmt.Errorf("sched: header %d in state %d has credits %#x, or a place in a queue", h, x.state, x.credits)
		}
		if (x.state == held) != (pk.held&(1<<branch) != 0) {
			return fmt.Errorf("sched: header %d in state %d: %#x are held", h, x.state, pk.held)
		}
		switch x.state {
		case held:
			// The packet that is waited for has yet to get on.
			if pk.before == none {
				return fmt.Errorf("sched: header %d waits for nobody", h)
			}
			q, y := &s.road.order.packets[pk.before], &s.road.queues.headers[int(pk.before)<<s.road.shift|branch]
			if q.plan == pk.plan && (q.stage > pk.stage || q.stage == pk.stage && y.visit > x.visit) {
				return fmt.Errorf("sched: header %d waits for packet %d, which has got on", h, pk.before)
			}
		case parked:
			parks++
			c := s.road.visitOf(int32(h)).chain
			if len(s.road.in.chains[c].open) > 0 || s.road.in.chains[c].placed == 0 && !s.road.plans.all[pk.plan].current && s.road.instead == nil {
				return fmt.Errorf("sched: header %d waits for chain %d, which has %d instances", h, c, s.road.in.chains[c].placed)
			}
		case idle:
			if pk.reason == None && x.visit < x.end {
				return fmt.Errorf("sched: header %d of branch %d is nowhere", h, branch)
			}
		}
	}
	for i := range s.road.in.chains {
		c := &s.road.in.chains[i]
		parks -= int(c.parked)
		if c.seats == nil {
			continue
		}
		for k, r := range c.seats.region {
			if r != none && !slices.Contains(c.open, r) {
				return fmt.Errorf("sched: bucket %d of chain %d is at region %d, which takes none of its packets", k, i, r)
			}
		}
	}
	if parks != 0 {
		return fmt.Errorf("sched: %d more headers are parked than chains know of", parks)
	}
	return nil
}

// Visits reports whether a route visits a chain, or an older plan that packets are still on.
func (s *Scheduler) Visits(chain int) bool { return s.road.plans.visits(int32(chain)) }
