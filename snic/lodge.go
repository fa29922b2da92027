package snic

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// Region r of a board belongs to worker r mod workers. A frame runs in the worker where it came in, if its DAG has regions there;
// otherwise that worker hands it to the DAG's home, the one worker that never hands over frames of that DAG. So no frame goes round.

const (
	// maxWorkers is how many a tag has room for.
	maxWorkers = 64
	// transit is how often a worker looks while a DAG goes from one to another.
	transit = 5 * time.Microsecond
	// leftWithin is the longest wait until all frames that were handed over have left. After that the order of flows is not kept.
	leftWithin = 100 * time.Millisecond
	// stands is the denominator of weights: one frame that stands for itself has weight stands.
	stands = 16
)

// fellows is a worker's part in what the workers of a board do for each other.
type fellows struct {
	*settings
	cat     *catalog
	whole   *whole
	gates   *gates
	runner  *runner
	placing *placement

	heard  uint32  // house.cries
	went   uint64  // DAGs, to their homes
	came   uint64  // and from there
	gave   uint64  // of those that went, because their homes could do all
	moving []int32 // DAGs that go from one worker to another
	lodged []int32 // DAGs with a limit that run here, though their home is elsewhere
	ebbAt  clock.Time
	freed  bool // a region may be free for what runs in another worker
}

// lodge is a DAG's part in other workers.
type lodge struct {
	home   int    // the DAG's home, a worker
	asked  bool   // the home was asked to say when all frames that it was handed have left
	handed uint32 // frames that were handed to the home
	// Bytes of late: that came, and that were let in.
	offered, let int64
	came         int64    // frames that others handed over, and what they stand for, in 1/stands; in this epoch
	frames       uint64   // that others handed over, ever
	bytes        uint64   // of these
	counted      uint64   // bytes when rate was measured
	rate         float64  // of these, in bytes a second, of late
	weight       uint8    // what a frame stands for, in 1/stands
	guests       []lodger // of other workers' frames here
	thrift       thrift
}

// lodger counts the frames that one worker has handed over.
type lodger struct {
	took   uint32
	inside int32
}

// leaveAsk is a question of one worker to another: has all left that you were handed?
type leaveAsk struct {
	state  atomic.Uint32
	gen    uint32
	dag    int32
	term   uint16
	handed uint32
	_      [40]byte
}

// States of a leaveAsk.
const (
	noAsk uint32 = iota
	isAsked
	isAnswered
)

// hosts is how many workers have regions.
func (s *settings) hosts() int { return min(s.workers, s.deployment.Regions.Count) }

// lone reports whether a DAG must be in one worker, because instances of its tasks do not share their state.
func (cat *catalog) lone(s *service) bool {
	return slices.ContainsFunc(s.tasks, func(n int) bool { t := &cat.tasks[n]; return t.space != nil || t.in != nil && t.in.Alone })
}

// travels reports whether a task may go to another board of the pool with its state, which is then the state of one instance.
func (s *settings) travels(t *dag.Task) bool { return s.poolPort >= 0 && t.State && t.Remote }

// first reports whether a task is in the first worker alone: it has memory of the board, which is only there, or its kind is Alone.
func (s *settings) first(t *dag.Task) bool {
	return t.Memory > 0 || s.library.kinds[t.Kind].Alone || s.travels(t) && s.library.usesMemory(t.Kind, t.Args)
}

// groups puts the tasks that must be in one worker into groups. Tasks that a DAG has in common are in one group, and so in the same
// worker. The number of a group is that of one of its tasks; tasks without a group have -1. first says which tasks are in the first
// worker alone.
func (s *settings) groups(first []bool) []int {
	d := s.deployment
	out := make([]int, len(d.Tasks))
	for i := range out {
		if out[i] = -1; first[i] || s.travels(&d.Tasks[i]) {
			out[i] = i
		}
	}
	for _, x := range d.DAGs {
		g := groupOf(out, x)
		for _, t := range x.Tasks {
			if old := out[t]; old >= 0 && old != g {
				for i := range out {
					if out[i] == old {
						out[i] = g
					}
				}
			}
		}
	}
	return out
}

