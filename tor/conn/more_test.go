package conn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// pairUp makes a paired row of c by the connection manager.
func pairUp(t *testing.T, x *Table, now clock.Time, c *connection) Slot {
	t.Helper()
	run(t, x, now, step{"request", c.connectRequest(), Opened}, step{"reply", c.connectReply(), NowPaired}, step{"ready", c.tell(hdr.ReadyToUse, true), Known})
	s, _ := x.Find(AddrFrom(c.client), c.cqpn)
	return s
}

// inferred makes a paired row of c by its PSNs.
func inferred(t *testing.T, x *Table, now clock.Time, c *connection, psn uint32) {
	t.Helper()
	for i := range uint32(3) {
		p := (psn + i) & hdr.PSNMask
		first, last := Waiting, Waiting
		if i == 0 {
			first = Opened
		}
		if i == 2 {
			last = NowPaired
		}
		run(t, x, now, step{"request", c.request(hdr.WriteOnly, p), first}, step{"answer", c.response(hdr.Acknowledge, p), last},
			step{"the same again", c.response(hdr.Acknowledge, p), map[Event]Event{Waiting: Waiting, NowPaired: Known}[last]})
	}
}

// PSNs count modulo 2^24: in inference, in the window, and in READs.
func TestWrapAround(t *testing.T) {
	for _, start := range []uint32{0, 0xFFFFFD, 0xFFFFFE, 0xFFFFFF, 0x7FFFFF, 0x800000} {
		x, c := newTable(t, Config{Rows: 4, Infer: true}), example()
		inferred(t, x, 1, c, start)
		at := func(i uint32) uint32 { return (start + i) & hdr.PSNMask }
		read := spec{op: hdr.ReadRequest, src: c.client, dst: c.server, qpn: c.sqpn, psn: at(3), dma: 4096}.bytes()
		run(t, x, 2, step{"read", read, Known}, // 4 PSNs at 1024, up to 16 as long as that is not known
			step{"first", spec{op: hdr.ReadRespFirst, src: c.server, dst: c.client, qpn: c.cqpn, psn: at(3), payload: make([]byte, 1024)}.bytes(), Known},
			step{"last", c.response(hdr.ReadRespLast, at(6)), Known},
			step{"next", c.request(hdr.WriteOnly, at(7)), Known},
			step{"its answer", c.response(hdr.Acknowledge, at(7)), Known},
			step{"an answer to what was not asked", c.response(hdr.Acknowledge, at(8)), Unmatched})
		if s, _ := x.Find(AddrFrom(c.server), c.sqpn); x.Row(s).MTU != 1024 || x.Row(s).PKey != 0xFFFF {
			t.Errorf("%+v", x.Row(s))
		}
	}
}

// A READ takes as many PSNs as its answer has packets, one when it is empty or
// longer than any message may be.
func TestReadLength(t *testing.T) {
	for _, x := range []struct{ length, psns uint32 }{{0, 1}, {1, 1}, {1024, 1}, {1025, 2}, {1 << 31, 1 << 21}, {1<<31 + 1, 1}, {1<<32 - 1, 1}} {
		r, c := Row{MTU: 1024}, example()
		b := spec{op: hdr.ReadRequest, src: c.client, dst: c.server, qpn: c.sqpn, dma: x.length}.bytes()
		var f hdr.Frame
		hdr.Parse(b, &f)
		if n := r.psns(b, &f); n != x.psns {
			t.Errorf("READ of %d bytes: %d PSNs, want %d", x.length, n, x.psns)
		}
		if r.MTU = 0; r.psns(b, &f) > maxWindow {
			t.Errorf("READ of %d bytes: %d PSNs", x.length, r.psns(b, &f))
		}
	}
	// Bad lengths do not widen what fits.
	for _, length := range []uint32{0, 1<<32 - 1} {
		x, c := newTable(t, Config{Rows: 4, Infer: true}), example()
		inferred(t, x, 1, c, 100)
		run(t, x, 2, step{"read", spec{op: hdr.ReadRequest, src: c.client, dst: c.server, qpn: c.sqpn, psn: 103, dma: length}.bytes(), Known},
			step{"its answer", c.response(hdr.ReadRespOnly, 103), Known}, step{"what was not asked", c.response(hdr.Acknowledge, 104), Unmatched})
	}
}

// Responses to no request undo an inferred pairing, but not one that is announced, configured or pinned.
func TestContradictions(t *testing.T) {
	c := example()
	wild := func(n uint32) []byte { return c.response(hdr.Acknowledge, 0x500000+n) }
	x := newTable(t, Config{Rows: 4, Infer: true})
	inferred(t, x, 1, c, 100)
	run(t, x, 2, step{"1", wild(1), Unmatched}, step{"2", wild(2), Unmatched}, step{"a good one between", c.response(hdr.Acknowledge, 102), Known},
		step{"1", wild(1), Unmatched}, step{"2", wild(2), Unmatched}, step{"3", wild(3), Unpaired}, step{"then", wild(4), Unmatched})
	// It may be learnt again.
	for i := uint32(103); i < 106; i++ {
		feed(x, 3, c.request(hdr.WriteOnly, i))
		feed(x, 3, c.response(hdr.Acknowledge, i))
	}
	s, _ := x.Find(AddrFrom(c.client), c.cqpn)
	if s == NoSlot {
		t.Fatal("not learnt again")
	}
	x.Pin(s)
	run(t, x, 4, step{"pinned", wild(1), Known}, step{"2", wild(2), Known}, step{"3", wild(3), Known}, step{"4", wild(4), Known},
		step{"any request", c.request(hdr.WriteOnly, 0x700000), Known})

	x = newTable(t, Config{Rows: 4, Infer: true})
	pairUp(t, x, 1, c)
	run(t, x, 2, step{"1", wild(1), Known}, step{"2", wild(2), Known}, step{"3", wild(3), Known})

	// Requests far out of sequence, which anybody may make up, change nothing by themselves, however many
	// they are.
	x = newTable(t, Config{Rows: 4, Infer: true})
	inferred(t, x, 1, c, 100)
	s, _ = x.Find(AddrFrom(c.client), c.cqpn)
	run(t, x, 2, step{"far ahead", c.request(hdr.WriteOnly, 0x300000), Known}, step{"a stray one", c.request(hdr.WriteOnly, 0x600000), Known},
		step{"back", c.request(hdr.WriteOnly, 103), Known}, step{"its answer", c.response(hdr.Acknowledge, 103), Known},
		step{"1", c.request(hdr.WriteOnly, 0x300000), Known}, step{"2", c.request(hdr.WriteOnly, 0x300001), Known}, step{"3", c.request(hdr.WriteOnly, 0x300002), Waiting})
	for p := uint32(0x300003); p < 0x300100; p++ {
		run(t, x, 3, step{"more", c.request(hdr.WriteOnly, p), Waiting})
	}
	run(t, x, 4, step{"the server answers the client", c.response(hdr.Acknowledge, 103), Known}, step{"the client goes on", c.request(hdr.WriteOnly, 104), Known},
		step{"and is answered", c.response(hdr.Acknowledge, 104), Known})
	if x.Len() != 1 || x.Row(s).Client.QPN != c.cqpn {
		t.Error(x.Len(), x.Row(s))
	}
	again := func(now clock.Time, c *connection, last Event) {
		t.Helper()
		for p := uint32(0x300000); p < 0x300003; p++ {
			feed(x, now, c.request(hdr.WriteOnly, p))
		}
		for p := uint32(0x300002); p < 0x300005; p++ {
			run(t, x, now, step{"request", c.request(hdr.WriteOnly, p), Waiting}, step{"answer", c.response(hdr.Acknowledge, p), anyEvent})
		}
		run(t, x, now, step{"request", c.request(hdr.WriteOnly, 0x300005), last}, step{"answer", c.response(hdr.Acknowledge, 0x300005), anyEvent})
	}
	// The same two queue pairs, numbered anew: the server's answers say so.
	again(5, c, Known)
	if x.Len() != 1 || x.Row(s).Client.QPN != c.cqpn || x.Row(s).sent != 0x300005 {
		t.Error(x.Len(), x.Row(s))
	}
	// The client's is another one: that has the server's when the first was silent.
	d := *c
	d.cqpn++
	x = newTable(t, Config{Rows: 4, Infer: true})
	inferred(t, x, 1, c, 100)
	again(clock.Time(time.Second), &d, Waiting)
	x = newTable(t, Config{Rows: 4, Infer: true})
	inferred(t, x, 1, c, 100)
	again(clock.Time(2*time.Second), &d, Known)
	if s, _ := x.Find(AddrFrom(c.server), c.sqpn); x.Len() != 1 || x.Row(s).Client.QPN != d.cqpn {
		t.Error(x.Len(), x.Row(s))
	}
}

