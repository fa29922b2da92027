package aead

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

const (
	key128 = "000102030405060708090a0b0c0d0e0fa1b2c3d4"
	key256 = "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fdeadbeef"
)

// keyFile is a file of keys of two SAs, 0x100 and 0x200.
func keyFile(t testing.TB) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	text := "# keys\n0x100 " + key128 + " # there\n\n0x200 0x" + key256 + "\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func with(args graph.Args, more ...string) graph.Args {
	args = maps.Clone(args)
	for i := 0; i < len(more); i += 2 {
		args[more[i]] = more[i+1]
	}
	return args
}

// ends are the arguments of the two ends of a path: 10.0.1.0/24 and 2001:db8:1::/48
// are behind the first, the like with 2 behind the second.
func ends(t testing.TB, more ...string) (near, far graph.Args) {
	base := with(graph.Args{"keys": keyFile(t), "iv": "sequence"}, more...)
	near = with(base, "out", "0x100@10.0.2.0/24+0x100@2001:db8:2::/48", "in", "0x200")
	far = with(base, "out", "0x200@10.0.1.0/24+0x200@2001:db8:1::/48", "in", "0x100")
	if base["mode"] == "tunnel" {
		far["local"], far["remote"] = base["remote"], base["local"]
	}
	return near, far
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The golden frames are of another implementation: Python's cryptography 48
// (OpenSSL) made the ciphertext, by hand-written ESP headers.
const (
	goldPlain     = "02000000000202000000000108004500002112344000401111970a0001010a00020103e807d0000d000068656c6c6f"
	goldTransport = "020000000002020000000001080045000044123440004032" + "11530a0001010a00020100000100000000010000000000000001c9f6febddaff9264cbebf3055c54f139e0bb5a52b742547bd7dbab2131d34ad9"
	goldTunnel    = "020000000002020000000001080045000058000140004032b66fc0000201c0000202000001000000000100000000000000018f1ef94cc8c6d264e39f8efe3955f129ac14a885b5f9651f495b8a3a5ce5551cc586da34b97705c2568942b48f0fe0489dd24e20"
)

func tunnel() []string {
	return []string{"mode", "tunnel", "local", "192.0.2.1", "remote", "192.0.2.2"}
}

// only is the one frame that came out at side, and its reason.
func only(t testing.TB, r graphtest.Result, side string) ([]byte, string) {
	t.Helper()
	if len(r.Out[side]) != 1 || len(r.Dropped) != 0 {
		t.Fatalf("want one frame at %s, got %+v", side, r)
	}
	return r.Out[side][0].Bytes, r.Out[side][0].Reason
}

// dropped is the reason why the one frame was dropped.
func dropped(t testing.TB, r graphtest.Result) string {
	t.Helper()
	if len(r.Dropped) != 1 || len(r.Out) != 0 {
		t.Fatalf("want one dropped frame, got %+v", r)
	}
	return r.Dropped[0].Reason
}

func TestGolden(t *testing.T) {
	for name, x := range map[string]struct {
		more []string
		want string
	}{"transport": {nil, goldTransport}, "tunnel": {tunnel(), goldTunnel}} {
		t.Run(name, func(t *testing.T) {
			near, far := ends(t, x.more...)
			plain := unhex(t, goldPlain)
			// Ethernet's padding is no part of the packet.
			wire, why := only(t, graphtest.New(t, *Kind(), near).Push("a", append(bytes.Clone(plain), 0, 0, 0)), "b")
			if hex.EncodeToString(wire) != x.want || why != "protected" {
				t.Errorf("%s:\n%x\nwant\n%s", why, wire, x.want)
			}
			back, why := only(t, graphtest.New(t, *Kind(), far).Push("b", append(unhex(t, x.want), 0, 0, 0)), "a")
			if !bytes.Equal(back, plain) || why != "opened" {
				t.Errorf("%s:\n%x\nwant\n%x", why, back, plain)
			}
		})
	}
}

// TestVector is the first of draft-mcgrew-gcm-test-01, which has a 64-bit
// sequence number.
func TestVector(t *testing.T) {
	text := unhex(t, "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f7564700373697009637962657263697479"+"02646b0000210001"+"01020201")
	want := unhex(t, "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732459018148f6cbe722fd04796562dfdb4")
	block, _ := aes.NewCipher(unhex(t, "4c80cdefbb5d10da906ac73c3613a634"))
	gcm, _ := cipher.NewGCM(block)
	const seq = 0x87654321 << 32
	iv := uint64(0x4956ed7e3b244cfe)
	s := &sa{spi: 0x4321, gcm: gcm, esn: true, iv0: iv - seq}
	copy(s.salt[:], unhex(t, "2e443b68"))
	b := make([]byte, espLen+ivLen+len(text)+icvLen)
	copy(b[espLen+ivLen:], text)
	(&App{}).seal(s, b, espLen+ivLen, seq)
	if !bytes.Equal(b[espLen+ivLen:], want) {
		t.Errorf("%x\nwant\n%x", b[espLen+ivLen:], want)
	}
	if h := hex.EncodeToString(b[:espLen+ivLen]); h != "00004321000000004956ed7e3b244cfe" {
		t.Errorf("header %s", h)
	}
}

// frame draws a frame with any tags, extension headers and sizes from side 1 to
// side 2.
func frame(t *rapid.T, most int) []byte {
	v6 := rapid.Bool().Draw(t, "v6")
	tags := rapid.IntRange(0, 2).Draw(t, "tags")
	payload := rapid.SliceOfN(rapid.Byte(), 0, most).Draw(t, "payload")
	next := rapid.SampledFrom([]uint8{6, 17, 1, 132, 4, 60}).Draw(t, "proto")
	var b []byte
	b = append(b, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1)
	for i := range tags {
		b = be.AppendUint16(b, []uint16{hdr.EtherVLAN, hdr.EtherQinQ}[(tags-i-1)%2])
		b = be.AppendUint16(b, uint16(i+5))
	}
	if !v6 {
		options := 4 * rapid.IntRange(0, 10).Draw(t, "options")
		b = be.AppendUint16(b, hdr.EtherIPv4)
		at := len(b)
		b = append(b, make([]byte, 20+options)...)
		p := hdr.IPv4(b[at:])
		p.Encode(&hdr.IPv4Fields{TOS: rapid.Byte().Draw(t, "tos"), TotalLen: uint16(20 + options + len(payload)), ID: 7, DF: rapid.Bool().Draw(t, "df"), TTL: 9,
			Protocol: next, Src: netip.MustParseAddr("10.0.1.1"), Dst: netip.MustParseAddr("10.0.2.1")})
		p[0] = 0x40 | uint8(5+options/4)
		for i := range options {
			p[20+i] = 1
		}
		p.UpdateChecksum()
	} else {
		b = be.AppendUint16(b, hdr.EtherIPv6)
		at := len(b)
		b = append(b, make([]byte, 40)...)
		first, ext := next, []byte{}
		if rapid.Bool().Draw(t, "routing") {
			ext = append([]byte{next, 2, 0, 0}, make([]byte, 20)...)
			first = hdr.ProtoRouting
		}
		if rapid.Bool().Draw(t, "hop by hop") {
			ext = append([]byte{first, 0, 1, 4, 0, 0, 0, 0}, ext...)
			first = hdr.ProtoHopByHop
		}
		if next == 60 { // destination options of which the payload is part
			payload = append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, payload...)
		}
		hdr.IPv6(b[at:]).Encode(&hdr.IPv6Fields{TrafficClass: rapid.Byte().Draw(t, "tos"), FlowLabel: 5, PayloadLen: uint16(len(ext) + len(payload)), NextHeader: first, HopLimit: 9,
			Src: netip.MustParseAddr("2001:db8:1::1"), Dst: netip.MustParseAddr("2001:db8:2::1")})
		b = append(b, ext...)
	}
	return append(b, payload...)
}

