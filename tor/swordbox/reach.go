package swordbox

import "github.com/quillon/quillon/nf/clock"

// access is a sort of access to remote memory.
type access uint8

const (
	aRead access = iota
	aWrite
	aAtomic
	numAccess
)

// reach is the memory that the server let somebody reach under an R_Key: a
// region is in one piece, so what lies between two places that were reached can
// be, too.
type reach struct {
	rkey   uint32
	domain uint8             // that it belongs to; 0: not known
	lo, hi [numAccess]uint64 // empty: lo == hi
	alone  clock.Time        // until then nothing under it moves
}

// reaches remembers some R_Keys; one takes the place of another. An operation
// that the server refuses ends the connection that carries it, so none goes
// over another's connection before its like was allowed.
type reaches [256]reach

// of is the place of an R_Key, after Fibonacci hashing (Knuth 6.4).
func (r *reaches) of(rkey uint32) *reach { return &r[uint8(rkey*0x9E3779B1>>24)] }

// accessOf is the access that o needs, as its client sent it.
func accessOf(o *op) access {
	switch {
	case o.kind == kRead:
		return aRead
	case o.kind.atomic():
		return aAtomic
	}
	return aWrite
}

func (r *reaches) allows(o *op, a access) bool {
	x := r.of(o.rkey)
	return x.rkey == o.rkey && x.lo[a] <= o.va && o.va+uint64(o.len) <= x.hi[a] && o.va+uint64(o.len) >= o.va && x.lo[a] != x.hi[a]
}

// good reports whether the server has allowed the like of o to a connection of a
// domain.
func (r *reaches) good(o *op, domain uint8) bool {
	if domain == 0 || o.len == 0 {
		return domain != 0
	}
	if x := r.of(o.rkey); x.domain != domain || x.alone != 0 {
		return false
	}
	if o.kind.atomic() && o.va&7 != 0 {
		return false
	}
	return r.allows(o, accessOf(o))
}

// learn notes that the server executed o; the R_Key's domain is the caller's.
func (r *reach) learn(o *op) {
	a := accessOf(o)
	end := o.va + uint64(o.len)
	if r.lo[a] == r.hi[a] {
		r.lo[a], r.hi[a] = o.va, end
		return
	}
	r.lo[a], r.hi[a] = min(r.lo[a], o.va), max(r.hi[a], end)
}
