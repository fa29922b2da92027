package sched

import (
	"fmt"
	"math/bits"
	"slices"
)

// Limits.
const (
	// MaxTasks is the largest number of tasks in a chain: the width of a mask.
	MaxTasks = 16
	// MaxBranches is the largest number of branches in a stage.
	MaxBranches = 16
	// MaxVisits is the largest number of visits in a route, over all stages.
	MaxVisits = 128
	// MaxCredits is the largest number of credits of a task.
	MaxCredits = 1 << 20

	maxPackets = 1 << 24
	maxStore   = 1 << 48
	maxRegions = 1 << 12
	maxIDs     = 1 << 24 // chains, routes, tenants
)

// Config holds the sizes of a scheduler. New allocates memory for all of them.
type Config struct {
	Packets  int    // packets inside at a time
	Store    int    // the packet store, bytes
	Regions  int    // regions are 0 to Regions-1
	Chains   int    // chains are 0 to Chains-1
	Routes   int    // routes are 0 to Routes-1
	Tenants  int    // tenants are 0 to Tenants-1
	Branches int    // of a stage; at most MaxBranches, at least 1
	Panic    bool   // one task a run, for comparison
	Seed     uint64 // of the hash table of flows: what an attacker does not know
	// Instead finds another chain for packets of a route that have begun, when chain has no instance. mask has
	// the tasks of chain that are left. Instead returns a chain (other) that runs the first of these tasks, or
	// will, and more of them if it has them in the same order. tasks is the mask of these tasks in other, done
	// their mask in the old chain. If Instead is nil, or returns done 0, no chain runs them.
	Instead func(route, chain int, mask uint16) (other int, tasks, done uint16)
}

// Spread selects how packets are spread over the instances of a chain.
type Spread uint8

// PerFlow keeps the packets of a flow in order in each task. RoundRobin and LeastLoaded do not.
// LeastLoaded chooses the instance in which the fewest packets run or wait.
const (
	PerFlow Spread = iota
	RoundRobin
	LeastLoaded
)

// Visit is one pass through an instance of a chain. Bit i of Mask is its task i.
type Visit struct {
	Chain int
	Mask  uint16
}

// Route is the way of packets of a DAG: a series of stages; each stage has branches, which
// run side by side; each branch is a series of visits. A packet on a route without stages
// leaves at once.
type Route struct {
	Stages [][][]Visit
	Spread Spread
	// AnyOrder lets packets of a flow leave in any order. Without it, and always with PerFlow, they
	// leave in the order in which they arrived.
	AnyOrder bool
	// Back says that packets on this route go in the other direction. Packets of a flow on forward
	// routes and those on routes back have separate orders, and do not wait for each other.
	Back bool
}

// Reason says why a packet was refused or dropped.
type Reason uint8

// Reasons: Arrive refuses packets for the first group, up to StoreFull; Leave returns the last two.
const (
	None         Reason = iota
	UnknownRoute        // there is no such route
	BadPacket           // its size is not in 0..2^30, or there is no such tenant
	NoDescriptor        // as many packets are inside as there may be
	StoreFull           // no room in the packet store
	ByTask              // dropped by a task
	Gone                // on an old route, a chain of which has no instance any more
	reasons
)

var reasonNames = [reasons]string{"none", "unknown-route", "bad-packet", "no-descriptor", "store-full", "by-task", "gone"}

// String returns the name of the reason.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason-%d", uint8(r))
}

// none stands for no packet, header, region, chain or plan.
const none = int32(-1)

// Scheduler is the state machine. Only one goroutine at a time may use it or its Instances.
type Scheduler struct {
	road    road
	free    []int32 // packets that are not used
	routes  []routeState
	tenants []tenantState
	side    int // branches that a stage may have

	store, storeSize int64
	taken            int64 // packets on the bulk road
	opening          opening
	books            Books
}

type routeState struct {
	plan   int32 // in force; none: unknown
	inside int32 // packets on the full road, of older plans, too
}

type tenantState struct {
	packets int32
	bytes   int64
}

// New makes a scheduler whose regions are empty and which has no routes. It returns an error if a
// size in c is out of range.
func New(c Config) (*Scheduler, error) {
	for _, f := range []struct {
		name      string
		value, at int
	}{
		{"packets", c.Packets, maxPackets}, {"bytes of packet store", c.Store, maxStore}, {"regions", c.Regions, maxRegions},
		{"chains", c.Chains, maxIDs}, {"routes", c.Routes, maxIDs}, {"tenants", c.Tenants, maxIDs}, {"branches", c.Branches, MaxBranches},
	} {
		if f.value < 1 || f.value > f.at {
			return nil, fmt.Errorf("sched: %d %s: 1 to %d are possible", f.value, f.name, f.at)
		}
	}
	shift := uint(bits.Len(uint(c.Branches - 1)))
	s := &Scheduler{
		road: road{
			queues: queues{
				regions: make([]region, c.Regions), headers: make([]header, c.Packets<<shift), links: make([]links, c.Packets<<shift),
				ready: newRing(c.Packets << shift), panic: c.Panic,
			},
			order: order{
				packets: make([]packet, c.Packets), flows: newFlows(c.Packets, c.Seed), leaving: newRing(c.Packets), work: make([]int32, 0, c.Packets),
			},
			shift: shift, last: 1<<shift - 1, instead: c.Instead,
		},
		free: make([]int32, c.Packets), routes: make([]routeState, c.Routes), tenants: make([]tenantState, c.Tenants),
		side: c.Branches, storeSize: int64(c.Store),
	}
	s.road.in = Instances{chains: make([]chain, c.Chains), odd: s.road.order.flows.odd, queues: &s.road.queues}
	for i := range s.free {
		s.free[i] = int32(c.Packets - 1 - i)
		s.road.order.packets[i].plan = none
	}
	for i := range s.road.queues.regions {
		s.road.queues.regions[i].chain = none
	}
	for i := range s.road.in.chains {
		s.road.in.chains[i].head, s.road.in.chains[i].tail, s.road.in.chains[i].only = none, none, none
	}
	for i := range s.routes {
		s.routes[i].plan = none
	}
	return s, nil
}

