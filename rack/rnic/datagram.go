package rnic

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// grhLen is the number of bytes in front of a received datagram in its buffer: an IPv6 header, or
// 20 zero bytes and an IPv4 header.
const grhLen = 40

// sendDatagram sends a UD SEND.
func (r *requester) sendDatagram(q *QP, b *packet.Buf, w *sendWQE) {
	op, ext := hdr.SendOnly, hdr.DETHLen
	if w.Op == OpSendImm {
		op, ext = hdr.SendOnlyImm, hdr.DETHLen+hdr.ImmDtLen
	}
	p, body := q.begin(b, op, r.sendPSN, ext, int(w.length))
	copy(p, w.ah.MAC[:])
	ip := p[q.tmpl.frame.L3:]
	if q.tmpl.frame.Net == hdr.NetIPv4 {
		a := w.ah.IP.Unmap().As4()
		copy(ip[16:], a[:])
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], ^sum16(ip[:ipv4Len], 0))
	} else {
		a := w.ah.IP.As16()
		copy(ip[24:], a[:])
	}
	h := q.tmpl.bth(p)
	h.SetDestQP(w.ah.QPN)
	h.SetSolicited(w.Solicited)
	h.SetAckReq(q.QPN == 1 && q.nic.cfg.Profile == RXE) // as rxe does; no receiver acts on it
	d := hdr.DETH(body)
	key := w.ah.QKey
	if key>>31 != 0 {
		key = q.init.QKey // IBTA 10.2.5: a controlled Q_Key is the queue pair's own
	}
	d.SetQKey(key)
	d.SetSrcQP(q.QPN)
	if w.Op == OpSendImm {
		hdr.ImmDt(body[hdr.DETHLen:]).SetData(w.Imm)
	}
	gather(body[ext:ext+int(w.length)], w.sgl, 0)
	q.finish(p)
}

// inputUD takes a datagram.
func (s *responder) inputUD(q *QP, p []byte, f *hdr.Frame) {
	st := &q.nic.stats
	q.stats.RxRequests++
	d := f.DETHOf(p)
	if d.QKey() != q.init.QKey {
		st.DropBadQKey++
		return
	}
	data := f.PayloadOf(p)
	if s.rqN == 0 || grhLen+len(data) > len(s.recv().Buf) {
		st.DropNoRecv++
		return
	}
	st.RxRequests++
	w := s.popRecv()
	if f.Net == hdr.NetIPv4 {
		clear(w.Buf[:grhLen-ipv4Len])
		copy(w.Buf[grhLen-ipv4Len:grhLen], p[f.L3:])
	} else {
		copy(w.Buf[:grhLen], p[f.L3:])
	}
	copy(w.Buf[grhLen:], data)
	wc := WC{ID: w.ID, Op: OpRecv, ByteLen: uint32(grhLen + len(data)), SrcQP: d.SrcQP(), SrcMAC: [6]byte(p[6:12])}
	if f.Op == hdr.UDSendOnlyImm {
		wc.Op, wc.Imm = OpRecvImm, f.ImmDtOf(p).Data()
	}
	q.init.RecvCQ.add(q, wc)
}

// inputUC takes a packet of an unreliable connection. It drops the rest of a message that lost a packet
// or that cannot be placed; such a message never completes.
func (s *responder) inputUC(q *QP, p []byte, f *hdr.Frame) {
	st := &q.nic.stats
	psn := f.BTHOf(p).PSN()
	q.stats.RxRequests++
	start := f.Op.Any(hdr.IsFirst | hdr.IsOnly)
	switch {
	case start:
		s.in, s.skip = noMessage, false
	case psn != s.epsn || s.skip || !s.sequence(f.Op):
		s.in, s.skip = noMessage, true
		s.epsn = psnAdd(psn, 1)
		st.DropSequence++
		return
	}
	s.epsn = psnAdd(psn, 1)
	syn := hdr.SynNAKRemoteAccess
	if f.Op.Has(hdr.IsSend) {
		syn = s.receiveSend(q, p, f)
	} else if q.init.Access&RemoteWrite != 0 {
		syn = s.receiveWrite(q, p, f)
	}
	switch {
	case syn.ACK():
		st.RxRequests++
		return
	case syn == hdr.SynNAKRemoteAccess:
		st.DropBadAccess++
	default:
		st.DropNoRecv++
	}
	s.in, s.skip = noMessage, true
}
