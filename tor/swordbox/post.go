package swordbox

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// posted is a frame that leaves after its worker has given the node back. All its fields that depend on the
// node are complete; only the ICRC may be missing.
type posted struct {
	x       *packet.Buf
	f       hdr.Frame // its headers, if changed
	out     uint8
	changed bool
}

// post holds the frames that a worker sends after it has given the node back, in their order.
type post struct {
	n      int
	frames [2 * packet.MaxBatch]posted
	leave  [2][2 * packet.MaxBatch]*packet.Buf // the frames by output
}

// next returns the place of the next frame.
func (s *wire) next() *posted {
	if s.post.n == len(s.post.frames) {
		s.dispatch() // the turn; this makes the turn longer, and does no other harm
	}
	p := &s.post.frames[s.post.n]
	s.post.n++
	return p
}

// emit sends frame x by output out.
func (s *wire) emit(out int, x *packet.Buf) {
	if s.post == nil {
		s.c.Emit(out, x)
		return
	}
	p := s.next()
	p.x, p.out, p.changed = x, uint8(out), false
}

// seal sends frame b in buffer x, with headers f, by output out, with a new ICRC.
//
//go:noinline
func (s *wire) seal(out int, x *packet.Buf, b []byte, f *hdr.Frame) {
	if s.post == nil {
		hdr.SetICRC(b, f)
		s.c.Emit(out, x)
		return
	}
	p := s.next()
	p.x, p.f, p.out, p.changed = x, *f, uint8(out), true
}

// dispatch sends all frames of s.post.
func (s *wire) dispatch() {
	var n [2]int
	for i := range s.post.frames[:s.post.n] {
		p := &s.post.frames[i]
		if p.changed {
			hdr.SetICRC(p.x.Bytes(), &p.f)
		}
		out := p.out & 1
		s.post.leave[out][n[out]] = p.x
		n[out]++
	}
	for out, n := range n {
		if n > 0 {
			s.c.EmitAll(out, s.post.leave[out][:n])
		}
	}
	s.post.n = 0
}
