package clover

import (
	"fmt"
	"net/netip"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/tor/conn"
)

// Tables, by their index in Kind's Tables.
const (
	tableMode = iota
	tableKeys
	tableConns4
	tableConns6
	tableTails4
	tableTails6
)

// Actions of tableMode, tableKeys, tableConns and tableTails.
const (
	actSteer, actLeave      = 0, 1
	actRequests, actAnswers = 0, 1
	actTail, actUnknown     = 0, 1
)

// defaults returns the settings that args make.
func defaults(args graph.Args) settings {
	s, err := parseArgs(args)
	if err != nil {
		s, _ = parseArgs(nil) // cannot happen: the running app has taken args
	}
	return s
}

func tables() []table.Decl {
	id := table.Field{Name: "id", Bits: 32, Help: "number of the connection"}
	requests := table.Action{Name: "requests", Help: "a client's requests to a memory node", Params: []table.Field{
		id,
		{Name: "client_qp", Bits: 24, Form: table.Hex, Help: "the client's queue pair; 0: not known yet"},
		{Name: "next_psn", Bits: 24, Help: "PSN that comes next"},
		{Name: "acked_psn", Bits: 24, Help: "newest PSN that was answered"},
		{Name: "mtu", Bits: 16, Help: "path MTU in bytes; 0: not known"},
		{Name: "written", Bits: 8, Help: "entries that were written and are not linked"},
	}}
	answers := table.Action{Name: "answers", Help: "the answers to them", Params: []table.Field{id}}
	open := table.Field{Name: "open", Bits: 32, Help: "appends that are not known to be linked"}
	uses := table.Field{Name: "uses", Bits: 32, Help: "writes since the last look at hot keys; with hot=0, all"}
	tail := table.Action{Name: "tail", Help: "requests go here", Params: []table.Field{
		{Name: "va", Bits: 64, Form: table.Hex, Help: "address of the newest entry"},
		{Name: "rkey", Bits: 32, Form: table.Hex, Help: "R_Key that it was written under"},
		{Name: "version", Bits: 8, Help: "of the entry"},
		open, uses,
	}}
	unknown := table.Action{Name: "unknown", Help: "the key is tracked, and its tail not known", Params: []table.Field{open, uses}}

	conns := func(name, ip string, bits int) table.Decl {
		return table.Decl{
			Name: name, Help: "both directions of connections",
			Keys: []table.Field{
				{Name: "hdr." + ip + ".src", Bits: bits, Form: table.IP, Help: "who sends"},
				{Name: "hdr." + ip + ".dst", Bits: bits, Form: table.IP, Help: "to whom"},
				{Name: "hdr.bth.dst_qp", Bits: 24, Form: table.Hex, Help: "to which queue pair"},
			},
			Actions: []table.Action{actRequests: requests, actAnswers: answers},
		}
	}
	tails := func(name, ip string, bits int) table.Decl {
		return table.Decl{
			Name: name, Help: "keys that are tracked, and their newest entries; a key that is deleted is learnt anew when it is used",
			Keys: []table.Field{
				{Name: "hdr." + ip + ".dst", Bits: bits, Form: table.IP, Help: "memory node"},
				{Name: "meta.key", Bits: 64, Help: "key"},
			},
			Actions: []table.Action{actTail: tail, actUnknown: unknown},
			May:     table.Delete,
		}
	}
	return []table.Decl{
		tableMode: {
			Name: "mode", Help: "what is steered (mode=, ahead=)",
			Actions: []table.Action{{Name: "set_mode", Help: "steer", Params: []table.Field{
				{Name: "writes", Bits: 1, Help: "compare-and-swaps"},
				{Name: "reads", Bits: 1, Help: "READs; with writes only"},
				{Name: "ahead", Bits: 1, Help: "1: a key's tail moves when an append passes; 0: when it is known to be linked"},
			}}},
			Default: &table.Call{Params: []table.Value{table.Uint(1), table.Uint(1), table.Uint(1)}},
			May:     table.Default,
			Setting: &table.Setting{Of: modeOf, Set: setMode},
		},
		tableKeys: {
			Name: "steered_keys", Help: "which keys are steered (only=); the rule with the highest priority counts",
			Keys: []table.Field{
				{Name: "hdr.ipv4.dst", Bits: 32, Match: table.Ternary, Form: table.IP, Help: "memory nodes with an IPv4 address"},
				{Name: "meta.key", Bits: 64, Match: table.Range, Help: "keys"},
				{Name: "hdr.ipv6.dst", Bits: 128, Match: table.Ternary, Form: table.IP, Help: "memory nodes with an IPv6 address, instead"},
			},
			Actions: []table.Action{actSteer: {Name: "steer", Help: "steer requests for the key"}, actLeave: {Name: "leave", Help: "let them pass"}},
			Default: &table.Call{Action: actSteer},
			Size:    maxRules,
			May:     table.Insert | table.Modify | table.Delete | table.Default,
			Setting: &table.Setting{Arg: "only", Of: keysOf, Set: setKeys},
		},
		tableConns4: conns("connections", "ipv4", 32),
		tableConns6: conns("connections_ipv6", "ipv6", 128),
		tableTails4: tails("tails", "ipv4", 32),
		tableTails6: tails("tails_ipv6", "ipv6", 128),
	}
}

