// Package balance is a load balancer for TCP and UDP. Connections to a virtual address go to backends, which
// consistent hashing chooses; answers get the virtual address as their source.
//
// Source: Eisenbud et al., Maglev: A Fast and Reliable Software Network Load Balancer, NSDI 2016, sections 3.3
// (connection tracking) and 3.4 (the lookup table). Maglev encapsulates packets. This balancer rewrites addresses
// instead, so that the answers must come back through it.
package balance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

const (
	reasonOther graph.Reason = iota
	reasonMalformed
	reasonFragment
	reasonTo
	reasonFrom
	reasonNobody
	reasonForeign
	reasonCheck
	reasonAnew
	reasonErrorTo
	reasonErrorFrom
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonOther:     {Name: "not-balanced", Help: "not of the service: passed"},
	reasonMalformed: {Name: "malformed", Help: "a header contradicts itself or is cut short, or there are more than two VLAN tags: passed"},
	reasonFragment:  {Name: "fragment", Help: "a fragment to the virtual address or from a backend: passed, its ports are not known"},
	reasonTo:        {Name: "to-backend", Help: "a client's packet got a backend's addresses"},
	reasonFrom:      {Name: "from-backend", Help: "a backend's packet got the virtual address"},
	reasonNobody:    {Name: "no-backend", Help: "no backend of that family is up: dropped"},
	reasonForeign:   {Name: "foreign", Help: "from a backend and its service's port, and no connection that it was chosen for: passed"},
	reasonAnew:      {Name: "begins-elsewhere", Help: "a backend that gets no new connections has answered a SYN as the first of one: the answer is dropped, and the client's next SYN goes to another backend"},
	reasonCheck:     {Name: "to-the-box", Help: "of a backend to the box's own address: an answer to a check, a question for that address, or of no use; it ends here"},
	reasonErrorTo:   {Name: "error-to-backend", Help: "an ICMP error about a backend's packet: it goes to the backend, and quotes what the backend sent"},
	reasonErrorFrom: {Name: "error-from-backend", Help: "an ICMP error about a client's packet: it quotes what the client sent"},
}

const (
	ctrConns counter.ID = iota
	ctrUntracked
	ctrMoved
	ctrChecks
	ctrFailed
	ctrDown
	ctrUp
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrConns:     {Name: "connections", Help: "connections that were given a backend and a place"},
	ctrUntracked: {Name: "untracked", Help: "packets of connections without a place (conns=): they go where the lookup table says"},
	ctrMoved:     {Name: "forgotten", Help: "connections forgotten because their backend went or is down"},
	ctrChecks:    {Name: "checks", Help: "health checks of backends"},
	ctrFailed:    {Name: "checks-failed", Help: "that were answered badly, or not in time"},
	ctrDown:      {Name: "found-down", Help: "times that a backend was found down"},
	ctrUp:        {Name: "backends-up", Help: "backends that get new connections (the first worker's counter)"},
}

