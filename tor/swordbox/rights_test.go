package swordbox

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// ask sends a request of c for a sort of access to eight bytes.
func (c *party) ask(a access, va uint64, key uint32) graphtest.Result {
	c.r.t.Helper()
	switch a {
	case aRead:
		return c.request(hdr.ReadRequest, reth(va, key, 8), nil)
	case aWrite:
		return c.request(hdr.WriteOnly, reth(va, key, 8), little(0))
	}
	return c.request(hdr.FetchAdd, atomicETH(va, key, 0, 0), nil)
}

// grant is the server's answer to such a request on the connection of c.
func (c *party) grant(a access) graphtest.Result {
	c.r.t.Helper()
	switch a {
	case aRead:
		return c.answer(hdr.ReadRespOnly, nil, little(0))
	case aWrite:
		return c.ack()
	}
	return c.atomicAck(0)
}

// use has the server execute such requests over c's own connection.
func (c *party) use(va uint64, key uint32, as ...access) *party {
	c.r.t.Helper()
	if !c.isUsed {
		c.isUsed = true
		c.warm() // the next answer counts
	}
	for _, a := range as {
		if b := one(c.r.t, c.ask(a, va, key).Out["b"]); queuePair(b) != c.sqpn {
			c.r.t.Fatalf("over another's connection: %s", text(b))
		}
		one(c.r.t, c.grant(a).Out["a"])
	}
	return c
}

// crosses reports whether an atomic of c's goes over the connection of l, and
// answers it.
func (c *party) crosses(l *party, va uint64, key uint32) bool {
	c.r.t.Helper()
	b := one(c.r.t, c.ask(aAtomic, va, key).Out["b"])
	over := c
	if queuePair(b) == l.sqpn {
		over = l
	}
	if queuePair(b) != over.sqpn {
		c.r.t.Fatalf("over the connection of a third: %s", text(b))
	}
	one(c.r.t, over.atomicAck(0).Out["a"])
	return over == l
}

// alone has c send a message: for a while its connection carries nothing of others.
func (c *party) alone() *party {
	c.r.t.Helper()
	one(c.r.t, c.request(hdr.SendOnly, nil, little(0)).Out["b"])
	one(c.r.t, c.ack().Out["a"])
	return c
}

// queuePair is the one that a frame goes to.
func queuePair(b []byte) uint32 {
	var f hdr.Frame
	hdr.Parse(b, &f)
	return f.BTHOf(b).DestQP()
}

var all = []access{aRead, aWrite, aAtomic}

// accesses are those in a set of bits.
func accesses(bits int) (as []access) {
	for _, a := range all {
		if bits>>a&1 != 0 {
			as = append(as, a)
		}
	}
	return as
}

var muxArgs = graph.Args{"mode": "mux", "track": "7000+1000"}

// TestRights: a request moves when the server was seen to execute one of that sort
// of access under its R_Key over both connections, its client's own and the one
// that would carry it, and only then.
func TestRights(t *testing.T) {
	const va = 0x7008
	for client := range 8 {
		for lane := 1; lane < 8; lane++ {
			r := newRig(t, muxArgs)
			l := r.client().connect().use(va, testRKey, accesses(lane)...)
			r.client().connect().alone().use(va, testRKey, all...) // the region can be reached in all ways
			for _, a := range all {
				c := r.client().connect().alone()
				c.warm()
				c.use(va, testRKey, accesses(client)...)
				want := c.sqpn
				if client&lane>>a&1 != 0 {
					want = l.sqpn
				}
				if b := one(t, c.ask(a, va, testRKey).Out["b"]); queuePair(b) != want {
					t.Errorf("rights of the client %03b, of the other connection %03b: %s", client, lane, text(b))
				} else if want == l.sqpn {
					one(t, l.grant(a).Out["a"])
				} else {
					one(t, c.grant(a).Out["a"])
				}
			}
		}
	}
}

// A connection over which the server was seen to let its client do more takes the place of
// one that may do less: one that only reads does not keep all atomics on their own.
func TestLanesOfMost(t *testing.T) {
	const va = 0x7008
	r := newRig(t, muxArgs)
	reader := r.client().connect().use(va, testRKey, aRead)
	worker := r.client().connect().use(va, testRKey, all...)
	third := r.client().connect().alone().use(va, testRKey, all...)
	if !third.crosses(worker, va, testRKey) {
		t.Error("an atomic does not go over the connection that may carry it")
	}
	if b := one(t, reader.ask(aRead, va, testRKey).Out["b"]); queuePair(b) != worker.sqpn {
		t.Errorf("a READ goes on over the connection that may do less: %s", text(b))
	}
}

