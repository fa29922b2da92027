package sched

import "slices"

// An heir is a plan of packets of which tasks have run on an older one, a chain of which has no instance any more: what is
// left of them is run by other chains. It is like the older plan, but that a visit is another one, or two.

// succession is what tells heirs of a plan apart.
type succession struct {
	at    uint8  // the visit
	chain int32  // where it is
	left  uint16 // tasks of the old chain that it has not
}

// inherit has a header, whose plan is not in force and whose chain has no instance, go where the body says that its tasks are, or will
// be (Config.Instead). It reports false if they are nowhere.
func (s *Scheduler) inherit(h int32, pk *packet) bool {
	if s.instead == nil {
		return false
	}
	x, pl := &s.headers[h], s.plans[pk.plan]
	from := int(pl.visits[x.visit].chain)
	chain, tasks, done := s.instead(int(pk.route), from, x.rest)
	if done == 0 || chain < 0 || chain >= len(s.chains) || len(pl.visits) > MaxVisits {
		return false
	}
	key := succession{x.visit, int32(chain), x.rest &^ done}
	if chain == from && key.left == 0 && pl.inherits {
		s.park(&s.chains[chain], h) // it comes again
		return true
	}
	if e := pl.heir; e == nil || s.plans[e.slot] != e || e.succession != key {
		pl.heir = s.heir(pl, key, tasks)
	}
	was := pk.plan
	pk.plan, x.rest = pl.heir.slot, tasks
	pl.heir.users++
	if key.left != 0 {
		x.end++
		for i := h + 1; i < (h>>s.shift)<<s.shift+int32(pk.branches); i++ { // side by side, behind it in the plan
			s.headers[i].visit++
			s.headers[i].end++
		}
	}
	e := pl.heir
	s.unuse(was)
	// mayFollow compares plans: now another branch of the packet may follow the packet before it, or the packet behind it may
	// follow this one.
	s.look(h >> (s.shift & 31))
	s.wake(pk)
	s.admit(h, x, pk, e)
	return true
}

// heir is a plan like another one, but for one visit.
func (s *Scheduler) heir(pl *plan, key succession, tasks uint16) *plan {
	e := *pl
	e.visits = slices.Clone(pl.visits)
	e.visits[key.at] = visit{key.chain, tasks}
	if key.left != 0 {
		e.visits = slices.Insert(e.visits, int(key.at)+1, visit{pl.visits[key.at].chain, key.left})
		e.branches = slices.Clone(pl.branches)
		for i := range e.branches {
			b := &e.branches[i]
			if b.from > key.at {
				b.from++
			}
			if b.to > key.at {
				b.to++
			}
		}
	}
	e.users, e.current, e.inherits, e.heir, e.source, e.succession = 0, false, true, nil, Route{}, key
	s.enter(&e)
	s.heirs = append(s.heirs, &e)
	return &e
}

// enter gives a plan a slot.
func (s *Scheduler) enter(pl *plan) {
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
	s.settle()
}
