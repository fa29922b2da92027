package p4

import (
	"math/bits"
	"slices"
)

// vectors finds the entry that a key hits among entries of any masks and ranges: for each byte of the key there is, for each of its
// values, a vector of bits that says which entries it may hit; the entries are in all of these vectors (Lakshman and Stiliadis,
// High-Speed Policy-based Packet Forwarding, SIGCOMM 1998). Entries lie in segments, which are looked through one by one: a segment whose
// best entry is worse than the one found is passed over, and of the others few bytes are looked at until none is left.
type vectors struct {
	chunks []chunk
	segs   []*segment
	free   []uint32 // places, as t.next has them
	n      int
}

// chunk is a byte of the key.
type chunk struct {
	word  int
	shift uint
	// rest are the bits of its field above it, where that is a range: then the byte tells something only of entries whose lowest and highest
	// value are alike in these.
	rest bitsOf
	kind MatchKind
}

// bitsOf are some bits of words of a key.
type bitsOf struct{ at, from, to int }

const (
	lanes       = 8 // words of a vector in a segment
	perSegment  = 64 * lanes
	noRank      = int32(1<<31 - 1)
	segmentMask = perSegment - 1
)

// lane is a vector's part in a segment.
type lane [lanes]uint64

// segment has the vectors of some entries.
type segment struct {
	used  lane
	rows  []*rows  // by chunk; nil: no entry looks at it
	any   []lane   // entries that do not look at it
	order []uint16 // chunks that entries look at, those first that leave the fewest of them
	turns int      // changes since order was made
	entry [perSegment]uint32
	n     int
	best  int32 // no entry has a lower rank
}

// rows are the vectors of a chunk.
type rows struct {
	of      [256]lane
	entries [256]uint16 // in each of them
	// cares is how many entries look at the chunk, all how many there are in all vectors together, and squares the sum of the squares of these.
	cares, all, squares int
}

// newVectors makes those of a table's keys.
func newVectors(d *tableDef) vectors {
	v := vectors{}
	for _, k := range d.keys {
		for at := 0; at < k.bits; at += 8 {
			v.chunks = append(v.chunks, chunk{word: k.at + at/64, shift: uint(at % 64), kind: k.kind, rest: bitsOf{k.at, at + 8, k.bits}})
		}
	}
	return v
}

// alike reports whether a and b have the same bits there.
func (x bitsOf) alike(a, b []uint64) bool {
	for from := x.from; from < x.to; from = (from/64 + 1) * 64 {
		if (a[x.at+from/64]^b[x.at+from/64])>>uint(from%64) != 0 {
			return false
		}
	}
	return true
}

// span is what a byte may be to hit an entry with key and mask: from lo to hi, and in the bits of mask as lo; all: whatever it is.
func (c *chunk) span(key, mask []uint64) (lo, hi, m uint8, all bool) {
	lo, m = uint8(key[c.word]>>c.shift), uint8(mask[c.word]>>c.shift)
	if c.kind != Range {
		return lo, 255, m, m == 0
	}
	if !c.rest.alike(key, mask) {
		return 0, 255, 0, true
	}
	return lo, m, 0, lo == 0 && m == top(c)
}

// top is the highest value of a byte of a range.
func top(c *chunk) uint8 { return uint8(1<<min(8, c.rest.to-c.rest.from+8) - 1) }

// mark sets or clears an entry's bit in all vectors that it is in.
func (s *segment) mark(v *vectors, place uint32, key, mask []uint64, set bool) {
	w, bit := place&segmentMask/64, uint64(1)<<(place&63)
	put := func(to *uint64) {
		if set {
			*to |= bit
		} else {
			*to &^= bit
		}
	}
	for i := range v.chunks {
		lo, hi, m, all := v.chunks[i].span(key, mask)
		if all {
			put(&s.any[i][w])
			continue
		}
		r, d := s.rows[i], 1
		if r == nil {
			r = new(rows)
			s.rows[i] = r
		}
		if !set {
			d = -1
		}
		if r.cares += d; set && r.cares == 1 {
			s.order = append(s.order, uint16(i))
		} else if r.cares == 0 {
			s.order = slices.DeleteFunc(s.order, func(c uint16) bool { return c == uint16(i) })
		}
		for b := int(lo); b <= int(hi); b++ {
			if uint8(b)&m == lo&m {
				put(&r.of[b][w])
				k := int(r.entries[b])
				r.entries[b] = uint16(k + d)
				r.all += d
				r.squares += 2*k*d + 1
			}
		}
	}
	put(&s.used[w])
	if s.turns++; s.turns&15 == 1 {
		slices.SortFunc(s.order, func(a, b uint16) int { return s.leaves(a) - s.leaves(b) })
	}
}