// TestKeys: a right holds for one R_Key, and for the addresses that were reached under it.
func TestKeys(t *testing.T) {
	const va, otherKey = 0x7008, testRKey + 1
	t.Run("each its own", func(t *testing.T) {
		r := newRig(t, muxArgs)
		a := r.client().connect().use(va, testRKey, all...)
		b := r.client().connect().use(va, testRKey, all...)
		c := r.client().connect().use(va, otherKey, all...)
		d := r.client().connect().use(va, otherKey, all...)
		if !b.crosses(a, va, testRKey) || !d.crosses(c, va, otherKey) {
			t.Error("did not move to who has the same right")
		}
		if b.crosses(c, va, otherKey) || d.crosses(a, va, testRKey) {
			t.Error("moved by the right of another")
		}
		// The server has executed them: their clients have both rights now.
		if !b.crosses(c, va, otherKey) || !d.crosses(a, va, testRKey) {
			t.Error("did not move though the right was seen")
		}
		if v := r.report().Servers[0]; v.Shared != 2 {
			t.Errorf("%d connections are shared, want one a key", v.Shared)
		}
	})
	t.Run("by another's right", func(t *testing.T) {
		r := newRig(t, muxArgs)
		a := r.client().connect().use(va, testRKey, all...)
		b := r.client().connect().use(va, testRKey, all...)
		c := r.client().connect().use(va, otherKey, all...)
		d := r.client().connect().use(va, otherKey, all...)
		b.crosses(a, va, testRKey)                    // the word is of this key now
		one(t, b.ask(aAtomic, va, testRKey).Out["b"]) // keeps it where it is
		got := append(d.ask(aAtomic, va, otherKey).Out["b"], a.atomicAck(0).Out["b"]...)
		if to := queuePair(one(t, got)); to != c.sqpn && to != d.sqpn {
			t.Errorf("moved to where it has no right: %s", show(got))
		}
	})
	t.Run("memory", func(t *testing.T) {
		r := newRig(t, muxArgs)
		a := r.client().connect().use(va, testRKey, all...).use(va+64, testRKey, aAtomic)
		b := r.client().connect().use(va, testRKey, all...)
		if !b.crosses(a, va+32, testRKey) {
			t.Error("did not move between what was reached")
		}
		for _, va := range []uint64{va - 8, va + 72} {
			if b.crosses(a, va, testRKey) {
				t.Errorf("%#x: moved, though nobody reached that", va)
			}
		}
	})
	t.Run("evicted", func(t *testing.T) {
		r := newRig(t, graph.Args{"mode": "mux", "track": "7000+1000", "words": "64"})
		n := func() *node { return (*r.box().nodes.Load())[0] }
		a, b := r.client().connect(), r.client().connect()
		a.warm()
		set := []uint32{}
		for key := uint32(1); len(set) < keyWays+2; key++ {
			if &n().keys.set(key)[0] == &n().keys.set(1)[0] {
				set = append(set, key)
			}
		}
		for k, key := range set[:keyWays+1] {
			a.use(va+8*uint64(k), key, aAtomic)
			b.use(va+8*uint64(k), key, aAtomic)
		}
		if n().keys.find(set[0]) != nil {
			t.Fatal("the key that was not used for longest is known")
		}
		if b.crosses(a, va, set[0]) {
			t.Error("moved under a key that made room")
		}
		if !b.crosses(a, va+8*keyWays, set[keyWays]) {
			t.Error("did not move under the key that came")
		}
		// One under which others' operations are open stays.
		one(t, b.ask(aAtomic, va+8*keyWays, set[keyWays]).Out["b"])
		c := r.client().connect()
		c.warm()
		for k, key := range set {
			if k != keyWays {
				c.use(va+8*uint64(k), key, aAtomic)
			}
		}
		lends := int32(0)
		for k := range n().keys.k {
			lends += int32(len(n().keys.k[k].lanes))
		}
		if x := n().keys.find(set[keyWays]); x == nil || x.guests != 1 {
			t.Error("a key went that operations on others' connections are under")
		}
		if got := n().flows[0].lends + n().flows[1].lends + n().flows[2].lends; int(got) != int(lends) {
			t.Errorf("lent %d times, counted are %d", lends, got)
		}
	})
}

