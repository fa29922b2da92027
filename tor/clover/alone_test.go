package clover

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// away has the key's tail be entry 1, and entry 2 written by 0x20, whose CAS is due at PSN 109.
func away(t *testing.T, args graph.Args) *rig {
	t.Helper()
	r := crew(t, args)
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.wrote(0x20, 108, 0x9002)
	r.wrote(0x30, 108, 0x9003)
	return r
}

// A CAS is steered, and others are led behind it, only when nothing that its client sends can keep it from being
// executed. What may: a request in front of it that is refused, or that it is in the middle of.
func TestNobodyBehindWhatMayBeRefused(t *testing.T) {
	read := func(r *rig, psn, rkey, size uint32) {
		r.to(0x20, psn, hdr.ReadRequest, reth(0x10000, rkey, size), nil)
	}
	for name, front := range map[string]func(r *rig) (psn uint32){
		"a READ":                     func(r *rig) uint32 { read(r, 109, r.rkey, r.size); return 110 },
		"a READ under another R_Key": func(r *rig) uint32 { read(r, 109, r.rkey+1, r.size); return 110 },
		"a SEND":                     func(r *rig) uint32 { r.to(0x20, 109, hdr.SendOnly, nil, make([]byte, 64)); return 110 },
		"a READ that is not answered yet": func(r *rig) uint32 { // its answer has more packets than the app can know of
			read(r, 109, r.rkey, 512)
			r.from(0x20, 109, hdr.ReadRespFirst, hdr.SynACK, 0, make([]byte, 256))
			return 110
		},
		"the first packet of a WRITE": func(r *rig) uint32 {
			r.to(0x20, 109, hdr.WriteFirst, reth(0x20000, r.rkey, 512), make([]byte, 256))
			r.from(0x20, 109, hdr.Acknowledge, hdr.SynACK, 0, nil)
			return 110
		},
		"the first packet of a SEND, which went unseen": func(r *rig) uint32 {
			r.from(0x20, 109, hdr.Acknowledge, hdr.SynACK, 0, nil)
			return 110
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, args := range []graph.Args{{}, {"clients": "trusted"}} {
				r := away(t, args)
				psn := front(r)
				trusted := args["clients"] != ""
				if at := r.link(0x20, psn, 0x9002, old); (at != old) != trusted {
					t.Errorf("%v: sent to %#x", args, at)
				}
				if at := r.link(0x30, 109, 0x9003, old); (at == entryAt(0x9002)) != trusted {
					t.Errorf("%v: another is sent to %#x", args, at)
				}
				if n := r.Counter("unproven"); (n != 0) != !trusted {
					t.Errorf("%v: %d are counted", args, n)
				}
			}
		})
	}
}

// When all in front of it was answered, a CAS is steered: also behind a WRITE of several packets, and a READ.
func TestSteeredBehindAnswered(t *testing.T) {
	r := away(t, graph.Args{})
	r.to(0x20, 109, hdr.ReadRequest, reth(0x10000, r.rkey, r.size), nil)
	r.from(0x20, 109, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
	r.to(0x20, 110, hdr.WriteFirst, reth(0x20000, r.rkey, 512), make([]byte, 256))
	r.to(0x20, 111, hdr.WriteLast, nil, make([]byte, 256))
	r.from(0x20, 111, hdr.Acknowledge, hdr.SynACK, 0, nil)
	if at := r.link(0x20, 112, 0x9002, old); at != entryAt(0x9001) {
		t.Errorf("sent to %#x", at)
	}
	if at := r.link(0x30, 109, 0x9003, old); at != entryAt(0x9002) {
		t.Errorf("another is sent to %#x", at)
	}
}

// The first atomic of a connection under an R_Key, and one in a frame that takes another way than the proven
// ones, may be refused, or reach no server.
func TestFirstAtomic(t *testing.T) {
	r := away(t, graph.Args{})
	r.pair(0x40, 102)
	r.wrote(0x40, 108, 0x9004)
	if at := r.link(0x40, 109, 0x9004, old); at != old {
		t.Errorf("the first atomic of a connection is sent to %#x", at)
	}
	r.refused(0x40, 109)
	if !r.steers(0x40, 110, 0x9005, entryAt(0x9001)) {
		t.Error("the second one is not steered")
	}
	r.rkey++
	r.prove(0x20, 109)
	r.rkey--
	if r.steers(0x20, 110, 0x9006, entryAt(0x9005)) {
		t.Error("the first atomic after one under another R_Key is steered")
	}
}

// A CAS in a frame that the server's NIC does not take is not steered: with another destination or P_Key than one that
// was executed. One that came in two ways shows neither of them.
func TestOtherWay(t *testing.T) {
	swap := func(r *rig, psn uint32, change func(b []byte), va uint64, lh uint32) uint64 {
		b := frameOf{src: r.client, dst: r.server, sport: 0xC020, op: hdr.CompareSwap, qpn: 0x20, psn: psn, ext: atomicETH(va, r.rkey, r.swap(lh, 1, 1), uint64(wire.Fresh(1))), ackReq: true}.bytes()
		change(b)
		var f hdr.Frame
		hdr.Parse(b, &f)
		hdr.SetICRC(b, &f)
		r.Clock.Advance(time.Microsecond)
		return atomicOf(r.t, only(r.t, r.Push("a", b).Out["b"])).VA()
	}
	ways := map[string]func(b []byte){"MAC address": func(b []byte) { b[5]++ }, "P_Key": func(b []byte) { binary.BigEndian.PutUint16(b[hdr.PlainBTH+2:], 0x7777) }}
	for name, other := range ways {
		r := away(t, graph.Args{})
		if at := swap(r, 109, other, old, 0x9002); at != old {
			t.Errorf("another %s: sent to %#x", name, at)
		}
		// It is sent as ever, and executed; then the first way comes again, as if it was that.
		r = away(t, graph.Args{})
		swap(r, 109, other, 0x10000, 0x9100)
		swap(r, 109, func([]byte) {}, 0x10000, 0x9100)
		r.linked(0x20, 109)
		r.wrote(0x20, 110, 0x9004)
		if at := swap(r, 111, other, old, 0x9004); at != old {
			t.Errorf("another %s, sent before in two ways: sent to %#x", name, at)
		}
	}
}

// A CAS that its client sends not far enough is sent again as far as others.
func TestRepairGoesFar(t *testing.T) {
	r := away(t, graph.Args{"repair": "10ms"})
	b := frameOf{src: r.client, dst: r.server, sport: 0xC020, op: hdr.CompareSwap, qpn: 0x20, psn: 109, ext: atomicETH(old, r.rkey, r.swap(0x9002, 1, 1), uint64(wire.Fresh(1))), ackReq: true}.bytes()
	ip := hdr.IPv4(b[hdr.EthernetLen:][:hdr.IPv4Len])
	ip.SetTTL(1)
	ip.UpdateChecksum()
	if at := atomicOf(t, only(t, r.Push("a", b).Out["b"])).VA(); at != entryAt(0x9001) {
		t.Fatalf("sent to %#x", at)
	}
	got := only(t, r.Advance(20 * time.Millisecond).Out["b"])
	var f hdr.Frame
	if flaw := hdr.Examine(got, &f); flaw != hdr.NoFlaw || f.IPv4Of(got).TTL() != hops || atomicOf(t, got).VA() != entryAt(0x9001) {
		t.Errorf("flaw %v, TTL %d", flaw, f.IPv4Of(got).TTL())
	}
}
