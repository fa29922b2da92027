package flow

import (
	"math/bits"
	"sync/atomic"
	"time"
	"unsafe"
)

// Ways is the number of places of a set.
const Ways = 8

// Place is the slot of one flow in a Table. Its index stays valid until the flow is deleted or replaced.
type Place[K comparable, V any] struct {
	Key K
	Val V
}

// Table maps the keys of flows to values, in a fixed number of places. New makes a Table. Only
// one goroutine at a time may use a Table; Scouts may read its tags meanwhile.
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

// New returns an empty table with room for n flows.
func New[K comparable, V any](n int) Table[K, V] {
	sets := max(2, (n*7/5+Ways-1)/Ways)
	return Table[K, V]{tags: make([]uint64, sets), places: make([]Place[K, V], sets*Ways)}
}

// Len returns the number of flows in the table.
func (t *Table[K, V]) Len() int { return t.used }

// Places returns the number of places, used and free.
func (t *Table[K, V]) Places() int { return len(t.places) }

// Has reports whether place i holds a flow.
func (t *Table[K, V]) Has(i int) bool { return t.tags[i/Ways]>>(uint(i%Ways)*8)&0xFF != 0 }

// At returns place i.
func (t *Table[K, V]) At(i int) *Place[K, V] { return &t.places[i] }

// Sets returns the index of the first place of each of the two sets of hash.
func (t *Table[K, V]) Sets(hash uint64) (a, b int) {
	a, b = sets(len(t.tags), hash)
	return a * Ways, b * Ways
}

// sets returns the two sets of hash in a table of that many sets. The two always differ.
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

// tag returns the tag of a place that holds a key with that hash.
func tag(hash uint64) uint64 { return hash>>57 | 0x80 }

// Find returns the place of key k, or -1 if the table does not hold it.
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

// FindNear does what Find does, and first tries the place near, which a Scout has guessed. Key k must not be zero.
func (t *Table[K, V]) FindNear(k *K, hash uint64, near int) int {
	if uint(near) < uint(len(t.places)) && t.places[near].Key == *k {
		return near
	}
	return t.Find(k, hash)
}

// Add puts key k, which the table must not hold, into a free place with the zero value, and returns
// the place. Add returns -1 if both sets of the key are full.
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

// Replace puts key k with the zero value into place i, instead of the flow there. The table must not
// hold k, and place i must be in one of the sets of k.
func (t *Table[K, V]) Replace(i int, k *K, hash uint64) { t.set(i, k, hash) }

// Del frees place i, which must hold a flow. It sets the place's key to zero.
func (t *Table[K, V]) Del(i int) {
	var none K
	t.places[i].Key = none
	atomic.StoreUint64(&t.tags[i/Ways], t.tags[i/Ways]&^(0xFF<<(uint(i%Ways)*8)))
	t.used--
}

// Next returns the first place at or after i that holds a flow, or -1.
func (t *Table[K, V]) Next(i int) int { return t.NextBefore(i, len(t.places)) }

// NextBefore returns the first place at or after i and before the place before that holds a flow, or -1.
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

// looks is the number of places that Some passes over for each of its n flows. 8 places take about a nanosecond.
const looks = 64

// Some calls f with the places of the next n flows at or after place from, or of fewer flows if they
// are far apart, so that n bounds the time. Some returns the place to go on from, or -1 at the end
// of the table. f may delete flows. Flows that are added between two calls may be left out.
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

// Sweep returns the next range of places to look at, from <= i < to, for use with NextBefore. The
// range has n places, rounded up to whole sets, or fewer at the end of the table; after the
// end, Sweep goes on at place 0. The caller may delete flows of the range.
func (t *Table[K, V]) Sweep(n int) (from, to int) {
	if t.hand >= len(t.places) {
		t.hand = 0
	}
	from = t.hand
	t.hand = min(from+(n+Ways-1)/Ways*Ways, len(t.places))
	return from, t.hand
}

// Steps returns the number of steps in which a sweep should pass over a table of n places, and the
// time between two steps, so that each place is looked at once in 16 s.
func Steps(n int) (steps int, every time.Duration) {
	steps = max(1, min(1024, n/Ways))
	return steps, 16 * time.Second / time.Duration(steps)
}

// Clear frees all places.
func (t *Table[K, V]) Clear() {
	for i := range t.tags {
		atomic.StoreUint64(&t.tags[i], 0) // Scouts of other workers look
	}
	clear(t.places)
	t.used = 0
}

// Bytes returns the size of the table's memory in bytes.
func (t *Table[K, V]) Bytes() int {
	var p Place[K, V]
	return len(t.tags)*8 + len(t.places)*int(unsafe.Sizeof(p))
}
