package swordbox

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// again is how soon after a repair began another repetition may begin a new
// one: repetitions of several clients come together.
const again = clock.Duration(time.Millisecond)

// oldest is how many PSNs a client's retransmission may go back: its window.
const oldest = 1 << 16

// find is the operation of flow i that PSN psn belongs to; none if it is not on
// record.
func (n *node) find(i int32, psn uint32) (at int32, k uint32) {
	fl := &n.flows[i]
	lo, hi := fl.first, fl.tail // the last one that begins at or before psn
	for lo != hi {
		m := lo + (hi-lo)/2
		if o, _ := n.op(i, m); psnLess(psn, o.cpsn) {
			hi = m
		} else {
			lo = m + 1
		}
	}
	if lo == fl.first {
		return none, 0
	}
	o, at := n.op(i, lo-1)
	if hdr.PSNDiff(psn, o.cpsn) >= int32(o.npsn) {
		return none, 0
	}
	return at, lo - 1
}

// same reports whether the request in s.f may be a repetition of o, from its
// packet k on.
func (s *Box) same(o *op, b []byte, k uint32, mtu uint32) bool {
	f := &s.f
	info := f.Op.Info().Flags
	switch o.kind {
	case kRead:
		if info&hdr.IsRead == 0 {
			return false
		}
		h := f.RETHOf(b)
		skip := k * mtu
		return h.RKey() == o.rkey && h.VA() == o.va+uint64(skip) && h.DMALength()+skip == o.len
	case kWrite:
		if info&hdr.IsWrite == 0 {
			return false
		}
		if f.Op.Info().Ext&hdr.HasRETH != 0 && k == 0 {
			h := f.RETHOf(b)
			return h.VA() == o.va && h.RKey() == o.rkey && h.DMALength() == o.len
		}
		return true
	case kSend:
		return true
	case kOdd:
		return f.Op == hdr.AtomicWrite || f.Op == hdr.Flush
	}
	a := be.Uint64(b[f.BTH+hdr.BTHLen:])
	return info&hdr.IsAtomic != 0 && a == o.va
}

// repeat handles a request of flow i that was there before.
func (s *Box) repeat(i int32, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	fl := &n.flows[i]
	if !psnLess(psn, fl.admitted) {
		s.c.Drop(x, reasonRepeat) // it waits here
		return
	}
	at, k := n.find(i, psn)
	if at == none {
		if hdr.PSNDiff(psn, fl.admitted) > -oldest && s.f.Op.Info().Flags&(hdr.IsRead|hdr.IsAtomic) != 0 && fl.head-fl.first >= fl.span-1 {
			// Its answer is not known any more. Better an error than silence.
			s.refuse(i, psn)
			s.end(i)
			s.c.Drop(x, reasonReset)
			return
		}
		s.acknowledge(i, b)
		s.c.Drop(x, reasonOldPSN)
		return
	}
	o := &n.ops[at]
	off := uint32(hdr.PSNDiff(psn, o.cpsn))
	if !s.same(o, b, off, fl.mtu) {
		s.c.Drop(x, reasonBadRepeat)
		return
	}
	released := int32(k-fl.head) < 0
	switch {
	case o.state == sOpen:
		s.resend(i, at, x, b, off)
	case released && o.kind == kRead:
		if o.got = off; !s.reenter(i, at, x, b, off) {
			s.c.Drop(x, reasonRepeat)
			return
		}
		o.flags |= fAgain
		fl.rereads++
	case released && o.kind == kOdd && fl.rereads == 0:
		s.answer(i, hdr.ReadRespOnly, o.cpsn, fl.syn, 0)
		s.c.Drop(x, reasonAnswered)
	case released && o.kind.atomic() && fl.rereads == 0:
		s.answer(i, hdr.AtomicAck, o.cpsn, fl.syn, o.prior)
		s.c.Drop(x, reasonAnswered)
	case released:
		s.acknowledge(i, b)
		s.c.Drop(x, reasonAnswered)
	case o.state == sUnsent:
		if n.unsentBefore(i, k) || !s.reenter(i, at, x, b, off) {
			o.flags |= fPrompt
			s.c.Drop(x, reasonEarly)
		}
	default: // answered in its turn
		n.due(i)
		s.c.Drop(x, reasonRepeat)
	}
}

