package nsh

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/mtu/mtutest"
)

// df sets DF in a frame's IPv4 header.
func df(b []byte) []byte {
	var l hdr.Layers
	if hdr.Walk(b, &l); l.EtherType == hdr.EtherIPv4 {
		hdr.IPv4(b[l.L3:]).SetDF(true)
		hdr.IPv4(b[l.L3:]).UpdateChecksum()
	}
	return b
}

// TestTold: the sender of a frame that is dropped as too big learns what fits, on its own VLAN.
func TestTold(t *testing.T) {
	for name, x := range map[string]struct {
		six   bool
		more  []string
		vlans []uint16
		mtu   int
	}{
		"IPv4":        {false, nil, nil, 1478},
		"IPv6":        {true, nil, nil, 1478},
		"tag":         {false, nil, []uint16{100}, 1474},
		"two tags":    {true, nil, []uint16{100, 200}, 1470},
		"next=ip":     {false, []string{"next", "ip"}, nil, 1492},
		"tag outside": {true, []string{"next", "ip"}, []uint16{100}, 1492},
		"mtu=9000":    {false, []string{"mtu", "9000"}, nil, 8978},
	} {
		y := graphtest.New(t, *Kind(), enter(x.more...))
		over := 28
		if x.six {
			over = 48
		}
		one(t, y, "a", df(frame(t, x.six, false, 1, 2, x.mtu-over, x.vlans...)), "entered")
		b := df(frame(t, x.six, false, 1, 2, x.mtu-over+1, x.vlans...))
		mtutest.TooBig(t, name, y.Push("a", b), b, x.mtu, len(x.vlans))
	}
	// Without DF, and what is not IP: dropped and no more.
	y := graphtest.New(t, *Kind(), enter())
	dropped(t, y, "a", frame(t, false, false, 1, 2, 1500), "too-big")
	dropped(t, y, "a", make([]byte, 1500), "too-big")
	// What does not enter the path is not too big for it.
	one(t, graphtest.New(t, *Kind(), enter("match", "proto:6")), "a", df(frame(t, false, false, 1, 2, 1500)), "unmatched")
}

// syn offers segments of 1460 bytes, behind VLAN tags.
func syn(t testing.TB, six bool, vlans ...uint16) []byte {
	t.Helper()
	b := frame(t, six, true, 1, 2, 4, vlans...)
	var l hdr.Layers
	hdr.Walk(b, &l)
	var ip gopacket.NetworkLayer = &layers.IPv4{Version: 4, TTL: 65, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{192, 168, 0, 1}, DstIP: net.IP{192, 168, 0, 2}}
	if six {
		ip = &layers.IPv6{Version: 6, HopLimit: 65, NextHeader: layers.IPProtocolTCP, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")}
	}
	h := &layers.TCP{SrcPort: 1, DstPort: 2, SYN: true, Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{1460 >> 8, 1460 & 255}}}}
	return append(bytes.Clone(b[:l.L3]), hdrtest.Build(t, ip.(gopacket.SerializableLayer), h)...)
}

// TestMSS: both directions; the checksum is that of another end, which has none to lower.
func TestMSS(t *testing.T) {
	for _, c := range []struct {
		six   bool
		mss   string
		want  int
		more  []string
		vlans []uint16
	}{{false, "auto", 1438, nil, nil}, {true, "auto", 1418, nil, nil}, {false, "1000", 1000, nil, []uint16{5}}, {false, "none", 1460, nil, nil},
		{false, "auto", 1452, []string{"next", "ip"}, nil}, {true, "auto", 1432, []string{"next", "ip"}, []uint16{5}}} {
		b := syn(t, c.six, c.vlans...)
		want := bytes.Clone(b)
		var l hdr.Layers
		hdr.Walk(want, &l)
		seg := want[l.L4:]
		old, mss := hdr.TCP(seg).Checksum(), uint16(c.want)
		seg[22], seg[23] = byte(mss>>8), byte(mss)
		hdr.TCP(seg).SetChecksum(hdr.PatchChecksum(old, 1460, mss))
		near, far := graphtest.New(t, *Kind(), enter(append(c.more, "mss", c.mss)...)), graphtest.New(t, *Kind(), enter(c.more...))
		there := one(t, far, "b", one(t, near, "a", b, "entered"), "left")
		back := one(t, near, "b", one(t, far, "a", b, "entered"), "left")
		for way, got := range map[string][]byte{"there": there, "back": back} {
			if !bytes.Equal(got[12:], want[12:]) { // with next=ip the path's MAC addresses stay
				t.Errorf("%+v, %s:\n%x\nwant\n%x", c, way, got, want)
			}
		}
		if n := near.Counter("mss-lowered"); n != map[bool]uint64{true: 0, false: 2}[c.mss == "none"] {
			t.Errorf("%+v: counted %d", c, n)
		}
	}
}

func TestNote(t *testing.T) {
	for want, a := range map[string]graph.Args{
		"longest packets from port a: 1478 bytes (mtu=1500)": enter(),
		"longest packets from port a: 1492 bytes (mtu=1500)": enter("next", "ip"),
		"of those that match=, longest packets":              enter("match", "proto:17"),
		"TCP segments: 1438 bytes over IPv4, 1418":           enter("mss", "auto"),
		"": args("role", "task"),
		"longest packets from port a: 78 bytes (mtu=100); IPv6 wants 1280, and its longer pac": enter("mtu", "100"),
	} {
		if got := Kind().Note(a); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%v: %q, want %q", a, got, want)
		}
	}
	if got := Kind().Note(args("match", "none")); got != "" {
		t.Errorf("nothing enters: %q", got)
	}
}

func TestToldAllocatesNothing(t *testing.T) {
	big := df(frame(t, false, false, 1, 2, 1460))
	if n := graphtest.Allocs(t, *Kind(), enter("mss", "auto"), "a", big, syn(t, false), syn(t, true)); n != 0 {
		t.Errorf("%v allocations into the path", n)
	}
	on := one(t, graphtest.New(t, *Kind(), enter()), "a", syn(t, false), "entered")
	if n := graphtest.Allocs(t, *Kind(), enter("mss", "auto"), "b", on); n != 0 {
		t.Errorf("%v allocations out of the path", n)
	}
}
