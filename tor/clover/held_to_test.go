package clover

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// What tests of mutants found to be held by none: see tests/clover.

const theTail = 0x900000 // of key 5, in a rig of steered

// TestTouched: each frame that may change the tail's header makes it unknown, whatever its sender and its
// kind.
func TestTouched(t *testing.T) {
	write := func(r *rig) []byte { return reth(theTail, r.rkey, 8) }
	masked := func(r *rig) []byte {
		b := make([]byte, hdr.MaskedAtomicETHLen)
		h := hdr.MaskedAtomicETH(b)
		h.SetVA(theTail)
		h.SetRKey(r.rkey)
		return b
	}
	for name, do := range map[string]func(r *rig){
		"a WRITE ahead of its turn": func(r *rig) { r.to(0x10, 150, hdr.WriteOnly, write(r), make([]byte, 8)) },
		"a WRITE from the servers' side": func(r *rig) {
			r.Push("b", frameOf{src: r.client, dst: r.server, sport: 0xC010, op: hdr.WriteOnly, qpn: 0x10, psn: 110, ext: write(r), payload: make([]byte, 8)}.bytes())
		},
		"FETCH ADD of a connection that is not followed": func(r *rig) {
			r.to(0x77, 5, hdr.FetchAdd, atomicETH(theTail, r.rkey, 1, 0), nil)
		},
		"ATOMIC WRITE": func(r *rig) { r.to(0x10, 110, hdr.AtomicWrite, write(r), make([]byte, 8)) },
		"a masked CAS": func(r *rig) { r.to(0x10, 110, hdr.MaskedCompSwap, masked(r), nil) },
		"a repeated WRITE of the entry before and of this": func(r *rig) {
			r.to(0x10, 100, hdr.WriteOnly, reth(theTail-128, r.rkey, 256), make([]byte, 256))
		},
		"an append of something unknown": func(r *rig) {
			r.to(0x10, 110, hdr.CompareSwap, atomicETH(theTail, r.rkey, r.swap(0x7777, 1, 1), uint64(wire.Fresh(1))), nil)
		},
		"an append that is not steered": func(r *rig) {
			r.to(0x20, 109, hdr.CompareSwap, atomicETH(theTail, r.rkey, r.swap(0x9001, 1, 2), uint64(wire.Fresh(2))), nil)
		},
		"an end of steering": func(r *rig) {
			for _, mode := range []string{"off", "read-write"} {
				if err := r.Set(graph.Args{"mode": mode}); err != nil {
					r.t.Fatal(err)
				}
				r.to(0x10, 200, hdr.SendOnly, nil, nil)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := steered(t, graph.Args{})
			if do(r); r.known() {
				t.Error("the tail is believed")
			}
		})
	}
}

// goesTo is where a CAS with these operands goes, on queue pair 0x20.
func (r *rig) goesTo(psn uint32, swap, compare uint64) uint64 {
	r.t.Helper()
	return atomicOf(r.t, only(r.t, r.to(0x20, psn, hdr.CompareSwap, atomicETH(0x800000, r.rkey, swap, compare), nil).Out["b"])).VA()
}

// TestNoAppend: a CAS is led elsewhere only when it is an append, of what its client wrote.
func TestNoAppend(t *testing.T) {
	fresh := uint64(wire.Fresh(1))
	entry := func(r *rig, psn uint32, header wire.Pointer) {
		p := make([]byte, r.size)
		wireEntry(p, 5)
		binary.LittleEndian.PutUint64(p, uint64(header))
		r.to(0x20, psn, hdr.WriteOnly, reth(theTail+128, r.rkey, r.size), p)
		r.from(0x20, psn, hdr.Acknowledge, hdr.SynACK, 0, nil)
	}
	for name, goes := range map[string]func(r *rig) uint64{
		"an append":             func(r *rig) uint64 { return r.goesTo(109, r.swap(0x9001, 1, 1), fresh) },
		"the option is set":     func(r *rig) uint64 { return r.goesTo(109, r.swap(0x9001, 1, 1)|1, fresh) },
		"another version after": func(r *rig) uint64 { return r.goesTo(109, r.swap(0x9001, 1, 2), fresh) },
		"behind a linked entry": func(r *rig) uint64 {
			return r.goesTo(109, r.swap(0x9001, 1, 1), uint64(wire.Linked(1, wire.Ref(7, 1))))
		},
		"of a linked entry": func(r *rig) uint64 {
			entry(r, 109, wire.Linked(1, wire.Ref(7, 1)))
			return r.goesTo(110, r.swap(0x9001, 1, 1), fresh)
		},
		"of an entry without a version": func(r *rig) uint64 {
			entry(r, 109, wire.Fresh(wire.NoVersion))
			return r.goesTo(110, r.swap(0x9001, wire.NoVersion, 1), fresh)
		},
		"of an entry whose WRITE was refused": func(r *rig) uint64 {
			p := make([]byte, r.size)
			wireEntry(p, 5)
			r.to(0x20, 109, hdr.WriteOnly, reth(theTail+256, r.rkey, r.size), p)
			r.from(0x20, 109, hdr.Acknowledge, hdr.SynNAKSequence, 0, nil)
			return r.goesTo(110, r.swap(0x9002, 1, 1), fresh)
		},
		"of an entry whose end was not acknowledged": func(r *rig) uint64 {
			p := make([]byte, 64)
			wireEntry(p, 5)
			r.to(0x20, 109, hdr.WriteFirst, reth(theTail+256, r.rkey, 128), p)
			r.to(0x20, 110, hdr.WriteLast, nil, p)
			r.from(0x20, 109, hdr.Acknowledge, hdr.SynACK, 0, nil)
			return r.goesTo(111, r.swap(0x9002, 1, 1), fresh)
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := uint64(0x800000)
			if name == "an append" {
				want = theTail
			}
			for _, clients := range []string{"any", "trusted"} {
				if got := goes(steered(t, graph.Args{"clients": clients})); got != want {
					t.Errorf("clients=%s: it goes to %#x, want %#x", clients, got, want)
				}
			}
		})
	}
}

