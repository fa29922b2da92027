package region

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// monitor measures the load of running regions, chains and tasks. The floorplan reports launches and stops to it.
type monitor struct {
	cfg     *Config
	gauges  []gauge // by region
	crews   []crew  // by chain
	tasks   []task
	sampled clock.Time // end of the last sample
	round   uint32     // number of the sample
	overdue bool       // a task may be overloaded for a period
}

// gauge measures the load of a region while it runs. Arrays are by task of its chain.
type gauge struct {
	chain int
	tasks []int      // of the chain; nil: the region does not run
	from  clock.Time // start of its part of this sample
	used  clock.Time // last time when it had something to do
	load  float64    // of its busiest task, in instances; a mean over about a monitor period
	bytes [MaxTasks]int64
	work  [MaxTasks]float64 // ns, in this sample
	part  [MaxTasks]float64 // of an instance; a mean over about a monitor period
	wait  [MaxTasks]float64 // ns of work that waits while senders are held back, until the next sample
	each  [MaxTasks]Watch   // whether it is too much

	accessed, worked clock.Duration // of Times
}

// crew measures the instances of a chain, each by its busiest task.
type crew struct {
	spare   bool // one instance too many for a whole period
	watched int  // instances, when it was last judged
	running int  // in this sample
	work    float64
	under   clock.Time // as of a task
	rest    float64
	asked   clock.Time // when Config.Spares last said no
}

// task measures a network task over all regions.
type task struct {
	known      bool
	settled    bool // its instances are as they were when this sample began
	due        bool // overloaded for a whole period: one of its instances, or all together
	spare      bool // one instance too many for a whole period
	running    int  // instances
	coming     int
	leaving    int
	round      uint32  // the sample that it was part of
	perByte    float64 // ns that an instance needs
	bytes      int64   // since the last sample
	load       float64 // in instances; a mean over about a monitor period
	booked     float64 // in instances: promised, not yet measured
	wait       float64 // ns of work that waits in its instances while senders are held back, at the end of this sample
	held       int     // instances of which that is so
	used       clock.Time
	over       clock.Time // due since; Never: it is not
	all        Watch      // of its instances together
	under      clock.Time // start of the period in which one instance less is tried
	rest       float64    // ns of work beyond what it could do since then
	quietUntil clock.Time // Overload is not told before
}

// Watch decides whether instances of a task, or other workers (Judge), have too much work.
type Watch struct {
	due    bool       // for a whole period
	over   clock.Time // since; Never: it is not
	excess float64    // ns of work beyond capacity that are left since then
	since  float64    // ns of work beyond capacity that came after, less what was free
}

var calm = Watch{over: clock.Never}

// NewWatch returns a Watch without any sample.
func NewWatch() Watch { return calm }

// see judges n instances by a sample of dt ns in which they had work ns of work.
func (w *Watch) see(now clock.Time, work, n, dt float64, cfg *Config) {
	excess := work - n*dt*cfg.Over
	if w.over == clock.Never {
		if excess > slack*n*dt {
			*w = Watch{over: now, excess: excess}
		}
		return
	}
	w.since += excess
	w.excess = min(w.excess+excess, n*float64(max(cfg.Backlog, cfg.Clump))+max(0, excess))
	if w.excess <= slack*n*dt {
		*w = calm
	} else if now.Sub(w.over) >= cfg.Monitor && w.since > slack*n*dt {
		w.due = true
	}
}

// take marks a task as overdue if w, of all its instances or of one of them, is.
func (t *task) take(w *Watch) {
	if w.due {
		t.due, t.over = true, min(t.over, w.over)
	}
}

// set sets how much time an instance of a task needs, in ns a byte.
func (m *monitor) set(now clock.Time, id int, perByte float64) {
	for id >= len(m.tasks) {
		m.tasks = append(m.tasks, task{over: clock.Never, all: calm})
	}
	m.tasks[id].known, m.tasks[id].perByte = true, perByte
	m.restart(now, id)
}

// start begins the measurement of a region that runs from now on.
func (m *monitor) start(now clock.Time, region, chain int, tasks []int) {
	g := &m.gauges[region]
	*g = gauge{chain: chain, tasks: tasks, from: now, used: now, accessed: g.accessed, worked: g.worked}
}

