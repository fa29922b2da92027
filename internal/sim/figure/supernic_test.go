package figure

import (
	"context"
	"math"
	"testing"
)

// The figures of traffic and cost give the same values for the same seed.
func TestSupernic(t *testing.T) {
	if testing.Short() {
		t.Skip("takes up to half a minute")
	}
	for _, id := range []string{"fig5.3", "5.8", "5.10"} { // 5.12 and 5.13: TestOrders
		r := quick(t, id)
		if id == "5.10" {
			for _, pool := range []string{"intermediate pool", "switch-attached pool"} {
				for _, x := range []float64{0, 10, 90} {
					if pt := r.find(0, pool, x); *pt.Ours < 0 || *pt.Ours > 4 || x > 10 && *pt.Ours > *r.find(0, "single sNIC", x).Ours/20 {
						t.Errorf("%s, %v %%: slowdown %v", pool, x, *pt.Ours)
					}
				}
			}
			continue // sim has boards and pools run twice
		}
		again := quick(t, id)
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

// Costs agree with the bars to one cent, the resolution of the picture.
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

// Figures 5.12 and 5.13 have the order of schemes of the source's text, with another seed than the load was
// fitted with.
func TestOrders(t *testing.T) {
	if testing.Short() {
		t.Skip("takes up to half a minute")
	}
	at := func(r *Result, panel int, series, x string) float64 {
		pt := r.find(panel, series, x)
		if pt == nil || pt.Ours == nil {
			t.Fatalf("no %s at %s", series, x)
		}
		return *pt.Ours
	}
	ascends := func(what string, v ...float64) {
		t.Helper()
		for i := range v[1:] {
			if v[i] > v[i+1] {
				t.Errorf("%s: %v", what, v)
			}
		}
	}
	r := quick(t, "5.12")
	for _, x := range []string{"low correlation", "high correlation"} {
		ascends("slowdown, "+x, at(r, 0, "static-max", x), at(r, 0, "as-instant", x), at(r, 0, "sNIC", x), at(r, 0, "static-avg", x))
		// Published, sNIC's OpEx is below as-instant's. The board gives packets to all its instances, so all
		// of them are paid for.
		ascends("OpEx, "+x, at(r, 1, "static-avg", x), at(r, 1, "as-instant", x), at(r, 1, "sNIC", x), at(r, 1, "static-max", x))
	}
	ascends("sNIC's slowdown", at(r, 0, "sNIC", "low correlation"), at(r, 0, "sNIC", "high correlation"))
	ascends("sNIC's OpEx", at(r, 1, "sNIC", "high correlation"), at(r, 1, "sNIC", "low correlation"))
	r = quick(t, "5.13")
	none, low := at(r, 0, "neither", "neither"), at(r, 0, "victim cache", "kept 90%")
	ascends("victims", 0, low, at(r, 0, "victim cache", "kept 50%"), at(r, 0, "victim cache", "kept 30%"), none)
	over := []string{"over 30%", "over 50%", "over 70%", "over 90%"}
	for i := range over[1:] {
		ascends("over-commitment", none, at(r, 0, "over-commitment", over[i]), at(r, 0, "over-commitment", over[i+1]), 100)
		ascends("its OpEx", at(r, 1, "over-commitment", over[i+1]), at(r, 1, "over-commitment", over[i]), 100)
	}
}

// quick runs a figure for a short time. No point may be outside the tolerance without a reason.
func quick(t *testing.T, id string) *Result {
	t.Helper()
	fs, err := Find(id)
	if err != nil {
		t.Fatal(err)
	}
	r, err := fs[0].Run(context.Background(), Params{Seed: 9, Quick: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Points.Within == 0 && r.Points.Inputs == 0 {
		t.Errorf("%s", r.Summary())
	}
	return r
}
