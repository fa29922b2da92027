package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// A server drops a request, without any answer, if its P_Key is of another partition or its destination MAC
// address is not the server's. Such a request takes no PSN at the server, so it gets no place on record.
// Otherwise the box would take the next request of the same client, which has the same PSN, for a duplicate
// of it. The server's own frames show its P_Key and its MAC address. But the MAC address may change while
// connections go on (a bond, a router that takes over from another one). Where a router sends the answers
// from another MAC address than requests go to, the right address is not known at all.

// stray is a destination MAC address of a flow's requests that is not known to be the server's.
type stray struct {
	mac     uint64
	since   clock.Time
	arrived uint32 // flow.arrived: no request to the usual address came since then
	n       uint32 // requests to mac since then
}

// manyHops is a TTL that suffices for every path from here to a server.
const manyHops = 32

// enough is the number of requests in a row, over at least alive=, after which the box takes their
// destination MAC address for the server's new one.
const enough = 3

// lost reports whether request b in buffer x, of the followed flow fl, cannot reach the server's queue pair;
// then lost has disposed of x. partition says that the P_Key is right. When lost takes the request's MAC
// address for the server's new one, fl uses this address from now on.
func (s *clientSide) lost(fl *flow, x *packet.Buf, b []byte, partition bool) bool {
	if !partition {
		s.stranger(x, b, reasonPartition)
		return true
	}
	n, to := s.n, macOf(b)
	if to == fl.up.mac() {
		return false
	}
	known := fl.silent != 0
	if fl.direct() && !known {
		known = to == answersFrom(n.row(fl)) || n.isAt(to) || n.strays[n.index(fl)].persists(to, fl.arrived, s.c.Now(), clock.Duration(s.cfg.alive))
		if !known {
			s.c.Drop(x, reasonAddress)
			return true
		}
	}
	if known {
		fl.moves(to)
	}
	return false
}

// strands reports whether a device on the path may drop request b in buffer x, of flow fl, with hops hops to
// live; then strands has disposed of x. A switch drops a frame whose source MAC address is no station's. A
// router drops a frame whose TTL, below manyHops and below that of the requests that reached the server, is
// too low. A client's path may become longer, so after enough such requests in a row their TTL becomes the
// flow's.
func (s *wire) strands(fl *flow, x *packet.Buf, b []byte, hops uint8) bool {
	const isHops = 1 << 63 // no MAC address
	station := hdr.Ethernet(b).FromStation()
	if station && hops >= manyHops { // the client has two paths of different length
		return false
	}
	if !station || !s.n.strays[s.n.index(fl)].persists(isHops|uint64(hops), fl.arrived, s.c.Now(), clock.Duration(s.cfg.alive)) {
		s.c.Drop(x, reasonAddress)
		return true
	}
	at := fl.up.hopsAt()
	*at = hops
	if fl.up.net == hdr.NetIPv4 {
		hdr.IPv4(fl.up.b[fl.up.l3:]).UpdateChecksum()
	}
	return false
}

// direct reports whether f's server answers from the MAC address that f's requests go to.
func (f *flow) direct() bool { return f.trusted && f.up.mac() == fromOf(f.down.b[:]) }

// moves makes to the destination MAC address of f's requests.
func (f *flow) moves(to uint64) {
	var mac [8]byte
	be.PutUint64(mac[:], to<<16)
	if f.direct() {
		copy(f.down.b[6:12], mac[:])
	}
	copy(f.up.b[:6], mac[:])
}

// clientMoves directs the answers to the client of flow fl to the MAC address that answer b of the server goes to, and gives the
// newest one again. Servers that look the address up for each answer, as Linux' rxe does, follow a client that comes to have another MAC
// address, or a router that takes over from another one. Where requests came from the address that answers went to, those that the box makes
// come from the new one.
//
//go:noinline
func clientMoves(s *carrierSide, fl *flow, b []byte) {
	if !fl.down.known() {
		return
	}
	if fromOf(fl.up.b[:]) == fl.down.mac() {
		copy(fl.up.b[6:12], b[:6])
	}
	copy(fl.down.b[:6], b)
	if !fl.gone && fl.head != fl.first {
		s.clients.answerAgain(fl, fl.head-1)
	}
}

// strayed reports whether request b of flow f comes from another MAC address than f's answers go to, so that its client may not get
// them. Only an answer of the server's over f shows the address to send to: anybody can make up b.
func (f *flow) strayed(b []byte) bool { return f.trusted && fromOf(b) != f.down.mac() }

// answersFrom returns the MAC address that the server of r last answered from.
func answersFrom(r *conn.Row) uint64 {
	mac := r.Server.SrcMAC()
	return uint64(be.Uint16(mac[:]))<<32 | uint64(be.Uint32(mac[2:]))
}

// persists notes a request to the MAC address to. It reports whether at least enough requests in a row, over
// at least alive, have gone to this address. arrived is the flow's: it changes with each request to the usual
// address.
func (s *stray) persists(to uint64, arrived uint32, now clock.Time, alive clock.Duration) bool {
	if s.mac != to || s.arrived != arrived {
		*s = stray{mac: to, since: now, arrived: arrived}
	}
	s.n++
	return s.n >= enough && now.Sub(s.since) >= alive
}

// readdress directs the requests that are sent again on connection c to the MAC address that the server last
// answered from. While the server stays silent, every second try goes to another MAC address that it answers
// other connections from.
func (s *carrierSide) readdress(c *flow) {
	if !c.direct() {
		return
	}
	to := answersFrom(s.n.row(c))
	if c.tries&1 != 0 {
		to = s.n.elsewhere(to, int(c.tries/2))
	}
	if to != 0 {
		c.moves(to)
	}
}

// elsewhere returns one of the MAC addresses, other than mac, that the answers of node n come from; turn
// selects it. It returns 0 if there is none.
func (n *node) elsewhere(mac uint64, turn int) uint64 {
	var all [len(n.macs)]uint64
	k := 0
	for i := range n.macs {
		if x := n.macs[i].Load(); x != 0 && x != mac {
			all[k] = x
			k++
		}
	}
	if k == 0 {
		return 0
	}
	return all[turn%k]
}
