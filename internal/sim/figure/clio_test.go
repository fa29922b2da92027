package figure

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strings"
	"testing"
)

// The figures of YCSB on Clio give the same values for the same seed, with the published orders. Points that
// are not run are named, and are not counted.
func TestClio(t *testing.T) {
	if testing.Short() {
		t.Skip("takes up to half a minute")
	}
	for id, foreign := range map[string][]string{"5.16": {"Clover", "HERD-BF"}, "5.17": {"Clover", "HERD-BF"}, "5.18": {"Clover", "Clover-R"}} {
		fs, err := Find(id)
		if err != nil {
			t.Fatal(err)
		}
		run := func() (*Result, string) {
			r, err := fs[0].Run(context.Background(), Params{Seed: 5, Quick: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := r.WriteJSON(&b); err != nil {
				t.Fatal(err)
			}
			return r, b.String()
		}
		r, text := run()
		if id == "5.18" { // a cache takes most of the time; sim has its own test
			if _, again := run(); again != text {
				t.Errorf("%s: equal seeds give different numbers", id)
			}
		}
		ours, points := 0, 0
		for _, c := range r.Panels[0].Curves {
			if c.simulated() == slices.Contains(foreign, c.Name) {
				t.Errorf("%s: %s", id, c.Name)
			}
			for _, pt := range c.Points {
				points++
				if pt.Ours != nil {
					ours++
				}
			}
		}
		if r.Points.total()+r.Points.Inputs != ours || ours+len(foreign)*len(r.Panels[0].Curves[0].Points) != points || len(r.LeftOut) == 0 || !strings.Contains(r.LeftOut[0], strings.Join(foreign, ", ")) {
			t.Errorf("%s: %d of %d points, %+v, %v", id, ours, points, r.Points, r.LeftOut)
		}
		var table bytes.Buffer
		if err := r.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		if fitted := strings.Contains(table.String(), "input, since constants come from it: Clio-sNIC-cache\n"); fitted != (id != "5.18") {
			t.Errorf("%s", &table)
		}
		at := func(series, mix string) float64 {
			pt := r.find(0, series, mix)
			if pt == nil || pt.Ours == nil {
				t.Fatalf("%s: no %s at %s", id, series, mix)
			}
			return *pt.Ours
		}
		for _, mix := range []string{"A", "B"} {
			switch plain, offload := at("Clio", mix), at("Clio-sNIC", mix); id {
			case "5.16":
				if cache := at("Clio-sNIC-cache", mix); !(cache < plain && plain < offload) {
					t.Errorf("%s, %s: %v, %v, %v", id, mix, plain, offload, cache)
				}
			case "5.17":
				if cache := at("Clio-sNIC-cache", mix); !(cache > plain && plain > offload) {
					t.Errorf("%s, %s: %v, %v, %v", id, mix, plain, offload, cache)
				}
			default:
				if byClient, bySNIC := at("Clio-R", mix)/plain, at("Clio-sNIC-R", mix)/offload; !(byClient > bySNIC && math.Abs(bySNIC-1) < 0.02) {
					t.Errorf("%s, %s: copies by the client %v, by the sNIC %v", id, mix, byClient, bySNIC)
				}
			}
		}
	}
}

// Figure 5.17 is 5.16 in another unit, as its remarks say.
func TestRestated(t *testing.T) {
	latency, err := load("5.16")
	if err != nil {
		t.Fatal(err)
	}
	rate, err := load("5.17")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range rate.Quantities[0].Series {
		for _, p := range s.Points {
			us, ok := latency.at(s.Name, p.name)
			if want := 8 / (us * 1e-6) * 8000 / (1 << 30); !ok || math.Abs(p.y/want-1) > 0.01 {
				t.Errorf("%s, %s: %v, and %v us are %v", s.Name, p.name, p.y, us, want)
			}
		}
	}
}
