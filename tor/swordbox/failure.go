package swordbox

import (
	"github.com/quillon/quillon/nf/hdr"
)

// fatal ends connection c after the server refused the request with PSN psn by a NAK with syndrome syn. The server's
// queue pair is in the error state. It executed the operations before psn, although their answers may be lost, and
// none behind.
func (n *order) fatal(c *flow, psn uint32, syn hdr.Syndrome) {
	for o := n.oldest(c); o != nil; o = n.oldest(c) {
		if d := hdr.PSNDiff(psn, o.spsn); d < 0 {
			break
		} else if d < int32(o.npsn) || o.npsn == 0 {
			n.unlink(o)
			n.failed(o, syn, uint32(d))
			n.nicOf(c).keys.refused(o, n.c.Now().Add(distrust))
			n.forget(o, false)
			break
		}
		known := !o.answered() || o.kind == kRead
		if !known && o.is(fForetold) && n.foresaw(o) { // the server has executed it, and its word did not change in between
			o.prior, known = n.beside(o).want, true
		}
		n.lose(o, known)
	}
	n.c.Count(ctrFailedLanes, 1)
	n.bury(c, false)
}

// lose removes operation o, the oldest of its connection, from the connection, because no answer to o will come.
// harmless says that o was executed and its answer is known. A READ is to be sent again by its client; another
// operation that is not harmless fails with a REMOTE OPERATIONAL ERROR.
func (n *order) lose(o *op, harmless bool) {
	n.unlink(o)
	n.shelf.unkeep(o)
	done := false
	switch {
	case o.kind == kRead:
		o.state, o.got = sUnsent, 0
		o.flags &^= fEarly
		n.prompt(o, 0, hdr.SynNAKSequence)
	case harmless:
		o.state, done = sDone, true
	default:
		n.failed(o, hdr.SynNAKRemoteOperation, 0)
	}
	n.forget(o, done)
}

// fail gives up connection c. The server may or may not have executed the operations that c carried.
func (s *carrierSide) fail(c *flow) {
	s.c.Count(ctrFailedLanes, 1)
	s.bequest(c)
}

// bury ends connection c. doubt says that the server may have executed the operations that c carries. READs can then
// be done again, and so can, over another connection, operations that leave a known value in their word (decided),
// because only operations behind them, which come again behind them, can have been executed since. The latter are
// appended to the operations of successor, from PSN from on, and the caller has to send them (see bequest). All
// other operations end their clients' connections.
func (n *order) bury(c *flow, doubt bool) (successor *flow, from uint32) {
	c.dead, c.repair, c.inDoubt, c.gated = true, false, false, false
	n.nicOf(c).keys.recall(c)
	n.waits.wake(queue{forCarrier, n.index(c)})
	for o := n.oldest(c); o != nil; o = n.oldest(c) {
		if doubt && !o.executed(&c.carrier) && n.decided(o) && (o.is(fOrphan) || n.flowOf(o).bound || n.ledger.journaled(n.flowOf(o))) {
			if successor == nil {
				if successor = n.successor(c, o); successor != nil {
					from = successor.next
				}
			}
			if successor != nil && successor == n.successor(c, o) {
				n.bequeath(o, successor)
				continue
			}
		}
		if doubt {
			n.lose(o, o.executed(&c.carrier))
			continue
		}
		n.unlink(o)
		n.shelf.unkeep(o)
		o.state, o.got = sUnsent, 0
		n.prompt(o, 0, hdr.SynNAKSequence)
		n.forget(o, false)
	}
	return successor, from
}

// bequest ends connection c, whose operations the server may or may not have executed, and sends those that bury has
// moved to another connection.
func (s *carrierSide) bequest(c *flow) {
	if successor, from := s.n.bury(c, true); successor != nil && successor.next != from && !successor.repair {
		s.again(successor, from, successor.next)
	}
}

