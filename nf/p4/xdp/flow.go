package xdp

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// A program is written piece by piece, each without a look at the others. Behind that it is made shorter as a whole: the words of a frame's state that are known are
// not loaded (facts.go), and what nobody reads is not stored (needed.go). The kernel's compiler does nothing of the kind.

// flow is a program as blocks.
type flow struct {
	blocks []block
	order  []int // of blocks that are reached: each behind those from which frames come to it, but for loops
	at     []int // a block's place in order; -1: it is not reached
	words  int   // of the state
	never  int   // a block that no frame comes to
}

// block is instructions that run one behind the other, and what is behind them.
type block struct {
	body []asm.Instruction
	kind ending
	jump asm.Instruction // of ends and branches
	to   int             // block to which a branch jumps
	next int             // block that follows otherwise
	from int             // its first instruction in the program that was taken apart
}

type ending uint8

const (
	goes ending = iota // to the next block
	branches
	ends
)

// flowOf takes a program apart, whose state has a size in bytes.
func flowOf(code asm.Instructions, size int) *flow {
	f := &flow{words: (size + 7) / 8}
	first := map[string]int{} // instruction
	leads := make([]bool, len(code)+1)
	leads[0] = true
	for i := range code {
		if s := code[i].Symbol(); s != "" {
			first[s], leads[i] = i, true
		}
		if isJump(&code[i]) {
			leads[i+1] = true
		}
	}
	blockAt := make([]int, len(code)+1)
	n := -1
	for i := range blockAt {
		if leads[i] {
			n++
		}
		blockAt[i] = n
	}
	for i := 0; i < len(code); {
		b := block{next: blockAt[i] + 1, from: i}
		for {
			ins := code[i]
			ins.Metadata = asm.Metadata{}
			i++
			if isJump(&ins) {
				to := code[i-1].Reference()
				switch ins.OpCode.JumpOp() {
				case asm.Exit:
					b.kind, b.jump = ends, ins
				case asm.Ja:
					b.next = blockAt[first[to]]
				default:
					b.kind, b.jump, b.to = branches, ins, blockAt[first[to]]
				}
				break
			}
			b.body = append(b.body, ins)
			if leads[i] {
				break
			}
		}
		f.blocks = append(f.blocks, b)
	}
	f.never = len(f.blocks)
	f.blocks = append(f.blocks, block{body: []asm.Instruction{asm.Mov.Imm(asm.R0, xdpAborted)}, kind: ends, jump: asm.Return(), from: len(code)})
	f.sort()
	return f
}

// isJump: a call comes back.
func isJump(ins *asm.Instruction) bool {
	return ins.OpCode.Class().IsJump() && ins.OpCode.JumpOp() != asm.Call
}

func (b *block) successors() []int {
	switch b.kind {
	case ends:
		return nil
	case branches:
		return []int{b.to, b.next}
	}
	return []int{b.next}
}

// sort finds the order of the blocks.
func (f *flow) sort() {
	f.order = f.order[:0]
	f.at = slices.Repeat([]int{-1}, len(f.blocks))
	seen := make([]bool, len(f.blocks))
	var visit func(i int)
	visit = func(i int) {
		if seen[i] {
			return
		}
		seen[i] = true
		for _, s := range f.blocks[i].successors() {
			visit(s)
		}
		f.order = append(f.order, i)
	}
	visit(0)
	slices.Reverse(f.order)
	for n, i := range f.order {
		f.at[i] = n
	}
}

// code is the program.
func (f *flow) code() asm.Instructions {
	placed, named := make([]bool, len(f.blocks)), make([]bool, len(f.blocks))
	label := func(i int) string { return fmt.Sprint("b", i) }
	var code asm.Instructions
	first := make([]int, len(f.blocks))
	refer := func(ins asm.Instruction, i int) {
		named[i] = true
		code = append(code, ins.WithReference(label(i)))
	}
	chain := func(i int) {
		for !placed[i] {
			placed[i] = true
			b, at := &f.blocks[i], len(code)
			first[i] = at
			code = append(code, b.body...)
			switch {
			case b.kind == ends:
				code = append(code, b.jump)
			case b.kind == branches:
				refer(b.jump, b.to)
			}
			if b.kind != ends && placed[b.next] || at == len(code) {
				refer(asm.Ja.Label(""), b.next)
			}
			if b.kind == ends {
				return
			}
			i = b.next
		}
	}
	for _, i := range f.order {
		chain(i)
	}
	for i := range f.blocks {
		if named[i] {
			code[first[i]] = code[first[i]].WithSymbol(label(i))
		}
	}
	return code
}

// straighten has what leads to an empty block lead to where that leads, and a branch to one place alone go there.
func (f *flow) straighten() {
	skip := func(i int) int {
		for range len(f.blocks) {
			b := &f.blocks[i]
			if len(b.body) > 0 || b.kind != goes {
				break
			}
			i = b.next
		}
		return i
	}
	for i := range f.blocks {
		b := &f.blocks[i]
		if b.kind == ends {
			continue
		}
		b.next = skip(b.next)
		if b.kind == branches {
			if b.to = skip(b.to); b.to == b.next {
				b.kind = goes
			}
		}
	}
	f.sort()
}

// registers says which registers an instruction reads and writes, by their bits.
func registers(ins *asm.Instruction) (reads, writes uint16) {
	bit := func(r asm.Register) uint16 { return 1 << r }
	op := ins.OpCode
	switch cls := op.Class(); {
	case cls == asm.LdClass:
		return 0, bit(ins.Dst)
	case cls == asm.LdXClass:
		return bit(ins.Src), bit(ins.Dst)
	case cls == asm.StClass:
		return bit(ins.Dst), 0
	case cls == asm.StXClass:
		switch reads = bit(ins.Dst) | bit(ins.Src); {
		case op.Mode() != asm.AtomicMode:
			return reads, 0
		case ins.Constant == int64(asm.CmpXchg>>8):
			return reads | bit(asm.R0), bit(asm.R0)
		}
		return reads, bit(ins.Src) // of an addition without a result that is one too many
	case cls.IsALU():
		reads = bit(ins.Dst)
		if op.ALUOp() == asm.Mov {
			reads = 0
		}
		if op.ALUOp() != asm.Swap && op.Source() == asm.RegSource {
			reads |= bit(ins.Src)
		}
		return reads, bit(ins.Dst)
	}
	switch op.JumpOp() {
	case asm.Call:
		return 0b111110, 0b111111
	case asm.Exit:
		return bit(asm.R0), 0
	case asm.Ja:
		return 0, 0
	}
	reads = bit(ins.Dst)
	if op.Source() == asm.RegSource {
		reads |= bit(ins.Src)
	}
	return reads, 0
}

// ofState reports whether an instruction loads from the state or stores there, and its bytes.
func ofState(ins *asm.Instruction) (load, store bool, at, n int) {
	switch cls := ins.OpCode.Class(); {
	case cls == asm.LdXClass && ins.Src == rState:
		load = true
	case (cls == asm.StClass || cls == asm.StXClass) && ins.Dst == rState:
		store = true
	default:
		return false, false, 0, 0
	}
	return load, store, int(ins.Offset), ins.OpCode.Size().Sizeof()
}
