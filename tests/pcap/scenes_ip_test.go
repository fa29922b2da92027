package pcap_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"time"
)

// Routers before and behind the functions.
var (
	inside  = net.HardwareAddr{2, 0, 0, 0, 0, 0xA1}
	outside = net.HardwareAddr{2, 0, 0, 0, 0, 0xB1}
	public  = net.HardwareAddr{2, 0, 0, 0, 0, 1} // of napt
)

// Types and codes of ICMP errors.
const (
	unreachable, portUnreachable, fragNeeded = 3, 3, 4
	redirect, timeExceeded                   = 5, 11
	packetTooBig                             = 2 // ICMPv6
)

func naptScene(s *scene) {
	out := func(src, dst string) talk {
		return talk{from: at(src), to: via(dst, inside), id: 7}
	}
	in := func(src, dst string) talk {
		return talk{from: via(src, outside), to: via(dst, public), id: 8}
	}
	const server, pub = "192.0.2.9", "198.51.100.1"
	router := host{at(server).ip, outside}
	s.b(arp(router, pub))
	// UDP, there and back; without a checksum; with options; in two VLANs.
	query := out("10.0.0.2", server).udp(5000, 50053, filling(20))
	s.a(query)
	s.b(in(server, pub).udp(50053, 5000, filling(60)))
	bare := out("10.0.0.2", server).udp(5000, 50053, filling(21))
	bare[40], bare[41] = 0, 0
	s.a(bare)
	k := out("10.0.0.2", server)
	k.options = []byte{7, 7, 4, 0, 0, 0, 0} // record route, one place
	s.a(k.udp(5000, 50053, filling(5)))
	k = out("10.0.0.3", server)
	k.vlans, k.tos = []uint16{100, 200}, 0xBA
	s.a(k.udp(5000, 50053, filling(9))) // the port is another's: it gets a different one
	// TCP: a handshake, data, and the end.
	k = out("10.0.0.2", server)
	k.df = true
	r := in(server, pub)
	s.a(k.tcp(6000, 80, "S", 1000, 0, nil))
	s.b(r.tcp(80, 6000, "SA", 9000, 1001, nil))
	s.a(k.tcp(6000, 80, "A", 1001, 9001, nil))
	segment := k.tcp(6000, 80, "PA", 1001, 9001, filling(101))
	s.a(segment)
	s.b(r.tcp(80, 6000, "A", 9001, 1102, nil))
	// An ICMP query and its answer.
	s.a(k.echo(false, 77, 1, filling(33)))
	s.b(r.echo(true, 77, 1, filling(33)))
	// A datagram in three fragments, one that comes without its first, and the answer in two, with it last.
	big := out("10.0.0.2", server)
	big.id = 300
	s.a(fragments(big.udp(5000, 50053, filling(2800)), 1480, 1600)...)
	s.a(fragments(talk{from: at("10.0.0.2"), to: via(server, inside), id: 301}.udp(5000, 50053, filling(1600)), 800)[1])
	answer := in(server, pub)
	answer.id = 302
	s.b(fragments(answer.udp(50053, 5000, filling(1600)), 800)...)
	// Errors: what came in from the public side about what went out, and the other way round.
	translated := in(server, pub).back()
	hop := in("203.0.113.7", pub)
	quoted := talk{from: via(pub, public), to: via(server, outside), id: 7, ttl: 1}.udp(5000, 50053, filling(20))
	s.b(hop.failed(unreachable, portUnreachable, 0, quoted, 28))
	s.b(hop.failed(timeExceeded, 0, 0, quoted, 48))
	translated.id, translated.df = 7, true
	s.b(hop.failed(unreachable, fragNeeded, 1400, translated.tcp(6000, 80, "PA", 1001, 9001, filling(101)), 28))
	came := in(server, "10.0.0.2")
	s.a(out("10.0.0.2", server).failed(unreachable, portUnreachable, 0, came.udp(50053, 5000, filling(60)), 88))
	s.b(hop.failed(unreachable, portUnreachable, 0, talk{from: via(pub, public), to: via(server, outside)}.udp(5999, 50053, filling(20)), 28)) // unrelated
	// Two private hosts by their public ends: who was not sent to by the other does not get there.
	s.a(out("10.0.0.4", pub).udp(5004, 5000, filling(12)), out("10.0.0.2", pub).udp(5000, 5004, filling(13)), out("10.0.0.4", pub).udp(5004, 5000, filling(14)))
	// Who was not sent to; a port of nobody; TCP in the middle; a private address from outside.
	s.b(in("192.0.2.66", pub).udp(50053, 5000, filling(8)))
	s.b(in(server, pub).udp(50053, 5999, filling(8)))
	s.b(in(server, pub).tcp(80, 6001, "PA", 1, 1, filling(8)), in("192.0.2.66", pub).tcp(80, 6000, "PA", 1, 1, filling(8)))
	s.a(out("10.0.0.2", server).tcp(6002, 80, "PA", 1, 1, filling(8)))
	s.b(in(server, "10.0.0.2").udp(50053, 5000, filling(8)))
	// What cannot be translated, and what need not be.
	s.a(out("10.0.0.2", server).raw(47, filling(24)), out("10.0.0.2", server).udp(49152, 4791, filling(32)),
		out("10.0.0.2", server).failed(redirect, 1, 0x0A000001, query, 28), out("10.0.0.2", "224.0.0.251").udp(5353, 5353, filling(8)),
		out("192.0.2.50", server).udp(5, 6, nil), talk{from: at("2001:db8::2"), to: at("2001:db8:1::9")}.udp(1, 2, filling(8)), query[:30])
	// A checksum that is wrong stays wrong.
	s.a(changed(out("10.0.0.2", server).udp(5000, 50053, filling(30)), -1, 4))
	// More than a host may have; and after a while nobody is known.
	for port := range uint16(5) {
		s.a(out("10.0.0.5", server).udp(7000+port, 50053, nil))
	}
	s.wait(3 * time.Second)
	s.b(in(server, pub).udp(50053, 5000, filling(8)))
	s.b(r.tcp(80, 6000, "FA", 9001, 1102, nil))
}