// TestRevoked: rights end when the server refuses an operation, or a client has it
// invalidate the key, until it is seen to execute others.
func TestRevoked(t *testing.T) {
	const va = 0x7008
	start := func(t *testing.T) (r *rig, a, b, c *party) {
		r = newRig(t, muxArgs)
		a = r.client().connect().use(va, testRKey, all...)
		b = r.client().connect().use(va, testRKey, all...)
		c = r.client().connect().use(va, testRKey, all...)
		if !b.crosses(a, va, testRKey) {
			t.Fatal("does not move to begin with")
		}
		return r, a, b, c
	}
	t.Run("refused over another's connection", func(t *testing.T) {
		r, a, b, c := start(t)
		d := r.client().connect().use(va, testRKey, all...)
		one(t, b.ask(aAtomic, va, testRKey).Out["b"])
		a.nak(a.spsn, hdr.SynNAKRemoteAccess)
		for range 3 {
			if c.crosses(d, va, testRKey) || d.crosses(c, va, testRKey) {
				t.Fatal("moved under a key that was refused")
			}
		}
		r.Clock.Advance(distrust + time.Second)
		if c.crosses(d, va, testRKey) || d.crosses(c, va, testRKey) {
			t.Error("moved before both were seen to use it again")
		}
		if !d.crosses(c, va, testRKey) {
			t.Error("does not move when it works again")
		}
	})
	t.Run("refused over its own", func(t *testing.T) {
		r, a, b, _ := start(t)
		d := r.client().connect()
		d.warm()
		one(t, d.ask(aAtomic, va, testRKey).Out["b"])
		one(t, d.nak(d.spsn, hdr.SynNAKRemoteAccess).Out["a"])
		if b.crosses(a, va, testRKey) {
			t.Error("moved, though the region is not what it was")
		}
		a.use(va, testRKey, aAtomic)
		if !a.crosses(b, va, testRKey) {
			t.Error("did not move after both were seen to use it again")
		}
	})
	t.Run("executed for another, over its own, when it was refused", func(t *testing.T) {
		r, a, b, c := start(t)
		d := r.client().connect()
		d.warm()
		one(t, b.ask(aAtomic, va, testRKey).Out["b"])
		one(t, d.ask(aAtomic, va, testRKey).Out["b"])
		one(t, d.nak(d.spsn, hdr.SynNAKRemoteAccess).Out["a"])
		one(t, a.atomicAck(0).Out["a"]) // it may have been executed before
		c.use(va, testRKey, aAtomic)
		if c.crosses(a, va, testRKey) {
			t.Error("moved to one whose client was not seen to use it again")
		}
	})
	t.Run("refused where nobody was", func(t *testing.T) {
		r, a, b, _ := start(t)
		d := r.client().connect()
		d.warm()
		one(t, d.ask(aAtomic, va+0x100000, testRKey).Out["b"])
		one(t, d.nak(d.spsn, hdr.SynNAKRemoteAccess).Out["a"])
		if !b.crosses(a, va, testRKey) {
			t.Error("a wrong address of one stops the others")
		}
	})
	t.Run("invalidated", func(t *testing.T) {
		r, a, b, c := start(t)
		one(t, b.ask(aAtomic, va, testRKey).Out["b"])
		// The SEND would end the connection that b's is on.
		invalidate := []byte{0, 0, testRKey >> 8, testRKey & 0xFF}
		none0(t, c.request(hdr.SendOnlyInv, invalidate, little(0)).Out["b"])
		got := a.atomicAck(0)
		one(t, got.Out["a"])
		if b := one(t, got.Out["b"]); queuePair(b) != c.sqpn {
			t.Fatalf("%s", text(b))
		}
		// An answer that comes now may belong to a request that was sent before.
		b.use(va, testRKey, aAtomic)
		a.use(va, testRKey, aAtomic)
		b.use(va, testRKey, aAtomic)
		r.Clock.Advance(time.Millisecond) // settle= is over
		a.use(va, testRKey, aAtomic)
		b.use(va, testRKey, aAtomic)
		if !b.crosses(a, va, testRKey) {
			t.Error("does not move under the key that is used again")
		}
	})
	t.Run("invalidated before it was known", func(t *testing.T) {
		const other = testRKey + 1
		r, a, b, c := start(t)
		for _, x := range []*party{a, b} {
			one(t, x.ask(aAtomic, va+64, other).Out["b"])
		}
		one(t, c.request(hdr.SendOnlyInv, []byte{0, 0, other >> 8, other & 0xFF}, little(0)).Out["b"])
		for _, x := range []*party{a, b} {
			one(t, x.atomicAck(0).Out["a"])
		}
		if b.crosses(a, va+64, other) {
			t.Error("moved under a key that was invalidated")
		}
		r.Clock.Advance(time.Millisecond)
		a.use(va+64, other, aAtomic)
		b.use(va+64, other, aAtomic)
		if !b.crosses(a, va+64, other) {
			t.Error("does not move under the key that is used again")
		}
	})
	t.Run("invalidated by who is not followed", func(t *testing.T) {
		r, a, b, _ := start(t)
		one(t, b.ask(aAtomic, va, testRKey).Out["b"])
		x := r.client()
		none0(t, x.request(hdr.SendOnlyInv, []byte{0, 0, testRKey >> 8, testRKey & 0xFF}, little(0)).Out["b"])
		got := a.atomicAck(0)
		if b := one(t, got.Out["b"]); queuePair(b) != x.sqpn {
			t.Fatalf("%s", text(b))
		}
		if b.crosses(a, va, testRKey) {
			t.Error("moved under a key that was invalidated")
		}
	})
	t.Run("a message that invalidates at its end", func(t *testing.T) {
		_, a, b, c := start(t)
		one(t, c.request(hdr.SendFirst, nil, make([]byte, 256)).Out["b"])
		one(t, b.ask(aAtomic, va, testRKey).Out["b"])
		none0(t, c.request(hdr.SendLastInv, []byte{0, 0, testRKey >> 8, testRKey & 0xFF}, little(0)).Out["b"])
		if got := a.atomicAck(0).Out["b"]; queuePair(one(t, got)) != c.sqpn {
			t.Error(show(got))
		}
	})
}

