package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
)

// repeat handles duplicate x, with the bytes b and PSN psn, of a request of flow fl.
func (s *clientSide) repeat(fl *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	n.waits.hear(fl)
	if !psnLess(psn, fl.admitted) {
		s.c.Drop(x, reasonRepeat) // the original waits here
		return
	}
	o, k := n.find(fl, psn)
	other := o != nil && !n.same(o, &s.f, b, uint32(hdr.PSNDiff(psn, o.cpsn)), fl.mtu)
	if (o == nil || o.state != sOpen) && n.doubtful(fl) { // it may be a new request, of another connection
		again := clock.Duration(0) // ask the server as often as the client repeats
		if fl.disputed = fl.disputed || !fl.bound && (o == nil || other); other {
			again = leastPatience
			if !fl.doubted {
				fl.again, fl.doubted = fl.head+1, true // so that this duplicate is not answered
			}
		}
		s.question(fl, again)
	} else if (o == nil || o.state != sOpen) && fl.strayed(b) {
		s.question(fl, leastPatience)
	}
	if o == nil {
		s.longAgo(fl, b, psn)
		s.c.Drop(x, reasonOldPSN)
		return
	}
	off := uint32(hdr.PSNDiff(psn, o.cpsn))
	if other {
		s.c.Drop(x, reasonBadRepeat)
		return
	}
	released := int32(k-fl.head) < 0
	switch {
	case o.state == sOpen:
		s.resend(fl, o, x, off)
	case released && o.kind == kRead || o.state == sUnsent:
		s.late(fl, o, k, x, b)
	case released && n.doubtful(fl):
		if !fl.doubted || int32(k-fl.again) < 0 {
			fl.again, fl.doubted = k, true
		}
		s.c.Drop(x, reasonRepeat)
	case released:
		if o.kind.atomic() || o.kind == kOdd || s.f.BTHOf(b).AckReq() {
			s.answerAgain(fl, k)
		}
		s.c.Drop(x, reasonAnswered)
	default: // it is answered in its turn
		n.due(fl)
		s.c.Drop(x, reasonRepeat)
	}
}

// late handles duplicate x, with the bytes b, of o, operation number k of flow fl, which is to be executed again. The
// duplicate is sent on, or waits in flow.late in front of new requests. Only one duplicate waits at a time; the client
// sends the other ones when a NAK tells it that they are missing.
func (s *clientSide) late(fl *flow, o *op, k uint32, x *packet.Buf, b []byte) {
	n, psn := s.n, s.f.BTHOf(b).PSN()
	switch {
	case !fl.late.Empty():
		s.c.Drop(x, reasonRepeat)
		return
	case o.state == sUnsent && n.unsentBefore(fl, k):
		n.prompt(o, 0, hdr.SynNAKSequence)
		s.c.Drop(x, reasonEarly)
		return
	case replays(s, fl, o, k):
		s.c.Mark(x, packet.Forwarded, reasonRepeated)
		s.send(fl, fl, o, x, b, &s.f, uint32(hdr.PSNDiff(psn, o.cpsn)))
		return
	case s.retry(fl, x, b, &s.f):
		if fl.gone {
			s.c.Drop(x, reasonReset)
		}
		return
	case o.state == sUnsent && o.kind != kRead && s.f.BTHOf(b).PSN() != o.cpsn || !s.keepLate(fl, x):
		if o.state == sUnsent {
			n.prompt(o, 0, hdr.SynNAKSequence)
		}
		s.c.Drop(x, reasonEarly)
		if !fl.waits {
			n.waits.uncount(fl)
		}
	}
}

// mostReplays is how often in a row a READ is sent under its old PSN without an answer before it is sent as a new
// request.
const mostReplays = 3

// replays reports whether a duplicate of o, operation number k of flow fl, goes to the server as a duplicate. o must
// be a READ that was answered over fl, while a new request would have to wait for the journal, or for operations that fl
// carries (for example a SEND without a receive buffer). fl must carry no operations of other clients, because the server may
// refuse the duplicate. READs and atomics of other clients take the responder resources by which the server
// remembers the READ (flow.unshared). o.got counts the tries, from o.npsn on.
func replays(s *clientSide, fl *flow, o *op, k uint32) bool {
	n := s.n
	if o.state != sDone || o.lane != n.index(fl) || o.is(fAgain) || fl.guests != 0 || fl.tail-k > uint32(fl.unshared) || fl.cur != none || fl.unable() || (fl.next-o.spsn)&hdr.PSNMask > mostUnacked {
		return false
	}
	unnamed := !fl.bound && !n.ledger.journaled(fl)
	switch {
	case fl.oldest == none && !unnamed:
		return false
	case unnamed && o.got >= o.npsn+mostReplays:
		o.got = o.npsn
	case o.got < o.npsn || o.got >= o.npsn+mostReplays:
		o.got = o.npsn
		return false
	}
	o.got++
	fl.replayed = uint16(k&(fl.span-1)) + 1
	return true
}

