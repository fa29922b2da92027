package snic

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/match"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/mat"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// batchCredits is what an instance of a task has whose time is not modelled: it
// runs a batch at a time.
const batchCredits = packet.MaxBatch

// samples is how often a monitor period tasks are looked at.
const samples = 16

// rateEvery is over how long rates of DAGs are measured, and what tenants got.
const rateEvery = 100 * time.Millisecond

// share is what an epoch is long at least for each DAG that is active. Dividing takes
// some 80 ns of it (snic/fair): so it takes no more than a tenth of a processor, however
// many there are.
const share = 800 * time.Nanosecond

// place is the number of what is named, or the first that is free; -1: none is.
func place[T any](all []T, free func(*T) bool, is func(*T) bool) int {
	at := -1
	for i := range all {
		switch {
		case free(&all[i]):
			if at < 0 {
				at = i
			}
		case is(&all[i]):
			return i
		}
	}
	return at
}

// deploy puts the deployment of settings in force, whose tasks are there: what stays
// keeps its number, its state and its packets.
func (b *board) deploy(c *graph.Ctx) error {
	d := b.deployment
	b.split.whole.gen = b.cat.numbers.gen
	for i, x := range d.Tasks {
		if err := b.place.fabric.SetTask(b.cat.taskOf[i], float64(x.Throughput)); err != nil {
			return err
		}
	}
	if err := b.place.deployChains(c.Now(), b.cat.taskOf); err != nil {
		return err
	}
	if err := b.deployServices(b.cat.taskOf, b.deployTenants()); err != nil {
		return err
	}
	b.memory.deployMemory()
	b.cat.bestCovers()
	b.ingress.deployRules()
	if b.near.pool != nil {
		b.near.joinPool(c)
	}
	if err := b.split.deployShares(c.Now()); err != nil {
		return err
	}
	b.place.events(c)
	b.place.recredit()
	if b.cat.house != nil {
		b.near.planAll(c.Now())
	} else {
		for i := range b.cat.services {
			if b.cat.services[i].UID != 0 {
				b.place.plan(c.Now(), i, b.runner.waits[i] == 0)
			}
		}
	}
	b.place.events(c)
	b.runner.pump(c)
	return nil
}

// numbering gives DAGs and tenants the numbers by which the board knows them. Workers tell each other these numbers, and each
// puts a deployment in force in its own time, or skips it when the next one comes before. So each worker numbers all
// deployments, in their order.
type numbering struct {
	gen     uint32   // deployments
	dags    []uint32 // their UIDs; 0: nobody's number
	terms   []uint16 // of each of these, DAGs that have had the number; it wraps
	tenants []string // "": nobody's number
}

// take numbers what a deployment has: what stays keeps its number.
func (x *numbering) take(d *dag.Deployment) {
	x.gen++
	var uids []uint32
	for _, g := range d.DAGs {
		uids = append(uids, g.UID)
	}
	x.dags = renumber(x.dags, uids, func(n int) { x.terms[n] = (x.terms[n] + 1) % numberTerms })
	x.terms = append(x.terms, make([]uint16, len(x.dags)-len(x.terms))...)
	var names []string
	for _, t := range d.Tenants {
		names = append(names, t.Name)
	}
	x.tenants = renumber(x.tenants, names, func(int) {})
}

// renumber gives each of wanted a number, its index in the result. Whoever has one keeps it. left is told the numbers that lose
// their owners.
func renumber[K comparable](owners, wanted []K, left func(n int)) []K {
	var nobody K
	without := make(map[K]bool, len(wanted)) // a number
	for _, k := range wanted {
		without[k] = true
	}
	var free []int
	for n, k := range owners {
		switch {
		case without[k]:
			delete(without, k)
			continue
		case k != nobody:
			left(n)
			owners[n] = nobody
		}
		free = append(free, n)
	}
	for _, k := range wanted {
		switch {
		case !without[k]:
		case len(free) > 0:
			owners[free[0]], free = k, free[1:]
		default:
			owners = append(owners, k)
		}
	}
	return owners
}

