package rnic

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// answers is the least size of the ring of responses that wait for Output. While the ring is full,
// requests are dropped as if they had been lost on the way.
const answers = 64

// message is the kind of message that is being received.
type message uint8

const (
	noMessage message = iota
	sendMessage
	writeMessage
)

// responder is the receiving half of a queue pair. Its methods take the queue pair as an argument (see requester).
type responder struct {
	rq          []RecvWR
	rqHead, rqN int

	epsn    uint32 // expected PSN
	notRead uint32 // the PSN after the newest request that was not a READ
	msn     uint32
	nakSent bool // a NAK was sent for the gap at epsn

	in   message
	skip bool   // unreliable: the rest of the message is dropped
	got  uint32 // bytes of a SEND
	va   uint64 // rest of a WRITE
	left uint32
	rkey uint32

	res     []resource // responder resources, from which duplicates are answered
	resNext int
	open    int // new READs and atomics that wait for their answer

	why string // reason of the newest refusal

	due     []answer // ring of responses that wait for Output
	dueHead int
	dueN    int
}

// resource remembers a READ or an atomic.
type resource struct {
	kind        answerKind // answerRead, answerAtomic; answerAck = empty
	first, last uint32     // PSNs
	va          uint64
	rkey        uint32
	length      uint32
	// The following fields are those of an atomic. original is valid only if executed is true.
	original uint64
	executed bool
	op       hdr.Opcode
	swap, compare,
	swapMask, compareMask uint64
}

// Values of answer.res that are no place.
const (
	none = -1 // the answer itself holds the original value
	gone = -2 // the R_Key reaches the word no more
)

type answerKind uint8

const (
	answerAck answerKind = iota // ACK, NAK, RNR NAK
	answerAtomic
	answerRead
)

// answer is a response that waits for Output. The response to a READ may take several packets.
type answer struct {
	kind     answerKind
	first    bool // READ: the next packet is the first of the response
	counted  bool // in responder.open
	syndrome hdr.Syndrome
	covers   uint16 // ACK: requests that asked for it
	psn, msn uint32
	res      int32 // atomic: index of its resource, which holds the original value; none: original holds it; gone: its region is gone
	original uint64
	va       uint64
	rkey     uint32
	left     uint32
}

func (s *responder) connect(c *Conn, t Type) {
	*s = responder{rq: s.rq, rqHead: s.rqHead, rqN: s.rqN, res: s.res, due: s.due}
	s.epsn, s.notRead = c.RQPSN, c.RQPSN
	if t != TypeRC {
		return
	}
	n := 0
	if c.MaxDestRdAtomic > 0 {
		n = roundUpPow2(c.MaxDestRdAtomic)
	}
	if len(s.res) != n {
		s.res = make([]resource, n)
	}
	clear(s.res)
	if want := max(answers, 2*n); len(s.due) < want {
		s.due = make([]answer, want)
	}
}

func (s *responder) clear() {
	for s.rqN > 0 {
		s.popRecv()
	}
	s.dueN, s.open = 0, 0
	s.in = noMessage
}

func (s *responder) pending() bool { return s.dueN > 0 }

func (s *responder) recv() *RecvWR { return &s.rq[s.rqHead] }

func (s *responder) popRecv() RecvWR {
	w := s.rq[s.rqHead]
	s.rq[s.rqHead].Buf = nil
	s.rqHead++
	if s.rqHead == len(s.rq) {
		s.rqHead = 0
	}
	s.rqN--
	return w
}

func (s *responder) tail() *answer {
	return &s.due[(s.dueHead+s.dueN-1)&(len(s.due)-1)]
}

// add queues an answer.
func (s *responder) add(q *QP, a answer) {
	if s.dueN == len(s.due) {
		// Room is checked before a request is executed; what comes here are
		// acknowledgements, and cumulative.
		if t := s.tail(); t.kind == answerAck && a.kind == answerAck {
			*t = a
			q.nic.stats.AcksMerged++
		}
		return
	}
	s.dueN++
	*s.tail() = a
	if a.counted {
		s.open++
	}
	q.nic.rspQ.pushRsp(q)
}

