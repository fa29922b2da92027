// Package drf divides several resources among tenants by weighted dominant
// resource fairness.
//
// A tenant's demand is a vector: what it would use of each resource, in that
// resource's unit (bytes, packets, pages, of an epoch or of a second; the
// capacity is in the same unit). A tenant gets a fraction of its demand, the
// same of every resource, and never more than it asks for: half the packets
// need half of everything. Its dominant share is the greatest part that it has
// of any resource.
//
// Dominant shares grow together, in proportion to the weights, until a tenant
// has what it asks for, or a resource that it uses is full. The others go on,
// so that what one does not need goes to those who do (progressive filling).
// For every tenant that has less than it asks for there is then a full
// resource, used by it, of which no user has a greater dominant share for its
// weight; only one division has this property. It follows that
//
//   - no resource is overcommitted, and nobody can get more unless somebody
//     gets less (Pareto efficiency),
//   - nobody would have more of a static split by weights (sharing incentive),
//   - nobody would have more with what another got, scaled by their weights
//     (no envy),
//   - nobody gets more that is of use by telling another demand
//     (strategy-proofness),
//   - one resource, or one that is dominant for everybody, is divided max-min
//     fairly.
//
// When a tenant leaves, nobody gets less, provided that everybody uses every
// resource. Otherwise somebody may: who shared one resource with the tenant
// that left grows, and takes more of another one. More capacity may also leave
// a tenant with less, as known of the method.
//
// Sources: Ghodsi et al., Dominant Resource Fairness, NSDI 2011; for demands
// that are 0 and weights, Parkes, Procaccia and Shah, Beyond Dominant Resource
// Fairness, ACM TEAC 3(1), 2015; measured demands in place of declared ones,
// each network task a resource: Shan, SuperNIC (UCSD thesis, 2022, chapter 5),
// section 5.4.4.
package drf

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

const (
	// whole is a full resource, in the units that its use is counted in.
	whole = 1 << 62
	// slack is what counts as rounding: a level, so much greater than the one at
	// which a resource is full, is still reached. Resources are overcommitted by
	// no more than this part of them.
	slack = 1e-12
	// huge bounds capacities and weights from above, and a demand in capacities;
	// 1/huge bounds them from below. A tenant that asks for less asks for nothing.
	huge = 0x1p500
	// maxWeights is the greatest ratio of two weights.
	maxWeights = 1 << 20
)

// Solver divides resources. It is of fixed size, and no part of it may be used
// by two goroutines at a time.
//
// What is summed over tenants is an integer, rounded up: sums do not depend on
// the order, and what was added can be taken away again without a rest. So the
// result is the same to the last bit in whichever order tenants and resources
// are given.
type Solver struct {
	resources []resource
	tenants   []tenant
	waiting   []waiting // tenants that grow, by the level at which they have all
	full      []int32   // resources that are full at the level reached
	toLevel   float64   // (whole - used) / slope to a level
}

type resource struct {
	inverse float64 // of the capacity; 0 when there is none
	slope   int64   // use by tenants that grow, per level
	used    int64   // use by the others, of whole
	asked   float64 // all demands, in capacities
}

type tenant struct {
	weight     float64 // the greatest is in [1/2, 1)
	share      float64 // dominant share
	growth     float64 // fraction of the demand, per level
	rate       float64 // growth in units of slope
	bottleneck int32   // -1: it has all that it asked for
}

type waiting struct {
	level  float64
	tenant int32
}

// New makes a solver for at most so many tenants and resources.
func New(tenants, resources int) *Solver {
	return &Solver{
		resources: make([]resource, resources),
		tenants:   make([]tenant, tenants),
		waiting:   make([]waiting, tenants),
		full:      make([]int32, resources),
	}
}

