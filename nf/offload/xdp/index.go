package xdp

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/offload"
)

// index is a hash table from keys to directions of slots, in memory that the program addresses itself. A look-up
// costs one cache line beside the entry's own, where the kernel's hash map costs two and a call; a change costs
// no system call.
//
// A word names one direction of a slot, which has the key. Its lower refBits are 1 + 2 × slot + direction, or 0
// for a free word, and the bits above are a tag from the key's hash. Words are in buckets of four. A key's word
// is in one of two buckets (cuckoo hashing), in the first one if that has room; the program looks at both. While
// a word moves, the program may find it in neither: then the frame comes up as one without an entry.
type index struct {
	words   []uint32
	slots   []offload.Slot
	buckets int // a power of two
	secret  secret
}

// secret are random numbers of the hash, so that nobody can choose keys that fall into the same buckets. The hash
// is NH of UMAC (RFC 4418, 5.2.2), whose collisions are rare whatever the keys are.
type secret [5]uint32

const (
	wordsOf  = 4 // a bucket
	refBits  = 22
	refMask  = 1<<refBits - 1
	maxSteps = 512 // words that are looked at for room
	// multiplier mixes the bits of NH: an odd number whose bits look random.
	multiplier = 0xd6e8feb86659fd93
)

// bucketsOf returns the number of buckets for so many slots, a power of two. At most half of the words are in
// use.
func bucketsOf(slots int) int { return max(2, 1<<bits.Len(uint(slots-1))) }

func newSecret() (s secret) {
	for i := range s {
		s[i] = rand.Uint32()
	}
	return s
}

// hash returns the hash of k, as the program computes it, too (look).
func (x *index) hash(k [offload.KeyLen]byte) uint64 {
	ne, s := binary.NativeEndian, &x.secret
	h := uint64(ne.Uint32(k[0:])+s[0])*uint64(ne.Uint32(k[4:])+s[1]) + uint64(ne.Uint32(k[8:])+s[2])*uint64(ne.Uint32(k[12:])+s[3]) +
		uint64(ne.Uint16(k[16:]))*uint64(s[4]|1)
	h = (h ^ h>>32) * multiplier
	return h ^ h>>32
}

func (x *index) bucket(h uint64, second int) int { return int(h>>(24*second)) & (x.buckets - 1) }

func tagOf(h uint64) uint32 { return uint32(h >> (64 - (32 - refBits))) }

// leads returns the slot and direction that a word names, or false for a free word.
func (x *index) leads(word uint32) (slot, dir int, ok bool) {
	ref := int(word & refMask)
	return (ref - 1) >> 1, (ref - 1) & 1, ref != 0
}

// find returns the index of key k's word, or a negative number if k has none.
func (x *index) find(k [offload.KeyLen]byte, h uint64) int {
	for second := range 2 {
		for i, j := x.bucket(h, second)*wordsOf, 0; j < wordsOf; i, j = i+1, j+1 {
			if slot, dir, ok := x.leads(x.words[i]); ok && x.words[i]>>refBits == tagOf(h) && x.slots[slot].Dirs[dir].Key == k {
				return i
			}
		}
	}
	return -1
}

var errNoRoom = errors.New("too many keys have the same places")

// put has key k lead to a direction of a slot. The slot must have the key already.
func (x *index) put(k [offload.KeyLen]byte, slot, dir int) error {
	h := x.hash(k)
	i := x.find(k, h)
	if i < 0 {
		if i = x.room(h); i < 0 {
			return errNoRoom
		}
	}
	atomic.StoreUint32(&x.words[i], tagOf(h)<<refBits|uint32(2*slot+dir+1))
	return nil
}

// remove frees the word of key k, if the word names this direction of this slot.
func (x *index) remove(k [offload.KeyLen]byte, slot, dir int) {
	h := x.hash(k)
	for second := range 2 {
		for i, j := x.bucket(h, second)*wordsOf, 0; j < wordsOf; i, j = i+1, j+1 {
			if x.words[i] == tagOf(h)<<refBits|uint32(2*slot+dir+1) {
				atomic.StoreUint32(&x.words[i], 0)
			}
		}
	}
}

