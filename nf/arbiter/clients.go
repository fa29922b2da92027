package arbiter

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
)

// admit finds the client that a message is of, or makes it one that is known.
func (s *state) admit(now clock.Time, m *message.Message, from *peer) (int32, message.Result) {
	k := clientKey{from.ip, from.vids(), m.Client}
	at := s.byKey.Find(&k, k.hash(s.lines.seed))
	if at < 0 {
		if !s.offered(now, from, m) {
			return -1, message.NoSession
		}
		return s.enrol(m, from)
	}
	i := s.byKey.At(at).Val
	c := &s.clients[i]
	if c.session != m.Session || c.incarnation != m.Incarnation || c.from.port != from.port {
		switch {
		case !s.offered(now, from, m):
			return -1, message.NoSession
		case m.Incarnation < max(c.incarnation, c.heir):
			return -1, message.Stale
		case m.Incarnation > c.incarnation:
			return i, s.inherit(now, i, m)
		}
		c.session = m.Session
	}
	if c.state == live {
		return i, message.OK
	}
	return -1, message.Lost
}

// enrol makes a client known.
func (s *state) enrol(m *message.Message, from *peer) (int32, message.Result) {
	n := len(s.freeClients)
	k := clientKey{from.ip, from.vids(), m.Client}
	if n == 0 || !s.settles(k) { // counted
		return -1, message.Full
	}
	i := s.freeClients[n-1]
	at := s.byKey.Add(&k, k.hash(s.lines.seed))
	if at < 0 {
		s.goes(k)
		return -1, message.Full
	}
	s.freeClients = s.freeClients[:n-1]
	s.byKey.At(at).Val = i
	s.anew(i, m, from)
	return i, message.OK
}

// anew has a client's record say that an incarnation of it lives, and holds nothing.
func (s *state) anew(i int32, m *message.Message, from *peer) {
	c := &s.clients[i]
	s.known[i] = about{grants: -1}
	atomic.StoreUint32(&c.state, free) // nobody's, in between
	*c = client{number: m.Client, incarnation: m.Incarnation, session: m.Session, from: *from}
	atomic.StoreUint32(&c.state, live)
}

// inherit has a later incarnation of client i wait for the end of what is there, or takes its place.
func (s *state) inherit(now clock.Time, i int32, m *message.Message) message.Result {
	c, k := &s.clients[i], &s.known[i]
	from := c.from
	switch {
	case c.state == live && k.holds == 0:
		s.leaveAll(i)
		s.anew(i, m, &from)
		return message.OK
	case c.heir != m.Incarnation:
		c.heir, k.heirAt = m.Incarnation, now
	}
	if c.state == live {
		s.die(now, i)
	}
	m.Wait = uint32(fences / time.Millisecond)
	if c.state == dying {
		m.Wait = max(m.Wait, millis(s.due.when[i].Sub(now)))
		return message.Settling
	}
	if s.blind() {
		return message.Settling
	}
	settle := s.settle
	for _, t := range s.shutOut(c) {
		wait, _ := s.fence.Shut(netip.AddrFrom4(c.from.ip), netip.AddrFrom4(t.server), t.qpn, c.from.vids()) // as it is: it is ours again, after a restart
		settle = max(settle, wait)
	}
	if left := k.heirAt.Add(settle).Sub(now); left > 0 { // what its predecessor sent last
		m.Wait = millis(left)
		return message.Settling
	}
	for _, t := range s.shutOut(c) {
		s.fence.Lift(netip.AddrFrom4(c.from.ip), netip.AddrFrom4(t.server), t.qpn, c.from.vids())
	}
	s.anew(i, m, &from)
	return message.OK
}

// shutOut returns the targets of a client from which it is shut out, and forgets its other targets. Without fence= nobody shuts it out:
// an entry from before stays in the fence until an operator lifts it.
func (s *state) shutOut(c *client) []target {
	if s.fence == nil {
		return nil
	}
	n := 0
	for _, t := range c.targets[:c.nTargets] {
		if s.fence.Shuts(netip.AddrFrom4(c.from.ip), netip.AddrFrom4(t.server), t.qpn, c.from.vids()) {
			c.targets[n] = t
			n++
		}
	}
	c.nTargets = uint32(n)
	return c.targets[:n]
}

// renew prolongs a client's lease.
func (s *state) renew(now clock.Time, i int32, m *message.Message, from *peer) message.Result {
	if m.Lease == 0 {
		return message.Refused
	}
	c, k := &s.clients[i], &s.known[i]
	c.from = *from
	c.lease = min(m.Lease, uint32(s.lease/time.Millisecond))
	k.heard, k.ends = now, max(k.ends, now.Add(time.Duration(c.lease)*time.Millisecond))
	s.plan(i)
	return message.OK
}

// plan has a living client's end come in time.
func (s *state) plan(i int32) {
	at := s.known[i].ends
	if s.known[i].holds == 0 {
		at = s.known[i].heard.Add(idle)
	}
	s.due.set(i, at)
}

// die begins to end a client's incarnation.
func (s *state) die(now clock.Time, i int32) {
	s.leaveAll(i)
	s.known[i].closed = false
	atomic.StoreUint32(&s.clients[i].state, dying)
	s.counts[ctrDied]++
	s.due.set(i, now)
}

// client does what is due about a client.
func (s *state) client(now clock.Time, i int32) {
	c, k := &s.clients[i], &s.known[i]
	switch c.state {
	case live:
		switch {
		case k.holds > 0 && k.ends > now || k.holds == 0 && k.heard.Add(idle) > now:
			s.plan(i)
		case k.holds > 0:
			s.die(now, i)
		default:
			s.forget(i)
		}
	case dying:
		s.end(now, i)
	case shut:
		if s.fenceName != "" && (s.blind() || len(s.shutOut(c)) > 0) {
			s.due.set(i, now.Add(idle))
			return
		}
		s.forget(i)
	}
}

// end shuts a client out, waits until nothing of it is under way, and then gives back what it held, some at a time.
func (s *state) end(now clock.Time, i int32) {
	c, k := &s.clients[i], &s.known[i]
	if !k.closed {
		wait := s.settle
		if s.fenceName != "" {
			for _, t := range c.targets[:c.nTargets] {
				ok := false
				if s.fence != nil {
					var settle time.Duration
					settle, ok = s.fence.Shut(netip.AddrFrom4(c.from.ip), netip.AddrFrom4(t.server), t.qpn, c.from.vids())
					wait = max(wait, settle)
				}
				if !ok {
					s.counts[ctrUnfenced]++
					s.due.set(i, now.Add(again))
					return
				}
			}
		}
		k.closed = true
		s.due.set(i, now.Add(wait))
		return
	}
	for n := 0; k.grants >= 0; {
		if n += s.undo(k.grants); n >= slice {
			s.due.set(i, now)
			return
		}
	}
	atomic.StoreUint32(&c.state, shut)
	s.due.set(i, now.Add(idle))
}

// forget frees a client's record.
func (s *state) forget(i int32) {
	c := &s.clients[i]
	s.leaveAll(i)
	k := c.key()
	if at := s.byKey.Find(&k, k.hash(s.lines.seed)); at >= 0 {
		s.byKey.Del(at)
		s.goes(k)
	}
	atomic.StoreUint32(&c.state, free)
	s.due.remove(i)
	s.freeClients = append(s.freeClients, i)
}
