package snic

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// besides is from where on routes of flows begin that go aside.
const besides = 2 * inLine

// spills is how many DAGs are tried, the largest first, until one has another way.
const spills = 8

// aside is flows of a DAG that go through other chains than the rest, which has more than its chains can do: buckets of flows, as
// instances have. Each goes the other way when its packets inside are done (snic/sched: packets of a flow on different plans).
type aside struct {
	visits  []sched.Visit
	perByte []float32 // as that of the service
	taken   [sched.Buckets]bool
	bytes   [sched.Buckets]float64 // of about the last monitor period
	fresh   [sched.Buckets]int64   // since they were looked at
	arrived int64                  // bytes of those that are taken, in this epoch
	part    float64                // of all bytes that these had of late
	since   clock.Time             // it is measured
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

// through is all visits of a DAG, those of flows that go aside, too.
func (s *service) through() []sched.Visit {
	if s.aside == nil {
		return s.visits
	}
	return slices.Concat(s.visits, s.aside.visits)
}

// asides is how many bytes a DAG was sent of late that go aside.
func (cat *catalog) asides(s *service) int64 {
	if s.aside == nil {
		return 0
	}
	return int64(float64(cat.lately(s)) * s.aside.part)
}

// filled is how busy the instances are that visits go to: of the busiest task, the mean of its instances; 1 is all that they can do.
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

// fills is by how much a byte in a monitor period adds to filled.
func (pl *placement) fills(visits []sched.Visit, perByte []float32) (most float64) {
	for i, v := range visits {
		most = max(most, float64(perByte[i])/float64(pl.monitor)/float64(max(len(pl.cat.chains[v.Chain].running), 1)))
	}
	return most
}

// running reports whether all that visits go through takes packets.
func (cat *catalog) running(visits []sched.Visit) bool {
	return !slices.ContainsFunc(visits, func(v sched.Visit) bool { return len(cat.chains[v.Chain].running) == 0 })
}

// spill has flows of a DAG go through chains that run and have room, since there is too much of a task in a chain, and no region
// for more of it. It reports whether that is under way.
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

// otherWay is the cheapest way of a DAG through chains that run, without one of them, that takes no more visits; nil: there is none.
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

// divide makes another way for flows of a DAG. Which go there is said when they are measured.
func (pl *placement) divide(now clock.Time, n int, visits []sched.Visit) {
	s := &pl.cat.services[n]
	s.aside = &aside{visits: visits, perByte: pl.cat.perByte(visits), since: now}
	s.split = true
	pl.setRoutes(n, visits, besides)
}

// together has all flows of a DAG go the same way.
func (pl *placement) together(n int) {
	s := &pl.cat.services[n]
	s.aside = nil
	pl.follow(n, s.visits)
}

// ease measures the flows of DAGs that are, or may come to be, in two parts, and moves some of them where one part has too much. It
// moves flows of one DAG in a monitor period, since it takes so long to measure what came of that.
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

// sum is how many bytes all buckets have had of late that are taken, or are not.
func (a *aside) sum(taken bool) (sum float64) {
	for k, v := range a.bytes {
		if a.taken[k] == taken {
			sum += v
		}
	}
	return sum
}

// move takes buckets, or gives them back, until they have bytes of late; the greatest first, none that is more than room. It returns
// how many.
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