func modeOf(args table.Args) table.Rows {
	s := defaults(args)
	return table.Rows{Default: table.Call{Params: []table.Value{table.Bool(s.mode != Off), table.Bool(s.mode == ReadWrite), table.Bool(s.ahead > 0)}}}
}

func setMode(args table.Args, r table.Rows) (table.Args, error) {
	writes, reads, ahead := r.Default.Params[0].Lo == 1, r.Default.Params[1].Lo == 1, r.Default.Params[2].Lo == 1
	out := table.Args{}
	switch {
	case reads && !writes:
		return nil, table.Errorf(table.Invalid, "table mode: reads are steered to where writes were: writes=0 goes with reads=0")
	case reads:
		out["mode"] = ReadWrite.String()
	case writes:
		out["mode"] = Write.String()
	default:
		out["mode"] = Off.String()
	}
	if was := defaults(args).ahead > 0; was != ahead {
		out["ahead"] = "0"
		if ahead {
			out["ahead"] = fmt.Sprint(maxUnlinked)
		}
	}
	return out, nil
}

func keysOf(args table.Args) table.Rows {
	c := defaults(args).only
	rows := table.Rows{Default: table.Call{Action: actLeave}}
	if c.rest {
		rows.Default.Action = actSteer
	}
	type place struct {
		lo, hi       uint64
		server, mask netip.Addr
		priority     int32
	}
	seen := map[place]bool{}
	for i := range c.rules {
		r := &c.rules[i]
		if p := (place{r.lo, r.hi, r.server, r.mask, r.priority}); seen[p] {
			continue // the first rule for the same keys and servers counts
		} else {
			seen[p] = true
		}
		e := table.Entry{Priority: r.priority, Key: []table.Cond{{Any: true}, {V: table.Uint(r.lo), M: table.Uint(r.hi)}, {Any: true}}}
		if r.lo == 0 && r.hi == ^uint64(0) {
			e.Key[1] = table.Cond{Any: true}
		}
		if r.named() {
			at := 0
			if r.server.Is6() {
				at = 2
			}
			e.Key[at] = table.Cond{V: table.Addr(r.server), M: table.Addr(r.mask)}
		}
		if r.leave {
			e.Action = actLeave
		}
		rows.Entries = append(rows.Entries, e)
	}
	return rows
}

func setKeys(_ table.Args, rows table.Rows) (table.Args, error) {
	c := choice{rest: rows.Default.Action == actSteer}
	for i := range rows.Entries {
		e := &rows.Entries[i]
		r := rule{hi: ^uint64(0), priority: e.Priority, leave: e.Action == actLeave}
		if k := e.Key[1]; !k.Any {
			r.lo, r.hi = k.V.Lo, k.M.Lo
		}
		switch four, six := e.Key[0], e.Key[2]; {
		case !four.Any && !six.Any:
			return nil, table.Errorf(table.Invalid, "table steered_keys: a memory node has an IPv4 address or an IPv6 one: give one of hdr.ipv4.dst and hdr.ipv6.dst")
		case !four.Any:
			r.server, r.mask = four.V.Addr(32), four.M.Addr(32)
		case !six.Any:
			r.server, r.mask = six.V.Addr(128), six.M.Addr(128)
		}
		c.rules = append(c.rules, r)
	}
	return table.Args{"only": c.String()}, nil
}

