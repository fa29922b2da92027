package merge

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/hdr"
)

// word is two bytes of a frame that a task may write, and where checksums are that
// cover them.
type word struct {
	at   int
	sums []int
}

// laid is a frame and its words by field: what Find is to find by itself.
type laid struct {
	b     []byte
	words map[effect.Field][]word
	udp   map[int]bool // checksums that are UDP's
	icrc  int
}

func (l *laid) add(f effect.Field, from, to int, sums ...int) {
	for at := from; at+2 <= to; at += 2 {
		l.words[f] = append(l.words[f], word{at, sums})
	}
}

func noise(t *rapid.T, n int) []byte { return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "bytes") }

// genLaid builds a frame from the outside in.
func genLaid(t *rapid.T) *laid {
	l := &laid{words: map[effect.Field][]word{}, udp: map[int]bool{}}
	l.b = noise(t, 12)
	l.add(effect.Ethernet, 0, 12)
	for range rapid.IntRange(0, 2).Draw(t, "tags") {
		l.b = append(l.b, 0x81, 0)
		l.b = append(l.b, noise(t, 2)...)
		l.add(effect.VLAN, len(l.b)-2, len(l.b))
	}
	if rapid.IntRange(0, 3).Draw(t, "tunnel") == 0 {
		ip, end := l.ip(t, hdr.ProtoUDP, effect.Encap, effect.Encap)
		udp := len(l.b)
		l.b = append(l.b, 0x12, 0x34, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0)
		l.b = append(l.b, noise(t, 4)...)
		sums := []int{}
		if rapid.Bool().Draw(t, "outer sum") {
			copy(l.b[udp+6:], noise(t, 2))
			l.b[udp+6] |= 1
			l.udp[udp+6] = true
			sums = []int{udp + 6}
			for f, ws := range l.words { // its pseudo header
				for i, w := range ws {
					if f == effect.Encap && w.at >= end-addresses(l.b[ip:]) && w.at < end {
						l.words[f][i].sums = append(slices.Clone(w.sums), udp+6)
					}
				}
			}
		}
		l.add(effect.Encap, udp+12, udp+16, sums...)
		eth := len(l.b)
		l.b = append(l.b, noise(t, 12)...)
		l.add(effect.Encap, eth, eth+12, sums...)
		l.inner(t, sums...)
		be.PutUint16(l.b[udp+4:], uint16(len(l.b)-udp))
		l.length(ip)
		return l
	}
	l.inner(t)
	return l
}

func addresses(ip []byte) int {
	if ip[0]>>4 == 6 {
		return 32
	}
	return 8
}

// length sets that of the datagram that begins there.
func (l *laid) length(ip int) {
	if l.b[ip]>>4 == 6 {
		be.PutUint16(l.b[ip+4:], uint16(len(l.b)-ip-40))
	} else {
		be.PutUint16(l.b[ip+2:], uint16(len(l.b)-ip))
	}
}

// ip adds an EtherType and an IP header, and returns where it begins and ends without
// options.
func (l *laid) ip(t *rapid.T, proto byte, addr, other effect.Field, sums ...int) (int, int) {
	if rapid.Bool().Draw(t, "IPv6") {
		l.b = append(l.b, 0x86, 0xdd)
		at := len(l.b)
		l.b = append(l.b, 0x60, 1, 2, 3, 0, 0, proto, 64)
		l.b = append(l.b, noise(t, 32)...)
		l.add(other, at+2, at+4, sums...)
		l.add(addr, at+8, at+40, sums...)
		return at, at + 40
	}
	l.b = append(l.b, 8, 0)
	at := len(l.b)
	options := 4 * rapid.IntRange(0, 2).Draw(t, "options")
	l.b = append(l.b, 0x45+byte(options/4), 0, 0, 0, 1, 2, 0, 0, 64, proto)
	l.b = append(l.b, noise(t, 2)...)
	l.b = append(l.b, noise(t, 8+options)...)
	own := append(slices.Clone(sums), at+10)
	l.add(other, at+4, at+6, own...)
	l.add(other, at+20, at+20+options, own...)
	l.add(addr, at+12, at+20, own...)
	return at, at + 20
}

