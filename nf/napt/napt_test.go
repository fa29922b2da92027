package napt

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
)

const (
	pub  = "198.51.100.1"
	pub2 = "198.51.100.2"
	host = "10.0.0.2"
	far  = "203.0.113.9"
	box  = "02:00:00:00:00:fe"
)

// pkt is a datagram that gopacket makes. Addresses are ADDRESS or ADDRESS:PORT;
// the port of an ICMP query is its identifier.
type pkt struct {
	proto    string // tcp, udp, echo, reply, unreachable
	src, dst string
	flags    string
	payload  string
	quote    []byte // of unreachable: an IP datagram
	tags     []uint16
	nosum    bool
	mac      byte // last of the source's
	more     bool
	offset   uint16 // in bytes
	id       uint16
}

func split(s string) (net.IP, uint16) {
	h, p, _ := strings.Cut(s, ":")
	var n uint16
	_, _ = fmt.Sscan(p, &n)
	return net.ParseIP(h).To4(), n
}

func (p pkt) bytes(t testing.TB) []byte {
	t.Helper()
	src, sport := split(p.src)
	dst, dport := split(p.dst)
	all := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, p.mac}, DstMAC: []byte{2, 0, 0, 0, 0, 0xAA}}}
	for _, vid := range p.tags {
		all = append(all, &layers.Dot1Q{VLANIdentifier: vid})
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, TOS: 3, Id: p.id, SrcIP: src, DstIP: dst, FragOffset: p.offset / 8}
	if p.more {
		ip.Flags = layers.IPv4MoreFragments
	}
	all = append(all, ip)
	var l4 []gopacket.SerializableLayer
	switch p.proto {
	case "tcp":
		ip.Protocol = layers.IPProtocolTCP
		has := func(s string) bool { return strings.Contains(p.flags, s) }
		x := &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Window: 1000, SYN: has("S"), ACK: has("A"), FIN: has("F"), RST: has("R")}
		l4 = append(l4, x)
	case "udp":
		ip.Protocol = layers.IPProtocolUDP
		x := &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}
		l4 = append(l4, x)
	case "echo", "reply":
		ip.Protocol = layers.IPProtocolICMPv4
		x := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: sport, Seq: 1}
		if p.proto == "reply" {
			x.TypeCode, x.Id = 0, dport
		}
		l4 = append(l4, x)
	case "unreachable":
		ip.Protocol = layers.IPProtocolICMPv4
		l4 = append(l4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 3)}, gopacket.Payload(p.quote))
	default:
		ip.Protocol = 47
	}
	if p.offset == 0 {
		all = append(all, l4...)
	}
	all = append(all, gopacket.Payload(p.payload))
	b := hdrtest.Build(t, all...)
	if p.nosum {
		at := 14 + 4*len(p.tags) + 20 + 6
		b[at], b[at+1] = 0, 0
	}
	return b
}

func args(more ...string) graph.Args {
	a := graph.Args{"public": pub, "mac": box, "mappings": "4096", "sessions": "8192"}
	for i := 0; i < len(more); i += 2 {
		a[more[i]] = more[i+1]
	}
	return a
}

// push gives a frame to port in. It is what leaves, and by which port; "-reason"
// when it is dropped.
func push(t testing.TB, x *graphtest.Test, in string, b []byte) (out string, got []byte) {
	t.Helper()
	r := x.Push(in, b)
	if len(r.Dropped) == 1 && len(r.Out["a"])+len(r.Out["b"]) == 0 {
		return "-" + r.Dropped[0].Reason, nil
	}
	for _, o := range []string{"a", "b"} {
		if len(r.Out[o]) == 1 && len(r.Out["a"])+len(r.Out["b"]) == 1 {
			f := r.Out[o][0]
			if len(f.Bytes) != len(b) {
				t.Fatal("its length is another")
			}
			return o + " " + f.Reason, f.Bytes
		}
	}
	t.Fatalf("%+v", r)
	return "", nil
}

// goes pushes a packet, and compares what leaves with what is to leave, byte by
// byte but for the MAC addresses.
func goes(t testing.TB, x *graphtest.Test, in string, p pkt, want string, to pkt) {
	t.Helper()
	out, got := push(t, x, in, p.bytes(t))
	if out != want {
		t.Errorf("%+v from %s: %s, want %s", p, in, out, want)
		return
	}
	if got == nil {
		return
	}
	to.proto, to.flags, to.payload, to.tags, to.nosum, to.more, to.offset, to.id = p.proto, p.flags, p.payload, p.tags, p.nosum, p.more, p.offset, p.id
	if to.quote == nil {
		to.quote = p.quote
	}
	if w := to.bytes(t); !bytes.Equal(w[12:], got[12:]) {
		t.Errorf("%+v from %s\n%x became\n%x, want\n%x", p, in, p.bytes(t), got, w)
	}
}

// seen is the public end of what leaves by b, or of a hairpin's source.
func seen(t testing.TB, x *graphtest.Test, p pkt) string {
	t.Helper()
	out, got := push(t, x, "a", p.bytes(t))
	if got == nil {
		return out
	}
	var d hdr.Layers
	hdr.Walk(got, &d)
	return fmt.Sprintf("%s:%d", hdr.IPv4(got[d.L3:]).Src(), be.Uint16(got[portAt(&d, source):]))
}

