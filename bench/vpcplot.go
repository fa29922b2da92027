package main

import (
	"cmp"
	"fmt"
	"image/color"
	"runtime"
	"strconv"

	"gonum.org/v1/plot/vg"

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

// panel draws curves; those of several do not hide each other's spread.
func vpcPanel(title string, curves []vpcCurve) (*chart.Plot, []chart.Key) {
	p := chart.New(title, "packet size, B", "throughput, Gb/s")
	var keys []chart.Key
	top := 0.0
	for i, cu := range curves {
		l := chart.Line{Style: chart.Style{Shade: cu.shade, Dashed: cu.dashed, Width: 1.6}}
		shift := 0.02 * (float64(i) - float64(len(curves)-1)/2)
		for n, y := range cu.y {
			at := chart.Point{X: float64(n) + shift, Y: y}
			if cu.low != nil {
				at.Low, at.High = cu.low[n], cu.high[n]
			}
			l.Points = append(l.Points, at)
			top = max(top, y, at.High)
		}
		p.Add(l)
		keys = append(keys, chart.Key{Text: cu.name, Style: l.Style})
	}
	var at []float64
	var sizes []string
	for n, size := range vpcSizes {
		at, sizes = append(at, float64(n)), append(sizes, strconv.Itoa(size))
	}
	chart.Categories(&p.X, 0, float64(len(vpcSizes)-1), at, sizes)
	chart.FromZero(&p.Y, top, 1.06, 7, chart.Number)
	return p, keys
}

// save draws the throughput beside the published figure.
func (r *vpcResult) save(prefix string) error {
	published := vpcPublished()
	for i := range published {
		published[i].shade, published[i].dashed = vpcShades[i], true
	}
	other := cmp.Or(r.OVS, "no Open vSwitch")
	theirs, theirKeys := vpcPanel("published (figure 5.19): servers with 100 Gb/s NICs, two sNICs", published)
	ours, ourKeys := vpcPanel(fmt.Sprintf("measured here: one thread, %d processors, veth", runtime.NumCPU()), r.curves())
	f := chart.Figure{
		Width: 10.4 * vg.Inch, Height: 5.2 * vg.Inch, Title: "Virtual private cloud: throughput by packet size",
		Foot: fmt.Sprintf("The machines differ: compare lines within a panel. NT: firewall, NAPT and AES. Medians of %d rounds, least to most. %s.", r.Rounds, other),
		Panels: []chart.Panel{
			{X1: 0.5, Y1: 1, Keys: theirKeys, Plot: theirs},
			{X0: 0.5, X1: 1, Y1: 1, Keys: ourKeys, Plot: ours},
		},
	}
	return f.Save(prefix)
}
