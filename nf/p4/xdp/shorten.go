package xdp

import (
	"github.com/cilium/ebpf/asm"
)

// shortenings is the highest number of times that a program is looked through.
const shortenings = 3

// shorten returns a program with the same effect that does less.
func shorten(code asm.Instructions, size int) asm.Instructions { return shortened(code, size).code() }

func shortened(code asm.Instructions, size int) *flow {
	f := flowOf(code, size)
	for range shortenings {
		f.fold()
		f.straighten()
		if !f.drop() {
			break
		}
		f.straighten()
	}
	f.sink()
	return f
}

// fold replaces what is known by numbers, and has branches that are known go where they go.
func (f *flow) fold() {
	at := f.needs()
	in := make([]*facts, len(f.blocks))
	in[0] = newFacts(f.words)
	loops := f.loops()
	for _, i := range f.order {
		k := in[i]
		if k == nil {
			continue // nobody comes here any more
		}
		in[i] = nil
		for _, body := range loops[i] {
			k.change(&f.blocks[body])
		}
		b := &f.blocks[i]
		kept := b.body[:0]
		for _, ins := range b.body {
			if ins, does := k.run(ins); does && !merge(kept, ins) {
				kept = append(kept, ins)
			}
		}
		b.body = kept
		f.leave(i, k, in, at)
	}
}

// merge has the last of some instructions do what another one behind it does, too, if both shift a register to the right, or mask it.
func merge(code []asm.Instruction, ins asm.Instruction) bool {
	if len(code) == 0 {
		return false
	}
	last := &code[len(code)-1]
	if last.OpCode != ins.OpCode || last.Dst != ins.Dst {
		return false
	}
	switch ins.OpCode {
	case asm.RSh.Op(asm.ImmSource):
		if last.Constant+ins.Constant > 63 {
			return false
		}
		last.Constant += ins.Constant
	case asm.And.Op(asm.ImmSource):
		last.Constant &= ins.Constant
	default:
		return false
	}
	return true
}

// leave tells the blocks behind a block what is known.
func (f *flow) leave(i int, k *facts, in []*facts, at []need) {
	b := &f.blocks[i]
	tell := func(to int, k *facts) int {
		to = f.ahead(i, to, k, at)
		switch {
		case f.at[to] <= f.at[i]: // of a loop
		case in[to] == nil:
			in[to] = k.clone()
		default:
			in[to].both(k)
		}
		return to
	}
	if b.kind == branches {
		f.settle(b, k)
	}
	switch b.kind {
	case goes:
		b.next = tell(b.next, k)
	case branches:
		if _, by, ok := k.compared(&b.jump); ok && by.one() && b.jump.OpCode.Source() == asm.RegSource && small(by.low) {
			b.jump = b.jump.OpCode.JumpOp().Imm(b.jump.Dst, int32(int64(by.low)), "")
		}
		jumped := k.clone()
		jumped.learn(&b.jump, true)
		k.learn(&b.jump, false)
		b.to = tell(b.to, jumped)
		b.next = tell(b.next, k)
	}
}

// maxAhead is how many blocks a way is looked ahead.
const maxAhead = 8

// ahead is the block that a frame which comes from a block to another comes to for certain, where nothing is done on the way that somebody sees.
func (f *flow) ahead(from, to int, k *facts, at []need) int {
	var written uint16
	try := k.clone()
	best := to
	for range maxAhead {
		b := &f.blocks[to]
		if f.at[to] <= f.at[from] || f.at[to] < 0 {
			break
		}
		for _, ins := range b.body {
			load, _, _, _ := ofState(&ins)
			if cls := ins.OpCode.Class(); !load && !cls.IsALU() {
				return best
			}
			_, w := registers(&ins)
			written |= w
			try.run(ins)
		}
		switch b.kind {
		case ends:
			return best
		case branches:
			jumps, bound, ok := try.decide(&b.jump)
			if bound || !ok {
				return best
			}
			to = b.next
			if jumps {
				to = b.to
			}
		default:
			to = b.next
		}
		if f.at[to] > f.at[from] && at[to].regs&written == 0 {
			best = to
		}
	}
	return best
}

// settle has a branch that is known go where it goes. One that compares with a bound stays, as the kernel wants to see that somebody has looked: its other way leads to
// the program's end.
func (f *flow) settle(b *block, k *facts) {
	jumps, bound, ok := k.decide(&b.jump)
	switch {
	case !ok:
	case !bound:
		if jumps {
			b.next = b.to
		}
		b.kind = goes
	case jumps:
		b.next = f.never
	default:
		b.to = f.never
	}
}

// change forgets what a block writes.
func (k *facts) change(b *block) {
	for i := range b.body {
		ins := &b.body[i]
		k.write(ins)
		if _, store, at, n := ofState(ins); store {
			k.forget(at, n)
		}
	}
}

// loops are the blocks of the loops that begin with a block.
func (f *flow) loops() map[int][]int {
	from := make([][]int, len(f.blocks))
	for _, i := range f.order {
		for _, s := range f.blocks[i].successors() {
			from[s] = append(from[s], i)
		}
	}
	all := map[int][]int{}
	for _, last := range f.order {
		for _, first := range f.blocks[last].successors() {
			if f.at[first] > f.at[last] {
				continue
			}
			seen := map[int]bool{first: true}
			todo := []int{last}
			all[first] = append(all[first], first)
			for len(todo) > 0 {
				i := todo[len(todo)-1]
				todo = todo[:len(todo)-1]
				if seen[i] {
					continue
				}
				seen[i] = true
				all[first] = append(all[first], i)
				todo = append(todo, from[i]...)
			}
		}
	}
	return all
}
