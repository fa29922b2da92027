package clover

import (
	"fmt"

	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/rack/rnic"
)

// Class is a number of entries that all have one slab size.
type Class struct {
	Slab    int
	Entries int
}

// MemoryConfig describes a memory node.
type MemoryConfig struct {
	Index     int     // among the memory nodes
	FirstLH   uint32  // of this node's first entry, at least 1
	Classes   []Class // in address order
	FirstSlot uint32  // of this node's shortcuts
	Slots     int
}

// FirstShortcut is the lowest shortcut slot in use (the ids in Clover start there).
const FirstShortcut = 128

// Memory is a memory node: it has regions that a NIC serves, and no code on the data path.
type Memory struct {
	pd        *rnic.PD
	cq        *rnic.CQ
	data      *rnic.MR
	shortcuts *rnic.MR
	layout    Layout
}

// Addresses of the regions. They have the magnitude of addresses in real captures. Each node has its own.
const (
	dataBase     = 0x7F0000000000
	shortcutBase = 0x560000000000
	nodeStride   = 1 << 36
)

// NewMemory registers a memory node's regions on nic.
func NewMemory(nic *rnic.NIC, c MemoryConfig) (*Memory, error) {
	if c.FirstLH == 0 {
		return nil, fmt.Errorf("clover: handle 0 means none: a memory node's first handle is 1 or more")
	}
	if c.Slots < 1 || len(c.Classes) == 0 {
		return nil, fmt.Errorf("clover: a memory node needs at least one shortcut slot and one class of entries")
	}
	size := 0
	for _, k := range c.Classes {
		if !wire.ValidSlab(k.Slab) || k.Entries < 1 {
			return nil, fmt.Errorf("clover: %d entries of %d bytes: slabs are 128 << 0..8 bytes, and a class has at least one", k.Entries, k.Slab)
		}
		size += k.Slab * k.Entries
	}
	m := &Memory{pd: nic.AllocPD(), cq: nic.CreateCQ(16)}
	const access = rnic.LocalWrite | rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic
	var err error
	if m.data, err = m.pd.RegMR(make([]byte, size), dataBase+uint64(c.Index)*nodeStride, access); err != nil {
		return nil, err
	}
	if m.shortcuts, err = m.pd.RegMR(make([]byte, 8*c.Slots), shortcutBase+uint64(c.Index)*nodeStride, access); err != nil {
		return nil, err
	}
	va, lh := m.data.VA, c.FirstLH
	for _, k := range c.Classes {
		m.layout = append(m.layout, Space{VA: va, RKey: m.data.RKey, Node: uint32(c.Index), FirstLH: lh,
			Count: uint32(k.Entries), Slab: uint32(k.Slab), Kind: KindData})
		va += uint64(k.Slab * k.Entries)
		lh += uint32(k.Entries)
	}
	m.layout = append(m.layout, Space{VA: m.shortcuts.VA, RKey: m.shortcuts.RKey, Node: uint32(c.Index),
		FirstLH: c.FirstSlot, Count: uint32(c.Slots), Slab: 8, Kind: KindShortcut})
	return m, nil
}

// Layout is where the node's entries and shortcuts are.
func (m *Memory) Layout() Layout { return m.layout }

// at is the n bytes of memory at address va of s.
func (m *Memory) at(s *Space, va uint64, n int) []byte {
	r := m.data
	if s.Kind == KindShortcut {
		r = m.shortcuts
	}
	off := va - r.VA
	return r.Mem[off : off+uint64(n)]
}

// entry is the memory of an entry; nil if the entry is not on this node.
func (m *Memory) entry(lh uint32) []byte {
	s, va := m.layout.Entry(lh)
	if s == nil {
		return nil
	}
	return m.at(s, va, int(s.Slab))
}
