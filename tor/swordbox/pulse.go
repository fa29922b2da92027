package swordbox

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// pulse is when the server was heard, over whichever connection, and how long it takes to answer:
// hear and time come with each response. So a server that pauses is told from a connection whose
// end is gone (elsewhere), and it is known when an answer is late (overdue).
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

// time takes the round trip that the answer at hand, on connection c, tells of, for all of the
// server's. One that was long counts as four usual ones: the server paused.
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

// elsewhere is when the server was heard last on another connection than c.
func (p *pulse) elsewhere(c *flow) clock.Time {
	if p.lastFrom == c {
		return p.otherHeard
	}
	return p.lastHeard
}

// overdue is how long after the last answer on a connection, or since it carries something, it is to be
// expected that no other one comes.
func (p *pulse) overdue() clock.Duration { return max(4*p.trip, leastPatience) }

// excuse takes the time that this app was away for none of the server's silence.
func (p *pulse) excuse(away clock.Duration, now clock.Time) { p.awake = min(p.awake.Add(away), now) }
