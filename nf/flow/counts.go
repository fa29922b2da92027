package flow

import "sync/atomic"

// Counts counts items by their hash, in fixed memory. Each hash has two counters, which it
// shares with other hashes: the lower of both is never below the true count (Cormode and
// Muthukrishnan, An Improved Data Stream Summary, 2005). All workers may use it at once.
type Counts struct{ rows [2][countsLen]uint32 }

const countsLen = 4096

// Of returns an upper bound of the count of hash.
func (c *Counts) Of(hash uint64) int {
	return int(min(atomic.LoadUint32(&c.rows[0][hash%countsLen]), atomic.LoadUint32(&c.rows[1][hash>>32%countsLen])))
}

// Add adds one to the count of hash.
func (c *Counts) Add(hash uint64) {
	c.add(hash, 1)
}

// Sub takes one from the count of hash. The caller must have added it before.
func (c *Counts) Sub(hash uint64) {
	c.add(hash, ^uint32(0))
}

// AddAlone does what Add does, without atomic operations: no other goroutine may use c yet.
func (c *Counts) AddAlone(hash uint64) {
	c.rows[0][hash%countsLen]++
	c.rows[1][hash>>32%countsLen]++
}

func (c *Counts) add(hash uint64, n uint32) {
	atomic.AddUint32(&c.rows[0][hash%countsLen], n)
	atomic.AddUint32(&c.rows[1][hash>>32%countsLen], n)
}
