package classify

import "slices"

const (
	// shortList is the length of a leaf's list beyond which the leaf is divided, and longList the length
	// beyond which its entries go into vectors. firstList takes the place of shortList in a set that grows,
	// because so many entries show by which byte all others should be divided.
	shortList, longList, firstList = 12, 64, 512
	// together is the number of entries at which a node becomes one leaf again.
	together = shortList / 3
	// sampled bounds the number of bytes of a node's entries that are looked at to choose the byte that
	// divides it.
	sampled = 8192
	// moved is the number of entries that one change moves while leaves are divided: more than a change can
	// add.
	moved = 8
	// deepest is the largest depth of a leaf. It bounds the number of leaves that a search looks at: two to
	// this power.
	deepest = 6

	noChunk = -1
	anyByte = 256 // the branch of entries that want no single value of a byte
	noRank  = int32(1<<31 - 1)
)

// node is a part of the tree, with the entries below it.
type node struct {
	parent *node
	side   int   // number of its branch in parent
	n      int   // number of entries below
	best   int32 // no entry below has a lower order
	chunk  int   // byte that divides it; noChunk: it is a leaf

	any  *node
	at   *[256]uint16 // by value: index in kids, plus 1; 0: there is no such branch
	kids []*node

	limit int      // number of entries beyond which a leaf looks for a byte that divides it
	list  []uint32 // entries of a leaf, in their order
	rows  []uint64 // their keys and masks, alternating
	vec   *vectors // of a leaf: instead of list; of a node that is being divided: the entries that have not moved to its branches
}

// clear makes x an empty leaf.
func (x *node) clear() {
	*x = node{parent: x.parent, side: x.side, n: x.n, best: noRank, chunk: noChunk, limit: shortList}
	if x.parent == nil {
		x.limit = firstList
	}
}

// known returns a branch of x, or nil if it does not exist.
func (x *node) known(side int) *node {
	if side == anyByte {
		return x.any
	}
	if k := x.at[side]; k > 0 {
		return x.kids[k-1]
	}
	return nil
}

// branch returns a branch of x, and makes it if need be.
func (x *node) branch(side int) *node {
	y := x.known(side)
	if y != nil {
		return y
	}
	y = &node{parent: x, side: side}
	y.clear()
	if side == anyByte {
		x.any = y
	} else {
		x.kids = append(x.kids, y)
		x.at[side] = uint16(len(x.kids))
	}
	return y
}

// detach removes the empty branch y of x, and returns x.
func (x *node) detach(y *node) *node {
	if y.side == anyByte {
		x.any = nil
		return x
	}
	at, last := x.at[y.side]-1, len(x.kids)-1
	x.kids[at] = x.kids[last]
	x.at[x.kids[at].side] = at + 1
	x.kids[last] = nil
	x.kids, x.at[y.side] = x.kids[:last], 0
	return x
}

// whole returns the value that an entry wants a byte to have, or anyByte if it does not want a single one.
func (s *Set) whole(chunk int, key, mask []uint64) int {
	c := &s.chunks[chunk]
	lo, hi, m, all := c.span(key, mask)
	switch {
	case all:
		return anyByte
	case c.ranged && lo == hi, !c.ranged && m == c.top():
		return int(lo)
	}
	return anyByte
}

// find returns the first of found and the entries below x that the key hits.
func (x *node) find(s *Set, key []uint64, found uint32) uint32 {
	for {
		if found != None && x.best > s.order[found] {
			return found
		}
		if x.chunk == noChunk {
			return x.search(s, key, found)
		}
		if x.vec != nil {
			found = x.vec.find(s, key, found)
		}
		c := &s.chunks[x.chunk]
		var next *node
		if k := x.at[uint8(key[c.word]>>c.shift)]; k > 0 {
			next = x.kids[k-1]
		}
		switch {
		case next == nil:
			next = x.any
		case x.any != nil && x.any.n > 0:
			first, second := next, x.any // the better one first, because the other one may not be needed then
			if second.best < first.best {
				first, second = second, first
			}
			found = first.find(s, key, found)
			next = second
		}
		if next == nil {
			return found
		}
		x = next
	}
}

// search does what find does, in a leaf.
func (x *node) search(s *Set, key []uint64, found uint32) uint32 {
	if x.vec != nil {
		return x.vec.find(s, key, found)
	}
	w := s.width
	rows := x.rows
next:
	for _, e := range x.list {
		if found != None && !s.wins(e, found) {
			break
		}
		low, high := rows[:w], rows[w:2*w]
		rows = rows[2*w:]
		for i, k := range key {
			if (k^low[i])&high[i] != 0 && !s.ranged[i] {
				continue next
			}
		}
		if s.inRanges(low, high, key) {
			return e
		}
	}
	return found
}

// add adds an entry to a leaf that already counts it, and divides the leaf if it has too many. Entries of a
// list move at once, entries of vectors a few at a time (Set.move).
func (x *node) add(s *Set, e uint32) {
	s.leaf[e] = x
	if x.vec != nil {
		x.vec.insert(s, e)
	} else {
		x.insert(s, e)
	}
	if x.n <= x.limit && len(x.list) <= longList {
		return
	}
	if x.vec == nil {
		x.build(s, x.entries(nil))
		return
	}
	c := x.choose(s, x.vec.some())
	if c == noChunk {
		x.limit = 2 * x.n
		return
	}
	x.chunk, x.at = c, new([256]uint16)
	s.dividing = append(s.dividing, x)
}

