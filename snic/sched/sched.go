package sched

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// Limits.
const (
	// MaxTasks is how many tasks a chain may have: the width of a mask.
	MaxTasks = 16
	// MaxBranches is how many branches a stage may have.
	MaxBranches = 16
	// MaxVisits is how many visits a route may have in all.
	MaxVisits = 128
	// MaxCredits is how many credits a task may have.
	MaxCredits = 1 << 20

	maxPackets = 1 << 24
	maxStore   = 1 << 48
	maxRegions = 1 << 12
	maxIDs     = 1 << 24 // chains, routes, tenants
)

// Config says how large a scheduler is. All that it keeps is allocated by New.
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
	// Instead is where tasks of a chain that has no instance any more are run, or will be, for packets of a route of which
	// others have run: a chain that has the first of them, and more if they are in their order there; as tasks of that chain, and of the old
	// one. nil, or 0: nowhere.
	Instead func(route, chain int, mask uint16) (other int, tasks, done uint16)
}

// Spread is how packets are spread over the instances of a chain.
type Spread uint8

// PerFlow keeps the packets of a flow in order, in each task. RoundRobin and
// LeastLoaded (by packets that run or wait there; among equals in turn) do not.
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

// Route is what became of a DAG: stages, one after the other, of branches, side
// by side, of visits, one after the other. A route without stages is left at
// once.
type Route struct {
	Stages [][][]Visit
	Spread Spread
	// AnyOrder lets packets of a flow leave as they come. Otherwise, and always
	// with PerFlow, they leave in the order in which they arrived.
	AnyOrder bool
	// Back says that packets on this route go the other way: packets of a flow on routes
	// there and those on routes back are in two orders, and neither waits for the other.
	Back bool
}

// Reason says why a packet was refused or dropped.
type Reason uint8

// Reasons of Arrive, then those of Leave.
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

// String is the name of the reason.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason-%d", uint8(r))
}

// none is no packet, header, region or plan.
const none = int32(-1)

// Scheduler is the state machine. No part of it may be used by two goroutines at
// a time.
type Scheduler struct {
	packets []packet
	headers []header // 1<<shift for each packet, one for each branch
	links   []links  // of headers
	shift   uint     // below 32, which shifts say so that the compiler knows
	last    int32    // 1<<shift - 1
	side    int      // branches that a stage may have
	panic   bool
	instead func(route, chain int, mask uint16) (int, uint16, uint16)
	free    []int32 // packets that are not used
	ready   ring    // headers that have credits, for Next
	leaving ring    // packets, for Leave
	work    []int32 // packets whose predecessor got on
	flows   flows

	regions []region
	chains  []chain
	routes  []routeState
	tenants []tenantState
	plans   []*plan
	heirs   []*plan // of them, heirs
	spare   []int32 // plans that are not used

	store, storeSize int64
	taken            int64 // packets on the bulk road
	books            Books
	misuse           int
}

// task is an instance of a task.
type task struct {
	total      int32 // credits
	free       int32 // below 0 after credits were taken away, or packets that were kept went on
	taken      int32 // credits out on the bulk road
	head, tail int32 // headers that wait, in their order
	waiting    int32
	packets    uint64 // wanted, from Place on
	bytes      uint64
}

type region struct {
	chain   int32 // none: nothing is placed
	n       int32 // tasks
	paused  bool
	queued  uint16  // tasks that somebody waits for
	running int32   // headers that have left the scheduler, or are about to
	load    int32   // these and those that wait here
	taken   int32   // packets on the bulk road
	work    float32 // of the buckets that it has, of late
	tasks   [MaxTasks]task
}

type chain struct {
	tasks      int32   // while there are instances
	placed     int32   // instances
	open       []int32 // those that take packets, ascending
	only       int32   // that of open, if it is one; else none
	turn       int32   // of open, for RoundRobin and LeastLoaded
	seats      *seats  // nil: flows go by rendezvous
	head, tail int32   // headers that wait for an instance
	parked     int32
}

type routeState struct {
	plan   int32 // in force; none: unknown
	inside int32 // packets on the full road, of older plans, too
}

type tenantState struct {
	packets int32
	bytes   int64
}

// span is a piece of a plan's branches or visits.
type span struct{ from, to uint8 }

type visit struct {
	chain int32
	mask  uint16
}

