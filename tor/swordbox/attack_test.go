package swordbox

import (
	"testing"
	"time"
)

// A client that may change a region chooses which words of it are tracked (learn=). What it
// costs to find words, its own and others', does not grow with what it chose.
func TestAttackChosenWords(t *testing.T) {
	const places = 1 << 16 // the default of words=
	// Words of a region of 256 MiB, half of all that may be tracked; and others' words, which are there, too.
	cost := func(chosen bool) time.Duration {
		w, guess := newWords(places), words{} // which everybody knows
		w.seed = 0x5EED
		var others []uint64
		for va := uint64(1) << 32; w.n < places/2 && va < 1<<32+1<<28; va += 8 {
			if h := guess.wordHash(va) & uint32(len(w.ix.E)-1); !chosen && va&0x7FF == 0 || chosen && h < 1<<12 {
				w.add(va, 1)
			}
		}
		t.Logf("chosen %v: %d words", chosen, w.n)
		for k := range uint64(1000) {
			others = append(others, 1<<40+4096*k)
			w.add(others[k], 2)
		}
		best := time.Hour
		for range 5 {
			begin := time.Now()
			for _, va := range others {
				w.find(va)
			}
			best = min(best, time.Since(begin)/time.Duration(len(others)))
		}
		return best
	}
	fair, chosen := cost(false), cost(true)
	t.Logf("to find another client's word takes %v, and %v", fair, chosen)
	if chosen > 20*fair+time.Microsecond {
		t.Errorf("to find another client's word takes %v; %v when somebody chose the words", fair, chosen)
	}
}
