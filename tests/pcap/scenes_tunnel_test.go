package pcap_test

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/hex"
	"net"
	"slices"

	"github.com/google/gopacket/layers"
)

// tunnelled is a frame in a VXLAN datagram (RFC 7348) of the remote end; vni is 24 bits.
func tunnelled(k talk, port uint16, flags byte, vni uint32, inner []byte) []byte {
	h := make([]byte, 8, 8+len(inner))
	h[0] = flags
	binary.BigEndian.PutUint32(h[4:], vni<<8)
	return k.udp(port, 4789, append(h, inner...))
}

func vxlanScene(s *scene)    { tunnelScene(s, at("10.0.0.1"), at("10.0.0.2")) }
func vxlanSixScene(s *scene) { tunnelScene(s, at("2001:db8::1"), at("2001:db8::2")) }

// tunnelScene: what hosts of the plain side send, and what comes by a tunnel between here and there.
func tunnelScene(s *scene, here, there host) {
	here.mac, there.mac = net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	near, far := at("192.168.7.1"), at("192.168.7.2")
	k := talk{from: near, to: far, id: 5}
	for tos := range uint8(4) { // every ECN, and a DSCP
		k.tos = 0x28 | tos
		s.a(k.udp(1000, 2000, filling(20)))
	}
	tagged := k
	tagged.vlans = []uint16{100}
	s.a(tagged.udp(1000, 2000, filling(21)))
	tagged.vlans = []uint16{300}
	s.a(tagged.udp(1000, 2000, filling(22)))
	tagged.vlans = []uint16{100, 200}
	s.a(tagged.udp(1000, 2000, filling(23)), arp(near, "192.168.7.2"), k.tcp(1000, 80, "S", 1, 0, nil))
	six := talk{from: at("fd00:7::1"), to: at("fd00:7::2"), tos: 1}
	s.a(six.udp(1000, 2000, filling(24)), six.tcp(1000, 80, "S", 1, 0, nil))
	// As long as fits; longer, without DF, with it, and over IPv6.
	fits := 1450 - 28
	if here.ip.Is6() {
		fits -= 20
	}
	long := k
	s.a(long.udp(1000, 2000, filling(fits)), long.udp(1000, 2000, filling(fits+1)))
	long.df = true
	s.a(long.udp(1000, 2000, filling(fits+1)), six.udp(1000, 2000, filling(fits)))

	out := talk{from: there, to: here, id: 9, df: true}
	back := k.back()
	inner := back.udp(2000, 1000, filling(20))
	s.b(tunnelled(out, 50000, 8, 5000, inner), tunnelled(out, 50000, 8, 5001, inner))
	bare := tunnelled(out, 50001, 8, 5000, inner)
	if !here.ip.Is6() {
		bare[40], bare[41] = 0, 0
	} else {
		bare[60], bare[61] = 0, 0
	}
	s.b(bare)
	for outer := range uint8(4) { // every ECN outside, over a packet that knows none and one that does
		out.tos = outer
		for _, tos := range []uint8{0, 2} {
			back.tos = tos
			s.b(tunnelled(out, 50000, 8, 5000, back.udp(2000, 1000, filling(4))))
		}
	}
	out.tos = 0
	s.b(tunnelled(out, 50000, 0, 5000, inner), tunnelled(out, 50000, 8, 6000, inner), tunnelled(out, 50000, 8, 5000, tagged.back().udp(2000, 1000, nil)),
		tunnelled(out, 50000, 8, 5000, inner[:10]), changed(tunnelled(out, 50000, 8, 5000, inner), -1, 1))
	other := out
	other.from = at("10.0.0.66")
	if here.ip.Is6() {
		other.from = at("2001:db8::66")
	}
	other.from.mac = there.mac
	s.b(tunnelled(other, 50000, 8, 5000, inner), out.udp(50000, 50053, filling(8)))
	if here.ip.Is6() {
		s.b(talk{from: there, to: at("ff02::1:ff00:1"), ttl: 255}.raw(58, asking("2001:db8::1", "2001:db8::2", "ff02::1:ff00:1", there.mac)))
		return
	}
	s.b(changed(tunnelled(out, 50000, 8, 5000, inner), 22, 1), arp(there, "10.0.0.1"), arp(there, "10.0.0.9"))
	out.df = false
	s.b(fragments(tunnelled(out, 50000, 8, 5000, inner), 48)...)
	out.options, out.vlans = []byte{7, 7, 4, 0, 0, 0, 0}, []uint16{20}
	s.b(tunnelled(out, 50000, 8, 5000, inner))
}

