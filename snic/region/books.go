package region

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// Times is what a region did how long.
type Times struct {
	In       [States]clock.Duration // by state
	Accessed clock.Duration         // running, in samples with bytes to handle
	Work     clock.Duration         // of Accessed, its busiest task at work
}

// Stats counts what was decided.
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

// Stats is what was counted so far.
func (f *Fabric) Stats() Stats { return f.stats }

// Times is what a region did until the time of the last call.
func (f *Fabric) Times(region int) Times {
	s := &f.slots[region]
	f.account(f.now, s)
	return s.times
}

// View is a region as it is.
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

// Region shows a region.
func (f *Fabric) Region(i int) View {
	s := &f.slots[i]
	v := View{s.state, s.cause, s.area, s.chain, s.next, s.seq, s.since, clock.Never, s.load}
	if s.state == Loading {
		v.Until = f.port.until
	}
	return v
}

// Regions is how many there are.
func (f *Fabric) Regions() int { return len(f.slots) }

// Waiting is how many chains wait for a region.
func (f *Fabric) Waiting() int { return len(f.waiting) }

// Free is the area of the largest region that is free or has a victim; 0 when
// there is none.
func (f *Fabric) Free() int {
	area := 0
	for i := range f.slots {
		if s := &f.slots[i]; s.state == Free || s.state == Victim {
			area = max(area, s.area)
		}
	}
	return area
}

// Task is how many instances of a task run, and its load in instances, a mean over
// about a monitor period.
func (f *Fabric) Task(id int) (running int, load float64) {
	if id < 0 || id >= len(f.tasks) {
		return 0, 0
	}
	return f.tasks[id].running, f.tasks[id].load
}

// Short reports whether a task is overloaded for a whole period by what all its instances can do together.
func (f *Fabric) Short(task int) bool { return f.tasks[task].all.due }

// Part is the load of a task in a region, in instances: a mean over about a monitor period.
func (f *Fabric) Part(region, task int) float64 {
	s := &f.slots[region]
	if s.state != Running {
		return 0
	}
	if k := slices.Index(f.chains[s.chain].tasks, task); k >= 0 {
		return s.part[k]
	}
	return 0
}

// account adds the time since the last call to the state's.
func (f *Fabric) account(now clock.Time, s *slot) {
	s.times.In[s.state] += now.Sub(s.counted)
	s.counted = now
}

// fold ends a running region's part of a sample, and returns its work in ns.
func (f *Fabric) fold(now clock.Time, s *slot) (busy float64) {
	any := false
	for k, t := range f.chains[s.chain].tasks {
		s.work[k] = 0
		any = any || s.wait[k] > 0
		if b := s.bytes[k]; b > 0 {
			any = true
			s.work[k] = float64(b) * f.tasks[t].perByte
			busy = max(busy, s.work[k])
			s.bytes[k] = 0
		}
	}
	if any {
		s.used = now
		ran := now.Sub(max(f.sampled, s.since))
		s.times.Accessed += ran
		s.times.Work += clock.Duration(min(float64(ran), busy))
	}
	return busy
}
