package vxlan

import (
	"net/netip"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// Lengths in bytes of a neighbour solicitation or advertisement without options, and of the option that has an
// Ethernet address (RFC 4861 4.3, 4.4, 4.6.1).
const (
	ndLen       = 24
	ndOptionLen = 8
)

var allNodes = netip.MustParseAddr("ff02::1")

// resolve answers a frame from the tunnel's side that asks for the MAC address of local=, by changing it into the
// answer, and returns true. Otherwise it leaves the frame as it was, and returns false. The question must come
// from the tunnel's own network: in VLAN outer-vlan=, or untagged.
func (a *app) resolve(c *graph.Ctx, x *packet.Buf, l *hdr.Layers) bool {
	b := x.Bytes()
	dst, src := hdr.Ethernet(b).Dst(), hdr.Ethernet(b).Src()
	want := uint8(0)
	if a.s.outerVLAN > 0 {
		want = 1
	}
	if l.Tags != want || l.VID != a.s.outerVLAN || dst[0]&1 == 0 && dst != a.s.localMAC || src[0]&1 != 0 || src == a.s.localMAC {
		return false
	}
	switch l.EtherType {
	case hdr.EtherARP:
		if !a.answerARP(b, l) {
			return false
		}
	case hdr.EtherIPv6:
		if !a.solicited(b, l) {
			return false
		}
		if !a.advertise(x, l) {
			c.Drop(x, reasonNoRoom)
			return true
		}
	default:
		return false
	}
	c.Mark(x, packet.Rewritten, reasonResolved)
	c.Emit(tunnel, x)
	return true
}

// answerARP changes an ARP request for local= into the reply (RFC 826). A probe, whose sender has no address yet,
// is answered, too (RFC 5227 2.1.1).
func (a *app) answerARP(b []byte, l *hdr.Layers) bool {
	p := hdr.ARP(b[l.Net:])
	if !p.Valid() || p.Op() != hdr.ARPRequest || p.TPA() != a.s.local || p.SPA() == a.s.local {
		return false
	}
	asker := hdr.Ethernet(b).Src()
	p.Encode(&hdr.ARPFields{Op: hdr.ARPReply, SHA: a.s.localMAC, SPA: a.s.local, THA: p.SHA(), TPA: p.SPA()})
	hdr.Ethernet(b).SetDst(asker)
	hdr.Ethernet(b).SetSrc(a.s.localMAC)
	return true
}

// solicited reports whether a frame is a valid neighbour solicitation for local= (RFC 4861 7.1.1).
func (a *app) solicited(b []byte, l *hdr.Layers) bool {
	if l.L4 != l.L3+hdr.IPv6Len || l.Proto != hdr.ProtoICMPv6 || l.End < l.L4+ndLen {
		return false
	}
	ip, m := hdr.IPv6(b[l.L3:]), b[l.L4:l.End]
	h := hdr.ICMP(m)
	if h.Type() != hdr.ICMPv6NeighborSol || h.Code() != 0 || ip.HopLimit() != 255 || string(m[8:ndLen]) != string(a.local) ||
		ip.Src() == a.s.local || ip.Src().IsMulticast() {
		return false
	}
	for at := ndLen; at < len(m); {
		if len(m) < at+ndOptionLen || m[at+1] == 0 {
			return false
		}
		at += int(m[at+1]) * 8
	}
	return hdr.Checksum(m, hdr.PseudoSum(ip.Src(), ip.Dst(), hdr.ProtoICMPv6, len(m))) == 0
}

// advertise changes a solicitation for local= into the advertisement (RFC 4861 7.2.4), or returns false if there
// is no room for it. The advertisement goes to the MAC address that asked, or to all nodes if the asker has no
// address yet.
func (a *app) advertise(x *packet.Buf, l *hdr.Layers) bool {
	n := l.L4 + ndLen + ndOptionLen
	if _, ok := x.Append(max(n-x.Len(), 0)); !ok {
		return false
	}
	x.TrimBack(x.Len() - n)
	b := x.Bytes()
	ip := hdr.IPv6(b[l.L3:])
	to, mac, flags := ip.Src(), hdr.Ethernet(b).Src(), uint8(0x60) // solicited, override
	if to.IsUnspecified() {
		to, mac, flags = allNodes, [6]byte{0x33, 0x33, 0, 0, 0, 1}, 0x20
	}
	hdr.Ethernet(b).SetDst(mac)
	hdr.Ethernet(b).SetSrc(a.s.localMAC)
	ip.Encode(&hdr.IPv6Fields{PayloadLen: ndLen + ndOptionLen, NextHeader: hdr.ProtoICMPv6, HopLimit: 255, Src: a.s.local, Dst: to})
	m := b[l.L4:]
	clear(m[:8])
	m[0], m[4] = hdr.ICMPv6NeighborAdv, flags
	const targetLinkLayer = 2
	m[ndLen], m[ndLen+1] = targetLinkLayer, ndOptionLen/8
	copy(m[ndLen+2:], a.s.localMAC[:])
	hdr.ICMP(m).SetChecksum(hdr.Checksum(m, hdr.PseudoSum(a.s.local, to, hdr.ProtoICMPv6, len(m))))
	return true
}
