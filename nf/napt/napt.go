package napt

import (
	"math/rand/v2"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Ports.
const (
	portA = 0 // private
	portB = 1 // public
)

// verdict is what becomes of a frame: it leaves by out, or is dropped.
type verdict struct {
	out    int
	reason graph.Reason
}

// drop is a verdict's out.
const drop = -1

// app is NAPT's instance in one worker.
type app struct {
	flow.Mover
	settings
	index           map[uint32]uint16 // of public addresses
	bits            uint64            // which of them there may be: see ours
	st              *state
	mappings        []flow.Scout // of all shards
	sessions        []flow.Scout
	asks            [packet.MaxBatch]ask
	worker, workers int
	peer            peer           // of the frame at hand, with the mapping
	shard           int            // that has it
	led             *offload.Table // that the shards know; nil: of none, or of one that has come to its end
}

func newApp(s settings, env graph.Env) *app {
	a := &app{settings: s, worker: env.Worker, workers: max(1, env.Workers), index: map[uint32]uint16{}}
	for i, x := range s.public {
		a.index[x] = uint16(i)
		a.bits |= bitOf(x)
	}
	mk := func() any { return newState(&s, a.workers) }
	if env.Share == nil {
		a.st = mk().(*state)
	} else {
		a.st = env.Share(mk).(*state)
	}
	a.Mover = flow.Mover{Start: &a.st.start, Kind: "napt", Version: version, Size: recordSize, Record: a.record, Build: a.build}
	a.mappings, a.sessions = make([]flow.Scout, len(a.st.shards)), make([]flow.Scout, len(a.st.shards))
	a.scout()
	return a
}

// bitOf returns one bit that depends on an address; several addresses share a bit.
func bitOf(addr uint32) uint64 { return 1 << (addr * 0x9E3779B1 >> 26) }

// ours reports whether an address is a public one.
func (a *app) ours(addr uint32) bool {
	if a.bits&bitOf(addr) == 0 {
		return false
	}
	_, ok := a.index[addr]
	return ok
}

// Wants implements graph.Wanter: NAPT wants all frames, and none may cross without it.
func (a *app) Wants() port.Filter { return port.Filter{All: true, Closed: true} }

// Takes implements graph.Reconfigurer: all arguments may change, except public, ports, mappings and sessions.
func (a *app) Takes(args graph.Args) bool {
	s, err := parse(args)
	return err == nil && s.same(&a.settings)
}

// Reconfigure implements graph.Reconfigurer.
func (a *app) Reconfigure(args graph.Args) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	a.settings = s
	return nil
}

// begin runs in the first breath.
func (a *app) begin(now clock.Time, r *rand.Rand) {
	a.Begin(now, r, func() {
		for i := range a.st.shards {
			a.st.shards[i].random = r.Uint64()
		}
	})
}

// Tick implements graph.Ticker: it forgets sessions and mappings that are over, a few places at a time.
func (a *app) Tick(c *graph.Ctx) clock.Time {
	if !a.Begun {
		a.begin(c.Now(), c.Rand())
	}
	a.Now = c.Now()
	a.lead(c)
	a.scout()
	steps, every := flow.Steps(a.st.shards[0].mappings.Places())
	gone, here := 0, 0
	for i := a.worker; i < len(a.st.shards); i += a.workers {
		s := a.st.take(i)
		gone += a.st.sweep(s, steps, a.Now, a.Seed)
		here += s.mappings.Len()
		a.st.give(s)
	}
	c.Count(ctrOver, uint64(gone))
	c.Set(ctrMappings, uint64(here))
	return a.Now.Add(every)
}

// Push implements graph.App.
func (a *app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if !a.Begun {
		a.begin(c.Now(), c.Rand())
	}
	a.Now = c.Now()
	a.lead(c)
	bufs := b.Bufs()
	a.ahead(in, bufs)
	var on [packet.MaxBatch]*packet.Buf
	n := 0
	for i, x := range bufs {
		var v verdict
		if q := &a.asks[i]; q.usual {
			v = a.translate(c, x.Bytes(), q)
		} else {
			v = a.one(c, in, x.Bytes())
		}
		if v.out == drop {
			c.Drop(x, v.reason)
			continue
		}
		was := x.Verdict
		if v.reason <= lastRewritten {
			was = packet.Rewritten
		}
		c.Mark(x, was, v.reason)
		if c.Drafted(x) {
			a.decide(c, in, x, v.reason)
		}
		if v.out == in {
			c.Emit(in, x)
			continue
		}
		on[n] = x
		n++
	}
	c.EmitAll(1-in, on[:n])
}

