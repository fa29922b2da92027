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
