package swordbox

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// change is b after do, with a right ICRC.
func change(b []byte, do func(b []byte, f *hdr.Frame)) []byte {
	b = bytes.Clone(b)
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE {
		return b
	}
	do(b, &f)
	if f.Net == hdr.NetIPv4 {
		f.IPv4Of(b).UpdateChecksum()
	}
	hdr.SetICRC(b, &f)
	return b
}

// knows reports whether the box believes to know the word at va.
func (r *rig) knows(va uint64) bool {
	n := (*r.App().(*Box).nodes.Load())[0]
	w := n.words.find(va)
	return w != none && n.words.believes(&n.words.w[w])
}

// TestGuards: a frame that is not as it should be never moves, and never completes or answers an operation of
// another client. It is counted, and with guard=drop dropped.
func TestGuards(t *testing.T) {
	const va = 0x7000
	type want struct {
		reason string
		passes bool // with guard=pass, unchanged
		guard  bool // with guard=drop, dropped
	}
	for name, x := range map[string]struct {
		in   string
		want want
		make func(r *rig, a, b, c *party) []byte
	}{
		"a request from another address": {"a", want{"spoofed", true, true}, func(r *rig, a, b, c *party) []byte {
			return change(b.made(hdr.WriteOnly, b.psn, reth(va, testRKey, 8), little(66)), func(p []byte, f *hdr.Frame) {
				binary.BigEndian.PutUint32(p[26:], 0x0A090099)
			})
		}},
		"a request for another client's queue pair": {"a", want{"spoofed", true, true}, func(r *rig, a, b, c *party) []byte {
			return change(b.made(hdr.WriteOnly, c.psn, reth(va, testRKey, 8), little(66)), func(p []byte, f *hdr.Frame) {
				f.BTHOf(p).SetDestQP(c.sqpn)
			})
		}},
		"an answer from another address": {"b", want{"", true, false}, func(r *rig, a, b, c *party) []byte {
			return change(a.response(hdr.Acknowledge, a.spsn, aeth(hdr.SynACK, a.smsn+1), nil), func(p []byte, f *hdr.Frame) {
				binary.BigEndian.PutUint32(p[26:], 0x0A090099)
			})
		}},
		"an answer for another client's queue pair": {"b", want{"", true, false}, func(r *rig, a, b, c *party) []byte {
			return c.response(hdr.Acknowledge, a.spsn, aeth(hdr.SynACK, a.smsn+1), nil)
		}},
		"an answer to nothing": {"b", want{"bad-psn", false, true}, func(r *rig, a, b, c *party) []byte {
			return a.response(hdr.Acknowledge, a.spsn+2, aeth(hdr.SynACK, a.smsn+3), nil)
		}},
		"an ATOMIC ACK to nothing": {"b", want{"bad-psn", false, true}, func(r *rig, a, b, c *party) []byte {
			return a.response(hdr.AtomicAck, a.spsn+7, binary.BigEndian.AppendUint64(aeth(hdr.SynACK, 9), 66), nil)
		}},
		"a refusal of nothing": {"b", want{"bad-psn", false, true}, func(r *rig, a, b, c *party) []byte {
			return a.response(hdr.Acknowledge, a.spsn+9, aeth(hdr.SynNAKRemoteAccess, 9), nil)
		}},
		"an old acknowledgement": {"b", want{"absorbed", false, false}, func(r *rig, a, b, c *party) []byte {
			return a.response(hdr.Acknowledge, a.spsn-1, aeth(hdr.SynACK, a.smsn), nil)
		}},
		"an old refusal": {"b", want{"absorbed", false, false}, func(r *rig, a, b, c *party) []byte {
			return a.response(hdr.Acknowledge, a.spsn-1, aeth(hdr.SynNAKRemoteAccess, a.smsn), nil)
		}},
		"a replayed request": {"a", want{"answered-here", false, false}, func(r *rig, a, b, c *party) []byte {
			return b.made(hdr.CompareSwap, b.psn-2, atomicETH(va, testRKey, 2, 2), nil)
		}},
		"a request ahead of its turn": {"a", want{"psn-gap", false, false}, func(r *rig, a, b, c *party) []byte {
			return c.made(hdr.WriteOnly, c.psn+5, reth(va, testRKey, 8), little(66))
		}},
		"another request with a PSN that was used": {"a", want{"bad-repeat", false, false}, func(r *rig, a, b, c *party) []byte {
			return b.made(hdr.ReadRequest, b.psn-1, reth(va, testRKey, 8), nil)
		}},
		"a DisconnectRequest from another": {"a", want{"forged-cm", true, true}, func(r *rig, a, b, c *party) []byte {
			return change(a.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: a.sqpn}), func(p []byte, f *hdr.Frame) {
				binary.BigEndian.PutUint32(p[26:], 0x0A090099)
			})
		}},
		"a DisconnectRequest for another queue pair": {"a", want{"forged-cm", true, true}, func(r *rig, a, b, c *party) []byte {
			return a.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: b.sqpn})
		}},
		"a DisconnectReply without a request": {"b", want{"forged-cm", true, true}, func(r *rig, a, b, c *party) []byte {
			return a.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})
		}},
		"a ConnectReply that nobody asked for": {"b", want{"forged-cm", true, true}, func(r *rig, a, b, c *party) []byte {
			return a.cm(false, hdr.CMFields{AttributeID: hdr.ConnectReply, LocalQPN: 0x999, StartingPSN: 5})
		}},
		"a DisconnectRequest about no connection": {"a", want{"stranger", true, false}, func(r *rig, a, b, c *party) []byte {
			d := *a
			d.n, d.cqpn, d.sqpn = 77, 0x7777, 0x7778
			return d.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: d.sqpn})
		}},
		"a ConnectRequest with another's address": {"a", want{"forged-cm", true, true}, func(r *rig, a, b, c *party) []byte {
			d := *b
			d.n, d.ip = 5, a.ip
			return change(d.connectRequest(), func(p []byte, f *hdr.Frame) { binary.BigEndian.PutUint32(p[26:], 0x0A090099) })
		}},
		"a wrong ICRC": {"a", want{"bad-icrc", true, false}, func(r *rig, a, b, c *party) []byte {
			p := b.made(hdr.WriteOnly, b.psn, reth(va, testRKey, 8), little(66))
			p[len(p)-1] ^= 1
			return p
		}},
	} {
		for _, guard := range []string{"pass", "drop"} {
			t.Run(name+"/"+guard, func(t *testing.T) {
				r := newRig(t, graph.Args{"guard": guard})
				a, b, c := r.join(), r.join(), r.join()
				b.learn(a, va, 1)
				b.cas(va, 2, 2)
				one(t, a.ack().Out["a"]) // answered; then one that is open
				b.msn++
				open := b.psn
				one(t, b.write(va, 5).Out["b"])
				frame := x.make(r, a, b, c)
				got := r.Push(x.in, frame)
				out := map[string]string{"a": "b", "b": "a"}[x.in]
				switch {
				case x.want.passes && (guard == "pass" || !x.want.guard):
					same(t, got.Out[out], frame)
				case x.want.guard && guard == "drop":
					dropped(t, got, x.want.reason)
					none0(t, append(got.Out["a"], got.Out["b"]...))
				default:
					for _, f := range append(got.Out["a"], got.Out["b"]...) {
						var h hdr.Frame
						hdr.Parse(f.Bytes, &h)
						if q := h.BTHOf(f.Bytes).DestQP(); !bytes.Equal(f.Bytes, frame) && q == b.cqpn && x.in == "b" {
							t.Errorf("%s was answered by %s", name, text(f.Bytes))
						}
					}
				}
				if x.want.reason != "" && r.Counter(x.want.reason) == 0 {
					t.Errorf("not counted as %s", x.want.reason)
				}
				// Everybody's operations go on, with their own numbers.
				same(t, a.ack().Out["a"], b.ackTo(open, 4))
				q := c.psn
				same(t, c.write(va, 6).Out["b"], c.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(6)))
				same(t, a.ack().Out["a"], c.ackTo(q, 2))
			})
		}
	}
}

