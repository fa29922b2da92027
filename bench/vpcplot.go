package main

import (
	"fmt"
	"image/color"
	"runtime"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/quillon/quillon/internal/chart"
)

// vpcPublished is figure 5.19 (Shan, SuperNIC, UCSD thesis 2022; the data behind its
// picture): Gb/s by vpcSizes.
func vpcPublished() []vpcCurve {
	return []vpcCurve{
		{name: "vanilla OVS, no NT", y: []float64{0.059, 0.164, 0.354, 0.741}},
		{name: "DPDK OVS, no NT", y: []float64{0.314, 0.784, 1.66, 3.31}},
		{name: "DPDK OVS, NTs on server", y: []float64{0.297, 0.737, 1.68, 3.22}},
		{name: "DPDK OVS, NTs on sNIC", y: []float64{0.311, 0.781, 1.67, 3.25}},
	}
}

// vpcCurve is Gb/s by vpcSizes, with the least and the most where there are rounds.
type vpcCurve struct {
	name      string
	y         []float64
	low, high []float64
	dashed    bool
	shade     color.NRGBA
}

var vpcShades = []color.NRGBA{chart.Off, {0xB5, 0x8A, 0x00, 0xFF}, chart.Write, {0x7A, 0x3E, 0x9D, 0xFF}, chart.ReadWrite}

// curves are those measured: OVS has the colours of the same steps, dashed.
func (r *vpcResult) curves() []vpcCurve {
	var out []vpcCurve
	for _, by := range []string{"quillon", "ovs"} {
		for i, s := range vpcSteps {
			c := vpcCurve{name: s.name, dashed: by == "ovs", shade: vpcShades[i]}
			switch {
			case by == "ovs" && i == 1:
				c.name = "OVS, plain"
			case by == "ovs":
				c.name = "OVS, " + s.name
			}
			for _, f := range r.Throughput {
				if f.By == by && f.Step == s.name {
					c.y, c.low, c.high = append(c.y, f.Gbps.Median), append(c.low, f.Gbps.Min), append(c.high, f.Gbps.Max)
				}
			}
			if len(c.y) == len(vpcSizes) {
				out = append(out, c)
			}
		}
	}
	return out
}

// vpcLines draws curves; those of several panels do not hide each other's spread.
type vpcLines []vpcCurve

// Plot implements plot.Plotter.
func (l vpcLines) Plot(c draw.Canvas, p *plot.Plot) {
	tx, ty := p.Transforms(&c)
	for i, cu := range l {
		line := draw.LineStyle{Color: cu.shade, Width: vg.Points(1.6)}
		if cu.dashed {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		shift := 0.02 * (float64(i) - float64(len(l)-1)/2)
		var at []vg.Point
		for n, y := range cu.y {
			x := tx(float64(n) + shift)
			at = append(at, vg.Point{X: x, Y: ty(y)})
			if cu.low != nil {
				c.StrokeLines(draw.LineStyle{Color: cu.shade, Width: vg.Points(0.7)}, []vg.Point{{X: x, Y: ty(cu.low[n])}, {X: x, Y: ty(cu.high[n])}})
			}
		}
		c.StrokeLines(line, at)
		for _, a := range at {
			c.DrawGlyph(draw.GlyphStyle{Color: cu.shade, Radius: vg.Points(2.4), Shape: draw.CircleGlyph{}}, a)
		}
	}
}

// Sizes of the picture.
const (
	vpcPanelWidth = 5.2 * vg.Inch
	vpcHeight     = 5.2 * vg.Inch
)

// save draws the throughput beside the published figure.
func (r *vpcResult) save(prefix string) error {
	published := vpcPublished()
	for i := range published {
		published[i].shade = vpcShades[i]
		published[i].dashed = true
	}
	panels := []struct {
		title string
		lines vpcLines
	}{
		{"published (figure 5.19): servers with 100 Gb/s NICs, two sNICs", published},
		{fmt.Sprintf("measured here: one thread, %d processors, veth", runtime.NumCPU()), r.curves()},
	}
	return chart.Save(prefix, vpcPanelWidth*2, vpcHeight, func(c draw.Canvas) {
		head := chart.Text(13)
		head.Font.Weight = chart.Bold
		left := c.Min.X + vg.Points(14)
		c.FillText(head, vg.Point{X: left, Y: c.Max.Y - vg.Points(9)}, "Virtual private cloud: throughput by packet size")
		foot := chart.Text(8)
		foot.YAlign = draw.YBottom
		other := r.OVS
		if other == "" {
			other = "no Open vSwitch"
		}
		c.FillText(foot, vg.Point{X: left, Y: c.Min.Y + vg.Points(7)},
			fmt.Sprintf("The machines differ: compare lines within a panel. NT: firewall, NAPT and AES. Medians of %d rounds, least to most. %s.", r.Rounds, other))
		for i, d := range panels {
			half := draw.Crop(c, vg.Length(i)*vpcPanelWidth+vg.Points(8), vg.Length(i-1)*vpcPanelWidth-vg.Points(12), vg.Points(22), -vg.Points(30))
			text := chart.Text(9)
			text.Font.Weight = chart.Bold
			x, y := half.Min.X+vg.Points(6), half.Max.Y
			c.FillText(text, vg.Point{X: x, Y: y}, d.title)
			text = chart.Text(9)
			top := 0.0
			for n, cu := range d.lines {
				// Two columns of the legend.
				at := vg.Point{X: x + vg.Length(n%2)*vpcPanelWidth*0.47, Y: y - vg.Points(16) - vg.Length(n/2)*vg.Points(13)}
				line := draw.LineStyle{Color: cu.shade, Width: vg.Points(1.6)}
				if cu.dashed {
					line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
				}
				c.StrokeLines(line, []vg.Point{{X: at.X, Y: at.Y - vg.Points(5)}, {X: at.X + vg.Points(22), Y: at.Y - vg.Points(5)}})
				c.FillText(text, vg.Point{X: at.X + vg.Points(27), Y: at.Y}, cu.name)
				for k := range cu.y {
					top = max(top, cu.y[k])
					if cu.high != nil {
						top = max(top, cu.high[k])
					}
				}
			}
			p := chart.New("")
			p.X.Label.Text, p.Y.Label.Text = "packet size, B", "throughput, Gb/s"
			var ticks plot.ConstantTicks
			for n, size := range vpcSizes {
				ticks = append(ticks, plot.Tick{Value: float64(n), Label: strconv.Itoa(size)})
			}
			p.X.Tick.Marker, p.X.Min, p.X.Max = ticks, -0.3, float64(len(vpcSizes))-0.7
			step := chart.RoundStep(top / 7)
			ticks = nil
			for v := 0.0; v <= top*1.06; v += step {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 3, 64)})
			}
			p.Y.Tick.Marker, p.Y.Min, p.Y.Max = ticks, 0, top*1.06
			grid := plotter.NewGrid()
			grid.Vertical.Color, grid.Horizontal.Color = nil, chart.Faint
			p.Add(grid, d.lines)
			p.Draw(draw.Crop(half, 0, 0, 0, -vg.Points(82)))
		}
	})
}
