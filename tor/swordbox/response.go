package swordbox

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// carrierSide acts as the requester towards the server. It matches responses to the operations that a
// connection carries, from the oldest unacknowledged PSN on. It sends lost requests again, asks the server
// whether its end is there and what it has executed, and ends connections. clientSide calls query when a
// connection was quiet, nudge when a client repeats an open request, and bequest when a client is gone.
type carrierSide struct {
	*wire
	clients *clientSide
}

// response handles a server's response x with the bytes b, and disposes of x.
func (s *carrierSide) response(x *packet.Buf, b []byte) {
	n := s.n
	slot := conn.NoSlot
	if s.f.Plain { // as most frames are: only the slot has to be found
		slot = n.conns.Easily(s.c.Now(), &s.ends, b, s.f.Op.Info().Flags, 0, n.conns.Ahead(&s.ends, b))
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
		hearsAny(s, fl, b)
		s.pass(toServers, x)
		return
	}
	if fl.lost != 0 {
		answersLost(s, fl, x, b)
		return
	}
	if fl.down.mac() != macOf(b) {
		clientMoves(s, fl, b)
	}
	psn := s.f.BTHOf(b).PSN()
	s.congested = s.f.ECNOf(b) == hdr.CE
	stray := n.stray(fl, psn)
	if stray && s.astray(fl, x, b, psn) {
		return
	}
	if fl.asked != 0 || fl.strange != fl.strangeEnd { // it is not known whether the server's end belongs to fl
		var done bool
		if psn, done = s.inQuestion(fl, x, b, psn); done {
			return
		}
		stray = true // psn may be another one now
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
	n.pulse.time(fl, s.c.Now())
	again := fl.tries != 0
	if fl.hears(s.c.Now()); again {
		s.readdress(fl)
	}
	if len(n.waits.all) != 0 { // otherwise no client is in any queue
		n.waits.carries(n.index(fl))
	}
	if fl.doubted {
		undoubted(s, fl, b)
	}
	if !fl.counted {
		if counts(&n.order, fl, &s.f, b, psn); !fl.trusted {
			hearsAny(s, fl, b)
			s.passive(fl, x, b, psn)
			return
		}
	}
	n.nicOf(fl).pulse.hear(fl, s.c.Now(), s.cfg.giveup)
	if s.digest(fl, psn, x, b) {
		return
	}
	s.absorb(fl, x)
}

// hearsAny notes that the NIC that answer b comes from was heard, on connection fl or, if fl is nil, on one that the box does not follow. Of a connection that is
// not trusted it is not known at which NIC the server's end is.
//
//go:noinline
func hearsAny(s *carrierSide, fl *flow, b []byte) {
	at := s.n.nicFrom(b, &s.f, &s.ends)
	if fl != nil && fl.trusted {
		at = s.n.nicOf(fl)
	}
	if at != nil {
		at.pulse.hear(fl, s.c.Now(), s.cfg.giveup)
	}
}

// ofBefore passes answer x, with PSN psn, if it belongs to a request from before fl was followed; otherwise it returns
// false. d is the distance of psn from the next PSN, far that from fl.start. An answer to a request more than
// mostUnacked beyond start shows that the server's PSNs may wrap around to start (onward).
//
//go:noinline
func ofBefore(s *carrierSide, fl *flow, x *packet.Buf, b []byte, psn uint32, d, far int32) bool {
	switch {
	case d < 0 && far > mostUnacked:
		fl.onward = true
	case far < 0 && fl.young && !fl.gated && !(s.f.Op == hdr.Acknowledge && s.f.AETHOf(b).Syndrome().NAK()):
		hearsAny(s, fl, b)
		s.others(fl, x, psn) // from before the box followed the connection
		return true
	}
	return false
}

// tellsLength learns how many PSNs the newest operation of flow fl takes, a READ for which that is unknown, if b is the
// first packet of its answer. psn is the PSN of b.
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

// undoubted gives the answers that were put off until the server is heard on connection fl (see client.doubted), if
// answer b shows that the server's end is there.
//
//go:noinline
func undoubted(s *carrierSide, fl *flow, b []byte) {
	if fl.mayHave(&s.f, b) && !(s.f.Op == hdr.Acknowledge && !s.f.AETHOf(b).Syndrome().ACK()) {
		s.answerDoubted(fl)
	}
}

// astray handles answer x with the bytes b, whose PSN psn belongs to nothing that flow fl carries. It disposes of x and
// returns true if x belongs to another connection, or to a READ that the server was asked to answer again.
func (s *carrierSide) astray(fl *flow, x *packet.Buf, b []byte, psn uint32) bool {
	n := s.n
	if fl.oldest == none && (n.row(fl).Contested && (fl.asked == 0 || psn != fl.acked) || fl.dead && s.c.Now().Sub(fl.heard) >= s.cfg.alive) {
		s.others(fl, x, psn) // for the client's new connection: nothing is asked over fl
		return true
	}
	if o := n.replay(fl, psn); o != nil && s.repeated(fl, o, x, b, psn) {
		return true
	}
	if fl.asked == 0 && n.conns.Answers(&s.ends, b, &s.f) {
		s.others(fl, x, psn) // for a new connection that was not announced
		return true
	}
	return false
}

// inQuestion decides by answer x with the bytes b and PSN psn whether the server's end still belongs to flow fl. If
// so, it returns the PSN that the answer stands for. done says that it disposed of x.
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
			s.bad(toServers, x, reasonBadPSN, true) // it may answer the question
			return psn, true
		}
	}
	return psn, false
}