// TestThereAndBack: addresses, ports and checksums, to the byte, for all that is
// translated; MAC addresses.
func TestThereAndBack(t *testing.T) {
	for _, p := range []pkt{
		{proto: "tcp", flags: "S"}, {proto: "udp"}, {proto: "udp", payload: "odd"}, {proto: "udp", nosum: true},
		{proto: "udp", tags: []uint16{7}}, {proto: "tcp", flags: "S", tags: []uint16{7, 9}}, {proto: "echo", payload: "ping"},
	} {
		x := graphtest.New(t, *Kind(), args())
		p.src, p.dst, p.mac = host+":5000", far+":80", 2
		goes(t, x, "a", p, "b outward", pkt{src: pub + ":5000", dst: far + ":80"})
		_, b := push(t, x, "a", p.bytes(t))
		if eth := hdr.Ethernet(b); net.HardwareAddr(b[6:12]).String() != box || eth.Dst() != [6]byte{2, 0, 0, 0, 0, 0xAA} {
			t.Errorf("%x", b[:12])
		}
		back := p
		back.src, back.dst, back.flags = far+":80", pub+":5000", "SA"
		if p.proto == "echo" {
			back.proto = "reply"
		}
		goes(t, x, "b", back, "a inward", pkt{src: far + ":80", dst: host + ":5000"})
		_, b = push(t, x, "b", back.bytes(t))
		if eth := hdr.Ethernet(b); eth.Dst() != [6]byte{2, 0, 0, 0, 0, 2} {
			t.Errorf("%x", b[:12])
		}
		// Another VLAN is another network, in which nobody has that port.
		for _, tags := range [][]uint16{{8}, {7, 8}, {9, 7}} {
			back.tags = tags
			goes(t, x, "b", back, "-no-mapping", pkt{})
		}
	}
	// By hand.
	x := graphtest.New(t, *Kind(), args("mac", "none"))
	in, _ := hex.DecodeString("0200000000aa020000000002" + "0800" + "45030020000000004011" + "34bf" + "0a000002cb007109" + "13880050000c" + "d120" + "68656c6c" + strings.Repeat("00", 14))
	want, _ := hex.DecodeString("0200000000aa020000000002" + "0800" + "45030020000000004011" + "148c" + "c6336401cb007109" + "13880050000c" + "b0ed" + "68656c6c" + strings.Repeat("00", 14))
	for _, f := range [][]byte{in, want} { // what was worked out is right by the book
		if s := sum(f[14:34], 0); s != 0xFFFF {
			t.Fatalf("IP sum %04x", s)
		}
		if s := sum(f[34:46], uint32(sum(f[26:34], 17+12))); s != 0xFFFF {
			t.Fatalf("UDP sum %04x", s)
		}
	}
	if _, got := push(t, x, "a", in); !bytes.Equal(got, want) {
		t.Errorf("\n%x, want\n%x", got, want)
	}
}

// TestChecksumOfZero: a UDP checksum that comes out as 0 is sent as 0xFFFF
// (RFC 768): 0 is none. In a quotation, too.
func TestChecksumOfZero(t *testing.T) {
	x := graphtest.New(t, *Kind(), args())
	p := pkt{proto: "udp", src: host + ":5000", dst: far + ":80", payload: "\x00\x00"}
	_, b := push(t, x, "a", p.bytes(t))
	p.payload = string(b[40:42]) // the sum of all then is 0xFFFF
	in := p.bytes(t)
	out, b := push(t, x, "a", in)
	if out != "b outward" || be.Uint16(b[40:]) != 0xFFFF {
		t.Errorf("%s %x", out, b[40:42])
	}
	x = graphtest.New(t, *Kind(), args())
	push(t, x, "a", in)
	p.src = pub + ":5000"
	q := p.bytes(t)[14:44]
	q[26], q[27] = 0xFF, 0xFF
	if out, b = push(t, x, "b", pkt{proto: "unreachable", src: far, dst: pub, quote: q}.bytes(t)); out != "a error-inward" || !bytes.Equal(b[42+26:42+28], in[40:42]) {
		t.Errorf("%s %x", out, b)
	}
}

// sum is that of 16-bit words, folded, by the book.
func sum(b []byte, s uint32) uint16 {
	if len(b)%2 != 0 {
		b = append(bytes.Clone(b), 0)
	}
	for ; len(b) > 0; b = b[2:] {
		s += uint32(be.Uint16(b))
		s = s>>16 + s&0xFFFF
	}
	return uint16(s)
}

// TestMapping: one public end for a private one, whoever it talks to; ports stay,
// or their parity does; no two share one.
func TestMapping(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("public", pub+"+"+pub2, "ports", "2000-2999"))
	ends := map[string]string{}
	first := ""
	for i := range 400 {
		p := pkt{proto: "udp", src: fmt.Sprintf("10.0.%d.2:%d", i/200, 1900+i%200), dst: far + ":53"}
		end := seen(t, x, p)
		p.dst = "203.0.113.77:99"
		if other := seen(t, x, p); other != end {
			t.Fatalf("%s for one, %s for another", end, other)
		}
		if was, taken := ends[end]; taken {
			t.Fatalf("%s is that of %s and %s", end, was, p.src)
		}
		ends[end] = p.src
		var a, b int
		ip, port, _ := strings.Cut(end, ":")
		_, _ = fmt.Sscan(port, &a)
		_, b16 := split(p.src)
		b = int(b16)
		if i < 200 {
			first = cmp.Or(first, ip)
			if ip != first {
				t.Fatalf("a host has two public addresses")
			}
			if b >= 2000 && a != b && ends[fmt.Sprintf("%s:%d", ip, b)] == "" {
				t.Errorf("port %d became %d, and was free", b, a)
			}
		}
		if a%2 != b%2 || a < 2000 || a > 2999 {
			t.Errorf("port %d became %d", b, a)
		}
	}
	// Protocols have pools of their own.
	if a, b := seen(t, x, pkt{proto: "udp", src: "10.9.9.9:2900", dst: far + ":1"}), seen(t, x, pkt{proto: "tcp", flags: "S", src: "10.9.9.9:2900", dst: far + ":1"}); a != b {
		t.Errorf("%s and %s", a, b)
	}
}

