package rnic

import (
	"errors"
	"testing"
)

// windows is a pair whose server has a region of 4096 bytes to which windows can be bound.
func windows(t *testing.T, profile Profile) (*pair, *MR) {
	t.Helper()
	l := newLink(t, Config{Profile: profile}, false, 1)
	p := l.pair(TypeRC, quick(), 4096)
	m, err := p.pd[1].RegMR(p.mem[1], testVA, LocalWrite|MWBind)
	if err != nil {
		t.Fatal(err)
	}
	return p, m
}

// server posts a work request at the server and returns its completion.
func (p *pair) server(w *SendWR) WC {
	p.l.t.Helper()
	w.Signaled = true
	if err := p.qp[1].PostSend(w); err != nil {
		p.l.t.Fatal(err)
	}
	return p.one(1)
}

func (p *pair) window(ty WindowType, b Bind) (*MW, WC) {
	p.l.t.Helper()
	w, err := p.pd[1].AllocMW(ty)
	if err != nil {
		p.l.t.Fatal(err)
	}
	b.MW = w
	return w, p.server(&SendWR{ID: 9, Op: OpBindMW, Bind: &b})
}

// try sends a request of the client and returns its status.
func (p *pair) try(op Op, va uint64, key uint32) Status {
	p.l.t.Helper()
	p.post(&SendWR{ID: 1, Op: op, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: key, Signaled: true})
	return p.one(0).Status
}

// TestMemoryWindow: a window shows its part of the region, with its own rights, whatever
// remote rights the region has (IBTA 10.6.7; rxe_lookup_mw).
func TestMemoryWindow(t *testing.T) {
	const at = testVA + 1024
	for _, c := range []struct {
		name string
		ty   WindowType
		a    Access
		zero bool
		op   Op
		va   uint64
		want Status
	}{
		{"write", WindowType1, RemoteWrite, false, OpWrite, at, Success},
		{"last bytes", WindowType2B, RemoteWrite, false, OpWrite, at + 56, Success},
		{"read", WindowType2B, RemoteRead, false, OpRead, at, Success},
		{"atomic", WindowType1, RemoteAtomic, false, OpFetchAdd, at, Success},
		{"address 0", WindowType2B, RemoteRead, true, OpRead, 0, Success},
		{"behind", WindowType1, RemoteRead, false, OpRead, at + 57, RemoteAccessError},
		{"before", WindowType2B, RemoteRead, false, OpRead, at - 1, RemoteAccessError},
		{"region's address", WindowType2B, RemoteRead, true, OpRead, at, RemoteAccessError},
		{"write only", WindowType1, RemoteWrite, false, OpRead, at, RemoteAccessError},
		{"read only", WindowType2B, RemoteRead, false, OpWrite, at, RemoteAccessError},
	} {
		p, m := windows(t, RXE)
		w, wc := p.window(c.ty, Bind{MR: m, VA: at, Length: 64, Access: c.a, Key: 0x5A, ZeroBased: c.zero})
		if wc.Status != Success || wc.Op != OpBindMW || w.RKey&0xFF != 0x5A || !w.Bound() {
			t.Fatalf("%s: %+v, key %#x", c.name, wc, w.RKey)
		}
		if got := p.try(c.op, c.va, w.RKey); got != c.want {
			t.Errorf("%s: status %d, want %d", c.name, got, c.want)
		}
	}
}

// TestWindowOfQueuePair: a window of type 2B works only for the queue pair that bound it, one of type 1 for
// the whole protection domain (rxe_lookup_mw).
func TestWindowOfQueuePair(t *testing.T) {
	for ty, want := range map[WindowType]Status{WindowType1: Success, WindowType2B: RemoteAccessError} {
		p, m := windows(t, RXE)
		w, _ := p.window(ty, Bind{MR: m, VA: testVA, Length: 64, Access: RemoteRead})
		other := p.l.pair(TypeRC, quick(), 64)
		other.qp[1].init.PD = p.pd[1]
		if got := other.try(OpRead, testVA, w.RKey); got != want {
			t.Errorf("type %d by another queue pair: status %d, want %d", ty, got, want)
		}
		if got := p.try(OpRead, testVA, w.RKey); got != Success {
			t.Errorf("type %d: status %d", ty, got)
		}
		stranger := p.l.pair(TypeRC, quick(), 64)
		if got := stranger.try(OpRead, testVA, w.RKey); got != RemoteAccessError {
			t.Errorf("type %d by another domain: status %d", ty, got)
		}
	}
}

