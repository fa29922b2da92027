package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
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
func question(t *testing.T, r *rig, a, b *party, psn uint32) {
	t.Helper()
	for range 20 {
		if got := r.Advance(20 * time.Microsecond).Out["b"]; len(got) > 0 {
			if now := r.Clock.Now(); now < r.box().barred {
				t.Fatalf("asked at %v, before %v", now, r.box().barred)
			}
			same(t, got, b.moved(a, hdr.FetchAdd, psn, atomicETH(0x7008, testRKey, 0, 0), nil))
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
	question(t, r, a, b, at+2)
	a.spsn, a.smsn = at+2, a.smsn+2
	got := a.atomicAck(3).Out["a"]
	same(t, got, b.atomicAckTo(b.psn-2, b.msn+1, 1), b.atomicAckTo(b.psn-1, b.msn+2, 2))
	b.msn += 2
	same(t, a.write(0x5000, 1).Out["b"], a.moved(a, hdr.WriteOnly, at+3, reth(0x5000, testRKey, 8), little(1)))
}

// The server had the first of them only: the second comes from b once more, as the
// atomic that it is, and finds what the word is now.
func TestNotExecutedBeforeTheCrash(t *testing.T) {
	r, _, a, b, at := underWay(t, nil)
	question(t, r, a, b, at+2)
	a.smsn++
	got := a.nak(at+1, hdr.SynNAKSequence).Out["a"]
	same(t, got, b.atomicAckTo(b.psn-2, b.msn+1, 1), b.response(hdr.Acknowledge, b.psn-1, aeth(hdr.SynNAKSequence, b.msn+1), nil))
	b.msn++
	same(t, r.Push("a", b.made(hdr.CompareSwap, b.psn-1, atomicETH(0x7008, testRKey, 3, 2), nil)).Out["b"],
		b.moved(b, hdr.CompareSwap, b.spsn, atomicETH(0x7008, testRKey, 3, 2), nil))
	one(t, b.atomicAck(77).Out["a"])
	// The PSN of the question is not used while a copy of it may be under way.
	same(t, a.write(0x5000, 1).Out["b"], a.moved(a, hdr.WriteOnly, at+1, reth(0x5000, testRKey, 8), little(1)))
	none0(t, a.write(0x5008, 2).Out["b"])
	a.spsn = at + 1
	one(t, a.ack().Out["a"])
	r.Clock.Advance(time.Millisecond)
	same(t, a.write(0x5010, 3).Out["b"], a.moved(a, hdr.WriteOnly, at+2, reth(0x5008, testRKey, 8), little(2)),
		a.moved(a, hdr.WriteOnly, at+3, reth(0x5010, testRKey, 8), little(3)))
}

// While it is not known nothing goes over that connection, nor to that word, and
// nothing is sent again.
func TestNothingMeanwhile(t *testing.T) {
	r, _, a, b, at := underWay(t, nil)
	none0(t, a.write(0x5000, 1).Out["b"])
	none0(t, r.Push("a", b.made(hdr.CompareSwap, b.psn-2, atomicETH(0x7008, testRKey, 2, 1), nil)).Out["b"])
	c := r.client().connect()
	none0(t, c.write(0x7008, 9).Out["b"])
	question(t, r, a, b, at+2)
	a.spsn, a.smsn = at+2, a.smsn+2
	got := a.atomicAck(3)
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
