package xdp

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// content is what is known of a register.
type content struct {
	is   knowledge
	word uint64 // when it is a number
	at   int16  // when it is what bytes of the state are, behind zeros
	size uint8
}

type knowledge uint8

const (
	unknown knowledge = iota
	number
	copied
)

// facts are what is known at a place of a program: registers, and words of the state that are numbers.
type facts struct {
	reg   [11]content
	is    []bool
	words []uint64
}

func (k *facts) clone() *facts {
	return &facts{k.reg, slices.Clone(k.is), slices.Clone(k.words)}
}

// both keeps what o knows, too.
func (k *facts) both(o *facts) {
	for r := range k.reg {
		if k.reg[r] != o.reg[r] {
			k.reg[r] = content{}
		}
	}
	for w := range k.is {
		k.is[w] = k.is[w] && o.is[w] && k.words[w] == o.words[w]
	}
}

// forget is for bytes of the state that are stored.
func (k *facts) forget(at, n int) {
	for w := at / 8; w <= (at+n-1)/8; w++ {
		k.is[w] = false
	}
	for r := range k.reg {
		c := &k.reg[r]
		if c.is == copied && int(c.at) < at+n && at < int(c.at)+int(c.size) {
			*c = content{}
		}
	}
}

// load is what bytes of the state are.
func (k *facts) load(at, n int) (v uint64, ok bool) {
	if at%8 == 0 && n == 8 {
		return k.words[at/8], k.is[at/8]
	}
	for w := at / 8; w <= (at+n-1)/8; w++ {
		if !k.is[w] || k.words[w] != 0 { // of others the order of bytes would matter
			return 0, false
		}
	}
	return 0, true
}

// run has an instruction run, and returns a shorter one that does the same; false: it does nothing.
func (k *facts) run(ins asm.Instruction) (asm.Instruction, bool) {
	load, store, at, n := ofState(&ins)
	switch {
	case load:
		return k.runLoad(ins, at, n)
	case store:
		return k.runStore(ins, at, n)
	}
	op := ins.OpCode
	if op.Class() == asm.LdClass {
		k.reg[ins.Dst] = content{}
		if op.IsDWordLoad() && ins.Src == 0 {
			k.reg[ins.Dst] = content{is: number, word: uint64(ins.Constant)}
		}
		return ins, true
	}
	if op.Class().IsALU() {
		return k.compute(ins)
	}
	_, writes := registers(&ins)
	for r := range k.reg {
		if writes>>r&1 != 0 {
			k.reg[r] = content{}
		}
	}
	return ins, true
}

func (k *facts) runLoad(ins asm.Instruction, at, n int) (asm.Instruction, bool) {
	if v, ok := k.load(at, n); ok {
		k.reg[ins.Dst] = content{is: number, word: v}
		if small(v) {
			return asm.Mov.Imm(ins.Dst, int32(int64(v))), true
		}
		return ins, true
	}
	c := content{is: copied, at: int16(at), size: uint8(n)}
	from := slices.Index(k.reg[:], c)
	k.reg[ins.Dst] = c
	switch {
	case from < 0:
		return ins, true
	case from == int(ins.Dst):
		return ins, false
	}
	return asm.Mov.Reg(ins.Dst, asm.Register(from)), true
}

func (k *facts) runStore(ins asm.Instruction, at, n int) (asm.Instruction, bool) {
	v := content{is: number, word: uint64(ins.Constant)}
	if ins.OpCode.Class() == asm.StXClass {
		v = k.reg[ins.Src]
	}
	whole := at%8 == 0 && n == 8
	switch {
	case whole && v.is == number && k.is[at/8] && k.words[at/8] == v.word:
		return ins, false
	case v.is == copied && int(v.at) == at && int(v.size) == n:
		return ins, false // it is there
	case v.is == number && small(v.word) && ins.OpCode.Class() == asm.StXClass:
		ins = storeImm(rState, ins.Offset, int64(int32(v.word)), ins.OpCode.Size())
	}
	zeros := v.is == number && v.word == 0
	if was, ok := k.load(at, n); zeros && ok && was == 0 {
		return ins, false
	}
	k.forget(at, n)
	switch {
	case !whole:
	case v.is == number:
		k.is[at/8], k.words[at/8] = true, v.word
	case ins.OpCode.Class() == asm.StXClass:
		k.reg[ins.Src] = content{is: copied, at: int16(at), size: 8}
	}
	return ins, true
}

