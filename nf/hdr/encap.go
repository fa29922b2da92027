package hdr

// Sizes of the encapsulation headers in bytes; an NSH's without metadata.
const (
	VXLANLen = 8
	NSHLen   = 8
)

// PortVXLAN is the UDP port of VXLAN (RFC 7348 5).
const PortVXLAN = 4789

// EtherNSH is the Ethernet type of a network service header (RFC 8300 12.1).
const EtherNSH = 0x894F

// VXLAN is a header of 8 bytes in front of an Ethernet frame (RFC 7348 5):
//
//	0 Flags (0x08: there is a VNI) | 1 reserved | 4 VNI:24 reserved:8 |
type VXLAN []byte

// HasVNI is the flag I, without which a header is not valid.
func (h VXLAN) HasVNI() bool { return h[0]&0x08 != 0 }
func (h VXLAN) VNI() uint32  { return be.Uint32(h[4:]) >> 8 }

// Encode writes all 8 bytes.
func (h VXLAN) Encode(vni uint32) { be.PutUint64(h, 0x08<<56|uint64(vni&0xFFFFFF)<<8) }

// Protocols that follow an NSH (RFC 8300 12.2.5).
const (
	NSHNextIPv4     uint8 = 1
	NSHNextIPv6     uint8 = 2
	NSHNextEthernet uint8 = 3
)

// NSH is a network service header: a base header, a service path header, and
// metadata (RFC 8300 2):
//
//	0 Version:2 O:1 U:1 TTL:6 Length:6 U:4 | 2 MDType:4 | 3 NextProtocol |
//	4 SPI:24 SI:8 | 8 metadata |
type NSH []byte

func (h NSH) Version() uint8 { return h[0] >> 6 }

// OAM says that the packet is one of operations and maintenance.
func (h NSH) OAM() bool      { return h[0]&0x20 != 0 }
func (h NSH) SetOAM(v bool)  { setBit(h, 0, 0x20, v) }
func (h NSH) TTL() uint8     { return uint8(be.Uint16(h)>>6) & 63 }
func (h NSH) SetTTL(v uint8) { be.PutUint16(h, be.Uint16(h)&^(63<<6)|uint16(v&63)<<6) }

// HeaderLen is in bytes, with metadata; below NSHLen the header is malformed.
func (h NSH) HeaderLen() int          { return int(h[1]&63) * 4 }
func (h NSH) MDType() uint8           { return h[2] & 15 }
func (h NSH) NextProtocol() uint8     { return h[3] }
func (h NSH) SPI() uint32             { return be.Uint32(h[4:]) >> 8 }
func (h NSH) SetSPI(v uint32)         { be.PutUint32(h[4:], v<<8|uint32(h[7])) }
func (h NSH) SI() uint8               { return h[7] }
func (h NSH) SetSI(v uint8)           { h[7] = v }
func (h NSH) SetNextProtocol(v uint8) { h[3] = v }

// Metadata are the bytes between the service path header and the header's end.
func (h NSH) Metadata() []byte { return h[NSHLen:h.HeaderLen()] }

// NSHFields are the fields of a header of MD type 2 without metadata, for
// Encode.
type NSHFields struct {
	OAM          bool
	TTL          uint8
	NextProtocol uint8
	SPI          uint32
	SI           uint8
}

// Encode writes all 8 bytes.
func (h NSH) Encode(f *NSHFields) {
	be.PutUint16(h, uint16(f.TTL&63)<<6|NSHLen/4)
	h.SetOAM(f.OAM)
	h[2], h[3] = 2, f.NextProtocol
	be.PutUint32(h[4:], f.SPI<<8|uint32(f.SI))
}

// Sizes of the headers of a mirrored frame: GRE with a sequence number, and ERSPAN of type II.
const (
	GRESeqLen = 8
	ERSPANLen = 8
)

// ProtoGRE is the IP protocol of generic routing encapsulation (RFC 2784).
const ProtoGRE = 47

// EtherERSPAN is GRE's protocol type of ERSPAN of types I and II (draft-foschiano-erspan).
const EtherERSPAN = 0x88BE

// GRESeq is a GRE header of 8 bytes with a sequence number (RFC 2890):
//
//	0 Flags (0x1000: there is a sequence number) | 2 Protocol | 4 Sequence |
type GRESeq []byte

// Encode writes all 8 bytes.
func (h GRESeq) Encode(proto uint16, seq uint32) {
	be.PutUint64(h, 0x1000<<48|uint64(proto)<<32|uint64(seq))
}

// ERSPAN is a header of type II, version 1, in front of a mirrored frame:
//
//	0 Version:4 VLAN:12 | 2 COS:3 En:2 T:1 Session:10 | 4 reserved:12 Index:20 |
type ERSPAN []byte

// ERSPANFields are its fields, for Encode.
type ERSPANFields struct {
	VLAN      uint16
	COS       uint8
	Tagged    bool // the mirrored frame has its tag (En is 3)
	Truncated bool
	Session   uint16 // 10 bits
	Index     uint32 // 20 bits
}

// Encode writes all 8 bytes.
func (h ERSPAN) Encode(f *ERSPANFields) {
	v := 1<<28 | uint32(f.VLAN&0xFFF)<<16 | uint32(f.COS&7)<<13 | uint32(f.Session&0x3FF)
	if f.Tagged {
		v |= 3 << 11
	}
	if f.Truncated {
		v |= 1 << 10
	}
	be.PutUint32(h, v)
	be.PutUint32(h[4:], f.Index&0xFFFFF)
}
