package clover

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// maxUnlinked is the largest number of open appends of a key (keyState.unlinked).
const maxUnlinked = 1 << 14

// chains follows the appends that are not known to be linked, and keeps them on record. It learns of answers
// to CASes, of repairs, and of connections that end. It wakes the answers that wait for an append.
type chains struct {
	gaps    []gap // in no order
	journal journal
	answers
}

// gap is an append that the server refused, or whose outcome cannot be known any more, as long as it is open
// whether its entry is linked or leaves the chain.
type gap struct {
	at   clock.Time
	lh   uint32 // LH of its entry
	key  int32
	sid  int16
	n    uint32
	over bool // the entry is linked, or no append stands behind it
	// told: the client may have got the answer while no process saw it, and may have linked the entry since.
	// If so, the server has answered more on connection row than acked, and the link was not seen.
	told  bool
	row   int32
	acked uint32
}

// unlinked returns the number of appends of the key that are not known to be linked.
func (k *keyState) unlinked() uint32 { return k.sent - k.sure }

// linked reports whether append n of the key, and each append before it, is linked or out of the chain.
func (k *keyState) linked(n uint32) bool { return int32(n-k.sure) <= 0 }

// advance notes that the oldest append of a key that was not known to be linked is linked. So are the appends
// behind it that were answered before.
func (s *chains) advance(ki int32) {
	k := &s.mem.keys.s[ki]
	for {
		k.sure++
		if k.waits != 0 {
			s.wakeAppend(ki, k.sure)
		}
		if (k.waits == 0 || s.answered(ki, k.sure+1) == 0) && !s.closed(ki, k.sure+1) {
			return
		}
	}
}

// wakeAppend wakes all answers that wait for append n of a key, which is linked.
func (s *chains) wakeAppend(ki int32, n uint32) {
	h := appendHash(ki, n)
	for p := s.waits.Start(h); s.waits.E[p] != 0; {
		at, ok := s.waits.Slot(p, h)
		if !ok {
			p = s.waits.Next(p)
			continue
		}
		w := s.shelf.Note(at)
		if w.key != ki || w.n != n {
			p = s.waits.Next(p)
			continue
		}
		if !w.read {
			if o := &s.ops[w.op]; o.kind == opCAS && o.psn == w.psn && o.key == ki && o.n == n {
				o.linked = true
				s.journal.erase(o)
			}
		}
		s.wake(at) // another answer may be at p now
	}
}

// closed reports whether append n of a key was a gap that is over, and removes this gap.
func (s *chains) closed(ki int32, n uint32) bool {
	for i := range s.gaps {
		if g := &s.gaps[i]; g.over && g.key == ki && g.n == n {
			s.settleGap(i)
			return true
		}
	}
	return false
}

// settleGap removes gap i and puts the last gap in its place. A loop over gaps that may remove some runs from
// the last one down, so that it misses none.
func (s *chains) settleGap(i int) {
	n := len(s.gaps) - 1
	s.gaps[i] = s.gaps[n]
	s.gaps = s.gaps[:n]
}

// close ends the wait for the answer to o: o is not sent again, and the places for its answer are free for
// others.
func (s *chains) close(o *op) {
	s.booked -= int(o.booked)
	o.booked = 0
	s.delist(o)
	s.journal.unguard(o)
}

// void reports whether rec is a steered CAS that stands behind an append that will never be linked.
func (s *chains) void(rec *op) bool {
	return rec.steered && !rec.linked && rec.cuts != s.mem.keys.s[rec.key].cuts
}

// succeeded notes that the server linked the entry of the steered CAS rec behind the entry before. It returns
// whether the client may know: it returns false until the entry before is linked, too.
func (s *chains) succeeded(rec *op) bool {
	k := &s.mem.keys.s[rec.key]
	if !rec.linked && !k.linked(rec.n) {
		if rec.n != k.sure+1 {
			return false
		}
		s.advance(rec.key)
	}
	rec.linked = true
	s.journal.erase(rec)
	return true
}

