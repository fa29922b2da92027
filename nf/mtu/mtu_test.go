package mtu

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/packet"
)

// ends are the layers in front of an IPv4 or IPv6 payload, behind VLAN tags.
func ends(six bool, vlans ...uint16) []gopacket.SerializableLayer {
	if six {
		return append(hdrtest.Stack(vlans...), &layers.IPv6{HopLimit: 9, SrcIP: net.ParseIP("2001:db8::1"), DstIP: net.ParseIP("2001:db8::2")})
	}
	return append(hdrtest.Stack(vlans...), &layers.IPv4{TTL: 9, Flags: layers.IPv4DontFragment, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2}})
}

// udp is a UDP datagram of n bytes of IP.
func udp(t testing.TB, six bool, n int, vlans ...uint16) []byte {
	if six {
		n -= 20
	}
	return hdrtest.Build(t, append(ends(six, vlans...), &layers.UDP{SrcPort: 7, DstPort: 9}, gopacket.Payload(bytes.Repeat([]byte{0x5A}, n-28)))...)
}

// sum is the folded sum of 16-bit words, as RFC 1071 defines it.
func sum(b []byte, s uint32) uint16 {
	b = append(bytes.Clone(b), make([]byte, len(b)%2)...)
	for ; len(b) > 0; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
		s = s>>16 + s&0xFFFF
	}
	return uint16(s)
}

func answer(b []byte, mtu int) []byte {
	var l hdr.Layers
	dst := make([]byte, longestFrame)
	if !hdr.Walk(b, &l) || l.L3 == 0 {
		return nil
	}
	return dst[:TooBig(dst, b, &l, mtu)]
}

// checkAnswer looks at an answer to b as gopacket reads it.
func checkAnswer(t *testing.T, got, b []byte, mtu int) {
	t.Helper()
	var l, q hdr.Layers
	hdr.Walk(b, &q)
	if !hdr.Walk(got, &l) || l.End != len(got) || l.Tags != q.Tags || l.VLANs() != q.VLANs() {
		t.Fatalf("%x is not a frame of %+v", got, q)
	}
	p := gopacket.NewPacket(got, layers.LayerTypeEthernet, gopacket.Default)
	e := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	if !bytes.Equal(e.DstMAC, b[6:12]) || !bytes.Equal(e.SrcMAC, b[:6]) {
		t.Errorf("from %v to %v", e.SrcMAC, e.DstMAC)
	}
	quoted := b[q.L3:q.End]
	if x, ok := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4); ok {
		m, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
		if !ok || m.TypeCode != layers.CreateICMPv4TypeCode(3, 4) || int(m.Seq) != mtu || m.Id != 0 {
			t.Fatalf("%v", p)
		}
		if !bytes.Equal(x.SrcIP, b[q.L3+16:q.L3+20]) || !bytes.Equal(x.DstIP, b[q.L3+12:q.L3+16]) || sum(x.Contents, 0) != 0xFFFF || sum(x.Payload, 0) != 0xFFFF {
			t.Errorf("addresses or checksums: %v", p)
		}
		if int(x.Length) > 576 || !bytes.Equal(m.Payload, quoted[:min(len(quoted), 576-28)]) {
			t.Errorf("%d bytes quote %d", x.Length, len(m.Payload))
		}
		return
	}
	x := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	m, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
	if !ok || m.TypeCode != layers.CreateICMPv6TypeCode(2, 0) || int(be.Uint32(m.Payload)) != mtu {
		t.Fatalf("%v", p)
	}
	pseudo := append(append(bytes.Clone(x.SrcIP), x.DstIP...), x.Payload...)
	if !bytes.Equal(x.SrcIP, b[q.L3+24:q.L3+40]) || !bytes.Equal(x.DstIP, b[q.L3+8:q.L3+24]) || sum(pseudo, uint32(len(x.Payload))+58) != 0xFFFF {
		t.Errorf("addresses or checksum: %v", p)
	}
	if len(x.Payload)+40 > 1280 || !bytes.Equal(m.Payload[4:], quoted[:min(len(quoted), 1280-48)]) {
		t.Errorf("%d bytes quote %d", len(x.Payload)+40, len(m.Payload)-4)
	}
}

