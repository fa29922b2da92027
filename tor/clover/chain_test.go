package clover

import (
	"encoding/binary"
	"strconv"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// row3 is a crew with the key's tail known to be entry 1, and two appends under
// way: entry 2 of 0x20 behind it, and entry 3 of 0x30 behind entry 2.
func row3(t *testing.T, args graph.Args) *rig {
	t.Helper()
	r := crew(t, args)
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.wrote(0x20, 108, 0x9002)
	r.wrote(0x30, 108, 0x9003)
	for i, qpn := range []uint32{0x20, 0x30} {
		if at := r.link(qpn, 109, 0x9002+uint32(i), old); at != entryAt(0x9001+uint32(i)) {
			t.Fatalf("entry %d was sent to %#x", 2+i, at)
		}
	}
	return r
}

// told are the frames that came out towards the clients, as queue pairs and PSNs.
func (r *rig) told(got graphtest.Result) (out [][2]uint32) {
	r.t.Helper()
	for _, x := range got.Out["a"] {
		var f hdr.Frame
		if hdr.Parse(x.Bytes, &f) != hdr.IsRoCE || hdr.ICRC(x.Bytes, &f) != hdr.StoredICRC(x.Bytes, &f) {
			r.t.Error("a broken frame came out")
		}
		h := f.BTHOf(x.Bytes)
		out = append(out, [2]uint32{h.DestQP() - 0x1000, h.PSN()})
	}
	return out
}

func (r *rig) expect(got graphtest.Result, what string, want ...[2]uint32) {
	r.t.Helper()
	out := r.told(got)
	if len(out) != len(want) {
		r.t.Fatalf("%s: clients got %x, want %x", what, out, want)
	}
	for _, w := range want {
		found := false
		for _, o := range out {
			found = found || o == w
		}
		if !found {
			r.t.Fatalf("%s: clients got %x, want %x", what, out, want)
		}
	}
}

// A client that is led behind an entry gets its success only when that entry is linked.
func TestAnswerWaits(t *testing.T) {
	r := row3(t, graph.Args{})
	r.expect(r.linked(0x30, 109), "3 is linked behind 2, which is not")
	r.expect(r.linked(0x30, 109), "the same again")
	if r.Counter("answer-held") != 1 || r.Counter("held") != 1 {
		t.Errorf("held %d, repeated %d", r.Counter("held"), r.Counter("answer-held"))
	}
	r.expect(r.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109}, [2]uint32{0x30, 109})
	r.believed(true, "all is linked")
	if r.Counter("held") != 0 {
		t.Error("something is still held")
	}
	r.expect(r.linked(0x30, 109), "a repeated answer", [2]uint32{0x30, 109})
}

// A long row that is answered from its end waits for its beginning, and goes
// at once; numbers wrap meanwhile.
func TestLongChain(t *testing.T) {
	const n = 12
	r := newRig(t, graph.Args{})
	for i := range uint32(n + 1) {
		r.warm(0x10+i, 100, entryAt(0x9100+16*i), 0x9100+16*i)
	}
	r.wrote(0x10, 108, 0x9000)
	r.link(0x10, 109, 0x9000, old)
	r.linked(0x10, 109)
	s := r.App().(*Steer)
	k := &s.keys.s[s.keys.find(0, key)]
	k.sent, k.sure = 1<<32-4, 1<<32-4
	var want [][2]uint32
	for i := uint32(1); i <= n; i++ {
		r.wrote(0x10+i, 108, 0x9000+i)
		if at := r.link(0x10+i, 109, 0x9000+i, old); at != entryAt(0x9000+i-1) {
			t.Fatalf("entry %d was sent to %#x", i, at)
		}
		want = append(want, [2]uint32{0x10 + i, 109})
	}
	for i := uint32(n); i > 1; i-- {
		r.expect(r.linked(0x10+i, 109), "the row's beginning is missing")
	}
	r.expect(r.linked(0x11, 109), "all of the row is linked", want...)
	if k.unlinked() != 0 || k.sent != 8 {
		t.Errorf("%d appends are not known to be linked, the last is number %d", k.unlinked(), k.sent)
	}
}

