package vxlan

import (
	"bytes"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/mtu/mtutest"
)

// df is an inner frame with DF.
func df(b []byte) []byte {
	var l hdr.Layers
	if hdr.Walk(b, &l); l.EtherType == hdr.EtherIPv4 {
		hdr.IPv4(b[l.L3:]).SetDF(true)
		hdr.IPv4(b[l.L3:]).UpdateChecksum()
	}
	return b
}

// TestTold: the sender of a frame that is dropped as too big learns the inner MTU, on its own VLAN.
func TestTold(t *testing.T) {
	for name, x := range map[string]struct {
		six, in6 bool // the tunnel, and what is inside
		more     []string
		vlans    []uint16
		mtu      int
	}{
		"IPv4":               {false, false, nil, nil, 1450},
		"IPv4 in IPv6":       {true, false, nil, nil, 1430},
		"IPv6 in IPv4":       {false, true, nil, nil, 1450},
		"IPv6":               {true, true, nil, nil, 1430},
		"tenant":             {false, false, []string{"tenants", "100:1"}, []uint16{100}, 1450},
		"tag that stays":     {false, false, []string{"inner-tags", "keep"}, []uint16{100}, 1446},
		"tenant and another": {false, true, []string{"inner-tags", "keep", "tenants", "100:1"}, []uint16{100, 200}, 1446},
		"mtu=9000":           {false, false, []string{"mtu", "9000"}, nil, 8950},
		"outer tag":          {false, false, []string{"outer-vlan", "9"}, nil, 1450},
	} {
		y := graphtest.New(t, *Kind(), args(x.six, false, x.more...))
		over := 28
		if x.in6 {
			over = 48
		}
		one(t, y, "a", df(inner(t, x.in6, 0, 1, x.mtu-over, x.vlans...)), "b", "encapsulated")
		b := df(inner(t, x.in6, 0, 1, x.mtu-over+1, x.vlans...))
		mtutest.TooBig(t, name, y.Push("a", b), b, x.mtu, len(x.vlans))
	}
	// Without DF, and what is not IP: dropped and no more.
	y := graphtest.New(t, *Kind(), args(false, false))
	dropped(t, y, "a", inner(t, false, 0, 1, 1500), "too-big")
	dropped(t, y, "a", make([]byte, 1500), "too-big")
}

// segment is a SYN of a tenant that offers 1460.
func segment(t testing.TB, six bool) []byte {
	b := inner(t, six, 0, 1, 16)
	var l hdr.Layers
	hdr.Walk(b, &l)
	e := layers.EthernetTypeIPv4
	var ip gopacket.SerializableLayer = &layers.IPv4{Version: 4, TTL: 65, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{192, 168, 0, 1}, DstIP: net.IP{192, 168, 0, 2}}
	if six {
		e, ip = layers.EthernetTypeIPv6, &layers.IPv6{Version: 6, HopLimit: 65, NextHeader: layers.IPProtocolTCP, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")}
	}
	h := &layers.TCP{SrcPort: 1, DstPort: 2, SYN: true, Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{1460 >> 8, 1460 & 255}}}}
	_ = h.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer))
	return hdrtest.Build(t, &layers.Ethernet{SrcMAC: b[6:12], DstMAC: b[:6], EthernetType: e}, ip, h)
}