// header is a network service header (RFC 8300): 8 bytes and metadata, whose words count in its length.
func header(ttl, mdType, next uint8, spi uint32, si uint8, metadata ...byte) []byte {
	n := uint16(2 + len(metadata)/4)
	h := make([]byte, 8, 8+len(metadata))
	binary.BigEndian.PutUint16(h, uint16(ttl)<<6|n)
	h[2], h[3] = mdType, next
	binary.BigEndian.PutUint32(h[4:], spi<<8|uint32(si))
	return append(h, metadata...)
}

// Next protocols of NSH.
const nextIPv4, nextIPv6, nextEthernet = 1, 2, 3

// onPath is a frame, or a packet, behind an outer Ethernet header and NSH.
func onPath(h, inner []byte) []byte {
	return slices.Concat([]byte{2, 0, 0, 0, 0, 0x22, 2, 0, 0, 0, 0, 0xFE, 0x89, 0x4F}, h, inner)
}

// Context headers: of MD type 1 four words; of type 2 one with a class, a type and 5 bytes,
// padded to words (RFC 8300 section 2.5.1).
var (
	fixed    = filling(16)
	variable = []byte{0x01, 0x02, 0x07, 5, 1, 2, 3, 4, 5, 0, 0, 0}
)

func nshScene(s *scene) {
	k := talk{from: at("10.0.0.2"), to: at("192.0.2.9"), id: 4, df: true}
	s.a(k.udp(5000, 50053, filling(30)), k.tcp(6000, 80, "S", 1, 0, nil), talk{from: at("172.16.0.2"), to: at("192.0.2.9")}.udp(1, 2, nil))
	tagged := k
	tagged.vlans = []uint16{100, 200}
	s.a(tagged.udp(5000, 50053, filling(31)), k.udp(5000, 50053, filling(1500-14-8-28)), k.udp(5000, 50053, filling(1500-14-8-27)))
	k.df = false
	s.a(k.udp(5000, 50053, filling(1500-14-8-27)), arp(k.from, "10.0.0.1"))
	inner := k.back().udp(50053, 5000, filling(50))
	s.b(onPath(header(61, 2, nextEthernet, 7, 255), inner), onPath(header(61, 1, nextEthernet, 7, 254, fixed...), inner),
		onPath(header(61, 2, nextEthernet, 7, 254, variable...), inner), onPath(header(61, 2, nextIPv4, 7, 254, variable...), inner[14:]),
		onPath(header(61, 2, nextIPv6, 7, 254), talk{from: at("2001:db8:1::9"), to: at("2001:db8::2")}.udp(50053, 1, filling(7))[14:]))
	s.a(onPath(header(61, 2, nextEthernet, 7, 255), inner)) // on a path already
	s.b(onPath(header(61, 2, nextEthernet, 8, 255), inner), onPath(header(61, 2, nextEthernet, 7, 0), inner), onPath(header(61, 1, nextEthernet, 7, 9, variable...), inner),
		onPath(header(61, 3, nextEthernet, 7, 9), inner), onPath(header(61, 2, 5, 7, 9), inner), onPath(header(61, 2, nextIPv4, 7, 9), []byte{0x46, 0}),
		onPath(changed(header(61, 2, nextEthernet, 7, 9), 0, 0x40), inner), // version 1
		onPath(changed(header(61, 2, nextEthernet, 7, 9), 0, 0x20), inner), // O: operations and maintenance
		inner)
}