// TestFilter: who may answer.
func TestFilter(t *testing.T) {
	for filter, want := range map[string][3]string{ // who was sent to, the same host from another port, another host
		"endpoint": {"a inward", "a inward", "a inward"},
		"address":  {"a inward", "a inward", "-filtered"},
		"port":     {"a inward", "-filtered", "-filtered"},
	} {
		for _, proto := range []string{"udp", "tcp"} {
			x := graphtest.NewSmall(t, *Kind(), args("filter", filter))
			seen(t, x, pkt{proto: proto, flags: "S", src: host + ":5000", dst: far + ":80"})
			for i, from := range []string{far + ":80", far + ":81", "192.0.2.7:80"} {
				goes(t, x, "b", pkt{proto: proto, flags: "S", src: from, dst: pub + ":5000"}, want[i], pkt{src: from, dst: host + ":5000"})
			}
			goes(t, x, "b", pkt{proto: proto, flags: "S", src: far + ":80", dst: pub + ":5001"}, "-no-mapping", pkt{})
		}
		x := graphtest.NewSmall(t, *Kind(), args("filter", filter))
		seen(t, x, pkt{proto: "echo", src: host + ":5000", dst: far})
		goes(t, x, "b", pkt{proto: "reply", src: far, dst: pub + ":5000"}, "a inward", pkt{src: far, dst: host + ":5000"})
		other := "-filtered"
		if filter == "endpoint" {
			other = "a inward"
		}
		goes(t, x, "b", pkt{proto: "reply", src: "192.0.2.7", dst: pub + ":5000"}, other, pkt{src: "192.0.2.7", dst: host + ":5000"})
	}
}

// TestTimes: who keeps what alive, and for how long.
func TestTimes(t *testing.T) {
	for _, filter := range []string{"endpoint", "address", "port"} {
		a := args("filter", filter, "mappings", "64")
		answers := func(x *graphtest.Test, p pkt, want string) {
			t.Helper()
			p.src, p.dst = p.dst, pub+":5000"
			if p.proto == "echo" {
				p.proto = "reply"
			}
			if out, _ := push(t, x, "b", p.bytes(t)); out != want {
				t.Errorf("filter=%s: %+v: %s, want %s", filter, p, out, want)
			}
		}
		for _, c := range []struct {
			p pkt
			d time.Duration
		}{{pkt{proto: "udp", src: host + ":5000", dst: far + ":80"}, 5 * time.Minute}, {pkt{proto: "echo", src: host + ":5000", dst: far}, time.Minute}} {
			x := graphtest.NewSmall(t, *Kind(), a)
			seen(t, x, c.p)
			x.Advance(c.d / 2)
			answers(x, c.p, "a inward") // keeps nothing alive
			x.Advance(c.d / 2)
			answers(x, c.p, "a inward")
			x.Advance(1)
			gone := "-no-mapping"
			if filter != "endpoint" {
				gone = "-filtered" // what is left of it will be swept
			}
			answers(x, c.p, gone)
			seen(t, x, c.p)
			x.Advance(c.d)
			seen(t, x, c.p)
			x.Advance(c.d)
			answers(x, c.p, "a inward")
			x.Advance(c.d + 17*time.Second)
			if s := &x.App().(*app).st.shards[0]; s.mappings.Len() != 0 || s.sessions.Len() != 0 || s.pools[0][classUDP].free != 64512 || s.pools[0][classICMP].free != 65536 {
				t.Errorf("%d mappings, %d sessions are left", s.mappings.Len(), s.sessions.Len())
			}
		}
		// TCP: not open, open, closing.
		syn := pkt{proto: "tcp", flags: "S", src: host + ":5000", dst: far + ":80"}
		back := syn
		back.src, back.dst = far+":80", pub+":5000"
		with := func(p pkt, flags string) []byte { p.flags = flags; return p.bytes(t) }
		for _, c := range []struct {
			more []string // direction and flags
			d    time.Duration
		}{{nil, 4 * time.Minute}, {[]string{"bSA", "aA"}, 124 * time.Minute}, {[]string{"bSA", "aA", "bFA"}, 124 * time.Minute}, {[]string{"bSA", "aA", "aFA"}, 124 * time.Minute}, {[]string{"bSA", "aA", "bFA", "aFA", "bA"}, 4 * time.Minute},
			{[]string{"bSA", "aA", "bFA", "bR", "bS", "aA"}, 124 * time.Minute},                                                                 // all spoofed: the private end goes on
			{[]string{"bSA", "aFA", "bFA", "bS", "bA"}, 4 * time.Minute}, {[]string{"bSA", "aFA", "bFA", "bS", "aSA", "bA"}, 124 * time.Minute}, // a connection from b with the same ports
			{[]string{"bSA", "aA", "bR"}, 4 * time.Minute},
			{[]string{"bSA", "aA", "bR", "aA"}, 124 * time.Minute}, {[]string{"bSA", "aA", "aFA", "aS"}, 4 * time.Minute}} {
			for _, over := range []bool{false, true} {
				x := graphtest.NewSmall(t, *Kind(), a)
				push(t, x, "a", syn.bytes(t))
				for _, m := range c.more {
					p := syn
					if m[0] == 'b' {
						p = back
					}
					if out, got := push(t, x, m[:1], with(p, m[1:])); got == nil {
						t.Errorf("%s: %s", m, out)
					}
				}
				x.Advance(c.d)
				want := "a inward"
				if over {
					x.Advance(17 * time.Second)
					want = "-no-mapping"
				}
				if out, _ := push(t, x, "b", with(back, "A")); out != want {
					t.Errorf("%v: %s, want %s", c.more, out, want)
				}
			}
		}
	}
	x := graphtest.NewSmall(t, *Kind(), args())
	for flags, want := range map[string]string{"A": "-no-mapping", "SA": "-no-mapping", "R": "-no-mapping"} {
		goes(t, x, "a", pkt{proto: "tcp", flags: flags, src: host + ":1", dst: far + ":1"}, want, pkt{})
	}
	seen(t, x, pkt{proto: "tcp", flags: "S", src: host + ":5000", dst: far + ":80"})
	goes(t, x, "b", pkt{proto: "tcp", flags: "A", src: far + ":81", dst: pub + ":5000"}, "-no-session", pkt{})
}

