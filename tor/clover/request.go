package clover

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// requests handles clients' requests: it notes which entries are written, and steers CASes and READs. Steer
// calls it in the worker's turn at keys.
type requests struct{ *desk }

// request handles a request packet of a reliable connection, from a client. It returns false if the packet
// does not go on.
func (s requests) request(c *graph.Ctx, x *packet.Buf, b []byte) bool {
	s.order = unfollowed
	if s.row = s.connection(c, x, b); s.row >= 0 {
		s.rank(s.parsed, &s.rows[s.row], b)
	}
	return s.requested(c, x, b)
}

// requested handles a request whose order is known. It returns false if the request does not go on. It is not
// inlined, so that its callers are short.
//
//go:noinline
func (s requests) requested(c *graph.Ctx, x *packet.Buf, b []byte) bool {
	p := s.parsed
	switch fl := p.fl; p.order {
	case within:
		if s.readOn(c, x, b) {
			return true
		}
		fallthrough
	case next, alone:
		switch {
		case fl&hdr.IsWrite != 0 && fl&(hdr.IsOnly|hdr.IsFirst) != 0:
			s.write(c, x, b)
		case p.f.Op == hdr.CompareSwap:
			s.cas(c, x, b)
		case fl&hdr.IsRead != 0:
			s.read(c, x, b)
		case fl&hdr.IsAtomic != 0 || p.f.Op == hdr.AtomicWrite:
			s.untracked(c, b, s.rows[p.row].sid, fl)
			pass(c, x, reasonOtherAtomic)
		}
	case repeated:
		if hdr.PSNDiff(s.psn, s.acked) > 0 && !s.instead(c, b) {
			c.Drop(x, reasonInstead)
			return false
		}
		s.again(c, x, b)
	case early:
		// The server will not execute it, unless a request in between went unseen.
		s.untracked(c, b, s.rows[p.row].sid, fl)
		pass(c, x, reasonPSNGap)
		s.astray(p.row, p.psn, p.psns)
	case unpaired:
		if fl&hdr.IsAtomic != 0 {
			pass(c, x, reasonUnpaired)
		}
		fallthrough
	case unfollowed:
		if fl&(hdr.IsWrite|hdr.IsAtomic) != 0 || p.f.Op == hdr.AtomicWrite {
			s.untracked(c, b, s.server(p.ends.Dst), fl)
		}
	}
	return true
}

// connection returns the number of the connection of the request at hand, or a negative number if that is not
// followed.
func (s requests) connection(c *graph.Ctx, x *packet.Buf, b []byte) int32 {
	if !s.serves(s.ends.Dst) {
		return noSlot
	}
	if !s.trackable(b, s.fl) && !s.followed(b) {
		return noSlot
	}
	i, e := s.conns.Request(c.Now(), &s.ends, b, &s.f)
	switch e {
	case conn.Known, conn.Waiting:
	case conn.Full:
		pass(c, x, reasonConnFull)
		return noSlot
	case conn.Reverse:
		return noSlot
	case conn.IsClosing:
		if s.conns.Row(i).Server.Addr != s.ends.Dst {
			return noSlot
		}
	default:
		if i != conn.NoSlot {
			s.event(int32(i), e)
		}
	}
	if i >= 0 && s.rows[i].sid == noServer && s.conns.Row(i).State != conn.HalfOpen {
		s.serve(int32(i)) // there may be a place for its server now
	}
	return int32(i)
}

// followed reports whether the connection of the request at hand has a row.
func (s requests) followed(b []byte) bool {
	i, client := s.conns.Find(s.ends.Dst, s.f.BTHOf(b).DestQP())
	return i != conn.NoSlot && !client
}

// leastMTU is the smallest path MTU in bytes.
const leastMTU = 256

