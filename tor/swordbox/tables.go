package swordbox

import (
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/tor/conn"
)

// Tables, by their index in Kind's Tables. A table of IPv6 follows that of IPv4.
const (
	tableMode = iota
	tableGuard
	tableTracked
	tableStatic4
	tableStatic6
	tableClients4
	tableClients6
	tableAnswers4
	tableAnswers6
	tableShared4
	tableShared6
	tableWords4
	tableWords6
	numTables
)

// Actions of tableGuard, tableStatic and tableClients.
const (
	actPass, actDrop        = 0, 1
	actConnect, actFrom     = 0, 1
	actJoin, actNotFollowed = 0, 1
)

// maxSettings is the largest number of entries of a table that is a setting.
const maxSettings = 1024

func tables() []table.Decl {
	qp := func(name, help string) table.Field {
		return table.Field{Name: name, Bits: 24, Form: table.Hex, Help: help}
	}
	psn := func(name, help string) table.Field { return table.Field{Name: name, Bits: 24, Help: help} }
	mtu := table.Field{Name: "mtu", Bits: 32, Help: "path MTU in bytes; 0: not known"}
	client := table.Field{Name: "client", Bits: 32, Help: "number of the connection"}
	shared := table.Field{Name: "shared", Bits: 32, Help: "number of the connection that carries it"}
	ends := func(ip string, bits int) []table.Field {
		return []table.Field{
			{Name: "hdr." + ip + ".src", Bits: bits, Form: table.IP, Help: "who sends"},
			{Name: "hdr." + ip + ".dst", Bits: bits, Form: table.IP, Help: "to whom"},
			qp("hdr.bth.dst_qp", "to which queue pair"),
		}
	}
	all := table.Insert | table.Modify | table.Delete
	d := make([]table.Decl, numTables)
	d[tableMode] = table.Decl{
		Name: "mode", Help: "what is done to operations on tracked words (mode=); a change forgets the words",
		Default: &table.Call{Action: int(Replace)}, May: table.Default,
		Setting: &table.Setting{Of: modeOf, Set: setMode},
	}
	for m, help := range []string{Off: "nothing moves", Mux: "they move onto shared connections", Replace: "and atomics go as WRITEs",
		End: "as off, and connections that cannot do without this app are ended: their clients are told"} {
		d[tableMode].Actions = append(d[tableMode].Actions, table.Action{Name: modeNames[m], Scope: table.DefaultOnly, Help: help})
	}
	d[tableGuard] = table.Decl{
		Name: "guard", Help: "what becomes of frames for a known queue pair that are not from its peer, and of forged datagrams of the connection manager (guard=)",
		Actions: []table.Action{actPass: {Name: "pass", Scope: table.DefaultOnly, Help: "they pass"}, actDrop: {Name: "drop", Scope: table.DefaultOnly, Help: "they are dropped"}},
		Default: &table.Call{Action: actPass}, May: table.Default,
		Setting: &table.Setting{Of: guardOf, Set: setGuard},
	}
	d[tableTracked] = table.Decl{
		Name: "tracked", Help: "memory whose operations move, besides the words that atomics go to (track=)",
		Keys:    []table.Field{{Name: "meta.va", Bits: 64, Match: table.Range, Form: table.Hex, Help: "addresses"}},
		Actions: []table.Action{{Name: "track", Scope: table.EntryOnly, Help: "operations on this memory move"}},
		Size:    maxSettings, May: all,
		Setting: &table.Setting{Arg: "track", Of: trackedOf, Set: setTracked},
	}
	for k, f := range []struct {
		name, ip string
		bits     int
	}{{"", "ipv4", 32}, {"_ipv6", "ipv6", 128}} {
		d[tableStatic4+k] = table.Decl{
			Name: "static" + f.name, Help: "connections that nothing else tells, from their clients (static=)",
			Keys: ends(f.ip, f.bits),
			Actions: []table.Action{
				actConnect: {Name: "connect", Scope: table.EntryOnly, Help: "there is a connection", Params: []table.Field{
					qp("client_qp", "the client's queue pair"), {Name: "mtu", Bits: 16, Help: "path MTU in bytes; 0: found out"}}},
				actFrom: {Name: "connect_from", Scope: table.EntryOnly, Help: "there is one, and its client's first PSN is known", Params: []table.Field{
					qp("client_qp", "the client's queue pair"), psn("first_psn", "of the client's requests"), {Name: "mtu", Bits: 16, Help: "path MTU in bytes; 0: found out"}}},
			},
			Size: maxSettings, May: all,
			Setting: &table.Setting{Arg: "static", Of: func(a table.Args) table.Rows { return staticOf(a, f.bits) },
				Set: func(a table.Args, r table.Rows) (table.Args, error) { return setStatic(a, r, f.bits) }},
		}
		d[tableClients4+k] = table.Decl{
			Name: "clients" + f.name, Help: "connections, from their clients; one that is deleted is forgotten, and learnt anew when it goes on",
			Keys: ends(f.ip, f.bits),
			Actions: []table.Action{
				actJoin: {Name: "join", Help: "its operations may move", Params: []table.Field{
					client, {Name: "shared", Bits: 32, Help: "number of the connection that carries its youngest operation; its own when none is open"},
					qp("client_qp", "the client's queue pair"), psn("next_client", "PSN that comes next, as the client numbers"),
					psn("next_server", "PSN that the server expects next"), {Name: "msn", Bits: 24, Help: "messages that the client knows to be done"},
					{Name: "open", Bits: 32, Help: "operations without an answer"}, {Name: "guests", Bits: 32, Help: "others' that its connection carries"},
					{Name: "waiting", Bits: 32, Help: "requests that wait for their turn"}, mtu,
					{Name: "bound", Bits: 1, Help: "1: its two ends count differently: it cannot do without this app"}}},
				actNotFollowed: {Name: "not_followed", Help: "known, and passes as it is", Params: []table.Field{
					client, qp("client_qp", "the client's queue pair; 0: not known"), {Name: "paired", Bits: 1, Help: "both ends are known"}, mtu,
					{Name: "lost", Bits: 1, Help: "1: it could not be kept, its client is told"}}},
			},
			May: table.Delete,
		}
		d[tableAnswers4+k] = table.Decl{
			Name: "answers" + f.name, Help: "answers of shared connections",
			Keys: ends(f.ip, f.bits), Actions: []table.Action{{Name: "answers_of", Help: "of that connection", Params: []table.Field{shared}}},
		}
		d[tableShared4+k] = table.Decl{
			Name: "shared" + f.name, Help: "shared connections: who sends on them, to whom",
			Keys: []table.Field{{Name: "meta.shared", Bits: 32, Help: "number of the connection"}},
			Actions: []table.Action{{Name: "send_as" + f.name, Help: "sent so", Params: []table.Field{
				{Name: "src", Bits: f.bits, Form: table.IP, Help: "client"}, {Name: "src_port", Bits: 16, Help: "UDP port; 0: not seen"},
				qp("server_qp", "the server's queue pair"), psn("first_psn", "that the server expects next"), mtu,
				{Name: "dst", Bits: f.bits, Form: table.IP, Help: "server"}, {Name: "guests", Bits: 32, Help: "operations of others without an answer"}}}},
		}
		d[tableWords4+k] = table.Decl{
			Name: "words" + f.name, Help: "words that are tracked",
			Keys: []table.Field{
				{Name: "hdr." + f.ip + ".dst", Bits: f.bits, Form: table.IP, Help: "server"},
				{Name: "meta.rkey", Bits: 32, Form: table.Hex, Help: "R_Key"},
				{Name: "meta.va", Bits: 64, Form: table.Hex, Help: "address"},
			},
			Actions: []table.Action{{Name: "word", Help: "tracked", Params: []table.Field{
				{Name: "id", Bits: 32, Help: "number of the word"}, {Name: "known", Bits: 1, Help: "1: its value is known"},
				{Name: "value", Bits: 64, Form: table.Hex, Help: "what the server will have, as a number; 0 when it is not known"},
				{Name: "open", Bits: 32, Help: "operations under way that change it"}}}},
		}
	}
	return d
}

