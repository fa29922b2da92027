package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// A time until which nothing is believed is never brought forward: by a wrong value where settle= is longer, or by an invalidation where
// the server refused something.
func TestNoBarEndsEarlier(t *testing.T) {
	w := newWords(4)
	i := w.track(0x7000, testRKey, true)
	w.touch(0x7000, 8, none, 0, clock.Time(20*time.Second))
	w.mistrust(&op{va: 0x7000, len: 8, kind: kFAA}, clock.Time(distrust))
	if w.u[i].barred != clock.Time(20*time.Second) {
		t.Errorf("a stranger's request counts as executed after %v, settle= says 20 s", w.u[i].barred)
	}
	var k keys
	k.init(0, 1, func(*flow) uint64 { return 0 })
	for _, longer := range []time.Duration{distrust, time.Minute} { // settle= of the invalidation: shorter, longer
		shorter := time.Minute + distrust - longer
		for _, refusedLast := range []bool{true, false} {
			rkey := uint32(testRKey + uint32(longer/time.Second)*2)
			if refusedLast {
				rkey++
			}
			o := &op{va: 0x7000, len: 8, rkey: rkey, kind: kWrite, flags: fGuest}
			k.inherit(o, 0)
			k.guest(o, -1)
			refuse := func(d time.Duration) { k.refused(o, clock.Time(d)) }
			invalidate := func(d time.Duration) { k.invalidate(rkey, clock.Time(d)) }
			if refusedLast {
				invalidate(longer)
				refuse(shorter)
			} else {
				refuse(longer)
				invalidate(shorter)
			}
			if x := k.find(rkey); x.until != clock.Time(time.Minute) {
				t.Errorf("%v, then %v: nothing is learnt until %v", longer, shorter, x.until)
			}
		}
	}
}

// The worker was late, and other clients' frames have crossed without it, while a WRITE in the place of an atomic was under way. These may have
// changed the word, and the WRITE would undo that. So the box does not send it again before the server has said that it was not executed,
// and asks only when nothing is under way any more.
func TestWriteWhileFramesCross(t *testing.T) {
	r, miss := lateRig(t, graph.Args{"settle": "100ms"})
	a, b := r.join(), r.join()
	b.learn(a, 0x7008, 7)
	one(t, b.cas(0x7008, 7, 8).Out["b"])
	miss()
	began := r.Clock.Now()
	asked := false
	for range 200 {
		for _, f := range r.Advance(time.Millisecond).Out["b"] {
			var h hdr.Frame
			hdr.Parse(f.Bytes, &h)
			if h.Op != hdr.WriteOnly || h.RETHOf(f.Bytes).DMALength() != 0 {
				t.Fatalf("after %v: %s", r.Clock.Now().Sub(began), text(f.Bytes))
			}
			if psn := h.BTHOf(f.Bytes).PSN(); psn == a.spsn+1 {
				asked = true
				if r.Clock.Now().Sub(began) < clock.Duration(60*time.Millisecond) {
					t.Fatalf("it asks after %v", r.Clock.Now().Sub(began))
				}
			}
		}
		if asked {
			break
		}
	}
	if !asked {
		t.Fatal("the server is not asked")
	}
	// It was not executed: its client sends the atomic again.
	same(t, a.nak(a.spsn, hdr.SynNAKSequence).Out["a"], b.nakTo(b.psn-1, b.msn, hdr.SynNAKSequence))
}
