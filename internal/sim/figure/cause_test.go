package figure

import (
	"context"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Each reason that explains missed points names an experiment. With its cause switched, the points that it
// names are inside the tolerance; without it they are not. The first point of each reason is run; with
// QUILLON_CAUSES=all, all of them.
func TestCauses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes up to half a minute")
	}
	for _, f := range All() {
		for i := range f.reasons {
			re := &f.reasons[i]
			if re.cause == "" {
				continue
			}
			if re.ratio {
				ratioMoves(t, f, re)
				continue
			}
			if re.series == "" || !f.overThreads && !f.overMixes() {
				t.Errorf("%s, %q: no experiment is run for such reasons here", f.ID, re.text)
				continue
			}
			p, err := load(f.data)
			if err != nil {
				t.Fatal(err)
			}
			named := 0
			for _, s := range p.Quantities[re.panel].Series {
				for _, c := range s.Points {
					if s.Name != re.series || !re.point(re.panel, s.Name, &Point{X: c.x, Name: c.name}) {
						continue
					}
					if named++; named > 1 && os.Getenv("QUILLON_CAUSES") != "all" {
						continue
					}
					off, on := at(t, f, "", re, c, 1), at(t, f, re.cause, re, c, 1)
					if off.Verdict != Explained || on.Verdict != Within {
						t.Errorf("%s, %s at %v%s: %+.0f %% (%s), with %s %+.0f %% (%s)", f.ID, re.series, c.x, c.name, 100**off.Error, off.Verdict, re.cause, 100**on.Error, on.Verdict)
					}
				}
			}
			if named == 0 {
				t.Errorf("%s: a reason names no points: %q", f.ID, re.series)
			}
		}
	}
}

// overMixes reports whether the figure's abscissa is workloads.
func (f *Figure) overMixes() bool {
	p, err := load(f.data)
	return err == nil && p.X.Scale == Category && (p.X.Label == "YCSB" || p.X.Label == "writes")
}

// A default that brings points into the tolerance is needed: without it they are outside.
func TestCauseOff(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	for _, x := range []struct {
		id, cause, series string
		panel             int
		x                 float64
		name              string
	}{
		{id: "2.12", cause: causeKeys, series: nameDefault, x: 56},
		{id: "2.4", cause: causeKeys, series: nameDefault, panel: 1, x: 96},
		{id: "2.13", cause: causeAlone, series: nameReadWrite, x: 112},
		{id: "six-host-run", cause: causeMix, series: "B / " + nameDefault, panel: 1, x: 240},
		{id: "2.15", cause: causeTiming, series: nameReadWrite + " read", name: "5"},
		{id: "ycsb-a-skew", cause: causeIdle, series: "uniform", x: 40},
		{id: "3.10", cause: causeAlone, series: "RCuckoo", x: 160},
		{id: "3.14", cause: causeEmpty, series: "insert", x: 90},
		{id: "3.13", cause: causeSimple, series: "RCuckoo insert", x: 90},
		{id: "2.10", cause: causeLone, series: nameFUSEE, x: 16},
		{id: "3.9", cause: causeLone, series: nameFUSEE, x: 8},
		{id: "3.9", cause: causePunctual, series: nameFUSEE, x: 8},
		{id: "3.9", cause: causeUncached, series: nameFUSEE, x: 8},
		{id: "2.10", cause: causeUncached, series: nameFUSEE, x: 16},
		{id: "2.11", cause: causeSlack, series: nameFUSEE, x: 8},
		{id: "3.11", cause: causeSlack, series: nameFUSEE, x: 16},
	} {
		fs, err := Find(x.id)
		if err != nil {
			t.Fatal(err)
		}
		p, err := load(fs[0].data)
		if err != nil {
			t.Fatal(err)
		}
		re := &reason{panel: x.panel, series: x.series}
		for _, s := range p.Quantities[x.panel].Series {
			for _, c := range s.Points {
				if s.Name != x.series || c.x != x.x || c.name != x.name {
					continue
				}
				on, off := at(t, fs[0], "", re, c, 1), at(t, fs[0], x.cause, re, c, 1)
				if on.Verdict != Within || off.Verdict != Missed {
					t.Errorf("%s, %s at %v%s: %+.0f %% (%s), with %s %+.0f %% (%s)", x.id, x.series, c.x, c.name, 100**on.Error, on.Verdict, x.cause, 100**off.Error, off.Verdict)
				}
			}
		}
	}
}

// ratioMoves runs the two points of the ratio that a reason names, without its cause and with it. Two seeds are run: what
// another seed moves as far as the cause does is not shown by it.
func ratioMoves(t *testing.T, f *Figure, re *reason) {
	t.Helper()
	for _, seed := range []uint64{1, 2} {
		if off, on := ratioAt(t, f, re.series, "", seed), ratioAt(t, f, re.series, re.cause, seed); off != Missed || on != Within {
			t.Errorf("%s, %s, seed %d: %s, with %s %s", f.ID, re.series, seed, off, re.cause, on)
		}
	}
}

