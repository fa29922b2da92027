package swordbox

import (
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// due notes that the client of flow f may be due answers: settle calls deliver for f.
func (n *order) due(f *flow) {
	if !f.isReady {
		f.isReady = true
		k := len(n.ready)
		n.ready = n.ready[:k+1] // its capacity is the number of flows
		n.ready[k] = f
	}
	if f.waits {
		n.waits.call(n.index(f))
	}
}

// deliver sends the client of flow fl the answers that are due, in the order of the client's requests.
func (s *clientSide) deliver(fl *flow) {
	n := s.n
	if !fl.synced || fl.gone {
		return
	}
	if !fl.trusted { // the server's own answers have passed
		for fl.head != fl.tail {
			if o := n.op(fl, fl.head); o.state != sDone {
				return
			}
			fl.head++
		}
		return
	}
	ackPSN, ack := uint32(0), false // answers that one acknowledgement can give together
	wanted := false
	flush := func() bool {
		if ack && wanted && !s.answer(fl, hdr.Acknowledge, ackPSN, fl.syn, 0) {
			return false
		}
		ack, wanted = false, false
		return true
	}
	ring := n.index(fl) << (n.shift & 31)
	for fl.head != fl.tail {
		o := &n.ops[ring+int32(fl.head&(fl.span-1))]
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
			s.relayHeld(fl, o, o.got) // part of its answer came before its turn
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

// relayHeld sends the client of flow fl the held packets of the answer to READ o. end is the number of packets of the
// answer that have come; the held ones are the last of these.
func (s *clientSide) relayHeld(fl *flow, o *op, end uint32) {
	n, q, k := s.n, o.held(), end
	for at := q.First(); at != 0; at = n.shelf.Next(at) {
		k--
	}
	for ; o.holds(); k++ {
		x := n.shelf.take(fl, o)
		if x == nil {
			continue
		}
		b := x.Bytes()
		if hdr.Parse(b, &s.g) != hdr.IsRoCE {
			s.c.Drop(x, reasonAbsorbed)
			continue
		}
		s.relay(fl, o, n.carrier(o) == fl, x, b, &s.g, k)
	}
}

// dismiss drops the requests of flow f that wait, with reason why.
func (n *order) dismiss(f *flow, why graph.Reason) {
	n.shelf.Drop(n.c, &f.stall, n.worker, why)
	n.shelf.Drop(n.c, &f.late, n.worker, why)
	n.shelf.Drop(n.c, &f.early, n.worker, why)
	n.shelf.tally(f)
	n.waits.leave(f)
	f.claimed = false
}

// end marks flow fl as gone and drops its waiting requests, after its client was sent a NAK that puts the client's
// queue pair into the error state.
func (s *clientSide) end(fl *flow) {
	fl.gone, fl.ended = true, s.n.una(fl)
	s.n.dismiss(fl, reasonReset)
	s.c.Count(ctrResets, 1)
}

// refuse sends the client of flow fl the NAK that ended its connection again. The NAK has the PSN of the failed
// request, because it says that all requests before this PSN were executed.
func (s *clientSide) refuse(fl *flow) {
	syn := fl.verdict
	if syn == 0 {
		syn = hdr.SynNAKRemoteOperation
	}
	s.answer(fl, hdr.Acknowledge, fl.ended, syn, 0)
}

// acknowledge sends the newest acknowledgement of flow fl again. While a READ is done again, the acknowledgement waits
// (owes), because it would tell the client that the READ's answer was lost.
func (s *clientSide) acknowledge(fl *flow) {
	if fl.head == fl.first {
		return
	}
	if fl.rereads > 0 {
		fl.owes = true
		return
	}
	o := s.n.op(fl, fl.head-1)
	s.answer(fl, hdr.Acknowledge, o.last(), fl.syn, 0)
}

// answerAgain sends the client of flow fl the answer to its answered operation number k again. It sends nothing for
// a READ, which is done again separately, or behind one; and nothing if k is not on record or not answered.
func (s *clientSide) answerAgain(fl *flow, k uint32) {
	if int32(k-fl.head) >= 0 || int32(k-fl.first) < 0 {
		return
	}
	switch o := s.n.op(fl, k); {
	case o.kind == kRead || s.n.rereadsBefore(fl, k):
		fl.owes = fl.rereads > 0
	case o.kind == kOdd:
		s.answer(fl, hdr.ReadRespOnly, o.cpsn, fl.syn, 0)
	case o.kind.atomic():
		s.answer(fl, hdr.AtomicAck, o.cpsn, fl.syn, o.prior)
	default:
		s.acknowledge(fl)
	}
}

// longAgo handles duplicate b, with PSN psn, of a request of flow fl whose operation has left the record, as a
// responder does (IBTA 9.7.5.1.2). A WRITE or SEND that asks for an answer is acknowledged. An atomic is answered if
// it is among the last 16 (past). All other duplicates get no answer, because their client cannot be waiting for
// one.
func (s *clientSide) longAgo(fl *flow, b []byte, psn uint32) {
	info := s.f.Op.Info().Flags
	switch {
	case info&hdr.IsAtomic != 0:
		for k := range uint32(len(fl.past)) { // the newest first, because PSNs repeat after 2^24
			if p := &fl.past[(fl.pastAt-1-k)&15]; p.whole() && p.psn == psn && p.va == be.Uint64(b[s.f.BTH+hdr.BTHLen:]) {
				s.answer(fl, hdr.AtomicAck, psn, fl.syn, p.prior)
				return
			}
		}
	case info&hdr.IsRead != 0 || !s.f.BTHOf(b).AckReq():
	case !s.n.doubtful(fl):
		s.acknowledge(fl)
	case !fl.doubted || int32(fl.head-fl.again) < 0:
		fl.again, fl.doubted = fl.head, true
	}
}

// doubtful reports whether the server must confirm that its end still belongs to flow fl before a duplicate is
// answered: a new connection with the same queue pair numbers would not have been announced.
func (n *order) doubtful(fl *flow) bool {
	return fl.trusted && n.row(fl).Learnt != conn.Managed
}
