package rnic

import (
	"fmt"

	"github.com/quillon/quillon/nf/hdr"
)

// WindowType is the type of a memory window (IBTA 10.6.7).
type WindowType uint8

const (
	// WindowType1 is a window that belongs to a protection domain, and may be bound again while it
	// is bound.
	WindowType1 WindowType = 1
	// WindowType2B is a window that belongs to the queue pair that bound it, and must be invalidated
	// before it is bound again. (Neither rnic nor rxe has type 2A.)
	WindowType2B WindowType = 2
)

// MW is a memory window: a part of a region with its own R_Key and its own
// rights.
type MW struct {
	// RKey is the window's key. Each bind sets its low byte to Bind.Key; requests with the
	// earlier key are then refused.
	RKey uint32
	Type WindowType
	view *MR // what peers see of the window; valid while it is bound
	of   *MR // the region
	qp   *QP // type 2B
}

// Bind holds the arguments of OpBindMW and OpFastRegMR. OpBindMW binds window MW to
// [VA, VA+Length) of region MR with rights Access; Length 0 unbinds a window of type 1.
// OpFastRegMR registers all of MR at address VA with rights Access.
type Bind struct {
	MW         *MW
	MR         *MR
	VA, Length uint64
	Access     Access
	Key        uint8 // low byte of the R_Key from then on
	ZeroBased  bool  // type 2: peers see the window at address 0
}

// AllocMW makes a memory window that is not bound.
func (p *PD) AllocMW(t WindowType) (*MW, error) {
	if t != WindowType1 && t != WindowType2B {
		return nil, fmt.Errorf("rnic: memory windows are of type 1 or 2B, not %d: %w", t, ErrInvalid)
	}
	m, err := p.RegMR(nil, 0, 0)
	if err != nil {
		return nil, err
	}
	w := &MW{RKey: m.RKey, Type: t, view: m}
	m.window, m.valid = w, false
	return w, nil
}

// Dealloc unbinds the window and frees its R_Key.
func (w *MW) Dealloc() {
	w.unbind()
	w.view.drop()
}

// Bound reports whether peers may use the window.
func (w *MW) Bound() bool { return w.view.valid }

func (w *MW) unbind() {
	if w.of != nil {
		w.of.bound--
	}
	w.of, w.qp, w.view.valid, w.view.Mem = nil, nil, false, nil
}

// reaches reports whether requests to q may use window w. It is true for a nil w, which stands for a
// plain region.
func (w *MW) reaches(q *QP) bool { return w == nil || w.Type == WindowType1 || w.qp == q }

// checkLocal checks a request without a packet when it is posted. Its
// keys and states are checked when it is executed.
func (q *QP) checkLocal(w *SendWR) error {
	b := w.Bind
	switch {
	case q.Type == TypeUD:
		return fmt.Errorf("rnic: datagram queue pairs only SEND: %w", ErrInvalid)
	case len(w.SGL) != 0:
		return fmt.Errorf("rnic: a bind or an invalidation has no memory of its own: %w", ErrInvalid)
	case w.Op == OpBindMW && (b == nil || b.MW == nil || b.Length > 0 && b.MR == nil):
		return fmt.Errorf("rnic: OpBindMW needs a Bind with a window and a region: %w", ErrInvalid)
	case w.Op == OpFastRegMR && (b == nil || b.MR == nil):
		return fmt.Errorf("rnic: OpFastRegMR needs a Bind with a region: %w", ErrInvalid)
	}
	return nil
}

// runLocal executes the requests without a packet that are next in the send queue.
func (r *requester) runLocal(q *QP) {
	for q.state == StateReady && !r.rnrWait && r.cur < r.n {
		w := r.at(r.cur)
		if !w.local() || w.Fence && r.cur > 0 && !w.done {
			return
		}
		if !w.done && !r.executeLocal(q, w) {
			q.end(Failure{Status: w.status, Why: "bind or invalidation that is not allowed"})
			return
		}
		w.done = true
		r.cur++
		r.completeLocal(q)
	}
}

// completeLocal completes the executed requests without a packet at the head of the send
// queue.
func (r *requester) completeLocal(q *QP) {
	for r.n > 0 && r.at(0).done {
		r.completeOne(q, Success)
	}
}