// replaying reports whether the server has yet to answer a READ that it was asked to answer again on c (c.replayed).
func (r *record) replaying(c *flow) bool {
	for k := c.head; k != c.first && c.head-k < mostAhead; k-- {
		if o := r.op(c, k-1); o.kind == kRead && o.state == sDone && o.lane == r.index(c) && !o.is(fAgain|fOrphan) && o.got > o.npsn {
			return true
		}
	}
	c.replayed = 0 // none is left: need not look again
	return false
}

// replay returns the READ that the server was asked to answer again on fl, if an answer with PSN psn belongs to it,
// or nil.
func (n *order) replay(fl *flow, psn uint32) *op {
	if fl.replayed == 0 || fl.oldest != none && !psnLess(psn, n.ops[fl.oldest].spsn) {
		return nil
	}
	is := func(o *op) bool {
		return o.kind == kRead && o.state == sDone && o.lane == n.index(fl) && !o.is(fAgain|fOrphan) && (psn-o.spsn)&hdr.PSNMask < o.npsn
	}
	if o := n.op(fl, uint32(fl.replayed)-1); is(o) {
		return o
	}
	for k := fl.head; k != fl.first && fl.head-k < mostAhead; k-- {
		if o := n.op(fl, k-1); o.got > o.npsn && is(o) {
			fl.replayed = uint16((k-1)&(fl.span-1)) + 1
			return o
		}
	}
	return nil
}

// rereadsBefore reports whether a READ in front of operation number k of flow fl is done again. The answer to k
// would then tell the client that the READ's answer was lost.
func (n *order) rereadsBefore(fl *flow, k uint32) bool {
	for j := fl.first; fl.rereads > 0 && j != k; j++ {
		if n.op(fl, j).is(fAgain) {
			return true
		}
	}
	return false
}

// keepLate holds x, a duplicate of a request of flow fl, in the empty queue flow.late. It returns false if there is
// no room.
func (s *clientSide) keepLate(fl *flow, x *packet.Buf) bool {
	n := s.n
	if !n.shelf.clientMayHold(fl) || n.shelf.Put(&fl.late, x, n.worker, struct{}{}) == 0 {
		return false
	}
	n.waits.wait(fl)
	n.shelf.tally(fl)
	return true
}

// retry sends duplicate x, with the bytes b and headers f, of an operation that is to be executed again. It returns
// false if x must wait. If no connection can ever carry the operation, retry sends the client a NAK, marks fl as
// gone and returns true, and x remains the caller's.
func (s *clientSide) retry(fl *flow, x *packet.Buf, b []byte, f *hdr.Frame) bool {
	n := s.n
	n.waits.why = queue{}
	psn := f.BTHOf(b).PSN()
	o, k := n.find(fl, psn)
	released := int32(k-fl.head) < 0
	if o != nil && o.state == sOpen && o.word == lapsed {
		if n.roams(o) {
			return false
		}
		s.send(fl, n.carrier(o), o, x, b, f, uint32(hdr.PSNDiff(psn, o.cpsn)))
		return true
	}
	if o == nil || o.state == sOpen || o.state == sFailed || o.state == sDone && !(released && o.kind == kRead) {
		s.c.Drop(x, reasonRepeat) // it was executed or failed meanwhile
		return true
	}
	off := uint32(hdr.PSNDiff(psn, o.cpsn))
	again := o.state == sDone
	switch {
	case s.reenter(fl, o, x, b, f, off):
	case !again && fl.open == 0 && n.stuck(fl, o, n.nicOf(fl).keys.movable(fl, o)):
		s.end(fl)
		s.refuse(fl)
		return true
	default:
		return false
	}
	if again {
		o.flags |= fAgain
		fl.rereads++
	} else if o.npsn > 1 && o.kind != kRead && f != &s.f {
		n.prompt(o, 1, hdr.SynNAKSequence) // its other packets were not held
	}
	return true
}

