package balance

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	"github.com/quillon/quillon/nf/table"
)

// seg is a segment that gopacket makes.
type seg struct {
	tcp, nosum       bool
	tags             int
	dstMAC, srcMAC   byte // last byte of 02:00:00:00:00:xx
	src, dst         string
	sport, dport     uint16
	payload          string
	proto            layers.IPProtocol // other than TCP and UDP
	moreFragments    bool
	withoutTransport bool
}

func build(t testing.TB, s seg) []byte {
	t.Helper()
	mac := func(x byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, x} }
	src, dst := net.ParseIP(s.src), net.ParseIP(s.dst)
	v4 := src.To4() != nil
	all := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: mac(s.srcMAC), DstMAC: mac(s.dstMAC)}}
	for i := range s.tags {
		all = append(all, &layers.Dot1Q{VLANIdentifier: uint16(10 + i)})
	}
	proto := layers.IPProtocolUDP
	if s.tcp {
		proto = layers.IPProtocolTCP
	}
	if s.proto != 0 {
		proto = s.proto
	}
	if v4 {
		ip := &layers.IPv4{IHL: 5, TOS: 3, Id: 7, TTL: 64, Protocol: proto, SrcIP: src.To4(), DstIP: dst.To4()}
		if s.moreFragments {
			ip.Flags = layers.IPv4MoreFragments
		}
		all = append(all, ip)
	} else {
		all = append(all, &layers.IPv6{TrafficClass: 3, NextHeader: proto, HopLimit: 64, SrcIP: src, DstIP: dst})
	}
	switch {
	case s.withoutTransport:
	case s.tcp:
		all = append(all, &layers.TCP{SrcPort: layers.TCPPort(s.sport), DstPort: layers.TCPPort(s.dport), ACK: true, Window: 1000})
	default:
		all = append(all, &layers.UDP{SrcPort: layers.UDPPort(s.sport), DstPort: layers.UDPPort(s.dport)})
	}
	all = append(all, gopacket.Payload(s.payload))
	b := hdrtest.Build(t, all...)
	if s.nosum {
		at := 14 + 4*s.tags + 20 + 6
		b[at], b[at+1] = 0, 0
	}
	return b
}

const vip4, vip6 = "10.0.0.100", "2001:db8::100"

// args with n backends of each family: 10.0.0.i and 2001:db8::i at
// 02:00:00:00:00:i, from 1.
func args(n int) graph.Args {
	var all []string
	for i := 1; i <= n; i++ {
		all = append(all, fmt.Sprintf("10.0.0.%d@02:00:00:00:00:%02x", i, i), fmt.Sprintf("2001:db8::%x@02:00:00:00:00:%02x", i, i))
	}
	return graph.Args{"vip": vip4 + "+" + vip6, "port": "80", "mac": "02:00:00:00:00:64", "size": "4099", "backends": strings.Join(all, "+")}
}

func request(v6, tcp bool, client int) seg {
	s := seg{tcp: tcp, srcMAC: 200, dstMAC: 100, src: fmt.Sprintf("192.168.%d.%d", client>>8, client&255), dst: vip4, sport: uint16(1000 + client), dport: 80, payload: "hello"}
	if v6 {
		s.src, s.dst = fmt.Sprintf("2001:db8:1::%x", client), vip6
	}
	return s
}

// backendOf is the number of the backend that a frame goes to.
func backendOf(b []byte) int { return int(b[5]) }

