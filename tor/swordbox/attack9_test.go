package swordbox

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// Two tenants use the same addresses and queue pair numbers in two VLANs, which are two servers to the box.
// When a connection of one tenant ends, that of the other must stay bound: its two ends count differently,
// and its frames would cross on the wire when this process is killed.
func TestAttack9BoundInTwoVLANs(t *testing.T) {
	const va = 0x7020
	r := newRig(t, graph.Args{"mode": "mux"})
	share := func(vlan uint16) (a, b *party) {
		r.tags, r.clients = []uint16{vlan}, nil
		r.reach()
		a, b = r.join(), r.join()
		b.learn(a, va, 4)
		if got := one(t, b.cas(va, 4, 5).Out["b"]); queuePair(got) != a.sqpn {
			t.Fatalf("nothing moved in VLAN %d", vlan)
		}
		one(t, a.atomicAck(4).Out["a"])
		return a, b
	}
	a, _ := share(5)
	q := port.QueuePair{Addr: r.server, QPN: a.sqpn}
	if !r.Bound[q] {
		t.Fatalf("%v is not bound: %v", q, r.Bound)
	}
	x, y := share(6)
	x.leave()
	y.leave()
	if !r.Bound[q] {
		t.Errorf("in VLAN 5 %v still carries others' operations, and is not bound any more: %d are (%d connections are on record)", q, len(r.Bound), r.Counter("recorded"))
	}
}

// A client's queue pair is reset, and connected to another server, whose connection carries others'
// operations, too. When the connection to the first server ends at last (by a late DisconnectRequest, or
// because the box gives it up), the client's queue pair must stay bound: otherwise answers of the second
// server to others' operations would cross to that client when this process is killed.
func TestAttack9BoundAtTwoServers(t *testing.T) {
	const va = 0x7020
	r := newRig(t, graph.Args{"mode": "mux"})
	share := func(server string, mac byte) (a, b *party) {
		r.server, r.serverMAC, r.clients = netip.MustParseAddr(server), [6]byte{2, 9, 0, 0, 0, mac}, nil
		a, b = r.join(), r.join()
		b.learn(a, va, 4)
		if got := one(t, b.cas(va, 4, 5).Out["b"]); queuePair(got) != a.sqpn {
			t.Fatalf("nothing moved at %s", server)
		}
		one(t, a.atomicAck(4).Out["a"])
		return a, b
	}
	x, y := share("10.9.0.1", 1)
	a, _ := share("10.9.0.2", 2)
	q := port.QueuePair{Addr: a.ip, QPN: a.cqpn}
	if !r.Bound[q] {
		t.Fatalf("%v is not bound: %v", q, r.Bound)
	}
	r.server, r.serverMAC = netip.MustParseAddr("10.9.0.1"), [6]byte{2, 9, 0, 0, 0, 1}
	x.leave()
	y.leave()
	if !r.Bound[q] {
		t.Errorf("%v still has answers to others' operations translated, and is not bound any more: %v", q, r.Bound)
	}
}

// The kernel's set of bound queue pairs is full (port.MaxBound: 32,768 connections; conns= may be 65,536 for
// each of 16 servers). Then the two ends of a connection must not come to count differently.
func TestAttack9CannotBeBound(t *testing.T) {
	const va = 0x7020
	r := newRig(t, graph.Args{"mode": "mux"})
	a, b := r.join(), r.join()
	b.learn(a, va, 4)
	r.NoBind = errors.New("65536 queue pairs are bound, which is all that can be")
	c, d := r.join(), r.join()
	for _, p := range []*party{c, d} {
		got := one(t, p.cas(va, 4, 5).Out["b"])
		if queuePair(got) != p.sqpn {
			t.Errorf("an operation of queue pair %#x went over %#x, and nothing of its own is bound: %d times", p.sqpn, queuePair(got), r.Counter("unbound"))
		}
		break
	}
}
