package clover

// index finds slots of a table by hash: open addressing, linear probing,
// deletion by shifting back, fixed size. An element is hash<<32 | slot+1; the
// table that owns the slots compares the keys:
//
//	for p := x.start(h); x.e[p] != 0; p = x.next(p) {
//		if s, ok := x.slot(p, h); ok && table[s].key == key { … }
//	}
type index struct {
	e    []uint64
	mask uint32
}

// newIndex makes an index for at most n slots, at most half full.
func newIndex(n int) index {
	size := 2
	for size < 2*n {
		size *= 2
	}
	return index{e: make([]uint64, size), mask: uint32(size - 1)}
}

func (x *index) start(h uint32) uint32 { return h & x.mask }
func (x *index) next(p uint32) uint32  { return (p + 1) & x.mask }

// slot is the slot at position p, if its hash is h.
func (x *index) slot(p, h uint32) (int32, bool) {
	v := x.e[p]
	return int32(uint32(v)) - 1, uint32(v>>32) == h
}

func (x *index) put(h uint32, slot int32) {
	p := x.start(h)
	for x.e[p] != 0 {
		p = x.next(p)
	}
	x.e[p] = uint64(h)<<32 | uint64(uint32(slot+1))
}

func (x *index) del(h uint32, slot int32) {
	p := x.start(h)
	for {
		if x.e[p] == 0 {
			return
		}
		if s, ok := x.slot(p, h); ok && s == slot {
			break
		}
		p = x.next(p)
	}
	// Shift back what would not be found any more past the hole.
	hole := p
	for p = x.next(p); x.e[p] != 0; p = x.next(p) {
		home := x.start(uint32(x.e[p] >> 32))
		if (p-home)&x.mask >= (p-hole)&x.mask {
			x.e[hole] = x.e[p]
			hole = p
		}
	}
	x.e[hole] = 0
}

func (x *index) bytes() int { return len(x.e) * 8 }

// mix is the 64-bit finaliser of MurmurHash3.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