// Answers behind one that is held, on the same connection, wait.
func TestAnswersInOrder(t *testing.T) {
	r := row3(t, graph.Args{})
	r.to(0x30, 110, hdr.ReadRequest, reth(0x10000, r.rkey, 8), nil)
	r.to(0x30, 111, hdr.ReadRequest, reth(0x10000, r.rkey, 8), nil)
	r.expect(r.linked(0x30, 109), "3 is linked behind 2")
	r.expect(r.from(0x30, 110, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, 8)), "an answer behind it")
	r.expect(r.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109}, [2]uint32{0x30, 109}, [2]uint32{0x30, 110})
	r.expect(r.from(0x30, 111, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, 8)), "one after it", [2]uint32{0x30, 111})
}

// version is the version of the entry that the only frame to the clients begins with.
func version(t *testing.T, got graphtest.Result, qpn uint32) uint8 {
	t.Helper()
	for _, x := range got.Out["a"] {
		var f hdr.Frame
		hdr.Parse(x.Bytes, &f)
		if f.BTHOf(x.Bytes).DestQP() == qpn+0x1000 {
			if hdr.ICRC(x.Bytes, &f) != hdr.StoredICRC(x.Bytes, &f) {
				t.Error("ICRC is wrong")
			}
			return wire.Pointer(binary.LittleEndian.Uint64(f.PayloadOf(x.Bytes))).Version()
		}
	}
	t.Fatalf("nothing for queue pair %#x", qpn)
	return 0
}

// The answer to a READ of an entry goes on when the entry is linked. If it never is, the entry goes to no
// client as a valid one.
func TestReadWaits(t *testing.T) {
	entry := make([]byte, 128)
	wireEntry(entry, key)
	for _, linked := range []bool{true, false} {
		r := row3(t, graph.Args{})
		r.to(0x10, 110, hdr.ReadRequest, reth(entryAt(0x9001), r.rkey, 128), nil)
		if linked {
			r.expect(r.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109})
		}
		r.expect(r.from(0x10, 110, hdr.ReadRespOnly, hdr.SynACK, 0, entry), "entry 3 is read and not linked")
		if linked {
			if v := version(t, r.linked(0x30, 109), 0x10); v != 1 {
				t.Errorf("the entry is linked, and came with version %d", v)
			}
		} else if v := version(t, r.refused(0x30, 109), 0x10); v != wire.NoVersion {
			t.Errorf("the entry is not linked, and came with version %d", v)
		}
	}
}

// A CAS that was lost behind the box is repeated by the box, and those behind
// it need neither its client nor a time-out.
func TestLostCAS(t *testing.T) {
	r := row3(t, graph.Args{})
	r.expect(r.linked(0x30, 109), "3 is linked behind 2, whose own CAS was lost")
	got := r.Advance(30 * time.Millisecond)
	if a := atomicOf(t, only(t, got.Out["b"])); a.VA() != entryAt(0x9001) || wire.Pointer(a.Swap()).LH() != 0x9002 {
		t.Errorf("repeated: va %#x swap %v", a.VA(), wire.Pointer(a.Swap()))
	}
	r.expect(r.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109}, [2]uint32{0x30, 109})
}

// An entry that the server refused is linked by its client elsewhere: then
// those behind it are in the chain.
func TestRelinked(t *testing.T) {
	r := row3(t, graph.Args{})
	r.expect(r.linked(0x30, 109), "3 is linked behind 2")
	r.expect(r.refused(0x20, 109), "2 was refused", [2]uint32{0x20, 109})
	if r.Counter("orphans") != 1 {
		t.Error("not counted")
	}
	r.link(0x20, 110, 0x9002, old+1024)
	r.expect(r.linked(0x20, 110), "2 is linked elsewhere", [2]uint32{0x20, 110}, [2]uint32{0x30, 109})
}

// quiet lets time pass in which 0x20 says nothing, 0x30 asks for the answer to
// its CAS again, and 0x10 reads.
func (r *rig) quiet() {
	for i := range uint32(10) {
		r.expect(r.Advance(40*time.Second), "nobody is told")
		r.casAt(0x30, 109, 0x9003, old)
		r.to(0x10, 110+i, hdr.ReadRequest, reth(0x10000, r.rkey, 8), nil)
		r.from(0x10, 110+i, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, 8))
	}
}

