package clover

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// A client sends a request in fragments, which the server joins again and does not acknowledge, as it does not ask for that. The CAS that it sends with the same PSN is no news to the
// server, which throws it away. Nobody is led behind it.
func TestAttack5CASBehindFragments(t *testing.T) {
	for _, fragments := range []bool{true, false} {
		r := crew(t, graph.Args{})
		r.wrote(0x20, 108, 0x9002)
		if fragments {
			whole := frameOf{src: r.client, dst: r.server, sport: 0xC020, op: hdr.WriteOnly, qpn: 0x20, psn: 109, ext: reth(0x30000, r.rkey, 8), payload: make([]byte, 8)}.bytes()
			for _, part := range [][2]int{{34, 58}, {58, len(whole)}} {
				b := append(append([]byte(nil), whole[:34]...), whole[part[0]:part[1]]...)
				off := uint16(part[0]-34) / 8
				if part[1] < len(whole) {
					off |= 0x2000
				}
				binary.BigEndian.PutUint16(b[20:], off)
				ip := hdr.IPv4(b[14:34])
				ip.SetTotalLen(uint16(len(b) - 14))
				ip.UpdateChecksum()
				only(t, r.Push("a", b).Out["b"])
			}
			r.Advance(20 * time.Millisecond)
		}
		r.wrote(0x10, 108, 0x9001)
		r.link(0x10, 109, 0x9001, old)
		r.linked(0x10, 109)
		r.wrote(0x30, 108, 0x9003)
		if at := r.link(0x20, 109, 0x9002, old); at != entryAt(0x9001) {
			t.Logf("it is not steered, but sent to %#x", at)
		}
		at := r.link(0x30, 109, 0x9003, old)
		if at != entryAt(0x9002) {
			t.Logf("nobody is led behind it, but sent to %#x", at)
			continue
		}
		if !fragments {
			continue
		}
		got := len(r.linked(0x30, 109).Out["a"]) // the server links it to the entry that is written, and in no chain
		for range 500 {
			got += len(r.Advance(20 * time.Millisecond).Out["a"])
		}
		t.Errorf("another is led behind it; of its answers %d have come within 10 s", got)
	}
}
