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

// inquire asks the server which of the operations that connection l carries it has
// executed.
func (s *Box) inquire(l int32) {
	n, now := s.n, s.c.Now()
	c := &n.flows[l]
	if now < s.barred {
		return
	}
	if c.silent != 0 && c.tries > 2 && s.unanswered(l, c.silent) {
		s.fail(l)
		return
	}
	if c.tries > 0 && now.Sub(c.since) < s.patienceOf(c) {
		return
	}
	about, full := none, c.rd >= s.depth(l)
	for at := c.oldest; at != none; at = n.ops[at].next {
		switch o := &n.ops[at]; {
		case o.is(fReplaced):
			about = at
		case o.answered() && full: // there is no room for another question: its answer tells the same
			s.make(l, at, o.got)
			s.asksFor(c, now)
			return
		}
	}
	if about == none {
		return
	}
	o := op{kind: kFAA, va: n.ops[about].va, rkey: n.ops[about].rkey}
	x := s.blank(c.up.len() + hdr.AtomicETHLen + hdr.ICRCLen)
	if x == nil {
		return
	}
	s.makeAtomic(&c.up, x.Bytes(), &o, nil, c.next)
	s.c.Emit(toServers, x)
	s.c.Count(ctrProbes, 1)
	s.asksFor(c, now)
}

// asksFor notes that the server was asked something on connection c.
func (s *Box) asksFor(c *flow, now clock.Time) {
	c.since, c.timed = now, false
	if c.silent == 0 {
		c.silent = now
	}
	if c.tries < 255 {
		c.tries++
	}
}

// allExecuted: the server executed the question on connection l, and so all before it.
func (s *Box) allExecuted(l int32) {
	c := &s.n.flows[l]
	c.inDoubt = false
	c.next = psnAdd(c.next, 1)
	s.acked(l, psnAdd(c.next, hdr.PSNMask))
}

// cut: the server expects PSN psn on connection l. It has executed nothing of what has
// that or a later one: the clients of that are to send it again. The PSNs will be those
// of other operations. A copy of the question may still be under way; for as long as
// that may be, nothing has its PSN.
func (s *Box) cut(l int32, psn uint32) {
	n := s.n
	c := &n.flows[l]
	last := none
	at := c.oldest
	for at != none && psnLess(n.ops[at].spsn, psn) {
		last, at = at, n.ops[at].next
	}
	c.gated, c.gate, n.opens = true, c.next, s.c.Now().Add(s.cfg.settle)
	if c.newest = last; last == none {
		c.oldest, c.next = none, psn
	} else {
		o := &n.ops[last]
		o.next, c.next = none, psnAdd(o.spsn, o.npsn)
	}
	for at != none {
		o := &n.ops[at]
		next := o.next
		s.unkeep(o)
		o.state, o.got = sUnsent, 0
		n.prompt(at, 0, hdr.SynNAKSequence)
		s.forget(at, false)
		at = next
	}
	c.inDoubt = c.writes > 0
}

// shut reports whether o would have the PSN of a question that may be under way on
// connection c.
func (s *Box) shut(c *flow, o *op) bool {
	if s.c.Now() >= s.n.opens {
		c.gated = false
		return false
	}
	return hdr.PSNDiff(psnAdd(c.next, max(1, o.npsn)), c.gate) > 0
}