// Solve divides capacity, one value a resource, among tenants, one weight each.
// demand has a row of resources for each tenant. The fraction of its demand
// that each tenant gets goes to grant, 0 to 1; a tenant that asks for nothing
// gets 1, and so does one that asks for less than 2^-500 of each capacity. One
// that asks for something of which there is nothing gets 0.
//
// Demands and capacities are finite and not negative; weights are above 0, and
// the greatest is no more than 2^20 times the least. After an error grant is as
// it was.
//
// It takes O(T·R + T·log T + (T+R)·R) steps and allocates nothing.
func (s *Solver) Solve(capacity, weight, demand, grant []float64) error {
	n, m := len(weight), len(capacity)
	switch {
	case n > len(s.tenants) || m > len(s.resources):
		return fmt.Errorf("drf: %d tenants and %d resources: made for %d and %d", n, m, len(s.tenants), len(s.resources))
	case len(demand) != n*m:
		return fmt.Errorf("drf: %d demands: %d tenants with %d resources have %d", len(demand), n, m, n*m)
	case len(grant) != n:
		return fmt.Errorf("drf: room for %d grants: there are %d tenants", len(grant), n)
	}
	none, err := s.takeCapacities(capacity)
	if err != nil {
		return err
	}
	scale, err := s.takeWeights(weight)
	if err != nil {
		return err
	}
	for t := range n {
		if err := s.takeDemand(t, demand[t*m:][:m], none); err != nil {
			return err
		}
	}
	fits := true
	for r := range s.resources[:m] {
		fits = fits && s.resources[r].asked <= 1
	}
	grow := s.waiting[:0]
	for t := range s.tenants[:n] {
		e := &s.tenants[t]
		switch {
		case e.bottleneck >= 0:
			grant[t] = 0
		case fits || e.share < 1/huge:
			grant[t] = 1
		default:
			e.growth = e.weight / e.share
			e.rate = e.growth * scale
			grow = append(grow, waiting{e.share / e.weight, int32(t)})
		}
	}
	if len(grow) > 0 {
		s.toLevel = scale / whole
		s.fill(grow, m, demand, grant)
	}
	for t := range s.tenants[:n] {
		s.tenants[t].share *= grant[t]
	}
	return nil
}

// Share is the dominant share that tenant t got of the last Solve, 0 to 1.
func (s *Solver) Share(t int) float64 { return s.tenants[t].share }

// Bottleneck is the full resource that kept tenant t from more in the last
// Solve, or -1 when it got all that it asked for.
func (s *Solver) Bottleneck(t int) int { return int(s.tenants[t].bottleneck) }

// takeCapacities begins a division; it reports whether there is a resource of
// which there is nothing.
func (s *Solver) takeCapacities(capacity []float64) (none bool, err error) {
	for r, c := range capacity {
		e := resource{}
		switch {
		case c == 0:
			none = true
		case c >= 1/huge && c <= huge:
			e.inverse = 1 / c
		default:
			return false, fmt.Errorf("drf: capacity %g of resource %d: want 0, or from %g to %g", c, r, 1/huge, huge)
		}
		s.resources[r] = e
	}
	return none, nil
}

// takeWeights brings weights below 1, by a power of two. All together grow by
// less than whole/scale a level.
func (s *Solver) takeWeights(weight []float64) (scale float64, err error) {
	least, most := math.Inf(1), 0.0
	for t, w := range weight {
		if !(w >= 1/huge && w <= huge) {
			return 0, fmt.Errorf("drf: weight %g of tenant %d: want a number above 0, from %g to %g", w, t, 1/huge, huge)
		}
		least, most = min(least, w), max(most, w)
	}
	if most/maxWeights > least {
		return 0, fmt.Errorf("drf: weights %g and %g: want no more than %d times the other", least, most, maxWeights)
	}
	_, exp := math.Frexp(most)
	below := math.Ldexp(1, -exp)
	const fine = 30
	sum := uint64(0)
	for t, w := range weight {
		w *= below
		s.tenants[t].weight = w
		sum += uint64(w*(1<<fine)) + 1
	}
	return math.Ldexp(whole, fine-bits.Len64(sum)), nil
}

