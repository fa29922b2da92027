package swordbox

import (
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// What the server executed before it acknowledges without a look at rights: its MSN stays as it was. Such an answer shows no right, and no word's value.
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
		// The client has two that were executed before and are not acknowledged, and two new ones; then it asks for
		// an answer to the second. The server's MSN has risen by two, which are not the first two.
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

// A server had no receive buffer, and its client begins again at that request. What it has sent behind, and waits here, does not pass before what it sends again.
func TestForgoNotReady(t *testing.T) {
	r := newRig(t, graph.Args{"infer": "off", "static": "10.9.0.16/0x100-10.9.0.1/0x200,psn=1000"})
	r.reach()
	c := r.client()
	c.warm()
	send := func(psn uint32) []byte { return c.made(hdr.SendOnly, psn, nil, little(7)) }
	p := c.psn
	same(t, r.Push("a", send(p)).Out["b"], send(p))
	same(t, r.Push("a", send(p+1)).Out["b"], send(p+1))
	one(t, c.nak(p, 0x20).Out["a"])
	none0(t, r.Push("a", send(p+2)).Out["b"])
	for k := range uint32(3) {
		same(t, r.Push("a", send(p+k)).Out["b"], send(p+k))
	}
}
