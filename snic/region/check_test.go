package region

import (
	"fmt"
	"slices"
)

// Check says what is not as it must be.
func (f *Fabric) Check() error {
	type counts struct{ running, coming, leaving int }
	want := make([]counts, len(f.plan.monitor.tasks))
	loading, victims := 0, 0
	var queued []int
	for i := range f.plan.slots {
		s := &f.plan.slots[i]
		if holds := s.state != Free && s.state != Failed; holds != (s.chain != none) {
			return fmt.Errorf("region %d is %v with chain %d", i, s.state, s.chain)
		}
		if s.next != none && s.state != Stopping {
			return fmt.Errorf("region %d is %v with chain %d to follow", i, s.state, s.next)
		}
		for _, id := range [...]int{s.chain, s.next} {
			if id != none && !f.plan.chains[id].known {
				return fmt.Errorf("region %d: chain %d is not known", i, id)
			}
			if id != none && f.plan.chains[id].area > s.area {
				return fmt.Errorf("region %d of area %d: chain %d has %d", i, s.area, id, f.plan.chains[id].area)
			}
		}
		var c counts
		switch s.state {
		case Queued:
			queued = append(queued, i)
			c.coming++
		case Loading:
			loading++
			c.coming++
			if f.plan.port.region != i {
				return fmt.Errorf("region %d is loading, the port serves %d", i, f.plan.port.region)
			}
		case Running:
			c.running++
		case Stopping:
			c.leaving++
		case Victim:
			victims++
		}
		if s.chain != none {
			for _, t := range f.plan.chains[s.chain].tasks {
				want[t].running += c.running
				want[t].coming += c.coming
				want[t].leaving += c.leaving
			}
			if f.plan.chains[s.chain].dead && s.state != Stopping && s.state != Loading {
				return fmt.Errorf("region %d is %v with removed chain %d", i, s.state, s.chain)
			}
		}
		if s.next != none {
			for _, t := range f.plan.chains[s.next].tasks {
				want[t].coming++
			}
		}
	}
	if (loading == 1) != (f.plan.port.region != none) || loading > 1 {
		return fmt.Errorf("%d regions are loading, the port serves %d", loading, f.plan.port.region)
	}
	if victims > f.plan.victims {
		return fmt.Errorf("%d regions have victims, %d may", victims, f.plan.victims)
	}
	inPort := append(slices.Clone(f.plan.port.demand), f.plan.port.others...)
	slices.Sort(inPort)
	if !slices.Equal(queued, inPort) {
		return fmt.Errorf("regions %v are queued, the port knows %v", queued, inPort)
	}
	if len(inPort) > 0 && loading == 0 {
		return fmt.Errorf("the port is idle, regions %v wait for it", inPort)
	}
	for t, w := range want {
		if e := &f.plan.monitor.tasks[t]; (counts{e.running, e.coming, e.leaving}) != w {
			return fmt.Errorf("task %d: counted %d running, %d coming, %d leaving: there are %v", t, e.running, e.coming, e.leaving, w)
		}
	}
	waiting := 0
	for id := range f.plan.chains {
		if f.plan.chains[id].waiting {
			waiting++
			if !f.plan.knows(id) || !slices.Contains(f.waiting, id) {
				return fmt.Errorf("chain %d waits, and is in no queue", id)
			}
			if f.plan.hosting(f.now, id) != none {
				return fmt.Errorf("chain %d waits, region %d has it", id, f.plan.hosting(f.now, id))
			}
			if f.plan.smallest(Free, f.plan.chains[id].area) != none || f.plan.oldestVictim(f.plan.chains[id].area) != none {
				return fmt.Errorf("chain %d waits, and a region is free", id)
			}
		}
	}
	if waiting != len(f.waiting) {
		return fmt.Errorf("%d chains wait, the queue has %d", waiting, len(f.waiting))
	}
	if next := f.Next(); next <= f.now {
		return fmt.Errorf("due at %d, at %d it was not done", next, f.now)
	}
	return nil
}