// Frames of another sender change nothing.
func TestGuard(t *testing.T) {
	c := example()
	evil, forged := host(66), [6]byte{2, 6, 6, 6, 6, 6}
	from := func(b []byte) []byte { copy(b[6:12], forged[:]); return b }
	for _, learn := range []string{"cm", "static", "inferred"} {
		x := newTable(t, Config{Rows: 4, Infer: true, GuardMAC: true})
		switch learn {
		case "cm":
			pairUp(t, x, 1, c)
			feed(x, 1, c.request(hdr.WriteOnly, c.cpsn))
		case "static":
			if _, err := x.AddStatic(1, StaticConn{Client: c.client, Server: c.server, ClientQPN: c.cqpn, ServerQPN: c.sqpn}); err != nil {
				t.Fatal(err)
			}
			run(t, x, 1, step{"request", c.request(hdr.WriteOnly, 5), Known}, step{"response", c.response(hdr.Acknowledge, 5), Known})
		case "inferred":
			inferred(t, x, 1, c, c.cpsn)
		}
		s, _ := x.Find(AddrFrom(c.server), c.sqpn)
		before := *x.Row(s)
		run(t, x, 2,
			step{"request from another address", spec{op: hdr.WriteOnly, src: evil, dst: c.server, qpn: c.sqpn, psn: c.cpsn + 1}.bytes(), Spoofed},
			step{"request to the client", spec{op: hdr.WriteOnly, src: evil, dst: c.client, qpn: c.cqpn}.bytes(), Spoofed},
			step{"response from another address", spec{op: hdr.Acknowledge, src: evil, dst: c.client, qpn: c.cqpn, psn: c.cpsn}.bytes(), Spoofed},
			step{"response to the server", spec{op: hdr.Acknowledge, src: evil, dst: c.server, qpn: c.sqpn, psn: c.cpsn}.bytes(), Spoofed},
			step{"request with another MAC", from(c.request(hdr.WriteOnly, c.cpsn+1)), Spoofed},
			step{"response with another MAC", from(c.response(hdr.Acknowledge, c.cpsn)), Spoofed},
			step{"reply to nothing", spec{src: evil, dst: c.client, cm: &hdr.CMFields{AttributeID: hdr.ConnectReply, LocalCommID: 1, RemoteCommID: 0x4444, LocalQPN: 9}}.bytes(), Stray},
			step{"disconnect of nothing", spec{src: evil, dst: c.server, cm: &hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteCommID: 0x4444}}.bytes(), Stray},
		)
		if learn == "cm" {
			bad := *c
			bad.cid++
			other := *c
			other.client = evil
			run(t, x, 2,
				step{"disconnect from another address", other.tell(hdr.DisconnectRequest, true), Spoofed},
				step{"disconnect with another MAC", from(c.tell(hdr.DisconnectRequest, true)), Spoofed},
				step{"disconnect with a wrong name", bad.tell(hdr.DisconnectRequest, true), Forged},
				step{"disconnect that calls the receiver by a wrong name", spec{src: c.client, dst: c.server, cm: &hdr.CMFields{AttributeID: hdr.DisconnectRequest,
					LocalCommID: c.cid, RemoteCommID: 0x4444, RemoteQPN: c.sqpn}}.bytes(), Forged},
				step{"confirmation of no disconnect", c.tell(hdr.DisconnectReply, false), Forged},
				step{"rejection after the fact", c.tell(hdr.ConnectReject, false), Forged},
				step{"request with addresses of others", spec{src: evil, dst: c.server, cm: &hdr.CMFields{AttributeID: hdr.ConnectRequest, LocalCommID: 7, LocalGID: c.client, RemoteGID: c.server, LocalQPN: c.cqpn}}.bytes(), Forged},
			)
			// A whole handshake for the client's queue pair, but from another
			// interface.
			mine := *c
			mine.cid, mine.sid, mine.sqpn = 0xE1, 0xE2, 0x777
			run(t, x, 2, step{"request", from(mine.connectRequest()), Opened}, step{"reply", mine.connectReply(), Spoofed})
			s, _ := x.Find(AddrFrom(c.client), c.cqpn)
			if x.Row(s).Server.QPN != c.sqpn {
				t.Error("the queue pair was taken over")
			}
		}
		if got := *x.Row(s); got != before {
			t.Errorf("%s: got  %+v\nwant %+v", learn, got, before)
		}
	}
}

