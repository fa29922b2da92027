package fence

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/table"
)

const (
	reasonFenced graph.Reason = iota
	reasonAsked
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonFenced: {Name: "fenced", Help: "of a client that is shut out"},
	reasonAsked:  {Name: "answer", Help: "the answer to a request that a client be shut out"},
}

const (
	ctrEntries counter.ID = iota
	ctrAsked
	ctrRefused
	ctrCookies
	ctrPassing
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrEntries: {Name: "entries", Help: "clients that are shut out now, or parts of what they could reach"},
	ctrAsked:   {Name: "asked", Help: "requests of clients that another one be shut out, which were done"},
	ctrRefused: {Name: "refused", Help: "such requests that were not: of one that was not seen to write there, no room, or nonsense"},
	ctrPassing: {Name: "not-on-disk", Help: "clients that are shut out now, but would not be after a reboot: the journal does not name them yet, or cannot be written"},
	ctrCookies: {Name: "cookies", Help: "such requests that were answered with a cookie, which has to come back"},
}

type settings struct {
	fence    entries       `arg:"fence" keep:"none" help:"who is shut out: CLIENT-SERVER[/QP][@R_KEY] separated by semicolons, QP being the server's queue pair; can be changed while running, and is the table fence. What it does not name any more is lifted"`
	requests bool          `arg:"requests" words:"off on" help:"clients of port a may have others shut out from memory that they may write themselves (quillon's own, by a ConnectRequest): on or off"`
	settle   time.Duration `arg:"settle" range:"0..1m" help:"how long requests may be under way that passed before: who asks is told to wait for so long"`
}

var arguments = arg.Declare("", settings{settle: 500 * time.Millisecond})

func read(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	return s, r.Err()
}

// Tables.
const (
	tableFence = iota
	tableHeld
)

func tables() []table.Decl {
	keys := []table.Field{
		{Name: "hdr.ipv4.src", Bits: 32, Form: table.IP, Help: "client"},
		{Name: "hdr.ipv4.dst", Bits: 32, Form: table.IP, Help: "server"},
		{Name: "hdr.bth.dst_qp", Bits: 24, Form: table.Hex, Help: "the server's queue pair; 0: all"},
		{Name: "hdr.reth.rkey", Bits: 32, Form: table.Hex, Help: "R_Key; 0: all"},
	}
	return []table.Decl{
		tableFence: {Name: "fence", Help: "who is shut out (fence=)", Keys: keys,
			Actions: []table.Action{{Name: "shut", Scope: table.EntryOnly, Help: "what it asks is dropped"}},
			Size:    most, May: table.Insert | table.Delete,
			Setting: &table.Setting{Arg: "fence", Of: fenceOf, Set: setFence}},
		tableHeld: {Name: "held", Help: "all who are shut out: by fence=, by request, by another function as arbiter, or by what a process before this one left; one that is deleted is lifted", Keys: keys,
			Actions: []table.Action{{Name: "held", Help: "what it asks is dropped", Params: []table.Field{
				{Name: "by", Bits: 8, Help: "0: fence=, 1: a request, 2: it was left, 3: another function"},
				{Name: "vlans", Bits: 32, Form: table.Hex, Help: "0: in any VLAN; else 1 and the VLAN ID, of two tags 1 and 4096 times the outer ID and the inner"}}}},
			May: table.Delete},
	}
}

func key(e entry) []table.Cond {
	return []table.Cond{{V: table.Addr(e.client)}, {V: table.Addr(e.server)}, {V: table.Uint(uint64(e.qpn))}, {V: table.Uint(uint64(e.rkey))}}
}

func entryOf(k []table.Cond) entry {
	return entry{client: k[0].V.Addr(32), server: k[1].V.Addr(32), qpn: uint32(k[2].V.Lo), rkey: uint32(k[3].V.Lo)}
}

func fenceOf(args table.Args) (rows table.Rows) {
	s, _ := read(args)
	for _, e := range s.fence {
		rows.Entries = append(rows.Entries, table.Entry{Key: key(e)})
	}
	return rows
}

func setFence(_ table.Args, rows table.Rows) (table.Args, error) {
	var out []string
	for i := range rows.Entries {
		out = append(out, entryOf(rows.Entries[i].Key).String())
	}
	if out == nil {
		out = []string{"none"}
	}
	return table.Args{"fence": strings.Join(out, ";")}, nil
}

