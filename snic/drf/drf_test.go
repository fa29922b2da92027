package drf

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// near is how far from exact a result of numbers below 10^4 may be.
const near = 1e-9

// instance is a division to be made; demand has a row a tenant.
type instance struct {
	capacity, weight []float64
	demand           [][]float64
}

func (in instance) clone() instance {
	out := instance{slices.Clone(in.capacity), slices.Clone(in.weight), slices.Clone(in.demand)}
	for t := range out.demand {
		out.demand[t] = slices.Clone(out.demand[t])
	}
	return out
}

// without is the instance after tenant t left.
func (in instance) without(t int) instance {
	out := in.clone()
	out.weight = slices.Delete(out.weight, t, t+1)
	out.demand = slices.Delete(out.demand, t, t+1)
	return out
}

func (in instance) total() (sum float64) {
	for _, w := range in.weight {
		sum += w
	}
	return sum
}

// share is the dominant share of a whole demand; +Inf when it asks for what
// there is none of.
func (in instance) share(t int) (s float64) {
	for r, d := range in.demand[t] {
		if d > 0 {
			s = max(s, d/in.capacity[r])
		}
	}
	return s
}

// worth is the fraction of tenant t's demand that a bundle is good for.
func (in instance) worth(t int, bundle func(r int) float64) float64 {
	x := 1.0
	for r, d := range in.demand[t] {
		if d > 0 {
			x = min(x, bundle(r)/d)
		}
	}
	return x
}

func (in instance) used(x []float64, r int) (sum float64) {
	for t := range x {
		sum += x[t] * in.demand[t][r]
	}
	return sum
}

func (in instance) solve(s *Solver) ([]float64, error) {
	x := make([]float64, len(in.weight))
	return x, s.Solve(in.capacity, in.weight, slices.Concat(in.demand...), x)
}

// divider is a policy.
type divider func(in instance) []float64

func drf(in instance) []float64 {
	x, err := in.solve(New(len(in.weight), len(in.capacity)))
	if err != nil {
		panic(err)
	}
	return x
}

type shape struct {
	resources int  // 0: from 1 to 5
	positive  bool // no 0
}

// instances are small ones with ties, zeros, and demands below and above what
// there is.
func instances(sh shape) *rapid.Generator[instance] {
	return rapid.Custom(func(t *rapid.T) instance {
		m := sh.resources
		if m == 0 {
			m = rapid.IntRange(1, 5).Draw(t, "resources")
		}
		n := rapid.IntRange(1, 6).Draw(t, "tenants")
		most := rapid.SampledFrom([]int{3, 40, 1000}).Draw(t, "most")
		amount := func(what string, most int) float64 {
			if !sh.positive && rapid.IntRange(0, 3).Draw(t, what+" none") == 0 {
				return 0
			}
			return float64(rapid.IntRange(1, most).Draw(t, what))
		}
		in := instance{demand: make([][]float64, n)}
		for range m {
			c := float64(rapid.IntRange(1, most).Draw(t, "capacity"))
			if !sh.positive && rapid.IntRange(0, 15).Draw(t, "nothing") == 0 {
				c = 0
			}
			in.capacity = append(in.capacity, c)
		}
		for i := range n {
			in.weight = append(in.weight, float64(rapid.IntRange(1, 8).Draw(t, "weight"))/4)
			for range m {
				in.demand[i] = append(in.demand[i], amount("demand", 2*most))
			}
		}
		return in
	})
}

