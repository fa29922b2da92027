package sched

import "slices"

// A successor is a plan for packets that have begun on an older plan of which one chain has no instance:
// another chain runs tasks that are left. The successor replaces one visit of the older plan by one or two
// visits.

// succession identifies a successor among those of one plan.
type succession struct {
	at    uint8  // the visit
	chain int32  // where it is
	left  uint16 // tasks of the old chain that it has not
}

// inherit sends a header whose plan is not in force, and whose chain has no instance, to another chain that runs its
// tasks or will run them (Config.Instead). It returns false if there is no such chain.
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
	if e := pl.successor; e == nil || rd.plans.all[e.slot] != e || e.succession != key {
		pl.successor = rd.plans.successor(pl, key, tasks)
	}
	was := pk.plan
	pk.plan, x.rest = pl.successor.slot, tasks
	pl.successor.users++
	if key.left != 0 {
		x.end++
		for i := h + 1; i < (h>>rd.shift)<<rd.shift+int32(pk.branches); i++ { // side by side, behind it in the plan
			rd.queues.headers[i].visit++
			rd.queues.headers[i].end++
		}
	}
	e := pl.successor
	rd.plans.unuse(was)
	// mayFollow compares plans: now another branch of the packet may follow the packet before it, or the packet
	// behind it may follow this one.
	rd.order.look(h >> (rd.shift & 31))
	rd.order.wake(pk)
	rd.admit(h, x, pk, e)
	return true
}

// successor makes and enters a plan that differs from pl in visit key.at: it visits chain key.chain there, for
// tasks, and after that the old chain again if key.left has tasks.
func (ps *plans) successor(pl *plan, key succession, tasks uint16) *plan {
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
	e.users, e.current, e.inherits, e.successor, e.source, e.succession = 0, false, true, nil, Route{}, key
	ps.enter(&e)
	ps.successors = append(ps.successors, &e)
	return &e
}

// lookAgain makes packets that are on successors of a route, and wait for chains without an instance, ask
// Config.Instead again, because the route has changed.
func (rd *road) lookAgain(route int32) {
	if len(rd.plans.successors) == 0 {
		return
	}
	for _, e := range slices.Clone(rd.plans.successors) {
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
