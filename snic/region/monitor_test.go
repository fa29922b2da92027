package region

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
)

// history is the work of one task, sample by sample, beside its instances.
type history struct {
	at   []clock.Time
	work []float64 // in instances
}

// mean is the load over [from, to].
func (h *history) mean(from, to clock.Time) float64 {
	sum, n := 0.0, 0
	for i, at := range h.at {
		if at > from && at <= to {
			sum += h.work[i]
			n++
		}
	}
	return sum / float64(max(n, 1))
}

// wave drives task 0 by a square wave between two loads (in instances), high for
// the first on of each period, and checks each change against what was offered.
func wave(t *testing.T, rt rapid.TB, cfg Config, start int, period, on clock.Duration, low, high float64, length clock.Duration) *board {
	rt.Helper()
	b := newBoard(t, cfg)
	for range start {
		b.launch(Demand{Chain: 0, Rate: 10 * gbit, NoPeer: true})
	}
	b.to(clock.Time(40 * ms))
	b.Sample(b.now)
	b.take()
	b.drive(clock.Time(50*ms), func(_ clock.Time, task int) float64 {
		if task != 0 {
			return 0
		}
		return (float64(start) - 0.5) * 10 * gbit // within the band
	})
	if n, _ := b.Task(0); n != start {
		rt.Fatalf("%d instances, want %d", n, start)
	}
	b.all = nil
	h := &history{}
	begin := b.now
	offered := func(now clock.Time) float64 {
		if now.Sub(begin)%period < on {
			return high
		}
		return low
	}
	changed := begin // end of the last change
	var decided clock.Time
	changes, done := 0, 0
	for b.now < begin.Add(length) {
		next := b.now.Add(epoch)
		load := offered(b.now)
		h.at = append(h.at, next)
		h.work = append(h.work, load)
		n, _ := b.Task(0)
		b.drive(next, func(_ clock.Time, task int) float64 {
			if task != 0 {
				return 0
			}
			return load * 10 * gbit
		})
		for _, e := range b.all[done:] {
			switch e.Kind {
			case ScaleOut, ScaleIn:
				changes++
				if e.At.Sub(changed) < cfg.Monitor && changes > 1 {
					rt.Fatalf("%v at %v, the last change was complete at %v", e.Kind, e.At, changed)
				}
				if decided != 0 && e.At.Sub(decided) < cfg.Monitor {
					rt.Fatalf("two changes in %v", e.At.Sub(decided))
				}
				decided = e.At
				from := e.At.Add(-cfg.Monitor)
				mean := h.mean(from, e.At)
				if e.Kind == ScaleOut && mean <= float64(n)*cfg.Over*(1-1e-4) {
					rt.Fatalf("scale-out at %v: a load of %g, %d instances", e.At, mean, n)
				}
				if e.Kind == ScaleIn && mean > float64(n-1)*cfg.Under*(1+1e-4) {
					rt.Fatalf("scale-in at %v: a load of %g, %d instances", e.At, mean, n)
				}
			}
			if e.Kind == Run || e.Kind == Freed {
				changed = e.At
			}
		}
		done = len(b.all)
	}
	// No more than one a period; what is revived needs no PR.
	if most := int(length/cfg.Monitor) + 1; changes > most {
		rt.Fatalf("%d changes in %v, a period is %v", changes, length, cfg.Monitor)
	}
	return b
}

func TestSquareWaves(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Default(4, 1)
		cfg.Monitor = rapid.SampledFrom([]clock.Duration{5 * ms, 8 * ms}).Draw(rt, "monitor")
		cfg.Backlog = rapid.SampledFrom([]clock.Duration{0, 500 * us, 3 * ms}).Draw(rt, "backlog")
		period := clock.Duration(rapid.IntRange(40, 40000).Draw(rt, "period")) * us
		duty := rapid.Float64Range(0.02, 1).Draw(rt, "duty")
		low := rapid.Float64Range(0, 4).Draw(rt, "low")
		high := low + rapid.Float64Range(0, 10).Draw(rt, "height")
		wave(t, rt, cfg, rapid.IntRange(1, 4).Draw(rt, "start"), period, clock.Duration(duty*float64(period)), low, high, 150*ms)
	})
}

