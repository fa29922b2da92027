package sim

import (
	"context"
	"math"
	"testing"
	"time"
)

const gig = 10e9 // a region

// square is a load of two levels, in regions, for so many intervals of a
// millisecond each.
func square(n, up, down int, high, low float64) *Load {
	l := &Load{Interval: time.Millisecond}
	for i := range n {
		r := low
		if i%(up+down) < up {
			r = high
		}
		l.Rate = append(l.Rate, r*gig)
	}
	return l
}

func nearly(t *testing.T, name string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within {
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

func scaled(t *testing.T, l *Load, c ScaledConfig) Outcome {
	t.Helper()
	c.Capacity = gig
	o, err := l.Scaled(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestStatic(t *testing.T) {
	l := square(1000, 500, 500, 3, 1)
	nearly(t, "mean", l.Mean()/gig, 2, 1e-9)
	nearly(t, "peak", l.Peak()/gig, 3, 1e-9)
	o := l.Static(gig, 2) // half of it takes 1.5 times as long
	nearly(t, "slowdown", o.Slowdown, 0.25, 1e-9)
	nearly(t, "regions", o.Regions, 2.5, 1e-9)
	o = l.Instant(gig)
	nearly(t, "instant", o.Regions, 2, 1e-9)
	if o.Slowdown != 0 {
		t.Error(o)
	}
}

// A load that goes up once a second, to one and a half of a region: a third of the store (3.15 ms of a region's work) takes what is too
// much for 2.1 ms, then endpoints wait a third of the time, until there is another instance after 10, whatever the pieces are in which
// the load is played. A pause ends when a fifth is left: up to 0.42 ms of work less is done when there is another instance, or the load ends.
func TestScaledLoad(t *testing.T) {
	l := square(1000, 500, 500, 1.5, 0.5)
	for _, piece := range []time.Duration{50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond} {
		two := scaled(t, l, ScaledConfig{Regions: 2, Victims: 100, Piece: piece})
		nearly(t, "slowdown", two.Slowdown, 0.00263+0.00014, 0.00016)
		nearly(t, "regions", two.Regions, 1.506, 0.005)
		one := scaled(t, l, ScaledConfig{Regions: 1, Victims: 100, Piece: piece})
		nearly(t, "one region's slowdown", one.Slowdown, 0.25-0.00105+0.00021, 0.0003)
		nearly(t, "one region", one.Regions, 1+one.Slowdown, 0.001)
		// Others who want a region half of the time leave less.
		taken := scaled(t, l, ScaledConfig{Regions: 2, Victims: 100, Piece: piece, Taken: 0.5, Turn: 100 * time.Millisecond})
		if taken.Slowdown < 10*two.Slowdown || taken.Regions > two.Regions {
			t.Errorf("with others %+v, without %+v", taken, two)
		}
	}
}

// A load that jumps from half a region to four gets four, though its endpoints pause and no more comes than regions can do: one each monitor
// period and PR, of 5 ms each, and some epochs.
func TestPausedLoadScales(t *testing.T) {
	o := scaled(t, square(400, 200, 200, 4, 0.5), ScaledConfig{Regions: 5, Victims: 100})
	waits := 10 * (3./4 + 2./4 + 1./4) / 400
	if o.Most < 4 || o.Slowdown < waits/2 || o.Slowdown > 1.25*waits {
		t.Errorf("%+v; so long they wait: %v", o, waits)
	}
}

// A store that holds next to nothing slows a load more than one that holds it all.
func TestStoreHelps(t *testing.T) {
	l := square(200, 100, 100, 1.5, 0.5)
	small, large := scaled(t, l, ScaledConfig{Regions: 2, Store: 1}), scaled(t, l, ScaledConfig{Regions: 2, Store: 40 << 20})
	// 10 ms at two thirds of the pace, of 200.
	nearly(t, "a small store", small.Slowdown, 0.01667, 0.001)
	nearly(t, "a large one", large.Slowdown, 0, 1e-9)
}

func TestLoadRefused(t *testing.T) {
	l := square(10, 1, 1, 1, 1)
	for _, c := range []ScaledConfig{{Capacity: gig}, {Regions: 1}} {
		if _, err := l.Scaled(context.Background(), c); err == nil {
			t.Errorf("%+v is run", c)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Scaled(ctx, ScaledConfig{Regions: 1, Capacity: gig}); err == nil {
		t.Error("runs on without its context")
	}
}
