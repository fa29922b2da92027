package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// goes is how long it takes, with no frame coming, until one goes to the server that is an
// atomic with that compare; longer than most: it does not go.
func (r *rig) goes(compare uint64, most time.Duration) time.Duration {
	r.t.Helper()
	const step = 10 * time.Microsecond
	for d := step; d <= most; d += step {
		for _, x := range r.Advance(step).Out["b"] {
			var f hdr.Frame
			if hdr.Parse(x.Bytes, &f) == hdr.IsRoCE && f.Op == hdr.CompareSwap && hdr.AtomicETH(x.Bytes[f.BTH+hdr.BTHLen:]).Compare() == compare {
				return d
			}
		}
	}
	return most + step
}

// A request waits for the answer that tells its word's value no longer than its client is known to wait,
// whichever side is silent. Where the client's time-out is not known it waits for some round trips.
func TestWaitsAsItsClientDoes(t *testing.T) {
	const va = 0x7008
	for _, c := range []struct {
		name        string
		timeout     uint8
		known       bool
		least, most time.Duration
	}{
		{"half a millisecond", 7, true, 0, 131 * time.Microsecond},
		{"two milliseconds", 9, true, 100 * time.Microsecond, 524 * time.Microsecond},
		{"long", 18, true, 1500 * time.Microsecond, 8 * time.Millisecond},
		{"without end", 0, true, 1500 * time.Microsecond, 8 * time.Millisecond},
		{"nobody said", 0, false, 0, 150 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.join()
			b, x := r.join(), r.client()
			x.timeout, x.retries = c.timeout, 7
			x.connect().proven()
			n := (*r.App().(*Box).nodes.Load())[0]
			f := &n.flows[2]
			if n.row(f).Client.QPN != x.cqpn {
				t.Fatal("another connection")
			}
			if !c.known {
				n.row(f).AckTimeout = 0
			}
			one(t, b.cas(va, 3, 4).Out["b"]) // tells the word's value, when it is answered
			none0(t, x.cas(va, 5, 6).Out["b"])
			if d := r.goes(5, 20*time.Millisecond); d < c.least || d > c.most {
				t.Errorf("it waits %v, not %v to %v", d, c.least, c.most)
			}
		})
	}
}

// An operation that is lost over another's connection is sent again soon, even when no client sends anything
// and no look at the connections was due.
func TestLostAtOnce(t *testing.T) {
	r := newRig(t, muxArgs)
	a, b := r.join(), r.join()
	r.Advance(time.Second) // nothing is under way, so that the next look is far
	a.warm()
	b.warm()
	if to := queuePair(one(t, b.cas(0x7008, 1, 2).Out["b"])); to != a.sqpn {
		t.Fatalf("sent to queue pair %#x", to)
	}
	if d := r.goes(1, 50*time.Millisecond); d > 2*time.Duration(leastPatience) {
		t.Errorf("it is sent again after %v", d)
	}
}

// While the server waits for a SEND that it had no buffer for, nothing else of its client goes: it would
// ask for the SEND at once, and a client that may not ask again gives up.
func TestBehindNotReady(t *testing.T) {
	const va = 0x7008
	r := newRig(t, nil)
	a, b, x := r.join(), r.join(), r.join()
	one(t, b.cas(va, 3, 4).Out["b"]) // tells the word's value, when it is answered
	x.warm()
	send := x.made(hdr.SendOnly, x.psn, nil, little(0))
	same(t, r.Push("a", send).Out["b"], send)
	x.psn++
	none0(t, x.cas(va, 5, 6).Out["b"])
	one(t, r.Push("b", x.response(hdr.Acknowledge, x.psn-2, aeth(0x21, x.smsn), nil)).Out["a"])
	for _, f := range append(a.atomicAck(3).Out["b"], r.Advance(20 * time.Millisecond).Out["b"]...) {
		if queuePair(f.Bytes) == x.sqpn {
			t.Fatalf("in front of the SEND goes %s", text(f.Bytes))
		}
	}
	got := r.Push("a", send).Out["b"]
	if len(got) != 2 || opcode(t, got[0].Bytes) != hdr.SendOnly || queuePair(got[1].Bytes) != x.sqpn {
		t.Errorf("with the SEND goes%s", show(got))
	}
}

