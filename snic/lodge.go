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
	home   int  // its worker
	at     int  // worker + 1 that its frames are handed to; 0: they run here
	going  bool // frames wait until those inside have left, and go to its home then
	coming bool // it is launched here
	asked  bool // its home is to say when all that it was handed has left
	since  clock.Time
	handed uint32
	// Bytes of late: that came, and that were let in.
	offered, let int64
	weight       uint8    // what a frame stands for, in 1/stands
	guests       []lodger // of other workers' frames here
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
	return slices.ContainsFunc(s.tasks, func(n int) bool { return cat.tasks[n].space != nil || cat.tasks[n].Kind == "p4" })
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
func (b *board) planAll(now clock.Time) {
	for _, home := range []bool{true, false} {
		for i := range b.cat.services {
			s := &b.cat.services[i]
			if s.UID == 0 || (s.lodge.home == b.cat.worker) != home {
				continue
			}
			if home || s.visits != nil || b.runner.waits[i] > 0 || s.elsewhere() {
				b.plan(now, i, b.runner.waits[i] == 0)
				continue
			}
			var visits []sched.Visit
			if !b.cat.limited(s) {
				visits = b.spareRegions(now, s)
			}
			if visits != nil {
				b.follow(i, visits)
			} else {
				b.lodge(i)
			}
		}
	}
}

// spareRegions has a DAG whose home is elsewhere be in regions that nobody here needs; nil: there are not enough, or
// it is to be at its home.
func (b *board) spareRegions(now clock.Time, s *service) []sched.Visit {
	visits := slices.Clone(s.best)
	if visits == nil || b.cat.lone(s) || b.launch(now, visits, region.Demand{Pre: true, NoPeer: true}) != region.ShareRunning {
		return nil
	}
	return visits
}

// lodge has all frames of a DAG go to its home, those that wait first.
func (b *board) lodge(n int) {
	s := &b.cat.services[n]
	s.lodge.at, s.lodge.going, s.lodge.coming = s.lodge.home+1, false, false
	s.abroad.paused = false
	s.bulk, s.width, s.missing, s.refused, s.away, s.visits = false, 0, false, false, false, nil
	b.route(n, sched.Route{})
}

// leaveFor has a DAG, for which there is no region here, go to its home.
func (b *board) leaveFor(n int) {
	b.cat.services[n].lodge.going = true
	b.hold(n)
	b.moving = append(b.moving, int32(n))
}

// comeBack has a DAG run here, if there is a region that nobody needs.
func (b *board) comeBack(now clock.Time, n int) bool {
	s := &b.cat.services[n]
	if s.UID == 0 || s.lodge.at == 0 || s.underWay() || s.lodge.asked || b.cat.lately(s) == 0 {
		return false
	}
	visits := b.spareRegions(now, s)
	if visits == nil {
		return false
	}
	s.visits, s.lodge.coming = visits, true
	b.moving = append(b.moving, int32(n))
	return true
}

// underWay reports that a DAG is on its way between workers.
func (s *service) underWay() bool { return s.lodge.coming || s.lodge.going || s.abroad.paused }

// lodgings does what is due for DAGs that go from one worker to another.
func (b *board) lodgings(now clock.Time) {
	h := b.cat.house
	for w := range b.workers {
		if a := h.ask(w, b.cat.worker); a.state.Load() == isAsked && b.left(w, a) {
			a.state.Store(isAnswered)
		}
	}
	for w := range b.workers {
		// Whoever asked may be gone.
		if a := h.ask(b.cat.worker, w); a.state.Load() == isAnswered {
			if s := b.asker(a); s != nil {
				s.lodge.asked = false
				if s.lodge.coming && s.abroad.paused {
					b.runHere(now, int(a.dag))
				}
			}
			a.state.Store(noAsk)
		}
	}
	if cries := h.cries.Load(); cries != b.heard || b.freed {
		b.heard = cries
		b.help(now)
	}
	moving := b.moving[:0]
	for _, n := range b.moving {
		if b.move(now, int(n)) {
			moving = append(moving, n)
		}
	}
	b.moving = moving
}

// asker is the DAG that asked, if it is still there.
func (b *board) asker(a *leaveAsk) *service {
	if int(a.dag) < len(b.cat.services) {
		if s := &b.cat.services[a.dag]; s.UID != 0 && s.term == a.term {
			return s
		}
	}
	return nil
}

