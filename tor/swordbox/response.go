package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// response handles a server's response; x is disposed of.
func (s *wire) response(x *packet.Buf, b []byte) {
	n := s.n
	slot, e := n.conns.Response(s.c.Now(), &s.ends, b, &s.f)
	if e == conn.Spoofed {
		s.bad(toServers, x, reasonSpoofed, s.cfg.dropSpoofed)
		return
	}
	fl := n.flow(int32(slot))
	if fl == nil || !fl.synced {
		if fl != nil {
			fl.learnMTU(&s.f, b)
		}
		n.hear(fl)
		s.pass(toServers, x)
		return
	}
	psn := s.f.BTHOf(b).PSN()
	s.congested = s.f.ECNOf(b) == hdr.CE
	if fl.lost != 0 {
		s.c.Drop(x, reasonReset)
		return
	}
	if fl.affirmed(&s.f, b, psn) && !fl.confirmed(&s.f, b, psn) {
		psn = fl.acked
	}
	if d := hdr.PSNDiff(psn, fl.next); d > farOff || d < -farOff || fl.confirmed(&s.f, b, psn) || fl.denied(&s.f, b, psn, s.cfg.alive) {
		s.odd(fl, x, b, psn)
		return
	}
	if d := hdr.PSNDiff(psn, fl.start); d > mostUnacked && hdr.PSNDiff(psn, fl.next) < 0 {
		fl.onward = true
	}
	if fl.young && !fl.onward && psnLess(psn, fl.start) && !(s.f.Op == hdr.Acknowledge && s.f.AETHOf(b).Syndrome().NAK()) {
		n.hear(fl)
		s.pass(toServers, x) // of the time before
		return
	}
	if fl.unsure && s.f.Op.Info().Flags&hdr.IsReadResp != 0 {
		o := n.get(fl.newest)
		if p := uint32(len(s.f.PayloadOf(b))); psn == o.spsn && p != 0 {
			fl.learnMTU(&s.f, b)
			n.settleLength(fl, (o.len+p-1)/p)
		}
	}
	if fl.inDoubt && psn == fl.next && s.f.Op == hdr.AtomicAck {
		s.allExecuted(fl)
	}
	if hdr.PSNDiff(psn, fl.next) > 0 || hdr.PSNDiff(psn, fl.next) == 0 && !(s.f.Op == hdr.Acknowledge && !s.f.AETHOf(b).Syndrome().ACK()) {
		s.bad(toServers, x, reasonBadPSN, s.cfg.dropSpoofed || n.diverged(fl))
		return
	}
	n.hear(fl)
	fl.heard, fl.silent, fl.asked, fl.tries = s.c.Now(), 0, 0, 0
	if fl.timed {
		fl.timed = false
		if t := fl.heard.Sub(fl.loaded); fl.trip == 0 {
			fl.trip = t
		} else {
			fl.trip += (t - fl.trip) / 8
		}
	}
	if fl.doubted {
		fl.doubted = false
		s.answerAgain(fl, fl.again)
	}
	if !fl.trusted {
		if n.trust(fl, &s.f, b, psn); !fl.trusted {
			s.passive(fl, x, b, psn)
			return
		}
	}
	if s.digest(fl, psn, x, b) {
		return
	}
	fl.inDoubt = fl.inDoubt && fl.writes > 0
	// Nobody needs the frame itself any more: it may become an answer.
	s.spare, s.to = x, fl
	s.settle()
	if s.spare != nil {
		s.spare = nil
		s.c.Drop(x, reasonAbsorbed)
	}
}

// digest does what the answer in b, x, with PSN psn means on connection fl; true
// when it disposed of x.
func (s *wire) digest(fl *flow, psn uint32, x *packet.Buf, b []byte) bool {
	n := s.n
	if s.f.Op.Info().Ext&hdr.HasAETH != 0 {
		if syn := s.f.AETHOf(b).Syndrome(); syn.ACK() {
			fl.syn = syn
		}
	}
	switch f := &s.f; {
	case f.Op == hdr.Acknowledge:
		switch syn := f.AETHOf(b).Syndrome(); {
		case syn.ACK():
			s.acked(fl, psn)
			n.partly(fl)
		default:
			s.acked(fl, psnAdd(psn, hdr.PSNMask))
			switch old := fl.oldest == none || psnLess(psn, n.ops[fl.oldest].spsn); {
			case old: // it was heard before
			case syn == hdr.SynNAKSequence && fl.inDoubt:
				n.cut(fl, psn)
			case syn == hdr.SynNAKSequence:
				s.missing(fl, psn)
			case syn.RNR():
				n.notReady(fl, psn, syn)
			case syn.NAK():
				n.fatal(fl, psn, syn)
			}
		}
	case f.Op == hdr.AtomicAck:
		s.acked(fl, psnAdd(psn, hdr.PSNMask))
		s.atomicAck(fl, psn, f.AtomicAckETHOf(b).Original())
	default:
		s.acked(fl, psnAdd(psn, hdr.PSNMask))
		return s.readResponse(fl, psn, x, b)
	}
	return false
}

