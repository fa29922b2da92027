package clover

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
)

// maxUnlinked is how many appends of a key may be open at most.
const maxUnlinked = 1 << 14

// gap is an append that the server refused, or whose outcome nobody will know,
// while it is not settled what becomes of its number.
type gap struct {
	at   clock.Time
	lh   uint32 // of its entry
	key  int32
	sid  uint16
	n    uint32
	used bool
	over bool // it is linked, or nobody stands behind it
}

// unlinked is how many appends of the key are not known to be linked.
func (k *keyState) unlinked() uint32 { return k.sent - k.sure }

// linked reports whether append n of the key, and each before it, is linked or
// out of the chain.
func (k *keyState) linked(n uint32) bool { return int32(n-k.sure) <= 0 }

// advance notes that the oldest append of a key that was not known to be
// linked is; those behind it that were answered before are, too.
func (s *state) advance(ki int32) {
	k := &s.keys.s[ki]
	for {
		k.sure++
		if k.waits > 0 {
			s.due = true
		}
		if !s.answered(ki, k.sure+1) && !s.closed(ki, k.sure+1) {
			return
		}
	}
}

// answered reports whether the answer to append n of a key is held.
func (s *state) answered(ki int32, n uint32) bool {
	if s.keys.s[ki].waits == 0 {
		return false
	}
	for i := range s.shelf {
		if h := &s.shelf[i]; h.x != nil && h.key == ki && h.n == n && !h.read && !h.void {
			return true
		}
	}
	return false
}

// closed reports whether append n of a key was a gap that is over.
func (s *state) closed(ki int32, n uint32) bool {
	if s.gaps == 0 {
		return false
	}
	for i := range s.gap {
		if g := &s.gap[i]; g.used && g.over && g.key == ki && g.n == n {
			g.used = false
			s.gaps--
			return true
		}
	}
	return false
}

// succeeded: the server linked the entry of a steered CAS behind the one
// before. The client may know when that one is linked, too: false until then.
func (s *state) succeeded(rec *op) bool {
	k := &s.keys.s[rec.key]
	if k.linked(rec.n) {
		return true
	}
	if rec.n != k.sure+1 {
		return false
	}
	s.advance(rec.key)
	return true
}

// failed: the entry of a steered CAS is not linked, and its client knows.
// Until the client has linked it somewhere, nobody behind it is told that he
// succeeded.
func (s *state) failed(c *graph.Ctx, sid uint16, rec *op) {
	k := &s.keys.s[rec.key]
	if k.linked(rec.n) || rec.void {
		return
	}
	s.dropKey(c, rec.key)
	alone := rec.n == k.sent
	if !alone {
		c.Count(ctrOrphans, 1)
	}
	s.open(c, gap{at: c.Now(), lh: wire.Pointer(rec.swap).LH(), key: rec.key, sid: sid, n: rec.n, used: true, over: alone})
}

// open notes a gap.
func (s *state) open(c *graph.Ctx, g gap) {
	if g.over && g.n == s.keys.s[g.key].sure+1 {
		s.advance(g.key)
		return
	}
	for i := range s.gap {
		if !s.gap[i].used {
			s.gap[i] = g
			s.gaps++
			return
		}
	}
	s.cut(c, g.key)
}

// relinked: a CAS that was not steered linked the entry with handle lh.
func (s *state) relinked(sid uint16, lh uint32) {
	for i := range s.gap {
		g := &s.gap[i]
		if !g.used || g.over || g.lh != lh || g.sid != sid {
			continue
		}
		g.over = true
		if k := &s.keys.s[g.key]; g.n == k.sure+1 {
			g.used = false
			s.gaps--
			s.advance(g.key)
		}
	}
}

// ended: what became of a steered CAS will not be known.
func (s *state) ended(c *graph.Ctx, rec *op) {
	if rec.kind != opCAS || !rec.steered || rec.void {
		return
	}
	k := &s.keys.s[rec.key]
	switch {
	case k.linked(rec.n):
	case rec.n == k.sent:
		s.dropKey(c, rec.key)
		s.open(c, gap{key: rec.key, n: rec.n, used: true, over: true})
	default:
		s.cut(c, rec.key)
	}
}

// cut gives up a key's appends that are not known to be linked: their clients
// are never told that they succeeded, and their connections end by time-out.
func (s *state) cut(c *graph.Ctx, ki int32) {
	k := &s.keys.s[ki]
	if k.sure == k.sent {
		return
	}
	for i := range s.conns.ops {
		if o := &s.conns.ops[i]; o.kind == opCAS && o.steered && o.key == ki && !k.linked(o.n) {
			o.void = true
		}
	}
	for i := range s.shelf {
		if h := &s.shelf[i]; h.x != nil && h.key == ki && !h.read && !k.linked(h.n) {
			h.void = true
		}
	}
	for i := range s.gap {
		if g := &s.gap[i]; g.used && g.key == ki {
			g.used = false
			s.gaps--
		}
	}
	s.dropKey(c, ki)
	k.sure = k.sent
	s.due = true
	c.Count(ctrCut, 1)
}

// held is an answer that its client may not see yet: it waits for append n of
// a key (a CAS's own; of a READ that of the entry that it was sent to), or for
// the answers before it.
type held struct {
	x      *packet.Buf // nil: the place is free
	at     clock.Time
	next   int32 // place+1 of the one behind it, of the same connection or free; 0: none
	row    int32
	key    int32 // noSlot: none
	epoch  uint32
	n      uint32
	worker uint16
	out    uint8
	read   bool
	void   bool
}

// ready reports whether an answer may go, as it is or not.
func (s *state) ready(h *held) bool {
	if h.key == noSlot || h.void {
		return true
	}
	k := &s.keys.s[h.key]
	return h.read && k.epoch != h.epoch || k.linked(h.n)
}