// deployTenants gives every tenant of the deployment its number.
func (b *board) deployTenants() (out []int) {
	for n, name := range b.cat.numbers.tenants {
		if n == len(b.cat.tenants) {
			b.cat.tenants = append(b.cat.tenants, "")
			b.stock.kept = append(b.stock.kept, kept{})
			b.split.had = append(b.split.had, had{})
		}
		if b.cat.tenants[n] != name {
			b.cat.tenants[n], b.split.had[n] = name, had{grant: 1}
		}
	}
	number := b.cat.tenantNumbers()
	for _, t := range b.deployment.Tenants {
		out = append(out, number[t.Name])
	}
	return out
}

// tenantNumbers are those of the tenants that there are.
func (cat *catalog) tenantNumbers() map[string]int {
	out := make(map[string]int, len(cat.tenants))
	for n, name := range cat.tenants {
		if name != "" {
			out[name] = n
		}
	}
	return out
}

// deployTasks gives every task of the deployment its number.
func (b *board) deployTasks(c *graph.Ctx, apps []*graph.Inside) error {
	d := b.deployment
	type old struct {
		task int
		in   *graph.Inside
		app  graph.App
	}
	var olds []old
	for n := range b.cat.tasks {
		t := &b.cat.tasks[n]
		if i := slices.IndexFunc(d.Tasks, func(x dag.Task) bool { return x.Name == t.Name }); i < 0 || t.in != apps[i] || b.memory.anew(t, &d.Tasks[i]) {
			t.vacate() // so that there is room for the others
		}
	}
	for n := range b.cat.tasks {
		t := &b.cat.tasks[n]
		if t.in == nil {
			continue
		}
		i := slices.IndexFunc(d.Tasks, func(x dag.Task) bool { return x.Name == t.Name })
		if i >= 0 && t.in == apps[i] && !b.memory.anew(t, &d.Tasks[i]) {
			continue
		}
		olds = append(olds, old{n, t.in, t.app})
		if i < 0 {
			t.in, t.app = nil, nil
			continue
		}
		start := apps[i].Make
		if t.in == apps[i] {
			start = apps[i].Anew
		}
		app, err := start()
		if err != nil {
			return err
		}
		was := t.app
		t.become(apps[i], app)
		b.memory.furnish(n, &d.Tasks[i])
		if t.Restart == d.Tasks[i].Restart && was != nil && t.app != nil {
			t.try(func() { move(was, app) })
		}
	}
	// What the old ones hold goes on from there, while the others are all there.
	for _, o := range olds {
		o.in.Remove(c, o.app)
		b.runner.sweep(c, &b.cat.tasks[o.task], o.in)
	}
	b.runner.pump(c)
	b.cat.taskOf = b.cat.taskOf[:0]
	for i, x := range d.Tasks {
		n := slices.IndexFunc(b.cat.tasks, func(t task) bool { return t.in != nil && t.Name == x.Name })
		for k := 0; n < 0; k++ {
			if k == len(b.cat.tasks) {
				b.cat.tasks = append(b.cat.tasks, task{})
			}
			if b.cat.free(k) {
				n = k
			}
		}
		if n >= maxNumbers {
			return errors.New("too many tasks come and go at a time")
		}
		b.cat.taskOf = append(b.cat.taskOf, n)
		t := &b.cat.tasks[n]
		if t.in == nil {
			app, err := apps[i].Make()
			if err != nil {
				return err
			}
			*t = task{way: way{dag: -1, out: 1}}
			t.become(apps[i], app)
			b.memory.furnish(n, &x)
		} else {
			b.memory.grow(n, &x)
		}
		t.Task = x
		t.modelled = x.Throughput > 0 || x.Latency > 0 || b.pass > 0
	}
	return nil
}

// become makes an app the task's.
func (t *task) become(in *graph.Inside, app graph.App) {
	t.in, t.app, t.next = in, app, 0
	t.halted, t.fault = false, ""
	_, t.holds = app.(graph.Holder)
	if _, ok := app.(graph.Ticker); !ok {
		t.next = clock.Never
	}
}

