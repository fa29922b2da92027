// Package plan answers what a rack needs whose network tasks are consolidated
// on sNICs: how many of them, regions and gigabits a second, what it saves, and
// what latency it costs.
//
// It measures a load (traffic), twice: peaks, then spikes, which need the
// endpoints' means. The need is the peak of the sum of a rack's
// endpoints, or a percentile of it, and headroom on top. (The percentile of a sum
// may be more than the sum of percentiles: an endpoint that bursts less often than a
// percentile sees is taken for idle.) A rack's sNICs share it as a pool: who is
// overloaded redirects to a peer.
//
// Costs are those of package cost, with the trace's own peaks (peak of the
// racks' sums over the sum of the endpoints' peaks) and its own sharing
// (endpoints for each sNIC) in place of the source's.
//
// Running is counted as the source does: only regions that are accessed; those
// that are provisioned statically, all the time. Scaled at once means the regions
// that the load of an interval fills, without headroom or lag. Scaled by the board
// is what the live board makes of it, in virtual time (sim): one with the regions of the
// rack plays the busiest part of its load, each chain a task, and says which regions are accessed, how many at once,
// and by how much it slows the load. Of the whole load it is taken to need as many more than the load fills as of
// that part. An interval is played for a second at most, which is 100 times as long as the board takes to follow:
// so what is said of longer ones is a bound.
//
// Latencies are those of boards in virtual time, too, as figure 5.11.
package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/sim"
	"github.com/quillon/quillon/internal/sim/traffic"
	"github.com/quillon/quillon/nf/clock"
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
	// Play is how much of the load boards play, of all racks together; 0: there are no boards.
	Play time.Duration
}

// React is how fast regions follow the load: a monitor period and a
// reconfiguration.
const React = 10 * time.Millisecond

// Defaults are the source's values, where it has them. It has none for Region
// and Headroom.
func Defaults() Options {
	return Options{
		Percentile: 100, Headroom: 0.2, Region: 10, Board: 100, Ports: cost.PublishedSharing, Chains: 1, Deviations: 2,
		Prices: cost.Published(), Running: cost.Running{RegionHour: 1}, Play: 10 * time.Second,
	}
}