func (a *app) one(c *graph.Ctx, in int, b []byte) verdict {
	var d hdr.Layers
	if !hdr.Walk(b, &d) || d.Malformed() {
		return verdict{drop, reasonMalformed}
	}
	switch {
	case d.EtherType == hdr.EtherARP && a.mac != [6]byte{}:
		return a.arp(in, b, &d)
	case d.L3 == 0:
		return verdict{1 - in, reasonNotIP}
	case d.Family() == hdr.NetIPv6:
		return verdict{1 - in, reasonIPv6}
	}
	src, dst := be.Uint32(b[d.L3+12:]), be.Uint32(b[d.L3+16:])
	if in == portB {
		if !a.ours(dst) {
			if a.others == dropOthers || a.others == hideOthers && a.isPrivate(dst) {
				return verdict{drop, reasonNotOursDropped}
			}
			return verdict{portA, reasonNotOurs}
		}
		if a.ours(src) {
			return verdict{drop, reasonFiltered} // those with a public address are behind port a
		}
	} else {
		switch {
		case !a.isPrivate(src):
			return verdict{portB, reasonNotPrivate}
		case local(dst):
			return verdict{portB, reasonLocal}
		}
	}
	if !d.Fragment {
		return a.whole(c, in, b, &d)
	}
	k, _ := flow.Fragment(b, &d)
	k.Tag = d.VLANs() | uint32(in)<<24
	hash := k.Hash(a.Seed)
	shard := int(hash & uint64(len(a.st.shards)-1))
	if d.L4 != 0 {
		v := a.whole(c, in, b, &d)
		if v.out != drop {
			s := a.st.take(shard)
			s.later.Note(&k, hash, a.Now, later{be.Uint32(b[d.L3+12:]), be.Uint32(b[d.L3+16:]), hdr.Ethernet(b).Dst(), uint8(v.out)})
			a.st.give(s)
		}
		return v
	}
	s := a.st.take(shard)
	f, known := s.later.Of(&k, hash, a.Now)
	a.st.give(s)
	if !known {
		return verdict{drop, reasonStray}
	}
	readdress(b, &d, source, f.src)
	readdress(b, &d, destination, f.dst)
	a.frame(b, in, int(f.out), f.mac)
	return verdict{int(f.out), reasonLater}
}

// local reports whether an address is a multicast, broadcast or link-local one.
func local(dst uint32) bool { return dst >= 0xE0000000 || dst>>16 == 0xA9FE }

// frame sets the MAC addresses of a frame that came in at in and leaves by out. host is the MAC address of the
// private end that the frame goes to.
func (a *app) frame(b []byte, in, out int, host [6]byte) {
	eth := hdr.Ethernet(b)
	if out == portB {
		if a.mac != [6]byte{} {
			eth.SetSrc(a.mac)
		}
		return
	}
	if in == portA { // as from the router that it was sent to
		eth.SetSrc(eth.Dst())
	}
	eth.SetDst(host)
}

// whole returns what becomes of a whole datagram, or of the first fragment of one, and translates it.
func (a *app) whole(c *graph.Ctx, in int, b []byte, d *hdr.Layers) verdict {
	class, least := 0, hdr.UDPLen
	switch d.Proto {
	case hdr.ProtoTCP:
		class, least = classTCP, hdr.TCPLen
	case hdr.ProtoUDP:
		class = classUDP
	case hdr.ProtoICMP:
		class = classICMP
	default:
		return verdict{drop, reasonProtocol}
	}
	if d.End < d.L4+least {
		return verdict{drop, reasonMalformed}
	}
	if class == classICMP {
		if flow.IsError(hdr.NetIPv4, b[d.L4]) {
			return a.about(in, b, d)
		}
		if _, _, ok := flow.Query(hdr.NetIPv4, b[d.L4]); !ok {
			return verdict{drop, reasonICMP}
		}
	} else if class == classUDP && in == portA && be.Uint16(b[d.L4+2:]) == hdr.RoCEv2Port {
		return verdict{drop, reasonRoCE}
	}
	out, reason := portB, reasonOut
	var host [6]byte
	if in == portA {
		if r := a.outward(c, b, d, class); r != reasonOut {
			return verdict{drop, r}
		}
		if a.ours(be.Uint32(b[d.L3+16:])) {
			out, reason = portA, reasonHairpin
		}
	} else {
		out, reason = portA, reasonIn
	}
	if out == portA {
		var r graph.Reason
		if host, r = a.inward(b, d, class); r != reasonIn {
			return verdict{drop, r}
		}
	}
	a.frame(b, in, out, host)
	return verdict{out, reason}
}

