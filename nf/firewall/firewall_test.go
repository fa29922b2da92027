package firewall

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/table"
)

// pkt is a datagram that gopacket makes. From port b the ends are exchanged.
type pkt struct {
	v6          bool
	in          string // a or b
	client      int    // of 10.0.x.y or 2001:db8:a::x
	sport       uint16
	dport       uint16
	proto       layers.IPProtocol // 0: TCP
	flags       string            // of TCP: S A F R P U
	seq, ack    uint32
	win         uint16
	scale       int // 0: no option
	payload     string
	tags        []uint16
	icmp        uint16 // type and code
	id          uint16
	more        bool
	offset      uint16 // in bytes
	quote       []byte // instead of all above IP
	from        string // source address, instead
	ipID        uint16
	noTransport bool
}

func (p pkt) bytes(t testing.TB) []byte {
	t.Helper()
	src, dst := net.IPv4(10, 0, byte(p.client>>8), byte(p.client)).To4(), net.IPv4(192, 0, 2, 1).To4()
	if p.v6 {
		src, dst = net.ParseIP(fmt.Sprintf("2001:db8:a:%x::1", p.client)), net.ParseIP("2001:db8:b::1")
	}
	sport, dport := p.sport, p.dport
	if p.in == "b" {
		src, dst, sport, dport = dst, src, dport, sport
	}
	if p.from != "" {
		src = net.ParseIP(p.from)
		if !p.v6 {
			src = src.To4()
		}
	}
	all := hdrtest.Stack(p.tags...)
	proto := cmp.Or(p.proto, layers.IPProtocolTCP)
	var between []gopacket.SerializableLayer
	if p.v6 {
		ip := &layers.IPv6{Version: 6, NextHeader: proto, HopLimit: 64, SrcIP: src, DstIP: dst}
		if p.more || p.offset != 0 {
			ip.NextHeader = layers.IPProtocolIPv6Fragment
			f := make([]byte, 8)
			f[0] = byte(proto)
			be.PutUint16(f[2:], p.offset)
			if p.more {
				f[3] |= 1
			}
			be.PutUint16(f[6:], p.ipID)
			between = append(between, gopacket.Payload(f))
		}
		all = append(all, ip)
	} else {
		ip := &layers.IPv4{Version: 4, TTL: 64, Id: p.ipID, Protocol: proto, SrcIP: src, DstIP: dst, FragOffset: p.offset / 8}
		if p.more {
			ip.Flags = layers.IPv4MoreFragments
		}
		all = append(all, ip)
	}
	all = append(all, between...)
	switch {
	case p.quote != nil && p.v6:
		x := &layers.ICMPv6{TypeCode: layers.ICMPv6TypeCode(p.icmp)}
		all = append(all, x, gopacket.Payload(append(make([]byte, 4), p.quote...)))
	case p.quote != nil:
		all = append(all, &layers.ICMPv4{TypeCode: layers.ICMPv4TypeCode(p.icmp)}, gopacket.Payload(p.quote))
	case p.offset != 0 || p.noTransport:
	case proto == layers.IPProtocolTCP:
		x := &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: p.seq, Ack: p.ack, Window: p.win}
		has := func(s string) bool { return strings.Contains(p.flags, s) }
		x.SYN, x.ACK, x.FIN, x.RST, x.PSH, x.URG = has("S"), has("A"), has("F"), has("R"), has("P"), has("U")
		if p.scale != 0 {
			x.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{byte(p.scale)}}}
		}
		all = append(all, x)
	case proto == layers.IPProtocolUDP:
		x := &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}
		all = append(all, x)
	case proto == layers.IPProtocolICMPv4:
		all = append(all, &layers.ICMPv4{TypeCode: layers.ICMPv4TypeCode(p.icmp), Id: p.id})
	case proto == layers.IPProtocolICMPv6:
		x := &layers.ICMPv6{TypeCode: layers.ICMPv6TypeCode(p.icmp)}
		all = append(all, x, gopacket.Payload([]byte{byte(p.id >> 8), byte(p.id), 0, 1}))
	}
	all = append(all, gopacket.Payload(p.payload))
	return hdrtest.Build(t, all...)
}

// goes pushes a packet, which passes as it is or is dropped, and is the reason.
func goes(t testing.TB, x *graphtest.Test, p pkt) string {
	t.Helper()
	return frame(t, x, p.in, p.bytes(t))
}

func frame(t testing.TB, x *graphtest.Test, in string, b []byte) string {
	t.Helper()
	out := map[string]string{"a": "b", "b": "a"}[in]
	r := x.Push(in, b)
	switch {
	case len(r.Dropped) == 1 && len(r.Out["a"])+len(r.Out["b"]) == 0:
		return "-" + r.Dropped[0].Reason
	case len(r.Dropped) == 0 && len(r.Out[out]) == 1 && len(r.Out[in]) == 0 && bytes.Equal(r.Out[out][0].Bytes, b):
		return r.Out[out][0].Reason
	}
	t.Fatalf("%+v", r)
	return ""
}

func args(more ...string) graph.Args {
	a := graph.Args{"rules": "allow+in:a", "rules6": "allow+in:a"}
	for i := 0; i < len(more); i += 2 {
		a[more[i]] = more[i+1]
	}
	return a
}

type step struct {
	in    string
	flags string
	seq   uint32
	ack   uint32
	data  string
	want  string
}

// run pushes segments of one connection. Windows are 1000, unscaled.
func run(t *testing.T, x *graphtest.Test, c pkt, steps []step) {
	t.Helper()
	for i, s := range steps {
		c.in, c.flags, c.seq, c.ack, c.payload, c.win = s.in, s.flags, s.seq, s.ack, s.data, 1000
		if got := goes(t, x, c); got != s.want {
			t.Errorf("step %d, %+v: %s", i, s, got)
		}
	}
}

const serverISN = 5000

// isn of the client wraps soon.
func isn(n int) uint32 { return 0xFFFFFFF0 + uint32(n) }

func handshake(want string) []step {
	return []step{
		{"a", "S", isn(0), 0, "", want},
		{"b", "SA", serverISN, isn(1), "", "known"},
		{"a", "A", isn(1), serverISN + 1, "", "known"},
	}
}

