package clover

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// A client sends a request in fragments, which the server joins again and does not acknowledge, as it does not ask for that. The CAS that it sends with the same PSN is no news to the
// server, which throws it away. Nobody is led behind it.
func TestAttack5CASBehindFragments(t *testing.T) {
	for _, fragments := range []bool{true, false} {
		r := crew(t, graph.Args{})
		r.wrote(0x20, 108, 0x9002)
		crossed := 0
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
				crossed += len(r.Push("a", b).Out["b"])
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
		if crossed < 2 {
			continue
		}
		got := len(r.linked(0x30, 109).Out["a"]) // the server links it to the entry that is written, and in no chain
		for range 500 {
			got += len(r.Advance(20 * time.Millisecond).Out["a"])
		}
		t.Errorf("another is led behind it; of its answers %d have come within 10 s", got)
	}
}

// A CAS comes from a group MAC address, and switches throw such frames away (IEEE 802.1Q: no station has such
// a source address). No other CAS is led behind it: otherwise the CAS that the box sends again would come
// from the client's own address.
func TestAttack5FromGroup(t *testing.T) {
	for _, own := range []bool{true, false} {
		r := away(t, graph.Args{"repair": "10ms"})
		lost := func(b []byte) bool { return b[6]&1 != 0 } // at the switch behind the box
		b := frameOf{src: r.client, dst: r.server, sport: 0xC020, op: hdr.CompareSwap, qpn: 0x20, psn: 109, ext: atomicETH(old, r.rkey, r.swap(0x9002, 1, 1), uint64(wire.Fresh(1))), ackReq: true}.bytes()
		if !own {
			b[6] |= 1
		}
		r.Clock.Advance(time.Microsecond)
		got := 0
		if !lost(only(t, r.Push("a", b).Out["b"])) {
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
				if again++; !lost(p.Bytes) {
					got++
				}
			}
		}
		t.Logf("led %v, sent again %d times", led, again)
		if led && got == 0 {
			t.Error("another is led behind a request that no switch lets through, however often it is sent")
		}
	}
}

// A client's machine is started again. Its queue pair has the old number, another queue pair at the server,
// and counts from the same PSN on, as Clover's do. Its READs, over a connection that the box does not follow
// yet, come back as the server has the data.
func TestAttack5NumberComesBack(t *testing.T) {
	for _, quiet := range []time.Duration{time.Millisecond, 2 * time.Second, time.Minute} {
		r := away(t, graph.Args{})
		r.link(0x20, 109, 0x9002, old)
		r.linked(0x20, 109)
		at := entryAt(0x9001)
		got := only(t, r.to(0x30, 109, hdr.ReadRequest, reth(at, r.rkey, r.size), nil).Out["b"])
		var f hdr.Frame
		hdr.Parse(got, &f)
		t.Logf("a READ of %#x goes to %#x", at, f.RETHOf(got).VA())
		p := make([]byte, r.size)
		wireEntry(p, key)
		r.from(0x30, 109, hdr.ReadRespOnly, hdr.SynACK, 0, p)
		r.wrote(0x10, 110, 0x9004) // the key goes on
		r.link(0x10, 111, 0x9004, entryAt(0x9002))
		r.linked(0x10, 111)
		r.Advance(quiet)
		data := make([]byte, r.size)
		for i := range data {
			data[i] = 0x5A
		}
		for psn := uint32(100); psn < 112; psn++ { // of queue pair 0x77, for the client's 0x1030
			r.to(0x77, psn, hdr.ReadRequest, reth(0x40000, r.rkey, r.size), nil)
			out := r.from(0x30, psn, hdr.ReadRespOnly, hdr.SynACK, 0, data).Out["a"]
			if len(out) != 1 {
				t.Errorf("after %v, PSN %d: %d frames of the answer", quiet, psn, len(out))
				continue
			}
			b := only(t, out)
			hdr.Parse(b, &f)
			if p := f.PayloadOf(b); string(p) != string(data) {
				t.Errorf("after %v, PSN %d: the READ finds % x, and % x is there", quiet, psn, p[:8], data[:8])
			}
		}
	}
}