// reenter sends o, an operation on record that is not open, as a new request: duplicate x with the bytes b
// and headers f, which begins with packet off of o. It returns false if o must wait.
func (s *clientSide) reenter(fl *flow, o *op, x *packet.Buf, b []byte, f *hdr.Frame, off uint32) bool {
	n := s.n
	if cur := n.get(fl.cur); cur != nil && cur != o && cur.state == sOpen {
		return false // within a message the server accepts no other request
	}
	if o.kind == kRead {
		o.got = off
	} else if off != 0 {
		return false
	}
	n.shelf.unkeep(o)
	o.flags &= fAckReq | fBare | fOwn
	o.word = none
	if o.kind.atomic() { // classified anew, with the operands that the client sent
		o.flags &^= fReleased
		n.classifyAtomic(o, b, f)
	} else if o.kind == kWrite && o.npsn == 1 && o.len == 8 {
		o.out = le.Uint64(f.PayloadOf(b)) // its client may have changed the memory
	}
	key := n.nicOf(fl).keys.movable(fl, o)
	if key != nil {
		o.flags |= fRight
	}
	w := n.words.of(o)
	c, ok := s.choose(fl, o, key, w)
	whole := o.npsn == 1 || o.kind == kRead
	if ok && !whole {
		c, ok = fl, s.usable(fl, fl, o, key) && fl.open == 0
	}
	if ok && c == fl && !fl.bound && psnAdd(c.next, -o.got&hdr.PSNMask) != o.cpsn && !n.ledger.journaled(fl) {
		return false // its ends would come to count differently
	}
	if !ok {
		return false
	}
	var copied *packet.Buf
	if !o.makeable() {
		if c == fl {
			o.flags |= fUnkept
		} else if n.shelf.clientMayHold(fl) {
			copied = n.shelf.copyOf(x)
		}
		if c != fl && copied == nil {
			return false
		}
	}
	if !n.enter(fl, o, c, key, w) {
		if copied != nil {
			s.c.Discard(copied)
		}
		return false
	}
	if copied != nil {
		s.n.shelf.retain(o, copied)
	}
	if o.state == sUnsent {
		fl.unsent--
	}
	o.state = sOpen
	s.send(fl, n.carrier(o), o, x, x.Bytes(), f, off) // the other packets of the message follow
	return true
}

// resend handles duplicate x of the open operation o of flow fl, from packet off on.
func (s *clientSide) resend(fl *flow, o *op, x *packet.Buf, off uint32) {
	n := s.n
	c := n.carrier(o)
	if c.inDoubt {
		s.c.Drop(x, reasonRepeat) // the server is first asked what it executed
		return
	}
	s.c.Mark(x, packet.Forwarded, reasonRepeated)
	if o.word == lapsed && o.modifies() && n.roams(o) {
		if n.waits.why = (queue{}); !fl.late.Empty() || !s.keepLate(fl, x) {
			s.c.Drop(x, reasonEarly)
		}
		return
	}
	if c == fl && n.handedOver(c) || !o.makeable() {
		if o.kind == kRead && off < o.got {
			o.got = off
			o.flags &^= fEarly
			n.shelf.unkeep(o)
		}
		if !s.restores(o, x, off) {
			s.send(fl, c, o, x, x.Bytes(), &s.f, off)
		}
		if c.catchesUp(o, off) {
			n.waits.call(n.index(c))
		}
		return
	}
	s.carriers.nudge(c)
	s.c.Drop(x, reasonRepeat)
}

// restores handles duplicate x of packet off of o, if o writes a whole word and its client has changed the
// payload since. It sends x with the original payload, because the outcome of later operations was computed
// from this. It returns false if the payload has not changed.
func (s *wire) restores(o *op, x *packet.Buf, off uint32) bool {
	b := x.Bytes()
	if o.kind != kWrite || o.len != 8 || o.npsn != 1 || o.word == lapsed {
		return false
	}
	p := s.f.PayloadOf(b)
	if le.Uint64(p) == o.out {
		return false
	}
	le.PutUint64(p, o.out)
	noUDPSum(b, &s.f)
	s.f.BTHOf(b).SetPSN(psnAdd(o.spsn, off))
	s.seal(toServers, x, b, &s.f)
	return true
}

// prompt notes that the client of o is to be sent, when o's turn comes, the NAK syn for packet ask of o.
func (n *order) prompt(o *op, ask uint32, syn hdr.Syndrome) {
	if o.is(fOrphan) {
		return
	}
	n.beside(o).setNAK(syn, ask)
	o.flags |= fPrompt
	n.due(n.flowOf(o))
}

