package classify

import (
	"math/bits"
	"slices"
)

// vectors has entries of any masks and ranges. They lie in segments, which are looked through one by one: a segment whose
// best entry is worse than the one found is passed over, and of the others few bytes are looked at until none is left.
type vectors struct {
	segs []*segment
	free []uint32 // places, as Set.place has them
	n    int
}

// chunk is a byte of the key.
type chunk struct {
	word   int
	shift  uint
	ranged bool
	// rest are the bits of its field above it: of a range the byte tells something only of entries whose lowest and highest
	// value are alike in these.
	rest bitsOf
}

// bitsOf are some bits of words of a key.
type bitsOf struct{ at, from, to int }

const (
	lanes       = 8 // words of a vector in a segment
	perSegment  = 64 * lanes
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
	best  int32 // no entry has a lower order
	mixed bool  // entries do not lie as they come: of two that a key hits the first need not win
}

// rows are the vectors of a chunk.
type rows struct {
	of      [256]lane
	entries [256]uint16 // in each of them
	// cares is how many entries look at the chunk, all how many there are in all vectors together, and squares the sum of the squares of these.
	cares, all, squares int
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
	if !c.ranged {
		return lo, 255, m, m == 0
	}
	if !c.rest.alike(key, mask) {
		return 0, 255, 0, true
	}
	return lo, m, 0, lo == 0 && m == c.top()
}

// top is the highest value of a byte.
func (c *chunk) top() uint8 { return uint8(1<<min(8, c.rest.to-c.rest.from+8) - 1) }

// mark sets or clears an entry's bit in all vectors that it is in.
func (g *segment) mark(s *Set, place uint32, key, mask []uint64, set bool) {
	w, bit := place&segmentMask/64, uint64(1)<<(place&63)
	put := func(to *uint64) {
		if set {
			*to |= bit
		} else {
			*to &^= bit
		}
	}
	for i := range s.chunks {
		lo, hi, m, all := s.chunks[i].span(key, mask)
		if all {
			put(&g.any[i][w])
			continue
		}
		r, d := g.rows[i], 1
		if r == nil {
			r = new(rows)
			g.rows[i] = r
		}
		if !set {
			d = -1
		}
		if r.cares += d; set && r.cares == 1 {
			g.order = append(g.order, uint16(i))
		} else if r.cares == 0 {
			g.order = slices.DeleteFunc(g.order, func(c uint16) bool { return c == uint16(i) })
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
	put(&g.used[w])
	if g.turns++; g.turns&15 == 1 {
		slices.SortFunc(g.order, func(a, b uint16) int { return g.leaves(a) - g.leaves(b) })
	}
}

// leaves is how many entries a chunk leaves on average of those that a key hits which hits one of them.
func (g *segment) leaves(chunk uint16) int {
	r := g.rows[chunk]
	return g.n - r.cares + r.squares/max(r.all, 1)
}

// insert takes up an entry.
func (v *vectors) insert(s *Set, e uint32) {
	place := uint32(len(v.segs) * perSegment)
	if n := len(v.free); n > 0 {
		place, v.free = v.free[n-1], v.free[:n-1]
	} else {
		k := len(s.chunks)
		v.segs = append(v.segs, &segment{rows: make([]*rows, k), any: make([]lane, k), order: make([]uint16, 0, k), best: noRank})
		for p := place + perSegment - 1; p > place; p-- {
			v.free = append(v.free, p)
		}
	}
	g := v.segs[place/perSegment]
	g.mark(s, place, s.Key(e), s.Mask(e), true)
	g.entry[place&segmentMask] = e
	g.mixed = g.mixed || !g.between(s, int(place&segmentMask))
	g.n++
	g.best = min(g.best, s.order[e])
	s.place[e] = place
	v.n++
}

// between reports whether the entry at a place comes behind the one before it, and before the one behind it.
func (g *segment) between(s *Set, at int) bool {
	e := g.entry[at]
	for p := at - 1; p >= 0; {
		if x := g.used[p/64] << uint(63-p&63); x != 0 {
			if !s.wins(g.entry[p-bits.LeadingZeros64(x)], e) {
				return false
			}
			break
		}
		p = p&^63 - 1
	}
	for p := at + 1; p < perSegment; p = p&^63 + 64 {
		if x := g.used[p/64] >> uint(p&63); x != 0 {
			return s.wins(e, g.entry[p+bits.TrailingZeros64(x)])
		}
	}
	return true
}

// remove lets go of an entry.
func (v *vectors) remove(s *Set, e uint32) {
	place := s.place[e]
	g := v.segs[place/perSegment]
	g.mark(s, place, s.Key(e), s.Mask(e), false)
	if g.n--; g.n == 0 {
		g.best, g.mixed = noRank, false
	}
	v.free = append(v.free, place)
	v.n--
}

// entries are all of them, behind list.
func (v *vectors) entries(list []uint32) []uint32 {
	for _, g := range v.segs {
		for w, x := range g.used {
			for ; x != 0; x &= x - 1 {
				list = append(list, g.entry[w*64+bits.TrailingZeros64(x)])
			}
		}
	}
	return list
}

// find is the entry that comes first of those that the key hits, and of found.
func (v *vectors) find(s *Set, key []uint64, found uint32) uint32 {
	for _, g := range v.segs {
		if g.n == 0 || found != None && g.best > s.order[found] {
			continue
		}
		if hits := g.hits(s.chunks, key); hits != (lane{}) {
			found = g.winner(s, key, &hits, found)
		}
	}
	return found
}

// hits are the entries that the key may hit.
func (g *segment) hits(chunks []chunk, key []uint64) lane {
	a := g.used
	for _, c := range g.order {
		k := &chunks[c]
		r, y := &g.rows[c].of[uint8(key[k.word]>>k.shift)], &g.any[c]
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

// winner is the entry that comes first of hits, whose ranges contain the key, and of found.
func (g *segment) winner(s *Set, key []uint64, hits *lane, found uint32) uint32 {
	for w, x := range hits {
		for ; x != 0; x &= x - 1 {
			e := g.entry[w*64+bits.TrailingZeros64(x)]
			switch wins := found == None || s.wins(e, found); {
			case !wins && !g.mixed:
				return found
			case wins && (!s.ranges || s.inRanges(s.Key(e), s.Mask(e), key)):
				if found = e; !g.mixed {
					return found
				}
			}
		}
	}
	return found
}

// exact is an entry that is the same as one with this key.
func (v *vectors) exact(s *Set, key []uint64, same func(uint32) bool) uint32 {
	for _, g := range v.segs {
		for w, x := range g.hits(s.chunks, key) {
			for ; x != 0; x &= x - 1 {
				if e := g.entry[w*64+bits.TrailingZeros64(x)]; same(e) {
					return e
				}
			}
		}
	}
	return None
}
