package region

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// task is a network task, wherever it is.
type task struct {
	known   bool
	settled bool // its instances are as they were when this sample began
	due     bool // overloaded for a whole period: one of its instances, or all together
	spare   bool // one instance too many for a whole period
	running int  // instances
	coming  int
	leaving int
	round   uint32  // the sample that it was part of
	perByte float64 // ns that an instance needs
	bytes   int64   // since the last sample
	load    float64 // in instances; a mean over about a monitor period
	booked  float64 // in instances: promised, not yet measured
	wait    float64 // ns of work that waits in its instances while senders are held back, at the end of this sample
	held    int     // instances of which that is so
	used    clock.Time
	over    clock.Time // due since; Never: it is not
	all     Watch      // of its instances together
	under   clock.Time // start of the period in which one instance less is tried
	rest    float64    // ns of work beyond what it could do since then
	told    clock.Time // Overload is not told before
}

// Watch looks whether what instances of a task, or others that work, have to do is too much.
type Watch struct {
	due    bool       // for a whole period
	over   clock.Time // since; Never: it is not
	excess float64    // ns of work beyond capacity that are left since then
	since  float64    // ns of work beyond capacity that came after, less what was free
}

var calm = Watch{over: clock.Never}

// NewWatch is one that has seen nothing.
func NewWatch() Watch { return calm }

// Judge judges by a sample what is in no region: n that work, and had so many ns of work in dt ns. It reports whether that is
// too much, as it is of a task.
func (f *Fabric) Judge(now clock.Time, w *Watch, work, n, dt float64) bool {
	w.see(now, work, n, dt, &f.cfg)
	return w.due
}

// see judges n instances by a sample in which they had so much work.
func (w *Watch) see(now clock.Time, work, n, dt float64, cfg *Config) {
	excess := work - n*dt*cfg.Over
	if w.over == clock.Never {
		if excess > slack*n*dt {
			*w = Watch{over: now, excess: excess}
		}
		return
	}
	w.since += excess
	w.excess = min(w.excess+excess, n*float64(cfg.Backlog)+max(0, excess))
	if w.excess <= slack*n*dt {
		*w = calm
	} else if now.Sub(w.over) >= cfg.Monitor && w.since > slack*n*dt {
		w.due = true
	}
}

// take has a task be overdue as its instances are, or one of them.
func (t *task) take(w *Watch) {
	if w.due {
		t.due, t.over = true, min(t.over, w.over)
	}
}

