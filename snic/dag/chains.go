package dag

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/effect"
)

// ChainID is a chain's index in what Chains returned.
type ChainID int

const (
	// MaxChain is the largest number of tasks in a chain: a Mask has a bit for each task.
	MaxChain = 16
	// DefaultChains is the limit of Chains unless its caller gives one. In the source a bitstream
	// that fills a region has 4 MB, so that 2500 of them fill the 10 GB of its board.
	DefaultChains = 4096
)

// Chain is a sequence of tasks that a region is loaded with: a bitstream.
type Chain struct {
	Tasks      []TaskID
	Area       int
	Bitstream  int64          // bytes: of a region, unless all of its tasks say what theirs are
	Throughput int64          // bits a second of its slowest task; 0: not limited
	Latency    clock.Duration // of all its tasks
	State      bool           // one of its tasks remembers packets
	Remote     bool           // all of its tasks may run on another board
	Endpoint   bool           // the endpoint can do the work of all of its tasks
}

// ChainOf returns the Chain of a sequence of tasks, with the sums and limits that follow from them.
func (d *Deployment) ChainOf(tasks ...TaskID) Chain {
	c := Chain{Tasks: tasks, Remote: true, Endpoint: true}
	declared := true
	for _, id := range tasks {
		t := &d.Tasks[id]
		c.Area += t.Area
		c.Bitstream += t.Bitstream
		declared = declared && t.Bitstream > 0
		c.Latency += t.Latency
		if t.Throughput > 0 && (c.Throughput == 0 || t.Throughput < c.Throughput) {
			c.Throughput = t.Throughput
		}
		c.State = c.State || t.State
		c.Remote = c.Remote && t.Remote
		c.Endpoint = c.Endpoint && t.Endpoint
	}
	if !declared {
		c.Bitstream = d.Regions.Bitstream
	}
	return c
}

// Chains returns the chains that a region may be loaded with: one for every set of tasks of a
// DAG that fits, in an order that all DAGs accept. If the orders of DAGs contradict each other,
// there is one chain for each DAG that has the whole set. The tasks of each branch of a DAG's
// stages are a chain in that order if they fit a region. Chains are sorted by length, and those
// of equal length by their tasks.
//
// If there would be more than most chains (0: DefaultChains), Chains leaves out sets whose tasks are
// not next to each other in a DAG: in its tasks one after the other (Stages of width 1), or in a
// branch of its stages. If there are still more than most, Chains returns an error. With most 0
// the chains are made once and shared: callers must not change them.
func (d *Deployment) Chains(most int) ([]Chain, error) {
	if c := d.chains; most <= 0 && c != nil {
		c.Do(func() { c.all, c.err = d.makeChains(DefaultChains) })
		return c.all, c.err
	}
	if most <= 0 {
		most = DefaultChains
	}
	return d.makeChains(most)
}

// makeChains makes the chains, without a look at those that Chains has kept.
func (d *Deployment) makeChains(most int) ([]Chain, error) {
	e := d.enumerate()
	unnamed := len(e.found)
	if !e.from(0, d.Regions.Area, most) || len(e.found) > most {
		e.found, e.set = e.found[:unnamed], e.set[:0]
		if !e.runs(most) {
			return nil, e.tooMany(most)
		}
	}
	slices.SortFunc(e.found, func(a, b []TaskID) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), slices.Compare(a, b))
	})
	chains := make([]Chain, len(e.found))
	for i, tasks := range e.found {
		chains[i] = d.ChainOf(tasks...)
	}
	return chains, nil
}

// enumeration goes through all sets of tasks of a DAG that fit a region.
type enumeration struct {
	d      *Deployment
	used   []TaskID // those that DAGs name, by rank
	order  [][]bool // order[a][b]: a DAG wants a before b, and they are not independent
	orders []dagOrder
	differ []DAGID    // of each of orders the first DAG that wants it
	in     [][]uint64 // in[t] has bit i: orders[i] has t
	set    []TaskID
	found  [][]TaskID
}

