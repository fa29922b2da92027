package firewall

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
)

// Open connections are decided (package offload): the kernel runs their frames. It notes the numbers of TCP as
// the functions of this file do, and compares them for the connections whose numbers are compared here. The times
// and numbers of such a connection are in its entry; a function that needs them asks for them first (hold, over).

// decide adds the firewall's Part to the draft of frame x, which belongs to the connection in a.place.
func (a *app) decide(c *graph.Ctx, in int, x *packet.Buf, q *ask) {
	if !a.offload || a.place < 0 {
		return
	}
	s := a.st.take(q.hash)
	defer a.st.give(s)
	p := s.conns.At(a.place)
	v, tcp := &p.Val, p.Key.Proto == hdr.ProtoTCP
	if !q.key.Same(&p.Key) || !v.settled(tcp) {
		return // another worker has ended it
	}
	c.Decide(x, offload.Part{Owner: s, Ref: uint32(a.place), In: in, Alone: true, State: q.hash, Follow: tcp, Windows: tcp && v.flags&unchecked == 0 && a.strict,
		Quiet: a.patience(v, p.Key.Proto)})
}

// lead has the shards use the offload.Table that runs flows in front of the graph.
func (a *app) lead(c *graph.Ctx) {
	t := c.Ahead()
	if t == a.ahead {
		return
	}
	for i := range a.st.shards {
		s := a.st.take(uint64(i))
		// A Table of other workers ends before this one begins, so that no flows of it are left.
		if t != nil {
			s.ahead, s.owner = t, a
		}
		a.st.give(s)
	}
	a.ahead = t
}

// Take implements offload.Sharer.
func (s *shard) Take() { s.turn.Take() }

// Give implements offload.Sharer.
func (s *shard) Give() { s.turn.Give() }

// State implements offload.Stater: it returns the hash of the connection's key.
func (s *shard) State(ref uint32) uint64 { return s.conns.At(int(ref)).Key.Hash(s.owner.Seed) }

// settled reports whether a frame of the connection without SYN, FIN and RST always gets the same decision.
func (c *conn) settled(tcp bool) bool {
	if !tcp {
		return c.state == bothWays
	}
	const all = hasSent | hasAck
	x, y := c.side[0].has, c.side[1].has
	return c.state == tcpOpen && c.flags&(movedA|movedB) == 0 && x&y&all == all && (x|y)&hasFIN == 0
}

// Decides implements offload.Owner.
func (s *shard) Decides(ref uint32) bool {
	p := s.conns.At(int(ref))
	return s.conns.Has(int(ref)) && p.Val.settled(p.Key.Proto == hdr.ProtoTCP)
}

// Flows implements offload.Owner.
func (s *shard) Flows(ref uint32) *offload.Flows { return &s.conns.At(int(ref)).Val.flows }

// Used implements offload.Owner.
func (s *shard) Used(ref uint32, u *offload.Usage) {
	p := s.conns.At(int(ref))
	c := &p.Val
	patience := s.owner.patience(c, p.Key.Proto)
	if u.Newest().Add(patience) > c.until { // behind the opener's last SYN
		c.flags &^= again
	}
	c.until = max(c.until, u.Newest().Add(patience))
	if u.Sides == nil {
		return
	}
	for i := range c.side {
		s, x := &c.side[i], &u.Sides[i]
		s.end, s.max, s.win, s.ack = x.End, x.Max, x.Win, x.Ack
	}
}

// Sides implements offload.Windower.
func (s *shard) Sides(ref uint32, in int, sides *[2]offload.Side) {
	c := &s.conns.At(int(ref)).Val
	for d := range sides {
		x := &c.side[in^d]
		sides[d] = offload.Side{End: x.end, Max: x.max, Win: x.win, Ack: x.ack, Scale: x.scale}
	}
}

// hold takes the connection in place i from the kernel until letGo, and returns false if the kernel does not have
// it.
func (s *shard) hold(i int) bool {
	f := &s.conns.At(i).Val.flows
	return f.Any() && s.ahead.Hold(f)
}

// letGo gives a held connection back to the kernel, with its current numbers. Without keep the entry ends.
func (s *shard) letGo(i int, keep bool) {
	s.ahead.Release(s, uint32(i), &s.conns.At(i).Val.flows, keep)
}

// over reports whether the time of the connection in place i is over, after asking the kernel for its last frame.
func (s *shard) over(i int, now clock.Time) bool {
	c := &s.conns.At(i).Val
	if c.until < now && c.flows.Any() {
		s.ahead.Ask(s, uint32(i), &c.flows)
	}
	return c.until < now
}
