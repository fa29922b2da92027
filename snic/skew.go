package snic

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// spread says how packets of a DAG go to the instances of its chains. If no task remembers packets, or lets them go in an
// order of its own, each packet goes to the instance that has least inside, and packets leave in order. Otherwise all
// packets of a flow go to one instance.
func (cat *catalog) spread(s *service) sched.Spread {
	for _, n := range s.tasks {
		if t := &cat.tasks[n]; t.State || t.Answers || t.holds {
			return sched.PerFlow
		}
	}
	return sched.LeastLoaded
}

// slowest is the least that a task of a visit can handle, in bits a second; 0: there is no limit.
func (cat *catalog) slowest(v sched.Visit) (rate int64) {
	for i, t := range cat.chains[v.Chain].tasks {
		if x := cat.tasks[t].Throughput; v.Mask&(1<<i) != 0 && x > 0 && (rate == 0 || x < rate) {
			rate = x
		}
	}
	return rate
}

// skewed notes what follow has decided: whether the load of a DAG is to be measured by flows.
func (cat *catalog) skewed(s *service) {
	s.perByte = cat.perByte(s.visits)
	s.byFlow = slices.Max(append(s.perByte, 0)) > 0 && cat.spread(s) == sched.PerFlow
}

// perByte is how many ns of an instance a byte takes in each visit; 0: there is no limit.
func (cat *catalog) perByte(visits []sched.Visit) (out []float32) {
	for _, v := range visits {
		ns := float32(0)
		if rate := cat.slowest(v); rate > 0 {
			ns = 8e9 / float32(rate)
		}
		out = append(out, ns)
	}
	return out
}

// seat assigns flows to instances of a chain by their load, if that is measured.
func (pl *placement) seat(chain int) {
	for _, t := range pl.cat.chains[chain].tasks {
		if pl.cat.tasks[t].Throughput > 0 {
			pl.runner.sched.Instances().Seat(chain)
			return
		}
	}
}

// want adds a group to the demand of regions, before any of its frames is refused.
func (ig *ingress) want(s *service, g *group) {
	ig.wants(s, s.visits, s.perByte, false, g)
	if s.aside != nil {
		ig.wants(s, s.aside.visits, s.aside.perByte, true, g)
	}
}

// wants is want for one of the two ways of a DAG.
func (ig *ingress) wants(s *service, visits []sched.Visit, perByte []float32, aside bool, g *group) {
	for i, v := range visits {
		ns := perByte[i]
		if ns == 0 || len(ig.cat.chains[v.Chain].running) == 0 {
			continue
		}
		touched := ig.touched[:0]
		for k, x := range g.batch.Bufs() {
			if s.aside != nil && ig.runner.goesAside(s, g.flows[k]) != aside {
				continue
			}
			bytes := x.Len() * int(g.weight) / stands
			r := ig.runner.sched.Instances().Want(v.Chain, g.flows[k], ns*float32(bytes))
			if r < 0 {
				continue
			}
			if ig.part[r] == 0 {
				touched = append(touched, int32(r))
			}
			ig.part[r] += int64(bytes)
		}
		for _, r := range touched {
			for k, t := range ig.cat.chains[v.Chain].tasks {
				if v.Mask&(1<<k) != 0 {
					ig.placing.fabric.Load(int(r), t, ig.part[r])
				}
			}
			ig.part[r] = 0
		}
	}
}

// waitings adds to the demand of regions the work that waits in them, for tenants that were asked to send less since the last sample: for
// each of their DAGs at the task for which most waits, because that task limits the others.
func (pl *placement) waitings(now clock.Time) {
	for n := range pl.cat.services {
		if pl.runner.waits[n] == 0 {
			continue
		}
		s := &pl.cat.services[n]
		if s.UID == 0 || s.elsewhere() || !pl.gates.askedToSlow(s.tenant) {
			continue
		}
		task, most := -1, 0.
		visits := s.through()
		for _, v := range visits {
			for k, t := range pl.cat.chains[v.Chain].tasks {
				if v.Mask&(1<<k) == 0 {
					continue
				}
				ns := 0.
				for _, r := range pl.cat.chains[v.Chain].running {
					ns += pl.queued(now, r, k)
				}
				if ns > most {
					task, most = t, ns
				}
			}
		}
		for _, v := range visits {
			chain := &pl.cat.chains[v.Chain]
			for k, t := range chain.tasks {
				for _, r := range chain.running {
					if t == task {
						pl.fabric.Hold(r, t, pl.queued(now, r, k))
					}
				}
			}
		}
	}
}

// queued is the work that waits for task k of the chain in a region, in ns: in it, and for a credit.
func (pl *placement) queued(now clock.Time, r, k int) float64 {
	q := pl.runner.sched.Task(r, k)
	t := &pl.cat.tasks[pl.cat.chains[pl.cat.placed[r]].tasks[k]]
	if q.Packets == 0 || t.Throughput == 0 {
		return 0
	}
	mean := float64(q.Bytes) / float64(q.Packets) * 8e9 / float64(t.Throughput)
	return float64(q.Waiting)*mean + float64(max(0, pl.runner.wait[r*sched.MaxTasks+k].busy.Sub(now)))
}

