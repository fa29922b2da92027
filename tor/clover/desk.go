package clover

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// desk has what a worker needs in its turn: the shared state, the frame at hand, and the frames that leave
// after the turn. Its methods are the steps that Steer, requests, responses, repairs and legacy have in
// common. Those that hold answers are in wait.go, those for the record in journal.go.
type desk struct {
	*state
	worker, workers int
	*parsed         // the frame at hand
	lookout
	goes   []gone // frames that the worker's turn let go of, to be sent after it
	ending bool
	held   parsed    // a held frame, parsed
	g      hdr.Frame // headers of a frame that the app makes
}

// gone is a frame that was held and goes on by output out.
type gone struct {
	x   *packet.Buf
	out uint8
}

// event notes what the table of connections (conns) found out about connection i.
func (s *desk) event(i int32, e conn.Event) {
	r := &s.rows[i]
	switch e {
	case conn.Opened, conn.Replaced:
		*r = row{sid: noServer, region: noRegion, due: r.due}
	case conn.Unpaired:
		s.leave(i)
	case conn.NowPaired:
		// The app follows PSNs from now on: no single frame undoes the pairing.
		x := s.conns.Row(conn.Slot(i))
		s.conns.Pin(conn.Slot(i))
		s.serve(i)
		r.answered = s.ctx.Now()
		if x.Client.HasPSN {
			r.epsn, r.acked, r.begun = x.Client.StartPSN, (x.Client.StartPSN-1)&hdr.PSNMask, true
		}
	}
}

// serve makes connection i, of which both directions are known, one to a memory node, if there is a place for
// the node.
func (s *desk) serve(i int32) {
	r := &s.rows[i]
	if r.sid = s.meet(s.conns.Row(conn.Slot(i)).Server.Addr); r.sid != noServer {
		r.count = uncounted
		v := &s.servers[r.sid]
		v.rows++
		v.seen = s.age
	}
}

// leave forgets connection i, whose row in the table of connections is about to be removed.
func (s *desk) leave(i int32) {
	s.endRow(i)
	r := &s.rows[i]
	for n := range s.gaps {
		if g := &s.gaps[n]; g.row == i {
			g.told, g.row = false, noSlot
		}
	}
	if r.sid != noServer {
		s.servers[r.sid].rows--
		s.servers[r.sid].seen = s.age
	}
	*r = row{sid: noServer, region: noRegion, due: r.due}
}

// endRow forgets the requests of connection i, and drops its held answers.
func (s *desk) endRow(i int32) {
	s.discard(s.ctx, &s.rows[i])
	ring := s.opsOf(i)
	for j := range ring {
		s.close(&ring[j])
		s.journal.erase(&ring[j])
		s.ended(s.ctx, &ring[j])
	}
	clear(ring)
}

// setOf returns the set of address slots for (server, va). va is the address that the request at hand names.
func (s *desk) setOf(sid int16, va uint64) int32 {
	if sid == int16(s.parsed.asked) {
		return s.parsed.set
	}
	s.lookout.asked = int8(sid)
	return s.addrs.set(uint16(sid), va)
}

// disturb notes that a request that may change an entry's header goes to (server, va), and is not tracked.
func (s *desk) disturb(c *graph.Ctx, sid int16, va uint64) {
	s.unsteered = true
	slot := s.lookup(sid, va)
	if slot == noSlot {
		return
	}
	if s.isTail(slot) {
		s.dropKey(c, s.addrs.e[slot].key())
	}
	s.addrs.e[slot].info |= entryTouched
}

// untracked notes which memory a request may change that the app passes without tracking it.
func (s *desk) untracked(c *graph.Ctx, b []byte, sid int16, fl hdr.OpFlags) {
	if sid == noServer {
		return
	}
	f := &s.f
	switch ext := f.Op.Info().Ext; {
	case fl&hdr.IsAtomic != 0 && ext&hdr.HasAtomicETH != 0:
		s.disturb(c, sid, f.AtomicETHOf(b).VA())
	case fl&hdr.IsAtomic != 0:
		s.disturb(c, sid, f.MaskedAtomicETHOf(b).VA())
	case f.Op == hdr.AtomicWrite:
		s.overwrite(c, sid, f.RETHOf(b).VA(), 8, noEntry)
	case fl&hdr.IsWrite != 0 && ext&hdr.HasRETH != 0:
		s.overwrite(c, sid, f.RETHOf(b).VA(), f.RETHOf(b).DMALength(), noEntry)
	}
}

// foreign notes which memory a frame may change that is no request of a reliable connection, or may contain a
// request, or a part of one, that the app cannot see.
func (s *desk) foreign(c *graph.Ctx, b []byte) {
	f := &s.f
	change := hdr.ChangeOf(b, f)
	if change.Reach < hdr.ReachRC || change.Reach == hdr.ReachMore || change.Reach == hdr.ReachSend {
		return
	}
	to := conn.Target(b, f)
	for i := range s.servers {
		if v := &s.servers[i]; !v.used || v.at.In(0) != to && f.Why != hdr.DeepTags {
			continue
		}
		s.unsteered = true
		switch change.Reach {
		case hdr.ReachRC:
			s.untracked(c, b, int16(i), f.Op.Info().Flags)
		case hdr.ReachRange:
			s.overwrite(c, int16(i), change.VA, change.Len, noEntry)
		default:
			s.doubt(c, int16(i))
		}
	}
}

// hidden reports whether frame b is not valid RoCE, but a server may take it for the next request of a
// followed connection (conn.Hidden). The server would then count a PSN that the app does not count, and might
// execute the frame before the request that has this PSN here.
func (s *desk) hidden(b []byte) bool {
	qpn, ok := conn.Hidden(b, &s.f)
	if !ok {
		return false
	}
	to := conn.Target(b, &s.f)
	for i := range s.servers {
		v := &s.servers[i]
		if !v.used || v.at.In(0) != to {
			continue
		}
		if slot, client := s.conns.Find(v.at, qpn); qpn == 0 || slot != conn.NoSlot && !client {
			return true
		}
	}
	return false
}

// newOp returns an empty record for PSN psn of row i, in place of the oldest record. It returns nil if the
// oldest is still needed.
func (s *desk) newOp(i int32, psn uint32) *op {
	r := &s.rows[i]
	o := &s.ops[int(i)*window+int((r.head+1)%window)]
	if o.live && o.steered {
		if hdr.PSNDiff(psn, o.psn) < unacked || hdr.PSNDiff(s.acked, o.psn) <= 0 {
			return nil
		}
		s.ended(s.ctx, o) // the server answers later requests: it has answered this one, but not here
	}
	if o.list != 0 || o.booked != 0 || o.note != 0 {
		s.close(o)
		s.journal.erase(o)
	}
	r.head++
	*o = op{} // a literal with what changes is built elsewhere and copied, and the copy waits for what was just stored
	o.psn, o.npsn, o.live, o.key, o.slot = psn, 1, true, noSlot, noSlot
	s.ahead(i, r.head+1)
	return o
}

// enlist appends the steered CAS o, at place at, to this worker's list of the CASes that were repeated as
// often.
func (s *desk) enlist(o *op, at int32, now clock.Time) {
	open := &s.open[s.worker]
	l := &open.lists[o.repairs]
	o.sent, o.list, o.before, o.after = now, uint16(s.worker+1), l.last, 0
	if l.last != 0 {
		s.ops[l.last-1].after = at + 1
	} else {
		l.first = at + 1
	}
	l.last = at + 1
	open.n++
}
