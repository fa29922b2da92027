package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// All are all benchmarks, in the order in which they run.
func All() []Benchmark {
	bs := []Benchmark{
		{"parse", "find the headers of RC WRITEs of 128 bytes", func(clk clock.Clock) (*contest, error) {
			return perFrame(clk, 128, func(b []byte, f *hdr.Frame) { hdr.Parse(b, f) })
		}},
	}
	for _, n := range []int{64, 256, 1024, 4096} {
		bs = append(bs,
			Benchmark{fmt.Sprintf("icrc-full-%d", n), fmt.Sprintf("compute the ICRC of RC WRITEs of %d bytes", n), func(clk clock.Clock) (*contest, error) {
				return perFrame(clk, n, hdr.SetICRC)
			}},
			Benchmark{fmt.Sprintf("icrc-patch-%d", n), fmt.Sprintf("bring the ICRC up to date after 8 bytes changed in RC WRITEs of %d bytes", n), func(clk clock.Clock) (*contest, error) {
				return perFrame(clk, n, func(b []byte, f *hdr.Frame) {
					at := b[f.BTH+hdr.BTHLen:]
					var old [8]byte
					copy(old[:], at)
					binary.BigEndian.PutUint64(at, binary.BigEndian.Uint64(at)+1)
					hdr.PatchICRC(b, f, int(f.BTH)+hdr.BTHLen, old[:])
				})
			}},
		)
	}
	steer, swordbox := steerBenchmark(), swordboxBenchmark()
	bs = append(bs, breathBenchmark(),
		steer, price(steer, recordMix, steerBatches, "clover-steer", steerArgs()),
		swordbox, price(swordbox, recordLocks, lockBatches, "swordbox", swordboxArgs()),
		snicBenchmark(), snicChainBenchmark())
	bs = append(bs, snicModelledBenchmarks()...)
	return slices.Concat(bs, twoBenchmarks(), boardBenchmarks(), oneBenchmarks(), vethBenchmarks(), p4VethBenchmarks(), flowBenchmarks())
}

// Missing reports that the environment lacks what a benchmark needs.
func Missing(err error) bool { return errors.Is(err, port.ErrNotSupported) }

// writeFrame is an RC WRITE ONLY of n bytes payload, with a right ICRC.
func writeFrame(n int) []byte {
	const l3, l4, bth = 14, 14 + 20, 14 + 20 + 8
	b := make([]byte, bth+hdr.BTHLen+hdr.RETHLen+n+hdr.ICRCLen)
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: [6]byte{2, 0, 0, 0, 0, 2}, Src: [6]byte{2, 0, 0, 0, 0, 1}, EtherType: hdr.EtherIPv4})
	hdr.IPv4(b[l3:]).Encode(&hdr.IPv4Fields{
		TotalLen: uint16(len(b) - l3), DF: true, TTL: 64, Protocol: 17,
		Src: netip.AddrFrom4([4]byte{10, 77, 0, 1}), Dst: netip.AddrFrom4([4]byte{10, 77, 0, 2}),
	})
	hdr.UDP(b[l4:]).Encode(&hdr.UDPFields{SrcPort: 0xC000, DstPort: hdr.RoCEv2Port, Len: uint16(len(b) - l4)})
	hdr.BTH(b[bth:]).Encode(&hdr.BTHFields{OpCode: hdr.WriteOnly, Ack: true, PKey: 0xFFFF, DestQP: 17, PSN: 1000})
	reth := hdr.RETH(b[bth+hdr.BTHLen:])
	reth.SetVA(0x7F0000000000)
	reth.SetRKey(0x1234)
	reth.SetDMALength(uint32(n))
	var f hdr.Frame
	hdr.Parse(b, &f)
	hdr.SetICRC(b, &f)
	return b
}

// perFrame measures f on a batch of WRITEs of n bytes; beside it the same
// batch crosses a wire in memory.
func perFrame(clk clock.Clock, n int, f func(b []byte, f *hdr.Frame)) (*contest, error) {
	frame := writeFrame(n)
	pool, err := packet.NewPool(packet.MaxBatch, 8192, nil)
	if err != nil {
		return nil, err
	}
	var batch packet.Batch
	var parsed [packet.MaxBatch]hdr.Frame
	for i := range parsed {
		b := pool.Get()
		b.SetBytes(frame)
		if why := hdr.Parse(b.Bytes(), &parsed[i]); why != hdr.IsRoCE {
			return nil, fmt.Errorf("the test frame does not parse: %v", why)
		}
		batch.Add(b)
	}
	a, z := mem.NewWire("a", "z", pool, packet.MaxBatch, clk)
	return &contest{
		bytes: float64(len(frame)),
		work: repeat(func() error {
			for i, b := range batch.Bufs() {
				f(b.Bytes(), &parsed[i])
			}
			return nil
		}),
		pass:  repeat(crossing(&batch, a, z)),
		close: func() {},
	}, nil
}

// repeat is a run of f, which moves a full batch each time.
func repeat(f func() error) Run {
	const batches = 2000
	timed := func() (int, error) {
		for range batches {
			if err := f(); err != nil {
				return 0, err
			}
		}
		return batches * packet.MaxBatch, nil
	}
	return func() (func() (int, error), error) { return timed, nil }
}

// crossing sends a batch over a wire and receives it.
func crossing(b *packet.Batch, from, to port.Port) func() error {
	return func() error {
		if _, err := from.Tx(b); err != nil {
			return err
		}
		_, err := to.Rx(b)
		return err
	}
}

// Between is the graph of one two-sided app between two in-memory ports.
func Between(kind string, args graph.Args) *graph.Spec {
	a, b := "a", "b"
	if kind == "snic" {
		a, b = "p0", "p1"
	}
	return &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: "mem"}, "pb": {Kind: "mem"}},
		Apps:  map[string]graph.AppSpec{"nf": {Kind: kind, Args: args}},
		Links: []string{"pa.out -> nf." + a, "nf." + b + " -> pb.in", "pb.out -> nf." + b, "nf." + a + " -> pa.in"},
	}
}

// breathBenchmark is the engine's own cost: an app that does nothing, beside
// the same frames over a wire without a graph.
func breathBenchmark() Benchmark {
	return Benchmark{"breath", "one app that passes everything on, in a graph in memory", func(clk clock.Clock) (*contest, error) {
		frame := writeFrame(128)
		pool, err := packet.NewPool(packet.MaxBatch, 2048, nil)
		if err != nil {
			return nil, err
		}
		outer, inner := mem.NewWire("outer", "pa", pool, packet.MaxBatch, clk)
		far, farInner := mem.NewWire("far", "pb", pool, packet.MaxBatch, clk)
		inst, err := graph.New(graph.Config{
			Spec: Between("wire", nil), Kinds: registry.Kinds(),
			Ports: map[string][]port.Port{"pa": {inner}, "pb": {farInner}},
		})
		if err != nil {
			return nil, err
		}
		var batch packet.Batch
		for !batch.Full() {
			b := pool.Get()
			b.SetBytes(frame)
			batch.Add(b)
		}
		x, y := mem.NewWire("x", "y", pool, packet.MaxBatch, clk)
		return &contest{
			bytes: float64(len(frame)),
			work: repeat(func() error {
				if _, err := outer.Tx(&batch); err != nil {
					return err
				}
				if _, err := inst.Step(clk.Now()); err != nil {
					return err
				}
				_, err := far.Rx(&batch)
				return err
			}),
			pass:  repeat(crossing(&batch, x, y)),
			close: func() { _ = inst.Close() },
		}, nil
	}}
}
