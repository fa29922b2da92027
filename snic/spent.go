package snic

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// Processor time is what a task costs for which nothing else is declared. It is measured where the clock moves while a
// breath lasts, for one batch of every timedEvery packets that a task gets, and of each DAG.
const (
	timedEvery = 256
	// costs is of about how many measurements a mean is.
	costs = 8
	// leap is how much more than its mean a packet counts for at most, and jump besides, in ns: a worker may lose
	// the processor while it is measured.
	leap, jump = 4, 1000
	// stall is how much more than that a tenant pays for at most in its turn, in ns: less than a processor is usually given to others for.
	stall = 1e6
	// overheadOf is of how many packets one measurement of a worker's own work is.
	overheadOf = 4096
	// lookEvery is of how many batches of some size one is timed until it is known whose its packets are.
	lookEvery = 4
	// often is how many breaths there are for each one that leaves frames waiting, at least, while all is well.
	often = 8
	// togetherFor is how long several tenants count as being there since the last time. Of a tenant whose frames are
	// lost at the port a few come to the board, if any, and more seldom the longer the others' take.
	togetherFor = rateEvery
	// leastTime is what there is of a second of a worker for tasks, whatever else it has to do, in ns.
	leastTime = 1e7
)

// spent is what is known of a worker's time.
type spent struct {
	clock clock.Clock // nil: time stands still in a breath, and is no resource
	at    clock.Time  // of the breath
	full  bool        // it began with all frames that fit a batch: more waited
	tasks float64     // ns of tasks in this breath
	got   int         // packets in it
	let   int         // packets that went on to tasks in it

	busy, work float64 // ns of breaths after which more waited, and of them those of tasks
	packets    int     // in them
	overhead   float64 // ns that a packet costs besides tasks

	look   float64    // ns that a packet costs until it is known whose it is
	looks  int        // batches since that was measured
	ran    clock.Time // the breath in which tasks ran before frames were looked at
	spare  sample     // of breaths after which more waited, and in which packets went on: what they took besides tasks and looking
	onward float64    // ns that a packet costs besides tasks and looking: what is spared, besides tasks, when it is refused

	breaths int        // ever
	fulls   int        // of them, after which more waited
	several clock.Time // until then several tenants count as being there
	last    int        // the number + 1 of the one whose frames came last; 0: none's
	arrived int        // packets since
	since   clock.Time

	tenant  int     // the number + 1 of the one whose turn it is; 0: none's
	counted float64 // what its frames were counted for, over what they are known to cost now
	beyond  float64 // ns that they took beyond what they were counted for
}

// sample is ns of a number of packets.
type sample struct {
	ns      float64
	packets int
}

// into adds a sample to a mean, when it has enough packets, and begins anew.
func (x *sample) into(mean *float64) {
	if x.packets < overheadOf/8 {
		return
	}
	ns := max(0, x.ns) / float64(x.packets)
	if *mean == 0 {
		*mean = ns
	}
	*mean += (ns - *mean) / costs
	*x = sample{}
}

// timed reports whether a batch of n packets of a DAG is to be timed in a task.
func (sh *shares) timed(t *task, d *service, i, n int) bool {
	if sh.spent.clock == nil {
		return false
	}
	if t.untimed += n; t.untimed < timedEvery && d.costs[i] > 0 && sh.spent.tenant == 0 {
		return false
	}
	t.untimed = 0
	return true
}

// took notes that n packets of a DAG were so long in its task i. Whose turn it is pays for the difference to what they were counted for.
func (sh *shares) took(d *service, i int, ns clock.Duration, n int) {
	x := max(1, float64(ns)) / float64(n)
	c, s := &d.costs[i], &sh.spent
	was, usual := *c, x
	s.tasks += float64(ns) - was*float64(n) // of what was counted when they were let in
	if was > 0 {
		usual = min(x, leap*was+jump)
	}
	if s.tenant == d.tenant+1 {
		s.beyond += max(usual*float64(n), min(x*float64(n), stall)) - was*float64(n)*s.counted
	}
	if was == 0 {
		*c = x
	} else {
		*c += (usual - was) / costs
	}
	d.cost = 0
	for _, v := range d.costs {
		d.cost += v
	}
}

// untimed reports whether a task may have n packets in one batch that go several ways, two of which are given: one that is to be
// timed has to be of one DAG.
func (sh *shares) untimed(t *task, x, y way, n int) bool {
	return sh.spent.tenant == 0 && t.untimed+n < timedEvery && sh.costKnown(t, x.dag) && sh.costKnown(t, y.dag)
}

