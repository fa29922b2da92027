package swordbox

import (
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// wire has what a worker needs to handle a frame: the node that the worker owns, the frame, and the means to
// make and send others. Its methods send frames: unchanged, with other addresses, PSNs and MSNs, or made from
// the record. clientSide and carrierSide decide when to send which; both have the worker's one wire.
type wire struct {
	c    *graph.Ctx
	cfg  *settings
	n    *node
	f    hdr.Frame // headers of the frame at hand
	ends conn.Ends
	g, h hdr.Frame // headers of held frames

	spare     *packet.Buf // a frame from the server that is not needed any more
	to        *flow       // the flow that spare was addressed to
	congested bool        // the answer at hand has a congestion mark (CE)
	post      *post       // nil if there is one worker: then frames leave at once
}

// managed handles a datagram of the connection manager. The datagram always passes, except that guard= may
// have a forged one dropped.
func (s *wire) managed(in int, x *packet.Buf, b []byte) {
	switch slot, e := s.n.conns.CM(s.c.Now(), &s.ends, b, &s.f); {
	case e == conn.Forged || e == conn.Spoofed:
		s.bad(in, x, reasonForged, s.cfg.dropSpoofed)
		return
	case e == conn.Stray:
		if in == toServers {
			s.endsLost(b)
		}
		s.mark(in, x, reasonStranger)
		return
	case e == conn.IsClosing && slot != conn.NoSlot:
		s.n.nicOf(&s.n.flows[slot]).keys.recall(&s.n.flows[slot]) // the operations that it carries are answered before it goes
	}
	s.pass(in, x)
}

// pass sends frame x on unchanged.
func (s *wire) pass(in int, x *packet.Buf) { s.emit(1-in, x) }

func (s *wire) mark(in int, x *packet.Buf, r graph.Reason) {
	s.c.Mark(x, packet.Forwarded, r)
	s.emit(1-in, x)
}

func (s *wire) bad(in int, x *packet.Buf, r graph.Reason, drop bool) {
	if drop {
		s.c.Drop(x, r)
		return
	}
	s.mark(in, x, r)
}

// blank returns a frame of n bytes to be filled: s.spare or a new one. It returns nil if there is no buffer.
func (s *wire) blank(n int) *packet.Buf {
	if x := s.spare; x != nil {
		if resize(x, n) {
			s.spare = nil
			return x
		}
	}
	x := s.c.Get()
	if x == nil {
		return nil
	}
	if !resize(x, n) {
		s.c.Discard(x)
		return nil
	}
	s.c.Mark(x, packet.Generated, reasonMade)
	return x
}

// answer sends the client of flow fl a response without payload. It returns false if there is no buffer.
func (s *wire) answer(fl *flow, code hdr.Opcode, psn uint32, syn hdr.Syndrome, prior uint64) bool {
	h := &fl.down
	if !h.known() {
		return false
	}
	if syn.ACK() {
		s.c.Count(ctrAcks, 1)
	} else {
		s.c.Count(ctrNAKs, 1)
	}
	aeth := uint32(syn)<<24 | fl.released()
	if x := s.spare; x != nil && s.to == fl && s.f.Op == code {
		// The server's own answer may be exactly this one.
		b := x.Bytes()
		if s.f.BTHOf(b).PSN() == psn && be.Uint32(s.f.AETHOf(b)) == aeth && (code != hdr.AtomicAck || s.f.AtomicAckETHOf(b).Original() == prior) {
			s.spare = nil
			s.emit(toClients, x)
			return true
		}
	}
	n := h.len() + hdr.AETHLen + hdr.ICRCLen
	if code == hdr.AtomicAck {
		n += hdr.AtomicAckETHLen
	}
	x := s.blank(n)
	if x == nil {
		return false
	}
	b := x.Bytes()
	h.front(b)
	bth := hdr.BTH(b[h.bth:])
	bth[0], bth[1] = byte(code), bth[1]&0x40
	be.PutUint32(bth[8:], psn&hdr.PSNMask)
	be.PutUint32(b[h.len():], aeth)
	if code == hdr.AtomicAck {
		be.PutUint64(b[h.len()+hdr.AETHLen:], prior)
	}
	var made hdr.Frame
	h.frame(&made, b, code)
	if s.congested {
		made.SetECN(b, hdr.CE) // as the server's answer that this one comes from
	}
	s.seal(toClients, x, b, &made)
	return true
}

// send gives the server packet k of operation o of flow fl over connection c: frame b in buffer x, with
// headers f, in the form in which the client sent it.
func (s *wire) send(fl, c *flow, o *op, x *packet.Buf, b []byte, f *hdr.Frame, k uint32) {
	psn := psnAdd(o.spsn, k)
	ecn := f.ECNOf(b)
	if ecn == hdr.CE {
		c.marked.add(s.n.index(fl))
	}
	if o.is(fReplaced) {
		h := &c.up
		size := h.len() + hdr.RETHLen + 8 + hdr.ICRCLen
		if !resize(x, size) { // cannot happen: the WRITE is shorter than the atomic
			s.c.Drop(x, reasonNoBuf)
			return
		}
		b = x.Bytes()
		var made hdr.Frame
		h.write(&made, b, o, psn)
		made.SetECN(b, ecn) // a mark belongs to this operation
		s.c.Mark(x, packet.Forwarded, reasonReplaced)
		s.seal(toServers, x, b, &made)
		return
	}
	ours, h := c != fl, f.BTHOf(b)
	// Every open operation must be acknowledged, because other operations may wait for it.
	ack := fl.trusted && f.Op.Info().Flags&(hdr.IsLast|hdr.IsOnly) != 0 && !h.AckReq()
	if ours || ack || h.PSN() != psn {
		if ours {
			c.up.address(b)
			s.c.Mark(x, packet.Forwarded, reasonMoved)
		}
		noUDPSum(b, f)
		h.SetPSN(psn)
		if ack {
			h.SetAckReq(true)
		}
		s.seal(toServers, x, b, f)
		return
	}
	s.emit(toServers, x)
}

// emptyWrite sends the server a WRITE of no bytes with front h and PSN psn. It returns false if there is no
// buffer.
func (s *wire) emptyWrite(h *header, psn uint32) bool {
	o := op{kind: kWrite}
	x := s.blank(h.len() + hdr.RETHLen + hdr.ICRCLen)
	if x == nil {
		return false
	}
	var made hdr.Frame
	h.write(&made, x.Bytes(), &o, psn)
	s.seal(toServers, x, x.Bytes(), &made)
	s.c.Count(ctrProbes, 1)
	return true
}

// relay gives the client of flow fl packet k of the answer to READ o: frame b in buffer x, with headers f.
// ours says that fl's own connection carried o. The MSN counts o once: a READ that is answered again is counted already.
func (s *wire) relay(fl *flow, o *op, ours bool, x *packet.Buf, b []byte, f *hdr.Frame, k uint32) {
	if !ours && !fl.down.fits(f) {
		if !fl.down.wear(x, f) {
			s.c.Drop(x, reasonNoBuf)
			return
		}
		b = x.Bytes()
	}
	h := f.BTHOf(b)
	psn := psnAdd(o.cpsn, k)
	ext := f.Op.Info().Ext
	msn := fl.released()
	if fl.head != fl.tail && o == s.n.op(fl, fl.head) {
		msn = (msn + 1) & 0xFFFFFF
	}
	if ours && h.PSN() == psn && (ext&hdr.HasAETH == 0 || f.AETHOf(b).MSN() == msn) {
		s.emit(toClients, x)
		return
	}
	if !ours {
		fl.down.address(b)
	}
	noUDPSum(b, f)
	h.SetPSN(psn)
	if ext&hdr.HasAETH != 0 {
		f.AETHOf(b).SetMSN(msn)
	}
	s.seal(toClients, x, b, f)
}

// resize gives x the length n. It returns false if x has no room.
func resize(x *packet.Buf, n int) bool {
	if d := n - x.Len(); d > 0 {
		_, ok := x.Append(d)
		return ok
	} else {
		return x.TrimBack(-d)
	}
}
