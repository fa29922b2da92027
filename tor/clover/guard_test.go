package clover

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// as does do with another client address: requests come from there, and answers go there.
func (r *rig) as(client string, do func()) {
	was := r.client
	r.client = netip.MustParseAddr(client)
	do()
	r.client = was
}

// unharmed finishes what row3 began: the answer of 3 waits for that of 2, whose retransmission takes the way
// of the original, and then both clients get their answers.
func (r *rig) unharmed() {
	r.t.Helper()
	r.expect(r.linked(0x30, 109), "3 is linked behind 2, which is not")
	if at := r.target(r.casAt(0x20, 109, 0x9002, old)); at != entryAt(0x9001) {
		r.t.Errorf("the retransmission went to %#x", at)
	}
	r.expect(r.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109}, [2]uint32{0x30, 109})
	r.wrote(0x20, 110, 0x9004)
	if at := r.target(r.casAt(0x20, 111, 0x9004, old)); at != entryAt(0x9003) {
		r.t.Errorf("0x20's next append went to %#x", at)
	}
	r.expect(r.linked(0x20, 111), "4 is linked", [2]uint32{0x20, 111})
}

// Frames alone end, renumber and confirm nothing, whatever their sender, address and PSN are.
func TestSpoofed(t *testing.T) {
	many := uint32(3 * maxAhead)
	for name, spoof := range map[string]func(r *rig){
		"another address": func(r *rig) {
			r.as("10.77.0.66", func() {
				for i := range uint32(3) {
					r.readAt(0x20, 110+i, 0x10000)
					r.casAt(0x20, 5000+i, 0x9009, old)
				}
			})
		},
		"far ahead": func(r *rig) {
			for i := range many {
				r.readAt(0x20, 100000+i, 0x10000)
			}
		},
		"ahead, in no order": func(r *rig) {
			for i := range many {
				r.readAt(0x20, 1000+7*i, 0x10000)
			}
		},
		"far behind": func(r *rig) {
			for i := range many {
				r.readAt(0x20, 0xA00000+i, 0x10000)
			}
		},
		"behind": func(r *rig) {
			for i := range uint32(50) {
				r.readAt(0x20, 50+i, 0x10000)
				r.to(0x20, 50+i, hdr.CompareSwap, atomicETH(0x30000, r.rkey, r.swap(9, 1, 1), uint64(wire.Fresh(1))), nil)
			}
		},
		"another CAS under its PSN": func(r *rig) {
			if out := r.casAt(0x20, 109, 0x9009, old).Out["b"]; len(out) != 0 {
				r.t.Errorf("%d frames go on", len(out))
			}
		},
		"its CAS with another R_Key": func(r *rig) {
			if out := r.to(0x20, 109, hdr.CompareSwap, atomicETH(old, 99, r.swap(0x9002, 1, 1), uint64(wire.Fresh(1))), nil).Out["b"]; len(out) != 0 {
				r.t.Errorf("%d frames go on", len(out))
			}
		},
		"late, after two seconds": func(r *rig) {
			r.Advance(2 * time.Second)
			for i := range many {
				r.readAt(0x20, 100000+i, 0x10000)
			}
		},
		"the server's answers, from the clients' side": func(r *rig) {
			for _, qpn := range []uint32{0x20, 0x30} {
				ext := binary.BigEndian.AppendUint64(make([]byte, hdr.AETHLen), uint64(wire.Fresh(1)))
				r.Push("a", frameOf{src: r.server, dst: r.client, sport: uint16(0xC000 + qpn), op: hdr.AtomicAck, qpn: qpn + 0x1000, psn: 109, ext: ext}.bytes())
				nak := make([]byte, hdr.AETHLen)
				hdr.AETH(nak).SetSyndrome(hdr.SynNAKRemoteAccess)
				r.Push("a", frameOf{src: r.server, dst: r.client, sport: uint16(0xC000 + qpn), op: hdr.Acknowledge, qpn: qpn + 0x1000, psn: 109, ext: nak}.bytes())
			}
		},
		"an old NAK": func(r *rig) {
			r.from(0x20, 107, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := row3(t, graph.Args{"repair": "0"})
			spoof(r)
			r.unharmed()
			if r.Counter("chains-cut") != 0 {
				t.Error("a chain was cut")
			}
		})
	}
}