// TestTCP: what a connection is made of passes, and what it is not does not.
func TestTCP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		c := pkt{v6: v6, sport: 1000, dport: 80}
		x := graphtest.New(t, *Kind(), args())
		run(t, x, c, []step{
			{"b", "S", 1, 0, "", "-denied-by-default"},
			{"a", "A", 1, 1, "", "-no-connection"},
			{"b", "SA", serverISN, isn(1), "", "-no-connection"},
			{"b", "RA", 0, isn(1), "", "-no-connection"},
			{"a", "", 1, 1, "", "-bad-flags"}, {"a", "SF", 1, 1, "", "-bad-flags"}, {"a", "FPU", 1, 1, "", "-bad-flags"}, {"a", "SR", 1, 1, "", "-bad-flags"},
		})
		run(t, x, c, handshake("opened"))
		run(t, x, c, []step{
			{"a", "A", isn(1), serverISN + 1, "0123456789", "known"},
			{"a", "A", isn(1), serverISN + 1, "0123456789", "known"},        // again
			{"b", "A", serverISN + 1, isn(11), "abc", "known"},              //
			{"b", "A", serverISN + 1, isn(12), "abc", "-out-of-window"},     // acknowledges what was not sent
			{"b", "A", serverISN + 1, isn(-70000), "abc", "-out-of-window"}, // or long ago
			{"a", "A", isn(1011), serverISN + 4, "z", "known"},              // the last that the window allows to begin
			{"a", "A", isn(1013), serverISN + 4, "", "-out-of-window"},      // behind it
			{"a", "A", isn(-1100), serverISN + 4, "", "-out-of-window"},     // long before
			{"b", "S", 77, 0, "", "known"},                                  // changes nothing
			{"b", "R", serverISN - 2000, 0, "", "-out-of-window"},           // a blind reset
			{"b", "R", serverISN + 500, 0, "", "known"},                     // in the window, and not what is waited for
			{"b", "A", serverISN + 4, isn(1012), "", "known"},
			{"a", "A", isn(1012), serverISN + 4, "", "known"},                          // so the connection is still there
			{"a", "FA", isn(1012), serverISN + 4, "", "known"},                         //
			{"b", "A", serverISN + 4, isn(1013), strings.Repeat("x", 8), "known"},      // half-closed
			{"b", "FA", serverISN + 12, isn(1013), "", "known"},                        //
			{"a", "A", isn(1013), serverISN + 13, "", "known"},                         //
			{"b", "S", 77, 0, "", "-denied-by-default"},                                // opens nothing, and ends nothing:
			{"b", "FA", serverISN + 12, isn(1013), "", "known"},                        // the last acknowledgement was lost
			{"a", "A", isn(1013), serverISN + 13, "", "known"},                         //
			{"a", "S", isn(100000), 0, "", "opened"},                                   // the next one
			{"b", "RA", 0, isn(100002), "", "-out-of-window"},                          // not its answer
			{"b", "RA", 0, isn(100001), "", "known"},                                   // refused
			{"a", "S", 1, 0, "", "opened"}, {"b", "SA", 1, 1000, "", "-out-of-window"}, //
			{"a", "A", 2, 2, "", "-out-of-window"},                             // its handshake is not over
			{"b", "A", 300, 700, "", "known"}, {"a", "R", 700, 0, "", "known"}, // a server that remembers another
			{"a", "S", 1, 0, "", "known"}, {"b", "SA", 400, 2, "", "known"}, {"a", "A", 2, 401, "", "known"},
			{"b", "R", 401, 0, "", "known"},
			{"a", "S", 1, 0, "", "opened"},
		})
		if n := x.Counter("connections-opened"); n != 4 {
			t.Errorf("%d were opened", n)
		}
		// Another VLAN is another network, and so is another within it.
		x = graphtest.New(t, *Kind(), args())
		c.tags = []uint16{7, 8}
		run(t, x, c, handshake("opened"))
		for _, tags := range [][]uint16{{9}, {7}, {7, 9}, {8, 7}, {8}} {
			c.tags = tags
			run(t, x, c, []step{{"b", "A", serverISN + 1, isn(1), "", "-no-connection"}})
		}
		c.tags = []uint16{7, 9}
		run(t, x, c, handshake("opened"))
		c.tags = []uint16{7, 8}
		run(t, x, c, []step{{"b", "A", serverISN + 1, isn(1), "", "known"}})
	}
}

// TestClosedAndLimited: a SYN that a limit refuses ends no closed connection, whose last segments may come again.
func TestClosedAndLimited(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("half-per-source", "1", "per-source", "2"))
	closed := pkt{sport: 1000, dport: 80}
	run(t, x, closed, handshake("opened"))
	run(t, x, closed, []step{{"a", "FA", isn(1), serverISN + 1, "", "known"}, {"b", "FA", serverISN + 1, isn(2), "", "known"}, {"a", "A", isn(2), serverISN + 2, "", "known"}})
	run(t, x, pkt{sport: 1001, dport: 80}, []step{{"a", "S", isn(0), 0, "", "opened"}})
	for range 2 {
		run(t, x, closed, []step{
			{"a", "S", isn(100000), 0, "", "-source-limit"},
			{"b", "FA", serverISN + 1, isn(2), "", "known"}, {"a", "A", isn(2), serverISN + 2, "", "known"},
		})
	}
	run(t, x, pkt{sport: 1001, dport: 80}, []step{{"b", "SA", serverISN, isn(1), "", "known"}, {"a", "A", isn(1), serverISN + 1, "", "known"}})
	run(t, x, pkt{sport: 1002, dport: 80}, []step{{"a", "S", isn(0), 0, "", "-source-connections"}})
	run(t, x, closed, []step{{"a", "S", isn(100000), 0, "", "opened"}}) // in the place of the closed one
}

// TestScale: windows are scaled when both ends have said so.
func TestScale(t *testing.T) {
	for _, c := range []struct {
		client, server int
		want           string
	}{{7, 7, "known"}, {7, 0, "-out-of-window"}, {0, 7, "-out-of-window"}} {
		x := graphtest.New(t, *Kind(), args())
		p := pkt{sport: 1, dport: 2, win: 1000}
		for i, s := range []pkt{
			{in: "a", flags: "S", seq: 100, scale: c.client},
			{in: "b", flags: "SA", seq: 500, ack: 101, scale: c.server},
			{in: "a", flags: "A", seq: 101, ack: 501},
			{in: "b", flags: "A", seq: 501, ack: 101},
			{in: "a", flags: "A", seq: 101 + 100_000, ack: 501},
		} {
			s.sport, s.dport, s.win = p.sport, p.dport, p.win
			want := "known"
			switch i {
			case 0:
				want = "opened"
			case 4:
				want = c.want
			}
			if got := goes(t, x, s); got != want {
				t.Errorf("%+v: step %d: %s", c, i, got)
			}
		}
	}
}

// TestLoose: a connection is taken up in the middle, and numbers do not matter.
func TestLoose(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("mode", "loose"))
	run(t, x, pkt{sport: 1, dport: 2}, []step{
		{"b", "A", 900, 1, "", "-denied-by-default"},
		{"a", "SA", 100, 1, "", "-no-connection"},
		{"a", "R", 100, 1, "", "-no-connection"},
		{"a", "A", 100, 900, "x", "opened"},
		{"b", "A", 900, 101, "", "known"},
		{"b", "A", 1 << 30, 77, "", "known"},
		{"a", "R", 5, 0, "", "known"},
		{"b", "S", 5, 0, "", "-denied-by-default"},
	})
	run(t, x, pkt{sport: 3, dport: 2}, handshake("opened"))
	// Taken up and then under strict rules: its numbers are still not known.
	run(t, x, pkt{sport: 4, dport: 2}, []step{{"a", "A", 100, 900, "x", "opened"}})
	if err := x.Set(args("mode", "strict")); err != nil {
		t.Fatal(err)
	}
	run(t, x, pkt{sport: 4, dport: 2}, []step{{"b", "A", 1 << 30, 77, "", "known"}, {"b", "A", 3, 77, "", "known"}})
}

