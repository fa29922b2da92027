package conn

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// requester is one connection of world, with the requests that wait for answers.
type requester struct {
	connection
	next uint32
	wait []asking
	// unseen: how many of ten requests do not come past the table; from is
	// when they begin to.
	unseen int
	from   clock.Time
	nak    bool // the server has refused the requests behind the lost one
}

type asking struct {
	psn  uint32
	op   hdr.Opcode
	sent clock.Time
	lost bool // behind the table
	done bool // answered, and the answer was lost behind the table
}

// answerOf is what a request is answered with.
var answerOf = map[hdr.Opcode]hdr.Opcode{hdr.WriteOnly: hdr.Acknowledge, hdr.SendOnly: hdr.Acknowledge, hdr.ReadRequest: hdr.ReadRespOnly, hdr.CompareSwap: hdr.AtomicAck}

// world is a server, some hosts, and a table that sees their frames. The server answers within settle. A
// request or an answer that is lost is sent again later than that, and never is a whole window lost.
type world struct {
	*testing.T
	rt    *rapid.T
	rnd   *rand.Rand
	x     *Table
	now   clock.Time
	all   []*requester
	depth int
	ops   []hdr.Opcode
	spoof bool // forged requests in the clients' names are sent, too
}

const settle = time.Millisecond

// draw is evenly distributed, which rapid's numbers are not.
func (w *world) draw(n int) int { return w.rnd.IntN(n) }

func (w *world) see(b []byte) {
	s, e := feed(w.x, w.now, b)
	if err := w.x.verify(); err != nil {
		w.rt.Fatal(err)
	}
	if e != NowPaired {
		return
	}
	r := w.x.Row(s)
	for _, q := range w.all {
		if AddrFrom(q.client) == r.Client.Addr && q.cqpn == r.Client.QPN && q.sqpn == r.Server.QPN {
			return
		}
	}
	w.rt.Fatalf("wrongly paired %v", r)
}

func (w *world) request(q *requester, a *asking) {
	if w.now >= q.from && w.draw(10) >= q.unseen {
		w.see(q.connection.request(a.op, a.psn))
	}
}

func (w *world) send(q *requester, lost bool) {
	if len(q.wait) < w.depth {
		a := asking{psn: q.next, op: w.ops[w.draw(len(w.ops))], sent: w.now, lost: lost}
		w.request(q, &a)
		q.wait = append(q.wait, a)
		q.next = (q.next + 1) & hdr.PSNMask
	}
}

// spoofed is a request in the name of q's client, near its PSNs, to its own queue pair at the server or to
// one of no connection. A server refuses a request that is ahead of the expected one.
func (w *world) spoofed(q *requester) {
	c := q.connection
	if w.draw(4) == 0 {
		c.sqpn = uint32(50 + w.draw(2))
	}
	w.see(c.request(w.ops[w.draw(len(w.ops))], (q.next+uint32(w.draw(24))-8)&hdr.PSNMask))
	if c.sqpn == q.sqpn && len(q.wait) == 0 && w.draw(2) == 0 {
		b := q.response(hdr.Acknowledge, q.next)
		b[54] = byte(hdr.SynNAKSequence)
		w.see(b)
	}
}

// answer acknowledges n requests, refuses what follows a lost one, or, when that
// is all there is, has the client repeat it.
func (w *world) answer(q *requester, n int) {
	arrived := 0
	repeat := func() {
		q.nak = false
		for i := range q.wait {
			q.wait[i].lost, q.wait[i].done, q.wait[i].sent = false, false, w.now
			w.request(q, &q.wait[i])
		}
	}
	for arrived < len(q.wait) && !q.wait[arrived].lost {
		arrived++
	}
	switch {
	case len(q.wait) == 0:
	case arrived == len(q.wait) && q.wait[arrived-1].done:
		if w.now.Sub(q.wait[0].sent) > 5*settle {
			repeat()
		}
	case arrived > 0:
		n = min(n, arrived)
		a := q.wait[n-1]
		if w.draw(16) != 0 {
			q.wait = q.wait[n:]
		} else {
			for i := range q.wait[:n] {
				q.wait[i].done = true
			}
		}
		w.see(q.response(answerOf[a.op], a.psn))
	case len(q.wait) > 1 && !q.nak:
		q.nak = true
		b := q.response(hdr.Acknowledge, q.wait[0].psn)
		var f hdr.Frame
		hdr.Parse(b, &f)
		f.AETHOf(b)[0] = byte(hdr.SynNAKSequence)
		w.see(b)
	case q.nak || w.now.Sub(q.wait[0].sent) > 5*settle:
		repeat()
	}
}

