package hdr

import (
	"encoding/binary"
	"hash/crc32"
)

var le = binary.LittleEndian

// icrcSeed is the CRC-32 register after eight bytes 0xFF, which stand for the
// local route header (IBTA 7.8.1, A17.3.3).
const icrcSeed = 0xDEBB20E3

// ICRC computes the invariant CRC of a frame whose f.End is known (f.Why is
// IsRoCE, UnknownOpcode or BadVersion). The bytes that may change on the way
// count as ones: IPv4 TOS, TTL, checksum; IPv6 and GRH traffic class, flow
// label, hop limit; UDP checksum; byte 4 of the BTH. The result is stored
// little-endian at f.End.
//
// While it computes, those bytes are ones in b: nobody else may look at b then.
func ICRC(b []byte, f *Frame) uint32 {
	h := b[f.L3 : int(f.BTH)+BTHLen]
	if f.Net != NetIPv4 || len(h) != IPv4Len+UDPLen+BTHLen {
		c := crcHeaders(icrcSeed, h, f)
		return ^crcRange(c, b[int(f.BTH)+BTHLen:f.End])
	}
	w0, w8, w24, w32 := le.Uint64(h), le.Uint64(h[8:]), le.Uint64(h[24:]), le.Uint64(h[32:])
	le.PutUint64(h, w0|0xFF00)
	le.PutUint64(h[8:], w8|0xFFFF00FF)
	le.PutUint64(h[24:], w24|0xFFFF0000)
	le.PutUint64(h[32:], w32|0xFF)
	c := crcRange(icrcSeed, b[f.L3:f.End])
	le.PutUint64(h, w0)
	le.PutUint64(h[8:], w8)
	le.PutUint64(h[24:], w24)
	le.PutUint64(h[32:], w32)
	return ^c
}

// crcRange is the register after p: hash/crc32 where it uses vectors.
func crcRange(c uint32, p []byte) uint32 {
	if n := len(p) &^ 15; n >= 64 {
		c = ^crc32.Update(^c, crc32.IEEETable, p[:n])
		p = p[n:]
	}
	return crcBytes(c, p)
}

// crcHeaders is the register after h, the bytes from the network header to
// the end of the BTH.
func crcHeaders(c uint32, h []byte, f *Frame) uint32 {
	if f.Net == NetIPv4 {
		c = crc8(c, le.Uint64(h)|0xFF00)
		c = crc8(c, le.Uint64(h[8:])|0xFFFF00FF)
		h = h[16:]
	} else {
		c = crc8(c, le.Uint64(h)|0xFF000000FFFFFF0F)
		h = h[8:]
	}
	n := len(h) - BTHLen
	if f.L4 != 0 {
		n -= UDPLen
	}
	c = crcBytes(c, h[:n]) // addresses, options, extension headers
	h = h[n:]
	if f.L4 != 0 {
		c = crc8(c, le.Uint64(h)|0xFFFF<<48)
		h = h[UDPLen:]
	}
	c = crc8(c, le.Uint64(h)|0xFF<<32)
	return crc4(c ^ le.Uint32(h[8:]))
}

// variant reports whether byte i of a frame may change on the way, or lies
// outside of what the ICRC covers; mask has ones where it does.
func (f *Frame) variant(i int) (mask byte) {
	switch l3 := int(f.L3); {
	case i < l3 || i >= int(f.End) || i == int(f.BTH)+4:
		return 0xFF
	case f.L4 != 0 && (i == int(f.L4)+6 || i == int(f.L4)+7):
		return 0xFF
	case f.Net == NetIPv4 && (i == l3+1 || i == l3+8 || i == l3+10 || i == l3+11):
		return 0xFF
	case f.Net != NetIPv4 && i == l3:
		return 0x0F
	case f.Net != NetIPv4 && (i <= l3+3 || i == l3+7):
		return 0xFF
	}
	return 0
}

// StoredICRC is the ICRC that the frame carries.
func StoredICRC(b []byte, f *Frame) uint32 { return le.Uint32(b[f.End:]) }

// SetICRC computes and stores the ICRC.
func SetICRC(b []byte, f *Frame) { le.PutUint32(b[f.End:], ICRC(b, f)) }

// PatchICRC brings the stored ICRC up to date after the bytes
// b[off:off+len(old)] were changed from old, in O(len(old)), whatever the
// frame's length. Any range of the frame will do: bytes that the ICRC does not
// cover do not count. A frame whose ICRC was wrong stays wrong by the same
// difference. One call over a range is cheaper than two over its ends, unless
// what lies between is longer than about 32 bytes; a change of more than a
// tenth of the frame is cheaper with SetICRC, if the old ICRC is known to be
// right.
func PatchICRC(b []byte, f *Frame, off int, old []byte) {
	tail := int(f.End) - off - len(old)
	if off <= int(f.BTH)+4 && !f.addresses(off, off+len(old)) || tail < 0 {
		patchVariant(b, f, off, old)
		return
	}
	// A CRC is linear: the registers of two frames differ by that of the
	// frames' difference, which is zero but for these bytes.
	now, d := b[off:off+len(old)], uint32(0)
	for len(old) >= 8 {
		d = crc8(d, le.Uint64(now)^le.Uint64(old))
		now, old = now[8:], old[8:]
	}
	if len(old) >= 4 {
		d = crc4(d ^ le.Uint32(now) ^ le.Uint32(old))
		now, old = now[4:], old[4:]
	}
	for i := range old {
		d = crc1(d, now[i]^old[i])
	}
	patch(b, f, d, tail)
}

// addresses reports whether bytes off to end lie between the last variant field
// of the network header and the UDP checksum: addresses, options and ports.
func (f *Frame) addresses(off, end int) bool {
	first := int(f.L3) + 12
	if f.Net != NetIPv4 {
		first = int(f.L3) + 8
	}
	return off >= first && end <= int(f.L4)+6
}

// patchVariant is PatchICRC for a range with bytes that may not count.
func patchVariant(b []byte, f *Frame, off int, old []byte) {
	d := uint32(0)
	for i := range old {
		d = crc1(d, (b[off+i]^old[i])&^f.variant(off+i))
		if off+i == int(f.End)-1 {
			patch(b, f, d, 0)
			return
		}
	}
	if tail := int(f.End) - off - len(old); tail > 0 {
		patch(b, f, d, tail)
	}
}

// patch adds difference d, followed by tail zero bytes, to the stored ICRC.
func patch(b []byte, f *Frame, d uint32, tail int) {
	at := b[f.End:]
	le.PutUint32(at, le.Uint32(at)^shift(d, tail))
}
