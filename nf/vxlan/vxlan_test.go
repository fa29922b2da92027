package vxlan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/outer"
	"github.com/quillon/quillon/nf/packet"
)

var (
	hereMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	thereMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

func args(six, there bool, more ...string) graph.Args {
	a := graph.Args{"vni": "5000", "local": "10.0.0.1", "remote": "10.0.0.2", "local-mac": hereMAC.String(), "remote-mac": thereMAC.String()}
	if six {
		a["local"], a["remote"] = "2001:db8::1", "2001:db8::2"
	}
	if there {
		a["local"], a["remote"], a["local-mac"], a["remote-mac"] = a["remote"], a["local"], a["remote-mac"], a["local-mac"]
	}
	for i := 0; i < len(more); i += 2 {
		a[more[i]] = more[i+1]
	}
	return a
}

// inner is a UDP frame of a tenant, behind VLAN tags, with a TOS.
func inner(t testing.TB, six bool, tos uint8, port uint16, payload int, vlans ...uint16) []byte {
	l := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, DstMAC: net.HardwareAddr{2, 9, 9, 9, 9, 2}}}
	for _, v := range vlans {
		l = append(l, &layers.Dot1Q{VLANIdentifier: v})
	}
	if six {
		l = append(l, &layers.IPv6{Version: 6, TrafficClass: tos, HopLimit: 65, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")})
	} else {
		l = append(l, &layers.IPv4{Version: 4, TOS: tos, TTL: 65, Id: 7, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{192, 168, 0, 1}, DstIP: net.IP{192, 168, 0, 2}})
	}
	l = append(l, &layers.UDP{SrcPort: layers.UDPPort(port), DstPort: 80}, gopacket.Payload(bytes.Repeat([]byte{0xA5}, payload)))
	return hdrtest.Build(t, l...)
}

// datagram is what the other end's tunnel datagram looks like, to gopacket.
type datagram struct {
	six, noChecksum bool
	vlan            uint16
	srcPort         uint16
	label           uint32
	tos             uint8
	vni             uint32
	there           bool // sent by the other end
}

func (o datagram) frame(t testing.TB, in []byte) []byte {
	e := &layers.Ethernet{SrcMAC: hereMAC, DstMAC: thereMAC, EthernetType: layers.EthernetTypeIPv4}
	src4, dst4 := net.IP{10, 0, 0, 1}, net.IP{10, 0, 0, 2}
	src6, dst6 := net.ParseIP("2001:db8::1"), net.ParseIP("2001:db8::2")
	if o.there {
		e.SrcMAC, e.DstMAC, src4, dst4, src6, dst6 = e.DstMAC, e.SrcMAC, dst4, src4, dst6, src6
	}
	l := []gopacket.SerializableLayer{e}
	if o.six {
		e.EthernetType = layers.EthernetTypeIPv6
	}
	if o.vlan != 0 {
		l = append(l, &layers.Dot1Q{VLANIdentifier: o.vlan, Type: e.EthernetType})
		e.EthernetType = layers.EthernetTypeDot1Q
	}
	if o.six {
		l = append(l, &layers.IPv6{Version: 6, TrafficClass: o.tos, FlowLabel: o.label, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: src6, DstIP: dst6})
	} else {
		l = append(l, &layers.IPv4{Version: 4, TOS: o.tos, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolUDP, SrcIP: src4, DstIP: dst4})
	}
	l = append(l, &layers.UDP{SrcPort: layers.UDPPort(o.srcPort), DstPort: 4789}, &layers.VXLAN{ValidIDFlag: true, VNI: o.vni}, gopacket.Payload(in))
	b := hdrtest.Build(t, l...)
	if o.noChecksum {
		at := hdr.EthernetLen + hdr.IPv4Len
		if o.six {
			at += hdr.IPv6Len - hdr.IPv4Len
		}
		if o.vlan != 0 {
			at += hdr.VLANLen
		}
		hdr.UDP(b[at:]).SetChecksum(0)
	}
	return b
}

func one(t *testing.T, x *graphtest.Test, in string, frame []byte, out, reason string) []byte {
	t.Helper()
	r := x.Push(in, frame)
	if len(r.Out[out]) != 1 || len(r.Dropped) != 0 || r.Out[out][0].Reason != reason {
		t.Fatalf("want one frame from %s, %s: %+v", out, reason, r)
	}
	return r.Out[out][0].Bytes
}

func dropped(t *testing.T, x *graphtest.Test, in string, frame []byte, reason string) {
	t.Helper()
	r := x.Push(in, frame)
	if len(r.Dropped) != 1 || r.Dropped[0].Reason != reason || len(r.Out["a"])+len(r.Out["b"]) != 0 {
		t.Fatalf("want a drop for %s: %+v", reason, r)
	}
}

// TestBytes compares with frames that gopacket builds, byte for byte, and takes
// them apart again.
func TestBytes(t *testing.T) {
	arp := hdrtest.Build(t, &layers.Ethernet{SrcMAC: hereMAC, DstMAC: net.HardwareAddr{255, 255, 255, 255, 255, 255}, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1, SourceHwAddress: hereMAC, SourceProtAddress: net.IP{1, 1, 1, 1}, DstHwAddress: make([]byte, 6), DstProtAddress: net.IP{1, 1, 1, 2}})
	var all [][]byte
	for _, c := range []struct {
		name      string
		in, inner []byte
		more      []string
		want      datagram
	}{
		{"IPv4", inner(t, false, 0xB9, 1, 30), nil, nil, datagram{noChecksum: true, vni: 5000, tos: 0xB9}},
		{"IPv6 inside", inner(t, true, 0x02, 1, 31), nil, nil, datagram{noChecksum: true, vni: 5000, tos: 0x02}},
		{"over IPv6", inner(t, false, 0xB9, 1, 31), nil, nil, datagram{six: true, vni: 5000, tos: 0xB9}},
		{"over IPv6 without checksum", inner(t, true, 1, 1, 30), nil, []string{"checksum6", "zero"}, datagram{six: true, noChecksum: true, vni: 5000, tos: 1}},
		{"compatibility, DSCP", inner(t, false, 0xB9, 1, 30), nil, []string{"ecn", "compatibility", "dscp", "46"}, datagram{noChecksum: true, vni: 5000, tos: 0xB8}},
		{"ARP", arp, nil, nil, datagram{noChecksum: true, vni: 5000}},
		{"tenant", inner(t, false, 0, 1, 30, 100), inner(t, false, 0, 1, 30), []string{"tenants", "100:70000+200:16777215"}, datagram{noChecksum: true, vni: 70000}},
		{"tags kept", inner(t, false, 4, 1, 30, 100, 200), nil, []string{"inner-tags", "keep"}, datagram{noChecksum: true, vni: 5000, tos: 4}},
		{"tenant, tag kept", inner(t, false, 4, 1, 30, 100, 200), inner(t, false, 4, 1, 30, 200), []string{"inner-tags", "keep", "tenants", "100:1"}, datagram{noChecksum: true, vni: 1, tos: 4}},
		{"tagged tunnel", inner(t, true, 4, 1, 30, 100), inner(t, true, 4, 1, 30), []string{"outer-vlan", "9", "tenants", "100:1"}, datagram{six: true, vlan: 9, vni: 1, tos: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := graphtest.New(t, *Kind(), args(c.want.six, false, c.more...))
			got := one(t, x, "a", c.in, "b", "encapsulated")
			var l hdr.Layers
			hdr.Walk(got, &l)
			src, _ := l.PortsOf(got)
			if src < 49152 {
				t.Errorf("source port %d", src)
			}
			c.want.srcPort = src
			if c.want.six {
				var li hdr.Layers
				hdr.Walk(c.in, &li)
				c.want.label = outer.Flow(c.in, &li) >> 12
				if c.want.label == 0 {
					t.Error("no flow label")
				}
			}
			in := c.inner
			if in == nil {
				in = c.in
			}
			if want := c.want.frame(t, in); !bytes.Equal(got, want) {
				t.Errorf("\n%x, want\n%x", got, want)
			}
			y := graphtest.New(t, *Kind(), args(c.want.six, true, c.more...))
			if back := one(t, y, "b", got, "a", "decapsulated"); !bytes.Equal(back, c.in) {
				t.Errorf("back\n%x, want\n%x", back, c.in)
			}
			// Padding behind the datagram, as of a short frame.
			if back := one(t, y, "b", append(bytes.Clone(got), 0, 0, 0), "a", "decapsulated"); !bytes.Equal(back, c.in) {
				t.Errorf("back from padding\n%x, want\n%x", back, c.in)
			}
			all = append(all, got)
		})
	}
	tshark(t, all)
}

// tshark finds every frame a sound VXLAN frame.
func tshark(t *testing.T, frames [][]byte) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed: its dissection is not compared")
	}
	name := filepath.Join(t.TempDir(), "frames.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(0xFFFF, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, b := range frames {
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(b), Length: len(b)}, b); err != nil {
			t.Fatal(err)
		}
		var l hdr.Layers
		hdr.Walk(b, &l)
		complaint := ""
		if l.EtherType == hdr.EtherIPv6 && hdr.UDP(b[l.L4:]).Checksum() == 0 {
			complaint = "Illegal checksum value (0)" // tshark does not know what was agreed
		}
		want += fmt.Sprintf("%d\t%s\n", hdr.VXLAN(b[l.L4+8:]).VNI(), complaint)
	}
	cmd := exec.Command("tshark", "-r", name, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-T", "fields", "-e", "vxlan.vni", "-e", "_ws.expert.message", "-E", "occurrence=f")
	out, err := cmd.CombinedOutput()
	var lines []string
	for _, l := range strings.SplitAfter(string(out), "\n") {
		if l != "" && !strings.HasPrefix(l, "Running as") {
			lines = append(lines, l)
		}
	}
	if got := strings.Join(lines, ""); err != nil || got != want {
		t.Errorf("tshark: %v\n%s, want\n%s", err, got, want)
	}
}

