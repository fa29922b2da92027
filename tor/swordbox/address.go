package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// A server throws a request away unseen that is of another partition, or comes to another MAC address. Such a request has no PSN of
// the server's, and takes no place on record: else the next request of the connection's client, which has the same PSN, would be taken
// for its repetition. The server's own frames tell its P_Key and its MAC address. But that address may change while connections go on (a
// bond, a router that takes over from another), and where routers answer from another address than they are reached at, nobody knows it.

// stray is a MAC address that requests of a flow go to, and that its server is not known to have.
type stray struct {
	mac     uint64
	since   clock.Time
	arrived uint32 // the flow's: no request came to the usual address since then
	n       uint32 // requests
}

// manyHops is a TTL that no way from here to a server takes.
const manyHops = 32

// enough requests in a row, over alive= at least, go to another address until it is taken for the server's new one.
const enough = 3

// lost reports whether request b, x, of flow fl, which is followed, does not reach the server's end; then it was disposed of.
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

// strands reports whether something on the way may throw request b, x, of flow fl away: a switch, as it is from no station, or a router, as it has less hops to live
// than what came to the server, and less than manyHops. Then it was disposed of. A client's way may become longer: see enough.
func (s *wire) strands(fl *flow, x *packet.Buf, b []byte, hops uint8) bool {
	const isHops = 1 << 63 // no MAC address
	station := hdr.Ethernet(b).FromStation()
	if station && hops >= manyHops { // of two ways of different length
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

// direct reports whether f's server answers from the MAC address that requests go to.
func (f *flow) direct() bool { return f.trusted && f.up.mac() == fromOf(f.down.b[:]) }

// moves has requests of connection f go to that MAC address.
func (f *flow) moves(to uint64) {
	var mac [8]byte
	be.PutUint64(mac[:], to<<16)
	if f.direct() {
		copy(f.down.b[6:12], mac[:])
	}
	copy(f.up.b[:6], mac[:])
}

// answersFrom is the MAC address that the row's server last answered from.
func answersFrom(r *conn.Row) uint64 {
	mac := r.Server.SrcMAC()
	return uint64(be.Uint16(mac[:]))<<32 | uint64(be.Uint32(mac[2:]))
}

// persists reports whether requests have gone to that address alone for long enough.
func (s *stray) persists(to uint64, arrived uint32, now clock.Time, alive clock.Duration) bool {
	if s.mac != to || s.arrived != arrived {
		*s = stray{mac: to, since: now, arrived: arrived}
	}
	s.n++
	return s.n >= enough && now.Sub(s.since) >= alive
}

// readdress has what is sent again on connection c go to the MAC address that its server last answered from, and, while that is
// silent, by turns to those that it answered others from.
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

// elsewhere is one of the MAC addresses, other than mac, that node n's answers come from, by turns; 0: there is none.
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
