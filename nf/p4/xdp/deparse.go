package xdp

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// deparsing writes checksums, and the headers that leave.
type deparsing struct{ computer }

// checksum leaves csum16 of the inputs in R1. Headers that are invalid count for nothing; sure is one that is valid, or nil. It changes R0 to R5.
//
// A string of 16-bit words has the same sum in either order of their bytes, but for that order (RFC 1071, section 2(B)). So fields that lie side
// by side on the wire are added up as they lie there, in R1, and all others by their values, in R2.
func (g *deparsing) checksum(c *ir.Checksum, sure *ir.Header) {
	if !c.Sum || c.Payload {
		unsupported("checksum %s is none of headers by csum16", c.Name)
	}
	inputs := g.u.fieldsOf(c.Inputs)
	g.calc(asm.Mov, asm.R1, 0)
	g.calc(asm.Mov, asm.R2, 0)
	values := false // R2 has some
	pos := 0        // bits so far, modulo 16
	for len(inputs) > 0 {
		if inputs[0].Field == nil {
			pos, values = g.sumConst(&inputs[0], pos), true
			inputs = inputs[1:]
			continue
		}
		h := inputs[0].Field.Header
		n := slices.IndexFunc(inputs, func(in ir.Input) bool { return in.Field == nil || in.Field.Header != h })
		if n < 0 {
			n = len(inputs)
		}
		run := inputs[:n]
		inputs = inputs[n:]
		gone := g.fresh()
		if !h.Meta && h != sure {
			g.readValid(h, asm.R3)
			g.whenImm(asm.JEq, asm.R3, 0, gone)
		}
		before := pos
		for len(run) > 0 {
			n := g.sumBytes(run, pos)
			if n == 0 {
				n = 1
				if run[0].Field.Varbit {
					g.sumVariable(run[0].Field, pos, len(run)+len(inputs) == 1)
				} else {
					g.sumField(run[0].Field, pos)
					values = true
				}
			}
			for _, in := range run[:n] {
				pos = (pos + in.Field.Bits) % 16
			}
			run = run[n:]
		}
		g.label(gone)
		if pos != before && !h.Meta && h != sure && len(inputs) > 0 {
			unsupported("checksum %s: where a word begins depends on the validity of header %s", c.Name, h.Name)
		}
	}
	g.fold(asm.R1, 5)
	g.swap(asm.R1, 16)
	if values {
		g.fold(asm.R2, 5)
		g.with(asm.Add, asm.R1, asm.R2)
		g.fold(asm.R1, 2)
	}
	g.calc(asm.Xor, asm.R1, 0xffff)
}

// fold adds the 16-bit words of r so many times; it changes R3.
func (g *deparsing) fold(r asm.Register, times int) {
	if times > 2 { // first both halves: what is left has at most 33 bits
		g.with(asm.Mov, asm.R3, r)
		g.calc(asm.RSh, asm.R3, 32)
		g.add(asm.Mov.Reg32(r, r))
		g.with(asm.Add, r, asm.R3)
		times -= 2
	}
	for range times {
		g.with(asm.Mov, asm.R3, r)
		g.calc(asm.RSh, asm.R3, 16)
		g.calc(asm.And, r, 0xffff)
		g.with(asm.Add, r, asm.R3)
	}
}

// sumConst adds a constant to R2 and returns the place behind it.
func (g *deparsing) sumConst(in *ir.Input, pos int) int {
	if in.Bits > 64 {
		unsupported("a checksum covers a constant of more than 64 bits")
	}
	if in.Bits > 0 {
		g.imm(asm.R3, in.Value[0])
		g.sumR3(pos + in.Bits)
	}
	return (pos + in.Bits) % 16
}

// sumR3 adds the number in R3, which ends at bit end of the string, to R2. As 2^16 is 1 modulo 2^16 - 1, both halves count alike.
func (g *deparsing) sumR3(end int) {
	g.with(asm.Mov, asm.R4, asm.R3)
	g.calc(asm.RSh, asm.R4, 32)
	g.add(asm.Mov.Reg32(asm.R3, asm.R3))
	g.with(asm.Add, asm.R3, asm.R4)
	if s := (16 - end%16) % 16; s > 0 {
		g.calc(asm.LSh, asm.R3, s)
	}
	g.with(asm.Add, asm.R2, asm.R3)
}

