package figure

import (
	"context"
	"math"
	"path/filepath"
	"strconv"
	"time"

	"github.com/quillon/quillon/internal/sim"
	"github.com/quillon/quillon/internal/sim/traffic"
	"github.com/quillon/quillon/snic/cost"
)

// Names of figure 5.2's curves.
const (
	nameApart = "Not consolidated"
	nameRack  = "Rack-consolidated"
	nameAll   = "Datacenter-consolidated"
)

// supernic returns the figures of SuperNIC's traffic and costs.
func supernic() []*Figure {
	var consolidation []ratio
	for _, t := range []string{"FB-DB", "FB-Hadoop", "FB-Web"} {
		consolidation = append(consolidation,
			ratio{t + ", not consolidated over racks", ref{0, nameApart, t}, ref{0, nameRack, t}},
			ratio{t + ", racks over the data centre", ref{0, nameRack, t}, ref{0, nameAll, t}})
	}
	none := ref{0, "cost", cost.NotDisaggregated.String()}
	return []*Figure{
		{ID: "5.2", data: "5.2", Calibration: true, takes: []string{"trace"}, jobs: peaks, ratios: consolidation},
		{ID: "5.3", data: "5.3", Calibration: true, takes: []string{"trace"}, jobs: spikes,
			ratios: []ratio{{"1 server over 4", ref{0, "time", 1}, ref{0, "time", 4}}},
			reasons: []reason{
				{from: 9, text: "Some seconds a day: in the published trace 9 servers spike together for 10, and 10 for 2."},
			}},
		{ID: "5.8", data: "5.8", Calibration: true, jobs: capEx,
			ratios: []ratio{
				{"sNIC, middle layer, over no disaggregation", ref{0, "cost", cost.MiddleLayer.String()}, none},
				{"sNIC, switch-attached, over no disaggregation", ref{0, "cost", cost.SwitchAttached.String()}, none},
			}},
		{ID: "5.10", data: "5.10", strict: true, jobs: background, inputs: []reason{
			{series: "single sNIC", text: "the single sNIC's slowdown: what a background fills was taken from it"},
		}, reasons: []reason{
			{panel: 1, series: "intermediate pool", text: reasonPassing},
			{panel: 1, series: "switch-attached pool", text: reasonSpread},
		}},
		{ID: "5.12", data: "5.12", Calibration: true, strict: true, jobs: scaling,
			ratios: []ratio{{"sNIC's slowdown, high over low correlation", ref{0, "sNIC", "high correlation"}, ref{0, "sNIC", "low correlation"}}},
			reasons: []reason{
				{series: "sNIC", names: []string{"low correlation"}, text: reasonLoad},
				{series: "sNIC", names: []string{"high correlation"}, text: reasonLoad},
				{series: "static-avg", text: reasonWhole},
				{ratio: true, series: "sNIC's slowdown, high over low correlation", text: reasonLoad},
				{panel: 1, series: "static-avg", text: reasonWhole},
				{panel: 1, series: "sNIC", text: reasonAccessed},
			}},
		{ID: "5.13", data: "5.13", strict: true, jobs: sensitivity,
			inputs: []reason{
				{text: "the load is 5.12's, which was fitted; regions, and what over-commitment means, were chosen after results"},
				{panel: 1, text: "the load is 5.12's, which was fitted; regions, and what over-commitment means, were chosen after results"},
			},
			ratios: []ratio{{"slowdown, 30 % of victims over 90 %", ref{0, "victim cache", "kept 30%"}, ref{0, "victim cache", "kept 90%"}}},
			reasons: []reason{
				{series: "victim cache", text: reasonVictims},
				{series: "neither", text: reasonVictims},
				{series: "over-commitment", text: reasonOverCommit},
				{ratio: true, series: "slowdown, 30 % of victims over 90 %", text: reasonVictims},
				{panel: 1, series: "victim cache", text: reasonAccessed},
				{panel: 1, series: "neither", text: reasonAccessed},
				{panel: 1, series: "over-commitment", text: reasonOverCommit},
			}},
	}
}

