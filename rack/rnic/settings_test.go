package rnic

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// arrive gives everything that the client sends to the server before the server may answer.
func (l *link) arrive() {
	for {
		l.nic[0].Output(l.now, &l.batch)
		if l.batch.Len() == 0 {
			return
		}
		for _, b := range l.batch.Bufs() {
			l.nic[1].Input(l.now, b)
		}
		l.batch.Reset()
	}
}

// TestResponderResources: a responder without resources answers READs and atomics with NAK invalid request
// (RESPST_ERR_TOO_MANY_RDMA_ATM_REQ of rxe; IBTA 9.7.4.1), and WRITEs and SENDs go on. With fewer resources
// than the peer has requests under way, rxe executes all of them ("it is the requesters job to not send too
// many") and forgets the oldest; the ConnectX profile refuses the request that is too many.
func TestResponderResources(t *testing.T) {
	for _, profile := range []Profile{RXE, ConnectX} {
		for _, op := range []Op{OpRead, OpFetchAdd} {
			for _, c := range []struct{ responder, requester int }{{NoRdAtomic, 1}, {1, 1}, {1, 2}, {2, 16}, {16, 16}, {16, 17}} {
				l := newLink(t, Config{Profile: profile}, false, 1)
				k := quick()
				k.MaxDestRdAtomic, k.MaxRdAtomic = c.responder, c.requester
				p := l.pair(TypeRC, k, 4096)
				n := 20
				for i := range n {
					p.post(&SendWR{ID: uint64(i), Op: op, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Swap: 1, Signaled: true})
				}
				l.arrive()
				got := p.done(0)
				good := n
				switch {
				case c.responder == NoRdAtomic:
					good = 0
				case profile == ConnectX && c.requester > c.responder:
					good = c.responder
				}
				for i, w := range got {
					want := Success
					if i == good {
						want = RemoteInvalidRequestError
					} else if i > good {
						want = WRFlushError
					}
					if w.ID != uint64(i) || w.Status != want {
						t.Errorf("profile %d, operation %d, %+v: completion %d: %+v", profile, op, c, i, w)
					}
				}
				if v := binary.LittleEndian.Uint64(p.mem[1]); len(got) != n || op == OpFetchAdd && v != uint64(good) {
					t.Errorf("profile %d, %+v: %d completions, %d additions, want %d", profile, c, len(got), v, good)
				}
				l.conserved()
			}
		}
		l := newLink(t, Config{Profile: profile}, false, 1)
		k := quick()
		k.MaxDestRdAtomic = NoRdAtomic
		p := l.pair(TypeRC, k, 64)
		p.qp[1].PostRecv(&RecvWR{Buf: make([]byte, 8)})
		p.post(&SendWR{Op: OpWrite, SGL: [][]byte{{1}}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
		p.post(&SendWR{Op: OpSend, SGL: [][]byte{{1}}, Signaled: true})
		if got := p.done(0); len(got) != 2 || got[1].Status != Success {
			t.Errorf("without responder resources: %+v", got)
		}
	}
}

// TestForgottenAtomic: a duplicate of an atomic whose resource a later atomic has taken is dropped without an
// answer (IBTA 9.7.5.1.3; rxe: class D error).
func TestForgottenAtomic(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	k := quick()
	k.MaxDestRdAtomic, k.MaxRdAtomic, k.RetryCnt = 1, 2, 2
	p := l.pair(TypeRC, k, 64)
	l.lose = func(from int, _ []byte) bool { return from == 1 }
	for range 2 {
		p.post(&SendWR{Op: OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Swap: 1})
	}
	if got := p.done(0); got[0].Status != RetryExceededError {
		t.Errorf("%+v", got)
	}
	s, q := l.nic[1].Stats(), p.qp[1].Stats()
	if s.DropDuplicate != 2 || s.ReplayedAtoms != 2 || q.Duplicates != 4 || binary.LittleEndian.Uint64(p.mem[1]) != 2 {
		t.Errorf("%+v, %+v", s, q)
	}
}

// TestRetryCounts: a request without an answer is sent once, and again as often as the count says. 7 means
// without end for rxe (rxe_comp.c), and seven times for ConnectX.
func TestRetryCounts(t *testing.T) {
	for _, profile := range []Profile{RXE, ConnectX} {
		for count := range 8 {
			l := newLink(t, Config{Profile: profile}, false, 1)
			k := quick()
			k.RetryCnt = count
			p := l.pair(TypeRC, k, 64)
			sent := 0
			l.lose = func(int, []byte) bool { sent++; return sent <= 50 }
			p.post(&SendWR{Op: OpWrite, SGL: [][]byte{{1}}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
			w := p.one(0)
			if endless := profile == RXE && count == 7; endless && (w.Status != Success || sent != 52) ||
				!endless && (w.Status != RetryExceededError || sent != count+1 || p.qp[0].Failure().Status != RetryExceededError) {
				t.Errorf("profile %d, count %d: %+v after %d frames", profile, count, w, sent)
			}
		}
	}
}

// TestRNRCountsAndTimers: a receiver that is not ready makes its peer wait for the time of its code (IBTA
// 9.7.5.2.8, table 45; rnrnak_usec of rxe_comp.c), as often as the peer's count says; 7 means without end.
func TestRNRCountsAndTimers(t *testing.T) {
	for code := range 32 {
		for count := range 8 {
			l := newLink(t, Config{}, false, 1)
			k := quick()
			k.RNRRetry, k.MinRNRTimer = count, code
			p := l.pair(TypeRC, k, 64)
			var at []clock.Time
			l.tap = func(from int, _ []byte) {
				if from == 0 {
					at = append(at, l.now)
				}
			}
			p.post(&SendWR{Op: OpSend, SGL: [][]byte{{1}}, Signaled: true})
			for p.qp[0].State() == StateReady && len(at) < 9 {
				l.step()
			}
			tries := count + 1
			if count == 7 {
				tries = 9
			}
			if len(at) != tries || (p.qp[0].Failure().Status == RNRRetryExceededError) != (count < 7) || p.qp[0].Stats().NAKRx.RNR < uint64(tries)-1 {
				t.Fatalf("code %d, count %d: %d tries, %+v", code, count, len(at), p.qp[0].Failure())
			}
			for i := 1; i < len(at); i++ {
				if d := at[i] - at[i-1]; d < clock.Time(rnrDelay(uint8(code))) || d > clock.Time(rnrDelay(uint8(code)))+3*l.latency {
					t.Fatalf("code %d: waited %d ns, want %d", code, d, rnrDelay(uint8(code)))
				}
			}
		}
	}
	if rnrDelay(0) != 655_360_000 || rnrDelay(31) != 491_520_000 {
		t.Errorf("code 0 is %d ns, code 31 %d ns", rnrDelay(0), rnrDelay(31))
	}
}

// TestPathMTU: messages are cut into packets of every path MTU (IBTA 9.7.2), also
// over a link for 4096.
func TestPathMTU(t *testing.T) {
	for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
		for _, n := range []int{0, mtu - 1, mtu, mtu + 1, 10000} {
			l := newLink(t, Config{LinkMTU: 4200}, false, 1)
			l.checkFrames()
			check, packets := l.tap, [2]int{}
			l.tap = func(from int, b []byte) {
				check(from, b)
				var f hdr.Frame
				hdr.Parse(b, &f)
				if size := len(f.PayloadOf(b)); size > mtu {
					t.Errorf("path MTU %d: a packet carries %d bytes", mtu, size)
				}
				packets[from]++
			}
			k := quick()
			k.PathMTU = mtu
			p := l.pair(TypeRC, k, 16384)
			src, dst := make([]byte, n), make([]byte, n)
			fill(src, 5)
			p.post(&SendWR{Op: OpWrite, SGL: [][]byte{src}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
			p.post(&SendWR{Op: OpRead, SGL: [][]byte{dst}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true, Fence: true})
			if got := p.done(0); len(got) != 2 || got[1].Status != Success || !bytes.Equal(src, dst) {
				t.Errorf("path MTU %d, %d bytes: %+v", mtu, n, got)
			}
			if want := max((n+mtu-1)/mtu, 1) + 1; packets != [2]int{want, want} {
				t.Errorf("path MTU %d, %d bytes: %d packets, want %d each way", mtu, n, packets, want)
			}
		}
	}
}
