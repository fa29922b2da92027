package conn

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// turn is a request or its answer, due at a time.
type turn struct {
	at clock.Time
	of int
}

type turns []turn

func (t turns) Len() int           { return len(t) }
func (t turns) Less(i, j int) bool { return t[i].at < t[j].at }
func (t turns) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(x any)        { *t = append(*t, x.(turn)) }
func (t *turns) Pop() any          { x := (*t)[len(*t)-1]; *t = (*t)[:len(*t)-1]; return x }

// lockstep plays sessions of one host which begin with PSN 3185 and ask for the next
// thing as soon as they have the answer to the last, 8 us later and up to jitter more,
// each session apart later than the one before.
// It tells how many requests a session had sent at most when half of them were paired, and
// when all were; 0: they were not after most requests.
func lockstep(t *testing.T, sessions int, ops []hdr.Opcode, jitter, apart time.Duration, most uint32) (half, all uint32) {
	x := newTable(t, Config{Rows: 512, Infer: true, Settle: time.Millisecond})
	rnd := rand.New(rand.NewPCG(uint64(sessions), uint64(len(ops))))
	qs := make([]*requester, sessions)
	asked := make([]hdr.Opcode, sessions)
	var due turns
	for i := range qs {
		qs[i] = &requester{next: 3185, connection: connection{client: host(2), server: host(1), cqpn: uint32(100 + i), sqpn: uint32(300 + i)}}
		heap.Push(&due, turn{clock.Time(time.Hour).Add(time.Duration(i) * apart), i})
	}
	paired := 0
	for paired < sessions {
		n := heap.Pop(&due).(turn)
		q := qs[n.of]
		if q.next-3185 > most {
			return half, 0
		}
		if op := asked[n.of]; op != 0 {
			if s, e := feed(x, n.at, q.response(answerOf[op], q.next)); e == NowPaired {
				if r := x.Row(s); r.Server.QPN != q.sqpn || r.Client.QPN != q.cqpn {
					t.Fatalf("wrongly paired %v", r)
				}
				paired++
			} else if e == Unpaired || e == Spoofed {
				t.Fatal(e)
			}
			q.next = (q.next + 1) & hdr.PSNMask
		}
		asked[n.of] = ops[rnd.IntN(len(ops))]
		feed(x, n.at, q.connection.request(asked[n.of], q.next))
		wait := 8 * time.Microsecond
		if jitter > 0 {
			wait += time.Duration(rnd.Int64N(int64(jitter)))
		}
		heap.Push(&due, turn{n.at.Add(wait), n.of})
		if half == 0 && paired >= sessions/2 {
			half = q.next - 3185
		}
		all = max(all, q.next-3185)
	}
	return half, all
}

// TestLockstepSessions: sessions of one host with equal first PSNs are paired while their
// PSNs are still alike: soon where they overtake each other or ask for different things,
// and also where all ask for the same in the same order for ever.
func TestLockstepSessions(t *testing.T) {
	const most, us = 2000, time.Microsecond
	mixed := []hdr.Opcode{hdr.WriteOnly, hdr.ReadRequest, hdr.CompareSwap}
	for _, c := range []struct {
		name          string
		sessions      int
		ops           []hdr.Opcode
		jitter, apart time.Duration
	}{
		{"alike, overtaking", 11, mixed[2:], 8 * us, 0}, {"alike, overtaking", 64, mixed[2:], 8 * us, 0},
		{"mixed, overtaking", 11, mixed, 8 * us, 0}, {"mixed, overtaking", 64, mixed, 8 * us, 0},
		{"alike, one after the other", 11, mixed[2:], 0, 10 * us}, {"alike, one after the other", 64, mixed[2:], 0, 10 * us},
		{"mixed, at once", 11, mixed, 0, 0}, {"mixed, at once", 64, mixed, 0, 0},
	} {
		t.Run(fmt.Sprintf("%s/%d", c.name, c.sessions), func(t *testing.T) {
			half, all := lockstep(t, c.sessions, c.ops, c.jitter, c.apart, most)
			t.Logf("half were paired after %d requests each, all after %d", half, all)
			if all == 0 {
				t.Errorf("not all were paired after %d requests each", most)
			}
		})
	}
}