// checkESP holds what an independent decoder says of a protected frame, and is
// the offset of its ESP header.
func checkESP(t interface{ Fatalf(string, ...any) }, b []byte) int {
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	if l := p.Layer(layers.LayerTypeIPv4); l != nil {
		ip := l.(*layers.IPv4)
		if hdr.Checksum(ip.Contents, 0) != 0 || int(ip.Length) != len(ip.Contents)+len(ip.Payload) {
			t.Fatalf("IPv4 header is wrong: %x", b)
		}
	} else if l := p.Layer(layers.LayerTypeIPv6); l == nil || int(l.(*layers.IPv6).Length) != len(l.LayerPayload()) && p.Layer(layers.LayerTypeIPv6HopByHop) == nil {
		t.Fatalf("neither IPv4 nor IPv6: %x", b)
	}
	l := p.Layer(layers.LayerTypeIPSecESP)
	if l == nil {
		t.Fatalf("no ESP: %x: %v", b, p)
	}
	esp := l.(*layers.IPSecESP)
	if esp.SPI != 0x100 || esp.Seq == 0 || len(esp.Encrypted)%4 != 0 {
		t.Fatalf("ESP is wrong: %+v", esp)
	}
	return len(b) - len(esp.Encrypted) - espLen
}

func TestRoundTrip(t *testing.T) {
	six := []string{"mode", "tunnel", "local", "2001:db8::1", "remote", "2001:db8::2"}
	for name, more := range map[string][]string{"transport": nil, "tunnel": tunnel(), "tunnel6": six, "esn": {"esn", "on"}, "random": {"iv", "random"}} {
		t.Run(name, func(t *testing.T) {
			near, far := ends(t, append([]string{"mtu", "9000"}, more...)...)
			x, y := graphtest.New(t, *Kind(), near), graphtest.New(t, *Kind(), far)
			rapid.Check(t, func(r *rapid.T) {
				plain := frame(r, 1500)
				wire, _ := only(t, x.Push("a", plain), "b")
				esp := checkESP(r, wire)
				if len(plain) > 120 && bytes.Contains(wire, plain[len(plain)-32:]) {
					r.Fatalf("the payload is in the clear")
				}
				bad := bytes.Clone(wire)
				at := rapid.IntRange(esp+4, len(bad)-1).Draw(r, "at")
				bad[at] ^= 1 << rapid.IntRange(0, 7).Draw(r, "bit")
				if why := dropped(t, y.Push("b", bad)); why != "forged" && why != "replay" {
					r.Fatalf("a changed packet: %s", why)
				}
				back, _ := only(t, y.Push("b", wire), "a")
				if !bytes.Equal(back, plain) {
					r.Fatalf("came back\n%x\nwas\n%x", back, plain)
				}
				if why := dropped(t, y.Push("b", wire)); why != "replay" {
					r.Fatalf("the same packet again: %s", why)
				}
			})
		})
	}
}

