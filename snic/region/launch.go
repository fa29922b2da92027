package region

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// Demand asks for a chain.
type Demand struct {
	Chain      int
	Rate       float64 // bits a second that it is expected to get; 0: not known
	Pre        bool    // before demand: into a free region, or not at all
	NoPeer     bool    // no other board takes it
	NoEndpoint bool    // the endpoint does not take it
	NoSwitch   bool    // nothing that runs stops for it, and it does not wait
}

// Choice is how a demand is met.
type Choice uint8

// Choices, in the order in which they are considered.
const (
	ShareRunning Choice = iota // Region has its tasks, or will have them at At
	Revive                     // a victim in Region runs, at once or when it has stopped
	LoadFree                   // PR in Region
	Remote                     // the body asks the pool
	Endpoint                   // the endpoint runs it
	Switch                     // what is in Region stops for it
	Wait                       // until a region may stop: Run or Share will tell
	Refused                    // Reason
	Choices                    // how many there are
)

func (c Choice) String() string {
	return [...]string{"share", "revive", "load", "remote", "endpoint", "switch", "wait", "refused", "?"}[min(c, Choices)]
}

// Reason is why a demand is refused.
type Reason uint8

// Reasons.
const (
	NoReason  Reason = iota
	Unknown          // no such chain is deployed
	NoRegion         // none is free, and the demand does not want more
	TooLarge         // no region in service is large enough
	QueueFull        // as many chains wait as may
	OneFlow          // of an Overload, by the body: one flow alone is too much for an instance
	Reasons          // how many there are
)

func (r Reason) String() string {
	return [...]string{"", "unknown chain", "no free region", "no region is large enough", "too many chains wait", "one flow alone is too much for an instance", "?"}[min(r, Reasons)]
}

// Decision answers a demand.
type Decision struct {
	Choice Choice
	Reason Reason
	Full   bool       // shared, with less bandwidth left than asked for
	Region int        // or -1
	Chain  int        // in that region: the one asked for, or one that has its tasks; or -1
	At     clock.Time // when it takes packets, as things are; Never: when a region has stopped
}

// Launch decides on a demand. Whatever is launched is told by events.
func (f *Fabric) Launch(now clock.Time, d Demand) Decision {
	now = f.advance(now)
	dec := Decision{Choice: Refused, Reason: Unknown, Region: none, Chain: none, At: clock.Never}
	if d.Rate = min(d.Rate, maxRate); !(d.Rate > 0) {
		d.Rate = 0
	}
	if f.knows(d.Chain) {
		dec = f.decide(now, d)
	}
	f.settle(now)
	if dec.Region != none {
		s := &f.slots[dec.Region]
		dec.Chain = s.chain
		if s.state == Stopping {
			dec.Chain = s.next
		}
		dec.At = f.opens(now, dec.Region)
	}
	f.stats.Decisions[dec.Choice]++
	if dec.Choice == Refused {
		f.stats.Refused[dec.Reason]++
	}
	return dec
}

// decide goes through the choices.
func (f *Fabric) decide(now clock.Time, d Demand) Decision {
	id, cause := d.Chain, OnDemand
	c := &f.chains[id]
	if d.Pre {
		cause = Pre
	}
	dec := Decision{Region: none, Chain: none, At: clock.Never}
	took := func(ch Choice, i int) Decision {
		f.book(id, d.Rate)
		dec.Choice, dec.Region = ch, i
		return dec
	}
	here := f.hosting(id)
	if here != none && (d.Pre || f.room(id, d.Rate)) {
		if !d.Pre {
			f.promote(here)
		}
		return took(ShareRunning, here)
	}
	if i := f.victimOf(id); i != none {
		f.revive(now, i, cause)
		return took(Revive, i)
	}
	if c.waiting {
		dec.Choice = Wait
		return dec
	}
	if !f.fits(c.area) {
		dec.Choice, dec.Reason = Refused, TooLarge
	} else if i := f.find(now, id, cause); i != none {
		f.claim(now, i, id, cause)
		return took(LoadFree, i)
	} else {
		dec.Choice, dec.Reason = Refused, NoRegion
	}
	switch {
	case d.Pre:
		return dec
	case !d.NoPeer:
		dec.Choice, dec.Reason = Remote, NoReason
		return dec
	case c.away && !d.NoEndpoint:
		dec.Choice, dec.Reason = Endpoint, NoReason
		return dec
	case here != none:
		dec.Reason, dec.Full = NoReason, true
		f.promote(here)
		return took(ShareRunning, here)
	case d.NoSwitch || dec.Reason == TooLarge:
		return dec
	}
	full := len(f.waiting) >= f.cfg.Waiting
	f.wait(id)
	dec.Choice, dec.Reason = Wait, NoReason
	f.serve(now)
	if !c.waiting {
		for i := range f.slots {
			if f.slots[i].state == Stopping && f.slots[i].next == id {
				return took(Switch, i)
			}
		}
	}
	if full {
		f.unwait(id)
		dec.Choice, dec.Reason = Refused, QueueFull
	}
	return dec
}