// TestThereAndBack: requests and answers are byte for byte what gopacket makes
// with the other addresses, and tshark finds no fault in them.
func TestThereAndBack(t *testing.T) {
	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	x := graphtest.New(t, *Kind(), args(3))
	n := 0
	check := func(in, out, reason string, was, want []byte) {
		t.Helper()
		got := x.Push(in, was).Out[out]
		if len(got) != 1 || !bytes.Equal(got[0].Bytes, want) || got[0].Reason != reason {
			t.Fatalf("%s: %x, want %x", reason, got, want)
		}
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(want), Length: len(want)}, got[0].Bytes); err != nil {
			t.Fatal(err)
		}
		n++
	}
	used := map[int]bool{}
	for client := range 60 {
		s := request(client%2 == 1, client%4 > 1, client)
		s.tags = client % 3
		s.payload = strings.Repeat("x", client)
		s.nosum = client%8 == 0
		var d hdr.Layers
		was := build(t, s)
		if !hdr.Walk(was, &d) || d.Malformed() {
			t.Fatal("does not parse")
		}
		// The app says which backend; all else is known.
		first := x.Push("a", was).Out["b"]
		if len(first) != 1 {
			t.Fatalf("%d frames", len(first))
		}
		who := backendOf(first[0].Bytes)
		used[who] = true
		s.dstMAC, s.dst = byte(who), fmt.Sprintf("10.0.0.%d", who)
		if client%2 == 1 {
			s.dst = fmt.Sprintf("2001:db8::%x", who)
		}
		check("a", "b", "to-backend", was, build(t, s))
		s.src, s.dst, s.sport, s.dport = s.dst, s.src, s.dport, s.sport
		s.srcMAC, s.dstMAC = s.dstMAC, s.srcMAC
		was = build(t, s)
		s.src, s.srcMAC = vip4, 100
		if client%2 == 1 {
			s.src = vip6
		}
		check("b", "a", "from-backend", was, build(t, s))
	}
	if len(used) != 3 {
		t.Errorf("%d backends of 3 are used", len(used))
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	name := filepath.Join(t.TempDir(), "balanced.pcap")
	if err := os.WriteFile(name, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-n", "-r", name, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE",
		"-Y", "(ip || ipv6) && (udp || tcp) && !(ip.checksum.status == 0) && !(udp.checksum.status == 0) && !(tcp.checksum.status == 0)").Output()
	if err != nil {
		t.Fatal(err)
	}
	if k := bytes.Count(out, []byte("\n")); k != n {
		t.Errorf("tshark finds %d of %d frames good", k, n)
	}
}

func backends(n int, weight func(i int) uint16) (all []backend) {
	for i := range n {
		all = append(all, backend{addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), weight: weight(i)})
	}
	return all
}

func one(int) uint16 { return 1 }

// TestBalance: with equal weights, places differ by one at most; with others,
// they are as the weights.
func TestBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "backends")
		equal := rapid.Bool().Draw(t, "equal")
		weights := rapid.SliceOfN(rapid.Uint16Range(1, 10), n, n).Draw(t, "weights")
		all := backends(n, func(i int) uint16 {
			if equal {
				return 1
			}
			return weights[i]
		})
		l := make(lookup, 4099)
		l.populate(all, hdr.NetIPv4)
		places, sum := make([]int, n), 0
		for _, i := range l {
			places[i]++
		}
		for _, b := range all {
			sum += int(b.weight)
		}
		for i, p := range places {
			// After so many whole rounds a backend has its share of them, less one
			// turn at most; all together lack up to a turn each.
			want := float64(len(l)) * float64(all[i].weight) / float64(sum)
			if d := float64(p) - want; d > 1+float64(n)*float64(all[i].weight)/float64(sum) || d < -2 {
				t.Fatalf("backend %d of weight %d has %d places, want %.1f", i, all[i].weight, p, want)
			}
		}
		if equal && slices.Max(places)-slices.Min(places) > 1 {
			t.Fatalf("backends of equal weight have from %d to %d places", slices.Min(places), slices.Max(places))
		}
		// The order in which backends are given means nothing.
		order := rapid.Permutation(all).Draw(t, "order")
		k := make(lookup, len(l))
		k.populate(order, hdr.NetIPv4)
		for i := range l {
			if all[l[i]].addr != order[k[i]].addr {
				t.Fatalf("place %d depends on the order", i)
			}
		}
	})
}

// TestDisruption: when a backend goes, few places of others change; the paper's
// figure 12 has at most a few percent at 65537 places.
func TestDisruption(t *testing.T) {
	all := backends(100, one)
	was, is := make(lookup, 65537), make(lookup, 65537)
	was.populate(all, hdr.NetIPv4)
	worst := 0
	for gone := 0; gone < len(all); gone += 10 {
		all[gone].state = down
		is.populate(all, hdr.NetIPv4)
		all[gone].state = up
		changed := 0
		for i := range was {
			if int(is[i]) == gone {
				t.Fatal("a backend that is down has places")
			}
			if was[i] != is[i] && int(was[i]) != gone {
				changed++
			}
		}
		worst = max(worst, changed)
	}
	share := float64(worst) / 65537
	t.Logf("at most %.2f %% of the places of others change", 100*share)
	if share > 0.02 {
		t.Errorf("%.2f %% of the places of others change", 100*share)
	}
}