// Another client's connection to the same queue pair counts when the first
// one has been quiet.
func TestReuse(t *testing.T) {
	c, d := example(), example()
	d.client = host(3)
	x := newTable(t, Config{Rows: 4, Infer: true, Reuse: time.Second})
	inferred(t, x, 0, c, 100)
	run(t, x, clock.Time(time.Second)-1, step{"soon", d.request(hdr.WriteOnly, 5), Spoofed})
	run(t, x, clock.Time(time.Second), step{"later", d.request(hdr.WriteOnly, 5), Opened}, step{"again", d.request(hdr.WriteOnly, 5), Waiting},
		step{"the first", c.request(hdr.WriteOnly, 103), Known}, step{"it lives", d.request(hdr.WriteOnly, 6), Spoofed}, step{"no proof", d.response(hdr.Acknowledge, 5), Unmatched})
	if x.Len() != 1 {
		t.Error(x.Len())
	}

	// Only the server's answers prove that the number is another's; then, and
	// when the first goes for another reason, the second has it.
	prove := func(t *testing.T, x *Table, now clock.Time, last Event) {
		t.Helper()
		for p := range uint32(3) {
			run(t, x, now, step{"of the second", d.request(hdr.WriteOnly, 0x5000+p), map[bool]Event{false: Waiting, true: Opened}[p == 0]},
				step{"its answer", d.response(hdr.Acknowledge, 0x5000+p), map[bool]Event{false: Waiting, true: last}[p == 2]})
		}
	}
	owner := func(x *Table) netip.Addr {
		s, _ := x.Find(AddrFrom(c.server), c.sqpn)
		return x.Row(s).Client.Addr.Netip()
	}
	later := clock.Time(2 * time.Second)
	goes := false
	for what, last := range map[string]Event{"free": NowPaired, "pinned": Waiting, "let go": NowPaired} {
		var gone []Slot
		x = newTable(t, Config{Rows: 4, Infer: true, OnRemove: func(s Slot) { gone = append(gone, s) }, LetGo: func(Slot) bool { return goes }})
		inferred(t, x, 0, c, 100)
		s, _ := x.Find(AddrFrom(c.server), c.sqpn)
		goes = what == "let go"
		if what != "free" {
			x.Pin(s)
		}
		prove(t, x, later, last)
		if last == NowPaired {
			if len(gone) != 1 || gone[0] != s || owner(x) != d.client {
				t.Errorf("%s: %v went, the queue pair is %v's", what, gone, owner(x))
			}
			run(t, x, later, step{"the first", c.request(hdr.WriteOnly, 103), Spoofed})
		} else if len(gone) != 0 || owner(x) != c.client {
			t.Errorf("%s: %v went, the queue pair is %v's", what, gone, owner(x))
		} else {
			run(t, x, later, step{"the first", c.request(hdr.WriteOnly, 103), Known}, step{"a third", spec{op: hdr.WriteOnly, src: host(7), dst: c.server, qpn: c.sqpn}.bytes(), Spoofed})
			x.Remove(s)
		}
	}
	x = newTable(t, Config{Rows: 4, Infer: true})
	inferred(t, x, 0, c, 100)
	s, _ := x.Find(AddrFrom(c.server), c.sqpn)
	run(t, x, later, step{"of the second", d.request(hdr.WriteOnly, 0x5000), Opened}, step{"a third", spec{op: hdr.WriteOnly, src: host(7), dst: c.server, qpn: c.sqpn}.bytes(), Spoofed})
	x.Remove(s)
	check(t, x)
	run(t, x, later, step{"the second goes on", d.request(hdr.WriteOnly, 0x5001), Waiting}, step{"the first", c.request(hdr.WriteOnly, 103), Spoofed})
	if owner(x) != d.client {
		t.Error(owner(x))
	}
	// Its answers need the first to be quiet all the time.
	x = newTable(t, Config{Rows: 4, Infer: true})
	inferred(t, x, 0, c, 100)
	run(t, x, later, step{"", d.request(hdr.WriteOnly, 0x5000), Opened}, step{"", d.response(hdr.Acknowledge, 0x5000), Waiting},
		step{"", d.request(hdr.WriteOnly, 0x5001), Waiting}, step{"", d.response(hdr.Acknowledge, 0x5001), Waiting}, step{"", d.request(hdr.WriteOnly, 0x5002), Waiting},
		step{"the server answers the first", c.response(hdr.Acknowledge, 102), Known}, step{"", d.response(hdr.Acknowledge, 0x5002), Waiting})
	if owner(x) != c.client {
		t.Error(owner(x))
	}

	// A new handshake for queue pairs in use waits for the client's word.
	x = newTable(t, Config{Rows: 4})
	old := pairUp(t, x, 1, c)
	n := *c
	n.cid, n.sid, n.cpsn = 0xD1, 0xD2, 0x1234
	handshake := []step{{"request", n.connectRequest(), Opened}, {"reply", n.connectReply(), Waiting}}
	run(t, x, 2, append(handshake, step{"data of the old one", c.request(hdr.WriteOnly, 1), Known}, step{"not of the new one, the old one lives", n.request(hdr.WriteOnly, 0x1234), Known},
		step{"rejected", n.tell(hdr.ConnectReject, true), Removed})...)
	if !x.Used(old) || x.Len() != 1 {
		t.Fatal(x.Len())
	}
	// A sender that guesses names may forge the client's confirmation: it does not count while the old
	// connection lives.
	x = newTable(t, Config{Rows: 4})
	old = pairUp(t, x, 1, c)
	run(t, x, 2, append(handshake, step{"data of the old one", c.request(hdr.WriteOnly, 1), Known}, step{"made up", n.tell(hdr.ReadyToUse, true), Waiting},
		step{"the old one goes on", c.response(hdr.Acknowledge, 1), Known})...)
	if s, _ := x.Find(AddrFrom(c.client), c.cqpn); s != old {
		t.Error(s)
	}
	for i, confirm := range [][]byte{n.tell(hdr.ReadyToUse, true), n.request(hdr.WriteOnly, 0x1234)} {
		x = newTable(t, Config{Rows: 4})
		old := pairUp(t, x, 1, c)
		run(t, x, 2, append(handshake, step{"confirmed", confirm, NowPaired}, step{"reply again", n.connectReply(), Known})...)
		s, _ := x.Find(AddrFrom(c.server), c.sqpn)
		if s == old || x.Row(s).Client.StartPSN != 0x1234 || x.Len() != 1 {
			t.Error(i, x.Row(s))
		}
	}
}

// When the table is full, new connections pass without a row, an announced one displaces a guessed one, and
// paired rows stay.
func TestFull(t *testing.T) {
	x := newTable(t, Config{Rows: 2, Infer: true, HalfOpen: time.Second, Idle: time.Minute})
	at := nth
	run(t, x, 0, step{"guess", at(1).request(hdr.WriteOnly, 1), Opened}, step{"guess", at(2).request(hdr.WriteOnly, 1), Opened},
		step{"guess", at(3).request(hdr.WriteOnly, 1), Full}, step{"announced", at(4).connectRequest(), Opened}, step{"answered", at(4).connectReply(), NowPaired},
		step{"announced", at(5).connectRequest(), Opened}, step{"announced", at(6).connectRequest(), Full}, step{"guess", at(3).request(hdr.WriteOnly, 1), Full})
	run(t, x, clock.Time(time.Second), step{"a handshake that never ended makes room", at(3).request(hdr.WriteOnly, 1), Opened},
		step{"the paired one is there", at(4).request(hdr.WriteOnly, 1), Known})
	if _, err := x.AddStatic(clock.Time(time.Second), StaticConn{Client: host(8), Server: host(1), ClientQPN: 5, ServerQPN: 5}); err != nil {
		t.Error(err)
	}
	if _, err := x.AddStatic(clock.Time(time.Second), StaticConn{Client: host(9), Server: host(1), ClientQPN: 5, ServerQPN: 6}); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	// Idle rows go, configured ones stay.
	if n := x.Sweep(clock.Time(2 * time.Minute)); n != 1 || x.Len() != 1 {
		t.Error(n, x.Len())
	}
	x.Remove(0)
	x.Remove(0)
	x.Remove(1)
	x.Remove(7)
	x.Remove(-3)
	if check(t, x); x.Len() != 0 {
		t.Error(x.Len())
	}
}

