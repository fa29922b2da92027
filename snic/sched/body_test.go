package sched

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// chooser decides what happens: 0 to n-1.
type chooser interface{ pick(n int) int }

type byRapid struct{ t *rapid.T }

func (r byRapid) pick(n int) int {
	if n <= 1 {
		return 0
	}
	return rapid.IntRange(0, n-1).Draw(r.t, "pick")
}

// byBytes takes decisions from a fuzzer's bytes, then 0.
type byBytes struct{ b []byte }

func (c *byBytes) pick(n int) int {
	if len(c.b) == 0 {
		return 0
	}
	v := int(c.b[0]) % max(n, 1)
	c.b = c.b[1:]
	return v
}

// told is a run by its packet and branch.
type told struct {
	Run
	Packet, Branch int
}

func next(s *Scheduler) (told, bool) {
	r, ok := s.Next()
	return told{r, r.Lane >> s.road.shift, r.Lane & (1<<s.road.shift - 1)}, ok
}

// lane is that of a packet in a branch.
func lane(s *Scheduler, packet, branch int) int { return packet<<s.road.shift | branch }

// exec is a run in a region of the body: tasks leave it one by one.
type exec struct {
	told
	flow  int
	left  uint16
	drop  bool
	owing uint16 // credits that were not given back
	kept  bool   // by the last task of left
	over  uint16 // of owing, those that it got after it was kept, whoever had the others
}

// parcel is what the model knows of a packet, from outside.
type parcel struct {
	id, route, flow, tenant, bytes int // the flow with its direction
	seq                            int // of arrival
	plan                           *Route
	begun                          bool
	stage                          int
	branches                       []place
	dropped, finished              bool
	gone                           bool // on a plan that is not in force
	done                           []string
	order, perFlow                 bool
}

type place struct {
	visit int
	rest  uint16
	out   bool
	end   bool
	kept  bool // when it came back
}

type instance struct {
	chain   int
	paused  bool
	credits []int
	out     []int
	over    []int // of these, what packets got that had been kept
}

// body drives a scheduler as a board would, in an order that a chooser decides,
// and follows by itself, slowly and from outside, what may happen.
type body struct {
	t       testing.TB
	c       chooser
	s       *Scheduler
	conf    Config
	lengths []int // tasks of each chain
	regions []instance
	routes  []*Route
	inside  map[int]*parcel
	flows   map[int][]*parcel // tracked, by arrival, that have not left
	execs   []exec
	taken   []exec // of Take; left is how many
	last    map[string]int
	results map[int]string
	seq     int
	stored  int

	arrived, left, dropped, refused int
	together                        int    // of arrived, those that began at once
	seed                            uint64 // of TestManyRuns, to run it again
}

const bodyFlows = 4

func newBody(t testing.TB, c chooser, panic bool) *body {
	b := &body{t: t, c: c, inside: map[int]*parcel{}, flows: map[int][]*parcel{}, last: map[string]int{}, results: map[int]string{}}
	b.conf = Config{Packets: 12, Store: 4000, Regions: 5, Chains: 3, Routes: 3, Tenants: 2, Branches: 3, Panic: panic, Seed: 1}
	var err error
	if b.s, err = New(b.conf); err != nil {
		t.Fatal(err)
	}
	for range b.conf.Chains {
		b.lengths = append(b.lengths, 1+c.pick(4))
	}
	b.regions = make([]instance, b.conf.Regions)
	for i := range b.regions {
		b.regions[i].chain = -1
	}
	b.routes = make([]*Route, b.conf.Routes)
	for i := range b.routes {
		b.setRoute(i, b.someRoute())
	}
	for i := range b.conf.Chains {
		b.place(i, i)
	}
	return b
}

func (b *body) fatalf(format string, args ...any) {
	b.t.Helper()
	b.t.Fatalf("seed %d: %s", b.seed, fmt.Sprintf(format, args...))
}

const tracing = false

func (b *body) trace(format string, args ...any) {
	if tracing {
		b.t.Logf(format, args...)
	}
}