// TestEstablished: connections stay where they are while their backend is there
// and not down, whatever happens to others.
func TestEstablished(t *testing.T) {
	a := args(5)
	x := graphtest.New(t, *Kind(), a)
	const clients = 400
	at := make([]int, clients)
	push := func(i int) int {
		got := x.Push("a", build(t, request(i%2 == 1, i%4 > 1, i))).Out["b"]
		if len(got) != 1 {
			t.Fatalf("client %d: %d frames", i, len(got))
		}
		return backendOf(got[0].Bytes)
	}
	for i := range at {
		at[i] = push(i)
	}
	set := func(v string) {
		t.Helper()
		if err := x.Set(graph.Args{"backends": v}); err != nil {
			t.Fatal(err)
		}
	}
	// New ones come, in front of the others, and one drains.
	set("10.0.0.9@02:00:00:00:00:09*50+2001:db8::9@02:00:00:00:00:09*50+" + strings.Replace(a["backends"], "00:03+", "00:03/drain+", 2))
	for i := range at {
		if who := push(i); who != at[i] {
			t.Fatalf("client %d moved from %d to %d", i, at[i], who)
		}
	}
	fresh := 0
	for i := clients; i < clients+200; i++ {
		switch push(i) {
		case 9:
			fresh++
		case 3:
			t.Fatal("a new connection for a backend that drains")
		}
	}
	if fresh < 150 {
		t.Errorf("the heaviest backend got %d of 200", fresh)
	}
	// 2 is down and 3 is gone: theirs move, and stay.
	var left []string
	for v := range strings.SplitSeq(a["backends"], "+") {
		if strings.HasSuffix(v, ":02") {
			v += "/down"
		}
		if !strings.HasSuffix(v, ":03") {
			left = append(left, v)
		}
	}
	set(strings.Join(left, "+"))
	for i := range at {
		who := push(i)
		if lost := at[i] == 2 || at[i] == 3; lost == (who == at[i]) || who == 2 || who == 3 {
			t.Fatalf("client %d went from %d to %d", i, at[i], who)
		}
	}
	if x.Counter("forgotten") == 0 {
		t.Error("nothing was forgotten")
	}
	// None is left.
	set("none")
	if got := x.Push("a", build(t, request(false, true, 1))); len(got.Dropped) != 1 || got.Dropped[0].Reason != "no-backend" {
		t.Errorf("%+v", got)
	}
}

// TestFull: connections without a place go where the table says, both ways; an
// idle one makes room.
func TestFull(t *testing.T) {
	a := args(3)
	a["conns"], a["idle"] = "8", "1s"
	x := graphtest.New(t, *Kind(), a)
	for i := range 20 {
		s := request(false, true, i)
		got := x.Push("a", build(t, s)).Out["b"]
		who := backendOf(got[0].Bytes)
		back := seg{tcp: true, src: fmt.Sprintf("10.0.0.%d", who), dst: s.src, sport: 80, dport: s.sport, srcMAC: byte(who), dstMAC: 200}
		if got := x.Push("b", build(t, back)).Out["a"]; len(got) != 1 || got[0].Reason != "from-backend" {
			t.Errorf("client %d: %+v", i, got)
		}
		back.src = fmt.Sprintf("10.0.0.%d", who%3+1) // not the one
		was := build(t, back)
		if got := x.Push("b", was).Out["a"]; len(got) != 1 || got[0].Reason != "foreign" || !bytes.Equal(got[0].Bytes, was) {
			t.Errorf("client %d: %+v", i, got)
		}
	}
	if c, u := x.Counter("connections"), x.Counter("untracked"); c != 16 || u != 4 {
		t.Errorf("%d are tracked, %d not", c, u)
	}
	x.Advance(1001 * time.Millisecond)
	if x.Push("a", build(t, request(false, true, 99))); x.Counter("connections") != 17 {
		t.Error("no room where all are idle")
	}
}

// TestPassed: what is not of the service passes as it is.
func TestPassed(t *testing.T) {
	x := graphtest.New(t, *Kind(), args(2))
	with := func(change func(*seg)) []byte {
		s := request(false, true, 1)
		change(&s)
		return build(t, s)
	}
	good := with(func(*seg) {})
	options := bytes.Clone(good) // four bytes of options where the TCP header was
	options[14] = 0x46
	copy(options[34:], []byte{1, 1, 1, 0})
	for i, c := range []struct {
		reason string
		in     string
		frame  []byte
	}{
		{"not-balanced", "a", with(func(s *seg) { s.dport = 81 })},
		{"not-balanced", "a", with(func(s *seg) { s.dst = "10.0.0.101" })},
		{"not-balanced", "a", with(func(s *seg) { s.proto, s.withoutTransport = layers.IPProtocolICMPv4, true })},
		{"not-balanced", "b", with(func(*seg) {})},
		{"not-balanced", "b", with(func(s *seg) { s.src = "10.0.0.1" })},
		{"not-balanced", "a", options},
		{"fragment", "a", with(func(s *seg) { s.moreFragments = true })},
		{"malformed", "a", with(func(s *seg) { s.withoutTransport = true; s.payload = "too short" })},
		{"malformed", "a", good[:40]},
		{"not-balanced", "a", append(bytes.Clone(good[:12]), 8, 6, 0, 1)},
	} {
		out := map[string]string{"a": "b", "b": "a"}[c.in]
		got := x.Push(c.in, c.frame).Out[out]
		if len(got) != 1 || got[0].Reason != c.reason || !bytes.Equal(got[0].Bytes, c.frame) {
			t.Errorf("%d: %+v, want %s", i, got, c.reason)
		}
	}
}

