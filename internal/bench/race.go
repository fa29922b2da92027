package bench

import (
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// player plays a load through one worker.
type player interface {
	// step plays one batch, and returns io.EOF when there are no more.
	step() (frames int, err error)
	// leave is called when the race is over for it.
	leave()
}

// race is what is timed of several workers: the time in which all of them run. Threads
// begin up to 1 ms late, so they wait for each other before the clock starts; they stop
// as soon as one is at its end.
type race struct {
	clk  clock.Clock
	took clock.Duration // of the last run
}

const (
	// raceTime is how long players run that have no end.
	raceTime = 100 * time.Millisecond
	// raceLooks is after how many batches they look at the clock.
	raceLooks = 64
)

// run has all players run at once, each on a thread of its own, and returns how many frames they moved.
func (r *race) run(players ...player) (frames int, err error) {
	type lane struct {
		start, end clock.Time
		frames     int
	}
	lanes := make([]lane, len(players))
	var ready atomic.Int32
	var stop atomic.Bool
	err = atOnce(len(players), func(i int) error {
		p := players[i]
		ready.Add(1)
		for n := 1; int(ready.Load()) < len(players); n++ {
			if n%paceSpins == 0 {
				runtime.Gosched()
			}
		}
		l := lane{start: r.clk.Now()}
		var err error
		for n := 1; !stop.Load() && err == nil; n++ {
			var moved int
			moved, err = p.step()
			l.frames += moved
			if n%raceLooks == 0 && r.clk.Now().Sub(l.start) > raceTime {
				break
			}
		}
		stop.Store(true)
		p.leave()
		l.end = r.clk.Now()
		lanes[i] = l
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
	start, end := lanes[0].start, lanes[0].end
	for _, l := range lanes {
		start, end = min(start, l.start), max(end, l.end)
		frames += l.frames
	}
	r.took = end.Sub(start)
	return frames, err
}

// atOnce does n things, each on a thread of its own.
func atOnce(n int, do func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			errs[i] = do(i)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
