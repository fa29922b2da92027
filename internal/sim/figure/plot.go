package figure

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg"

	"github.com/quillon/quillon/internal/chart"
)

// Sizes of a picture.
const (
	panelWidth    = 6.4 * vg.Inch
	pictureHeight = 4.9 * vg.Inch
	groupWidth    = 0.62 // of the distance between two categories
)

// shades are the colours of curves that mean the same in several figures; other curves take the colours of
// rest in turn. Colours of reads are lighter than those of writes.
var (
	shades = []struct {
		prefix string
		shade  color.NRGBA
	}{
		{nameDefault + " write", color.NRGBA{0x4F, 0x56, 0x5F, 0xFF}},
		{nameReadWrite + " write", color.NRGBA{0x06, 0x3F, 0x30, 0xFF}},
		{nameWrite + " write", color.NRGBA{0x1C, 0x4A, 0x78, 0xFF}},
		{nameDefault, chart.Off},
		{nameReadWrite, chart.ReadWrite},
		{nameWrite, chart.Write},
	}
	rest = []color.NRGBA{chart.Write, {0xC8, 0x55, 0x1B, 0xFF}, chart.ReadWrite, chart.Off, {0x7A, 0x3E, 0x9D, 0xFF}, {0xB5, 0x8A, 0x00, 0xFF}}
)

// families are the colours of curves whose names are "family / member"; a member has its own mark.
var families = []color.NRGBA{{0x7A, 0x3E, 0x9D, 0xFF}, chart.ReadWrite, chart.Write, {0xC8, 0x55, 0x1B, 0xFF}, chart.Off, {0xB5, 0x8A, 0x00, 0xFF}}

// look returns the colour and the mark of curve i of a panel.
func look(curves []Curve, i int) (color.NRGBA, chart.Shape) {
	name := curves[i].Name
	family, member, ok := strings.Cut(name, " / ")
	if !ok {
		return plain(curves, i)
	}
	var all, members []string
	for _, c := range curves {
		f, m, _ := strings.Cut(c.Name, " / ")
		if !slices.Contains(all, f) {
			all = append(all, f)
		}
		if !slices.Contains(members, m) {
			members = append(members, m)
		}
	}
	shapes := []chart.Shape{chart.Circle, chart.Square, chart.Triangle}
	return families[slices.Index(all, family)%len(families)], shapes[slices.Index(members, member)%len(shapes)]
}

// plain is look for a curve of no family. Those that shades has not take, in turn, the colours of rest that no other curve of the panel
// has, and then these again with another mark. (Squares are inputs.)
func plain(curves []Curve, i int) (color.NRGBA, chart.Shape) {
	if s, ok := shade(curves[i].Name); ok {
		return s, chart.Circle
	}
	free, k := slices.Clone(rest), 0
	for j := range curves {
		if s, ok := shade(curves[j].Name); ok {
			free = slices.DeleteFunc(free, func(c color.NRGBA) bool { return c == s })
		} else if j < i {
			k++
		}
	}
	return free[k%len(free)], []chart.Shape{chart.Circle, chart.Triangle}[k/len(free)%2]
}

// shade is the colour that curves of a name have in all figures.
func shade(name string) (color.NRGBA, bool) {
	for _, s := range shades {
		if strings.HasPrefix(name, s.prefix) {
			return s.shade, true
		}
	}
	return color.NRGBA{}, false
}

// Save writes the picture to prefix.png and prefix.svg; the same Result gives
// the same bytes.
func (r *Result) Save(prefix string) error {
	foot := fmt.Sprintf("%s; simulated by quillon, seed %d", r.Document, r.Parameters.Seed)
	if r.Experiment != "" {
		foot += "; experiment: " + r.Experiment
	}
	if len(r.Altered) > 0 {
		foot += "; simulated with other parameters: " + strings.Join(r.Altered, ", ")
	}
	var panels []*chart.Plot
	for i := range r.Panels {
		panels = append(panels, r.panel(i))
	}
	f := chart.Figure{
		Width: panelWidth * vg.Length(len(r.Panels)), Height: pictureHeight,
		Title: fmt.Sprintf("%s  %s", r.Figure, r.Caption), Foot: foot, Keys: r.keys(), Panels: chart.Row(panels...),
	}
	return f.Save(prefix)
}

