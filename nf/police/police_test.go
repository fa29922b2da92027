package police

import (
	"bytes"
	"fmt"
	"math/big"
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

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/packet"
)

// spec of a frame that gopacket makes.
type spec struct {
	v6, tcp  bool
	tags     int
	tos      uint8
	src      byte // last byte of the address
	port     uint16
	payload  int
	fragment uint16 // offset in units of 8 bytes; the flag for more is set when it is 0
	isPart   bool
}

func build(t testing.TB, s spec) []byte {
	t.Helper()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	all := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: mac, DstMAC: mac}}
	for i := range s.tags {
		all = append(all, &layers.Dot1Q{VLANIdentifier: uint16(10 + i)})
	}
	proto := layers.IPProtocolUDP
	if s.tcp {
		proto = layers.IPProtocolTCP
	}
	if s.v6 {
		src, dst := net.ParseIP("2001:db8::"), net.ParseIP("2001:db8::ff")
		src[15] = s.src
		all = append(all, &layers.IPv6{TrafficClass: s.tos, NextHeader: proto, HopLimit: 64, SrcIP: src, DstIP: dst})
	} else {
		ip := &layers.IPv4{Version: 4, IHL: 5, TOS: s.tos, Id: 7, TTL: 64, Protocol: proto, SrcIP: net.IP{10, 0, 0, s.src}, DstIP: net.IP{10, 0, 0, 255}}
		if s.isPart {
			ip.FragOffset = s.fragment
			if s.fragment == 0 {
				ip.Flags = layers.IPv4MoreFragments
			}
		}
		all = append(all, ip)
	}
	if !s.isPart || s.fragment == 0 {
		if s.tcp {
			all = append(all, &layers.TCP{SrcPort: layers.TCPPort(s.port), DstPort: 80, ACK: true, Window: 1000})
		} else {
			all = append(all, &layers.UDP{SrcPort: layers.UDPPort(s.port), DstPort: 53})
		}
	}
	all = append(all, gopacket.Payload(bytes.Repeat([]byte{0xA5}, s.payload)))
	return hdrtest.Build(t, all...)
}

func TestRates(t *testing.T) {
	for v, want := range map[string]rate{
		"10Mbit": {10_000_000, false}, "1.5Gbit": {1_500_000_000, false}, "100kpps": {100_000, true}, "7bit": {7, false},
		"64kbit": {64_000, false}, "1pps": {1, true}, "0.1Mpps": {100_000, true},
	} {
		var got rate
		if err := got.UnmarshalText([]byte(v)); err != nil || got != want {
			t.Errorf("%s: %v, %v", v, got, err)
		}
	}
	for _, v := range []string{"", "10", "Mbit", "-1Mbit", "0bit", "NaNbit", "Infbit", "99999Gbit", "10Mbyte", "1e9Gbit", "0.1pps"} {
		var got rate
		if err := got.UnmarshalText([]byte(v)); err == nil {
			t.Errorf("%q is taken for %v", v, got)
		}
	}
}