// Why points of the figures about scaling are outside the tolerance. The bounds that the reasons name come
// from the set-up or the source's text. The sNIC's slowdown is between 0, that of as-instant, and that of
// static-avg. OpEx is between what the work fills and all regions. On one region instead of two a load takes
// at most twice as long, also when others use the second region.
const (
	reasonPassing = "What passes a board on its way to another costs nothing here: OpEx is the time of regions. The source counts its energy, and does not say how much that is."
	reasonSpread  = "The switch spreads a load that is all that a board can do over both boards, and the board over all of its regions. So three or four are accessed, " +
		"each a part of the time. By work it is 1."
	reasonWhole = "Regions are whole: the mean load is nearest to one of two, which costs half as much for 1.2 times as long. The published 84 % would be 1.4 of two regions, " +
		"and then its slowdown could not be 19 %."
	reasonLoad     = "The load's constants were fitted with a fluid on regions in the place of the board, and not again to the board."
	reasonAccessed = "The board gives packets to all instances that run, so all of them are accessed."
	reasonVictims  = "The load is that of 5.12, where the slowdown is less than published, too. A victim saves a reconfiguration of 5 ms here, of the 10 ms that pass " +
		"from an overload to one more region; the other 5 are the monitor period. " +
		"The published points are of another load than 5.12's, or relaunches cost more than a reconfiguration: without victims the slowdown is 4.07 % there, " +
		"with all the sNIC of 5.12 has 1.18 %."
	reasonOverCommit = "Others who send are launched on demand here, and when no region is free the board stops one that runs, for them. " +
		"With that switched off the slowdown is 2.0, 3.1, 4.6 and 6.6 %, and OpEx 93, 91, 88 and 84 %."
)

const day = 86400 // intervals of a second

// racks are the generator's parameters for a trace of figure 5.2: 64 racks of 44 endpoints, in which bursts
// last half a second on average. The three bars of a trace do not fix all parameters. The others were chosen:
// the numbers of racks and endpoints, the length of bursts, and that nothing is sent between bursts.
type racks struct {
	trace string
	// share is fitted to the ratio of the sum of all peaks to the data centre's peak, correlation to the
	// ratio of that sum to the sum of the racks' peaks.
	share, correlation float64
}

func fitted() []racks {
	return []racks{
		{"FB-DB", 0.0020, 0.0428},
		{"FB-Hadoop", 0.0256, 0.0635},
		{"FB-Web", 0.0021, 0.0067},
	}
}

// traced makes a job that measures a trace of the user, by seconds, in place of a figure's generated loads.
// of makes the values from what was measured.
func traced(par Params, of func(context.Context, traffic.Source, *traffic.Stats) ([]Value, error)) ([]job, error) {
	return []job{{name: filepath.Base(par.Trace), cost: 1, run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
		src, err := traffic.File(par.Trace, traffic.ByIP, func(read, size int64) { progress(float64(read) / float64(max(read, size, 1))) })
		if err != nil {
			return nil, err
		}
		s, err := measure(ctx, src)
		if err != nil {
			return nil, err
		}
		return of(ctx, src, s)
	}}}, nil
}

// peaks makes the jobs of figure 5.2: peaks of a day of seconds. Values of a user's trace are in bytes a
// second; the others are scaled so that the sum of all peaks is the published one.
func peaks(p *Published, par Params) ([]job, error) {
	if par.Trace != "" {
		return traced(par, func(_ context.Context, _ traffic.Source, s *traffic.Stats) ([]Value, error) {
			name := filepath.Base(par.Trace)
			return []Value{
				{Series: nameApart, Name: name, Y: s.SumOfPeaks(1)},
				{Series: nameRack, Name: name, Y: s.RackPeaks(1)},
				{Series: nameAll, Name: name, Y: s.PeakOfSum(1)},
			}, nil
		})
	}
	var jobs []job
	for _, w := range fitted() {
		if par.Quick && w.share > 0.01 { // takes most of the time
			continue
		}
		sum, _ := p.at(nameApart, w.trace)
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

// spikes makes the job of figure 5.3: the share of time in which so many endpoints spike together.
func spikes(p *Published, par Params) ([]job, error) {
	if par.Trace != "" {
		return traced(par, func(ctx context.Context, src traffic.Source, s *traffic.Stats) ([]Value, error) {
			shares, err := together(ctx, src, s)
			return percentages(shares), err
		})
	}
	days, most := 30, 10
	if par.Quick {
		days, most = 3, 7 // more at the same time is rare
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
				s, err := measure(ctx, src)
				if err != nil {
					return nil, err
				}
				of, err := together(ctx, src, s)
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
			return percentages(shares[:min(len(shares), most+1)]), nil
		},
	}}, nil
}

func percentages(shares []float64) (vs []Value) {
	for n, s := range shares {
		vs = append(vs, Value{Series: "time", X: float64(n), Y: 100 * s})
	}
	return vs
}

