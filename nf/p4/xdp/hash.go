package xdp

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// crc is a cyclic redundancy check of which the program has tables: reflected, and begun and ended with the same bits.
type crc struct {
	at    int    // of its tables, in bytes
	flip  uint64 // the bits that it begins with, and that are turned over at its end
	table func() [256]uint32
}

// crcs are those by their names in the JSON.
var crcs = map[string]crc{
	"crc32": {0, 1<<32 - 1, func() [256]uint32 { return *crc32.IEEETable }},
	"crc16": {crcSize / 2, 0, func() (t [256]uint32) {
		const polynomial = 0x8005
		for i := range t {
			r := uint32(i)
			for range 8 {
				r = r>>1 ^ r&1*uint32(bits.Reverse16(polynomial))
			}
			t[i] = r
		}
		return t
	}},
}

// crcSize is the length of the tables of all.
const crcSize = 2 * 8 * 1024

// crcTables writes them: of each eight, for a byte that so many others come behind.
func crcTables(mem []byte) {
	for _, c := range crcs {
		first := c.table()
		t := first
		for n := range 8 {
			for i, v := range t {
				binary.NativeEndian.PutUint32(mem[c.at+1024*n+4*i:], v)
				t[i] = v>>8 ^ first[v&255]
			}
		}
	}
}

// rTables is where the tables begin, while a hash is computed: in pipelines nobody else has the register.
const rTables = asm.R9

// hash writes modify_field_with_hash_based_offset.
func (g *operator) hash(op *ir.Call) {
	h := &g.p.Hashes[op.Args[2].Object]
	base, known := op.Args[1].Expr.Word()
	size, sized := op.Args[3].Expr.Word()
	if !known || !sized || !small(base) {
		unsupported("hash %s has bounds that are not known before", h.Name)
	}
	g.hashOf(h)
	g.with(asm.Mov, asm.R1, asm.R4)
	g.modulo(asm.R1, max(1, size))
	if base != 0 {
		g.calc(asm.Add, asm.R1, int(base))
	}
	g.store(op.Args[0].Expr)
}

// hashOf leaves the hash of the inputs in R4. It changes R0 to R5 and rTables.
func (g *operator) hashOf(h *ir.Hash) {
	c, ok := crcs[h.Algorithm]
	switch {
	case g.in == "":
		unsupported("it computes a hash in the parser")
	case !ok || h.Payload:
		unsupported("hash %s is none of headers by crc16 or crc32", h.Name)
	}
	g.add(asm.LoadMapValue(rTables, g.maps.crc, uint32(c.at)))
	g.calc(asm.Mov, asm.R2, 0)
	inputs := g.u.fieldsOf(h.Inputs)
	begin, n := c.begin(inputs)
	g.imm(asm.R4, begin)
	wait := waiting{}
	for inputs = inputs[n:]; len(inputs) > 0; {
		of := headerOf(&inputs[0])
		n, bits := 0, 0
		for n < len(inputs) && headerOf(&inputs[n]) == of {
			bits += inputs[n].Bits
			n++
		}
		gone := g.fresh()
		if of != nil { // what waits must not depend on its validity
			if wait.bits%8 != 0 || bits%8 != 0 && n < len(inputs) {
				unsupported("hash %s: where a byte begins depends on the validity of header %s", h.Name, of.Name)
			}
			g.flush(&wait)
			g.readValid(of, asm.R1)
			g.whenImm(asm.JEq, asm.R1, 0, gone)
		}
		for i := range inputs[:n] {
			g.hashInput(&inputs[i], &wait)
		}
		if of != nil {
			g.flush(&wait)
		}
		g.label(gone)
		inputs = inputs[n:]
	}
	g.flush(&wait)
	g.imm(asm.R0, c.flip)
	g.with(asm.Xor, asm.R4, asm.R0)
}

// fieldsOf returns inputs with their widths, and the fields of headers in the place of the headers. Headers that are never valid do not count.
func (u *usage) fieldsOf(inputs []ir.Input) (all []ir.Input) {
	add := func(f *ir.Field) {
		if f.Header.Meta || u.may[f.Header] {
			all = append(all, ir.Input{Field: f, Bits: f.Bits})
		}
	}
	for _, in := range inputs {
		switch {
		case in.Header != nil:
			for _, f := range in.Header.Fields {
				add(f)
			}
		case in.Field != nil:
			add(in.Field)
		default:
			all = append(all, in)
		}
	}
	return all
}

// headerOf returns the header of an input that may be invalid; nil: the input is always there.
func headerOf(in *ir.Input) *ir.Header {
	if in.Field == nil || in.Field.Header.Meta {
		return nil
	}
	return in.Field.Header
}

// hashInput takes an input into a hash.
func (g *operator) hashInput(in *ir.Input, wait *waiting) {
	for w := (in.Bits+63)/64 - 1; w >= 0; w-- {
		n := min(64, in.Bits-64*w)
		if in.Field == nil {
			g.imm(asm.R3, in.Value[w]&ones(n))
		} else {
			g.readField(in.Field, w, asm.R3)
		}
		g.hashed(n, wait)
	}
}