func firewallScene(s *scene) {
	k := talk{from: at("10.0.0.2"), to: at("192.0.2.9"), id: 3}
	b := k.back()
	s.a(arp(k.from, "10.0.0.1"))
	// A connection from the inside, with numbers that are followed.
	s.a(k.tcp(6000, 80, "S", 1000, 0, nil))
	s.b(b.tcp(80, 6000, "SA", 9000, 1001, nil))
	s.a(k.tcp(6000, 80, "A", 1001, 9001, nil), k.tcp(6000, 80, "PA", 1001, 9001, filling(100)))
	s.b(b.tcp(80, 6000, "A", 9001, 1101, nil))
	s.b(b.tcp(80, 6000, "PA", 9001+1<<20, 1101, filling(10))) // out of its window
	s.b(b.tcp(80, 6000, "R", 5, 0, nil))                      // somebody guesses
	s.a(k.tcp(6000, 80, "SF", 1, 0, nil))                     // flags that do not go together
	// From the outside: what a rule allows, and what none does.
	in := talk{from: at("192.0.2.66"), to: at("10.0.0.5")}
	s.b(in.tcp(7000, 443, "S", 50, 0, nil))
	s.a(in.back().tcp(443, 7000, "SA", 70, 51, nil))
	s.b(in.tcp(7000, 443, "A", 51, 71, nil), in.tcp(7001, 22, "S", 50, 0, nil), in.tcp(7002, 443, "A", 51, 71, nil))
	s.a(talk{from: at("10.0.0.2"), to: at("203.0.113.1")}.udp(1, 25, nil)) // a rule denies it
	// UDP and ICMP, and errors about them.
	query := k.udp(5000, 50053, filling(20))
	s.a(query)
	s.b(b.udp(50053, 5000, filling(40)), b.udp(50053, 5001, filling(40)))
	hop := talk{from: at("203.0.113.7"), to: at("10.0.0.2")}
	s.b(hop.failed(unreachable, portUnreachable, 0, query, 28), hop.failed(unreachable, portUnreachable, 0, k.udp(5001, 50053, filling(20)), 28),
		hop.failed(redirect, 1, 0x0A000001, query, 28))
	s.a(k.echo(false, 9, 1, filling(16)))
	s.b(b.echo(true, 9, 1, filling(16)), b.echo(true, 10, 1, filling(16)))
	// Fragments behind their first one, without it, and one that divides TCP's header.
	big := k
	big.id = 300
	s.a(fragments(big.udp(5000, 50053, filling(2000)), 1480)...)
	big.id = 301
	s.a(fragments(big.udp(5000, 50053, filling(2000)), 1480)[1])
	big.id = 302
	s.a(fragments(big.tcp(6005, 80, "S", 1, 0, nil), 8)...)
	// Options: a way that the sender chose, and another one.
	way := k
	way.options = []byte{131, 7, 4, 192, 0, 2, 1}
	s.a(way.udp(5000, 50053, nil))
	way.options = []byte{7, 7, 4, 0, 0, 0, 0}
	s.a(way.udp(5000, 50053, nil))
	// VLANs, and the same over IPv6, with hop-by-hop options.
	k.vlans = []uint16{100}
	s.a(k.udp(5007, 50053, nil))
	six := talk{from: at("2001:db8::2"), to: at("2001:db8:1::9"), vlans: []uint16{100, 200}}
	s.a(six.tcp(6000, 80, "S", 1000, 0, nil))
	s.b(six.back().tcp(80, 6000, "SA", 9000, 1001, nil), six.back().udp(1, 2, nil))
	six.options = []byte{1, 4, 0, 0, 0, 0} // PadN
	s.a(six.udp(5000, 50053, filling(7)))
	s.b(talk{from: at("fe80::1"), to: at("ff02::1:ff00:2"), ttl: 255}.raw(58, asking("2001:db8::2", "fe80::1", "ff02::1:ff00:2", nil)))
	s.a(query[:36])
	// A handshake that nobody answers is forgotten.
	k.vlans = nil
	s.a(k.tcp(6009, 80, "S", 1000, 0, nil))
	s.wait(2 * time.Second)
	s.b(b.tcp(80, 6009, "SA", 9000, 1001, nil))
}