// unsentBefore reports whether an operation of flow i before number k waits to
// be sent by its client again.
func (n *node) unsentBefore(i int32, k uint32) bool {
	for j := n.flows[i].head; j != k; j++ {
		if o, _ := n.op(i, j); o.state == sUnsent {
			return true
		}
	}
	return false
}

// acknowledge repeats the newest acknowledgement of flow i, when the request in
// s.f asks for it. While a READ is done again it waits: it would tell the
// client that the READ's answer was lost.
func (s *Box) acknowledge(i int32, b []byte) {
	fl := &s.n.flows[i]
	if !s.f.BTHOf(b).AckReq() && s.f.Op.Info().Flags&(hdr.IsRead|hdr.IsAtomic) == 0 || fl.head == fl.first {
		return
	}
	if fl.rereads > 0 {
		fl.owes = true
		return
	}
	o, _ := s.n.op(i, fl.head-1)
	s.answer(i, hdr.Acknowledge, o.last(), fl.syn, 0)
}

// reenter sends an operation that is on record, and not open, as a new one;
// false when it must wait.
func (s *Box) reenter(i, at int32, x *packet.Buf, b []byte, off uint32) bool {
	n := s.n
	o := &n.ops[at]
	if o.kind == kRead {
		o.got = off
	} else if off != 0 {
		return false
	}
	o.flags &= fAckReq | fModifies | fWide | fBare | fOwn
	o.word = none
	if o.kind.atomic() { // operands as they came
		a := hdr.AtomicETH(b[s.f.BTH+hdr.BTHLen:])
		o.out, o.prior = a.Swap(), a.Compare()
	}
	l, ok := s.choose(i, &n.flows[i], o)
	whole := o.npsn == 1 || o.kind == kRead
	if ok && !whole {
		l, ok = i, s.usable(i, i, &n.flows[i], o) && n.flows[i].open == 0
	}
	if !ok || !s.enter(i, at, l, &s.f, b) {
		return false
	}
	if o.state == sUnsent {
		n.flows[i].unsent--
	}
	o.state = sOpen
	if whole {
		s.send(i, at, x, x.Bytes(), &s.f, off)
		return true
	}
	// Its packets come one by one.
	n.flows[l].repair, n.flows[l].expect, n.flows[l].since = true, o.spsn, s.c.Now()
	s.resend(i, at, x, b, 0)
	return true
}

// resend handles a repetition of an open operation of flow i, from its packet
// off on.
func (s *Box) resend(i, at int32, x *packet.Buf, b []byte, off uint32) {
	n := s.n
	o := &n.ops[at]
	l := o.lane
	c := &n.flows[l]
	if o.kind == kRead && off < o.got {
		o.got = off
		s.dropAnswer(o)
	}
	s.c.Mark(x, packet.Forwarded, reasonRepeated)
	if c.repair {
		s.pump(l) // answers may have come
	}
	if !c.repair {
		if l == i && n.handedOver(c) {
			s.send(i, at, x, x.Bytes(), &s.f, off)
			return
		}
		if s.c.Now().Sub(c.since) < again {
			s.c.Drop(x, reasonRepeat)
			return
		}
		front := &n.ops[c.oldest]
		s.startRepair(l, psnAdd(front.spsn, front.got))
	}
	d := hdr.PSNDiff(psnAdd(o.spsn, off), c.expect)
	switch {
	case !c.repair || d < 0:
		s.c.Drop(x, reasonRepeat) // sent again already
	case d == 0:
		s.send(i, at, x, x.Bytes(), &s.f, off)
		c.expect = psnAdd(c.expect, 1)
		if o.kind == kRead {
			c.expect = psnAdd(o.spsn, o.npsn)
		}
		c.since = s.c.Now()
		s.pump(l)
	case o.can(c):
		s.c.Drop(x, reasonRepeat) // made here when it is due
	case !s.hold(&c.late, x):
		s.c.Drop(x, reasonEarly)
	}
}

// handedOver reports whether the client of connection c will send again what the
// server misses first: all that c carries is its own, and what is oldest it
// still waits for.
func (n *node) handedOver(c *flow) bool {
	o := &n.ops[c.oldest]
	return c.guests == 0 && !o.is(fAgain|fOrphan) && o.kind != kProbe
}

