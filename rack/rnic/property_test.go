package rnic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/hdr"
)

// modelled is a posted request and the result that it must have.
type modelled struct {
	w     SendWR
	data  []byte // READ: the bytes that it must return
	check bool
	old   uint64 // atomic: the value before
}

// TestExactlyOnce posts random requests over a link that loses, repeats, reorders and damages frames, and
// compares with a model of the remote memory. Every request completes once, in order and with success. The
// memory equals the model's, and each atomic ran once (their sum shows this).
func TestExactlyOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		profile := rapid.SampledFrom([]Profile{RXE, ConnectX}).Draw(rt, "profile")
		seed := rapid.Uint64().Draw(rt, "seed")
		l := newLink(t, Config{Profile: profile, AckCoalesce: rapid.SampledFrom([]int{0, 1, 4, 64}).Draw(rt, "coalesce")}, rapid.Bool().Draw(rt, "v6"), seed)
		l.faults = faults{
			drop:    rapid.IntRange(0, 120).Draw(rt, "drop"),
			dup:     rapid.IntRange(0, 120).Draw(rt, "dup"),
			reorder: rapid.IntRange(0, 120).Draw(rt, "reorder"),
			corrupt: rapid.IntRange(0, 60).Draw(rt, "corrupt"),
			badICRC: rapid.IntRange(0, 60).Draw(rt, "badICRC"),
		}
		const size = 16384
		rd := rapid.IntRange(1, 16).Draw(rt, "rdatomic")
		p := l.pair(TypeRC, Conn{
			PathMTU: rapid.SampledFrom([]int{256, 512, 1024}).Draw(rt, "mtu"),
			SQPSN:   uint32(rapid.SampledFrom([]int{0, 0xFFFFF0, 0x7FFFF0, 0xFFFFFF}).Draw(rt, "psn")),
			RQPSN:   3185, MaxRdAtomic: rd, MaxDestRdAtomic: rd,
			// ConnectX gives up after 7 tries, so it must try long enough here; another test is for retry
			// exhaustion.
			Timeout: 8, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 1,
		}, size)
		p.forever()
		model := make([]byte, size)
		var reqs []modelled
		var recvs []WC
		var sends [][]byte
		count := rapid.IntRange(1, 60).Draw(rt, "requests")
		for i := range count {
			n := rapid.SampledFrom([]int{0, 1, 5, 64, 256, 1024, 1025, 3000}).Draw(rt, "bytes")
			at := rapid.IntRange(0, size-n).Draw(rt, "at")
			word := rapid.IntRange(0, 7).Draw(rt, "word") * 8
			m := modelled{w: SendWR{ID: uint64(i), RKey: p.mr[1].RKey, RemoteAddr: testVA + uint64(at), Signaled: true}}
			buf := make([]byte, n)
			w := &m.w
			w.SGL = [][]byte{buf[:n/2], buf[n/2:]}
			switch w.Op = rapid.SampledFrom([]Op{OpWrite, OpWrite, OpRead, OpSend, OpSendImm, OpWriteImm, OpCompareSwap, OpFetchAdd, OpMaskedCompareSwap}).Draw(rt, "op"); w.Op {
			case OpWrite, OpWriteImm:
				fill(buf, byte(i))
				copy(model[at:], buf)
				w.Imm = uint32(i)
				if w.Op == OpWriteImm {
					recvs = append(recvs, WC{Op: OpRecvWriteImm, ByteLen: uint32(n), Imm: w.Imm})
					sends = append(sends, nil)
				}
				// A request may overtake a READ before it (IBTA 10.8.3.3).
				w.Fence = true
			case OpRead:
				m.data, m.check = bytes.Clone(model[at:at+n]), true
			case OpSend, OpSendImm:
				fill(buf, byte(i))
				wc := WC{Op: OpRecv, ByteLen: uint32(n)}
				if w.Op == OpSendImm {
					w.Imm = uint32(i)
					wc.Op, wc.Imm = OpRecvImm, w.Imm
				}
				recvs = append(recvs, wc)
				sends = append(sends, buf)
			default:
				w.SGL = [][]byte{make([]byte, 8)}
				w.RemoteAddr = testVA + uint64(word)
				w.Fence = true
				m.old = binary.LittleEndian.Uint64(model[word:])
				w.Compare = m.old + uint64(rapid.IntRange(0, 1).Draw(rt, "miss"))
				w.Swap = rapid.Uint64().Draw(rt, "swap")
				w.CompareMask, w.SwapMask = 0xFF, 0xFFFF00
				then := m.old
				switch {
				case w.Op == OpFetchAdd:
					then += w.Swap
				case w.Op == OpCompareSwap && w.Compare == m.old:
					then = w.Swap
				case w.Op == OpMaskedCompareSwap && byte(w.Compare) == byte(m.old):
					then = m.old&^w.SwapMask | w.Swap&w.SwapMask
				}
				binary.LittleEndian.PutUint64(model[word:], then)
			}
			reqs = append(reqs, m)
		}
		bufs := make([][]byte, len(recvs))
		late := rapid.Bool().Draw(rt, "late receives")
		posted, received := 0, 0
		post := func(n int) {
			for ; n > 0 && posted < len(recvs); n-- {
				bufs[posted] = make([]byte, 3000)
				if err := p.qp[1].PostRecv(&RecvWR{ID: uint64(posted), Buf: bufs[posted]}); err != nil {
					rt.Fatal(err)
				}
				posted++
			}
		}
		if !late {
			post(len(recvs))
		}
		next, done := 0, 0
		var w [16]WC
		for steps := 0; done < count || received < len(recvs); steps++ {
			for next < count && l.rand.IntN(3) > 0 {
				if err := p.qp[0].PostSend(&reqs[next].w); err != nil {
					rt.Fatal(err)
				}
				next++
			}
			if late && l.rand.IntN(20) == 0 {
				post(1)
			}
			l.step()
			for _, c := range w[:p.cq[0].Poll(w[:])] {
				if c.ID != uint64(done) || c.Status != Success || c.Op != reqs[done].w.Op {
					rt.Fatalf("completion %d is %+v", done, c)
				}
				m := &reqs[done]
				switch {
				case m.check && !bytes.Equal(append(bytes.Clone(m.w.SGL[0]), m.w.SGL[1]...), m.data):
					rt.Fatalf("read %d brought something else", done)
				case m.w.Op >= OpCompareSwap && binary.LittleEndian.Uint64(m.w.SGL[0]) != m.old:
					rt.Fatalf("atomic %d saw %#x, want %#x", done, m.w.SGL[0], m.old)
				}
				done++
			}
			for _, c := range w[:p.cq[1].Poll(w[:])] {
				want := recvs[received]
				want.ID, want.QPN = uint64(received), p.qp[1].QPN
				if c != want {
					rt.Fatalf("received %+v, want %+v", c, want)
				}
				if b := sends[received]; b != nil && !bytes.Equal(bufs[received][:len(b)], b) {
					rt.Fatalf("message %d arrived wrong", received)
				}
				received++
			}
			if steps > 200_000 {
				rt.Fatalf("stuck at %d of %d, %d of %d received: %+v %+v %+v", done, count, received, len(recvs), p.qp[0].req, l.nic[0].Stats(), l.nic[1].Stats())
			}
		}
		l.faults = faults{}
		for range 100_000 {
			if !l.step() {
				break
			}
		}
		if p.cq[0].Len()+p.cq[1].Len() != 0 {
			rt.Fatal("a request completed twice")
		}
		if !bytes.Equal(p.mem[1], model) {
			rt.Fatal("memory differs from the model")
		}
		l.conserved()
	})
}

