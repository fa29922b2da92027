package swordbox

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// request handles a client's request; x is disposed of.
func (s *wire) request(x *packet.Buf, b []byte) {
	fl := s.sender(x, b)
	if fl == nil {
		return
	}
	n := s.n
	s.touched = n.op(fl, fl.tail).state // into the cache, until it is needed
	psn := s.f.BTHOf(b).PSN()
	if !fl.synced && !s.follow(fl, x, b, psn) {
		return
	}
	if fl.lost != 0 {
		s.tell(fl, x, b)
		return
	}
	if fl.gone {
		if psnLess(psn, fl.ended) && !s.f.Op.Has(hdr.IsRead) {
			s.repeat(fl, x, b, psn) // it was answered before
			return
		}
		s.refuse(fl)
		s.c.Drop(x, reasonReset)
		return
	}
	if fl.unsure && psn != fl.arrived {
		// The next request tells how many packets the READ before it takes.
		o := &n.ops[fl.newest]
		if d := hdr.PSNDiff(psn, o.cpsn); d > 1 && uint32(d) <= (o.len+255)/256 {
			n.settleLength(fl, uint32(d))
		}
	}
	if d := hdr.PSNDiff(psn, fl.arrived); d != 0 && s.outOfTurn(fl, x, b, psn, d) {
		return
	}
	if d := hdr.PSNDiff(psn, fl.arrived); fl.vague && d >= 0 {
		fl.settleMTU(uint32(d) + 1)
	}
	switch d := hdr.PSNDiff(psn, fl.arrived); {
	case d > 0:
		// A responder would ask for what is missing; once it has answered
		// what came before.
		if !fl.gapNAK && !fl.vague && !fl.unsure {
			fl.gapNAK, fl.toldGap = true, false
			n.due(fl)
		}
		s.c.Drop(x, reasonPSNGap)
		return
	case d < 0 && fl.young && !fl.onward && psnLess(psn, fl.start):
		s.stranger(x, b, reasonRepeated) // of the time before
		return
	case d < 0:
		s.repeat(fl, x, b, psn)
		return
	}
	s.take(fl, x, b, psn)
}

// sender is the flow that the request in b, x, is of; nil: of none that may be
// followed, and it was disposed of.
func (s *wire) sender(x *packet.Buf, b []byte) *flow {
	n := s.n
	slot, e := n.conns.Request(s.c.Now(), &s.ends, b, &s.f)
	switch e {
	case conn.Spoofed:
		if !s.cfg.dropSpoofed || !n.owned(&s.ends, &s.f, b) {
			s.stranger(x, b, reasonSpoofed) // the server may take it
			return nil
		}
		s.bad(toClients, x, reasonSpoofed, true)
		return nil
	case conn.Full:
		s.stranger(x, b, reasonConnFull)
		return nil
	}
	if slot == conn.NoSlot {
		s.stranger(x, b, reasonStranger)
		return nil
	}
	if len(n.removed) > 0 { // an earlier connection had this row, or its queue pair
		for _, f := range n.removed {
			s.remove(f)
		}
		n.removed = n.removed[:0]
	}
	return &n.flows[slot]
}

// take handles the request of flow fl that comes next.
func (s *wire) take(fl *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	fl.gapNAK = false
	k := fl.packets(&s.f, b)
	if fl.unsure {
		// Of one packet, then; or another one of the same length again.
		n.settleLength(fl, 1)
	}
	fl.arrived = psnAdd(psn, k)
	if fl.young && hdr.PSNDiff(psn, fl.start) > mostUnacked {
		fl.young = false
	}
	rest, part := fl.rest, fl.part
	fl.measure(b, &s.f)
	if !fl.stall.Empty() || !s.admit(fl, x, b, &s.f) {
		if n.shelf.Put(&fl.stall, x, s.n.worker, struct{}{}) == 0 {
			fl.arrived, fl.rest, fl.part = psn, rest, part // it never came
			s.c.Drop(x, reasonHoldFull)
			return
		}
		n.wait(fl)
		if fl.stall.Len() > 1 {
			s.drain(fl) // it may complete a message
		}
		if fl.gone {
			return
		}
		if !fl.stall.Empty() && s.f.Op == hdr.ReadRequest && fl.mtu == 0 && s.f.RETHOf(b).DMALength() > fl.mtuLow {
			fl.vague, fl.vagueLen = true, s.f.RETHOf(b).DMALength()
		}
		return
	}
	if fl.doomed {
		n.end(fl)
	}
}

