package xdp

import (
	"errors"
	"math/bits"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// A trie for tables whose key is one LPM field, in memory that the program addresses itself. With 10,000 routes
// the kernel's own trie takes several times as long. The first step looks at 8 bits of the key, each further
// step at 4.
//
// A block has a word for each value of its step's bits. The lower half of a word holds 1 + the record of the
// longest prefix that ends in this step and covers the value; the upper half holds 1 + the next block. If only
// one prefix continues after a value, there is no block for it: the upper half holds its record, with the bit
// alone, and the program compares the whole key. Most routes are therefore found after the number of steps that
// tells them from other routes. The key hits the last record on its way. A prefix that covers one word is
// changed by one store. A prefix that covers several words is changed in a copy of its block, and one store
// replaces the block by the copy, so that all frames see the change at once. Blocks and records to which
// nothing leads wait for a grace period before they are written again. The first block has several places; a
// word says which one is in use.
type strides struct {
	stridesShape
	nodes, records *shared

	root         int               // place of the first block that is in use
	stale        int               // how many others were in use since the last grace period
	prefixes     map[prefix]uint32 // records
	blocks, recs *rest             // their numbers
}

// prefix is a prefix of a key, aligned to the left.
type prefix struct {
	Key uint64
	Len int
}

// stridesShape is the size of a table's trie.
type stridesShape struct {
	bits    int // of the key
	words   int // of a record: a key and its mask, both aligned to the left, and the entry
	records int
	blocks  int
}

const (
	firstBits = 8
	nextBits  = 4
	places    = 16 // of the first block
	// In the upper half of a word: what is in the other bits is a record.
	alone = 1 << 30
	// Where the first block's places and the others are, in words.
	rootAt  = 8
	blockAt = rootAt + places<<firstBits
)

// stridesOf returns the shape of a table's trie; ok is false if the table cannot have one.
func stridesOf(t *ir.Table) (s stridesShape, ok bool) {
	if t.Kind != ir.LPM || len(t.Keys) != 1 || t.Keys[0].Bits > 64 || t.Size == 0 {
		return s, false
	}
	s = stridesShape{bits: t.Keys[0].Bits, records: t.Size + spare(t.Size)}
	s.words = stride(2+entrySize(t)/8, s.records)
	steps := max(0, s.bits-firstBits+nextBits-1) / nextBits
	s.blocks = t.Size*steps + spare(t.Size)
	return s, 8*s.words*s.records <= maxMemory && 8<<nextBits*s.blocks <= maxMemory
}

func fitsStrides(t *ir.Table) bool {
	_, ok := stridesOf(t)
	return ok
}

// size returns the length of the blocks' memory, in bytes.
func (s *stridesShape) size() int { return 8*blockAt + 8<<nextBits*s.blocks }

func newStrides(shape stridesShape, g *graces) *strides {
	return &strides{stridesShape: shape, prefixes: map[prefix]uint32{}, blocks: g.rest(shape.blocks), recs: g.rest(shape.records)}
}

// stepOf returns the first and the last bit, exclusive, of the step in which a prefix of length n ends.
func stepOf(n int) (from, to int) {
	if n <= firstBits {
		return 0, firstBits
	}
	from = firstBits + (n-firstBits-1)/nextBits*nextBits
	return from, from + nextBits
}

// bitsAt returns n bits of a key that is aligned to the left, beginning with bit at.
func bitsAt(key uint64, at, n int) int {
	if at >= 64 {
		return 0
	}
	return int(key << at >> (64 - n))
}

func (s *strides) rootWord(place, i int) int { return rootAt + place<<firstBits + i }

func blockWord(block uint32, i int) int { return blockAt + int(block)<<nextBits + i }

// block returns the block to which the word at parent leads, and whether there is one.
func (s *strides) block(parent int) (block uint32, there bool) {
	v := *s.nodes.word(parent) >> 32
	return uint32(v) - 1, v != 0 && v < alone
}

// loner returns the record of the only prefix that continues after a word, and whether the word has one.
func (s *strides) loner(word int) (record uint32, there bool) {
	v := *s.nodes.word(word) >> 32
	return uint32(v) - alone - 1, v >= alone
}

// upper changes the upper half of a word.
func (s *strides) upper(word int, v uint32) {
	s.nodes.store(word, uint64(v)<<32|*s.nodes.word(word)&(1<<32-1))
}

// put adds a prefix, aligned to the left, or changes its value.
func (s *strides) put(p prefix, value []uint64) error {
	r, err := s.recs.take()
	if err != nil {
		return err
	}
	at := int(r) * s.words
	s.records.store(at, p.Key)
	s.records.store(at+1, cut(^uint64(0), p.Len))
	for w, v := range value {
		s.records.store(at+2+w, v)
	}
	old, had := s.prefixes[p]
	s.prefixes[p] = r
	if err := s.show(p); err != nil {
		if delete(s.prefixes, p); had {
			s.prefixes[p] = old
		}
		s.recs.back(r)
		return err
	}
	if had {
		s.recs.leave(old)
	}
	return nil
}

func (s *strides) delete(p prefix) error {
	old, had := s.prefixes[p]
	if !had {
		return errors.New("it is not there")
	}
	delete(s.prefixes, p)
	if err := s.show(p); err != nil {
		return err
	}
	s.recs.leave(old)
	s.thin(p)
	return nil
}

// best returns 1 + the record of the longest prefix that ends in a step and covers key, or 0.
func (s *strides) best(key uint64, from, to int) uint64 {
	least := from + 1
	if from == 0 {
		least = 0
	}
	for n := min(to, s.bits); n >= least; n-- {
		if r, ok := s.prefixes[prefix{Key: cut(key, n), Len: n}]; ok {
			return uint64(r) + 1
		}
	}
	return 0
}

// cut returns the first n bits of a key; the other bits are 0.
func cut(key uint64, n int) uint64 {
	if n == 0 {
		return 0
	}
	return key >> (64 - n) << (64 - n)
}

// show updates the words that a prefix covers.
func (s *strides) show(p prefix) error {
	from, to := stepOf(p.Len)
	parent, lone, err := s.way(p, from)
	switch {
	case err != nil:
		return err
	case lone:
		v := uint32(0)
		if r, there := s.prefixes[p]; there {
			v = alone + r + 1
		}
		s.upper(parent, v)
		return nil
	}
	first := bitsAt(p.Key, from, to-from)
	n := 1 << max(0, to-p.Len)
	var at int // of the block's first word
	if from == 0 {
		at = s.rootWord(s.root, 0)
	} else {
		b, _ := s.block(parent)
		at = blockWord(b, 0)
	}
	word := func(i int) uint64 {
		key := cut(p.Key, from) | uint64(i)<<(64-to)
		return *s.nodes.word(at + i)>>32<<32 | s.best(key, from, to)
	}
	if n == 1 {
		s.nodes.store(at+first, word(first))
		return nil
	}
	if from == 0 {
		return s.turn(word, first, n)
	}
	next, err := s.blocks.take()
	if err != nil {
		return err
	}
	for i := range 1 << nextBits {
		v := *s.nodes.word(at + i)
		if i >= first && i < first+n {
			v = word(i)
		}
		s.nodes.store(blockWord(next, i), v)
	}
	old, _ := s.block(parent)
	s.nodes.store(parent, uint64(next+1)<<32|*s.nodes.word(parent)&(1<<32-1))
	s.blocks.leave(old)
	return nil
}

// turn makes the next place of the first block the one in use, with n words from first on changed.
func (s *strides) turn(word func(i int) uint64, first, n int) error {
	if s.stale == places-1 {
		if err := s.recs.g.now(); err != nil {
			return err
		}
	}
	next := (s.root + 1) % places
	for i := range 1 << firstBits {
		v := *s.nodes.word(s.rootWord(s.root, i))
		if i >= first && i < first+n {
			v = word(i)
		}
		s.nodes.store(s.rootWord(next, i), v)
	}
	s.root, s.stale = next, s.stale+1
	s.nodes.store(0, uint64(s.root))
	return nil
}

// way returns the word that leads to the block of a step on the way of a prefix. lone says that it is instead a
// word after which the prefix is alone, or is to be alone. It makes missing blocks.
func (s *strides) way(p prefix, from int) (parent int, lone bool, err error) {
	if from == 0 {
		return 0, false, nil
	}
	parent = s.rootWord(s.root, bitsAt(p.Key, 0, firstBits))
	for at := firstBits; ; at += nextBits {
		b, there := s.block(parent)
		if !there {
			r, taken := s.loner(parent)
			if !taken || s.prefixOf(r) == p {
				return parent, true, nil
			}
			if b, err = s.spread(r, at); err != nil {
				return 0, false, err
			}
			s.upper(parent, b+1)
		}
		if at == from {
			return parent, false, nil
		}
		parent = blockWord(b, bitsAt(p.Key, at, nextBits))
	}
}

// prefixOf returns the prefix of a record.
func (s *strides) prefixOf(record uint32) prefix {
	at := int(record) * s.words
	return prefix{Key: *s.records.word(at), Len: bits.OnesCount64(*s.records.word(at + 1))}
}

// spread makes a block for the step that begins at bit from. It contains the prefix that was alone before the
// block existed.
func (s *strides) spread(record uint32, from int) (uint32, error) {
	b, err := s.blocks.take()
	if err != nil {
		return 0, err
	}
	for i := range 1 << nextBits {
		s.nodes.store(blockWord(b, i), 0)
	}
	p := s.prefixOf(record)
	first := bitsAt(p.Key, from, nextBits)
	if to := from + nextBits; p.Len > to {
		s.upper(blockWord(b, first), alone+record+1)
	} else {
		for i := range 1 << (to - p.Len) {
			s.nodes.store(blockWord(b, first+i), uint64(record)+1)
		}
	}
	return b, nil
}

// thin removes blocks that lead to nothing, on the way of a prefix that was removed.
func (s *strides) thin(p prefix) {
	from, _ := stepOf(p.Len)
	var parents []int
	if from > 0 {
		parents = append(parents, s.rootWord(s.root, bitsAt(p.Key, 0, firstBits)))
	}
	for at := firstBits; at < from; at += nextBits {
		b, there := s.block(parents[len(parents)-1])
		if !there {
			break
		}
		parents = append(parents, blockWord(b, bitsAt(p.Key, at, nextBits)))
	}
	for i := len(parents) - 1; i >= 0; i-- {
		b, there := s.block(parents[i])
		if !there {
			continue
		}
		for j := range 1 << nextBits {
			if *s.nodes.word(blockWord(b, j)) != 0 {
				return
			}
		}
		s.nodes.store(parents[i], *s.nodes.word(parents[i])&(1<<32-1))
		s.blocks.leave(b)
	}
}

// prefixOf returns the prefix of a row.
func prefixOf(t *ir.Table, r *ir.Row) prefix {
	k := &t.Keys[0]
	return prefix{Key: cut(r.Key[k.At]<<(64-k.Bits), r.Prefix), Len: r.Prefix}
}

// lookStrides leaves the entry of the packet's key in rEntry, or jumps to miss.
func (g *pipes) lookStrides(n int, t *ir.Table, miss string) {
	s, _ := stridesOf(t)
	k := &t.Keys[0]
	done, lone, found := g.fresh(), g.fresh(), g.fresh()
	g.key(k, 0)
	if k.Bits < 64 {
		g.calc(asm.LSh, asm.R1, 64-k.Bits)
	}
	// R0 is the key, R4 what is left of it, R5 1 + the record so far.
	g.with(asm.Mov, asm.R0, asm.R1)
	g.with(asm.Mov, asm.R4, asm.R1)
	nodes := func(r asm.Register, word int) { g.add(asm.LoadMapValue(r, g.maps.slots[n], uint32(8*word))) }
	nodes(asm.R2, 0)
	g.load(asm.R1, asm.R2, 0, asm.DWord)
	g.calc(asm.And, asm.R1, places-1)
	g.calc(asm.LSh, asm.R1, firstBits+3)
	g.with(asm.Mov, asm.R3, asm.R4)
	g.calc(asm.RSh, asm.R3, 64-firstBits)
	g.calc(asm.LSh, asm.R3, 3)
	g.with(asm.Add, asm.R3, asm.R1)
	nodes(asm.R2, rootAt)
	g.with(asm.Add, asm.R2, asm.R3)
	g.load(asm.R3, asm.R2, 0, asm.DWord)
	g.add(asm.Mov.Reg32(asm.R5, asm.R3))
	g.calc(asm.LSh, asm.R4, firstBits)
	for at := firstBits; at < s.bits; at += nextBits {
		none := g.fresh()
		g.calc(asm.RSh, asm.R3, 32)
		g.whenImm(asm.JEq, asm.R3, 0, done)
		g.whenImm(asm.JGE, asm.R3, alone, lone)
		g.calc(asm.Sub, asm.R3, 1)
		g.whenImm(asm.JGE, asm.R3, s.blocks, done)
		g.calc(asm.LSh, asm.R3, nextBits+3)
		g.with(asm.Mov, asm.R1, asm.R4)
		g.calc(asm.RSh, asm.R1, 64-nextBits)
		g.calc(asm.LSh, asm.R1, 3)
		g.with(asm.Add, asm.R3, asm.R1)
		nodes(asm.R2, blockAt)
		g.with(asm.Add, asm.R2, asm.R3)
		g.load(asm.R3, asm.R2, 0, asm.DWord)
		g.calc(asm.LSh, asm.R4, nextBits)
		g.add(asm.Mov.Reg32(asm.R1, asm.R3))
		g.whenImm(asm.JEq, asm.R1, 0, none)
		g.with(asm.Mov, asm.R5, asm.R1)
		g.label(none)
	}
	g.jump(done)
	record := func(r asm.Register) {
		g.whenImm(asm.JGE, r, s.records, miss)
		g.calc(asm.Mul, r, 8*s.words)
		g.address(rEntry, g.maps.tables[n])
		g.with(asm.Add, rEntry, r)
	}
	if s.bits > firstBits {
		g.label(lone)
		g.calc(asm.Sub, asm.R3, alone+1)
		record(asm.R3)
		g.load(asm.R1, rEntry, 0, asm.DWord)
		g.load(asm.R2, rEntry, 8, asm.DWord)
		g.with(asm.Xor, asm.R1, asm.R0)
		g.with(asm.And, asm.R1, asm.R2)
		g.whenImm(asm.JEq, asm.R1, 0, found)
	}
	g.label(done)
	g.whenImm(asm.JEq, asm.R5, 0, miss)
	g.calc(asm.Sub, asm.R5, 1)
	record(asm.R5)
	g.label(found)
	g.calc(asm.Add, rEntry, 16)
}
