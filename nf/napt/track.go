package napt

import (
	"net/netip"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/track"
)

// Hooks implements graph.Hooked.
func (a *app) Hooks() graph.Hooks { return graph.Hooks{Connections: a.connections} }

// connections lists mappings, and then TCP sessions and permissions, for graph.Hooks. All workers share them;
// worker 0 lists all.
func (a *app) connections(c *graph.Ctx, from, n int, f func(*track.Connection)) int {
	if a.worker != 0 {
		return -1
	}
	mappings := a.st.shards[0].mappings.Places()
	places := mappings + a.st.shards[0].sessions.Places()
	at, place := from/places, from%places
	s := a.st.take(at)
	defer a.st.give(s)
	if place < mappings {
		next := s.mappings.Some(place, n, func(i int) {
			m := &s.mappings.At(i).Val
			if m.flows.Any() {
				s.ahead.Ask(s, uint32(i)|ofMapping, &m.flows)
			}
			if !m.over(c.Now()) {
				x := a.shown(s, i, 0, 0)
				x.Offload = m.flows.Any()
				x.State, x.Left, x.Assured = track.Mapping, max(0, m.until.Sub(c.Now())), true
				f(&x)
			}
		})
		if next < 0 {
			next = mappings
		}
		return at*places + next
	}
	next := s.sessions.Some(place-mappings, n, func(i int) {
		s.ask(i)
		p := s.sessions.At(i)
		if p.Val.until < c.Now() {
			return
		}
		x := a.shown(s, int(p.Key.mapping), p.Key.addr, p.Key.port)
		x.Left, x.Offload = p.Val.until.Sub(c.Now()), p.Val.flows.Any()
		if p.Key.kind == tcpSession {
			tcp(&x, p.Val.flags)
		}
		f(&x)
	})
	switch {
	case next >= 0:
		return at*places + mappings + next
	case at+1 < len(a.st.shards):
		return (at + 1) * places
	}
	return -1
}

// shown returns the mapping in place i of a shard, with a peer of it (address 0: none), in the form of conntrack.
func (a *app) shown(s *shard, i int, peer uint32, port uint16) track.Connection {
	p := s.mappings.At(i)
	addr := func(v uint32) (a netip.Addr) {
		if v == 0 {
			return a
		}
		return netip.AddrFrom4([4]byte(be.AppendUint32(nil, v)))
	}
	other := addr(peer)
	return track.Connection{
		Proto: [numClasses]uint8{hdr.ProtoTCP, hdr.ProtoUDP, hdr.ProtoICMP}[p.Key.class],
		Orig:  track.Tuple{Src: addr(p.Key.addr), Dst: other, SPort: p.Key.port, DPort: port},
		Reply: track.Tuple{Src: other, Dst: addr(a.public[p.Val.public]), SPort: port, DPort: p.Val.port},
	}
}

// tcp sets the state of x from a session's flags.
func tcp(x *track.Connection, flags uint8) {
	both := flags&synOut != 0 && flags&synIn != 0
	switch {
	case flags&rst != 0:
		x.State = "CLOSE"
	case flags&finOut != 0 && flags&finIn != 0:
		x.State = "TIME_WAIT"
	case flags&(finOut|finIn) != 0:
		x.State = "FIN_WAIT"
	case both:
		x.State = "ESTABLISHED"
	default:
		x.State = "SYN_SENT"
	}
	x.Unreplied, x.Assured = flags&synIn == 0 && flags&synOut != 0, both
}
