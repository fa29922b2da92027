package rnic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
)

// rights are all combinations of rights that remote peers can have.
func rights() []Access {
	var all []Access
	for r := Access(0); r < 8; r++ {
		all = append(all, LocalWrite|r<<1)
	}
	return all
}

// TestRights: an operation needs the right of the responder's queue pair (NAK
// invalid request without: IBTA 9.7.4.1, and check_op_valid of rxe) and that
// of the region (NAK remote access: 9.7.4.1, and check_rkey of rxe), the
// queue pair's first. An empty READ or WRITE needs no valid R_Key (C9-88), but
// the queue pair's right.
func TestRights(t *testing.T) {
	word := make([]byte, 8)
	ops := []struct {
		w     SendWR
		need  Access
		empty bool
	}{
		{SendWR{Op: OpWrite, SGL: [][]byte{{1}}}, RemoteWrite, false},
		{SendWR{Op: OpRead, SGL: [][]byte{word}}, RemoteRead, false},
		{SendWR{Op: OpCompareSwap, SGL: [][]byte{word}}, RemoteAtomic, false},
		{SendWR{Op: OpFetchAdd, SGL: [][]byte{word}, Swap: 1}, RemoteAtomic, false},
		{SendWR{Op: OpMaskedCompareSwap, SGL: [][]byte{word}}, RemoteAtomic, false},
		{SendWR{Op: OpWrite}, RemoteWrite, true},
		{SendWR{Op: OpRead}, RemoteRead, true},
	}
	for _, profile := range []Profile{RXE, ConnectX} {
		for _, qa := range rights() {
			for _, ma := range rights() {
				for _, o := range ops {
					l := newLink(t, Config{Profile: profile}, false, 1)
					p := l.pair(TypeRC, quick(), 64)
					p.qp[1].init.Access = qa
					m, err := p.pd[1].RegMR(p.mem[1], testVA, ma)
					if err != nil {
						t.Fatal(err)
					}
					w, want := o.w, Success
					w.RemoteAddr, w.RKey, w.Signaled = testVA, m.RKey, true
					if o.empty {
						w.RKey = 0xDEAD
					}
					switch {
					case qa&o.need == 0:
						want = RemoteInvalidRequestError
					case ma&o.need == 0 && !o.empty:
						want = RemoteAccessError
					}
					p.post(&w)
					if got := p.one(0); got.Status != want {
						t.Errorf("profile %d, queue pair %#x, region %#x, operation %d, empty %v: status %d, want %d", profile, qa, ma, w.Op, o.empty, got.Status, want)
					}
					checkCause(t, p, want)
					if changed := !bytes.Equal(p.mem[1], make([]byte, 64)); changed && want != Success {
						t.Errorf("operation %d was refused and changed memory", w.Op)
					}
				}
			}
		}
	}
}

// checkCause compares the counters and the causes of both sides with the status of the one request that was
// refused.
func checkCause(t *testing.T, p *pair, want Status) {
	t.Helper()
	a, b := p.qp[0].Failure(), p.qp[1].Failure()
	tx, rx := p.qp[1].Stats().NAKTx, p.qp[0].Stats().NAKRx
	naks := map[Status]NAKs{Success: {}, RemoteInvalidRequestError: {InvalidRequest: 1}, RemoteAccessError: {RemoteAccess: 1}}[want]
	if a.Status != want || b.Status != want || a.Responder || b.Responder != (want != Success) || tx != naks || rx != naks {
		t.Errorf("status %d: causes %+v and %+v, NAKs %+v and %+v", want, a, b, tx, rx)
	}
	if want != Success && (statusOf(b.Syndrome) != want || b.Syndrome != a.Syndrome || b.Why == "" || a.PSN != b.PSN) {
		t.Errorf("status %d: causes %+v and %+v", want, a, b)
	}
}

