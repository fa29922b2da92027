package rnic

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// FuzzInput feeds arbitrary frames to a NIC with queue pairs of all types, requests under way and a region in
// the middle of guarded memory. The NIC must not panic, must not touch memory outside of the region and of
// posted buffers, and must account for all frames. The input is a list of frames, each with its length in two
// bytes. Frames that parse as RoCE get a right ICRC and checksum, so that they pass the filter.
func FuzzInput(f *testing.F) {
	for _, seed := range fuzzSeeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		l := newLink(t, Config{Slots: 16}, false, 1)
		n := l.nic[1]
		c := quick()
		rc, uc, ud := l.pair(TypeRC, c, 64), l.pair(TypeUC, c, 64), l.pair(TypeUD, c, 64)
		guard := bytes.Repeat([]byte{0xEE}, 4096+2*1024)
		mem := guard[1024:5120:5120]
		mr, err := rc.pd[1].regMR(mem, testVA, allFlag, 0x1234)
		if err != nil {
			t.Fatal(err)
		}
		if uc.qp[1].init.PD = rc.pd[1]; mr.RKey != 0x1234 {
			t.Fatal(mr.RKey)
		}
		bufs := bytes.Repeat([]byte{0xEE}, 3*512)
		for i, q := range []*QP{rc.qp[1], uc.qp[1], ud.qp[1]} {
			if err := q.PostRecv(&RecvWR{Buf: bufs[i*512 : i*512+300 : i*512+300]}); err != nil {
				t.Fatal(err)
			}
		}
		dst := bytes.Repeat([]byte{0xEE}, 600)
		for _, w := range []SendWR{
			{Op: OpWrite, SGL: [][]byte{make([]byte, 600)}},
			{Op: OpRead, SGL: [][]byte{dst[100:200:200], dst[300:500:500]}},
			{Op: OpFetchAdd, SGL: [][]byte{dst[:8:8]}},
		} {
			w.Signaled = true
			if err := rc.qp[1].PostSend(&w); err != nil {
				t.Fatal(err)
			}
		}
		n.Output(1, &l.batch)
		if l.batch.Len() != 5 {
			t.Fatalf("%d frames of 5 sent", l.batch.Len())
		}
		l.batch.PutAll()
		now := clock.Time(1)
		for len(in) >= 2 {
			size := int(binary.BigEndian.Uint16(in)) & 0x7FF
			in = in[2:]
			size = min(size, len(in))
			b := l.pool.Get()
			if b == nil || !b.SetBytes(in[:size]) {
				t.Skip("input of more frames than the pool has slots")
			}
			in = in[size:]
			p := b.Bytes()
			var fr hdr.Frame
			if hdr.Parse(p, &fr) == hdr.IsRoCE && fr.Tags == 0 {
				copy(p, macB[:])
				if fr.Net == hdr.NetIPv4 {
					binary.BigEndian.PutUint16(p[fr.L3+10:], 0)
					binary.BigEndian.PutUint16(p[fr.L3+10:], ^sum16(p[fr.L3:fr.L4], 0))
				}
				hdr.SetICRC(p, &fr)
			}
			n.Input(now, b)
			now += 1000
			n.Tick(now)
			n.Output(now, &l.batch)
			for _, b := range l.batch.Bufs() {
				if hdr.Parse(b.Bytes(), &fr) == hdr.IsRoCE && hdr.ICRC(b.Bytes(), &fr) != hdr.StoredICRC(b.Bytes(), &fr) {
					t.Errorf("sent a wrong ICRC: %x", b.Bytes())
				}
			}
			l.batch.PutAll()
		}
		for _, untouched := range [][]byte{guard[:1024], guard[5120:], bufs[300:512], bufs[812:1024], bufs[1324:], dst[8:100], dst[200:300], dst[500:]} {
			if len(bytes.Trim(untouched, "\xEE")) != 0 {
				t.Fatal("memory outside of regions and buffers was changed")
			}
		}
		l.conserved()
	})
}

