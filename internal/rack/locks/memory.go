package locks

import (
	"encoding/binary"
	"fmt"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/rack/rnic"
)

// Layout is what lies in the memory node.
type Layout struct {
	// Words is how many shared 8-byte words there are.
	Words int
	// Block is the size of the block that a lock protects, in bytes: a multiple
	// of 8, at least 16.
	Block int
	// Scratch is the size of each session's private memory; 0 = none.
	Scratch int
	// Sessions is how many sessions all clients have together.
	Sessions int
	// VA is where the words are registered, and 4 and 8 GiB behind it what locks
	// protect and the private memory. Words of a history are numbered from address
	// 0 in any case.
	VA uint64
}

// tableBits is how many bits of a word are locks of their own, when the words
// are a lock table.
const tableBits = 8

// Memory is how many bytes there are.
func (l *Layout) Memory() int64 {
	return int64(l.Words)*8 + int64(l.Words)*tableBits*int64(l.Block) + int64(l.Sessions)*int64(l.Scratch)
}

// Region is remote memory.
type Region = onesided.Region

// Grant is what a client must know to use the memory.
type Grant struct{ Words, Blocks, Scratch Region }

// Addresses at which the memory is registered, from Layout.VA on. The words are
// at 0, as lock tables in a NIC's device memory are.
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

// Serve lets the queue pairs of pd reach the memory.
func (m *Memory) Serve(pd *rnic.PD) (Grant, error) {
	var g Grant
	const access = rnic.LocalWrite | rnic.RemoteRead | rnic.RemoteWrite
	err := onesided.Serve(pd, onesided.Part{Mem: m.words, VA: m.VA + wordsVA, To: &g.Words}, onesided.Part{Mem: m.blocks, VA: m.VA + blocksVA, To: &g.Blocks, Access: access},
		onesided.Part{Mem: m.scratch, VA: m.VA + scratchVA, To: &g.Scratch, Access: access})
	return g, err
}

// Word is the value of the word at an address, as the memory's host reads it.
func (m *Memory) Word(addr uint64) uint64 {
	return binary.LittleEndian.Uint64(m.words[addr-wordsVA:])
}

// Addrs are the addresses of the words.
func (m *Memory) Addrs() []uint64 {
	a := make([]uint64, m.Words)
	for i := range a {
		a[i] = wordsVA + uint64(i)*8
	}
	return a
}

// Spoil changes a word, for tests.
func (m *Memory) Spoil(addr uint64) { m.words[addr-wordsVA] ^= 0x40 }