func TestForeign(t *testing.T) {
	x, c := newTable(t, Config{Rows: 2, Infer: true}), example()
	six := netip.MustParseAddr("fd00::1")
	for name, b := range map[string][]byte{
		"in two VLANs":          spec{op: hdr.WriteOnly, src: c.client, dst: c.server, qpn: 20, tags: []uint16{3, 4}}.bytes(),
		"unreliable connection": spec{op: hdr.UC | hdr.WriteOnly, src: c.client, dst: c.server, qpn: 20}.bytes(),
		"congestion":            spec{op: hdr.CNP, src: c.client, dst: c.server, qpn: 20, payload: make([]byte, 16)}.bytes(),
		"queue pair 1":          spec{op: hdr.WriteOnly, src: c.client, dst: c.server, qpn: 1}.bytes(),
		"to itself":             spec{op: hdr.WriteOnly, src: c.client, dst: c.client, qpn: 20}.bytes(),
		"mapped addresses":      spec{op: hdr.WriteOnly, src: netip.MustParseAddr("::ffff:10.0.0.1"), dst: six, qpn: 20}.bytes(),
		"service id request":    c.tell(hdr.ServiceIDRequest, true),
		"unreliable handshake":  spec{src: c.client, dst: c.server, cm: &hdr.CMFields{AttributeID: hdr.ConnectRequest, TransportService: hdr.UC, LocalGID: c.client, RemoteGID: c.server, LocalQPN: 9}}.bytes(),
		"a datagram":            spec{op: hdr.UDSendOnly, src: c.client, dst: c.server, qpn: 1, payload: make([]byte, 20)}.bytes(),
		"rubbish":               {1, 2, 3},
	} {
		if s, e := feed(x, 1, b); s != NoSlot || e != Foreign {
			t.Errorf("%s: %d %v", name, s, e)
		}
	}
	// A response is no request.
	var f hdr.Frame
	b := c.response(hdr.Acknowledge, 1)
	hdr.Parse(b, &f)
	if _, e := request(x, 1, b, &f); e != Foreign {
		t.Error(e)
	}
	b = c.request(hdr.WriteOnly, 1)
	hdr.Parse(b, &f)
	if _, e := response(x, 1, b, &f); e != Foreign {
		t.Error(e)
	}
	if _, e := datagram(x, 1, b, &f); e != Foreign {
		t.Error(e)
	}
	if _, e := feed(x, 1, spec{op: hdr.WriteOnly, src: six, dst: netip.MustParseAddr("fd00::2"), qpn: 20}.bytes()); e != Opened || x.Len() != 1 {
		t.Error("IPv6:", e)
	}
}

// Both ends send requests: two half-open rows turn out to be one connection.
func TestBothDirections(t *testing.T) {
	x, c := newTable(t, Config{Rows: 4, Infer: true}), example()
	last := Event(0)
	for i := range uint32(3) {
		feed(x, 1, c.request(hdr.SendOnly, 100+i))
		feed(x, 1, spec{op: hdr.SendOnly, src: c.server, dst: c.client, qpn: c.cqpn, psn: 0x7000 + i}.bytes())
		_, last = feed(x, 1, c.response(hdr.Acknowledge, 100+i))
		check(t, x)
	}
	if last != NowPaired || x.Len() != 1 {
		t.Fatal(last, x.Len())
	}
	run(t, x, 2, step{"the other direction", spec{op: hdr.Acknowledge, src: c.client, dst: c.server, qpn: c.sqpn, psn: 0x7002}.bytes(), Reverse})
}

func TestStatic(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.2/0x11-10.0.0.1/256,psn=0xa0ce05":    "10.0.0.2/0x11-10.0.0.1/0x100,psn=0xa0ce05",
		"fd00::2/17-fd00::1/18,mtu=4096,psn=0":       "fd00::2/0x11-fd00::1/0x12,psn=0x0,mtu=4096",
		"::ffff:10.0.0.2/0x11-10.0.0.1/256":          "10.0.0.2/0x11-10.0.0.1/0x100",
		"10.0.0.2/0x11":                              "no - between",
		"10.0.0.2-10.0.0.1/2":                        "no / in 10.0.0.2",
		"a/2-10.0.0.1/2":                             "a is no address",
		"10.0.0.2/1-10.0.0.1/2":                      "1 is no queue pair",
		"10.0.0.2/0x1000000-10.0.0.1/2":              "is no queue pair",
		"10.0.0.2/2-fd00::1/2":                       "one end is IPv4",
		"10.0.0.2/2-10.0.0.2/3":                      "the same host",
		"10.0.0.2/2-10.0.0.1/3,psn=0x1000000":        `"psn=0x1000000" is no option`,
		"10.0.0.2/2-10.0.0.1/3,mtu=1500":             `"mtu=1500" is no option`,
		"10.0.0.2/2-10.0.0.1/3,":                     `"" is no option`,
		"fe80::1%eth0/2-fe80::2/2":                   "is no address",
		"224.0.0.1/2-10.0.0.1/2":                     "is no address",
		"10.0.0.2/2-10.0.0.1/3,speed=fast":           "is no option",
		"10.0.0.2/0x11-10.0.0.1/0x12-10.0.0.3/0x145": "is no queue pair",
	} {
		c, err := ParseStatic(text)
		switch {
		case err == nil && c.String() != want:
			t.Errorf("%s: %v, want %s", text, c, want)
		case err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "write CLIENT/QPN")):
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	x, c := newTable(t, Config{Rows: 4, Infer: true}), example()
	inferred(t, x, 1, c, 100)
	sc := StaticConn{Client: c.client, Server: c.server, ClientQPN: c.cqpn, ServerQPN: c.sqpn, PSN: 7, HasPSN: true, MTU: 512}
	s, err := x.AddStatic(2, sc)
	if r := x.Row(s); err != nil || x.Len() != 1 || r.Learnt != Static || r.State != Paired || r.Client.StartPSN != 7 || r.MTU != 512 {
		t.Fatal(r, err)
	}
	if again, err := x.AddStatic(3, sc); err != nil || again != s {
		t.Error(again, err)
	}
	sc.ClientQPN++
	if _, err := x.AddStatic(3, sc); err == nil || x.Len() != 1 {
		t.Error("a queue pair in two connections")
	}
	// The connection manager knows better.
	run(t, x, 4, step{"request", c.connectRequest(), Opened}, step{"reply", c.connectReply(), Waiting}, step{"ready", c.tell(hdr.ReadyToUse, true), NowPaired})
	if x.Len() != 1 {
		t.Error(x.Len())
	}
}

// adopted is a table that takes over the paired rows of x.
func adopted(t interface{ Fatal(...any) }, x *Table, now clock.Time) *Table {
	y, _ := New(Config{Rows: len(x.rows), Seed: 4})
	for i := range x.rows {
		if r := x.rows[i]; r.used && r.State != HalfOpen {
			if err := y.Adopt(now, Slot(i), &r); err != nil {
				t.Fatal(err)
			}
		}
	}
	return y
}

