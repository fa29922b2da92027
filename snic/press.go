package snic

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// press tells the senders of a group that there will soon be no more room for what their tenant sends: packets whose
// senders know ECN are marked. Others learn it from drops.
func (ig *ingress) press(c *graph.Ctx, g *group) {
	marked := false
	for _, x := range g.batch.Bufs() {
		var l hdr.Layers
		if hdr.Walk(x.Bytes(), &l) && l.L3 > 0 && congest(x.Bytes(), &l) {
			c.Mark(x, packet.Rewritten, reasonPressed)
			marked = true
		}
	}
	if marked {
		ig.gates.mark(ig.cat.services[g.way.dag].tenant)
	}
}

// congest marks a packet whose sender knows ECN as one that met congestion, with its checksum (RFC 3168).
func congest(b []byte, l *hdr.Layers) bool {
	if l.EtherType == hdr.EtherIPv6 {
		h := hdr.IPv6(b[l.L3:])
		tos := h.TrafficClass()
		if !markable(tos) {
			return false
		}
		h.SetTrafficClass(tos | hdr.CE)
		return true
	}
	h := hdr.IPv4(b[l.L3:])
	if !markable(h.TOS()) {
		return false
	}
	old := binary.BigEndian.Uint16(h)
	h.SetTOS(h.TOS() | hdr.CE)
	h.SetChecksum(hdr.PatchChecksum(h.Checksum(), old, binary.BigEndian.Uint16(h)))
	return true
}

// markable reports whether a packet can be marked, and is not.
func markable(tos uint8) bool { return tos&3 == hdr.ECT0 || tos&3 == hdr.ECT1 }
