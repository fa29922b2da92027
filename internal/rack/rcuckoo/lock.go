package rcuckoo

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// group is the locks that one masked CAS takes.
type group struct {
	word     int
	mask     uint64
	from, to int // its spans
}

// span is rows that one READ reads.
type span struct {
	first, n int
	img      []byte
}

// attempt guesses which rows an operation needs, and begins to lock them.
func (s *session) attempt(now clock.Time) {
	c := s.c
	s.held = 0
	a, b := c.cfg.RowsOf(s.key)
	s.rows = s.rows[:0]
	if s.res.Kind == Insert {
		if !speculate(s) {
			if s.reach && s.flushed || s.res.Tries >= c.cfg.Tries {
				s.end(now, ErrFull)
				return
			}
			// The rows in the cache may be old, or the search saw too few rows.
			s.forget()
			s.flushed = true
			s.attempt(now)
			return
		}
		if s.res.Tries++; s.res.Tries > c.cfg.Tries {
			s.end(now, ErrFull)
			return
		}
	}
	if s.res.Kind != Insert || !c.cfg.Blind {
		s.rows = append(s.rows, a, b)
	}
	// Any row behind its locks can be on the path that an insertion takes in the end.
	s.plan(s.rows, s.res.Kind == Insert, c.cfg.Covering, &s.Arena)
	if len(s.groups) > len(s.Words) {
		s.Words = make([][8]byte, len(s.groups))
	}
	if s.res.Kind == Insert {
		if d := c.cfg.Work.planned(s.res.Tries, s.find.looked, len(s.groups)); d > 0 {
			s.step, s.WakeAt = stepPlan, now.Add(d)
			return
		}
	}
	s.started = now
	s.do(now, stepLock)
}

// speculate looks for a path in the cache, and notes its rows.
func speculate(s *session) bool {
	s.reach, s.rows = true, s.rows[:0]
	if !s.find.find(s.key, s.inCache) {
		return false
	}
	s.guess, s.moves = append(s.guess[:0], s.find.path...), s.moves[:0]
	for _, h := range s.guess {
		s.rows = append(s.rows, int(h.row))
		s.moves = append(s.moves, s.c.cfg.image(s.inCache(int(h.row))).key(int(h.slot)))
	}
	return true
}

// lockPlan says which locks are taken in which order, and which rows are read with each.
type lockPlan struct {
	l      *Layout
	wanted []int // logical locks, by bit
	groups []group
	spans  []span
}

// plan sorts the locks of the rows into groups, and makes room for the rows that are read with each group.
// With all, these are all rows behind the locks; otherwise only the rows that were given, of which near ones
// are read together.
func (p *lockPlan) plan(rows []int, all bool, covering int, room *onesided.Arena) {
	l := p.l
	p.wanted = p.wanted[:0]
	if !all {
		slices.Sort(rows)
	}
	for _, r := range rows {
		p.wanted = append(p.wanted, l.logical(r))
	}
	slices.SortFunc(p.wanted, func(a, b int) int {
		return cmp.Or(cmp.Compare(l.lockOf(a), l.lockOf(b)), cmp.Compare(a, b))
	})
	p.wanted = slices.Compact(p.wanted)
	p.groups, p.spans = p.groups[:0], p.spans[:0]
	room.Reset()
	for _, w := range p.wanted {
		bit := l.lockOf(w)
		n := len(p.groups)
		if n == 0 || p.groups[n-1].word != bit/64 || bits.OnesCount64(p.groups[n-1].mask) == l.LocksPerMessage {
			p.groups = append(p.groups, group{word: bit / 64, from: len(p.spans), to: len(p.spans)})
			n++
		}
		g := &p.groups[n-1]
		g.mask |= 1 << (bit % 64)
		if all {
			first := w * l.RowsPerLock
			p.cover(g, first, min(first+l.RowsPerLock, l.Rows), 64*l.RowsPerLock)
			continue
		}
		for _, r := range rows {
			if l.logical(r) == w {
				p.cover(g, r, r+1, covering/l.RowSize()-1)
			}
		}
	}
	total := 0
	for i := range p.spans {
		total += p.spans[i].n * l.RowSize()
	}
	buf := room.Take(total)
	for i := range p.spans {
		n := p.spans[i].n * l.RowSize()
		p.spans[i].img, buf = buf[:n:n], buf[n:]
	}
}

