package xdp

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// need is what the rest of a program reads from some place on: registers, and bytes of the state.
type need struct {
	regs  uint16
	bytes []uint64
}

func (n *need) bit(at int) (word int, mask uint64) { return at / 64, 1 << (at % 64) }

// reads reports whether a byte of word w is read.
func (n *need) reads(w int) bool { return n.bytes[w/8]>>(w%8*8)&0xff != 0 }

// before turns the need after an instruction into the need before it. It reports whether the instruction has an
// effect.
func (n *need) before(ins *asm.Instruction) bool {
	reads, writes := registers(ins)
	load, store, at, size := ofState(ins)
	cls := ins.OpCode.Class()
	switch {
	case store:
		any := false
		for i := at; i < at+size; i++ {
			w, m := n.bit(i)
			any = any || n.bytes[w]&m != 0
			n.bytes[w] &^= m
		}
		if !any {
			return false
		}
	case (cls.IsALU() || cls.IsLoad()) && n.regs&writes == 0:
		return false
	}
	for i := at; load && i < at+size; i++ {
		w, m := n.bit(i)
		n.bytes[w] |= m
	}
	n.regs = n.regs&^writes | reads
	return true
}

// needs returns the need at the beginning of each block. After the program's end the tests read two words of
// the state.
func (f *flow) needs() []need {
	at := make([]need, len(f.blocks))
	for changed := true; changed; {
		changed = false
		for n := len(f.order) - 1; n >= 0; n-- {
			i := f.order[n]
			now := f.behind(at, i)
			b := &f.blocks[i]
			for k := len(b.body) - 1; k >= 0; k-- {
				now.before(&b.body[k])
			}
			if at[i].bytes == nil || at[i].regs != now.regs || !slices.Equal(at[i].bytes, now.bytes) {
				changed = true
				at[i] = now
			}
		}
	}
	return at
}

// behind returns the need after a block's body.
func (f *flow) behind(at []need, i int) need {
	b := &f.blocks[i]
	now := need{bytes: make([]uint64, (8*f.words+63)/64)}
	if b.kind == ends {
		for _, word := range []int{atOutcome, atPort} {
			for k := word; k < word+8; k++ {
				w, m := now.bit(k)
				now.bytes[w] |= m
			}
		}
	}
	for _, s := range b.successors() {
		now.regs |= at[s].regs
		for w, v := range at[s].bytes {
			now.bytes[w] |= v
		}
	}
	if b.kind != goes {
		reads, _ := registers(&b.jump)
		now.regs |= reads
	}
	return now
}

// drop removes instructions whose results nothing reads. It reports whether there were any.
func (f *flow) drop() bool {
	at := f.needs()
	any := false
	for _, i := range f.order {
		b := &f.blocks[i]
		now := f.behind(at, i)
		kept := len(b.body)
		for k := len(b.body) - 1; k >= 0; k-- {
			if ins := b.body[k]; now.before(&ins) {
				kept--
				b.body[kept] = ins
			}
		}
		any = any || kept > 0
		b.body = b.body[kept:]
	}
	return any
}