// defaults returns the settings that args make.
func defaults(args table.Args) settings {
	s, err := parseArgs(args)
	if err != nil {
		s, _ = parseArgs(nil) // cannot happen: the running app has taken args
	}
	return s
}

func modeOf(args table.Args) table.Rows {
	return table.Rows{Default: table.Call{Action: int(defaults(args).mode)}}
}

func setMode(_ table.Args, r table.Rows) (table.Args, error) {
	return table.Args{"mode": modeNames[r.Default.Action]}, nil
}

func guardOf(args table.Args) table.Rows {
	if defaults(args).dropSpoofed {
		return table.Rows{Default: table.Call{Action: actDrop}}
	}
	return table.Rows{Default: table.Call{Action: actPass}}
}

func setGuard(_ table.Args, r table.Rows) (table.Args, error) {
	return table.Args{"guard": []string{actPass: "pass", actDrop: "drop"}[r.Default.Action]}, nil
}

func trackedOf(args table.Args) (rows table.Rows) {
	seen := map[span]bool{}
	for _, t := range defaults(args).track {
		if !seen[t] {
			seen[t] = true
			rows.Entries = append(rows.Entries, table.Entry{Priority: t.priority, Key: []table.Cond{{V: table.Uint(t.va), M: table.Uint(t.end - 1)}}})
		}
	}
	return rows
}

