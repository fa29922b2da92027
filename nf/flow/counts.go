package flow

import "sync/atomic"

// Counts counts what is there of each of many, by their hashes, in fixed memory:
// two counters each, shared with others, of which the lower one is never too low
// (Cormode and Muthukrishnan, An Improved Data Stream Summary, 2005). All workers may
// use it.
type Counts struct{ rows [2][countsLen]uint32 }

const countsLen = 4096

// Of is how many are there, or more.
func (c *Counts) Of(hash uint64) int {
	return int(min(atomic.LoadUint32(&c.rows[0][hash%countsLen]), atomic.LoadUint32(&c.rows[1][hash>>32%countsLen])))
}

// Add and Sub count one more, and one less, which was added.
func (c *Counts) Add(hash uint64) {
	c.add(hash, 1)
}

func (c *Counts) Sub(hash uint64) {
	c.add(hash, ^uint32(0))
}

// AddAlone is Add as long as nobody else knows of c.
func (c *Counts) AddAlone(hash uint64) {
	c.rows[0][hash%countsLen]++
	c.rows[1][hash>>32%countsLen]++
}

func (c *Counts) add(hash uint64, n uint32) {
	atomic.AddUint32(&c.rows[0][hash%countsLen], n)
	atomic.AddUint32(&c.rows[1][hash>>32%countsLen], n)
}
