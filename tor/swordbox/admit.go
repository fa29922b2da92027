package swordbox

import (
	"unsafe"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/prefetch"
)

// admit sends the next request of flow fl on: x with the bytes b and headers f. It returns false, and leaves x, if the
// request must wait.
func (s *clientSide) admit(fl *flow, x *packet.Buf, b []byte, f *hdr.Frame) bool {
	n := s.n
	n.waits.why = queue{}
	if fl.cur != none {
		return s.middle(fl, x, b, f)
	}
	if fl.tail&(2*fl.span-1) == fl.span && fl.tail-fl.head >= fl.span/4 && fl.span < n.window {
		fl.span *= 2 // the operations on record keep their places, in the lower half
	}
	if fl.tail-fl.head >= fl.span && !n.grow(fl) || fl.unsent > 0 {
		return false
	}
	o := n.op(fl, fl.tail)
	if o.isPlaced() { // another operation has the place
		if o = otherPlace(&n.record, fl); o == nil {
			return false
		}
	}
	if fl.first != fl.head && (fl.tail-fl.first != fl.span || fl.isFar(o)) { // in a full ring o is the oldest operation
		n.fade(fl)
	}
	if fl.tail-fl.first >= fl.span {
		fl.first = fl.tail - fl.span + 1
		fl.outlive(o)
	}
	m, ok := s.classify(fl, o, b, f)
	if !ok {
		return false
	}
	key := n.nicOf(fl).keys.movable(fl, o)
	if key != nil {
		o.flags |= fRight
	}
	w := n.words.of(o)
	if o.kind == kRead {
		o.prior = uint64(w)
	}
	var c *flow
	if m.whole && !m.unsure {
		c, ok = s.choose(fl, o, key, w)
	} else {
		c, ok = s.route(fl, o, key, w, m)
	}
	if !ok {
		return dooms(s, fl, o, key, x)
	}
	var copied *packet.Buf
	if !o.makeable() {
		if copied, ok = s.insure(fl, c, o, m, x); !ok {
			return false
		}
	}
	if !n.enter(fl, o, c, key, w) {
		s.discard(copied)
		return false
	}
	if copied != nil {
		s.n.shelf.retain(o, copied)
	}
	fl.tail++
	prefetch.Line(uintptr(unsafe.Pointer(o)) + unsafe.Sizeof(*o)) // the next request's: the ring is longer than the processor's caches
	fl.unsure = m.unsure
	if fl.vague || !m.whole {
		noteAdmitted(s, fl, c, o, m)
	}
	s.send(fl, c, o, x, b, f, 0)
	fl.admitted = psnAdd(fl.admitted, 1)
	if o.kind == kRead {
		if fl.admitted = psnAdd(o.cpsn, o.npsn); o.npsn > farOff {
			n.fade(fl)
		}
	}
	return true
}

// noteAdmitted updates flow fl and connection c, which carries o, if o has more packets or is a READ whose number of
// PSNs was unknown.
//
//go:noinline
func noteAdmitted(s *clientSide, fl, c *flow, o *op, m extent) {
	n := s.n
	if fl.vague && fl.stall.Len() <= 1 { // o is the READ of unknown length
		if fl.vague = false; !m.unsure { // the path MTU has become known meanwhile
			fl.arrived = psnAdd(o.cpsn, o.npsn)
			n.known = append(n.known, fl)
		}
	}
	if !m.whole {
		fl.cur, fl.began = n.place(o), s.c.Now()
		if o.kind == kSend {
			o.npsn = 1 // counted as packets come
		}
		if c == fl {
			c.next = psnAdd(o.spsn, 1)
		} else {
			c.next = psnAdd(o.spsn, o.npsn)
		}
	}
}

// dooms tells the client of flow fl by a NAK, and drops its request x, operation o, if no connection can carry o and
// fl has no open operations; otherwise it returns false. key is o's key, or nil if o may not go over other clients'
// connections.
//
//go:noinline
func dooms(s *clientSide, fl *flow, o *op, key *key, x *packet.Buf) bool {
	if fl.open == 0 && s.n.stuck(fl, o, key) {
		s.answer(fl, hdr.Acknowledge, o.cpsn, hdr.SynNAKRemoteOperation, 0)
		s.c.Drop(x, reasonReset)
		fl.doomed = true
		return true
	}
	return false
}

// discard gives back a copy, if there is one.
//
//go:noinline
func (s *wire) discard(copied *packet.Buf) {
	if copied != nil {
		s.c.Discard(copied)
	}
}

// extent says what the first packet of a message shows of the message's packets.
type extent struct {
	whole  bool // there are no other packets
	unsure bool // a READ whose answer shows how many PSNs it takes
}

