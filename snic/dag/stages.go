package dag

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/quillon/quillon/nf/effect"
)

// Branch is a sequence of tasks.
type Branch []TaskID

// Stage is a set of branches that run in parallel. The next stage begins when all branches are done.
type Stage []Branch

// Stages returns the stages of a DAG, which have each of its tasks once. All dependencies hold,
// in whatever way the branches of a stage interleave. width limits the number of branches of a
// stage; 0 means no limit. A branch beyond width is appended to the branch whose sum of
// Task.Latency is least. With width 1 there is one stage with one branch.
func (d *Deployment) Stages(dag DAGID, width int) []Stage {
	return stages(d.Tasks, &d.DAGs[dag], d.rank, width, effect.Independent)
}

// needs holds the tasks of a DAG and those constraints of its order that are between dependent tasks.
type needs struct {
	tasks  []TaskID // a linear extension of what remains
	before []uint64 // of each: bits of those that must be done before it
}

// userOrder returns the DAG's tasks in an order that its edges accept. Where the edges leave a
// choice, the task that is named first comes first. Tasks of a cycle, and tasks behind them, are left out.
func (d *DAG) userOrder() []TaskID {
	at := make(map[TaskID]int, len(d.Tasks))
	for i, t := range d.Tasks {
		at[t] = i
	}
	before := make([]uint64, len(d.Tasks))
	for _, e := range d.Edges {
		before[at[e[1]]] |= 1 << at[e[0]]
	}
	order := make([]TaskID, 0, len(d.Tasks))
	for _, i := range extend(before, nil) {
		order = append(order, d.Tasks[i])
	}
	return order
}

// extend returns a linear extension: indices in an order in which index i comes after all indices
// whose bits before[i] has. Of the indices that may come next, it takes that of least rank, or
// the least index if rank is nil. It ends early at a cycle.
func extend(before []uint64, rank func(i int) int) []int {
	order := make([]int, 0, len(before))
	var done uint64
	for range before {
		next := -1
		for i, b := range before {
			if done&(1<<i) == 0 && b&^done == 0 && (next < 0 || rank != nil && rank(i) < rank(next)) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		done |= 1 << next
		order = append(order, next)
	}
	return order
}

// rankOf returns the place of a task among independent tasks: its rank, or its TaskID if it has no rank.
func rankOf(rank []int, t TaskID) int {
	if int(t) < len(rank) {
		return rank[t]
	}
	return int(t)
}

// sequence puts tasks, which are given in the user's order, into an order that keeps all dependencies. It
// returns the same order whenever the set and its dependencies are the same.
func sequence(tasks []Task, order []TaskID, rank []int, independent func(a, b *effect.Effects) bool) *needs {
	before := make([]uint64, len(order))
	for j, b := range order {
		for i, a := range order[:j] {
			if !independent(&tasks[a].Effects, &tasks[b].Effects) {
				before[j] |= 1<<i | before[i]
			}
		}
	}
	n := &needs{tasks: make([]TaskID, len(order)), before: make([]uint64, len(order))}
	perm := extend(before, func(i int) int { return rankOf(rank, order[i]) })
	for at, i := range perm {
		n.tasks[at] = order[i]
		for k, j := range perm[:at] {
			if before[i]&(1<<j) != 0 {
				n.before[at] |= 1 << k
			}
		}
	}
	return n
}

func stages(tasks []Task, d *DAG, rank []int, width int, independent func(a, b *effect.Effects) bool) []Stage {
	user := d.userOrder()
	n := sequence(tasks, user, rank, independent)
	line := func(set []TaskID) Branch {
		var in []TaskID
		for _, t := range user {
			if slices.Contains(set, t) {
				in = append(in, t)
			}
		}
		return sequence(tasks, in, rank, independent).tasks
	}
	var out []Stage
	for lo := 0; lo < len(n.tasks); {
		hi := lo + 1
		for !n.cut(hi) {
			hi++
		}
		s := n.branches(lo, hi)
		if width > 0 && len(s) > width {
			s = narrow(tasks, s, width)
		}
		// What has one branch before and behind is one sequence.
		if last := len(out) - 1; len(s) == 1 && last >= 0 && len(out[last]) == 1 {
			out[last][0] = append(out[last][0], s[0]...)
		} else {
			out = append(out, s)
		}
		lo = hi
	}
	for _, s := range out {
		for i := range s {
			s[i] = line(s[i])
		}
		slices.SortFunc(s, func(a, b Branch) int { return cmp.Compare(rankOf(rank, a[0]), rankOf(rank, b[0])) })
	}
	return out
}

// cut reports whether all tasks before at must be done before any other.
func (n *needs) cut(at int) bool {
	all := uint64(1)<<at - 1
	return !slices.ContainsFunc(n.before[at:], func(b uint64) bool { return b&all != all })
}

// branches returns the tasks lo to hi-1 as branches: tasks that depend on each other are in one branch.
func (n *needs) branches(lo, hi int) Stage {
	var sets []uint64 // of bits; disjoint
	for i := lo; i < hi; i++ {
		set := uint64(1) << i
		bound := set | n.before[i]&^(1<<lo-1)
		sets = slices.DeleteFunc(sets, func(s uint64) bool {
			if s&bound != 0 {
				set |= s
				return true
			}
			return false
		})
		sets = append(sets, set)
	}
	var s Stage
	for _, set := range sets {
		var b Branch
		for ; set != 0; set &= set - 1 {
			b = append(b, n.tasks[bits.TrailingZeros64(set)])
		}
		s = append(s, b)
	}
	return s
}

// narrow joins the branches of a stage to width branches. It takes the longest branch first and
// appends it to the branch that is shortest by then, so that the longest stays short.
func narrow(tasks []Task, s Stage, width int) Stage {
	length := func(b Branch) (ns int64) {
		for _, t := range b {
			ns += int64(tasks[t].Latency) + 1
		}
		return ns
	}
	slices.SortStableFunc(s, func(a, b Branch) int { return cmp.Compare(length(b), length(a)) })
	out := slices.Clone(s[:width])
	for _, b := range s[width:] {
		shortest := 0
		for i := range out {
			if length(out[i]) < length(out[shortest]) {
				shortest = i
			}
		}
		out[shortest] = append(slices.Clone(out[shortest]), b...)
	}
	return out
}
