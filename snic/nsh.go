package snic

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// leavePath takes the service header off a frame, of which hdr.Walk found l, and
// what is in front of it if a whole frame follows. reasonOffPath: it did.
func leavePath(x *packet.Buf, l *hdr.Layers) graph.Reason {
	p := x.Bytes()
	if len(p) < l.Net+hdr.NSHLen {
		return reasonBadNSH
	}
	h := hdr.NSH(p[l.Net:])
	n := h.HeaderLen()
	if h.Version() != 0 || h.OAM() || n < hdr.NSHLen || len(p) < l.Net+n || h.SI() == 0 {
		return reasonBadNSH
	}
	inner := p[l.Net+n:]
	switch h.NextProtocol() {
	case hdr.NSHNextEthernet:
		if len(inner) < hdr.EthernetLen {
			return reasonBadNSH
		}
		x.SetFrame(int(x.Off())+l.Net+n, len(inner))
	case hdr.NSHNextIPv4, hdr.NSHNextIPv6:
		if len(inner) < hdr.IPv4Len {
			return reasonBadNSH
		}
		t := hdr.EtherIPv4
		if h.NextProtocol() == hdr.NSHNextIPv6 {
			t = hdr.EtherIPv6
		}
		binary.BigEndian.PutUint16(p[l.Net-2:], uint16(t))
		copy(p[n:], p[:l.Net])
		x.SetFrame(int(x.Off())+n, len(p)-n)
	default:
		return reasonBadNSH
	}
	return reasonOffPath
}