// TestMSS: both directions; the checksum is that of another end, which has none to lower.
func TestMSS(t *testing.T) {
	for _, c := range []struct {
		six  bool
		mss  string
		want int
		more []string
	}{{false, "auto", 1410, nil}, {true, "auto", 1390, nil}, {false, "1000", 1000, nil}, {false, "none", 1460, nil},
		{false, "auto", 1402, []string{"inner-tags", "keep"}}} {
		b := segment(t, c.six)
		want := bytes.Clone(b)
		var l hdr.Layers
		hdr.Walk(want, &l)
		seg := want[l.L4:]
		old, mss := hdr.TCP(seg).Checksum(), uint16(c.want)
		seg[22], seg[23] = byte(mss>>8), byte(mss)
		hdr.TCP(seg).SetChecksum(hdr.PatchChecksum(old, 1460, mss))
		near, far := graphtest.New(t, *Kind(), args(false, false, append(c.more, "mss", c.mss)...)), graphtest.New(t, *Kind(), args(false, true, c.more...))
		there := one(t, far, "b", one(t, near, "a", b, "b", "encapsulated"), "a", "decapsulated")
		back := one(t, near, "b", one(t, far, "a", b, "b", "encapsulated"), "a", "decapsulated")
		for way, got := range map[string][]byte{"there": there, "back": back} {
			if !bytes.Equal(got, want) {
				t.Errorf("%+v, %s:\n%x\nwant\n%x", c, way, got, want)
			}
		}
		if n := near.Counter("mss-lowered"); n != map[bool]uint64{true: 0, false: 2}[c.mss == "none"] {
			t.Errorf("%+v: counted %d", c, n)
		}
	}
}

// asked is the frame of an ARP request.
func asked(t testing.TB, edit func(e *layers.Ethernet, a *layers.ARP), vlans ...uint16) []byte {
	e := &layers.Ethernet{SrcMAC: thereMAC, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeARP}
	a := &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
		SourceHwAddress: thereMAC, SourceProtAddress: []byte{10, 0, 0, 2}, DstHwAddress: make([]byte, 6), DstProtAddress: []byte{10, 0, 0, 1}}
	edit(e, a)
	l := []gopacket.SerializableLayer{e}
	for _, v := range vlans {
		e.EthernetType = layers.EthernetTypeDot1Q
		l = append(l, &layers.Dot1Q{VLANIdentifier: v, Type: layers.EthernetTypeARP})
	}
	return hdrtest.Build(t, append(l, a, gopacket.Payload(make([]byte, 18)))...)
}

func TestARP(t *testing.T) {
	plain := func(*layers.Ethernet, *layers.ARP) {}
	for name, x := range map[string]struct {
		frame []byte
		more  []string
		want  bool
	}{
		"broadcast":        {asked(t, plain), nil, true},
		"to this end":      {asked(t, func(e *layers.Ethernet, _ *layers.ARP) { e.DstMAC = hereMAC }), nil, true},
		"probe":            {asked(t, func(_ *layers.Ethernet, a *layers.ARP) { a.SourceProtAddress = make([]byte, 4) }), nil, true},
		"outer VLAN":       {asked(t, plain, 9), []string{"outer-vlan", "9"}, true},
		"another VLAN":     {asked(t, plain, 8), []string{"outer-vlan", "9"}, false},
		"no VLAN":          {asked(t, plain), []string{"outer-vlan", "9"}, false},
		"some VLAN":        {asked(t, plain, 9), nil, false},
		"two tags":         {asked(t, plain, 9, 9), []string{"outer-vlan", "9"}, false},
		"another address":  {asked(t, func(_ *layers.Ethernet, a *layers.ARP) { a.DstProtAddress[3]++ }), nil, false},
		"reply":            {asked(t, func(_ *layers.Ethernet, a *layers.ARP) { a.Operation = layers.ARPReply }), nil, false},
		"its own address":  {asked(t, func(_ *layers.Ethernet, a *layers.ARP) { a.SourceProtAddress = a.DstProtAddress }), nil, false},
		"to another host":  {asked(t, func(e *layers.Ethernet, _ *layers.ARP) { e.DstMAC = net.HardwareAddr{2, 0, 0, 0, 0, 9} }), nil, false},
		"from this end":    {asked(t, func(e *layers.Ethernet, _ *layers.ARP) { e.SrcMAC = hereMAC }), nil, false},
		"from a group":     {asked(t, func(e *layers.Ethernet, _ *layers.ARP) { e.SrcMAC = net.HardwareAddr{3, 0, 0, 0, 0, 9} }), nil, false},
		"cut":              {asked(t, plain)[:40], nil, false},
		"local= is IPv6's": {asked(t, plain), []string{"local", "2001:db8::1", "remote", "2001:db8::2"}, false},
	} {
		y := graphtest.New(t, *Kind(), args(false, false, x.more...))
		if !x.want {
			if got := one(t, y, "b", x.frame, "a", "not-tunnel"); !bytes.Equal(got, x.frame) {
				t.Errorf("%s: changed to %x", name, got)
			}
			continue
		}
		p := gopacket.NewPacket(one(t, y, "b", x.frame, "b", "resolved"), layers.LayerTypeEthernet, gopacket.Default)
		q := gopacket.NewPacket(x.frame, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeARP).(*layers.ARP)
		e, a := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet), p.Layer(layers.LayerTypeARP).(*layers.ARP)
		if !bytes.Equal(e.DstMAC, thereMAC) || !bytes.Equal(e.SrcMAC, hereMAC) || a.Operation != layers.ARPReply || !bytes.Equal(a.SourceHwAddress, hereMAC) ||
			!bytes.Equal(a.SourceProtAddress, []byte{10, 0, 0, 1}) || !bytes.Equal(a.DstHwAddress, thereMAC) || !bytes.Equal(a.DstProtAddress, q.SourceProtAddress) {
			t.Errorf("%s: %v", name, p)
		}
		// From the plain side it passes through as ever: hosts there are not asked for.
		if len(x.more) == 0 {
			one(t, y, "a", x.frame, "b", "encapsulated")
		}
	}
}

