package conn

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// model is a naive table of the connection manager's connections: two maps
// and no thought of speed. It says what event each frame must be.
type model struct {
	rows int
	byQP map[end]*connRow
	byID map[end]*connRow
	all  map[*connRow]bool
	past []*connRow // that have ended, the last one last
	keep time.Duration
}

// end is an address and a queue pair or communication ID.
type end struct {
	a netip.Addr
	n uint32
}

type connRow struct {
	connection
	state                 State
	replied, ready, waits bool
	ender                 [2]bool // a DisconnectRequest came from the server, from the client
	last                  clock.Time
	rival                 *connRow // the newest that waits for its queue pairs
	until                 clock.Time
	slot                  Slot
}

// gone drops r, and remembers its names if it was closing.
func (m *model) gone(r *connRow) {
	if r.state == Closing {
		m.end(r, r.last)
		return
	}
	m.drop(r)
}

// end drops r and remembers its names.
func (m *model) end(r *connRow, at clock.Time) {
	m.drop(r)
	r.until = at.Add(m.keep)
	if m.past = append(m.past, r); len(m.past) > m.rows {
		m.past = m.past[1:]
	}
}

// about is what a datagram is that gives its receiver no name that it has.
func (m *model) about(now clock.Time, a hdr.CMAttr, src, dst netip.Addr, local, remote, qpn uint32) Event {
	e := Stray
	for _, r := range m.past {
		for _, toClient := range []bool{false, true} {
			from, to, fromID, toID, toNamed, fromNamed, toQPN := r.client, r.server, r.cid, r.sid, r.replied, true, r.sqpn
			if toClient {
				from, to, fromID, toID, toNamed, fromNamed, toQPN = r.server, r.client, r.sid, r.cid, true, r.replied, r.cqpn
			}
			switch {
			case now >= r.until || !toNamed || toID != remote || to != dst:
			case from != src:
				if e == Stray {
					e = Spoofed
				}
			case fromNamed && fromID != local && (a != hdr.ConnectReject || local != 0), a == hdr.DisconnectRequest && qpn != toQPN:
				if e != Ended {
					e = Forged
				}
			default:
				e = Ended
			}
		}
	}
	if e == Stray {
		if r := m.byID[end{src, local}]; r != nil {
			isClient := r.client == src && r.cid == local
			if isClient && r.server == dst && r.replied || !isClient && r.client == dst {
				return Forged
			}
		}
	}
	return e
}

func (m *model) drop(r *connRow) {
	for k, v := range m.byQP {
		if v == r {
			delete(m.byQP, k)
		}
	}
	for k, v := range m.byID {
		if v == r {
			delete(m.byID, k)
		}
	}
	delete(m.all, r)
	for o := range m.all {
		if o.rival == r {
			o.rival = nil
		}
	}
}

func (m *model) pair(r *connRow) {
	for _, k := range []end{{r.server, r.sqpn}, {r.client, r.cqpn}} {
		if o := m.byQP[k]; o != nil {
			m.end(o, o.last)
		}
		m.byQP[k] = r
	}
	m.byQP[end{r.client, r.cqpn}], m.byQP[end{r.server, r.sqpn}] = r, r
	r.state, r.waits = Paired, false
}

func (m *model) connectRequest(now clock.Time, c connection) Event {
	if r := m.byID[end{c.client, c.cid}]; r != nil {
		if r.client != c.client || r.cid != c.cid || r.server != c.server || r.cqpn != c.cqpn || r.tid != c.tid {
			return Forged
		}
		if r.state != HalfOpen {
			return Known
		}
		r.last = now
		return Waiting
	}
	for _, r := range m.past {
		if r.client == c.client && r.cid == c.cid && r.server == c.server && r.cqpn == c.cqpn && r.spsn == c.spsn && now < r.until {
			return Ended
		}
	}
	if len(m.all) == m.rows {
		return Full
	}
	r := &connRow{connection: c, last: now}
	r.sqpn, r.sid, r.cpsn = 0, 0, 0
	m.all[r], m.byID[end{c.client, c.cid}] = true, r
	return Opened
}