// backlog is the most work that waits for a task of a DAG here, in ns of an instance.
func (pl *placement) backlog(s *service) (most float64) {
	for _, v := range s.through() {
		for k := range pl.cat.chains[v.Chain].tasks {
			if v.Mask&(1<<k) == 0 {
				continue
			}
			for _, r := range pl.cat.chains[v.Chain].running {
				most = max(most, pl.queued(pl.cat.seen, r, k))
			}
		}
	}
	return most
}

// balance moves flows from instances that have too much to others of their chain.
func (pl *placement) balance(d clock.Duration) {
	fade := min(1, float32(d)/float32(pl.monitor))
	for r, n := range pl.cat.placed {
		if n < 0 || len(pl.cat.chains[n].running) == 0 || pl.cat.chains[n].running[0] != r {
			continue
		}
		pl.moved += uint64(pl.runner.sched.Instances().Balance(int(n), fade, region.Under*float32(pl.monitor), !pl.cat.chains[n].State))
	}
}

// crowd is the recent load of a chain's fullest instance, and of its largest bucket, which cannot be divided, as parts of what an
// instance can do. some is false if the load is not measured by flows.
func (pl *placement) crowd(chain int) (instance, bucket float64, some bool) {
	i, k := pl.runner.sched.Instances().Heaviest(chain)
	m := float64(pl.monitor)
	return float64(i) / m, float64(k) / m, i > 0
}

// unlike is how much more load the fullest instance of a chain has than their mean.
func (pl *placement) unlike(chain int) float64 {
	most, all := 0., 0.
	for _, r := range pl.cat.chains[chain].running {
		load := pl.fabric.Region(r).Load
		most, all = max(most, load), all+load
	}
	if all == 0 {
		return 1
	}
	return most * float64(len(pl.cat.chains[chain].running)) / all
}

// crowded reports whether all instances of a task have too much, or the fullest one of a chain, now that flows have been
// moved as far as that helps. Where loads are not measured by flows it is for the monitors alone to say.
func (pl *placement) crowded(chain, task int) bool {
	instance, _, some := pl.crowd(chain)
	return !some || instance > 1 || pl.fabric.Short(task)
}

// parts reports whether flows of a task could go from the fullest instance of a chain to another one. They could
// not if one flow has nine tenths of that instance's load.
func (pl *placement) parts(chain, task int) bool {
	apart, together := int64(0), int64(0)
	for n := range pl.cat.services {
		pl.cat.carried(n, task, func(c int, v int64) {
			switch {
			case c != chain:
			case pl.cat.services[n].byFlow:
				together += v
			default:
				apart += v
			}
		})
	}
	if together == 0 || apart > together/8 {
		return true
	}
	instance, bucket, some := pl.crowd(chain)
	return !some || bucket < instance*.9
}

// oneFlow describes a single flow that brings more than an instance of a task can do, so that more instances would
// not help.
type oneFlow struct {
	load  float64 // in instances; 0: there is no such flow
	until clock.Time
}

// overload deals with a task that has too much and gets no other instance, because a single flow is too much (which it
// notes once), or because there is no region.
func (pl *placement) overload(now clock.Time, e region.Event) {
	t := &pl.cat.tasks[e.Task]
	_ = pl.helps(-1, e.Task) // for the busiest chain
	r := &pl.relief
	if r.busiest >= 0 && !pl.crowded(r.busiest, e.Task) {
		return // its flows have been moved
	}
	if r.busiest >= 0 && !pl.parts(r.busiest, e.Task) {
		_, bucket, _ := pl.crowd(r.busiest)
		if pl.cat.single(t) == 0 {
			pl.singles++
			e.Reason, e.Chain = region.OneFlow, r.busiest
			pl.note(e)
		}
		t.oneFlow = oneFlow{bucket, now.Add(4 * pl.monitor)}
		return
	}
	pl.note(e)
	if r.busiest >= 0 && pl.spill(now, r.busiest, e.Task) {
		return
	}
	pl.near.relieve(now, func(n int) float64 {
		if s := &pl.cat.services[n]; s.UID != 0 && !s.elsewhere() && slices.Contains(s.tasks, e.Task) {
			return s.rate + 1
		}
		return 0
	})
}

// single is the load, in instances, of a single flow that is too much for an instance of a task; 0: there is none.
func (cat *catalog) single(t *task) float64 {
	if cat.seen >= t.oneFlow.until {
		return 0
	}
	return t.oneFlow.load
}

// fullest is the load of a task's fullest instance.
func (pl *placement) fullest(n int) (load float64) {
	for r, ch := range pl.cat.placed {
		if ch >= 0 {
			load = max(load, pl.fabric.Part(r, n))
		}
	}
	return load
}
