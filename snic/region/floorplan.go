package region

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// floorplan holds which chain is in which region, or on its way to it. It makes changes that the Fabric decides,
// and emits an event for each.
type floorplan struct {
	cfg     Config
	victims int // at most
	slots   []slot
	chains  []chain
	port    port
	kept    float64
	vain    bool // no region, or chain that helps, is there for an overloaded task until a region changes or the next sample
	monitor monitor
	events  []Event
	stats   Stats
}

// slot is a region.
type slot struct {
	state   State
	cause   Cause // of the launch
	stopped bool  // the body says so
	freed   bool  // since the last Freed was considered
	chain   int   // in it, or on its way
	next    int   // while Stopping: launched here afterwards
	area    int
	seq     uint32                 // stops so far
	since   clock.Time             // start of the state
	ready   clock.Time             // while Stopping: not over before
	counted clock.Time             // in holds what was before
	in      [States]clock.Duration // of Times
}

type chain struct {
	known   bool
	dead    bool // removed, something of it is left
	waiting bool
	save    bool
	away    bool // may run at the endpoint
	area    int
	pr      clock.Duration
	tasks   []int
}

// port is the configuration port.
type port struct {
	region int // whose PR is under way, or none
	until  clock.Time
	demand []int // regions that wait, first come first
	others []int
}

// enqueue puts a region into the queue for its PR.
func (p *port) enqueue(i int, c Cause) {
	if c == OnDemand {
		p.demand = append(p.demand, i)
	} else {
		p.others = append(p.others, i)
	}
}

func (p *port) dequeue(i int) {
	for _, q := range []*[]int{&p.demand, &p.others} {
		if k := slices.Index(*q, i); k >= 0 {
			*q = slices.Delete(*q, k, k+1)
		}
	}
}

// knows reports whether a chain is deployed.
func (p *floorplan) knows(id int) bool {
	return id >= 0 && id < len(p.chains) && p.chains[id].known && !p.chains[id].dead
}

func (p *floorplan) emit(e Event) { p.events = append(p.events, e) }

// emitFor emits an event about a region and a chain.
func (p *floorplan) emitFor(now clock.Time, k Kind, region, chain int) {
	p.emit(Event{Kind: k, At: now, Region: region, Chain: chain, Task: none})
}

// enter changes the state of a region.
func (p *floorplan) enter(now clock.Time, i int, st State) {
	s := &p.slots[i]
	p.account(now, s)
	s.state, s.since, p.vain = st, now, false
}

// account adds the time since the last call to the time of the region's state.
func (p *floorplan) account(now clock.Time, s *slot) {
	s.in[s.state] += now.Sub(s.counted)
	s.counted = now
}

// shift changes the numbers of instances of a chain's tasks by running, coming and leaving.
func (p *floorplan) shift(now clock.Time, id, running, coming, leaving int) {
	p.monitor.count(now, p.chains[id].tasks, running, coming, leaving)
}

// claim assigns a region to a chain. The region must be Free, have a victim of another chain, or be
// Stopping with no chain to launch afterwards.
func (p *floorplan) claim(now clock.Time, i, id int, c Cause) {
	s := &p.slots[i]
	s.cause = c
	p.shift(now, id, 0, 1, 0)
	if s.state == Stopping {
		s.next = id
		return
	}
	old := s.chain
	if s.state == Victim {
		p.stats.Evicted++
		p.emitFor(now, Evict, i, old)
	}
	s.chain = id
	p.enter(now, i, Queued)
	p.port.enqueue(i, s.cause)
	if old != none {
		p.bury(now, old)
	}
}

// promote turns a launch that nobody waited for into a launch on demand.
func (p *floorplan) promote(i int) {
	s := &p.slots[i]
	if s.cause == OnDemand {
		return
	}
	s.cause = OnDemand
	if s.state == Queued {
		p.port.dequeue(i)
		p.port.enqueue(i, s.cause)
	}
}

// revoke takes a launch off the queue of the port. The caller must claim or empty the region at once,
// because its state is not valid any more.
func (p *floorplan) revoke(now clock.Time, i int) {
	s := &p.slots[i]
	p.port.dequeue(i)
	p.shift(now, s.chain, 0, -1, 0)
	p.revoked(now, i, s.chain)
}

// revoked emits the event that a launch is cancelled.
func (p *floorplan) revoked(now clock.Time, i, id int) {
	p.stats.Revoked++
	p.emit(Event{Kind: Revoke, Cause: p.slots[i].cause, At: now, Region: i, Chain: id, Task: none})
}

// unclaim cancels the launch that was to follow in a Stopping region.
func (p *floorplan) unclaim(now clock.Time, i int) {
	s := &p.slots[i]
	p.shift(now, s.next, 0, -1, 0)
	p.revoked(now, i, s.next)
	s.next = none
}

