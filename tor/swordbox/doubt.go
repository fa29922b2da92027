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
// So the server is asked which of them it executed. The question is an atomic that
// changes nothing (FETCH ADD of 0), with the PSN behind all that is open. It is on
// the word of one of them, so that its connection and its R_Key have the right to it.
// Either it is executed, then all is, or the server asks for the PSN that it misses:
// what has that or a later one was not executed. Frames of the other process may
// still come, until settle= after its end; until then nothing is asked.
//
// From the first question on its PSN is spent, whatever the server says: a copy of the
// question may be executed at any time, and then a request with that PSN would be taken
// for its repetition, and be acknowledged without being executed. So the connection
// carries nothing new until the answer to the question came. When the server misses
// PSNs before that one, they are filled with WRITEs of nothing, which the queue pair has
// the right to, as it takes WRITEs in the place of atomics; then the question comes to
// its turn. All of that is for the next process to go on with, too.

// inquire asks the server which of the operations that connection c carries it has
// executed.
func (s *wire) inquire(c *flow) {
	n, now := s.n, s.c.Now()
	if !s.mayAsk(c) {
		return
	}
	about, full := (*op)(nil), c.rd >= n.depth(c)
	for o := n.oldest(c); o != nil; o = n.behind(o) {
		switch {
		case o.is(fReplaced):
			about = o
		case o.answered() && full && !c.gated: // there is no room for another question: its answer tells the same
			s.make(c, o, o.got)
			c.tried(now)
			return
		}
	}
	if !c.gated && about == nil {
		return
	}
	if !c.gated {
		c.gate, c.askKey, c.askVA = c.next, about.rkey, about.va
		c.gated = true // last: the process may end between any two
	}
	s.ask(c)
	c.tried(now)
}

// mayAsk reports whether it is time to ask the server about connection c, which is given
// up when it is gone.
func (s *wire) mayAsk(c *flow) bool {
	now := s.c.Now()
	switch {
	case now < s.n.mem.barred:
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

// ask sends the question of connection c; false when there is no buffer.
func (s *wire) ask(c *flow) bool {
	o := op{kind: kFAA, va: c.askVA, rkey: c.askKey}
	x := s.blank(c.up.len() + hdr.AtomicETHLen + hdr.ICRCLen)
	if x == nil {
		return false
	}
	made := c.up.atomic(x.Bytes(), &o, nil, c.gate)
	s.seal(toServers, x, x.Bytes(), &made)
	s.c.Count(ctrProbes, 1)
	return true
}

// fill sends what the server misses before the question of connection c, from the PSN on
// that it expects, and the question: some of it, the rest when that was answered.
func (s *wire) fill(c *flow) {
	c.filled = c.next
	for range burst {
		last := c.filled == c.gate
		if last && !s.ask(c) || !last && !s.emptyWrite(c, c.filled) {
			break
		}
		if c.filled = psnAdd(c.filled, 1); last {
			break
		}
	}
	c.tried(s.c.Now())
}

// concludes handles answer b, with PSN psn, when it is to the question of connection c, or
// to what fills the PSNs before that. False when it is not.
func (s *wire) concludes(c *flow, psn uint32, b []byte) bool {
	if !c.gated || psnLess(psn, c.next) || psnLess(c.gate, psn) {
		return false
	}
	syn := hdr.SynACK
	if s.f.Op == hdr.Acknowledge {
		syn = s.f.AETHOf(b).Syndrome()
	} else if s.f.Op != hdr.AtomicAck || psn != c.gate {
		return false
	}
	if syn.RNR() {
		return false
	}
	s.n.hear(c)
	c.hears(s.c.Now())
	switch {
	case syn.ACK():
		c.ack(psn) // first: the next process takes it from there
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
	default:
		s.acked(c, psnAdd(psn, hdr.PSNMask))
		s.n.fatal(c, psn, syn)
	}
	return true
}

// cut: the server expects PSN psn on connection c. It has executed nothing of what has
// that or a later one: the clients of that are to send it again. The PSNs up to that of
// the question are filled.
func (s *wire) cut(c *flow, psn uint32) {
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
		n.unkeep(o)
		o.state, o.got = sUnsent, 0
		n.prompt(o, 0, hdr.SynNAKSequence)
		n.forget(o, false)
		o = next
	}
	if c.inDoubt = false; c.gated {
		s.fill(c)
	}
}
