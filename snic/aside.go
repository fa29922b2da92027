package snic

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// besides is the first number of routes for flows that go aside.
const besides = 2 * inLine

// spills is the largest number of DAGs that are tried, the largest DAG first, until one has another way.
const spills = 8

// aside is the part of a DAG's flows that goes through other chains, because the DAG's own chains have too much. Flows are taken by
// buckets, the same as those of instances. A flow changes its way when its packets inside are done (snic/sched: packets of a flow on
// different plans).
type aside struct {
	visits  []sched.Visit
	perByte []float32 // as that of the service
	taken   [sched.Buckets]bool
	bytes   [sched.Buckets]float64 // of each bucket, in about the last monitor period
	fresh   [sched.Buckets]int64   // bytes of each bucket since the last sample
	arrived int64                  // bytes of the buckets that are taken, in this epoch
	part    float64                // the share of the taken buckets in the DAG's recent bytes
	since   clock.Time             // when the measurement began
}

// goesAside reports whether a flow goes through the other chains.
func (rn *runner) goesAside(s *service, flow uint64) bool {
	return s.aside != nil && s.aside.taken[rn.sched.Instances().Bucket(flow)]
}

// count notes what flows of a group bring, before any of it is refused.
func (ig *ingress) count(a *aside, g *group) {
	for i, x := range g.batch.Bufs() {
		k, bytes := ig.runner.sched.Instances().Bucket(g.flows[i]), int64(x.Len())*int64(g.weight)/stands
		a.fresh[k] += bytes
		if a.taken[k] {
			a.arrived += bytes
		}
	}
}

// through returns all visits of a DAG, including those of flows that go aside.
func (s *service) through() []sched.Visit {
	if s.aside == nil {
		return s.visits
	}
	return slices.Concat(s.visits, s.aside.visits)
}

// asides returns how many of a DAG's recent bytes go aside.
func (cat *catalog) asides(s *service) int64 {
	if s.aside == nil {
		return 0
	}
	return int64(float64(cat.lately(s)) * s.aside.part)
}

// filled is how busy the instances are that visits go to: the mean load of the instances of the busiest task. At 1 they can do no more.
func (pl *placement) filled(visits []sched.Visit) (most float64) {
	for _, v := range visits {
		ch := &pl.cat.chains[v.Chain]
		for i, t := range ch.tasks {
			if v.Mask&(1<<i) == 0 {
				continue
			}
			sum := 0.
			for _, r := range ch.running {
				sum += pl.fabric.Part(r, t)
			}
			most = max(most, sum/float64(max(len(ch.running), 1)))
		}
	}
	return most
}

// fills is how much a byte in a monitor period adds to filled.
func (pl *placement) fills(visits []sched.Visit, perByte []float32) (most float64) {
	for i, v := range visits {
		most = max(most, float64(perByte[i])/float64(pl.monitor)/float64(max(len(pl.cat.chains[v.Chain].running), 1)))
	}
	return most
}

// running reports whether all chains of visits take packets.
func (cat *catalog) running(visits []sched.Visit) bool {
	return !slices.ContainsFunc(visits, func(v sched.Visit) bool { return len(cat.chains[v.Chain].running) == 0 })
}

// spill is called when a task has too much in a chain and no region is free for another instance. It moves flows of a DAG to chains
// that run and have room, and reports whether such a move is under way.
func (pl *placement) spill(now clock.Time, chain, task int) bool {
	var all []int
	for n := range pl.cat.services {
		s := &pl.cat.services[n]
		pl.cat.carried(n, task, func(c int, _ int64) {
			if c == chain && !s.bulk {
				all = append(all, n)
			}
		})
	}
	for _, n := range all {
		if a := pl.cat.services[n].aside; a != nil && a.part == 0 {
			return true // its flows are measured
		}
	}
	slices.SortFunc(all, func(a, b int) int {
		return int(pl.cat.lately(&pl.cat.services[b]) - pl.cat.lately(&pl.cat.services[a]))
	})
	pl.cat.weighAll()
	for _, n := range all[:min(len(all), spills)] {
		if pl.cat.services[n].aside != nil {
			continue
		}
		if visits := pl.otherWay(n, chain); visits != nil && pl.filled(visits) < region.Under {
			pl.divide(now, n, visits)
			return true
		}
	}
	return false
}