// Kind returns the declaration of the network function "balance".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "balance",
		Summary: "spreads connections to a virtual address over backends (Maglev hashing)",
		Doc: `Port a faces the clients, port b the backends. TCP and UDP packets from a to the
virtual address and port get the IP and MAC address of a backend; packets from b
that are such a connection's answers get the virtual address as their source
(and mac=). Ports stay as they are. Checksums are adapted, ECN, TTL and
VLAN tags stay. ICMP errors about such packets go to the backend or the client, and quote
what it has sent. All else passes: other ICMP, fragments, and datagrams with IPv4 options
or IPv6 extension headers, too.

A connection keeps its backend while the backend is there and not down, also when
others come and go. A client's SYN behind half a second of silence may begin another
connection, which goes to no backend that drains or was found down, if the former one is
over: both ends closed it, or a reset did, or its backend answers the SYN as the first of
a new connection, or not at all (then the next SYN goes elsewhere). When there is no
place to remember a connection, or another worker sees its answers, it goes where the
lookup table says; then it moves when that changes, which is about one in as many
connections as there are backends.

With check= backends are asked whether they are there, each check-interval=, from an
address of the box's own (check-from=), for which it answers ARP and neighbour
solicitations on port b. One that did not answer check-fall= checks gets no new
connections until it has answered check-rise=; those that it has stay, or go to others with
check-down=move. Connections of others stay where they are. Where all backends of a
family are found down, packets go where they would without checks. Checks have no VLAN tag.
"quillon report" has each backend's health, since when, and how its last check ended.

A backend's state is what the operator says: up, drain (no new connections) or
down (its connections go to others, and it is not checked). Backends are the tables backends and
backends_ipv6, too. Nobody answers ARP or neighbour solicitations for the virtual
address: the router before it needs an entry with any MAC behind port b, or mac=.

  quillon run --inline eth1,eth2 --nf balance,vip=10.0.0.100,port=80,backends=10.0.0.1@02:00:00:00:00:01+10.0.0.2@02:00:00:00:00:02*2
  quillon run --inline eth1,eth2 --nf balance,vip=10.0.0.100,port=80,backends=10.0.0.2@02:00:00:00:00:02,check=http,check-from=10.0.0.99@02:00:00:00:00:99`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Tables:   tables(),
		Effects: func(args graph.Args) effect.Effects {
			s, err := parse(args)
			return effect.Effects{Reads: effect.Flow | effect.L4Other, Writes: effect.Ethernet | effect.Encap | effect.IPAddresses | effect.L4Other, Drops: true, State: true,
				Answers: err != nil || s.check != checkNone}
		},
		Decides: decides,
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			s, err := parse(args)
			if err != nil {
				return nil, err
			}
			mk := func() any { return &health{all: map[netip.Addr]*probe{}} }
			h, _ := mk().(*health)
			if env.Share != nil {
				h = env.Share(mk).(*health)
			}
			b := &balance{settings: s, health: h, worker: env.Worker, conns: conns{Table: flow.New[connKey, conn](s.conns)}}
			for i := range b.lookup {
				b.lookup[i] = make(lookup, s.size)
			}
			b.populate()
			return b, nil
		},
	}
}

type settings struct {
	vip      vips          `arg:"vip" need:"the virtual address" help:"virtual address, or an IPv4 and an IPv6 one joined by +; needed"`
	port     uint16        `arg:"port" range:"1..65535" need:"that of the service" help:"of the service; needed"`
	backends backendList   `arg:"backends" default:"none" help:"IP@MAC[*WEIGHT][/drain or /down], joined by +; can be changed while running"`
	mac      [6]byte       `arg:"mac" default:"the backend's" help:"source MAC address of answers"` // zero: as it is
	size     int           `arg:"size" range:"3..2^22" help:"places in the lookup table: a prime, 100 times the backends or more"`
	conns    int           `arg:"conns" range:"1..2^24" help:"connections that there is room for, about 70 bytes each"`
	idle     time.Duration `arg:"idle" range:"1ns.." help:"a connection without traffic for so long makes room for another"`
	offload  bool          `arg:"offload" words:"off on" help:"on: frames of connections that have a place cross in the kernel over IPv4, where ports, one worker and the other functions allow it; off: all come here"`
	checks
}

var arguments = arg.Declare("balance", settings{size: 65537, conns: 65536, idle: 5 * time.Minute, checks: defaultChecks})

// vips are the virtual addresses of IPv4 and IPv6.
type vips [2]netip.Addr

// UnmarshalText reads one address, or one of each family with a + in between.
func (v *vips) UnmarshalText(text []byte) error {
	for x := range arg.Items(string(text), "+") {
		a, err := arg.ParseAddr(x)
		i := 0
		if a.Is6() {
			i = 1
		}
		if err == nil && v[i].IsValid() {
			err = errors.New("want one address of a family")
		}
		if err != nil {
			return fmt.Errorf("%q: %w", x, err)
		}
		v[i] = a
	}
	return nil
}

// backendList is the value of backends=.
type backendList []backend

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *backendList) UnmarshalText(text []byte) (err error) {
	*b, err = parseBackends(string(text))
	return err
}