// missing handles a NAK (PSN sequence error): the server expects PSN psn on connection c.
func (s *carrierSide) missing(c *flow, psn uint32) {
	n := s.n
	o := n.oldest(c)
	if o == nil {
		return
	}
	if n.handedOver(c) && c.writes == 0 {
		ask := uint32(0)
		if d := hdr.PSNDiff(psn, o.spsn); d >= 0 && d < int32(o.npsn) {
			ask = uint32(d)
		}
		n.prompt(o, ask, hdr.SynNAKSequence)
		return
	}
	s.again(c, psn, c.next)
}

// mostMisses is the number of times in a row that a request is sent again in vain, while the server answers
// on its connection, until the box gives it up. A client tries no more often (retry_cnt is at most 7).
const mostMisses = 8

// abandon gives up o, the oldest request that connection c carries. A device on the path to the server does
// not forward the request as its client made it, and other clients' operations wait behind it. The client is
// sent an error, which it would also have got after its own retries. A WRITE of no bytes takes the request's
// PSN (isVoid). If the queue pair has no right to write, or the request takes several PSNs, c fails.
func (s *carrierSide) abandon(c *flow, o *op) {
	fl := s.n.flowOf(o)
	s.clients.end(fl)
	s.clients.refuse(fl)
	if !s.n.isVoid(o) || c.may>>aWrite&1 == 0 {
		s.fail(c)
		return
	}
	s.again(c, o.spsn, c.next)
}

// notReady handles an RNR NAK: the server has no receive buffer for the request with PSN psn. The request's
// client must wait. No other client's operation is behind the request (see usable).
func (s *carrierSide) notReady(c *flow, psn uint32, syn hdr.Syndrome) {
	o := s.n.oldest(c)
	if o == nil {
		return
	}
	if d := hdr.PSNDiff(psn, o.spsn); d >= 0 && d < int32(o.npsn) {
		c.lags, c.notReady = true, psn
		s.n.prompt(o, uint32(d), syn)
	}
}

// nudge sends the oldest request of connection c again, because its answer is late: the request, its answer,
// or the server's acknowledgement may be lost. The requests behind it are sent again only if they still have
// no answer after this one was answered (suspects).
func (s *carrierSide) nudge(c *flow) {
	n := s.n
	o := n.oldest(c)
	if o == nil || c.repair || c.inDoubt {
		return
	}
	now, at := s.c.Now(), psnAdd(o.spsn, o.got)
	if c.nudged == at && now.Sub(max(c.since, c.heard)) < c.timeout(s.cfg.giveup) || now.Sub(c.loaded) < c.trip {
		return
	}
	c.nudged, c.suspect = at, c.next
	s.again(c, at, psnAdd(o.spsn, o.npsn))
}

// nudgeLost sends the oldest request of connection c again: its answer is lost, because the server has
// answered later requests.
func (s *carrierSide) nudgeLost(c *flow) {
	o := s.n.oldest(c)
	at, now := psnAdd(o.spsn, o.got), s.c.Now()
	if c.repair || c.inDoubt || c.nudged == at && now.Sub(c.since) < max(2*c.trip, 10e3) {
		return
	}
	c.nudged, c.suspect = at, 0
	s.again(c, at, psnAdd(o.spsn, o.npsn))
}

// again sends the requests of connection c with PSNs in [psn, goal) again.
func (s *carrierSide) again(c *flow, psn, goal uint32) {
	if c.inDoubt {
		return
	}
	if psn != c.missed {
		c.missed, c.misses = psn, 0
	} else if c.heard >= c.since {
		c.misses++
	}
	if o := s.n.oldest(c); o != nil && c.misses >= mostMisses && (o.is(fKept) || !o.makeable()) && !o.is(fOrphan) && !s.n.flowOf(o).gone {
		c.misses = 0
		s.abandon(c, o)
		return
	}
	c.repair, c.expect, c.goal = true, psn, goal
	s.readdress(c)
	c.tried(s.c.Now())
	s.c.Count(ctrRepairs, 1)
	s.pump(c)
}

// burst is the number of requests that are sent again at once. Each answer makes room for more.
const burst = 32