func (b *body) must(err error) {
	b.t.Helper()
	if err != nil {
		b.fatalf("%v", err)
	}
}

func (b *body) someRoute() *Route {
	r := &Route{Spread: Spread([]int{0, 0, 0, 1, 2}[b.c.pick(5)])}
	r.AnyOrder = r.Spread != PerFlow && b.c.pick(3) == 0
	r.Back = b.c.pick(3) == 0
	stages := b.c.pick(4)
	if b.c.pick(3) == 0 {
		stages = 1
	}
	for range stages {
		var st [][]Visit
		for range 1 + max(0, b.c.pick(4)-1) {
			var br []Visit
			for range 1 + b.c.pick(3)/2 {
				ch := b.c.pick(len(b.lengths))
				full := 1<<b.lengths[ch] - 1
				mask := full
				if b.c.pick(2) == 0 {
					mask = 1 + b.c.pick(full)
				}
				br = append(br, Visit{ch, uint16(mask)})
			}
			st = append(st, br)
		}
		r.Stages = append(r.Stages, st)
	}
	return r
}

func (b *body) place(region, ch int) {
	in := instance{chain: ch, out: make([]int, b.lengths[ch]), over: make([]int, b.lengths[ch])}
	for range b.lengths[ch] {
		in.credits = append(in.credits, 1+b.c.pick(3))
	}
	if b.c.pick(2) == 0 {
		b.s.Instances().Seat(ch)
	}
	b.must(b.s.Place(region, ch, in.credits))
	b.regions[region] = in
}

func (b *body) setRoute(id int, r *Route) {
	b.drain()
	if r == nil {
		b.must(b.s.RemoveRoute(id))
	} else {
		b.must(b.s.SetRoute(id, *r))
	}
	old := b.routes[id]
	if old != nil && r != nil && same(*old, *r) {
		return
	}
	b.routes[id] = r
	for _, p := range b.inside {
		if p.route != id || p.finished {
			continue
		}
		switch {
		case p.begun || p.gone && p.dropped:
			p.gone = true
		case r == nil:
			p.gone, p.dropped, p.finished = true, true, true
		default:
			b.start(p, r)
		}
	}
}

func (b *body) start(p *parcel, r *Route) {
	p.plan, p.stage, p.perFlow, p.done = r, 0, r.Spread == PerFlow, nil
	b.enter(p)
}

func (b *body) enter(p *parcel) {
	p.branches = nil
	if p.stage == len(p.plan.Stages) {
		p.finished = true
		return
	}
	for _, br := range p.plan.Stages[p.stage] {
		p.branches = append(p.branches, place{rest: br[0].Mask})
	}
}

func (b *body) arrive(route, flow, bytes int) {
	id, why := b.s.Arrive(route, bytes, uint64(flow), flow&1)
	b.came(id, why, route, flow, bytes)
}

// arriveTogether has packets of a route arrive one after the other, those that can with credits that are kept ready.
func (b *body) arriveTogether(route, n int) {
	runs := slices.Clone(b.s.Open(route, 1+b.c.pick(6)))
	if runs == nil {
		return
	}
	for range n {
		flow, bytes := b.c.pick(bodyFlows), b.c.pick(4)*200
		id, started, why := b.s.Start(bytes, uint64(flow), flow&1)
		b.came(id, why, route, flow, bytes)
		if !started {
			continue
		}
		if why != None || len(runs) != len(b.inside[id].branches) {
			b.fatalf("packet %d begins with %d runs: %v", id, len(runs), why)
		}
		for i, r := range runs {
			if r.Lane != i {
				b.fatalf("run %d is in branch %d", i, r.Lane)
			}
			r.Lane = lane(b.s, id, i)
			b.runs(told{r, id, i})
		}
		b.together++
	}
	b.s.Close()
}

