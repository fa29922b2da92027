package conn

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port/pcap"
)

// newTable is a table that learns from three responses, unless the test says how
// long they must take.
func newTable(t testing.TB, c Config) *Table {
	t.Helper()
	if c.Settle == 0 {
		c.Settle = -1
	}
	x, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// feed gives a frame to the method for it.
func feed(t *Table, now clock.Time, b []byte) (Slot, Event) {
	var f hdr.Frame
	hdr.Parse(b, &f)
	switch {
	case f.Op.Transport() == hdr.UD:
		return datagram(t, now, b, &f)
	case f.Op.Has(hdr.IsResponse):
		return response(t, now, b, &f)
	}
	return request(t, now, b, &f)
}

// request, response and datagram give a frame to the method of the kind; one
// that tables do not look at is Foreign.
func request(t *Table, now clock.Time, b []byte, f *hdr.Frame) (Slot, Event) {
	var ends Ends
	if !ends.Of(b, f) {
		return NoSlot, Foreign
	}
	return t.Request(now, &ends, b, f)
}

func response(t *Table, now clock.Time, b []byte, f *hdr.Frame) (Slot, Event) {
	var ends Ends
	if !ends.Of(b, f) {
		return NoSlot, Foreign
	}
	return t.Response(now, &ends, b, f)
}

func datagram(t *Table, now clock.Time, b []byte, f *hdr.Frame) (Slot, Event) {
	var ends Ends
	if !ends.Of(b, f) {
		return NoSlot, Foreign
	}
	return t.CM(now, &ends, b, f)
}

func host(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

func mac(a netip.Addr) (m [6]byte) {
	b := a.As16()
	copy(m[2:], b[12:])
	m[0] = 2
	return m
}

// spec is a frame to make.
type spec struct {
	op       hdr.Opcode
	src, dst netip.Addr
	mac      *[6]byte // of the source, if not its own
	port     uint16
	qpn, psn uint32
	dma      uint32 // READ
	payload  []byte
	cm       *hdr.CMFields
	tags     []uint16 // VIDs, the outermost first
	v1       bool     // RoCE v1
}

// bytes is the frame; its ICRC is 0: the table does not look at it.
func (s spec) bytes() []byte {
	if s.cm != nil {
		s.op, s.qpn, s.port = hdr.UDSendOnly, 1, 0xD000
		s.payload = make([]byte, hdr.MADLen)
		hdr.CM(s.payload).Encode(s.cm)
	}
	pad := -len(s.payload) & 3
	n := hdr.BTHLen + int(s.op.Info().Len) + len(s.payload) + pad + hdr.ICRCLen
	eth, et, l3 := 14, uint16(hdr.EtherIPv4), hdr.IPv4Len
	eth += 4 * len(s.tags)
	if s.src.Is6() {
		et, l3 = hdr.EtherIPv6, hdr.IPv6Len
	}
	udp := hdr.UDPLen
	if s.v1 {
		et, l3, udp = hdr.EtherRoCEv1, hdr.IPv6Len, 0
	}
	b := make([]byte, eth+l3+udp+n)
	from := mac(s.src)
	if s.mac != nil {
		from = *s.mac
	}
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: mac(s.dst), Src: from, EtherType: et})
	for i, id := range s.tags {
		hdr.Ethernet(b[4*i:]).SetEtherType(hdr.EtherVLAN)
		binary.BigEndian.PutUint16(b[14+4*i:], 3<<13|id)
		hdr.VLAN(b[14+4*i:]).SetEtherType(et)
	}
	if s.v1 {
		hdr.GRH(b[eth:]).Encode(&hdr.IPv6Fields{PayloadLen: uint16(n), NextHeader: hdr.ProtoBTH, HopLimit: 64, Src: s.src, Dst: s.dst})
	} else if s.src.Is6() {
		hdr.IPv6(b[eth:]).Encode(&hdr.IPv6Fields{PayloadLen: uint16(hdr.UDPLen + n), NextHeader: hdr.ProtoUDP, HopLimit: 64, Src: s.src, Dst: s.dst})
	} else {
		hdr.IPv4(b[eth:]).Encode(&hdr.IPv4Fields{TotalLen: uint16(l3 + hdr.UDPLen + n), TTL: 64, Protocol: hdr.ProtoUDP, Src: s.src, Dst: s.dst})
	}
	if !s.v1 {
		hdr.UDP(b[eth+l3:]).Encode(&hdr.UDPFields{SrcPort: s.port, DstPort: hdr.RoCEv2Port, Len: uint16(hdr.UDPLen + n)})
	}
	p := b[eth+l3+udp:]
	hdr.BTH(p).Encode(&hdr.BTHFields{OpCode: s.op, Pad: pad, PKey: 0xFFFF, DestQP: s.qpn, PSN: s.psn})
	p = p[hdr.BTHLen:]
	switch {
	case s.op.Info().Ext&hdr.HasRETH != 0:
		hdr.RETH(p).SetDMALength(s.dma)
	case s.op.Info().Ext&hdr.HasDETH != 0:
		hdr.DETH(p).SetQKey(hdr.GSIQKey)
		hdr.DETH(p).SetSrcQP(1)
	}
	copy(p[s.op.Info().Len:], s.payload)
	return b
}

