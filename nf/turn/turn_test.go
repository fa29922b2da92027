package turn_test

import (
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/turn"
)

// Whoever has the turn has it alone, and sees what the one before did.
func TestTurn(t *testing.T) {
	var (
		at turn.Turn
		n  int
		wg sync.WaitGroup
	)
	const workers, rounds = 3, 20_000
	for range workers {
		wg.Go(func() {
			for range rounds {
				at.Take()
				n++
				at.Give()
			}
		})
	}
	wg.Wait()
	if n != workers*rounds {
		t.Errorf("%d turns are counted, there were %d", n, workers*rounds)
	}
}
