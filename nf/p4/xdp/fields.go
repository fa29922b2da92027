package xdp

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Metadata are words of the state. A header lies there as it was on the wire, so that a field is read by a load, a swap of bytes and shifts, and
// a header leaves as it lies there.

func ones(bits int) uint64 {
	if bits >= 64 {
		return ^uint64(0)
	}
	return 1<<uint(bits) - 1
}

// sizes are the loads and stores of so many bits.
var sizes = map[int]asm.Size{8: asm.Byte, 16: asm.Half, 32: asm.Word, 64: asm.DWord}

// swap turns a number between the order of the wire and that of the machine.
func (g *emitter) swap(r asm.Register, bits int) {
	if bits > 8 {
		g.add(asm.HostTo(asm.BE, r, sizes[bits]))
	}
}

// bytesOf is where a header's bytes lie.
func (g *emitter) bytesOf(h *ir.Header) int {
	g.next.raw[h] = true
	return g.lay.bytes[h] // 0 in the first pass, whose code is thrown away
}

// readField leaves word i of a field in r: without a sign beyond its bits. It changes R0.
func (g *emitter) readField(f *ir.Field, i int, r asm.Register) {
	if f.Varbit {
		unsupported("field %s has no fixed length", fieldName(f))
	}
	g.next.read[f] = true
	if f == g.p.Std.IngressTime {
		g.next.timed[g.where] = true
	}
	if f.Header.Meta {
		g.load(r, rState, g.lay.fields[f]+8*i, asm.DWord)
		return
	}
	n := min(64, f.Bits-64*i)
	g.readBits(g.bytesOf(f.Header), f.BitOff+f.Bits-64*i-n, n, rState, r)
}

func fieldName(f *ir.Field) string { return f.Header.Name + "." + f.Name }

// readBits reads n bits from bit off on of the bytes at base+at. Up to eight bytes are read that hold them. It changes R0.
func (g *emitter) readBits(at, off, n int, base, r asm.Register) {
	if first := 8 - off/8%8; base == rState && off%8 == 0 && n > 32 && n%8 == 0 && first < n/8 && sizes[8*first] != 0 && sizes[n-8*first] != 0 {
		// The processor waits for bytes that two stores have left, and the parser stores eight bytes at a time.
		g.readBits(at, off, 8*first, base, r)
		g.readBits(at, off+8*first, n-8*first, base, asm.R0)
		g.calc(asm.LSh, r, n-8*first)
		g.with(asm.Or, r, asm.R0)
		return
	}
	at += off / 8
	s := off % 8
	for _, w := range []int{8, 16, 32, 64} {
		if s+n > w {
			continue
		}
		g.load(r, base, at, sizes[w])
		g.swap(r, w)
		if right := w - s - n; right > 0 {
			g.calc(asm.RSh, r, int(right))
		}
		if s > 0 {
			g.and(r, ones(n))
		}
		return
	}
	g.load(r, base, at, asm.DWord)
	g.swap(r, 64)
	g.calc(asm.LSh, r, int(s))
	g.load(asm.R0, base, at+8, asm.Byte)
	g.calc(asm.RSh, asm.R0, int(8-s))
	g.with(asm.Or, r, asm.R0)
	if n < 64 {
		g.calc(asm.RSh, r, int(64-n))
	}
}

// and keeps the bits of a mask that begins at bit 0. It needs no register.
func (g *emitter) and(r asm.Register, mask uint64) {
	switch {
	case mask == ^uint64(0):
	case mask == ones(32):
		g.add(asm.Mov.Reg32(r, r))
	case small(mask):
		g.calc(asm.And, r, int(mask))
	default:
		n := 0
		for mask>>n&1 != 0 {
			n++
		}
		g.calc(asm.LSh, r, int(64-n))
		g.calc(asm.RSh, r, int(64-n))
	}
}

// writeField stores r, which has no bits beyond the field's, as word i of a field. It changes R0, R4, R5 and r.
func (g *emitter) writeField(f *ir.Field, i int, r asm.Register) {
	if f.Varbit {
		unsupported("field %s has no fixed length", fieldName(f))
	}
	g.next.written[f] = true
	if f.Header.Meta {
		if at, ok := g.lay.fields[f]; ok {
			g.keep(rState, at+8*i, r, asm.DWord)
		}
		return
	}
	g.soil(f.Header)
	at := g.bytesOf(f.Header)
	n := min(64, f.Bits-64*i)
	g.writeBits(at, f.BitOff+f.Bits-64*i-n, n, r)
}