// A wave whose mean over any monitor period is within the band changes nothing,
// however high it goes.
func TestNoThrashingWithinBand(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Default(4, 1)
		n := rapid.IntRange(1, 3).Draw(rt, "instances")
		// The period of the wave divides that of the monitor: all means are equal.
		parts := rapid.SampledFrom([]int{1, 2, 5, 10, 25, 50, 125}).Draw(rt, "parts")
		period := cfg.Monitor / clock.Duration(parts)
		steps := int(period / epoch)
		on := rapid.IntRange(1, steps).Draw(rt, "on")
		low, high := float64(n-1)*cfg.Under, float64(n)*cfg.Over
		mean := low + (high-low)*rapid.Float64Range(0.01, 0.99).Draw(rt, "mean")
		b := wave(t, rt, cfg, n, period, clock.Duration(on)*epoch, 0, mean*float64(steps)/float64(on), 100*ms)
		if st := b.Stats(); st.ScaledIn+st.ScaledOut != 0 {
			rt.Fatalf("mean load of %g, %d instances: %+v", mean, n, st)
		}
	})
}

// A load that lasts gets the instances that it needs, and no more, from below and
// from above.
func TestLoadIsServed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Default(5, 1)
		load := rapid.Float64Range(0, 4.99).Draw(rt, "load")
		b := wave(t, rt, cfg, rapid.IntRange(1, 5).Draw(rt, "start"), ms, ms, load, load, 120*ms)
		n, _ := b.Task(0)
		if float64(n) < load {
			rt.Fatalf("load of %g, %d instances", load, n)
		}
		if n > 1 && load <= float64(n-1)*cfg.Under*0.999 {
			rt.Fatalf("load of %g, still %d instances", load, n)
		}
	})
}

// A short spike, however high, changes nothing.
func TestSpikes(t *testing.T) {
	b := wave(t, t, Default(4, 1), 1, 10*ms, 4*ms, 0.3, 20, 100*ms)
	if st := b.Stats(); st.ScaledOut != 0 {
		t.Errorf("spikes of 4 ms: %+v", st)
	}
	b = wave(t, t, Default(4, 1), 1, 10*ms, 6*ms, 0.3, 20, 50*ms)
	if st := b.Stats(); st.ScaledOut == 0 {
		t.Error("6 ms of overload: nothing")
	}
}

// What came in the sample that first showed an overload does not count for the
// period that begins then, however much it was.
func TestSpikeThenAlmostFull(t *testing.T) {
	cfg := Default(4, 1)
	cfg.Backlog = 3 * ms
	b := wave(t, t, cfg, 1, 200*ms, epoch, 0.95, 100, 30*ms)
	if st := b.Stats(); st.ScaledOut != 0 {
		t.Errorf("%+v", st)
	}
}

// An instance that waits for the port long is the only one that is launched.
func TestScaleOutWaitsForPort(t *testing.T) {
	b := newBoard(t, Default(8, 1))
	b.launch(Demand{Chain: 0})
	b.to(clock.Time(5 * ms))
	b.Sample(b.now)
	b.log = nil
	load := func(_ clock.Time, task int) float64 {
		if task == 0 {
			return 30 * gbit
		}
		return 0
	}
	b.drive(clock.Time(9*ms), load)
	for i := 1; i < 5; i++ {
		b.launch(Demand{Chain: i})
	}
	b.drive(clock.Time(33*ms), load)
	b.want("9 load r1 c1", "10.02 scale out r5 c0 t0", "14 run r1 c1", "14 load r2 c2", "19 run r2 c2", "19 load r3 c3",
		"24 run r3 c3", "24 load r4 c4", "29 run r4 c4", "29 load r5 c0")
}

// Of two that are overloaded the first gets the region that is free.
func TestFirstOverloadedFirst(t *testing.T) {
	b := newBoard(t, Default(3, 1))
	b.launch(Demand{Chain: 0})
	b.launch(Demand{Chain: 1})
	b.launch(Demand{Chain: 2})
	b.to(clock.Time(15 * ms))
	b.Sample(b.now)
	b.log = nil
	load := func(now clock.Time, task int) float64 {
		if task == 1 || task == 0 && now >= clock.Time(16*ms) {
			return 30 * gbit
		}
		return 0
	}
	b.drive(clock.Time(23*ms), load)
	b.Release(b.now, 2)
	b.take()
	b.want("20.02 overload t1", "21.02 overload t0", "23 stop r2 c2", "23 scale out r2 c1 t1", "23 evict r2 c2", "23 load r2 c1")
}

// A bitstream that helps two overloaded tasks is better than one with more load.
func TestScaleOutHelpsMost(t *testing.T) {
	b := newBoard(t, Default(5, 3))
	must(t, b.Add(20, Chain{Area: 3, Tasks: []int{0, 2, 3}}))
	must(t, b.Add(21, Chain{Area: 2, Tasks: []int{0, 1}}))
	for i := range 4 {
		b.launch(Demand{Chain: i})
	}
	b.to(clock.Time(20 * ms))
	b.Sample(b.now)
	b.log = nil
	b.drive(clock.Time(26*ms), func(_ clock.Time, task int) float64 {
		return []float64{11 * gbit, 11 * gbit, 9 * gbit, 9 * gbit, 0, 0, 0, 0}[task]
	})
	b.want("25.02 scale out r4 c21 t0", "25.02 load r4 c21")
}