// end ends the measurement of a region that runs no more.
func (m *monitor) end(now clock.Time, region int) {
	g := &m.gauges[region]
	m.fold(now, g)
	g.tasks = nil
}

// count changes the numbers of instances of tasks, and starts their measurements again.
func (m *monitor) count(now clock.Time, tasks []int, running, coming, leaving int) {
	for _, t := range tasks {
		e := &m.tasks[t]
		if e.running == 0 {
			e.bytes = 0 // what nobody handled is no load of who comes
		}
		e.running += running
		e.coming += coming
		e.leaving += leaving
		if e.running == 0 {
			e.load = 0
		}
		if e.running+e.coming == 0 {
			e.booked = 0
		}
		m.restart(now, t)
	}
}

// restart starts the measurements of a task again, because its instances have changed.
func (m *monitor) restart(now clock.Time, id int) {
	t := &m.tasks[id]
	t.due, t.spare, t.over = false, false, clock.Never
	t.all = calm
	t.under, t.rest = now, 0
	for i := range m.gauges {
		g := &m.gauges[i]
		if k := slices.Index(g.tasks, id); k >= 0 {
			g.each[k] = calm
		}
	}
}

// left returns the capacity that a task has left, in instances.
func (m *monitor) left(e *task) float64 {
	return float64(e.running+e.coming)*m.cfg.Over - e.load - e.booked
}

// room reports whether each of the tasks has rate bits a second left.
func (m *monitor) room(tasks []int, rate float64) bool {
	for _, t := range tasks {
		e := &m.tasks[t]
		left, need := m.left(e), rate*e.perByte/8e9
		if e.perByte > 0 && (left <= slack || need > left+slack) {
			return false
		}
	}
	return true
}

// book counts bandwidth as used until it is measured.
func (m *monitor) book(tasks []int, rate float64) {
	for _, t := range tasks {
		e := &m.tasks[t]
		e.booked += rate * e.perByte / 8e9
	}
}

// load adds bytes that a task should handle.
func (m *monitor) load(region, task int, bytes int64) {
	if task < 0 || task >= len(m.tasks) || bytes <= 0 {
		return
	}
	m.tasks[task].bytes += bytes
	if region < 0 || region >= len(m.gauges) {
		return
	}
	g := &m.gauges[region]
	if k := slices.Index(g.tasks, task); k >= 0 {
		g.bytes[k] += bytes
	}
}

// hold sets the ns of work that wait for a task in a region.
func (m *monitor) hold(region, task int, ns float64) {
	if region < 0 || region >= len(m.gauges) || !(ns > 0) {
		return
	}
	g := &m.gauges[region]
	if k := slices.Index(g.tasks, task); k >= 0 {
		g.wait[k] = ns
	}
}

// fold ends a running region's part of a sample, and returns its work in ns.
func (m *monitor) fold(now clock.Time, g *gauge) (busy float64) {
	any := false
	for k, t := range g.tasks {
		g.work[k] = 0
		any = any || g.wait[k] > 0
		if b := g.bytes[k]; b > 0 {
			any = true
			g.work[k] = float64(b) * m.tasks[t].perByte
			busy = max(busy, g.work[k])
			g.bytes[k] = 0
		}
	}
	if any {
		g.used = now
		ran := now.Sub(g.from)
		g.accessed += ran
		g.worked += clock.Duration(min(float64(ran), busy))
	}
	g.from = now
	return busy
}

// sample ends a measurement of dt ns, and judges regions, chains and tasks by it.
func (m *monitor) sample(now clock.Time, dt float64) {
	m.round++
	m.overdue = false
	weight := min(1, dt/float64(m.cfg.Monitor))
	for i := range m.gauges {
		g := &m.gauges[i]
		if g.tasks == nil {
			continue
		}
		busy := m.fold(now, g)
		g.load += (busy/dt - g.load) * weight
		for k, t := range g.tasks {
			g.part[k] += (g.work[k]/dt - g.part[k]) * weight
			if g.wait[k] > 0 {
				m.tasks[t].wait += g.wait[k]
				m.tasks[t].held++
			}
		}
		c := &m.crews[g.chain]
		c.running++
		c.work += busy + slices.Max(g.wait[:])
	}
	for i := range m.gauges {
		g := &m.gauges[i]
		if g.tasks == nil {
			continue
		}
		if c := &m.crews[g.chain]; c.running > 0 {
			m.watchChain(now, c, dt)
		}
		for k, t := range g.tasks {
			e := &m.tasks[t]
			if e.round != m.round {
				e.round = m.round
				m.watch(now, e, dt, weight)
				e.take(&e.all)
			}
			if e.settled {
				g.each[k].see(now, g.work[k]+g.wait[k], 1, dt, m.cfg)
				e.take(&g.each[k])
			}
			g.wait[k] = 0
			m.overdue = m.overdue || e.due
		}
	}
	m.sampled = now
}