// flush takes what waits into the hash in R4: whole bytes, the last one filled up with zeros. It changes R0, R1, R2 and R5.
func (g *operator) flush(wait *waiting) {
	if wait.half {
		g.hashBytes(4)
	}
	have := wait.bits
	if pad := -have & 7; pad > 0 {
		g.calc(asm.LSh, asm.R2, pad)
		have += pad
	}
	for ; have > 0; have -= 8 { // byte by byte
		g.with(asm.Mov, asm.R1, asm.R2)
		if have > 8 {
			g.calc(asm.RSh, asm.R1, have-8)
		}
		g.with(asm.Xor, asm.R1, asm.R4)
		g.calc(asm.And, asm.R1, 255)
		g.calc(asm.LSh, asm.R1, 2)
		g.with(asm.Add, asm.R1, rTables)
		g.get32(asm.R1, asm.R1, 0)
		g.calc(asm.RSh, asm.R4, 8)
		g.with(asm.Xor, asm.R4, asm.R1)
	}
	*wait = waiting{}
}

// begin is the hash of the first inputs, as far as they are numbers of 64 bits, and how many these are.
func (c *crc) begin(inputs []ir.Input) (hash uint64, n int) {
	table := c.table()
	hash = c.flip
	for n < len(inputs) && inputs[n].Field == nil && inputs[n].Header == nil && inputs[n].Bits == 64 {
		for _, b := range binary.BigEndian.AppendUint64(nil, inputs[n].Value[0]) {
			hash = hash>>8 ^ uint64(table[byte(hash)^b])
		}
		n++
	}
	return hash, n
}

// waiting is what waits to be hashed: bits in R2, and half of eight bytes, which R4 has already.
type waiting struct {
	bits int
	half bool
}

// hashed takes n bits in R3, which has no others, into a hash. R4 is the hash so far. It changes R0, R1 and R5.
func (g *operator) hashed(n int, wait *waiting) {
	have, whole := wait.bits, n
	for n > 0 {
		part := min(n, 32)
		g.with(asm.Mov, asm.R1, asm.R3)
		if n > part {
			g.calc(asm.RSh, asm.R1, n-part)
		}
		if n < whole {
			g.and(asm.R1, ones(part))
		}
		if have == 0 {
			g.with(asm.Mov, asm.R2, asm.R1)
		} else {
			g.calc(asm.LSh, asm.R2, part)
			g.with(asm.Or, asm.R2, asm.R1)
		}
		n, have = n-part, have+part
		if have < 32 {
			continue
		}
		have -= 32
		g.with(asm.Mov, asm.R1, asm.R2)
		if have > 0 {
			g.calc(asm.RSh, asm.R1, have)
		}
		g.and(asm.R2, ones(have))
		g.add(asm.HostTo(asm.BE, asm.R1, asm.Word))
		if wait.half {
			g.calc(asm.LSh, asm.R1, 32)
		}
		g.with(asm.Xor, asm.R4, asm.R1)
		if wait.half {
			g.hashBytes(8)
		}
		wait.half = !wait.half
	}
	wait.bits = have
}

// hashBytes has R4, the hash and so many bytes added to it, become the hash behind these. It changes R0, R1 and R5.
func (g *operator) hashBytes(n int) {
	for j := range n {
		at, sum := asm.R5, asm.R0
		if j%2 == 1 {
			sum = asm.R1 // two sums wait less for each other
		}
		g.with(asm.Mov, at, asm.R4)
		if shift := int32(8*j - 2); shift < 0 {
			g.calc(asm.LSh, at, int(-shift))
		} else {
			g.calc(asm.RSh, at, int(shift))
		}
		g.calc(asm.And, at, 255<<2)
		g.with(asm.Add, at, rTables)
		if j < 2 {
			g.load(sum, at, 1024*(n-1-j), asm.Word)
		} else {
			g.load(at, at, 1024*(n-1-j), asm.Word)
			g.with(asm.Xor, sum, at)
		}
	}
	g.with(asm.Xor, asm.R0, asm.R1)
	g.with(asm.Mov, asm.R4, asm.R0)
}

// modulo divides r, and leaves what is left. It changes R0.
func (g *operator) modulo(r asm.Register, n uint64) {
	if n&(n-1) == 0 {
		g.and(r, n-1)
		return
	}
	g.imm(asm.R0, n)
	g.with(asm.Mod, r, asm.R0)
}

// store stores the number in R1 in a field.
func (g *computer) store(dst *ir.Expr) {
	if dst.Op != ir.FieldOf || dst.Field == nil {
		unsupported("it assigns to an element of a header stack, to a validity or to a register")
	}
	f := dst.Field
	switch {
	case f.Bits > 64:
		unsupported("it stores a result in a field of more than 64 bits")
	case f.Header.Meta && !g.u.read[f]:
		g.next.written[f] = true
		return // nobody reads it
	}
	if f.Saturate {
		top, fits := ones(f.Bits), g.fresh()
		if f.Signed {
			top >>= 1
		}
		g.imm(asm.R0, top)
		g.compareRegs(asm.JLE, asm.R1, asm.R0, fits)
		g.with(asm.Mov, asm.R1, asm.R0)
		g.label(fits)
	}
	g.and(asm.R1, ones(f.Bits))
	g.writeField(f, 0, asm.R1)
}
