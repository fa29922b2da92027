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

// Layers is where Walk found things: offsets from the frame's first byte; 0 for
// what is not there.
type Layers struct {
	EtherType uint16 // behind the tags
	VID       uint16 // of the outermost tag
	Tags      uint8  // VLAN tags stepped over
	Proto     uint8  // above IP, behind extension headers
	Fragment  bool   // of an IP datagram
	// Net is what the tags are followed by. L3 is Net when that is an IPv4 or IPv6
	// header whose version and lengths fit in the frame. L4 is where Proto begins:
	// none in fragments but the first. End is where the IP datagram ends; what is
	// behind it is padding.
	Net, L3, L4, End int
}

// Walk finds the network and transport headers of frame b (Ethernet, without
// FCS) of any protocol. Checksums are not looked at. It is false when the
// Ethernet header or a tag does not fit in b.
func Walk(b []byte, l *Layers) bool {
	*l = Layers{}
	if len(b) < EthernetLen {
		return false
	}
	l.EtherType, l.Net = Ethernet(b).EtherType(), EthernetLen
	for l.Tags < MaxTags && (l.EtherType == EtherVLAN || l.EtherType == EtherQinQ) {
		if len(b) < l.Net+VLANLen {
			return false
		}
		t := VLAN(b[l.Net:])
		if l.Tags == 0 {
			l.VID = t.VID()
		}
		l.EtherType, l.Net = t.EtherType(), l.Net+VLANLen
		l.Tags++
	}
	p := b[l.Net:]
	switch l.EtherType {
	case EtherIPv4:
		if len(p) < IPv4Len {
			return true
		}
		h := IPv4(p)
		n, total := h.HeaderLen(), int(h.TotalLen())
		if h.Version() != 4 || n < IPv4Len || total < n || total > len(p) {
			return true
		}
		l.L3, l.End, l.Proto, l.Fragment = l.Net, l.Net+total, h.Protocol(), h.IsFragment()
		if h.FragOffset() == 0 {
			l.L4 = l.Net + n
		}
	case EtherIPv6:
		if len(p) < IPv6Len {
			return true
		}
		h := IPv6(p)
		total := IPv6Len + int(h.PayloadLen())
		if h.Version() != 6 || total > len(p) {
			return true
		}
		l.L3, l.End = l.Net, l.Net+total
		proto, off, ok := h[:total].Upper()
		l.Proto = proto
		if !ok {
			return true
		}
		if proto == ProtoFragment {
			l.Fragment = true
			if total < off+8 {
				return true
			}
			l.Proto = h[off]
			if be.Uint16(h[off+2:])&^7 != 0 {
				return true
			}
			off += 8
		}
		l.L4 = l.Net + off
	}
	return true
}

// PortsOf are the source and destination port of a walked frame; zeros when
// there are none, or in another fragment.
func (l *Layers) PortsOf(b []byte) (src, dst uint16) {
	if l.L4 == 0 || l.End < l.L4+4 || l.Proto != ProtoTCP && l.Proto != ProtoUDP {
		return 0, 0
	}
	return be.Uint16(b[l.L4:]), be.Uint16(b[l.L4+2:])
}
