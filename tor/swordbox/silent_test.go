package swordbox

import (
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// twoNICs is a server with two NICs. Clients a and b share a connection of the first one, which falls silent with a WRITE in the place of
// b's atomic under way. Client c of the other one wants the word, and d keeps that NIC answering.
type twoNICs struct {
	*rig
	a, b, c, d *party
	asks       bool       // c's atomic was sent
	writes     clock.Time // when the WRITE was last sent again
	mac        [6]byte
	busy       clock.Duration // how often d writes; 0: never
	miss       func()         // frames cross without the box
}

func newTwoNICs(t *testing.T) *twoNICs {
	r, miss := lateRig(t, twoNICsArgs)
	return twoNICsOf(t, r, miss)
}

var twoNICsArgs = graph.Args{"servers": "10.9.0.1=10.9.0.2", "alive": "100ms", "giveup": "400ms", "settle": "20s"}

func twoNICsOf(t *testing.T, r *rig, miss func()) *twoNICs {
	s := &twoNICs{rig: r, busy: 250e6, miss: miss}
	s.mac = s.serverMAC
	s.at(1)
	s.a, s.b = s.join(), s.join()
	s.at(2)
	s.c, s.d = s.client().connect().proven(), s.client().connect().proven()
	s.at(1)
	s.b.learn(s.a, 0x7010, 7)
	s.b.learn(s.a, 0x7008, 7)
	// The connection has carried something for longer than giveup=, and was heard.
	one(t, s.a.write(0x5000, 1).Out["b"])
	for range 20 {
		s.Advance(50 * time.Millisecond)
		one(t, s.a.write(0x5000, 2).Out["b"])
		one(t, s.a.ack().Out["a"])
	}
	one(t, s.b.cas(0x7008, 7, 27).Out["b"])
	one(t, s.a.ack().Out["a"])
	s.at(2)
	if out := s.c.cas(0x7008, 27, 28).Out["b"]; len(out) > 0 {
		t.Fatal("an operation passes a WRITE in the place of an atomic over another NIC")
	}
	return s
}

// at is the NIC that the rig speaks for.
func (s *twoNICs) at(nic byte) {
	s.server, s.serverMAC = netip.AddrFrom4([4]byte{10, 9, 0, nic}), s.mac
	s.serverMAC[5] = nic
}

// pass lets time pass, and notes what the box sends.
func (s *twoNICs) pass(d time.Duration) {
	s.t.Helper()
	const step = 50 * time.Millisecond
	for range d / step {
		out := s.Advance(step).Out["b"]
		if s.at(2); s.busy != 0 && s.Clock.Now()%clock.Time(s.busy) < clock.Time(step) {
			out = append(out, s.d.write(0x5000, 1).Out["b"]...)
			s.d.ack()
		}
		if s.Clock.Now()%clock.Time(time.Second) < clock.Time(step) { // its client asks again
			out = append(out, s.Push("a", s.c.made(hdr.CompareSwap, s.c.psn-1, atomicETH(0x7008, testRKey, 28, 27), nil)).Out["b"]...)
			s.at(1)
			out = append(out, s.Push("a", s.b.made(hdr.CompareSwap, s.b.psn-1, atomicETH(0x7008, testRKey, 27, 7), nil)).Out["b"]...)
		}
		for _, f := range out {
			var h hdr.Frame
			hdr.Parse(f.Bytes, &h)
			switch op := h.Op; {
			case op == hdr.WriteOnly && h.RETHOf(f.Bytes).VA()&^0x10 == 0x7008 && h.RETHOf(f.Bytes).DMALength() != 0:
				s.writes = s.Clock.Now()
			case op == hdr.CompareSwap && queuePair(f.Bytes) == s.c.sqpn:
				s.asks = true
			}
		}
	}
}

// A NIC is silent for good. The box ceases to send the WRITE again, and when no copy of it can be under way any more the other NIC's client
// reaches the word. When the NIC is there again it is asked what it has executed.
func TestWordOfASilentNIC(t *testing.T) {
	for _, executed := range []bool{true, false} {
		s := newTwoNICs(t)
		began := s.Clock.Now()
		s.pass(29 * time.Second)
		if s.Clock.Now().Sub(s.writes) > clock.Duration(time.Second) {
			t.Fatal("the WRITE is not sent again while the NIC may only pause")
		}
		s.pass(40 * time.Second)
		if s.writes.Sub(began) > clock.Duration(32*time.Second) {
			t.Fatalf("the WRITE is sent again after %v", s.writes.Sub(began))
		}
		s.pass(48 * time.Second)
		if s.asks {
			t.Fatalf("the word is free %v after a copy of the WRITE", s.Clock.Now().Sub(s.writes))
		}
		if s.pass(5 * time.Second); !s.asks {
			t.Fatal("a word waits for a NIC that is silent")
		}
		s.at(2)
		one(t, s.c.atomicAck(27).Out["a"])
		s.pass(time.Second)
		// The NIC is there again.
		s.at(1)
		if last := s.writes; executed {
			s.a.spsn++ // the question
			s.a.smsn++
			got := s.a.answer(hdr.Acknowledge, nil, nil).Out["a"]
			same(t, got, s.b.response(hdr.AtomicAck, s.b.psn-1, append(aeth(hdr.SynACK, s.b.msn+1), 0, 0, 0, 0, 0, 0, 0, 7), nil))
			if s.pass(time.Second); s.writes != last {
				t.Error("the WRITE is sent again")
			}
		} else {
			got := s.a.nak(s.a.spsn, hdr.SynNAKSequence)
			same(t, got.Out["a"], s.b.nakTo(s.b.psn-1, s.b.msn, hdr.SynNAKSequence))
			if s.writes != last {
				t.Error("the WRITE is sent again")
			}
		}
		if n := (*s.box().nodes.Load())[0]; n.words.writes != 0 {
			t.Errorf("%d WRITEs in the place of atomics count as under way", n.words.writes)
		}
	}
}

// A NIC pauses for longer than mostPause, and for less than lifetime. The operation goes on.
func TestNICComesBack(t *testing.T) {
	s := newTwoNICs(t)
	s.pass(60 * time.Second)
	last := s.writes
	s.at(1)
	s.Push("b", s.a.response(hdr.Acknowledge, s.a.spsn-1, aeth(hdr.SynACK, s.a.smsn), nil)) // to a question
	s.pass(time.Second)
	if s.writes == last {
		t.Fatal("the WRITE is not sent again")
	}
	if s.asks {
		t.Fatal("the word was not held")
	}
	s.at(1)
	one(t, s.a.ack().Out["a"])
	if s.pass(time.Second); !s.asks {
		t.Fatal("the word is not free")
	}
}

// Nothing is heard of the other NIC: the server may pause, and no word is released.
func TestServerOfTwoNICsIsSilent(t *testing.T) {
	s := newTwoNICs(t)
	s.pass(20 * time.Second)
	s.busy = 0
	s.pass(300 * time.Second)
	if s.asks || s.Clock.Now().Sub(s.writes) > clock.Duration(time.Second) {
		t.Error("the word is free")
	}
}

// To a NIC that is silent for long, atomics of its clients go as atomics: no word is held again.
func TestNoWriteToAMuteNIC(t *testing.T) {
	s := newTwoNICs(t)
	s.at(1)
	e := s.client().connect().proven()
	s.pass(40 * time.Second)
	s.at(1)
	same(t, e.cas(0x7010, 7, 8).Out["b"], e.moved(e, hdr.CompareSwap, e.spsn, atomicETH(0x7010, testRKey, 8, 7), nil))
}

// Frames cross without the box while it has ceased to send a WRITE again, or shortly before, and may change the word. The NIC is asked when it is heard
// again: the WRITE would undo them.
func TestFramesCrossAndANICComesBack(t *testing.T) {
	for _, before := range []time.Duration{20 * time.Second, 45 * time.Second} {
		s := newTwoNICs(t)
		s.pass(before)
		s.miss()
		s.pass(65*time.Second - before)
		last := s.writes
		s.at(1)
		s.Push("b", s.a.response(hdr.Acknowledge, s.a.spsn-1, aeth(hdr.SynACK, s.a.smsn), nil)) // to a question of whether the NIC is there
		s.pass(time.Second)
		if s.writes != last {
			t.Errorf("frames crossed after %v: the WRITE is sent again, and the server was not asked", before)
		}
		s.at(1)
		same(t, s.a.nak(s.a.spsn, hdr.SynNAKSequence).Out["a"], s.b.nakTo(s.b.psn-1, s.b.msn, hdr.SynNAKSequence))
	}
}

// The NIC was silent, and has answered everything. Frames cross without the box behind the next WRITE in the place of an atomic: the NIC is asked.
func TestFramesCrossBehindASilentNIC(t *testing.T) {
	s := newTwoNICs(t)
	s.pass(40 * time.Second)
	s.at(1)
	one(t, s.a.ack().Out["a"]) // of the WRITE
	s.at(1)
	s.b.learn(s.a, 0x7018, 7)
	out := s.b.cas(0x7018, 7, 8).Out["b"]
	if b := one(t, out); queuePair(b) != s.a.sqpn || hdr.Opcode(b[hdr.EthernetLen+hdr.IPv4Len+hdr.UDPLen]) != hdr.WriteOnly {
		t.Fatal(text(b))
	}
	last := s.writes
	s.miss()
	if s.pass(time.Second); s.writes != last {
		t.Error("the WRITE is sent again, and the server was not asked")
	}
}

// The process is stopped for longer than a frame can be under way. What it sent last may leave only when it goes on, so the time begins then.
func TestStoppedWhileANICIsSilent(t *testing.T) {
	s := newTwoNICs(t)
	s.pass(40 * time.Second)
	s.Clock.Set(s.Clock.Now().Add(100 * time.Second))
	if s.pass(50 * time.Second); s.asks {
		t.Error("a copy of the WRITE may be under way")
	}
	if s.pass(50 * time.Second); !s.asks {
		t.Error("the word is not free")
	}
}

// The clients of a silent NIC leave. What they say alone frees no word, because the NIC may still execute the WRITE. When the server's connection manager
// has said that the connections are over, their queue pairs execute nothing more, and the word is free.
func TestClientsLeaveASilentNIC(t *testing.T) {
	for _, said := range []bool{false, true} {
		s := newTwoNICs(t)
		s.pass(5 * time.Second)
		s.at(1)
		for _, c := range []*party{s.b, s.a} {
			s.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn}))
			if said {
				s.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply}))
			}
		}
		if s.pass(90 * time.Second); s.asks != said {
			t.Errorf("the server has said that the connections are over: %v; the word is free: %v", said, s.asks)
		}
		if s.pass(40 * time.Second); !s.asks {
			t.Error("the word is not free")
		}
	}
}

