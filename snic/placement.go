package snic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// helpers are where a DAG may run instead: other workers, or boards of the pool.
type helpers interface {
	mayGo(now clock.Time, n int) bool // whether they may be asked for a region for a DAG
	leave(n int)                      // makes a DAG's frames wait, and sends the DAG to one of them
	// relieve is called when there is too much here, and no region left for it. relief says how much less there is without a DAG.
	relieve(now clock.Time, relief func(n int) float64)
	regionFreed()
}

// placement decides which chains are in which regions, and through which of them a DAG goes. Its many methods are about four subjects, in four
// files: launches and plans (placement.go), instances and their flows (skew.go), flows that go aside (aside.go), and a worker's time (toil.go).
// They stay in one type because each changes the plans of DAGs.
type placement struct {
	*settings
	cat    *catalog
	stock  *stock
	split  *shares
	gates  *gates
	runner *runner

	fabric   *region.Fabric
	stops    []uint32 // by region: the stop that the fabric waits for; 0: none
	log      []region.Event
	relief   relief
	toil     toil
	easeAt   clock.Time // no flows go aside, or back, before
	moved    uint64     // buckets of flows, from one instance to another
	singles  uint64     // times that one flow was too much for an instance
	lacking  bool       // a service with packets may be without a region
	active   []int32    // services with packets in this epoch
	quiet    bool       // no DAG was active when the epoch began
	epochAt  clock.Time // when the epoch ends
	sampleAt clock.Time // when tasks are looked at
	sampled  clock.Time // when they were looked at last
	rateAt   clock.Time // when rates were measured
	near     helpers
	lays     map[lay]laid // while a deployment is put in force
}

// relief describes where the packets of an overloaded task go.
type relief struct {
	task    int
	at      clock.Time
	busiest int   // the chain whose instances have most bytes for the task; -1: none has any
	movable []int // DAGs that go there and may move: without any one of them, no instance would have nine tenths of its load now
}

// newFabric is the regions of a board, free.
func (pl *placement) newFabric(now clock.Time, s settings) *region.Fabric {
	cfg := region.Default(max(s.regions, 1), s.deployment.Regions.Area)
	cfg.Bitstream = s.deployment.Regions.Bitstream
	cfg.Rate = s.rate
	cfg.Monitor = s.monitor
	pauses := slices.ContainsFunc(s.lossless[:], func(p int8) bool { return p >= 0 })
	if s.poolPort < 0 && !pauses { // in a pool a DAG would leave a board for a clump, and pauses make clumps of what came evenly
		cfg.Clump = s.monitor // the packet store and burst= have room for more than that
	}
	cfg.Patience = 0 // a task that keeps packets for long is waited for
	cfg.Idle, cfg.Keep = s.idle, float64(s.victims)/100
	cfg.Helps, cfg.Spares = pl.helps, pl.spares
	f, err := region.New(now, cfg)
	if err != nil {
		panic(fmt.Sprintf("snic: regions that were checked: %v", err))
	}
	if s.regions == 0 {
		f.Fail(now, 0) // other workers have all regions
	}
	return f
}

// list notes that a DAG has packets in this epoch.
func (pl *placement) list(c *graph.Ctx, dag int32) {
	d := &pl.cat.services[dag]
	if d.listed {
		return
	}
	d.listed = true
	if pl.quiet { // the epoch is long
		pl.quiet = false
		pl.epochAt = min(pl.epochAt, c.Now().Add(pl.epoch))
		c.Wake(pl.epochAt)
	}
	pl.active = append(pl.active, dag)
}

// recredit gives tasks in regions the credits of the deployment.
func (pl *placement) recredit() {
	for r, n := range pl.cat.placed {
		if n < 0 {
			continue
		}
		for i, k := range pl.cat.credits(int(n)) {
			_ = pl.runner.sched.SetCredits(r, i, k) // they are there
		}
	}
}