// TestOwnFirst: no operation of another client goes behind a request that only the connection's client can
// send again, or that may have to wait for a receive buffer.
func TestOwnFirst(t *testing.T) {
	const va = 0x7008
	start := func(t *testing.T, hold string) (r *rig, a, b *party) {
		r = newRig(t, graph.Args{"mode": "mux", "track": "7000+1000", "hold": hold})
		a = r.client().connect().use(va, testRKey, all...)
		b = r.client().connect().use(va, testRKey, all...)
		return r, a, b
	}
	t.Run("behind a SEND", func(t *testing.T) {
		_, a, b := start(t, "32")
		one(t, a.request(hdr.SendOnly, nil, little(0)).Out["b"])
		if b.crosses(a, va, testRKey) {
			t.Error("moved behind a SEND")
		}
		one(t, a.ack().Out["a"])
		if b.crosses(a, va, testRKey) {
			t.Error("moved to where the next SEND may come")
		}
		if !a.crosses(b, va, testRKey) {
			t.Error("did not move to who sends none")
		}
	})
	t.Run("after a SEND", func(t *testing.T) {
		_, a, b := start(t, "32")
		one(t, a.request(hdr.SendOnly, nil, little(0)).Out["b"])
		one(t, a.ack().Out["a"])
		a.use(va, testRKey, aAtomic)
		if b.crosses(a, va, testRKey) {
			t.Error("moved to where the next SEND may come")
		}
	})
	t.Run("behind what is kept", func(t *testing.T) {
		_, a, b := start(t, "32")
		own := one(t, a.request(hdr.WriteOnly, reth(0x20000, testRKey, 64), make([]byte, 64)).Out["b"])
		s := a.spsn
		moved := one(t, b.ask(aAtomic, va, testRKey).Out["b"])
		if queuePair(moved) != a.sqpn {
			t.Error("did not move behind a WRITE that can be sent again here")
		}
		same(t, a.nak(s, hdr.SynNAKSequence).Out["b"], own, moved)
	})
	t.Run("a WRITE with immediate", func(t *testing.T) {
		_, _, b := start(t, "32")
		got := one(t, b.request(hdr.WriteOnlyImm, append(reth(va, testRKey, 8), 0, 0, 0, 1), little(0)).Out["b"])
		if queuePair(got) != b.sqpn {
			t.Error("took a receive buffer of another queue pair")
		}
	})
	t.Run("behind what is not kept", func(t *testing.T) {
		_, a, b := start(t, "0")
		one(t, a.request(hdr.WriteOnly, reth(0x20000, testRKey, 64), make([]byte, 64)).Out["b"])
		if b.crosses(a, va, testRKey) {
			t.Error("moved behind a WRITE that only its client can send again")
		}
		one(t, a.ack().Out["a"])
		if !b.crosses(a, va, testRKey) {
			t.Error("did not move")
		}
	})
	t.Run("before a SEND", func(t *testing.T) {
		r, a, b := start(t, "32")
		c := r.client().connect().use(va, testRKey, all...)
		one(t, b.ask(aAtomic, va, testRKey).Out["b"])
		none0(t, a.request(hdr.SendOnly, nil, little(0)).Out["b"])
		// It is a's turn first.
		if got := c.ask(aAtomic, va, testRKey).Out["b"]; len(got) != 0 && queuePair(got[0].Bytes) == a.sqpn {
			t.Error("moved before the SEND that waits")
		}
		found := false
		for _, f := range a.atomicAck(0).Out["b"] {
			found = found || opcode(t, f.Bytes) == hdr.SendOnly
		}
		if !found {
			t.Error("the SEND waits for ever")
		}
	})
}

