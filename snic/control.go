package snic

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/sched"
)

// batchCredits is how many credits an instance has if its task's time is not modelled:
// it runs a batch at a time.
const batchCredits = packet.MaxBatch

// samples is how often in a monitor period the load of tasks is measured.
const samples = 16

// rateEvery is the time over which the rates of DAGs, and what tenants got, are measured.
const rateEvery = 100 * time.Millisecond

// share is the least length of an epoch for each active DAG. Division takes some 80 ns of
// it (snic/fair), so that it takes no more than a tenth of a processor, however many DAGs
// there are.
const share = 800 * time.Nanosecond

// fitting is the index of the element that is the wanted one, or else of the first free element; -1: there is none.
func fitting[T any](all []T, free func(*T) bool, is func(*T) bool) int {
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

// deploy puts the deployment of settings in force. Its tasks have been made. What stays
// from the deployment before keeps its number, its state and its packets.
func (b *board) deploy(c *graph.Ctx) error {
	d := b.deployment
	b.split.whole.gen = b.cat.numbers.gen
	for i, x := range d.Tasks {
		if err := b.placing.fabric.SetTask(b.cat.taskOf[i], float64(x.Throughput)); err != nil {
			return err
		}
	}
	if err := b.placing.deployChains(c.Now(), b.cat.taskOf); err != nil {
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
	b.placing.events(c)
	b.placing.recredit()
	b.placing.lays = map[lay]laid{}
	if b.cat.house != nil {
		b.near.planAll(c.Now())
	} else {
		for i := range b.cat.services {
			if b.cat.services[i].UID != 0 {
				b.placing.plan(c.Now(), i, b.runner.waits[i] == 0)
			}
		}
	}
	b.placing.lays = nil
	b.placing.events(c)
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

// renumber gives each of wanted a number, its index in the result. An owner that has a number keeps it. left is called with each number
// that loses its owner.
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
			b.split.obtained = append(b.split.obtained, obtained{})
		}
		if b.cat.tenants[n] != name {
			b.cat.tenants[n], b.split.obtained[n] = name, obtained{grant: 1}
		}
	}
	b.ingress.lobby.deploy(len(b.cat.tenants))
	number := b.cat.tenantNumbers()
	for _, t := range b.deployment.Tenants {
		out = append(out, number[t.Name])
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
	// Packets that old tasks hold go on from there, as long as all other tasks are present.
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

// move gives an app the state of the app that it replaces, if both support that.
func move(from, to graph.App) {
	if m, ok := to.(graph.Mover); ok && m.Inherit(from) {
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

// ordered is the tasks of a DAG in one of the orders that are right, and in stages.
type ordered struct {
	tasks  []int
	stages [][][]int
}

// orders are those of a deployment's DAGs. DAGs of the same tasks and edges share them: there may be thousands of them.
type orders struct {
	known map[string]ordered
	key   []byte
}

// of is those of DAG i, with the numbers of tasks.
func (q *orders) of(d *dag.Deployment, i, branches int, numbers []int) ordered {
	q.key = q.key[:0]
	for _, t := range d.DAGs[i].Tasks {
		q.key = binary.AppendUvarint(q.key, uint64(t)+1)
	}
	q.key = append(q.key, 0)
	for _, e := range d.DAGs[i].Edges {
		q.key = binary.AppendUvarint(binary.AppendUvarint(q.key, uint64(e[0])), uint64(e[1]))
	}
	if o, ok := q.known[string(q.key)]; ok {
		return o
	}
	var o ordered
	for _, t := range d.Stages(dag.DAGID(i), 1)[0][0] {
		o.tasks = append(o.tasks, numbers[t])
	}
	for _, stage := range d.Stages(dag.DAGID(i), branches) {
		var lines [][]int
		for _, branch := range stage {
			var line []int
			for _, t := range branch {
				line = append(line, numbers[t])
			}
			lines = append(lines, line)
		}
		o.stages = append(o.stages, lines)
	}
	q.known[string(q.key)] = o
	return o
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
			b.placing.unroute(n)
			s.UID = 0
		}
		s.term, number[uid] = term, n
	}
	b.cat.dagOf = b.cat.dagOf[:0]
	fresh := false
	all := orders{known: map[string]ordered{}}
	for i, x := range d.DAGs {
		n := number[x.UID]
		b.cat.dagOf = append(b.cat.dagOf, n)
		s := &b.cat.services[n]
		o := all.of(d, i, b.branches, numbers)
		if s.UID == 0 {
			*s = service{deployed: deployed{term: s.term}, inflow: inflow{listed: slices.Contains(b.placing.active, int32(n))}}
			fresh = true
		}
		s.stages = o.stages
		s.DAG, s.tenant = x, tenants[x.Tenant]
		if !slices.Equal(s.tasks, o.tasks) {
			s.tasks, s.visits = o.tasks, nil
			s.costs, s.cost, s.measured, s.unsure = make([]float64, len(o.tasks)), 0, make([]uint8, len(o.tasks)), true
		}
	}
	if b.cat.house != nil && fresh {
		if err := b.giveHomes(); err != nil {
			return err
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

// cover is the visits by which tasks run in candidates; nil: the candidates do not have all of them.
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

// Tick is the control core: epochs, monitors, regions, and the timers of tasks.
func (b *board) Tick(c *graph.Ctx) clock.Time {
	now := c.Now()
	b.cat.seen = now
	b.gates.crowded = false
	if b.renew {
		b.renew = false
		if b.placing.epochAt == 0 {
			b.placing.fabric = b.placing.newFabric(now, b.fixed)           // a board's time begins now
			b.runner.sched, _ = b.newScheduler(b.fixed, c.Rand().Uint64()) // as newBoard has tried
		}
		if err := b.deploy(c); err != nil {
			panic(fmt.Sprintf("snic: a deployment that was checked: %v", err))
		}
	}
	if now >= b.placing.epochAt {
		b.placing.endEpoch(now)
	}
	b.placing.fabric.Advance(now)
	b.placing.events(c)
	if b.near.pool != nil {
		b.near.peering(c)
		b.placing.events(c)
	}
	if b.cat.house != nil {
		b.gates.handLates(c)
		b.near.lodgings(c)
		b.placing.events(c)
	}
	b.heed(c)
	for i := range b.cat.tasks {
		t := &b.cat.tasks[i]
		if t.in == nil {
			continue
		}
		if t.next = min(t.next, t.in.Woken()); t.next <= now && !b.gates.crowded {
			t.next = t.in.Tick(c, t.app)
			t.fell()
			b.runner.sweep(c, t, t.in)
		}
	}
	b.ingress.serve(c)
	b.runner.due(c)
	b.runner.pump(c)
	b.placing.settle(now)
	b.placing.events(c)
	b.placing.seek(c)
	b.runner.pump(c)
	b.heed(c)
	b.runner.pump(c)
	due := b.runner.due(c)
	for b.runner.pump(c) { // some take no time
		due = b.runner.due(c)
	}
	next := min(due, b.placing.epochAt, b.placing.fabric.Next(), b.gates.resume(c))
	for i := range b.cat.tasks {
		if t := &b.cat.tasks[i]; t.in != nil {
			t.next = min(t.next, t.in.Woken()) // by what came to it meanwhile
			next = min(next, t.next)
		}
	}
	if b.memory != nil {
		next = min(next, b.memory.scrub(now, b.placing.quiet))
		if b.memory.look {
			next = now
		}
	}
	if b.near.pool != nil && b.near.pool.saving {
		next = min(next, b.near.pool.pieceAt)
	}
	if b.ingress.lobby.frames > 0 || b.gates.crowded {
		next = now
	}
	if len(b.near.moving) > 0 || b.gates.late > 0 {
		next = min(next, now.Add(transit))
	}
	return next
}

// Reconfigure takes a deployment, which Inside will put in force.
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
	if err := cmp.Or(b.settledAs(&s), b.memory.fits(s.deployment)); err != nil {
		return err
	}
	b.next = s
	return nil
}

// roomFor returns an error if there are not enough numbers for a deployment beside what is
// left of earlier ones.
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

// Takes reports whether all arguments that differ can be changed under traffic.
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

// Held returns how many frames wait on the board, outside of tasks.
func (b *board) Held() int {
	return b.runner.held + b.gates.paused + b.gates.late + b.ingress.lobby.frames
}

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

// Stop gives up the frames that tasks hold, and those that wait.
func (b *board) Stop(c *graph.Ctx) {
	b.gates.stopPauses(c)
	b.gates.stopLates(c)
	b.ingress.stop(c)
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