func TestTooBig(t *testing.T) {
	for _, six := range []bool{false, true} {
		for _, vlans := range [][]uint16{nil, {7}, {7, 8}} {
			b := udp(t, six, 1451, vlans...)
			got := answer(b, 1450)
			if len(got) == 0 {
				t.Fatalf("no answer, IPv6 %v, tags %v", six, vlans)
			}
			checkAnswer(t, got, b, 1450)
			if got := answer(udp(t, six, 1450, vlans...), 1450); len(got) != 0 {
				t.Errorf("what fits was answered: %x", got)
			}
		}
	}
	// Padding is no part of the datagram; less than every link's MTU is not asked for.
	if got := answer(append(udp(t, false, 1400), make([]byte, 100)...), 1450); len(got) != 0 {
		t.Errorf("padding was answered: %x", got)
	}
	if got := answer(udp(t, true, 1280), 1000); len(got) != 0 {
		t.Errorf("IPv6 of 1280 bytes was answered: %x", got)
	}
	b := udp(t, true, 1300)
	checkAnswer(t, answer(b, 1000), b, 1280)
	b = udp(t, false, 100)
	checkAnswer(t, answer(b, 80), b, 80) // shorter than 576 bytes
	checkAnswer(t, answer(b, 20), b, 68)
}

// TestNotAnswered: what no error may be sent about, and beside it what differs from it as little as can be.
func TestNotAnswered(t *testing.T) {
	ip4 := func(f func(h hdr.IPv4)) func(b []byte) {
		return func(b []byte) { f(hdr.IPv4(b[14:])); hdr.IPv4(b[14:]).UpdateChecksum() }
	}
	icmp := func(kind uint8) func(b []byte) {
		return ip4(func(h hdr.IPv4) { h.SetProtocol(hdr.ProtoICMP); h[20] = kind })
	}
	icmp6 := func(kind uint8) func(b []byte) { return func(b []byte) { b[20], b[54] = hdr.ProtoICMPv6, kind } }
	fragment6 := func(offset uint16) func(b []byte) {
		return func(b []byte) { b[20], b[54] = hdr.ProtoFragment, hdr.ProtoUDP; be.PutUint16(b[56:], offset|1) }
	}
	at := func(i int, v ...byte) func(b []byte) { return func(b []byte) { copy(b[i:], v) } }
	at4 := func(i int, v ...byte) func(b []byte) { return ip4(func(h hdr.IPv4) { copy(h[i:], v) }) }
	for name, x := range map[string]struct {
		six  bool
		edit func(b []byte)
		want bool
	}{
		"IPv4":                {false, at(0, 2), true},
		"without DF":          {false, ip4(func(h hdr.IPv4) { h.SetDF(false) }), false},
		"first fragment":      {false, ip4(func(h hdr.IPv4) { h.SetMF(true) }), true},
		"later fragment":      {false, ip4(func(h hdr.IPv4) { h.SetFragOffset(1480) }), false},
		"wrong checksum":      {false, at(22, 99), false},
		"echo":                {false, icmp(8), true},
		"echo reply":          {false, icmp(0), true},
		"timestamp":           {false, icmp(13), true},
		"unreachable":         {false, icmp(3), false},
		"source quench":       {false, icmp(4), false},
		"redirect":            {false, icmp(5), false},
		"time exceeded":       {false, icmp(11), false},
		"parameter problem":   {false, icmp(12), false},
		"broadcast frame":     {false, at(0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF), false},
		"multicast frame":     {false, at(0, 1), false},
		"from a group's MAC":  {false, at(6, 1), false},
		"multicast":           {false, at4(16, 224, 0, 0, 5), false},
		"broadcast":           {false, at4(16, 255, 255, 255, 255), false},
		"to no address":       {false, at4(16, 0, 0, 0, 0), false},
		"from no address":     {false, at4(12, 0, 0, 0, 0), false},
		"from loopback":       {false, at4(12, 127, 0, 0, 1), false},
		"from multicast":      {false, at4(12, 239, 1, 1, 1), false},
		"from a reserved one": {false, at4(12, 240, 0, 0, 1), false},
		"to itself":           {false, at4(12, 10, 0, 0, 2), false},
		"IPv6":                {true, at(0, 2), true},
		"echo 6":              {true, icmp6(128), true},
		"neighbour 6":         {true, icmp6(135), true},
		"unreachable 6":       {true, icmp6(1), false},
		"too big 6":           {true, icmp6(2), false},
		"unknown error 6":     {true, icmp6(127), false},
		"redirect 6":          {true, icmp6(137), false},
		"first fragment 6":    {true, fragment6(0), true},
		"later fragment 6":    {true, fragment6(8), false},
		"multicast 6":         {true, at(38, 0xFF, 2), false},
		"from multicast 6":    {true, at(22, 0xFF, 2), false},
		"from no address 6":   {true, at(22, make([]byte, 16)...), false},
		"from loopback 6":     {true, at(22, append(make([]byte, 15), 1)...), false},
		"to no address 6":     {true, at(38, make([]byte, 16)...), false},
		"to itself 6":         {true, at(37, 2), false},
		"headers too long 6":  {true, at(20, 0, 0, 0), true},
	} {
		b := udp(t, x.six, 1500)
		if name == "headers too long 6" { // hop-by-hop options: within the packet, then behind it
			b[54], b[55] = hdr.ProtoUDP, 0
			x.edit(b)
			b[21] = 9
			if got := answer(b, 1400); len(got) == 0 {
				t.Error("options in front: no answer")
			}
			b[55], x.want = 255, false
		} else {
			x.edit(b)
		}
		got := answer(b, 1400)
		if (len(got) != 0) != x.want {
			t.Errorf("%s: answered with %d bytes", name, len(got))
		}
		if len(got) > 0 {
			checkAnswer(t, got, b, 1400)
		}
	}
}

