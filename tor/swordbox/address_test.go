package swordbox

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// A server whose MAC address changes (a bond, or another router) is found at the new one. First a client that
// goes on sending its requests there finds it, then all other clients at once. Operations over a connection
// whose own client is quiet go to the new address, too.
func TestServerMoves(t *testing.T) {
	r := newRig(t, graph.Args{"alive": "10ms", "giveup": "2s"})
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, 0x7000, 7)
	one(t, b.cas(0x7000, 7, 8).Out["b"]) // over a's connection
	r.serverMAC = [6]byte{2, 9, 0, 0, 0, 2}

	late := c.made(hdr.SendOnly, c.psn, nil, little(1)) // goes over no other's connection
	c.psn++
	for range enough - 1 {
		dropped(t, r.Push("a", late), "other-mac")
		r.Clock.Advance(12 * time.Millisecond)
	}
	if out := r.Push("a", late).Out["b"]; !slices.ContainsFunc(out, func(f graphtest.Frame) bool { return bytes.Equal(f.Bytes, late) }) {
		t.Errorf("it does not pass: %s", show(out)) // beside what is sent again over a's connection
	}
	one(t, c.ack().Out["a"])

	n := 0
	for range 20 {
		for _, f := range r.Advance(10 * time.Millisecond).Out["b"] {
			if bytes.Equal(f.Bytes, b.moved(a, hdr.WriteOnly, a.spsn, reth(0x7000, testRKey, 8), little(8))) {
				n++
			}
		}
	}
	if n == 0 {
		t.Fatal("what goes over a's connection was never sent to the new address")
	}
	one(t, a.ack().Out["a"])
	same(t, b.cas(0x7000, 8, 9).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(0x7000, testRKey, 8), little(9)))
}

// A client that sends to a server through one router, and has its answers from another, goes on when its router is replaced.
func TestRouterMoves(t *testing.T) {
	r := newRig(t, nil)
	a := r.join()
	via := func(mac byte) []byte {
		x := a.made(hdr.SendOnly, a.psn, nil, little(1))
		a.psn++
		x[5] = mac
		return x
	}
	for mac := range byte(3) {
		first := via(0x20 + mac)
		for k := 0; len(r.Push("a", first).Out["b"]) == 0; k++ {
			if k == enough {
				t.Fatalf("router %d: its requests are dropped without end", mac)
			}
			r.Clock.Advance(time.Second)
		}
		one(t, a.ack().Out["a"])
		a.msn++
		for range 3 {
			if got := one(t, r.Push("a", via(0x20+mac)).Out["b"]); got[5] != 0x20+mac {
				t.Errorf("router %d: it goes to %x", mac, got[:6])
			}
			one(t, a.ack().Out["a"])
			a.msn++
		}
	}
}

// A request with the P_Key of another partition passes unchanged, and takes no PSN. So does the request of a
// limited member to another limited member.
func TestPartition(t *testing.T) {
	for _, x := range []struct {
		server, client uint16
		takes          bool
	}{
		{0x8001, 0x8001, true}, {0x8001, 1, true}, {1, 0x8001, true}, {1, 1, false},
		{0x8001, 0x8002, false}, {0x8001, 2, false}, {0x8001, 0xFFFF, false}, {0x8001, 0, false},
	} {
		r := newRig(t, nil)
		a := r.join()
		n := (*r.box().nodes.Load())[0]
		slot, _ := n.conns.Find(conn.AddrFrom(a.ip), a.cqpn)
		n.conns.Row(slot).PKey = x.server // as if it had been seen
		a.pkey = x.client
		for range 3 {
			got := r.Push("a", a.made(hdr.SendOnly, a.psn, nil, little(1))).Out["b"]
			if passed := one(t, got); got[0].Reason == "partition" == x.takes {
				t.Errorf("%+v: %s passed as %q", x, text(passed), got[0].Reason)
			}
		}
	}
}