// TestWindow compares the window with a set of all numbers received.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := window{size: uint64(64 * rapid.IntRange(1, 16).Draw(t, "words"))}
		base := rapid.SampledFrom([]uint64{0, 1, 63, 64, 1<<32 - 100, 1<<32 + 5, 5 << 32}).Draw(t, "base")
		seen := map[uint64]bool{}
		top := uint64(0)
		if rapid.Bool().Draw(t, "resumed") && base > 0 {
			w.resume(base)
			top = base
		}
		resumed := top
		for range 300 {
			seq := max(top, base) + uint64(rapid.IntRange(0, 2*int(w.size)).Draw(t, "step"))
			if back := uint64(rapid.IntRange(0, 3*int(w.size)/2).Draw(t, "back")); back <= seq {
				seq -= back
			}
			want := seq > top || seq != 0 && top-seq < w.size && !seen[seq] && seq > resumed
			if w.fresh(seq) != want {
				t.Fatalf("fresh(%d) = %v with top %d, window %d", seq, !want, top, w.size)
			}
			if top > 0 && seq+w.size > top && (seq>>32 == top>>32 || seq > top) && seq < top+1<<31 {
				if got, ok := w.extend(uint32(seq)); !ok || got != seq {
					t.Fatalf("extend(%d) = %d, %v with top %d", uint32(seq), got, ok, top)
				}
			}
			if want {
				w.take(seq)
				seen[seq] = true
				top = max(top, seq)
			}
		}
	})
}

func TestExtend(t *testing.T) {
	for _, x := range []struct {
		top  uint64
		low  uint32
		want uint64
		ok   bool
	}{
		{0, 1, 1, true},
		{0, 1<<32 - 1, 0, false},
		{10, 1<<32 - 20, 0, false},
		{1<<32 - 1, 0, 1 << 32, true},
		{1<<32 + 10, 1<<32 - 20, 1<<32 - 20, true},
		{1<<32 + 10, 1<<32 - 60, 1<<32 + 1<<32 - 60, true}, // past the window's foot: taken for the future
		{7<<32 + 500, 436, 8<<32 + 436, true},
		{7<<32 + 500, 437, 7<<32 + 437, true},
	} {
		w := window{size: 64, top: x.top}
		if got, ok := w.extend(x.low); ok != x.ok || ok && got != x.want {
			t.Errorf("top %d: %d is %d, %v; want %d, %v", x.top, x.low, got, ok, x.want, x.ok)
		}
	}
}

func TestReorderAndLoss(t *testing.T) {
	near, far := ends(t, "window", "64")
	x, y := graphtest.New(t, *Kind(), near), graphtest.New(t, *Kind(), far)
	var wire [][]byte
	for range 200 {
		b, _ := only(t, x.Push("a", unhex(t, goldPlain)), "b")
		wire = append(wire, b)
	}
	for _, s := range []struct {
		at   int
		want string
	}{{10, "opened"}, {5, "opened"}, {5, "replay"}, {199, "opened"}, {136, "opened"}, {135, "replay"}, {150, "opened"}, {10, "replay"}} {
		r := y.Push("b", wire[s.at])
		got := ""
		if s.want == "opened" {
			_, got = only(t, r, "a")
		} else {
			got = dropped(t, r)
		}
		if got != s.want {
			t.Errorf("number %d: %s, want %s", s.at+1, got, s.want)
		}
	}
}

func TestLifetime(t *testing.T) {
	near, _ := ends(t, "lifetime", "2")
	x := graphtest.New(t, *Kind(), near)
	r := x.Push("a", unhex(t, goldPlain), unhex(t, goldPlain), unhex(t, goldPlain))
	if len(r.Out["b"]) != 2 || len(r.Dropped) != 1 || r.Dropped[0].Reason != "expired" {
		t.Errorf("%+v", r)
	}
	if r := x.App().(*App).Report().([]State); r[0].Sequence != 2 || r[0].Packets != 2 || r[0].Direction != "out" {
		t.Errorf("%+v", r)
	}
}

