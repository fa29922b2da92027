package swordbox

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// ackTo is the acknowledgement that the box makes for client c: as c's own
// server queue pair would send it.
func (c *party) ackTo(psn, msn uint32) []byte {
	return c.response(hdr.Acknowledge, psn, aeth(hdr.SynACK, msn), nil)
}

func (c *party) atomicAckTo(psn, msn uint32, original uint64) []byte {
	return c.response(hdr.AtomicAck, psn, binary.BigEndian.AppendUint64(aeth(hdr.SynACK, msn), original), nil)
}

func (c *party) nakTo(psn, msn uint32, s hdr.Syndrome) []byte {
	return c.response(hdr.Acknowledge, psn, aeth(s, msn), nil)
}

// both runs a test over IPv4 and over IPv6.
func both(t *testing.T, do func(t *testing.T, r *rig), args graph.Args) {
	for name, a := range map[string]string{"IPv4": "10.9.0.1", "IPv6": "fd00::9:1"} {
		t.Run(name, func(t *testing.T) { do(t, rigOf(t, args, netip.MustParseAddr(a))) })
	}
}

// TestMoved: every sort of one-packet operation on a tracked word goes over the
// shared connection, and its answer comes back as if it had not; byte for byte,
// as frames made independently.
func TestMoved(t *testing.T) {
	const va = 0x7000
	both(t, func(t *testing.T, r *rig) {
		a, b := r.join(), r.join()
		// The word becomes tracked by b's CAS: the first is already moved.
		eth := atomicETH(va, testRKey, 5, 4)
		psn := b.psn
		same(t, b.request(hdr.CompareSwap, eth, nil).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, eth, nil))
		same(t, a.atomicAck(4).Out["a"], b.atomicAckTo(psn, 2, 4))
		psn = b.psn
		eth = atomicETH(va, testRKey, 3, 0)
		same(t, b.request(hdr.FetchAdd, eth, nil).Out["b"], b.moved(a, hdr.FetchAdd, a.spsn, eth, nil))
		same(t, a.atomicAck(5).Out["a"], b.atomicAckTo(psn, 3, 5))
		psn = b.psn
		eth = maskedETH(va, testRKey, 0xF0, 0, 0xF0, 0xF0)
		same(t, b.request(hdr.MaskedCompSwap, eth, nil).Out["b"], b.moved(a, hdr.MaskedCompSwap, a.spsn, eth, nil))
		same(t, a.atomicAck(8).Out["a"], b.atomicAckTo(psn, 4, 8))
		psn = b.psn
		eth = maskedETH(va, testRKey, 1, 0, 1, 0)
		same(t, b.request(hdr.MaskedFetchAdd, eth, nil).Out["b"], b.moved(a, hdr.MaskedFetchAdd, a.spsn, eth, nil))
		same(t, a.atomicAck(0xF8).Out["a"], b.atomicAckTo(psn, 5, 0xF8))
		psn = b.psn
		same(t, b.write(va, 99).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(99)))
		same(t, a.ack().Out["a"], b.ackTo(psn, 6))
		psn = b.psn
		same(t, b.read(va, 8).Out["b"], b.moved(a, hdr.ReadRequest, a.spsn, reth(va, testRKey, 8), nil))
		a.smsn++
		same(t, r.Push("b", a.response(hdr.ReadRespOnly, a.spsn, aeth(hdr.SynACK, a.smsn), little(99))).Out["a"],
			b.response(hdr.ReadRespOnly, psn, aeth(hdr.SynACK, 7), little(99)))
		if r.Counter("moved") == 0 || r.Counter("bad-psn") != 0 {
			t.Error("not counted as moved")
		}
	}, graph.Args{"mode": "mux"})
}

// TestReplaced: atomics on a word whose value is known go as WRITEs of what
// they leave, in the byte order of memory; those that leave it as it is, as
// WRITEs of nothing; the answers have the value before.
func TestReplaced(t *testing.T) {
	const va = 0x7008
	both(t, func(t *testing.T, r *rig) {
		a, b := r.join(), r.join()
		b.learn(a, va, 0x1122334455667788)
		value := uint64(0x1122334455667788)
		for i, x := range []struct {
			op   hdr.Opcode
			ext  []byte
			then uint64
		}{
			{hdr.CompareSwap, atomicETH(va, testRKey, 0x0102030405060708, value), 0x0102030405060708},
			{hdr.CompareSwap, atomicETH(va, testRKey, 1, value), 0x0102030405060708}, // fails
			{hdr.FetchAdd, atomicETH(va, testRKey, 0xFF, 0), 0x0102030405060807},
			{hdr.FetchAdd, atomicETH(va, testRKey, 0, 0), 0x0102030405060807},
			{hdr.FetchAdd, atomicETH(va, testRKey, ^uint64(0)-0x0102030405060807+1, 0), 0}, // wraps
			{hdr.MaskedCompSwap, maskedETH(va, testRKey, 0x30, 0, 0xF0, 0xF0), 0x30},
			{hdr.MaskedCompSwap, maskedETH(va, testRKey, 0xFFFF, 0x1000, 0xFF00, 0xFF), 0x30}, // fails: compares 0x30 with 0
			{hdr.MaskedCompSwap, maskedETH(va, testRKey, 0xFFFF, 0x1030, 0xFF00, 0xFF), 0xFF30},
			{hdr.CompareSwap, atomicETH(va, testRKey, 0xFF30, 0xFF30), 0xFF30}, // succeeds, changes nothing
		} {
			if i == 0 {
				value = 0x1122334455667788
			}
			want := b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(x.then))
			psn := b.psn
			same(t, b.request(x.op, x.ext, nil).Out["b"], want)
			b.msn++
			same(t, a.ack().Out["a"], b.atomicAckTo(psn, b.msn, value))
			value = x.then
		}
		if r.Counter("replaced") != 9 || r.Counter("replaced-atomic") != 9 {
			t.Errorf("replaced %d", r.Counter("replaced"))
		}
		// The owner of the shared connection is served the same way.
		psn := a.psn
		spsn := a.spsn
		same(t, a.cas(va, 0xFF30, 1).Out["b"], a.moved(a, hdr.WriteOnly, spsn, reth(va, testRKey, 8), little(1)))
		same(t, a.ack().Out["a"], a.atomicAckTo(psn, 2, 0xFF30))
	}, nil)
}