// free reports that nobody has a number of tasks: no task, and no chain, in which
// packets may still be on their way to the task that was there.
func (cat *catalog) free(n int) bool {
	return cat.tasks[n].in == nil && !slices.ContainsFunc(cat.chains, func(ch chain) bool { return slices.Contains(ch.tasks, n) })
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

// credits are those of the tasks of a chain.
func (cat *catalog) credits(chain int) []int {
	var out []int
	for _, t := range cat.chains[chain].tasks {
		k := max(cat.tasks[t].Credits, 1) // none: it is no longer deployed
		if !cat.tasks[t].modelled {
			k = max(k, batchCredits)
		}
		out = append(out, k)
	}
	return out
}

// move gives an app the state of the one whose place it takes, if both can.
func move(from, to graph.App) {
	if h, ok := to.(graph.Heir); ok && h.Inherit(from) {
		return
	}
	s, ok1 := from.(graph.Saver)
	l, ok2 := to.(graph.Saver)
	if !ok1 || !ok2 {
		return
	}
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		defer func() { w.CloseWithError(err) }()
		defer graph.Rescue(&err)
		err = s.Save(w)
	}()
	_ = l.Load(r) // or it begins with none
	r.Close()
	<-done
}

// deployChains tells the fabric which bitstreams there are.
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
		n := place(pl.cat.chains, func(ch *chain) bool { return !ch.known && !ch.rests }, func(ch *chain) bool { return !ch.ends && ch.is(x.Tasks, numbers) })
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

// is reports whether a chain has these tasks of the deployment.
func (ch *chain) is(tasks []dag.TaskID, numbers []int) bool {
	return slices.EqualFunc(ch.tasks, tasks, func(n int, t dag.TaskID) bool { return n == numbers[t] })
}

// deployServices gives every DAG its number.
func (b *board) deployServices(numbers, tenants []int) error {
	d := b.deployment
	number := make(map[uint32]int, len(d.DAGs))
	for n, uid := range b.cat.numbers.dags {
		if n == len(b.cat.services) {
			b.cat.services = append(b.cat.services, service{})
		}
		s, term := &b.cat.services[n], b.cat.numbers.terms[n]
		if s.UID != 0 && s.term != term {
			b.place.unroute(n)
			s.UID = 0
		}
		s.term, number[uid] = term, n
	}
	b.cat.dagOf = b.cat.dagOf[:0]
	var fresh []int
	for i, x := range d.DAGs {
		n := number[x.UID]
		b.cat.dagOf = append(b.cat.dagOf, n)
		s := &b.cat.services[n]
		var tasks []int
		for _, t := range d.Stages(dag.DAGID(i), 1)[0][0] {
			tasks = append(tasks, numbers[t])
		}
		var stages [][][]int
		for _, stage := range d.Stages(dag.DAGID(i), b.branches) {
			var branches [][]int
			for _, branch := range stage {
				var line []int
				for _, t := range branch {
					line = append(line, numbers[t])
				}
				branches = append(branches, line)
			}
			stages = append(stages, branches)
		}
		if s.UID == 0 {
			*s = service{listed: slices.Contains(b.place.active, int32(n)), term: s.term}
			fresh = append(fresh, n)
		}
		s.stages = stages
		s.DAG, s.tenant = x, tenants[x.Tenant]
		if !slices.Equal(s.tasks, tasks) {
			s.tasks, s.visits = tasks, nil
			s.costs, s.cost = make([]float64, len(tasks)), 0
		}
	}
	for _, n := range fresh {
		if b.cat.house != nil {
			b.cat.lodgeNew(n)
		}
	}
	// What a task makes before a packet came to it goes forward in a DAG that has it.
	for _, t := range numbers {
		w := &b.cat.tasks[t].way
		if w.dag >= 0 && b.cat.services[w.dag].term == w.term && slices.Contains(b.cat.services[w.dag].tasks, t) {
			continue
		}
		*w = way{dag: -1, out: 1}
		if i := slices.IndexFunc(b.cat.dagOf, func(n int) bool { return slices.Contains(b.cat.services[n].tasks, t) }); i >= 0 {
			w.dag, w.term = int32(b.cat.dagOf[i]), b.cat.services[b.cat.dagOf[i]].term
		}
	}
	return nil
}

