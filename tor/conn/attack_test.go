package conn

import (
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// A sender of forged requests chooses the names of half-open rows. The cost of finding the names of others
// does not depend on that choice: the hash is keyed, if the owner of the table gives a key.
func TestAttackChosenNames(t *testing.T) {
	const rows = 1 << 16
	cost := func(chosen bool) time.Duration {
		x := newTable(t, Config{Rows: rows, Infer: true, Seed: 0x5EED})
		guess := newNames(2*rows, 0) // keyed with the seed that everybody knows
		dst := AddrFrom(netip.AddrFrom4([4]byte{10, 9, 0, 1}))
		n := 0
		for q := uint32(2); n < rows/4 && q < 1<<24; q++ {
			if chosen && (guess.hash(dst, q)>>6)&(uint32(len(x.qps.E)>>6)-1) > 16 {
				continue
			}
			b := spec{op: hdr.WriteOnly, src: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), dst: netip.AddrFrom4([4]byte{10, 9, 0, 1}), qpn: q, psn: 7}.bytes()
			if _, e := feed(x, 1, b); e == Opened {
				n++
			}
		}
		// A victim's name that is found among them. It is there by chance only: one name in 128 is.
		var names []uint32
		for q := uint32(1 << 23); len(names) < 1000; q++ {
			if (guess.hash(dst, q)>>6)&(uint32(len(x.qps.E)>>6)-1) <= 16 {
				names = append(names, q)
			}
		}
		best := time.Hour
		for range 3 {
			begin := time.Now()
			for _, q := range names {
				x.find(dst, q)
			}
			best = min(best, time.Since(begin)/1000)
		}
		t.Logf("chosen: %v, %d rows: %v", chosen, n, best)
		return best
	}
	if fair, chosen := cost(false), cost(true); chosen > 20*fair+time.Microsecond {
		t.Errorf("to find a row takes %v; %v when somebody chose names", fair, chosen)
	}
}

// A DisconnectRequest that the server never got ends no connection: its answers go on, or its owner keeps the
// row.
func TestAttackUnseenDisconnect(t *testing.T) {
	goes := false
	x := newTable(t, Config{Rows: 4, Close: 5 * time.Second, LetGo: func(Slot) bool { return goes }})
	c := nth(1)
	x.Pin(pairUp(t, x, 1, c))
	run(t, x, 2, step{"disconnect", c.tell(hdr.DisconnectRequest, true), IsClosing}, step{"a late answer", c.response(hdr.Acknowledge, c.cpsn), IsClosing})
	if n := x.Sweep(clock.Time(time.Minute)); n != 0 {
		t.Fatal("its row goes")
	}
	run(t, x, clock.Time(time.Minute), step{"an answer long after", c.response(hdr.Acknowledge, c.cpsn), Known}, step{"a request", c.request(hdr.WriteOnly, c.cpsn), Known})
	run(t, x, clock.Time(time.Minute), step{"disconnect", c.tell(hdr.DisconnectRequest, true), IsClosing})
	if goes = true; x.Sweep(clock.Time(2*time.Minute)) != 1 {
		t.Error("its row stays, though its owner lets go of it")
	}
}

// A handshake in the name of a client's queue pair that is quiet takes the row of no connection that its owner keeps, unless the server says
// that its own queue pair is the new connection's.
func TestAttackMadeUpHandshake(t *testing.T) {
	for _, own := range []bool{false, true} {
		x := newTable(t, Config{Rows: 8, LetGo: func(Slot) bool { return false }})
		c := nth(1)
		s := pairUp(t, x, 1, c)
		x.Pin(s)
		made := *c
		if made.cid, made.sid, made.cpsn = made.cid+100, made.sid+100, made.cpsn+9999; !own {
			made.sqpn += 77
		}
		last := Waiting
		if own {
			last = NowPaired
		}
		run(t, x, 5, step{"request", made.connectRequest(), Opened}, step{"reply", made.connectReply(), Waiting}, step{"ready", made.tell(hdr.ReadyToUse, true), last})
		if got, _ := x.Find(AddrFrom(c.client), c.cqpn); (got == s) == own {
			t.Errorf("the server names its own queue pair %v: the client's is of row %d, and was of %d", own, got, s)
		}
	}
}

// A connection that is named while it is in use stays in its row; one that its owner keeps is no other's.
func TestAttackNamedInUse(t *testing.T) {
	x := newTable(t, Config{Rows: 8, Infer: true, LetGo: func(Slot) bool { return false }})
	s := born(x, 0, 1, true)
	x.Pin(s)
	of := func(s Slot) StaticConn {
		r := x.Row(s)
		return StaticConn{Client: r.Client.Addr.Netip(), ClientQPN: r.Client.QPN, Server: r.Server.Addr.Netip(), ServerQPN: r.Server.QPN}
	}
	if got, err := x.AddStatic(1, of(s)); err != nil || got != s || x.Row(s).Learnt != Static {
		t.Error(got, err, x.Row(s).Learnt)
	}
	o := born(x, 0, 2, true)
	x.Pin(o)
	other := of(o)
	other.ClientQPN++
	if _, err := x.AddStatic(1, other); err == nil {
		t.Error("a queue pair that is in use is another connection's")
	}
}
