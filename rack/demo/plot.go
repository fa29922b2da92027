package demo

import (
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The figure's size and colours. The colours differ in lightness as well, so
// that the phases can be told apart in grey.
const (
	figureWidth  = 11 * vg.Inch
	figureHeight = 4.1 * vg.Inch
	figureDPI    = 144
	barWidth     = 0.62 // of the distance between two bars
	bold         = 3    // the weight's number in golang.org/x/image/font
)

var (
	ink    = color.NRGBA{0x22, 0x2B, 0x36, 0xFF}
	faint  = color.NRGBA{0xE3, 0xE6, 0xEA, 0xFF}
	shades = map[string]color.NRGBA{
		"off":        {0x9A, 0xA3, 0xAE, 0xFF},
		"write":      {0x3B, 0x82, 0xC4, 0xFF},
		"read-write": {0x0B, 0x6E, 0x4F, 0xFF},
	}
)

// bar is one bar of a panel.
type bar struct {
	x       float64
	v, base float64 // value, and pass-through's to compare with (0: do not)
	shade   color.NRGBA
}

// bars draws them, each with its value and its ratio on top.
type bars struct {
	bar  []bar
	text draw.TextStyle
}

func (b bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	half := (x(1) - x(0)) * barWidth / 2
	for _, k := range b.bar {
		if math.IsNaN(k.v) {
			continue
		}
		mid, top := x(k.x), y(k.v)
		c.FillPolygon(k.shade, []vg.Point{
			{X: mid - half, Y: y(0)}, {X: mid - half, Y: top}, {X: mid + half, Y: top}, {X: mid + half, Y: y(0)},
		})
		style := b.text
		style.XAlign, style.YAlign = draw.XCenter, draw.YBottom
		at := vg.Point{X: mid, Y: top + vg.Points(3)}
		if r := ratio(k.v, k.base); r != "" {
			style.Font.Size = vg.Points(8)
			c.FillText(style, at, r)
			at.Y += vg.Points(11)
		}
		style.Font.Size = vg.Points(10)
		style.Font.Weight = bold
		c.FillText(style, at, decimal(k.v))
	}
}

func sans(size float64) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(size)}
}

// panel is a plot of bars over named groups.
func panel(title string, groups []string, at []float64, b []bar) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.Padding = vg.Points(10)
	p.BackgroundColor = color.White
	for _, s := range []*draw.TextStyle{&p.Title.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		s.Font, s.Color = sans(9), ink
	}
	p.Title.TextStyle.Font = sans(12)
	p.Title.TextStyle.Font.Weight = bold
	p.X.LineStyle.Color, p.Y.LineStyle.Width = ink, 0
	p.X.Tick.Length, p.Y.Tick.Length = vg.Points(4), 0
	p.X.Tick.LineStyle.Width = 0
	p.X.Padding, p.Y.Padding = 0, vg.Points(4)
	p.X.Tick.Label.YAlign = draw.YTop

	ticks := make(plot.ConstantTicks, len(groups))
	for i := range groups {
		ticks[i] = plot.Tick{Value: at[i], Label: groups[i]}
	}
	p.X.Tick.Marker = ticks
	top, right := 0.0, 0.0
	for _, k := range b {
		if !math.IsNaN(k.v) {
			top = math.Max(top, k.v)
		}
		right = math.Max(right, k.x)
	}
	if top == 0 {
		top = 1
	}
	step := roundStep(top / 5)
	var y plot.ConstantTicks
	for v := 0.0; v <= top*1.001; v += step {
		y = append(y, plot.Tick{Value: v, Label: tickLabel(v)})
	}
	p.Y.Tick.Marker = y
	p.X.Min, p.X.Max = -0.6, right+0.6
	p.Y.Min, p.Y.Max = 0, top*1.2
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color = faint
	text := p.X.Tick.Label
	p.Add(grid, bars{bar: b, text: text})
	return p
}

// roundStep is 1, 2 or 5 times a power of ten, at least v.
func roundStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*p >= v {
			return m * p
		}
	}
	return 10 * p
}

func tickLabel(v float64) string {
	if v == math.Trunc(v) {
		return thousands(v)
	}
	return fmt.Sprintf("%g", v)
}

