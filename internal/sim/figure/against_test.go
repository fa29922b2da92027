package figure

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The user's curves are compared with the same tables and tolerances, whatever the parameters.
func TestAgainst(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.csv")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs, err := Find("2.12")
	if err != nil {
		t.Fatal(err)
	}
	steep := 1.2
	par := Params{Seed: 1, Hosts: 2, Keys: 200, Zipf: &steep, Against: file}
	write("x,y,series\n# of two hosts\n8, 1.0, Write + read steering\n4,0.7,Write + read steering\n8,99,Clover (default)\n")
	r, err := fs[0].Run(context.Background(), par, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Altered) != 3 || r.Points.total() != 3 || len(r.Panels[0].Curves) != 2 || r.find(0, nameDefault, 8).Verdict != Missed || r.find(0, nameReadWrite, 4).Verdict == NotCompared {
		t.Errorf("%+v, %+v, %+v", r.Altered, r.Points, r.Panels)
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil || !strings.Contains(b.String(), "compared with "+file) {
		t.Errorf("%v\n%s", err, &b)
	}
	if p, m, _, _ := r.has(); !p || !m {
		t.Error("a picture without their curves, or without what was missed")
	}

	// Without curves of the user nothing is compared, and no published curve is drawn.
	par.Against, par.Threads, par.Quick = "", []int{2}, true
	if r, err = fs[0].Run(context.Background(), par, nil); err != nil {
		t.Fatal(err)
	}
	if p, _, _, _ := r.has(); p || r.Points.total() != 0 {
		t.Errorf("published curves with other parameters: %+v", r.Panels)
	}

	for text, want := range map[string]string{
		"":                                         "no rows",
		"1,2\n":                                    "line 1: 2 columns",
		"x,y,series\n7,1,Nobody\n":                 "line 2: series \"Nobody\"; the figure has: " + nameDefault,
		"a,1," + nameWrite + "\n":                  "no number",
		"8,0," + nameWrite + "\n":                  "above 0",
		"8,1," + nameWrite + ",1\n":                "panel \"1\"",
		"9,1," + nameWrite + "\n":                  "x = 9: 2 hosts",
		"8,\"1," + nameWrite + "\n":                "quote",
		"NaN,1," + nameWrite + "\n":                "no number",
		"4,1,Write steering\n4,1,Write steering\n": "twice",
	} {
		write(text)
		_, err := fs[0].Run(context.Background(), Params{Hosts: 2, Against: file}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := fs[0].Run(context.Background(), Params{Against: file + "x"}, nil); err == nil {
		t.Error("a file that is not there")
	}
}

// Parameters that are equal to the published ones change nothing.
func TestUsual(t *testing.T) {
	zipf, other := fileZipf, 0.99
	for _, f := range All() {
		if !reflect.DeepEqual(f.takes, takesStore) {
			continue
		}
		par := Params{Hosts: f.usual.Hosts, Keys: f.usual.Keys, Zipf: f.usual.Zipf, ObjectSize: f.usual.ObjectSize, Search: "library"}
		if list, err := f.altered(&par); err != nil || len(list) != 0 || par.Hosts != 0 || par.Zipf != nil {
			t.Errorf("%s: %v, %v", f.ID, list, err)
		}
	}
	fs, _ := Find("2.14")
	for _, c := range []struct {
		par  Params
		want int
	}{
		{Params{Hosts: 7, Zipf: &zipf, Threads: []int{40}}, 0},
		{Params{Hosts: 6}, 1},
		{Params{Zipf: &other, Search: "headers"}, 2},
		{Params{Threads: []int{8}}, 1},
	} {
		if list, err := fs[0].altered(&c.par); err != nil || len(list) != c.want {
			t.Errorf("%+v: %v, %v", c.par, list, err)
		}
	}
}

// The curves of a picture look different from each other. Curves that differ by a factor of ten have a logarithmic
// ordinate.
func TestLooks(t *testing.T) {
	type dress struct{ c, s any }
	for _, f := range All() {
		r := newResult(f, mustLoad(t, f.data), Params{})
		for q := range r.Panels {
			d, seen := r.Panels[q], map[dress]string{}
			for i := range d.Curves {
				c, s := look(d.Curves, i)
				if was := seen[dress{c, s}]; was != "" {
					t.Errorf("%s: %s looks like %s", f.ID, d.Curves[i].Name, was)
				}
				seen[dress{c, s}] = d.Curves[i].Name
			}
			if d.spread(); f.ID == "six-host-run" && q == 0 && (len(seen) != 12 || d.Y.Scale != Log) {
				t.Errorf("%d curves, %s", len(seen), d.Y.Scale)
			}
		}
	}
	fs, _ := Find("2.1")
	if d := newResult(fs[0], mustLoad(t, "2.1"), Params{}).Panels[0]; d.Y.Scale == Log {
		t.Error("one curve is logarithmic")
	}
}

// Known misses are shown apart from others. No miss is hidden.
func TestKnown(t *testing.T) {
	v := func(x float64) *float64 { return &x }
	missed := func(x, ours float64) Point {
		return Point{X: x, Comparison: Comparison{Published: v(1), Ours: v(ours), Verdict: Missed}}
	}
	r := &Result{Figure: "1", Panels: []Panel{{Curves: []Curve{{Name: "a, b", Points: []Point{missed(1, 2), missed(2, 3), {X: 3}}}}}}}
	var b bytes.Buffer
	if err := WriteMisses(&b, r.Misses()); err != nil {
		t.Fatal(err)
	}
	known, err := ReadMisses(strings.NewReader("# remark\n" + b.String()))
	if err != nil || len(known) != 2 || known[1] != (Miss{"1", "0", "a, b", "2", 3}) {
		t.Fatalf("%+v, %v", known, err)
	}
	if u, g := Unknown([]*Result{r}, known); len(u)+len(g) != 0 {
		t.Errorf("%v, %v", u, g)
	}
	known[0].Ratio, known[1].X = 1.5, "7"
	if u, g := Unknown([]*Result{r}, known); len(u) != 2 || len(g) != 1 || g[0].X != "7" {
		t.Errorf("%v, %v", u, g)
	}
	for _, text := range []string{"1,2\n", "1,0,a,1,x\n", "1,0,a,1,-1\n"} {
		if _, err := ReadMisses(strings.NewReader(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
