package region

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// Times says how long a region was in each state, and at work.
type Times struct {
	In       [States]clock.Duration // by state
	Accessed clock.Duration         // running, in samples with bytes to handle
	Work     clock.Duration         // of Accessed, its busiest task at work
}

// Stats counts decisions.
type Stats struct {
	Decisions [Choices]uint64 // of Launch
	Refused   [Reasons]uint64
	PRs       [Causes]uint64 // begun
	Revived   uint64         // launches without PR
	Evicted   uint64         // chains that lost their region to another, or to no use
	Switched  uint64         // regions stopped for another chain
	Revoked   uint64         // launches that were promised
	ScaledOut uint64
	ScaledIn  uint64
	Overloads uint64 // Overload events
	Kills     uint64
}

// Stats returns the counts since New.
func (f *Fabric) Stats() Stats { return f.plan.stats }

// Times returns the times of a region from New to the time of the last call.
func (f *Fabric) Times(region int) Times {
	s := &f.plan.slots[region]
	f.plan.account(f.now, s)
	g := &f.plan.monitor.gauges[region]
	return Times{In: s.in, Accessed: g.accessed, Work: g.worked}
}

// View describes the present state of a region.
type View struct {
	State State
	Cause Cause // of the launch
	Area  int
	Chain int        // in it, or on its way; or -1
	Next  int        // launched afterwards, while Stopping; or -1
	Seq   uint32     // of the last stop
	Since clock.Time // of the state
	Until clock.Time // while Loading; else Never
	Load  float64    // of its busiest task, in instances: mean over about a monitor period
}

// Region returns the present state of region i.
func (f *Fabric) Region(i int) View {
	s := &f.plan.slots[i]
	v := View{s.state, s.cause, s.area, s.chain, s.next, s.seq, s.since, clock.Never, f.plan.monitor.gauges[i].load}
	if s.state == Loading {
		v.Until = f.plan.port.until
	}
	return v
}

// Regions returns the number of regions.
func (f *Fabric) Regions() int { return len(f.plan.slots) }

// Waiting returns the number of chains that wait for a region.
func (f *Fabric) Waiting() int { return len(f.waiting) }

// Free returns the area of the largest region that is free or has a victim, or 0.
func (f *Fabric) Free() int { return f.plan.free() }

// Task returns how many instances of a task run, and its load in instances, a mean over about a
// monitor period.
func (f *Fabric) Task(id int) (running int, load float64) {
	if id < 0 || id >= len(f.plan.monitor.tasks) {
		return 0, 0
	}
	return f.plan.monitor.tasks[id].running, f.plan.monitor.tasks[id].load
}

// Short reports whether a task had more work than all its instances together can do, for a whole period.
func (f *Fabric) Short(task int) bool { return f.plan.monitor.tasks[task].all.due }

// Part returns the load of a task in a region, in instances: a mean over about a monitor period.
func (f *Fabric) Part(region, task int) float64 {
	g := &f.plan.monitor.gauges[region]
	if k := slices.Index(g.tasks, task); k >= 0 {
		return g.part[k]
	}
	return 0
}
