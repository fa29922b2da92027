package p4

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"slices"
)

// input is a part of the data that a calculation hashes.
type input struct {
	hdr   *header // one field of the header, or all of it if fld is nil
	fld   *field
	value []uint64 // a constant; nil: a field or a header
	bits  int
}

// calculation is a hash of fields, constants and the payload.
type calculation struct {
	name    string
	index   int // index in Switch.hashes; -1: none
	inputs  []input
	payload bool
	hash    func(b []byte) uint64
	sum     bool // hash is csum16, which needs no bytes
	runs    []sumRun
	planned int // number of inputs that runs add up
}

// sumRun is a run of checksum inputs that are all fields of one header, or all constants.
type sumRun struct {
	base  int // base of the header; -1: constants
	parts []sumPart
	fixed uint64 // sum of the constants
	bits  uint
}

// sumPart is a field that is added after it was shifted to the left.
type sumPart struct {
	off   uint32 // word, from the header's base
	shift uint8
	wide  bool // more than 32 bits
}

// planSum plans the sum of the inputs before the first one whose place is not known, or that is wider than a
// word.
func (c *calculation) planSum() {
	pos := uint(0)
	for i := 0; i < len(c.inputs); {
		run, j := sumRun{base: -1}, i
		for ; j < len(c.inputs); j++ {
			in := &c.inputs[j]
			if in.hdr == nil {
				if j > i || in.bits > 64 {
					break
				}
				var s summer
				s.pos = pos
				s.addWide(in.value, in.bits)
				run.fixed, run.bits = s.sum, uint(in.bits)
				j++
				break
			}
			if run.base >= 0 && run.base != in.hdr.base {
				break
			}
			fields := in.hdr.typ.fields
			if in.fld != nil {
				fields = []*field{in.fld}
			}
			if slices.ContainsFunc(fields, func(f *field) bool { return f.varbit || f.bits > 64 }) {
				break
			}
			run.base = in.hdr.base
			for _, f := range fields {
				run.bits += uint(f.bits)
				run.parts = append(run.parts, sumPart{uint32(f.off), uint8(-(pos + run.bits) & 15), f.bits > 32})
			}
		}
		if j == i || len(run.parts) > 1<<12 {
			return
		}
		c.runs, c.planned = append(c.runs, run), j
		i, pos = j, pos+run.bits
		if run.bits%16 != 0 {
			return // where the next begins depends on the header's validity
		}
	}
}

// summer adds up the 16-bit words of a bit string, modulo 2^16 - 1.
type summer struct {
	sum uint64
	pos uint // bits so far
}

// add appends the lowest n <= 64 bits of v, whose other bits must be 0. Because 2^16 is 1 modulo 2^16 - 1, only
// the position in a 16-bit word at which the number ends matters.
func (s *summer) add(v uint64, n uint) {
	s.pos += n
	s.sum += (v>>32 + v&0xffffffff) << (-s.pos & 15)
	s.sum = s.sum>>48 + s.sum&(1<<48-1)
}

func (s *summer) addWide(v []uint64, n int) {
	for n > 0 {
		i := (n - 1) / 64
		part := n - 64*i
		s.add(v[i]&mask64(part), uint(part))
		n -= part
	}
}

// checksum returns csum16 of the inputs.
func (c *calculation) checksum(k *packetState) uint64 {
	var s summer
	for i := range c.runs {
		r := &c.runs[i]
		if r.base >= 0 {
			v := k.v[r.base:]
			if v[0] == 0 {
				continue
			}
			sum := uint64(0)
			for j := range r.parts {
				p := &r.parts[j]
				x := v[p.off]
				if p.wide {
					x = x>>32 + x&0xffffffff
				}
				sum += x << (p.shift & 15)
			}
			s.sum += sum>>32 + sum&0xffffffff
		} else {
			s.sum += r.fixed
		}
		s.pos += r.bits
	}
	for i := c.planned; i < len(c.inputs); i++ {
		in := &c.inputs[i]
		switch {
		case in.hdr == nil:
			s.addWide(in.value, in.bits)
		case k.v[in.hdr.base] == 0:
		case in.fld != nil:
			s.addField(k, in.fld, in.hdr.base)
		default:
			for _, f := range in.hdr.typ.fields {
				s.addField(k, f, in.hdr.base)
			}
		}
	}
	s.pos = (s.pos + 7) &^ 7
	if c.payload {
		p := k.payload()
		v := ^csum16(p) & 0xffff
		s.pos += uint(16 * ((len(p) + 1) / 2))
		s.sum += v << (-s.pos & 15)
	}
	for s.sum>>16 != 0 {
		s.sum = s.sum>>16 + s.sum&0xffff
	}
	return ^s.sum & 0xffff
}

func (s *summer) addField(k *packetState, f *field, base int) {
	switch at := base + f.off; {
	case f.varbit:
		s.addWide(k.v[at:at+words(f.bits)], int(k.v[base+f.lengthOff]))
	case f.bits <= 64:
		s.add(k.v[at], uint(f.bits))
	default:
		s.addWide(k.v[at:at+words(f.bits)], f.bits)
	}
}

