package bed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/rack/history/fault"
	"github.com/quillon/quillon/rack/locks"
	"github.com/quillon/quillon/rack/rnic"
)

// Random is a trial that a seed stands for: any work, size, NIC and sort of
// trouble.
func Random(seed uint64, box *Box) Trial {
	rng := rand.New(rand.NewPCG(seed, 0x747269616c))
	works := locks.Works()
	t := Trial{
		Work:         works[rng.IntN(len(works))],
		Clients:      2 + rng.IntN(3),
		Sessions:     1 + rng.IntN(3),
		Ops:          8 + rng.IntN(16),
		Outstanding:  1 << rng.IntN(5),
		Words:        1 + rng.IntN(4),
		MTU:          256 << rng.IntN(3),
		ReleaseByCAS: rng.IntN(2) == 0,
		Profile:      rnic.Profile(rng.IntN(2)),
		Box:          box,
	}.defaults()
	t.Faults.Frames, t.Faults.Within = 4+rng.IntN(16), 40+rng.IntN(400)
	if rng.IntN(2) == 0 {
		t.Faults.Machines = []string{"s0", "box", "box"}
		for i := range t.Clients {
			t.Faults.Machines = append(t.Faults.Machines, fmt.Sprintf("c%d", i))
		}
		// What dies leaves much open, which makes verdicts hard.
		t.Outstanding = min(t.Outstanding, 8)
		t.Faults.Deaths, t.Faults.Until, t.Faults.Absence = 1+rng.IntN(3), 300*time.Microsecond, 6*time.Millisecond
	}
	return t
}

// Schedules is how many schedules a sweep of the ordinary tests runs: few, or as
// many as QUILLON_SCHEDULES says.
func Schedules(few int) int {
	if n, err := strconv.Atoi(os.Getenv("QUILLON_SCHEDULES")); err == nil && n > 0 {
		return n
	}
	return few
}

// Sweep runs the trials of the seeds from first on, on all cores, until two of
// them have failed. It fails the test, too, when the trials did not do what they
// are for: work under trouble.
func Sweep(tb testing.TB, box *Box, first uint64, schedules int) {
	tb.Helper()
	var next, failed atomic.Uint64
	var mu sync.Mutex
	var sum Result
	var wg sync.WaitGroup
	deaths := 0
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for failed.Load() < 2 {
				n := next.Add(1) - 1
				if n >= uint64(schedules) {
					return
				}
				seed := first + n
				t := Random(seed, box)
				r, ok := t.Try(tb, seed)
				if !ok {
					failed.Add(1)
				}
				if r == nil {
					continue
				}
				mu.Lock()
				sum.add(r.Stats)
				sum.Struck += r.Struck
				sum.Took += r.Took
				deaths += len(fault.Random(seed, t.Faults).Machines())
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	tb.Logf("%d schedules: %d frames struck, %d deaths and returns, %v of virtual time, %+v", schedules, sum.Struck, deaths, sum.Took, sum.Stats)
	if schedules >= 100 && (sum.Done == 0 || sum.Struck == 0 || deaths == 0 || sum.Broken == 0 || sum.Stolen == 0) {
		tb.Error("some trouble never happened")
	}
}
