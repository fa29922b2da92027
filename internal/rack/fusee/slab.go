package fusee

import "github.com/quillon/quillon/nf/clock"

// slab is a session's memory for objects, in blocks of objects of one size.
type slab struct {
	l     *Layout
	id    uint16
	free  map[int][]address // by units
	owned []piece           // that a slot may refer to
	next  int               // of owned, that is looked at next
	late  []piece           // free, but maybe still read, or known to somebody as a slot's old word
	turn  int               // region of the next block
}

type piece struct {
	at    address
	units int
	freed clock.Time
}

// take is memory for an object; false: a block is needed.
func (s *slab) take(now clock.Time, units int, grace clock.Duration) (piece, bool) {
	k := 0
	for _, p := range s.late {
		if now.Sub(p.freed) < grace {
			s.late[k] = p
			k++
			continue
		}
		s.free[p.units] = append(s.free[p.units], p.at)
	}
	s.late = s.late[:k]
	f := s.free[units]
	if len(f) == 0 {
		return piece{}, false
	}
	s.free[units] = f[:len(f)-1]
	return piece{at: f[len(f)-1], units: units}, true
}

// add takes a new block.
func (s *slab) add(region, block, units int) {
	n := s.l.Block / (units * s.l.Unit)
	for i := n - 1; i >= 0; i-- {
		s.free[units] = append(s.free[units], address{region, block*s.l.Block + i*units*s.l.Unit})
	}
}

// own notes that a slot may refer to a piece, and drop that none does.
func (s *slab) own(p piece) { s.owned = append(s.owned, p) }

func (s *slab) drop(now clock.Time, p piece) {
	p.freed = now
	s.late = append(s.late, p)
}

// some are up to n pieces that may have been freed by others, others each time.
func (s *slab) some(n int) []piece {
	if s.next >= len(s.owned) {
		s.next = 0
	}
	part := s.owned[s.next:min(s.next+n, len(s.owned))]
	s.next += len(part)
	return part
}

// gone takes a piece that was found free out of those that are owned.
func (s *slab) gone(now clock.Time, p piece) {
	for i := range s.owned {
		if s.owned[i].at == p.at {
			s.owned[i] = s.owned[len(s.owned)-1]
			s.owned = s.owned[:len(s.owned)-1]
			s.drop(now, p)
			return
		}
	}
}
