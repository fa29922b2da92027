package swordbox

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// One NIC of a server with several may be silent for ever, with WRITEs in the place of atomics under way. Nobody knows
// whether the NIC executed them, and the words are common to all NICs. A copy of such a WRITE that is executed late
// would undo what clients of the other NICs have changed meanwhile. So their requests to its word wait, but not for
// ever:
//
//   - When the NIC was silent for mostPause and another one was heard then, the box ceases to send the WRITEs again
//     (halt). It only asks whether the NIC is there. When the NIC is heard, the box goes on as before. If it was in doubt
//     already what the NIC has executed (doubt.go), or came to be meanwhile, it asks that.
//   - When lifetime and settle= have passed since, and another NIC was heard then, no copy is under way any more. The
//     words are released: their values are unknown, and no request to them waits.
//
// The operations stay on record, as released (fReleased), so that the next process holds no word for them. When the NIC is heard again, the box asks which of them it has executed, as a process
// does that takes over (doubt.go). So no client of the silent NIC is told an error that it would not get on a bare wire.

// mostPause is how long a NIC may be silent until the box ceases to send WRITEs in the place of atomics again.
const mostPause = clock.Duration(30 * time.Second)

// lifetime is longer than a frame can be under way to memory. A bridge discards a frame after 4 s at the latest (IEEE
// 802.1Q, frame lifetime). A NIC that waits for the server's memory gives up after 64 s at the latest (PCI Express,
// completion timeout, range D). settle= is added to it, for what the operator knows to be longer.
const lifetime = clock.Duration(68 * time.Second)

// halt says of a connection, while it is in doubt, that the box has ceased to send its operations again because its NIC is silent.
type halt struct {
	at   clock.Time // when the box ceased; 0: it did not; isReleased: the words were released since
	asks bool       // it was in doubt before: the server is asked what it has executed before anything is sent again
}

const isReleased = clock.Never

// excuse does not count the time away, in which the app did not run, as lifetime of what connection f has sent: it may have left only now.
func (n *nics) excuse(f *flow, away clock.Duration, now clock.Time) {
	if n.halted == nil {
		return
	}
	if h := &n.halted[n.r.index(f)]; h.at != 0 && h.at != isReleased {
		h.at = min(h.at.Add(away), now)
	}
}

// isMute reports whether the box has ceased to send to a NIC since it was last heard.
func (x *nic) isMute() bool { return x.mute != 0 && x.pulse.lastHeard <= x.mute }

// besides reports whether another NIC than x was heard at time t or later.
func (n *nics) besides(x *nic, t clock.Time) (heard bool) {
	n.each(func(y *nic) { heard = heard || y != x && y.name != (name{}) && y.pulse.lastHeard >= t })
	return heard
}

// outlasts handles connection c, which carries WRITEs in the place of atomics, while its NIC is silent. It returns true
// if nothing else is to be done for c.
func outlasts(s *carrierSide, c *flow) bool {
	n, now := s.n, s.c.Now()
	x, h := n.nicOf(c), &n.halted[n.index(c)]
	if !c.inDoubt {
		*h = halt{}
	}
	since := max(c.silent, x.pulse.lastHeard)
	switch {
	case h.at == isReleased || h.at == 0 && (c.silent == 0 || now.Sub(since) < mostPause):
		return false
	case h.at == 0 && n.besides(x, since.Add(mostPause)):
		*h, x.mute = halt{now, c.inDoubt}, now
		c.inDoubt, c.repair = true, false
	case h.at != 0 && x.pulse.lastHeard > h.at:
		h.at, c.inDoubt = 0, c.gated || h.asks
		return false
	case h.at != 0 && n.besides(x, h.at.Add(lifetime).Add(s.cfg.settle)):
		h.at, c.loaded = isReleased, now // inquire begins
		n.release(c)
		return false
	}
	if every := clock.Duration(s.cfg.giveup) / 4; now.Sub(x.hailed) >= every {
		x.hailed = now
		n.each(func(y *nic) { hail(s, y, c) })
	}
	if h.at == 0 || c.gated {
		return false
	}
	if now.Sub(c.since) >= clock.Duration(s.cfg.giveup)/4 && s.emptyWrite(&c.up, c.longAgo()) { // it may be the only connection to its NIC
		c.tried(now)
	}
	return true
}

// release takes the operations that connection c carries, whose NIC is silent, out of the counts of words. Of a message
// whose packets are still to come the client may send more.
func (n *order) release(c *flow) {
	for o := n.oldest(c); o != nil; o = n.behind(o) {
		w := o.word
		if !o.modifies() || w == lapsed || n.place(o) == n.flowOf(o).cur {
			continue
		}
		n.words.leave(o, n.place(o), n.beside(o), false, n.c.Now())
		if o.is(fReplaced) {
			o.flags |= fReleased
		}
		if o.word = lapsed; w >= 0 {
			n.waits.wake(queue{forWord, w})
		}
	}
	n.waits.wake(queue{})
	n.c.Count(ctrLapsed, 1)
}

// hail asks a NIC whether it is there, over some of its connections other than c: that of the newest answer, because few
// of the table's places may have connections, and others by turns.
func hail(s *carrierSide, x *nic, c *flow) {
	n := s.n
	ask := func(f *flow) {
		if f != c && f.synced && f.trusted && !f.dead && !f.gone && n.nicOf(f) == x {
			s.query(f)
		}
	}
	if x.pulse.lastFrom != nil {
		ask(x.pulse.lastFrom)
	}
	for range min(8, n.conns.Top()) {
		x.pulse.asks = (x.pulse.asks + 1) % int32(n.conns.Top())
		ask(&n.flows[x.pulse.asks])
	}
}
