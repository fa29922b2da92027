// Package outer makes the headers that a tunnel puts in front of frames: Ethernet, perhaps a VLAN
// tag, IPv4 or IPv6, and UDP if the tunnel uses UDP. Bytes that are the same for all frames are made once.
package outer

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/quillon/quillon/nf/hdr"
)

// Config has the addresses and the settings of a tunnel's outer headers.
type Config struct {
	LocalMAC, RemoteMAC [6]byte
	VLAN                uint16 // 0: untagged
	Local, Remote       netip.Addr
	TTL                 uint8
	Proto               uint8  // hdr.ProtoUDP, or the number of another protocol, whose header is all the caller's
	Port                uint16 // with UDP, its destination port
	ZeroSum             bool   // no UDP checksum over IPv6 (RFC 6935); over IPv4 there is none anyway
}

// Header holds the headers of one tunnel.
type Header struct {
	cfg    Config
	bytes  []byte
	ip     int
	l4     int
	pseudo uint32 // sum of the pseudo-header without the length
	v4     bool
	udp    bool
	sum    uint32 // of an IPv4 header without TOS and length
}

// New makes the headers of a tunnel. Local and Remote must be of the same family.
func New(c Config) *Header {
	h := &Header{cfg: c, ip: hdr.EthernetLen, v4: c.Local.Is4(), udp: c.Proto == hdr.ProtoUDP}
	e := hdr.EthernetFields{Dst: c.RemoteMAC, Src: c.LocalMAC, EtherType: hdr.EtherIPv4}
	if c.Local.Is6() {
		e.EtherType = hdr.EtherIPv6
	}
	b := make([]byte, 128)
	if c.VLAN > 0 {
		h.ip += hdr.VLANLen
		t := hdr.VLAN(b[hdr.EthernetLen:])
		t.SetVID(c.VLAN)
		t.SetEtherType(e.EtherType)
		e.EtherType = hdr.EtherVLAN
	}
	hdr.Ethernet(b).Encode(&e)
	if c.Local.Is4() {
		hdr.IPv4(b[h.ip:]).Encode(&hdr.IPv4Fields{DF: true, TTL: c.TTL, Protocol: c.Proto, Src: c.Local, Dst: c.Remote})
		h.l4 = h.ip + hdr.IPv4Len
	} else {
		hdr.IPv6(b[h.ip:]).Encode(&hdr.IPv6Fields{NextHeader: c.Proto, HopLimit: c.TTL, Src: c.Local, Dst: c.Remote})
		h.l4 = h.ip + hdr.IPv6Len
	}
	n := h.l4
	if c.Proto == hdr.ProtoUDP {
		h.pseudo = hdr.PseudoSum(c.Local, c.Remote, hdr.ProtoUDP, 0)
		hdr.UDP(b[h.l4:]).Encode(&hdr.UDPFields{DstPort: c.Port})
		n += hdr.UDPLen
	}
	h.bytes = b[:n:n]
	if h.v4 {
		ip := hdr.IPv4(b[h.ip:])
		ip.SetTotalLen(0)
		ip.SetChecksum(0)
		h.sum = uint32(^hdr.Checksum(ip[:hdr.IPv4Len], 0))
	}
	return h
}

// Len returns the length of the headers in bytes.
func (h *Header) Len() int { return len(h.bytes) }

// IPLen returns the length in bytes of the headers from the IP header on, which count towards an MTU.
func (h *Header) IPLen() int { return len(h.bytes) - h.ip }

// Pseudo returns the sum of the UDP pseudo-header without the length, which is the same in both directions.
func (h *Header) Pseudo() uint32 { return h.pseudo }

// Put writes the headers to the first Len bytes of frame b. The bytes after them must be complete. tos is the TOS
// or the traffic class of the IP header. flow must be the same for all frames of a flow (see Flow): the UDP source
// port, which Put returns, and the IPv6 flow label are made of it.
func (h *Header) Put(b []byte, tos uint8, flow uint32) (port uint16) {
	copy(b, h.bytes)
	if h.udp {
		u := (*[hdr.UDPLen]byte)(b[h.l4:])
		port = 49152 | uint16(flow)&0x3FFF
		binary.BigEndian.PutUint16(u[:], port)
		binary.BigEndian.PutUint16(u[4:], uint16(len(b)-h.l4))
	}
	if h.v4 {
		p := (*[hdr.IPv4Len]byte)(b[h.ip:])
		n := uint16(len(b) - h.ip)
		sum := h.sum + uint32(tos) + uint32(n)
		sum = sum>>16 + sum&0xFFFF
		p[1] = tos
		binary.BigEndian.PutUint16(p[2:], n)
		binary.BigEndian.PutUint16(p[10:], ^uint16(sum>>16+sum))
		return port
	}
	p := hdr.IPv6(b[h.ip:])
	p.SetTrafficClass(tos)
	p.SetFlowLabel(flow >> 12)
	p.SetPayloadLen(uint16(len(b) - h.l4))
	if h.udp && !h.cfg.ZeroSum {
		u := hdr.UDP(b[h.l4:])
		sum := hdr.Checksum(u, h.pseudo+uint32(len(u)))
		if sum == 0 {
			sum = 0xFFFF // RFC 768: 0 is for none
		}
		u.SetChecksum(sum)
	}
	return port
}

// Flow returns a hash that is the same for all frames of a flow. hdr.Walk found the layers l in frame b. The ports
// of fragments do not count, so that all fragments of a datagram have the same hash.
func Flow(b []byte, l *hdr.Layers) uint32 {
	le := binary.LittleEndian
	h := uint64(l.EtherType) | uint64(l.Proto)<<16
	switch {
	case l.L3 == 0:
		h = mix(mix(h, le.Uint64(b)), uint64(le.Uint32(b[8:])))
	case l.EtherType == hdr.EtherIPv4:
		h = mix(h, le.Uint64(b[l.L3+12:]))
	default:
		for at := l.L3 + 8; at < l.L3+40; at += 8 {
			h = mix(h, le.Uint64(b[at:]))
		}
	}
	if !l.Fragment {
		src, dst := l.PortsOf(b)
		h = mix(h, uint64(src)<<16|uint64(dst))
	}
	return uint32(h)
}

// UsualFlow returns the Flow of a usual frame (hdr.Usual).
func UsualFlow(b []byte) uint32 {
	h := (*[hdr.UsualL4 + hdr.UDPLen]byte)(b)
	addresses, ports := binary.LittleEndian.Uint64(h[hdr.EthernetLen+12:]), binary.BigEndian.Uint32(h[hdr.UsualL4:])
	return uint32(mix(mix(hdr.EtherIPv4|uint64(h[hdr.EthernetLen+9])<<16, addresses), uint64(ports)))
}

// mix folds the product of two odd-looking words: every bit of both reaches the
// low half.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^v^0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
	return hi ^ lo
}
