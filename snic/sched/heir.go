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
func (rd *road) inherit(h int32, pk *packet) bool {
	if rd.instead == nil {
		return false
	}
	x, pl := &rd.queues.headers[h], rd.plans.all[pk.plan]
	from := int(pl.visits[x.visit].chain)
	chain, tasks, done := rd.instead(int(pk.route), from, x.rest)
	if done == 0 || chain < 0 || chain >= len(rd.in.chains) || len(pl.visits) > MaxVisits {
		return false
	}
	key := succession{x.visit, int32(chain), x.rest &^ done}
	if chain == from && key.left == 0 && pl.inherits {
		rd.in.park(&rd.in.chains[chain], h) // it comes again
		return true
	}
	if e := pl.heir; e == nil || rd.plans.all[e.slot] != e || e.succession != key {
		pl.heir = rd.plans.heir(pl, key, tasks)
	}
	was := pk.plan
	pk.plan, x.rest = pl.heir.slot, tasks
	pl.heir.users++
	if key.left != 0 {
		x.end++
		for i := h + 1; i < (h>>rd.shift)<<rd.shift+int32(pk.branches); i++ { // side by side, behind it in the plan
			rd.queues.headers[i].visit++
			rd.queues.headers[i].end++
		}
	}
	e := pl.heir
	rd.plans.unuse(was)
	// mayFollow compares plans: now another branch of the packet may follow the packet before it, or the packet behind it may
	// follow this one.
	rd.order.look(h >> (rd.shift & 31))
	rd.order.wake(pk)
	rd.admit(h, x, pk, e)
	return true
}

// heir is a plan like another one, but for one visit.
func (ps *plans) heir(pl *plan, key succession, tasks uint16) *plan {
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
	ps.enter(&e)
	ps.heirs = append(ps.heirs, &e)
	return &e
}

// lookAgain has packets of a route that wait for chains without an instance ask anew where to go: the route has changed.
func (rd *road) lookAgain(route int32) {
	if len(rd.plans.heirs) == 0 {
		return
	}
	for _, e := range slices.Clone(rd.plans.heirs) {
		if e.route != route || rd.plans.all[e.slot] != e {
			continue
		}
		e.users++ // stays until this is done
		for _, v := range e.visits {
			if c := &rd.in.chains[v.chain]; c.placed == 0 && c.parked > 0 {
				rd.unpark(c)
			}
		}
		rd.plans.unuse(e.slot)
	}
	rd.settle()
}
