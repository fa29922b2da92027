package swordbox

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// underWay is a rig whose box was killed while two CASes of b, from 1 to 2 and to 3,
// were under way as WRITEs over the connection of a. at is the PSN of the first.
func underWay(t *testing.T, args graph.Args) (r *rig, k *kept, a, b *party, at uint32) {
	t.Helper()
	r, k, a, b = diverged(t, args)
	b.learn(a, 0x7008, 1)
	at = a.spsn
	for v := range uint64(2) {
		same(t, b.cas(0x7008, 1+v, 2+v).Out["b"], b.moved(a, hdr.WriteOnly, at+uint32(v), reth(0x7008, testRKey, 8), little(2+v)))
	}
	r.restart(k, false, time.Microsecond, nil)
	return r, k, a, b, at
}

// question is what the box asks the server: with PSN psn on a's connection.
func question(t *testing.T, r *rig, a *party, psn uint32) {
	t.Helper()
	for range 20 {
		if got := r.Advance(20 * time.Microsecond).Out["b"]; len(got) > 0 {
			if now := r.Clock.Now(); now < r.box().mem.barred {
				t.Fatalf("asked at %v, before %v", now, r.box().mem.barred)
			}
			same(t, got, a.empty(psn))
			return
		}
		r.Clock.Advance(time.Millisecond)
	}
	t.Fatal("nothing was asked")
}

// The server executed all: its answer to the question says so, and b gets the outcomes
// that were computed. The question has taken a PSN.
func TestExecutedBeforeTheCrash(t *testing.T) {
	r, _, a, b, at := underWay(t, nil)
	question(t, r, a, at+2)
	a.spsn, a.smsn = at+2, a.smsn+2
	got := a.ack().Out["a"]
	same(t, got, b.atomicAckTo(b.psn-2, b.msn+1, 1), b.atomicAckTo(b.psn-1, b.msn+2, 2))
	b.msn += 2
	same(t, a.write(0x5000, 1).Out["b"], a.moved(a, hdr.WriteOnly, at+3, reth(0x5000, testRKey, 8), little(1)))
}

// The server had the first of them only: the second comes from b once more, as the
// atomic that it is, and finds what the word is now.
func TestNotExecutedBeforeTheCrash(t *testing.T) {
	r, _, a, b, at := underWay(t, nil)
	question(t, r, a, at+2)
	a.smsn++
	got := a.nak(at+1, hdr.SynNAKSequence)
	// The PSN of the question is used up: the PSNs before it are filled, and the answer to it is awaited.
	same(t, got.Out["b"], a.empty(at+1), a.empty(at+2))
	same(t, got.Out["a"], b.atomicAckTo(b.psn-2, b.msn+1, 1), b.response(hdr.Acknowledge, b.psn-1, aeth(hdr.SynNAKSequence, b.msn+1), nil))
	b.msn++
	same(t, r.Push("a", b.made(hdr.CompareSwap, b.psn-1, atomicETH(0x7008, testRKey, 3, 2), nil)).Out["b"],
		b.moved(b, hdr.CompareSwap, b.spsn, atomicETH(0x7008, testRKey, 3, 2), nil))
	one(t, b.atomicAck(77).Out["a"])
	none0(t, a.write(0x5000, 1).Out["b"])
	a.spsn = at + 1
	none0(t, a.ack().Out["b"])
	same(t, a.ack().Out["b"], a.moved(a, hdr.WriteOnly, at+3, reth(0x5000, testRKey, 8), little(1)))
}

// empty is a WRITE of nothing over c's connection.
func (c *party) empty(psn uint32) []byte {
	return c.moved(c, hdr.WriteOnly, psn, reth(0, 0, 0), nil)
}

// The first answer is not the one to the question, but an acknowledgement of a request before it, or the
// answer to a READ there. The server executed the question all the same, and would take a request with its
// PSN for a repetition. So the next process, too, waits for the answer to the question.
func TestAnsweredBeforeTheQuestion(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint(again), func(t *testing.T) {
			r, k, a, b, at := underWay(t, nil)
			question(t, r, a, at+2)
			a.spsn, a.smsn = at+1, a.smsn+1
			got := a.ack()
			same(t, got.Out["a"], b.atomicAckTo(b.psn-2, b.msn+1, 1), b.atomicAckTo(b.psn-1, b.msn+2, 2))
			none0(t, got.Out["b"])
			if again {
				r.restart(k, false, time.Microsecond, nil)
			}
			none0(t, a.write(0x5000, 1).Out["b"])
			question(t, r, a, at+2) // nothing is open, and it is asked
			same(t, a.ack().Out["b"], a.moved(a, hdr.WriteOnly, at+3, reth(0x5000, testRKey, 8), little(1)))
		})
	}
}