// dagOrder holds, by TaskID, the place of each task in a DAG's order, from 1; 0: the DAG lacks the task.
type dagOrder []uint8

func (d *Deployment) enumerate() *enumeration {
	n := len(d.Tasks)
	e := &enumeration{d: d, order: make([][]bool, n)}
	for i := range e.order {
		e.order[i] = make([]bool, n)
	}
	named := make([]bool, n)
	seen := map[string]bool{}
	var key []byte
	for i := range d.DAGs {
		user := d.DAGs[i].userOrder()
		// DAGs of the same order are one.
		key = key[:0]
		for _, t := range user {
			key = binary.AppendUvarint(key, uint64(t))
		}
		if seen[string(key)] {
			continue
		}
		seen[string(key)] = true
		o := make(dagOrder, n)
		for j, b := range user {
			named[b] = true
			o[b] = uint8(j + 1)
			for _, a := range user[:j] {
				if !effect.Independent(&d.Tasks[a].Effects, &d.Tasks[b].Effects) {
					e.order[a][b] = true
				}
			}
		}
		e.orders, e.differ = append(e.orders, o), append(e.differ, DAGID(i))
	}
	e.in = make([][]uint64, n)
	for t := range e.in {
		e.in[t] = make([]uint64, (len(e.orders)+63)/64)
		for i, o := range e.orders {
			if o[t] > 0 {
				e.in[t][i/64] |= 1 << (i % 64)
			}
		}
	}
	for i := range d.Tasks {
		if named[i] {
			e.used = append(e.used, TaskID(i))
		} else if d.Tasks[i].Area <= d.Regions.Area {
			e.found = append(e.found, []TaskID{TaskID(i)})
		}
	}
	slices.SortFunc(e.used, func(a, b TaskID) int { return cmp.Compare(rankOf(d.rank, a), rankOf(d.rank, b)) })
	return e
}

// from adds the chains of all sets that extend e.set by tasks of e.used from index i on. area is the area that
// is left in a region. It returns false when there are more than most chains.
func (e *enumeration) from(i, area, most int) bool {
	for ; i < len(e.used); i++ {
		t := e.used[i]
		if e.d.Tasks[t].Area > area || len(e.set) == MaxChain || !e.together(t) {
			continue
		}
		e.set = append(e.set, t)
		if e.add() {
			if len(e.found) > most || !e.from(i+1, area-e.d.Tasks[t].Area, most) {
				return false
			}
		}
		e.set = e.set[:len(e.set)-1]
	}
	return true
}

// runs adds the chains of tasks that are next to each other in a DAG. It returns false when
// there are more than most chains.
func (e *enumeration) runs(most int) bool {
	known := map[string]bool{}
	for _, dag := range e.differ {
		for _, stage := range slices.Concat(e.d.Stages(dag, 1), e.d.Stages(dag, 0)) {
			for _, line := range stage {
				for from := range line {
					for n := range e.fit(line[from:]) {
						if e.run(line[from:from+n+1], known); len(e.found) > most {
							return false
						}
					}
				}
			}
		}
	}
	return len(e.found) <= most
}

// fit returns how many of the first tasks of a line fit a region together.
func (e *enumeration) fit(line []TaskID) int {
	area := 0
	for i, t := range line {
		if area += e.d.Tasks[t].Area; area > e.d.Regions.Area || i == MaxChain {
			return i
		}
	}
	return len(line)
}

// run adds the chains of a set of tasks, unless the set is in known.
func (e *enumeration) run(tasks []TaskID, known map[string]bool) {
	e.set = append(e.set[:0], tasks...)
	slices.SortFunc(e.set, func(a, b TaskID) int { return cmp.Compare(rankOf(e.d.rank, a), rankOf(e.d.rank, b)) })
	var key []byte
	for _, t := range e.set {
		key = binary.AppendUvarint(key, uint64(t))
	}
	if !known[string(key)] {
		known[string(key)] = true
		e.add()
	}
}

