package rnic

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

const (
	// maxUnacked is the largest number of unacknowledged PSNs (rxe).
	maxUnacked = 128
	// maxNoAckReq is the number of packets of a long message after which the requester asks for an
	// acknowledgement (rxe).
	maxNoAckReq = 64
)

// requester is the sending half of a queue pair.
//
//	sq:  [0 ........... cur ........ n)     head-relative
//	      una ... sendPSN ... maxPSN        PSNs
//
// Requests before cur are sent; the request at cur is being sent. After a loss cur
// and sendPSN go back to una, the oldest PSN that is not acknowledged.
//
// The methods take the queue pair as an argument, because a pointer to it in the requester would make
// small messages slower.
type requester struct {
	sq       []sendWQE
	head, n  int
	cur      int
	postPSN  uint32 // first PSN of the next request that is posted
	sendPSN  uint32 // next PSN to send
	maxPSN   uint32 // the PSN after the newest PSN that was ever sent
	una      uint32
	rdOut    int // READs and atomics outstanding
	retry    int
	rnrRetry int
	noAck    int // packets since one asked for an ACK
	timeout  clock.Duration
	retrying bool // went back, and nothing has been acknowledged since
	rnrWait  bool
}

func (r *requester) at(i int) *sendWQE {
	i += r.head
	if i >= len(r.sq) {
		i -= len(r.sq)
	}
	return &r.sq[i]
}

// pop removes the oldest request.
func (r *requester) pop() {
	w := r.at(0)
	if w.counted {
		r.rdOut--
	}
	clear(w.sgl)
	r.head++
	if r.head == len(r.sq) {
		r.head = 0
	}
	r.n--
	if r.cur > 0 {
		r.cur--
	}
}

func (r *requester) clear() {
	for r.n > 0 {
		r.pop()
	}
}

func (r *requester) connect(c *Conn) {
	*r = requester{sq: r.sq, retry: c.RetryCnt, rnrRetry: c.RNRRetry, timeout: ackTimeout(c.Timeout)}
	r.postPSN, r.sendPSN, r.maxPSN, r.una = c.SQPSN, c.SQPSN, c.SQPSN, c.SQPSN
}

// canSend reports whether the next request packet may go out now.
func (r *requester) canSend(q *QP) bool {
	if q.state != StateReady || r.rnrWait || r.cur == r.n {
		return false
	}
	w := r.at(r.cur)
	if w.Fence && r.cur > 0 || w.local() {
		return false
	}
	if q.Type != TypeRC {
		return true
	}
	if hdr.PSNDiff(r.sendPSN, r.una) >= maxUnacked {
		return false
	}
	return !w.rdAtomic() || w.counted || r.rdOut < q.conn.MaxRdAtomic
}

// kick queues q for Output if it has something to send.
func (q *QP) kick() {
	q.req.runLocal(q)
	if !q.inReq && q.req.canSend(q) {
		q.nic.reqQ.pushReq(q)
	}
}

// sendRequest writes the next request packet into b; it returns false if there is none.
func (r *requester) sendRequest(q *QP, b *packet.Buf) bool {
	if !r.canSend(q) {
		return false
	}
	w := r.at(r.cur)
	i := (r.sendPSN - w.first) & hdr.PSNMask
	psn := r.sendPSN
	if hdr.PSNDiff(psn, r.maxPSN) < 0 {
		q.nic.stats.Retransmitted++
	}
	switch {
	case w.Op == OpRead:
		r.sendRead(q, b, w, i)
	case w.rdAtomic():
		r.sendAtomic(q, b, w)
	case q.Type == TypeUD:
		r.sendDatagram(q, b, w)
	default:
		r.sendSegment(q, b, w, i)
	}
	if w.rdAtomic() {
		if !w.counted {
			w.counted = true
			r.rdOut++
		}
		r.sendPSN = (w.last() + 1) & hdr.PSNMask
	} else {
		r.sendPSN = (psn + 1) & hdr.PSNMask
	}
	if hdr.PSNDiff(r.sendPSN, r.maxPSN) > 0 {
		r.maxPSN = r.sendPSN
	}
	if r.sendPSN == (w.last()+1)&hdr.PSNMask {
		r.cur++
		if q.Type != TypeRC {
			r.complete(q, Success)
			return true
		}
	}
	if q.Type == TypeRC && q.timer.want == clock.Never {
		r.armTimeout(q)
	}
	return true
}

func (r *requester) armTimeout(q *QP) {
	if r.timeout > 0 {
		q.setTimer(q.nic.now.Add(r.timeout))
	}
}