// TestHairpin: two private hosts by their public ends.
func TestHairpin(t *testing.T) {
	for _, proto := range []string{"udp", "tcp"} {
		x := graphtest.New(t, *Kind(), args("filter", "endpoint"))
		other := "10.0.0.3"
		seen(t, x, pkt{proto: proto, flags: "S", src: other + ":6000", dst: far + ":80", mac: 3})
		goes(t, x, "a", pkt{proto: proto, flags: "S", src: host + ":5000", dst: pub + ":6000"}, "a hairpin", pkt{src: pub + ":5000", dst: other + ":6000"})
		_, b := push(t, x, "a", pkt{proto: proto, flags: "S", src: host + ":5000", dst: pub + ":6000"}.bytes(t))
		if eth := hdr.Ethernet(b); eth.Dst() != [6]byte{2, 0, 0, 0, 0, 3} || eth.Src() != [6]byte{2, 0, 0, 0, 0, 0xAA} {
			t.Errorf("%x", b[:12])
		}
		goes(t, x, "a", pkt{proto: proto, flags: "SA", src: other + ":6000", dst: pub + ":5000"}, "a hairpin", pkt{src: pub + ":6000", dst: host + ":5000"})
		goes(t, x, "a", pkt{proto: proto, flags: "S", src: other + ":6000", dst: pub + ":7000"}, "-no-mapping", pkt{})
		if proto == "udp" { // and an error
			quote := pkt{proto: proto, src: pub + ":5000", dst: other + ":6000"}.bytes(t)[14:]
			goes(t, x, "a", pkt{proto: "unreachable", src: other, dst: pub, quote: quote}, "a error-outward",
				pkt{src: pub, dst: host, quote: pkt{proto: proto, src: host + ":5000", dst: pub + ":6000"}.bytes(t)[14:]})
		}
	}
	x := graphtest.New(t, *Kind(), args("filter", "address"))
	seen(t, x, pkt{proto: "udp", src: "10.0.0.3:6000", dst: far + ":80"})
	goes(t, x, "a", pkt{proto: "udp", src: host + ":5000", dst: pub + ":6000"}, "-filtered", pkt{})
}

// TestErrors: ICMP errors with what they quote, to the byte, both ways.
func TestErrors(t *testing.T) {
	for _, q := range []pkt{{proto: "udp", payload: "hello"}, {proto: "udp", nosum: true}, {proto: "tcp", flags: "S"}, {proto: "echo"}} {
		for _, tags := range [][]uint16{nil, {7}} {
			for _, whole := range []bool{true, false} {
				x := graphtest.NewSmall(t, *Kind(), args())
				q.src, q.dst, q.tags, q.mac = host+":5000", far+":80", tags, 2
				cut := func(p pkt) []byte {
					ip := p.bytes(t)[14+4*len(tags):]
					if !whole {
						return ip[:28]
					}
					return ip
				}
				public := q
				public.src = pub + ":5000"
				goes(t, x, "b", pkt{proto: "unreachable", src: "192.0.2.99", dst: pub, quote: cut(public), tags: tags}, "-unrelated", pkt{})
				push(t, x, "a", q.bytes(t))
				goes(t, x, "b", pkt{proto: "unreachable", src: "192.0.2.99", dst: pub, quote: cut(public), tags: tags}, "a error-inward",
					pkt{src: "192.0.2.99", dst: host, quote: cut(q)})
				// What the far end sends, a router on the private side reports.
				answer, inner := q, q
				answer.src, answer.dst = far+":80", host+":5000"
				inner.src, inner.dst = far+":80", pub+":5000"
				if q.proto == "echo" {
					answer.proto, inner.proto = "reply", "reply"
				}
				goes(t, x, "a", pkt{proto: "unreachable", src: "10.0.0.77", dst: far, quote: cut(answer), tags: tags}, "b error-outward",
					pkt{src: pub, dst: far, quote: cut(inner)})
				// About another.
				wrong := public
				wrong.src = pub + ":5001"
				goes(t, x, "b", pkt{proto: "unreachable", src: far, dst: pub, quote: cut(wrong), tags: tags}, "-unrelated", pkt{})
				wrong = public
				wrong.dst = "192.0.2.1:80"
				goes(t, x, "b", pkt{proto: "unreachable", src: far, dst: pub, quote: cut(wrong), tags: tags}, "-unrelated", pkt{})
				goes(t, x, "b", pkt{proto: "unreachable", src: far, dst: pub, quote: cut(q), tags: tags}, "-unrelated", pkt{})
				goes(t, x, "b", pkt{proto: "unreachable", src: far, dst: pub, quote: []byte("short"), tags: tags}, "-unrelated", pkt{})
			}
		}
	}
}