// RFC 6040 figure 4, row by row: inner, outer, result; -1: dropped.
func TestECN(t *testing.T) {
	rows := [4][4]int{
		notECT: {notECT: notECT, ect0: notECT, ect1: notECT, ce: -1},
		ect0:   {notECT: ect0, ect0: ect0, ect1: ect1, ce: ce},
		ect1:   {notECT: ect1, ect0: ect1, ect1: ect1, ce: ce},
		ce:     {notECT: ce, ect0: ce, ect1: ce, ce: ce},
	}
	for _, six := range []bool{false, true} {
		for _, tags := range [][]uint16{nil, {5}, {5, 6}} {
			x := graphtest.New(t, *Kind(), args(false, true, "inner-tags", "keep"))
			for in, row := range rows {
				for out, want := range row {
					f := datagram{noChecksum: true, vni: 5000, tos: uint8(out)}.frame(t, inner(t, six, uint8(0xB8|in), 1, 30, tags...))
					if want < 0 {
						dropped(t, x, "b", f, "congested")
						continue
					}
					got := one(t, x, "b", f, "a", "decapsulated")
					if !bytes.Equal(got, inner(t, six, uint8(0xB8|want), 1, 30, tags...)) {
						t.Errorf("inner %d, outer %d: %x", in, out, got)
					}
				}
			}
		}
	}
	x := graphtest.New(t, *Kind(), args(false, true))
	f := make([]byte, 60)
	one(t, x, "b", datagram{noChecksum: true, vni: 5000, tos: ce}.frame(t, f), "a", "decapsulated")
	if x.Counter("ce-lost") != 1 {
		t.Error("a lost CE was not counted")
	}
}

