package balance

import (
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// frame returns a new frame from the box to backend i, with n zero bytes behind the IP header, and these bytes.
// It returns nil if there is no buffer.
func (b *balance) frame(c *graph.Ctx, i int, proto uint8, n int) (x *packet.Buf, l4 []byte) {
	to := &b.backends[i]
	me := &b.from[familyOf(to.addr)]
	ip := hdr.IPv4Len
	if to.addr.Is6() {
		ip = hdr.IPv6Len
	}
	if x = c.Get(); x == nil {
		return nil, nil
	}
	if _, ok := x.Append(hdr.EthernetLen + ip + n - x.Len()); !ok {
		c.Discard(x)
		return nil, nil
	}
	f := x.Bytes()
	clear(f)
	e := hdr.Ethernet(f)
	e.SetDst(to.mac)
	e.SetSrc(me.mac)
	l3 := f[hdr.EthernetLen:]
	if to.addr.Is4() {
		be.PutUint16(f[12:], hdr.EtherIPv4)
		l3[0], l3[6], l3[8], l3[9] = 0x45, 0x40, 64, proto // may not be fragmented
		be.PutUint16(l3[2:], uint16(ip+n))
		copy(l3[12:], me.addr.AsSlice())
		copy(l3[16:], to.addr.AsSlice())
		be.PutUint16(l3[10:], hdr.Checksum(l3[:ip], 0))
	} else {
		be.PutUint16(f[12:], hdr.EtherIPv6)
		l3[0], l3[6], l3[7] = 0x60, proto, 64
		be.PutUint16(l3[4:], uint16(n))
		copy(l3[8:], me.addr.AsSlice())
		copy(l3[24:], to.addr.AsSlice())
	}
	return x, l3[ip:]
}

// pseudo returns the checksum of l4, which stands behind the IP header of a frame to backend i, with the
// pseudo-header.
func (b *balance) pseudo(i int, proto uint8, l4 []byte) uint16 {
	to := &b.backends[i]
	me := &b.from[familyOf(to.addr)]
	return pseudo(me.addr.AsSlice(), to.addr.AsSlice(), proto, l4)
}

func pseudo(src, dst []byte, proto uint8, l4 []byte) uint16 {
	sum := uint32(proto) + uint32(len(l4))
	for _, a := range [2][]byte{src, dst} {
		for k := 0; k < len(a); k += 2 {
			sum += uint32(be.Uint16(a[k:]))
		}
	}
	return hdr.Checksum(l4, sum)
}

// segment sends a TCP segment of a check to backend i.
func (b *balance) segment(c *graph.Ctx, i int, p *probe, flags uint8, data []byte) {
	n := hdr.TCPLen + len(data)
	if flags&tcpSYN != 0 {
		n += 4
	}
	x, l4 := b.frame(c, i, hdr.ProtoTCP, n)
	if x == nil {
		return // the check fails in time
	}
	be.PutUint16(l4, p.port)
	be.PutUint16(l4[2:], b.checked())
	be.PutUint32(l4[4:], p.seq)
	if flags&tcpACK != 0 {
		be.PutUint32(l4[8:], p.ack)
	}
	l4[12], l4[13] = hdr.TCPLen/4<<4, flags
	be.PutUint16(l4[14:], 8192)
	if flags&tcpSYN != 0 {
		l4[12] += 1 << 4
		copy(l4[20:], []byte{2, 4, 1400 >> 8, 1400 & 0xff}) // maximum segment size
	}
	copy(l4[int(l4[12]>>4)*4:], data)
	be.PutUint16(l4[16:], b.pseudo(i, hdr.ProtoTCP, l4))
	c.Emit(1, x)
}

// echo sends an ICMP echo request with a random number, which only the backend learns.
func (b *balance) echo(c *graph.Ctx, i int, p *probe) {
	proto, typ := uint8(hdr.ProtoICMP), hdr.ICMPEcho
	if b.backends[i].addr.Is6() {
		proto, typ = hdr.ProtoICMPv6, hdr.ICMPv6Echo
	}
	x, l4 := b.frame(c, i, proto, 12)
	if x == nil {
		return
	}
	l4[0] = typ
	be.PutUint16(l4[4:], p.port)
	be.PutUint32(l4[8:], p.seq)
	if typ == hdr.ICMPEcho {
		be.PutUint16(l4[2:], hdr.Checksum(l4, 0))
	} else {
		be.PutUint16(l4[2:], b.pseudo(i, proto, l4))
	}
	c.Emit(1, x)
}

// arp answers an ARP request for the box's address, or returns false if the frame is none.
func (b *balance) arp(c *graph.Ctx, frame []byte, me *self) bool {
	a := frame[14:42]
	own := me.addr.As4()
	if be.Uint64(a) != 0x0001080006040001 || string(a[24:28]) != string(own[:]) { // a request, of Ethernet, for IPv4
		return false
	}
	x := c.Get()
	if x == nil {
		return true
	}
	if _, ok := x.Append(60 - x.Len()); !ok {
		c.Discard(x)
		return true
	}
	f := x.Bytes()
	clear(f)
	copy(f, a[8:14])
	copy(f[6:], me.mac[:])
	be.PutUint16(f[12:], hdr.EtherARP)
	be.PutUint64(f[14:], 0x0001080006040002)
	copy(f[22:], me.mac[:])
	copy(f[28:], own[:])
	copy(f[32:], a[8:18]) // who asked
	c.Emit(1, x)
	return true
}

// The group of all nodes on the link, ff02::1, and its MAC address (RFC 4291 2.7.1, RFC 2464 7).
var (
	allNodes    = [16]byte{0: 0xFF, 1: 2, 15: 1}
	allNodesMAC = [6]byte{0x33, 0x33, 0, 0, 0, 1}
)

// neighbour answers a neighbour solicitation for the box's address (RFC 4861 7.2.4), or returns false if it is
// for another address.
func (b *balance) neighbour(c *graph.Ctx, frame []byte, d *hdr.Layers, l4 []byte, me *self) bool {
	own := me.addr.As16()
	src := frame[d.L3+8 : d.L3+24]
	if string(l4[8:24]) != string(own[:]) || frame[d.L3+7] != 255 {
		return false
	}
	to, flags := frame[6:12], uint8(0x60) // solicited, override
	if [16]byte(src) == [16]byte{} {      // who asks whether the address is free has none yet: all nodes are told
		to, src, flags = allNodesMAC[:], allNodes[:], 0x20
	}
	x := c.Get()
	if x == nil {
		return true
	}
	const n = 32
	if _, ok := x.Append(hdr.EthernetLen + hdr.IPv6Len + n - x.Len()); !ok {
		c.Discard(x)
		return true
	}
	f := x.Bytes()
	clear(f)
	copy(f, to)
	copy(f[6:], me.mac[:])
	be.PutUint16(f[12:], hdr.EtherIPv6)
	l3 := f[hdr.EthernetLen:]
	l3[0], l3[6], l3[7] = 0x60, hdr.ProtoICMPv6, 255
	be.PutUint16(l3[4:], n)
	copy(l3[8:], own[:])
	copy(l3[24:], src)
	na := l3[hdr.IPv6Len:]
	na[0], na[4] = hdr.ICMPv6NeighborAdv, flags
	copy(na[8:], own[:])
	na[24], na[25] = 2, 1 // target link-layer address
	copy(na[26:], me.mac[:])
	be.PutUint16(na[2:], pseudo(own[:], src, hdr.ProtoICMPv6, na))
	c.Emit(1, x)
	return true
}