// TestFragments: later ones follow their first one.
func TestFragments(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("filter", "endpoint"))
	first := pkt{proto: "udp", src: host + ":5000", dst: far + ":80", more: true, payload: "12345678", id: 9}
	rest := pkt{proto: "udp", src: host, dst: far, offset: 16, payload: "rest", id: 9}
	goes(t, x, "a", rest, "-stray-fragment", pkt{})
	goes(t, x, "a", first, "b outward", pkt{src: pub + ":5000", dst: far + ":80"})
	goes(t, x, "a", rest, "b later-fragment", pkt{src: pub, dst: far})
	x.Advance(31 * time.Second)
	goes(t, x, "a", rest, "-stray-fragment", pkt{})
	in, inRest := first, rest
	in.src, in.dst, inRest.src, inRest.dst = far+":80", pub+":5000", far, pub
	goes(t, x, "b", inRest, "-stray-fragment", pkt{})
	goes(t, x, "b", in, "a inward", pkt{src: far + ":80", dst: host + ":5000"})
	goes(t, x, "b", inRest, "a later-fragment", pkt{src: far, dst: host})
	if _, b := push(t, x, "b", inRest.bytes(t)); hdr.Ethernet(b).Dst() != [6]byte{2, 0, 0, 0, 0, 0} {
		t.Errorf("%x", b[:12])
	}
	hair, hairRest := first, rest
	hair.src, hair.dst, hairRest.src, hairRest.dst = "10.0.0.3:1", pub+":5000", "10.0.0.3", pub
	hair.id, hairRest.id = 10, 10
	if out, _ := push(t, x, "a", hair.bytes(t)); out != "a hairpin" {
		t.Error(out)
	}
	goes(t, x, "a", hairRest, "a later-fragment", pkt{src: pub, dst: host})
	// An error in fragments.
	quote := pkt{proto: "udp", src: pub + ":5000", dst: far + ":80"}.bytes(t)[14:]
	goes(t, x, "b", pkt{proto: "unreachable", src: far, dst: pub, quote: quote, more: true, id: 12}, "a error-inward",
		pkt{src: far, dst: host, quote: pkt{proto: "udp", src: host + ":5000", dst: far + ":80"}.bytes(t)[14:]})
	goes(t, x, "b", pkt{proto: "echo", src: far, dst: pub, offset: 16, id: 12, payload: "rest"}, "a later-fragment", pkt{src: far, dst: host})
	first.id, rest.id = 11, 11
	first.proto = "" // without ports
	goes(t, x, "a", first, "-other-protocol", pkt{})
	// Many: the newest are known.
	for i := range uint16(3000) {
		f, r := pkt{proto: "udp", src: host + ":5000", dst: far + ":80", more: true, payload: "12345678", id: i}, rest
		r.id = i
		push(t, x, "a", f.bytes(t))
		if out, _ := push(t, x, "a", r.bytes(t)); out != "b later-fragment" {
			t.Fatalf("%d: %s", i, out)
		}
		x.Advance(time.Microsecond)
	}
}