// flagsOf returns the TCP flags of a datagram, or 0 for another protocol.
func flagsOf(b []byte, d *hdr.Layers) uint8 {
	if d.Proto != hdr.ProtoTCP {
		return 0
	}
	return hdr.TCP(b[d.L4:]).Flags()
}

const (
	tcpFIN = 1
	tcpSYN = 2
	tcpRST = 4
	tcpACK = 16
)

// outward gives a datagram its public source. It returns reasonOut, or the reason why the datagram has none.
func (a *app) outward(c *graph.Ctx, b []byte, d *hdr.Layers, class int) graph.Reason {
	q := ask{key: private{addr: be.Uint32(b[d.L3+12:]), port: be.Uint16(b[portAt(d, source):]), vlans: d.VLANs(), class: uint16(class)}, place: -1, session: -1}
	q.hash = q.key.hash(a.Seed)
	q.peer = peer{addr: be.Uint32(b[d.L3+16:])}
	if class != classICMP {
		q.peer.port = be.Uint16(b[portAt(d, destination):])
	}
	s := a.st.take(a.st.shardOf(q.key.port))
	m, r := a.opens(c, s, &q, hdr.Ethernet(b).Src(), flagsOf(b, d))
	if m != nil {
		rewrite(b, d, source, a.public[m.public], m.port)
	}
	a.st.give(s)
	return r
}

// opens finds or makes the mapping of a private end that sends to a peer, and renews its times. It returns nil
// and the reason if there is none.
func (a *app) opens(c *graph.Ctx, s *shard, q *ask, mac [6]byte, flags uint8) (*mapping, graph.Reason) {
	class := int(q.key.class)
	i := s.mappings.FindNear(&q.key, q.hash, q.place)
	if i < 0 {
		if class == classTCP && flags&(tcpSYN|tcpACK|tcpRST) != tcpSYN {
			return nil, reasonNoMapping // in the middle of a connection that nobody knows
		}
		var r graph.Reason
		if i, r = a.assign(s, &q.key, q.hash); i < 0 {
			return nil, r
		}
		c.Count(ctrNew, 1)
	}
	m := &s.mappings.At(i).Val
	if m.moving || m.mac != mac {
		m.mac = mac
		s.moved(i)
	}
	p := q.peer
	p.mapping = uint32(i)
	a.peer, a.shard = p, a.st.shardOf(q.key.port)
	patience := a.udpIdle
	switch class {
	case classICMP:
		patience = a.icmpIdle
	case classTCP:
		patience = a.tcpTrans
		p.kind = tcpSession
		x := s.touch(&p, q.session, a.Now, a.Seed)
		if x == nil {
			return nil, reasonFull
		}
		a.follow(s, x, flags, true)
	}
	if m.until = max(m.until, a.Now.Add(patience)); a.filter != byEndpoint && (class != classTCP || a.filter == byAddress) {
		a.permission(&p, class)
		x := s.touch(&p, q.session, a.Now, a.Seed)
		if x == nil {
			return nil, reasonFull
		}
		x.until = max(x.until, a.Now.Add(patience))
	}
	return m, reasonOut
}

// permission changes p to the key of the peer's permission, as the filter has it.
func (a *app) permission(p *peer, class int) {
	p.kind = mayPort
	if a.filter == byAddress || class == classICMP {
		p.kind, p.port = mayAddress, 0
	}
}

// follow updates a TCP session by the flags of a segment. A segment from outside may be forged, because numbers
// are not checked. So only the private end can say that a connection continues after a RST, or that its ports are
// used again.
func (a *app) follow(s *shard, x *session, flags uint8, outward bool) {
	if flags&(tcpSYN|tcpFIN|tcpRST) != 0 {
		s.withdraw(&x.flows)
	}
	syn, fin := uint8(synIn), uint8(finIn)
	if outward {
		syn, fin = synOut, finOut
	}
	switch {
	case flags&tcpRST != 0:
		x.flags |= rst
	case flags&tcpSYN != 0:
		if outward && x.flags&(finOut|finIn|rst) != 0 { // its ports are used again
			x.flags = 0
			if flags&tcpACK != 0 {
				x.flags = synIn
			}
		}
		x.flags |= syn
	case flags&tcpFIN != 0:
		x.flags |= fin
	case outward:
		x.flags &^= rst // the private end has not taken it for one
	}
	patience := a.tcpTrans
	if x.flags&(synOut|synIn|rst) == synOut|synIn && x.flags&(finOut|finIn) != finOut|finIn {
		patience = a.tcpIdle
	}
	x.until = a.Now.Add(patience)
}

