package dag

import (
	"cmp"
	"slices"
)

// Mask says which tasks of a chain a packet runs through: bit i stands for task i. The packet
// skips tasks without their bit.
type Mask uint16

// Candidate is a chain that a branch may use.
type Candidate struct {
	Chain ChainID
	Tasks []TaskID // at most MaxChain, each once
	Cost  int64    // of a visit; not negative
	Each  []int64  // of the tasks, such as their load, not negative; nil: 0. A visit costs its dearest one besides.
}

// Visit is a pass through a chain.
type Visit struct {
	Chain ChainID
	Mask  Mask
}

// Cover returns the visits in which a branch runs through chains: the mask of each visit has the
// tasks of the branch that come next, in its order. Cover takes as few visits as possible, and
// among those ways the one with the least sum of costs. Among equal ways it prefers the one
// whose first visit goes furthest, with the chain that comes first among the candidates, and so
// on. If no candidate has some of the tasks, Cover returns these as uncovered, and no visits.
func Cover(branch []TaskID, candidates []Candidate) (visits []Visit, uncovered []TaskID) {
	for _, t := range branch {
		if !covered(t, candidates) {
			uncovered = append(uncovered, t)
		}
	}
	if uncovered != nil || len(branch) == 0 {
		return nil, uncovered
	}
	type step struct {
		visits, length int
		cost           int64
		candidate      int
	}
	best := make([]step, len(branch)+1) // from a task on
	for i := len(branch) - 1; i >= 0; i-- {
		for k := range candidates {
			c := &candidates[k]
			dearest, n := int64(0), 0
			for at, t := range c.Tasks {
				if i+n == len(branch) {
					break
				}
				if t != branch[i+n] {
					continue
				}
				n++
				if c.Each != nil {
					dearest = max(dearest, c.Each[at])
				}
				rest, b := &best[i+n], &best[i]
				s := step{rest.visits + 1, n, c.Cost + dearest + rest.cost, k}
				if b.visits == 0 || cmp.Or(cmp.Compare(s.visits, b.visits), cmp.Compare(s.cost, b.cost), -cmp.Compare(s.length, b.length)) < 0 {
					*b = s
				}
			}
		}
	}
	for i := 0; i < len(branch); {
		s := &best[i]
		c := &candidates[s.candidate]
		visits = append(visits, Visit{c.Chain, maskOf(branch[i:i+s.length], c.Tasks)})
		i += s.length
	}
	return visits, nil
}

func covered(t TaskID, candidates []Candidate) bool {
	return slices.ContainsFunc(candidates, func(c Candidate) bool { return slices.Contains(c.Tasks, t) })
}

// maskOf returns the mask of the tasks in the chain, which has them in the same order.
func maskOf(tasks, chain []TaskID) (m Mask) {
	n := 0
	for i, t := range chain {
		if n < len(tasks) && t == tasks[n] {
			m |= 1 << i
			n++
		}
	}
	return m
}
