package sim

import (
	"cmp"
	"context"
	"reflect"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/graph"
	tor "github.com/quillon/quillon/tor/clover"
)

func clovers(t *testing.T, c CloverConfig) CloverMeasured {
	t.Helper()
	c.Warmup = cmp.Or(c.Warmup, 300*time.Microsecond)
	c.Measure = cmp.Or(c.Measure, 500*time.Microsecond)
	c.Zipf = cmp.Or(c.Zipf, 0.99)
	m, err := Clover(context.Background(), c)
	if err != nil || m.Ops == 0 || m.Errors > 0 {
		t.Fatalf("%+v: %+v: %v", c, m, err)
	}
	if v := m.Integrity; c.Check && (v == nil || !v.OK() || v.AckedWrites == 0) {
		t.Fatalf("%+v", v)
	}
	return m
}

func TestCloverReproducible(t *testing.T) {
	c := CloverConfig{Hosts: 3, ThreadsPerHost: 4, WriteShare: 0.5, Mode: tor.ReadWrite, Seed: 7}
	a, b := clovers(t, c), clovers(t, c)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("equal seeds:\n%+v\n%+v", a, b)
	}
	c.Seed++
	if x := clovers(t, c); x.Events == a.Events && x.Ops == a.Ops {
		t.Errorf("another seed gives the same run: %+v", x)
	}
}

// Steering pays, and loses nothing.
func TestCloverModes(t *testing.T) {
	m := map[tor.Mode]CloverMeasured{}
	for _, mode := range []tor.Mode{tor.Off, tor.Write, tor.ReadWrite} {
		m[mode] = clovers(t, CloverConfig{Hosts: 7, ThreadsPerHost: 8, WriteShare: 0.5, Mode: mode, Check: true})
	}
	off, write, both := m[tor.Off], m[tor.Write], m[tor.ReadWrite]
	if off.Steered != 0 || write.Steered == 0 || both.Steered <= write.Steered {
		t.Errorf("steered: %d, %d, %d", off.Steered, write.Steered, both.Steered)
	}
	if write.OpsPerSecond < 1.3*off.OpsPerSecond || both.OpsPerSecond < 1.5*write.OpsPerSecond {
		t.Errorf("operations/s: %.3g, %.3g, %.3g", off.OpsPerSecond, write.OpsPerSecond, both.OpsPerSecond)
	}
	if both.FirstTry < 0.8 || off.FirstTry > 0.5 || write.WriteFirstTry < 0.95 {
		t.Errorf("first try: %.3f, %.3f (writes), %.3f", off.FirstTry, write.WriteFirstTry, both.FirstTry)
	}
	if both.PacketsPerOp > 5.5 || off.PacketsPerOp < 10 {
		t.Errorf("packets/operation: %.2f, %.2f", off.PacketsPerOp, both.PacketsPerOp)
	}
}

// However many threads a host has, all of their connections are followed soon, though they
// begin at once and with the same PSN: hardly a write goes where its client sent it.
func TestCloverManyThreads(t *testing.T) {
	for _, threads := range []int{2, 24, 56} {
		if testing.Short() && threads == 24 {
			continue
		}
		c := CloverConfig{Hosts: 7, ThreadsPerHost: threads, WriteShare: 1, Mode: tor.Write, Seed: 1, Warmup: 2 * time.Millisecond}
		if threads <= 32 {
			c.QPs = threads
		}
		if m := clovers(t, c); float64(m.Steered) < 0.8*float64(m.Writes) {
			t.Errorf("%d threads a host: %d requests steered for %d writes", threads, m.Steered, m.Writes)
		}
	}
}