// room returns the index of a free word for a key with hash h. When both buckets are full, it moves words to
// their other buckets. It returns a negative number if that finds no room either.
func (x *index) room(h uint64) int {
	type step struct{ at, from int }
	var steps []step
	for second := range 2 {
		for i, j := x.bucket(h, second)*wordsOf, 0; j < wordsOf; i, j = i+1, j+1 {
			if x.words[i] == 0 {
				return i
			}
			steps = append(steps, step{i, -1})
		}
	}
	for n := 0; n < len(steps) && n < maxSteps; n++ {
		slot, dir, _ := x.leads(x.words[steps[n].at])
		h := x.hash(x.slots[slot].Dirs[dir].Key)
		other := x.bucket(h, 0)
		if other == steps[n].at/wordsOf {
			other = x.bucket(h, 1)
		}
		for i, j := other*wordsOf, 0; j < wordsOf; i, j = i+1, j+1 {
			if x.words[i] != 0 {
				steps = append(steps, step{i, n})
				continue
			}
			for at := n; at >= 0; i, at = steps[at].at, steps[at].from {
				atomic.StoreUint32(&x.words[i], x.words[steps[at].at])
			}
			return i
		}
	}
	return -1
}

// look emits the search for the key on the stack: R8 gets the slot and R5 the direction's Dir, and stWhich the
// number of both. Without an entry it jumps to unknown.
func (g *emitter) look(found, unknown string) {
	s := &g.secret
	mul := func(at int16, a, b uint32, to, by asm.Register) {
		g.add(asm.LoadMem(to, asm.RFP, at, asm.Word), asm.LoadMem(by, asm.RFP, at+4, asm.Word), add32(to, a), add32(by, b), asm.Mul.Reg(to, by))
	}
	mul(stKey, s[0], s[1], asm.R2, asm.R3)
	mul(stKey+8, s[2], s[3], asm.R4, asm.R3)
	g.add(
		asm.LoadMem(asm.R1, asm.RFP, stKey+16, asm.Half),
		asm.LoadImm(asm.R3, int64(s[4]|1), asm.DWord),
		asm.Mul.Reg(asm.R1, asm.R3),
		asm.Add.Reg(asm.R2, asm.R4),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadImm(asm.R3, mixer, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R2), asm.RSh.Imm(asm.R1, 32), asm.Xor.Reg(asm.R2, asm.R1),
		asm.Mul.Reg(asm.R2, asm.R3),
		asm.Mov.Reg(asm.R1, asm.R2), asm.RSh.Imm(asm.R1, 32), asm.Xor.Reg(asm.R2, asm.R1),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.RSh.Imm(asm.R4, 64-(32-refBits)),
	)
	for second := range int32(2) {
		g.add(asm.Mov.Reg(asm.R1, asm.R2))
		if second > 0 {
			g.add(asm.RSh.Imm(asm.R1, 24))
		}
		g.add(asm.And.Imm(asm.R1, int32(g.buckets-1)), asm.LSh.Imm(asm.R1, 4), asm.LoadMapValue(asm.R3, g.flows, 0), asm.Add.Reg(asm.R3, asm.R1))
		for j := range int16(wordsOf) {
			next := g.fresh()
			g.add(
				asm.LoadMem(asm.R1, asm.R3, 4*j, asm.Word),
				asm.Mov.Reg(asm.R0, asm.R1),
				asm.RSh.Imm(asm.R0, refBits),
				asm.JNE.Reg(asm.R0, asm.R4, next),
				asm.And.Imm(asm.R1, refMask),
				asm.JEq.Imm(asm.R1, 0, next),
				asm.Sub.Imm(asm.R1, 1),
				asm.JGE.Imm(asm.R1, int32(2*g.entries), next),
				asm.StoreMem(asm.RFP, stWhich, asm.R1, asm.DWord),
				asm.Mov.Reg(asm.R0, asm.R1),
				asm.And.Imm(asm.R0, 1),
				asm.LSh.Imm(asm.R0, dirBits),
				asm.RSh.Imm(asm.R1, 1),
				asm.LSh.Imm(asm.R1, slotBits),
				asm.LoadMapValue(asm.R8, g.slots, 0),
				asm.Add.Reg(asm.R8, asm.R1),
				asm.Mov.Reg(asm.R5, asm.R8),
				asm.Add.Imm(asm.R5, atDirs),
				asm.Add.Reg(asm.R5, asm.R0),
				// Who claims the slot compares all of the key. This brings its line into the cache meanwhile.
				asm.LoadMem(asm.R0, asm.R5, 0, asm.DWord),
				asm.LoadMem(asm.R1, asm.RFP, stKey, asm.DWord),
				asm.JEq.Reg(asm.R0, asm.R1, found),
			)
			g.label(next)
		}
	}
	g.add(asm.Ja.Label(unknown))
	g.label(found)
}

// mixer is multiplier as a signed number, which the assembler wants.
var mixer = func(v uint64) int64 { return int64(v) }(multiplier)

// add32 returns the instruction that adds v to the lower 32 bits of r.
func add32(r asm.Register, v uint32) asm.Instruction {
	ins := asm.Add.Imm(r, int32(v))
	ins.OpCode = ins.OpCode&^asm.OpCode(0x07) | asm.OpCode(asm.ALUClass)
	return ins
}
