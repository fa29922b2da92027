package flow

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
)

func key4(i int) Key {
	k := Key{SrcPort: uint16(i), DstPort: 80, Proto: hdr.ProtoTCP, Family: hdr.NetIPv4}
	k.Src[0], k.Src[1], k.Dst[0] = 10, byte(i>>16), 192
	return k
}

// TestAgainstMap: what is in is found in its place, what is not is not, whatever
// was put in, replaced, taken out. Hashes are few, or keys' own.
func TestAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type val struct{ n, at int }
		x := New[Key, int](rapid.IntRange(0, 40).Draw(t, "n"))
		few := rapid.Bool().Draw(t, "few")
		hash := func(k *Key) uint64 {
			if few {
				return uint64(k.SrcPort%3) << 57
			}
			return k.Hash(7)
		}
		in := map[Key]val{}
		for step := range rapid.IntRange(0, 200).Draw(t, "steps") {
			k := key4(rapid.IntRange(0, 60).Draw(t, "key"))
			h := hash(&k)
			at := x.Find(&k, h)
			if v, ok := in[k]; ok != (at >= 0) || ok && (v.at != at || x.At(at).Val != v.n) {
				t.Fatalf("%+v is found at %d with %+v", v, at, x.At(max(at, 0)))
			}
			switch {
			case at >= 0 && rapid.Bool().Draw(t, "del"):
				x.Del(at)
				delete(in, k)
			case at < 0:
				if at = x.Add(&k, h); at < 0 {
					a, b := x.Sets(h)
					if a == b {
						t.Fatal("one set")
					}
					at = a + step%Ways
					if step%2 == 0 {
						at = b + step%Ways
					}
					delete(in, x.At(at).Key)
					x.Replace(at, &k, h)
				}
				if x.At(at).Val != 0 || x.At(at).Key != k {
					t.Fatal("a new place is not new")
				}
				x.At(at).Val = step
				in[k] = val{step, at}
			}
			n := 0
			for i := x.Next(0); i >= 0; i = x.Next(i + 1) {
				if in[x.At(i).Key].at != i {
					t.Fatalf("a stranger at %d", i)
				}
				n++
			}
			if n != len(in) || n != x.Len() {
				t.Fatalf("%d, want %d", n, len(in))
			}
		}
		// The hand passes each place once a round.
		seen := 0
		for range (x.Places() + 15) / 16 {
			from, to := x.Sweep(16)
			for i := x.Next(from); i >= 0 && i < to; i = x.Next(i + 1) {
				seen++
				x.Del(i)
			}
		}
		if seen != len(in) || x.Len() != 0 {
			t.Fatalf("%d of %d are swept", seen, len(in))
		}
	})
}

// TestRoom: n flows fit in a table for n, and none of 100,000 is turned away;
// twice as many fill it.
func TestRoom(t *testing.T) {
	for _, n := range []int{1, 100, 10_000, 100_000} {
		for seed := range uint64(5) {
			x := New[Key, [7]uint64](n)
			for i := range n {
				k := key4(i)
				if x.Add(&k, k.Hash(seed)) < 0 {
					t.Fatalf("%d of %d find no place", i, n)
				}
			}
			if x.Places() > n*7/5+2*Ways {
				t.Errorf("%d places for %d flows", x.Places(), n)
			}
			if seed > 0 {
				continue
			}
			for i := n; i < 2*n+2*Ways; i++ {
				k := key4(i)
				x.Add(&k, k.Hash(seed))
			}
			if x.Len() > x.Places() || x.Len() < x.Places()*9/10 {
				t.Errorf("%d of %d places are used", x.Len(), x.Places())
			}
		}
	}
}

