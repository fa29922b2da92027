package flow

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/quillon/quillon/nf/prefetch"
)

// Scout guesses the places of a batch's flows in a table and prefetches them, so that the memory of each
// flow arrives while the processor works on other flows. The caller calls Near for all flows of the
// batch, and then the table's FindNear for each. A Scout changes nothing, and may be used while another
// worker changes the table. If the owner replaces the table by a new one, the Scout still reads the old
// table, and its guesses are wrong.
type Scout struct {
	tags   []uint64
	places uintptr
	size   uintptr // of a place
	next   uintptr // from the beginning of a place to its next line
}

// line is the length in bytes of a line of the processor's cache.
const line = 64

// Scout returns a Scout of t.
func (t *Table[K, V]) Scout() Scout {
	size := unsafe.Sizeof(t.places[0])
	return Scout{t.tags, uintptr(unsafe.Pointer(&t.places[0])), size, min(size-1, line)}
}

// Near returns the index of a place whose tag fits hash, and prefetches the place. The guess may be wrong, and may
// be past the end of the table: it is for FindNear only.
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