// odd handles an answer of the server far from what flow fl asked, x with the
// bytes b.
func (s *wire) odd(fl *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	switch {
	case fl.confirmed(&s.f, b, psn):
		n.conns.Remove(n.slot(fl)) // the queue pairs are of another connection now
	case fl.denied(&s.f, b, psn, s.cfg.alive):
		s.c.Count(ctrGone, 1)
		n.conns.Remove(n.slot(fl))
	case n.diverged(fl):
		s.bad(toServers, x, reasonBadPSN, true)
		return
	}
	s.pass(toServers, x)
	s.settle()
}

// hear notes that the server answered on connection fl.
func (n *node) hear(fl *flow) {
	now := n.c.Now()
	if now.Sub(n.lastHeard) > clock.Duration(n.cfg.giveup)/2 {
		n.awake = now
	}
	if n.lastFrom != fl {
		n.otherHeard, n.lastFrom = n.lastHeard, fl
	}
	n.lastHeard = now
}

// diverged reports whether the two ends of connection fl count differently.
func (n *node) diverged(fl *flow) bool {
	return fl.next != fl.admitted
}

// trust takes from the first answer to a request on record what answers look
// like, and how many messages the server has counted.
func (n *node) trust(fl *flow, f *hdr.Frame, b []byte, psn uint32) {
	if f.Op.Info().Ext&hdr.HasAETH == 0 || fl.oldest == none || psnLess(psn, n.ops[fl.oldest].spsn) || !fl.down.learn(b, f) || !fl.down.alike(&fl.up) {
		return
	}
	// Messages completed as of psn, all of them its own: MSN counts from
	// before the first on record.
	k := uint32(0)
	for o := n.oldest(fl); o != nil; o = n.behind(o) {
		end := psnAdd(o.spsn, o.npsn-1)
		if psnLess(psn, o.spsn) || o.kind != kRead && psnLess(psn, end) {
			break
		}
		if f.AETHOf(b).Syndrome().NAK() || f.AETHOf(b).Syndrome().RNR() {
			if psn == o.spsn || !psnLess(end, psn) {
				break
			}
		}
		k++
	}
	fl.trusted = true
	fl.base = f.AETHOf(b).MSN() - k - fl.head
}

// passive notes what an answer on connection c means, and passes it as it is:
// both ends still count alike.
func (s *wire) passive(c *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	f := &s.f
	before := psnAdd(psn, hdr.PSNMask)
	switch {
	case f.Op == hdr.Acknowledge && f.AETHOf(b).Syndrome().ACK():
		s.acked(c, psn)
	case f.Op == hdr.Acknowledge:
		s.acked(c, before)
	case f.Op == hdr.AtomicAck:
		s.acked(c, before)
		s.atomicAck(c, psn, f.AtomicAckETHOf(b).Original())
	default:
		s.acked(c, before)
		c.learnMTU(&s.f, b)
		if o := n.oldest(c); o != nil && (o.kind == kRead || o.kind == kOdd) && psnAdd(o.spsn, o.got) == psn {
			if o.got++; o.got == o.npsn {
				s.complete(o)
				s.acked(c, psn)
			}
		}
	}
	s.c.Emit(toClients, x)
}

// acked notes that the server has executed all that connection x carried up to
// psn.
func (s *wire) acked(x *flow, psn uint32) {
	n := s.n
	if psnLess(x.acked, psn) {
		x.acked = psn
	}
	s.advance(x)
	switch o := n.oldest(x); {
	case x.repair:
		s.pump(x)
	case x.suspect != 0 && o != nil && o.spsn != x.nudged:
		// What was sent again was answered. What was sent before that and is not
		// has been lost as well.
		goal := x.suspect
		if x.suspect = 0; psnLess(o.spsn, goal) && o.got == 0 && (!n.handedOver(x) || x.writes > 0) {
			s.again(x, o.spsn, goal)
		}
	}
}

