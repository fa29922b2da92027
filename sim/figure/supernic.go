package figure

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/quillon/quillon/sim/traffic"
	"github.com/quillon/quillon/snic/cost"
)

// Names of figure 5.2's curves.
const (
	nameApart = "Not consolidated"
	nameRack  = "Rack-consolidated"
	nameAll   = "Datacenter-consolidated"
)

// supernic are the figures of SuperNIC's traffic and costs.
func supernic() []*Figure {
	var consolidation []ratio
	for _, t := range []string{"FB-DB", "FB-Hadoop", "FB-Web"} {
		consolidation = append(consolidation,
			ratio{t + ", not consolidated over racks", ref{0, nameApart, t}, ref{0, nameRack, t}},
			ratio{t + ", racks over the data centre", ref{0, nameRack, t}, ref{0, nameAll, t}})
	}
	none := ref{0, "cost", cost.NotDisaggregated.String()}
	return []*Figure{
		{ID: "5.2", data: "5.2", Calibration: true, jobs: peaks, ratios: consolidation},
		{ID: "5.3", data: "5.3", Calibration: true, jobs: spikes,
			ratios: []ratio{{"1 server over 4", ref{0, "time", 1}, ref{0, "time", 4}}},
			reasons: []reason{
				{from: 9, least: 0.5, most: 2, text: "Some seconds a day: in the published trace 9 servers spike together for 10, and 10 for 2."},
			}},
		{ID: "5.8", data: "5.8", Calibration: true, jobs: capEx,
			ratios: []ratio{
				{"sNIC, middle layer, over no disaggregation", ref{0, "cost", cost.MiddleLayer.String()}, none},
				{"sNIC, switch-attached, over no disaggregation", ref{0, "cost", cost.SwitchAttached.String()}, none},
			}},
	}
}

const day = 86400 // intervals of a second

// racks are the generator's parameters for a trace of figure 5.2: 64 racks of
// 44 endpoints, in which bursts last half a second on average. What the three
// bars of a trace do not fix was chosen: the numbers of racks and endpoints, the
// bursts' length, and that there is nothing between bursts.
type racks struct {
	trace string
	// Fitted: share to the sum of peaks over the data centre's peak,
	// correlation to that over the racks' peaks.
	share, correlation float64
}

func fitted() []racks {
	return []racks{
		{"FB-DB", 0.0020, 0.0428},
		{"FB-Hadoop", 0.0256, 0.0635},
		{"FB-Web", 0.0021, 0.0067},
	}
}

// peaks is figure 5.2: peaks of a day of seconds.
func peaks(p *Published, par Params) ([]job, error) {
	var jobs []job
	for _, w := range fitted() {
		sum, _ := p.at(0, nameApart, w.trace)
		jobs = append(jobs, job{
			name: w.trace,
			cost: 2 + 100*w.share,
			run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
				f := &traffic.Facebook{
					Racks: 64, Endpoints: 44, Interval: time.Second, Intervals: day, Line: 1,
					Share: w.share, Length: 500 * time.Millisecond, Correlation: w.correlation, Seed: par.Seed,
				}
				if err := f.Check(); err != nil {
					return nil, err
				}
				apart, rack := 0.0, 0.0
				all, row := make([]float64, day), make([]float64, day)
				for k := range f.Racks {
					if err := ctx.Err(); err != nil {
						return nil, err
					}
					progress(float64(k) / float64(f.Racks))
					clear(row)
					for e := range f.Endpoints {
						peak := 0.0
						f.Each(k, e, func(i int, b float64) {
							row[i] += b
							peak = math.Max(peak, b)
						})
						apart += peak
					}
					peak := 0.0
					for i, b := range row {
						all[i] += b
						peak = math.Max(peak, b)
					}
					rack += peak
				}
				peak := 0.0
				for _, b := range all {
					peak = math.Max(peak, b)
				}
				unit := sum / apart
				return []Value{
					{Series: nameApart, Name: w.trace, Y: apart * unit},
					{Series: nameRack, Name: w.trace, Y: rack * unit},
					{Series: nameAll, Name: w.trace, Y: peak * unit},
				}, nil
			},
		})
	}
	return jobs, nil
}

// spikes is figure 5.3: how many endpoints spike together.
func spikes(p *Published, par Params) ([]job, error) {
	days, most := 30, 10
	if par.Quick {
		days, most = 3, 7 // more is rare
	}
	return []job{{
		name: strconv.Itoa(days) + " days",
		cost: 1,
		run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
			var shares []float64
			for d := range days {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				progress(float64(d) / float64(days))
				src, err := (&traffic.Facebook{
					Endpoints: 106, Interval: time.Second, Intervals: day, Line: 1,
					Share: 0.01057, Length: 500 * time.Millisecond, Seed: par.Seed<<8 + uint64(d),
				}).Source()
				if err != nil {
					return nil, err
				}
				of, err := together(src, time.Second)
				if err != nil {
					return nil, err
				}
				for n, s := range of {
					for n >= len(shares) {
						shares = append(shares, 0)
					}
					shares[n] += s / float64(days)
				}
			}
			var vs []Value
			for n, s := range shares[:min(len(shares), most+1)] {
				vs = append(vs, Value{Series: "time", X: float64(n), Y: 100 * s})
			}
			return vs, nil
		},
	}}, nil
}

// together is the share of time in which so many endpoints of a source spike.
func together(src traffic.Source, interval time.Duration) ([]float64, error) {
	m, err := traffic.NewMeter(src, interval)
	if err != nil {
		return nil, err
	}
	if err := src.Each(m.Add); err != nil {
		return nil, err
	}
	s, err := m.Stats()
	if err != nil {
		return nil, err
	}
	k := traffic.NewSpikes(s, 2)
	if err := src.Each(k.Add); err != nil {
		return nil, err
	}
	return k.Shares(), nil
}

// capEx is figure 5.8.
func capEx(*Published, Params) ([]job, error) {
	return []job{{name: "designs", cost: 1, run: func(context.Context, func(float64)) ([]Value, error) {
		var vs []Value
		for d := range cost.Designs {
			vs = append(vs, Value{Series: "cost", Name: d.String(), Y: cost.Published().CapEx(d, cost.PublishedSharing, cost.PublishedPeaks).Total()})
		}
		return vs, nil
	}}}, nil
}