// move moves a few entries of nodes that are being divided to their branches.
func (s *Set) move() {
	for left := moved; left > 0 && len(s.dividing) > 0; {
		last := len(s.dividing) - 1
		x := s.dividing[last]
		if x.chunk == noChunk || x.vec == nil || x.vec.n == 0 {
			if x.chunk != noChunk {
				x.vec = nil
			}
			s.dividing[last], s.dividing = nil, s.dividing[:last]
			continue
		}
		e := x.vec.segs[len(x.vec.segs)-1].first()
		x.vec.remove(s, e)
		y := x
		for y.chunk != noChunk {
			y = y.branch(s.whole(y.chunk, s.Key(e), s.Mask(e)))
			y.n++
			y.best = min(y.best, s.order[e])
		}
		y.add(s, e)
		left--
	}
}

// insert adds an entry to the list of a leaf.
func (x *node) insert(s *Set, e uint32) {
	i, _ := slices.BinarySearchFunc(x.list, e, func(a, b uint32) int {
		if s.wins(a, b) {
			return -1
		}
		return 1
	})
	x.list = slices.Insert(x.list, i, e)
	x.rows = slices.Insert(x.rows, 2*i*s.width, s.Key(e)...)
	x.rows = slices.Insert(x.rows, (2*i+1)*s.width, s.Mask(e)...)
}

// drop removes an entry from a leaf; the counts stay.
func (x *node) drop(s *Set, e uint32) {
	if x.vec != nil {
		x.vec.remove(s, e)
		return
	}
	i := slices.Index(x.list, e)
	x.list = slices.Delete(x.list, i, i+1)
	x.rows = slices.Delete(x.rows, 2*i*s.width, 2*(i+1)*s.width)
}

// entries appends the entries below x to list.
func (x *node) entries(list []uint32) []uint32 {
	if x.vec != nil {
		list = x.vec.entries(list)
	}
	list = append(list, x.list...)
	if x.any != nil {
		list = x.any.entries(list)
	}
	for _, k := range x.kids {
		list = k.entries(list)
	}
	return list
}

// collapse makes x a leaf again.
func (x *node) collapse(s *Set) {
	all := x.entries(nil)
	x.forget()
	x.clear()
	for _, e := range all {
		s.leaf[e] = x
		x.insert(s, e)
	}
	x.best = x.lowest(s)
}

// forget ends the division of x and of the nodes below it.
func (x *node) forget() {
	x.vec = nil
	if x.any != nil {
		x.any.forget()
	}
	for _, k := range x.kids {
		k.forget()
	}
}

// lowest returns the lowest order of the entries below x. It relies on best of x's branches.
func (x *node) lowest(s *Set) int32 {
	least := noRank
	if len(x.list) > 0 {
		least = s.order[x.list[0]]
	}
	if x.vec != nil {
		least = min(least, x.vec.lowest())
	}
	if x.any != nil {
		least = min(least, x.any.best)
	}
	for _, k := range x.kids {
		least = min(least, k.best)
	}
	return least
}

// build divides x into branches, and these again, as long as that helps. all are its entries.
func (x *node) build(s *Set, all []uint32) {
	best, first := x.best, x.parent == nil && x.limit == firstList && x.n <= firstList
	x.clear()
	x.best = best
	c := noChunk
	if len(all) > shortList && !first {
		c = x.choose(s, all)
	}
	switch {
	case c != noChunk:
		x.chunk, x.at = c, new([256]uint16)
		parts := map[*node][]uint32{}
		for _, e := range all {
			y := x.branch(s.whole(c, s.Key(e), s.Mask(e)))
			y.best = min(y.best, s.order[e])
			parts[y] = append(parts[y], e)
		}
		for y, part := range parts {
			y.n = len(part)
			y.build(s, part)
		}
	case len(all) <= longList:
		for _, e := range all {
			s.leaf[e] = x
			x.insert(s, e)
		}
		x.limit = max(x.limit, 2*len(all))
	default:
		x.vec = &vectors{}
		slices.SortFunc(all, func(a, b uint32) int {
			if s.wins(a, b) {
				return -1
			}
			return 1
		})
		for _, e := range all {
			s.leaf[e] = x
			x.vec.insert(s, e)
		}
		x.limit = max(x.limit, 2*len(all))
	}
}

// choose returns the byte that divides the entries best, or noChunk if no byte divides them well enough.
func (x *node) choose(s *Set, all []uint32) int {
	step := max(1, len(all)*len(s.chunks)/sampled)
	least, best := 0, noChunk
	if x.depth() == deepest {
		return noChunk
	}
	for c := range s.chunks {
		var of [anyByte + 1]int
		n, squares := 0, 0
		for i := 0; i < len(all); i += step {
			of[s.whole(c, s.Key(all[i]), s.Mask(all[i]))]++
			n++
		}
		for _, k := range of[:anyByte] {
			squares += k * k
		}
		// The average number of entries that are left for a packet that hits one of them: the entries that do
		// not look at the byte, and those that want the packet's value.
		left := of[anyByte] + squares/max(1, n-of[anyByte])
		if 8*left <= 5*n && (best == noChunk || left < least) {
			least, best = left, c
		}
	}
	return best
}

// depth returns the number of nodes above x.
func (x *node) depth() (n int) {
	for ; x.parent != nil; x = x.parent {
		n++
	}
	return n
}