// partly has a client told of the first packets of a message of many that connection
// x carries, when the server has acknowledged them: it may wait for that before it
// sends more (rxe: after 128).
func (n *node) partly(x *flow) {
	o := n.oldest(x)
	if o != nil && (o.kind == kWrite || o.kind == kSend) && !o.is(fOrphan) && !psnLess(x.acked, o.spsn) {
		f := n.flowOf(o)
		f.tellPart = true
		n.due(f)
	}
}

// advance completes what is acknowledged, in order.
func (s *wire) advance(x *flow) {
	n := s.n
	for o := n.oldest(x); o != nil; o = n.oldest(x) {
		if o.is(fEarly) {
			if end := psnAdd(o.spsn, o.npsn-1); psnLess(x.acked, end) {
				x.acked = end
			}
			s.complete(o)
			continue
		}
		if o.npsn != 0 && psnLess(x.acked, psnAdd(o.spsn, o.npsn-1)) || x.cur == x.oldest {
			return
		}
		if o.answered() {
			// The server answered it, and the answer was lost. Its client will
			// ask again in its time; others need not wait so long.
			if x.guests > 0 && x.trusted {
				s.nudgeLost(x)
			}
			return
		}
		s.complete(o)
	}
}

// complete notes that op o, the oldest of its connection, is answered.
func (s *wire) complete(o *op) {
	s.n.unlink(o)
	n, fl, again := s.n, s.n.flowOf(o), o.is(fAgain) && !o.is(fOrphan)
	o.state = sDone
	s.n.forget(o, true)
	if again && fl.owes && fl.rereads == 0 {
		fl.owes = false
		s.answer(fl, hdr.Acknowledge, n.op(fl, fl.head-1).last(), fl.syn, 0)
	}
}

// forget takes op o, which is not open any more, out of all counts. done: it
// was executed.
func (n *node) forget(o *op, done bool) {
	x := n.carrier(o)
	if done {
		n.keys.learn(o, x, n.c.Now(), n.cfg.mode.moves())
	}
	fl := n.flowOf(o)
	if !o.is(fOrphan) {
		fl.answerer = o.lane
		if o.state == sUnsent && !o.is(fAgain) {
			fl.unsent++
		}
		fl.open--
		if o.is(fBare) {
			fl.bare--
		}
		n.due(fl)
	}
	if o.is(fAgain) && !o.is(fOrphan) {
		o.flags &^= fAgain
		o.state = sDone
		fl.rereads--
	}
	if o.is(fGuest) {
		x.guests--
		n.keys.guest(o, -1)
	}
	if o.answered() {
		x.rd--
	}
	if o.is(fUnkept) {
		x.unkept--
	}
	if o.is(fKept) {
		n.unkeep(o)
	}
	if o.is(fReplaced) {
		n.words.writes--
		x.writes--
	}
	if o.word != none {
		v := &n.words.w[o.word]
		if o.is(fReplaced) {
			v.writes--
		}
		if o.is(fLoose) {
			v.loose--
		} else {
			v.flight--
			if o.asAtomic() {
				v.atomics--
			}
		}
		if m := n.beside(o); o.is(fProbe) && n.get(v.probe) == o {
			known := done && n.words.awaits(v)
			if v.doubt(); known {
				n.words.believe(v, after(o.kind, o.prior, o.out, m.want, m.compareMask, m.swapMask))
				v.checked = n.c.Now()
				n.c.Count(ctrCached, 1)
			}
		}
		n.words.left(o.word, o, done)
		o.word = none
	} else if o.modifies() {
		n.words.free.leave(o.is(fOdd))
		if done && n.cfg.trackable(o) && n.words.of(o) == none {
			if !n.words.admit(o, n.c.Now(), n.cfg.vouches(o.va)) {
				n.c.Count(ctrWordFull, 1)
			}
		}
	}
	if o.is(fOrphan) {
		o.state = sDone
	}
}

// atomicAck is the answer to an atomic that went as one.
func (s *wire) atomicAck(x *flow, psn uint32, original uint64) {
	n := s.n
	o := n.carries(x, psn)
	if o == nil {
		return
	}
	first := o == n.oldest(x)
	if o.spsn != psn || !o.asAtomic() || o.is(fEarly) || !first && !x.trusted {
		return
	}
	if o.is(fForetold) && n.foresaw(o) && original != n.beside(o).want {
		n.mismatch(o)
	}
	o.prior = original
	if first {
		s.inTime(x, psn)
	} else if x.trusted {
		o.flags |= fEarly
		s.nudgeLost(x)
	}
}