// TestVerify: from time to time an atomic on a known word goes as it is, and
// when its answer tells of a change that was not seen here, so do the next ones.
func TestVerify(t *testing.T) {
	const va = 0x7008
	r := newRig(t, graph.Args{"verify": "10ms", "alive": "1h"})
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	value := uint64(1)
	as := func(compare, swap uint64, as hdr.Opcode) {
		t.Helper()
		want := b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(va, testRKey, swap, compare), nil)
		if as == hdr.WriteOnly {
			want = b.moved(a, as, a.spsn, reth(va, testRKey, 8), little(value))
		}
		same(t, b.cas(va, compare, swap).Out["b"], want)
	}
	answered := func(prior uint64, got graphtest.Result) {
		t.Helper()
		b.msn++
		same(t, got.Out["a"], b.atomicAckTo(b.psn-1, b.msn, prior))
	}
	for range 2 {
		as(7, 8, hdr.WriteOnly)
		answered(1, a.ack())
		r.Clock.Advance(10 * time.Millisecond)
		as(7, 8, hdr.CompareSwap)
		answered(1, a.atomicAck(1))
		as(7, 8, hdr.WriteOnly) // one is enough
		answered(1, a.ack())
	}
	r.Clock.Advance(10 * time.Millisecond)
	as(7, 8, hdr.CompareSwap)
	answered(5, a.atomicAck(5))
	for _, after := range []time.Duration{0, time.Second, 8 * time.Second} {
		r.Clock.Advance(after)
		for range 2 {
			as(7, 8, hdr.CompareSwap)
			answered(5, a.atomicAck(5))
		}
	}
	if r.Counter("mismatches") != 1 {
		t.Errorf("%d mismatches", r.Counter("mismatches"))
	}
	r.Clock.Advance(2 * time.Second)
	as(7, 8, hdr.CompareSwap)
	answered(5, a.atomicAck(5))
	value = 5
	as(7, 8, hdr.WriteOnly)
	answered(5, a.ack())
}

// TestVouched: atomics are replaced on memory that the operator vouches for; on
// other words they move as they are.
func TestVouched(t *testing.T) {
	const va = 0x7000
	r := newRig(t, graph.Args{"replace": "tracked"})
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	move := func(as hdr.Opcode) {
		t.Helper()
		if got := opcode(t, one(t, b.cas(va, 1, 1).Out["b"])); got != as {
			t.Fatalf("the atomic went as %v", got)
		}
		if as == hdr.CompareSwap {
			one(t, a.atomicAck(1).Out["a"])
		} else {
			one(t, a.ack().Out["a"])
		}
	}
	warning := func() string { return r.App().(graph.Reporter).Report().(Report).Warning }
	move(hdr.CompareSwap)
	if warning() == "" {
		t.Error("nothing is replaced, and nobody is told")
	}
	for _, x := range []struct {
		track string
		as    hdr.Opcode
	}{{"7000+8", hdr.WriteOnly}, {"7001+8", hdr.CompareSwap}, {"6ff8+f", hdr.CompareSwap}, {"6000+2000", hdr.WriteOnly}} {
		r.set(graph.Args{"track": x.track})
		move(hdr.CompareSwap) // the first one tells the value
		move(x.as)
		if warning() != "" {
			t.Error(warning())
		}
	}
	// Of a word that is made while they are named.
	b.learn(a, va+8, 1)
	if got := opcode(t, one(t, b.cas(va+8, 1, 2).Out["b"])); got != hdr.WriteOnly {
		t.Errorf("a new word's atomic went as %v", got)
	}
}

// TestTwins: two addresses with one MAC may be one server. Then nothing is
// believed of its words, unless servers= says which addresses are one server's.
func TestTwins(t *testing.T) {
	const va = 0x7008
	first, other := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	for _, x := range []struct {
		servers  string
		twins    uint64
		believed bool // what the other address's client did not change
		moves    bool // that client's operations
	}{
		{"any", 2, false, false},
		{"10.9.0.1+10.9.0.2", 0, true, false},
		{"10.9.0.1=10.9.0.2", 0, true, true},
	} {
		t.Run(x.servers, func(t *testing.T) {
			r := newRig(t, graph.Args{"servers": x.servers})
			a, b := r.join(), r.join()
			b.learn(a, va, 1)
			one(t, b.cas(va, 1, 2).Out["b"]) // on its way
			r.server = other
			c := r.client().connect()
			got := c.request(hdr.WriteOnly, reth(0, 0, 0), nil)
			if x.twins != 0 {
				dropped(t, got, "twin")
			} else {
				one(t, got.Out["b"])
			}
			r.server = first
			one(t, a.ack().Out["a"])
			b.msn++
			r.server = other
			if x.twins != 0 {
				c.psn--
				one(t, c.request(hdr.WriteOnly, reth(0, 0, 0), nil).Out["b"])
			}
			c.spsn++
			c.smsn++
			c.msn++
			one(t, r.Push("b", c.response(hdr.Acknowledge, c.spsn-1, aeth(hdr.SynACK, c.smsn), nil)).Out["a"])
			c.proven()
			// The other address's client does an atomic.
			out := one(t, c.cas(va, 9, 9).Out["b"])
			r.server = first
			if moved := bytes.Equal(out, c.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(2))); moved != x.moves {
				t.Errorf("moved: %v", moved)
			}
			if x.moves {
				one(t, a.ack().Out["a"])
			} else {
				r.server = other
				one(t, c.atomicAck(2).Out["a"])
				r.server = first
			}
			want := b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(va, testRKey, 3, 2), nil)
			if x.believed {
				want = b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(3))
			}
			same(t, b.cas(va, 2, 3).Out["b"], want)
			if n := r.Counter("twins"); n != x.twins {
				t.Errorf("%d twins", n)
			}
		})
	}
}

// TestWaits: while a WRITE in the place of an atomic is under way, no other operation goes to its word unless
// it goes behind that WRITE: the WRITE would undo its effect.
func TestWaits(t *testing.T) {
	const va = 0x7008
	for name, other := range map[string]func(r *rig, a, b, c *party) []byte{
		"a stranger's atomic": func(r *rig, a, b, c *party) []byte {
			return r.party(70).made(hdr.FetchAdd, 77, atomicETH(va, testRKey, 1, 0), nil)
		},
		"a part of it": func(r *rig, a, b, c *party) []byte {
			return c.made(hdr.WriteOnly, c.psn, reth(va+4, testRKey, 4), make([]byte, 4))
		},
		"more than it": func(r *rig, a, b, c *party) []byte {
			return c.made(hdr.WriteOnly, c.psn, reth(va-8, testRKey, 24), make([]byte, 24))
		},
		"a WRITE under another key": func(r *rig, a, b, c *party) []byte {
			return c.made(hdr.WriteOnly, c.psn, reth(va, 0x77, 8), little(9))
		},
		"under another key": func(r *rig, a, b, c *party) []byte {
			return c.made(hdr.CompareSwap, c.psn, atomicETH(va, 0x77, 1, 0), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			a, b, c := r.join(), r.join(), r.join()
			b.learn(a, va, 1)
			one(t, b.cas(va, 1, 2).Out["b"])
			x := other(r, a, b, c)
			none0(t, r.Push("a", x).Out["b"])
			if r.Inst.Held() != 1 {
				t.Fatal("it is not held")
			}
			// Nor are more atomics replaced meanwhile: it need not wait for those, which wait
			// behind it if it has its turn at the word, and otherwise go as they are.
			if next := b.cas(va, 2, 3).Out["b"]; strings.HasSuffix(name, "under another key") {
				none0(t, next)
			} else {
				same(t, next, b.moved(a, hdr.CompareSwap, a.spsn+1, atomicETH(va, testRKey, 3, 2), nil))
			}
			out := a.ack()
			one(t, out.Out["a"])
			same(t, out.Out["b"], x)
			if r.knows(va) {
				t.Error("the value is believed")
			}
		})
	}
}

