package p4

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// none is no entry.
const none = ^uint32(0)

// matcher finds the entry that a key hits. Keys are in the rows of the table.
type matcher interface {
	find(t *table, key []uint64) uint32
	insert(t *table, e uint32)
	remove(t *table, e uint32)
}

// hashWords mixes a key.
func hashWords(key []uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, w := range key {
		hi, lo := bits.Mul64(h^w, 0xd6e8feb86659fd93)
		h = hi ^ lo
	}
	return h
}

// hashIndex maps keys to entries: open addressing with linear probing, at most
// half full. It has only entries; their keys are in the owner's rows. When it grows,
// each entry that is added moves a few others, so that none takes long.
type hashIndex struct {
	slots slots
	used  int
	old   slots // the smaller slots, from which entries move; nil: the index does not grow now
	moved int   // slots of old whose entries have moved
}

// slots hold entries + 1; 0: free.
type slots []uint32

// tombstone marks a slot of old whose entry has moved or was deleted: a search goes on behind it.
const tombstone = ^uint32(0)

// home is the slot at which the search for a hash begins.
func (s slots) home(h uint64) int { return int(h & uint64(len(s)-1)) }

func (s slots) put(e uint32, h uint64) {
	i := s.home(h)
	for s[i] != 0 {
		i = (i + 1) & (len(s) - 1)
	}
	s[i] = e + 1
}

// of is the slot of an entry; -1: there is none.
func (s slots) of(e uint32, h uint64) int {
	if len(s) == 0 {
		return -1
	}
	i := s.home(h)
	for s[i] != e+1 {
		if s[i] == 0 {
			return -1
		}
		i = (i + 1) & (len(s) - 1)
	}
	return i
}

// add inserts an entry whose key is not there.
func (x *hashIndex) add(e uint32, h uint64, hash func(e uint32) uint64) {
	if 2*(x.used+1) > len(x.slots) { // old was emptied long before
		x.old, x.moved, x.slots = x.slots, 0, make(slots, max(8, 2*len(x.slots)))
	}
	for end := min(x.moved+8, len(x.old)); x.moved < end; x.moved++ {
		if s := x.old[x.moved]; s != 0 && s != tombstone {
			x.slots.put(s-1, hash(s-1))
			x.old[x.moved] = tombstone
		}
	}
	if x.moved == len(x.old) {
		x.old, x.moved = nil, 0
	}
	x.slots.put(e, h)
	x.used++
}

// swap replaces entry old by e.
func (x *hashIndex) swap(old, e uint32, h uint64) {
	for _, s := range [...]slots{x.slots, x.old} {
		if i := s.of(old, h); i >= 0 {
			s[i] = e + 1
		}
	}
}

// del removes an entry and closes the gap that it leaves.
func (x *hashIndex) del(e uint32, h uint64, hash func(e uint32) uint64) {
	if i := x.old.of(e, h); i >= 0 {
		x.old[i] = tombstone
		x.used--
		return
	}
	i := x.slots.of(e, h)
	if i < 0 {
		return
	}
	x.used--
	m := len(x.slots) - 1
	for j := (i + 1) & m; x.slots[j] != 0; j = (j + 1) & m {
		home := x.slots.home(hash(x.slots[j] - 1))
		if (j-home)&m >= (j-i)&m {
			x.slots[i] = x.slots[j]
			i = j
		}
	}
	x.slots[i] = 0
}

func sameWords(a, b []uint64) bool {
	for i, w := range a {
		if w != b[i] {
			return false
		}
	}
	return true
}

// exactMatcher is one hash of whole keys.
type exactMatcher struct{ idx hashIndex }

func (m *exactMatcher) find(t *table, key []uint64) uint32 {
	x := &m.idx
	if x.used == 0 {
		return none
	}
	h := hashWords(key)
	e := t.seek(x.slots, key, h)
	if e == none && x.old != nil {
		e = t.seek(x.old, key, h)
	}
	return e
}

