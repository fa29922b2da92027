package conn

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// Clients connect by the connection manager and send nothing, as many as there are rows. They do not keep a client that comes later from
// being followed: the one that was quiet longest makes room. Who has used its connection keeps its row, however quiet it is, and so does
// who has just connected.
func TestUnusedMakeRoom(t *testing.T) {
	const rows, yield = 8, 5 * time.Second
	x, err := New(Config{Rows: rows, Infer: true, Yield: yield, Settle: -1})
	if err != nil {
		t.Fatal(err)
	}
	now := clock.Time(time.Hour)
	connect := func(n int) Slot {
		t.Helper()
		c := nth(n)
		c.cid, c.sid, c.tid, c.mtu = uint32(1000+n), uint32(2000+n), uint64(n+1), 1024
		feed(x, now, c.connectRequest())
		feed(x, now, c.connectReply())
		feed(x, now, c.tell(hdr.ReadyToUse, true))
		s, _ := x.Find(AddrFrom(c.client), c.cqpn)
		return s
	}
	for n := range rows {
		if connect(n) == NoSlot {
			t.Fatalf("connection %d has no row", n)
		}
		now = now.Add(time.Millisecond)
	}
	feed(x, now, nth(0).request(hdr.WriteOnly, first(0)))
	feed(x, now, nth(0).response(hdr.Acknowledge, first(0)))
	if connect(rows) != NoSlot {
		t.Error("one that has just connected makes room")
	}
	now = now.Add(yield)
	for n := rows + 1; n < 3*rows; n++ {
		now = now.Add(time.Millisecond)
		if s := connect(n); s == NoSlot && n < 2*rows {
			t.Errorf("connection %d has no row", n)
		}
		if s, _ := x.Find(AddrFrom(nth(0).client), nth(0).cqpn); s == NoSlot {
			t.Fatal("a connection that was used makes room")
		}
		if err := x.verify(); err != nil {
			t.Fatal(err)
		}
	}
	// The client of one that made room sends after all: its requests pass as they are.
	if _, e := feed(x, now, nth(1).request(hdr.WriteOnly, first(1))); e != Full {
		t.Errorf("its request is %v", e)
	}
}