// TestWindowBoundAnew: the earlier R_Key is refused. A window of type 1 of length 0 is refused, too.
func TestWindowBoundAnew(t *testing.T) {
	p, m := windows(t, RXE)
	w, _ := p.window(WindowType1, Bind{MR: m, VA: testVA, Length: 64, Access: RemoteRead, Key: 1})
	old := w.RKey
	if err := m.Dereg(); !errors.Is(err, ErrState) {
		t.Errorf("region with a window: %v", err)
	}
	wc := p.server(&SendWR{Op: OpBindMW, Bind: &Bind{MW: w, MR: m, VA: testVA + 128, Length: 8, Access: RemoteRead, Key: 2}})
	if wc.Status != Success || w.RKey != old+1 {
		t.Fatalf("%+v, key %#x after %#x", wc, w.RKey, old)
	}
	if got := p.try(OpRead, testVA+128, w.RKey); got != Success {
		t.Errorf("status %d", got)
	}
	if wc := p.server(&SendWR{Op: OpBindMW, Bind: &Bind{MW: w}}); wc.Status != Success || w.Bound() {
		t.Errorf("unbinding: %+v", wc)
	}
	if err := m.Dereg(); err != nil {
		t.Error(err)
	}
	if got := p.try(OpRead, testVA, old); got != RemoteAccessError {
		t.Errorf("old key: status %d", got)
	}
	w.Dealloc()
}

// TestBindRefused: a bind that is not allowed ends the queue pair that asked for it (rxe_check_bind_mw and
// its IBTA clauses; rxe_do_local_ops for the statuses).
func TestBindRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		ty   WindowType
		b    Bind
		edit func(p *pair, b *Bind)
	}{
		{"no MWBind, C10-73", WindowType1, Bind{VA: testVA, Length: 8}, func(p *pair, b *Bind) { b.MR = p.mr[1] }},
		{"beyond, C10-75", WindowType1, Bind{VA: testVA + 4090, Length: 8}, nil},
		{"before, C10-75", WindowType2B, Bind{VA: testVA - 1, Length: 8}, nil},
		{"wraps, C10-75", WindowType2B, Bind{VA: testVA + 1, Length: ^uint64(0)}, nil},
		{"no local write, C10-74", WindowType2B, Bind{VA: testVA, Length: 8, Access: RemoteWrite}, func(p *pair, b *Bind) { b.MR.Access = MWBind }},
		{"domain of the region", WindowType2B, Bind{VA: testVA, Length: 8}, func(p *pair, b *Bind) { b.MR.pd = p.l.nic[1].AllocPD() }},
		{"deregistered", WindowType2B, Bind{VA: testVA, Length: 8}, func(p *pair, b *Bind) { b.MR.Dereg() }},
		{"empty, o10-37.2.40", WindowType2B, Bind{VA: testVA}, nil},
		{"type 1 at address 0, o10-36.2.2", WindowType1, Bind{VA: testVA, Length: 8, ZeroBased: true}, nil},
	} {
		p, m := windows(t, RXE)
		c.b.MR = m
		if c.edit != nil {
			c.edit(p, &c.b)
		}
		if w, wc := p.window(c.ty, c.b); wc.Status != MWBindError || wc.ID != 9 || w.Bound() || p.qp[1].State() != StateError || p.qp[1].Failure().Status != MWBindError {
			t.Errorf("%s: %+v, %+v", c.name, wc, p.qp[1].Failure())
		}
	}
	// A window of type 2 that is bound is not bound again (o10-37.2.30).
	p, m := windows(t, RXE)
	b := Bind{MR: m, VA: testVA, Length: 8}
	w, _ := p.window(WindowType2B, b)
	b.MW = w
	if wc := p.server(&SendWR{Op: OpBindMW, Bind: &b}); wc.Status != MWBindError {
		t.Errorf("bound twice: %+v", wc)
	}
	// Nor is one of another domain (C10-72).
	p, m = windows(t, RXE)
	b = Bind{MR: m, VA: testVA, Length: 8}
	b.MW, _ = p.l.nic[1].AllocPD().AllocMW(WindowType2B)
	if wc := p.server(&SendWR{Op: OpBindMW, Bind: &b}); wc.Status != MWBindError {
		t.Errorf("window of another domain: %+v", wc)
	}
}

