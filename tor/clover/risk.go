package clover

import (
	"github.com/quillon/quillon/nf/hdr"
)

// Behind a refusal the server executes nothing: it ends the queue pair. An append that is behind a
// request which is refused is never linked then, and others who were led behind it have no answer. So
// an append is led, and others behind it, only when all in front of it on its connection was answered,
// or is such as the server has executed for this connection before: the same access (did), under the
// same R_Key (proven), to memory between what was reached (region.lo and hi; a region is in one piece).

// Accesses, as queue pairs and regions have rights to.
const (
	didRead uint8 = 1 << iota
	didWrite
	didAtomic
)

// venture notes that the request at hand, of the connection whose row is r and in its turn, goes on to
// the server, which may refuse it.
func (s *Steer) venture(r *row, b []byte) {
	s.resolve(r)
	p := s.parsed
	f, fl := &p.f, p.fl
	var va, size uint64
	var rkey uint32
	kind := uint8(0)
	switch info := f.Op.Info(); {
	case f.Op == hdr.CompareSwap || f.Op == hdr.FetchAdd:
		h := f.AtomicETHOf(b)
		va, size, rkey, kind = h.VA(), 8, h.RKey(), didAtomic
	case info.Ext&(hdr.HasRETH|hdr.HasImmDt) == hdr.HasRETH && fl&hdr.IsRead != 0:
		h := f.RETHOf(b)
		va, size, rkey, kind = h.VA(), uint64(h.DMALength()), h.RKey(), didRead
	case info.Ext&(hdr.HasRETH|hdr.HasImmDt) == hdr.HasRETH && fl&hdr.IsWrite != 0:
		h := f.RETHOf(b)
		va, size, rkey, kind = h.VA(), uint64(h.DMALength()), h.RKey(), didWrite
	case fl&hdr.IsWrite != 0 && fl&(hdr.IsMiddle|hdr.IsLast) != 0 && info.Ext&hdr.HasImmDt == 0 && !(r.risked && r.risky == (p.psn-1)&hdr.PSNMask):
		return // of a WRITE that is no risk
	}
	if kind != 0 && size != 0 && s.isRegion(r.proven, r.sid, rkey) {
		if r.did&kind != 0 && s.regions[r.proven].reaches(va, size) && (kind != didAtomic || va&7 == 0) {
			return
		}
		r.trying |= kind
		r.tried, r.triedLen = va, uint32(size)
	}
	r.risked, r.risky = true, (p.psn+p.psns-1)&hdr.PSNMask
}

// resolve takes from the server's answers that it has executed what it might have refused.
func (s *Steer) resolve(r *row) {
	if !r.risked || hdr.PSNDiff(r.acked, r.risky) < 0 {
		return
	}
	if r.trying != 0 && s.isRegion(r.proven, r.sid, s.regions[r.proven].rkey) {
		r.did |= r.trying
		s.regions[r.proven].reach(r.tried, uint64(r.triedLen))
	}
	r.risked, r.trying = false, 0
}

// wrote notes that the server has executed the WRITE of w on a connection whose row is r.
func (s *Steer) wrote(r *row, w *pendingWrite) {
	if r.proven != w.region {
		r.proven, r.did, r.trying = w.region, 0, 0
	}
	r.did |= didWrite
	s.regions[w.region].reach(w.va, uint64(w.size))
}

// reaches reports whether memory is between what was reached of region g.
func (g *region) reaches(va, size uint64) bool { return va >= g.lo && va+size <= g.hi && va+size >= va }

// reach notes that memory of region g was reached.
func (g *region) reach(va, size uint64) {
	if g.lo == g.hi {
		g.lo, g.hi = va, va+size
	}
	g.lo, g.hi = min(g.lo, va), max(g.hi, va+size)
}
