package classify

import "slices"

// None stands for no entry.
const None = ^uint32(0)

// Field is a field of a key.
type Field struct {
	Bits  int
	Range bool // entries have a lowest and a highest value instead of bits that count
}

// wide reports whether the field has ranges of more than one byte.
func (f Field) wide() bool { return f.Range && f.Bits > 8 }

// words returns the number of words of the field.
func (f Field) words() int { return (f.Bits + 63) / 64 }

// Set is a set of entries. Its owner gives them numbers, which should be small, because there is a place for
// each number up to the highest.
type Set struct {
	width  int // number of words of a key
	slices int // number of vectors in segment.sliced
	chunks []chunk
	ranges []span // fields with ranges, and their places in a key
	ranged []bool // by word of a key: it belongs to a range
	root   node
	keys   []uint64
	masks  []uint64
	order  []int32
	leaf   []*node  // by entry: its leaf; nil: the number is free
	place  []uint32 // by entry: its place in the leaf's vectors
	// dividing has the nodes whose entries have not all moved to their branches, and may have others.
	dividing []*node
}

// span is a field's place in a key.
type span struct {
	Field
	at, end int // first word, and the word behind the last
}

// New makes a set without entries.
func New(fields []Field) *Set {
	s := &Set{}
	for _, f := range fields {
		x := span{f, s.width, s.width + f.words()}
		for at := 0; at < f.Bits; at += 8 {
			s.chunks = append(s.chunks, chunk{word: x.at + at/64, shift: uint(at % 64), ranged: f.Range, rest: bitsOf{x.at, at + 8, f.Bits}})
		}
		if f.wide() {
			s.slices += 2 * f.Bits
		}
		for range f.words() {
			s.ranged = append(s.ranged, f.Range)
		}
		s.width = x.end
		if f.Range {
			s.ranges = append(s.ranges, x)
		}
	}
	s.root.clear()
	return s
}

// Len returns the number of entries.
func (s *Set) Len() int { return s.root.n }

// Key returns the key of an entry, Mask its mask, and Order its place among the entries that a packet hits:
// the lowest order comes first, and among equal orders the lowest number.
func (s *Set) Key(e uint32) []uint64  { return s.keys[int(e)*s.width:][:s.width] }
func (s *Set) Mask(e uint32) []uint64 { return s.masks[int(e)*s.width:][:s.width] }
func (s *Set) Order(e uint32) int32   { return s.order[e] }

// Room makes room for n numbers, so that Insert need not copy until then.
func (s *Set) Room(n int) {
	if n <= len(s.order) {
		return
	}
	s.keys = longer(s.keys, n*s.width)
	s.masks = longer(s.masks, n*s.width)
	s.order = longer(s.order, n)
	s.leaf = longer(s.leaf, n)
	s.place = longer(s.place, n)
}

// longer returns list with n elements.
func longer[T any](list []T, n int) []T {
	if n > cap(list) {
		list = append(make([]T, 0, n), list...)
	}
	return list[:n]
}

// wins reports whether entry a comes before entry b.
func (s *Set) wins(a, b uint32) bool {
	if x, y := s.order[a], s.order[b]; x != y {
		return x < y
	}
	return a < b
}

// put stores key, mask and order of an entry whose number is free.
func (s *Set) put(e uint32, key, mask []uint64, order int32) {
	if int(e) >= len(s.order) {
		s.Room(max(int(e)+1, 2*len(s.order), 64))
	}
	copy(s.Key(e), key)
	copy(s.Mask(e), mask)
	s.order[e] = order
}

// Insert adds an entry with number e, which must be free. Bits of the key that do not count must be 0.
func (s *Set) Insert(e uint32, key, mask []uint64, order int32) {
	s.put(e, key, mask, order)
	x := &s.root
	for {
		x.n++
		x.best = min(x.best, order)
		if x.chunk == noChunk {
			break
		}
		x = x.branch(s.whole(x.chunk, key, mask))
	}
	x.add(s, e)
	s.move()
}

// Entry is an entry for Fill.
type Entry struct {
	Number    uint32
	Key, Mask []uint64
	Order     int32
}

// Fill adds many entries at once to an empty set. It makes the tree for all of them, which is better than the
// tree that single Inserts make.
func (s *Set) Fill(list []Entry) {
	all := make([]uint32, 0, len(list))
	for _, x := range list {
		s.put(x.Number, x.Key, x.Mask, x.Order)
		all = append(all, x.Number)
		s.root.best = min(s.root.best, x.Order)
	}
	s.root.n, s.root.limit, s.dividing = len(all), 0, nil
	s.root.build(s, all)
}

// Remove removes an entry.
func (s *Set) Remove(e uint32) {
	x := s.leaf[e]
	x.drop(s, e)
	s.leaf[e] = nil
	for up := x; up != nil; up = up.parent {
		up.n--
	}
	if x.n == 0 && x.parent != nil {
		x = x.parent.detach(x)
	}
	for up := x; up != nil; up = up.parent {
		if up.chunk != noChunk && up.n <= together || up.vec != nil && up.n <= longList/4 {
			up.collapse(s)
			x = up
		}
	}
	for up := x; up != nil && up.best >= s.order[e]; up = up.parent {
		if up.best == s.order[e] {
			up.best = up.lowest(s)
		}
	}
	s.move()
}

// Find returns the first of the entries that a key hits, or None.
func (s *Set) Find(key []uint64) uint32 {
	if s.root.n == 0 {
		return None
	}
	return s.root.find(s, key, None)
}

// Exact returns the entry with exactly this key, mask and order, or None.
func (s *Set) Exact(key, mask []uint64, order int32) uint32 {
	x := &s.root
	same := func(e uint32) bool {
		return s.order[e] == order && slices.Equal(s.Key(e), key) && slices.Equal(s.Mask(e), mask)
	}
	for {
		if x.vec != nil {
			if e := x.vec.exact(s, key, mask, same); e != None {
				return e
			}
		}
		if x.chunk == noChunk {
			break
		}
		if x = x.known(s.whole(x.chunk, key, mask)); x == nil {
			return None
		}
	}
	if i := slices.IndexFunc(x.list, same); i >= 0 {
		return x.list[i]
	}
	return None
}

// inRanges reports whether the ranges from low to high contain these fields of key.
func (s *Set) inRanges(low, high, key []uint64) bool {
	for i := range s.ranges {
		f := &s.ranges[i]
		switch {
		case f.end-f.at == 1:
			if k := key[f.at]; k < low[f.at] || k > high[f.at] {
				return false
			}
		case less(key[f.at:f.end], low[f.at:f.end]) || less(high[f.at:f.end], key[f.at:f.end]):
			return false
		}
	}
	return true
}

// less compares two numbers of several words, the lowest word first.
func less(a, b []uint64) bool {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