// advance lets time pass, and makes the server send the answers that are due.
func (w *world) advance(d time.Duration) {
	for range 8 {
		w.now = w.now.Add(d / 8)
		for _, q := range w.all {
			for n := len(q.wait); n > 0 && w.now.Sub(q.wait[0].sent) >= settle/2; n-- {
				if before := len(q.wait); q.wait[before-1].done && w.now.Sub(q.wait[0].sent) <= 5*settle {
					break
				} else if q.wait[0].lost && len(q.wait) == 1 && w.now.Sub(q.wait[0].sent) <= 5*settle {
					break
				} else if w.answer(q, before); len(q.wait) == 0 {
					break
				}
			}
		}
	}
	w.x.Sweep(w.now)
}

// TestPairingIsNeverWrong: connections of two hosts whose numbers are equal or
// near, some of whose requests the table sees late, now and then, or never, in
// tables that are too small, or with losses: no one is taken for another.
func TestPairingIsNeverWrong(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		for range 40 {
			schedule(&world{T: t, rt: rt, rnd: rnd, now: clock.Time(time.Hour)})
		}
	})
}

func schedule(w *world) {
	w.depth = 1 + w.draw(6)
	w.ops = [][]hdr.Opcode{{hdr.WriteOnly}, {hdr.CompareSwap}, {hdr.WriteOnly, hdr.ReadRequest, hdr.CompareSwap, hdr.SendOnly}}[w.draw(3)]
	w.x = newTable(w.T, Config{Rows: 1 + w.draw(12), Infer: true, SamePort: w.draw(2) == 0, Settle: settle, Reuse: 5 * settle, HalfOpen: 50 * settle, Yield: 20 * settle})
	w.spoof = w.draw(3) == 0
	base := []uint32{3185, 0xFFFFF8}[w.draw(2)]
	for i := range 2 + w.draw(3) {
		q := &requester{next: (base + uint32(w.draw(4))) & hdr.PSNMask, connection: connection{client: host(2 + w.draw(4)/3), server: host(1),
			cqpn: uint32(17 + i), sqpn: uint32(33 + i), port: uint16(0xC000 + i), back: uint16(0xC000 + i)}}
		unseen := w.draw(4)
		if w.spoof {
			unseen = 3 // where requests are not seen, forged ones hide which client was answered
		}
		switch unseen {
		case 0:
			q.unseen = 10
		case 1:
			q.unseen = 3
		case 2:
			q.from = w.now.Add(time.Duration(w.draw(10)) * settle / 2)
		}
		w.all = append(w.all, q)
	}
	for range 100 + w.draw(500) {
		q := w.all[w.draw(len(w.all))]
		if w.spoof && w.draw(4) == 0 {
			w.spoofed(q)
		}
		if w.draw(2) == 0 { // the requester that is behind, so that they stay in step
			q = slices.MinFunc(w.all, func(a, b *requester) int { return int(hdr.PSNDiff(a.next, b.next)) })
		}
		switch w.draw(8) {
		case 0, 1, 2:
			w.send(q, false)
		case 3:
			w.send(q, w.draw(8) == 0 && !slices.ContainsFunc(q.wait, func(a asking) bool { return a.lost }))
		case 4, 5, 6:
			w.answer(q, 1+w.draw(w.depth))
		case 7:
			w.advance(time.Duration(1+w.draw(8)) * settle / 8)
		}
	}
}

