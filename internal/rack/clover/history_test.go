package clover

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// record runs closed loops of ops operations on every session and records them. The first 8 bytes of a value
// are the write's number: the session and how many writes it has done. during gets the number of operations
// that have ended; it may kill compute nodes. With during, a session whose queue pair fails ends.
func (r *rig) record(seed uint64, ops int, writes float64, during func(ended int, kill func(node int))) *history.Log[history.Register, uint64] {
	r.t.Helper()
	var dead []*mortal
	if during != nil {
		for n := range r.cl.compute {
			w := &r.sim.Workers[len(r.cl.memory)+1+n]
			m := &mortal{Worker: *w}
			*w = m
			dead = append(dead, m)
		}
	}
	ended := 0
	log := new(history.Log[history.Register, uint64])
	left, alive := 0, make([]int, len(r.cl.compute))
	for n, node := range r.cl.compute {
		c := node.c
		ids := make([]int, len(c.sessions))
		rngs := make([]*rand.Rand, len(c.sessions))
		counts := make([]int, len(c.sessions))
		begin := func(now clock.Time, i int) {
			if counts[i]++; counts[i] > ops {
				left--
				alive[n]--
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
				if during == nil {
					r.t.Errorf("key %d: %v", x.Key, x.Err)
				}
				if !x.Write {
					log.Forget(ids[x.Session])
				}
				left--
				alive[n]--
				return
			}
			out := uint64(0)
			if !x.Write {
				out = u64(x.Value, 0)
			}
			log.Return(ids[x.Session], x.End, out)
			if ended++; during != nil {
				during(ended, func(node int) {
					if !dead[node].dead {
						dead[node].dead = true
						left -= alive[node]
					}
				})
				if dead[n].dead {
					return
				}
			}
			begin(x.End, x.Session)
		}
		for i := range c.sessions {
			rngs[i] = rand.New(rand.NewPCG(seed, uint64(n*len(c.sessions)+i)))
			left++
			alive[n]++
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

// mortal is a machine that can die.
type mortal struct {
	host.Worker
	dead bool
}

func (m *mortal) Breath(now clock.Time) (int, error) {
	if m.dead {
		return 0, nil
	}
	return m.Worker.Breath(now)
}

func (m *mortal) Deadline() clock.Time {
	if m.dead {
		return clock.Never
	}
	return m.Worker.Deadline()
}

// Clover is linearizable, with and without steering, and with either search: a read returns the latest write
// that was acknowledged before the read began, or a later write.
func TestLinearizable(t *testing.T) {
	for _, c := range []struct {
		mode            string
		memory, clients float64 // noise on either side of the middlebox
		shared          bool    // swordbox behind the steering
	}{
		{mode: ""},
		{mode: "", memory: 0.01, clients: 0.01},
		{mode: "off", memory: 0.01, clients: 0.01},
		{mode: "write"},
		{mode: "read-write"},
		{mode: "write", clients: 0.02},
		{mode: "read-write", clients: 0.02},
		{mode: "write", memory: 0.01},
		{mode: "read-write", memory: 0.01},
		{mode: "write", memory: 0.02, clients: 0.02},
		{mode: "read-write", memory: 0.02, clients: 0.02},
		{mode: "write", memory: 0.01, clients: 0.01, shared: true},
		{mode: "read-write", memory: 0.01, clients: 0.01, shared: true},
	} {
		for _, recycle := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v-recycle=%v", c, recycle), func(t *testing.T) {
				for seed := range uint64(10) {
					if testing.Short() && seed%5 > 1 {
						continue
					}
					m := &middlebox{t: t, mode: c.mode, shared: c.shared}
					boxes := series{noise(seed, 1, c.memory), nil, noise(seed, 2, c.clients)}
					if c.mode != "" {
						boxes[1] = m
					}
					cfg := Config{Keys: ycsb.Sequential(1, 3), Sessions: 4, Entries: 1024, Seed: seed,
						Search: Search(seed % 2), Direct: c.mode == "", Nap: time.Duration(1+seed*5) * time.Microsecond}
					if recycle {
						cfg.Entries, cfg.Metadata.GCBelow = 160+240*int(seed%2), 1 // each thread keeps up to 16 entries
					}
					r := newRig(t, cfg, 3, 1, boxes)
					linearizable(t, seed, r.record(seed, 60, 0.5, nil))
					if c.mode != "" && (m.steered() > 0) != (c.mode != "off") {
						t.Errorf("seed %d: mode=%s led %d requests elsewhere", seed, c.mode, m.steered())
					}
				}
			})
		}
	}
}

// noise loses, repeats and reorders a share p of the frames.
func noise(seed, side uint64, p float64) box {
	if p == 0 {
		return nil
	}
	return &noisy{rng: rand.New(rand.NewPCG(seed, side)), loss: p, dup: p, swap: p}
}

func linearizable(t *testing.T, seed uint64, log *history.Log[history.Register, uint64]) {
	t.Helper()
	m := history.Registers(nil)
	if err := history.Check(m, log, 0); err != nil {
		name, e := history.VisualizeFile(m, log, err, "clover-history-*.html")
		t.Fatalf("seed %d: %v; %s %v", seed, err, name, e)
	}
}

// Clover is also linearizable when clients die in the middle of an append, when the middlebox dies, and when
// both die, with frames lost on both sides. A middlebox that may die leads no CAS to an entry that is not
// linked. QUILLON_SEEDS is the number of runs of each sort. With pair=0, run 12 is the first in which queue
// pairs that begin with one PSN are paired wrongly and a write is lost.
func TestLinearizableDespiteDeaths(t *testing.T) {
	seeds, err := strconv.ParseUint(os.Getenv("QUILLON_SEEDS"), 10, 32)
	if err != nil {
		seeds = 24
		if testing.Short() {
			seeds = 6
		}
	}
	for _, c := range []struct {
		client, box bool
	}{{client: true}, {box: true}, {client: true, box: true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			for seed := range 2 * seeds {
				search := Search(seed % 2)
				seed /= 2
				m := &middlebox{t: t, mode: "read-write", careful: c.box}
				// A READ that a middlebox led to another entry, and that comes again after the middlebox has
				// gone, is not taken for the same READ.
				conn := rnic.DefaultConn()
				conn.Timeout, conn.RetryCnt, conn.SQPSN = 12, 6, FirstPSN
				cfg := Config{Keys: ycsb.Sequential(1, 3), Sessions: 4, Entries: 4096, Seed: seed, Conn: conn, Search: search, Nap: 20 * time.Microsecond}
				r := newRig(t, cfg, 6, 1, series{noise(seed, 1, 0.02), m, noise(seed, 2, 0.02)})
				log := r.record(seed, 80, 0.6, func(ended int, kill func(int)) {
					every := 250 + int(seed)*7
					if ended%every != 0 {
						return
					}
					if c.client {
						kill(ended / every % 5)
					}
					if c.box {
						m.start()
					}
				})
				linearizable(t, seed, log)
			}
		})
	}
}
