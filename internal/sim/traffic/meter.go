package traffic

import (
	"errors"
	"fmt"
	"math"

	"github.com/quillon/quillon/nf/clock"
)

// MaxEndpoints bounds a trace, and with it the memory that it takes.
const MaxEndpoints = 1 << 16

// maxIntervals bounds the intervals of a trace: more are a wrong time, or a wrong
// interval.
const maxIntervals = 1 << 40

// maxBytes bounds an event: so no sum is out of range.
const maxBytes = 1e18

// Endpoint is who sends.
type Endpoint struct{ Name, Rack string }

// Event says that an endpoint (an index into those of its Source) sent bytes.
type Event struct {
	Time     clock.Time
	Endpoint int
	Bytes    float64
}

// Source delivers events by ascending time, as often as it is asked. An error
// of yield ends it, and is returned.
type Source interface {
	Each(yield func(Event) error) error
	// Endpoints are those seen so far.
	Endpoints() []Endpoint
}

// ErrOrder: an event is earlier than the interval before those seen.
var ErrOrder = errors.New("times must ascend")

// slicer cuts events into intervals.
type slicer struct {
	interval clock.Duration
	begun    bool
	start    clock.Time // of interval 0
	open     int64
	bytes    []float64 // of each endpoint in the open interval
	touched  []int     // those that have any
	late     int64
	// row is called for each interval with bytes in it, then idle for those
	// without up to the next.
	row  func(i int64)
	idle func(n int64)
}

func (s *slicer) add(e Event) error {
	if !s.begun {
		s.begun, s.start = true, e.Time
	}
	for e.Endpoint >= len(s.bytes) {
		s.bytes = append(s.bytes, 0)
	}
	if !(e.Bytes >= 0 && e.Bytes <= maxBytes) {
		return fmt.Errorf("%v bytes at a time: want 0 to %v", e.Bytes, float64(maxBytes))
	}
	switch d := e.Time.Sub(s.start) - clock.Duration(s.open)*s.interval; {
	case d >= s.interval:
		n := int64(d / s.interval)
		s.close()
		if n > 1 {
			s.idle(n - 1)
		}
		s.open += n
		if s.open > maxIntervals {
			return fmt.Errorf("the trace has more than %d intervals of %v", int64(maxIntervals), s.interval)
		}
	case d < -s.interval:
		return fmt.Errorf("%w: %.6f s is after %.6f s, more than an interval late", ErrOrder, float64(e.Time)/1e9,
			float64(s.start.Add(clock.Duration(s.open)*s.interval))/1e9)
	case d < 0:
		s.late++
	}
	if e.Bytes > 0 {
		if s.bytes[e.Endpoint] == 0 {
			s.touched = append(s.touched, e.Endpoint)
		}
		s.bytes[e.Endpoint] += e.Bytes
	}
	return nil
}

// close ends the open interval.
func (s *slicer) close() {
	s.row(s.open)
	for _, e := range s.touched {
		s.bytes[e] = 0
	}
	s.touched = s.touched[:0]
}

// Series is what is known of a load: bytes an interval.
type Series struct {
	Bytes float64 // of all intervals
	Peak  float64
	sum2  float64
	loads histogram
}

func (s *Series) add(v float64) {
	s.Bytes += v
	s.sum2 += v * v
	s.Peak = math.Max(s.Peak, v)
	s.loads.add(v)
}

// Quantile is the load that the share q of all n intervals does not exceed; for
// 1 it is the peak. It is exact to 1.6 %, and never too low.
func (s *Series) Quantile(q float64, n int64) float64 {
	if q >= 1 {
		return s.Peak
	}
	return math.Min(s.loads.quantile(q, n), s.Peak)
}

// Spread is the mean and the standard deviation over n intervals.
func (s *Series) Spread(n int64) (mean, deviation float64) {
	mean = s.Bytes / float64(n)
	return mean, math.Sqrt(math.Max(s.sum2/float64(n)-mean*mean, 0))
}

// Meter measures a load. Add its events, then take Stats.
type Meter struct {
	s     slicer
	stats Stats
	// Closed, if set, is told the bytes of each rack in n intervals each; good
	// until it returns.
	Closed func(racks []float64, n int64)

	source Source
	racks  map[string]int
	rack   []float64 // in the open interval
}