// writeBits stores the n bits of r from bit off on of the bytes at a place of the state. It changes R0, R4, R5 and r.
func (g *emitter) writeBits(at, off, n int, r asm.Register) {
	if off%8 == 0 && n%8 == 0 {
		g.writeBytes(at+off/8, n, r)
		return
	}
	s := off % 8
	for _, w := range []int{8, 16, 32, 64} {
		left := w - s - n
		if left < 0 {
			continue
		}
		g.load(asm.R0, rState, at+off/8, sizes[w])
		g.swap(asm.R0, w)
		g.imm(asm.R5, ^(ones(n) << uint(left)))
		g.with(asm.And, asm.R0, asm.R5)
		g.calc(asm.LSh, r, int(left))
		g.with(asm.Or, asm.R0, r)
		g.swap(asm.R0, w)
		g.keep(rState, at+off/8, asm.R0, sizes[w])
		return
	}
	// It lies in nine bytes: the part in the first of them, and the rest.
	first := 8 - s
	g.with(asm.Mov, asm.R4, r)
	g.calc(asm.RSh, asm.R4, int(n-first))
	g.and(r, ones(n-first))
	g.writeBits(at, off, first, asm.R4)
	g.writeBits(at, off+first, n-first, r)
}

// writeBytes stores n bits, whole bytes, at a place of the state, in as few pieces as there are.
func (g *emitter) writeBytes(at, n int, r asm.Register) {
	for n > 0 {
		w := 64
		for w > n {
			w /= 2
		}
		g.with(asm.Mov, asm.R0, r)
		if n > w {
			g.calc(asm.RSh, asm.R0, int(n-w))
		}
		g.swap(asm.R0, w)
		g.keep(rState, at, asm.R0, sizes[w])
		at, n = at+w/8, n-w
	}
}

// soil notes that a header's bytes change.
func (g *emitter) soil(h *ir.Header) {
	if !slices.Contains(g.p.Deparse, h) {
		return
	}
	g.next.dirty[h] = true
	if at, ok := g.lay.dirty[h]; ok {
		g.set(at, 1)
	}
}

// move notes that a header may leave elsewhere than it came, or that one comes or goes.
func (g *emitter) move(h *ir.Header) {
	if h == nil || slices.Contains(g.p.Deparse, h) {
		g.next.moves = true
		g.set(atMoved, 1)
	}
}

// readValid leaves 1 or 0 in r.
func (g *emitter) readValid(h *ir.Header, r asm.Register) {
	at, ok := g.lay.valid[h]
	switch {
	case h.Meta:
		g.imm(r, 1)
	case !ok: // never: or this is the first pass
		g.imm(r, 0)
	default:
		g.load(r, rState, at, asm.DWord)
	}
	g.next.valid[h] = true
}

// setValid makes a header valid, and the others of its union invalid.
func (g *emitter) setValid(h *ir.Header) {
	if h.Meta {
		return
	}
	g.next.may[h] = true
	if at, ok := g.lay.valid[h]; ok {
		g.set(at, 1)
	}
	for _, o := range h.Others {
		g.setInvalid(o)
	}
}

func (g *emitter) setInvalid(h *ir.Header) {
	if at, ok := g.lay.valid[h]; ok {
		g.set(at, 0)
	}
}

// clearBytes makes all fields of a header 0.
func (g *emitter) clearBytes(h *ir.Header) {
	at, ok := g.lay.bytes[h]
	for i := 0; ok && i < h.Bits; i += 64 {
		g.set(at+i/8, 0)
	}
}

// copyBytes copies n bytes from one place to another. It changes R0.
func (g *emitter) copyBytes(to asm.Register, toAt int, from asm.Register, fromAt, n int) {
	for at := 0; at < n; {
		w := 8
		for w > n-at {
			w /= 2
		}
		g.load(asm.R0, from, fromAt+at, sizes[8*w])
		g.keep(to, toAt+at, asm.R0, sizes[8*w])
		at += w
	}
}

// storeStd stores a constant in a field that the architecture writes; nil, or one that nobody reads: nothing.
func (g *emitter) storeStd(f *ir.Field, v uint64) {
	if f == nil {
		return
	}
	if at, ok := g.lay.fields[f]; ok {
		g.imm(asm.R1, v&ones(f.Bits))
		g.keep(rState, at, asm.R1, asm.DWord)
	}
}

// storeStdReg stores a register there. It changes the register.
func (g *emitter) storeStdReg(f *ir.Field, r asm.Register) {
	if f == nil {
		return
	}
	if at, ok := g.lay.fields[f]; ok {
		g.and(r, ones(f.Bits))
		g.keep(rState, at, r, asm.DWord)
	}
}