// seek is the entry of slots with a key.
func (t *table) seek(s slots, key []uint64, h uint64) uint32 {
	w := len(key)
	for i := s.home(h); s[i] != 0; i = (i + 1) & (len(s) - 1) {
		if x := s[i]; x != tombstone {
			at := int(x-1) * w
			if sameWords(key, t.keys[at:at+w]) {
				return x - 1
			}
		}
	}
	return none
}

func (m *exactMatcher) insert(t *table, e uint32) {
	m.idx.add(e, hashWords(t.key(e)), func(e uint32) uint64 { return hashWords(t.key(e)) })
}

func (m *exactMatcher) remove(t *table, e uint32) {
	m.idx.del(e, hashWords(t.key(e)), func(e uint32) uint64 { return hashWords(t.key(e)) })
}

// lpmMatcher is a table whose key is one LPM field of at most 128 bits. The
// field is aligned to the left of an address, so that bart can look it up.
type lpmMatcher struct {
	routes bart.Fast[uint32]
	bits   int
}

func (m *lpmMatcher) addr(key []uint64) netip.Addr {
	if m.bits <= 32 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(key[0])<<uint(32-m.bits))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	lo, hi := key[0], uint64(0)
	if len(key) > 1 {
		hi = key[1]
	}
	if s := uint(128 - m.bits); s >= 64 {
		hi, lo = lo<<(s-64), 0
	} else if s > 0 {
		hi, lo = hi<<s|lo>>(64-s), lo<<s
	}
	binary.BigEndian.PutUint64(b[:], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}

func (m *lpmMatcher) find(_ *table, key []uint64) uint32 {
	e, ok := m.routes.Lookup(m.addr(key))
	if !ok {
		return none
	}
	return e
}

func (m *lpmMatcher) insert(t *table, e uint32) {
	m.routes.Insert(netip.PrefixFrom(m.addr(t.key(e)), int(t.rows[e].prefix)), e)
}

func (m *lpmMatcher) remove(t *table, e uint32) {
	m.routes.Delete(netip.PrefixFrom(m.addr(t.key(e)), int(t.rows[e].prefix)))
}

// tupleMatcher finds entries of any masks and ranges. Few are looked through in the order in which they win. Of more, those of a mask that many
// have are a tuple: one hash of masked keys (tuple space search). Entries of a tuple with the same masked key are a short chain in the
// order in which they win; their ranges are compared along it. All others are in vectors. LPM is a priority, too: that of the longer prefix.
type tupleMatcher struct {
	few    []uint32 // by wins; then there is nothing else
	tuples []*tuple // those that are hashed, by best
	masks  map[uint64][]*tuple
	vectors
	masked []uint64
}

// tuple is a mask that entries have.
type tuple struct {
	mask   []uint64
	n      int // entries
	hashed bool
	idx    hashIndex
	best   int32 // no entry has a lower order
	// Places of vectors before moved have been looked through for entries of the mask, since it is hashed.
	moved int
}

// homeOf says where an entry is.
type homeOf uint8

const (
	inFew homeOf = iota
	inTuple
	inVectors
)

const (
	// mostFew are looked through faster than a segment.
	mostFew = 16
	// enoughOfMask entries are found faster by a hash of their own than in vectors: it takes as long as some segments. So are someOfMask
	// that are a good part of all.
	enoughOfMask, someOfMask, goodPart = 2 * perSegment, 64, 8
	// mostChained entries have one masked key in a tuple.
	mostChained = 8
	// movedAtOnce are the places that are looked through with each insertion, so that none takes long.
	movedAtOnce = 128
)

// rank is the order in which entries that hit win: the lowest first.
func (t *table) rank(e uint32) int32 { return t.rows[e].order }

func (t *table) wins(a, b uint32) bool {
	if x, y := t.rank(a), t.rank(b); x != y {
		return x < y
	}
	return a < b
}

