package hdr

import "net/netip"

// UDP is a header of 8 bytes (RFC 768):
//
//	0 SrcPort | 2 DstPort | 4 Len | 6 Checksum |
type UDP []byte

func (h UDP) SrcPort() uint16     { return be.Uint16(h) }
func (h UDP) SetSrcPort(v uint16) { be.PutUint16(h, v) }
func (h UDP) DstPort() uint16     { return be.Uint16(h[2:]) }
func (h UDP) SetDstPort(v uint16) { be.PutUint16(h[2:], v) }

// Len counts the header and what follows it.
func (h UDP) Len() uint16     { return be.Uint16(h[4:]) }
func (h UDP) SetLen(v uint16) { be.PutUint16(h[4:], v) }

// Checksum 0 means that the sender computed none; RoCEv2 senders do not.
func (h UDP) Checksum() uint16     { return be.Uint16(h[6:]) }
func (h UDP) SetChecksum(v uint16) { be.PutUint16(h[6:], v) }

// UDPFields are the fields of a UDP header, for Encode.
type UDPFields struct {
	SrcPort, DstPort, Len, Checksum uint16
}

// Encode writes all 8 bytes.
func (h UDP) Encode(f *UDPFields) {
	h = h[:UDPLen]
	h.SetSrcPort(f.SrcPort)
	h.SetDstPort(f.DstPort)
	h.SetLen(f.Len)
	h.SetChecksum(f.Checksum)
}

// TCP is a header of 20 bytes and options (RFC 9293 3.1):
//
//	0 SrcPort | 2 DstPort | 4 Seq | 8 Ack | 12 DataOffset | 13 Flags |
//	14 Window | 16 Checksum | 18 Urgent | 20 options |
type TCP []byte

// Flags of a TCP header.
const (
	TCPFin uint8 = 1 << iota
	TCPSyn
	TCPRst
	TCPPsh
	TCPAck
	TCPUrg
	TCPEce
	TCPCwr
)

func (h TCP) SrcPort() uint16     { return be.Uint16(h) }
func (h TCP) SetSrcPort(v uint16) { be.PutUint16(h, v) }
func (h TCP) DstPort() uint16     { return be.Uint16(h[2:]) }
func (h TCP) SetDstPort(v uint16) { be.PutUint16(h[2:], v) }
func (h TCP) Seq() uint32         { return be.Uint32(h[4:]) }
func (h TCP) SetSeq(v uint32)     { be.PutUint32(h[4:], v) }
func (h TCP) Ack() uint32         { return be.Uint32(h[8:]) }
func (h TCP) SetAck(v uint32)     { be.PutUint32(h[8:], v) }

// HeaderLen is in bytes, with options; below 20 the header is malformed.
func (h TCP) HeaderLen() int       { return int(h[12]>>4) * 4 }
func (h TCP) Flags() uint8         { return h[13] }
func (h TCP) SetFlags(v uint8)     { h[13] = v }
func (h TCP) Window() uint16       { return be.Uint16(h[14:]) }
func (h TCP) SetWindow(v uint16)   { be.PutUint16(h[14:], v) }
func (h TCP) Checksum() uint16     { return be.Uint16(h[16:]) }
func (h TCP) SetChecksum(v uint16) { be.PutUint16(h[16:], v) }
func (h TCP) Urgent() uint16       { return be.Uint16(h[18:]) }

// ICMP is the first 8 bytes of an ICMP or ICMPv6 message (RFC 792, RFC 4443):
//
//	0 Type | 1 Code | 2 Checksum | 4 rest; of echoes ID and Seq |
type ICMP []byte

// Types of ICMP messages.
const (
	ICMPEchoReply     uint8 = 0
	ICMPUnreachable   uint8 = 3
	ICMPEcho          uint8 = 8
	ICMPTimeExceeded  uint8 = 11
	ICMPv6TooBig      uint8 = 2
	ICMPv6Echo        uint8 = 128
	ICMPv6EchoReply   uint8 = 129
	ICMPv6NeighborSol uint8 = 135
	ICMPv6NeighborAdv uint8 = 136
)

func (h ICMP) Type() uint8          { return h[0] }
func (h ICMP) Code() uint8          { return h[1] }
func (h ICMP) Checksum() uint16     { return be.Uint16(h[2:]) }
func (h ICMP) SetChecksum(v uint16) { be.PutUint16(h[2:], v) }
func (h ICMP) ID() uint16           { return be.Uint16(h[4:]) }
func (h ICMP) SetID(v uint16)       { be.PutUint16(h[4:], v) }
func (h ICMP) Seq() uint16          { return be.Uint16(h[6:]) }
func (h ICMP) SetSeq(v uint16)      { be.PutUint16(h[6:], v) }

// Checksum is the Internet checksum of b (RFC 1071): the ones' complement of
// the ones' complement sum of its 16-bit words and of init, which is a sum
// from PseudoSum or 0. An odd last byte counts as if a zero followed. Over
// data that contain their own right checksum it is 0.
func Checksum(b []byte, init uint32) uint16 {
	s := uint64(init)
	for len(b) >= 8 {
		v := be.Uint64(b)
		s += v>>32 + v&0xFFFFFFFF
		b = b[8:]
	}
	for len(b) >= 2 {
		s += uint64(be.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	s = s>>32 + s&0xFFFFFFFF
	s = s>>32 + s&0xFFFFFFFF
	return ^fold(uint32(s>>16) + uint32(s&0xFFFF))
}

func fold(s uint32) uint16 {
	s = s>>16 + s&0xFFFF
	return uint16(s>>16 + s)
}

// PseudoSum is the sum of the pseudo-header that UDP, TCP and ICMPv6 checksums
// cover (RFC 9293 3.1, RFC 8200 8.1), for Checksum. Both addresses are of the
// same family; n is the length of the transport header and data.
func PseudoSum(src, dst netip.Addr, proto uint8, n int) uint32 {
	s := uint32(proto) + uint32(n>>16) + uint32(n&0xFFFF)
	for _, a := range [2]netip.Addr{src, dst} {
		v, from := a.As16(), 0
		if a.Is4() {
			from = 12 // the rest is the mapping prefix, no part of the address
		}
		for i := from; i < 16; i += 2 {
			s += uint32(be.Uint16(v[i:]))
		}
	}
	return s
}

// PatchChecksum returns checksum sum after one 16-bit word that it covers
// changed from old to new (RFC 1624 equation 3).
func PatchChecksum(sum, old, new uint16) uint16 {
	return ^fold(uint32(^sum) + uint32(^old) + uint32(new))
}

// PatchChecksum32 is PatchChecksum for two adjacent words.
func PatchChecksum32(sum uint16, old, new uint32) uint16 {
	s := uint32(^sum) + uint32(^uint16(old>>16)) + uint32(^uint16(old)) + new>>16 + new&0xFFFF
	return ^fold(s)
}
