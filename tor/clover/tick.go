package clover

import (
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
)

// tickEvery is the time between two ticks, which do repairs and look for hot keys.
const tickEvery = 10 * time.Millisecond

// Tick implements graph.Ticker: it does repairs, finds hot keys, and gives up what is not used. One worker
// does it for all.
func (s *Steer) Tick(c *graph.Ctx) clock.Time {
	if s.worker != 0 {
		return clock.Never
	}
	now := c.Now()
	s.lock()
	s.begin(c)
	if s.cfg.mode != Off {
		repairs{&s.desk}.repair(c, now)
		if s.cfg.hot > 0 {
			c.Count(ctrEvicted, uint64(s.rebalance(&s.memory, c, now)))
		}
		s.giveUp(c, now)
	}
	s.journal.expire(now)
	s.conns.Sweep(now)
	s.release(c)
	s.gauge(c)
	s.unlock()
	s.send(c)
	return now.Add(tickEvery)
}

// repairs makes frames: a steered CAS that is sent again, or the question where the server's end of a
// connection is. Tick and legacy call it.
type repairs struct{ *desk }

// tickRepairs is the largest number of CASes that one tick sends again.
const tickRepairs = 256

// repair sends steered CASes without an answer again, and gives up appends that will never be linked.
func (s repairs) repair(c *graph.Ctx, now clock.Time) {
	left := tickRepairs
	for n := range maxRepairs + 1 {
		for w := range s.open {
			left = s.repairOf(c, now, n, &s.open[w].lists[n], left)
		}
	}
	for i := len(s.gaps) - 1; i >= 0 && s.cfg.idle > 0; i-- {
		if i >= len(s.gaps) {
			continue // more than one gap was removed
		}
		switch g := &s.gaps[i]; {
		case g.over:
		case g.told && now.Sub(g.at) > s.cfg.repair<<2 && hdr.PSNDiff(s.rows[g.row].acked, g.acked) > 0:
			s.over(i)
		case now.Sub(g.at) > s.cfg.idle:
			s.cut(c, g.key)
		}
	}
}

// repairOf does this for the CASes of a list, which were repeated n times. left is how many the tick may
// still handle; repairOf returns how many are left then.
func (s repairs) repairOf(c *graph.Ctx, now clock.Time, n int, list *opList, left int) int {
	for s.cfg.repair > 0 && left > 0 && list.first != 0 {
		at := list.first - 1
		rec := &s.ops[at]
		if now.Sub(rec.sent) < s.cfg.repair<<n {
			break
		}
		left--
		s.delist(rec)
		if s.passed(at/window, rec) {
			s.settle(c, rec)
			continue
		}
		if n == maxRepairs {
			c.Count(ctrGivenUp, 1)
			continue
		}
		if n == 1 && s.keys.s[rec.key].epoch == rec.epoch {
			s.dropKey(c, rec.key) // nobody else is sent behind it
		}
		s.resend(c, at/window, rec)
		rec.repairs++
		s.journal.awaited(rec)
		s.enlist(rec, at, now)
	}
	return left
}

// resend sends the steered CAS of rec, on connection i, again, made from its record, if the server would take
// it. The server would refuse a request that is ahead of its turn, which would cost the client one of its
// retries.
func (s repairs) resend(c *graph.Ctx, i int32, rec *op) {
	r := &s.rows[i]
	switch {
	case s.void(rec):
		return
	case r.unmet:
		s.ask(c, i, rec)
		return
	case r.count == counted && (r.behind > 0 || rec.ask):
		// Its queue pairs may belong to another connection now. What the server executes there is not this
		// client's.
		r.unmet, rec.ask = true, false
		s.ask(c, i, rec)
		return
	case hdr.PSNDiff(rec.psn, r.acked) > 1:
		return
	}
	x, b := s.anew(c, r, hdr.AtomicETHLen)
	if x == nil {
		return
	}
	f := &s.g
	f.BTHOf(b).SetPSN(rec.psn)
	a := f.AtomicETHOf(b)
	a.SetVA(rec.newVA)
	a.SetRKey(rec.rkey)
	a.SetSwap(uint64(wire.Pointer(rec.swap).WithVersion(rec.newVer)))
	a.SetCompare(uint64(wire.Fresh(rec.newVer)))
	hdr.SetICRC(b, f)
	c.Mark(x, packet.Generated, reasonRepaired)
	c.Emit(int(fromServers), x)
}

// anew returns a frame with the front of r's newest CAS, and with room for more bytes behind the BTH; s.g has
// its headers. It returns nil if there is no buffer.
func (s repairs) anew(c *graph.Ctx, r *row, more int) (*packet.Buf, []byte) {
	x := c.Get()
	if x == nil {
		return nil, nil
	}
	f := &s.g
	*f = r.startF
	n := int(f.BTH) + hdr.BTHLen
	b, ok := x.Append(n + more + hdr.ICRCLen)
	if !ok {
		c.Discard(x)
		return nil, nil
	}
	copy(b, r.start[:n])
	f.Op = hdr.CompareSwap
	unmark(b, f)
	f.End = uint16(n + more)
	f.Payload = f.End
	if f.L4 != 0 {
		b[f.L4+6], b[f.L4+7] = 0, 0
	}
	return x, b
}

