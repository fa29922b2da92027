package clover

import (
	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// base says that the entry with handle LH of a slab class lies at
// va + LH*size; n appends agree on it.
type base struct {
	va     uint64
	size   uint32
	n      uint32
	region uint16
}

// entryOf finds the written entry that a CAS with swap word w links: the
// index in r.writes of the one whose address its handle names; negative when
// no handle can be turned into its address yet. Then teaches says whether the
// success of the CAS would teach that of r.writes[0]: the connection must have
// no other entry waiting for its CAS.
func (s *state) entryOf(r *row, w wire.Pointer, now clock.Time) (i int, teaches bool) {
	for i := range r.writes[:r.nw] {
		p := &r.writes[i]
		at := baseOf(p.va, w, p.size, p.region)
		if p.version == w.NextVersion() && s.trusted(&at) {
			return i, false
		}
	}
	for r.nw > 0 && now.Sub(r.writes[0].at) > writeLife {
		r.take(0)
	}
	return -1, r.nw == 1 && r.writes[0].version == w.NextVersion()
}

// baseOf is the base by which the handle in w names an entry at va.
func baseOf(va uint64, w wire.Pointer, size uint32, region uint16) base {
	return base{va: va - uint64(w.LH())*uint64(size), size: size, region: region, n: 1}
}

// trusted reports whether enough acknowledged appends agree on x: trustedBase
// of them, and a quarter of all of that slab class. (A CAS may be taken for
// that of another entry while a connection that threads share is new; such
// mistakes are few, and scatter.)
func (s *state) trusted(x *base) bool {
	var n, all uint32
	for i := range s.bases {
		if y := &s.bases[i]; y.region == x.region && y.size == x.size {
			all += y.n
			if y.va == x.va {
				n = y.n
			}
		}
	}
	return n >= trustedBase && 4*n >= all
}

// taught counts one more append that agrees on base x.
func (s *state) taught(x base) {
	least := 0
	for i := range s.bases {
		y := &s.bases[i]
		if y.va == x.va && y.region == x.region && y.size == x.size {
			if y.n++; y.n == 1<<30 {
				for j := range s.bases {
					s.bases[j].n >>= 1
				}
			}
			return
		}
		if y.n < s.bases[least].n {
			least = i
		}
	}
	if len(s.bases) == cap(s.bases) {
		s.bases[least] = x
		return
	}
	s.bases = append(s.bases, x)
}

// learn draws what a successful CAS teaches of handles, if it does.
func (s *state) learn(r *row, rec *op) {
	if rec.key == noSlot && rec.size != 0 {
		s.taught(baseOf(rec.entry, wire.Pointer(rec.swap), rec.size, rec.region))
		r.linked(rec.entry)
	}
}
