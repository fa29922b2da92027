package swordbox

import (
	"fmt"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// TestHoldPerClient: a client with many connections whose requests wait without end leaves a third of the
// room to others, and another client gets its part of that. Frames that are not held any more are not
// counted.
func TestHoldPerClient(t *testing.T) {
	const places = 64
	r := newRig(t, graph.Args{"hold": fmt.Sprint(places), "conns": "128"})
	all := []*party{r.join()}
	for len(all) < places {
		all = append(all, r.client())
		all[len(all)-1].ip = all[0].ip
		all[len(all)-1].connect().proven()
	}
	other := r.join()
	n := (*r.box().nodes.Load())[0]
	n.pulse.trip = 1e9 // the server takes its time: that it does not answer is no sign of anything
	stuck := func(c *party) {
		t.Helper()
		for range places + 16 { // the server answers none, and window= is full
			c.write(0x5000, 1)
		}
	}
	for _, c := range all[:12] {
		stuck(c)
	}
	for _, c := range all[12:] {
		answered := c.made(hdr.ReadRequest, c.psn-3, reth(lowest, testRKey, 8), nil) // see proven
		for range r.resources {
			c.read(lowest, 8)
		}
		r.Push("a", answered) // cannot be asked again now
	}
	if free := places - n.shelf.Len(); free < places/3 || free == places {
		t.Errorf("%d of %d places are free", free, places)
	}
	was := n.shelf.Len()
	stuck(other)
	if got := n.shelf.Len() - was; got < places/9 { // a third of the free places: this client, too, has less than half of the rest
		t.Errorf("another client has %d places", got)
	}
	for _, c := range append(all, other) {
		r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn}))
		r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply}))
	}
	if n.shelf.hosts != [256]int32{} || n.shelf.Len() != 0 {
		t.Errorf("%v are counted, %d held", n.shelf.hosts, n.shelf.Len())
	}
}