// draw draws the figure.
func (r *Result) draw(c draw.Canvas) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	one := func(title string, value func(p *Phase) float64) *plot.Plot {
		var b []bar
		var names []string
		var at []float64
		for i := range r.Phases {
			k := bar{x: float64(i), v: value(&r.Phases[i]), shade: shades[r.Phases[i].Name]}
			if i > 0 {
				k.base = value(&r.Phases[0])
			}
			b, names, at = append(b, k), append(names, r.Phases[i].Name), append(at, k.x)
		}
		return panel(title, names, at, b)
	}
	plots := []*plot.Plot{
		one("Operations per second", func(p *Phase) float64 { return p.OpsPerS }),
		one("Packets per operation", func(p *Phase) float64 { return p.PacketsPerOp }),
	}
	// The tails of reads and writes share a panel: one group each.
	var b []bar
	var names []string
	var at []float64
	for _, g := range []struct {
		name  string
		value func(p *Phase) Micros
	}{
		{"read", func(p *Phase) Micros { return p.ReadP99 }},
		{"write", func(p *Phase) Micros { return p.WriteP99 }},
	} {
		if len(r.Phases) == 0 || math.IsNaN(float64(g.value(&r.Phases[0]))) {
			continue
		}
		x0 := 0.0
		if len(b) > 0 {
			x0 = b[len(b)-1].x + 1.6
		}
		for i := range r.Phases {
			k := bar{x: x0 + float64(i), v: float64(g.value(&r.Phases[i])), shade: shades[r.Phases[i].Name]}
			if i > 0 {
				k.base = float64(g.value(&r.Phases[0]))
			}
			b = append(b, k)
		}
		names, at = append(names, g.name), append(at, x0+float64(len(r.Phases)-1)/2)
	}
	plots = append(plots, panel("Latency p99, µs", names, at, b))

	// Head: what was run, and what the colours are.
	head := draw.TextStyle{Font: sans(13), Color: ink, Handler: plot.DefaultTextHandler, YAlign: draw.YTop}
	head.Font.Weight = bold
	left := c.Min.X + vg.Points(14)
	c.FillText(head, vg.Point{X: left, Y: c.Max.Y - vg.Points(10)}, r.Config.title())
	key := head
	key.Font = sans(10)
	x := left
	for _, p := range r.Phases {
		y := c.Max.Y - vg.Points(34)
		c.FillPolygon(shades[p.Name], []vg.Point{
			{X: x, Y: y - vg.Points(9)}, {X: x, Y: y}, {X: x + vg.Points(9), Y: y}, {X: x + vg.Points(9), Y: y - vg.Points(9)},
		})
		x += vg.Points(14)
		c.FillText(key, vg.Point{X: x, Y: y + vg.Points(1)}, titles[p.Name])
		x += key.Width(titles[p.Name]) + vg.Points(20)
	}
	foot := key
	foot.Font, foot.YAlign = sans(8), draw.YBottom
	c.FillText(foot, vg.Point{X: left, Y: c.Min.Y + vg.Points(7)}, fmt.Sprintf("%s; %s, %d cores, Linux %s; quillon %s",
		r.Wire, r.Machine.CPU, r.Machine.Cores, r.Versions.Kernel, r.Versions.Quillon))

	// The third panel has twice as many bars.
	body := draw.Crop(c, vg.Points(12), -vg.Points(12), vg.Points(24), -vg.Points(54))
	width := body.Max.X - body.Min.X
	share := []vg.Length{0.29, 0.29, 0.42}
	from := vg.Length(0)
	for i, p := range plots {
		to := from + share[i]*width
		p.Draw(draw.Crop(body, from+vg.Points(4), to-width-vg.Points(10), 0, 0))
		from = to
	}
}

// Plot writes the figure to prefix.png and prefix.svg.
func (r *Result) Plot(prefix string) error {
	png := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(figureWidth, figureHeight), vgimg.UseDPI(figureDPI))}
	svg := vgsvg.New(figureWidth, figureHeight)
	r.draw(draw.New(png))
	r.draw(draw.New(svg))
	for name, from := range map[string]io.WriterTo{prefix + ".png": png, prefix + ".svg": svg} {
		err := writeFile(name, func(w io.Writer) error {
			_, err := from.WriteTo(w)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