// Requests that went past the box, and those after them, are followed when the
// server has answered them.
func TestUnseen(t *testing.T) {
	r := row3(t, graph.Args{})
	r.linked(0x20, 109)
	r.linked(0x30, 109)
	for i := range uint32(4) { // 110 to 119 went unseen; four are on their way
		r.readAt(0x20, 120+i, 0x10000)
	}
	r.from(0x20, 121, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
	if psn := r.of(0x20).epsn; psn != 124 {
		t.Errorf("PSN %d is expected behind what is on its way", psn)
	}
	r.pair(0x20, 124) // answers count again
	r.wrote(0x20, 130, 0x9004)
	if at := r.target(r.casAt(0x20, 131, 0x9004, old)); at != entryAt(0x9003) {
		t.Errorf("behind what is on its way: sent to %#x", at)
	}
	r.linked(0x20, 131)
	r.from(0x20, 145, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size)) // 132 to 145 went unseen, all
	if r.steers(0x20, 146, 0x9005, entryAt(0x9004)) {
		t.Error("steered, though nobody knows where the server is")
	}
	if !r.steers(0x20, 148, 0x9006, entryAt(0x9004)) {
		t.Error("behind what is answered: not steered")
	}
}

// aeth is the AETH of an answer whose MSN is psn.
func aeth(psn uint32) []byte {
	h := hdr.AETH(make([]byte, hdr.AETHLen))
	h.SetMSN(psn)
	return h
}

// A client began anew, with the same addresses and numbers. The box follows it anew when the server answers
// nothing on the old requests, and no other client depends on them.
func TestReborn(t *testing.T) {
	r := row3(t, graph.Args{})
	r.linked(0x20, 109)
	r.linked(0x30, 109)
	r.Advance(2 * time.Second)
	psn := uint32(0x300000)
	for range maxAhead + 6 {
		r.Clock.Advance(time.Millisecond)
		r.readAt(0x20, psn, 0x10000)
		// Its queue pair has another number than before.
		r.Push("b", frameOf{src: r.server, dst: r.client, sport: 0xC020, op: hdr.ReadRespOnly, qpn: 0x7777, psn: psn, ext: aeth(psn), payload: make([]byte, r.size)}.bytes())
		psn++
	}
	r.casAt(0x20, psn, 0x9009, 0x30000)
	r.Push("b", frameOf{src: r.server, dst: r.client, sport: 0xC020, op: hdr.AtomicAck, qpn: 0x7777, psn: psn, ext: binary.BigEndian.AppendUint64(aeth(psn), uint64(wire.Fresh(1)))}.bytes())
	psn++
	p := make([]byte, r.size)
	wireEntry(p, key)
	r.to(0x20, psn, hdr.WriteOnly, reth(entryAt(0x9004), r.rkey, r.size), p)
	r.Push("b", frameOf{src: r.server, dst: r.client, sport: 0xC020, op: hdr.Acknowledge, qpn: 0x7777, psn: psn, ext: aeth(psn)}.bytes())
	if at := r.target(r.casAt(0x20, psn+1, 0x9004, old)); at != entryAt(0x9003) {
		t.Errorf("sent to %#x", at)
	}
}