// TestFull: tables have bounds; what does not fit passes, or comes again.
func TestFull(t *testing.T) {
	const va = 0x7000
	t.Run("conns", func(t *testing.T) {
		r := newRig(t, graph.Args{"conns": "2"})
		a, b := r.join(), r.join()
		b.learn(a, va, 1)
		x := r.client()
		q := x.psn
		same(t, x.write(va, 9).Out["b"], x.made(hdr.WriteOnly, q, reth(va, testRKey, 8), little(9)))
		if r.Counter("conn-table-full") != 1 || r.knows(va) {
			t.Error("not counted, or the word is still believed")
		}
		same(t, x.ack().Out["a"], x.response(hdr.Acknowledge, q, aeth(hdr.SynACK, 1), nil))
	})
	t.Run("servers", func(t *testing.T) {
		r := newRig(t, graph.Args{"servers": "10.9.0.200"})
		x := r.client()
		q := x.psn
		same(t, x.cas(va, 1, 2).Out["b"], x.made(hdr.CompareSwap, q, atomicETH(va, testRKey, 2, 1), nil))
		same(t, x.atomicAck(5).Out["a"], x.atomicAckTo(q, 1, 5))
	})
	t.Run("words", func(t *testing.T) {
		// reach() has used two of the places.
		r := newRig(t, graph.Args{"words": "4"})
		a, b := r.join(), r.join()
		b.learn(a, va, 1)
		one(t, b.cas(va, 1, 1).Out["b"]) // under way: it stays
		for i := uint64(1); i < 20; i++ {
			one(t, b.cas(va+8*i, 1, 1).Out["b"])
			if i == 1 {
				one(t, a.ack().Out["a"])
				b.msn++
			}
			one(t, a.atomicAck(0).Out["a"])
			b.msn++
			one(t, b.cas(va, 1, 1).Out["b"])
			one(t, a.ack().Out["a"])
			b.msn++
		}
		if !r.knows(va) {
			t.Error("the word that is in use was forgotten")
		}
		b.learn(a, va+8*19, 0)
		if !r.knows(va + 8*19) {
			t.Error("a new word finds no place")
		}
		if r.knows(va + 8*5) {
			t.Error("a word out of use has kept its place")
		}
	})
	t.Run("window", func(t *testing.T) {
		r := newRig(t, graph.Args{"window": "16", "hold": "8", "mode": "mux", "track": va16})
		a, b := r.join(), r.join()
		s, p := a.spsn, b.psn
		sent := 0
		var last graphtest.Result
		for i := range uint64(30) {
			last = b.write(va, i)
			sent += len(last.Out["b"])
		}
		if sent != 16 || r.Inst.Held() != 3 {
			t.Errorf("%d went on and %d are held, want 16 and 3", sent, r.Inst.Held())
		}
		dropped(t, last, "psn-gap")
		if r.Counter("hold-full") != 1 {
			t.Errorf("hold-full %d", r.Counter("hold-full"))
		}
		// Answers let the held ones go, in order.
		a.smsn += 16
		got := r.Push("b", a.response(hdr.Acknowledge, s+15, aeth(hdr.SynACK, a.smsn), nil))
		if len(got.Out["b"]) != 3 {
			t.Fatalf("%d went on%s", len(got.Out["b"]), show(got.Out["b"]))
		}
		for i := range uint32(3) {
			if want := b.moved(a, hdr.WriteOnly, s+16+i, reth(va, testRKey, 8), little(uint64(16+i))); !bytes.Equal(got.Out["b"][i].Bytes, want) {
				t.Errorf("got %s, want %s", text(got.Out["b"][i].Bytes), text(want))
			}
		}
		// The client is told what to send again as soon as the requests before are answered.
		a.smsn += 3
		got = r.Push("b", a.response(hdr.Acknowledge, s+18, aeth(hdr.SynACK, a.smsn), nil))
		same(t, got.Out["a"], b.ackTo(p+18, 20), b.nakTo(p+19, 20, hdr.SynNAKSequence))
	})
	t.Run("hold", func(t *testing.T) {
		r := newRig(t, graph.Args{"hold": "0", "track": va16})
		a, b := r.join(), r.join()
		q, s := b.psn, a.spsn
		same(t, b.write(va, 1).Out["b"], b.moved(a, hdr.WriteOnly, s, reth(va, testRKey, 8), little(1)))
		same(t, a.ack().Out["a"], b.ackTo(q, 2))
		// A WRITE that the box would have to gather goes over its own connection.
		h := reth(va, testRKey, 300)
		q = b.spsn
		same(t, b.request(hdr.WriteFirst, h, make([]byte, 256)).Out["b"], b.made(hdr.WriteFirst, q, h, make([]byte, 256)))
		same(t, b.request(hdr.WriteLast, nil, make([]byte, 44)).Out["b"], b.made(hdr.WriteLast, q+1, nil, make([]byte, 44)))
	})
}

