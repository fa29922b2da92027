package rnic

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// Limits; most of them are those of rxe.
const (
	maxQP     = 0x10000
	maxMR     = 1 << 24
	maxWR     = 0x4000
	maxSGE    = 32
	maxRdAtom = 128
	// quarantine is the number of freed queue pair numbers, and of freed R_Keys, that are
	// not reused yet, so that late packets find no receiver.
	quarantine = 256
	fewSGE     = 4 // pieces of memory that a send queue has room for from the start
	maxMessage = 1 << 31
	// maxPackets keeps the PSNs of a message, and of the window before it,
	// in the newer half of the PSN space.
	maxPackets = 1 << 22
)

// PD is a protection domain. A queue pair reaches only the memory regions of
// its own domain.
type PD struct{ nic *NIC }

// AllocPD makes a protection domain.
func (n *NIC) AllocPD() *PD { return &PD{nic: n} }

// MR is a memory region. Remote peers see Mem at address VA.
type MR struct {
	RKey   uint32
	VA     uint64
	Mem    []byte
	Access Access
	pd     *PD
	valid  bool
	fast   bool // may be invalidated, and registered anew by a work request
	bound  int  // windows that are bound to the region
	window *MW  // the region stands for what this window shows
}

// RegMR registers mem at address va, which need not be the real address of mem.
// Peers write to mem directly. The goroutine that drives the NIC may read mem between
// its calls of the NIC.
func (p *PD) RegMR(mem []byte, va uint64, a Access) (*MR, error) {
	n := p.nic
	if va+uint64(len(mem)) < va {
		return nil, fmt.Errorf("rnic: region of %d bytes at %#x wraps around: %w", len(mem), va, ErrInvalid)
	}
	if a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0 {
		return nil, fmt.Errorf("rnic: remote write or atomic access needs LocalWrite too: %w", ErrInvalid)
	}
	key := max(uint32(len(n.mrs)), 1)<<8 | n.rand.Uint32()&0xFF
	if len(n.freeMR) > quarantine || key>>8 >= maxMR && len(n.freeMR) > 0 {
		// The next variant of a key that has not been used for long.
		key = n.freeMR[0]
		key = key&^0xFF | (key+1)&0xFF
	}
	m, err := p.regMR(mem, va, a, key)
	if err == nil && len(n.freeMR) > 0 && n.freeMR[0]>>8 == key>>8 {
		n.freeMR = n.freeMR[1:]
	}
	return m, err
}

func (p *PD) regMR(mem []byte, va uint64, a Access, key uint32) (*MR, error) {
	n := p.nic
	index := key >> 8
	if index >= maxMR || int(index) < len(n.mrs) && n.mrs[index] != nil {
		return nil, fmt.Errorf("rnic: R_Key %#x is taken or out of range: %w", key, ErrInvalid)
	}
	for uint32(len(n.mrs)) <= index {
		n.mrs = append(n.mrs, nil)
	}
	m := &MR{RKey: key, VA: va, Mem: mem, Access: a, pd: p, valid: true}
	n.mrs[index] = m
	return m, nil
}

// FastRegMR does what RegMR does, for a region that a SEND with invalidate or OpLocalInv may
// invalidate (a fast-register physical memory region, IBTA 10.6.2.2), and that
// OpFastRegMR registers anew.
func (p *PD) FastRegMR(mem []byte, va uint64, a Access) (*MR, error) {
	m, err := p.RegMR(mem, va, a)
	if err == nil {
		m.fast = true
	}
	return m, err
}

// Dereg ends remote access to the region. Peers that still use it get a
// remote access error. As in rxe_dereg_mr, it returns ErrState and changes nothing while windows
// are bound to the region.
func (m *MR) Dereg() error {
	if m.bound > 0 {
		return fmt.Errorf("rnic: %d memory windows are bound to region %#x: deallocate or invalidate them first: %w", m.bound, m.RKey, ErrState)
	}
	m.drop()
	return nil
}

// drop takes the region out of the table of keys.
func (m *MR) drop() {
	n := m.pd.nic
	if i := m.RKey >> 8; int(i) < len(n.mrs) && n.mrs[i] == m {
		n.mrs[i] = nil
		n.freeMR = append(n.freeMR, m.RKey)
	}
	m.valid = false
}

// Valid reports whether peers may still use the region: neither Dereg nor an
// invalidation has ended it.
func (m *MR) Valid() bool { return m.valid }