// TestTimes: how long each is remembered; the flows of UDP, ICMP and others.
func TestTimes(t *testing.T) {
	udp := pkt{proto: layers.IPProtocolUDP, sport: 53, dport: 5353, payload: "x"}
	udp6 := udp
	udp6.v6 = true
	echo := pkt{proto: layers.IPProtocolICMPv4, icmp: 8 << 8, id: 7}
	echo6 := pkt{v6: true, proto: layers.IPProtocolICMPv6, icmp: 128 << 8, id: 7}
	gre := pkt{proto: 47, payload: "12345678"}
	for _, c := range []struct {
		p    pkt
		back uint16 // ICMP's type
		none string
		d    time.Duration
	}{
		{udp, 0, "-denied-by-default", 5 * time.Minute}, {udp6, 0, "-denied-by-default", 5 * time.Minute}, {gre, 0, "-denied-by-default", 10 * time.Minute},
		{echo, 0, "-no-connection", time.Minute}, {echo6, 129, "-no-connection", time.Minute},
	} {
		x := graphtest.New(t, *Kind(), args("conns", "64"))
		there, back := c.p, c.p
		there.in, back.in, back.icmp = "a", "b", c.back<<8
		expect := func(p pkt, want string) {
			t.Helper()
			if got := goes(t, x, p); got != want {
				t.Errorf("protocol %d, port %s: %s, want %s", p.proto, p.in, got, want)
			}
		}
		expect(back, c.none)
		expect(there, "opened")
		x.Advance(30*time.Second - 1)
		expect(there, "known")
		x.Advance(30*time.Second + 1) // and nobody answers
		expect(back, c.none)
		expect(there, "opened")
		expect(back, "known")
		x.Advance(c.d)
		expect(back, "known")
		expect(there, "known")
		x.Advance(c.d + 1)
		expect(back, c.none)
		if c.back != 0 || c.p.icmp != 0 {
			expect(there, "opened")
			wrong := there
			wrong.in = "b" // a query in the other direction
			expect(wrong, "-denied-by-default")
			wrong = back
			wrong.in = "a"
			expect(wrong, "-no-connection")
		}
		x.Advance(2 * time.Hour)
		if n := x.Counter("connections"); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	}
	// TCP.
	for _, c := range []struct {
		steps []step
		d     time.Duration
	}{
		{handshake("opened")[:1], 30 * time.Second}, {handshake("opened")[:2], 30 * time.Second}, {handshake("opened"), 124 * time.Minute},
		{append(handshake("opened"), step{"a", "FA", isn(1), serverISN + 1, "", "known"}), 2 * time.Minute},
		{append(handshake("opened"), step{"a", "R", isn(1), serverISN + 1, "", "known"}), 10 * time.Second},
	} {
		for _, over := range []bool{false, true} {
			x := graphtest.New(t, *Kind(), args("conns", "64"))
			p := pkt{sport: 1, dport: 2}
			run(t, x, p, c.steps)
			want := "known"
			x.Advance(c.d)
			if over {
				want = "-no-connection"
				x.Advance(1)
			}
			last := step{"b", "A", serverISN + 1, isn(1), "", want}
			run(t, x, p, []step{last})
		}
	}
}

// TestErrors: an ICMP error passes when it is about a packet of a connection.
func TestErrors(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		proto, unreachable, ip := layers.IPProtocolICMPv4, uint16(3<<8|3), 14
		if v6 {
			proto, unreachable = layers.IPProtocolICMPv6, 1<<8|4
		}
		x := graphtest.New(t, *Kind(), args())
		tcp := pkt{v6: v6, in: "a", sport: 1, dport: 2, flags: "S", seq: 100, win: 1000}
		udp := pkt{v6: v6, in: "a", sport: 1, dport: 2, proto: layers.IPProtocolUDP}
		echo := pkt{v6: v6, in: "a", proto: proto, icmp: 8 << 8, id: 7}
		if v6 {
			echo.icmp = 128 << 8
		}
		far, router := "192.0.2.1", "198.51.100.1"
		if v6 {
			far, router = "2001:db8:b::1", "2001:db8:c::1"
		}
		about := func(p pkt, in, from string) string {
			t.Helper()
			q := p.bytes(t)[ip:]
			if len(q) > 48 && !v6 {
				q = q[:28] // what RFC 792 asks for
			}
			return goes(t, x, pkt{v6: v6, in: in, proto: proto, icmp: unreachable, quote: q, from: from})
		}
		for _, p := range []pkt{tcp, udp, echo} {
			if got := about(p, "b", far); got != "-unrelated" {
				t.Errorf("an error about nothing: %s", got)
			}
			if got := goes(t, x, p); got != "opened" {
				t.Error(got)
			}
			for _, from := range []string{far, router} {
				if got := about(p, "b", from); got != "related" {
					t.Errorf("%+v: %s", p, got)
				}
			}
			wrong := p
			wrong.client = 9
			if got := about(wrong, "b", far); got != "-unrelated" {
				t.Errorf("of nobody: %s", got)
			}
			goes(t, x, wrong) // which the error does not go to
			if got := about(wrong, "b", far); got != "-unrelated" {
				t.Errorf("not to its sender: %s", got)
			}
			if wrong = p; p.proto == proto {
				wrong.id++
			} else {
				wrong.dport++
			}
			if got := about(wrong, "b", far); got != "-unrelated" {
				t.Errorf("another flow: %s", got)
			}
			if got := about(p, "a", far); got != "-unrelated" {
				t.Errorf("from the side that it came from: %s", got)
			}
		}
		wrong := tcp
		wrong.seq = 1 << 30
		if got := about(wrong, "b", far); got != "-unrelated" {
			t.Errorf("another number: %s", got)
		}
		// It is the number of a SYN by which the opener begins anew, until the opener goes on.
		answer, on := tcp, tcp
		answer.in, answer.flags, answer.seq, answer.ack, answer.win = "b", "SA", serverISN, tcp.seq+1, 1000
		on.flags, on.seq, on.ack, on.win = "A", tcp.seq+1, serverISN+1, 1000
		for n, want := range []string{"-unrelated", "related", "-unrelated"} {
			if got := about(wrong, "b", far); got != want {
				t.Errorf("%d, a new SYN: %s, want %s", n, got, want)
			}
			for _, p := range [][]pkt{{answer, on, wrong}, {on}, nil}[n] {
				if got := goes(t, x, p); got != "known" {
					t.Errorf("%d: %s", n, got)
				}
			}
		}
		nested := pkt{v6: v6, in: "a", proto: proto, icmp: unreachable, quote: udp.bytes(t)[ip:]}
		if got := about(nested, "b", far); got != "-unrelated" {
			t.Errorf("an error about an error: %s", got)
		}
		if got := goes(t, x, pkt{v6: v6, in: "a", proto: proto, icmp: unreachable, quote: []byte("short")}); got != "-unrelated" {
			t.Error(got)
		}
		redirect, control := uint16(5<<8), "-other-icmp"
		if v6 {
			redirect, control = 137<<8, "neighbour-discovery"
		}
		if got := goes(t, x, pkt{v6: v6, in: "b", proto: proto, icmp: redirect, id: 7}); got != "-other-icmp" {
			t.Error(got)
		}
		if got := goes(t, x, pkt{v6: v6, in: "b", proto: proto, icmp: 135 << 8, id: 7}); got != control {
			t.Error(got)
		}
	}
}