// deployChains tells the fabric which chains, as bitstreams, the deployment has.
func (pl *placement) deployChains(now clock.Time, numbers []int) error {
	all, err := pl.deployment.Chains(0)
	if err != nil {
		return err
	}
	for i := range pl.cat.chains {
		ch := &pl.cat.chains[i]
		if !ch.known {
			ch.rests = ch.rests && pl.runner.sched.Visits(i)
			continue
		}
		at := slices.IndexFunc(all, func(x dag.Chain) bool { return ch.is(x.Tasks, numbers) })
		if at < 0 || ch.Area != all[at].Area || ch.Bitstream != all[at].Bitstream {
			ch.ends = true
			pl.fabric.Remove(now, i)
			continue
		}
	}
	for _, x := range all {
		n := fitting(pl.cat.chains, func(ch *chain) bool { return !ch.known && !ch.rests }, func(ch *chain) bool { return !ch.ends && ch.is(x.Tasks, numbers) })
		if n < 0 {
			if n = len(pl.cat.chains); n == maxChains {
				return errors.New("too many chains come and go")
			}
			pl.cat.chains = append(pl.cat.chains, chain{})
		}
		ch := &pl.cat.chains[n]
		ch.Chain = x
		if ch.known {
			continue
		}
		*ch = chain{Chain: x, known: true}
		for _, t := range x.Tasks {
			ch.tasks = append(ch.tasks, numbers[t])
		}
		if err := pl.fabric.Add(n, region.Chain{Area: x.Area, Bitstream: x.Bitstream, Tasks: ch.tasks, Save: x.State, Endpoint: x.Endpoint}); err != nil {
			return err
		}
	}
	return nil
}

func (pl *placement) unroute(n int) {
	s := &pl.cat.services[n]
	s.visits, s.aside = nil, nil // what is in the middle of it has nowhere to go, too
	for i := range 2 {
		_ = pl.runner.sched.RemoveRoute(2*n + i) // there may be none
		for _, at := range s.others() {
			_ = pl.runner.sched.RemoveRoute(at + 2*n + i)
		}
	}
	s.twin, s.split = false, false
}

// others are the numbers at which further routes of a DAG begin, besides the first ones.
func (s *service) others() (at []int) {
	if s.twin {
		at = append(at, inLine)
	}
	if s.split {
		at = append(at, besides)
		if s.twin {
			at = append(at, besides+inLine)
		}
	}
	return at
}

// plan decides through which chains a DAG goes, and has those launched that are
// in no region: before demand, or because packets came.
func (pl *placement) plan(now clock.Time, n int, pre bool) {
	s := &pl.cat.services[n]
	if s.elsewhere() {
		return
	}
	s.away, s.refused = false, false
	if pre && !pl.ahead && s.visits == nil {
		pl.unroute(n)
		s.missing = true
		return
	}
	visits := slices.Clone(s.best)
	ok := false
	if visits != nil {
		switch pl.launch(now, visits, region.Demand{Pre: pre, NoPeer: !pl.near.mayGo(now, n)}) {
		case region.ShareRunning:
			ok = true
		case region.Remote:
			if visits = cover(s.tasks, pl.cat.candidates(false)); visits == nil {
				pl.near.leave(n)
				return
			}
			ok = true
		case region.Endpoint:
			s.away = true
			return
		}
	}
	if !ok {
		// Through several chains that are there already, tasks skipped.
		if visits = cover(s.tasks, pl.cat.candidates(false)); visits == nil {
			s.missing, s.refused = true, !pre
			if s.refused || s.visits == nil {
				pl.unroute(n) // what waits would do so forever
			}
			return
		}
	}
	pl.follow(n, visits)
}

// launch brings the chains of visits into regions, and makes the visits follow them. It
// returns ShareRunning if all chains are in regions, or will be; otherwise the fabric's
// first choice that is neither.
func (pl *placement) launch(now clock.Time, visits []sched.Visit, d region.Demand) region.Choice {
	for i := range visits {
		v := &visits[i]
		d.Chain = v.Chain
		switch dec := pl.fabric.Launch(now, d); dec.Choice {
		case region.ShareRunning, region.Revive:
			v.Chain, v.Mask = dec.Chain, pl.cat.masked(pl.cat.chains[v.Chain].tasks, v.Mask, dec.Chain)
		case region.LoadFree, region.Switch, region.Wait:
			pl.cat.chains[v.Chain].asked = true
		default:
			return dec.Choice
		}
	}
	return region.ShareRunning
}