// classify fills operation o from request b, with headers f, the next one of flow fl. It returns false if the request
// must wait.
func (s *clientSide) classify(fl *flow, o *op, b []byte, f *hdr.Frame) (m extent, ok bool) {
	n := s.n
	*o = op{} // a literal with fields would be built elsewhere: its copy waits until the processor has stored the fields
	o.cpsn, o.npsn, o.lane, o.next, o.word = fl.admitted, 1, none, none, none
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
			if l := n.shelf.last(fl, int32(min(o.npsn, 1<<30))); l != nil && hdr.Parse(l.Bytes(), &s.h) == hdr.IsRoCE && s.h.Op.Info().Ext&hdr.HasImmDt != 0 {
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
	default: // SEND, or a request that the server will refuse
		o.kind = kSend
		o.flags |= fBare
		m.whole, o.prior = info&hdr.IsFirst == 0, sendOf(f, b)
		if f.Op.Info().Ext&hdr.HasIETH != 0 && !n.invalidates(o, f.IETHOf(b).RKey()) {
			return m, false
		}
	}
	if f.BTHOf(b).AckReq() || o.kind == kRead || o.kind == kOdd || o.kind.atomic() {
		o.flags |= fAckReq
	}
	return m, true
}

// route is choose for an operation o of flow fl that has more packets, or is a READ whose number of PSNs is unknown. It
// returns false if o must wait. A message that goes over another client's connection also waits until all its packets
// are here.
func (s *clientSide) route(fl *flow, o *op, key *key, w int32, m extent) (*flow, bool) {
	n := s.n
	if m.unsure {
		return fl, s.usable(fl, fl, o, nil)
	}
	c, ok := s.choose(fl, o, key, w)
	if !ok || c == fl || m.whole || uint32(fl.stall.Len()) >= o.npsn {
		return c, ok
	}
	if o.npsn <= n.shelf.longest() && n.shelf.Room(3*int(o.npsn)) {
		return nil, false
	}
	// Too long to be gathered: over its own connection, behind all that is open.
	return fl, (fl.open == 0 || !fl.mixed && n.flow(fl.lane) == fl) && s.usable(fl, fl, o, key)
}

// insure copies packet x of o, of flow fl, so that the box can send o again, if other clients' operations may come
// to stand behind o on connection c. Without a copy only o's client can send it again (fUnkept); that returns false,
// so that o waits for room, if c is another client's connection.
func (s *wire) insure(fl, c *flow, o *op, m extent, x *packet.Buf) (copied *packet.Buf, ok bool) {
	n := s.n
	if (c != fl || fl.isLent && m.whole && o.kind == kWrite && !o.is(fOwn) && !fl.unproven(o) && n.shelf.roomy()) && n.shelf.mayHold(fl) {
		if copied = n.shelf.copyOf(x); copied != nil {
			return copied, true
		}
	}
	o.flags |= fUnkept
	n.waits.why = queue{}
	return nil, c == fl
}

// middle sends on packet x of the message of flow fl whose packets are still coming (client.cur). It returns false
// if the packet must wait.
func (s *clientSide) middle(fl *flow, x *packet.Buf, b []byte, f *hdr.Frame) bool {
	n := s.n
	o := n.get(fl.cur)
	info := f.Op.Info().Flags
	if info&(hdr.IsMiddle|hdr.IsLast) == 0 || (o.kind == kWrite) != (info&hdr.IsWrite != 0) {
		// The server will refuse it. It takes a PSN of its own.
		fl.cur = none
		return s.admit(fl, x, b, f)
	}
	c := n.carrier(o)
	if c.repair || o.word == lapsed && o.modifies() && n.roams(o) || f.Op.Info().Ext&hdr.HasIETH != 0 && !n.invalidates(o, f.IETHOf(b).RKey()) {
		return false
	}
	if o.is(fKept) {
		y := n.shelf.copyOf(x)
		if y == nil {
			return false
		}
		s.n.shelf.retain(o, y)
	}
	k := uint32(hdr.PSNDiff(fl.admitted, o.cpsn))
	last := info&hdr.IsLast != 0
	if o.kind == kSend || k >= o.npsn || last {
		o.npsn = k + 1
	}
	if f.BTHOf(b).AckReq() {
		o.flags |= fAckReq
	}
	if c == fl {
		c.next = psnAdd(o.spsn, k+1)
	}
	if last {
		fl.cur = none
	}
	s.send(fl, c, o, x, b, f, k)
	fl.admitted = psnAdd(fl.admitted, 1)
	return true
}
