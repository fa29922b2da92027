package flow

import (
	"fmt"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/quillon/quillon/nf/clock"
)

// Start is shared by the instances of a function in all workers. It has the seed, which the first
// worker draws in its first breath, and the state that was loaded before that breath.
type Start struct {
	mu    sync.Mutex
	begun bool
	seed  uint64
	at    clock.Time
	saved *Records
}

// Mover saves and loads the flows of a function as an image (Image). Each worker's instance of the
// function has a Mover. Mover implements graph.Mover.
type Mover struct {
	Now   clock.Time // of the breath
	Seed  uint64     // of the hashes
	Begun bool       // there was a breath

	Start   *Start // of all workers
	Kind    string
	Version uint8
	Size    func(sort uint8) int // as Open takes it
	// Record begins to add the function's state to image. Each call of piece adds about n records,
	// and returns whether more are left.
	Record func(image *Image, now clock.Time) (piece func(n int) (more bool))
	// Build returns the largest length in bytes of an image, and a function build that makes a new
	// state from records. build may run in any goroutine while the worker goes on, because only build
	// knows the new state. put replaces the function's state by the new one. Which records build refuses
	// depends on the records alone, and on what Inherit and Reconfigure leave as it is: Load reports that error,
	// and a state that was loaded before the first breath is built a second time then.
	Build func() (most int, build func(now clock.Time, seed uint64, all Records) (put func(), err error))
}

// Begin starts m. Each worker calls Begin in its first breath. In the first worker that does, Begin draws
// the seed, calls first unless first is nil, and takes the state that was loaded before.
func (m *Mover) Begin(now clock.Time, r *rand.Rand, first func()) {
	s := m.Start
	s.mu.Lock()
	defer s.mu.Unlock()
	m.Begun, m.Now = true, now
	if s.begun {
		m.Seed = s.seed
		return
	}
	s.begun, s.seed, s.at = true, r.Uint64(), now
	m.Seed = s.seed
	if first != nil {
		first()
	}
	if s.saved != nil {
		m.restore(*s.saved)
		s.saved = nil
	}
}

// Continue makes m the successor of o in the same worker. The caller must not use o afterwards.
func (m *Mover) Continue(o *Mover) { m.Now, m.Seed, m.Begun, m.Start = o.Now, o.Seed, o.Begun, o.Start }

// join takes the seed from Start and, in a worker without a breath yet, the time of the first worker's
// first breath. The caller holds the lock of Start.
func (m *Mover) join() {
	if m.Seed = m.Start.seed; !m.Begun {
		m.Now = m.Start.at
	}
}

// restore replaces the state by records that Build's function has accepted before.
func (m *Mover) restore(all Records) {
	_, build := m.Build()
	if put, err := build(m.Now, m.Seed, all); err == nil {
		put()
	}
}

// Save implements graph.Saver.
func (m *Mover) Save(w io.Writer) error {
	for next := m.Saving(w); ; {
		if more, err := next(1 << 10); !more {
			return err
		}
	}
}

// Saving implements graph.Mover. A state that was loaded before the first breath is saved as it was.
func (m *Mover) Saving(w io.Writer) (next func(n int) (more bool, err error)) {
	image, s := NewImage(w, m.Kind, m.Version), m.Start
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
		m.join()
		piece = m.Record(image, m.Now)
	}
	return func(n int) (bool, error) {
		if piece(n) && image.err == nil {
			return true, nil
		}
		return false, image.Close()
	}
}

// Load implements graph.Saver.
func (m *Mover) Load(r io.Reader) error {
	put, err := m.Loading()(r)
	if err == nil {
		put()
	}
	return err
}

// Loading implements graph.Mover. A state that is loaded before the first breath is kept until then.
func (m *Mover) Loading() (read func(r io.Reader) (put func(), err error)) {
	s := m.Start
	s.mu.Lock()
	defer s.mu.Unlock()
	begun := s.begun
	if begun {
		m.join()
	}
	now, seed := m.Now, m.Seed
	most, build := m.Build()
	return func(r io.Reader) (func(), error) {
		all, err := Open(r, m.Kind, m.Version, m.Size, most)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Kind, err)
		}
		put, err := build(now, seed, all)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Kind, err)
		}
		return func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case begun:
				put()
			case s.begun: // it has meanwhile
				m.join()
				m.restore(all)
			default:
				s.saved = &all
			}
		}, nil
	}
}
