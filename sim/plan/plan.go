// Package plan answers what a rack needs whose network tasks are consolidated
// on sNICs: how many of them, regions and gigabits a second, what it saves, and
// what latency it costs.
//
// It measures a load (traffic), twice: peaks, then spikes, which need the
// endpoints' means. What is needed is the peak of the sum of a rack's
// endpoints, or a percentile of it, and headroom on top. (The percentile of a sum
// may be more than the sum of percentiles: who bursts less often than a
// percentile sees is taken for idle.) A rack's sNICs share it as a pool: who is
// overloaded redirects to a peer.
//
// Costs are those of package cost, with the trace's own peaks (peak of the
// racks' sums over the sum of the endpoints' peaks) and its own sharing
// (endpoints for each sNIC) in place of the source's.
//
// Running is counted as the source does: only regions that are accessed; those
// that are provisioned statically, all the time. Scaled at once means the regions
// that the load of an interval fills, without headroom or lag. Scaled by monitors
// is that the load was run on the regions of its rack (scale), which follow it
// after a monitor period and a reconfiguration, with what that slows it down. Long
// traces are not run.
//
// Latencies are the source's, unloaded: section 5.7.1 and figure 5.11.
package plan

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/sim/scale"
	"github.com/quillon/quillon/sim/traffic"
	"github.com/quillon/quillon/snic/cost"
	"github.com/quillon/quillon/snic/region"
)

// Options say what is planned for. Defaults has those of a user who says
// nothing.
type Options struct {
	// Interval of the measurement; 0: the longer of React and the trace's own
	// step.
	Interval clock.Duration
	// Percentile of the intervals' loads that counts as the peak, up to 100.
	Percentile float64
	Headroom   float64 // part of the peak that is provisioned in addition
	Region     float64 // what a chain in a region handles, Gb/s
	Board      float64 // what an sNIC handles, Gb/s
	Ports      int     // endpoints that are joined to one sNIC of a middle layer
	Chains     int     // chains in regions of their own that every packet takes
	Deviations float64 // of an endpoint's load, above its mean: a spike
	Prices     cost.Prices
	Running    cost.Running
}

// React is how fast regions follow the load: a monitor period and a
// reconfiguration.
const React = 10 * time.Millisecond

// Defaults are the source's values, where it has them. It has none for Region
// and Headroom.
func Defaults() Options {
	return Options{
		Percentile: 100, Headroom: 0.2, Region: 10, Board: 100, Ports: cost.PublishedSharing, Chains: 1, Deviations: 2,
		Prices: cost.Published(), Running: cost.Running{RegionHour: 1},
	}
}

// Check says what cannot be planned.
func (o *Options) Check() error {
	switch {
	case o.Interval < 0:
		return errors.New("the interval must be more than 0")
	case !(o.Percentile > 0 && o.Percentile <= 100):
		return errors.New("the percentile must be more than 0, and at most 100")
	case !(o.Headroom >= 0 && o.Headroom <= 100):
		return errors.New("the headroom must be from 0 to 10000 percent")
	case !(o.Region > 0) || math.IsInf(o.Region, 0):
		return errors.New("a region must handle more than 0 Gb/s")
	case !(o.Board > 0) || math.IsInf(o.Board, 0):
		return errors.New("an sNIC must handle more than 0 Gb/s")
	case o.Ports < 1 || o.Ports > 1024:
		return errors.New("an sNIC must have from 1 to 1024 ports for endpoints")
	case o.Chains < 1 || o.Chains > 1024:
		return errors.New("chains must be from 1 to 1024")
	case !(o.Deviations >= 0) || math.IsInf(o.Deviations, 0):
		return errors.New("a spike's deviations must be a number, and not negative")
	}
	if err := o.Prices.Check(); err != nil {
		return err
	}
	return o.Running.Check()
}

// maxNeed bounds the regions and sNICs that are planned for.
const maxNeed = 1 << 30

