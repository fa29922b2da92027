package swordbox

import (
	"math/bits"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
)

// tick is the longest time between two looks at connections.
const tick = clock.Duration(20 * time.Millisecond)

// mostSilence is the longest time between two questions about a quiet connection that the server does not answer. Until then each is twice as long after the one before.
const mostSilence = clock.Duration(time.Minute)

// Tick implements graph.Ticker. It looks at all connections (worker 0), at those that carry what is
// others', and at requests that wait.
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

// hasten sends again what is lost of others' operations, and lets go requests that have waited as
// long as they may. The result is when that is to be done again.
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

// lenders are connections that carry, or carried lately, operations of others, by their place.
type lenders struct {
	set []uint64
	n   int // how many there are
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

// all goes through them, until yield says that it is enough.
func (l *lenders) all(yield func(int32) bool) {
	for k := 0; k < len(l.set) && l.n > 0; k++ {
		for w := l.set[k]; w != 0; w &= w - 1 {
			if !yield(int32(64*k + bits.TrailingZeros64(w))) {
				return
			}
		}
	}
}

// inspection is one look at all connections, of which each call of inspectAll does a part: frames wait meanwhile.
type inspection struct {
	under bool           // way
	away  clock.Duration // how much later than due the app was called: for so long it heard nobody
	later clock.Duration // of it, what came when some had been looked at: these are excused the next time
	busy  bool

	conns, words, lent, held int
}

// mostInspected is how many connections are looked at in one go, and respite the time until the next ones.
const (
	mostInspected = 4096
	respite       = 200 * clock.Duration(time.Microsecond)
)

// inspectAll looks at connections, and says when it is to be called again (due).
func (s *Box) inspectAll(now clock.Time) {
	c, r := s.c, &s.round
	if !s.begun.Load() {
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
			n.pulse.excuse(late, now)
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
		r.lent += n.keys.lending
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

// inspectSome looks at connections of node n, which is this worker's, from n.inspected on, at most left. The result is how many more may be looked at; 0: n has more.
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
		}
		switch {
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
		case f.lost != 0 && now > f.lost && (f.told || s.cfg.mode == End || n.crowded() || now.Sub(f.lost) > s.cfg.idle):
			n.conns.Remove(n.slot(f)) // otherwise its client is told when it asks, whenever that is
		}
	}
	s.clients.settle()
	return left
}

// crowded reports whether so many connections are known that there may soon be no place for another one.
func (n *node) crowded() bool { return n.conns.Len() > len(n.flows)*3/4 }

// watch looks at connection c, which carries something.
func (s *carrierSide) watch(c *flow) {
	n := s.n
	now := s.c.Now()
	if c.cur != none && now.Sub(c.began) > s.cfg.giveup {
		n.keys.recall(c) // its client stopped in the middle of a message
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
		s.pump(c) // there was no buffer
		return
	}
	if n.handedOver(c) && c.writes == 0 {
		if n.ops[c.newest].word != lapsed && s.unanswered(c, c.stirred()) {
			n.lapse(c)
		}
		return // all else is its client's business
	}
	if c.silent != 0 && c.tries > 2 && s.unanswered(c, c.silent) {
		switch {
		case c.guests > 0 || c.writes > 0 || n.ops[c.oldest].is(fOrphan):
			s.fail(c)
		case n.ops[c.newest].word != lapsed: // a READ that is done again: its client goes on asking, or gives up by its own counts
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

// query asks the server whether its end of connection c is there, and still counts
// as is thought: by a repetition of a request of long ago, to which it acknowledges
// its newest request once more, whatever rights the queue pair has (IBTA 9.7.5.1.2).
// If the queue pair is another connection's by now, the server may expect any PSN: that
// of the newest request, in the repetition, might be the one, and would be taken for a request.
func (s *carrierSide) query(c *flow) {
	if c.asked != 0 {
		if s.c.Now().Sub(c.asking) < clock.Duration(s.cfg.giveup)/4 {
			return
		}
		c.tries = min(c.tries+1, 250) // in vain: the server may have moved
		s.readdress(c)
	}
	s.question(c, 0)
}

// question is query, asked again after a time: where a client asks for something again it asks each time.
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

// dispute has the server asked whether the queue pair that spoofed request b is for is still the connection's that is known, if it was not heard of
// that for alive=: its owner may be gone, and another client have it.
func (s *carrierSide) dispute(b []byte) {
	n := s.n
	slot, _ := n.conns.Find(s.ends.Dst, s.f.BTHOf(b).DestQP())
	if f := n.flow(int32(slot)); f != nil && f.synced && f.trusted && f.oldest == none && s.c.Now().Sub(f.heard) >= s.cfg.alive {
		f.disputed = true
		s.query(f)
	}
}

// unanswered reports whether the server has not answered on connection c since
// some time, although it did on others giveup= later: then its end of l is gone,
// and it is not the server that pauses. The others are asked if they are silent.
// When the server was silent on all, l has giveup= from its first answer on.
func (s *carrierSide) unanswered(c *flow, since clock.Time) bool {
	n := s.n
	now, giveup := s.c.Now(), clock.Duration(s.cfg.giveup)
	p := &n.pulse
	since = max(since, p.awake)
	heard := p.elsewhere(c)
	if heard.Sub(since) >= giveup/2 && now.Sub(since) >= giveup {
		return true
	}
	if now.Sub(max(since, p.asking)) < giveup/4 {
		return false
	}
	p.asking = now
	ask := func(f *flow) {
		if f != c && f.synced && f.trusted && !f.dead && !f.gone {
			s.query(f)
		}
	}
	if p.lastFrom != nil {
		ask(p.lastFrom) // the table may have room for many, and few be there
	}
	for range min(8, n.conns.Top()) {
		p.asks = (p.asks + 1) % int32(n.conns.Top())
		ask(&n.flows[p.asks])
	}
	s.askStrangers()
	return false
}