// No question was asked yet when the answer to a READ behind the WRITEs shows that all are executed: the
// connection goes on.
func TestReadAnsweredBeforeTheQuestion(t *testing.T) {
	r, k, a, b := diverged(t, nil)
	b.learn(a, 0x7008, 1)
	one(t, b.cas(0x7008, 1, 2).Out["b"])
	one(t, a.read(0x5000, 8).Out["b"])
	r.restart(k, false, time.Microsecond, nil)
	a.spsn, a.smsn = a.spsn+1, a.smsn+1
	if got := a.answer(hdr.ReadRespOnly, nil, little(7)).Out["a"]; len(got) != 2 {
		t.Fatalf("%d answers, want those of both%s", len(got), show(got))
	}
	same(t, a.write(0x5000, 1).Out["b"], a.moved(a, hdr.WriteOnly, a.spsn, reth(0x5000, testRKey, 8), little(1)))
}

// What fills the PSNs before the question may be lost as well, and is sent once more;
// long gaps are filled in bursts. A queue pair that refuses it has failed.
func TestFillsBeforeTheQuestion(t *testing.T) {
	const writes = 14
	prepare := func(t *testing.T) (r *rig, a *party, at uint32, frames []graphtest.Frame) {
		r, k, a, b := diverged(t, nil)
		b.learn(a, 0x7008, 1)
		at = a.spsn
		for v := range uint64(writes) {
			one(t, b.cas(0x7008, 1+v, 2+v).Out["b"])
		}
		r.restart(k, false, time.Microsecond, nil)
		question(t, r, a, at+writes)
		a.smsn++
		frames = a.nak(at+1, hdr.SynNAKSequence).Out["b"]
		return r, a, at, frames
	}
	t.Run("lost", func(t *testing.T) {
		_, a, at, frames := prepare(t)
		for i, f := range frames[:writes-1] {
			same(t, []graphtest.Frame{f}, a.empty(at+1+uint32(i)))
		}
		if len(frames) != writes {
			t.Fatalf("%d frames, want %d", len(frames), writes)
		}
		again := a.nak(at+5, hdr.SynNAKSequence).Out["b"]
		if len(again) != writes-4 {
			t.Fatalf("%d frames, want %d", len(again), writes-4)
		}
		same(t, again[:1], a.empty(at+5))
		a.spsn = at + writes
		one(t, append(a.ack().Out["b"], a.write(0x5000, 1).Out["b"]...))
	})
	t.Run("refused", func(t *testing.T) {
		r, a, at, _ := prepare(t)
		a.nak(at+3, hdr.SynNAKRemoteAccess)
		if f := &(*r.box().nodes.Load())[0].flows[0]; !f.dead || f.gated {
			t.Errorf("dead %v, gated %v", f.dead, f.gated)
		}
	})
}

// While it is not known what was executed, nothing goes over that connection, nor to that word, and nothing
// is sent again.
func TestNothingMeanwhile(t *testing.T) {
	r, k, a, b := diverged(t, nil)
	b.learn(a, 0x7008, 1)
	at := a.spsn
	one(t, b.cas(0x7008, 1, 2).Out["b"])
	long := func() []byte { return a.made(hdr.WriteOnly, a.psn, reth(0x4000, testRKey, 16), make([]byte, 16)) }
	one(t, r.Push("a", long()).Out["b"])
	r.restart(k, false, time.Microsecond, nil)
	none0(t, r.Push("a", long()).Out["b"]) // only a can send it again, and not yet
	a.psn++
	none0(t, a.write(0x5000, 1).Out["b"])
	none0(t, r.Push("a", b.made(hdr.CompareSwap, b.psn-1, atomicETH(0x7008, testRKey, 2, 1), nil)).Out["b"])
	c := r.client().connect()
	none0(t, c.write(0x7008, 9).Out["b"])
	question(t, r, a, at+2)
	a.spsn, a.smsn = at+2, a.smsn+2
	got := a.ack()
	if len(got.Out["b"]) != 2 {
		t.Fatalf("%d requests went on, want a's and the other client's%s", len(got.Out["b"]), show(got.Out["b"]))
	}
}

