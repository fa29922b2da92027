package bed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/internal/rack/ycsb"
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
	machines := []string{"s0", "box", "box"}
	for i := range t.Clients {
		machines = append(machines, fmt.Sprintf("c%d", i))
	}
	t.Faults = trouble(rng, t.Faults, machines)
	if box != nil && box.Killed {
		t.killed(rng)
		return t
	}
	if t.Faults.Deaths > 0 {
		// What dies leaves much open, which makes verdicts hard.
		t.Outstanding = min(t.Outstanding, 8)
	} else if t.Work == locks.Count || t.Work == locks.Open {
		t.Ops *= 4 // they wait for nobody, and would be done before the box knows the connections
	}
	return t
}

// killed has the box die under load: late enough to be in the middle of things, up to
// four times.
func (t *Trial) killed(rng *rand.Rand) {
	t.Faults.Machines, t.Faults.Deaths = []string{"box"}, 1+rng.IntN(6)
	t.Faults.Until, t.Faults.Absence = time.Duration(2+rng.IntN(10))*time.Millisecond, 200*time.Microsecond
	t.Faults.Frames, t.Faults.Within = rng.IntN(60), 2000
	t.Ops, t.Outstanding = t.Ops*6, min(t.Outstanding, 8)
}

// RandomTree is a load on a tree that a seed stands for.
func RandomTree(seed uint64, box *Box) Tree {
	rng := rand.New(rand.NewPCG(seed, 0x74726565))
	t := Tree{
		Clients:  2 + rng.IntN(3),
		Sessions: 1 + rng.IntN(4),
		Ops:      6 + rng.IntN(12),
		Keys:     []int{20, 54, 120, 62 * 54}[rng.IntN(4)],
		Fill:     []float64{0.7, 1}[rng.IntN(2)],
		Mix:      []ycsb.Mix{ycsb.A, ycsb.W, ycsb.B}[rng.IntN(3)],
		Theta:    []float64{0, 0.99}[rng.IntN(2)],
		MTU:      256 << rng.IntN(3),
		Profile:  rnic.Profile(rng.IntN(2)),
		Box:      box,
	}.defaults()
	t.Faults = trouble(rng, t.Faults, []string{"s0", "box", "box"})
	return t
}

// trouble is some.
func trouble(rng *rand.Rand, m fault.Mix, machines []string) fault.Mix {
	m.Frames, m.Within = 4+rng.IntN(16), 40+rng.IntN(400)
	if rng.IntN(2) == 0 {
		m.Machines, m.Deaths = machines, 1+rng.IntN(3)
		m.Until, m.Absence = 300*time.Microsecond, 6*time.Millisecond
	}
	return m
}

// Schedules is how many schedules a sweep of the ordinary tests runs: few, with -short an eighth of them, or as
// many as QUILLON_SCHEDULES says.
func Schedules(few int) int {
	if n, err := strconv.Atoi(os.Getenv("QUILLON_SCHEDULES")); err == nil && n > 0 {
		return n
	}
	if testing.Short() {
		return max(few/8, 2)
	}
	return few
}

// treeEvery is how many runs of a sweep share one on a tree.
const treeEvery = 5

// Sweep runs the trials of the seeds from first on, on all cores, until two of
// them have failed; every fifth is on a tree. It fails the test, too, when the
// trials did not do what they are for, work under trouble, or when the checker
// could not decide more than one in five hundred.
func Sweep(tb testing.TB, box *Box, first uint64, schedules int) {
	tb.Helper()
	var mu sync.Mutex
	var sum Result
	var trees TreeResult
	deaths := 0
	_, undecided := each(first, schedules, 2, func(seed uint64) error {
		if (seed-first)%treeEvery == 0 {
			t := RandomTree(seed, box)
			r, err := t.try(tb, seed)
			mu.Lock()
			defer mu.Unlock()
			if r != nil {
				trees.Add(r.Stats)
				trees.Struck += r.Struck
			}
			deaths += len(fault.Random(seed, t.Faults).Machines())
			return err
		}
		t := Random(seed, box)
		r, err := t.try(tb, seed)
		mu.Lock()
		defer mu.Unlock()
		if r != nil {
			onesided.Add(&sum.Stats, r.Stats)
			sum.Struck += r.Struck
		}
		deaths += len(fault.Random(seed, t.Faults).Machines())
		return err
	})
	tb.Logf("%d schedules, %d undecided: %d frames struck, %d deaths and returns\nlocks %+v\ntrees %+v", schedules, undecided, sum.Struck+trees.Struck, deaths, sum.Stats, trees.Stats)
	if undecided > 1+schedules/500 {
		tb.Errorf("%d of %d histories are undecided", undecided, schedules)
	}
	if schedules >= 200 && (box == nil || !box.Killed) && (sum.Done == 0 || sum.Struck == 0 || deaths == 0 || sum.Broken == 0 || sum.Stolen == 0 || trees.Splits == 0 || trees.HandedOver == 0) {
		tb.Error("some trouble never happened")
	}
}

// each tries the n seeds from first on, on all cores, until so many have gone wrong, and returns these, and of how many there is no verdict.
func each(first uint64, n, most int, try func(seed uint64) error) (wrong []uint64, undecided int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := first
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for next < first+uint64(n) && len(wrong) < most {
				seed := next
				next++
				mu.Unlock()
				err := try(seed)
				mu.Lock()
				switch {
				case errors.Is(err, history.ErrUndecided):
					undecided++
				case err != nil:
					wrong = append(wrong, seed)
				}
			}
		})
	}
	wg.Wait()
	return wrong, undecided
}
