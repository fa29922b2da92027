package napt

import (
	"github.com/quillon/quillon/nf/hdr"
)

// The ends of a datagram. Their numbers give the offset of an end's address in the IP header (12 + 4 × end) and
// of its port in the header of TCP or UDP (2 × end).
const (
	source      = 0
	destination = 1
)

// addressAt and portAt return the offsets, in a frame, of the address and the port of an end of datagram d.
func addressAt(d *hdr.Layers, end int) int { return d.L3 + 12 + 4*end }

func portAt(d *hdr.Layers, end int) int {
	if d.Proto == hdr.ProtoICMP {
		return d.L4 + 4 // the identifier, in both directions
	}
	return d.L4 + 2*end
}

// sumAt returns the offset of the transport checksum.
func sumAt(d *hdr.Layers) int {
	switch d.Proto {
	case hdr.ProtoTCP:
		return d.L4 + 16
	case hdr.ProtoUDP:
		return d.L4 + 6
	}
	return d.L4 + 2
}

// readdress writes an address into the IP header, and adapts only the checksum of that header.
func readdress(b []byte, d *hdr.Layers, end int, addr uint32) {
	at := addressAt(d, end)
	ip := hdr.IPv4(b[d.L3:])
	ip.SetChecksum(hdr.PatchChecksum32(ip.Checksum(), be.Uint32(b[at:]), addr))
	be.PutUint32(b[at:], addr)
}

// rewrite writes the address and the port of an end, and adapts the checksums (RFC 1624).
func rewrite(b []byte, d *hdr.Layers, end int, addr uint32, port uint16) {
	at := sumAt(d)
	sum := be.Uint16(b[at:])
	if d.Proto != hdr.ProtoUDP || sum != 0 {
		be.PutUint16(b[at:], patched(b, d, end, sum, addr, port))
	}
	readdress(b, d, end, addr)
	be.PutUint16(b[portAt(d, end):], port)
}

// rewriteUsual is rewrite for the source of a usual frame (hdr.Usual); of TCP the frame must have the whole
// header.
func rewriteUsual(b []byte, addr uint32, port uint16) {
	h := (*[hdr.UsualL4 + hdr.UDPLen]byte)(b)
	was, from := be.Uint32(h[26:]), be.Uint16(h[34:])
	change := uint32(^uint16(was>>16)) + uint32(^uint16(was)) + addr>>16 + addr&0xFFFF
	be.PutUint16(h[24:], summed(be.Uint16(h[24:]), change))
	change += uint32(^from) + uint32(port)
	be.PutUint32(h[26:], addr)
	be.PutUint16(h[34:], port)
	if h[23] == hdr.ProtoTCP {
		at := b[hdr.UsualL4+16 : hdr.UsualL4+18]
		be.PutUint16(at, summed(be.Uint16(at), change))
	} else if sum := be.Uint16(h[40:]); sum != 0 {
		if sum = summed(sum, change); sum == 0 {
			sum = 0xFFFF
		}
		be.PutUint16(h[40:], sum)
	}
}

// summed returns the checksum sum after words have changed (RFC 1624). change is the sum of the new words and of
// the complements of the old ones.
func summed(sum uint16, change uint32) uint16 {
	s := uint32(^sum) + change
	s = s>>16 + s&0xFFFF
	return ^uint16(s>>16 + s)
}

// patched returns the transport checksum sum, adapted to another address and port of an end of d.
func patched(b []byte, d *hdr.Layers, end int, sum uint16, addr uint32, port uint16) uint16 {
	sum = hdr.PatchChecksum(sum, be.Uint16(b[portAt(d, end):]), port)
	if d.Proto == hdr.ProtoICMP {
		return sum // without a pseudo-header
	}
	sum = hdr.PatchChecksum32(sum, be.Uint32(b[addressAt(d, end):]), addr)
	if sum == 0 && d.Proto == hdr.ProtoUDP {
		return 0xFFFF
	}
	return sum
}