// With order=word a client's operations on one word stay in order when the box is
// killed between them.
func TestWordOrderOverACrash(t *testing.T) {
	r, k, a, b := diverged(t, graph.Args{"order": "word", "mode": "mux"})
	one(t, b.cas(0x7010, 1, 2).Out["b"])
	r.restart(k, false, time.Microsecond, nil)
	none0(t, b.cas(0x7010, 2, 3).Out["b"]) // over its own connection it would pass the first one
	got := a.atomicAck(1)
	one(t, got.Out["a"])
	same(t, got.Out["b"], b.moved(b, hdr.CompareSwap, b.spsn, atomicETH(0x7010, testRKey, 3, 2), nil))
}

// The operations that a connection carries are in the order of its PSNs, whichever client sent them.
func TestCarriedInOrder(t *testing.T) {
	r, k, a, b := diverged(t, graph.Args{"mode": "mux"})
	one(t, b.cas(0x7010, 1, 2).Out["b"])
	one(t, a.cas(0x7018, 1, 2).Out["b"])
	r.restart(k, false, time.Microsecond, nil)
	same(t, a.atomicAck(5).Out["a"], b.atomicAckTo(b.psn-1, b.msn+1, 5))
	one(t, a.atomicAck(6).Out["a"])
}

// A process dies when it has put an operation on record and before it has noted that
// it was sent: its frame did not leave, and the client's repetition is a new request.
func TestDiesBeforeItSends(t *testing.T) {
	r, k, a, _ := diverged(t, nil)
	n := (*r.box().nodes.Load())[0]
	f := &n.flows[0]
	o := &n.ops[f.tail&(f.span-1)]
	*o = op{cpsn: f.admitted, spsn: f.next, npsn: 1, kind: kWrite, va: 0x5000, len: 8, rkey: testRKey, next: none, word: none}
	f.tail++
	r.restart(k, false, time.Microsecond, nil)
	r.Advance(0)
	if v := r.box().Report().(Report); v.State.Why != "" || v.Servers[0].Open != 0 {
		t.Fatalf("%q, %d open", v.State.Why, v.Servers[0].Open)
	}
	same(t, a.write(0x5008, 1).Out["b"], a.moved(a, hdr.WriteOnly, a.spsn, reth(0x5008, testRKey, 8), little(1)))
	one(t, a.ack().Out["a"])
}

// The answer to a READ was held, as one before it was missing, and is gone with the
// process: its client sends the READ again.
func TestHeldAnswerIsGone(t *testing.T) {
	r, k, a, b := diverged(t, graph.Args{"order": "word", "mode": "mux"})
	one(t, b.cas(0x7010, 1, 2).Out["b"])
	one(t, b.read(0x5000, 8).Out["b"])
	none0(t, b.answer(hdr.ReadRespOnly, nil, little(7)).Out["a"])
	r.restart(k, false, time.Microsecond, nil)
	same(t, a.atomicAck(1).Out["a"], b.atomicAckTo(b.psn-2, b.msn+1, 1), b.response(hdr.Acknowledge, b.psn-1, aeth(hdr.SynNAKSequence, b.msn+1), nil))
	b.msn++
	one(t, r.Push("a", b.made(hdr.ReadRequest, b.psn-1, reth(0x5000, testRKey, 8), nil)).Out["b"])
	one(t, b.answer(hdr.ReadRespOnly, nil, little(8)).Out["a"])
}

// late is a box that is told, once, that frames crossed without the box.
type late struct {
	*Box
	now bool
}

func (l *late) Tick(c *graph.Ctx) clock.Time {
	if l.now {
		l.now = false
		l.Flush(c)
	}
	return l.Box.Tick(c)
}

// lateRig is a rig with a box that is late when miss is called, and then finds that frames crossed without
// it.
func lateRig(t *testing.T, args graph.Args) (r *rig, miss func()) {
	var app *late
	kind := *Kind()
	kind.New = func(env graph.Env, args graph.Args) (graph.App, error) {
		x, err := newApp(env, args)
		app = &late{Box: x.(*Box)}
		return app, err
	}
	r = newRig(t, args)
	r.Test = graphtest.New(t, kind, r.args)
	return r, func() {
		t.Helper()
		app.now = true
		r.Advance(2 * time.Duration(tick))
		if app.now {
			t.Fatal("it was not told")
		}
	}
}