// can reports whether o can be made again from the record, for connection c.
func (o *op) can(c *flow) bool {
	switch o.kind {
	case kRead:
		return o.npsn == 1 || c.mtu != 0
	case kWrite:
		return o.npsn == 1 && (o.len == 0 || o.len == 8)
	case kCAS, kFAA, kProbe:
		return true
	}
	return o.is(fReplaced | fEmpty | fOrphan)
}

// executed reports whether the server has said that it executed o, of
// connection c, and its answer has nothing more to tell.
func (o *op) executed(c *flow) bool {
	return !o.is(fSlot) && !psnLess(c.acked, psnAdd(o.spsn, o.npsn-1))
}

// missing: the server expects PSN psn on connection l.
func (s *Box) missing(l int32, psn uint32) {
	n := s.n
	c := &n.flows[l]
	if c.oldest == none {
		return
	}
	if o := &n.ops[c.oldest]; !c.repair && n.handedOver(c) {
		n.more[c.oldest].ask = 0
		if d := hdr.PSNDiff(psn, o.spsn); d >= 0 && d < int32(o.npsn) {
			n.more[c.oldest].ask = uint32(d)
		}
		o.flags |= fPrompt
		n.due(l)
		return
	}
	s.startRepair(l, psn)
}

// startRepair sends what connection l carries from PSN psn on again: what is on
// record itself, the rest is asked for.
func (s *Box) startRepair(l int32, psn uint32) {
	n := s.n
	c := &n.flows[l]
	c.repair, c.expect, c.since = true, psn, s.c.Now()
	if c.silent == 0 {
		c.silent = s.c.Now()
	}
	s.c.Count(ctrRepairs, 1)
	for at := c.oldest; at != none; at = n.ops[at].next {
		o := &n.ops[at]
		if i := n.flowOf(at); i != none && !o.can(c) && !o.executed(c) {
			n.more[at].ask = 0
			if d := hdr.PSNDiff(psn, o.spsn); d > 0 && d < int32(o.npsn) {
				n.more[at].ask = uint32(d)
			}
			o.flags |= fPrompt
			n.due(i)
		}
	}
	s.pump(l)
}

// pump sends again what it can, in the order of PSNs, up to what must come from
// a client.
func (s *Box) pump(l int32) {
	n := s.n
	c := &n.flows[l]
	at := c.oldest
	if at != none && psnLess(c.expect, n.ops[at].spsn) {
		c.expect = psnAdd(n.ops[at].spsn, n.ops[at].got) // what was before it is answered
	}
	for c.repair && c.expect != c.next {
		for at != none && !psnLess(c.expect, psnAdd(n.ops[at].spsn, n.ops[at].npsn)) {
			at = n.ops[at].next
		}
		if at == none {
			c.expect = c.next
			break
		}
		o := &n.ops[at]
		off := uint32(hdr.PSNDiff(c.expect, o.spsn))
		if o.executed(c) {
			c.expect = psnAdd(o.spsn, o.npsn)
			continue
		}
		if o.can(c) && (o.kind == kRead || o.npsn == 1 || o.is(fOrphan)) {
			if !s.make(l, o, off) {
				return
			}
			s.c.Count(ctrResent, 1)
			if o.kind == kRead {
				c.expect = psnAdd(o.spsn, o.npsn)
			} else {
				c.expect = psnAdd(c.expect, 1)
			}
			continue
		}
		if !s.fromLate(c) {
			return
		}
		c.expect = psnAdd(c.expect, 1)
	}
	c.repair = false
	s.discard(&c.late, reasonRepeat)
}

// fromLate sends the held frame with the PSN that connection c expects; false
// when there is none.
func (s *Box) fromLate(c *flow) bool {
	for k := c.late.n; k > 0; k-- {
		x := s.unhold(&c.late)
		if x == nil {
			continue
		}
		if hdr.Parse(x.Bytes(), &s.g) == hdr.IsRoCE {
			ends, _ := conn.EndsOf(x.Bytes(), &s.g)
			i, _ := s.n.conns.Find(ends.Dst, s.g.BTHOf(x.Bytes()).DestQP())
			if i != conn.NoSlot {
				psn := s.g.BTHOf(x.Bytes()).PSN()
				if at, _ := s.n.find(int32(i), psn); at != none {
					o := &s.n.ops[at]
					off := uint32(hdr.PSNDiff(psn, o.cpsn))
					if o.state == sOpen && &s.n.flows[o.lane] == c && psnAdd(o.spsn, off) == c.expect {
						s.send(int32(i), at, x, x.Bytes(), &s.g, off)
						return true
					}
				}
			}
		}
		if !s.hold(&c.late, x) {
			s.c.Drop(x, reasonEarly)
		}
	}
	return false
}