// TestKept: what a client sent over another's connection is sent again from here,
// whatever it is.
func TestKept(t *testing.T) {
	const va = 0x7008
	r := newRig(t, graph.Args{"mode": "mux", "track": "7000+1000"})
	a, b := r.join(), r.join()
	data := blocks(600)
	b.request(hdr.WriteFirst, reth(va, testRKey, 600), data[:256])
	b.request(hdr.WriteMiddle, nil, data[256:512])
	sent := b.request(hdr.WriteLast, nil, data[512:]).Out["b"]
	one(t, b.request(hdr.WriteOnly, reth(va, testRKey, 64), data[:64]).Out["b"])
	want := [][]byte{}
	for _, f := range sent {
		want = append(want, f.Bytes)
	}
	if len(want) != 3 || queuePair(want[0]) != a.sqpn {
		t.Fatalf("sent:%s", show(sent))
	}
	want = append(want, b.moved(a, hdr.WriteOnly, a.spsn+3, reth(va, testRKey, 64), data[:64]))
	same(t, a.nak(a.spsn+1, hdr.SynNAKSequence).Out["b"], want[1:]...)
	a.spsn += 2
	one(t, a.ack().Out["a"])
	one(t, a.ack().Out["a"])
	if n := (*r.box().nodes.Load())[0].shelf.Len(); n != 0 {
		t.Errorf("%d packets are held when all is answered", n)
	}
}

// TestPast: the answers to the last atomics stay known, however many requests came since. Of other requests
// that are not on record any more, WRITEs are acknowledged.
func TestPast(t *testing.T) {
	const va = 0x7008
	r := newRig(t, graph.Args{"mode": "mux"})
	a := r.join()
	var atomics []uint32
	for k := range uint64(18) {
		atomics = append(atomics, a.psn)
		one(t, a.cas(va, k, k+1).Out["b"])
		one(t, a.atomicAck(k + 100).Out["a"])
		a.msn++
	}
	write := a.psn
	for range 20 {
		one(t, a.write(va+8, 1).Out["b"])
		one(t, a.ack().Out["a"])
		a.msn++
	}
	again := func(k int) graphtest.Result {
		return r.Push("a", a.made(hdr.CompareSwap, atomics[k], atomicETH(va, testRKey, uint64(k)+1, uint64(k)), nil))
	}
	for k := range 18 {
		got := again(k)
		none0(t, got.Out["b"])
		if k < 2 {
			none0(t, got.Out["a"]) // a responder remembers 16
			continue
		}
		same(t, got.Out["a"], a.atomicAckTo(atomics[k], a.msn, uint64(k)+100))
	}
	// Another atomic's PSN, and a READ, have no answer here.
	none0(t, r.Push("a", a.made(hdr.CompareSwap, atomics[9], atomicETH(va+8, testRKey, 1, 2), nil)).Out["a"])
	none0(t, r.Push("a", a.made(hdr.ReadRequest, write, reth(va, testRKey, 8), nil)).Out["a"])
	same(t, r.Push("a", a.made(hdr.WriteOnly, write, reth(va+8, testRKey, 8), little(1))).Out["a"], a.ackTo(a.psn-1, a.msn))
}