// fuzzSeeds are frames that get far: one request of every kind, answers to the requests under way, and what
// the NIC itself answers.
func fuzzSeeds(f *testing.F) [][]byte {
	l := newLink(f, Config{}, false, 1)
	c := quick()
	rc, uc, ud := l.pair(TypeRC, c, 64), l.pair(TypeUC, c, 64), l.pair(TypeUD, c, 64)
	var all [][]byte
	seed := func(q *QP, side int, ops ...hdr.Opcode) {
		var s []byte
		for i, op := range ops {
			b := l.pool.Get()
			n := 0
			if op.Has(hdr.MayCarry) {
				n = 8
				if op.Any(hdr.IsFirst | hdr.IsMiddle) {
					n = 256
				}
			}
			psn := uint32(100 + i)
			if op.Has(hdr.IsResponse) {
				psn = 3185 + uint32(i)
			}
			p, body := q.begin(b, op, psn, int(op.Info().Len), n)
			switch {
			case op.Info().Ext&hdr.HasDETH != 0:
				hdr.DETH(body).SetQKey(0x1234)
				q.tmpl.bth(p).SetDestQP(ud.qp[1].QPN)
				copy(p[30:], []byte{10, 0, 0, 2})
			case op.Info().Ext&hdr.HasRETH != 0 || op.Has(hdr.IsAtomic):
				h := hdr.RETH(body)
				h.SetVA(testVA + 8)
				h.SetRKey(0x1234)
				if op.Info().Ext&hdr.HasRETH != 0 {
					h.SetDMALength(uint32(max(n, 8)))
					if op.Has(hdr.IsFirst) {
						h.SetDMALength(256 + 256 + 8)
					}
				}
			case op.Info().Ext&hdr.HasAETH != 0:
				hdr.AETH(body).SetSyndrome(hdr.SynACKUnlimited)
			}
			q.tmpl.bth(p).SetAckReq(true)
			q.finish(p)
			s = binary.BigEndian.AppendUint16(s, uint16(len(p)))
			s = append(s, p...)
			b.Put()
		}
		all = append(all, s)
	}
	r := rc.qp[0]
	seed(r, 0, hdr.WriteOnly, hdr.ReadRequest, hdr.CompareSwap, hdr.FetchAdd, hdr.MaskedCompSwap, hdr.SendOnlyImm)
	seed(r, 0, hdr.WriteFirst, hdr.WriteMiddle, hdr.WriteLast)
	seed(r, 0, hdr.SendFirst, hdr.SendLast)
	seed(r, 0, hdr.SendOnlyInv)
	seed(r, 0, hdr.WriteOnlyImm, hdr.WriteOnly, hdr.Flush)
	seed(r, 0, hdr.Acknowledge, hdr.Acknowledge, hdr.Acknowledge, hdr.ReadRespFirst, hdr.AtomicAck)
	seed(r, 0, hdr.ReadRespOnly, hdr.AtomicAck)
	seed(uc.qp[0], 0, hdr.WriteFirst, hdr.WriteMiddle, hdr.WriteLast, hdr.SendOnly)
	seed(ud.qp[0], 0, hdr.SendOnlyImm&0x1F|hdr.UD, hdr.UDSendOnly)
	arp := append([]byte{0, 42, 255, 255, 255, 255, 255, 255, 2, 9, 9, 9, 9, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 9, 9, 9, 9, 9, 10, 0, 0, 9}, make([]byte, 6)...)
	return append(all, append(arp, 10, 0, 0, 2))
}

// TestNoAllocation: the packet path does not allocate.
func TestNoAllocation(t *testing.T) {
	for name, round := range rounds(t, 1024) {
		round()
		if n := testing.AllocsPerRun(100, round); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	// Drops and losses.
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, quick(), 4096)
	buf := make([]byte, 600)
	w := SendWR{Op: OpWrite, SGL: [][]byte{buf}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true}
	lossy := func() {
		l.faults = faults{drop: 100, dup: 100, badICRC: 100, corrupt: 50}
		p.forever()
		if err := p.qp[0].PostSend(&w); err != nil {
			t.Fatal(err)
		}
		var c [1]WC
		for p.cq[0].Poll(c[:]) == 0 {
			l.step()
		}
		if c[0].Status != Success {
			t.Fatalf("%+v", c[0])
		}
	}
	for range 200 {
		lossy() // the link's own list grows
	}
	if n := testing.AllocsPerRun(200, lossy); n != 0 {
		t.Errorf("over a lossy link: %v allocations", n)
	}
	if s := l.nic[1].Stats(); s.DropBadICRC == 0 || s.Duplicates == 0 || l.nic[0].Stats().Timeouts == 0 {
		t.Errorf("the losses did not happen: %+v", s)
	}
}

// rounds are round trips between two NICs without a link between them.
func rounds(tb testing.TB, mtu int) map[string]func() {
	l := newLink(tb, Config{}, false, 1)
	c := DefaultConn()
	c.PathMTU = mtu
	p := l.pair(TypeRC, c, 1<<16)
	a, b := l.nic[0], l.nic[1]
	now := clock.Time(1)
	cross := func() {
		for {
			now += 100
			a.Output(now, &l.batch)
			for _, x := range l.batch.Bufs() {
				b.Input(now, x)
			}
			k := l.batch.Len()
			l.batch.Reset()
			b.Output(now, &l.batch)
			for _, x := range l.batch.Bufs() {
				a.Input(now, x)
			}
			k += l.batch.Len()
			l.batch.Reset()
			if k == 0 {
				return
			}
		}
	}
	var wc [64]WC
	run := func(w SendWR, n int) func() {
		w.RemoteAddr, w.RKey, w.Signaled = testVA, p.mr[1].RKey, true
		return func() {
			for range n {
				if w.Op == OpSend {
					if err := p.qp[1].PostRecv(&RecvWR{Buf: p.mem[1][1024:2048]}); err != nil {
						tb.Fatal(err)
					}
				}
				if err := p.qp[0].PostSend(&w); err != nil {
					tb.Fatal(err)
				}
			}
			cross()
			if k := p.cq[0].Poll(wc[:]); k != n || wc[0].Status != Success {
				tb.Fatalf("%d completions, %+v", k, wc[0])
			}
			p.cq[1].Poll(wc[:])
		}
	}
	sgl := func(n int) [][]byte { return [][]byte{make([]byte, n)} }
	return map[string]func(){
		"write-128B":    run(SendWR{Op: OpWrite, SGL: sgl(128)}, 1),
		"write-4096B":   run(SendWR{Op: OpWrite, SGL: sgl(4096)}, 1),
		"read-128B":     run(SendWR{Op: OpRead, SGL: sgl(128)}, 1),
		"read-4096B":    run(SendWR{Op: OpRead, SGL: sgl(4096)}, 1),
		"cas":           run(SendWR{Op: OpCompareSwap, SGL: sgl(8)}, 1),
		"send-128B":     run(SendWR{Op: OpSend, SGL: sgl(128)}, 1),
		"write-128B-32": run(SendWR{Op: OpWrite, SGL: sgl(128)}, 32),
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	all := rounds(b, 1024)
	for _, name := range []string{"write-128B", "read-128B", "cas", "send-128B", "write-4096B", "read-4096B", "write-128B-32"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				all[name]()
			}
		})
	}
}