func setTracked(_ table.Args, rows table.Rows) (table.Args, error) {
	var out []string
	for i := range rows.Entries {
		e := &rows.Entries[i]
		lo, hi := e.Key[0].V.Lo, e.Key[0].M.Lo
		if e.Key[0].Any || hi == ^uint64(0) {
			return nil, table.Errorf(table.Invalid, "table tracked: meta.va: the last byte of memory cannot be tracked: end the range before it")
		}
		out = append(out, (&span{lo, hi + 1, e.Priority}).String())
	}
	if out == nil {
		out = []string{"none"}
	}
	return table.Args{"track": strings.Join(out, ":")}, nil
}

func staticOf(args table.Args, bits int) (rows table.Rows) {
	for _, text := range defaults(args).static {
		c, err := conn.ParseStatic(text)
		if err != nil || c.Server.BitLen() != bits {
			continue
		}
		e := table.Entry{Key: []table.Cond{{V: table.Addr(c.Client)}, {V: table.Addr(c.Server)}, {V: table.Uint(uint64(c.ServerQPN))}}}
		e.Params = []table.Value{table.Uint(uint64(c.ClientQPN)), table.Uint(uint64(c.MTU))}
		if c.HasPSN {
			e.Action = actFrom
			e.Params = slices.Insert(e.Params, 1, table.Uint(uint64(c.PSN)))
		}
		if !slices.ContainsFunc(rows.Entries, func(o table.Entry) bool { return o.Same(&e) }) {
			rows.Entries = append(rows.Entries, e)
		}
	}
	return rows
}

func setStatic(args table.Args, rows table.Rows, bits int) (table.Args, error) {
	var out []string
	for _, text := range defaults(args).static {
		if c, err := conn.ParseStatic(text); err == nil && c.Server.BitLen() != bits {
			out = append(out, text)
		}
	}
	for i := range rows.Entries {
		e := &rows.Entries[i]
		c := conn.StaticConn{Client: e.Key[0].V.Addr(bits), Server: e.Key[1].V.Addr(bits), ServerQPN: uint32(e.Key[2].V.Lo), ClientQPN: uint32(e.Params[0].Lo)}
		c.MTU = int(e.Params[len(e.Params)-1].Lo)
		if e.Action == actFrom {
			c.HasPSN, c.PSN = true, uint32(e.Params[1].Lo)
		}
		if _, err := conn.ParseStatic(c.String()); err != nil {
			return nil, table.Errorf(table.Invalid, "table static: %v", err)
		}
		out = append(out, c.String())
	}
	if out == nil {
		out = []string{"none"}
	}
	return table.Args{"static": strings.Join(out, ";")}, nil
}