// exact is the division by rational numbers, each resource by itself: at which
// level it would be full is read off the function of its use, which bends where
// a tenant stops. The lowest of them is final; its users stop there, and it
// starts anew.
func exact(in instance) []float64 {
	rat := func(v float64) *big.Rat { return new(big.Rat).SetFloat64(v) }
	n, m := len(in.weight), len(in.capacity)
	stop := make([]*big.Rat, n)   // the level at which a tenant stops
	growth := make([]*big.Rat, n) // fraction of the demand per level
	settled := make([]bool, n)    // stopped by a resource
	for t := range n {
		s := new(big.Rat)
		for r, d := range in.demand[t] {
			if d > 0 && in.capacity[r] == 0 {
				settled[t] = true
			} else if d > 0 {
				if q := new(big.Rat).Quo(rat(d), rat(in.capacity[r])); q.Cmp(s) > 0 {
					s = q
				}
			}
		}
		if settled[t] || s.Sign() == 0 {
			stop[t], growth[t] = new(big.Rat), new(big.Rat)
			continue
		}
		stop[t] = new(big.Rat).Quo(s, rat(in.weight[t]))
		growth[t] = new(big.Rat).Inv(stop[t])
	}
	// use of r at a level
	use := func(r int, level *big.Rat) *big.Rat {
		sum := new(big.Rat)
		for t := range n {
			l := level
			if stop[t].Cmp(l) < 0 {
				l = stop[t]
			}
			x := new(big.Rat).Mul(l, growth[t])
			sum.Add(sum, x.Mul(x, rat(in.demand[t][r])))
		}
		return sum
	}
	done := make([]bool, m)
	for {
		var lowest *big.Rat
		at := -1
		for r, c := range in.capacity {
			if done[r] || c == 0 {
				continue
			}
			bends := slices.Clone(stop)
			slices.SortFunc(bends, (*big.Rat).Cmp)
			if use(r, bends[n-1]).Cmp(rat(c)) <= 0 {
				continue // all fits
			}
			i := slices.IndexFunc(bends, func(l *big.Rat) bool { return use(r, l).Cmp(rat(c)) > 0 })
			from := new(big.Rat)
			if i > 0 {
				from = bends[i-1]
			}
			low, high := use(r, from), use(r, bends[i])
			// from + (bend-from)·(c-low)/(high-low)
			l := new(big.Rat).Sub(bends[i], from)
			l.Mul(l, new(big.Rat).Sub(rat(c), low))
			l.Quo(l, new(big.Rat).Sub(high, low))
			l.Add(l, from)
			if lowest == nil || l.Cmp(lowest) < 0 {
				lowest, at = l, r
			}
		}
		if at < 0 {
			break
		}
		done[at] = true
		for t := range n {
			if in.demand[t][at] > 0 && stop[t].Cmp(lowest) > 0 {
				stop[t], settled[t] = lowest, true
			}
		}
	}
	x := make([]float64, n)
	for t := range n {
		if x[t] = 1; settled[t] {
			x[t], _ = new(big.Rat).Mul(stop[t], growth[t]).Float64()
		}
	}
	return x
}

// property is something that a fair divider does on every instance; check says
// how it does not. pick chooses among what there is to try.
type property struct {
	name   string
	shape  shape
	check  func(divide divider, in instance, pick func(n int) int) error
	broken map[string]divider // others, which do not have it
}

