package clover

import (
	"bytes"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// crew is a rig with three paired connections, 0x10, 0x20 and 0x30, whose next
// PSN is 108, and with handles known: handle 0x9000+i is at 0x900000+128*i.
func crew(t testing.TB, args graph.Args) *rig {
	r := newRig(t, args)
	for i := range uint32(3) {
		lh := 0x9100 + 16*i
		r.warm(0x10+0x10*i, 100, entryAt(lh), lh)
	}
	return r
}

// pair has so many answers on qpn, before PSN psn, that both of its directions
// are known.
func (r *rig) pair(qpn, psn uint32) {
	for i := range uint32(6) {
		r.Clock.Advance(time.Millisecond)
		r.to(qpn, psn+i, hdr.ReadRequest, reth(0x10000, r.rkey, r.size), nil)
		r.from(qpn, psn+i, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
	}
}

func entryAt(lh uint32) uint64 { return 0x900000 + uint64(lh-0x9000)*128 }

// key is the key that these tests contend for.
const key = 5

// wrote has qpn write entry lh of the key.
func (r *rig) wrote(qpn, psn, lh uint32) { r.write(qpn, psn, entryAt(lh), key, 1) }

// link has qpn send the CAS that links lh behind target, and returns the
// address that it left for.
func (r *rig) link(qpn, psn, lh uint32, target uint64) uint64 {
	r.t.Helper()
	got := r.to(qpn, psn, hdr.CompareSwap, atomicETH(target, r.rkey, r.swap(lh, 1, 1), uint64(wire.Fresh(1))), nil)
	return atomicOf(r.t, only(r.t, got.Out["b"])).VA()
}

func (r *rig) linked(qpn, psn uint32) graphtest.Result {
	return r.from(qpn, psn, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil)
}

func (r *rig) refused(qpn, psn uint32) graphtest.Result {
	return r.from(qpn, psn, hdr.AtomicAck, hdr.SynACK, uint64(wire.Linked(1, wire.Ref(0x4242, 1))), nil)
}

func (r *rig) believed(want bool, when string) {
	r.t.Helper()
	if r.known() != want {
		r.t.Errorf("%s: tail believed is %v, want %v", when, !want, want)
	}
}

const old = 0x800000 // the tail before the box saw any

func TestBeliefAfterOneAppend(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.believed(false, "CAS on its way")
	r.linked(0x10, 109)
	r.believed(true, "CAS succeeded")
}

func TestNoBeliefWhileSettling(t *testing.T) {
	r := crew(t, graph.Args{"settle": "1s"})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.believed(false, "settling")
	r.Clock.Advance(time.Second)
	r.wrote(0x10, 110, 0x9002)
	r.link(0x10, 111, 0x9002, entryAt(0x9001))
	r.linked(0x10, 111)
	r.believed(true, "settled")
}

// Somebody was sent behind the new entry before its success was seen.
func TestNoBeliefInTouchedEntry(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.wrote(0x20, 108, 0x9002)
	r.link(0x10, 109, 0x9001, old)
	r.link(0x20, 109, 0x9002, entryAt(0x9001))
	r.linked(0x10, 109)
	r.believed(false, "entry 1 has a successor")
	r.linked(0x20, 109)
	r.believed(true, "entry 2 has none")
}

// An answer from before the key was dropped says nothing of now.
func TestNoBeliefInOldAnswer(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.wrote(0x20, 108, 0x9002)
	r.link(0x10, 109, 0x9001, old) // its answer is slow
	r.link(0x20, 109, 0x9002, old+128)
	r.linked(0x20, 109)
	r.believed(true, "entry 2 is the tail")
	r.wrote(0x30, 108, 0x9003)
	if at := r.link(0x30, 109, 0x9003, old); at != entryAt(0x9002) {
		t.Errorf("steered to %#x", at)
	}
	r.refused(0x30, 109)
	r.believed(false, "a steered CAS failed")
	r.linked(0x10, 109)
	r.believed(false, "an answer from before")
}

// An answer that is so late that its entry was recycled, and written anew for
// the same key, says nothing of the new incarnation.
func TestNoBeliefInRecycledEntry(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.write(0x20, 108, entryAt(0x9001), key, 2)
	r.linked(0x10, 109)
	r.believed(false, "the entry is not linked in its new incarnation")
}

// Two appends to one chain that succeed at different ends: one is wrong.
func TestNoBeliefInTwoEnds(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.wrote(0x20, 108, 0x9002)
	r.link(0x10, 109, 0x9001, old)
	r.link(0x20, 109, 0x9002, old+128)
	r.linked(0x10, 109)
	r.linked(0x20, 109)
	r.believed(false, "two ends")
}

// An entry that others hang behind must be linked before its key is steered.
func TestQuarantine(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.wrote(0x10, 110, 0x9002)
	r.wrote(0x20, 108, 0x9003)
	r.link(0x10, 111, 0x9002, old)
	if at := r.link(0x20, 109, 0x9003, old); at != entryAt(0x9002) {
		t.Fatalf("steered to %#x", at)
	}
	r.refused(0x10, 111) // 2 is not linked, and 3 hangs behind it
	r.linked(0x20, 109)
	if r.Counter("orphans") != 1 {
		t.Error("the orphan was not noticed")
	}
	r.wrote(0x30, 108, 0x9004)
	r.link(0x30, 109, 0x9004, entryAt(0x9003))
	r.linked(0x30, 109)
	r.believed(false, "4 hangs behind the orphan")
	// 2 must never be sent to 4: that would close a ring. It is linked at the
	// true tail.
	if at := r.link(0x10, 112, 0x9002, old+256); at != old+256 {
		t.Errorf("an entry that was steered before was steered again, to %#x", at)
	}
	r.linked(0x10, 112)
	r.wrote(0x30, 110, 0x9005)
	r.link(0x30, 111, 0x9005, entryAt(0x9004))
	r.linked(0x30, 111)
	r.believed(true, "the orphan was linked")
}

// An entry that was steered once and failed is not steered again, even when
// the key's tail is known once more.
func TestSteeredOnce(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.wrote(0x20, 108, 0x9002)
	r.link(0x20, 109, 0x9002, old)
	r.refused(0x20, 109) // no CAS is led behind 2: no quarantine
	r.wrote(0x30, 108, 0x9003)
	r.link(0x30, 109, 0x9003, old+256)
	r.linked(0x30, 109)
	r.believed(true, "3 is the tail")
	if at := r.link(0x20, 110, 0x9002, old+512); at != old+512 {
		t.Errorf("steered again, to %#x", at)
	}
}

func TestNotSteered(t *testing.T) {
	known := func(t *testing.T, clients string) *rig {
		r := crew(t, graph.Args{"clients": clients})
		r.wrote(0x10, 108, 0x9001)
		r.link(0x10, 109, 0x9001, old)
		r.linked(0x10, 109)
		r.believed(true, "to begin with")
		return r
	}
	t.Run("entry not acknowledged", func(t *testing.T) {
		for _, clients := range []string{"any", "trusted"} {
			r := known(t, clients)
			p := make([]byte, 128)
			wireEntry(p, key)
			r.to(0x20, 108, hdr.WriteOnly, reth(entryAt(0x9002), r.rkey, 128), p)
			if at := r.link(0x20, 109, 0x9002, old); at != old {
				t.Errorf("clients=%s: steered to %#x before its entry is known to be there", clients, at)
			}
		}
	})
	t.Run("unpaired connection", func(t *testing.T) {
		r := known(t, "any")
		r.wrote(0x40, 50, 0x9002)
		if at := r.link(0x40, 51, 0x9002, old); at != old {
			t.Errorf("steered to %#x although its answer could not be turned back", at)
		}
	})
	t.Run("ahead of its turn", func(t *testing.T) {
		r := known(t, "any")
		r.wrote(0x20, 108, 0x9002)
		if at := r.link(0x20, 110, 0x9002, old); at != old {
			t.Errorf("steered to %#x although the server will not take it", at)
		}
		if at := r.link(0x20, 109, 0x9002, old); at != entryAt(0x9001) {
			t.Errorf("in its turn it went to %#x", at)
		}
	})
}

// Handles are learnt although entries wait that were created, and are never
// linked; and nothing is believed that as much speaks against as for it.
func TestLearning(t *testing.T) {
	bases := func(r *rig) int { return r.App().(graph.Reporter).Report().(Report).Bases }
	t.Run("creations", func(t *testing.T) {
		r := newRig(t, graph.Args{})
		r.pair(0x10, 80)
		for i := range uint32(6) {
			r.wrote(0x10, 90+3*i, 0x9300+5*i*i) // created, never linked
			lh := 0x9100 + i
			r.append(0x10, 91+3*i, 0x10000, entryAt(lh), lh, 1000+uint64(i))
		}
		if bases(r) != 1 {
			t.Errorf("%d bases are trusted, want 1", bases(r))
		}
		if at := (base{va: 0x900000 - 0x9000*128, size: 128}); !r.App().(*Steer).trusted(&at) {
			t.Error("another base is trusted")
		}
	})
	t.Run("ambiguous", func(t *testing.T) {
		r := newRig(t, graph.Args{})
		r.pair(0x10, 80)
		for i := range uint32(6) {
			lh := 0x9100 + 2*i
			r.wrote(0x10, 90+3*i, lh) // created, always just before the other
			r.append(0x10, 91+3*i, 0x10000, entryAt(lh+1), lh+1, 1000+uint64(i))
		}
		if bases(r) != 0 {
			t.Errorf("%d bases are trusted although two are said as often", bases(r))
		}
	})
}

// What connections without a row do to a tail is not overlooked, nor is the
// rewriting of an address that went unseen and comes again.
func TestStrangers(t *testing.T) {
	known := func(t *testing.T, args graph.Args) *rig {
		r := crew(t, args)
		r.wrote(0x10, 108, 0x9001)
		r.link(0x10, 109, 0x9001, old)
		r.linked(0x10, 109)
		r.believed(true, "to begin with")
		return r
	}
	for name, do := range map[string]func(r *rig){
		"FETCH ADD":    func(r *rig) { r.to(0x99, 1, hdr.FetchAdd, atomicETH(entryAt(0x9001), r.rkey, 1, 0), nil) },
		"8-byte WRITE": func(r *rig) { r.to(0x99, 1, hdr.WriteOnly, reth(entryAt(0x9001), r.rkey, 8), make([]byte, 8)) },
		"CAS":          func(r *rig) { r.to(0x99, 1, hdr.CompareSwap, atomicETH(entryAt(0x9001), r.rkey, 1, 0), nil) },
		"entry":        func(r *rig) { r.wrote(0x99, 1, 0x9001) },
		"repeated WRITE that was not seen": func(r *rig) {
			p := make([]byte, 128)
			wireEntry(p, key+1)
			r.to(0x10, 107, hdr.WriteOnly, reth(entryAt(0x9001), r.rkey, 128), p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, conns := range []string{"3", "8"} { // full, and not
				r := known(t, graph.Args{"conns": conns})
				do(r)
				r.believed(false, "with "+conns+" rows")
			}
		})
	}
	t.Run("repeated WRITE that was", func(t *testing.T) {
		r := known(t, graph.Args{})
		p := make([]byte, 128)
		wireEntry(p, key)
		r.to(0x10, 108, hdr.WriteOnly, reth(entryAt(0x9001), r.rkey, 128), p)
		r.believed(true, "the same again")
	})
}

// A handle is turned into an address by what enough appends agree on, and
// never by what only few of that slab class say.
func TestTrust(t *testing.T) {
	s := newState(settings{keys: 1, addrs: 4, conns: 1, hold: 1}, 1)
	right, wrong := base{va: 0x1000, size: 128, region: 1}, base{va: 0x2000, size: 128, region: 1}
	for n := 1; n < trustedBase; n++ {
		s.taught(right)
		if s.trusted(&right) {
			t.Fatalf("trusted after %d appends", n)
		}
	}
	for range 4 * trustedBase {
		s.taught(right)
	}
	for range trustedBase {
		s.taught(wrong)
	}
	if !s.trusted(&right) || s.trusted(&wrong) {
		t.Errorf("trusted: the many %v, the few %v", s.trusted(&right), s.trusted(&wrong))
	}
	if other := (base{va: 0x1000, size: 256, region: 1}); s.trusted(&other) {
		t.Error("what holds for one slab class is believed of another")
	}
}

// More unanswered requests than can be remembered pass as they are.
func TestWindow(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.wrote(0x10, 110, 0x9002)
	r.link(0x10, 111, 0x9002, entryAt(0x9001))
	r.linked(0x10, 111)
	for i := range uint32(window + 2) {
		b := only(t, r.to(0x20, 108+i, hdr.ReadRequest, reth(entryAt(0x9001), r.rkey, 128), nil).Out["b"])
		var f hdr.Frame
		hdr.Parse(b, &f)
		want := entryAt(0x9002)
		if i >= window {
			want = entryAt(0x9001)
		}
		if got := f.RETHOf(b).VA(); got != want {
			t.Errorf("request %d went to %#x, want %#x", i, got, want)
		}
	}
	if r.Counter("window-full") != 2 {
		t.Errorf("window-full is %d", r.Counter("window-full"))
	}
}

// A key that is not steered any more takes its addresses with it: another one
// in its place must not inherit them.
func TestForgottenKey(t *testing.T) {
	r := crew(t, graph.Args{"keys": "16"})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	if err := r.Set(graph.Args{"only": "6+7"}); err != nil {
		t.Fatal(err)
	}
	r.pair(0x30, 108)
	if r.App().(*Steer).keys.find(0, key) != noSlot {
		t.Error("it has a place still")
	}
	for i, k := range []uint64{6, 7} {
		psn, lh := uint32(110+4*i), uint32(0x9010+2*i)
		r.append(0x10, psn, old+1024, entryAt(lh), lh, k)
		r.append(0x10, psn+2, entryAt(lh), entryAt(lh+1), lh+1, k)
	}
	b := only(t, r.to(0x20, 108, hdr.ReadRequest, reth(entryAt(0x9001), r.rkey, 128), nil).Out["b"])
	var f hdr.Frame
	hdr.Parse(b, &f)
	if got := f.RETHOf(b).VA(); got != entryAt(0x9001) {
		t.Errorf("a read of a forgotten key's entry went to %#x", got)
	}
}

// TestReadInItsMiddle: a READ that is taken up again in its middle goes to the address where it began. The
// first packet of its answer does not begin with an entry's header, and the client gets the bytes that are
// there. This holds where the path MTU is known when the READ passes (from a WRITE of more than one packet),
// and where it is not.
func TestReadInItsMiddle(t *testing.T) {
	for _, known := range []bool{true, false} {
		r := newRig(t, graph.Args{})
		r.size = 256
		r.pair(0x10, 88) // answers count
		r.size = 1024
		va := func(lh uint32) uint64 { return 0x900000 + uint64(lh-0x9000)*1024 }
		r.warm(0x10, 100, va(0x9010), 0x9010)
		r.write(0x10, 108, va(0x9000), 5, 1)
		r.append(0x10, 109, va(0x9000), va(0x9001), 0x9001, 5)
		psn := uint32(111)
		if known {
			r.to(0x10, psn, hdr.WriteFirst, reth(0x20000, r.rkey, 512), make([]byte, 256))
			r.to(0x10, psn+1, hdr.WriteLast, nil, make([]byte, 256))
			r.from(0x10, psn+1, hdr.Acknowledge, hdr.SynACK, 0, nil)
			psn += 2
		}
		r.to(0x10, psn, hdr.ReadRequest, reth(va(0x9000), r.rkey, 1024), nil)
		if n := r.Counter("steered-read"); n != 1 {
			t.Fatalf("%d READs were steered, want 1", n)
		}
		p := make([]byte, 256)
		wireEntry(p, 5)
		r.from(0x10, psn, hdr.ReadRespFirst, hdr.SynACK, 0, p)
		for i := range p {
			p[i] = byte(0x55 + i)
		}
		// The rest is lost, and asked for again; then its end is.
		for at := uint32(1); at < 4; at++ {
			b := only(t, r.to(0x10, psn+at, hdr.ReadRequest, reth(va(0x9000)+256*uint64(at), r.rkey, 1024-256*at), nil).Out["b"])
			var f hdr.Frame
			hdr.Parse(b, &f)
			if got, want := f.RETHOf(b).VA(), va(0x9001)+256*uint64(at); got != want || hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) {
				t.Errorf("MTU known %v: what is behind %d packets is read at %#x, want %#x", known, at, got, want)
			}
			op := hdr.ReadRespFirst
			if at == 3 {
				op = hdr.ReadRespOnly
			}
			b = only(t, r.from(0x10, psn+at, op, hdr.SynACK, 0, p).Out["a"])
			hdr.Parse(b, &f)
			if got := f.PayloadOf(b); !bytes.Equal(got, p) {
				t.Errorf("MTU known %v: it came back as %x, want %x", known, got[:16], p[:16])
			}
		}
		// The request after it is the next one, and no part of it.
		b := only(t, r.to(0x10, psn+4, hdr.ReadRequest, reth(0x30000, r.rkey, 64), nil).Out["b"])
		var f hdr.Frame
		hdr.Parse(b, &f)
		if got := f.RETHOf(b).VA(); got != 0x30000 {
			t.Errorf("MTU known %v: another READ goes to %#x", known, got)
		}
		if b = only(t, r.from(0x10, psn+4, hdr.ReadRespOnly, hdr.SynACK, 0, p[:64]).Out["a"]); !bytes.Contains(b, p[:64]) {
			t.Errorf("MTU known %v: another READ's answer is changed", known)
		}
	}
}
