package demo

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/quillon/quillon/internal/chart"
)

// The figure's size.
const (
	figureWidth  = 11 * vg.Inch
	figureHeight = 4.1 * vg.Inch
	barWidth     = 0.62 // of the distance between two bars
)

var shades = map[string]color.NRGBA{"off": chart.Off, "write": chart.Write, "read-write": chart.ReadWrite}

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
		style.Font.Weight = chart.Bold
		c.FillText(style, at, decimal(k.v))
	}
}

// panel is a plot of bars over named groups.
func panel(title string, groups []string, at []float64, b []bar) *plot.Plot {
	p := chart.New(title)
	p.X.Tick.LineStyle.Width = 0

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
	step := chart.RoundStep(top / 5)
	var y plot.ConstantTicks
	for v := 0.0; v <= top*1.001; v += step {
		y = append(y, plot.Tick{Value: v, Label: tickLabel(v)})
	}
	p.Y.Tick.Marker = y
	p.X.Min, p.X.Max = -0.6, right+0.6
	p.Y.Min, p.Y.Max = 0, top*1.2
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color = chart.Faint
	text := p.X.Tick.Label
	p.Add(grid, bars{bar: b, text: text})
	return p
}

func tickLabel(v float64) string {
	if v == math.Trunc(v) {
		return thousands(v)
	}
	return fmt.Sprintf("%g", v)
}

// draw draws the figure.
func (r *Result) draw(c draw.Canvas) {
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
	head := chart.Text(13)
	head.Font.Weight = chart.Bold
	left := c.Min.X + vg.Points(14)
	c.FillText(head, vg.Point{X: left, Y: c.Max.Y - vg.Points(10)}, r.Config.title())
	key := head
	key.Font = chart.Sans(10)
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
	foot.Font, foot.YAlign = chart.Sans(8), draw.YBottom
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
	return chart.Save(prefix, figureWidth, figureHeight, r.draw)
}