// astray notes a request of connection i that is ahead of its turn, or of an unknown sequence of PSNs: n PSNs
// from psn on. The app follows this sequence when the server answers it (row.heard). If the server answers
// nothing, and the outcome of all steered requests of the connection is known, another connection may have
// the same numbers: then the app forgets the connection and meets it anew. A frame that is ahead of its turn
// may be overtaken by those before it. The server may then execute it in place of the request that passes
// with its PSN in its turn. So that request does not count.
func (s requests) astray(i int32, psn, n uint32) {
	r := &s.rows[i]
	if hdr.PSNDiff(psn, r.epsn) >= 0 || !r.begun {
		r.stray(s.ctx.Now(), psn, n)
	}
	if r.count < counted {
		r.count = uncounted
	}
	if r.ahead == 0 || psn != r.aheadTo {
		r.ahead, r.aheadFrom = 0, psn
	}
	r.ahead = min(r.ahead+1, maxAhead)
	r.aheadTo = (psn + n) & hdr.PSNMask
	x := s.conns.Row(conn.Slot(i))
	if r.ahead == maxAhead && x.Learnt == conn.Inferred && s.ctx.Now().Sub(r.answered) > s.quietBefore(i) && s.mayLeave(i) {
		s.conns.Remove(conn.Slot(i))
	}
}

// write handles the first or only packet of a WRITE.
func (s requests) write(c *graph.Ctx, x *packet.Buf, b []byte) {
	f := &s.f
	r := &s.rows[s.row]
	reth := f.RETHOf(b)
	size, va := reth.DMALength(), reth.VA()
	p := f.PayloadOf(b)
	_, ok := wire.Class(size)
	if !ok || len(p) < wire.HeaderLen+wire.KeyLen || va%wire.HeaderLen != 0 {
		s.overwrite(c, r.sid, va, size, noEntry)
		return
	}
	word := wire.Pointer(binary.LittleEndian.Uint64(p))
	if word != wire.Fresh(word.Version()) || word.Version() == wire.NoVersion {
		s.overwrite(c, r.sid, va, size, noEntry)
		return
	}
	if !s.counts() { // it will not be known whether the server executed it
		s.overwrite(c, r.sid, va, size, noEntry)
		r.linked(va)
		return
	}
	if g := &s.servers[r.sid].where; uint64(size) > g.step || !g.has(va) {
		s.overwrite(c, r.sid, va, size, va)
	}
	packets := uint32(1)
	if s.fl&hdr.IsFirst != 0 {
		packets = (size + uint32(len(p)) - 1) / uint32(len(p))
	}
	key := binary.LittleEndian.Uint64(p[wire.KeyAt:])
	var w pendingWrite // field by field: the compiler builds a literal elsewhere and copies it
	w.name, w.va, w.end, w.slot, w.size, w.rkey, w.version = key, va, (s.psn+packets-1)&hdr.PSNMask, noSlot, size, reth.RKey(), word.Version()
	w.key = s.keyOf(r.sid, key)
	if !s.isRegion(r.region, r.sid, w.rkey) {
		r.region = s.regionOf(r.sid, w.rkey)
	}
	w.region = r.region
	switch {
	case w.key == noSlot:
		if old := s.lookup(r.sid, va); old != noSlot {
			s.vacate(c, old)
		}
		pass(c, x, reasonKeyFull)
	case w.region == noRegion:
		if old := s.lookup(r.sid, va); old != noSlot {
			s.vacate(c, old)
		}
	default:
		s.written(c, s.setOf(r.sid, va), r.sid, &w, entryClaimed)
	}
	r.unread = true
	for i := range r.writes[:r.nw] {
		if r.writes[i].va == va {
			r.writes[i] = w
			return
		}
	}
	if r.nw == maxWrites {
		r.take(0)
	}
	r.writes[r.nw] = w
	r.nw++
}