// inner adds what is behind Ethernet addresses; all of it is covered by sums.
func (l *laid) inner(t *rapid.T, sums ...int) {
	type kind struct {
		name  string
		proto byte
	}
	k := rapid.SampledFrom([]kind{{"TCP", hdr.ProtoTCP}, {"UDP", hdr.ProtoUDP}, {"RoCE", hdr.ProtoUDP}, {"echo", 0}, {"error", 0}, {"ESP", 50}, {"ARP", 0}, {"other", 0}}).Draw(t, "kind")
	if k.name == "ARP" || k.name == "other" {
		l.b = append(l.b, 0x88, 0x47)
		if k.name == "ARP" {
			l.b[len(l.b)-1], l.b[len(l.b)-2] = 6, 8
		}
		at := len(l.b)
		l.b = append(l.b, noise(t, 40)...)
		if k.name == "ARP" {
			l.add(effect.L4Other, at, at+28, sums...)
		} else { // whatever it is
			l.add(effect.L4Other, at, at+10, sums...)
			l.add(effect.Payload, at+10, at+40, sums...)
		}
		return
	}
	ip, end := l.ip(t, k.proto, effect.IPAddresses, effect.IPOther, sums...)
	v6 := addresses(l.b[ip:]) == 32
	if k.proto == 0 {
		l.b[ip+9] = hdr.ProtoICMP
		if v6 {
			l.b[ip+9], l.b[ip+6] = 64, hdr.ProtoICMPv6
		}
	}
	pseudo := func(sum int) {
		for i, w := range l.words[effect.IPAddresses] {
			if w.at >= end-addresses(l.b[ip:]) && w.at < end {
				l.words[effect.IPAddresses][i].sums = append(slices.Clone(w.sums), sum)
			}
		}
	}
	at := len(l.b)
	more := func(sum int) []int { return append(slices.Clone(sums), sum) }
	switch k.name {
	case "TCP":
		l.b = append(l.b, noise(t, 20)...)
		l.b[at+12] = 0x60
		l.b = append(l.b, noise(t, 4)...)
		pseudo(at + 16)
		l.add(effect.Ports, at, at+4, more(at+16)...)
		l.add(effect.L4Other, at+4, at+12, more(at+16)...)
		l.add(effect.L4Other, at+20, at+24, more(at+16)...)
	case "UDP", "RoCE":
		l.b = append(l.b, 3, 4, 5, 6, 0, 0)
		l.b = append(l.b, noise(t, 2)...)
		own := sums
		if k.name == "UDP" && l.b[at+6] != 0 {
			own = more(at + 6)
			l.udp[at+6] = true
			pseudo(at + 6)
		} else {
			be.PutUint16(l.b[at+6:], 0)
		}
		l.add(effect.Ports, at, at+2, own...)
		if k.name == "RoCE" {
			be.PutUint16(l.b[at+2:], hdr.RoCEv2Port)
			l.b = append(l.b, noise(t, 12)...)
			l.add(effect.L4Other, at+8, at+20, own...)
			n := len(l.b) + 28
			l.b = append(l.b, noise(t, 28+2*rapid.IntRange(0, 40).Draw(t, "payload"))...)
			l.add(effect.Payload, n, len(l.b), own...)
			l.icrc = len(l.b)
			l.b = append(l.b, noise(t, 4)...)
			be.PutUint16(l.b[at+4:], uint16(len(l.b)-at))
			l.length(ip)
			return
		}
	case "echo", "error":
		l.b = append(l.b, 8, 0)
		if v6 {
			l.b[at] = 128
		}
		if k.name == "error" {
			l.b[at] = 3
		}
		l.b = append(l.b, noise(t, 2)...)
		l.b = append(l.b, noise(t, 4)...)
		if v6 {
			pseudo(at + 2)
		}
		if k.name == "error" {
			l.b = append(l.b, noise(t, 30)...)
			l.add(effect.L4Other, at+4, len(l.b), more(at+2)...)
			l.length(ip)
			return
		}
		l.add(effect.Ports, at+4, at+6, more(at+2)...)
		l.add(effect.L4Other, at+6, at+8, more(at+2)...)
	case "ESP":
		l.b = append(l.b, noise(t, 16)...)
		l.add(effect.L4Other, at, at+16, sums...)
	}
	n := len(l.b)
	l.b = append(l.b, noise(t, 2*rapid.IntRange(0, 40).Draw(t, "payload"))...)
	own := sums
	switch {
	case k.name == "TCP":
		own = more(at + 16)
	case l.udp[at+6]:
		own = more(at + 6)
	case k.name == "echo":
		own = more(at + 2)
	}
	l.add(effect.Payload, n, len(l.b), own...)
	l.length(ip)
	if k.name == "UDP" {
		be.PutUint16(l.b[at+4:], uint16(len(l.b)-at))
	}
	if rapid.Bool().Draw(t, "padding") {
		l.b = append(l.b, noise(t, 6)...)
	}
}