// TestIdleClient: a client that asks for nothing gets no answers. That does not make another queue pair,
// which is answered all the time, the client of its connection.
func TestIdleClient(t *testing.T) {
	x, a, unseen := newTable(t, Config{Rows: 4, Infer: true, Settle: settle}), nth(0), nth(1)
	for p := range uint32(8) {
		for _, b := range [][]byte{a.request(hdr.WriteOnly, p), unseen.response(hdr.Acknowledge, p), a.response(hdr.Acknowledge, p)} {
			if _, e := feed(x, clock.Time(p)*clock.Time(settle), b); e == NowPaired {
				t.Fatal("paired while two queue pairs are answered alike")
			}
		}
	}
	for i := range 20 {
		run(t, x, clock.Time(i)*clock.Time(time.Second/4), step{"", unseen.response(hdr.Acknowledge, 7), Waiting})
	}
}

// TestVoicesInTime: voices whose connections are no more make room for others'.
func TestVoicesInTime(t *testing.T) {
	x := newTable(t, Config{Rows: 64, Infer: true, Settle: settle, HalfOpen: time.Hour})
	now := clock.Time(0)
	for round := range 6 {
		now = now.Add(2 * time.Second)
		for i := range 60 {
			c := nth(0)
			c.client, c.cqpn = host(2+i%3), uint32(1000*(1+round)+i)
			feed(x, now, c.request(hdr.WriteOnly, uint32(round)))
			feed(x, now, c.response(hdr.Acknowledge, uint32(round)))
		}
		for range 8 { // each looks at a part
			feed(x, now, nth(0).response(hdr.Acknowledge, uint32(round)))
		}
		if err := x.verify(); err != nil {
			t.Fatal(err)
		}
		heard := 0
		for i := range x.voices {
			if v := &x.voices[i]; v.bit != 0 && v.qpn >= uint32(1000*(1+round)) {
				heard++
			}
		}
		if heard < 4 {
			t.Errorf("round %d: %d voices", round, heard)
		}
	}
	// Answers to requests that were not asked take no room.
	x = newTable(t, Config{Rows: 64, Infer: true})
	for i := range 1000 {
		c := nth(0)
		c.cqpn = uint32(100 + i)
		feed(x, 1, c.response(hdr.Acknowledge, 9))
	}
	if len(x.mute) != len(x.voices) {
		t.Errorf("%d voices of %d are free", len(x.mute), len(x.voices))
	}
}

func TestMatch(t *testing.T) {
	for name, c := range map[string]struct {
		rows []candidate
		want [2]Slot // of voices 1 and 2
	}{
		"one each":           {[]candidate{{row: 0, maybe: 1}, {row: 1, maybe: 2}}, [2]Slot{0, 1}},
		"what is left":       {[]candidate{{row: 0, maybe: 3}, {row: 1, maybe: 1}}, [2]Slot{1, 0}},
		"a third row":        {[]candidate{{row: 0, maybe: 1}, {row: 1, maybe: 3, open: true}}, [2]Slot{NoSlot, NoSlot}},
		"a third voice":      {[]candidate{{row: 0, maybe: 1}, {row: 1, maybe: 7}}, [2]Slot{NoSlot, NoSlot}},
		"one for two":        {[]candidate{{row: 0, maybe: 1}, {row: 1, maybe: 1}}, [2]Slot{NoSlot, NoSlot}},
		"either":             {[]candidate{{row: 0, maybe: 3}, {row: 1, maybe: 3}}, [2]Slot{NoSlot, NoSlot}},
		"doubted":            {[]candidate{{row: 0, maybe: 1, doubted: 1}, {row: 1, maybe: 2}}, [2]Slot{NoSlot, 1}},
		"built on what fell": {[]candidate{{row: 0, maybe: 1}, {row: 1, maybe: 3}, {row: 2, maybe: 1, open: true}}, [2]Slot{NoSlot, NoSlot}},
	} {
		for i, want := range c.want {
			rows := append([]candidate(nil), c.rows...)
			if got := match(rows, 1<<i); got != want {
				t.Errorf("%s: voice %d is of row %d, want %d", name, i+1, got, want)
			}
		}
	}
}