var properties = []property{
	{"feasible", shape{}, func(divide divider, in instance, _ func(int) int) error {
		x := divide(in)
		for t := range x {
			if !(x[t] >= 0 && x[t] <= 1) {
				return fmt.Errorf("tenant %d gets %g of its demand", t, x[t])
			}
		}
		for r, c := range in.capacity {
			if u := in.used(x, r); u > c*(1+4*slack) {
				return fmt.Errorf("resource %d: %g of %g used", r, u, c)
			}
		}
		return nil
	}, map[string]divider{"all": all, "without weights of others": selfish}},

	{"pareto efficient", shape{}, func(divide divider, in instance, _ func(int) int) error {
		x := divide(in)
		for t := range x {
			held := x[t] == 1
			for r, d := range in.demand[t] {
				held = held || d > 0 && in.used(x, r) >= in.capacity[r]*(1-near)
			}
			if !held {
				return fmt.Errorf("tenant %d gets %g, and nothing that it uses is full", t, x[t])
			}
		}
		return nil
	}, map[string]divider{"static split": split, "all stop at once": together, "in proportion": proportional}},

	{"sharing incentive", shape{}, func(divide divider, in instance, _ func(int) int) error {
		x, s := divide(in), split(in)
		for t := range x {
			if x[t] < s[t]-near {
				return fmt.Errorf("tenant %d gets %g, and %g of a static split", t, x[t], s[t])
			}
		}
		return nil
	}, map[string]divider{"in order": inOrder, "in proportion": proportional, "no weights": unweighted}},

	{"no envy", shape{}, func(divide divider, in instance, _ func(int) int) error {
		x := divide(in)
		for i := range x {
			for j := range x {
				of := in.weight[i] / in.weight[j]
				w := in.worth(i, func(r int) float64 { return of * x[j] * in.demand[j][r] })
				if w > x[i]+near {
					return fmt.Errorf("tenant %d gets %g, and %g with what %d got", i, x[i], w, j)
				}
			}
		}
		return nil
	}, map[string]divider{"in order": inOrder, "in proportion": proportional, "no weights": unweighted}},

	{"strategy-proof", shape{}, func(divide divider, in instance, pick func(int) int) error {
		i := pick(len(in.weight))
		lie := in.clone()
		for r := range lie.demand[i] {
			switch d := &lie.demand[i][r]; pick(4) {
			case 0:
				*d *= float64(1 + pick(5))
			case 1:
				*d /= float64(1 + pick(5))
			case 2:
				*d = float64(pick(50))
			}
		}
		x, y := divide(in), divide(lie)
		w := in.worth(i, func(r int) float64 { return y[i] * lie.demand[i][r] })
		if w > x[i]+near {
			return fmt.Errorf("tenant %d gets %g, and what is worth %g when it says that it uses %v, not %v", i, x[i], w, lie.demand[i], in.demand[i])
		}
		return nil
	}, map[string]divider{"in proportion": proportional}},

	{"population monotone", shape{positive: true}, func(divide divider, in instance, pick func(int) int) error {
		if len(in.weight) == 1 {
			return nil
		}
		gone := pick(len(in.weight))
		x, y := slices.Delete(divide(in), gone, gone+1), divide(in.without(gone))
		for t := range x {
			if y[t] < x[t]-near {
				return fmt.Errorf("tenant %d of those left gets %g, and had %g before %d left", t, y[t], x[t], gone)
			}
		}
		return nil
	}, map[string]divider{"one after the other, from the middle": fromMiddle}},

	{"max-min fair on one resource", shape{resources: 1}, func(divide divider, in instance, _ func(int) int) error {
		// Nobody has more for its weight than one who has less than it asks for.
		x := divide(in)
		level := func(t int) float64 { return x[t] * in.demand[t][0] / in.weight[t] }
		for i := range x {
			for j := range x {
				if x[i] < 1 && level(j) > level(i)+near*in.capacity[0] {
					return fmt.Errorf("tenant %d gets %g of its demand, and %d has more for its weight: %g, %g", i, x[i], j, level(j), level(i))
				}
			}
		}
		return nil
	}, map[string]divider{"in proportion": proportional, "no weights": unweighted}},

	{"bottleneck fair", shape{positive: true}, func(divide divider, in instance, _ func(int) int) error {
		// The first resource is made everybody's dominant one.
		in = in.clone()
		for t, row := range in.demand {
			row[0] = in.share(t) * in.capacity[0]
		}
		one := in.clone()
		one.capacity = one.capacity[:1]
		for t := range one.demand {
			one.demand[t] = one.demand[t][:1]
		}
		x, y := divide(in), exact(one)
		for t := range x {
			if math.Abs(x[t]-y[t]) > near {
				return fmt.Errorf("tenant %d gets %g, and %g of its dominant resource divided max-min", t, x[t], y[t])
			}
		}
		return nil
	}, map[string]divider{"in proportion": proportional, "equal sums": assets, "no weights": unweighted}},

	{"every tenant has a bottleneck", shape{}, func(divide divider, in instance, _ func(int) int) error {
		x := divide(in)
		level := func(t int) float64 {
			if x[t] == 0 || in.share(t) == 0 {
				return 0
			}
			return x[t] * in.share(t) / in.weight[t]
		}
		for t := range x {
			held := x[t] == 1
			for r, d := range in.demand[t] {
				if d == 0 || in.used(x, r) < in.capacity[r]*(1-near) {
					continue
				}
				top := true
				for o := range x {
					top = top && (in.demand[o][r] == 0 || level(o) <= level(t)*(1+near))
				}
				held = held || top
			}
			if !held {
				return fmt.Errorf("tenant %d gets %g, and others have a greater share of each full resource", t, x[t])
			}
		}
		return nil
	}, map[string]divider{"in order": inOrder, "equal sums": assets, "all stop at once": together}},

	{"of no unit", shape{}, func(divide divider, in instance, pick func(int) int) error {
		other := in.clone()
		for r := range other.capacity {
			unit := []float64{1, 8, 1500, 1e-9, 0.1}[pick(5)]
			other.capacity[r] *= unit
			for t := range other.demand {
				other.demand[t][r] *= unit
			}
		}
		heavier := []float64{1, 3, 1e-3}[pick(3)]
		for t := range other.weight {
			other.weight[t] *= heavier
		}
		x, y := divide(in), divide(other)
		for t := range x {
			if math.Abs(x[t]-y[t]) > near {
				return fmt.Errorf("tenant %d gets %g, and %g in other units", t, x[t], y[t])
			}
		}
		return nil
	}, map[string]divider{"equal sums": assets}},

	{"exact", shape{}, func(divide divider, in instance, _ func(int) int) error {
		x, y := divide(in), exact(in)
		for t := range x {
			if math.Abs(x[t]-y[t]) > near {
				return fmt.Errorf("tenant %d gets %g, want %g", t, x[t], y[t])
			}
		}
		return nil
	}, map[string]divider{"all stop at once": together, "no weights": unweighted}},

	{"of no order", shape{}, func(divide divider, in instance, pick func(int) int) error {
		// To the last bit.
		n, m := len(in.weight), len(in.capacity)
		tenants, resources := shuffled(n, pick), shuffled(m, pick)
		other := in.clone()
		for t, from := range tenants {
			other.weight[t] = in.weight[from]
			for r, at := range resources {
				other.demand[t][r] = in.demand[from][at]
				other.capacity[r] = in.capacity[at]
			}
		}
		x, y := divide(in), divide(other)
		for t, from := range tenants {
			if x[from] != y[t] {
				return fmt.Errorf("tenant %d gets %.17g, and %.17g as number %d", from, x[from], y[t], t)
			}
		}
		return nil
	}, map[string]divider{"in order": inOrder, "all stop at once": together}},
}