func TestRefused(t *testing.T) {
	good4 := datagram{vni: 5000, srcPort: 50000}.frame(t, inner(t, false, 0, 1, 30))
	good6 := datagram{six: true, vni: 5000, srcPort: 50000}.frame(t, inner(t, false, 0, 1, 30))
	x4, x6 := graphtest.New(t, *Kind(), args(false, true)), graphtest.New(t, *Kind(), args(true, true))
	zero6 := graphtest.New(t, *Kind(), args(true, true, "checksum6", "zero"))
	one(t, x4, "b", good4, "a", "decapsulated") // a checksum that is there is verified
	one(t, x6, "b", good6, "a", "decapsulated")
	one(t, zero6, "b", good6, "a", "decapsulated")
	none6 := datagram{six: true, noChecksum: true, vni: 5000}.frame(t, inner(t, false, 0, 1, 30))
	dropped(t, x6, "b", none6, "no-udp-checksum")
	one(t, zero6, "b", none6, "a", "decapsulated")
	edit := func(b []byte, f func(b []byte)) []byte { b = bytes.Clone(b); f(b); return b }
	seal := func(b []byte) { hdr.IPv4(b[14:]).UpdateChecksum(); hdr.UDP(b[34:]).SetChecksum(0) }
	for reason, f := range map[string]func(b []byte){
		"bad-ip-checksum":  func(b []byte) { b[22]-- },
		"bad-udp-checksum": func(b []byte) { b[len(b)-1]++ },
		"fragment":         func(b []byte) { hdr.IPv4(b[14:]).SetMF(true); seal(b) },
		"other-peer":       func(b []byte) { b[29]++; seal(b) },
		"bad-length":       func(b []byte) { b[39]--; seal(b) },
		"bad-flags":        func(b []byte) { b[42] = 0xF7; seal(b) },
		"unknown-vni":      func(b []byte) { b[48]++; seal(b) },
		"inner-tag":        func(b []byte) { b[62], b[63] = 0x81, 0; seal(b) },
	} {
		dropped(t, x4, "b", edit(good4, f), reason)
	}
	dropped(t, x4, "b", datagram{noChecksum: true, vni: 5000}.frame(t, make([]byte, 13)), "bad-length")
	dropped(t, x4, "b", datagram{noChecksum: true, vni: 5000}.frame(t, append(make([]byte, 12), 0x81, 0)), "bad-length")
	// Reserved bits are not looked at (RFC 7348 5).
	one(t, x4, "b", edit(good4, func(b []byte) { b[42], b[43], b[49] = 0xFF, 0xFF, 0xFF; seal(b) }), "a", "decapsulated")
	for _, six := range []bool{false, true} {
		x := graphtest.New(t, *Kind(), args(six, false, "mtu", "1400"))
		over := 28 + 50 // inner IPv4 and UDP headers, and what the doc says
		if six {
			over += 20
		}
		one(t, x, "a", inner(t, false, 0, 1, 1400-over), "b", "encapsulated")
		dropped(t, x, "a", inner(t, false, 0, 1, 1400-over+1), "too-big")
	}
}

