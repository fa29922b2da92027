package fusee

import (
	"bytes"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// find is what a session knows about the key's buckets.
type find struct {
	cells   [2][2 * bucketSlots]slot
	entries []entry
	pieces  []piece // the pieces that stepCollect reads
	buckets [2][]byte
	readAt  clock.Time // when the READ of the slots was posted
	// at is the position of the insertion's own tentative word; -1: it has none.
	at int
	// seen is a tentative word of another insertion that the session waits for.
	seen   slot
	seenAt clock.Time
	cached bool // the entry is from the cache, so the key may be elsewhere
	both   bool // the object was read together with the slot
	was    []byte
}

// entry is a slot whose object may be the key's.
type entry struct {
	pos int
	w   slot
	buf []byte
}

// lookup is a session that searches its key.
type lookup struct{ *session }

func (s *session) indexOf(node int) Region { return s.grants[node].Index }

// askFind asks for both buckets, and writes the object if it was not written yet.
func (s lookup) askFind(now clock.Time) bool {
	ring := s.replicas(s.h.sub)
	if len(ring) == 0 {
		return false
	}
	if s.has && !s.written {
		ring := s.replicas(s.piece.At.node)
		if len(ring) == 0 {
			return false
		}
		n := s.piece.Size * s.l.Unit
		if len(s.obj) < n {
			s.obj = make([]byte, n)
		}
		value := s.res.Value
		if s.res.Kind == Delete {
			value = nil
		}
		b := putObject(s.obj, s.res.Kind, s.res.Key, value)
		for _, n := range ring {
			s.Ask(rnic.OpWrite, n, s.objectsOf(n, s.piece.At.node), s.piece.At.off, b)
		}
	}
	s.readAt = now
	for i, at := range s.h.bucket {
		s.buckets[i] = s.Take(combined)
		s.Ask(rnic.OpRead, ring[0], s.indexOf(ring[0]), s.h.sub*s.l.subtableSize()+at, s.buckets[i])
	}
	s.both = false
	if k := s.remembered(now); k != nil {
		s.both, s.entries = true, append(s.entries[:0], entry{pos: k.pos, w: k.w})
		return s.askKeys()
	}
	return true
}

// remembered returns the entry of a Wide client's cache whose object is read beside the buckets; nil: none is.
func (s lookup) remembered(now clock.Time) *known {
	if !s.c.cfg.Wide || s.res.Kind == Insert || s.tries > 0 {
		return nil
	}
	if k := s.cache.get(s.res.Key); k != nil && s.trusted(now, k) {
		return k
	}
	return nil
}

// trusted reports whether the object of a cached slot may be read beside the slot: the slot does not change too often,
// and its word is not so old that the object's memory may have been reused.
func (s lookup) trusted(now clock.Time, k *known) bool {
	return float64(k.misses) <= s.c.cfg.MissRate*float64(k.uses) && now.Sub(k.at) <= s.c.cfg.FailAfter/2
}

// bothDone takes the object that was read beside the buckets, if its slot has not changed; false: it has.
func (s lookup) bothDone(now clock.Time) bool {
	e := &s.entries[0]
	w := slot(0)
	for b, at := range s.h.bucket {
		if off := 8*e.pos - at; off >= 0 && off < combined {
			w = slot(le.Uint64(s.buckets[b][off:]))
		}
	}
	if w != e.w {
		s.c.stats.Stale++
		return false
	}
	s.c.stats.Hits++
	k := s.cache.get(s.res.Key)
	if k == nil { // another session's key has its place
		s.keysDone(now)
		return true
	}
	if s.res.Kind != Read { // put counts reads
		k.uses++
	}
	if o, ok := getObject(e.buf); ok && !bytes.Equal(o.key, s.res.Key) {
		*k = known{} // another key has the same hash
		return false
	}
	s.keysDone(now)
	return true
}

// findDone searches the slots with the key's fingerprint.
func (s lookup) findDone(now clock.Time) {
	s.written = s.has
	s.cached = false
	if s.both {
		s.both = false
		if s.bothDone(now) {
			return
		}
	}
	s.entries = s.entries[:0]
	for b, at := range s.h.bucket {
		for i := range s.cells[b] {
			pos := slotPos(at, i)
			w := slot(le.Uint64(s.buckets[b][8*(pos-at/8):]))
			s.cells[b][i] = w
			if !w.free() && w.fp() == s.h.fp && pos != s.at && (w&tentative == 0 || s.res.Kind == Insert) {
				s.entries = append(s.entries, entry{pos: pos, w: w})
			}
		}
	}
	if len(s.entries) == 0 {
		s.keysDone(now)
		return
	}
	s.do(now, stepKeys)
}

// askKeys asks for the objects of all entries.
func (s lookup) askKeys() bool {
	for i := range s.entries {
		e := &s.entries[i]
		a, n := e.w.at(), e.w.units()*s.l.Unit
		ring := s.replicas(a.node % s.l.Nodes)
		if len(ring) == 0 {
			return false
		}
		e.buf = s.Take(n)
		s.Ask(rnic.OpRead, ring[0], s.objectsOf(ring[0], a.node), a.off, e.buf)
	}
	return true
}

// keysDone compares the keys, and continues the operation.
func (s lookup) keysDone(now clock.Time) {
	c := s.c
	if len(s.entries) > 0 && now.Sub(s.readAt) > c.cfg.FailAfter/2 {
		s.stale(now) // the memory may have been reused
		return
	}
	var live, other *entry
	var value []byte
	for i := range s.entries {
		e := &s.entries[i]
		o, ok := getObject(e.buf)
		if !ok {
			c.stats.Torn++
			s.stale(now)
			return
		}
		switch {
		case !bytes.Equal(o.key, s.res.Key):
		case e.w&tentative != 0:
			if other == nil || e.pos < other.pos {
				other = e
			}
		default:
			live, value = e, o.value
		}
	}
	if live != nil {
		s.was = append(s.was[:0], value...)
	}
	switch {
	case s.cached && live == nil:
		s.do(now, stepFind)
	case s.res.Kind == Read:
		if live != nil {
			s.res.Found, s.res.Got = true, s.was
			s.cache.put(s.res.Key, live.pos, live.w, s.readAt)
		}
		s.end(now, nil)
	case s.res.Kind == Insert:
		s.insert(now, live, other)
	case live == nil:
		s.end(now, nil)
	case s.res.Kind == Delete:
		s.res.Found = true
		snapshot(s).decide(now, live.pos, live.w, makeSlot(0, s.piece.Size, s.piece.At).tomb(), thenWrite)
	default:
		s.res.Found = true
		snapshot(s).decide(now, live.pos, live.w, s.word(), thenWrite)
	}
}

// word returns the slot word for the session's object.
func (s lookup) word() slot { return makeSlot(s.h.fp, s.piece.Size, s.piece.At) }

// stale reads again what can no longer be trusted.
func (s lookup) stale(now clock.Time) {
	if s.at < 0 {
		s.res.Found = false
		s.again(now, true)
		return
	}
	if s.tries++; s.tries > s.c.cfg.Tries {
		s.end(now, ErrBusy)
		return
	}
	s.do(now, stepFind)
}

// insert decides what an insertion does next.
//
// Its word is tentative at first, so that readers do not see it. Then the insertion checks whether another
// one inserts the key, and if there is none, makes its word permanent. If two do the same at the same time,
// each sees the other. The one in the lower slot takes the other's word away; the one in the higher slot
// waits for the other. So never are both permanent.
func (s lookup) insert(now clock.Time, live, other *entry) {
	c := s.c
	switch {
	case live != nil && s.at >= 0:
		c.stats.Withdrawn++
		snapshot(s).decide(now, s.at, s.word()|tentative, s.word().tomb(), thenWithdraw)
	case live != nil:
		s.res.Found, s.res.Got = true, s.was
		s.end(now, nil)
	case other != nil && s.at >= 0 && other.pos > s.at:
		snapshot(s).decide(now, other.pos, other.w, other.w.tomb(), thenKill)
	case other != nil:
		if s.seen != other.w {
			s.seen, s.seenAt = other.w, now
		}
		if now.Sub(s.seenAt) > c.cfg.FailAfter {
			snapshot(s).decide(now, other.pos, other.w, other.w.tomb(), thenKill)
			return
		}
		c.stats.Waited++
		s.do(now, stepFind)
	case s.at >= 0:
		snapshot(s).decide(now, s.at, s.word()|tentative, s.word(), thenCommit)
	default:
		pos, w, ok := s.hole()
		if !ok {
			s.end(now, ErrFull)
			return
		}
		x := s.word()
		if !c.cfg.Blind {
			x |= tentative
		}
		snapshot(s).decide(now, pos, w, x, thenPlace)
	}
}

// hole returns a free slot: in the emptier of the two combined buckets, and there in the main bucket if
// possible.
func (s lookup) hole() (pos int, w slot, ok bool) {
	var load [2]int
	for b := range s.cells {
		for _, w := range s.cells[b] {
			if !w.free() {
				load[b]++
			}
		}
	}
	first := 0
	if load[1] < load[0] {
		first = 1
	}
	for _, b := range [2]int{first, 1 - first} {
		for _, over := range [2]bool{false, true} {
			for i, w := range s.cells[b] {
				if w.free() && overflow(s.h.bucket[b], i) == over {
					return slotPos(s.h.bucket[b], i), w, true
				}
			}
		}
	}
	return 0, 0, false
}

// cache remembers slots by key. Keys whose hashes have the same place replace each other.
type cache struct {
	of []known
	// counts: put counts a use, and a miss if the word is another one.
	counts bool
}

// known is a slot as it was read. uses and misses count uses of the key.
type known struct {
	sum          uint64
	pos          int
	w            slot
	at           clock.Time
	uses, misses uint32
}

func (c *cache) init(n int) {
	if n > 0 {
		c.of = make([]known, n)
	}
}

func (c *cache) get(key []byte) *known {
	if len(c.of) == 0 {
		return nil
	}
	h := sum64(key)
	if k := &c.of[h%uint64(len(c.of))]; k.sum == h && k.w != 0 {
		return k
	}
	return nil
}

func (c *cache) put(key []byte, pos int, w slot, at clock.Time) {
	if len(c.of) == 0 {
		return
	}
	h := sum64(key)
	k := &c.of[h%uint64(len(c.of))]
	if k.sum != h {
		*k = known{sum: h}
	}
	if c.counts {
		if k.w != 0 && k.w != w {
			k.misses++
		}
		k.uses++
	}
	k.pos, k.w, k.at = pos, w, at
}

// Place is where a key's slot is, and the slot's word.
type Place struct {
	pos int
	w   slot
}

// Stale returns the Place as a cache has it after the slot has changed.
func (p Place) Stale() Place {
	p.w ^= 0xFF // the fingerprint
	return p
}

// Remember makes the cache of a Wide client what it is after so many uses of a key, of which misses found the slot changed.
func (c *Client) Remember(now clock.Time, key []byte, p Place, uses, misses int) {
	if len(c.cache.of) > 0 {
		h := sum64(key)
		c.cache.of[h%uint64(len(c.cache.of))] = known{sum: h, pos: p.pos, w: p.w, at: now, uses: uint32(uses), misses: uint32(misses)}
	}
}

// askCached asks for the slot that the cache has, and for its object at the same time, unless the slot
// changes too often, or the word is so old that its memory may have been reused.
func (s lookup) askCached(now clock.Time) bool {
	k := s.cache.get(s.res.Key)
	ring := s.replicas(s.h.sub)
	if k == nil || len(ring) == 0 {
		return false
	}
	s.readAt = now
	s.Ask(rnic.OpRead, ring[0], s.indexOf(ring[0]), s.h.sub*s.l.subtableSize()+8*k.pos, s.Words[0][:])
	s.entries = append(s.entries[:0], entry{pos: k.pos, w: k.w})
	s.both = s.trusted(now, k)
	return !s.both || s.askKeys()
}

// cachedDone takes the object, if the slot has not changed.
func (s lookup) cachedDone(now clock.Time) {
	k, e := s.cache.get(s.res.Key), &s.entries[0]
	w := slot(le.Uint64(s.Words[0][:]))
	k.uses++
	s.cached = true
	switch {
	case w == e.w && s.both:
		s.c.stats.Hits++
		s.keysDone(now)
	case w.free() || w&tentative != 0 || w.fp() != s.h.fp:
		k.misses++
		s.c.stats.Stale++
		s.do(now, stepFind)
	default:
		if w != e.w {
			k.misses++
			s.c.stats.Stale++
		}
		e.w = w
		s.do(now, stepKeys)
	}
}