// TestWriteFills: the value that a WRITE leaves is known without an answer, and
// a CAS that is sent behind it is decided by it.
func TestWriteFills(t *testing.T) {
	const va = 0x7010
	r := newRig(t, nil)
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	p := [3]uint32{a.psn, b.psn, c.psn}
	s := a.spsn
	same(t, c.write(va, 0xABCD).Out["b"], c.moved(a, hdr.WriteOnly, s, reth(va, testRKey, 8), little(0xABCD)))
	same(t, b.cas(va, 0xABCD, 7).Out["b"], b.moved(a, hdr.WriteOnly, s+1, reth(va, testRKey, 8), little(7)))
	same(t, a.cas(va, 0xABCD, 8).Out["b"], a.moved(a, hdr.WriteOnly, s+2, reth(va, testRKey, 8), little(7)))
	// One acknowledgement for the three becomes one for each, with its own
	// numbers and addresses.
	a.smsn += 3
	got := r.Push("b", a.response(hdr.Acknowledge, s+2, aeth(hdr.SynACK, a.smsn), nil)).Out["a"]
	same(t, got, c.ackTo(p[2], 2), b.atomicAckTo(p[1], 3, 0xABCD), a.atomicAckTo(p[0], 2, 7))
}

// TestCoalesced: an acknowledgement is for those whose operations it covers.
func TestCoalesced(t *testing.T) {
	const va = 0x7018
	r := newRig(t, nil)
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	s, p, q := a.spsn, b.psn, c.psn
	for i := range uint64(3) {
		one(t, b.write(va, i).Out["b"])
	}
	one(t, c.write(va, 9).Out["b"])
	// The first two of b.
	a.smsn += 2
	same(t, r.Push("b", a.response(hdr.Acknowledge, s+1, aeth(hdr.SynACK, a.smsn), nil)).Out["a"], b.ackTo(p+1, 4))
	// The same again says nothing new.
	none0(t, r.Push("b", a.response(hdr.Acknowledge, s+1, aeth(hdr.SynACK, a.smsn), nil)).Out["a"])
	// All.
	a.smsn += 2
	same(t, r.Push("b", a.response(hdr.Acknowledge, s+3, aeth(hdr.SynACK, a.smsn), nil)).Out["a"], b.ackTo(p+2, 5), c.ackTo(q, 2))
	if r.Counter("absorbed") == 0 {
		t.Error("nothing was absorbed")
	}
}

// TestInfer: without a connection manager a connection is followed when PSNs
// have paired its directions, and its requests are in turn.
func TestInfer(t *testing.T) {
	const va = 0x7020
	r := newRig(t, nil)
	r.reach()
	a, b := r.client(), r.client()
	for range 5 {
		for _, c := range []*party{a, b} {
			c.warm()
		}
		r.Clock.Advance(time.Millisecond) // conn.Config.Settle
	}
	if r.Counter("unpaired") == 0 || r.Counter("synced") != 3 {
		t.Fatalf("unpaired %d, synced %d", r.Counter("unpaired"), r.Counter("synced"))
	}
	a.proven()
	psn := b.proven().psn
	same(t, b.cas(va, 4, 5).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(va, testRKey, 5, 4), nil))
	// Messages were counted from before the box looked.
	same(t, a.atomicAck(4).Out["a"], b.atomicAckTo(psn, 10, 4))
}

// TestNetworks: with tags, and in RoCE v1, all goes as without; the same addresses
// in another VLAN are other hosts', of whose words nothing is known.
func TestNetworks(t *testing.T) {
	const va = 0x7020
	for name, net := range map[string]struct {
		tags []uint16
		v1   bool
	}{"VLAN": {tags: []uint16{5}}, "priority": {tags: []uint16{0}}, "both": {tags: []uint16{0, 6}}, "RoCE v1": {v1: true}, "RoCE v1 in a VLAN": {[]uint16{5}, true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.tags, r.v1 = net.tags, net.v1
			r.reach()
			a, b := r.join(), r.join()
			b.learn(a, va, 4)
			psn := b.psn
			same(t, b.cas(va, 4, 5).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(5)))
			same(t, a.ack().Out["a"], b.atomicAckTo(psn, 3, 4))
			r.tags = []uint16{9}
			psn = b.psn
			same(t, b.cas(va, 5, 6).Out["b"], b.made(hdr.CompareSwap, psn, atomicETH(va, testRKey, 6, 5), nil))
		})
	}
}

// TestStatic: a connection that the configuration names is followed from its
// first request on.
func TestStatic(t *testing.T) {
	r := newRig(t, graph.Args{"infer": "off", "static": "10.9.0.16/0x100-10.9.0.1/0x200,psn=1000;10.9.0.17/0x101-10.9.0.1/0x201,psn=5096"})
	r.reach()
	a, b := r.client(), r.client()
	a.warm()
	b.warm()
	if r.Counter("synced") != 3 {
		t.Fatalf("synced %d", r.Counter("synced"))
	}
	a.proven()
	psn := b.proven().psn
	same(t, b.cas(0x7020, 4, 5).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(0x7020, testRKey, 5, 4), nil))
	same(t, a.atomicAck(4).Out["a"], b.atomicAckTo(psn, 6, 4))
}

