package hdr

import "golang.org/x/sys/cpu"

// hasCLMUL: the processor multiplies polynomials; hasRows: four at a time.
var (
	hasCLMUL = cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSSE3 && cpu.X86.HasSSE41
	hasRows  = hasCLMUL && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VBMI2 && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasBMI2
)

// clmulBlocks is the most blocks of 16 bytes that may follow the first n%16
// bytes of what clmulCRC takes: those of a frame of path MTU 4096.
const clmulBlocks = 4096/16 + 3

// clmulStep is how much of longer frames clmulCRC takes at a time.
var clmulStep = func() int {
	if hasRows {
		return 4096
	}
	return 256
}()

var (
	// powers[clmulBlocks-i] is what the halves of a block are multiplied by
	// that i blocks follow: x^(128i+96) and x^(128i+32) modulo the generator.
	powers = func() (t [clmulBlocks + 1][2]uint64) {
		for i := range t {
			t[clmulBlocks-i] = [2]uint64{uint64(crcNear[16*i+12]) << 32, uint64(crcNear[16*i+4]) << 32}
		}
		return t
	}()

	// toEnd[r:] is the shuffle that moves the first r bytes of a block to its
	// end and clears the others.
	toEnd = func() (t [32]byte) {
		for i := range 16 {
			t[i], t[16+i] = 0x80, byte(i)
		}
		return t
	}()

	// barrett is floor(x^94/P), and the generator P without x^32; bit j is the
	// coefficient of x^(63-j).
	barrett = [2]uint64{divideX94(), crcPoly << 32}
)

// divideX94 is floor(x^94/P), the coefficient of x^(63-j) in bit j.
func divideX94() (q uint64) {
	r := uint32(1) << 31 // x^n modulo P, n growing from 0
	for range 94 {
		carry := r & 1 // of x^32
		r = r>>1 ^ crcPoly&-carry
		q = q>>1 | uint64(carry)<<63
	}
	return q
}

// clmulMod is v times k modulo the generator; bit j of v is the coefficient of
// x^(63-j), that of k the one of x^(31-j).
//
//go:noescape
func clmulMod(v uint64, k uint32) uint32

// clmulCRC is the register c after the n bytes at p, 16 <= n <
// 16*(clmulBlocks+1), the first 64 of which are ones where ones has them. It
// needs hasCLMUL.
//
//go:noescape
func clmulCRC(c uint32, p *byte, n int, ones *[128]byte) uint32

// blocksCRC is clmulCRC where hasRows is false.
//
//go:noescape
func blocksCRC(c uint32, p *byte, n int, ones *[128]byte) uint32

// seedRow is icrcSeed in the place of the first bytes of a message, which it is added to.
var seedRow = func() (t [64]byte) {
	le.PutUint32(t[:], icrcSeed)
	return t
}()

// goodRest[n] is the register after any message, its CRC and n zero bytes.
var goodRest = func() (t [64]uint32) {
	c := uint32(icrcResidue)
	for n := range t {
		t[n] = c
		c = crc1(c, 0)
	}
	return t
}()

// rowPowers[n] has what the halves of the blocks of two rows of 64 bytes are multiplied by, as in powers, where the last
// n bytes of the second row are not of the message: x^-8n times as much.
var rowPowers = func() (t [64][16]uint64) {
	const most = 64
	var power [most + 128]uint32 // power[most+k] is x^8k modulo the generator
	copy(power[most:], crcNear[:128])
	for k := most - 1; k >= 0; k-- {
		c := power[k+1]
		for range 8 { // divided by x
			if c>>31 != 0 {
				c = (c^crcPoly)<<1 | 1
			} else {
				c <<= 1
			}
		}
		power[k] = c
	}
	for n := range t {
		for i := range 8 { // blocks that follow
			at := most + 16*i - n
			t[n][14-2*i], t[n][15-2*i] = uint64(power[at+12])<<32, uint64(power[at+4])<<32
		}
	}
	return t
}()

// rowsCRC is the register after the n bytes at p, an IPv4 datagram without options, 40 <= n <= 128, that begins with
// icrcSeed. powers is rowPowers[-n&63]. It needs hasRows, and is faster than clmulCRC as goodRows is.
//
//go:noescape
func rowsCRC(p *byte, n int, powers *[16]uint64) uint32

// goodRows reports whether the ICRC at the end of the n bytes at p is right, an IPv4 datagram without
// options, 40 < n < 64+clmulStep. It needs hasRows. It is faster than clmulCRC: it takes rows of 64 bytes
// from the first one on, and zeros behind the last byte, so that nothing has to be moved.
//
//go:noescape
func goodRows(p *byte, n int) bool
