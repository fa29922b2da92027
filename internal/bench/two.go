package bench

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// twoBenchmarks play recorded loads of two servers through one app, each server
// on a worker of its own; beside it, one worker has both. What the machine
// itself gains by two processors is that of the app that does nothing.
func twoBenchmarks() []Benchmark {
	of := func(name, kind string, args graph.Args, record func(net byte) (*mix, error)) Benchmark {
		return Benchmark{name, fmt.Sprintf("%s in memory, two workers with a server each; in the place of pass-through: one worker with both", kind), func(clk clock.Clock) (*contest, error) {
			return twoWorkers(clk, kind, args, record)
		}}
	}
	return []Benchmark{
		lineBenchmark(),
		of("two-wire", "wire", nil, recordLocks),
		of("two-steer", "clover-steer", graph.Args{"mode": "read-write", "settle": "0", "pair": "0", "keys": "2048"}, recordMix),
		of("two-swordbox", "swordbox", swordboxArgs(), recordLocks),
	}
}

// lineBenchmark is what all that workers share costs at the least. It differs by how far apart the processors are that
// the machine has at the time.
func lineBenchmark() Benchmark {
	return Benchmark{"two-line", "a line of the processor's cache from one worker to another, a turn for each; in the place of pass-through: one worker's turns", func(clk clock.Clock) (*contest, error) {
		r := &race{clk: clk}
		of := func(workers int) Run {
			return func() (func() (int, error), error) {
				turn := &struct {
					_, n, _ [8]atomic.Int64
				}{}
				players := make([]player, workers)
				for i := range players {
					players[i] = &lineHolder{turn: &turn.n[0], workers: int64(workers), n: int64(i)}
				}
				return func() (int, error) { return r.run(players...) }, nil
			}
		}
		return &contest{bytes: 64, work: of(2), pass: of(1), race: r, close: func() {}}, nil
	}}
}

// lineHolder takes its turns with a line, which come after so many of all workers'.
type lineHolder struct {
	turn       *atomic.Int64
	workers, n int64 // n: its next turn
	_          [64]byte
}

// step implements player: 64 turns.
func (h *lineHolder) step() (int, error) {
	for range 64 {
		for n := 1; h.turn.Load() < h.n; n++ {
			if n%paceSpins == 0 {
				runtime.Gosched()
			}
		}
		h.turn.Store(max(h.turn.Load(), h.n+1))
		h.n += h.workers
	}
	return 64, nil
}

// leave implements player: nobody waits for it any more.
func (h *lineHolder) leave() { h.turn.Store(math.MaxInt64) }

func twoWorkers(clk clock.Clock, kind string, args graph.Args, record func(net byte) (*mix, error)) (*contest, error) {
	var mixes [2]*mix
	var err error
	for i := range mixes {
		if mixes[i], err = record(byte(i)); err != nil {
			return nil, fmt.Errorf("record the load: %w", err)
		}
	}
	return divided(clk, kind, args, mixes, interleave(mixes[0], mixes[1]), false)
}

// divided plays two mixes, each on a worker of its own, at once; beside it, one
// worker has both. With together they keep to one another's time.
func divided(clk clock.Clock, kind string, args graph.Args, mixes [2]*mix, both *mix, together bool) (*contest, error) {
	var pools [3]*packet.Pool
	var err error
	for i := range pools {
		if pools[i], err = packet.NewPool(64*packet.MaxBatch, 2048, nil); err != nil {
			return nil, err
		}
	}
	r := &race{clk: clk}
	side := func(mixes []*mix, pools []*packet.Pool) Run {
		return func() (func() (int, error), error) {
			inst, err := graph.New(drained(kind, args, pools...))
			if err != nil {
				return nil, err
			}
			var players []*playback
			var all []player
			for i, m := range mixes {
				p := &playback{mix: m, inst: inst, worker: i, pool: pools[i]}
				players, all = append(players, p), append(all, p)
			}
			// What is not counted is played as what is: each worker gets its memory from its own thread.
			keep := func() {
				if p := (&pace{}); together && len(players) > 1 {
					players[0].pace, players[1].pace = p, p
				}
			}
			keep()
			if err := atOnce(len(all), func(i int) error {
				defer all[i].leave()
				_, err := players[i].play(mixes[i].warm())
				return err
			}); err != nil {
				return nil, err
			}
			keep()
			return func() (int, error) {
				defer inst.Close()
				return r.run(all...)
			}, nil
		}
	}
	return &contest{
		bytes: float64(len(both.bytes)) / float64(both.frames),
		work:  side(mixes[:], pools[:2]),
		pass:  side([]*mix{both}, pools[2:]),
		race:  r,
		close: func() {},
	}, nil
}

// pace keeps two players together, for a recording holds what the other's clients
// did at the same time: neither is ahead by more than paceLag.
type pace [2]struct {
	at atomic.Int64 // its time
	_  [56]byte     // a line of the processor's cache each
}

// paceLag is about two batches of a recording's time.
const paceLag = clock.Duration(time.Microsecond)

// wait waits until the other player has come to the time at, or nearly.
func (p *pace) wait(player int, at clock.Time) {
	p[player].at.Store(int64(at))
	for n := 1; p[1-player].at.Load()+int64(paceLag) < int64(at); n++ {
		if n%paceSpins == 0 {
			runtime.Gosched()
		}
	}
}

// done has the other player wait no more.
func (p *pace) done(player int) { p[player].at.Store(math.MaxInt64 / 2) }

// paceSpins is how often a player looks before it lets go of its processor, which
// takes longer than the other usually does.
const paceSpins = 1 << 14

// interleave is what a middlebox receives that both mixes pass, by time.
func interleave(x, y *mix) *mix {
	z := &mix{}
	type source struct {
		*mix
		from int
		rest []mixBatch
	}
	sources := []*source{{x, 0, x.batches}, {y, 0, y.batches}}
	for len(sources[0].rest)+len(sources[1].rest) > 0 {
		s, o := sources[0], sources[1]
		if len(s.rest) == 0 || len(o.rest) > 0 && o.rest[0].at < s.rest[0].at {
			s = o
		}
		b := mixBatch{port: s.rest[0].port, at: s.rest[0].at}
		for _, end := range s.rest[0].ends {
			z.bytes = append(z.bytes, s.bytes[s.from:end]...)
			b.ends = append(b.ends, len(z.bytes))
			s.from = end
		}
		s.rest = s.rest[1:]
		z.batches = append(z.batches, b)
		z.frames += len(b.ends)
	}
	return z
}