// assign makes a mapping and returns its place, or a negative number and the reason.
func (a *app) assign(s *shard, k *private, hash uint64) (int, graph.Reason) {
	host := hostHash(k, a.Seed)
	if a.perHost > 0 && s.hosts.Of(host) >= a.perHost {
		return -1, reasonHost
	}
	first := int(hdr.Fold(a.Seed, uint64(k.addr)) >> 32 % uint64(len(a.public)))
	for n := range a.public {
		which := (first + n) % len(a.public)
		pool := &s.pools[which][k.class]
		at := pool.pick(a.st.index(k.port), s.next())
		if at < 0 {
			continue
		}
		i := s.mappings.Add(k, hash)
		if i < 0 && a.st.room(s, hash, a.Now, a.Seed) {
			i = s.mappings.Add(k, hash)
		}
		if i < 0 {
			pool.release(at)
			return -1, reasonFull
		}
		s.hosts.Add(host)
		pool.mapping[at] = uint32(i) + 1
		m := &s.mappings.At(i).Val
		m.public, m.port = uint16(which), a.st.port(a.st.shardOf(k.port), at)
		return i, 0
	}
	return -1, reasonExhausted
}

// find returns the place of the mapping with a public address and port, or a negative number if there is none or
// it is over.
func (a *app) find(s *shard, addr uint32, port uint16, class int) int {
	which, ok := a.index[addr]
	if !ok {
		return -1
	}
	i := int(s.pools[which][class].mapping[a.st.index(port)]) - 1
	if i >= 0 && s.gone(i, a.Now) {
		return -1
	}
	return i
}

// inward gives a datagram its private destination, and returns the MAC address of the host there. The reason is
// reasonIn, or says why the datagram is dropped.
func (a *app) inward(b []byte, d *hdr.Layers, class int) (host [6]byte, r graph.Reason) {
	port := be.Uint16(b[portAt(d, destination):])
	s := a.st.take(a.st.shardOf(port))
	defer a.st.give(s)
	i := a.find(s, be.Uint32(b[d.L3+16:]), port, class)
	if i < 0 || s.mappings.At(i).Key.vlans != d.VLANs() {
		return host, reasonNoMapping
	}
	p := peer{mapping: uint32(i), addr: be.Uint32(b[d.L3+12:])}
	if class != classICMP {
		p.port = be.Uint16(b[portAt(d, source):])
	}
	a.peer, a.shard = p, a.st.shardOf(port)
	if class == classTCP {
		p.kind = tcpSession
		x := s.has(&p, a.Now, a.Seed)
		if x == nil {
			switch {
			case flagsOf(b, d)&(tcpSYN|tcpACK|tcpRST) != tcpSYN:
				return host, reasonNoSession
			case !a.admits(s, &p, class):
				return host, reasonFiltered
			}
			if x = s.touch(&p, -1, a.Now, a.Seed); x == nil {
				return host, reasonFull
			}
		}
		a.follow(s, x, flagsOf(b, d), false)
	} else if !a.admits(s, &p, class) {
		return host, reasonFiltered
	}
	m := s.mappings.At(i)
	rewrite(b, d, destination, m.Key.addr, m.Key.port)
	return m.Val.mac, reasonIn
}

// admits reports whether the filter lets a peer without a TCP session answer.
func (a *app) admits(s *shard, p *peer, class int) bool {
	q := *p
	switch {
	case a.filter == byEndpoint:
		return true
	case a.filter == byAddress || class == classICMP:
		q.kind, q.port = mayAddress, 0
	case class == classTCP:
		return false // it would have a session
	default:
		q.kind = mayPort
	}
	return s.has(&q, a.Now, a.Seed) != nil
}

