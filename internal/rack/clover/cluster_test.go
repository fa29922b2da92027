package clover

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/ycsb"
)

func hot(mix ycsb.Mix) Config {
	return Config{Keys: ycsb.Sequential(1, 64), Entries: 1 << 16, Sessions: 4, Mix: mix, Theta: ycsb.DefaultTheta, Seed: 5}
}

func TestDirectWire(t *testing.T) {
	for _, mix := range []ycsb.Mix{ycsb.A, ycsb.B, ycsb.C, ycsb.W} {
		t.Run(mix.Name, func(t *testing.T) {
			r := newRig(t, hot(mix), 3, 1)
			m := r.run(500, 10*time.Second)
			if m.Ops != 3*4*500 || m.Errors != 0 {
				t.Errorf("%d operations, %d errors", m.Ops, m.Errors)
			}
			v := r.sound(int(m.Writes))
			if v.InChain != 64+m.Writes {
				t.Errorf("%d entries in chains, want %d", v.InChain, 64+m.Writes)
			}
			if mix == ycsb.C && m.FirstTry < m.Ops-12*64 {
				t.Errorf("reads only, and %d of %d succeeded at once", m.FirstTry, m.Ops)
			}
			if mix == ycsb.W && m.FirstTry > m.Ops*9/10 {
				t.Errorf("12 writers never conflict: %d of %d at once", m.FirstTry, m.Ops)
			}
			t.Logf("%+v", r.cl.ClientStats())
		})
	}
}

func TestNoisyWire(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			x := &noisy{rng: rand.New(rand.NewPCG(seed, 0)), loss: 0.02, dup: 0.02, swap: 0.02}
			c := hot(ycsb.A)
			c.Seed = seed
			r := newRig(t, c, 2, 1, x)
			m := r.run(200, time.Hour)
			r.sound(int(m.Writes))
			if x.lost == 0 {
				t.Error("nothing was lost on the way")
			}
		})
	}
}

// In virtual time equal seeds give equal runs, also with losses.
func TestEqualSeedsGiveEqualRuns(t *testing.T) {
	run := func(seed uint64) string {
		x := &noisy{rng: rand.New(rand.NewPCG(seed, 0)), loss: 0.02, dup: 0.02, swap: 0.02}
		c := hot(ycsb.A)
		c.Seed, c.Metadata.GCBelow = seed, 1
		r := newRig(t, c, 2, 1, x)
		m := r.run(100, time.Hour)
		return fmt.Sprintf("%v %+v %+v %v %d", r.clk.Now(), r.cl.ClientStats(), r.cl.meta.Stats(), m.Elapsed, x.lost)
	}
	a, b, c := run(1), run(1), run(2)
	if a != b {
		t.Errorf("two runs with one seed:\n%s\n%s", a, b)
	}
	if a == c {
		t.Error("two seeds give one run")
	}
}