// solicitation asks for 2001:db8::1; with edit something else.
func solicitation(t testing.TB, edit func(e *layers.Ethernet, ip *layers.IPv6, m *layers.ICMPv6NeighborSolicitation)) []byte {
	e := &layers.Ethernet{SrcMAC: thereMAC, DstMAC: net.HardwareAddr{0x33, 0x33, 0xFF, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv6}
	ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: net.ParseIP("2001:db8::2"), DstIP: net.ParseIP("ff02::1:ff00:1")}
	m := &layers.ICMPv6NeighborSolicitation{TargetAddress: net.ParseIP("2001:db8::1"), Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: thereMAC}}}
	edit(e, ip, m)
	h := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(135, 0)}
	return hdrtest.Build(t, e, ip, h, m)
}

func TestNeighbourSolicitation(t *testing.T) {
	type eth = layers.Ethernet
	type six = layers.IPv6
	type sol = layers.ICMPv6NeighborSolicitation
	edited := func(at int, v byte) []byte {
		b := solicitation(t, func(*eth, *six, *sol) {})
		b[at] = v
		return b
	}
	for name, x := range map[string]struct {
		frame []byte
		want  bool
	}{
		"multicast":       {solicitation(t, func(*eth, *six, *sol) {}), true},
		"unicast":         {solicitation(t, func(e *eth, ip *six, _ *sol) { e.DstMAC, ip.DstIP = hereMAC, net.ParseIP("2001:db8::1") }), true},
		"without option":  {solicitation(t, func(_ *eth, _ *six, m *sol) { m.Options = nil }), true},
		"probe":           {solicitation(t, func(_ *eth, ip *six, m *sol) { ip.SrcIP, m.Options = net.IPv6zero, nil }), true},
		"another address": {solicitation(t, func(_ *eth, _ *six, m *sol) { m.TargetAddress = net.ParseIP("2001:db8::3") }), false},
		"from afar":       {solicitation(t, func(_ *eth, ip *six, _ *sol) { ip.HopLimit = 254 }), false},
		"from this end":   {solicitation(t, func(e *eth, _ *six, _ *sol) { e.SrcMAC = hereMAC }), false},
		"its own address": {solicitation(t, func(_ *eth, ip *six, _ *sol) { ip.SrcIP = net.ParseIP("2001:db8::1") }), false},
		"wrong checksum":  {edited(57, 1), false},
		"advertisement":   {edited(54, 136), false},
		"option of 0":     {solicitation(t, func(_ *eth, _ *six, m *sol) { m.Options[0].Data = nil }), false},
		"cut":             {solicitation(t, func(*eth, *six, *sol) {})[:70], false},
	} {
		y := graphtest.New(t, *Kind(), args(true, false))
		if name == "option of 0" {
			x.frame[14+40+24+1] = 0
			reseal(x.frame)
		}
		if !x.want {
			if got := one(t, y, "b", x.frame, "a", "not-tunnel"); !bytes.Equal(got, x.frame) {
				t.Errorf("%s: changed to %x", name, got)
			}
			continue
		}
		got := one(t, y, "b", x.frame, "b", "resolved")
		p := gopacket.NewPacket(got, layers.LayerTypeEthernet, gopacket.Default)
		e, ip := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet), p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
		m, ok := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
		to, mac, flags := net.ParseIP("2001:db8::2"), thereMAC, uint8(0x60)
		if name == "probe" {
			to, mac, flags = net.ParseIP("ff02::1"), net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, 0x20
		}
		if !ok || m.Flags != flags || !m.TargetAddress.Equal(net.ParseIP("2001:db8::1")) || len(m.Options) != 1 || m.Options[0].Type != layers.ICMPv6OptTargetAddress || !bytes.Equal(m.Options[0].Data, hereMAC) {
			t.Fatalf("%s: %v", name, p)
		}
		pseudo := append(append(bytes.Clone(ip.SrcIP), ip.DstIP...), ip.Payload...)
		if !bytes.Equal(e.SrcMAC, hereMAC) || !bytes.Equal(e.DstMAC, mac) || !ip.DstIP.Equal(to) || ip.HopLimit != 255 || sum(pseudo, uint32(len(ip.Payload))+58) != 0xFFFF {
			t.Errorf("%s: %v", name, p)
		}
	}
}