func (r *requester) sendRead(q *QP, b *packet.Buf, w *sendWQE, i uint32) {
	p, body := q.begin(b, hdr.ReadRequest, r.sendPSN, hdr.RETHLen, 0)
	off := i * q.mtu
	h := hdr.RETH(body)
	h.SetVA(w.RemoteAddr + uint64(off))
	h.SetRKey(w.RKey)
	h.SetDMALength(w.length - off)
	q.tmpl.bth(p).SetAckReq(true)
	r.noAck = 0
	q.finish(p)
}

func (r *requester) sendAtomic(q *QP, b *packet.Buf, w *sendWQE) {
	op, size := hdr.CompareSwap, hdr.AtomicETHLen
	switch w.Op {
	case OpFetchAdd:
		op = hdr.FetchAdd
	case OpMaskedCompareSwap:
		op, size = hdr.MaskedCompSwap, hdr.MaskedAtomicETHLen
	}
	p, body := q.begin(b, op, r.sendPSN, size, 0)
	h := hdr.AtomicETH(body)
	h.SetVA(w.RemoteAddr)
	h.SetRKey(w.RKey)
	h.SetSwap(w.Swap)
	h.SetCompare(w.Compare)
	if w.Op == OpMaskedCompareSwap {
		m := hdr.MaskedAtomicETH(body)
		m.SetSwapMask(w.SwapMask)
		m.SetCompareMask(w.CompareMask)
	}
	q.tmpl.bth(p).SetAckReq(true)
	r.noAck = 0
	q.finish(p)
}

// sendSegment sends packet i of a SEND or WRITE.
func (r *requester) sendSegment(q *QP, b *packet.Buf, w *sendWQE, i uint32) {
	first, last := i == 0, i == w.psns-1
	off := i * q.mtu
	n := min(w.length-off, q.mtu)
	write := w.Op == OpWrite || w.Op == OpWriteImm
	op := hdr.SendFirst
	if write {
		op = hdr.WriteFirst
	}
	switch {
	case first && last:
		op += hdr.SendOnly - hdr.SendFirst
	case last:
		op += hdr.SendLast - hdr.SendFirst
	case !first:
		op += hdr.SendMiddle - hdr.SendFirst
	}
	ext := 0
	if write && first {
		ext = hdr.RETHLen
	}
	imm := last && (w.Op == OpSendImm || w.Op == OpWriteImm)
	inv := last && w.Op == OpSendInv
	switch {
	case imm:
		op++ // each opcode with immediate follows the one without
		ext += hdr.ImmDtLen
	case inv:
		op = hdr.SendLastInv
		if first {
			op = hdr.SendOnlyInv
		}
		ext += hdr.IETHLen
	}
	p, body := q.begin(b, op, r.sendPSN, ext, int(n))
	if write && first {
		h := hdr.RETH(body)
		h.SetVA(w.RemoteAddr)
		h.SetRKey(w.RKey)
		h.SetDMALength(w.length)
	}
	if imm {
		hdr.ImmDt(body[ext-hdr.ImmDtLen:]).SetData(w.Imm)
	}
	if inv {
		hdr.IETH(body[ext-hdr.IETHLen:]).SetRKey(w.RKey)
	}
	gather(body[ext:ext+int(n)], w.sgl, int(off))
	h := q.tmpl.bth(p)
	if last && w.Solicited {
		h.SetSolicited(true)
	}
	if q.Type == TypeRC {
		if last || r.noAck > maxNoAckReq {
			h.SetAckReq(true)
			r.noAck = 0
		} else {
			r.noAck++
		}
	}
	q.finish(p)
}

// complete completes the oldest request with status s, and then the executed requests without
// a packet that follow it.
func (r *requester) complete(q *QP, s Status) {
	r.completeOne(q, s)
	r.completeLocal(q)
}

func (r *requester) completeOne(q *QP, s Status) {
	w := r.at(0)
	r.una = (w.last() + 1) & hdr.PSNMask
	wc := WC{ID: w.ID, Op: w.Op, Status: s, ByteLen: w.length}
	signal := w.Signaled || q.init.SQSigAll || s != Success
	r.pop()
	if signal {
		q.init.SendCQ.add(q, wc)
	}
}

// inputResponse takes an ACK, NAK, READ or atomic response.
func (r *requester) inputResponse(q *QP, p []byte, f *hdr.Frame) {
	s := &q.nic.stats
	psn := f.BTHOf(p).PSN()
	q.stats.RxResponses++
	if r.n == 0 || hdr.PSNDiff(psn, r.una) < 0 || hdr.PSNDiff(psn, r.maxPSN) >= 0 {
		s.DropStale++
		return
	}
	s.RxResponses++
	una := r.una
	r.respond(q, p, f, psn)
	if q.state != StateReady {
		return
	}
	if r.una != una {
		if hdr.PSNDiff(r.sendPSN, r.una) < 0 {
			r.sendPSN = r.una
		}
		if !r.rnrWait {
			if r.una == r.maxPSN {
				q.setTimer(clock.Never)
			} else {
				r.armTimeout(q)
			}
		}
	}
	q.kick()
}