// otherWay is a DAG's cheapest way through running chains without chain without, with no more visits than now; nil: there is none.
func (pl *placement) otherWay(n, without int) []sched.Visit {
	candidates := slices.DeleteFunc(pl.cat.candidates(false), func(c dag.Candidate) bool {
		return int(c.Chain) == without || len(pl.cat.chains[c.Chain].running) == 0
	})
	visits := pl.cat.cheapest(n, candidates)
	if len(visits) > len(pl.cat.services[n].visits) {
		return nil
	}
	return visits
}

// divide makes another way for flows of a DAG. Which flows take it is decided after they have been measured.
func (pl *placement) divide(now clock.Time, n int, visits []sched.Visit) {
	s := &pl.cat.services[n]
	s.aside = &aside{visits: visits, perByte: pl.cat.perByte(visits), since: now}
	s.split = true
	pl.setRoutes(n, visits, besides)
}

// together ends the other way: all flows of a DAG go the same way again.
func (pl *placement) together(n int) {
	s := &pl.cat.services[n]
	s.aside = nil
	pl.follow(n, s.visits)
}

// ease measures the flows of DAGs that have two ways, or may get a second one, and moves some flows if one way has too much. In a
// monitor period it moves flows of one DAG only, because measuring the effect takes that long.
func (pl *placement) ease(now clock.Time, d clock.Duration) {
	fade := min(1, float64(d)/float64(pl.monitor))
	for n := range pl.cat.services {
		s := &pl.cat.services[n]
		a := s.aside
		if a == nil {
			continue
		}
		a.fold(fade)
		if now < a.since.Add(pl.monitor) || now < pl.easeAt {
			continue
		}
		here, there := pl.filled(s.visits), pl.filled(a.visits)
		fillsHere, fillsThere := pl.fills(s.visits, s.perByte), pl.fills(a.visits, a.perByte)
		moved := 0
		switch {
		case a.part == 0 && here <= 1 || here+fillsHere*a.sum(true) <= region.Under:
			pl.together(n)
			pl.easeAt = now.Add(pl.monitor)
			continue
		case there > 1:
			moved = a.move(false, (there-region.Under)/fillsThere, a.sum(true))
		case here > 1 && there < region.Under:
			moved = a.move(true, (here-region.Under)/fillsHere, (region.Under-there)/fillsThere)
		}
		pl.moved += uint64(moved)
		if moved > 0 {
			pl.easeAt = now.Add(pl.monitor)
		}
	}
}

// fold ends a sample of what flows bring.
func (a *aside) fold(fade float64) {
	for k := range a.bytes {
		a.bytes[k] += float64(a.fresh[k]) - a.bytes[k]*fade
		a.fresh[k] = 0
	}
	if taken := a.sum(true); taken > 0 {
		a.part = taken / (taken + a.sum(false))
	} else {
		a.part = 0
	}
}

// sum is the recent bytes of all buckets that are taken, or of all that are not.
func (a *aside) sum(taken bool) (sum float64) {
	for k, v := range a.bytes {
		if a.taken[k] == taken {
			sum += v
		}
	}
	return sum
}

// move takes buckets, or gives them back, until their recent bytes reach bytes: the largest first, and none larger than room. It
// returns how many.
func (a *aside) move(take bool, bytes, room float64) (moved int) {
	var order []int
	for k, v := range a.bytes {
		if v > 0 && a.taken[k] != take {
			order = append(order, k)
		}
	}
	slices.SortFunc(order, func(x, y int) int {
		switch {
		case a.bytes[x] > a.bytes[y]:
			return -1
		case a.bytes[x] < a.bytes[y]:
			return 1
		}
		return x - y
	})
	for _, k := range order {
		if v := a.bytes[k]; bytes > 0 && v <= room {
			a.taken[k] = take
			bytes, room = bytes-v, room-v
			moved++
		}
	}
	return moved
}