// Kind declares fence.
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "fence",
		Summary: "shut out RDMA clients that were declared dead",
		Doc: `What a client that is declared dead still sends to a memory server is dropped: all of it,
what goes to one queue pair (the server's end of one RDMA connection), or what
names one R_Key (the key to a piece of the server's memory). Put it in front of swordbox or clover-steer, from the
clients' side, or alone:

  quillon run --inline eth1,eth2 --nf fence --nf swordbox,servers=10.0.0.9
  quillon table insert fence.fence hdr.ipv4.src=10.0.0.1 hdr.ipv4.dst=10.0.0.9 hdr.bth.dst_qp=0x11 hdr.reth.rkey=0 shut
  quillon table show fence.held

Entries are kept beside the state file (run --state) and in force again after a crash, and
beside the journal (run --journal), after a reboot of the machine.
While no process is there, the kernel drops frames to queue pairs that entries name.
RoCEv2 over IPv4 is looked at, of all transports, and the first IP fragments of such; datagrams (UD) pass, so that a
client that has noticed can connect anew. Of XRC, DC and fragments no R_Key is read: each entry of that client and server means them.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Tables:   tables(),
		Soft:     true,
		Before:   []string{"swordbox", "clover-steer"},
		New:      newApp,
	}
}

func newApp(env graph.Env, args graph.Args) (graph.App, error) {
	s, err := read(args)
	if err != nil {
		return nil, err
	}
	h := env.Share(func() any {
		return newHeld()
	}).(*held)
	if err := h.open(env); err != nil {
		return nil, err
	}
	if !env.Asked {
		h.settle.Store(int64(s.settle))
	}
	a := &app{settings: s, held: h}
	if s.requests && !env.Asked {
		a.eyes, err = newWitness(env, h)
	}
	return a, err
}

type app struct {
	settings
	held  *held
	eyes  *witness // sees which clients may ask; nil: requests=off
	begun bool
	next  int // index of the entry that was bound last
	f     hdr.Frame
}

// Takes implements graph.Reconfigurer.
func (a *app) Takes(args graph.Args) bool {
	s, err := read(args)
	was := a.settings
	s.fence, was.fence = nil, nil
	return err == nil && reflect.DeepEqual(s, was)
}

// Reconfigure implements graph.Reconfigurer.
func (a *app) Reconfigure(args graph.Args) error {
	s, err := read(args)
	if err != nil {
		return err
	}
	var gone []entry
	for _, e := range a.fence {
		if !slices.Contains(s.fence, e) {
			gone = append(gone, e)
		}
	}
	if !a.held.add(byArgument, s.fence...) {
		return table.Errorf(table.Full, "fence: want at most %d entries in all", most)
	}
	a.held.lift(gone...)
	a.settings = s
	a.held.settle.Store(int64(s.settle))
	return nil
}

// Wants implements graph.Wanter.
func (a *app) Wants() port.Filter { return port.Filter{RoCE: true, Bound: true, Waits: true} }

// begin puts the entries of fence= in force, and those that a process before this one left.
func (a *app) begin() {
	a.begun = true
	_ = a.held.begin() // newApp has already refused what begin refuses
	a.held.add(byArgument, a.fence...)
}

// Each interval of length every, Tick binds up to atOnce of the entries' queue pairs in the kernel. It
// repeats this for ever, because another app of the graph may have had one bound, too, and unbound it. A queue pair stays bound
// when its entry is lifted, because another app may need it bound.
const (
	every  = 100 * time.Millisecond
	atOnce = 16
)

// Tick implements graph.Ticker.
func (a *app) Tick(c *graph.Ctx) clock.Time {
	if !a.begun {
		a.begin()
	}
	all, _ := a.held.list()
	c.Set(ctrEntries, uint64(len(all)))
	c.Set(ctrPassing, uint64(a.held.notOnDisk()))
	for range min(len(all), atOnce) {
		if a.next++; a.next >= len(all) {
			a.next = 0
		}
		if e := all[a.next]; e.qpn != 0 {
			_ = c.Bind(port.QueuePair{Addr: e.server, QPN: e.qpn}, true) // ports without Bind let no frames cross
		}
	}
	return c.Now().Add(every)
}

// Hooks implements graph.Hooked.
func (a *app) Hooks() graph.Hooks {
	return graph.Hooks{Scan: a.scan, Remove: a.remove, Bound: a.held.bound}
}

func (a *app) scan(_ *graph.Ctx, _, from, n int, yield func(*table.Entry)) int {
	all, by := a.held.list()
	end := min(from+n, len(all))
	for i := from; i < end; i++ {
		yield(&table.Entry{Key: key(all[i]), Call: table.Call{Params: []table.Value{table.Uint(uint64(by[i])), table.Uint(uint64(all[i].vlans))}}})
	}
	if end == len(all) {
		return -1
	}
	return end
}

func (a *app) remove(_ *graph.Ctx, _ int, k []table.Cond) error {
	e := entryOf(k)
	all, by := a.held.list()
	var of []entry // in whichever VLANs
	for i, x := range all {
		if e.vlans = x.vlans; x != e {
			continue
		}
		if by[i] == byArgument {
			return table.Errorf(table.Busy, "%v: table fence has it: delete it there", e)
		}
		of = append(of, x)
	}
	if of == nil {
		return table.Errorf(table.Missing, "nobody is shut out by %v", e)
	}
	a.held.lift(of...)
	return nil
}

var _ graph.Flusher = (*app)(nil)

// Flush implements graph.Flusher.
func (a *app) Flush(c *graph.Ctx) {
	if a.eyes != nil {
		a.eyes.miss(c.Now())
	}
}

// Push implements graph.App.
func (a *app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if !a.begun {
		a.begin()
	}
	const fromClients = 0
	shut := a.held.now.Load()
	if a.eyes == nil && (in != fromClients || len(*shut) == 0) {
		for _, x := range b.Bufs() {
			c.Emit(1-in, x)
		}
		return
	}
	for _, x := range b.Bufs() {
		p := x.Bytes()
		if hdr.Parse(p, &a.f) != hdr.IsRoCE || a.f.Net != hdr.NetIPv4 {
			if in == fromClients && a.hides((*shut), p) {
				c.Drop(x, reasonFenced)
			} else {
				c.Emit(1-in, x)
			}
			continue
		}
		if in == fromClients {
			if a.f.Op.Transport() == hdr.UD {
				if a.eyes != nil && a.asked(c, x, p) {
					continue
				}
			} else if a.shuts((*shut)[[4]byte(p[a.f.L3+12:])], p) {
				c.Drop(x, reasonFenced)
				continue
			}
		}
		if a.eyes != nil {
			a.eyes.see(c.Now(), p, &a.f, in == fromClients)
		}
		c.Emit(1-in, x)
	}
}

// shuts reports whether one of a client's entries shuts out the frame p, which is parsed in a.f.
func (a *app) shuts(all []entry, p []byte) bool {
	if len(all) == 0 || a.f.Op.Has(hdr.IsResponse) {
		return false
	}
	server, qpn := [4]byte(p[a.f.L3+16:]), a.f.BTHOf(p).DestQP()
	rkey, named := uint32(0), true
	switch ext := a.f.Op.Info().Ext; {
	case ext&hdr.HasRETH != 0:
		rkey = a.f.RETHOf(p).RKey()
	case a.f.Op.Info().Flags&hdr.IsAtomic != 0:
		// Both sorts of atomics have address and R_Key at the same place.
		at := int(a.f.BTH) + hdr.BTHLen
		rkey = hdr.AtomicETH(p[at : at+hdr.AtomicETHLen]).RKey()
	default:
		named = false
	}
	vlans := hdr.VIDs(p, a.f.Tags)
	for i := range all {
		if e := &all[i]; e.server.As4() == server && (e.qpn == 0 || e.qpn == qpn) && (e.rkey == 0 || !named || e.rkey == rkey) && e.reaches(vlans) {
			return true
		}
	}
	return false
}

// hides reports whether the frame p, which hdr.Parse did not take for RoCE, may be a request that one of its client's entries
// shuts out: of a transport that hdr does not know (XRC, DC, a manufacturer's), with a wrong length or version, or the first
// fragment of a datagram, without which no receiver can put it together. Where its R_Key or queue pair is not known, all entries of
// that client and server mean it.
func (a *app) hides(shut map[[4]byte][]entry, p []byte) bool {
	if a.f.Net != hdr.NetIPv4 || len(p) < int(a.f.L3)+hdr.IPv4Len {
		return false
	}
	ip := hdr.IPv4(p[a.f.L3:])
	all := shut[[4]byte(ip[12:])]
	if len(all) == 0 || ip.Protocol() != hdr.ProtoUDP || ip.FragOffset() != 0 || len(ip) < ip.HeaderLen()+hdr.UDPLen {
		return false
	}
	u := ip[ip.HeaderLen():]
	if hdr.UDP(u).DstPort() != hdr.RoCEv2Port {
		return false
	}
	qpn := uint32(0)
	if bth := hdr.BTH(u[hdr.UDPLen:]); len(bth) >= hdr.BTHLen {
		op := bth.OpCode()
		if op.Transport() == hdr.UD || op == hdr.CNP || (op & 0x1F).Has(hdr.IsResponse) {
			return false // of all connected transports responses have the same low five bits
		}
		qpn = bth.DestQP()
	}
	server, vlans := [4]byte(ip[16:]), hdr.VIDs(p, a.f.Tags)
	return slices.ContainsFunc(all, func(e entry) bool {
		return e.server.As4() == server && (e.qpn == 0 || qpn == 0 || e.qpn == qpn) && e.reaches(vlans)
	})
}

const reasonUser = 28 // consumer reject (IBTA table 102)

// asked handles a datagram that may be a request to the fence. It answers a request in x. It returns
// false for any other datagram, which passes.
func (a *app) asked(c *graph.Ctx, x *packet.Buf, p []byte) bool {
	m, ok := a.f.CMOf(p)
	if !ok || m.AttributeID() != hdr.ConnectRequest || m.ServiceID() != hdr.ServiceIDOfPort(hdr.FencePort) || !hdr.GoodICRC(p, &a.f) {
		return false
	}
	private := m.PrivateData()[hdr.IPCMLen:]
	ip := p[a.f.L3:]
	server := netip.AddrFrom4([4]byte(ip[16:]))
	if !oneHost(server) || p[0]&1 != 0 {
		return false // the answer would have no single receiver, or sender
	}
	told, what := a.decide(c, private, right{client: [4]byte(ip[12:]), server: server.As4(), mac: [6]byte(p[6:]), vlans: hdr.VIDs(p, a.f.Tags)})
	c.Count(what, 1)
	f := hdr.CMFields{AttributeID: hdr.ConnectReject, TransactionID: m.TransactionID(), RemoteCommID: m.LocalCommID(), Reason: reasonUser, PrivateData: told}
	var mac [6]byte
	copy(mac[:], p[:6])
	copy(p, p[6:12])
	copy(p[6:12], mac[:])
	var addr [4]byte
	copy(addr[:], ip[12:16])
	copy(ip[12:16], ip[16:20])
	copy(ip[16:20], addr[:])
	m.Encode(&f)
	a.f.UDPOf(p).SetChecksum(0)
	hdr.SetICRC(p, &a.f)
	c.Mark(x, packet.Rewritten, reasonAsked)
	c.Emit(0, x)
	return true
}

// decide executes a request or refuses it. It returns the private data of the answer, and the counter
// for the outcome.
func (a *app) decide(c *graph.Ctx, private []byte, asker right) (told []byte, as counter.ID) {
	var r hdr.FenceRequest
	if !r.Parse(private) {
		return []byte("no such request"), ctrRefused
	}
	e := entry{client: r.Client, server: netip.AddrFrom4(asker.server), qpn: r.QPN}
	keys := r.Keys[:r.N]
	if !e.sound() || len(keys) == 0 {
		return []byte("no such request: it names a client, and R_Keys"), ctrRefused
	}
	if !a.held.owns(asker, keys) {
		return []byte("the asker was not seen to write under each of the R_Keys"), ctrRefused
	}
	now := c.Now()
	if r.Cookie != a.held.cookie(asker, e, now, 0) && r.Cookie != a.held.cookie(asker, e, now, 1) {
		return hdr.FenceReply{Cookie: a.held.cookie(asker, e, now, 0)}.Bytes(), ctrCookies
	}
	settled, ok := a.held.shutOut(e, keys, now, a.settle)
	if !ok {
		return []byte("no room for another fence"), ctrRefused
	}
	var of [hdr.FenceKeys]entry
	if !a.held.endures(named(of[:0], e, keys)...) {
		return hdr.FenceReply{Cookie: a.held.cookie(asker, e, now, 0)}.Bytes(), ctrCookies // the asker asks again with it, until the disk names the client
	}
	if e.qpn != 0 {
		_ = c.Bind(port.QueuePair{Addr: e.server, QPN: e.qpn}, true)
	}
	c.Wake(now)
	return hdr.FenceReply{Settle: time.Duration(settled.Sub(now))}.Bytes(), ctrAsked
}