// Whatever was in a table, another one takes over the paired rows.
func TestAdoptAnyTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, _ := New(Config{Rows: 12, Seed: 3})
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			c := example()
			c.client = host(rapid.IntRange(2, 4).Draw(t, "client"))
			c.cqpn, c.sqpn = uint32(rapid.IntRange(2, 4).Draw(t, "cqpn")), uint32(rapid.IntRange(2, 4).Draw(t, "sqpn"))
			c.cid, c.sid = rapid.Uint32().Draw(t, "cid"), rapid.Uint32().Draw(t, "sid")
			for _, b := range [][]byte{c.connectRequest(), c.connectReply(), c.tell(hdr.ReadyToUse, true)}[:rapid.IntRange(1, 3).Draw(t, "steps")] {
				feed(x, 5, b)
			}
		}
		y := adopted(t, x, 6)
		n := 0
		for i := range x.rows {
			if r := &x.rows[i]; r.used && r.State == Paired {
				n++
				s, _ := y.Find(r.Client.Addr, r.Client.QPN)
				if z := y.Row(Slot(i)); s != Slot(i) || z.Client != r.Client || z.Server != r.Server || z.Learnt != r.Learnt || z.State != Paired || !z.pinned {
					t.Fatalf("got  %+v\nwant %+v", z, r)
				}
			}
		}
		if err := y.verify(); err != nil || n != y.Len() {
			t.Fatal(err, n, y.Len())
		}
	})
}

// A connection that was taken over goes on, and ends; what makes no sense is refused,
// and changes nothing.
func TestAdopt(t *testing.T) {
	x := newTable(t, Config{Rows: 8})
	c := example()
	for _, b := range [][]byte{c.connectRequest(), c.connectReply(), c.tell(hdr.ReadyToUse, true)} {
		feed(x, 1, b)
	}
	y := adopted(t, x, 2)
	s, _ := y.Find(AddrFrom(c.client), c.cqpn)
	good := *y.Row(s)
	for name, change := range map[string]func(r *Row){
		"a queue pair number of management": func(r *Row) { r.Client.QPN = 1 },
		"a path MTU that there is not":      func(r *Row) { r.MTU = 1000 },
		"one host":                          func(r *Row) { r.Client.Addr = r.Server.Addr },
		"another network":                   func(r *Row) { r.Net = 77 },
		"a queue pair of another":           func(r *Row) { r.Client.QPN++ },
	} {
		r := good
		if name != "a queue pair of another" {
			r.Client.QPN, r.Server.QPN = r.Client.QPN+100, r.Server.QPN+100 // of no connection, so that nothing else is wrong
		}
		change(&r)
		if err := y.Adopt(3, s+1, &r); !errors.Is(err, ErrImplausible) || y.Len() != 1 {
			t.Errorf("%s: %v, %d rows", name, err, y.Len())
		}
	}
	if err := y.Adopt(3, s, &good); !errors.Is(err, ErrImplausible) {
		t.Errorf("into a place that is taken: %v", err)
	}
	check(t, y)
	run(t, y, 4, step{"data", c.request(hdr.WriteOnly, 1), Known}, step{"disconnect", c.tell(hdr.DisconnectRequest, false), IsClosing},
		step{"confirmed", c.tell(hdr.DisconnectReply, true), Removed})
}

// pieces are frames of three connections.
func pieces() (p [][]byte) {
	c := example()
	d, e := *c, *c
	d.cqpn, d.cid, d.tid = d.cqpn+1, d.cid+1, d.tid+1
	e.client = host(3)
	for _, c := range []*connection{c, &d, &e} {
		p = append(p, c.connectRequest(), c.connectReply(), c.tell(hdr.ReadyToUse, true), c.tell(hdr.MsgRcptAck, false), c.tell(hdr.ConnectReject, false),
			c.tell(hdr.DisconnectRequest, true), c.tell(hdr.DisconnectRequest, false), c.tell(hdr.DisconnectReply, true), c.request(hdr.WriteOnly, 5), c.request(hdr.ReadRequest, 6),
			c.response(hdr.Acknowledge, 5), c.response(hdr.ReadRespOnly, 6))
	}
	return p
}

// TestPlain: what Plain takes Request and Response would take in the same way, and it
// changes nothing otherwise, nor a row of another owner; and so does Easily.
func TestPlain(t *testing.T) {
	pieces, rng, plain, owned, easily := pieces(), rand.New(rand.NewPCG(1, 7)), 0, 0, 0
	for n := range 400 {
		c := Config{Rows: 4, Infer: true, Settle: -1, GuardMAC: n&1 != 0, SamePort: n&2 != 0, Idle: 2000, HalfOpen: 300, Close: 100, Reuse: 50}
		x, y, now := newTable(t, c), newTable(t, c), clock.Time(1)
		psn := byte(0)
		for range 300 {
			now += clock.Time(rng.IntN(4))
			b := bytes.Clone(pieces[rng.IntN(len(pieces))])
			if rng.IntN(8) != 0 {
				psn += byte(rng.IntN(2))
				b = bytes.Clone(pieces[12*rng.IntN(3)+8+rng.IntN(4)])
				b[14+20+8+11] += psn
			}
			if rng.IntN(16) == 0 {
				b[rng.IntN(len(b))] += byte(rng.IntN(256))
			}
			s, e := feed(x, now, b)
			var f hdr.Frame
			var ends Ends
			hdr.Parse(b, &f)
			if f.Op.Transport() == hdr.RC && ends.Of(b, &f) {
				before, owner := slices.Clone(y.rows), uint16(rng.IntN(3))
				got, ok := Elsewhere, true
				if f.Plain && n&4 != 0 {
					got = y.Easily(now, &ends, b, f.Op.Info().Flags, owner, y.Ahead(&ends, b))
				}
				switch got {
				case Elsewhere:
					got, ok = y.Plain(now, &ends, b, &f, owner)
				case NoSlot:
					ok = f.Op.Has(hdr.IsResponse) && y.Unasked(&ends)
				default:
					easily++
				}
				switch {
				case !ok:
					if !slices.Equal(before, y.rows) {
						t.Fatalf("not plain, and changed: %v and %v", before, y.rows)
					}
					feed(y, now, b)
				case got != s || s != NoSlot && e != Known:
					t.Fatalf("plain of row %d, not %v of row %d", got, e, s)
				case got != NoSlot && owner != 0:
					if owned++; before[got].Owner != owner {
						t.Fatalf("owner %d's row is plain for owner %d", before[got].Owner, owner)
					}
				default:
					plain++
				}
				if got != NoSlot && y.Used(got) && x.Used(got) && rng.IntN(4) == 0 {
					x.Give(got, owner)
					y.Give(got, owner)
				}
			} else {
				feed(y, now, b)
			}
			if !slices.Equal(x.rows, y.rows) {
				t.Fatalf("after %v: %v and %v", f.Op, x.rows, y.rows)
			}
		}
	}
	if plain < 1000 || owned < 1000 || easily < 500 {
		t.Errorf("%d frames were plain, %d of an owner's rows, %d easily", plain, owned, easily)
	}
}