// came notes what became of a packet that arrived.
func (b *body) came(id int, why Reason, route, flow, bytes int) {
	b.t.Helper()
	tenant := flow & 1
	switch {
	case b.routes[route] == nil:
		if why != UnknownRoute {
			b.fatalf("a packet for route %d, which is unknown: %v", route, why)
		}
	case len(b.inside) == b.conf.Packets:
		if why != NoDescriptor {
			b.fatalf("packet %d of %d: %v", len(b.inside)+1, b.conf.Packets, why)
		}
	case b.stored+bytes > b.conf.Store:
		if why != StoreFull {
			b.fatalf("%d bytes on %d of %d: %v", bytes, b.stored, b.conf.Store, why)
		}
	case why != None:
		b.fatalf("refused: %v", why)
	}
	if why != None {
		b.refused++
		return
	}
	if b.inside[id] != nil {
		b.fatalf("two packets %d", id)
	}
	b.seq++
	b.trace("arrive %d seq %d route %d %+v flow %d", id, b.seq, route, *b.routes[route], flow)
	b.arrived++
	b.stored += bytes
	if flow *= 2; b.routes[route].Back {
		flow++
	}
	p := &parcel{id: id, route: route, flow: flow, tenant: tenant, bytes: bytes, seq: b.seq}
	p.order = b.routes[route].Spread == PerFlow || !b.routes[route].AnyOrder
	b.inside[id] = p
	if p.order {
		b.flows[flow] = append(b.flows[flow], p)
	}
	b.start(p, b.routes[route])
}

// next takes one run.
func (b *body) next() bool {
	run, ok := next(b.s)
	if ok {
		b.runs(run)
	}
	return ok
}

// runs begins a run, and checks that it is allowed.
func (b *body) runs(run told) {
	p := b.inside[run.Packet]
	if p == nil || p.finished || run.Branch >= len(p.branches) {
		b.fatalf("run %+v of a packet that is not there", run)
	}
	br := &p.branches[run.Branch]
	in := &b.regions[run.Region]
	v := p.plan.Stages[p.stage][run.Branch][br.visit]
	switch {
	case br.out || br.end:
		b.fatalf("run %+v: the branch is out, or done", run)
	case in.chain != v.Chain || in.paused && !br.kept:
		b.fatalf("run %+v in a region with chain %d (paused: %v), for a visit to %d", run, in.chain, in.paused, v.Chain)
	case run.Mask == 0 || run.Mask&^br.rest != 0 || run.Mask&-run.Mask != br.rest&-br.rest || run.Mask != br.rest&(1<<bits.Len16(run.Mask)-1):
		b.fatalf("run %+v of what is left, %#x", run, br.rest)
	case b.conf.Panic && bits.OnesCount16(run.Mask) != 1:
		b.fatalf("run %+v of several tasks", run)
	}
	over := uint16(0)
	if br.kept {
		over, br.kept = run.Mask, false
	}
	for m := run.Mask; m != 0; m &= m - 1 {
		t := bits.TrailingZeros16(m)
		if over != 0 {
			in.over[t]++
		}
		if in.out[t]++; over == 0 && in.out[t] > in.credits[t]+in.over[t] {
			b.fatalf("run %+v: task %d has %d credits", run, t, in.credits[t])
		}
	}
	if p.perFlow && p.order {
		for _, q := range b.flows[p.flow] {
			if q == p {
				break
			}
			if !q.finished && !q.gone && q.plan != p.plan {
				b.fatalf("run %+v: packet %d before it in its flow is inside with another plan", run, q.id)
			}
		}
	}
	b.trace("next %+v seq %d", run, p.seq)
	p.begun = true
	br.out = true
	br.rest &^= run.Mask
	b.execs = append(b.execs, exec{told: run, flow: p.flow, left: run.Mask, owing: run.Mask, over: over})
	if over != 0 && p.perFlow {
		// Those of its flow that came behind it are behind it in the region, though they were told before.
		var at []int
		var of []exec
		for i, f := range b.execs {
			if q := b.inside[f.Packet]; f.Region == run.Region && f.flow == p.flow && f.Branch == run.Branch && q.branches[f.Branch].visit == br.visit {
				at, of = append(at, i), append(of, f)
			}
		}
		slices.SortStableFunc(of, func(x, y exec) int { return b.inside[x.Packet].seq - b.inside[y.Packet].seq })
		for k, i := range at {
			b.execs[i] = of[k]
		}
	}
}

