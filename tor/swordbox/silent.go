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
//     (halt). It only asks whether the NIC is there. When the NIC is heard, the box goes on as before.
//   - When lifetime and settle= have passed since, and another NIC was heard then, no copy is under way any more. The
//     words are released: their values are unknown, and no request to them waits.
//
// The operations stay on record. When the NIC is heard again, the box asks which of them it has executed, as a process
// does that takes over (doubt.go). So no client of the silent NIC is told an error that it would not get on a bare wire.

// mostPause is how long a NIC may be silent until the box ceases to send WRITEs in the place of atomics again.
const mostPause = clock.Duration(30 * time.Second)

// lifetime is longer than a frame can be under way to memory. A bridge discards a frame after 4 s at the latest (IEEE
// 802.1Q, frame lifetime). A NIC that waits for the server's memory gives up after 64 s at the latest (PCI Express,
// completion timeout, range D). settle= is added to it, for what the operator knows to be longer.
const lifetime = clock.Duration(68 * time.Second)

// isReleased is the value of nics.halted of a connection whose words were released.
const isReleased = clock.Never

// isMute reports whether the box has ceased to send to a NIC since it was last heard.
func (x *nic) isMute() bool { return x.mute != 0 && x.pulse.lastHeard <= x.mute }

// besides reports whether another NIC than x was heard at time t or later.
func (n *nics) besides(x *nic, t clock.Time) (heard bool) {
	n.each(func(y *nic) { heard = heard || y != x && y.mac != 0 && y.pulse.lastHeard >= t })
	return heard
}

// outlasts handles connection c, which carries WRITEs in the place of atomics, while its NIC is silent. It returns true
// if nothing else is to be done for c.
func outlasts(s *carrierSide, c *flow) bool {
	n, now := s.n, s.c.Now()
	x, at := n.nicOf(c), &n.halted[n.index(c)]
	if !c.inDoubt {
		*at = 0
	}
	since := max(c.silent, x.pulse.lastHeard)
	switch {
	case *at == isReleased || *at == 0 && (c.silent == 0 || now.Sub(since) < mostPause):
		return false
	case *at == 0 && n.besides(x, since.Add(mostPause)):
		*at, x.mute = now, now
		c.inDoubt, c.repair = true, false
	case *at != 0 && x.pulse.lastHeard > *at:
		*at, c.inDoubt = 0, c.gated
		return false
	case *at != 0 && n.besides(x, at.Add(lifetime).Add(s.cfg.settle)):
		*at, c.loaded = isReleased, now // inquire begins
		n.release(c)
		return false
	}
	if every := clock.Duration(s.cfg.giveup) / 4; now.Sub(x.hailed) >= every {
		x.hailed = now
		n.each(func(y *nic) { hail(s, y, c) })
	}
	if *at == 0 || c.gated {
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
		n.pulse.asks = (n.pulse.asks + 1) % int32(n.conns.Top())
		ask(&n.flows[n.pulse.asks])
	}
}