// cas handles a compare-and-swap in its turn.
func (s requests) cas(c *graph.Ctx, x *packet.Buf, b []byte) {
	f, ri, psn := &s.f, s.row, s.psn
	r := &s.rows[ri]
	a := f.AtomicETHOf(b)
	va, swap, cmp := a.VA(), wire.Pointer(a.Swap()), wire.Pointer(a.Compare())
	if cmp != wire.Fresh(cmp.Version()) || swap.Version() != cmp.Version() || swap&0xF0000000080007FF != 0 {
		s.disturb(c, r.sid, va)
		pass(c, x, reasonOtherAtomic)
		return
	}
	rec := s.newOp(ri, psn)
	if rec == nil {
		s.disturb(c, r.sid, va)
		pass(c, x, reasonWindowFull)
		return
	}
	rec.kind, rec.swap, rec.marks = opCAS, uint64(swap), marksOf(b, f)
	rec.va, rec.rkey, rec.cliVer = va, a.RKey(), cmp.Version()
	rec.newVA, rec.newVer = rec.va, rec.cliVer
	if rec.sure = s.counts(); !rec.sure {
		s.disturb(c, r.sid, va)
		pass(c, x, reasonUnproven)
		return
	}
	i := s.entryOf(r, swap)
	if i < 0 {
		s.disturb(c, r.sid, va)
		pass(c, x, reasonUnattributed)
		return
	}
	w := &r.writes[i]
	if !s.current(w) {
		r.take(i)
		s.disturb(c, r.sid, va)
		pass(c, x, reasonKeyFull)
		return
	}
	k := &s.keys.s[w.key]
	k.hits++
	k.usedAt(s.age)
	rec.key, rec.slot, rec.entry = w.key, w.slot, w.va
	t, why := s.target(c, r, w, rec)
	if t == nil {
		s.disturb(c, r.sid, rec.va)
		rec.epoch = k.epoch
		pass(c, x, why)
		return
	}
	rec.newVA, rec.newVer = t.va, t.version()
	if k.unlinked() > 0 {
		s.book(rec, 1)
	}
	k.sent++
	rec.steered, rec.epoch, rec.cuts, rec.n = true, k.epoch, k.cuts, k.sent
	t.info |= entryTouched
	k.tail = w.slot
	r.take(i)
	c.Count(ctrAppends, 1)
	if int(f.BTH)+hdr.BTHLen <= len(r.start) && len(b) >= len(r.start) {
		s.enlist(rec, s.place(ri), c.Now())
		if r.startMarks != rec.marks {
			r.startMarks, r.start, r.startF = rec.marks, [len(r.start)]byte(b), *f
		}
		s.note(rec, ri)
	}
	if s.rewriteCAS(b, rec) {
		c.Mark(x, packet.Rewritten, reasonSteeredCAS)
		if c.Traced(x) {
			c.Trace(x, traceCAS, uint64(psn), va, rec.newVA, k.key)
		}
	}
}

// counts reports whether the server executes the request at hand if it executes a request with this PSN.
func (s requests) counts() bool { return s.sure || s.cfg.trusted }

// marksOf returns the fields, chosen by the client, on which the path of a frame to the server's queue pair
// depends: destination MAC address and P_Key. The result is not 0, because no P_Key in use is 0.
func marksOf(b []byte, f *hdr.Frame) uint64 {
	return binary.BigEndian.Uint64(b)&^0xFFFF | uint64(binary.BigEndian.Uint16(b[f.BTH+2:]))
}

// ordinary reports whether frame b has headers that every switch and NIC understands: a station's source MAC
// address, at most one 802.1Q tag, and no IP options or extension headers.
func ordinary(b []byte, f *hdr.Frame) bool {
	switch {
	case !hdr.Ethernet(b).FromStation():
		return false
	case f.Plain:
		return true
	case f.Tags > 1 || f.Tags == 1 && f.EthernetOf(b).EtherType() != hdr.EtherVLAN:
		return false
	case f.Net == hdr.NetIPv4:
		return f.L4-f.L3 == hdr.IPv4Len
	case f.Net == hdr.NetIPv6:
		return f.L4-f.L3 == hdr.IPv6Len
	}
	return true
}

// target returns the entry to which rec is steered, a CAS that links what w wrote. If rec goes where its
// client sent it, target returns nil and the reason.
func (s requests) target(c *graph.Ctx, r *row, w *pendingWrite, rec *op) (*entry, graph.Reason) {
	t := s.tail(c, w.key)
	k := &s.keys.s[w.key]
	switch {
	case t == nil:
		return nil, reasonUnknownTail
	case hdr.PSNDiff(s.acked, w.end) < 0:
		// Linked before it is known to be written: the entry could be overwritten after other appends were
		// sent behind it.
		return nil, reasonUnattributed
	case !s.cfg.trusted && (s.order != alone || r.marks == 0 || r.marks != rec.marks || r.proven != rec.rkey || !ordinary(s.b, &s.f)):
		return nil, reasonUnproven
	case k.unlinked() > s.cfg.ahead:
		return nil, reasonAhead
	case k.unlinked() > 0 && !s.room(1):
		return nil, reasonHoldFull
	case s.ending && s.journal.b != nil:
		return nil, reasonEnding
	case s.journal.full(s.worker, s.word(r.sid, t.va)):
		return nil, reasonJournalFull
	case s.regions[t.region()].rkey != rec.rkey:
		// Clients write the key in another region now: the tail's region may be gone.
		s.dropKey(c, w.key)
		return nil, reasonOtherRegion
	case t.version() != rec.cliVer && !s.cfg.adjust:
		return nil, reasonVersion
	}
	return t, 0
}