// TestTables: the tables are the argument, and back.
func TestTables(t *testing.T) {
	a := table.Args(args(3))
	a["backends"] += "+10.0.0.9@02:00:00:00:00:09*7/drain"
	for i, d := range tables() {
		rows := d.Setting.Of(a)
		if len(rows.Entries) != 4-i {
			t.Fatalf("%s has %d entries", d.Name, len(rows.Entries))
		}
		if i == 0 {
			e := &rows.Entries[3]
			if text := d.KeyText(e); !strings.Contains(text, "10.0.0.9") || e.Action != int(drain) || e.Params[1].Lo != 7 {
				t.Errorf("%s: %+v", text, e)
			}
		}
		c := table.Change{Op: table.Modify, Entry: *rows.Entries[0].Clone()}
		c.Action = int(down)
		if err := d.Check(&c); err != nil {
			t.Fatal(err)
		}
		if err := d.Do(&rows, &c); err != nil {
			t.Fatal(err)
		}
		out, err := d.Setting.Set(a, rows)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parse(graph.Args{"vip": vip4, "port": "80", "backends": out["backends"]})
		if err != nil || len(s.backends) != 7 {
			t.Fatalf("%v, %v", s.backends, err)
		}
		downs := 0
		for _, b := range s.backends {
			if b.state == down {
				downs++
			}
		}
		if downs != 1 {
			t.Errorf("%d are down: %s", downs, out["backends"])
		}
		rows.Entries[0].Params[1] = table.Uint(0)
		if _, err := d.Setting.Set(a, rows); err == nil {
			t.Error("a weight of 0 is taken")
		}
		if out, err := d.Setting.Set(table.Args{"vip": vip4, "port": "80"}, table.Rows{}); err != nil || out["backends"] != "none" {
			t.Errorf("%v, %v", out, err)
		}
	}
}

func TestArguments(t *testing.T) {
	ok := func(more graph.Args) graph.Args {
		a := graph.Args{"vip": vip4, "port": "80"}
		for k, v := range more {
			a[k] = v
		}
		return a
	}
	for want, a := range map[string]graph.Args{
		"vip= is missing":    {"port": "80"},
		"port= is missing":   {"vip": vip4},
		"one address":        ok(graph.Args{"vip": "10.0.0.1+10.0.0.2"}),
		"of a host":          ok(graph.Args{"vip": "224.0.0.1"}),
		"port=0":             ok(graph.Args{"port": "0"}),
		"ICRC":               ok(graph.Args{"port": "4791"}),
		"prime":              ok(graph.Args{"size": "65536"}),
		"conns=0":            ok(graph.Args{"conns": "0"}),
		"idle=0s":            ok(graph.Args{"idle": "0s"}),
		"twice":              ok(graph.Args{"backends": "10.0.0.1@02:00:00:00:00:01+10.0.0.1@02:00:00:00:00:02"}),
		"weight":             ok(graph.Args{"backends": "10.0.0.1@02:00:00:00:00:01*0"}),
		"none of up":         ok(graph.Args{"backends": "10.0.0.1@02:00:00:00:00:01/ill"}),
		"MAC address":        ok(graph.Args{"backends": "10.0.0.1@01:00:00:00:00:01"}),
		"the IP address":     ok(graph.Args{"backends": "host@02:00:00:00:00:01"}),
		"cannot be a backen": ok(graph.Args{"backends": vip4 + "@02:00:00:00:00:01"}),
		"fewer places":       ok(graph.Args{"size": "3", "backends": args(2)["backends"]}),
		"no argument":        ok(graph.Args{"x": ""}),
	} {
		if _, err := Kind().New(graph.Env{}, a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", a, err, want)
		}
	}
}

