package region

import "github.com/quillon/quillon/nf/clock"

// task is a network task, wherever it is.
type task struct {
	known   bool
	due     bool // overloaded for a whole period
	spare   bool // one instance too many for a whole period
	running int  // instances
	coming  int
	leaving int
	round   uint32  // the sample that it was part of
	perByte float64 // ns that an instance needs
	bytes   int64   // since the last sample
	load    float64 // in instances; a mean over about a monitor period
	booked  float64 // in instances: promised, not yet measured
	used    clock.Time
	over    clock.Time // overloaded since; Never: not
	excess  float64    // ns of work beyond capacity since then
	under   clock.Time // start of the period in which one instance less is tried
	rest    float64    // ns of work beyond what it could do since then
	told    clock.Time // Overload is not told before
}

// restart starts a task's monitors: its instances have changed.
func (t *task) restart(now clock.Time) {
	t.due, t.spare = false, false
	t.over, t.excess = clock.Never, 0
	t.under, t.rest = now, 0
}

// Load tells that a task should handle so many bytes in a region, or in one that
// is not known (-1), since the last call. They count at the next Sample.
func (f *Fabric) Load(region, task int, bytes int64) {
	if task < 0 || task >= len(f.tasks) || bytes <= 0 {
		return
	}
	f.tasks[task].bytes += bytes
	if region < 0 || region >= len(f.slots) || f.slots[region].state != Running {
		return
	}
	s := &f.slots[region]
	for k, t := range f.chains[s.chain].tasks {
		if t == task {
			s.bytes[k] += bytes
			return
		}
	}
}

// Sample ends a measurement, and scales what was overloaded or underloaded for a
// whole monitor period. It is called regularly, many times a period.
func (f *Fabric) Sample(now clock.Time) {
	now = f.advance(now)
	dt := float64(now.Sub(f.sampled))
	if dt <= 0 {
		f.settle(now)
		return
	}
	f.round++
	f.overdue = false
	weight := min(1, dt/float64(f.cfg.Monitor))
	for i := range f.slots {
		s := &f.slots[i]
		if s.state != Running {
			continue
		}
		busy := f.fold(now, s)
		s.load += (busy/dt - s.load) * weight
		for _, t := range f.chains[s.chain].tasks {
			if e := &f.tasks[t]; e.round != f.round {
				e.round = f.round
				f.watch(now, e, dt, weight)
				f.overdue = f.overdue || e.due
			}
		}
	}
	f.sampled = now
	f.scaleIn(now)
	f.settle(now)
}

// watch judges a task by its last sample.
func (f *Fabric) watch(now clock.Time, e *task, dt, weight float64) {
	work := float64(e.bytes) * e.perByte
	if e.bytes > 0 {
		e.used = now
	}
	e.bytes = 0
	e.load += (work/dt - e.load) * weight
	// What is promised is measured from when it can be served.
	e.booked -= e.booked * weight * min(1, float64(now.Sub(e.under))/dt)
	if e.coming+e.leaving > 0 {
		return
	}
	if e.under > f.sampled { // its instances changed within the sample
		e.under = now
		return
	}
	n := float64(e.running)
	excess := work - n*dt*f.cfg.Over
	if e.over == clock.Never {
		if excess > slack*n*dt {
			e.over, e.excess = now, 0
		}
	} else {
		e.excess = min(e.excess+excess, n*float64(f.cfg.Backlog)+max(0, excess))
		if e.excess <= slack*n*dt {
			e.over, e.excess, e.due = clock.Never, 0, false
		} else if now.Sub(e.over) >= f.cfg.Monitor {
			e.due = true
		}
	}
	e.rest = max(0, e.rest+work-(n-1)*dt*f.cfg.Under)
	switch {
	case e.rest > (n-1)*float64(f.cfg.Backlog):
		e.under, e.rest, e.spare = now, 0, false
	case now.Sub(e.under) >= f.cfg.Monitor:
		e.spare = e.rest == 0
		e.under, e.rest = now, 0
	}
}