// read handles a READ request in its turn.
func (s requests) read(c *graph.Ctx, x *packet.Buf, b []byte) {
	f, ri, psn, npsn := &s.f, s.row, s.psn, s.psns
	r := &s.rows[ri]
	reth := f.RETHOf(b)
	class, ok := wire.Class(reth.DMALength())
	if !ok || s.cfg.mode != ReadWrite {
		return
	}
	va := reth.VA()
	slot := s.inSet(s.setOf(r.sid, va), r.sid, va)
	if slot == noSlot || s.addrs.e[slot].claimed() {
		pass(c, x, reasonReadMiss)
		return
	}
	e := &s.addrs.e[slot]
	k := &s.keys.s[e.key()]
	if s.cfg.hot > 0 {
		k.hits++
	}
	k.usedAt(s.age)
	if k.tail == slot {
		return
	}
	t := s.tail(c, e.key())
	why := graph.Reason(0)
	switch {
	case t == nil:
		why = reasonUnknownTail
	case k.unlinked() > s.cfg.ahead:
		why = reasonAhead
	case k.unlinked() > 0 && !s.room(int(npsn)):
		why = reasonHoldFull
	case s.regions[e.region()].rkey != reth.RKey() || t.region() != e.region():
		why = reasonOtherRegion
	case t.class() != class || e.class() != class:
		why = reasonReadClass
	case t.version() != e.version() && !s.cfg.adjust:
		why = reasonVersion
	}
	if why != 0 {
		pass(c, x, why)
		return
	}
	rec := s.newOp(ri, psn)
	if rec == nil {
		pass(c, x, reasonWindowFull)
		return
	}
	rec.kind, rec.steered, rec.asked, rec.npsn, rec.key = opRead, true, true, uint16(npsn)+s.slack, e.key()
	rec.class = class
	rec.va, rec.rkey, rec.cliVer = va, reth.RKey(), e.version()
	rec.newVA, rec.newVer, rec.epoch, rec.n = t.va, t.version(), k.epoch, k.sent
	if k.unlinked() > 0 {
		s.book(rec, int(npsn))
	}
	s.rewriteRead(b, rec, va)
	c.Mark(x, packet.Rewritten, reasonSteeredRead)
	if c.Traced(x) {
		c.Trace(x, traceRead, uint64(psn), va, rec.newVA, k.key)
	}
}

// readOn handles a READ request that repeats a steered READ, or continues one in its middle. It returns false
// for any other READ. If the path MTU was not known when the steered READ passed, its middle looks like the
// next request.
func (s requests) readOn(c *graph.Ctx, x *packet.Buf, b []byte) bool {
	rec := s.op(s.row, s.psn)
	if rec == nil || rec.kind != opRead || !rec.steered {
		return false
	}
	reth := s.f.RETHOf(b)
	done, all := reth.VA()-rec.va, uint64(wire.MinSlab)<<rec.class
	if reth.RKey() != rec.rkey || done >= all || done+uint64(reth.DMALength()) != all || (done == 0) != (s.psn == rec.psn) {
		return false
	}
	rec.asked = true
	s.rewriteRead(b, rec, reth.VA())
	c.Mark(x, packet.Rewritten, reasonRepeated)
	return true
}

