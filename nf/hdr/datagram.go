package hdr

import "math/bits"

// Datagram is where ParseIP found an IP datagram: offsets from the frame's
// first byte.
type Datagram struct {
	Net      uint8 // NetIPv4, NetIPv6; NetNone: no IP datagram
	Tags     uint8 // VLAN tags stepped over
	Proto    uint8 // of what follows the IP headers; of a fragment: of the whole
	Fragment bool  // a part of a larger datagram, or an IPv6 atomic fragment
	L3       uint16
	// L4 is what follows the IP headers, End the datagram's end: Ethernet padding
	// may follow.
	L4, End uint16
}

// ParseIP walks frame b (Ethernet, without FCS) to what follows its IP headers.
// ok is false when the frame contradicts itself or is cut short, has more than
// MaxTags VLAN tags, or more than 65535 bytes; d.Net is NetNone when the frame
// carries something else than IP.
func ParseIP(b []byte, d *Datagram) (ok bool) {
	*d = Datagram{}
	if len(b) < EthernetLen || len(b) > 0xFFFF {
		return false
	}
	et, at := be.Uint16(b[12:]), EthernetLen
	for et == EtherVLAN || et == EtherQinQ {
		if d.Tags == MaxTags || len(b) < at+VLANLen {
			return false
		}
		et = be.Uint16(b[at+2:])
		at += VLANLen
		d.Tags++
	}
	d.L3 = uint16(at)
	p := b[at:]
	switch et {
	case EtherIPv4:
		if len(p) < IPv4Len {
			return false
		}
		h := IPv4(p)
		ihl, total := h.HeaderLen(), int(h.TotalLen())
		if h.Version() != 4 || ihl < IPv4Len || total < ihl || len(p) < total {
			return false
		}
		d.Net, d.Proto, d.Fragment = NetIPv4, h.Protocol(), h.IsFragment()
		d.L4, d.End = uint16(at+ihl), uint16(at+total)
	case EtherIPv6:
		if len(p) < IPv6Len {
			return false
		}
		h := IPv6(p)
		total := IPv6Len + int(h.PayloadLen())
		if h.Version() != 6 || len(p) < total {
			return false
		}
		proto, off, whole := h[:total].Upper()
		if !whole {
			return false
		}
		if proto == ProtoFragment {
			if total < off+8 {
				return false
			}
			d.Fragment, proto = true, h[off]
			off += 8
		}
		d.Net, d.Proto = NetIPv6, proto
		d.L4, d.End = uint16(at+off), uint16(at+total)
	}
	return true
}

// Fold mixes v into hash h: a product of 128 bits, folded. For tables of flows;
// it keeps out no one who knows it.
func Fold(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9E3779B97F4A7C15, v^0xD1B54A32D192ED03)
	return bits.RotateLeft64(h, 23) ^ hi ^ lo
}