// TestGather: a WRITE of several packets goes over a shared connection in one piece, when all of it is there.
// No frame that comes meanwhile goes between its packets.
func TestGather(t *testing.T) {
	r := newRig(t, graph.Args{"track": "10000+10000"})
	a, b, c := r.join(), r.join(), r.join()
	part := func(n byte, l int) []byte {
		p := make([]byte, l)
		for i := range p {
			p[i] = n
		}
		return p
	}
	h := reth(0x10000, testRKey, 600)
	p, s := b.psn, a.spsn
	none0(t, b.request(hdr.WriteFirst, h, part(1, 256)).Out["b"])
	same(t, c.write(0x18000, 5).Out["b"], c.moved(a, hdr.WriteOnly, s, reth(0x18000, testRKey, 8), little(5)))
	none0(t, b.request(hdr.WriteMiddle, nil, part(2, 256)).Out["b"])
	same(t, b.request(hdr.WriteLast, nil, part(3, 88)).Out["b"],
		b.moved(a, hdr.WriteFirst, s+1, h, part(1, 256)), b.moved(a, hdr.WriteMiddle, s+2, nil, part(2, 256)), b.moved(a, hdr.WriteLast, s+3, nil, part(3, 88)))
	a.ack()
	// A part of it is not it; but its client may wait to hear of that.
	same(t, r.Push("b", a.response(hdr.Acknowledge, s+1, aeth(hdr.SynACK, a.smsn), nil)).Out["a"], b.ackTo(p, 1))
	a.spsn += 2
	same(t, a.ack().Out["a"], b.ackTo(p+2, 2))
	if r.Counter("held") != 0 && r.Inst.Held() != 0 {
		t.Error("frames are held")
	}
}

// TestReadMany: the answer to a READ of several packets comes back under the
// PSNs of its client.
func TestReadMany(t *testing.T) {
	r := newRig(t, graph.Args{"track": "10000+10000"})
	a, b := r.join(), r.join()
	a.warm() // it counts more messages than b does
	p, s := b.psn, a.spsn
	same(t, b.read(0x10000, 600).Out["b"], b.moved(a, hdr.ReadRequest, s, reth(0x10000, testRKey, 600), nil))
	d := make([]byte, 256)
	a.smsn++
	m := a.smsn
	same(t, r.Push("b", a.response(hdr.ReadRespFirst, s, aeth(hdr.SynACK, m), d)).Out["a"], b.response(hdr.ReadRespFirst, p, aeth(hdr.SynACK, 2), d))
	same(t, r.Push("b", a.response(hdr.ReadRespMiddle, s+1, nil, d)).Out["a"], b.response(hdr.ReadRespMiddle, p+1, nil, d))
	same(t, r.Push("b", a.response(hdr.ReadRespLast, s+2, aeth(hdr.SynACK, m), d[:88])).Out["a"], b.response(hdr.ReadRespLast, p+2, aeth(hdr.SynACK, 2), d[:88]))
	a.spsn += 3
	// And the next one follows on both sides.
	p = b.psn
	if p != b.r.clients[1].psn || p-3 != r.start+0x1000+4 {
		t.Fatalf("PSN %d", p)
	}
	same(t, b.write(0x10000, 1).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(0x10000, testRKey, 8), little(1)))
	same(t, a.ack().Out["a"], b.ackTo(p, 3))
}

// TestHeldAnswers: with order=word answers may come out of a client's order;
// it sees them in it.
func TestHeldAnswers(t *testing.T) {
	r := newRig(t, graph.Args{"order": "word", "mode": "mux", "track": "10000+10000"})
	a, b := r.join(), r.join()
	p, s, own := b.psn, a.spsn, b.spsn
	same(t, b.read(0x20000, 8).Out["b"], b.made(hdr.ReadRequest, p, reth(0x20000, testRKey, 8), nil)) // its own connection
	same(t, b.read(0x10000, 8).Out["b"], b.moved(a, hdr.ReadRequest, s, reth(0x10000, testRKey, 8), nil))
	same(t, b.write(0x10008, 1).Out["b"], b.moved(a, hdr.WriteOnly, s+1, reth(0x10008, testRKey, 8), little(1)))
	a.smsn++
	none0(t, r.Push("b", a.response(hdr.ReadRespOnly, s, aeth(hdr.SynACK, a.smsn), little(7))).Out["a"])
	a.smsn++
	none0(t, r.Push("b", a.response(hdr.Acknowledge, s+1, aeth(hdr.SynACK, a.smsn), nil)).Out["a"])
	if r.Inst.Held() != 1 {
		t.Errorf("%d frames are held, want 1", r.Inst.Held())
	}
	b.smsn++
	same(t, r.Push("b", b.response(hdr.ReadRespOnly, own, aeth(hdr.SynACK, b.smsn), little(6))).Out["a"],
		b.response(hdr.ReadRespOnly, p, aeth(hdr.SynACK, 2), little(6)), b.response(hdr.ReadRespOnly, p+1, aeth(hdr.SynACK, 3), little(7)), b.ackTo(p+2, 4))
}

// TestGoBackN: when the server misses a request, the box sends that request and all behind it again. It asks
// no client, since no client's request is lost.
func TestGoBackN(t *testing.T) {
	const va = 0x10000
	r := newRig(t, graph.Args{"track": "10000+10000"})
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	s, q := a.spsn, c.psn
	data := make([]byte, 64)
	one(t, b.cas(va, 1, 2).Out["b"]) // lost
	one(t, c.request(hdr.WriteOnly, reth(va+64, testRKey, 64), data).Out["b"])
	one(t, b.cas(va, 2, 3).Out["b"])
	got := a.nak(s, hdr.SynNAKSequence)
	same(t, got.Out["b"], b.moved(a, hdr.WriteOnly, s, reth(va, testRKey, 8), little(2)),
		c.moved(a, hdr.WriteOnly, s+1, reth(va+64, testRKey, 64), data), b.moved(a, hdr.WriteOnly, s+2, reth(va, testRKey, 8), little(3)))
	none0(t, got.Out["a"])
	// A repetition by a client that did not wait goes nowhere.
	got = r.Push("a", c.made(hdr.WriteOnly, q, reth(va+64, testRKey, 64), data))
	dropped(t, got, "repeat")
	p := b.psn - 2
	a.smsn += 3
	same(t, r.Push("b", a.response(hdr.Acknowledge, s+2, aeth(hdr.SynACK, a.smsn), nil)).Out["a"],
		b.atomicAckTo(p, 3, 1), b.atomicAckTo(p+1, 4, 2), c.ackTo(q, 2))
}

// TestRepetition: a client's repetition of an atomic that was answered gets the
// recorded answer, and nothing goes to the server.
func TestRepetition(t *testing.T) {
	const va = 0x7028
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	eth, psn := atomicETH(va, testRKey, 2, 1), b.psn
	one(t, b.request(hdr.CompareSwap, eth, nil).Out["b"])
	want := b.atomicAckTo(psn, 3, 1)
	same(t, a.ack().Out["a"], want)
	// The word moves on; the answer must not.
	one(t, a.cas(va, 2, 9).Out["b"])
	a.ack()
	got := r.Push("a", b.made(hdr.CompareSwap, psn, eth, nil))
	same(t, got.Out["a"], want)
	none0(t, got.Out["b"])
	dropped(t, got, "answered-here")
	// Nor does a repetition of what is under way become a second operation.
	eth = atomicETH(va, testRKey, 10, 9)
	psn = b.psn
	first := one(t, b.request(hdr.CompareSwap, eth, nil).Out["b"])
	r.Clock.Advance(10 * time.Millisecond)
	for _, f := range r.Push("a", b.made(hdr.CompareSwap, psn, eth, nil)).Out["b"] {
		if string(f.Bytes) != string(first) {
			t.Errorf("sent again as %s", text(f.Bytes))
		}
	}
	if v := r.Counter("replaced"); v != 3 {
		t.Errorf("replaced %d, want 3", v)
	}
	// One with the PSN of another request is no repetition.
	got = r.Push("a", b.made(hdr.CompareSwap, psn, atomicETH(va+8, testRKey, 10, 9), nil))
	dropped(t, got, "bad-repeat")
	none0(t, got.Out["b"])
}