// TestFragments: behind the first, and not divided within the header.
func TestFragments(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		x := graphtest.New(t, *Kind(), args())
		first := pkt{v6: v6, in: "a", proto: layers.IPProtocolUDP, sport: 1, dport: 2, payload: "0123456789abcdef", more: true, ipID: 9}
		later := pkt{v6: v6, in: "a", proto: layers.IPProtocolUDP, payload: "rest", offset: 24, ipID: 9}
		for i, c := range []struct {
			p    func() pkt
			want string
		}{
			{func() pkt { return later }, "-stray-fragment"},
			{func() pkt { return first }, "opened"},
			{func() pkt { return later }, "later-fragment"},
			{func() pkt { p := later; p.ipID++; return p }, "-stray-fragment"},
			{func() pkt { p := later; p.in = "b"; return p }, "-stray-fragment"},
			{func() pkt { p := later; p.tags = []uint16{3}; return p }, "-stray-fragment"},
			{func() pkt { p := later; p.tags = []uint16{0, 3}; return p }, "-stray-fragment"},
			{func() pkt { p := later; p.offset, p.proto = 16, layers.IPProtocolTCP; return p }, "-tiny-fragment"},
			{func() pkt { p := first; p.proto, p.noTransport, p.payload = 6, true, "0123456789abcdef"; return p }, "-tiny-fragment"},
			{func() pkt { p := first; p.in = "b"; p.dport++; return p }, "-denied-by-default"},
			{func() pkt { p := later; p.in = "b"; return p }, "-stray-fragment"},
		} {
			if got := goes(t, x, c.p()); got != c.want {
				t.Errorf("v6 %v, %d: %s, want %s", v6, i, got, c.want)
			}
		}
		x.Advance(31 * time.Second)
		if got := goes(t, x, later); got != "-stray-fragment" {
			t.Error(got)
		}
		if err := x.Set(args("fragments", "drop")); err != nil {
			t.Fatal(err)
		}
		if got := goes(t, x, first); got != "-fragment" {
			t.Error(got)
		}
		// Many datagrams: the newest are known.
		x = graphtest.New(t, *Kind(), args())
		for i := range uint16(5000) {
			first.ipID, later.ipID = i, i
			goes(t, x, first)
			if got := goes(t, x, later); got != "later-fragment" {
				t.Fatalf("%d: %s", i, got)
			}
			x.Advance(time.Microsecond)
		}
	}
}

// TestFlood: half-open connections of a source, and of all, are bounded, and no
// open connection suffers.
// TestPerSource: open connections count, for who opened them, until they are over;
// the limit may change.
func TestPerSource(t *testing.T) {
	set := args("per-source", "3", "tcp-close", "1m", "tcp-idle", "5m", "rules", "allow")
	x := graphtest.New(t, *Kind(), set)
	conn := func(client, port int) pkt { return pkt{client: client, sport: uint16(port), dport: 80} }
	for port := range 3 {
		run(t, x, conn(1, port), handshake("opened"))
	}
	syn := conn(1, 9)
	syn.in, syn.flags, syn.seq, syn.win = "a", "S", isn(0), 1000
	want := func(step, reason string, p pkt) {
		t.Helper()
		if got := goes(t, x, p); got != reason {
			t.Errorf("%s: %s, want %s", step, got, reason)
		}
	}
	want("a fourth", "-source-connections", syn)
	run(t, x, conn(2, 1), handshake("opened")) // another source
	want("the server is another", "opened", pkt{in: "b", client: 1, sport: 80, dport: 22, flags: "S"})
	run(t, x, conn(1, 1), []step{{"a", "A", 2, serverISN + 1, "", "known"}})
	// Saved and loaded they still count.
	y := graphtest.New(t, *Kind(), set)
	if err := y.App().(*app).Load(bytes.NewReader(save(t, x))); err != nil {
		t.Fatal(err)
	}
	x = y
	want("a fourth, loaded", "-source-connections", syn)
	// One ends.
	run(t, x, conn(1, 1), []step{{"a", "R", 2, 0, "", "known"}})
	x.Advance(3 * time.Minute)
	want("in its place", "opened", syn)
	syn.sport = 10
	want("a fourth, again", "-source-connections", syn)
	if err := x.Set(args("per-source", "none", "tcp-close", "1m", "tcp-idle", "5m", "rules", "allow")); err != nil {
		t.Fatal(err)
	}
	want("without a limit", "opened", syn)
	st := x.App().(*app).st
	x.Advance(6 * time.Minute)
	for h := range uint64(4096) {
		if n := st.shards[0].openers.Of(h<<32 | h); n != 0 {
			t.Fatalf("%d connections of somebody when all are over", n)
		}
	}
	if x.Counter("connections") != 0 {
		t.Errorf("%d connections", x.Counter("connections"))
	}
}

func TestFlood(t *testing.T) {
	const n = 1000
	x := graphtest.New(t, *Kind(), args("conns", fmt.Sprint(n), "half", "400", "half-per-source", "100", "rules", "allow"))
	open := func(i int) pkt { return pkt{client: i, sport: uint16(i), dport: 80} }
	for i := range 300 {
		run(t, x, open(i), handshake("opened"))
	}
	// From one address.
	for i := range 500 {
		want := "opened"
		if i >= 100 {
			want = "-source-limit"
		}
		if got := goes(t, x, pkt{in: "b", client: 5000, sport: uint16(i), dport: 22, flags: "S"}); got != want {
			t.Fatalf("SYN %d: %s", i, got)
		}
	}
	if got := goes(t, x, pkt{in: "a", client: 5001, sport: 1, dport: 22, flags: "S"}); got != "opened" {
		t.Errorf("another source: %s", got)
	}
	// From everywhere.
	got := map[string]int{}
	for i := range 20000 {
		got[goes(t, x, pkt{in: "a", client: 6000 + i, sport: uint16(i), dport: 22, flags: "S"})]++
		if i%100 == 0 {
			x.Advance(time.Millisecond)
		}
	}
	if tents := x.App().(*app).st.shards[0].tents; tents > 400 {
		t.Errorf("%d half-open ones", tents)
	}
	if x.Counter("evicted") < 15000 || got["opened"] < 15000 {
		t.Errorf("%v, %d evicted", got, x.Counter("evicted"))
	}
	for i := range 300 {
		run(t, x, open(i), []step{{"b", "A", serverISN + 1, isn(1), "still", "known"}})
	}
	// Full of open ones: those stay, and new ones are told so.
	full := 0
	for i := 300; i < 3000; i++ {
		c := open(i)
		c.in, c.flags, c.seq, c.win = "a", "S", isn(0), 1000
		if goes(t, x, c) == "-full" {
			full++
			continue
		}
		run(t, x, open(i), handshake("known"))
	}
	if full < 1000 {
		t.Errorf("%d of 2700 found it full", full)
	}
	for i := range 300 {
		run(t, x, open(i), []step{{"a", "A", isn(1), serverISN + 1, "still", "known"}})
	}
	x.Advance(3 * time.Hour)
	s := &x.App().(*app).st.shards[0]
	if s.tents != 0 || s.conns.Len() != 0 || s.sources.Of(0) != 0 {
		t.Errorf("%d half-open of %d are left", s.tents, s.conns.Len())
	}
}