// Stats are what a Meter measured.
type Stats struct {
	Interval clock.Duration
	Start    clock.Time
	// Intervals from the first event to the last, idle ones included.
	Intervals int64
	Events    int64
	// Late events came less than an interval after their time, and count in
	// the interval in which they came.
	Late      int64
	Endpoints []Series
	Racks     []Series // in the order in which they appeared
	RackOf    []int    // of each endpoint
	Names     []string // of the racks
	Total     Series
	Timeline  Timeline
}

// NewMeter measures a Source's events by the interval.
func NewMeter(src Source, interval clock.Duration) (*Meter, error) {
	if interval <= 0 {
		return nil, errors.New("the interval must be more than 0")
	}
	m := &Meter{source: src, racks: map[string]int{}}
	m.s = slicer{interval: interval, row: m.row, idle: m.idle}
	m.stats.Interval = interval
	m.stats.Timeline.each = 1
	return m, nil
}

// Add adds an event.
func (m *Meter) Add(e Event) error {
	for len(m.stats.RackOf) <= e.Endpoint {
		name := m.source.Endpoints()[len(m.stats.RackOf)].Rack
		id, ok := m.racks[name]
		if !ok {
			id = len(m.racks)
			m.racks[name] = id
			m.rack = append(m.rack, 0)
			m.stats.Racks = append(m.stats.Racks, Series{})
			m.stats.Names = append(m.stats.Names, name)
		}
		m.stats.RackOf = append(m.stats.RackOf, id)
		m.stats.Endpoints = append(m.stats.Endpoints, Series{})
	}
	m.stats.Events++
	return m.s.add(e)
}

func (m *Meter) row(int64) {
	total := 0.0
	for _, e := range m.s.touched {
		b := m.s.bytes[e]
		m.stats.Endpoints[e].add(b)
		m.rack[m.stats.RackOf[e]] += b
		total += b
	}
	if total > 0 {
		m.stats.Total.add(total)
	}
	m.stats.Timeline.add(total, 1)
	if m.Closed != nil {
		m.Closed(m.rack, 1)
	}
	for _, e := range m.s.touched {
		if r := m.stats.RackOf[e]; m.rack[r] > 0 {
			m.stats.Racks[r].add(m.rack[r])
			m.rack[r] = 0
		}
	}
}

func (m *Meter) idle(n int64) {
	m.stats.Timeline.add(0, n)
	if m.Closed != nil {
		m.Closed(m.rack, n)
	}
}

// Stats ends the measurement.
func (m *Meter) Stats() (*Stats, error) {
	if !m.s.begun {
		return nil, errors.New("the trace has no events")
	}
	m.s.close()
	m.stats.Intervals, m.stats.Start, m.stats.Late = m.s.open+1, m.s.start, m.s.late
	if m.stats.Total.Peak == 0 {
		return nil, errors.New("the trace has no bytes")
	}
	return &m.stats, nil
}

// SumOfPeaks is what endpoints need that each have their own q-quantile,
// bytes an interval.
func (s *Stats) SumOfPeaks(q float64) float64 { return sumOf(s.Endpoints, q, s.Intervals) }

// RackPeaks is what racks need that each have the q-quantile of their sum.
func (s *Stats) RackPeaks(q float64) float64 { return sumOf(s.Racks, q, s.Intervals) }

// PeakOfSum is what all together need.
func (s *Stats) PeakOfSum(q float64) float64 { return s.Total.Quantile(q, s.Intervals) }

func sumOf(ss []Series, q float64, n int64) float64 {
	sum := 0.0
	for i := range ss {
		sum += ss[i].Quantile(q, n)
	}
	return sum
}

// Rate is bytes an interval in bits a second.
func (s *Stats) Rate(bytes float64) float64 { return bytes * 8 / s.Interval.Seconds() }

// Spikes counts how many endpoints spike together. It takes a Source's events
// once more, after its Stats.
type Spikes struct {
	s         slicer
	threshold []float64
	together  []int64
}