func shuffled(n int, pick func(int) int) []int {
	p := make([]int, n)
	for i := range p {
		j := pick(i + 1)
		p[i], p[j] = p[j], i
	}
	return p
}

func TestProperties(t *testing.T) {
	for _, p := range properties {
		t.Run(strings.ReplaceAll(p.name, " ", "-"), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				in := instances(p.shape).Draw(t, "instance")
				pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
				if err := p.check(drf, in, pick); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestPropertiesCatch shows that each property is one that other policies do
// not have.
func TestPropertiesCatch(t *testing.T) {
	for _, p := range properties {
		gen := instances(p.shape)
		for name, divide := range p.broken {
			caught := false
			for seed := 0; seed < 3000 && !caught; seed++ {
				x := uint64(seed)*0x9e3779b97f4a7c15 + 1
				caught = p.check(divide, gen.Example(seed), func(n int) int {
					x = x*6364136223846793005 + 1442695040888963407
					return int(x >> 33 % uint64(n))
				}) != nil
			}
			if !caught {
				t.Errorf("%s: not missed in %q", p.name, name)
			}
		}
	}
}

// Other policies.

// all gives everybody everything.
func all(in instance) []float64 {
	return each(in, func(int) float64 { return 1 })
}

// split gives everybody its part of everything.
func split(in instance) []float64 {
	return each(in, func(t int) float64 {
		return in.worth(t, func(r int) float64 { return in.weight[t] / in.total() * in.capacity[r] })
	})
}

// selfish is split with tenants that think that all have a weight of 1.
func selfish(in instance) []float64 {
	return each(in, func(t int) float64 {
		return in.worth(t, func(r int) float64 { return in.weight[t] / float64(len(in.weight)) * in.capacity[r] })
	})
}

func each(in instance, f func(t int) float64) []float64 {
	x := make([]float64, len(in.weight))
	for t := range x {
		x[t] = f(t)
	}
	return x
}

// rising raises what grown says of a level until a resource is full, and all
// stop.
func rising(in instance, grown func(t int, level float64) float64) []float64 {
	low, high := 0.0, 1e6
	at := func(level float64) []float64 {
		return each(in, func(t int) float64 { return min(1, grown(t, level)) })
	}
	for range 200 {
		mid := (low + high) / 2
		x, fits := at(mid), true
		for r, c := range in.capacity {
			fits = fits && in.used(x, r) <= c
		}
		if fits {
			low = mid
		} else {
			high = mid
		}
	}
	return at(low)
}

// proportional gives everybody the same fraction of its demand.
func proportional(in instance) []float64 {
	return rising(in, func(_ int, level float64) float64 { return level })
}

// together is progressive filling that ends with the first full resource.
func together(in instance) []float64 {
	return rising(in, func(t int, level float64) float64 { return level * in.weight[t] / in.share(t) })
}

// assets makes the sums of all that a tenant has equal, in whatever unit.
func assets(in instance) []float64 {
	return rising(in, func(t int, level float64) float64 {
		sum := 0.0
		for _, d := range in.demand[t] {
			sum += d
		}
		return level * in.weight[t] / sum
	})
}

// unweighted has all weights equal.
func unweighted(in instance) []float64 {
	in = in.clone()
	for t := range in.weight {
		in.weight[t] = 1
	}
	return exact(in)
}

// inOrder serves one after the other.
func inOrder(in instance) []float64 { return from(in, 0) }

func fromMiddle(in instance) []float64 { return from(in, len(in.weight)/2) }

func from(in instance, first int) []float64 {
	n := len(in.weight)
	x := make([]float64, n)
	left := slices.Clone(in.capacity)
	for i := range n {
		t := (first + i) % n
		x[t] = in.worth(t, func(r int) float64 { return left[r] })
		for r, d := range in.demand[t] {
			left[r] = max(0, left[r]-x[t]*d)
		}
	}
	return x
}

func TestPublishedExamples(t *testing.T) {
	for _, c := range []struct {
		name string
		in   instance
		want []float64 // fractions
		held []int     // bottlenecks
	}{
		// 9 CPUs and 18 GB; tasks of <1 CPU, 4 GB> and <3 CPUs, 1 GB>: 3 and 2 of
		// them run. Each asks for 100.
		{"NSDI 2011, figure 3", instance{[]float64{9, 18}, []float64{1, 1},
			[][]float64{{100, 400}, {300, 100}}}, []float64{.03, .02}, []int{0, 0}},
		// Network tasks NT1 to NT4; user1's demand and user2's second.
		{"SuperNIC, figure 5.7", instance{[]float64{10, 10, 7, 10}, []float64{1, 1},
			[][]float64{{5, 8, 4, 2}, {0, 5, 0, 7.5}}}, []float64{.75, .8}, []int{1, 1}},
		// The same before user2's load rises: there is enough for all.
		{"SuperNIC, figure 5.7, first epoch", instance{[]float64{10, 10, 7, 10}, []float64{1, 1},
			[][]float64{{5, 8, 4, 2}, {0, 1, 0, 1.5}}}, []float64{1, 1}, []int{-1, -1}},
		// A second instance of NT2 in a region of its own.
		{"SuperNIC, figure 5.7, scaled out", instance{[]float64{10, 20, 7, 10}, []float64{1, 1},
			[][]float64{{5, 8, 4, 2}, {0, 5, 0, 7.5}}}, []float64{1, 1}, []int{-1, -1}},
	} {
		s := New(len(c.want), len(c.in.capacity))
		x, err := c.in.solve(s)
		if err != nil {
			t.Fatal(err)
		}
		for i := range x {
			if math.Abs(x[i]-c.want[i]) > 1e-15 {
				t.Errorf("%s: tenant %d gets %.17g, want %g", c.name, i, x[i], c.want[i])
			}
			if share := x[i] * c.in.share(i); math.Abs(s.Share(i)-share) > 1e-15 {
				t.Errorf("%s: tenant %d has a dominant share of %g, want %g", c.name, i, s.Share(i), share)
			}
			if s.Bottleneck(i) != c.held[i] {
				t.Errorf("%s: tenant %d is held up by resource %d, want %d", c.name, i, s.Bottleneck(i), c.held[i])
			}
		}
	}
}

// TestBottleneck: what holds a tenant up is full, and it uses it.
func TestBottleneck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := instances(shape{}).Draw(t, "instance")
		s := New(6, 5)
		x, err := in.solve(s)
		if err != nil {
			t.Fatal(err)
		}
		for i := range x {
			r := s.Bottleneck(i)
			if r < 0 {
				if x[i] != 1 {
					t.Fatalf("tenant %d gets %g and is not held up", i, x[i])
				}
				continue
			}
			if in.demand[i][r] == 0 || in.used(x, r) < in.capacity[r]*(1-near) {
				t.Fatalf("tenant %d is held up by resource %d: %g of it, %g of %g used", i, r, in.demand[i][r], in.used(x, r), in.capacity[r])
			}
		}
	})
}