// TestRules: reading and writing, and what is wrong.
func TestRules(t *testing.T) {
	d4, d6 := decl(32), decl(128)
	for in, want := range map[string]string{
		"":      "none",
		"allow": "allow+prio:10",
		"deny+src:10.0.0.0/8;allow+in:a+proto:tcp+dport:80-90+prio:7": "deny+src:10.0.0.0/8+prio:20;allow+in:a+proto:tcp+dport:80-90+prio:7",
		" allow+dst:1.2.3.4+proto:47\n\ndeny+in:b+sport:53 ":          "allow+dst:1.2.3.4+proto:47+prio:20;deny+in:b+sport:53+prio:10",
		"allow+src:*+dport:0-65535":                                   "allow+prio:10",
	} {
		all, err := parseRules(in, d4.Keys)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		out := formatRules(all, d4.Keys)
		again, err := parseRules(out, d4.Keys)
		if out != want || err != nil || formatRules(again, d4.Keys) != out {
			t.Errorf("%q became %q, %v", in, out, err)
		}
	}
	if all, err := parseRules("allow+src:2001:db8::/32+proto:icmp", d6.Keys); err != nil || formatRules(all, d6.Keys) != "allow+src:2001:db8::/32+proto:icmp+prio:10" {
		t.Errorf("%v %v", all, err)
	}
	for in, want := range map[string]string{
		"pass": "want allow or deny", "allow+x:1": "none of in", "allow+src:10.0.0.1/8": "prefix", "allow+src:2001:db8::1": "IPv4",
		"allow+dport:90-80": "ends before", "allow+prio:0": "above 0", "allow+in:c": "in=c", "allow+proto:tcp+proto:udp": "twice", "allow+prio:1;deny+prio:1": "another with the same",
		"allow+src:10.0.0.0&&&255.0.255.0": "prefix", "allow+dport:65536": "16 bits", strings.Repeat("allow;", maxRules+1): "at most",
	} {
		if _, err := Kind().New(graph.Env{}, graph.Args{"rules": in}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", in, err, want)
		}
	}
	for name, v := range map[string]string{"default": "x", "mode": "x", "conns": "0", "tcp-idle": "0s", "udp-idle": "x", "fragments": "x", "nothing": "x", "half-per-source": "-1"} {
		if _, err := Kind().New(graph.Env{}, graph.Args{name: v}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, v, err)
		}
	}
	// The table is the argument.
	for i, d := range []table.Decl{d4, d6} {
		arg, src := "rules", "10.0.0.0/8"
		if i == 1 {
			arg, src = "rules6", "2001:db8::/32"
		}
		e, err := d.Parse(table.Text{Match: map[string]string{"src": src, "dport": "80..90", "in": "1"}, Priority: 5, Action: "deny"})
		if err != nil {
			t.Fatal(err)
		}
		rows := d.Setting.Of(table.Args{arg: "allow"})
		c := table.Change{Op: table.Insert, Entry: e}
		if err := d.Check(&c); err != nil {
			t.Fatal(err)
		}
		if err := d.Do(&rows, &c); err != nil {
			t.Fatal(err)
		}
		out, err := d.Setting.Set(nil, rows)
		if want := "allow+prio:10;deny+in:b+src:" + src + "+dport:80-90+prio:5"; err != nil || out[arg] != want {
			t.Errorf("%v %v, want %s", out, err, want)
		}
		rows.Entries[1].Key[fieldSrc].M.Lo ^= 1
		if _, err := d.Setting.Set(nil, rows); err == nil {
			t.Error("a mask that is no prefix is taken")
		}
	}
}

// TestFirstMatch: the rule that counts is the one that a search through all of
// them finds.
func TestFirstMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.SampledFrom([]int{32, 128}).Draw(t, "bits")
		keys := decl(bits).Keys
		value := func(n int) table.Value { // few, and at the ends
			v := rapid.SampledFrom([]uint64{0, 1, 2, 5, 6, 17, 80, 255}).Draw(t, "v")
			x := table.Uint(v).And(table.Ones(n))
			if rapid.Bool().Draw(t, "high") {
				x = table.Ones(n).AndNot(x)
			}
			return x
		}
		var rules []table.Entry
		for i := range rapid.IntRange(0, 150).Draw(t, "rules") {
			e := table.Entry{Priority: int32(rapid.IntRange(1, 20).Draw(t, "prio")), Call: table.Call{Action: i % 2}, Key: make([]table.Cond, numFields)}
			for f := range e.Key {
				if rapid.IntRange(0, 2).Draw(t, "any") > 0 {
					e.Key[f].Any = true
					continue
				}
				v, w := value(keys[f].Bits), value(keys[f].Bits)
				switch keys[f].Match {
				case table.Ternary:
					w = table.Prefix(rapid.IntRange(0, bits).Draw(t, "len"), bits)
					v = v.And(w)
				case table.Range:
					if w.Less(v) {
						v, w = w, v
					}
				default:
					w = table.Value{}
				}
				e.Key[f] = table.Cond{V: v, M: w}
			}
			rules = append(rules, e)
		}
		acl := newACL(rules, keys, nil)
		for range 30 {
			var v [numFields]table.Value
			for f := range v {
				v[f] = value(keys[f].Bits)
			}
			if rapid.Bool().Draw(t, "no ports") {
				v[fieldSport], v[fieldDport] = table.Uint(noPort), table.Uint(noPort)
			}
			want := walkRules(rules, keys, &v)
			got := acl.match(&v)
			if (got < 0) != (want < 0) || got >= 0 && int(acl.actions[got]) != rules[want].Action {
				t.Fatalf("%v: %d, want rule %d", v, got, want)
			}
		}
	})
}

// walkRules is the rule that values meet first by priority, and of the same by place; -1: they meet none.
func walkRules(rules []table.Entry, keys []table.Field, v *[numFields]table.Value) int {
	want, prio := -1, int32(0)
	for i := range rules {
		holds := true
		for f := range rules[i].Key {
			c, high := &rules[i].Key[f], rules[i].Key[f].V
			if keys[f].Match == table.Range {
				high = c.M
			}
			switch {
			case c.Any:
			case keys[f].Match == table.Ternary:
				holds = holds && v[f].And(c.M) == c.V
			default:
				holds = holds && !v[f].Less(c.V) && !high.Less(v[f])
			}
		}
		if holds && rules[i].Priority > prio {
			want, prio = i, rules[i].Priority
		}
	}
	return want
}

// TestManyRules: as many rules as there may be, as those of real networks are, against a walk of the list.
func TestManyRules(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 2000
	}
	rng := rand.New(rand.NewPCG(3, 5))
	var text strings.Builder
	for range n {
		fmt.Fprintf(&text, "%s", []string{"allow", "deny"}[rng.IntN(2)])
		if rng.IntN(4) > 0 {
			fmt.Fprintf(&text, "+src:10.%d.%d.0/24", rng.IntN(4), rng.IntN(256))
		}
		if rng.IntN(3) > 0 {
			fmt.Fprintf(&text, "+dst:192.168.%d.%d", rng.IntN(40), rng.IntN(256))
		}
		if rng.IntN(2) > 0 {
			low := rng.IntN(65536)
			fmt.Fprintf(&text, "+proto:tcp+dport:%d-%d", low, low+rng.IntN(min(300, 65536-low)))
		}
		text.WriteString(";")
	}
	keys := decl(32).Keys
	rules, err := parseRules(text.String(), keys)
	if err != nil {
		t.Fatal(err)
	}
	acl := newACL(rules, keys, nil)
	sorted := slices.Clone(rules)
	slices.SortStableFunc(sorted, func(x, y table.Entry) int { return int(y.Priority) - int(x.Priority) })
	hits := 0
	for range 1500 {
		e := &rules[rng.IntN(len(rules))]
		v := [numFields]table.Value{fieldIn: table.Uint(rng.Uint64N(2)), fieldSrc: table.Uint(0x0a000000 | rng.Uint64N(1<<18)), fieldDst: table.Uint(0xc0a80000 | rng.Uint64N(1<<14)),
			fieldProto: table.Uint(6), fieldSport: table.Uint(rng.Uint64N(1 << 16)), fieldDport: table.Uint(rng.Uint64N(1 << 16))}
		for f, c := range e.Key {
			if !c.Any && rng.IntN(8) > 0 {
				v[f] = c.V
			}
		}
		want := walkRules(sorted, keys, &v)
		if got := acl.match(&v); got != want {
			t.Fatalf("%v: rule %d, want %d", v, got, want)
		}
		if want >= 0 {
			hits++
		}
	}
	if hits < 500 {
		t.Errorf("%d hits", hits)
	}
}