// pump sends the requests of connection c again that have PSNs in [c.expect, c.goal), in their order, at most
// burst of them.
func (s *carrierSide) pump(c *flow) {
	n := s.n
	o := n.oldest(c)
	if o != nil && psnLess(c.expect, o.spsn) {
		c.expect = psnAdd(o.spsn, o.got) // what was before it is answered
	}
	for sent := 0; o != nil && psnLess(c.expect, c.goal); o = n.behind(o) {
		end := psnAdd(o.spsn, o.npsn)
		if !psnLess(c.expect, end) {
			continue
		}
		if o.executed(&c.carrier) {
			c.expect = end
			continue
		}
		if !o.makeable() && !(n.isVoid(o) && c.may>>aWrite&1 != 0) {
			// The operations behind it are all of the connection's own client: see usable.
			n.prompt(o, uint32(max(0, hdr.PSNDiff(c.expect, o.spsn))), hdr.SynNAKSequence)
			break
		}
		for psnLess(c.expect, end) {
			if sent == burst {
				return
			}
			if !s.make(c, o, uint32(hdr.PSNDiff(c.expect, o.spsn))) {
				return // there is no buffer
			}
			sent++
			s.c.Count(ctrResent, 1)
			if c.expect = psnAdd(c.expect, 1); o.kind == kRead {
				c.expect = end
			}
		}
	}
	c.repair = false
}

// make sends packet off of o, which connection c carries, again, made from the record. It returns false if
// there is no buffer.
func (s *carrierSide) make(c *flow, o *op, off uint32) bool {
	n := s.n
	h := &c.up
	k := o.kind
	if n.isVoid(o) && c.may>>aWrite&1 != 0 {
		return s.emptyWrite(&c.up, o.spsn)
	}
	if o.is(fKept) {
		return s.makeKept(o, off)
	}
	size := h.len() + hdr.RETHLen + hdr.ICRCLen
	switch {
	case o.is(fReplaced) || k == kWrite && o.len == 8:
		size += 8
	case k == kMaskedCAS || k == kOtherAtomic:
		size += hdr.MaskedAtomicETHLen - hdr.RETHLen
	case k.atomic():
		size += hdr.AtomicETHLen - hdr.RETHLen
	}
	x := s.blank(size)
	if x == nil {
		return false
	}
	b := x.Bytes()
	psn := psnAdd(o.spsn, off)
	var made hdr.Frame
	switch {
	case k.atomic() && !o.is(fReplaced):
		h.atomic(&made, b, o, n.beside(o), psn)
	case k == kRead:
		h.write(&made, b, o, psn)
		made.Op = hdr.ReadRequest
		t := hdr.BTH(b[h.bth:])
		t[0] = byte(made.Op)
		r := hdr.RETH(b[h.len():])
		r.SetVA(o.va + uint64(off)*uint64(c.mtu))
		r.SetDMALength(o.len - off*c.mtu)
	default:
		h.write(&made, b, o, psn)
	}
	s.seal(toServers, x, b, &made)
	return true
}

// isVoid reports whether o need not and must not be executed any more: its client is gone, and may have
// written to the same memory over another connection since. If o did reach the server, the server executes it
// once, whatever other request comes with the same PSN (IBTA 9.7.5.1.2). Operations in order with a word's
// other operations are not void, because they are executed before all later ones. Neither are messages of
// several packets, of which the server may have executed a part.
func (r *record) isVoid(o *op) bool {
	return o.modifies() && o.npsn == 1 && (o.word == none || o.is(fLoose)) && !o.is(fReplaced) && (o.is(fOrphan) || r.flowOf(o).gone)
}

// makeKept sends packet off of o again, which is held as its client sent it. It returns false if there is no
// buffer.
func (s *carrierSide) makeKept(o *op, off uint32) bool {
	n := s.n
	q := o.held()
	at := q.First()
	for ; off > 0; off-- {
		at = n.shelf.Next(at)
	}
	x := hold.Copy(s.c, n.shelf.Frame(at))
	if x == nil {
		return false
	}
	if hdr.Parse(x.Bytes(), &s.h) != hdr.IsRoCE {
		s.c.Discard(x)
		return false
	}
	s.c.Mark(x, packet.Generated, reasonMade)
	c, psn := n.carrier(o), s.h.BTHOf(x.Bytes()).PSN()
	c.up.address(x.Bytes()) // with the addresses of requests that reached the server
	hdr.SetICRC(x.Bytes(), &s.h)
	s.send(n.flowOf(o), c, o, x, x.Bytes(), &s.h, uint32(hdr.PSNDiff(psn, o.cpsn)))
	return true
}
