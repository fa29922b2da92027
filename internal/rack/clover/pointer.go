package clover

import wire "github.com/quillon/quillon/nf/hdr/clover"

// Pointer is Clover's pointer word.
type Pointer = wire.Pointer

// ParkVersion is the version at which an entry is not listed again.
const ParkVersion = 254

// ValueAt is where a caller's value starts in an entry: behind the header and
// the key.
const ValueAt = wire.KeyAt + wire.KeyLen

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