// groupOf is the group of a DAG's tasks; -1: none of them is in one.
func groupOf(groups []int, x dag.DAG) int {
	for _, t := range x.Tasks {
		if groups[t] >= 0 {
			return groups[t]
		}
	}
	return -1
}

// homes are the homes of a deployment's DAGs, by their index. first says which tasks are in the first worker alone. settled is the
// present home of a DAG; negative: the DAG is new. A new DAG gets the home of its group, or else turn's. An error names a DAG that
// would have to leave its home: frames that are under way would meet tasks without their state.
func (s *settings) homes(first []bool, turn, settled func(i int) int) ([]int, error) {
	d, groups := s.deployment, s.groups(first)
	of := slices.Repeat([]int{-1}, len(groups)) // homes of groups
	for i, is := range first {
		if is {
			of[groups[i]] = 0
		}
	}
	out := make([]int, len(d.DAGs))
	for i, x := range d.DAGs {
		out[i] = settled(i)
		if g := groupOf(groups, x); g >= 0 && out[i] >= 0 {
			if of[g] >= 0 && of[g] != out[i] {
				return nil, fmt.Errorf("DAG %d runs in worker %d, and what its tasks know is in worker %d alone: take the DAG out, and deploy it anew", x.UID, out[i], of[g])
			}
			of[g] = out[i]
		}
	}
	for i, x := range d.DAGs {
		if out[i] >= 0 {
			continue
		}
		out[i] = turn(i) % s.hosts()
		if g := groupOf(groups, x); g >= 0 {
			if of[g] < 0 {
				of[g] = out[i]
			}
			out[i] = of[g]
		}
	}
	return out, nil
}

// settledAs is an error when a deployment cannot be put in force while several workers run: a DAG would have to leave its home, or is not
// at home in the first worker and would get a task that is in one worker alone, while others may run the DAG, too.
func (b *board) settledAs(s *settings) error {
	if b.cat.house == nil {
		return nil
	}
	at := make([]int, len(s.deployment.DAGs))
	for i, x := range s.deployment.DAGs {
		at[i] = slices.IndexFunc(b.cat.services, func(v service) bool { return v.UID == x.UID })
	}
	home := func(i int) int {
		if at[i] < 0 {
			return -1
		}
		return b.cat.services[at[i]].lodge.home
	}
	first := make([]bool, len(s.deployment.Tasks))
	for i := range first {
		first[i] = s.first(&s.deployment.Tasks[i])
	}
	for i, x := range s.deployment.DAGs {
		if home(i) <= 0 {
			continue
		}
		for _, id := range x.Tasks {
			switch t := &s.deployment.Tasks[id]; {
			case first[id]:
				return fmt.Errorf("DAG %d runs in worker %d, and its task %s is in the first one alone: take the DAG out, and deploy it anew", x.UID, home(i), t.Name)
			case s.travels(t) && !b.cat.lone(&b.cat.services[at[i]]):
				return fmt.Errorf("DAG %d may run in several workers, and its task %s is in one alone: take the DAG out, and deploy it anew", x.UID, t.Name)
			}
		}
	}
	_, err := s.homes(first, func(i int) int { return i }, home)
	return err
}

// limited reports that more instances of a DAG's tasks do more.
func (cat *catalog) limited(s *service) bool {
	return slices.ContainsFunc(s.tasks, func(n int) bool { return cat.tasks[n].Throughput > 0 })
}