func TestArguments(t *testing.T) {
	bad := map[string]graph.Args{
		"cir= is missing":       nil,
		"no argument":           {"cir": "1Mbit", "x": "1"},
		"below cir":             {"cir": "2Mbit", "pir": "1Mbit"},
		"both":                  {"cir": "2Mbit", "pir": "1Mpps"},
		"green=dscp:64":         {"cir": "1Mbit", "green": "dscp:64"},
		"yellow=dscp:AF14":      {"cir": "1Mbit", "yellow": "dscp:AF14"},
		"red=mark":              {"cir": "1Mbit", "red": "mark"},
		"per=host":              {"cir": "1Mbit", "per": "host"},
		"flows=0":               {"cir": "1Mbit", "flows": "0"},
		"full=evict":            {"cir": "1Mbit", "full": "evict"},
		"aware=yes":             {"cir": "1Mbit", "aware": "yes"},
		"on=c":                  {"cir": "1Mbit", "on": "c"},
		"pbs=0":                 {"cir": "1Mbit", "pbs": "0"},
		"cir=fast: want a rate": {"cir": "fast"},
	}
	for want, args := range bad {
		if _, err := Kind().New(graph.Env{}, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	for want, args := range map[string]graph.Args{
		"rate= is missing": nil, "no argument": {"rate": "1Mbit", "cir": "1Mbit"}, "queue=0": {"rate": "1Mbit", "queue": "0"},
	} {
		if _, err := ShapeKind().New(graph.Env{}, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	for v, want := range map[string]uint8{"0": 0, "63": 63, "AF11": 10, "af43": 38, "EF": 46, "CS6": 48} {
		if got, err := parseDSCP(v); err != nil || got != want {
			t.Errorf("%s: %d, %v", v, got, err)
		}
	}
	for v, want := range map[string]colour{"AF11": green, "AF12": yellow, "AF23": red, "EF": green, "CS2": green, "0": green, "63": green, "AF42": yellow} {
		if d, _ := parseDSCP(v); precedence(d) != want {
			t.Errorf("%s is %s", v, colourNames[precedence(d)])
		}
	}
}

// rfc is the text of RFC 2697 3 and RFC 2698 3 in rational numbers of bits.
type rfc struct {
	single         bool
	cir, pir       *big.Rat
	cbs, pbs, c, p *big.Rat
}

func (m *rfc) mark(d time.Duration, size int, was colour) colour {
	seconds := big.NewRat(int64(d), 1_000_000_000)
	add := func(x, limit, n *big.Rat) *big.Rat {
		x.Add(x, n)
		over := new(big.Rat).Sub(x, limit)
		if over.Sign() <= 0 {
			return new(big.Rat)
		}
		x.Set(limit)
		return over
	}
	over := add(m.c, m.cbs, new(big.Rat).Mul(seconds, m.cir))
	if m.single {
		add(m.p, m.pbs, over)
	} else {
		add(m.p, m.pbs, new(big.Rat).Mul(seconds, m.pir))
	}
	b := big.NewRat(int64(size)*8, 1)
	has := func(x *big.Rat) bool { return x.Cmp(b) >= 0 }
	if m.single {
		if was == green && has(m.c) {
			m.c.Sub(m.c, b)
			return green
		}
		if was != red && has(m.p) {
			m.p.Sub(m.p, b)
			return yellow
		}
		return red
	}
	if was == red || !has(m.p) {
		return red
	}
	m.p.Sub(m.p, b)
	if was == yellow || !has(m.c) {
		return yellow
	}
	m.c.Sub(m.c, b)
	return green
}

// TestMarker compares the markers with the RFCs' text, exactly.
func TestMarker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		single := rapid.Bool().Draw(t, "single")
		cir := rapid.Uint64Range(1, 400e9).Draw(t, "cir")
		pir := rapid.Uint64Range(cir, 2*cir).Draw(t, "pir")
		cbs := rapid.Uint64Range(1, 20000).Draw(t, "cbs")
		pbs := rapid.Uint64Range(1, 20000).Draw(t, "pbs")
		m := marker{single: single, cir: rate{cir, false}, pir: rate{pir, false}}
		m.roomC, m.roomP = m.cir.room(cbs), m.cir.room(pbs)
		now := clock.Time(1_000_000_000)
		x := m.fresh(now)
		r := func(n uint64) *big.Rat { return new(big.Rat).SetInt(new(big.Int).SetUint64(n)) }
		model := rfc{single, r(cir), r(pir), r(cbs * 8), r(pbs * 8), r(cbs * 8), r(pbs * 8)}
		for range rapid.IntRange(1, 60).Draw(t, "packets") {
			// Most gaps are such that the buckets are neither full nor empty.
			full := int64(20000*8*1e9/float64(cir)) + 2
			d := time.Duration(rapid.Int64Range(0, full).Draw(t, "gap"))
			if rapid.IntRange(0, 30).Draw(t, "pause") == 0 {
				d = 1000 * time.Hour
			}
			now = now.Add(d)
			size := rapid.IntRange(20, 9000).Draw(t, "size")
			was := colour(rapid.IntRange(0, 2).Draw(t, "was"))
			if got, want := m.mark(&x, now, size, was), model.mark(d, size, was); got != want {
				t.Fatalf("%s, want %s", colourNames[got], colourNames[want])
			}
		}
	})
}

// TestRatesHold: of a flood, what is green is the committed rate and burst, and
// what is yellow the rest up to the peak.
func TestRatesHold(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"cir": "10Mbit", "pir": "20Mbit", "cbs": "10000", "pbs": "20000"})
	frame := build(t, spec{payload: 1000 - 28}) // an IP datagram of 1000 bytes
	for range 10_000 {                          // 80 Mbit/s for 1 s
		x.Advance(100 * time.Microsecond)
		x.Push("a", frame)
	}
	g, y := x.Counter("green-bytes"), x.Counter("yellow-bytes")
	if want := uint64(10e6/8 + 10000); g > want || g+1000 < want {
		t.Errorf("%d bytes are green, want %d", g, want)
	}
	if want := uint64(20e6/8 + 20000); g+y > want || g+y+2000 < want {
		t.Errorf("%d bytes are not red, want %d", g+y, want)
	}
	if n := x.Counter("over-rate"); n != x.Counter("red") || n == 0 {
		t.Errorf("%d of %d red packets are dropped", n, x.Counter("red"))
	}
}

