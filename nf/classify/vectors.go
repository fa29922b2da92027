package classify

import (
	"cmp"
	"math/bits"
	"slices"
)

// vectors has entries of any masks and ranges. They lie in segments, which a search looks through one by one.
// The entries of a segment come before those of the next one, so a search ends at a segment whose best entry
// is worse than the one found. In each segment it looks at few bytes of the key, until no entry is left. The
// vectors of few entries are short; a full segment becomes two, and two segments of few entries become one.
// So the memory is bounded by the number of entries.
type vectors struct {
	segs []*segment
	byID []*segment // by segment.id; nil: the id is free
	n    int
}

// chunk is a byte of the key.
type chunk struct {
	word   int
	shift  uint
	ranged bool
	// rest has the bits of its field above it. Of a range, the byte excludes entries only if lowest and
	// highest value are equal in these bits.
	rest bitsOf
}

// bitsOf are some bits of the words of a key.
type bitsOf struct{ at, from, to int }

const (
	lanes       = 8 // largest number of words of a vector in a segment
	perSegment  = 64 * lanes
	segmentMask = perSegment - 1
)

// lane is the part of a vector in one segment.
type lane [lanes]uint64

// segment has the vectors of some entries.
type segment struct {
	id    int
	from  uint64 // no entry has a lower rank
	used  lane
	words int      // words of each vector: as many as the entries need, 1, 2, 4 or lanes
	rows  []*rows  // by chunk; nil: no entry looks at the chunk
	any   []uint64 // for each chunk, the vector of the entries that do not look at it
	order []uint16 // the chunks that entries look at, first those that leave the fewest entries
	turns int      // number of changes since order was made
	// sliced has the lowest and highest values of the entries' ranges, bit by bit: two vectors for each bit,
	// the highest bit first.
	sliced []uint64
	entry  [perSegment]uint32
	n      int
	best   int32 // lowest order of its entries
	mixed  bool  // the entries do not lie in their order: of two that a key hits, the first need not win
}

// rows has the vectors of a chunk, one for each value.
type rows struct {
	of      []uint64    // 256 vectors
	entries [256]uint16 // number of entries in each vector
	// cares is the number of entries that look at the chunk, all the sum of entries, and squares the sum of
	// their squares.
	cares, all, squares int
}

// alike reports whether a and b have the same bits at x.
func (x bitsOf) alike(a, b []uint64) bool {
	for from := x.from; from < x.to; from = (from/64 + 1) * 64 {
		if (a[x.at+from/64]^b[x.at+from/64])>>uint(from%64) != 0 {
			return false
		}
	}
	return true
}

// span returns what values of the byte hit an entry with this key and mask: those from lo to hi that agree
// with lo in the bits m. all says that every value does.
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

// top returns the highest value of the byte.
func (c *chunk) top() uint8 { return uint8(1<<min(8, c.rest.to-c.rest.from+8) - 1) }

// mark sets or clears the bit of an entry in all of its vectors.
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
		g.sort()
	}
}

// sort sorts order: first the chunks that leave the fewest entries.
func (g *segment) sort() {
	slices.SortFunc(g.order, func(a, b uint16) int { return g.leaves(a) - g.leaves(b) })
}

// leaves returns the average number of entries that a chunk leaves for a key that hits one of them.
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

// rank returns the place of an entry in the order of all entries: the lower rank wins.
func (s *Set) rank(e uint32) uint64 { return uint64(uint32(s.order[e])^1<<31)<<32 | uint64(e) }

// add adds a segment behind those of lower ranks.
func (v *vectors) add(g *segment) {
	if g.id = slices.Index(v.byID, nil); g.id < 0 {
		g.id = len(v.byID)
		v.byID = append(v.byID, nil)
	}
	v.byID[g.id] = g
	v.segs = slices.Insert(v.segs, v.at(g.from)+1, g)
}

// at returns the index of the segment to which a rank belongs, or -1 if there is none.
func (v *vectors) at(rank uint64) int {
	i, same := slices.BinarySearchFunc(v.segs, rank, func(g *segment, rank uint64) int { return cmp.Compare(g.from, rank) })
	if same {
		return i
	}
	return i - 1
}