func (f *Fabric) wait(id int) {
	f.chains[id].waiting = true
	f.waiting = append(f.waiting, id)
}

func (f *Fabric) unwait(id int) {
	if f.chains[id].waiting {
		f.chains[id].waiting = false
		k := slices.Index(f.waiting, id)
		f.waiting = slices.Delete(f.waiting, k, k+1)
	}
}

// covers reports whether chain a has the tasks of chain b in their order.
func (f *Fabric) covers(a, b int) bool {
	if a == b {
		return true
	}
	want := f.chains[b].tasks
	for _, t := range f.chains[a].tasks {
		if t == want[0] {
			if want = want[1:]; len(want) == 0 {
				return true
			}
		}
	}
	return false
}

// hosting is the region that has, or will have, the tasks of a chain: the least
// loaded of those that run, else the one that opens first; or none.
func (f *Fabric) hosting(id int) int {
	best := none
	for i := range f.slots {
		s := &f.slots[i]
		in := s.chain
		switch s.state {
		case Running, Loading, Queued:
		case Stopping:
			in = s.next
		default:
			continue
		}
		if in == none || f.chains[in].dead || !f.covers(in, id) {
			continue
		}
		if best == none {
			best = i
			continue
		}
		switch b := &f.slots[best]; {
		case s.state == Running && b.state == Running:
			if s.load < b.load {
				best = i
			}
		case s.state == Running || f.opens(f.now, i) < f.opens(f.now, best):
			best = i
		}
	}
	return best
}

// opens is when a region takes packets, as things are.
func (f *Fabric) opens(now clock.Time, i int) clock.Time {
	switch f.slots[i].state {
	case Running:
		return now
	case Loading:
		return f.port.until
	case Queued:
		t := now
		if f.port.region != none {
			t = f.port.until
		}
		for _, q := range [...][]int{f.port.demand, f.port.others} {
			for _, k := range q {
				t = t.Add(f.chains[f.slots[k].chain].pr)
				if k == i {
					return t
				}
			}
		}
	}
	return clock.Never
}

// room reports whether each task of a chain has this bandwidth left.
func (f *Fabric) room(id int, rate float64) bool {
	for _, t := range f.chains[id].tasks {
		e := &f.tasks[t]
		left := float64(e.running+e.coming)*f.cfg.Over - e.load - e.booked
		need := rate * e.perByte / 8e9
		if e.perByte > 0 && (left <= slack || need > left+slack) {
			return false
		}
	}
	return true
}

// book counts bandwidth as used until it is measured.
func (f *Fabric) book(id int, rate float64) {
	for _, t := range f.chains[id].tasks {
		e := &f.tasks[t]
		e.booked += rate * e.perByte / 8e9
	}
}

// Left is the bandwidth in bits a second that a chain's tasks have left here: 0
// when it is in no region.
func (f *Fabric) Left(chain int) float64 {
	if !f.knows(chain) || f.hosting(chain) == none {
		return 0
	}
	least := float64(maxRate)
	for _, t := range f.chains[chain].tasks {
		if e := &f.tasks[t]; e.perByte > 0 {
			left := float64(e.running+e.coming)*f.cfg.Over - e.load - e.booked
			least = min(least, max(0, left)*8e9/e.perByte)
		}
	}
	return least
}

