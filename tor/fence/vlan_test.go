package fence

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// tagged returns frames in VLANs, the outermost first.
func tagged(frames [][]byte, vids ...uint16) (all [][]byte) {
	for _, b := range frames {
		b = slices.Clone(b)
		for _, v := range slices.Backward(vids) {
			b = slices.Insert(b, 12, 0x81, 0, byte(v>>8), byte(v))
		}
		all = append(all, b)
	}
	return all
}

// Another function shuts a client out in one VLAN. A host with that address in another VLAN is another host, which goes on. So it is in
// the next process, and after a reboot. What the operator says holds in all VLANs.
func TestOneVLAN(t *testing.T) {
	client, server := netip.MustParseAddr("10.9.0.16"), netip.MustParseAddr("10.9.0.1")
	writes := about(frames(t), from(16, false))[:1]
	check := func(when string, x *graphtest.Test, shut bool) {
		t.Helper()
		h := x.App().(*app).held
		for _, c := range []struct {
			vids []uint16
			ids  uint32
			shut bool
		}{{nil, 0, false}, {[]uint16{0}, 0, false}, {[]uint16{5}, 5, shut}, {[]uint16{0, 5}, 5, shut}, {[]uint16{6}, 6, false}, {[]uint16{5, 6}, 5<<12 | 6, false}} {
			if n := len(x.Push("a", tagged(writes, c.vids...)...).Dropped); n != 0 != c.shut || h.Shuts(client, server, 0x200, c.ids) != c.shut {
				t.Errorf("%s, in %v: %d of 1 frames are dropped, shut out: %v; want %v", when, c.vids, n, h.Shuts(client, server, 0x200, c.ids), c.shut)
			}
		}
	}
	var kept []byte
	x := graphtest.NewKept(t, *Kind(), nil, graphtest.Start, &kept)
	h := x.App().(*app).held
	if _, ok := h.Shut(client, server, 0, 5); !ok {
		t.Fatal("there is no room")
	}
	check("at first", x, true)
	h.Lift(client, server, 0, 6)
	h.Lift(client, server, 0, 0)
	check("what another VLAN's is lifted", x, true)
	x = graphtest.NewKept(t, *Kind(), nil, graphtest.Start, &kept)
	check("after a restart", x, true)
	x.App().(*app).held.Shut(client, server, 0, 6)
	if err := x.App().(*app).remove(nil, tableHeld, key(entry{client: client, server: server})); err != nil {
		t.Error(err)
	}
	check("lifted by the operator", x, false)

	d := graphtest.NewDisk()
	x = rebooted(t, d, nil)
	x.App().(*app).held.Shut(client, server, 0, 5)
	x.Advance(every)
	check("after a reboot", rebooted(t, d, nil), true)

	x = graphtest.New(t, *Kind(), graph.Args{"fence": "10.9.0.16-10.9.0.1"})
	if got := x.Push("a", append(tagged(writes, 5), tagged(writes, 6)...)...); len(got.Dropped) != 2 {
		t.Errorf("what the operator says holds for %d of 2 VLANs", len(got.Dropped))
	}
}

// A host with the IP and MAC address of another one, in another VLAN, has not the right that the other one has shown.
func TestRightOfAnotherVLAN(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"requests": "on"})
	x.App().(*app).held.own(right{asker, theServer, [6]byte{2, 0, 0, 0, 0, 1}, 5, 0x2a})
	in := func(vlan uint16) (ok bool) {
		private := asking(theClient, 0, 0, 0x2a)
		for range 2 {
			b := request(t, hdr.FencePort, asker, theServer, private)
			got := x.Push("a", tagged([][]byte{b}, vlan)...)
			r, is := answer(t, got.Out["a"][0].Bytes)
			if !is {
				return false
			}
			ok = r.Cookie == 0
			private = asking(theClient, 0, r.Cookie, 0x2a)
		}
		return ok
	}
	if in(6) || in(0) {
		t.Error("a host in another VLAN has somebody shut out")
	}
	if !in(5) {
		t.Error("who has shown the right is refused")
	}
}