// slice returns the bytes [va, va+length) of the region, or nil if they are not all inside it.
func (m *MR) slice(va uint64, length uint32) []byte {
	off := va - m.VA
	if va < m.VA || off > uint64(len(m.Mem)) || uint64(length) > uint64(len(m.Mem))-off {
		return nil
	}
	return m.Mem[off : off+uint64(length) : off+uint64(length)]
}

// CQ is a completion queue.
type CQ struct {
	nic     *NIC
	ring    []WC
	head, n int
	overrun bool
}

// CreateCQ makes a completion queue that holds depth completions (at least 1).
func (n *NIC) CreateCQ(depth int) *CQ { return &CQ{nic: n, ring: make([]WC, max(depth, 1))} }

// Poll moves up to len(w) completions into w, oldest first, and returns how
// many.
func (c *CQ) Poll(w []WC) int {
	k := 0
	for k < len(w) && c.n > 0 {
		w[k] = c.ring[c.head]
		c.head++
		if c.head == len(c.ring) {
			c.head = 0
		}
		c.n--
		k++
	}
	return k
}

// Len returns the number of completions that wait.
func (c *CQ) Len() int { return c.n }

// Overrun reports whether a completion found the queue full and was lost. The
// queue pair concerned is then in the error state.
func (c *CQ) Overrun() bool { return c.overrun }

func (c *CQ) add(q *QP, w WC) {
	if c.n == len(c.ring) {
		c.overrun = true
		c.nic.stats.CQOverruns++
		q.end(Failure{Status: LocalQPOperationError, Why: "completion queue is full"})
		return
	}
	i := c.head + c.n
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	w.QPN = q.QPN
	c.ring[i] = w
	c.n++
}

// State is the state of a queue pair.
type State uint8

const (
	StateReset State = iota
	StateReady       // RTS
	StateError
	StateDestroyed
)

func (s State) String() string {
	return [...]string{"reset", "ready", "error", "destroyed"}[s]
}

// sendWQE is a SendWR in the send queue.
type sendWQE struct {
	SendWR
	sgl     [][]byte // SGL, in an array that the queue keeps
	ah      AH
	length  uint32
	first   uint32 // first PSN
	psns    uint32 // number of PSNs
	counted bool   // READ or atomic that counts as outstanding
	done    bool   // request without a packet that was executed
	status  Status // of the completion when the queue pair ends, if not Success
}

func (w *sendWQE) last() uint32     { return (w.first + w.psns - 1) & hdr.PSNMask }
func (w *sendWQE) rdAtomic() bool   { return w.Op >= OpRead && w.Op <= OpMaskedCompareSwap }
func (w *sendWQE) local() bool      { return w.Op >= OpBindMW }
func (w *sendWQE) isAtomic() bool   { return w.rdAtomic() && w.Op != OpRead }
func roundUpPow2(n int) int         { return 1 << bits.Len(uint(n-1)) }
func psnAdd(a uint32, n int) uint32 { return (a + uint32(n)) & hdr.PSNMask }

// QP is a queue pair.
type QP struct {
	QPN   uint32
	Type  Type
	nic   *NIC
	init  QPInit
	conn  Conn
	state State
	mtu   uint32
	tmpl  template
	stats QPStats
	cause Failure

	cnpNext clock.Time // before this time no congestion notification is sent
	cnpDue  bool

	req  requester
	resp responder

	timer   timer
	reqNext *QP // in NIC.reqQ
	rspNext *QP // in NIC.rspQ
	inReq   bool
	inRsp   bool
}

// CreateQP makes a queue pair in the reset state. Receives may be posted at
// once; Connect makes it talk.
func (n *NIC) CreateQP(i QPInit) (*QP, error) {
	if i.QPN != 0 {
		q, err := n.createQP(i, i.QPN)
		if k := slices.Index(n.freeQP, i.QPN); err == nil && k >= 0 {
			n.freeQP = slices.Delete(n.freeQP, k, k+1)
		}
		return q, err
	}
	qpn := n.cfg.FirstQPN + uint32(len(n.qps))
	full := len(n.qps) == maxQP || qpn > 0xFFFFFF
	if full && len(n.freeQP) == 0 {
		return nil, fmt.Errorf("rnic: all %d queue pairs are in use: %w", len(n.qps), ErrInvalid)
	}
	if full || len(n.freeQP) > quarantine {
		qpn = n.freeQP[0]
	}
	q, err := n.createQP(i, qpn)
	if err == nil && len(n.freeQP) > 0 && n.freeQP[0] == qpn {
		n.freeQP = n.freeQP[1:]
	}
	return q, err
}

