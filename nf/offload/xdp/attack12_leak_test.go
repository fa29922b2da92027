package xdp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/outer"
)

// tunnel12 is a world of vxlan alone, which remembers no flow.
func tunnel12(t *testing.T) *world {
	w := told12(t, []string{"vxlan"}, map[string]graph.Args{"vxlan": {"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01",
		"remote-mac": "02:00:00:00:00:02", "offload": "on"}})
	w.vni = 5000
	w.tunnel = outer.New(outer.Config{LocalMAC: [6]byte{2, 0, 0, 0, 0, 2}, RemoteMAC: [6]byte{2, 0, 0, 0, 0, 1}, Local: netip.MustParseAddr("192.0.2.2"),
		Remote: netip.MustParseAddr("192.0.2.1"), TTL: 64, Proto: hdr.ProtoUDP, Port: hdr.PortVXLAN})
	return w
}

// TestAttack12OneFlowFills: one flow has one entry, also one that no function remembers. Its frames come from two routers in turns, with a MAC address each.
func TestAttack12OneFlowFills(t *testing.T) {
	w := tunnel12(t)
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	for n := range 200 {
		w.at = w.at.Add(time.Millisecond)
		c.cmac[5] = byte(n / 2 % 2)
		w.send(c, n%2, nil)
	}
	r, _ := w.fast.inst.Ahead()
	if r.Entries > 2 {
		t.Errorf("one flow has %d entries of %d", r.Entries, r.Room)
	}
	d := w.conversation(1)
	d.proto, d.vlan, d.client = hdr.ProtoUDP, -1, [4]byte{10, 0, 0, 77}
	ran := w.fast.ran
	for n := range 40 {
		w.at = w.at.Add(time.Millisecond)
		w.send(d, n%2, nil)
	}
	if w.fast.ran == ran {
		r, _ := w.fast.inst.Ahead()
		t.Errorf("another flow is not run in front any more: %v", r.Decisions)
	}
}

// TestAttack12BehindForgotten: frames behind one with options come up until the flow has paused (TestBehind), also of a flow that no function remembers.
func TestAttack12BehindForgotten(t *testing.T) {
	w := tunnel12(t)
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	for n := range 24 {
		w.at = w.at.Add(20 * time.Millisecond)
		w.send(c, n%2, nil)
	}
	w.at = w.at.Add(20 * time.Millisecond)
	w.send(c, 0, func(d *datagram) { d.options = 8 })
	for n := range 20 {
		w.at = w.at.Add(time.Millisecond)
		ran := w.fast.ran
		if w.send(c, n%2, nil); w.fast.ran != ran {
			t.Fatalf("frame %d behind it is run in front after %d ms", n, n+1)
		}
	}
}