// TestLockstepIsToldApart: connections that begin alike are learnt when one gets
// ahead of the others, and those whose ports tell them apart at once.
func TestLockstepIsToldApart(t *testing.T) {
	for _, ports := range []bool{false, true} {
		w := &world{T: t, now: clock.Time(time.Hour), depth: 1,
			x: newTable(t, Config{Rows: 64, Infer: true, SamePort: ports, Settle: settle})}
		for i := range 8 {
			w.all = append(w.all, &requester{next: 3185, connection: connection{client: host(2), server: host(1), cqpn: uint32(17 + i), sqpn: uint32(33 + i), port: uint16(0xC000 + i), back: uint16(0xC000 + i)}})
		}
		learnt := func() (n int) {
			for _, q := range w.all {
				if s, client := w.x.Find(AddrFrom(q.client), q.cqpn); s != NoSlot && client && w.x.Row(s).State == Paired {
					n++
				}
			}
			return n
		}
		for round := range 4000 {
			w.now = w.now.Add(settle / 20)
			for i, q := range w.all {
				if ports || round%16 < 16-i { // each is faster than the next
					run(t, w.x, w.now, step{"", q.connection.request(hdr.WriteOnly, q.next), anyEvent}, step{"", q.response(hdr.Acknowledge, q.next), anyEvent})
					q.next = (q.next + 1) & hdr.PSNMask
				}
			}
			if ports && round == 100 && learnt() != len(w.all) {
				t.Errorf("by their ports: %d learnt", learnt())
			}
		}
		if learnt() != len(w.all) {
			t.Errorf("ports %v: %d learnt", ports, learnt())
		}
	}
}

// TestMoreThanPlaces: connections that begin at once, more of them than may be half-open, are
// all learnt in the end where their ports tell them apart. Else none is, as long as
// requests pass for which there is no room.
func TestMoreThanPlaces(t *testing.T) {
	for _, ports := range []bool{false, true} {
		x := newTable(t, Config{Rows: 512, Infer: true, SamePort: ports, Settle: settle, Reuse: 5 * settle})
		all := make([]*requester, 200) // of 128 places, 64 for a client
		for i := range all {
			all[i] = &requester{next: 3185, connection: connection{client: host(2), server: host(1), cqpn: uint32(1000 + i), sqpn: uint32(2000 + i), port: uint16(0xC000 + i), back: uint16(0xC000 + i)}}
		}
		now := clock.Time(time.Hour)
		for range 400 {
			now = now.Add(settle / 8)
			for _, q := range all {
				feed(x, now, q.connection.request(hdr.WriteOnly, q.next))
			}
			for _, q := range all {
				if s, e := feed(x, now.Add(settle/16), q.response(hdr.Acknowledge, q.next)); e == NowPaired {
					if r := x.Row(s); r.Server.QPN != q.sqpn || r.Client.QPN != q.cqpn {
						t.Fatalf("wrongly paired %v", r)
					}
				}
				q.next = (q.next + 1) & hdr.PSNMask
			}
		}
		learnt := 0
		for _, q := range all {
			if s, client := x.Find(AddrFrom(q.client), q.cqpn); s != NoSlot && client && x.Row(s).State == Paired {
				learnt++
			}
		}
		if want := map[bool]int{true: len(all)}[ports]; learnt != want {
			t.Errorf("ports %v: %d learnt, want %d", ports, learnt, want)
		}
	}
}

// TestDoubts: a connection whose requests are never seen is answered in step with another one, as if the
// answers were the other's. The frames seen of the other connection itself speak against that.
func TestDoubts(t *testing.T) {
	for name, own := range map[string]func(c *connection, p uint32) []byte{
		"nothing": nil,
		"it is refused": func(c *connection, p uint32) []byte {
			b := c.response(hdr.Acknowledge, p)
			b[54] = byte(hdr.SynRNR)
			return b
		},
		"part of a READ":      func(c *connection, p uint32) []byte { return c.response(hdr.ReadRespMiddle, p) },
		"it is answered":      func(c *connection, p uint32) []byte { return c.response(hdr.Acknowledge, p) },
		"what was not seen":   func(c *connection, p uint32) []byte { return c.response(hdr.ReadRespMiddle, p+3) },
		"it repeats requests": func(c *connection, p uint32) []byte { return c.request(hdr.WriteOnly, p) },
	} {
		x, c, unseen := newTable(t, Config{Rows: 4, Infer: true, Settle: settle}), nth(0), nth(1)
		wrong := false
		for p := range uint32(20) {
			now, op := clock.Time(p)*clock.Time(settle), hdr.WriteOnly
			switch name {
			case "part of a READ":
				op = hdr.ReadRequest
			case "what was not seen":
				p *= 4
			}
			feed(x, now, c.request(op, p))
			_, e := feed(x, now, unseen.response(hdr.Acknowledge, p))
			wrong = wrong || e == NowPaired
			if own != nil {
				feed(x, now, own(c, p))
			}
		}
		if wrong != (own == nil) { // it cannot be told from the truth
			t.Errorf("%s: paired %v", name, wrong)
		}
	}
}