func (m *model) connectReply(now clock.Time, src, dst netip.Addr, c connection) Event {
	r := m.byID[end{dst, c.cid}]
	switch {
	case r == nil:
		return m.about(now, hdr.ConnectReply, src, dst, c.sid, c.cid, 0)
	case r.client == dst && r.cid == c.cid && r.server != src, r.server == dst && r.client != src:
		return Spoofed
	case r.client != dst || r.tid != c.tid:
		return Forged
	case r.replied:
		if r.sid != c.sid || r.sqpn != c.sqpn || r.cpsn != c.cpsn {
			return Forged
		}
		if r.state == HalfOpen {
			r.last = now
			return Waiting
		}
		return Known
	case m.byID[end{src, c.sid}] != nil:
		return Forged
	}
	r.replied, r.last = true, now
	r.sid, r.sqpn, r.cpsn = c.sid, c.sqpn, c.cpsn
	m.byID[end{src, c.sid}] = r
	for _, k := range []end{{r.client, r.cqpn}, {r.server, r.sqpn}} {
		if o := m.byQP[k]; o != nil {
			o.rival, r.waits = r, true
		}
	}
	if r.waits {
		return Waiting
	}
	m.pair(r)
	return NowPaired
}

// other messages name the connection as the sender and the receiver do.
func (m *model) tell(now clock.Time, a hdr.CMAttr, src, dst netip.Addr, local, remote, qpn uint32) Event {
	r := m.byID[end{dst, remote}]
	if r == nil {
		return m.about(now, a, src, dst, local, remote, qpn)
	}
	toClient := r.client == dst && r.cid == remote
	from, to, fromID, fromKnown, toQPN := r.client, r.server, r.cid, true, r.sqpn
	if toClient {
		from, to, fromID, fromKnown, toQPN = r.server, r.client, r.sid, r.replied, r.cqpn
	}
	if from != src || to != dst {
		return Spoofed
	}
	if fromKnown && fromID != local && (a != hdr.ConnectReject || local != 0 || !toClient) {
		return Forged
	}
	switch a {
	case hdr.MsgRcptAck:
		if r.state != HalfOpen {
			return Known
		}
		r.last = now
		return Waiting
	case hdr.ConnectReject:
		if r.ready || r.state == Closing {
			return Forged
		}
		m.end(r, now)
		return Removed
	case hdr.ReadyToUse:
		if toClient || !r.replied {
			return Forged
		}
		if o := m.byQP[end{r.client, r.cqpn}]; r.waits && o != nil && o.state == Paired && o.last >= r.last {
			return Waiting
		}
		r.last, r.ready = now, true
		switch {
		case r.waits:
			m.pair(r)
			return NowPaired
		case r.state == Closing:
			return IsClosing
		}
		return Known
	case hdr.DisconnectRequest:
		if r.state == HalfOpen || qpn != toQPN {
			return Forged
		}
		if r.ender[map[bool]int{false: 1}[toClient]] = true; r.state != Closing {
			r.state, r.last = Closing, now
		}
		return IsClosing
	case hdr.DisconnectReply:
		if !r.ender[map[bool]int{true: 1}[toClient]] {
			return Forged
		}
		m.gone(r)
		return Removed
	}
	return Foreign
}

// data is a request or a response from src to queue pair (dst, qpn).
func (m *model) data(now clock.Time, request bool, src, dst netip.Addr, qpn, psn uint32) Event {
	r := m.byQP[end{dst, qpn}]
	if r == nil {
		if request {
			return Foreign
		}
		return Unmatched
	}
	toServer := r.server == dst && r.sqpn == qpn
	peer := r.client
	if !toServer {
		peer = r.server
	}
	if peer != src {
		return Spoofed
	}
	if request && toServer {
		if w := r.rival; w != nil && w.client == r.client && w.server == dst && w.sqpn == qpn && w.cpsn == psn && r.last < w.last {
			m.pair(w)
			w.ready, w.last = true, now
			return NowPaired
		}
	}
	if r.state == Closing && (request || toServer || now.Sub(r.last) < outlived) {
		return IsClosing
	}
	r.state, r.last = Paired, now
	if request != toServer {
		return Reverse
	}
	r.ready = r.ready || !request
	return Known
}

func (m *model) sweep(now clock.Time, c Config) {
	// In the order of slots, in which the table looks at them.
	for _, r := range slices.SortedFunc(maps.Keys(m.all), func(a, b *connRow) int { return int(a.slot - b.slot) }) {
		quiet := now.Sub(r.last)
		if r.state == HalfOpen && quiet >= c.HalfOpen || r.state == Paired && quiet >= c.Idle || r.state == Closing && quiet >= c.Close {
			m.gone(r)
		}
	}
}

