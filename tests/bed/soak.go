package bed

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
)

// Work is something that a seed stands for, and that may go wrong.
type Work struct {
	Name string // of the test that repeats it, as in TestTwins/mux
	Try  func(seed uint64) error
}

// Soak does work of all sorts in turns, on all cores, for the time that QUILLON_SOAK
// says, from the seed QUILLON_FIRST on; without the first the test is left out. What
// goes wrong is told at once, and added to the file QUILLON_FAILED with the command
// that repeats it.
func Soak(t *testing.T, dir string, cores int, all ...Work) {
	span, err := time.ParseDuration(os.Getenv("QUILLON_SOAK"))
	if err != nil {
		t.Skip("QUILLON_SOAK=10m runs it; see make soak")
	}
	first, _ := strconv.ParseUint(os.Getenv("QUILLON_FIRST"), 10, 64)
	var mu sync.Mutex
	var wg sync.WaitGroup
	next, undecided, failed := first, 0, 0
	wall := clock.NewWall()
	end := wall.Now().Add(span)
	for range cores {
		wg.Go(func() {
			for wall.Now() < end {
				mu.Lock()
				seed := next
				next++
				mu.Unlock()
				w := all[seed%uint64(len(all))]
				err := w.Try(seed)
				mu.Lock()
				switch {
				case errors.Is(err, history.ErrUndecided):
					undecided++
				case err != nil:
					failed++
					note(t, fmt.Sprintf("QUILLON_CROWDS=%d QUILLON_SEED=%d go test -count=1 -run '^%s$' %s", crowds, seed, w.Name, dir), err)
				}
				if n := next - first; n%1000 == 0 {
					fmt.Fprintf(os.Stderr, "%s: %d, %d undecided, %d failed\n", dir, n, undecided, failed)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if next == first {
		t.Errorf("nothing was done within %v", span)
	}
	t.Logf("%d from seed %d on: %d undecided, %d failed", next-first, first, undecided, failed)
}

// note tells of a failure.
func note(t *testing.T, command string, err error) {
	t.Errorf("%s\n%v", command, err)
	fmt.Fprintf(os.Stderr, "%s\n\t%v\n", command, err)
	name := os.Getenv("QUILLON_FAILED")
	if name == "" {
		return
	}
	f, e := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if e == nil {
		_, e = fmt.Fprintln(f, command)
		e = errors.Join(e, f.Close())
	}
	if e != nil {
		t.Errorf("%s cannot be noted: %v", name, e)
	}
}

// Seed is QUILLON_SEED, the one seed that a test is to show.
func Seed() (uint64, bool) {
	seed, err := strconv.ParseUint(os.Getenv("QUILLON_SEED"), 10, 64)
	return seed, err == nil
}
