package swordbox

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// clientSide is the responder, for clients: it takes a request that has the expected PSN
// (client.arrived), sends it on when its turn has come, answers a duplicate from the record, and
// gives each client its responses in the order of its requests, with its PSNs and MSNs. carrierSide
// calls settle, behind each response, and answerAgain, when the server was heard on a connection
// whose client had sent a duplicate.
type clientSide struct {
	*wire
	carriers *carrierSide
}

// request handles a client's request x with the bytes b, and disposes of x.
func (s *clientSide) request(x *packet.Buf, b []byte) {
	fl, row := s.sender(x, b)
	if fl == nil {
		return
	}
	psn := s.f.BTHOf(b).PSN()
	if !fl.synced && !s.follow(fl, x, b, psn) {
		return
	}
	if !fl.bound && !fl.counted && !fl.up.same(b, &s.f) {
		s.forgo(fl, x, b)
		return
	}
	if !(s.f.Plain && fl.shape == plain && fl.up.arrives((*[plainLen]byte)(b), row)) {
		if b = s.arrives(fl, row, x, b); b == nil {
			return
		}
	}
	if fl.lost != 0 || fl.gone {
		answerEnded(s, fl, x, b, psn)
		return
	}
	if psn == fl.arrived && !fl.vague && !fl.unsure && (fl.bound || fl.counted || !fl.lags) {
		s.take(fl, x, b, psn) // as turn would do
		return
	}
	s.turn(fl, x, b, psn)
}

// answerEnded handles request x of flow fl, which is lost or gone; b is the frame's bytes, psn its PSN. It disposes
// of x.
//
//go:noinline
func answerEnded(s *clientSide, fl *flow, x *packet.Buf, b []byte, psn uint32) {
	if fl.lost != 0 && s.n.ledger.byJournal(fl) {
		if asks(s, fl, b, psn); !fl.oldestAgain(s.c.Now(), psn) {
			s.c.Drop(x, reasonReset)
			return
		}
	}
	if d := hdr.PSNDiff(psn, fl.ended&hdr.PSNMask); d > farOff || d < -farOff { // of a new connection that has the same queue pairs
		if !fl.bound {
			s.forgo(fl, x, b)
			return
		}
		s.stranger(x, b, reasonStranger)
		return
	}
	if fl.lost != 0 {
		s.tell(fl, x, b)
		return
	}
	if psnLess(psn, fl.ended) && !s.f.Op.Has(hdr.IsRead) {
		s.repeat(fl, x, b, psn) // it was answered before the end
		return
	}
	s.refuse(fl)
	s.c.Drop(x, reasonReset)
}

// arrives checks that request x of flow fl, with row row and bytes b, reaches the server's end and that the server
// accepts its address, partition, hop limit and shape. It returns the frame's bytes, which may have moved, or nil if
// it disposed of x.
func (s *clientSide) arrives(fl *flow, row *conn.Row, x *packet.Buf, b []byte) []byte {
	if partition, address := row.Takes(b, &s.f); !(partition && address) && s.lost(fl, x, b, partition) {
		return nil
	}
	if hops := s.f.HopsOf(b); (hops < fl.up.hops() || !hdr.Ethernet(b).FromStation()) && s.strands(fl, x, b, hops) {
		return nil
	}
	if fl.counted && !(s.f.Plain && fl.shape == plain && s.f.UDPOf(b).Checksum() == 0) {
		return s.uniform(fl, x, b)
	}
	return b
}

// forgo ceases to follow flow fl, whose ends count alike, and passes request x with the bytes b as a stranger's. The
// request contradicts those on record, and no answer of the server shows yet which of both the client sent and which
// somebody else made up.
func (s *wire) forgo(fl *flow, x *packet.Buf, b []byte) {
	f := s.f
	back := psnLess(f.BTHOf(b).PSN(), fl.arrived)
	if back { // before the waiting requests, so that the server gets them in order
		s.stranger(x, b, reasonStranger)
	}
	s.forget(fl)
	if s.f = f; !back {
		s.stranger(x, b, reasonStranger)
	}
}

