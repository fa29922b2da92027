package locks

import (
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// spin takes one lock at a time: a word that is 0 if the lock is free, and the holder's mark otherwise.
type spin struct {
	x     section
	from  uint64 // the word that the CAS expects: 0, or the mark of a dead holder
	tries int
	phase phase
	id    int // of the acquisition or the release, in the history
}

type phase uint8

const (
	idle phase = iota
	taking
	holding
	releasing
)

// Steps of spin.
const (
	spinTake = ownSteps + iota
	spinRelease
	spinAsk // READ of the lock after the queue pair broke
)

func (p *spin) start(s *session, now clock.Time, again bool) {
	if !again || p.phase == idle {
		p.next(s, now)
		return
	}
	s.ask(now, spinAsk, history.Word{Op: rnic.OpRead, Addr: p.addr()})
}

func (p *spin) addr() uint64 { return wordsVA + uint64(p.x.lock)*8 }

func (p *spin) next(s *session, now clock.Time) {
	p.phase = idle
	if !s.begin() {
		return
	}
	p.x.lock, p.from, p.tries = s.rng.IntN(s.c.cfg.Words), 0, 0
	p.take(s, now)
}

func (p *spin) take(s *session, now clock.Time) {
	p.phase = taking
	p.x.owner, p.x.clean = s.owner(), p.from == 0
	p.id = s.c.cfg.LockLog.Call(s.number, now, history.Lock{Lock: uint64(p.x.lock), Owner: p.x.owner, From: p.from})
	s.ask(now, spinTake, history.Word{Op: rnic.OpCompareSwap, Addr: p.addr(), Compare: p.from, Swap: p.x.owner})
}

// taken handles the end of an acquisition that succeeded.
func (p *spin) taken(s *session, now clock.Time) {
	s.c.cfg.LockLog.Return(p.id, now, struct{}{})
	if p.from != 0 {
		s.c.stats.Stolen++
	}
	p.phase = holding
	p.x.look(s)
}

// notTaken handles the end of an acquisition that found the mark of another holder.
func (p *spin) notTaken(s *session, now clock.Time, other uint64) {
	s.c.cfg.LockLog.Forget(p.id)
	s.again()
	if p.tries++; p.tries >= s.c.cfg.Tries {
		s.c.stats.GaveUp++
		p.next(s, now)
		return
	}
	p.from = 0
	switch session, life := OwnerOf(other); {
	case other == 0: // free by now
	case session < 0 || session >= s.c.cfg.Sessions:
		s.wrong("lock %d is %#x, which is nobody's mark", p.x.lock, other)
	case s.c.cfg.Dead(session, life):
		p.from = other
	}
	p.take(s, now)
}

func (p *spin) release(s *session, now clock.Time) {
	if p.phase != releasing {
		p.phase = releasing
		p.id = s.c.cfg.LockLog.Call(s.number, now, history.Lock{Lock: uint64(p.x.lock), Owner: p.x.owner, Release: true})
	}
	w := history.Word{Op: rnic.OpWrite, Addr: p.addr()}
	if s.c.cfg.ReleaseByCAS {
		w = history.Word{Op: rnic.OpCompareSwap, Addr: p.addr(), Compare: p.x.owner}
	}
	s.ask(now, spinRelease, w)
}

func (p *spin) released(s *session, now clock.Time) {
	s.c.cfg.LockLog.Return(p.id, now, struct{}{})
	s.finish(s.begun)
	p.next(s, now)
}

func (p *spin) done(s *session, now clock.Time, r *request) {
	switch r.step {
	case spinTake:
		if r.value == p.from {
			p.taken(s, now)
		} else {
			p.notTaken(s, now, r.value)
		}
	case spinRelease:
		if s.c.cfg.ReleaseByCAS && r.value != p.x.owner {
			s.wrong("lock %d, held as %#x, was %#x when it was released", p.x.lock, p.x.owner, r.value)
		}
		p.released(s, now)
	case spinAsk:
		p.asked(s, now, r.value)
	default:
		if p.x.done(s, r.step) {
			p.release(s, now)
		}
	}
}

// asked continues after the queue pair broke and the lock's word was read with the next one: no request of
// the earlier queue pair is under way any more.
func (p *spin) asked(s *session, now clock.Time, holder uint64) {
	mine := holder == p.x.owner
	switch {
	case p.phase == taking && mine:
		p.taken(s, now)
	case p.phase == taking:
		p.notTaken(s, now, holder)
	case p.phase == releasing && mine:
		p.release(s, now)
	case p.phase == releasing:
		p.released(s, now)
	case mine:
		p.x.clean = false
		p.x.look(s)
	default:
		s.wrong("lock %d, held as %#x, is %#x", p.x.lock, p.x.owner, holder)
		p.next(s, now)
	}
}