// follow makes the packets of a DAG take visits from now on.
func (pl *placement) follow(n int, visits []sched.Visit) {
	s := &pl.cat.services[n]
	s.visits, s.spread, s.aside = visits, pl.cat.spread(s), nil
	pl.cat.skewed(s)
	s.bulk = len(visits) == 1 && !pl.panics && pl.pass == 0
	s.missing = false
	for _, v := range visits {
		ch := &pl.cat.chains[v.Chain]
		s.missing = s.missing || len(ch.running) == 0 && !ch.asked
		for i, t := range ch.tasks {
			if v.Mask&(1<<i) != 0 && (pl.cat.tasks[t].modelled || pl.cat.tasks[t].holds) {
				s.bulk = false
			}
		}
	}
	if s.elsewhere() {
		s.bulk, s.width, s.missing = false, 0, false
		return // later
	}
	if s.split { // packets may be on both
		pl.setRoutes(n, visits, 0, besides)
	} else {
		pl.setRoutes(n, visits, 0)
	}
}

// lay identifies a DAG's way through visits, among those of a deployment: DAGs of the same order share their stages.
type lay struct {
	stages *[][]int
	visits string
}

// laid is such a way: one task after the other, there and back, and if width is not 0 in stages, too, as catalog.lay says.
type laid struct {
	line, routes  [2][][][]sched.Visit
	width, copies int
}

// lay is the way of a DAG through visits. While a deployment is put in force, it is made once for all DAGs that have it in common.
func (pl *placement) lay(s *service, visits []sched.Visit) laid {
	var k lay
	if pl.lays != nil && len(s.stages) > 0 {
		var b []byte
		for _, v := range visits {
			b = binary.LittleEndian.AppendUint16(binary.AppendUvarint(b, uint64(v.Chain)), v.Mask)
		}
		k = lay{&s.stages[0], string(b)}
		if x, ok := pl.lays[k]; ok {
			s.width, s.copies = x.width, x.copies
			return x
		}
	}
	var x laid
	for _, v := range visits {
		x.line[0] = append(x.line[0], [][]sched.Visit{{v}})
		for i := range pl.cat.chains[v.Chain].tasks {
			if v.Mask&(1<<i) != 0 {
				x.line[1] = append([][][]sched.Visit{{{{Chain: v.Chain, Mask: 1 << i}}}}, x.line[1]...)
			}
		}
	}
	x.routes[0], x.routes[1], s.width = pl.cat.lay(s, visits)
	x.width, x.copies = s.width, s.copies
	if k.stages != nil {
		pl.lays[k] = x
	}
	return x
}

// setRoutes makes the routes of a DAG that begin at each number of from lead through visits.
func (pl *placement) setRoutes(n int, visits []sched.Visit, from ...int) {
	s := &pl.cat.services[n]
	x := pl.lay(s, visits)
	routes := &x.line
	if s.width > 0 {
		routes = &x.routes
		s.bulk, s.twin = false, true
	}
	ids, all := make([]int, 0, 4*len(from)), make([]sched.Route, 0, 4*len(from))
	set := func(at int, stages [][][]sched.Visit, back bool) {
		ids, all = append(ids, at), append(all, sched.Route{Stages: stages, Spread: s.spread, Back: back})
	}
	for _, first := range from {
		for i := range 2 {
			set(first+2*n+i, routes[i], i > 0)
			if s.twin { // packets may be on it
				set(first+inLine+2*n+i, x.line[i], i > 0)
			}
		}
	}
	if err := pl.runner.sched.SetRoutes(ids, all); err != nil {
		panic(fmt.Sprintf("snic: a route that was planned: %v", err))
	}
}

// find is called for packets of a DAG that no region serves; it reports whether
// they may wait for one.
func (pl *placement) find(c *graph.Ctx, n int) bool {
	s := &pl.cat.services[n]
	if s.elsewhere() {
		return true
	}
	if s.refused && c.Now() < s.again {
		return false
	}
	pl.plan(c.Now(), n, false)
	s.again = c.Now().Add(pl.monitor / 8)
	pl.events(c)
	return !s.away && !s.refused
}

// events carries out the decisions of the fabric.
func (pl *placement) events(c *graph.Ctx) {
	for {
		events := pl.fabric.Events()
		if len(events) == 0 {
			return
		}
		// Other calls of the fabric leave the slice alone.
		for _, e := range events {
			pl.event(c, e)
		}
	}
}

