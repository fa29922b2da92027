package locks

import (
	"encoding/binary"
	"fmt"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/rack/rnic"
)

// Layout describes the memory of the memory node.
type Layout struct {
	// Words is the number of shared 8-byte words.
	Words int
	// Block is the size of the block that a lock protects, in bytes: a multiple
	// of 8, at least 16.
	Block int
	// Scratch is the size of each session's private memory; 0 = none.
	Scratch int
	// Sessions is the number of sessions of all clients together.
	Sessions int
	// VA is the address at which the words are registered. What locks protect is registered 4 GiB behind it,
	// the private memory 8 GiB. In a history the words' addresses begin at 0 in any case.
	VA uint64
}

// tableBits is the number of bits of a word that are locks, if the words are a lock table.
const tableBits = 8

// Memory returns the number of bytes of the memory.
func (l *Layout) Memory() int64 {
	return int64(l.Words)*8 + int64(l.Words)*tableBits*int64(l.Block) + int64(l.Sessions)*int64(l.Scratch)
}

// Region is remote memory.
type Region = onesided.Region

// Grant is what a client must know to use the memory.
type Grant struct{ Words, Blocks, Scratch Region }

// The addresses at which the memory is registered, counted from Layout.VA. The words are at 0, as lock tables
// in a NIC's device memory are.
const (
	wordsVA   = 0
	blocksVA  = 1 << 32
	scratchVA = 2 << 32
)

// Memory is the shared memory itself. It outlives the NIC that serves it.
type Memory struct {
	Layout
	words, blocks, scratch []byte
}

// NewMemory makes memory full of zeros.
func NewMemory(l Layout) (*Memory, error) {
	if l.Words < 1 || l.Block < 16 || l.Block%8 != 0 || l.Scratch < 0 || l.Sessions < 1 {
		return nil, fmt.Errorf("locks: %+v: want at least 1 word and 1 session, and blocks of at least 16 bytes, a multiple of 8", l)
	}
	return &Memory{
		Layout:  l,
		words:   make([]byte, l.Words*8),
		blocks:  make([]byte, l.Words*tableBits*l.Block),
		scratch: make([]byte, l.Sessions*l.Scratch),
	}, nil
}

// Serve registers the memory in pd, so that its queue pairs can access the memory.
func (m *Memory) Serve(pd *rnic.PD) (Grant, error) {
	var g Grant
	const access = rnic.LocalWrite | rnic.RemoteRead | rnic.RemoteWrite
	err := onesided.Serve(pd, onesided.Part{Mem: m.words, VA: m.VA + wordsVA, To: &g.Words}, onesided.Part{Mem: m.blocks, VA: m.VA + blocksVA, To: &g.Blocks, Access: access},
		onesided.Part{Mem: m.scratch, VA: m.VA + scratchVA, To: &g.Scratch, Access: access})
	return g, err
}

// Word returns the word at an address, as the memory's host reads it.
func (m *Memory) Word(addr uint64) uint64 {
	return binary.LittleEndian.Uint64(m.words[addr-wordsVA:])
}

// Addrs returns the addresses of the words.
func (m *Memory) Addrs() []uint64 {
	a := make([]uint64, m.Words)
	for i := range a {
		a[i] = wordsVA + uint64(i)*8
	}
	return a
}

// Spoil changes a word, for tests.
func (m *Memory) Spoil(addr uint64) { m.words[addr-wordsVA] ^= 0x40 }