func (b *body) drain() {
	for b.next() {
	}
}

// step lets an exec get on by one task, or return.
func (b *body) step(i int) {
	e := &b.execs[i]
	p := b.inside[e.Packet]
	if e.left == 0 || e.drop {
		for j := range b.execs[:i] {
			if f := &b.execs[j]; b.conf.Panic && f.Region == e.Region && f.flow == e.flow && f.Mask == e.Mask {
				b.step(j) // this one first
				return
			}
		}
		b.back(i)
		return
	}
	t := bits.TrailingZeros16(e.left)
	for j := range b.execs[:i] {
		if f := &b.execs[j]; f.Region == e.Region && f.flow == e.flow && !f.drop && f.left&(1<<t) != 0 {
			b.step(j) // this one first
			return
		}
	}
	if !e.kept && e.owing&(1<<t) != 0 && b.c.pick(6) == 0 {
		b.s.Keep(e.Lane, t)
		b.trace("seq %d branch %d is kept by task %d of region %d", p.seq, e.Branch, t, e.Region)
		b.release(e, e.owing)
		p.branches[e.Branch].rest |= e.left &^ (1 << t)
		e.left, e.kept = 1<<t, true
		return
	}
	e.left &^= 1 << t
	b.trace("seq %d branch %d leaves task %d of region %d", p.seq, e.Branch, t, e.Region)
	if p.perFlow && p.order {
		key := fmt.Sprintf("flow %d plan %p stage %d branch %d visit %d task %d", p.flow, p.plan, p.stage, e.Branch, p.branches[e.Branch].visit, t)
		if b.last[key] > p.seq {
			b.fatalf("%s: packet %d after packet %d", key, p.seq, b.last[key])
		}
		b.last[key] = p.seq
	}
	v := p.plan.Stages[p.stage][e.Branch][p.branches[e.Branch].visit]
	p.done = append(p.done, fmt.Sprintf("%d.%d.%d:%d/%d", p.stage, e.Branch, p.branches[e.Branch].visit, v.Chain, t))
	// What a task drops depends on the packet alone.
	e.drop = (p.seq*7+v.Chain*3+t*5)%13 == 0
	if e.kept {
		if !b.conf.Panic {
			b.back(i) // at once
			b.drain()
		}
		return
	}
	if b.c.pick(2) == 0 {
		b.s.Release(e.Lane, t)
		b.release(e, 1<<t)
	}
}

// release notes that credits of an exec are back.
func (b *body) release(e *exec, tasks uint16) {
	in := &b.regions[e.Region]
	for m := tasks; m != 0; m &= m - 1 {
		t := bits.TrailingZeros16(m)
		in.out[t]--
		if e.over&(1<<t) != 0 {
			in.over[t]--
		}
	}
	e.owing, e.over = e.owing&^tasks, e.over&^tasks
}

func (b *body) back(i int) {
	e := b.returns(i)
	b.s.Return(e.Lane, e.drop)
}

// backAll has several execs that are at their end come back together.
func (b *body) backAll() {
	if b.conf.Panic {
		return
	}
	var lanes []int32
	for i := 0; i < len(b.execs); {
		if e := &b.execs[i]; e.left != 0 || e.drop || b.c.pick(4) == 0 {
			i++
			continue
		}
		lanes = append(lanes, int32(b.returns(i).Lane))
	}
	b.s.ReturnAll(lanes)
}