// ack queues an acknowledgement of all packets up to psn, or extends the last queued one.
func (s *responder) ack(q *QP, psn uint32) {
	a := answer{kind: answerAck, syndrome: q.nic.ackSyndrome(), covers: 1, psn: psn, msn: s.msn}
	if s.dueN > 0 {
		t := s.tail()
		if t.kind == answerAck && t.syndrome.ACK() && int(t.covers) < q.nic.cfg.AckCoalesce {
			a.covers = t.covers + 1
			*t = a
			q.nic.stats.AcksMerged++
			return
		}
	}
	s.add(q, a)
}

// nak queues a refusal of the request with PSN psn.
func (s *responder) nak(q *QP, psn uint32, syn hdr.Syndrome) {
	s.add(q, answer{kind: answerAck, syndrome: syn, psn: psn, msn: s.msn})
	q.stats.NAKTx.count(syn)
	switch {
	case syn.RNR():
		q.nic.stats.RNRTx++
	case syn == hdr.SynNAKSequence:
		q.nic.stats.NAKSequenceTx++
	default:
		q.nic.stats.NAKErrorTx++
	}
}

// nakFatal refuses the expected request and ends the connection.
func (s *responder) nakFatal(q *QP, syn hdr.Syndrome) {
	s.nak(q, s.epsn, syn)
	q.end(Failure{Status: statusOf(syn), Responder: true, Syndrome: syn, PSN: s.epsn, Why: s.why})
}

// refuse notes why a request is refused with syndrome syn, and returns syn.
func (s *responder) refuse(syn hdr.Syndrome, why string) hdr.Syndrome {
	s.why = why
	return syn
}

// ackSyndrome returns the syndrome of an ACK: rxe gives no credits, ConnectX sends a credit count of 0.
func (n *NIC) ackSyndrome() hdr.Syndrome {
	if n.cfg.Profile == RXE {
		return hdr.SynACKUnlimited
	}
	return hdr.SynACK
}

// remote returns the memory [va, va+length) if a peer may reach it with R_Key key and rights a, else nil.
// For length 0 inside a region the result is empty, but not nil (unless MR.Mem is nil).
func (q *QP) remote(key uint32, va uint64, length uint32, a Access) []byte {
	n := q.nic
	i := key >> 8
	if i >= uint32(len(n.mrs)) {
		return nil
	}
	m := n.mrs[i]
	if m == nil || m.RKey != key || !m.valid || m.pd != q.init.PD || m.Access&a != a || !m.window.reaches(q) {
		return nil
	}
	return m.slice(va, length)
}

// inputRequest takes a packet of a reliable connection's request.
func (s *responder) inputRequest(q *QP, p []byte, f *hdr.Frame) {
	st := &q.nic.stats
	h := f.BTHOf(p)
	q.stats.RxRequests++
	d := hdr.PSNDiff(h.PSN(), s.epsn)
	if s.dueN == len(s.due) && (s.tail().kind != answerAck || !f.Op.Any(hdr.IsSend|hdr.IsWrite)) {
		st.DropBusy++
		return
	}
	switch {
	case d > 0:
		st.OutOfSequence++
		st.DropSequence++
		if !s.nakSent {
			s.nakSent = true
			s.nak(q, s.epsn, hdr.SynNAKSequence)
		}
		return
	case d < 0:
		s.duplicate(q, p, f, h.PSN())
		return
	}
	st.RxRequests++
	s.nakSent = false
	syn := s.perform(q, p, f)
	switch {
	case q.state != StateReady: // the completion found its queue full
	case syn.ACK() && f.Op.Any(hdr.IsRead|hdr.IsAtomic): // the response is queued
	case syn.ACK():
		s.epsn = psnAdd(s.epsn, 1)
		s.notRead = s.epsn
		if h.AckReq() {
			s.ack(q, psnAdd(s.epsn, -1))
		}
	case syn.RNR():
		s.nak(q, s.epsn, syn)
	default:
		s.nakFatal(q, syn)
	}
}

// right returns the rights that a queue pair and a region must grant for op.
func right(op hdr.Opcode) Access {
	switch {
	case op.Has(hdr.IsWrite):
		return RemoteWrite
	case op.Has(hdr.IsRead):
		return RemoteRead
	case op.Has(hdr.IsAtomic):
		return RemoteAtomic
	}
	return 0
}

