// Package merge makes header copies of a frame, one for each branch in which tasks
// run on it side by side, and merges what has become of them into one frame again.
//
// A copy is as long as the frame and has the bytes in front of its payload; its other bytes are 0 until
// the payload is fetched. Merge takes those bytes of a copy that have changed, in fields that its tasks
// declare to write (snic/dag). Independent tasks write different fields. Values that are derived from
// fields are combined:
//
//   - A checksum (IPv4, TCP, UDP, ICMP): the differences that copies make to it are
//     added.
//   - A RoCEv2 packet's ICRC: its differences are added, because a CRC is linear.
//   - Lengths: a task that adds or removes bytes is independent only of tasks that look at no
//     bytes, so that its copy becomes the frame, and nothing is merged.
//
// Fields are those of the innermost headers, behind VLAN tags and VXLAN; all headers between the tags
// and them are effect.Encap. If the headers cannot be found (fragments, other tunnels and protocols,
// malformed frames) the whole frame counts as headers, and a byte counts as every field that it may be.
package merge

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/hdr"
)

var be = binary.BigEndian

// Parts says where the parts of a frame are.
type Parts struct {
	Head int // how many bytes are in front of the payload
	ICRC int // where it is, behind the payload; 0: there is none

	n, s  int
	parts [24]part
	sums  [4]sum
}

// part is a range of bytes of one field, or of one of several fields.
type part struct {
	from, to uint16
	fields   effect.Field
}

// sum is the place of a checksum.
type sum struct {
	at  uint16
	udp bool // 0xffff stands for 0, and 0 for none
}

const icrcLen = 4

// Find fills p for an Ethernet frame b of at most 64 KB.
func (p *Parts) Find(b []byte) {
	p.Head, p.ICRC, p.n, p.s = len(b), 0, 0, 0
	p.find(b, 0)
	if p.ICRC != 0 {
		p.add(p.Head, p.ICRC, effect.Payload)
		p.add(p.ICRC+icrcLen, len(b), effect.Payload)
	} else {
		p.add(p.Head, len(b), effect.Payload)
	}
}

func (p *Parts) add(from, to int, fields effect.Field) {
	if from < to {
		p.parts[p.n] = part{uint16(from), uint16(to), fields}
		p.n++
	}
}

func (p *Parts) sum(at int, udp bool) {
	p.sums[p.s] = sum{uint16(at), udp}
	p.s++
}

// find adds the parts of the frame that begins at offset at. If at is not 0, the frame is inside of a
// VXLAN packet, whose headers are in front of it.
func (p *Parts) find(b []byte, at int) {
	var l hdr.Layers
	if !hdr.Walk(b[at:], &l) {
		p.add(at, len(b), effect.Bytes)
		return
	}
	net, l4, end := at+l.Net, at+l.L4, at+l.End
	if at == 0 {
		p.add(0, 12, effect.Ethernet)
		p.add(12, net-2, effect.VLAN)
		p.add(net-2, net, effect.Ethernet)
	} else {
		p.add(at, net, effect.Encap)
	}
	n := end - l4
	_, dst := l.PortsOf(b[at:])
	switch {
	case l.L3 == 0 && l.EtherType == hdr.EtherARP:
		p.add(net, len(b), effect.L4Other)
		return
	case l.L3 == 0:
		p.add(net, len(b), effect.Bytes)
		return
	case l.L4 == 0 || l.Fragment:
	case l.Proto == hdr.ProtoTCP && n >= hdr.TCPLen:
		h := hdr.TCP(b[l4:]).HeaderLen()
		if h < hdr.TCPLen || h > n {
			break
		}
		p.ip(b, net, l4, effect.IPAddresses, effect.IPOther)
		p.add(l4, l4+4, effect.Ports)
		p.add(l4+4, l4+16, effect.L4Other)
		p.sum(l4+16, false)
		p.add(l4+18, l4+h, effect.L4Other)
		p.Head = l4 + h
		return
	case l.Proto == hdr.ProtoUDP && n >= hdr.UDPLen+hdr.VXLANLen && dst == hdr.PortVXLAN && at == 0:
		p.ip(b, net, l4, effect.Encap, effect.Encap)
		p.add(l4, l4+4, effect.Encap)
		p.sum(l4+6, true)
		inner := l4 + hdr.UDPLen + hdr.VXLANLen
		p.add(l4+hdr.UDPLen, inner, effect.Encap)
		p.find(b, inner)
		return
	case l.Proto == hdr.ProtoUDP && n >= hdr.UDPLen:
		p.ip(b, net, l4, effect.IPAddresses, effect.IPOther)
		p.add(l4, l4+4, effect.Ports)
		p.sum(l4+6, true)
		p.Head = l4 + hdr.UDPLen
		if dst == hdr.RoCEv2Port && n >= hdr.UDPLen+hdr.BTHLen+icrcLen {
			// No extension of a BTH is longer.
			p.ICRC = end - icrcLen
			h := min(p.Head+hdr.BTHLen+hdr.AtomicETHLen, p.ICRC)
			p.add(p.Head, h, effect.L4Other|effect.Payload)
			p.Head = h
		}
		return
	case (l.Proto == hdr.ProtoICMP || l.Proto == hdr.ProtoICMPv6) && n >= hdr.ICMPLen:
		p.ip(b, net, l4, effect.IPAddresses, effect.IPOther)
		p.sum(l4+2, false)
		p.add(l4, l4+2, effect.L4Other)
		switch hdr.ICMP(b[l4:]).Type() {
		case hdr.ICMPEcho, hdr.ICMPEchoReply, hdr.ICMPv6Echo, hdr.ICMPv6EchoReply:
			p.add(l4+4, l4+6, effect.Ports)
			p.add(l4+6, l4+8, effect.L4Other)
			p.Head = l4 + hdr.ICMPLen
		default:
			p.add(l4+4, len(b), effect.L4Other)
		}
		return
	}
	// It may be a tunnel, and what is in it an IP header.
	n = hdr.IPv6Len
	if l.Family() == hdr.NetIPv4 {
		n = hdr.IPv4(b[net:]).HeaderLen()
	}
	p.ip(b, net, net+n, effect.IPAddresses|effect.Encap, effect.IPOther|effect.Encap)
	p.add(net+n, len(b), effect.Bytes)
}

