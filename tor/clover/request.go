package clover

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
)

// request handles a request packet of a reliable connection.
func (s *Steer) request(c *graph.Ctx, in int, x *packet.Buf, b []byte, fl hdr.OpFlags) {
	f := &s.f
	src, dst := ends(b, f)
	bth := f.BTHOf(b)
	psn := bth.PSN()
	ri := s.conns.request(dst, bth.DestQP())
	if ri != noSlot && s.conns.rows[ri].client != src {
		s.remove(c, ri) // the server gave the number to somebody else
		ri = noSlot
	}
	if ri == noSlot {
		if !s.trackable(b, fl) {
			if sid, ok := s.server(dst); ok {
				s.untracked(c, b, sid, fl)
			}
			return
		}
		sid, ok := s.meet(dst)
		if !ok {
			return
		}
		if ri = s.conns.insert(dst, src, bth.DestQP()); ri == noSlot {
			s.untracked(c, b, sid, fl)
			pass(c, x, reasonConnFull)
			return
		}
		r := &s.conns.rows[ri]
		r.sid, r.epsn, r.acked = sid, psn, (psn-1)&hdr.PSNMask
	}
	r := &s.conns.rows[ri]
	r.last = c.Now()
	r.sport = sport(b, f)

	d := hdr.PSNDiff(psn, r.epsn)
	if r.resync && d >= 0 {
		r.epsn, r.slack, d = psn, 0, 0
		r.resync = false
	}
	if d < 0 && d > -lookback {
		s.again(c, x, b, ri, fl)
		return
	}
	if d < 0 || d > int32(r.slack) {
		// The server is not going to execute it, unless we missed something.
		if r.ahead++; r.ahead < maxAhead {
			s.untracked(c, b, r.sid, fl)
			pass(c, x, reasonPSNGap)
			return
		}
		r.nw = 0
		s.endRow(c, ri)
	}
	r.ahead = 0
	n := uint32(1)
	r.slack = 0
	if fl&hdr.IsRead != 0 {
		size := f.RETHOf(b).DMALength()
		if r.mtu != 0 {
			n = max(1, (size+uint32(r.mtu)-1)/uint32(r.mtu))
		} else if size > 256 { // the smallest path MTU
			r.slack = (size+255)/256 - 1
		}
	}
	r.epsn = (psn + n) & hdr.PSNMask

	switch {
	case fl&hdr.IsWrite != 0 && fl&(hdr.IsOnly|hdr.IsFirst) != 0:
		s.write(c, x, b, r, fl)
	case fl&hdr.IsWrite != 0 && fl&hdr.IsMiddle != 0:
		r.mtu = uint16(len(f.PayloadOf(b)))
	case f.Op == hdr.CompareSwap:
		s.cas(c, in, x, b, ri)
	case fl&hdr.IsRead != 0:
		s.read(c, x, b, ri, n)
	case fl&hdr.IsAtomic != 0 || f.Op == hdr.AtomicWrite:
		s.untracked(c, b, r.sid, fl)
		pass(c, x, reasonOtherAtomic)
	}
}

// trackable reports whether a request makes its connection worth a row.
func (s *Steer) trackable(b []byte, fl hdr.OpFlags) bool {
	f := &s.f
	if f.Op == hdr.CompareSwap {
		return true
	}
	if fl&(hdr.IsWrite|hdr.IsRead) != 0 && f.Op.Info().Ext&hdr.HasRETH != 0 {
		_, ok := wire.Class(f.RETHOf(b).DMALength())
		return ok
	}
	return false
}

// untracked notes what a request may change that is forwarded without being
// understood.
func (s *Steer) untracked(c *graph.Ctx, b []byte, sid uint16, fl hdr.OpFlags) {
	f := &s.f
	switch ext := f.Op.Info().Ext; {
	case fl&hdr.IsAtomic != 0 && ext&hdr.HasAtomicETH != 0:
		s.disturb(c, sid, f.AtomicETHOf(b).VA())
	case fl&hdr.IsAtomic != 0:
		s.disturb(c, sid, f.MaskedAtomicETHOf(b).VA())
	case (fl&hdr.IsWrite != 0 || f.Op == hdr.AtomicWrite) && ext&hdr.HasRETH != 0:
		if slot := s.lookup(sid, f.RETHOf(b).VA()); slot != noSlot {
			s.vacate(c, slot)
		}
	}
}