// TestPastOfBothRounds: PSNs come round after 2^24. Of two atomics with one PSN that are not on record any more the
// later one is repeated.
func TestPastOfBothRounds(t *testing.T) {
	const va = 0x7008
	r := newRig(t, graph.Args{"mode": "mux"})
	a := r.join()
	var psns []uint32
	for k := range uint64(2) {
		psns = append(psns, a.psn)
		one(t, a.cas(va, k, k+1).Out["b"])
		one(t, a.atomicAck(k + 100).Out["a"])
		a.msn++
	}
	for range 20 {
		one(t, a.write(va+8, 1).Out["b"])
		one(t, a.ack().Out["a"])
		a.msn++
	}
	n := (*r.box().nodes.Load())[0]
	slot, _ := n.conns.Find(conn.AddrFrom(a.ip), a.cqpn)
	for k := range n.flows[slot].past { // as if the first were of the round before
		if p := &n.flows[slot].past[k]; p.whole() && p.psn == psns[0] {
			p.psn = psns[1]
			p.sum = p.check()
		}
	}
	same(t, r.Push("a", a.made(hdr.CompareSwap, psns[1], atomicETH(va, testRKey, 2, 1), nil)).Out["a"], a.atomicAckTo(psns[1], a.msn, 101))
}

// TestEarly: an answer behind one that was lost is kept; what had none is sent
// again, alone.
func TestEarly(t *testing.T) {
	const va = 0x7008
	for _, sort := range []access{aRead, aAtomic} {
		t.Run(fmt.Sprint(sort), func(t *testing.T) {
			r := newRig(t, muxArgs)
			a, b, c := r.join(), r.join(), r.join()
			lost := one(t, b.ask(aAtomic, va, testRKey).Out["b"])
			p, q := b.psn-1, c.psn
			one(t, c.ask(sort, va+64, testRKey).Out["b"])
			a.spsn++
			a.smsn++
			r.Clock.Advance(time.Millisecond)
			got := c.reply(a, sort, 77)
			none0(t, got.Out["a"])
			same(t, got.Out["b"], lost)
			a.spsn -= 2
			a.smsn -= 2
			want := c.atomicAckTo(q, 2, 77)
			if sort == aRead {
				want = c.response(hdr.ReadRespOnly, q, aeth(hdr.SynACK, 2), little(77))
			}
			got = a.atomicAck(5)
			none0(t, got.Out["b"])
			same(t, got.Out["a"], b.atomicAckTo(p, 2, 5), want)
		})
	}
}

// So it is where all is one client's: it need not find out by its timeout.
func TestEarlyOfItsOwn(t *testing.T) {
	r := newRig(t, muxArgs)
	a := r.join()
	lost := one(t, a.read(0x5000, 8).Out["b"])
	one(t, a.read(0x5008, 8).Out["b"])
	a.spsn++
	a.smsn++
	r.Clock.Advance(time.Millisecond)
	got := a.answer(hdr.ReadRespOnly, nil, little(7))
	none0(t, got.Out["a"])
	same(t, got.Out["b"], lost)
}

// The connection ends before the missing answer came. An answer that came early is given to its client, and
// does not count as lost.
func TestEarlyOutlivesItsConnection(t *testing.T) {
	const va = 0x7008
	r := newRig(t, muxArgs)
	a, b, c := r.join(), r.join(), r.join()
	one(t, b.ask(aAtomic, va, testRKey).Out["b"])
	one(t, b.ask(aRead, va+8, testRKey).Out["b"])
	one(t, a.atomicAck(5).Out["a"])
	p, q := b.psn-1, c.psn
	one(t, c.ask(aAtomic, va, testRKey).Out["b"])
	a.spsn++
	a.smsn++
	none0(t, a.atomicAck(77).Out["a"])
	one(t, r.Push("a", a.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: a.sqpn})).Out["b"])
	got := r.Push("b", a.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})).Out["a"]
	want := []string{text(b.nakTo(p, b.msn+1, hdr.SynNAKSequence)), text(c.atomicAckTo(q, c.msn+1, 77))}
	for _, f := range got {
		want = slices.DeleteFunc(want, func(s string) bool { return s == text(f.Bytes) })
	}
	if len(want) > 0 {
		t.Errorf("missing: %v; came%s", want, show(got))
	}
}

// reply is the server's answer, with a value, to a request of c on the connection
// of l.
func (c *party) reply(l *party, sort access, v uint64) graphtest.Result {
	c.r.t.Helper()
	if sort == aRead {
		return l.answer(hdr.ReadRespOnly, nil, little(v))
	}
	return l.atomicAck(v)
}