// costKnown reports whether it has been measured what a packet of a DAG costs in a task.
func (sh *shares) costKnown(t *task, dag int32) bool {
	d := &sh.cat.services[dag]
	k := sh.place(d, t)
	return k < 0 || d.costs[k] > 0
}

// place is where a task is in a DAG; -1: it is not there, or nobody asks as nothing is timed.
func (sh *shares) place(d *service, t *task) int {
	if sh.spent.clock != nil {
		for i, n := range d.tasks {
			if &sh.cat.tasks[n] == t {
				return i
			}
		}
	}
	return -1
}

// unmeasured reports whether n packets may run through the tasks of a DAG together with those of others: none of the tasks is to be
// timed then, which is done with packets of one DAG.
func (sh *shares) unmeasured(d *service, n int) bool {
	if sh.spent.clock == nil {
		return true
	}
	if sh.spent.tenant > 0 {
		return false
	}
	for i, t := range d.tasks {
		if sh.cat.tasks[t].untimed+n >= timedEvery || d.costs[i] == 0 {
			return false
		}
	}
	return true
}

// breathe notes that frames have come.
func (sh *shares) breathe(now clock.Time, frames int) {
	sh.begin(now)
	s := &sh.spent
	s.full = s.full || frames == packet.MaxBatch
	s.got += frames
	s.arrived += frames
}

// begin begins a breath, if it has not begun: what the breath before took besides tasks is noted, if more waited after it.
func (sh *shares) begin(now clock.Time) {
	s := &sh.spent
	if now == s.at {
		return
	}
	s.breaths++
	if s.full {
		s.fulls++
		took := float64(now.Sub(s.at))
		s.busy += took
		s.work += s.tasks
		if s.packets += s.got; s.packets >= overheadOf {
			x := max(0, s.busy-s.work) / float64(s.packets)
			if s.overhead == 0 {
				s.overhead = x
			}
			s.overhead += (x - s.overhead) / costs
			s.busy, s.work, s.packets = 0, 0, 0
		}
		if s.let > 0 && s.look > 0 {
			x := took - s.tasks - s.look*float64(s.got)
			if s.onward > 0 { // the processor may have been away
				x = min(x, (leap*s.onward+jump)*float64(s.let))
			}
			s.spare.ns += x
			s.spare.packets += s.let
			s.spare.into(&s.onward)
		} else if s.let == 0 && s.got > 0 {
			s.looked(took / float64(s.got))
		}
	}
	s.at, s.full, s.tasks, s.got, s.let = now, false, 0, 0, 0
}

// looked notes what it took to look at a packet. A worker may lose the processor meanwhile: so the mean falls faster than it rises, and begins with no
// more than jump.
func (s *spent) looked(ns float64) {
	ns = max(1, ns)
	switch {
	case s.look == 0:
		s.look = min(ns, jump)
	case ns < s.look:
		s.look += (ns - s.look) / costs
	default:
		s.look += (min(ns, leap*s.look+jump) - s.look) / (costs * costs)
	}
}

// known measures now and then how long it took until it is known whose the packets of a batch are: of one that came first in a breath, before
// anything ran.
func (sh *shares) known(now clock.Time, n int) {
	s := &sh.spent
	if s.clock == nil || n < packet.MaxBatch/4 || s.got != n || s.ran == now {
		return
	}
	if s.looks++; s.looks >= lookEvery || s.look == 0 {
		s.looks = 0
		s.looked(float64(s.clock.Now().Sub(now)) / float64(n))
	}
}

// supply tells how much time of a worker there is for tasks: all but what it has to do for what comes, whatever becomes of it.
func (sh *shares) supply(now clock.Time) {
	s := &sh.spent
	d := now.Sub(s.since)
	if sh.scarce.processor < 0 || d < sh.monitor/samples {
		return
	}
	time := 1e9 - s.overhead*float64(s.arrived)/d.Seconds()
	_ = sh.fair.SetCapacity(int(sh.scarce.processor), max(leastTime, time)) // it is there
	s.arrived, s.since = 0, now
}

// costOf is what a packet takes of a worker's time in a task, in ns: a mean of the DAGs that have it, by what
// they were sent of late. A region's share of a worker will be this, too.
func (cat *catalog) costOf(n int) float64 {
	ns, of := 0., 0.
	for i := range cat.services {
		d := &cat.services[i]
		if k := slices.Index(d.tasks, n); d.UID != 0 && k >= 0 && d.costs[k] > 0 {
			w := float64(cat.lately(d) + 1)
			ns, of = ns+w*d.costs[k], of+w
		}
	}
	if of == 0 {
		return 0
	}
	return ns / of
}