// TestLeavingCanCost: with demands that are 0 population monotonicity does not
// hold, for any such method: tenant 2 shares resource 0 with two others; when
// they have left it takes half of resource 1.
func TestLeavingCanCost(t *testing.T) {
	in := instance{[]float64{1, 1}, []float64{1, 1, 1, 1}, [][]float64{{9, 0}, {9, 0}, {9, 9}, {0, 9}}}
	before := drf(in)[3] * 9
	after := drf(in.without(0).without(0))[1] * 9
	if math.Abs(before-2./3) > near || math.Abs(after-.5) > near {
		t.Errorf("tenant 3 has %g, and %g when others have left; want 2/3 and 1/2", before, after)
	}
}

// TestFitsExactly: what fits to the last byte is not cut by rounding, beside one
// who is held up by another resource.
func TestFitsExactly(t *testing.T) {
	for n := 2; n <= 64; n++ {
		in := instance{capacity: []float64{float64(n)*.1 + 1, 1}}
		for i := range n {
			in.weight = append(in.weight, float64(1+i%3))
			in.demand = append(in.demand, []float64{.1, 0})
		}
		for _, weight := range []float64{1, 1000} {
			in := in.clone()
			in.weight = append(in.weight, weight)
			in.demand = append(in.demand, []float64{3, 3})
			x := drf(in)
			for i := range n {
				if x[i] != 1 {
					t.Fatalf("tenant %d of %d gets %.17g", i, n, x[i])
				}
			}
			if math.Abs(x[n]-1./3) > near {
				t.Fatalf("the tenant of two resources gets %g", x[n])
			}
		}
	}
}

