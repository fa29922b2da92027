package chart

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"gonum.org/v1/plot/vg"
)

// TestFigure: all that is on a figure is drawn, and the same figure gives the same bytes.
func TestFigure(t *testing.T) {
	p := New("a plot", "across", "up")
	for _, x := range []Bar{{X: 0, Y: 3, Shade: Write, Text: "three", Note: "1.50x"}, {X: 1, Y: math.NaN(), Text: "none"}} {
		p.Add(x)
	}
	p.Add(Area{Shade: Faint, X: []float64{0, 1, 2}, Y: []float64{1, 2}}, Line{Style: Style{Shade: Ink, Dashed: true, Open: true}, Points: []Point{{X: 0, Y: 1, Low: 0.5, High: 2}, {X: 2, Y: 2}}})
	FromZero(&p.Y, 4, 1.06, 7, Number)
	Categories(&p.X, 0, 2, []float64{0, 2}, []string{"first", "last"})
	f := Figure{Width: 300, Height: 200, Title: "a title that is far too long for a figure of this width", Foot: "a foot",
		Keys: []Key{{Text: "a line", Style: Style{Shade: Ink}}, {Text: "an area", Style: Style{Shade: Faint}, Area: true}}, Panels: Row(p, p)}
	f.Panels[1].Keys = []Key{{Text: "of a panel", Style: Style{Shade: Off}}}
	var texts [2][]byte
	for i := range texts {
		prefix := filepath.Join(t.TempDir(), "figure")
		if err := f.Save(prefix); err != nil {
			t.Fatal(err)
		}
		var err error
		if texts[i], err = os.ReadFile(prefix + ".svg"); err != nil {
			t.Fatal(err)
		}
		if i, err := os.Stat(prefix + ".png"); err != nil || i.Size() < 1000 {
			t.Errorf("%v, %v", i, err)
		}
	}
	if !bytes.Equal(texts[0], texts[1]) {
		t.Error("two pictures of one figure differ")
	}
	for _, want := range []string{f.Title, "a foot", "a line", "an area", "of a panel", "a plot", "across", "up", "first", "last", "three", "1.50x", "stroke-dasharray"} {
		if !bytes.Contains(texts[0], []byte(want)) {
			t.Errorf("%q is not in the picture", want)
		}
	}
	if bytes.Contains(texts[0], []byte(">none<")) {
		t.Error("a bar that is none is drawn")
	}
}

// TestFromZero: an axis holds its values, with two steps at least.
func TestFromZero(t *testing.T) {
	for _, high := range []float64{0, 1e-9, 0.3, 1, 7, 99, 1e12} {
		p := New("", "", "")
		FromZero(&p.Y, high, 1.06, 7, Number)
		if n := len(p.Y.Ticks); p.Y.Min != 0 || p.Y.Max < high || n < 2 || n > 10 {
			t.Errorf("%v: to %v, %d ticks", high, p.Y.Max, n)
		}
	}
}

// TestRoom: the label at the end of an axis does not get out of the figure, also on a logarithmic axis, and takes no more room than that.
func TestRoom(t *testing.T) {
	along := func(w, _ vg.Length) vg.Length { return w }
	for _, log := range []bool{false, true} {
		a := Axis{Min: 10, Max: 1000, Log: log, Ticks: []Tick{{10, "10"}, {100, ""}, {1000, "a thousand"}, {10000, "not on the axis, and long"}}}
		s := Text(9)
		_, _, inner := a.room(s, 200, along)
		if end := inner*vg.Length(a.Norm(1000)) + s.Width("a thousand")/2; math.Abs(float64(end-200)) > 1e-9 {
			t.Errorf("logarithmic: %v: the last label ends at %v of 200", log, end)
		}
		if want := map[bool]float64{false: 1. / 11, true: 0.5}[log]; math.Abs(a.Norm(100)-want) > 1e-9 {
			t.Errorf("logarithmic: %v: 100 is at %v, want %v", log, a.Norm(100), want)
		}
	}
}
