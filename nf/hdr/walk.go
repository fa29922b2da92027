package hdr

import "math/bits"

// Layers is where Walk found things: offsets from the frame's first byte; 0 for
// what is not there.
type Layers struct {
	EtherType uint16 // behind the tags
	VID       uint16 // of the outermost tag
	Inner     uint16 // VID of the tag behind it
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
		} else {
			l.Inner = t.VID()
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

// UsualL4 is where the transport header of a usual frame is; its IP header is behind the Ethernet header.
const UsualL4 = EthernetLen + IPv4Len

// Usual reports whether frame b is what most are: a whole IPv4 datagram of TCP or UDP, without tags and options. Its headers are at fixed places, up to the ports
// at least, so that those who see each frame need no Walk, which finds the same. End is where the datagram ends.
func Usual(b []byte) (end int, proto uint8, ok bool) {
	if len(b) < UsualL4+UDPLen {
		return 0, 0, false
	}
	h := (*[UsualL4 + UDPLen]byte)(b)
	end, proto = EthernetLen+int(be.Uint16(h[16:])), h[23]
	return end, proto, be.Uint32(h[12:])>>8 == EtherIPv4<<8|0x45 && be.Uint16(h[20:])&0x3FFF == 0 && (proto == ProtoUDP || proto == ProtoTCP) && end >= UsualL4+UDPLen && end <= len(b)
}

// Usual is the Layers of a usual frame.
func (l *Layers) Usual(end int, proto uint8) {
	*l = Layers{EtherType: EtherIPv4, Proto: proto, Net: EthernetLen, L3: EthernetLen, L4: UsualL4, End: end}
}

// VLANs is what tells networks with the same addresses apart: VID, and 12 bits
// above it Inner.
func (l *Layers) VLANs() uint32 { return uint32(l.VID) | uint32(l.Inner)<<12 }

// Malformed reports whether what was walked contradicts itself or is cut short: an
// IP header or its extensions, or there are more than MaxTags tags.
func (l *Layers) Malformed() bool {
	switch l.EtherType {
	case EtherIPv4, EtherIPv6:
		return l.L3 == 0 || l.L4 == 0 && !l.Fragment
	}
	return l.EtherType == EtherVLAN || l.EtherType == EtherQinQ
}

// Family is NetIPv4 or NetIPv6; NetNone: no IP datagram.
func (l *Layers) Family() uint8 {
	switch {
	case l.L3 == 0:
		return NetNone
	case l.EtherType == EtherIPv6:
		return NetIPv6
	}
	return NetIPv4
}

// PortsOf are the source and destination port of a walked frame; zeros when
// there are none, or in another fragment.
func (l *Layers) PortsOf(b []byte) (src, dst uint16) {
	if l.L4 == 0 || l.End < l.L4+4 || l.Proto != ProtoTCP && l.Proto != ProtoUDP {
		return 0, 0
	}
	return be.Uint16(b[l.L4:]), be.Uint16(b[l.L4+2:])
}

// Fold mixes v into hash h: a product of 128 bits, folded. For tables of flows;
// it keeps out no one who knows it.
func Fold(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9E3779B97F4A7C15, v^0xD1B54A32D192ED03)
	return bits.RotateLeft64(h, 23) ^ hi ^ lo
}