// returns notes that an exec comes back.
func (b *body) returns(i int) exec {
	e := b.execs[i]
	b.execs = slices.Delete(b.execs, i, i+1)
	b.release(&e, e.owing)
	p := b.inside[e.Packet]
	b.trace("seq %d branch %d returns, dropped: %v", p.seq, e.Branch, e.drop)
	br := &p.branches[e.Branch]
	br.out, br.kept = false, e.kept && !b.conf.Panic
	switch visits := p.plan.Stages[p.stage][e.Branch]; {
	case e.drop:
		p.dropped, br.end = true, true
	case br.rest != 0:
	default:
		if br.visit++; br.visit < len(visits) {
			br.rest = visits[br.visit].Mask
		} else {
			br.end = true
		}
	}
	if !slices.ContainsFunc(p.branches, func(x place) bool { return !x.end }) {
		if p.dropped {
			p.finished = true
		} else {
			p.stage++
			b.enter(p)
		}
	}
	return e
}

func (b *body) leave() bool {
	l, ok := b.s.Leave()
	if !ok {
		return false
	}
	p := b.inside[l.Packet]
	if p == nil || l.Route != p.route || l.Tenant != p.tenant || int(b.s.road.order.packets[l.Packet].bytes) != p.bytes {
		b.fatalf("%+v leaves, which is not inside", l)
	}
	if l.Dropped != None && p.gone {
		p.finished, p.dropped = true, true
	}
	if !p.finished || p.dropped != (l.Dropped != None) || l.Dropped > None && l.Dropped < ByTask {
		b.fatalf("packet %d leaves with reason %v; dropped: %v, finished: %v", l.Packet, l.Dropped, p.dropped, p.finished)
	}
	if p.order {
		if b.flows[p.flow][0] != p {
			b.fatalf("packet %d leaves before packet %d", p.seq, b.flows[p.flow][0].seq)
		}
		b.flows[p.flow] = b.flows[p.flow][1:]
	}
	delete(b.inside, l.Packet)
	b.stored -= p.bytes
	if p.dropped {
		b.dropped++
	} else {
		b.left++
	}
	slices.Sort(p.done)
	b.results[p.seq] = fmt.Sprint(l.Dropped, p.done)
	return true
}

func (b *body) take(route, flow, n int) {
	b.drain()
	region, mask, got := b.s.Take(route, uint64(flow), n, n*100)
	if got == 0 {
		return
	}
	r, in := b.routes[route], &b.regions[region]
	if got > n || r == nil || len(r.Stages) != 1 || len(r.Stages[0]) != 1 || len(r.Stages[0][0]) != 1 {
		b.fatalf("took %d of %d of route %d", got, n, route)
	}
	if v := r.Stages[0][0][0]; v.Chain != in.chain || v.Mask != mask || in.paused {
		b.fatalf("took %d in region %d with chain %d, mask %#x, for %+v", got, region, in.chain, mask, v)
	}
	for _, p := range b.inside {
		if p.route == route && (r.Spread == PerFlow || !r.AnyOrder) {
			b.fatalf("took packets of route %d past packet %d", route, p.id)
		}
	}
	for m := mask; m != 0; m &= m - 1 {
		t := bits.TrailingZeros16(m)
		if in.out[t] += got; in.out[t] > in.credits[t] {
			b.fatalf("took %d: task %d has %d credits", got, t, in.credits[t])
		}
	}
	b.arrived += got
	b.taken = append(b.taken, exec{told: told{Run: Run{Region: region, Mask: mask}}, left: uint16(got)})
}

func (b *body) give(i int) {
	e := &b.taken[i]
	n := 1 + b.c.pick(int(e.left))
	d := b.c.pick(n + 1)
	b.s.Give(e.Region, e.Mask, n, d)
	b.dropped += d
	b.left += n - d
	for m := e.Mask; m != 0; m &= m - 1 {
		b.regions[e.Region].out[bits.TrailingZeros16(m)] -= n
	}
	if e.left -= uint16(n); e.left == 0 {
		b.taken = slices.Delete(b.taken, i, i+1)
	}
}