// Check says what cannot be planned.
func (o *Options) Check() error {
	switch {
	case o.Interval < 0:
		return errors.New("the interval must be more than 0")
	case o.Play < 0 || o.Play > time.Hour:
		return errors.New("what is played must be from 0 to an hour")
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
	Latency []Latency `json:"latency,omitempty"`
	// Played is what boards made of the busiest part of the load; nil when none was played.
	Played *Played `json:"played,omitempty"`

	timeline traffic.Timeline
}

// Played is what boards made of a part of the load.
type Played struct {
	Racks    int     `json:"racks"`
	Seconds  float64 `json:"seconds"`  // of each rack's load, at most
	Slowdown float64 `json:"slowdown"` // of the rack that is slowed most
	// Busy are the regions that were accessed at once in the rack that has most of them, and of how many.
	Busy    int `json:"busy_regions"`
	Regions int `json:"regions"`
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
	Path   string  `json:"path"`
	Micros float64 `json:"us"`
}

// Make plans for a load. show, which may be nil, is told before each pass over
// it what is done.
func Make(ctx context.Context, src traffic.Source, o Options, show func(pass string)) (*Plan, error) {
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
	rates := &rates{interval: interval, most: o.intervals(interval)}
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
	show("playing")
	over, err := p.play(ctx, &o, rates)
	if err != nil {
		return nil, err
	}
	instant := used * float64(o.Chains) * p.Interval / 3600
	p.run(&o, float64(own)*hours, float64(p.Need.Regions)*hours, instant, instant*over)
	if o.Play == 0 {
		return p, nil
	}
	return p, p.latencies(ctx)
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

// rates are the loads of racks in the busiest part of the trace: of its parts of so many intervals.
type rates struct {
	interval clock.Duration
	most     int64 // intervals
	now      part
	best     part
}

// part is a part of the trace.
type part struct {
	n     int64
	sum   float64
	racks [][]float64 // bits a second
}

// maxRates bounds what is remembered of all racks.
const maxRates = 1 << 22

// played is how long an interval is played at most.
const played = time.Second

// intervals is how many are played.
func (o *Options) intervals(interval clock.Duration) int64 {
	n := int64(o.Play / min(interval, played))
	if n == 0 && o.Play > 0 {
		n = 1
	}
	return min(n, maxRates)
}

// add adds n intervals. Racks may come late: they were idle before.
func (r *rates) add(racks []float64, n int64) {
	for n > 0 && r.most > 0 {
		k := min(n, r.most-r.now.n)
		if k == r.most && r.now.n == 0 { // all of a part, and of those behind it
			k = n - n%r.most
			r.now.put(racks, r.most, r.interval)
		} else {
			r.now.put(racks, k, r.interval)
		}
		n -= k
		if r.now.n == r.most {
			r.close()
		}
		if int64(len(racks))*r.most > maxRates {
			r.most = 0 // too many racks
			r.best = part{}
		}
	}
}

func (t *part) put(racks []float64, n int64, interval clock.Duration) {
	for len(t.racks) < len(racks) {
		t.racks = append(t.racks, make([]float64, t.n))
	}
	for i, b := range racks {
		rate := b * 8 / interval.Seconds()
		t.sum += rate * float64(n)
		for range n {
			t.racks[i] = append(t.racks[i], rate)
		}
	}
	t.n += n
}

// close ends a part.
func (r *rates) close() {
	if r.now.sum > r.best.sum {
		r.now, r.best = r.best, r.now
	}
	for i := range r.now.racks {
		r.now.racks[i] = r.now.racks[i][:0]
	}
	r.now.n, r.now.sum = 0, 0
}

// busiest is the part of a rack's load, of n intervals, in which it is highest.
func busiest(rate []float64, n int) []float64 {
	sum, best, at := 0.0, 0.0, 0
	for i, v := range rate {
		sum += v
		if i >= n {
			sum -= rate[i-n]
		}
		if sum > best {
			best, at = sum, max(0, i+1-n)
		}
	}
	return rate[at:min(at+n, len(rate))]
}

// mostChains are played in a row.
const mostChains = 8

// play has boards play the racks' loads, the highest first, and returns how many more regions than the load fills they
// need; 0 when nothing was played.
func (p *Plan) play(ctx context.Context, o *Options, r *rates) (over float64, err error) {
	r.close()
	if r.most == 0 || o.Chains > mostChains {
		return 0, nil
	}
	order := make([]int, len(r.best.racks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.Racks[b].Gbps, p.Racks[a].Gbps) })
	n := max(int(r.most)/max(len(order), 1), min(int(r.most), 4)) // 4 intervals at least, of some racks
	order = order[:min(len(order), int(r.most)/n)]
	paid, fills := 0.0, 0.0
	v := &Played{Seconds: float64(n) * min(r.interval, played).Seconds()}
	for _, i := range order {
		l := &sim.Load{Interval: min(r.interval, played), Rate: busiest(r.best.racks[i], n)}
		regions := p.Racks[i].Regions
		if regions > region.MaxRegions || l.Peak() == 0 {
			continue
		}
		// Many regions have larger pieces, so that these are no more.
		out, err := l.Scaled(ctx, sim.ScaledConfig{
			Regions: regions, Capacity: o.Region * 1e9, Tasks: o.Chains, Victims: 100,
			Piece: 100 * time.Microsecond * time.Duration(min(max(regions/4, 1), 10)),
		})
		if err != nil {
			return 0, err
		}
		paid += out.Regions
		fills += l.Instant(o.Region*1e9).Regions * float64(o.Chains)
		v.Racks++
		v.Slowdown = max(v.Slowdown, out.Slowdown)
		if out.Most >= v.Busy {
			v.Busy, v.Regions = out.Most, regions
		}
	}
	if v.Racks == 0 {
		return 0, nil
	}
	p.Played = v
	return paid / fills, nil
}

// latencies are those of boards without load.
func (p *Plan) latencies(ctx context.Context) error {
	board := sim.HTG9200()
	p.Latency = []Latency{{"through an sNIC's data path", float64(board.Path) / 1e3}}
	for _, x := range []struct {
		path string
		t    sim.Topology
	}{
		{"end to end, sNIC in the middle layer", sim.Single},
		{"end to end, sNIC at the switch", sim.SwitchAttached},
		{"end to end, redirected to a peer and back", sim.Intermediate},
	} {
		w, err := board.Unloaded(ctx, x.t, 1024)
		if err != nil {
			return err
		}
		p.Latency = append(p.Latency, Latency{x.path, float64(w.Took) / 1e3})
	}
	return nil
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
		{"racks, scaled by the board", monitored},
	} {
		if s.hours > 0 {
			p.OpEx = append(p.OpEx, OpEx{Scheme: s.name, RegionHours: s.hours, Cost: o.Running.OpEx(s.hours), Saves: 1 - s.hours/own})
		}
	}
}