// style returns the style of published values, or of simulated ones.
func style(published bool, s color.Color) chart.Style {
	return chart.Style{Shade: s, Dashed: published, Open: published}
}

// keys returns the legend: the styles first, then the colours of the curves.
func (r *Result) keys() []chart.Key {
	var keys []chart.Key
	published, missed, explained, input := r.has()
	if published {
		text := r.theirs()
		if r.Against != "" {
			text = filepath.Base(r.Against)
		}
		keys = append(keys, chart.Key{Text: text, Style: style(true, chart.Ink)})
	}
	keys = append(keys, chart.Key{Text: "simulated", Style: style(false, chart.Ink)})
	if missed {
		keys = append(keys, chart.Key{Text: "missed", Style: strike})
	}
	if explained {
		keys = append(keys, chart.Key{Text: "outside, shown by an experiment", Style: shown})
	}
	if input {
		keys = append(keys, chart.Key{Text: "input, no prediction", Style: chart.Style{Shade: chart.Ink, Open: true, Shape: chart.Square, Width: 0.01}})
	}
	seen := map[string]bool{}
	for _, p := range r.Panels {
		for i, cu := range p.Curves {
			if seen[cu.Name] {
				continue
			}
			seen[cu.Name] = true
			label := cu.Name
			switch {
			case slices.Contains(r.Fitted, cu.Name):
				label += " (input)"
			case !cu.simulated():
				label += " (" + r.theirs() + " only)"
			}
			s, shape := look(p.Curves, i)
			keys = append(keys, chart.Key{Text: label, Style: chart.Style{Shade: s, Shape: shape}, Area: shape == chart.Circle && !strings.Contains(cu.Name, " / ")})
		}
	}
	return keys
}

// strike marks what was missed.
var strike = chart.Style{Shade: color.NRGBA{0xC0, 0x20, 0x20, 0xFF}, Shape: chart.Cross, Dots: true, Width: 0.01}

// shown marks points outside the tolerance whose cause an experiment shows.
var shown = chart.Style{Shade: color.NRGBA{0xE0, 0x8A, 0x00, 0xFF}, Shape: chart.Cross, Dots: true, Width: 0.01}

// has reports which sorts of points there are.
func (r *Result) has() (published, missed, explained, input bool) {
	for _, p := range r.Panels {
		for _, c := range p.Curves {
			for _, pt := range c.Points {
				published = published || pt.Published != nil
				missed = missed || pt.Verdict == Missed
				explained = explained || pt.Verdict == Explained
				input = input || pt.Verdict == Input
			}
		}
	}
	return published, missed, explained, input
}

// side returns the published value or the simulated one; false if there is none that can be drawn.
func (d *Panel) side(pt *Point, published bool) (float64, bool) {
	v := pt.Ours
	if published {
		v = pt.Published
	}
	if v == nil || d.Y.Scale == Log && *v <= 0 {
		return 0, false
	}
	return *v, true
}

// lines returns what is drawn of curve i. On an axis of categories a thin line leads from each published
// value to the simulated one; then come all published values, all simulated ones, and the marks of verdicts.
func (r *Result) lines(d *Panel, i int) (lines []chart.Drawing) {
	cu, category := &d.Curves[i], r.X.Scale == Category
	s, shape := look(d.Curves, i)
	shift := 0.0
	if n := len(d.Curves); category && n > 1 {
		shift = groupWidth * (float64(i)/float64(n-1) - 0.5)
	}
	for k := range cu.Points {
		pt := &cu.Points[k]
		a, ok1 := d.side(pt, true)
		b, ok2 := d.side(pt, false)
		if category && ok1 && ok2 {
			x := pt.X + shift
			lines = append(lines, chart.Line{Style: chart.Style{Shade: s, Width: 0.8, Bare: true}, Points: []chart.Point{{X: x, Y: a}, {X: x, Y: b}}})
		}
	}
	for _, published := range []bool{true, false} {
		l := chart.Line{Style: style(published, s)}
		l.Dots, l.Shape = category, shape
		for k := range cu.Points {
			pt := &cu.Points[k]
			y, ok := d.side(pt, published)
			if !ok {
				continue
			}
			at := chart.Point{X: pt.X + shift, Y: y}
			if published && pt.Deviation > 0 && (d.Y.Scale != Log || y > pt.Deviation) {
				at.Low, at.High = y-pt.Deviation, y+pt.Deviation
			}
			l.Points = append(l.Points, at)
		}
		lines = append(lines, l)
	}
	crosses, causes, inputs := chart.Line{Style: strike}, chart.Line{Style: shown}, chart.Line{Style: chart.Style{Shade: s, Open: true, Shape: chart.Square, Dots: true}}
	for k := range cu.Points {
		pt := &cu.Points[k]
		if y, ok := d.side(pt, false); ok {
			at := chart.Point{X: pt.X + shift, Y: y}
			switch pt.Verdict {
			case Missed:
				crosses.Points = append(crosses.Points, at)
			case Explained:
				causes.Points = append(causes.Points, at)
			case Input:
				inputs.Points = append(inputs.Points, at)
			}
		}
	}
	return append(lines, inputs, causes, crosses)
}