// writes puts a value into a word, as functions do: what is derived is patched.
func (l *laid) write(b []byte, w word, v uint16) {
	old := be.Uint16(b[w.at:])
	if l.icrc != 0 {
		d := uint32(old^v) * 0x10001 << (w.at % 7) // linear in the difference, as a CRC is
		be.PutUint32(b[l.icrc:], be.Uint32(b[l.icrc:])^d)
	}
	be.PutUint16(b[w.at:], v)
	for _, at := range w.sums {
		before := be.Uint16(b[at:])
		s := hdr.PatchChecksum(before, old, v)
		if l.udp[at] && s == 0 {
			s = 0xffff
		}
		be.PutUint16(b[at:], s)
		if at == w.at {
			panic("a checksum is no word")
		}
	}
}

// Branches that write different fields of copies: merged, it is the frame on which
// they work one after the other.
func TestJoinIsTheSerialResult(t *testing.T) {
	fields := []effect.Field{effect.Ethernet, effect.VLAN, effect.Encap, effect.IPAddresses, effect.IPOther, effect.Ports, effect.L4Other, effect.Payload}
	seen := map[effect.Field]int{}
	check := func(t *rapid.T) {
		l := genLaid(t)
		n := rapid.IntRange(2, 4).Draw(t, "branches")
		writes := make([]effect.Field, n)
		for _, f := range fields {
			if i := rapid.IntRange(-1, n-1).Draw(t, "who writes"); i >= 0 {
				writes[i] |= f
			}
		}
		want := bytes.Clone(l.b)
		var p Parts
		p.Find(l.b)
		copies := make([][]byte, n)
		for i := range copies {
			copies[i] = bytes.Repeat([]byte{0xdb}, len(l.b))
			p.Copy(copies[i], l.b)
			if writes[i]&effect.Payload != 0 {
				p.Fetch(copies[i], l.b)
				if !bytes.Equal(copies[i], l.b) {
					t.Fatalf("copied and fetched:\n%x\n%x", copies[i], l.b)
				}
			}
			for _, f := range fields {
				if writes[i]&f == 0 || len(l.words[f]) == 0 {
					continue
				}
				for range rapid.IntRange(0, 3).Draw(t, "words") {
					w := rapid.SampledFrom(l.words[f]).Draw(t, "word")
					v := rapid.SampledFrom([]uint16{0, 0xffff, 0x1234, rapid.Uint16().Draw(t, "any")}).Draw(t, "value")
					l.write(copies[i], w, v)
					l.write(want, w, v)
					seen[f]++
				}
			}
		}
		got := bytes.Clone(l.b)
		var all []Copy
		for i := range copies {
			all = append(all, Copy{copies[i], writes[i], writes[i]&effect.Payload != 0})
		}
		p.Merge(got, all)
		if !bytes.Equal(got, want) {
			t.Fatalf("of %x\n merged %x\n serial %x", l.b, got, want)
		}
	}
	for range 20 { // 50 ms
		rapid.Check(t, check)
	}
	for _, f := range fields {
		if seen[f] < 50 {
			t.Errorf("%v was written %d times", f, seen[f])
		}
	}
}

// What a task does not declare to write is not merged.
func TestUndeclared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genLaid(t)
		l.words[effect.Length] = nil
		var p Parts
		p.Find(l.b)
		c := make([]byte, len(l.b))
		p.Copy(c, l.b)
		p.Fetch(c, l.b)
		for _, w := range l.words[effect.Ethernet] {
			l.write(c, w, ^be.Uint16(c[w.at:]))
		}
		got := bytes.Clone(l.b)
		writes := rapid.SampledFrom([]effect.Field{0, effect.Length, effect.VLAN, effect.IPAddresses, effect.Payload}).Draw(t, "declared")
		p.Merge(got, []Copy{{c, writes, true}})
		if !bytes.Equal(got[:12], l.b[:12]) {
			t.Fatalf("Ethernet addresses, declared is %v: %x", writes, got[:12])
		}
	})
}