func TestOthers(t *testing.T) {
	for in, frames := range map[string]map[string][]byte{
		"a": {"short": make([]byte, 13), "tagged": inner(t, false, 0, 1, 30, 300), "no-vni": inner(t, false, 0, 1, 30)},
		"b": {"short": make([]byte, 13), "not-tunnel": inner(t, false, 0, 1, 30)},
	} {
		out := map[string]string{"a": "b", "b": "a"}[in]
		for reason, f := range frames {
			more := []string{"vni", "none", "tenants", "100:1"}
			x := graphtest.New(t, *Kind(), args(false, false, more...))
			if got := one(t, x, in, f, out, reason); !bytes.Equal(got, f) {
				t.Errorf("%s: changed to %x", reason, got)
			}
			dropped(t, graphtest.New(t, *Kind(), args(false, false, append(more, "others", "drop")...)), in, f, reason)
		}
	}
	x := graphtest.New(t, *Kind(), args(false, true))
	good := datagram{noChecksum: true, vni: 5000}
	for name, f := range map[string][]byte{
		"another port":    func() []byte { b := good.frame(t, make([]byte, 60)); b[37]++; return b }(),
		"another address": func() []byte { b := good.frame(t, make([]byte, 60)); b[33]++; return b }(),
		"another MAC":     func() []byte { b := good.frame(t, make([]byte, 60)); b[5]++; return b }(),
		"IPv6":            datagram{six: true, vni: 5000}.frame(t, make([]byte, 60)),
		"later fragment":  func() []byte { b := good.frame(t, make([]byte, 60)); hdr.IPv4(b[14:]).SetFragOffset(8); return b }(),
	} {
		if got := one(t, x, "b", f, "a", "not-tunnel"); !bytes.Equal(got, f) {
			t.Errorf("%s: changed to %x", name, got)
		}
	}
	x = graphtest.New(t, *Kind(), args(false, true, "outer-vlan", "9"))
	one(t, x, "b", good.frame(t, make([]byte, 60)), "a", "not-tunnel")
	good.vlan = 8
	one(t, x, "b", good.frame(t, make([]byte, 60)), "a", "not-tunnel")
}

// Flows keep their port; different ones are spread; fragments stay together.
func TestSourcePort(t *testing.T) {
	port := func(b []byte) uint16 {
		var l hdr.Layers
		hdr.Walk(b, &l)
		return 49152 | uint16(outer.Flow(b, &l))&0x3FFF
	}
	for _, six := range []bool{false, true} {
		var hits [16]int
		for p := range 1024 {
			b := inner(t, six, 0, uint16(p), 8)
			n := port(b)
			if n < 49152 || n != port(inner(t, six, 3, uint16(p), 30)) {
				t.Fatalf("port %d", n)
			}
			hits[n>>4&15]++
		}
		for i, n := range hits {
			if n < 32 || n > 96 {
				t.Errorf("%d of 1024 flows in sixteenth %d", n, i)
			}
		}
	}
	first, later := inner(t, false, 0, 1, 64), inner(t, false, 0, 2, 64)
	hdr.IPv4(first[14:]).SetMF(true)
	hdr.IPv4(later[14:]).SetFragOffset(64)
	if port(first) != port(later) {
		t.Error("fragments of a datagram have different ports")
	}
}

