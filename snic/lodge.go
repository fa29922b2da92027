package snic

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// Region r of a board is worker r mod workers'. A frame runs where it came in, if its DAG has regions there; otherwise it is
// handed to the DAG's home, the one worker that never hands frames of that DAG over. So no frame goes on for ever.

const (
	// maxWorkers is how many a tag has room for.
	maxWorkers = 64
	// transit is how often a worker looks while a DAG goes from one to another.
	transit = 5 * time.Microsecond
	// leftWithin is when all that was handed over has left at the latest, as far as order is kept.
	leftWithin = 100 * time.Millisecond
	// stands are the parts of what a frame stands for.
	stands = 16
)

// lodge is a DAG's part in other workers.
type lodge struct {
	home   int    // its worker
	asked  bool   // its home is to say when all that it was handed has left
	handed uint32 // frames, to its home
	// Bytes of late: that came, and that were let in.
	offered, let int64
	came         int64    // frames that others handed over, and what they stand for, in 1/stands; in this epoch
	weight       uint8    // what a frame stands for, in 1/stands
	guests       []lodger // of other workers' frames here
	thrift       thrift
}

// lodger is what a worker has handed over.
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
func (cat *catalog) hosts() int { return min(cat.workers, cat.deployment.Regions.Count) }

// lone reports that a DAG is to be in one worker: what its tasks know, each instance has for itself.
func (cat *catalog) lone(s *service) bool {
	return slices.ContainsFunc(s.tasks, func(n int) bool { t := &cat.tasks[n]; return t.space != nil || t.in != nil && t.in.Kind.Alone })
}

// limited reports that more instances of a DAG's tasks do more.
func (cat *catalog) limited(s *service) bool {
	return slices.ContainsFunc(s.tasks, func(n int) bool { return cat.tasks[n].Throughput > 0 })
}

// lodgeNew gives a DAG that is new its home: workers take turns.
func (cat *catalog) lodgeNew(n int) {
	s := &cat.services[n]
	s.lodge = lodge{home: n % cat.hosts(), weight: stands, guests: make([]lodger, cat.workers)}
	if cat.lone(s) {
		s.lodge.home = 0
	}
}

// planAll plans all DAGs: those whose home is here first, then others where there is room.
func (nb *nearby) planAll(now clock.Time) {
	for _, home := range []bool{true, false} {
		for i := range nb.cat.services {
			s := &nb.cat.services[i]
			if s.UID == 0 || (s.lodge.home == nb.cat.worker) != home {
				continue
			}
			if home || s.visits != nil || nb.runner.waits[i] > 0 || s.elsewhere() {
				nb.place.plan(now, i, nb.runner.waits[i] == 0)
				continue
			}
			var visits []sched.Visit
			if !nb.cat.limited(s) {
				visits = nb.spareRegions(now, s)
			}
			if visits != nil {
				nb.place.follow(i, visits)
			} else {
				nb.lodge(i)
			}
		}
	}
	nb.lodged = nb.lodged[:0]
	for i := range nb.cat.services {
		if nb.cat.lodges(&nb.cat.services[i]) {
			nb.lodged = append(nb.lodged, int32(i))
		}
	}
}

// spareRegions has a DAG whose home is elsewhere be in regions that nobody here needs; nil: there are not enough, or
// it is to be at its home.
func (nb *nearby) spareRegions(now clock.Time, s *service) []sched.Visit {
	visits := slices.Clone(s.best)
	if visits == nil || nb.cat.lone(s) || nb.place.launch(now, visits, region.Demand{Pre: true, NoPeer: true}) != region.ShareRunning {
		return nil
	}
	return visits
}

// lodge has all frames of a DAG go to its home, those that wait first.
func (nb *nearby) lodge(n int) {
	s := &nb.cat.services[n]
	s.where.depart(nb.cat.seen, workerAt(s.lodge.home))
	s.bulk, s.width, s.missing, s.refused, s.away, s.visits = false, 0, false, false, false, nil
	nb.place.route(n, sched.Route{})
}

// leaveFor has a DAG, for which there is no region here, go to its home.
func (nb *nearby) leaveFor(n int) {
	nb.cat.services[n].where.leave()
	nb.place.hold(n)
	nb.moving = append(nb.moving, int32(n))
}

// comeBack has a DAG run here, if there is a region that nobody needs.
func (nb *nearby) comeBack(now clock.Time, n int) bool {
	s := &nb.cat.services[n]
	if s.UID == 0 || s.where.phase != away || s.lodge.asked || nb.cat.lately(s) == 0 {
		return false
	}
	visits := nb.spareRegions(now, s)
	if visits == nil {
		return false
	}
	s.where.comeBack()
	s.visits = visits
	nb.moving = append(nb.moving, int32(n))
	return true
}

