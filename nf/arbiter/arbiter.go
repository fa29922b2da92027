package arbiter

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/turn"
)

const (
	reasonAnswer graph.Reason = iota
	reasonTold
	reasonARP
	reasonOld
	reasonStranger
	reasonMalformed
	reasonDamaged
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonAnswer:    {Name: "answer", Help: "a request, turned into its answer"},
	reasonTold:      {Name: "told", Help: "made: the outcome for a client that stood in line"},
	reasonARP:       {Name: "arp", Help: "a question for addr=, turned into its answer (mac=)"},
	reasonOld:       {Name: "old", Help: "a request whose client has gone on: dropped"},
	reasonStranger:  {Name: "stranger", Help: "from an address that from= does not name: dropped"},
	reasonMalformed: {Name: "malformed", Help: "to addr= and port=, and no request: dropped"},
	reasonDamaged:   {Name: "damaged", Help: "a request whose checksum is wrong: dropped"},
}

const (
	ctrClients counter.ID = iota
	ctrHolds
	ctrWords
	ctrWaiting
	ctrGranted
	ctrReleased
	ctrDenied
	ctrTimedOut
	ctrRepeated
	ctrOld
	ctrDied
	ctrUnfenced
	ctrBlind
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrClients:  {Name: "clients", Help: "clients known now, with those that are shut out"},
	ctrHolds:    {Name: "locks", Help: "words held now; one that two share counts twice"},
	ctrWords:    {Name: "words", Help: "words held or waited for now"},
	ctrWaiting:  {Name: "waiting", Help: "requests in line now"},
	ctrGranted:  {Name: "granted", Help: "requests that were granted"},
	ctrReleased: {Name: "released", Help: "grants that their clients gave back"},
	ctrDenied:   {Name: "denied", Help: "requests that were denied at once"},
	ctrTimedOut: {Name: "timed-out", Help: "requests that stood in line for as long as they wanted"},
	ctrRepeated: {Name: "repeated", Help: "requests that came again, and got the same answer"},
	ctrOld:      {Name: "old", Help: "requests that came after later ones"},
	ctrDied:     {Name: "died", Help: "clients whose lease ended, that were shut out, or that a later incarnation followed, while they held locks"},
	ctrUnfenced: {Name: "unfenced", Help: "times that a client could not be shut out, as the fence was full or not there: its locks stay"},
	ctrBlind:    {Name: "no-fence", Help: "requests that were put off, as no app of kind fence has the name that fence= says"},
}

// prefixes is the value of from=.
type prefixes []netip.Prefix

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *prefixes) UnmarshalText(text []byte) error {
	*l = nil
	for s := range arg.Items(string(text), "+") {
		p, err := netip.ParsePrefix(s)
		if err != nil || !p.Addr().Is4() || p.Masked() != p {
			return fmt.Errorf("%q is no IPv4 prefix", s)
		}
		*l = append(*l, p)
	}
	return nil
}

type settings struct {
	addr      netip.Addr    `arg:"addr" need:"the address that clients ask" help:"IPv4 address that clients ask: that of a server behind, or, with mac=, one of the arbiter's own"`
	mac       [6]byte       `arg:"mac" keep:"none" help:"MAC address of addr=, for which ARP is answered then"`
	port      uint16        `arg:"port" range:"1..65535" help:"UDP port that clients ask"`
	from      prefixes      `arg:"from" keep:"all" help:"IPv4 prefixes of clients, separated by +"`
	fenceName string        `arg:"fence" keep:"none" help:"app of kind fence in the same graph: clients whose lease ends are shut out there before their locks are free. Spaces are the IPv4 addresses of memory servers then"`
	lease     time.Duration `arg:"max-lease" range:"10ms..1h" help:"the longest lease. After a start without the state of the process before nothing is granted for so long, and settle="`
	settle    time.Duration `arg:"settle" range:"0..10m" help:"how long locks stay after their lease has ended: how much a client's clock may lag, and what it sent last be under way. With a fence no less than its settle="`
	maxWait   time.Duration `arg:"max-wait" range:"1ms..1h" help:"the longest time that a request stands in line"`
	nClients  int           `arg:"clients" range:"1..2^16" help:"clients at most"`
	nHolds    int           `arg:"locks" range:"32..2^22" help:"words held at most"`
	each      int           `arg:"each" range:"1..2^22" help:"words that one client holds at most"`
	nWaiters  int           `arg:"waiting" range:"1..2^16" help:"requests that stand in line at most"`
}

