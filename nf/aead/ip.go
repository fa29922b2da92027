package aead

import (
	"net/netip"

	"github.com/quillon/quillon/nf/hdr"
)

// Protocol numbers and sizes (RFC 4303, RFC 4106).
const (
	protoIPv4 = 4
	protoIPv6 = 41
	protoESP  = 50

	espLen     = 8 // SPI and sequence number
	ivLen      = 8
	icvLen     = 16
	trailerLen = 2 // pad length and next header
)

// extensions is the largest number of IPv6 extension headers that parse6 skips.
const extensions = 8

// sort is what parse found a frame to be.
type sort uint8

const (
	isIP sort = iota
	notIP
	malformed
)

// datagram says where the parts of an IP packet are, by offsets into its frame.
type datagram struct {
	v6       bool
	fragment bool
	proto    uint8 // of what is at body
	l3       int
	nextAt   int // the byte that holds proto
	body     int // first byte that transport mode protects
	end      int // the packet's, not the frame's
}

// parse finds the IP packet of a frame behind up to two VLAN tags.
func parse(b []byte, d *datagram) sort {
	if len(b) < hdr.EthernetLen {
		return notIP
	}
	const usual = hdr.EthernetLen + hdr.IPv4Len
	if len(b) >= usual && be.Uint32(b[12:])>>8 == hdr.EtherIPv4<<8|0x45 { // IPv4 without tags and options
		p := hdr.IPv4(b[hdr.EthernetLen:])
		total := int(p.TotalLen())
		if total < hdr.IPv4Len || total > len(p) || !p.ChecksumOK() {
			return malformed
		}
		d.v6, d.fragment, d.proto = false, p.IsFragment(), p.Protocol()
		d.l3, d.nextAt, d.body, d.end = hdr.EthernetLen, hdr.EthernetLen+9, usual, hdr.EthernetLen+total
		return isIP
	}
	at := hdr.EthernetLen
	t := hdr.Ethernet(b).EtherType()
	for range hdr.MaxTags {
		if t != hdr.EtherVLAN && t != hdr.EtherQinQ {
			break
		}
		if len(b) < at+hdr.VLANLen {
			return notIP
		}
		t = hdr.VLAN(b[at:]).EtherType()
		at += hdr.VLANLen
	}
	switch t {
	case hdr.EtherIPv4:
		return d.parse4(b, at)
	case hdr.EtherIPv6:
		return d.parse6(b, at)
	case hdr.EtherVLAN, hdr.EtherQinQ:
		return malformed // there may be IP behind more tags
	}
	return notIP
}

func (d *datagram) parse4(b []byte, at int) sort {
	p := hdr.IPv4(b[at:])
	if len(p) < hdr.IPv4Len || p.Version() != 4 {
		return malformed
	}
	n, total := p.HeaderLen(), int(p.TotalLen())
	if n < hdr.IPv4Len || total < n || total > len(p) || !p.ChecksumOK() {
		return malformed
	}
	*d = datagram{fragment: p.IsFragment(), proto: p.Protocol(), l3: at, nextAt: at + 9, body: at + n, end: at + total}
	return isIP
}

func (d *datagram) parse6(b []byte, at int) sort {
	p := hdr.IPv6(b[at:])
	if len(p) < hdr.IPv6Len || p[0]>>4 != 6 || hdr.IPv6Len+int(p.PayloadLen()) > len(p) {
		return malformed
	}
	*d = datagram{v6: true, proto: p.NextHeader(), l3: at, nextAt: at + 6, body: at + hdr.IPv6Len, end: at + hdr.IPv6Len + int(p.PayloadLen())}
	for range extensions {
		switch d.proto {
		case hdr.ProtoFragment:
			d.fragment = true
			return isIP
		case hdr.ProtoHopByHop, hdr.ProtoRouting, hdr.ProtoDstOption:
		default:
			return isIP
		}
		if d.end < d.body+8 {
			return malformed
		}
		next, n := b[d.body], 8+int(b[d.body+1])*8
		if d.end < d.body+n {
			return malformed
		}
		if d.proto == hdr.ProtoDstOption && next != hdr.ProtoRouting && next != protoESP && next != hdr.ProtoFragment {
			return isIP // for the destination alone: protected (RFC 4303 3.1.1)
		}
		d.proto, d.nextAt, d.body = next, d.body, d.body+n
	}
	return isIP
}

func (d *datagram) src(b []byte) netip.Addr {
	if d.v6 {
		return hdr.IPv6(b[d.l3:]).Src()
	}
	return hdr.IPv4(b[d.l3:]).Src()
}

func (d *datagram) dst(b []byte) netip.Addr {
	if d.v6 {
		return hdr.IPv6(b[d.l3:]).Dst()
	}
	return hdr.IPv4(b[d.l3:]).Dst()
}

// tos returns the byte that has DSCP and ECN.
func (d *datagram) tos(b []byte) uint8 {
	if d.v6 {
		return hdr.IPv6(b[d.l3:]).TrafficClass()
	}
	return hdr.IPv4(b[d.l3:]).TOS()
}

func (d *datagram) setTOS(b []byte, v uint8) {
	if d.v6 {
		hdr.IPv6(b[d.l3:]).SetTrafficClass(v)
		return
	}
	p := hdr.IPv4(b[d.l3:])
	old := be.Uint16(p)
	p.SetTOS(v)
	p.SetChecksum(hdr.PatchChecksum(p.Checksum(), old, be.Uint16(p)))
}

// reshape writes the packet's length and the protocol behind its headers into its headers, and adapts the
// checksum.
func (d *datagram) reshape(b []byte, proto uint8) {
	if d.v6 {
		b[d.nextAt] = proto
		hdr.IPv6(b[d.l3:]).SetPayloadLen(uint16(d.end - d.l3 - hdr.IPv6Len))
		return
	}
	p := b[d.l3 : d.l3+hdr.IPv4Len]
	was := be.Uint32(p[8:])
	length, next := uint16(d.end-d.l3), uint16(was>>16)&0xFF00|uint16(proto)
	sum := hdr.PatchChecksum32(uint16(was), uint32(be.Uint16(p[2:]))<<16|was>>16, uint32(length)<<16|uint32(next))
	be.PutUint16(p[2:], length)
	be.PutUint32(p[8:], uint32(next)<<16|uint32(sum))
}

// neighbour reports whether the packet is neighbour or router discovery, which
// does not leave its link (RFC 4861: hop limit 255).
func (d *datagram) neighbour(b []byte) bool {
	return d.v6 && d.proto == hdr.ProtoICMPv6 && hdr.IPv6(b[d.l3:]).HopLimit() == 255 && d.body < d.end && b[d.body] >= 133 && b[d.body] <= 137
}

// ecnOut returns the ECN field of a packet after decapsulation, from its inner and outer fields (RFC 6040 4.2).
// It returns false if the packet must be dropped.
func ecnOut(inner, outer uint8) (uint8, bool) {
	const ect1, ect0, ce = 1, 2, 3
	inner, outer = inner&3, outer&3
	switch {
	case outer == ce && inner == 0:
		return 0, false
	case outer == ce:
		return ce, true
	case outer == ect1 && inner == ect0:
		return ect1, true
	}
	return inner, true
}
