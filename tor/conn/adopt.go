package conn

import (
	"errors"
	"fmt"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// ErrImplausible is returned by Adopt for a row that no table can have held.
var ErrImplausible = errors.New("the connection on record makes no sense")

// Adopt puts a paired and pinned row into slot s, which must be free. r is a copy of the row in another
// table, maybe of another process. Adopt takes over the ends, the source and the properties of the
// connection, but no times, and nothing that concerns the other table only.
func (t *Table) Adopt(now clock.Time, s Slot, r *Row) error {
	at := -1
	for i := len(t.free) - 1; i >= 0; i-- {
		if t.free[i] == s {
			at = i
			break
		}
	}
	if at < 0 {
		return fmt.Errorf("%w: place %d is not free", ErrImplausible, s)
	}
	x := Row{Client: r.Client, Server: r.Server, PKey: r.PKey, MTU: r.MTU, Net: r.Net, Learnt: r.Learnt, tid: r.tid, ready: r.ready, pinned: true,
		used: true, LastSeen: now}
	c, v := &x.Client, &x.Server
	if !x.plausible() || c.Addr == v.Addr || t.find(c.Addr, c.QPN) != noRef || t.find(v.Addr, v.QPN) != noRef {
		return fmt.Errorf("%w: %v", ErrImplausible, &x)
	}
	t.free[at] = t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	t.rows[s], t.top = x, max(t.top, int(s)+1)
	for _, client := range []bool{true, false} {
		e, _ := t.rows[s].ends(client)
		if known := e.hasComm; known {
			if e.hasComm = false; t.findID(e.Addr, e.CommID) == noRef {
				t.putID(s, client, e.CommID)
			}
		}
	}
	t.take(s)
	if r.State == Closing {
		t.rows[s].State = Closing
		t.rewatch(&t.rows[s])
	}
	return nil
}

// plausible reports whether the fields of r are in the ranges that a table keeps to.
func (r *Row) plausible() bool {
	switch r.MTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		return false
	}
	for _, e := range []*End{&r.Client, &r.Server} {
		if e.QPN < 2 || e.QPN > 0xFFFFFF || e.StartPSN > hdr.PSNMask || r.Net != hdr.NetGRH && e.Addr.Is4() != (r.Net == hdr.NetIPv4) {
			return false
		}
	}
	vlan := r.Client.Addr.vlan
	return r.Learnt <= Managed && r.Net >= hdr.NetIPv4 && r.Net <= hdr.NetGRH && vlan < 4096 && vlan == r.Server.Addr.vlan && (r.sent|r.next|r.low) <= hdr.PSNMask
}