func parse(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	if s.port == hdr.RoCEv2Port {
		r.Failf("port=%d: RoCE's ICRC covers the addresses", s.port)
	}
	if !prime(s.size) {
		r.Failf("size=%d: want a prime such as 65537", s.size)
	}
	for _, b := range s.backends {
		if b.addr == s.vip[0] || b.addr == s.vip[1] {
			r.Failf("%s is the virtual address, and cannot be a backend's", b.addr)
		}
	}
	if len(s.backends) > s.size {
		r.Failf("size=%d: fewer places than there are backends", s.size)
	}
	if err := r.Err(); err != nil {
		return s, err
	}
	return s, s.validChecks()
}

// balance is the instance of the function in one worker.
type balance struct {
	settings
	worker int
	health *health
	probes []*probe  // of the backends
	get    [2][]byte // what an HTTP check asks for, by family
	conns  conns
	lookup [2]lookup // IPv4, IPv6
	byAddr map[netip.Addr]uint16
	moved  uint64
	place  int // of the connection of the frame at hand; negative: it has none

	recalls  bool // a backend was found down whose connections go to others
	recalled int  // places that were looked at for that
}

func (b *balance) populate() {
	for i, net := range [2]uint8{hdr.NetIPv4, hdr.NetIPv6} {
		b.lookup[i].populate(b.backends, net)
	}
	b.byAddr = map[netip.Addr]uint16{}
	for i := range b.backends {
		b.byAddr[b.backends[i].addr] = uint16(i)
	}
	b.probes = b.probes[:0]
	for i := range b.backends {
		b.probes = append(b.probes, b.health.of(b.backends[i].addr))
	}
	if b.worker == 0 {
		b.health.keep(b.backends)
	}
	for i := range b.get {
		b.get[i] = b.question(i)
	}
}

// alive reports whether a backend is not known to be down.
func (b *balance) alive(i uint16) bool { return b.check == checkNone || !b.probes[i].failed.Load() }

// choose returns the backend for a new connection, or for one that has to move; nobody: no backend of the family gets
// new ones. If the first choice is down, choose returns another backend of the table, the same one in all workers;
// connections to other backends are not affected. If all backends are down, choose treats them as if none was.
func (b *balance) choose(family int, hash uint64) uint16 {
	first := b.lookup[family].pick(hash)
	if first == nobody || b.alive(first) {
		return first
	}
	for range 32 {
		hash = hdr.Fold(hash, 3)
		if who := b.lookup[family].pick(hash); b.alive(who) {
			return who
		}
	}
	// Most backends are down.
	n := len(b.backends)
	for k, at := 0, int(hash%uint64(n)); k < n; k, at = k+1, (at+1)%n {
		if x := &b.backends[at]; x.state == up && x.weight > 0 && familyOf(x.addr) == family && b.alive(uint16(at)) {
			return uint16(at)
		}
	}
	return first
}

// Takes implements graph.Reconfigurer.
func (b *balance) Takes(args graph.Args) bool {
	s, err := parse(args)
	return err == nil && s.size == b.size && s.settled(b.settings)
}

// settled reports whether connections that were remembered under settings o are still valid under s.
func (s settings) settled(o settings) bool {
	return s.conns == o.conns && s.vip == o.vip && s.port == o.port
}

// Reconfigure implements graph.Reconfigurer. A connection keeps its backend as long as that is among the backends
// and not down.
func (b *balance) Reconfigure(args graph.Args) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	now := make([]uint16, len(b.backends)) // index of what had another one
	for i := range now {
		now[i] = nobody
		for j := range s.backends {
			if s.backends[j].addr == b.backends[i].addr && s.backends[j].state != down {
				now[i] = uint16(j)
			}
		}
	}
	for i := b.conns.Next(0); i >= 0; i = b.conns.Next(i + 1) {
		c := &b.conns.At(i).Val
		if c.backend = now[c.backend]; c.backend == nobody {
			b.conns.withdraw(i)
			b.conns.Del(i)
			b.moved++
		}
	}
	b.settings = s
	b.populate()
	return nil
}

