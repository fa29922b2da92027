package region

import (
	"fmt"
	"math"
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// State is what a region does.
type State uint8

// States of a region; the package says what they mean.
const (
	Free State = iota
	Queued
	Loading
	Running
	Stopping
	Victim
	Failed
	States // how many there are
)

func (s State) String() string {
	return [...]string{"free", "queued", "loading", "running", "stopping", "victim", "failed", "?"}[min(s, States)]
}

// Cause is why a chain is launched.
type Cause uint8

// Causes of a launch.
const (
	OnDemand Cause = iota
	Pre            // before demand, at deployment
	Scaled         // one more instance of a task
	Causes         // how many there are
)

func (c Cause) String() string {
	return [...]string{"demand", "pre-launch", "scale-out", "?"}[min(c, Causes)]
}

const (
	// MaxTasks is how many tasks a chain has at most: the bits of a mask.
	MaxTasks = 16
	// MaxRegions bounds a board: regions are looked through one by one.
	MaxRegions = 1024
	// maxID bounds the numbers of chains and tasks, which are indexes.
	maxID = 1 << 20
	// none is no region, chain or task.
	none = -1
	// maxRate is more bits a second than anything has.
	maxRate = 1e18
	// slack is what counts as rounding, in instances of a task.
	slack = 1e-9
)

// Config is what a board is and how it decides. Default has the source's values.
type Config struct {
	Areas     []int          // of each region, in the unit of the chains' areas
	Rate      int64          // bytes a second through the configuration port
	Bitstream int64          // bytes, of chains that do not say
	Stop      clock.Duration // saving the state of a chain takes at least this
	Patience  clock.Duration // after which a region that does not stop is taken away; 0: never
	Monitor   clock.Duration // MONITOR_PERIOD; no shorter than a PR
	Over      float64        // overloaded: above this part of the capacity
	Under     float64        // one instance too many: below this part of the others' capacity; less than Over
	Backlog   clock.Duration // how much work of a task waits on the board at most
	Idle      clock.Duration // after which the last instance of an unused task is descheduled; 0: never
	Victims   float64        // share of the regions that may hold victims, 0 to 1
	Keep      float64        // share of the descheduled chains that are kept as victims, 0 to 1
	Waiting   int            // chains that wait for a region at most

	// Helps reports whether packets that an overloaded task has too many of would go
	// through one more instance of a chain; nil: they would.
	Helps func(chain, task int) bool
	// Spares reports whether the packets of a chain would find room without one of its
	// instances, which has some; nil: where its tasks have others with room.
	Spares func(chain int) bool
}

// Under is how full instances are at most after one is given up.
const Under = 0.9

// Default is a board of equal regions: 800 MB/s and 4 MB, so 5 ms, for a PR; a
// monitor period of 5 ms; every region may hold a victim.
func Default(regions, area int) Config {
	c := Config{
		Rate:      800e6,
		Bitstream: 4e6,
		Monitor:   5e6,
		Over:      1,
		Under:     Under,
		Backlog:   500e3,
		Victims:   1,
		Keep:      1,
		Waiting:   64,
	}
	for range regions {
		c.Areas = append(c.Areas, area)
	}
	return c
}

// Chain is what may be loaded into a region: a bitstream.
type Chain struct {
	Area      int
	Bitstream int64 // bytes; 0: Config.Bitstream
	Tasks     []int // in order, each once
	Save      bool  // has state, which is saved when it stops
	Endpoint  bool  // may run at the endpoint instead
}

// Kind is what an event says.
type Kind uint8

// Kinds of events; the package says what the body does.
const (
	Stop     Kind = iota // Region, Chain, Seq, Save
	Load                 // Region, Chain, Until, Cause
	Run                  // Region, Chain, Cause
	ScaleOut             // Task, Chain, Region that it goes to
	ScaleIn              // Chain, Region that stops
	Overload             // Task that would be scaled out, were there a region
	Evict                // Region, Chain that is no longer there
	Revoke               // Region, Chain that will not be launched there, Cause (OnDemand: it waits again)
	Kill                 // Region, Chain that did not stop
	Share                // Chain that waited, Region that has its tasks
	Refuse               // Chain that waited, Reason
	Freed                // Region
	Gone                 // Chain
	kinds
)

func (k Kind) String() string {
	return [...]string{"stop", "load", "run", "scale out", "scale in", "overload", "evict", "revoke", "kill",
		"share", "refuse", "freed", "gone", "?"}[min(k, kinds)]
}

// Event is what happens, or is to be done. Fields that its kind does not name are
// 0, or -1 for numbers of regions, chains and tasks.
type Event struct {
	Kind   Kind
	Cause  Cause
	Save   bool
	Reason Reason
	Seq    uint32
	At     clock.Time
	Until  clock.Time
	Region int
	Chain  int
	Task   int
}

// Fabric is the regions of a board.
type Fabric struct {
	cfg     Config
	victims int // at most
	now     clock.Time
	sampled clock.Time // end of the last sample
	round   uint32     // number of the sample
	overdue bool       // a task may be overloaded for a period
	vain    bool       // for none of these there is a region, or a chain that helps, until a region changes or the next sample
	slots   []slot
	chains  []chain
	tasks   []task
	port    port
	waiting []int // chains, first come first
	kept    float64
	events  []Event
	given   []Event
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
	seq     uint32     // stops so far
	since   clock.Time // start of the state
	ready   clock.Time // while Stopping: not over before
	used    clock.Time
	counted clock.Time // times holds what was before
	load    float64    // of its busiest task, in instances; a mean over about a monitor period
	bytes   [MaxTasks]int64
	work    [MaxTasks]float64 // ns, of its tasks, in this sample
	part    [MaxTasks]float64 // of an instance; a mean over about a monitor period
	wait    [MaxTasks]float64 // ns of work that waits while senders are held back, until the next sample
	each    [MaxTasks]Watch   // whether it is too much
	times   Times
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

	// As of a task, over all instances of the chain, each by its busiest task.
	spare   bool
	watched int // instances, when it was last judged
	running int // in this sample
	work    float64
	under   clock.Time
	rest    float64
	asked   clock.Time // when Spares last said no
}

// port is the configuration port.
type port struct {
	region int // whose PR is under way, or none
	until  clock.Time
	demand []int // regions that wait, first come first
	others []int
}

// New is a board whose regions are free.
func New(now clock.Time, cfg Config) (*Fabric, error) {
	switch {
	case len(cfg.Areas) == 0 || len(cfg.Areas) > MaxRegions:
		return nil, fmt.Errorf("region: %d regions: want 1 to %d", len(cfg.Areas), MaxRegions)
	case slices.Min(cfg.Areas) <= 0:
		return nil, fmt.Errorf("region: area %d: want a number above 0", slices.Min(cfg.Areas))
	case cfg.Rate <= 0 || cfg.Bitstream <= 0:
		return nil, fmt.Errorf("region: bitstreams of %d bytes, %d bytes a second: want numbers above 0", cfg.Bitstream, cfg.Rate)
	case min(cfg.Stop, cfg.Patience, cfg.Backlog, cfg.Idle) < 0 || max(cfg.Stop, cfg.Patience, cfg.Backlog, cfg.Idle) > maxTime:
		return nil, fmt.Errorf("region: stop %v, patience %v, backlog %v, idle %v: want 0 to %v", cfg.Stop, cfg.Patience, cfg.Backlog, cfg.Idle, maxTime)
	case cfg.Patience > 0 && cfg.Patience < cfg.Stop:
		return nil, fmt.Errorf("region: patience %v is less than stopping takes, %v", cfg.Patience, cfg.Stop)
	case cfg.Monitor <= 0 || cfg.Monitor > maxTime:
		return nil, fmt.Errorf("region: monitor period %v: want more than 0, at most %v", cfg.Monitor, maxTime)
	case !(cfg.Under > 0 && cfg.Under < cfg.Over && cfg.Over <= 1e6):
		return nil, fmt.Errorf("region: overloaded above %g, underloaded below %g: want the first to be greater, both above 0", cfg.Over, cfg.Under)
	case !(cfg.Victims >= 0 && cfg.Victims <= 1) || !(cfg.Keep >= 0 && cfg.Keep <= 1):
		return nil, fmt.Errorf("region: shares %g (victims) and %g (keep): want 0 to 1", cfg.Victims, cfg.Keep)
	case cfg.Waiting < 0 || cfg.Waiting > maxID:
		return nil, fmt.Errorf("region: room for %d chains to wait: want 0 to %d", cfg.Waiting, maxID)
	}
	cfg.Areas = slices.Clone(cfg.Areas)
	f := &Fabric{cfg: cfg, now: now, sampled: now, port: port{region: none}}
	if _, err := f.delay(cfg.Bitstream); err != nil {
		return nil, err
	}
	n := len(cfg.Areas)
	f.victims = int(cfg.Victims*float64(n) + slack)
	f.slots = make([]slot, n)
	for i := range f.slots {
		f.slots[i] = slot{area: cfg.Areas[i], chain: none, next: none, since: now, used: now, counted: now}
	}
	f.port.demand = make([]int, 0, n)
	f.port.others = make([]int, 0, n)
	f.waiting = make([]int, 0, cfg.Waiting+n+1)
	f.events = make([]Event, 0, 8*n)
	f.given = make([]Event, 0, 8*n)
	return f, nil
}

// maxTime bounds what is configured: sums of it stay far from overflow.
const maxTime = clock.Duration(1e9 * 3600 * 24)

// delay is how long the PR of a bitstream takes.
func (f *Fabric) delay(bytes int64) (clock.Duration, error) {
	d := math.Ceil(float64(bytes) * 1e9 / float64(f.cfg.Rate))
	if !(d <= float64(f.cfg.Monitor)) {
		return 0, fmt.Errorf("region: the PR of %d bytes takes %v, longer than the monitor period of %v: chains would be replaced before they run", bytes, clock.Duration(min(d, float64(maxTime))), f.cfg.Monitor)
	}
	return clock.Duration(d), nil
}

// SetTask tells what an instance of a task can handle, in bits a second; 0 is
// without limit. A task may be set again at any time.
func (f *Fabric) SetTask(id int, throughput float64) error {
	if id < 0 || id >= maxID {
		return fmt.Errorf("region: task %d: want a number from 0, below %d", id, maxID)
	}
	if !(throughput == 0 || throughput >= 1) || throughput > maxRate {
		return fmt.Errorf("region: task %d: throughput of %g bits a second: want 0 (no limit), or 1 to 1e18", id, throughput)
	}
	for id >= len(f.tasks) {
		f.tasks = append(f.tasks, task{over: clock.Never, all: calm})
	}
	t := &f.tasks[id]
	t.known = true
	t.perByte = 0
	if throughput > 0 {
		t.perByte = 8e9 / throughput
	}
	f.restart(f.now, id)
	return nil
}

// Add deploys a chain. Its tasks are set before. It is not launched by that.
func (f *Fabric) Add(id int, c Chain) error {
	switch {
	case id < 0 || id >= maxID:
		return fmt.Errorf("region: chain %d: want a number from 0, below %d", id, maxID)
	case id < len(f.chains) && f.chains[id].known:
		return fmt.Errorf("region: chain %d is there already, or something is left of it: remove it, and wait until it is gone", id)
	case c.Area <= 0 || c.Area > slices.Max(f.cfg.Areas):
		return fmt.Errorf("region: chain %d has an area of %d: want 1 to %d, as the largest region has", id, c.Area, slices.Max(f.cfg.Areas))
	case c.Bitstream < 0:
		return fmt.Errorf("region: chain %d has a bitstream of %d bytes: want 0 (as others) or more", id, c.Bitstream)
	case len(c.Tasks) == 0 || len(c.Tasks) > MaxTasks:
		return fmt.Errorf("region: chain %d has %d tasks: want 1 to %d", id, len(c.Tasks), MaxTasks)
	}
	for i, t := range c.Tasks {
		if t < 0 || t >= len(f.tasks) || !f.tasks[t].known {
			return fmt.Errorf("region: chain %d: task %d is unknown", id, t)
		}
		if slices.Contains(c.Tasks[:i], t) {
			return fmt.Errorf("region: chain %d has task %d twice", id, t)
		}
	}
	if c.Bitstream == 0 {
		c.Bitstream = f.cfg.Bitstream
	}
	pr, err := f.delay(c.Bitstream)
	if err != nil {
		return fmt.Errorf("chain %d: %w", id, err)
	}
	for id >= len(f.chains) {
		f.chains = append(f.chains, chain{})
	}
	f.chains[id] = chain{known: true, save: c.Save, away: c.Endpoint, area: c.Area, pr: pr, tasks: slices.Clone(c.Tasks)}
	return nil
}

// knows reports whether a chain is deployed.
func (f *Fabric) knows(id int) bool {
	return id >= 0 && id < len(f.chains) && f.chains[id].known && !f.chains[id].dead
}

// Remove ends a chain: it stops where it runs, and is not kept. False when it is
// not deployed.
func (f *Fabric) Remove(now clock.Time, id int) bool {
	now = f.advance(now)
	if !f.knows(id) {
		return false
	}
	f.unwait(id)
	f.chains[id].dead = true
	for i := range f.slots {
		s := &f.slots[i]
		if s.state == Stopping && s.next == id {
			f.unclaim(now, i)
		}
		if s.chain != id {
			continue
		}
		switch s.state {
		case Queued:
			f.revoke(now, i)
			f.empty(now, i, Free)
		case Running:
			f.stop(now, i)
		case Victim:
			f.evict(now, i)
		}
	}
	f.bury(now, id)
	f.settle(now)
	return true
}

// bury ends a removed chain of which nothing is left.
func (f *Fabric) bury(now clock.Time, id int) {
	if !f.chains[id].dead {
		return
	}
	for i := range f.slots {
		if f.slots[i].chain == id || f.slots[i].next == id {
			return
		}
	}
	f.chains[id] = chain{}
	f.emit(Event{Kind: Gone, At: now, Region: none, Chain: id, Task: none})
}

// Events is what happened since the last call. The slice is good until the next
// one; calls of other methods leave it alone.
func (f *Fabric) Events() []Event {
	f.events, f.given = f.given[:0], f.events
	return f.given
}

func (f *Fabric) emit(e Event) { f.events = append(f.events, e) }

// tell emits an event about a region and a chain.
func (f *Fabric) tell(now clock.Time, k Kind, region, chain int) {
	f.emit(Event{Kind: k, At: now, Region: region, Chain: chain, Task: none})
}

// Next is when Advance has something to do; clock.Never when only calls of others
// bring something new.
func (f *Fabric) Next() clock.Time {
	t := clock.Never
	if f.port.region != none {
		t = f.port.until
	}
	for i := range f.slots {
		s := &f.slots[i]
		if s.state != Stopping {
			continue
		}
		if s.stopped {
			t = min(t, s.ready)
		} else if f.cfg.Patience > 0 {
			t = min(t, s.since.Add(f.cfg.Patience))
		}
	}
	if len(f.waiting) > 0 {
		t = min(t, f.nextSwitch())
	}
	return t
}

// Advance does what is due by now. A time that lies before that of an earlier call
// counts as that, here and elsewhere.
func (f *Fabric) Advance(now clock.Time) {
	f.settle(f.advance(now))
}

// advance does what is due, each at its own time, and returns the time to go on
// from.
func (f *Fabric) advance(now clock.Time) clock.Time {
	now = max(now, f.now)
	for {
		t := f.Next()
		if t > now {
			break
		}
		f.now = max(f.now, t)
		if !f.due(f.now) {
			break
		}
	}
	f.now = now
	return now
}

// due ends what ends at t, and reports whether anything changed.
func (f *Fabric) due(t clock.Time) bool {
	changed := false
	if i := f.port.region; i != none && f.port.until <= t {
		f.port.region = none
		f.loaded(t, i)
		changed = true
	}
	for i := range f.slots {
		s := &f.slots[i]
		if s.state != Stopping {
			continue
		}
		if !s.stopped && f.cfg.Patience > 0 && s.since.Add(f.cfg.Patience) <= t {
			f.stats.Kills++
			f.tell(t, Kill, i, s.chain)
			s.stopped, s.ready = true, t
		}
		if s.stopped && s.ready <= t {
			f.drained(t, i)
			changed = true
		}
	}
	return f.settle(t) || changed
}

// settle gives regions to those who wait for them, and reports whether anything
// changed.
func (f *Fabric) settle(now clock.Time) bool {
	any := false
	for {
		changed := f.startPR(now)
		changed = f.serve(now) || changed
		changed = f.scaleOut(now) || changed
		if !changed {
			break
		}
		any = true
	}
	for i := range f.slots {
		s := &f.slots[i]
		if s.freed && (s.state == Free || s.state == Victim) {
			f.emit(Event{Kind: Freed, At: now, Region: i, Chain: none, Task: none})
		}
		s.freed = false
	}
	return any
}

// enter changes the state of a region.
func (f *Fabric) enter(now clock.Time, i int, st State) {
	s := &f.slots[i]
	f.account(now, s)
	s.state, s.since, f.vain = st, now, false
}

// shift counts instances of a chain's tasks, and starts their monitors again.
func (f *Fabric) shift(now clock.Time, id, running, coming, leaving int) {
	for _, t := range f.chains[id].tasks {
		e := &f.tasks[t]
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
		f.restart(now, t)
	}
}

// claim chooses a region for a chain: Free, or one with a victim of another, or
// Stopping without a use.
func (f *Fabric) claim(now clock.Time, i, id int, c Cause) {
	s := &f.slots[i]
	s.cause = c
	f.shift(now, id, 0, 1, 0)
	if s.state == Stopping {
		s.next = id
		return
	}
	old := s.chain
	if s.state == Victim {
		f.stats.Evicted++
		f.tell(now, Evict, i, old)
	}
	s.chain = id
	f.enter(now, i, Queued)
	f.enqueue(i)
	if old != none {
		f.bury(now, old)
	}
}

func (f *Fabric) enqueue(i int) {
	if f.slots[i].cause == OnDemand {
		f.port.demand = append(f.port.demand, i)
	} else {
		f.port.others = append(f.port.others, i)
	}
}

func (f *Fabric) dequeue(i int) {
	for _, q := range []*[]int{&f.port.demand, &f.port.others} {
		if k := slices.Index(*q, i); k >= 0 {
			*q = slices.Delete(*q, k, k+1)
		}
	}
}

// promote makes a launch that nobody waited for one on demand.
func (f *Fabric) promote(i int) {
	s := &f.slots[i]
	if s.cause == OnDemand {
		return
	}
	s.cause = OnDemand
	if s.state == Queued {
		f.dequeue(i)
		f.enqueue(i)
	}
}

// revoke takes a launch off the queue of the port. The region is in no state that
// may stay: it is claimed, or emptied, at once.
func (f *Fabric) revoke(now clock.Time, i int) {
	s := &f.slots[i]
	f.dequeue(i)
	f.shift(now, s.chain, 0, -1, 0)
	f.revoked(now, i, s.chain)
}

// revoked tells that a launch is off.
func (f *Fabric) revoked(now clock.Time, i, id int) {
	f.stats.Revoked++
	f.emit(Event{Kind: Revoke, Cause: f.slots[i].cause, At: now, Region: i, Chain: id, Task: none})
}

// unclaim takes back what a Stopping region is for.
func (f *Fabric) unclaim(now clock.Time, i int) {
	s := &f.slots[i]
	f.shift(now, s.next, 0, -1, 0)
	f.revoked(now, i, s.next)
	s.next = none
}

// empty leaves nothing in a region.
func (f *Fabric) empty(now clock.Time, i int, st State) {
	s := &f.slots[i]
	old := s.chain
	s.chain = none
	f.enter(now, i, st)
	s.freed = st == Free
	if old != none {
		f.bury(now, old)
	}
}

// evict empties a region whose chain is not, or no longer, running.
func (f *Fabric) evict(now clock.Time, i int) {
	f.stats.Evicted++
	f.tell(now, Evict, i, f.slots[i].chain)
	f.empty(now, i, Free)
}

// startPR begins the next PR when the port is free.
func (f *Fabric) startPR(now clock.Time) bool {
	if f.port.region != none {
		return false
	}
	q := &f.port.demand
	if len(*q) == 0 {
		q = &f.port.others
	}
	if len(*q) == 0 {
		return false
	}
	i := (*q)[0]
	*q = slices.Delete(*q, 0, 1)
	s := &f.slots[i]
	f.enter(now, i, Loading)
	f.port.region, f.port.until = i, now.Add(f.chains[s.chain].pr)
	f.stats.PRs[s.cause]++
	f.emit(Event{Kind: Load, Cause: s.cause, At: now, Until: f.port.until, Region: i, Chain: s.chain, Task: none})
	return true
}

// loaded ends a PR.
func (f *Fabric) loaded(now clock.Time, i int) {
	s := &f.slots[i]
	if f.chains[s.chain].dead {
		f.shift(now, s.chain, 0, -1, 0)
		f.evict(now, i)
		return
	}
	f.run(now, i, -1)
}

// run opens a region; coming is -1 when its chain was counted as on its way.
func (f *Fabric) run(now clock.Time, i, coming int) {
	s := &f.slots[i]
	f.enter(now, i, Running)
	s.used, s.load, s.part = now, 0, [MaxTasks]float64{}
	f.shift(now, s.chain, 1, coming, 0)
	f.emit(Event{Kind: Run, Cause: s.cause, At: now, Region: i, Chain: s.chain, Task: none})
}

// stop closes a region.
func (f *Fabric) stop(now clock.Time, i int) {
	s := &f.slots[i]
	f.fold(now, s)
	f.enter(now, i, Stopping)
	f.shift(now, s.chain, -1, 0, 1)
	s.seq++
	s.stopped, s.ready = false, now
	if f.chains[s.chain].save {
		s.ready = now.Add(f.cfg.Stop)
	}
	f.emit(Event{Kind: Stop, At: now, Region: i, Chain: s.chain, Task: none, Seq: s.seq, Save: f.chains[s.chain].save})
}

// Stopped tells that what a Stop asked for is done: nothing is inside, and
// state is saved. seq is that of the event. False, and nothing happens, when the
// region does not wait for that.
func (f *Fabric) Stopped(now clock.Time, region int, seq uint32) bool {
	now = f.advance(now)
	if region < 0 || region >= len(f.slots) {
		return false
	}
	s := &f.slots[region]
	if s.state != Stopping || s.stopped || s.seq != seq {
		return false
	}
	s.stopped = true
	if s.ready <= now {
		f.drained(now, region)
	}
	f.settle(now)
	return true
}

// drained ends a stop.
func (f *Fabric) drained(now clock.Time, i int) {
	s := &f.slots[i]
	old, next := s.chain, s.next
	s.next = none
	f.shift(now, old, 0, 0, -1)
	switch {
	case next == old:
		f.run(now, i, -1)
	case next != none:
		f.stats.Evicted++
		f.tell(now, Evict, i, old)
		s.chain = next
		f.enter(now, i, Queued)
		f.enqueue(i)
		f.bury(now, old)
	default:
		f.deschedule(now, i)
	}
}

// deschedule keeps a chain as a victim, or not.
func (f *Fabric) deschedule(now clock.Time, i int) {
	s := &f.slots[i]
	if f.chains[s.chain].dead {
		f.evict(now, i)
		return
	}
	f.kept += f.cfg.Keep
	if f.victims == 0 || f.kept < 1-slack {
		f.evict(now, i)
		return
	}
	f.kept = max(0, f.kept-1)
	f.enter(now, i, Victim)
	s.freed = true
	for n := f.count(Victim); n > f.victims; n-- {
		f.evict(now, f.oldestVictim(0))
	}
}

// count is how many regions are in a state.
func (f *Fabric) count(st State) int {
	n := 0
	for i := range f.slots {
		if f.slots[i].state == st {
			n++
		}
	}
	return n
}

// oldestVictim is the victim least recently used, in a region of at least this
// area.
func (f *Fabric) oldestVictim(area int) int {
	best := none
	for i := range f.slots {
		s := &f.slots[i]
		if s.state == Victim && s.area >= area && (best == none || s.used < f.slots[best].used) {
			best = i
		}
	}
	return best
}

// Release deschedules what runs in a region, as when a chain has moved elsewhere.
// False when nothing runs there.
func (f *Fabric) Release(now clock.Time, region int) bool {
	now = f.advance(now)
	if region < 0 || region >= len(f.slots) || f.slots[region].state != Running {
		return false
	}
	f.stop(now, region)
	f.settle(now)
	return true
}

// Fail takes a region out of service: what is in it is lost, what was to be
// launched there goes elsewhere if somebody waits for it. False when there is no
// such region in service.
func (f *Fabric) Fail(now clock.Time, region int) bool {
	now = f.advance(now)
	if region < 0 || region >= len(f.slots) || f.slots[region].state == Failed {
		return false
	}
	s := &f.slots[region]
	again := none
	switch s.state {
	case Queued:
		f.revoke(now, region)
		again = s.chain
	case Loading:
		f.port.region = none
		f.shift(now, s.chain, 0, -1, 0)
		f.revoked(now, region, s.chain)
		again = s.chain
	case Stopping:
		if s.next != none {
			again = s.next
			f.unclaim(now, region)
		}
		f.shift(now, s.chain, 0, 0, -1)
		f.tell(now, Evict, region, s.chain)
	case Running:
		f.fold(now, s)
		f.shift(now, s.chain, -1, 0, 0)
		f.tell(now, Evict, region, s.chain)
	case Victim:
		f.tell(now, Evict, region, s.chain)
	}
	cause := s.cause
	f.empty(now, region, Failed)
	if again != none && cause == OnDemand && f.knows(again) && !f.chains[again].waiting {
		f.chains[again].waiting = true
		f.waiting = slices.Insert(f.waiting, 0, again)
	}
	largest := 0
	for i := range f.slots {
		if f.slots[i].state != Failed {
			largest = max(largest, f.slots[i].area)
		}
	}
	for k := 0; k < len(f.waiting); {
		if id := f.waiting[k]; f.chains[id].area > largest {
			f.unwait(id)
			f.stats.Refused[TooLarge]++
			f.emit(Event{Kind: Refuse, At: now, Region: none, Chain: id, Task: none, Reason: TooLarge})
			continue
		}
		k++
	}
	f.settle(now)
	return true
}
