package ycsb

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
)

// Mix is a workload, by its share of writes.
type Mix struct {
	Name   string
	Writes float64 // 0..1
}

// A, B and C are YCSB's core workloads; W only writes.
var (
	A = Mix{"A", 0.5}
	B = Mix{"B", 0.05}
	C = Mix{"C", 0}
	W = Mix{"W", 1}
)

// MixNamed returns the workload with this letter, in either case.
func MixNamed(name string) (Mix, error) {
	switch name {
	case "A", "a":
		return A, nil
	case "B", "b":
		return B, nil
	case "C", "c":
		return C, nil
	case "W", "w":
		return W, nil
	}
	return Mix{}, fmt.Errorf("ycsb: workload %q is not known: choose A, B, C or W", name)
}

// DefaultTheta is YCSB's Zipf exponent.
const DefaultTheta = 0.99

// scrambledItems and scrambledZeta are constants of YCSB. A scrambled generator draws
// ranks from ten thousand million items, whose zeta at theta 0.99 is
// scrambledZeta, and hashes each rank to a key. The hottest key is therefore
// much colder than that of an unscrambled generator.
const (
	scrambledItems = 10_000_000_000
	scrambledZeta  = 26.46902820178302
)

// maxTheta is the largest exponent; a larger one would practically always draw the first key.
const maxTheta = 10

// Config describes a workload.
type Config struct {
	Mix Mix
	// Theta is the Zipf exponent, 0 to 10; 0 is uniform. YCSB's own exponents are below 1, and
	// those of scrambled generators must be.
	Theta float64
	// Scrambled spreads the popular ranks over the keys as YCSB's scrambled
	// generator does; otherwise the first key is the hottest.
	Scrambled bool
	// Keys are the keys by rank.
	Keys []uint64
	// Items is the number of ranks that Zipf's law applies to, at least the number of Keys; 0 means
	// the number of Keys. Rank r stands for key r modulo the number of Keys.
	Items int
	Seed  uint64
}

// Sequential returns n keys from first upwards.
func Sequential(first uint64, n int) []uint64 {
	k := make([]uint64, n)
	for i := range k {
		k[i] = first + uint64(i)
	}
	return k
}

// Op is one operation, a read or a write.
type Op struct {
	Key   uint64
	Rank  int // index of Key in Config.Keys
	Write bool
}

// Generator makes the operations of one thread.
type Generator struct {
	keys      []uint64
	writes    float64
	scrambled bool
	uniform   bool
	// Constants of Gray et al., "Quickly generating billion-record synthetic
	// databases", SIGMOD 1994, section 3.2.
	items, alpha, eta, zetan, half float64
	steep                          *steep // for exponents from 1, instead
	rng                            *rand.Rand
}

// New makes a generator. The threads of one workload have different seeds.
func New(c Config, seed uint64) (*Generator, error) {
	if len(c.Keys) == 0 {
		return nil, errors.New("ycsb: a workload needs at least one key")
	}
	if !(c.Theta >= 0 && c.Theta <= maxTheta) {
		return nil, fmt.Errorf("ycsb: theta %v is outside 0 <= theta <= %v", c.Theta, maxTheta)
	}
	if c.Scrambled && c.Theta >= 1 {
		return nil, fmt.Errorf("ycsb: theta %v of a scrambled generator is outside 0 <= theta < 1", c.Theta)
	}
	if c.Items != 0 && (c.Items < len(c.Keys) || c.Scrambled || c.Theta >= 1) {
		return nil, fmt.Errorf("ycsb: %d items for %d keys: want more, an exponent below 1, and none of a scrambled generator", c.Items, len(c.Keys))
	}
	if !(c.Mix.Writes >= 0 && c.Mix.Writes <= 1) {
		return nil, fmt.Errorf("ycsb: a share of writes of %v is outside 0..1", c.Mix.Writes)
	}
	g := &Generator{
		keys:      c.Keys,
		writes:    c.Mix.Writes,
		scrambled: c.Scrambled,
		uniform:   c.Theta == 0,
		items:     float64(max(len(c.Keys), c.Items)),
		rng:       rand.New(rand.NewPCG(c.Seed, seed)),
	}
	if c.Theta >= 1 {
		g.steep = newSteep(len(c.Keys), c.Theta)
		return g, nil
	}
	if c.Scrambled {
		g.items = scrambledItems
		g.zetan = scrambledZeta
		if c.Theta != DefaultTheta {
			g.zetan = zeta(scrambledItems, c.Theta)
		}
	} else {
		g.zetan = zeta(uint64(g.items), c.Theta)
	}
	zeta2 := zeta(2, c.Theta)
	g.alpha = 1 / (1 - c.Theta)
	g.half = 1 + math.Pow(0.5, c.Theta)
	if g.items > 2 {
		g.eta = (1 - math.Pow(2/g.items, 1-c.Theta)) / (1 - zeta2/g.zetan)
	}
	return g, nil
}

// zetas caches sums, because the generators of one workload need the same one.
var zetas sync.Map

type zetaOf struct {
	n     uint64
	theta float64
}

// zeta returns the sum of 1/i^theta for i in 1..n. The first 2^20 terms are added, the others are
// computed by Euler and Maclaurin's formula.
func zeta(n uint64, theta float64) float64 {
	if s, ok := zetas.Load(zetaOf{n, theta}); ok {
		return s.(float64)
	}
	s := sumZeta(n, theta)
	zetas.Store(zetaOf{n, theta}, s)
	return s
}

func sumZeta(n uint64, theta float64) float64 {
	const exact = 1 << 20
	var s float64
	for i := uint64(1); i <= min(n, exact); i++ {
		s += math.Pow(float64(i), -theta)
	}
	if n > exact {
		a, b := float64(exact), float64(n)
		s += (math.Pow(b, 1-theta) - math.Pow(a, 1-theta)) / (1 - theta)
		s += (math.Pow(b, -theta) - math.Pow(a, -theta)) / 2
	}
	return s
}

// SetMix changes the share of writes of later operations. It ignores a mix that
// New would refuse.
func (g *Generator) SetMix(m Mix) {
	if m.Writes >= 0 && m.Writes <= 1 {
		g.writes = m.Writes
	}
}

// Next returns the next operation.
func (g *Generator) Next() Op {
	r := g.rank()
	return Op{Key: g.keys[r], Rank: r, Write: g.writes > 0 && g.rng.Float64() < g.writes}
}

func (g *Generator) rank() int {
	if g.uniform {
		return g.rng.IntN(len(g.keys))
	}
	if g.steep != nil {
		return g.steep.rank(g.rng)
	}
	u := g.rng.Float64()
	uz := u * g.zetan
	var r float64
	switch {
	case uz < 1:
	case uz < g.half:
		r = 1
	default:
		r = math.Floor(g.items * math.Pow(g.eta*u-g.eta+1, g.alpha))
	}
	if r > g.items-1 {
		r = g.items - 1
	}
	if g.scrambled {
		return int(fnv64(uint64(r)) % uint64(len(g.keys)))
	}
	return int(r) % len(g.keys)
}

// fnv64 returns the absolute value of the signed FNV-1a hash of the eight bytes of v, low byte
// first, as YCSB does.
func fnv64(v uint64) uint64 {
	h := uint64(0xCBF29CE484222325)
	for range 8 {
		h ^= v & 0xFF
		h *= 0x100000001B3
		v >>= 8
	}
	if int64(h) < 0 {
		h = -h
	}
	return h
}