func (r *requester) executeLocal(q *QP, w *sendWQE) bool {
	ok := false
	w.status = LocalQPOperationError
	switch w.Op {
	case OpBindMW:
		w.status = MWBindError
		ok = q.bind(w.Bind)
	case OpLocalInv:
		ok = q.invalidate(w.RKey)
	case OpFastRegMR:
		ok = q.register(w.Bind)
	}
	if ok {
		w.status = Success
	}
	return ok
}

// bind binds a window if IBTA 10.6.7 (and rxe_check_bind_mw) allow it, and reports whether it did.
func (q *QP) bind(b *Bind) bool {
	w, m := b.MW, b.MR
	if w.view.pd != q.init.PD || q.nic.mrs[w.view.RKey>>8] != w.view { // C10-72; deallocated
		return false
	}
	if w.Type == WindowType2B && (w.of != nil || b.Length == 0) || w.Type == WindowType1 && b.ZeroBased {
		return false // o10-37.2.30, o10-37.2.40, o10-36.2.2
	}
	if b.Length > 0 && !m.bindable(q, b) {
		return false
	}
	w.unbind()
	w.RKey = w.RKey&^0xFF | uint32(b.Key)
	v := w.view
	v.RKey, v.VA, v.Access = w.RKey, b.VA, b.Access
	if b.Length == 0 {
		return true
	}
	off := b.VA - m.VA
	v.Mem, v.valid = m.Mem[off:off+b.Length:off+b.Length], true
	if b.ZeroBased {
		v.VA = 0
	}
	w.of = m
	m.bound++
	if w.Type == WindowType2B {
		w.qp = q
	}
	return true
}

// bindable reports whether a window may show [b.VA, b.VA+b.Length) of m.
func (m *MR) bindable(q *QP, b *Bind) bool {
	off := b.VA - m.VA
	return m.valid && m.window == nil && m.pd == q.init.PD && m.Access&MWBind != 0 && // C10-73
		(b.Access&(RemoteWrite|RemoteAtomic) == 0 || m.Access&LocalWrite != 0) && // C10-74
		b.VA >= m.VA && off <= uint64(len(m.Mem)) && b.Length <= uint64(len(m.Mem))-off // C10-75
}

// register registers anew a fast region that was invalidated, and reports whether it did.
func (q *QP) register(b *Bind) bool {
	m := b.MR
	writes := b.Access&(RemoteWrite|RemoteAtomic) != 0
	if !m.fast || m.valid || m.pd != q.init.PD || q.nic.mrs[m.RKey>>8] != m ||
		b.VA+uint64(len(m.Mem)) < b.VA || writes && b.Access&LocalWrite == 0 {
		return false
	}
	m.RKey, m.VA, m.Access, m.valid = m.RKey&^0xFF|uint32(b.Key), b.VA, b.Access, true
	return true
}

// invalidate ends the use of an R_Key, and reports whether it did. The key must belong to the queue
// pair's protection domain, and to a fast region without windows or to a window of type 2B that the
// queue pair bound (IBTA 10.6.7; rxe_invalidate_mr and rxe_invalidate_mw check neither the domain
// nor the queue pair).
func (q *QP) invalidate(key uint32) bool {
	i := key >> 8
	if i >= uint32(len(q.nic.mrs)) {
		return false
	}
	m := q.nic.mrs[i]
	if m == nil || m.RKey != key || m.pd != q.init.PD || !m.valid {
		return false
	}
	if w := m.window; w != nil {
		if w.Type != WindowType2B || w.qp != q {
			return false
		}
		w.unbind()
		return true
	}
	if !m.fast || m.bound > 0 {
		return false
	}
	m.valid = false
	return true
}

// cannotInvalidate answers a SEND whose R_Key cannot be invalidated. rxe treats this as
// a class J fault: the receive request completes in error, the SEND is
// acknowledged, and the responder's queue pair goes to the error state. The ConnectX profile sends a NAK.
func (s *responder) cannotInvalidate(q *QP, ackReq bool) hdr.Syndrome {
	const why = "R_Key that cannot be invalidated"
	if q.nic.cfg.Profile != RXE {
		return s.refuse(hdr.SynNAKRemoteAccess, why)
	}
	id := s.popRecv().ID
	q.init.RecvCQ.add(q, WC{ID: id, Op: OpRecv, Status: RemoteInvalidRequestError})
	if ackReq {
		s.ack(q, s.epsn)
	}
	q.end(Failure{Status: RemoteInvalidRequestError, Responder: true, PSN: s.epsn, Why: why})
	return hdr.SynACK
}