func (n *NIC) createQP(i QPInit, qpn uint32) (*QP, error) {
	switch {
	case i.PD == nil || i.PD.nic != n:
		return nil, fmt.Errorf("rnic: queue pair needs a protection domain of its NIC: %w", ErrInvalid)
	case i.SendCQ == nil || i.RecvCQ == nil || i.SendCQ.nic != n || i.RecvCQ.nic != n:
		return nil, fmt.Errorf("rnic: queue pair needs completion queues of its NIC: %w", ErrInvalid)
	case i.Type > TypeUD:
		return nil, fmt.Errorf("rnic: queue pair type %d does not exist: %w", i.Type, ErrInvalid)
	case i.MaxSend < 0 || i.MaxSend > maxWR || i.MaxRecv < 0 || i.MaxRecv > maxWR:
		return nil, fmt.Errorf("rnic: work queues hold 1 to %d requests: %w", maxWR, ErrInvalid)
	}
	i.MaxSend = cmp.Or(i.MaxSend, 128)
	i.MaxRecv = cmp.Or(i.MaxRecv, 128)
	at := int(qpn - n.cfg.FirstQPN)
	if at >= maxQP || qpn > 0xFFFFFF || at < len(n.qps) && n.qps[at] != nil {
		return nil, fmt.Errorf("rnic: queue pair number %#x is taken or out of range: %w", qpn, ErrInvalid)
	}
	for len(n.qps) <= at {
		n.qps = append(n.qps, nil)
	}
	n.qps[at] = n.newQP(i, qpn)
	return n.qps[at], nil
}

// CreateGSI makes queue pair 1, the general services interface, to which the
// connection manager's datagrams go. It is a UD queue pair with hdr.GSIQKey,
// whatever i says. A NIC has at most one.
func (n *NIC) CreateGSI(i QPInit) (*QP, error) {
	switch {
	case n.gsi != nil:
		return nil, fmt.Errorf("rnic: queue pair 1 is in use: %w", ErrInvalid)
	case i.PD == nil || i.PD.nic != n || i.SendCQ == nil || i.RecvCQ == nil || i.SendCQ.nic != n || i.RecvCQ.nic != n:
		return nil, fmt.Errorf("rnic: queue pair needs a protection domain and completion queues of its NIC: %w", ErrInvalid)
	case i.MaxSend < 1 || i.MaxSend > maxWR || i.MaxRecv < 1 || i.MaxRecv > maxWR:
		return nil, fmt.Errorf("rnic: work queues hold 1 to %d requests: %w", maxWR, ErrInvalid)
	}
	i.Type, i.QKey = TypeUD, hdr.GSIQKey
	n.gsi = n.newQP(i, 1)
	return n.gsi, nil
}

func (n *NIC) newQP(i QPInit, qpn uint32) *QP {
	q := &QP{QPN: qpn, Type: i.Type, nic: n, init: i}
	q.timer.reset()
	q.req.sq = make([]sendWQE, i.MaxSend)
	sges := make([][]byte, i.MaxSend*fewSGE)
	for k := range q.req.sq {
		q.req.sq[k].sgl = sges[k*fewSGE : k*fewSGE : (k+1)*fewSGE]
	}
	q.resp.rq = make([]RecvWR, i.MaxRecv)
	return q
}

// State returns the queue pair's state.
func (q *QP) State() State { return q.state }

// Destroy removes the queue pair. Its work requests vanish without
// completions.
func (q *QP) Destroy() {
	if q.state == StateDestroyed {
		return
	}
	n := q.nic
	q.drop()
	q.state = StateDestroyed
	if q == n.gsi {
		n.gsi = nil
		return
	}
	n.qps[q.QPN-n.cfg.FirstQPN] = nil
	n.freeQP = append(n.freeQP, q.QPN)
}

// Reset brings the queue pair back to the reset state: its work requests
// vanish without completions, and it can be connected anew.
func (q *QP) Reset() {
	if q.state == StateDestroyed {
		return
	}
	q.drop()
	q.state = StateReset
}

// Fail moves a connected queue pair to the error state: all its work requests
// are flushed, and it answers nothing any more.
func (q *QP) Fail() { q.end(Failure{Why: "ended by its owner"}) }