// repeated handles answer x, with the bytes b and PSN psn, to READ o of flow fl, which the server was asked to answer
// again. It returns false, and leaves x, if x is no READ response and no NAK that refuses the READ.
func (s *carrierSide) repeated(fl *flow, o *op, x *packet.Buf, b []byte, psn uint32) bool {
	syn := hdr.Syndrome(0)
	if s.f.Op == hdr.Acknowledge {
		syn = s.f.AETHOf(b).Syndrome()
	}
	refused := syn.NAK() && syn != hdr.SynNAKSequence
	if fl.lost != 0 || fl.gone || !s.f.Op.Has(hdr.IsReadResp) && !refused {
		return false
	}
	s.n.nicOf(fl).pulse.hear(fl, s.c.Now(), s.cfg.giveup)
	if fl.heard = s.c.Now(); refused || psn == psnAdd(o.spsn, o.npsn-1) {
		o.got = o.npsn
	} else {
		o.got = o.npsn + 1
	}
	if !refused {
		s.relay(fl, o, true, x, b, &s.f, uint32(hdr.PSNDiff(psn, o.spsn)))
		return true
	}
	// The memory region has changed since the first answer. The queue pair is in the error state, and the
	// server may or may not have executed the operations under way behind the READ.
	s.clients.end(fl)
	fl.ended, fl.verdict = psnAdd(o.cpsn, uint32(hdr.PSNDiff(psn, o.spsn))), syn
	s.n.nicOf(fl).keys.refused(o, s.c.Now().Add(distrust))
	s.fail(fl)
	s.clients.refuse(fl)
	s.absorb(fl, x)
	return true
}

// answerDoubted answers the duplicates that the client of flow fl sent while it was unknown whether the server's end
// was there. It begins with the oldest one, because a client repeats that and all requests behind it, and ends
// before a READ, which is done again separately (late).
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

// absorb does the work that answer x on connection fl has caused (settle). The frame itself is not needed, so that
// settle may make an answer to a client from it; otherwise absorb drops it.
func (s *carrierSide) absorb(fl *flow, x *packet.Buf) {
	s.spare, s.to = x, fl
	s.clients.settle()
	if s.spare != nil {
		s.spare = nil
		s.c.Drop(x, reasonAbsorbed)
	}
}

// digest completes, repeats or fails operations on connection fl as answer x, with the bytes b and PSN psn, says. It
// returns true if it disposed of x.
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
			case old: // it was heard before: a copy of a NAK that was handled
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