// compute runs an instruction that computes.
func (k *facts) compute(ins asm.Instruction) (asm.Instruction, bool) {
	op := ins.OpCode
	by := content{is: number, word: uint64(ins.Constant)}
	if op.ALUOp() != asm.Swap && op.Source() == asm.RegSource {
		by = k.reg[ins.Src]
	}
	whole := op.Class() == asm.ALU64Class
	if op.ALUOp() == asm.Mov && whole && op.Source() == asm.RegSource && ins.Src == ins.Dst {
		return ins, false
	}
	was := k.reg[ins.Dst]
	k.reg[ins.Dst] = content{}
	if op.ALUOp() == asm.Mov && whole {
		k.reg[ins.Dst] = by
		if by.is == number && small(by.word) {
			return asm.Mov.Imm(ins.Dst, int32(int64(by.word))), true
		}
		return ins, true
	}
	if by.is != number {
		return ins, true
	}
	if was.is == number {
		if v, ok := computed(op, was.word, by.word); ok {
			k.reg[ins.Dst] = content{is: number, word: v}
			if small(v) {
				return asm.Mov.Imm(ins.Dst, int32(int64(v))), true
			}
			return ins, true
		}
	}
	if whole && op.ALUOp() != asm.Swap && op.Source() == asm.RegSource && small(by.word) && commonOp(op.ALUOp()) {
		ins = op.ALUOp().Imm(ins.Dst, int32(int64(by.word)))
	}
	return ins, true
}

// commonOp are operations of which a constant may be the second number.
func commonOp(op asm.ALUOp) bool {
	switch op {
	case asm.Add, asm.Sub, asm.Mul, asm.And, asm.Or, asm.Xor:
		return true
	}
	return false
}

// computed is the result of an operation with 64 bits.
func computed(op asm.OpCode, a, b uint64) (uint64, bool) {
	if op.Class() == asm.ALUClass {
		if op.ALUOp() == asm.Swap { // of other numbers the order of bytes would matter
			return 0, a == 0
		}
		return 0, false
	}
	switch op.ALUOp() {
	case asm.Add:
		return a + b, true
	case asm.Sub:
		return a - b, true
	case asm.Mul:
		return a * b, true
	case asm.And:
		return a & b, true
	case asm.Or:
		return a | b, true
	case asm.Xor:
		return a ^ b, true
	case asm.LSh:
		return a << b, b < 64
	case asm.RSh:
		return a >> b, b < 64
	}
	return 0, false
}

// decide says whether a branch jumps; false: that is not known.
func (k *facts) decide(ins *asm.Instruction) (jumps, ok bool) {
	a, by := k.compared(ins)
	if a.is != number || by.is != number {
		return false, false
	}
	x, y := a.word, by.word
	switch ins.OpCode.JumpOp() {
	case asm.JEq:
		return x == y, true
	case asm.JNE:
		return x != y, true
	case asm.JGT:
		return x > y, true
	case asm.JGE:
		return x >= y, true
	case asm.JLT:
		return x < y, true
	case asm.JLE:
		return x <= y, true
	case asm.JSet:
		return x&y != 0, true
	case asm.JSGT:
		return int64(x) > int64(y), true
	case asm.JSGE:
		return int64(x) >= int64(y), true
	case asm.JSLT:
		return int64(x) < int64(y), true
	case asm.JSLE:
		return int64(x) <= int64(y), true
	}
	return false, false
}

func (k *facts) compared(ins *asm.Instruction) (a, by content) {
	if ins.OpCode.Class() != asm.JumpClass {
		return content{}, content{}
	}
	by = content{is: number, word: uint64(ins.Constant)}
	if ins.OpCode.Source() == asm.RegSource {
		by = k.reg[ins.Src]
	}
	return k.reg[ins.Dst], by
}

// learn is what is known behind a branch that has jumped, or has not.
func (k *facts) learn(ins *asm.Instruction, jumped bool, bits []bool) {
	a, by := k.compared(ins)
	op := ins.OpCode.JumpOp()
	if by.is != number || a.is == number || op != asm.JEq && op != asm.JNE {
		return
	}
	word := by.word
	if equal := jumped == (op == asm.JEq); !equal {
		if a.is != copied || a.size != 8 || a.at%8 != 0 || !bits[a.at/8] || word > 1 {
			return
		}
		word = 1 - word
	}
	if a.is == copied && a.size == 8 && a.at%8 == 0 {
		for r := range k.reg {
			if k.reg[r] == a {
				k.reg[r] = content{is: number, word: word}
			}
		}
		k.is[a.at/8], k.words[a.at/8] = true, word
	}
	k.reg[ins.Dst] = content{is: number, word: word}
}
