package plan

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/internal/sim/traffic"
	"github.com/quillon/quillon/snic/cost"
)

func csv(t testing.TB, s string) traffic.Source {
	src, err := traffic.Open("t", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }, traffic.ByIP)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// Two endpoints of a rack that take turns, 10 Gb/s each, and two of another
// that send 8 together: by hand.
func TestByHand(t *testing.T) {
	const second = 1.25e9 // bytes of 10 Gb/s
	var b strings.Builder
	for i := range 10 {
		fmt.Fprintf(&b, "%d,%c,%v,turns\n", i, 'a'+i%2, second)
		if i%5 == 4 {
			fmt.Fprintf(&b, "%d,c,%v,both\n%d,d,%v,both\n", i, 0.8*second, i, 0.8*second)
		}
	}
	o := Defaults()
	o.Ports, o.Headroom = 1, 0.5
	p, err := Make(context.Background(), csv(t, b.String()), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	near := func(name string, got, want float64) {
		if math.Abs(got-want) > 1e-6*math.Max(1, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if !p.Step || p.Interval != 1 {
		t.Errorf("the trace's step is not taken, but %v s", p.Interval)
	}
	near("sum of peaks", p.Peaks.Endpoints, 36)
	near("racks", p.Peaks.Racks, 26)
	near("all", p.Peaks.All, 26)
	near("mean", p.Mean, 13.2)
	if len(p.Racks) != 2 || p.Racks[0].Name != "turns" {
		t.Fatalf("%+v", p.Racks)
	}
	near("turns", p.Racks[0].Gbps, 15)
	near("both", p.Racks[1].Gbps, 24)
	if r := p.Racks[1]; r.Regions != 3 || r.Middle != 2 || r.MiddleRegions != 2 || r.Switch != 1 || r.SwitchRegions != 3 {
		t.Errorf("%+v", r)
	}
	if p.Need.Regions != 5 || p.Need.Middle != 4 || p.Need.Endpoints != 4 {
		t.Errorf("%+v", p.Need)
	}
	// 2 regions for each endpoint's 15 or 12 Gb/s; 5; and 1 for the first rack
	// always, 2 for the other in 2 of 10 seconds.
	near("own", p.OpEx[0].RegionHours, 8*10/3600.0)
	near("racks", p.OpEx[1].RegionHours, 5*10/3600.0)
	near("scaled", p.OpEx[2].RegionHours, 14/3600.0)
	near("saves", p.OpEx[2].Saves, 1-14.0/80)
	// Boards follow 10 ms later, twice; each has 5 s of its rack's 10 to play.
	if m := p.OpEx[3].RegionHours * 3600; math.Abs(m-14) > 0.5 || p.Played == nil || p.Played.Slowdown > 0.004 || p.Played.Racks != 2 || p.Played.Busy != 2 {
		t.Errorf("%v regions·s, %+v", m, p.Played)
	}
	near("middle layer", p.CapEx[cost.MiddleLayer].PerEndpoint, 160+500*(0.1+0.9*26/36)+350)
	near("together", p.Together[2], 0.2) // c and d; a and b are half the time at their peak
}

// A plan never needs more for a rack than for its endpoints apart, a lower
// percentile never more than a higher, and what is provisioned fits.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &traffic.Facebook{
			Racks: rapid.IntRange(1, 3).Draw(t, "racks"), Endpoints: rapid.IntRange(1, 8).Draw(t, "endpoints"),
			Interval: 10 * time.Millisecond, Intervals: rapid.IntRange(1, 200).Draw(t, "intervals"),
			Calm: 1e6, Line: 1e9, Share: rapid.Float64Range(0, 0.5).Draw(t, "share"), Length: 30 * time.Millisecond,
			Correlation: rapid.Float64Range(0, 1).Draw(t, "correlation"), Seed: rapid.Uint64().Draw(t, "seed"),
		}
		src, err := f.Source()
		if err != nil {
			t.Fatal(err)
		}
		o := Defaults()
		o.Interval, o.Chains, o.Ports = f.Interval, rapid.IntRange(1, 3).Draw(t, "chains"), rapid.IntRange(1, 5).Draw(t, "ports")
		o.Play = rapid.SampledFrom([]time.Duration{0, 0, 0, 20 * time.Millisecond}).Draw(t, "play")
		o.Region, o.Board = rapid.Float64Range(0.1, 20).Draw(t, "region"), rapid.Float64Range(1, 100).Draw(t, "board")
		p, err := Make(context.Background(), src, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		const slack = 1 + 1e-9
		if p.Peaks.All > p.Peaks.Racks*slack || p.Peaks.Racks > p.Peaks.Endpoints*slack || p.Mean > p.Peaks.All*slack {
			t.Fatalf("%+v", p.Peaks)
		}
		for _, r := range p.Racks {
			if float64(r.Regions/o.Chains)*o.Region*slack < r.Gbps || float64(r.Switch)*o.Board*slack < r.Gbps || r.Middle < r.Switch ||
				r.Middle*o.Ports < r.Endpoints || r.Middle*r.MiddleRegions < r.Regions || r.Switch*r.SwitchRegions < r.Regions {
				t.Fatalf("%+v does not fit", r)
			}
		}
		// Without headroom, scaling with the load costs less than the peak.
		if p.OpEx[2].RegionHours > p.OpEx[1].RegionHours*slack {
			t.Fatalf("%+v", p.OpEx)
		}
		o.Percentile = 90
		if lower, err := Make(context.Background(), src, o, nil); err == nil && lower.Need.Gbps > p.Need.Gbps*slack {
			t.Fatalf("%v at 90 %%, %v at 100", lower.Need.Gbps, p.Need.Gbps)
		}
	})
}