// connection is a pair of queue pairs whose frames a test makes.
type connection struct {
	client, server   netip.Addr
	cqpn, sqpn       uint32
	cid, sid         uint32
	cpsn, spsn       uint32
	tid              uint64
	port, back       uint16
	resources, depth uint8
	mtu              int
	tags             []uint16
	v1               bool
}

func (c *connection) request(op hdr.Opcode, psn uint32) []byte {
	return spec{tags: c.tags, v1: c.v1, op: op, src: c.client, dst: c.server, port: c.port, qpn: c.sqpn, psn: psn, dma: 8}.bytes()
}

func (c *connection) response(op hdr.Opcode, psn uint32) []byte {
	return spec{tags: c.tags, v1: c.v1, op: op, src: c.server, dst: c.client, port: c.back, qpn: c.cqpn, psn: psn}.bytes()
}

func (c *connection) connectRequest() []byte {
	return spec{tags: c.tags, v1: c.v1, src: c.client, dst: c.server, cm: &hdr.CMFields{AttributeID: hdr.ConnectRequest, TransactionID: c.tid, LocalCommID: c.cid,
		LocalGID: c.client, RemoteGID: c.server, LocalQPN: c.cqpn, StartingPSN: c.spsn, PathMTU: c.mtu, PKey: 0xFFFF,
		ResponderResources: c.resources, InitiatorDepth: c.depth}}.bytes()
}

func (c *connection) connectReply() []byte {
	return spec{tags: c.tags, v1: c.v1, src: c.server, dst: c.client, cm: &hdr.CMFields{AttributeID: hdr.ConnectReply, TransactionID: c.tid, LocalCommID: c.sid, RemoteCommID: c.cid,
		LocalQPN: c.sqpn, StartingPSN: c.cpsn, ResponderResources: c.resources + 1, InitiatorDepth: c.depth + 1}}.bytes()
}

// tell is any other datagram, from the client or from the server.
func (c *connection) tell(a hdr.CMAttr, fromClient bool) []byte {
	m := &hdr.CMFields{AttributeID: a, TransactionID: c.tid, LocalCommID: c.sid, RemoteCommID: c.cid, RemoteQPN: c.cqpn}
	if fromClient {
		m.LocalCommID, m.RemoteCommID, m.RemoteQPN = c.cid, c.sid, c.sqpn
		return spec{tags: c.tags, v1: c.v1, src: c.client, dst: c.server, cm: m}.bytes()
	}
	return spec{tags: c.tags, v1: c.v1, src: c.server, dst: c.client, cm: m}.bytes()
}