func TestTenantsTable(t *testing.T) {
	x := graphtest.New(t, *Kind(), args(false, false, "tenants", "100:1"))
	one(t, x, "a", inner(t, false, 0, 1, 30, 200), "b", "tagged")
	if err := x.Set(graph.Args{"tenants": "100:1+200:2"}); err != nil {
		t.Fatal(err)
	}
	got := one(t, x, "a", inner(t, false, 0, 1, 30, 200), "b", "encapsulated")
	if vni := hdr.VXLAN(got[42:]).VNI(); vni != 2 {
		t.Errorf("VNI %d", vni)
	}
	d := &Kind().Tables[0]
	rows := d.Setting.Of(graph.Args{"tenants": "100:1+200:2"})
	back, err := d.Setting.Set(nil, rows)
	if err != nil || back["tenants"] != "100:1+200:2" {
		t.Errorf("%v, %v", back, err)
	}
	rows.Entries[1].Params[0].Lo = 1
	if _, err := d.Setting.Set(nil, rows); err == nil {
		t.Error("a VNI of two VLANs was taken")
	}
	rows.Entries = nil
	if back, err := d.Setting.Set(nil, rows); err != nil || back["tenants"] != "none" {
		t.Errorf("%v, %v", back, err)
	}
	if d := describe(nil, traceEncapsulate, [4]uint64{5, 6}); d != "to VNI 5, source port 6" {
		t.Error(d)
	}
}

func TestArgs(t *testing.T) {
	for want, more := range map[string][]string{
		"vni=16777216":            {"vni", "16777216"},
		"vni=5000 is a tenant's":  {"tenants", "1:5000"},
		"there twice":             {"tenants", "1:1+2:1"},
		"is not a VLAN":           {"tenants", "0:1"},
		"not of the same family":  {"local", "2001:db8::1"},
		"are the same":            {"local", "10.0.0.2"},
		"want the IP address":     {"remote", "224.0.0.1"},
		"want the MAC address":    {"local-mac", "01:00:5e:00:00:01"},
		"remote-mac= is missing":  {"remote-mac", ""},
		"mtu=575":                 {"mtu", "575"},
		"want normal or compatib": {"ecn", "full"},
		"no argument \"colour\"":  {"colour", "red"},
	} {
		a := args(false, false, more...)
		maps.DeleteFunc(a, func(_, v string) bool { return v == "" })
		if _, err := parseArgs(a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", more, err, want)
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	for _, six := range []bool{false, true} {
		in := inner(t, six, 2, 1, 200, 100)
		x := graphtest.New(t, *Kind(), args(six, false, "tenants", "100:1"))
		out := one(t, x, "a", in, "b", "encapsulated")
		var l hdr.Layers
		hdr.Walk(out, &l)
		bad := bytes.Clone(out)
		bad[l.L4+8] = 0
		if n := graphtest.Allocs(t, *Kind(), args(six, false, "tenants", "100:1"), "a", in, in[:13], inner(t, six, 0, 1, 1460)); n != 0 {
			t.Errorf("%v allocations into the tunnel", n)
		}
		if n := graphtest.Allocs(t, *Kind(), args(six, true, "tenants", "100:1"), "b", out, bad, in); n != 0 {
			t.Errorf("%v allocations out of the tunnel", n)
		}
	}
}

// FuzzTunnel sends any frame through both ends, and any frame into the far one.
func FuzzTunnel(f *testing.F) {
	for _, tags := range [][]uint16{nil, {100}, {100, 200}} {
		f.Add(inner(f, false, 1, 1, 20, tags...), uint8(0))
		f.Add(inner(f, true, 2, 1, 20, tags...), uint8(1))
	}
	f.Add(datagram{there: true, vni: 1}.frame(f, inner(f, false, 0, 1, 20)), uint8(2))
	f.Add(datagram{six: true, vni: 5000}.frame(f, inner(f, true, 0, 1, 20)), uint8(5))
	f.Fuzz(func(t *testing.T, b []byte, how uint8) {
		if len(b) > 2000 {
			return
		}
		six := how&1 != 0
		more := []string{"tenants", "100:1", "mtu", "2100", "inner-tags", [2]string{"drop", "keep"}[how>>1&1], "ecn", [2]string{"normal", "compatibility"}[how>>2&1]}
		near, far := graphtest.New(t, *Kind(), args(six, false, more...)), graphtest.New(t, *Kind(), args(six, true, more...))
		far.Push("b", b)
		r := near.Push("a", b)
		if len(r.Out["b"]) != 1 {
			t.Fatalf("%+v", r)
		}
		got := r.Out["b"][0]
		if got.Verdict != packet.Rewritten {
			if !bytes.Equal(got.Bytes, b) {
				t.Fatalf("%s: %x became %x", got.Reason, b, got.Bytes)
			}
			return
		}
		p := gopacket.NewPacket(got.Bytes, layers.LayerTypeEthernet, gopacket.Default)
		u, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		v, ok2 := p.Layer(layers.LayerTypeVXLAN).(*layers.VXLAN)
		if !ok || !ok2 || u.SrcPort < 49152 || u.DstPort != 4789 || int(u.Length) != len(u.Contents)+len(u.Payload) || v.VNI != 5000 && v.VNI != 1 {
			t.Fatalf("%x: %v", got.Bytes, p)
		}
		if ip, ok := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4); ok && !six {
			if sum(ip.Contents, 0) != 0xFFFF || u.Checksum != 0 {
				t.Fatalf("checksums of %x", got.Bytes)
			}
		}
		if ip, ok := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6); ok && six {
			if sum(append(append(append(bytes.Clone(ip.SrcIP), ip.DstIP...), u.Contents...), u.Payload...), uint32(17+u.Length)) != 0xFFFF || u.Checksum == 0 {
				t.Fatalf("UDP checksum of %x", got.Bytes)
			}
		}
		// What came in with a tenant's tag gets it back, without priority.
		want := bytes.Clone(b)
		if v.VNI == 1 {
			want[14] &= 0x0F
		}
		if back := far.Push("b", got.Bytes).Out["a"]; len(back) != 1 || !bytes.Equal(back[0].Bytes, want) {
			// An inner frame with a third tag, or one cut in it, cannot come out.
			t.Fatalf("%x\ncame back as %+v", want, back)
		}
	})
}

