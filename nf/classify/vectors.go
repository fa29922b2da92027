package classify

import (
	"math/bits"
	"slices"
)

// vectors has entries of any masks and ranges. They lie in segments, which are looked through one by one: a segment whose
// best entry is worse than the one found is passed over, and of the others few bytes are looked at until none is left. Of few entries
// vectors are short, and few entries of what were many move together, so that memory is bounded by how many there are.
type vectors struct {
	segs []*segment
	open []int // segments with room
	low  int   // a segment that had room for what was moved last
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
	lanes       = 8 // words of a vector in a segment, at most
	perSegment  = 64 * lanes
	segmentMask = perSegment - 1
	// sparse: vectors with fewer than one in so many places taken give segments back.
	sparse = 4
)

// lane is a vector's part in a segment.
type lane [lanes]uint64

// segment has the vectors of some entries.
type segment struct {
	used  lane
	words int      // of each vector: as many as the entries need, 1, 2, 4 or lanes
	rows  []*rows  // by chunk; nil: no entry looks at it
	any   []uint64 // entries that do not look at it: a vector for each chunk
	order []uint16 // chunks that entries look at, those first that leave the fewest of them
	turns int      // changes since order was made
	// sliced are the lowest and highest values of entries' ranges, bit by bit: two vectors for each bit, the highest first.
	sliced []uint64
	entry  [perSegment]uint32
	n      int
	best   int32 // the lowest order of its entries
	mixed  bool  // entries do not lie as they come: of two that a key hits the first need not win
}