func example() *connection {
	return &connection{client: host(2), server: host(1), cqpn: 0x11, sqpn: 0x100, cid: 0xC1, sid: 0x51, cpsn: 0xFFFFFE, spsn: 77, tid: 9,
		port: 0xC123, back: 0xC123, resources: 3, depth: 5, mtu: 1024}
}

// anyEvent is what a step wants that may mean anything.
const anyEvent = NumEvents

type step struct {
	what string
	b    []byte
	want Event
}

// run feeds frames and compares the events.
func run(t *testing.T, x *Table, now clock.Time, steps ...step) {
	t.Helper()
	for i, s := range steps {
		slot, e := feed(x, now, s.b)
		if e != s.want && s.want != anyEvent {
			t.Fatalf("step %d, %s: %v, want %v", i+1, s.what, e, s.want)
		}
		if no := e == Removed || e >= Ambiguous && e != Unmatched; no && slot != NoSlot || slot != NoSlot && !x.Used(slot) {
			t.Fatalf("step %d, %s: %v with slot %d", i+1, s.what, e, slot)
		}
		check(t, x)
	}
}

// check is the table's own book-keeping.
func check(t testing.TB, x *Table) {
	t.Helper()
	if err := x.verify(); err != nil {
		t.Fatal(err)
	}
}

