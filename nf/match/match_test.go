package match

import (
	"cmp"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
)

func eth(next layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: next}
}

func ip4(proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: netip.MustParseAddr("192.168.0.1").AsSlice(), DstIP: netip.MustParseAddr("192.168.0.2").AsSlice()}
}

func udp(s, d layers.UDPPort) *layers.UDP { return &layers.UDP{SrcPort: s, DstPort: d} }

// frames are of each sort that a term tells from others.
func frames(t testing.TB) [][]byte {
	six := &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: layers.IPProtocolTCP, SrcIP: netip.MustParseAddr("fd00::1").AsSlice(), DstIP: netip.MustParseAddr("fd00::2").AsSlice()}
	frag := ip4(layers.IPProtocolUDP)
	frag.FragOffset = 8
	return [][]byte{
		hdrtest.Build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(1000, 80), gopacket.Payload("12345678")),
		hdrtest.Build(t, eth(layers.EthernetTypeIPv6), six, &layers.TCP{SrcPort: 1000, DstPort: 443, DataOffset: 5}),
		hdrtest.Build(t, eth(layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: 100, Type: layers.EthernetTypeDot1Q},
			&layers.Dot1Q{VLANIdentifier: 200, Type: layers.EthernetTypeIPv4}, ip4(layers.IPProtocolTCP), &layers.TCP{SrcPort: 7, DstPort: 8, DataOffset: 5}),
		hdrtest.Build(t, eth(layers.EthernetTypeARP), gopacket.Payload(make([]byte, 46))),
		hdrtest.Build(t, eth(layers.EthernetTypeIPv4), frag, gopacket.Payload("12345678")),
		hdrtest.Build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(9, 4789), &layers.VXLAN{ValidIDFlag: true, VNI: 77}, eth(layers.EthernetTypeARP)),
		hdrtest.Build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(9, 4791), gopacket.Payload("\x04\x00\xff\xff\x00\x00\x01\x02\x00\x00\x00\x00")),
		hdrtest.Build(t, eth(0x894F), gopacket.Payload("\x0f\xc2\x02\x03\x00\x00\x07\xff")),
	}
}