// va16 is memory about the word that tests use.
const va16 = "7000+1000"

// TestGapAsked: a request that the box missed is asked for once, after what
// came before was answered.
func TestGapAsked(t *testing.T) {
	const va = 0x7000
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	q := b.psn
	one(t, b.write(va, 2).Out["b"])
	b.psn++ // lost
	got := b.write(va, 4)
	dropped(t, got, "psn-gap")
	none0(t, got.Out["a"])
	same(t, a.ack().Out["a"], b.ackTo(q, 3), b.nakTo(q+1, 3, hdr.SynNAKSequence))
	none0(t, b.write(va, 5).Out["a"])
	same(t, r.Push("a", b.made(hdr.WriteOnly, q+1, reth(va, testRKey, 8), little(3))).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(3)))
}

// TestLostAnswers: answers that are lost between server and box are had again:
// an atomic's from the server, by repetition, unless a WRITE went for it.
func TestLostAnswers(t *testing.T) {
	const va = 0x7000
	r := newRig(t, graph.Args{"mode": "mux"})
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	p, s := b.psn, a.spsn
	cas := one(t, b.cas(va, 1, 2).Out["b"])
	one(t, b.write(va, 3).Out["b"])
	a.smsn += 2
	// The WRITE's acknowledgement: the atomic's answer did not come. It is
	// asked for again, and nothing is answered out of turn.
	got := r.Push("b", a.response(hdr.Acknowledge, s+1, aeth(hdr.SynACK, a.smsn), nil))
	none0(t, got.Out["a"])
	if len(got.Out["b"]) == 0 || !bytes.Equal(got.Out["b"][0].Bytes, cas) {
		t.Fatalf("the atomic was not repeated:%s", show(got.Out["b"]))
	}
	got = r.Push("b", a.response(hdr.AtomicAck, s, binary.BigEndian.AppendUint64(aeth(hdr.SynACK, a.smsn), 1), nil))
	same(t, got.Out["a"], b.atomicAckTo(p, 3, 1), b.ackTo(p+1, 4))
	// When neither server nor client says anything, the box itself sends again in time.
	p, s = b.psn, a.spsn+2
	w := one(t, b.write(va, 4).Out["b"])
	again := r.Advance(40 * time.Millisecond).Out["b"]
	if len(again) == 0 || !bytes.Equal(again[0].Bytes, w) {
		t.Fatalf("the WRITE was not repeated:%s", show(again))
	}
	a.smsn++
	same(t, r.Push("b", a.response(hdr.Acknowledge, s, aeth(hdr.SynACK, a.smsn), nil)).Out["a"], b.ackTo(p, 5))
}

