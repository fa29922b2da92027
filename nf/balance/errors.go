package balance

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// The ends of a datagram, as flow.Requote has them.
const (
	source      = 0
	destination = 1
)

// about returns the reason of what becomes of an ICMP message. An error from port a to the virtual address quotes a
// packet of a backend: it gets the backend's addresses. An error from port b quotes a packet that went to a backend.
// In both the quotation becomes what its sender has sent. Neither changes what is known of the connection.
func (b *balance) about(in int, frame []byte, d *hdr.Layers) graph.Reason {
	var q hdr.Layers
	net, family, proto, first, n, headers := d.Family(), 0, uint8(hdr.ProtoICMP), 12, 4, hdr.IPv4Len
	if net == hdr.NetIPv6 {
		family, proto, first, n, headers = 1, hdr.ProtoICMPv6, 8, 16, hdr.IPv6Len
	}
	vip := b.vip[family]
	if !vip.IsValid() || d.Proto != proto || d.Fragment || d.L4 != d.L3+headers || d.End < d.L4+hdr.ICMPLen || !flow.IsError(net, frame[d.L4]) ||
		!flow.Quoted(frame, d, &q) || q.L4 != q.L3+headers || q.Proto != hdr.ProtoTCP && q.Proto != hdr.ProtoUDP {
		return reasonOther
	}
	src, dst := frame[q.L3+first:q.L3+first+n], frame[q.L3+first+n:q.L3+first+2*n]
	from, to := frame[d.L3+first:d.L3+first+n], frame[d.L3+first+n:d.L3+first+2*n] // of the error
	service, peer := hdr.UDP(frame[q.L4:]).SrcPort(), hdr.UDP(frame[q.L4:]).DstPort()
	mine, client := src, dst
	if in == 1 {
		mine, client, service, peer = dst, src, peer, service
	}
	v := vip.As16()
	ours := v[16-n:]
	if service != b.port || !bytes.Equal(to, src) || in == 0 && !bytes.Equal(src, ours) {
		return reasonOther
	}
	key := connKey{port: peer, proto: q.Proto, net: net}
	copy(key.client[:], client)
	hash := key.hash()
	var who uint16
	if at := b.conns.Find(&key, hdr.Fold(hash, b.conns.seed)); at >= 0 {
		who = b.conns.At(at).Val.backend
	} else if who = b.choose(family, hash); who == nobody {
		return reasonOther
	}
	backend := &b.backends[who]
	eth := hdr.Ethernet(frame[:hdr.EthernetLen])
	if in == 0 {
		v = backend.addr.As16()
		flow.Requote(frame, d, &q, source, v[16-n:], service)
		redirect(frame, d, to, v[16-n:])
		eth.SetDst(backend.mac)
		return reasonErrorTo
	}
	if a, _ := netip.AddrFromSlice(mine); a != backend.addr {
		return reasonOther
	}
	own := bytes.Equal(from, mine) // or it is a router's
	flow.Requote(frame, d, &q, destination, ours, service)
	if own {
		redirect(frame, d, from, ours)
	}
	if b.mac != [6]byte{} {
		eth.SetSrc(b.mac)
	}
	return reasonErrorFrom
}

// redirect writes addr in the place of the address was of the ICMP message d, and adapts the checksum that covers it.
func redirect(frame []byte, d *hdr.Layers, was, addr []byte) {
	be := binary.BigEndian
	sum := frame[d.L3+10 : d.L3+12] // of the IPv4 header
	if d.Family() == hdr.NetIPv6 {
		sum = frame[d.L4+2 : d.L4+4]
	}
	s := be.Uint16(sum)
	for i := 0; i < len(addr); i += 4 {
		s = hdr.PatchChecksum32(s, be.Uint32(was[i:]), be.Uint32(addr[i:]))
	}
	copy(was, addr)
	be.PutUint16(sum, s)
}