// sumField adds a field at a place of the string by its value.
func (g *deparsing) sumField(f *ir.Field, pos int) {
	end := pos + f.Bits
	for w := range (f.Bits + 63) / 64 {
		g.readField(f, w, asm.R3)
		g.sumR3(end)
	}
}

// sumBytes adds fields that lie side by side as they are on the wire, to R1, and returns how many.
func (g *deparsing) sumBytes(run []ir.Input, pos int) int {
	f := run[0].Field
	if f.Header.Meta || f.BitOff%8 != 0 || pos != 0 {
		return 0
	}
	n, bits := 0, 0 // those that end at a word of 16 bits
	end := f.BitOff
	for i, in := range run {
		if in.Field.BitOff != end || in.Field.Varbit {
			break
		}
		end += in.Field.Bits
		if (end-f.BitOff)%16 == 0 {
			n, bits = i+1, end-f.BitOff
		}
	}
	at := g.bytesOf(f.Header) + f.BitOff/8
	for _, in := range run[:n] {
		g.next.read[in.Field] = true
	}
	for bits > 0 {
		w := min(bits, 32)
		g.load(asm.R3, rState, at, sizes[w])
		g.with(asm.Add, asm.R1, asm.R3)
		at, bits = at+w/8, bits-w
	}
	return n
}

// verifyChecksums notes in the state whether one is wrong.
func (g *deparsing) verifyChecksums() {
	for i := range g.p.Verify {
		c := &g.p.Verify[i]
		done := g.about("checksum", c.Name)
		right := g.fresh()
		if !c.Field.Header.Meta {
			g.readValid(c.Field.Header, asm.R1)
			g.whenImm(asm.JEq, asm.R1, 0, right)
		}
		g.when(c, right)
		g.part(func() {
			g.checksum(c, c.Field.Header)
			g.with(asm.Mov, asm.R4, asm.R1)
			g.readField(c.Field, 0, asm.R2)
			g.compareRegs(asm.JEq, asm.R4, asm.R2, right)
			g.set(atBad, 1)
		})
		g.label(right)
		done()
	}
}

// when jumps when a checksum's condition does not hold.
func (g *deparsing) when(c *ir.Checksum, not string) {
	if c.When != nil {
		g.part(func() { g.branch(c.When, false, not, 0) })
	}
}

// asked is the header that is valid when a condition holds, if the condition is just that; else nil.
func asked(e *ir.Expr) *ir.Header {
	switch {
	case e == nil:
		return nil
	case e.Op == ir.Valid && e.Kids[0].Op == ir.HeaderOf:
		return e.Kids[0].Header
	case e.Op == ir.ToBool && e.Kids[0].Op == ir.FieldOf && e.Kids[0].Field == nil:
		return e.Kids[0].Header
	}
	return nil
}

func (g *deparsing) updateChecksums() {
	for i := range g.p.Update {
		c := &g.p.Update[i]
		if !c.Field.Header.Meta && !g.u.may[c.Field.Header] {
			continue
		}
		done := g.about("checksum", c.Name)
		not := g.fresh()
		g.when(c, not)
		g.part(func() {
			g.checksum(c, asked(c.When))
			g.and(asm.R1, ones(c.Field.Bits))
			g.writeField(c.Field, 0, asm.R1)
		})
		g.label(not)
		done()
	}
}

// leaving are the headers that may leave.
func (g *deparsing) leaving() []*ir.Header {
	return slices.DeleteFunc(slices.Clone(g.p.Deparse), func(h *ir.Header) bool { return !g.u.may[h] })
}

// deparse writes the headers that leave in front of the payload. When they leave at other places than those at which they came, all are written
// anew, behind each other; else those that were changed, where they came.
func (g *deparsing) deparse() {
	out, moved := "headers-out", "headers-moved"
	if g.u.moves {
		g.get(asm.R1, atMoved)
		g.whenImm(asm.JNE, asm.R1, 0, moved)
	}
	g.rewrite()
	if g.u.moves {
		g.jump(out)
		g.label(moved)
		g.part(g.write)
	}
	g.label(out)
}

