package sched

import "slices"

// plans holds the plans that are in force, and older plans that packets are still on.
type plans struct {
	all        []*plan // by slot; nil: not used
	successors []*plan // of all plans
	spare      []int32 // slots that are not used
}

// span is a piece of a plan's branches or visits.
type span struct{ from, to uint8 }

type visit struct {
	chain int32
	mask  uint16
}

// plan is a route in flat form, which never changes and which packets keep.
type plan struct {
	route     int32
	users     int32 // packets
	current   bool
	spread    Spread
	anyOrder  bool
	back      bool
	bulk      bool // one visit
	stages    []span
	branches  []span
	visits    []visit
	heads     []header // of the first stage, for Start; none: no packet starts
	first     []Run    // the same as runs
	source    Route
	slot      int32
	inherits  bool  // the plan is a successor
	successor *plan // of it, the latest
	succession
}

func same(a, b Route) bool {
	return a.Spread == b.Spread && a.AnyOrder == b.AnyOrder && a.Back == b.Back && slices.EqualFunc(a.Stages, b.Stages, func(x, y [][]Visit) bool {
		return slices.EqualFunc(x, y, slices.Equal[[]Visit])
	})
}

// unuse is called when a packet has no more need of its plan. A plan that is not in force and has no users is
// removed.
func (ps *plans) unuse(slot int32) {
	pl := ps.all[slot]
	pl.users--
	if pl.current || pl.users > 0 {
		return
	}
	ps.all[slot] = nil
	ps.spare = append(ps.spare, slot)
	if pl.inherits {
		at := slices.Index(ps.successors, pl)
		ps.successors = slices.Delete(ps.successors, at, at+1)
	}
}

// enter gives a plan a slot.
func (ps *plans) enter(pl *plan) {
	pl.slot = int32(len(ps.all))
	if n := len(ps.spare); n > 0 {
		pl.slot, ps.spare = ps.spare[n-1], ps.spare[:n-1]
		ps.all[pl.slot] = pl
		return
	}
	ps.all = append(ps.all, pl)
	if cap(ps.spare) < len(ps.all) {
		ps.spare = append(make([]int32, 0, 2*len(ps.all)), ps.spare...)
	}
}

// visits reports whether one of the plans visits a chain.
func (ps *plans) visits(chain int32) bool {
	for _, pl := range ps.all {
		if pl == nil {
			continue
		}
		for _, v := range pl.visits {
			if v.chain == chain {
				return true
			}
		}
	}
	return false
}