// TestSilentClient: a client that asks for nothing for some time gets no answers either. When it goes on, and
// its first request is lost, it is silent for one round more. The answers meanwhile are those of another
// client, whose requests are not seen.
func TestSilentClient(t *testing.T) {
	x, c, unseen := newTable(t, Config{Rows: 4, Infer: true, Settle: settle, Reuse: 5 * settle}), nth(0), nth(1)
	const behind = 3 // requests that unseen is slower
	now := clock.Time(time.Hour)
	ask := func(p uint32) { feed(x, now, c.request(hdr.WriteOnly, p)) }
	answered := func(q *connection, p uint32) {
		t.Helper()
		if _, e := feed(x, now, q.response(hdr.Acknowledge, p)); e == NowPaired && q == unseen {
			t.Fatalf("taken for the other one when it was answered %d", p)
		}
	}
	p := uint32(behind)
	for ; p < 8; p++ {
		now = now.Add(settle)
		ask(p)
		answered(unseen, p-behind)
		answered(c, p)
	}
	for i := range uint32(behind) {
		now = now.Add(2 * settle)
		answered(unseen, p-behind+i)
	}
	for range 2 {
		now = now.Add(settle)
		ask(p)
		answered(unseen, p)
		p++
	}
	now = now.Add(settle / 2)
	refusal := c.response(hdr.Acknowledge, p-2)
	refusal[54] = byte(hdr.SynNAKSequence)
	feed(x, now, refusal)
	for ; p < 40; p++ {
		now = now.Add(settle)
		ask(p)
		answered(unseen, p)
		answered(c, p)
	}
}

// TestUnlisted: while requests pass between two hosts that have no row, for want
// of room, nothing between the two is paired; and afterwards it is.
func TestUnlisted(t *testing.T) {
	a, b := nth(0), nth(1)
	x := newTable(t, Config{Rows: 1, Infer: true, Reuse: time.Second})
	for p := range uint32(3) {
		run(t, x, 1, step{"a", a.request(hdr.WriteOnly, p), anyEvent}, step{"b", b.request(hdr.WriteOnly, p), Full}, step{"b's answer", b.response(hdr.Acknowledge, p), Ambiguous})
	}
	run(t, x, clock.Time(time.Second), step{"b is not heard any more, nor a", a.response(hdr.Acknowledge, 2), Ambiguous})
	for p := uint32(3); p < 6; p++ {
		run(t, x, clock.Time(2*time.Second), step{"a", a.request(hdr.WriteOnly, p), Waiting}, step{"", a.response(hdr.Acknowledge, p), map[bool]Event{true: NowPaired, false: Waiting}[p == 5]})
	}
	// Answers seen before the request without a row count no more.
	x = newTable(t, Config{Rows: 2, Infer: true})
	for p := range uint32(2) {
		run(t, x, 1, step{"a", a.request(hdr.WriteOnly, p), anyEvent}, step{"", a.response(hdr.Acknowledge, p), Waiting})
	}
	run(t, x, 1, step{"a", a.request(hdr.WriteOnly, 2), Waiting}, step{"b", b.request(hdr.WriteOnly, 9), Opened}, step{"c", nth(2).request(hdr.WriteOnly, 2), Full},
		step{"any", a.response(hdr.Acknowledge, 2), Ambiguous})
	run(t, x, clock.Time(2*time.Second), step{"later", a.response(hdr.Acknowledge, 2), Waiting})
}

