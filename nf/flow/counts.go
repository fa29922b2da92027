package flow

import (
	"runtime"
	"sync/atomic"
)

// Counts counts what is there of each of many, by their hashes, in fixed memory:
// two counters each, shared with others, of which the lower one is never too low
// (Cormode and Muthukrishnan, An Improved Data Stream Summary, 2005).
type Counts struct{ rows [2][countsLen]uint32 }

const countsLen = 4096

// Of is how many are there, or more.
func (c *Counts) Of(hash uint64) int {
	return int(min(c.rows[0][hash%countsLen], c.rows[1][hash>>32%countsLen]))
}

// Add and Sub count one more, and one less, which was added.
func (c *Counts) Add(hash uint64) {
	c.rows[0][hash%countsLen]++
	c.rows[1][hash>>32%countsLen]++
}

func (c *Counts) Sub(hash uint64) {
	c.rows[0][hash%countsLen]--
	c.rows[1][hash>>32%countsLen]--
}

// Turn is whose turn it is to use what several workers share: held for the time
// of a packet.
type Turn struct{ taken atomic.Bool }

// Take waits for the turn.
func (t *Turn) Take() {
	for !t.taken.CompareAndSwap(false, true) {
		runtime.Gosched()
	}
}

// Give ends it.
func (t *Turn) Give() { t.taken.Store(false) }
