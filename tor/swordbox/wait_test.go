package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// A client's connection carries others' WRITEs all the time, and takes no READs of others. The client's own
// first READ goes as soon as the requests under way are answered.
func TestOwnersFirstRead(t *testing.T) {
	const va = 0x7008
	r := newRig(t, muxArgs)
	r.resources = 0
	a := r.client().connect().use(va, testRKey, aWrite)
	b := r.client().connect().alone().use(va, testRKey, aWrite)
	if to := queuePair(one(t, b.write(va, 1).Out["b"])); to != a.sqpn {
		t.Fatalf("sent to queue pair %#x", to)
	}
	none0(t, a.read(lowest, 8).Out["b"])
	for _, f := range b.write(va, 2).Out["b"] {
		if queuePair(f.Bytes) == a.sqpn {
			t.Errorf("another WRITE goes before its client's READ: %s", text(f.Bytes))
		}
	}
	got := a.ack().Out["b"]
	if len(got) == 0 || opcode(t, got[0].Bytes) != hdr.ReadRequest {
		t.Errorf("the READ does not go:%s", show(got))
	}
}

// A WRITE over several words waits for the WRITEs in the place of atomics that are under way, and for no
// other ones: answers that come meanwhile do not make the words known, so that atomics go unchanged.
func TestWideBehindWrites(t *testing.T) {
	const va = 0x7008
	r := newRig(t, nil)
	a, b, c, d := r.join(), r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	one(t, b.cas(va, 1, 2).Out["b"]) // as a WRITE
	one(t, d.request(hdr.SendOnly, nil, little(0)).Out["b"])
	none0(t, d.write(va, 5).Out["b"]) // behind what its own connection has
	none0(t, d.cas(va, 5, 6).Out["b"])
	wide := c.made(hdr.WriteOnly, c.psn, reth(va-8, testRKey, 24), make([]byte, 24))
	none0(t, r.Push("a", wide).Out["b"])
	got := d.ack().Out["b"]
	if len(got) == 0 || opcode(t, got[0].Bytes) != hdr.WriteOnly {
		t.Fatalf("not sent on:%s", show(got))
	}
	for _, f := range got[1:] {
		if opcode(t, f.Bytes) != hdr.CompareSwap {
			t.Errorf("one more goes before it: %s", text(f.Bytes))
		}
	}
	same(t, a.ack().Out["b"][:1], wide)
}

// gather has n clients wait for a word that is reached over the first client's connection, and adds one
// client that does not use the word. A player, if there is one, gets the same frames.
func gather(t testing.TB, n int) (r *rig, p *player, other *party) {
	t.Helper()
	const va = 0x7008
	r = newRig(t, graph.Args{"conns": fmt.Sprint(n + 8), "hold": fmt.Sprint(4*n + 64), "giveup": "1h", "alive": "1h"})
	var tape []taped
	if _, is := t.(*testing.B); is {
		p = newPlayerOf(t, r.args, n+256)
		r.tape = &tape
	}
	a, b, other := r.join(), r.join(), r.join()
	for range n {
		c := r.client().connect()
		c.warm()
		c.warm()
	}
	b.learn(a, va, 1)
	one(t, b.cas(va, 1, 2).Out["b"])
	for _, c := range r.clients[3:] {
		if p == nil {
			none0(t, c.cas(va, 1, 2).Out["b"])
			continue
		}
		p.play(tape)
		tape = tape[:0]
		p.play([]taped{{"a", r.Clock.Now(), c.made(hdr.CompareSwap, c.psn, atomicETH(va, testRKey, 2, 1), nil)}})
	}
	return r, p, other
}

// Those that wait for a word go in the order in which they came, some for each frame.
func TestCrowd(t *testing.T) {
	const many = 300
	r, _, other := gather(t, many)
	n := (*r.box().nodes.Load())[0]
	if len(n.waits.all) != many {
		t.Fatalf("%d wait, want %d", len(n.waits.all), many)
	}
	sent := len(other.write(0x5000, 1).Out["b"]) + len(other.ack().Out["b"])
	if sent != 1 {
		t.Fatalf("%d frames were sent, want the WRITE of the one that does not wait", sent)
	}
	first := r.clients[3]
	if got := one(t, r.clients[0].ack().Out["b"]); queuePair(got) != first.sqpn {
		t.Fatalf("the first is not the next one: %s", text(got))
	}
	got := first.atomicAck(2).Out["b"]
	if len(got) < 32 || len(got) > 2*64 { // tried behind the answer, and behind the frame
		t.Fatalf("%d went on at once, want 32 to 128", len(got))
	}
	for k, f := range got[:32] {
		if queuePair(f.Bytes) != r.clients[4+k].sqpn {
			t.Fatalf("client %d is not the next one: %s", k, text(f.Bytes))
		}
	}
}

