package cost

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// The bars of figure 5.8, as its appendix has them, and the savings of the
// text.
func TestPublishedBars(t *testing.T) {
	want := [Designs]float64{850, 1037.5, 747.5, 691, 401}
	p := Published()
	for d := range Designs {
		if got := p.CapEx(d, PublishedSharing, PublishedPeaks).Total(); math.Abs(got-want[d]) > 1e-9 {
			t.Errorf("%v: %v, want %v", d, got, want[d])
		}
	}
	none := want[NotDisaggregated]
	for d, percent := range map[Design]float64{MiddleLayer: 52.82, SwitchAttached: 18.71} {
		if got := 100 * (1 - p.CapEx(d, PublishedSharing, PublishedPeaks).Total()/none); math.Abs(got-percent) > 0.005 {
			t.Errorf("%v saves %v %%", d, got)
		}
	}
}

// An sNIC never costs more than the same place with a device that does not
// scale; the more share it and the flatter their sum, the less it costs.
func TestCapExOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		money := rapid.Float64Range(0, 1e4)
		p := Prices{money.Draw(t, "port"), money.Draw(t, "nic"), money.Draw(t, "small"), money.Draw(t, "cable"), money.Draw(t, "short"),
			rapid.Float64Range(0, 1).Draw(t, "tasks")}
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		k, c := rapid.Float64Range(1, 64).Draw(t, "sharing"), rapid.Float64Range(0, 1).Draw(t, "peaks")
		total := func(d Design, k, c float64) float64 { return p.CapEx(d, k, c).Total() }
		const eps = 1e-6
		if total(MiddleLayer, k, c) > total(MultiHostNIC, k, c)+eps || total(SwitchAttached, k, c) > total(EnhancedSwitch, k, c)+eps {
			t.Fatal("scaling costs")
		}
		if math.Abs(total(MiddleLayer, k, 1)-total(MultiHostNIC, k, 1)) > eps {
			t.Fatal("nothing to consolidate, and yet a difference")
		}
		for _, d := range []Design{SwitchAttached, MiddleLayer} {
			if total(d, k+1, c) > total(d, k, c)+eps || total(d, k, c/2) > total(d, k, c)+eps {
				t.Fatalf("%v: dearer when shared by more", d)
			}
		}
	})
}

func TestOpEx(t *testing.T) {
	if got := (Running{RegionHour: 2}).OpEx(3); got != 6 {
		t.Error(got)
	}
	if got := (Running{Watts: 500, KWh: 0.2}).OpEx(10); math.Abs(got-1) > 1e-12 {
		t.Error(got)
	}
}

func TestCheck(t *testing.T) {
	for _, p := range []Prices{{Port: -1}, {NIC: math.NaN()}, {Cable: math.Inf(1)}, {Tasks: 1.1}, {Tasks: math.NaN()}} {
		if p.Check() == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
	if (Running{Watts: -1}).Check() == nil {
		t.Error("negative power is accepted")
	}
}