// foresaw reports whether what was foretold of atomic o still holds: nothing
// made its word unknown since.
func (n *node) foresaw(o *op) bool {
	w := o.word
	if w == none {
		return false
	}
	v := &n.words.w[w]
	return n.words.believes(v) && uint32(v.belief) == n.beside(o).belief
}

// inTime completes the oldest operation of connection x, which is answered up to
// psn, and what is behind it.
func (s *wire) inTime(x *flow, psn uint32) {
	if psnLess(x.acked, psn) {
		x.acked = psn
	}
	s.complete(s.n.oldest(x))
	s.advance(x)
}

// mostAhead is how many operations are looked at to find one on a connection.
const mostAhead = 64

// compare compares what READ o found, which connection c carried, with its word's
// value, if nothing that changes the word was under way: what is behind a READ
// the server may execute before it.
func (n *node) compare(c *flow, o *op, p []byte) {
	if w := n.words.of(o); w != none && len(p) == 8 {
		if v := &n.words.w[w]; n.words.believes(v) && n.flow(v.lane) == c && v.rkey == o.rkey && v.flight == 0 && le.Uint64(p) != v.value {
			n.mismatch(o)
		}
	}
}

// distrust is how long nothing is believed of a word that was not what it
// should have been.
const distrust = 10 * time.Second

// mismatch: the word of o is not what it should have been.
func (n *node) mismatch(o *op) {
	n.c.Count(ctrMismatches, 1)
	n.words.mistrust(o, n.c.Now().Add(distrust))
}

// readResponse is a packet of the answer to a READ; true when x was disposed
// of.
func (s *wire) readResponse(x *flow, psn uint32, frame *packet.Buf, b []byte) bool {
	n := s.n
	o := n.oldest(x)
	if o == nil {
		return false
	}
	if o.kind == kOdd && o.spsn == psn {
		if psnLess(x.acked, psn) {
			x.acked = psn
		}
		s.complete(o)
		s.advance(x)
		return false
	}
	if o.kind != kRead || psnAdd(o.spsn, o.got) != psn {
		if it := n.carries(x, psn); it != nil && it != o {
			return s.early(x, it, psn, frame)
		}
		return false // a repetition, or one before it was lost: its client will ask again
	}
	fl := n.flowOf(o)
	x.learnMTU(&s.f, b)
	if o.len == 8 && o.npsn == 1 {
		n.compare(x, o, s.f.PayloadOf(b))
	}
	k := o.got
	o.got++
	lastOne := o.got == o.npsn
	if lastOne && psnLess(x.acked, psn) {
		x.acked = psn
	}
	if o.is(fOrphan) || fl.gone {
		s.c.Drop(frame, reasonAbsorbed)
	} else if o.is(fAgain) || n.op(fl, fl.head) == o && !o.holds() {
		s.relay(fl, o, frame, b, &s.f, k)
	} else if !n.keep(o, frame) {
		// No room: it will be asked for again.
		o.got--
		s.c.Drop(frame, reasonHoldFull)
		return true
	}
	if lastOne {
		s.complete(o)
		s.advance(x)
	}
	return true
}

// early holds the answer to READ o of connection c, which is in one packet, while
// one before it is missing; false when it cannot.
func (s *wire) early(c *flow, o *op, psn uint32, frame *packet.Buf) bool {
	if o.kind != kRead || o.npsn != 1 || o.spsn != psn || o.is(fEarly|fAgain|fOrphan) || !s.n.keep(o, frame) {
		return false
	}
	o.got = 1
	o.flags |= fEarly
	s.nudgeLost(c)
	return true
}

// relay gives the client of flow fl packet k of the answer to READ o: frame x, the
// bytes b, whose headers are f.
func (s *wire) relay(fl *flow, o *op, x *packet.Buf, b []byte, f *hdr.Frame, k uint32) {
	if !fl.down.fits(f) {
		s.c.Drop(x, reasonAbsorbed)
		return
	}
	h := f.BTHOf(b)
	psn := psnAdd(o.cpsn, k)
	ext, ours := f.Op.Info().Ext, s.n.carrier(o) == fl
	msn := (fl.released() + 1) & 0xFFFFFF
	if ours && h.PSN() == psn && (ext&hdr.HasAETH == 0 || f.AETHOf(b).MSN() == msn) {
		s.c.Emit(toClients, x)
		return
	}
	if !ours {
		fl.down.address(b)
	}
	h.SetPSN(psn)
	if ext&hdr.HasAETH != 0 {
		f.AETHOf(b).SetMSN(msn)
	}
	hdr.SetICRC(b, f)
	s.c.Emit(toClients, x)
}

