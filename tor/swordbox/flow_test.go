package swordbox

import (
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// Whatever a front was learnt from and in which order frames of which lengths
// are made from it, each of them parses, with right checksums.
func TestFront(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, udp := make([]byte, 512), uint16(rapid.Uint16().Draw(t, "UDP checksum"))
		hdr.Ethernet(from).SetEtherType(hdr.EtherIPv4)
		l3, tagged := hdr.EthernetLen, rapid.Bool().Draw(t, "tagged")
		if tagged {
			l3 += hdr.VLANLen
			hdr.Ethernet(from).SetEtherType(hdr.EtherVLAN)
			hdr.VLAN(from[14:]).SetEtherType(hdr.EtherIPv4)
		}
		n := len(from) - l3
		l4 := l3 + hdr.IPv4Len
		if six := rapid.Bool().Draw(t, "IPv6"); six {
			l4 = l3 + hdr.IPv6Len
			if tagged {
				hdr.VLAN(from[14:]).SetEtherType(hdr.EtherIPv6)
			} else {
				hdr.Ethernet(from).SetEtherType(hdr.EtherIPv6)
			}
			ip := hdr.IPv6(from[l3:])
			ip[0], ip[6], ip[7] = 0x60, hdr.ProtoUDP, 64
			ip.SetPayloadLen(uint16(n - hdr.IPv6Len))
			copy(ip[8:40], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "addresses"))
		} else {
			ip := hdr.IPv4(from[l3:])
			ip[0], ip[8], ip[9] = 0x45, 64, hdr.ProtoUDP
			ip.SetTotalLen(uint16(n))
			copy(ip[12:20], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "addresses"))
			ip.UpdateChecksum()
		}
		u := hdr.UDP(from[l4:])
		u.SetDstPort(hdr.RoCEv2Port)
		u.SetLen(uint16(len(from) - l4))
		u.SetChecksum(udp)
		from[l4+hdr.UDPLen] = byte(hdr.WriteOnly)
		var f hdr.Frame
		if why := hdr.Parse(from, &f); why != hdr.IsRoCE {
			t.Fatal(why)
		}
		var h header
		if !h.learn(from, &f) {
			t.Fatal("not learnt")
		}
		for range rapid.IntRange(1, 5).Draw(t, "frames") {
			payload := 4 * rapid.IntRange(0, 16).Draw(t, "words")
			b := make([]byte, h.len()+hdr.RETHLen+payload+hdr.ICRCLen)
			h.front(b)
			var made hdr.Frame
			h.frame(&made, b, hdr.WriteOnly)
			hdr.SetICRC(b, &made)
			var g hdr.Frame
			if why := hdr.Parse(b, &g); why != hdr.IsRoCE || int(g.End)+hdr.ICRCLen != len(b) || len(g.PayloadOf(b)) != payload {
				t.Fatalf("%v: %d bytes of payload, want %d", why, len(g.PayloadOf(b)), payload)
			}
			if !g.ChecksumOK(b) || !hdr.GoodICRC(b, &g) || g.UDPOf(b).Checksum() != 0 {
				t.Fatalf("checksum right %v, ICRC good %v, UDP checksum %#x", g.ChecksumOK(b), hdr.GoodICRC(b, &g), g.UDPOf(b).Checksum())
			}
		}
	})
}

// TestLines: what most frames need of a connection lies in the first lines of the
// processor's cache that its flow takes, and flows begin with a line.
func TestLines(t *testing.T) {
	var f flow
	lines := uint32(unsafe.Sizeof(f) / 64)
	for name, x := range map[string][2]uintptr{
		"client":    {unsafe.Offsetof(f.admitted) / 64, 0},
		"its ring":  {unsafe.Offsetof(f.client) + unsafe.Offsetof(f.client.first), 64},
		"carrier":   {(unsafe.Offsetof(f.carrier) + unsafe.Offsetof(f.carrier.dead)) % 64, 0},
		"eight":     {unsafe.Offsetof(f.carrier.tries), 7}, // see carrier.is
		"its waits": {(unsafe.Offsetof(f.carrier) + unsafe.Offsetof(f.carrier.silent)) % 64, 0},
		"grants":    {(unsafe.Offsetof(f.carrier) + unsafe.Offsetof(f.carrier.grants)) % 64, 0},
		"up":        {(unsafe.Offsetof(f.carrier) + unsafe.Offsetof(f.carrier.up)) % 64, 0},
		"down":      {(unsafe.Offsetof(f.client) + unsafe.Offsetof(f.client.down)) % 64, 0},
		"flow":      {unsafe.Sizeof(f) % 128, 64},
		"index":     {uintptr(lines * perFlow), 1},
		"row":       {unsafe.Sizeof(conn.Row{}) % 64, 0},
	} {
		if x[0] != x[1] {
			t.Errorf("%s: at %d, not %d", name, x[0], x[1])
		}
	}
}