// When the client of a refused entry is gone, those behind it are never told
// of a success, and the key is steered again.
func TestCut(t *testing.T) {
	for name, gone := range map[string]func(r *rig){
		"refused, and never linked": func(r *rig) { r.refused(0x20, 109); r.quiet() },
		"refused, and never linked by who goes on": func(r *rig) {
			r.refused(0x20, 109)
			for i := range uint32(9) {
				r.to(0x20, 110+i, hdr.ReadRequest, reth(0x10000, r.rkey, 8), nil)
				r.from(0x20, 110+i, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, 8))
				r.Advance(40 * time.Second)
				r.casAt(0x30, 109, 0x9003, old)
				r.readAt(0x10, 109, 0x10000)
			}
			if r.Counter("chains-cut") != 1 {
				r.t.Error("waited for it too long")
			}
			r.quiet()
		},
		"never answered": func(r *rig) { r.quiet() },
		"fatal NAK": func(r *rig) {
			r.from(0x20, 109, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil)
			r.quiet()
		},
	} {
		for _, before := range []bool{true, false} {
			t.Run(name+"/"+strconv.FormatBool(before), func(t *testing.T) {
				r := row3(t, graph.Args{})
				if before {
					r.expect(r.linked(0x30, 109), "3 is linked behind 2")
				}
				gone(r)
				r.expect(r.linked(0x30, 109), "3 is linked behind nothing")
				if r.Counter("chains-cut") != 1 || r.Counter("chain-cut") == 0 || r.Counter("held") != 0 {
					t.Errorf("cut %d times, %d answers with it, %d held", r.Counter("chains-cut"), r.Counter("chain-cut"), r.Counter("held"))
				}
				r.believed(false, "cut")
				r.wrote(0x10, 120, 0x9004)
				r.link(0x10, 121, 0x9004, old+1024)
				r.linked(0x10, 121)
				r.believed(true, "a new append is acknowledged")
			})
		}
	}
}

// With ahead=0 no CAS is sent behind an entry that is not linked.
func TestAheadOfNothing(t *testing.T) {
	r := crew(t, graph.Args{"ahead": "0"})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.wrote(0x20, 108, 0x9002)
	r.wrote(0x30, 108, 0x9003)
	if at := r.link(0x20, 109, 0x9002, old); at != entryAt(0x9001) {
		t.Errorf("sent to %#x, the tail is linked", at)
	}
	if at := r.link(0x30, 109, 0x9003, old); at != old {
		t.Errorf("a CAS was sent to %#x, behind what is not linked", at)
	}
	if at := r.target(r.readAt(0x10, 110, entryAt(0x9001))); at != entryAt(0x9001) {
		t.Errorf("a READ was sent to %#x, which is not linked", at)
	}
	if r.Counter("tail-not-linked") != 2 {
		t.Errorf("counted %d times", r.Counter("tail-not-linked"))
	}
	r.linked(0x20, 109)
	r.expect(r.refused(0x30, 109), "refused at a stale entry", [2]uint32{0x30, 109})
	r.believed(true, "2 is linked")
}

// What may have to wait is steered only when there will be a place for it: else
// it passes as it is. The answers behind one that waits have the other half of the
// places; what finds none is asked for again.
func TestHoldFull(t *testing.T) {
	r := row3(t, graph.Args{"hold": "2"})
	r.wrote(0x10, 110, 0x9004)
	if at := r.link(0x10, 111, 0x9004, old); at != old || r.Counter("hold-full") != 1 {
		t.Fatalf("sent to %#x, where its answer would have to wait", at)
	}
	r.expect(r.linked(0x30, 109), "held")
	answer := func(i uint32) graphtest.Result {
		return r.from(0x30, 110+i, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, 8))
	}
	for i := range uint32(2) {
		r.to(0x30, 110+i, hdr.ReadRequest, reth(0x10000, r.rkey, 8), nil)
		r.expect(answer(i), "behind it")
	}
	if r.Counter("held") != 2 || r.Counter("no-room") != 1 {
		t.Errorf("%d answers are held, %d found no room", r.Counter("held"), r.Counter("no-room"))
	}
	r.expect(r.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109}, [2]uint32{0x30, 109}, [2]uint32{0x30, 110})
	r.expect(answer(1), "asked for again", [2]uint32{0x30, 111})
	if s := r.App().(*Steer); s.booked != 0 {
		t.Errorf("%d places are kept for nothing", s.booked)
	}
}

// Held answers are dropped when the app forgets or is switched off: the clients ask again.
func TestForgetsHeld(t *testing.T) {
	r := row3(t, graph.Args{})
	r.linked(0x30, 109)
	r.App().(graph.Flusher).Flush(nil)
	r.expect(r.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109})
	if r.Counter("unheld") != 1 || r.Counter("held") != 0 {
		t.Errorf("dropped %d, held %d", r.Counter("unheld"), r.Counter("held"))
	}
	r.expect(r.linked(0x30, 109), "asked again", [2]uint32{0x30, 109})
}
