package sherman

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// maxLeaves is the most leaves of a range that are read together, as in Sherman.
const maxLeaves = 32

// choose selects the leaves that are read next: s.page, and those to the right of it under the same parent,
// up to the range's end. The cached image of the parent may be old; gather notices that.
func (s *session) choose() {
	s.leaves = append(s.leaves[:0], s.page)
	if p := s.c.cache[s.parent]; p != nil {
		for i := range p.records() {
			if p.branchKey(i) > s.key && p.branchKey(i) <= s.res.To && len(s.leaves) < maxLeaves {
				s.leaves = append(s.leaves, p.child(i))
			}
		}
	}
}

// image returns memory for the i-th leaf.
func (s *session) image(i int) page {
	for i >= len(s.pages) {
		s.pages = append(s.pages, make(page, PageSize))
	}
	return s.pages[i]
}

// gather takes the range's keys from the leaves that were read, from left to right, as long as each leaf
// begins where the one before ends. Then it continues behind them. s.key is the first key that was not
// searched yet.
func (s *session) gather(now clock.Time) {
	for i, a := range s.leaves {
		p := s.pages[i]
		if !p.settled() {
			s.leaves = append(s.leaves[:0], s.leaves[i:]...)
			s.page = a
			s.reread(now, false)
			return
		}
		if i == 0 || p.lowest() == s.key {
			copy(s.img, p)
		}
		if p.lowest() > s.key || s.key >= p.highest() {
			s.aside(now) // a leaf was split since its parent was read
			return
		}
		s.take(p)
		s.key = p.highest()
		if s.key > s.res.To { // of the last leaf: MaxKey
			s.end(now, nil) // the highest of the last leaf is MaxKey
			return
		}
	}
	if p := s.c.cache[s.parent]; p != nil && s.key >= p.highest() {
		s.descend(now)
		return
	}
	s.page = s.img.sibling()
	s.arrive(now)
}

// take adds the leaf's keys that are in the range, sorted.
func (s *session) take(p page) {
	n := len(s.res.Pairs)
	for i := range Entries {
		if e := p.entry(i); e.value() != 0 && e.key() >= s.key && e.key() <= s.res.To {
			s.res.Pairs = append(s.res.Pairs, Pair{e.key(), e.value()})
		}
	}
	slices.SortFunc(s.res.Pairs[n:], func(a, b Pair) int { return byKey(pair{key: a.Key}, pair{key: b.Key}) })
}

// settled reports whether no part of the leaf is being written.
func (p page) settled() bool {
	if !p.whole() {
		return false
	}
	for i := range Entries {
		if !p.entry(i).whole() {
			return false
		}
	}
	return true
}
