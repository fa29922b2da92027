package balance

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
)

// tooBig is the ICMP error of a router, or of who sends it, that datagram quote is too long. The frame has as many tags as s.
func tooBig(t testing.TB, s seg, quote []byte) []byte {
	t.Helper()
	all := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, s.srcMAC}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, s.dstMAC}}}
	for i := range s.tags {
		all = append(all, &layers.Dot1Q{VLANIdentifier: uint16(10 + i)})
	}
	if src, dst := net.ParseIP(s.src), net.ParseIP(s.dst); src.To4() != nil {
		all = append(all, &layers.IPv4{IHL: 5, Id: 9, TTL: 60, Protocol: layers.IPProtocolICMPv4, SrcIP: src.To4(), DstIP: dst.To4()},
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4), Seq: 1400}, gopacket.Payload(quote))
	} else {
		all = append(all, &layers.IPv6{NextHeader: layers.IPProtocolICMPv6, HopLimit: 60, SrcIP: src, DstIP: dst},
			&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(2, 0)}, gopacket.Payload(append([]byte{0, 0, 5, 120}, quote...)))
	}
	return hdrtest.Build(t, all...)
}

// datagram is the IP datagram of a frame.
func datagram(t testing.TB, b []byte) []byte {
	t.Helper()
	var d hdr.Layers
	if !hdr.Walk(b, &d) || d.L3 == 0 {
		t.Fatalf("%x", b)
	}
	return b[d.L3:d.End]
}

// TestErrors: ICMP errors about packets of a connection get to who has sent the packet, and quote that packet, byte for byte what gopacket makes.
func TestErrors(t *testing.T) {
	x := graphtest.New(t, *Kind(), args(3))
	for client := range 48 {
		v6 := client%2 == 1
		s := request(v6, client%4 > 1, client)
		s.tags, s.nosum, s.payload = client%3, client%8 == 0, strings.Repeat("x", client)
		vip, router, node := vip4, "203.0.113.9", "10.0.0.%d"
		if v6 {
			vip, router, node = vip6, "2001:db8:9::9", "2001:db8::%x"
		}
		asked := build(t, s)
		got := x.Push("a", asked).Out["b"]
		if len(got) != 1 {
			t.Fatalf("%d frames", len(got))
		}
		forwarded, who := got[0].Bytes, backendOf(got[0].Bytes)
		backend := fmt.Sprintf(node, who)
		answer := s
		answer.src, answer.dst, answer.sport, answer.dport, answer.srcMAC, answer.dstMAC = backend, s.src, s.dport, s.sport, byte(who), 200
		answered := build(t, answer)
		got = x.Push("b", answered).Out["a"]
		if len(got) != 1 || got[0].Reason != "from-backend" {
			t.Fatalf("%+v", got)
		}
		returned := got[0].Bytes
		check := func(in, out, reason string, was, want []byte) {
			t.Helper()
			got := x.Push(in, was).Out[out]
			if len(got) != 1 || !bytes.Equal(got[0].Bytes, want) || got[0].Reason != reason {
				t.Fatalf("client %d, %s:\n%+v, want\n%x", client, reason, got, want)
			}
		}
		least := len(datagram(t, asked)) - len(s.payload)
		if s.tcp {
			least -= 12 // the first 8 bytes, without a checksum
		}
		for _, n := range []int{least, len(datagram(t, asked))} {
			// A router on the clients' side, about an answer.
			e := seg{tags: s.tags, srcMAC: 200, dstMAC: 100, src: router, dst: vip}
			was := tooBig(t, e, datagram(t, returned)[:n])
			e.dst, e.dstMAC = backend, byte(who)
			check("a", "b", "error-to-backend", was, tooBig(t, e, datagram(t, answered)[:n]))
			// The backend, and a router on its side, about a request.
			for _, from := range []string{backend, router} {
				e := seg{tags: s.tags, srcMAC: byte(who), dstMAC: 200, src: from, dst: s.src}
				was := tooBig(t, e, datagram(t, forwarded)[:n])
				if e.srcMAC = 100; from == backend {
					e.src = vip
				}
				check("b", "a", "error-from-backend", was, tooBig(t, e, datagram(t, asked)[:n]))
			}
		}
		// Errors about something else pass as they are: of another port, to somebody else than the quoted sender, of another backend, with too short a quotation.
		same := func(in, out string, b []byte) {
			t.Helper()
			check(in, out, "not-balanced", b, b)
		}
		other := answer
		other.sport, other.src = 81, vip
		same("a", "b", tooBig(t, seg{src: router, dst: vip}, datagram(t, build(t, other))))
		same("a", "b", tooBig(t, seg{src: router, dst: s.src}, datagram(t, returned)))
		same("a", "b", tooBig(t, seg{src: router, dst: vip}, datagram(t, returned)[:least-1]))
		same("a", "b", tooBig(t, seg{src: router, dst: backend}, datagram(t, answered)))
		other = s
		other.dst = fmt.Sprintf(node, who%3+1)
		same("b", "a", tooBig(t, seg{src: router, dst: s.src}, datagram(t, build(t, other))))
	}
	if n := graphtest.Allocs(t, *Kind(), args(3), "a", tooBig(t, seg{src: "203.0.113.9", dst: vip4}, datagram(t, build(t, seg{tcp: true, src: vip4, dst: "192.168.0.1", sport: 80, dport: 1000})))); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