// forget ceases to follow flow fl, whose ends count alike. The requests of fl that wait pass as strangers'.
func (s *wire) forget(fl *flow) {
	n := s.n
	for _, q := range []*hold.Queue{&fl.late, &fl.stall, &fl.early} {
		for !q.Empty() {
			if y, _ := n.shelf.Take(s.c, q, n.worker); y != nil {
				hdr.Parse(y.Bytes(), &s.f)
				s.stranger(y, y.Bytes(), reasonStranger)
			}
		}
	}
	n.unfollow(fl)
}

// uniform gives request x of flow fl the shape of the requests that the server answered, if both differ only in a
// priority tag, which all servers accept. It drops a request of another shape or with a wrong UDP checksum: the
// server might drop it unseen, and would then expect its PSN while the record counts it as sent. uniform returns the
// frame's bytes, which may have moved, or nil if it disposed of x.
func (s *wire) uniform(fl *flow, x *packet.Buf, b []byte) []byte {
	switch {
	case !fl.sumless && !udpSumOK(b, &s.f) || !fl.up.alike(b, &s.f):
		s.c.Drop(x, reasonShape)
		return nil
	case !fl.up.fits(&s.f) && !fl.up.wear(x, &s.f):
		s.c.Drop(x, reasonNoBuf)
		return nil
	}
	return x.Bytes()
}

// turn handles request x of the followed flow fl according to its PSN psn: expected, beyond, or a duplicate.
func (s *clientSide) turn(fl *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	d := hdr.PSNDiff(psn, fl.arrived)
	if (fl.vague || fl.unsure) && d >= 0 && uint32(d) < n.mostOf(fl)+farOff {
		s.wait(fl, x)
		return
	}
	if d >= 0 && d <= farOff && !fl.counted && !fl.bound && fl.mustRepeat() && s.c.Now().Sub(fl.heard) < s.cfg.alive {
		s.c.Drop(x, reasonPSNGap) // the server would drop it, and its client repeats it after the request that the server had no buffer for
		return
	}
	if d != 0 && s.outOfTurn(fl, x, b, psn, d) {
		return
	}
	switch {
	case d > 0:
		// A responder would ask for what is missing; once it has answered
		// what came before.
		if !fl.gapNAK {
			fl.gapNAK, fl.toldGap = true, false
			n.due(fl)
		}
		s.c.Drop(x, reasonPSNGap)
		return
	case d < 0 && s.before(fl, b, psn) && !fl.onward:
		s.stranger(x, b, reasonRepeated) // from before the box followed the connection
		return
	case d < 0:
		s.repeat(fl, x, b, psn)
		return
	}
	s.take(fl, x, b, psn)
}

// settle does the work that frames have caused: it clears rows that were removed, gives clients the answers that are
// due, and sends on requests that may go. It is not inlined, so that its callers fit the processor's first cache.
//
//go:noinline
func (s *clientSide) settle() {
	n := s.n
	if !n.strangers.Empty() {
		s.admitStrangers()
	}
	if len(n.waits.all) != 0 {
		n.waits.rotate(1)
	}
	for left := mostResumed; ; {
		if len(n.removed)|len(n.known) != 0 {
			s.removeAndReadmit()
		}
		for k := 0; k < len(n.ready); k++ {
			f := n.ready[k]
			f.isReady = false
			s.deliver(f)
			n.ledger.note(f)
		}
		n.ready = n.ready[:0]
		if n.waits.n != 0 {
			left = s.resume(left)
		}
		if len(n.removed)|len(n.known)|len(n.ready) == 0 {
			return
		}
	}
}

// removeAndReadmit clears the flows whose rows were removed, and handles the requests behind READs whose length
// became known.
func (s *clientSide) removeAndReadmit() {
	n := s.n
	for _, f := range n.removed {
		s.remove(f)
	}
	n.removed = n.removed[:0]
	for k := 0; k < len(n.known); k++ {
		s.readmit(n.known[k])
	}
	n.known = n.known[:0]
}

