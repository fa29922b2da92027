package clover

import (
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

// candidate is a key that was used often while the key table was full.
type candidate struct {
	key    uint64
	server uint16
	uses   uint32
}

// candidates is the number of keys that may come in at one round.
const candidates = 16

// offer notes a candidate, the best ones staying.
func (s *state) offer(server uint16, key uint64, uses uint32) {
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

// rebalance lets candidates take the place of keys that are used less than
// half as often, and ages all counts. It returns how many keys went.
func (s *state) rebalance(c *graph.Ctx) (evicted int) {
	for i := range s.cand {
		x := &s.cand[i]
		if x.uses == 0 {
			continue
		}
		if s.keys.find(x.server, x.key) != noSlot {
			*x = candidate{}
			continue
		}
		coldest := noSlot
		for k := range s.keys.s {
			ks := &s.keys.s[k]
			if ks.used && ks.unlinked() == 0 && (coldest == noSlot || ks.hits < s.keys.s[coldest].hits) {
				coldest = int32(k)
			}
		}
		if coldest != noSlot && len(s.keys.free) == 0 && x.uses > 2*s.keys.s[coldest].hits {
			s.forget(c, coldest)
			evicted++
		}
		if k := s.keys.insert(x.server, x.key); k != noSlot {
			s.keys.s[k].hits = x.uses
		}
		*x = candidate{}
	}
	for k := range s.keys.s {
		s.keys.s[k].hits >>= 1
	}
	s.sketch.halve()
	return evicted
}

// forget removes a key and every address of it.
func (s *state) forget(c *graph.Ctx, k int32) {
	s.cut(c, k)
	for i := range s.addrs.e {
		if e := &s.addrs.e[i]; e.used() && e.key() == k {
			*e = entry{}
		}
	}
	s.keys.remove(k)
}