// TestOrderOfRefusals: when two things are wrong, the answer is for the one that rxe checks first
// (rxe_resp.c: op sequence, op valid, resource, R_Key, alignment).
func TestOrderOfRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		w    SendWR
		res  int
		a    Access
		want Status
	}{
		{"right before resources", SendWR{Op: OpRead}, NoRdAtomic, RemoteWrite, RemoteInvalidRequestError},
		{"resources before R_Key", SendWR{Op: OpRead, RKey: 1}, NoRdAtomic, allFlag, RemoteInvalidRequestError},
		{"R_Key before alignment", SendWR{Op: OpFetchAdd, RKey: 1, RemoteAddr: 4}, 1, allFlag, RemoteAccessError},
		{"receive before R_Key", SendWR{Op: OpWriteImm, RKey: 1}, 1, allFlag, RNRRetryExceededError},
	} {
		l := newLink(t, Config{}, false, 1)
		k := quick()
		k.MaxDestRdAtomic, k.RNRRetry = c.res, 0
		p := l.pair(TypeRC, k, 64)
		p.qp[1].init.Access = c.a
		c.w.SGL, c.w.RemoteAddr = [][]byte{make([]byte, 8)}, c.w.RemoteAddr+testVA
		p.post(&c.w)
		if got := p.one(0); got.Status != c.want {
			t.Errorf("%s: status %d, want %d", c.name, got.Status, c.want)
		}
	}
}

// TestUnreliableRights: on an unreliable connection such a message is dropped as a whole (class D fault, IBTA
// 9.9.3.2), without an answer, and the next message is taken again.
func TestUnreliableRights(t *testing.T) {
	for _, qa := range rights() {
		for _, ma := range rights() {
			l := newLink(t, Config{}, false, 1)
			p := l.pair(TypeUC, quick(), 4096)
			p.qp[1].init.Access = qa
			m, err := p.pd[1].RegMR(p.mem[1], testVA, ma)
			if err != nil {
				t.Fatal(err)
			}
			p.qp[1].PostRecv(&RecvWR{Buf: make([]byte, 8)})
			p.post(&SendWR{Op: OpWrite, SGL: [][]byte{bytes.Repeat([]byte{7}, 600)}, RemoteAddr: testVA, RKey: m.RKey})
			p.post(&SendWR{Op: OpSend, SGL: [][]byte{{1}}})
			if w := p.one(1); w.Op != OpRecv || w.Status != Success {
				t.Fatalf("%+v", w)
			}
			if may := qa&ma&RemoteWrite != 0; may != (p.mem[1][599] == 7) || may != (p.mem[1][0] == 7) {
				t.Errorf("queue pair %#x, region %#x: memory %x", qa, ma, p.mem[1][:8])
			}
			if s := l.nic[1].Stats(); s.TxFrames != 0 || p.qp[1].State() != StateReady {
				t.Errorf("%+v", s)
			}
		}
	}
}

// TestDomains: an R_Key of another protection domain is refused, whatever rights its region gives (IBTA
// 10.2.3; lookup_mr of rxe), also when both queue pairs are on one host.
func TestDomains(t *testing.T) {
	for _, op := range []Op{OpWrite, OpRead, OpFetchAdd} {
		l := newLink(t, Config{}, false, 1)
		alice, bob := l.pair(TypeRC, quick(), 64), l.pair(TypeRC, quick(), 64)
		w := SendWR{ID: 5, Op: op, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: alice.mr[1].RKey, Signaled: true}
		bob.post(&w)
		if got := bob.one(0); got.Status != RemoteAccessError {
			t.Errorf("operation %d with the key of another domain: %+v", op, got)
		}
		checkCause(t, bob, RemoteAccessError)
		alice.post(&w)
		if got := alice.one(0); got.Status != Success {
			t.Errorf("operation %d of the owner: %+v", op, got)
		}
	}
}

