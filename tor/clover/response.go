package clover

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
)

// response handles a packet from a server; false when it does not go on.
func (s *Steer) response(c *graph.Ctx, in int, x *packet.Buf, b []byte, fl hdr.OpFlags) bool {
	f := &s.f
	src, dst := ends(b, f)
	bth := f.BTHOf(b)
	ri := s.conns.response(dst, src, bth.DestQP())
	if ri == noSlot || !s.conns.rows[ri].paired {
		if ri = s.pair(b, ri, src, dst, bth); ri == noSlot {
			return true
		}
	}
	r := &s.conns.rows[ri]
	psn := bth.PSN()
	up := psn // newest PSN that this answers
	if fl&hdr.IsAck != 0 {
		if syn := f.AETHOf(b).Syndrome(); !syn.ACK() {
			up = (psn - 1) & hdr.PSNMask
			if syn.NAK() {
				s.nak(c, ri, psn, syn)
				if syn != hdr.SynNAKSequence {
					return true // the row is gone
				}
			}
		}
	}
	if hdr.PSNDiff(up, r.acked) > 0 {
		r.acked = up
	}
	if hdr.PSNDiff(up, (r.epsn+r.slack)&hdr.PSNMask) >= 0 {
		r.resync = true // it answers what we have not seen
	}
	wait := held{row: ri, key: noSlot, out: uint8(1 - in)}
	rec := s.conns.op(ri, psn)
	if rec != nil && fl&hdr.IsAck == 0 {
		switch {
		case f.Op == hdr.AtomicAck && rec.kind == opCAS:
			if !s.casAck(c, x, b, r, rec) {
				if rec.void {
					c.Drop(x, reasonCut)
					return false
				}
				wait.key, wait.n = rec.key, rec.n
			}
		case fl&hdr.IsReadResp != 0 && rec.kind == opRead:
			rec.live = false
			if rec.steered && fl&(hdr.IsFirst|hdr.IsOnly) != 0 {
				k := &s.keys.s[rec.key]
				s.restoreRead(c, x, b, rec, k.epoch == rec.epoch)
				if k.epoch == rec.epoch && !k.linked(rec.n) {
					wait.key, wait.n, wait.epoch, wait.read = rec.key, rec.n, rec.epoch, true
				}
			}
		}
	}
	if wait.key == noSlot && r.front == 0 {
		return true
	}
	if !s.hold(c, x, psn, wait) && wait.key != noSlot {
		rec.live = true // to be asked for again
	}
	return false
}

// pair finds the row whose requests a response answers, when it can be but
// one; noSlot unless the two directions are trusted to belong together.
func (s *Steer) pair(b []byte, named int32, server, client addr, bth hdr.BTH) int32 {
	if len(s.conns.unpaired) == 0 {
		return noSlot
	}
	f := &s.f
	kind := opNone
	switch f.Op {
	case hdr.AtomicAck:
		kind = opCAS
	case hdr.ReadRespOnly:
		if _, ok := wire.Class(uint32(len(f.PayloadOf(b)))); !ok {
			return noSlot // not an entry: nothing that was recorded
		}
		kind = opRead
	case hdr.ReadRespFirst:
		kind = opRead
	default:
		return noSlot
	}
	psn, port := bth.PSN(), sport(b, f)
	found, n := noSlot, 0
	samePort, nPort := noSlot, 0
	for _, i := range s.conns.unpaired {
		r := &s.conns.rows[i]
		if r.client != client || r.server != server {
			continue
		}
		if rec := s.conns.op(i, psn); rec == nil || rec.kind != kind || rec.psn != psn || !rec.live {
			continue
		}
		found = i
		n++
		if r.sport == port {
			samePort = i
			nPort++
		}
	}
	if nPort == 1 {
		found = samePort
	} else if n != 1 {
		return noSlot
	}
	r := &s.conns.rows[found]
	if named != noSlot && named != found {
		s.conns.unname(named)
		named = noSlot
	}
	if r.cqpn != bth.DestQP() {
		s.conns.name(found, bth.DestQP())
	}
	r.matches++
	if r.matches < trustedMatches {
		rec := s.conns.op(found, psn)
		if kind == opRead {
			rec.live = false
		} else {
			return s.lateAck(found, b, rec)
		}
		return noSlot
	}
	s.conns.pair(found)
	return found
}