// What may write and is not understood makes all unknown of that server.
func TestOpaque(t *testing.T) {
	cas := frameOf{src: netip.MustParseAddr("10.77.0.9"), dst: netip.MustParseAddr("10.77.0.1"), sport: 1, op: hdr.CompareSwap, qpn: 0x77, psn: 1,
		ext: atomicETH(entryAt(0x9001), 7, 1, 0)}.bytes()
	change := func(f func(b []byte)) []byte {
		b := bytes.Clone(cas)
		f(b)
		hdr.IPv4(b[14:34]).UpdateChecksum()
		return b
	}
	tags := append(append(bytes.Clone(cas[:12]), 0x88, 0xA8, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3), cas[12:]...)
	for name, b := range map[string][]byte{
		"fragment":         change(func(b []byte) { b[20] |= 0x20 }),
		"last fragment":    change(func(b []byte) { b[21] |= 3 }),
		"XRC opcode":       change(func(b []byte) { b[42] = 0xA0 | 0x1F }),
		"manufacturer's":   change(func(b []byte) { b[42] = 0xE3 }),
		"transport header": change(func(b []byte) { b[43] |= 1 }),
		"three tags":       tags,
	} {
		t.Run(name, func(t *testing.T) {
			r := crew(t, graph.Args{})
			r.wrote(0x10, 108, 0x9001)
			r.link(0x10, 109, 0x9001, old)
			r.linked(0x10, 109)
			r.wrote(0x20, 108, 0x9002)
			if out := only(t, r.Push("a", b).Out["b"]); !bytes.Equal(out, b) {
				t.Error("changed on its way")
			}
			if at := r.target(r.readAt(0x30, 108, entryAt(0x9001))); at != entryAt(0x9001) {
				t.Errorf("a READ was sent to %#x", at)
			}
			if at := r.target(r.casAt(0x20, 109, 0x9002, old)); at != old {
				t.Errorf("a CAS was sent to %#x", at)
			}
			r.linked(0x20, 109)
			r.believed(true, "an append since then")
			if r.Counter("doubts") != 1 {
				t.Errorf("doubted %d times", r.Counter("doubts"))
			}
		})
	}
	t.Run("an answer from before", func(t *testing.T) {
		r := crew(t, graph.Args{})
		r.wrote(0x10, 108, 0x9001)
		r.link(0x10, 109, 0x9001, old)
		r.Push("a", change(func(b []byte) { b[20] |= 0x20 }))
		r.linked(0x10, 109)
		r.wrote(0x20, 108, 0x9002)
		if at := r.target(r.casAt(0x20, 109, 0x9002, old)); at != old {
			t.Errorf("sent to %#x", at)
		}
	})
}

// A WRITE changes each entry that it reaches, wherever it begins, and whichever
// transport it comes by; and no other.
func TestRanges(t *testing.T) {
	at := entryAt(0x9001)
	for _, x := range []struct {
		name     string
		va       uint64
		n        uint32
		believed bool
	}{
		{"one byte", at, 1, false},
		{"the last byte of the word", at + 7, 1, false},
		{"behind the word", at + 8, 8, true},
		{"over it", at - 4, 6, false},
		{"up to it", at - 8, 8, true},
		{"all about it", at - 128, 512, false},
		{"a page about it", at - 2048, 4096, false},
		{"all of the memory", 0x1000, 1 << 31, false},
		{"around the end of all addresses", 0xFFFFFFFFFFFFFFF0, 32, false},
		{"an entry across two", at - 64, 128, false},
	} {
		for _, op := range []hdr.Opcode{hdr.WriteOnly, hdr.WriteFirst, hdr.WriteOnlyImm, hdr.UC | hdr.WriteOnly} {
			t.Run(x.name+"/"+op.String(), func(t *testing.T) {
				r := crew(t, graph.Args{})
				r.wrote(0x10, 108, 0x9001)
				r.link(0x10, 109, 0x9001, old)
				r.linked(0x10, 109)
				ext := reth(x.va, r.rkey, x.n)
				if op == hdr.WriteOnlyImm {
					ext = append(ext, 0, 0, 0, 0)
				}
				p := make([]byte, (min(x.n, 1024)+3)&^3)
				if len(p) >= wire.HeaderLen+wire.KeyLen {
					wireEntry(p, 77)
				}
				r.to(0x20, 108, op, ext, p)
				s := r.App().(*Steer)
				k := &s.keys.s[s.keys.find(0, key)]
				if got := k.known() && !s.doubted(k); got != x.believed {
					t.Errorf("believed is %v", got)
				}
			})
		}
	}
}