// TestExhausted: what happens when ports, places, or a host's share are used up,
// and that they come back.
func TestExhausted(t *testing.T) {
	from := func(n, port int) pkt {
		return pkt{proto: "udp", src: fmt.Sprintf("10.0.%d.%d:%d", n>>8, n&255, port), dst: far + ":53"}
	}
	x := graphtest.New(t, *Kind(), args("public", pub+"+"+pub2, "ports", "3000-3099"))
	ends := map[string]bool{}
	for i := range 200 {
		ends[seen(t, x, from(i, 3001))] = true // one parity is used up first
	}
	if len(ends) != 200 {
		t.Fatalf("%d of 200 ports are given out", len(ends))
	}
	if end := seen(t, x, from(777, 1)); end != "-ports-exhausted" {
		t.Error(end)
	}
	if end := seen(t, x, from(5, 3001)); !ends[end] {
		t.Errorf("who has one gets %s", end)
	}
	if end := seen(t, x, pkt{proto: "echo", src: "10.7.7.7:9", dst: far}); end[0] == '-' {
		t.Error(end)
	}
	x.Advance(6 * time.Minute)
	for i := range 200 {
		if end := seen(t, x, from(1000+i, i)); end[0] == '-' {
			t.Fatalf("%d: %s", i, end)
		}
	}
	x = graphtest.New(t, *Kind(), args("per-host", "10"))
	for i := range 20 {
		if end := seen(t, x, from(1, 2000+i)); (end == "-host-limit") != (i >= 10) {
			t.Errorf("%d: %s", i, end)
		}
	}
	if end := seen(t, x, from(2, 2000)); end[0] == '-' {
		t.Error(end)
	}
	x.Advance(6 * time.Minute)
	if end := seen(t, x, from(1, 5000)); end[0] == '-' {
		t.Error(end)
	}
	for _, a := range []graph.Args{args("mappings", "100"), args("sessions", "100")} {
		x = graphtest.New(t, *Kind(), a)
		full := 0
		for i := range 1000 {
			if seen(t, x, from(i, 5000)) == "-full" {
				full++
			}
		}
		if full < 800 {
			t.Errorf("%v: %d of 1000", a, full)
		}
		x.Advance(5*time.Minute + 17*time.Second)
		before := x.Counter("outward")
		for i := range 50 {
			seen(t, x, from(2000+i, 5000))
		}
		if n := x.Counter("outward") - before; n < 50 {
			t.Errorf("%v: %d of 50 when all is over", a, n)
		}
		s := &x.App().(*app).st.shards[0]
		x.Advance(time.Hour)
		if s.mappings.Len() != 0 || s.sessions.Len() != 0 || s.pools[0][classUDP].free != 64512 {
			t.Errorf("left: %d, %d", s.mappings.Len(), s.sessions.Len())
		}
	}
}

// TestFlood: SYNs from outside to a port that is somebody's use up no room of his.
func TestFlood(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("filter", "endpoint", "sessions", "100"))
	syn := pkt{proto: "tcp", flags: "S", src: host + ":5000", dst: far + ":80"}
	push(t, x, "a", syn.bytes(t))
	push(t, x, "b", pkt{proto: "tcp", flags: "SA", src: far + ":80", dst: pub + ":5000"}.bytes(t))
	for i := range 2000 {
		goes(t, x, "b", pkt{proto: "tcp", flags: "S", src: fmt.Sprintf("203.0.%d.%d:1", i>>8, i&255), dst: pub + ":5000"}, "a inward",
			pkt{src: fmt.Sprintf("203.0.%d.%d:1", i>>8, i&255), dst: host + ":5000"})
	}
	for i := range 50 {
		syn.dst = fmt.Sprintf("%s:%d", far, 1000+i)
		if end := seen(t, x, syn); end != pub+":5000" {
			t.Errorf("%d: %s", i, end)
		}
	}
	goes(t, x, "b", pkt{proto: "tcp", flags: "A", src: far + ":80", dst: pub + ":5000"}, "a inward", pkt{src: far + ":80", dst: host + ":5000"})
	s := &x.App().(*app).st.shards[0]
	if n := s.mappings.At(s.mappings.Next(0)).Val.sessions; int(n) != s.sessions.Len() {
		t.Errorf("%d sessions of a mapping, %d in all", n, s.sessions.Len())
	}
}

// TestPassed: what is not translated.
func TestPassed(t *testing.T) {
	x := graphtest.New(t, *Kind(), args())
	v6 := append(bytes.Repeat([]byte{2}, 12), 0x86, 0xDD, 0x60, 0, 0, 0, 0, 0, 59, 1)
	v6 = append(v6, make([]byte, 32)...)
	for _, c := range []struct {
		in, want string
		b        []byte
	}{
		{"a", "b ipv6", v6}, {"b", "a ipv6", v6}, {"a", "b not-ip", append(bytes.Repeat([]byte{2}, 12), 0x88, 0xCC, 1)},
		{"a", "b not-private", pkt{proto: "udp", src: "192.0.2.1:1", dst: far + ":2"}.bytes(t)},
		{"a", "b local", pkt{proto: "udp", src: host + ":1", dst: "224.0.0.251:5353"}.bytes(t)},
		{"a", "b local", pkt{proto: "udp", src: host + ":1", dst: "255.255.255.255:67"}.bytes(t)},
		{"b", "a not-public", pkt{proto: "udp", src: far + ":1", dst: "192.0.2.1:2"}.bytes(t)},
		{"b", "a not-public", pkt{proto: "udp", src: far + ":1", dst: "224.0.0.251:5353"}.bytes(t)},
		{"b", "-not-public-dropped", pkt{proto: "udp", src: far + ":1", dst: host + ":2"}.bytes(t)},
		{"a", "-other-protocol", pkt{src: host, dst: far, payload: "12345678"}.bytes(t)},
		{"b", "-other-protocol", pkt{src: far, dst: pub, payload: "12345678"}.bytes(t)},
		{"a", "-roce", pkt{proto: "udp", src: host + ":1", dst: far + ":4791"}.bytes(t)},
		{"a", "-malformed", pkt{proto: "tcp", src: host + ":1", dst: far + ":1"}.bytes(t)[:50]},
		{"b", "-no-mapping", pkt{proto: "echo", src: far, dst: pub}.bytes(t)},
	} {
		out, got := push(t, x, c.in, c.b)
		if out != c.want || got != nil && !bytes.Equal(got, c.b) {
			t.Errorf("%s, want %s\n%x became\n%x", out, c.want, c.b, got)
		}
	}
	redirect := pkt{proto: "unreachable", src: far, dst: pub, quote: []byte("12345678")}.bytes(t)
	redirect[34] = 5
	if out, _ := push(t, x, "b", redirect); out != "-other-icmp" {
		t.Error(out)
	}
	for _, others := range []string{"hide", "pass", "drop"} {
		if err := x.Set(args("others", others)); err != nil {
			t.Fatal(err)
		}
		for _, dst := range []string{host, "192.0.2.1"} {
			want := "a not-public"
			if others == "drop" || others == "hide" && dst == host {
				want = "-not-public-dropped"
			}
			if out, _ := push(t, x, "b", pkt{proto: "udp", src: far + ":1", dst: dst + ":2"}.bytes(t)); out != want {
				t.Errorf("others=%s, to %s: %s, want %s", others, dst, out, want)
			}
		}
	}
}