// TestInvalidate: after a SEND with invalidate or a local invalidation the R_Key
// is refused, and the window or fast region can be used anew with another one.
func TestInvalidate(t *testing.T) {
	for _, remote := range []bool{false, true} {
		for _, window := range []bool{false, true} {
			p, m := windows(t, RXE)
			f, err := p.pd[1].FastRegMR(p.mem[1][:64], 0, RemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			w, _ := p.window(WindowType2B, Bind{MR: m, VA: testVA, Length: 64, Access: RemoteRead})
			key, va := &f.RKey, uint64(0)
			again := &SendWR{Op: OpFastRegMR, Bind: &Bind{MR: f, VA: testVA, Access: RemoteRead, Key: uint8(f.RKey + 1)}}
			if window {
				key, va = &w.RKey, testVA
				again = &SendWR{Op: OpBindMW, Bind: &Bind{MW: w, MR: m, VA: testVA, Length: 64, Access: RemoteRead, Key: uint8(w.RKey + 1)}}
			}
			old := *key
			if got := p.try(OpRead, va, old); got != Success {
				t.Fatalf("status %d", got)
			}
			if remote {
				p.qp[1].PostRecv(&RecvWR{})
				p.post(&SendWR{Op: OpSendInv, RKey: old, Signaled: true})
				if a, b := p.one(0), p.one(1); a.Status != Success || b.Status != Success || b.Imm != old {
					t.Fatalf("%+v, %+v", a, b)
				}
			} else if wc := p.server(&SendWR{Op: OpLocalInv, RKey: old}); wc.Status != Success {
				t.Fatalf("%+v", wc)
			}
			if window == w.Bound() || window != f.Valid() {
				t.Errorf("remote %v, window %v: the wrong key was invalidated", remote, window)
			}
			if wc := p.server(again); wc.Status != Success || *key == old {
				t.Fatalf("%+v, key %#x", wc, *key)
			}
			if got := p.try(OpRead, testVA, *key); got != Success {
				t.Errorf("new key: status %d", got)
			}
			if got := p.try(OpRead, va, old); got != RemoteAccessError {
				t.Errorf("old key: status %d", got)
			}
		}
	}
}

// keep returns keys that must not be invalidated.
func keep(p *pair, m *MR) map[string]uint32 {
	of1, _ := p.window(WindowType1, Bind{MR: m, VA: testVA, Length: 8})
	carrier, _ := p.pd[1].FastRegMR(p.mem[1], testVA, MWBind)
	p.window(WindowType2B, Bind{MR: carrier, VA: testVA, Length: 8})
	gone, _ := p.pd[1].FastRegMR(p.mem[1], testVA, 0)
	gone.Dereg()
	strange, _ := p.l.nic[1].AllocPD().FastRegMR(p.mem[1], testVA, 0)
	return map[string]uint32{"region": m.RKey, "window of type 1, o10-37.2.26": of1.RKey, "fast region with a window": carrier.RKey,
		"deregistered": gone.RKey, "domain": strange.RKey, "no such key": 0xFFFF00, "R_Key's low byte": strange.RKey ^ 1}
}

// TestInvalidateRefused: when the R_Key of a SEND must not be invalidated, rxe acknowledges the SEND,
// completes the receive request in error and ends the responder's queue pair (class J fault,
// RESPST_ERR_INVALIDATE_RKEY of rxe_resp.c). The peer finds out by its retries. The ConnectX profile answers
// NAK remote access. A local invalidation ends with IBV_WC_LOC_QP_OP_ERR.
func TestInvalidateRefused(t *testing.T) {
	p, m := windows(t, RXE)
	for name := range keep(p, m) {
		for _, profile := range []Profile{RXE, ConnectX} {
			p, m := windows(t, profile)
			key := keep(p, m)[name]
			p.qp[1].PostRecv(&RecvWR{ID: 4, Buf: make([]byte, 8)})
			p.post(&SendWR{ID: 1, Op: OpSendInv, RKey: key, SGL: [][]byte{make([]byte, 8)}, Signaled: true})
			sent, got := p.one(0), p.one(1)
			want := [2]Status{Success, RemoteInvalidRequestError}
			if profile == ConnectX {
				want = [2]Status{RemoteAccessError, WRFlushError}
			}
			if sent.Status != want[0] || got.Status != want[1] || got.ID != 4 || p.qp[1].State() != StateError || !p.qp[1].Failure().Responder {
				t.Errorf("profile %d, %s: %+v and %+v, %+v", profile, name, sent, got, p.qp[1].Failure())
			}
			if profile == RXE {
				if p.qp[0].conn.RetryCnt = 1; p.try(OpRead, testVA, p.mr[1].RKey) != RetryExceededError {
					t.Errorf("%s: the queue pair still answers", name)
				}
			}
		}
		p, m := windows(t, RXE)
		if wc := p.server(&SendWR{Op: OpLocalInv, RKey: keep(p, m)[name]}); wc.Status != LocalQPOperationError {
			t.Errorf("%s: local invalidation: %+v", name, wc)
		}
	}
}

// TestLocalOrder: requests without a packet keep their place in the send queue, also when packets around them
// are lost and sent again. A request with a fence waits.
func TestLocalOrder(t *testing.T) {
	for _, fence := range []bool{false, true} {
		p, m := windows(t, RXE)
		w, err := p.pd[1].AllocMW(WindowType2B)
		if err != nil {
			t.Fatal(err)
		}
		lost := false
		p.l.lose = func(from int, _ []byte) bool {
			drop := from == 1 && !lost
			lost = lost || drop
			return drop
		}
		early, answered := false, false
		p.l.tap = func(from int, _ []byte) {
			if from == 0 && !answered {
				answered, early = true, w.Bound()
			}
		}
		src := make([]byte, 600)
		b := Bind{MW: w, MR: m, VA: testVA, Length: 8}
		for i, wr := range []SendWR{{Op: OpWrite, SGL: [][]byte{src}}, {Op: OpBindMW, Bind: &b, Fence: fence}, {Op: OpFetchAdd, SGL: [][]byte{src[:8]}}, {Op: OpLocalInv, Fence: true}} {
			wr.ID, wr.RemoteAddr, wr.RKey, wr.Signaled = uint64(i), testVA, p.mr[0].RKey, true
			if wr.Op == OpLocalInv {
				wr.RKey = w.RKey &^ 0xFF
			}
			if err := p.qp[1].PostSend(&wr); err != nil {
				t.Fatal(err)
			}
		}
		got := p.done(1)
		if len(got) != 4 {
			t.Fatalf("%+v", got)
		}
		for i, wc := range got {
			if wc.ID != uint64(i) || wc.Status != Success {
				t.Errorf("completion %d: %+v", i, wc)
			}
		}
		if early == fence || w.Bound() || p.qp[1].Outstanding() != 0 || p.l.nic[1].Stats().Retransmitted == 0 {
			t.Errorf("fence %v: bound before the answer %v, %+v", fence, early, p.l.nic[1].Stats())
		}
		p.l.conserved()
	}
}

// TestLocalRefusedArguments: the verbs refuse a request without a packet whose arguments are wrong, and name
// them.
func TestLocalRefusedArguments(t *testing.T) {
	p, m := windows(t, RXE)
	if _, err := p.pd[1].AllocMW(3); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	w, _ := p.pd[1].AllocMW(WindowType1)
	for _, wr := range []SendWR{{Op: OpBindMW}, {Op: OpBindMW, Bind: &Bind{}}, {Op: OpBindMW, Bind: &Bind{MW: w, Length: 1}}, {Op: OpFastRegMR, Bind: &Bind{MW: w}},
		{Op: OpLocalInv, SGL: [][]byte{{1}}}, {Op: OpFastRegMR + 1, Bind: &Bind{MW: w, MR: m}}} {
		if err := p.qp[1].PostSend(&wr); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", wr, err)
		}
	}
	// Fast registration needs a region that was invalidated.
	for _, b := range []*MR{m, p.mr[1]} {
		p, _ := windows(t, RXE)
		if wc := p.server(&SendWR{Op: OpFastRegMR, Bind: &Bind{MR: b, VA: 0}}); wc.Status != LocalQPOperationError {
			t.Errorf("%+v", wc)
		}
	}
}