// sum is that of 16-bit words, folded, by the book.
func sum(b []byte, s uint32) uint16 {
	if len(b)%2 != 0 {
		b = append(bytes.Clone(b), 0)
	}
	for ; len(b) > 0; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
		s = s>>16 + s&0xFFFF
	}
	return uint16(s)
}

func BenchmarkEncapsulate(b *testing.B) {
	for _, six := range []bool{false, true} {
		b.Run(fmt.Sprintf("six=%v", six), func(b *testing.B) {
			graphtest.Benchmark(b, *Kind(), args(six, false), "a", batch(b, func(p uint16) []byte { return inner(b, false, 0, p, 22) })...)
		})
	}
}

func BenchmarkDecapsulate(b *testing.B) {
	for _, six := range []bool{false, true} {
		b.Run(fmt.Sprintf("six=%v", six), func(b *testing.B) {
			graphtest.Benchmark(b, *Kind(), args(six, true), "b", batch(b, func(p uint16) []byte {
				return datagram{six: six, noChecksum: !six, vni: 5000, srcPort: 50000 + p}.frame(b, inner(b, false, 0, p, 22))
			})...)
		})
	}
}

func batch(b *testing.B, f func(p uint16) []byte) (frames [][]byte) {
	for p := range packet.MaxBatch {
		frames = append(frames, f(uint16(p)))
	}
	return frames
}

// A UDP checksum that comes out as 0 is sent as 0xFFFF (RFC 768): 0 is none.
func TestChecksumOfZero(t *testing.T) {
	x := graphtest.New(t, *Kind(), args(true, false))
	in := make([]byte, 60)
	sum := func() uint16 {
		return hdr.UDP(one(t, x, "a", in, "b", "encapsulated")[54:]).Checksum()
	}
	binary.BigEndian.PutUint16(in[58:], sum())
	if got := sum(); got != 0xFFFF {
		t.Errorf("%04x", got)
	}
}

// A service provider's tag is no tenant's, whatever its number.
func TestServiceTag(t *testing.T) {
	x := graphtest.New(t, *Kind(), args(false, false, "tenants", "100:1"))
	f := inner(t, false, 0, 1, 30, 100)
	f[12], f[13] = 0x88, 0xA8
	one(t, x, "a", f, "b", "tagged")
}
