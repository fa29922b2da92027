// Package drf divides several resources among tenants by weighted dominant
// resource fairness.
//
// A tenant's demand is a vector: how much it would use of each resource, in that resource's unit
// (bytes, packets or pages, in an epoch or in a second; the capacity has the same unit). A tenant
// gets a fraction of its demand, the same of every resource because half the packets need half of
// everything, and never more than it asks for. Its dominant share is the greatest part that it has of
// any resource.
//
// Dominant shares grow together, in proportion to the weights. A tenant stops when it has all that it
// asks for, or when a resource that it uses is full. Other tenants continue, so that they get what it
// does not need (progressive filling). In the end, every tenant that has less than it asks for uses a
// full resource of which no user has a greater dominant share over weight. Only one division has this
// property. It follows that
//
//   - no resource is overcommitted, and no tenant can get more unless another gets less (Pareto
//     efficiency),
//   - no tenant would get more from a static split by weights (sharing incentive),
//   - no tenant would prefer what another got, scaled by their weights (no envy),
//   - no tenant gets more that it can use by reporting a false demand (strategy-proofness),
//   - a single resource, or one that is dominant for all tenants, is divided max-min fairly.
//
// When a tenant leaves, no other gets less, provided that all tenants use every resource. Otherwise a
// tenant may get less: one that shared a resource with the tenant that left grows, and takes more of
// another resource. More capacity may also give a tenant less, which is a known property of the method.
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
	// whole is the use of a full resource, in the units in which use is counted.
	whole = 1 << 62
	// slack is the relative difference that counts as rounding: a level that is greater by slack than
	// the level at which a resource is full is still reached. So a resource is overcommitted by at
	// most this part of it.
	slack = 1e-12
	// huge is the upper bound of capacities, of weights and of a demand over its capacity; 1/huge is
	// the lower bound. A tenant that asks for less than that counts as asking for nothing.
	huge = 0x1p500
	// patience is the number of rounds in which fill searches all tenants for those that have all they
	// ask for, before it sorts the remaining tenants.
	patience = 6
	// maxWeights is the greatest ratio of two weights.
	maxWeights = 1 << 20
)

// Solver divides resources. Its size is fixed, and only one goroutine at a time may use it.
//
// Sums over tenants are integers: they do not depend on the order, and subtraction undoes an addition
// exactly. So the result is the same to the last bit in whichever order tenants and resources are given.
type Solver struct {
	resources []resource
	scarce    []scarce
	tenants   []tenant
	rates     []int64   // a row of the scarce resources for each tenant
	waiting   []waiting // tenants that grow
	full      []int     // scarce resources that are full at the level reached
	perLevel  float64   // of whole, what a slope of 1 uses in a level
}

type resource struct {
	inverse float64 // of the capacity; 0 when there is none
	asked   float64 // all demands, in capacities
}

// scarce is a resource whose demands exceed its capacity. Only such resources can be full.
type scarce struct {
	inverse float64
	slope   int64 // the sum of the rates of tenants that grow
	used    int64 // by the others, of whole
	index   int
}

type tenant struct {
	weight     float64 // the greatest is in [1/2, 1)
	share      float64 // dominant share
	bottleneck int32   // -1: it has all that it asked for
}

type waiting struct {
	level  float64 // where it has all that it asks for
	uses   uint64  // bit i mod 64: scarce resource i
	tenant int32
}

// New makes a Solver for at most so many tenants and resources.
func New(tenants, resources int) *Solver {
	return &Solver{
		resources: make([]resource, resources),
		scarce:    make([]scarce, resources),
		tenants:   make([]tenant, tenants),
		rates:     make([]int64, tenants*resources),
		waiting:   make([]waiting, tenants),
		full:      make([]int, resources),
	}
}

// Solve divides capacity, which has one value for each resource, among tenants. weight has one value
// for each tenant; demand has a row of resources for each tenant. Solve writes to grant the fraction
// of its demand that each tenant gets, 0 to 1: 1 if it asks for nothing, 0 if it asks for a resource
// of capacity 0.
//
// Demands and capacities must be finite and not negative. Weights must be above 0, and the greatest at
// most 2^20 times the least. A resource of which a tenant uses less than 2^-80 of its dominant share
// may count as not used. If Solve returns an error, grant is unchanged.
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
	few := s.scarce[:0]
	for r, e := range s.resources[:m] {
		if tooMuch(e, demand, r, m) {
			few = append(few, scarce{inverse: e.inverse, index: r})
		}
	}
	s.perLevel = whole / scale
	grow := s.waiting[:0]
	for t := range s.tenants[:n] {
		e := &s.tenants[t]
		grant[t] = 1
		switch {
		case e.bottleneck >= 0:
			grant[t] = 0
		case len(few) == 0 || e.share < 1/huge:
		default:
			if uses := s.start(t, demand[t*m:][:m], few, e.weight/e.share*scale); uses != 0 {
				grow = append(grow, waiting{e.share / e.weight, uses, int32(t)})
			}
		}
	}
	s.fill(grow, few, grant)
	for t := range s.tenants[:n] {
		s.tenants[t].share *= grant[t]
	}
	return nil
}

// Share returns the dominant share that tenant t got in the last Solve, 0 to 1.
func (s *Solver) Share(t int) float64 { return s.tenants[t].share }

// Bottleneck returns the full resource that kept tenant t from getting more in the last Solve, or -1
// if it got all that it asked for.
func (s *Solver) Bottleneck(t int) int { return int(s.tenants[t].bottleneck) }

// takeCapacities takes the capacities, and reports whether one of them is 0.
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