// TestEdge: where demands are as much as there is, but for rounding, the order
// does not decide whether they are more. One who uses hardly anything of it
// would tell.
func TestEdge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "tenants")
		in := instance{[]float64{1, 1}, []float64{1}, [][]float64{{1e-14, 1000}}}
		sum := 0.0
		for range n {
			d := float64(rapid.IntRange(1, 1000).Draw(t, "demand"))
			in.weight = append(in.weight, 1)
			in.demand = append(in.demand, []float64{d, 0})
			sum += d
		}
		for i := range n {
			in.demand[1+i][0] *= (1 + slack - 1e-14) / sum
		}
		x := drf(in)
		p := rapid.Permutation(in.demand[1:]).Draw(t, "order")
		if y := drf(instance{in.capacity, in.weight, append(in.demand[:1:1], p...)}); x[0] != y[0] {
			t.Fatalf("gets %g, and %g in another order", x[0], y[0])
		}
	})
}

// TestHardlyUsed: who uses ever so little of a full resource stops with its
// other users. When these have all, what is left is rounding, and may be for
// more; it is not for less.
func TestHardlyUsed(t *testing.T) {
	for _, c := range []struct{ asked, little, much, less, more float64 }{
		{1.5, 1e-9, 5, near, near}, {1.5, 1e-18, 5, near, near}, {1.5, 1e-22, 5, near, near},
		{1, 1e-11, 5000, near, math.Inf(1)},
	} {
		for w := 1; w <= 50; w++ {
			weight := 4 * float64(w)
			x := drf(instance{[]float64{1, 1}, []float64{weight, 1}, [][]float64{{c.asked, 0}, {c.little, c.much}}})
			want := 1 / weight / c.much
			if math.Abs(x[0]-1/c.asked) > near || x[1] < want*(1-c.less) || x[1] > want*(1+c.more) || x[1] > 1/c.much {
				t.Errorf("%v: got %v, want %g and %g", c, x, 1/c.asked, want)
			}
		}
	}
}

