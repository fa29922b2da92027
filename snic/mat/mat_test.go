package mat

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/hdr"
)

// udp is a frame of 64 bytes: Ethernet, with a tag if vid is not 0, IPv4 or IPv6,
// UDP.
func udp(six bool, vid uint16, src, dst uint32, sport, dport uint16) []byte {
	b := make([]byte, 0, 96)
	b = append(b, make([]byte, 12)...)
	if vid != 0 {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, hdr.EtherVLAN), vid)
	}
	if six {
		b = binary.BigEndian.AppendUint16(b, hdr.EtherIPv6)
		b = append(b, 0x60, 0, 0, 0, 0, 18, hdr.ProtoUDP, 64)
		for _, a := range []uint32{src, dst} {
			b = append(b, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
			b = binary.BigEndian.AppendUint32(b, a)
		}
	} else {
		b = binary.BigEndian.AppendUint16(b, hdr.EtherIPv4)
		b = append(b, 0x45, 0, 0, 38, 0, 0, 0, 0, 64, hdr.ProtoUDP, 0, 0)
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, src), dst)
	}
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, sport), dport)
	return append(b, 0, 18, 0, 0, 8, 0, 0, 0, 0, 0, 5, 0, 0, 0)
}

func rules(t testing.TB, lines ...string) []Rule {
	t.Helper()
	var out []Rule
	for i, s := range lines {
		in, m, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, Rule{In: in, Match: m, Road: Tasks, DAG: i})
	}
	return out
}

func (t *Table) of(b []byte, in uint16, forward bool) Flow {
	var l hdr.Layers
	hdr.Walk(b, &l)
	return t.Lookup(b, in, forward, &l)
}

// each is the first rule that holds, of all, looked at one by one.
func (t *Table) each(b []byte, in uint16, forward bool, l *hdr.Layers) int32 {
	for i, r := range t.rules {
		m := r.Match
		if !forward {
			m = m.Reverse()
		}
		if (r.In == Any || r.In == int(in)) && m.Holds(b, l) {
			return int32(i)
		}
	}
	return -1
}

func TestRules(t *testing.T) {
	tab := New(1024)
	list := rules(t, "src:0.0.0.10+dport:80", "in:3", "vlan:7", "all+in:2", "dst:fd00::1")
	list[2].Priority = 5
	tab.Set(list)
	for i, x := range []struct {
		frame   []byte
		in      uint16
		forward bool
		want    int // the rule's DAG; -1: none
	}{
		{udp(false, 0, 10, 20, 1000, 80), 0, true, 0},
		{udp(false, 0, 20, 10, 80, 1000), 0, true, -1},
		{udp(false, 0, 20, 10, 80, 1000), 1, false, 0}, // the way back
		{udp(false, 0, 10, 20, 1000, 80), 1, false, -1},
		{udp(false, 0, 10, 20, 1000, 81), 3, true, 1},
		{udp(false, 7, 10, 20, 1000, 80), 0, true, 2}, // of a higher priority
		{udp(false, 7, 10, 20, 1000, 80), 3, true, 2},
		{udp(false, 8, 1, 2, 1, 1), 2, true, 3},
		{udp(true, 0, 9, 1, 1, 1), 0, true, 4},
		{udp(true, 0, 1, 9, 1, 1), 0, true, -1},
		{make([]byte, 60), 2, true, 3},
		{make([]byte, 60), 0, true, -1},
		{make([]byte, 3), 0, true, -1},
	} {
		for range 2 { // scanned, then remembered
			got := -1
			if f := tab.of(x.frame, x.in, x.forward); f.Rule >= 0 {
				got = tab.Rules()[f.Rule].DAG
			}
			if got != x.want {
				t.Errorf("%d: rule %d, want %d", i, got, x.want)
			}
		}
	}
	if tab.Hits < 13 || tab.Hits+tab.Misses != 26 {
		t.Errorf("%d hits, %d misses", tab.Hits, tab.Misses)
	}
	tab.Set(nil)
	if f := tab.of(udp(false, 0, 10, 20, 1000, 80), 0, true); f.Rule != -1 {
		t.Error("what was decided by old rules was remembered")
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]string{
		"in:1+in:2": "in:2: want one port, a number of 16 bits",
		"in:x":      "in:x: want one port, a number of 16 bits",
		"in:70000":  "in:70000: want one port, a number of 16 bits",
		"proto:x":   "proto:x: want a number of 8 bits",
	} {
		if _, _, err := Parse(s); err == nil || err.Error() != want {
			t.Errorf("%s: %v", s, err)
		}
	}
	if in, m, err := Parse("in:1+proto:6"); in != 1 || m.String() != "proto:6" || err != nil {
		t.Error(in, m, err)
	}
}

