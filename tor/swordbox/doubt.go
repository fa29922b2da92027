package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// A process that took over from another one has the PSNs and contents of all that
// is open, and what was sent with one PSN is only ever sent again with it, as it was.
// WRITEs in the place of atomics are another matter. They were computed from what
// their words were then; clients that were not held up meanwhile may have changed
// these since. A WRITE that the server has executed already is done. One that never
// came to it must not be sent again: what it leaves would undo theirs. Its client is
// to repeat the atomic, as it came, and a new outcome is found.
//
// So the server is asked which of them it executed. The question is a WRITE of nothing,
// with the PSN behind all that is open. The queue pair has the right to it, as it takes
// WRITEs in the place of atomics, and nobody checks its R_Key. Either it is executed,
// then all is, or the server asks for the PSN that it misses: what has that or a later
// one was not executed. Frames of the other process may still come, until settle= after
// its end; until then nothing is asked, and a NAK (PSN sequence error) says nothing: what
// it asks for may be under way.
//
// A server asks for a PSN once, and then says nothing of later ones until it has that
// one (rxe_resp.c: sent_psn_nak). If that NAK came too early, or was lost, the question has no
// answer. So with the second question comes a repetition of a request of long ago, which
// the server answers with the newest request that it has executed (see judge).
//
// From the first question on its PSN is spent, whatever the server says: a copy of the
// question may be executed at any time, and then a request with that PSN would be taken
// for its repetition, and be acknowledged without being executed. So the connection
// carries nothing new until the answer to the question came. When the server misses
// PSNs before that one, they are filled with WRITEs of nothing; then the question comes
// to its turn. All of that is for the next process to go on with, too.

// inquire asks the server which of the operations that connection c carries it has
// executed. A server that answers, and does not say it for giveup=, never will.
func (s *carrierSide) inquire(c *flow) {
	if c.heard.Sub(max(c.loaded, s.n.ledger.mem.barred)) >= clock.Duration(s.cfg.giveup) {
		s.fail(c)
		return
	}
	if !s.mayAsk(c) {
		return
	}
	if !c.gated {
		c.gate = c.next
		c.gated = true // last: the process may end between any two
	}
	s.emptyWrite(&c.up, c.gate)
	if c.tries > 0 && s.emptyWrite(&c.up, c.longAgo()) {
		c.echoed = false
	}
	c.tried(s.c.Now())
}

// longSince is how far behind the newest acknowledged PSN the repetition is. A server that
// acknowledges the repetition itself, which says nothing, is told from others by that.
const longSince = farOff / 2

// longAgo is the PSN of that repetition. It is not where the connection began: another one with the same numbers may begin there, too.
func (c *flow) longAgo() uint32 {
	psn := (c.acked - longSince) & hdr.PSNMask
	if d := hdr.PSNDiff(psn, c.start); d > -narrow && d < narrow {
		psn = (psn - 2*narrow) & hdr.PSNMask
	}
	return psn
}

// judge takes from answer b, with PSN psn, to connection c, which is in doubt, what the
// server has executed. When the only answer to a question and a repetition, twice, is the
// acknowledgement of what was known already, nothing behind that is executed. READs may
// be: Linux (rxe) acknowledges the newest request that was none. One such acknowledgement
// is not enough: it may be that to a repetition of the other process's, with requests
// behind it that wait at a server that paused.
func (s *carrierSide) judge(c *flow, psn uint32, b []byte) {
	if !c.gated {
		return
	}
	news := s.f.Op != hdr.Acknowledge || !s.f.AETHOf(b).Syndrome().ACK() || psnLess(c.acked, psn)
	if news || c.echoed {
		c.echoes = 0
		return
	}
	if hdr.PSNDiff(psn, c.acked) <= -longSince/2 {
		return
	}
	c.echoed = true
	if c.echoes++; c.echoes < 2 {
		return
	}
	for o := s.n.oldest(c); o != nil; o = s.n.behind(o) {
		if psnLess(psn, o.spsn) && o.kind != kRead && o.kind != kOdd {
			s.cut(c, o.spsn)
			return
		}
	}
	c.inDoubt = false // the WRITEs are executed
}

// mayAsk reports whether it is time to ask the server about connection c, which is given
// up when it is gone.
func (s *carrierSide) mayAsk(c *flow) bool {
	now := s.c.Now()
	switch {
	case now < s.n.ledger.mem.barred:
		return false
	case c.cur != none: // a question in the middle of a message would be an error
		if now.Sub(c.began) > s.cfg.giveup {
			s.fail(c)
		}
		return false
	case c.silent != 0 && c.tries > 2 && s.unanswered(c, c.silent):
		s.fail(c)
		return false
	}
	return c.tries == 0 || now.Sub(c.since) >= min(leastPatience<<min(c.tries, 10), clock.Duration(s.cfg.giveup)/5)
}

// fill sends what the server misses before the question of connection c, from the PSN on
// that it expects, and the question: some of it, the rest when that was answered.
func (s *carrierSide) fill(c *flow) {
	c.filled = c.next
	for range burst {
		if psnLess(c.gate, c.filled) || !s.emptyWrite(&c.up, c.filled) {
			break
		}
		c.filled = psnAdd(c.filled, 1)
	}
	c.tried(s.c.Now())
}

// concludes handles answer b, with PSN psn, when it is to the question of connection c, or
// to what fills the PSNs before that. False when it is not.
func (s *carrierSide) concludes(c *flow, psn uint32, b []byte) bool {
	if !c.gated || psnLess(psn, c.next) || psnLess(c.gate, psn) || s.f.Op != hdr.Acknowledge {
		return false
	}
	syn := s.f.AETHOf(b).Syndrome()
	c.hearsMSN(s.f.AETHOf(b).MSN())
	s.n.pulse.hear(c, s.c.Now(), s.cfg.giveup)
	c.hears(s.c.Now())
	switch {
	case syn.ACK():
		c.ack(psn) // first: the next process takes it from there
		c.noRead = psn | knownPSN
		if c.next = psnAdd(psn, 1); psn == c.gate {
			c.inDoubt, c.gated = false, false
		}
		if s.acked(c, psn); c.gated && c.next == c.filled {
			s.fill(c)
		}
	case syn == hdr.SynNAKSequence:
		c.next = psn
		if s.acked(c, psnAdd(psn, hdr.PSNMask)); c.gated {
			s.fill(c)
		}
	case syn.RNR(): // it is asked again in its time
		c.next = psn
		s.acked(c, psnAdd(psn, hdr.PSNMask))
	default:
		s.acked(c, psnAdd(psn, hdr.PSNMask))
		s.n.fatal(c, psn, syn)
	}
	return true
}

// cut: the server expects PSN psn on connection c. It has executed nothing of what has
// that or a later one: the clients of that are to send it again. The PSNs up to that of
// the question are filled.
func (s *carrierSide) cut(c *flow, psn uint32) {
	n := s.n
	last, o := (*op)(nil), n.oldest(c)
	for o != nil && psnLess(o.spsn, psn) {
		last, o = o, n.behind(o)
	}
	if last == nil {
		c.oldest, c.newest, c.next = none, none, psn
	} else {
		last.next, c.newest, c.next = none, n.place(last), psnAdd(last.spsn, last.npsn)
	}
	for o != nil {
		next := n.behind(o)
		n.shelf.unkeep(o)
		o.state, o.got = sUnsent, 0
		n.prompt(o, 0, hdr.SynNAKSequence)
		n.forget(o, false)
		o = next
	}
	if c.inDoubt = false; c.gated {
		s.fill(c)
	}
}