// TestSpread: keys meet no more than chance has it, with every seed.
func TestSpread(t *testing.T) {
	for _, family := range []uint8{hdr.NetIPv4, hdr.NetIPv6} {
		for seed := range uint64(4) {
			count := [3][256]int{}
			for i := range 25600 {
				k := key4(i)
				k.Family = family
				h := k.Hash(seed)
				count[0][h&0xFF]++
				count[1][h>>24&0xFF]++
				count[2][h>>56]++
			}
			for which, c := range count {
				chi := 0.0
				for _, n := range c {
					chi += float64((n-100)*(n-100)) / 100
				}
				if chi > 360 { // 255 degrees of freedom: 1 in 50,000
					t.Errorf("chi square is %.0f (%d, seed %d)", chi, which, seed)
				}
			}
		}
	}
	k, o := key4(1), key4(1)
	o.Tag = 1
	if k.Hash(1) == k.Hash(2) || k.Hash(1) == o.Hash(1) {
		t.Error("the hash ignores seed or tag")
	}
	if r := k.Reversed(); r == k || r.Reversed() != k {
		t.Error("reversed")
	}
}

func eth(v6 bool) *layers.Ethernet {
	e := &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	if v6 {
		e.EthernetType = layers.EthernetTypeIPv6
	}
	return e
}

func walk(t testing.TB, b []byte) *hdr.Layers {
	t.Helper()
	var d hdr.Layers
	if !hdr.Walk(b, &d) || d.Malformed() {
		t.Fatalf("%x", b)
	}
	return &d
}

// TestFragment: all fragments of a datagram have one key.
func TestFragment(t *testing.T) {
	src, dst := []byte{10, 0, 0, 1}, []byte{10, 0, 0, 2}
	ip := func(id uint16, offset uint16) []byte {
		return hdrtest.Build(t, eth(false), &layers.IPv4{Version: 4, TTL: 1, Id: id, Flags: layers.IPv4MoreFragments, FragOffset: offset, Protocol: 17, SrcIP: src, DstIP: dst}, gopacket.Payload("12345678"))
	}
	six := func(id uint32, offset uint16) []byte {
		f := make([]byte, 8)
		f[0] = 17
		be.PutUint16(f[2:], offset<<3|1)
		be.PutUint32(f[4:], id)
		return hdrtest.Build(t, eth(true), &layers.IPv6{Version: 6, NextHeader: 44, HopLimit: 1, SrcIP: bytes.Repeat([]byte{2}, 16), DstIP: bytes.Repeat([]byte{3}, 16)}, gopacket.Payload(append(f, "12345678"...)))
	}
	for _, c := range [][3][]byte{{ip(7, 0), ip(7, 3), ip(8, 3)}, {six(0x10007, 0), six(0x10007, 3), six(0x20007, 3)}} {
		k, o := Fragment(c[0], walk(t, c[0]))
		k2, o2 := Fragment(c[1], walk(t, c[1]))
		k3, _ := Fragment(c[2], walk(t, c[2]))
		if k != k2 || o != 0 || o2 != 24 || k3 == k {
			t.Errorf("%+v %+v %+v, offsets %d and %d", k, k2, k3, o, o2)
		}
	}
}