// giveHomes gives new DAGs their homes.
func (b *board) giveHomes() error {
	lodgeOf := func(i int) *lodge { return &b.cat.services[b.cat.dagOf[i]].lodge }
	first := make([]bool, len(b.deployment.Tasks))
	for i, n := range b.cat.taskOf { // the task may be of a kind that the library does not know
		first[i] = b.first(&b.deployment.Tasks[i]) || b.cat.tasks[n].in.Kind.Alone
	}
	homes, err := b.homes(first, func(i int) int { return b.cat.dagOf[i] }, func(i int) int {
		if lodgeOf(i).guests == nil { // it is new
			return -1
		}
		return lodgeOf(i).home
	})
	for i, home := range homes {
		if l := lodgeOf(i); l.guests == nil {
			*l = lodge{home: home, weight: stands, guests: make([]lodger, b.workers)}
		}
	}
	return err
}

// planAll plans all DAGs: those whose home is here first, then others where there is room.
func (fe *fellows) planAll(now clock.Time) {
	for _, home := range []bool{true, false} {
		for i := range fe.cat.services {
			s := &fe.cat.services[i]
			if s.UID == 0 || (s.lodge.home == fe.cat.worker) != home {
				continue
			}
			if home || s.visits != nil || fe.runner.waits[i] > 0 || s.elsewhere() {
				fe.placing.plan(now, i, fe.runner.waits[i] == 0)
				continue
			}
			var visits []sched.Visit
			if !fe.cat.limited(s) {
				visits = fe.spareRegions(now, s)
			}
			if visits != nil {
				fe.placing.follow(i, visits)
			} else {
				fe.lodge(i)
			}
		}
	}
	fe.lodged = fe.lodged[:0]
	for i := range fe.cat.services {
		if fe.cat.lodges(&fe.cat.services[i]) {
			fe.lodged = append(fe.lodged, int32(i))
		}
	}
}

// spareRegions launches a DAG whose home is elsewhere in regions that nobody here needs, and returns its visits; nil: there are not
// enough regions, or the DAG must be at its home.
func (fe *fellows) spareRegions(now clock.Time, s *service) []sched.Visit {
	visits := slices.Clone(s.best)
	if visits == nil || fe.cat.lone(s) || fe.placing.launch(now, visits, region.Demand{Pre: true, NoPeer: true}) != region.ShareRunning {
		return nil
	}
	return visits
}

// lodge sends all frames of a DAG to its home, first those that wait.
func (fe *fellows) lodge(n int) {
	s := &fe.cat.services[n]
	s.where.depart(fe.cat.seen, workerAt(s.lodge.home))
	s.bulk, s.width, s.missing, s.refused, s.away, s.visits = false, 0, false, false, false, nil
	fe.placing.route(n, sched.Route{})
}

// leaveFor sends a DAG for which there is no region here to its home.
func (fe *fellows) leaveFor(n int) {
	fe.cat.services[n].where.leave()
	fe.placing.hold(n)
	fe.moving = append(fe.moving, int32(n))
}

// comeBack makes a DAG run here if a region is free that nobody needs.
func (fe *fellows) comeBack(now clock.Time, n int) bool {
	s := &fe.cat.services[n]
	if s.UID == 0 || s.where.phase != away || s.lodge.asked || fe.cat.house.abroad[n].Load() || fe.cat.lately(s) == 0 {
		return false
	}
	visits := fe.spareRegions(now, s)
	if visits == nil {
		return false
	}
	s.where.comeBack()
	s.visits = visits
	fe.moving = append(fe.moving, int32(n))
	return true
}

