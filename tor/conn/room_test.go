package conn

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// first is the PSN that connection n begins with: connections that count alike
// cannot be told apart.
func first(n int) uint32 { return uint32(n) << 8 & hdr.PSNMask }

// born makes an inferred row of connection n, paired or half-open.
func born(x *Table, now clock.Time, n int, paired bool) Slot {
	c := nth(n)
	s, e := feed(x, now, c.request(hdr.WriteOnly, first(n)))
	if e == Full || !paired {
		return s
	}
	for p := range uint32(3) {
		feed(x, now, c.request(hdr.WriteOnly, first(n)+p))
		feed(x, now, c.response(hdr.Acknowledge, first(n)+p))
	}
	s, _ = x.Find(AddrFrom(c.client), c.cqpn)
	return s
}

// TestRoom: in a full table the row goes that was quiet longest, for long
// enough, and of those that may; when there is none, nothing changes.
func TestRoom(t *testing.T) {
	const yield = 5 * time.Second
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.IntRange(1, 9).Draw(t, "rows")
		type row struct {
			n                    int
			last                 clock.Time
			paired, pinned, goes bool
		}
		var all []*row
		bySlot := map[Slot]*row{}
		var removed []*row
		x, err := New(Config{Rows: rows, Infer: true, Yield: yield, Settle: -1, Reuse: 1,
			OnRemove: func(s Slot) { removed = append(removed, bySlot[s]); delete(bySlot, s) },
			LetGo:    func(s Slot) bool { return bySlot[s].goes }})
		if err != nil {
			t.Fatal(err)
		}
		now := clock.Time(time.Hour)
		for n := range rapid.IntRange(rows, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
			if len(all) > 0 && rapid.Bool().Draw(t, "touch") {
				r := all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
				if _, e := feed(x, now, nth(r.n).request(hdr.WriteOnly, first(r.n)+2)); e != Known && e != Waiting {
					t.Fatal(e)
				}
				r.last = now
				continue
			}
			guesses, free := 0, len(all) < rows
			var guess, paired *row
			for _, r := range all {
				quiet := now.Sub(r.last) >= yield
				switch {
				case !r.paired:
					guesses++
					if quiet && (guess == nil || r.last < guess.last) {
						guess = r
					}
				case quiet && (!r.pinned || r.goes) && (paired == nil || r.last < paired.last):
					paired = r
				}
			}
			victim := guess
			if victim == nil && guesses < max(1, rows/4) {
				victim = paired
			}
			before := x.Displaced()
			removed = nil
			r := &row{n: n, last: now, paired: rapid.Bool().Draw(t, "paired")}
			s := born(x, now, n, r.paired)
			if (s == NoSlot) != (!free && victim == nil) {
				t.Fatalf("slot %d with %d of %d rows, victim %+v", s, len(all), rows, victim)
			}
			if err := x.verify(); err != nil {
				t.Fatal(err)
			}
			if free || victim == nil {
				if len(removed) != 0 || x.Displaced() != before {
					t.Fatalf("%+v went", removed[0])
				}
			} else {
				// Among those that were quiet equally long any may go.
				if len(removed) != 1 || removed[0].last != victim.last || removed[0].paired != victim.paired || x.Displaced() != before+1 {
					t.Fatalf("%+v went, want %+v", removed, victim)
				}
				for i := range all {
					if all[i] == removed[0] {
						all = append(all[:i], all[i+1:]...)
						break
					}
				}
			}
			if s == NoSlot {
				continue
			}
			if r.paired && rapid.Bool().Draw(t, "pin") {
				x.Pin(s)
				r.pinned = true
				// An owner that does not let a row go may do so later, but is not asked again soon. So here
				// each owner always lets go, or never.
				r.goes = rapid.Bool().Draw(t, "goes")
			}
			all, bySlot[s] = append(all, r), r
		}
	})
}

// A table full of living connections refuses new ones, however many come.
func TestFullOfLiving(t *testing.T) {
	const rows = 64
	x := newTable(t, Config{Rows: rows, Infer: true})
	now := clock.Time(0)
	for n := range rows {
		born(x, now, n, true)
	}
	for round := range 20 {
		now = now.Add(time.Second)
		for n := range rows {
			if _, e := feed(x, now, nth(n).request(hdr.WriteOnly, first(n)+2)); e != Known {
				t.Fatal(e)
			}
		}
		for n := range 100 {
			run(t, x, now.Add(999*time.Millisecond), step{"another", nth(1000+100*round+n).request(hdr.WriteOnly, 1), Full})
		}
	}
	if x.Displaced() != 0 || x.Len() != rows {
		t.Error(x.Displaced(), x.Len())
	}
}