// readsAt is where queue pair 0x20's READ of an address goes.
func (r *rig) readsAt(psn uint32, va uint64, size uint32) uint64 {
	r.t.Helper()
	var f hdr.Frame
	b := only(r.t, r.to(0x20, psn, hdr.ReadRequest, reth(va, r.rkey, size), nil).Out["b"])
	hdr.Parse(b, &f)
	return f.RETHOf(b).VA()
}

// TestNoTailToRead: a READ is led to a tail of its own size and region alone, and while answers have places.
func TestNoTailToRead(t *testing.T) {
	// Entry 0x9001 is behind 0x9000, which 0x20 may READ.
	behind := func(args graph.Args) *rig {
		r := steered(t, args)
		r.staleCAS(1)
		return r
	}
	r := behind(graph.Args{})
	r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil)
	if got := r.readsAt(110, theTail, 128); got != theTail+128 {
		t.Fatalf("a READ of the entry before goes to %#x", got)
	}
	if got := r.readsAt(111, theTail, 256); got != theTail {
		t.Errorf("a READ of two entries goes to %#x", got)
	}

	// Half of four places are kept for answers that may have to wait: the append that is under way has none, as
	// nothing was before it; two READs have one each.
	r = behind(graph.Args{"hold": "4"})
	for i, want := range []uint64{theTail + 128, theTail + 128, theTail} {
		if got := r.readsAt(110+uint32(i), theTail, 128); got != want {
			t.Errorf("READ %d goes to %#x, want %#x", i, got, want)
		}
	}

	// The key goes on under another R_Key.
	r = steered(t, graph.Args{})
	r.rkey = 8
	for i := range uint32(4) {
		r.append(0x10, 110+2*i, 0x10000, 0xB00000+128*uint64(i), 0xB000+i, 2000+uint64(i))
	}
	r.append(0x10, 118, 0x800000, 0xB00800, 0xB010, 5)
	if !r.known() {
		t.Fatal("the tail under the new R_Key is not known")
	}
	if r.rkey = 7; r.readsAt(109, theTail, 128) != theTail {
		t.Error("a READ under the old R_Key goes to what is under the new one")
	}
}

// TestAnswerAgain: the answer to an append that comes again says nothing new.
func TestAnswerAgain(t *testing.T) {
	r := steered(t, graph.Args{})
	r.from(0x10, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil)
	if !r.known() {
		t.Error("the tail is not believed any more")
	}
}

// A sequence NAK of a later request says nothing about the earlier ones that the server took.
func TestRefusalOfLater(t *testing.T) {
	r := steered(t, graph.Args{})
	r.staleCAS(1)
	r.to(0x20, 110, hdr.WriteOnly, reth(0x30000, r.rkey, 8), make([]byte, 8))
	r.from(0x20, 110, hdr.Acknowledge, hdr.SynNAKSequence, 0, nil)
	if !r.known() {
		t.Error("the tail is not believed any more")
	}
}

// TestEndOfTheLast: when the connection of the newest append ends, and the outcome of that append is not
// known, no CAS is sent behind it.
func TestEndOfTheLast(t *testing.T) {
	r := steered(t, graph.Args{})
	r.staleCAS(1)
	r.to(0x20, 110, hdr.WriteOnly, reth(0x30000, 99, 8), make([]byte, 8))
	r.from(0x20, 110, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil)
	if r.known() {
		t.Error("an entry that may not be linked is the tail")
	}
}