// plan is a route that does not change, and that packets keep.
type plan struct {
	route    int32
	users    int32 // packets
	current  bool
	spread   Spread
	anyOrder bool
	back     bool
	bulk     bool // one visit
	stages   []span
	branches []span
	visits   []visit
	source   Route
	slot     int32
	inherits bool  // it is an heir
	heir     *plan // of it, the latest
	succession
}

// New makes a scheduler. Nothing is placed and no route is known.
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
		packets: make([]packet, c.Packets), headers: make([]header, c.Packets<<shift), links: make([]links, c.Packets<<shift),
		shift: shift, last: 1<<shift - 1, side: c.Branches, panic: c.Panic, instead: c.Instead,
		free: make([]int32, c.Packets), ready: newRing(c.Packets << shift), leaving: newRing(c.Packets),
		work: make([]int32, 0, c.Packets), flows: newFlows(c.Packets, c.Seed),
		regions: make([]region, c.Regions), chains: make([]chain, c.Chains), routes: make([]routeState, c.Routes),
		tenants: make([]tenantState, c.Tenants), storeSize: int64(c.Store),
	}
	for i := range s.free {
		s.free[i] = int32(c.Packets - 1 - i)
		s.packets[i].plan = none
	}
	for i := range s.regions {
		s.regions[i].chain = none
	}
	for i := range s.chains {
		s.chains[i].head, s.chains[i].tail, s.chains[i].only = none, none, none
	}
	for i := range s.routes {
		s.routes[i].plan = none
	}
	return s, nil
}