// ratioAt runs the two points of a ratio.
func ratioAt(t *testing.T, f *Figure, claim, cause string, seed uint64) Verdict {
	t.Helper()
	i := slices.IndexFunc(f.ratios, func(r ratio) bool { return r.claim == claim })
	if i < 0 {
		t.Fatalf("%s has no ratio %q", f.ID, claim)
	}
	p, err := load(f.data)
	if err != nil {
		t.Fatal(err)
	}
	of := func(r ref) float64 {
		var c coord
		switch x := r.x.(type) {
		case string:
			c.name = x
		case int:
			c.x = float64(x)
		default:
			t.Fatalf("%s: no experiment is run for ratios over %v here", f.ID, r.x)
		}
		return *at(t, f, cause, &reason{panel: r.panel, series: r.series}, c, seed).Ours
	}
	ours := of(f.ratios[i].of) / of(f.ratios[i].to)
	c := Comparison{Published: f.ratios[i].eval(newResult(f, p, Params{}), func(p *Point) *float64 { return p.Published }), Ours: &ours}
	c.compare(f.tolerance().Ratio)
	return c.Verdict
}

// That threads of a FUSEE host share cores brings a ratio into the tolerance.
func TestSharedCores(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	fs, err := Find("2.12")
	if err != nil {
		t.Fatal(err)
	}
	if on, off := ratioAt(t, fs[0], overFUSEE.claim, "", 1), ratioAt(t, fs[0], overFUSEE.claim, causeCores, 1); on != Within || off != Missed {
		t.Errorf("%s; with cores of their own %s", on, off)
	}
}

// at runs one point of a figure over threads or workloads, and nothing else of the figure.
func at(t *testing.T, f *Figure, cause string, re *reason, c coord, seed uint64) Point {
	t.Helper()
	one := *f
	one.jobs = func(p *Published, par Params) ([]job, error) {
		if f.overThreads {
			hosts := f.usual.Hosts
			if re.series == nameFUSEE {
				hosts = fuseeRack().Hosts
			}
			par.Threads = []int{int(c.x) / hosts}
		}
		jobs, err := f.jobs(p, par)
		var want []job
		for _, j := range jobs {
			series, technique, ok := strings.Cut(re.series, " / ")
			if !ok {
				technique = series
			}
			for _, side := range []string{" read", " write"} { // of 2.15
				technique = strings.TrimSuffix(technique, side)
			}
			mine := strings.HasPrefix(j.name, technique+",")
			if ok {
				writes := map[string]string{"C": " 0 %", "B": " 5 %", "A": " 50 %", "W": " 100 %"}[series]
				mine = mine && strings.Contains(j.name, writes)
			}
			if c.name == "" && !f.overThreads {
				mine = mine && strings.HasSuffix(j.name, ", "+strconv.FormatFloat(c.x, 'f', -1, 64))
			}
			if mine && (c.name == "" || strings.HasSuffix(j.name, " "+c.name) || strings.Contains(j.name, ", "+c.name+" % writes")) {
				want = append(want, j)
			}
		}
		return want, err
	}
	r, err := one.Run(context.Background(), Params{Seed: seed, Cause: cause}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pt := r.find(re.panel, re.series, c.x)
	if c.name != "" {
		pt = r.find(re.panel, re.series, c.name)
	}
	if pt == nil || pt.Ours == nil || pt.Error == nil {
		t.Fatalf("%s: no %s at %v", f.ID, re.series, c.x)
	}
	return *pt
}

// The costs of threads on a host were fitted to two curves. The model reproduces points of these curves within
// 3 %.
func TestCrowds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	fs, err := Find("six-host-run")
	if err != nil {
		t.Fatal(err)
	}
	p, err := load(fs[0].data)
	if err != nil {
		t.Fatal(err)
	}
	for _, series := range []string{crowdedReads, crowdedWrites} {
		for _, threads := range []float64{1, 8, 24} {
			x := threads * float64(sixHosts.hosts)
			y, ok := p.at(series, x)
			if !ok {
				t.Fatalf("%s has no point at %v", series, x)
			}
			if got := at(t, fs[0], "", &reason{series: series}, coord{x: x, y: y}, 1); math.Abs(*got.Error) > 0.03 {
				t.Errorf("%s at %v: %+.1f %%", series, x, 100**got.Error)
			}
		}
	}
}

// The middlebox of WORDS '21 has several cores; the experiment takes all but one.
func TestOneCore(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	fs, err := Find("words21-2")
	if err != nil {
		t.Fatal(err)
	}
	p, err := load(fs[0].data)
	if err != nil {
		t.Fatal(err)
	}
	y, ok := p.at(nameWrite, 64)
	if !ok {
		t.Fatal("there is no point with 64 threads")
	}
	re, c := &reason{series: nameWrite}, coord{x: 64, y: y}
	several, one := at(t, fs[0], "", re, c, 1), at(t, fs[0], causeOneCore, re, c, 1)
	if *one.Ours > *several.Ours/2 {
		t.Errorf("%v with one core, %v with several", *one.Ours, *several.Ours)
	}
}

// From few queue pairs on, WRITEs instead of CASes have a higher rate, as published.
func TestReplacedGain(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	fs, err := Find("2.9")
	if err != nil {
		t.Fatal(err)
	}
	r, err := fs[0].Run(context.Background(), Params{Seed: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := 9; n <= 23; n++ {
		write, cas := r.find(0, "CAS → WRITE", n), r.find(0, "CAS", n)
		if *write.Published <= *cas.Published || *write.Ours <= *cas.Ours {
			t.Errorf("%d queue pairs: %v as WRITEs, %v as CAS; published %v, %v", n, *write.Ours, *cas.Ours, *write.Published, *cas.Published)
		}
	}
}
