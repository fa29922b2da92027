package traffic

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/quillon/quillon/nf/clock"
)

// Pareto is the generalised Pareto distribution: location, scale and shape.
type Pareto struct{ Theta, Sigma, K float64 }

// Draw draws a number; k must not be 0.
func (p Pareto) Draw(r *rand.Rand) float64 {
	return p.Theta + p.Sigma*(math.Pow(1-r.Float64(), -p.K)-1)/p.K
}

// Mean is infinite for a shape of 1 and more.
func (p Pareto) Mean() float64 {
	if p.K >= 1 {
		return math.Inf(1)
	}
	return p.Theta + p.Sigma/(1-p.K)
}

// withMean is the distribution of p's shape from 0 with another mean.
func (p Pareto) withMean(m float64) Pareto { return Pareto{0, m * (1 - p.K), p.K} }

// ExtremeValue is the generalised extreme value distribution.
type ExtremeValue struct{ Mu, Sigma, K float64 }

// Draw draws a number; k must not be 0.
func (g ExtremeValue) Draw(r *rand.Rand) float64 {
	return g.Mu + g.Sigma*(math.Pow(-math.Log(1-r.Float64()), -g.K)-1)/g.K
}

// Requests of pool ETC, as published: bytes of a key and of a value, and the
// gap between two requests at a server in microseconds.
var (
	KeySize   = ExtremeValue{30.7984, 8.20449, 0.078688}
	ValueSize = Pareto{0, 214.476, 0.348238}
	Gap       = Pareto{0, 16.0292, 0.154971}
)

// smallValues is the published share of values of 0 to 14 bytes; longer ones
// follow ValueSize.
var smallValues = [15]float64{
	0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606,
	0.00023, 0.00837, 0.00837, 0.08989, 0.00092, 0.00326, 0.01980,
}

const (
	maxKey   = 250     // memcached's limit
	maxValue = 1 << 20 // memcached's limit
)

// requestBytes draws the bytes of a key and its value.
func requestBytes(r *rand.Rand) float64 {
	key := math.Min(math.Max(math.Round(KeySize.Draw(r)), 1), maxKey)
	u := r.Float64()
	for n, p := range smallValues {
		if u -= p; u < 0 {
			return key + float64(n)
		}
	}
	// The rest of the distribution, from 15 bytes on.
	floor := 1 - math.Pow(1+ValueSize.K*15/ValueSize.Sigma, -1/ValueSize.K)
	v := ValueSize.Sigma * (math.Pow((1-floor)*(1-r.Float64()), -ValueSize.K) - 1) / ValueSize.K
	return key + math.Min(math.Floor(v), maxValue)
}

// Mean and standard deviation of requestBytes, by 20 million draws.
const (
	requestMean      = 235.0
	requestDeviation = 488.0
)

// Facebook generates the load of racks of key/value servers: calm requests,
// and bursts in which an endpoint sends at the rate of its link. The same
// parameters give the same load.
type Facebook struct {
	Racks     int // 0: one
	Endpoints int // in each rack
	Interval  clock.Duration
	Intervals int
	// Calm is the mean load of an endpoint by requests outside of bursts,
	// bytes/s; negative: that of the published gaps (12.4 MB/s).
	Calm float64
	// Line is what a burst adds, bytes/s.
	Line float64
	// Share is the part of the time in which an endpoint bursts.
	Share float64
	// Length is the mean of a burst.
	Length clock.Duration
	// Correlation is the part of an endpoint's bursts that are its rack's: at
	// 0 endpoints burst on their own, at 1 all of a rack together, at -1 they
	// take turns.
	Correlation float64
	Seed        uint64
}

// maxCells bounds what a generator's Source keeps: endpoints times intervals.
const maxCells = 1 << 25