// TestMemory: the next process goes on behind this one's numbers, in both
// directions.
func TestMemory(t *testing.T) {
	kept := map[string][]byte{}
	kind := func(name string) graph.Kind {
		k := *Kind()
		start := k.New
		k.New = func(env graph.Env, args graph.Args) (graph.App, error) {
			env.Memory = func(n int) ([]byte, error) {
				if kept[name] == nil {
					kept[name] = make([]byte, n)
				}
				return kept[name], nil
			}
			return start(env, args)
		}
		return k
	}
	near, far := ends(t)
	var first []byte
	for n := range uint32(3) {
		x, y := graphtest.New(t, kind("near"), near), graphtest.New(t, kind("far"), far)
		wire, _ := only(t, x.Push("a", unhex(t, goldPlain)), "b")
		if got := be.Uint32(wire[38:]); got != n+1 {
			t.Fatalf("process %d sends number %d", n, got)
		}
		if n == 0 {
			first = wire
		} else if why := dropped(t, y.Push("b", first)); why != "replay" {
			t.Errorf("a packet of the first process: %s", why)
		}
		if _, why := only(t, y.Push("b", wire), "a"); why != "opened" {
			t.Errorf("process %d: %s", n, why)
		}
	}
}

// TestReboot: after a reboot an SA goes on behind all numbers that it may have sent, also with a disk that is slow, and
// refuses most of what it has received.
func TestReboot(t *testing.T) {
	near, far := ends(t)
	n, f := graphtest.NewDisk(), graphtest.NewDisk()
	kept := func(d *graphtest.Disk, args graph.Args) *graphtest.Test {
		var mem []byte
		d.Reboot()
		return graphtest.NewKept(t, d.Kind(*Kind()), args, graphtest.Start, &mem)
	}
	var first []byte
	highest := uint32(0)
	for k := range 3 {
		n.Busy = k == 2
		x, y := kept(n, near), kept(f, far)
		if k > 0 {
			if why := dropped(t, y.Push("b", first)); why != "replay" {
				t.Errorf("a packet of the first boot: %s", why)
			}
		}
		for i := range 5 {
			n.Busy = k == 2 && i < 3
			got := x.Push("a", unhex(t, goldPlain))
			if len(got.Out["b"]) == 0 {
				if why := dropped(t, got); why != "not-on-disk" || !n.Busy {
					t.Errorf("dropped: %s", why)
				}
				continue
			}
			wire, _ := only(t, got, "b")
			if seq := be.Uint32(wire[38:]); seq <= highest {
				t.Fatalf("boot %d sends number %d, after %d", k, seq, highest)
			} else {
				highest = seq
			}
			if first == nil {
				first = wire
			}
			if _, why := only(t, y.Push("b", wire), "a"); why != "opened" {
				t.Errorf("boot %d: %s", k, why)
			}
		}
	}
}

// TestJournalIsOpen: an app that was taken out of the running graph comes again, and finds the journal open, with its numbers.
func TestJournalIsOpen(t *testing.T) {
	near, _ := ends(t)
	d := graphtest.NewDisk()
	var mem []byte
	seq := uint32(0)
	for range 3 {
		x := graphtest.NewKept(t, d.Kind(*Kind()), near, graphtest.Start, &mem)
		d.Open = true
		wire, _ := only(t, x.Push("a", unhex(t, goldPlain)), "b")
		if seq++; be.Uint32(wire[38:]) != seq {
			t.Errorf("number %d, want %d", be.Uint32(wire[38:]), seq)
		}
	}
}

// TestSlowDisk: a new SA sends nothing before its numbers are reserved. With a disk that is broken it goes on where nonces
// do not repeat.
func TestSlowDisk(t *testing.T) {
	near, _ := ends(t)
	for iv, want := range map[string]int{"random": 1, "sequence": 0} {
		d := graphtest.NewDisk()
		d.Busy = true
		var mem []byte
		args := maps.Clone(near)
		args["iv"] = iv
		x := graphtest.NewKept(t, d.Kind(*Kind()), args, graphtest.Start, &mem)
		if why := dropped(t, x.Push("a", unhex(t, goldPlain))); why != "not-on-disk" {
			t.Errorf("iv=%s: %s", iv, why)
		}
		d.Broken = errors.New("input/output error")
		if n := len(x.Push("a", unhex(t, goldPlain)).Out["b"]); n != want {
			t.Errorf("iv=%s: %d packets with a broken disk, want %d", iv, n, want)
		}
	}
}

// TestDiskFallsBehind: where nonces do not repeat, packets do not wait for a disk that is slower than they are.
func TestDiskFallsBehind(t *testing.T) {
	near, _ := ends(t)
	for iv, want := range map[string]int{"random": 200, "sequence": 64} {
		d := graphtest.NewDisk()
		var mem []byte
		args := maps.Clone(near)
		args["iv"], args["lifetime"] = iv, "1000"
		x := graphtest.NewKept(t, d.Kind(*Kind()), args, graphtest.Start, &mem)
		d.Busy = true
		n := 0
		for range 200 {
			n += len(x.Push("a", unhex(t, goldPlain)).Out["b"])
		}
		if n != want {
			t.Errorf("iv=%s: %d packets, want %d", iv, n, want)
		}
	}
}