// A sender of forged requests or handshakes gets a part of the places, and none of a connection that lives,
// was announced or is held.
func TestRoomForSpoofers(t *testing.T) {
	const rows = 64
	x := newTable(t, Config{Rows: rows, Infer: true})
	for n := range rows {
		if n < 16 {
			pairUp(t, x, 0, nth(n))
		} else if s := born(x, 0, n, true); n < 24 {
			x.Pin(s)
		}
	}
	later := clock.Time(time.Minute)
	for n := 24; n < 32; n++ {
		feed(x, later, nth(n).request(hdr.WriteOnly, first(n)+2))
	}
	for n := range 1000 {
		feed(x, later, nth(1000+n).request(hdr.WriteOnly, 1))
	}
	for n := range 1000 {
		feed(x, later.Add(time.Second), nth(3000+n).connectRequest())
	}
	check(t, x)
	left := 0
	for n := range rows {
		s, _ := x.Find(AddrFrom(nth(n).client), nth(n).cqpn)
		if s != NoSlot {
			left++
		} else if n < 32 {
			t.Errorf("connection %d went", n)
		}
	}
	if left != rows-rows/4 {
		t.Errorf("%d connections left, want %d", left, rows-rows/4)
	}
	// The made-up ones make room for others in turn.
	x.Sweep(later.Add(2 * time.Minute))
	if _, e := feed(x, later.Add(2*time.Minute), nth(9000).request(hdr.WriteOnly, 1)); e != Opened {
		t.Error(e)
	}
}

// The owner of a pinned row that was quiet is asked, once in a while.
func TestLetGo(t *testing.T) {
	asked, goes := 0, false
	x := newTable(t, Config{Rows: 4, Infer: true, LetGo: func(Slot) bool { asked++; return goes }})
	for n := range 4 {
		x.Pin(born(x, 0, n, true))
	}
	at := clock.Time(5 * time.Second)
	for n := range 100 {
		run(t, x, at-1, step{"soon", nth(100+n).request(hdr.WriteOnly, 1), Full})
	}
	if asked != 0 {
		t.Errorf("asked %d times about rows that were not quiet", asked)
	}
	for n := range 100 {
		run(t, x, at.Add(clock.Duration(n)), step{"later", nth(100+n).request(hdr.WriteOnly, 1), Full})
	}
	if asked != 4 {
		t.Errorf("asked %d times about 4 rows", asked)
	}
	goes = true
	run(t, x, at.Add(clock.Duration(at)), step{"another", nth(500).request(hdr.WriteOnly, 1), Opened})
	if asked != 5 || x.Displaced() != 1 {
		t.Error(asked, x.Displaced())
	}
}

// TestLetGoWhenIdle: a row that its owner does not let go stays, however long it was quiet. A stranger's
// request does not take a connection that is known for sure either.
func TestLetGoWhenIdle(t *testing.T) {
	goes := false
	x := newTable(t, Config{Rows: 4, Infer: true, Idle: time.Minute, LetGo: func(Slot) bool { return goes }})
	x.Pin(born(x, 0, 1, true))
	for _, goes = range []bool{false, true} {
		if n := x.Sweep(clock.Time(time.Hour)); n != map[bool]int{true: 1}[goes] {
			t.Errorf("may go %v: %d rows went", goes, n)
		}
	}
	c, other := nth(7), nth(8)
	pairUp(t, x, 0, c)
	other.sqpn, other.client = c.sqpn, host(9)
	run(t, x, clock.Time(5*time.Second), step{"a stranger's request", other.request(hdr.WriteOnly, 1), Spoofed})
}

// TestCandidatesAreBounded: an answer is compared with so many rows between two hosts at most.
func TestCandidatesAreBounded(t *testing.T) {
	x := newTable(t, Config{Rows: 1 << 13, Infer: true})
	c := nth(1)
	for n := range uint32(2 * maxCandidates) {
		c.sqpn = 1000 + n
		if _, e := feed(x, 1, c.request(hdr.WriteOnly, first(int(n)))); e != map[bool]Event{true: Opened, false: Full}[n < maxCandidates] {
			t.Fatalf("row %d: %v", n, e)
		}
	}
}

// Requests of unknown connections when there is no room: the table is full of living connections, or full of
// quiet ones that are pinned.
func BenchmarkNoRoom(b *testing.B) {
	for _, pinned := range []bool{false, true} {
		b.Run(map[bool]string{false: "living", true: "pinned"}[pinned], func(b *testing.B) {
			const rows = 4096
			x := newTable(b, Config{Rows: rows, Infer: true, Idle: 1000 * time.Hour, LetGo: func(Slot) bool { return false }})
			for n := range rows {
				if s := born(x, 0, n, true); pinned {
					x.Pin(s)
				} else {
					x.rows[s].LastSeen = clock.Time(time.Hour)
				}
			}
			frame := nth(1<<20).request(hdr.WriteOnly, 1)
			var f hdr.Frame
			hdr.Parse(frame, &f)
			now := clock.Time(time.Hour)
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Microsecond)
				if !pinned && now > clock.Time(time.Hour+4*time.Second) {
					now = clock.Time(time.Hour)
				}
				if _, e := request(x, now, frame, &f); e != Full {
					b.Fatal(e)
				}
			}
		})
	}
}