// measure follows the payloads of a client's WRITEs, packet by packet. The server
// refuses those that do not add up to the length that they say, and what is between
// the packets of one (IBTA 9.7.4.1): nothing of such a client goes over another's
// connection any more, which the refusal would end.
func (f *flow) measure(b []byte, h *hdr.Frame) {
	info := h.Op.Info()
	p := uint32(len(h.PayloadOf(b)))
	isWrite, begins := info.Flags&hdr.IsWrite != 0, info.Flags&(hdr.IsMiddle|hdr.IsLast) == 0
	switch {
	case !isWrite:
		f.misshapen = f.misshapen || f.rest != 0
	case begins && info.Ext&hdr.HasRETH != 0:
		n := h.RETHOf(b).DMALength()
		if f.misshapen = f.misshapen || f.rest != 0; info.Flags&hdr.IsFirst == 0 {
			f.misshapen = f.misshapen || p != n
		} else if f.rest, f.part = n-p, p; n <= p || !full(p) {
			f.misshapen = true
		}
	case info.Flags&hdr.IsMiddle != 0 && p == f.part && p < f.rest:
		f.rest -= p
	case info.Flags&hdr.IsLast != 0 && p == f.rest && p != 0 && p <= f.part:
		f.rest = 0
	default:
		f.misshapen = true
	}
}

// settleMTU takes the path MTU from the request behind a READ that waits, which
// takes k PSNs then.
func (f *flow) settleMTU(k uint32) {
	if k == 1 {
		f.vague, f.mtuLow = false, max(f.mtuLow, f.vagueLen)
		return
	}
	for mtu := uint32(256); mtu <= 4096; mtu *= 2 {
		if (f.vagueLen+mtu-1)/mtu == k {
			f.vague, f.mtu = false, mtu
			f.arrived = psnAdd(f.arrived, k-1)
			return
		}
	}
}

// wait notes that flow f has requests that wait.
func (n *node) wait(f *flow) {
	if !f.waits {
		f.waits = true
		n.waiting = append(n.waiting, f)
	}
}

// patience is how long a request waits for others where it need not, so that
// they are in one order.
const patience = clock.Duration(2e6)

// patient reports whether a request may wait where it need not, for something
// that was there since some time.
func (n *node) patient(since clock.Time) bool {
	return n.roomy() && n.c.Now().Sub(since) < patience
}

// stirred is when connection c was heard last, or began to carry something.
func (n *node) stirred(c *flow) clock.Time {
	if c == nil {
		return 0
	}
	return max(c.loaded, c.heard)
}

// farOff is how far from what is expected no retransmission of a flow is: the most
// PSNs that are under way on a connection, and more (RXE_MAX_UNACKED_PSNS is 128;
// send queues of devices hold 32,768 requests at most).
const farOff = 1 << 16

// outOfTurn handles a request of flow fl that is not the one that is expected, by d
// PSNs; false when it is to be handled as a repetition, or as one that comes too
// early. When the connection was quiet it may be of another connection with the
// same numbers of queue pairs, which nobody announced. Anybody can make up such a
// request; so the server is to say whose it is.
//
// Where both ends count alike it passes: the server executes it if the queue pair
// is another connection's by now, and its answer tells so (see confirmed).
// Otherwise it is dropped, and the server is asked for its own view, with a
// repetition: it acknowledges that as before if nothing has changed.
func (s *wire) outOfTurn(fl *flow, x *packet.Buf, b []byte, psn uint32, d int32) bool {
	n := s.n
	far := d > farOff || d < -farOff
	if n.row(fl).Learnt != conn.Inferred || !fl.trusted {
		return false // a new connection would have been announced
	}
	if fl.open > 0 || fl.oldest != none || !fl.stall.Empty() || s.c.Now().Sub(fl.heard) < s.cfg.alive {
		if far {
			s.c.Drop(x, reasonPSNGap)
		}
		return far
	}
	switch {
	case !fl.bound && (far || fl.young && psnLess(psn, fl.start)):
		if psn != fl.strangeEnd {
			fl.strange = psn
		}
		fl.strangeEnd = psnAdd(psn, fl.packets(&s.f, b))
		s.stranger(x, b, reasonStranger)
		return true
	case far || d > 0:
		s.query(fl)
		s.c.Drop(x, reasonPSNGap)
		return true
	}
	return false
}