// TestReconfigure: SAs that stay keep their numbers.
func TestReconfigure(t *testing.T) {
	near, _ := ends(t)
	x := graphtest.New(t, *Kind(), near)
	x.Push("a", unhex(t, goldPlain))
	if err := x.Set(with(near, "out", "0x200@10.0.2.0/24", "in", "0x100")); err != nil {
		t.Fatal(err)
	}
	b, _ := only(t, x.Push("a", unhex(t, goldPlain)), "b")
	if be.Uint32(b[34:]) != 0x200 || be.Uint32(b[38:]) != 1 {
		t.Errorf("%x", b)
	}
	if err := x.Set(with(near, "lifetime", "2")); err != nil {
		t.Fatal(err)
	}
	b, _ = only(t, x.Push("a", unhex(t, goldPlain)), "b")
	if be.Uint32(b[34:]) != 0x100 || be.Uint32(b[38:]) != 2 {
		t.Errorf("%x", b)
	}
	if err := x.Set(with(near, "window", "64")); err == nil {
		t.Error("the window of a running SA was changed")
	}
	for _, v := range []string{"off", "on"} { // numbers that nobody kept would begin anew, under the same key, behind the next start
		x := graphtest.New(t, *Kind(), with(near, "keep", v))
		if err := x.Set(with(near, "keep", map[string]string{"off": "on", "on": "off"}[v])); err == nil {
			t.Errorf("keep=%s of a running app was changed", v)
		}
	}
	if why := dropped(t, x.Push("a", unhex(t, goldPlain))); why != "expired" {
		t.Error(why)
	}
}

// edit is a copy of b with a change, its IPv4 checksum put right.
func edit(b []byte, f func(b []byte)) []byte {
	b = bytes.Clone(b)
	f(b)
	hdr.IPv4(b[14:]).UpdateChecksum()
	return b
}

func TestRoads(t *testing.T) {
	near, _ := ends(t)
	plain := unhex(t, goldPlain)
	arp := append(bytes.Clone(plain[:12]), append([]byte{8, 6}, make([]byte, 46)...)...)
	back := edit(plain, func(b []byte) { copy(b[26:34], []byte{10, 0, 2, 1, 10, 0, 1, 1}) })
	esp := edit(back, func(b []byte) { b[23] = 50; be.PutUint32(b[34:], 0x200) })
	solicit := append(unhex(t, "02000000000202000000000186dd"), make([]byte, 64)...)
	hdr.IPv6(solicit[14:]).Encode(&hdr.IPv6Fields{PayloadLen: 24, NextHeader: 58, HopLimit: 255, Src: netip.MustParseAddr("2001:db8:1::1"), Dst: netip.MustParseAddr("2001:db8:2::1")})
	solicit[54] = hdr.ICMPv6NeighborSol
	far := bytes.Clone(solicit)
	far[21] = 254
	deep := append(bytes.Clone(plain[:12]), unhex(t, "810000018100000281000003")...)
	deep = append(deep, plain[12:]...)
	for name, x := range map[string]struct {
		args  []string
		in    string
		frame []byte
		want  string
	}{
		"arp":                  {nil, "a", arp, "not-ip"},
		"arp back":             {nil, "b", arp, "not-ip"},
		"short":                {nil, "a", plain[:9], "not-ip"},
		"three tags":           {nil, "a", deep, "malformed"},
		"truncated":            {nil, "a", plain[:40], "malformed"},
		"checksum":             {nil, "a", append(bytes.Clone(plain[:24]), append([]byte{1, 2}, plain[26:]...)...), "malformed"},
		"no sa":                {nil, "a", edit(plain, func(b []byte) { b[32] = 3 }), "no-sa"},
		"no sa, dropped":       {[]string{"other", "drop"}, "a", edit(plain, func(b []byte) { b[32] = 3 }), "other"},
		"fragment":             {nil, "a", edit(plain, func(b []byte) { b[20] = 0x20 }), "fragment"},
		"fragment, tunnel":     {tunnel(), "a", edit(plain, func(b []byte) { b[20] = 0x20 }), "protected"},
		"too big":              {[]string{"mtu", "68"}, "a", append(edit(plain, func(b []byte) { b[17]++ }), 0), "protected"},
		"too big by one":       {[]string{"mtu", "68"}, "a", append(edit(plain, func(b []byte) { b[17] += 4 }), 0, 0, 0, 0), "too-big"},
		"solicitation":         {nil, "a", solicit, "neighbour-discovery"},
		"solicitation back":    {nil, "b", solicit, "neighbour-discovery"},
		"not from this link":   {nil, "b", far, "unprotected"},
		"in the clear":         {nil, "b", back, "unprotected"},
		"in the clear, fragm.": {nil, "b", edit(back, func(b []byte) { b[20] = 0x20 }), "fragment"},
		"from nobody's source": {[]string{"in", "0x200@10.0.3.0/24"}, "b", back, "clear"},
		"another's esp":        {nil, "b", edit(esp, func(b []byte) { b[36] = 9 }), "unknown-sa"},
		"not the tunnel's":     {tunnel(), "b", esp, "unknown-sa"},
		"short esp":            {nil, "b", esp, "bad-esp"},
		"esp without header":   {nil, "b", edit(esp, func(b []byte) { b[17] = 27 })[:41], "bad-esp"},
		"esp of a few bytes":   {nil, "b", edit(esp, func(b []byte) { b[17] = 23 })[:37], "bad-esp"},
		"number 0":             {nil, "b", append(edit(esp, func(b []byte) { b[17] = 60; be.PutUint32(b[38:], 0) }), make([]byte, 40)...), "replay"},
		"forged":               {nil, "b", append(edit(esp, func(b []byte) { b[17] = 60 }), make([]byte, 40)...), "forged"},
	} {
		t.Run(name, func(t *testing.T) {
			r := graphtest.New(t, *Kind(), with(near, x.args...)).Push(x.in, x.frame)
			if len(r.Dropped) == 1 {
				if got := r.Dropped[0].Reason; got != x.want {
					t.Errorf("%s, want %s", got, x.want)
				}
				return
			}
			b, got := only(t, r, map[string]string{"a": "b", "b": "a"}[x.in])
			if got != x.want || got != "protected" && !bytes.Equal(b, x.frame) {
				t.Errorf("%s, want %s: %x", got, x.want, b)
			}
		})
	}
}

