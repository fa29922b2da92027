package onesided

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Fibers makes a Loop run its sessions as fibers of one thread: a session that has posted looks for its completion
// only when it has slept, and the thread does one session's work at a time. When all sessions sleep, the thread
// sleeps, too. The session whose sleep ends first then runs Late after that. What a session does by Wake, it does at once,
// and the thread has no work with it.
type Fibers struct {
	// Nap is how long a session sleeps before each look; Late is by how much the operating system is late
	// to wake a thread that sleeps.
	Nap, Late time.Duration
	// Work is how long the thread works before it posts for a session. It is asked before the session continues: for the first
	// post of an operation the session is still as the operation before has left it.
	Work func(session int) time.Duration
}

// fibers is the state of a Loop whose sessions are fibers.
type fibers struct {
	looks   []clock.Time // when a session looks next
	idle    []bool       // a session had no operation to begin when it was last asked
	running int          // the session that the thread works for; -1: none
	until   clock.Time   // the thread works or sleeps
}

// run lets the thread run its sessions until it works or sleeps.
func (l *Loop[T]) run(now clock.Time) bool {
	f := &l.fibers
	if f.looks == nil {
		f.looks, f.idle, f.running = make([]clock.Time, len(l.Sessions)), make([]bool, len(l.Sessions)), -1
	}
	did := false
	for now >= f.until {
		did = true
		if i := f.running; i >= 0 {
			f.running = -1
			f.looks[i] = now.Add(l.Fibers.Nap)
			s := l.Sessions[i]
			if b := s.base(); b.ended {
				b.ended = false
				s.Done(now)
			}
			for !s.base().Busy && s.Next(now) {
			}
			f.idle[i] = !s.base().Busy
		}
		next := 0
		for i, at := range f.looks {
			if at < f.looks[next] {
				next = i
			}
		}
		s := l.Sessions[next]
		switch at, b := f.looks[next], s.base(); {
		case at > now:
			f.until = at.Add(l.Fibers.Late)
		case f.idle[next] && !b.Busy: // to ask for an operation is no work
			f.idle[next] = !s.Next(now)
			f.looks[next] = now.Add(max(l.Fibers.Nap, 1))
		case b.ended || !b.Busy:
			f.running, f.until = next, now.Add(l.Fibers.Work(next))
		default:
			f.looks[next] = now.Add(max(l.Fibers.Nap, 1))
		}
	}
	return did
}