// TestChange: connections that new rules would not allow end, others stay.
func TestChange(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"rules": "deny+in:b+dport:23;allow+proto:tcp"})
	one, two := pkt{sport: 1, dport: 80}, pkt{sport: 2, dport: 443}
	run(t, x, one, handshake("opened"))
	run(t, x, two, handshake("opened"))
	was := x.App()
	if err := x.Set(graph.Args{"rules": "allow+dport:443"}); err != nil {
		t.Fatal(err)
	}
	if x.App() != was {
		t.Fatal("it has started anew")
	}
	run(t, x, one, []step{{"b", "A", serverISN + 1, isn(1), "", "-denied-by-default"}, {"b", "A", serverISN + 1, isn(1), "", "-no-connection"}})
	run(t, x, two, []step{{"b", "A", serverISN + 1, isn(1), "", "known"}})
	if n := x.Counter("ended"); n != 1 {
		t.Errorf("%d have ended", n)
	}
	if err := x.Set(graph.Args{"rules": "deny", "default": "allow"}); err != nil {
		t.Fatal(err)
	}
	run(t, x, two, []step{{"a", "A", isn(1), serverISN + 1, "", "-denied"}})
}

// TestClosed: nothing crosses while the firewall does not look.
func TestClosed(t *testing.T) {
	if f := graphtest.New(t, *Kind(), args()).App().(graph.Wanter).Wants(); !f.All || !f.Closed {
		t.Errorf("%+v", f)
	}
}

// TestOthers: what is no IP datagram, and what is none any more.
func TestOthers(t *testing.T) {
	arp := append(bytes.Repeat([]byte{255}, 12), 8, 6, 0, 1)
	x := graphtest.New(t, *Kind(), args())
	if got := frame(t, x, "b", arp); got != "not-ip" {
		t.Error(got)
	}
	good := pkt{in: "a", flags: "S"}.bytes(t)
	for _, n := range []int{1, 13, 15, 30, 34, 40, 53} {
		if got := frame(t, x, "a", good[:n]); got != "-malformed" {
			t.Errorf("%d bytes: %s", n, got)
		}
	}
	good[14+20+12] = 0xF0 // a TCP header longer than the datagram
	if got := frame(t, x, "a", good); got != "-malformed" {
		t.Error(got)
	}
	three := pkt{in: "a", flags: "S", tags: []uint16{1, 2, 3}}.bytes(t)
	if got := frame(t, x, "a", three); got != "-malformed" {
		t.Error(got)
	}
	x = graphtest.New(t, *Kind(), args("non-ip", "drop"))
	if got := frame(t, x, "b", arp); got != "-not-ip-dropped" {
		t.Error(got)
	}
}

// TestTables: rules that are put into the table of a running firewall, and taken
// out, count at once; 1,000 of them in one request.
func TestTables(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{})
	d := decl(32)
	write := func(op table.Ops, together bool, all ...table.Text) (errs []error) {
		t.Helper()
		var changes []graph.TableChange
		for _, text := range all {
			e, err := d.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			changes = append(changes, graph.TableChange{App: graphtest.App, Change: table.Change{Table: "acl", Op: op, Entry: e}})
		}
		for _, err := range x.Inst.WriteTables(changes, together) {
			if err != nil {
				errs = append(errs, err)
			}
		}
		return errs
	}
	syn := func(i int) string {
		return goes(t, x, pkt{in: "a", client: i, sport: uint16(i), dport: 80, flags: "S"})
	}
	if got := syn(1); got != "-denied-by-default" {
		t.Error(got)
	}
	http := table.Text{Match: map[string]string{"in": "0", "src": "10.0.0.0/8", "proto": "6", "dport": "80..80"}, Priority: 10, Action: "allow"}
	if errs := write(table.Insert, false, http); errs != nil {
		t.Fatal(errs)
	}
	if got := syn(1); got != "opened" {
		t.Error(got)
	}
	if errs := write(table.Insert, false, http); len(errs) != 1 {
		t.Error("it is there twice")
	}
	var many []table.Text
	for i := range 1000 {
		many = append(many, table.Text{Match: map[string]string{"src": fmt.Sprintf("10.0.%d.%d", i>>8, i&255)}, Priority: 20, Action: "deny"})
	}
	if errs := write(table.Insert, true, many...); errs != nil {
		t.Fatal(errs[0])
	}
	if a, b, c := syn(1), syn(999), syn(1000); a != "-denied" || b != "-denied" || c != "opened" {
		t.Error(a, b, c)
	}
	n := 0
	if err := x.Inst.ReadTable(graphtest.App, "acl", func(*table.Entry) error { n++; return nil }); err != nil || n != 1001 {
		t.Errorf("%d entries, %v", n, err)
	}
	if errs := write(table.Delete, true, many[:500]...); errs != nil {
		t.Fatal(errs[0])
	}
	if a, b := syn(1), syn(999); a != "opened" || b != "-denied" {
		t.Error(a, b)
	}
}

// TestWindowOfAnyStart: numbers beyond half of their circle are looked at, too.
func TestWindowOfAnyStart(t *testing.T) {
	for _, start := range []uint32{0, 1000, 1<<31 - 2, 1 << 31, 0x90000000, 0xFFFFFFF0} {
		for _, theirs := range []uint32{5, 1<<31 - 2, 1 << 31, 0xC0000000, 0xFFFFFFFF} {
			x := graphtest.New(t, *Kind(), args())
			run(t, x, pkt{sport: 1, dport: 2}, []step{
				{"a", "S", start, 0, "", "opened"},
				{"b", "SA", theirs, start + 1, "", "known"},
				{"a", "A", start + 1, theirs + 1, "", "known"},
				{"b", "A", theirs + 1 + 500_000, start + 1, "x", "-out-of-window"},
				{"b", "R", theirs + 1 + 500_000, 0, "", "-out-of-window"},
				{"a", "A", start + 1 + 500_000, theirs + 1, "x", "-out-of-window"},
				{"b", "A", theirs + 1, start + 1, "answer", "known"},
				{"a", "A", start + 1, theirs + 7, "", "known"},
			})
		}
	}
}

// TestSpoofedAnswer: who does not know the opener's number does not keep out who does.
func TestSpoofedAnswer(t *testing.T) {
	x := graphtest.New(t, *Kind(), args())
	run(t, x, pkt{sport: 1, dport: 2}, []step{
		{"a", "S", 100, 0, "", "opened"},
		{"b", "S", 0x77777777, 0, "", "known"}, // as if both opened at once
		{"b", "SA", 500, 77, "", "-out-of-window"},
		{"b", "SA", 500, 101, "", "known"},
		{"a", "A", 101, 501, "", "known"},
		{"b", "SA", 0x77777777, 101, "", "-out-of-window"},
		{"b", "A", 501, 101, "answer", "known"},
		{"a", "A", 101, 507, "", "known"},
	})
	if x.App().(*app).st.shards[0].tents != 0 {
		t.Error("it is not open")
	}
	// Both at once, indeed.
	run(t, x, pkt{sport: 3, dport: 2}, []step{
		{"a", "S", 100, 0, "", "opened"}, {"b", "S", 500, 0, "", "known"},
		{"a", "SA", 100, 501, "", "known"}, {"b", "SA", 500, 101, "", "known"},
		{"a", "A", 101, 501, "x", "known"}, {"b", "A", 501, 102, "y", "known"},
	})
}

