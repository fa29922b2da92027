package swordbox

import (
	"slices"

	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// marked holds the latest flows of which a connection carried requests with a congestion mark (CE), each flow
// once. The server answers marks with congestion notifications (CNP, IBTA A17.9.3) to the client whose
// connection it is, at a bounded rate. The notifications are meant for the clients of these flows.
type marked struct {
	flows [8]int32
	n     int32
}

func (m *marked) add(i int32) {
	if slices.Contains(m.flows[:m.n], i) {
		return
	}
	if int(m.n) == len(m.flows) {
		copy(m.flows[:], m.flows[1:])
		m.n--
	}
	m.flows[m.n] = i
	m.n++
}

// congestion handles a congestion notification, b in buffer x. One from the server goes to the clients whose
// requests were marked. One from a client goes to the connection over which its newest answer came.
// congestion returns false, and leaves the frame to pass, if no followed flow has its queue pair.
func (s *wire) congestion(in int, x *packet.Buf, b []byte) bool {
	n := s.n
	slot, client := n.conns.Find(s.ends.Dst, s.f.BTHOf(b).DestQP())
	if slot == conn.NoSlot || !n.flows[slot].synced || !n.flows[slot].trusted || client != (in == toServers) {
		return false
	}
	c := &n.flows[slot]
	if in == toClients {
		if y := n.flow(c.answerer); y != c && c.diverted(n) {
			if y.up.fits(&s.f) && !y.dead {
				s.reroute(&y.up, x, b)
				s.seal(toServers, x, b, &s.f)
				return true
			}
		}
		s.emit(toServers, x)
		return true
	}
	if c.marked.n == 0 {
		// Marked behind the box: the notification may be about each operation that c carries.
		for o, k := n.oldest(c), 0; o != nil && k < mostMarked; o, k = n.behind(o), k+1 {
			c.marked.add(n.index(n.flowOf(o)))
		}
	}
	if c.marked.n == 0 {
		s.emit(toClients, x)
		return true
	}
	last := c.marked.n - 1
	for _, i := range c.marked.flows[:last] {
		if y := &n.flows[i]; y.trusted && !y.gone && y.down.fits(&s.f) {
			if z := hold.Copy(s.c, x); z != nil {
				s.reroute(&y.down, z, z.Bytes())
				s.c.Mark(z, packet.Generated, reasonMade)
				s.seal(toClients, z, z.Bytes(), &s.f)
			}
		}
	}
	y := &n.flows[c.marked.flows[last]]
	c.marked.n = 0
	if y != c && y.trusted && y.down.fits(&s.f) {
		s.reroute(&y.down, x, b)
		s.seal(toClients, x, b, &s.f)
		return true
	}
	s.emit(toClients, x)
	return true
}

// mostMarked is the largest number of a connection's operations that are looked at to find the clients that a
// notification is for.
const mostMarked = 32

// diverted reports whether the newest answer to c's client came over another connection that is followed.
func (c *client) diverted(n *node) bool { return c.answerer != none && n.flows[c.answerer].synced }

// reroute gives frame b in buffer x the addresses of h. It does not change the ICRC.
func (s *wire) reroute(h *header, x *packet.Buf, b []byte) {
	h.address(b)
	s.c.Mark(x, packet.Forwarded, reasonMoved)
}
