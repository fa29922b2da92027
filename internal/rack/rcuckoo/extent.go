package rcuckoo

import (
	"fmt"
	"math/bits"

	"github.com/quillon/quillon/nf/clock"
)

// An extent holds a value: used u8 | size u24 | key u32 | value. Whoever replaces the
// value clears used, and whoever owns the memory finds that when it looks.
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
	chunk Chunk
	used  int
	free  map[int][]int // by class
	owned []piece       // in use, as far as the client knows
	next  int           // of owned, that is looked at next
	late  []piece       // free, but maybe still read
	uses  int
}

type piece struct {
	at, class int
	use       int // number of this use of the memory
	freed     clock.Time
}

// take is memory for a value; false: none now.
func (s *slab) take(now clock.Time, size int, grace clock.Duration) (piece, bool) {
	k := 0
	for _, p := range s.late {
		if now.Sub(p.freed) < grace {
			s.late[k] = p
			k++
			continue
		}
		s.free[p.class] = append(s.free[p.class], p.at)
	}
	s.late = s.late[:k]
	c := classOf(size)
	s.uses++
	p := piece{class: c, use: s.uses}
	if f := s.free[c]; len(f) > 0 {
		p.at, s.free[c] = f[len(f)-1], f[:len(f)-1]
	} else {
		if s.used+c > s.chunk.Size {
			return p, false
		}
		p.at = s.chunk.At + s.used
		s.used += c
	}
	return p, true
}

// own notes that an entry may point to a piece.
func (s *slab) own(p piece) { s.owned = append(s.owned, p) }

// give takes back a piece that no entry has pointed to.
func (s *slab) give(p piece) { s.free[p.class] = append(s.free[p.class], p.at) }

// some are up to n pieces in use, others each time.
func (s *slab) some(n int) []piece {
	if s.next >= len(s.owned) {
		s.next = 0
	}
	part := s.owned[s.next:min(s.next+n, len(s.owned))]
	s.next += len(part)
	return part
}

// drop notes that a piece is used no more. Another session may have seen that before.
func (s *slab) drop(now clock.Time, p piece) {
	for i := range s.owned {
		if s.owned[i].use == p.use {
			s.owned[i] = s.owned[len(s.owned)-1]
			s.owned = s.owned[:len(s.owned)-1]
			p.freed = now
			s.late = append(s.late, p)
			return
		}
	}
}