// make sends o, from its packet off on, from the record. Of an operation that
// nobody waits for and that is not on record, an empty WRITE takes the place.
func (s *Box) make(l int32, o *op, off uint32) bool {
	c := &s.n.flows[l]
	h := &c.up
	k := o.kind
	size := h.len() + hdr.RETHLen + hdr.ICRCLen
	switch {
	case o.is(fReplaced) || k == kWrite && o.len == 8 && o.npsn == 1:
		size += 8
	case o.is(fEmpty), k == kWrite, k == kProbe, k == kRead:
	case k == kCAS || k == kFAA:
		size += hdr.AtomicETHLen - hdr.RETHLen
	}
	x := s.blank(size)
	if x == nil {
		return false
	}
	b := x.Bytes()
	psn := psnAdd(o.spsn, off)
	switch {
	case (k == kCAS || k == kFAA) && !o.is(fReplaced|fEmpty):
		h.front(b)
		t := hdr.BTH(b[h.bth:])
		code := hdr.CompareSwap
		if k == kFAA {
			code = hdr.FetchAdd
		}
		t[0], t[1] = byte(code), t[1]&0x40
		t.SetPSN(psn)
		t.SetAckReq(true)
		a := hdr.AtomicETH(b[h.len():])
		a.SetVA(o.va)
		a.SetRKey(o.rkey)
		a.SetSwap(o.out)
		a.SetCompare(o.prior)
		h.seal(b, code)
	case k == kRead:
		s.write(h, b, o, psn)
		t := hdr.BTH(b[h.bth:])
		t[0] = byte(hdr.ReadRequest)
		r := hdr.RETH(b[h.len():])
		r.SetVA(o.va + uint64(off)*uint64(c.mtu))
		r.SetDMALength(o.len - off*c.mtu)
		h.seal(b, hdr.ReadRequest)
	default:
		s.write(h, b, o, psn)
	}
	s.c.Emit(toServers, x)
	return true
}

// notReady: the server has no receive buffer for the SEND at psn. Its client
// must wait; others that come behind it on the connection wait for it.
func (s *Box) notReady(l int32, psn uint32, syn hdr.Syndrome) {
	n := s.n
	c := &n.flows[l]
	if c.oldest == none {
		return
	}
	i := n.flowOf(c.oldest)
	if i == none {
		return
	}
	o := &n.ops[c.oldest]
	if c.guests > 0 {
		s.startRepair(l, psn)
		o.flags &^= fPrompt
	}
	if front, _ := n.op(i, n.flows[i].head); front == o {
		s.answer(i, hdr.Acknowledge, psnAdd(o.cpsn, uint32(hdr.PSNDiff(psn, o.spsn))), syn, 0)
	}
}

// fatal: the server refused the request at psn; the connection is in the error
// state. Nothing behind it was executed; what is before it was, though answers
// may have been lost.
func (s *Box) fatal(l int32, psn uint32, syn hdr.Syndrome) {
	n := s.n
	c := &n.flows[l]
	for c.oldest != none {
		at := c.oldest
		o := &n.ops[at]
		if d := hdr.PSNDiff(psn, o.spsn); d < 0 {
			break
		} else if d < int32(o.npsn) || o.npsn == 0 {
			s.unlink(o)
			s.failed(at, syn)
			s.unlearn(o)
			s.forget(at, false)
			break
		}
		s.lose(at, !o.is(fSlot) || o.kind == kRead)
	}
	s.c.Count(ctrFailedLanes, 1)
	s.bury(l, false)
}

// lose takes op at, the oldest of its connection, off it. harmless: it was
// executed and its answer has nothing to tell, or it can be done again.
func (s *Box) lose(at int32, harmless bool) {
	n := s.n
	o := &n.ops[at]
	s.unlink(o)
	s.dropAnswer(o)
	done := false
	switch {
	case o.kind == kRead:
		o.state, n.more[at].ask, o.got = sUnsent, 0, 0
		o.flags |= fPrompt
	case harmless:
		o.state, done = sDone, true
	default:
		s.failed(at, hdr.SynNAKRemoteOperation)
	}
	s.forget(at, done)
}

