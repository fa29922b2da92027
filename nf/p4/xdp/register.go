package xdp

import (
	"runtime"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// The registers are in memory that the program and the Switch share. One frame at a time may use them, as in
// bmv2: a word says whether they are taken. The program takes them before the first action that uses registers,
// and gives them back when the frame has come to its end. If the frame goes to the engine, the program first
// undoes what the frame has written. If the word stays taken, the program gives the frame to the engine, which
// waits for the word.

// tries is how often the program checks whether the registers are free. That takes about half a microsecond.
const tries = 32

// written is a place where an action writes a register. The state keeps the cell and its old value until the
// frame's end.
type written struct {
	register  int
	cell, old int // offsets in the state
	bit       int // says that it was done
}

// usesRegisters reports whether a primitive reads or writes a register.
func usesRegisters(op *ir.Call) bool {
	return op.Name == "register_read" || op.Name == "register_write"
}

// takeRegisters takes the registers, unless the frame has them.
func (g *emitter) takeRegisters() {
	have, got, again := g.fresh(), g.fresh(), g.fresh()
	g.next.registers = true
	g.get(asm.R1, atTaken)
	g.whenImm(asm.JNE, asm.R1, 0, have)
	g.address(asm.R5, g.maps.turn)
	g.calc(asm.Mov, asm.R4, tries)
	g.label(again)
	g.calc(asm.Mov, asm.R0, 0)
	g.calc(asm.Mov, asm.R1, 1)
	g.add(atomicOf(asm.CmpXchg, asm.R5, asm.R1))
	g.whenImm(asm.JEq, asm.R0, 0, got)
	g.calc(asm.Sub, asm.R4, 1)
	g.whenImm(asm.JNE, asm.R4, 0, again)
	was := g.where
	g.where = Reason{} // of any action
	g.pass("another frame has the registers for long")
	g.where = was
	g.label(got)
	g.set(atTaken, 1)
	for i := range (g.u.writes + 63) / 64 {
		g.set(g.lay.written+8*i, 0)
	}
	g.label(have)
}

// atomicOf returns an atomic operation on the word at dst. It sets the constant, in which a part of the
// operation's number stands, because asm of version 0.22 writes 0, which means add.
func atomicOf(op asm.AtomicOp, dst, src asm.Register) asm.Instruction {
	ins := op.Mem(dst, src, asm.DWord, 0)
	ins.Constant = int64(op >> 8)
	return ins
}

// freeRegisters gives the registers back if the frame has them.
func (g *emitter) freeRegisters() {
	if !g.next.registers {
		return
	}
	free := g.fresh()
	g.get(asm.R1, atTaken)
	g.whenImm(asm.JEq, asm.R1, 0, free)
	g.address(asm.R5, g.maps.turn)
	g.calc(asm.Mov, asm.R1, 0)
	if runtime.GOARCH == "amd64" { // stores are seen in their order
		g.keep(asm.R5, 0, asm.R1, asm.DWord)
	} else {
		g.add(atomicOf(asm.Xchg, asm.R5, asm.R1))
	}
	g.label(free)
}

// undo restores the old values of registers. It begins with the last write, because of two writes to one cell
// the first knows the original value. g.writes is in the order in which a frame comes to the places.
func (g *emitter) undo() {
	if !g.next.registers {
		return
	}
	end := g.fresh()
	g.get(asm.R1, atTaken)
	g.whenImm(asm.JEq, asm.R1, 0, end)
	for i := len(g.writes) - 1; i >= 0; i-- {
		w := &g.writes[i]
		r := &g.p.Registers[w.register]
		skip := g.fresh()
		g.imm(asm.R2, 1<<(w.bit%64))
		g.get(asm.R1, g.lay.written+w.bit/64*8)
		g.with(asm.And, asm.R1, asm.R2)
		g.whenImm(asm.JEq, asm.R1, 0, skip)
		g.get(asm.R1, w.cell)
		g.whenImm(asm.JGE, asm.R1, r.Size, skip)
		g.cellAt(w.register, asm.R3)
		for k := range r.Words {
			g.get(asm.R0, w.old+8*k)
			g.keep(asm.R3, 8*k, asm.R0, asm.DWord)
		}
		g.label(skip)
	}
	g.label(end)
}

// cellAt loads the address of cell R1 of a register into r. R1 must be below the register's size. It changes
// R0.
func (g *emitter) cellAt(register int, r asm.Register) {
	p := &g.p.Registers[register].Place
	g.with(asm.Mov, asm.R0, asm.R1)
	g.calc(asm.Mul, asm.R0, 8*p.Stride)
	g.add(asm.LoadMapValue(r, g.maps.registers[p.Group], uint32(8*p.At)))
	g.with(asm.Add, r, asm.R0)
}

// register returns the register that a primitive names.
func (g *operator) register(a *ir.Arg) (int, *ir.Registers) {
	r := &g.p.Registers[a.Object]
	switch {
	case g.in == "":
		unsupported("it uses registers in the parser")
	case r.Size*r.Stride > ir.MaxGroup || r.Size == 0 || r.Words > 8:
		unsupported("register %s has %d cells of %d bits", r.Name, r.Size, r.Bits)
	}
	return a.Object, r
}

// readRegister translates register_read. If the index is too large, the destination keeps its value.
func (g *operator) readRegister(op *ir.Call) {
	i, r := g.register(&op.Args[1])
	skip := g.fresh()
	g.value(index(op.Args[2].Expr), 0)
	g.whenImm(asm.JGE, asm.R1, r.Size, skip)
	g.cellAt(i, asm.R2)
	dst := op.Args[0].Expr
	if f := dst.Field; dst.Op == ir.FieldOf && f != nil && f.Bits > 64 {
		if f.Saturate || f.Signed || !f.Header.Meta && (f.BitOff%8 != 0 || f.Bits%8 != 0) {
			unsupported("it reads a register into a field of more than 64 bits that is signed, saturates, or does not begin and end with a byte")
		}
		for w := range (f.Bits + 63) / 64 {
			g.imm(asm.R1, 0)
			if w < r.Words {
				g.load(asm.R1, asm.R2, 8*w, asm.DWord)
			}
			g.and(asm.R1, ones(min(64, f.Bits-64*w)))
			if !f.Header.Meta || g.u.read[f] {
				g.writeField(f, w, asm.R1)
			}
		}
	} else {
		g.load(asm.R1, asm.R2, 0, asm.DWord)
		g.store(dst)
	}
	g.label(skip)
}

// writeRegister translates register_write. If the index is too large, nothing is written.
func (g *operator) writeRegister(op *ir.Call) {
	i, r := g.register(&op.Args[0])
	w := written{register: i, bit: g.next.writes}
	g.next.writes++
	w.cell = g.lay.olds + 8*g.next.olds
	w.old = w.cell + 8
	g.next.olds += 1 + r.Words
	skip := g.fresh()
	g.value(index(op.Args[1].Expr), 0)
	g.whenImm(asm.JGE, asm.R1, r.Size, skip)
	g.put(w.cell, asm.R1)
	for k := range r.Words {
		g.wordAt(op.Args[2].Expr, k, 1)
		g.and(asm.R2, ones(min(64, r.Bits-64*k)))
		g.cellAt(i, asm.R3)
		g.load(asm.R0, asm.R3, 8*k, asm.DWord)
		g.put(w.old+8*k, asm.R0)
		g.keep(asm.R3, 8*k, asm.R2, asm.DWord)
	}
	at := int16(g.lay.written + w.bit/64*8)
	g.imm(asm.R3, 1<<(w.bit%64))
	g.load(asm.R0, rState, int(at), asm.DWord)
	g.with(asm.Or, asm.R0, asm.R3)
	g.keep(rState, int(at), asm.R0, asm.DWord)
	g.label(skip)
	g.writes = append(g.writes, w)
}

// Lock implements ir.Follower: it takes the registers.
func (x *Executor) Lock() {
	if x.turnWord != nil {
		ir.Take(x.turnWord.word(0), uint64(x.owner))
	}
}

// Unlock implements ir.Follower.
func (x *Executor) Unlock() {
	if x.turnWord != nil {
		x.turnWord.store(0, 0)
	}
}

// Registers implements ir.Follower.
func (x *Executor) Registers(group int) (cells []uint64, filled bool) {
	if group >= len(x.registers) || x.registers[group] == nil {
		return nil, false
	}
	return x.registers[group].words(), x.Inherits()
}
