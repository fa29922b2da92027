package region

import "github.com/quillon/quillon/nf/clock"

// covers reports whether chain a has the tasks of chain b in their order.
func (p *floorplan) covers(a, b int) bool {
	if a == b {
		return true
	}
	want := p.chains[b].tasks
	for _, t := range p.chains[a].tasks {
		if t == want[0] {
			if want = want[1:]; len(want) == 0 {
				return true
			}
		}
	}
	return false
}

// hosting returns a region that has, or will have, the tasks of a chain: the least loaded region
// that runs, else the region that opens first, else none.
func (p *floorplan) hosting(now clock.Time, id int) int {
	best := none
	for i := range p.slots {
		s := &p.slots[i]
		in := s.chain
		switch s.state {
		case Running, Loading, Queued:
		case Stopping:
			in = s.next
		default:
			continue
		}
		if in == none || p.chains[in].dead || !p.covers(in, id) {
			continue
		}
		if best == none {
			best = i
			continue
		}
		switch k := &p.slots[best]; {
		case s.state == Running && k.state == Running:
			if g := p.monitor.gauges; g[i].load < g[best].load {
				best = i
			}
		case s.state == Running || p.opens(now, i) < p.opens(now, best):
			best = i
		}
	}
	return best
}

// opens returns the time from which a region takes packets if nothing changes, or clock.Never if that is not known.
func (p *floorplan) opens(now clock.Time, i int) clock.Time {
	switch p.slots[i].state {
	case Running:
		return now
	case Loading:
		return p.port.until
	case Queued:
		t := now
		if p.port.region != none {
			t = p.port.until
		}
		for _, q := range [...][]int{p.port.demand, p.port.others} {
			for _, k := range q {
				t = t.Add(p.chains[p.slots[k].chain].pr)
				if k == i {
					return t
				}
			}
		}
	}
	return clock.Never
}

// victimOf returns a region that can run a chain's tasks again without PR, or none. It prefers a victim to a
// region that is stopping, and among these the chain itself to one that has its tasks.
func (p *floorplan) victimOf(id int) int {
	best, rank := none, 0
	for i := range p.slots {
		s := &p.slots[i]
		r := 0
		switch {
		case s.chain == none || p.chains[s.chain].dead || !p.covers(s.chain, id):
		case s.state == Victim:
			r = 3
		case s.state == Stopping && s.next == none:
			r = 1
		}
		if r > 0 && s.chain == id {
			r++
		}
		if r > rank {
			best, rank = i, r
		}
	}
	return best
}

// fits reports whether a region in service is large enough.
func (p *floorplan) fits(area int) bool {
	for i := range p.slots {
		if p.slots[i].state != Failed && p.slots[i].area >= area {
			return true
		}
	}
	return false
}

// find returns a region that a chain may have although no running chain stops for it, or none. It makes
// the region ready for claim.
func (p *floorplan) find(now clock.Time, id int, c Cause) int {
	area := p.chains[id].area
	if i := p.smallest(Free, area); i != none {
		return i
	}
	if i := p.oldestVictim(area); i != none {
		return i
	}
	if c == Scaled {
		return none
	}
	if i := p.smallest(Stopping, area); i != none {
		return i
	}
	if c == Pre {
		return none
	}
	return p.takeBack(now, area)
}

// smallest returns the smallest region of at least this area that is in state st (Free or Stopping)
// and has no chain to launch afterwards, or none.
func (p *floorplan) smallest(st State, area int) int {
	best := none
	for i := range p.slots {
		s := &p.slots[i]
		if s.state == st && s.next == none && s.area >= area && (best == none || s.area < p.slots[best].area) {
			best = i
		}
	}
	return best
}

// takeBack revokes a launch that nobody waits for and whose PR has not begun, and returns its region,
// or none. It takes launches before demand first; of those in the port's queue, the last.
func (p *floorplan) takeBack(now clock.Time, area int) int {
	for _, c := range [...]Cause{Pre, Scaled} {
		for i := range p.slots {
			s := &p.slots[i]
			if s.state == Stopping && s.next != none && s.next != s.chain && s.cause == c && s.area >= area {
				p.unclaim(now, i)
				return i
			}
		}
		for k := len(p.port.others) - 1; k >= 0; k-- {
			i := p.port.others[k]
			if s := &p.slots[i]; s.cause == c && s.area >= area {
				p.revoke(now, i)
				p.empty(now, i, Free)
				return i
			}
		}
	}
	return none
}

// switchFrom returns the time from which a region may be stopped for another chain, so that the port
// is free when the region has stopped. It is clock.Never while another chain on demand comes first.
func (p *floorplan) switchFrom() clock.Time {
	if len(p.port.demand) > 0 {
		return clock.Never
	}
	for i := range p.slots {
		s := &p.slots[i]
		if s.state == Stopping && s.next != none && s.next != s.chain && s.cause == OnDemand {
			return clock.Never
		}
	}
	if p.port.region == none {
		return 0
	}
	return p.port.until.Add(-p.cfg.Stop)
}

// mature returns the time from which a running region may be switched.
func (s *slot) mature(cfg *Config) clock.Time { return s.since.Add(cfg.Monitor) }

// leastLoaded returns the running region to stop for a chain of this area, or none: the region with
// the least load, and of equal ones the least recently used.
func (p *floorplan) leastLoaded(now clock.Time, area int) int {
	best := none
	for i := range p.slots {
		s := &p.slots[i]
		if s.state != Running || s.area < area || s.mature(&p.cfg) > now {
			continue
		}
		if g := p.monitor.gauges; best == none || g[i].load < g[best].load || g[i].load == g[best].load && g[i].used < g[best].used {
			best = i
		}
	}
	return best
}

// oldestVictim returns the region of at least this area whose victim is the least recently used, or none.
func (p *floorplan) oldestVictim(area int) int {
	best := none
	for i := range p.slots {
		s := &p.slots[i]
		if s.state == Victim && s.area >= area && (best == none || p.monitor.gauges[i].used < p.monitor.gauges[best].used) {
			best = i
		}
	}
	return best
}

// victimWith returns the region whose victim helps an overloaded task most, or none.
func (p *floorplan) victimWith(task int) int {
	best, most := none, worth{}
	for i := range p.slots {
		s := &p.slots[i]
		if s.state != Victim {
			continue
		}
		if w := p.monitor.worth(s.chain, p.chains[s.chain].tasks, task); most.less(w) {
			best, most = i, w
		}
	}
	return best
}

// bitstream returns the chain to launch for an overloaded task, into a region that is free or has a
// victim, or none.
func (p *floorplan) bitstream(task int) int {
	area := p.free()
	if area == 0 {
		return none
	}
	best, most := none, worth{}
	for id := range p.chains {
		c := &p.chains[id]
		if !c.known || c.dead || c.area > area {
			continue
		}
		w := p.monitor.worth(id, c.tasks, task)
		if most.less(w) || w == most && w.due > 0 && c.area < p.chains[best].area {
			best, most = id, w
		}
	}
	return best
}

// free returns the area of the largest region that is free or has a victim, or 0.
func (p *floorplan) free() int {
	area := 0
	for i := range p.slots {
		if s := &p.slots[i]; s.state == Free || s.state == Victim {
			area = max(area, s.area)
		}
	}
	return area
}
