package xdp

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// TestShorten: what is known is not asked, and what nobody reads is not stored; what the frame brings is.
func TestShorten(t *testing.T) {
	word := func(i int) int16 { return int16(atMarks + 8*i) }
	code := func(asked asm.Instruction) asm.Instructions {
		ins := asm.Instructions{asm.Mov.Reg(rState, asm.R0), asm.LoadMem(asm.R3, asm.R1, 0, asm.Word)}
		for _, at := range []int16{atOutcome, atPort, word(0), word(1)} {
			ins = append(ins, storeImm(rState, at, 0, asm.DWord))
		}
		return append(ins, asked,
			asm.LoadMem(asm.R1, rState, word(0), asm.DWord), asm.JEq.Imm(asm.R1, 0, "same"),
			storeImm(rState, word(1), 5, asm.DWord),
			asm.LoadMem(asm.R2, rState, word(1), asm.DWord).WithSymbol("same"), asm.StoreMem(rState, atOutcome, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R0, 0), asm.Return())
	}
	count := func(ins asm.Instructions) (stores, branches int) {
		for i := range ins {
			if _, store, _, _ := ofState(&ins[i]); store {
				stores++
			}
			if isJump(&ins[i]) && ins[i].OpCode.JumpOp() != asm.Exit && ins[i].OpCode.JumpOp() != asm.Ja {
				branches++
			}
		}
		return stores, branches
	}
	for _, c := range []struct {
		name             string
		asked            asm.Instruction
		stores, branches int
	}{
		{"a number", storeImm(rState, word(0), 0, asm.DWord), 2, 0},
		{"another number", storeImm(rState, word(0), 7, asm.DWord), 2, 0},
		{"of the frame", asm.StoreMem(rState, word(0), asm.R3, asm.DWord), 4, 1},
	} {
		got := shorten(code(c.asked), atMarks+16)
		if stores, branches := count(got); stores != c.stores || branches != c.branches {
			t.Errorf("%s: %d stores and %d branches, want %d and %d:\n%v", c.name, stores, branches, c.stores, c.branches, got)
		}
	}
}

// TestShortenForgets: a register that was a word of the state is not it any more when something else was stored there, whole or in part.
func TestShortenForgets(t *testing.T) {
	for _, size := range []asm.Size{asm.DWord, asm.Half} {
		got := shorten(asm.Instructions{asm.Mov.Reg(rState, asm.R0), asm.LoadMem(asm.R3, asm.R1, 0, asm.Word), asm.LoadMem(asm.R4, asm.R1, 4, asm.Word),
			asm.StoreMem(rState, atMarks, asm.R4, asm.DWord), asm.StoreMem(rState, atMarks, asm.R3, size),
			asm.LoadMem(asm.R2, rState, atMarks, asm.DWord), asm.StoreMem(rState, atOutcome, asm.R2, asm.DWord), asm.Mov.Imm(asm.R0, 0), asm.Return()}, atMarks+8)
		for i := range got {
			if _, store, at, _ := ofState(&got[i]); store && at == atOutcome && got[i].Src == asm.R4 {
				t.Errorf("what was there before is stored:\n%v", got)
			}
			if op := got[i].OpCode; op.Class() == asm.ALU64Class && op.ALUOp() == asm.Mov && op.Source() == asm.RegSource && got[i].Src == asm.R4 {
				t.Errorf("what was there before is loaded:\n%v", got)
			}
		}
	}
}

// TestShortenMerges: of two shifts or masks of a register one is left, where nothing is lost by it, and of what a 0 changes nothing.
func TestShortenMerges(t *testing.T) {
	for _, c := range []struct {
		name string
		does asm.Instructions
		want asm.Instructions
	}{
		{"shifts", asm.Instructions{asm.RSh.Imm(asm.R3, 16), asm.RSh.Imm(asm.R3, 40)}, asm.Instructions{asm.RSh.Imm(asm.R3, 56)}},
		{"shifts of all bits", asm.Instructions{asm.RSh.Imm(asm.R3, 32), asm.RSh.Imm(asm.R3, 32)}, asm.Instructions{asm.Mov.Imm(asm.R3, 0)}},
		{"masks", asm.Instructions{asm.And.Imm(asm.R3, 0xff0), asm.And.Imm(asm.R3, 0x3f)}, asm.Instructions{asm.And.Imm(asm.R3, 0x30)}},
		{"shifts of two registers", asm.Instructions{asm.RSh.Imm(asm.R3, 1), asm.RSh.Imm(asm.R4, 1), asm.Add.Reg(asm.R3, asm.R4)},
			asm.Instructions{asm.RSh.Imm(asm.R3, 1), asm.RSh.Imm(asm.R4, 1), asm.Add.Reg(asm.R3, asm.R4)}},
		{"nothing", asm.Instructions{asm.Add.Imm(asm.R3, 0), asm.LSh.Imm(asm.R3, 0)}, nil},
		{"all", asm.Instructions{asm.And.Imm(asm.R3, 0), asm.Add.Imm(asm.R3, 0)}, asm.Instructions{asm.Mov.Imm(asm.R3, 0)}},
	} {
		load := asm.Instructions{asm.LoadMem(asm.R3, asm.R1, 0, asm.DWord), asm.LoadMem(asm.R4, asm.R1, 8, asm.DWord)}
		keep := asm.Instructions{asm.StoreMem(asm.R1, 0, asm.R3, asm.DWord), asm.StoreMem(asm.R1, 8, asm.R4, asm.DWord), asm.Mov.Imm(asm.R0, 0), asm.Return()}
		got := shorten(slices.Concat(load, c.does, keep), atMarks)
		want := slices.Concat(load, c.want, keep)
		if len(c.want) > 0 && c.want[0].OpCode.ALUOp() == asm.Mov { // what the register was is not loaded
			want = want[1:]
		}
		if same := slices.EqualFunc(got, want, func(a, b asm.Instruction) bool {
			return a.OpCode == b.OpCode && a.Dst == b.Dst && a.Src == b.Src && a.Offset == b.Offset && a.Constant == b.Constant
		}); !same {
			t.Errorf("%s: got\n%vwant\n%v", c.name, got, want)
		}
	}
}