// Reads alone end at the line rate of the memory node's link: an entry and a
// shortcut an operation are 214 and 94 bytes on the wire.
// Ten thousand clients find a metadata server that serves them.
func TestCloverTenThousand(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds")
	}
	m, err := Clover(context.Background(), CloverConfig{Hosts: 64, ThreadsPerHost: 160, Search: clover.SearchLibrary, Warmup: 500 * time.Microsecond, Measure: 200 * time.Microsecond})
	if err != nil || m.Ops < 1000 || m.Errors > 0 {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestCloverReadsEndAtLineRate(t *testing.T) {
	m := clovers(t, CloverConfig{ThreadsPerHost: 40, Warmup: time.Millisecond})
	if line := 100e9 / 8 / (214 + 94); m.OpsPerSecond < 0.97*line || m.OpsPerSecond > 1.001*line {
		t.Errorf("%.4g operations/s, line rate allows %.4g", m.OpsPerSecond, line)
	}
	if m.MemoryUp < 0.98 || m.PacketsPerOp > 4.1 {
		t.Errorf("%+v", m)
	}
}

// With some keys steered the result lies between none and all.
func TestCloverSteeredKeys(t *testing.T) {
	run := func(mode tor.Mode, keys int) float64 {
		return clovers(t, CloverConfig{Hosts: 3, ThreadsPerHost: 8, WriteShare: 0.5, Mode: mode, SteeredKeys: keys}).OpsPerSecond
	}
	none, some, all := run(tor.Off, 0), run(tor.ReadWrite, 8), run(tor.ReadWrite, 0)
	if !(none < some && some < all) {
		t.Errorf("operations/s: %.3g with no key steered, %.3g with 8, %.3g with all", none, some, all)
	}
}

// Frames are lost, doubled, late and damaged, the middlebox dies and comes
// back, the memory node is away for a while: no acknowledged write is lost.
func TestCloverUnderFaults(t *testing.T) {
	noise := Faults{Drop: 0.002, Duplicate: 0.002, Corrupt: 0.002, Reorder: 0.01, Late: 20 * time.Microsecond}
	for name, fault := range map[string]func(w *World, b *Box, memory *Machine, clients []*Machine){
		"frames": func(_ *World, _ *Box, memory *Machine, clients []*Machine) {
			memory.SetFaults(noise, noise)
			clients[0].SetFaults(noise, noise)
		},
		"middlebox": func(w *World, b *Box, memory *Machine, _ []*Machine) {
			memory.SetFaults(noise, noise)
			w.At(w.Now()+From(2*time.Millisecond), func() {
				if err := b.Kill(); err != nil {
					t.Error(err)
				}
			})
			w.At(w.Now()+From(3*time.Millisecond), func() {
				if err := b.Restart(graph.Args{"mode": "read-write", "keys": "64", "settle": "2ms"}); err != nil {
					t.Error(err)
				}
			})
		},
		"memory": func(w *World, _ *Box, memory *Machine, _ []*Machine) {
			w.At(w.Now()+From(2*time.Millisecond), memory.Kill)
			w.At(w.Now()+From(3*time.Millisecond), func() { memory.Restart(nil) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(3) {
				var box *Box
				var mem *Machine
				m := clovers(t, CloverConfig{
					Hosts: 3, ThreadsPerHost: 2, WriteShare: 0.5, Keys: 64, Mode: tor.ReadWrite, Seed: seed, Timeout: 6, Check: true,
					Measure: 8 * time.Millisecond, Args: graph.Args{"settle": "1ms", "repair": "5ms"},
					Faults: func(w *World, b *Box, memory *Machine, clients []*Machine) {
						box, mem = b, memory
						fault(w, b, memory, clients)
					},
				})
				up, down := mem.Links()
				switch name {
				case "frames":
					if up.Dropped == 0 || down.Corrupted == 0 || up.Duplicated == 0 || down.Delayed == 0 {
						t.Errorf("faults that did not happen: %+v, %+v", up, down)
					}
				case "middlebox":
					if box.Stats().Missed == 0 {
						t.Error("the middlebox missed nothing")
					}
				case "memory":
					if mem.Stats().Lost == 0 {
						t.Error("the memory node lost nothing")
					}
				}
				if m.Steered == 0 {
					t.Error("nothing was steered")
				}
			}
		})
	}
}

func TestCloverRefuses(t *testing.T) {
	for _, c := range []CloverConfig{
		{Hosts: -1}, {WriteShare: 2}, {Keys: -1}, {ThreadsPerHost: 1 << 20}, {Zipf: -1}, {ObjectSize: 100}, {Measure: -1}, {Timeout: 99},
		{Args: graph.Args{"mode": "sideways"}},
	} {
		if _, err := Clover(context.Background(), c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// Progress goes from 0 to 1 and never back.
func TestProgress(t *testing.T) {
	last := 0.0
	clovers(t, CloverConfig{Hosts: 1, Progress: func(done float64) {
		if done < last || done > 1 {
			t.Errorf("%v after %v", done, last)
		}
		last = done
	}})
	if last != 1 {
		t.Errorf("it ends at %v", last)
	}
}

// running is a rack of which the clients work.
func running(t testing.TB, c CloverConfig) *cloverRack {
	t.Helper()
	if err := c.defaults(); err != nil {
		t.Fatal(err)
	}
	r, err := c.rack(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	r.cl.Start(clover.Load{Mix: &ycsb.Mix{Writes: c.WriteShare}})
	r.Wake()
	if err := r.Run(r.Now() + Millisecond); err != nil {
		t.Fatal(err)
	}
	return r
}

// carried is how many frames have come out of cables.
func (r *cloverRack) carried() (n uint64) {
	for _, m := range r.all {
		up, down := m.Links()
		n += up.Frames + down.Frames
	}
	return n
}

// Reading, and steering reads, allocate nothing in the whole rack; writes make
// the ledgers of what was acknowledged grow, and nothing else.
func TestRackAllocatesNothing(t *testing.T) {
	r := running(t, CloverConfig{Hosts: 3, ThreadsPerHost: 8, Zipf: 0.99, Mode: tor.ReadWrite})
	frames := r.carried()
	n := testing.AllocsPerRun(20, func() {
		if err := r.Run(r.Now() + 20*Microsecond); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations in 20 us", n)
	}
	if f := r.carried() - frames; f < 1000 {
		t.Errorf("%d frames", f)
	}
}

// At rest every buffer is back, and the middlebox's books are closed.
func TestConservation(t *testing.T) {
	r := running(t, CloverConfig{Hosts: 3, ThreadsPerHost: 8, WriteShare: 0.5, Zipf: 0.99, Mode: tor.ReadWrite})
	r.cl.StopSoon()
	r.Wake()
	if err := r.Until(context.Background(), r.cl.Stopped, r.Now()+Second); err != nil {
		t.Fatal(err)
	}
	if err := r.Run(r.Now() + Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := r.box.Instance().Conservation(); err != nil {
		t.Error(err)
	}
	if used, held := r.Pool().InUse(), r.box.Instance().Held(); used != held {
		t.Errorf("%d buffers are in use, the middlebox holds %d", used, held)
	}
	if s := r.box.Stats(); s.In == 0 || s.In != s.Out {
		t.Errorf("%+v", s)
	}
}

// processor is the processor time that the process has used, in seconds.
func processor(t testing.TB) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// BenchmarkRack runs the papers' rack, 280 clients, YCSB A, all steered:
// endpoints, NIC models, links, switch and middlebox on one core. Frames are
// counted at the end of each cable; per second of processor time, garbage
// collection included, since other processes may share the core.
func BenchmarkRack(b *testing.B) {
	r := running(b, CloverConfig{ThreadsPerHost: 40, WriteShare: 0.5, Zipf: 0.99, Mode: tor.ReadWrite})
	runtime.GC()
	events, frames, start := r.Events(), r.carried(), processor(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Run(r.Now() + 10*Microsecond); err != nil {
			b.Fatal(err)
		}
	}
	s := processor(b) - start
	b.ReportMetric(float64(r.Events()-events)/s/1e6, "Mevents/cpu-s")
	b.ReportMetric(float64(r.carried()-frames)/s/1e6, "Mframes/cpu-s")
}