// TestQuoted: the datagram in an error is found, and what is cut is not.
func TestQuoted(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		var inner, whole []byte
		if v6 {
			ip := &layers.IPv6{Version: 6, NextHeader: 17, HopLimit: 1, SrcIP: bytes.Repeat([]byte{2}, 16), DstIP: bytes.Repeat([]byte{3}, 16)}
			inner = hdrtest.Build(t, ip, gopacket.Payload("12345678 and more"))
			icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(1, 4)}
			outer := &layers.IPv6{Version: 6, NextHeader: 58, HopLimit: 1, SrcIP: ip.DstIP, DstIP: ip.SrcIP}
			whole = hdrtest.Build(t, eth(true), outer, icmp, gopacket.Payload(append(make([]byte, 4), inner...)))
		} else {
			ip := &layers.IPv4{Version: 4, TTL: 1, Protocol: 17, SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}}
			inner = hdrtest.Build(t, ip, gopacket.Payload("12345678 and more"))
			outer := &layers.IPv4{Version: 4, TTL: 1, Protocol: 1, SrcIP: ip.DstIP, DstIP: ip.SrcIP}
			whole = hdrtest.Build(t, eth(false), outer, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 3)}, gopacket.Payload(inner))
		}
		d := walk(t, whole)
		if !IsError(d.Family(), whole[d.L4]) {
			t.Error("no error")
		}
		var q hdr.Layers
		if !Quoted(whole, d, &q) || !bytes.Equal(whole[q.L3:q.End], inner) || string(whole[q.L4:q.L4+8]) != "12345678" || q.Proto != 17 || q.Family() != d.Family() {
			t.Errorf("%+v", q)
		}
		for n := range len(whole) {
			e := *d
			if e.End = n; n < d.L4 {
				continue
			}
			if got := Quoted(whole[:n], &e, &q); got != (n >= q.L4+8 && q.L4 > 0) && got != (n >= len(whole)-len(inner)+len(inner)-9) {
				t.Errorf("%d of %d bytes: %v", n, len(whole), got)
			}
		}
	}
	for _, c := range []struct {
		family, typ, request uint8
		answer, ok           bool
	}{{1, 8, 8, false, true}, {1, 0, 8, true, true}, {1, 14, 13, true, true}, {1, 3, 0, false, false}, {2, 128, 128, false, true}, {2, 129, 128, true, true}, {2, 8, 0, false, false}} {
		if r, a, ok := Query(c.family, c.typ); r != c.request || a != c.answer || ok != c.ok {
			t.Errorf("%+v: %d %v %v", c, r, a, ok)
		}
	}
}

// TestCounts: never too low, and right where few meet.
func TestCounts(t *testing.T) {
	var c Counts
	r := rand.New(rand.NewPCG(1, 2))
	n := map[uint64]int{}
	for range 2000 {
		k := hdr.Fold(9, uint64(r.IntN(300)))
		if r.IntN(2) == 0 {
			c.AddAlone(k)
		} else {
			c.Add(k)
		}
		n[k]++
	}
	exact := 0
	for k, v := range n {
		if c.Of(k) < v {
			t.Fatalf("%d, want %d", c.Of(k), v)
		}
		if c.Of(k) == v {
			exact++
		}
	}
	if exact < len(n)*9/10 {
		t.Errorf("%d of %d are exact", exact, len(n))
	}
	for k, v := range n {
		for range v {
			c.Sub(k)
		}
	}
	if c != (Counts{}) {
		t.Error("something is left")
	}
}

func sizes(sort uint8) int { return map[uint8]int{1: 3, 2: 5}[sort] }