// output returns the hash of the packet's inputs. Fields of invalid headers are left out.
func (c *calculation) output(k *packetState) uint64 {
	if c.sum {
		return c.checksum(k)
	}
	w := bitWriter{b: k.sw.buf[:0]}
	for i := range c.inputs {
		in := &c.inputs[i]
		switch {
		case in.hdr == nil:
			w.putWide(in.value, in.bits)
		case k.v[in.hdr.base] == 0:
		case in.fld == nil:
			w.putHeader(k, in.hdr.typ, in.hdr.base)
		case in.fld.varbit:
			at := in.hdr.base + in.fld.off
			w.putWide(k.v[at:at+words(in.fld.bits)], int(k.v[in.hdr.base+in.fld.lengthOff]))
		case in.fld.bits <= 64:
			w.put(k.v[in.hdr.base+in.fld.off], uint(in.fld.bits))
		default:
			at := in.hdr.base + in.fld.off
			w.putWide(k.v[at:at+words(in.fld.bits)], in.fld.bits)
		}
	}
	w.flush()
	if c.payload {
		w.b = append(w.b, k.payload()...)
	}
	k.sw.buf = w.b
	if c.index >= 0 && k.sw.hashes[c.index] != nil {
		return k.sw.hashes[c.index](w.b)
	}
	return c.hash(w.b)
}

// payload returns the bytes after the parsed headers.
func (k *packetState) payload() []byte {
	p := k.frame[k.at:]
	return p[:min(len(p), k.truncate)]
}

// checksum is a field that is verified after the parser, or written before the deparser.
type checksum struct {
	name string
	hdr  *header
	fld  *field
	calc *calculation
	when testFn // nil: always
}

func (s *Switch) verifyChecksums(k *packetState) {
	for i, c := range s.prog.verify {
		if k.v[c.hdr.base] == 0 || c.when != nil && !c.when(k) {
			continue
		}
		right := c.calc.output(k) == k.v[c.hdr.base+c.fld.off]
		if !right {
			k.badChecksum = true
		}
		s.event(EventVerify, i, b2u(right))
	}
}

func (s *Switch) updateChecksums(k *packetState) {
	for i, c := range s.prog.update {
		if c.when == nil || c.when(k) {
			s.event(EventUpdate, i, 0)
			k.v[c.hdr.base+c.fld.off] = c.calc.output(k) & mask64(c.fld.bits)
		}
	}
}

// CRC is a cyclic redundancy check, with the parameters of the catalogues of CRCs: width, polynomial, initial
// value, final exclusive or, and reflections.
type CRC struct {
	Bits                       int // 8, 16, 32 or 64
	Polynomial, Initial, Final uint64
	ReflectIn, ReflectOut      bool
}

var (
	crc16    = CRC{16, 0x8005, 0, 0, true, true}
	crcCCITT = CRC{16, 0x1021, 0xffff, 0, false, false}
	// The custom CRCs have the initial parameters that they have in bmv2.
	customCRCs = map[string]CRC{
		"crc8_custom":  {8, 0x07, 0, 0, false, false},
		"crc16_custom": crc16,
		"crc32_custom": {32, 0x04c11db7, 0xffffffff, 0xffffffff, true, true},
		"crc64_custom": {64, 0x1b, 0, 0, true, true},
	}
)

// hash returns a function that computes the CRC byte by byte, with a table of remainders.
func (c CRC) hash() func(b []byte) uint64 {
	up := uint(64 - c.Bits) // remainders stand at the left
	var table [256]uint64
	for i := range table {
		r := uint64(i) << 56
		for range 8 {
			top := r >> 63
			r = r<<1 ^ top*(c.Polynomial<<up)
		}
		table[i] = r
	}
	return func(b []byte) uint64 {
		r := c.Initial << up
		for _, x := range b {
			if c.ReflectIn {
				x = bits.Reverse8(x)
			}
			r = r<<8 ^ table[byte(r>>56)^x]
		}
		if c.ReflectOut {
			r = bits.Reverse64(r)
		} else {
			r >>= up
		}
		return r ^ c.Final
	}
}

// algorithm returns the hash with a name of the JSON, or nil if there is none.
func algorithm(name string) func(b []byte) uint64 {
	if c, ok := customCRCs[name]; ok && name != "crc32_custom" {
		return c.hash()
	}
	switch name {
	case "crc16":
		return crc16.hash()
	case "crcCCITT":
		return crcCCITT.hash()
	case "crc32", "crc32_custom":
		return func(b []byte) uint64 { return uint64(crc32.ChecksumIEEE(b)) }
	case "csum16", "cksum16":
		return csum16
	case "xor16":
		return xor16
	case "xor32":
		return xor32
	case "identity":
		return identity
	}
	return nil
}

// csum16 is the Internet checksum (RFC 1071).
func csum16(b []byte) uint64 {
	var sum uint64
	for ; len(b) >= 4; b = b[4:] {
		sum += uint64(binary.BigEndian.Uint32(b))
	}
	if len(b) >= 2 {
		sum += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		sum += uint64(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^sum & 0xffff
}

func xor16(b []byte) uint64 {
	var v uint16
	for ; len(b) >= 2; b = b[2:] {
		v ^= binary.BigEndian.Uint16(b)
	}
	if len(b) > 0 {
		v ^= uint16(b[0]) << 8
	}
	return uint64(v)
}

func xor32(b []byte) uint64 {
	var v uint32
	for ; len(b) >= 4; b = b[4:] {
		v ^= binary.BigEndian.Uint32(b)
	}
	for i, x := range b {
		v ^= uint32(x) << uint(24-8*i)
	}
	return uint64(v)
}

// identity returns the first eight bytes of b as a big-endian number.
func identity(b []byte) uint64 {
	var v uint64
	for _, x := range b[:min(8, len(b))] {
		v = v<<8 | uint64(x)
	}
	return v
}
