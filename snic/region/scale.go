package region

import "github.com/quillon/quillon/nf/clock"

// Load reports that a task should handle so many more bytes in a region, or in an unknown region
// (-1). They count at the next Sample.
func (f *Fabric) Load(region, task int, bytes int64) { f.plan.monitor.load(region, task, bytes) }

// Hold reports that so many ns of work wait for a task in a region while its senders are held back. Nobody knows
// what they would have sent, but the waiting work counts in addition to what came. It counts at the next Sample
// only; a second call replaces the first.
func (f *Fabric) Hold(region, task int, ns float64) { f.plan.monitor.hold(region, task, ns) }

// Judge applies the rule for overloaded tasks to something that is in no region: n workers, which had work ns
// of work in dt ns. w keeps its history. Judge reports whether it is overloaded.
func (f *Fabric) Judge(now clock.Time, w *Watch, work, n, dt float64) bool {
	w.see(now, work, n, dt, &f.plan.cfg)
	return w.due
}

// Sample ends a measurement, and scales tasks that were overloaded or underloaded for a whole monitor
// period. The body must call it regularly, many times a period.
func (f *Fabric) Sample(now clock.Time) {
	now = f.advance(now)
	if dt := float64(now.Sub(f.plan.monitor.sampled)); dt > 0 {
		f.plan.monitor.sample(now, dt)
		f.plan.vain = false
		f.scaleIn(now)
	}
	f.settle(now)
}

// scaleIn stops regions that are not needed.
func (f *Fabric) scaleIn(now clock.Time) {
	m := &f.plan.monitor
	for {
		best := none
		for i := range f.plan.slots {
			if s := &f.plan.slots[i]; s.state == Running && m.spares(now, &m.gauges[i], s.since) && (best == none || m.gauges[i].load < m.gauges[best].load) {
				best = i
			}
		}
		if best == none {
			return
		}
		g := &m.gauges[best]
		if used := now.Sub(g.used) < m.cfg.Monitor; used && m.cfg.Spares != nil && !m.cfg.Spares(g.chain) {
			m.crews[g.chain].asked = now // again when a period is over
			continue
		}
		f.plan.stats.ScaledIn++
		f.plan.emitFor(now, ScaleIn, best, g.chain)
		f.plan.stop(now, best)
	}
}

// scaleOut launches one more instance of an overloaded task, and reports whether it did. The task that
// is overloaded for longest comes first.
func (f *Fabric) scaleOut(now clock.Time) bool {
	if !f.plan.monitor.overdue || f.plan.vain {
		return false
	}
	last, full := none, f.plan.free() == 0
	for {
		t := f.plan.monitor.afterOverdue(now, last, full)
		if t == none {
			f.plan.vain = true
			return false
		}
		if i := f.plan.victimWith(t); i != none {
			f.scaled(now, t, i, f.plan.slots[i].chain)
			f.plan.revive(now, i, Scaled)
			return true
		}
		if id := f.plan.bitstream(t); id != none {
			i := f.plan.find(now, id, Scaled)
			f.scaled(now, t, i, id)
			f.plan.claim(now, i, id, Scaled)
			return true
		}
		if e := &f.plan.monitor.tasks[t]; e.quietUntil <= now {
			e.quietUntil = now.Add(f.plan.cfg.Monitor)
			f.plan.stats.Overloads++
			f.plan.emit(Event{Kind: Overload, At: now, Region: none, Chain: none, Task: t})
		}
		last = t
	}
}

func (f *Fabric) scaled(now clock.Time, task, region, id int) {
	f.plan.stats.ScaledOut++
	f.plan.emit(Event{Kind: ScaleOut, Cause: Scaled, At: now, Region: region, Chain: id, Task: task})
}