// write writes all headers.
func (g *deparsing) write() {
	all := g.leaving()
	g.stays(all)
	total := 0
	g.imm(asm.R1, 0)
	for _, h := range all {
		g.bytesOf(h)
		g.readValid(h, asm.R2)
		g.calc(asm.Mul, asm.R2, h.Bits/8)
		g.with(asm.Add, asm.R1, asm.R2)
		total += h.Bits / 8
	}
	if total >= 1<<12 {
		unsupported("the headers have %d bytes", total)
	}
	same, moved := g.fresh(), g.fresh()
	g.get(asm.R2, atParsed)
	g.get(asm.R3, atArrived)
	g.with(asm.Sub, asm.R3, asm.R2)
	g.with(asm.Add, asm.R3, asm.R1)
	g.fits(asm.R3)
	g.compareRegs(asm.JEq, asm.R1, asm.R2, same)
	g.with(asm.Sub, asm.R2, asm.R1)
	g.with(asm.Mov, asm.R1, rCtx)
	g.add(asm.FnXdpAdjustHead.Call())
	g.whenImm(asm.JEq, asm.R0, 0, moved)
	g.pass("there is no room for longer headers, or too little is left")
	g.label(moved)
	g.label(same)
	g.frame()
	g.set(atOut, 0)
	for _, h := range all {
		gone, room := g.fresh(), g.fresh()
		g.readValid(h, asm.R1)
		g.whenImm(asm.JEq, asm.R1, 0, gone)
		g.get(asm.R3, atOut)
		g.calc(asm.And, asm.R3, 1<<12-1)
		g.with(asm.Mov, asm.R4, asm.R3)
		g.calc(asm.Add, asm.R4, h.Bits/8)
		g.put(atOut, asm.R4)
		g.with(asm.Add, asm.R3, rData)
		g.with(asm.Mov, asm.R2, asm.R3)
		g.calc(asm.Add, asm.R2, h.Bits/8)
		g.compareRegs(asm.JLE, asm.R2, rEnd, room)
		g.jump("lost")
		g.label(room)
		g.copyBytes(asm.R3, 0, rState, g.lay.bytes[h], h.Bits/8)
		g.label(gone)
	}
}

// fits goes on when the port sends frames of so many bytes: the kernel would drop a longer one in silence. It changes R4.
func (g *deparsing) fits(length asm.Register) {
	ok := g.fresh()
	g.get(asm.R4, atLongest)
	g.compareRegs(asm.JLE, length, asm.R4, ok)
	g.pass("it is longer than its port sends")
	g.label(ok)
}

// rewrite writes the headers that were changed where they came from.
func (g *deparsing) rewrite() {
	g.get(asm.R3, atArrived)
	g.fits(asm.R3)
	g.frame()
	for _, h := range g.leaving() {
		at, ok := g.lay.dirty[h]
		if _, found := g.u.at[h]; !ok || !found {
			continue
		}
		clean, room := g.fresh(), g.fresh()
		g.get(asm.R1, at)
		g.whenImm(asm.JEq, asm.R1, 0, clean)
		g.readValid(h, asm.R1)
		g.whenImm(asm.JEq, asm.R1, 0, clean)
		from, off, n := rData, g.u.at[h], h.Bits/8
		if at, ok := g.lay.place[h]; ok {
			from, off = asm.R3, 0
			g.get(asm.R3, at)
			g.calc(asm.And, asm.R3, maxPlace-1)
			g.with(asm.Add, asm.R3, rData)
		}
		g.with(asm.Mov, asm.R2, from)
		g.calc(asm.Add, asm.R2, off+n)
		g.compareRegs(asm.JLE, asm.R2, rEnd, room)
		g.jump("lost")
		g.label(room)
		g.copyBytes(from, off, rState, g.bytesOf(h), n)
		g.label(clean)
	}
}

// frame loads where the frame begins and ends.
func (g *emitter) frame() {
	g.get32(rData, rCtx, 0)
	g.get32(rEnd, rCtx, 4)
}