// Check says what cannot be generated.
func (f *Facebook) Check() error {
	switch {
	case f.Racks < 0 || f.Racks > 1<<16:
		return errors.New("racks must be from 1 to 65536")
	case f.Endpoints < 1 || f.Endpoints > MaxEndpoints:
		return fmt.Errorf("endpoints must be from 1 to %d", MaxEndpoints)
	case f.Interval <= 0:
		return errors.New("the interval must be more than 0")
	case f.Intervals < 1 || f.Intervals > 1<<26:
		return errors.New("intervals must be from 1 to 67108864")
	case !(f.Line >= 0) || math.IsInf(f.Line, 0) || math.IsNaN(f.Calm) || math.IsInf(f.Calm, 0):
		return errors.New("rates must be numbers, and not negative")
	case !(f.Share >= 0 && f.Share < 1):
		return errors.New("the share of bursts must be from 0 to less than 1")
	case f.Share > 0 && f.Length <= 0:
		return errors.New("the length of bursts must be more than 0")
	case !(f.Correlation >= -1 && f.Correlation <= 1):
		return errors.New("the correlation must be from -1 to 1")
	}
	return nil
}

// bursts is a row of bursts: when the next one begins and ends, in seconds.
type bursts struct {
	r           *rand.Rand
	gap, length Pareto
	never       bool
	turn        *turns
	start, end  float64
}

// rarest is the smallest share of time that bursts have. Below it none comes:
// gaps of a smaller share soon leave the range of numbers.
const rarest = 1e-12

// newBursts begins long before 0, so that what is seen from 0 on does not
// depend on how it began.
func newBursts(r *rand.Rand, share, length float64) bursts {
	b := bursts{r: r, never: share < rarest}
	if b.never {
		b.start, b.end = math.Inf(1), math.Inf(1)
		return b
	}
	b.gap = Gap.withMean(length * (1 - share) / share)
	b.length = ValueSize.withMean(length)
	b.end = -(4 + 4*r.Float64()) * (length + b.gap.Mean())
	b.next()
	return b
}

func (b *bursts) next() {
	switch {
	case b.never:
		return
	case b.turn != nil:
		b.start, b.end = b.turn.next()
		return
	}
	b.start = b.end + b.gap.Draw(b.r)
	b.end = b.start + b.length.Draw(b.r)
}

// turns are a rack's: one endpoint after the other begins to burst, and bursts
// for as many turns as make its share.
type turns struct {
	r        *rand.Rand
	length   Pareto
	n, left  int       // endpoints, and turns until that of this one
	at       float64   // where the first of ahead begins
	ahead    []float64 // lengths of the next turns
	whole    int
	fraction float64
}

func newTurns(r *rand.Rand, share, length float64, n, who int) bursts {
	lasts := share * float64(n) // turns
	t := &turns{r: r, n: n, left: who, whole: int(lasts), length: ValueSize.withMean(length / lasts)}
	t.fraction = lasts - float64(t.whole)
	t.at = -4 * float64(n+1) * length / lasts * r.Float64()
	b := bursts{turn: t}
	b.next()
	return b
}

func (t *turns) next() (start, end float64) {
	for {
		for len(t.ahead) < t.whole+2 {
			t.ahead = append(t.ahead, t.length.Draw(t.r))
		}
		start, end = t.at, t.at+t.fraction*t.ahead[t.whole]
		for _, d := range t.ahead[:t.whole] {
			end += d
		}
		t.at += t.ahead[0]
		t.ahead = append(t.ahead[:0], t.ahead[1:]...)
		if t.left--; t.left < 0 {
			t.left += t.n
			return start, end
		}
	}
}