// FuzzTooBig: whatever frame comes, an answer is one, is about it, and would not be answered.
func FuzzTooBig(f *testing.F) {
	for _, six := range []bool{false, true} {
		for _, vlans := range [][]uint16{nil, {7}, {7, 8}} {
			f.Add(udp(f, six, 1400, vlans...), uint16(1300))
			f.Add(udp(f, six, 100, vlans...), uint16(0))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, mtu uint16) {
		got := answer(b, int(mtu))
		if len(got) == 0 {
			return
		}
		least := 68
		var l hdr.Layers
		if hdr.Walk(got, &l); l.EtherType == hdr.EtherIPv6 {
			least = 1280
		}
		checkAnswer(t, got, b, max(int(mtu), least))
		if again := answer(got, 0); len(again) != 0 {
			t.Fatalf("an error about an error: %x", again)
		}
	})
}

// syn is a TCP segment with options, behind IP.
func syn(t testing.TB, six bool, flags func(h *layers.TCP), options ...layers.TCPOption) (b []byte, w *hdr.Layers) {
	h := &layers.TCP{SrcPort: 7, DstPort: 9, Seq: 1, SYN: true, Options: options}
	flags(h)
	b, w = hdrtest.Build(t, append(ends(six), h, gopacket.Payload("data"))...), new(hdr.Layers)
	hdr.Walk(b, w)
	return b, w
}

func size(n uint16) layers.TCPOption {
	return layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{byte(n >> 8), byte(n)}}
}

// offered is the segment size of a frame's SYN, as gopacket reads it, and whether the checksum is right.
func offered(t testing.TB, b []byte) (n int, ok bool) {
	var l hdr.Layers
	hdr.Walk(b, &l)
	h := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeTCP).(*layers.TCP)
	for _, o := range h.Options {
		if o.OptionType == layers.TCPOptionKindMSS {
			n = int(o.OptionData[0])<<8 | int(o.OptionData[1])
		}
	}
	ends := b[l.L3+12 : l.L3+20]
	if l.EtherType == hdr.EtherIPv6 {
		ends = b[l.L3+8 : l.L3+40]
	}
	return n, sum(append(bytes.Clone(ends), b[l.L4:l.End]...), uint32(l.End-l.L4)+6) == 0xFFFF
}