func (m *tupleMatcher) find(t *table, key []uint64) uint32 {
	for _, e := range m.few {
		if t.hits(e, key) {
			return e
		}
	}
	found := none
	for _, u := range m.tuples {
		if found != none && u.best > t.rank(found) {
			break
		}
		for i, w := range key {
			m.masked[i] = w & u.mask[i]
		}
		e := u.head(t, m.masked)
		for ; e != none; e = t.next[e] {
			if t.inRanges(e, key) {
				if found == none || t.wins(e, found) {
					found = e
				}
				break
			}
		}
	}
	if m.vectors.n > 0 {
		found = m.vectors.find(t, key, found)
	}
	return found
}

// hits reports whether key hits e.
func (t *table) hits(e uint32, key []uint64) bool {
	k, mask := t.key(e), t.mask(e)
	for i, w := range key {
		if (w^k[i])&mask[i] != 0 && !t.def.ranged[i] {
			return false
		}
	}
	return t.inRanges(e, key)
}

// head is the first entry with a masked key.
func (u *tuple) head(t *table, masked []uint64) uint32 {
	x, h := &u.idx, hashWords(masked)
	e := t.seekMasked(x.slots, masked, h)
	if e == none && x.old != nil {
		e = t.seekMasked(x.old, masked, h)
	}
	return e
}

// seekMasked is the entry of slots with a masked key.
func (t *table) seekMasked(s slots, masked []uint64, h uint64) uint32 {
	for i := s.home(h); s[i] != 0; i = (i + 1) & (len(s) - 1) {
		if x := s[i]; x != tombstone && t.sameMasked(x-1, masked) {
			return x - 1
		}
	}
	return none
}

// sameMasked reports whether e's key, without its ranges, is masked.
func (t *table) sameMasked(e uint32, masked []uint64) bool {
	k, mask := t.key(e), t.mask(e)
	for i, w := range masked {
		if !t.def.ranged[i] && k[i]&mask[i] != w {
			return false
		}
	}
	return true
}

// inRanges reports whether the ranges of e contain those fields of key.
func (t *table) inRanges(e uint32, key []uint64) bool {
	if t.def.ranged == nil || !t.def.hasRange {
		return true
	}
	low, high := t.key(e), t.mask(e)
	for _, d := range t.def.keys {
		if d.kind != Range {
			continue
		}
		a, b := d.at, d.at+d.words
		if wCmp(key[a:b], low[a:b]) < 0 || wCmp(key[a:b], high[a:b]) > 0 {
			return false
		}
	}
	return true
}

// tupleMask is the mask of e's tuple: no bits of ranges.
func (t *table) tupleMask(dst []uint64, e uint32) []uint64 {
	dst = append(dst, t.mask(e)...)
	for i := range dst {
		if t.def.ranged[i] {
			dst[i] = 0
		}
	}
	return dst
}

func (m *tupleMatcher) hash(t *table, e uint32) uint64 {
	k, mask := t.key(e), t.mask(e)
	for i := range k {
		m.masked[i] = k[i] & mask[i]
		if t.def.ranged[i] {
			m.masked[i] = 0
		}
	}
	return hashWords(m.masked)
}

// tuple is that of a mask; nil: no entry has it.
func (m *tupleMatcher) tuple(mask []uint64) *tuple {
	for _, u := range m.masks[hashWords(mask)] {
		if slices.Equal(u.mask, mask) {
			return u
		}
	}
	return nil
}

func (m *tupleMatcher) insert(t *table, e uint32) {
	if len(m.few) < mostFew && m.n() == 0 {
		i, _ := slices.BinarySearchFunc(m.few, e, func(a, b uint32) int {
			if t.wins(a, b) {
				return -1
			}
			return 1
		})
		m.few = slices.Insert(m.few, i, e)
		t.rows[e].home = inFew
		return
	}
	for _, e := range m.few {
		m.add(t, e)
	}
	m.few = m.few[:0]
	m.add(t, e)
}

// n is how many entries are not among few.
func (m *tupleMatcher) n() int { return len(m.masks) }