func (q *QP) drop() {
	q.nic.timers.remove(q)
	q.cnpDue = false
	q.req.clear()
	q.resp.clear()
}

// Connect makes the queue pair, which must be in the reset state, ready to send and to receive. For
// a UD queue pair, only SQPSN, Link and PathMTU of c matter; PathMTU is the longest message in
// bytes (0 = the most that the link carries). After an error the queue pair is as it was.
func (q *QP) Connect(c Conn) error {
	n := q.nic
	if q.state != StateReset {
		return fmt.Errorf("rnic: connect queue pair %#x, which is %v: %w", q.QPN, q.state, ErrState)
	}
	if q.Type == TypeUD {
		c.PathMTU = cmp.Or(c.PathMTU, n.maxPathMTU)
	} else {
		if c.RemoteIP.Unmap().Is4() != n.ip4 {
			return fmt.Errorf("rnic: remote address %v is not of the same family as %v: %w", c.RemoteIP, n.cfg.IP, ErrInvalid)
		}
		if c.DestQPN > 0xFFFFFF {
			return fmt.Errorf("rnic: destination queue pair %#x has more than 24 bits: %w", c.DestQPN, ErrInvalid)
		}
	}
	switch c.PathMTU {
	case 256, 512, 1024, 2048, 4096:
	default:
		return fmt.Errorf("rnic: path MTU %d is not 256, 512, 1024, 2048 or 4096: %w", c.PathMTU, ErrInvalid)
	}
	if c.PathMTU > n.maxPathMTU {
		return fmt.Errorf("rnic: path MTU %d does not fit: link MTU %d and the pool's slots carry at most %d: %w", c.PathMTU, n.cfg.LinkMTU, n.maxPathMTU, ErrInvalid)
	}
	c.MaxRdAtomic = cmp.Or(c.MaxRdAtomic, 16)
	c.MaxDestRdAtomic = cmp.Or(c.MaxDestRdAtomic, 16)
	if c.MaxRdAtomic < 0 || c.MaxRdAtomic > maxRdAtom || c.MaxDestRdAtomic < NoRdAtomic || c.MaxDestRdAtomic > maxRdAtom {
		return fmt.Errorf("rnic: outstanding READs and atomics are 1 to %d: %w", maxRdAtom, ErrInvalid)
	}
	if c.Timeout < 0 || c.Timeout > 31 || c.RetryCnt < 0 || c.RetryCnt > 7 || c.RNRRetry < 0 || c.RNRRetry > 7 || c.MinRNRTimer < 0 || c.MinRNRTimer > 31 {
		return fmt.Errorf("rnic: timeout and RNR timer are codes of 5 bits, retry counts of 3 bits: %w", ErrInvalid)
	}
	look := n.cfg.Link
	if c.Link != nil {
		look = *c.Link
	}
	if err := look.check(); err != nil {
		return err
	}
	c.RemoteIP = c.RemoteIP.Unmap()
	c.SQPSN &= hdr.PSNMask
	c.RQPSN &= hdr.PSNMask
	var t template
	t.init(q, &c, look)
	if size := t.size + maxExt + c.PathMTU + hdr.ICRCLen; size > n.pool.SlotSize()-packet.Headroom {
		return fmt.Errorf("rnic: frames of %d bytes do not fit into the pool's slots: lower the path MTU: %w", size, ErrInvalid)
	}
	q.conn, q.cause, q.tmpl = c, Failure{}, t
	q.mtu = uint32(c.PathMTU)
	q.req.connect(&c)
	q.resp.connect(&c, q.Type)
	q.state = StateReady
	return nil
}

// Conn returns the argument of the last Connect, with defaults filled in.
func (q *QP) Conn() Conn { return q.conn }

// Pending returns the range [una, next) of the PSNs of requests that were posted and are not answered.
func (q *QP) Pending() (una, next uint32) { return q.req.una, q.req.postPSN }

// Expected returns the PSN of the request that the queue pair executes next (IBTA: expected PSN).
func (q *QP) Expected() uint32 { return q.resp.epsn }