// TestInside: what is authentic, and yet not to be let through.
func TestInside(t *testing.T) {
	near, far := ends(t)
	inner := unhex(t, goldPlain)[14:]
	k := keymat(unhex(t, key128))
	build := func(seq uint32, text []byte, outer func(b []byte)) []byte {
		block, _ := aes.NewCipher([]byte(k[:16]))
		gcm, _ := cipher.NewGCM(block)
		h := be.AppendUint32(be.AppendUint32(nil, 0x100), seq)
		iv := be.AppendUint64(nil, uint64(seq))
		c := gcm.Seal(nil, append([]byte(k[16:]), iv...), text, h)
		esp := append(append(h, iv...), c...)
		b := append(unhex(t, goldPlain)[:34], esp...)
		return edit(b, func(b []byte) {
			be.PutUint16(b[16:], uint16(len(b)-14))
			b[23] = 50
			if outer != nil {
				outer(b)
			}
		})
	}
	ce := edit(append(make([]byte, 14), inner...), func(b []byte) { b[15] = 2 })[14:]
	toTunnel := func(b []byte) { copy(b[26:34], []byte{192, 0, 2, 1, 192, 0, 2, 2}) }
	congested := func(b []byte) { toTunnel(b); b[15] = 3 }
	for name, x := range map[string]struct {
		mode  []string
		text  []byte
		outer func([]byte)
		want  string
		out   []byte // the IP packet; nil: not compared
	}{
		"padding":            {nil, []byte{9, 9, 9, 9, 1, 3, 2, 17}, nil, "bad-padding", nil},
		"too much padding":   {nil, []byte{1, 2, 7, 17}, nil, "bad-padding", nil},
		"dummy":              {nil, []byte{1, 2, 2, 59}, nil, "dummy", nil},
		"no payload":         {nil, []byte{1, 2, 2, 17}, nil, "opened", nil},
		"source":             {nil, []byte{1, 2, 2, 17}, func(b []byte) { b[28] = 3 }, "not-covered", nil},
		"no packet inside":   {tunnel(), []byte{1, 2, 2, 17}, toTunnel, "not-tunnel", nil},
		"cut packet inside":  {tunnel(), append(bytes.Clone(inner[:20]), 1, 2, 2, 4), toTunnel, "malformed", nil},
		"traffic flow conf.": {tunnel(), append(append(bytes.Clone(inner), make([]byte, 41)...), 0, 4), toTunnel, "opened", inner},
		"inner source":       {tunnel(), append(edit(append(make([]byte, 14), inner...), func(b []byte) { b[28] = 3 })[14:], 1, 1, 4), toTunnel, "not-covered", nil},
		"congestion, lost":   {tunnel(), append(bytes.Clone(inner), 1, 1, 4), congested, "ecn", nil},
		"congestion, told":   {tunnel(), append(ce, 1, 1, 4), congested, "opened", edit(append(make([]byte, 14), inner...), func(b []byte) { b[15] = 3 })[14:]},
	} {
		t.Run(name, func(t *testing.T) {
			args := with(far, append([]string{"in", "0x100@10.0.1.0/24"}, x.mode...)...)
			if x.mode != nil {
				args["local"], args["remote"] = "192.0.2.2", "192.0.2.1"
			}
			r := graphtest.New(t, *Kind(), args).Push("b", build(1, x.text, x.outer))
			if x.want != "opened" {
				if why := dropped(t, r); why != x.want {
					t.Errorf("%s, want %s", why, x.want)
				}
				return
			}
			b, why := only(t, r, "a")
			if why != "opened" || hdr.Checksum(b[14:34], 0) != 0 || int(be.Uint16(b[16:]))+14 != len(b) {
				t.Errorf("%s: %x", why, b)
			}
			if x.out != nil && !bytes.Equal(b[14:], x.out) {
				t.Errorf("%x, want %x", b[14:], x.out)
			}
		})
	}
	_ = near
}