// follow takes over the numbering of flow fl at the request in b, x, if it is time.
// False when it passed as a stranger's.
func (s *wire) follow(fl *flow, x *packet.Buf, b []byte, psn uint32) bool {
	row := s.n.row(fl)
	turn := fl.inTurn(&s.f, b, psn) || row.Client.HasPSN && row.Client.StartPSN == psn && !fl.seen
	fl.seen = true
	switch {
	case row.State == conn.HalfOpen:
		s.stranger(x, b, reasonUnpaired)
		return false
	case !turn || row.State != conn.Paired || !s.cfg.mode.moves() || !s.n.sync(fl, &s.f, b, psn):
		s.stranger(x, b, reasonStranger)
		return false
	}
	return true
}

// sync takes over the numbering of a connection: until now both ends count
// alike. False when frames cannot be made for it.
func (n *node) sync(fl *flow, f *hdr.Frame, b []byte, psn uint32) bool {
	r := n.row(fl)
	if r.Server.Port == 0 && r.Server.QPN == 0 {
		return false
	}
	mtu, mtuLow := fl.mtu, max(fl.mtuLow, 256)
	if mtu == 0 {
		mtu = n.cfg.mtu
	}
	*fl = noFlow
	fl.synced, fl.young, fl.start, fl.mtu, fl.mtuLow = true, true, psn, mtu, mtuLow
	fl.arrived, fl.admitted, fl.span = psn, psn, min(n.window, narrow)
	fl.next, fl.acked, fl.expect = psn, psnAdd(psn, hdr.PSNMask), psn
	if r.MTU != 0 {
		fl.mtu = uint32(r.MTU)
	}
	if !fl.up.learn(b, f) {
		*fl = noFlow
		return false
	}
	n.conns.Pin(n.slot(fl)) // from here on the numbering is ours
	n.c.Count(ctrSynced, 1)
	return true
}

// maxMessage is the longest message (IBTA 9.7.2: 2^31 bytes).
const maxMessage = 1 << 31

// full reports whether n bytes are the payload of a packet that is not its
// message's last.
func full(n uint32) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

