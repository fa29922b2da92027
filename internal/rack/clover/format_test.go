package clover

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
)

// The words of a captured CAS (a ConnectX-5 under SwordBox's evaluation). The CAS links handle 0x8f491 behind
// an entry of version 1.
func TestPointerWord(t *testing.T) {
	if w := wire.Linked(1, wire.Ref(0x8f491, 2)); w != 0x8f491<<28|2<<19|1<<11 {
		t.Errorf("%#x", uint64(w))
	}
	if w := wire.Linked(1, wire.Ref(0x8f491, 2)); uint64(w) != 0x00008f4910100800 {
		t.Errorf("%#x", uint64(w))
	}
	if w := wire.Linked(1, wire.Ref(0x8f491, 1)); uint64(w) != 0x00008f4910080800 {
		t.Errorf("%#x, captured 0x8f4910080800", uint64(w))
	}
	if w := wire.Fresh(1); uint64(w) != 0x800 {
		t.Errorf("%#x, captured 0x800", uint64(w))
	}
	rapid.Check(t, func(t *rapid.T) {
		lh := rapid.Uint32Range(1, 1<<32-1).Draw(t, "lh")
		v, nv := rapid.Byte().Draw(t, "v"), rapid.Byte().Draw(t, "nv")
		w := wire.Linked(v, wire.Ref(lh, nv))
		if w.LH() != lh || w.Version() != v || w.NextVersion() != nv || w.Next() != wire.Ref(lh, nv) || w>>60 != 0 {
			t.Fatalf("%v", w)
		}
		if wire.Fresh(v).Next() != 0 {
			t.Fatal("a fresh header has a successor")
		}
	})
}

// recorder counts packets by operation and IPv4 total length.
type recorder struct {
	seen map[string]int
	zero int
}

func (r *recorder) pass(now clock.Time, up bool, b *packet.Buf, emit func(*packet.Buf)) {
	x := b.Bytes()
	var f hdr.Frame
	if hdr.Parse(x, &f) == hdr.IsRoCE {
		ip := binary.BigEndian.Uint16(x[f.L3+2:])
		r.seen[fmt.Sprintf("%#02x %d", uint8(f.Op), ip)]++
		if f.Op == hdr.WriteOnly && ip > 252 {
			if p := f.PayloadOf(x); bytes.Equal(p[len(p)-100:], make([]byte, 100)) {
				r.zero++
			}
		}
	}
	emit(b)
}

// Packets have the sizes of those in the real traces (1000-byte values).
func TestWireSizes(t *testing.T) {
	m, s := &recorder{seen: map[string]int{}}, &recorder{seen: map[string]int{}}
	r := newRig(t, Config{Keys: ycsb.Sequential(7, 1), Slab: 1024, Entries: 256, Sessions: 1}, 2, 1, m, s)
	check := func(what string, x *recorder, want map[string]int) {
		t.Helper()
		for k, n := range want {
			if x.seen[k] != n {
				t.Errorf("%s: %d of [%s], want %d; saw %v", what, x.seen[k], k, n, x.seen)
			}
		}
		n, total := 0, 0
		for _, c := range want {
			n += c
		}
		for _, c := range x.seen {
			total += c
		}
		// The bridge sends frames to all ports before it knows the addresses.
		if n != total && what != "first reads" {
			t.Errorf("%s: other packets too: %v", what, x.seen)
		}
		clear(x.seen)
	}
	value := bytes.Repeat([]byte{0xA5}, 900)
	r.op(0, 0, false, 7, nil)
	r.op(1, 0, false, 7, nil)
	r.settle()
	check("first reads", m, map[string]int{"0x0c 60": 2, "0x10 1072": 2})
	// Two initial exchanges (2 spaces) and one query on each node.
	check("first reads", s, map[string]int{"0x04 236": 6, "0x11 48": 12, "0x0a 252": 6})
	if w := r.op(0, 0, true, 7, value); w.Err != nil || !w.FirstTry || w.RoundTrips != 2 {
		t.Errorf("%+v", w)
	}
	r.settle()
	check("write", m, map[string]int{"0x0a 1084": 1, "0x11 48": 2, "0x13 72": 1, "0x12 56": 1, "0x0a 68": 1})
	if m.zero != 1 {
		t.Error("the entry is not padded with zeros")
	}
	if s.seen["0x04 604"] != 1 {
		t.Errorf("no GC request: %v", s.seen)
	}
	// The other node's cache is stale: its CAS fails, it reads headers, and tries again.
	if w := r.op(1, 0, true, 7, value); w.Err != nil || w.FirstTry || w.RoundTrips != 5 {
		t.Errorf("%+v", w)
	}
	r.settle()
	check("conflict", m, map[string]int{"0x0a 1084": 1, "0x11 48": 2, "0x13 72": 2, "0x12 56": 2, "0x0c 60": 2, "0x10 56": 2, "0x0a 68": 1})
	// The first node's cache is stale now: it reads the entry, then the successor and the shortcut.
	if x := r.op(0, 0, false, 7, nil); x.Err != nil || x.FirstTry || x.RoundTrips != 2 || !bytes.Equal(x.Value[:900], value) {
		t.Errorf("%v %d", x.Err, x.RoundTrips)
	}
	r.settle()
	check("stale read", m, map[string]int{"0x0c 60": 3, "0x10 1072": 2, "0x10 56": 1})
}

// A client that reads shortcuts eagerly makes two READs for a read without conflict. After a conflict it
// jumps to the tail with the second READ.
func TestEagerShortcuts(t *testing.T) {
	m := &recorder{seen: map[string]int{}}
	r := newRig(t, Config{Keys: ycsb.Sequential(7, 1), Slab: 1024, Entries: 256, Sessions: 1, EagerShortcuts: true}, 2, 1, m)
	value := bytes.Repeat([]byte{0xA5}, 900)
	check := func(what string, trips int, want map[string]int) {
		t.Helper()
		clear(m.seen)
		x := r.op(0, 0, false, 7, nil)
		r.settle()
		if x.Err != nil || x.RoundTrips != trips || x.FirstTry != (trips == 1) {
			t.Errorf("%s: %+v", what, x)
		}
		if !maps.Equal(m.seen, want) {
			t.Errorf("%s: %v, want %v", what, m.seen, want)
		}
	}
	r.op(0, 0, false, 7, nil)
	r.op(1, 0, false, 7, nil)
	r.settle()
	check("no conflict", 1, map[string]int{"0x0c 60": 2, "0x10 1072": 1, "0x10 56": 1})
	for range 3 {
		if w := r.op(1, 0, true, 7, value); w.Err != nil {
			t.Fatal(w.Err)
		}
		r.settle()
	}
	check("three behind", 2, map[string]int{"0x0c 60": 3, "0x10 1072": 2, "0x10 56": 1})
}

func TestLayoutFind(t *testing.T) {
	r := newRig(t, Config{Keys: ycsb.Sequential(0, 10), Entries: 100, Slab: 256}, 1, 3)
	l := r.cl.Layout()
	for lh := uint32(0); lh < 400; lh++ {
		s, va := l.Entry(lh)
		if (s != nil) != (lh >= 1 && lh <= 300) {
			t.Fatalf("handle %d: %v", lh, s)
		}
		if s != nil && (s.Node != (lh-1)/100 || va != s.VA+uint64(lh-s.FirstLH)*256) {
			t.Fatalf("handle %d on node %d at %#x", lh, s.Node, va)
		}
	}
	if s, _ := l.Shortcut(FirstShortcut); s == nil || s.Slab != 8 {
		t.Fatal("no first shortcut")
	}
}
