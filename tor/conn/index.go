package conn

import "math/bits"

// index finds rows by a key of 16 bytes and a number: open addressing, linear
// probing, deletion by shifting back, fixed size, at most half full. An element
// is hash<<32 | reference+1; the table compares the keys.
type index struct {
	e    []uint64
	mask uint32
	seed uint64
}

// ref is a slot and which of the row's ends is meant.
type ref int32

const noRef ref = -1

func refOf(s Slot, client bool) ref {
	if client {
		return ref(s<<1 | 1)
	}
	return ref(s << 1)
}

func (r ref) slot() Slot   { return Slot(r >> 1) }
func (r ref) client() bool { return r&1 != 0 }

func newIndex(n int, seed uint64) index {
	size := 4
	for size < 2*n {
		size *= 2
	}
	return index{e: make([]uint64, size), mask: uint32(size - 1), seed: seed}
}

// hash is keyed, so that a peer cannot choose keys that collide. It is one long
// multiplication, folded.
func (x *index) hash(a Addr, n uint32) uint32 {
	hi, lo := bits.Mul64(a.lo^x.seed^0xA0761D6478BD642F, (a.hi+uint64(n)<<32+uint64(n))^x.seed>>32^0xE7037ED1A0B428DB)
	return uint32((hi ^ lo) >> 16)
}

func (x *index) put(h uint32, r ref) {
	p := h & x.mask
	for x.e[p] != 0 {
		p = (p + 1) & x.mask
	}
	x.e[p] = uint64(h)<<32 | uint64(uint32(r+1))
}

func (x *index) del(h uint32, r ref) {
	p := h & x.mask
	for v := uint64(h)<<32 | uint64(uint32(r+1)); x.e[p] != v; p = (p + 1) & x.mask {
		if x.e[p] == 0 {
			return
		}
	}
	// Shift back what would not be found any more past the hole.
	hole := p
	for p = (p + 1) & x.mask; x.e[p] != 0; p = (p + 1) & x.mask {
		home := uint32(x.e[p]>>32) & x.mask
		if (p-home)&x.mask >= (p-hole)&x.mask {
			x.e[hole] = x.e[p]
			hole = p
		}
	}
	x.e[hole] = 0
}