// successor returns a connection that can carry operation o of connection l: one of the key's lanes, or else the one
// that was heard last among mostSuccessors others. It returns nil if there is none.
func (n *order) successor(l *flow, o *op) *flow {
	x := n.nicOf(l).keys.find(o.rkey)
	if x == nil || x.until != 0 || !o.is(fRight) || !x.allows(o, accessOf(o)) {
		return nil // the server may refuse it, which would end the successor
	}
	can := func(c *flow) bool {
		return c != l && c.trusted && !c.dead && !c.gone && !c.unsure && c.unkept == 0 && c.cur == none && !c.repair && !c.inDoubt && !c.gated &&
			c.may>>aWrite&1 != 0 && c.may>>accessOf(o)&1 != 0 && c.granted(x)
	}
	for _, c := range x.lanes {
		if can(c) && n.ledger.mayDiverge(c) {
			return c
		}
	}
	best := (*flow)(nil)
	for k := range min(len(n.flows), mostSuccessors) {
		if c := &n.flows[(int(n.index(l))+1+k)%len(n.flows)]; can(c) && (best == nil || c.heard > best.heard) {
			best = c
		}
	}
	if best != nil && !n.ledger.mayDiverge(best) {
		return nil
	}
	if best != nil && n.cfg.mode.moves() {
		n.nicOf(best).keys.lend(best, x, n.c.Now())
	}
	return best
}

// mostSuccessors is the number of connections that successor looks at.
const mostSuccessors = 1024

// decided reports whether the open operation o leaves a value in its word that was known when o was sent and is still
// known, and no operation of its client has failed.
func (n *order) decided(o *op) bool {
	if o.word < 0 || o.is(fLoose|fOwn) || !n.words.believes(&n.words.w[o.word]) || !o.is(fReplaced) && (o.kind != kWrite || o.npsn != 1) {
		return false
	}
	return o.is(fOrphan) || !n.flowOf(o).failed
}

// bequeath moves operation o, the oldest of its connection, to the end of the operations of connection c. The caller
// has to send it.
func (n *order) bequeath(o *op, c *flow) {
	n.unlink(o)
	n.carrier(o).count(o, -1)
	if o.is(fGuest) {
		n.nicOf(c).keys.guest(o, -1)
	}
	o.flags &^= fGuest
	if i := n.flowOf(o); i != c {
		o.flags |= fGuest
		n.nicOf(c).keys.guest(o, 1)
		n.lends.add(n.index(c))
		n.ledger.diverge(c)
		if !o.is(fOrphan) {
			n.ledger.diverge(i)
		}
	}
	if !o.is(fOrphan) {
		f := n.flowOf(o)
		f.mixed = f.mixed || f.open > 1
		f.lane = n.index(c)
	}
	c.count(o, 1)
	o.spsn = c.next
	o.lane = n.index(c)
	n.words.w[o.word].lane = o.lane
	n.link(c, o, n.c.Now())
	c.next = psnAdd(c.next, o.npsn)
}

// forsake gives up flow fl, whose server does not answer whether its end is there. If the two ends of fl count
// differently, fl stays on record as gone, so that its client, which may still be there, gets a NAK when it sends a
// request.
func (s *clientSide) forsake(fl *flow) {
	n := s.n
	if !fl.bound || fl.gone {
		n.conns.Remove(n.slot(fl))
		return
	}
	una := n.una(fl)
	leave(s, fl)
	*fl = noFlow
	fl.synced, fl.gone, fl.bound, fl.quiet, fl.span = true, true, true, true, min(n.window, narrow)
	fl.ended, fl.lost = una|knownPSN, s.c.Now().Add(keepGone)
}

// remove clears flow fl, whose connection is gone.
func (s *clientSide) remove(fl *flow) {
	n := s.n
	if !fl.synced {
		n.ledger.unjournal(fl)
		*fl = noFlow // what it learnt meanwhile is not the next connection's
		return
	}
	leave(s, fl)
	n.ledger.strike(fl)
	*fl = noFlow
}

// leave makes the open operations of flow fl orphans, which need no answer to its client, and ends fl's carrier
// (bequest).
func leave(s *clientSide, fl *flow) {
	n := s.n
	for o := n.oldest(fl); o != nil; o = n.behind(o) {
		if n.flowOf(o) == fl {
			o.flags |= fOrphan
		}
	}
	n.dismiss(fl, reasonReset)
	if fl.oldest != none {
		s.c.Count(ctrFailedLanes, 1)
	}
	s.carriers.bequest(fl)
	for k := fl.first; k != fl.tail; k++ {
		if o := n.op(fl, k); o.state == sOpen {
			o.flags |= fOrphan // it stays on the connection that carries it, because operations behind it need it
		} else {
			n.shelf.unkeep(o)
		}
	}
}