// about returns what becomes of an ICMP error. It passes if it quotes a packet of a mapping; the error and its
// quotation are translated.
func (a *app) about(in int, b []byte, d *hdr.Layers) verdict {
	var q hdr.Layers
	var addr [4]byte // that takes another one's place in the quotation
	// The error must go to the sender of the packet that it quotes.
	if !flow.Quoted(b, d, &q) || be.Uint32(b[q.L3+12:]) != be.Uint32(b[d.L3+16:]) {
		return verdict{drop, reasonUnrelated}
	}
	class := classICMP
	switch q.Proto {
	case hdr.ProtoTCP:
		class = classTCP
	case hdr.ProtoUDP:
		class = classUDP
	case hdr.ProtoICMP:
		if _, _, ok := flow.Query(hdr.NetIPv4, b[q.L4]); !ok {
			return verdict{drop, reasonUnrelated} // no errors about errors
		}
	default:
		return verdict{drop, reasonUnrelated}
	}
	out, reason := portB, reasonErrorOut
	if in == portA {
		// A private host received the quoted packet at the address and port of its mapping.
		k := private{addr: be.Uint32(b[q.L3+16:]), port: be.Uint16(b[portAt(&q, destination):]), vlans: d.VLANs(), class: uint16(class)}
		s := a.st.take(a.st.shardOf(k.port))
		i := s.mappings.Find(&k, k.hash(a.Seed))
		var m mapping
		over := i < 0 || s.gone(i, a.Now)
		if i >= 0 {
			m = s.mappings.At(i).Val
		}
		a.st.give(s)
		if over {
			return verdict{drop, reasonUnrelated}
		}
		be.PutUint32(addr[:], a.public[m.public])
		flow.Requote(b, d, &q, destination, addr[:], m.port)
		readdress(b, d, source, a.public[m.public])
		if a.ours(be.Uint32(b[d.L3+16:])) {
			out = portA
		}
	} else {
		out, reason = portA, reasonErrorIn
	}
	var host [6]byte
	if out == portA {
		port := be.Uint16(b[portAt(&q, source):])
		s := a.st.take(a.st.shardOf(port))
		defer a.st.give(s)
		i := a.find(s, be.Uint32(b[d.L3+16:]), port, class)
		if i < 0 || s.mappings.At(i).Key.vlans != d.VLANs() {
			return verdict{drop, reasonUnrelated}
		}
		p := peer{mapping: uint32(i), addr: be.Uint32(b[q.L3+16:]), kind: tcpSession}
		if class != classICMP {
			p.port = be.Uint16(b[portAt(&q, destination):])
		}
		if class == classTCP && s.has(&p, a.Now, a.Seed) == nil || class != classTCP && !a.admits(s, &p, class) {
			return verdict{drop, reasonUnrelated}
		}
		m := s.mappings.At(i)
		be.PutUint32(addr[:], m.Key.addr)
		flow.Requote(b, d, &q, source, addr[:], m.Key.port)
		readdress(b, d, destination, m.Key.addr)
		host = m.Val.mac
	}
	a.frame(b, in, out, host)
	return verdict{out, reason}
}

// arp answers ARP requests for public addresses; other ARP packets pass.
func (a *app) arp(in int, b []byte, d *hdr.Layers) verdict {
	if len(b) >= d.Net+hdr.ARPLen {
		if p := hdr.ARP(b[d.Net:]); p.Valid() && p.Op() == 1 && p.SPA() != p.TPA() {
			t := p.TPA().As4()
			if _, ours := a.index[be.Uint32(t[:])]; ours {
				asker, spa := p.SHA(), p.SPA()
				p.Encode(&hdr.ARPFields{Op: 2, SHA: a.mac, SPA: p.TPA(), THA: asker, TPA: spa})
				eth := hdr.Ethernet(b)
				eth.SetDst(asker)
				eth.SetSrc(a.mac)
				return verdict{in, reasonARP}
			}
		}
	}
	return verdict{1 - in, reasonNotIP}
}

// Report implements graph.Reporter.
func (a *app) Report() any {
	type pools struct {
		Address string `json:"address"`
		TCP     int    `json:"free_tcp_ports"`
		UDP     int    `json:"free_udp_ports"`
		ICMP    int    `json:"free_icmp_identifiers"`
	}
	type report struct {
		Mappings int     `json:"mappings"`
		Sessions int     `json:"sessions"`
		Bytes    int     `json:"bytes"` // of memory
		Public   []pools `json:"public"`
	}
	r := report{Public: make([]pools, len(a.public))}
	for i := a.worker; i < len(a.st.shards); i += a.workers {
		s := a.st.take(i)
		r.Mappings += s.mappings.Len()
		r.Sessions += s.sessions.Len()
		r.Bytes += s.mappings.Bytes() + s.sessions.Bytes() + s.later.Bytes()
		for p := range s.pools {
			x := &r.Public[p]
			x.Address = addrOf(a.public[p]).String()
			x.TCP += s.pools[p][classTCP].free
			x.UDP += s.pools[p][classUDP].free
			x.ICMP += s.pools[p][classICMP].free
			for class := range s.pools[p] {
				r.Bytes += 4*len(s.pools[p][class].mapping) + 8*len(s.pools[p][class].used)
			}
		}
		a.st.give(s)
	}
	return r
}