// The process is started again while a NIC is silent. A word that was held is held, and one that was released is not held again. When the NIC is there
// again it is asked what it has executed.
func TestStartedAnewWhileANICIsSilent(t *testing.T) {
	for _, released := range []bool{false, true} {
		r, k := keeping(t, twoNICsArgs)
		s := twoNICsOf(t, r, nil)
		s.pass(60 * time.Second)
		if released {
			if s.pass(60 * time.Second); !s.asks {
				t.Fatal("the word is not free")
			}
			s.at(2)
			one(t, s.c.atomicAck(27).Out["a"])
		}
		s.restart(k, false, time.Millisecond, nil)
		s.asks = false
		last := s.writes
		s.pass(21 * time.Second) // settle=
		s.at(2)
		if !released {
			if s.asks {
				t.Error("a word that was held is free")
			}
			continue
		}
		if out := s.c.cas(0x7008, 28, 29).Out["b"]; len(out) != 1 {
			t.Error("a word that was free is held")
		} else {
			one(t, s.c.atomicAck(28).Out["a"])
		}
		s.at(1)
		s.Push("b", s.a.response(hdr.Acknowledge, s.a.spsn-1, aeth(hdr.SynACK, s.a.smsn), nil)) // to a question of whether the NIC is there
		if s.pass(time.Second); s.writes != last {
			t.Error("the WRITE is sent again, and the server was not asked")
		}
		s.at(1)
		same(t, s.a.nak(s.a.spsn, hdr.SynNAKSequence).Out["a"], s.b.nakTo(s.b.psn-1, s.b.msn, hdr.SynNAKSequence))
		if n := (*s.box().nodes.Load())[0]; n.words.writes != 0 {
			t.Errorf("%d WRITEs in the place of atomics count as under way", n.words.writes)
		}
	}
}
