package fusee

import (
	"fmt"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// step is what a session waits for.
type step uint8

const (
	stepIdle    step = iota
	stepWait         // time, until memory may be reused
	stepCollect      // READ of the states of objects that may be free
	stepCached       // READ of a slot that the cache has, and of its object
	stepFind         // WRITE of the object, READ of the key's buckets
	stepKeys         // READ of objects that may be the key's
	stepPropose      // CAS of a slot's backups
	stepCheck        // READ of the primary
	stepFix          // CAS of backups that have another word
	stepLog          // WRITE of the old word into the object
	stepCommit       // CAS of the primary
	stepWatch        // READ of the primary, until another session's word has won
	stepLook         // READ of all replicas
	stepFill         // CAS of backups that have the old word, to the winning word
	stepBlocks       // READ of a region's blocks
	stepWalk         // READ of objects in a dead session's block
	stepRefer        // READ of the buckets of an object's key, on all replicas
	stepMark         // WRITE of the state of an object that nothing refers to
	stepTake         // CAS of a block's owner
	stepMirror       // WRITE of the owner on the other nodes
)

// session is a client thread with a queue pair to each node. It has one operation and one post under way at a
// time.
type session struct {
	onesided.Session
	c      *Client
	l      *Layout
	id     uint16
	grants []Grant
	downAt []clock.Time // time since which a node cannot be dialled; 0: it can be
	epoch  uint32
	alive  uint32
	oldAt  clock.Time // time since which the view is too old; 0: it is not
	// rings are the members of each ring, for the members in ringsOf.
	rings   [16][]int
	ringsOf uint32

	step  step
	res   Result
	h     hashed
	tries int

	slab     onesided.Slab[address] // memory for objects, by units
	turn     int                    // region of the next block
	piece    piece                  // memory of the object that is written
	has      bool                   // piece is allocated
	written  bool                   // the object is in memory, whole
	proposed bool                   // a replica of a slot may have the object's word
	rounds   int                    // how often free objects were searched
	obj      []byte

	find
	round
	rec   recovery
	cache *cache
}

// piece is memory for an object.
type piece = onesided.Piece[address]

func newSession(c *Client, i int) *session {
	l := &c.cfg.Layout
	s := &session{
		Session: onesided.NewSession(i, l.Nodes, maxWords), c: c, l: l, id: c.cfg.ID + uint16(i), grants: make([]Grant, l.Nodes), downAt: make([]clock.Time, l.Nodes),
		alive: 1<<l.Nodes - 1, turn: i,
	}
	if s.cache = &c.cache; !c.cfg.Wide {
		s.cache = new(cache)
		s.cache.init(c.cfg.Cache)
	}
	return s
}

// patience is the number of FailAfter times for which a session waits until a master removes a node, or
// publishes a view.
const patience = 16

// maxWords is the most words that a post asks for.
const maxWords = 64

// replicas returns the members that have a copy of what begins its ring at node first; the first of them is
// the primary.
func (s *session) replicas(first int) []int {
	l := s.l
	if s.ringsOf != s.alive {
		s.ringsOf = s.alive
		for first := range s.rings {
			s.rings[first] = nil
			for i := range l.Replicas {
				if n := (first + i) % l.Nodes; s.alive>>n&1 != 0 {
					s.rings[first] = append(s.rings[first], n)
				}
			}
		}
	}
	return s.rings[first%l.Nodes]
}

// begin begins an operation.
func (s *session) begin(now clock.Time, op Op) {
	c := s.c
	s.res, s.Cost = Result{Session: s.Index, Op: op, Start: now}, onesided.Cost{}
	s.tries, s.rounds, s.has, s.written, s.proposed = 0, 0, false, false, false
	s.find, s.round = find{entries: s.find.entries[:0]}, round{}
	s.step, s.Busy = stepWait, true
	n := s.l.units(len(op.Key), len(op.Value))
	switch {
	case c.err != nil:
		s.end(now, c.err)
	case op.Kind > Recover:
		s.end(now, fmt.Errorf("fusee: there is no operation %d", op.Kind))
	case op.Kind == Recover:
		s.rec = recovery{dead: op.Dead}
		if op.Dead == 0 || op.Dead == s.id {
			s.end(now, ErrOwner)
			return
		}
		s.do(now, stepBlocks)
	case len(op.Key) == 0 || len(op.Key) > MaxKey:
		s.end(now, ErrKey)
	case (op.Kind == Insert || op.Kind == Update) && (n > maxUnits || n*s.l.Unit > s.l.Block):
		s.end(now, ErrValue)
	default:
		s.h = s.l.hash(op.Key)
		s.start(now)
	}
}

// start starts the operation, or starts it again.
func (s *session) start(now clock.Time) {
	s.at, s.seen = -1, 0
	switch k := s.res.Kind; {
	case k == Recover:
		s.rec = recovery{dead: s.res.Dead}
		s.do(now, stepBlocks)
	case k == Read && s.tries == 0 && !s.c.cfg.Wide && s.cache.get(s.res.Key) != nil:
		s.do(now, stepCached)
	case k == Read:
		s.do(now, stepFind)
	default:
		s.prepare(now)
	}
}

// again starts the operation again. An object whose word a replica of a slot may have had is not used again,
// because its word would be the same. dropped: no primary has the word.
func (s *session) again(now clock.Time, dropped bool) {
	s.tries++
	s.c.stats.Again++
	s.leave(now, dropped)
	if s.tries > s.c.cfg.Tries {
		s.end(now, ErrBusy)
		return
	}
	s.start(now)
}

// leave gives up the allocated object. dropped: no slot's primary has its word.
func (s *session) leave(now clock.Time, dropped bool) {
	switch {
	case !s.has:
		return
	case !s.proposed:
		return // the next try uses it
	case dropped:
		s.slab.Leave(now, s.piece)
	default:
		s.slab.Own(s.piece)
	}
	s.has, s.written, s.proposed = false, false, false
}

// prepare finds memory for the object, and begins to search the key.
func (s *session) prepare(now clock.Time) {
	n := s.l.units(len(s.res.Key), len(s.res.Value))
	if s.res.Kind == Delete {
		n = s.l.units(len(s.res.Key), 0)
	}
	for !s.has {
		p, ok := s.slab.Take(now, n, s.c.cfg.FailAfter)
		if ok {
			s.piece, s.has = p, true
			break
		}
		if s.block(now, n) {
			continue
		}
		switch {
		case s.rounds <= s.slab.Owned()/maxWords+1 && s.slab.Owned() > 0:
			s.rounds++
			s.do(now, stepCollect)
		case s.slab.Late(func(size int) bool { return size == n }) && s.rounds < 1<<20:
			s.rounds = 1 << 20 // wait only once
			s.step, s.WakeAt = stepWait, now.Add(s.c.cfg.FailAfter)
		default:
			s.end(now, ErrNoMemory)
		}
		return
	}
	s.do(now, stepFind)
}

// block asks the nodes in turn for another block.
func (s *session) block(now clock.Time, units int) bool {
	for range s.l.Nodes {
		region := s.turn % s.l.Nodes
		s.turn++
		if len(s.replicas(region)) == 0 {
			continue
		}
		if b, err := s.c.cfg.Alloc(now, s.id, region, units); err == nil {
			for i := s.l.Block/(units*s.l.Unit) - 1; i >= 0; i-- {
				s.slab.Add(units, address{region, b*s.l.Block + i*units*s.l.Unit})
			}
			return true
		}
	}
	return false
}

// collected checks which objects are free.
func (s *session) collected(now clock.Time) {
	for i, p := range s.find.pieces {
		if s.Words[i][0] == stateFreed {
			s.c.stats.Collected++
			s.slab.Freed(now, p)
		}
	}
	s.prepare(now)
}

func (s *session) end(now clock.Time, err error) {
	c := s.c
	s.step, s.Busy = stepIdle, false
	s.res.Err, s.res.End, s.res.Retries, s.res.Cost = err, now, s.tries, s.Cost
	if s.has { // the operation did not use it up
		if !s.proposed {
			s.slab.Give(s.piece)
		} else {
			s.slab.Own(s.piece)
		}
		s.has = false
	}
	if err != nil {
		c.stats.Errors++
	} else {
		c.stats.Done[s.res.Kind]++
	}
	c.stats.Messages += uint64(s.res.Messages)
	if c.cfg.Done != nil {
		c.cfg.Done(&s.res)
	}
}

// do begins a step.
func (s *session) do(now clock.Time, x step) {
	s.step = x
	s.fire(now)
}

// Next implements onesided.Thread.
func (s *session) Next(now clock.Time) bool {
	op, ok := s.c.cfg.Next(now, s.Index)
	if ok {
		s.begin(now, op)
	}
	return ok
}

// Wake implements onesided.Thread.
func (s *session) Wake(now clock.Time) {
	if s.step == stepWait {
		s.prepare(now)
		return
	}
	s.fire(now)
}

// inRound reports whether words may be on their way to a slot's replicas in this step.
func (x step) inRound() bool { return x >= stepPropose && x <= stepFill }

// fire posts the requests of the step. If the view is too old, or a node is not connected, it does so later.
func (s *session) fire(now clock.Time) {
	if view := s.c.cfg.View; view != nil {
		v := view(now)
		if now >= v.Until {
			if s.oldAt == 0 {
				s.oldAt = now
			}
			if now.Sub(s.oldAt) > patience*s.c.cfg.FailAfter {
				s.oldAt = 0
				s.unreachable(now)
				return
			}
			s.WakeAt = now.Add(onesided.RedialAfter)
			return
		}
		s.oldAt = 0
		if v.Epoch != s.epoch {
			s.epoch, s.alive = v.Epoch, v.Alive
			s.c.stats.Epochs++
			s.resume(now)
			return
		}
	}
	s.Begin()
	s.Reset()
	phase, ok := s.compose(now)
	if !ok {
		s.unreachable(now)
		return
	}
	s.send(now, phase)
}

// unreachable ends an operation that needs data that no member has, or that no node answers for.
func (s *session) unreachable(now clock.Time) {
	err := ErrGone
	if s.step.inRound() && s.proposed {
		err = ErrUnknown
	}
	s.end(now, err)
}

// compose makes the requests of the step; false: no member has what they are for.
func (s *session) compose(now clock.Time) (Phase, bool) {
	phase, ok := numPhases, true
	switch s.step {
	case stepCollect:
		s.find.pieces = append(s.find.pieces[:0], s.slab.Some(maxWords)...)
		for i, p := range s.find.pieces {
			s.Words[i] = [8]byte{}
			if at := s.replicas(p.At.node); len(at) > 0 {
				s.Ask(rnic.OpRead, at[0], s.objectsOf(at[0], p.At.node), p.At.off, s.Words[i][:])
			}
		}
		ok = len(s.WRs) > 0
	case stepCached:
		ok = lookup{s}.askCached(now)
	case stepFind:
		phase = Writing
		ok = lookup{s}.askFind(now)
	case stepKeys:
		ok = lookup{s}.askKeys()
	case stepBlocks, stepWalk, stepRefer, stepMark, stepTake, stepMirror:
		phase = Repairing
		ok = s.rec.ask(s)
	default:
		phase, ok = snapshot{s}.askRound()
		if s.res.Kind == Recover {
			phase = Repairing
		}
	}
	return phase, ok
}

// objectsOf returns where a node has its copy of a region.
func (s *session) objectsOf(node, region int) Region {
	k, _ := s.l.copyOn(node, region)
	g := Region{VA: uint64(k * s.l.regionSize())}
	if s.connected(node) {
		g.VA += s.grants[node].Objects.VA
		g.RKey = s.grants[node].Objects.RKey
	}
	return g
}

func (s *session) connected(node int) bool { return s.QPs[node] != nil }

// link connects the session to a node if it is not connected; false: it cannot at present.
func (s *session) link(now clock.Time, node int) bool {
	if s.connected(node) {
		return true
	}
	c := s.c
	qp, g, err := c.cfg.Dial(now, s.Index, node)
	if err != nil {
		if s.downAt[node] == 0 {
			s.downAt[node] = now
		}
		wait := c.cfg.FailAfter
		if c.cfg.Suspect != nil {
			c.cfg.Suspect(now, node)
			wait *= patience
		}
		if now.Sub(s.downAt[node]) > wait {
			s.downAt[node] = 0 // the next operation waits as long again
			s.unreachable(now)
			return false
		}
		s.WakeAt = now.Add(onesided.RedialAfter)
		return false
	}
	s.downAt[node] = 0
	if g.Layout != c.cfg.Layout {
		c.err = fmt.Errorf("fusee: the node's store is not the client's: it is %+v, and not %+v", g.Layout, c.cfg.Layout)
		s.end(now, c.err)
		return false
	}
	s.QPs[node], s.grants[node] = qp, g
	return true
}

// send posts the requests, if all their nodes are connected.
func (s *session) send(now clock.Time, phase Phase) {
	c := s.c
	dialled := false
	for _, n := range s.Nodes {
		was := s.connected(n)
		if !s.link(now, n) {
			return
		}
		dialled = dialled || !was
	}
	if dialled { // the addresses are known only now
		s.fire(now)
		return
	}
	n, ok, err := s.Post(func(i int, w *rnic.SendWR) bool {
		if phase < numPhases && c.cfg.Cut != nil && w.Op != rnic.OpRead && c.cfg.Cut(now, s.Index, phase, i) {
			return false
		}
		if w.Op == rnic.OpCompareSwap && s.step.inRound() {
			s.proposed = s.proposed || s.has && s.round.new.at() == s.piece.At
		}
		return true
	})
	switch {
	case err != nil:
		c.Broke(s, n)
		s.Lost(now, n)
	case !ok:
		s.die(now)
	}
}

var freed = [][]byte{{stateFreed}}

// release marks the object of w as free, because nothing refers to it any more. The session does not wait for
// the WRITEs. false: the session was made to fail.
func (s *session) release(now clock.Time, w slot) bool {
	if w == 0 || s.res.Kind == Recover {
		return true
	}
	a := w.at()
	for i, n := range s.replicas(a.node) {
		if !s.connected(n) {
			continue
		}
		if cut := s.c.cfg.Cut; cut != nil && cut(now, s.Index, Freeing, i) {
			s.die(now)
			return false
		}
		r := s.objectsOf(n, a.node)
		if s.Aside(n, &rnic.SendWR{Op: rnic.OpWrite, SGL: freed, RemoteAddr: r.VA + uint64(a.off), RKey: r.RKey}) != nil {
			s.c.Broke(s, n)
		}
	}
	return true
}

// die makes the session fail: requests that it has posted go on, and memory that it holds stays taken.
func (s *session) die(now clock.Time) {
	s.Drop() // no earlier completion counts any more
	s.fresh()
	s.has = false
	s.end(now, ErrDied)
}

// fresh leaves the buffers to requests that may still be under way.
func (s *session) fresh() {
	s.Fresh()
	s.obj = nil
}

// Lost implements onesided.Thread.
func (s *session) Lost(now clock.Time, _ int) {
	if !s.Pending() && (s.step == stepIdle || s.step == stepWait || s.WakeAt != clock.Never) {
		return
	}
	s.Drop()
	s.fresh()
	s.written = false
	s.resume(now)
}

// resume continues from what is known for certain, after a failure or a change of the view.
func (s *session) resume(now clock.Time) {
	switch {
	case s.step == stepIdle:
	case s.step == stepCollect:
		s.prepare(now)
	case s.res.Kind == Recover:
		s.tries++
		if s.tries > s.c.cfg.Tries {
			s.end(now, ErrBusy)
			return
		}
		s.start(now)
	case s.step.inRound():
		s.cut = true
		s.do(now, stepLook)
	default:
		lookup{s}.stale(now)
	}
}

// Done implements onesided.Thread.
func (s *session) Done(now clock.Time) {
	switch s.step {
	case stepCollect:
		s.collected(now)
	case stepCached:
		lookup{s}.cachedDone(now)
	case stepFind:
		lookup{s}.findDone(now)
	case stepKeys:
		lookup{s}.keysDone(now)
	case stepBlocks, stepWalk, stepRefer, stepMark, stepTake, stepMirror:
		s.rec.done(now, s)
	default:
		snapshot{s}.roundDone(now)
	}
}
