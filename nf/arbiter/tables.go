package arbiter

import (
	"net/netip"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/table"
)

// Tables.
const (
	tableLocks = iota
	tableClients
)

func tables() []table.Decl {
	return []table.Decl{
		tableLocks: {Name: "locks", Help: "words that clients hold",
			Keys: []table.Field{
				{Name: "space", Bits: 32, Form: table.Hex, Help: "with a fence: the memory server's address"},
				{Name: "addr", Bits: 64, Form: table.Hex, Help: "address of the word"},
				{Name: "token", Bits: 64, Help: "fencing token of the grant"},
			},
			Actions: []table.Action{{Name: "held", Help: "a client holds it", Params: []table.Field{
				{Name: "ip", Bits: 32, Form: table.IP, Help: "the client's address"},
				{Name: "number", Bits: 32, Help: "the client's number"},
				{Name: "exclusive", Bits: 1, Help: "1: nobody else may hold it"},
				{Name: "left", Bits: 32, Help: "ms left of the client's lease"},
			}}}},
		tableClients: {Name: "clients", Help: "clients that are known; one that is deleted is taken for dead: it is shut out, and its locks are given back",
			Keys: []table.Field{
				{Name: "ip", Bits: 32, Form: table.IP, Help: "address"},
				{Name: "number", Bits: 32, Help: "number at that address"},
			},
			Actions: []table.Action{{Name: "client", Help: "how it stands", Params: []table.Field{
				{Name: "incarnation", Bits: 64, Form: table.Hex, Help: "its incarnation"},
				{Name: "state", Bits: 8, Help: "1: it lives, 2: it is being shut out, 3: it is shut out"},
				{Name: "locks", Bits: 32, Help: "words that it holds"},
				{Name: "waiting", Bits: 8, Help: "its requests in line"},
				{Name: "left", Bits: 32, Help: "ms left of its lease"},
				{Name: "vlans", Bits: 24, Form: table.Hex, Help: "its VLAN ID, of two tags 4096 times the outer ID and the inner; 0: none. One address in two VLANs is two hosts'"},
			}}},
			May: table.Delete},
	}
}

// Hooks implements graph.Hooked.
func (a *app) Hooks() graph.Hooks { return graph.Hooks{Scan: a.scan, Remove: a.remove} }

func (a *app) scan(c *graph.Ctx, t, from, n int, yield func(*table.Entry)) int {
	a.turn.Take()
	defer a.turn.Give()
	all := len(a.clients)
	if t == tableLocks {
		all = len(a.holds)
	}
	end := min(from+n, all)
	for i := from; i < end; i++ {
		if t == tableLocks {
			h := &a.holds[i]
			if h.token == 0 {
				continue
			}
			k := &a.clients[h.client]
			yield(&table.Entry{Key: []table.Cond{{V: table.Uint(uint64(h.space))}, {V: table.Uint(h.addr)}, {V: table.Uint(h.token)}},
				Call: table.Call{Params: []table.Value{table.Addr(netip.AddrFrom4(k.from.ip)), table.Uint(uint64(k.number)), table.Bool(h.exclusive), a.left(c, h.client)}}})
			continue
		}
		if k, b := &a.clients[i], &a.known[i]; k.state != free {
			yield(&table.Entry{Key: []table.Cond{{V: table.Addr(netip.AddrFrom4(k.from.ip))}, {V: table.Uint(uint64(k.number))}},
				Call: table.Call{Params: []table.Value{table.Uint(k.incarnation), table.Uint(uint64(k.state)), table.Uint(uint64(b.holds)), table.Uint(uint64(b.waiters)), a.left(c, int32(i)), table.Uint(uint64(k.from.vids()))}}})
		}
	}
	if end == all {
		return -1
	}
	return end
}

func (a *app) left(c *graph.Ctx, i int32) table.Value {
	if a.clients[i].state != live {
		return table.Uint(0)
	}
	return table.Uint(uint64(millis(a.known[i].ends.Sub(c.Now()))))
}

// remove takes the clients with an address and a number for dead, in whichever VLANs they are.
func (a *app) remove(c *graph.Ctx, _ int, k []table.Cond) error {
	a.turn.Take()
	defer a.turn.Give()
	ip, number := k[0].V.Addr(32).As4(), uint32(k[1].V.Lo)
	known, living := false, false
	for i := range a.clients {
		x := &a.clients[i]
		if x.state == free || x.from.ip != ip || x.number != number {
			continue
		}
		if known = true; x.state != live {
			continue
		}
		if living = true; a.known[i].holds == 0 {
			a.forget(int32(i))
		} else {
			a.die(c.Now(), int32(i))
			c.Wake(c.Now())
		}
	}
	switch {
	case !known:
		return table.Errorf(table.Missing, "no client %v number %d is known", netip.AddrFrom4(ip), number)
	case !living:
		return table.Errorf(table.Busy, "it is being shut out, or is: lift that in the table held of the fence")
	}
	return nil
}