// insert adds an entry.
func (v *vectors) insert(s *Set, e uint32) {
	at, rank := v.at(s.rank(e)), s.rank(e)
	if full := at >= 0 && v.segs[at].n == perSegment; at < 0 || full && at == len(v.segs)-1 && v.segs[at].most(s) < rank { // entries that come in their order fill each segment
		if at < 0 {
			rank = 0
		}
		k := len(s.chunks)
		v.add(&segment{from: rank, words: 1, rows: make([]*rows, k), any: make([]uint64, k), order: make([]uint16, 0, k), sliced: make([]uint64, s.slices), best: noRank})
	} else if full {
		v.split(s, v.segs[at])
	}
	v.put(s, v.segs[v.at(s.rank(e))], e)
}

// put adds an entry to a segment with room.
func (v *vectors) put(s *Set, g *segment, e uint32) {
	if g.n == 64*g.words {
		g.grow()
	}
	place := 0
	for g.used[place/64] == ^uint64(0) {
		place += 64
	}
	place += bits.TrailingZeros64(^g.used[place/64])
	s.place[e] = uint32(g.id*perSegment + place)
	g.mark(s, e, true)
	g.entry[place] = e
	g.mixed = g.mixed || !g.between(s, place)
	g.n++
	g.best = min(g.best, s.order[e])
	v.n++
}

// most returns the highest rank of the segment's entries.
func (g *segment) most(s *Set) (most uint64) {
	g.each(func(e uint32) bool { most = max(most, s.rank(e)); return true })
	return most
}

// split moves the later half of a full segment's entries into a new segment.
func (v *vectors) split(s *Set, g *segment) {
	var ranks [perSegment]uint64
	for i, e := range g.entry {
		ranks[i] = s.rank(e)
	}
	slices.Sort(ranks[:])
	middle := ranks[perSegment/2]
	var stay lane
	for i, e := range g.entry {
		if s.rank(e) < middle {
			stay[i/64] |= 1 << (i % 64)
		}
	}
	h := &segment{from: middle, words: g.words, any: slices.Clone(g.any), sliced: slices.Clone(g.sliced), entry: g.entry, mixed: g.mixed}
	for _, r := range g.rows {
		if r != nil {
			r = &rows{of: slices.Clone(r.of)}
		}
		h.rows = append(h.rows, r)
	}
	v.add(h)
	g.keep(s, &stay)
	for w := range stay {
		stay[w] = ^stay[w]
	}
	h.keep(s, &stay)
	h.each(func(e uint32) bool { s.place[e] = uint32(h.id*perSegment) + s.place[e]&segmentMask; return true })
}

// keep removes all entries of a segment except some.
func (g *segment) keep(s *Set, some *lane) {
	g.used, g.n, g.best, g.order = *some, 0, noRank, g.order[:0]
	g.each(func(e uint32) bool { g.n, g.best = g.n+1, min(g.best, s.order[e]); return true })
	for i := range g.any {
		g.any[i] &= some[i%g.words]
	}
	for i, r := range g.rows {
		if r == nil {
			continue
		}
		r.cares, r.all, r.squares = g.n, 0, 0
		for _, x := range g.any[i*g.words:][:g.words] {
			r.cares -= bits.OnesCount64(x)
		}
		if r.cares == 0 {
			g.rows[i] = nil
			continue
		}
		for b := range r.entries {
			n := 0
			for w, x := range some[:g.words] {
				r.of[b*g.words+w] &= x
				n += bits.OnesCount64(r.of[b*g.words+w])
			}
			r.entries[b] = uint16(n)
			r.all, r.squares = r.all+n, r.squares+n*n
		}
		g.order = append(g.order, uint16(i))
	}
	g.sort()
}

// between reports whether the entry at a place comes after the entry before it, and before the entry behind
// it.
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

// remove removes an entry. It merges its segment with a neighbour if both together have few entries.
func (v *vectors) remove(s *Set, e uint32) {
	g := v.byID[s.place[e]/perSegment]
	v.take(s, e)
	at := slices.Index(v.segs, g)
	for _, n := range [...]int{at, at + 1} { // merge with the segment before it, or behind it
		if n > 0 && n < len(v.segs) && (g.n == 0 || v.segs[n-1].n+v.segs[n].n <= perSegment/2) {
			v.merge(s, n)
			return
		}
	}
	if len(v.segs) == 1 && g.words == lanes && v.n <= 64 {
		all := v.entries(nil)
		*v = vectors{}
		for _, e := range all {
			v.insert(s, e)
		}
	}
}