// TestPackets: with rates in pps, lengths do not count.
func TestPackets(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"cir": "1kpps", "cbs": "5", "pir": "2kpps", "pbs": "8"})
	short, long := build(t, spec{}), build(t, spec{payload: 1400})
	if got := x.Push("a", short, long, long, short, long, long, short, short, short, long); len(got.Out["b"]) != 8 || x.Counter("green") != 5 || x.Counter("yellow") != 3 {
		t.Errorf("%d pass, %d green", len(got.Out["b"]), x.Counter("green"))
	}
	x.Advance(3 * time.Millisecond)
	if x.Push("a", long, long, long, long, long, long, long); x.Counter("green") != 8 || x.Counter("yellow") != 6 {
		t.Errorf("%d green, %d yellow", x.Counter("green"), x.Counter("yellow"))
	}
}

// TestMarking: what comes out is byte for byte what gopacket makes with the
// other DSCP, and tshark finds no fault in it.
func TestMarking(t *testing.T) {
	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, v6 := range []bool{false, true} {
		for _, tcp := range []bool{false, true} {
			for tags := range 3 {
				for ecn := range uint8(4) {
					s := spec{v6: v6, tcp: tcp, tags: tags, tos: 46<<2 | ecn, payload: 101, port: 4000, src: 1}
					x := graphtest.New(t, *Kind(), graph.Args{"cir": "1Mbit", "green": "dscp:AF11"})
					got := x.Push("a", build(t, s)).Out["b"]
					s.tos = 10<<2 | ecn
					want := build(t, s)
					if len(got) != 1 || !bytes.Equal(got[0].Bytes, want) || got[0].Verdict != packet.Rewritten || got[0].Reason != "marked" {
						t.Fatalf("%+v: %x, want %x", s, got, want)
					}
					if again := x.Push("b", want).Out["a"]; len(again) != 1 || again[0].Verdict != packet.Forwarded {
						t.Errorf("%+v: marked again: %v", s, again)
					}
					if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(want), Length: len(want)}, got[0].Bytes); err != nil {
						t.Fatal(err)
					}
					n++
				}
			}
		}
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	name := filepath.Join(t.TempDir(), "marked.pcap")
	if err := os.WriteFile(name, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(filter string) int {
		out, err := exec.Command(tshark, "-n", "-r", name, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-Y", filter).Output()
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(out, []byte("\n"))
	}
	if k := run("(ip.dsfield.dscp == 10 || ipv6.tclass.dscp == 10) && !(ip.checksum.status == 0) && !(udp.checksum.status == 0) && !(tcp.checksum.status == 0)"); k != n {
		t.Errorf("tshark finds %d of %d frames good", k, n)
	}
}

// TestAware: the colour that a packet comes with is never bettered.
func TestAware(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"cir": "1Mbit", "pir": "2Mbit", "aware": "af"})
	for _, dscp := range []uint8{10, 12, 14, 0} {
		x.Push("a", build(t, spec{tos: dscp << 2, payload: 20}))
	}
	for name, want := range map[string]uint64{"green": 2, "yellow": 1, "red": 1, "over-rate": 1} {
		if got := x.Counter(name); got != want {
			t.Errorf("%d are %s, want %d", got, name, want)
		}
	}
}

