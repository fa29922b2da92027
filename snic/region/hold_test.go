package region

import (
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

// TestHold: work that waits while senders are held back is demand: with what comes it is too much for an instance that has all that
// it can do, and none is given up. When it waits for less than a monitor period, or something waits beside a load that is less
// than capacity and is done within a sample, nothing changes.
func TestHold(t *testing.T) {
	for _, c := range []struct {
		name    string
		start   int     // instances
		load    float64 // of each
		wait    float64 // ns, in each
		on      clock.Duration
		out, in bool
	}{
		{"nothing waits", 1, 1, 0, 50 * ms, false, false},
		{"something waits", 1, 1, 50e3, 50 * ms, true, false},
		{"nothing comes, much waits", 1, 0, 50e6, 50 * ms, true, false},
		{"for less than a period", 1, .5, 50e3, 4 * ms, false, false},
		{"for less than a sample", 1, .5, float64(epoch) / 4, 50 * ms, false, false},
		{"little comes, nothing waits", 2, .3, 0, 50 * ms, false, true},
		{"little comes, much waits", 2, .3, 50e6, 50 * ms, true, false},
	} {
		b := newBoard(t, Default(4, 1))
		for range c.start {
			b.launch(Demand{Chain: 0, Rate: 10 * gbit, NoPeer: true})
		}
		b.to(clock.Time(40 * ms))
		b.Sample(b.now)
		b.take()
		b.all = nil
		begin := b.now
		b.drive(begin.Add(50*ms), func(now clock.Time, task int) float64 {
			if task != 0 {
				return 0
			}
			if now.Sub(begin) < c.on {
				for r := range b.Regions() {
					b.Hold(r, 0, c.wait)
				}
			}
			n, _ := b.Task(0)
			return c.load * float64(n) * 10 * gbit
		})
		has := func(k Kind) bool { return slices.ContainsFunc(b.all, func(e Event) bool { return e.Kind == k }) }
		if has(ScaleOut) != c.out || has(ScaleIn) != c.in {
			t.Errorf("%s: scaled out: %v, in: %v", c.name, has(ScaleOut), has(ScaleIn))
		}
	}
}

// What waited in a region when it stopped is none of the work of who runs there next.
func TestHoldEndsWithTheRun(t *testing.T) {
	b := newBoard(t, Default(1, 1))
	b.choice(Demand{Chain: 0, NoPeer: true}, LoadFree, 0)
	b.to(clock.Time(6 * ms))
	b.Hold(0, 0, 1e6)
	b.Release(b.now, 0)
	b.take()
	first := b.Times(0).Accessed
	b.choice(Demand{Chain: 0, NoPeer: true}, Revive, 0)
	b.to(clock.Time(8 * ms))
	b.Sample(b.now)
	if got := b.Times(0).Accessed; first == 0 || got != first {
		t.Errorf("accessed for %v, then for %v without a packet", first, got)
	}
}
