package plan

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot/vg"

	"github.com/quillon/quillon/internal/chart"
)

// pale is the shade of peaks, of which means are a part.
var pale = color.NRGBA{0xB9, 0xD4, 0xEC, 0xFF}

// Save draws the load over time with what is provisioned for it, to prefix.png
// and prefix.svg.
func (p *Plan) Save(prefix, title string) error {
	racks := "peaks of the racks"
	if len(p.Racks) == 1 {
		racks = "peak of the sum"
	}
	pl := chart.New("", "time, s", "Gb/s")
	peaks, means := p.load()
	pl.Add(peaks, means)
	keys := []chart.Key{
		{Text: "load, peak of a bin", Style: chart.Style{Shade: peaks.Shade}, Area: true},
		{Text: "load, mean", Style: chart.Style{Shade: means.Shade}, Area: true},
	}
	top := 0.0
	for _, l := range []struct {
		name   string
		level  float64
		shade  color.NRGBA
		dashed bool
	}{
		{"sum of peaks", p.Peaks.Endpoints, color.NRGBA{0xC8, 0x55, 0x1B, 0xFF}, true},
		{racks, p.Peaks.Racks, chart.ReadWrite, true},
		{"provisioned", p.Need.Gbps, chart.ReadWrite, false},
		{"mean", p.Mean, chart.Off, false},
	} {
		style := chart.Style{Shade: l.shade, Dashed: l.dashed, Bare: true, Width: 1.6}
		pl.Add(chart.Line{Style: style, Points: []chart.Point{{Y: l.level}, {X: p.Duration, Y: l.level}}})
		keys = append(keys, chart.Key{Text: fmt.Sprintf("%s, %.3g Gb/s", l.name, l.level), Style: style})
		top = math.Max(top, l.level)
	}
	chart.FromZero(&pl.X, p.Duration, 1, 7, chart.Number)
	chart.FromZero(&pl.Y, top, 1.06, 7, chart.Number)
	f := chart.Figure{Width: 9 * vg.Inch, Height: 4.6 * vg.Inch, Title: title, Keys: keys, Panels: chart.Row(pl)}
	return f.Save(prefix)
}

// load is the timeline: the peak and the mean of each bin.
func (p *Plan) load() (peaks, means chart.Area) {
	bins, each := p.timeline.Bins()
	unit := 8 / p.Interval / 1e9
	x := 0.0
	at := []float64{x}
	peaks.Shade, means.Shade = pale, chart.Write
	for i, b := range bins {
		n := float64(each)
		if i == len(bins)-1 {
			n = float64(p.Intervals) - float64(i)*n
		}
		x += n * p.Interval
		at = append(at, x)
		peaks.Y, means.Y = append(peaks.Y, b.Peak*unit), append(means.Y, b.Sum/n*unit)
	}
	peaks.X, means.X = at, at
	return peaks, means
}