func (pl *placement) event(c *graph.Ctx, e region.Event) {
	if e.Kind == region.Overload {
		pl.overload(c.Now(), e)
		return
	}
	pl.note(e)
	switch e.Kind {
	case region.Run:
		ch := &pl.cat.chains[e.Chain]
		pl.seat(e.Chain)
		if err := pl.runner.sched.Place(e.Region, e.Chain, pl.cat.credits(e.Chain)); err != nil {
			panic(fmt.Sprintf("snic: region %d: %v", e.Region, err))
		}
		pl.cat.placed[e.Region] = int32(e.Chain)
		for i, t := range ch.tasks {
			pl.runner.wait[e.Region*sched.MaxTasks+i].task = int32(t)
		}
		ch.running = append(ch.running, e.Region)
		ch.asked = false
		pl.split.capacities()
		pl.reroute(e.Cause == region.Scaled)
	case region.Stop:
		pl.stops[e.Region] = e.Seq
		pl.close(e.Region)
		pl.settle(c.Now())
	case region.Evict, region.Revoke:
		pl.cat.chains[e.Chain].asked = e.Kind == region.Revoke && e.Cause == region.OnDemand
		pl.reroute(false)
	case region.Share:
		pl.cat.chains[e.Chain].asked = false
		pl.reroute(true)
	case region.Refuse:
		pl.cat.chains[e.Chain].asked = false
		for n := range pl.cat.services {
			if pl.cat.uses(n, e.Chain) {
				pl.unroute(n)
				pl.cat.services[n].missing = true
			}
		}
	case region.Freed:
		pl.near.regionFreed()
		for n := range pl.cat.services {
			if s := &pl.cat.services[n]; s.away || s.refused {
				s.away, s.refused, s.missing = false, false, true
			}
		}
	case region.Gone:
		pl.cat.chains[e.Chain].ends = true
		for n := range pl.cat.services {
			if pl.cat.uses(n, e.Chain) {
				pl.cat.services[n].visits = nil
				pl.plan(e.At, n, pl.runner.waits[n] == 0)
			}
		}
		pl.cat.chains[e.Chain] = chain{rests: pl.runner.sched.Visits(e.Chain)}
	}
}

// close stops packets from going into a region.
func (pl *placement) close(r int) {
	ch := &pl.cat.chains[pl.cat.placed[r]]
	if i := slices.Index(ch.running, r); i >= 0 {
		ch.running = slices.Delete(ch.running, i, i+1)
	}
	_ = pl.runner.sched.Pause(r) // it is placed
	pl.reroute(false)
}

// settle tells the fabric which regions have stopped: those that it closed and that are empty now.
func (pl *placement) settle(now clock.Time) {
	for r, seq := range pl.stops {
		if seq != 0 && pl.runner.sched.Drained(r) {
			pl.stops[r] = 0
			if err := pl.runner.sched.Remove(r); err != nil {
				panic(fmt.Sprintf("snic: region %d: %v", r, err))
			}
			pl.cat.placed[r] = -1
			for i := range sched.MaxTasks {
				pl.runner.wait[r*sched.MaxTasks+i].busy = 0
			}
			pl.split.capacities()
			pl.fabric.Stopped(now, r, seq)
		}
	}
}

// reroute looks at the plans again after chains came or went. A DAG gets another way
// when it must, when that takes fewer visits, or, with scaled, when the other way has less load.
func (pl *placement) reroute(scaled bool) {
	pl.cat.weighAll()
	candidates := pl.cat.candidates(false)
	var idle map[*[][]int]choice
	for n := range pl.cat.services {
		s := &pl.cat.services[n]
		if s.UID == 0 || s.visits == nil {
			continue
		}
		if s.aside != nil && !pl.cat.running(s.aside.visits) {
			pl.together(n)
		}
		here := true
		for _, v := range s.visits {
			ch := &pl.cat.chains[v.Chain]
			here = here && (len(ch.running) > 0 || ch.asked)
		}
		moved := false
		if !here || scaled || len(s.visits) > 1 {
			pl.cat.weigh(n, s.visits, -1)
			better := func(now []sched.Visit) bool {
				return now != nil && (!here || len(now) < len(s.visits)) || scaled && len(now) == len(s.visits) && pl.cat.dear(n, now) < pl.cat.dear(n, s.visits)
			}
			if better(pl.cheapest(n, candidates, &idle)) {
				if now := pl.cat.cheapest(n, candidates); better(now) {
					moved = true
					pl.follow(n, now)
				}
			}
			pl.cat.weigh(n, s.visits, 1)
		}
		if !moved {
			s.missing = !here && !s.elsewhere()
			pl.lacking = pl.lacking || s.missing && pl.runner.waits[n] > 0
		}
	}
}