// respond acts on a response with PSN psn, where una <= psn < maxPSN.
func (r *requester) respond(q *QP, p []byte, f *hdr.Frame, psn uint32) {
	s := &q.nic.stats
	// Everything before psn was received. For a READ or an atomic that is not
	// enough: its response was lost.
	for hdr.PSNDiff(psn, r.at(0).last()) > 0 {
		if r.at(0).rdAtomic() {
			s.ImplicitNAKs++
			r.goBack(q)
			return
		}
		r.progress(q)
		r.complete(q, Success)
		if q.state != StateReady {
			return
		}
	}
	w := r.at(0)
	if w.Op == OpRead && psn != r.una {
		s.ImplicitNAKs++
		r.goBack(q)
		return
	}
	var syn hdr.Syndrome
	if f.Op.Info().Ext&hdr.HasAETH != 0 {
		syn = f.AETHOf(p).Syndrome()
	}
	if !syn.ACK() {
		if f.Op == hdr.Acknowledge {
			r.refused(q, psn, syn)
		}
		return
	}
	switch {
	case f.Op == hdr.Acknowledge:
		if w.rdAtomic() {
			s.ImplicitNAKs++
			r.goBack(q)
			return
		}
	case f.Op == hdr.AtomicAck && w.isAtomic():
		binary.LittleEndian.PutUint64(w.sgl[0], f.AtomicAckETHOf(p).Original())
	case f.Op.Has(hdr.IsReadResp) && w.Op == OpRead:
		off := ((psn - w.first) & hdr.PSNMask) * q.mtu
		data := f.PayloadOf(p)
		if uint32(len(data)) != min(w.length-off, q.mtu) {
			q.broke(LocalLengthError, Failure{PSN: psn, Why: "READ response of another length than asked for"})
			return
		}
		scatter(w.sgl, int(off), data)
	default: // an answer to another kind of request
		return
	}
	r.progress(q)
	if psn == w.last() {
		r.complete(q, Success)
		return
	}
	r.una = (psn + 1) & hdr.PSNMask
}

// progress notes that a new PSN was acknowledged, and resets the retry counters.
func (r *requester) progress(q *QP) {
	r.retrying = false
	r.retry, r.rnrRetry = q.conn.RetryCnt, q.conn.RNRRetry
}

// refused acts on an RNR NAK or a NAK of PSN psn.
func (r *requester) refused(q *QP, psn uint32, syn hdr.Syndrome) {
	s := &q.nic.stats
	if r.una != psn {
		r.una = psn
		r.progress(q)
	}
	q.stats.NAKRx.count(syn)
	switch {
	case syn.RNR():
		s.RNRRx++
		if r.rnrWait {
			return
		}
		if r.rnrRetry == 0 {
			q.broke(RNRRetryExceededError, Failure{Syndrome: syn, PSN: psn, Why: "receiver not ready, and no retries left"})
			return
		}
		if r.rnrRetry != 7 {
			r.rnrRetry--
		}
		r.rewind()
		r.retrying = false
		r.rnrWait = true
		q.setTimer(q.nic.now.Add(rnrDelay(uint8(syn) & 31)))
		return
	case syn == hdr.SynNAKSequence:
		s.NAKSequenceRx++
		r.goBack(q)
		return
	case statusOf(syn) == Success: // reserved codes and types
		return
	}
	s.NAKErrorRx++
	q.broke(statusOf(syn), Failure{Syndrome: syn, PSN: psn, Why: "refused by the peer"})
}

// goBack resends all packets from una on, unless it does so already or an RNR wait runs.
func (r *requester) goBack(q *QP) {
	if r.retrying || r.rnrWait {
		return
	}
	if r.retry == 0 {
		q.broke(RetryExceededError, Failure{PSN: r.una, Why: "no answer, and no retries left"})
		return
	}
	if r.retry != 7 || q.nic.cfg.Profile != RXE {
		r.retry--
	}
	r.rewind()
	r.armTimeout(q)
}

func (r *requester) rewind() {
	for i := 0; i <= r.cur && i < r.n; i++ {
		r.at(i).counted = false
	}
	r.cur, r.rdOut, r.noAck = 0, 0, 0
	r.sendPSN = r.una
	r.retrying = true
}

// expire is called when the queue pair's timer has run out.
func (r *requester) expire(q *QP) {
	if q.state != StateReady {
		return
	}
	if r.rnrWait {
		r.rnrWait = false
		q.kick()
		return
	}
	if r.una == r.maxPSN {
		return
	}
	q.nic.stats.Timeouts++
	r.retrying = false
	r.goBack(q)
	q.kick()
}
