// Package turn lets the workers of a graph take turns at state that they share. A worker
// takes its turn for a batch of frames, which costs one atomic exchange and one store. Work
// that does not need the shared state should be done before or after the turn.
package turn

import (
	"runtime"
	"sync/atomic"
)

// line is the length of a line of the processor's cache.
const line = 64

// spins is the number of times that a waiting worker looks before it yields its processor.
// These looks take longer than a turn that is not interrupted.
const spins = 1 << 14

// Turn is a lock that one worker at a time has. It fills a line of the processor's cache. The zero
// value is free.
type Turn struct {
	taken atomic.Bool
	_     [line - 4]byte
}

// Shared is a Turn that costs nothing if there is only one worker (Alone).
type Shared struct {
	Turn
	Alone bool
}

// Take waits until the caller has the turn. It does nothing if Alone is set.
func (s *Shared) Take() {
	if !s.Alone {
		s.Turn.Take()
	}
}

// Give ends the caller's turn. It does nothing if Alone is set.
func (s *Shared) Give() {
	if !s.Alone {
		s.Turn.Give()
	}
}

// Take waits until the caller has the turn.
func (t *Turn) Take() {
	for n := 1; t.taken.Load() || !t.taken.CompareAndSwap(false, true); n++ {
		if n%spins == 0 {
			runtime.Gosched()
		}
	}
}

// Try takes the turn if it is free, and reports whether it did.
func (t *Turn) Try() bool { return !t.taken.Load() && t.taken.CompareAndSwap(false, true) }

// Give ends the caller's turn.
func (t *Turn) Give() { t.taken.Store(false) }
