package hop

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// PauseLimit is the longest time that a pause lasts, however often it is renewed. After that, pauses of the class are
// ignored for the same time, as watchdogs of switches do. A pause is meant for some microseconds.
const PauseLimit = 100 * time.Millisecond

// PauseTime returns how long a pause of q quanta lasts on a link of rate bits a second.
func PauseTime(q uint16, rate uint64) clock.Duration { return timeOf(uint64(q)*quantum, rate) }

// Asker asks the neighbour at a port for pauses of a class, and ends them.
type Asker struct {
	Rate   uint64         // bits a second
	Limit  clock.Duration // of a pause
	asking bool
	since  clock.Time
	again  clock.Time
	cut    clock.Time // until then no pause is asked for
	// Asked counts pauses and their renewals, Cut those that ended at the limit.
	Asked, Cut uint64
}

// Asking reports whether the neighbour is asked to pause.
func (a *Asker) Asking() bool { return a.asking }

// Due returns the time when Ask must be called again, or clock.Never if no pause is asked for.
func (a *Asker) Due() clock.Time {
	if !a.asking {
		return clock.Never
	}
	return min(a.again, a.since.Add(a.Limit))
}

// Ask says whether a pause frame must be sent, and with how many quanta; 0 ends the pause. want says that the
// neighbour should pause.
func (a *Asker) Ask(now clock.Time, want bool) (q uint16, send bool) {
	switch {
	case !want && a.asking:
		a.asking = false
		return 0, true
	case !want || now < a.cut:
		return 0, false
	case a.asking && now >= a.since.Add(a.Limit):
		a.asking, a.cut = false, now.Add(a.Limit)
		a.Cut++
		return 0, true
	case a.asking && now < a.again:
		return 0, false
	case !a.asking:
		a.asking, a.since = true, now
	}
	a.again = now.Add(PauseTime(quanta/2, a.Rate))
	a.Asked++
	return quanta, true
}

// Obeyer obeys the pauses of a class that the neighbour at a port asks for.
type Obeyer struct {
	Rate         uint64         // bits a second
	Limit        clock.Duration // of a pause
	since, until clock.Time
	cut          clock.Time // until then no pause is obeyed
	sent         bool       // a frame has left since the last pause
	// Heard counts pauses, Cut those that ended at the limit.
	Heard, Cut uint64
}

// Hear takes a pause of q quanta from the neighbour; 0 ends the pause.
func (o *Obeyer) Hear(now clock.Time, q uint16) {
	if q == 0 {
		o.until, o.sent = now, true // waiting frames can leave now
		return
	}
	o.Heard++
	if now < o.cut {
		return
	}
	// A pause that begins within Limit/100 after the end of another one, before any frame has left, continues
	// that one: the neighbour's frame may come each time just before this side looks.
	if now > o.until && (o.sent || now > o.until.Add(o.Limit/100)) {
		o.since = now
	}
	o.sent = false
	end := o.since.Add(o.Limit)
	if o.until = now.Add(PauseTime(q, o.Rate)); o.until >= end {
		o.until, o.cut = end, end.Add(o.Limit)
		o.Cut++
	}
}

// Sent notes that a frame of the class leaves, because no pause is in force.
func (o *Obeyer) Sent() { o.sent = true }

// Until returns the time when the pause ends.
func (o *Obeyer) Until() clock.Time { return o.until }