// TestNotes: answers that do not tell which queue pair is the client's.
func TestNotes(t *testing.T) {
	c := nth(0)
	for name, frames := range map[string]func(p uint32) []byte{
		"a refusal of what was not asked": func(p uint32) []byte {
			b := c.response(hdr.Acknowledge, p+1)
			b[54] = byte(hdr.SynNAKSequence)
			return b
		},
		"an acknowledgement of all before": func(p uint32) []byte { return c.response(hdr.Acknowledge, p) },
		"the same answer again":            func(uint32) []byte { return c.response(hdr.Acknowledge, 5) },
	} {
		x := newTable(t, Config{Rows: 4, Infer: true, Settle: settle})
		for p := range uint32(12) {
			now := clock.Time(p) * clock.Time(settle)
			feed(x, now, c.request(hdr.CompareSwap, p))
			feed(x, now, frames(p))
		}
		for i := range x.notes {
			if n := &x.notes[i]; n.few|n.many != 0 && (name != "the same answer again" || n.many != 0) {
				t.Errorf("%s: %+v", name, n)
			}
		}
	}
	// A request from before the row was made is answered soon after.
	x := newTable(t, Config{Rows: 4, Infer: true, Settle: settle})
	for p := range uint32(6) {
		feed(x, 1, c.request(hdr.WriteOnly, p))
		feed(x, 1, c.response(hdr.Acknowledge, p+8))
	}
	for i := range x.notes {
		if n := &x.notes[i]; n.few|n.many != 0 {
			t.Errorf("%+v", n)
		}
	}
	// It takes three answers, whatever the time.
	x = newTable(t, Config{Rows: 4, Infer: true, Settle: settle})
	feed(x, 0, c.request(hdr.WriteOnly, 0))
	feed(x, 0, c.response(hdr.Acknowledge, 0))
	for p := uint32(1); p < 8; p++ {
		feed(x, clock.Time(p)*clock.Time(settle), c.request(hdr.WriteOnly, p))
	}
	run(t, x, clock.Time(8*settle), step{"second", c.response(hdr.Acknowledge, 6), Waiting})
	run(t, x, clock.Time(9*settle), step{"third", c.response(hdr.Acknowledge, 7), NowPaired})
}

// TestRepetitionForgetsNobody: when a client repeats a request, the evidence against other queue pairs is
// dropped, but not the queue pairs that may be its own.
func TestRepetitionForgetsNobody(t *testing.T) {
	x, a, b := newTable(t, Config{Rows: 16, Infer: true}), nth(0), nth(1)
	ask := func(c *connection, p uint32) step { return step{"", c.request(hdr.WriteOnly, p), anyEvent} }
	ack := func(c *connection, p uint32) step { return step{"", c.response(hdr.Acknowledge, p), anyEvent} }
	run(t, x, 1, ask(a, 0), ask(a, 0), ack(a, 0), ask(a, 0), ask(b, 0), ask(b, 0), ack(b, 0), ask(b, 0), ask(a, 1), ack(a, 1), ask(a, 2), ask(a, 3),
		ask(b, 1), ask(b, 2), ask(b, 3), step{"either", a.response(hdr.Acknowledge, 2), Ambiguous})
}

// TestNoVoice: there is one place for voices, and a connection whose requests are not seen has
// it. What tells that the other is not gone is that it is refused after a lost request, a round later.
func TestNoVoice(t *testing.T) {
	x, a, unseen := newTable(t, Config{Rows: 1, Infer: true, Settle: settle}), nth(0), nth(1)
	ask := func(p uint32) step { return step{"", a.request(hdr.WriteOnly, p), anyEvent} }
	ack := func(c *connection, p uint32) step {
		return step{"", c.response(hdr.Acknowledge, p), Waiting}
	}
	at := func(n int) clock.Time { return clock.Time(n) * clock.Time(settle) }
	for p := range uint32(4) {
		run(t, x, at(int(p)), ask(p), ack(unseen, p), ack(a, p))
	}
	if len(x.voices) != 1 {
		t.Fatalf("%d voices", len(x.voices))
	}
	run(t, x, at(4), ask(4)) // it is lost
	run(t, x, at(5), ask(5), ack(unseen, 5))
	nak := a.response(hdr.Acknowledge, 4)
	nak[54] = byte(hdr.SynNAKSequence)
	run(t, x, at(6), step{"refused", nak, Waiting}, ask(6), ack(unseen, 6))
}

// The most work that a response may make: 64 rows, each of which depends on the one behind it.
func BenchmarkMatch(b *testing.B) {
	var all [maxVoices]candidate
	for i := range all {
		all[i] = candidate{row: Slot(i), maybe: 1<<(maxVoices-i) - 1}
	}
	for _, open := range []bool{false, true} {
		b.Run(fmt.Sprintf("open=%v", open), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rows := all
				rows[0].open = open
				if got := match(rows[:], 1); (got == NoSlot) != open {
					b.Fatal(got)
				}
			}
		})
	}
}
