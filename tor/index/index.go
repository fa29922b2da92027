// Package index finds slots of a table by hash, in constant time and fixed memory.
package index

// Index finds slots of a table by hash: open addressing, linear probing, deletion by shifting back, fixed
// size. An element is hash<<32 | slot+1. The table that owns the slots compares the keys:
//
//	for p := x.Start(h); x.E[p] != 0; p = x.Next(p) {
//		if s, ok := x.Slot(p, h); ok && table[s].key == key { … }
//	}
type Index struct {
	E    []uint64 // 0: empty
	mask uint32
}

// New makes an index for at most n slots. It has at least 2n elements, so that it is at most half full.
func New(n int) Index {
	size := 2
	for size < 2*n {
		size *= 2
	}
	return Index{E: make([]uint64, size), mask: uint32(size - 1)}
}

// Start returns the first position to look at for hash h.
func (x *Index) Start(h uint32) uint32 { return h & x.mask }

// Next returns the position after p.
func (x *Index) Next(p uint32) uint32 { return (p + 1) & x.mask }

// Slot returns the slot at position p, and whether its hash is h. Position p must not be empty.
func (x *Index) Slot(p, h uint32) (int32, bool) {
	v := x.E[p]
	return int32(uint32(v)) - 1, uint32(v>>32) == h
}

// Put adds a slot, which must be at least 0. The index must not hold more slots than the n of New.
func (x *Index) Put(h uint32, slot int32) {
	p := x.Start(h)
	for x.E[p] != 0 {
		p = x.Next(p)
	}
	x.E[p] = uint64(h)<<32 | uint64(uint32(slot+1))
}

// Del removes a slot with hash h; it does nothing if the index does not hold it.
func (x *Index) Del(h uint32, slot int32) {
	p := x.Start(h)
	for {
		if x.E[p] == 0 {
			return
		}
		if s, ok := x.Slot(p, h); ok && s == slot {
			break
		}
		p = x.Next(p)
	}
	// Shift back the elements that a search would not find beyond the hole.
	hole := p
	for p = x.Next(p); x.E[p] != 0; p = x.Next(p) {
		home := x.Start(uint32(x.E[p] >> 32))
		if (p-home)&x.mask >= (p-hole)&x.mask {
			x.E[hole] = x.E[p]
			hole = p
		}
	}
	x.E[hole] = 0
}

// Bytes returns the size of the index's memory in bytes.
func (x *Index) Bytes() int { return len(x.E) * 8 }

// Mix returns x mixed by the 64-bit finaliser of MurmurHash3.
func Mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