// lateAck keeps the account of an unsteered CAS that is answered while its
// connection is being paired; nothing is concluded from it.
func (s *Steer) lateAck(ri int32, b []byte, rec *op) int32 {
	rec.live = false
	if s.f.AtomicAckETHOf(b).Original() == rec.compare() {
		s.learn(&s.conns.rows[ri], rec)
	}
	return noSlot
}

// nak handles a NAK of psn: what was sent from there on was not executed.
func (s *Steer) nak(c *graph.Ctx, ri int32, psn uint32, syn hdr.Syndrome) {
	fatal := syn != hdr.SynNAKSequence
	for i := range s.conns.ops[int(ri)*window : (int(ri)+1)*window] {
		rec := &s.conns.ops[int(ri)*window+i]
		if !rec.live || !rec.steered || hdr.PSNDiff(rec.psn, psn) < 0 || rec.kind == opRead && !fatal {
			continue
		}
		if s.keys.s[rec.key].epoch == rec.epoch {
			s.dropKey(c, rec.key)
		}
	}
	if fatal {
		s.remove(c, ri)
	}
}

// casAck handles the answer to a recorded CAS; false when it tells of a success
// that its client may not know of yet.
func (s *Steer) casAck(c *graph.Ctx, x *packet.Buf, b []byte, r *row, rec *op) (known bool) {
	h := s.f.AtomicAckETHOf(b)
	orig := h.Original()
	if !rec.steered {
		if !rec.live {
			return true
		}
		rec.live = false
		if orig != rec.compare() {
			return true
		}
		if s.gaps > 0 {
			s.relinked(r.sid, wire.Pointer(rec.swap).LH())
		}
		if rec.key == noSlot {
			s.learn(r, rec)
			return true
		}
		s.confirm(c, r, rec)
		return true
	}
	ok := orig == uint64(wire.Fresh(rec.newVer))
	if rec.live {
		rec.live = false
		if ok {
			c.Count(ctrConfirmed, 1)
		} else {
			c.Count(ctrFailed, 1)
			s.failed(c, r.sid, rec)
		}
	}
	give := orig
	switch {
	case ok:
		give = rec.compare()
	case orig == rec.compare():
		// A failure that would look like success to the client: an entry
		// version that it did not expect makes it ask again.
		give = uint64(wire.Pointer(orig).WithVersion(wire.NoVersion))
	}
	if give != orig {
		copy(s.old[:8], h)
		h.SetOriginal(give)
		hdr.PatchICRC(b, &s.f, int(s.f.BTH)+hdr.BTHLen+hdr.AETHLen, s.old[:8])
		c.Mark(x, packet.Rewritten, reasonRestoredAck)
	}
	return !ok || !rec.void && s.succeeded(rec)
}

// holdsEntry reports whether the address slot of a CAS's new entry still
// holds it: an answer may be so late that the entry was recycled meanwhile.
func (s *state) holdsEntry(rec *op) bool {
	return s.holds(rec.slot, rec.entry, rec.key, wire.Pointer(rec.swap).NextVersion())
}

// confirm: an unsteered append succeeded. Its entry is the key's tail, unless
// a CAS was sent behind it already.
func (s *Steer) confirm(c *graph.Ctx, r *row, rec *op) {
	r.linked(rec.entry)
	k := &s.keys.s[rec.key]
	if !k.used || k.epoch != rec.epoch || k.unlinked() > 0 || c.Now() < s.settled ||
		!s.holdsEntry(rec) || s.addrs.e[rec.slot].touched() {
		return
	}
	if k.known() { // two ends of one chain: one of them is wrong
		s.dropKey(c, rec.key)
		return
	}
	k.tail = rec.slot
	c.Count(ctrKnown, 1)
}

// restoreRead gives the answer to a steered READ the version of the entry
// that was asked for; believed: so is still the tail that it was sent to.
func (s *Steer) restoreRead(c *graph.Ctx, x *packet.Buf, b []byte, rec *op, believed bool) {
	p := s.f.PayloadOf(b)
	if len(p) < 8 {
		return
	}
	w := wire.Pointer(binary.LittleEndian.Uint64(p))
	// When it is not the entry any more that the request was sent to, or may
	// not be in the chain, nobody may take it for what was asked for.
	give := w.WithVersion(wire.NoVersion)
	if believed && w.Version() == rec.newVer {
		give = w.WithVersion(rec.cliVer)
	}
	if give == w {
		return
	}
	s.setHeader(b, &s.f, p, give)
	c.Mark(x, packet.Rewritten, reasonRestoredRead)
}
