package swordbox

import (
	"net/netip"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// A server with several addresses (servers=) may have several NICs. Each NIC numbers its queue pairs and its R_Keys by itself, so one
// R_Key may mean other memory at another NIC, and one NIC may be silent while another one answers. The MAC addresses that
// answers come from tell the NICs of such a server apart, and behind a router the IP addresses. Rights are those of one NIC, no operation goes over a connection of another
// one, and no connection fails because another NIC answers. Words are common to all NICs: they are found by their addresses in memory.

// mostNICs is the number of NICs of a server with several addresses. Connections to further ones are not followed.
const mostNICs = 8

// nic is what is known of one NIC of a server.
type nic struct {
	keys  keys
	pulse pulse // trip is that of the first NIC, for all
	name
	mute, hailed clock.Time // when the box last ceased to send to it, and when it last asked whether its NICs are there (silent.go)
}

// name tells a NIC from the server's other ones. It is zero for a NIC of which nothing is known.
type name struct {
	mac uint64    // address that its answers come from; 0: a router is between
	at  conn.Addr // where a router is between: its IP address, because the MAC address is the router's, and another router may take over
}

// nameBy returns the name of the NIC whose answers come from a MAC address and an IP address with that many hops left. A number
// that senders begin with shows that no router is between. If such a number comes from behind a router, the router's clients are
// those of one NIC; if a sender begins with another one, its addresses are those of several NICs, which share less.
func nameBy(mac uint64, a conn.Addr, hops uint8) name {
	switch hops {
	case 1, 64, 128, 255:
		return name{mac: mac}
	}
	return name{at: a}
}

// nameOf returns the name of the NIC that answers flow f, whose row is r.
func nameOf(f *flow, r *conn.Row) name {
	if f.down.known() {
		return nameBy(answersFrom(r), r.Server.Addr, f.down.hops())
	}
	return name{mac: answersFrom(r)}
}

// nics are the NICs of a server.
type nics struct {
	nic            // the first
	others []nic   // the others, of a server with several addresses
	sides  []uint8 // beside the flows, where there are others: number of the NIC that has the server's end
	halted []halt  // beside the flows, where there are others (silent.go)
	r      *record
	words  *words
	looked clock.Time // when spareNIC last looked at all connections
}

// init makes room for the NICs of a server of cfg.
func (n *nics) init(cfg *settings, r *record, w *words, patience func(*flow) uint64) {
	n.r, n.words = r, w
	n.keys.init(0, cfg.shared, patience)
	if slices.ContainsFunc(cfg.servers, func(one []netip.Addr) bool { return len(one) > 1 }) {
		n.others, n.sides, n.halted = make([]nic, mostNICs-1), make([]uint8, cfg.conns), make([]halt, cfg.conns)
		for i := range n.others {
			n.others[i].keys.init(uint32(i)+1, cfg.shared, patience)
		}
	}
}

// nicOf returns the server's NIC that has the server's end of flow f.
func (n *nics) nicOf(f *flow) *nic {
	if n.others == nil {
		return &n.nic
	}
	return n.nicBeyond(f)
}

//go:noinline
func (n *nics) nicBeyond(f *flow) *nic { return n.nicAt(n.sides[n.r.index(f)]) }

func (n *nics) nicAt(side uint8) *nic {
	if side == 0 {
		return &n.nic
	}
	return &n.others[side-1]
}

// nicWith returns the server's NIC with a name, or nil.
func (n *nics) nicWith(is name) *nic {
	for side := range uint8(mostNICs) {
		if x := n.nicAt(side); x.name == is {
			return x
		}
	}
	return nil
}

// nicFrom returns the server's NIC that answer b with headers f comes from, or nil if that is not known.
func (n *nics) nicFrom(b []byte, f *hdr.Frame, ends *conn.Ends) *nic {
	if n.others == nil {
		return &n.nic
	}
	return n.nicWith(nameBy(fromOf(b), ends.Src, f.HopsOf(b)))
}

// each calls do with each of the server's NICs.
func (n *nics) each(do func(*nic)) {
	do(&n.nic)
	for i := range n.others {
		do(&n.others[i])
	}
}

// isAlike reports whether what is believed of word v may be said of the memory that connection c reaches under the same R_Key, and c's
// NIC is not mute. No operation of the word is under way over the connection that it was last reached over.
//
//go:noinline
func (n *nics) isAlike(v *word, c *flow) bool {
	return !n.words.believes(v) || (v.lane == none || n.sides[v.lane] == n.sides[n.r.index(c)]) && !n.nicBeyond(c).isMute()
}

// endsAt notes that the server's end of flow f is at the NIC with a name. It returns false if that is not known yet, or if there is
// no place for a further NIC. What was believed of words that were reached over another connection with f's place becomes unknown.
func (n *nics) endsAt(f *flow, is name, now clock.Time) bool {
	if n.others == nil {
		return true
	}
	if is == (name{}) {
		return false
	}
	x := n.nicWith(is)
	if x == nil {
		if x = n.spareNIC(f, now); x == nil {
			return false
		}
		x.name = is
	}
	for side := range uint8(mostNICs) {
		if i := n.r.index(f); n.nicAt(side) == x && n.sides[i] != side {
			n.sides[i] = side
			n.words.doubtAll()
		}
	}
	return true
}

// mayEndAt is endsAt before the server has answered flow f, whose row is r. If no answer has shown that a router is between, it
// takes the MAC address for the NIC's.
func (n *nics) mayEndAt(f *flow, r *conn.Row, now clock.Time) bool {
	is := name{mac: answersFrom(r)}
	if at := (name{at: r.Server.Addr}); n.others != nil && is.mac != 0 && n.nicWith(at) != nil {
		is = at
	}
	return n.endsAt(f, is, now)
}

// spareNIC returns a NIC that no connection but f is known to end at, of which nothing is known, or nil. It looks at all connections
// once in a tick at most.
func (n *nics) spareNIC(f *flow, now clock.Time) *nic {
	if x := n.nicWith(name{}); x != nil {
		return x
	}
	if n.looked != 0 && now.Sub(n.looked) < tick {
		return nil
	}
	n.looked = now
	used := [mostNICs]bool{}
	for i := range n.r.flows {
		used[n.sides[i]] = used[n.sides[i]] || n.r.flows[i].trusted && &n.r.flows[i] != f
	}
	for side := range uint8(mostNICs) {
		if x := n.nicAt(side); !used[side] {
			x.keys.clear()
			n.words.doubtAll() // the places of removed connections are still this NIC's
			x.pulse, x.name, x.mute = pulse{trip: x.pulse.trip}, name{}, 0
			return x
		}
	}
	return nil
}

// counts is record.count, and learns by the server's first answer which NIC has its end of flow fl. If there is no place for a further
// NIC, nothing moves to or from fl until there is.
func counts(n *order, fl *flow, f *hdr.Frame, b []byte, psn uint32) {
	was := fl.trusted
	if n.count(fl, f, b, psn); fl.trusted && !was && !n.endsAt(fl, nameOf(fl, n.row(fl)), n.c.Now()) {
		fl.trusted, fl.counted = false, false
	}
}
