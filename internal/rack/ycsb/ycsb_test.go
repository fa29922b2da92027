package ycsb

import (
	"math"
	"testing"
)

func TestZipfFrequencies(t *testing.T) {
	const keys, draws = 1024, 400_000
	g, err := New(Config{Mix: A, Theta: DefaultTheta, Keys: Sequential(0, keys), Seed: 7}, 1)
	if err != nil {
		t.Fatal(err)
	}
	var n [keys]int
	writes := 0
	for range draws {
		o := g.Next()
		n[o.Key]++
		if o.Write {
			writes++
		}
	}
	z := zeta(keys, DefaultTheta)
	// The method is exact for the two first ranks. For the rest it is a continuous approximation, so whole
	// bands are compared.
	for i, tol := range []float64{0.02, 0.03} {
		want := draws * math.Pow(float64(i+1), -DefaultTheta) / z
		if d := math.Abs(float64(n[i])-want) / want; d > tol {
			t.Errorf("rank %d: %d draws, theory %.0f", i, n[i], want)
		}
	}
	for lo := 2; lo < keys; lo *= 4 {
		hi := min(lo*4, keys)
		got, want := 0, 0.0
		for i := lo; i < hi; i++ {
			got += n[i]
			want += draws * math.Pow(float64(i+1), -DefaultTheta) / z
		}
		if d := math.Abs(float64(got)-want) / want; d > 0.12 {
			t.Errorf("ranks %d..%d: %d draws, theory %.0f", lo, hi-1, got, want)
		}
	}
	if d := math.Abs(float64(writes)/draws - 0.5); d > 0.01 {
		t.Errorf("%d of %d are writes", writes, draws)
	}
}

// From exponent 1 on the draws are exact: every rank that is drawn often enough is compared.
func TestSteepFrequencies(t *testing.T) {
	for _, theta := range []float64{1, 1.2, 1.5, 3} {
		const keys, draws = 1024, 400_000
		g, err := New(Config{Mix: C, Theta: theta, Keys: Sequential(0, keys), Seed: 7}, 1)
		if err != nil {
			t.Fatal(err)
		}
		var n [keys]int
		for range draws {
			n[g.Next().Rank]++
		}
		z := 0.0
		for i := range keys {
			z += math.Pow(float64(i+1), -theta)
		}
		for i := range keys {
			want := draws * math.Pow(float64(i+1), -theta) / z
			if want > 100 && math.Abs(float64(n[i])-want) > 5*math.Sqrt(want) {
				t.Errorf("theta %v, rank %d: %d draws, theory %.0f", theta, i, n[i], want)
			}
		}
		if a := testing.AllocsPerRun(100, func() { g.Next() }); a != 0 {
			t.Errorf("%v allocations a draw", a)
		}
	}
}

func TestUniform(t *testing.T) {
	g, _ := New(Config{Mix: C, Keys: Sequential(10, 16)}, 1)
	var n [16]int
	for range 160_000 {
		o := g.Next()
		if o.Write {
			t.Fatal("workload C wrote")
		}
		n[o.Key-10]++
	}
	for i, c := range n {
		if c < 9_500 || c > 10_500 {
			t.Errorf("key %d drawn %d times of 10000", i, c)
		}
	}
}

// The approximation must give the constant that YCSB has in its source.
func TestZetaOfYCSB(t *testing.T) {
	if z := zeta(scrambledItems, DefaultTheta); math.Abs(z-scrambledZeta) > 1e-6 {
		t.Fatalf("zeta = %.12f, YCSB has %.12f", z, scrambledZeta)
	}
}

func TestScrambledSpreads(t *testing.T) {
	g, _ := New(Config{Mix: W, Theta: DefaultTheta, Scrambled: true, Keys: Sequential(0, 1024)}, 3)
	var n [1024]int
	const draws = 200_000
	for range draws {
		n[g.Next().Rank]++
	}
	hot := int(fnv64(0) % 1024)
	want := draws / scrambledZeta
	if d := math.Abs(float64(n[hot])-want) / want; d > 0.1 {
		t.Errorf("hottest key %d drawn %d times, theory about %.0f", hot, n[hot], want)
	}
	for i, c := range n {
		if c > n[hot] {
			t.Errorf("key %d is hotter than the first rank's", i)
		}
	}
}

func TestSeeds(t *testing.T) {
	c := Config{Mix: A, Theta: 0.5, Keys: Sequential(0, 100), Seed: 1}
	a, _ := New(c, 1)
	b, _ := New(c, 1)
	d, _ := New(c, 2)
	same := 0
	for range 1000 {
		x, y, z := a.Next(), b.Next(), d.Next()
		if x != y {
			t.Fatal("equal seeds differ")
		}
		if x == z {
			same++
		}
	}
	if same > 100 {
		t.Fatalf("different seeds agree %d times", same)
	}
}

func TestSmallKeySets(t *testing.T) {
	for i := range 8 {
		n := 1 + i/2
		g, err := New(Config{Mix: A, Theta: []float64{DefaultTheta, 1}[i%2], Keys: Sequential(math.MaxUint64-3, n)}, 1)
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			if r := g.Next().Rank; r < 0 || r >= n {
				t.Fatalf("rank %d of %d keys", r, n)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	k := Sequential(0, 4)
	for _, c := range []Config{
		{},
		{Keys: k, Theta: 11},
		{Keys: k, Theta: 1, Scrambled: true},
		{Keys: k, Theta: -0.1},
		{Keys: k, Theta: math.NaN()},
		{Keys: k, Mix: Mix{"x", 1.5}},
		{Keys: k, Mix: Mix{"x", math.NaN()}},
	} {
		if _, err := New(c, 0); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if _, err := MixNamed("Z"); err == nil {
		t.Error("workload Z was found")
	}
	if m, _ := MixNamed("b"); m != B {
		t.Error("workload b is not B")
	}
}

func TestNextAllocatesNothing(t *testing.T) {
	g, _ := New(Config{Mix: A, Theta: DefaultTheta, Keys: Sequential(0, 1024)}, 1)
	if n := testing.AllocsPerRun(1000, func() { g.Next() }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkNext(b *testing.B) {
	g, _ := New(Config{Mix: A, Theta: DefaultTheta, Keys: Sequential(0, 1024)}, 1)
	for b.Loop() {
		g.Next()
	}
}
