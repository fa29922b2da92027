package swordbox

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// choose returns the connection for o, of flow fl, with word w (see words.of), or false if o must wait. x is o's
// key, or nil if o may not go over other clients' connections.
func (s *clientSide) choose(fl *flow, o *op, x *key, w int32) (*flow, bool) {
	n := s.n
	if o.kind == kSend || o.is(fOwn) || !s.cfg.mode.moves() {
		return overOwn(s, fl, o, x)
	}
	tracked := w != none || o.kind.atomic() && s.cfg.learn || s.cfg.tracked(o.va, o.len)
	if o.modifies() && (!tracked || o.wide()) {
		o.flags |= fBare
	}
	want := fl
	if tracked && len(x.lanesOf()) > 0 {
		want = x.laneOf(o)
	}
	// The connection that carries the operations under way to the word: also if o may not move there, but its
	// client has open operations.
	if w != none && n.words.w[w].flight > 0 && (len(x.lanesOf()) > 0 || fl.open > 0) {
		want = n.flow(n.words.w[w].lane)
	}
	again := o.kind == kRead && o.state == sDone // a responder answers a duplicate READ at once, whatever came since
	if fl.open > 0 && !again && (s.cfg.strict || o.wide() || fl.bare > 0) {
		return behindOpen(s, fl, o, x, want)
	}
	if w != none && fl.open > 0 && !again && (n.words.w[w].loose > 0 || n.words.w[w].flight == 0 && !n.words.settled(w, s.c.Now())) {
		return nil, false // one of them may be this client's
	}
	if want != fl && s.usable(want, fl, o, x) {
		return want, true
	}
	return overOwnOrWait(s, want, fl, o, x, w, again)
}

// overOwn is choose for an operation that must go over its client's own connection.
//
//go:noinline
func overOwn(s *clientSide, fl *flow, o *op, x *key) (*flow, bool) {
	return fl, (fl.open == 0 || !fl.mixed && s.n.flow(fl.lane) == fl) && s.usable(fl, fl, o, x)
}

// behindOpen is choose for an operation that must go behind its client's open operations. Where it should move from its
// client's own connection to a shared one, want, it waits until the open operations are done.
//
//go:noinline
func behindOpen(s *clientSide, fl *flow, o *op, x *key, want *flow) (*flow, bool) {
	n := s.n
	if s.cfg.strict && n.flow(fl.lane) == fl && want != fl && o.modifies() && !o.wide() && n.patient(fl, fl.stirred()) {
		return nil, false
	}
	return n.flow(fl.lane), !fl.mixed && s.usable(n.flow(fl.lane), fl, o, x)
}

// overOwnOrWait is choose for an operation that cannot go over want, if want is another client's connection: it
// waits for want, or goes over its own client's connection or another one. again says that o is a READ that is done
// again.
//
//go:noinline
func overOwnOrWait(s *clientSide, want, fl *flow, o *op, x *key, w int32, again bool) (*flow, bool) {
	n := s.n
	if want != fl {
		// An operation that is late does less harm than one that is out of order with its word's other
		// operations.
		if fl.open > 0 || w != none && o.kind.atomic() && n.flow(n.words.w[w].lane) == want && n.words.w[w].flight > 0 && s.awaitsLane(want, fl, o, x, w) {
			return nil, false
		}
	}
	if again && fl.unkept > 0 {
		if c := s.elsewhere(fl, o, x); c != nil {
			return c, true
		}
	}
	if fl.dead {
		for _, l := range x.lanesOf() {
			if s.usable(l, fl, o, x) {
				return l, true
			}
		}
	}
	return fl, s.usable(fl, fl, o, x)
}

// mostOthers is the number of connections that elsewhere looks at.
const mostOthers = 64