// wait holds request x of flow fl behind a READ whose number of PSNs is unknown. Only the READ's answer shows
// whether x has the expected PSN, lies beyond it, or repeats a part of the READ. A guess by the PSNs of later
// requests would be unsafe, because a client sends many requests at once, some may be lost, and strangers may make
// up some.
func (s *wire) wait(fl *flow, x *packet.Buf) {
	if h := &s.n.shelf; !h.mayHold(fl) || h.Put(&fl.early, x, s.n.worker, struct{}{}) == 0 {
		s.c.Drop(x, reasonHoldFull)
		return
	}
	s.n.shelf.tally(fl)
}

// readmit handles the requests of flow fl that waited for the length of a READ, in the order of their arrival, until
// one of them is a READ of unknown length again. It drops them if it gets no buffer to copy a frame that another
// worker holds.
func (s *clientSide) readmit(fl *flow) {
	for !fl.early.Empty() && !fl.vague && !fl.unsure && !fl.gone {
		x := s.n.shelf.Mine(s.c, &fl.early, s.n.worker)
		if x == nil {
			s.n.shelf.Drop(s.c, &fl.early, s.n.worker, reasonHoldFull)
			break
		}
		s.n.shelf.Remove(&fl.early)
		b := x.Bytes()
		if hdr.Parse(b, &s.f) != hdr.IsRoCE || !s.ends.Of(b, &s.f) {
			s.c.Drop(x, reasonAbsorbed)
			continue
		}
		s.turn(fl, x, b, s.f.BTHOf(b).PSN())
	}
	s.n.shelf.tally(fl)
}

// sender returns the flow and the row of the connection that request x, with the bytes b, belongs to. It returns nil
// if there is no such connection, and has disposed of x.
func (s *clientSide) sender(x *packet.Buf, b []byte) (*flow, *conn.Row) {
	n := s.n
	slot := conn.NoSlot
	if s.f.Plain { // as most frames are: only the slot has to be found
		slot = n.conns.Easily(s.c.Now(), &s.ends, b, s.f.Op.Info().Flags, 0, n.conns.Ahead(&s.ends, b))
	}
	if slot < 0 {
		if slot = senderOf(s, x, b); slot == conn.NoSlot {
			return nil, nil
		}
	}
	if len(n.removed) > 0 { // connections that had this row, or its queue pair
		for _, f := range n.removed {
			s.remove(f)
		}
		n.removed = n.removed[:0]
	}
	return &n.flows[slot], n.conns.Row(slot)
}

// senderOf returns the slot of the connection of request x when conn.Easily did not find it, or conn.NoSlot if it
// disposed of x.
func senderOf(s *clientSide, x *packet.Buf, b []byte) conn.Slot {
	n := s.n
	slot, e := n.conns.Request(s.c.Now(), &s.ends, b, &s.f)
	switch e {
	case conn.Spoofed:
		if !s.cfg.dropSpoofed || !n.owned(&s.ends, &s.f, b) {
			s.stranger(x, b, reasonSpoofed) // the server may take it
			return conn.NoSlot
		}
		s.carriers.dispute(b)
		s.bad(toClients, x, reasonSpoofed, true)
		return conn.NoSlot
	case conn.Full:
		s.stranger(x, b, reasonConnFull)
		return conn.NoSlot
	}
	if slot == conn.NoSlot {
		s.stranger(x, b, reasonStranger)
	}
	return slot
}

// owned reports whether the destination queue pair of frame b, with headers f, has a known owner: a connection that was
// announced, or on which the server has answered. The first sender to a queue pair need not be its owner, and a
// connection that has lapsed is not its owner either.
func (r *record) owned(ends *conn.Ends, f *hdr.Frame, b []byte) bool {
	slot, _ := r.conns.Find(ends.Dst, f.BTHOf(b).DestQP())
	if slot == conn.NoSlot {
		return false
	}
	row := r.conns.Row(slot)
	if r.flows[slot].lost != 0 { // the server may have given the number to another connection
		return false
	}
	return (row.Learnt != conn.Inferred || row.State == conn.Paired) && !r.hasLapsed(&r.flows[slot])
}