// TestNotPlain: a frame of a connection that takes more than a look is not plain, and changes nothing.
func TestNotPlain(t *testing.T) {
	c := example()
	reverse, back := *c, *c
	reverse.client, reverse.server, reverse.cqpn, reverse.sqpn = c.server, c.client, c.sqpn, c.cqpn
	back = reverse
	other := c.request(hdr.WriteOnly, 5)
	for name, b := range map[string][]byte{
		"a request of the server's":       reverse.request(hdr.WriteOnly, 5),
		"an answer of the client's":       back.response(hdr.Acknowledge, 5),
		"what tells the path MTU":         c.response(hdr.ReadRespFirst, 5),
		"":                                other,
		"by another network":              other,
		"an answer by another network":    c.response(hdr.Acknowledge, 5),
		"from another worker's":           other,
		"from another MAC address":        other,
		"an answer from another MAC addr": c.response(hdr.Acknowledge, 5),
	} {
		x := newTable(t, Config{Rows: 4, Infer: true, Settle: -1, GuardMAC: strings.Contains(name, "MAC addr")})
		inferred(t, x, 1, c, 2)
		s, _ := x.Find(AddrFrom(c.client), c.cqpn)
		x.Pin(s)
		x.Give(s, 1)
		owner := uint16(1)
		switch {
		case strings.Contains(name, "network"):
			x.Row(s).Net = hdr.NetGRH
			x.rewatch(x.Row(s))
		case strings.Contains(name, "worker"):
			owner = 2
		case strings.Contains(name, "MAC addr"):
			b = bytes.Clone(b)
			b[11]++
		}
		var f hdr.Frame
		var ends Ends
		if hdr.Parse(b, &f); !ends.Of(b, &f) {
			t.Fatal(name)
		}
		before := *x.Row(s)
		if f.Plain {
			if got := x.Easily(2, &ends, b, f.Op.Info().Flags, owner, x.Ahead(&ends, b)); (got == s) != (name == "") || got == NoSlot {
				t.Errorf("%s: easily of row %d", name, got)
			}
		}
		got, ok := x.Plain(2, &ends, b, &f, owner)
		if got != s || ok != (name == "") {
			t.Errorf("%s: %v of row %d", name, ok, got)
		}
		if !ok && *x.Row(s) != before {
			t.Errorf("%s: it changed %v to %v", name, before, *x.Row(s))
		}
	}
}

