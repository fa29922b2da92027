package swordbox

import (
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// A server has two addresses, each of a NIC of its own. The same R_Key means other memory at each, so neither a connection nor a word's
// value of one NIC serves the other one's clients.
func TestTwoNICs(t *testing.T) {
	const va = 0x7008
	first, other := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	r := newRig(t, graph.Args{"servers": "10.9.0.1=10.9.0.2"})
	mac := r.serverMAC
	at := func(a netip.Addr) {
		if r.server, r.serverMAC = a, mac; a == other {
			r.serverMAC[5] = 2
		}
	}
	at(first)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	at(other)
	r.reach()
	c, d := r.client().connect().proven(), r.client().connect().proven()
	same(t, c.cas(va, 9, 9).Out["b"], c.made(hdr.CompareSwap, c.psn-1, atomicETH(va, testRKey, 9, 9), nil))
	same(t, c.atomicAck(5).Out["a"], c.response(hdr.AtomicAck, c.psn-1, append(aeth(hdr.SynACK, c.smsn), 0, 0, 0, 0, 0, 0, 0, 5), nil))
	c.msn++
	// The clients of one NIC share.
	r.Advance(time.Millisecond)
	same(t, d.cas(va, 9, 9).Out["b"], d.moved(c, hdr.WriteOnly, c.spsn, reth(va, testRKey, 8), little(5)))
	one(t, c.ack().Out["a"])
	at(first)
	r.Advance(time.Millisecond)
	same(t, b.cas(va, 7, 7).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(va, testRKey, 7, 7), nil))
}

// A server has two addresses, and all its answers come from one MAC address. Where no router is between, they are of one NIC, whose clients share
// connections. Behind a router, which has that MAC address, they may be of two NICs, and the same R_Key may mean other memory at each: also when the router
// has other servers' answers, and after a restart.
func TestOneMAC(t *testing.T) {
	const va = 0x7008
	first, other := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	for _, c := range []struct {
		hops uint8
		one  bool
	}{{64, true}, {255, true}, {1, true}, {63, false}, {254, false}, {62, false}} {
		r, k := keeping(t, graph.Args{"servers": "10.9.0.1=10.9.0.2", "conns": "16"})
		r.hops, r.server = c.hops, first
		a, b := r.join(), r.join()
		b.learn(a, va, 1)
		r.server = other
		if !c.one {
			r.reach()
		}
		d, e := r.client().connect().proven(), r.client().connect().proven()
		r.Advance(time.Millisecond)
		out := one(t, d.cas(va, 9, 9).Out["b"])
		if over := queuePair(out); (over == a.sqpn) != c.one {
			t.Fatalf("%d hops left: goes over queue pair %#x", c.hops, over)
		}
		if c.one {
			continue
		}
		one(t, d.atomicAck(5).Out["a"])
		d.msn++
		// The clients of one NIC share.
		r.Advance(time.Millisecond)
		same(t, e.cas(va, 9, 9).Out["b"], e.moved(d, hdr.WriteOnly, d.spsn, reth(va, testRKey, 8), little(5)))
		one(t, d.ack().Out["a"])
		e.msn++
		// What is known of the word stays known when another client connects in the place of one that was of this NIC.
		r.client().connect().proven().leave()
		e.learn(d, va, 5)
		g := r.client().connect().proven()
		r.Advance(time.Millisecond)
		same(t, g.cas(va, 9, 9).Out["b"], g.moved(d, hdr.WriteOnly, d.spsn, reth(va, testRKey, 8), little(5)))
		one(t, d.ack().Out["a"])
		r.restart(k, false, time.Millisecond, nil)
		r.Advance(time.Millisecond)
		n := (*r.box().nodes.Load())[0]
		for i := range n.flows {
			f := &n.flows[i]
			if !f.synced {
				continue
			}
			for j := range n.flows {
				if g := &n.flows[j]; g.synced && (n.nicOf(f) == n.nicOf(g)) != (n.row(f).Server.Addr == n.row(g).Server.Addr) {
					t.Errorf("after a restart connections to %v and %v are of one NIC: %v", n.row(f).Server.Addr, n.row(g).Server.Addr, n.nicOf(f) == n.nicOf(g))
				}
			}
		}
	}
}

// Behind a router there is a NIC for each of mostNICs addresses.
func TestNICsBehindARouter(t *testing.T) {
	r := newRig(t, graph.Args{"servers": "10.9.0.1=10.9.0.2=10.9.0.3=10.9.0.4", "conns": "16"})
	r.hops = 60
	n := func() *node { return (*r.box().nodes.Load())[0] }
	seen := map[*nic]bool{}
	for k := range byte(4) {
		r.server = netip.AddrFrom4([4]byte{10, 9, 0, k + 1})
		c := r.client().connect().proven()
		slot, _ := n().conns.Find(conn.AddrFrom(r.server), c.sqpn)
		if f := &n().flows[slot]; !f.trusted || seen[n().nicOf(f)] {
			t.Errorf("NIC %d: followed %v, of its own %v", k, f.trusted, !seen[n().nicOf(f)])
		} else {
			seen[n().nicOf(f)] = true
		}
		r.Advance(2 * time.Duration(tick))
	}
}