// TestPassed: what is not understood passes as it is.
func TestPassed(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"cir": "1bit", "cbs": "1", "on": "a", "green": "drop", "yellow": "drop"})
	good := build(t, spec{payload: 20})
	deep := append(append(bytes.Clone(good[:12]), 0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x88, 0xA8, 0, 1), good[12:]...)
	arp := append(bytes.Clone(good[:12]), 0x08, 0x06, 0, 1)
	ihl := bytes.Clone(good)
	ihl[14] = 0x44
	for _, c := range []struct {
		in, reason string
		frame      []byte
	}{
		{"a", "malformed", good[:30]}, {"a", "malformed", deep}, {"a", "malformed", ihl}, {"a", "malformed", good[:13]}, {"a", "not-ip", arp}, {"b", "not-policed", good},
	} {
		out := map[string]string{"a": "b", "b": "a"}[c.in]
		got := x.Push(c.in, c.frame).Out[out]
		if len(got) != 1 || !bytes.Equal(got[0].Bytes, c.frame) || got[0].Reason != c.reason {
			t.Errorf("%s: %v", c.reason, got)
		}
	}
	if got := x.Push("a", good); len(got.Dropped) != 1 || got.Dropped[0].Reason != "over-rate" {
		t.Errorf("a datagram: %v", got)
	}
}

// TestFlows: a key's meter is its own, and a flood of other keys neither takes
// it away nor gets more than one meter beyond its places.
func TestFlows(t *testing.T) {
	args := graph.Args{"cir": "8kbit", "cbs": "100", "pbs": "100", "per": "flow", "flows": "8", "yellow": "drop"}
	x := graphtest.New(t, *Kind(), args)
	f := func(port uint16) []byte { return build(t, spec{port: port, payload: 72}) } // 100 bytes of IP
	for i := range uint16(16) {                                                      // two sets
		if got := x.Push("a", f(i), f(i)); len(got.Out["b"]) != 1 {
			t.Fatalf("flow %d: %d pass, want the burst", i, len(got.Out["b"]))
		}
	}
	passed := 0
	for i := uint16(100); i < 200; i++ {
		passed += len(x.Push("a", f(i)).Out["b"])
	}
	if passed != 1 || x.Counter("shared") != 100 || x.Counter("flows") != 16 {
		t.Errorf("%d packets of flows without room pass, %d are shared, %d flows", passed, x.Counter("shared"), x.Counter("flows"))
	}
	if got := x.Push("a", f(3)); len(got.Out["b"]) != 0 {
		t.Error("a flood renewed a flow's tokens")
	}
	// Both buckets are full again after 200 bytes at 1000 bytes/s.
	x.Advance(200 * time.Millisecond)
	if got := x.Push("a", f(300)); len(got.Out["b"]) != 1 || x.Counter("flows") != 17 {
		t.Errorf("no room in a table of idle meters: %v", got)
	}
	// The other policies.
	for _, full := range []string{"pass", "drop"} {
		args["full"] = full
		x := graphtest.New(t, *Kind(), args)
		for i := range uint16(17) {
			x.Push("a", f(i))
		}
		r := x.Push("a", f(50))
		got := append(r.Out["b"], r.Dropped...)
		if len(got) != 1 || got[0].Reason != "flows-full" || (full == "drop") != (len(r.Dropped) == 1) {
			t.Errorf("full=%s: %+v", full, r)
		}
	}
}

