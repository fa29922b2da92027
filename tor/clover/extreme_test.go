package clover

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// Clients, and strangers, ask for what lies at the ends of what a field can say, and the server answers as it likes. Nothing ends the process,
// and nothing keeps it for ever. QUILLON_EXTREMES says how many runs there are.
func TestExtremes(t *testing.T) {
	runs, first := 60, 0
	if n, err := strconv.Atoi(os.Getenv("QUILLON_EXTREMES")); err == nil {
		runs = n
	}
	if n, err := strconv.Atoi(os.Getenv("QUILLON_FIRST")); err == nil {
		first = n
	}
	for seed := first; seed < first+runs; seed++ {
		if extremes(t, uint64(seed)); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func extremes(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0x65787472))
	of := func(from ...uint64) uint64 { return from[rng.IntN(len(from))] }
	r := steered(t, graph.Args{"mode": []string{"write", "read-write"}[rng.IntN(2)], "keys": "4", "addrs": "16", "conns": []string{"4", "8"}[rng.IntN(2)], "repair": "1ms", "settle": "1us"})
	psns := map[uint32]uint32{0x10: 110, 0x20: 109, 0x99: 7}
	va := func() uint64 {
		return of(0, 1, 7, 8, 15, 16, 0x10000, 0x900000, 0x900000, 0x900080, 0x800000, 1<<63, 1<<32-16, ^uint64(0), ^uint64(0)-7, ^uint64(0)-15, ^uint64(0)-127, ^uint64(0)-4095) + of(0, 0, 0, 8, 128)
	}
	for range 200 {
		qpn := uint32(of(0x10, 0x20, 0x99))
		psn := psns[qpn] + uint32(of(0, 0, 0, 0, 0, 1, 1<<16, 1<<22, 1<<23-1, 1<<23, ^uint64(0), 1<<24-1<<16))
		ln := uint32(of(0, 1, 8, 16, 127, 128, 128, 128, 256, 257, 4096, 8192, 1<<24, 1<<31-1, 1<<31, 1<<31+1, 1<<32-1))
		key := uint32(of(uint64(r.rkey), uint64(r.rkey), uint64(r.rkey), 0, 1<<32-1))
		payload := make([]byte, of(0, 4, 8, 16, 24, 128, 256, 1024))
		if len(payload) >= wire.HeaderLen+wire.KeyLen {
			wireEntry(payload, of(5, 5, 6, 7, 1000))
		}
		op := []hdr.Opcode{hdr.WriteOnly, hdr.WriteOnly, hdr.WriteFirst, hdr.WriteMiddle, hdr.WriteLast, hdr.ReadRequest, hdr.ReadRequest, hdr.CompareSwap, hdr.CompareSwap, hdr.CompareSwap, hdr.FetchAdd, hdr.MaskedCompSwap,
			hdr.MaskedFetchAdd, hdr.SendOnly, hdr.SendFirst, hdr.SendLast, hdr.SendOnlyInv, hdr.WriteOnlyImm, hdr.AtomicWrite, hdr.Flush, hdr.WriteLastImm, hdr.UC | hdr.WriteOnly}[rng.IntN(22)]
		ext := make([]byte, op.Info().Len)
		switch {
		case op == hdr.CompareSwap || op == hdr.FetchAdd:
			next := uint8(of(0, 1, 1, 1, 255))
			ext = atomicETH(va(), key, of(0, ^uint64(0), r.swap(uint32(of(0x9000, 0x9001, 0x9001, 0x9002, 0, 1<<27-1)), next, 1)), of(0, 1, ^uint64(0), uint64(wire.Fresh(1)), uint64(wire.Fresh(1))))
			payload = nil
		}
		if op.Info().Ext&hdr.HasRETH != 0 && len(ext) >= hdr.RETHLen {
			if rng.IntN(2) == 0 && payload != nil {
				ln = uint32(len(payload))
			}
			at := 0
			if op == hdr.Flush {
				at = hdr.FETHLen
			}
			copy(ext[at:], reth(va(), key, ln))
		} else if op.Has(hdr.IsAtomic) && len(ext) > hdr.AtomicETHLen {
			binary.BigEndian.PutUint64(ext, va())
		}
		if op == hdr.AtomicWrite {
			payload = make([]byte, 8)
		}
		if psn == psns[qpn] {
			psns[qpn]++
			if op == hdr.ReadRequest && ln > 0 && ln <= 1<<31 {
				psns[qpn] += (ln - 1) / 1024
			}
			psns[qpn] &= hdr.PSNMask
		}
		if !op.Has(hdr.MayCarry) {
			payload = nil
		}
		r.to(qpn, psn&hdr.PSNMask, op, ext, payload)
		if rng.IntN(8) > 0 {
			syn := hdr.Syndrome(of(0x1F, 0x1F, 0x1F, 0x1F, 0, 0x20, 0x60, 0x61, 0x62, 0x63))
			code := []hdr.Opcode{hdr.Acknowledge, hdr.Acknowledge, hdr.AtomicAck, hdr.AtomicAck, hdr.ReadRespOnly, hdr.ReadRespFirst, hdr.ReadRespMiddle, hdr.ReadRespLast}[rng.IntN(8)]
			r.msn[qpn] = (r.msn[qpn] + uint32(of(0, 1, 1, 1))) & 0xFFFFFF
			data := payload
			if !code.Has(hdr.IsReadResp) {
				data = nil
			}
			if code != hdr.ReadRespMiddle {
				r.from(qpn, (psn+uint32(of(0, 0, 0, 1, ^uint64(0), 1<<23)))&hdr.PSNMask, code, syn, of(0, uint64(wire.Fresh(1)), ^uint64(0)), data)
			}
		}
		if rng.IntN(20) == 0 {
			r.Advance(time.Duration(of(1e3, 1e6, 1e8, 1e9)))
		}
	}
}
