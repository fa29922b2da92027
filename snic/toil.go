package snic

import (
	"math"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/region"
)

// toil is the demand for a worker's time, by the measured costs of tasks. All regions of a worker share that time: another region
// does not help, but another worker or a peer does.
type toil struct {
	asked, frames float64 // since the last sample, let in or not: ns of tasks, and frames
	breaths       [2]int  // at the last sample: how many there were, and after how many of them more frames waited
	load          float64 // a mean over about a monitor period; 1: all of the time
	watch         region.Watch
	askAgain      clock.Time // helpers are not asked again before
}

// toils adds the frames that came for a DAG in an epoch to the demand.
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

// toiled ends a sample of a worker's time. The time is too little if more was asked for than there is. It is also too little, by an unknown
// amount, while frames wait at the ports, and while senders are held back and most of the time is used.
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

// toilsMuch is how much less work a worker would have without a DAG, in ns in about the last monitor period. It is 0 for a DAG whose
// frames take no more time than sending them elsewhere would.
func (pl *placement) toilsMuch(n int) float64 {
	s := &pl.cat.services[n]
	if s.UID == 0 || s.elsewhere() || s.cost <= pl.split.spent.overhead {
		return 0
	}
	return s.toil
}

// toilHere is the part of a worker's time that a DAG which is at a peer would take here, by the costs of its tasks when they ran here.
func (cat *catalog) toilHere(s *service) float64 {
	if s.bytes+s.lodge.bytes == 0 {
		return 0
	}
	return s.load() * float64(s.packets+s.lodge.frames) / float64(s.bytes+s.lodge.bytes) * s.cost / 1e9
}

// busy reports whether the worker has no time for more.
func (pl *placement) busy() bool {
	return pl.split.spent.clock != nil && pl.toil.load >= region.Under
}

// fade is the factor by which a mean over about a monitor period falls in a time in which nothing comes.
func (cat *catalog) fade(d clock.Duration) float64 {
	period := float64(cat.monitor)
	return period / (period + math.Max(0, float64(d)))
}
