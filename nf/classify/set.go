package classify

import "slices"

// None is no entry.
const None = ^uint32(0)

// Field is a field of a key.
type Field struct {
	Bits  int
	Range bool // entries have a lowest and a highest value, not bits that count
}

// wide: its ranges are not those of one byte.
func (f Field) wide() bool { return f.Range && f.Bits > 8 }

// words of a field.
func (f Field) words() int { return (f.Bits + 63) / 64 }

// Set is a set of entries, which have numbers that their owner gives: small ones, as there is a place for each number below the highest.
type Set struct {
	width  int // words of a key
	slices int // vectors of a segment's sliced
	chunks []chunk
	ranges []span // fields of ranges
	ranged []bool // words of a key that are of a range
	root   node
	keys   []uint64
	masks  []uint64
	order  []int32
	leaf   []*node  // of each entry; nil: the number is free
	place  []uint32 // in its leaf's vectors
	// dividing are nodes whose entries have not all moved to their branches, and some that are not any more.
	dividing []*node
}

// span is where a field is in a key.
type span struct {
	Field
	at, end int // words
}

// New is a set without entries.
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

// Len is how many entries there are.
func (s *Set) Len() int { return s.root.n }

// Key is the key of an entry, Mask its mask and Order its place among those that a packet hits: the lowest comes first, and of the same the
// lowest number.
func (s *Set) Key(e uint32) []uint64  { return s.keys[int(e)*s.width:][:s.width] }
func (s *Set) Mask(e uint32) []uint64 { return s.masks[int(e)*s.width:][:s.width] }
func (s *Set) Order(e uint32) int32   { return s.order[e] }

// Room makes room for so many numbers, so that Insert does not copy until then.
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

// longer is list with n elements.
func longer[T any](list []T, n int) []T {
	if n > cap(list) {
		list = append(make([]T, 0, n), list...)
	}
	return list[:n]
}

// wins reports whether a comes before b.
func (s *Set) wins(a, b uint32) bool {
	if x, y := s.order[a], s.order[b]; x != y {
		return x < y
	}
	return a < b
}

// put stores what is known of an entry whose number is free.
func (s *Set) put(e uint32, key, mask []uint64, order int32) {
	if int(e) >= len(s.order) {
		s.Room(max(int(e)+1, 2*len(s.order), 64))
	}
	copy(s.Key(e), key)
	copy(s.Mask(e), mask)
	s.order[e] = order
}

// Insert adds an entry under a number that is free. Bits of the key that do not count must be 0.
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

// Entry is an entry of a Fill.
type Entry struct {
	Number    uint32
	Key, Mask []uint64
	Order     int32
}

// Fill is Insert of many at once into an empty set: the tree is made for all of them, and better than that of one after the other.
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

// Remove takes an entry out.
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

// Find is the entry that comes first of those that a key hits; None: it hits none.
func (s *Set) Find(key []uint64) uint32 {
	if s.root.n == 0 {
		return None
	}
	return s.root.find(s, key, None)
}

// Exact is the entry with just this key, mask and order; None: there is none.
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

// inRanges reports whether the ranges from low to high contain those fields of key.
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

// less compares numbers of several words, the lowest first.
func less(a, b []uint64) bool {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