// Takes implements graph.Reconfigurer: the settings of all tables but mode, and bad=, can change while the
// app runs.
func (s *Box) Takes(args graph.Args) bool {
	cfg, err := parseArgs(args)
	if err != nil {
		return false // making the app anew returns the error
	}
	was := s.cfg
	for _, c := range []*settings{&cfg, &was} {
		c.track, c.cover, c.static, c.dropSpoofed, c.dropBad = nil, nil, nil, false, false
	}
	return reflect.DeepEqual(cfg, was)
}

// Reconfigure implements graph.Reconfigurer.
func (s *Box) Reconfigure(args graph.Args) error {
	cfg, err := parseArgs(args)
	if err != nil {
		return err
	}
	if !slices.Equal(cfg.static, s.cfg.static) {
		if err := s.mayConnect(&cfg); err != nil {
			return err
		}
		s.restatic = s.worker == 0 && s.cfg.mode.moves()
	}
	again := !slices.Equal(cfg.cover, s.cfg.cover)
	s.cfg = cfg
	if !again {
		return nil
	}
	for _, n := range *s.nodes.Load() {
		_ = s.look(n, func() error {
			n.words.vouch(&cfg)
			return nil
		})
	}
	return nil
}

// mayConnect returns an error if the connections of static= cannot become those of cfg.
func (s *Box) mayConnect(cfg *settings) error {
	var want []conn.StaticConn
	for _, text := range cfg.static {
		c, err := conn.ParseStatic(text)
		if err != nil {
			return err
		}
		want = append(want, c)
	}
	for _, n := range *s.nodes.Load() {
		err := s.look(n, func() error {
			for _, c := range want {
				for _, e := range []struct {
					addr netip.Addr
					qpn  uint32
				}{{c.Client, c.ClientQPN}, {c.Server, c.ServerQPN}} {
					slot, _ := n.conns.Find(conn.AddrFrom(e.addr), e.qpn)
					if slot == conn.NoSlot || n.conns.Row(slot).Learnt == conn.Inferred {
						continue
					}
					if r := n.conns.Row(slot); staticOfRow(r) != place(&c) {
						return fmt.Errorf("connection %v: queue pair %v/%#x is in use by %v", c, e.addr, e.qpn, r)
					}
				}
			}
			for i := range n.flows {
				if n.goes(i, want) && n.flows[i].bound {
					return fmt.Errorf("connection %v: its two ends count differently: its client must close it first, or set mode=end", n.conns.Row(conn.Slot(i)))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// four are the two ends of a connection.
type four struct {
	client, server netip.Addr
	cqpn, sqpn     uint32
}

func place(c *conn.StaticConn) four { return four{c.Client, c.Server, c.ClientQPN, c.ServerQPN} }

func staticOfRow(r *conn.Row) four {
	return four{r.Client.Addr.Netip(), r.Server.Addr.Netip(), r.Client.QPN, r.Server.QPN}
}

// goes reports whether slot i has a connection that static= named and that is not in want.
func (n *node) goes(i int, want []conn.StaticConn) bool {
	if !n.conns.Used(conn.Slot(i)) || n.flows[i].lost != 0 {
		return false
	}
	r := n.conns.Row(conn.Slot(i))
	return r.Learnt == conn.Static && !slices.ContainsFunc(want, func(c conn.StaticConn) bool { return place(&c) == staticOfRow(r) })
}

// reconnect adds the connections that static= names, and forgets those that it does not name any more. Worker
// 0 does this for all workers.
func (s *Box) reconnect() {
	s.restatic = false
	var want []conn.StaticConn
	for _, text := range s.cfg.static {
		c, _ := conn.ParseStatic(text)
		want = append(want, c)
	}
	for _, n := range *s.nodes.Load() {
		s.own(n)
		for i := range n.flows {
			if !n.goes(i, want) {
				continue
			}
			if n.flows[i].bound {
				s.restatic = true // to be removed when its client has closed it
				continue
			}
			n.conns.Remove(conn.Slot(i))
			s.clients.settle()
		}
	}
	for _, c := range want {
		n, err := s.meet(s.c.Now(), conn.AddrFrom(c.Server).In(c.VLAN))
		if err == nil {
			s.own(n)
			n.kept = true
			_, err = n.conns.AddStatic(s.c.Now(), c)
			s.clients.settle()
		}
		if err != nil {
			s.c.Count(ctrStaticRefused, 1)
		}
	}
}

// look runs f while no worker owns node n. It does not run f if n is not a node any more.
func (s *Box) look(n *node, f func() error) error {
	if s.workers > 1 {
		for !n.turn.CompareAndSwap(false, true) {
			runtime.Gosched()
		}
		defer n.turn.Store(false)
	}
	if n.gone {
		return nil
	}
	return f()
}

// family returns a as a table key has it. The second result is false if a is not of the family that six
// names.
func family(a conn.Addr, six bool) (table.Value, bool) {
	v := a.As16()
	x, _ := table.FromBytes(v[:])
	if !six {
		x = table.Uint(x.Lo & 0xFFFFFFFF)
	}
	return x, a.Is4() != six
}

// Hooks implements graph.Hooked.
func (s *Box) Hooks() graph.Hooks {
	return graph.Hooks{Keeps: s.keeps, Bound: s.inheritedEnds, Scan: s.scan, Remove: s.remove}
}

// scan implements graph.Hooks. A place is the number of a node times the number of its slots, plus that of a
// slot.
func (s *Box) scan(_ *graph.Ctx, t, from, n int, yield func(*table.Entry)) int {
	stride := s.cfg.conns
	if t == tableWords4 || t == tableWords6 {
		stride = s.cfg.words
	}
	nodes := *s.nodes.Load()
	for at := from / stride; at < len(nodes); at++ {
		first := max(from-at*stride, 0)
		end := stride
		_ = s.look(nodes[at], func() error {
			if n < end-first {
				end = first + n
			}
			nodes[at].scan(t, at, first, end, yield)
			return nil
		})
		if n -= max(end-first, 0); n <= 0 {
			return at*stride + end
		}
	}
	return -1
}

// id returns the number that the tables show for connection i of node at.
func id(at int, i int32) table.Value { return table.Uint(uint64(at)<<16 | uint64(i)&0xFFFF) }

// scan yields the entries of table t for the slots from first to end of node at.
func (n *node) scan(t, at, first, end int, yield func(*table.Entry)) {
	var key [3]table.Cond
	var params [11]table.Value
	num := func(v uint32) table.Value { return table.Uint(uint64(v)) }
	switch t {
	case tableWords4, tableWords6:
		server, ok := family(n.addrs[0], t == tableWords6)
		if !ok {
			return
		}
		e := table.Entry{Key: key[:3], Call: table.Call{Params: params[:4]}}
		for i := first; i < min(end, int(n.words.born)); i++ {
			w := &n.words.w[i]
			if w.va == nowhere {
				continue
			}
			key[0].V, key[1].V, key[2].V = server, num(w.rkey), table.Uint(w.va)
			value := uint64(0)
			known := n.words.believes(w)
			if known {
				value = w.value
			}
			params[0], params[1], params[2], params[3] = num(uint32(i)), table.Bool(known), table.Uint(value), num(uint32(w.flight+w.loose))
			yield(&e)
		}
		return
	}
	six := t == tableClients6 || t == tableAnswers6 || t == tableShared6
	for i := first; i < end; i++ {
		if !n.conns.Used(conn.Slot(i)) {
			continue
		}
		r, f := n.conns.Row(conn.Slot(i)), &n.flows[i]
		client, ok := family(r.Client.Addr, six)
		server, _ := family(r.Server.Addr, six)
		if !ok {
			continue
		}
		mtu := uint32(r.MTU)
		if f.mtu != 0 {
			mtu = f.mtu
		}
		e := table.Entry{Key: key[:3]}
		switch t {
		case tableClients4, tableClients6:
			if at, _ := n.conns.Find(r.Server.Addr, r.Server.QPN); int(at) != i {
				continue // its server's queue pair is not known yet, or another connection has it
			}
			key[0].V, key[1].V, key[2].V = client, server, num(r.Server.QPN)
			if f.synced && f.trusted && f.lost == 0 {
				lane := int32(i)
				if f.open > 0 && f.lane != none {
					lane = f.lane
				}
				params = [11]table.Value{id(at, int32(i)), id(at, lane), num(r.Client.QPN), num(f.arrived & hdr.PSNMask), num(f.next & hdr.PSNMask),
					num(f.released()), num(uint32(f.open)), num(uint32(f.guests)), num(uint32(f.stall.Len())), num(mtu), table.Bool(f.bound)}
				e.Call = table.Call{Action: actJoin, Params: params[:11]}
			} else {
				params[0], params[1], params[2], params[3], params[4] = id(at, int32(i)), num(r.Client.QPN), table.Bool(r.State != conn.HalfOpen), num(mtu), table.Bool(f.lost != 0)
				e.Call = table.Call{Action: actNotFollowed, Params: params[:5]}
			}
		case tableAnswers4, tableAnswers6:
			if !f.isLent {
				continue
			}
			key[0].V, key[1].V, key[2].V = server, client, num(r.Client.QPN)
			params[0] = id(at, int32(i))
			e.Call = table.Call{Params: params[:1]}
		default:
			if !f.isLent {
				continue
			}
			key[0].V = id(at, int32(i))
			e.Key = key[:1]
			params = [11]table.Value{client, num(uint32(r.Client.Port)), num(r.Server.QPN), num(f.next & hdr.PSNMask), num(mtu), server, num(uint32(f.guests))}
			e.Call = table.Call{Params: params[:7]}
		}
		yield(&e)
	}
}

// remove implements graph.Hooks: it forgets a connection.
func (s *Box) remove(c *graph.Ctx, t int, key []table.Cond) error {
	bits := 32
	if t == tableClients6 {
		bits = 128
	}
	client, server, qpn := key[0].V.Addr(bits).Unmap(), key[1].V.Addr(bits).Unmap(), uint32(key[2].V.Lo)
	s.c = c
	defer func() { s.c = nil }()
	defer s.release()
	for _, n := range *s.nodes.Load() {
		s.own(n)
		slot, isClient := n.conns.Find(conn.AddrFrom(server), qpn)
		if slot == conn.NoSlot || isClient || n.conns.Row(slot).Client.Addr != conn.AddrFrom(client) {
			continue
		}
		r, f := n.conns.Row(slot), &n.flows[slot]
		switch {
		case f.bound:
			return table.Errorf(table.Busy, "connection %v: its two ends count differently: its client must close it, or set mode=end", r)
		case f.open > 0 || f.oldest != none && f.synced:
			return table.Errorf(table.Busy, "connection %v: it has operations under way: try again", r)
		case r.Learnt == conn.Static && f.lost == 0:
			return table.Errorf(table.Busy, "connection %v: table static has it: delete it there", r)
		}
		n.conns.Remove(slot)
		s.clients.settle()
		return nil
	}
	return table.Errorf(table.Missing, "there is no connection from %v to %v/%#x", client, server, qpn)
}