// takeWeights divides the weights by a power of two, so that they are below 1. Their sum times the
// returned scale is at most whole.
func (s *Solver) takeWeights(weight []float64) (scale float64, err error) {
	least, most := math.Inf(1), 0.0
	for t, w := range weight {
		if !(w >= 1/huge && w <= huge) {
			return 0, fmt.Errorf("drf: weight %g of tenant %d: want a number above 0, from %g to %g", w, t, 1/huge, huge)
		}
		if w < least {
			least = w
		}
		if w > most {
			most = w
		}
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
		sum += uint64(int64(w*(1<<fine))) + 1
	}
	return math.Ldexp(whole, fine-bits.Len64(sum)), nil
}

// takeDemand finds the dominant share of a tenant's demand, and adds the demand to the resources' sums.
func (s *Solver) takeDemand(t int, row []float64, none bool) error {
	e := &s.tenants[t]
	e.bottleneck = -1
	// For numbers that are not negative the order of their bits is their order;
	// what is negative, infinite or no number is above them.
	most := uint64(0)
	resources := s.resources[:len(row)]
	for r, d := range row {
		u := d * resources[r].inverse
		resources[r].asked += u
		if b := math.Float64bits(u); b > most {
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
	return nil
}

// tooMuch reports whether the demands for resource r exceed its capacity.
func tooMuch(e resource, demand []float64, r, m int) bool {
	const most = 1 + slack
	if math.Abs(e.asked-most) > slack/2 {
		return e.asked > most
	}
	// The order of the sum must not decide.
	sum := int64(0)
	for i := r; i < len(demand); i += m {
		sum += int64(demand[i] * e.inverse * (whole / 2))
	}
	return float64(sum) > most*(whole/2)
}

// start adds a tenant, whose use grows by rate a level, to the slopes. It
// returns which scarce resources the tenant uses.
func (s *Solver) start(t int, row []float64, few []scarce, rate float64) (uses uint64) {
	rates := s.row(t, len(few))
	for i := range rates {
		e := &few[i]
		// Rounded up: what is used at all has a rate.
		v := int64(row[e.index]*e.inverse*rate + (1 - 0x1p-53))
		rates[i] = v
		e.slope += v
		uses |= uint64(-v) >> 63 << (i & 63)
	}
	return uses
}

// row returns the rates at which tenant t uses the scarce resources.
func (s *Solver) row(t, scarce int) []int64 { return s.rates[t*scarce:][:scarce] }

// fill gives the tenants in grow more until each has all that it asks for, or a resource that it uses
// is full. A level is the dominant share of a tenant of weight 1.
func (s *Solver) fill(grow []waiting, few []scarce, grant []float64) {
	// A resource is full at a level no lower when a tenant stops below that: so
	// tenants below the lowest of these levels get all, and when none is there
	// the level is reached.
	level := 0.0
	sorted := false
	for round := 0; len(grow) > 0; round++ {
		if round == patience {
			slices.SortFunc(grow, func(a, b waiting) int {
				switch {
				case a.level < b.level:
					return -1
				case a.level > b.level:
					return 1
				}
				return 0
			})
			sorted = true
		}
		var full []int
		level, full = s.next(level, few)
		reached := level * (1 + slack)
		before := len(grow)
		if sorted {
			for len(grow) > 0 && grow[0].level <= reached {
				s.satisfy(grow[0], few)
				grow = grow[1:]
			}
		} else {
			kept := grow[:0]
			for _, g := range grow {
				if g.level <= reached {
					s.satisfy(g, few)
				} else {
					kept = append(kept, g)
				}
			}
			grow = kept
		}
		if len(grow) == before {
			grow = s.settle(level, full, grow, few, grant)
		}
	}
}

// next returns the lowest level, at least the given one, at which a resource is full if no tenant stops
// before, and the resources that are full then.
func (s *Solver) next(level float64, few []scarce) (float64, []int) {
	full := s.full[:0]
	lowest := math.Inf(1)
	for i := range few {
		e := &few[i]
		if e.slope == 0 {
			continue
		}
		l := float64(whole-e.used) / (float64(e.slope) * s.perLevel)
		if l < level {
			l = level
		}
		if l < lowest {
			lowest, full = l, full[:0]
		}
		if l == lowest {
			full = append(full, i)
		}
	}
	return lowest, full
}

// satisfy stops the growth of a tenant that has all that it asks for.
func (s *Solver) satisfy(g waiting, few []scarce) {
	use := g.level * s.perLevel
	rates := s.row(int(g.tenant), len(few))
	for i := range rates {
		v, e := rates[i], &few[i]
		e.slope -= v
		e.used += int64(float64(v) * use)
	}
}

// settle stops the users of full resources at a level, and returns the tenants that still grow.
func (s *Solver) settle(level float64, full []int, grow []waiting, few []scarce, grant []float64) []waiting {
	use := level * s.perLevel
	for i := range few {
		e := &few[i]
		e.used += int64(float64(e.slope) * use)
	}
	users := uint64(0)
	for _, i := range full {
		users |= 1 << (i & 63)
	}
	kept := grow[:0]
	for _, g := range grow {
		if g.uses&users == 0 {
			kept = append(kept, g)
			continue
		}
		rates := s.row(int(g.tenant), len(few))
		at := 0
		for at < len(full) && rates[full[at]] == 0 {
			at++
		}
		if at == len(full) {
			kept = append(kept, g)
			continue
		}
		grant[g.tenant] = level / g.level
		s.tenants[g.tenant].bottleneck = int32(few[full[at]].index)
		for i, v := range rates {
			few[i].slope -= v
		}
	}
	for i := range few {
		e := &few[i]
		e.used -= int64(float64(e.slope) * use)
	}
	return kept
}
