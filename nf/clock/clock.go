// Package clock is the only place of the house that reads the wall clock.
// The same code runs live (Wall), in replay (Manual, set from the capture's
// timestamps) and simulated (the event kernel's clock).
package clock

import "time"

// Time is nanoseconds since the Unix epoch of the run's clock. It is
// monotonic within a run. Never is "no deadline".
type Time int64

// Never is later than every Time that occurs.
const Never = Time(1<<63 - 1)

// Duration is time.Duration: nanoseconds.
type Duration = time.Duration

// Add is t + d; Never stays Never, and what would be later than that is Never.
func (t Time) Add(d Duration) Time {
	s := t + Time(d)
	if t == Never || d > 0 && s < t {
		return Never
	}
	return s
}

// Sub is t - u.
func (t Time) Sub(u Time) Duration { return Duration(t - u) }

// Clock tells the time.
type Clock interface{ Now() Time }

// Wall is the real clock: its epoch is read once, then it follows the
// monotonic clock, so it never jumps.
type Wall struct{ start time.Time }

// NewWall starts a wall clock.
func NewWall() *Wall { return &Wall{start: time.Now()} }

// Now implements Clock.
func (w *Wall) Now() Time {
	return Time(w.start.UnixNano()) + Time(time.Since(w.start))
}

// Manual is a clock that stands until it is moved. Not for concurrent use.
type Manual struct{ now Time }

// NewManual starts a manual clock at t.
func NewManual(t Time) *Manual { return &Manual{now: t} }

// Now implements Clock.
func (m *Manual) Now() Time { return m.now }

// Set moves the clock to t; it never goes back: an earlier t is ignored.
func (m *Manual) Set(t Time) {
	if t > m.now {
		m.now = t
	}
}

// Advance moves the clock on by d.
func (m *Manual) Advance(d Duration) { m.now += Time(d) }