// lodgings does what is due for DAGs that go from one worker to another.
func (fe *fellows) lodgings(c *graph.Ctx) {
	now := c.Now()
	h := fe.cat.house
	for w := range fe.workers {
		if a := h.ask(w, fe.cat.worker); a.state.Load() == isAsked && fe.left(w, a) {
			a.state.Store(isAnswered)
		}
	}
	for w := range fe.workers {
		// The DAG that asked may be gone.
		if a := h.ask(fe.cat.worker, w); a.state.Load() == isAnswered {
			if s := fe.asker(a); s != nil {
				s.lodge.asked = false
				if s.where.phase == arriving {
					fe.arrived(now, int(a.dag))
				}
			}
			a.state.Store(noAsk)
		}
	}
	if cries := h.cries.Load(); cries != fe.heard || fe.freed {
		fe.heard = cries
		fe.help(now)
	}
	fe.placing.events(c) // what was launched may run: a victim does at once
	fe.ebb(now)
	moving := fe.moving[:0]
	for _, n := range fe.moving {
		if fe.move(now, int(n)) {
			moving = append(moving, n)
		}
	}
	fe.moving = moving
}

// asker is the DAG that asked, if it is still there.
func (fe *fellows) asker(a *leaveAsk) *service {
	if int(a.dag) < len(fe.cat.services) {
		if s := &fe.cat.services[a.dag]; s.UID != 0 && s.term == a.term {
			return s
		}
	}
	return nil
}

// left reports whether all frames of a DAG that another worker has handed over have left.
func (fe *fellows) left(from int, a *leaveAsk) bool {
	if a.gen > fe.whole.gen {
		return false // it is not yet known here
	}
	s := fe.asker(a)
	return s == nil || s.lodge.guests[from].took == a.handed && s.lodge.guests[from].inside == 0
}

// move continues the move of a DAG to another worker, or from it, and reports whether more is to be done.
func (fe *fellows) move(now clock.Time, n int) bool {
	s := &fe.cat.services[n]
	w, l := &s.where, &s.lodge
	switch {
	case s.UID == 0:
		return false
	case w.phase == leaving && !fe.runner.begun(n):
		visits := s.visits
		fe.went++
		fe.lodge(n)
		fe.placing.abandon(now, visits)
	case w.phase == leaving:
		return true
	case w.phase == arriving && now >= w.since.Add(leftWithin):
		fe.arrived(now, n)
	case w.phase == arriving && l.asked:
		return true
	case w.coming() && fe.cat.runs(s):
		if w.phase == returning {
			w.arrive(now)
			fe.placing.hold(n)
		}
		if fe.gates.lates[w.to.worker()].waiting() > 0 {
			return true // some may be of it
		}
		if a := fe.cat.house.ask(fe.cat.worker, w.to.worker()); a.state.Load() == noAsk {
			a.gen, a.dag, a.term, a.handed = fe.whole.gen, int32(n), s.term, l.handed
			l.asked = true
			a.state.Store(isAsked)
		}
		return true
	case w.coming() && fe.cat.hopes(s):
		return true
	case w.coming():
		fe.lodge(n)
	}
	return false
}

// arrived makes a DAG run here that came from its home. If the home is sending the DAG to a peer, the DAG goes back to the home: frames
// that were handed over may be at the peer.
func (fe *fellows) arrived(now clock.Time, n int) {
	if !fe.cat.house.abroad[n].Load() {
		fe.runHere(now, n)
		return
	}
	visits := fe.cat.services[n].visits
	fe.lodge(n)
	fe.placing.abandon(now, visits)
}

// runHere makes frames of a DAG run here that went to its home until now.
func (fe *fellows) runHere(now clock.Time, n int) {
	fe.came++
	s := &fe.cat.services[n]
	left := s.where.left
	fe.placing.settleHere(now, n)
	if fe.cat.lodges(s) {
		s.lodge.thrift.came(now, left, fe.monitor)
		fe.lodged = append(fe.lodged, int32(n))
	}
}

// help makes DAGs run here whose homes have too much of them, or which need only a region that is free here.
func (fe *fellows) help(now clock.Time) {
	for n := range fe.cat.services {
		s := &fe.cat.services[n]
		if s.UID == 0 || s.where.to >= 0 {
			continue
		}
		cried := fe.cat.house.crying[n].Load()
		if (cried || fe.freed && !fe.cat.limited(s)) && fe.comeBack(now, n) {
			fe.cat.house.crying[n].Store(false)
		}
	}
	fe.freed = false
}

