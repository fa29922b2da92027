package xdp

import (
	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Numbers of more than 64 bits are computed word by word, where a word of the result follows from few words of what it is made of: bits side by side, masks and shifts by
// constants, as p4c writes concatenations and slices.

// wordAt leaves word i of a number's two's complement in register d of the pool. It changes R0 and the registers behind d.
func (g *computer) wordAt(e *ir.Expr, i, d int) {
	r := pool[d]
	switch {
	case !e.Neg && 64*i >= max(e.Bits, 1):
		g.imm(r, 0)
		return
	case i == 0:
		g.value(e, d)
		return
	case e.Fits():
		g.value(e, d)
		g.add(asm.ArSh.Imm(r, 63)) // it is negative, or it was 0 above
		return
	}
	switch e.Op {
	case ir.Const, ir.Local:
		g.word(e, i, d)
	case ir.FieldOf:
		if e.Field == nil || e.Field.Signed || e.Field.Varbit {
			unsupported("arithmetic with signed numbers of more than 64 bits")
		}
		g.word(e, i, d)
	case ir.And, ir.Or, ir.Xor:
		g.wordAt(e.Kids[0], i, d)
		if d+1 == len(pool) {
			unsupported("an expression is nested too deep")
		}
		g.wordAt(e.Kids[1], i, d+1)
		g.add(aluOps[e.Op].Reg(r, pool[d+1]))
	case ir.Neg:
		g.wordAt(e.Kids[0], i, d)
		g.calc(asm.Xor, r, -1)
	case ir.Shl:
		n, ok := e.Kids[1].Word()
		if !ok || n >= 1<<20 {
			unsupported("a shift of a number of more than 64 bits")
		}
		g.twoWords(e.Kids[0], 64*i-int(n), d)
	case ir.Shr:
		n, ok := e.Kids[1].Word()
		if !ok || n >= 1<<20 {
			unsupported("a shift of a number of more than 64 bits")
		}
		g.twoWords(e.Kids[0], 64*i+int(n), d)
	case ir.If:
		no, end := g.fresh(), g.fresh()
		g.branch(e.Kids[0], false, no, d)
		g.wordAt(e.Kids[1], i, d)
		g.jump(end)
		g.label(no)
		g.wordAt(e.Kids[2], i, d)
		g.label(end)
	default:
		unsupported("arithmetic with numbers of more than 64 bits")
	}
}

// twoWords leaves the 64 bits of a number from a bit on in register d; those below its first are 0.
func (g *computer) twoWords(e *ir.Expr, from, d int) {
	i, s := from>>6, from&63 // also of what is negative
	if i < 0 && s == 0 || i < -1 {
		g.imm(pool[d], 0)
		return
	}
	if i >= 0 {
		g.wordAt(e, i, d)
	}
	if s == 0 {
		return
	}
	if i < 0 {
		g.wordAt(e, 0, d)
		g.add(asm.LSh.Imm(pool[d], int32(64-s)))
		return
	}
	g.add(asm.RSh.Imm(pool[d], int32(s)))
	if !e.Neg && 64*(i+1) >= e.Bits {
		return
	}
	if d+1 == len(pool) {
		unsupported("an expression is nested too deep")
	}
	g.wordAt(e, i+1, d+1)
	g.add(asm.LSh.Imm(pool[d+1], int32(64-s)))
	g.with(asm.Or, pool[d], pool[d+1])
}

// wordsOf is how many words say all of a number's value.
func wordsOf(e *ir.Expr) int {
	n := e.Bits
	if e.Neg {
		n++
	}
	return max(1, (n+63)/64)
}

// compareWide compares numbers of more than 64 bits.
func (g *computer) compareWide(e *ir.Expr, want bool, to string, d int) {
	l, r := e.Kids[0], e.Kids[1]
	if e.Op != ir.Eq && e.Op != ir.Ne || d+1 == len(pool) {
		unsupported("a comparison of numbers of more than 64 bits")
	}
	equal := want == (e.Op == ir.Eq) // jump when they are equal
	differ := to
	if equal {
		differ = g.fresh()
	}
	n := max(wordsOf(l), wordsOf(r))
	if l.Neg != r.Neg {
		n = max((l.Bits+64)/64, (r.Bits+64)/64)
	}
	for i := range n {
		g.wordAt(l, i, d)
		g.wordAt(r, i, d+1)
		g.add(asm.JNE.Reg(pool[d], pool[d+1], differ))
	}
	if equal {
		g.jump(to)
		g.label(differ)
	}
}

// isNotZero jumps when that a number of more than 64 bits is not 0 is what is wanted.
func (g *computer) isNotZero(e *ir.Expr, want bool, to string, d int) {
	other := to
	if !want {
		other = g.fresh()
	}
	for i := range wordsOf(e) {
		g.wordAt(e, i, d)
		g.add(asm.JNE.Imm(pool[d], 0, other))
	}
	if !want {
		g.jump(to)
		g.label(other)
	}
}

// assignWide stores a number in a field of more than 64 bits.
func (g *computer) assignWide(f *ir.Field, src *ir.Expr) {
	if !f.Header.Meta && (f.BitOff%8 != 0 || f.Bits%8 != 0) {
		unsupported("it computes a field of more than 64 bits that does not begin and end with a byte")
	}
	if f.Signed {
		unsupported("arithmetic with signed numbers of more than 64 bits")
	}
	if mentions(src, f) && src.Op != ir.FieldOf {
		unsupported("it computes a number of more than 64 bits from itself")
	}
	for i := range (f.Bits + 63) / 64 {
		g.wordAt(src, i, 0)
		g.and(pool[0], ones(min(64, f.Bits-64*i)))
		g.writeField(f, i, pool[0])
	}
}

// mentions reports whether an expression has a field in it.
func mentions(e *ir.Expr, f *ir.Field) bool {
	if e == nil {
		return false
	}
	return e.Op == ir.FieldOf && e.Field == f || mentions(e.Kids[0], f) || mentions(e.Kids[1], f) || mentions(e.Kids[2], f)
}