func (pl *placement) unroute(n int) {
	s := &pl.cat.services[n]
	for i := range 2 {
		_ = pl.runner.sched.RemoveRoute(2*n + i) // there may be none
		if s.twin {
			_ = pl.runner.sched.RemoveRoute(inLine + 2*n + i)
		}
	}
	s.visits, s.twin = nil, false
}

// deployRules fills the match-action table: the user's rules, then the service
// paths of all DAGs, then that other paths are nobody's.
func (ig *ingress) deployRules() {
	ig.rules = ig.rules[:0]
	for _, r := range ig.deployment.Rules {
		if r.Road == mat.Tasks {
			r.DAG = ig.cat.dagOf[r.DAG]
		}
		ig.rules = append(ig.rules, r)
	}
	path := func(text string, road mat.Road, n int) {
		m, err := match.Parse(text)
		if err != nil {
			panic(err) // of our own making
		}
		ig.rules = append(ig.rules, mat.Rule{Priority: math.MinInt32, In: mat.Any, Match: m, Road: road, DAG: n})
	}
	for i, d := range ig.deployment.DAGs {
		if d.UID < 1<<24 {
			path(fmt.Sprintf("nsh:%d", d.UID), mat.Tasks, ig.cat.dagOf[i])
		}
	}
	path("type:0x894f", mat.Refuse, 0)
	ig.mat.Set(ig.rules)
	ig.rules = ig.mat.Rules()
}

// candidates are chains that a DAG may use now: those that take packets or soon
// will, or all.
func (cat *catalog) candidates(all bool) []dag.Candidate {
	var out []dag.Candidate
	for i := range cat.chains {
		ch := &cat.chains[i]
		if !ch.known || ch.ends || !all && len(ch.running) == 0 && !ch.asked {
			continue
		}
		x := cat.candidate(i)
		if all {
			x.Cost = int64(len(ch.tasks))
		}
		for i, v := range ch.load {
			if !all {
				x.Each[i] = v / int64(max(len(ch.running), 1))
			}
		}
		out = append(out, x)
	}
	return out
}

// candidate is a chain as one, without a cost.
func (cat *catalog) candidate(chain int) dag.Candidate {
	x := dag.Candidate{Chain: dag.ChainID(chain), Each: make([]int64, len(cat.chains[chain].tasks))}
	for _, t := range cat.chains[chain].tasks {
		x.Tasks = append(x.Tasks, dag.TaskID(t))
	}
	return x
}

// cover is the visits in which tasks run through candidates; nil: they cannot.
func cover(tasks []int, candidates []dag.Candidate) []sched.Visit {
	branch := make([]dag.TaskID, len(tasks))
	for i, t := range tasks {
		branch[i] = dag.TaskID(t)
	}
	visits, missing := dag.Cover(branch, candidates)
	if missing != nil {
		return nil
	}
	out := make([]sched.Visit, len(visits))
	for i, v := range visits {
		out[i] = sched.Visit{Chain: int(v.Chain), Mask: uint16(v.Mask)}
	}
	return out
}

