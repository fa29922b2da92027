package sched

import "slices"

// An heir is a plan of packets of which tasks have run on an older one, a chain of which has no instance any more: what is
// left of them is run by other chains. It has the stages, branches and visits of the older plan.

// inherit has a header, whose plan is not in force and whose chain has no instance, go where the body says that its tasks are, or will
// be (Config.Instead). It reports false if they are nowhere.
func (s *Scheduler) inherit(h int32, pk *packet) bool {
	if s.instead == nil {
		return false
	}
	x, pl := &s.headers[h], s.plans[pk.plan]
	v := pl.visits[x.visit]
	chain, mask, ok := s.instead(int(pk.route), int(v.chain), v.mask)
	_, rest, ok2 := s.instead(int(pk.route), int(v.chain), x.rest)
	if !ok || !ok2 || chain < 0 || chain >= len(s.chains) {
		return false
	}
	if chain == int(v.chain) {
		s.park(&s.chains[chain], h) // it comes again
		return true
	}
	other := visit{int32(chain), mask}
	if e := pl.heir; e == nil || s.plans[e.slot] != e || e.visits[x.visit] != other {
		pl.heir = s.heir(pl, x.visit, other)
	}
	was := pk.plan
	pk.plan, x.rest = pl.heir.slot, rest
	pl.heir.users++
	s.unuse(was)
	s.admit(h, pk, pl.heir)
	return true
}

// heir is a plan like another one, but for one visit.
func (s *Scheduler) heir(pl *plan, at uint8, v visit) *plan {
	e := *pl
	e.visits = append([]visit(nil), pl.visits...)
	e.visits[at] = v
	e.users, e.current, e.inherits, e.heir, e.source = 0, false, true, nil, Route{}
	s.add(&e)
	s.heirs = append(s.heirs, &e)
	return &e
}

// add gives a plan a slot.
func (s *Scheduler) add(pl *plan) {
	pl.slot = int32(len(s.plans))
	if n := len(s.spare); n > 0 {
		pl.slot, s.spare = s.spare[n-1], s.spare[:n-1]
		s.plans[pl.slot] = pl
		return
	}
	s.plans = append(s.plans, pl)
	if cap(s.spare) < len(s.plans) {
		s.spare = append(make([]int32, 0, 2*len(s.plans)), s.spare...)
	}
}

// lookAgain has packets of a route that wait for chains without an instance ask anew where to go: the route has changed.
func (s *Scheduler) lookAgain(route int32) {
	if len(s.heirs) == 0 {
		return
	}
	for _, e := range slices.Clone(s.heirs) {
		if e.route != route || s.plans[e.slot] != e {
			continue
		}
		e.users++ // stays until this is done
		for _, v := range e.visits {
			if c := &s.chains[v.chain]; c.placed == 0 && c.parked > 0 {
				s.unpark(c)
			}
		}
		s.unuse(e.slot)
	}
}
