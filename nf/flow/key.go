package flow

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/hdr"
)

var (
	be = binary.BigEndian
	le = binary.LittleEndian
)

// Key identifies a flow: all its packets of one direction have the same Key. Unused fields and bytes
// are zero. An IPv4 address is in the first four bytes of Src or Dst.
type Key struct {
	Src, Dst         [16]byte
	SrcPort, DstPort uint16
	Tag              uint32 // what else tells flows apart, as its owner says: VLANs, a port
	Proto, Family    uint8  // Family: hdr.NetIPv4 or NetIPv6
}

// Hash returns the hash of k. A sender that does not know the seed cannot tell which keys have equal hashes.
func (k *Key) Hash(seed uint64) uint64 {
	h := hdr.Fold(seed^uint64(k.Tag), uint64(k.SrcPort)|uint64(k.DstPort)<<16|uint64(k.Proto)<<32|uint64(k.Family)<<40)
	if k.Family == hdr.NetIPv4 {
		return hdr.Fold(hdr.Fold(h, uint64(le.Uint32(k.Src[:]))<<32|uint64(le.Uint32(k.Dst[:]))), seed)
	}
	h = hdr.Fold(hdr.Fold(h, le.Uint64(k.Src[:])), le.Uint64(k.Src[8:]))
	h = hdr.Fold(hdr.Fold(h, le.Uint64(k.Dst[:])), le.Uint64(k.Dst[8:]))
	return hdr.Fold(h, seed)
}

// Usual sets k to the key of the usual frame b (hdr.Usual), or of the packets of the other direction.
func (k *Key) Usual(b []byte, reversed bool) {
	h := (*[hdr.UsualL4 + hdr.UDPLen]byte)(b)
	src, dst, from, to := le.Uint32(h[26:]), le.Uint32(h[30:]), be.Uint16(h[34:]), be.Uint16(h[36:])
	if reversed {
		src, dst, from, to = dst, src, to, from
	}
	*k = Key{SrcPort: from, DstPort: to, Proto: h[23], Family: hdr.NetIPv4}
	le.PutUint32(k.Src[:], src)
	le.PutUint32(k.Dst[:], dst)
}

// Same reports whether *k == *o, in fewer steps than the operator.
func (k *Key) Same(o *Key) bool {
	a := (le.Uint64(k.Src[:]) ^ le.Uint64(o.Src[:])) | (le.Uint64(k.Dst[:]) ^ le.Uint64(o.Dst[:]))
	b := (le.Uint64(k.Src[8:]) ^ le.Uint64(o.Src[8:])) | (le.Uint64(k.Dst[8:]) ^ le.Uint64(o.Dst[8:]))
	return a|b == 0 && k.SrcPort == o.SrcPort && k.DstPort == o.DstPort && k.Tag == o.Tag && k.Proto == o.Proto && k.Family == o.Family
}

// Reversed returns the key of the packets of the other direction.
func (k *Key) Reversed() Key {
	r := *k
	r.Src, r.Dst, r.SrcPort, r.DstPort = k.Dst, k.Src, k.DstPort, k.SrcPort
	return r
}

// Addrs sets the family, the protocol and the addresses of k from the IP header that d found in
// frame b. The frame must have an IP header.
func (k *Key) Addrs(b []byte, d *hdr.Layers) {
	k.Proto = d.Proto
	if k.Family = d.Family(); k.Family == hdr.NetIPv4 {
		copy(k.Src[:4], b[d.L3+12:])
		copy(k.Dst[:4], b[d.L3+16:])
		return
	}
	copy(k.Src[:], b[d.L3+8:d.L3+24])
	copy(k.Dst[:], b[d.L3+24:d.L3+40])
}

// Fragment returns the offset in bytes of the fragment that d found in frame b, and the key that all
// fragments of the same datagram share. The key has the datagram's identification in its ports.
func Fragment(b []byte, d *hdr.Layers) (k Key, offset int) {
	k.Addrs(b, d)
	ip := b[d.L3:d.End]
	if k.Family == hdr.NetIPv4 {
		k.DstPort = hdr.IPv4(ip).ID()
		return k, hdr.IPv4(ip).FragOffset()
	}
	if proto, at, ok := hdr.IPv6(ip).Upper(); ok && proto == hdr.ProtoFragment && len(ip) >= at+8 {
		k.SrcPort, k.DstPort = be.Uint16(ip[at+4:]), be.Uint16(ip[at+6:])
		offset = int(be.Uint16(ip[at+2:]) &^ 7)
	}
	return k, offset
}

// IsError reports whether ICMP messages of this type are errors that quote the datagram that caused
// them (RFC 792, RFC 4443). Redirects do not count as errors: they tell a host where to send.
func IsError(family, icmpType uint8) bool {
	if family == hdr.NetIPv6 {
		return icmpType >= 1 && icmpType <= 4
	}
	return icmpType == hdr.ICMPUnreachable || icmpType == 4 || icmpType == hdr.ICMPTimeExceeded || icmpType == 12
}