// perform executes the expected request packet, and returns the syndrome of its
// answer. The order of the checks is that of rxe: sequence of opcodes, the
// queue pair's rights, resources, length and R_Key.
func (s *responder) perform(q *QP, p []byte, f *hdr.Frame) hdr.Syndrome {
	op := f.Op
	need := right(op)
	switch {
	case !s.sequence(op):
		return s.refuse(hdr.SynNAKInvalidRequest, "packet out of the sequence of its message")
	case q.init.Access&need != need:
		return s.refuse(hdr.SynNAKInvalidRequest, "the queue pair does not allow the operation")
	case need&(RemoteRead|RemoteAtomic) != 0 && !s.room(q):
		return s.refuse(hdr.SynNAKInvalidRequest, "more READs and atomics than responder resources")
	case op.Has(hdr.IsSend):
		return s.receiveSend(q, p, f)
	case op.Has(hdr.IsWrite):
		return s.receiveWrite(q, p, f)
	case op.Has(hdr.IsRead):
		return s.receiveRead(q, p, f)
	case op == hdr.CompareSwap || op == hdr.FetchAdd || op == hdr.MaskedCompSwap:
		return s.receiveAtomic(q, p, f)
	}
	return s.refuse(hdr.SynNAKInvalidRequest, "unsupported opcode")
}

// room reports whether there is a responder resource for a READ or atomic. If
// all are in use, rxe reuses the oldest; the ConnectX profile refuses, as IBTA 9.7.4.1
// demands.
func (s *responder) room(q *QP) bool {
	return len(s.res) > 0 && (q.nic.cfg.Profile == RXE || s.open < len(s.res))
}

// sequence reports whether a packet of op may follow the packets before it.
func (s *responder) sequence(op hdr.Opcode) bool {
	if op.Any(hdr.IsFirst | hdr.IsOnly) {
		return s.in == noMessage
	}
	return s.in == sendMessage && op.Has(hdr.IsSend) || s.in == writeMessage && op.Has(hdr.IsWrite)
}

// segment reports whether a packet of op may carry n bytes.
func (q *QP) segment(op hdr.Opcode, n uint32) bool {
	switch {
	case op.Any(hdr.IsFirst | hdr.IsMiddle):
		return n == q.mtu
	case op.Has(hdr.IsLast):
		return n > 0 && n <= q.mtu
	}
	return n <= q.mtu
}

func (q *QP) rnr() hdr.Syndrome { return hdr.SynRNR | hdr.Syndrome(q.conn.MinRNRTimer) }

// receiveSend takes a packet of a SEND, and returns the syndrome of its
// answer.
func (s *responder) receiveSend(q *QP, p []byte, f *hdr.Frame) hdr.Syndrome {
	op, data := f.Op, f.PayloadOf(p)
	if !q.segment(op, uint32(len(data))) {
		return s.refuse(hdr.SynNAKInvalidRequest, "payload of a length that the opcode forbids")
	}
	if s.rqN == 0 {
		return q.rnr()
	}
	if op.Any(hdr.IsFirst | hdr.IsOnly) {
		s.got = 0
	}
	w := s.recv()
	if len(data) > len(w.Buf)-int(s.got) {
		id := s.popRecv().ID
		q.init.RecvCQ.add(q, WC{ID: id, Op: OpRecv, Status: LocalLengthError})
		return s.refuse(hdr.SynNAKInvalidRequest, "message longer than its receive request")
	}
	copy(w.Buf[s.got:], data)
	s.got += uint32(len(data))
	wc := WC{ID: w.ID, Op: OpRecv}
	ext := op.Info().Ext
	if ext&hdr.HasIETH != 0 {
		wc.Imm = f.IETHOf(p).RKey()
		if !q.invalidate(wc.Imm) {
			return s.cannotInvalidate(q, f.BTHOf(p).AckReq())
		}
	}
	s.in = sendMessage
	if op.Any(hdr.IsLast | hdr.IsOnly) {
		if ext&hdr.HasImmDt != 0 {
			wc.Op, wc.Imm = OpRecvImm, f.ImmDtOf(p).Data()
		}
		wc.ByteLen = s.got
		s.in = noMessage
		s.msn = psnAdd(s.msn, 1)
		s.popRecv()
		q.init.RecvCQ.add(q, wc)
	}
	return hdr.SynACK
}

