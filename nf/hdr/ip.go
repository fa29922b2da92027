package hdr

import (
	"math/bits"
	"net/netip"
)

// Numbers of the protocols above IP (IANA).
const (
	ProtoHopByHop  = 0
	ProtoICMP      = 1
	ProtoTCP       = 6
	ProtoUDP       = 17
	ProtoBTH       = 27 // a GRH's next header (IBTA 8.3)
	ProtoRouting   = 43
	ProtoFragment  = 44
	ProtoICMPv6    = 58
	ProtoNoNext    = 59
	ProtoDstOption = 60
)

// IPv4 is a header of 20 bytes and options (RFC 791 3.1):
//
//	0 Version IHL | 1 TOS | 2 TotalLen | 4 ID | 6 DF MF FragOffset |
//	8 TTL | 9 Protocol | 10 Checksum | 12 Src | 16 Dst | 20 options |
type IPv4 []byte

func (h IPv4) Version() uint8 { return h[0] >> 4 }

// HeaderLen is in bytes, with options.
func (h IPv4) HeaderLen() int       { return int(h[0]&15) * 4 }
func (h IPv4) TOS() uint8           { return h[1] }
func (h IPv4) SetTOS(v uint8)       { h[1] = v }
func (h IPv4) TotalLen() uint16     { return be.Uint16(h[2:]) }
func (h IPv4) SetTotalLen(v uint16) { be.PutUint16(h[2:], v) }
func (h IPv4) ID() uint16           { return be.Uint16(h[4:]) }
func (h IPv4) SetID(v uint16)       { be.PutUint16(h[4:], v) }
func (h IPv4) DF() bool             { return h[6]&0x40 != 0 }
func (h IPv4) MF() bool             { return h[6]&0x20 != 0 }
func (h IPv4) SetDF(v bool)         { setBit(h, 6, 0x40, v) }
func (h IPv4) SetMF(v bool)         { setBit(h, 6, 0x20, v) }

// FragOffset is in bytes; only multiples of 8 exist.
func (h IPv4) FragOffset() int { return int(be.Uint16(h[6:])&0x1FFF) * 8 }
func (h IPv4) SetFragOffset(n int) {
	be.PutUint16(h[6:], be.Uint16(h[6:])&0xE000|uint16(n/8)&0x1FFF)
}

// IsFragment reports whether the datagram is part of a larger one.
func (h IPv4) IsFragment() bool     { return be.Uint16(h[6:])&0x3FFF != 0 }
func (h IPv4) TTL() uint8           { return h[8] }
func (h IPv4) SetTTL(v uint8)       { h[8] = v }
func (h IPv4) Protocol() uint8      { return h[9] }
func (h IPv4) SetProtocol(v uint8)  { h[9] = v }
func (h IPv4) Checksum() uint16     { return be.Uint16(h[10:]) }
func (h IPv4) SetChecksum(v uint16) { be.PutUint16(h[10:], v) }
func (h IPv4) Src() netip.Addr      { return netip.AddrFrom4([4]byte(h[12:])) }
func (h IPv4) Dst() netip.Addr      { return netip.AddrFrom4([4]byte(h[16:])) }

// SetSrc and SetDst want an IPv4 address; the checksum is left as it is.
func (h IPv4) SetSrc(a netip.Addr) { v := a.As4(); copy(h[12:16], v[:]) }
func (h IPv4) SetDst(a netip.Addr) { v := a.As4(); copy(h[16:20], v[:]) }

// Options are the bytes between the fixed header and its end.
func (h IPv4) Options() []byte { return h[IPv4Len:h.HeaderLen()] }

// UpdateChecksum computes the header's checksum and stores it.
func (h IPv4) UpdateChecksum() {
	if h.HeaderLen() != IPv4Len {
		h.SetChecksum(0)
		h.SetChecksum(Checksum(h[:h.HeaderLen()], 0))
		return
	}
	h.seal(le.Uint64(h[12:]))
}

// SetEnds sets both addresses, given as they follow each other in a header, and
// the checksum of a header without options.
func (h IPv4) SetEnds(ends []byte) {
	v := le.Uint64(ends)
	h.seal(v)
	le.PutUint64(h[12:], v)
}

// seal sets the checksum for a header without options and these addresses (one
// after the other, little-endian). Nothing that was just written in parts is
// read again.
func (h IPv4) seal(ends uint64) {
	s, c := bits.Add64(le.Uint64(h), uint64(le.Uint32(h[8:])&0xFFFF), 0)
	s, c = bits.Add64(s, ends, c)
	sum := (s + c) % 0xFFFF
	if sum == 0 {
		sum = 0xFFFF // the header's first byte is not 0, so neither is the sum
	}
	le.PutUint16(h[10:], ^uint16(sum))
}

// ChecksumOK reports whether the header's checksum is right.
func (h IPv4) ChecksumOK() bool {
	if h.HeaderLen() != IPv4Len {
		return Checksum(h[:h.HeaderLen()], 0) == 0
	}
	return plainSumOK((*[IPv4Len]byte)(h))
}