// Query returns the type of the request that an ICMP message of this type is or answers, and whether
// the message is an answer. ok is false for types without a query identifier.
func Query(family, icmpType uint8) (request uint8, answer, ok bool) {
	if family == hdr.NetIPv6 {
		if icmpType != hdr.ICMPv6Echo && icmpType != hdr.ICMPv6EchoReply {
			return 0, false, false
		}
		return hdr.ICMPv6Echo, icmpType == hdr.ICMPv6EchoReply, true
	}
	switch icmpType {
	case hdr.ICMPEcho, 13, 15, 17: // echo, timestamp, information, address mask
		return icmpType, false, true
	case hdr.ICMPEchoReply:
		return hdr.ICMPEcho, true, true
	case 14, 16, 18:
		return icmpType - 1, true, true
	}
	return 0, false, false
}

// Quoted sets q to the layers of the datagram that an ICMP error quotes, as Walk would; q.End is the
// end of the quotation. d describes the ICMP error in frame b. Quoted returns false if the quotation
// lacks a part of the IP headers or of the 8 bytes after them, or is a fragment other than the first.
func Quoted(b []byte, d, q *hdr.Layers) bool {
	*q = hdr.Layers{EtherType: d.EtherType, Net: d.L4 + 8, L3: d.L4 + 8, End: d.End}
	if d.L4 == 0 || d.End < q.L3 {
		return false
	}
	p := b[q.L3:q.End]
	if d.Family() == hdr.NetIPv4 {
		if len(p) < hdr.IPv4Len {
			return false
		}
		h := hdr.IPv4(p)
		n := h.HeaderLen()
		if h.Version() != 4 || n < hdr.IPv4Len || int(h.TotalLen()) < n+8 || h.FragOffset() != 0 {
			return false
		}
		q.Proto, q.L4, q.Fragment, q.End = h.Protocol(), q.L3+n, h.IsFragment(), min(q.End, q.L3+int(h.TotalLen()))
		return q.End >= q.L4+8
	}
	if len(p) < hdr.IPv6Len || hdr.IPv6(p).Version() != 6 {
		return false
	}
	q.End = min(q.End, q.L3+hdr.IPv6Len+int(hdr.IPv6(p).PayloadLen()))
	p = b[q.L3:q.End]
	proto, off, ok := hdr.IPv6(p).Upper()
	if ok && proto == hdr.ProtoFragment {
		if len(p) < off+8 || be.Uint16(p[off+2:])&^7 != 0 {
			return false
		}
		q.Fragment, proto, off = true, p[off], off+8
	}
	q.Proto, q.L4 = proto, q.L3+off
	return ok && q.End >= q.L4+8
}

// Requote writes the address and the port of an end (0: source, 1: destination) of datagram q, which the ICMP error d in
// frame b quotes, as Quoted has found it. The address is as long as those of q. Of an ICMP query the identifier is the
// port. Requote adapts the checksums in the quotation, as far as that goes, and the error's own checksum.
func Requote(b []byte, d, q *hdr.Layers, end int, addr []byte, port uint16) {
	outer := hdr.ICMP(b[d.L4:])
	sum := outer.Checksum()
	put := func(at int, v uint16) {
		sum = hdr.PatchChecksum(sum, be.Uint16(b[at:]), v)
		be.PutUint16(b[at:], v)
	}
	at, four := q.L3+8+16*end, q.Family() == hdr.NetIPv4
	if four {
		at = q.L3 + 12 + 4*end
	}
	// patched returns a checksum that covers the address.
	patched := func(sum uint16) uint16 {
		for i := 0; i < len(addr); i += 4 {
			sum = hdr.PatchChecksum32(sum, be.Uint32(b[at+i:]), be.Uint32(addr[i:]))
		}
		return sum
	}
	portAt, sumAt := q.L4+2*end, q.L4+6
	switch q.Proto {
	case hdr.ProtoTCP:
		sumAt = q.L4 + 16
	case hdr.ProtoICMP, hdr.ProtoICMPv6:
		portAt, sumAt = q.L4+4, q.L4+2
	}
	if sumAt+2 <= q.End {
		if old := be.Uint16(b[sumAt:]); q.Proto != hdr.ProtoUDP || old != 0 {
			v := hdr.PatchChecksum(old, be.Uint16(b[portAt:]), port)
			if q.Proto != hdr.ProtoICMP { // the only one without a pseudo-header
				v = patched(v)
			}
			if v == 0 && q.Proto == hdr.ProtoUDP {
				v = 0xFFFF
			}
			put(sumAt, v)
		}
	}
	if four {
		put(q.L3+10, patched(hdr.IPv4(b[q.L3:]).Checksum()))
	}
	for i := 0; i < len(addr); i += 2 {
		put(at+i, be.Uint16(addr[i:]))
	}
	put(portAt, port)
	outer.SetChecksum(sum)
}