// ip adds the parts of an IP header with its options.
func (p *Parts) ip(b []byte, at, to int, addresses, other effect.Field) {
	if b[at]>>4 == 6 {
		p.add(at, at+4, other)
		p.add(at+6, at+8, other)
		p.add(at+8, at+hdr.IPv6Len, addresses)
		p.add(at+hdr.IPv6Len, to, other)
		return
	}
	p.add(at, at+2, other)
	p.add(at+4, at+10, other)
	p.sum(at+10, false)
	p.add(at+12, at+hdr.IPv4Len, addresses)
	p.add(at+hdr.IPv4Len, to, other)
}

// Copy makes dst a header copy of the frame src. Both have the same length.
func (p *Parts) Copy(dst, src []byte) {
	clear(dst[copy(dst, src[:p.Head]):])
	if p.ICRC != 0 {
		copy(dst[p.ICRC:], src[p.ICRC:p.ICRC+icrcLen])
	}
}

// Fetch copies the payload of the frame src to its header copy dst. Both have the same length.
func (p *Parts) Fetch(dst, src []byte) {
	if p.ICRC == 0 {
		copy(dst[p.Head:], src[p.Head:])
		return
	}
	copy(dst[p.Head:p.ICRC], src[p.Head:])
	copy(dst[p.ICRC+icrcLen:], src[p.ICRC+icrcLen:])
}

// Copy is a copy of a frame in which tasks have run.
type Copy struct {
	Bytes  []byte // as many as the frame's
	Writes effect.Field
	Whole  bool // it has the payload; whoever writes that has
}

// Merge merges copies into their frame, which must not have changed since they were made. It also
// changes copies, so that they cannot be used afterwards.
func (p *Parts) Merge(frame []byte, copies []Copy) {
	var into *Copy // what others have written goes there first: the frame stays as it was
	var all effect.Field
	for i := range copies {
		x := &copies[i]
		if x.Writes&effect.Bytes == 0 {
			continue
		}
		all |= x.Writes
		if into == nil {
			into = x
			continue
		}
		if x.Writes&effect.Payload != 0 && !into.Whole {
			p.Fetch(into.Bytes, frame)
		}
		p.join(into.Bytes, x.Bytes, frame, x.Writes)
	}
	if into != nil {
		p.join(frame, into.Bytes, frame, all)
	}
}

// join brings the changes between was and from into into: in the fields of writes, and in checksums and
// the ICRC. from and into were copies of was; into may be was itself.
func (p *Parts) join(into, from, was []byte, writes effect.Field) {
	for _, x := range p.parts[:p.n] {
		if x.fields&writes != 0 {
			take(into[x.from:x.to], from[x.from:x.to], was[x.from:x.to])
		}
	}
	for _, x := range p.sums[:p.s] {
		a, b, old := be.Uint16(into[x.at:]), be.Uint16(from[x.at:]), be.Uint16(was[x.at:])
		if b == old {
			continue
		}
		a = hdr.PatchChecksum(a, ^old, ^b)
		if a == 0 && x.udp {
			a = 0xffff
		}
		be.PutUint16(into[x.at:], a)
	}
	if p.ICRC != 0 {
		v := be.Uint32(into[p.ICRC:]) ^ be.Uint32(from[p.ICRC:]) ^ be.Uint32(was[p.ICRC:])
		be.PutUint32(into[p.ICRC:], v)
	}
}

// take copies the bytes that differ between from and was to into. All have the same length.
func take(into, from, was []byte) {
	for len(from) >= 8 && len(was) >= 8 && len(into) >= 8 {
		if be.Uint64(from) != be.Uint64(was) {
			for i := range 8 {
				if from[i] != was[i] {
					into[i] = from[i]
				}
			}
		}
		into, from, was = into[8:], from[8:], was[8:]
	}
	for i := range from {
		if from[i] != was[i] {
			into[i] = from[i]
		}
	}
}
