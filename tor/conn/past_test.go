package conn

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// nth is an example with queue pairs and names of its own.
func nth(n int) *connection {
	c := example()
	c.cqpn, c.sqpn, c.cid, c.sid = c.cqpn+uint32(n), c.sqpn+uint32(n), c.cid+uint32(n), c.sid+uint32(n)
	return c
}

// What the ends of a connection say about it after its end is genuine for a
// while, takes no row, and can still be told from what others say.
func TestTimeWait(t *testing.T) {
	c := example()
	disconnect := func(t *testing.T, x *Table, now clock.Time, c *connection) {
		t.Helper()
		run(t, x, now, step{"disconnect", c.tell(hdr.DisconnectRequest, true), IsClosing}, step{"confirmed", c.tell(hdr.DisconnectReply, false), Removed})
	}
	x := newTable(t, Config{Rows: 1, TimeWait: time.Minute})
	pairUp(t, x, 1, c)
	disconnect(t, x, 2, c)
	wrong, other, third := *c, *c, *c
	wrong.cid++
	other.client = host(66)
	third.sqpn++
	late := []step{
		{"the other's reply", c.tell(hdr.DisconnectReply, true), Ended},
		{"a request again", c.tell(hdr.DisconnectRequest, true), Ended},
		{"of the other", c.tell(hdr.DisconnectRequest, false), Ended},
		{"its reply again", c.tell(hdr.DisconnectReply, false), Ended},
		{"ready, again", c.tell(hdr.ReadyToUse, true), Ended},
		{"from another address", other.tell(hdr.DisconnectRequest, true), Spoofed},
		{"with a wrong name", wrong.tell(hdr.DisconnectReply, true), Forged},
		{"for another queue pair", third.tell(hdr.DisconnectRequest, true), Forged},
		{"to a third", spec{src: c.client, dst: host(66), cm: &hdr.CMFields{AttributeID: hdr.DisconnectReply, LocalCommID: c.cid, RemoteCommID: c.sid}}.bytes(), Stray},
	}
	run(t, x, clock.Time(time.Minute)+1, late...)
	if x.Len() != 0 {
		t.Errorf("%d rows", x.Len())
	}
	// A new connection between the two has the row. Late messages about the old connection do not touch the
	// new one, not even when the new one has the old names.
	d := nth(1)
	run(t, x, 3, step{"request", d.connectRequest(), Opened}, step{"reply", d.connectReply(), NowPaired})
	run(t, x, 4, late...)
	if s, _ := x.Find(AddrFrom(d.client), d.cqpn); s == NoSlot || x.Row(s).State != Paired {
		t.Fatal("the next connection was touched")
	}
	disconnect(t, x, 5, d)
	pairUp(t, x, 6, c)
	run(t, x, 6, step{"again", c.tell(hdr.DisconnectReply, true), Forged}) // the end of this connection was not asked for
	disconnect(t, x, 7, c)
	run(t, x, 7+clock.Time(time.Minute)-1, step{"in time", c.tell(hdr.DisconnectReply, true), Ended})
	run(t, x, 7+clock.Time(time.Minute), step{"too late", c.tell(hdr.DisconnectReply, true), Stray})

	// A disconnect that was never confirmed, and a connection that was refused.
	x = newTable(t, Config{Rows: 2, Close: time.Second})
	pairUp(t, x, 1, c)
	run(t, x, 2, step{"disconnect", c.tell(hdr.DisconnectRequest, true), IsClosing},
		step{"request", d.connectRequest(), Opened}, step{"refused", d.tell(hdr.ConnectReject, false), Removed}, step{"again", d.tell(hdr.ConnectReject, false), Ended})
	if x.Sweep(clock.Time(2 * time.Second)); x.Len() != 0 {
		t.Fatal(x.Len())
	}
	run(t, x, clock.Time(8*time.Second), step{"asked again", c.tell(hdr.DisconnectRequest, true), Ended}, step{"confirmed", c.tell(hdr.DisconnectReply, false), Ended})
}

// As many are remembered as there are rows, the oldest is forgotten first.
func TestTimeWaitIsBounded(t *testing.T) {
	x := newTable(t, Config{Rows: 4})
	for n := range 100 {
		c := nth(n)
		pairUp(t, x, 1, c)
		run(t, x, 1, step{"disconnect", c.tell(hdr.DisconnectRequest, true), IsClosing}, step{"confirmed", c.tell(hdr.DisconnectReply, false), Removed})
		for k := range min(n+1, 6) {
			want := Ended
			if k >= 4 {
				want = Stray
			}
			run(t, x, 1, step{"the other's reply", nth(n-k).tell(hdr.DisconnectReply, true), want})
		}
	}
}

// A handshake that finds no room passes, each message of it: none contradicts what is known.
func TestHandshakeWithoutRoom(t *testing.T) {
	x, c, d := newTable(t, Config{Rows: 1}), example(), nth(1)
	pairUp(t, x, 1, c)
	run(t, x, 2, step{"request", d.connectRequest(), Full}, step{"reply", d.connectReply(), Stray}, step{"ready", d.tell(hdr.ReadyToUse, true), Stray},
		step{"data", d.request(hdr.WriteOnly, d.cpsn), Foreign}, step{"disconnect", d.tell(hdr.DisconnectRequest, false), Stray}, step{"confirmed", d.tell(hdr.DisconnectReply, true), Stray})
	if s, _ := x.Find(AddrFrom(c.client), c.cqpn); s == NoSlot || x.Row(s).State != Paired {
		t.Error("the one that is there was touched")
	}
}

// Both queue pairs of a connection are connected anew twice, and late copies of the first handshake come after the third one,
// whose ReadyToUse is lost: the first request pairs the third connection all the same.
func TestLateHandshake(t *testing.T) {
	for _, ended := range []bool{true, false} {
		x := newTable(t, Config{Rows: 4})
		var c [3]*connection
		for i := range c {
			c[i] = nth(i)
			c[i].cqpn, c[i].sqpn, c[i].cpsn, c[i].spsn, c[i].tid = c[0].cqpn, c[0].sqpn, uint32(i+1)<<20, uint32(i+1)<<16, uint64(i+1)
		}
		pairUp(t, x, 1, c[0])
		if ended {
			run(t, x, 2, step{"disconnect", c[0].tell(hdr.DisconnectRequest, true), IsClosing}, step{"confirmed", c[0].tell(hdr.DisconnectReply, false), Removed})
		}
		run(t, x, 3, step{"request", c[1].connectRequest(), Opened}, step{"reply", c[1].connectReply(), anyEvent}, step{"ready", c[1].tell(hdr.ReadyToUse, true), anyEvent})
		run(t, x, 5, step{"request", c[2].connectRequest(), Opened}, step{"reply", c[2].connectReply(), Waiting},
			step{"late request", c[0].connectRequest(), Ended}, step{"late reply", c[0].connectReply(), Ended}, step{"late ready", c[0].tell(hdr.ReadyToUse, true), Ended})
		if s, e := feed(x, 6, c[2].request(hdr.WriteOnly, c[2].cpsn)); e != NowPaired || x.Row(s).Client.CommID != c[2].cid {
			t.Errorf("ended=%v: the first request: %v", ended, e)
		}
	}
}