// Marks of congestion go with the frame that met it, and are not repeated.
func TestMarks(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newRig(t, graph.Args{})
		if v6 {
			r.client, r.server = netip.MustParseAddr("fd77::2"), netip.MustParseAddr("fd77::1")
		}
		r.warm(0x10, 100, entryAt(0x9100), 0x9100)
		r.warm(0x20, 100, entryAt(0x9110), 0x9110)
		r.wrote(0x10, 108, 0x9001)
		r.link(0x10, 109, 0x9001, old)
		r.linked(0x10, 109)
		r.wrote(0x20, 108, 0x9002)
		b := frameOf{src: r.client, dst: r.server, sport: 0xC020, op: hdr.CompareSwap, qpn: 0x20, psn: 109,
			ext: atomicETH(old, r.rkey, r.swap(0x9002, 1, 1), uint64(wire.Fresh(1)))}.bytes()
		var f hdr.Frame
		hdr.Parse(b, &f)
		tos := func(b []byte) uint8 {
			if v6 {
				return f.IPv6Of(b).TrafficClass()
			}
			if !f.ChecksumOK(b) {
				t.Error("the IP checksum is wrong")
			}
			return f.IPv4Of(b).TOS()
		}
		if v6 {
			f.IPv6Of(b).SetTrafficClass(0x6B)
		} else {
			f.IPv4Of(b).SetTOS(0x6B)
			f.IPv4Of(b).UpdateChecksum()
		}
		f.BTHOf(b)[4] = 0xC0
		if out := only(t, r.Push("a", b).Out["b"]); tos(out) != 0x6B || f.BTHOf(out)[4] != 0xC0 {
			t.Errorf("v6 %v: a mark was taken off: %#x", v6, tos(out))
		}
		again := only(t, r.Advance(30 * time.Millisecond).Out["b"])
		if tos(again) != 0x6A || f.BTHOf(again)[4] != 0 || hdr.ICRC(again, &f) != hdr.StoredICRC(again, &f) {
			t.Errorf("v6 %v: sent again with %#x", v6, tos(again))
		}
	}
}

// A frame that was changed has no UDP checksum, if it had one.
func TestUDPChecksum(t *testing.T) {
	sum := func(b []byte) uint16 { return binary.BigEndian.Uint16(b[14+20+6:]) }
	summed := func(f frameOf) []byte {
		b := f.bytes()
		binary.BigEndian.PutUint16(b[14+20+6:], 0x1234)
		return b
	}
	r := row3(t, graph.Args{"repair": "10ms", "recycled": "adjust", "clients": "trusted"})
	r.linked(0x20, 109)
	r.linked(0x30, 109)
	read := frameOf{src: r.client, dst: r.server, sport: 0xC010, op: hdr.ReadRequest, qpn: 0x10, psn: 110, ext: reth(entryAt(0x9001), r.rkey, 128)}
	out := only(t, r.Push("a", summed(read)).Out["b"])
	if got := sum(out); got != 0 || bytes.Equal(out[42:], read.bytes()[42:]) {
		t.Errorf("a READ left with checksum %#x", got)
	}
	p := make([]byte, 128)
	wireEntry(p, key)
	binary.LittleEndian.PutUint64(p, uint64(wire.Fresh(9)))
	back := only(t, r.Push("b", summed(frameOf{src: r.server, dst: r.client, sport: 0xC010, op: hdr.ReadRespOnly, qpn: 0x1010, psn: 110, ext: make([]byte, hdr.AETHLen), payload: p})).Out["a"])
	if got := sum(back); got != 0 {
		t.Errorf("its answer was changed and has checksum %#x", got)
	}
	r.wrote(0x20, 110, 0x9004)
	cas := summed(frameOf{src: r.client, dst: r.server, sport: 0xC020, op: hdr.CompareSwap, qpn: 0x20, psn: 111,
		ext: atomicETH(old, r.rkey, r.swap(0x9004, 1, 3), uint64(wire.Fresh(3)))})
	cas[5]++ // to another MAC address than before: the frame that the box sends again begins as this one does
	out = only(t, r.Push("a", cas).Out["b"])
	if got := sum(out); got != 0 {
		t.Errorf("a CAS left with checksum %#x", got)
	}
	if got := sum(only(t, r.Advance(15 * time.Millisecond).Out["b"])); got != 0 {
		t.Errorf("a CAS was sent again with checksum %#x", got)
	}
	ack := only(t, r.Push("b", summed(frameOf{src: r.server, dst: r.client, sport: 0xC020, op: hdr.AtomicAck, qpn: 0x1020, psn: 111,
		ext: binary.BigEndian.AppendUint64(make([]byte, hdr.AETHLen), uint64(wire.Fresh(1)))})).Out["a"])
	if got := sum(ack); got != 0 {
		t.Errorf("its answer was changed and has checksum %#x", got)
	}
	untouched := summed(frameOf{src: r.client, dst: r.server, sport: 0xC010, op: hdr.ReadRequest, qpn: 0x10, psn: 111, ext: reth(0x10000, r.rkey, 128)})
	if got := sum(only(t, r.Push("a", untouched).Out["b"])); got != 0x1234 {
		t.Errorf("a frame that passes has checksum %#x", got)
	}
}

