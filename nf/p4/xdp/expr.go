package xdp

import (
	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// computer writes expressions.
type computer struct{ *emitter }

// value leaves the lowest word of a number in register d of the pool, as the engine computes it: modulo 2^64. It changes R0 and the registers
// behind it.
func (g *computer) value(e *ir.Expr, d int) {
	r := pool[d]
	if e.Sort == ir.Bool {
		g.truth(e, d)
		return
	}
	switch e.Op {
	case ir.Const, ir.FieldOf, ir.Local:
		g.word(e, 0, d)
		if e.Op == ir.FieldOf && e.Field != nil && e.Field.Signed && e.Field.Bits < 64 {
			g.signExtend(r, e.Field.Bits)
		}
	case ir.Add, ir.Sub, ir.Mul, ir.And, ir.Or, ir.Xor:
		g.binary(e, d)
	case ir.Neg:
		g.value(e.Kids[0], d)
		g.calc(asm.Xor, r, -1)
	case ir.Shl:
		g.shiftLeft(e, d)
	case ir.Shr:
		g.shiftRight(e, d)
	case ir.Div, ir.Mod:
		g.divide(e, d)
	case ir.SignCast:
		g.value(e.Kids[0], d)
		if e.At < 64 {
			g.signExtend(r, e.At)
		}
	case ir.SatCast, ir.UsatCast:
		g.saturate(e, d)
	case ir.If:
		no, end := g.fresh(), g.fresh()
		g.branch(e.Kids[0], false, no, d)
		g.value(e.Kids[1], d)
		g.jump(end)
		g.label(no)
		g.value(e.Kids[2], d)
		g.label(end)
	case ir.ToData:
		g.truth(e.Kids[0], d)
	case ir.Register:
		unsupported("it reads a register")
	case ir.Member, ir.Last, ir.LastIndex, ir.StackCount:
		unsupported("it looks into a header stack")
	default:
		unsupported("an expression of a kind that is not translated (%d)", e.Op)
	}
}

// word leaves word i of a constant, a field or a parameter in register d.
func (g *computer) word(e *ir.Expr, i, d int) {
	r := pool[d]
	switch e.Op {
	case ir.Const:
		g.imm(r, wordOf(e.Const, i, e.Neg))
	case ir.FieldOf:
		switch {
		case e.Field == nil && i == 0:
			g.readValid(e.Header, r)
		case e.Field != nil && 64*i < e.Field.Bits:
			g.readField(e.Field, i, r)
		default:
			g.imm(r, 0)
		}
	case ir.Local:
		switch {
		case 64*i >= max(e.Bits, 1):
			g.imm(r, 0)
		case g.args.entry:
			g.load(r, rEntry, entryData+8*(e.At+i), asm.DWord)
		default:
			g.imm(r, wordOf(g.args.data, e.At+i, false))
		}
	}
}

func wordOf(v []uint64, i int, neg bool) uint64 {
	switch {
	case i < len(v):
		return v[i]
	case neg:
		return ^uint64(0)
	}
	return 0
}

func (g *computer) signExtend(r asm.Register, bits int) {
	g.calc(asm.LSh, r, int(64-bits))
	g.add(asm.ArSh.Imm(r, int32(64-bits)))
}

var aluOps = map[ir.Op]asm.ALUOp{ir.Add: asm.Add, ir.Sub: asm.Sub, ir.Mul: asm.Mul, ir.And: asm.And, ir.Or: asm.Or, ir.Xor: asm.Xor}

func (g *computer) binary(e *ir.Expr, d int) {
	op := aluOps[e.Op]
	g.value(e.Kids[0], d)
	if e.Op == ir.And && covers(e.Kids[1], e.Kids[0]) {
		return
	}
	if k := e.Kids[1]; k.Op == ir.Const && small(k.Const[0]) {
		g.add(op.Imm(pool[d], int32(int64(k.Const[0]))))
		return
	}
	g.second(e.Kids[1], d)
	g.add(op.Reg(pool[d], asm.R0))
}

// covers reports whether a mask keeps all bits of a number.
func covers(mask, e *ir.Expr) bool {
	m, ok := mask.Word()
	return ok && !mask.Neg && !e.Neg && e.Bits <= 64 && ones(e.Bits)&^m == 0
}

// second leaves a number in R0 and keeps register d.
func (g *computer) second(e *ir.Expr, d int) {
	if e.Op == ir.Const {
		g.imm(asm.R0, e.Const[0])
		return
	}
	if d+1 < len(pool) {
		g.value(e, d+1)
		g.with(asm.Mov, asm.R0, pool[d+1])
		return
	}
	if g.spilled == spillWords {
		unsupported("an expression is nested too deep")
	}
	at := int16(spillAt + 8*g.spilled)
	g.spilled++
	g.add(asm.StoreMem(asm.RFP, at, pool[d], asm.DWord))
	g.value(e, d)
	g.with(asm.Mov, asm.R0, pool[d])
	g.add(asm.LoadMem(pool[d], asm.RFP, at, asm.DWord))
	g.spilled--
}

// index checks that an index, a width or a distance is one word: one that is negative is large then.
func index(e *ir.Expr) *ir.Expr {
	if !e.Fits() {
		unsupported("an index of more than 64 bits")
	}
	return e
}

func (g *computer) shiftLeft(e *ir.Expr, d int) {
	r := pool[d]
	g.value(e.Kids[0], d)
	if n, ok := e.Kids[1].Word(); ok {
		g.shiftBy(asm.LSh, r, n)
		return
	}
	g.second(index(e.Kids[1]), d)
	zero, end := g.fresh(), g.fresh()
	g.whenImm(asm.JGT, asm.R0, 63, zero)
	g.add(asm.LSh.Reg(r, asm.R0))
	g.jump(end)
	g.label(zero)
	g.imm(r, 0)
	g.label(end)
}

// shiftBy shifts by a constant.
func (g *computer) shiftBy(op asm.ALUOp, r asm.Register, n uint64) {
	switch {
	case n == 0:
	case n < 64:
		g.add(op.Imm(r, int32(n)))
	case op == asm.ArSh:
		g.add(op.Imm(r, 63))
	default:
		g.imm(r, 0)
	}
}

func (g *computer) shiftRight(e *ir.Expr, d int) {
	l, r := e.Kids[0], pool[d]
	n, known := e.Kids[1].Word()
	if !l.Fits() {
		if !known || n >= 1<<20 {
			unsupported("a shift of a number of more than 64 bits")
		}
		g.twoWords(l, int(n), d)
		return
	}
	g.value(l, d)
	op := asm.RSh
	if l.Neg {
		op = asm.ArSh
	}
	if known {
		g.shiftBy(op, r, n)
		return
	}
	g.second(index(e.Kids[1]), d)
	fits, end := g.fresh(), g.fresh()
	g.whenImm(asm.JLE, asm.R0, 63, fits)
	g.shiftBy(op, r, 64)
	g.jump(end)
	g.label(fits)
	g.add(op.Reg(r, asm.R0))
	g.label(end)
}

// divide: a division by 0, and one of negative numbers, is 0.
func (g *computer) divide(e *ir.Expr, d int) {
	l, m, r := e.Kids[0], e.Kids[1], pool[d]
	if !l.Fits() || !m.Fits() {
		unsupported("a division of numbers of more than 64 bits")
	}
	g.value(l, d)
	g.second(m, d)
	zero, end := g.fresh(), g.fresh()
	if l.Neg {
		g.whenImm(asm.JSLT, r, 0, zero)
	}
	if m.Neg {
		g.whenImm(asm.JSLT, asm.R0, 0, zero)
	}
	g.whenImm(asm.JEq, asm.R0, 0, zero)
	if e.Op == ir.Div {
		g.add(asm.Div.Reg(r, asm.R0))
	} else {
		g.with(asm.Mod, r, asm.R0)
	}
	g.jump(end)
	g.label(zero)
	g.imm(r, 0)
	g.label(end)
}

// saturate brings a number into the range of a width.
func (g *computer) saturate(e *ir.Expr, d int) {
	l, r := e.Kids[0], pool[d]
	if !l.Fits() || !e.Fits() {
		unsupported("a saturating cast of numbers of more than 64 bits")
	}
	low, top := int64(0), ones(e.At)
	if e.Op == ir.SatCast {
		top = ones(e.At - 1)
		low = -int64(top) - 1
	}
	g.value(l, d)
	clamp := func(op asm.JumpOp, v uint64) {
		ok := g.fresh()
		g.imm(asm.R0, v)
		g.add(op.Reg(r, asm.R0, ok))
		g.with(asm.Mov, r, asm.R0)
		g.label(ok)
	}
	if !l.Neg {
		clamp(asm.JLE, top)
		return
	}
	clamp(asm.JSGE, uint64(low))
	if top <= 1<<63-1 {
		clamp(asm.JSLE, top)
	}
}

// truth leaves 1 or 0 in register d.
func (g *computer) truth(e *ir.Expr, d int) {
	if e.Op == ir.Valid && e.Kids[0].Op == ir.HeaderOf {
		g.readValid(e.Kids[0].Header, pool[d])
		return
	}
	yes, end := g.fresh(), g.fresh()
	g.branch(e, true, yes, d)
	g.imm(pool[d], 0)
	g.jump(end)
	g.label(yes)
	g.imm(pool[d], 1)
	g.label(end)
}

// branch jumps when a bool is what is wanted. It uses registers from d on.
func (g *computer) branch(e *ir.Expr, want bool, to string, d int) {
	if e.Sort == ir.Data { // a number stands for a bool
		e = &ir.Expr{Op: ir.ToBool, Sort: ir.Bool, Kids: [3]*ir.Expr{e}}
	}
	switch e.Op {
	case ir.True, ir.False:
		if (e.Op == ir.True) == want {
			g.jump(to)
		}
	case ir.Not:
		g.branch(e.Kids[0], !want, to, d)
	case ir.AndAlso, ir.OrElse:
		if want == (e.Op == ir.OrElse) { // either is enough
			g.branch(e.Kids[0], want, to, d)
			g.branch(e.Kids[1], want, to, d)
			return
		}
		end := g.fresh()
		g.branch(e.Kids[0], !want, end, d)
		g.branch(e.Kids[1], want, to, d)
		g.label(end)
	case ir.Eq, ir.Ne, ir.Lt, ir.Le, ir.Gt, ir.Ge:
		g.compare(e, want, to, d)
	case ir.EqBool, ir.NeBool:
		g.truth(e.Kids[0], d)
		g.second(e.Kids[1], d)
		g.jumpIf(asm.JEq, pool[d], (e.Op == ir.EqBool) == want, to)
	case ir.Valid:
		if e.Kids[0].Op != ir.HeaderOf {
			unsupported("it looks into a header stack or a union")
		}
		g.readValid(e.Kids[0].Header, pool[d])
		g.calc(asm.Mov, asm.R0, 0)
		g.jumpIf(asm.JEq, pool[d], !want, to)
	case ir.ToBool:
		if !e.Kids[0].Fits() {
			g.isNotZero(e.Kids[0], want, to, d)
			return
		}
		g.value(e.Kids[0], d)
		g.calc(asm.Mov, asm.R0, 0)
		g.jumpIf(asm.JEq, pool[d], !want, to)
	case ir.If:
		no, end := g.fresh(), g.fresh()
		g.branch(e.Kids[0], false, no, d)
		g.branch(e.Kids[1], want, to, d)
		g.jump(end)
		g.label(no)
		g.branch(e.Kids[2], want, to, d)
		g.label(end)
	default:
		unsupported("it compares headers, or looks into a stack or a union")
	}
}

var inverse = map[asm.JumpOp]asm.JumpOp{asm.JEq: asm.JNE, asm.JNE: asm.JEq, asm.JLT: asm.JGE, asm.JLE: asm.JGT, asm.JGT: asm.JLE, asm.JGE: asm.JLT,
	asm.JSLT: asm.JSGE, asm.JSLE: asm.JSGT, asm.JSGT: asm.JSLE, asm.JSGE: asm.JSLT}

// jumpIf jumps when r compares with R0 as op says, or with want false when it does not.
func (g *computer) jumpIf(op asm.JumpOp, r asm.Register, want bool, to string) {
	if !want {
		op = inverse[op]
	}
	g.add(op.Reg(r, asm.R0, to))
}

var jumps = map[ir.Op][2]asm.JumpOp{ir.Eq: {asm.JEq, asm.JEq}, ir.Ne: {asm.JNE, asm.JNE}, ir.Lt: {asm.JLT, asm.JSLT}, ir.Le: {asm.JLE, asm.JSLE},
	ir.Gt: {asm.JGT, asm.JSGT}, ir.Ge: {asm.JGE, asm.JSGE}}

func (g *computer) compare(e *ir.Expr, want bool, to string, d int) {
	l, r := e.Kids[0], e.Kids[1]
	op := jumps[e.Op][1]
	switch {
	case l.Fits() && r.Fits() && !l.Neg && !r.Neg:
		op = jumps[e.Op][0]
	case l.Bits <= 63 && r.Bits <= 63:
	default:
		g.compareWide(e, want, to, d)
		return
	}
	g.value(l, d)
	if c, ok := r.Word(); ok && small(c) {
		if !want {
			op = inverse[op]
		}
		g.add(op.Imm(pool[d], int32(int64(c)), to))
		return
	}
	g.second(r, d)
	g.jumpIf(op, pool[d], want, to)
}

// assign stores a number in a field: cut to its width, or brought into its range when it saturates.
func (g *computer) assign(dst, src *ir.Expr) {
	if dst.Op == ir.If {
		g.assignEach(dst, src)
		return
	}
	if dst.Op != ir.FieldOf {
		unsupported("it assigns to an element of a header stack, or to a register")
	}
	if dst.Field == nil {
		g.assignValid(dst.Header, src)
		return
	}
	f := dst.Field
	if f.Header.Meta && !g.u.read[f] {
		g.next.written[f] = true
		return // nobody reads it
	}
	if f.Saturate {
		op := ir.UsatCast
		if f.Signed {
			op = ir.SatCast
		}
		e := &ir.Expr{Op: op, Kids: [3]*ir.Expr{src}, At: f.Bits, Bits: f.Bits}
		if op == ir.SatCast {
			e.Neg, e.Bits = true, f.Bits-1
		}
		src = e
	}
	if f.Bits <= 64 {
		g.value(src, 0)
		if src.Neg || src.Bits > f.Bits {
			g.and(pool[0], ones(f.Bits))
		}
		g.writeField(f, 0, pool[0])
		return
	}
	g.assignWide(f, src)
}

// assignValid stores the lowest bit of a number as a header's validity.
func (g *computer) assignValid(h *ir.Header, src *ir.Expr) {
	if h.Meta {
		unsupported("it assigns to a validity of metadata")
	}
	g.next.may[h] = true
	g.move(h)
	g.value(src, 0)
	g.add(asm.And.Imm(pool[0], 1))
	if at, ok := g.lay.valid[h]; ok {
		g.add(asm.StoreMem(rState, int16(at), pool[0], asm.DWord))
	}
}