// asking is a neighbour solicitation (RFC 4861 section 4.3), with its checksum; mac, if not nil, is its
// sender's.
func asking(target, from, group string, mac []byte) []byte {
	p := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, at(target).ip.AsSlice()...)
	if mac != nil {
		p = append(append(p, 1, 1), mac...)
	}
	sum := uint32(len(p)) + 58
	for _, b := range [][]byte{at(from).ip.AsSlice(), at(group).ip.AsSlice(), p} {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	binary.BigEndian.PutUint16(p[2:], ^uint16(sum))
	return p
}

// limitsScene: one host that opens more than it may, in a firewall with little room.
func limitsScene(s *scene) {
	k := talk{from: at("10.0.0.2"), to: at("192.0.2.9")}
	open := func(k talk, port uint16) {
		s.a(k.tcp(port, 80, "S", 1000, 0, nil))
		s.b(k.back().tcp(80, port, "SA", 9000, 1001, nil))
		s.a(k.tcp(port, 80, "A", 1001, 9001, nil))
	}
	s.a(arp(k.from, "10.0.0.1"))
	s.a(fragments(k.udp(5000, 53, filling(1600)), 800)...)
	for port := range uint16(4) { // half-open: two of a source at a time
		s.a(k.tcp(6000+port, 80, "S", 1000, 0, nil))
	}
	for port := range uint16(2) {
		s.b(k.back().tcp(80, 6000+port, "SA", 9000, 1001, nil))
		s.a(k.tcp(6000+port, 80, "A", 1001, 9001, nil))
	}
	open(k, 6010)
	open(k, 6011) // one more than a source may have
	for i, from := range []string{"10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7"} {
		k.from = at(from)
		for port := range uint16(3) {
			open(k, 7000+10*uint16(i)+port)
		}
	}
	s.wait(2 * time.Second)
	open(k, 8000)
}