// merge makes one segment of segment n and the one before it.
func (v *vectors) merge(s *Set, n int) {
	to, from := v.segs[n-1], v.segs[n]
	if from.n > to.n {
		to, from = from, to
	}
	for from.n > 0 {
		e := from.first()
		v.take(s, e)
		v.put(s, to, e)
	}
	to.from = v.segs[n-1].from
	v.byID[from.id] = nil
	v.segs = slices.DeleteFunc(v.segs, func(g *segment) bool { return g == from })
}

// take removes an entry, and leaves the segments as they are.
func (v *vectors) take(s *Set, e uint32) {
	g := v.byID[s.place[e]/perSegment]
	g.mark(s, e, false)
	g.n--
	v.n--
	if s.order[e] == g.best {
		g.best = noRank
		g.each(func(e uint32) bool { g.best = min(g.best, s.order[e]); return true })
	}
	g.mixed = g.mixed && g.n > 1
}

// each calls yield with each entry of the segment, until yield returns false.
func (g *segment) each(yield func(e uint32) bool) {
	for w, x := range g.used {
		for ; x != 0; x &= x - 1 {
			if !yield(g.entry[w*64+bits.TrailingZeros64(x)]) {
				return
			}
		}
	}
}

// first returns an entry of a segment that has some.
func (g *segment) first() (first uint32) {
	g.each(func(e uint32) bool { first = e; return false })
	return first
}

// lowest returns the lowest order of the entries.
func (v *vectors) lowest() int32 {
	if len(v.segs) == 0 {
		return noRank
	}
	return v.segs[0].best
}

// some returns about as many entries as are sampled, taken from all segments.
func (v *vectors) some() (list []uint32) {
	for _, g := range v.segs {
		n := 0
		g.each(func(e uint32) bool {
			list = append(list, e)
			n++
			return n*len(v.segs) < sampled
		})
	}
	return list
}

// entries appends all entries to list.
func (v *vectors) entries(list []uint32) []uint32 {
	for _, g := range v.segs {
		g.each(func(e uint32) bool { list = append(list, e); return true })
	}
	return list
}

// find returns the first of found and the entries that the key hits.
func (v *vectors) find(s *Set, key []uint64, found uint32) uint32 {
	for _, g := range v.segs {
		if found != None && g.best > s.order[found] {
			break
		}
		if hits := g.hits(s.chunks, key); hits != (lane{}) {
			found = g.winner(s, key, &hits, found)
		}
	}
	return found
}

// hits returns the entries that the key may hit.
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

// hitsFew does what hits does, for a segment with few entries.
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

// slice writes the bits of an entry's ranges into sliced.
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
	for i := range s.ranges {
		f := &s.ranges[i]
		for b := f.Bits - 1; b >= 0 && f.wide(); b-- {
			put(low[f.at+b/64] >> (b % 64))
			put(high[f.at+b/64] >> (b % 64))
		}
	}
}

// within removes from hits the entries whose ranges do not contain the key, all at once, bit by bit.
func (g *segment) within(s *Set, key []uint64, hits *lane) {
	v := g.sliced
	for i := range s.ranges {
		f := &s.ranges[i]
		if !f.wide() {
			continue
		}
		low, high := *hits, *hits // entries whose bits so far equal the key's
		for b := f.Bits - 1; b >= 0; b-- {
			one := -(key[f.at+b/64] >> (b % 64) & 1) // all bits set, or none
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

// several is the number of entries whose bytes fit and whose ranges do not contain the key, after which the
// other entries of the segment are looked at together.
const several = 32

// winner returns the first of found and those hits whose ranges contain the key.
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
			case s.inRanges(s.Key(e), s.Mask(e), key):
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

// exact returns an entry with this key and mask for which same returns true, or None. Such an entry hits the
// lowest and the highest key that the mask allows, as do few other entries.
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