func TestHolds(t *testing.T) {
	all := frames(t)
	const four, six, tagged, arp, frag, vxlan, roce, nsh = 0, 1, 2, 3, 4, 5, 6, 7
	for m, want := range map[string][]int{
		"all":                             {four, six, tagged, arp, frag, vxlan, roce, nsh},
		"none":                            {},
		"vlan:100":                        {tagged},
		"vlan:200":                        {},
		"type:0x806":                      {arp},
		"type:0x86dd+proto:6":             {six},
		"proto:17":                        {four, frag, vxlan, roce},
		"src:192.168.0.0/16":              {four, tagged, frag, vxlan, roce},
		"src:192.168.0.1+dst:192.168.0.2": {four, tagged, frag, vxlan, roce},
		"src:192.168.0.2":                 {},
		"src:0.0.0.0/0":                   {four, tagged, frag, vxlan, roce},
		"dst:fd00::/15":                   {six},
		"dst:fd00::3":                     {},
		"dport:80":                        {four},
		"dport:8-443":                     {four, six, tagged},
		"dport:0-65535":                   {four, six, tagged, vxlan, roce},
		"sport:7+dport:8":                 {tagged},
		"vni:77":                          {vxlan},
		"vni:78":                          {},
		"qpn:0x102":                       {roce},
		"qpn:1+src:192.168.0.1":           {},
		"nsh:7":                           {nsh},
		"nsh:7+type:0x894f":               {nsh},
		"nsh:7+proto:17":                  {},
	} {
		mm, err := Parse(m)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range all {
			holds := false
			for _, w := range want {
				holds = holds || w == i
			}
			var l hdr.Layers
			hdr.Walk(f, &l)
			if mm.Holds(f, &l) != holds {
				t.Errorf("%s, frame %d: %v", m, i, !holds)
			}
			if n := testing.AllocsPerRun(1, func() { mm.Holds(f, &l) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		}
	}
}

func TestReverse(t *testing.T) {
	for in, want := range map[string]string{
		"all": "all", "none": "none", "proto:6": "proto:6",
		"src:10.0.0.0/8": "dst:10.0.0.0/8", "dport:80": "sport:80",
		"src:10.0.0.1+dst:10.0.0.2+sport:1-9+dport:80": "src:10.0.0.2+dst:10.0.0.1+sport:80+dport:1-9",
	} {
		m, err := Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Reverse().String(); got != want {
			t.Errorf("%s: %s", in, got)
		}
		if back := m.Reverse().Reverse(); back != m {
			t.Errorf("%s: %v", in, back)
		}
	}
}

func TestErrors(t *testing.T) {
	for in, want := range map[string]string{
		"port:1":              "port:1: want all, none, or vlan,",
		"":                    "want all, none",
		"proto:1+proto:2":     "proto:2: it is there twice",
		"dport:2-1":           "ends before it begins",
		"dst:10.0.0.1/8":      "without bits behind it",
		"dst:::ffff:10.0.0.1": "without bits behind it",
		"vlan:4096":           "want a number of 12 bits",
		"vni:16777216":        "want a number of 24 bits",
		"src:fe80::1%eth0":    "want an address",
		"proto:010x":          "want a number of 8 bits",
		"proto:0b11":          "want a number of 8 bits",
		"proto:1_0":           "want a number of 8 bits",
		"proto:0x":            "want a number of 8 bits",
	} {
		if _, err := Parse(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// What is written is read as the same; whatever is read is written, and holds
// for frames without a panic, however short they are.
func TestText(t *testing.T) {
	all := frames(t)
	rapid.Check(t, func(t *rapid.T) {
		var terms []string
		for _, x := range []string{"vlan:5", "type:0x0800", "proto:17", "src:10.0.0.0/9", "dst:fd00::1", "sport:3-4", "dport:80", "vni:9", "qpn:10", "nsh:11"} {
			if rapid.Bool().Draw(t, x) {
				terms = append(terms, x)
			}
		}
		in := cmp.Or(strings.Join(terms, "+"), "all")
		m, err := Parse(in)
		if err != nil || m.String() != in {
			t.Fatalf("%s: %s, %v", in, m, err)
		}
		f := rapid.SampledFrom(all).Draw(t, "frame")
		f = f[:rapid.IntRange(0, len(f)).Draw(t, "length")]
		var l hdr.Layers
		if hdr.Walk(f, &l) {
			m.Holds(f, &l)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("src:10.0.0.0/8+dport:1-2+vni:3", "")
	for _, b := range frames(f) {
		f.Add("vlan:1+nsh:2+qpn:3", hex.EncodeToString(b))
	}
	f.Fuzz(func(t *testing.T, s, frame string) {
		m, err := Parse(s)
		if err != nil {
			if strings.Contains(err.Error(), "\n") && !strings.Contains(s, "\n") {
				t.Fatal("more than one line")
			}
			return
		}
		if again, err := Parse(m.String()); err != nil || again != m {
			t.Fatalf("%q is written %q: %v", s, m, err)
		}
		var l hdr.Layers
		if b, err := hex.DecodeString(frame); err == nil && hdr.Walk(b, &l) {
			r := m.Reverse()
			m.Holds(b, &l)
			r.Holds(b, &l)
		}
	})
}

// TestNumbers: zeros in front do not make a number octal.
func TestNumbers(t *testing.T) {
	for in, want := range map[string]string{"proto:010": "proto:10", "proto:0x0a": "proto:10", "dport:0080": "dport:80"} {
		if m, err := Parse(in); err != nil || m.String() != want {
			t.Errorf("%s is read as %v, %v; want %s", in, m, err, want)
		}
	}
}

// TestAbsent: what a frame does not have is not 0, and a service header that is cut
// short is none.
func TestAbsent(t *testing.T) {
	all := append(frames(t), []byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x89\x4f"))
	for _, text := range []string{"qpn:0", "vni:0", "nsh:0", "vlan:0", "sport:0", "dport:0", "proto:0"} {
		m, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range all {
			var l hdr.Layers
			hdr.Walk(b, &l)
			if m.Holds(b, &l) {
				t.Errorf("%s holds for frame %d", text, i)
			}
		}
	}
}