// A bitstream is chosen that fits where there is room.
func TestScaleOutFits(t *testing.T) {
	cfg := Default(0, 0)
	cfg.Areas = []int{2, 1, 1}
	b := newBoard(t, cfg)
	must(t, b.Add(20, Chain{Area: 2, Tasks: []int{0, 1}}))
	b.launch(Demand{Chain: 20})
	b.to(clock.Time(5 * ms))
	b.Sample(b.now)
	b.log = nil
	b.drive(clock.Time(12*ms), func(_ clock.Time, task int) float64 {
		switch task {
		case 0:
			return 9 * gbit
		case 1:
			return 12 * gbit
		}
		return 0
	})
	b.want("10.02 scale out r1 c1 t1", "10.02 load r1 c1")
}

// What was scaled in is a victim: it comes back without PR.
func TestScaleInAndBack(t *testing.T) {
	b := newBoard(t, Default(2, 1))
	b.launch(Demand{Chain: 0})
	b.to(clock.Time(5 * ms))
	b.Sample(b.now)
	b.log = nil
	high, low := 1.5, 0.5
	load := func(now clock.Time, task int) float64 {
		switch {
		case task != 0:
			return 0
		case now < clock.Time(20*ms) || now >= clock.Time(30*ms):
			return high * 10 * gbit
		}
		return low * 10 * gbit
	}
	b.drive(clock.Time(40*ms), load)
	b.want(
		"10.02 scale out r1 c0 t0", "10.02 load r1 c0", "15.02 run r1 c0",
		"24.22 scale in r1 c0", "24.22 stop r1 c0", "24.22 freed r1",
		"35.02 scale out r1 c0 t0", "35.02 run r1 c0")
}

// While no region is free, Overload says so once a period; a region that frees is
// used at once.
func TestOverload(t *testing.T) {
	b := newBoard(t, Default(2, 1))
	b.launch(Demand{Chain: 0})
	b.launch(Demand{Chain: 1})
	b.to(clock.Time(10 * ms))
	b.Sample(b.now)
	b.log = nil
	load := func(_ clock.Time, task int) float64 {
		if task == 0 {
			return 25 * gbit
		}
		return gbit
	}
	b.drive(clock.Time(22*ms), load)
	b.want("15.02 overload t0", "20.02 overload t0")
	b.Release(b.now, 1)
	b.take()
	b.want("22 stop r1 c1", "22 scale out r1 c0 t0", "22 evict r1 c1", "22 load r1 c0")
}

// The last instance of an unused task stays, or goes after Idle; the next demand
// has it back at once.
func TestIdle(t *testing.T) {
	for _, idle := range []clock.Duration{0, 20 * ms} {
		cfg := Default(2, 1)
		cfg.Idle = idle
		b := newBoard(t, cfg)
		b.launch(Demand{Chain: 0, Pre: true})
		b.to(clock.Time(5 * ms))
		b.log = nil
		b.drive(clock.Time(40*ms), func(now clock.Time, task int) float64 {
			if task == 0 && now < clock.Time(10*ms) {
				return gbit
			}
			return 0
		})
		if idle == 0 {
			b.want()
			continue
		}
		b.want("30 scale in r0 c0", "30 stop r0 c0", "30 freed r0")
		b.choice(Demand{Chain: 0}, Revive, 0)
	}
}

func TestTimes(t *testing.T) {
	cfg := Default(1, 1)
	cfg.Stop = 2 * ms
	b := newBoard(t, cfg)
	must(t, b.Add(20, Chain{Area: 1, Tasks: []int{0}, Save: true}))
	b.to(clock.Time(ms))
	b.launch(Demand{Chain: 20})
	b.to(clock.Time(6 * ms))
	b.Sample(b.now)
	b.drive(clock.Time(10*ms), func(now clock.Time, task int) float64 {
		if task == 0 && now < clock.Time(9*ms) {
			return 5 * gbit
		}
		return 0
	})
	b.Release(b.now, 0)
	b.take()
	b.to(clock.Time(20 * ms))
	got := b.Times(0)
	want := Times{Accessed: 3 * ms, Work: 3 * ms / 2}
	want.In = [States]clock.Duration{Free: ms, Loading: 5 * ms, Running: 4 * ms, Stopping: 2 * ms, Victim: 8 * ms}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