// lodgings does what is due for DAGs that go from one worker to another.
func (nb *nearby) lodgings(c *graph.Ctx) {
	now := c.Now()
	h := nb.cat.house
	for w := range nb.workers {
		if a := h.ask(w, nb.cat.worker); a.state.Load() == isAsked && nb.left(w, a) {
			a.state.Store(isAnswered)
		}
	}
	for w := range nb.workers {
		// Whoever asked may be gone.
		if a := h.ask(nb.cat.worker, w); a.state.Load() == isAnswered {
			if s := nb.asker(a); s != nil {
				s.lodge.asked = false
				if s.where.phase == arriving {
					nb.runHere(now, int(a.dag))
				}
			}
			a.state.Store(noAsk)
		}
	}
	if cries := h.cries.Load(); cries != nb.heard || nb.freed {
		nb.heard = cries
		nb.help(now)
	}
	nb.place.events(c) // what was launched may run: a victim does at once
	nb.ebb(now)
	moving := nb.moving[:0]
	for _, n := range nb.moving {
		if nb.move(now, int(n)) {
			moving = append(moving, n)
		}
	}
	nb.moving = moving
}

// asker is the DAG that asked, if it is still there.
func (nb *nearby) asker(a *leaveAsk) *service {
	if int(a.dag) < len(nb.cat.services) {
		if s := &nb.cat.services[a.dag]; s.UID != 0 && s.term == a.term {
			return s
		}
	}
	return nil
}

// left reports whether all of a DAG that another worker has handed over has left.
func (nb *nearby) left(from int, a *leaveAsk) bool {
	if a.gen > nb.split.whole.gen {
		return false // it is not yet known here
	}
	s := nb.asker(a)
	return s == nil || s.lodge.guests[from].took == a.handed && s.lodge.guests[from].inside == 0
}

// move takes a DAG further on its way to another worker, or from it, and reports whether there is more to be done.
func (nb *nearby) move(now clock.Time, n int) bool {
	s := &nb.cat.services[n]
	w, l := &s.where, &s.lodge
	switch {
	case s.UID == 0:
		return false
	case w.phase == leaving && !nb.runner.begun(n):
		visits := s.visits
		nb.went++
		nb.lodge(n)
		nb.place.abandon(now, visits)
	case w.phase == leaving:
		return true
	case w.phase == arriving && now >= w.since.Add(leftWithin):
		nb.runHere(now, n)
	case w.phase == arriving && l.asked:
		return true
	case w.coming() && nb.cat.runs(s):
		if w.phase == returning {
			w.arrive(now)
			nb.place.hold(n)
		}
		if nb.gates.lates[w.to.worker()].waiting() > 0 {
			return true // some may be of it
		}
		if a := nb.cat.house.ask(nb.cat.worker, w.to.worker()); a.state.Load() == noAsk {
			a.gen, a.dag, a.term, a.handed = nb.split.whole.gen, int32(n), s.term, l.handed
			l.asked = true
			a.state.Store(isAsked)
		}
		return true
	case w.coming() && nb.cat.hopes(s):
		return true
	case w.coming():
		nb.lodge(n)
	}
	return false
}

// runHere has frames of a DAG run here that went to its home until now.
func (nb *nearby) runHere(now clock.Time, n int) {
	nb.came++
	s := &nb.cat.services[n]
	left := s.where.left
	nb.local(now, n)
	if nb.cat.lodges(s) {
		s.lodge.thrift.came(now, left, nb.monitor)
		nb.lodged = append(nb.lodged, int32(n))
	}
}

// help has DAGs run here whose homes have too much of them, or which need no more than a region that is free here.
func (nb *nearby) help(now clock.Time) {
	for n := range nb.cat.services {
		s := &nb.cat.services[n]
		if s.UID == 0 || s.where.to == 0 {
			continue
		}
		cried := nb.cat.house.crying[n].Load()
		if (cried || nb.freed && !nb.cat.limited(s)) && nb.comeBack(now, n) {
			nb.cat.house.crying[n].Store(false)
		}
	}
	nb.freed = false
}

// cry asks workers that hand frames of a DAG over to run them, since there are too many.
func (nb *nearby) cry(n int) {
	if slices.ContainsFunc(nb.cat.services[n].lodge.guests, func(l lodger) bool { return l.took > 0 }) {
		nb.cat.house.crying[n].Store(true)
		nb.cat.house.cries.Add(1)
	}
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

// Taken runs frames that came in elsewhere, and were let in there.
func (b *board) Taken(c *graph.Ctx, frames *packet.Batch) {
	if b.split.spent.clock != nil {
		b.split.breathe(c.Now(), frames.Len())
	}
	g := &b.ingress.groups[0]
	g.batch.Reset()
	for _, x := range frames.Bufs() {
		tag := x.Tag
		x.Tag = 0
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
	b.runner.pump(c)
}

// takeIn lets a group in that another worker has handed over.
func (ig *ingress) takeIn(c *graph.Ctx, g *group) {
	d := &ig.cat.services[g.way.dag]
	d.lodge.guests[g.from-1].took += uint32(g.batch.Len())
	d.arrived += int64(g.bytes) * int64(g.weight) / stands
	d.lodge.came += int64(g.batch.Len()) * int64(g.weight)
	ig.place.list(c, g.way.dag)
	if !d.elsewhere() {
		ig.offer(d, g)
	}
	ig.letIn(c, -1, g)
}

// reckon finds what a frame that is handed over stands for.
func (l *lodge) reckon() {
	if l.offered < 1<<16 {
		return
	}
	l.weight = uint8(min(255, max(stands, l.offered*stands/max(l.let, 1))))
	l.offered, l.let = 0, 0
}
