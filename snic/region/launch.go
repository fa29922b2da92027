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

// Choice says how a demand is met.
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

// Reason says why a demand is refused.
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

// Launch decides on a demand. Events report what is launched.
func (f *Fabric) Launch(now clock.Time, d Demand) Decision {
	now = f.advance(now)
	dec := Decision{Choice: Refused, Reason: Unknown, Region: none, Chain: none, At: clock.Never}
	if d.Rate = min(d.Rate, maxRate); !(d.Rate > 0) {
		d.Rate = 0
	}
	if f.plan.knows(d.Chain) {
		dec = f.decide(now, d)
	}
	f.settle(now)
	if dec.Region != none {
		s := &f.plan.slots[dec.Region]
		dec.Chain = s.chain
		if s.state == Stopping {
			dec.Chain = s.next
		}
		dec.At = f.plan.opens(now, dec.Region)
	}
	f.plan.stats.Decisions[dec.Choice]++
	if dec.Choice == Refused {
		f.plan.stats.Refused[dec.Reason]++
	}
	return dec
}

// decide takes the first choice that is possible; the package doc has their order.
func (f *Fabric) decide(now clock.Time, d Demand) Decision {
	id, cause := d.Chain, OnDemand
	c := &f.plan.chains[id]
	if d.Pre {
		cause = Pre
	}
	dec := Decision{Region: none, Chain: none, At: clock.Never}
	took := func(ch Choice, i int) Decision {
		f.plan.monitor.book(c.tasks, d.Rate)
		dec.Choice, dec.Region = ch, i
		return dec
	}
	here := f.plan.hosting(now, id)
	if here != none && (d.Pre || f.plan.monitor.room(c.tasks, d.Rate)) {
		if !d.Pre {
			f.plan.promote(here)
		}
		return took(ShareRunning, here)
	}
	if i := f.plan.victimOf(id); i != none {
		f.plan.revive(now, i, cause)
		return took(Revive, i)
	}
	if c.waiting {
		dec.Choice = Wait
		return dec
	}
	if !f.plan.fits(c.area) {
		dec.Choice, dec.Reason = Refused, TooLarge
	} else if i := f.plan.find(now, id, cause); i != none {
		f.plan.claim(now, i, id, cause)
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
		f.plan.promote(here)
		return took(ShareRunning, here)
	case d.NoSwitch || dec.Reason == TooLarge:
		return dec
	}
	full := len(f.waiting) >= f.plan.cfg.Waiting
	f.wait(id)
	dec.Choice, dec.Reason = Wait, NoReason
	f.serve(now)
	if !c.waiting {
		for i := range f.plan.slots {
			if f.plan.slots[i].state == Stopping && f.plan.slots[i].next == id {
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
	f.plan.chains[id].waiting = true
	f.waiting = append(f.waiting, id)
}

func (f *Fabric) unwait(id int) {
	if f.plan.chains[id].waiting {
		f.plan.chains[id].waiting = false
		k := slices.Index(f.waiting, id)
		f.waiting = slices.Delete(f.waiting, k, k+1)
	}
}

// Left returns the bandwidth in bits a second that a chain's tasks have left on this board, or 0 if
// no region has them.
func (f *Fabric) Left(chain int) float64 {
	if !f.plan.knows(chain) || f.plan.hosting(f.now, chain) == none {
		return 0
	}
	least := float64(maxRate)
	for _, t := range f.plan.chains[chain].tasks {
		if e := &f.plan.monitor.tasks[t]; e.perByte > 0 {
			least = min(least, max(0, f.plan.monitor.left(e))*8e9/e.perByte)
		}
	}
	return least
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

// give finds a region for a chain that waits, and reports whether it found one.
func (f *Fabric) give(now clock.Time, id int) bool {
	if i := f.plan.hosting(now, id); i != none {
		f.plan.promote(i)
		f.plan.emitFor(now, Share, i, id)
		return true
	}
	if i := f.plan.victimOf(id); i != none {
		f.plan.emitFor(now, Share, i, id)
		f.plan.revive(now, i, OnDemand)
		return true
	}
	if i := f.plan.find(now, id, OnDemand); i != none {
		f.plan.claim(now, i, id, OnDemand)
		return true
	}
	if f.plan.switchFrom() > now {
		return false
	}
	i := f.plan.leastLoaded(now, f.plan.chains[id].area)
	if i == none {
		return false
	}
	f.plan.stats.Switched++
	f.plan.stop(now, i)
	f.plan.claim(now, i, id, OnDemand)
	return true
}

// nextSwitch returns the earliest time at which a region may be switched for a chain that waits.
func (f *Fabric) nextSwitch() clock.Time {
	from := f.plan.switchFrom()
	if from == clock.Never {
		return from
	}
	area := f.plan.chains[f.waiting[0]].area
	for _, id := range f.waiting[1:] {
		area = min(area, f.plan.chains[id].area)
	}
	t := clock.Never
	for i := range f.plan.slots {
		if s := &f.plan.slots[i]; s.state == Running && s.area >= area {
			t = min(t, s.mature(&f.plan.cfg))
		}
	}
	return max(t, from)
}