// A header copy has nothing of the payload, and of nobody else's frame.
func TestHeaderCopy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genLaid(t)
		var p Parts
		p.Find(l.b)
		c := bytes.Repeat([]byte{0xdb}, len(l.b))
		p.Copy(c, l.b)
		known := p.Head < len(l.b)
		for at := range c {
			switch {
			case at < p.Head, p.ICRC != 0 && at >= p.ICRC && at < p.ICRC+icrcLen:
				if c[at] != l.b[at] {
					t.Fatalf("byte %d is %#x, not %#x", at, c[at], l.b[at])
				}
			case c[at] != 0:
				t.Fatalf("byte %d of the payload is %#x", at, c[at])
			}
		}
		if known && len(l.words[effect.Payload]) > 0 && l.words[effect.Payload][0].at != p.Head {
			t.Fatalf("the payload begins at %d, not %d", l.words[effect.Payload][0].at, p.Head)
		}
	})
}

func FuzzFind(f *testing.F) {
	f.Add(make([]byte, 60), uint16(0))
	gen := rapid.Custom(genLaid)
	for i := range 40 {
		f.Add(gen.Example(i).b, uint16(effect.AllFields))
	}
	f.Fuzz(func(t *testing.T, b []byte, writes uint16) {
		if len(b) > 1<<16-1 {
			return
		}
		var p Parts
		p.Find(b)
		c := make([]byte, len(b))
		p.Copy(c, b)
		p.Fetch(c, b)
		if !bytes.Equal(c, b) {
			t.Fatalf("copied and fetched:\n%x\n%x", c, b)
		}
		got := bytes.Clone(b)
		if p.Merge(got, []Copy{{c, effect.Field(writes), true}, {bytes.Clone(c), effect.Field(writes), true}}); !bytes.Equal(got, b) {
			t.Fatalf("nothing has changed:\n%x\n%x", got, b)
		}
	})
}

func TestNoAllocation(t *testing.T) {
	l := rapid.Custom(genLaid).Example(7)
	a, b := bytes.Clone(l.b), bytes.Clone(l.b)
	if n := testing.AllocsPerRun(100, func() {
		var p Parts
		p.Find(l.b)
		p.Copy(a, l.b)
		p.Fetch(b, l.b)
		p.Merge(l.b, []Copy{{a, effect.IPOther, false}, {b, effect.AllFields, true}})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkMerge(b *testing.B) {
	l := rapid.Custom(genLaid).Example(3)
	x, y := bytes.Clone(l.b), bytes.Clone(l.b)
	for b.Loop() {
		var p Parts
		p.Find(l.b)
		p.Copy(x, l.b)
		p.Copy(y, l.b)
		p.Merge(l.b, []Copy{{x, effect.IPAddresses, false}, {y, effect.IPOther, false}})
	}
}

// Sums that come out as 0 or 0xffff: every value that two words can have together.
func TestSumsAtTheirEnds(t *testing.T) {
	b := append(make([]byte, 12), 8, 0, 0x45, 0, 0, 28, 1, 2, 0, 0, 64, hdr.ProtoUDP, 0x12, 0x34, 10, 0, 0, 1, 10, 0, 0, 2, 3, 4, 5, 6, 0, 8, 0x56, 0x78)
	l := &laid{b: b, udp: map[int]bool{40: true}}
	addr, id, port := word{28, []int{24, 40}}, word{18, []int{24}}, word{34, []int{40}}
	var p Parts
	p.Find(b)
	x, y, want, got := make([]byte, len(b)), make([]byte, len(b)), make([]byte, len(b)), make([]byte, len(b))
	ends := map[uint16]int{}
	for v := range 1 << 16 {
		p.Copy(x, b)
		p.Copy(y, b)
		copy(want, b)
		copy(got, b)
		for _, f := range [][]byte{x, want} {
			l.write(f, addr, uint16(v))
		}
		for _, f := range [][]byte{y, want} {
			l.write(f, id, 0x7777*uint16(v&1))
			l.write(f, port, 0x5555*uint16(v&2))
		}
		p.Merge(got, []Copy{{Bytes: x, Writes: effect.IPAddresses}, {Bytes: y, Writes: effect.IPOther | effect.Ports}})
		if !bytes.Equal(got, want) {
			t.Fatalf("%#x:\n merged %x\n serial %x", v, got, want)
		}
		ends[be.Uint16(got[24:])]++
		ends[be.Uint16(got[40:])]++
	}
	if ends[0] == 0 || ends[0xffff] == 0 {
		t.Error("no sum was 0, or none 0xffff")
	}
}