// admit sends the next request of flow fl on, x with the bytes b; false when it
// must wait. f are its headers.
func (s *wire) admit(fl *flow, x *packet.Buf, b []byte, f *hdr.Frame) bool {
	n := s.n
	if fl.cur != none {
		return s.middle(fl, x, b, f)
	}
	if fl.tail&(2*fl.span-1) == fl.span && fl.tail-fl.head >= fl.span/4 && fl.span < n.window {
		fl.span *= 2 // what is remembered has its places in the lower half, where it is
	}
	if fl.tail-fl.head >= fl.span && !n.grow(fl) || fl.unsent > 0 {
		return false
	}
	o := n.op(fl, fl.tail)
	if o.state == sOpen && o.npsn != 0 && o.is(fAgain|fOrphan) {
		return false // its place is taken
	}
	if n.fade(fl); fl.tail-fl.first >= fl.span {
		fl.first = fl.tail - fl.span + 1
		fl.outlive(o)
	}
	m, ok := s.classify(fl, o, b, f)
	if !ok {
		return false
	}
	key := n.keys.movable(fl, o)
	if key != nil {
		o.flags |= fRight
	}
	l, ok := s.route(fl, o, key, m)
	if !ok {
		if fl.open == 0 && n.stuck(fl, o, key) {
			s.answer(fl, hdr.Acknowledge, o.cpsn, hdr.SynNAKRemoteOperation, 0)
			s.c.Drop(x, reasonReset)
			fl.doomed = true
			return true
		}
		return false
	}
	copied, ok := n.insure(fl, l, o, m, x)
	if !ok {
		return false
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
	fl.tail++
	fl.unsure = m.unsure
	if m.unsure {
		fl.vague = false
	}
	if !m.whole {
		fl.cur, fl.began = n.place(o), s.c.Now()
		if o.kind == kSend {
			o.npsn = 1 // as many as come
		}
		if l == fl {
			l.next = psnAdd(o.spsn, 1)
		} else {
			l.next = psnAdd(o.spsn, o.npsn)
		}
	}
	s.send(fl, o, x, b, f, 0)
	fl.admitted = psnAdd(fl.admitted, 1)
	if o.kind == kRead {
		fl.admitted = psnAdd(o.cpsn, o.npsn)
	}
	return true
}

// shape is what is known of a message by its first packet.
type shape struct {
	whole  bool // there is no other packet
	unsure bool // a READ whose answer tells how many packets it takes
}

// classify makes of the request in b, with headers f, which is the next one of flow
// i, operation o. False when it must wait.
func (s *wire) classify(fl *flow, o *op, b []byte, f *hdr.Frame) (m shape, ok bool) {
	n := s.n
	*o = op{cpsn: fl.admitted, npsn: 1, lane: none, next: none, word: none}
	info := f.Op.Info().Flags
	m.whole = true
	switch {
	case info&hdr.IsRead != 0 && f.RETHOf(b).DMALength() <= maxMessage:
		h := f.RETHOf(b)
		o.kind, o.va, o.rkey, o.len = kRead, h.VA(), h.RKey(), h.DMALength()
		if o.len > fl.mtuLow && fl.mtu != 0 {
			o.npsn = (o.len + fl.mtu - 1) / fl.mtu
		} else if o.len > fl.mtuLow {
			// Its answer will tell. Until then nothing else goes over the
			// connection.
			if fl.open > 0 || fl.guests > 0 || fl.dead {
				return m, false
			}
			m.unsure = true
		}
	case info&hdr.IsWrite != 0 && f.Op.Info().Ext&hdr.HasRETH != 0 && f.RETHOf(b).DMALength() <= maxMessage &&
		(info&hdr.IsFirst == 0 || full(uint32(len(f.PayloadOf(b))))):
		h := f.RETHOf(b)
		o.kind, o.va, o.rkey, o.len = kWrite, h.VA(), h.RKey(), h.DMALength()
		if f.Op.Info().Ext&hdr.HasImmDt != 0 {
			o.flags |= fOwn // it takes one of its queue pair's receive buffers
		}
		if info&hdr.IsFirst != 0 {
			m.whole = false
			p := uint32(len(f.PayloadOf(b)))
			o.npsn = max(2, (o.len+p-1)/p)
			if l := n.last(fl, int32(min(o.npsn, 1<<30))); l != nil && hdr.Parse(l.Bytes(), &s.h) == hdr.IsRoCE && s.h.Op.Info().Ext&hdr.HasImmDt != 0 {
				o.flags |= fOwn
			}
		} else if o.len == 8 && len(f.PayloadOf(b)) == 8 {
			o.out = le.Uint64(f.PayloadOf(b))
		}
	case info&hdr.IsAtomic != 0:
		n.classifyAtomic(o, b, f)
	case f.Op == hdr.AtomicWrite || f.Op == hdr.Flush:
		h := f.RETHOf(b)
		o.kind, o.va, o.rkey = kOdd, h.VA(), h.RKey()
		o.flags |= fOwn | fBare
		if f.Op == hdr.AtomicWrite {
			o.len = 8
		}
	default: // SEND, and what makes no sense: the server will say so
		o.kind = kSend
		o.flags |= fBare
		m.whole = info&hdr.IsFirst == 0
		if f.Op.Info().Ext&hdr.HasIETH != 0 && !s.n.keys.invalidate(f.IETHOf(b).RKey(), s.c.Now().Add(s.cfg.settle)) {
			return m, false
		}
	}
	if f.BTHOf(b).AckReq() || o.kind == kRead || o.kind == kOdd || o.kind.atomic() {
		o.flags |= fAckReq
	}
	return m, true
}

// route is the connection that o, the next operation of flow fl, goes over; key is
// its key if it may go over another's. False when it must wait: also until all
// packets are here of a message that goes over another's connection.
func (s *wire) route(fl *flow, o *op, key *key, m shape) (*flow, bool) {
	n := s.n
	if m.unsure {
		return fl, s.usable(fl, fl, o, nil)
	}
	l, ok := s.choose(fl, o, key)
	if !ok || l == fl || m.whole || uint32(fl.stall.Len()) >= o.npsn {
		return l, ok
	}
	if o.npsn <= n.longest() && n.shelf.Room(int(o.npsn)) {
		return nil, false
	}
	// Too long to be gathered: over its own connection, behind all that is open.
	return fl, (fl.open == 0 || !fl.mixed && n.flow(fl.lane) == fl) && s.usable(fl, fl, o, key)
}

// insure makes o, of flow fl, one that can be sent again here, if others may come to
// be behind it on connection l: by a copy of x. False when it must wait for room.
func (n *node) insure(fl, l *flow, o *op, m shape, x *packet.Buf) (copied *packet.Buf, ok bool) {
	if o.makeable() {
		return nil, true
	}
	if l != fl || fl.isLent && m.whole && o.kind == kWrite && n.roomy() {
		if copied = n.copyOf(x); copied != nil {
			return copied, true
		}
	}
	o.flags |= fUnkept
	return nil, l == fl
}

// narrow is the number of operations of a connection that are remembered to
// begin with: what rxe has in flight at most (RXE_MAX_UNACKED_PSNS). Few of
// them stay in the processor's cache.
const narrow = 128

// last is the held frame that is number k of those of flow fl that wait; nil
// when there are not so many.
func (n *node) last(fl *flow, k int32) *packet.Buf {
	if fl.stall.Len() < int(k) {
		return nil
	}
	at := fl.stall.First()
	for ; k > 1; k-- {
		at = n.shelf.Next(at)
	}
	return n.shelf.Frame(at)
}

// mostUnacked is the most PSNs that a connection has under way when it takes one more
// request, and that are remembered of its client's: PSNs are compared within half of
// all there are, which is twice as many.
const mostUnacked = 1 << 22

// middle sends on a packet of the message that flow fl is in; false when it
// must wait.
func (s *wire) middle(fl *flow, x *packet.Buf, b []byte, f *hdr.Frame) bool {
	n := s.n
	o := n.get(fl.cur)
	info := f.Op.Info().Flags
	if info&(hdr.IsMiddle|hdr.IsLast) == 0 || (o.kind == kWrite) != (info&hdr.IsWrite != 0) {
		// The server will refuse it. It takes a PSN of its own.
		fl.cur = none
		return s.admit(fl, x, b, f)
	}
	l := n.carrier(o)
	if l.repair || f.Op.Info().Ext&hdr.HasIETH != 0 && !n.keys.invalidate(f.IETHOf(b).RKey(), s.c.Now().Add(s.cfg.settle)) {
		return false
	}
	if o.is(fKept) {
		y := n.copyOf(x)
		if y == nil {
			return false
		}
		s.n.retain(o, y)
	}
	k := uint32(hdr.PSNDiff(fl.admitted, o.cpsn))
	last := info&hdr.IsLast != 0
	if o.kind == kSend || k >= o.npsn || last {
		o.npsn = k + 1
	}
	if f.BTHOf(b).AckReq() {
		o.flags |= fAckReq
	}
	if l == fl {
		l.next = psnAdd(o.spsn, k+1)
	}
	if last {
		fl.cur = none
	}
	s.send(fl, o, x, b, f, k)
	fl.admitted = psnAdd(fl.admitted, 1)
	return true
}

// choose is the connection that o, of flow fl, goes over; false when
// it must wait. x is its key if it may go over another's connection.
func (s *wire) choose(fl *flow, o *op, x *key) (*flow, bool) {
	n := s.n
	if o.kind == kSend || o.is(fOwn) || !s.cfg.mode.moves() {
		return fl, (fl.open == 0 || !fl.mixed && n.flow(fl.lane) == fl) && s.usable(fl, fl, o, x)
	}
	w := n.words.of(o)
	tracked := w != none || o.kind.atomic() && s.cfg.learn || s.cfg.tracked(o.va, o.len)
	if o.modifies() && (!tracked || o.wide()) {
		o.flags |= fBare
	}
	want := fl
	if lanes := x.lanesOf(); tracked && len(lanes) > 0 {
		if want = lanes[0]; len(lanes) > 1 {
			want = lanes[hash(o.va>>lineShift)%uint32(len(lanes))]
		}
		if w != none && n.words.w[w].flight > 0 {
			want = n.flow(n.words.w[w].lane)
		}
	}
	if fl.open > 0 && (s.cfg.strict || o.wide() || fl.bare > 0) {
		// Behind its client's open ones; but from its own connection to a
		// shared one it goes when they are done.
		if s.cfg.strict && n.flow(fl.lane) == fl && want != fl && o.modifies() && !o.wide() && n.patient(n.stirred(fl)) {
			return nil, false
		}
		return n.flow(fl.lane), !fl.mixed && s.usable(n.flow(fl.lane), fl, o, x)
	}
	if w != none && fl.open > 0 && n.words.w[w].flight == 0 && (n.words.w[w].loose > 0 || !n.words.settled(w, s.c.Now())) {
		return nil, false // one of those may be its client's
	}
	if want != fl {
		if s.usable(want, fl, o, x) {
			return want, true
		}
		// Better late than out of order with the others.
		if fl.open > 0 || w != none && o.kind.atomic() && n.flow(n.words.w[w].lane) == want && n.words.w[w].flight > 0 && n.patient(n.stirred(want)) {
			if w != none && !n.fits(want, fl, o, x) {
				n.words.w[w].doubt() // so that no more go before it
			}
			return nil, false
		}
	}
	if fl.dead {
		for _, l := range x.lanesOf() {
			if s.usable(l, fl, o, x) {
				return l, true
			}
		}
	}
	return fl, s.usable(fl, fl, o, x)
}

// stuck reports whether o, of flow fl, whose key is x if it may go over another's
// connection, has no way left.
func (n *node) stuck(fl *flow, o *op, x *key) bool {
	return fl.dead && !slices.ContainsFunc(x.lanesOf(), func(l *flow) bool { return l != fl && n.fits(l, fl, o, x) })
}

// usable reports whether connection c can carry o, of flow fl, now;
// x is its key if it may go over another's connection.
func (s *wire) usable(c, fl *flow, o *op, x *key) bool {
	n := s.n
	if !c.synced || c.dead || c.repair || c.unsure || c.inDoubt || c.gated && n.shut(c, o) || hdr.PSNDiff(c.next, c.acked) > mostUnacked {
		return false
	}
	if c == fl {
		if c.guests == 0 {
			return true
		}
		if o.is(fOwn) || o.kind == kSend || !o.makeable() && (o.npsn > 1 || !n.roomy()) {
			c.claimed = true // others' operations come to an end first
			return false
		}
	} else {
		if c.claimed || c.unkept > 0 || n.row(c).State == conn.Closing || !n.fits(c, fl, o, x) {
			return false
		}
		if s.c.Now().Sub(c.heard) > s.cfg.alive {
			s.query(c)
			return false
		}
	}
	if c.rd >= n.depth(c) && (o.kind == kRead || o.kind.atomic() && !n.foretold(o, c)) {
		return false
	}
	return true
}

// fits reports whether o, of flow fl, with key x, is of a sort that another's
// connection c can carry.
func (n *node) fits(c, fl *flow, o *op, x *key) bool {
	return x != nil && c.may>>accessOf(o)&1 != 0 && c.granted(x) && c.trusted && c.up.alike(&fl.up) &&
		(o.len <= min(c.effMTU(), fl.effMTU()) || c.mtu != 0 && c.mtu == fl.mtu && o.npsn <= n.longest())
}

// longest is how many packets an operation has at most that goes over another's
// connection: it is held until it is complete, or has others wait for its answer. A
// client may wait for an acknowledgement after 128 packets (RXE_MAX_UNACKED_PSNS).
func (n *node) longest() uint32 { return min(uint32(n.shelf.Cap())/4, 64) }

// replaces reports whether atomics on the node's words may become WRITEs.
func (n *node) replaces() bool { return n.cfg.mode == Replace && !n.twin.Load() }

// foretold reports whether what o finds in its word is known, so that an atomic
// needs none of the server's responder resources on connection c.
func (n *node) foretold(o *op, c *flow) bool {
	if w := n.words.of(o); w != none && n.replaces() {
		v := &n.words.w[w]
		return v.vouched && n.words.believes(v) && n.writable(o, c)
	}
	return false
}

// writable reports whether connection c may write the word of atomic o: memory
// that takes atomics need not take WRITEs, nor need a queue pair; and whose atomic
// would be refused may not write in its place. What only the
// client of c can send again must not be ahead of what others wait for.
func (n *node) writable(o *op, c *flow) bool {
	if !o.is(fRight) || c.unkept > 0 {
		return false
	}
	if n.cfg.writable {
		return true
	}
	x := n.keys.find(o.rkey)
	return x != nil && x.until == 0 && c.may>>aWrite&1 != 0 && c.granted(x) && x.allows(o, aWrite)
}

// depth is the number of READs and atomics that the server takes at once on
// connection c (IBTA: responder resources), as the connection manager told, or
// as its client has had at once.
func (n *node) depth(c *flow) int32 {
	if r := n.row(c); r.Learnt == conn.Managed {
		return int32(r.Server.Resources)
	}
	if n.cfg.rdatomic != 0 {
		return n.cfg.rdatomic
	}
	return int32(c.deep)
}

// enter puts op o of flow fl in order: on connection x, and with the others of
// its words. False when it must wait, and nothing has changed.
func (n *node) enter(fl *flow, o *op, x *flow, key *key) bool {
	w := n.words.of(o)
	if w == none && n.cfg.trackable(o) {
		w = n.words.track(o.va, o.rkey, n.cfg.vouches(o.va))
	}
	switch {
	case !o.modifies():
	case w == none:
		if !n.enterFree(o, x) {
			return false
		}
	case !n.enterWord(fl, o, x, w):
		return false
	}
	// A READ that is done again may begin in its middle.
	lane := n.index(x)
	o.lane, o.spsn = lane, psnAdd(x.next, -o.got&hdr.PSNMask)
	n.link(x, o, n.c.Now())
	x.next = psnAdd(x.next, o.npsn-o.got)
	if o.answered() {
		x.rd++
		if x == fl && x.guests == 0 {
			x.peak = max(x.peak, int16(min(x.rd, 1<<14)))
		}
	}
	if o.is(fUnkept) {
		x.unkept++
	}
	if x == fl {
		x.claimed = false
		if o.kind == kSend || o.is(fOwn) {
			x.private = n.c.Now()
			n.keys.recall(x)
		}
	}
	if x != fl {
		o.flags |= fGuest
		x.guests++
		key.guests++
		n.c.Count(ctrMoved, 1)
		n.diverge(fl)
		n.diverge(x)
	} else if o.spsn != o.cpsn || o.is(fReplaced) {
		n.diverge(fl)
	}
	if fl.open == 0 {
		fl.mixed = false
	} else if fl.lane != lane {
		fl.mixed = true
	}
	fl.open++
	fl.lane = lane
	if o.is(fBare) {
		fl.bare++
	}
	return true
}

// enterWord puts op o of flow fl, which changes word w and nothing else, in order
// with the word's others, if that can be. False when it must wait.
func (n *node) enterWord(fl *flow, o *op, l *flow, w int32) bool {
	v := &n.words.w[w]
	v.used = true
	like := v.rkey == o.rkey && o.len == 8 && o.kind != kOdd && (v.flight == 0 || n.flow(v.lane) == l)
	ordered := like && v.loose == 0
	// The server may execute a WRITE before an atomic that is ahead of it. It
	// waits, if the word's atomics do.
	passes := v.atomics > 0 && (o.kind == kWrite || o.kind.atomic() && n.foretold(o, l))
	if ordered && passes && n.foretold(o, l) {
		if n.patient(n.stirred(l)) {
			return false
		}
		ordered = false
	}
	if !ordered && v.writes > 0 {
		v.doubt() // and no more of them, until it went
		return false
	}
	if like && v.loose > 0 && n.patient(n.words.u[w].loosened) && (l != fl || fl.isLent) {
		return false // soon it is in order; otherwise it keeps the others out of it
	}
	if ordered && o.kind.atomic() && n.words.awaits(v) && v.vouched && n.replaces() && n.patient(n.stirred(n.flow(v.lane))) {
		return false // its outcome will be known when that of the probe is
	}
	o.word = w
	if o.kind.atomic() {
		n.c.Count(ctrAtomics, 1)
	}
	if !ordered {
		if v.loose++; v.loose == 1 {
			n.words.u[w].loosened = n.c.Now()
		}
		v.doubt()
		o.flags |= fLoose
		n.c.Count(ctrLoose, 1)
		return true
	}
	v.lane = n.index(l)
	v.flight++
	if passes {
		v.doubt()
	} else {
		n.effect(o, v, l)
	}
	if o.asAtomic() {
		v.atomics++
	}
	return true
}

// enterFree counts o, which changes memory and is not of one tracked word, and
// goes over connection l. The words that it touches are not known until it is
// done. False when it must wait.
func (n *node) enterFree(o *op, l *flow) bool {
	wait, any := n.words.touch(o.va, o.len, n.index(l), n.words.free.gen, 0)
	if !wait {
		if n.words.free.enter() {
			o.flags |= fOdd
		}
		if any {
			n.c.Count(ctrLoose, 1)
		}
	}
	if any {
		n.words.free.now()
	}
	return !wait
}

// effect computes what op o, which is in order, does to its word.
func (n *node) effect(o *op, v *word, l *flow) {
	known := n.words.believes(v)
	v.probe = none
	if !known {
		if v.belief = 0; !n.words.settled(o.word, n.c.Now()) {
			return
		}
	}
	if o.kind == kWrite {
		if !known {
			n.c.Count(ctrCached, 1)
		}
		n.words.believe(v, o.out)
		return
	}
	compare, compareMask, swapMask := o.prior, ^uint64(0), ^uint64(0)
	if o.kind == kMaskedCAS {
		m := n.beside(o)
		compareMask, swapMask = m.compareMask, m.swapMask
	}
	switch {
	case o.kind == kOtherAtomic:
		v.doubt()
	case !known:
		v.probe, v.belief = n.place(o), n.words.beliefs
		*n.beside(o) = more{want: compare, compareMask: compareMask, swapMask: swapMask}
		o.flags |= fProbe
	case v.vouched && n.replaces():
		now := after(o.kind, v.value, o.out, compare, compareMask, swapMask)
		switch {
		case n.c.Now().Sub(v.checked) >= n.cfg.verify && l.rd < n.depth(l):
			v.checked = n.c.Now()
			n.foretell(o, v)
		case n.writable(o, l):
			o.prior, o.out, o.flags = v.value, now, o.flags|fReplaced
			n.words.writes++
			v.writes++
			l.writes++
			n.c.Count(ctrReplaced, 1)
		default:
			n.foretell(o, v)
		}
		v.value = now
	default:
		n.foretell(o, v)
		v.value = after(o.kind, v.value, o.out, compare, compareMask, swapMask)
	}
}

// send gives the server packet k of op o of flow fl: frame x, the bytes b, as its
// client sent it, with headers f.
func (s *wire) send(fl *flow, o *op, x *packet.Buf, b []byte, f *hdr.Frame, k uint32) {
	n := s.n
	l := n.carrier(o)
	psn := psnAdd(o.spsn, k)
	if f.ECNOf(b) == hdr.CE {
		l.marked.add(n.index(fl))
	}
	if o.is(fReplaced) {
		h := &l.up
		size, ecn := h.len()+hdr.RETHLen+8+hdr.ICRCLen, f.ECNOf(b)
		if !resize(x, size) { // smaller than an atomic: cannot be
			s.c.Drop(x, reasonNoBuf)
			return
		}
		b = x.Bytes()
		h.write(b, o, psn)
		h.frame().SetECN(b, ecn) // a mark is of this operation
		s.c.Mark(x, packet.Forwarded, reasonReplaced)
		s.c.Emit(toServers, x)
		return
	}
	ours, h := l != fl, f.BTHOf(b)
	// What is open must be answered: others may wait for it.
	ack := fl.trusted && f.Op.Info().Flags&(hdr.IsLast|hdr.IsOnly) != 0 && !h.AckReq()
	if ours || ack || h.PSN() != psn {
		if ours {
			l.up.address(b)
			s.c.Mark(x, packet.Forwarded, reasonMoved)
		}
		noUDPSum(b, f)
		h.SetPSN(psn)
		if ack {
			h.SetAckReq(true)
		}
		hdr.SetICRC(b, f)
	}
	s.c.Emit(toServers, x)
}

// drain sends on what waits of flow fl, as far as it may.
func (s *wire) drain(fl *flow) {
	for !fl.stall.Empty() {
		x := s.n.shelf.Mine(s.c, &fl.stall, s.n.worker)
		if x == nil {
			return
		}
		if b := x.Bytes(); hdr.Parse(b, &s.g) != hdr.IsRoCE || !s.admit(fl, x, b, &s.g) {
			return
		}
		s.n.shelf.Remove(&fl.stall)
		if fl.doomed {
			s.n.end(fl)
		}
	}
}

// resume lets go what waits, of all flows, as far as it may.
func (s *wire) resume() {
	n := s.n
	s.admitStrangers()
	kept := n.waiting[:0]
	for _, f := range n.waiting {
		s.drain(f)
		if !f.stall.Empty() {
			kept = append(kept, f)
		} else {
			f.waits = false
		}
	}
	n.waiting = kept
}

// owned reports whether it is known whose the queue pair is that the frame at hand is
// for: of a connection that was announced, or that the server has answered. Whoever
// was only the first to send for it may not be its owner.
func (n *node) owned(ends *conn.Ends, f *hdr.Frame, b []byte) bool {
	slot, _ := n.conns.Find(ends.Dst, f.BTHOf(b).DestQP())
	if slot == conn.NoSlot {
		return false
	}
	r := n.conns.Row(slot)
	return r.Learnt != conn.Inferred || r.State == conn.Paired
}

// retain holds a packet of o until it is answered.
func (n *node) retain(o *op, x *packet.Buf) {
	if !o.is(fKept) {
		o.flags |= fKept
		o.out = 0
	}
	n.keep(o, x)
}
