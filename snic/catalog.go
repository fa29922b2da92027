package snic

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/sched"
)

// task is a network task that is deployed.
type task struct {
	dag.Task
	in   *graph.Inside
	app  graph.App
	next clock.Time // of its timer
	// modelled: it takes a time on the board that is not that of its code here.
	modelled bool
	// holds: it may keep packets.
	holds bool
	// quiet: it makes no packets of its own, as its function says, too.
	quiet bool
	// looks: it does no more to packets than look at them, or drop them, and does so at once. Then it needs no copy where
	// others run beside it: what these write it does not look at.
	looks bool
	// halted: a fault has stopped it; app is nil as soon as it has given up what it held.
	halted  bool
	fault   string
	lent    bool // what it knows may be of a peer's DAG
	fresh   *renewal
	oneFlow oneFlow // a flow that is too much for an instance
	untimed int     // packets since one was timed
	space   *space  // of the board's memory; nil: it has none
	// way is that of the last packet that came to it: what it makes by itself goes
	// the same.
	way way
}

// way is where a packet goes: through a DAG, forward or back, and out by a port.
type way struct {
	dag  int32
	back bool
	out  uint16 // port; from ports on: a port of a peer, of number out/16-1
	term uint16 // of the number of the DAG
}

// chain is a bitstream.
type chain struct {
	dag.Chain
	tasks   []int   // numbers
	running []int   // regions that have it and take packets
	known   bool    // to the fabric
	rests   bool    // it is gone, but packets may be on their way to it
	ends    bool    // it is no longer deployed
	asked   bool    // a launch is under way, or waits
	load    []int64 // of each task by the DAGs that go through it, in ns of an instance
}

// service is a DAG that is deployed: what each owner knows of it, which that owner alone writes, but where a field says otherwise.
type service struct {
	deployed
	routed
	inflow
	price
	roaming
	usage
}

// deployed is what the catalog knows of a DAG: what a deployment says, and what follows from that.
type deployed struct {
	dag.DAG
	tenant int
	tasks  []int         // in one of the orders that are right
	stages [][][]int     // the same in stages of branches that may run side by side
	best   []sched.Visit // the fewest, whatever is in the regions; nil: there are none
	term   uint16        // DAGs that have had the number; it wraps
}

// routed is how placement has a DAG go through regions.
type routed struct {
	visits  []sched.Visit // the plan: forward; nil: none
	spread  sched.Spread
	bulk    bool       // packets run to the end at once
	width   int        // the most branches of a stage, side by side; 0: one after the other
	copies  int        // as many copies as such a packet may need at a time
	twin    bool       // it has routes in line, too
	split   bool       // it has routes of flows that go aside, too
	aside   *aside     // flows that go another way than visits; nil: none does
	missing bool       // a chain of the plan is in no region
	refused bool       // it cannot be launched
	away    bool       // endpoints do the work
	again   clock.Time // when to ask again, after it was refused
	byFlow  bool       // what its flows bring is measured one by one
	perByte []float32  // ns of an instance that a byte takes, of each visit; 0: no limit
}

// inflow is how much is sent to a DAG: ingress counts in an epoch, at whose end placement takes means.
type inflow struct {
	arrived  int64   // bytes in this epoch, before any was refused
	listed   bool    // in placement.active
	rate     float64 // bytes a second, of late
	counted  uint64  // bytes when it was measured
	recent   float64 // bytes of about the last monitor period
	toil     float64 // ns of the worker that these take
	recentAt clock.Time
	reckoned uint64 // packets when that was
}

// price is what the runner has measured of packets of a DAG.
type price struct {
	stay  float64   // ns that one is in the packet store, of late
	costs []float64 // ns of a worker that one takes in each task; 0: not yet known
	cost  float64   // together
}

// roaming is what nearby knows of a DAG: where it runs, and for whom. Ingress counts what other workers hand over, and peers send.
type roaming struct {
	where  whereabouts
	wish   wish
	hosted hosting
	lodge  lodge
}

// usage is what ingress has counted of a DAG, ever.
type usage struct {
	packets, bytes,
	throttled uint64
}