// bestCovers finds for every DAG the fewest visits, whatever is in the regions. DAGs
// of the same tasks share them.
func (cat *catalog) bestCovers() {
	all := cat.candidates(true)
	known := map[string][]sched.Visit{}
	for i := range cat.services {
		s := &cat.services[i]
		if s.UID == 0 {
			s.best = nil
			continue
		}
		key := fmt.Sprint(s.tasks)
		best, ok := known[key]
		if !ok {
			best = cover(s.tasks, all)
			known[key] = best
		}
		s.best = best
	}
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

// launch has what visits go through be in regions, and has them follow it. It returns
// ShareRunning when it is, or will be, and otherwise the first choice that is
// none of this.
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

// masked is a mask of some tasks of a chain as one of another chain that has
// them, too.
func (cat *catalog) masked(tasks []int, mask uint16, in int) uint16 {
	var m uint16
	for i, t := range tasks {
		if mask&(1<<i) != 0 {
			m |= 1 << slices.Index(cat.chains[in].tasks, t)
		}
	}
	return m
}

// follow has the packets of a DAG take visits from now on.
func (pl *placement) follow(n int, visits []sched.Visit) {
	s := &pl.cat.services[n]
	s.visits, s.spread = visits, pl.cat.spread(s)
	pl.cat.skewed(s)
	s.bulk = len(visits) == 1 && !pl.panics && pl.pass == 0
	s.missing = false
	var there, back [][][]sched.Visit
	for _, v := range visits {
		there = append(there, [][]sched.Visit{{v}})
		ch := &pl.cat.chains[v.Chain]
		s.missing = s.missing || len(ch.running) == 0 && !ch.asked
		for i, t := range ch.tasks {
			if v.Mask&(1<<i) == 0 {
				continue
			}
			if pl.cat.tasks[t].modelled || pl.cat.tasks[t].holds {
				s.bulk = false
			}
			back = append([][][]sched.Visit{{{{Chain: v.Chain, Mask: 1 << i}}}}, back...)
		}
	}
	if s.elsewhere() {
		s.bulk, s.width, s.missing = false, 0, false
		return // later
	}
	line := [][][][]sched.Visit{there, back}
	routes := line
	if there, back, s.width = pl.cat.lay(s, visits); s.width > 0 {
		routes = [][][][]sched.Visit{there, back}
		s.bulk, s.twin = false, true
	}
	for i := range 2 {
		if err := pl.runner.sched.SetRoute(2*n+i, sched.Route{Stages: routes[i], Spread: s.spread, Back: i > 0}); err != nil {
			panic(fmt.Sprintf("snic: a route that was planned: %v", err))
		}
		if s.twin { // packets may be on it
			if err := pl.runner.sched.SetRoute(inLine+2*n+i, sched.Route{Stages: line[i], Spread: s.spread, Back: i > 0}); err != nil {
				panic(fmt.Sprintf("snic: a route that was planned: %v", err))
			}
		}
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

// events does what the fabric has decided.
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

// uses reports whether a DAG goes through a chain.
func (cat *catalog) uses(n, chain int) bool {
	return cat.services[n].UID != 0 && slices.ContainsFunc(cat.services[n].visits, func(v sched.Visit) bool { return v.Chain == chain })
}

// close has no more packets go into a region.
func (pl *placement) close(r int) {
	ch := &pl.cat.chains[pl.cat.placed[r]]
	if i := slices.Index(ch.running, r); i >= 0 {
		ch.running = slices.Delete(ch.running, i, i+1)
	}
	_ = pl.runner.sched.Pause(r) // it is placed
	pl.reroute(false)
}

// settle tells of regions that were to stop and in which nobody is left.
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

// lately is how many bytes a DAG was sent in about the last monitor period: a mean in which
// what is longer ago counts less.
func (cat *catalog) lately(s *service) int64 {
	period := float64(cat.monitor)
	return int64(s.recent * period / (period + float64(cat.seen.Sub(s.recentAt))))
}

// work is how long an instance of a task takes for so many bytes, in ns; of one that takes all that
// comes, as long as the published board's data path: 64 bytes in a cycle of 250 MHz, 128 Gb/s.
func (t *task) work(bytes int64) int64 {
	rate := int64(128e9)
	if t.Throughput > 0 {
		rate = t.Throughput
	}
	return int64(float64(bytes) * 8e9 / float64(rate))
}

// weighAll puts on all chains what goes through them.
func (cat *catalog) weighAll() {
	for i := range cat.chains {
		ch := &cat.chains[i]
		ch.load = slices.Grow(ch.load[:0], len(ch.tasks))[:len(ch.tasks)]
		clear(ch.load)
	}
	for n := range cat.services {
		cat.weigh(n, cat.services[n].visits, 1)
	}
}

// weigh puts what DAG n was sent of late on the chains of visits, or with -1 takes it away.
func (cat *catalog) weigh(n int, visits []sched.Visit, sign int64) {
	s := &cat.services[n]
	if s.elsewhere() {
		return
	}
	bytes := cat.lately(s) + 1
	for _, v := range visits {
		ch := &cat.chains[v.Chain]
		for i, t := range ch.tasks {
			if v.Mask&(1<<i) != 0 {
				ch.load[i] += sign * cat.tasks[t].work(bytes)
			}
		}
	}
}

// cost is what an instance of a chain would have to do for its task i if so many bytes more went there.
func (cat *catalog) cost(bytes int64, chain, i int) int64 {
	ch := &cat.chains[chain]
	return (ch.load[i] + cat.tasks[ch.tasks[i]].work(bytes)) / int64(max(len(ch.running), 1))
}

// cheapest is the plan through candidates of a DAG that is not among their load.
func (cat *catalog) cheapest(n int, candidates []dag.Candidate) []sched.Visit {
	s := &cat.services[n]
	bytes := cat.lately(s) + 1
	for _, c := range candidates {
		for i := range c.Each {
			c.Each[i] = cat.cost(bytes, int(c.Chain), i)
		}
	}
	return cover(s.tasks, candidates)
}

// dear is the cost of a plan of such a DAG: of the dearest task of each visit, together.
func (cat *catalog) dear(n int, visits []sched.Visit) (sum int64) {
	bytes := cat.lately(&cat.services[n]) + 1
	for _, v := range visits {
		most := int64(0)
		for m := v.Mask; m != 0; m &= m - 1 {
			most = max(most, cat.cost(bytes, v.Chain, bits.TrailingZeros16(m)))
		}
		sum += most
	}
	return sum
}

// reroute looks at the plans again after chains came or went: a DAG goes another way
// when it must, when that takes fewer visits, or, with scaled, where less goes.
func (pl *placement) reroute(scaled bool) {
	pl.cat.weighAll()
	candidates := pl.cat.candidates(false)
	for n := range pl.cat.services {
		s := &pl.cat.services[n]
		if s.UID == 0 || s.visits == nil {
			continue
		}
		here := true
		for _, v := range s.visits {
			ch := &pl.cat.chains[v.Chain]
			here = here && (len(ch.running) > 0 || ch.asked)
		}
		moved := false
		if !here || scaled || len(s.visits) > 1 {
			pl.cat.weigh(n, s.visits, -1)
			now := pl.cat.cheapest(n, candidates)
			moved = now != nil && (!here || len(now) < len(s.visits))
			moved = moved || scaled && len(now) == len(s.visits) && pl.cat.dear(n, now) < pl.cat.dear(n, s.visits)
			if moved {
				pl.follow(n, now)
			}
			pl.cat.weigh(n, s.visits, 1)
		}
		if !moved {
			s.missing = !here && !s.elsewhere()
			pl.lacking = pl.lacking || s.missing && pl.runner.waits[n] > 0
		}
	}
}

// spares reports whether DAGs would find room without one of the instances of a chain.
func (pl *placement) spares(id int) bool {
	pl.cat.weighAll()
	defer pl.cat.weighAll()
	room := func(chain, instances int) bool {
		return float64(slices.Max(pl.cat.chains[chain].load)) <= region.Under*float64(pl.monitor)*float64(instances)
	}
	if k := len(pl.cat.chains[id].running); k > 1 {
		return room(id, k-1) && pl.runner.sched.Spare(id, region.Under*float32(pl.monitor))
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

// relief is where packets go of which a task has too many, as helps knows.
type relief struct {
	task    int
	at      clock.Time
	busiest int   // the chain whose instances have most bytes for the task; -1: none has any
	movable []int // DAGs that go there: with one of them elsewhere, no instance would have nine tenths of that
}

// helps reports whether one more instance of a chain would take packets from the instances
// that have most of an overloaded task: of their chain it would, of one that runs besides it
// would not; of another one, if a DAG would go there that leaves something, but not all.
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

// carried calls f with the chain in which a DAG has a task run here, and its bytes of late.
func (cat *catalog) carried(n, task int, f func(chain int, bytes int64)) {
	s := &cat.services[n]
	if s.UID == 0 || s.elsewhere() {
		return
	}
	for _, v := range s.visits {
		if cat.has(v, task) {
			f(v.Chain, cat.lately(s))
		}
	}
}

// has reports whether a task runs in a visit.
func (cat *catalog) has(v sched.Visit, task int) bool {
	i := slices.Index(cat.chains[v.Chain].tasks, task)
	return i >= 0 && v.Mask&(1<<i) != 0
}

// Tick is the control core: epochs, monitors, regions, and the timers of tasks.
func (b *board) Tick(c *graph.Ctx) clock.Time {
	now := c.Now()
	b.cat.seen = now
	if b.renew {
		b.renew = false
		if b.place.epochAt == 0 {
			b.place.fabric = b.place.newFabric(now, b.fixed)             // a board's time begins now
			b.runner.sched, _ = newScheduler(b.fixed, c.Rand().Uint64()) // as newBoard has tried
		}
		if err := b.deploy(c); err != nil {
			panic(fmt.Sprintf("snic: a deployment that was checked: %v", err))
		}
	}
	if now >= b.place.epochAt {
		b.place.endEpoch(now)
	}
	b.place.fabric.Advance(now)
	b.place.events(c)
	if b.near.pool != nil {
		b.near.peering(c)
		b.place.events(c)
	}
	if b.cat.house != nil {
		b.near.lodgings(now)
		b.place.events(c)
	}
	b.heed(c)
	for i := range b.cat.tasks {
		t := &b.cat.tasks[i]
		if t.in == nil {
			continue
		}
		if t.next = min(t.next, t.in.Woken()); t.next <= now {
			t.next = t.in.Tick(c, t.app)
			t.fell()
			b.runner.sweep(c, t, t.in)
		}
	}
	b.runner.due(c)
	b.runner.pump(c)
	b.place.settle(now)
	b.place.events(c)
	b.place.seek(c)
	b.runner.pump(c)
	b.heed(c)
	b.runner.pump(c)
	due := b.runner.due(c)
	for b.runner.pump(c) { // some take no time
		due = b.runner.due(c)
	}
	next := min(due, b.place.epochAt, b.place.fabric.Next(), b.gates.resume(c))
	for i := range b.cat.tasks {
		if t := &b.cat.tasks[i]; t.in != nil {
			t.next = min(t.next, t.in.Woken()) // by what came to it meanwhile
			next = min(next, t.next)
		}
	}
	if b.memory != nil {
		next = min(next, b.memory.scrub(now, b.place.quiet))
		if b.memory.look {
			next = now
		}
	}
	if b.near.pool != nil && b.near.pool.saving {
		next = min(next, b.near.pool.pieceAt)
	}
	if len(b.near.moving) > 0 {
		next = min(next, now.Add(transit))
	}
	return next
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

// endEpoch closes the measurements of an epoch.
func (pl *placement) endEpoch(now clock.Time) {
	for _, n := range pl.active {
		s := &pl.cat.services[n]
		for _, v := range s.visits {
			ch := &pl.cat.chains[v.Chain]
			for i, t := range ch.tasks {
				if v.Mask&(1<<i) == 0 || s.abroad.peer > 0 || s.lodge.at > 0 {
					continue
				}
				k := int64(len(ch.running))
				if s.byFlow && k > 0 {
					continue // as it came
				}
				for _, r := range ch.running {
					pl.fabric.Load(r, t, s.arrived/k)
				}
				if k == 0 {
					pl.fabric.Load(-1, t, s.arrived)
				}
			}
		}
		period := float64(pl.monitor)
		s.recent = s.recent*period/(period+float64(now.Sub(s.recentAt))) + float64(s.arrived)
		s.recentAt = now
		s.arrived, s.listed = 0, false
		s.lodge.reckon()
	}
	if d := now.Sub(pl.rateAt); d >= rateEvery {
		for i := range pl.cat.services {
			s := &pl.cat.services[i]
			s.rate = float64(s.bytes-s.counted) / d.Seconds()
			s.counted = s.bytes
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
		// Nobody is there to be measured; monitors want to know that.
		pl.epochAt = now.Add(max(pl.epoch, pl.monitor/8))
		if pl.split.whole.busy {
			pl.epochAt = min(pl.epochAt, now.Add(max(pl.epoch, exchangeEvery))) // others are there
		}
	}
}

// Reconfigure takes a deployment that Inside puts in force.
func (b *board) Reconfigure(args graph.Args) error {
	s, err := b.parse(args)
	if err != nil {
		return err
	}
	if !b.takes(&s) {
		return errors.New("regions, store=, packets=, flows=, pr-rate=, monitor=, idle=, victims=, scheduler=, pass=, decide=, sync=, memory=, page=, memory-promise=, lossless=, pool-port= and pool-mtu= cannot be changed while it runs")
	}
	if err := b.roomFor(s.deployment); err != nil {
		return err
	}
	if err := b.memory.fits(s.deployment); err != nil {
		return err
	}
	b.next = s
	return nil
}

// roomFor reports whether there are numbers for what a deployment brings, beside what
// of earlier ones is still there.
func (b *board) roomFor(d *dag.Deployment) error {
	left := maxNumbers - len(b.cat.tasks)
	for n := range b.cat.tasks {
		if b.cat.free(n) {
			left++
		}
	}
	for _, x := range d.Tasks {
		if !slices.ContainsFunc(b.cat.tasks, func(t task) bool { return t.in != nil && t.Name == x.Name }) {
			left--
		}
	}
	if left < 0 {
		return errors.New("too many tasks come and go at a time: packets are still on their way to those that were there")
	}
	all, err := d.Chains(0)
	if err != nil {
		return err
	}
	left = maxChains - len(b.cat.chains)
	for i := range b.cat.chains {
		if ch := &b.cat.chains[i]; !ch.known && !(ch.rests && b.runner.sched.Visits(i)) {
			left++
		}
	}
	if len(all) > left {
		return errors.New("too many chains come and go at a time: packets are still on their way to those that were there")
	}
	return nil
}

// Takes reports whether only what can be changed under traffic is another.
func (b *board) Takes(args graph.Args) bool {
	s, err := b.parse(args)
	return err != nil || b.takes(&s)
}

func (b *board) takes(s *settings) bool {
	return s.deployment.Regions == b.fixed.deployment.Regions && s.store == b.fixed.store && s.packets == b.fixed.packets && s.flows == b.fixed.flows &&
		s.rate == b.fixed.rate && s.monitor == b.fixed.monitor && s.poolPort == b.fixed.poolPort && s.poolMTU == b.fixed.poolMTU && s.idle == b.fixed.idle && s.victims == b.fixed.victims && s.panics == b.fixed.panics &&
		s.pass == b.fixed.pass && s.decide == b.fixed.decide && s.sync == b.fixed.sync &&
		s.memory == b.fixed.memory && s.page == b.fixed.page && s.promise == b.fixed.promise && s.lossless == b.fixed.lossless
}

// Held is what waits on the board, outside of tasks.
func (b *board) Held() int { return b.runner.held + b.gates.paused }

// Flush passes on that frames went past the board.
func (b *board) Flush(c *graph.Ctx) {
	for i := range b.cat.tasks {
		if t := &b.cat.tasks[i]; t.in != nil {
			t.in.Flush(c, t.app)
			t.fell()
			b.runner.sweep(c, t, t.in)
		}
	}
	b.runner.pump(c)
}

// Stop gives up what tasks hold, and what waits.
func (b *board) Stop(c *graph.Ctx) {
	b.gates.stopPauses(c)
	for i := range b.cat.tasks {
		if t := &b.cat.tasks[i]; t.in != nil {
			t.in.Remove(c, t.app)
			b.runner.sweep(c, t, t.in)
			t.in = nil
		}
	}
	if b.memory != nil && b.memory.swap == nil { // else others may have to do with it
		b.memory.ram.drop()
	}
	for i := range b.runner.packets {
		if b.runner.packets[i].branches > 0 {
			b.runner.scrap(c, i)
		}
		if l := &b.runner.lanes[i<<laneBits]; l.buf != nil && !l.lent {
			c.Drop(l.buf, reasonStopped)
			b.runner.held--
			l.buf = nil
		}
	}
}

// note keeps what has happened to regions, for people.
func (pl *placement) note(e region.Event) {
	if len(pl.log) == cap(pl.log) {
		pl.log = pl.log[:copy(pl.log, pl.log[cap(pl.log)/2:])]
	}
	pl.log = append(pl.log, e)
}

// names are those of tasks, with arrows between.
func (cat *catalog) names(tasks []int) string {
	var out []string
	for _, t := range tasks {
		out = append(out, cat.tasks[t].Name)
	}
	return strings.Join(out, " -> ")
}
