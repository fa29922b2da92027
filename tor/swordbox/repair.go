package swordbox

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
	"github.com/quillon/quillon/tor/hold"
)

// repeat handles a request of flow fl that was there before.
func (s *wire) repeat(fl *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	if !psnLess(psn, fl.admitted) {
		s.c.Drop(x, reasonRepeat) // it waits here
		return
	}
	o, k := n.find(fl, psn)
	if o == nil {
		s.longAgo(fl, b, psn)
		s.c.Drop(x, reasonOldPSN)
		return
	}
	off := uint32(hdr.PSNDiff(psn, o.cpsn))
	if !o.same(&s.f, b, off, fl.mtu) {
		s.c.Drop(x, reasonBadRepeat)
		return
	}
	released := int32(k-fl.head) < 0
	switch {
	case o.state == sOpen:
		s.resend(fl, o, x, off)
	case released && o.kind == kRead:
		if o.got = off; !s.reenter(fl, o, x, b, off) {
			s.c.Drop(x, reasonRepeat)
			return
		}
		o.flags |= fAgain
		fl.rereads++
	case released && n.doubtful(fl):
		fl.again, fl.doubted = k, true
		s.query(fl)
		s.c.Drop(x, reasonRepeat)
	case released:
		if o.kind.atomic() || o.kind == kOdd || s.f.BTHOf(b).AckReq() {
			s.answerAgain(fl, k)
		}
		s.c.Drop(x, reasonAnswered)
	case o.state == sUnsent:
		switch {
		case !n.unsentBefore(fl, k) && s.reenter(fl, o, x, b, off):
		case fl.open == 0 && n.stuck(fl, o, n.keys.movable(fl, o)):
			n.end(fl)
			s.refuse(fl)
			s.c.Drop(x, reasonReset)
		default:
			n.prompt(o, 0, hdr.SynNAKSequence)
			s.c.Drop(x, reasonEarly)
		}
	default: // answered in its turn
		n.due(fl)
		s.c.Drop(x, reasonRepeat)
	}
}

// doubtful reports whether the server is to confirm first that its end of flow fl
// counts as before: when it was quiet, and a new connection with the same numbers
// of queue pairs would not have been announced.
func (n *node) doubtful(fl *flow) bool {
	return fl.trusted && fl.oldest == none && n.c.Now().Sub(fl.heard) >= n.cfg.alive && n.row(fl).Learnt == conn.Inferred
}

// answerAgain gives the client of flow fl the answer to its operation number k,
// which was released, once more.
func (s *wire) answerAgain(fl *flow, k uint32) {
	if int32(k-fl.head) >= 0 || int32(k-fl.first) < 0 {
		return
	}
	switch o := s.n.op(fl, k); {
	case fl.rereads > 0 || o.kind == kRead:
		fl.owes = fl.rereads > 0
	case o.kind == kOdd:
		s.answer(fl, hdr.ReadRespOnly, o.cpsn, fl.syn, 0)
	case o.kind.atomic():
		s.answer(fl, hdr.AtomicAck, o.cpsn, fl.syn, o.prior)
	default:
		s.acknowledge(fl)
	}
}

// longAgo handles a repetition of a request of flow fl that is not on record any
// more, as a responder does (IBTA 9.7.5.1.2): what was written is acknowledged;
// of atomics the answers to the last ones are known, and others are left without
// an answer, since their client cannot be waiting for one.
func (s *wire) longAgo(fl *flow, b []byte, psn uint32) {
	info := s.f.Op.Info().Flags
	switch {
	case info&hdr.IsAtomic != 0:
		for k := range fl.past {
			if p := &fl.past[k]; p.whole() && p.psn == psn && p.va == be.Uint64(b[s.f.BTH+hdr.BTHLen:]) {
				s.answer(fl, hdr.AtomicAck, psn, fl.syn, p.prior)
				return
			}
		}
	case info&hdr.IsRead == 0 && s.f.BTHOf(b).AckReq() && !s.n.doubtful(fl):
		s.acknowledge(fl)
	}
}

// past is the answer to an atomic whose record was needed for another operation.
type past struct {
	va, prior uint64
	psn       uint32
	sum       uint32 // of the others, and not 0: a process may end while it writes them
}

func (p *past) check() uint32 { return hash(p.va^p.prior<<1^uint64(p.psn)<<40) | 1 }