// receiveWrite takes a packet of an RDMA WRITE.
func (s *responder) receiveWrite(q *QP, p []byte, f *hdr.Frame) hdr.Syndrome {
	op, data := f.Op, f.PayloadOf(p)
	n := uint32(len(data))
	imm := op.Info().Ext&hdr.HasImmDt != 0
	if imm && s.rqN == 0 {
		return q.rnr()
	}
	va, left, rkey := s.va, s.left, s.rkey
	if op.Any(hdr.IsFirst | hdr.IsOnly) {
		h := f.RETHOf(p)
		va, left, rkey = h.VA(), h.DMALength(), h.RKey()
		if left > maxMessage {
			return s.refuse(hdr.SynNAKInvalidRequest, "message longer than 2^31")
		}
		if left > 0 && q.remote(rkey, va, left, RemoteWrite) == nil {
			return s.refuse(hdr.SynNAKRemoteAccess, "WRITE where its R_Key does not reach")
		}
	}
	end := op.Any(hdr.IsLast | hdr.IsOnly)
	if !q.segment(op, n) || end != (n == left) || n > left {
		return s.refuse(hdr.SynNAKInvalidRequest, "payload of another length than the RETH's")
	}
	if n > 0 {
		dst := q.remote(rkey, va, n, RemoteWrite)
		if dst == nil {
			return s.refuse(hdr.SynNAKRemoteAccess, "WRITE where its R_Key does not reach")
		}
		copy(dst, data)
	}
	total := n
	if !op.Has(hdr.IsOnly) {
		total = s.got + n
		if op.Has(hdr.IsFirst) {
			total = n
		}
	}
	s.va, s.left, s.rkey, s.got = va+uint64(n), left-n, rkey, total
	s.in = writeMessage
	if end {
		s.in = noMessage
		s.msn = psnAdd(s.msn, 1)
		if imm {
			id := s.popRecv().ID
			q.init.RecvCQ.add(q, WC{ID: id, Op: OpRecvWriteImm, ByteLen: total, Imm: f.ImmDtOf(p).Data()})
		}
	}
	return hdr.SynACK
}

func (s *responder) remember(q *QP, r resource) (at int32) {
	at = int32(s.resNext)
	s.resNext = (s.resNext + 1) & (len(s.res) - 1)
	if old := &s.res[at]; q.nic.cfg.LateAtomics && old.kind == answerAtomic {
		state := int32(none)
		if !s.execute(q, old) {
			state = gone
		}
		// A waiting answer may use the old resource, if the peer has too many requests under way.
		for i := range s.dueN {
			if a := &s.due[(s.dueHead+i)&(len(s.due)-1)]; a.kind == answerAtomic && a.res == at {
				a.res, a.original = state, old.original
			}
		}
	}
	s.res[at] = r
	return at
}

// execute executes the atomic of r, unless it was executed already. The
// word in memory is little-endian, as the hosts are. execute returns false if r's R_Key does
// not reach the word, because the region went away after the request.
func (s *responder) execute(q *QP, r *resource) bool {
	if r.kind != answerAtomic || r.executed {
		return true
	}
	word := q.remote(r.rkey, r.va, 8, RemoteAtomic)
	if word == nil {
		return false
	}
	r.executed = true
	r.original = binary.LittleEndian.Uint64(word)
	now := r.original
	switch r.op {
	case hdr.CompareSwap:
		if now == r.compare {
			now = r.swap
		}
	case hdr.FetchAdd:
		now += r.swap
	case hdr.MaskedCompSwap:
		if (now^r.compare)&r.compareMask == 0 {
			now = now&^r.swapMask | r.swap&r.swapMask
		}
	}
	binary.LittleEndian.PutUint64(word, now)
	return true
}

