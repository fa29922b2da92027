package swordbox

import (
	"errors"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/tor/conn"
)

// When a connection ended and another one inherited the operations that it carried, the inheriting connection
// counts as one with guests. A request lost there is sent again as soon as one lost over any other carrier,
// and not only at the next look at all connections.
func TestAttack10HeirIsWatched(t *testing.T) {
	const va = 0x7000
	until := func(ends bool) (time.Duration, bool) {
		r := newRig(t, graph.Args{"track": "7000+1000", "giveup": "300ms"})
		a, b, _ := r.join(), r.join(), r.join()
		b.learn(a, va, 1)
		r.Advance(30 * time.Millisecond)
		one(t, b.cas(va, 1, 2).Out["b"])
		if ends {
			r.Push("a", a.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: a.sqpn}))
			if got := r.Push("b", a.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})); len(got.Out["b"]) != 1 {
				t.Fatal("nobody inherits")
			}
		}
		n, ok := (*r.box().nodes.Load())[0], true
		for i := range n.flows {
			ok = ok && (n.flows[i].guests <= 0 || n.lends.set[i/64]>>(i%64)&1 != 0)
		}
		for d := time.Duration(0); d < 100*time.Millisecond; d += 250 * time.Microsecond {
			if len(r.Advance(250 * time.Microsecond).Out["b"]) > 0 {
				return d, ok
			}
		}
		return 100 * time.Millisecond, ok
	}
	before, ok := until(false)
	after, ok2 := until(true)
	t.Logf("sent again after %v, over an heir after %v", before, after)
	if !ok || !ok2 || after > before+time.Millisecond {
		t.Errorf("lost requests of others are sent again after %v, over a connection that inherited them after %v; found by a look at lenders: %v, %v", before, after, ok, ok2)
	}
}

// lastPlace puts one connection into the last place of the table.
func lastPlace(t *testing.T, n *node) {
	x := *n.conns.Row(0)
	x.Client.QPN, x.Server.QPN = 0x990, 0x991
	if err := n.conns.Adopt(0, conn.Slot(len(n.flows)-1), &x); err != nil {
		t.Fatal(err)
	}
}

// The worker has much to do: each look comes late by more than period. Connections in places behind
// mostInspected are looked at, too.
func TestAttack10LateLooks(t *testing.T) {
	r := newRig(t, graph.Args{"conns": "8192"})
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 1)
	n := (*r.box().nodes.Load())[0]
	lastPlace(t, n)
	done := 0
	for range 100 {
		r.Clock.Advance(6 * time.Millisecond) // giveup/10 is 5 ms
		r.Advance(time.Microsecond)
		if n.inspected < 0 || n.inspected > mostInspected {
			done++
		}
	}
	if done == 0 {
		t.Errorf("in 100 looks within 0.6 s no connection behind the %dth was looked at", mostInspected)
	}
}

// The process was away for long, and is late once more. The first absence is excused for connections in later
// places, too.
func TestAttack10Excused(t *testing.T) {
	r := newRig(t, graph.Args{"conns": "8192"})
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 1)
	n := (*r.box().nodes.Load())[0]
	lastPlace(t, n)
	first, last := &n.flows[100], &n.flows[5000]
	r.Advance(30 * time.Millisecond)
	now := r.Clock.Now()
	first.silent, last.silent = now, now
	r.Clock.Advance(time.Second)
	r.Advance(time.Microsecond)
	r.Clock.Advance(6 * time.Millisecond)
	for range 40 {
		r.Advance(time.Millisecond)
	}
	if d := first.silent.Sub(last.silent); d > clock.Duration(20*time.Millisecond) {
		t.Errorf("a connection in place 5000 has %v less excused than one in place 100: so long nobody could answer it", d)
	}
}

// The kernel's set is full, so that the inheriting connection cannot be bound. The operations that it
// inherits would make its ends count differently, and its frames would cross when this process is killed.
func TestAttack10HeirCannotBeBound(t *testing.T) {
	const va = 0x7000
	r := newRig(t, graph.Args{"track": "7000+1000"})
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	d := r.join()
	r.Advance(30 * time.Millisecond)
	one(t, b.cas(va, 1, 2).Out["b"])
	r.NoBind = errors.New("65536 queue pairs are bound, which is all that can be")
	r.Push("a", a.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: a.sqpn}))
	got := r.Push("b", a.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply}))
	for _, x := range got.Out["b"] {
		for _, heir := range []*party{c, d} {
			if q := (port.QueuePair{Addr: r.server, QPN: heir.sqpn}); queuePair(x.Bytes) == heir.sqpn && !r.Bound[q] {
				t.Errorf("an operation of %#x is inherited by %#x, which the kernel does not know: %v, refused %d times", b.sqpn, heir.sqpn, r.Bound, r.Counter("unbound"))
				// From now on it is taken for bound.
				heir.answer(hdr.Acknowledge, nil, nil)
			}
		}
	}
}
