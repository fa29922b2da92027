package clover

// Word is Clover's 64-bit pointer word, as it lies little-endian in memory and
// big-endian in an atomic's operands:
//
//	63-60 0 | 59-28 handle (LH) | 27 0 | 26-19 next version | 18-11 entry version | 10-1 xact | 0 option
//
// In an entry's header LH and next version name the successor (LH 0: none),
// the entry version is the entry's own.
type Word uint64

// LH is the handle: the index of an entry.
func (w Word) LH() uint32 { return uint32(w >> 28) }

// Next is the version of the entry that LH names.
func (w Word) Next() uint8 { return uint8(w >> 19) }

// Version is the entry version.
func (w Word) Version() uint8 { return uint8(w >> 11) }

// WithVersion is w with another entry version.
func (w Word) WithVersion(v uint8) Word { return w&^(0xFF<<11) | Word(v)<<11 }

// noVersion is a version that no entry has: they start at 1.
const noVersion = 0

// fresh is the header of an entry without successor.
func fresh(version uint8) Word { return Word(version) << 11 }

// MinEntry is the smallest slab; slabs are MinEntry << class, class 0 to 8.
const MinEntry = 128

// classOf is the slab class of an entry of size bytes.
func classOf(size uint32) (uint8, bool) {
	for c := uint8(0); c <= 8; c++ {
		if size == MinEntry<<c {
			return c, true
		}
	}
	return 0, false
}