// value returns a as a table key of w bits has it. The second result is false if a is of the other address
// family.
func (a addr) value(w int) (table.Value, bool) {
	if w == 32 {
		return table.Uint(a.lo & 0xFFFFFFFF), a.is4()
	}
	return table.Value{Hi: a.hi, Lo: a.lo}, !a.is4()
}

// Hooks implements graph.Hooked.
func (s *Steer) Hooks() graph.Hooks { return graph.Hooks{Scan: s.scan, Remove: s.remove} }

// scan implements graph.Hooks: it yields the entries of table t from number from on.
func (s *Steer) scan(_ *graph.Ctx, t, from, n int, yield func(*table.Entry)) int {
	s.lock()
	defer s.unlock()
	bits := 32
	if t == tableConns6 || t == tableTails6 {
		bits = 128
	}
	var key [3]table.Cond
	var params [6]table.Value
	switch t {
	case tableConns4, tableConns6:
		e := table.Entry{Key: key[:3]}
		end := min(from+n, len(s.rows))
		for i := from; i < end; i++ {
			if !s.conns.Used(conn.Slot(i)) {
				continue
			}
			r, x := &s.rows[i], s.conns.Row(conn.Slot(i))
			client, ok := addrOf(x.Client.Addr.Netip()).value(bits)
			if !ok {
				continue
			}
			server, _ := addrOf(x.Server.Addr.Netip()).value(bits)
			qp := uint64(0)
			if x.State != conn.HalfOpen {
				qp = uint64(x.Client.QPN)
			}
			key = [3]table.Cond{{V: client}, {V: server}, {V: table.Uint(uint64(x.Server.QPN))}}
			params = [6]table.Value{table.Uint(uint64(i)), table.Uint(qp), table.Uint(uint64(r.epsn & hdr.PSNMask)), table.Uint(uint64(r.acked & hdr.PSNMask)),
				table.Uint(uint64(x.MTU)), table.Uint(uint64(r.nw))}
			e.Call = table.Call{Action: actRequests, Params: params[:6]}
			yield(&e)
			if x.State != conn.HalfOpen {
				key = [3]table.Cond{{V: server}, {V: client}, {V: table.Uint(qp)}}
				e.Call = table.Call{Action: actAnswers, Params: params[:1]}
				yield(&e)
			}
		}
		if end < len(s.rows) {
			return end
		}
	case tableTails4, tableTails6:
		e := table.Entry{Key: key[:2]}
		end := min(from+n, len(s.keys.s))
		for i := from; i < end; i++ {
			k := &s.keys.s[i]
			if !k.used {
				continue
			}
			server, ok := s.servers[k.server].match.value(bits)
			if !ok {
				continue
			}
			key[0], key[1] = table.Cond{V: server}, table.Cond{V: table.Uint(k.key)}
			open, uses := table.Uint(uint64(k.unlinked())), table.Uint(uint64(k.hits))
			if k.known() && !s.doubted(k) {
				a := &s.addrs.e[k.tail]
				params = [6]table.Value{table.Uint(a.va), table.Uint(uint64(s.regions[a.region()].rkey)), table.Uint(uint64(a.version())), open, uses}
				e.Call = table.Call{Action: actTail, Params: params[:5]}
			} else {
				params[0], params[1] = open, uses
				e.Call = table.Call{Action: actUnknown, Params: params[:2]}
			}
			yield(&e)
		}
		if end < len(s.keys.s) {
			return end
		}
	}
	return -1
}

// remove implements graph.Hooks: it forgets a key.
func (s *Steer) remove(c *graph.Ctx, t int, key []table.Cond) error {
	s.lock()
	defer s.unlock()
	s.begin(c)
	bits := 32
	if t == tableTails6 {
		bits = 128
	}
	for sid := range s.servers {
		if v, ok := s.servers[sid].match.value(bits); !ok || v != key[0].V || !s.servers[sid].used {
			continue
		}
		k := s.keys.find(uint16(sid), key[1].V.Lo)
		switch {
		case k == noSlot:
		case s.keys.s[k].unlinked() > 0 || s.keys.s[k].waits != 0:
			return table.Errorf(table.Busy, "key %d: appends of it are under way: try again", key[1].V.Lo)
		default:
			s.forget(c, k)
			return nil
		}
	}
	return table.Errorf(table.Missing, "key %d of %v is not tracked", key[1].V.Lo, key[0].V.Addr(bits))
}