// TestARP: requests for public addresses are answered, when there is a MAC.
func TestARP(t *testing.T) {
	request := func(spa, tpa string) []byte {
		b := make([]byte, 60)
		hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: [6]byte{255, 255, 255, 255, 255, 255}, Src: [6]byte{2, 0, 0, 0, 0, 9}, EtherType: hdr.EtherARP})
		s, _ := split(spa)
		d, _ := split(tpa)
		copy(b[14:], []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9})
		copy(b[28:], s)
		copy(b[38:], d)
		return b
	}
	x := graphtest.New(t, *Kind(), args())
	out, got := push(t, x, "b", request(far, pub))
	want, _ := hex.DecodeString("020000000009" + "0200000000fe" + "0806" + "0001080006040002" + "0200000000fe" + "c6336401" + "020000000009" + "cb007109" + strings.Repeat("00", 18))
	if out != "b arp-answered" || !bytes.Equal(got, want) {
		t.Errorf("%s\n%x", out, got)
	}
	for _, b := range [][]byte{request(far, host), request(pub, pub), request(far, pub)[:40]} {
		if out, got := push(t, x, "b", b); out != "a not-ip" || !bytes.Equal(got, b) {
			t.Errorf("%s", out)
		}
	}
	x = graphtest.New(t, *Kind(), args("mac", "none"))
	if out, _ := push(t, x, "b", request(far, pub)); out != "a not-ip" {
		t.Error(out)
	}
}

// TestModel: whatever hosts send and whoever answers, ends are those of a map, and
// answers get to who has sent.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		x := graphtest.NewSmall(t, *Kind(), args("public", pub+"+"+pub2, "ports", "1000-1015", "filter", "endpoint", "mappings", "200"))
		type end struct{ proto, addr string }
		outside, inside := map[end]string{}, map[end]string{}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			proto := rapid.SampledFrom([]string{"udp", "tcp"}).Draw(r, "proto")
			switch rapid.IntRange(0, 9).Draw(r, "what") {
			case 0:
				x.Advance(5 * time.Minute)
				x.Advance(time.Minute)
				clear(outside) // both are over
				clear(inside)
			case 1, 2, 3:
				port := rapid.IntRange(998, 1018).Draw(r, "public port")
				e := end{proto, fmt.Sprintf("%s:%d", rapid.SampledFrom([]string{pub, pub2}).Draw(r, "address"), port)}
				p := pkt{proto: proto, flags: "S", src: far + ":80", dst: e.addr}
				want := "-no-mapping"
				if inside[e] != "" {
					want = "a inward"
				}
				goes(t, x, "b", p, want, pkt{src: far + ":80", dst: inside[e]})
			default:
				e := end{proto, fmt.Sprintf("10.0.0.%d:%d", rapid.IntRange(1, 6).Draw(r, "host"), rapid.IntRange(998, 1008).Draw(r, "port"))}
				got := seen(t, x, pkt{proto: proto, flags: "S", src: e.addr, dst: fmt.Sprintf("%s:%d", far, rapid.IntRange(1, 3).Draw(r, "to"))})
				n := 0
				for o := range outside {
					if o.proto == proto {
						n++
					}
				}
				switch was, known := outside[e]; {
				case known && got != was, !known && (got == "-ports-exhausted") != (n == 32), !known && inside[end{proto, got}] != "":
					r.Fatalf("%v got %s, had %q, %d are there", e, got, was, n)
				case !known && n < 32:
					outside[e], inside[end{proto, got}] = got, e.addr
				}
			}
		}
		if t.Failed() {
			r.Fatal("see above")
		}
	})
}

