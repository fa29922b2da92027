package clover

import "fmt"

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

// MinVersion is the version of an entry's first incarnation.
const MinVersion = 1

// ParkVersion is the version at which an entry is not listed again.
const ParkVersion = 254

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

func (p Pointer) String() string {
	return fmt.Sprintf("%#x.%d>%d", p.LH(), p.Version(), p.NextVersion())
}

// Offsets in an entry (SwordBox's variant: the value starts with the key).
const (
	headerLen = 8
	keyAt     = 8
	keyLen    = 8
	// ValueAt is where a caller's value starts in an entry.
	ValueAt = headerLen + keyLen
)

// MinSlab and MaxSlab are the smallest and the largest slab: 128 << 0..8.
const (
	MinSlab = 128
	MaxSlab = 32 << 10
)

// ValidSlab reports whether n is one of Clover's slab sizes.
func ValidSlab(n int) bool { return n >= MinSlab && n <= MaxSlab && n&(n-1) == 0 }

// Space is a run of entries of one slab class in one memory node, or the
// shortcuts of one memory node: entry FirstLH+i is at VA + i*Slab.
type Space struct {
	VA      uint64
	RKey    uint32
	Node    uint32 // memory node
	FirstLH uint32 // shortcuts: first slot
	Count   uint32
	Slab    uint32 // 8 for shortcuts
	Kind    uint32
}

// Kinds of Space.
const (
	KindData uint32 = iota
	KindShortcut
)

// Layout is where everything is: what a client learns at its start.
type Layout []Space

// Entry finds the space and the address of an entry; nil when the handle is
// none of ours.
func (l Layout) Entry(lh uint32) (*Space, uint64) { return l.find(KindData, lh) }

// Shortcut finds a shortcut's slot.
func (l Layout) Shortcut(slot uint32) (*Space, uint64) { return l.find(KindShortcut, slot) }

func (l Layout) find(kind, id uint32) (*Space, uint64) {
	for i := range l {
		s := &l[i]
		if n := id - s.FirstLH; s.Kind == kind && n < s.Count {
			return s, s.VA + uint64(n)*uint64(s.Slab)
		}
	}
	return nil, 0
}
