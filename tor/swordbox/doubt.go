package swordbox

import (
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

// inquire asks the server which of the operations that connection c carries it has
// executed.
func (s *wire) inquire(c *flow) {
	n, now := s.n, s.c.Now()
	if now < n.mem.barred {
		return
	}
	if c.silent != 0 && c.tries > 2 && s.unanswered(c, c.silent) {
		s.fail(c)
		return
	}
	if c.tries > 0 && now.Sub(c.since) < c.timeout(s.cfg.giveup) {
		return
	}
	about, full := (*op)(nil), c.rd >= n.depth(c)
	for o := n.oldest(c); o != nil; o = n.behind(o) {
		switch {
		case o.is(fReplaced):
			about = o
		case o.answered() && full: // there is no room for another question: its answer tells the same
			s.make(c, o, o.got)
			c.tried(now)
			return
		}
	}
	if about == nil {
		return
	}
	o := op{kind: kFAA, va: about.va, rkey: about.rkey}
	x := s.blank(c.up.len() + hdr.AtomicETHLen + hdr.ICRCLen)
	if x == nil {
		return
	}
	made := c.up.atomic(x.Bytes(), &o, nil, c.next)
	s.seal(toServers, x, x.Bytes(), &made)
	s.c.Count(ctrProbes, 1)
	c.tried(now)
}

// allExecuted: the server executed the question on connection c, and so all before it.
// It may be a copy of a question that was answered by a cut, which came behind what
// was sent since.
func (s *wire) allExecuted(c *flow) {
	c.inDoubt, c.gated = false, false
	c.next = psnAdd(c.next, 1)
	s.acked(c, psnAdd(c.next, hdr.PSNMask))
}

// cut: the server expects PSN psn on connection c. It has executed nothing of what has
// that or a later one: the clients of that are to send it again. The PSNs will be those
// of other operations. A copy of the question may still be under way; for as long as
// that may be, nothing has its PSN.
func (n *node) cut(c *flow, psn uint32) {
	last, o := (*op)(nil), n.oldest(c)
	for o != nil && psnLess(o.spsn, psn) {
		last, o = o, n.behind(o)
	}
	c.gated, c.gate, n.opens = true, c.next, n.c.Now().Add(n.cfg.settle)
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
	c.inDoubt = c.writes > 0
}

// shut reports whether o would have the PSN of a question that may be under way on
// connection c.
func (n *node) shut(c *flow, o *op) bool {
	if n.c.Now() >= n.opens {
		c.gated = false
		return false
	}
	return hdr.PSNDiff(psnAdd(c.next, max(1, o.npsn)), c.gate) > 0
}