// TestRNR: a receiver that is not ready is its client's business alone: nothing
// of others goes behind a SEND.
func TestRNR(t *testing.T) {
	const va = 0x7030
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	p, s := a.psn, a.spsn
	same(t, a.request(hdr.SendOnly, nil, make([]byte, 16)).Out["b"], a.moved(a, hdr.SendOnly, s, nil, make([]byte, 16)))
	own, q := b.spsn, b.psn
	same(t, b.write(va, 2).Out["b"], b.made(hdr.WriteOnly, own, reth(va, testRKey, 8), little(2)))
	rnr := hdr.SynRNR | 5
	got := a.nak(s, rnr)
	same(t, got.Out["a"], a.nakTo(p, 1, rnr))
	none0(t, got.Out["b"])
	same(t, b.ack().Out["a"], b.ackTo(q, 3))
	// When a sends again, all goes on.
	same(t, r.Push("a", a.made(hdr.SendOnly, p, nil, make([]byte, 16))).Out["b"], a.moved(a, hdr.SendOnly, s, nil, make([]byte, 16)))
	same(t, a.ack().Out["a"], a.ackTo(p, 2))
}

// TestFatal: a refusal goes only to the owner of the refused request. The other clients are asked to send
// theirs again, over another connection, and the values of the words concerned are not known any more.
func TestFatal(t *testing.T) {
	const va = 0x7038
	for _, syn := range []hdr.Syndrome{hdr.SynNAKInvalidRequest, hdr.SynNAKRemoteAccess, hdr.SynNAKRemoteOperation} {
		r := newRig(t, nil)
		a, b, c := r.join(), r.join(), r.join()
		b.learn(a, va, 1)
		s, p, q := a.spsn, b.psn, c.psn
		failed := r.Counter("connections-failed")
		one(t, b.cas(va, 1, 2).Out["b"])
		one(t, c.cas(va, 2, 3).Out["b"])
		got := a.nak(s, syn)
		same(t, got.Out["a"], b.nakTo(p, 2, syn), c.nakTo(q, 1, hdr.SynNAKSequence))
		// b gets the same refusal again, whatever it sends.
		got = b.cas(va, 1, 2)
		same(t, got.Out["a"], b.nakTo(p, 2, syn))
		dropped(t, got, "reset")
		// c's operation goes over its own connection, unchanged: the box knows nothing about the word, nor
		// about the region of the refusal.
		eth := atomicETH(va, testRKey, 3, 2)
		same(t, r.Push("a", c.made(hdr.CompareSwap, q, eth, nil)).Out["b"], c.moved(c, hdr.CompareSwap, c.spsn, eth, nil))
		same(t, c.atomicAck(1).Out["a"], c.atomicAckTo(q, 2, 1))
		if r.Counter("connections-failed") != failed+1 || r.Counter("resets") != 1 {
			t.Errorf("failed %d, resets %d", r.Counter("connections-failed"), r.Counter("resets"))
		}
	}
}

// TestWrap: PSNs and MSNs wrap at 2^24, a client's and the shared connection's
// at different times.
func TestWrap(t *testing.T) {
	const va = 0x7040
	r := newRig(t, nil)
	r.start = 0xFFFFFC
	a, b := r.join(), r.join()
	b.psn, b.spsn = b.psn&hdr.PSNMask, b.spsn&hdr.PSNMask
	b.learn(a, va, 0)
	for i := range uint64(12) {
		p, s := b.psn&hdr.PSNMask, a.spsn&hdr.PSNMask
		same(t, b.cas(va, i, i+1).Out["b"], b.moved(a, hdr.WriteOnly, s, reth(va, testRKey, 8), little(i+1)))
		same(t, a.ack().Out["a"], b.atomicAckTo(p, uint32(i)+3, i))
		p, s = a.psn&hdr.PSNMask, a.spsn&hdr.PSNMask
		same(t, a.read(va, 8).Out["b"], a.moved(a, hdr.ReadRequest, s, reth(va, testRKey, 8), nil))
		a.smsn++
		a.spsn++
		same(t, r.Push("b", a.response(hdr.ReadRespOnly, s, aeth(hdr.SynACK, a.smsn), little(i+1))).Out["a"],
			a.response(hdr.ReadRespOnly, p, aeth(hdr.SynACK, uint32(i)+2), little(i+1)))
	}
	if b.psn <= hdr.PSNMask && a.spsn <= hdr.PSNMask {
		t.Error("nothing wrapped")
	}
}