// TestUnsureRead: a READ of a connection whose path MTU is not known takes as many PSNs as its answer says. Until then what
// comes behind it waits, in whatever order, and nothing that is sent with any PSN changes that.
func TestUnsureRead(t *testing.T) {
	for _, x := range []struct{ packets, mtu, low uint32 }{{3, 256, 256}, {2, 512, 256}, {1, 0, 600}} {
		r := newRig(t, nil)
		a := r.client()
		for range 6 {
			a.warm()
			r.Clock.Advance(time.Millisecond)
		}
		if r.Counter("synced") != 1 {
			t.Fatal("not followed")
		}
		one(t, a.write(0x5000, 1).Out["b"])
		first := a.psn
		read := a.made(hdr.ReadRequest, first, reth(0x6000, testRKey, 600), nil)
		none0(t, r.Push("a", read).Out["b"])
		a.psn += x.packets
		write := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(2))
		next := a.made(hdr.WriteOnly, a.psn+1, reth(0x5000, testRKey, 8), little(3))
		for d := range uint32(3) { // made up; the real one is lost, and comes again
			if psn := first + 1 + d; psn != a.psn && psn != a.psn+1 {
				none0(t, r.Push("a", a.made(hdr.WriteOnly, psn, reth(0x5000, testRKey, 8), little(9))).Out["b"])
			}
		}
		none0(t, r.Push("a", next).Out["b"])
		none0(t, r.Push("a", write).Out["b"])
		same(t, a.ack().Out["b"], read)
		none0(t, r.Push("a", next).Out["b"])
		var got []graphtest.Frame
		for k := range x.packets {
			op := hdr.ReadRespMiddle
			switch {
			case x.packets == 1:
				op = hdr.ReadRespOnly
			case k == 0:
				op = hdr.ReadRespFirst
			case k == x.packets-1:
				op = hdr.ReadRespLast
			}
			n, ext := min(600-k*x.mtu, x.mtu), []byte(nil)
			if n == 0 {
				n = 600
			}
			if op != hdr.ReadRespMiddle {
				ext = aeth(hdr.SynACK, a.smsn+1)
			}
			got = append(got, r.Push("b", a.response(op, a.spsn+k, ext, make([]byte, n))).Out["b"]...)
		}
		if x.packets > 1 { // as something else came under one of the READ's PSNs, the server is asked first whether its end is the same
			one(t, got)
			got = r.Push("b", a.response(hdr.Acknowledge, a.spsn+x.packets-1, aeth(hdr.SynACK, a.smsn+1), nil)).Out["b"]
		}
		same(t, got, write, next)
		f := &(*r.box().nodes.Load())[0].flows[0]
		if f.mtu != x.mtu || f.mtuLow != x.low {
			t.Errorf("%d packets: a path MTU of %d, at least %d; want %d, %d", x.packets, f.mtu, f.mtuLow, x.mtu, x.low)
		}
	}
}

// TestDenied: a server whose answer contradicts what it acknowledged last has the end of another connection
// there: the box forgets the connection. If the server acknowledges the same as before, the box keeps it.
func TestDenied(t *testing.T) {
	const va = 0x7008
	for name, x := range map[string]struct {
		syn  hdr.Syndrome
		psn  uint32 // from what it acknowledged last
		gone uint64
	}{"the same": {hdr.SynACK, 0, 0}, "a refusal": {hdr.SynNAKSequence, 0, 1}, "another number": {hdr.SynACK, 4, 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			a, b := r.join(), r.join()
			b.learn(a, va, 1)
			r.Clock.Advance(3 * time.Second)
			if got := b.write(va, 2).Out["b"]; len(got) != 2 {
				t.Fatalf("%d frames", len(got))
			}
			r.Push("b", a.response(hdr.Acknowledge, a.spsn-1+x.psn, aeth(x.syn, a.smsn), nil))
			if n := r.Counter("connections-gone"); n != x.gone {
				t.Errorf("%d connections are gone", n)
			}
		})
	}
}

