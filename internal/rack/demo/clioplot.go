package demo

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/quillon/quillon/internal/chart"
)

// clioShades are the variants' colours, in their order.
var clioShades = []color.NRGBA{
	chart.Off, chart.Write, chart.ReadWrite, {0x5D, 0x67, 0x73, 0xFF},
	{0xB9, 0xD7, 0xEF, 0xFF}, {0x1F, 0x4E, 0x79, 0xFF}, {0xE0, 0x9F, 0x3E, 0xFF}, {0x9E, 0x2A, 0x2B, 0xFF},
}

// Plot writes the figure to prefix.png and prefix.svg.
func (r *ClioResult) Plot(prefix string) error {
	return chart.Save(prefix, 13*vg.Inch, 10.2*vg.Inch, r.draw)
}

// groups is a panel of bars, a group for each workload and a bar for each variant that has a value.
func (r *ClioResult) groups(title string, value func(x *ClioRow) float64) *plot.Plot {
	var b []bar
	var at []float64
	x := 0.0
	for k := range r.Config.Workloads {
		from := x
		for i := range r.Variants {
			v := value(&r.Variants[i].Rows[k])
			if math.IsNaN(v) {
				continue
			}
			b = append(b, bar{x: x, v: v, shade: r.shade(i)})
			x++
		}
		at = append(at, (from+x-1)/2)
		x += 0.8
	}
	names := make([]string, len(at))
	for k, w := range r.Config.Workloads {
		names[k] = "YCSB " + w
	}
	p := panel(title, names, at, b)
	p.X.Tick.Length = vg.Points(9) // of no line: between axis and name
	return p
}

func (r *ClioResult) shade(i int) color.NRGBA {
	for k := range clioVariants {
		if clioVariants[k].name == r.Variants[i].Name {
			return clioShades[k]
		}
	}
	return chart.Ink
}

// draw draws the figure.
func (r *ClioResult) draw(c draw.Canvas) {
	head := chart.Text(13)
	head.Font.Weight = chart.Bold
	left := c.Min.X + vg.Points(14)
	c.FillText(head, vg.Point{X: left, Y: c.Max.Y - vg.Points(10)}, r.Config.title())
	key := head
	key.Font = chart.Sans(10)
	x, y := left, c.Max.Y-vg.Points(34)
	for i := range r.Variants {
		text := r.Variants[i].Name
		c.FillPolygon(r.shade(i), []vg.Point{
			{X: x, Y: y - vg.Points(9)}, {X: x, Y: y}, {X: x + vg.Points(9), Y: y}, {X: x + vg.Points(9), Y: y - vg.Points(9)},
		})
		x += vg.Points(14)
		c.FillText(key, vg.Point{X: x, Y: y + vg.Points(1)}, text)
		x += key.Width(text) + vg.Points(20)
	}
	foot := key
	foot.Font, foot.YAlign = chart.Sans(8), draw.YBottom
	c.FillText(foot, vg.Point{X: left, Y: c.Min.Y + vg.Points(7)}, fmt.Sprintf("%s; %s, %d cores, Linux %s; quillon %s",
		r.Wire, r.Machine.CPU, r.Machine.Cores, r.Versions.Kernel, r.Versions.Quillon))

	body := draw.Crop(c, vg.Points(12), -vg.Points(12), vg.Points(24), -vg.Points(54))
	width, height := body.Max.X-body.Min.X, body.Max.Y-body.Min.Y
	place := func(p *plot.Plot, from, to, low, high vg.Length) {
		p.Draw(draw.Crop(body, from*width+vg.Points(4), (to-1)*width-vg.Points(10), low*height+vg.Points(8), (high-1)*height))
	}
	place(r.groups("Here: thousand operations a second", func(x *ClioRow) float64 { return x.OpsPerS / 1000 }), 0, 1, 0.67, 1)
	place(r.groups("Here: mean latency, µs", func(x *ClioRow) float64 { return float64(x.Mean) }), 0, 1, 0.34, 0.66)
	place(r.groups("Published (FPGA): Gbit/s of values", func(x *ClioRow) float64 { return float64(x.PublishedGbit) }), 0, 0.45, 0, 0.33)
	place(r.groups("Published (FPGA): mean latency, µs", func(x *ClioRow) float64 { return float64(x.PublishedMean) }), 0.45, 1, 0, 0.33)
}