// take handles request x of flow fl, whose PSN psn is the expected one: it sends x on, or holds it behind those that
// wait.
func (s *clientSide) take(fl *flow, x *packet.Buf, b []byte, psn uint32) {
	n := s.n
	n.waits.hear(fl)
	fl.gapNAK = false
	k, is := uint32(1), s.f.Op.Info().Flags
	if is&hdr.IsRead != 0 {
		k = fl.packets(&s.f, b)
	} else if is&(hdr.IsFirst|hdr.IsMiddle) != 0 {
		fl.learnPart(&s.f, b)
	}
	fl.arrived = psnAdd(psn, k)
	if fl.young && hdr.PSNDiff(psn, fl.start) > mostUnacked {
		fl.young = false
	}
	rest, part := fl.rest, fl.part
	if is&hdr.IsWrite != 0 || rest != 0 {
		fl.measure(b, &s.f)
	}
	if !fl.stall.Empty() || !s.admit(fl, x, b, &s.f) {
		if !n.shelf.mayHold(fl) || n.shelf.Put(&fl.stall, x, s.n.worker, struct{}{}) == 0 {
			fl.arrived, fl.rest, fl.part = psn, rest, part // as if it had not come
			s.c.Drop(x, reasonHoldFull)
			if !fl.waits {
				n.waits.uncount(fl)
			}
			return
		}
		n.waits.wait(fl)
		n.shelf.tally(fl)
		if fl.stall.Len() > 1 {
			s.try(fl, mostResumed) // it may complete a message
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
		s.end(fl)
	}
}

// farOff is the distance in PSNs from the expected PSN beyond which no retransmission lies. It exceeds the number of
// PSNs that a connection has under way: Linux rxe has at most 128 (RXE_MAX_UNACKED_PSNS), and send queues of devices
// hold 32,768 requests at most. Only a READ may take more, up to 2^23: one for each packet of its answer (isVast,
// isAwaited).
const farOff = 1 << 16

// isVast reports whether request b of flow fl, with headers f and PSN psn, repeats a READ on record from one of its
// packets on. The PSN of such a request may be more than farOff behind the expected one.
func (n *order) isVast(fl *flow, f *hdr.Frame, b []byte, psn uint32) bool {
	o, _ := n.find(fl, psn)
	return o != nil && o.kind == kRead && n.same(o, f, b, uint32(hdr.PSNDiff(psn, o.cpsn)), fl.mtu)
}

// outOfTurn handles request x of flow fl whose PSN psn is d away from the expected one, and disposes of x. It returns
// false, and leaves x, if the caller is to handle x as a duplicate or as a request beyond a gap.
//
// On a connection that was quiet, x may belong to another connection with the same queue pair numbers, which nobody
// announced. Anybody can make up such a request, so only the server's answer decides. If both ends count alike, x
// passes: the server executes x if the queue pair belongs to another connection by then, and its answer shows that
// (see confirmed). Otherwise x is dropped, and the server is asked by a duplicate of an old request, which it
// acknowledges as before if nothing has changed.
func (s *clientSide) outOfTurn(fl *flow, x *packet.Buf, b []byte, psn uint32, d int32) bool {
	n := s.n
	far := d > farOff || d < -farOff && !n.isVast(fl, &s.f, b, psn)
	switch {
	case !fl.counted && !fl.bound:
		if d < 0 && (fl.young && !fl.onward && psnLess(psn, fl.start) || s.recounts(fl, b, psn)) {
			return false
		}
		s.forgo(fl, x, b)
		return true
	case n.row(fl).Learnt == conn.Managed || !fl.trusted:
		return false // the connection manager would have announced a new connection
	}
	if fl.open > 0 || fl.oldest != none || !fl.stall.Empty() || s.c.Now().Sub(fl.heard) < s.cfg.alive {
		if far {
			s.c.Drop(x, reasonPSNGap)
		}
		return far
	}
	switch {
	case !fl.bound && (far || s.before(fl, b, psn)):
		if psn != fl.strangeEnd {
			fl.strange = psn
		}
		fl.strangeEnd = psnAdd(psn, fl.packets(&s.f, b))
		s.stranger(x, b, reasonStranger)
		return true
	case far || d > 0:
		fl.disputed = fl.disputed || far
		s.carriers.query(fl)
		s.c.Drop(x, reasonPSNGap)
		return true
	}
	return false
}

// before reports whether request b of flow fl, with PSN psn, may be one that the client sent before fl was followed. It
// returns false for the question of another box (see question), which is answered after the server was asked here.
func (s *wire) before(fl *flow, b []byte, psn uint32) bool {
	return fl.young && psnLess(psn, fl.start) && !(fl.trusted && s.f.Op == hdr.WriteOnly && s.f.RETHOf(b).DMALength() == 0 && hdr.PSNDiff(psn, fl.start) <= -longSince/2)
}

// recounts reports whether request b of flow fl, with PSN psn, repeats an open operation. If so, it restarts the
// comparison of MSNs (see count) behind all open operations, because the answer to a duplicate may have a later MSN.
func (s *wire) recounts(fl *flow, b []byte, psn uint32) bool {
	o, _ := s.n.find(fl, psn)
	if o == nil || o.state != sOpen || !s.n.same(o, &s.f, b, uint32(hdr.PSNDiff(psn, o.cpsn)), fl.mtu) {
		return false
	}
	fl.msn, fl.counts = 0, fl.tail
	return true
}

// follow takes over the numbering of flow fl at request x, with PSN psn, if both ends are known and x has the
// expected PSN. Otherwise it passes x as a stranger's and returns false.
func (s *clientSide) follow(fl *flow, x *packet.Buf, b []byte, psn uint32) bool {
	row := s.n.row(fl)
	begins := row.Client.HasPSN && !fl.seen
	if begins {
		fl.seen, fl.arrived = true, row.Client.StartPSN
	}
	turn := fl.inTurn(&s.f, b, psn) || begins && row.Client.StartPSN == psn
	fl.seen = true
	switch {
	case row.State == conn.HalfOpen:
		s.stranger(x, b, reasonUnpaired)
		return false
	case !turn || row.State != conn.Paired || !s.cfg.mode.moves() || !s.sync(fl, b, psn):
		s.stranger(x, b, reasonStranger)
		return false
	}
	return true
}

// sync takes over the numbering of flow fl, whose two ends count alike, from request b with PSN psn on. It returns
// false if the box cannot make frames for the connection.
func (s *clientSide) sync(fl *flow, b []byte, psn uint32) bool {
	n := s.n
	r := n.row(fl)
	if r.Server.Port == 0 && r.Server.QPN == 0 || !n.mayEndAt(fl, r, s.c.Now()) {
		return false
	}
	mtu, mtuLow := fl.mtu, max(fl.mtuLow, 256)
	if mtu == 0 {
		mtu = s.cfg.mtu
	}
	next := fl.arrived
	*fl = noFlow
	fl.synced, fl.young, fl.start, fl.mtu, fl.mtuLow = true, true, psn, mtu, mtuLow
	fl.arrived, fl.admitted, fl.span = psn, psn, min(n.window, narrow)
	fl.first = n.roomiest(fl)
	fl.head, fl.tail, fl.counts = fl.first, fl.first, fl.first
	fl.next, fl.acked, fl.expect = psn, psnAdd(psn, hdr.PSNMask), psn
	if r.MTU != 0 && r.Learnt != conn.Inferred { // otherwise it is the MTU of any request, perhaps a made-up one
		fl.mtu = uint32(r.MTU)
	}
	if !fl.up.learn(b, &s.f) {
		*fl = noFlow
		fl.seen, fl.arrived = true, next
		return false
	}
	fl.shape, fl.sumless = fl.up.shape, !udpSumOK(b, &s.f)
	n.follows.Store(true)
	n.conns.Pin(n.slot(fl)) // from here on this app gives the requests to the server their PSNs
	s.c.Count(ctrSynced, 1)
	return true
}
