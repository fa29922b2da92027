package rnic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

func quick() Conn {
	return Conn{PathMTU: 256, Timeout: 8, RetryCnt: 3, RNRRetry: 7, MinRNRTimer: 12, SQPSN: 100, RQPSN: 3185}
}

// TestRefused: a request that the responder refuses ends with the right status, the rest of the queue is
// flushed, and both sides are in the error state.
func TestRefused(t *testing.T) {
	buf := make([]byte, 600)
	for _, c := range []struct {
		name string
		w    SendWR
		key  func(p *pair) uint32
		want Status
	}{
		{"bad key", SendWR{Op: OpWrite, RemoteAddr: testVA}, func(p *pair) uint32 { return p.mr[1].RKey ^ 1 }, RemoteAccessError},
		{"no such region", SendWR{Op: OpRead, RemoteAddr: testVA}, func(p *pair) uint32 { return 0xFFFFFFFF }, RemoteAccessError},
		{"before the region", SendWR{Op: OpWrite, RemoteAddr: testVA - 1}, nil, RemoteAccessError},
		{"behind the region", SendWR{Op: OpRead, RemoteAddr: testVA + 4096 - 599}, nil, RemoteAccessError},
		{"address wraps", SendWR{Op: OpRead, RemoteAddr: ^uint64(0) - 10}, nil, RemoteAccessError},
		{"atomic behind", SendWR{Op: OpFetchAdd, RemoteAddr: testVA + 4096}, nil, RemoteAccessError},
		{"misaligned", SendWR{Op: OpCompareSwap, RemoteAddr: testVA + 4}, nil, RemoteInvalidRequestError},
		{"other domain", SendWR{Op: OpWrite, RemoteAddr: testVA}, func(p *pair) uint32 {
			m, _ := p.l.nic[1].AllocPD().RegMR(p.mem[1], testVA, allFlag)
			return m.RKey
		}, RemoteAccessError},
		{"read only", SendWR{Op: OpWrite, RemoteAddr: testVA}, func(p *pair) uint32 {
			m, _ := p.pd[1].RegMR(p.mem[1], testVA, RemoteRead)
			return m.RKey
		}, RemoteAccessError},
		{"write only", SendWR{Op: OpRead, RemoteAddr: testVA}, func(p *pair) uint32 {
			m, _ := p.pd[1].RegMR(p.mem[1], testVA, LocalWrite|RemoteWrite)
			return m.RKey
		}, RemoteAccessError},
		{"no atomics", SendWR{Op: OpCompareSwap, RemoteAddr: testVA}, func(p *pair) uint32 {
			m, _ := p.pd[1].RegMR(p.mem[1], testVA, LocalWrite|RemoteWrite|RemoteRead)
			return m.RKey
		}, RemoteAccessError},
		{"deregistered", SendWR{Op: OpRead, RemoteAddr: testVA}, func(p *pair) uint32 { p.mr[1].Dereg(); return p.mr[1].RKey }, RemoteAccessError},
		{"queue pair forbids", SendWR{Op: OpRead, RemoteAddr: testVA}, func(p *pair) uint32 {
			p.qp[1].init.Access = RemoteWrite | RemoteAtomic
			return p.mr[1].RKey
		}, RemoteInvalidRequestError},
		{"receive too short", SendWR{Op: OpSend}, func(p *pair) uint32 { p.qp[1].PostRecv(&RecvWR{ID: 7, Buf: make([]byte, 300)}); return 0 }, RemoteInvalidRequestError},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t, Config{}, false, 1)
			p := l.pair(TypeRC, quick(), 4096)
			key := p.mr[1].RKey
			if c.key != nil {
				key = c.key(p)
			}
			p.qp[0].PostRecv(&RecvWR{ID: 8})
			p.post(&SendWR{ID: 1, Op: OpWrite, RemoteAddr: testVA, RKey: p.mr[1].RKey}) // empty: needs no key
			c.w.ID, c.w.SGL, c.w.RKey = 2, [][]byte{buf}, key
			p.post(&c.w)
			p.post(&SendWR{ID: 3, Op: OpRead, SGL: [][]byte{buf}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
			got := p.done(0)
			if len(got) != 3 || got[0].ID != 2 || got[0].Status != c.want || got[1].ID != 3 || got[1].Status != WRFlushError ||
				got[2].ID != 8 || got[2].Status != WRFlushError {
				t.Fatalf("%+v", got)
			}
			if a, b := p.qp[0].State(), p.qp[1].State(); a != StateError || b != StateError {
				t.Fatalf("states %v and %v", a, b)
			}
			if !bytes.Equal(p.mem[1], make([]byte, 4096)) {
				t.Fatal("memory was changed")
			}
			// Work that is posted now is flushed. A reset makes the queue pair usable again.
			p.post(&SendWR{ID: 4, Op: OpWrite})
			if w := p.one(0); w.ID != 4 || w.Status != WRFlushError {
				t.Fatalf("%+v", w)
			}
			p.cq[1].Poll(make([]WC, 10))
			for i, q := range p.qp {
				q.Reset()
				q.init.Access = allFlag
				p.mr[i], _ = p.pd[i].RegMR(p.mem[i], testVA, allFlag)
			}
			p.connect(quick())
			p.post(&SendWR{ID: 5, Op: OpRead, SGL: [][]byte{buf}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
			if w := p.one(0); w.ID != 5 || w.Status != Success {
				t.Fatalf("after reset: %+v", w)
			}
			l.conserved()
		})
	}
}

// TestReadOfVanishedRegion: the region is deregistered while the response is sent.
func TestReadOfVanishedRegion(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, quick(), 1<<16)
	responses := 0
	l.tap = func(from int, _ []byte) {
		if from == 1 {
			if responses++; responses == 3 {
				p.mr[1].Dereg()
			}
		}
	}
	p.post(&SendWR{Op: OpRead, SGL: [][]byte{make([]byte, 1<<16)}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
	if w := p.one(0); w.Status != RemoteAccessError {
		t.Fatalf("%+v", w)
	}
	l.conserved()
}

// TestRetryExhaustion: all frames of one direction are lost.
func TestRetryExhaustion(t *testing.T) {
	for side := range 2 {
		l := newLink(t, Config{Profile: ConnectX}, false, 1)
		c := quick()
		c.RetryCnt, c.Timeout = 2, 14
		p := l.pair(TypeRC, c, 4096)
		sent := 0
		l.lose = func(from int, _ []byte) bool {
			if from == 0 {
				sent++
			}
			return from == side
		}
		start := l.now
		p.post(&SendWR{ID: 1, Op: OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
		p.post(&SendWR{ID: 2, Op: OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
		got := p.done(0)
		if len(got) != 2 || got[0].Status != RetryExceededError || got[1].Status != WRFlushError || sent != 6 {
			t.Fatalf("%d packets, %+v", sent, got)
		}
		if d := l.now - start; d < 3*67_108_864 || d > 3*67_108_864+10_000 {
			t.Errorf("gave up after %d ns, want three times 67.1 ms", d)
		}
		if d := l.nic[0].Deadline(); d != clock.Never {
			t.Errorf("still waits until %d", d)
		}
	}
}

func TestRetrySevenIsForeverAsRXE(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	c := quick()
	c.RetryCnt = 7
	p := l.pair(TypeRC, c, 4096)
	lost := 0
	l.lose = func(int, []byte) bool { lost++; return lost <= 100 }
	p.post(&SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
	if w := p.one(0); w.Status != Success || lost != 102 {
		t.Fatalf("%+v after %d frames", w, lost)
	}
}

// TestRNR: a message waits for its receive request as long as the code says, and fails after the given number
// of tries.
func TestRNR(t *testing.T) {
	for _, retries := range []int{0, 3, 7} {
		for _, op := range []Op{OpSend, OpWriteImm} {
			l := newLink(t, Config{}, false, 1)
			c := quick()
			c.RNRRetry, c.MinRNRTimer = retries, 14 // 1.28 ms
			p := l.pair(TypeRC, c, 4096)
			src := make([]byte, 700)
			fill(src, 1)
			p.post(&SendWR{ID: 1, Op: op, SGL: [][]byte{src}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
			p.post(&SendWR{ID: 2, Op: OpWrite, SGL: [][]byte{src}, RemoteAddr: testVA + 2048, RKey: p.mr[1].RKey, Signaled: true})
			start := l.now
			for l.nic[1].Stats().RNRTx < 4 && l.step() {
			}
			if retries < 7 {
				got := p.done(0)
				if len(got) != 2 || got[0].Status != RNRRetryExceededError || got[1].Status != WRFlushError || l.nic[1].Stats().RNRTx != uint64(retries)+1 {
					t.Fatalf("%d retries: %+v", retries, got)
				}
				continue
			}
			if d := l.now - start; d < 3*1_280_000 || d > 3*1_280_000+100_000 {
				t.Errorf("three waits took %d ns, want 3.84 ms", d)
			}
			buf := make([]byte, 700)
			if err := p.qp[1].PostRecv(&RecvWR{Buf: buf}); err != nil {
				t.Fatal(err)
			}
			if got := p.done(0); len(got) != 2 || got[0].Status != Success || got[1].Status != Success {
				t.Fatalf("%+v", got)
			}
			if p.one(1); op == OpWriteImm {
				buf = p.mem[1][:700]
			}
			if !bytes.Equal(buf, src) || !bytes.Equal(p.mem[1][2048:2748], src) {
				t.Fatal("data differ")
			}
			l.conserved()
		}
	}
}

// answer makes the server send an answer to no request.
func (p *pair) inject(op hdr.Opcode, psn uint32, syn hdr.Syndrome, payload int) {
	q := p.qp[1]
	b := p.l.pool.Get()
	ext := int(op.Info().Len)
	f, body := q.begin(b, op, psn, ext, payload)
	if ext > 0 {
		hdr.AETH(body).SetSyndrome(syn)
	}
	q.finish(f)
	p.l.nic[0].Input(p.l.now, b)
}

// TestOneRetryAtATime: several answers that show the same loss make the requester go back only once.
func TestOneRetryAtATime(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, quick(), 4096)
	first := true
	l.lose = func(from int, _ []byte) bool {
		lose := from == 1 && first
		first = first && from == 0
		return lose
	}
	for range 8 {
		p.post(&SendWR{Op: OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Swap: 1, Signaled: true})
	}
	if got := p.done(0); len(got) != 8 {
		t.Fatalf("%+v", got)
	}
	if s := l.nic[0].Stats(); s.Retransmitted != 8 || s.Timeouts != 0 || binary.LittleEndian.Uint64(p.mem[1]) != 8 {
		t.Errorf("%d retransmissions, want 8: %+v", s.Retransmitted, s)
	}
}

// TestLateAck: an acknowledgement that comes after the timeout, but before a frame is sent again, counts, and
// no old frame is sent.
func TestLateAck(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, quick(), 4096)
	l.lose = func(int, []byte) bool { return true }
	for i := range 3 {
		p.post(&SendWR{ID: uint64(i), Op: OpWrite, SGL: [][]byte{make([]byte, 600)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
	}
	n := l.nic[0]
	n.Output(l.now, &l.batch)
	l.batch.PutAll()
	for n.Stats().Timeouts == 0 {
		l.now = n.Deadline()
		n.Tick(l.now)
	}
	p.inject(hdr.Acknowledge, 104, hdr.SynACKUnlimited, 0) // in the middle of the second
	n.Output(l.now, &l.batch)
	var f hdr.Frame
	hdr.Parse(l.batch.At(0).Bytes(), &f)
	if psn := f.BTHOf(l.batch.At(0).Bytes()).PSN(); psn != 105 || l.batch.Len() != 4 || p.cq[0].Len() != 1 {
		t.Fatalf("%d frames from PSN %d, %d completions", l.batch.Len(), psn, p.cq[0].Len())
	}
	l.batch.PutAll()
}

// TestReadResume: a READ goes on at the packet that was lost.
func TestReadResume(t *testing.T) {
	for _, profile := range []Profile{RXE, ConnectX} {
		l := newLink(t, Config{Profile: profile}, false, 1)
		p := l.pair(TypeRC, quick(), 4096)
		fill(p.mem[1], 2)
		n := 0
		var ops []hdr.Opcode
		var va uint64
		var size uint32
		l.tap = func(from int, b []byte) {
			var f hdr.Frame
			hdr.Parse(b, &f)
			if from == 0 {
				va, size = f.RETHOf(b).VA(), f.RETHOf(b).DMALength()
				ops = ops[:0]
			}
			ops = append(ops, f.Op)
		}
		l.lose = func(from int, _ []byte) bool { n += from; return from == 1 && n == 3 }
		dst := make([]byte, 1500)
		p.post(&SendWR{Op: OpRead, SGL: [][]byte{dst[:500], dst[500:]}, RemoteAddr: testVA + 8, RKey: p.mr[1].RKey, Signaled: true})
		if w := p.one(0); w.Status != Success || !bytes.Equal(dst, p.mem[1][8:1508]) {
			t.Fatalf("%+v", w)
		}
		start := hdr.ReadRespMiddle
		if profile == ConnectX {
			start = hdr.ReadRespFirst
		}
		if va != testVA+8+512 || size != 1500-512 || len(ops) != 5 || ops[1] != start || ops[4] != hdr.ReadRespLast {
			t.Errorf("resumed at %#x for %d: %v", va-testVA, size, ops)
		}
	}
}

// TestStrangeAnswers: answers that do not fit are ignored, or end the request with an error. They never
// complete it with success.
func TestStrangeAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		op      Op
		answer  hdr.Opcode
		psn     uint32
		syn     hdr.Syndrome
		payload int
		want    Status // Success: no completion
	}{
		{"old", OpWrite, hdr.Acknowledge, 99, 0x1F, 0, Success},
		{"never sent", OpWrite, hdr.Acknowledge, 101, 0x1F, 0, Success},
		{"reserved type", OpWrite, hdr.Acknowledge, 100, 0x40, 0, Success},
		{"reserved code", OpWrite, hdr.Acknowledge, 100, 0x7F, 0, Success},
		{"read answer to write", OpWrite, hdr.ReadRespOnly, 100, 0x1F, 8, Success},
		{"atomic answer to read", OpRead, hdr.AtomicAck, 100, 0x1F, 0, Success},
		{"ack of read", OpRead, hdr.Acknowledge, 100, 0x1F, 0, Success},
		{"ack of atomic", OpFetchAdd, hdr.Acknowledge, 100, 0x1F, 0, Success},
		{"read answer with NAK", OpRead, hdr.ReadRespOnly, 100, 0x62, 8, Success},
		{"read answer too short", OpRead, hdr.ReadRespOnly, 100, 0x1F, 4, LocalLengthError},
		{"read answer too long", OpRead, hdr.ReadRespOnly, 100, 0x1F, 12, LocalLengthError},
		{"operation error", OpFetchAdd, hdr.Acknowledge, 100, 0x63, 0, RemoteOperationError},
	} {
		l := newLink(t, Config{}, false, 1)
		p := l.pair(TypeRC, quick(), 4096)
		p.post(&SendWR{Op: c.op, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
		l.nic[0].Output(l.now, &l.batch)
		l.batch.PutAll()
		p.inject(c.answer, c.psn, c.syn, c.payload)
		var w [2]WC
		n := p.cq[0].Poll(w[:])
		if c.want == Success && n != 0 || c.want != Success && (n != 1 || w[0].Status != c.want) {
			t.Errorf("%s: %d completions %+v", c.name, n, w[0])
		}
		l.conserved()
	}
}

// TestSequenceErrors: packets that break a message are refused.
func TestSequenceErrors(t *testing.T) {
	for _, ops := range [][]hdr.Opcode{
		{hdr.WriteMiddle}, {hdr.WriteLast}, {hdr.SendLast},
		{hdr.WriteFirst, hdr.WriteOnly}, {hdr.WriteFirst, hdr.SendMiddle}, {hdr.SendFirst, hdr.WriteLast}, {hdr.SendFirst, hdr.ReadRequest},
		{hdr.WriteFirst, hdr.CompareSwap}, {hdr.AtomicWrite}, {hdr.Flush}, {hdr.MaskedFetchAdd},
	} {
		l := newLink(t, Config{}, false, 1)
		p := l.pair(TypeRC, quick(), 4096)
		if err := p.qp[1].PostRecv(&RecvWR{Buf: make([]byte, 4096)}); err != nil {
			t.Fatal(err)
		}
		for i, op := range ops {
			b := l.pool.Get()
			n := 256
			if !op.Has(hdr.MayCarry) {
				n = 0
			}
			f, body := p.qp[0].begin(b, op, uint32(100+i), int(op.Info().Len), n)
			if op.Info().Ext&hdr.HasRETH != 0 && op != hdr.Flush {
				h := hdr.RETH(body)
				h.SetVA(testVA)
				h.SetRKey(p.mr[1].RKey)
				h.SetDMALength(1024)
			}
			p.qp[0].finish(f)
			l.nic[1].Input(l.now, b)
		}
		if s := l.nic[1].Stats(); s.NAKErrorTx != 1 || p.qp[1].State() != StateError {
			t.Errorf("%v: %+v", ops, s)
		}
	}
}

// TestOverrun: a completion that finds its queue full ends the connection.
func TestOverrun(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, quick(), 4096)
	p.qp[0].init.SendCQ = l.nic[0].CreateCQ(2)
	for range 5 {
		p.post(&SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
	}
	l.run(1000)
	if q := p.qp[0]; q.State() != StateError || !q.init.SendCQ.Overrun() || q.init.SendCQ.Len() != 2 || q.Outstanding() != 0 {
		t.Errorf("%v %v", q.State(), q.init.SendCQ)
	}
	if l.nic[0].Stats().CQOverruns == 0 {
		t.Error("not counted")
	}
}

// TestBusyResponder: a peer that has more requests under way than the responder remembers gets no answer
// twice, and the connection goes on.
func TestBusyResponder(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late %v", late), func(t *testing.T) { busyResponder(t, late) })
	}
}

func busyResponder(t *testing.T, late bool) {
	l := newLink(t, Config{LateAtomics: late}, false, 1)
	c := quick()
	c.MaxRdAtomic, c.MaxDestRdAtomic, c.RetryCnt = 128, 1, 7
	p := l.pair(TypeRC, c, 4096)
	const n = 120
	dst := make([][]byte, n)
	for i := range dst {
		dst[i] = make([]byte, 8)
		p.post(&SendWR{Op: OpFetchAdd, SGL: [][]byte{dst[i]}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Swap: 1, Signaled: true})
	}
	// All requests arrive before the responder may answer one.
	for {
		l.nic[0].Output(l.now, &l.batch)
		if l.batch.Len() == 0 {
			break
		}
		for _, b := range l.batch.Bufs() {
			l.nic[1].Input(l.now, b)
		}
		l.batch.Reset()
	}
	if l.nic[1].Stats().DropBusy != n-answers {
		t.Errorf("%d requests dropped, want %d", l.nic[1].Stats().DropBusy, n-answers)
	}
	if got := p.done(0); len(got) != n || got[n-1].Status != Success {
		t.Fatalf("%d completions", len(got))
	}
	for i, b := range dst {
		if v := binary.LittleEndian.Uint64(b); v != uint64(i) {
			t.Fatalf("addition %d saw %d", i, v)
		}
	}
	l.conserved()
}

// TestLateAtomics: an atomic that is executed late finds what a WRITE behind it wrote.
func TestLateAtomics(t *testing.T) {
	for _, c := range []struct {
		late             bool
		original, result uint64
	}{{false, 0, 10}, {true, 10, 11}} {
		l := newLink(t, Config{LateAtomics: c.late}, false, 1)
		p := l.pair(TypeRC, quick(), 4096)
		found, ten := make([]byte, 8), binary.LittleEndian.AppendUint64(nil, 10)
		p.post(&SendWR{Op: OpFetchAdd, SGL: [][]byte{found}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Swap: 1, Signaled: true})
		p.post(&SendWR{Op: OpWrite, SGL: [][]byte{ten}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
		if got := p.done(0); len(got) != 2 || got[1].Status != Success {
			t.Fatalf("late %v: %v", c.late, got)
		}
		if v, m := binary.LittleEndian.Uint64(found), binary.LittleEndian.Uint64(p.mem[1]); v != c.original || m != c.result {
			t.Errorf("late %v: found %d, left %d, want %d and %d", c.late, v, m, c.original, c.result)
		}
		l.conserved()
	}
}

// TestCoalescing: one ACK covers the requests that arrived while it waited, up to the configured number.
func TestCoalescing(t *testing.T) {
	for _, c := range []struct {
		profile      Profile
		set, acks, n int
	}{{RXE, 0, 40, 40}, {RXE, 8, 5, 40}, {ConnectX, 0, 3, 40}, {ConnectX, 1, 40, 40}, {ConnectX, 64, 1, 40}} {
		l := newLink(t, Config{Profile: c.profile, AckCoalesce: c.set}, false, 1)
		p := l.pair(TypeRC, quick(), 4096)
		for range c.n {
			p.post(&SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
		}
		if got := p.done(0); len(got) != c.n {
			t.Fatalf("%d completions", len(got))
		}
		s := l.nic[1].Stats()
		if s.TxResponses != uint64(c.acks) || s.AcksMerged != uint64(c.n-c.acks) || l.nic[0].Stats().Timeouts != 0 {
			t.Errorf("%+v: %d ACKs, %d merged", c, s.TxResponses, s.AcksMerged)
		}
	}
}

// TestFairness: queue pairs take turns, and answers are sent before requests.
func TestFairness(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	var ps []*pair
	for range 4 {
		p := l.pair(TypeRC, quick(), 1<<16)
		ps = append(ps, p)
		for range 3 {
			p.post(&SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 4096)}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
		}
	}
	n := l.nic[0]
	// The other NICs may read from this one meanwhile.
	for _, p := range ps {
		p.qp[0].resp.add(p.qp[0], answer{kind: answerAck, psn: 1})
	}
	n.Output(l.now, &l.batch)
	for i, b := range l.batch.Bufs() {
		var f hdr.Frame
		hdr.Parse(b.Bytes(), &f)
		q := ps[i%4].qp[1].QPN
		if h := f.BTHOf(b.Bytes()); h.DestQP() != q || (f.Op == hdr.Acknowledge) != (i < 4) {
			t.Fatalf("frame %d: %v to %#x", i, f.Op, h.DestQP())
		}
	}
	l.batch.PutAll()
}

// TestTimers compares the heap with a linear search.
func TestTimers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := &NIC{}
		want := map[*QP]clock.Time{}
		var qs []*QP
		for range 20 {
			q := &QP{nic: n}
			q.timer.reset()
			qs = append(qs, q)
		}
		now := clock.Time(0)
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			q := qs[rapid.IntRange(0, len(qs)-1).Draw(rt, "qp")]
			switch rapid.IntRange(0, 5).Draw(rt, "do") {
			case 0:
				q.setTimer(clock.Never)
				delete(want, q)
			case 1:
				n.timers.remove(q)
				delete(want, q)
			case 2:
				now += clock.Time(rapid.IntRange(0, 50).Draw(rt, "pass"))
				for d := n.timers.due(now); d != nil; d = n.timers.due(now) {
					if at, ok := want[d]; !ok || at > now {
						rt.Fatalf("expired at %d, want %d", now, at)
					}
					delete(want, d)
				}
				for _, at := range want {
					if at <= now {
						rt.Fatalf("at %d one of %d has not expired", now, at)
					}
					if d := n.timers.next(); d > at {
						rt.Fatalf("next is %d, one is due at %d", d, at)
					}
				}
			default:
				at := now + clock.Time(rapid.IntRange(1, 100).Draw(rt, "in"))
				q.setTimer(at)
				want[q] = at
			}
		}
	})
}

// TestRefusedArguments: the verbs refuse wrong arguments and name them.
func TestRefusedArguments(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	n := l.nic[0]
	pd, cq := n.AllocPD(), n.CreateCQ(1)
	q, err := n.CreateQP(QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1})
	if err != nil {
		t.Fatal(err)
	}
	ok := DefaultConn()
	ok.RemoteIP = ip4B
	with := func(f func(*Conn)) error { c := ok; f(&c); return q.Connect(c) }
	config := func(c Config) error { _, err := New(c); return err }
	reg := func(m []byte, va uint64, a Access) error { _, err := pd.RegMR(m, va, a); return err }
	qp := func(i QPInit) error { _, err := n.CreateQP(i); return err }
	for i, e := range []error{
		config(Config{}), config(Config{MAC: macA}), config(Config{MAC: [6]byte{1}, IP: ip4A}), config(Config{IP: ip4A}),
		config(Config{MAC: macA, IP: ip4A, LinkMTU: 300}), config(Config{MAC: macA, IP: ip4A, AckCoalesce: -1}), config(Config{MAC: macA, IP: ip4A, Profile: 9}),
		config(Config{MAC: macA, IP: ip4A, FirstQPN: 1}), config(Config{MAC: macA, IP: netip.MustParseAddr("224.0.0.1")}),
		reg(make([]byte, 2), ^uint64(0), RemoteRead), reg(nil, 0, RemoteWrite),
		qp(QPInit{}), qp(QPInit{PD: pd}), qp(QPInit{PD: l.nic[1].AllocPD(), SendCQ: cq, RecvCQ: cq}), qp(QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, Type: 7}),
		qp(QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 1 << 20}),
		with(func(c *Conn) { c.RemoteIP = ip6B }), with(func(c *Conn) { c.RemoteIP = netip.Addr{} }), with(func(c *Conn) { c.PathMTU = 1500 }), with(func(c *Conn) { c.PathMTU = 2048 }),
		with(func(c *Conn) { c.DestQPN = 1 << 24 }), with(func(c *Conn) { c.MaxRdAtomic = 129 }), with(func(c *Conn) { c.RetryCnt = 8 }), with(func(c *Conn) { c.Timeout = 32 }),
	} {
		if !errors.Is(e, ErrInvalid) {
			t.Errorf("case %d: %v", i, e)
		}
	}
	w := SendWR{Op: OpWrite}
	if err := q.PostSend(&w); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	if err := q.Connect(ok); err != nil {
		t.Fatal(err)
	}
	if err := q.Connect(ok); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	for _, bad := range []SendWR{{Op: OpRecv}, {Op: OpCompareSwap}, {Op: OpFetchAdd, SGL: [][]byte{make([]byte, 7)}}, {Op: OpWrite, SGL: make([][]byte, 33)}} {
		if err := q.PostSend(&bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if err := q.PostSend(&w); err != nil {
		t.Error(err)
	}
	if err := q.PostSend(&w); !errors.Is(err, ErrQueueFull) {
		t.Error(err)
	}
	if err := q.PostRecv(&RecvWR{}); err != nil {
		t.Error(err)
	}
	if err := q.PostRecv(&RecvWR{}); !errors.Is(err, ErrQueueFull) {
		t.Error(err)
	}
	q.Destroy()
	q.Destroy()
	if err := q.PostRecv(&RecvWR{}); !errors.Is(err, ErrState) || n.QP(q.QPN) != nil {
		t.Error(err)
	}
	n.Output(1, &l.batch)
	if l.batch.Len() != 0 {
		t.Error("a destroyed queue pair sends")
	}
}

// TestReuse: numbers of queue pairs and regions are used again as late as possible, with other keys.
func TestReuse(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	n := l.nic[0]
	pd, cq := n.AllocPD(), n.CreateCQ(1)
	lastKey, lastQP := map[uint32]int{}, map[uint32]int{}
	for i := range 2000 {
		m, err := pd.RegMR(nil, 0, RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		q, err := n.CreateQP(QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1})
		if err != nil {
			t.Fatal(err)
		}
		if at, ok := lastKey[m.RKey]; ok {
			t.Fatalf("key %#x of round %d again in %d", m.RKey, at, i)
		}
		if at, ok := lastQP[q.QPN]; ok && i-at < quarantine {
			t.Fatalf("number %#x of round %d again in %d", q.QPN, at, i)
		}
		lastKey[m.RKey], lastQP[q.QPN] = i, i
		m.Dereg()
		m.Dereg()
		q.Destroy()
	}
	if len(n.mrs) > 2*quarantine || len(n.qps) > 2*quarantine {
		t.Errorf("%d regions and %d queue pairs are kept", len(n.mrs), len(n.qps))
	}
}

// TestStarved: without free frames no request is lost, and the NIC asks to be called again.
func TestStarved(t *testing.T) {
	l := newLink(t, Config{Slots: 1}, false, 1)
	p := l.pair(TypeRC, quick(), 4096)
	held := l.pool.Get()
	p.post(&SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 600)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
	n := l.nic[0]
	n.Output(l.now, &l.batch)
	if d := n.Deadline(); l.batch.Len() != 0 || d <= l.now || d > l.now+10_000 || n.Stats().PoolEmpty != 1 {
		t.Fatalf("%d frames, deadline in %d", l.batch.Len(), d-l.now)
	}
	held.Put()
	if w := p.one(0); w.Status != Success {
		t.Fatalf("%+v", w)
	}
	l.conserved()
}