// cry asks the workers that hand over frames of a DAG to run the DAG themselves, because there are too many frames here. It reports
// whether one of them may do so; after a question in vain it reports false.
func (fe *fellows) cry(n int) (may bool) {
	if slices.ContainsFunc(fe.cat.services[n].lodge.guests, func(l lodger) bool { return l.took > 0 }) {
		may = !fe.cat.house.crying[n].Swap(true)
		fe.cat.house.cries.Add(1)
	}
	return may
}

// hand gives a frame to the worker that runs its DAG; waited: it comes from the packet store.
func (gt *gates) hand(c *graph.Ctx, s *service, w way, x *packet.Buf, waited bool) {
	x.Tag = w.tag() | uint64(gt.cat.worker)<<48 | uint64(s.lodge.weight)<<54
	to := s.where.to.worker()
	l := &gt.lates[to]
	switch {
	case l.waiting() == 0 && c.Hand(to, x):
		s.lodge.handed++
	case !gt.delay(c, l, s.tenant, x, waited):
		x.Tag = 0
		c.Drop(x, reasonCrowded)
	}
}

// Taken runs frames that came in, and were let in, at another worker.
func (b *board) Taken(c *graph.Ctx, frames *packet.Batch) {
	if b.split.spent.clock != nil {
		b.split.breathe(c.Now(), frames.Len())
		b.ingress.lobby.look(frames)
		b.ingress.lobby.much, b.ingress.lobby.hides = b.ingress.lobby.more, false
	}
	g := &b.ingress.groups[0]
	g.batch.Reset()
	for _, x := range frames.Bufs() {
		tag := x.Tag
		x.Tag = 0
		if tag == fromPool {
			b.near.pool.handed.Add(x)
			continue
		}
		w := wayOf(tag)
		if int(w.dag) >= len(b.cat.services) || b.cat.services[w.dag].UID == 0 || b.cat.services[w.dag].term != w.term {
			c.Drop(x, reasonGone)
			continue
		}
		from, weight := int(tag>>48&(maxWorkers-1)), uint8(tag>>54)
		if g.batch.Len() > 0 && (g.way != w || g.from != from+1 || g.weight != weight) {
			b.ingress.takeIn(c, g)
			g.batch.Reset()
		}
		if g.batch.Len() == 0 {
			g.way, g.from, g.weight, g.bytes = w, from+1, weight, 0
		}
		g.flows[g.batch.Len()] = flow(x)
		g.batch.Add(x)
		g.bytes += x.Len()
	}
	if g.batch.Len() > 0 {
		b.ingress.takeIn(c, g)
	}
	if p := b.near.pool; p != nil && p.handed.Len() > 0 {
		b.takePeers(c, &p.handed)
		p.handed.Reset()
	}
	b.runner.pump(c)
}

// takeIn lets a group in that another worker has handed over.
func (ig *ingress) takeIn(c *graph.Ctx, g *group) {
	d := &ig.cat.services[g.way.dag]
	d.lodge.guests[g.from-1].took += uint32(g.batch.Len())
	d.arrived += int64(g.bytes) * int64(g.weight) / stands
	d.lodge.came += int64(g.batch.Len()) * int64(g.weight)
	d.lodge.frames += uint64(g.batch.Len())
	d.lodge.bytes += uint64(g.bytes)
	ig.placing.list(c, g.way.dag)
	if !d.elsewhere() {
		ig.offer(d, g)
	}
	ig.enter(c, -1, d, g)
}

// reckon computes the weight of a frame that is handed over.
func (l *lodge) reckon() {
	if l.offered < 1<<16 {
		return
	}
	l.weight = uint8(min(255, max(stands, l.offered*stands/max(l.let, 1))))
	l.offered, l.let = 0, 0
}
