package snic

import (
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
	// modelled: the task takes a declared time, not the time of its code here.
	modelled bool
	// holds: the task may keep packets.
	holds bool
	// quiet: the task makes no packets of its own. Its function declares that.
	quiet bool
	// looks: the task only looks at packets, or drops them, and keeps none. It needs no copy when others run beside it: it does not
	// look at what they write.
	looks bool
	// halted: a fault has stopped the task. app is nil once it has given up the packets that it held.
	halted  bool
	fault   string
	lent    bool // its state may belong to a peer's DAG
	fresh   *renewal
	oneFlow oneFlow // a single flow that is too much for an instance
	untimed int     // packets since the last one that was timed
	space   *space  // of the board's memory; nil: it has none
	// way is the way of the last packet that came to the task: packets that the task
	// makes by itself go the same way.
	way way
}

// way is where a packet goes: through a DAG, forward or back, and out by a port.
type way struct {
	dag  int32
	back bool
	out  uint16 // port; from ports on: a port of a peer, of number out/16-1
	term uint16 // tells apart DAGs that had the same number, one after the other
}

// chain is a bitstream.
type chain struct {
	dag.Chain
	tasks   []int   // numbers
	running []int   // regions that have it and take packets
	known   bool    // the fabric knows the chain
	rests   bool    // the chain is gone, but packets may be on their way to it
	ends    bool    // it is no longer deployed
	asked   bool    // a launch is under way, or waiting
	load    []int64 // for each task, the work of the DAGs that go through the chain, in ns of an instance
}

// service is a DAG that is deployed. Each part belongs to one owner, which alone writes it unless a field says otherwise.
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
	best   []sched.Visit // the fewest visits, whatever is in the regions; nil: there are none
	term   uint16        // DAGs that have had the number; it wraps
}

// routed is how placement has a DAG go through regions.
type routed struct {
	visits  []sched.Visit // the plan, in forward direction; nil: none
	spread  sched.Spread
	bulk    bool       // packets run to the end at once
	width   int        // the most branches of a stage, side by side; 0: one after the other
	copies  int        // how many copies a packet may need at a time
	twin    bool       // the DAG also has routes in line
	split   bool       // the DAG also has routes for flows that go aside
	aside   *aside     // flows that go another way than visits; nil: none does
	missing bool       // a chain of the plan is in no region
	refused bool       // the DAG cannot be launched
	away    bool       // endpoints do the work of the DAG
	again   clock.Time // when to ask again, after it was refused
	byFlow  bool       // the load of each flow is measured
	perByte []float32  // for each visit, ns of an instance that a byte takes; 0: no limit
}

// inflow is how much is sent to a DAG: ingress counts it, and at the end of an epoch placement computes the means.
type inflow struct {
	arrived  int64   // bytes in this epoch, before any was refused
	listed   bool    // in placement.active
	rate     float64 // bytes a second, of late
	counted  uint64  // bytes when rate was measured last
	recent   float64 // bytes in about the last monitor period
	toil     float64 // ns of the worker's time that these bytes take
	recentAt clock.Time
	reckoned uint64 // packets when toil was computed last
}

// price is what the runner has measured: the time that packets of a DAG take.
type price struct {
	stay     float64   // ns that a packet stays in the packet store, a recent mean
	costs    []float64 // for each task, ns of a worker that a packet takes; 0: not yet known
	cost     float64   // the sum of costs
	measured []uint8   // for each task, how often its cost was measured, at most sure
	unsure   bool      // of some task there are fewer than sure measurements
}

// roaming is what nearby knows of a DAG: where the DAG runs, and for whom. Ingress counts the frames that other workers hand over
// and that peers send.
type roaming struct {
	where  whereabouts
	wish   wish
	hosted hosting
	lodge  lodge
}

// usage is what ingress has counted of a DAG since its deployment.
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

// become gives the task another app.
func (t *task) become(in *graph.Inside, app graph.App) {
	t.in, t.app, t.next = in, app, 0
	t.halted, t.fault = false, ""
	_, t.holds = app.(graph.Holder)
	if _, ok := app.(graph.Ticker); !ok {
		t.next = clock.Never
	}
}