// Push implements graph.App.
func (b *balance) Push(c *graph.Ctx, in int, batch *packet.Batch) {
	if b.moved > 0 {
		c.Count(ctrMoved, b.moved)
		b.moved = 0
	}
	if !b.conns.seeded {
		b.conns.seed, b.conns.seeded = c.Rand().Uint64(), true
	}
	b.lead(c)
	if b.recalls {
		b.recall()
	}
	for _, x := range batch.Bufs() {
		frame := x.Bytes()
		var d hdr.Layers
		b.place = -1
		r := reasonMalformed
		if hdr.Walk(frame, &d) && !d.Malformed() {
			if in == 1 && b.check != checkNone && b.answered(c, frame, &d) {
				c.Drop(x, reasonCheck)
				continue
			}
			r = b.one(c, in, frame, &d)
		}
		switch r {
		case reasonNobody, reasonAnew:
			c.Drop(x, r)
			continue
		case reasonErrorTo, reasonErrorFrom:
			c.Mark(x, packet.Rewritten, r)
		case reasonTo, reasonFrom:
			c.Mark(x, packet.Rewritten, r)
			if c.Drafted(x) {
				b.decide(c, in, x)
			}
		default:
			c.Mark(x, x.Verdict, r)
		}
		c.Emit(1-in, x)
	}
}

func (b *balance) one(c *graph.Ctx, in int, frame []byte, d *hdr.Layers) graph.Reason {
	switch d.Proto {
	case hdr.ProtoTCP, hdr.ProtoUDP:
	case hdr.ProtoICMP, hdr.ProtoICMPv6:
		return b.about(in, frame, d)
	default:
		return reasonOther
	}
	net, at, family, headers := d.Family(), d.L3+12, 0, d.L3+hdr.IPv4Len
	if net == hdr.NetIPv6 {
		at, family, headers = d.L3+8, 1, d.L3+hdr.IPv6Len
	}
	ours, n := b.vip[family], 4+12*family
	if !ours.IsValid() || d.L4 != headers && !d.Fragment {
		return reasonOther // a source route may end elsewhere
	}
	mine, client := at+n, at // of the virtual or the backend's address; of the client's
	if in == 1 {
		mine, client = at, at+n
	}
	a, _ := netip.AddrFromSlice(frame[mine : mine+n])
	from, known := uint16(0), true
	if in == 0 {
		known = a == ours
	} else {
		from, known = b.byAddr[a]
	}
	switch {
	case !known:
		return reasonOther
	case d.Fragment:
		return reasonFragment
	case d.Proto == hdr.ProtoTCP && d.End < d.L4+hdr.TCPLen || d.End < d.L4+hdr.UDPLen:
		return reasonMalformed
	}
	l4 := frame[d.L4:d.End]
	service, peer := hdr.UDP(l4).DstPort(), hdr.UDP(l4).SrcPort() // TCP's are in the same places
	if in == 1 {
		service, peer = peer, service
	}
	if service != b.port {
		return reasonOther
	}
	key := connKey{port: peer, proto: d.Proto, net: net}
	copy(key.client[:], frame[client:client+n])
	hash := key.hash()
	spot := hdr.Fold(hash, b.conns.seed)
	who := nobody
	if b.place = b.conns.Find(&key, spot); b.place >= 0 {
		place := &b.conns.At(b.place).Val
		who = place.backend
		fresh := in == 0 && d.Proto == hdr.ProtoTCP && b.fresh(l4, place, c.Now())
		if in == 0 && (fresh || b.moves(who)) {
			other := b.choose(family, hash)
			switch {
			case other != nobody:
				b.conns.withdraw(b.place)
				who, place.backend, place.life = other, other, 0
			case fresh:
				return reasonNobody
			}
		}
		place.seen = c.Now()
	} else {
		who = b.choose(family, hash)
	}
	eth := hdr.Ethernet(frame[:hdr.EthernetLen])
	if in == 1 {
		if who != from {
			return reasonForeign
		}
		if b.place >= 0 && d.Proto == hdr.ProtoTCP && !b.answers(l4) {
			return reasonAnew
		}
		if b.mac != [6]byte{} {
			eth.SetSrc(b.mac)
		}
		v := ours.As16()
		readdress(frame, d, mine, v[16-n:])
		return reasonFrom
	}
	if who == nobody {
		return reasonNobody
	}
	if b.place < 0 {
		if b.place = b.conns.add(b, &key, spot, c.Now(), b.idle); b.place >= 0 {
			b.conns.At(b.place).Val.backend = who
			c.Count(ctrConns, 1)
		} else {
			c.Count(ctrUntracked, 1)
		}
	}
	to := &b.backends[who]
	eth.SetDst(to.mac)
	v := to.addr.As16()
	readdress(frame, d, mine, v[16-n:])
	return reasonTo
}

