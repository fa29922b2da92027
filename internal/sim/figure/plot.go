package figure

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/quillon/quillon/internal/chart"
)

// Sizes of a picture.
const (
	panelWidth    = 6.4 * vg.Inch
	pictureHeight = 4.9 * vg.Inch
	footHeight    = vg.Length(22)
	markRadius    = vg.Length(2.6)
	groupWidth    = 0.62 // of the distance between two categories
)

// shades are the colours of curves that mean the same in several figures;
// other curves take rest in turn.
//
// Reads are lighter than writes.
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

func shade(name string, i int) color.NRGBA {
	for _, s := range shades {
		if strings.HasPrefix(name, s.prefix) {
			return s.shade
		}
	}
	return rest[i%len(rest)]
}

// Save writes the picture to prefix.png and prefix.svg; the same Result gives
// the same bytes.
func (r *Result) Save(prefix string) error {
	return chart.Save(prefix, panelWidth*vg.Length(len(r.Panels)), pictureHeight, r.draw)
}

func (r *Result) draw(c draw.Canvas) {
	left := c.Min.X + vg.Points(14)
	right := c.Max.X - vg.Points(14)
	head := chart.Text(13)
	head.Font.Weight = chart.Bold
	title := fmt.Sprintf("%s  %s", r.Figure, r.Caption)
	c.FillText(fitting(head, title, right-left), vg.Point{X: left, Y: c.Max.Y - vg.Points(9)}, title)
	keys := r.key(c, left, right, c.Max.Y-vg.Points(32))

	foot := chart.Text(8)
	foot.YAlign = draw.YBottom
	text := fmt.Sprintf("%s; simulated by quillon, seed %d", r.Document, r.Parameters.Seed)
	if len(r.Altered) > 0 {
		text += "; simulated with other parameters: " + strings.Join(r.Altered, ", ")
	}
	c.FillText(fitting(foot, text, right-left), vg.Point{X: left, Y: c.Min.Y + vg.Points(7)}, text)

	body := draw.Crop(c, vg.Points(10), -vg.Points(14), footHeight, keys-c.Max.Y)
	width := (body.Max.X - body.Min.X) / vg.Length(len(r.Panels))
	for i := range r.Panels {
		from := width * vg.Length(i)
		r.panel(i).Draw(draw.Crop(body, from+vg.Points(4), from+width-(body.Max.X-body.Min.X)-vg.Points(6), 0, 0))
	}
}

// fitting is a style in which a line is no wider than width.
func fitting(s draw.TextStyle, line string, width vg.Length) draw.TextStyle {
	if w := s.Width(line); w > width {
		s.Font.Size *= width / w
	}
	return s
}

// key draws the legend: dashed and hollow is published, solid is simulated,
// then the curves' colours. It returns where it ends.
func (r *Result) key(c draw.Canvas, left, right, y vg.Length) vg.Length {
	text := chart.Text(9)
	x := left
	sample := func(published bool, s color.NRGBA) {
		a, b := vg.Point{X: x, Y: y - vg.Points(5)}, vg.Point{X: x + vg.Points(22), Y: y - vg.Points(5)}
		c.StrokeLines(stroke(published, s), []vg.Point{a, b})
		mark(c, published, s, vg.Point{X: (a.X + b.X) / 2, Y: a.Y})
		x = b.X + vg.Points(5)
	}
	word := func(s string) {
		c.FillText(text, vg.Point{X: x, Y: y}, s)
		x += text.Width(s) + vg.Points(16)
	}
	sample(true, chart.Ink)
	word("published")
	sample(false, chart.Ink)
	word("simulated")
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
				label += " (fitted)"
			case !cu.simulated():
				label += " (published only)"
			}
			if x+vg.Points(14)+text.Width(label) > right {
				x, y = left, y-vg.Points(13)
			}
			s := shade(cu.Name, i)
			c.FillPolygon(s, []vg.Point{
				{X: x, Y: y - vg.Points(9)}, {X: x, Y: y}, {X: x + vg.Points(9), Y: y}, {X: x + vg.Points(9), Y: y - vg.Points(9)},
			})
			x += vg.Points(13)
			word(label)
		}
	}
	return y - vg.Points(24)
}

func stroke(published bool, s color.Color) draw.LineStyle {
	l := draw.LineStyle{Color: s, Width: vg.Points(1.6)}
	if published {
		l.Width = vg.Points(1.1)
		l.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	}
	return l
}

func mark(c draw.Canvas, published bool, s color.Color, at vg.Point) {
	var p vg.Path
	p.Move(vg.Point{X: at.X + markRadius, Y: at.Y})
	p.Arc(at, markRadius, 0, 2*math.Pi)
	p.Close()
	if published {
		c.SetColor(color.White)
		c.Fill(p)
		c.SetLineStyle(draw.LineStyle{Color: s, Width: vg.Points(1.1)})
		c.Stroke(p)
		return
	}
	c.SetColor(s)
	c.Fill(p)
}