// free reports whether the number n of a task can be used again: no task has it, and
// no chain in which packets may still be on their way to a task of that number.
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

// candidates are the chains that a DAG may use: those that take packets now or soon,
// or with all every chain.
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
	known := map[*[][]int][]sched.Visit{} // DAGs of the same order share their stages
	for i := range cat.services {
		s := &cat.services[i]
		if s.UID == 0 {
			s.best = nil
			continue
		}
		key := &s.stages[0]
		best, ok := known[key]
		if !ok {
			best = cover(s.tasks, all)
			known[key] = best
		}
		s.best = best
	}
}

// masked translates a mask of tasks of one chain into the mask of the same tasks in
// another chain.
func (cat *catalog) masked(tasks []int, mask uint16, in int) uint16 {
	var m uint16
	for i, t := range tasks {
		if mask&(1<<i) != 0 {
			m |= 1 << slices.Index(cat.chains[in].tasks, t)
		}
	}
	return m
}

// instead says where tasks of a chain run now, or soon, for packets of a route: it finds the chain of the first of these tasks, and
// which of the tasks behind it are in the same visit of the DAG.
func (cat *catalog) instead(route, chain int, mask uint16) (other int, tasks, done uint16) {
	from := cat.chains[chain].tasks
	s := &cat.services[route%inLine/2]
	for _, v := range s.through() {
		if s.elsewhere() && len(cat.chains[v.Chain].running) == 0 {
			continue // this task is not launched here any more
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

// lately is how many bytes came for a DAG in about the last monitor period: a mean in which
// older bytes count less.
func (cat *catalog) lately(s *service) int64 {
	return int64(s.recent * cat.fade(cat.seen.Sub(s.recentAt)))
}

// work is how long an instance of a task takes for so many bytes, in ns. A task without a limit takes
// as long as the published board's data path: 64 bytes in a cycle of 250 MHz, 128 Gb/s.
func (t *task) work(bytes int64) int64 {
	rate := int64(128e9)
	if t.Throughput > 0 {
		rate = t.Throughput
	}
	return int64(float64(bytes) * 8e9 / float64(rate))
}

// weighAll computes the load of all chains anew.
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

// mainly is a DAG's recent bytes, without those that go aside.
func (cat *catalog) mainly(s *service) int64 { return cat.lately(s) - cat.asides(s) }

// weigh adds the recent bytes of DAG n to the load of the chains of visits, or with sign -1 takes them away. Bytes that go aside are not
// counted here.
func (cat *catalog) weigh(n int, visits []sched.Visit, sign int64) {
	if s := &cat.services[n]; !s.elsewhere() {
		cat.load(visits, sign*(cat.mainly(s)+1))
	}
}

// load adds bytes to the load of the chains of visits.
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

// cost is the load of an instance of a chain for its task i if so many more bytes went there.
func (cat *catalog) cost(bytes int64, chain, i int) int64 {
	ch := &cat.chains[chain]
	return (ch.load[i] + cat.tasks[ch.tasks[i]].work(bytes)) / int64(max(len(ch.running), 1))
}

// cheapest is the cheapest plan of a DAG through candidates. Their load does not contain the DAG.
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

// dear is the cost of a plan of a DAG: the sum, over the visits, of the cost of the most expensive task.
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

// carried calls f with each chain in which a DAG's task runs here, and the recent bytes that go there.
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

// has reports whether a visit includes a task.
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

// lay returns the way of a DAG through visits, forward and back, in stages whose branches run side by side if
// they should, and the largest number of branches of a stage; 0: no stage has several. It notes how many copies a packet may need.
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

// laid is a DAG's stages as they run: stages whose branches run one after the other are
// joined, with their neighbours of the same sort, to one branch.
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

// visits selects from all, the visits of a whole DAG, those in which tasks run, in their
// order; and the visits back, one for each task.
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
