// Package clover has what Clover (pDPM) puts into RDMA payloads and operands,
// for its endpoints and for middleboxes alike: the pointer word, and the entry
// in the variant of SwordBox, whose value starts with the key.
package clover

import (
	"fmt"
	"math/bits"
)

// Pointer is Clover's 64-bit word:
//
//	63..60 | 59..28 | 27 | 26..19       | 18..11        | 10..1 | 0
//	0      | LH     | -  | next version | entry version | -     | option
//
// In an entry's header LH and next version are the successor (LH 0: tail) and
// entry version is the entry's own. As a reference (a client's cache, a
// shortcut, a grant) LH is the location and entry version the version that is
// expected there. Little-endian in memory.
type Pointer uint64

const (
	lhShift      = 28
	nextShift    = 19
	versionShift = 11
)

// MinVersion is the version of an entry's first incarnation; NoVersion is one
// that no entry has.
const (
	NoVersion  = 0
	MinVersion = 1
)

// Ref refers to the entry lh at a version.
func Ref(lh uint32, version uint8) Pointer {
	return Pointer(lh)<<lhShift | Pointer(version)<<versionShift
}

// Fresh is the header of an unlinked entry.
func Fresh(version uint8) Pointer { return Pointer(version) << versionShift }

// Linked is the header of an entry of the given version that next follows.
func Linked(version uint8, next Pointer) Pointer {
	return Pointer(next.LH())<<lhShift | Pointer(next.Version())<<nextShift | Fresh(version)
}

// LH is the handle of an entry; 0 is none.
func (p Pointer) LH() uint32 { return uint32(p >> lhShift) }

// Version is the entry version.
func (p Pointer) Version() uint8 { return uint8(p >> versionShift) }

// NextVersion is the successor's version.
func (p Pointer) NextVersion() uint8 { return uint8(p >> nextShift) }

// Next refers to a header's successor; 0 at the tail.
func (p Pointer) Next() Pointer {
	if p.LH() == 0 {
		return 0
	}
	return Ref(p.LH(), p.NextVersion())
}

// WithVersion is p with another entry version.
func (p Pointer) WithVersion(v uint8) Pointer {
	return p&^(0xFF<<versionShift) | Pointer(v)<<versionShift
}

func (p Pointer) String() string {
	return fmt.Sprintf("%#x.%d>%d", p.LH(), p.Version(), p.NextVersion())
}

// An entry is a header word, the key (8 bytes, little-endian) and the value.
const (
	HeaderLen = 8
	KeyAt     = 8
	KeyLen    = 8
)

// MinSlab and MaxSlab are the smallest and the largest slab: 128 << 0..8.
const (
	MinSlab = 128
	MaxSlab = 32 << 10
)

// ValidSlab reports whether n is one of Clover's slab sizes.
func ValidSlab(n int) bool { return n >= MinSlab && n <= MaxSlab && n&(n-1) == 0 }

// Class is the slab class of an entry of size bytes: MinSlab << class.
func Class(size uint32) (class uint8, ok bool) {
	if !ValidSlab(int(size)) {
		return 0, false
	}
	return uint8(bits.TrailingZeros32(size / MinSlab)), true
}