// FuzzFrames: any sequence of frames of the connection manager and of data, a
// few hosts and queue pairs, and bytes changed anywhere.
func FuzzFrames(f *testing.F) {
	pieces := pieces()
	// Four bytes a frame: its number, and the offset and value of a change; or time passes.
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 10, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0})
	f.Add([]byte{8, 0, 0, 0, 10, 0, 0, 0, 8, 50, 1, 6, 10, 50, 1, 6, 8, 50, 1, 7, 10, 50, 1, 7, 10, 52, 1, 9})
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0, 14, 0, 0, 0, 255, 3, 0, 0, 20, 0, 0, 0, 4, 0, 0, 0})
	// One infers a connection, then another claims the queue pair.
	f.Add([]byte{8, 0, 0, 0, 10, 0, 0, 0, 8, 0, 53, 1, 10, 0, 53, 1, 8, 0, 53, 2, 10, 0, 53, 2, 255, 9, 0, 0,
		32, 0, 0, 0, 34, 0, 0, 0, 32, 0, 53, 1, 34, 0, 53, 1, 32, 0, 53, 2, 34, 0, 53, 2, 255, 9, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		x, _ := New(Config{Rows: 4, Infer: true, GuardMAC: len(in)&1 != 0, SamePort: len(in)&2 != 0, Idle: 2000, HalfOpen: 300, Close: 100, Reuse: 50})
		now := clock.Time(1)
		for ; len(in) >= 4; in = in[4:] {
			now++
			if int(in[0]) >= len(pieces) {
				now += clock.Time(in[1]) * 10
				x.Sweep(now)
			} else {
				b := bytes.Clone(pieces[in[0]])
				if at := int(binary.BigEndian.Uint16(in[1:])); at < len(b) {
					b[at] += in[3]
				}
				if s, e := feed(x, now, b); e >= NumEvents || s != NoSlot && !x.Used(s) {
					t.Fatal(s, e)
				}
			}
			if err := x.verify(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// crowd is a table with many paired connections and frames of them.
func crowd(tb testing.TB, n int) (x *Table, requests, responses [][]byte, frames []hdr.Frame) {
	x = newTable(tb, Config{Rows: n, Infer: true})
	for i := range n {
		c := example()
		c.client = netip.AddrFrom4([4]byte{10, 1, byte(i >> 6), byte(i)})
		c.cqpn, c.sqpn, c.cid, c.sid = uint32(100+i), uint32(9000+i), uint32(i), uint32(i)
		for _, b := range [][]byte{c.connectRequest(), c.connectReply(), c.tell(hdr.ReadyToUse, true)} {
			feed(x, 1, b)
		}
		requests, responses = append(requests, c.request(hdr.WriteOnly, 5)), append(responses, c.response(hdr.Acknowledge, 5))
	}
	frames = make([]hdr.Frame, 2*n)
	for i := range n {
		hdr.Parse(requests[i], &frames[i])
		hdr.Parse(responses[i], &frames[n+i])
	}
	return x, requests, responses, frames
}

func TestNoAllocation(t *testing.T) {
	x, rq, rs, fr := crowd(t, 64)
	now := clock.Time(2)
	known := func() {
		now++
		for i := range rq {
			if _, e := request(x, now, rq[i], &fr[i]); e != Known {
				t.Fatal(e)
			}
			if _, e := response(x, now, rs[i], &fr[64+i]); e != Known {
				t.Fatal(e)
			}
		}
		x.Sweep(now)
	}
	c, d := example(), example()
	d.client, d.sqpn = host(3), 0x444
	var all [][]byte
	for p := range uint32(4) {
		all = append(all, d.request(hdr.WriteOnly, p), d.response(hdr.Acknowledge, p))
	}
	all = append(all, c.connectRequest(), c.connectReply(), c.tell(hdr.ReadyToUse, true), spec{op: hdr.WriteOnly, src: host(9), dst: c.server, qpn: c.sqpn}.bytes(),
		c.tell(hdr.DisconnectRequest, true), c.tell(hdr.DisconnectReply, false), c.tell(hdr.DisconnectReply, true), nth(9).tell(hdr.DisconnectReply, true),
		d.response(hdr.Acknowledge, 0x900000))
	y := newTable(t, Config{Rows: 4, Infer: true})
	life := func() {
		for _, b := range all {
			feed(y, now, b)
		}
		s, _ := y.Find(AddrFrom(d.server), d.sqpn)
		y.Remove(s)
	}
	z := newTable(t, Config{Rows: 2, Infer: true})
	var crowd [][]byte
	for n := range 5 {
		crowd = append(crowd, nth(n).request(hdr.WriteOnly, 1))
	}
	displace := func() {
		for _, b := range crowd {
			now = now.Add(10 * time.Second)
			if _, e := feed(z, now, b); e != Opened {
				t.Fatal(e)
			}
		}
	}
	for name, f := range map[string]func(){"known": known, "life of a connection": life, "no room": displace} {
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if n := x.Bytes(); n/64 > 724 { // four lines of it the row itself
		t.Errorf("%d bytes a row", n/64)
	}
}

// Rows whose PSNs are watched.
func BenchmarkInferred(b *testing.B) {
	x, c := newTable(b, Config{Rows: 4, Infer: true}), example()
	for p := range uint32(3) {
		feed(x, 1, c.request(hdr.WriteOnly, p))
		feed(x, 1, c.response(hdr.Acknowledge, p))
	}
	rq, rs := c.request(hdr.WriteOnly, 2), c.response(hdr.Acknowledge, 2)
	var f, g hdr.Frame
	hdr.Parse(rq, &f)
	hdr.Parse(rs, &g)
	b.ReportAllocs()
	for b.Loop() {
		request(x, 2, rq, &f)
		if _, e := response(x, 2, rs, &g); e != Known {
			b.Fatal(e)
		}
	}
}

func BenchmarkKnown(b *testing.B) {
	for _, n := range []int{16, 512, 4096} {
		x, rq, rs, fr := crowd(b, n)
		b.Run(map[int]string{16: "rows=16", 512: "rows=512", 4096: "rows=4096"}[n], func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				k := i & (n - 1)
				if i&n == 0 {
					request(x, 2, rq[k], &fr[k])
				} else {
					response(x, 2, rs[k], &fr[n+k])
				}
			}
		})
	}
}

// What counts as a match, and what takes it back.
func TestEvidence(t *testing.T) {
	c := example()
	ask := func(p uint32) []byte { return c.request(hdr.WriteOnly, p) }
	ack := func(p uint32) []byte { return c.response(hdr.Acknowledge, p) }
	new := func() *Table { return newTable(t, Config{Rows: 4, Infer: true}) }
	// The packets of one READ are one match, however many.
	part := func(op hdr.Opcode, p uint32) []byte {
		return spec{op: op, src: c.server, dst: c.client, qpn: c.cqpn, psn: p, payload: make([]byte, 256)}.bytes()
	}
	run(t, new(), 1, step{"read", spec{op: hdr.ReadRequest, src: c.client, dst: c.server, qpn: c.sqpn, psn: 5, dma: 2048}.bytes(), Opened},
		step{"1", part(hdr.ReadRespFirst, 5), Waiting}, step{"2", part(hdr.ReadRespMiddle, 6), Waiting}, step{"3", part(hdr.ReadRespMiddle, 7), Waiting},
		step{"4", part(hdr.ReadRespMiddle, 8), Waiting}, step{"5", part(hdr.ReadRespMiddle, 9), Waiting}, step{"last", part(hdr.ReadRespLast, 12), Waiting})
	// An answer to what was not asked yet makes the count start again.
	run(t, new(), 1, step{"", ask(1), Opened}, step{"", ack(1), Waiting}, step{"", ask(2), Waiting}, step{"", ack(2), Waiting}, step{"wrong", ack(7), Unmatched},
		step{"", ask(3), Waiting}, step{"first again", ack(3), Waiting}, step{"", ask(4), Waiting}, step{"", ack(4), Waiting}, step{"", ask(5), Waiting}, step{"", ack(5), NowPaired})
	// So does another queue pair's.
	d := *c
	d.cqpn++
	run(t, new(), 1, step{"", ask(1), Opened}, step{"", ack(1), Waiting}, step{"", ask(2), Waiting}, step{"", ack(2), Waiting}, step{"", ask(3), Waiting},
		step{"another", d.response(hdr.Acknowledge, 3), Waiting}, step{"", ask(4), Waiting}, step{"", ack(4), Waiting})
	// The first request seen need not be the oldest in flight.
	run(t, new(), 1, step{"", ask(3), Opened}, step{"again", ask(1), Waiting}, step{"", ask(2), Waiting}, step{"", ack(1), Waiting}, step{"", ack(2), Waiting}, step{"", ack(3), NowPaired})
	// Strays in no order are no new start.
	x := new()
	inferred(t, x, 1, c, 100)
	for _, p := range []uint32{0x300000, 0x600000, 0x500000, 0x680000, 0x300001} {
		run(t, x, 2, step{"stray", ask(p), Known})
	}
}

// Handshakes that meet rows which are merely guessed, or are given up, or that are about a queue pair of the
// same number at another host.
func TestHandshakeCorners(t *testing.T) {
	c := example()
	x := newTable(t, Config{Rows: 4, Infer: true})
	run(t, x, 1, step{"a guess", c.request(hdr.WriteOnly, 5), Opened}, step{"request", c.connectRequest(), Opened}, step{"reply", c.connectReply(), NowPaired})
	if x.Len() != 1 {
		t.Error(x.Len())
	}
	x = newTable(t, Config{Rows: 4})
	timeout := spec{src: c.client, dst: c.server, cm: &hdr.CMFields{AttributeID: hdr.ConnectReject, LocalCommID: c.cid, Reason: 4}}.bytes()
	run(t, x, 1, step{"request", c.connectRequest(), Opened}, step{"given up", timeout, Removed}, step{"again", timeout, Ended})

	// The client moves its queue pair to another server, where the number of
	// the server's is the same: a request to the old server is not the new
	// connection's first.
	x = newTable(t, Config{Rows: 4})
	pairUp(t, x, 1, c)
	d := *c
	d.server, d.cid, d.sid, d.cpsn = host(7), 0xD1, 0xD2, 0x777
	run(t, x, 2, step{"request", d.connectRequest(), Opened}, step{"reply", d.connectReply(), Waiting}, step{"to the old server", c.request(hdr.WriteOnly, 0x777), Known},
		step{"to the new one", d.request(hdr.WriteOnly, 0x777), Foreign}, step{"confirmed, but the old one lives", d.tell(hdr.ReadyToUse, true), Waiting})
	x = newTable(t, Config{Rows: 4})
	pairUp(t, x, 1, c)
	run(t, x, 2, step{"request", d.connectRequest(), Opened}, step{"reply", d.connectReply(), Waiting},
		step{"to the new one", d.request(hdr.WriteOnly, 0x777), Foreign}, step{"confirmed", d.tell(hdr.ReadyToUse, true), NowPaired},
		step{"to the old server", c.request(hdr.WriteOnly, 0x778), Foreign}, step{"to the new one", d.request(hdr.WriteOnly, 0x777), Known})

	for _, gid := range [][2]netip.Addr{{host(9), c.server}, {c.client, host(9)}} {
		b := spec{src: c.client, dst: c.server, cm: &hdr.CMFields{AttributeID: hdr.ConnectRequest, LocalCommID: 7, LocalGID: gid[0], RemoteGID: gid[1], LocalQPN: 0x99}}.bytes()
		run(t, x, 2, step{"addresses of others", b, Forged})
	}
	// A DisconnectRequest names the queue pair of the other end.
	x = newTable(t, Config{Rows: 4})
	pairUp(t, x, 1, c)
	for server, qpn := range map[bool]uint32{false: c.sqpn, true: c.cqpn} {
		ends := spec{src: c.client, dst: c.server, cm: &hdr.CMFields{AttributeID: hdr.DisconnectRequest, LocalCommID: c.cid, RemoteCommID: c.sid, RemoteQPN: qpn + 1}}
		if server {
			ends.src, ends.dst, ends.cm.LocalCommID, ends.cm.RemoteCommID = c.server, c.client, c.sid, c.cid
		}
		run(t, x, 2, step{"an end of another queue pair", ends.bytes(), Forged})
	}
	// Room is made for one, not for many.
	x = newTable(t, Config{Rows: 3, Infer: true})
	for i := range uint32(3) {
		feed(x, 1, spec{op: hdr.WriteOnly, src: c.client, dst: c.server, qpn: 0x500 + i}.bytes())
	}
	if run(t, x, 1, step{"request", c.connectRequest(), Opened}); x.Len() != 3 {
		t.Error(x.Len())
	}
}

// A row whose path MTU and P_Key are not known learns both from the server's frames, the path MTU from a
// packet that is not the last of its message. Requests, which anybody can make up, tell neither.
func TestLearnsMTU(t *testing.T) {
	for _, server := range []bool{false, true} {
		x, c := newTable(t, Config{Rows: 4}), example()
		s, err := x.AddStatic(1, StaticConn{Client: c.client, Server: c.server, ClientQPN: c.cqpn, ServerQPN: c.sqpn})
		if err != nil {
			t.Fatal(err)
		}
		send := func(op hdr.Opcode, n int) {
			t.Helper()
			f := spec{op: op, src: c.client, dst: c.server, qpn: c.sqpn, payload: make([]byte, n)}
			if server {
				f.src, f.dst, f.qpn = c.server, c.client, c.cqpn
			}
			if got, e := feed(x, 2, f.bytes()); got != s || e != Known {
				t.Fatal(got, e)
			}
		}
		only, first, want, key := hdr.WriteOnly, hdr.WriteFirst, uint16(0), uint16(0)
		if server {
			only, first, want, key = hdr.ReadRespOnly, hdr.ReadRespFirst, 2048, 0xFFFF
		}
		send(only, 512)
		send(first, 500) // of no MTU
		if r := x.Row(s); r.MTU != 0 || r.PKey != key {
			t.Fatalf("server %v: MTU %d, P_Key %#x", server, r.MTU, r.PKey)
		}
		send(first, 2048)
		send(first, 1024)
		if r := x.Row(s); r.MTU != want || r.PKey != key {
			t.Errorf("server %v: MTU %d, P_Key %#x", server, r.MTU, r.PKey)
		}
	}
}

// A recalled connection is there as if its PSNs had shown it. It stays when it is there already, and takes no
// queue pair of another connection.
func TestRecall(t *testing.T) {
	x, err := New(Config{Rows: 2, Infer: true, Idle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	c := nth(1)
	sc := StaticConn{Client: c.client, Server: c.server, ClientQPN: c.cqpn, ServerQPN: c.sqpn}
	s := x.Recall(1, sc)
	if s == NoSlot || x.Row(s).State != Paired || x.Row(s).Learnt != Inferred {
		t.Fatalf("slot %d", s)
	}
	x.Pin(s) // as the owner that knows its requests does
	if at, e := feed(x, 2, c.response(hdr.Acknowledge, 5)); at != s || e != Known {
		t.Errorf("its answer: slot %d, %v", at, e)
	}
	if again := x.Recall(3, sc); again != s || x.Len() != 1 {
		t.Errorf("again it is in slot %d", again)
	}
	for _, other := range []func(o *StaticConn){
		func(o *StaticConn) { o.ClientQPN++ }, func(o *StaticConn) { o.ServerQPN++ },
		func(o *StaticConn) {
			o.Client, o.Server, o.ClientQPN, o.ServerQPN = o.Server, o.Client, o.ServerQPN, o.ClientQPN
		},
	} {
		o := sc
		other(&o)
		if at := x.Recall(4, o); at != NoSlot || x.Len() != 1 {
			t.Errorf("%v took the place of %v", o, sc)
		}
	}
	d := nth(2)
	feed(x, 5, d.request(hdr.WriteOnly, 7))
	if at := x.Recall(6, StaticConn{Client: d.client, Server: d.server, ClientQPN: d.cqpn, ServerQPN: d.sqpn}); at != NoSlot {
		t.Error("a half-open row went")
	}
	for range 100 {
		x.Sweep(clock.Time(2 * time.Minute))
	}
	if x.Len() != 0 {
		t.Error("it stays although nobody uses it")
	}
}

// TestSameHash: a queue pair whose name has the hash of another's is not taken for that, by its number or by its address.
func TestSameHash(t *testing.T) {
	names, find := newNames(2, 0), map[uint32]uint32{}
	c := example()
	var a, b uint32 // queue pairs of the server's with one hash
	for qpn := uint32(2); b == 0; qpn++ {
		h := names.hash(AddrFrom(c.server), qpn)
		if a = find[h]; a != 0 {
			b = qpn
		}
		find[h] = qpn
	}
	// Found by trying 4 million addresses.
	other, same := netip.MustParseAddr("11.7.145.48"), netip.MustParseAddr("11.61.0.12")
	if names.hash(AddrFrom(other), a) != names.hash(AddrFrom(same), a) {
		t.Fatal("the hash is another one: find two addresses for it")
	}
	for _, x := range []struct {
		name       string
		server, to netip.Addr
		qpn        uint32
	}{{"number", c.server, c.server, b}, {"address", other, same, a}} {
		y := newTable(t, Config{Rows: 4, Infer: true, Settle: -1})
		c.server, c.sqpn = x.server, a
		inferred(t, y, 1, c, 2)
		s, _ := y.Find(AddrFrom(c.client), c.cqpn)
		y.Pin(s)
		c.server, c.sqpn = x.to, x.qpn
		frame := c.request(hdr.WriteOnly, 5)
		var f hdr.Frame
		var ends Ends
		if hdr.Parse(frame, &f); !f.Plain || !ends.Of(frame, &f) {
			t.Fatal(f)
		}
		if got := y.Easily(2, &ends, frame, f.Op.Info().Flags, 0, y.Ahead(&ends, frame)); got != Elsewhere {
			t.Errorf("%s: taken for row %d", x.name, got)
		}
	}
}

// When a request came before the ConnectReply, the first PSN in that reply is not the PSN of the next
// request: an earlier ConnectReply passed unseen, and so may requests have.
func TestBegunBeforeTheReply(t *testing.T) {
	for _, begun := range []bool{false, true} {
		x, c := newTable(t, Config{Rows: 4, Infer: true}), example()
		run(t, x, 1, step{"request", c.connectRequest(), Opened})
		if begun {
			run(t, x, 2, step{"its first packet", c.request(hdr.WriteOnly, c.cpsn), Opened})
		}
		run(t, x, 3, step{"reply", c.connectReply(), NowPaired})
		s, _ := x.Find(AddrFrom(c.server), c.sqpn)
		if x.Row(s).Client.HasPSN == begun {
			t.Errorf("it has begun: %v, its first PSN is to come: %v", begun, !begun)
		}
	}
}
