package dag

import (
	"cmp"
	"math/bits"
)

// Mask says which tasks of a chain a packet runs through: bit i is the task i.
// The others are skipped.
type Mask uint16

// Count is how many tasks it has.
func (m Mask) Count() int { return bits.OnesCount16(uint16(m)) }

// Candidate is a chain that a branch may use.
type Candidate struct {
	Chain ChainID
	Tasks []TaskID // at most MaxChain, each once
	Cost  int64    // of a visit, such as the load of its instances; not negative
}

// Visit is a pass through a chain.
type Visit struct {
	Chain ChainID
	Mask  Mask
}

// Cover is the visits in which a branch runs through chains: the tasks of each
// visit's mask are those of the branch that come next, in its order. There are
// as few visits as possible; of those ways, the sum of costs is the least. Of
// equal ways the one is taken that goes furthest in its first visit, with the
// chain that comes first, and so on. Tasks that no candidate has come back as
// uncovered, and there are no visits then.
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
			// To go less far than a chain can never leaves a cheaper rest.
			n := run(branch[i:], candidates[k].Tasks)
			if n == 0 {
				continue
			}
			rest, b := &best[i+n], &best[i]
			s := step{rest.visits + 1, n, candidates[k].Cost + rest.cost, k}
			if b.visits == 0 || cmp.Or(cmp.Compare(s.visits, b.visits), cmp.Compare(s.cost, b.cost), -cmp.Compare(s.length, b.length)) < 0 {
				*b = s
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
	for k := range candidates {
		for _, u := range candidates[k].Tasks {
			if t == u {
				return true
			}
		}
	}
	return false
}

// run is how many of the branch's first tasks a chain has in their order.
func run(branch, chain []TaskID) (n int) {
	for _, t := range chain {
		if n < len(branch) && t == branch[n] {
			n++
		}
	}
	return n
}

// maskOf is where the tasks are in the chain.
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