// TestClaims: whatever others send to the queue pairs of inferred connections, and however long these were
// quiet, their numbers stay theirs as long as the server answers no other client. Each connection goes on at
// any time.
func TestClaims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, err := New(Config{Rows: rapid.IntRange(4, 16).Draw(t, "rows"), Infer: true, Yield: time.Hour, Settle: -1})
		if err != nil {
			t.Fatal(err)
		}
		now := clock.Time(0)
		psn := [4]uint32{}
		for n := range psn {
			if s := born(x, now, n, true); x.Row(s).State != Paired {
				t.Fatal(n)
			}
			psn[n] = first(n) + 3
		}
		spoofed := 0
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 2500).Draw(t, "ms")) * time.Millisecond)
			n := rapid.IntRange(0, 3).Draw(t, "which")
			c := nth(n)
			var s Slot
			var e Event
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				if s, e = feed(x, now, c.request(hdr.WriteOnly, psn[n])); e != Known {
					t.Fatalf("request of %d: %v", n, e)
				}
				psn[n]++
			case 1:
				if s, e = feed(x, now, c.response(hdr.Acknowledge, psn[n]-1)); e != Known {
					t.Fatalf("response to %d: %v", n, e)
				}
			case 2, 3:
				at := (psn[n] + uint32(rapid.IntRange(0, 4).Draw(t, "ahead")) - 2) & hdr.PSNMask
				s, e = feed(x, now, spec{op: hdr.WriteOnly, src: host(rapid.IntRange(7, 8).Draw(t, "from")), dst: c.server, qpn: c.sqpn, psn: at}.bytes())
				if e != Spoofed && e != Opened && e != Waiting && e != Full {
					t.Fatal(e)
				}
				spoofed++
			}
			if r := Slot(n); s == r && e != Known {
				t.Fatalf("%v of another with the row of %d", e, n)
			}
			if err := x.verify(); err != nil {
				t.Fatal(err)
			}
			if s, _ := x.Find(AddrFrom(c.server), c.sqpn); s == NoSlot || x.Row(s).Client.Addr.Netip() != c.client || x.Row(s).State != Paired {
				t.Fatalf("%d lost its row after %d frames of others", n, spoofed)
			}
		}
	})
}

// TestStrangersAreBounded: a sender of forged requests and handshakes, from one address or from many, has a
// quarter of the places, half of those from one address (and of these half are for handshakes). No known
// connection loses its row, and others are learnt meanwhile.
func TestStrangersAreBounded(t *testing.T) {
	const rows, live = 1024, 700
	for _, many := range []bool{false, true} {
		x := newTable(t, Config{Rows: rows, Infer: true})
		for n := range live {
			if n%2 == 0 {
				pairUp(t, x, 0, nth(n))
			} else {
				born(x, 0, n, true)
			}
		}
		before := make([]Row, live)
		for s := range before {
			before[s] = x.rows[s]
		}
		most := rows / 8
		if many {
			most = rows / 4
		}
		for n := range 5000 {
			c := nth(5000 + n)
			if c.client = host(66); many {
				c.client = netip.AddrFrom4([4]byte{10, 6, byte(n >> 8), byte(n)})
			}
			c.server = netip.AddrFrom4([4]byte{10, 7, 0, byte(n)}) // so that no list is full
			feed(x, clock.Time(n), c.request(hdr.WriteOnly, 7))
			if n%8 == 0 {
				feed(x, clock.Time(n), c.connectRequest())
			}
			// To a connection that is known, with its client's address and with others.
			k := nth(n % live)
			if many {
				feed(x, clock.Time(n), k.request(hdr.WriteOnly, uint32(0x700000+n/live)))
			}
			k.client = c.client
			feed(x, clock.Time(n), k.request(hdr.WriteOnly, uint32(n)))
		}
		check(t, x)
		if half := len(x.quiet[guesses]) + len(x.quiet[handshakes]); half > most || x.Displaced() > 5000 {
			t.Errorf("many %v: %d half-open rows, %d displaced", many, half, x.Displaced())
		}
		if one := *x.halves(guesses, AddrFrom(host(66))); int(one) > rows/16 {
			t.Errorf("%d half-open rows of one host", one)
		}
		for s := range before {
			if r := x.Row(Slot(s)); !x.Used(Slot(s)) || r.Client.QPN != before[s].Client.QPN || r.State != Paired || r.Learnt != before[s].Learnt {
				t.Fatalf("row %d: %v, was %v", s, r, &before[s])
			}
		}
		if !many {
			c := nth(20000)
			c.client = host(44)
			inferred(t, x, 1, c, 0x500000)
		}
	}
}
