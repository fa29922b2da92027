package swordbox

import (
	"math/bits"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
)

// tick is the longest time between two inspections of all connections.
const tick = clock.Duration(20 * time.Millisecond)

// mostSilence is the longest time between two questions about a quiet connection that the server does not answer.
// The time begins with giveup= and doubles with each question.
const mostSilence = clock.Duration(time.Minute)

// Tick implements graph.Ticker. It inspects all connections (worker 0 only), and on each worker the connections that
// carry other clients' operations, and the requests that wait.
func (s *Box) Tick(c *graph.Ctx) clock.Time {
	now := c.Now()
	s.c = c
	if s.worker == 0 && now >= s.due {
		s.inspectAll(now)
	}
	next := clock.Never
	for _, n := range *s.nodes.Load() {
		s.own(n)
		next = min(next, s.hasten(now))
	}
	s.release()
	s.c = nil
	if s.worker == 0 {
		next = min(next, s.due)
	}
	return next
}

// hasten sends lost operations again on connections of the node that carry other clients' operations, and sends on
// requests that have waited as long as they may. It returns the time of the next call.
func (s *Box) hasten(now clock.Time) clock.Time {
	n, next := s.n, clock.Never
	for i := range n.lends.all {
		if f := &n.flows[i]; f.guests == 0 {
			n.lends.remove(i)
		} else {
			s.carriers.watch(f)
			next = now.Add(clock.Duration(leastPatience))
		}
	}
	if len(n.waits.all) > 0 {
		n.waits.rotate(mostResumed)
	}
	s.clients.settle()
	if len(n.waits.all) > 0 {
		next = min(next, now.Add(n.waits.haste()))
	}
	return next
}

// lenders is the set of the connections that carry, or carried lately, operations of other clients: a bit for each
// index.
type lenders struct {
	set []uint64
	n   int // number of connections in set
}

func (l *lenders) add(i int32) {
	if w, b := &l.set[i/64], uint64(1)<<(i%64); *w&b == 0 {
		*w |= b
		l.n++
	}
}

func (l *lenders) remove(i int32) {
	l.set[i/64] &^= 1 << (i % 64)
	l.n--
}

// all calls yield with the index of each connection in l, until yield returns false.
func (l *lenders) all(yield func(int32) bool) {
	for k := 0; k < len(l.set) && l.n > 0; k++ {
		for w := l.set[k]; w != 0; w &= w - 1 {
			if !yield(int32(64*k + bits.TrailingZeros64(w))) {
				return
			}
		}
	}
}

// inspection is one round over all connections. Each call of inspectAll does a part of it, because frames wait
// meanwhile.
type inspection struct {
	under bool           // under way
	away  clock.Duration // how much later than due the app was called: in this time it could not hear the server
	later clock.Duration // the part of it that fell between two calls of one round: the connections that this round had inspected are excused in the next one
	busy  bool

	conns, words, lent, held int
}

// mostInspected is the number of connections that one call of inspectAll inspects, and respite the time until the
// next call.
const (
	mostInspected = 4096
	respite       = 200 * clock.Duration(time.Microsecond)
)

// inspectAll inspects the next connections of the round, and sets due to the time of its next call.
func (s *Box) inspectAll(now clock.Time) {
	c, r := s.c, &s.round
	if !s.begun.Load() {
		if s.postpones(c, now) {
			s.due = now
			return
		}
		s.begin(now)
	}
	if s.restatic {
		s.reconnect()
	}
	late := clock.Duration(0)
	if s.due != 0 {
		late = now.Sub(s.due)
	}
	period := min(tick, clock.Duration(s.cfg.giveup/10))
	if late <= period {
		late = 0
	}
	if !r.under {
		*r = inspection{under: true, away: r.later}
		for _, n := range *s.nodes.Load() {
			s.own(n)
			n.inspected = 0
		}
	} else {
		r.later += late
	}
	if late > 0 {
		r.away += late
		for _, n := range *s.nodes.Load() {
			s.own(n)
			n.each(func(x *nic) { x.pulse.excuse(late, now) })
		}
	}
	left := mostInspected
	for _, n := range *s.nodes.Load() {
		if n.inspected < 0 {
			continue
		}
		s.own(n)
		if left = s.inspectSome(n, left); left == 0 {
			s.release()
			s.due = now.Add(respite)
			return
		}
		n.inspected = -1
		r.busy = r.busy || !n.strangers.Empty()
		if !n.idle() || n.kept || !s.cfg.mode.moves() {
			n.busy = now
		} else if now.Sub(n.busy) > s.cfg.idle {
			s.part(n)
			continue
		}
		r.conns += n.conns.Len()
		r.words += n.words.n
		n.each(func(x *nic) { r.lent += x.keys.lending })
		r.held += n.shelf.Len()
	}
	s.release()
	c.Set(ctrConns, uint64(r.conns))
	c.Set(ctrLanes, uint64(r.lent))
	c.Set(ctrWords, uint64(r.words))
	c.Set(ctrHeld, uint64(r.held))
	c.Set(ctrRecorded, uint64(s.recorded()))
	s.mem.alive(now)
	if r.busy {
		period = min(period, clock.Duration(leastPatience))
	}
	s.due, r.under = now.Add(period), false
}

