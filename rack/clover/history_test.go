package clover

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/history"
	"github.com/quillon/quillon/rack/ycsb"
)

// record runs closed loops of ops operations on every session and records them:
// a write's number is that of its session and how many it has written, in the
// first 8 bytes of the value.
func (r *rig) record(seed uint64, ops int, writes float64) *history.Log[history.Register, uint64] {
	r.t.Helper()
	log := new(history.Log[history.Register, uint64])
	left := 0
	for n, node := range r.cl.compute {
		c := node.ld.c
		ids := make([]int, len(c.sessions))
		rngs := make([]*rand.Rand, len(c.sessions))
		counts := make([]int, len(c.sessions))
		begin := func(now clock.Time, i int) {
			if counts[i]++; counts[i] > ops {
				left--
				return
			}
			me := n*len(c.sessions) + i
			in := history.Register{Key: r.cl.cfg.Keys[rngs[i].IntN(len(r.cl.cfg.Keys))]}
			if in.Write = rngs[i].Float64() < writes; in.Write {
				in.Value = uint64(me+1)<<32 | uint64(counts[i])
			}
			ids[i] = log.Call(me, now, in)
			var err error
			if in.Write {
				var value [16]byte
				put64(value[:], 0, in.Value)
				err = c.sessions[i].Write(now, in.Key, value[:])
			} else {
				err = c.sessions[i].Read(now, in.Key)
			}
			if err != nil {
				r.t.Fatal(err)
			}
		}
		c.done = func(x *Result) {
			if x.Err != nil {
				r.t.Errorf("key %d: %v", x.Key, x.Err)
				left--
				return
			}
			out := uint64(0)
			if !x.Write {
				out = u64(x.Value, 0)
			}
			log.Return(ids[x.Session], x.End, out)
			begin(x.End, x.Session)
		}
		for i := range c.sessions {
			rngs[i] = rand.New(rand.NewPCG(seed, uint64(n*len(c.sessions)+i)))
			left++
		}
		if err := r.sim.Run(func() bool { ok, err := c.Ready(); return ok || err != nil }, time.Minute); err != nil {
			r.t.Fatal(err)
		}
		for i := range c.sessions {
			begin(r.clk.Now(), i)
		}
	}
	if err := r.sim.Run(func() bool { return left == 0 }, 10*time.Second); err != nil {
		r.t.Fatal(err)
	}
	return log
}

// Clover is linearizable, with and without steering: a read finds the latest write
// that was acknowledged before it began, or a later one. Steering alone does not
// promise that when frames are lost between the middlebox and the memory node: an
// append that was led behind another one, whose own was lost, is acknowledged and
// cannot be reached before that one has been repeated.
func TestLinearizable(t *testing.T) {
	for _, c := range []struct {
		mode            string
		memory, clients float64 // noise on either side of the middlebox
	}{
		{mode: ""},
		{mode: "", memory: 0.01, clients: 0.01},
		{mode: "off", memory: 0.01, clients: 0.01},
		{mode: "write"},
		{mode: "read-write"},
		{mode: "write", clients: 0.02},
		{mode: "read-write", clients: 0.02},
	} {
		for _, recycle := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v-recycle=%v", c, recycle), func(t *testing.T) {
				for seed := range uint64(5) {
					wire := func(n uint64, p float64) box {
						if p == 0 {
							return nil
						}
						return &noisy{rng: rand.New(rand.NewPCG(seed, n)), loss: p, dup: p, swap: p}
					}
					boxes := series{wire(1, c.memory), nil, wire(2, c.clients)}
					if c.mode != "" {
						boxes[1] = &middlebox{t: t, mode: c.mode}
					}
					cfg := Config{Keys: ycsb.Sequential(1, 3), Sessions: 4, Entries: 1024, Seed: seed}
					if recycle {
						cfg.Entries, cfg.Metadata.GCBelow = 160, 1
					}
					r := newRig(t, cfg, 3, 1, boxes)
					log := r.record(seed, 60, 0.5)
					m := history.Registers(nil)
					if err := history.Check(m, log, 0); err != nil {
						name, e := history.VisualizeFile(m, log, err, "clover-history-*.html")
						t.Fatalf("seed %d: %v; %s %v", seed, err, name, e)
					}
				}
			})
		}
	}
}