// TestNobodysRecords: a connection knows nothing of what the one before it in its row had under way.
func TestNobodysRecords(t *testing.T) {
	r := steered(t, graph.Args{})
	r.staleCAS(1)
	r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil)
	psn := uint32(110)
	for range window {
		if got := r.readsAt(psn, theTail, 128); got != theTail+128 {
			t.Fatalf("a READ goes to %#x", got)
		}
		r.from(0x20, psn, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, 128))
		psn++
	}
	r.to(0x20, psn, hdr.WriteOnly, reth(0x30000, 99, 8), make([]byte, 8))
	r.from(0x20, psn, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil)
	s := r.App().(*Steer)
	before := s.conns.Len()
	r.pair(0x30, psn-6)
	if s.conns.Len() != before+1 {
		t.Fatal("another connection is not followed")
	}
	for i := range s.ops {
		if o := &s.ops[i]; o.kind == opRead && o.steered {
			t.Fatalf("a READ of PSN %d is on record, whose connection has ended", o.psn)
		}
	}
}

// TestFlushForgetsEntries: after a bypass an address may be another key's.
func TestFlushForgetsEntries(t *testing.T) {
	r := steered(t, graph.Args{})
	r.App().(graph.Flusher).Flush(nil)
	r.pair(0x10, 110) // answers count again
	r.append(0x10, 116, 0x800000, theTail+0x800, 0x9010, 5)
	if !r.known() {
		t.Fatal("no new tail is known")
	}
	if got := r.readsAt(109, theTail, 128); got != theTail {
		t.Errorf("a READ of what was an entry before goes to %#x", got)
	}
}

// TestStaysForWhoWaits: a connection that has an answer to come, or one that is held, is not met anew.
func TestStaysForWhoWaits(t *testing.T) {
	astray := func(r *rig, qpn uint32) {
		r.Clock.Advance(30 * time.Second)
		for i := range uint32(2 * maxAhead) {
			r.to(qpn, 5000+i, hdr.WriteOnly, reth(0x30000, r.rkey, 8), make([]byte, 8))
		}
	}
	r := steered(t, graph.Args{"repair": "0"})
	r.staleCAS(1)
	r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil)
	for range 2 {
		if got := r.readsAt(110, theTail, 128); got != theTail+128 {
			t.Errorf("a READ goes to %#x", got)
		}
		astray(r, 0x20)
	}

	// A READ of 0x10's behind an append of 0x20's is answered before that.
	r = steered(t, graph.Args{"repair": "0"})
	r.staleCAS(1)
	r.to(0x10, 110, hdr.ReadRequest, reth(theTail, r.rkey, 128), nil)
	p := make([]byte, 128)
	wireEntry(p, 5)
	if out := r.from(0x10, 110, hdr.ReadRespOnly, hdr.SynACK, 0, p).Out["a"]; len(out) != 0 {
		t.Fatal("the answer is not held")
	}
	astray(r, 0x10)
	if out := r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil).Out["a"]; len(out) != 2 {
		t.Errorf("%d answers come, want that to the append and that which was held", len(out))
	}
}

// TestStaysForWhoMayRepeat: the answer to a READ that was led elsewhere may be lost behind the app, and its client
// repeat it late. A stranger's frames do not send that where it was first meant to go: rxe would ignore it until
// the client gives its connection up.
func TestStaysForWhoMayRepeat(t *testing.T) {
	r := steered(t, graph.Args{"repair": "0"})
	r.staleCAS(1)
	r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil)
	r.readsAt(110, theTail, 128)
	p := make([]byte, 128)
	wireEntry(p, 5)
	r.from(0x20, 110, hdr.ReadRespOnly, hdr.SynACK, 0, p)
	r.Clock.Advance(10 * time.Second)
	for i := range uint32(2 * maxAhead) {
		r.to(0x20, 5000+i, hdr.WriteOnly, reth(0x30000, r.rkey, 8), make([]byte, 8))
	}
	if got := r.readsAt(110, theTail, 128); got != theTail+128 {
		t.Errorf("the READ goes to %#x when it is repeated", got)
	}
	s := r.App().(*Steer)
	r.Clock.Advance(time.Minute)
	before := s.conns.Len()
	for i := range uint32(maxAhead) {
		r.to(0x20, 7000+i, hdr.WriteOnly, reth(0x30000, r.rkey, 8), make([]byte, 8))
	}
	if s.conns.Len() != before-1 {
		t.Error("a connection that may be another one is not met anew after a minute")
	}
}
