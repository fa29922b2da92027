package plan

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/quillon/quillon/internal/chart"
)

// line is a level that is provisioned for.
type line struct {
	name   string
	level  float64
	shade  color.NRGBA
	dashed bool
}

// lines of the picture.
func (p *Plan) lines() []line {
	racks := "peaks of the racks"
	if len(p.Racks) == 1 {
		racks = "peak of the sum"
	}
	return []line{
		{fmt.Sprintf("sum of peaks, %.3g Gb/s", p.Peaks.Endpoints), p.Peaks.Endpoints, color.NRGBA{0xC8, 0x55, 0x1B, 0xFF}, true},
		{fmt.Sprintf("%s, %.3g Gb/s", racks, p.Peaks.Racks), p.Peaks.Racks, chart.ReadWrite, true},
		{fmt.Sprintf("provisioned, %.3g Gb/s", p.Need.Gbps), p.Need.Gbps, chart.ReadWrite, false},
		{fmt.Sprintf("mean, %.3g Gb/s", p.Mean), p.Mean, chart.Off, false},
	}
}

// Save draws the load over time with what is provisioned for it, to prefix.png
// and prefix.svg.
func (p *Plan) Save(prefix, title string) error {
	return chart.Save(prefix, 9*vg.Inch, 4.6*vg.Inch, func(c draw.Canvas) { p.draw(c, title) })
}

func (p *Plan) draw(c draw.Canvas, title string) {
	left := c.Min.X + vg.Points(14)
	head := chart.Text(13)
	head.Font.Weight = chart.Bold
	if w, room := head.Width(title), c.Max.X-left-vg.Points(14); w > room {
		head.Font.Size *= room / w
	}
	c.FillText(head, vg.Point{X: left, Y: c.Max.Y - vg.Points(9)}, title)
	text := chart.Text(9)
	x, y := left, c.Max.Y-vg.Points(32)
	key := func(sample func(vg.Point), name string) {
		if x+vg.Points(27)+text.Width(name) > c.Max.X-vg.Points(14) {
			x, y = left, y-vg.Points(14)
		}
		sample(vg.Point{X: x, Y: y - vg.Points(5)})
		x += vg.Points(27)
		c.FillText(text, vg.Point{X: x, Y: y}, name)
		x += text.Width(name) + vg.Points(14)
	}
	key(func(at vg.Point) { box(c, pale, at.X, at.X+vg.Points(22), at.Y-vg.Points(4), at.Y+vg.Points(4)) }, "load, peak of a bin")
	key(func(at vg.Point) { box(c, chart.Write, at.X, at.X+vg.Points(22), at.Y-vg.Points(4), at.Y+vg.Points(4)) }, "load, mean")
	for _, l := range p.lines() {
		key(func(at vg.Point) { l.draw(c, at.X, at.X+vg.Points(22), at.Y) }, l.name)
	}

	pl := chart.New("")
	pl.X.Label.Text, pl.Y.Label.Text = "time, s", "Gb/s"
	top := 0.0
	for _, l := range p.lines() {
		top = math.Max(top, l.level)
	}
	pl.X.Min, pl.X.Max, pl.X.Tick.Marker = axis(p.Duration, 1)
	pl.Y.Min, pl.Y.Max, pl.Y.Tick.Marker = axis(top, 1.06)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, chart.Faint
	pl.Add(grid, load{p})
	pl.Draw(draw.Crop(c, vg.Points(10), -vg.Points(16), vg.Points(8), y-vg.Points(24)-c.Max.Y))
}

// pale is the shade of peaks, of which means are a part.
var pale = color.NRGBA{0xB9, 0xD4, 0xEC, 0xFF}

func box(c draw.Canvas, shade color.Color, x0, x1, y0, y1 vg.Length) {
	c.FillPolygon(shade, []vg.Point{{X: x0, Y: y0}, {X: x0, Y: y1}, {X: x1, Y: y1}, {X: x1, Y: y0}})
}

func (l *line) draw(c draw.Canvas, x0, x1, y vg.Length) {
	s := draw.LineStyle{Color: l.shade, Width: vg.Points(1.6)}
	if l.dashed {
		s.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
	}
	c.StrokeLines(s, []vg.Point{{X: x0, Y: y}, {X: x1, Y: y}})
}

// axis is from 0 in round steps.
func axis(v, room float64) (low, high float64, ticks plot.ConstantTicks) {
	high = v * room
	if high <= 0 {
		high = 1
	}
	step := chart.RoundStep(high / 7)
	for n := 0; float64(n)*step <= high; n++ {
		ticks = append(ticks, plot.Tick{Value: float64(n) * step, Label: strconv.FormatFloat(float64(n)*step, 'g', 6, 64)})
	}
	return 0, high, ticks
}

// load draws a Plan's timeline and lines.
type load struct{ p *Plan }

// Plot implements plot.Plotter.
func (l load) Plot(c draw.Canvas, pl *plot.Plot) {
	tx, ty := pl.Transforms(&c)
	bins, each := l.p.timeline.Bins()
	unit := 8 / l.p.Interval / 1e9
	for _, peaks := range []bool{true, false} {
		shade, top := pale, []vg.Point{{X: tx(0), Y: ty(0)}}
		if !peaks {
			shade = chart.Write
		}
		x := 0.0
		for i, b := range bins {
			n := float64(each)
			if i == len(bins)-1 {
				n = float64(l.p.Intervals) - float64(i)*n
			}
			v := b.Sum / n
			if peaks {
				v = b.Peak
			}
			to := x + n*l.p.Interval
			top = append(top, vg.Point{X: tx(x), Y: ty(v * unit)}, vg.Point{X: tx(to), Y: ty(v * unit)})
			x = to
		}
		c.FillPolygon(shade, append(top, vg.Point{X: tx(x), Y: ty(0)}))
	}
	for _, k := range l.p.lines() {
		k.draw(c, c.Min.X, c.Max.X, ty(k.level))
	}
}
