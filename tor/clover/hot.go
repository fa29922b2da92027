package clover

import (
	"cmp"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tor/index"
)

// sketch counts how often keys are used: a count-min sketch of four rows.
type sketch struct{ c [4][1024]uint32 }

// add counts one use of key and returns the estimate, which is never too low.
func (s *sketch) add(server uint16, key uint64) uint32 {
	h := index.Mix(key ^ uint64(server)<<48)
	least := ^uint32(0)
	for i := range s.c {
		p := &s.c[i][h&1023]
		*p++
		least = min(least, *p)
		h >>= 13
	}
	return least
}

// halve ages all counts.
func (s *sketch) halve() {
	for i := range s.c {
		for j := range s.c[i] {
			s.c[i][j] >>= 1
		}
	}
}

// hotKeys finds the keys that are used most, if there are more keys than places (hot=). memory offers it
// the keys that find no place, and Tick makes it do a piece of a round.
type hotKeys struct {
	sketch   sketch
	cand     [candidates]candidate
	coldest  [candidates]int32 // keys of the present round, the coldest first
	hand     int               // next key of the round
	promised int               // slots of keys that are free now or soon, and are kept for candidates
	rehot    clock.Time
}

// candidate is a key that was used often while the key table was full.
type candidate struct {
	key    uint64
	server uint16
	uses   uint32
}

// candidates is the largest number of keys that get a place in one round.
const candidates = 16

// offer notes a key as a candidate. If all candidates are taken, it replaces the one with the fewest uses,
// if the key has more.
func (s *hotKeys) offer(server uint16, key uint64, uses uint32) {
	worst := 0
	for i := range s.cand {
		x := &s.cand[i]
		if x.uses > 0 && x.key == key && x.server == server {
			x.uses = uses
			return
		}
		if x.uses < s.cand[worst].uses {
			worst = i
		}
	}
	if uses > s.cand[worst].uses {
		s.cand[worst] = candidate{key, server, uses}
	}
}

// rebalance does a piece of a round, in which candidates take the place of keys
// that are used less than half as often, and all counts are halved. It returns the number of
// keys that were removed.
func (s *hotKeys) rebalance(m *memory, c *graph.Ctx, now clock.Time) (evicted int) {
	if s.hand == 0 {
		if now < s.rehot {
			return 0
		}
		s.rehot = now.Add(round)
		for i := range s.coldest {
			s.coldest[i] = noSlot
		}
	}
	end := min(s.hand+sweepKeys, len(m.keys.s))
	for ; s.hand < end; s.hand++ {
		if k := &m.keys.s[s.hand]; k.used {
			s.isCold(m, int32(s.hand))
		}
	}
	if s.hand < len(m.keys.s) {
		return 0
	}
	s.hand = 0
	return s.replace(m, c)
}

// round is the time between the starts of two rounds.
const round = 100 * time.Millisecond

// isCold puts a key among the coldest of the round, if it is one of them, and then halves
// its count of uses.
func (s *hotKeys) isCold(m *memory, k int32) {
	x := &m.keys.s[k]
	defer func() { x.hits >>= 1 }()
	if x.unlinked() > 0 {
		return
	}
	// Counts of the keys before the hand were halved already.
	i := candidates
	for i > 0 && (s.coldest[i-1] == noSlot || m.keys.s[s.coldest[i-1]].hits > x.hits>>1) {
		i--
	}
	if i < candidates {
		copy(s.coldest[i+1:], s.coldest[i:])
		s.coldest[i] = k
	}
}

// replace ends a round: the hottest candidates take the places of keys that left
// in the round before, and the coldest keys leave for those that have none.
func (s *hotKeys) replace(m *memory, c *graph.Ctx) (evicted int) {
	slices.SortFunc(s.cand[:], func(a, b candidate) int { return cmp.Compare(b.uses, a.uses) })
	next, waiting := 0, 0
	for i := range s.cand {
		x := &s.cand[i]
		if x.uses == 0 {
			break
		}
		if m.keys.find(x.server, x.key) != noSlot {
			*x = candidate{}
			continue
		}
		if k := m.insert(int16(x.server), x.key); k != noSlot {
			m.keys.s[k].hits = x.uses >> 1
			s.promised = max(0, s.promised-1)
			*x = candidate{}
			continue
		}
		waiting++
		for next < candidates && s.coldest[next] != noSlot {
			k := s.coldest[next]
			next++
			if y := &m.keys.s[k]; y.used && y.unlinked() == 0 {
				if x.uses > 4*y.hits {
					m.forget(c, k)
					s.promised++
					evicted++
				}
				break
			}
		}
		x.uses >>= 1 // it gets a place at the end of a later round
	}
	s.promised = min(s.promised, waiting)
	s.sketch.halve()
	return evicted
}