// TestKeys: which packets share a meter.
func TestKeys(t *testing.T) {
	key := func(p per, s spec) flow.Key {
		b := build(t, s)
		var d hdr.Layers
		if !hdr.Walk(b, &d) || d.Malformed() {
			t.Fatalf("%+v does not parse", s)
		}
		return p.key(b, &d, 0)
	}
	for _, v6 := range []bool{false, true} {
		one := spec{v6: v6, src: 1, port: 1, payload: 40}
		host, port, proto, tagged := one, one, one, one
		host.src, port.port, proto.tcp, tagged.tags = 2, 2, true, 2
		for _, c := range []struct {
			p    per
			o    spec
			same bool
		}{
			{perSrc, host, false}, {perSrc, port, true}, {perSrc, proto, true}, {perDst, host, true},
			{perFlow, host, false}, {perFlow, port, false}, {perFlow, proto, false}, {perFlow, tagged, true},
		} {
			if same := key(c.p, one) == key(c.p, c.o); same != c.same {
				t.Errorf("per=%s: %+v and %+v: same %v", perNames[c.p], one, c.o, same)
			}
		}
	}
	first := spec{src: 1, port: 9, payload: 40, isPart: true}
	later := first
	later.fragment = 6
	if key(perFlow, first) != key(perFlow, later) {
		t.Error("fragments of a datagram have different keys")
	}
}

// TestReconfigure: a change of rates keeps what was used up.
func TestReconfigure(t *testing.T) {
	args := graph.Args{"cir": "8kbit", "cbs": "1000", "pbs": "1000", "yellow": "drop"}
	x := graphtest.New(t, *Kind(), args)
	f := build(t, spec{payload: 72})
	for range 20 {
		x.Push("a", f)
	}
	if n := x.Counter("green"); n != 10 {
		t.Fatalf("%d are green", n)
	}
	if err := x.Set(graph.Args{"cir": "16kbit"}); err != nil {
		t.Fatal(err)
	}
	if x.Push("a", f); x.Counter("green") != 10 {
		t.Error("a new rate came with a new burst")
	}
	x.Advance(50 * time.Millisecond)
	if x.Push("a", f); x.Counter("green") != 11 {
		t.Error("the new rate is not reached")
	}
	if err := x.Set(graph.Args{"cir": "no"}); err == nil {
		t.Error("a bad rate was taken")
	}
	if p := x.App().(*police); p.Takes(graph.Args{"cir": "1Mbit", "per": "src"}) {
		t.Error("meters of a port are taken for those of keys")
	}
	if d := describe(x.App(), 0, [4]uint64{1, 5, 6}); d != "yellow; tokens left: 5 and 6 bits" {
		t.Error(d)
	}
}

func mixed(t testing.TB) (frames [][]byte) {
	for i := range 16 {
		frames = append(frames, build(t, spec{v6: i%2 == 1, tcp: i%4 > 1, tags: i % 3, src: byte(i), port: uint16(i), payload: 60, tos: 10 << 2}))
	}
	return append(frames, frames[0][:20], frames[1][:40])
}

func TestAllocs(t *testing.T) {
	for _, args := range []graph.Args{
		{"cir": "1Gbit", "green": "dscp:CS1"},
		{"cir": "1kbit", "pir": "1Mbit", "per": "flow", "flows": "8", "yellow": "dscp:AF12"},
		{"cir": "1kpps", "per": "src", "full": "drop", "aware": "af"},
	} {
		if n := graphtest.Allocs(t, *Kind(), args, "a", mixed(t)...); n != 0 {
			t.Errorf("%v: %v allocations a breath", args, n)
		}
	}
	if n := graphtest.Allocs(t, *ShapeKind(), graph.Args{"rate": "100Mbit", "queue": "16"}, "a", mixed(t)...); n != 0 {
		t.Errorf("shape: %v allocations a breath", n)
	}
}