// TestForgets: what makes a word's value unknown. The next atomic goes as one.
func TestForgets(t *testing.T) {
	const va = 0x7048
	for name, do := range map[string]func(r *rig, a, b, c *party){
		"a stranger's WRITE": func(r *rig, a, b, c *party) {
			x := r.client()
			one(r.t, x.request(hdr.WriteOnly, reth(va, testRKey, 8), little(77)).Out["b"])
		},
		"a stranger's atomic": func(r *rig, a, b, c *party) {
			x := r.client()
			one(r.t, x.cas(va, 1, 2).Out["b"])
		},
		"a stranger's wide WRITE": func(r *rig, a, b, c *party) {
			x := r.client()
			one(r.t, x.request(hdr.WriteFirst, reth(va-300, testRKey, 700), make([]byte, 256)).Out["b"])
		},
		"a stranger's WRITE with immediate": func(r *rig, a, b, c *party) {
			x := r.client()
			one(r.t, x.request(hdr.WriteOnlyImm, append(reth(va, testRKey, 8), 0, 0, 0, 1), little(77)).Out["b"])
		},
		"a wide WRITE over another connection": func(r *rig, a, b, c *party) {
			one(r.t, b.write(va, 2).Out["b"]) // under way
			one(r.t, c.request(hdr.WriteOnly, reth(va-8, testRKey, 24), make([]byte, 24)).Out["b"])
		},
		"a wide WRITE under another key": func(r *rig, a, b, c *party) {
			one(r.t, c.request(hdr.WriteOnly, reth(va-8, testRKey+1, 24), make([]byte, 24)).Out["b"])
		},
		"a WRITE across": func(r *rig, a, b, c *party) {
			one(r.t, c.request(hdr.WriteOnly, reth(va-4, testRKey, 8), make([]byte, 8)).Out["b"])
		},
		"a WRITE of a part": func(r *rig, a, b, c *party) {
			one(r.t, c.request(hdr.WriteOnly, reth(va, testRKey, 4), make([]byte, 4)).Out["b"])
		},
		"another key": func(r *rig, a, b, c *party) {
			one(r.t, c.request(hdr.WriteOnly, reth(va, testRKey+1, 8), make([]byte, 8)).Out["b"])
		},
		"a masked FETCH ADD": func(r *rig, a, b, c *party) {
			one(r.t, c.request(hdr.MaskedFetchAdd, maskedETH(va, testRKey, 1, 0, 1, 0), nil).Out["b"])
		},
		"a NAK": func(r *rig, a, b, c *party) {
			one(r.t, c.cas(va, 1, 2).Out["b"])
			a.nak(a.spsn, hdr.SynNAKRemoteAccess)
		},
		"a WRITE that is not its sender's": func(r *rig, a, b, c *party) {
			spoofed := c.made(hdr.WriteOnly, c.psn, reth(va, testRKey, 8), little(1))
			one(r.t, r.Push("a", change(spoofed, func(p []byte, f *hdr.Frame) { f.IPv4Of(p)[15] ^= 0x80 })).Out["b"])
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			a, b, c := r.join(), r.join(), r.join()
			b.learn(a, va, 1)
			if !r.knows(va) {
				t.Fatal("the value is not known to begin with")
			}
			do(r, a, b, c)
			if r.knows(va) {
				t.Error("the value is still believed")
			}
		})
	}
}

// TestBarrier: while a stranger's WRITE may be under way nothing that passes
// makes the word known; afterwards an answer does.
func TestBarrier(t *testing.T) {
	const va = 0x7050
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	x := r.client()
	one(t, x.request(hdr.WriteOnly, reth(va, testRKey, 8), little(77)).Out["b"])
	for range 2 {
		same(t, b.cas(va, 1, 2).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(va, testRKey, 2, 1), nil))
		one(t, a.atomicAck(77).Out["a"])
	}
	r.Clock.Advance(time.Millisecond)
	// The same holds for a word that is new, and for an answer to what was sent
	// before the stranger's WRITE.
	const young = va + 0x100
	one(t, x.request(hdr.WriteOnly, reth(young, testRKey, 8), little(77)).Out["b"])
	one(t, b.cas(young, 1, 2).Out["b"])
	one(t, a.atomicAck(1).Out["a"])
	if r.knows(young) {
		t.Error("the new word is known while a stranger writes it")
	}
	r.Clock.Advance(time.Millisecond)
	one(t, b.cas(va, 1, 2).Out["b"])
	one(t, x.request(hdr.WriteOnly, reth(va, testRKey, 8), little(78)).Out["b"])
	one(t, a.atomicAck(77).Out["a"])
	if r.knows(va) {
		t.Error("the word is known while a stranger writes it")
	}
	r.Clock.Advance(time.Millisecond)
	for _, v := range []uint64{77, 77} {
		s := a.spsn
		got := one(t, b.cas(va, v, v).Out["b"])
		var f hdr.Frame
		hdr.Parse(got, &f)
		if f.Op == hdr.CompareSwap {
			one(t, a.atomicAck(77).Out["a"])
			continue
		}
		same(t, []graphtest.Frame{{Bytes: got}}, b.moved(a, hdr.WriteOnly, s, reth(va, testRKey, 8), little(77)))
		one(t, a.ack().Out["a"])
		return
	}
	t.Error("the word stays unknown")
}

// TestProbe: a connection that its server was quiet on is asked first whether
// it lives; until it answers, others' operations go over their own.
func TestProbe(t *testing.T) {
	const va = 0x7058
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	r.Clock.Advance(3 * time.Second)
	own, p := b.spsn, b.psn
	same(t, b.write(va, 2).Out["b"],
		a.question(), b.made(hdr.WriteOnly, own, reth(va, testRKey, 8), little(2)))
	same(t, b.write(va, 3).Out["b"], b.made(hdr.WriteOnly, own+1, reth(va, testRKey, 8), little(3)))
	got := r.Push("b", a.response(hdr.Acknowledge, a.spsn-1, aeth(hdr.SynACK, a.smsn), nil))
	none0(t, got.Out["a"])
	none0(t, got.Out["b"])
	b.smsn += 2
	same(t, r.Push("b", b.response(hdr.Acknowledge, own+1, aeth(hdr.SynACK, b.smsn), nil)).Out["a"], b.ackTo(p+1, 4))
	same(t, b.write(va, 4).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(4)))
	same(t, a.ack().Out["a"], b.ackTo(p+2, 5))
	if r.Counter("probes") != 1 {
		t.Errorf("probes %d", r.Counter("probes"))
	}
}

// TestGone: of connections on record that are quiet, one whose end at the server
// answers a probe is kept, and one whose end does not is lost where there may soon be no place for another one: its client is told when it asks. Nobody loses
// anything, so it does not count as failed. Where there is room it is kept: the way to its end may be interrupted.
func TestGone(t *testing.T) {
	for conns, gone := range map[string]uint64{"2": 1, "8": 0} {
		t.Run(conns, func(t *testing.T) { testGone(t, conns, gone) })
	}
}

func testGone(t *testing.T, conns string, gone uint64) {
	const va = 0x7058
	r := newRig(t, graph.Args{"idle": "3s", "conns": conns})
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	var probes []graphtest.Frame
	for range 400 {
		if probes = r.Advance(10 * time.Millisecond).Out["b"]; len(probes) != 0 {
			break
		}
	}
	same(t, probes, a.question(), b.question())
	// While the server says nothing at all it may be that it pauses.
	for range 50 {
		r.Advance(20 * time.Millisecond)
	}
	if n := r.Counter("conns"); n != 2 {
		t.Errorf("%d connections are known while the server pauses", n)
	}
	for range 200 {
		none0(t, r.Push("b", a.response(hdr.Acknowledge, a.spsn-1, aeth(hdr.SynACK, a.smsn), nil)).Out["a"])
		r.Advance(20 * time.Millisecond)
	}
	for name, want := range map[string]uint64{"conns": 2, "connections-gone": gone, "connections-failed": 0} {
		if n := r.Counter(name); n != want {
			t.Errorf("%s: %d, want %d", name, n, want)
		}
	}
	for range 3 { // one whose end at the server is gone needs no place for longer than its client may ask
		r.Advance(keepGone)
		r.Push("b", a.response(hdr.Acknowledge, a.spsn-1, aeth(hdr.SynACK, a.smsn), nil))
	}
	if n := r.Counter("conns"); n != 2-gone {
		t.Errorf("%d connections are known in the end, want %d", n, 2-gone)
	}
}

