package snic

import (
	"math"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/region"
)

// toil is how much of a worker's own time is asked for, by what tasks were measured to cost. All regions of a worker share that
// time: one more of them helps nobody, but another worker or a peer does.
type toil struct {
	asked, frames float64 // since the last sample, let in or not: ns of tasks, and frames
	breaths       [2]int  // at the last sample: how many there were, and after how many of them more frames waited
	load          float64 // a mean over about a monitor period; 1: all of the time
	watch         region.Watch
	askAgain      clock.Time // nobody is asked for help before
}

// toils notes what came of a DAG in an epoch.
func (pl *placement) toils(s *service, fade float64) {
	frames := float64(s.packets-s.reckoned) + float64(s.lodge.came)/stands
	s.reckoned, s.lodge.came = s.packets, 0
	s.toil *= fade
	if s.where.to != 0 {
		return
	}
	ns := frames * s.cost
	s.toil += ns
	pl.toil.asked += ns
	pl.toil.frames += frames
}

// toiled ends a sample of a worker's time. It is too little where more was asked for than there is, and where nobody knows how
// much more would be: while frames wait at the ports, and while senders are held back and most of it is used.
func (pl *placement) toiled(now clock.Time, d clock.Duration) {
	t, s := &pl.toil, &pl.split.spent
	if s.clock == nil || d <= 0 {
		return
	}
	dt := float64(d)
	work := t.asked + s.overhead*t.frames
	t.load += (work/dt - t.load) * min(1, dt/float64(pl.monitor))
	waited := often*(s.fulls-t.breaths[1]) > s.breaths-t.breaths[0]
	t.asked, t.frames, t.breaths = 0, 0, [2]int{s.breaths, s.fulls}
	if waited || t.load >= region.Under && pl.gates.anyAskedToSlow() {
		work = max(work, dt) + dt
	}
	if pl.fabric.Judge(now, &t.watch, work, 1, dt) && now >= t.askAgain {
		t.askAgain = now.Add(pl.monitor)
		pl.near.relieve(now, pl.toilsMuch)
	}
}

// toilsMuch is how much less a worker would have to do without a DAG, in ns of about the last monitor period. One whose frames take no
// more than it takes to send them elsewhere does not count.
func (pl *placement) toilsMuch(n int) float64 {
	s := &pl.cat.services[n]
	if s.UID == 0 || s.elsewhere() || s.cost <= pl.split.spent.overhead {
		return 0
	}
	return s.toil
}

// toilHere is which part of a worker's time a DAG would take that is at a peer, by what its tasks cost when they ran here.
func (cat *catalog) toilHere(s *service) float64 {
	if s.bytes+s.lodge.bytes == 0 {
		return 0
	}
	return s.load() * float64(s.packets+s.lodge.frames) / float64(s.bytes+s.lodge.bytes) * s.cost / 1e9
}

// busy reports that a worker has no time for more.
func (pl *placement) busy() bool {
	return pl.split.spent.clock != nil && pl.toil.load >= region.Under
}

// fade is what is left of a mean over about a monitor period after some time without anything.
func (cat *catalog) fade(d clock.Duration) float64 {
	period := float64(cat.monitor)
	return period / (period + math.Max(0, float64(d)))
}