// Whatever is remembered, the decision is that of a scan; both directions of a
// flow have one hash.
func TestRemembered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := New(8) // far fewer than flows
		var list []Rule
		for i := range rapid.IntRange(0, 6).Draw(t, "rules") {
			text := rapid.SampledFrom([]string{"all", "none", "vlan:1", "src:0.0.0.1", "dst:0.0.0.0/31", "dport:4789", "qpn:0x500", "vni:0", "src:fd00::2", "sport:1-3", "proto:17+in:1"}).Draw(t, "rule")
			in, m, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, Rule{Priority: rapid.IntRange(0, 2).Draw(t, "priority"), In: in, Match: m, DAG: i})
		}
		tab.Set(list)
		small := rapid.Uint32Range(0, 3)
		port := rapid.SampledFrom([]uint16{1, 2, 4789, 4791})
		for range 100 {
			six, vid := rapid.Bool().Draw(t, "six"), rapid.Uint16Range(0, 2).Draw(t, "vid")
			src, dst, sport, dport := small.Draw(t, "src"), small.Draw(t, "dst"), port.Draw(t, "sport"), port.Draw(t, "dport")
			f := udp(six, vid, src, dst, sport, dport)
			in := rapid.Uint16Range(0, 1).Draw(t, "in")
			var l hdr.Layers
			hdr.Walk(f, &l)
			got, want := tab.Lookup(f, in, in == 0, &l), tab.each(f, in, in == 0, &l)
			if got.Rule != want {
				t.Fatalf("rule %d, a scan says %d", got.Rule, want)
			}
			if back := tab.of(udp(six, vid, dst, src, dport, sport), 1-in, in == 1); back.Hash != got.Hash {
				t.Fatalf("hash %x one way, %x the other", got.Hash, back.Hash)
			}
		}
	})
}