// TestReadsLeftOut: when Linux (rxe) acknowledges again, it names the newest request that is no READ, and the
// PSN before 0 when it has executed nothing but READs. Such an acknowledgement does not show that the end of
// another connection is there; any other PSN does.
func TestReadsLeftOut(t *testing.T) {
	const va = 0x7058
	for name, c := range map[string]struct {
		psn  func(a *party) uint32
		gone uint64
	}{
		"the newest but READs": {func(a *party) uint32 { return a.spsn - 2 }, 0},
		"one before that":      {func(a *party) uint32 { return a.spsn - 3 }, 1},
		"nothing but READs":    {func(*party) uint32 { return hdr.PSNMask }, 1}, // but it was seen to execute others
		"a later one":          {func(a *party) uint32 { return a.spsn + 1 }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			a, b := r.join(), r.join()
			b.learn(a, va, 1)
			a.reads()
			r.Clock.Advance(3 * time.Second)
			own := b.spsn
			same(t, b.write(va, 2).Out["b"],
				a.question(), b.made(hdr.WriteOnly, own, reth(va, testRKey, 8), little(2)))
			r.Push("b", a.response(hdr.Acknowledge, c.psn(a), aeth(hdr.SynACK, a.smsn), nil))
			if n := r.Counter("connections-gone"); n != c.gone {
				t.Fatalf("connections-gone: %d, want %d", n, c.gone)
			}
			b.smsn++
			one(t, r.Push("b", b.response(hdr.Acknowledge, own, aeth(hdr.SynACK, b.smsn), nil)).Out["a"])
			if got := r.Counter("moved"); c.gone == 0 {
				one(t, b.write(va, 3).Out["b"])
				if r.Counter("moved") != got+1 {
					t.Error("operations do not move to a connection that lives")
				}
			}
		})
	}
}

// TestWordOfNobody: a word outlives the connection that it was last reached over: that is looked at,
// and carries nothing, when a stranger changes the word.
func TestWordOfNobody(t *testing.T) {
	const va = 0x7058
	r := newRig(t, nil)
	r.client().connect() // has the first row, and sends nothing
	r.reach()
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	for _, c := range []*party{a, b} {
		one(t, r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn})).Out["b"])
		one(t, r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})).Out["a"])
		r.Advance(3 * time.Second)
	}
	if !r.knows(va) || r.Counter("conns") != 1 {
		t.Fatalf("%d connections, the word is known: %v", r.Counter("conns"), r.knows(va))
	}
	one(t, r.party(50).write(va, 2).Out["b"])
	if r.knows(va) {
		t.Error("the word is known")
	}
}

// TestOpenBefore: an operation that was under way to a word before the word was tracked may be executed at
// any time. Answers meanwhile do not make the word known.
func TestOpenBefore(t *testing.T) {
	const va = 0x7060
	r := newRig(t, graph.Args{"hold": "0"}) // no request waits for that operation
	a, b, c := r.join(), r.join(), r.join()
	q := c.psn
	same(t, c.write(va, 9).Out["b"], c.made(hdr.WriteOnly, q, reth(va, testRKey, 8), little(9))) // nothing is tracked yet
	one(t, b.cas(va, 0, 0).Out["b"])
	one(t, a.atomicAck(1).Out["a"])
	if r.knows(va) {
		t.Error("the value is believed")
	}
	one(t, c.ack().Out["a"])
	one(t, b.cas(va, 9, 10).Out["b"])
	one(t, a.atomicAck(9).Out["a"])
	if !r.knows(va) {
		t.Error("the value is not known")
	}
}

// TestOvertaken: the answer to an atomic tells what the word was then; when it
// was changed since, it tells nothing.
func TestOvertaken(t *testing.T) {
	const va = 0x7068
	r := newRig(t, graph.Args{"hold": "0"}) // no request waits for the answer
	a, b, c := r.join(), r.join(), r.join()
	p, q, s := b.psn, c.psn, a.spsn
	one(t, b.cas(va, 1, 2).Out["b"])
	same(t, c.cas(va, 2, 3).Out["b"], c.moved(a, hdr.CompareSwap, s+1, atomicETH(va, testRKey, 3, 2), nil))
	same(t, a.atomicAck(1).Out["a"], b.atomicAckTo(p, 2, 1))
	if r.knows(va) {
		t.Error("the value before the second atomic is believed")
	}
	same(t, a.atomicAck(2).Out["a"], c.atomicAckTo(q, 2, 2))
}

// TestDepth: a shared connection carries as many READs and atomics at once as its server's queue pair takes;
// further ones wait.
func TestDepth(t *testing.T) {
	const va = 0x7070
	r := newRig(t, graph.Args{"mode": "mux"})
	r.resources = 2
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	s, p := a.spsn, b.psn
	one(t, b.cas(va, 1, 2).Out["b"])
	one(t, b.cas(va, 2, 3).Out["b"])
	none0(t, b.cas(va, 3, 4).Out["b"])
	got := a.atomicAck(1)
	same(t, got.Out["b"], b.moved(a, hdr.CompareSwap, s+2, atomicETH(va, testRKey, 4, 3), nil))
	same(t, got.Out["a"], b.atomicAckTo(p, 3, 1))
}

// TestAsksForAnswers: requests over a shared connection must ask for an answer, for others may wait for it. A
// client that did not ask gets no answer of its own.
func TestAsksForAnswers(t *testing.T) {
	const va = 0x7078
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	quiet := change(b.made(hdr.WriteOnly, b.psn, reth(va, testRKey, 8), little(2)), func(p []byte, f *hdr.Frame) { f.BTHOf(p).SetAckReq(false) })
	same(t, r.Push("a", quiet).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(2)))
	b.psn++
	none0(t, a.ack().Out["a"])
	p := b.psn
	one(t, b.write(va, 3).Out["b"])
	same(t, a.ack().Out["a"], b.ackTo(p, 4))
}

// TestStrict: a client's operations are executed in its order: an operation on memory that is not tracked
// goes behind those on tracked memory, over the same connection.
func TestStrict(t *testing.T) {
	const va, other = 0x7080, 0x20000
	for order, way := range map[string]func(a, b *party, s uint32) []byte{
		"strict": func(a, b *party, s uint32) []byte {
			return b.moved(a, hdr.ReadRequest, s+1, reth(other, testRKey, 8), nil)
		},
		"word": func(a, b *party, s uint32) []byte {
			return b.made(hdr.ReadRequest, b.spsn, reth(other, testRKey, 8), nil)
		},
	} {
		t.Run(order, func(t *testing.T) {
			r := newRig(t, graph.Args{"order": order})
			a, b := r.join(), r.join()
			b.learn(a, va, 1)
			s := a.spsn
			one(t, b.write(va, 2).Out["b"])
			same(t, b.read(other, 8).Out["b"], way(a, b, s))
		})
	}
}