// TestDoubted: a repetition on a connection that no connection manager announced is answered only after the
// server has said that its end exists.
func TestDoubted(t *testing.T) {
	r := newRig(t, nil)
	a := r.client()
	for range 8 {
		a.warm()
		r.Clock.Advance(time.Millisecond)
	}
	again := a.made(hdr.WriteOnly, a.psn-1, reth(0, 0, 0), nil)
	for range 2 {
		got := r.Push("a", again)
		same(t, got.Out["b"], a.question())
		none0(t, got.Out["a"])
		same(t, r.Push("b", a.response(hdr.Acknowledge, a.spsn-1, aeth(hdr.SynACK, a.smsn), nil)).Out["a"], a.ackTo(a.psn-1, a.msn))
		r.Clock.Advance(2 * time.Second)
	}
}

// TestCongestion: a congestion mark is of one operation, in whatever form and over
// whose connection it goes; the server's notification goes to whose it was.
func TestCongestion(t *testing.T) {
	const va = 0x7008
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	mark := func(x []byte, as uint8) []byte {
		return change(x, func(p []byte, f *hdr.Frame) { f.SetECN(p, as) })
	}
	ecn := func(x []byte) uint8 {
		var f hdr.Frame
		hdr.Parse(x, &f)
		return f.ECNOf(x)
	}
	next := func(k uint64) []byte {
		b.psn++
		return b.made(hdr.CompareSwap, b.psn-1, atomicETH(va, testRKey, k+1, k), nil)
	}
	for k, as := range []uint8{hdr.ECT0, hdr.CE, hdr.ECT0} {
		got := one(t, r.Push("a", mark(next(uint64(k)+1), as)).Out["b"])
		if opcode(t, got) != hdr.WriteOnly || ecn(got) != as {
			t.Errorf("marked as %d, sent as %d: %s", as, ecn(got), text(got))
		}
		a.spsn++
		a.smsn++
		answer := mark(a.response(hdr.Acknowledge, a.spsn-1, aeth(hdr.SynACK, a.smsn), nil), as)
		if got := one(t, r.Push("b", answer).Out["a"]); ecn(got) == hdr.CE != (as == hdr.CE) {
			t.Errorf("answered with %d, which its client gets as %d", as, ecn(got))
		}
	}
	notice := func(c *party) []byte { return c.response(hdr.CNP, 0, make([]byte, 16), nil) }
	same(t, r.Push("b", notice(a)).Out["a"], notice(b))
	same(t, r.Push("b", notice(a)).Out["a"], notice(a)) // nothing else was marked
	// A client's goes to the connection that answered it.
	cnp := b.made(hdr.CNP, 0, make([]byte, 16), nil)
	same(t, r.Push("a", cnp).Out["b"], b.moved(a, hdr.CNP, 0, make([]byte, 16), nil))
}

// TestWaitsElsewhere: an atomic that would go over another connection than those
// that are under way to its word waits for them, and whatever comes to the word waits behind it.
func TestWaitsElsewhere(t *testing.T) {
	const va, otherKey = 0x7008, testRKey + 1
	r := newRig(t, nil)
	a, b, c, d := r.join(), r.join(), r.join(), r.join()
	c.use(va, otherKey, aAtomic)
	d.use(va, otherKey, aAtomic)
	b.learn(a, va, 1)
	b.learn(a, va, 1)
	if got := opcode(t, one(t, b.cas(va, 1, 2).Out["b"])); got != hdr.WriteOnly {
		t.Fatalf("a CAS on a known word went as %v", got)
	}
	none0(t, d.ask(aAtomic, va, otherKey).Out["b"])
	none0(t, b.cas(va, 2, 3).Out["b"])
	sent := a.ack().Out["b"]
	if to := queuePair(one(t, sent)); to != c.sqpn && to != d.sqpn {
		t.Errorf("sent on:%s", show(sent))
	}
}

// TestKeysInTurns: a connection keeps the rights to some R_Keys that it uses in turns, whichever they are; a store has one for each sort of its memory.
func TestKeysInTurns(t *testing.T) {
	for seed := range uint64(1000) {
		var g grants
		rng := rand.New(rand.NewPCG(seed, 0))
		keys := make([]grant, grantWays)
		for i := range keys {
			keys[i] = grant{rng.Uint32(), 1 + uint32(i)}
		}
		for range 3 {
			for _, x := range keys {
				if g.add(x) {
					t.Fatalf("seed %d: a right was forgotten for that to %#x", seed, x.rkey)
				}
			}
		}
		for _, x := range keys {
			if !slices.Contains(g.set(x.rkey), x) {
				t.Fatalf("seed %d: no right to %#x", seed, x.rkey)
			}
		}
	}
}