// PostSend adds a work request to the send queue. It copies w, its AH and the list SGL; the memory
// of the SGL and Bind are used in place.
func (q *QP) PostSend(w *SendWR) error {
	switch q.state {
	case StateReset, StateDestroyed:
		return ErrState
	}
	r := &q.req
	if r.n == len(r.sq) {
		return ErrQueueFull
	}
	if err := q.checkSend(w); err != nil {
		return err
	}
	e := r.at(r.n)
	sgl := append(e.sgl[:0], w.SGL...)
	*e = sendWQE{SendWR: *w, sgl: sgl, first: r.postPSN, psns: 1}
	e.SGL = nil
	if w.AH != nil {
		e.ah = *w.AH
		e.AH = nil
	}
	for _, s := range sgl {
		e.length += uint32(len(s))
	}
	if e.local() {
		e.psns = 0
	} else if e.isAtomic() {
		e.length = 8
	} else if e.length > q.mtu {
		e.psns = (e.length + q.mtu - 1) / q.mtu
	}
	if q.state == StateError {
		q.init.SendCQ.add(q, WC{ID: e.ID, Op: e.Op, Status: WRFlushError})
		return nil
	}
	r.postPSN = psnAdd(r.postPSN, int(e.psns))
	r.n++
	q.kick()
	return nil
}

func (q *QP) checkSend(w *SendWR) error {
	switch {
	case w.Op >= OpBindMW && w.Op <= OpFastRegMR:
		return q.checkLocal(w)
	case w.Op > OpMaskedCompareSwap:
		return fmt.Errorf("rnic: operation %d cannot be posted: %w", w.Op, ErrInvalid)
	}
	if len(w.SGL) > maxSGE {
		return fmt.Errorf("rnic: at most %d pieces of memory in a request: %w", maxSGE, ErrInvalid)
	}
	total := 0
	for _, s := range w.SGL {
		total += len(s)
	}
	if total > maxMessage {
		return fmt.Errorf("rnic: message of %d bytes is longer than 2^31: %w", total, ErrInvalid)
	}
	if total > maxPackets*int(q.mtu) {
		return fmt.Errorf("rnic: message of %d bytes takes more than %d packets of %d: %w", total, maxPackets, q.mtu, ErrInvalid)
	}
	switch q.Type {
	case TypeUC:
		if w.Op >= OpRead || w.Op == OpSendInv {
			return fmt.Errorf("rnic: unreliable connections only SEND and WRITE: %w", ErrInvalid)
		}
	case TypeUD:
		if w.Op > OpSendImm {
			return fmt.Errorf("rnic: datagram queue pairs only SEND: %w", ErrInvalid)
		}
		if w.AH == nil || w.AH.IP.Unmap().Is4() != q.nic.ip4 || w.AH.QPN > 0xFFFFFF {
			return fmt.Errorf("rnic: a datagram needs an address handle of the NIC's address family: %w", ErrInvalid)
		}
		if total > int(q.mtu) {
			return fmt.Errorf("rnic: datagram of %d bytes is longer than the MTU %d: %w", total, q.mtu, ErrInvalid)
		}
	}
	if w.Op > OpRead {
		if len(w.SGL) == 0 || len(w.SGL[0]) < 8 {
			return fmt.Errorf("rnic: an atomic needs 8 bytes for the original value: %w", ErrInvalid)
		}
	}
	return nil
}

// PostRecv adds a work request to the receive queue. It copies w; w.Buf is used in place.
func (q *QP) PostRecv(w *RecvWR) error {
	if q.state == StateDestroyed {
		return ErrState
	}
	if q.state == StateError {
		q.init.RecvCQ.add(q, WC{ID: w.ID, Op: OpRecv, Status: WRFlushError})
		return nil
	}
	r := &q.resp
	if r.rqN == len(r.rq) {
		return ErrQueueFull
	}
	i := r.rqHead + r.rqN
	if i >= len(r.rq) {
		i -= len(r.rq)
	}
	r.rq[i] = *w
	r.rqN++
	return nil
}

// Outstanding returns the number of send work requests that have not completed.
func (q *QP) Outstanding() int { return q.req.n }

// fail moves the queue pair to the error state and flushes all work
// requests. Responses that wait, such as a NAK, are still sent.
func (q *QP) fail() {
	if q.state != StateReady {
		return
	}
	q.state = StateError
	q.setTimer(clock.Never)
	r := &q.req
	for r.n > 0 {
		w := r.at(0)
		wc := WC{ID: w.ID, Op: w.Op, Status: WRFlushError}
		if w.status != Success {
			wc.Status = w.status
		}
		r.pop()
		q.init.SendCQ.add(q, wc)
	}
	s := &q.resp
	for s.rqN > 0 {
		id := s.popRecv().ID
		q.init.RecvCQ.add(q, WC{ID: id, Op: OpRecv, Status: WRFlushError})
	}
}
