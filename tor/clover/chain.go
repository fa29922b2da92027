package clover

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// maxUnlinked is how many appends of a key may be open at most.
const maxUnlinked = 1 << 14

// chains say what became of the appends that are not known to be linked, and keep them on record. Answers
// to CASes, repairs, and connections that end tell them; they wake the answers that wait for an append.
type chains struct {
	gaps    []gap // in no order
	journal journal
	answers
}

// gap is an append that the server refused, or whose outcome nobody will know,
// while it is not settled what becomes of its number.
type gap struct {
	at   clock.Time
	lh   uint32 // of its entry
	key  int32
	sid  int16
	n    uint32
	over bool // it is linked, or nobody stands behind it
	// told: its client was told, and may have linked the entry since, while no process saw it. It
	// has, if the server answers more on connection row than acked, and the entry is not seen to be linked.
	told  bool
	row   int32
	acked uint32
}

// unlinked is how many appends of the key are not known to be linked.
func (k *keyState) unlinked() uint32 { return k.sent - k.sure }

// linked reports whether append n of the key, and each before it, is linked or
// out of the chain.
func (k *keyState) linked(n uint32) bool { return int32(n-k.sure) <= 0 }

// advance notes that the oldest append of a key that was not known to be
// linked is; those behind it that were answered before are, too.
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

// wakeAppend wakes all that wait for append n of a key, which is linked.
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
		s.wake(at) // something else may be at p now
	}
}

// closed reports whether append n of a key was a gap that is over.
func (s *chains) closed(ki int32, n uint32) bool {
	for i := range s.gaps {
		if g := &s.gaps[i]; g.over && g.key == ki && g.n == n {
			s.settleGap(i)
			return true
		}
	}
	return false
}

// settleGap removes gap i; the last one has its place. A loop over gaps that may remove
// some begins with the last one, and misses none.
func (s *chains) settleGap(i int) {
	n := len(s.gaps) - 1
	s.gaps[i] = s.gaps[n]
	s.gaps = s.gaps[:n]
}

// close ends the wait for the answer to a record: it is sent again no more, and
// the places for its answer are others'.
func (s *chains) close(o *op) {
	s.booked -= int(o.booked)
	o.booked = 0
	s.delist(o)
	s.journal.unguard(o)
}

// void reports whether a steered CAS was sent behind what will never be linked.
func (s *chains) void(rec *op) bool {
	return rec.steered && !rec.linked && int32(rec.epoch-s.mem.keys.s[rec.key].cut) < 0
}

// succeeded: the server linked the entry of a steered CAS behind the one
// before. The client may know when that one is linked, too: false until then.
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

// failed: the entry of a steered CAS is not linked, and its client knows.
// Until the client has linked it somewhere, nobody behind it is told that he
// succeeded.
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

// addGap notes a gap.
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

// relinked: a CAS of connection row that was not steered linked the entry with handle lh. Where its answer does not count (sure), only that of the connection on which the
// first try was steered does: who has the right to the memory can do more harm to it.
func (s *chains) relinked(sid int16, lh uint32, row int32, sure bool) {
	for i := len(s.gaps) - 1; i >= 0; i-- {
		if i >= len(s.gaps) {
			continue // more than one was removed
		}
		g := &s.gaps[i]
		if g.over || g.lh != lh || g.sid != sid || !sure && g.row != row {
			continue
		}
		s.over(i)
	}
}

// over: gap i is over.
func (s *chains) over(i int) {
	g := &s.gaps[i]
	g.over = true
	if key := g.key; g.n == s.mem.keys.s[key].sure+1 {
		s.settleGap(i)
		s.advance(key)
	}
}

// ended: what became of a steered CAS will not be known.
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

// settle takes a CAS whose server is past it for linked: it was, or its client knows that it was not.
func (s *chains) settle(c *graph.Ctx, o *op) {
	s.close(o)
	s.journal.erase(o)
	if k := &s.mem.keys.s[o.key]; !s.void(o) && !k.linked(o.n) {
		s.addGap(c, gap{key: o.key, n: o.n, over: true})
	}
	o.live, o.linked = false, true
}

// cut gives up a key's appends that are not known to be linked: their clients
// are never told that they succeeded, and their connections end by time-out.
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
	k.sure, k.cut = k.sent, k.epoch
	c.Count(ctrCut, 1)
}

// mayLeave reports whether a connection can be forgotten without harm to
// anybody: the answers to all that was steered on it are known, and given.
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