// scaleIn stops regions that are not needed.
func (f *Fabric) scaleIn(now clock.Time) {
	for {
		best := none
		for i := range f.slots {
			if s := &f.slots[i]; s.state == Running && f.needless(now, s) && (best == none || s.load < f.slots[best].load) {
				best = i
			}
		}
		if best == none {
			return
		}
		f.stats.ScaledIn++
		f.tell(now, ScaleIn, best, f.slots[best].chain)
		f.stop(now, best)
	}
}

// needless reports whether all tasks of a region can do without it.
func (f *Fabric) needless(now clock.Time, s *slot) bool {
	for _, t := range f.chains[s.chain].tasks {
		e := &f.tasks[t]
		if e.coming+e.leaving > 0 {
			return false
		}
		idle := f.cfg.Idle > 0 && now.Sub(max(e.used, s.since)) >= f.cfg.Idle
		if !(e.running > 1 && e.spare) && !idle {
			return false
		}
	}
	return true
}

// scaleOut launches one more instance of a task that is overloaded, that for which
// it lasts longest first.
func (f *Fabric) scaleOut(now clock.Time) bool {
	if !f.overdue {
		return false
	}
	last, full := none, f.Free() == 0
	for {
		t := f.afterOverdue(now, last, full)
		if t == none {
			return false
		}
		if i := f.victimWith(t); i != none {
			f.scaled(now, t, i, f.slots[i].chain)
			f.revive(now, i, Scaled)
			return true
		}
		if id := f.bitstream(t); id != none {
			i := f.find(now, id, Scaled)
			f.scaled(now, t, i, id)
			f.claim(now, i, id, Scaled)
			return true
		}
		if e := &f.tasks[t]; e.told <= now {
			e.told = now.Add(f.cfg.Monitor)
			f.stats.Overloads++
			f.emit(Event{Kind: Overload, At: now, Region: none, Chain: none, Task: t})
		}
		last = t
	}
}

func (f *Fabric) scaled(now clock.Time, task, region, id int) {
	f.stats.ScaledOut++
	f.emit(Event{Kind: ScaleOut, Cause: Scaled, At: now, Region: region, Chain: id, Task: task})
}

// afterOverdue is the task overloaded for a period that follows last: by the time
// since when, then by number. When the board is full, only those to be told of.
func (f *Fabric) afterOverdue(now clock.Time, last int, full bool) int {
	after := func(a, b int) bool {
		x, y := f.tasks[a].over, f.tasks[b].over
		return x > y || x == y && a > b
	}
	best := none
	for i := range f.slots {
		if f.slots[i].state != Running {
			continue
		}
		for _, t := range f.chains[f.slots[i].chain].tasks {
			if f.tasks[t].due && !(full && f.tasks[t].told > now) && (last == none || after(t, last)) && (best == none || after(best, t)) {
				best = t
			}
		}
	}
	return best
}

// worth is what a chain is good for, given what is overloaded: how many such tasks
// it has, and the load of all its tasks. Nothing if it has not the task.
func (f *Fabric) worth(id, task int) (due int, load float64) {
	has := false
	for _, t := range f.chains[id].tasks {
		e := &f.tasks[t]
		has = has || t == task
		if e.due {
			due++
		}
		if e.running > 0 {
			load += e.load / float64(e.running)
		}
	}
	if !has {
		return 0, 0
	}
	return due, load
}

// victimWith is the victim to run for an overloaded task.
func (f *Fabric) victimWith(task int) int {
	best, due, load := none, 0, 0.0
	for i := range f.slots {
		s := &f.slots[i]
		if s.state != Victim {
			continue
		}
		if d, l := f.worth(s.chain, task); d > due || d == due && d > 0 && l > load {
			best, due, load = i, d, l
		}
	}
	return best
}

// bitstream is the chain to launch for an overloaded task, into a region that is
// free or has a victim.
func (f *Fabric) bitstream(task int) int {
	area := f.Free()
	if area == 0 {
		return none
	}
	best, due, load := none, 0, 0.0
	for id := range f.chains {
		c := &f.chains[id]
		if !c.known || c.dead || c.area > area {
			continue
		}
		d, l := f.worth(id, task)
		if d > due || d == due && d > 0 && (l > load || l == load && c.area < f.chains[best].area) {
			best, due, load = id, d, l
		}
	}
	return best
}
