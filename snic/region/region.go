package region

import (
	"cmp"
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
	// MaxTasks is the largest number of tasks in a chain: the bits of a mask.
	MaxTasks = 16
	// MaxRegions is the largest number of regions of a board. It is small because a Fabric looks
	// through all regions one by one.
	MaxRegions = 1024
	// maxID bounds the numbers of chains and tasks, which are indexes.
	maxID = 1 << 20
	// none is no region, chain or task.
	none = -1
	// maxRate, in bits a second, is more than any task can handle.
	maxRate = 1e18
	// slack is the difference that counts as rounding, in instances of a task.
	slack = 1e-9
)

// Config describes a board and how it decides. Default has the source's values.
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
	Clump     clock.Duration // where it is more: how much of what came together counts on against overload, while nothing comes
	Idle      clock.Duration // after which the last instance of an unused task is descheduled; 0: never
	Victims   float64        // share of the regions that may hold victims, 0 to 1
	Keep      float64        // share of the descheduled chains that are kept as victims, 0 to 1
	Waiting   int            // chains that wait for a region at most

	// Helps reports whether excess packets of an overloaded task would go through one more
	// instance of a chain. If Helps is nil, they always would.
	Helps func(chain, task int) bool
	// Spares reports whether the packets of a chain would find room without one of its instances that
	// has packets. If Spares is nil, they would wherever its tasks have other instances with room.
	Spares func(chain int) bool
}

// Under is the default of Config.Under: instances that remain after a scale-in are at most so full.
const Under = 0.9

// Default returns the Config of a board of equal regions: a PR loads 4 MB at 800 MB/s, in 5 ms; the
// monitor period is 5 ms; every region may hold a victim.
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

// Chain describes a bitstream that may be loaded into a region.
type Chain struct {
	Area      int
	Bitstream int64 // bytes; 0: Config.Bitstream
	Tasks     []int // in order, each once
	Save      bool  // has state, which is saved when it stops
	Endpoint  bool  // may run at the endpoint instead
}

// Kind is the kind of an Event.
type Kind uint8

// Kinds of events, with the fields that each sets. The package doc says what the body does.
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

// Event reports what has happened, or what the body must do. Fields that its kind does not name
// are 0, or -1 for numbers of regions, chains and tasks.
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

// Fabric decides about the regions of a board.
type Fabric struct {
	plan    floorplan
	now     clock.Time
	waiting []int   // chains, first come first
	given   []Event // by Events
}

// New makes the Fabric of a board whose regions are free. It returns an error for a bad Config.
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
	n := len(cfg.Areas)
	f := &Fabric{
		plan: floorplan{
			cfg: cfg, victims: int(cfg.Victims*float64(n) + slack), slots: make([]slot, n),
			port:    port{region: none, demand: make([]int, 0, n), others: make([]int, 0, n)},
			monitor: monitor{gauges: make([]gauge, n), sampled: now},
			events:  make([]Event, 0, 8*n),
		},
		now: now, waiting: make([]int, 0, cfg.Waiting+n+1), given: make([]Event, 0, 8*n),
	}
	f.plan.monitor.cfg = &f.plan.cfg
	if _, err := f.plan.cfg.delay(cfg.Bitstream); err != nil {
		return nil, err
	}
	for i, area := range cfg.Areas {
		f.plan.slots[i] = slot{area: area, chain: none, next: none, since: now, counted: now}
		f.plan.monitor.gauges[i].used = now
	}
	return f, nil
}

// maxTime bounds the durations in a Config, so that sums of them stay far from overflow.
const maxTime = clock.Duration(1e9 * 3600 * 24)

// delay returns how long the PR of a bitstream takes, or an error if that is longer than a monitor period.
func (c *Config) delay(bytes int64) (clock.Duration, error) {
	d := math.Ceil(float64(bytes) * 1e9 / float64(c.Rate))
	if !(d <= float64(c.Monitor)) {
		return 0, fmt.Errorf("region: the PR of %d bytes takes %v, longer than the monitor period of %v: chains would be replaced before they run", bytes, clock.Duration(min(d, float64(maxTime))), c.Monitor)
	}
	return clock.Duration(d), nil
}

// SetTask sets how much an instance of a task can handle, in bits a second; 0 means no limit. It
// may be called again at any time.
func (f *Fabric) SetTask(id int, throughput float64) error {
	if id < 0 || id >= maxID {
		return fmt.Errorf("region: task %d: want a number from 0, below %d", id, maxID)
	}
	if !(throughput == 0 || throughput >= 1) || throughput > maxRate {
		return fmt.Errorf("region: task %d: throughput of %g bits a second: want 0 (no limit), or 1 to 1e18", id, throughput)
	}
	perByte := 0.
	if throughput > 0 {
		perByte = 8e9 / throughput
	}
	f.plan.monitor.set(f.now, id, perByte)
	return nil
}

