package fusee

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// recovery is the repair of what a dead session has left. For each of its blocks, it searches the index for
// every object that may be used. A word that only backups have is a round that others may wait for: it is
// finished (an update or a deletion). A tentative word is taken back. An object to which nothing refers
// belongs to an operation that did not begin, or lost, or was replaced: it is free. Then the block changes
// its owner. Each step may be done twice, or by two sessions at the same time.
type recovery struct {
	dead   uint16
	region int
	block  int
	table  []byte // owners of the region's blocks
	img    []byte // the block
	units  int
	at     int // object in the block
	cells  [maxReplicas][2][]byte
	sub    int
	took   bool
}

// address returns the address of the object.
func (r *recovery) address(l *Layout) address {
	return address{r.region, r.block*l.Block + r.at*r.units*l.Unit}
}

func (s *session) blocksOf(node, region int) Region {
	k, _ := s.l.copyOn(node, region)
	return Region{VA: s.grants[node].Blocks.VA + uint64(8*k*s.l.Blocks), RKey: s.grants[node].Blocks.RKey}
}

// ask makes the requests of a recovery's step.
func (r *recovery) ask(s *session) bool {
	first := r.region
	if s.step == stepRefer {
		first = r.sub
	}
	ring := s.replicas(first)
	if len(ring) == 0 {
		return false
	}
	p := ring[0]
	switch s.step {
	case stepBlocks:
		r.table = grow(r.table, 8*s.l.Blocks)
		s.Ask(rnic.OpRead, p, s.blocksOf(p, r.region), 0, r.table)
	case stepWalk:
		r.img = grow(r.img, s.l.Block)
		s.Ask(rnic.OpRead, p, s.objectsOf(p, r.region), r.block*s.l.Block, r.img)
	case stepRefer:
		for i, n := range ring {
			for b, at := range s.h.bucket {
				r.cells[i][b] = s.Take(combined)
				s.Ask(rnic.OpRead, n, s.indexOf(n), r.sub*s.l.subtableSize()+at, r.cells[i][b])
			}
		}
	case stepMark:
		for _, n := range ring {
			s.Ask(rnic.OpWrite, n, s.objectsOf(n, r.region), r.address(s.l).off, freed[0])
		}
	case stepTake:
		s.AskSwap(p, s.blocksOf(p, r.region), 8*r.block, blockWord(r.dead, r.units), blockWord(s.id, r.units), s.Words[0][:])
	case stepMirror:
		b := s.Take(8)
		le.PutUint64(b, blockWord(s.id, r.units))
		for _, n := range ring[1:] {
			s.Ask(rnic.OpWrite, n, s.blocksOf(n, r.region), 8*r.block, b)
		}
	}
	return true
}

func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// done continues a recovery.
func (r *recovery) done(now clock.Time, s *session) {
	switch s.step {
	case stepBlocks:
		r.block = -1
		r.nextBlock(now, s)
	case stepWalk:
		r.at = -1
		r.nextObject(now, s)
	case stepRefer:
		r.referred(now, s)
	case stepMark:
		s.c.stats.Undone++
		r.img[r.at*r.units*s.l.Unit] = stateFreed
		r.nextObject(now, s)
	case stepTake:
		if w := le.Uint64(s.Words[0][:]); w != blockWord(r.dead, r.units) && w != blockWord(s.id, r.units) {
			r.nextBlock(now, s) // another session recovers the block, too
			return
		}
		if len(s.replicas(r.region)) > 1 {
			s.do(now, stepMirror)
			return
		}
		r.taken(now, s)
	case stepMirror:
		r.taken(now, s)
	}
}

// nextBlock continues with the dead session's next block, of any region.
func (r *recovery) nextBlock(now clock.Time, s *session) {
	for r.block++; r.block < s.l.Blocks; r.block++ {
		w := le.Uint64(r.table[8*r.block:])
		if r.units = int(w >> 16); uint16(w) == r.dead && r.units > 0 {
			s.do(now, stepWalk)
			return
		}
	}
	r.nextRegion(now, s)
}

func (r *recovery) nextRegion(now clock.Time, s *session) {
	for r.region++; r.region < s.l.Nodes; r.region++ {
		if len(s.replicas(r.region)) > 0 {
			s.do(now, stepBlocks)
			return
		}
	}
	s.res.Found = r.took
	s.end(now, nil)
}

// objects returns the number of objects of a block.
func (r *recovery) objects(l *Layout) int { return l.Block / (r.units * l.Unit) }

// nextObject continues with the next object of the block that may be used.
func (r *recovery) nextObject(now clock.Time, s *session) {
	size := r.units * s.l.Unit
	for r.at++; r.at < r.objects(s.l); r.at++ {
		b := r.img[r.at*size:][:size]
		if b[0] != stateUsed {
			continue
		}
		s.c.stats.Walked++
		o, ok := getObject(b)
		if !ok { // an object that was not written completely: no slot ever had its word
			s.do(now, stepMark)
			return
		}
		s.h = s.l.hash(o.key)
		r.sub = s.h.sub
		s.readAt = now
		s.do(now, stepRefer)
		return
	}
	s.do(now, stepTake)
}

// referred checks which slots refer to the object.
func (r *recovery) referred(now clock.Time, s *session) {
	n, a := len(s.replicas(r.sub)), r.address(s.l)
	primary := false
	for b, at := range s.h.bucket {
		for i := range 2 * bucketSlots {
			pos := slotPos(at, i)
			word := func(k int) slot { return slot(le.Uint64(r.cells[k][b][8*(pos-at/8):])) }
			p := word(0)
			if p != 0 && p.at() == a {
				if p&tentative != 0 {
					s.c.stats.Undone++
					s.round = round{sub: r.sub, pos: pos, old: p, new: p.tomb(), then: thenRepair}
					snapshot{s}.propose(now)
					return
				}
				primary = true
				continue
			}
			for k := 1; k < n; k++ {
				if w := word(k); w != 0 && w.at() == a {
					s.c.stats.Redone++
					r.redo(now, s, round{sub: r.sub, pos: pos, old: p, new: w, then: thenRepair})
					return
				}
			}
		}
	}
	if !primary {
		s.do(now, stepMark)
		return
	}
	r.nextObject(now, s)
}

// redo finishes a round in which the object's word was proposed. If the log entry was committed, the word had
// won, and all backups have it.
func (r *recovery) redo(now clock.Time, s *session, x round) {
	s.round = x
	size := r.units * s.l.Unit
	o, _ := getObject(r.img[r.at*size:][:size])
	if old, ok := o.old(); ok && old == x.old && x.new&tentative == 0 {
		s.win = x.new
		s.do(now, stepCommit)
		return
	}
	snapshot{s}.help(now)
}

// settled examines the object again after a round.
func (r *recovery) settled(now clock.Time, s *session) {
	if s.tries++; s.tries > s.c.cfg.Tries {
		s.end(now, ErrBusy)
		return
	}
	s.readAt = now
	s.do(now, stepRefer)
}

// taken adds a block's memory to the session's.
func (r *recovery) taken(now clock.Time, s *session) {
	s.c.stats.Taken++
	r.took = true
	for i := range r.objects(s.l) {
		p := s.slab.Use(r.units, address{r.region, r.block*s.l.Block + i*r.units*s.l.Unit})
		if r.img[i*r.units*s.l.Unit] == stateUsed {
			s.slab.Own(p)
		} else {
			s.slab.Leave(now, p)
		}
	}
	r.nextBlock(now, s)
}
