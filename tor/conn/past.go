package conn

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// past is a connection that has ended. The table keeps its names for a while, as its
// ends do (IBTA 12.9, TimeWait), because both ends may have asked for the disconnect at once,
// and an end repeats a request that was not answered.
type past struct {
	server, client pastEnd
	until          clock.Time
}

// timeWait holds the connections that have ended in a ring, whose oldest entry is at pastAt.
type timeWait struct {
	past    []past
	pastAt  int
	pastIDs names // their ends by address and communication ID
}

type pastEnd struct {
	addr         Addr
	id, qpn, psn uint32 // psn: End.StartPSN
	named        bool
}

func (p *past) ends(client bool) (e, peer *pastEnd) {
	if client {
		return &p.client, &p.server
	}
	return &p.server, &p.client
}

// keep remembers row r, which the connection manager made and which has ended, until a time. The row
// replaces the oldest past connection.
func (t *timeWait) keep(r *Row, until clock.Time) {
	p := &t.past[t.pastAt]
	slot := Slot(t.pastAt)
	if t.pastAt++; t.pastAt == len(t.past) {
		t.pastAt = 0
	}
	for _, client := range []bool{false, true} {
		if e, _ := p.ends(client); e.named {
			t.pastIDs.del(e.addr, e.id, refOf(slot, client))
		}
	}
	*p = past{until: until}
	for _, client := range []bool{false, true} {
		e, _ := r.ends(client)
		o, _ := p.ends(client)
		if *o = (pastEnd{e.Addr, e.CommID, e.QPN, e.StartPSN, e.hasComm}); o.named {
			t.pastIDs.put(o.addr, o.id, refOf(slot, client))
		}
	}
}

// late reports whether ConnectRequest m from src to dst is a late copy: that of a connection that has ended. A new connection has
// another name, queue pair or first PSN.
func (t *timeWait) late(now clock.Time, src, dst Addr, m hdr.CM) bool {
	x := &t.pastIDs
	h := x.hash(src, m.LocalCommID())
	for i := x.Start(h); x.E[i] != 0; i = x.Next(i) {
		if v, ok := x.Slot(i, h); ok && ref(v).client() {
			p := &t.past[ref(v).slot()]
			if c := &p.client; c.addr == src && c.id == m.LocalCommID() && c.qpn == m.LocalQPN() && p.server.addr == dst && p.server.psn == m.StartingPSN() && now < p.until {
				return true
			}
		}
	}
	return false
}

// about returns the event for a datagram whose communication ID names no connection in the table.
func (t *Table) about(now clock.Time, src, dst Addr, m hdr.CM) Event {
	e := Stray
	a, id, rejected := dst, m.RemoteCommID(), m.AttributeID() == hdr.ConnectReject
	bySender := rejected && id == 0
	if bySender {
		a, id = src, m.LocalCommID()
	}
	x := &t.pastIDs
	h := x.hash(a, id)
	for i := x.Start(h); x.E[i] != 0; i = x.Next(i) {
		v, ok := x.Slot(i, h)
		if !ok {
			continue
		}
		k := ref(v)
		p := &t.past[k.slot()]
		if e, _ := p.ends(k.client()); e.id != id || e.addr != a || now >= p.until {
			continue
		}
		to, from := p.ends(k.client() != bySender)
		switch {
		case from.addr != src || to.addr != dst:
			if e == Stray {
				e = Spoofed
			}
		case from.named && m.LocalCommID() != from.id && (!rejected || m.LocalCommID() != 0),
			m.AttributeID() == hdr.DisconnectRequest && m.RemoteQPN() != to.qpn:
			e = Forged
		default:
			return Ended
		}
	}
	if e == Stray {
		// A side that has a connection uses its peer's communication ID.
		if k := t.findID(src, m.LocalCommID()); k != noRef {
			if _, peer := t.rows[k.slot()].ends(k.client()); peer.hasComm && peer.Addr == dst {
				e = Forged
			}
		}
	}
	return e
}
