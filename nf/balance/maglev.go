package balance

import (
	"encoding/binary"
	"slices"

	"github.com/quillon/quillon/nf/hdr"
)

// lookup is a Maglev lookup table (Eisenbud et al., NSDI 2016, section 3.4): a
// prime number of places, each with the index of a backend.
type lookup []uint16

// nobody is the value of all places in a lookup table without backends.
const nobody = uint16(0xFFFF)

// populate fills the table: the backends take turns, and each takes the next free place of its own permutation.
// In as many rounds as the greatest weight, a backend of weight w takes w turns. The result does not depend on
// the order of the backends, because they take turns in the order of their addresses.
func (t lookup) populate(backends []backend, family uint8) {
	for i := range t {
		t[i] = nobody
	}
	type taker struct {
		index        uint16
		at, skip     uint64 // place that is next in the permutation
		weight, turn uint64
	}
	var takers []taker
	m, greatest := uint64(len(t)), uint64(0)
	for i, b := range backends {
		if b.state != up || b.family() != family || b.weight == 0 {
			continue
		}
		a := b.addr.As16()
		hi, lo := binary.BigEndian.Uint64(a[:]), binary.BigEndian.Uint64(a[8:])
		h := hdr.Fold(hdr.Fold(hdr.Fold(1, hi), lo), 0)
		g := hdr.Fold(hdr.Fold(hdr.Fold(2, lo), hi), 0)
		takers = append(takers, taker{index: uint16(i), at: h % m, skip: g%(m-1) + 1, weight: uint64(b.weight)})
		greatest = max(greatest, uint64(b.weight))
	}
	if len(takers) == 0 {
		return
	}
	slices.SortFunc(takers, func(x, y taker) int { return backends[x.index].addr.Compare(backends[y.index].addr) })
	for left := len(t); ; {
		for i := range takers {
			x := &takers[i]
			if x.turn += x.weight; x.turn < greatest {
				continue
			}
			x.turn -= greatest
			for t[x.at] != nobody {
				if x.at += x.skip; x.at >= m {
					x.at -= m
				}
			}
			t[x.at] = x.index
			if left--; left == 0 {
				return
			}
		}
	}
}

// pick returns the index of the backend for a hash, or nobody.
func (t lookup) pick(hash uint64) uint16 { return t[hash%uint64(len(t))] }

func prime(n int) bool {
	if n < 2 {
		return false
	}
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return true
}