// TestSegmentInFragments: how long a segment is that comes in fragments its first one
// does not say; what acknowledges it passes.
func TestSegmentInFragments(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		x := graphtest.New(t, *Kind(), args())
		c := pkt{v6: v6, sport: 1, dport: 2}
		run(t, x, c, handshake("opened"))
		f := pkt{v6: v6, in: "a", sport: 1, dport: 2, flags: "A", seq: isn(500_000), ack: serverISN + 1, win: 1000, payload: "0123456789ab", more: true, ipID: 9}
		if got := goes(t, x, f); got != "-out-of-window" {
			t.Errorf("a fragment out of the window: %s", got)
		}
		run(t, x, c, []step{{"b", "A", serverISN + 1, isn(400), "", "-out-of-window"}}) // and it changes nothing
		f.seq = isn(1)
		if got := goes(t, x, f); got != "known" {
			t.Error(got)
		}
		if got := goes(t, x, pkt{v6: v6, in: "a", offset: 32, payload: "and so on", ipID: 9}); got != "later-fragment" {
			t.Error(got)
		}
		run(t, x, c, []step{
			{"b", "A", serverISN + 1, isn(22), "", "known"},
			{"a", "A", isn(22), serverISN + 1, "next", "known"},
			{"b", "A", serverISN + 1, isn(26), "", "known"},
		})
	}
}

// TestHiddenTransport: extension headers behind a fragment header hide nothing from
// the rules.
func TestHiddenTransport(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("rules6", "deny+in:b+proto:tcp", "default", "allow"))
	b := pkt{v6: true, in: "b", sport: 22, dport: 1000, flags: "S"}.bytes(t)
	if got := frame(t, x, "b", b); got != "-denied" {
		t.Fatal(got)
	}
	plug := func(next byte, headers ...byte) []byte {
		p := append(append(bytes.Clone(b[:54]), headers...), b[54:]...)
		p[20] = next
		be.PutUint16(p[18:], uint16(len(p)-54))
		return p
	}
	options := []byte{6, 0, 1, 4, 0, 0, 0, 0}
	for name, p := range map[string][]byte{
		"options":                plug(60, options...),
		"fragment":               plug(44, 6, 0, 0, 0, 0, 0, 0, 9),
		"fragment, options":      plug(44, append([]byte{60, 0, 0, 0, 0, 0, 0, 9}, options...)...),
		"first of several":       plug(44, append([]byte{60, 0, 0, 1, 0, 0, 0, 9}, options...)...),
		"fragment, routing":      plug(44, append([]byte{43, 0, 0, 0, 0, 0, 0, 9}, options...)...),
		"fragment in a fragment": plug(44, 44, 0, 0, 0, 0, 0, 0, 9, 6, 0, 0, 0, 0, 0, 0, 9),
	} {
		if got := frame(t, x, "b", p); got != "-denied" && got != "-malformed" && got != "-tiny-fragment" {
			t.Errorf("TCP behind %s: %s", name, got)
		}
	}
}

// TestHalfIsABound: what is over makes room for another, and the half-open ones are
// no more for that.
func TestHalfIsABound(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("conns", "64", "half", "8", "half-per-source", "1000", "tcp-idle", "1ms", "tcp-half", "1h"))
	st := x.App().(*app).st
	for i := range 60 {
		run(t, x, pkt{client: i, sport: uint16(i), dport: 80}, handshake("opened"))
	}
	x.Clock.Set(x.Clock.Now().Add(2 * time.Millisecond))
	for i := range 100 {
		goes(t, x, pkt{in: "a", client: 1000 + i, sport: uint16(i), dport: 22, flags: "S"})
		if n := st.shards[0].tents; n > 8 {
			t.Fatalf("%d half-open", n)
		}
	}
}