func mixed(t testing.TB) (frames [][]byte) {
	for i := range 32 {
		s := request(i%2 == 1, i%4 > 1, i)
		s.tags = i % 3
		frames = append(frames, build(t, s))
	}
	return frames
}

func TestAllocs(t *testing.T) {
	a := args(3)
	for _, n := range []string{"8", "1024"} {
		a["conns"] = n
		for _, in := range []string{"a", "b"} {
			frames := append(mixed(t), mixed(t)[0][:40])
			for i := range 3 {
				frames = append(frames, build(t, seg{tcp: true, src: fmt.Sprintf("10.0.0.%d", i+1), dst: "192.168.0.1", sport: 80, dport: 1001}))
			}
			if n := graphtest.Allocs(t, *Kind(), a, in, frames...); n != 0 {
				t.Errorf("port %s, %s places: %v allocations a breath", in, a["conns"], n)
			}
		}
	}
}

func BenchmarkBalance(b *testing.B) {
	graphtest.Benchmark(b, *Kind(), args(8), "a", mixed(b)...)
}

// BenchmarkPopulate is what a change of backends costs.
func BenchmarkPopulate(b *testing.B) {
	l, all := make(lookup, 65537), backends(100, one)
	for b.Loop() {
		l.populate(all, hdr.NetIPv4)
	}
}

// sums reports whether gopacket, which decodes and serialises the frame anew,
// gets its checksums; false, too, when it cannot.
func sums(b []byte) bool {
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	if p.ErrorLayer() != nil || p.NetworkLayer() == nil || p.TransportLayer() == nil {
		return false
	}
	var all []gopacket.SerializableLayer
	for _, l := range p.Layers() {
		s, ok := l.(gopacket.SerializableLayer)
		if !ok {
			return false
		}
		switch l := l.(type) {
		case *layers.TCP:
			_ = l.SetNetworkLayerForChecksum(p.NetworkLayer())
		case *layers.UDP:
			_ = l.SetNetworkLayerForChecksum(p.NetworkLayer())
		}
		all = append(all, s)
	}
	out := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{ComputeChecksums: true}, all...); err != nil {
		return false
	}
	return bytes.HasPrefix(b, out.Bytes()) || bytes.Equal(out.Bytes(), b)
}

// FuzzBalance: no frame makes it panic; what is right before is right behind,
// and nothing but addresses and checksums is changed.
func FuzzBalance(f *testing.F) {
	for _, b := range mixed(f) {
		f.Add(b, true)
	}
	f.Add(build(f, seg{tcp: true, src: "10.0.0.1", dst: "192.168.0.1", sport: 80, dport: 1001}), false)
	f.Add(build(f, seg{src: "2001:db8::1", dst: "2001:db8:1::1", sport: 80, dport: 1001, tags: 2}), false)
	f.Fuzz(func(t *testing.T, b []byte, toBackend bool) {
		if len(b) == 0 || len(b) > graphtest.SlotSize {
			return
		}
		in, out := "b", "a"
		if toBackend {
			in, out = "a", "b"
		}
		x := graphtest.New(t, *Kind(), args(1))
		got := x.Push(in, b).Out[out]
		if len(got) != 1 || len(got[0].Bytes) != len(b) {
			t.Fatalf("%d frames", len(got))
		}
		g := got[0]
		if g.Reason != "to-backend" && g.Reason != "from-backend" {
			if !bytes.Equal(g.Bytes, b) {
				t.Fatal("changed, and not said so")
			}
			return
		}
		if sums(b) && !sums(g.Bytes) {
			t.Fatalf("checksums\n%x\n%x", b, g.Bytes)
		}
		var was, is hdr.Layers
		if !hdr.Walk(b, &was) || was.Malformed() || !hdr.Walk(g.Bytes, &is) || was != is {
			t.Fatalf("%+v became %+v", was, is)
		}
		if rest := int(is.L4) + 18; rest < len(b) && !bytes.Equal(b[rest:], g.Bytes[rest:]) {
			t.Fatal("payload")
		}
	})
}

// TestSpread: connections, by their hash, spread over places as chance has it.
func TestSpread(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	count := make([]int, 16)
	for range 16000 {
		k := connKey{net: hdr.NetIPv4, proto: 6, port: uint16(r.IntN(60000))}
		k.client[3] = byte(r.IntN(256))
		count[k.hash()>>32&15]++
	}
	chi := 0.0
	for _, n := range count {
		chi += float64((n-1000)*(n-1000)) / 1000
	}
	if chi > 45 { // 15 degrees of freedom: less than 1 in 10,000
		t.Errorf("chi square is %.1f: %v", chi, count)
	}
}