// measure measures the load of a source by intervals of a second.
func measure(ctx context.Context, src traffic.Source) (*traffic.Stats, error) {
	m, err := traffic.NewMeter(src, time.Second)
	if err != nil {
		return nil, err
	}
	if err := each(ctx, src, m.Add); err != nil {
		return nil, err
	}
	return m.Stats()
}

// together returns the share of time in which 0, 1, 2 … endpoints of a source spike.
func together(ctx context.Context, src traffic.Source, s *traffic.Stats) ([]float64, error) {
	k := traffic.NewSpikes(s, 2)
	if err := each(ctx, src, k.Add); err != nil {
		return nil, err
	}
	return k.Shares(), nil
}

func each(ctx context.Context, src traffic.Source, add func(traffic.Event) error) error {
	n := 0
	return src.Each(func(e traffic.Event) error {
		if n++; n&0xffff == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		return add(e)
	})
}

// capEx makes the job of figure 5.8.
func capEx(*Published, Params) ([]job, error) {
	return []job{{name: "designs", cost: 1, run: func(context.Context, func(float64)) ([]Value, error) {
		var vs []Value
		for d := range cost.Designs {
			vs = append(vs, Value{Series: "cost", Name: d.String(), Y: cost.Published().CapEx(d, cost.PublishedSharing, cost.PublishedPeaks).Total()})
		}
		return vs, nil
	}}}, nil
}

// The load of figures 5.12 and 5.13: four endpoints that send key/value requests in bursts, to an sNIC whose
// regions handle 100 Gb/s each, as the tasks of figure 5.20 do. The figures depend on the ratio of an
// endpoint's load to a region's capacity, 13 % and 30 %, and on how much of a region's work the packet store
// holds.
const (
	regionRate = 100e9
	calmRate   = 0.13 * regionRate
	burstRate  = 0.30 * regionRate
	burstShare = 0.55
	burstTime  = 15 * time.Millisecond
	// With low correlation endpoints burst independently of each other, with high correlation all at the same
	// time.
	lowCorrelation  = 0
	highCorrelation = 1
)

// foreground returns the load in intervals of a millisecond, and the sum of the regions that the endpoints
// would need for their own peaks.
func foreground(correlation float64, intervals int, seed uint64) (*sim.Load, float64, error) {
	f := &traffic.Facebook{
		Endpoints: 4, Interval: time.Millisecond, Intervals: intervals,
		Calm: calmRate / 8, Line: burstRate / 8, Share: burstShare, Length: burstTime, Correlation: correlation, Seed: seed,
	}
	if err := f.Check(); err != nil {
		return nil, 0, err
	}
	l := &sim.Load{Interval: f.Interval, Rate: make([]float64, intervals)}
	own := 0.0
	for e := range f.Endpoints {
		peak := 0.0
		f.Each(0, e, func(i int, bytes float64) {
			rate := bytes * 8 / f.Interval.Seconds()
			l.Rate[i] += rate
			peak = math.Max(peak, rate)
		})
		own += math.Ceil(peak / regionRate)
	}
	return l, own, nil
}

// scaled is the board of the evaluation, with the default monitor period of 5 ms
// (section 5.4.4; the 10 ms of section 5.7.2 are figure 5.20's).
func scaled(regions int) sim.ScaledConfig {
	// The packet store holds 0.3 ms of a region's work: twelve pieces.
	return sim.ScaledConfig{Regions: regions, Capacity: regionRate, Victims: 100, Turn: 100 * time.Millisecond, Piece: 25 * time.Microsecond}
}

// repeats returns how often figures about scaling are run, and for how many intervals each time.
func repeats(par Params) (times, intervals int) {
	if par.Quick {
		return 1, 20000
	}
	return 8, 60000
}