// verify looks for contradictions inside of a table.
func (t *Table) verify() error {
	free := map[Slot]bool{}
	for _, s := range t.free {
		if free[s] || t.rows[s].used {
			return fmt.Errorf("slot %d is free twice or used", s)
		}
		free[s] = true
	}
	noted, bits := 0, map[*bucket]uint64{}
	for i := range t.pairs {
		l := &t.pairs[i]
		for j := l.voices; j != 0; j = t.voices[j-1].succ {
			v := &t.voices[j-1]
			if v.bit == 0 || bits[l]&v.bit != 0 || t.bucket(v.client, v.server) != l {
				return fmt.Errorf("voice %+v is in a wrong list, or its bit another's", v)
			}
			bits[l] |= v.bit
			noted++
		}
	}
	if noted+len(t.mute) != len(t.voices) {
		return fmt.Errorf("%d voices, %d free, of %d", noted, len(t.mute), len(t.voices))
	}
	for _, i := range t.mute {
		if t.voices[i-1].bit != 0 {
			return fmt.Errorf("voice %d is free and has a bit", i)
		}
	}
	noted = len(t.blank)
	for i := range t.rows {
		if r := &t.rows[i]; r.used && r.notes != 0 {
			x := &t.notes[r.notes-1]
			if noted++; !r.listed || (x.heard|x.few|x.many|x.ahead)&^bits[t.bucket(r.Client.Addr, r.Server.Addr)] != 0 {
				return fmt.Errorf("%v: its notes %+v are about nobody", r, x)
			}
		}
	}
	if noted != len(t.notes) {
		return fmt.Errorf("%d notes of %d", noted, len(t.notes))
	}
	qps, ids, listed, placed := 0, 0, 0, 0
	for i := range t.rows {
		r, s := &t.rows[i], Slot(i)
		if r.used == free[s] {
			return fmt.Errorf("slot %d is lost", s)
		}
		if !r.used {
			continue
		}
		for _, client := range []bool{false, true} {
			e, _ := r.ends(client)
			k := t.find(e.Addr, e.QPN)
			want := r.State != HalfOpen || r.Learnt == Inferred && !client && !r.waits
			if (k == refOf(s, client)) != want {
				return fmt.Errorf("%v: end %v is found as %d", r, client, k)
			}
			if want {
				qps++
			}
			if e.hasComm {
				ids++
				if t.findID(e.Addr, e.CommID) != refOf(s, client) {
					return fmt.Errorf("%v: its name is not found", r)
				}
			}
		}
		if want := r.Learnt == Inferred && r.State == HalfOpen; r.listed != want {
			return fmt.Errorf("%v: listed %v", r, r.listed)
		} else if want {
			listed++
		}
		if r.placed != (r.class() < numClasses) || r.placed && (r.in != r.class() || t.quiet[r.in][r.at] != s) {
			return fmt.Errorf("%v: placed %v in %d", r, r.placed, r.in)
		} else if r.placed && (r.since > r.LastSeen && !r.pinned || r.at > 0 && t.rows[t.quiet[r.in][(r.at-1)/2]].since > r.since) {
			return fmt.Errorf("%v: is out of order", r)
		} else if r.placed {
			placed++
		}
		if w := *r; r.easy != hard {
			if t.rewatch(&w); w.easy != r.easy {
				return fmt.Errorf("%v: is not watched", r)
			}
		}
		if r.waits && r.State != HalfOpen || r.Learnt == Inferred && r.State == Closing {
			return fmt.Errorf("%v: waits %v", r, r.waits)
		}
		if r.waits && r.Learnt == Inferred {
			k := t.find(r.Server.Addr, r.Server.QPN)
			if k == noRef || t.rows[k.slot()].rival != s+1 {
				return fmt.Errorf("%v: nobody knows that it waits", r)
			}
		}
		if w := r.rival - 1; r.rival != 0 && (!t.rows[w].used || !t.rows[w].waits) {
			return fmt.Errorf("%v: waited for by slot %d, which does not", r, w)
		}
	}
	kept := 0
	for i := range t.past {
		for _, client := range []bool{false, true} {
			if e, _ := t.past[i].ends(client); e.named {
				kept++
			}
		}
	}
	count := func(x *names) (n int) {
		for _, v := range x.E {
			if v != 0 {
				n++
			}
		}
		return n
	}
	if count(&t.qps) != qps || count(&t.ids) != ids || count(&t.pastIDs) != kept {
		return fmt.Errorf("%d, %d and %d index entries for %d, %d and %d ends", count(&t.qps), count(&t.ids), count(&t.pastIDs), qps, ids, kept)
	}
	if n := len(t.quiet[guesses]) + len(t.quiet[handshakes]) + len(t.quiet[pairings]) + len(t.quiet[unused]); n != placed {
		return fmt.Errorf("%d rows in heaps, want %d", n, placed)
	}
	for _, l := range t.pairs {
		n := l.n
		for i, prev := l.head, Slot(0); i != 0; prev, i = i, t.rows[i-1].succ {
			n--
			if listed--; !t.rows[i-1].listed || t.rows[i-1].prev != prev {
				return errors.New("a list is broken")
			}
		}
		if n != 0 {
			return fmt.Errorf("a list is %d rows short", n)
		}
	}
	if listed != 0 {
		return fmt.Errorf("%d rows are in no list", listed)
	}
	return nil
}