// failed notes that the client of op at must see NAK syn.
func (s *Box) failed(at int32, syn hdr.Syndrome) {
	n := s.n
	n.ops[at].state, n.more[at].syn = sFailed, syn
	if i := n.flowOf(at); i != none && !n.ops[at].is(fOrphan) {
		n.flows[i].failed = true
	}
}

// fail gives up connection l. What it carried may have been executed or not.
func (s *Box) fail(l int32) {
	s.c.Count(s.n.ending(l), 1)
	s.bury(l, true)
}

// ending is the counter of connection l, which carries something and comes to an
// end: nothing but a probe is nobody's loss.
func (n *node) ending(l int32) counter.ID {
	if o := &n.ops[n.flows[l].oldest]; o.kind == kProbe && o.next == none {
		return ctrGone
	}
	return ctrFailedLanes
}

// bury ends connection l. doubt: what it carried may have been executed. Then
// READs can be done again, and so can, over another connection, what leaves a
// known value in a word: nothing but what is behind it, and comes again behind
// it, can have been executed since. Other operations end their clients'
// connections.
func (s *Box) bury(l int32, doubt bool) {
	n := s.n
	c := &n.flows[l]
	c.dead, c.repair = true, false
	s.discard(&c.late, reasonReset)
	s.unshare(l)
	heir, from := none, uint32(0)
	if doubt {
		if heir = n.heir(l); heir != none {
			from = n.flows[heir].next
		}
	}
	for c.oldest != none {
		at := c.oldest
		o := &n.ops[at]
		if doubt && heir != none && !o.executed(c) && n.decided(at) {
			s.bequeath(at, heir)
			continue
		}
		if doubt {
			s.lose(at, o.executed(c))
			continue
		}
		s.unlink(o)
		s.dropAnswer(o)
		o.state, n.more[at].ask, o.got = sUnsent, 0, 0
		o.flags |= fPrompt
		s.forget(at, false)
	}
	if heir != none && n.flows[heir].next != from && !n.flows[heir].repair {
		s.startRepair(heir, from)
	}
}

// heir is a connection that can carry on what l did; none if there is none.
func (n *node) heir(l int32) int32 {
	for _, x := range n.domains[n.flows[l].domain].lanes {
		if c := &n.flows[x]; x != l && !c.dead && !c.unsure && c.cur == none {
			return x
		}
	}
	return none
}

// decided reports whether open op at leaves a value in its word that was known
// when it was sent and still is: neither an operation on the word nor one of
// its client that was sent before it was lost.
func (n *node) decided(at int32) bool {
	o := &n.ops[at]
	if o.word == none || o.is(fLoose|fOwn) || !n.believes(&n.words.w[o.word]) || !o.is(fReplaced|fEmpty) && (o.kind != kWrite || o.npsn != 1) {
		return false
	}
	return o.is(fOrphan) || !n.flows[n.flowOf(at)].failed
}

// bequeath puts op at, the oldest of its connection, at the end of what
// connection x carries. It is yet to be sent.
func (s *Box) bequeath(at, x int32) {
	n := s.n
	o, c := &n.ops[at], &n.flows[x]
	s.unlink(o)
	if o.is(fGuest) {
		n.flows[o.lane].guests--
	}
	o.flags &^= fGuest
	if i := n.flowOf(at); i != x {
		o.flags |= fGuest
		c.guests++
		s.diverge(x)
		if !o.is(fOrphan) {
			s.diverge(i)
		}
	}
	if !o.is(fOrphan) {
		f := &n.flows[n.flowOf(at)]
		f.mixed = f.mixed || f.open > 1
		f.lane = x
	}
	n.words.w[o.word].lane = x
	o.lane, o.spsn = x, c.next
	s.link(x, at)
	c.next = psnAdd(c.next, o.npsn)
}

// remove forgets flow i: its connection is gone.
func (s *Box) remove(i int32) {
	n := s.n
	fl := &n.flows[i]
	if !fl.synced {
		return
	}
	for at := fl.oldest; at != none; at = n.ops[at].next {
		if n.flowOf(at) == i {
			n.orphan(&n.ops[at])
		}
	}
	s.discard(&fl.stall, reasonReset)
	if fl.oldest != none {
		s.c.Count(n.ending(i), 1)
	}
	s.bury(i, true)
	for k := fl.first; k != fl.tail; k++ {
		o, _ := n.op(i, k)
		s.dropAnswer(o)
		if o.state == sOpen {
			n.orphan(o)
		}
	}
	s.strike(i)
	*fl = noFlow
}

