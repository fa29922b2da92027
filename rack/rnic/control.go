package rnic

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// A NIC answers ARP requests, IPv6 neighbour solicitations and ICMP echo requests
// for its own address, so that its neighbours find it and can ping
// it. It writes the reply into the Buf of the request.

// controlDepth is the largest number of such replies that wait for Output.
const controlDepth = 64

const (
	protoICMP   = 1
	protoICMPv6 = 58
	arpLen      = 28
	icmpLen     = 8
	naLen       = 32 // neighbour advertisement with target link-layer address
)

// controlQueue is a ring of replies that wait for Output.
type controlQueue struct {
	ring    []*packet.Buf
	head, n int
}

func (c *controlQueue) pop() *packet.Buf {
	if c.n == 0 {
		return nil
	}
	b := c.ring[c.head]
	c.ring[c.head] = nil
	c.head = (c.head + 1) % len(c.ring)
	c.n--
	return b
}

func (c *controlQueue) push(b *packet.Buf) {
	c.ring[(c.head+c.n)%len(c.ring)] = b
	c.n++
}

// inputControl handles a frame that is not RoCE; it returns true if it kept b for a reply.
func (n *NIC) inputControl(b *packet.Buf, p []byte) bool {
	s := &n.stats
	var ok bool
	switch binary.BigEndian.Uint16(p[12:]) {
	case hdr.EtherARP:
		ok = n.replyARP(b, p)
	case hdr.EtherIPv4:
		ok = n.replyEcho4(b, p)
	case hdr.EtherIPv6:
		ok = n.reply6(b, p)
	}
	if !ok {
		s.DropNotRoCE++
		return false
	}
	if n.control.n == len(n.control.ring) {
		s.DropControl++
		return false
	}
	s.RxControl++
	b.Meta = packet.Meta{}
	n.control.push(b)
	return true
}

// swapMAC addresses the frame back to its sender.
func (n *NIC) swapMAC(p []byte) {
	copy(p[:6], p[6:12])
	copy(p[6:12], n.cfg.MAC[:])
}

// replyARP turns an ARP request for the NIC's address into the reply.
func (n *NIC) replyARP(b *packet.Buf, p []byte) bool {
	if !n.ip4 || len(p) < etherLen+arpLen {
		return false
	}
	ip := n.cfg.IP.As4()
	a := p[etherLen:]
	// Ethernet, IPv4, lengths 6 and 4, request.
	if [8]byte(a) != [8]byte{0, 1, 8, 0, 6, 4, 0, 1} || [4]byte(a[24:]) != ip {
		return false
	}
	a[7] = 2
	copy(a[18:28], a[8:18])
	copy(a[8:], n.cfg.MAC[:])
	copy(a[14:], ip[:])
	copy(p, a[18:24])
	copy(p[6:], n.cfg.MAC[:])
	return b.TrimBack(len(p) - etherLen - arpLen)
}

// replyEcho4 turns an ICMP echo request into the reply.
func (n *NIC) replyEcho4(b *packet.Buf, p []byte) bool {
	ip := p[etherLen:]
	if !n.ip4 || p[0]&1 != 0 || len(ip) < ipv4Len+icmpLen || ip[0] != 0x45 || ip[9] != protoICMP {
		return false
	}
	total := int(binary.BigEndian.Uint16(ip[2:]))
	if total < ipv4Len+icmpLen || total > len(ip) || binary.BigEndian.Uint16(ip[6:])&0x3FFF != 0 ||
		[4]byte(ip[16:]) != n.cfg.IP.As4() || sum16(ip[:ipv4Len], 0) != 0xFFFF {
		return false
	}
	m := ip[ipv4Len:total]
	if m[0] != 8 || m[1] != 0 || sum16(m, 0) != 0xFFFF {
		return false
	}
	n.swapMAC(p)
	copy(ip[16:20], ip[12:16])
	src := n.cfg.IP.As4()
	copy(ip[12:], src[:])
	ip[8] = hopLimit
	binary.BigEndian.PutUint16(ip[4:], n.ipID)
	n.ipID++
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^sum16(ip[:ipv4Len], 0))
	m[0] = 0
	binary.BigEndian.PutUint16(m[2:], 0)
	binary.BigEndian.PutUint16(m[2:], ^sum16(m, 0))
	return b.TrimBack(len(p) - etherLen - total)
}

// sum6 returns the ones' complement sum of ICMPv6 message m with the
// pseudo-header (RFC 8200 8.1) of IPv6 header ip.
func sum6(ip, m []byte) uint16 {
	return sum16(m, uint32(sum16(ip[8:40], uint32(len(m))+protoICMPv6)))
}

// reply6 answers a neighbour solicitation or an ICMPv6 echo request.
func (n *NIC) reply6(b *packet.Buf, p []byte) bool {
	ip := p[etherLen:]
	if n.ip4 || len(ip) < ipv6Len+icmpLen || ip[6] != protoICMPv6 {
		return false
	}
	size := int(binary.BigEndian.Uint16(ip[4:]))
	if size < icmpLen || ipv6Len+size > len(ip) {
		return false
	}
	m := ip[ipv6Len : ipv6Len+size]
	if sum6(ip, m) != 0xFFFF || m[1] != 0 {
		return false
	}
	own := n.cfg.IP.As16()
	switch m[0] {
	case 128: // echo request
		if [16]byte(ip[24:]) != own {
			return false
		}
		n.swapMAC(p)
		copy(ip[24:40], ip[8:24])
		copy(ip[8:], own[:])
		ip[7] = hopLimit
		m[0] = 129
		binary.BigEndian.PutUint16(m[2:], 0)
		binary.BigEndian.PutUint16(m[2:], ^sum6(ip, m))
		return b.TrimBack(len(p) - etherLen - ipv6Len - size)
	case 135: // neighbour solicitation (RFC 4861 4.3)
		if ip[7] != 255 || size < 24 || [16]byte(m[8:]) != own {
			return false
		}
		return n.advertise(b, ip)
	}
	return false
}

// advertise replaces the solicitation ip by the advertisement that answers it.
func (n *NIC) advertise(b *packet.Buf, ip []byte) bool {
	var f [etherLen + ipv6Len + naLen]byte
	own := n.cfg.IP.As16()
	src := [16]byte(ip[8:24])
	flags := byte(0x60) // solicited, override
	mac := [6]byte(b.Bytes()[6:12])
	if src == [16]byte{} { // duplicate address detection: tell all nodes
		flags = 0x20
		src = [16]byte{0: 0xFF, 1: 0x02, 15: 1}
		mac = [6]byte{0x33, 0x33, 0, 0, 0, 1}
	}
	copy(f[:], mac[:])
	copy(f[6:], n.cfg.MAC[:])
	binary.BigEndian.PutUint16(f[12:], hdr.EtherIPv6)
	h := f[etherLen:]
	h[0], h[5], h[6], h[7] = 0x60, naLen, protoICMPv6, 255
	copy(h[8:], own[:])
	copy(h[24:], src[:])
	m := h[ipv6Len:]
	m[0], m[4] = 136, flags
	copy(m[8:], own[:])
	m[24], m[25] = 2, 1
	copy(m[26:], n.cfg.MAC[:])
	binary.BigEndian.PutUint16(m[2:], ^sum6(h, m))
	return b.SetBytes(f[:])
}