func image(t testing.TB) []byte {
	var b bytes.Buffer
	i := NewImage(&b, "thing", 1)
	i.Record(1, []byte("one"))
	i.Record(2, []byte("three"))
	i.Record(1, []byte("two"))
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestImage: what was written is read; with any bit changed, cut or longer it is
// refused.
func TestImage(t *testing.T) {
	b := image(t)
	r, err := Open(bytes.NewReader(b), "thing", 1, sizes, len(b))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for sort, b := range r.All {
		got += fmt.Sprintf("%d%s ", sort, b)
	}
	if got != "1one 2three 1two " {
		t.Error(got)
	}
	for i := range len(b) * 8 {
		c := bytes.Clone(b)
		c[i/8] ^= 1 << (i % 8)
		if _, err := Open(bytes.NewReader(c), "thing", 1, sizes, len(b)); err == nil {
			t.Errorf("bit %d changed, and taken", i)
		}
	}
	for i := range len(b) {
		if _, err := Open(bytes.NewReader(b[:i]), "thing", 1, sizes, len(b)); err == nil {
			t.Errorf("%d bytes are taken", i)
		}
	}
	for want, o := range map[string]func() error{
		"more than":  func() error { _, err := Open(bytes.NewReader(b), "thing", 1, sizes, len(b)-1); return err },
		"not of a x": func() error { _, err := Open(bytes.NewReader(b), "x", 1, sizes, len(b)); return err },
		"version 1":  func() error { _, err := Open(bytes.NewReader(b), "thing", 2, sizes, len(b)); return err },
		"damaged": func() error {
			_, err := Open(bytes.NewReader(b), "thing", 1, func(uint8) int { return 3 }, len(b))
			return err
		},
		"no room": func() error {
			i := NewImage(broken{}, "thing", 1)
			i.Record(1, make([]byte, 1<<17))
			return i.Close()
		},
	} {
		if err := o(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestLongImage: one of many pieces, from readers that know its length, or do not, or fail.
func TestLongImage(t *testing.T) {
	var b bytes.Buffer
	i := NewImage(&b, "thing", 1)
	for n := range 40_000 {
		i.Record(1, []byte{byte(n), byte(n >> 8), 7})
	}
	if err := i.Close(); err != nil || b.Len() < 2*atOnce {
		t.Fatal(b.Len(), err)
	}
	for _, r := range []io.Reader{bytes.NewReader(b.Bytes()), iotest.HalfReader(bytes.NewReader(b.Bytes())), iotest.DataErrReader(bytes.NewReader(b.Bytes()))} {
		all, err := Open(r, "thing", 1, sizes, b.Len())
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, x := range all.All {
			if x[0] != byte(n) || x[1] != byte(n>>8) || x[2] != 7 {
				t.Fatalf("record %d is %v", n, x)
			}
			n++
		}
		if n != 40_000 {
			t.Errorf("%d records", n)
		}
	}
	if _, err := Open(io.MultiReader(bytes.NewReader(b.Bytes()[:100]), iotest.ErrReader(io.ErrClosedPipe)), "thing", 1, sizes, b.Len()); err != io.ErrClosedPipe {
		t.Error(err)
	}
	if _, err := Open(bytes.NewReader(b.Bytes()), "thing", 1, sizes, b.Len()-1); err == nil {
		t.Error("more is taken than there is room for")
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no room") }

// FuzzOpen: any bytes are refused, or are records of their sizes.
func FuzzOpen(f *testing.F) {
	f.Add(image(f))
	f.Add([]byte("QFLW"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Open(bytes.NewReader(b), "thing", 1, sizes, 1<<16)
		if err != nil {
			return
		}
		var out bytes.Buffer
		i := NewImage(&out, "thing", 1)
		for sort, rec := range r.All {
			if len(rec) != sizes(sort) {
				t.Fatal(sort, len(rec))
			}
			i.Record(sort, rec)
		}
		if err := i.Close(); err != nil || !bytes.Equal(out.Bytes(), b) {
			t.Fatalf("%v\n%x\n%x", err, b, out.Bytes())
		}
	})
}

// FuzzFrames: no frame makes the finders look beyond it.
func FuzzFrames(f *testing.F) {
	f.Add(hdrtest.Build(f, eth(false), &layers.IPv4{Version: 4, Protocol: 1, SrcIP: []byte{1, 2, 3, 4}, DstIP: []byte{1, 2, 3, 5}}, gopacket.Payload(make([]byte, 40))))
	f.Add(hdrtest.Build(f, eth(true), &layers.IPv6{Version: 6, NextHeader: 44, SrcIP: make([]byte, 16), DstIP: make([]byte, 16)}, gopacket.Payload(make([]byte, 80))))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d, q hdr.Layers
		if !hdr.Walk(b, &d) || d.L3 == 0 {
			return
		}
		_, offset := Fragment(b, &d)
		if !d.Fragment && offset != 0 {
			t.Fatal(offset)
		}
		if Quoted(b, &d, &q) && (q.End > d.End || q.L4+8 > q.End || q.L4 < q.L3+20 || q.L3 < d.L4) {
			t.Fatalf("%+v in %+v", q, d)
		}
	})
}

func TestAllocs(t *testing.T) {
	x := New[Key, [7]uint64](1000)
	n := 0
	if a := testing.AllocsPerRun(1000, func() {
		k := key4(n)
		n++
		h := k.Hash(1)
		if x.Find(&k, h) < 0 {
			if i := x.Add(&k, h); i < 0 {
				a, _ := x.Sets(h)
				x.Replace(a, &k, h)
			}
		}
	}); a != 0 {
		t.Error(a)
	}
}

// BenchmarkFind is among 100,000 flows, in a random order: found, and not.
func BenchmarkFind(b *testing.B) {
	const n = 100_000
	x := New[Key, [7]uint64](n)
	keys := make([]Key, 2*n)
	for i := range keys {
		keys[i] = key4(i)
		if i < n {
			x.Add(&keys[i], keys[i].Hash(1))
		}
	}
	for _, found := range []bool{true, false} {
		b.Run(fmt.Sprintf("found=%v", found), func(b *testing.B) {
			r, at := uint32(1), 0
			if !found {
				at = n
			}
			for b.Loop() {
				r = r*1664525 + 1013904223
				k := &keys[at+int(uint64(r)*n>>32)]
				if (x.Find(k, k.Hash(1)) >= 0) != found {
					b.Fatal(found)
				}
			}
		})
	}
}

// TestHash: every part of a key that counts changes its hash, and so does the seed.
func TestHash(t *testing.T) {
	for _, family := range []uint8{hdr.NetIPv4, hdr.NetIPv6} {
		k := Key{Family: family}
		seen := map[uint64]string{k.Hash(1): "nothing", k.Hash(2): "the seed"}
		try := func(what string, change func(k *Key)) {
			t.Helper()
			x := k
			change(&x)
			h := x.Hash(1)
			if other, ok := seen[h]; ok {
				t.Errorf("family %d: %s changes as much as %s", family, what, other)
			}
			seen[h] = what
		}
		n := 16
		if family == hdr.NetIPv4 {
			n = 4
		}
		for i := range n {
			try(fmt.Sprintf("byte %d of the source", i), func(k *Key) { k.Src[i] = 1 })
			try(fmt.Sprintf("byte %d of the destination", i), func(k *Key) { k.Dst[i] = 1 })
		}
		try("source port", func(k *Key) { k.SrcPort = 1 })
		try("destination port", func(k *Key) { k.DstPort = 1 })
		try("tag", func(k *Key) { k.Tag = 1 })
		try("protocol", func(k *Key) { k.Proto = 1 })
	}
}

func TestClear(t *testing.T) {
	tab := New[Key, int](8)
	k := Key{Tag: 1}
	tab.Add(&k, k.Hash(0))
	tab.Clear()
	if tab.Len() != 0 || tab.Find(&k, k.Hash(0)) >= 0 || tab.Next(0) >= 0 {
		t.Error("what was cleared is found")
	}
}

func TestIsError(t *testing.T) {
	for _, c := range []struct {
		family uint8
		types  []uint8
	}{{hdr.NetIPv4, []uint8{3, 4, 11, 12}}, {hdr.NetIPv6, []uint8{1, 2, 3, 4}}} {
		for i := range 256 {
			if got := IsError(c.family, uint8(i)); got != slices.Contains(c.types, uint8(i)) {
				t.Errorf("family %d type %d: %v", c.family, i, got)
			}
		}
	}
}

// TestAges: rows are in the order of their last renewal, whatever goes in between.
func TestAges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 6).Draw(t, "n")
		a := NewAges(n)
		var model []int32
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if n == 0 {
				break
			}
			i := int32(rapid.IntRange(0, n-1).Draw(t, "row"))
			at := slices.Index(model, i)
			switch {
			case at < 0:
				a.Add(i)
				model = append(model, i)
			case rapid.Bool().Draw(t, "renew"):
				a.Renew(i)
				model = append(slices.Delete(model, at, at+1), i)
			default:
				a.Remove(i)
				model = slices.Delete(model, at, at+1)
			}
			at = 0
			for j := a.Oldest(); j >= 0; j = a.Newer(j) {
				if at >= len(model) || model[at] != j {
					t.Fatalf("row %d is in place %d, want %v", j, at, model)
				}
				at++
			}
			if at != len(model) {
				t.Fatalf("%d rows, want %v", at, model)
			}
		}
		if n == 0 && a.Oldest() >= 0 {
			t.Fatal("a row in no rows")
		}
	})
}

