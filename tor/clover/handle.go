package clover

import (
	"slices"

	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// handles holds the bases that turn a handle into an address. Acknowledged appends teach the bases, and
// appends that pass are looked up by them.
type handles struct {
	bases    []base
	baseUses uint32 // counter for base.seen
}

// base says that the entry with handle LH of a slab class lies at va + LH*size. n counts the
// acknowledged appends that may have linked an entry with this base.
type base struct {
	va     uint64
	size   uint32
	n      uint32
	seen   uint32 // value of handles.baseUses when the base was last taught
	region uint16
}

// entryOf finds the written entry that a CAS with swap word w links: the
// index in r.writes of the one whose address its handle names; negative when
// no handle can be turned into its address yet.
func (s *handles) entryOf(r *row, w wire.Pointer) int {
	for i := range r.writes[:r.nw] {
		p := &r.writes[i]
		at := baseOf(p.va, w, p.size, p.region)
		if p.version == w.NextVersion() && p.region != noRegion && s.trusted(&at) {
			return i
		}
	}
	return -1
}

// baseOf returns the base by which the handle in w names an entry at va.
func baseOf(va uint64, w wire.Pointer, size uint32, region uint16) base {
	return base{va: va - uint64(w.LH())*uint64(size), size: size, region: region, n: 1}
}

// trusted reports whether enough acknowledged appends agree on x: at least trustedBase
// of them, and at least twice as many as on any other base of that slab class. On a
// connection where several entries wait, an append may belong to any of them. So all appends
// agree on the right base, while wrong bases scatter, or get as many appends as the right one.
func (s *handles) trusted(x *base) bool {
	var n, other uint32
	for i := range s.bases {
		if y := &s.bases[i]; y.region == x.region && y.size == x.size {
			if y.va == x.va {
				n = y.n
			} else {
				other = max(other, y.n)
			}
		}
	}
	return n >= trustedBase && n/2 >= other
}

// taught counts one more append that may have base x, and returns their number.
// If there is no room, x replaces the base that was taught longest ago.
func (s *handles) taught(x base) uint32 {
	s.baseUses++
	x.seen = s.baseUses
	oldest := 0
	for i := range s.bases {
		y := &s.bases[i]
		if y.va == x.va && y.region == x.region && y.size == x.size {
			y.seen = x.seen
			if y.n++; y.n == 1<<30 {
				for j := range s.bases {
					s.bases[j].n >>= 1
				}
			}
			return y.n
		}
		if int32(y.seen-s.bases[oldest].seen) < 0 {
			oldest = i
		}
	}
	if len(s.bases) == cap(s.bases) {
		s.bases[oldest] = x
	} else {
		s.bases = append(s.bases, x)
	}
	return x.n
}

// learn teaches bases from the success of a CAS whose entry is not known: the entry is one of
// those in r.writes that were written before the CAS.
func (s *handles) learn(r *row, rec *op) {
	swap := wire.Pointer(rec.swap)
	one, most, next := -1, uint32(0), uint32(0) // index in r.writes of the entry whose base was taught most often, how often that was, and how often the next one was
	for i := range r.writes[:r.nw] {
		w := &r.writes[i]
		if w.version != swap.NextVersion() || w.region == noRegion || hdr.PSNDiff(rec.psn, w.end) <= 0 {
			continue
		}
		w.tries++
		n := s.taught(baseOf(w.va, swap, w.size, w.region))
		if n > most {
			one, most, next = i, n, most
		} else {
			next = max(next, n)
		}
	}
	switch {
	case most > next:
		r.take(one)
	case r.nw > 0 && r.writes[0].tries >= maxWrites:
		r.take(0) // its own CAS is among those that passed, or it was created
	}
}

// forgetBases forgets the bases of a region.
func (s *handles) forgetBases(region uint16) {
	s.bases = slices.DeleteFunc(s.bases, func(x base) bool { return x.region == region })
}
