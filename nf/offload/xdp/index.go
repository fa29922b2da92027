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

// index leads from a frame's key to an entry, in memory that the program addresses itself: a look-up costs one line of the processor's cache beside the entry's own,
// where the kernel's hash needs two and a call, and a change no system call.
//
// A word leads to one direction of a slot, which has the key: 1 + 2 × slot + direction, and in its upper bits a tag, some bits of the key's hash; 0: to none. Words are in
// buckets of four; a key's word is in one of two buckets (cuckoo hashing), the first if there is room. The program looks at both. While a word moves, it may see
// it in neither: then the frame comes up, as one that is not plain does.
type index struct {
	words   []uint32
	slots   []offload.Slot
	buckets int // a power of two
	secret  secret
}

// secret are random numbers, so that nobody can choose keys for the same buckets: NH of UMAC (RFC 4418, 5.2.2), whose collisions are rare whatever the keys are.
type secret [5]uint32

const (
	wordsOf  = 4 // a bucket
	refBits  = 22
	refMask  = 1<<refBits - 1
	maxSteps = 512 // words that are looked at for room
	// multiplier mixes what NH yields: an odd number whose bits look random.
	multiplier = 0xd6e8feb86659fd93
)

// bucketsOf is how many buckets there are for so many slots: at most half of the words are in use.
func bucketsOf(slots int) int { return max(2, 1<<bits.Len(uint(slots-1))) }

func newSecret() (s secret) {
	for i := range s {
		s[i] = rand.Uint32()
	}
	return s
}

// hash is the key's, as the program computes it.
func (x *index) hash(k [offload.KeyLen]byte) uint64 {
	ne, s := binary.NativeEndian, &x.secret
	h := uint64(ne.Uint32(k[0:])+s[0])*uint64(ne.Uint32(k[4:])+s[1]) + uint64(ne.Uint32(k[8:])+s[2])*uint64(ne.Uint32(k[12:])+s[3]) +
		uint64(ne.Uint16(k[16:]))*uint64(s[4]|1)
	h = (h ^ h>>32) * multiplier
	return h ^ h>>32
}

func (x *index) bucket(h uint64, second int) int { return int(h>>(24*second)) & (x.buckets - 1) }

func tagOf(h uint64) uint32 { return uint32(h >> (64 - (32 - refBits))) }

// leads is the slot that a word leads to, and the direction; false: to none.
func (x *index) leads(word uint32) (slot, dir int, ok bool) {
	ref := int(word & refMask)
	return (ref - 1) >> 1, (ref - 1) & 1, ref != 0
}

// find is the place of a key's word; negative: it has none.
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

// put has a key lead to a direction of a slot, which has the key already.
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

// remove has a key lead nowhere, if it leads to this direction of this slot.
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

// room is a free place for a key with hash h. When both buckets are full, words move to their other buckets until there is one; negative: there is none.
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

// look leads from the frame's key on the stack to a slot in R8 and its direction's part in R5, and leaves the direction there. Without one it goes to unknown.
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

// mixer is the multiplier as the assembler takes it.
var mixer = func(v uint64) int64 { return int64(v) }(multiplier)

// add32 adds a number to a register of 32 bits.
func add32(r asm.Register, v uint32) asm.Instruction {
	ins := asm.Add.Imm(r, int32(v))
	ins.OpCode = ins.OpCode&^asm.OpCode(0x07) | asm.OpCode(asm.ALUClass)
	return ins
}
