package xdp

import (
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/outer"
)

// TestAttack12Jumbo: a frame of several buffers (MTU 9000) whose datagram ends in the first one: a short datagram, with padding behind. Its length is that of all of it.
func TestAttack12Jumbo(t *testing.T) {
	w := attackWorld(t, []string{"vxlan"}, map[string]graph.Args{"vxlan": {"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01",
		"remote-mac": "02:00:00:00:00:02", "offload": "on", "mtu": "9000"}})
	w.vni = 5000
	w.tunnel = outer.New(outer.Config{LocalMAC: [6]byte{2, 0, 0, 0, 0, 2}, RemoteMAC: [6]byte{2, 0, 0, 0, 0, 1}, Local: netip.MustParseAddr("192.0.2.2"),
		Remote: netip.MustParseAddr("192.0.2.1"), TTL: 64, Proto: hdr.ProtoUDP, Port: hdr.PortVXLAN})
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	for n := range 8 {
		w.send(c, n%2, nil)
	}
	slots := w.fast.e.Slots()
	for i := range slots {
		for d := range slots[i].Dirs { // as with ports of MTU 9000 (the ports here say 1514)
			slots[i].Dirs[d].Longest = 9014 - 50
		}
	}
	count := func() uint64 {
		_, n := w.fast.state(now())
		for _, p := range w.fast.inst.Ports() {
			if p.Name == "pa" {
				return p.Queues[0].RxBytes
			}
		}
		return n[""]
	}
	for _, padding := range []int{1000, 6000, 8980} { // the last is longer than mtu= lets it be
		f := w.attackFrame(c, 0, func(d *datagram) { d.padding = padding })
		before := count()
		out, ran := w.fast.e.run(0, f)
		if !ran {
			continue
		}
		if len(f) > 9014-50 {
			t.Errorf("a frame of %d bytes is run, though with mtu=9000 it is too big by %d", len(f), len(f)-(9014-50))
		}
		if n := int(hdr.IPv4(out[14:]).TotalLen()); n != len(out)-14 {
			t.Errorf("frame of %d bytes: the outer header says %d bytes, and there are %d", len(f), n, len(out)-14)
		}
		if n := count() - before; n != uint64(len(f)) {
			t.Errorf("frame of %d bytes: it is counted as %d", len(f), n)
		}
	}
}