// whole reports whether there is an answer.
func (p *past) whole() bool { return p.sum == p.check() }

// outlive keeps the answer to o, whose record is needed, when it is an atomic: a
// responder remembers as many as its client may have under way (16: what Linux
// and most devices offer at most), however many other operations came since.
func (f *flow) outlive(o *op) {
	if o.kind.atomic() && o.state == sDone && !o.is(fOrphan) {
		p := past{va: o.va, prior: o.prior, psn: o.cpsn}
		p.sum = p.check()
		f.past[f.pastAt&15] = p
		f.pastAt++
	}
}

// acknowledge repeats the newest acknowledgement of flow fl. While a READ is done
// again it waits: it would tell the client that the READ's answer was lost.
func (s *wire) acknowledge(fl *flow) {
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

// reenter sends an operation that is on record, and not open, as a new one;
// false when it must wait.
func (s *wire) reenter(fl *flow, o *op, x *packet.Buf, b []byte, off uint32) bool {
	n := s.n
	if o.kind == kRead {
		o.got = off
	} else if off != 0 {
		return false
	}
	n.unkeep(o)
	o.flags &= fAckReq | fBare | fOwn
	o.word = none
	if o.kind.atomic() { // operands as they came
		n.classifyAtomic(o, b, &s.f)
	}
	key := n.keys.movable(fl, o)
	if key != nil {
		o.flags |= fRight
	}
	l, ok := s.choose(fl, o, key)
	whole := o.npsn == 1 || o.kind == kRead
	if ok && !whole {
		l, ok = fl, s.usable(fl, fl, o, key) && fl.open == 0
	}
	if !ok {
		return false
	}
	var copied *packet.Buf
	if !o.makeable() {
		if l == fl {
			o.flags |= fUnkept
		} else if copied = n.copyOf(x); copied == nil {
			return false
		}
	}
	if !n.enter(fl, o, l, key) {
		if copied != nil {
			s.c.Discard(copied)
		}
		return false
	}
	if copied != nil {
		s.n.retain(o, copied)
	}
	if o.state == sUnsent {
		fl.unsent--
	}
	o.state = sOpen
	if whole {
		s.send(fl, o, x, x.Bytes(), &s.f, off)
		return true
	}
	s.send(fl, o, x, x.Bytes(), &s.f, off) // the others follow
	return true
}

// resend handles a repetition of an open operation of flow fl, from its packet
// off on.
func (s *wire) resend(fl *flow, o *op, x *packet.Buf, off uint32) {
	n := s.n
	c := n.carrier(o)
	if c.inDoubt {
		s.c.Drop(x, reasonRepeat) // what the server executed is asked first
		return
	}
	s.c.Mark(x, packet.Forwarded, reasonRepeated)
	if c == fl && n.handedOver(c) || !o.makeable() {
		if o.kind == kRead && off < o.got {
			o.got = off
			o.flags &^= fEarly
			n.unkeep(o)
		}
		s.send(fl, o, x, x.Bytes(), &s.f, off)
		return
	}
	s.nudge(c)
	s.c.Drop(x, reasonRepeat)
}

// makeable reports whether o can be sent again from here.
func (o *op) makeable() bool {
	switch {
	case o.is(fReplaced|fKept) || o.kind == kRead || o.kind.atomic():
		return true
	case o.kind == kWrite:
		return o.npsn == 1 && (o.len == 0 || o.len == 8) && !o.is(fOwn)
	}
	return false
}

// executed reports whether the server has said that it executed o, of
// connection c, and its answer has nothing more to tell.
func (o *op) executed(c *flow) bool {
	return o.is(fEarly) || !o.answered() && !psnLess(c.acked, psnAdd(o.spsn, o.npsn-1))
}

// prompt has the client of op o told, in its turn, the NAK syn about its packet
// ask.
func (n *node) prompt(o *op, ask uint32, syn hdr.Syndrome) {
	if o.is(fOrphan) {
		return
	}
	n.beside(o).setNAK(syn, ask)
	o.flags |= fPrompt
	n.due(n.flowOf(o))
}

// missing: the server expects PSN psn on connection c.
func (s *wire) missing(c *flow, psn uint32) {
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

// nudge sends the oldest request of connection c again, since there was no
// answer for long: it, its answer, or the server's acknowledgement may be lost.
// What is behind it follows when it was answered and they were not.
func (s *wire) nudge(c *flow) {
	n := s.n
	o := n.oldest(c)
	if o == nil || c.repair {
		return
	}
	now, at := s.c.Now(), psnAdd(o.spsn, o.got)
	if c.nudged == at && now.Sub(max(c.since, c.heard)) < c.patience(s.cfg.giveup) || now.Sub(c.loaded) < c.trip {
		return
	}
	c.nudged, c.suspect = at, c.next
	s.again(c, at, psnAdd(o.spsn, o.npsn))
}

// nudgeLost sends the oldest request of connection c again, whose answer was
// lost: later ones were acknowledged.
func (s *wire) nudgeLost(c *flow) {
	o := s.n.oldest(c)
	at, now := psnAdd(o.spsn, o.got), s.c.Now()
	if c.repair || c.nudged == at && now.Sub(c.since) < max(2*c.trip, 10e3) {
		return
	}
	c.nudged, c.suspect = at, 0
	s.again(c, at, psnAdd(o.spsn, o.npsn))
}

// leastPatience is the least of it: what is shorter than a queue that empties is
// no sign of a loss.
const leastPatience = clock.Duration(500e3)

// again sends the requests of connection c with PSNs in [psn, goal) again.
func (s *wire) again(c *flow, psn, goal uint32) {
	if c.inDoubt {
		return
	}
	c.repair, c.expect, c.goal = true, psn, goal
	c.tried(s.c.Now())
	s.c.Count(ctrRepairs, 1)
	s.pump(c)
}

// burst is how many requests are sent again at once; more follow with answers.
const burst = 32

// pump sends again what is to be sent again on connection c, in the order of
// PSNs.
func (s *wire) pump(c *flow) {
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
		if o.executed(c) {
			c.expect = end
			continue
		}
		if !o.makeable() {
			// What is behind it is of the connection's own client: see usable.
			n.prompt(o, uint32(max(0, hdr.PSNDiff(c.expect, o.spsn))), hdr.SynNAKSequence)
			break
		}
		for psnLess(c.expect, end) {
			if sent == burst {
				return
			}
			if !s.make(c, o, uint32(hdr.PSNDiff(c.expect, o.spsn))) {
				return // no buffer
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

// make sends packet off of op o, which connection c carries, from what is known
// of it here.
func (s *wire) make(c *flow, o *op, off uint32) bool {
	n := s.n
	h := &c.up
	k := o.kind
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
	switch {
	case k.atomic() && !o.is(fReplaced):
		h.atomic(b, o, n.beside(o), psn)
	case k == kRead:
		h.write(b, o, psn)
		t := hdr.BTH(b[h.bth:])
		t[0] = byte(hdr.ReadRequest)
		r := hdr.RETH(b[h.len():])
		r.SetVA(o.va + uint64(off)*uint64(c.mtu))
		r.SetDMALength(o.len - off*c.mtu)
		h.seal(b, hdr.ReadRequest)
	default:
		h.write(b, o, psn)
	}
	s.c.Emit(toServers, x)
	return true
}

// makeKept sends packet off of op o again, which is held as its client sent it.
func (s *wire) makeKept(o *op, off uint32) bool {
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
	psn := s.h.BTHOf(x.Bytes()).PSN()
	s.send(n.flowOf(o), o, x, x.Bytes(), &s.h, uint32(hdr.PSNDiff(psn, o.cpsn)))
	return true
}

// copyOf is a copy of x to hold; nil when there is no room or no buffer.
func (n *node) copyOf(x *packet.Buf) *packet.Buf {
	if !n.shelf.Room(1) {
		return nil
	}
	return hold.Copy(n.c, x)
}

// notReady: the server has no receive buffer for the request at psn. Its client
// must wait; nothing of others is behind it (see usable).
func (n *node) notReady(c *flow, psn uint32, syn hdr.Syndrome) {
	o := n.oldest(c)
	if o == nil {
		return
	}
	if d := hdr.PSNDiff(psn, o.spsn); d >= 0 && d < int32(o.npsn) {
		n.prompt(o, uint32(d), syn)
	}
}

// fatal: the server refused the request at psn; the connection is in the error
// state. Nothing behind it was executed; what is before it was, though answers
// may have been lost.
func (n *node) fatal(c *flow, psn uint32, syn hdr.Syndrome) {
	for o := n.oldest(c); o != nil; o = n.oldest(c) {
		if d := hdr.PSNDiff(psn, o.spsn); d < 0 {
			break
		} else if d < int32(o.npsn) || o.npsn == 0 {
			n.unlink(o)
			n.failed(o, syn, uint32(d))
			n.keys.refused(o, n.c.Now().Add(distrust))
			n.forget(o, false)
			break
		}
		n.lose(o, !o.answered() || o.kind == kRead)
	}
	n.c.Count(ctrFailedLanes, 1)
	n.bury(c, false)
}

// lose takes op o, the oldest of its connection, off it. harmless: it was
// executed and its answer has nothing to tell, or it can be done again.
func (n *node) lose(o *op, harmless bool) {
	n.unlink(o)
	n.unkeep(o)
	done := false
	switch {
	case o.kind == kRead:
		o.state, o.got = sUnsent, 0
		o.flags &^= fEarly
		n.prompt(o, 0, hdr.SynNAKSequence)
	case harmless:
		o.state, done = sDone, true
	default:
		n.failed(o, hdr.SynNAKRemoteOperation, 0)
	}
	n.forget(o, done)
}

// failed notes that the client of op o must see NAK syn about its packet.
func (r *record) failed(o *op, syn hdr.Syndrome, packet uint32) {
	o.state = sFailed
	r.beside(o).setNAK(syn, packet)
	if !o.is(fOrphan) {
		r.flowOf(o).failed = true
	}
}

// fail gives up connection c. What it carried may have been executed or not.
func (s *wire) fail(c *flow) {
	s.c.Count(ctrFailedLanes, 1)
	s.bequest(s.n.bury(c, true))
}

// bury ends connection c. doubt: what it carried may have been executed. Then
// READs can be done again, and so can, over another connection, what leaves a
// known value in a word: nothing but what is behind it, and comes again behind
// it, can have been executed since. It is then at the end of what heir carries, from
// PSN from on, and yet to be sent (see bequest). Other operations end their clients'
// connections.
func (n *node) bury(c *flow, doubt bool) (heir *flow, from uint32) {
	c.dead, c.repair, c.inDoubt = true, false, false
	n.keys.recall(c)
	for o := n.oldest(c); o != nil; o = n.oldest(c) {
		if doubt && !o.executed(c) && n.decided(o) {
			if heir == nil {
				if heir = n.heir(c, o); heir != nil {
					from = heir.next
				}
			}
			if heir != nil && heir == n.heir(c, o) {
				n.bequeath(o, heir)
				continue
			}
		}
		if doubt {
			n.lose(o, o.executed(c))
			continue
		}
		n.unlink(o)
		n.unkeep(o)
		o.state, o.got = sUnsent, 0
		n.prompt(o, 0, hdr.SynNAKSequence)
		n.forget(o, false)
	}
	return heir, from
}

// heir is a connection that can carry on with op o of connection l: one that is
// lent, or of those that may the one that was heard last; none if there is none.
func (n *node) heir(l *flow, o *op) *flow {
	x := n.keys.find(o.rkey)
	if x == nil {
		return nil
	}
	can := func(c *flow) bool {
		return c != l && c.trusted && !c.dead && !c.gone && !c.unsure && c.unkept == 0 && c.cur == none && !c.repair &&
			c.may>>aWrite&1 != 0 && c.may>>accessOf(o)&1 != 0 && c.granted(x)
	}
	for _, c := range x.lanes {
		if can(c) {
			return c
		}
	}
	best := (*flow)(nil)
	for k := range min(len(n.flows), mostHeirs) {
		if c := &n.flows[(int(n.index(l))+1+k)%len(n.flows)]; can(c) && (best == nil || c.heard > best.heard) {
			best = c
		}
	}
	if best != nil && n.cfg.mode.moves() {
		n.keys.lend(best, x, n.c.Now())
	}
	return best
}

// mostHeirs is how many connections are looked at to find one.
const mostHeirs = 1024

// decided reports whether open op o leaves a value in its word that was known
// when it was sent and still is: neither an operation on the word nor one of
// its client that was sent before it was lost.
func (n *node) decided(o *op) bool {
	if o.word == none || o.is(fLoose|fOwn) || !n.words.believes(&n.words.w[o.word]) || !o.is(fReplaced) && (o.kind != kWrite || o.npsn != 1) {
		return false
	}
	return o.is(fOrphan) || !n.flowOf(o).failed
}

// bequeath puts op o, the oldest of its connection, at the end of what
// connection x carries. It is yet to be sent.
func (n *node) bequeath(o *op, c *flow) {
	n.unlink(o)
	if o.is(fGuest) {
		n.carrier(o).guests--
		n.keys.guest(o, -1)
	}
	o.flags &^= fGuest
	if i := n.flowOf(o); i != c {
		o.flags |= fGuest
		c.guests++
		n.keys.guest(o, 1)
		n.diverge(c)
		if !o.is(fOrphan) {
			n.diverge(i)
		}
	}
	if !o.is(fOrphan) {
		f := n.flowOf(o)
		f.mixed = f.mixed || f.open > 1
		f.lane = n.index(c)
	}
	if o.is(fReplaced) {
		n.carrier(o).writes--
		c.writes++
	}
	o.spsn = c.next
	o.lane = n.index(c)
	n.words.w[o.word].lane = o.lane
	n.link(c, o, n.c.Now())
	c.next = psnAdd(c.next, o.npsn)
}

// remove forgets flow fl: its connection is gone.
func (s *wire) remove(fl *flow) {
	n := s.n
	if !fl.synced {
		return
	}
	for o := n.oldest(fl); o != nil; o = n.behind(o) {
		if n.flowOf(o) == fl {
			n.orphan(o)
		}
	}
	n.shelf.Drop(s.c, &fl.stall, s.n.worker, reasonReset)
	if fl.oldest != none {
		s.c.Count(ctrFailedLanes, 1)
	}
	s.bequest(n.bury(fl, true))
	for k := fl.first; k != fl.tail; k++ {
		if o := n.op(fl, k); o.state == sOpen {
			n.orphan(o) // on another connection, where what is behind it needs it
		} else {
			n.unkeep(o)
		}
	}
	n.strike(fl)
	*fl = noFlow
}

// query asks the server whether its end of connection c is there, and still counts
// as is thought: by a repetition of what it acknowledged last, which it
// acknowledges once more, whatever rights the queue pair has (IBTA 9.7.5.1.2).
func (s *wire) query(c *flow) {
	now := s.c.Now()
	if c.dead || !c.trusted || c.asked != 0 && now.Sub(c.asking) < clock.Duration(s.cfg.giveup)/4 {
		return
	}
	o := op{kind: kWrite, spsn: c.acked}
	h := &c.up
	x := s.blank(h.len() + hdr.RETHLen + hdr.ICRCLen)
	if x == nil {
		return
	}
	h.write(x.Bytes(), &o, o.spsn)
	s.c.Emit(toServers, x)
	if c.asking = now; c.asked == 0 {
		c.asked = now
	}
	s.c.Count(ctrProbes, 1)
}

// unanswered reports whether the server has not answered on connection l since
// some time, although it did on others giveup= later: then its end of l is gone,
// and it is not the server that pauses. The others are asked if they are silent.
// When the server was silent on all, l has giveup= from its first answer on.
func (s *wire) unanswered(l *flow, since clock.Time) bool {
	n := s.n
	now, giveup := s.c.Now(), clock.Duration(s.cfg.giveup)
	since = max(since, n.awake)
	heard := n.lastHeard
	if n.lastFrom == l {
		heard = n.otherHeard
	}
	if heard.Sub(since) >= giveup/2 && now.Sub(since) >= giveup {
		return true
	}
	if now.Sub(max(since, n.asking)) < giveup/4 {
		return false
	}
	n.asking = now
	for range min(8, len(n.flows)) {
		n.asks = (n.asks + 1) % int32(len(n.flows))
		if f := &n.flows[n.asks]; f != l && f.synced && f.trusted && !f.dead && !f.gone {
			s.query(f)
		}
	}
	s.askStrangers()
	return false
}

// askStrangers asks the server whether it is there, on the connection of the
// request that came last of those that are not followed: by a repetition of what was
// long ago. What came just before it may never have come to the server, or wait here
// too: then the server would execute the question in its place, and the client take
// the answer for that to its request. Answers to old requests say what was executed.
func (s *wire) askStrangers() {
	n := s.n
	if n.strangers.Empty() {
		return
	}
	b := n.shelf.Frame(n.strangers.Last()).Bytes()
	if hdr.Parse(b, &s.g) != hdr.IsRoCE || s.g.Op.Transport() != hdr.RC {
		return
	}
	var h header
	if !h.learn(b, &s.g) {
		return
	}
	x := s.blank(h.len() + hdr.RETHLen + hdr.ICRCLen)
	if x == nil {
		return
	}
	o := op{kind: kWrite}
	h.write(x.Bytes(), &o, psnAdd(s.g.BTHOf(b).PSN(), -mostUnacked&hdr.PSNMask))
	s.c.Emit(toServers, x)
	s.c.Count(ctrProbes, 1)
}

// Tick implements graph.Ticker: connections that make no progress.
func (s *Box) Tick(c *graph.Ctx) clock.Time {
	now := c.Now()
	if s.worker != 0 {
		return clock.Never
	}
	s.c = c
	if !s.begun.Load() {
		s.begin(now)
	}
	if s.restatic {
		s.reconnect()
	}
	away := clock.Duration(0)
	if s.due != 0 {
		away = now.Sub(s.due)
	}
	period := min(tick, clock.Duration(s.cfg.giveup/10))
	conns, words, lent, held := 0, 0, 0, 0
	busy := false
	for _, n := range *s.nodes.Load() {
		s.own(n)
		n.conns.Sweep(now)
		for l := range n.flows {
			f := &n.flows[l]
			if away > period {
				f.excuse(away, now)
			}
			switch {
			case f.synced && f.oldest != none:
				s.watch(f)
				busy = busy || f.guests > 0
			case f.quiet && f.asked != 0 && s.unanswered(f, f.asked):
				s.c.Count(ctrGone, 1)
				n.conns.Remove(n.slot(f))
			case f.quiet:
				s.query(f)
			case f.lost != 0 && now > f.lost && (f.told || s.cfg.mode == End || n.conns.Len() > len(n.flows)*3/4):
				n.conns.Remove(n.slot(f)) // otherwise its client is told when it asks, whenever that is
			}
		}
		s.settle()
		if !n.idle() || n.kept || !s.cfg.mode.moves() {
			n.busy = now
		} else if now.Sub(n.busy) > s.cfg.idle {
			s.part(n)
			continue
		}
		conns += n.conns.Len()
		words += n.words.n
		lent += n.keys.lending
		held += n.shelf.Len()
	}
	s.release()
	c.Set(ctrConns, uint64(conns))
	c.Set(ctrLanes, uint64(lent))
	c.Set(ctrWords, uint64(words))
	c.Set(ctrHeld, uint64(held))
	c.Set(ctrRecorded, uint64(s.recorded()))
	s.mem.alive(now)
	s.c = nil
	if busy {
		period = min(period, clock.Duration(leastPatience))
	}
	s.due = now.Add(period)
	return s.due
}

// excuse takes the time that this app was away for none of f's silence: nobody
// could be heard.
func (f *flow) excuse(away clock.Duration, now clock.Time) {
	for _, t := range []*clock.Time{&f.began, &f.since, &f.silent, &f.loaded, &f.asked} {
		if *t != 0 {
			*t = min(t.Add(away), now)
		}
	}
}

// tick is the longest time between two looks at connections.
const tick = clock.Duration(20 * time.Millisecond)

// watch looks at connection c, which carries something.
func (s *wire) watch(c *flow) {
	n := s.n
	now := s.c.Now()
	if c.cur != none && now.Sub(c.began) > s.cfg.giveup {
		n.keys.recall(c) // its client stopped in the middle of a message
	}
	if c.inDoubt {
		s.inquire(c)
		return
	}
	if c.repair {
		s.pump(c) // there was no buffer
		return
	}
	if n.handedOver(c) && c.writes == 0 {
		return // that is its client's business
	}
	if c.silent != 0 && c.tries > 2 && s.unanswered(c, c.silent) {
		s.fail(c)
		return
	}
	if now.Sub(max(c.loaded, c.since, c.heard)) >= c.patience(s.cfg.giveup) {
		s.nudge(c)
	}
}

// bequest sends what connection heir has inherited, from PSN from on; heir may be nil.
func (s *wire) bequest(heir *flow, from uint32) {
	if heir != nil && heir.next != from && !heir.repair {
		s.again(heir, from, heir.next)
	}
}