// A CAS is sent again only when the server would take it: ahead of its turn the
// server would refuse it, and the client would lose a repetition. It is not given
// up while its client may still ask.
func TestPatience(t *testing.T) {
	r := row3(t, graph.Args{"repair": "10ms", "clients": "trusted"})
	r.linked(0x20, 109)
	r.linked(0x30, 109)
	r.wrote(0x10, 110, 0x9004)
	r.to(0x10, 111, hdr.SendOnly, nil, make([]byte, 64)) // the server has no buffer for it
	if at := r.target(r.casAt(0x10, 112, 0x9004, old)); at != entryAt(0x9003) {
		t.Fatalf("sent to %#x", at)
	}
	r.from(0x10, 111, hdr.Acknowledge, hdr.Syndrome(0x20|20), 0, nil) // RNR NAK
	if n := len(r.Advance(700 * time.Millisecond).Out["b"]); n != 0 {
		t.Errorf("sent again %d times behind what the server does not take", n)
	}
	if at := r.target(r.casAt(0x10, 112, 0x9004, old)); at != entryAt(0x9003) {
		t.Errorf("the client's repetition went to %#x", at)
	}
	r.Advance(time.Minute)
	r.expect(r.linked(0x10, 112), "answered after a minute", [2]uint32{0x10, 112})
	if r.Counter("chains-cut") != 0 {
		t.Error("cut while the client may still ask")
	}
}

// Each CAS that stays unanswered is sent again under its own PSN, and more and
// more seldom.
func TestRepairSlows(t *testing.T) {
	r := steered(t, graph.Args{"repair": "10ms"})
	r.staleCAS(1)
	for _, x := range []struct {
		after time.Duration
		n     uint64
	}{{200 * time.Millisecond, 5}, {time.Second, 7}, {20 * time.Second, maxRepairs}} {
		r.Advance(x.after)
		if n := r.Counter("repaired"); n > x.n || n+2 < x.n {
			t.Errorf("%v on: sent again %d times, want about %d", x.after, n, x.n)
		}
	}
}

// The one that is missing is sent again, not the newest.
func TestRepairedOlder(t *testing.T) {
	r := row3(t, graph.Args{"repair": "10ms"})
	r.wrote(0x20, 110, 0x9004)
	if at := r.target(r.casAt(0x20, 111, 0x9004, old)); at != entryAt(0x9003) {
		t.Fatalf("sent to %#x", at)
	}
	r.linked(0x30, 109)
	for _, x := range r.Advance(15 * time.Millisecond).Out["b"] {
		var f hdr.Frame
		hdr.Parse(x.Bytes, &f)
		if h := f.BTHOf(x.Bytes); h.DestQP() == 0x20 && (h.PSN() == 109) != (wire.Pointer(f.AtomicETHOf(x.Bytes).Swap()).LH() == 0x9002) {
			t.Errorf("PSN %d links %#x", h.PSN(), wire.Pointer(f.AtomicETHOf(x.Bytes).Swap()).LH())
		}
	}
	if r.Counter("repaired") == 0 {
		t.Error("nothing was sent again")
	}
}