// act does something.
func (b *body) act() {
	switch a := b.c.pick(30); {
	case a < 7:
		b.arrive(b.c.pick(len(b.routes)), b.c.pick(bodyFlows), b.c.pick(4)*200)
	case a < 13:
		for range 1 + b.c.pick(6) {
			if len(b.execs) > 0 {
				b.step(b.c.pick(len(b.execs)))
			}
		}
	case a < 16:
		b.drain()
	case a == 16:
		b.next()
	case a == 17:
		b.leave()
	case a >= 28:
		b.drain() // else none begins
		b.arriveTogether(b.c.pick(len(b.routes)), 1+b.c.pick(6))
	case a > 24:
		b.backAll()
	default:
		b.configure(a - 18)
	}
	b.check()
}

func (b *body) configure(what int) {
	r := b.c.pick(len(b.regions))
	in := &b.regions[r]
	b.drain()
	b.trace("configure %d region %d %+v", what, r, *in)
	defer func() { b.trace("region %d %+v", r, *in) }()
	switch what {
	case 0:
		if in.chain < 0 {
			b.place(r, b.c.pick(len(b.lengths)))
		}
	case 1, 2:
		if in.chain < 0 {
			return
		}
		if !in.paused {
			b.must(b.s.Pause(r))
			in.paused = true
			return
		}
		busy := slices.ContainsFunc(b.execs, func(e exec) bool { return e.Region == r }) ||
			slices.ContainsFunc(b.taken, func(e exec) bool { return e.Region == r })
		if b.s.Drained(r) == busy {
			b.fatalf("region %d is drained: %v; busy: %v", r, !busy, busy)
		}
		if err := b.s.Remove(r); (err == nil) == busy {
			b.fatalf("region %d is busy: %v; removed: %v", r, busy, err)
		}
		if !busy {
			*in = instance{chain: -1}
		}
	case 3:
		if id := b.c.pick(len(b.routes)); b.c.pick(4) == 0 {
			b.setRoute(id, nil)
		} else {
			b.setRoute(id, b.someRoute())
		}
	case 4:
		if in.chain >= 0 {
			t, n := b.c.pick(len(in.credits)), 1+b.c.pick(3)
			in.credits[t] = max(n, in.out[t]) // what is out stays out; checked when it is less
			b.must(b.s.SetCredits(r, t, n))
			b.must(b.s.Check())
			in.credits[t] = n
			b.must(b.s.SetCredits(r, t, in.credits[t]))
		}
	case 5:
		if len(b.taken) > 0 && b.c.pick(2) == 0 {
			b.give(b.c.pick(len(b.taken)))
		} else {
			b.take(b.c.pick(len(b.routes)), b.c.pick(bodyFlows), 1+b.c.pick(4))
		}
	case 6:
		ch := b.c.pick(len(b.lengths))
		for range b.c.pick(8) {
			flow := b.c.pick(bodyFlows)
			if r := b.s.Instances().Want(ch, uint64(flow), float32(1+b.c.pick(4))); r >= 0 && (b.regions[r].chain != ch || b.regions[r].paused) {
				b.fatalf("flow %d of chain %d is to go to region %d: %+v", flow, ch, r, b.regions[r])
			}
		}
		b.s.Instances().Balance(ch, float32(b.c.pick(3))/2, float32(b.c.pick(3)), b.c.pick(2) == 0)
	}
}

func (b *body) check() {
	b.t.Helper()
	b.must(b.s.Check())
	k := b.s.Books()
	taken, dropped, refused := 0, 0, 0
	for _, e := range b.taken {
		taken += int(e.left)
	}
	for _, n := range k.Dropped {
		dropped += int(n)
	}
	for _, n := range k.Refused {
		refused += int(n)
	}
	if int(k.Arrived) != b.arrived || int(k.Left) != b.left || dropped != b.dropped || refused != b.refused ||
		k.Inside != len(b.inside) || k.Taken != taken || k.Stored != b.stored {
		b.fatalf("the books say %+v; arrived %d left %d dropped %d refused %d inside %d taken %d stored %d",
			k, b.arrived, b.left, b.dropped, b.refused, len(b.inside), taken, b.stored)
	}
}