// TestAgainstModel plays handshakes, their losses and repetitions, reused
// queue pairs, data and forgeries in random order.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Rows: rapid.IntRange(1, 6).Draw(t, "rows"), Idle: 500 * time.Millisecond, HalfOpen: 100 * time.Millisecond, Close: 30 * time.Millisecond, TimeWait: 50 * time.Millisecond,
			Seed: rapid.Uint64().Draw(t, "seed")}
		x, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		m := &model{rows: cfg.Rows, keep: cfg.TimeWait, byQP: map[end]*connRow{}, byID: map[end]*connRow{}, all: map[*connRow]bool{}}
		small := func(name string, n int) int { return rapid.IntRange(0, n-1).Draw(t, name) }
		// A few connections that compete for a few queue pairs and names.
		var conns []*connection
		for i := range 5 {
			conns = append(conns, &connection{client: host(1 + small("client", 2)), server: host(2 + small("server", 2)),
				cqpn: uint32(17 + small("cqpn", 2)), sqpn: uint32(17 + small("sqpn", 2)), cid: uint32(0xC0 + small("cid", 8)), sid: uint32(0xC0 + small("sid", 8)),
				cpsn: 0xFFFFFF - uint32(i), spsn: 5, tid: uint64(small("tid", 3)), mtu: 1024})
		}
		now := clock.Time(time.Hour)
		sweep := func() {
			for range (cfg.Rows + 63) / 64 {
				x.Sweep(now)
			}
			m.sweep(now, cfg)
		}
		for range rapid.IntRange(20, 120).Draw(t, "steps") {
			c := *conns[small("which", len(conns))]
			if small("forged", 6) == 0 {
				// One field is another's.
				switch o := conns[small("other", len(conns))]; small("field", 7) {
				case 0:
					c.client = o.client
				case 1:
					c.server = host(9)
				case 2:
					c.cqpn = o.cqpn
				case 3:
					c.sqpn = o.sqpn
				case 4:
					c.cid, c.tid = o.cid, o.tid
				case 5:
					c.sid = 0xBAD
				case 6:
					c.spsn++ // another connection with the same names
				}
			}
			fromClient := small("side", 2) == 0
			src, dst, local, remote, rqpn := c.client, c.server, c.cid, c.sid, c.sqpn
			if src == dst {
				continue // does not come past a switch
			}
			if !fromClient {
				src, dst, local, remote, rqpn = dst, src, remote, local, c.cqpn
			}
			psn := c.cpsn + uint32(small("psn", 2))
			psn &= hdr.PSNMask
			var b []byte
			var want Event
			what := small("what", 14)
			// A frame that needs room may find it by removing overdue rows.
			sweep()
			switch what {
			case 0, 1:
				b, want = c.connectRequest(), m.connectRequest(now, c)
			case 2, 3:
				b, want = c.connectReply(), m.connectReply(now, c.server, c.client, c)
			case 4, 5:
				a := hdr.ReadyToUse
				b, want = c.tell(a, fromClient), m.tell(now, a, src, dst, local, remote, 0)
			case 6:
				a := hdr.MsgRcptAck
				b, want = c.tell(a, fromClient), m.tell(now, a, src, dst, local, remote, 0)
			case 7:
				a := hdr.ConnectReject
				b, want = c.tell(a, fromClient), m.tell(now, a, src, dst, local, remote, 0)
			case 8:
				a := hdr.DisconnectRequest
				b, want = c.tell(a, fromClient), m.tell(now, a, src, dst, local, remote, rqpn)
			case 9:
				a := hdr.DisconnectReply
				b, want = c.tell(a, fromClient), m.tell(now, a, src, dst, local, remote, 0)
			case 10, 11:
				b = spec{op: hdr.WriteOnly, src: src, dst: dst, qpn: rqpn, psn: psn}.bytes()
				want = m.data(now, true, src, dst, rqpn, psn)
			case 12:
				b = spec{op: hdr.Acknowledge, src: src, dst: dst, qpn: rqpn, psn: psn}.bytes()
				want = m.data(now, false, src, dst, rqpn, psn)
			case 13:
				now = now.Add(time.Duration(small("ms", 60)) * time.Millisecond)
				sweep()
				continue
			}
			s, got := feed(x, now, b)
			if got != want {
				t.Fatalf("step %d of %+v: %v, want %v", what, c, got, want)
			}
			if got == Opened {
				m.byID[end{c.client, c.cid}].slot = s
			}
			if err := x.verify(); err != nil {
				t.Fatal(err)
			}
			if err := m.same(x); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// same compares the table's rows with the model's.
func (m *model) same(x *Table) error {
	if x.Len() != len(m.all) {
		return fmt.Errorf("%d rows, want %d", x.Len(), len(m.all))
	}
	for k, r := range m.byQP {
		s, client := x.Find(AddrFrom(k.a), k.n)
		if s == NoSlot {
			return fmt.Errorf("%v is not found", k)
		}
		g := x.Row(s)
		if g.Client.Addr.Netip() != r.client || g.Server.Addr.Netip() != r.server || g.Client.QPN != r.cqpn || g.Server.QPN != r.sqpn ||
			g.Client.StartPSN != r.cpsn || g.Server.StartPSN != r.spsn || g.State != r.state || g.LastSeen != r.last || client != (k == end{r.client, r.cqpn}) {
			return fmt.Errorf("%v is %+v, want %+v", k, g, r)
		}
	}
	return nil
}

// flow is a connection with requests in flight, for inference.
type flow struct {
	connection
	next, acked uint32
	ops         map[uint32]hdr.Opcode // by PSN
}

// TestInference: whatever the order, the numbering and the losses after the
// table, no connection is ever paired with another's client; and with
// numbering of their own, or ports of their own, all are learnt.
func TestInference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		apart := rapid.Bool().Draw(t, "apart")
		ports := rapid.Bool().Draw(t, "ports")
		x, err := New(Config{Rows: 16, Infer: true, SamePort: ports, Settle: -1})
		if err != nil {
			t.Fatal(err)
		}
		base := rapid.SampledFrom([]uint32{0, 3185, 0xFFFFF0}).Draw(t, "psn")
		var flows []*flow
		for i := range rapid.IntRange(1, 8).Draw(t, "flows") {
			f := &flow{connection: connection{client: host(2 + i%2), server: host(1), cqpn: uint32(17 + i), sqpn: uint32(17 + (i*5)%8), cpsn: base,
				port: uint16(0xC000 + i), back: uint16(0xC000 + i)}}
			if apart {
				f.cpsn += uint32(i) * 0x20000
			}
			if !ports {
				f.back = 0xC000 // says nothing
			}
			f.cpsn &= hdr.PSNMask
			f.next, f.acked, f.ops = f.cpsn, f.cpsn, map[uint32]hdr.Opcode{}
			flows = append(flows, f)
		}
		ops := []hdr.Opcode{hdr.WriteOnly, hdr.ReadRequest, hdr.CompareSwap, hdr.SendOnly}
		answers := map[hdr.Opcode]hdr.Opcode{hdr.WriteOnly: hdr.Acknowledge, hdr.ReadRequest: hdr.ReadRespOnly, hdr.CompareSwap: hdr.AtomicAck, hdr.SendOnly: hdr.Acknowledge}
		see := func(b []byte) {
			s, e := feed(x, 1, b)
			if e == NowPaired {
				r := x.Row(s)
				for _, f := range flows {
					if f.cqpn == r.Client.QPN && f.sqpn == r.Server.QPN {
						return
					}
				}
				t.Fatalf("wrongly paired %v", r)
			}
			if e == Unpaired || e == Spoofed || e == Full {
				t.Fatal(e)
			}
			if err := x.verify(); err != nil {
				t.Fatal(err)
			}
		}
		step := func(f *flow) {
			op := rapid.SampledFrom(ops).Draw(t, "op")
			if rapid.IntRange(0, 2).Draw(t, "do") > 0 && hdr.PSNDiff(f.next, f.acked) < 16 {
				see(f.request(op, f.next))
				f.ops[f.next] = op
				f.next = (f.next + 1) & hdr.PSNMask
			} else if f.next != f.acked {
				// An answer to any one in flight: ACKs coalesce. Or the same again.
				f.acked = (f.acked + uint32(rapid.IntRange(1, int(hdr.PSNDiff(f.next, f.acked))).Draw(t, "covers"))) & hdr.PSNMask
				p := (f.acked - 1) & hdr.PSNMask
				see(f.response(answers[f.ops[p]], p))
			}
			if rapid.IntRange(0, 7).Draw(t, "again") == 0 && f.next != f.cpsn {
				p := (f.next - 1) & hdr.PSNMask
				see(f.request(f.ops[p], p))
			}
		}
		for range rapid.IntRange(0, 150).Draw(t, "steps") {
			step(flows[rapid.IntRange(0, len(flows)-1).Draw(t, "flow")])
		}
		if !apart && !ports {
			return
		}
		for range 4 {
			for _, f := range flows {
				see(f.request(hdr.WriteOnly, f.next))
				see(f.response(hdr.Acknowledge, f.next))
				f.next = (f.next + 1) & hdr.PSNMask
				f.acked = f.next
			}
		}
		for _, f := range flows {
			if s, client := x.Find(AddrFrom(f.client), f.cqpn); s == NoSlot || !client || x.Row(s).Server.QPN != f.sqpn {
				t.Errorf("%#x-%#x was not learnt", f.cqpn, f.sqpn)
			}
		}
	})
}