// cover adds rows to the rows that are read with a group's locks. It adds them to the last span if the gap
// between is not wider than gap.
func (p *lockPlan) cover(g *group, first, end, gap int) {
	if g.to > g.from {
		if x := &p.spans[g.to-1]; first >= x.first && first-(x.first+x.n) <= gap {
			x.n = max(x.n, end-x.first)
			return
		}
	}
	p.spans = append(p.spans, span{first: first, n: end - first})
	g.to++
}

// rowLocked is a row that was read behind its lock; nil: the row is not locked.
func (p *lockPlan) rowLocked(i int) row {
	if !slices.Contains(p.wanted, p.l.logical(i)) {
		return nil
	}
	n := p.l.RowSize()
	for k := range p.spans {
		if x := &p.spans[k]; i >= x.first && i < x.first+x.n {
			return x.img[(i-x.first)*n : (i-x.first+1)*n]
		}
	}
	return nil
}

// postLock asks for a group's locks and for the rows behind them. The operation's value is sent with the
// first group.
func (s *session) postLock(now clock.Time) {
	l := &s.c.cfg.Layout
	if !s.marked || now.Sub(s.markedAt) >= s.c.cfg.FailAfter/16 {
		s.announce(now, &s.Session, s.grant.Table, s.groups)
	}
	g := &s.groups[s.held]
	s.AskMasked(0, s.grant.Locks, 8*g.word, 0, g.mask, g.mask, s.Words[0][:])
	for _, p := range s.spans[g.from:g.to] {
		s.Ask(rnic.OpRead, 0, s.grant.Table, p.first*l.RowSize(), p.img).Fence = s.c.cfg.Fence
	}
	if s.has && !s.written {
		s.written = true
		b := putExtent(make([]byte, s.piece.Size), s.key, s.res.Value)
		s.Ask(rnic.OpWrite, 0, s.grant.Extents, s.piece.At, b)
	}
}

func (s *session) lockDone(now clock.Time) {
	c := s.c
	l := &c.cfg.Layout
	g := &s.groups[s.held]
	if s.res.Kind == Insert {
		for _, p := range s.spans[g.from:g.to] {
			for i := range p.n {
				if b := p.img[i*l.RowSize() : (i+1)*l.RowSize()]; l.image(b).whole() {
					s.keep(p.first+i, b)
				}
			}
		}
	}
	if was := le.Uint64(s.Words[0][:]); was&g.mask != 0 {
		c.stats.LockFailed++
		s.res.Retries++
		if s.observe(now, g, was) {
			return
		}
		if s.held > 0 && now.Sub(s.started) > c.cfg.FailAfter/8 {
			c.stats.GaveBack++
			s.release(now, thenRetry)
			return
		}
		s.fire(now)
		return
	}
	if s.sus.word == g.word && s.sus.bits&g.mask != 0 {
		s.sus.on = false
	}
	if s.held++; s.held < len(s.groups) {
		s.fire(now)
		return
	}
	if d := c.cfg.Work.held(s.res.Kind); d > 0 {
		s.step, s.WakeAt = stepHold, now.Add(d)
		return
	}
	s.act(now)
}

// act does the operation. All locks are held, and the rows behind them are as they were read.
func (s *session) act(now clock.Time) {
	c := s.c
	l := &c.cfg.Layout
	s.writes, s.free = s.writes[:0], false
	for _, r := range s.rows {
		if !l.image(s.rowLocked(r)).whole() {
			s.res.Err = ErrTorn
			s.release(now, thenEnd)
			return
		}
	}
	a, b := l.RowsOf(s.key)
	if s.res.Kind == Insert && c.cfg.Blind {
		s.insert(now)
		return
	}
	at, slot := image{}, -1
	for _, r := range [2]int{a, b} {
		if m := l.image(s.rowLocked(r)); slot < 0 {
			at, slot = m, m.find(s.key)
			a = r
		}
	}
	if s.res.Found = slot >= 0; s.res.Found {
		if s.old = at.get(slot); !s.old.extent {
			s.res.Got = s.old.inline[:l.InlineSize()]
		}
	}
	switch {
	case s.res.Kind == Insert && !s.res.Found:
		s.insert(now)
	case !s.res.Found || s.res.Kind == Insert:
		s.release(now, thenEnd)
	case s.res.Kind == Read:
		s.lockedHit(now)
	default:
		s.free = s.old.extent
		e := cell{}
		if s.res.Kind == Update {
			e = s.newCell()
		}
		at.put(slot, e)
		at.seal()
		s.rewrite(a, at, slot)
		s.do(now, stepWrite)
	}
}