// failed notes that the server refused the steered CAS rec, and that its client is told. Until the client has
// linked the entry elsewhere, the clients of the appends behind it are not told that they succeeded.
func (s *chains) failed(c *graph.Ctx, i int32, rec *op) {
	s.journal.erase(rec)
	k := &s.mem.keys.s[rec.key]
	if rec.linked || k.linked(rec.n) || s.void(rec) {
		return
	}
	s.mem.dropKey(c, rec.key)
	alone := rec.n == k.sent
	if !alone {
		c.Count(ctrOrphans, 1)
	}
	r := &s.rows[i]
	s.addGap(c, gap{at: c.Now(), lh: wire.Pointer(rec.swap).LH(), key: rec.key, sid: r.sid, n: rec.n, over: alone, told: rec.past, row: i, acked: r.acked})
}

// addGap notes a gap. If there is no room for it, the key's open appends are given up (cut).
func (s *chains) addGap(c *graph.Ctx, g gap) {
	if g.over && g.n == s.mem.keys.s[g.key].sure+1 {
		s.advance(g.key)
		return
	}
	if len(s.gaps) == cap(s.gaps) {
		s.cut(c, g.key)
		return
	}
	s.gaps = append(s.gaps, g)
}

// relinked notes that a CAS of connection row that was not steered linked the entry with handle lh. If its
// answer does not count (sure), it ends only gaps of the same connection: whoever can send over that
// connection has the right to the memory, and could do more harm to it.
func (s *chains) relinked(sid int16, lh uint32, row int32, sure bool) {
	for i := len(s.gaps) - 1; i >= 0; i-- {
		if i >= len(s.gaps) {
			continue // more than one gap was removed
		}
		g := &s.gaps[i]
		if g.over || g.lh != lh || g.sid != sid || !sure && g.row != row {
			continue
		}
		s.over(i)
	}
}

// over notes that gap i is over.
func (s *chains) over(i int) {
	g := &s.gaps[i]
	g.over = true
	if key := g.key; g.n == s.mem.keys.s[key].sure+1 {
		s.settleGap(i)
		s.advance(key)
	}
}

// ended notes that the outcome of rec, if it is a steered CAS, cannot be known any more.
func (s *chains) ended(c *graph.Ctx, rec *op) {
	if rec.kind != opCAS || !rec.steered || rec.linked || s.void(rec) {
		return
	}
	k := &s.mem.keys.s[rec.key]
	switch {
	case k.linked(rec.n):
	case rec.n == k.sent:
		s.mem.dropKey(c, rec.key)
		s.addGap(c, gap{key: rec.key, n: rec.n, over: true})
	default:
		s.cut(c, rec.key)
	}
}

// settle takes CAS o, which the server has executed, for linked: either it was linked, or its client knows
// that it was not.
func (s *chains) settle(c *graph.Ctx, o *op) {
	s.close(o)
	s.journal.erase(o)
	if k := &s.mem.keys.s[o.key]; !s.void(o) && !k.linked(o.n) {
		s.addGap(c, gap{key: o.key, n: o.n, over: true})
	}
	o.live, o.linked = false, true
}

// cut gives up a key's appends that are not known to be linked. Their clients are never told that they
// succeeded, and the clients' connections end by time-out.
func (s *chains) cut(c *graph.Ctx, ki int32) {
	k := &s.mem.keys.s[ki]
	if k.sure == k.sent {
		return
	}
	for at := k.waits; at != 0; {
		w := s.shelf.Note(at)
		next := w.after
		if w.void = !w.read; w.void {
			s.wake(at)
		}
		at = next
	}
	for i := len(s.gaps) - 1; i >= 0; i-- {
		if s.gaps[i].key == ki {
			s.settleGap(i)
		}
	}
	s.mem.dropKey(c, ki)
	s.wakeReads(ki)
	k.sure = k.sent
	k.cuts++
	c.Count(ctrCut, 1)
}

// mayLeave reports whether connection i can be forgotten without harm: all answers to its steered requests
// are known, and were passed on.
func (s *chains) mayLeave(i int32) bool {
	if !s.rows[i].q.Empty() {
		return false
	}
	ring := s.opsOf(i)
	for j := range ring {
		o := &ring[j]
		if o.steered && (o.live || o.kind == opCAS && (s.void(o) || !o.linked && !s.mem.keys.s[o.key].linked(o.n))) {
			return false
		}
	}
	return true
}