// Instances returns the part of the scheduler that knows which regions hold a chain.
func (s *Scheduler) Instances() *Instances { return &s.road.in }

// Place puts an instance of a chain into an empty region. credits has the number of credits of
// each task. Packets that wait for an instance of the chain choose again.
func (s *Scheduler) Place(region, chain int, credits []int) error {
	if err := s.road.in.checkRegion(region); err != nil {
		return err
	}
	rg := &s.road.queues.regions[region]
	switch {
	case rg.chain != none:
		return fmt.Errorf("sched: region %d holds chain %d: remove it first", region, rg.chain)
	case chain < 0 || chain >= len(s.road.in.chains):
		return fmt.Errorf("sched: chain %d: there are 0 to %d", chain, len(s.road.in.chains)-1)
	case len(credits) < 1 || len(credits) > MaxTasks:
		return fmt.Errorf("sched: a chain of %d tasks: 1 to %d are possible", len(credits), MaxTasks)
	}
	for i, n := range credits {
		if n < 1 || n > MaxCredits {
			return fmt.Errorf("sched: %d credits for task %d of chain %d: 1 to %d are possible", n, i, chain, MaxCredits)
		}
	}
	c := &s.road.in.chains[chain]
	if c.placed > 0 && int(c.tasks) != len(credits) {
		return fmt.Errorf("sched: chain %d has %d tasks in other regions, not %d", chain, c.tasks, len(credits))
	}
	for _, pl := range s.road.plans.all {
		if pl == nil {
			continue
		}
		for _, v := range pl.visits {
			if int(v.chain) == chain && bits.Len16(v.mask) > len(credits) {
				return fmt.Errorf("sched: route %d visits task %d of chain %d: it has %d tasks now", pl.route, bits.Len16(v.mask)-1, chain, len(credits))
			}
		}
	}
	*rg = regionOf(int32(chain), credits)
	c.tasks = rg.n
	c.placed++
	at, _ := slices.BinarySearch(c.open, int32(region))
	c.setOpen(slices.Insert(c.open, at, int32(region)))
	s.road.unpark(c)
	s.road.settle()
	return nil
}

// Pause lets no more packets into a region. Packets that wait in the region go to another
// instance of the chain, or are parked until there is one.
func (s *Scheduler) Pause(region int) error {
	rg, err := s.road.in.instance(region)
	if err != nil || rg.paused {
		return err
	}
	rg.paused = true
	c := &s.road.in.chains[rg.chain]
	at, _ := slices.BinarySearch(c.open, int32(region))
	c.setOpen(slices.Delete(c.open, at, at+1))
	s.road.in.leaveSeats(c, int32(region))
	// Those that are farther in the chain came first.
	for t := int(rg.n) - 1; t >= 0; t-- {
		for h := rg.tasks[t].head; h != none; {
			next := s.road.queues.links[h].next
			if s.road.queues.headers[h].state == waiting {
				s.road.queues.dequeue(h)
				rg.load--
				s.road.in.park(c, h)
			}
			h = next
		}
	}
	s.road.unpark(c)
	s.road.settle()
	return nil
}

// Drained reports whether no packet is in the region, or the region holds no chain.
func (s *Scheduler) Drained(region int) bool {
	rg, err := s.road.in.instance(region)
	return err != nil || rg.running == 0 && rg.taken == 0
}

// Remove takes the instance out of a region that is paused and drained.
func (s *Scheduler) Remove(region int) error {
	rg, err := s.road.in.instance(region)
	if err != nil {
		return err
	}
	switch {
	case !rg.paused:
		return fmt.Errorf("sched: region %d takes packets: pause it first", region)
	case !s.Drained(region):
		return fmt.Errorf("sched: %d packets are in region %d", rg.running+rg.taken, region)
	}
	c := &s.road.in.chains[rg.chain]
	*rg = regionOf(none, nil)
	if c.placed--; c.placed == 0 {
		c.seats = nil
		s.road.unpark(c) // those on old plans are dropped now
		s.road.settle()
	}
	return nil
}

// SetCredits changes how many packets a task may have at a time. A task that has more
// packets at the moment gets the next one when it has fewer.
func (s *Scheduler) SetCredits(region, task, credits int) error {
	rg, err := s.road.in.instance(region)
	switch {
	case err != nil:
		return err
	case task < 0 || task >= int(rg.n):
		return fmt.Errorf("sched: task %d of region %d: there are 0 to %d", task, region, rg.n-1)
	case credits < 1 || credits > MaxCredits:
		return fmt.Errorf("sched: %d credits: 1 to %d are possible", credits, MaxCredits)
	}
	t := &rg.tasks[task]
	t.free += int32(credits) - t.total
	t.total = int32(credits)
	s.road.queues.serve(int32(region), task)
	s.road.settle()
	return nil
}
