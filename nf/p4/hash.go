package p4

import (
	"encoding/binary"
	"hash/crc32"
)

// input is a part of what a calculation hashes.
type input struct {
	hdr   *header // a field of it, or all of it
	fld   *field
	value []uint64 // constant
	bits  int
}

// calculation is a hash over fields, constants and the payload.
type calculation struct {
	name    string
	inputs  []input
	payload bool
	hash    func(b []byte) uint64
	sum     bool // hash is csum16, which needs no bytes
}

// summer adds up the 16-bit words of a string of bits, modulo 2^16 - 1.
type summer struct {
	sum uint64
	pos uint // bits so far
}

// add appends the lowest n <= 64 bits of v, which has no others. As 2^16 is 1
// modulo 2^16 - 1, a number counts by where it ends in a word.
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

// checksum is csum16 of the inputs.
func (c *calculation) checksum(k *packetState) uint64 {
	var s summer
	for i := range c.inputs {
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

// output hashes the packet's fields; those of invalid headers are left out.
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
	return c.hash(w.b)
}

// payload is what is behind the parsed headers.
func (k *packetState) payload() []byte {
	p := k.frame[k.at:]
	return p[:min(len(p), k.truncate)]
}

// checksum is a field that is verified behind the parser, or written in front
// of the deparser.
type checksum struct {
	name  string
	hdr   *header
	fld   *field
	calc  *calculation
	when  testFn // nil: always
	valid bool   // a verification asks for the header
}

func (s *Switch) verifyChecksums(k *packetState) {
	for _, c := range s.prog.verify {
		if k.v[c.hdr.base] == 0 || c.when != nil && !c.when(k) {
			continue
		}
		if c.calc.output(k) != k.v[c.hdr.base+c.fld.off] {
			k.badChecksum = true
		}
	}
}

func (s *Switch) updateChecksums(k *packetState) {
	for _, c := range s.prog.update {
		if c.when == nil || c.when(k) {
			k.v[c.hdr.base+c.fld.off] = c.calc.output(k) & mask64(c.fld.bits)
		}
	}
}

// algorithms are the hashes by the names of the JSON.
func algorithm(name string) func(b []byte) uint64 {
	switch name {
	case "crc16", "crc16_custom":
		return reflectedCRC16(0xa001)
	case "crcCCITT":
		return crcCCITT()
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

// reflectedCRC16 is a CRC-16 with a reflected polynomial, from 0 and without a
// final inversion: CRC-16/ARC for 0xa001.
func reflectedCRC16(poly uint16) func(b []byte) uint64 {
	var table [256]uint16
	for i := range table {
		c := uint16(i)
		for range 8 {
			if c&1 != 0 {
				c = c>>1 ^ poly
			} else {
				c >>= 1
			}
		}
		table[i] = c
	}
	return func(b []byte) uint64 {
		var c uint16
		for _, x := range b {
			c = c>>8 ^ table[byte(c)^x]
		}
		return uint64(c)
	}
}

// crcCCITT is CRC-16/CCITT-FALSE: polynomial 0x1021, from 0xffff.
func crcCCITT() func(b []byte) uint64 {
	var table [256]uint16
	for i := range table {
		c := uint16(i) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x1021
			} else {
				c <<= 1
			}
		}
		table[i] = c
	}
	return func(b []byte) uint64 {
		c := uint16(0xffff)
		for _, x := range b {
			c = c<<8 ^ table[byte(c>>8)^x]
		}
		return uint64(c)
	}
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

// identity is the first eight bytes as a number.
func identity(b []byte) uint64 {
	var v uint64
	for _, x := range b[:min(8, len(b))] {
		v = v<<8 | uint64(x)
	}
	return v
}
