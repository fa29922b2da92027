package clover

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/index"
)

// answers holds the answers that clients may not see yet, and counts the places for answers that are still to
// come. Requests book places. A desk holds answers, and lets go of those that chains and memory have woken.
type answers struct {
	*traffic
	mem    *memory
	due    []int32             // connections of which some held answers may go
	shelf  hold.Shelf[waiting] // answers that wait
	waits  index.Index         // of the answers in shelf, those that wait for an append, by its key and number
	booked int                 // places of the shelf that are kept for answers to come
}

// waiting is the note about an answer that its client may not see yet. The answer waits for append n of a
// key: a CAS's own, or that of the entry to which a READ was sent. With key noSlot it waits only for the
// answers before it.
type waiting struct {
	row   int32
	key   int32
	epoch uint32
	n     uint32
	op    int32  // of a CAS: the place of its record, which has this PSN
	psn   uint32 // of the answer
	// Neighbours in the list of answers that wait for the same key: places; 0: none.
	before, after int32
	out           uint8
	read          bool
	listed        bool // in that list, and in answers.waits
	void          bool // its append will never be linked: it is dropped
}

// room reports whether answers in that many frames, which may have to wait, will have places. Half of the
// places are for answers behind such an answer on the same connection.
func (s *answers) room(frames int) bool {
	return s.shelf.Room(s.shelf.Cap()/2 + s.booked + frames)
}

// book keeps places for the answer to rec.
func (s *answers) book(rec *op, frames int) {
	rec.booked = uint16(frames)
	s.booked += frames
}

// hold keeps an answer, behind the held answers of its connection. It returns false if there is no room. An
// answer whose PSN is not newer than the last held one is dropped, because it is held already.
func (s *desk) hold(c *graph.Ctx, x *packet.Buf, w waiting) bool {
	r := &s.rows[w.row]
	if !r.q.Empty() && hdr.PSNDiff(w.psn, r.heldTo) <= 0 {
		c.Drop(x, reasonHere)
		return true
	}
	if s.n != 0 {
		s.seal(x.Bytes())
	}
	at := s.shelf.Put(&r.q, x, s.worker, w)
	if at == 0 {
		c.Drop(x, reasonNoRoom)
		return false
	}
	r.heldTo = w.psn
	c.Count(ctrWaited, 1)
	if w.key != noSlot {
		s.list(at)
	}
	return true
}

func appendHash(key int32, n uint32) uint32 {
	return keyHash(uint16(n), uint64(uint32(key))<<32|uint64(n))
}

// list makes the answer in place at wait for its append, until wake is called.
func (s *answers) list(at int32) {
	w := s.shelf.Note(at)
	k := &s.mem.keys.s[w.key]
	w.listed, w.before, w.after = true, 0, k.waits
	if k.waits != 0 {
		s.shelf.Note(k.waits).before = at
	}
	k.waits = at
	s.waits.Put(appendHash(w.key, w.n), at)
}

// unlist makes the answer in place at wait only for the answers before it.
func (s *answers) unlist(at int32) {
	w := s.shelf.Note(at)
	if !w.listed {
		return
	}
	w.listed = false
	if w.before != 0 {
		s.shelf.Note(w.before).after = w.after
	} else {
		s.mem.keys.s[w.key].waits = w.after
	}
	if w.after != 0 {
		s.shelf.Note(w.after).before = w.before
	}
	s.waits.Del(appendHash(w.key, w.n), at)
}

// wake makes the answer in place at wait for its append no more. It goes as soon as those before it have
// gone.
func (s *answers) wake(at int32) {
	s.unlist(at)
	w := s.shelf.Note(at)
	if r := &s.rows[w.row]; r.q.First() == at && !r.due {
		r.due = true
		s.due = append(s.due, w.row)
	}
}

// answered returns the place of the held answer to append n of a key, or 0 if there is none.
func (s *answers) answered(ki int32, n uint32) int32 {
	h := appendHash(ki, n)
	for p := s.waits.Start(h); s.waits.E[p] != 0; p = s.waits.Next(p) {
		if at, ok := s.waits.Slot(p, h); ok {
			if w := s.shelf.Note(at); w.key == ki && w.n == n && !w.read {
				return at
			}
		}
	}
	return 0
}

// wakeReads wakes the held answers to READs of a tail that is not believed any more.
func (s *answers) wakeReads(ki int32) {
	for at := s.mem.keys.s[ki].waits; at != 0; {
		w := s.shelf.Note(at)
		next := w.after
		if w.read {
			s.wake(at)
		}
		at = next
	}
}

// release lets go of all answers that may go.
func (s *desk) release(c *graph.Ctx) {
	for len(s.due) > 0 {
		n := len(s.due) - 1
		ri := s.due[n]
		s.due = s.due[:n]
		s.rows[ri].due = false
		s.drain(c, ri)
	}
}

// drain lets go of the answers of a connection, in order, as far as they may go.
func (s *desk) drain(c *graph.Ctx, ri int32) {
	r := &s.rows[ri]
	for !r.q.Empty() && !s.shelf.Note(r.q.First()).listed {
		x, w := s.shelf.Take(c, &r.q, s.worker)
		switch {
		case x == nil:
		case w.void:
			c.Drop(x, reasonCut)
		default:
			if w.read && s.keys.s[w.key].epoch != w.epoch {
				s.nobodys(x)
			}
			s.goes = append(s.goes, gone{x, w.out})
		}
	}
}

// send sends the answers that were let go of.
func (s *desk) send(c *graph.Ctx) {
	for _, g := range s.goes {
		c.Emit(int(g.out), g.x)
	}
	s.goes = s.goes[:0]
}

// nobodys gives the entry in the answer to a READ a version that no entry has.
func (s *desk) nobodys(x *packet.Buf) {
	b, q := x.Bytes(), &s.held
	if hdr.Parse(b, &q.f) != hdr.IsRoCE {
		return
	}
	if p := q.f.PayloadOf(b); len(p) >= 8 {
		q.setHeader(b, p, wire.Pointer(binary.LittleEndian.Uint64(p)).WithVersion(wire.NoVersion))
		q.seal(b)
	}
}

// setHeader changes the header of the entry with which a READ response begins.
func (q *parsed) setHeader(b, p []byte, w wire.Pointer) {
	q.changing(b, int(q.f.Payload), 8)
	binary.LittleEndian.PutUint64(p, uint64(w))
}

// discard drops the held answers of a connection. Their client will ask again.
func (s *desk) discard(c *graph.Ctx, r *row) {
	for at := r.q.First(); at != 0; at = s.shelf.Next(at) {
		s.unlist(at)
	}
	s.shelf.Drop(c, &r.q, s.worker, reasonUnheld)
}

// discardAll drops all held answers.
func (s *desk) discardAll(c *graph.Ctx) {
	for i := range s.rows {
		s.discard(c, &s.rows[i])
	}
}

// Held implements graph.Holder.
func (s *Steer) Held() int {
	s.lock()
	defer s.unlock()
	return s.shelf.Held(s.worker)
}

// Stop implements graph.Holder.
func (s *Steer) Stop(c *graph.Ctx) {
	s.lock()
	defer s.unlock()
	s.discardAll(c)
	s.shelf.Return(c, s.worker, reasonUnheld)
}