// TestSourceRoute: where a datagram ends is its destination.
func TestSourceRoute(t *testing.T) {
	x := graphtest.New(t, *Kind(), args())
	four := pkt{in: "a", sport: 1, dport: 2, flags: "S"}.bytes(t)
	with := func(options ...byte) []byte {
		p := append(append(bytes.Clone(four[:34]), options...), four[34:]...)
		p[14] = 0x45 + byte(len(options)/4)
		be.PutUint16(p[16:], uint16(len(p)-14))
		return p
	}
	six := pkt{v6: true, in: "a", sport: 1, dport: 2, flags: "S"}.bytes(t)
	plug := func(headers ...byte) []byte {
		p := append(append(bytes.Clone(six[:54]), headers...), six[54:]...)
		p[20] = headers[0]
		be.PutUint16(p[18:], uint16(len(p)-54))
		return p
	}
	routing := func(typ byte) []byte { return append([]byte{6, 2, typ, 1, 0, 0, 0, 0}, make([]byte, 16)...) }
	first := func(h []byte, next byte) []byte { // what the IPv6 header says is in h[0] for plug
		p := plug(append([]byte{next}, h[1:]...)...)
		p[54] = h[0]
		return p
	}
	for _, c := range []struct {
		what string
		p    []byte
		want string
	}{
		{"loose", with(131, 7, 4, 10, 0, 0, 9, 0), "-source-route"},
		{"strict, behind others", with(1, 148, 4, 0, 0, 137, 3, 4), "-source-route"},
		{"cut short", with(1, 1, 1, 131), "-source-route"},
		{"router alert", with(148, 4, 0, 0), "opened"},
		{"behind the end", with(0, 131, 3, 4), "known"},
		{"a length of zero", with(7, 0, 131, 3), "known"},
		{"routing header 0", first(routing(0), 43), "-source-route"},
		{"routing header 4", first(routing(4), 43), "opened"},
		{"behind options", first(append([]byte{43, 0, 1, 4, 0, 0, 0, 0}, routing(0)...), 60), "-source-route"},
	} {
		if got := frame(t, x, "a", c.p); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// TestDHCP: answers to a broadcast are of no connection, and the rules of the description let them pass.
func TestDHCP(t *testing.T) {
	rules := regexp.MustCompile(`allow\+in:b\+proto:udp\+sport:(67|547)\S+[0-9]`).FindAllString(Kind().Doc, -1)
	if len(rules) != 2 {
		t.Fatalf("rules: %q", rules)
	}
	for i, c := range []struct{ ask, answer pkt }{
		{pkt{in: "a", from: "0.0.0.0", sport: 68, dport: 67, proto: layers.IPProtocolUDP}, pkt{in: "b", client: 9, sport: 68, dport: 67, proto: layers.IPProtocolUDP}},
		{pkt{v6: true, in: "a", from: "fe80::9", sport: 546, dport: 547, proto: layers.IPProtocolUDP}, pkt{v6: true, in: "b", from: "fe80::1", sport: 546, dport: 547, proto: layers.IPProtocolUDP}},
	} {
		name := []string{"rules", "rules6"}[i]
		for _, with := range []struct{ rules, want string }{{"allow+in:a", "-denied-by-default"}, {"allow+in:a;" + rules[i], "opened"}} {
			x := graphtest.New(t, *Kind(), args(name, with.rules))
			if got := goes(t, x, c.ask); got != "opened" {
				t.Errorf("%s=%s: a client's datagram: %s", name, with.rules, got)
			}
			if got := goes(t, x, c.answer); got != with.want {
				t.Errorf("%s=%s: the answer: %s, want %s", name, with.rules, got, with.want)
			}
		}
	}
}

// TestNote: rules for one family only are told of at start, as nothing of the other can be opened.
func TestNote(t *testing.T) {
	for want, args := range map[string][]string{
		"so no connection can be opened by IPv6": {"rules", "allow+in:a"},
		"so no connection can be opened by IPv4": {"rules6", "allow+in:a"},
		"":                                       {"rules", "allow+in:a", "rules6", "deny"},
	} {
		a := graph.Args{}
		for i := 0; i < len(args); i += 2 {
			a[args[i]] = args[i+1]
		}
		if got := Kind().Note(a); !strings.HasSuffix(got, want) || (got == "") != (want == "") {
			t.Errorf("%v: %q", args, got)
		}
	}
	if got := Kind().Note(graph.Args{"rules": "allow+in:a", "default": "allow"}); got != "" {
		t.Error(got)
	}
}

// TestFastOpen: a server that takes the data of a SYN (RFC 7413) answers at once, with as many segments as the
// SYN's window has room for. It does not wait for an acknowledgement of its own SYN.
func TestFastOpen(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		x := graphtest.New(t, *Kind(), args())
		data := strings.Repeat("x", 400)
		run(t, x, pkt{v6: v6, sport: 1000, dport: 80, scale: 7}, []step{
			{"a", "S", isn(0), 0, "get", "opened"},
			{"b", "SA", serverISN, isn(4), "", "known"},
			{"b", "A", serverISN + 1, isn(4), data, "known"},
			{"b", "A", serverISN + 401, isn(4), data, "known"},
			{"b", "A", serverISN + 801, isn(4), data, "known"},
			{"b", "A", serverISN + 1001, isn(4), "", "known"},          // the last that the SYN's window, unscaled, lets begin
			{"b", "A", serverISN + 1002, isn(4), "", "-out-of-window"}, // behind it
			{"a", "A", isn(4), serverISN + 1201, "", "known"},          // the client's first acknowledgement
			{"b", "A", serverISN + 1201 + 127000, isn(4), "", "known"}, // scaled from now on
			{"b", "A", serverISN + 1201 + 129000, isn(4), "", "-out-of-window"},
		})
		// The SYN's data was not taken: the client sends it again.
		x = graphtest.New(t, *Kind(), args())
		run(t, x, pkt{v6: v6, sport: 1000, dport: 80}, []step{
			{"a", "S", isn(0), 0, "get", "opened"},
			{"b", "SA", serverISN, isn(1), "", "known"},
			{"a", "A", isn(1), serverISN + 1, "get", "known"},
			{"b", "A", serverISN + 1, isn(4), data, "known"},
		})
	}
}

// TestBothForgotLoose: with mode=loose, too, the numbers are those of the connection that begins anew. They count when the mode becomes
// strict, also where the beginning of the former connection was not seen.
func TestBothForgotLoose(t *testing.T) {
	const again, other = 900000, 0x70000000
	c := pkt{sport: 1000, dport: 80}
	for _, first := range [][]step{append(handshake("opened"), step{"a", "FA", isn(1), serverISN + 1, "", "known"}), {{"a", "A", 7, 9, "", "opened"}, {"b", "A", 9, 7, "", "known"}}} {
		x := graphtest.New(t, *Kind(), args("mode", "loose"))
		run(t, x, c, first)
		run(t, x, c, []step{{"a", "S", again, 0, "", "known"}, {"b", "SA", other, again + 1, "", "known"}, {"a", "A", again + 1, other + 1, "", "known"}})
		if err := x.Set(args("mode", "strict")); err != nil {
			t.Fatal(err)
		}
		x.Advance(10 * time.Minute) // longer than tcp-close=
		run(t, x, c, []step{{"b", "A", other + 1, again + 1, "answer", "known"}, {"a", "A", again + 1, other + 7, "", "known"}, {"b", "A", serverISN + 1, isn(1), "", "-out-of-window"}})
	}
}

// TestBothForgot: both ends have lost an open connection without a FIN or RST that passed here, as in a power cut,
// and the opener uses its port again. The answer of the other end to its SYN says that both begin anew.
func TestBothForgot(t *testing.T) {
	const again, other = 900000, 0x70000000
	for _, state := range []string{"open", "closing", "syn-ack"} {
		for _, v6 := range []bool{false, true} {
			c := pkt{v6: v6, sport: 1000, dport: 80, scale: 7}
			begin := func() *graphtest.Test {
				x := graphtest.New(t, *Kind(), args())
				run(t, x, c, handshake("opened")[:2])
				if state != "syn-ack" {
					run(t, x, c, handshake("opened")[2:])
				}
				if state == "closing" {
					run(t, x, c, []step{{"a", "FA", isn(1), serverISN + 1, "", "known"}})
				}
				return x
			}
			x := begin()
			run(t, x, c, []step{
				{"a", "S", again, 0, "", "known"},
				{"b", "SA", other, again, "", "-out-of-window"},     // answers another SYN
				{"a", "SA", other, again + 1, "", "-out-of-window"}, // is of the wrong end
				{"b", "SA", other, again + 1, "", "known"},
				{"b", "SA", other, again + 1, "", "known"}, // once more
				{"a", "A", again + 1, other + 1, "get", "known"},
				{"b", "A", other + 1, again + 4, "answer", "known"},
				{"b", "A", other + 1 + 127000, again + 4, "", "known"}, // windows are scaled, as both have said anew
				{"b", "A", other + 1 + 129000, again + 4, "", "-out-of-window"},
				{"b", "A", serverISN + 1, isn(1), "", "-out-of-window"}, // of the former connection
				{"a", "FA", again + 4, other + 7, "", "known"}, {"b", "FA", other + 1 + 127000, again + 5, "", "known"}, {"a", "A", again + 5, other + 2 + 127000, "", "known"},
				{"a", "S", again + 100000, 0, "", "opened"},
			})
			// Somebody has made up the SYN: the opener goes on, and then an answer to that SYN changes nothing.
			if x = begin(); state == "open" {
				run(t, x, c, []step{
					{"a", "S", again, 0, "", "known"},
					{"a", "A", isn(1), serverISN + 1, "get", "known"},
					{"b", "SA", other, again + 1, "", "-out-of-window"},
					{"b", "A", serverISN + 1, isn(4), "", "known"},
				})
			}
			// The other end has the connection, and says so (RFC 5961 4): nobody else's answer changes anything then.
			if x = begin(); state == "open" {
				run(t, x, c, []step{
					{"a", "S", again, 0, "", "known"},
					{"b", "A", serverISN + 1, isn(1), "", "known"},
					{"b", "SA", other, again + 1, "", "-out-of-window"}, {"b", "RA", other, again + 1, "", "-out-of-window"},
					{"a", "A", isn(1), serverISN + 1, "get", "known"}, {"b", "A", serverISN + 1, isn(4), "answer", "known"},
				})
			}
			// The other end refuses.
			run(t, begin(), c, []step{
				{"a", "S", again, 0, "", "known"}, {"b", "RA", other, again, "", "-out-of-window"}, {"b", "RA", other, again + 1, "", "known"},
				{"a", "S", again, 0, "", "opened"},
			})
			// The other end's SYN opens nothing, whoever answers it.
			run(t, begin(), c, []step{{"b", "S", again, 0, "", "known"}, {"a", "SA", other, again + 1, "", "-out-of-window"}})
		}
	}
}