// rows are the vectors of a chunk.
type rows struct {
	of      []uint64    // 256 of them
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
func (g *segment) mark(s *Set, e uint32, set bool) {
	place, key, mask := s.place[e], s.Key(e), s.Mask(e)
	if set {
		g.slice(s, e)
	}
	w, bit := int(place&segmentMask/64), uint64(1)<<(place&63)
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
			put(&g.any[i*g.words+w])
			continue
		}
		r, d := g.rows[i], 1
		if r == nil {
			r = &rows{of: make([]uint64, 256*g.words)}
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
				put(&r.of[b*g.words+w])
				k := int(r.entries[b])
				r.entries[b] = uint16(k + d)
				r.all += d
				r.squares += 2*k*d + 1
			}
		}
		if r.cares == 0 {
			g.rows[i] = nil
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

// grow doubles the words of each vector.
func (g *segment) grow() {
	longer := func(of []uint64) []uint64 {
		to := make([]uint64, 2*len(of))
		for i, j := 0, 0; i < len(of); i, j = i+g.words, j+2*g.words {
			copy(to[j:j+g.words], of[i:])
		}
		return to
	}
	for _, r := range g.rows {
		if r != nil {
			r.of = longer(r.of)
		}
	}
	g.any, g.sliced = longer(g.any), longer(g.sliced)
	g.words *= 2
}

// insert takes up an entry.
func (v *vectors) insert(s *Set, e uint32) {
	if len(v.open) == 0 {
		k := len(s.chunks)
		v.open = append(v.open, len(v.segs))
		v.segs = append(v.segs, &segment{words: 1, rows: make([]*rows, k), any: make([]uint64, k), order: make([]uint16, 0, k), sliced: make([]uint64, s.slices), best: noRank})
	}
	last := len(v.open) - 1
	if v.put(s, v.open[last], e); v.segs[v.open[last]].n == perSegment {
		v.open = v.open[:last]
	}
}

// put puts an entry into a segment with room.
func (v *vectors) put(s *Set, at int, e uint32) {
	g := v.segs[at]
	if g.n == 64*g.words {
		g.grow()
	}
	place := 0
	for g.used[place/64] == ^uint64(0) {
		place += 64
	}
	place += bits.TrailingZeros64(^g.used[place/64])
	s.place[e] = uint32(at*perSegment + place)
	g.mark(s, e, true)
	g.entry[place] = e
	g.mixed = g.mixed || !g.between(s, place)
	g.n++
	g.best = min(g.best, s.order[e])
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

// remove lets go of an entry, and moves a few others where most places are free.
func (v *vectors) remove(s *Set, e uint32) {
	v.take(s, e)
	last := len(v.segs) - 1
	for range 2 {
		if last == 0 || v.n >= (last+1)*perSegment/sparse || v.segs[last].n == 0 {
			break
		}
		for v.low %= last; v.segs[v.low].n == perSegment; { // one of them is not full
			v.low = (v.low + 1) % last
		}
		e := v.segs[last].first()
		v.take(s, e)
		if v.put(s, v.low, e); v.segs[v.low].n == perSegment {
			v.close(v.low)
		}
	}
	switch {
	case last > 0 && v.segs[last].n == 0:
		v.close(last)
		v.segs[last], v.segs = nil, v.segs[:last]
	case last == 0 && v.segs[0].words == lanes && v.n <= 64:
		all := v.entries(nil)
		*v = vectors{}
		for _, e := range all {
			v.insert(s, e)
		}
	}
}

// close takes a segment off the list of those with room.
func (v *vectors) close(at int) {
	v.open = slices.DeleteFunc(v.open, func(x int) bool { return x == at })
}

// take is remove, and moves nothing.
func (v *vectors) take(s *Set, e uint32) {
	place := s.place[e]
	at := int(place / perSegment)
	g := v.segs[at]
	if g.n == perSegment {
		v.open = append(v.open, at)
	}
	g.mark(s, e, false)
	g.n--
	v.n--
	if s.order[e] == g.best {
		g.best = noRank
		g.each(func(e uint32) bool { g.best = min(g.best, s.order[e]); return true })
	}
	g.mixed = g.mixed && g.n > 1
}

// each yields the entries of a segment, until yield says false.
func (g *segment) each(yield func(e uint32) bool) {
	for w, x := range g.used {
		for ; x != 0; x &= x - 1 {
			if !yield(g.entry[w*64+bits.TrailingZeros64(x)]) {
				return
			}
		}
	}
}

// first is an entry of a segment that has some.
func (g *segment) first() (first uint32) {
	g.each(func(e uint32) bool { first = e; return false })
	return first
}

// lowest is the lowest order of the entries.
func (v *vectors) lowest() int32 {
	least := noRank
	for _, g := range v.segs {
		least = min(least, g.best)
	}
	return least
}

// some are at most so many of the entries, of all segments.
func (v *vectors) some(most int) (list []uint32) {
	for _, g := range v.segs {
		n := 0
		g.each(func(e uint32) bool {
			list = append(list, e)
			n++
			return n*len(v.segs) < most
		})
	}
	return list
}

// entries are all of them, behind list.
func (v *vectors) entries(list []uint32) []uint32 {
	for _, g := range v.segs {
		g.each(func(e uint32) bool { list = append(list, e); return true })
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
	if g.words < lanes {
		return g.hitsFew(chunks, key)
	}
	a := g.used
	for _, c := range g.order {
		k := &chunks[c]
		r, y := (*lane)(g.rows[c].of[int(uint8(key[k.word]>>k.shift))*lanes:]), (*lane)(g.any[int(c)*lanes:])
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

// hitsFew is hits of a segment with few entries.
func (g *segment) hitsFew(chunks []chunk, key []uint64) lane {
	a, n := g.used, g.words
	for _, c := range g.order {
		k := &chunks[c]
		r, y := g.rows[c].of[int(uint8(key[k.word]>>k.shift))*n:][:n], g.any[int(c)*n:][:n]
		left := uint64(0)
		for i := range r {
			a[i&(lanes-1)] &= r[i] | y[i]
			left |= a[i&(lanes-1)]
		}
		if left == 0 {
			break
		}
	}
	return a
}

// slice writes an entry's bits into sliced.
func (g *segment) slice(s *Set, e uint32) {
	w, bit := int(s.place[e]&segmentMask/64), uint64(1)<<(s.place[e]&63)
	at := w
	put := func(x uint64) {
		if g.sliced[at] &^= bit; x&1 != 0 {
			g.sliced[at] |= bit
		}
		at += g.words
	}
	low, high := s.Key(e), s.Mask(e)
	for i := range s.fields {
		f := &s.fields[i]
		for b := f.Bits - 1; b >= 0 && f.wide(); b-- {
			put(low[f.at+b/64] >> (b % 64))
			put(high[f.at+b/64] >> (b % 64))
		}
	}
}

// within leaves of hits those whose ranges contain the key, all at once, bit by bit.
func (g *segment) within(s *Set, key []uint64, hits *lane) {
	v := g.sliced
	for i := range s.fields {
		f := &s.fields[i]
		if !f.wide() {
			continue
		}
		low, high := *hits, *hits // those whose bits so far are as the key's
		for b := f.Bits - 1; b >= 0; b-- {
			one := -(key[f.at+b/64] >> (b % 64) & 1) // all bits, or none
			for w := range g.words {
				l, h := v[w], v[w+g.words]
				hits[w] &^= low[w]&l&^one | high[w]&one&^h
				low[w] &^= l ^ one
				high[w] &^= h ^ one
			}
			v = v[2*g.words:]
		}
	}
}

// several ranges of a segment's entries do not contain the key though all bytes fit: the others are looked at together.
const several = 32

// winner is the entry that comes first of hits, whose ranges contain the key, and of found.
func (g *segment) winner(s *Set, key []uint64, hits *lane, found uint32) uint32 {
	missed := 0
	for w := range hits {
		for hits[w] != 0 {
			e := g.entry[w*64+bits.TrailingZeros64(hits[w])]
			hits[w] &= hits[w] - 1
			switch wins := found == None || s.wins(e, found); {
			case !wins && !g.mixed:
				return found
			case !wins:
			case !s.ranges || s.inRanges(s.Key(e), s.Mask(e), key):
				if found = e; !g.mixed {
					return found
				}
			default:
				if missed++; missed == several {
					g.within(s, key, hits)
				}
			}
		}
	}
	return found
}

// exact is an entry that is the same as one with this key and mask. It hits the lowest key that the one hits and the highest, as do few others.
func (v *vectors) exact(s *Set, key, mask []uint64, same func(uint32) bool) uint32 {
	highest := slices.Clone(mask)
	for i := range highest {
		if !s.ranged[i] {
			highest[i] = key[i] | ^mask[i]
		}
	}
	for _, g := range v.segs {
		low, high := g.hits(s.chunks, key), g.hits(s.chunks, highest)
		for w, x := range low {
			for x &= high[w]; x != 0; x &= x - 1 {
				if e := g.entry[w*64+bits.TrailingZeros64(x)]; same(e) {
					return e
				}
			}
		}
	}
	return None
}
