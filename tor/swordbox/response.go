package swordbox

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// carrierSide is the requester, for the server: it matches responses to what a connection carries,
// from the oldest unacknowledged PSN on, sends again what is lost, asks whether the server's end is
// there and what it has executed, and ends connections. clientSide calls query, when a connection
// was quiet, nudge, when a client repeats what is open, and bequest, when a client is gone.
type carrierSide struct {
	*wire
	clients *clientSide
}

// response handles a server's response; x is disposed of.
func (s *carrierSide) response(x *packet.Buf, b []byte) {
	n := s.n
	slot := conn.NoSlot
	if s.f.Plain { // most are: nothing but the slot is to be found
		slot = n.conns.Easily(s.c.Now(), &s.ends, b, s.f.Op.Info().Flags, 0)
	}
	if slot < 0 {
		var e conn.Event
		if slot, e = n.conns.Response(s.c.Now(), &s.ends, b, &s.f); e == conn.Spoofed {
			s.bad(toServers, x, reasonSpoofed, s.cfg.dropSpoofed)
			return
		}
	}
	fl := n.flow(int32(slot))
	if fl == nil || !fl.synced {
		if fl != nil {
			fl.learnMTU(&s.f, b)
		}
		n.pulse.hear(fl, s.c.Now(), s.cfg.giveup)
		s.pass(toServers, x)
		return
	}
	psn := s.f.BTHOf(b).PSN()
	s.congested = s.f.ECNOf(b) == hdr.CE
	stray := n.stray(fl, psn)
	if stray && s.astray(fl, x, b, psn) {
		return
	}
	if fl.lost != 0 {
		s.c.Drop(x, reasonReset)
		return
	}
	if fl.asked != 0 || fl.strange != fl.strangeEnd { // it is in question whose the server's end is
		var done bool
		if psn, done = s.inQuestion(fl, x, b, psn); done {
			return
		}
		stray = true // what psn is now was not asked
	}
	d := hdr.PSNDiff(psn, fl.next)
	if stray && (d > farOff || d < -farOff && !n.isAwaited(fl, psn)) {
		s.odd(fl, x, b, psn)
		return
	}
	if far := hdr.PSNDiff(psn, fl.start); !fl.onward && (far < 0 || far > mostUnacked) && ofBefore(s, fl, x, b, psn, d, far) {
		return
	}
	if fl.unsure {
		tellsLength(s, fl, b, psn)
	}
	if fl.gated && s.concludes(fl, psn, b) {
		s.absorb(fl, x)
		return
	}
	if stray && (d > 0 || d == 0 && !(s.f.Op == hdr.Acknowledge && !s.f.AETHOf(b).Syndrome().ACK())) {
		s.bad(toServers, x, reasonBadPSN, s.cfg.dropSpoofed || fl.diverged())
		return
	}
	n.pulse.hear(fl, s.c.Now(), s.cfg.giveup)
	n.pulse.time(fl, s.c.Now())
	again := fl.tries != 0
	if fl.hears(s.c.Now()); again {
		s.readdress(fl)
	}
	if len(n.waits.all) != 0 { // else nobody is in any queue
		n.waits.carries(n.index(fl))
	}
	if fl.doubted {
		undoubted(s, fl, b)
	}
	if !fl.counted {
		if n.count(fl, &s.f, b, psn); !fl.trusted {
			s.passive(fl, x, b, psn)
			return
		}
	}
	if s.digest(fl, psn, x, b) {
		return
	}
	s.absorb(fl, x)
}

// ofBefore handles the answer in b, x, with PSN psn, on connection fl, when that is of the time before fl was followed, and was passed; false when it is not. It is d from what
// comes next, and far from the first that was followed: so far that the server's PSNs may have come round.
//
//go:noinline
func ofBefore(s *carrierSide, fl *flow, x *packet.Buf, b []byte, psn uint32, d, far int32) bool {
	switch {
	case d < 0 && far > mostUnacked:
		fl.onward = true
	case far < 0 && fl.young && !fl.gated && !(s.f.Op == hdr.Acknowledge && s.f.AETHOf(b).Syndrome().NAK()):
		s.n.pulse.hear(fl, s.c.Now(), s.cfg.giveup)
		s.others(fl, x, psn) // of the time before
		return true
	}
	return false
}