// The first requests of a connection may have crossed without the box. A repetition of the first request does
// not make the box follow the connection: anybody may have made up that frame.
func TestLateIsNoBeginning(t *testing.T) {
	for _, followed := range []bool{false, true} {
		r, miss := lateRig(t, nil)
		c := r.client().connect()
		first := c.psn
		if followed {
			c.warm()
		}
		miss()
		if !followed {
			c.psn, c.spsn, c.smsn = c.psn+1, c.spsn+1, c.smsn+1 // its first request crossed
		}
		one(t, r.Push("a", c.made(hdr.CompareSwap, first, atomicETH(0x7000, testRKey, 1, 2), nil)).Out["b"])
		one(t, c.write(0x5000, 1).Out["b"])
		one(t, c.ack().Out["a"])
	}
}

// Frames cross without the box while the process is late. A connection that is not bound goes on unchanged,
// and is followed again. One that is bound is not touched. Words may have changed.
func TestLate(t *testing.T) {
	r, miss := lateRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	b.learn(a, 0x7008, 1)
	c := r.join()
	c.psn, c.spsn, c.smsn, c.msn = c.psn+5, c.spsn+5, c.smsn+5, c.msn+5 // five of its WRITEs crossed
	miss()
	same(t, c.write(0x5000, 1).Out["b"], c.made(hdr.WriteOnly, c.psn-1, reth(0x5000, testRKey, 8), little(1)))
	one(t, c.ack().Out["a"])
	if op := opcode(t, one(t, b.cas(0x7008, 1, 2).Out["b"])); op != hdr.CompareSwap {
		t.Errorf("%v on a word that may have changed", op)
	}
	same(t, a.atomicAck(1).Out["a"], b.atomicAckTo(b.psn-1, b.msn+1, 1))
}

// The server asks once for a request that it misses. If its NAK reached no process, or if it came before all
// frames of the other process must have arrived, the server says nothing to the question. Then the box asks
// with a repetition of a very old request, and the same answer twice decides.
func TestAskedForOnce(t *testing.T) {
	prepare := func(t *testing.T) (r *rig, a, b *party, at uint32, old []byte) {
		r, k, a, b := diverged(t, nil)
		b.learn(a, 0x7008, 1)
		at = a.spsn
		for v := range uint64(2) {
			one(t, b.cas(0x7008, 1+v, 2+v).Out["b"])
		}
		r.restart(k, false, time.Microsecond, nil)
		return r, a, b, at, a.empty(at - 1 - longSince)
	}
	// asked is the next question, which comes in time.
	asked := func(t *testing.T, r *rig) []graphtest.Frame {
		t.Helper()
		for range 40 {
			if got := r.Advance(100 * time.Microsecond).Out["b"]; len(got) > 0 {
				return got
			}
		}
		t.Fatal("nothing was asked")
		return nil
	}
	early := func(t *testing.T, a *party, at uint32) {
		t.Helper()
		got := a.nak(at, hdr.SynNAKSequence)
		none0(t, got.Out["a"])
		none0(t, got.Out["b"])
	}
	old := func(a *party, psn uint32) graphtest.Result {
		return a.r.Push("b", a.response(hdr.Acknowledge, psn, aeth(hdr.SynACK, a.smsn), nil))
	}
	t.Run("not executed", func(t *testing.T) {
		r, a, b, at, long := prepare(t)
		early(t, a, at)
		question(t, r, a, at+2)
		same(t, asked(t, r), a.empty(at+2), long)
		none0(t, old(a, at-1).Out["a"])
		same(t, asked(t, r), a.empty(at+2))
		same(t, asked(t, r), a.empty(at+2), long)
		got := old(a, at-1)
		same(t, got.Out["b"], a.empty(at), a.empty(at+1), a.empty(at+2))
		same(t, got.Out["a"], b.response(hdr.Acknowledge, b.psn-2, aeth(hdr.SynNAKSequence, b.msn), nil))
	})
	t.Run("executed", func(t *testing.T) {
		r, a, b, at, long := prepare(t)
		early(t, a, at)
		question(t, r, a, at+2)
		same(t, asked(t, r), a.empty(at+2), long)
		same(t, old(a, at).Out["a"], b.atomicAckTo(b.psn-2, b.msn+1, 1))
	})
	// The other process repeated a request, and sent one behind that: the server paused.
	t.Run("paused", func(t *testing.T) {
		r, a, b, at, long := prepare(t)
		question(t, r, a, at+2)
		same(t, asked(t, r), a.empty(at+2), long)
		one(t, old(a, at).Out["a"])
		none0(t, old(a, at).Out["b"])
		none0(t, old(a, at).Out["b"])
		same(t, old(a, at+1).Out["a"], b.atomicAckTo(b.psn-1, b.msn+2, 2))
	})
	// The server acknowledges its newest request that is no READ. The READ may be executed.
	t.Run("behind a READ", func(t *testing.T) {
		r, k, a, b := diverged(t, nil)
		b.learn(a, 0x7008, 1)
		at := a.spsn
		one(t, a.read(0x5000, 8).Out["b"])
		one(t, b.cas(0x7008, 1, 2).Out["b"])
		r.restart(k, false, time.Microsecond, nil)
		question(t, r, a, at+2)
		for range 2 {
			for len(asked(t, r)) < 2 {
			}
			if got := old(a, at-1).Out["b"]; len(got) > 0 {
				same(t, got, a.empty(at+1), a.empty(at+2))
			}
		}
		same(t, a.answer(hdr.ReadRespOnly, nil, little(7)).Out["a"], a.response(hdr.ReadRespOnly, a.psn-1, aeth(hdr.SynACK, a.msn+1), little(7)))
	})
	// A server that acknowledges the repetition itself says nothing. It has some time.
	t.Run("nothing", func(t *testing.T) {
		r, a, _, at, _ := prepare(t)
		question(t, r, a, at+2)
		f := &(*r.box().nodes.Load())[0].flows[0]
		for began := r.Clock.Now(); !f.dead; {
			for _, x := range r.Advance(time.Millisecond).Out["b"] {
				if string(x.Bytes) == string(a.empty(at-1-longSince)) {
					old(a, at-1-longSince)
				}
			}
			if now := r.Clock.Now(); now.Sub(began) > 2*r.box().cfg.giveup {
				t.Fatalf("after %v it is in doubt: %v", now.Sub(began), f.inDoubt)
			}
		}
	})
}

