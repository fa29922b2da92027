package ycsb

import (
	"math"
	"math/rand/v2"
)

// steep draws Zipf's ranks exactly, for any exponent above 0, by rejection
// from the integral of x^-s: Hörmann and Derflinger, "Rejection-inversion to
// generate variates from monotone discrete distributions", TOMACS 1996.
type steep struct {
	s           float64
	n           float64
	first, last float64 // the integral's range
	sure        float64 // so near to the rank a draw is never rejected
}

func newSteep(n int, s float64) *steep {
	z := &steep{s: s, n: float64(n)}
	z.first = z.integral(1.5) - 1
	z.last = z.integral(z.n + 0.5)
	z.sure = 2 - z.inverse(z.integral(2.5)-z.density(2))
	return z
}

func (z *steep) density(x float64) float64 { return math.Pow(x, -z.s) }

// integral is that of the density from 1 to x: (x^(1-s) - 1) / (1-s), and ln x
// at s = 1.
func (z *steep) integral(x float64) float64 {
	l := math.Log(x)
	if t := (1 - z.s) * l; math.Abs(t) > 1e-8 {
		return math.Expm1(t) / (1 - z.s)
	}
	return l
}

// inverse is the x of an integral.
func (z *steep) inverse(y float64) float64 {
	if t := max(y*(1-z.s), -1); math.Abs(t) > 1e-8 {
		return math.Exp(math.Log1p(t) / (1 - z.s))
	}
	return math.Exp(y)
}

// rank is from 0.
func (z *steep) rank(r *rand.Rand) int {
	for {
		u := z.last + r.Float64()*(z.first-z.last)
		x := z.inverse(u)
		k := min(max(math.Floor(x+0.5), 1), z.n)
		if k-x <= z.sure || u >= z.integral(k+0.5)-z.density(k) {
			return int(k) - 1
		}
	}
}