// inspectSome inspects at most left connections of node n, which this worker owns, from n.inspected on. It returns how
// many more may be inspected in this call of inspectAll; after 0 the next call goes on with n.
func (s *Box) inspectSome(n *node, left int) int {
	now := s.c.Now()
	if n.inspected == 0 {
		n.conns.Sweep(now)
	}
	end := min(n.inspected+left, n.conns.Top())
	for ; n.inspected < end; n.inspected++ {
		left--
		f := &n.flows[n.inspected]
		if s.round.away > 0 {
			f.excuse(s.round.away, now)
			n.nics.excuse(f, s.round.away, now)
		}
		switch {
		case f.lost != 0:
			// What a client may still send under the old numbers must not cross, however late it is. Where the server's end is
			// gone nothing of it is executed, and a client that does not repeat its oldest request any more sends nothing.
			if isOver(s, f, now) {
				n.conns.Remove(n.slot(f))
			}
		case f.quiet && now.Sub(f.heard) < s.cfg.idle:
			f.quiet = false // the server's end is there
		case f.synced && (f.oldest != none || f.gated) && !(f.quiet && n.hasLapsed(f)):
			s.carriers.watch(f)
			s.round.busy = s.round.busy || f.inDoubt || f.gated
		case (f.disputed || f.quiet && now.Sub(f.asked) > 10*clock.Duration(s.cfg.giveup) && (!f.bound || n.crowded())) && f.asked != 0 && s.carriers.unanswered(f, f.asked):
			s.c.Count(ctrGone, 1)
			s.clients.forsake(f)
		case f.disputed || f.quiet && now.Sub(f.asking) >= min(clock.Duration(s.cfg.giveup)<<min(f.tries, 20), mostSilence):
			s.carriers.query(f)
		}
	}
	s.clients.settle()
	return left
}

// crowded reports whether more than three quarters of the node's places for connections are taken.
func (n *node) crowded() bool { return n.conns.Len() > len(n.flows)*3/4 }

// watch checks connection c, which has open operations or a question, for lost requests and for a server that is gone.
func (s *carrierSide) watch(c *flow) {
	n := s.n
	now := s.c.Now()
	if c.cur != none && now.Sub(c.began) > s.cfg.giveup {
		n.nicOf(c).keys.recall(c) // its client stopped in the middle of a message
	}
	if n.others != nil && c.writes > 0 && outlasts(s, c) {
		return
	}
	if c.inDoubt {
		s.inquire(c)
		return
	}
	if c.gated && s.mayAsk(c) {
		s.fill(c)
	}
	if c.oldest == none {
		return
	}
	if c.repair {
		s.pump(c) // the buffer that was missing may be there now
		return
	}
	if n.handedOver(c) && c.writes == 0 {
		if n.ops[c.newest].word != lapsed && s.unanswered(c, c.stirred()) {
			n.lapse(c)
		}
		return // its client sends again what is missing
	}
	if c.silent != 0 && c.tries > 2 && s.unanswered(c, c.silent) {
		switch {
		case c.guests > 0 || c.writes > 0 || n.ops[c.oldest].is(fOrphan):
			s.fail(c)
		case n.ops[c.newest].word != lapsed: // a READ that is done again: its client goes on repeating, or gives up
			n.lapse(c)
		}
		return
	}
	if o := n.oldest(c); s.suspects(c, o) {
		goal := c.suspect
		c.suspect = 0
		s.again(c, o.spsn, goal)
	} else if now.Sub(max(c.loaded, c.since, c.heard)) >= c.timeout(s.cfg.giveup) {
		s.nudge(c)
	}
}

// query asks the server whether its end of connection c is there and has the expected numbering. It sends a
// duplicate of a request of long ago, to which the server acknowledges its newest request once more, whatever rights
// the queue pair has (IBTA 9.7.5.1.2). The duplicate does not have the PSN of the newest request: if the queue pair
// belongs to another connection, the server may expect just this PSN, and would execute the duplicate as a request.
func (s *carrierSide) query(c *flow) {
	if c.asked != 0 {
		if s.c.Now().Sub(c.asking) < clock.Duration(s.cfg.giveup)/4 {
			return
		}
		c.tries = min(c.tries+1, 250) // no answer: the server's MAC address may have changed
		s.readdress(c)
	}
	s.question(c, 0)
}

// question sends the question of query, but not within the time again after the last one. It sends nothing if c is
// dead, not trusted or in doubt.
func (s *wire) question(c *flow, again clock.Duration) {
	now := s.c.Now()
	if c.dead || !c.trusted || c.inDoubt || c.asked != 0 && now.Sub(c.asking) < again {
		return
	}
	if !s.emptyWrite(&c.up, c.longAgo()) {
		return
	}
	c.owed += min(1, 255-c.owed)
	if c.asking = now; c.asked == 0 {
		c.asked = now
	}
}

// dispute asks the server whether the destination queue pair of the spoofed request b still belongs to its known
// connection, if the server was silent there for alive=: the owner may be gone, and another client may have the
// queue pair.
func (s *carrierSide) dispute(b []byte) {
	n := s.n
	slot, _ := n.conns.Find(s.ends.Dst, s.f.BTHOf(b).DestQP())
	if f := n.flow(int32(slot)); f != nil && f.synced && f.trusted && f.oldest == none && s.c.Now().Sub(f.heard) >= s.cfg.alive {
		f.disputed = true
		s.query(f)
	}
}

// unanswered reports whether the server, which has not answered on connection c since the time since, has answered on
// another connection long enough after that time. Then its end of c is gone, and the server does not only pause. If the
// other connections are silent, unanswered asks the server over some of them. After a silence on all connections
// the time for c begins with the server's first answer.
func (s *carrierSide) unanswered(c *flow, since clock.Time) bool {
	n := s.n
	now, giveup := s.c.Now(), clock.Duration(s.cfg.giveup)
	nic := n.nicOf(c)
	p := &nic.pulse
	since = max(since, p.awake)
	heard := p.elsewhere(c)
	if heard.Sub(since) >= giveup/2 && now.Sub(since) >= giveup {
		return true
	}
	if now.Sub(max(since, p.asking)) < giveup/4 {
		return false
	}
	p.asking = now
	hail(s, nic, c)
	s.askStrangers()
	return false
}
