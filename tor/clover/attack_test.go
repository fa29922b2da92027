package clover

import (
	"bytes"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// unmix is the inverse of index.Mix.
func unmix(x uint64) uint64 {
	inverse := func(m uint64) uint64 {
		r := m
		for range 6 {
			r *= 2 - m*r
		}
		return r
	}
	x ^= x >> 33
	x *= inverse(0xc4ceb9fe1a85ec53)
	x ^= x >> 33
	x *= inverse(0xff51afd7ed558ccd)
	return x ^ x>>33
}

// A client of the store chooses the keys of its entries. The cost of finding the keys of others does not
// depend on that choice.
func TestAttackChosenKeys(t *testing.T) {
	const places = 1 << 16
	cost := func(key func(k uint64) uint64) time.Duration {
		table := newKeyTable(places)
		table.seed = 0x5EED
		for k := range uint64(places / 2) {
			table.insert(0, key(k))
		}
		for k := range uint64(1000) {
			table.insert(0, k)
		}
		best := time.Hour
		for range 3 {
			begin := time.Now()
			for k := range uint64(1000) {
				table.find(0, k)
			}
			best = min(best, time.Since(begin)/1000)
		}
		return best
	}
	fair := cost(func(k uint64) uint64 { return 1<<20 + k })
	chosen := cost(func(k uint64) uint64 { return unmix(k<<32 | 7) })
	t.Logf("to find another client's key takes %v, and %v when somebody chose half of the keys", fair, chosen)
	if chosen > 20*fair+time.Microsecond {
		t.Errorf("to find another client's key takes %v; %v when somebody chose half of the keys", fair, chosen)
	}
}

// A client that chooses the addresses of its entries does not choose whose entries these displace.
func TestAttackChosenAddresses(t *testing.T) {
	fair := newAddrTable(1 << 16)
	keyed := fair
	keyed.seed = 0x5EED
	const others = 1000
	one, n := map[int32]bool{}, 0
	for va := uint64(1) << 32; n < others; va += 64 {
		if fair.set(0, va) == fair.set(0, 0) {
			one[keyed.set(0, va)] = true
			n++
		}
	}
	// Of 1,000 addresses in 16,384 sets some 30 share one by chance.
	if len(one) < 9*others/10 {
		t.Errorf("%d addresses that are in one set without a seed are in %d with one", others, len(one))
	}
}

// A CAS in a frame of a shape that the server's NIC does not take is not steered, and no other CAS is led
// behind it: behind IEEE 802.1ad tags, behind several tags, and with IP options.
func TestAttackOtherShape(t *testing.T) {
	tag := func(b []byte, tags ...byte) []byte {
		return append(append(append([]byte(nil), b[:12]...), tags...), b[12:]...)
	}
	options := func(b []byte, n int) []byte {
		p := append(append([]byte(nil), b[:34]...), bytes.Repeat([]byte{1}, 4*n)...)
		p = append(p, b[34:]...)
		ip := hdr.IPv4(p[14:][:20+4*n])
		ip[0] += byte(n)
		ip.SetTotalLen(uint16(len(p) - 14))
		ip.UpdateChecksum()
		return p
	}
	for name, shape := range map[string]func(b []byte) []byte{
		"a tag of 0x88A8": func(b []byte) []byte { return tag(b, 0x88, 0xA8, 0, 0) },
		"two tags":        func(b []byte) []byte { return tag(b, 0x81, 0, 0, 0, 0x81, 0, 0, 0) },
		"IPv4 options":    func(b []byte) []byte { return options(b, 1) },
		"long options":    func(b []byte) []byte { return options(b, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			r := away(t, graph.Args{"repair": "10ms"})
			b := frameOf{src: r.client, dst: r.server, sport: 0xC020, op: hdr.CompareSwap, qpn: 0x20, psn: 109, ext: atomicETH(old, r.rkey, r.swap(0x9002, 1, 1), uint64(wire.Fresh(1))), ackReq: true}.bytes()
			b = shape(b)
			var f hdr.Frame
			if hdr.Parse(b, &f) != hdr.IsRoCE {
				t.Fatal(f.Why)
			}
			hdr.SetICRC(b, &f)
			r.Clock.Advance(time.Microsecond)
			if at := atomicOf(t, only(t, r.Push("a", b).Out["b"])).VA(); at != old {
				t.Errorf("sent to %#x", at)
			}
			if at := r.link(0x30, 109, 0x9003, old); at == entryAt(0x9002) {
				t.Errorf("another is led behind it")
			}
			again := 0
			for range 30 {
				again += len(r.Advance(20 * time.Millisecond).Out["b"])
			}
			t.Logf("sent again %d times", again)
		})
	}
}

// Which keys are steered may change while appends of a key are under way: their clients are told of what the server did.
func TestAttackOtherKeysUnderWay(t *testing.T) {
	for _, only := range []string{"none", "any@10.9.9.9+none", "1-4"} {
		r := away(t, graph.Args{})
		if at := r.link(0x20, 109, 0x9002, old); at != entryAt(0x9001) {
			t.Fatalf("sent to %#x", at)
		}
		if at := r.link(0x30, 109, 0x9003, old); at != entryAt(0x9002) {
			t.Fatalf("another is sent to %#x", at)
		}
		if err := r.Set(graph.Args{"only": only}); err != nil {
			t.Fatal(err)
		}
		r.Advance(50 * time.Millisecond)
		for _, qpn := range []uint32{0x20, 0x30} {
			if got := r.linked(qpn, 109).Out["a"]; len(got) != 1 {
				t.Errorf("only=%s: the server's answer that %#x has linked its entry becomes %d frames; %d chains are cut", only, qpn, len(got), r.Counter("chains-cut"))
			}
		}
	}
}

// An append is under way, and others are led behind it. Meanwhile its client, or another sender, makes the
// connection manager announce a second connection of the same queue pair. The server executes the append, and
// all the clients get the answer that says so.
func TestAttackHandshakeUnderWay(t *testing.T) {
	r := away(t, graph.Args{})
	r.cm("a", r.client, r.server, hdr.CMFields{AttributeID: hdr.ConnectRequest, LocalCommID: 11, LocalQPN: 0x1020, StartingPSN: 900, TransportService: hdr.RC, PathMTU: 1024, LocalGID: r.client, RemoteGID: r.server})
	if at := r.link(0x20, 109, 0x9002, old); at != entryAt(0x9001) {
		t.Fatalf("sent to %#x", at)
	}
	r.Clock.Advance(time.Microsecond)
	r.cm("b", r.server, r.client, hdr.CMFields{AttributeID: hdr.ConnectReply, LocalCommID: 22, RemoteCommID: 11, LocalQPN: 0x777, StartingPSN: 600})
	if at := r.link(0x30, 109, 0x9003, old); at != entryAt(0x9002) {
		t.Fatalf("another is sent to %#x", at)
	}
	r.cm("a", r.client, r.server, hdr.CMFields{AttributeID: hdr.ReadyToUse, LocalCommID: 11, RemoteCommID: 22})
	first, second := r.linked(0x20, 109), r.linked(0x30, 109)
	if n := len(first.Out["a"]) + len(second.Out["a"]); n != 2 {
		t.Errorf("of two answers that an entry was linked %d go on; %d chains are cut", n, r.Counter("chains-cut"))
	}
	total := 0
	for range 30 {
		total += len(r.Advance(20 * time.Millisecond).Out["a"])
	}
	t.Logf("%d later", total)
}
