package clover

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// responses handles servers' answers: it notes what an answer proves, and turns the answer back into the
// terms of the request, or holds it. Steer calls it in the worker's turn at keys.
type responses struct{ *desk }

// response handles a packet from a server. It returns false if the packet does not go on.
func (s responses) response(c *graph.Ctx, in int, x *packet.Buf, b []byte) bool {
	p := s.parsed
	at, e := s.conns.Response(c.Now(), &p.ends, b, &p.f)
	if at == conn.NoSlot {
		return true
	}
	i := int32(at)
	switch e {
	case conn.Known:
	case conn.Reverse, conn.Unmatched:
		return true
	case conn.IsClosing:
		if s.conns.Row(at).Client.Addr != p.ends.Dst {
			return true
		}
	default:
		s.event(i, e)
	}
	r := &s.rows[i]
	if r.sid == noServer {
		return true
	}
	up := p.psn // newest PSN that the packet answers
	if p.fl&hdr.IsAck != 0 {
		if syn := p.f.AETHOf(b).Syndrome(); !syn.ACK() {
			up = (up - 1) & hdr.PSNMask
			if syn.NAK() && hdr.PSNDiff(p.psn, r.acked) > 0 {
				if s.nak(c, i, p.psn, syn); syn != hdr.SynNAKSequence {
					return true // the connection has ended
				}
			}
		}
	}
	p.row = i
	r.heard(c, p, up)
	if r.unmet && p.fl&hdr.IsAck != 0 {
		legacy{s.desk}.met(c, i, up, p.f.AETHOf(b).MSN())
		if r.sid == noServer {
			return true
		}
	}
	return s.responded(c, in, x, b)
}

// responded handles an answer on connection s.row. It returns false if the answer does not go on. It is not
// inlined, so that its callers are short.
//
//go:noinline
func (s responses) responded(c *graph.Ctx, in int, x *packet.Buf, b []byte) bool {
	p := s.parsed
	r := &s.rows[p.row]
	if p.order == newer && r.unread {
		s.acknowledged(c, r)
	}
	if p.fl&hdr.IsAck != 0 {
		return r.q.Empty() || s.behind(c, in, x)
	}
	rec := s.op(p.row, p.psn)
	switch {
	case rec == nil:
	case p.f.Op == hdr.AtomicAck && rec.kind == opCAS:
		if !s.casAck(c, x, b, r, rec) {
			if s.void(rec) {
				c.Drop(x, reasonCut)
				return false
			}
			at := s.placeOf(p.row, rec)
			if !s.hold(c, x, waiting{row: p.row, key: rec.key, n: rec.n, op: at, psn: p.psn, out: uint8(1 - in)}) {
				rec.live = true // the client will ask for the answer again
				s.enlist(rec, at, c.Now())
			}
			return false
		}
	case p.fl&hdr.IsReadResp != 0 && rec.kind == opRead:
		s.close(rec)
		rec.live = false
		if rec.steered && rec.asked && p.psn == rec.psn { // the packet that begins with the entry's header
			rec.asked = false
			k := &s.keys.s[rec.key]
			s.restoreRead(c, x, b, rec, k.epoch == rec.epoch)
			if k.epoch == rec.epoch && !k.linked(rec.n) {
				s.hold(c, x, waiting{row: p.row, key: rec.key, n: rec.n, epoch: rec.epoch, read: true, psn: p.psn, out: uint8(1 - in)})
				return false
			}
		}
	}
	return r.q.Empty() || s.behind(c, in, x)
}

// acknowledged notes which written entries the server has acknowledged. An entry that was the first under its
// R_Key is remembered only now.
func (s responses) acknowledged(c *graph.Ctx, r *row) {
	r.unread = false
	for i := range r.writes[:r.nw] {
		w := &r.writes[i]
		switch {
		case w.key == noSlot || !s.keys.s[w.key].used || s.keys.s[w.key].key != w.name:
		case hdr.PSNDiff(s.acked, w.end) < 0:
			r.unread = true
		case w.region != noRegion:
			if s.current(w) {
				s.executed(w.slot)
			}
		default:
			if w.region = s.admit(r.sid, w.rkey); w.region != noRegion {
				s.written(c, s.addrs.set(uint16(r.sid), w.va), r.sid, w, 0)
			}
		}
	}
}