// readdress writes an address of 4 or 16 bytes at offset at, and adapts the checksums that cover it (RFC 1624). A
// UDP checksum of 0, which means none, stays.
func readdress(frame []byte, d *hdr.Layers, at int, addr []byte) {
	be := binary.BigEndian
	off := d.L4 + 16 // of TCP
	if d.Proto == hdr.ProtoUDP {
		off = d.L4 + 6
	}
	sum := frame[off : off+2]
	v := be.Uint16(sum)
	has := d.Proto == hdr.ProtoTCP || v != 0
	for i := 0; i < len(addr); i += 4 {
		old, now := be.Uint32(frame[at+i:]), be.Uint32(addr[i:])
		if d.Family() == hdr.NetIPv4 {
			ip := hdr.IPv4(frame[d.L3:])
			ip.SetChecksum(hdr.PatchChecksum32(ip.Checksum(), old, now))
		}
		v = hdr.PatchChecksum32(v, old, now)
	}
	copy(frame[at:], addr)
	if !has {
		return
	}
	if v == 0 && d.Proto == hdr.ProtoUDP {
		v = 0xFFFF
	}
	be.PutUint16(sum, v)
}

// row is what Report shows of a backend.
type row struct {
	Backend string `json:"backend"`
	State   string `json:"state"`
	// Only of backends that are checked: up, down or not checked; since when; and how the last check ended.
	Health      string  `json:"health,omitempty"`
	Since       float64 `json:"since_unix_s,omitempty"`
	Last        string  `json:"last_check,omitempty"`
	Weight      int     `json:"weight"`
	Places      int     `json:"places"` // of the lookup table
	Connections int     `json:"connections"`
}

// Report implements graph.Reporter.
func (b *balance) Report() any {
	rows := make([]row, len(b.backends))
	for i, x := range b.backends {
		rows[i] = row{Backend: x.addr.String(), State: stateNames[x.state], Weight: int(x.weight)}
		if p := b.probes[i]; b.check != checkNone && x.state != down {
			p.turn.Take()
			rows[i].Health, rows[i].Since, rows[i].Last = "up", float64(p.since)/1e9, p.why
			if p.failed.Load() {
				rows[i].Health = "down"
			}
			p.turn.Give()
		}
	}
	for _, l := range b.lookup {
		for _, i := range l {
			if i != nobody {
				rows[i].Places++
			}
		}
	}
	return &graph.Gradual{Look: (&report{rows, b, 0}).look, Value: func() any { return rows }}
}

// report has a row for each backend. Its connections have been counted up to place at.
type report struct {
	rows []row
	b    *balance
	at   int
}

// look counts the connections in the next n places, and reports whether more are left.
func (r *report) look(n int) (more bool) {
	end := min(r.at+n, r.b.conns.Places())
	for i := r.b.conns.NextBefore(r.at, end); i >= 0; i = r.b.conns.NextBefore(i+1, end) {
		r.rows[r.b.conns.At(i).Val.backend].Connections++
	}
	r.at = end
	return end < r.b.conns.Places()
}
