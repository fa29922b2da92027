// Package turn lets the workers of a graph take turns at what they share. A worker
// takes its turn for a batch of frames: one atomic exchange, and one store. What needs
// nothing of it is done before and after.
package turn

import (
	"runtime"
	"sync/atomic"
)

// line is the length of a line of the processor's cache.
const line = 64

// spins is how often a worker that waits looks before it lets go of its processor:
// longer than a turn takes that nobody interrupts.
const spins = 1 << 14

// Turn is one worker's at a time. It fills a line of the processor's cache. The zero
// value is nobody's.
type Turn struct {
	taken atomic.Bool
	_     [line - 4]byte
}

// Shared is a Turn of workers that may be one alone, which need not take it.
type Shared struct {
	Turn
	Alone bool
}

// Take waits until the turn is the caller's.
func (s *Shared) Take() {
	if !s.Alone {
		s.Turn.Take()
	}
}

// Give ends it.
func (s *Shared) Give() {
	if !s.Alone {
		s.Turn.Give()
	}
}

// Take waits until the turn is the caller's.
func (t *Turn) Take() {
	for n := 1; t.taken.Load() || !t.taken.CompareAndSwap(false, true); n++ {
		if n%spins == 0 {
			runtime.Gosched()
		}
	}
}

// Try takes the turn if it is nobody's.
func (t *Turn) Try() bool { return !t.taken.Load() && t.taken.CompareAndSwap(false, true) }

// Give ends it.
func (t *Turn) Give() { t.taken.Store(false) }
