package drf

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// loads are instances of a size by what makes them slow.
var loads = []struct {
	name   string
	demand func(rng *rand.Rand, t, n, r, m int) float64 // in parts of an equal split
}{
	// Everybody has what it asks for.
	{"fits", func(rng *rand.Rand, t, n, r, m int) float64 { return rng.Float64() }},
	// All use all: the first full resource ends it.
	{"dense", func(rng *rand.Rand, t, n, r, m int) float64 { return 3 * rng.Float64() }},
	// Half of all demands are 0: resources fill one after the other.
	{"sparse", func(rng *rand.Rand, t, n, r, m int) float64 { return 8 * rng.Float64() * float64(rng.IntN(2)) }},
	// All use ingress and egress, as much, and a chain of four of the others.
	{"chains", func(rng *rand.Rand, t, n, r, m int) float64 {
		if r < 2 || (r-t*7%m+m)%m < 4 {
			return 1 + 2*float64(t)/float64(n)
		}
		return 0
	}},
	// Each resource has users of its own, who ask for a little less or more than
	// they can have, and others who ask for much: it fills in a step of its own.
	{"steps", func(rng *rand.Rand, t, n, r, m int) float64 {
		switch {
		case r != t*m/n:
			return 0
		case t%2 == 1:
			return 5 * float64(m)
		case r%2 == 1:
			return 1.005 * float64(m)
		}
		return .99 * float64(m)
	}},
}

func load(i, n, m int) instance {
	rng := rand.New(rand.NewPCG(1, 2))
	var in instance
	for r := range m {
		in.capacity = append(in.capacity, float64(1000*(1+r)))
	}
	for t := range n {
		w := float64(1 + t%4)
		if loads[i].name == "steps" {
			w = 1 / (1 + .1*float64(t*m/n))
		}
		in.weight = append(in.weight, w)
		row := make([]float64, m)
		for r := range row {
			row[r] = loads[i].demand(rng, t, n, r, m) * in.capacity[r] / float64(n)
		}
		in.demand = append(in.demand, row)
	}
	return in
}

func TestNoAllocation(t *testing.T) {
	for i, l := range loads {
		in := load(i, 40, 16)
		s := New(40, 16)
		demand, grant := slices.Concat(in.demand...), make([]float64, 40)
		if n := testing.AllocsPerRun(20, func() {
			if err := s.Solve(in.capacity, in.weight, demand, grant); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", l.name, n)
		}
	}
}

// TestLoads: the benchmarks' instances are divided right.
func TestLoads(t *testing.T) {
	for i, l := range loads {
		for _, in := range []instance{load(i, 40, 16), load(i, 10, 70)} {
			x, y := drf(in), exact(in)
			for k := range x {
				if math.Abs(x[k]-y[k]) > near {
					t.Errorf("%s: tenant %d gets %g, want %g", l.name, k, x[k], y[k])
				}
			}
		}
	}
}

func BenchmarkSolve(b *testing.B) {
	for _, size := range [][2]int{{16, 16}, {256, 32}, {10000, 32}} {
		n, m := size[0], size[1]
		for i, l := range loads {
			b.Run(fmt.Sprintf("%dx%d/%s", n, m, l.name), func(b *testing.B) {
				in := load(i, n, m)
				s := New(n, m)
				demand, grant := slices.Concat(in.demand...), make([]float64, n)
				b.ReportAllocs()
				for b.Loop() {
					if err := s.Solve(in.capacity, in.weight, demand, grant); err != nil {
						b.Fatal(err)
					}
				}
				if held := len(slices.DeleteFunc(slices.Clone(grant), func(x float64) bool { return x == 1 })); (held == 0) != (l.name == "fits") {
					b.Fatalf("%d tenants held up", held)
				}
			})
		}
	}
}