// write handles the first or only packet of a WRITE.
func (s *Steer) write(c *graph.Ctx, x *packet.Buf, b []byte, r *row, fl hdr.OpFlags) {
	f := &s.f
	reth := f.RETHOf(b)
	size := reth.DMALength()
	p := f.PayloadOf(b)
	packets := uint32(1)
	if fl&hdr.IsFirst != 0 && len(p) > 0 {
		r.mtu = uint16(len(p))
		packets = (size + uint32(len(p)) - 1) / uint32(len(p))
	}
	va := reth.VA()
	class, ok := wire.Class(size)
	if !ok || len(p) < 16 {
		s.disturb(c, r.sid, va)
		return
	}
	word := wire.Pointer(binary.LittleEndian.Uint64(p))
	if word != wire.Fresh(word.Version()) || word.Version() == 0 {
		s.disturb(c, r.sid, va)
		return
	}
	key := binary.LittleEndian.Uint64(p[8:])
	reg, ok := s.region(r.sid, reth.RKey())
	if !ok {
		s.disturb(c, r.sid, va)
		return
	}
	k := s.keys.find(r.sid, key)
	if k == noSlot && s.cfg.only.has(r.server, key) {
		if k = s.keys.insert(r.sid, key); k == noSlot && s.cfg.hot > 0 {
			s.offer(r.sid, key, s.sketch.add(r.sid, key))
		}
	}
	slot := noSlot
	if k == noSlot {
		if old := s.lookup(r.sid, va); old != noSlot {
			s.vacate(c, old)
		}
		pass(c, x, reasonKeyFull)
	} else {
		s.keys.s[k].hits++
		slot = s.remember(c, r.sid, va, packEntry(k, word.Version(), reg, class))
	}
	w := pendingWrite{at: c.Now(), va: va, end: (f.BTHOf(b).PSN() + packets - 1) & hdr.PSNMask, slot: slot, key: k, size: size, region: reg, version: word.Version()}
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

// holds reports whether address slot i is that of the entry of key k at va, in
// its incarnation version.
func (s *state) holds(i int32, va uint64, k int32, version uint8) bool {
	e := &s.addrs.e[i]
	return e.used() && e.va == va && e.key() == k && e.version() == version
}

// current reports whether w still describes what its address slot holds.
func (s *state) current(w *pendingWrite) bool {
	if w.slot == noSlot {
		return false
	}
	return s.holds(w.slot, w.va, w.key, w.version)
}

// cas handles a compare-and-swap in its turn.
func (s *Steer) cas(c *graph.Ctx, in int, x *packet.Buf, b []byte, ri int32) {
	f := &s.f
	r := &s.conns.rows[ri]
	a := f.AtomicETHOf(b)
	psn := f.BTHOf(b).PSN()
	va, swap, cmp := a.VA(), wire.Pointer(a.Swap()), wire.Pointer(a.Compare())
	if cmp != wire.Fresh(cmp.Version()) || swap.Version() != cmp.Version() || swap&0xF0000000080007FF != 0 {
		s.disturb(c, r.sid, va)
		pass(c, x, reasonOtherAtomic)
		return
	}
	rec := s.newOp(c, ri, psn)
	if rec == nil {
		s.disturb(c, r.sid, va)
		pass(c, x, reasonWindowFull)
		return
	}
	rec.kind, rec.swap = opCAS, uint64(swap)
	rec.va, rec.rkey, rec.cliVer = va, a.RKey(), cmp.Version()
	rec.newVA, rec.newVer = rec.va, rec.cliVer
	i, teaches := s.entryOf(r, swap, c.Now())
	if i < 0 {
		s.disturb(c, r.sid, va)
		if teaches {
			w := &r.writes[0]
			rec.entry, rec.size, rec.region = w.va, w.size, w.region
		}
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
	rec.key, rec.slot, rec.entry = w.key, w.slot, w.va
	switch {
	case !k.known():
		s.through(c, x, r, rec, reasonUnknownTail)
		return
	case !r.paired:
		s.through(c, x, r, rec, reasonUnpaired)
		return
	case hdr.PSNDiff(r.acked, w.end) < 0:
		// Linked before it is known to be written: it may be overwritten
		// after somebody was sent behind it.
		s.through(c, x, r, rec, reasonUnattributed)
		return
	case k.unlinked() > s.cfg.ahead:
		s.through(c, x, r, rec, reasonAhead)
		return
	}
	t := &s.addrs.e[k.tail]
	if s.regions[t.region()].rkey != rec.rkey {
		// Those who write the key now do so in another region: the tail's may
		// be gone.
		s.dropKey(c, w.key)
		s.through(c, x, r, rec, reasonOtherRegion)
		return
	}
	if t.version() != rec.cliVer && !s.cfg.adjust {
		s.through(c, x, r, rec, reasonVersion)
		return
	}
	rec.newVA, rec.newVer = t.va, t.version()
	k.sent++
	rec.steered, rec.epoch, rec.n = true, k.epoch, k.sent
	t.info |= entryTouched
	k.tail = w.slot
	r.take(i)
	c.Count(ctrAppends, 1)
	if s.cfg.repair > 0 && s.watch(unanswered{ri, psn, c.Now()}) {
		r.startLen = uint8(copy(r.start[:], b[:int(f.BTH)+hdr.BTHLen]))
		r.startF = *f
		r.out = uint8(1 - in)
	}
	if s.rewriteCAS(x, b, rec) {
		c.Mark(x, packet.Rewritten, reasonSteeredCAS)
		c.Trace(x, traceCAS, uint64(psn), va, rec.newVA, k.key)
	}
}

// through forwards an attributed CAS as it is.
func (s *Steer) through(c *graph.Ctx, x *packet.Buf, r *row, rec *op, why graph.Reason) {
	s.disturb(c, r.sid, rec.va)
	rec.epoch = s.keys.s[rec.key].epoch
	pass(c, x, why)
}

// rewriteCAS applies a record to its request; false when nothing changes.
func (s *Steer) rewriteCAS(x *packet.Buf, b []byte, rec *op) bool {
	if rec.newVA == rec.va && rec.newVer == rec.cliVer {
		return false
	}
	a := s.f.AtomicETHOf(b)
	n := 8 // VA
	if rec.newVer != rec.cliVer {
		n = hdr.AtomicETHLen
	}
	copy(s.old[:], a[:n])
	a.SetVA(rec.newVA)
	if rec.newVer != rec.cliVer {
		a.SetCompare(uint64(wire.Fresh(rec.newVer)))
		a.SetSwap(uint64(wire.Pointer(rec.swap).WithVersion(rec.newVer)))
	}
	hdr.PatchICRC(b, &s.f, int(s.f.BTH)+hdr.BTHLen, s.old[:n])
	return true
}

// read handles a READ request in its turn.
func (s *Steer) read(c *graph.Ctx, x *packet.Buf, b []byte, ri int32, npsn uint32) {
	f := &s.f
	r := &s.conns.rows[ri]
	reth := f.RETHOf(b)
	class, ok := wire.Class(reth.DMALength())
	if !ok {
		return
	}
	psn := f.BTHOf(b).PSN()
	va, rkey := reth.VA(), reth.RKey()
	if !r.paired { // its answer may pair the two directions
		if rec := s.newOp(c, ri, psn); rec != nil {
			rec.kind, rec.npsn = opRead, uint16(npsn)
		}
	}
	if s.cfg.mode != ReadWrite {
		return
	}
	slot := s.lookup(r.sid, va)
	if slot == noSlot {
		pass(c, x, reasonReadMiss)
		return
	}
	e := &s.addrs.e[slot]
	k := &s.keys.s[e.key()]
	k.hits++
	switch {
	case !k.known():
		pass(c, x, reasonUnknownTail)
		return
	case k.tail == slot:
		return
	case !r.paired:
		pass(c, x, reasonUnpaired)
		return
	case k.unlinked() > s.cfg.ahead:
		pass(c, x, reasonAhead)
		return
	}
	t := &s.addrs.e[k.tail]
	if s.regions[e.region()].rkey != rkey || t.region() != e.region() {
		pass(c, x, reasonOtherRegion)
		return
	}
	if t.class() != class || e.class() != class {
		pass(c, x, reasonReadClass)
		return
	}
	if t.version() != e.version() && !s.cfg.adjust {
		pass(c, x, reasonVersion)
		return
	}
	rec := s.newOp(c, ri, psn)
	if rec == nil {
		pass(c, x, reasonWindowFull)
		return
	}
	rec.kind, rec.steered, rec.npsn, rec.key = opRead, true, uint16(npsn), e.key()
	rec.va, rec.rkey, rec.cliVer = va, rkey, e.version()
	rec.newVA, rec.newVer, rec.epoch, rec.n = t.va, t.version(), k.epoch, k.sent
	s.rewriteRead(b, rec, va)
	c.Mark(x, packet.Rewritten, reasonSteeredRead)
	c.Trace(x, traceRead, uint64(psn), va, rec.newVA, k.key)
}

// rewriteRead sends a READ of va, somewhere in what rec asked for, to the same
// place of where rec was sent.
func (s *Steer) rewriteRead(b []byte, rec *op, va uint64) {
	reth := s.f.RETHOf(b)
	copy(s.old[:8], reth)
	reth.SetVA(rec.newVA + (va - rec.va))
	hdr.PatchICRC(b, &s.f, int(s.f.BTH)+hdr.BTHLen, s.old[:8])
}

// again handles a retransmission.
func (s *Steer) again(c *graph.Ctx, x *packet.Buf, b []byte, ri int32, fl hdr.OpFlags) {
	f := &s.f
	r := &s.conns.rows[ri]
	psn := f.BTHOf(b).PSN()
	switch {
	case f.Op == hdr.CompareSwap:
		rec := s.conns.op(ri, psn)
		a := f.AtomicETHOf(b)
		if rec == nil || rec.kind != opCAS || rec.va != a.VA() || rec.swap != a.Swap() || rec.compare() != a.Compare() {
			s.untracked(c, b, r.sid, fl)
			return
		}
		if rec.steered && s.rewriteCAS(x, b, rec) {
			c.Mark(x, packet.Rewritten, reasonRepeated)
			return
		}
		if !rec.steered {
			s.disturb(c, r.sid, rec.va)
		}
		pass(c, x, reasonRepeated)
	case fl&hdr.IsRead != 0:
		// A READ may be taken up again in its middle.
		rec := s.conns.op(ri, psn)
		if rec == nil || rec.kind != opRead || !rec.steered {
			return
		}
		if va := f.RETHOf(b).VA(); f.RETHOf(b).RKey() == rec.rkey && va-rec.va < 1<<31 {
			s.rewriteRead(b, rec, va)
			c.Mark(x, packet.Rewritten, reasonRepeated)
		}
	case fl&hdr.IsWrite != 0 && f.Op.Info().Ext&hdr.HasRETH != 0:
		// What it wrote is remembered, unless the original went unseen.
		slot, p := s.lookup(r.sid, f.RETHOf(b).VA()), f.PayloadOf(b)
		if slot == noSlot {
			return
		}
		e := &s.addrs.e[slot]
		if len(p) < 16 || wire.Pointer(binary.LittleEndian.Uint64(p)) != wire.Fresh(e.version()) ||
			binary.LittleEndian.Uint64(p[wire.KeyAt:]) != s.keys.s[e.key()].key {
			s.vacate(c, slot)
		}
	case fl&hdr.IsAtomic != 0 || f.Op == hdr.AtomicWrite:
		s.untracked(c, b, r.sid, fl)
	}
}