// leaves is how many entries a chunk leaves on average of those that a key hits which hits one of them.
func (s *segment) leaves(chunk uint16) int {
	r := s.rows[chunk]
	return s.n - r.cares + r.squares/max(r.all, 1)
}

// insert takes up an entry.
func (v *vectors) insert(t *table, e uint32) {
	place := uint32(len(v.segs) * perSegment)
	if n := len(v.free); n > 0 {
		place, v.free = v.free[n-1], v.free[:n-1]
	} else {
		k := len(v.chunks)
		v.segs = append(v.segs, &segment{rows: make([]*rows, k), any: make([]lane, k), order: make([]uint16, 0, k), best: noRank})
		for p := place + perSegment - 1; p > place; p-- {
			v.free = append(v.free, p)
		}
	}
	s := v.segs[place/perSegment]
	s.mark(v, place, t.key(e), t.mask(e), true)
	s.entry[place&segmentMask] = e
	s.n++
	s.best = min(s.best, t.rank(e))
	t.next[e] = place
	v.n++
}

// remove lets go of an entry.
func (v *vectors) remove(t *table, e uint32) {
	place := t.next[e]
	s := v.segs[place/perSegment]
	s.mark(v, place, t.key(e), t.mask(e), false)
	if s.n--; s.n == 0 {
		s.best = noRank
	}
	v.free = append(v.free, place)
	v.n--
}

// find is the entry that wins of those that the key hits, and of found.
func (v *vectors) find(t *table, key []uint64, found uint32) uint32 {
	for _, s := range v.segs {
		if s.n == 0 || found != none && s.best > t.rank(found) {
			continue
		}
		if hits := s.hits(v.chunks, key); hits != (lane{}) {
			found = s.winner(t, key, &hits, found)
		}
	}
	return found
}

// hits are the entries that the key may hit.
func (s *segment) hits(chunks []chunk, key []uint64) lane {
	a := s.used
	for _, c := range s.order {
		k := &chunks[c]
		r, y := &s.rows[c].of[uint8(key[k.word]>>k.shift)], &s.any[c]
		a[0] &= r[0] | y[0]
		a[1] &= r[1] | y[1]
		a[2] &= r[2] | y[2]
		a[3] &= r[3] | y[3]
		a[4] &= r[4] | y[4]
		a[5] &= r[5] | y[5]
		a[6] &= r[6] | y[6]
		a[7] &= r[7] | y[7]
		if a[0]|a[1]|a[2]|a[3]|a[4]|a[5]|a[6]|a[7] == 0 {
			break
		}
	}
	return a
}

// winner is the entry that wins of hits, whose ranges contain the key, and of found.
func (s *segment) winner(t *table, key []uint64, hits *lane, found uint32) uint32 {
	for w, x := range hits {
		for ; x != 0; x &= x - 1 {
			e := s.entry[w*64+bits.TrailingZeros64(x)]
			if (found == none || t.wins(e, found)) && t.inRanges(e, key) {
				found = e
			}
		}
	}
	return found
}

// exact is the entry with just this key, masks and order.
func (v *vectors) exact(t *table, p parsedKey) uint32 {
	for _, s := range v.segs {
		for w, x := range s.hits(v.chunks, p.key) {
			for ; x != 0; x &= x - 1 {
				if e := s.entry[w*64+bits.TrailingZeros64(x)]; t.equal(e, p) {
					return e
				}
			}
		}
	}
	return none
}
