package nsh

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// Fault says what is wrong with a service header, or with what follows it.
type Fault uint8

const (
	Good         Fault = iota
	BadHeader          // of another version, or cut short
	BadMetadata        // of an unknown type, or length
	BadInner           // what follows is cut short, or not what the header says
	NextProtocol       // nor is it known
)

// Check reports what is wrong with the service header at offset net of frame b. It does not look at what follows.
func Check(b []byte, net int) Fault {
	h := hdr.NSH(b[net:])
	if len(h) < hdr.NSHLen || h.Version() != 0 || h.HeaderLen() < hdr.NSHLen || h.HeaderLen() > len(h) {
		return BadHeader
	}
	if t := h.MDType(); t != 2 && (t != 1 || h.HeaderLen() != hdr.NSHLen+16) {
		return BadMetadata
	}
	return Good
}

// Strip removes the service header at offset net, which Check must have found good, and also what is in front of
// it if a whole Ethernet frame follows. With a fault the frame stays as it is.
func Strip(x *packet.Buf, net int) Fault {
	b := x.Bytes()
	h := hdr.NSH(b[net:])
	n, inner := h.HeaderLen(), h[h.HeaderLen():]
	var t uint16
	var version uint8
	var least int
	switch h.NextProtocol() {
	case hdr.NSHNextEthernet:
		if len(inner) < hdr.EthernetLen {
			return BadInner
		}
		x.SetFrame(int(x.Off())+net+n, len(inner))
		return Good
	case hdr.NSHNextIPv4:
		t, version, least = hdr.EtherIPv4, 4, hdr.IPv4Len
	case hdr.NSHNextIPv6:
		t, version, least = hdr.EtherIPv6, 6, hdr.IPv6Len
	default:
		return NextProtocol
	}
	if len(inner) < least || inner[0]>>4 != version {
		return BadInner
	}
	hdr.VLAN(b[net-hdr.VLANLen:]).SetEtherType(t)
	copy(b[n:], b[:net])
	x.SetFrame(int(x.Off())+n, len(b)-n)
	return Good
}