// A server that is not ready for the question is asked again, and no connection is ended.
func TestQuestionNotReady(t *testing.T) {
	r, _, a, _, at := underWay(t, nil)
	question(t, r, a, at+2)
	a.smsn++
	a.nak(at+1, hdr.SynNAKSequence)
	for range 3 {
		a.nak(at+2, 0x20|5) // RNR NAK
		question(t, r, a, at+2)
	}
	a.spsn = at + 2
	a.ack()
	if f := &(*r.box().nodes.Load())[0].flows[0]; f.dead || f.gated || f.inDoubt {
		t.Errorf("dead %v, gated %v, in doubt %v", f.dead, f.gated, f.inDoubt)
	}
}

// The answer to a READ is lost with the process, and a WRITE behind it is executed. As
// soon as the doubt is over the READ is sent again: its client may be as impatient as
// round trips are short, and the next process knows how long these are.
func TestReadLostBehindTheQuestion(t *testing.T) {
	r, k, a, b := diverged(t, nil)
	b.learn(a, 0x7008, 1)
	at := a.spsn
	read := one(t, a.read(0x5000, 8).Out["b"])
	for v := range uint64(2) {
		one(t, b.cas(0x7008, 1+v, 2+v).Out["b"])
	}
	f := &(*r.box().nodes.Load())[0].flows[0]
	trip := f.trip
	r.restart(k, false, time.Microsecond, nil)
	question(t, r, a, at+3)
	a.smsn += 2
	same(t, a.nak(at+2, hdr.SynNAKSequence).Out["b"], a.empty(at+2), a.empty(at+3))
	a.spsn = at + 3
	same(t, a.ack().Out["b"], read)
	if f = &(*r.box().nodes.Load())[0].flows[0]; trip == 0 || f.trip != trip {
		t.Errorf("a round trip takes %v, before it was %v", f.trip, trip)
	}
}