// forever makes both queue pairs retry without end, whatever the profile.
func (p *pair) forever() {
	for _, q := range p.qp {
		q.conn.RetryCnt = 1 << 30
		q.req.retry = 1 << 30
	}
}

// TestManyConnections: many queue pairs add to one counter. In the end it is the number of additions, and
// every original value was returned once.
func TestManyConnections(t *testing.T) {
	l := newLink(t, Config{}, false, 7)
	l.faults = faults{drop: 30, dup: 30, reorder: 30}
	pd, cq := l.nic[0].AllocPD(), l.nic[0].CreateCQ(8192)
	pd1, cq1 := l.nic[1].AllocPD(), l.nic[1].CreateCQ(16)
	mem := make([]byte, 8)
	mr, err := pd1.RegMR(mem, testVA, allFlag)
	if err != nil {
		t.Fatal(err)
	}
	const conns, each = 300, 20
	for i := range conns {
		a, err := l.nic[0].CreateQP(QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 32, MaxRecv: 1})
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.nic[1].CreateQP(QPInit{PD: pd1, SendCQ: cq1, RecvCQ: cq1, Access: RemoteAtomic, MaxSend: 1, MaxRecv: 1})
		if err != nil {
			t.Fatal(err)
		}
		c := DefaultConn()
		c.Timeout = 8
		c.RemoteMAC, c.RemoteIP, c.DestQPN, c.SQPSN = macB, ip4B, b.QPN, uint32(i)
		if err := a.Connect(c); err != nil {
			t.Fatal(err)
		}
		c.RemoteMAC, c.RemoteIP, c.DestQPN, c.SQPSN, c.RQPSN = macA, ip4A, a.QPN, 0, uint32(i)
		if err := b.Connect(c); err != nil {
			t.Fatal(err)
		}
		for k := range each {
			if err := a.PostSend(&SendWR{ID: uint64(i*each + k), Op: OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: mr.RKey, Swap: 1, Signaled: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.run(1_000_000)
	if n := binary.LittleEndian.Uint64(mem); n != conns*each || cq.Len() != conns*each {
		t.Fatalf("counter %d, %d completions, want %d", n, cq.Len(), conns*each)
	}
	l.conserved()
}

// TestPSNWrap keeps a connection busy over the end of the PSN space.
func TestPSNWrap(t *testing.T) {
	for _, start := range []uint32{0xFFFFFF, 0xFFFFC0, 0x7FFFFF} {
		l := newLink(t, Config{}, false, 1)
		l.faults = faults{drop: 50, reorder: 50}
		p := l.pair(TypeRC, Conn{PathMTU: 256, Timeout: 8, RetryCnt: 7, RNRRetry: 7, SQPSN: start}, 1<<20)
		src := make([]byte, 1<<16)
		fill(src, 9)
		for i := range 8 {
			p.post(&SendWR{ID: uint64(i), Op: OpWrite, SGL: [][]byte{src}, RemoteAddr: testVA + uint64(i)<<16, RKey: p.mr[1].RKey, Signaled: true})
		}
		dst := make([]byte, 1<<19)
		p.post(&SendWR{ID: 8, Op: OpRead, SGL: [][]byte{dst}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true, Fence: true})
		if w := p.done(0); len(w) != 9 || w[8].Status != Success {
			t.Fatalf("from %#x: %+v", start, w)
		}
		if !bytes.Equal(dst, bytes.Repeat(src, 8)) {
			t.Fatalf("from %#x: data differ", start)
		}
		l.conserved()
	}
}

// TestWindow holds all answers back: no more than the allowed number of PSNs, READs and atomics is under way,
// and a fence waits.
func TestWindow(t *testing.T) {
	for _, c := range []struct {
		w    SendWR
		n    int
		rd   int
		want int
	}{
		{SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 8)}}, 128, 1, 128},
		{SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 1<<16)}}, 2, 1, maxUnacked},
		{SendWR{Op: OpRead, SGL: [][]byte{make([]byte, 8)}}, 40, 5, 5},
		{SendWR{Op: OpCompareSwap, SGL: [][]byte{make([]byte, 8)}}, 40, 16, 16},
		{SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 8)}, Fence: true}, 5, 1, 1},
	} {
		l := newLink(t, Config{}, false, 1)
		p := l.pair(TypeRC, Conn{PathMTU: 256, MaxRdAtomic: c.rd}, 1<<16)
		c.w.RemoteAddr, c.w.RKey = testVA, p.mr[1].RKey
		for range c.n {
			p.post(&c.w)
		}
		sent := 0
		l.lose = func(from int, _ []byte) bool { sent++; return true }
		l.run(10)
		if sent != c.want {
			t.Errorf("%+v: %d packets sent, want %d", c, sent, c.want)
		}
	}
}

// TestAckRequests: a long WRITE asks for an acknowledgement where rxe does.
func TestAckRequests(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, Conn{PathMTU: 256, SQPSN: 0x9cc8c5}, 1<<16)
	var asked []uint32
	acks := 0
	l.tap = func(from int, b []byte) {
		var f hdr.Frame
		hdr.Parse(b, &f)
		if h := f.BTHOf(b); from == 0 && h.AckReq() {
			asked = append(asked, h.PSN())
		} else if from == 1 {
			acks++
		}
	}
	for range 2 {
		p.post(&SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 49152)}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
	}
	l.run(10_000)
	// From a capture of rxe.
	if got, want := fmt.Sprintf("%x", asked), "[9cc906 9cc948 9cc984 9cc9c6 9cca08 9cca44]"; got != want || acks != 6 {
		t.Errorf("asked for acknowledgement of %s, want %s; %d acknowledgements", got, want, acks)
	}
}