// TestNearlyNothing: what is -0, or too little to count, holds nobody up.
func TestNearlyNothing(t *testing.T) {
	for _, none := range []float64{0, math.Copysign(0, -1), 5e-324, 1e-200} {
		x := drf(instance{[]float64{1, 1, 1}, []float64{1, 2, 3}, [][]float64{{none, 5, none}, {none, none, 5}, {none, 0, none}}})
		if want := []float64{.2, .2, 1}; !slices.EqualFunc(x, want, func(a, b float64) bool { return math.Abs(a-b) < near }) {
			t.Errorf("%g: got %v, want %v", none, x, want)
		}
	}
}

// TestFullAtOnce: of two resources that fill at the same level, a tenant is
// held up by the one that it uses.
func TestFullAtOnce(t *testing.T) {
	s := New(4, 2)
	in := instance{[]float64{3, 3}, []float64{1, 1, 1, 1}, [][]float64{{3, 0}, {0, 3}, {0, 3}, {3, 0}}}
	x, err := in.solve(s)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{0, 1, 1, 0} {
		if x[i] != .5 || s.Bottleneck(i) != want {
			t.Errorf("tenant %d gets %g, held up by resource %d; want half, by %d", i, x[i], s.Bottleneck(i), want)
		}
	}
}

// TestManyResources: each fills by itself, one after the other.
func TestManyResources(t *testing.T) {
	var in instance
	for i := range 130 {
		in.capacity = append(in.capacity, 1)
		in.weight = append(in.weight, float64(1+i))
		in.demand = append(in.demand, make([]float64, 130))
		in.demand[i][i] = 2
	}
	for i, x := range drf(in) {
		if math.Abs(x-.5) > near {
			t.Errorf("tenant %d gets %g, want half", i, x)
		}
	}
}

// TestWeights: the lightest is served beside many of the heaviest.
func TestWeights(t *testing.T) {
	in := instance{capacity: []float64{1, 1}}
	for range 1000 {
		in.weight = append(in.weight, maxWeights)
		in.demand = append(in.demand, []float64{5, 0})
	}
	in.weight = append(in.weight, 1, 2)
	in.demand = append(in.demand, []float64{1e-3, 5}, []float64{0, 5})
	x := drf(in)
	all := 1000.0*maxWeights + 1e-3/5
	if got, want := 5*x[0], maxWeights/all; math.Abs(got-want) > near*want {
		t.Errorf("a heavy tenant has %g of resource 0, want %g", got, want)
	}
	if got, want := 5*x[1000], 1/all; math.Abs(got-want) > 1e-6*want {
		t.Errorf("the light one has %g of resource 1, want %g", got, want)
	}
	if got, want := 5*x[1001], 1-1/all; math.Abs(got-want) > near {
		t.Errorf("the last has %g of resource 1, want %g", got, want)
	}
}