// Plan is the answer. Rates are in Gb/s.
type Plan struct {
	Endpoints int     `json:"endpoints"`
	Events    int64   `json:"events"`
	Late      int64   `json:"late_events,omitempty"`
	Interval  float64 `json:"interval_s"`
	// Step is the trace's own step where that is the interval.
	Step       bool    `json:"interval_is_the_traces_step,omitempty"`
	Intervals  int64   `json:"intervals"`
	Duration   float64 `json:"duration_s"`
	Percentile float64 `json:"percentile"`
	Headroom   float64 `json:"headroom"`

	Mean  float64 `json:"mean_gbps"`
	Peaks Peaks   `json:"peaks"`
	// Coarser are the peaks by longer intervals.
	Coarser []Peaks `json:"coarser_intervals,omitempty"`
	// Together is the share of time in which so many endpoints spike.
	Together   []float64 `json:"spike_together"`
	Deviations float64   `json:"spike_deviations"`

	Racks []Rack `json:"racks"`
	Need  Rack   `json:"total"`

	CapEx   []CapEx   `json:"capex"`
	OpEx    []OpEx    `json:"opex"`
	Latency []Latency `json:"latency"`
	// Slowdown of the racks whose regions are scaled by monitors, the mean of
	// them; nil when the trace is too long to be run.
	Slowdown *float64 `json:"slowdown,omitempty"`

	timeline traffic.Timeline
}

// Peaks compares consolidation, without headroom.
type Peaks struct {
	Interval  float64 `json:"interval_s"`
	Endpoints float64 `json:"sum_of_endpoints_gbps"`
	Racks     float64 `json:"sum_of_racks_gbps"`
	All       float64 `json:"all_together_gbps"`
}

// Rack is what a rack needs, headroom included.
type Rack struct {
	Name      string  `json:"rack,omitempty"`
	Endpoints int     `json:"endpoints"`
	Gbps      float64 `json:"gbps"`
	// Regions in all, and the sNICs that they are on with the regions of each:
	// in a middle layer, whose ports bound them, and attached to the switch.
	Regions       int `json:"regions"`
	Middle        int `json:"snics_middle_layer"`
	MiddleRegions int `json:"regions_per_snic_middle_layer"`
	Switch        int `json:"snics_switch_attached"`
	SwitchRegions int `json:"regions_per_snic_switch_attached"`
}

// CapEx is the price of a design.
type CapEx struct {
	Design      string    `json:"design"`
	PerEndpoint float64   `json:"per_endpoint"`
	All         float64   `json:"all"`
	Saves       float64   `json:"saves"` // part of no disaggregation's
	Bill        cost.Bill `json:"bill"`
}

// OpEx is the price of running for the time of the trace.
type OpEx struct {
	Scheme      string  `json:"scheme"`
	RegionHours float64 `json:"region_hours"`
	Cost        float64 `json:"cost"`
	Saves       float64 `json:"saves"` // part of each endpoint's own
}

// Latency is what a path adds, in microseconds.
type Latency struct {
	Path   string     `json:"path"`
	Micros [2]float64 `json:"us"` // best and worst
}