// thing is a function that remembers bytes, in one of its workers.
type thing struct {
	Mover
}

// things is what its workers share.
type things struct {
	start Start
	has   []byte
	when  clock.Time // they were built
	seed  uint64
}

func (x *things) worker() *thing {
	w := &thing{}
	w.Mover = Mover{Start: &x.start, Kind: "thing", Version: 1, Size: func(uint8) int { return 1 },
		Record: func(i *Image, now clock.Time) func(int) bool {
			left := slices.Clone(x.has)
			return func(n int) bool {
				for ; n > 0 && len(left) > 0; n-- {
					i.Record(1, []byte{left[0] + byte(now)})
					left = left[1:]
				}
				return len(left) > 0
			}
		},
		Build: func() (int, func(clock.Time, uint64, Records) (func(), error)) {
			return 1000, func(now clock.Time, seed uint64, all Records) (func(), error) {
				made := things{when: now, seed: seed}
				for _, b := range all.All {
					if b[0] == 0xFF {
						return nil, ErrDamaged
					}
					made.has = append(made.has, b[0]-byte(now))
				}
				return func() { x.has, x.when, x.seed = made.has, made.when, made.seed }, nil
			}
		}}
	return w
}

// TestMover: all workers have the seed of the first; what was loaded before the first breath is the first one's, and is
// saved as it was until then; what is loaded later is there at once.
func TestMover(t *testing.T) {
	image := func(w *thing) []byte {
		var b bytes.Buffer
		if err := w.Save(&b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	values := func(b []byte) (v []byte) {
		all, err := Open(bytes.NewReader(b), "thing", 1, func(uint8) int { return 1 }, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all.All {
			v = append(v, b...)
		}
		return v
	}
	r := rand.New(rand.NewPCG(1, 2))
	seed := rand.New(rand.NewPCG(1, 2)).Uint64()
	var x things
	a, b, idle := x.worker(), x.worker(), x.worker()
	if v := values(image(a)); len(v) != 0 {
		t.Errorf("%v before anything", v)
	}
	a.Begin(5, r, func() { x.has = []byte{1, 2, 3} })
	b.Begin(7, r, func() { t.Error("another one is the first") })
	if a.Seed != seed || b.Seed != seed || !a.Begun || a.Now != 5 || b.Now != 7 || idle.Begun {
		t.Errorf("%+v, %+v, want seed %d", a.Mover, b.Mover, seed)
	}
	saved := image(idle) // which knows the time of the first breath alone
	if v := values(saved); !bytes.Equal(v, []byte{6, 7, 8}) || idle.Seed != seed {
		t.Errorf("saved %v, seed %d", v, idle.Seed)
	}
	x.has = nil
	if err := b.Load(bytes.NewReader(saved)); err != nil || !bytes.Equal(x.has, []byte{255, 0, 1}) || x.when != 7 || x.seed != seed {
		t.Errorf("%v: loaded %+v", err, x.has)
	}
	if err := idle.Load(bytes.NewReader(saved)); err != nil || !bytes.Equal(x.has, []byte{1, 2, 3}) || x.when != 5 || x.seed != seed {
		t.Errorf("%v: loaded %+v", err, x.has)
	}
	x.has = []byte{0xFF - 5}
	bad := image(a)
	for what, b := range map[string][]byte{"thing: " + ErrDamaged.Error(): bad, "thing: this is no state that was saved": nil} {
		if err := a.Load(bytes.NewReader(b)); err == nil || err.Error() != what || len(x.has) != 1 {
			t.Errorf("%v, want %s", err, what)
		}
	}

	var y things // which is loaded before its first breath
	c := y.worker()
	if err := c.Load(bytes.NewReader(bad)); err == nil {
		t.Error("what is damaged is kept")
	}
	if err := c.Load(bytes.NewReader(saved)); err != nil || y.has != nil {
		t.Errorf("%v: %v", err, y.has)
	}
	if again := image(c); !bytes.Equal(again, saved) {
		t.Errorf("saved %x, want %x", again, saved)
	}
	late := y.worker().Loading() // of which the first breath is before the end
	put, err := late(bytes.NewReader(saved))
	if err != nil {
		t.Fatal(err)
	}
	c.Begin(9, r, nil)
	if !bytes.Equal(y.has, []byte{253, 254, 255}) || y.when != 9 || y.seed != c.Seed || !bytes.Equal(values(image(c)), []byte{6, 7, 8}) {
		t.Errorf("begun with %v at %v", y.has, y.when)
	}
	y = things{start: Start{begun: true, at: 11, seed: c.Seed}}
	if put(); !bytes.Equal(y.has, []byte{251, 252, 253}) || y.when != 11 || y.seed != c.Seed {
		t.Errorf("%v at %v: what was read before the first breath is of no seed", y.has, y.when)
	}

	d := y.worker() // which takes c's place
	d.Continue(&c.Mover)
	if d.Now != 9 || d.Seed != c.Seed || !d.Begun || d.Start != c.Start {
		t.Errorf("%+v", d.Mover)
	}
}

// TestPieces: an image that is written in pieces has all; of an error the rest hears.
func TestPieces(t *testing.T) {
	var b bytes.Buffer
	left := 10
	m := Mover{Start: new(Start), Kind: "x", Version: 1, Record: func(i *Image, _ clock.Time) func(int) bool {
		return func(n int) bool {
			for ; n > 0 && left > 0; n-- {
				i.Record(1, make([]byte, 5000))
				left--
			}
			return left > 0
		}
	}}
	m.Begin(5, rand.New(rand.NewPCG(1, 2)), nil)
	next, calls := m.Saving(&b), 0
	for more := true; more; calls++ {
		var err error
		if more, err = next(3); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Open(&b, "x", 1, func(uint8) int { return 5000 }, 1<<20)
	n := 0
	for range all.All {
		n++
	}
	if calls != 4 || n != 10 || err != nil {
		t.Errorf("%d calls, %d records: %v", calls, n, err)
	}
	left, next, calls = 1000, m.Saving(broken{}), 0
	for more := true; more; calls++ {
		more, err = next(1)
	}
	if err == nil || calls > 7 {
		t.Errorf("%v after %d pieces", err, calls)
	}
}

// TestSome: all flows are seen, piece by piece, and no piece takes longer than it may.
func TestSome(t *testing.T) {
	for _, flows := range []int{0, 1, 100, 7000} {
		tab := New[Key, int](10_000)
		for i := range flows {
			k := Key{SrcPort: uint16(i)}
			tab.Add(&k, k.Hash(3))
		}
		seen := map[uint16]bool{}
		for from, calls := 0, 0; from >= 0; calls++ {
			n, was := 0, from
			from = tab.Some(from, 16, func(i int) {
				n++
				seen[tab.At(i).Key.SrcPort] = true
			})
			if n > 16 || from > was+16*looks || calls > tab.Places()/16 {
				t.Fatalf("%d flows: from %d to %d, %d seen", flows, was, from, n)
			}
		}
		if len(seen) != flows {
			t.Errorf("%d of %d seen", len(seen), flows)
		}
	}
	tab := New[Key, int](100)
	k := Key{SrcPort: 1}
	at := tab.Add(&k, k.Hash(3))
	if tab.NextBefore(0, at) >= 0 || tab.NextBefore(at, at) >= 0 || tab.NextBefore(0, at+1) != at || tab.NextBefore(at+1, tab.Places()) >= 0 || tab.Next(at) != at {
		t.Error("what is before a place, and what is not")
	}
}

// TestSteps: a sweep goes around in 16 s, whatever there is.
func TestSteps(t *testing.T) {
	for _, n := range []int{1, 16, 100, 8 * 1024, 1 << 24} {
		steps, every := Steps(n)
		if d := every * time.Duration(steps); steps < 1 || steps > 1024 || d > 16*time.Second || d < 15*time.Second {
			t.Errorf("%d places in %d steps, %v", n, steps, d)
		}
	}
}