// The operations that an ending connection leaves do not go to a connection that waits for the answer to a
// question: its next PSN is the question's.
func TestNoHeirInQuestion(t *testing.T) {
	r, _, _, _ := diverged(t, nil)
	n := (*r.box().nodes.Load())[0]
	o, to := &op{kind: kWrite, va: 0x7000, len: 8, rkey: testRKey, flags: fRight}, &n.flows[0]
	if n.successor(&n.flows[1], o) != to {
		t.Fatal("it can carry on")
	}
	for _, state := range []*bool{&to.gated, &to.inDoubt} {
		*state = true
		if n.successor(&n.flows[1], o) == to {
			t.Error("it inherits")
		}
		*state = false
	}
}

// Operations that the server may refuse go to no other connection: a refusal would end the successor's
// connection.
func TestNoHeirOfWhatMayBeRefused(t *testing.T) {
	r, _, _, _ := diverged(t, nil)
	n := (*r.box().nodes.Load())[0]
	k := n.keys.find(testRKey)
	for name, o := range map[string]op{
		"may":                            {kind: kWrite, va: 0x7000, len: 8, rkey: testRKey, flags: fRight},
		"its client was not seen to may": {kind: kWrite, va: 0x7000, len: 8, rkey: testRKey},
		"nobody was seen to reach there": {kind: kWrite, va: k.hi[aWrite], len: 8, rkey: testRKey, flags: fRight},
	} {
		if successor := n.successor(&n.flows[1], &o); (successor != nil) != (name == "may") {
			t.Errorf("%s: %v", name, successor != nil)
		}
	}
	k.until = r.Clock.Now().Add(time.Second)
	if n.successor(&n.flows[1], &op{kind: kWrite, va: 0x7000, len: 8, rkey: testRKey, flags: fRight}) != nil {
		t.Error("under a key that is being invalidated")
	}
}

// A request that the server says it has not executed teaches nothing about rights.
func TestCutTeachesNothing(t *testing.T) {
	const other = testRKey + 9
	r, k, a, b := diverged(t, nil)
	b.learn(a, 0x7008, 1)
	at := a.spsn
	one(t, b.cas(0x7008, 1, 2).Out["b"])
	one(t, a.request(hdr.WriteOnly, reth(0x5000, other, 8), little(1)).Out["b"])
	r.restart(k, false, time.Microsecond, nil)
	question(t, r, a, at+2)
	a.nak(at, hdr.SynNAKSequence)
	n := (*r.box().nodes.Load())[0]
	if a := &n.flows[0]; a.inDoubt || a.oldest != none || n.keys.find(other) != nil {
		t.Errorf("in doubt %v, open %v, right to a key that was not used %v", a.inDoubt, a.oldest != none, n.keys.find(other) != nil)
	}
}

// A process asks its server what was executed, gets the answer, and is killed, too, while a READ's answer is
// still missing. The next process counts on behind the PSN of the question: the server would take a request
// with that PSN for a repetition.
func TestAskedAndKilled(t *testing.T) {
	r, k, a, b := diverged(t, nil)
	at := a.spsn
	one(t, b.cas(0x7000, 7, 8).Out["b"]) // as a WRITE, over a's connection
	again := a.psn
	one(t, a.read(lowest, 8).Out["b"])
	r.restart(k, false, time.Microsecond, nil)
	question := a.empty(at + 2)
	for n := 0; ; n++ {
		if n == 100 {
			t.Fatal("the server is not asked")
		}
		if slices.ContainsFunc(r.Advance(100 * time.Microsecond).Out["b"], func(f graphtest.Frame) bool { return bytes.Equal(f.Bytes, question) }) {
			break
		}
	}
	r.Push("b", a.response(hdr.Acknowledge, at+2, aeth(hdr.SynACK, a.smsn+3), nil))
	r.restart(k, false, time.Microsecond, nil)
	r.Push("a", a.made(hdr.ReadRequest, again, reth(lowest, testRKey, 8), nil))
	r.Push("b", a.response(hdr.ReadRespOnly, at+1, aeth(hdr.SynACK, a.smsn+3), little(0)))
	var got []graphtest.Frame
	for _, f := range a.write(0x5000, 1).Out["b"] {
		if hdr.BTH(f.Bytes[42:]).DestQP() == a.sqpn {
			got = append(got, f)
		}
	}
	same(t, got, a.moved(a, hdr.WriteOnly, at+3, reth(0x5000, testRKey, 8), little(1)))
}