// All that was sent behind the SEND has to come again, too, before anything new goes.
func TestBehindWhatComesAgain(t *testing.T) {
	const va = 0x7008
	r := newRig(t, nil)
	a, b, x := r.join(), r.join(), r.join()
	one(t, b.cas(va, 3, 4).Out["b"])
	x.warm()
	p := x.psn
	send, read := x.made(hdr.SendOnly, p, nil, little(0)), x.made(hdr.ReadRequest, p+1, reth(0x5000, testRKey, 8), nil)
	same(t, r.Push("a", send, read).Out["b"], send, read)
	x.psn += 2
	none0(t, x.cas(va, 5, 6).Out["b"])
	one(t, r.Push("b", x.response(hdr.Acknowledge, p, aeth(0x21, x.smsn), nil)).Out["a"])
	goes := func(when string, f []graphtest.Frame) {
		t.Helper()
		for _, f := range f {
			if op := opcode(t, f.Bytes); queuePair(f.Bytes) == x.sqpn && op != hdr.SendOnly && op != hdr.ReadRequest {
				t.Fatalf("%s goes %s", when, text(f.Bytes))
			}
		}
	}
	goes("in front of the SEND", append(a.atomicAck(3).Out["b"], r.Advance(20 * time.Millisecond).Out["b"]...))
	goes("in front of the READ", r.Push("a", send).Out["b"])
	goes("in front of the READ", r.Push("b", x.response(hdr.Acknowledge, p, aeth(hdr.SynACK, x.smsn+1), nil)).Out["b"])
	got := r.Push("a", read).Out["b"]
	if len(got) != 2 || opcode(t, got[0].Bytes) != hdr.ReadRequest || queuePair(got[1].Bytes) != x.sqpn {
		t.Errorf("with the READ goes%s", show(got))
	}
}

// Nor does anything of others, also behind a WRITE with immediate, which could be sent again here.
func TestNobodyBehindImmediate(t *testing.T) {
	const va = 0x7008
	r := newRig(t, muxArgs)
	a, b, c := r.join(), r.join(), r.join()
	one(t, a.request(hdr.WriteOnlyImm, append(reth(lowest, testRKey, 8), 0, 0, 0, 1), little(7)).Out["b"])
	if to := queuePair(one(t, a.cas(va, 3, 4).Out["b"])); to != a.sqpn { // the connection of its word, now
		t.Fatalf("sent to %#x", to)
	}
	b.writes()
	for _, f := range c.write(va, 5).Out["b"] {
		if queuePair(f.Bytes) == a.sqpn {
			t.Fatalf("behind the WRITE goes %s", text(f.Bytes))
		}
	}
}

// A connection whose client gives up sooner does not carry the operations of a more patient client: once its
// client has given up, nobody would know what became of them. It gives its place to a more patient one.
func TestCarriedByThePatient(t *testing.T) {
	const va = 0x7008
	r := newRig(t, muxArgs)
	r.reach()
	join := func(timeout, retries uint8) *party {
		c := r.client()
		c.timeout, c.retries = timeout, retries
		return c.connect().proven()
	}
	carried := func(c *party) uint32 {
		t.Helper()
		return queuePair(one(t, c.request(hdr.FetchAdd, atomicETH(va, testRKey, 1, 0), nil).Out["b"]))
	}
	join(7, 1)
	own := r.client()
	own.timeout, own.retries = 14, 7
	own.connect().alone().proven() // it carries nothing of others'
	if to := carried(own); to != own.sqpn {
		t.Errorf("the atomic of a patient client goes over %#x, not over its own", to)
	}
	own.atomicAck(0)
	once := join(7, 0)
	if to := carried(once); to != once.sqpn {
		t.Errorf("the atomic of a client that cannot ask again goes over %#x, not over its own", to)
	}
	once.atomicAck(0)
	hasty, long := join(7, 1), join(14, 7)
	if to := carried(hasty); to != long.sqpn {
		t.Errorf("the atomic of a client of little patience goes over %#x, not %#x", to, long.sqpn)
	}
	long.atomicAck(0)
	longer := join(14, 7)
	if to := carried(longer); to != long.sqpn {
		t.Errorf("the atomic of one as patient goes over %#x, not %#x", to, long.sqpn)
	}
	long.atomicAck(1)
	longest := join(20, 7)
	if to := carried(long); to != longest.sqpn {
		t.Errorf("the atomic of a patient client goes over %#x, not %#x", to, longest.sqpn)
	}
}

// A connection on which the server owes an answer for long carries nothing new of others: its client may
// have gone. When the server has answered it does again.
func TestSilentCarriesNothing(t *testing.T) {
	r := newRig(t, muxArgs)
	a, b := r.join(), r.join()
	one(t, a.write(lowest, 1).Out["b"])
	r.Advance(2 * time.Millisecond)
	b.warm()
	if to := queuePair(one(t, b.cas(0x7008, 1, 2).Out["b"])); to != b.sqpn {
		t.Errorf("behind what has no answer goes an atomic, to %#x", to)
	}
	b.atomicAck(1)
	a.ack()
	if to := queuePair(one(t, b.cas(0x7008, 1, 2).Out["b"])); to != a.sqpn {
		t.Errorf("when the server has answered an atomic goes to %#x", to)
	}
}