// Each calls emit with the bytes of every interval in which the endpoint sends
// anything, in ascending order. Racks and endpoints count from 0.
func (f *Facebook) Each(rack, endpoint int, emit func(interval int, bytes float64)) {
	who := uint64(rack)<<32 | uint64(endpoint+1)
	r := rand.New(rand.NewPCG(f.Seed, who))
	common := rand.New(rand.NewPCG(f.Seed, uint64(rack)<<32))
	part := math.Abs(f.Correlation)
	own := newBursts(r, f.Share*(1-part), f.Length.Seconds())
	shared := bursts{never: true, start: math.Inf(1)}
	switch {
	case f.Share < rarest:
	case f.Correlation > 0:
		shared = newBursts(common, f.Share, f.Length.Seconds())
	case f.Correlation < 0:
		shared = newTurns(common, f.Share, f.Length.Seconds(), f.Endpoints, endpoint)
	}
	step := f.Interval.Seconds()
	calm := newCalm(f.Calm, step)
	horizon := step * float64(f.Intervals)

	at, sum := 0, 0.0 // the interval that is open
	flush := func(to int) {
		for ; at < to; at++ {
			if !calm.none {
				sum += calm.draw(r)
			}
			if sum > 0 {
				emit(at, sum)
			}
			sum = 0
			if calm.none {
				at = to - 1
			}
		}
	}
	covered := 0.0 // bursts that overlap are one
	join := r.Float64() < part
	for {
		b := &own
		mine := true
		if shared.start < own.start {
			b, mine = &shared, false
		}
		if b.start >= horizon {
			break
		}
		if mine || join {
			from, to := math.Max(b.start, covered), math.Min(b.end, horizon)
			for from < to {
				i := min(int(from/step), f.Intervals-1)
				end := math.Min(float64(i+1)*step, to)
				if end <= from { // rounding: the next interval
					i++
					if i >= f.Intervals {
						break
					}
					end = math.Min(float64(i+1)*step, to)
				}
				if i > at {
					flush(i)
				}
				sum += f.Line * (end - from)
				from = end
			}
			covered = math.Max(covered, to)
		}
		b.next()
		if !mine {
			join = r.Float64() < part
		}
	}
	flush(f.Intervals)
}

// few is how many requests an interval may have to be drawn one by one; the sum
// of more is drawn from the normal distribution with its mean and variance.
const few = 32

// calm draws the bytes of an interval by requests.
type calm struct {
	none            bool
	gap             Pareto
	step            float64
	left            float64 // until the next request
	mean, deviation float64
	many            bool
}

func newCalm(rate, step float64) *calm {
	c := &calm{step: step, none: rate == 0}
	if c.none {
		return c
	}
	gap := Gap.Mean() / 1e6
	if rate > 0 {
		gap = requestMean / rate
	}
	c.gap = Gap.withMean(gap)
	n := step / gap
	c.many = n > few
	// Requests by a renewal process: n of them with a variance of n cv².
	cv2 := 1 / (1 - 2*Gap.K)
	c.mean = n * requestMean
	c.deviation = math.Sqrt(n * (requestDeviation*requestDeviation + cv2*requestMean*requestMean))
	return c
}

func (c *calm) draw(r *rand.Rand) float64 {
	if c.many {
		return math.Max(c.mean+c.deviation*r.NormFloat64(), 0)
	}
	sum := 0.0
	for c.left < c.step {
		sum += requestBytes(r)
		c.left += c.gap.Draw(r)
	}
	c.left -= c.step
	return sum
}

// Source is the load as events, one for each endpoint and interval in which it
// sends.
func (f *Facebook) Source() (Source, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	racks := max(f.Racks, 1)
	if n := racks * f.Endpoints; n > MaxEndpoints || n > maxCells/f.Intervals {
		return nil, fmt.Errorf("%d endpoints and %d intervals are too many at once: at most %d endpoints, and %d of both multiplied",
			n, f.Intervals, MaxEndpoints, maxCells)
	}
	g := &generated{interval: f.Interval, rows: make([][]float32, f.Intervals)}
	n := racks * f.Endpoints
	for i := range g.rows {
		g.rows[i] = make([]float32, n)
	}
	for rack := range racks {
		for e := range f.Endpoints {
			id := rack*f.Endpoints + e
			f.Each(rack, e, func(i int, bytes float64) { g.rows[i][id] = float32(bytes) })
			g.who = append(g.who, Endpoint{Name: "endpoint-" + strconv.Itoa(id), Rack: "rack-" + strconv.Itoa(rack)})
		}
	}
	return g, nil
}

// generated is a load in memory.
type generated struct {
	interval clock.Duration
	rows     [][]float32
	who      []Endpoint
}

func (g *generated) Endpoints() []Endpoint { return g.who }

func (g *generated) Each(yield func(Event) error) error {
	for i, row := range g.rows {
		at := clock.Time(i) * clock.Time(g.interval)
		for id, b := range row {
			// The first and the last interval are there even when idle.
			if b > 0 || id == 0 && (i == 0 || i == len(g.rows)-1) {
				if err := yield(Event{Time: at, Endpoint: id, Bytes: float64(b)}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
