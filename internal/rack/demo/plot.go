package demo

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot/vg"

	"github.com/quillon/quillon/internal/chart"
)

var shades = map[string]color.NRGBA{"off": chart.Off, "write": chart.Write, "read-write": chart.ReadWrite, "mux": chart.Write, "replace": chart.ReadWrite}

// bar returns a bar with its value on top and, if base is not 0, its ratio to base.
func bar(x, v, base float64, shade color.Color) chart.Bar {
	return chart.Bar{X: x, Y: v, Shade: shade, Text: decimal(v), Note: ratio(v, base)}
}

// panel returns a plot of bars over named groups.
func panel(title string, groups []string, at []float64, bars []chart.Bar) *chart.Plot {
	p := chart.New(title, "", "")
	p.X.Bare = true
	top, right := 0.0, 0.0
	for _, b := range bars {
		if !math.IsNaN(b.Y) {
			top = math.Max(top, b.Y)
		}
		right = math.Max(right, b.X)
		p.Add(b)
	}
	chart.Categories(&p.X, 0, right, at, groups)
	chart.FromZero(&p.Y, top, 1.2, 6, tickLabel)
	return p
}

func tickLabel(v float64) string {
	if v == math.Trunc(v) {
		return thousands(v)
	}
	return fmt.Sprintf("%g", v)
}

// made says where and with what the figures were measured.
func made(wire string, m Machine, v Versions) string {
	return fmt.Sprintf("%s; %s, %d cores, Linux %s; quillon %s", wire, m.CPU, m.Cores, v.Kernel, v.Quillon)
}

// phases returns the bars of a value in each phase, the first at x0.
func (r *Result) phases(x0 float64, value func(p *Phase) float64) (bars []chart.Bar) {
	for i := range r.Phases {
		base := 0.0
		if i > 0 {
			base = value(&r.Phases[0])
		}
		bars = append(bars, bar(x0+float64(i), value(&r.Phases[i]), base, shades[r.Phases[i].Name]))
	}
	return bars
}

// Plot writes the figure to prefix.png and prefix.svg.
func (r *Result) Plot(prefix string) error {
	var keys []chart.Key
	var names []string
	var places []float64
	for i, p := range r.Phases {
		keys = append(keys, chart.Key{Text: titles[p.Name], Style: chart.Style{Shade: shades[p.Name]}, Area: true})
		names, places = append(names, p.Name), append(places, float64(i))
	}
	one := func(title string, value func(p *Phase) float64) *chart.Plot {
		return panel(title, names, places, r.phases(0, value))
	}
	// The tails of reads and writes share a panel, with a group for each.
	var tails []chart.Bar
	var groups []string
	var at []float64
	for _, g := range []struct {
		name  string
		value func(p *Phase) float64
	}{
		{"read", func(p *Phase) float64 { return float64(p.ReadP99) }},
		{"write", func(p *Phase) float64 { return float64(p.WriteP99) }},
	} {
		if len(r.Phases) == 0 || math.IsNaN(g.value(&r.Phases[0])) {
			continue
		}
		x0 := 0.0
		if len(tails) > 0 {
			x0 = tails[len(tails)-1].X + 1.6
		}
		tails = append(tails, r.phases(x0, g.value)...)
		groups, at = append(groups, g.name), append(at, x0+float64(len(r.Phases)-1)/2)
	}
	f := chart.Figure{
		Width: 11 * vg.Inch, Height: 4.1 * vg.Inch, Title: r.Config.title(), Foot: made(r.Wire, r.Machine, r.Versions), Keys: keys,
		// The third panel has twice as many bars.
		Panels: []chart.Panel{
			{X1: 0.29, Y1: 1, Plot: one("Operations per second", func(p *Phase) float64 { return p.OpsPerS })},
			{X0: 0.29, X1: 0.58, Y1: 1, Plot: one("Packets per operation", func(p *Phase) float64 { return p.PacketsPerOp })},
			{X0: 0.58, X1: 1, Y1: 1, Plot: panel("Latency p99, µs", groups, at, tails)},
		},
	}
	return f.Save(prefix)
}

// groups returns a panel of bars, with a group for each workload and a bar for each variant that has a value.
func (r *ClioResult) groups(title string, value func(x *ClioRow) float64) *chart.Plot {
	var bars []chart.Bar
	var at []float64
	var names []string
	x := 0.0
	for k, w := range r.Config.Workloads {
		from := x
		for i := range r.Variants {
			if v := value(&r.Variants[i].Rows[k]); !math.IsNaN(v) {
				bars = append(bars, bar(x, v, 0, r.shade(i)))
				x++
			}
		}
		at, names = append(at, (from+x-1)/2), append(names, "YCSB "+w)
		x += 0.8
	}
	return panel(title, names, at, bars)
}

func (r *ClioResult) shade(i int) color.NRGBA { return variantNamed(r.Variants[i].Name).shade }

// Plot writes the figure to prefix.png and prefix.svg.
func (r *ClioResult) Plot(prefix string) error {
	var keys []chart.Key
	for i := range r.Variants {
		keys = append(keys, chart.Key{Text: r.Variants[i].Name, Style: chart.Style{Shade: r.shade(i)}, Area: true})
	}
	f := chart.Figure{
		Width: 13 * vg.Inch, Height: 10.2 * vg.Inch, Title: r.Config.title(), Foot: made(r.Wire, r.Machine, r.Versions), Keys: keys,
		Panels: []chart.Panel{
			{X1: 1, Y0: 0.67, Y1: 1, Plot: r.groups("Here: thousand operations a second", func(x *ClioRow) float64 { return x.OpsPerS / 1000 })},
			{X1: 1, Y0: 0.34, Y1: 0.66, Plot: r.groups("Here: mean latency, µs", func(x *ClioRow) float64 { return float64(x.Mean) })},
			{X1: 0.45, Y1: 0.33, Plot: r.groups("Published (FPGA): Gbit/s of values", func(x *ClioRow) float64 { return float64(x.PublishedGbit) })},
			{X0: 0.45, X1: 1, Y1: 0.33, Plot: r.groups("Published (FPGA): mean latency, µs", func(x *ClioRow) float64 { return float64(x.PublishedMean) })},
		},
	}
	return f.Save(prefix)
}