func TestRefused(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		capacity, weight, demand []float64
		grants                   int
		want                     string // "": taken
	}{
		{[]float64{1}, []float64{1}, []float64{1}, 1, ""},
		{nil, []float64{1}, nil, 1, ""},
		{[]float64{1}, nil, nil, 0, ""},
		{[]float64{0}, []float64{1}, []float64{math.Copysign(0, -1)}, 1, ""},
		{[]float64{1}, []float64{1}, []float64{5e-324}, 1, ""},
		{[]float64{1, 1}, []float64{1, 1<<20 - 1}, []float64{1, 1, 1, 1}, 2, ""},
		{[]float64{1}, []float64{1, 1, 1}, []float64{1, 1, 1}, 3, "made for 2 and 2"},
		{[]float64{1, 1, 1}, []float64{1}, []float64{1, 1, 1}, 1, "made for 2 and 2"},
		{[]float64{1}, []float64{1, 1}, []float64{1}, 2, "1 demands: 2 tenants with 1 resources have 2"},
		{[]float64{1}, []float64{1}, []float64{1}, 2, "room for 2 grants"},
		{[]float64{-1}, []float64{1}, []float64{1}, 1, "capacity -1 of resource 0"},
		{[]float64{1, nan}, []float64{1}, []float64{1, 1}, 1, "capacity NaN of resource 1"},
		{[]float64{inf}, []float64{1}, []float64{1}, 1, "capacity +Inf of resource 0"},
		{[]float64{5e-324}, []float64{1}, []float64{1}, 1, "capacity 5e-324"},
		{[]float64{1}, []float64{1, 0}, []float64{1, 1}, 2, "weight 0 of tenant 1"},
		{[]float64{1}, []float64{-2}, []float64{1}, 1, "weight -2 of tenant 0"},
		{[]float64{1}, []float64{nan}, []float64{1}, 1, "weight NaN of tenant 0"},
		{[]float64{1}, []float64{inf}, []float64{1}, 1, "weight +Inf of tenant 0"},
		{[]float64{1}, []float64{1, 1<<20 + 1}, []float64{1, 1}, 2, "weights 1 and 1.048577e+06"},
		{[]float64{1, 1}, []float64{1, 1}, []float64{1, 1, 1, -3}, 2, "demand -3 of tenant 1 for resource 1"},
		{[]float64{1, 1}, []float64{1}, []float64{nan, 1}, 1, "demand NaN of tenant 0 for resource 0"},
		{[]float64{1, 1}, []float64{1}, []float64{1, inf}, 1, "demand +Inf of tenant 0 for resource 1"},
		{[]float64{0}, []float64{1}, []float64{inf}, 1, "demand +Inf"},
		{[]float64{0}, []float64{1}, []float64{-1}, 1, "demand -1"},
		{[]float64{1e-150}, []float64{1}, []float64{1e150}, 1, "demand 1e+150"},
	} {
		grant := make([]float64, c.grants)
		for i := range grant {
			grant[i] = 7
		}
		err := New(2, 2).Solve(c.capacity, c.weight, c.demand, grant)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%v %v %v: %v", c.capacity, c.weight, c.demand, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v %v %v: %v, want %q", c.capacity, c.weight, c.demand, err, c.want)
		}
		for i, g := range grant {
			if (g == 7) != (c.want != "") {
				t.Errorf("%v %v %v: grant %d is %g", c.capacity, c.weight, c.demand, i, g)
			}
		}
	}
}

// FuzzSolve: any bits are refused, or divided feasibly.
func FuzzSolve(f *testing.F) {
	f.Add(9., 18., 1., 1., 100., 400., 300., 100.)
	f.Add(0., 1e-150, 1., 1e6, 0., 1e-300, 5e-324, 1.)
	f.Add(1e150, 1., 1e-3, 3., 1e300, 1e-8, 1e140, 2.)
	f.Add(3., 7., 1., 1., math.NaN(), 1., math.Inf(1), -1.)
	f.Fuzz(func(t *testing.T, c0, c1, w0, w1, d00, d01, d10, d11 float64) {
		in := instance{[]float64{c0, c1}, []float64{w0, w1}, [][]float64{{d00, d01}, {d10, d11}}}
		s := New(2, 2)
		x, err := in.solve(s)
		if err != nil {
			return
		}
		for i := range x {
			if !(x[i] >= 0 && x[i] <= 1) || !(s.Share(i) >= 0 && s.Share(i) <= 1+4*slack) {
				t.Fatalf("tenant %d gets %g, a dominant share of %g", i, x[i], s.Share(i))
			}
			if s.Bottleneck(i) < 0 && x[i] != 1 {
				t.Fatalf("tenant %d gets %g, held up by resource %d", i, x[i], s.Bottleneck(i))
			}
		}
		for r, c := range in.capacity {
			if u := x[0]*in.demand[0][r]/c + x[1]*in.demand[1][r]/c; u > 1+4*slack {
				t.Fatalf("resource %d: %g of it used", r, u)
			}
		}
	})
}
