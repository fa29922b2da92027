package conn

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// StaticConn is a connection that the configuration names.
type StaticConn struct {
	Client, Server       netip.Addr
	ClientQPN, ServerQPN uint32
	// PSN is the first PSN of the client's requests; valid with HasPSN.
	PSN    uint32
	HasPSN bool
	MTU    int    // path MTU in bytes; 0 = found out
	VLAN   uint16 // that both are in; 0: none
	V1     bool   // RoCE v1; not in the text
}

// ParseStatic reads CLIENT/QPN-SERVER/QPN[,psn=PSN][,mtu=BYTES][,vlan=VLAN]; numbers are
// decimal or, with 0x, hexadecimal:
//
//	10.0.0.2/0x11-10.0.0.1/0x100,psn=0xa0ce05
func ParseStatic(s string) (StaticConn, error) {
	fail := func(why string) (StaticConn, error) {
		return StaticConn{}, fmt.Errorf("connection %q: %s; write CLIENT/QPN-SERVER/QPN[,psn=PSN][,mtu=BYTES][,vlan=VLAN]", s, why)
	}
	ends, options, more := strings.Cut(s, ",")
	client, server, ok := strings.Cut(ends, "-")
	if !ok {
		return fail("no - between the ends")
	}
	var c StaticConn
	for _, e := range []struct {
		text string
		addr *netip.Addr
		qpn  *uint32
	}{{client, &c.Client, &c.ClientQPN}, {server, &c.Server, &c.ServerQPN}} {
		ip, qpn, ok := strings.Cut(e.text, "/")
		if !ok {
			return fail("no / in " + e.text)
		}
		a, err := netip.ParseAddr(ip)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return fail(ip + " is no address of a host")
		}
		n, err := strconv.ParseUint(qpn, 0, 24)
		if err != nil || n < 2 {
			return fail(qpn + " is no queue pair number from 2 to 0xffffff")
		}
		*e.addr, *e.qpn = a.Unmap(), uint32(n)
	}
	if c.Client.Is4() != c.Server.Is4() {
		return fail("one end is IPv4, the other IPv6")
	}
	if c.Client == c.Server {
		return fail("both ends are the same host")
	}
	for more {
		var o string
		o, options, more = strings.Cut(options, ",")
		key, value, _ := strings.Cut(o, "=")
		n, err := strconv.ParseUint(value, 0, 24)
		switch {
		case key == "psn" && err == nil:
			c.PSN, c.HasPSN = uint32(n), true
		case key == "mtu" && (n == 256 || n == 512 || n == 1024 || n == 2048 || n == 4096):
			c.MTU = int(n)
		case key == "vlan" && err == nil && n >= 1 && n < 4095:
			c.VLAN = uint16(n)
		default:
			return fail(strconv.Quote(o) + " is no option, or its value is out of range")
		}
	}
	return c, nil
}

// String returns c in the form that ParseStatic reads.
func (c StaticConn) String() string {
	s := fmt.Sprintf("%v/%#x-%v/%#x", c.Client, c.ClientQPN, c.Server, c.ServerQPN)
	if c.HasPSN {
		s += fmt.Sprintf(",psn=%#x", c.PSN)
	}
	if c.MTU != 0 {
		s += fmt.Sprintf(",mtu=%d", c.MTU)
	}
	if c.VLAN != 0 {
		s += fmt.Sprintf(",vlan=%d", c.VLAN)
	}
	return s
}

// AddStatic adds a connection from configuration. It removes inferred rows that hold one of
// its queue pairs. It returns an error if such a row is configured otherwise, was made by the
// connection manager, or is kept by its owner, and ErrFull if there is no room. If the table
// already has the same connection, announced or configured, the row stays as it is; a pinned
// inferred row of it becomes a configured one.
func (t *Table) AddStatic(now clock.Time, c StaticConn) (Slot, error) {
	client := End{Addr: AddrFrom(c.Client).In(c.VLAN), QPN: c.ClientQPN, StartPSN: c.PSN, HasPSN: c.HasPSN}
	server := End{Addr: AddrFrom(c.Server).In(c.VLAN), QPN: c.ServerQPN}
	for _, e := range []*End{&server, &client} {
		k := t.find(e.Addr, e.QPN)
		if k == noRef {
			continue
		}
		r := &t.rows[k.slot()]
		same := r.Client.Addr == client.Addr && r.Client.QPN == client.QPN && r.Server.Addr == server.Addr && r.Server.QPN == server.QPN
		switch {
		case same && r.Learnt == Inferred && r.State == Paired && r.pinned:
			t.unclaim(r)
			r.Learnt = Static
			t.place(k.slot())
			t.rewatch(r)
			return k.slot(), nil
		case same && r.Learnt != Inferred:
			return k.slot(), nil
		case r.Learnt == Inferred && t.mayGo(k.slot()):
			continue
		}
		return NoSlot, fmt.Errorf("connection %v: queue pair %v/%#x is in use by %v", c, e.Addr, e.QPN, r)
	}
	for _, e := range []*End{&server, &client} {
		if k := t.find(e.Addr, e.QPN); k != noRef {
			t.Remove(k.slot())
		}
	}
	s := t.configured(now, Static, client, server, c)
	if s == NoSlot {
		return NoSlot, fmt.Errorf("connection %v: %w of %d rows", c, ErrFull, len(t.rows))
	}
	return s, nil
}

// Recall adds a connection that the caller knows from before, as an inferred row. If the table already
// has the connection, its row stays as it is. Recall returns NoSlot if another row holds one of
// the queue pairs, or if there is no room.
func (t *Table) Recall(now clock.Time, c StaticConn) Slot {
	client := End{Addr: AddrFrom(c.Client).In(c.VLAN), QPN: c.ClientQPN}
	server := End{Addr: AddrFrom(c.Server).In(c.VLAN), QPN: c.ServerQPN}
	k, l := t.find(server.Addr, server.QPN), t.find(client.Addr, client.QPN)
	switch {
	case k == noRef && l == noRef:
		return t.configured(now, Inferred, client, server, c)
	case k != noRef && l != noRef && k.slot() == l.slot() && l.client() && t.rows[k.slot()].State == Paired:
		return k.slot()
	}
	return NoSlot
}

// configured makes a paired row for connection c between two ends; it returns NoSlot if there
// is no room.
func (t *Table) configured(now clock.Time, learnt Source, client, server End, c StaticConn) Slot {
	s := t.alloc(now, learnt)
	if s == NoSlot {
		return NoSlot
	}
	r := &t.rows[s]
	r.Client, r.Server, r.MTU = client, server, uint16(c.MTU)
	r.Net = hdr.NetIPv6
	switch {
	case c.V1:
		r.Net = hdr.NetGRH
	case client.Addr.Is4():
		r.Net = hdr.NetIPv4
	}
	t.take(s)
	return s
}