func TestArguments(t *testing.T) {
	near, _ := ends(t)
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, []byte("0x100 "+key128), 0o644); err != nil {
		t.Fatal(err)
	}
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "k")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, x := range []struct{ name, value, want string }{
		{"keys", "", "keys= is missing"},
		{"keys", "/nowhere/keys", "no such file"},
		{"keys", open, "chmod 600"},
		{"keys", file("0x100 1234"), "not 20, 28 or 36 bytes"},
		{"keys", file("0x100 " + key128 + "\n0x200 " + key128), "has the key of 0x100"},
		{"keys", file("0x100 " + key128 + "\n256 " + key256), "has a key already"},
		{"keys", file("0x100"), "want an SPI and a key"},
		{"keys", file("0x200 " + key128), "has no key for it"},
		{"out", "0x1@10.0.0.0/8", "no SPI"},
		{"out", "0x100", "want SPI@DESTINATION"},
		{"out", "0x100@10.0.0.0/8+0x200@10.1.0.0/8", "two SAs"},
		{"out", "0x100@10.0.0.300", "neither an address nor a prefix"},
		{"in", "0x200+0x200@10.0.0.1", "named twice"},
		{"window", "100", "multiple of 64"},
		{"window", "2048", "from 64 to 1024"},
		{"lifetime", "0x100000000", "at most 4294967295"},
		{"mtu", "10", "from 68"},
		{"mode", "both", "want transport or tunnel"},
		{"mode", "tunnel", "want local= and remote="},
		{"local", "10.0.0.1", "are of mode=tunnel"},
		{"local", "here", "want the IP address"},
		{"colour", "red", "no argument"},
	} {
		env := graph.Env{Share: func(f func() any) any { return f() }}
		_, err := newApp(env, with(near, x.name, x.value))
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s=%s: %v, want %q", x.name, x.value, err, x.want)
		}
		if err != nil && strings.Contains(err.Error(), key128[:16]) {
			t.Errorf("%v shows the key", err)
		}
	}
}

func TestAllocs(t *testing.T) {
	near, far := ends(t, "esn", "on")
	plain, wire := unhex(t, goldPlain), unhex(t, goldTransport)
	for name, n := range map[string]float64{
		"protect": graphtest.Allocs(t, *Kind(), near, "a", plain),
		"replay":  graphtest.Allocs(t, *Kind(), far, "b", wire),
		"forged":  graphtest.Allocs(t, *Kind(), near, "b", edit(wire, func(b []byte) { b[36] = 2 })),
		"open":    allocsOpen(t, far),
	} {
		if n != 0 {
			t.Errorf("%s: %v allocations a breath", name, n)
		}
	}
}

// allocsOpen counts allocations while packets are opened, by forgetting each
// time that they were received.
func allocsOpen(t testing.TB, args graph.Args) float64 {
	args = with(args, "esn", "off")
	k, app := forgetful()
	n := graphtest.Allocs(t, k, args, "b", unhex(t, goldTransport))
	if (*app).cfg.in[0x100].sa.packets < 100 {
		t.Fatal("nothing was opened")
	}
	return n
}

// forgetful is the kind whose inbound SAs forget before every batch what they
// received.
func forgetful() (graph.Kind, **App) {
	k := *Kind()
	start := k.New
	app := new(*App)
	k.New = func(env graph.Env, args graph.Args) (graph.App, error) {
		a, err := start(env, args)
		if err != nil {
			return nil, err
		}
		*app = a.(*App)
		return &amnesiac{*app}, nil
	}
	return k, app
}

