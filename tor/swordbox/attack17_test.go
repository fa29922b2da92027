package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// A process goes on with operations that another one sent over other clients' connections. A client that invalidates their R_Key still waits
// until they are answered, and so it is with the operations behind them.
func TestGuestsOverACrash(t *testing.T) {
	invalidate := []byte{0, 0, testRKey >> 8, testRKey & 0xFF}
	for _, when := range []string{"under way", "answered"} {
		r, k, a, b := diverged(t, graph.Args{"mode": "mux"})
		c := r.join()
		one(t, b.cas(0x7010, 1, 2).Out["b"])
		r.restart(k, false, time.Microsecond, nil)
		r.Advance(time.Millisecond)
		if when == "answered" {
			one(t, a.atomicAck(5).Out["a"])
			b.msn++
			c.reads()
			r.reach()
			a.reads()
			a.adds()
			b.adds()
			same(t, b.cas(0x7010, 1, 2).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(0x7010, testRKey, 2, 1), nil))
		}
		if out := c.request(hdr.SendOnlyInv, invalidate, little(0)).Out["b"]; len(out) > 0 {
			t.Errorf("%s: it is invalidated under an operation", when)
		}
		got := a.atomicAck(5)
		one(t, got.Out["a"])
		if b := one(t, got.Out["b"]); queuePair(b) != c.sqpn {
			t.Fatalf("%s", text(b))
		}
	}
}

// A server's end of a lost connection goes on answering the box's questions. Its client has a new connection under the same number, of
// which an answer has the PSN that those answers have. It is held back a few times at most: its client repeats its request.
func TestLostEndAnswersForEver(t *testing.T) {
	r, k, d := journaling(t, graph.Args{"idle": "2h"})
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	r.reboot(k, d)
	r.Advance(2 * time.Duration(keepGone))
	stays(t, r.Push("a", a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))).Out["b"])
	none0(t, a.acknowledges(a.spsn).Out["a"])
	for minute := range 4 {
		asked := 0
		for range 70 {
			for range stays(t, r.Advance(time.Second).Out["b"]) {
				none0(t, a.acknowledges(a.spsn).Out["a"])
				asked++
			}
		}
		swallowed := 0
		for len(a.acknowledges(a.spsn).Out["a"]) == 0 {
			if swallowed++; swallowed == 7 {
				t.Fatalf("minute %d, %d questions: each of %d answers is held back", minute, asked, swallowed)
			}
			r.Advance(time.Second)
		}
	}
}