// catalog is what is deployed, by number, and what follows from that alone: it decides nothing, and touches no frame.
// It has many methods, as each is a question of a few lines that several owners ask; parts of it would have to know all of it.
type catalog struct {
	*settings
	tasks    []task
	chains   []chain
	services []service
	tenants  []string // "": none
	numbers  numbering
	taskOf   []int // numbers of the deployment's tasks
	dagOf    []int // and of its DAGs
	worker   int
	house    *house     // what the boards of all workers share; nil: there is one
	placed   []int32    // of each region, the chain that runs or drains there; -1: none
	seen     clock.Time // the last breath
}

// tenantNumbers are those of the tenants that there are.
func (cat *catalog) tenantNumbers() map[string]int {
	out := make(map[string]int, len(cat.tenants))
	for n, name := range cat.tenants {
		if name != "" {
			out[name] = n
		}
	}
	return out
}

// become makes an app the task's.
func (t *task) become(in *graph.Inside, app graph.App) {
	t.in, t.app, t.next = in, app, 0
	t.halted, t.fault = false, ""
	_, t.holds = app.(graph.Holder)
	if _, ok := app.(graph.Ticker); !ok {
		t.next = clock.Never
	}
}

// free reports that nobody has a number of tasks: no task, and no chain, in which
// packets may still be on their way to the task that was there.
func (cat *catalog) free(n int) bool {
	return cat.tasks[n].in == nil && !slices.ContainsFunc(cat.chains, func(ch chain) bool { return slices.Contains(ch.tasks, n) })
}

// credits are those of the tasks of a chain.
func (cat *catalog) credits(chain int) []int {
	var out []int
	for _, t := range cat.chains[chain].tasks {
		k := max(cat.tasks[t].Credits, 1) // none: it is no longer deployed
		if !cat.tasks[t].modelled {
			k = max(k, batchCredits)
		}
		out = append(out, k)
	}
	return out
}

// is reports whether a chain has these tasks of the deployment.
func (ch *chain) is(tasks []dag.TaskID, numbers []int) bool {
	return slices.EqualFunc(ch.tasks, tasks, func(n int, t dag.TaskID) bool { return n == numbers[t] })
}

// candidates are chains that a DAG may use now: those that take packets or soon
// will, or all.
func (cat *catalog) candidates(all bool) []dag.Candidate {
	var out []dag.Candidate
	for i := range cat.chains {
		ch := &cat.chains[i]
		if !ch.known || ch.ends || !all && len(ch.running) == 0 && !ch.asked {
			continue
		}
		x := cat.candidate(i)
		if all {
			x.Cost = int64(len(ch.tasks))
		}
		for i, v := range ch.load {
			if !all {
				x.Each[i] = v / int64(max(len(ch.running), 1))
			}
		}
		out = append(out, x)
	}
	return out
}

// candidate is a chain as one, without a cost.
func (cat *catalog) candidate(chain int) dag.Candidate {
	x := dag.Candidate{Chain: dag.ChainID(chain), Each: make([]int64, len(cat.chains[chain].tasks))}
	for _, t := range cat.chains[chain].tasks {
		x.Tasks = append(x.Tasks, dag.TaskID(t))
	}
	return x
}

// bestCovers finds for every DAG the fewest visits, whatever is in the regions. DAGs
// of the same tasks share them.
func (cat *catalog) bestCovers() {
	all := cat.candidates(true)
	known := map[string][]sched.Visit{}
	for i := range cat.services {
		s := &cat.services[i]
		if s.UID == 0 {
			s.best = nil
			continue
		}
		key := fmt.Sprint(s.tasks)
		best, ok := known[key]
		if !ok {
			best = cover(s.tasks, all)
			known[key] = best
		}
		s.best = best
	}
}

// masked is a mask of some tasks of a chain as one of another chain that has
// them, too.
func (cat *catalog) masked(tasks []int, mask uint16, in int) uint16 {
	var m uint16
	for i, t := range tasks {
		if mask&(1<<i) != 0 {
			m |= 1 << slices.Index(cat.chains[in].tasks, t)
		}
	}
	return m
}