// curves draws a panel's curves.
type curves struct {
	r *Result
	p *Panel
}

// side is the published value or ours; false when there is none that can be
// drawn.
func (d curves) side(pt *Point, published bool) (float64, bool) {
	v := pt.Ours
	if published {
		v = pt.Published
	}
	if v == nil || d.p.Y.Scale == Log && *v <= 0 {
		return 0, false
	}
	return *v, true
}

// Plot implements plot.Plotter.
func (d curves) Plot(c draw.Canvas, p *plot.Plot) {
	tx, ty := p.Transforms(&c)
	for i := range d.p.Curves {
		cu := &d.p.Curves[i]
		s := shade(cu.Name, i)
		shift := 0.0
		if n := len(d.p.Curves); d.r.X.Scale == Category && n > 1 {
			shift = groupWidth * (float64(i)/float64(n-1) - 0.5)
		}
		if d.r.X.Scale == Category {
			// A thin line joins the two values of a category.
			for k := range cu.Points {
				pt := &cu.Points[k]
				a, ok1 := d.side(pt, true)
				b, ok2 := d.side(pt, false)
				if ok1 && ok2 {
					x := tx(pt.X + shift)
					c.StrokeLines(draw.LineStyle{Color: s, Width: vg.Points(0.8)}, []vg.Point{{X: x, Y: ty(a)}, {X: x, Y: ty(b)}})
				}
			}
		}
		for _, published := range []bool{true, false} {
			var at []vg.Point
			for k := range cu.Points {
				pt := &cu.Points[k]
				y, ok := d.side(pt, published)
				if !ok {
					continue
				}
				to := vg.Point{X: tx(pt.X + shift), Y: ty(y)}
				if published && pt.Deviation > 0 && (d.p.Y.Scale != Log || y > pt.Deviation) {
					c.StrokeLines(draw.LineStyle{Color: s, Width: vg.Points(0.8)},
						[]vg.Point{{X: to.X, Y: ty(y - pt.Deviation)}, {X: to.X, Y: ty(y + pt.Deviation)}})
				}
				at = append(at, to)
			}
			if d.r.X.Scale != Category {
				c.StrokeLines(stroke(published, s), at)
			}
			for _, a := range at {
				mark(c, published, s, a)
			}
		}
	}
}

// panel is the plot of panel i.
func (r *Result) panel(i int) *plot.Plot {
	d := &r.Panels[i]
	p := chart.New("")
	p.X.Label.Text, p.Y.Label.Text = r.X.String(), d.Y.String()
	xs, ys := extent{}, extent{}
	names := map[float64]string{}
	for _, cu := range d.Curves {
		for _, pt := range cu.Points {
			for _, v := range []*float64{pt.Published, pt.Ours} {
				if v != nil && (d.Y.Scale != Log || *v > 0) {
					ys.add(*v)
					xs.add(pt.X)
				}
			}
			names[pt.X] = pt.Name
		}
	}
	if !ys.set {
		ys.add(1)
		xs.add(1)
	}
	p.X.Min, p.X.Max, p.X.Tick.Marker = r.X.span(xs)
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = d.Y.span(ys)
	switch {
	case r.X.Scale == Category:
		var ticks plot.ConstantTicks
		for x := xs.low; x <= xs.high; x++ {
			ticks = append(ticks, plot.Tick{Value: x, Label: wrap(names[x], 0.85*panelWidth/vg.Length(xs.high-xs.low+1.2))})
		}
		p.X.Tick.Marker, p.X.Min, p.X.Max = ticks, xs.low-0.6, xs.high+0.6
	case r.X.Scale == Log:
		p.X.Scale = plot.LogScale{}
	}
	if d.Y.Scale == Log {
		p.Y.Scale = plot.LogScale{}
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color = chart.Faint
	p.Add(grid, curves{r, d})
	return p
}

// wrap breaks a category's name into lines that are no wider than width, where
// it has blanks.
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

// extent is the span of some values.
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

// span is an axis that holds e, with its ticks: from 0 in round steps, or by
// powers of ten.
func (a Axis) span(e extent) (low, high float64, ticks plot.ConstantTicks) {
	if a.Scale == Log {
		low = math.Pow(10, math.Floor(math.Log10(e.low)))
		high = math.Pow(10, math.Ceil(math.Log10(e.high)))
		if low == high {
			high *= 10
		}
		every := 1 + int(math.Log10(high/low))/9
		for n, v := 0, low; v <= high*1.001; n, v = n+1, v*10 {
			t := plot.Tick{Value: v}
			if n%every == 0 {
				t.Label = strconv.FormatFloat(v, 'g', 6, 64)
			}
			ticks = append(ticks, t)
		}
		return low, high, ticks
	}
	high = e.high * 1.06
	if high <= 0 {
		high = 1
	}
	step := chart.RoundStep(high / 7)
	for n := 0; float64(n)*step <= high; n++ {
		v := float64(n) * step
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 6, 64)})
	}
	return 0, high, ticks
}