// instead handles a request with a PSN that passed before and that the server has not answered. The earlier
// request may be lost, so that the server executes this one. If both differ, it cannot be known to which one
// an answer belongs: what the earlier one did is not on record any more. instead returns false if the request
// must not go on, because the earlier one is a steered CAS, which is sent again from its record, and behind
// which other appends may stand.
func (s requests) instead(c *graph.Ctx, b []byte) bool {
	r := &s.rows[s.row]
	if rec := s.op(s.row, s.psn); rec != nil && rec.kind == opCAS && rec.live && !s.isAgain(b, rec) {
		if rec.list != 0 {
			rec.ask = true
			return false
		}
		s.close(rec)
		s.journal.erase(rec)
		s.ended(c, rec)
		rec.kind, rec.live, rec.steered, rec.sure = opOther, false, false, false
	}
	for i := int(r.nw) - 1; i >= 0; i-- {
		w := &r.writes[i]
		if back := hdr.PSNDiff(w.end, s.psn); back < 0 || uint32(back) >= (w.size-1)/leastMTU+1 || s.isWritten(b, w) {
			continue
		}
		if s.current(w) {
			s.vacate(c, w.slot)
		}
		r.take(i)
	}
	return true
}

// isAgain reports whether request b is the same CAS as rec.
func (s requests) isAgain(b []byte, rec *op) bool {
	if s.f.Op != hdr.CompareSwap {
		return false
	}
	a := s.f.AtomicETHOf(b)
	return rec.va == a.VA() && rec.rkey == a.RKey() && rec.swap == a.Swap() && rec.compare() == a.Compare()
}

// isWritten reports whether b, which has one of the PSNs of WRITE w, or one just before them, is a packet of
// w: the first one, or a later one, which no server executes without the first.
func (s requests) isWritten(b []byte, w *pendingWrite) bool {
	p := s.f.PayloadOf(b)
	switch {
	case s.fl&hdr.IsWrite == 0:
		return false
	case s.fl&(hdr.IsOnly|hdr.IsFirst) == 0:
		return true
	case len(p) < wire.HeaderLen+wire.KeyLen:
		return false
	}
	reth, packets := s.f.RETHOf(b), (w.size+uint32(len(p))-1)/uint32(len(p))
	return reth.VA() == w.va && reth.RKey() == w.rkey && reth.DMALength() == w.size && (s.psn+packets-1)&hdr.PSNMask == w.end &&
		wire.Pointer(binary.LittleEndian.Uint64(p)) == wire.Fresh(w.version) && binary.LittleEndian.Uint64(p[wire.KeyAt:]) == w.name
}

// again handles a retransmission. It must ask for the same as the original. If it does not, another client
// sent it, and only the memory that it may change is noted.
func (s requests) again(c *graph.Ctx, x *packet.Buf, b []byte) {
	f, ri, psn, fl := &s.f, s.row, s.psn, s.fl
	r := &s.rows[ri]
	switch {
	case f.Op == hdr.CompareSwap:
		rec := s.op(ri, psn)
		if rec == nil || rec.kind != opCAS || !s.isAgain(b, rec) {
			s.untracked(c, b, r.sid, fl)
			return
		}
		if rec.marks != marksOf(b, f) {
			rec.marks = 0
		}
		if rec.steered && s.rewriteCAS(b, rec) {
			c.Mark(x, packet.Rewritten, reasonRepeated)
			return
		}
		if !rec.steered {
			s.disturb(c, r.sid, rec.va)
		}
		pass(c, x, reasonRepeated)
	case fl&hdr.IsRead != 0:
		s.readOn(c, x, b)
	case fl&hdr.IsWrite != 0 && f.Op.Info().Ext&hdr.HasRETH != 0:
		// The written entry is remembered, unless the original went unseen.
		reth, p := f.RETHOf(b), f.PayloadOf(b)
		va := reth.VA()
		s.overwrite(c, r.sid, va, reth.DMALength(), va)
		slot := s.lookup(r.sid, va)
		if slot == noSlot {
			return
		}
		e := &s.addrs.e[slot]
		if len(p) < wire.HeaderLen+wire.KeyLen || wire.Pointer(binary.LittleEndian.Uint64(p)) != wire.Fresh(e.version()) ||
			binary.LittleEndian.Uint64(p[wire.KeyAt:]) != s.keys.s[e.key()].key {
			s.vacate(c, slot)
		}
	case fl&hdr.IsAtomic != 0 || f.Op == hdr.AtomicWrite:
		s.untracked(c, b, r.sid, fl)
	}
}