// Place puts an instance of a chain into a region where there is none, with
// credits for each of its tasks. Packets that wait for the chain go to it.
func (s *Scheduler) Place(region, chain int, credits []int) error {
	if err := s.checkRegion(region); err != nil {
		return err
	}
	rg := &s.regions[region]
	switch {
	case rg.chain != none:
		return fmt.Errorf("sched: region %d holds chain %d: remove it first", region, rg.chain)
	case chain < 0 || chain >= len(s.chains):
		return fmt.Errorf("sched: chain %d: there are 0 to %d", chain, len(s.chains)-1)
	case len(credits) < 1 || len(credits) > MaxTasks:
		return fmt.Errorf("sched: a chain of %d tasks: 1 to %d are possible", len(credits), MaxTasks)
	}
	for i, n := range credits {
		if n < 1 || n > MaxCredits {
			return fmt.Errorf("sched: %d credits for task %d of chain %d: 1 to %d are possible", n, i, chain, MaxCredits)
		}
	}
	c := &s.chains[chain]
	if c.placed > 0 && int(c.tasks) != len(credits) {
		return fmt.Errorf("sched: chain %d has %d tasks in other regions, not %d", chain, c.tasks, len(credits))
	}
	for _, pl := range s.plans {
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
	s.unpark(c)
	s.settle()
	return nil
}

func regionOf(chain int32, credits []int) region {
	rg := region{chain: chain, n: int32(len(credits))}
	for i := range rg.tasks {
		t := &rg.tasks[i]
		t.head, t.tail = none, none
		if i < len(credits) {
			t.total, t.free = int32(credits[i]), int32(credits[i])
		}
	}
	return rg
}

func (s *Scheduler) checkRegion(region int) error {
	if region < 0 || region >= len(s.regions) {
		return fmt.Errorf("sched: region %d: there are 0 to %d", region, len(s.regions)-1)
	}
	return nil
}

// instance is the region, if something is placed there.
func (s *Scheduler) instance(region int) (*region, error) {
	if err := s.checkRegion(region); err != nil {
		return nil, err
	}
	if s.regions[region].chain == none {
		return nil, fmt.Errorf("sched: region %d holds no chain", region)
	}
	return &s.regions[region], nil
}

func (c *chain) setOpen(open []int32) {
	c.open, c.only = open, none
	if len(open) == 1 {
		c.only = open[0]
	}
}

// Pause lets no more packets into a region. Those that wait there go to another
// instance of the chain, or are parked until there is one.
func (s *Scheduler) Pause(region int) error {
	rg, err := s.instance(region)
	if err != nil || rg.paused {
		return err
	}
	rg.paused = true
	c := &s.chains[rg.chain]
	at, _ := slices.BinarySearch(c.open, int32(region))
	c.setOpen(slices.Delete(c.open, at, at+1))
	s.leaveSeats(c, int32(region))
	// Those that are farther in the chain came first.
	for t := int(rg.n) - 1; t >= 0; t-- {
		for h := rg.tasks[t].head; h != none; {
			next := s.links[h].next
			if s.headers[h].state == waiting {
				s.dequeue(h)
				rg.load--
				s.park(c, h)
			}
			h = next
		}
	}
	s.unpark(c)
	s.settle()
	return nil
}

// Drained reports whether no packet is in the region.
func (s *Scheduler) Drained(region int) bool {
	rg, err := s.instance(region)
	return err != nil || rg.running == 0 && rg.taken == 0
}

// Remove takes the instance out of a region that is paused and drained.
func (s *Scheduler) Remove(region int) error {
	rg, err := s.instance(region)
	if err != nil {
		return err
	}
	switch {
	case !rg.paused:
		return fmt.Errorf("sched: region %d takes packets: pause it first", region)
	case !s.Drained(region):
		return fmt.Errorf("sched: %d packets are in region %d", rg.running+rg.taken, region)
	}
	c := &s.chains[rg.chain]
	*rg = regionOf(none, nil)
	if c.placed--; c.placed == 0 {
		c.seats = nil
		s.unpark(c) // those on old plans are dropped now
		s.settle()
	}
	return nil
}

// SetCredits changes how many packets a task may have at a time. When it has
// more, it gets the next when it has less.
func (s *Scheduler) SetCredits(region, task, credits int) error {
	rg, err := s.instance(region)
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
	s.serve(int32(region), task)
	s.settle()
	return nil
}

// SetRoute makes a route, or changes it under traffic: packets of which no task
// has run follow the new one, the others finish as they began.
func (s *Scheduler) SetRoute(id int, r Route) error { return s.SetRoutes([]int{id}, []Route{r}) }

// SetRoutes is SetRoute for several routes at once. Packets of all of them that follow the new ones do so in the order in which they
// arrived. With an error none is changed.
func (s *Scheduler) SetRoutes(ids []int, routes []Route) error {
	plans := make([]*plan, len(ids))
	for i, id := range ids {
		if err := s.checkRoute(id); err != nil {
			return err
		}
		pl, err := s.plan(id, routes[i])
		if err != nil {
			return err
		}
		plans[i] = pl
	}
	var old []int32
	var move []moved
	for i, id := range ids {
		rt := &s.routes[id]
		if rt.plan != none && same(s.plans[rt.plan].source, routes[i]) {
			continue
		}
		s.enter(plans[i])
		old = append(old, rt.plan)
		move = s.supersede(rt.plan, plans[i].slot, move)
		rt.plan = plans[i].slot
	}
	s.reroute(move)
	for _, pl := range old {
		s.retire(pl)
	}
	if len(old) > 0 {
		for _, id := range ids {
			s.lookAgain(int32(id))
		}
	}
	return nil
}

// RemoveRoute makes a route unknown. Packets of which no task has run are
// dropped (Gone), the others finish as they began.
func (s *Scheduler) RemoveRoute(id int) error {
	if err := s.checkRoute(id); err != nil {
		return err
	}
	old := s.routes[id].plan
	s.routes[id].plan = none
	s.reroute(s.supersede(old, none, nil))
	s.retire(old)
	s.lookAgain(int32(id))
	return nil
}

func (s *Scheduler) checkRoute(id int) error {
	if id < 0 || id >= len(s.routes) {
		return fmt.Errorf("sched: route %d: there are 0 to %d", id, len(s.routes)-1)
	}
	return nil
}

// plan checks a route and lays it flat.
func (s *Scheduler) plan(id int, r Route) (*plan, error) {
	if r.Spread > LeastLoaded {
		return nil, fmt.Errorf("sched: route %d: spread %d: there are 0 to %d", id, r.Spread, LeastLoaded)
	}
	pl := &plan{route: int32(id), current: true, spread: r.Spread, anyOrder: r.AnyOrder, back: r.Back}
	for i, stage := range r.Stages {
		if len(stage) < 1 || len(stage) > s.side {
			return nil, fmt.Errorf("sched: route %d: stage %d has %d branches: 1 to %d are possible", id, i, len(stage), s.side)
		}
		from := len(pl.branches)
		for j, branch := range stage {
			if len(branch) < 1 || len(pl.visits)+len(branch) > MaxVisits {
				return nil, fmt.Errorf("sched: route %d: branch %d of stage %d has %d visits: a route has 1 to %d in all", id, j, i, len(branch), MaxVisits)
			}
			at := len(pl.visits)
			for _, v := range branch {
				if v.Chain < 0 || v.Chain >= len(s.chains) {
					return nil, fmt.Errorf("sched: route %d: chain %d: there are 0 to %d", id, v.Chain, len(s.chains)-1)
				}
				if v.Mask == 0 {
					return nil, fmt.Errorf("sched: route %d: a visit to chain %d runs no task", id, v.Chain)
				}
				if c := &s.chains[v.Chain]; c.placed > 0 && bits.Len16(v.Mask) > int(c.tasks) {
					return nil, fmt.Errorf("sched: route %d: mask %#x of chain %d, which has %d tasks", id, v.Mask, v.Chain, c.tasks)
				}
				pl.visits = append(pl.visits, visit{chain: int32(v.Chain), mask: v.Mask})
			}
			pl.branches = append(pl.branches, span{uint8(at), uint8(len(pl.visits))})
		}
		pl.stages = append(pl.stages, span{uint8(from), uint8(len(pl.branches))})
	}
	pl.bulk = len(pl.visits) == 1
	pl.source = Route{Spread: r.Spread, AnyOrder: r.AnyOrder, Back: r.Back, Stages: make([][][]Visit, len(r.Stages))}
	for i, stage := range r.Stages {
		pl.source.Stages[i] = make([][]Visit, len(stage))
		for j, branch := range stage {
			pl.source.Stages[i][j] = slices.Clone(branch)
		}
	}
	return pl, nil
}

func same(a, b Route) bool {
	return a.Spread == b.Spread && a.AnyOrder == b.AnyOrder && a.Back == b.Back && slices.EqualFunc(a.Stages, b.Stages, func(x, y [][]Visit) bool {
		return slices.EqualFunc(x, y, slices.Equal[[]Visit])
	})
}

// moved is a packet that goes to another plan.
type moved struct {
	packet int32
	plan   int32 // none: it is dropped
}

// supersede ends the force of a plan, and adds the packets of which no task has run to those that are to go to plan now.
func (s *Scheduler) supersede(old, now int32, move []moved) []moved {
	if old == none {
		return move
	}
	s.plans[old].current = false
	left := s.plans[old].users // to be found
	s.plans[old].users++       // stays until retire
	for p := 0; left > 0; p++ {
		pk := &s.packets[p]
		if pk.plan != old || !pk.inside {
			continue
		}
		if left--; pk.begun || pk.reason != None {
			continue
		}
		for m := uint32(1)<<pk.branches - 1; m != 0; m &= m - 1 {
			s.recall(int32(p)<<s.shift | int32(bits.TrailingZeros32(m)))
		}
		pk.held = 0
		s.plans[old].users--
		pk.plan = none // so that none of its flow comes before it
		move = append(move, moved{int32(p), now})
	}
	return move
}

// reroute has packets that supersede found go to their new plans, in the order in which they arrived: whatever is served late keeps its
// flow from leaving.
func (s *Scheduler) reroute(move []moved) {
	slices.SortFunc(move, func(a, b moved) int { return cmp.Compare(s.packets[a.packet].seq, s.packets[b.packet].seq) })
	for _, m := range move {
		if m.plan == none {
			// Its plan is needed no more; only what is of the flow is.
			s.packets[m.packet].reason = Gone
			s.finish(m.packet)
			continue
		}
		s.packets[m.packet].plan = m.plan
		s.plans[m.plan].users++
		s.begin(m.packet, s.plans[m.plan])
	}
}

// retire ends what supersede began.
func (s *Scheduler) retire(old int32) {
	if old == none {
		return
	}
	if s.plans[old].users > 1 { // somebody finishes as it began, or is dropped now
		for _, v := range s.plans[old].visits {
			if c := &s.chains[v.chain]; c.placed == 0 {
				s.unpark(c)
			}
		}
	}
	s.settle()
	s.unuse(old)
}

// recall takes a header of which no task has run from where it waits.
func (s *Scheduler) recall(h int32) {
	x := &s.headers[h]
	switch x.state {
	case waiting:
		s.dequeue(h)
		s.regions[x.region].load--
	case parked:
		s.unlink(&s.chains[s.visitOf(h).chain], h)
	}
	x.state = idle
}

// unuse is called when a packet does not need its plan any more.
func (s *Scheduler) unuse(slot int32) {
	pl := s.plans[slot]
	pl.users--
	if pl.current || pl.users > 0 {
		return
	}
	s.plans[slot] = nil
	s.spare = append(s.spare, slot)
	if pl.inherits {
		at := slices.Index(s.heirs, pl)
		s.heirs = slices.Delete(s.heirs, at, at+1)
	}
}
