package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// A client comes to have another MAC address under its connection, or another router comes to stand before it. Servers that look the address
// up for each answer (Linux' rxe) send to the new one from then on, and so does the box. A client whose operations go over another's connection
// repeats them, and the server is asked.
func TestClientMoves(t *testing.T) {
	moved := [6]byte{2, 1, 0, 0, 1, 0}
	t.Run("own connection", func(t *testing.T) {
		r := newRig(t, graph.Args{})
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 1)
		a.mac = moved
		one(t, a.cas(0x7000, 1, 2).Out["b"])
		msn := a.msn + 1
		got := a.ack().Out["a"]
		same(t, got[len(got)-1:], a.response(hdr.AtomicAck, a.psn-1, append(aeth(hdr.SynACK, msn), 0, 0, 0, 0, 0, 0, 0, 1), nil))
		for _, f := range got {
			if [6]byte(f.Bytes[:6]) != moved {
				t.Errorf("%s goes to %x", text(f.Bytes), f.Bytes[:6])
			}
		}
		same(t, b.cas(0x7000, 2, 3).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(0x7000, testRKey, 8), little(3)))
	})
	t.Run("another's connection", func(t *testing.T) {
		r := newRig(t, graph.Args{})
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 1)
		b.mac = moved
		one(t, b.cas(0x7000, 1, 2).Out["b"])
		one(t, a.ack().Out["a"]) // to the address of before
		r.Advance(time.Millisecond)
		asked := r.Push("a", b.made(hdr.CompareSwap, b.psn-1, atomicETH(0x7000, testRKey, 2, 1), nil))
		one(t, asked.Out["a"])
		var f hdr.Frame
		if q := one(t, asked.Out["b"]); hdr.Parse(q, &f) != hdr.IsRoCE || f.Op != hdr.WriteOnly || f.BTHOf(q).DestQP() != b.sqpn || f.RETHOf(q).DMALength() != 0 {
			t.Fatalf("the server gets %s, want a question", text(q))
		}
		msn := b.msn + 1
		same(t, r.Push("b", b.response(hdr.Acknowledge, b.spsn-1, aeth(hdr.SynACK, b.smsn), nil)).Out["a"],
			b.response(hdr.AtomicAck, b.psn-1, append(aeth(hdr.SynACK, msn), 0, 0, 0, 0, 0, 0, 0, 1), nil))
	})
	// Anybody can make up a request of another MAC address: it changes nothing.
	t.Run("somebody else", func(t *testing.T) {
		r := newRig(t, graph.Args{})
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 1)
		one(t, b.cas(0x7000, 1, 2).Out["b"])
		one(t, a.ack().Out["a"])
		b.msn++
		was := b.mac
		b.mac = moved
		forged := b.made(hdr.CompareSwap, b.psn-1, atomicETH(0x7000, testRKey, 2, 1), nil)
		b.mac = was
		r.Push("a", forged)
		one(t, b.cas(0x7000, 2, 3).Out["b"])
		same(t, a.ack().Out["a"], b.response(hdr.AtomicAck, b.psn-1, append(aeth(hdr.SynACK, b.msn+1), 0, 0, 0, 0, 0, 0, 0, 2), nil))
	})
}

// Clients of two VLANs reach one server by its one address, each VLAN through a router of its own (VRRP has another MAC address in each, and so
// have routers with an interface in each). What one VLAN's clients change in memory is not undone by WRITEs in the place of the other's atomics.
func TestOneServerInTwoVLANs(t *testing.T) {
	const va = 0x7000
	r := newRig(t, graph.Args{})
	in := func(vlan uint16) {
		r.tags, r.serverMAC = []uint16{vlan}, [6]byte{0, 0, 0x5E, 0, 1, byte(vlan)}
	}
	in(10)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	in(20)
	c := r.client().connect().proven()
	one(t, c.cas(va, 1, 2).Out["b"])
	one(t, c.atomicAck(1).Out["a"])
	in(10)
	r.Advance(time.Millisecond)
	x := one(t, b.cas(va, 1, 3).Out["b"]) // it fails, as the word has 2
	var f hdr.Frame
	if hdr.Parse(x, &f); f.Op != hdr.CompareSwap {
		t.Errorf("the server gets %s: it undoes what the client in the other VLAN has changed", text(x))
	}
}

// A connection that the configuration names, in another VLAN, has not been heard yet: its first request may change what is known here.
func TestNamesakeToCome(t *testing.T) {
	r := newRig(t, graph.Args{"static": "10.9.0.20/0x300-10.9.0.1/0x400,vlan=20"})
	r.tags = []uint16{10}
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 1)
	same(t, b.cas(0x7000, 1, 2).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(0x7000, testRKey, 2, 1), nil))
}