// add inserts an entry behind few.
func (m *tupleMatcher) add(t *table, e uint32) {
	mask := t.tupleMask(nil, e)
	u := m.tuple(mask)
	if u == nil {
		u = &tuple{mask: mask, best: t.rank(e)}
		if m.masks == nil {
			m.masks = map[uint64][]*tuple{}
		}
		h := hashWords(mask)
		m.masks[h] = append(m.masks[h], u)
	}
	u.n++
	u.best = min(u.best, t.rank(e))
	if !u.hashed && (u.n >= enoughOfMask || u.n >= someOfMask && goodPart*u.n >= t.n) {
		u.hashed, u.moved = true, 0
		m.tuples = append(m.tuples, u)
	}
	if u.hashed {
		slices.SortStableFunc(m.tuples, func(a, b *tuple) int { return int(a.best) - int(b.best) })
		m.move(t, u)
	}
	if !u.hashed || !m.chain(t, u, e) {
		m.vectors.insert(t, e)
		t.rows[e].home = inVectors
	}
}

// move has some of the entries of a tuple that are in vectors come to its hash.
func (m *tupleMatcher) move(t *table, u *tuple) {
	for end := min(u.moved+movedAtOnce, len(m.segs)*perSegment); u.moved < end; u.moved++ {
		s, at := m.segs[u.moved/perSegment], u.moved&segmentMask
		if s.used[at/64]>>(at&63)&1 == 0 {
			continue
		}
		e := s.entry[at]
		if m.masked = t.tupleMask(m.masked[:0], e); !slices.Equal(m.masked, u.mask) {
			continue
		}
		place := t.next[e]
		if m.chain(t, u, e) {
			next := t.next[e]
			t.next[e] = place
			m.vectors.remove(t, e)
			t.next[e] = next
		}
	}
}

// chain inserts an entry into a tuple's hash; false when too many have its masked key.
func (m *tupleMatcher) chain(t *table, u *tuple, e uint32) bool {
	hash := func(e uint32) uint64 { return m.hash(t, e) }
	h := hash(e)
	head := none
	if u.idx.used > 0 {
		head = u.head(t, m.masked)
	}
	k := 0
	for p := head; p != none; p = t.next[p] {
		k++
	}
	switch {
	case k == mostChained:
		return false
	case head == none:
		t.next[e] = none
		u.idx.add(e, h, hash)
	case t.wins(e, head):
		t.next[e] = head
		u.idx.swap(head, e, h)
	default:
		p := head
		for t.next[p] != none && t.wins(t.next[p], e) {
			p = t.next[p]
		}
		t.next[e], t.next[p] = t.next[p], e
	}
	t.rows[e].home = inTuple
	return true
}

func (m *tupleMatcher) remove(t *table, e uint32) {
	if t.rows[e].home == inFew {
		i := slices.Index(m.few, e)
		m.few = slices.Delete(m.few, i, i+1)
		return
	}
	u := m.tuple(t.tupleMask(nil, e))
	if t.rows[e].home == inVectors {
		m.vectors.remove(t, e)
	} else {
		m.unchain(t, u, e)
	}
	if u.n--; u.n > 0 {
		return
	}
	same := func(x *tuple) bool { return x == u }
	h := hashWords(u.mask)
	if m.masks[h] = slices.DeleteFunc(m.masks[h], same); len(m.masks[h]) == 0 {
		delete(m.masks, h)
	}
	m.tuples = slices.DeleteFunc(m.tuples, same)
}

// unchain takes an entry out of a tuple's hash.
func (m *tupleMatcher) unchain(t *table, u *tuple, e uint32) {
	hash := func(e uint32) uint64 { return m.hash(t, e) }
	h := hash(e)
	head := u.head(t, m.masked)
	switch {
	case head != e:
		p := head
		for t.next[p] != e {
			p = t.next[p]
		}
		t.next[p] = t.next[e]
	case t.next[e] != none:
		u.idx.swap(e, t.next[e], h)
	default:
		u.idx.del(e, h, hash)
	}
}