// reseal gives an untagged ICMPv6 frame its checksum.
func reseal(b []byte) {
	ip := hdr.IPv6(b[14:])
	m := hdr.ICMP(b[54 : 54+int(ip.PayloadLen())])
	m.SetChecksum(0)
	m.SetChecksum(hdr.Checksum(m, hdr.PseudoSum(ip.Src(), ip.Dst(), hdr.ProtoICMPv6, len(m))))
}

func TestToldAllocatesNothing(t *testing.T) {
	big, ask := df(inner(t, false, 0, 1, 1460)), asked(t, func(*layers.Ethernet, *layers.ARP) {})
	if n := graphtest.Allocs(t, *Kind(), args(false, false, "mss", "auto"), "a", big, segment(t, false), segment(t, true)); n != 0 {
		t.Errorf("%v allocations into the tunnel", n)
	}
	if n := graphtest.Allocs(t, *Kind(), args(false, false), "b", ask); n != 0 {
		t.Errorf("%v allocations for ARP", n)
	}
	if n := graphtest.Allocs(t, *Kind(), args(true, false), "b", solicitation(t, func(*layers.Ethernet, *layers.IPv6, *layers.ICMPv6NeighborSolicitation) {})); n != 0 {
		t.Errorf("%v allocations for neighbour discovery", n)
	}
}

// FuzzResolve gives any frame to the tunnel's side, ICMPv6 with its checksum: what is answered is answered as
// this end, once.
func FuzzResolve(f *testing.F) {
	f.Add(asked(f, func(*layers.Ethernet, *layers.ARP) {}), false)
	f.Add(solicitation(f, func(*layers.Ethernet, *layers.IPv6, *layers.ICMPv6NeighborSolicitation) {}), true)
	f.Add(solicitation(f, func(_ *layers.Ethernet, _ *layers.IPv6, m *layers.ICMPv6NeighborSolicitation) { m.Options = nil }), true)
	f.Fuzz(func(t *testing.T, b []byte, six bool) {
		if len(b) > 2000 {
			return
		}
		var l hdr.Layers
		if hdr.Walk(b, &l) && l.Tags == 0 && l.Proto == hdr.ProtoICMPv6 && l.L4 == 54 && l.End >= l.L4+8 {
			reseal(b)
		}
		y := graphtest.NewSmall(t, *Kind(), args(six, false))
		r := y.Push("b", b)
		for _, got := range r.Out["b"] {
			if got.Reason != "resolved" || !bytes.Equal(got.Bytes[6:12], hereMAC) {
				t.Fatalf("%+v", got)
			}
			if again := y.Push("b", got.Bytes); len(again.Out["b"]) != 0 {
				t.Fatalf("an answer was answered: %+v", again)
			}
		}
	})
}
