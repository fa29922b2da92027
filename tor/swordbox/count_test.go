package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// A server acknowledges a request that it executed before without checking rights, and its MSN stays the
// same. Such an answer shows no right, and no value of a word.
func TestCount(t *testing.T) {
	const va = 0x7008
	again := func(c *party) { // the server acknowledges what it has executed before
		c.smsn--
		one(t, c.grant(aAtomic).Out["a"])
	}
	behind := func(c *party, then func()) {
		old := func(psn uint32) {
			one(t, c.r.Push("a", c.made(hdr.WriteOnly, psn, reth(va, testRKey, 8), little(7))).Out["b"])
		}
		p := c.psn
		old(p)
		old(p + 1)
		for k := range uint32(2) {
			one(t, c.r.Push("a", c.made(hdr.WriteOnly, p+2+k, reth(0, 0, 0), nil)).Out["b"])
		}
		c.psn += 4
		old(p + 1)
		then()
		c.smsn++
		c.spsn++
		one(t, c.ack().Out["a"])
	}
	for name, x := range map[string]struct {
		play func(c *party)
		want uint8
	}{
		"executed": {func(c *party) {
			c.use(va, testRKey, aAtomic)
		}, 1 << aAtomic},
		"executed before": {func(c *party) {
			for range 5 {
				one(t, c.ask(aAtomic, va, testRKey).Out["b"])
				again(c)
			}
		}, 0},
		"executed before, and one that was not": {func(c *party) {
			c.warm()
			for range 2 {
				one(t, c.ask(aWrite, va, testRKey).Out["b"])
			}
			one(t, c.request(hdr.WriteOnly, reth(0, 0, 0), nil).Out["b"])
			c.spsn += 2
			one(t, c.ack().Out["a"]) // to all three, of which it counts one
		}, 0},
		// Of the client's requests, two were executed before and are not acknowledged yet, and two are new.
		// Then the client asks for an answer to the second. The server's MSN has risen by two, but these are
		// not the first two.
		"executed before, and sent again behind new ones": {func(c *party) {
			c.warm()
			behind(c, func() {})
		}, 0},
		"the same, and the answer before comes later": {func(c *party) {
			c.warm()
			one(t, c.request(hdr.WriteOnly, reth(0, 0, 0), nil).Out["b"])
			behind(c, func() { one(t, c.ack().Out["a"]) })
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, muxArgs)
			c := r.client().connect()
			x.play(c)
			if got := (*r.box().nodes.Load())[0].flows[0].may; got != x.want {
				t.Errorf("rights %b, want %b", got, x.want)
			}
		})
	}
}

// While a READ is done again, a repeated request behind it is answered after the READ's answer; a repeated
// atomic in front of it is answered at once.
func TestAnsweredBesideReread(t *testing.T) {
	r := newRig(t, muxArgs)
	a := r.join()
	add := func(psn uint32) []byte { return a.made(hdr.FetchAdd, psn, atomicETH(0x6000, testRKey, 1, 0), nil) }
	p := a.psn
	for k := range uint64(3) {
		if k == 1 {
			one(t, a.read(0x5000, 8).Out["b"])
			one(t, a.answer(hdr.ReadRespOnly, nil, little(1)).Out["a"])
			continue
		}
		one(t, a.request(hdr.FetchAdd, atomicETH(0x6000, testRKey, 1, 0), nil).Out["b"])
		one(t, a.atomicAck(k).Out["a"])
	}
	one(t, r.Push("a", a.made(hdr.ReadRequest, p+1, reth(0x5000, testRKey, 8), nil)).Out["b"])
	one(t, r.Push("a", add(p)).Out["a"])
	none0(t, r.Push("a", add(p+2)).Out["a"])
	if got := a.answer(hdr.ReadRespOnly, nil, little(1)).Out["a"]; len(got) != 2 {
		t.Errorf("behind the READ's answer: %s, want both", show(got))
	}
}

// A server's end was asked by a probe. An acknowledgement of a request before the newest one comes from the
// end of another connection, even if the MSN is the same.
func TestAffirmed(t *testing.T) {
	r := newRig(t, nil)
	a := r.join()
	a.writes()
	a.writes()
	n := (*r.box().nodes.Load())[0]
	slot, _ := n.conns.Find(conn.AddrFrom(a.ip), a.cqpn)
	fl := &n.flows[slot]
	fl.asked = 1
	for back, want := range map[uint32]bool{1: true, 2: false} {
		var h hdr.Frame
		b := a.response(hdr.Acknowledge, a.spsn-back, aeth(hdr.SynACK, a.smsn), nil)
		hdr.Parse(b, &h)
		if got := fl.affirmed(&h, b, a.spsn-back); got != want {
			t.Errorf("PSN %d behind: %v, want %v", back, got, want)
		}
	}
}

// The server is silent on one connection, where a READ is done again, and answers on another one. The client
// of the first gets no answer of the box: it goes on asking, or gives up by its own counts.
func TestPatientReread(t *testing.T) {
	r := newRig(t, muxArgs)
	a, b := r.join(), r.join()
	p := a.psn
	one(t, a.read(0x5000, 8).Out["b"])
	one(t, a.answer(hdr.ReadRespOnly, nil, little(1)).Out["a"])
	again := a.made(hdr.ReadRequest, p, reth(0x5000, testRKey, 8), nil)
	one(t, r.Push("a", again).Out["b"])
	for range 200 {
		none0(t, r.Advance(20 * time.Millisecond).Out["a"])
		b.reads()
		none0(t, r.Push("a", again).Out["a"])
	}
	one(t, a.answer(hdr.ReadRespOnly, nil, little(1)).Out["a"])
}