// scaling makes the jobs of figure 5.12.
func scaling(_ *Published, par Params) ([]job, error) {
	times, intervals := repeats(par)
	var jobs []job
	for _, w := range []struct {
		name        string
		correlation float64
	}{{"low correlation", lowCorrelation}, {"high correlation", highCorrelation}} {
		jobs = append(jobs, job{name: w.name, cost: 1, run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
			sum := map[string]*[2]float64{"sNIC": {}, "as-instant": {}, "static-avg": {}, "static-max": {}}
			saved := 0.0
			for k := range times {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				progress(float64(k) / float64(times))
				l, own, err := foreground(w.correlation, intervals, par.Seed<<8+uint64(k))
				if err != nil {
					return nil, err
				}
				most := int(math.Ceil(l.Peak() / regionRate))
				top := l.Static(regionRate, most)
				s, err := l.Scaled(ctx, scaled(most))
				if err != nil {
					return nil, err
				}
				for name, o := range map[string]sim.Outcome{
					"sNIC": s, "static-max": top, "as-instant": l.Instant(regionRate),
					"static-avg": l.Static(regionRate, max(int(math.Round(l.Mean()/regionRate)), 1)),
				} {
					sum[name][0] += 100 * o.Slowdown / float64(times)
					sum[name][1] += 100 * o.Regions / top.Regions / float64(times)
				}
				saved += 100 * (1 - s.Regions/own) / float64(times)
			}
			vs := []Value{{Panel: 2, Series: "sNIC", Name: w.name, Y: saved}}
			for _, name := range []string{"sNIC", "as-instant", "static-avg", "static-max"} {
				for panel, y := range sum[name] {
					vs = append(vs, Value{Panel: panel, Series: name, Name: w.name, Y: y})
				}
			}
			return vs, nil
		}})
	}
	return jobs, nil
}

// sensitivity makes the jobs of figure 5.13.
func sensitivity(_ *Published, par Params) ([]job, error) {
	times, intervals := repeats(par)
	var jobs []job
	for _, v := range []struct {
		series, name string
		keep         int // percent
		taken        float64
	}{
		{"victim cache", "kept 90%", 90, 0}, {"victim cache", "kept 50%", 50, 0}, {"victim cache", "kept 30%", 30, 0},
		{"neither", "neither", 0, 0},
		{"over-commitment", "over 30%", 0, 0.3}, {"over-commitment", "over 50%", 0, 0.5},
		{"over-commitment", "over 70%", 0, 0.7}, {"over-commitment", "over 90%", 0, 0.9},
	} {
		jobs = append(jobs, job{name: v.name, cost: 1, run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
			var y [2]float64
			for k := range times {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				progress(float64(k) / float64(times))
				l, _, err := foreground(lowCorrelation, intervals, par.Seed<<8+uint64(k))
				if err != nil {
					return nil, err
				}
				b := scaled(int(math.Ceil(l.Peak() / regionRate)))
				b.Victims, b.Taken = v.keep, v.taken
				o, err := l.Scaled(ctx, b)
				if err != nil {
					return nil, err
				}
				y[0] += 100 * o.Slowdown / float64(times)
				y[1] += 100 * o.Regions / float64(b.Regions) / float64(times)
			}
			return []Value{{Series: v.series, Name: v.name, Y: y[0]}, {Panel: 1, Series: v.series, Name: v.name, Y: y[1]}}, nil
		}})
	}
	return jobs, nil
}

// poolRate, in bit/s, is what a region handles in figure 5.10; the source does not say it. The load of two
// regions fits on the cable between two boards.
const poolRate = 40e9

// background makes the jobs of figure 5.10: a foreground that fills a board of two regions, and a background,
// of which 100 % fill one region.
func background(p *Published, par Params) ([]job, error) {
	const lead = 50 * time.Millisecond
	length := lead + 2*time.Second
	if par.Quick {
		length = lead + time.Second
	}
	l := &sim.Load{Interval: time.Millisecond, Rate: make([]float64, length/time.Millisecond)}
	for i := range l.Rate {
		l.Rate[i] = 2 * poolRate
	}
	var jobs []job
	for _, at := range p.Quantities[0].Series[0].Points {
		if par.Quick && at.x != 0 && at.x != 10 && at.x != 90 {
			continue
		}
		jobs = append(jobs, job{name: strconv.FormatFloat(at.x, 'f', -1, 64) + " %", cost: 1, run: func(ctx context.Context, _ func(float64)) ([]Value, error) {
			var vs []Value
			for name, t := range map[string]sim.Topology{"single sNIC": sim.Single, "intermediate pool": sim.Intermediate, "switch-attached pool": sim.SwitchAttached} {
				o, err := l.Scaled(ctx, sim.ScaledConfig{
					Regions: 2, Capacity: poolRate, Victims: 100, Topology: t, Background: at.x / 100 * poolRate, Lead: lead, Seed: par.Seed,
					// The packet store holds 0.79 ms of a region's work: 31 pieces.
					Piece: 25 * time.Microsecond,
				})
				if err != nil {
					return nil, err
				}
				vs = append(vs, Value{Series: name, X: at.x, Y: 100 * o.Slowdown}, Value{Panel: 1, Series: name, X: at.x, Y: o.Regions / 2})
			}
			return vs, nil
		}})
	}
	return jobs, nil
}