// Add deploys a chain, but does not launch it. SetTask must have been called for its tasks.
func (f *Fabric) Add(id int, c Chain) error {
	switch {
	case id < 0 || id >= maxID:
		return fmt.Errorf("region: chain %d: want a number from 0, below %d", id, maxID)
	case id < len(f.plan.chains) && f.plan.chains[id].known:
		return fmt.Errorf("region: chain %d is there already, or something is left of it: remove it, and wait until it is gone", id)
	case c.Area <= 0 || c.Area > slices.Max(f.plan.cfg.Areas):
		return fmt.Errorf("region: chain %d has an area of %d: want 1 to %d, as the largest region has", id, c.Area, slices.Max(f.plan.cfg.Areas))
	case c.Bitstream < 0:
		return fmt.Errorf("region: chain %d has a bitstream of %d bytes: want 0 (as others) or more", id, c.Bitstream)
	case len(c.Tasks) == 0 || len(c.Tasks) > MaxTasks:
		return fmt.Errorf("region: chain %d has %d tasks: want 1 to %d", id, len(c.Tasks), MaxTasks)
	}
	for i, t := range c.Tasks {
		if t < 0 || t >= len(f.plan.monitor.tasks) || !f.plan.monitor.tasks[t].known {
			return fmt.Errorf("region: chain %d: task %d is unknown", id, t)
		}
		if slices.Contains(c.Tasks[:i], t) {
			return fmt.Errorf("region: chain %d has task %d twice", id, t)
		}
	}
	c.Bitstream = cmp.Or(c.Bitstream, f.plan.cfg.Bitstream)
	pr, err := f.plan.cfg.delay(c.Bitstream)
	if err != nil {
		return fmt.Errorf("chain %d: %w", id, err)
	}
	for id >= len(f.plan.chains) {
		f.plan.chains = append(f.plan.chains, chain{})
		f.plan.monitor.crews = append(f.plan.monitor.crews, crew{})
	}
	f.plan.monitor.crews[id] = crew{}
	f.plan.chains[id] = chain{known: true, save: c.Save, away: c.Endpoint, area: c.Area, pr: pr, tasks: slices.Clone(c.Tasks)}
	return nil
}

// Remove ends a chain: the chain stops in regions that run it, and is not kept as a victim. Remove
// returns false if the chain is not deployed.
func (f *Fabric) Remove(now clock.Time, id int) bool {
	now = f.advance(now)
	if !f.plan.knows(id) {
		return false
	}
	f.unwait(id)
	f.plan.chains[id].dead = true
	for i := range f.plan.slots {
		s := &f.plan.slots[i]
		if s.state == Stopping && s.next == id {
			f.plan.unclaim(now, i)
		}
		if s.chain != id {
			continue
		}
		switch s.state {
		case Queued:
			f.plan.revoke(now, i)
			f.plan.empty(now, i, Free)
		case Running:
			f.plan.stop(now, i)
		case Victim:
			f.plan.evict(now, i)
		}
	}
	f.plan.bury(now, id)
	f.settle(now)
	return true
}

// Events returns the events since the last call of Events. The slice is valid until the next call
// of Events; other methods do not change it.
func (f *Fabric) Events() []Event {
	f.plan.events, f.given = f.given[:0], f.plan.events
	return f.given
}

// Next returns the time at which Advance must be called, or clock.Never if nothing is due until
// another method is called.
func (f *Fabric) Next() clock.Time {
	t := clock.Never
	if f.plan.port.region != none {
		t = f.plan.port.until
	}
	for i := range f.plan.slots {
		s := &f.plan.slots[i]
		if s.state != Stopping {
			continue
		}
		if s.stopped {
			t = min(t, s.ready)
		} else if f.plan.cfg.Patience > 0 {
			t = min(t, s.since.Add(f.plan.cfg.Patience))
		}
	}
	if len(f.waiting) > 0 {
		t = min(t, f.nextSwitch())
	}
	return t
}

// Advance does what is due by now. In all methods, a time before that of an earlier call counts as
// the time of the earlier call.
func (f *Fabric) Advance(now clock.Time) {
	f.settle(f.advance(now))
}

// advance does what is due, each action at its own time, and returns now, or the time of an earlier
// call if that is later.
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