func TestLower(t *testing.T) {
	nop := layers.TCPOption{OptionType: layers.TCPOptionKindNop}
	scale := layers.TCPOption{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{7}}
	none := func(*layers.TCP) {}
	for name, x := range map[string]struct {
		flags   func(*layers.TCP)
		options []layers.TCPOption
		want    int // segment size; 0: there is none
	}{
		"first":        {none, []layers.TCPOption{size(1460)}, 1400},
		"SYN and ACK":  {func(h *layers.TCP) { h.ACK = true }, []layers.TCPOption{size(1460)}, 1400},
		"odd place":    {none, []layers.TCPOption{nop, size(1460), nop}, 1400},
		"odd place, 3": {none, []layers.TCPOption{scale, size(65535)}, 1400},
		"last":         {none, []layers.TCPOption{nop, nop, scale, nop, size(9000)}, 1400},
		"just":         {none, []layers.TCPOption{size(1400)}, 1400},
		"less":         {none, []layers.TCPOption{size(536)}, 536},
		"no option":    {none, []layers.TCPOption{nop, nop, scale}, 0},
		"no options":   {none, nil, 0},
		"no SYN":       {func(h *layers.TCP) { h.SYN = false; h.ACK = true }, []layers.TCPOption{size(1460)}, 1460},
		"twice":        {none, []layers.TCPOption{size(1460), size(9000)}, 1400},
	} {
		for _, six := range []bool{false, true} {
			b, l := syn(t, six, x.flags, x.options...)
			was := bytes.Clone(b)
			m := MSS{V4: 1400, V6: 1400}
			did := m.Lower(b, l)
			if n, ok := offered(t, b); n != x.want || !ok || did == bytes.Equal(was, b) {
				t.Errorf("%s, IPv6 %v: offers %d, want %d; checksum right: %v; said that it changed: %v", name, six, n, x.want, ok, did)
			}
		}
	}
	b, l := syn(t, false, func(*layers.TCP) {}, size(1460))
	l.Fragment = true
	if m := (MSS{1000, 1000}); m.Lower(b, l) {
		t.Error("a fragment was changed")
	}
	// Each IP version has its own limit; without one nothing is lowered.
	for _, six := range []bool{false, true} {
		b, l := syn(t, six, none, size(1460))
		m := MSS{V4: 1410, V6: 1390}
		m.Lower(b, l)
		if n, _ := offered(t, b); n != 1410 && !six || n != 1390 && six {
			t.Errorf("IPv6 %v: %d", six, n)
		}
		b, l = syn(t, six, none, size(1460))
		if m = (MSS{}); m.Lower(b, l) {
			t.Errorf("lowered without a limit: %x", b)
		}
	}
}

// FuzzLower: any bytes; the checksum is as right or as wrong afterwards as it was, and nothing but offers changes.
func FuzzLower(f *testing.F) {
	frame, l := syn(f, false, func(*layers.TCP) {}, size(1460))
	a := frame[l.L4:l.End]
	f.Add(a)
	frame, l = syn(f, false, func(*layers.TCP) {}, layers.TCPOption{OptionType: layers.TCPOptionKindNop}, size(9000))
	f.Add(frame[l.L4:l.End])
	for _, options := range []string{"\x02", "\x02\x04\xff", "\x02\x00\xff\xff", "\x02\xff\xff\xff", "\x00\x02\x04\xff\xff", "\x02\x05\xff\xff\xff"} {
		s := append(bytes.Clone(a[:20]), options...)
		s = append(s, make([]byte, 24-len(s)%24)...)
		s[12] = 15 << 4
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := bytes.Clone(b)
		if did := lower(got, 1000); did == bytes.Equal(got, b) {
			t.Fatalf("says %v: %x became %x", did, b, got)
		}
		// Ones' complement has two zeros.
		if x, y := sum(got, 0)%0xFFFF, sum(b, 0)%0xFFFF; x != y {
			t.Fatalf("the sum was %04x, and is %04x: %x became %x", y, x, b, got)
		}
		if lower(got, 1000) {
			t.Fatalf("lowered twice: %x", got)
		}
	})
}