// receiveRead takes a READ request. Output makes the response, a packet
// at a time, from the memory's content at that time.
func (s *responder) receiveRead(q *QP, p []byte, f *hdr.Frame) hdr.Syndrome {
	h := f.RETHOf(p)
	n := h.DMALength()
	if n > maxMessage || uint64(n) > maxPackets*uint64(q.mtu) {
		return s.refuse(hdr.SynNAKInvalidRequest, "message longer than 2^31")
	}
	if n > 0 && q.remote(h.RKey(), h.VA(), n, RemoteRead) == nil {
		return s.refuse(hdr.SynNAKRemoteAccess, "READ where its R_Key does not reach")
	}
	s.msn = psnAdd(s.msn, 1)
	psn := s.epsn
	s.epsn = psnAdd(psn, int(max((n+q.mtu-1)/q.mtu, 1)))
	s.remember(q, resource{kind: answerRead, first: psn, last: psnAdd(s.epsn, -1), va: h.VA(), rkey: h.RKey(), length: n})
	s.add(q, answer{kind: answerRead, first: true, counted: true, psn: psn, msn: s.msn, va: h.VA(), rkey: h.RKey(), left: n})
	return hdr.SynACK
}

// receiveAtomic takes an atomic request, and executes it unless Config.LateAtomics is set.
func (s *responder) receiveAtomic(q *QP, p []byte, f *hdr.Frame) hdr.Syndrome {
	r := resource{kind: answerAtomic, first: s.epsn, last: s.epsn, op: f.Op}
	var h hdr.AtomicETH
	if f.Op == hdr.MaskedCompSwap {
		m := f.MaskedAtomicETHOf(p)
		r.swapMask, r.compareMask = m.SwapMask(), m.CompareMask()
		h = hdr.AtomicETH(m)
	} else {
		h = f.AtomicETHOf(p)
	}
	r.va, r.rkey, r.swap, r.compare = h.VA(), h.RKey(), h.Swap(), h.Compare()
	if q.remote(r.rkey, r.va, 8, RemoteAtomic) == nil {
		return s.refuse(hdr.SynNAKRemoteAccess, "atomic where its R_Key does not reach")
	}
	if r.va&7 != 0 {
		return s.refuse(hdr.SynNAKInvalidRequest, "atomic at an address that is no multiple of 8")
	}
	s.msn = psnAdd(s.msn, 1)
	psn := s.epsn
	s.epsn = psnAdd(psn, 1)
	s.notRead = s.epsn
	at := s.remember(q, r)
	a := answer{kind: answerAtomic, counted: true, psn: psn, msn: s.msn, res: at}
	if r := &s.res[at]; !q.nic.cfg.LateAtomics && s.execute(q, r) {
		a.res, a.original = none, r.original
	}
	s.add(q, a)
	return hdr.SynACK
}

// duplicate answers a request that was executed before.
func (s *responder) duplicate(q *QP, p []byte, f *hdr.Frame, psn uint32) {
	st := &q.nic.stats
	q.stats.Duplicates++
	if f.Op.Any(hdr.IsSend | hdr.IsWrite) {
		st.RxRequests++
		st.Duplicates++
		newest := s.epsn
		if q.nic.cfg.Profile == RXE {
			newest = s.notRead // rxe_resp.c: ack_psn
		}
		s.ack(q, psnAdd(newest, -1))
		return
	}
	// The newest comes first: an older one with the same PSN is that of a request 2^24 packets before.
	for k := range s.res {
		i := (s.resNext - 1 - k) & (len(s.res) - 1)
		r := &s.res[i]
		if r.kind == answerAck || hdr.PSNDiff(psn, r.first) < 0 || hdr.PSNDiff(psn, r.last) > 0 {
			continue
		}
		if !s.replay(q, p, f, psn, i) {
			break
		}
		st.RxRequests++
		st.Duplicates++
		return
	}
	st.DropDuplicate++
}