// TestNetworks: the same addresses and numbers in other VLANs, and in RoCE v1, are
// other connections; a tag for the priority only makes no difference. All are
// learnt alike, by PSNs and from the connection manager.
func TestNetworks(t *testing.T) {
	var all []*connection
	for i, tags := range [][]uint16{nil, {5}, {6}, {0, 7}, {4094, 0}} {
		c := example()
		c.tags, c.cpsn = tags, uint32(i*0x1000)
		all = append(all, c)
	}
	six := example()
	six.client, six.server, six.v1 = netip.MustParseAddr("fe80::2"), netip.MustParseAddr("fe80::1"), true
	old := example() // of other hosts, with GIDs of the same shape
	old.client, old.server, old.v1 = host(12), host(11), true
	all = append(all, six, old)
	check := func(x *Table) {
		t.Helper()
		if x.Len() != len(all) {
			t.Error(x.Len())
		}
		for i, c := range all {
			in := []uint16{0, 5, 6, 7, 4094, 0, 0}[i]
			s, client := x.Find(AddrFrom(c.client).In(in), c.cqpn)
			if r := x.Row(s); !client || r.State != Paired || r.Server.Addr.VLAN() != in || r.Server.Addr.Netip() != c.server || (r.Net == hdr.NetGRH) != c.v1 {
				t.Errorf("%d: %v", i, r)
			}
		}
	}
	x := newTable(t, Config{Rows: 8, Infer: true, GuardMAC: true})
	for p := range uint32(3) {
		for _, c := range all {
			run(t, x, 1, step{"", c.request(hdr.WriteOnly, c.cpsn+p), anyEvent}, step{"", c.response(hdr.Acknowledge, c.cpsn+p), anyEvent})
		}
	}
	check(x)
	y := adopted(t, x, 1)
	check(y)
	plain := example()
	prio := *plain
	prio.tags = []uint16{0}
	run(t, y, 2, step{"priority", prio.request(hdr.WriteOnly, 3), Known}, step{"none", plain.request(hdr.WriteOnly, 4), Known})
	v1 := *plain
	v1.v1 = true
	run(t, y, 3, step{"RoCE v1 to a queue pair of v2", v1.request(hdr.WriteOnly, 5), Spoofed}, step{"its answer", v1.response(hdr.Acknowledge, 5), Spoofed},
		step{"its end", v1.tell(hdr.DisconnectRequest, true), Stray})
	check(y)
	x = newTable(t, Config{Rows: 8})
	for _, c := range all {
		pairUp(t, x, 1, c)
	}
	check(x)
	for _, c := range all {
		run(t, x, 2, step{"", c.tell(hdr.DisconnectRequest, true), IsClosing}, step{"", c.tell(hdr.DisconnectReply, false), Removed})
	}
	c, err := ParseStatic("10.0.0.2/0x11-10.0.0.1/0x100,vlan=9")
	if err != nil || c.VLAN != 9 || c.String() != "10.0.0.2/0x11-10.0.0.1/0x100,vlan=9" {
		t.Error(c, err)
	}
	if _, err := x.AddStatic(3, c); err != nil {
		t.Error(err)
	}
	tagged := example()
	tagged.tags = []uint16{9}
	run(t, x, 4, step{"configured", tagged.request(hdr.WriteOnly, 5), Known}, step{"", tagged.response(hdr.Acknowledge, 5), Known})
}

// Responses between two hosts with n half-open connections that count alike, in a
// table of 4,096 rows whose other places are taken; and requests of strangers there.
func BenchmarkCrowded(b *testing.B) {
	for _, n := range []int{1, 16, maxCandidates} {
		x := newTable(b, Config{Rows: 4096, Infer: true})
		for i := range 4096 - n {
			c := nth(i)
			for _, f := range [][]byte{c.connectRequest(), c.connectReply(), c.tell(hdr.ReadyToUse, true)} {
				feed(x, 1, f)
			}
		}
		c := nth(5000)
		c.client, c.server = host(200), host(201)
		for i := range n {
			c.sqpn = uint32(0x9000 + i)
			if _, e := feed(x, 1, c.request(hdr.WriteOnly, 3185)); e != Opened {
				b.Fatal(e)
			}
		}
		for name, frame := range map[string][]byte{"response": c.response(hdr.Acknowledge, 3185), "stranger": nth(9000).request(hdr.WriteOnly, 1)} {
			var f hdr.Frame
			hdr.Parse(frame, &f)
			b.Run(fmt.Sprintf("%s/alike=%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if name == "response" {
						response(x, 2, frame, &f)
					} else {
						request(x, 2, frame, &f)
					}
				}
			})
		}
	}
}