// behind holds an answer that only waits for the answers before it on its connection. It returns true if
// there are none, so that the answer goes on.
func (s responses) behind(c *graph.Ctx, in int, x *packet.Buf) bool {
	if s.rows[s.row].q.Empty() {
		return true
	}
	s.hold(c, x, waiting{row: s.row, key: noSlot, psn: s.psn, out: uint8(1 - in)})
	return false
}

// nak handles a NAK: the server has not executed the request with PSN psn and those behind it.
func (s responses) nak(c *graph.Ctx, i int32, psn uint32, syn hdr.Syndrome) {
	fatal := syn != hdr.SynNAKSequence
	ring := s.opsOf(i)
	for j := range ring {
		rec := &ring[j]
		if !rec.live || !rec.steered || hdr.PSNDiff(rec.psn, psn) < 0 || rec.kind == opRead && !fatal {
			continue
		}
		if s.keys.s[rec.key].epoch == rec.epoch {
			s.dropKey(c, rec.key)
		}
	}
	if fatal {
		s.conns.Remove(conn.Slot(i))
	}
}

// casAck handles the answer to the recorded CAS rec. It returns false if the answer tells of a success that
// the client may not know yet.
func (s responses) casAck(c *graph.Ctx, x *packet.Buf, b []byte, r *row, rec *op) (known bool) {
	h := s.f.AtomicAckETHOf(b)
	orig := h.Original()
	first := rec.live
	rec.live = false
	sure := rec.sure || s.sure
	if sure {
		r.marks, r.proven = rec.marks, rec.rkey
	}
	s.close(rec)
	if !rec.steered {
		if !first || orig != rec.compare() {
			return true
		}
		if len(s.gaps) > 0 {
			s.relinked(r.sid, wire.Pointer(rec.swap).LH(), s.row, sure)
		}
		if !sure {
			return true
		}
		if rec.key == noSlot {
			s.learn(r, rec)
		} else {
			s.confirm(c, r, rec)
		}
		return true
	}
	ok := orig == uint64(wire.Fresh(rec.newVer))
	if first {
		if ok {
			c.Count(ctrConfirmed, 1)
		} else {
			c.Count(ctrFailed, 1)
			s.failed(c, s.row, rec)
		}
	}
	give := orig
	switch {
	case ok:
		give = rec.compare()
	case orig == rec.compare():
		// A failure that the client would take for success. A version that the client did not expect makes it
		// ask again.
		give = uint64(wire.Pointer(orig).WithVersion(wire.NoVersion))
	}
	if give != orig {
		s.changing(b, int(s.f.BTH)+hdr.BTHLen+hdr.AETHLen, 8)
		h.SetOriginal(give)
		c.Mark(x, packet.Rewritten, reasonRestoredAck)
	}
	return !ok || !s.void(rec) && s.succeeded(rec)
}

// confirm notes that rec, an append that was not steered, succeeded. Its entry is the key's tail, unless a
// CAS was already sent behind it.
func (s responses) confirm(c *graph.Ctx, r *row, rec *op) {
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

// restoreRead gives the answer to the steered READ rec the version that the client asked for. believed says
// that the tail to which rec was sent is still believed.
func (s responses) restoreRead(c *graph.Ctx, x *packet.Buf, b []byte, rec *op, believed bool) {
	p := s.f.PayloadOf(b)
	if len(p) < 8 {
		return
	}
	w := wire.Pointer(binary.LittleEndian.Uint64(p))
	// If the entry is not the one any more that rec was sent to, or may not be in the chain, the client must
	// not take it for the entry that it asked for.
	give := w.WithVersion(wire.NoVersion)
	if believed && w.Version() == rec.newVer {
		give = w.WithVersion(rec.cliVer)
	}
	if give == w {
		return
	}
	s.setHeader(b, p, give)
	c.Mark(x, packet.Rewritten, reasonRestoredRead)
}