// empty removes the chain from a region, which gets state st.
func (p *floorplan) empty(now clock.Time, i int, st State) {
	s := &p.slots[i]
	old := s.chain
	s.chain = none
	p.enter(now, i, st)
	s.freed = st == Free
	if old != none {
		p.bury(now, old)
	}
}

// evict empties a region whose chain does not run, and emits the event.
func (p *floorplan) evict(now clock.Time, i int) {
	p.stats.Evicted++
	p.emitFor(now, Evict, i, p.slots[i].chain)
	p.empty(now, i, Free)
}

// startPR begins the next PR if the port is free, and reports whether it did.
func (p *floorplan) startPR(now clock.Time) bool {
	if p.port.region != none {
		return false
	}
	q := &p.port.demand
	if len(*q) == 0 {
		q = &p.port.others
	}
	if len(*q) == 0 {
		return false
	}
	i := (*q)[0]
	*q = slices.Delete(*q, 0, 1)
	s := &p.slots[i]
	p.enter(now, i, Loading)
	p.port.region, p.port.until = i, now.Add(p.chains[s.chain].pr)
	p.stats.PRs[s.cause]++
	p.emit(Event{Kind: Load, Cause: s.cause, At: now, Until: p.port.until, Region: i, Chain: s.chain, Task: none})
	return true
}

// loaded ends a PR.
func (p *floorplan) loaded(now clock.Time, i int) {
	s := &p.slots[i]
	if p.chains[s.chain].dead {
		p.shift(now, s.chain, 0, -1, 0)
		p.evict(now, i)
		return
	}
	p.run(now, i, -1)
}

// run opens a region; coming is -1 if its chain was counted as coming, else 0.
func (p *floorplan) run(now clock.Time, i, coming int) {
	s := &p.slots[i]
	p.enter(now, i, Running)
	p.monitor.start(now, i, s.chain, p.chains[s.chain].tasks)
	p.shift(now, s.chain, 1, coming, 0)
	p.emit(Event{Kind: Run, Cause: s.cause, At: now, Region: i, Chain: s.chain, Task: none})
}

// revive runs a victim; if the region is still stopping, its chain runs again when it has stopped.
func (p *floorplan) revive(now clock.Time, i int, c Cause) {
	s := &p.slots[i]
	s.cause = c
	p.stats.Revived++
	if s.state == Stopping {
		s.next = s.chain
		p.shift(now, s.chain, 0, 1, 0)
		return
	}
	p.run(now, i, 0)
}

// stop closes a region.
func (p *floorplan) stop(now clock.Time, i int) {
	s := &p.slots[i]
	p.monitor.end(now, i)
	p.enter(now, i, Stopping)
	p.shift(now, s.chain, -1, 0, 1)
	s.seq++
	s.stopped, s.ready = false, now
	if p.chains[s.chain].save {
		s.ready = now.Add(p.cfg.Stop)
	}
	p.emit(Event{Kind: Stop, At: now, Region: i, Chain: s.chain, Task: none, Seq: s.seq, Save: p.chains[s.chain].save})
}

// drained ends a stop.
func (p *floorplan) drained(now clock.Time, i int) {
	s := &p.slots[i]
	old, next := s.chain, s.next
	s.next = none
	p.shift(now, old, 0, 0, -1)
	switch {
	case next == old:
		p.run(now, i, -1)
	case next != none:
		p.stats.Evicted++
		p.emitFor(now, Evict, i, old)
		s.chain = next
		p.enter(now, i, Queued)
		p.port.enqueue(i, s.cause)
		p.bury(now, old)
	default:
		p.deschedule(now, i)
	}
}

// deschedule makes a stopped chain a victim, or evicts it, as Config.Keep and Config.Victims say.
func (p *floorplan) deschedule(now clock.Time, i int) {
	s := &p.slots[i]
	if p.chains[s.chain].dead {
		p.evict(now, i)
		return
	}
	p.kept += p.cfg.Keep
	if p.victims == 0 || p.kept < 1-slack {
		p.evict(now, i)
		return
	}
	p.kept = max(0, p.kept-1)
	p.enter(now, i, Victim)
	s.freed = true
	for n := p.count(Victim); n > p.victims; n-- {
		p.evict(now, p.oldestVictim(0))
	}
}

// count returns the number of regions in a state.
func (p *floorplan) count(st State) int {
	n := 0
	for i := range p.slots {
		if p.slots[i].state == st {
			n++
		}
	}
	return n
}

// bury frees the number of a removed chain if no region has the chain.
func (p *floorplan) bury(now clock.Time, id int) {
	if !p.chains[id].dead {
		return
	}
	for i := range p.slots {
		if p.slots[i].chain == id || p.slots[i].next == id {
			return
		}
	}
	p.chains[id] = chain{}
	p.emit(Event{Kind: Gone, At: now, Region: none, Chain: id, Task: none})
}