// left reports whether all of a DAG that another worker has handed over has left.
func (b *board) left(from int, a *leaveAsk) bool {
	if a.gen > b.split.whole.gen {
		return false // it is not yet known here
	}
	s := b.asker(a)
	return s == nil || s.lodge.guests[from].took == a.handed && s.lodge.guests[from].inside == 0
}

// move takes a DAG further on its way to another worker, or from it, and reports whether there is more to be done.
func (b *board) move(now clock.Time, n int) bool {
	s := &b.cat.services[n]
	l := &s.lodge
	switch {
	case s.UID == 0:
		return false
	case l.going && !b.runner.begun(n):
		visits := s.visits
		b.went++
		b.lodge(n)
		b.abandon(now, visits)
	case l.going:
		return true
	case l.coming && l.asked:
		if now < l.since.Add(leftWithin) {
			return true
		}
		b.runHere(now, n)
	case l.coming && b.cat.runs(s):
		if !s.abroad.paused {
			b.hold(n)
			l.since = now
		}
		if a := b.cat.house.ask(b.cat.worker, l.at-1); a.state.Load() == noAsk {
			a.gen, a.dag, a.term, a.handed = b.split.whole.gen, int32(n), s.term, l.handed
			l.asked = true
			a.state.Store(isAsked)
		}
		return true
	case l.coming && b.cat.hopes(s):
		return true
	case l.coming:
		b.lodge(n)
	}
	return false
}

// runHere has frames of a DAG run here that went to its home until now.
func (b *board) runHere(now clock.Time, n int) {
	s := &b.cat.services[n]
	s.lodge.at, s.lodge.coming = 0, false
	b.came++
	b.local(now, n)
}

// help has DAGs run here whose homes have too much of them, or which need no more than a region that is free here.
func (b *board) help(now clock.Time) {
	for n := range b.cat.services {
		s := &b.cat.services[n]
		if s.UID == 0 || s.lodge.at == 0 {
			continue
		}
		cried := b.cat.house.crying[n].Load()
		if (cried || b.freed && !b.cat.limited(s)) && b.comeBack(now, n) {
			b.cat.house.crying[n].Store(false)
		}
	}
	b.freed = false
}

// cry asks workers that hand frames of a task over to run them, since there are too many.
func (b *board) cry(task int) {
	if b.cat.house == nil {
		return
	}
	for n := range b.cat.services {
		b.cat.carried(n, task, func(int, int64) {
			if slices.ContainsFunc(b.cat.services[n].lodge.guests, func(l lodger) bool { return l.took > 0 }) {
				b.cat.house.crying[n].Store(true)
				b.cat.house.cries.Add(1)
			}
		})
	}
}

// hand gives a frame to the worker that runs its DAG.
func (gt *gates) hand(c *graph.Ctx, s *service, w way, x *packet.Buf) {
	x.Tag = w.tag() | uint64(gt.cat.worker)<<48 | uint64(s.lodge.weight)<<54
	if !c.Hand(s.lodge.at-1, x) {
		x.Tag = 0
		c.Drop(x, reasonCrowded)
		return
	}
	s.lodge.handed++
}

// Taken runs frames that came in elsewhere, and were let in there.
func (b *board) Taken(c *graph.Ctx, frames *packet.Batch) {
	if b.split.spent.clock != nil {
		b.split.breathe(c.Now(), frames.Len())
	}
	g := &b.groups[0]
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
			b.takeIn(c, g)
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
		b.takeIn(c, g)
	}
	b.runner.pump(c)
}

// takeIn lets a group in that another worker has handed over.
func (b *board) takeIn(c *graph.Ctx, g *group) {
	d := &b.cat.services[g.way.dag]
	d.lodge.guests[g.from-1].took += uint32(g.batch.Len())
	d.arrived += int64(g.bytes) * int64(g.weight) / stands
	b.list(c, g.way.dag)
	if d.byFlow && !d.elsewhere() {
		b.want(d, g)
	}
	b.letIn(c, -1, g)
}

// reckon finds what a frame that is handed over stands for.
func (l *lodge) reckon() {
	if l.offered < 1<<16 {
		return
	}
	l.weight = uint8(min(255, max(stands, l.offered*stands/max(l.let, 1))))
	l.offered, l.let = 0, 0
}