// hold keeps an answer, behind those that are held of its connection; false
// when there is no room for it, or one like it is held already.
func (s *Steer) hold(c *graph.Ctx, x *packet.Buf, psn uint32, h held) bool {
	r := &s.conns.rows[h.row]
	if r.front != 0 && hdr.PSNDiff(psn, r.heldTo) <= 0 {
		c.Drop(x, reasonHere)
		return true
	}
	if s.place == 0 {
		c.Drop(x, reasonHoldFull)
		return false
	}
	p := s.place
	s.place = s.shelf[p-1].next
	h.x, h.at, h.next, h.worker = x, c.Now(), 0, uint16(s.worker)
	s.shelf[p-1] = h
	if r.front == 0 {
		r.front = p
	} else {
		s.shelf[r.back-1].next = p
	}
	r.back, r.heldTo = p, psn
	if h.key != noSlot {
		s.keys.s[h.key].waits++
	}
	s.nheld++
	c.Count(ctrWaited, 1)
	s.heldBy[s.worker]++
	return true
}

// unhold is the first answer held of a connection, in a frame of this worker;
// nil when there is none to be had.
func (s *Steer) unhold(c *graph.Ctx, r *row) (*packet.Buf, held) {
	p := r.front
	h := s.shelf[p-1]
	r.front = h.next
	s.shelf[p-1] = held{next: s.place}
	s.place = p
	if h.key != noSlot {
		s.keys.s[h.key].waits--
	}
	s.nheld--
	s.heldBy[h.worker]--
	if int(h.worker) == s.worker {
		return h.x, h
	}
	y := c.Get()
	if y != nil && !y.SetBytes(h.x.Bytes()) {
		c.Discard(y)
		y = nil
	}
	s.away[h.worker] = append(s.away[h.worker], h.x)
	return y, h
}

// release lets go of what may go.
func (s *Steer) release(c *graph.Ctx) {
	for s.due {
		s.due = false
		for i := range s.shelf {
			if h := &s.shelf[i]; h.x != nil && s.conns.rows[h.row].front == int32(i+1) && s.ready(h) {
				s.drain(c, h.row)
			}
		}
	}
}

// drain lets go of the answers of a connection, as far as they may.
func (s *Steer) drain(c *graph.Ctx, ri int32) {
	r := &s.conns.rows[ri]
	for r.front != 0 && s.ready(&s.shelf[r.front-1]) {
		x, h := s.unhold(c, r)
		switch {
		case x == nil:
		case h.void:
			c.Drop(x, reasonCut)
		default:
			if h.read && h.key != noSlot && s.keys.s[h.key].epoch != h.epoch {
				s.nobodys(x)
			}
			c.Emit(int(h.out), x)
		}
	}
}

// nobodys gives the entry in the answer to a READ a version that none has.
func (s *Steer) nobodys(x *packet.Buf) {
	b := x.Bytes()
	if hdr.Parse(b, &s.g) != hdr.IsRoCE {
		return
	}
	if p := s.g.PayloadOf(b); len(p) >= 8 {
		s.setHeader(b, &s.g, p, wire.Pointer(binary.LittleEndian.Uint64(p)).WithVersion(wire.NoVersion))
	}
}

// setHeader changes the header of the entry that a READ response begins with.
func (s *Steer) setHeader(b []byte, f *hdr.Frame, p []byte, w wire.Pointer) {
	copy(s.old[:8], p)
	binary.LittleEndian.PutUint64(p, uint64(w))
	hdr.PatchICRC(b, f, int(f.Payload), s.old[:8])
}

// discard drops what is held of a connection: its client asks again.
func (s *Steer) discard(c *graph.Ctx, r *row) {
	for r.front != 0 {
		if x, _ := s.unhold(c, r); x != nil {
			c.Drop(x, reasonUnheld)
		}
	}
}

// discardAll drops all that is held.
func (s *Steer) discardAll(c *graph.Ctx) {
	for i := range s.shelf {
		if h := &s.shelf[i]; h.x != nil {
			s.discard(c, &s.conns.rows[h.row])
		}
	}
}

// returned drops frames of this worker that another one made copies of.
func (s *Steer) returned(c *graph.Ctx) {
	for _, x := range s.away[s.worker] {
		c.Drop(x, reasonUnheld)
	}
	s.away[s.worker] = s.away[s.worker][:0]
}

// Held implements graph.Holder.
func (s *Steer) Held() int {
	s.lock()
	defer s.unlock()
	return s.heldBy[s.worker] + len(s.away[s.worker])
}

// Stop implements graph.Stopper.
func (s *Steer) Stop(c *graph.Ctx) {
	s.lock()
	defer s.unlock()
	s.discardAll(c)
	s.returned(c)
}

// endRow forgets the requests of a connection, and what is held of it.
func (s *Steer) endRow(c *graph.Ctx, ri int32) {
	s.discard(c, &s.conns.rows[ri])
	for i := range s.conns.ops[int(ri)*window : (int(ri)+1)*window] {
		s.ended(c, &s.conns.ops[int(ri)*window+i])
	}
	s.conns.forgetOps(ri)
}

// remove forgets a connection.
func (s *Steer) remove(c *graph.Ctx, ri int32) {
	s.endRow(c, ri)
	s.conns.remove(ri)
}

// newOp is an empty record for PSN psn of row ri; nil when the oldest one is
// still needed.
func (s *Steer) newOp(c *graph.Ctx, ri int32, psn uint32) *op {
	o := s.conns.oldest(ri)
	if o.live && o.steered {
		if hdr.PSNDiff(psn, o.psn) < lookback {
			return nil
		}
		s.ended(c, o) // it was answered, and not here
	}
	return s.conns.newOp(ri, psn)
}
