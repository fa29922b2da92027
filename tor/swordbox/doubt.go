package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// A process that takes over has the PSNs and contents of all open operations. A request with a given PSN is
// only ever sent again with this PSN and unchanged.
//
// WRITEs in the place of atomics need more care. Each was computed from the value that its word had then.
// While no process ran, clients that were not held back may have changed the word. A WRITE that the server
// has executed is done. A WRITE that never reached the server must not be sent again, because it would undo
// their changes. Instead its client has to repeat the atomic, and the box finds a new outcome.
//
// So the box asks the server which of these WRITEs it executed. The question is a WRITE of no bytes, with the
// PSN behind all open operations. The queue pair has the right to write, since it carries WRITEs in the place
// of atomics, and no responder checks the R_Key of a WRITE of no bytes. If the server executes the question,
// it has executed all that is before it. Otherwise the server asks for the PSN that it misses: it has
// executed no request with this PSN or a later one. Frames of the other process may still arrive until
// settle= after its end. Until then the box asks nothing, and a NAK (PSN sequence error) says nothing,
// because the request that the NAK asks for may be under way.
//
// A server asks for a missing PSN once, and answers no later PSN until it has that one (rxe_resp.c:
// sent_psn_nak). If this NAK came too early, or was lost, the question gets no answer. So from the second
// question on the box also sends a duplicate of a request of long ago. The server answers this with the
// newest request that it has executed (see judge).
//
// From the first question on its PSN is used, whatever the server says: a copy of the question may be
// executed at any time. The server would then take another request with this PSN for a duplicate, and
// acknowledge it without executing it. So the connection carries nothing new until the question is answered.
// If the server misses PSNs before the question's, the box fills them with WRITEs of no bytes, and then the
// question has its turn. The next process goes on with all of this, too.

// inquire asks the server which of the operations that connection c carries it has executed. A server that
// sends answers, but none to the question for giveup=, will never answer it: then the connection fails. The time begins
// anew when the server was silent.
func (s *carrierSide) inquire(c *flow) {
	if c.heard.Sub(max(c.loaded, s.n.ledger.bar(), s.n.nicOf(c).pulse.awake)) >= clock.Duration(s.cfg.giveup) {
		s.fail(c)
		return
	}
	if !s.mayAsk(c) {
		return
	}
	if !c.gated {
		c.gate = c.next
		c.gated = true // stored last, because the process may end between any two stores
	}
	s.emptyWrite(&c.up, c.gate)
	if c.tries > 0 && s.emptyWrite(&c.up, c.longAgo()) {
		c.echoed = false
	}
	c.tried(s.c.Now())
}

// longSince is the distance in PSNs of the duplicate from the newest acknowledged PSN. By this distance the
// box recognises a server that acknowledges the duplicate's own PSN, which says nothing.
const longSince = farOff / 2

// longAgo returns the PSN of this duplicate. The PSN is not near the first PSN of the connection, because
// another connection with the same numbers may begin there, too.
func (c *flow) longAgo() uint32 {
	psn := (c.acked - longSince) & hdr.PSNMask
	if d := hdr.PSNDiff(psn, c.start); d > -narrow && d < narrow {
		psn = (psn - 2*narrow) & hdr.PSNMask
	}
	return psn
}

// judge learns from answer b, with PSN psn, to connection c in doubt, what the server has executed. If twice
// the only answer to a question and a duplicate is the acknowledgement of a PSN that was known to be
// executed, then nothing behind it was executed, except perhaps READs: Linux (rxe) acknowledges the newest
// request that was no READ. One such acknowledgement is not enough, because it may answer a duplicate that
// the other process sent, while requests behind that duplicate wait at a server that paused.
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
	c.inDoubt = false // the server has executed the WRITEs
}

// mayAsk reports whether it is time to ask the server about connection c. If the server's end of c is gone,
// or c is in the middle of a message for more than giveup=, c fails.
func (s *carrierSide) mayAsk(c *flow) bool {
	now := s.c.Now()
	switch {
	case now < s.n.ledger.bar():
		return false
	case c.cur != none: // the server would refuse a question in the middle of a message
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

// fill sends WRITEs of no bytes with the PSNs that the server misses before the question of connection c,
// from c.next on, and then the question. One call sends a burst at most; the answer to it makes room for the
// next.
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

// concludes handles answer b, with PSN psn, if it answers the question of connection c or a WRITE that fills
// the PSNs before the question. Otherwise it returns false.
func (s *carrierSide) concludes(c *flow, psn uint32, b []byte) bool {
	if !c.gated || psnLess(psn, c.next) || psnLess(c.gate, psn) || s.f.Op != hdr.Acknowledge {
		return false
	}
	syn := s.f.AETHOf(b).Syndrome()
	c.hearsMSN(s.f.AETHOf(b).MSN())
	s.n.nicOf(c).pulse.hear(c, s.c.Now(), s.cfg.giveup)
	c.hears(s.c.Now())
	switch {
	case syn.ACK():
		c.ack(psn) // first, because the next process relies on it
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
	case syn.RNR(): // the question is repeated when its time comes
		c.next = psn
		s.acked(c, psnAdd(psn, hdr.PSNMask))
	default:
		s.acked(c, psnAdd(psn, hdr.PSNMask))
		s.n.fatal(c, psn, syn)
	}
	return true
}

// cut ends the doubt about connection c. The server expects PSN psn, and has executed no request with this
// PSN or a later one. The clients of these requests have to send them again, and the PSNs up to the
// question's are filled.
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
