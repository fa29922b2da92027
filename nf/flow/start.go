package flow

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Start is what the instances of a function in all workers begin with: a seed,
// which the first of them draws, and the state that was loaded until then.
type Start struct {
	mu    sync.Mutex
	begun bool
	seed  uint64
	at    clock.Time
	saved *Records
}

// Begin is the first breath of a worker. The first worker of all calls first, with
// the seed, and with what was loaded before, nil when nothing was.
func (s *Start) Begin(now clock.Time, r *rand.Rand, first func(seed uint64, saved *Records)) (seed uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		s.begun, s.seed, s.at = true, r.Uint64(), now
		first(s.seed, s.saved)
		s.saved = nil
	}
	return s.seed
}

// Load has restore put records in place, with the seed and the time of the first
// breath; before that, it keeps them for it.
func (s *Start) Load(all Records, restore func(at clock.Time, seed uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		s.saved = &all
		return
	}
	restore(s.at, s.seed)
}

// Begun is the seed and the time of the first breath, if there was one.
func (s *Start) Begun() (at clock.Time, seed uint64, begun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, s.seed, s.begun
}

// Save writes an image piece by piece: what was loaded while there was no breath yet, or what the
// function records that write returns, told the seed and the time of the first one. That is
// called with about how many records a piece has, and returns whether there are more of them, and so
// does what Save returns, until there are none left, or an error.
func (s *Start) Save(image *Image, write func(at clock.Time, seed uint64) (piece func(n int) (more bool))) (next func(n int) (more bool, err error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	piece := func(int) bool { return false }
	switch {
	case s.saved != nil:
		saved := *s.saved
		piece = func(int) bool {
			for sort, b := range saved.All {
				image.Record(sort, b)
			}
			return false
		}
	case s.begun:
		piece = write(s.at, s.seed)
	}
	return func(n int) (bool, error) {
		if piece(n) && image.err == nil {
			return true, nil
		}
		return false, image.Close()
	}
}

// Whole takes all pieces of a Save.
func Whole(next func(n int) (more bool, err error)) error {
	for {
		if more, err := next(1 << 10); !more {
			return err
		}
	}
}

// Steps is how many steps a sweep goes around n places in, and how far apart: all
// are looked at within 16 s.
func Steps(n int) (steps int, every time.Duration) {
	steps = max(1, min(1024, n/Ways))
	return steps, 16 * time.Second / time.Duration(steps)
}
