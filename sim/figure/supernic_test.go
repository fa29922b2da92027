package figure

import (
	"context"
	"math"
	"testing"
)

// The figures of traffic and cost run, hold their tolerances with other seeds
// than the one that was fitted with, and give the same values for the same seed.
func TestSupernic(t *testing.T) {
	for _, id := range []string{"fig5.3", "5.8", "5.10", "5.12", "5.13"} {
		fs, err := Find(id)
		if err != nil {
			t.Fatal(err)
		}
		run := func() *Result {
			r, err := fs[0].Run(context.Background(), Params{Seed: 9, Quick: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		r := run()
		if !r.OK() || r.Points.Within == 0 {
			t.Errorf("%s", r.Summary())
		}
		again := run()
		for i, c := range r.Panels[0].Curves {
			for k, pt := range c.Points {
				if pt.Ours != nil && *pt.Ours != *again.Panels[0].Curves[i].Points[k].Ours {
					t.Errorf("%s, %s: %v, then %v", id, c.Name, *pt.Ours, *again.Panels[0].Curves[i].Points[k].Ours)
				}
			}
		}
	}
	r, _ := All()[0].Run(context.Background(), Params{Quick: true, Keys: 1}, nil)
	if r != nil {
		t.Error("a parameter that means nothing is taken")
	}
}

// Costs agree with the bars to the cent that the picture resolves.
func TestCostBars(t *testing.T) {
	fs, _ := Find("5.8")
	r, err := fs[0].Run(context.Background(), Params{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, pt := range r.Panels[0].Curves[0].Points {
		if pt.Ours == nil || math.Abs(*pt.Ours-*pt.Published) > 0.005 {
			t.Errorf("%s: %v, published %v", pt.Name, pt.Ours, *pt.Published)
		}
	}
}

func TestWrap(t *testing.T) {
	for name, want := range map[string]string{"": "", "one": "one", "first second": "first\nsecond", "a b": "a b"} {
		if got := wrap(name, 40); got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}

// The order of schemes is the published one, for other seeds than those that the
// load was fitted with.
func TestOrders(t *testing.T) {
	fs, err := Find("5.12", "5.13")
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(3) {
		r, err := fs[0].Run(context.Background(), Params{Seed: 20 + seed, Quick: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := func(panel int, series, x string) float64 {
			pt := r.find(panel, series, x)
			if pt == nil || pt.Ours == nil {
				t.Fatalf("no %s at %s", series, x)
			}
			return *pt.Ours
		}
		ascends := func(what string, v ...float64) {
			for i := range v[1:] {
				if v[i] > v[i+1] {
					t.Errorf("seed %d, %s: %v", seed, what, v)
				}
			}
		}
		for _, x := range []string{"low correlation", "high correlation"} {
			ascends("slowdown, "+x, at(0, "as-instant", x), at(0, "sNIC", x), 0.4*at(0, "static-avg", x))
			ascends("OpEx, "+x, at(1, "static-avg", x), at(1, "sNIC", x), at(1, "as-instant", x), at(1, "static-max", x))
			if at(0, "static-max", x) != 0 {
				t.Errorf("seed %d: %s", seed, x)
			}
			ascends("saving", 50, at(2, "sNIC", x), 65)
		}
		ascends("sNIC's slowdown", at(0, "sNIC", "low correlation"), at(0, "sNIC", "high correlation"), 6.5)
		ascends("sNIC's OpEx", at(1, "sNIC", "high correlation"), at(1, "sNIC", "low correlation"))
		if r, err = fs[1].Run(context.Background(), Params{Seed: 20 + seed, Quick: true}, nil); err != nil {
			t.Fatal(err)
		}
		for panel := range 2 {
			ascends("victims", at(panel, "victim cache", "kept 90%"), at(panel, "victim cache", "kept 50%"),
				at(panel, "victim cache", "kept 30%"), at(panel, "neither", "neither"))
		}
		ascends("over-commitment", at(0, "neither", "neither"), at(0, "over-commitment", "over 30%"), at(0, "over-commitment", "over 50%"),
			at(0, "over-commitment", "over 70%"), at(0, "over-commitment", "over 90%"))
		ascends("its OpEx", at(1, "over-commitment", "over 90%"), at(1, "over-commitment", "over 70%"),
			at(1, "over-commitment", "over 50%"), at(1, "over-commitment", "over 30%"))
	}
}
