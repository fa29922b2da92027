package locks

import (
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// count adds to words, with several requests in flight.
type count struct{}

func (p *count) start(s *session, now clock.Time, again bool) { p.fill(s, now) }

func (p *count) fill(s *session, now clock.Time) {
	for len(s.reqs) < s.c.cfg.Outstanding && s.begin() {
		// Sums carry through all bytes, upwards and downwards.
		add := uint64(1) << s.rng.IntN(64)
		if s.rng.IntN(2) == 0 {
			add = -add
		}
		s.ask(now, 0, history.Word{Op: rnic.OpFetchAdd, Addr: someWord(s), Swap: add})
	}
}

func (p *count) done(s *session, now clock.Time, r *request) {
	s.finish(r.at)
	p.fill(s, now)
}

func someWord(s *session) uint64 { return wordsVA + uint64(s.rng.IntN(s.c.cfg.Words))*8 }

// casCount reads a word, then sends CASes that add 1 until one succeeds.
type casCount struct{ addr uint64 }

// Steps of casCount.
const (
	casRead = iota
	casSwap
)

func (p *casCount) start(s *session, now clock.Time, again bool) {
	p.next(s, now) // it is not known whether the last operation counted
}

func (p *casCount) next(s *session, now clock.Time) {
	if s.begin() {
		p.addr = someWord(s)
		s.ask(now, casRead, history.Word{Op: rnic.OpRead, Addr: p.addr})
	}
}

func (p *casCount) done(s *session, now clock.Time, r *request) {
	if r.step == casSwap {
		if r.value == r.word.Compare {
			s.finish(s.begun)
			p.next(s, now)
			return
		}
		s.again()
	}
	s.ask(now, casSwap, history.Word{Op: rnic.OpCompareSwap, Addr: p.addr, Compare: r.value, Swap: r.value + 1})
}