func balanceScene(s *scene) {
	vip := at("10.0.0.100")
	backends := []host{at("10.0.0.1"), at("10.0.0.2")}
	for i := range uint16(6) {
		k := talk{from: via("192.0.2.9", outside), to: vip, id: i, tos: uint8(i)}
		if i == 5 {
			k.vlans = []uint16{100}
		}
		s.a(k.tcp(7000+i, 80, "S", 100, 0, nil), k.udp(7000+i, 80, filling(int(i))))
		// Whichever backend it was, its answer is the connection's; the other one's is not.
		for _, b := range backends {
			r := talk{from: b, to: via("192.0.2.9", outside), vlans: k.vlans}
			s.b(r.tcp(80, 7000+i, "SA", 500, 101, nil))
		}
	}
	six := talk{from: via("2001:db8:1::9", outside), to: at("2001:db8::100"), tos: 0x28}
	s.a(six.tcp(7000, 80, "S", 100, 0, nil), six.udp(7001, 80, filling(11)))
	s.b(talk{from: at("2001:db8::1"), to: six.from}.tcp(80, 7000, "SA", 500, 101, nil))
	k := talk{from: via("192.0.2.9", outside), to: vip}
	none := k.udp(7009, 80, filling(3))
	none[40], none[41] = 0, 0
	s.a(none, k.echo(false, 1, 1, filling(8)), k.udp(7000, 81, nil))
	s.a(fragments(k.udp(7000, 80, filling(1600)), 800)...)
	k.options = []byte{7, 7, 4, 0, 0, 0, 0}
	s.a(k.udp(7000, 80, nil), none[:38])
	s.b(talk{from: at("10.0.0.77"), to: k.from}.tcp(80, 7000, "SA", 500, 101, nil))
}

func policeScene(s *scene) {
	k := talk{from: at("10.0.0.2"), to: at("192.0.2.9")}
	burst := func(k talk, n, bytes int) {
		for range n {
			s.a(k.udp(5000, 50053, filling(bytes-28)))
		}
	}
	// 8 Mbit/s is a byte a microsecond. A burst of twelve; then at the rate; then at twice the rate.
	burst(k, 12, 1000)
	s.wait(10 * time.Millisecond)
	for range 5 {
		burst(k, 1, 1000)
		s.wait(999 * time.Microsecond)
	}
	for range 8 {
		burst(k, 1, 1000)
		s.wait(499 * time.Microsecond)
	}
	s.wait(10 * time.Millisecond)
	// A colour that a packet came with counts; ECN stays.
	for _, tos := range []uint8{14<<2 | 1, 12<<2 | 2, 10 << 2} {
		k.tos = tos
		burst(k, 3, 500)
	}
	// The other direction is not policed; IPv6, tags and fragments are; what is no IP passes.
	s.b(k.back().udp(50053, 5000, filling(1400)))
	s.wait(10 * time.Millisecond)
	six := talk{from: at("2001:db8::2"), to: at("2001:db8:1::9"), tos: 10<<2 | 3, vlans: []uint16{100}}
	for range 8 {
		s.a(six.udp(5000, 50053, filling(952)))
	}
	s.a(arp(k.from, "10.0.0.1"), k.udp(1, 2, nil)[:30])
	s.wait(10 * time.Millisecond)
	s.a(fragments(k.udp(5000, 50053, filling(2800)), 1480)...)
}

func shapeScene(s *scene) {
	k := talk{from: at("10.0.0.2"), to: at("192.0.2.9")}
	for i := range uint16(9) { // two go at once, four wait, three find no room
		k.id = i
		s.a(k.udp(5000, 50053, filling(958)))
	}
	s.b(k.back().udp(50053, 5000, filling(958)))
	s.wait(1500 * time.Microsecond)
	s.a(arp(k.from, "10.0.0.1"))
	s.wait(20 * time.Millisecond)
	s.a(talk{from: at("2001:db8::2"), to: at("2001:db8:1::9"), vlans: []uint16{100}}.udp(1, 2, filling(400)), k.udp(5000, 50053, bytes.Repeat([]byte{1}, 2400)))
}