// ask asks the server whether the two ends of connection i still belong to each other, and where the server
// is. The question is an empty WRITE with a PSN so old that the server's end of connection i takes it for a
// duplicate: it only acknowledges it, with its newest PSN (IBTA 9.7.5.1.2). The PSN is far from those that
// another connection with the same numbers may have.
func (s repairs) ask(c *graph.Ctx, i int32, rec *op) {
	r := &s.rows[i]
	x, b := s.anew(c, r, hdr.RETHLen)
	if x == nil {
		return
	}
	f := &s.g
	h := f.BTHOf(b)
	f.Op = hdr.WriteOnly
	h.SetOpCode(hdr.WriteOnly)
	h.SetAckReq(true)
	h.SetPSN((rec.psn - lookback) & hdr.PSNMask)
	clear(f.RETHOf(b))
	switch n := uint16(hdr.AtomicETHLen - hdr.RETHLen); f.Net {
	case hdr.NetIPv4:
		ip := f.IPv4Of(b)
		ip.SetTotalLen(ip.TotalLen() - n)
		ip.UpdateChecksum()
	default:
		ip := f.IPv6Of(b)
		ip.SetPayloadLen(ip.PayloadLen() - n)
	}
	if f.L4 != 0 {
		u := f.UDPOf(b)
		u.SetLen(u.Len() - uint16(hdr.AtomicETHLen-hdr.RETHLen))
	}
	hdr.SetICRC(b, f)
	c.Mark(x, packet.Generated, reasonAsked)
	c.Emit(fromServers, x)
}

// unmark removes the congestion marks from frame b, which is sent anew, because another frame met that
// congestion (RFC 3168: CE is 3, and ECT(0), as RoCE NICs send it, 2; IBTA A17: FECN and BECN). It also gives
// the frame the usual TTL or hop limit, whatever the client chose.
func unmark(b []byte, f *hdr.Frame) {
	h := f.BTHOf(b)
	h[4] &^= 0xC0
	switch f.Net {
	case hdr.NetIPv4:
		ip := f.IPv4Of(b)
		if ip.TOS()&3 == 3 {
			ip.SetTOS(ip.TOS() - 1)
		}
		ip.SetTTL(hops)
		ip.UpdateChecksum()
	case hdr.NetIPv6:
		ip := f.IPv6Of(b)
		if ip.TrafficClass()&3 == 3 {
			ip.SetTrafficClass(ip.TrafficClass() - 1)
		}
		ip.SetHopLimit(hops)
	}
}

// hops is the TTL and hop limit of frames that the app makes, the usual one (RFC 1700).
const hops = 64

// Trace kinds.
const (
	traceCAS uint16 = iota
	traceRead
)

// describe puts a trace record into words (graph.Kind.Describe).
func describe(_ graph.App, kind uint16, a [4]uint64) string {
	what := "cas"
	if kind == traceRead {
		what = "read"
	}
	return fmt.Sprintf("%s psn %d key %d: va 0x%x -> 0x%x", what, a[0], a[3], a[1], a[2])
}

// Memory is the memory of the tables, in bytes. All of it is allocated at the start.
type Memory struct {
	Keys       int     `json:"keys_bytes"`
	Addresses  int     `json:"addresses_bytes"`
	Conns      int     `json:"connections_bytes"`
	Journal    int     `json:"journal_bytes"` // the part that outlives the process, for all keys and connections; 0: none does
	PerKey     float64 `json:"bytes_per_key"`
	PerAddress float64 `json:"bytes_per_address"`
	PerConn    float64 `json:"bytes_per_connection"`
}

// Report is the app's state for people.
type Report struct {
	Mode        string  `json:"mode"`
	Keys        int     `json:"keys"`
	KnownTails  int     `json:"known_tails"`
	Connections int     `json:"connections"`
	Paired      int     `json:"paired"`
	Servers     int     `json:"servers"`
	Regions     int     `json:"regions"`
	Bases       int     `json:"trusted_bases"`
	Orphans     int     `json:"orphans"`
	Held        int     `json:"held"` // answers
	Unanswered  int     `json:"unanswered"`
	Journal     Journal `json:"journal"`
	Memory      Memory  `json:"memory"`
}

// Journal is the state of the records that outlive the process.
type Journal struct {
	Records   int    `json:"records"`       // steered compare-and-swaps that are not known to be linked now
	Inherited int    `json:"inherited"`     // records of an earlier process that were taken over
	Disowned  int    `json:"disowned"`      // records of an earlier process that were not taken over
	Why       string `json:"why,omitempty"` // why the last of these was not
}

// Report implements graph.Reporter.
func (s *Steer) Report() any {
	s.lock()
	defer s.unlock()
	r := Report{Mode: s.cfg.mode.String(), Keys: s.keys.len(), Connections: s.conns.Len(), Held: s.shelf.Len()}
	for w := range s.open {
		r.Unanswered += s.open[w].n
	}
	for i := range s.keys.s {
		if k := &s.keys.s[i]; k.known() && !s.doubted(k) {
			r.KnownTails++
		}
	}
	for i := range s.servers {
		if s.servers[i].used {
			r.Servers++
			r.Regions += int(s.servers[i].regions)
		}
	}
	for i := range s.gaps {
		if !s.gaps[i].over {
			r.Orphans++
		}
	}
	for i := range s.rows {
		if s.rows[i].sid != noServer {
			r.Paired++
		}
	}
	for i := range s.bases {
		if s.trusted(&s.bases[i]) {
			r.Bases++
		}
	}
	if j := &s.journal; j.b != nil && !s.flush {
		r.Journal = Journal{Records: maxNotes - j.left(), Inherited: j.inherited, Disowned: j.disowned, Why: j.why}
	}
	conns := len(s.rows)*(sizeofRow+window*sizeofOp+4) + s.conns.Bytes()
	r.Memory = Memory{Keys: s.keys.bytes(), Addresses: s.addrs.bytes(), Conns: conns, Journal: len(s.journal.b),
		PerKey: float64(s.keys.bytes()) / float64(len(s.keys.s)), PerAddress: 16, PerConn: float64(conns) / float64(len(s.rows))}
	return r
}
