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
func (s *Box) response(x *packet.Buf, b []byte) {
	n := s.n
	slot, e := n.conns.Response(s.c.Now(), &s.ends, b, &s.f)
	if e == conn.Spoofed {
		s.bad(toServers, x, reasonSpoofed, s.cfg.dropSpoofed)
		return
	}
	fl := n.flow(int32(slot))
	if fl == nil || !fl.synced {
		if fl != nil {
			s.learnMTU(fl, b)
		}
		s.hear(fl)
		s.pass(toServers, x)
		return
	}
	psn := s.f.BTHOf(b).PSN()
	s.congested = s.f.ECNOf(b) == hdr.CE
	if fl.lost != 0 {
		s.c.Drop(x, reasonReset)
		return
	}
	if fl.affirmed(&s.f, b, psn) && !s.confirmed(fl, b, psn) {
		psn = fl.acked
	}
	if d := hdr.PSNDiff(psn, fl.next); d > farOff || d < -farOff || s.confirmed(fl, b, psn) || s.denied(fl, b, psn) {
		s.odd(fl, x, b, psn)
		return
	}
	if d := hdr.PSNDiff(psn, fl.start); d > mostUnacked && hdr.PSNDiff(psn, fl.next) < 0 {
		fl.onward = true
	}
	if fl.young && !fl.onward && psnLess(psn, fl.start) && !(s.f.Op == hdr.Acknowledge && s.f.AETHOf(b).Syndrome().NAK()) {
		s.hear(fl)
		s.pass(toServers, x) // of the time before
		return
	}
	if fl.unsure && s.f.Op.Info().Flags&hdr.IsReadResp != 0 {
		o := n.get(fl.newest)
		if p := uint32(len(s.f.PayloadOf(b))); psn == o.spsn && p != 0 {
			s.learnMTU(fl, b)
			s.settleLength(fl, (o.len+p-1)/p)
		}
	}
	if fl.inDoubt && psn == fl.next && s.f.Op == hdr.AtomicAck {
		s.allExecuted(fl)
	}
	if hdr.PSNDiff(psn, fl.next) > 0 || hdr.PSNDiff(psn, fl.next) == 0 && !(s.f.Op == hdr.Acknowledge && !s.f.AETHOf(b).Syndrome().ACK()) {
		s.bad(toServers, x, reasonBadPSN, s.cfg.dropSpoofed || n.diverged(fl))
		return
	}
	s.hear(fl)
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
		if s.trust(fl, b, psn); !fl.trusted {
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
func (s *Box) digest(fl *flow, psn uint32, x *packet.Buf, b []byte) bool {
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
				s.cut(fl, psn)
			case syn == hdr.SynNAKSequence:
				s.missing(fl, psn)
			case syn.RNR():
				s.notReady(fl, psn, syn)
			case syn.NAK():
				s.fatal(fl, psn, syn)
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
func (s *Box) odd(fl *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	switch {
	case s.confirmed(fl, b, psn):
		n.conns.Remove(n.slot(fl)) // the queue pairs are of another connection now
	case s.denied(fl, b, psn):
		s.c.Count(ctrGone, 1)
		n.conns.Remove(n.slot(fl))
	case n.diverged(fl):
		s.bad(toServers, x, reasonBadPSN, true)
		return
	}
	s.pass(toServers, x)
	s.settle()
}

// denied reports whether an acknowledgement b says, to a question (see query), that
// the server's end of flow f is of another connection: that it executed more than
// was sent, or expects something else next. What others make up for the queue pair
// changes neither. Answers of before, which came late, say nothing; there are none
// when it was quiet before the question.
func (s *Box) denied(f *flow, b []byte, psn uint32) bool {
	if f.asked == 0 || f.oldest != none || s.f.Op != hdr.Acknowledge || f.asked.Sub(f.heard) < s.cfg.alive {
		return false
	}
	if s.f.AETHOf(b).Syndrome().ACK() {
		return psn != f.acked && !f.affirmed(&s.f, b, psn)
	}
	return psn != f.next
}

// affirmed reports whether such an acknowledgement says, with another PSN than that
// of the newest request, that the server's end is as it was. An end of another
// connection that has had the repeated PSN acknowledges a later one (one that has not
// asks for what is missing). Linux (rxe) acknowledges again the newest request that
// was no READ, and the PSN before 0 when there was none.
func (f *flow) affirmed(h *hdr.Frame, b []byte, psn uint32) bool {
	return f.asked != 0 && h.Op == hdr.Acknowledge && h.AETHOf(b).Syndrome().ACK() &&
		(psnLess(psn, f.acked) || psn == hdr.PSNMask && !psnLess(psn, f.next))
}

// hear notes that the server answered on connection fl.
func (s *Box) hear(fl *flow) {
	n, now := s.n, s.c.Now()
	if now.Sub(n.lastHeard) > clock.Duration(s.cfg.giveup)/2 {
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
func (s *Box) trust(fl *flow, b []byte, psn uint32) {
	n := s.n
	f := &s.f
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
func (s *Box) passive(c *flow, x *packet.Buf, b []byte, psn uint32) {
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
		s.learnMTU(c, b)
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
func (s *Box) acked(x *flow, psn uint32) {
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

// part is the PSN of the last packet of o, which is not done, that the server has
// acknowledged, as its client numbers; false when there is none.
func (n *node) part(o *op) (psn uint32, ok bool) {
	if o.state != sOpen || o.kind != kWrite && o.kind != kSend || n.oldest(n.carrier(o)) != o {
		return 0, false
	}
	d := hdr.PSNDiff(n.carrier(o).acked, o.spsn)
	return psnAdd(o.cpsn, uint32(d)), d >= 0 && d < int32(o.npsn)
}

// advance completes what is acknowledged, in order.
func (s *Box) advance(x *flow) {
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
func (s *Box) complete(o *op) {
	s.unlink(o)
	o.state = sDone
	s.forget(o, true)
}

// unlink takes o, which is the oldest, off its connection.
func (s *Box) unlink(o *op) {
	x := &s.n.flows[o.lane]
	x.oldest = o.next
	if x.oldest == none {
		x.newest = none
	}
	x.silent = 0
}

// forget takes op o, which is not open any more, out of all counts. done: it
// was executed.
func (s *Box) forget(o *op, done bool) {
	n := s.n
	x := n.carrier(o)
	if done {
		s.learn(o)
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
		if fl.rereads--; fl.rereads == 0 && fl.owes && done {
			fl.owes = false
			last := n.op(fl, fl.head-1)
			s.answer(fl, hdr.Acknowledge, last.last(), fl.syn, 0)
		}
	}
	if o.is(fGuest) {
		x.guests--
		n.guest(o, -1)
	}
	if o.answered() {
		x.rd--
	}
	if o.is(fUnkept) {
		x.unkept--
	}
	if o.is(fKept) {
		s.unkeep(o)
	}
	if o.is(fReplaced) {
		n.writes--
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
			known := done && n.awaits(v)
			if v.doubt(); known {
				n.believe(v, after(o.kind, o.prior, o.out, m.want, m.compareMask, m.swapMask))
				v.checked = s.c.Now()
				s.c.Count(ctrCached, 1)
			}
		}
		n.left(o.word, o, done)
		o.word = none
	} else if o.modifies() {
		n.free.leave(o.is(fOdd))
		if done && s.trackable(o) && n.trackedWord(o) == none {
			s.admitWord(o)
		}
	}
	if o.is(fOrphan) {
		o.state = sDone
	}
}

// atomicAck is the answer to an atomic that went as one.
func (s *Box) atomicAck(x *flow, psn uint32, original uint64) {
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
		s.mismatch(o)
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
	return n.believes(v) && uint32(v.belief) == n.beside(o).belief
}

// inTime completes the oldest operation of connection x, which is answered up to
// psn, and what is behind it.
func (s *Box) inTime(x *flow, psn uint32) {
	if psnLess(x.acked, psn) {
		x.acked = psn
	}
	s.complete(s.n.oldest(x))
	s.advance(x)
}

// carries is the operation that connection x carries under PSN psn; nil if there
// is none, or too many are ahead of it.
func (n *node) carries(x *flow, psn uint32) *op {
	o := n.oldest(x)
	for range mostAhead {
		if o == nil || psnLess(psn, psnAdd(o.spsn, o.npsn)) {
			return o
		}
		o = n.behind(o)
	}
	return nil
}

// mostAhead is how many operations are looked at to find one on a connection.
const mostAhead = 64

// compare compares what READ o found, which connection c carried, with its word's
// value, if nothing that changes the word was under way: what is behind a READ
// the server may execute before it.
func (s *Box) compare(c *flow, o *op, p []byte) {
	if w := s.n.trackedWord(o); w != none && len(p) == 8 {
		if v := &s.n.words.w[w]; s.n.believes(v) && s.n.flow(v.lane) == c && v.rkey == o.rkey && v.flight == 0 && le.Uint64(p) != v.value {
			s.mismatch(o)
		}
	}
}

// distrust is how long nothing is believed of a word that was not what it
// should have been.
const distrust = 10 * time.Second

// mismatch: the word of o is not what it should have been.
func (s *Box) mismatch(o *op) {
	s.c.Count(ctrMismatches, 1)
	if w := s.n.trackedWord(o); w != none {
		s.n.words.w[w].doubt()
		s.n.words.u[w].barred = s.c.Now().Add(distrust)
	}
}

// readResponse is a packet of the answer to a READ; true when x was disposed
// of.
func (s *Box) readResponse(x *flow, psn uint32, frame *packet.Buf, b []byte) bool {
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
	s.learnMTU(x, b)
	if o.len == 8 && o.npsn == 1 {
		s.compare(x, o, s.f.PayloadOf(b))
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
	} else if !s.keepAnswer(o, frame) {
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
func (s *Box) early(c *flow, o *op, psn uint32, frame *packet.Buf) bool {
	if o.kind != kRead || o.npsn != 1 || o.spsn != psn || o.is(fEarly|fAgain|fOrphan) || !s.keepAnswer(o, frame) {
		return false
	}
	o.got = 1
	o.flags |= fEarly
	s.nudgeLost(c)
	return true
}

// learnMTU learns a path MTU from packets of READ responses.
func (s *Box) learnMTU(x *flow, b []byte) {
	switch s.f.Op {
	case hdr.ReadRespFirst, hdr.ReadRespMiddle:
		if x.mtu == 0 {
			x.mtu = uint32(len(s.f.PayloadOf(b)))
		}
	case hdr.ReadRespOnly:
		x.mtuLow = max(x.mtuLow, uint32(len(s.f.PayloadOf(b))))
	}
}

// relay gives the client of flow fl packet k of the answer to READ o: frame x, the
// bytes b, whose headers are f.
func (s *Box) relay(fl *flow, o *op, x *packet.Buf, b []byte, f *hdr.Frame, k uint32) {
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

// keepAnswer holds a packet of the answer to READ o until its client may see
// it.
func (s *Box) keepAnswer(o *op, x *packet.Buf) bool {
	q := o.queue()
	if !s.hold(&q, x) {
		return false
	}
	o.setHeld(q.first, q.last)
	return true
}

// queue is the list of packets that are held of o.
func (o *op) queue() fifo {
	q := fifo{}
	if o.holds() {
		q.first, q.last = o.held()
		q.n = 1 // at least: counts matter to nobody
	}
	return q
}

// heldAnswer takes the first held packet of o; nil when there is none.
// ok is false when there is no buffer for it.
func (s *Box) heldAnswer(o *op) (x *packet.Buf, more bool) {
	if !o.holds() {
		return nil, false
	}
	q := o.queue()
	last := q.first == q.last
	x = s.unhold(&q)
	if last {
		o.setHeld(none, none)
	} else {
		o.setHeld(q.first, q.last)
	}
	return x, true
}

// unkeep drops the packets that are held of o.
func (s *Box) unkeep(o *op) {
	for {
		x, more := s.heldAnswer(o)
		if !more {
			o.flags &^= fKept
			return
		}
		if x != nil {
			s.c.Drop(x, reasonAbsorbed)
		}
	}
}

// deliver gives the client of flow fl the answers that are due, in the order of
// its requests.
func (s *Box) deliver(fl *flow) {
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
			s.end(fl)
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
	if fl.gapNAK && !fl.toldGap && fl.stall.n == 0 {
		fl.toldGap = s.answer(fl, hdr.Acknowledge, fl.arrived, hdr.SynNAKSequence, 0)
	}
}

// relayHeld gives the client of flow fl the held packets of the answer to READ
// o, of which end have come.
func (s *Box) relayHeld(fl *flow, o *op, end uint32) {
	k := end
	for at, last := o.held(); ; at = s.n.shelf.k[at].next {
		if k--; at == last {
			break
		}
	}
	for ; ; k++ {
		x, more := s.heldAnswer(o)
		if !more {
			return
		}
		if x == nil {
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

// una is the PSN of the oldest request of flow f that its client has no answer to
// (IBTA: oldest unacknowledged PSN).
func (n *node) una(f *flow) uint32 {
	if f.head == f.tail {
		return f.admitted
	}
	o := n.op(f, f.head)
	if o.state == sFailed {
		return psnAdd(o.cpsn, n.beside(o).nak)
	}
	return o.cpsn
}

// end resets flow fl: its client's queue pair goes to the error state by the
// NAK that it was given.
func (s *Box) end(fl *flow) {
	fl.gone, fl.ended = true, s.n.una(fl)
	s.discard(&fl.stall, reasonReset)
	s.c.Count(ctrResets, 1)
}

// refuse tells the client of flow fl again that its connection is gone: with the
// PSN of what failed, since a NAK says that all before it was executed.
func (s *Box) refuse(fl *flow) {
	syn := fl.verdict
	if syn == 0 {
		syn = hdr.SynNAKRemoteOperation
	}
	s.answer(fl, hdr.Acknowledge, fl.ended, syn, 0)
}

var _ graph.App = (*Box)(nil)