// odd handles answer x, with the bytes b, whose PSN psn is far from the requests of flow fl or shows that the server's
// end belongs to another connection. It disposes of x.
func (s *carrierSide) odd(fl *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	switch {
	case fl.confirmed(psn):
		n.conns.Remove(n.slot(fl)) // another connection has the queue pairs now
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

// stray reports whether an answer with PSN psn belongs to no operation that connection c carries.
func (r *record) stray(c *flow, psn uint32) bool {
	return c.oldest == none || psnLess(psn, r.ops[c.oldest].spsn) || !psnLess(psn, c.next)
}

// others passes answer x, which came over connection fl and belongs to nothing that fl carries, unchanged. It drops
// x if both ends of fl count differently and the client might take psn for an answer to one of its open requests.
func (s *carrierSide) others(fl *flow, x *packet.Buf, psn uint32) {
	if una := s.n.una(fl); fl.bound && una != fl.arrived && !psnLess(psn, una) && hdr.PSNDiff(psn, fl.arrived) < narrow {
		s.bad(toServers, x, reasonBadPSN, true)
		return
	}
	s.pass(toServers, x)
}

// trust learns the headers of answers, and the MSN before the first operation on record, from the first answer to a
// request on record: b, with headers f and PSN psn.
func (r *record) trust(fl *flow, f *hdr.Frame, b []byte, psn uint32) {
	if f.Op.Info().Ext&hdr.HasAETH == 0 || fl.oldest == none || psnLess(psn, r.ops[fl.oldest].spsn) || !fl.down.learn(b, f) || fl.down.shape != fl.up.shape {
		return
	}
	// k is the number of messages that are completed as of psn. All are of fl's own client. The MSN counts
	// from before the first one on record.
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

// count finds out by answer b, with headers f and PSN psn, whether the server executes the requests of flow fl. A
// server acknowledges a duplicate without a check of its R_Key, rights or payload (IBTA 9.7.5.1.2), and anybody may
// begin a connection with duplicates. So answers show no right and no word's value until the MSN has risen from one
// answer to another by the number of messages between both. Operations whose requests were repeated while they were
// open do not count (recounts), because the answer to a duplicate may have a later MSN.
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

// Flags in flow.msn: an MSN is on record (knownMSN), and it is the newest that the server has sent (newestMSN).
const (
	knownMSN  = 1 << 31
	newestMSN = 1 << 29
)

// passive records what answer x on connection c, with the bytes b and PSN psn, acknowledges, and passes x unchanged,
// because both ends of c still count alike.
func (s *carrierSide) passive(c *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	f := &s.f
	before := psnAdd(psn, hdr.PSNMask)
	if f.Op == hdr.Acknowledge {
		if syn := f.AETHOf(b).Syndrome(); syn.NAK() && syn != hdr.SynNAKSequence {
			n.unfollow(c) // its queue pairs are in the error state, whichever request was refused
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

// acked notes that the server has executed all requests on connection c up to PSN psn, and completes their operations.
func (s *carrierSide) acked(c *flow, psn uint32) {
	c.ack(psn)
	s.advance(c)
	if c.repair {
		s.pump(c)
	}
}

// suspects reports whether o, the oldest operation of c, is to be sent again because an earlier one was sent again:
// o was sent before that repetition, and since the earlier one was answered no answer came for the time-out of c. A
// server that only paused answers the operations one by one.
func (s *carrierSide) suspects(c *flow, o *op) bool {
	if c.suspect == 0 || o.spsn == c.nudged {
		return false
	}
	if !psnLess(o.spsn, c.suspect) || o.got != 0 || s.n.handedOver(c) && c.writes == 0 {
		c.suspect = 0
	}
	return c.suspect != 0 && s.c.Now().Sub(c.heard) >= c.timeout(s.cfg.giveup)
}

// partly notes that a client is to be told which packets of its WRITE or SEND, the oldest operation of connection c,
// the server has acknowledged. The client may wait for that before it sends more packets (rxe: after 128).
func (s *wire) partly(c *flow) {
	o := s.n.oldest(c)
	if o != nil && (o.kind == kWrite || o.kind == kSend) && !o.is(fOrphan) && !psnLess(c.acked, o.spsn) {
		f := s.n.flowOf(o)
		f.tellPart = true
		s.n.due(f)
	}
}

// advance completes the operations of connection c that the server has acknowledged, in order.
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
		if s.n.isVoid(o) { // a WRITE of no bytes may have gone in its place
			c.executes(o)
			n.unlink(o)
			o.state = sDone
			n.forget(o, false)
			continue
		}
		if o.answered() {
			// The server answered it, and the answer was lost. Its client will ask again after its timeout;
			// other clients need not wait that long.
			if c.guests > 0 && c.trusted {
				s.nudgeLost(c)
			}
			return
		}
		s.complete(o)
	}
}

// complete notes that operation o, the oldest of its connection, is answered.
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

// reread sends the client of flow fl the acknowledgement that waited until no READ of fl is done again.
//
//go:noinline
func reread(s *carrierSide, fl *flow) {
	if fl.owes && fl.rereads == 0 {
		fl.owes = false
		s.answer(fl, hdr.Acknowledge, s.n.op(fl, fl.head-1).last(), fl.syn, 0)
	}
}

// atomicAck handles the answer, with PSN psn, to an atomic that connection c carried as an atomic; original is the
// word's old value.
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

// inTime completes the oldest operation of connection c, whose answer has PSN psn, and the answered ones behind it.
func (s *carrierSide) inTime(c *flow, psn uint32) {
	c.ack(psn)
	s.complete(s.n.oldest(c))
	s.advance(c)
}

// readResponse handles frame, with the bytes b and PSN psn, a packet of the answer to a READ, or the answer to an
// ATOMIC WRITE or FLUSH, on connection c. It returns true if it disposed of frame.
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
		return false // a duplicate, or an earlier one was lost: the client will ask again
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
		// There is no room: the packet will be asked for again.
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

// early holds the answer to READ o of connection c, a single packet, while an earlier answer is missing. It returns
// false if o is no such READ or there is no room.
func (s *carrierSide) early(c *flow, o *op, psn uint32, frame *packet.Buf) bool {
	if o.kind != kRead || o.npsn != 1 || o.spsn != psn || o.is(fEarly|fAgain|fOrphan) || !s.n.shelf.keep(o, frame) {
		return false
	}
	o.got = 1
	o.flags |= fEarly
	s.nudgeLost(c)
	return true
}