// teller is an app that tells the sender of everything, and drops it.
type teller struct{ Teller }

func (a *teller) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		var l hdr.Layers
		if hdr.Walk(x.Bytes(), &l) && l.L3 != 0 {
			a.Tell(c, x, &l, 1400, 0, 0)
		}
		c.Drop(x, 1)
	}
}

func kind() graph.Kind {
	return graph.Kind{Name: "teller", In: []string{"a"}, Out: []string{"a"}, Reasons: []counter.Def{{Name: "told", Help: "-"}, {Name: "too-big", Help: "-"}},
		New: func(graph.Env, graph.Args) (graph.App, error) { return &teller{}, nil }}
}

func TestTeller(t *testing.T) {
	x := graphtest.New(t, kind(), nil)
	big := udp(t, false, 1500)
	told := func(n int) (all int) {
		for range n {
			r := x.Push("a", big)
			all += len(r.Out["a"])
			for _, f := range r.Out["a"] {
				if f.Verdict != packet.Generated || f.Reason != "told" {
					t.Fatalf("%+v", f)
				}
				checkAnswer(t, f.Bytes, big, 1400)
			}
		}
		return all
	}
	for i := range 100 { // frames without an answer take nothing out of the bucket
		if r := x.Push("a", udp(t, false, 1300+i%2)); len(r.Out["a"]) != 0 {
			t.Fatalf("%+v", r)
		}
	}
	if n := told(150); n != 100 {
		t.Errorf("%d of 150 at once were told, want 100", n)
	}
	x.Advance(100 * each / 10)
	if n := told(20); n != 10 {
		t.Errorf("after 100 ms %d more were told, want 10", n)
	}
	x.Advance(clock.Duration(3600) * 100 * each)
	if n := told(150); n != 100 {
		t.Errorf("after an hour %d at once were told, want 100", n)
	}
}

func TestNothingAllocates(t *testing.T) {
	if n := graphtest.Allocs(t, kind(), nil, "a", udp(t, false, 1500), udp(t, true, 1500), udp(t, true, 1300)); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLimit(t *testing.T) {
	for v, want := range map[string]MSS{"none": {}, "auto": {1410, 1390}, "1000": {1000, 1000}, "88": {88, 88}} {
		var l Limit
		if err := l.UnmarshalText([]byte(v)); err != nil || l.Within(1450) != want {
			t.Errorf("%s: %v, %v", v, l.Within(1450), err)
		}
		if text, err := l.MarshalText(); err != nil || string(text) != v {
			t.Errorf("%s is shown as %s, %v", v, text, err)
		}
	}
	for _, v := range []string{"", "87", "65536", "-1", "most"} {
		var l Limit
		if err := l.UnmarshalText([]byte(v)); err == nil || !strings.Contains(err.Error(), "want none, auto or a number from 88") {
			t.Errorf("%q: %v, %v", v, l, err)
		}
	}
}

func ExampleNote() {
	fmt.Println(Note(1450, 1500, MSS{}))
	fmt.Println(Note(1450, 1500, MSS{1410, 1390}))
	fmt.Println(Note(1210, 1260, MSS{1170, 1150}))
	// Output:
	// longest packets from port a: 1450 bytes (mtu=1500); senders of longer ones are told by ICMP; where ICMP is filtered, give mss=auto
	// longest packets from port a: 1450 bytes (mtu=1500); senders of longer ones are told by ICMP; TCP segments: 1410 bytes over IPv4, 1390 over IPv6
	// longest packets from port a: 1210 bytes (mtu=1260); IPv6 wants 1280, and its longer packets are lost; senders of longer ones are told by ICMP; TCP segments: 1170 bytes over IPv4, 1150 over IPv6
}
