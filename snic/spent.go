package snic

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// The cost of a task for which nothing is declared is processor time. It is measured if the clock moves while a breath
// lasts: for one batch in every timedEvery packets that a task gets, and for each DAG.
const (
	timedEvery = 256
	// costs is the number of measurements, about, of which a cost is the mean.
	costs = 8
	// A measurement counts for at most leap times the mean, plus jump ns: a worker may lose the processor while it
	// measures.
	leap, jump = 4, 1000
	// sure is the number of measurements of a task of which the least is its cost, before the mean begins: the worker may lose the processor in
	// the first ones, too.
	sure = 4
	// stall is the most ns beyond that for which a tenant pays in its turn. When a worker loses the processor, it is usually for longer.
	stall = 1e6
	// overheadOf is the number of packets in one measurement of a worker's own work.
	overheadOf = 4096
	// lookEvery: of so many batches one is timed until the DAGs of its packets are known.
	lookEvery = 4
	// often is how many breaths there must be for each breath that leaves frames waiting; with fewer, time is short.
	often = 8
	// togetherFor is how long several tenants count as present after they were seen. If a tenant's frames are lost at the
	// port, only a few come to the board, and fewer the longer the frames of others take.
	togetherFor = rateEvery
	// leastTime is the least time for tasks in a second of a worker, in ns, whatever else it has to do.
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

// into adds a sample that has enough packets to a mean, and begins a new sample.
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
	if t.untimed += n; t.untimed < timedEvery && d.measured[i] >= sure && sh.spent.tenant == 0 {
		return false
	}
	t.untimed = 0
	return true
}

// took notes that n packets of a DAG took ns in its task i. The tenant whose turn it is pays the difference to the time that they were
// counted for.
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
	switch {
	case was == 0:
		*c = x
	case d.measured[i] < sure:
		*c = min(was, x)
	default:
		*c += (usual - was) / costs
	}
	d.measured[i] = min(d.measured[i]+1, sure)
	d.cost, d.unsure = 0, false
	for k, v := range d.costs {
		d.cost += v
		d.unsure = d.unsure || d.measured[k] < sure
	}
}

// untimed reports whether n packets that go several ways, two of which are x and y, may be one batch for a task. A batch that is
// timed must be of one DAG.
func (sh *shares) untimed(t *task, x, y way, n int) bool {
	return sh.spent.tenant == 0 && t.untimed+n < timedEvery && sh.costKnown(t, x.dag) && sh.costKnown(t, y.dag)
}

// costKnown reports whether there are enough measurements of what a packet of a DAG costs in a task.
func (sh *shares) costKnown(t *task, dag int32) bool {
	d := &sh.cat.services[dag]
	k := sh.place(d, t)
	return k < 0 || d.measured[k] >= sure
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

// unmeasured reports whether n packets may run through the tasks of a DAG together with packets of other DAGs: no task is to be timed
// now, because that needs packets of one DAG.
func (sh *shares) unmeasured(d *service, n int) bool {
	if sh.spent.clock == nil {
		return true
	}
	if sh.spent.tenant > 0 {
		return false
	}
	for i, t := range d.tasks {
		if sh.cat.tasks[t].untimed+n >= timedEvery || d.measured[i] < sure {
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

// known measures, now and then, how long it took to find the DAGs of a batch's packets. It uses the first batch of a breath, before any task
// ran.
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

// supply tells the division how much time a worker has for tasks: all but the work that every frame costs, whether it is refused or not.
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
