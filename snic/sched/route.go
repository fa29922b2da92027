package sched

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// SetRoutes makes routes, or changes them under traffic: packets on which no task has run follow the new routes, in the
// order in which they arrived, and all other packets finish on the old ones. If SetRoutes returns an error, it has
// changed no route.
func (s *Scheduler) SetRoutes(ids []int, routes []Route) error {
	plans := make([]*plan, len(ids))
	for i, id := range ids {
		if err := s.checkRoute(id); err != nil {
			return err
		}
		if at := s.routes[id].plan; at != none && same(s.road.plans.all[at].source, routes[i]) {
			continue
		}
		pl, err := s.plan(id, routes[i])
		if err != nil {
			return err
		}
		plans[i] = pl
	}
	var old []int32
	var move []moved
	for i, id := range ids {
		rt := &s.routes[id]
		if plans[i] == nil { // it stays as it is
			continue
		}
		s.road.plans.enter(plans[i])
		old = append(old, rt.plan)
		move = s.road.supersede(rt.plan, plans[i].slot, move)
		rt.plan = plans[i].slot
	}
	s.road.reroute(move)
	for _, pl := range old {
		s.road.retire(pl)
	}
	if len(old) > 0 {
		for _, id := range ids {
			s.road.lookAgain(int32(id))
		}
	}
	return nil
}

// RemoveRoute removes a route. Packets on which no task has run are dropped (Gone); all other
// packets finish on the route.
func (s *Scheduler) RemoveRoute(id int) error {
	if err := s.checkRoute(id); err != nil {
		return err
	}
	old := s.routes[id].plan
	s.routes[id].plan = none
	s.road.reroute(s.road.supersede(old, none, nil))
	s.road.retire(old)
	s.road.lookAgain(int32(id))
	return nil
}

func (s *Scheduler) checkRoute(id int) error {
	if id < 0 || id >= len(s.routes) {
		return fmt.Errorf("sched: route %d: there are 0 to %d", id, len(s.routes)-1)
	}
	return nil
}

// plan checks a route and makes a plan of it, with its stages, branches and visits in flat lists.
func (s *Scheduler) plan(id int, r Route) (*plan, error) {
	if r.Spread > LeastLoaded {
		return nil, fmt.Errorf("sched: route %d: spread %d: there are 0 to %d", id, r.Spread, LeastLoaded)
	}
	pl := &plan{route: int32(id), current: true, spread: r.Spread, anyOrder: r.AnyOrder, back: r.Back}
	for i, stage := range r.Stages {
		if len(stage) < 1 || len(stage) > s.side {
			return nil, fmt.Errorf("sched: route %d: stage %d has %d branches: 1 to %d are possible", id, i, len(stage), s.side)
		}
		from := len(pl.branches)
		for j, branch := range stage {
			if len(branch) < 1 || len(pl.visits)+len(branch) > MaxVisits {
				return nil, fmt.Errorf("sched: route %d: branch %d of stage %d has %d visits: a route has 1 to %d in all", id, j, i, len(branch), MaxVisits)
			}
			at := len(pl.visits)
			for _, v := range branch {
				if v.Chain < 0 || v.Chain >= len(s.road.in.chains) {
					return nil, fmt.Errorf("sched: route %d: chain %d: there are 0 to %d", id, v.Chain, len(s.road.in.chains)-1)
				}
				if v.Mask == 0 {
					return nil, fmt.Errorf("sched: route %d: a visit to chain %d runs no task", id, v.Chain)
				}
				if c := &s.road.in.chains[v.Chain]; c.placed > 0 && bits.Len16(v.Mask) > int(c.tasks) {
					return nil, fmt.Errorf("sched: route %d: mask %#x of chain %d, which has %d tasks", id, v.Mask, v.Chain, c.tasks)
				}
				pl.visits = append(pl.visits, visit{chain: int32(v.Chain), mask: v.Mask})
			}
			pl.branches = append(pl.branches, span{uint8(at), uint8(len(pl.visits))})
		}
		pl.stages = append(pl.stages, span{uint8(from), uint8(len(pl.branches))})
	}
	pl.bulk = len(pl.visits) == 1
	pl.setHeads()
	pl.source = Route{Spread: r.Spread, AnyOrder: r.AnyOrder, Back: r.Back, Stages: make([][][]Visit, len(r.Stages))}
	for i, stage := range r.Stages {
		pl.source.Stages[i] = make([][]Visit, len(stage))
		for j, branch := range stage {
			pl.source.Stages[i][j] = slices.Clone(branch)
		}
	}
	return pl, nil
}

// moved is a packet that goes to another plan.
type moved struct {
	packet int32
	plan   int32 // none: it is dropped
}

// supersede puts plan old out of force. It appends those of its packets on which no task has run to move, with
// plan now as their new plan, and returns move.
func (rd *road) supersede(old, now int32, move []moved) []moved {
	if old == none {
		return move
	}
	rd.plans.all[old].current = false
	left := rd.plans.all[old].users // to be found
	rd.plans.all[old].users++       // stays until retire
	for p := 0; left > 0; p++ {
		pk := &rd.order.packets[p]
		if pk.plan != old || !pk.inside {
			continue
		}
		if left--; pk.reason != None || rd.begun(int32(p)) {
			continue
		}
		for m := uint32(1)<<pk.branches - 1; m != 0; m &= m - 1 {
			rd.recall(int32(p)<<rd.shift | int32(bits.TrailingZeros32(m)))
		}
		pk.held = 0
		rd.plans.all[old].users--
		pk.plan = none // so that none of its flow comes before it
		move = append(move, moved{int32(p), now})
	}
	return move
}

// reroute sends packets that supersede found to their new plans, in the order in which they arrived, because a packet
// that is served late keeps later packets of its flow from leaving.
func (rd *road) reroute(move []moved) {
	slices.SortFunc(move, func(a, b moved) int {
		return cmp.Compare(rd.order.packets[a.packet].seq, rd.order.packets[b.packet].seq)
	})
	for _, m := range move {
		if m.plan == none {
			// Its plan is needed no more; only what is of the flow is.
			rd.order.packets[m.packet].reason = Gone
			rd.finish(m.packet)
			continue
		}
		rd.order.packets[m.packet].plan = m.plan
		rd.plans.all[m.plan].users++
		rd.begin(m.packet, rd.plans.all[m.plan])
	}
}

// retire ends what supersede began: plan old is removed when no packet uses it.
func (rd *road) retire(old int32) {
	if old == none {
		return
	}
	if rd.plans.all[old].users > 1 { // somebody finishes as it began, or is dropped now
		for _, v := range rd.plans.all[old].visits {
			if c := &rd.in.chains[v.chain]; c.placed == 0 {
				rd.unpark(c)
			}
		}
	}
	rd.settle()
	rd.plans.unuse(old)
}

// begun reports whether a task has run on a packet.
func (rd *road) begun(p int32) bool {
	pk := &rd.order.packets[p]
	return pk.stage > 0 || slices.ContainsFunc(rd.queues.headers[p<<rd.shift:][:pk.branches], func(x header) bool { return x.begun })
}

// recall takes a header on which no task has run out of the queue or list in which it waits.
func (rd *road) recall(h int32) {
	x := &rd.queues.headers[h]
	switch x.state {
	case waiting:
		rd.queues.dequeue(h)
		rd.queues.regions[x.region].load--
	case parked:
		rd.in.unlink(&rd.in.chains[rd.visitOf(h).chain], h)
	}
	x.state = idle
}