// BenchmarkWaiting is what two frames cost, a request and its answer, while so many clients
// wait for something that has nothing to do with it.
func BenchmarkWaiting(b *testing.B) {
	for _, n := range []int{1, 64, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, p, other := gather(b, n)
			if waiting := p.inst.Held(); waiting != n {
				b.Fatalf("%d wait, want %d", waiting, n)
			}
			var frames []taped
			for k := 0; b.Loop(); k++ {
				if k%256 == 0 {
					b.StopTimer()
					frames = frames[:0]
					for range 256 {
						w := other.made(hdr.WriteOnly, other.psn, reth(0x5000, testRKey, 8), little(1))
						other.psn++
						other.smsn++
						frames = append(frames, taped{"a", r.Clock.Now(), w}, taped{"b", r.Clock.Now(), other.response(hdr.Acknowledge, other.spsn, aeth(hdr.SynACK, other.smsn), nil)})
						other.spsn++
					}
					b.StartTimer()
				}
				p.play(frames[k%256*2:][:2])
			}
		})
	}
}

// Frames held of a connection's operations count for its share of the room, as its waiting requests do, and
// no longer than they are held.
func TestHeldShare(t *testing.T) {
	r := newRig(t, graph.Args{"hold": "8", "order": "word", "mode": "mux"})
	a, b := r.join(), r.join()
	n := (*r.box().nodes.Load())[0]
	kept := func() int { return int(n.shelf.of[1].kept) }
	for range 3 {
		one(t, b.cas(0x7010, 1, 2).Out["b"]) // over a's connection
		for range 3 {
			one(t, b.read(0x5000, 8).Out["b"])
		}
		for k := range 3 {
			none0(t, b.answer(hdr.ReadRespOnly, nil, little(7)).Out["a"])
			if kept() != k+1 || n.shelf.Len() != k+1 {
				t.Fatalf("%d of %d frames count, want %d", kept(), n.shelf.Len(), k+1)
			}
		}
		one(t, b.read(0x5000, 8).Out["b"])
		dropped(t, b.answer(hdr.ReadRespOnly, nil, little(7)), "hold-full")
		b.spsn, b.smsn = b.spsn-1, b.smsn-1
		if got := a.atomicAck(1).Out["a"]; len(got) != 4 {
			t.Fatalf("%d answers%s", len(got), show(got))
		}
		one(t, b.answer(hdr.ReadRespOnly, nil, little(7)).Out["a"])
		b.msn += 5
		if kept() != 0 {
			t.Fatalf("%d frames count, and none is held", kept())
		}
	}
	one(t, b.cas(0x7010, 1, 2).Out["b"])
	one(t, b.read(0x5000, 8).Out["b"])
	b.answer(hdr.ReadRespOnly, nil, little(7))
	b.leave()
	if kept() != 0 {
		t.Errorf("%d frames of a connection that is gone count", kept())
	}
}

// long makes the first request of a client wait, and n requests behind it. frees is the frame that lets the
// first go. A player, if there is one, gets the same frames.
func long(t testing.TB, n int) (r *rig, p *player, frees []byte) {
	t.Helper()
	const va = 0x7008
	r = newRig(t, graph.Args{"window": "4096", "hold": fmt.Sprint(4 * n), "giveup": "1h", "alive": "1h"})
	var tape []taped
	if _, is := t.(*testing.B); is {
		p = newPlayerOf(t, r.args, 5*n+256)
		r.tape = &tape
	}
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	c := r.join()
	one(t, b.cas(va, 1, 2).Out["b"])                                                        // as a WRITE
	none0(t, c.request(hdr.WriteOnly, reth(va-8, testRKey, 24), make([]byte, 24)).Out["b"]) // waits for it
	for range n {
		none0(t, c.write(0x5000, 1).Out["b"])
	}
	frees = a.response(hdr.Acknowledge, a.spsn, aeth(hdr.SynACK, a.smsn+1), nil)
	if p != nil {
		p.play(tape)
	}
	return r, p, frees
}

// However many requests of a client wait, one frame lets only a limited number of them go.
func TestLongQueue(t *testing.T) {
	const many = 500
	r, _, f := long(t, many)
	got := r.Push("b", f).Out["b"]
	if len(got) == 0 || len(got) > 2*mostResumed {
		t.Fatalf("%d went on with one frame, want %d at most", len(got), 2*mostResumed)
	}
	sent := len(got)
	for range 2 * many / mostResumed {
		sent += len(r.Advance(5 * time.Millisecond).Out["b"]) // and no other frame comes
	}
	if sent != many+1 {
		t.Errorf("%d went on, want %d", sent, many+1)
	}
}

// The same for requests of a connection that nobody follows.
func TestManyStrangers(t *testing.T) {
	const va, many = 0x7008, 300
	r := newRig(t, graph.Args{"hold": "4096"})
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	one(t, b.cas(va, 1, 2).Out["b"])
	x := r.client()
	for range many {
		none0(t, x.write(va, 1).Out["b"])
	}
	sent := len(a.ack().Out["b"])
	if sent == 0 || sent > 2*mostResumed { // tried behind the answer, and behind the frame
		t.Fatalf("%d went on with one frame, want %d at most", sent, 2*mostResumed)
	}
	for range many / mostResumed {
		sent += len(r.Advance(5 * time.Millisecond).Out["b"])
	}
	if sent != many {
		t.Errorf("%d went on, want %d", sent, many)
	}
}

// BenchmarkLong is the cost of one frame that lets the first of n waiting requests of one client go.
func BenchmarkLong(b *testing.B) {
	for _, n := range []int{16, 256, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r, p, f := long(b, n)
				x := []taped{{"b", r.Clock.Now(), f}}
				b.StartTimer()
				p.play(x)
			}
		})
	}
}
