package locks

import (
	"slices"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// table takes several locks of a bit table, word by word in ascending order, so that sessions never wait in a
// circle. The READ of the first block that they protect is posted behind the last masked CAS, without waiting
// for its result.
type table struct {
	xs    []section
	words []bits // ascending
	at    int    // word that is being taken or released
	inner int    // section that is being executed
	tries int
	phase phase
}

// bits are locks of one word.
type bits struct {
	addr uint64
	mask uint64
	ids  []int // of the acquisitions or the releases, in the history
}

// maxLocks is the most locks that are taken together.
const maxLocks = 4

// Steps of table.
const (
	tableTake = ownSteps + iota
	tableRelease
)

func (p *table) start(s *session, now clock.Time, again bool) {
	if again && p.phase != idle {
		// A bit does not say which session holds it. RCuckoo repairs this with leases.
		s.c.stats.Stuck++
		s.ended = true
		return
	}
	p.next(s, now)
}

func (p *table) next(s *session, now clock.Time) {
	p.phase = idle
	if !s.begin() {
		return
	}
	p.xs, p.words = p.xs[:0], p.words[:0]
	owner := s.owner()
	n := s.c.cfg.Words * tableBits
	for _, l := range s.rng.Perm(n)[:1+s.rng.IntN(min(maxLocks, n))] {
		p.xs = append(p.xs, section{lock: l, owner: owner, clean: true})
	}
	slices.SortFunc(p.xs, func(a, b section) int { return a.lock - b.lock })
	for _, x := range p.xs {
		addr := wordsVA + uint64(x.lock/tableBits)*8
		if k := len(p.words); k == 0 || p.words[k-1].addr != addr {
			p.words = append(p.words, bits{addr: addr})
		}
		p.words[len(p.words)-1].mask |= bitOf(x.lock)
	}
	p.phase, p.at, p.tries = taking, 0, 0
	p.take(s, now)
}

// bitOf returns the bit of a lock in its word: every eighth bit, so that all bytes of the word matter.
func bitOf(lock int) uint64 { return 1 << (lock % tableBits * 8) }

// record records the beginning of an acquisition or a release of the locks of the word p.at.
func (p *table) record(s *session, now clock.Time, release bool) *bits {
	w := &p.words[p.at]
	w.ids = w.ids[:0]
	for _, x := range p.xs {
		if wordsVA+uint64(x.lock/tableBits)*8 == w.addr {
			w.ids = append(w.ids, s.c.cfg.LockLog.Call(s.number, now, history.Lock{Lock: uint64(x.lock), Owner: x.owner, Release: release}))
		}
	}
	return w
}

func (p *table) take(s *session, now clock.Time) {
	w := p.record(s, now, false)
	s.ask(now, tableTake, history.Word{Op: rnic.OpMaskedCompareSwap, Addr: w.addr, Swap: w.mask, CompareMask: w.mask, SwapMask: w.mask})
	if p.at == len(p.words)-1 {
		p.inner = 0
		p.xs[0].look(s)
	}
}

func (p *table) release(s *session, now clock.Time) {
	w := p.record(s, now, true)
	s.ask(now, tableRelease, history.Word{Op: rnic.OpMaskedCompareSwap, Addr: w.addr, Compare: w.mask, CompareMask: w.mask, SwapMask: w.mask})
}

func (p *table) done(s *session, now clock.Time, r *request) {
	w := &p.words[min(p.at, len(p.words)-1)]
	switch r.step {
	case tableTake:
		if r.value&w.mask != 0 {
			for _, id := range w.ids {
				s.c.cfg.LockLog.Forget(id)
			}
			s.again()
			if p.at < len(p.words)-1 {
				p.again(s, now)
			}
			return // the READ that was posted behind the CAS completes next
		}
		for _, id := range w.ids {
			s.c.cfg.LockLog.Return(id, now, struct{}{})
		}
		if p.at++; p.at < len(p.words) {
			p.take(s, now)
			return
		}
		p.phase = holding
	case tableRelease:
		if r.value&w.mask != w.mask {
			s.wrong("locks %#x of word %#x, held as %#x, were %#x when they were released", w.mask, w.addr, p.xs[0].owner, r.value)
		}
		for _, id := range w.ids {
			s.c.cfg.LockLog.Return(id, now, struct{}{})
		}
		p.nextRelease(s, now)
	case sectionEnter:
		if p.phase == taking { // the last word was not free
			p.again(s, now)
			return
		}
		p.xs[p.inner].done(s, r.step)
	default:
		if !p.xs[p.inner].done(s, r.step) {
			return
		}
		if p.inner++; p.inner < len(p.xs) {
			p.xs[p.inner].look(s)
			return
		}
		p.phase, p.at = releasing, len(p.words)-1
		p.release(s, now)
	}
}

// nextRelease continues after the locks of a word were released. Words are released in descending order.
func (p *table) nextRelease(s *session, now clock.Time) {
	if p.at--; p.at >= 0 {
		p.release(s, now)
		return
	}
	if p.inner == len(p.xs) {
		s.finish(s.begun)
	}
	p.next(s, now)
}

// again tries the word p.at once more, or gives back the locks that were taken.
func (p *table) again(s *session, now clock.Time) {
	if p.tries++; p.tries < s.c.cfg.Tries {
		p.take(s, now)
		return
	}
	s.c.stats.GaveUp++
	p.phase, p.inner = releasing, 0
	p.nextRelease(s, now)
}