// choice is the cheapest plan of a DAG.
type choice struct{ visits []sched.Visit }

// cheapest is catalog.cheapest, for a DAG that is not weighed now. DAGs for which nothing comes, and that have the same order, share one plan, though others
// have changed theirs since it was made: there may be thousands of them.
func (pl *placement) cheapest(n int, candidates []dag.Candidate, idle *map[*[][]int]choice) []sched.Visit {
	s := &pl.cat.services[n]
	if pl.cat.mainly(s) != 0 || len(s.stages) == 0 {
		return pl.cat.cheapest(n, candidates)
	}
	if x, ok := (*idle)[&s.stages[0]]; ok {
		return x.visits
	}
	if *idle == nil {
		*idle = map[*[][]int]choice{}
	}
	x := choice{pl.cat.cheapest(n, candidates)}
	(*idle)[&s.stages[0]] = x
	return x.visits
}

// spares reports whether DAGs would find room without one of the instances of a chain.
func (pl *placement) spares(id int) bool {
	pl.cat.weighAll()
	defer pl.cat.weighAll()
	room := func(chain, instances int) bool {
		return float64(slices.Max(pl.cat.chains[chain].load)) <= region.Under*float64(pl.monitor)*float64(instances)
	}
	if k := len(pl.cat.chains[id].running); k > 1 {
		return room(id, k-1) && pl.runner.sched.Instances().Spare(id, region.Under*float32(pl.monitor))
	}
	candidates := slices.DeleteFunc(pl.cat.candidates(false), func(c dag.Candidate) bool { return int(c.Chain) == id })
	for n := range pl.cat.services {
		s := &pl.cat.services[n]
		if pl.cat.lately(s) == 0 || !pl.cat.uses(n, id) {
			continue
		}
		pl.cat.weigh(n, s.visits, -1)
		now := pl.cat.cheapest(n, candidates)
		if now == nil {
			return false
		}
		pl.cat.weigh(n, now, 1)
		for _, v := range now {
			if !room(v.Chain, len(pl.cat.chains[v.Chain].running)) {
				return false
			}
		}
	}
	return true
}

// helps reports whether one more instance of a chain would take load from the busiest
// instances of an overloaded task. An instance of the same chain would. One of another chain that
// runs already would not. One of a new chain would if a DAG would go there that leaves some load
// behind, but not all.
func (pl *placement) helps(id, task int) bool {
	r := &pl.relief
	if r.task != task || r.at != pl.cat.seen {
		pl.cat.weighAll()
		*r = relief{task: task, at: pl.cat.seen, busiest: -1, movable: r.movable[:0]}
		bytes := make([]int64, len(pl.cat.chains)) // of the task
		for n := range pl.cat.services {
			pl.cat.carried(n, task, func(chain int, v int64) { bytes[chain] += v })
		}
		each := func(chain int) int64 {
			mean := float64(bytes[chain]) / float64(len(pl.cat.chains[chain].running))
			return int64(mean * pl.unlike(chain))
		}
		for i, v := range bytes {
			if v > 0 && len(pl.cat.chains[i].running) > 0 && (r.busiest < 0 || each(i) > each(r.busiest)) {
				r.busiest = i
			}
		}
		for n := range pl.cat.services {
			pl.cat.carried(n, task, func(chain int, v int64) {
				if chain == r.busiest && max((bytes[chain]-v)/int64(len(pl.cat.chains[chain].running)), v) < each(chain)*9/10 {
					r.movable = append(r.movable, n)
				}
			})
		}
	}
	switch {
	case r.busiest < 0:
		return true
	case id < 0 || !pl.crowded(r.busiest, task):
		return false
	case id == r.busiest:
		return pl.parts(id, task)
	}
	if ch := &pl.cat.chains[id]; len(ch.running) > 0 || ch.asked {
		return false
	}
	candidates := append(pl.cat.candidates(false), pl.cat.candidate(id))
	for _, n := range r.movable {
		visits := pl.cat.services[n].visits
		pl.cat.weigh(n, visits, -1)
		now := pl.cat.cheapest(n, candidates)
		pl.cat.weigh(n, visits, 1)
		if len(now) <= len(visits) && slices.ContainsFunc(now, func(v sched.Visit) bool { return v.Chain == id && pl.cat.has(v, task) }) {
			return true
		}
	}
	return false
}