// replay queues the answer to a repeated request with PSN psn, from place at of the resources. It returns
// false if the request is not the one that is remembered there.
func (s *responder) replay(q *QP, p []byte, f *hdr.Frame, psn uint32, at int) bool {
	r := &s.res[at]
	switch {
	case r.kind == answerAtomic && f.Op.Has(hdr.IsAtomic):
		a := answer{kind: answerAtomic, psn: psn, msn: s.msn, res: int32(at)}
		if r.executed {
			a.res, a.original = none, r.original
		}
		s.add(q, a)
		q.nic.stats.ReplayedAtoms++
		return true
	case r.kind == answerRead && f.Op == hdr.ReadRequest:
		h := f.RETHOf(p)
		off := uint64((psn-r.first)&hdr.PSNMask) * uint64(q.mtu)
		n := h.DMALength()
		if off+uint64(n) > uint64(r.length) {
			return false
		}
		// rxe drops a repeated READ that asks for another range than the
		// original. The ConnectX profile takes the range from the
		// repeated request. So it answers a READ that a middlebox redirected to another
		// address the first time, and not when it was repeated.
		if h.RKey() != r.rkey || h.VA() != r.va+off {
			if q.nic.cfg.Profile != ConnectX || q.remote(h.RKey(), h.VA(), n, RemoteRead) == nil {
				return false
			}
		}
		first := psn == r.first || q.nic.cfg.Profile == ConnectX
		s.add(q, answer{kind: answerRead, first: first, psn: psn, msn: s.msn, va: h.VA(), rkey: h.RKey(), left: n})
		return true
	}
	return false
}

// sendResponse writes the next response packet into b; it returns false if there is none.
func (s *responder) sendResponse(q *QP, b *packet.Buf) bool {
	if s.dueN == 0 {
		return false
	}
	a := &s.due[s.dueHead]
	if a.kind == answerRead {
		seg := min(a.left, q.mtu)
		data := q.remote(a.rkey, a.va, seg, RemoteRead)
		if data != nil || seg == 0 {
			s.sendReadResponse(q, b, a, data)
			if a.left == seg {
				s.popAnswer()
				return true
			}
			a.left -= seg
			a.va += uint64(seg)
			a.psn = psnAdd(a.psn, 1)
			a.first = false
			return true
		}
		s.withdrawn(q, a)
	} else if a.kind == answerAtomic && a.res != none {
		if a.res != gone && s.execute(q, &s.res[a.res]) {
			a.original = s.res[a.res].original
		} else {
			s.withdrawn(q, a)
		}
	}
	op, ext := hdr.Acknowledge, hdr.AETHLen
	if a.kind == answerAtomic {
		op, ext = hdr.AtomicAck, hdr.AETHLen+hdr.AtomicAckETHLen
	}
	p, body := q.begin(b, op, a.psn, ext, 0)
	h := hdr.AETH(body)
	h.SetSyndrome(a.syndrome)
	if a.kind == answerAtomic {
		h.SetSyndrome(q.nic.ackSyndrome())
		hdr.AtomicAckETH(body[hdr.AETHLen:]).SetOriginal(a.original)
	}
	h.SetMSN(a.msn)
	q.finish(p)
	s.popAnswer()
	return true
}

// withdrawn replaces answer a, which is the next one, and all answers behind it by one refusal, because
// the region went away between request and response.
func (s *responder) withdrawn(q *QP, a *answer) {
	*a = answer{kind: answerAck, syndrome: hdr.SynNAKRemoteAccess, psn: a.psn, msn: a.msn}
	s.dueN, s.open = 1, 0
	q.nic.stats.NAKErrorTx++
	q.stats.NAKTx.count(a.syndrome)
	q.end(Failure{Status: RemoteAccessError, Responder: true, Syndrome: a.syndrome, PSN: a.psn, Why: "the region went away before the response"})
}

func (s *responder) popAnswer() {
	if s.due[s.dueHead].counted {
		s.open--
	}
	s.dueHead = (s.dueHead + 1) & (len(s.due) - 1)
	s.dueN--
}

func (s *responder) sendReadResponse(q *QP, b *packet.Buf, a *answer, data []byte) {
	last := int(a.left) == len(data)
	op, ext := hdr.ReadRespMiddle, 0
	switch {
	case a.first && last:
		op, ext = hdr.ReadRespOnly, hdr.AETHLen
	case a.first:
		op, ext = hdr.ReadRespFirst, hdr.AETHLen
	case last:
		op, ext = hdr.ReadRespLast, hdr.AETHLen
	}
	p, body := q.begin(b, op, a.psn, ext, len(data))
	if ext > 0 {
		h := hdr.AETH(body)
		h.SetSyndrome(q.nic.ackSyndrome())
		h.SetMSN(a.msn)
	}
	copy(body[ext:], data)
	q.finish(p)
}
