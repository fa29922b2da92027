package xdp

import (
	"math/bits"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// span is the numbers from low to high.
type span struct{ low, high uint64 }

var anything = span{0, ^uint64(0)}

func exactly(v uint64) span { return span{v, v} }

func (s span) one() bool { return s.low == s.high }

// with is a span that has the numbers of both.
func (s span) with(o span) span { return span{min(s.low, o.low), max(s.high, o.high)} }

// content is what is known of a register: a span, and with a size the bytes of the state that it is, behind zeros.
type content struct {
	span
	at   int16
	size uint8
}

// facts are what is known at a place of a program: of registers, and of words of the state.
type facts struct {
	reg   [11]content
	words []span
}

func newFacts(words int) *facts {
	k := &facts{words: slices.Repeat([]span{anything}, words)}
	for r := range k.reg {
		k.reg[r].span = anything
	}
	return k
}

func (k *facts) clone() *facts { return &facts{k.reg, slices.Clone(k.words)} }

// both keeps what o knows, too.
func (k *facts) both(o *facts) {
	for r := range k.reg {
		a, b := &k.reg[r], &o.reg[r]
		if a.at != b.at || a.size != b.size {
			a.at, a.size = 0, 0
		}
		a.span = a.with(b.span)
	}
	for w := range k.words {
		k.words[w] = k.words[w].with(o.words[w])
	}
}

// forget is for bytes of the state that are stored.
func (k *facts) forget(at, n int) {
	for w := at / 8; w <= (at+n-1)/8; w++ {
		k.words[w] = anything
	}
	for r := range k.reg {
		if c := &k.reg[r]; c.size > 0 && int(c.at) < at+n && at < int(c.at)+int(c.size) {
			c.at, c.size = 0, 0
		}
	}
}

// write forgets the registers that an instruction writes.
func (k *facts) write(ins *asm.Instruction) {
	_, writes := registers(ins)
	for r := range k.reg {
		if writes>>r&1 != 0 {
			k.reg[r] = content{span: anything}
		}
	}
}

// load is what bytes of the state are.
func (k *facts) load(at, n int) span {
	if at%8 == 0 && n == 8 {
		return k.words[at/8]
	}
	for w := at / 8; w <= (at+n-1)/8; w++ {
		if k.words[w] != exactly(0) { // of others the order of bytes would matter
			return span{0, ones(8 * n)}
		}
	}
	return exactly(0)
}

// set makes a register a number, if the instruction can say it.
func set(ins asm.Instruction, v span) asm.Instruction {
	if v.one() && small(v.low) {
		return asm.Mov.Imm(ins.Dst, int32(int64(v.low)))
	}
	return ins
}

// run has an instruction run, and returns a shorter one that does the same; false: it does nothing.
func (k *facts) run(ins asm.Instruction) (asm.Instruction, bool) {
	load, store, at, n := ofState(&ins)
	switch {
	case load:
		return k.runLoad(ins, at, n)
	case store:
		return k.runStore(ins, at, n)
	case ins.OpCode.Class().IsALU():
		return k.compute(ins)
	}
	k.write(&ins)
	switch op := ins.OpCode; {
	case op.IsDWordLoad() && ins.Src == 0:
		k.reg[ins.Dst].span = exactly(uint64(ins.Constant))
	case op.Class() == asm.LdXClass:
		k.reg[ins.Dst].span = span{0, ones(8 * op.Size().Sizeof())}
	}
	return ins, true
}

func (k *facts) runLoad(ins asm.Instruction, at, n int) (asm.Instruction, bool) {
	c := content{k.load(at, n), int16(at), uint8(n)}
	from := slices.IndexFunc(k.reg[:], func(o content) bool { return o.at == c.at && o.size == c.size })
	if from >= 0 { // more may be known of it
		c.span = k.reg[from].span
	}
	k.reg[ins.Dst] = c
	switch {
	case c.one():
		return set(ins, c.span), true
	case from < 0:
		return ins, true
	case from == int(ins.Dst):
		return ins, false
	}
	return asm.Mov.Reg(ins.Dst, asm.Register(from)), true
}

func (k *facts) runStore(ins asm.Instruction, at, n int) (asm.Instruction, bool) {
	v := content{span: exactly(uint64(ins.Constant))}
	if ins.OpCode.Class() == asm.StXClass {
		v = k.reg[ins.Src]
	}
	whole := at%8 == 0 && n == 8
	was := k.load(at, n)
	switch {
	case v.one() && was == v.span && (whole || v.low == 0):
		return ins, false // it is there
	case int(v.size) == n && int(v.at) == at:
		return ins, false
	case v.one() && small(v.low) && ins.OpCode.Class() == asm.StXClass:
		ins = storeImm(rState, ins.Offset, int64(v.low), ins.OpCode.Size())
	}
	k.forget(at, n)
	if !whole {
		return ins, true
	}
	k.words[at/8] = v.span
	if ins.OpCode.Class() == asm.StXClass {
		k.reg[ins.Src].at, k.reg[ins.Src].size = int16(at), 8
	}
	return ins, true
}

// compute runs an instruction that computes.
func (k *facts) compute(ins asm.Instruction) (asm.Instruction, bool) {
	op := ins.OpCode
	by := content{span: exactly(uint64(ins.Constant))}
	if op.ALUOp() != asm.Swap && op.Source() == asm.RegSource {
		by = k.reg[ins.Src]
	}
	was := k.reg[ins.Dst]
	whole := op.Class() == asm.ALU64Class
	if op.ALUOp() == asm.Mov {
		if whole && op.Source() == asm.RegSource && ins.Src == ins.Dst {
			return ins, false
		}
		if !whole && by.high > ones(32) {
			by = content{span: span{0, ones(32)}}
		}
		if by.size > 0 && by.at == was.at && by.size == was.size {
			return ins, false // it is there
		}
		k.reg[ins.Dst] = by
		return set(ins, by.span), true
	}
	if whole && by.span == exactly(0) && leavesAll(op.ALUOp()) {
		return ins, false
	}
	if whole && was.span == exactly(0) && op.Source() == asm.RegSource && (op.ALUOp() == asm.Or || op.ALUOp() == asm.Xor) && !by.one() {
		k.reg[ins.Dst] = by
		return asm.Mov.Reg(ins.Dst, ins.Src), true
	}
	k.reg[ins.Dst] = content{span: result(op, &ins, was.span, by.span)}
	if now := k.reg[ins.Dst]; now.one() {
		return set(ins, now.span), true
	}
	if !whole {
		return ins, true
	}
	if op.Source() == asm.RegSource && by.one() && small(by.low) && takesNumbers(op.ALUOp()) {
		ins = op.ALUOp().Imm(ins.Dst, int32(int64(by.low)))
	}
	return ins, true
}

// leavesAll reports whether an operation with 0 leaves each number as it is.
func leavesAll(op asm.ALUOp) bool {
	switch op {
	case asm.Add, asm.Sub, asm.Or, asm.Xor, asm.LSh, asm.RSh, asm.ArSh:
		return true
	}
	return false
}

// takesNumbers are operations of which a number may be the second.
func takesNumbers(op asm.ALUOp) bool {
	switch op {
	case asm.Add, asm.Sub, asm.Mul, asm.And, asm.Or, asm.Xor:
		return true
	}
	return false
}

// result is what an operation makes of numbers of two spans.
func result(op asm.OpCode, ins *asm.Instruction, a, b span) span {
	if op.Class() == asm.ALUClass {
		switch {
		case op.ALUOp() != asm.Swap:
			return span{0, ones(32)}
		case a == exactly(0): // of other numbers the order of bytes would matter
			return a
		}
		return span{0, ones(int(ins.Constant))}
	}
	top := func(v uint64) uint64 { return ones(bits.Len64(v)) }
	switch op.ALUOp() {
	case asm.Add:
		if low, carry := bits.Add64(a.low, b.low, 0); carry == 0 {
			if high, carry := bits.Add64(a.high, b.high, 0); carry == 0 {
				return span{low, high}
			}
		}
		if a.one() && b.one() {
			return exactly(a.low + b.low)
		}
	case asm.Sub:
		if a.low >= b.high || a.one() && b.one() {
			return span{a.low - b.high, a.high - b.low}
		}
	case asm.Mul:
		if over, high := bits.Mul64(a.high, b.high); over == 0 {
			return span{a.low * b.low, high}
		}
		if a.one() && b.one() {
			return exactly(a.low * b.low)
		}
	case asm.And:
		if a.one() && b.one() {
			return exactly(a.low & b.low)
		}
		return span{0, min(a.high, b.high)}
	case asm.Or:
		if a.one() && b.one() {
			return exactly(a.low | b.low)
		}
		return span{max(a.low, b.low), top(a.high | b.high)}
	case asm.Xor:
		if a.one() && b.one() {
			return exactly(a.low ^ b.low)
		}
		return span{0, top(a.high | b.high)}
	case asm.LSh:
		if b.one() && b.low < 64 && (a.high<<b.low>>b.low == a.high || a.one()) {
			return span{a.low << b.low, a.high << b.low}
		}
	case asm.RSh:
		if b.one() && b.low < 64 {
			return span{a.low >> b.low, a.high >> b.low}
		}
	case asm.Mod:
		if b.one() && b.low > 0 {
			return span{0, b.low - 1}
		}
	case asm.Div:
		if b.one() && b.low > 0 {
			return span{a.low / b.low, a.high / b.low}
		}
	}
	return anything
}

// compared are both sides of a branch; false: it compares in a way that is not looked into.
func (k *facts) compared(ins *asm.Instruction) (a, by content, ok bool) {
	by = content{span: exactly(uint64(ins.Constant))}
	if ins.OpCode.Source() == asm.RegSource {
		by = k.reg[ins.Src]
	}
	return k.reg[ins.Dst], by, ins.OpCode.Class() == asm.JumpClass
}

// decide says whether a branch jumps; not ok: that is not known. With bound the kernel may not know it, and wants to see that somebody has looked.
func (k *facts) decide(ins *asm.Instruction) (jumps, bound, ok bool) {
	a, by, ok := k.compared(ins)
	if !ok {
		return false, false, false
	}
	jumps, ok = decided(ins.OpCode.JumpOp(), a.span, by.span)
	op := ins.OpCode.JumpOp()
	return jumps, op != asm.JEq && op != asm.JNE && !(a.one() && by.one()), ok
}

func decided(op asm.JumpOp, a, by span) (jumps, ok bool) {
	x, y := a.low, by.low
	both := a.one() && by.one()
	switch op {
	case asm.JEq, asm.JNE:
		if both && x == y {
			return op == asm.JEq, true
		}
		return op == asm.JNE, a.high < by.low || by.high < a.low
	case asm.JGT:
		return a.low > by.high, a.low > by.high || a.high <= by.low
	case asm.JGE:
		return a.low >= by.high, a.low >= by.high || a.high < by.low
	case asm.JLT:
		return a.high < by.low, a.high < by.low || a.low >= by.high
	case asm.JLE:
		return a.high <= by.low, a.high <= by.low || a.low > by.high
	case asm.JSet:
		return x&y != 0, both
	case asm.JSGT:
		return int64(x) > int64(y), both
	case asm.JSGE:
		return int64(x) >= int64(y), both
	case asm.JSLT:
		return int64(x) < int64(y), both
	case asm.JSLE:
		return int64(x) <= int64(y), both
	}
	return false, false
}

// learn is what is known behind a branch that has jumped, or has not.
func (k *facts) learn(ins *asm.Instruction, jumped bool) {
	a, by, ok := k.compared(ins)
	if !ok || !by.one() || a.one() {
		return
	}
	v, s := by.low, a.span
	op := ins.OpCode.JumpOp()
	if !jumped {
		if op = inverse[op]; op == 0 {
			return
		}
	}
	switch op {
	case asm.JEq:
		s = exactly(v)
	case asm.JNE:
		if v == s.low {
			s.low++
		}
		if v == s.high {
			s.high--
		}
	case asm.JGT:
		if v < s.high {
			s.low = max(s.low, v+1)
		}
	case asm.JGE:
		if v <= s.high {
			s.low = max(s.low, v)
		}
	case asm.JLT:
		if v > s.low {
			s.high = min(s.high, v-1)
		}
	case asm.JLE:
		if v >= s.low {
			s.high = min(s.high, v)
		}
	}
	k.reg[ins.Dst].span = s
	if a.size == 0 {
		return
	}
	for r := range k.reg {
		if c := &k.reg[r]; c.at == a.at && c.size == a.size {
			c.span = s
		}
	}
	if a.size == 8 && a.at%8 == 0 {
		k.words[a.at/8] = s
	}
}