// seek finds regions for packets that are inside and have lost theirs.
func (pl *placement) seek(c *graph.Ctx) {
	for pl.lacking {
		pl.lacking = false
		for n := range pl.cat.services {
			if s := &pl.cat.services[n]; s.missing && pl.runner.waits[n] > 0 {
				pl.find(c, n)
			}
		}
	}
}

// loads adds bytes that came for a DAG in an epoch to the demand of the regions of visits.
func (pl *placement) loads(s *service, visits []sched.Visit, bytes int64) {
	for _, v := range visits {
		ch := &pl.cat.chains[v.Chain]
		for i, t := range ch.tasks {
			if v.Mask&(1<<i) == 0 || s.where.to != 0 {
				continue
			}
			k := int64(len(ch.running))
			if s.byFlow && k > 0 {
				continue // as it came
			}
			for _, r := range ch.running {
				pl.fabric.Load(r, t, bytes/k)
			}
			if k == 0 {
				pl.fabric.Load(-1, t, bytes)
			}
		}
	}
}

// endEpoch closes the measurements of an epoch.
func (pl *placement) endEpoch(now clock.Time) {
	for _, n := range pl.active {
		s := &pl.cat.services[n]
		if a := s.aside; a != nil {
			pl.loads(s, s.visits, s.arrived-a.arrived)
			pl.loads(s, a.visits, a.arrived)
			a.arrived = 0
		} else {
			pl.loads(s, s.visits, s.arrived)
		}
		fade := pl.cat.fade(now.Sub(s.recentAt))
		s.recent = s.recent*fade + float64(s.arrived)
		pl.toils(s, fade)
		s.recentAt = now
		s.arrived, s.listed = 0, false
		s.lodge.reckon()
	}
	if d := now.Sub(pl.rateAt); d >= rateEvery {
		for i := range pl.cat.services {
			s := &pl.cat.services[i]
			s.rate = float64(s.bytes-s.counted) / d.Seconds()
			s.counted = s.bytes
			l := &s.lodge
			l.rate = float64(l.bytes-l.counted) / d.Seconds()
			l.counted = l.bytes
		}
		pl.rateAt = now
	}
	active := len(pl.active)
	pl.quiet = active == 0 && pl.stock.inside == 0
	pl.active = pl.active[:0]
	if now >= pl.sampleAt {
		// Not every epoch: the task of a slow DAG gets no packet in most of them, and would
		// look overloaded in the others alone.
		pl.balance(now.Sub(pl.sampled))
		pl.ease(now, now.Sub(pl.sampled))
		pl.toiled(now, now.Sub(pl.sampled))
		pl.sampled = now
		pl.pressed(now)
		pl.fabric.Sample(now)
		pl.sampleAt = now.Add(pl.monitor / samples)
	}
	if pl.split.fair != nil && now >= pl.split.fair.Next() {
		pl.split.holdMemory()
		pl.split.supply(now)
		_ = pl.split.fair.Epoch(now) // capacities and weights are checked; limits stay on error
		pl.split.exchange(now)
		pl.split.weighMemory(now)
		pl.split.recall(now)
	}
	pl.epochAt = now.Add(max(pl.epoch, clock.Duration(active)*share))
	if pl.quiet {
		// Nothing came that could be measured, which monitors must learn, too.
		pl.epochAt = now.Add(max(pl.epoch, pl.monitor/8))
		if pl.split.whole.busy {
			pl.epochAt = min(pl.epochAt, now.Add(max(pl.epoch, exchangeEvery))) // others are there
		}
	}
}

// note keeps an event of a region, to be shown to people.
func (pl *placement) note(e region.Event) {
	if len(pl.log) == cap(pl.log) {
		pl.log = pl.log[:copy(pl.log, pl.log[cap(pl.log)/2:])]
	}
	pl.log = append(pl.log, e)
}

// pressed ends a sample of the tenants that were asked to send less. A tenant that must still pause is in the next sample, too.
func (pl *placement) pressed(now clock.Time) {
	gt := pl.gates
	if !gt.anyAskedToSlow() {
		return
	}
	pl.waitings(now)
	gt.marked = gt.marked[:0]
	if gt.pauses == nil {
		return
	}
	for _, p := range gt.pauses {
		if p != nil {
			p.strains = append(p.strains[:0], p.tenants...)
		}
	}
}