// tellsLength takes from the answer in b, with PSN psn, how many PSNs the newest request of flow fl takes, a READ of unknown length, if it is its.
//
//go:noinline
func tellsLength(s *carrierSide, fl *flow, b []byte, psn uint32) {
	n := s.n
	if s.f.Op.Info().Flags&hdr.IsReadResp == 0 {
		return
	}
	o := n.get(fl.newest)
	if p := uint32(len(s.f.PayloadOf(b))); psn == o.spsn && p != 0 {
		fl.learnMTU(&s.f, b)
		n.settleLength(fl, (o.len+p-1)/p)
	}
}

// undoubted does what was left until the server is heard on connection fl (see client.doubted), if the answer in b shows that its end is there.
//
//go:noinline
func undoubted(s *carrierSide, fl *flow, b []byte) {
	if fl.mayHave(&s.f, b) && !(s.f.Op == hdr.Acknowledge && !s.f.AETHOf(b).Syndrome().ACK()) {
		s.answerDoubted(fl)
	}
}

// astray passes answer b, x, with PSN psn, which is to nothing that flow fl carries, if it is another connection's, or to what the server was asked to answer again; false otherwise.
func (s *carrierSide) astray(fl *flow, x *packet.Buf, b []byte, psn uint32) bool {
	n := s.n
	if fl.oldest == none && (n.row(fl).Contested && (fl.asked == 0 || psn != fl.acked) || fl.dead && s.c.Now().Sub(fl.heard) >= s.cfg.alive) {
		s.others(fl, x, psn) // to the client's new connection: nothing is asked over this one
		return true
	}
	if o := n.replay(fl, psn); o != nil && s.repeated(fl, o, x, b, psn) {
		return true
	}
	if fl.asked == 0 && n.conns.Answers(&s.ends, b, &s.f) {
		s.others(fl, x, psn) // the same, of which nobody told
		return true
	}
	return false
}

// inQuestion takes from answer b, x, with PSN psn, whether the server's end is that of flow fl. The result is the PSN that it means if it is; done: x was
// disposed of.
func (s *carrierSide) inQuestion(fl *flow, x *packet.Buf, b []byte, psn uint32) (_ uint32, done bool) {
	n := s.n
	if fl.affirmed(&s.f, b, psn) && !fl.confirmed(psn) {
		psn = fl.acked
	}
	if fl.confirmed(psn) || fl.denied(&s.f, b, psn, s.c.Now(), s.cfg.alive) {
		s.odd(fl, x, b, psn)
		return psn, true
	}
	before := fl.young && !fl.onward && psnLess(psn, fl.start)
	if fl.owed > 0 && s.f.Op == hdr.Acknowledge && !before && !fl.gated && n.stray(fl, psn) {
		if fl.owed--; psn != fl.acked || !fl.mayHave(&s.f, b) {
			s.bad(toServers, x, reasonBadPSN, true) // it may be to the question
			return psn, true
		}
	}
	return psn, false
}

// repeated handles an answer, x with the bytes b and PSN psn, to READ o of flow fl, which the server was asked to answer again; false when it is none.
func (s *carrierSide) repeated(fl *flow, o *op, x *packet.Buf, b []byte, psn uint32) bool {
	syn := hdr.Syndrome(0)
	if s.f.Op == hdr.Acknowledge {
		syn = s.f.AETHOf(b).Syndrome()
	}
	refused := syn.NAK() && syn != hdr.SynNAKSequence
	if fl.lost != 0 || fl.gone || !s.f.Op.Has(hdr.IsReadResp) && !refused {
		return false
	}
	s.n.pulse.hear(fl, s.c.Now(), s.cfg.giveup)
	if fl.heard = s.c.Now(); refused || psn == psnAdd(o.spsn, o.npsn-1) {
		o.got = o.npsn
	} else {
		o.got = o.npsn + 1
	}
	if !refused {
		s.relay(fl, o, true, x, b, &s.f, uint32(hdr.PSNDiff(psn, o.spsn)))
		return true
	}
	// The region is not what it was: the queue pair is in the error state, and what is under way behind the READ may have been executed or not.
	s.clients.end(fl)
	fl.ended, fl.verdict = psnAdd(o.cpsn, uint32(hdr.PSNDiff(psn, o.spsn))), syn
	s.n.keys.refused(o, s.c.Now().Add(distrust))
	s.fail(fl)
	s.clients.refuse(fl)
	s.absorb(fl, x)
	return true
}

