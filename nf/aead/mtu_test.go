package aead

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/mtu/mtutest"
)

// packetOf is an IP packet of n bytes that ends' near end protects; IPv4 has DF.
func packetOf(six bool, n int) []byte {
	if !six {
		return sized(n - 28)
	}
	b := make([]byte, 14+n)
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xDD})
	hdr.IPv6(b[14:]).Encode(&hdr.IPv6Fields{PayloadLen: uint16(n - 40), NextHeader: hdr.ProtoUDP, HopLimit: 64,
		Src: netip.MustParseAddr("2001:db8:1::1"), Dst: netip.MustParseAddr("2001:db8:2::1")})
	return b
}

// TestTold: what inner says just fits, and the sender of a byte more learns it.
func TestTold(t *testing.T) {
	tunnel6 := []string{"mode", "tunnel", "local", "2001:db8::1", "remote", "2001:db8::2"}
	for name, x := range map[string]struct {
		more []string
		mtu  int
	}{
		"transport": {nil, 1466}, "tunnel": {tunnel(), 1446}, "tunnel over IPv6": {tunnel6, 1426},
		"mtu=1501": {[]string{"mtu", "1501"}, 1466}, "mtu=1504": {[]string{"mtu", "1504"}, 1470}, "mtu=9000": {[]string{"mtu", "9000"}, 8966},
	} {
		for _, six := range []bool{false, true} {
			near, _ := ends(t, x.more...)
			y := graphtest.New(t, *Kind(), near)
			only(t, y.Push("a", packetOf(six, x.mtu)), "b")
			b := packetOf(six, x.mtu+1)
			mtutest.TooBig(t, name, y.Push("a", b), b, x.mtu, 0)
		}
	}
	near, _ := ends(t)
	y := graphtest.New(t, *Kind(), near)
	if r := y.Push("a", edit(packetOf(false, 1500), func(b []byte) { b[20] = 0 })); dropped(t, r) != "too-big" {
		t.Errorf("without DF: %+v", r)
	}
	if r := y.Push("a", edit(packetOf(false, 1500), func(b []byte) { b[23], b[34] = hdr.ProtoICMP, hdr.ICMPUnreachable })); dropped(t, r) != "too-big" {
		t.Errorf("an ICMP error: %+v", r)
	}
	if n := graphtest.Allocs(t, *Kind(), near, "a", packetOf(false, 1500), packetOf(true, 1500)); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// synOf is a SYN that offers 1460, to or from the far end.
func synOf(t testing.TB, back bool) []byte {
	e := &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: []byte{10, 0, 1, 1}, DstIP: []byte{10, 0, 2, 1}}
	if back {
		ip.SrcIP, ip.DstIP = ip.DstIP, ip.SrcIP
	}
	h := &layers.TCP{SrcPort: 1, DstPort: 2, SYN: true, Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{1460 >> 8, 1460 & 255}}}}
	return bytes.Clone(hdrtest.Build(t, e, ip, h)[:14+20+24])
}

// TestMSS: the far end has no mss=: the near one lowers what it protects, and what it opens.
func TestMSS(t *testing.T) {
	for _, mode := range [][]string{nil, tunnel()} {
		for mss, want := range map[string]uint16{"none": 1460, "auto": 1466 - 40, "1000": 1000} {
			if mode != nil && mss == "auto" {
				want -= 20
			}
			near, far := ends(t, mode...)
			x, y := graphtest.New(t, *Kind(), with(near, "mss", mss)), graphtest.New(t, *Kind(), far)
			for _, back := range []bool{false, true} {
				first, second := x, y
				if back {
					first, second = y, x
				}
				b := synOf(t, back)
				wire, _ := only(t, first.Push("a", b), "b")
				got, _ := only(t, second.Push("b", wire), "a")
				be.PutUint16(b[56:], want)
				hdr.TCP(b[34:]).SetChecksum(hdr.PatchChecksum(hdr.TCP(b[34:]).Checksum(), 1460, want))
				if !bytes.Equal(got, b) {
					t.Errorf("%s, back %v:\n%x\nwant\n%x", mss, back, got, b)
				}
			}
			if n := x.Counter("mss-lowered"); mss == "none" && n != 0 || mss != "none" && n != 2 {
				t.Errorf("%s: counted %d", mss, n)
			}
			// What no SA covers is not touched.
			clear := synOf(t, false)
			clear[32] = 3
			hdr.IPv4(clear[14:]).UpdateChecksum()
			if got, why := only(t, x.Push("a", clear), "b"); why != "no-sa" || !bytes.Equal(got, clear) {
				t.Errorf("%s: %s, %x", mss, why, got)
			}
		}
	}
}

func ExampleKind() {
	fmt.Println(Kind().Note(map[string]string{"keys": "esp.keys", "out": "0x100@10.0.2.0/24", "in": "0x200@10.0.2.0/24", "mss": "auto"}))
	// Output: longest packets from port a: 1466 bytes (mtu=1500); senders of longer ones are told by ICMP; TCP segments: 1426 bytes over IPv4, 1406 over IPv6
}