func nshTaskScene(s *scene) {
	inner := talk{from: at("10.0.0.2"), to: at("192.0.2.9")}.udp(5000, 50053, filling(30))
	for _, send := range []func(...[]byte){s.a, s.b} {
		send(onPath(header(61, 2, nextEthernet, 7, 255), inner), onPath(header(61, 1, nextEthernet, 7, 254, fixed...), inner),
			onPath(header(61, 2, nextEthernet, 7, 2, variable...), inner), onPath(header(61, 2, nextIPv4, 7, 1), inner[14:]),
			onPath(header(61, 2, nextEthernet, 7, 0), inner), onPath(header(0, 2, nextEthernet, 7, 9), inner), onPath(header(1, 2, nextEthernet, 7, 9), inner), onPath(header(61, 2, nextEthernet, 7, 9), inner)[:20], inner)
	}
}

// Keys of aead-made, of its case.yaml.
const (
	keyOut   = "000102030405060708090a0b0c0d0e0fa1b2c3d4"
	keyIn    = "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fdeadbeef"
	keySix   = "404142434445464748494a4b4c4d4e4f0badcafe"
	keyWrong = "ff2122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fdeadbeef"
)

// protect is the payload of an IP packet as ESP (RFC 4303) under AES-GCM (RFC 4106): the
// key is followed by 4 bytes of salt.
func protect(key string, spi, seq uint32, next layers.IPProtocol, payload []byte, pad ...byte) []byte {
	k, err := hex.DecodeString(key)
	if err != nil {
		panic(err)
	}
	block, err := aes.NewCipher(k[:len(k)-4])
	if err != nil {
		panic(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	p := slices.Clone(payload)
	if pad == nil {
		for i := byte(1); (len(p)+2)%4 != 0; i++ {
			p = append(p, i)
		}
	} else {
		p = append(p, pad...)
	}
	p = append(p, byte(len(p)-len(payload)), byte(next))
	h := make([]byte, 16)
	binary.BigEndian.PutUint32(h, spi)
	binary.BigEndian.PutUint32(h[4:], seq)
	binary.BigEndian.PutUint64(h[8:], uint64(seq)<<32|7)
	return gcm.Seal(h, append(slices.Clone(k[len(k)-4:]), h[8:16]...), p, h[:8])
}

func aeadScene(s *scene) {
	k := talk{from: at("10.0.1.1"), to: at("10.0.2.1"), id: 6}
	for n := range 5 {
		s.a(k.udp(1000, 2000, filling(n)))
	}
	opt := k
	opt.options, opt.vlans, opt.tos = []byte{7, 7, 4, 0, 0, 0, 0}, []uint16{100}, 0x2A
	six := talk{from: at("2001:db8:1::1"), to: at("2001:db8:2::1"), tos: 0x2A}
	s.a(opt.udp(1000, 2000, filling(9)), six.udp(1000, 2000, filling(10)), k.tcp(1000, 80, "S", 1, 0, nil), k.echo(false, 1, 1, filling(56)),
		talk{from: at("10.0.1.1"), to: at("10.0.3.1")}.udp(1, 2, nil), arp(k.from, "10.0.2.1"))
	s.a(fragments(k.udp(1000, 2000, filling(1600)), 800)...)
	// As long as fits; longer, without DF, with it, and over IPv6.
	const fits = 1500 - 34
	s.a(k.udp(1000, 2000, filling(fits-28)), k.udp(1000, 2000, filling(fits-27)))
	k.df = true
	s.a(k.udp(1000, 2000, filling(fits-27)), six.udp(1000, 2000, filling(fits-47)), changed(k.udp(1, 2, nil), 25, 1))

	b := talk{from: at("10.0.2.1"), to: at("10.0.1.1")}
	datagram := b.udp(2000, 1000, filling(20))[34:]
	esp := func(seq uint32) []byte { return b.raw(50, protect(keyIn, 0x200, seq, layers.IPProtocolUDP, datagram)) }
	s.b(esp(1), esp(2), esp(2), esp(5), esp(4), esp(1)) // sequence numbers twice, and out of order
	s.b(esp(300), esp(200), esp(171), esp(173))         // behind the window of 128, and just within it
	s.b(b.raw(50, protect(keyWrong, 0x200, 301, layers.IPProtocolUDP, datagram)), changed(esp(301), -20, 1), changed(esp(301), 41, 1), esp(301))
	s.b(b.raw(50, protect(keyIn, 0x200, 302, layers.IPProtocolUDP, datagram, 1, 2, 3, 4, 6, 5)), b.raw(50, protect(keyIn, 0x200, 303, 59, datagram)),
		b.raw(50, protect(keyIn, 0x200, 304, layers.IPProtocolUDP, datagram)[:30]), b.raw(50, protect(keyIn, 0x999, 304, layers.IPProtocolUDP, datagram)),
		b.udp(2000, 1000, filling(20)), talk{from: at("10.0.3.1"), to: at("10.0.1.1")}.udp(1, 2, nil),
		talk{from: at("10.0.3.1"), to: at("10.0.1.1")}.raw(50, protect(keyIn, 0x200, 305, layers.IPProtocolUDP, datagram)))
	s.b(six.back().raw(50, protect(keySix, 0x201, 306, layers.IPProtocolUDP, six.back().udp(2000, 1000, filling(5))[54:])))
	s.b(fragments(esp(307), 24)...)
	b.options, b.vlans, b.tos = []byte{7, 7, 4, 0, 0, 0, 0}, []uint16{100, 200}, 3
	s.b(b.raw(50, protect(keyIn, 0x200, 308, layers.IPProtocolUDP, datagram)))
}

// aeadTunnelScene: whole packets inside those of the two gateways, an SA that may send ten.
func aeadTunnelScene(s *scene) {
	k := talk{from: at("10.0.1.1"), to: at("10.0.2.1"), id: 6, ttl: 9}
	six := talk{from: at("2001:db8:1::1"), to: at("2001:db8:2::1")}
	for tos := range uint8(4) {
		k.tos, six.tos = 0x28|tos, 0x28|tos
		s.a(k.udp(1000, 2000, filling(9)), six.udp(1000, 2000, filling(9)))
	}
	s.a(talk{from: k.from, to: at("10.0.9.1")}.udp(1, 2, nil), talk{from: six.from, to: at("ff02::1:ff00:2"), ttl: 255}.raw(58, asking("2001:db8::2", "2001:db8:1::1", "ff02::1:ff00:2", nil)))
	const fits = 1446
	k.df = true
	k.tos = 0
	s.a(k.udp(1000, 2000, filling(fits-28)), k.udp(1000, 2000, filling(fits-27)))
	k.df, k.id = false, 77
	s.a(fragments(k.udp(1000, 2000, filling(1600)), 800)...) // of which one is the tenth packet
	gates := talk{from: at("192.0.2.2"), to: at("192.0.2.1")}
	inner := k.back()
	seq := uint32(0)
	come := func(next layers.IPProtocol, tos uint8, packet []byte) {
		seq++
		gates.tos = tos
		s.b(gates.raw(50, protect(keyIn, 0x200, seq, next, packet)))
	}
	for outer := range uint8(4) {
		for _, tos := range []uint8{0, 2} {
			inner.tos = tos
			come(layers.IPProtocolIPv4, outer, inner.udp(2000, 1000, filling(5))[14:])
		}
	}
	back := six.back()
	back.tos = 1
	come(layers.IPProtocolIPv6, 3, back.udp(2000, 1000, filling(6))[14:])
	come(layers.IPProtocolUDP, 0, inner.udp(2000, 1000, filling(5))[34:])
	inner.from = at("10.0.9.1")
	come(layers.IPProtocolIPv4, 0, inner.udp(2000, 1000, filling(5))[14:])
}