// victimOf is a region from which a chain's tasks come back without PR: that of
// the chain itself if there is one. A victim goes before one that is stopping.
func (f *Fabric) victimOf(id int) int {
	best, rank := none, 0
	for i := range f.slots {
		s := &f.slots[i]
		r := 0
		switch {
		case s.chain == none || f.chains[s.chain].dead || !f.covers(s.chain, id):
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

// revive runs a victim, or what is stopping once it has.
func (f *Fabric) revive(now clock.Time, i int, c Cause) {
	s := &f.slots[i]
	s.cause = c
	f.stats.Revived++
	if s.state == Stopping {
		s.next = s.chain
		f.shift(now, s.chain, 0, 1, 0)
		return
	}
	f.run(now, i, 0)
}

// fits reports whether a region in service is large enough.
func (f *Fabric) fits(area int) bool {
	for i := range f.slots {
		if f.slots[i].state != Failed && f.slots[i].area >= area {
			return true
		}
	}
	return false
}

// find is a region that a chain may have without stopping another; it is made
// ready to be claimed.
func (f *Fabric) find(now clock.Time, id int, c Cause) int {
	area := f.chains[id].area
	if i := f.smallest(Free, area); i != none {
		return i
	}
	if i := f.oldestVictim(area); i != none {
		return i
	}
	if c == Scaled {
		return none
	}
	if i := f.smallest(Stopping, area); i != none {
		return i
	}
	if c == Pre {
		return none
	}
	return f.takeBack(now, area)
}

// smallest is the smallest region of at least this area that is Free, or Stopping
// without a use.
func (f *Fabric) smallest(st State, area int) int {
	best := none
	for i := range f.slots {
		s := &f.slots[i]
		if s.state == st && s.next == none && s.area >= area && (best == none || s.area < f.slots[best].area) {
			best = i
		}
	}
	return best
}

// takeBack is a region whose launch nobody waits for and whose PR has not begun:
// the one that came last, those before demand first. Its launch is revoked.
func (f *Fabric) takeBack(now clock.Time, area int) int {
	for _, c := range [...]Cause{Pre, Scaled} {
		for i := range f.slots {
			s := &f.slots[i]
			if s.state == Stopping && s.next != none && s.next != s.chain && s.cause == c && s.area >= area {
				f.unclaim(now, i)
				return i
			}
		}
		for k := len(f.port.others) - 1; k >= 0; k-- {
			i := f.port.others[k]
			if s := &f.slots[i]; s.cause == c && s.area >= area {
				f.revoke(now, i)
				f.empty(now, i, Free)
				return i
			}
		}
	}
	return none
}

// serve gives regions to chains that wait.
func (f *Fabric) serve(now clock.Time) bool {
	changed := false
	for k := 0; k < len(f.waiting); {
		id := f.waiting[k]
		if !f.give(now, id) {
			k++
			continue
		}
		f.unwait(id)
		changed = true
	}
	return changed
}

// give finds a region for a chain that waits.
func (f *Fabric) give(now clock.Time, id int) bool {
	if i := f.hosting(id); i != none {
		f.promote(i)
		f.tell(now, Share, i, id)
		return true
	}
	if i := f.victimOf(id); i != none {
		f.tell(now, Share, i, id)
		f.revive(now, i, OnDemand)
		return true
	}
	if i := f.find(now, id, OnDemand); i != none {
		f.claim(now, i, id, OnDemand)
		return true
	}
	if f.switchFrom() > now {
		return false
	}
	i := f.leastLoaded(now, f.chains[id].area)
	if i == none {
		return false
	}
	f.stats.Switched++
	f.stop(now, i)
	f.claim(now, i, id, OnDemand)
	return true
}

// switchFrom is from when on a region may be stopped for another chain: no sooner
// than the port can take it, given how long stopping takes.
func (f *Fabric) switchFrom() clock.Time {
	if len(f.port.demand) > 0 {
		return clock.Never
	}
	for i := range f.slots {
		s := &f.slots[i]
		if s.state == Stopping && s.next != none && s.next != s.chain && s.cause == OnDemand {
			return clock.Never
		}
	}
	if f.port.region == none {
		return 0
	}
	return f.port.until.Add(-f.cfg.Stop)
}

// mature is when a running region may be switched.
func (f *Fabric) mature(s *slot) clock.Time { return s.since.Add(f.cfg.Monitor) }

// leastLoaded is the region to stop for a chain of this area.
func (f *Fabric) leastLoaded(now clock.Time, area int) int {
	best := none
	for i := range f.slots {
		s := &f.slots[i]
		if s.state != Running || s.area < area || f.mature(s) > now {
			continue
		}
		if best == none || s.load < f.slots[best].load || s.load == f.slots[best].load && s.used < f.slots[best].used {
			best = i
		}
	}
	return best
}

// nextSwitch is when a chain that waits can have a region by a switch.
func (f *Fabric) nextSwitch() clock.Time {
	from := f.switchFrom()
	if from == clock.Never {
		return from
	}
	area := f.chains[f.waiting[0]].area
	for _, id := range f.waiting[1:] {
		area = min(area, f.chains[id].area)
	}
	t := clock.Never
	for i := range f.slots {
		if s := &f.slots[i]; s.state == Running && s.area >= area {
			t = min(t, f.mature(s))
		}
	}
	return max(t, from)
}