// Of a long trace the busiest part is played, of many racks the busiest; with nothing to play none is.
func TestLong(t *testing.T) {
	o := Defaults()
	o.Interval, o.Play = 10*time.Millisecond, 100*time.Millisecond
	p, err := Make(context.Background(), csv(t, "0,a,1e7\n5e5,a,2.4e7\n1e6,a,1e7\n"), o, nil)
	if err != nil || p.Played == nil || p.Played.Busy != 2 || p.Played.Seconds != 0.1 || p.Intervals != 1e8+1 {
		t.Fatalf("%v, %+v, %+v", err, p, p.Played)
	}
	var racks strings.Builder
	for i := range 30 {
		fmt.Fprintf(&racks, "0,e%d,%d,rack%d\n", i, 1000000+i, i)
	}
	if p, err = Make(context.Background(), csv(t, racks.String()), o, nil); err != nil || p.Played.Racks != 2 {
		t.Fatalf("%v, %+v", err, p.Played)
	}
	o.Play = 0
	if p, err = Make(context.Background(), csv(t, racks.String()), o, nil); err != nil || p.Played != nil || len(p.OpEx) != 3 {
		t.Fatalf("%v, %+v", err, p)
	}
}

func TestRefused(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"percentile": func(o *Options) { o.Percentile = 0 }, "headroom": func(o *Options) { o.Headroom = -1 },
		"region": func(o *Options) { o.Region = 0 }, "sNIC must handle": func(o *Options) { o.Board = math.Inf(1) },
		"ports": func(o *Options) { o.Ports = 0 }, "chains": func(o *Options) { o.Chains = 0 },
		"deviations": func(o *Options) { o.Deviations = math.NaN() }, "price": func(o *Options) { o.Prices.NIC = -1 },
		"running": func(o *Options) { o.Running.KWh = -1 }, "interval": func(o *Options) { o.Interval = -1 },
		"idle most": func(o *Options) { o.Percentile, o.Interval = 50, time.Second },
	} {
		o := Defaults()
		change(&o)
		if _, err := Make(context.Background(), csv(t, "0,a,1\n1,a,0\n2,a,0\n"), o, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for bytes, want := range map[string]string{"1e18": "are its bytes right", "1e30": "want 0 to 1e+18", "1e308": "want 0 to 1e+18"} {
		o := Defaults()
		o.Region = 1e-3
		_, err := Make(context.Background(), csv(t, "0,a,"+bytes+"\n1,a,"+bytes+"\n1,b,"+bytes+"\n"), o, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s bytes: %v, want %s", bytes, err, want)
		}
	}
}

// The same load gives the same picture.
func TestPicture(t *testing.T) {
	src, err := (&traffic.Facebook{Endpoints: 4, Interval: time.Millisecond, Intervals: 3000, Calm: 1e6, Line: 1e9, Share: 0.1, Length: 20 * time.Millisecond}).Source()
	if err != nil {
		t.Fatal(err)
	}
	var last []byte
	for range 2 {
		p, err := Make(context.Background(), src, Defaults(), nil)
		if err != nil {
			t.Fatal(err)
		}
		prefix := filepath.Join(t.TempDir(), "p")
		if err := p.Save(prefix, "a load"); err != nil {
			t.Fatal(err)
		}
		svg, err := os.ReadFile(prefix + ".svg")
		if err != nil || len(svg) < 1000 {
			t.Fatal(len(svg), err)
		}
		if last != nil && !bytes.Equal(svg, last) {
			t.Error("two runs differ")
		}
		last = svg
	}
}