// TestDissected: tshark finds nothing wrong with what leaves.
func TestDissected(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed: its dissection is not compared")
	}
	x := graphtest.New(t, *Kind(), args("filter", "endpoint"))
	var frames [][]byte
	n := 0
	add := func(in string, p pkt) {
		if _, b := push(t, x, in, p.bytes(t)); b != nil {
			frames = append(frames, b)
		} else {
			t.Errorf("%+v is dropped", p)
		}
	}
	for i, p := range []pkt{{proto: "tcp", flags: "S"}, {proto: "udp", payload: "hello"}, {proto: "echo"}, {proto: "udp", tags: []uint16{5}}} {
		port := fmt.Sprintf(":%d", 5000+i)
		p.src, p.dst = host+port, far+":9999"
		add("a", p)
		q := p
		q.src = pub + port
		add("b", pkt{proto: "unreachable", src: far, dst: pub, quote: q.bytes(t)[14+4*len(p.tags):], tags: p.tags})
		p.src, p.dst, p.flags = p.dst, q.src, "SA"
		if p.proto == "echo" {
			p.proto = "reply"
		}
		add("b", p)
		n++
	}
	name := filepath.Join(t.TempDir(), "frames.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := pcapgo.NewWriter(f)
	_ = w.WriteFileHeader(0xFFFF, layers.LinkTypeEthernet)
	for _, b := range frames {
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(b), Length: len(b)}, b); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("tshark", "-r", name, "-o", "udp.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
		"-Y", "ip.checksum.status == 0 or udp.checksum.status == 0 or tcp.checksum.status == 0 or icmp.checksum.status == 0 or _ws.malformed").Output()
	if err != nil || len(out) != 0 {
		t.Errorf("tshark: %v\n%s", err, out)
	}
	out, err = exec.Command("tshark", "-r", name, "-Y", "ip.addr == "+pub+" or ip.addr == "+host, "-T", "fields", "-e", "frame.number").Output()
	if err != nil || len(strings.Fields(string(out))) != 3*n {
		t.Errorf("tshark sees %q of %d frames, %v", out, 3*n, err)
	}
}

// TestClosed: no private address crosses while nobody translates it.
func TestClosed(t *testing.T) {
	if f := graphtest.New(t, *Kind(), args()).App().(graph.Wanter).Wants(); !f.All || !f.Closed {
		t.Errorf("%+v", f)
	}
}

func TestArguments(t *testing.T) {
	for want, a := range map[string]graph.Args{
		"public= is missing": {}, "of a host": args("public", "10.0.0"), "there twice": args("public", pub+"+"+pub), "two numbers": args("ports", "5"),
		"no IPv4 prefix": args("private", "10.0.0.1/8"), "the MAC": args("mac", "01:00:00:00:00:01"), "want endpoint": args("filter", "x"), "want hide, pass or drop": args("others", "x"),
		"mappings=0": args("mappings", "0"), "per-host=-1": args("per-host", "-1"), "duration": args("udp-idle", "0s"), "no argument": args("x", ""), "224.0.0.1": args("public", "224.0.0.1"),
		"at most 64": args("public", func() string {
			var all []string
			for i := range 65 {
				all = append(all, fmt.Sprintf("1.1.1.%d", i+1))
			}
			return strings.Join(all, "+")
		}()),
	} {
		if _, err := Kind().New(graph.Env{}, a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", a, err, want)
		}
	}
	x := graphtest.New(t, *Kind(), args())
	was := x.App()
	seen(t, x, pkt{proto: "udp", src: host + ":1", dst: far + ":1"})
	if err := x.Set(args("filter", "endpoint", "udp-idle", "1h")); err != nil || x.App() != was {
		t.Errorf("%v: it has started anew", err)
	}
	if err := x.Set(args("ports", "5000-6000")); err != nil || x.App() == was {
		t.Errorf("%v: it goes on with what is not its own", err)
	}
}

// TestOwnAddress: who has a public address is not behind port b.
func TestOwnAddress(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("filter", "endpoint"))
	seen(t, x, pkt{proto: "udp", src: host + ":5000", dst: far + ":80"})
	for _, from := range []string{pub + ":6000", pub + ":5000"} {
		goes(t, x, "b", pkt{proto: "udp", src: from, dst: pub + ":5000"}, "-filtered", pkt{})
	}
	goes(t, x, "b", pkt{proto: "udp", src: far + ":80", dst: pub + ":5000"}, "a inward", pkt{src: far + ":80", dst: host + ":5000"})
}

// TestScan: a host that sends to everybody uses up what others have no more than its
// own; open connections stay.
func TestScan(t *testing.T) {
	for _, proto := range []string{"udp", "tcp"} {
		x := graphtest.New(t, *Kind(), args("sessions", "400"))
		open := pkt{proto: "tcp", flags: "S", src: host + ":5000", dst: far + ":80"}
		push(t, x, "a", open.bytes(t))
		push(t, x, "b", pkt{proto: "tcp", flags: "SA", src: far + ":80", dst: pub + ":5000"}.bytes(t))
		for i := range 3000 {
			push(t, x, "a", pkt{proto: proto, flags: "S", src: "10.0.0.66:7777", dst: fmt.Sprintf("203.0.%d.%d:1", i>>8, i&255)}.bytes(t))
		}
		for i := range 20 {
			p := pkt{proto: "udp", src: fmt.Sprintf("10.0.1.%d:4000", i), dst: far + ":53"}
			if end := seen(t, x, p); end[0] == '-' {
				t.Errorf("%s: another host: %s", proto, end)
			}
		}
		goes(t, x, "b", pkt{proto: "tcp", flags: "A", src: far + ":80", dst: pub + ":5000"}, "a inward", pkt{src: far + ":80", dst: host + ":5000"})
		s := &x.App().(*app).st.shards[0]
		n := 0
		for i := s.mappings.Next(0); i >= 0; i = s.mappings.Next(i + 1) {
			n += int(s.mappings.At(i).Val.sessions)
		}
		if n != s.sessions.Len() {
			t.Errorf("%d sessions, mappings have %d", s.sessions.Len(), n)
		}
	}
}
