package xdp

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// sinking moves zeros. A frame's state begins with many, of which each way through a program reads few. So a 0 is stored where a way comes to one that has stored
// something else, or to what reads it.
type sinking struct {
	*flow
	at      []need         // what is read from a block's beginning on
	in, out []wordSet      // words that are to be 0 and were not stored, at a block's beginning and at its end
	between map[string]int // blocks of zeros
}

// wordSet is words of the state.
type wordSet []uint64

func (s wordSet) add(w int)      { s[w/64] |= 1 << (w % 64) }
func (s wordSet) remove(w int)   { s[w/64] &^= 1 << (w % 64) }
func (s wordSet) has(w int) bool { return s[w/64]>>(w%64)&1 != 0 }

// sink moves the zeros with which the state begins.
func (f *flow) sink() {
	n := len(f.blocks)
	s := &sinking{f, f.needs(), make([]wordSet, n), make([]wordSet, n), map[string]int{}}
	s.in[0] = make(wordSet, (f.words+63)/64)
	loops := f.loops()
	for _, i := range f.order {
		for _, body := range loops[i] {
			for k := range f.blocks[body].body {
				for _, w := range wordsAt(&f.blocks[body].body[k]) {
					s.in[i].remove(w)
				}
			}
		}
		s.block(i)
		for _, to := range f.blocks[i].successors() {
			switch {
			case f.at[to] <= f.at[i]: // of a loop
			case s.in[to] == nil:
				s.in[to] = slices.Clone(s.out[i])
			default:
				for w, v := range s.out[i] {
					s.in[to][w] &= v
				}
			}
		}
	}
	for _, i := range f.order {
		s.leave(i)
	}
	f.straighten()
}

// wordsAt are the words of the state that an instruction loads or stores.
func wordsAt(ins *asm.Instruction) (all []int) {
	load, store, at, n := ofState(ins)
	for w := at / 8; (load || store) && w <= (at+n-1)/8; w++ {
		all = append(all, w)
	}
	return all
}

func zero(w int) asm.Instruction { return storeImm(rState, int16(8*w), 0, asm.DWord) }

// block stores zeros in front of what looks at them.
func (s *sinking) block(i int) {
	b, now := &s.blocks[i], slices.Clone(s.in[i])
	var body []asm.Instruction
	begins := false // the state begins here
	for _, ins := range b.body {
		_, store, at, n := ofState(&ins)
		whole := store && at%8 == 0 && n == 8
		begins = begins || ins.OpCode.Class() == asm.ALU64Class && ins.Dst == rState
		if begins && whole && ins.OpCode.Class() == asm.StClass && ins.Constant == 0 {
			now.add(at / 8)
			continue
		}
		for _, w := range wordsAt(&ins) {
			if now.has(w) && !whole {
				body = append(body, zero(w))
			}
			now.remove(w)
		}
		body = append(body, ins)
	}
	b.body, s.out[i] = body, now
}

// leave stores zeros on the ways from a block to others that take them for stored.
func (s *sinking) leave(i int) {
	way := func(to int) int {
		var zeros []asm.Instruction
		for w := range s.words {
			if s.at[to].reads(w) && s.out[i].has(w) && !s.in[to].has(w) {
				zeros = append(zeros, zero(w))
			}
		}
		if zeros == nil {
			return to
		}
		key := fmt.Sprint(to, zeros)
		n, ok := s.between[key]
		if !ok {
			n = len(s.blocks)
			s.between[key] = n
			s.blocks = append(s.blocks, block{body: zeros, next: to, from: s.blocks[to].from})
		}
		return n
	}
	b := s.blocks[i]
	if b.kind != ends {
		b.next = way(b.next)
	} else {
		behind := s.behind(s.at, i)
		for w := range s.words {
			if behind.reads(w) && s.out[i].has(w) {
				b.body = append(b.body, zero(w))
			}
		}
	}
	if b.kind == branches {
		b.to = way(b.to)
	}
	s.blocks[i] = b
}