// plainSumOK is ChecksumOK for a header without options.
func plainSumOK(h *[IPv4Len]byte) bool {
	// One's complement sums do not care for the byte order (RFC 1071 2B).
	s, c := bits.Add64(le.Uint64(h[:]), le.Uint64(h[8:]), 0)
	s, c = bits.Add64(s, uint64(le.Uint32(h[16:])), c)
	s += c
	// The sum of the 16-bit words is all ones: 2^16-1 divides 2^64-1.
	return s != 0 && s%0xFFFF == 0
}

// IPv4Fields are the fields of a header without options, for Encode. Src and
// Dst are IPv4.
type IPv4Fields struct {
	TOS      uint8
	TotalLen uint16
	ID       uint16
	DF       bool
	TTL      uint8
	Protocol uint8
	Src, Dst netip.Addr
}

// Encode writes all 20 bytes, with the checksum.
func (h IPv4) Encode(f *IPv4Fields) {
	h = h[:IPv4Len]
	h[0], h[1] = 0x45, f.TOS
	h.SetTotalLen(f.TotalLen)
	h.SetID(f.ID)
	h[6], h[7] = 0, 0
	h.SetDF(f.DF)
	h[8], h[9] = f.TTL, f.Protocol
	h.SetSrc(f.Src)
	h.SetDst(f.Dst)
	h.UpdateChecksum()
}

// IPv6 is a header of 40 bytes (RFC 8200 3):
//
//	0 Version:4 TrafficClass:8 FlowLabel:20 | 4 PayloadLen |
//	6 NextHeader | 7 HopLimit | 8 Src | 24 Dst |
type IPv6 []byte

func (h IPv6) Version() uint8      { return h[0] >> 4 }
func (h IPv6) TrafficClass() uint8 { return uint8(be.Uint16(h) >> 4) }
func (h IPv6) SetTrafficClass(v uint8) {
	be.PutUint16(h, be.Uint16(h)&0xF00F|uint16(v)<<4)
}
func (h IPv6) FlowLabel() uint32 { return be.Uint32(h) & 0xFFFFF }
func (h IPv6) SetFlowLabel(v uint32) {
	be.PutUint32(h, be.Uint32(h)&0xFFF00000|v&0xFFFFF)
}
func (h IPv6) PayloadLen() uint16     { return be.Uint16(h[4:]) }
func (h IPv6) SetPayloadLen(v uint16) { be.PutUint16(h[4:], v) }
func (h IPv6) NextHeader() uint8      { return h[6] }
func (h IPv6) SetNextHeader(v uint8)  { h[6] = v }
func (h IPv6) HopLimit() uint8        { return h[7] }
func (h IPv6) SetHopLimit(v uint8)    { h[7] = v }
func (h IPv6) Src() netip.Addr        { return netip.AddrFrom16([16]byte(h[8:])) }
func (h IPv6) SetSrc(a netip.Addr)    { v := a.As16(); copy(h[8:24], v[:]) }
func (h IPv6) Dst() netip.Addr        { return netip.AddrFrom16([16]byte(h[24:])) }
func (h IPv6) SetDst(a netip.Addr)    { v := a.As16(); copy(h[24:40], v[:]) }

// Upper steps over the hop-by-hop, routing and destination options headers
// (RFC 8200 4.1) and returns what follows them: its protocol number and its
// offset from the IPv6 header. A fragment header (ProtoFragment) is not
// stepped over. ok is false when a header does not fit in h.
func (h IPv6) Upper() (proto uint8, off int, ok bool) {
	proto, off = h[6], IPv6Len
	for proto == ProtoHopByHop || proto == ProtoRouting || proto == ProtoDstOption {
		if len(h) < off+8 {
			return proto, off, false
		}
		proto, off = h[off], off+8+int(h[off+1])*8
	}
	return proto, off, off <= len(h)
}

// IPv6Fields are the fields of an IPv6 header, for Encode.
type IPv6Fields struct {
	TrafficClass uint8
	FlowLabel    uint32
	PayloadLen   uint16
	NextHeader   uint8
	HopLimit     uint8
	Src, Dst     netip.Addr
}

// Encode writes all 40 bytes.
func (h IPv6) Encode(f *IPv6Fields) {
	h = h[:IPv6Len]
	be.PutUint32(h, 6<<28|uint32(f.TrafficClass)<<20|f.FlowLabel&0xFFFFF)
	h.SetPayloadLen(f.PayloadLen)
	h[6], h[7] = f.NextHeader, f.HopLimit
	h.SetSrc(f.Src)
	h.SetDst(f.Dst)
}

// GRH is a global route header, 40 bytes (IBTA 8.3): the network header of
// RoCE v1, in the shape of IPv6.
type GRH []byte

func (h GRH) IPVer() uint8      { return h[0] >> 4 }
func (h GRH) TClass() uint8     { return IPv6(h).TrafficClass() }
func (h GRH) FlowLabel() uint32 { return IPv6(h).FlowLabel() }

// PayLen counts what follows the GRH, the ICRC included.
func (h GRH) PayLen() uint16   { return be.Uint16(h[4:]) }
func (h GRH) NxtHdr() uint8    { return h[6] }
func (h GRH) HopLmt() uint8    { return h[7] }
func (h GRH) SGID() netip.Addr { return IPv6(h).Src() }
func (h GRH) DGID() netip.Addr { return IPv6(h).Dst() }

// Encode writes all 40 bytes; f.NextHeader is ProtoBTH under RoCE.
func (h GRH) Encode(f *IPv6Fields) { IPv6(h).Encode(f) }
