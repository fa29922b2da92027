package swordbox

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// pulse records when the server was heard over any connection, and how long it takes to answer. hear and time are
// called for each response. With elsewhere the box tells a server that pauses from a connection whose end is gone;
// with overdue it knows when an answer is late.
type pulse struct {
	lastHeard, otherHeard clock.Time // when the connection lastFrom was heard, and before that another one
	lastFrom              *flow
	awake                 clock.Time     // when the server was first heard after it was silent for giveup=/2
	asking                clock.Time     // when others were last asked whether their server is there
	trip                  clock.Duration // time until an answer, smoothed; 0: not known
	asks                  int32          // connection that was asked last whether its server is there
}

// hear notes that the server answered on connection fl.
func (p *pulse) hear(fl *flow, now clock.Time, giveup time.Duration) {
	if now.Sub(p.lastHeard) > clock.Duration(giveup)/2 {
		p.awake = now
	}
	if p.lastFrom != fl {
		p.otherHeard, p.lastFrom = p.lastHeard, fl
	}
	p.lastHeard = now
}

// time adds the round trip of the answer at hand, on connection c, to the smoothed round trip of the server. A
// longer one counts as four usual round trips, because the server paused.
func (p *pulse) time(c *flow, now clock.Time) {
	if !c.timed {
		return
	}
	t := now.Sub(c.loaded)
	if p.trip == 0 {
		p.trip = t
	}
	p.trip += (min(t, 4*p.trip) - p.trip) / 8
}

// elsewhere returns the time when the server was last heard on another connection than c.
func (p *pulse) elsewhere(c *flow) clock.Time {
	if p.lastFrom == c {
		return p.otherHeard
	}
	return p.lastHeard
}

// overdue returns the time after which an answer is late, counted from the last answer on a connection or from the time
// when the connection began to carry operations.
func (p *pulse) overdue() clock.Duration { return max(4*p.trip, leastPatience) }

// excuse does not count the time away, in which the app did not run, as silence of the server.
func (p *pulse) excuse(away clock.Duration, now clock.Time) { p.awake = min(p.awake.Add(away), now) }