// due ends the PR and the stops that end by time t, and reports whether anything changed.
func (f *Fabric) due(t clock.Time) bool {
	changed := false
	if i := f.plan.port.region; i != none && f.plan.port.until <= t {
		f.plan.port.region = none
		f.plan.loaded(t, i)
		changed = true
	}
	for i := range f.plan.slots {
		s := &f.plan.slots[i]
		if s.state != Stopping {
			continue
		}
		if !s.stopped && f.plan.cfg.Patience > 0 && s.since.Add(f.plan.cfg.Patience) <= t {
			f.plan.stats.Kills++
			f.plan.emitFor(t, Kill, i, s.chain)
			s.stopped, s.ready = true, t
		}
		if s.stopped && s.ready <= t {
			f.plan.drained(t, i)
			changed = true
		}
	}
	return f.settle(t) || changed
}

// settle gives regions to chains and tasks that wait for them, and reports whether anything changed.
func (f *Fabric) settle(now clock.Time) bool {
	any := false
	for {
		changed := f.plan.startPR(now)
		changed = f.serve(now) || changed
		changed = f.scaleOut(now) || changed
		if !changed {
			break
		}
		any = true
	}
	for i := range f.plan.slots {
		s := &f.plan.slots[i]
		if s.freed && (s.state == Free || s.state == Victim) {
			f.plan.emit(Event{Kind: Freed, At: now, Region: i, Chain: none, Task: none})
		}
		s.freed = false
	}
	return any
}

// Stopped reports that the body has done what a Stop event asks for: no packet is in the region, and
// the state is saved. seq is Event.Seq. If the region does not wait for that, Stopped changes nothing
// and returns false.
func (f *Fabric) Stopped(now clock.Time, region int, seq uint32) bool {
	now = f.advance(now)
	if region < 0 || region >= len(f.plan.slots) {
		return false
	}
	s := &f.plan.slots[region]
	if s.state != Stopping || s.stopped || s.seq != seq {
		return false
	}
	s.stopped = true
	if s.ready <= now {
		f.plan.drained(now, region)
	}
	f.settle(now)
	return true
}

// Release deschedules the chain that runs in a region, for example because it has moved elsewhere.
// It returns false if no chain runs there.
func (f *Fabric) Release(now clock.Time, region int) bool {
	now = f.advance(now)
	if region < 0 || region >= len(f.plan.slots) || f.plan.slots[region].state != Running {
		return false
	}
	f.plan.stop(now, region)
	f.settle(now)
	return true
}

// Fail takes a region out of service. The chain in it is lost. A chain that was to be launched there
// on demand waits for another region. Fail returns false if no such region is in service.
func (f *Fabric) Fail(now clock.Time, region int) bool {
	now = f.advance(now)
	if region < 0 || region >= len(f.plan.slots) || f.plan.slots[region].state == Failed {
		return false
	}
	s := &f.plan.slots[region]
	again := none
	switch s.state {
	case Queued:
		f.plan.revoke(now, region)
		again = s.chain
	case Loading:
		f.plan.port.region = none
		f.plan.shift(now, s.chain, 0, -1, 0)
		f.plan.revoked(now, region, s.chain)
		again = s.chain
	case Stopping:
		if s.next != none {
			again = s.next
			f.plan.unclaim(now, region)
		}
		f.plan.shift(now, s.chain, 0, 0, -1)
		f.plan.emitFor(now, Evict, region, s.chain)
	case Running:
		f.plan.monitor.end(now, region)
		f.plan.shift(now, s.chain, -1, 0, 0)
		f.plan.emitFor(now, Evict, region, s.chain)
	case Victim:
		f.plan.emitFor(now, Evict, region, s.chain)
	}
	cause := s.cause
	f.plan.empty(now, region, Failed)
	if again != none && cause == OnDemand && f.plan.knows(again) && !f.plan.chains[again].waiting {
		f.plan.chains[again].waiting = true
		f.waiting = slices.Insert(f.waiting, 0, again)
	}
	largest := 0
	for i := range f.plan.slots {
		if f.plan.slots[i].state != Failed {
			largest = max(largest, f.plan.slots[i].area)
		}
	}
	for k := 0; k < len(f.waiting); {
		if id := f.waiting[k]; f.plan.chains[id].area > largest {
			f.unwait(id)
			f.plan.stats.Refused[TooLarge]++
			f.plan.emit(Event{Kind: Refuse, At: now, Region: none, Chain: id, Task: none, Reason: TooLarge})
			continue
		}
		k++
	}
	f.settle(now)
	return true
}
