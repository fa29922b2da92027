package xdp

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Fields of variable length. The parser moves rData behind such a field, so that all that comes later is at a constant distance from
// rData again, and counts its bytes in the word atShift. The field's bytes stay in the frame: the kernel finishes the frame if its headers
// leave where they came, or if the header with the field leaves no more. Otherwise the engine has the frame.

// maxShift is how many bytes of fields of variable length a frame may have. With maxParsed it keeps places below maxPlace.
const maxShift = 2048

// whyVariable is why a frame goes to the engine whose headers move.
const whyVariable = "a header with a field of variable length moves"

// parsedTo ends the parser at an offset.
func (g *parsing) parsedTo(at int) {
	g.put(atParsed, g.placed(at, true))
	g.jump("parsed")
}

// placed leaves an offset in the frame in R1, for at bytes behind rData as it would be without fields of variable length. It changes R1.
func (g *parsing) placed(at int, shift bool) asm.Register {
	g.imm(asm.R1, 0)
	if shift {
		g.get(asm.R1, atShift)
	}
	g.calc(asm.Add, asm.R1, at)
	return asm.R1
}

// extractVariable extracts a header whose last field has a length that is computed.
func (g *parsing) extractVariable(op *ir.Call, s instance) instance {
	h := op.Header
	if h == nil {
		unsupported("it extracts a field of variable length into a stack")
	}
	f := h.Fields[len(h.Fields)-1]
	if !f.Varbit || h.Bits%8 != 0 {
		unsupported("header %s has a field of variable length in front of others", h.Name)
	}
	whole, enough, room, fits := g.fresh(), g.fresh(), g.fresh(), g.fresh()
	// The errors are asked in the engine's order.
	g.value(index(op.Args[0].Expr), 0)
	g.with(asm.Mov, asm.R2, asm.R1)
	g.calc(asm.And, asm.R2, 7)
	g.whenImm(asm.JEq, asm.R2, 0, whole)
	g.parseFails(g.p.InvalidArgument, s.at)
	g.label(whole)
	g.calc(asm.RSh, asm.R1, 3)
	g.put(atList, asm.R1) // need changes R1
	g.need(s.at, h.Bits/8, s.at)
	g.get(asm.R1, atList)
	g.with(asm.Mov, asm.R2, rEnd)
	g.with(asm.Sub, asm.R2, rData)
	g.calc(asm.Sub, asm.R2, s.at+h.Bits/8)
	g.compareRegs(asm.JLE, asm.R1, asm.R2, enough)
	g.parseFails(g.p.TooShort, s.at)
	g.label(enough)
	g.whenImm(asm.JLE, asm.R1, f.Bits/8, fits)
	g.parseFails(g.p.HeaderTooShort, s.at)
	g.label(fits)
	g.get(asm.R2, atShift)
	g.with(asm.Add, asm.R2, asm.R1)
	g.whenImm(asm.JLE, asm.R2, maxShift, room)
	g.pass("the frame has many bytes in fields of variable length")
	g.label(room)
	g.extract(h, s)
	g.copyVariable(h, f, s)
	g.get(asm.R1, atList)
	if at, ok := g.lay.extra[h]; ok {
		g.put(at, asm.R1)
	}
	g.get(asm.R2, atShift)
	g.with(asm.Add, asm.R2, asm.R1)
	g.put(atShift, asm.R2)
	g.movedBy(min(f.Bits/8, maxShift))
	s.at, s.last, s.idle, s.shift = s.at+h.Bits/8, h, 0, true
	return s
}

// maxSummed is the longest field of variable length that a checksum covers, in bytes.
const maxSummed = 64

// copyVariable copies the bytes of a field of variable length for checksums. Their number is in atList.
func (g *parsing) copyVariable(h *ir.Header, f *ir.Field, s instance) {
	at, ok := g.lay.tail[h]
	if !ok {
		return
	}
	all, words := g.fresh(), g.fresh()
	for i := 0; i < f.Bits; i += 64 {
		g.set(at+i/8, 0)
	}
	g.get(asm.R2, atList)
	g.add(asm.JSet.Imm(asm.R2, 3, words))
	for i := 0; i+4 <= f.Bits/8; i += 4 {
		from := s.at + h.Bits/8 + i
		g.whenImm(asm.JLE, asm.R2, i, all)
		g.with(asm.Mov, asm.R1, rData)
		g.calc(asm.Add, asm.R1, from+4)
		g.compareRegs(asm.JGT, asm.R1, rEnd, all) // cannot be, but the kernel does not know
		g.copyBytes(rState, at+i, rData, from, 4)
	}
	g.jump(all)
	g.label(words)
	g.pass("a checksum covers a field of variable length that does not end with 32 bits")
	g.label(all)
}

// sumVariable adds a field of variable length to R1. It changes R3.
func (g *deparsing) sumVariable(f *ir.Field, pos int, last bool) {
	h := f.Header
	if pos != 0 || !last || f != h.Fields[len(h.Fields)-1] || f.Bits > 8*maxSummed || f.Bits%32 != 0 {
		unsupported("a checksum covers field %s of variable length in front of others, or of more than %d bytes", fieldName(f), maxSummed)
	}
	g.next.read[f] = true
	for i := 0; i < f.Bits/8; i += 4 {
		g.load(asm.R3, rState, g.lay.tail[h]+i, asm.Word)
		g.with(asm.Add, asm.R1, asm.R3)
	}
}

// movedBy adds R1, which is at most some number, to rData.
func (g *parsing) movedBy(most int) {
	ok := g.fresh()
	g.whenImm(asm.JLE, asm.R1, most, ok)
	g.jump("lost") // cannot be, but the kernel does not know
	g.label(ok)
	g.with(asm.Add, rData, asm.R1)
}

// stays has a frame go to the engine if a header with a field of variable length would be written anew. It changes R1.
func (g *deparsing) stays(all []*ir.Header) {
	for i, h := range all {
		at, ok := g.lay.extra[h]
		if !ok || slices.Contains(all[:i], h) {
			continue
		}
		gone := g.fresh()
		g.readValid(h, asm.R1)
		g.whenImm(asm.JEq, asm.R1, 0, gone)
		g.get(asm.R1, at)
		g.whenImm(asm.JEq, asm.R1, 0, gone)
		g.pass(whyVariable)
		g.label(gone)
	}
}

// clearTail makes a field of variable length empty for checksums.
func (g *emitter) clearTail(h *ir.Header) {
	if at, ok := g.lay.tail[h]; ok {
		for i := 0; i < h.Fields[len(h.Fields)-1].Bits; i += 64 {
			g.set(at+i/8, 0)
		}
	}
}

// lengthExtra takes the bytes of a header's field of variable length off packet_length. It changes R1 and R2.
func (g *emitter) lengthExtra(h *ir.Header) {
	if at, ok := g.lay.extra[h]; ok {
		g.get(asm.R1, atLength)
		g.get(asm.R2, at)
		g.with(asm.Sub, asm.R1, asm.R2)
		g.put(atLength, asm.R1)
	}
}