// together reports whether some DAG has both the tasks of e.set and t. If none has, no DAG could use a
// chain of these tasks, and there would be a chain for each choice of unrelated tasks.
func (e *enumeration) together(t TaskID) bool {
	for w, has := range e.in[t] {
		for _, s := range e.set {
			has &= e.in[s][w]
		}
		if has != 0 {
			return true
		}
	}
	return false
}

// add adds the chains of e.set. It returns false when the set has no chain; a set that contains it
// has none either.
func (e *enumeration) add() bool {
	if c, ok := e.line(func(a, b TaskID) bool { return e.order[a][b] }); ok {
		e.found = append(e.found, c)
		return true
	}
	first := len(e.found)
	for i := range e.orders {
		at := e.orders[i]
		if slices.ContainsFunc(e.set, func(t TaskID) bool { return at[t] == 0 }) {
			continue
		}
		c, _ := e.line(func(a, b TaskID) bool {
			return at[a] < at[b] && !effect.Independent(&e.d.Tasks[a].Effects, &e.d.Tasks[b].Effects)
		})
		if !slices.ContainsFunc(e.found[first:], func(f []TaskID) bool { return slices.Equal(f, c) }) {
			e.found = append(e.found, c)
		}
	}
	return len(e.found) > first
}

// line returns the tasks of e.set in an order that before accepts; ok is false if no order exists.
func (e *enumeration) line(before func(a, b TaskID) bool) (c []TaskID, ok bool) {
	masks := make([]uint64, len(e.set))
	sorted := true
	for j, b := range e.set {
		for i, a := range e.set {
			if i != j && before(a, b) {
				masks[j] |= 1 << i
				sorted = sorted && i < j
			}
		}
	}
	if sorted {
		return slices.Clone(e.set), true
	}
	// The set is sorted by rank.
	for _, i := range extend(masks, nil) {
		c = append(c, e.set[i])
	}
	return c, len(c) == len(e.set)
}

// tooMany returns the error for more than most chains, which says what to reduce.
func (e *enumeration) tooMany(most int) error {
	least := 0
	for i, t := range e.used {
		if a := e.d.Tasks[t].Area; i == 0 || a < least {
			least = a
		}
	}
	fit := min(MaxChain, e.d.Regions.Area/max(least, 1), len(e.used))
	return fmt.Errorf("more than %d chains: there are %d tasks, %d of them in DAGs of %d different orders, and up to %d of those fit a region of area %d: deploy fewer, or make regions smaller",
		most, len(e.d.Tasks), len(e.used), len(e.orders), fit, e.d.Regions.Area)
}

// ranks returns the place of each task in an order that all DAGs accept, as far as such an order
// exists: where a DAG contradicts an earlier DAG, its constraint is ignored.
func ranks(tasks []Task, dags []DAG) []int {
	n := len(tasks)
	words := (n + 63) / 64
	behind := make([][]uint64, n) // bits of all that must come after it
	for i := range behind {
		behind[i] = make([]uint64, words)
	}
	has := func(set []uint64, t int) bool { return set[t/64]&(1<<(t%64)) != 0 }
	for i := range dags {
		user := dags[i].userOrder()
		for j, tb := range user {
			for _, ta := range user[:j] {
				a, b := int(ta), int(tb)
				if has(behind[a], b) || has(behind[b], a) || effect.Independent(&tasks[a].Effects, &tasks[b].Effects) {
					continue
				}
				for c := range behind {
					if c == a || has(behind[c], a) {
						behind[c][b/64] |= 1 << (b % 64)
						for w := range behind[c] {
							behind[c][w] |= behind[b][w]
						}
					}
				}
			}
		}
	}
	waits := make([]int, n) // for so many
	for _, set := range behind {
		for t := range n {
			if has(set, t) {
				waits[t]++
			}
		}
	}
	rank := make([]int, n)
	done := make([]bool, n)
	for place := range n {
		next := 0
		for next < n && (done[next] || waits[next] > 0) {
			next++
		}
		done[next] = true
		rank[next] = place
		for t := range n {
			if has(behind[next], t) {
				waits[t]--
			}
		}
	}
	return rank
}
