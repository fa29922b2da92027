package clover

import (
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// target is the address of the one request that left for the server; its R_Key
// must be that of the request.
func (r *rig) target(got graphtest.Result) uint64 {
	r.t.Helper()
	b := only(r.t, got.Out["b"])
	var f hdr.Frame
	hdr.Parse(b, &f)
	at, rkey := uint64(0), uint32(0)
	if f.Op == hdr.ReadRequest {
		at, rkey = f.RETHOf(b).VA(), f.RETHOf(b).RKey()
	} else {
		at, rkey = f.AtomicETHOf(b).VA(), f.AtomicETHOf(b).RKey()
	}
	if rkey != r.rkey {
		r.t.Errorf("a request under R_Key %d left under %d", r.rkey, rkey)
	}
	return at
}

func (r *rig) readAt(qpn, psn uint32, at uint64) graphtest.Result {
	return r.to(qpn, psn, hdr.ReadRequest, reth(at, r.rkey, r.size), nil)
}

func (r *rig) casAt(qpn, psn, lh uint32, at uint64) graphtest.Result {
	return r.to(qpn, psn, hdr.CompareSwap, atomicETH(at, r.rkey, r.swap(lh, 1, 1), uint64(wire.Fresh(1))), nil)
}

// A server that is started again registers the same addresses under another
// R_Key, and its clients have other queue pairs: nothing of theirs is sent
// under the old one, and the key's chain is learnt anew.
func TestServerRestart(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.believed(true, "before the restart")

	r.rkey = 8
	for qpn := uint32(0x50); qpn <= 0x60; qpn += 0x10 {
		lh := 0x9200 + qpn
		r.warm(qpn, 100, entryAt(lh), lh)
	}
	if at := r.target(r.readAt(0x60, 108, entryAt(0x9001))); at != entryAt(0x9001) {
		t.Errorf("a READ of an address that had the tail's name before went to %#x", at)
	}
	r.from(0x60, 108, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
	r.wrote(0x50, 108, 0x9002)
	if at := r.target(r.casAt(0x50, 109, 0x9002, old)); at != old {
		t.Errorf("steered to %#x, which is gone", at)
	}
	r.linked(0x50, 109)
	r.believed(true, "the key's first append after the restart")
	r.wrote(0x60, 109, 0x9003)
	if at := r.target(r.casAt(0x60, 110, 0x9003, old)); at != entryAt(0x9002) {
		t.Errorf("after the restart sent to %#x", at)
	}
	r.linked(0x60, 110)
	if at := r.target(r.readAt(0x50, 110, entryAt(0x9002))); at != entryAt(0x9003) {
		t.Errorf("a READ after the restart went to %#x", at)
	}
}

// Clients may reach the same memory under different R_Keys. A client is steered only behind a tail that is
// known under its own R_Key. When clients go on under one R_Key, they are steered again after one append.
func TestTwoKeysOfOneMemory(t *testing.T) {
	r := crew(t, graph.Args{})
	r.rkey = 8
	r.warm(0x50, 100, entryAt(0x9250), 0x9250)
	psn := map[uint32]uint32{0x10: 108, 0x20: 108, 0x50: 108}
	tail := uint64(old)
	before := r.Counter("appends")
	steered := func() uint64 { return r.Counter("appends") - before }
	lh := uint32(0x9000)
	appendAs := func(qpn, rkey uint32) {
		r.rkey = rkey
		lh++
		r.wrote(qpn, psn[qpn], lh)
		// The client that knows the tail: what it sends is right in any case.
		if at := r.target(r.casAt(qpn, psn[qpn]+1, lh, tail)); at != tail {
			t.Fatalf("entry %#x was sent to %#x, the tail is %#x", lh, at, tail)
		}
		r.linked(qpn, psn[qpn]+1)
		psn[qpn] += 2
		tail = entryAt(lh)
	}
	for range 4 {
		appendAs(0x10, 7)
		appendAs(0x50, 8)
	}
	if n := steered(); n != 0 {
		t.Errorf("%d appends went to a tail that is known under another R_Key", n)
	}
	appendAs(0x10, 7)
	for range 3 {
		appendAs(0x20, 7)
		appendAs(0x10, 7)
	}
	if n := steered(); n != 6 {
		t.Errorf("of 6 appends under one R_Key %d were steered", n)
	}
}

// A READ of an entry under another R_Key than it was written under is another's
// business.
func TestReadOtherKey(t *testing.T) {
	r := row3(t, graph.Args{})
	r.linked(0x20, 109)
	r.linked(0x30, 109)
	r.rkey = 8
	if at := r.target(r.readAt(0x10, 110, entryAt(0x9001))); at != entryAt(0x9001) {
		t.Errorf("sent to %#x", at)
	}
}

// When a region is given up, the entries that were written in it are forgotten, too.
func TestRegionGivenUp(t *testing.T) {
	r := row3(t, graph.Args{})
	r.linked(0x20, 109)
	r.linked(0x30, 109)
	s := r.App().(*Steer)
	s.leaveRegion(s.regionOf(0, 7))
	if at := r.target(r.readAt(0x10, 110, entryAt(0x9001))); at != entryAt(0x9001) {
		t.Errorf("sent to %#x", at)
	}
	if s.lookup(0, entryAt(0x9001)) != noSlot {
		t.Error("its entries are known")
	}
}

// When the server refuses a steered request for good, the box forgets what it knows of the key.
func TestRefusedRead(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.wrote(0x10, 110, 0x9002)
	r.link(0x10, 111, 0x9002, old)
	r.linked(0x10, 111)
	if at := r.target(r.readAt(0x20, 108, entryAt(0x9001))); at != entryAt(0x9002) {
		t.Fatalf("a READ went to %#x", at)
	}
	r.from(0x20, 108, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil)
	r.believed(false, "a steered READ was refused")
}