// restart starts a task's monitors: its instances have changed.
func (f *Fabric) restart(now clock.Time, id int) {
	t := &f.tasks[id]
	t.due, t.spare, t.over = false, false, clock.Never
	t.all = calm
	t.under, t.rest = now, 0
	for i := range f.slots {
		if s := &f.slots[i]; s.chain != none {
			if k := slices.Index(f.chains[s.chain].tasks, id); k >= 0 {
				s.each[k] = calm
			}
		}
	}
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

// Hold tells that so many ns of work wait for a task in a region, while those who send it more are held back: what would have
// come is not known, but what waits is to be done besides what came. It counts in the next Sample; a second call takes the place of the first.
func (f *Fabric) Hold(region, task int, ns float64) {
	if region < 0 || region >= len(f.slots) || f.slots[region].state != Running || !(ns > 0) {
		return
	}
	s := &f.slots[region]
	if k := slices.Index(f.chains[s.chain].tasks, task); k >= 0 {
		s.wait[k] = ns
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
	f.overdue, f.vain = false, false
	weight := min(1, dt/float64(f.cfg.Monitor))
	for i := range f.slots {
		s := &f.slots[i]
		if s.state != Running {
			continue
		}
		busy := f.fold(now, s)
		s.load += (busy/dt - s.load) * weight
		for k, t := range f.chains[s.chain].tasks {
			s.part[k] += (s.work[k]/dt - s.part[k]) * weight
			if s.wait[k] > 0 {
				f.tasks[t].wait += s.wait[k]
				f.tasks[t].held++
			}
		}
		c := &f.chains[s.chain]
		c.running++
		c.work += busy + slices.Max(s.wait[:])
	}
	for i := range f.slots {
		s := &f.slots[i]
		if s.state != Running {
			continue
		}
		c := &f.chains[s.chain]
		if c.running > 0 {
			f.watchChain(now, c, dt)
		}
		for k, t := range c.tasks {
			e := &f.tasks[t]
			if e.round != f.round {
				e.round = f.round
				f.watch(now, e, dt, weight)
				e.take(&e.all)
			}
			if e.settled {
				s.each[k].see(now, s.work[k]+s.wait[k], 1, dt, &f.cfg)
				e.take(&s.each[k])
			}
			s.wait[k] = 0
			f.overdue = f.overdue || e.due
		}
	}
	f.sampled = now
	f.scaleIn(now)
	f.settle(now)
}

// watch judges a task by its last sample.
func (f *Fabric) watch(now clock.Time, e *task, dt, weight float64) {
	n := float64(e.running)
	work := float64(e.bytes) * e.perByte
	if e.bytes > 0 || e.wait > 0 {
		e.used = now
	}
	most := work + e.wait
	asked := most
	if e.held < e.running {
		asked = work // an instance waits for work
	}
	e.bytes, e.settled, e.wait, e.held = 0, false, 0, 0
	e.due, e.over = false, clock.Never
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
	e.settled = true
	e.all.see(now, asked, n, dt, &f.cfg)
	e.rest = max(0, e.rest+most-(n-1)*dt*f.cfg.Under)
	switch {
	case e.rest > (n-1)*float64(f.cfg.Backlog):
		e.under, e.rest, e.spare = now, 0, false
	case now.Sub(e.under) >= f.cfg.Monitor:
		e.spare = e.rest == 0
		e.under, e.rest = now, 0
	}
}

// watchChain judges by the last sample whether one instance less of a chain would do.
func (f *Fabric) watchChain(now clock.Time, c *chain, dt float64) {
	others := float64(c.running - 1)
	if c.running != c.watched {
		c.watched, c.spare, c.under, c.rest = c.running, false, now, 0
	} else {
		c.rest = max(0, c.rest+c.work-others*dt*f.cfg.Under)
		switch {
		case c.rest > others*float64(f.cfg.Backlog):
			c.under, c.rest, c.spare = now, 0, false
		case now.Sub(c.under) >= f.cfg.Monitor:
			c.spare = c.rest == 0
			c.under, c.rest = now, 0
		}
	}
	c.running, c.work = 0, 0
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
		s := &f.slots[best]
		if used := now.Sub(max(s.used, s.since)) < f.cfg.Monitor; used && f.cfg.Spares != nil && !f.cfg.Spares(s.chain) {
			f.chains[s.chain].asked = now // again when a period is over
			continue
		}
		f.stats.ScaledIn++
		f.tell(now, ScaleIn, best, s.chain)
		f.stop(now, best)
	}
}

// needless reports whether all tasks of a region can do without it, and the others with its
// chain take its packets.
func (f *Fabric) needless(now clock.Time, s *slot) bool {
	if c := &f.chains[s.chain]; c.watched > 1 && !c.spare || c.asked != 0 && now.Sub(c.asked) < f.cfg.Monitor {
		return false
	}
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
	if !f.overdue || f.vain {
		return false
	}
	last, full := none, f.Free() == 0
	for {
		t := f.afterOverdue(now, last, full)
		if t == none {
			f.vain = true
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

// worth is what one more instance of a chain is good for, given what is overloaded.
type worth struct {
	due  int     // such tasks that it has
	load float64 // of all its tasks
}

func (a worth) less(b worth) bool { return a.due < b.due || a.due == b.due && a.load < b.load }

// worth of a chain for an overloaded task; the zero worth if it has not the task, or if the body
// says that it is no help.
func (f *Fabric) worth(id, task int) (w worth) {
	if !slices.Contains(f.chains[id].tasks, task) || f.cfg.Helps != nil && !f.cfg.Helps(id, task) {
		return worth{}
	}
	for _, t := range f.chains[id].tasks {
		e := &f.tasks[t]
		if e.due {
			w.due++
		}
		if e.running > 0 {
			w.load += e.load / float64(e.running)
		}
	}
	return w
}

// victimWith is the victim to run for an overloaded task.
func (f *Fabric) victimWith(task int) int {
	best, most := none, worth{}
	for i := range f.slots {
		s := &f.slots[i]
		if s.state != Victim {
			continue
		}
		if w := f.worth(s.chain, task); most.less(w) {
			best, most = i, w
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
	best, most := none, worth{}
	for id := range f.chains {
		c := &f.chains[id]
		if !c.known || c.dead || c.area > area {
			continue
		}
		w := f.worth(id, task)
		if most.less(w) || w == most && w.due > 0 && c.area < f.chains[best].area {
			best, most = id, w
		}
	}
	return best
}
