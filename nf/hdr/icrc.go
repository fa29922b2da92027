package hdr

import "encoding/binary"

var le = binary.LittleEndian

// icrcSeed is the CRC-32 register after eight bytes 0xFF, which stand for the
// local route header (IBTA 7.8.1, A17.3.3).
const icrcSeed = 0xDEBB20E3

// icrcResidue is the register after any message and its CRC, the complement of
// the register before: as after four bytes 0xFF that meet an empty register,
// which eight of them do, too.
const icrcResidue = icrcSeed

// plainLimit: clmulCRC takes an IPv4 datagram that is shorter in one piece. It is 0 where there is no such function.
var plainLimit = func() int {
	if !hasCLMUL {
		return 0
	}
	return 64 + clmulStep
}()

// icrcOnes has ones where a frame's ICRC takes ones, from the network header
// on, by Frame.Net; onesBTH is where the BTH is in such a frame. (IP options and
// extension headers make other layouts.)
var (
	icrcOnes = makeOnes()
	onesBTH  = [4]uint16{NetNone: 0xFFFF, NetIPv4: IPv4Len + UDPLen, NetIPv6: IPv6Len + UDPLen, NetGRH: GRHLen}
)

func makeOnes() (t [4][128]byte) {
	for net := NetIPv4; net <= NetGRH; net++ {
		f := Frame{Net: net, BTH: onesBTH[net], End: 0xFFFF}
		if net != NetGRH {
			f.L4 = f.BTH - UDPLen
		}
		for i := range t[net] {
			t[net][i] = f.variant(i)
		}
	}
	return t
}

// ones is the row of icrcOnes that fits the frame; nil when none does.
func (f *Frame) ones() *[128]byte {
	if net := f.Net & 3; f.BTH-f.L3 == onesBTH[net] {
		return &icrcOnes[net]
	}
	return nil
}

// ICRC computes the invariant CRC of a frame whose f.End is known (f.Why is
// IsRoCE, UnknownOpcode or BadVersion). The bytes that may change on the way
// count as ones: IPv4 TOS, TTL, checksum; IPv6 and GRH traffic class, flow
// label, hop limit; UDP checksum; byte 4 of the BTH. The result is stored
// little-endian at f.End.
func ICRC(b []byte, f *Frame) uint32 {
	if hasCLMUL {
		if ones := f.ones(); ones != nil && f.End >= f.BTH+BTHLen {
			p := b[f.L3:f.End]
			if len(p) < 64+clmulStep {
				return ^clmulCRC(icrcSeed, &p[0], len(p), ones)
			}
			return ^crcOnes(icrcSeed, p, ones)
		}
	}
	return icrcTables(b, f)
}

// icrcTables is ICRC for any layout and any processor.
func icrcTables(b []byte, f *Frame) uint32 {
	at := int(f.BTH) + BTHLen
	c := crcHeaders(icrcSeed, b[f.L3:at], f)
	return ^crcRange(c, b[at:f.End])
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

// GoodICRC reports whether the frame carries the ICRC that it should.
func GoodICRC(b []byte, f *Frame) bool {
	if hasCLMUL {
		if ones := f.ones(); ones != nil && f.End >= f.BTH+BTHLen {
			from, to := int(f.L3), int(f.End)+ICRCLen
			if n := to - from; n < 64+clmulStep && to <= len(b) {
				return clmulCRC(icrcSeed, &b[from], n, ones) == icrcResidue
			}
		}
	}
	return ICRC(b, f) == StoredICRC(b, f)
}

// SetICRC computes and stores the ICRC.
func SetICRC(b []byte, f *Frame) {
	if hasRows && f.Net == NetIPv4 && f.BTH-f.L3 == IPv4Len+UDPLen {
		p := b[f.L3:]
		if n := int(f.End - f.L3); n >= IPv4Len+UDPLen+BTHLen && n <= 128 && len(p)-ICRCLen >= n {
			le.PutUint32(p[n:], ^rowsCRC(&p[0], n, &rowPowers[-n&63]))
			return
		}
	}
	if hasCLMUL {
		if ones := f.ones(); ones != nil && f.End >= f.BTH+BTHLen {
			from, end := int(f.L3), int(f.End)
			if at := b[end : end+ICRCLen : end+ICRCLen]; end-from < 64-ICRCLen+clmulStep {
				le.PutUint32(at, ^clmulCRC(icrcSeed, &b[from], end-from, ones))
				return
			}
		}
	}
	le.PutUint32(b[f.End:], ICRC(b, f))
}

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
	if !hasCLMUL || tail < 0 || tail >= nearBytes-64 || len(old) > 64 {
		patchTables(b, f, off, old)
		return
	}
	at := b[f.End:]
	if len(old) == 8 && off > int(f.BTH)+4 { // the usual change
		v := le.Uint64(b[off:]) ^ le.Uint64(old)
		le.PutUint32(at, le.Uint32(at)^clmulMod(v, crcNear[tail+4]))
		return
	}
	ones := f.ones()
	if ones == nil || off < int(f.L3) {
		patchTables(b, f, off, old)
		return
	}
	hide := ones[min(off-int(f.L3), len(ones)):]
	le.PutUint32(at, le.Uint32(at)^difference(b[off:off+len(old)], old, hide, tail))
}

// difference is the register after now^old, but for the bits of ones (of which
// zeros follow), and tail bytes.
func difference(now, old, ones []byte, tail int) (d uint32) {
	for len(old) >= 8 {
		v := le.Uint64(now) ^ le.Uint64(old)
		if len(ones) >= 8 {
			v &^= le.Uint64(ones)
			ones = ones[8:]
		}
		now, old = now[8:], old[8:]
		// The register is x^32 ahead of the word, four bytes.
		d ^= clmulMod(v, crcNear[tail+len(old)+4])
	}
	if n := len(old); n > 0 {
		v := lastOf8(now) ^ lastOf8(old)
		if len(ones) >= n {
			v &^= lastOf8(ones[:n])
		}
		d ^= clmulMod(v, crcNear[tail+4])
	}
	return d
}

// lastOf8 is the little-endian word that ends with p, of at most eight bytes;
// zeros come before.
func lastOf8(p []byte) (v uint64) {
	s := 8 * (8 - len(p))
	if n := len(p); n >= 4 {
		return uint64(le.Uint32(p[n-4:]))<<32 | uint64(le.Uint32(p))<<s
	}
	for _, x := range p {
		v |= uint64(x) << s
		s += 8
	}
	return v
}

// patchTables is PatchICRC for any layout and any processor.
func patchTables(b []byte, f *Frame, off int, old []byte) {
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
