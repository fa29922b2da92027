package clover

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// The TTL of a CAS ends at the router in front of the server. No other CAS is led behind it: otherwise the
// CAS that the box sends again would get there.
func TestAttack4ShortLived(t *testing.T) {
	r := away(t, graph.Args{"repair": "10ms"})
	short := func(b []byte) bool { return b[22] < 2 } // what a router behind the box drops
	b := frameOf{src: r.client, dst: r.server, sport: 0xC020, op: hdr.CompareSwap, qpn: 0x20, psn: 109, ext: atomicETH(old, r.rkey, r.swap(0x9002, 1, 1), uint64(wire.Fresh(1))), ackReq: true}.bytes()
	ip := hdr.IPv4(b[14:34])
	ip.SetTTL(1)
	ip.UpdateChecksum()
	r.Clock.Advance(time.Microsecond)
	x := only(t, r.Push("a", b).Out["b"])
	got := 0
	if !short(x) {
		got++
	}
	led := r.link(0x30, 109, 0x9003, old) == entryAt(0x9002)
	again := 0
	for range 30 {
		for _, p := range r.Advance(20 * time.Millisecond).Out["b"] {
			var f hdr.Frame
			if hdr.Parse(p.Bytes, &f) != hdr.IsRoCE || f.BTHOf(p.Bytes).DestQP() != 0x20 {
				continue
			}
			again++
			if !short(p.Bytes) {
				got++
			}
		}
	}
	t.Logf("led %v, sent again %d times", led, again)
	if led && got == 0 {
		t.Error("another is led behind a request that no router lets through, however often it is sent")
	}
}