// unkeep drops the packets that are held of o.
func (n *node) unkeep(o *op) {
	if o.holds() {
		q := o.held()
		n.shelf.Drop(n.c, &q, n.worker, reasonAbsorbed)
		o.out = 0
	}
	o.flags &^= fKept
}

// deliver gives the client of flow fl the answers that are due, in the order of
// its requests.
func (s *wire) deliver(fl *flow) {
	n := s.n
	if !fl.synced || fl.gone {
		return
	}
	if !fl.trusted { // the server's own answers passed
		for fl.head != fl.tail {
			if o := n.op(fl, fl.head); o.state != sDone {
				return
			}
			fl.head++
		}
		return
	}
	ackPSN, ack := uint32(0), false // answers that one acknowledgement can give
	wanted := false
	flush := func() bool {
		if ack && wanted && !s.answer(fl, hdr.Acknowledge, ackPSN, fl.syn, 0) {
			return false
		}
		ack, wanted = false, false
		return true
	}
	for fl.head != fl.tail {
		o := n.op(fl, fl.head)
		if o.state == sDone {
			switch {
			case o.kind == kRead:
				if o.holds() {
					if !flush() {
						return
					}
					s.relayHeld(fl, o, o.npsn)
				}
				ack, wanted = false, false
			case o.kind == kOdd || o.kind.atomic():
				code := hdr.AtomicAck
				if o.kind == kOdd {
					code = hdr.ReadRespOnly
				}
				fl.head++
				if !s.answer(fl, code, o.cpsn, fl.syn, o.prior) {
					fl.head--
					return
				}
				ack, wanted = false, false
				continue
			default:
				ackPSN, ack = o.last(), true
				wanted = wanted || o.is(fAckReq)
			}
			fl.head++
			continue
		}
		if o.state == sFailed {
			if !flush() || !s.answer(fl, hdr.Acknowledge, psnAdd(o.cpsn, n.beside(o).nak), n.beside(o).syndrome(), 0) {
				return
			}
			fl.verdict = n.beside(o).syndrome()
			n.end(fl)
			return
		}
		if !flush() {
			return
		}
		if o.kind == kRead && o.holds() {
			s.relayHeld(fl, o, o.got) // it began to come while others were due
		}
		if psn, ok := n.part(o); ok && fl.tellPart && fl.rereads == 0 {
			s.answer(fl, hdr.Acknowledge, psn, fl.syn, 0)
		}
		fl.tellPart = false
		if o.is(fPrompt) {
			o.flags &^= fPrompt
			s.answer(fl, hdr.Acknowledge, psnAdd(o.cpsn, n.beside(o).nak), n.beside(o).syndrome(), 0)
		}
		return
	}
	if !flush() {
		return
	}
	if fl.gapNAK && !fl.toldGap && fl.stall.Empty() {
		fl.toldGap = s.answer(fl, hdr.Acknowledge, fl.arrived, hdr.SynNAKSequence, 0)
	}
}

// relayHeld gives the client of flow fl the held packets of the answer to READ
// o, of which end have come.
func (s *wire) relayHeld(fl *flow, o *op, end uint32) {
	n, q, k := s.n, o.held(), end
	for at := q.First(); at != 0; at = n.shelf.Next(at) {
		k--
	}
	for ; !q.Empty(); k++ {
		x, _ := n.shelf.Take(s.c, &q, s.n.worker)
		if o.hold(q); x == nil {
			continue
		}
		b := x.Bytes()
		if hdr.Parse(b, &s.g) != hdr.IsRoCE {
			s.c.Drop(x, reasonAbsorbed)
			continue
		}
		s.relay(fl, o, x, b, &s.g, k)
	}
}

// end resets flow fl: its client's queue pair goes to the error state by the
// NAK that it was given.
func (n *node) end(fl *flow) {
	fl.gone, fl.ended = true, n.una(fl)
	n.shelf.Drop(n.c, &fl.stall, n.worker, reasonReset)
	n.c.Count(ctrResets, 1)
}

// refuse tells the client of flow fl again that its connection is gone: with the
// PSN of what failed, since a NAK says that all before it was executed.
func (s *wire) refuse(fl *flow) {
	syn := fl.verdict
	if syn == 0 {
		syn = hdr.SynNAKRemoteOperation
	}
	s.answer(fl, hdr.Acknowledge, fl.ended, syn, 0)
}

var _ graph.App = (*Box)(nil)