// TestRegisteredAnew: after Dereg the old R_Key is refused for good, and the new R_Key of the same address
// works (R_Keys are not used again at once). This includes address 0 and the top of the address space.
func TestRegisteredAnew(t *testing.T) {
	for _, va := range []uint64{0, testVA, 1<<64 - 64 - 1} {
		l := newLink(t, Config{}, false, 1)
		p := l.pair(TypeRC, quick(), 64)
		mem := make([]byte, 64)
		keys := map[uint32]bool{}
		var old *MR
		for range 5 {
			m, err := p.pd[1].RegMR(mem, va, allFlag)
			if err != nil {
				t.Fatal(err)
			}
			if keys[m.RKey] {
				t.Fatalf("R_Key %#x again", m.RKey)
			}
			keys[m.RKey] = true
			p.post(&SendWR{Op: OpWrite, SGL: [][]byte{{1, 2}}, RemoteAddr: va + 62, RKey: m.RKey, Signaled: true})
			if w := p.one(0); w.Status != Success || mem[62] != 1 {
				t.Fatalf("address %#x: %+v", va, w)
			}
			old = m
			if err := m.Dereg(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.pd[1].RegMR(mem, va, allFlag); err != nil {
			t.Fatal(err)
		}
		p.post(&SendWR{Op: OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: old.RKey})
		if w := p.one(0); w.Status != RemoteAccessError {
			t.Errorf("address %#x with an old key: %+v", va, w)
		}
	}
}

// TestAliases: two regions over one memory, at different addresses and with different rights, show the same
// words. They also show what the host's CPU writes.
func TestAliases(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, quick(), 4096)
	alias, err := p.pd[1].RegMR(p.mem[1][1024:2048], 0, RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	word := make([]byte, 8)
	read := func(want uint64) {
		t.Helper()
		p.post(&SendWR{Op: OpRead, SGL: [][]byte{word}, RemoteAddr: 16, RKey: alias.RKey, Signaled: true})
		if w := p.one(0); w.Status != Success || binary.LittleEndian.Uint64(word) != want {
			t.Fatalf("%+v, read %x, want %d", w, word, want)
		}
	}
	p.post(&SendWR{Op: OpFetchAdd, SGL: [][]byte{word}, RemoteAddr: testVA + 1024 + 16, RKey: p.mr[1].RKey, Swap: 9, Signaled: true})
	if w := p.one(0); w.Status != Success {
		t.Fatalf("%+v", w)
	}
	read(9)
	binary.LittleEndian.PutUint64(p.mem[1][1024+16:], 77)
	read(77)
	p.post(&SendWR{Op: OpFetchAdd, SGL: [][]byte{word}, RemoteAddr: 16, RKey: alias.RKey, Swap: 9})
	if w := p.one(0); w.Status != RemoteAccessError {
		t.Errorf("an atomic through an alias that may be read: %+v", w)
	}
}

// TestDuplicatesCounted: requests that come again are counted at the queue pair.
func TestDuplicatesCounted(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, quick(), 64)
	lost := 0
	l.lose = func(from int, _ []byte) bool {
		if from == 1 && lost < 2 {
			lost++
			return true
		}
		return false
	}
	p.post(&SendWR{Op: OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Swap: 1, Signaled: true})
	p.one(0)
	if a, b := p.qp[0].Stats(), p.qp[1].Stats(); b.RxRequests != 3 || b.Duplicates != 2 || a.RxResponses != 1 || b.NAKTx != (NAKs{}) {
		t.Errorf("%+v and %+v", a, b)
	}
	if f := p.qp[0].Failure(); f != (Failure{}) {
		t.Errorf("%+v", f)
	}
}

// TestBounds: the bounds of a region hold for every address and length.
func TestBounds(t *testing.T) {
	for _, c := range []struct {
		off  uint64
		n    int
		want Status
	}{{0, 64, Success}, {63, 1, Success}, {64, 1, RemoteAccessError}, {1, 64, RemoteAccessError}, {^uint64(0), 1, RemoteAccessError},
		{^uint64(0), 2, RemoteAccessError}, {64, 0, Success}, {1 << 63, 8, RemoteAccessError}} {
		for _, op := range []Op{OpWrite, OpRead} {
			t.Run(fmt.Sprint(c.off, c.n, op), func(t *testing.T) {
				l := newLink(t, Config{}, false, 1)
				p := l.pair(TypeRC, quick(), 64)
				p.post(&SendWR{Op: op, SGL: [][]byte{make([]byte, c.n)}, RemoteAddr: testVA + c.off, RKey: p.mr[1].RKey, Signaled: true})
				if w := p.one(0); w.Status != c.want {
					t.Errorf("status %d, want %d", w.Status, c.want)
				}
			})
		}
	}
}
