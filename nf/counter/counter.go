// Package counter holds named counters that one worker writes and anybody
// reads. A counter is a plain word of its worker while a breath runs, and is
// committed (one atomic store a changed word) once a breath: an atomic store
// a packet would cost as much as the packet.
package counter

import (
	"math/bits"
	"sync/atomic"
)

// Def declares a counter or a drop reason: a stable kebab-case name, and one
// line that says what it counts.
type Def struct {
	Name string `json:"name"`
	Help string `json:"help"`
}

// ID is the index of a counter in its Set's declaration.
type ID int

// Set is a block of counters of one owner. Add and Commit are the owning
// worker's alone; Load and Snapshot are anybody's.
type Set struct {
	defs  []Def
	live  []uint64
	pub   []atomic.Uint64
	dirty uint64 // bit i: a counter whose ID is i modulo 64 may have changed
	_     [line]byte
}

// line is the length of a line of the processor's cache. The counters of a worker lie on lines of their own: a line that
// another worker writes, too, goes to and fro with each frame.
const line = 64

// words is how many words fill whole lines, with n of them: memory of so many begins with a line.
func words(n int) int { return (n*8 + line - 1) / line * line / 8 }

// NewSet makes a set with all counters zero.
func NewSet(defs []Def) *Set {
	return &Set{defs: defs, live: make([]uint64, len(defs), words(len(defs))), pub: make([]atomic.Uint64, len(defs), words(len(defs)))}
}

// Defs is the declaration, in ID order.
func (s *Set) Defs() []Def { return s.defs }

// Add adds n to counter id.
func (s *Set) Add(id ID, n uint64) {
	s.live[id] += n
	s.dirty |= 1 << (id & 63)
}

// Set gives counter id the value v: for gauges.
func (s *Set) Set(id ID, v uint64) {
	s.live[id] = v
	s.dirty |= 1 << (id & 63)
}

// Live is the value as the owning worker sees it.
func (s *Set) Live(id ID) uint64 { return s.live[id] }

// Commit publishes what changed since the last Commit.
func (s *Set) Commit() {
	for ; s.dirty != 0; s.dirty &= s.dirty - 1 {
		for i := bits.TrailingZeros64(s.dirty); i < len(s.live); i += 64 {
			if v := s.live[i]; s.pub[i].Load() != v {
				s.pub[i].Store(v)
			}
		}
	}
}

// Load is the value of counter id as of the last Commit.
func (s *Set) Load(id ID) uint64 { return s.pub[id].Load() }

// Snapshot appends the committed values, in ID order, to dst.
func (s *Set) Snapshot(dst []uint64) []uint64 {
	for i := range s.pub {
		dst = append(dst, s.pub[i].Load())
	}
	return dst
}
