package classify

import (
	"fmt"
	"math/bits"
	"slices"
)

// Left reports whether something of entries that were removed is left in a set without any.
func (s *Set) Left() bool {
	x := &s.root
	return x.n != 0 || x.chunk != noChunk || len(x.list)+len(x.rows) != 0 || x.vec != nil && x.vec.n != 0
}

// Parts are how many nodes there are, and how many entries are in vectors.
func (s *Set) Parts() (nodes, inVectors int) {
	for x := range s.nodes {
		nodes++
		if x.vec != nil {
			inVectors += x.vec.n
		}
	}
	return nodes, inVectors
}

// nodes yields all nodes.
func (s *Set) nodes(yield func(*node) bool) {
	var walk func(x *node) bool
	walk = func(x *node) bool {
		return yield(x) && (x.any == nil || walk(x.any)) && !slices.ContainsFunc(x.kids, func(k *node) bool { return !walk(k) })
	}
	walk(&s.root)
}

// Dividing reports whether entries wait to be moved.
func (s *Set) Dividing() bool { return len(s.dividing) > 0 }

// Words are how many words the vectors have.
func (s *Set) Words() (n int) {
	for x := range s.nodes {
		if x.vec == nil {
			continue
		}
		for _, g := range x.vec.segs {
			n += len(g.any) + len(g.sliced)
			for _, r := range g.rows {
				if r != nil {
					n += len(r.of)
				}
			}
		}
	}
	return n
}

// Leaves are where the entries are: what changed place since they were taken last is counted.
type Leaves []*node

// Moved is how many entries are elsewhere than in l, which it brings up to date; those that came or went do not count.
func (s *Set) Moved(l *Leaves) (n int) {
	*l = append(*l, make(Leaves, len(s.leaf)-min(len(*l), len(s.leaf)))...)
	for e, x := range s.leaf {
		if was := (*l)[e]; was != x {
			if was != nil && x != nil {
				n++
			}
			(*l)[e] = x
		}
	}
	return n
}

// Moves is how many entries a change may move: those that it divides, and those that it moves of a list that
// is being divided, each of which may divide a list.
const Moves = (moved + 1) * (longList + 2)

// Check checks the conditions that must hold after any insertions and deletions.
func (s *Set) Check() (err error) {
	all := map[uint32]bool{}
	fail := func(x *node, format string, args ...any) bool {
		err = fmt.Errorf("a node of %d entries at depth %d: %s", x.n, x.depth(), fmt.Sprintf(format, args...))
		return false
	}
	s.nodes(func(x *node) bool {
		own := x.list
		if x.vec != nil {
			own = x.vec.entries(slices.Clone(own))
		}
		n, best := len(own), noRank
		for _, e := range own {
			if s.leaf[e] != x || all[e] {
				return fail(x, "entry %d is twice, or elsewhere", e)
			}
			all[e], best = true, min(best, s.order[e])
		}
		if x.any != nil {
			n, best = n+x.any.n, min(best, x.any.best)
		}
		for i, k := range x.kids {
			n, best = n+k.n, min(best, k.best)
			if k.n == 0 || k.parent != x || x.at[k.side] != uint16(i+1) {
				return fail(x, "branch %d", k.side)
			}
		}
		switch {
		case n != x.n || best != x.best:
			return fail(x, "there are %d, the best is %d, not %d", n, best, x.best)
		case x.depth() > deepest, x.chunk != noChunk && len(x.list) > 0, len(x.list) > longList, len(x.rows) != 2*s.width*len(x.list):
			return fail(x, "%d in its list", len(x.list))
		case x.chunk != noChunk && x.vec != nil && !slices.Contains(s.dividing, x):
			return fail(x, "nobody goes on dividing it")
		case !slices.IsSortedFunc(x.list, func(a, b uint32) int { return map[bool]int{true: -1, false: 1}[s.wins(a, b)] }):
			return fail(x, "its list is not sorted")
		}
		return x.vec == nil || x.vec.check(s, func(format string, args ...any) bool { return fail(x, format, args...) })
	})
	for e := range all {
		if s.leaf[e] == nil {
			err = fmt.Errorf("entry %d", e)
		}
	}
	if err == nil && len(all) != s.Len() {
		err = fmt.Errorf("%d entries, %d are there", s.Len(), len(all))
	}
	return err
}

func (v *vectors) check(s *Set, fail func(format string, args ...any) bool) bool {
	n, end := 0, uint64(0)
	for at, g := range v.segs {
		if v.byID[g.id] != g || at > 0 && (g.from < end || v.segs[at-1].n+g.n <= perSegment/2) || g.from > end && at == 0 || len(v.segs) > 1 && g.n == 0 {
			return fail("segment %d of %d", at, len(v.segs))
		}
		count, best, sorted := 0, noRank, true
		last := None
		for e := range g.each {
			sorted = sorted && (last == None || s.wins(last, e))
			count, best, last = count+1, min(best, s.order[e]), e
			if p := s.place[e]; int(p/perSegment) != g.id || g.entry[p&segmentMask] != e || s.rank(e) < g.from || s.rank(e) < end {
				return fail("entry %d is at %d", e, p)
			}
		}
		for i, r := range g.rows {
			if r == nil != !slices.Contains(g.order, uint16(i)) {
				return fail("chunk %d of segment %d", i, at)
			}
		}
		taken := 0
		for _, x := range g.used {
			taken += bits.OnesCount64(x)
		}
		if count != g.n || taken != g.n || best != g.best || !sorted && !g.mixed || g.n > 64*g.words {
			return fail("segment %d has %d of %d words", at, g.n, g.words)
		}
		n, end = n+count, g.most(s)+1
	}
	if ids := slices.DeleteFunc(slices.Clone(v.byID), func(g *segment) bool { return g == nil }); n != v.n || len(ids) != len(v.segs) {
		return fail("%d of %d entries, %d of %d segments", n, v.n, len(ids), len(v.segs))
	}
	return true
}
