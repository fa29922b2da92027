package swordbox

import (
	"slices"

	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// marked are the flows whose requests a connection carried with a congestion
// mark (CE), those of late, each once. The server answers marks with congestion
// notifications (CNP, IBTA A17.9.3) to the owner of the connection, at a bounded
// rate; they are for these flows.
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

// congestion hands on a congestion notification, x with the bytes b: one of the
// server to the clients whose requests were marked; one of a client to the
// connection that answered it last. False when it belongs to no flow that is
// followed, and passes.
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
		// Marked behind the box: it may be about each of those that are served.
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

// mostMarked is how many operations are looked at to find out whom a
// notification may be about.
const mostMarked = 32

// diverted reports whether f's operations go over another's connection.
func (c *client) diverted(n *node) bool { return c.answerer != none && n.flows[c.answerer].synced }

// reroute gives frame x, the bytes b, the addresses of h. Its ICRC is left.
func (s *wire) reroute(h *header, x *packet.Buf, b []byte) {
	h.address(b)
	s.c.Mark(x, packet.Forwarded, reasonMoved)
}