var arguments = arg.Declare("arbiter", settings{port: message.Port, lease: 10 * time.Second, settle: 100 * time.Millisecond, maxWait: 10 * time.Second,
	nClients: 1024, nHolds: 1 << 17, each: 1 << 14, nWaiters: 1024})

func parse(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	if s.addr.IsValid() && !s.addr.Is4() {
		r.Failf("addr=%v: want an IPv4 address", s.addr)
	}
	if s.mac[0]&1 != 0 {
		r.Failf("mac=: want the MAC address of one host")
	}
	return s, r.Err()
}

// Kind returns the declaration of the network function "arbiter".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "arbiter",
		Summary: "locks and leases for clients of a rack: all words of a request or none, and fencing",
		Doc: `Answers datagrams to addr= that ask for locks: up to 32 words at a time, shared or exclusive, all
or none, at once or in line. What a client holds it has by a lease, which each of its requests renews, and
under a fencing token, which rises with each grant. All else passes.

    quillon run --inline eth1,eth2 --nf arbiter,addr=10.0.0.9
    quillon table show arbiter.locks
    quillon table show arbiter.clients
    quillon table delete arbiter.clients ip=10.0.0.1 number=0

A client that is deleted is taken for dead. With fence= a client whose lease ends is shut out there from the servers of the words
that it held, and these are free when what it sent before has settled: none of its late WRITEs
lands. So it is with a client that the fence's operator shuts out. Its next incarnation is let in again.

    quillon run --inline eth1,eth2 --nf arbiter,addr=10.0.0.9,fence=fence --nf fence

Without, locks are free settle= after the lease, and whoever keeps the memory has to refuse tokens that are too old.

What is held outlives the process (run --state), and leases begin anew then. Requests are those of
package nf/arbiter/message; nf/arbiter/client is a client. IPv4 only.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Tables:   tables(),
		Soft:     true,
		Note: func(args graph.Args) string {
			if s, err := parse(args); err != nil || s.fenceName != "" {
				return ""
			}
			return "no fence=: a client whose lease ended may still write what is under way; whoever keeps the memory has to refuse its token"
		},
		New: newApp,
	}
}

func newApp(env graph.Env, args graph.Args) (graph.App, error) {
	s, err := parse(args)
	if err != nil {
		return nil, err
	}
	if env.Asked {
		return &app{state: &state{settings: s}}, nil
	}
	a := &app{}
	a.state = env.Share(func() any {
		n := memLen(s.nClients, s.nHolds)
		m := make([]byte, n)
		if env.Memory != nil {
			if m, err = env.Memory(n); err != nil {
				return &state{}
			}
		}
		var secret [16]byte
		if env.Clock != nil {
			_, _ = rand.Read(secret[:]) // it does not fail
		} else {
			binary.LittleEndian.PutUint64(secret[:], env.Seed) // in replay and simulations: the same each time
		}
		x := newState(s, env.Seed, m, secret)
		x.turn = turn.Shared{Alone: env.Workers == 1}
		return x
	}).(*state)
	return a, err
}

// app is the instance of one worker.
type app struct {
	*state
	m message.Message
}

// peer is the address that a client's requests come from, and all that an answer to it needs.
type peer struct {
	ip         [4]byte
	port       uint16
	them, us   [6]byte
	vlans      [2][4]byte // tags as they are on the wire
	tags, side uint8
}

// vids returns the IDs of the VLANs that the peer is in, as hdr.VIDs does.
func (p *peer) vids() (ids uint32) {
	for i := range int(p.tags) {
		if v := binary.BigEndian.Uint16(p.vlans[i][2:]) & 0xFFF; v != 0 {
			ids = ids<<12 | uint32(v)
		}
	}
	return ids
}

// Takes implements graph.Reconfigurer.
func (a *app) Takes(args graph.Args) bool {
	s, err := parse(args)
	a.turn.Take()
	defer a.turn.Give()
	return err == nil && s.nClients == a.nClients && s.nHolds == a.nHolds && s.nWaiters == a.nWaiters
}

// Reconfigure implements graph.Reconfigurer.
func (a *app) Reconfigure(args graph.Args) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	a.turn.Take()
	defer a.turn.Give()
	if s.fenceName != "" && a.fenceName == "" && len(a.freeHolds) < len(a.holds) {
		return fmt.Errorf("arbiter: fence=%s: locks are held, perhaps of spaces that are no servers: wait until none is", s.fenceName)
	}
	a.settings = s
	return nil
}

// Wants implements graph.Wanter.
func (a *app) Wants() port.Filter {
	if a.mac != [6]byte{} {
		return port.Filter{All: true} // ARP, too
	}
	return port.Filter{UDP: []uint16{a.port}}
}

// enter begins a worker's turn.
func (a *app) enter(c *graph.Ctx) {
	a.turn.Take()
	a.fence = nil
	if a.fenceName != "" {
		a.fence, _ = c.Shared(a.fenceName).(Fence)
	}
	a.begin(c.Now())
}

// Push implements graph.App.
func (a *app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	asked := false // then it is this worker's turn
	for _, x := range b.Bufs() {
		p := x.Bytes()
		var l hdr.Layers
		_ = hdr.Walk(p, &l)
		switch {
		case a.isMine(p, &l):
			if !asked {
				asked = true
				a.enter(c)
			}
			if why, ok := a.ask(c, in, x, &l); ok {
				c.Mark(x, packet.Rewritten, why)
				c.Emit(in, x)
			} else {
				c.Drop(x, why)
			}
		case l.EtherType == hdr.EtherARP && a.answerARP(p, &l):
			c.Mark(x, packet.Rewritten, reasonARP)
			c.Emit(in, x)
		default:
			c.Emit(1-in, x)
		}
	}
	if asked {
		a.leaveTurn(c, a.tick(c.Now()))
	}
}

// Tick implements graph.Ticker.
func (a *app) Tick(c *graph.Ctx) clock.Time {
	a.enter(c)
	next := a.tick(c.Now())
	a.leaveTurn(c, next)
	return next
}

// leaveTurn ends a worker's turn: it tells clients what they wait for, and has Tick run in time.
func (a *app) leaveTurn(c *graph.Ctx, next clock.Time) {
	for i := range a.told {
		a.push(c, &a.told[i])
	}
	a.told = a.told[:0]
	a.gauge(c)
	a.turn.Give()
	c.Wake(next)
}

func (a *app) gauge(c *graph.Ctx) {
	n := &a.counts
	n[ctrClients], n[ctrHolds] = uint64(len(a.known)-len(a.freeClients)), uint64(len(a.holds)-len(a.freeHolds))
	n[ctrWords], n[ctrWaiting] = uint64(a.words.Len()), uint64(len(a.waiters)-len(a.freeWaiters))
	for id := range n {
		if d := n[id] - a.shown[id]; d != 0 {
			c.Count(counter.ID(id), d)
			a.shown[id] = n[id]
		}
	}
}

// isMine reports whether a frame is a datagram to the arbiter.
func (a *app) isMine(p []byte, l *hdr.Layers) bool {
	if l.Family() != hdr.NetIPv4 || l.Proto != hdr.ProtoUDP || l.Fragment || l.L4 == 0 || l.End < l.L4+hdr.UDPLen {
		return false
	}
	return hdr.UDP(p[l.L4:]).DstPort() == a.port && [4]byte(p[l.L3+16:]) == a.addr.As4()
}

// ask makes a request its answer; else it says why it has none.
func (a *app) ask(c *graph.Ctx, in int, x *packet.Buf, l *hdr.Layers) (graph.Reason, bool) {
	p := x.Bytes()
	u, ip := hdr.UDP(p[l.L4:l.End]), hdr.IPv4(p[l.L3:])
	n := int(u.Len())
	if n < hdr.UDPLen || n > len(u) || !a.m.Parse(u[hdr.UDPLen:n]) || a.m.Answer || p[6]&1 != 0 {
		return reasonMalformed, false
	}
	if !ip.ChecksumOK() || u.Checksum() != 0 && hdr.Checksum(u[:n], hdr.PseudoSum(ip.Src(), ip.Dst(), hdr.ProtoUDP, n)) != 0 {
		return reasonDamaged, false
	}
	src := ip.Src()
	if a.from != nil && !slices.ContainsFunc(a.from, func(q netip.Prefix) bool { return q.Contains(src) }) || !src.IsGlobalUnicast() && !src.IsLinkLocalUnicast() || u.SrcPort() == 0 {
		return reasonStranger, false
	}
	f := peer{ip: src.As4(), port: u.SrcPort(), them: [6]byte(p[6:]), us: [6]byte(p), tags: l.Tags, side: uint8(in)}
	for i := range int(l.Tags) {
		f.vlans[i] = [4]byte(p[12+4*i:])
	}
	if !a.handle(c.Now(), &a.m, &f) {
		return reasonOld, false
	}
	return reasonAnswer, a.write(x, &f)
}

// write makes x a datagram to a client with message a.m. It returns false if x has no room.
func (a *app) write(x *packet.Buf, to *peer) bool {
	l3 := hdr.EthernetLen + hdr.VLANLen*int(to.tags)
	n := l3 + hdr.IPv4Len + hdr.UDPLen + message.Len
	if have := x.Len(); have > n {
		x.TrimBack(have - n)
	} else if _, ok := x.Append(n - have); !ok {
		return false
	}
	p := x.Bytes()
	copy(p, to.them[:])
	copy(p[6:], to.us[:])
	for i := range int(to.tags) {
		copy(p[12+4*i:], to.vlans[i][:])
	}
	be := binary.BigEndian
	be.PutUint16(p[l3-2:], hdr.EtherIPv4)
	ip := p[l3:]
	clear(ip[:hdr.IPv4Len+hdr.UDPLen])
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, hdr.ProtoUDP // may not be fragmented
	be.PutUint16(ip[2:], hdr.IPv4Len+hdr.UDPLen+message.Len)
	from := a.addr.As4()
	copy(ip[12:], from[:])
	copy(ip[16:], to.ip[:])
	be.PutUint16(ip[10:], hdr.Checksum(ip[:hdr.IPv4Len], 0))
	u := ip[hdr.IPv4Len:]
	be.PutUint16(u, a.port)
	be.PutUint16(u[2:], to.port)
	be.PutUint16(u[4:], hdr.UDPLen+message.Len)
	a.m.Append(u[hdr.UDPLen:hdr.UDPLen])
	sum := hdr.Checksum(u, hdr.PseudoSum(a.addr, netip.AddrFrom4(to.ip), hdr.ProtoUDP, len(u)))
	if sum == 0 {
		sum = 0xFFFF
	}
	be.PutUint16(u[6:], sum)
	return true
}

// push sends an answer without a new request. A client that does not get it asks again.
func (a *app) push(c *graph.Ctx, t *pushed) {
	k := &a.clients[t.client]
	sl := &k.slots[t.slot]
	x := c.Get()
	if x == nil {
		return
	}
	a.m = message.Message{Op: sl.op, Answer: true, Request: sl.request, Client: k.number, Attempt: t.attempt, Incarnation: k.incarnation, Session: k.session}
	a.answer(c.Now(), t.client, t.slot, &a.m)
	if k.state != live || sl.request == 0 || !a.write(x, &k.from) {
		c.Discard(x)
		return
	}
	c.Mark(x, packet.Generated, reasonTold)
	c.Emit(int(k.from.side), x)
}

// answerARP changes an ARP request for addr= into the reply (RFC 826), if the address is the arbiter's own
// (mac=).
func (a *app) answerARP(b []byte, l *hdr.Layers) bool {
	if a.mac == [6]byte{} {
		return false
	}
	p := hdr.ARP(b[l.Net:])
	if !p.Valid() || p.Op() != hdr.ARPRequest || p.TPA() != a.addr || p.SPA() == a.addr {
		return false
	}
	p.Encode(&hdr.ARPFields{Op: hdr.ARPReply, SHA: a.mac, SPA: a.addr, THA: p.SHA(), TPA: p.SPA()})
	e := hdr.Ethernet(b)
	e.SetDst(e.Src())
	e.SetSrc(a.mac)
	return true
}
