package hdr

import "hash/crc32"

// CRC-32 as a linear map over GF(2). A register holds a polynomial of degree
// below 32, the coefficient of x^31 in bit 0; a byte moves it on by x^8 modulo
// the generator. (hash/crc32 complements the register before and after.)

const crcPoly = 0xEDB88320 // IEEE 802.3, reflected

// crcTable[k][v] is the register after byte v in an empty register and k zero
// bytes.
var crcTable = makeCRCTable()

func makeCRCTable() (t [16][256]uint32) {
	for v := range 256 {
		c := uint32(v)
		for range 8 {
			c = c>>1 ^ crcPoly&-(c&1)
		}
		t[0][v] = c
	}
	for k := 1; k < len(t); k++ {
		for v := range 256 {
			c := t[k-1][v]
			t[k][v] = t[0][byte(c)] ^ c>>8
		}
	}
	return t
}

// crc1 is the register after byte v.
func crc1(c uint32, v byte) uint32 { return crcTable[0][byte(c)^v] ^ c>>8 }

// crc4 is the register after four zero bytes; data is added to c before.
func crc4(c uint32) uint32 {
	t := &crcTable
	return t[3][byte(c)] ^ t[2][byte(c>>8)] ^ t[1][byte(c>>16)] ^ t[0][c>>24]
}

// crc8 is the register after the eight bytes of v, little-endian.
func crc8(c uint32, v uint64) uint32 {
	t := &crcTable
	lo, hi := uint32(v)^c, uint32(v>>32)
	return t[7][byte(lo)] ^ t[6][byte(lo>>8)] ^ t[5][byte(lo>>16)] ^ t[4][lo>>24] ^
		t[3][byte(hi)] ^ t[2][byte(hi>>8)] ^ t[1][byte(hi>>16)] ^ t[0][hi>>24]
}

// crcBytes is the register after b. Of sixteen bytes, the second half does not
// wait for the first.
func crcBytes(c uint32, b []byte) uint32 {
	t := &crcTable
	for len(b) >= 16 {
		v, w := le.Uint64(b), le.Uint64(b[8:])
		lo, hi := uint32(v)^c, uint32(v>>32)
		x := t[15][byte(lo)] ^ t[14][byte(lo>>8)] ^ t[13][byte(lo>>16)] ^ t[12][lo>>24]
		y := t[11][byte(hi)] ^ t[10][byte(hi>>8)] ^ t[9][byte(hi>>16)] ^ t[8][hi>>24]
		lo, hi = uint32(w), uint32(w>>32)
		x ^= t[7][byte(lo)] ^ t[6][byte(lo>>8)] ^ t[5][byte(lo>>16)] ^ t[4][lo>>24]
		y ^= t[3][byte(hi)] ^ t[2][byte(hi>>8)] ^ t[1][byte(hi>>16)] ^ t[0][hi>>24]
		c = x ^ y
		b = b[16:]
	}
	if len(b) >= 12 {
		lo := le.Uint32(b) ^ c
		x := t[11][byte(lo)] ^ t[10][byte(lo>>8)] ^ t[9][byte(lo>>16)] ^ t[8][lo>>24]
		c = x ^ crc8(0, le.Uint64(b[4:]))
		b = b[12:]
	} else if len(b) >= 8 {
		c = crc8(c, le.Uint64(b))
		b = b[8:]
	}
	if len(b) >= 4 {
		c = crc4(c ^ le.Uint32(b))
		b = b[4:]
	}
	for _, v := range b {
		c = crc1(c, v)
	}
	return c
}

// crcRange is the register after p: crcBytes, faster where p is long.
func crcRange(c uint32, p []byte) uint32 {
	if hasCLMUL && len(p) >= 16 {
		return crcOnes(c, p, &noOnes)
	}
	if n := len(p) &^ 15; n >= 64 { // hash/crc32 uses vectors
		c = ^crc32.Update(^c, crc32.IEEETable, p[:n])
		p = p[n:]
	}
	return crcBytes(c, p)
}

var noOnes [128]byte

// crcOnes is the register after p, of at least 16 bytes, the first 64 of which
// are ones where ones has them; only where hasCLMUL.
func crcOnes(c uint32, p []byte, ones *[128]byte) uint32 {
	n := len(p)
	if n >= 64+clmulStep {
		n = 64 + (n-64)%clmulStep
	}
	c = clmulCRC(c, &p[0], n, ones)
	for p = p[n:]; len(p) > 0; p = p[clmulStep:] {
		if !hasRows { // hash/crc32 is faster then
			return ^crc32.Update(^c, crc32.IEEETable, p)
		}
		c = clmulCRC(c, &p[0], clmulStep, &noOnes)
	}
	return c
}

// nearBytes is the span of byte counts whose power shift looks up in one
// step: all frames but the longest jumbo ones.
const nearBytes = 8192

// crcNear[n] is x^(8n) and crcFar[n] x^(8n*nearBytes) modulo the generator.
var crcNear, crcFar = makePowers()

func makePowers() (near [nearBytes]uint32, far [0x10000 / nearBytes]uint32) {
	c := uint32(1) << 31
	for i := range near {
		near[i] = c
		c = crc1(c, 0)
	}
	far[0] = near[0]
	for i := 1; i < len(far); i++ {
		far[i] = mulGaps(far[i-1], c)
	}
	return near, far
}

// shift is the register c after n zero bytes, n < 65536, in constant time.
func shift(c uint32, n int) uint32 {
	c = mul(c, crcNear[n%nearBytes])
	if n >= nearBytes {
		c = mul(c, crcFar[n/nearBytes])
	}
	return c
}

// mul is the product of two polynomials modulo the generator.
func mul(a, b uint32) uint32 {
	if hasCLMUL {
		return clmulMod(uint64(a)<<32, b)
	}
	return mulGaps(a, b)
}

// mulGaps is mul for any processor: the carries of ordinary products are kept
// out of the way by gaps of three bits.
func mulGaps(a, b uint32) uint32 {
	const m0, m1, m2, m3 = 0x11111111, 0x22222222, 0x44444444, 0x88888888
	a0, a1, a2, a3 := uint64(a&m0), uint64(a&m1), uint64(a&m2), uint64(a&m3)
	b0, b1, b2, b3 := uint64(b&m0), uint64(b&m1), uint64(b&m2), uint64(b&m3)
	p := (a0*b0^a1*b3^a2*b2^a3*b1)&(m0<<32|m0) |
		(a0*b1^a1*b0^a2*b3^a3*b2)&(m1<<32|m1) |
		(a0*b2^a1*b1^a2*b0^a3*b3)&(m2<<32|m2) |
		(a0*b3^a1*b2^a2*b1^a3*b0)&(m3<<32|m3)
	p <<= 1 // bit 63 is x^0
	return crc4(uint32(p)) ^ uint32(p>>32)
}