// elsewhere returns another connection for READ o of flow fl, with key x. The READ is done again while the client's own
// connection carries an operation that only the client can send again, for example a SEND without a receive buffer.
// elsewhere looks at mostOthers connections, beginning where the last call ended, and returns nil if none is able.
func (s *clientSide) elsewhere(fl *flow, o *op, x *key) *flow {
	n := s.n
	if x == nil {
		return nil
	}
	for range min(mostOthers, len(n.flows)) {
		n.pulse.asks = (n.pulse.asks + 1) % int32(len(n.flows))
		if c := &n.flows[n.pulse.asks]; c != fl && c.synced && s.c.Now().Sub(c.heard) <= s.cfg.alive && s.able(c, fl, o, x) {
			return c
		}
	}
	return nil
}

// awaitsLane reports whether atomic o, of flow fl, on word w, waits for connection want, which carries the word's other
// operations. It waits for its turn on want, or, if want cannot carry it, until no operation on the word is under way,
// so that all of them can go over another connection.
func (s *clientSide) awaitsLane(want, fl *flow, o *op, x *key, w int32) bool {
	n := s.n
	if !n.fits(want, fl, o, x) {
		n.waits.why = queue{forWord, w}
		return n.patient(fl, want.stirred())
	}
	n.waits.why = queue{forCarrier, n.index(want)}
	return n.patient(fl, want.stirred())
}

// usable reports whether connection c can carry o, of flow fl, at this time; if not, it sets waits.why to c. x is
// o's key, or nil if o may not go over other clients' connections.
func (s *clientSide) usable(c, fl *flow, o *op, x *key) bool {
	if s.able(c, fl, o, x) {
		return true
	}
	s.n.waits.why = queue{forCarrier, s.n.index(c)}
	return false
}

// unable reports whether c can carry no operation of any kind. able checks separately whether the server's end of c
// is in question (doubted).
func (c *flow) unable() bool {
	return !c.synced || c.unsure || c.is(unwell)
}

// mostBefore is the number of PSNs that may be under way on a connection, READs and atomics among them, when it takes
// another client's operation.
const mostBefore = 256

// able is usable, but does not set waits.why.
func (s *clientSide) able(c, fl *flow, o *op, x *key) bool {
	n := s.n
	if c.doubted {
		s.question(c, max(leastPatience, s.c.Now().Sub(c.asked)/8))
		return false
	}
	if c.unable() || (c.next-c.acked)&hdr.PSNMask > mostUnacked {
		return false
	}
	if c == fl {
		if c.mustRepeat() {
			return false
		}
		if c.guests == 0 { // its client keeps to the server's responder resources, but does not know of a READ that is done again
			return fl.rereads == 0 && o.state != sDone || o.kind != kRead && !o.kind.atomic() || c.rd == 0 || c.rd < n.depth(c)
		}
		if o.is(fOwn) || o.kind == kSend || !o.makeable() && (o.npsn > 1 || fl.unproven(o) || !n.shelf.roomy() || !n.shelf.mayHold(fl)) {
			c.claimed = true // it becomes free when the other clients' operations have ended
			return false
		}
	} else {
		if c.claimed || c.unkept > 0 || c.replayed != 0 && n.replaying(c) || n.waits.isForsaken(fl) || n.row(c).State == conn.Closing || !n.fits(c, fl, o, x) {
			return false
		}
		now := s.c.Now()
		if now.Sub(c.heard) > s.cfg.alive {
			s.carriers.query(c)
			return false
		}
		if c.oldest != none && now.Sub(c.stirred()) > n.pulse.overdue() {
			return false // its client may be gone, and what it carries lost
		}
		if c.rd > 0 && (c.next-c.acked)&hdr.PSNMask > mostBefore {
			return false // after the answers to its long READs
		}
	}
	if c != fl && !(n.ledger.mayDiverge(fl) && n.ledger.mayDiverge(c)) {
		return false // while no process runs, the kernel could not hold back the frames of both connections
	}
	return o.kind != kRead && (!o.kind.atomic() || n.foretold(o, c)) || n.takes(c, fl)
}