func readCapture(t testing.TB, name string) (frames [][]byte, at []clock.Time) {
	t.Helper()
	f, err := os.Open("../../tests/pcap/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcap.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var p pcap.Packet
	for {
		if err := r.Next(&p); err == io.EOF {
			return frames, at
		} else if err != nil {
			t.Fatal(err)
		}
		frames, at = append(frames, slices.Clone(p.Data)), append(at, p.Time)
	}
}

// A reliable connection's handshake, data in between, and its end.
func TestHandshake(t *testing.T) {
	c := example()
	var gone []Slot
	var x *Table
	x = newTable(t, Config{Rows: 4, OnRemove: func(s Slot) {
		if x.Row(s).Client.QPN != c.cqpn {
			t.Error("the row is not readable any more")
		}
		gone = append(gone, s)
	}})
	run(t, x, 1,
		step{"request", c.connectRequest(), Opened},
		step{"request again", c.connectRequest(), Waiting},
		step{"receipt", spec{src: c.server, dst: c.client, cm: &hdr.CMFields{AttributeID: hdr.MsgRcptAck, LocalCommID: c.sid, RemoteCommID: c.cid}}.bytes(), Waiting},
		step{"reply", c.connectReply(), NowPaired},
		step{"reply again", c.connectReply(), Known},
		step{"data before ready", c.request(hdr.WriteOnly, c.cpsn), Known},
		step{"answer", c.response(hdr.Acknowledge, c.cpsn), Known},
		step{"ready", c.tell(hdr.ReadyToUse, true), Known},
		step{"the server's own request", spec{op: hdr.SendOnly, src: c.server, dst: c.client, qpn: c.cqpn, psn: c.spsn, port: c.back}.bytes(), Reverse},
		step{"the client's answer", spec{op: hdr.Acknowledge, src: c.client, dst: c.server, qpn: c.sqpn, psn: c.spsn, port: c.port}.bytes(), Reverse},
		step{"a rejection, too late", c.tell(hdr.ConnectReject, false), Forged},
	)
	s, client := x.Find(AddrFrom(c.server), c.sqpn)
	if x.Len() != 1 || client || s == NoSlot {
		t.Fatal(s, client, x.Len())
	}
	r := x.Row(s)
	want := Row{
		Client: End{Addr: AddrFrom(c.client), QPN: 0x11, StartPSN: 0xFFFFFE, HasPSN: true, L2: [12]byte(c.request(hdr.SendOnly, 0)), Port: 0xC123,
			Resources: 3, Depth: 5, CommID: 0xC1, hasComm: true},
		Server: End{Addr: AddrFrom(c.server), QPN: 0x100, StartPSN: 77, HasPSN: true, L2: [12]byte(c.response(hdr.Acknowledge, 0)), Port: 0xC123,
			Resources: 4, Depth: 6, CommID: 0x51, hasComm: true},
		LastSeen: 1, PKey: 0xFFFF, MTU: 1024, Net: hdr.NetIPv4, Learnt: Managed, State: Paired, easy: plain, used: true, ready: true, tid: 9, AckTimeout: 1,
	}
	if *r != want {
		t.Errorf("got  %+v\nwant %+v", *r, want)
	}
	run(t, x, 2,
		step{"disconnect", c.tell(hdr.DisconnectRequest, true), IsClosing},
		step{"again", c.tell(hdr.DisconnectRequest, true), IsClosing},
		step{"from the other end", c.tell(hdr.DisconnectRequest, false), IsClosing},
		step{"a late answer", c.response(hdr.Acknowledge, c.cpsn), IsClosing},
		step{"a late request", c.request(hdr.WriteOnly, c.cpsn), IsClosing},
		step{"confirmed", c.tell(hdr.DisconnectReply, false), Removed},
		step{"the answer to the other", c.tell(hdr.DisconnectReply, true), Ended},
		step{"unknown", c.request(hdr.WriteOnly, c.cpsn), Foreign},
	)
	if x.Len() != 0 || !slices.Equal(gone, []Slot{s}) {
		t.Error(x.Len(), gone)
	}
}

// TestCaptures: inference over all captures finds the connections that their
// logs name, and no other.
func TestCaptures(t *testing.T) {
	f, err := os.Open("testdata/connections.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	total, learnt := 0, 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		fields := strings.Fields(lines.Text())
		truth := map[uint32]uint32{}
		for _, p := range fields[1:] {
			var c, s uint32
			if _, err := fmt.Sscanf(p, "%v-%v", &c, &s); err != nil {
				t.Fatal(fields, err)
			}
			truth[c] = s
		}
		for _, samePort := range []bool{false, true} {
			n, k := learnCapture(t, fields[0], truth, samePort)
			total, learnt = total+n, learnt+k
		}
	}
	if learnt < 200 || total != learnt {
		t.Errorf("%d connections of %d that can be learnt", learnt, total)
	}
}

// learnCapture plays a capture, without its management datagrams, into a
// table; it returns how many connections could be learnt and how many were.
func learnCapture(t *testing.T, name string, truth map[uint32]uint32, samePort bool) (can, did int) {
	frames, at := readCapture(t, name)
	x := newTable(t, Config{Rows: 64, Infer: true, SamePort: samePort})
	// evidence: the responses with new PSNs that end a message, after their request.
	type seen struct {
		last uint32
		n    int
	}
	evidence, asked := map[uint32]seen{}, map[uint32]uint32{}
	got := map[uint32]uint32{}
	for i, b := range frames {
		var f hdr.Frame
		if hdr.Parse(b, &f) != hdr.IsRoCE || f.Op.Transport() != hdr.RC {
			continue
		}
		h := f.BTHOf(b)
		s, e := feed(x, at[i], b)
		check(t, x)
		switch e {
		case Spoofed:
			if !strings.Contains(name, "icrc-live") { // there, addresses were spoilt on purpose
				t.Fatalf("%s, frame %d: %v", name, i+1, e)
			}
		case Full, Replaced, Foreign, Unpaired:
			t.Fatalf("%s, frame %d: %v", name, i+1, e)
		case NowPaired:
			r := x.Row(s)
			got[r.Client.QPN] = r.Server.QPN
			if truth[r.Client.QPN] != r.Server.QPN {
				t.Errorf("%s, frame %d: %v", name, i+1, r)
			}
		}
		if f.Op.Has(hdr.IsRequest) {
			asked[h.DestQP()] = h.PSN()
		} else if server, ok := truth[h.DestQP()]; ok && f.Op.Any(hdr.IsLast|hdr.IsOnly) && (f.Op != hdr.Acknowledge || f.AETHOf(b).Syndrome().ACK()) {
			if _, ok := asked[server]; ok {
				if v := evidence[h.DestQP()]; v.n == 0 || hdr.PSNDiff(h.PSN(), v.last) > 0 {
					evidence[h.DestQP()] = seen{h.PSN(), v.n + 1}
				}
			}
		}
	}
	for _, q := range slices.Sorted(maps.Keys(truth)) {
		if evidence[q].n >= enough {
			if can++; got[q] == truth[q] {
				did++
			} else {
				t.Errorf("%s: %#x-%#x was not learnt", name, q, truth[q])
			}
		}
	}
	return can, did
}

// The connection manager's datagrams of perftest -R: both connections, every
// frame between.
func TestCaptureOfRDMACM(t *testing.T) {
	frames, at := readCapture(t, "rxe/perftest-write-rdmacm-128B.pcap")
	x := newTable(t, Config{Rows: 8, Infer: true})
	events := map[Event]int{}
	for i, b := range frames {
		s, e := feed(x, at[i], b)
		check(t, x)
		events[e]++
		if e == NowPaired {
			r := x.Row(s)
			if r.Learnt != Managed || r.MTU != 1024 || r.Client.QPN != 0x44+uint32(s) || r.Server.QPN != 0x133+uint32(s) {
				t.Errorf("%+v", r)
			}
			if s == 0 && (r.Client.StartPSN != 0x315252 || r.Server.StartPSN != 0xb0e0be) || s == 1 && r.Client.StartPSN != 0x897a81 {
				t.Errorf("PSNs %#x %#x", r.Client.StartPSN, r.Server.StartPSN)
			}
		}
	}
	// 2 ready-to-use messages and 104 frames of data, a third of them about
	// what the server sent; both ends ask to disconnect and one reply ends it,
	// after which the other end's reply is about a connection that has ended.
	want := map[Event]int{Opened: 2, NowPaired: 2, Known: 74, Reverse: 32, IsClosing: 4, Removed: 2, Ended: 1}
	if !maps.Equal(events, want) || x.Len() != 0 {
		t.Errorf("%v, want %v; %d rows left", events, want, x.Len())
	}
}

func TestConfigRefused(t *testing.T) {
	for _, c := range []Config{{Rows: -1}, {Rows: maxRows + 1}, {Window: 1 << 23}, {Idle: -time.Second}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}
