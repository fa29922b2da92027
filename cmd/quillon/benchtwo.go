package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// twoBenchmarks play recorded loads of two servers through one app, each server
// on a worker of its own; beside it, one worker has both. What the machine
// itself gains by two processors is that of the app that does nothing.
func twoBenchmarks() []benchmark {
	of := func(name, kind string, args graph.Args, record func(net byte) (*mix, error)) benchmark {
		return benchmark{name, fmt.Sprintf("%s in memory, two workers with a server each; in the place of pass-through: one worker with both", kind), func(clock.Clock) (*contest, error) {
			return twoWorkers(kind, args, record)
		}}
	}
	return []benchmark{
		of("two-wire", "wire", nil, recordLocks),
		of("two-steer", "clover-steer", graph.Args{"mode": "read-write", "settle": "0", "keys": "2048"}, recordMix),
		of("two-swordbox", "swordbox", swordboxArgs(), recordLocks),
	}
}

func twoWorkers(kind string, args graph.Args, record func(net byte) (*mix, error)) (*contest, error) {
	var mixes [2]*mix
	var err error
	for i := range mixes {
		if mixes[i], err = record(byte(i)); err != nil {
			return nil, fmt.Errorf("record the load: %w", err)
		}
	}
	return divided(kind, args, mixes, false)
}

// divided plays two mixes, each on a worker of its own, at once; beside it, one
// worker has both. With together they keep to one another's time.
func divided(kind string, args graph.Args, mixes [2]*mix, together bool) (*contest, error) {
	var pools [3]*packet.Pool
	var err error
	for i := range pools {
		if pools[i], err = packet.NewPool(64*packet.MaxBatch, 2048, nil); err != nil {
			return nil, err
		}
	}
	both := interleave(mixes[0], mixes[1])
	work := func() (func() (int, error), error) {
		inst, err := graph.New(drained(kind, args, pools[0], pools[1]))
		if err != nil {
			return nil, err
		}
		players := []*playback{{mix: mixes[0], inst: inst, pool: pools[0]}, {mix: mixes[1], inst: inst, worker: 1, pool: pools[1]}}
		if err := warmBoth(players); err != nil {
			return nil, err
		}
		if together {
			p := &pace{}
			players[0].pace, players[1].pace = p, p
		}
		return func() (int, error) {
			defer inst.Close()
			return atOnce(players)
		}, nil
	}
	return &contest{
		bytes: float64(len(both.bytes)) / float64(both.frames),
		work:  work,
		pass:  both.through(pools[2], kind, args),
		close: func() {},
	}, nil
}

// warmBoth plays what is not counted, by time, so that the app meets it as one
// worker does.
func warmBoth(players []*playback) error {
	for {
		var next *playback
		for _, p := range players {
			if p.at < p.mix.warm() && (next == nil || p.mix.batches[p.at].at < next.mix.batches[next.at].at) {
				next = p
			}
		}
		if next == nil {
			return nil
		}
		if _, err := next.play(next.at + 1); err != nil {
			return err
		}
	}
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

// atOnce plays what is left, each on a thread of its own.
func atOnce(players []*playback) (int, error) {
	return eachAtOnce(len(players), func(i int) (int, error) {
		p := players[i]
		n, err := p.play(len(p.mix.batches))
		if p.pace != nil {
			p.pace.done(p.worker)
		}
		return n, err
	})
}

// eachAtOnce does n things, each on a thread of its own, and adds up what they
// return.
func eachAtOnce(n int, do func(i int) (int, error)) (sum int, err error) {
	frames, errs := make([]int, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			frames[i], errs[i] = do(i)
		})
	}
	wg.Wait()
	for _, x := range frames {
		sum += x
	}
	return sum, errors.Join(errs...)
}

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