// The way to one NIC is interrupted for longer than giveup=, while the other one answers. No connection of the first one fails.
func TestOneNICIsSilent(t *testing.T) {
	first, other := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	r := newRig(t, graph.Args{"servers": "10.9.0.1=10.9.0.2", "alive": "100ms"})
	mac := r.serverMAC
	at := func(a netip.Addr) {
		if r.server, r.serverMAC = a, mac; a == other {
			r.serverMAC[5] = 2
		}
	}
	at(first)
	a, b, e := r.join(), r.join(), r.join()
	b.learn(a, 0x7000, 7)
	e.learn(a, 0x7010, 7)
	at(other)
	c := r.client().connect().proven()
	at(first)
	one(t, b.cas(0x7000, 8, 8).Out["b"])
	for range 100 {
		at(first)
		for _, f := range r.Advance(10 * time.Millisecond).Out["a"] {
			t.Fatalf("a client of the silent NIC is told %s", text(f.Bytes))
		}
		at(other)
		one(t, c.write(0x5000, 1).Out["b"])
		one(t, c.ack().Out["a"])
	}
	at(first)
	one(t, a.atomicAck(7).Out["a"])
}

// A server of five NICs: connections of the fifth are not followed, and cross as they are, until nothing followed ends at another one.
func TestFiveNICs(t *testing.T) {
	first, other := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	r := newRig(t, graph.Args{"servers": "10.9.0.1=10.9.0.2", "conns": "16"})
	r.server = first
	r.reach()
	n := (*r.box().nodes.Load())[0]
	var all []*party
	for k := range 5 {
		if k > 0 {
			r.server = other
			r.serverMAC[5] = byte(0x10 + k)
		}
		all = append(all, r.client().connect())
		all[k].warm()
		slot, _ := n.conns.Find(conn.AddrFrom(r.server), all[k].sqpn)
		if followed := n.flows[slot].synced; followed != (k < mostNICs) {
			t.Errorf("NIC %d: followed %v", k, followed)
		}
	}
	last := all[4]
	r.serverMAC[5] = 0x11
	all[1].leave()
	r.serverMAC[5] = 0x14
	r.Advance(2 * time.Duration(tick))
	last.warm()
	last.warm()
	last.warm()
	slot, _ := n.conns.Find(conn.AddrFrom(other), last.sqpn)
	if f := &n.flows[slot]; !f.synced || n.nicOf(f).mac != 0x020900000014 {
		t.Errorf("followed %v at %x", f.synced, n.nicOf(f).mac)
	}
	for range 3 {
		last.reads()
	}
	if x := n.nicOf(&n.flows[slot]); x.keys.find(testRKey) == nil || x.keys.forgotten != 0 {
		t.Errorf("%d rights are forgotten for want of a place, with %d places", x.keys.forgotten, len(x.keys.k))
	}
}

// Five MAC addresses of a server with several are on record, one of them from before servers= joined its addresses. No connection counts as one of a NIC
// that it does not end at: R_Keys mean other memory there. All are lost, because their operations go over each other's connections.
func TestFiveNICsOnRecord(t *testing.T) {
	r, k := keeping(t, graph.Args{"servers": "10.9.0.1=10.9.0.2", "conns": "16"})
	var last *party
	for nic := range byte(mostNICs) {
		r.server, r.serverMAC[5] = netip.AddrFrom4([4]byte{10, 9, 0, min(nic+1, 2)}), 0x10+nic
		r.reach()
		a, b := r.join(), r.join()
		r.Advance(time.Millisecond)
		b.learn(a, 0x7000+8*uint64(nic), 7)
		last = a
	}
	n := (*r.box().nodes.Load())[0]
	slot, _ := n.conns.Find(conn.AddrFrom(r.server), last.sqpn)
	n.rows[slot].Server.L2[11] = 0x20
	bound := r.box().recorded()
	r.restart(k, false, time.Millisecond, nil)
	r.Advance(time.Millisecond)
	if now := r.box().recorded(); now != bound {
		t.Errorf("%d connections are on record, and were %d", now, bound)
	}
	n = (*r.box().nodes.Load())[0]
	for i := range n.flows {
		if f := &n.flows[i]; f.synced && !f.gone && n.nicOf(f).mac != answersFrom(&n.rows[i]) {
			t.Errorf("a connection at %x counts as one at %x", answersFrom(&n.rows[i]), n.nicOf(f).mac)
		}
	}
	if out := last.write(0x5000, 2); len(out.Out["b"]) > 0 {
		t.Errorf("sent: %s", text(out.Out["b"][0].Bytes))
	}
}

// hailer is the app with something that its next Tick does first.
type hailer struct {
	*Box
	do func()
}

func (h *hailer) Tick(c *graph.Ctx) clock.Time {
	if do := h.do; do != nil {
		h.do, h.c = nil, c
		h.own((*h.nodes.Load())[0])
		do()
		h.release()
	}
	return h.Box.Tick(c)
}

// Each NIC is asked over all of its connections by turns, wherever these have their places among 32.
func TestHailTakesTurns(t *testing.T) {
	var app *hailer
	kind := *Kind()
	kind.New = func(env graph.Env, args graph.Args) (graph.App, error) {
		x, err := newApp(env, args)
		app = &hailer{Box: x.(*Box)}
		return app, err
	}
	r := newRig(t, graph.Args{"servers": "10.9.0.1=10.9.0.2", "conns": "32", "idle": "1h"})
	r.Test = graphtest.New(t, kind, r.args)
	mac := r.serverMAC
	for k := range 32 {
		nic := byte(1 + k/16)
		r.server, r.serverMAC = netip.AddrFrom4([4]byte{10, 9, 0, nic}), mac
		r.serverMAC[5] = nic
		r.client().connect().warm()
	}
	n := (*app.nodes.Load())[0]
	if n.conns.Top() != 32 {
		t.Fatal(n.conns.Top())
	}
	for range 4 { // 32 connections, eight at a time
		app.do = func() { n.each(func(x *nic) { hail(&app.carriers, x, nil) }) }
		r.Advance(2 * time.Duration(tick))
	}
	for i := range n.flows {
		if n.flows[i].asked == 0 {
			t.Errorf("connection %d of NIC %d is not asked", i, n.sides[i])
		}
	}
}