// NewSpikes takes for spikes what is more than the mean by at least so many
// standard deviations.
func NewSpikes(s *Stats, deviations float64) *Spikes {
	k := &Spikes{together: make([]int64, 1)}
	k.s = slicer{interval: s.Interval, row: k.row, idle: func(n int64) { k.together[0] += n }}
	for i := range s.Endpoints {
		mean, deviation := s.Endpoints[i].Spread(s.Intervals)
		t := mean + deviations*deviation
		if deviation <= mean*1e-9 { // always one rate
			t = math.Inf(1)
		}
		k.threshold = append(k.threshold, t)
	}
	return k
}

// Add adds an event.
func (k *Spikes) Add(e Event) error { return k.s.add(e) }

func (k *Spikes) row(int64) {
	n := 0
	for _, e := range k.s.touched {
		if e < len(k.threshold) && k.s.bytes[e] >= k.threshold[e] {
			n++
		}
	}
	for n >= len(k.together) {
		k.together = append(k.together, 0)
	}
	k.together[n]++
}

// Shares ends the count: element n is the share of time in which n endpoints
// spike together.
func (k *Spikes) Shares() []float64 {
	if k.s.begun {
		k.s.close()
	}
	sum := 0.0
	for _, n := range k.together {
		sum += float64(n)
	}
	shares := make([]float64, len(k.together))
	for i, n := range k.together {
		if sum > 0 {
			shares[i] = float64(n) / sum
		}
	}
	return shares
}

// histogram counts values above 0 by 64 steps an octave; 0 is not counted.
type histogram struct {
	first int // the bucket of counts[0]
	n     []uint32
}

const steps = 64

func bucket(v float64) int {
	f, e := math.Frexp(v) // f is from 0.5
	return e*steps + int((f-0.5)*2*steps)
}

// ceiling is the greatest value of a bucket.
func ceiling(b int) float64 {
	e := int(math.Floor(float64(b) / steps))
	return math.Ldexp(0.5+float64(b-e*steps+1)/(2*steps), e)
}

func (h *histogram) add(v float64) {
	if v <= 0 {
		return
	}
	b := bucket(v)
	switch {
	case len(h.n) == 0:
		h.first, h.n = b, make([]uint32, 1, 8)
	case b < h.first:
		grown := make([]uint32, h.first-b+len(h.n))
		copy(grown[h.first-b:], h.n)
		h.first, h.n = b, grown
	}
	for b-h.first >= len(h.n) {
		h.n = append(h.n, 0)
	}
	if h.n[b-h.first] < math.MaxUint32 {
		h.n[b-h.first]++
	}
}

// quantile is over all values of which those that were not added are 0.
func (h *histogram) quantile(q float64, all int64) float64 {
	over := int64(math.Floor(float64(all) * (1 - q) * (1 + 1e-12))) // so many may be greater
	for i := len(h.n) - 1; i >= 0; i-- {
		if over -= int64(h.n[i]); over < 0 {
			return ceiling(h.first + i)
		}
	}
	return 0
}

// Timeline is a load over time in at most so many bins as fit a picture.
type Timeline struct {
	bins []Bin
	each int64 // intervals of a bin
	last int64 // intervals in the last bin
}

// Bin is a part of the time.
type Bin struct {
	Sum, Peak float64 // bytes of all its intervals, and of the greatest
}

const maxBins = 1024

func (t *Timeline) add(v float64, n int64) {
	for n > 0 {
		if len(t.bins) == 0 || t.last == t.each {
			if len(t.bins) == maxBins {
				for i := range maxBins / 2 {
					a, b := t.bins[2*i], t.bins[2*i+1]
					t.bins[i] = Bin{a.Sum + b.Sum, math.Max(a.Peak, b.Peak)}
				}
				t.bins = t.bins[:maxBins/2]
				t.each *= 2
			}
			t.bins = append(t.bins, Bin{})
			t.last = 0
		}
		k := min(n, t.each-t.last)
		b := &t.bins[len(t.bins)-1]
		b.Sum += v * float64(k)
		b.Peak = math.Max(b.Peak, v)
		t.last += k
		n -= k
	}
}

// Bins are the parts, and how many intervals each but the last has.
func (t *Timeline) Bins() ([]Bin, int64) { return t.bins, t.each }