// TestWide: the words that a long WRITE touches are unknown until the WRITE is done; then an atomic tells
// their values.
func TestWide(t *testing.T) {
	const va = 0x7100
	r := newRig(t, graph.Args{"track": va16})
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	b.learn(a, va+256, 2)
	b.learn(a, va+512, 3)
	b.learn(a, va+520, 4)
	h := reth(va-8, testRKey, 516+8) // the last word in part
	c.request(hdr.WriteFirst, h, make([]byte, 256))
	c.request(hdr.WriteMiddle, nil, make([]byte, 256))
	if n := len(c.request(hdr.WriteLast, nil, make([]byte, 12)).Out["b"]); n != 3 {
		t.Fatalf("%d frames", n)
	}
	for _, v := range []uint64{va, va + 256, va + 512} {
		if r.knows(v) {
			t.Errorf("%#x is believed", v)
		}
	}
	same(t, b.cas(va+520, 4, 5).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn+3, reth(va+520, testRKey, 8), little(5)))
	// An atomic meanwhile: the server may execute it before the WRITE.
	same(t, b.cas(va, 7, 8).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn+4, atomicETH(va, testRKey, 8, 7), nil))
	a.spsn += 2
	one(t, a.ack().Out["a"])
	one(t, a.ack().Out["a"])
	b.msn++
	one(t, a.atomicAck(0).Out["a"])
	b.msn++
	if r.knows(va) {
		t.Error("the answer to an atomic beside the WRITE is believed")
	}
	b.learn(a, va, 0)
	if !r.knows(va) {
		t.Error("the word is unknown for good")
	}
}

// TestWideRace: what another connection writes while the packets of a long WRITE
// are coming may be executed behind it.
func TestWideRace(t *testing.T) {
	const va = 0x7100
	r := newRig(t, graph.Args{"track": va16})
	a, b := r.join(), r.join()
	c := r.client().connect()
	c.warm()
	b.learn(a, va+256, 2)
	data := make([]byte, 600)
	one(t, a.request(hdr.WriteFirst, reth(va, testRKey, 600), data[:256]).Out["b"])
	one(t, c.write(va+256, 9).Out["b"])
	one(t, a.request(hdr.WriteMiddle, nil, data[256:512]).Out["b"])
	one(t, a.request(hdr.WriteLast, nil, data[512:]).Out["b"])
	a.spsn += 2
	one(t, a.ack().Out["a"])
	one(t, c.ack().Out["a"])
	if r.knows(va+256) || !r.knows(va+8) && r.knows(va) {
		t.Error("the word that both wrote is known")
	}
}

// TestOwnWay: when a newcomer changes a word over its own connection, others' answers under way do not have
// the expected values, and no client loses trust for that.
func TestOwnWay(t *testing.T) {
	const va = 0x7108
	r := newRig(t, graph.Args{"mode": "mux"})
	a, b := r.join(), r.join()
	c := r.client().connect()
	c.warm()
	b.learn(a, va, 1)
	p := b.psn
	one(t, b.cas(va, 1, 2).Out["b"])
	one(t, c.write(va, 9).Out["b"])
	same(t, a.atomicAck(9).Out["a"], b.atomicAckTo(p, 3, 9))
	one(t, c.ack().Out["a"])
	b.msn++
	b.learn(a, va, 9)
	if n := r.Counter("mismatches"); n != 0 || !r.knows(va) {
		t.Errorf("%d mismatches; known: %v", n, r.knows(va))
	}
}

// TestTogether: operations on a word wait, while there is room, until those that
// went over other connections are done; otherwise there would always be some.
func TestTogether(t *testing.T) {
	const va = 0x7110
	r := newRig(t, graph.Args{"mode": "mux"})
	a, b, d := r.join(), r.join(), r.join()
	c := r.client().connect()
	c.warm()
	b.learn(a, va, 1)
	p := b.psn
	one(t, b.cas(va, 1, 2).Out["b"])
	one(t, c.write(va, 9).Out["b"])
	q := d.psn
	none0(t, d.cas(va, 9, 3).Out["b"])
	same(t, a.atomicAck(9).Out["a"], b.atomicAckTo(p, 3, 9))
	got := c.ack()
	one(t, got.Out["a"])
	same(t, got.Out["b"], d.moved(a, hdr.CompareSwap, a.spsn, atomicETH(va, testRKey, 3, 9), nil))
	same(t, a.atomicAck(9).Out["a"], d.atomicAckTo(q, 2, 9))
	if !r.knows(va) {
		t.Error("the word is not known")
	}
}

// TestWritable: an atomic is sent as a WRITE where the server was seen to take
// WRITEs; elsewhere as it is, over the shared connection, with its outcome
// known.
func TestWritable(t *testing.T) {
	const va = 0x7200
	for _, writable := range []string{"proven", "assume"} {
		t.Run(writable, func(t *testing.T) {
			r := newRig(t, graph.Args{"writable": writable})
			r.clients = append(r.clients, r.party(0).connect(), r.party(1).connect())
			a, b := r.clients[0], r.clients[1]
			for _, c := range r.clients { // no client has written yet
				c.warm()
				c.reads()
				c.adds()
				c.msn = 3
			}
			a.learn(a, va, 1)
			p, s := b.psn, a.spsn
			got := b.cas(va, 1, 2).Out["b"]
			if writable == "assume" {
				same(t, got, b.moved(a, hdr.WriteOnly, s, reth(va, testRKey, 8), little(2)))
				same(t, a.ack().Out["a"], b.atomicAckTo(p, 4, 1))
				return
			}
			same(t, got, b.moved(a, hdr.CompareSwap, s, atomicETH(va, testRKey, 2, 1), nil))
			same(t, a.atomicAck(1).Out["a"], b.atomicAckTo(p, 4, 1))
			if !r.knows(va) || r.Counter("mismatches") != 0 {
				t.Error("its outcome was not known")
			}
			// One that fails needs the right to write, too.
			s = a.spsn
			eth := atomicETH(va, testRKey, 2, 1)
			same(t, b.cas(va, 1, 2).Out["b"], b.moved(a, hdr.CompareSwap, s, eth, nil))
			one(t, a.atomicAck(2).Out["a"])
			// The answer does not have the value that it must have: another sender writes there.
			one(t, b.cas(va, 2, 3).Out["b"])
			one(t, a.atomicAck(77).Out["a"])
			if r.knows(va) || r.Counter("mismatches") != 1 {
				t.Errorf("still believed; mismatches %d", r.Counter("mismatches"))
			}
		})
	}
}