// Make plans for a load. show, which may be nil, is told before each pass over
// it what is done.
func Make(src traffic.Source, o Options, show func(pass string)) (*Plan, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if show == nil {
		show = func(string) {}
	}
	p := &Plan{Percentile: o.Percentile, Headroom: o.Headroom, Deviations: o.Deviations}
	interval := o.Interval
	if interval == 0 {
		show("looking for the step")
		step, err := traffic.Step(src)
		if err != nil {
			return nil, err
		}
		interval, p.Step = max(React, step), step > React
	}

	show("measuring")
	meters := make([]*traffic.Meter, 3) // by the interval, and longer ones
	for i, factor := range []clock.Duration{1, 10, 100} {
		if interval > math.MaxInt64/factor {
			meters = meters[:i]
			break
		}
		var err error
		if meters[i], err = traffic.NewMeter(src, interval*factor); err != nil {
			return nil, err
		}
	}
	perRegion := o.Region * 1e9 / 8 * interval.Seconds() // bytes of an interval
	used := 0.0                                          // regions, times intervals
	rates := newRates(interval)
	meters[0].Closed = func(racks []float64, n int64) {
		for _, b := range racks {
			used += float64(ceil(b/perRegion)) * float64(n)
		}
		rates.add(racks, n)
	}
	if err := src.Each(func(e traffic.Event) error {
		for _, m := range meters {
			if err := m.Add(e); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	s, err := meters[0].Stats()
	if err != nil {
		return nil, err
	}
	q := o.Percentile / 100
	peaks := func(s *traffic.Stats) Peaks {
		return Peaks{s.Interval.Seconds(), gbps(s, s.SumOfPeaks(q)), gbps(s, s.RackPeaks(q)), gbps(s, s.PeakOfSum(q))}
	}
	p.Endpoints, p.Events, p.Late, p.Intervals = len(s.Endpoints), s.Events, s.Late, s.Intervals
	p.Interval, p.Duration = s.Interval.Seconds(), float64(s.Intervals)*s.Interval.Seconds()
	p.Mean, p.Peaks, p.timeline = gbps(s, s.Total.Bytes)/float64(s.Intervals), peaks(s), s.Timeline
	for _, m := range meters[1:] {
		if c, err := m.Stats(); err == nil && c.Intervals >= 10 {
			p.Coarser = append(p.Coarser, peaks(c))
		}
	}
	if p.Peaks.Endpoints == 0 || p.Peaks.Racks == 0 {
		return nil, fmt.Errorf("percentile %v of the loads is 0: the trace is idle most of the time; take a higher one or longer intervals", o.Percentile)
	}
	if need := p.Peaks.Endpoints * (1 + o.Headroom) / min(o.Region, o.Board); !(need <= maxNeed) {
		return nil, fmt.Errorf("the load peaks at %.3g Gb/s, more than %d regions or sNICs handle: are its bytes right?", p.Peaks.Endpoints, maxNeed)
	}

	show("looking for spikes")
	k := traffic.NewSpikes(s, o.Deviations)
	if err := src.Each(k.Add); err != nil {
		return nil, err
	}
	p.Together = k.Shares()

	p.need(s, &o, q)
	p.buy(&o)
	own := 0 // regions, when each endpoint has those for its own peak
	for i := range s.Endpoints {
		own += o.regions(gbps(s, s.Endpoints[i].Quantile(q, s.Intervals)) * (1 + o.Headroom))
	}
	hours := p.Duration / 3600
	show("scaling")
	monitored, err := p.scale(&o, rates)
	if err != nil {
		return nil, err
	}
	p.run(&o, float64(own)*hours, float64(p.Need.Regions)*hours, used*float64(o.Chains)*p.Interval/3600, monitored)
	p.Latency = []Latency{
		{"through an sNIC's data path", [2]float64{1.3, 1.3}},
		{"end to end, sNIC in the middle layer", [2]float64{1.91, 1.91}},
		{"end to end, sNIC at the switch", [2]float64{2.71, 2.71}},
		{"end to end, redirected over a ring", [2]float64{3.82, 4.12}},
	}
	return p, nil
}

func gbps(s *traffic.Stats, bytes float64) float64 { return s.Rate(bytes) / 1e9 }

// ceil forgives what rounding adds.
func ceil(v float64) int { return int(math.Ceil(v * (1 - 1e-9))) }

// regions are those that so many Gb/s fill.
func (o *Options) regions(gbps float64) int { return ceil(gbps/o.Region) * o.Chains }

// need is what the racks need.
func (p *Plan) need(s *traffic.Stats, o *Options, q float64) {
	endpoints := make([]int, len(s.Racks))
	for _, r := range s.RackOf {
		endpoints[r]++
	}
	for i := range s.Racks {
		r := Rack{Name: s.Names[i], Endpoints: endpoints[i], Gbps: gbps(s, s.Racks[i].Quantile(q, s.Intervals)) * (1 + o.Headroom)}
		r.Regions = max(o.regions(r.Gbps), o.Chains)
		boards := max(ceil(r.Gbps/o.Board), 1)
		r.Switch, r.Middle = boards, max(boards, ceil(float64(r.Endpoints)/float64(o.Ports)))
		r.SwitchRegions, r.MiddleRegions = ceil(float64(r.Regions)/float64(r.Switch)), ceil(float64(r.Regions)/float64(r.Middle))
		p.Racks = append(p.Racks, r)
		p.Need.Endpoints += r.Endpoints
		p.Need.Gbps += r.Gbps
		p.Need.Regions += r.Regions
		p.Need.Middle += r.Middle
		p.Need.Switch += r.Switch
		p.Need.MiddleRegions = max(p.Need.MiddleRegions, r.MiddleRegions)
		p.Need.SwitchRegions = max(p.Need.SwitchRegions, r.SwitchRegions)
	}
}

// buy compares the designs.
func (p *Plan) buy(o *Options) {
	n := float64(p.Endpoints)
	ratio := math.Min(p.Peaks.Racks/p.Peaks.Endpoints, 1)
	none := 0.0
	for d := range cost.Designs {
		sharing := n / float64(p.Need.Middle)
		if d == cost.EnhancedSwitch || d == cost.SwitchAttached {
			sharing = n / float64(p.Need.Switch)
		}
		b := o.Prices.CapEx(d, sharing, ratio)
		c := CapEx{Design: d.String(), PerEndpoint: b.Total(), All: b.Total() * n, Bill: b}
		if d == cost.NotDisaggregated {
			none = c.PerEndpoint
		}
		if none > 0 {
			c.Saves = 1 - c.PerEndpoint/none
		}
		p.CapEx = append(p.CapEx, c)
	}
}

// rates are the loads of racks, as long as they are few enough to be run.
type rates struct {
	interval clock.Duration
	n        int64
	racks    [][]float64 // bits a second
	tooMany  bool
}

// Bounds of what is run: intervals of all racks, and steps of them.
const (
	maxIntervals = 1 << 22
	maxSteps     = 1 << 24
)

func newRates(interval clock.Duration) *rates { return &rates{interval: interval} }

// add adds n intervals. Racks may come late: they were idle before.
func (r *rates) add(racks []float64, n int64) {
	if r.tooMany || (r.n+n)*int64(len(racks)) > maxIntervals {
		r.tooMany, r.racks = true, nil
		return
	}
	for len(r.racks) < len(racks) {
		r.racks = append(r.racks, make([]float64, r.n))
	}
	for i, b := range racks {
		for range n {
			r.racks[i] = append(r.racks[i], b*8/r.interval.Seconds())
		}
	}
	r.n += n
}

// step is how often regions are sampled: ten times a monitor period.
const step = 500 * time.Microsecond

// scale runs the racks' loads on the regions that they need, and returns the
// region-hours, 0 when nothing was run.
func (p *Plan) scale(o *Options, r *rates) (float64, error) {
	if r.tooMany || float64(r.n)*float64(r.interval/min(step, r.interval))*float64(len(r.racks)) > maxSteps {
		return 0, nil
	}
	hours, slow := 0.0, 0.0
	for i, rate := range r.racks {
		regions := p.Racks[i].Regions / o.Chains
		if regions > region.MaxRegions {
			return 0, nil
		}
		out, err := scale.Scaled(&scale.Load{Interval: r.interval, Rate: rate},
			scale.Board{Config: region.Default(regions, 1), Capacity: o.Region * 1e9}, min(step, r.interval))
		if err != nil {
			return 0, err
		}
		hours += out.Regions * float64(o.Chains) * p.Duration / 3600
		slow += out.Slowdown / float64(len(r.racks))
	}
	p.Slowdown = &slow
	return hours, nil
}

// run compares how regions are provided, by the hours that they are.
func (p *Plan) run(o *Options, own, shared, instant, monitored float64) {
	for _, s := range []struct {
		name  string
		hours float64
	}{
		{"each endpoint its own, for its peak", own},
		{"racks, for the peak of their sum", shared},
		{"racks, scaled at once", instant},
		{"racks, scaled by monitors", monitored},
	} {
		if s.hours > 0 {
			p.OpEx = append(p.OpEx, OpEx{Scheme: s.name, RegionHours: s.hours, Cost: o.Running.OpEx(s.hours), Saves: 1 - s.hours/own})
		}
	}
}
