package swordbox

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// posted is a frame that leaves as soon as its worker has given the node back. All that
// depends on the node is in it; only its ICRC may have to be computed.
type posted struct {
	x       *packet.Buf
	f       hdr.Frame // its headers, if it changed
	out     uint8
	changed bool
}

// post are the frames that a worker sends behind its turn, in the order in which they
// were sent.
type post struct {
	n      int
	frames [2 * packet.MaxBatch]posted
	leave  [2][2 * packet.MaxBatch]*packet.Buf // of these, by output
}

// next is the place of the next frame.
func (s *wire) next() *posted {
	if s.post.n == len(s.post.frames) {
		s.dispatch() // the turn takes longer, that is all
	}
	p := &s.post.frames[s.post.n]
	s.post.n++
	return p
}

// emit sends x by output out.
func (s *wire) emit(out int, x *packet.Buf) {
	if s.post == nil {
		s.c.Emit(out, x)
		return
	}
	p := s.next()
	p.x, p.out, p.changed = x, uint8(out), false
}

// seal sends x, the bytes b with headers f, by output out, with a new ICRC.
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

// dispatch lets the frames go that were sent.
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
