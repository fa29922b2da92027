package scale

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/snic/region"
)

const c = 10e9

// square is a load of two levels, in regions, for so many intervals of a
// millisecond each.
func square(n, up, down int, high, low float64) *Load {
	l := &Load{Interval: time.Millisecond}
	for i := range n {
		r := low
		if i%(up+down) < up {
			r = high
		}
		l.Rate = append(l.Rate, r*c)
	}
	return l
}

func board(regions int) Board { return Board{Config: region.Default(regions, 1), Capacity: c} }

func near(t *testing.T, name string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within {
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

func TestStatic(t *testing.T) {
	l := square(1000, 500, 500, 3, 1)
	near(t, "mean", l.Mean()/c, 2, 1e-9)
	near(t, "peak", l.Peak()/c, 3, 1e-9)
	o := Static(l, c, 2) // half of it takes 1.5 times as long
	near(t, "slowdown", o.Slowdown, 0.25, 1e-9)
	near(t, "regions", o.Regions, 2.5, 1e-9)
	o = Instant(l, c)
	near(t, "instant", o.Regions, 2, 1e-9)
	if o.Slowdown != 0 {
		t.Error(o)
	}
}

// A load that goes up once: overloaded for a monitor period, then for a
// reconfiguration, at two thirds of its pace, twice.
func TestScaleOut(t *testing.T) {
	o, err := Scaled(square(2000, 1000, 1000, 1.5, 0.5), board(2), 100*time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	// 10 ms at 2/3 are 3.3 ms lost, of 2000.
	near(t, "slowdown", o.Slowdown, 0.00333/2, 0.0003)
	near(t, "regions", o.Regions, 1.5, 0.02)
	if o.Stats.ScaledOut != 1 || o.Stats.ScaledIn != 1 || o.Stats.PRs[region.Scaled] != 1 {
		t.Errorf("%+v", o.Stats)
	}
	// The second time its victim runs again without a reconfiguration.
	o, _ = Scaled(square(4000, 1000, 1000, 1.5, 0.5), board(2), 100*time.Microsecond)
	if o.Stats.ScaledOut != 2 || o.Stats.PRs[region.Scaled] != 1 || o.Stats.Revived != 1 {
		t.Errorf("%+v", o.Stats)
	}
	b := board(2)
	b.Keep = 0
	without, _ := Scaled(square(4000, 1000, 1000, 1.5, 0.5), b, 100*time.Microsecond)
	if without.Slowdown <= o.Slowdown || without.Regions <= o.Regions || without.Stats.PRs[region.Scaled] != 2 {
		t.Errorf("without victims %+v, with %+v", without, o)
	}
}

// Nobody is faster than with hardware that is never short, nor slower than with
// one region; and what is paid for is between the work and all regions.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := square(rapid.IntRange(50, 400).Draw(t, "n"), rapid.IntRange(1, 60).Draw(t, "up"), rapid.IntRange(1, 60).Draw(t, "down"),
			rapid.Float64Range(0, 4).Draw(t, "high"), rapid.Float64Range(0, 2).Draw(t, "low"))
		n := rapid.IntRange(1, 5).Draw(t, "regions")
		b := board(n)
		b.Keep = rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "keep")
		b.Peer = rapid.Bool().Draw(t, "peer")
		b.Background = c * rapid.Float64Range(0, 0.9).Draw(t, "background")
		o, err := Scaled(l, b, 500*time.Microsecond)
		if err != nil {
			t.Fatal(err)
		}
		one := Static(l, c-b.Background, 1)
		work := l.Mean() / c
		end := 1 / float64(len(l.Rate)) // the last step
		if o.Slowdown < -1e-9 || o.Slowdown > one.Slowdown+end || o.Regions > (2*float64(n)+end)*(1+o.Slowdown) || o.Redirected < 0 || o.Redirected > 1 {
			t.Fatalf("%+v, one region %+v, work %v", o, one, work)
		}
		if !b.Peer && o.Redirected != 0 {
			t.Fatal("redirected to nobody")
		}
	})
}

// A board that others load is slower; with a peer it is not, and what is over
// goes there.
func TestPeer(t *testing.T) {
	b := board(2)
	l := square(5000, 1, 1, 2, 2)
	alone, err := Scaled(l, b, 500*time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "alone", alone.Slowdown, 0, 0.005)
	b.Background = c / 2
	shared, _ := Scaled(l, b, 500*time.Microsecond)
	near(t, "shared", shared.Slowdown, 2/1.5-1, 0.005)
	near(t, "its regions", shared.Regions, 2, 0.02)
	b.Peer = true
	helped, _ := Scaled(l, b, 500*time.Microsecond)
	near(t, "with a peer", helped.Slowdown, 0, 0.005)
	near(t, "redirected", helped.Redirected, 0.25, 0.005)
	near(t, "regions of both", helped.Regions, 2, 0.02)
}

// A region that is kept over a gap costs nothing while one is enough.
func TestKept(t *testing.T) {
	o, err := Scaled(square(4000, 16, 4, 1.5, 0.5), board(2), 100*time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	if o.Stats.ScaledOut != 1 || o.Stats.ScaledIn != 0 {
		t.Errorf("%+v", o.Stats)
	}
	near(t, "regions", o.Regions, 0.8*2+0.2*1, 0.01)
}

// Others take a region when none of this load runs there, and not before.
func TestTaken(t *testing.T) {
	b := board(2)
	b.Taken, b.Turn = 0.5, time.Second
	// Half the pace for the first 500 ms, and 10 ms more to notice and to load;
	// then the region is never given up.
	o, err := Scaled(square(4000, 1, 1, 2, 2), b, 500*time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "slowdown", o.Slowdown, 0.510/2/4, 0.003)
	// A load that needs two regions from so many milliseconds on.
	from := func(at, n int) float64 {
		l := square(at+n, at+n, 1, 1.5, 0)
		for i := range at {
			l.Rate[i] = 0.5 * c
		}
		o, err := Scaled(l, b, 500*time.Microsecond)
		if err != nil {
			t.Fatal(err)
		}
		return o.Slowdown * float64(at+n) // milliseconds
	}
	near(t, "late to others, at two thirds of the pace", from(100, 400), 410./3, 2)
	near(t, "there before others", from(900, 500), 10./3, 0.5)
	if _, err := Scaled(square(10, 1, 1, 1, 1), b, time.Second); err == nil {
		t.Error("a step longer than an interval")
	}
	b.Monitor = 1
	if _, err := Scaled(square(10, 1, 1, 1, 1), b, time.Millisecond); err == nil {
		t.Error("a monitor period shorter than a reconfiguration")
	}
}
