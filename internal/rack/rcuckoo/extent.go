package rcuckoo

import (
	"fmt"
	"math/bits"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
)

// An extent holds a value: used u8 | size u24 | key u32 | value. The session that replaces the value clears
// used. The client that owns the memory sees this when it looks.
const extentHeader = 8

// ExtentSize is how much memory a value takes.
func ExtentSize(value int) int { return classOf(value) }

// classOf is the size of the extent for a value.
func classOf(size int) int { return 1 << bits.Len(uint(max(size, 8)+extentHeader-1)) }

func putExtent(b []byte, key uint32, v []byte) []byte {
	le.PutUint32(b, 1|uint32(len(v))<<8)
	le.PutUint32(b[4:], key)
	return b[:extentHeader+copy(b[extentHeader:], v)]
}

// getExtent is the value for a key.
func getExtent(b []byte, key uint32) ([]byte, error) {
	n := int(le.Uint32(b) >> 8)
	if le.Uint32(b[4:]) != key || n > len(b)-extentHeader {
		return nil, fmt.Errorf("rcuckoo: the extent of key %d is another's", key)
	}
	return b[extentHeader : extentHeader+n], nil
}

// slab is a client's memory for values, in pieces of powers of two.
type slab struct {
	onesided.Slab[int]
	chunk Chunk
	used  int
}

type piece = onesided.Piece[int]

// newSlab makes the slab of a client. If an earlier client had the chunk, entries may still refer to any part
// of it.
func newSlab(c Chunk) slab {
	s := slab{chunk: c}
	if c.Values > 0 {
		for n := classOf(c.Values); s.used+n <= c.Size; s.used += n {
			s.Own(s.Use(n, c.At+s.used))
		}
	}
	return s
}

// take returns memory for a value; false: there is none now.
func (s *slab) take(now clock.Time, size int, grace clock.Duration) (piece, bool) {
	c := classOf(size)
	p, ok := s.Take(now, c, grace)
	if !ok && s.used+c <= s.chunk.Size {
		p, ok = s.Use(c, s.chunk.At+s.used), true
		s.used += c
	}
	return p, ok
}