// spread makes the ordinate logarithmic if the largest values of curves differ by a factor of ten or more.
func (d *Panel) spread() {
	if d.Y.Scale != Linear && d.Y.Scale != "" {
		return
	}
	least, most := math.Inf(1), 0.0
	for _, c := range d.Curves {
		top := 0.0
		for _, pt := range c.Points {
			for _, v := range []*float64{pt.Published, pt.Ours} {
				if v == nil {
					continue
				}
				if *v <= 0 {
					return
				}
				top = math.Max(top, *v)
			}
		}
		if top > 0 {
			least, most = math.Min(least, top), math.Max(most, top)
		}
	}
	if most >= 10*least {
		d.Y.Scale = Log
	}
}

// panel returns the plot of panel i.
func (r *Result) panel(i int) *chart.Plot {
	drawn := r.Panels[i]
	d := &drawn
	d.spread()
	p := chart.New("", r.X.String(), d.Y.String())
	xs, ys := extent{}, extent{}
	names := map[float64]string{}
	for i, cu := range d.Curves {
		for _, pt := range cu.Points {
			for _, v := range []*float64{pt.Published, pt.Ours} {
				if v != nil && (d.Y.Scale != Log || *v > 0) {
					ys.add(*v)
					xs.add(pt.X)
				}
			}
			names[pt.X] = pt.Name
		}
		p.Add(r.lines(d, i)...)
	}
	if !ys.set {
		ys.add(1)
		xs.add(1)
	}
	if r.X.Scale == Category {
		var at []float64
		var text []string
		for x := xs.low; x <= xs.high; x++ {
			at, text = append(at, x), append(text, wrap(names[x], 0.85*panelWidth/vg.Length(xs.high-xs.low+1.2)))
		}
		chart.Categories(&p.X, xs.low, xs.high, at, text)
	} else {
		r.X.span(&p.X, xs)
	}
	d.Y.span(&p.Y, ys)
	return p
}

// wrap breaks the name of a category into lines that are no wider than width, where there are blanks.
func wrap(name string, width vg.Length) string {
	style := chart.Text(9)
	line, text := "", ""
	for _, word := range strings.Fields(name) {
		if line != "" && style.Width(line+" "+word) > width {
			text += line + "\n"
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return text + line
}

// extent is the range of some values.
type extent struct {
	low, high float64
	set       bool
}

func (e *extent) add(v float64) {
	if !e.set {
		e.low, e.high, e.set = v, v, true
		return
	}
	e.low, e.high = math.Min(e.low, v), math.Max(e.high, v)
}

// span makes the axis hold e: from 0 in round steps, or, if it is logarithmic, by powers of ten.
func (a Axis) span(x *chart.Axis, e extent) {
	if a.Scale != Log {
		chart.FromZero(x, e.high, 1.06, 7, chart.Number)
		return
	}
	low := math.Pow(10, math.Floor(math.Log10(e.low)))
	high := math.Pow(10, math.Ceil(math.Log10(e.high)))
	if low == high {
		high *= 10
	}
	every := 1 + int(math.Log10(high/low))/9
	for n, v := 0, low; v <= high*1.001; n, v = n+1, v*10 {
		t := chart.Tick{Value: v}
		if n%every == 0 {
			t.Label = chart.Number(v)
		}
		x.Ticks = append(x.Ticks, t)
	}
	x.Min, x.Max, x.Log = low, high, true
}