// lockedHit ends a read that had to take locks.
func (s *session) lockedHit(now clock.Time) {
	if s.old.extent {
		// The row is whole: it can be read as usual.
		s.res.Found, s.byLock, s.tornAt = false, false, 0
		s.release(now, thenRetry)
		return
	}
	s.release(now, thenEnd)
}

// newCell is the entry that the operation writes.
func (s *session) newCell() cell {
	e := cell{Key: s.key}
	if s.has {
		e.extent, e.size, e.at = true, len(s.res.Value), uint64(s.piece.At)
	} else {
		copy(e.inline[:], s.res.Value)
	}
	return e
}

// rewrite notes WRITEs of a row's slot and of the bytes that seal the row.
func (s *session) rewrite(r int, m image, slot int) {
	l := &s.c.cfg.Layout
	base, n := r*l.RowSize(), l.EntrySize()
	switch {
	case l.Form == Code:
		s.writes = append(s.writes, write{base + slot*n, m.entry(slot)})
	case s.c.cfg.Torn:
		s.writes = append(s.writes, write{base + slot*n, m.entry(slot)}, write{base + l.versionAt(), m.b[l.versionAt():]})
	default:
		s.writes = append(s.writes, write{base + slot*n, m.b[slot*n:]})
	}
}

// insert chooses a path of locked rows: the path that was guessed, or another one.
func (s *session) insert(now clock.Time) {
	s.path = s.guess
	looked := 0
	if !s.stillThere() {
		s.res.FirstFailed++
		s.path = nil
		if s.find.find(s.key, s.inLocked) {
			s.path = s.find.path
		}
		looked = s.find.looked
	}
	if d := s.c.cfg.Work.placed(looked, max(len(s.path)-1, 0)); d > 0 {
		s.step, s.WakeAt = stepPlace, now.Add(d)
		return
	}
	place(s, now)
}

// place moves the entries along the path.
func place(s *session, now clock.Time) {
	l := &s.c.cfg.Layout
	if len(s.path) == 0 {
		s.res.SecondFailed++
		s.release(now, thenRetry)
		return
	}
	for i := len(s.path) - 1; i >= 0; i-- {
		h := s.path[i]
		m := l.image(s.rowLocked(int(h.row)))
		if i > 0 {
			p := s.path[i-1]
			copy(m.entry(int(h.slot)), l.image(s.rowLocked(int(p.row))).entry(int(p.slot)))
		} else {
			m.put(int(h.slot), s.newCell())
		}
		m.seal()
		s.rewrite(int(h.row), m, int(h.slot))
		s.keep(int(h.row), m.b)
	}
	s.do(now, stepWrite)
}

// stillThere reports whether the locked rows are as the guess assumed, the free slot at the path's end included: as in the public
// code (path_valid), another free slot of that row is for the second search to find.
func (s *session) stillThere() bool {
	l := &s.c.cfg.Layout
	for i, h := range s.guess {
		want := uint32(0)
		if i < len(s.guess)-1 {
			want = s.moves[i]
		}
		if l.image(s.rowLocked(int(h.row))).key(int(h.slot)) != want {
			return false
		}
	}
	return true
}

// postWrites writes the rows in order, frees the extent that is replaced, and releases all locks.
func (s *session) postWrites(now clock.Time) {
	for _, w := range s.writes {
		s.Ask(rnic.OpWrite, 0, s.grant.Table, w.at, w.buf)
	}
	if s.free {
		s.Ask(rnic.OpWrite, 0, s.grant.Extents, int(s.old.at), zero[:1])
	}
	s.postRelease(now)
}

var zero [8]byte

// postRelease releases the locks that are held.
func (s *session) postRelease(now clock.Time) {
	for i, g := range s.groups[:s.held] {
		s.AskMasked(0, s.grant.Locks, 8*g.word, g.mask, 0, g.mask, s.Words[i][:])
	}
	if s.marked {
		s.announce(now, &s.Session, s.grant.Table, nil)
	}
}

// release gives the locks back, and then goes on with then.
func (s *session) release(now clock.Time, then after) {
	s.then = then
	if s.held > 0 {
		s.do(now, stepRelease)
		return
	}
	s.step = stepRelease
	s.Done(now)
}

// released checks that the locks were still held.
func (s *session) released() {
	for i, g := range s.groups[:s.held] {
		if le.Uint64(s.Words[i][:])&g.mask != g.mask {
			s.c.stats.Robbed++
		}
	}
	s.held = 0
}