// FuzzFrames gives any bytes to both ends, as they are and behind a VLAN tag.
// What passes is untouched, nothing covered passes, and what was protected comes
// back.
func FuzzFrames(f *testing.F) {
	for _, s := range []string{"", goldPlain, goldTransport, goldTunnel, goldPlain[:50],
		"02000000000202000000000186dd6000000000183bff20010db800010000000000000000000120010db8000200000000000000000001" + strings.Repeat("3a", 24)} {
		f.Add(unhex(f, s), false)
		f.Add(unhex(f, s), true)
	}
	apps := map[bool][3]*App{}
	for _, tunnelled := range []bool{false, true} {
		more := []string{"mtu", "65535"}
		if tunnelled {
			more = append(more, tunnel()...)
		}
		near, far := ends(f, more...)
		// The third gets the fuzzer's ESP: a golden frame's number must be new to the
		// second when the first uses it.
		apps[tunnelled] = [3]*App{newAlone(f, near), newAlone(f, far), newAlone(f, far)}
	}
	pool, err := packet.NewPool(4, 16384, nil)
	if err != nil {
		f.Fatal(err)
	}
	c := new(graph.Ctx)
	f.Fuzz(func(t *testing.T, b []byte, tunnelled bool) {
		if len(b) > 9000 {
			return
		}
		x, y, z := apps[tunnelled][0], apps[tunnelled][1], apps[tunnelled][2]
		frames := [][]byte{b}
		if len(b) >= 14 {
			frames = append(frames, append(append(bytes.Clone(b[:12]), 0x81, 0, 0, 7), b[12:]...))
		}
		buf := pool.Get()
		defer buf.Put()
		for _, frame := range frames {
			buf.SetBytes(frame)
			if r := z.open(c, buf); r >= firstPassed && r < firstDropped && !bytes.Equal(buf.Bytes(), frame) {
				t.Fatalf("passed, and changed (%s): %x", reasons[r].Name, buf.Bytes())
			}
			buf.SetBytes(frame)
			r := x.protect(c, buf)
			var d datagram
			ip := parse(frame, &d) == isIP
			covered := ip && x.covers(d.dst(frame)) && !d.neighbour(frame)
			switch {
			case r >= firstDropped:
				continue
			case r >= firstPassed:
				if covered || !bytes.Equal(buf.Bytes(), frame) {
					t.Fatalf("passed (%s): %x", reasons[r].Name, buf.Bytes())
				}
				continue
			case !covered:
				t.Fatalf("protected %x", frame)
			}
			if n := d.body - d.l3; tunnelled || n == hdr.IPv4Len || n == hdr.IPv6Len && d.v6 {
				checkESP(t, buf.Bytes()) // what is in front of it is not the fuzzer's
			}
			switch r := y.open(c, buf); {
			case r == reasonDummy && d.proto == hdr.ProtoNoNext:
			case r != reasonOpened || !bytes.Equal(buf.Bytes(), frame[:d.end]):
				t.Fatalf("came back (%s)\n%x\nwas\n%x", reasons[r].Name, buf.Bytes(), frame[:d.end])
			}
		}
	})
}

// TestParseUsual: IPv4 without tags and options, which is found in another way, is
// found to be what it is behind a tag.
func TestParseUsual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := sized(rapid.IntRange(0, 80).Draw(t, "payload"))
		for range rapid.IntRange(0, 2).Draw(t, "changes") {
			b[rapid.IntRange(12, 33).Draw(t, "at")] = rapid.Byte().Draw(t, "to")
		}
		if rapid.Bool().Draw(t, "sum") && b[14] == 0x45 {
			hdr.IPv4(b[14:]).UpdateChecksum()
		}
		b = b[:rapid.IntRange(0, len(b)).Draw(t, "length")]
		var x, y datagram
		got := parse(b, &x)
		if len(b) < 14 {
			return
		}
		want := parse(append(append(bytes.Clone(b[:12]), 0x81, 0, 0, 7), b[12:]...), &y)
		if be.Uint16(b[12:]) == hdr.EtherVLAN || be.Uint16(b[12:]) == hdr.EtherQinQ {
			return
		}
		y.l3, y.nextAt, y.body, y.end = y.l3-4, y.nextAt-4, y.body-4, y.end-4
		if got != want || got == isIP && x != y {
			t.Fatalf("%x: %d %+v, behind a tag %d %+v", b, got, x, want, y)
		}
	})
}

// newAlone is an app without a graph.
func newAlone(t testing.TB, args graph.Args) *App {
	a, err := newApp(graph.Env{Share: func(f func() any) any { return f() }}, args)
	if err != nil {
		t.Fatal(err)
	}
	return a.(*App)
}

func (a *App) covers(dst netip.Addr) bool {
	_, ok := a.cfg.out.Lookup(dst)
	return ok
}

// TestTurns: workers that share an SA never send a number twice, nor receive one
// twice.
func TestTurns(t *testing.T) {
	const workers, numbers = 4, 2000
	s := &sa{shared: true, win: window{size: MaxWindow}, disk: noReserve}
	sent, received := make([][]uint64, workers), make([]int, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for n := range uint32(numbers) {
				seq, _ := s.next(1, workers*numbers)
				sent[w] = append(sent[w], seq)
				if seq, ok := s.expect(n + 1); ok {
					if n%64 == 0 {
						runtime.Gosched()
					}
					if s.accept(seq, 1) {
						received[w]++
					}
				}
			}
		})
	}
	wg.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(sent...)))
	if seq, why := s.next(1, workers*numbers); len(slices.Compact(all)) != workers*numbers || all[0] != 1 || seq != 0 || why != reasonExpired {
		t.Errorf("%d numbers from %d", len(all), all[0])
	}
	sum := 0
	for _, n := range received {
		sum += n
	}
	if sum > numbers || s.win.top != numbers {
		t.Errorf("%d packets of %d were received, the last is %d", sum, numbers, s.win.top)
	}
}
