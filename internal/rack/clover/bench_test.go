package clover

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// An operation does not allocate on any machine. The caches are warm, and the writers' journals, which grow,
// allocate rarely.
func TestOperationsAllocateNothing(t *testing.T) {
	for i, gc := range []float64{0.01, 1, 0.01, 1} {
		cfg := hot(ycsb.A)
		cfg.Metadata.GCBelow = gc
		if cfg.Search = Search(i / 2); cfg.Search == SearchLibrary {
			cfg.Work = Work{Read: 500 * time.Nanosecond, Write: 2 * time.Microsecond}
		}
		cfg.Entries = 1 << 13
		r := newRig(t, cfg, 2, 1)
		r.cl.Begin()
		r.cl.Start(Load{})
		var target uint64
		reached := func() bool { return r.cl.Live().Ops >= target }
		run := func() {
			target += 50
			if err := r.sim.Run(reached, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		for range 60 {
			run()
		}
		if n := testing.AllocsPerRun(60, run); n != 0 {
			t.Errorf("%v, GC below %v: %v allocations in 50 operations", cfg.Search, gc, n)
		}
	}
}

// BenchmarkOperation is one operation of workload A on 1,024 keys, with all machines and the bridge, in
// memory on one core. packets-op is the number of packets that the memory node received and sent for an
// operation.
func BenchmarkOperation(b *testing.B) {
	for _, mix := range []ycsb.Mix{ycsb.A, ycsb.C, ycsb.W} {
		b.Run(mix.Name, func(b *testing.B) {
			cfg := Config{Mix: mix, Theta: ycsb.DefaultTheta, Sessions: 8, Seed: 1, Entries: 1 << 18}
			r := newRig(b, cfg, 3, 1)
			r.sim.Workers = append(r.cl.Workers(), r.sim.Workers[len(r.cl.Workers())])
			r.cl.Start(Load{})
			target := uint64(20_000)
			reached := func() bool { return r.cl.Live().Ops >= target }
			if err := r.sim.Run(reached, time.Hour); err != nil {
				b.Fatal(err)
			}
			p := r.cl.nodes[0].Port()
			before := p.Stats()
			ops := r.cl.Live().Ops
			b.ReportAllocs()
			b.ResetTimer()
			target += uint64(b.N)
			if err := r.sim.Run(reached, 1000*time.Hour); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			after := p.Stats()
			n := float64(r.cl.Live().Ops - ops)
			b.ReportMetric(float64(after.RxPackets+after.TxPackets-before.RxPackets-before.TxPackets)/n, "packets/op")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/true-op")
		})
	}
}

// liveWire joins two goroutines. The live rack of the tests needs it, since the wires of mem are for one
// goroutine.
type liveWire struct {
	name    string
	pool    *packet.Pool
	in, out chan []byte
	stash   []byte
}

func (w *liveWire) Name() string       { return w.name }
func (w *liveWire) Pool() *packet.Pool { return w.pool }
func (w *liveWire) Stats() port.Stats  { return port.Stats{} }
func (w *liveWire) Close() error       { return nil }

func (w *liveWire) Rx(b *packet.Batch) (int, error) {
	n := 0
	for !b.Full() {
		f := w.stash
		w.stash = nil
		if f == nil {
			select {
			case f = <-w.in:
			default:
				return n, nil
			}
		}
		x := w.pool.Get()
		if x == nil {
			w.stash = f
			return n, nil
		}
		x.SetBytes(f)
		b.Add(x)
		n++
	}
	return n, nil
}

func (w *liveWire) Tx(b *packet.Batch) (int, error) {
	n := 0
	for _, x := range b.Bufs() {
		select {
		case w.out <- append([]byte(nil), x.Bytes()...):
			x.Put()
			n++
			continue
		default:
		}
		break
	}
	b.Shift(n)
	return n, nil
}

func (w *liveWire) Wait(ctx context.Context, d clock.Duration) error {
	if w.stash != nil {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case w.stash = <-w.in:
	case <-t.C:
	case <-ctx.Done():
	}
	return nil
}

// Live: every machine runs on a goroutine of its own, under the wall clock.
func TestLive(t *testing.T) {
	var ends []port.Port
	id := byte(0)
	machine := func(name string) Machine {
		id++
		var pools [2]*packet.Pool
		for i := range pools {
			pools[i], _ = packet.NewPool(1024, 2048, nil)
		}
		up, down := make(chan []byte, 256), make(chan []byte, 256)
		ends = append(ends, &liveWire{name: name, pool: pools[0], in: up, out: down})
		return Machine{Name: name, MAC: [6]byte{2, 0, 0, 0, 0, id}, IP: netip.AddrFrom16([16]byte{0xFD, 15: id}),
			Port: &liveWire{name: name, pool: pools[1], in: down, out: up}}
	}
	rack := Rack{Compute: []Machine{machine("c0"), machine("c1")}, Memory: []Machine{machine("m0")}, Metadata: machine("ms")}
	cl, err := New(hot(ycsb.A), rack)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	clk := clock.NewWall()
	ended := make(chan error, 2)
	inner, stop := context.WithCancel(ctx)
	go func() { ended <- host.Spin(inner, clk, host.NewBridge(ends...)) }()
	go func() { ended <- cl.Run(inner, clk) }()
	until := func(so func() bool) {
		for !so() {
			if ctx.Err() != nil {
				t.Fatal(context.Cause(ctx))
			}
			time.Sleep(time.Millisecond)
		}
	}
	for _, mix := range []ycsb.Mix{ycsb.C, ycsb.A} {
		w := cl.Begin()
		cl.Start(Load{Mix: &mix, MaxOps: 250})
		until(cl.Stopped)
		w.EndSoon()
		until(w.Ended)
		m := w.Measured()
		if m.Ops != 2*4*250 || m.Elapsed <= 0 || m.Read.TotalCount()+m.Write.TotalCount() != int64(m.Ops) {
			t.Errorf("%+v", m)
		}
		if (m.Writes > 0) != (mix.Writes > 0) {
			t.Errorf("mix %s wrote %d times", mix.Name, m.Writes)
		}
	}
	// A load without a limit ends by Stop.
	cl.Start(Load{})
	cl.StopSoon()
	until(cl.Stopped)
	stop()
	for range 2 {
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if err := cl.Err(); err != nil {
		t.Error(err)
	}
	if v := cl.Integrity(); !v.OK() || v.AckedWrites == 0 {
		t.Errorf("%+v", v)
	}
}
