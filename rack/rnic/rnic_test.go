package rnic

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*7 + seed + byte(i>>8)
	}
}

func TestVerbs(t *testing.T) {
	for _, profile := range []Profile{RXE, ConnectX} {
		for _, v6 := range []bool{false, true} {
			for _, size := range []int{0, 1, 3, 8, 255, 256, 257, 1024, 5003} {
				l := newLink(t, Config{Profile: profile}, v6, 1)
				l.checkFrames()
				p := l.pair(TypeRC, Conn{PathMTU: 256, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12, SQPSN: 0xFFFFFE, RQPSN: 5}, 8192)
				src := make([]byte, size)
				fill(src, 3)
				cut := size / 3
				sgl := [][]byte{src[:cut], nil, src[cut:]}
				key := p.mr[1].RKey

				p.post(&SendWR{ID: 1, Op: OpWrite, SGL: sgl, RemoteAddr: testVA + 16, RKey: key, Signaled: true})
				if w := p.one(0); w.Status != Success || w.ID != 1 || int(w.ByteLen) != size {
					t.Fatalf("write of %d: %+v", size, w)
				}
				if !bytes.Equal(p.mem[1][16:16+size], src) {
					t.Fatalf("write of %d arrived wrong", size)
				}

				dst := make([]byte, size)
				p.post(&SendWR{ID: 2, Op: OpRead, SGL: [][]byte{dst[:cut], dst[cut:]}, RemoteAddr: testVA + 16, RKey: key, Signaled: true})
				if w := p.one(0); w.Status != Success || w.Op != OpRead {
					t.Fatalf("read of %d: %+v", size, w)
				}
				if !bytes.Equal(dst, src) {
					t.Fatalf("read of %d arrived wrong", size)
				}

				for _, op := range []Op{OpSend, OpSendImm, OpWriteImm, OpSendInv} {
					inv, err := p.pd[1].FastRegMR(make([]byte, 8), 0, RemoteRead)
					if err != nil {
						t.Fatal(err)
					}
					w := &SendWR{ID: 3, Op: op, SGL: sgl, RemoteAddr: testVA, RKey: key, Imm: 0xC0FFEE, Signaled: true}
					want := WC{ID: 9, QPN: p.qp[1].QPN, Op: OpRecv, ByteLen: uint32(size)}
					switch op {
					case OpSendImm:
						want.Op, want.Imm = OpRecvImm, w.Imm
					case OpWriteImm:
						want.Op, want.Imm = OpRecvWriteImm, w.Imm
					case OpSendInv:
						w.RKey, want.Imm = inv.RKey, inv.RKey
					}
					buf := make([]byte, size)
					if err := p.qp[1].PostRecv(&RecvWR{ID: 9, Buf: buf}); err != nil {
						t.Fatal(err)
					}
					p.post(w)
					if w := p.one(0); w.Status != Success || w.Op != op {
						t.Fatalf("op %d of %d: %+v", op, size, w)
					}
					if got := p.one(1); got != want {
						t.Fatalf("op %d of %d: received %+v, want %+v", op, size, got, want)
					}
					if op == OpWriteImm {
						buf = p.mem[1][:size]
					}
					if !bytes.Equal(buf, src) {
						t.Fatalf("op %d of %d arrived wrong", op, size)
					}
					if (op == OpSendInv) == inv.Valid() {
						t.Fatalf("op %d: region valid %v", op, inv.Valid())
					}
					inv.Dereg()
				}

				word := p.mem[1][8192-8:]
				binary.LittleEndian.PutUint64(word, 0x1122334455667788)
				va := uint64(testVA + 8192 - 8)
				old := make([]byte, 8)
				for _, c := range []struct {
					w            SendWR
					before, then uint64
				}{
					{SendWR{Op: OpCompareSwap, Compare: 1, Swap: 2}, 0x1122334455667788, 0x1122334455667788},
					{SendWR{Op: OpCompareSwap, Compare: 0x1122334455667788, Swap: 0xFFFFFFFFFFFFFFFE}, 0x1122334455667788, 0xFFFFFFFFFFFFFFFE},
					{SendWR{Op: OpFetchAdd, Swap: 5}, 0xFFFFFFFFFFFFFFFE, 3},
					{SendWR{Op: OpMaskedCompareSwap, Compare: 0xF0, CompareMask: 0xF, Swap: 0xFFFF, SwapMask: 0xF0}, 3, 3},
					{SendWR{Op: OpMaskedCompareSwap, Compare: 0xF3, CompareMask: 0xF, Swap: 0xFFFF, SwapMask: 0xF0}, 3, 0xF3},
				} {
					w := c.w
					w.SGL, w.RemoteAddr, w.RKey, w.Signaled = [][]byte{old}, va, key, true
					p.post(&w)
					if wc := p.one(0); wc.Status != Success || wc.ByteLen != 8 {
						t.Fatalf("%+v: %+v", c, wc)
					}
					if o, n := binary.LittleEndian.Uint64(old), binary.LittleEndian.Uint64(word); o != c.before || n != c.then {
						t.Fatalf("%+v: original %#x, then %#x", c, o, n)
					}
				}
				l.conserved()
				if s := l.nic[0].Stats(); s.Retransmitted != 0 || s.Timeouts != 0 {
					t.Fatalf("retransmissions on a clean link: %+v", s)
				}
			}
		}
	}
}