// TestInherited: when a connection fails, operations that leave a known value in a word go on over another
// one, in their order. No client gets an error.
func TestInherited(t *testing.T) {
	const va = 0x7000
	start := func(t *testing.T) (r *rig, a, b, c *party) {
		r = newRig(t, graph.Args{"track": "7000+1000"})
		a, b, c = r.join(), r.join(), r.join()
		b.learn(a, va, 1)
		return r, a, b, c
	}
	disconnect := func(a *party) graphtest.Result {
		a.r.Push("a", a.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: a.sqpn}))
		return a.r.Push("b", a.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply}))
	}
	t.Run("decided", func(t *testing.T) {
		r, a, b, c := start(t)
		p, q := b.psn, c.psn
		one(t, b.cas(va, 1, 2).Out["b"])
		one(t, c.cas(va, 7, 8).Out["b"]) // fails
		one(t, b.write(va, 3).Out["b"])
		s := c.spsn // it was heard last
		same(t, disconnect(a).Out["b"], b.moved(c, hdr.WriteOnly, s, reth(va, testRKey, 8), little(2)),
			c.made(hdr.WriteOnly, s+1, reth(va, testRKey, 8), little(2)), b.moved(c, hdr.WriteOnly, s+2, reth(va, testRKey, 8), little(3)))
		c.smsn += 3
		same(t, r.Push("b", c.response(hdr.Acknowledge, s+2, aeth(hdr.SynACK, c.smsn), nil)).Out["a"],
			b.atomicAckTo(p, 3, 1), b.ackTo(p+1, 4), c.atomicAckTo(q, 2, 2))
		if !r.knows(va) {
			t.Error("the value is not believed any more")
		}
	})
	t.Run("behind what is lost", func(t *testing.T) {
		r, a, b, c := start(t)
		p, q := b.psn, c.psn
		one(t, b.request(hdr.WriteOnly, reth(va+64, testRKey, 128), make([]byte, 128)).Out["b"]) // was it executed?
		one(t, b.write(va, 0).Out["b"])                                                          // "it was"
		one(t, c.cas(va, 0, 8).Out["b"])                                                         // "then it is mine"
		got := disconnect(a)
		none0(t, got.Out["b"])
		same(t, got.Out["a"][1:], b.nakTo(p, 2, hdr.SynNAKRemoteOperation), c.nakTo(q, 1, hdr.SynNAKRemoteOperation))
		if r.knows(va) {
			t.Error("the value is still believed")
		}
	})
}