func BenchmarkPolice(b *testing.B) {
	for _, p := range perNames {
		b.Run("per="+p, func(b *testing.B) {
			graphtest.Benchmark(b, *Kind(), graph.Args{"cir": "10Gbit", "pir": "20Gbit", "per": p, "green": "dscp:CS1", "yellow": "dscp:CS2"}, "a", mixed(b)[:16]...)
		})
	}
}

func BenchmarkShape(b *testing.B) {
	graphtest.Benchmark(b, *ShapeKind(), graph.Args{"rate": "1000Gbit"}, "a", mixed(b)[:16]...)
}

// FuzzPolice: no frame makes it panic, and of a frame that it changes only the
// DSCP is another, with an IPv4 header checksum that is right if it was.
func FuzzPolice(f *testing.F) {
	for _, b := range mixed(f) {
		f.Add(b)
	}
	f.Add(build(f, spec{isPart: true, fragment: 3, payload: 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > graphtest.SlotSize || len(b) == 0 {
			return
		}
		x := graphtest.New(t, *Kind(), graph.Args{"cir": "1Gbit", "cbs": "1M", "green": "dscp:63", "per": "flow", "flows": "8"})
		got := x.Push("a", b).Out["b"]
		if len(got) != 1 || len(got[0].Bytes) != len(b) {
			t.Fatalf("%d frames", len(got))
		}
		var d hdr.Layers
		ok := hdr.Walk(b, &d) && !d.Malformed()
		net := d.Family()
		if got[0].Reason != "marked" {
			if !bytes.Equal(got[0].Bytes, b) {
				t.Fatalf("changed and not marked")
			}
			return
		}
		if !ok || net == hdr.NetNone {
			t.Fatal("marked what is no datagram")
		}
		was, is := b[d.L3:], got[0].Bytes[d.L3:]
		for i := range was {
			v6 := net == hdr.NetIPv6
			if was[i] != is[i] && !(v6 && i < 2) && !(!v6 && (i == 1 || i == 10 || i == 11)) {
				t.Fatalf("byte %d changed", i)
			}
		}
		if net == hdr.NetIPv4 && hdr.IPv4(was).ChecksumOK() != hdr.IPv4(is).ChecksumOK() {
			t.Fatal("checksum")
		}
		if tos(was, net)&3 != tos(is, net)&3 || tos(is, net)>>2 != 63 {
			t.Fatal("ECN or DSCP")
		}
	})
}

// TestShape: frames leave in order, never faster than the rate and burst, and
// as fast as that.
func TestShape(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		mbit := rapid.IntRange(1, 1000).Draw(r, "mbit")
		burst := rapid.IntRange(1600, 60000).Draw(r, "burst")
		x := graphtest.New(t, *ShapeKind(), graph.Args{"rate": fmt.Sprint(mbit, "Mbit"), "burst": fmt.Sprint(burst), "queue": "64"})
		var sent, bits float64
		seq, next := uint16(0), -1
		begin := x.Clock.Now()
		out := 0
		take := func(res graphtest.Result) {
			for _, f := range res.Out["b"] {
				sent += float64(len(f.Bytes)) * 8
				n := int(f.Bytes[34])<<8 | int(f.Bytes[35])
				if n <= next {
					r.Fatalf("frame %d after %d", n, next)
				}
				next = n
				out++
			}
			bits = float64(burst)*8 + float64(mbit)*1e6*x.Clock.Now().Sub(begin).Seconds()
			if sent > bits+1e-3 {
				r.Fatalf("%.0f bits by %v, at most %.0f", sent, x.Clock.Now().Sub(begin), bits)
			}
		}
		dropped := 0
		for range rapid.IntRange(1, 40).Draw(r, "breaths") {
			for range rapid.IntRange(1, 8).Draw(r, "frames") {
				res := x.Push("a", build(t, spec{port: seq, payload: rapid.IntRange(20, 1400).Draw(r, "payload")}))
				dropped += len(res.Dropped)
				take(res)
				seq++
			}
			take(x.Advance(time.Duration(rapid.IntRange(0, 2_000_000).Draw(r, "gap"))))
		}
		held := x.Inst.Held()
		if out+dropped+held != int(seq) || held > 64 {
			r.Fatalf("%d in, %d out, %d dropped, %d wait", seq, out, dropped, held)
		}
		// What waits needs its bits' time, and a look at the queue.
		take(x.Advance(time.Duration(float64(held)*1500*8/float64(mbit)*1000) + 200*time.Microsecond))
		if out+dropped != int(seq) {
			r.Fatalf("%d of %d still wait", int(seq)-out-dropped, held)
		}
		if err := x.Inst.Close(); err != nil {
			r.Fatal(err)
		}
	})
}

