package clover

import wire "github.com/quillon/quillon/nf/hdr/clover"

// Pointer is Clover's pointer word.
type Pointer = wire.Pointer

// An entry whose next version would be ParkVersion is parked: it is not listed again.
const ParkVersion = 254

// ValueAt is the offset of the caller's value in an entry: behind the header and the key.
const ValueAt = wire.KeyAt + wire.KeyLen

// Space is a run of entries of one slab class in one memory node, or the shortcuts of one memory node. Entry
// FirstLH+i is at address VA + i*Slab.
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

// Layout says where all entries and shortcuts are. A client learns it when it starts.
type Layout []Space

// Entry finds the space and the address of an entry; nil if no space has the handle.
func (l Layout) Entry(lh uint32) (*Space, uint64) { return l.find(KindData, lh) }

// Shortcut finds the space and the address of a shortcut.
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
