package flow

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/quillon/quillon/nf/prefetch"
)

// Scout goes ahead of looking for flows in a table, so that of a batch the memory that each flow needs is on its way while the processor is with the others: Near for all of
// them, and then the table's FindNear for each. It changes nothing, and may go while another worker changes the table. It goes on
// in the table that it was made of when that is replaced by another one, and then its guesses are wrong.
type Scout struct {
	tags   []uint64
	places uintptr
	size   uintptr // of a place
	next   uintptr // from the beginning of a place to its next line
}

// line is the length of a line of the processor's cache.
const line = 64

// Scout makes one.
func (t *Table[K, V]) Scout() Scout {
	size := unsafe.Sizeof(t.places[0])
	return Scout{t.tags, uintptr(unsafe.Pointer(&t.places[0])), size, min(size-1, line)}
}

// Near is where the flow is by its tag, if it is anywhere.
func (s *Scout) Near(hash uint64) int {
	a, b := sets(len(s.tags), hash)
	want := tag(hash) * eachByte
	x, y := atomic.LoadUint64(&s.tags[a])^want, atomic.LoadUint64(&s.tags[b])^want
	x, y = (x-eachByte)&^x&topBits, (y-eachByte)&^y&topBits
	// Each of both sets has half of the flows, which no branch foresees.
	i, j := a*Ways+bits.TrailingZeros64(x)/8, b*Ways+bits.TrailingZeros64(y)/8
	if x == 0 {
		i = j
	}
	p := s.places + uintptr(i)*s.size
	prefetch.Lines(p, p+s.next)
	return i
}