// instead is where tasks of a chain run now, or will, for packets of a route: the first of them, and those behind it in the same visit of its
// DAG.
func (cat *catalog) instead(route, chain int, mask uint16) (other int, tasks, done uint16) {
	from := cat.chains[chain].tasks
	s := &cat.services[route%inLine/2]
	for _, v := range s.through() {
		if s.elsewhere() && len(cat.chains[v.Chain].running) == 0 {
			continue // it is not launched here any more
		}
		to, last := cat.chains[v.Chain].tasks, -1
		for i, t := range from {
			if mask&(1<<i) == 0 {
				continue
			}
			k := slices.Index(to, t)
			if k <= last || v.Mask&(1<<k) == 0 {
				break
			}
			last = k
			tasks, done = tasks|1<<k, done|1<<i
		}
		if done != 0 {
			return v.Chain, tasks, done
		}
	}
	return 0, 0, 0
}

// uses reports whether a DAG goes through a chain.
func (cat *catalog) uses(n, chain int) bool {
	return cat.services[n].UID != 0 && slices.ContainsFunc(cat.services[n].through(), func(v sched.Visit) bool { return v.Chain == chain })
}

// lately is how many bytes a DAG was sent in about the last monitor period: a mean in which
// what is longer ago counts less.
func (cat *catalog) lately(s *service) int64 {
	return int64(s.recent * cat.fade(cat.seen.Sub(s.recentAt)))
}

// work is how long an instance of a task takes for so many bytes, in ns; of one that takes all that
// comes, as long as the published board's data path: 64 bytes in a cycle of 250 MHz, 128 Gb/s.
func (t *task) work(bytes int64) int64 {
	rate := int64(128e9)
	if t.Throughput > 0 {
		rate = t.Throughput
	}
	return int64(float64(bytes) * 8e9 / float64(rate))
}

// weighAll puts on all chains what goes through them.
func (cat *catalog) weighAll() {
	for i := range cat.chains {
		ch := &cat.chains[i]
		ch.load = slices.Grow(ch.load[:0], len(ch.tasks))[:len(ch.tasks)]
		clear(ch.load)
	}
	for n := range cat.services {
		s := &cat.services[n]
		cat.weigh(n, s.visits, 1)
		if s.aside != nil && !s.elsewhere() {
			cat.load(s.aside.visits, cat.asides(s))
		}
	}
}

// mainly is how many bytes a DAG was sent of late, without those that go aside.
func (cat *catalog) mainly(s *service) int64 { return cat.lately(s) - cat.asides(s) }

// weigh puts what DAG n was sent of late on the chains of visits, or with -1 takes it away; without what goes aside, which stays where it is.
func (cat *catalog) weigh(n int, visits []sched.Visit, sign int64) {
	if s := &cat.services[n]; !s.elsewhere() {
		cat.load(visits, sign*(cat.mainly(s)+1))
	}
}

// load puts bytes on the chains of visits.
func (cat *catalog) load(visits []sched.Visit, bytes int64) {
	for _, v := range visits {
		ch := &cat.chains[v.Chain]
		for i, t := range ch.tasks {
			if v.Mask&(1<<i) != 0 {
				ch.load[i] += cat.tasks[t].work(bytes)
			}
		}
	}
}

// cost is what an instance of a chain would have to do for its task i if so many bytes more went there.
func (cat *catalog) cost(bytes int64, chain, i int) int64 {
	ch := &cat.chains[chain]
	return (ch.load[i] + cat.tasks[ch.tasks[i]].work(bytes)) / int64(max(len(ch.running), 1))
}

// cheapest is the plan through candidates of a DAG that is not among their load.
func (cat *catalog) cheapest(n int, candidates []dag.Candidate) []sched.Visit {
	s := &cat.services[n]
	bytes := cat.mainly(s) + 1
	for _, c := range candidates {
		for i := range c.Each {
			c.Each[i] = cat.cost(bytes, int(c.Chain), i)
		}
	}
	return cover(s.tasks, candidates)
}

// dear is the cost of a plan of such a DAG: of the dearest task of each visit, together.
func (cat *catalog) dear(n int, visits []sched.Visit) (sum int64) {
	bytes := cat.mainly(&cat.services[n]) + 1
	for _, v := range visits {
		most := int64(0)
		for m := v.Mask; m != 0; m &= m - 1 {
			most = max(most, cat.cost(bytes, v.Chain, bits.TrailingZeros16(m)))
		}
		sum += most
	}
	return sum
}

