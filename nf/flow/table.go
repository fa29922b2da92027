package flow

import (
	"math/bits"
	"sync/atomic"
	"time"
	"unsafe"
)

// Ways is how many places a set has.
const Ways = 8

// Place of a flow. A place is found again by its index as long as its flow is
// there.
type Place[K comparable, V any] struct {
	Key K
	Val V
}

// Table of flows; New makes it.
type Table[K comparable, V any] struct {
	tags   []uint64 // of each set: a byte a place; 0: free, otherwise 0x80 and 7 bits of its hash
	places []Place[K, V]
	used   int
	hand   int // where Sweep goes on
}

const (
	eachByte = 0x0101010101010101
	topBits  = 0x8080808080808080
)

// New makes a table for n flows.
func New[K comparable, V any](n int) Table[K, V] {
	sets := max(2, (n*7/5+Ways-1)/Ways)
	return Table[K, V]{tags: make([]uint64, sets), places: make([]Place[K, V], sets*Ways)}
}

// Len is how many flows are there.
func (t *Table[K, V]) Len() int { return t.used }

// Places is how many places there are.
func (t *Table[K, V]) Places() int { return len(t.places) }

// Has reports whether place i is some flow's.
func (t *Table[K, V]) Has(i int) bool { return t.tags[i/Ways]>>(uint(i%Ways)*8)&0xFF != 0 }

// At is the place of that index.
func (t *Table[K, V]) At(i int) *Place[K, V] { return &t.places[i] }

// Sets are the first places of both sets of a hash.
func (t *Table[K, V]) Sets(hash uint64) (a, b int) {
	a, b = sets(len(t.tags), hash)
	return a * Ways, b * Ways
}

// sets are both sets of a hash, of so many.
func sets(of int, hash uint64) (a, b int) {
	n := uint64(of)
	x, y := hash&0xFFFFFFFF*n>>32, hash>>24&0xFFFFFFFF*n>>32
	if x == y {
		if y++; y == n {
			y = 0
		}
	}
	return int(x), int(y)
}

// tag is what a place with that hash is marked with.
func tag(hash uint64) uint64 { return hash>>57 | 0x80 }

// Find is the place of a key; negative when it has none.
func (t *Table[K, V]) Find(k *K, hash uint64) int {
	a, b := t.Sets(hash)
	want := tag(hash) * eachByte
	for _, first := range [2]int{a, b} {
		// The bytes that are zero in x are marked in m; some above such a byte may
		// be, too.
		x := t.tags[first/Ways] ^ want
		for m := (x - eachByte) &^ x & topBits; m != 0; m &= m - 1 {
			i := first + bits.TrailingZeros64(m)/8
			if t.places[i].Key == *k {
				return i
			}
		}
	}
	return -1
}

// FindNear is Find of a key that is not zero, after a Scout of the table has said which place is near.
func (t *Table[K, V]) FindNear(k *K, hash uint64, near int) int {
	if uint(near) < uint(len(t.places)) && t.places[near].Key == *k {
		return near
	}
	return t.Find(k, hash)
}

// Add gives a key that has none a place, with the zero value in it; negative when
// both of its sets are full.
func (t *Table[K, V]) Add(k *K, hash uint64) int {
	a, b := t.Sets(hash)
	f, g := ^t.tags[a/Ways]&topBits, ^t.tags[b/Ways]&topBits
	if bits.OnesCount64(g) > bits.OnesCount64(f) {
		a, f = b, g
	}
	if f == 0 {
		return -1
	}
	i := a + bits.TrailingZeros64(f)/8
	t.used++
	t.set(i, k, hash)
	return i
}

func (t *Table[K, V]) set(i int, k *K, hash uint64) {
	at := uint(i%Ways) * 8
	atomic.StoreUint64(&t.tags[i/Ways], t.tags[i/Ways]&^(0xFF<<at)|tag(hash)<<at) // Scouts of other workers look
	t.places[i] = Place[K, V]{Key: *k}
}

// Replace puts a key that has no place into place i, which is in one of its sets
// and another's, with the zero value.
func (t *Table[K, V]) Replace(i int, k *K, hash uint64) { t.set(i, k, hash) }

// Del frees place i, which is some flow's. The key in a free place is zero.
func (t *Table[K, V]) Del(i int) {
	var none K
	t.places[i].Key = none
	atomic.StoreUint64(&t.tags[i/Ways], t.tags[i/Ways]&^(0xFF<<(uint(i%Ways)*8)))
	t.used--
}

// Next is the first place from i on that is some flow's; negative when there is
// none.
func (t *Table[K, V]) Next(i int) int { return t.NextBefore(i, len(t.places)) }

// NextBefore is Next among the places before another one.
func (t *Table[K, V]) NextBefore(i, before int) int {
	for s := i / Ways; s*Ways < before; s++ {
		m := t.tags[s] & topBits
		if s == i/Ways {
			m = m >> (uint(i%Ways) * 8) << (uint(i%Ways) * 8)
		}
		if m != 0 {
			if i := s*Ways + bits.TrailingZeros64(m)/8; i < before {
				return i
			}
			return -1
		}
	}
	return -1
}

// looks is how many places are looked at for one of a flow: 8 of them take a nanosecond or so.
const looks = 64

// Some calls f with the places, from one on, of n flows, or fewer if they are far apart, so that it takes
// a time that n bounds. It returns the place to go on from; negative: there are none left. Flows that f deletes
// are gone; flows that are added meanwhile may be left out.
func (t *Table[K, V]) Some(from, n int, f func(i int)) (next int) {
	end := min(from+n*looks, len(t.places))
	for ; n > 0; n-- {
		i := t.NextBefore(from, end)
		if i < 0 {
			from = end
			break
		}
		f(i)
		from = i + 1
	}
	if from >= len(t.places) {
		return -1
	}
	return from
}

// Sweep moves a hand over n places, or a few more, and around: the places from
// one index to before the other, for Next. Del is allowed there.
func (t *Table[K, V]) Sweep(n int) (from, to int) {
	if t.hand >= len(t.places) {
		t.hand = 0
	}
	from = t.hand
	t.hand = min(from+(n+Ways-1)/Ways*Ways, len(t.places))
	return from, t.hand
}

// Steps is how many steps a sweep goes around n places in, and how far apart: all
// are looked at within 16 s.
func Steps(n int) (steps int, every time.Duration) {
	steps = max(1, min(1024, n/Ways))
	return steps, 16 * time.Second / time.Duration(steps)
}

// Clear frees all places.
func (t *Table[K, V]) Clear() {
	clear(t.tags)
	clear(t.places)
	t.used = 0
}

// Bytes is the table's memory.
func (t *Table[K, V]) Bytes() int {
	var p Place[K, V]
	return len(t.tags)*8 + len(t.places)*int(unsafe.Sizeof(p))
}