// remove has what is in a paused region run, and takes the instance away.
func (b *body) remove(r int) {
	for !b.s.Drained(r) {
		i := slices.IndexFunc(b.execs, func(e exec) bool { return e.Region == r })
		b.step(i)
		b.drain()
	}
	b.must(b.s.Remove(r))
	b.regions[r] = instance{chain: -1}
}

// finish brings all out: every chain gets an instance, and all that can run does.
func (b *body) finish() {
	for len(b.taken) > 0 {
		b.give(0)
	}
	b.drain()
	for r := range b.regions {
		if in := &b.regions[r]; in.paused {
			b.remove(r)
		}
	}
	for ch := range b.lengths {
		if slices.ContainsFunc(b.regions, func(in instance) bool { return in.chain == ch }) {
			continue
		}
		r := slices.IndexFunc(b.regions, func(in instance) bool { return in.chain < 0 })
		if r < 0 {
			// All are full: the first that another has as well makes room.
			r = slices.IndexFunc(b.regions, func(in instance) bool {
				n := 0
				for _, o := range b.regions {
					if o.chain == in.chain {
						n++
					}
				}
				return n > 1
			})
			b.drain()
			b.must(b.s.Pause(r))
			b.regions[r].paused = true
			b.remove(r)
		}
		b.place(r, ch)
	}
	for b.drain(); len(b.execs) > 0; b.drain() {
		b.step(b.c.pick(len(b.execs)))
	}
	for b.leave() {
	}
	b.check()
	if len(b.inside) > 0 {
		for _, p := range b.inside {
			b.t.Logf("inside: %+v, plan %+v", *p, *p.plan)
		}
		b.fatalf("%d packets never leave", len(b.inside))
	}
	for r := range b.regions {
		for t := range b.regions[r].credits {
			if k := b.s.Task(r, t); k.Free != k.Credits || k.Waiting != 0 || b.regions[r].out[t] != 0 {
				b.fatalf("region %d task %d: %+v after all", r, t, k)
			}
		}
	}
	for tenant := range b.conf.Tenants {
		if n, bytes := b.s.Tenant(tenant); n != 0 || bytes != 0 {
			b.fatalf("tenant %d: %d packets, %d bytes after all", tenant, n, bytes)
		}
	}
}

// TestModel drives schedulers at random, with everything on, and follows them
// from outside.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tt := tb{t, rt}
		b := newBody(tt, byRapid{rt}, rapid.IntRange(0, 3).Draw(rt, "panic") == 0)
		for range rapid.IntRange(1, 120).Draw(rt, "steps") {
			b.act()
		}
		b.finish()
	})
}

type byRand struct{ r *rand.Rand }

func (r byRand) pick(n int) int { return r.r.IntN(max(n, 1)) }

// TestManyRuns does what TestModel does, more often: what is rare needs it.
func TestManyRuns(t *testing.T) {
	together := 0
	for seed := range uint64(4000) {
		b := newBody(t, byRand{rand.New(rand.NewPCG(seed, 1))}, seed&3 == 0)
		b.seed = seed
		for range 150 {
			b.act()
		}
		b.finish()
		together += b.together
	}
	if together < 1000 {
		t.Errorf("%d packets began together", together)
	}
}

// tb lets rapid see failures.
type tb struct {
	testing.TB
	rt *rapid.T
}

func (t tb) Helper()                      { t.rt.Helper() }
func (t tb) Fatal(args ...any)            { t.rt.Helper(); t.rt.Fatal(args...) }
func (t tb) Fatalf(f string, args ...any) { t.rt.Helper(); t.rt.Fatalf(f, args...) }
func (t tb) Logf(f string, args ...any)   { t.rt.Helper(); t.rt.Logf(f, args...) }

func FuzzOperations(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("the quick brown fox jumps over the lazy dog, and then once more, and then it sleeps"))
	seed := make([]byte, 600)
	for i := range seed {
		seed[i] = byte(i*i*31 + i*7 + i>>3)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4000 {
			return
		}
		c := &byBytes{data}
		b := newBody(t, c, c.pick(4) == 1)
		for len(c.b) > 0 {
			b.act()
		}
		b.finish()
	})
}