// carried calls f with the chain in which a DAG has a task run here, and its bytes of late.
func (cat *catalog) carried(n, task int, f func(chain int, bytes int64)) {
	s := &cat.services[n]
	if s.UID == 0 || s.elsewhere() {
		return
	}
	for _, v := range s.visits {
		if cat.has(v, task) {
			f(v.Chain, cat.mainly(s))
		}
	}
	if s.aside == nil {
		return
	}
	for _, v := range s.aside.visits {
		if cat.has(v, task) {
			f(v.Chain, cat.asides(s))
		}
	}
}

// has reports whether a task runs in a visit.
func (cat *catalog) has(v sched.Visit, task int) bool {
	i := slices.Index(cat.chains[v.Chain].tasks, task)
	return i >= 0 && v.Mask&(1<<i) != 0
}

// names are those of tasks, with arrows between.
func (cat *catalog) names(tasks []int) string {
	var out []string
	for _, t := range tasks {
		out = append(out, cat.tasks[t].Name)
	}
	return strings.Join(out, " -> ")
}

// lay is the way of a DAG through visits, in stages whose branches run side by side where
// that is to be, and the most branches of a stage; 0: no stage has several. It notes how many copies a packet may need.
func (cat *catalog) lay(s *service, visits []sched.Visit) (there, back [][][]sched.Visit, width int) {
	s.copies = 0
	for _, stage := range cat.laid(s) {
		if len(stage) > 1 {
			width = max(width, len(stage))
			if slices.ContainsFunc(slices.Concat(stage...), func(t int) bool { return !cat.tasks[t].looks }) {
				s.copies = max(s.copies, len(stage))
			}
		}
		var on, off [][]sched.Visit
		for _, tasks := range stage {
			to, from := cat.visits(tasks, visits)
			on, off = append(on, to), append(off, from)
		}
		there = append(there, on)
		back = append(back, off)
	}
	slices.Reverse(back)
	return there, back, width
}

// laid is a DAG's stages as they run: those whose branches run one after the other are
// one branch, with what is like that before and behind.
func (cat *catalog) laid(s *service) (out [][][]int) {
	place := func(x, y int) int { return slices.Index(s.tasks, x) - slices.Index(s.tasks, y) }
	for _, stage := range s.stages {
		if cat.beside(stage) {
			out = append(out, stage)
			continue
		}
		line := slices.Concat(stage...)
		slices.SortFunc(line, place)
		if last := len(out) - 1; last >= 0 && len(out[last]) == 1 {
			out[last] = [][]int{slices.Concat(out[last][0], line)}
		} else {
			out = append(out, [][]int{line})
		}
	}
	return out
}

// beside reports whether the branches of a stage run side by side.
func (cat *catalog) beside(stage [][]int) bool {
	modelled := 0
	for _, tasks := range stage {
		if slices.ContainsFunc(tasks, func(t int) bool { return cat.tasks[t].modelled }) {
			modelled++
		}
	}
	return len(stage) > 1 && (cat.parallel == parallelOn || cat.parallel == parallelAuto && modelled > 1)
}

// visits are those in which tasks run, in their order, of visits in which all tasks of
// a DAG do; and those back, each for one task.
func (cat *catalog) visits(tasks []int, all []sched.Visit) (there, back []sched.Visit) {
	last := -1
	for _, t := range tasks {
		at, bit := -1, uint16(0)
		for k, v := range all {
			if i := slices.Index(cat.chains[v.Chain].tasks, t); i >= 0 && v.Mask&(1<<i) != 0 {
				at, bit = k, 1<<i
			}
		}
		if at != last {
			there = append(there, sched.Visit{Chain: all[at].Chain})
			last = at
		}
		there[len(there)-1].Mask |= bit
		back = append(back, sched.Visit{Chain: all[at].Chain, Mask: bit})
	}
	slices.Reverse(back)
	return there, back
}

// stagesText is stages in words: branches in braces.
func (cat *catalog) stagesText(s *service) (out [][]string) {
	for _, stage := range cat.laid(s) {
		var names []string
		for _, tasks := range stage {
			names = append(names, cat.names(tasks))
		}
		out = append(out, names)
	}
	return out
}
