package onesided

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// Slab gives out memory in pieces of some sizes; A is the type of their addresses. Any session of the store may free a
// piece that is in use, by a mark in the memory, which the owner of the piece looks for.
type Slab[A any] struct {
	free  map[int][]A // by size
	owned []Piece[A]
	next  int // of owned, that is looked at next
	late  []Piece[A]
	uses  int
}

// Piece is a piece of memory.
type Piece[A any] struct {
	At    A
	Size  int
	use   int // number of this use of the memory
	freed clock.Time
}

// Add adds a free piece of this size at address at.
func (s *Slab[A]) Add(size int, at A) {
	if s.free == nil {
		s.free = map[int][]A{}
	}
	s.free[size] = append(s.free[size], at)
}

// Take gives out a piece of this size. It does not give out a piece that was freed less than grace ago, which may
// still be read. It returns false if there is no piece.
func (s *Slab[A]) Take(now clock.Time, size int, grace clock.Duration) (Piece[A], bool) {
	k := 0
	for _, p := range s.late {
		if now.Sub(p.freed) < grace {
			s.late[k] = p
			k++
			continue
		}
		s.Add(p.Size, p.At)
	}
	s.late = s.late[:k]
	f := s.free[size]
	if len(f) == 0 {
		return Piece[A]{}, false
	}
	s.free[size] = f[:len(f)-1]
	return s.Use(size, f[len(f)-1]), true
}

// Use makes a Piece in use of memory that is not among the slab's free memory.
func (s *Slab[A]) Use(size int, at A) Piece[A] {
	s.uses++
	return Piece[A]{At: at, Size: size, use: s.uses}
}

// Own notes that the store may refer to a piece, and Give that it never did.
func (s *Slab[A]) Own(p Piece[A])  { s.owned = append(s.owned, p) }
func (s *Slab[A]) Give(p Piece[A]) { s.Add(p.Size, p.At) }

// Owned returns the number of pieces to which the store may refer.
func (s *Slab[A]) Owned() int { return len(s.owned) }

// Some returns up to n owned pieces, whose marks the caller examines. Calls go round all owned pieces in turn.
func (s *Slab[A]) Some(n int) []Piece[A] {
	if s.next >= len(s.owned) {
		s.next = 0
	}
	part := s.owned[s.next:min(s.next+n, len(s.owned))]
	s.next += len(part)
	return part
}

// Freed moves a piece whose mark says that it is free from the owned ones to Leave. It does nothing if another session
// of the client has done so before.
func (s *Slab[A]) Freed(now clock.Time, p Piece[A]) {
	for i := range s.owned {
		if s.owned[i].use == p.use {
			s.owned[i] = s.owned[len(s.owned)-1]
			s.owned = s.owned[:len(s.owned)-1]
			s.Leave(now, p)
			return
		}
	}
}

// Leave frees a piece to which the store no longer refers, but which a session may still read.
func (s *Slab[A]) Leave(now clock.Time, p Piece[A]) {
	p.freed = now
	s.late = append(s.late, p)
}

// Late reports whether Take may hold back a free piece whose size fits, because it may still be read.
func (s *Slab[A]) Late(fits func(size int) bool) bool {
	return slices.ContainsFunc(s.late, func(p Piece[A]) bool { return fits(p.Size) })
}