// TestWindow: no more operations are under way than are remembered; the next
// one waits.
func TestWindow(t *testing.T) {
	r := newRig(t, graph.Args{"window": "16", "track": "7000+1000"})
	a, b := r.join(), r.join()
	moved := func(i uint64) []byte {
		return b.moved(a, hdr.WriteOnly, a.spsn+uint32(i), reth(0x7000, testRKey, 8), little(i))
	}
	for i := range uint64(16) {
		same(t, b.write(0x7000, i).Out["b"], moved(i))
	}
	last := moved(16)
	none0(t, b.write(0x7000, 16).Out["b"])
	same(t, a.ack().Out["b"], last)
}

// TestRereadLost: a READ that is done again, and that the server misses, is sent
// again here: its client may have its answer, and not ask a third time.
func TestRereadLost(t *testing.T) {
	for _, how := range []string{"asked", "silence"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, nil)
			a := r.join()
			p := a.psn
			one(t, a.read(0x5000, 8).Out["b"])
			one(t, a.answer(hdr.ReadRespOnly, nil, little(1)).Out["a"])
			again := func(psn uint32) []byte { return a.made(hdr.ReadRequest, psn, reth(0x5000, testRKey, 8), nil) }
			s := a.spsn
			same(t, r.Push("a", again(p)).Out["b"], again(s)) // lost
			one(t, a.write(0x6000, 1).Out["b"])               // another one, behind it
			var got graphtest.Result
			if how == "asked" {
				got = a.nak(s, hdr.SynNAKSequence)
			} else {
				got = r.Advance(20 * time.Millisecond)
			}
			if len(got.Out["b"]) == 0 {
				t.Fatal("it is not sent again")
			}
			same(t, got.Out["b"][:1], again(s))
		})
	}
}

// TestServerGone: a server that is silent on one connection, but answers on others, has lost its end of that
// connection. The clients whose operations may or may not have been executed get an error. While the server
// is silent on all connections it may only pause: no client gets an error, as none would without the box.
func TestServerGone(t *testing.T) {
	const va = 0x7000
	r := newRig(t, nil)
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	p := b.psn
	one(t, b.cas(va+64, 1, 2).Out["b"]) // its outcome is not known
	sent := 0
	for range 100 {
		got := r.Advance(20 * time.Millisecond)
		none0(t, got.Out["a"])
		sent += len(got.Out["b"])
	}
	if sent == 0 || sent > 5*100 {
		t.Errorf("sent %d frames", sent)
	}
	var told []graphtest.Frame
	for range 10 {
		r.Push("b", c.response(hdr.Acknowledge, c.spsn-1, aeth(hdr.SynACK, c.smsn), nil))
		told = append(told, r.Advance(20 * time.Millisecond).Out["a"]...)
	}
	same(t, told, b.nakTo(p, 2, hdr.SynNAKRemoteOperation))
	if r.knows(va + 64) {
		t.Error("a value is believed")
	}
}

// TestServerWakes: a server that paused does not answer on all connections at
// once. One that it answers on a little later is not given up.
func TestServerWakes(t *testing.T) {
	const va = 0x7000
	r := newRig(t, nil)
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	one(t, b.cas(va+64, 1, 2).Out["b"])
	for range 100 {
		none0(t, r.Advance(20 * time.Millisecond).Out["a"])
	}
	r.Push("b", c.response(hdr.Acknowledge, c.spsn-1, aeth(hdr.SynACK, c.smsn), nil))
	none0(t, r.Advance(20 * time.Millisecond).Out["a"])
	one(t, a.atomicAck(1).Out["a"])
	if n := r.Counter("connections-failed"); n != 0 {
		t.Errorf("%d connections failed", n)
	}
}

// Both queue pairs of a connection that the server has refused a request of are connected anew, without a connection manager.
// Its requests and answers cross, whether the ends of the former connection counted alike or not.
func TestAnewBehindRefusal(t *testing.T) {
	for _, bound := range []bool{false, true} {
		r := newRig(t, nil)
		a, b := r.join(), r.join()
		if bound {
			b.learn(a, 0x7000, 7)
		}
		one(t, a.request(hdr.SendOnly, nil, little(1)).Out["b"])
		one(t, a.nak(a.spsn, hdr.SynNAKRemoteAccess).Out["a"])
		if n := r.box().recorded(); (n != 0) != bound {
			t.Fatalf("%d connections on record", n)
		}
		r.Advance(time.Second)
		for psn := psnAdd(a.psn, 1<<22); psn != psnAdd(a.psn, 1<<22+3); psn = psnAdd(psn, 1) {
			f := a.made(hdr.WriteOnly, psn, reth(0x5000, testRKey, 8), little(1))
			same(t, r.Push("a", f).Out["b"], f)
			f = a.response(hdr.Acknowledge, psn, aeth(hdr.SynACK, 1), nil)
			same(t, r.Push("b", f).Out["a"], f)
		}
	}
}
