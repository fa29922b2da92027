package firewall

import (
	"net/netip"

	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/track"
)

// tracked are conntrack's names of the states of TCP connections.
var tracked = [numStates]string{tcpSyn: "SYN_SENT", tcpSynAck: "SYN_RECV", tcpOpen: "ESTABLISHED", tcpClosing: "FIN_WAIT", tcpTimeWait: "TIME_WAIT", tcpReset: "CLOSE"}

// Hooks implements graph.Hooked.
func (a *app) Hooks() graph.Hooks {
	return graph.Hooks{Connections: a.connections, Counted: a.counted}
}

// connections lists connections for graph.Hooks. All workers share them; worker 0 lists all.
func (a *app) connections(c *graph.Ctx, from, n int, f func(*track.Connection)) int {
	if a.worker != 0 {
		return -1
	}
	places := a.st.shards[0].conns.Places()
	at := from / places
	s := a.st.take(uint64(at))
	next := s.conns.Some(from%places, n, func(i int) {
		p := s.conns.At(i)
		if s.over(i, c.Now()) {
			return
		}
		x := shown(&p.Key, &p.Val)
		x.Offload = p.Val.flows.Any()
		x.Left = p.Val.until.Sub(c.Now())
		f(&x)
	})
	a.st.give(s)
	switch {
	case next >= 0:
		return at*places + next
	case at+1 < len(a.st.shards):
		return (at + 1) * places
	}
	return -1
}

// shown returns a connection in the form of conntrack.
func shown(k *flow.Key, c *conn) track.Connection {
	if c.opener == 1 {
		r := k.Reversed()
		k = &r
	}
	addr := func(b *[16]byte) netip.Addr {
		if k.Family == hdr.NetIPv4 {
			return netip.AddrFrom4([4]byte(b[:4]))
		}
		return netip.AddrFrom16(*b)
	}
	x := track.Connection{
		Proto: k.Proto, State: tracked[c.state], Unreplied: c.state == tcpSyn || c.state == oneWay, Assured: !c.tentative(),
		Orig: track.Tuple{Src: addr(&k.Src), Dst: addr(&k.Dst), SPort: k.SrcPort, DPort: k.DstPort},
	}
	switch k.Proto {
	case hdr.ProtoICMP, hdr.ProtoICMPv6: // an identifier on side a, a type on side b: see query
		x.Orig.SPort, x.Orig.DPort = k.SrcPort, 0
		if c.opener == 1 {
			x.Orig.SPort = k.DstPort
		}
	}
	x.Reply = x.Orig.Reversed()
	return x
}