// answerDoubted answers anew what the client of flow fl asked for again while nobody knew whether the server's end was there. It begins with the oldest such request, as
// a client repeats that and all behind it, and ends before a READ, which is done again by itself (late).
func (s *carrierSide) answerDoubted(fl *flow) {
	n, plain := s.n, fl.again == fl.head
	fl.doubted = false
	n.waits.call(n.index(fl))
	for k := fl.again; int32(k-fl.head) < 0 && int32(k-fl.first) >= 0 && k-fl.again < narrow; k++ {
		switch o := n.op(fl, k); {
		case o.kind == kRead:
			return
		case o.kind == kOdd || o.kind.atomic():
			s.clients.answerAgain(fl, k)
			plain = false
		default:
			plain = true
		}
	}
	if plain {
		s.clients.acknowledge(fl)
	}
}

// absorb does what an answer on connection fl, x, has led to. Nobody needs the frame
// itself any more: it may become an answer.
func (s *carrierSide) absorb(fl *flow, x *packet.Buf) {
	s.spare, s.to = x, fl
	s.clients.settle()
	if s.spare != nil {
		s.spare = nil
		s.c.Drop(x, reasonAbsorbed)
	}
}

// digest does what the answer in b, x, with PSN psn means on connection fl; true
// when it disposed of x.
func (s *carrierSide) digest(fl *flow, psn uint32, x *packet.Buf, b []byte) bool {
	n := s.n
	syn := hdr.Syndrome(0)
	if s.f.Op.Info().Ext&hdr.HasAETH != 0 {
		h := s.f.AETHOf(b)
		if syn = h.Syndrome(); syn.ACK() {
			fl.syn = syn
		}
		fl.hearsMSN(h.MSN())
	}
	if fl.inDoubt {
		s.judge(fl, psn, b)
	}
	switch f := &s.f; {
	case f.Op == hdr.Acknowledge:
		switch {
		case syn.ACK():
			s.acked(fl, psn)
			s.partly(fl)
		default:
			s.acked(fl, psnAdd(psn, hdr.PSNMask))
			switch old := fl.oldest == none || psnLess(psn, n.ops[fl.oldest].spsn); {
			case old: // it was heard before
			case syn == hdr.SynNAKSequence && fl.inDoubt:
				if fl.gated {
					s.cut(fl, psn)
				}
			case syn == hdr.SynNAKSequence:
				s.missing(fl, psn)
			case syn.RNR():
				s.notReady(fl, psn, syn)
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
func (s *carrierSide) odd(fl *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	switch {
	case fl.confirmed(psn):
		n.conns.Remove(n.slot(fl)) // the queue pairs are of another connection now
	case fl.denied(&s.f, b, psn, s.c.Now(), s.cfg.alive):
		s.c.Count(ctrGone, 1)
		n.conns.Remove(n.slot(fl))
	case fl.diverged():
		s.bad(toServers, x, reasonBadPSN, true)
		return
	}
	s.others(fl, x, psn)
	s.clients.settle()
}

// stray reports whether an answer with PSN psn is to nothing that connection c carries.
func (r *record) stray(c *flow, psn uint32) bool {
	return c.oldest == none || psnLess(psn, r.ops[c.oldest].spsn) || !psnLess(psn, c.next)
}

// others passes an answer with PSN psn that came over connection fl, x, and is to nothing that fl carries, as it is. Where both ends of fl count differently, one
// that its client may take for an answer to what it has under way does not pass.
func (s *carrierSide) others(fl *flow, x *packet.Buf, psn uint32) {
	if una := s.n.una(fl); fl.bound && una != fl.arrived && !psnLess(psn, una) && hdr.PSNDiff(psn, fl.arrived) < narrow {
		s.bad(toServers, x, reasonBadPSN, true)
		return
	}
	s.pass(toServers, x)
}

// trust takes from the first answer to a request on record what answers look
// like, and how many messages the server has counted.
func (r *record) trust(fl *flow, f *hdr.Frame, b []byte, psn uint32) {
	if f.Op.Info().Ext&hdr.HasAETH == 0 || fl.oldest == none || psnLess(psn, r.ops[fl.oldest].spsn) || !fl.down.learn(b, f) || fl.down.shape != fl.up.shape {
		return
	}
	// Messages completed as of psn, all of them its own: MSN counts from
	// before the first on record.
	k := uint32(0)
	for o := r.oldest(fl); o != nil; o = r.behind(o) {
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

// count takes from the answer in b, with headers f and PSN psn, whether the server executes what flow fl sends. A request that it executed before
// it acknowledges without a look at R_Key, right or payload (IBTA 9.7.5.1.2), and whoever sends to a connection may begin with such. So
// what is answered shows no right and no word's value, until the MSN has risen from one answer to another by the messages between both. What was
// sent again while it was on record does not count (recounts): its answer may have the MSN of later ones.
func (r *record) count(fl *flow, f *hdr.Frame, b []byte, psn uint32) {
	if !fl.trusted {
		r.trust(fl, f, b, psn)
	}
	if !fl.trusted || f.Op.Info().Ext&hdr.HasAETH == 0 || !f.AETHOf(b).Syndrome().ACK() {
		return
	}
	o := r.carries(fl, psn)
	if o == nil || r.flowOf(o) != fl || psnLess(psn, o.spsn) || o.kind != kRead && psn != psnAdd(o.spsn, o.npsn-1) {
		return
	}
	_, k := r.find(fl, o.cpsn)
	msn, known := f.AETHOf(b).MSN(), fl.msn&knownMSN != 0
	switch messages := int32(k - fl.counts); {
	case messages < 0 || known && messages == 0:
		return
	case known && (msn-fl.msn)&0xFFFFFF == uint32(messages):
		fl.counted = true
		return
	}
	fl.msn, fl.counts = msn|knownMSN, k
}

// In flow.msn: that there is one, and that it is the newest of what the server has said.
const (
	knownMSN  = 1 << 31
	newestMSN = 1 << 29
)

// passive notes what an answer on connection c means, and passes it as it is:
// both ends still count alike.
func (s *carrierSide) passive(c *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	f := &s.f
	before := psnAdd(psn, hdr.PSNMask)
	if f.Op == hdr.Acknowledge {
		if syn := f.AETHOf(b).Syndrome(); syn.NAK() && syn != hdr.SynNAKSequence {
			n.unfollow(c) // its queue pairs are of no use any more, whichever request it was
			s.emit(toClients, x)
			return
		}
	}
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
	s.emit(toClients, x)
}

// acked notes that the server has executed all that connection c carried up to
// psn.
func (s *carrierSide) acked(c *flow, psn uint32) {
	c.ack(psn)
	s.advance(c)
	if c.repair {
		s.pump(c)
	}
}

// suspects reports whether what was sent before the oldest request was sent again, and has no
// answer yet, is to be sent again, too: that one was answered, and then no other for as long
// as answers are waited for. A server that paused answers them one by one.
func (s *carrierSide) suspects(c *flow, o *op) bool {
	if c.suspect == 0 || o.spsn == c.nudged {
		return false
	}
	if !psnLess(o.spsn, c.suspect) || o.got != 0 || s.n.handedOver(c) && c.writes == 0 {
		c.suspect = 0
	}
	return c.suspect != 0 && s.c.Now().Sub(c.heard) >= c.timeout(s.cfg.giveup)
}

// partly has a client told of the first packets of a message of many that connection
// x carries, when the server has acknowledged them: it may wait for that before it
// sends more (rxe: after 128).
func (s *wire) partly(c *flow) {
	o := s.n.oldest(c)
	if o != nil && (o.kind == kWrite || o.kind == kSend) && !o.is(fOrphan) && !psnLess(c.acked, o.spsn) {
		f := s.n.flowOf(o)
		f.tellPart = true
		s.n.due(f)
	}
}

// advance completes what is acknowledged, in order.
func (s *carrierSide) advance(c *flow) {
	n := s.n
	for o := n.oldest(c); o != nil; o = n.oldest(c) {
		if o.is(fEarly) {
			c.ack(psnAdd(o.spsn, o.npsn-1))
			s.complete(o)
			continue
		}
		if o.npsn != 0 && psnLess(c.acked, psnAdd(o.spsn, o.npsn-1)) || c.cur == c.oldest {
			return
		}
		if s.n.isVoid(o) { // a WRITE of nothing may have gone in its place
			c.executes(o)
			n.unlink(o)
			o.state = sDone
			n.forget(o, false)
			continue
		}
		if o.answered() {
			// The server answered it, and the answer was lost. Its client will
			// ask again in its time; others need not wait so long.
			if c.guests > 0 && c.trusted {
				s.nudgeLost(c)
			}
			return
		}
		s.complete(o)
	}
}

// complete notes that op o, the oldest of its connection, is answered.
//
//go:noinline
func (s *carrierSide) complete(o *op) {
	n := s.n
	n.carrier(o).executes(o)
	n.unlink(o)
	again := o.flags&(fAgain|fOrphan) == fAgain
	o.state = sDone
	if n.forget(o, true); again {
		reread(s, n.flowOf(o))
	}
}

// reread gives the client of flow fl, of which a READ was done again, the acknowledgement that waited for that.
//
//go:noinline
func reread(s *carrierSide, fl *flow) {
	if fl.owes && fl.rereads == 0 {
		fl.owes = false
		s.answer(fl, hdr.Acknowledge, s.n.op(fl, fl.head-1).last(), fl.syn, 0)
	}
}

// atomicAck is the answer to an atomic that went as one.
func (s *carrierSide) atomicAck(c *flow, psn uint32, original uint64) {
	n := s.n
	o := n.carries(c, psn)
	if o == nil {
		return
	}
	first := o == n.oldest(c)
	if o.spsn != psn || !o.asAtomic() || o.is(fEarly) || !first && !c.trusted {
		return
	}
	if o.is(fForetold) && n.foresaw(o) && original != n.beside(o).want {
		n.mismatch(o)
	}
	o.prior = original
	if first {
		s.inTime(c, psn)
	} else if c.trusted {
		o.flags |= fEarly
		s.nudgeLost(c)
	}
}

// inTime completes the oldest operation of connection c, which is answered up to
// psn, and what is behind it.
func (s *carrierSide) inTime(c *flow, psn uint32) {
	c.ack(psn)
	s.complete(s.n.oldest(c))
	s.advance(c)
}

// readResponse is a packet of the answer to a READ; true when x was disposed
// of.
func (s *carrierSide) readResponse(c *flow, psn uint32, frame *packet.Buf, b []byte) bool {
	n := s.n
	o := n.oldest(c)
	if o == nil {
		return false
	}
	if o.kind == kOdd && o.spsn == psn {
		c.ack(psn)
		s.complete(o)
		s.advance(c)
		return false
	}
	if o.kind != kRead || psnAdd(o.spsn, o.got) != psn {
		if it := n.carries(c, psn); it != nil && it != o {
			return s.early(c, it, psn, frame)
		}
		return false // a repetition, or one before it was lost: its client will ask again
	}
	fl := n.flowOf(o)
	c.learnMTU(&s.f, b)
	if o.len == 8 && o.npsn == 1 {
		n.compare(c, o, s.f.PayloadOf(b))
	}
	k := o.got
	o.got++
	lastOne := o.got == o.npsn
	if lastOne && psnLess(c.acked, psn) {
		c.acked = psn
	}
	if o.is(fOrphan) || fl.gone {
		s.c.Drop(frame, reasonAbsorbed)
	} else if o.is(fAgain) || n.op(fl, fl.head) == o && !o.holds() {
		s.relay(fl, o, c == fl, frame, b, &s.f, k)
	} else if !n.shelf.keep(o, frame) {
		// No room: it will be asked for again.
		o.got--
		s.c.Drop(frame, reasonHoldFull)
		return true
	}
	if lastOne {
		s.complete(o)
		s.advance(c)
	}
	return true
}

// early holds the answer to READ o of connection c, which is in one packet, while
// one before it is missing; false when it cannot.
func (s *carrierSide) early(c *flow, o *op, psn uint32, frame *packet.Buf) bool {
	if o.kind != kRead || o.npsn != 1 || o.spsn != psn || o.is(fEarly|fAgain|fOrphan) || !s.n.shelf.keep(o, frame) {
		return false
	}
	o.got = 1
	o.flags |= fEarly
	s.nudgeLost(c)
	return true
}
