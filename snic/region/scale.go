package region

import "github.com/quillon/quillon/nf/clock"

// Load tells that a task should handle so many bytes in a region, or in one that
// is not known (-1), since the last call. They count at the next Sample.
func (f *Fabric) Load(region, task int, bytes int64) { f.plan.monitor.load(region, task, bytes) }

// Hold tells that so many ns of work wait for a task in a region, while those who send it more are held back: what would have
// come is not known, but what waits is to be done besides what came. It counts in the next Sample; a second call takes the place of the first.
func (f *Fabric) Hold(region, task int, ns float64) { f.plan.monitor.hold(region, task, ns) }

// Judge judges by a sample what is in no region: n that work, and had so many ns of work in dt ns. It reports whether that is
// too much, as it is of a task.
func (f *Fabric) Judge(now clock.Time, w *Watch, work, n, dt float64) bool {
	w.see(now, work, n, dt, &f.plan.cfg)
	return w.due
}

// Sample ends a measurement, and scales what was overloaded or underloaded for a
// whole monitor period. It is called regularly, many times a period.
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

// scaleOut launches one more instance of a task that is overloaded, that for which
// it lasts longest first.
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