// watch judges a task by its last sample.
func (m *monitor) watch(now clock.Time, e *task, dt, weight float64) {
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
	if e.under > m.sampled { // its instances changed within the sample
		e.under = now
		return
	}
	e.settled = true
	e.all.see(now, asked, n, dt, m.cfg)
	e.rest = max(0, e.rest+most-(n-1)*dt*m.cfg.Under)
	switch {
	case e.rest > (n-1)*float64(m.cfg.Backlog):
		e.under, e.rest, e.spare = now, 0, false
	case now.Sub(e.under) >= m.cfg.Monitor:
		e.spare = e.rest == 0
		e.under, e.rest = now, 0
	}
}

// watchChain judges by the last sample whether one instance less of a chain would be enough.
func (m *monitor) watchChain(now clock.Time, c *crew, dt float64) {
	others := float64(c.running - 1)
	if c.running != c.watched {
		c.watched, c.spare, c.under, c.rest = c.running, false, now, 0
	} else {
		c.rest = max(0, c.rest+c.work-others*dt*m.cfg.Under)
		switch {
		case c.rest > others*float64(m.cfg.Backlog):
			c.under, c.rest, c.spare = now, 0, false
		case now.Sub(c.under) >= m.cfg.Monitor:
			c.spare = c.rest == 0
			c.under, c.rest = now, 0
		}
	}
	c.running, c.work = 0, 0
}

// spares reports whether a running region can be given up: its chain and each of its tasks have other instances with
// room. For a task it is also enough that it had nothing to do for Config.Idle while the region ran.
func (m *monitor) spares(now clock.Time, g *gauge, since clock.Time) bool {
	if c := &m.crews[g.chain]; c.watched > 1 && !c.spare || c.asked != 0 && now.Sub(c.asked) < m.cfg.Monitor {
		return false
	}
	for _, t := range g.tasks {
		e := &m.tasks[t]
		if e.coming+e.leaving > 0 {
			return false
		}
		idle := m.cfg.Idle > 0 && now.Sub(max(e.used, since)) >= m.cfg.Idle
		if !(e.running > 1 && e.spare) && !idle {
			return false
		}
	}
	return true
}

// afterOverdue returns the next task after last that was overloaded for a period, or none. Tasks are in
// the order of the time since when they are overloaded, then of their numbers. If the board is full,
// it skips tasks whose Overload event is not yet due.
func (m *monitor) afterOverdue(now clock.Time, last int, full bool) int {
	after := func(a, b int) bool {
		x, y := m.tasks[a].over, m.tasks[b].over
		return x > y || x == y && a > b
	}
	best := none
	for i := range m.gauges {
		for _, t := range m.gauges[i].tasks {
			if m.tasks[t].due && !(full && m.tasks[t].quietUntil > now) && (last == none || after(t, last)) && (best == none || after(best, t)) {
				best = t
			}
		}
	}
	return best
}

// worth measures how much one more instance of a chain would help overloaded tasks.
type worth struct {
	due  int     // such tasks that it has
	load float64 // of all its tasks
}

func (a worth) less(b worth) bool { return a.due < b.due || a.due == b.due && a.load < b.load }

// worth returns the worth of a chain with these tasks for one overloaded task. It returns the zero worth if the chain
// lacks the task, or if Config.Helps says that the chain is no help.
func (m *monitor) worth(id int, tasks []int, task int) (w worth) {
	if !slices.Contains(tasks, task) || m.cfg.Helps != nil && !m.cfg.Helps(id, task) {
		return worth{}
	}
	for _, t := range tasks {
		e := &m.tasks[t]
		if e.due {
			w.due++
		}
		if e.running > 0 {
			w.load += e.load / float64(e.running)
		}
	}
	return w
}