// orphan marks o: nobody waits for it. What cannot be made again is replaced by
// an empty WRITE, should the server miss it, and is then answered as one.
func (n *node) orphan(o *op) {
	c := &n.flows[o.lane]
	if o.is(fSlot) && !o.can(c) {
		o.flags &^= fSlot
		c.rd--
	}
	o.flags |= fOrphan
}

// probe sends an empty WRITE on connection l, which carried nothing of late:
// its answer tells that the server is there.
func (s *Box) probe(l int32) {
	n := s.n
	c := &n.flows[l]
	if c.probing || c.cur != none || c.dead || c.repair || !c.trusted {
		return
	}
	at := n.probeOf(l)
	o := &n.ops[at]
	*o = op{kind: kProbe, npsn: 1, spsn: c.next, lane: l, next: none, word: none}
	if !s.make(l, o, 0) {
		return
	}
	s.link(l, at)
	c.next = psnAdd(c.next, 1)
	c.probing = true
	s.diverge(l)
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
	conns, words, held := 0, 0, 0
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
				s.watch(int32(l))
			case f.quiet:
				f.quiet = false
				s.probe(int32(l))
			case f.lost != 0 && now > f.lost && (f.told || s.cfg.mode == End || n.conns.Len() > len(n.flows)*3/4):
				n.conns.Remove(conn.Slot(l)) // otherwise its client is told when it asks, whenever that is
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
		held += n.shelf.n
	}
	s.release()
	c.Set(ctrConns, uint64(conns))
	c.Set(ctrWords, uint64(words))
	c.Set(ctrHeld, uint64(held))
	c.Set(ctrRecorded, uint64(s.recorded()))
	if s.mem.b != nil {
		le.PutUint64(s.mem.b[16:], uint64(now))
	}
	s.c = nil
	s.due = now.Add(period)
	return s.due
}

// excuse takes the time that this app was away for none of f's silence: nobody
// could be heard.
func (f *flow) excuse(away clock.Duration, now clock.Time) {
	for _, t := range []*clock.Time{&f.began, &f.since, &f.silent} {
		if *t != 0 {
			*t = min(t.Add(away), now)
		}
	}
}

// tick is the longest time between two looks at connections.
const tick = clock.Duration(20 * time.Millisecond)

// watch looks at connection l, which carries something.
func (s *Box) watch(l int32) {
	n := s.n
	c := &n.flows[l]
	now := s.c.Now()
	front := &n.ops[c.oldest]
	if c.cur != none && now.Sub(c.began) > s.cfg.giveup {
		s.unshare(l) // its client stopped in the middle of a message
	}
	switch {
	case c.repair && now.Sub(c.since) > s.cfg.giveup:
		// A client does not send again what is missing: it is gone.
		at := c.oldest
		for at != none && !psnLess(c.expect, psnAdd(n.ops[at].spsn, n.ops[at].npsn)) {
			at = n.ops[at].next
		}
		if at == none || hdr.PSNDiff(c.expect, n.ops[at].spsn) > 0 || n.flowOf(at) == none || n.ops[at].is(fOrphan) {
			s.fail(l) // in the middle of a message
			return
		}
		s.abandon(at)
		c.since = now
		s.pump(l)
	case c.silent != 0 && now.Sub(c.silent) > s.cfg.giveup:
		s.fail(l)
	case !c.repair && (!n.handedOver(c) || front.is(fReplaced)) && now.Sub(max(c.loaded, c.since, c.heard)) > s.cfg.giveup/5:
		s.startRepair(l, psnAdd(front.spsn, front.got))
	}
}

// abandon ends the connection of op at's client, which is gone, as far as it
// can be told; others need not wait for it.
func (s *Box) abandon(at int32) {
	n := s.n
	i := n.flowOf(at)
	o := &n.ops[at]
	fl := &n.flows[i]
	s.answer(i, hdr.Acknowledge, o.cpsn, hdr.SynNAKRemoteOperation, 0)
	s.end(i)
	for k := fl.first; k != fl.tail; k++ {
		if o, _ := n.op(i, k); o.state == sOpen {
			n.orphan(o)
			s.dropAnswer(o)
			fl.open--
			if o.is(fBare) {
				fl.bare--
			}
		}
	}
}
