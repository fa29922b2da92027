package figure

import (
	"context"
	"math"
	"testing"
)

// The figures of traffic and cost run, hold their tolerances with other seeds
// than the one that was fitted with, and give the same values for the same seed.
func TestSupernic(t *testing.T) {
	for _, id := range []string{"fig5.3", "5.8"} {
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