// takeDemand finds the dominant share of a demand, and adds it up.
func (s *Solver) takeDemand(t int, row []float64, none bool) error {
	e := &s.tenants[t]
	e.bottleneck = -1
	// For numbers that are not negative the order of their bits is their order;
	// what is negative, infinite or no number is above them.
	most := uint64(0)
	resources := s.resources[:len(row)]
	for r, d := range row {
		if b := math.Float64bits(d * resources[r].inverse); b > most {
			most = b
		}
	}
	if most > math.Float64bits(huge) {
		most = 0
		for r, d := range row {
			u := d * resources[r].inverse
			if !(d >= 0) || d > math.MaxFloat64 || u > huge {
				return fmt.Errorf("drf: demand %g of tenant %d for resource %d: want a number not below 0, and not above %g times the capacity", d, t, r, huge)
			}
			if u > 0 { // not -0
				most = max(most, math.Float64bits(u))
			}
		}
	}
	e.share = math.Float64frombits(most)
	if none {
		for r, d := range row {
			if d > 0 && resources[r].inverse == 0 {
				e.bottleneck, e.share = int32(r), 0
				return nil
			}
		}
	}
	for r, d := range row {
		resources[r].asked += d * resources[r].inverse
	}
	return nil
}

// fill lets the tenants in grow have more until each has all, or a resource
// that it uses is full. A level is the dominant share for a weight of 1.
func (s *Solver) fill(grow []waiting, m int, demand, grant []float64) {
	for _, g := range grow {
		s.start(int(g.tenant), demand[int(g.tenant)*m:][:m])
	}
	slices.SortFunc(grow, func(a, b waiting) int {
		switch {
		case a.level < b.level:
			return -1
		case a.level > b.level:
			return 1
		}
		return 0
	})
	// A resource is full at a level no lower when a tenant stops below that: so
	// tenants below the lowest of these levels get all, and when none is there
	// the level is reached.
	level := 0.0
	for len(grow) > 0 {
		var full []int32
		level, full = s.next(level, m)
		i := 0
		for ; i < len(grow) && grow[i].level <= level*(1+slack); i++ {
			t := int(grow[i].tenant)
			grant[t] = 1
			s.stop(t, demand[t*m:][:m], 1)
		}
		if grow = grow[i:]; i > 0 {
			continue
		}
		kept := grow[:0]
		for _, g := range grow {
			t := int(g.tenant)
			row := demand[t*m:][:m]
			at := slices.IndexFunc(full, func(r int32) bool { return row[r] > 0 })
			if at < 0 {
				kept = append(kept, g)
				continue
			}
			e := &s.tenants[t]
			e.bottleneck = full[at]
			grant[t] = level * e.growth
			s.stop(t, row, grant[t])
		}
		grow = kept
	}
}

// next is the level, at least the one given, at which the first resources are
// full if nobody stops before, and these.
func (s *Solver) next(level float64, m int) (float64, []int32) {
	full := s.full[:0]
	lowest := math.Inf(1)
	for r := range s.resources[:m] {
		e := &s.resources[r]
		if e.slope == 0 {
			continue
		}
		l := max(float64(whole-e.used)*s.toLevel/float64(e.slope), level)
		if l < lowest {
			lowest, full = l, full[:0]
		}
		if l == lowest {
			full = append(full, int32(r))
		}
	}
	return lowest, full
}

// start adds a tenant to those that grow.
func (s *Solver) start(t int, row []float64) {
	rate := s.tenants[t].rate
	resources := s.resources[:len(row)]
	for r, d := range row {
		e := &resources[r]
		e.slope += up(d * e.inverse * rate)
	}
}

// stop leaves a tenant with this fraction of its demand.
func (s *Solver) stop(t int, row []float64, fraction float64) {
	rate := s.tenants[t].rate
	fraction *= whole
	resources := s.resources[:len(row)]
	for r, d := range row {
		e := &resources[r]
		u := d * e.inverse
		e.slope -= up(u * rate)
		e.used += up(u * fraction)
	}
}

// up is a whole number above v, no more than 1 above, and 0 for 0.
func up(v float64) int64 {
	n := int64(v)
	if v > 0 {
		n++
	}
	return n
}