func TestShapeRate(t *testing.T) {
	x := graphtest.New(t, *ShapeKind(), graph.Args{"rate": "80Mbit", "burst": "2000", "queue": "32"})
	f := build(t, spec{payload: 1000 - 42})
	bytes := 0
	for range 10_000 {
		for _, g := range x.Push("a", f, f).Out["b"] {
			bytes += len(g.Bytes)
		}
		for _, g := range x.Advance(100 * time.Microsecond).Out["b"] {
			bytes += len(g.Bytes)
		}
	}
	if want := 10_000_000 + 2000; bytes > want || bytes < want-2000 {
		t.Errorf("%d bytes in 1 s, want %d", bytes, want)
	}
	if x.Counter("queue-full") == 0 || x.Counter("queued") != 31 {
		t.Errorf("%d dropped, %d wait", x.Counter("queue-full"), x.Counter("queued"))
	}
	// What waits goes when it is not shaped any more.
	if err := x.Set(graph.Args{"on": "b"}); err != nil {
		t.Fatal(err)
	}
	if got := x.Advance(time.Millisecond).Out["b"]; len(got) != 31 {
		t.Errorf("%d go, want 31", len(got))
	}
	if got := x.Push("a", f).Out["b"]; len(got) != 1 || got[0].Reason != "not-shaped" {
		t.Errorf("%v", got)
	}
}

func TestShapeBounds(t *testing.T) {
	x := graphtest.New(t, *ShapeKind(), graph.Args{"rate": "1pps", "burst": "1", "queue": "4", "queue-bytes": "250"})
	f := build(t, spec{payload: 100 - 42})
	if got := x.Push("a", f, f, f, f); len(got.Out["b"]) != 1 || len(got.Dropped) != 1 || got.Dropped[0].Reason != "queue-full" {
		t.Errorf("%+v", got)
	}
	if n := x.Counter("queued-bytes"); n != 200 {
		t.Errorf("%d bytes wait", n)
	}
	x = graphtest.New(t, *ShapeKind(), graph.Args{"rate": "1Mbit", "burst": "99"})
	if got := x.Push("a", f); len(got.Dropped) != 1 || got.Dropped[0].Reason != "over-burst" {
		t.Errorf("%+v", got)
	}
	// A burst that becomes smaller than what waits does not hold it for ever.
	x = graphtest.New(t, *ShapeKind(), graph.Args{"rate": "1Mbit", "burst": "100"})
	x.Push("a", f, f)
	if err := x.Set(graph.Args{"burst": "50"}); err != nil {
		t.Fatal(err)
	}
	if got := x.Advance(time.Millisecond).Out["b"]; len(got) != 1 {
		t.Errorf("%+v", got)
	}
}
