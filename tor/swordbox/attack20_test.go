package swordbox

import (
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// routed is the arguments for a server with a number of addresses, and a function that tells the k-th of them.
func routed(n int) (graph.Args, func(k int) netip.Addr) {
	at := func(k int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(k + 1)}) }
	all := at(0).String()
	for k := 1; k < n; k++ {
		all += "=" + at(k).String()
	}
	return graph.Args{"servers": all, "conns": "32"}, at
}

// Two NICs behind a router answer for the first time, and there is a place for one of them. The clients of the other one get its answers all the same.
func TestNoPlaceForANIC(t *testing.T) {
	args, at := routed(mostNICs + 1)
	r := newRig(t, args)
	r.hops = 60
	var last []*party
	for k := range mostNICs + 1 {
		r.server = at(k)
		c := r.client().connect()
		if k < mostNICs-1 {
			c.proven()
			r.Advance(2 * time.Duration(tick))
			continue
		}
		one(t, c.read(lowest, 8).Out["b"])
		last = append(last, c)
	}
	for k, c := range last {
		r.server = at(mostNICs - 1 + k)
		one(t, c.answer(hdr.ReadRespOnly, nil, little(0)).Out["a"])
		for range 4 {
			c.writes()
		}
	}
}

// A request that is never answered keeps no place from a NIC that answers.
func TestPlaceForANIC(t *testing.T) {
	args, at := routed(mostNICs)
	r := newRig(t, args)
	r.hops = 60
	one(t, r.client().connect().read(lowest, 8).Out["b"])
	seen := map[*nic]bool{}
	for k := range mostNICs {
		r.server = at(k)
		c := r.client().connect().proven()
		n := (*r.box().nodes.Load())[0]
		for i := range n.flows {
			if f := &n.flows[i]; f.trusted && n.row(f).Server.QPN == c.sqpn {
				seen[n.nicOf(f)] = true
			}
		}
		r.Advance(2 * time.Duration(tick))
	}
	if len(seen) != mostNICs {
		t.Errorf("%d NICs are told apart, want %d", len(seen), mostNICs)
	}
}

// Another router takes over in front of a server with several addresses. NICs are the same as before, and the next process takes over all connections.
func TestAnotherRouter(t *testing.T) {
	const va, addresses = 0x7008, 5
	args, at := routed(addresses)
	r, kept := keeping(t, args)
	r.hops = 60
	for range 2 {
		for k := range addresses {
			if r.server = at(k); len(r.clients) > 0 {
				r.reach()
			}
			r.join()
			one(t, r.join().cas(va+8*uint64(len(r.clients)), 1, 1).Out["b"])
			r.Advance(2 * time.Duration(tick))
		}
		r.serverMAC[5]++
	}
	n := (*r.box().nodes.Load())[0]
	for i := range n.flows {
		for j := range n.flows {
			if f, g := &n.flows[i], &n.flows[j]; f.trusted && g.trusted && (n.nicOf(f) == n.nicOf(g)) != (n.row(f).Server.Addr == n.row(g).Server.Addr) {
				t.Errorf("connections to %v and %v are of one NIC: %v", n.row(f).Server.Addr, n.row(g).Server.Addr, n.nicOf(f) == n.nicOf(g))
			}
		}
	}
	bound := 0
	for i := range n.flows {
		if n.flows[i].bound {
			bound++
		}
	}
	r.restart(kept, false, time.Millisecond, nil)
	r.Advance(time.Millisecond)
	if n := r.Counter("taken-over"); n != uint64(bound) || n < 2*addresses {
		t.Errorf("%d connections were taken over, want %d", n, bound)
	}
}

// A further NIC gets the place of one that has no connections any more. What was known of words by that one's R_Key is not known of the memory
// that the same R_Key means at the further one.
func TestPlaceOfANIC(t *testing.T) {
	const va = 0x7008
	args, at := routed(mostNICs + 1)
	r := newRig(t, args)
	mac := r.serverMAC
	var a, b *party
	for k := range mostNICs {
		r.server, r.serverMAC[5] = at(k), mac[5]+byte(k)
		r.reach()
		if a, b = r.join(), r.join(); k == mostNICs-1 {
			b.learn(a, va, 1)
		}
	}
	for _, c := range []*party{a, b} {
		one(t, r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn})).Out["b"])
		one(t, r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})).Out["a"])
	}
	r.Advance(2 * time.Duration(tick))
	r.server, r.serverMAC[5] = at(mostNICs), mac[5]+mostNICs
	r.reach()
	c, _ := r.join(), r.join()
	same(t, c.cas(va, 9, 9).Out["b"], c.made(hdr.CompareSwap, c.psn-1, atomicETH(va, testRKey, 9, 9), nil))
}

// The first answer to a connection shows at which NIC the server's end is. Another NIC, which the box took it for until then, was not heard.
func TestFirstAnswer(t *testing.T) {
	args, at := routed(2)
	r := newRig(t, args)
	r.join()
	n := (*r.box().nodes.Load())[0]
	was := n.pulse.lastHeard
	r.server, r.hops = at(1), 60
	c := r.client().connect()
	one(t, c.read(lowest, 8).Out["b"])
	one(t, c.answer(hdr.ReadRespOnly, nil, little(0)).Out["a"])
	if n.mac == 0 || n.pulse.lastHeard != was {
		t.Errorf("NIC %v was heard by the answer of another one", n.name)
	}
}

// servers= names a server all of whose frames are in a VLAN. The address without a VLAN, which nobody uses, is no twin of it.
func TestNamedServerInAVLAN(t *testing.T) {
	r := newRig(t, graph.Args{"servers": "10.9.0.1"})
	r.tags = []uint16{5}
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 1)
	same(t, b.cas(0x7000, 1, 2).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(0x7000, testRKey, 8), little(2)))
	if n := r.Counter("twins"); n != 0 {
		t.Errorf("%d twins", n)
	}
}

// Both addresses may be one server: a client that has a half-open connection without a VLAN changes a word, unseen by the node of those in the VLAN.
func TestUnusedAddressIsUsed(t *testing.T) {
	r := newRig(t, graph.Args{"servers": "10.9.0.1"})
	x := r.party(50)
	one(t, x.write(0x7000, 0).Out["b"])
	r.tags = []uint16{5}
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 1)
	r.tags = nil
	one(t, x.write(0x7000, 7).Out["b"])
	r.tags = []uint16{5}
	same(t, b.cas(0x7000, 1, 2).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(0x7000, testRKey, 2, 1), nil))
}
