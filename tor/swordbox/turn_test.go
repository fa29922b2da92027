package swordbox

import (
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

func (c *party) add(va uint64) []byte {
	c.psn++
	return c.made(hdr.FetchAdd, c.psn-1, atomicETH(va, testRKey, 1, 0), nil)
}

// A client whose requests never end does not keep the free places of a connection for itself: each client
// that waits has its turn.
func TestTurns(t *testing.T) {
	r := newRig(t, graph.Args{"mode": "mux"})
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, 0x7008, 1)
	const more = 3
	for k := range int(r.resources) + more { // more than the server takes at once
		if got := r.Push("a", b.add(0x7008)).Out["b"]; (len(got) == 1) != (k < int(r.resources)) {
			t.Fatalf("request %d: %d went on", k, len(got))
		}
	}
	none0(t, r.Push("a", c.add(0x7008)).Out["b"])
	for k := range uint64(2) {
		got := a.atomicAck(1 + k).Out["b"]
		var f hdr.Frame
		if len(got) != 1 || hdr.Parse(got[0].Bytes, &f) != hdr.IsRoCE {
			t.Fatalf("%d went on, want one%s", len(got), show(got))
		}
		none0(t, r.Push("a", b.add(0x7008)).Out["b"])
	}
	if v := r.box().Report().(Report).Servers[0].Connections; v[2].Waiting != 0 || v[2].Open != 1 {
		t.Errorf("the other client has %d open and %d waiting", v[2].Open, v[2].Waiting)
	}
}

// A request that was found not to have come to the server comes once more while its word
// is in use: it waits here, and goes when the word is free, without being sent again.
func TestLateComes(t *testing.T) {
	r, _, a, b, at := underWay(t, nil)
	question(t, r, a, at+2)
	a.smsn++
	a.nak(at+1, hdr.SynNAKSequence)
	b.msn++
	c := r.client().connect()
	c.reads()
	c.reads()
	c.writes()
	one(t, c.write(0x7008, 5).Out["b"])
	again := func() []byte { return b.made(hdr.CompareSwap, b.psn-1, atomicETH(0x7008, testRKey, 3, 2), nil) }
	n := (*r.box().nodes.Load())[0]
	w := n.words.find(0x7008)
	n.words.w[w].writes++ // a WRITE in the place of an atomic is under way
	none0(t, r.Push("a", again()).Out["b"])
	dropped(t, r.Push("a", again()), "repeat")
	if h := n.shelf.Len(); h != 1 {
		t.Fatalf("%d frames are held, want the repetition", h)
	}
	n.words.w[w].writes--
	same(t, c.ack().Out["b"], b.moved(b, hdr.CompareSwap, b.spsn, atomicETH(0x7008, testRKey, 3, 2), nil))
}

// TestForgottenRead: a READ that is asked for again while a SEND is under way goes to the server under its old PSN, and its answer to the client, as often as
// that comes. When the server says nothing, as it does not remember the READ, it is done anew, over another connection.
func TestForgottenRead(t *testing.T) {
	r := newRig(t, graph.Args{"mode": "mux"})
	a, b := r.join(), r.join()
	b.learn(a, 0x7008, 1) // the two ends of a's connection count differently
	p, sp := a.psn, a.spsn
	a.reads()
	one(t, a.request(hdr.SendOnly, nil, make([]byte, 8)).Out["b"])
	again := func() []byte { return a.made(hdr.ReadRequest, p, reth(lowest, testRKey, 8), nil) }
	asked := func(psn uint32) {
		t.Helper()
		same(t, r.Push("a", again()).Out["b"], a.made(hdr.ReadRequest, psn, reth(lowest, testRKey, 8), nil))
	}
	for range 3 {
		asked(sp)
		got := one(t, r.Push("b", a.response(hdr.ReadRespOnly, sp, aeth(hdr.SynACK, a.smsn), little(7))).Out["a"])
		var h hdr.Frame
		if hdr.Parse(got, &h); h.Op != hdr.ReadRespOnly || h.BTHOf(got).PSN() != p {
			t.Fatalf("its client has %s, want PSN %d", text(got), p)
		}
	}
	for range mostReplays {
		asked(sp)
	}
	same(t, r.Push("a", again()).Out["b"], a.moved(b, hdr.ReadRequest, b.spsn, reth(lowest, testRKey, 8), nil))
}

// TestRefusedAgain: the server is asked to answer a READ again, and refuses, as the region has changed. The
// client gets that refusal for the READ, as if from the server.
func TestRefusedAgain(t *testing.T) {
	r := newRig(t, graph.Args{"mode": "mux"})
	a, b := r.join(), r.join()
	b.learn(a, 0x7008, 1)
	p, sp := a.psn, a.spsn
	a.reads()
	one(t, a.request(hdr.SendOnly, nil, make([]byte, 8)).Out["b"])
	one(t, r.Push("a", a.made(hdr.ReadRequest, p, reth(lowest, testRKey, 8), nil)).Out["b"])
	got := one(t, r.Push("b", a.response(hdr.Acknowledge, sp, aeth(hdr.SynNAKRemoteAccess, a.smsn), nil)).Out["a"])
	var h hdr.Frame
	if hdr.Parse(got, &h); h.Op != hdr.Acknowledge || h.AETHOf(got).Syndrome() != hdr.SynNAKRemoteAccess || h.BTHOf(got).PSN() != p {
		t.Errorf("its client is told %s, want a NAK (remote access) of PSN %d", text(got), p)
	}
}