// Flows that differ in little spread over the table and over instances.
func TestSpread(t *testing.T) {
	tab := New(1 << 16)
	var by [8]int
	const n = 1 << 14
	for i := range uint32(n) {
		f := tab.of(udp(false, 0, 0x0a000000+i>>4, 0x0a010000+i&15, 1000, 80), 0, true)
		by[f.Hash>>61]++
	}
	for i := range uint32(n) {
		tab.of(udp(false, 0, 0x0a000000+i>>4, 0x0a010000+i&15, 1000, 80), 0, true)
	}
	if tab.Hits < n*97/100 {
		t.Errorf("%d of %d flows were remembered in a table four times as large", tab.Hits, n)
	}
	for _, k := range by {
		if k < n/8*9/10 || k > n/8*11/10 {
			t.Errorf("spread over instances: %v", by)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	tab := New(16)
	tab.Set(rules(t, "src:0.0.0.10+dport:80", "all"))
	i := uint32(0)
	if k := testing.AllocsPerRun(1000, func() {
		i++
		b := [64]byte{}
		var l hdr.Layers
		hdr.Walk(b[:], &l)
		tab.Lookup(b[:], uint16(i), true, &l)
	}); k != 0 {
		t.Errorf("%v allocations", k)
	}
}

func FuzzLookup(f *testing.F) {
	f.Add(udp(false, 3, 1, 2, 3, 4791))
	f.Add(udp(true, 0, 1, 2, 3, 4789))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x89\x4f\x0f\xc2\x02\x03\x00\x00\x07\xff"))
	list := rules(f, "vlan:3", "vni:5", "qpn:1280", "nsh:7", "sport:3", "in:1+proto:17", "type:0x800")
	f.Fuzz(func(t *testing.T, b []byte) {
		tab := New(4)
		tab.Set(list)
		var l hdr.Layers
		if !hdr.Walk(b, &l) {
			return
		}
		for range 2 {
			if got, want := tab.Lookup(b, 0, true, &l).Rule, tab.each(b, 0, true, &l); got != want {
				t.Fatalf("rule %d, a scan says %d", got, want)
			}
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	for _, flows := range []int{64, 100_000} {
		b.Run(fmt.Sprint(flows), func(b *testing.B) {
			tab := New(2 * flows)
			tab.Set(rules(b, "src:0.0.0.10+dport:80", "src:10.0.0.0/8"))
			frames := make([][]byte, flows)
			for i := range frames {
				frames[i] = udp(false, 0, 0x0a000000+rand.Uint32N(1<<24), 0x0a010000, uint16(i), 80)
			}
			b.ReportAllocs()
			for i := range b.N {
				var l hdr.Layers
				p := frames[i%flows]
				hdr.Walk(p, &l)
				tab.Lookup(p, 0, true, &l)
			}
		})
	}
}

// TestForgotten: what was decided before the rules changed is never found again,
// also where a place that is in use and an empty one have almost the same tag.
func TestForgotten(t *testing.T) {
	tab := New(4) // one set
	var alike [][]byte
	var l hdr.Layers
	for src := uint32(1); len(alike) < 3; src++ {
		b := udp(false, 0, src, 1, 1, 1)
		hdr.Walk(b, &l)
		var k key
		k.fields(b, 0, &l)
		if k.hash()>>48 <= 1 {
			alike = append(alike, b)
		}
	}
	tab.Set(rules(t, "vlan:1", "all"))
	tab.of(alike[0], 0, true)
	if f := tab.of(alike[1], 0, true); f.Rule != 1 {
		t.Fatal(f)
	}
	tab.Set(nil)
	tab.of(alike[2], 0, true)
	if f := tab.of(alike[1], 0, true); f.Rule != -1 {
		t.Errorf("rule %d, and there is none", f.Rule)
	}
}

// TestNoHeader: a frame whose IP header does not fit is not one of zeros.
func TestNoHeader(t *testing.T) {
	tab := New(4)
	tab.Set(rules(t, "dst:0.0.0.0/0"))
	whole := append(make([]byte, 12), 8, 0, 0x45, 0, 0, 20)
	whole = append(whole, make([]byte, 40)...)
	broken := append(make([]byte, 12), 8, 0)
	broken = append(broken, make([]byte, 46)...)
	for range 2 {
		if f := tab.of(broken, 0, true); f.Rule != -1 {
			t.Error("the rule holds for a frame without a header")
		}
		if f := tab.of(whole, 0, true); f.Rule != 0 {
			t.Error("the rule does not hold for a header of zeros")
		}
	}
}

func TestPriority(t *testing.T) {
	tab := New(4)
	tab.Set([]Rule{{Priority: math.MinInt, In: Any, DAG: 1}, {Priority: math.MaxInt, In: Any, DAG: 2}})
	if r := tab.Rules(); r[0].DAG != 2 {
		t.Errorf("the rule of the least priority is first: %+v", r)
	}
}

// TestNoPorts: of what has no ports, and of fragments, all frames between two hosts
// are a flow, whatever is where ports would be.
func TestNoPorts(t *testing.T) {
	for name, change := range map[string]func(b []byte){
		"ICMP":     func(b []byte) { b[23] = 1 },
		"fragment": func(b []byte) { b[21] = 1 },
	} {
		hashes := map[uint64]bool{}
		for i := range uint16(4) {
			b := udp(false, 0, 7, 8, i, 3*i+1)
			if i&1 == 1 {
				b = udp(false, 0, 8, 7, i, 3*i+1)
			}
			b[0], b[3] = byte(i), byte(i)
			change(b)
			var l hdr.Layers
			hdr.Walk(b, &l)
			hashes[Hash(b, &l)] = true
		}
		if len(hashes) != 1 {
			t.Errorf("%s: %d flows", name, len(hashes))
		}
	}
}

// TestUsual compares Usual with Ahead after a Walk.
func TestUsual(t *testing.T) {
	table := New(64)
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 20_000 {
		b := udp(false, 0, r.Uint32(), r.Uint32(), uint16(r.Uint32()), []uint16{uint16(r.Uint32()), hdr.PortVXLAN, hdr.RoCEv2Port, 80}[r.IntN(4)])
		if n%2 == 0 {
			b[23] = hdr.ProtoTCP
		}
		for i := range b[42:] {
			b[42+i] = byte(r.Uint32())
		}
		var want, got Ask
		if !hdr.Walk(b, &want.Layers) {
			t.Fatalf("%x", b)
		}
		in := uint16(r.IntN(8))
		table.Ahead(&want, b, in)
		end, proto, ok := hdr.Usual(b)
		if !ok {
			t.Fatalf("%x is not usual", b)
		}
		got.key[1], got.key[3] = 7, 7 // of a frame before
		if table.Usual(&got, b, in, end, proto); got != want {
			t.Fatalf("%x: %+v, want %+v", b, got, want)
		}
	}
}
