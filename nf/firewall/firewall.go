package firewall

import (
	"maps"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/table"
)

// verdict is what becomes of a packet.
type verdict struct {
	pass   bool
	reason graph.Reason
}

// policy is the compiled form of the arguments. It never changes.
type policy struct {
	args graph.Args
	settings
	acl      [2]*acl                  // IPv4, IPv6
	udpTimes [numStates]time.Duration // how long UDP is remembered, by state
}

// compile returns the policy of args. It keeps the last one, so that workers do not compile again what Takes has
// compiled: with many rules that takes milliseconds.
func (st *state) compile(args graph.Args) (*policy, error) {
	last := st.last.Load()
	if last != nil && maps.Equal(last.args, args) {
		return last, nil
	}
	s, err := parse(args)
	if err != nil {
		return nil, err
	}
	p := &policy{args: maps.Clone(args), settings: s}
	for i := range p.udpTimes {
		p.udpTimes[i] = s.patience(uint8(i), hdr.ProtoUDP)
	}
	for i, name := range [2]string{"rules", "rules6"} {
		if last != nil && last.args[name] == args[name] {
			p.acl[i] = last.acl[i]
		} else {
			var was *acl
			if last != nil {
				was = last.acl[i]
			}
			p.acl[i] = newACL(s.rules[i], decl([2]int{32, 128}[i]).Keys, was)
		}
	}
	st.last.Store(p)
	return p, nil
}

// app is the firewall's instance in one worker.
type app struct {
	flow.Mover
	*policy
	gen             uint16            // of the policy
	size            int               // of the frame at hand
	place           int               // of its connection; negative: it has none
	hits            [2][]table.Counts // of IPv4's and IPv6's rules, as they are sorted
	st              *state
	scouts          []flow.Scout // of the connections of all shards
	asks            [packet.MaxBatch]ask
	worker, workers int
	ahead           *offload.Table // that the shards know; nil: of none, or of one that has come to its end
}

func newApp(args graph.Args, env graph.Env) (*app, error) {
	s, err := parse(args)
	if err != nil {
		return nil, err
	}
	a := &app{gen: 1, worker: env.Worker, workers: max(1, env.Workers)}
	mk := func() any { return newState(s.conns, a.workers) }
	if env.Share == nil {
		a.st = mk().(*state)
	} else {
		a.st = env.Share(mk).(*state)
	}
	a.Mover = flow.Mover{Start: &a.st.start, Kind: "firewall", Version: version, Size: recordSize, Record: a.record, Build: a.build}
	if a.policy, err = a.st.compile(args); err != nil {
		return nil, err
	}
	a.recount(nil)
	a.scouts = make([]flow.Scout, len(a.st.shards))
	a.scout()
	return a, nil
}

// Wants implements graph.Wanter: the firewall wants all frames, and none may cross without it.
func (a *app) Wants() port.Filter { return port.Filter{All: true, Closed: true} }

// Takes implements graph.Reconfigurer: all arguments may change, except conns.
func (a *app) Takes(args graph.Args) bool {
	p, err := a.st.compile(args)
	return err == nil && p.conns == a.conns
}

// Reconfigure implements graph.Reconfigurer. A connection stays if the new rules would have let it be opened;
// that is checked when its next packet comes.
func (a *app) Reconfigure(args graph.Args) error {
	p, err := a.st.compile(args)
	if err != nil {
		return err
	}
	was := a.policy
	a.policy = p
	a.recount(was)
	a.gen++
	return nil
}

// Tick implements graph.Ticker: it forgets connections whose time is over, a few places at a time.
func (a *app) Tick(c *graph.Ctx) clock.Time {
	if !a.Begun {
		a.Begin(c.Now(), c.Rand(), nil)
	}
	a.Now = c.Now()
	a.lead(c)
	a.scout()
	gone, here := 0, 0
	steps, every := flow.Steps(a.st.shards[0].conns.Places())
	for i := a.worker; i < len(a.st.shards); i += a.workers {
		s := a.st.take(uint64(i))
		gone += s.sweep((s.conns.Places()+steps-1)/steps, a.Now, a.Seed)
		here += s.conns.Len()
		a.st.give(s)
	}
	c.Count(ctrOver, uint64(gone))
	c.Set(ctrConns, uint64(here))
	return a.Now.Add(every)
}

// Push implements graph.App.
func (a *app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if !a.Begun {
		a.Begin(c.Now(), c.Rand(), nil)
	}
	a.Now = c.Now()
	a.lead(c)
	bufs := b.Bufs()
	for i, x := range bufs {
		a.gather(in, x.Bytes(), &a.asks[i])
	}
	for i := range bufs {
		a.near(&a.asks[i])
	}
	var on [packet.MaxBatch]*packet.Buf
	n := 0
	for i, x := range bufs {
		a.size, a.place = x.Len(), -1
		v := a.one(c, in, x.Bytes(), &a.asks[i])
		if !v.pass {
			c.Drop(x, v.reason)
			continue
		}
		c.Mark(x, x.Verdict, v.reason)
		if c.Drafted(x) && v.reason == reasonKnown {
			a.decide(c, in, x, &a.asks[i])
		}
		on[n] = x
		n++
	}
	c.EmitAll(1-in, on[:n])
}

// one returns what becomes of a frame for which gather has filled q.
func (a *app) one(c *graph.Ctx, in int, frame []byte, q *ask) verdict {
	switch q.way {
	case connection:
		s := a.st.take(q.hash)
		v := a.find(c, s, q, in)
		a.st.give(s)
		return v
	case decided:
		return q.verdict
	}
	var d hdr.Layers
	hdr.Walk(frame, &d)
	if q.way == quoting {
		var k flow.Key
		k.Addrs(frame, &d)
		return a.about(in, frame, &d, &k)
	}
	return a.fragment(c, in, frame, &d, q)
}

// fragment returns what becomes of a fragment.
func (a *app) fragment(c *graph.Ctx, in int, frame []byte, d *hdr.Layers, q *ask) verdict {
	k, offset := flow.Fragment(frame, d)
	k.Tag = d.VLANs() | uint32(in)<<24
	hash := k.Hash(a.Seed)
	if d.L4 != 0 {
		a.whole(in, frame, d, q)
		v := a.one(c, in, frame, q)
		if v.reason == reasonMalformed {
			v.reason = reasonTiny
		}
		if v.pass {
			s := a.st.take(hash)
			s.frags.Note(&k, hash, a.Now, struct{}{})
			a.st.give(s)
		}
		return v
	}
	if offset < leastHeader(d.Proto) {
		return verdict{false, reasonTiny}
	}
	s := a.st.take(hash)
	_, known := s.frags.Of(&k, hash, a.Now)
	a.st.give(s)
	if !known {
		return verdict{false, reasonStray}
	}
	return verdict{true, reasonLater}
}

// leastHeader returns the smallest header length, in bytes, of a protocol; 0 if the protocol is unknown.
func leastHeader(proto uint8) int {
	switch proto {
	case hdr.ProtoTCP:
		return hdr.TCPLen
	case hdr.ProtoUDP, hdr.ProtoICMP, hdr.ProtoICMPv6:
		return hdr.UDPLen
	}
	return 0
}

// sourceRouted reports whether a datagram has a source route, and so another final destination than the one that
// rules see (RFC 7126 4.3 and 4.4, RFC 5095).
func sourceRouted(ip []byte, family uint8) bool {
	if family == hdr.NetIPv4 {
		o := ip[hdr.IPv4Len:hdr.IPv4(ip).HeaderLen()]
		for len(o) > 0 && o[0] != 0 {
			n := 1
			if o[0] != 1 {
				if o[0] == 131 || o[0] == 137 {
					return true
				}
				if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
					return false
				}
				n = int(o[1])
			}
			o = o[n:]
		}
		return false
	}
	next, at := ip[6], hdr.IPv6Len
	for next == hdr.ProtoHopByHop || next == hdr.ProtoRouting || next == hdr.ProtoDstOption {
		if len(ip) < at+8 {
			return false
		}
		if next == hdr.ProtoRouting && ip[at+2] == 0 {
			return true
		}
		next, at = ip[at], at+8+int(ip[at+1])*8
	}
	return false
}

// isExtension reports whether proto is an IPv6 extension header. hdr.Walk stops at extension headers behind a
// fragment header.
func isExtension(proto uint8) bool {
	switch proto {
	case hdr.ProtoHopByHop, hdr.ProtoRouting, hdr.ProtoDstOption, hdr.ProtoFragment:
		return true
	}
	return false
}

// query sets the ports of an ICMP query's key, before the key is reversed for port 1. Side a gets the identifier,
// and side b the type of the request and the side that it came from.
func (*app) query(k *flow.Key, id uint16, request uint8, in int, answer bool) {
	asker := in
	if answer {
		asker = 1 - in
	}
	k.SrcPort, k.DstPort = id, uint16(request)|uint16(asker)<<8
	if in == 1 {
		k.SrcPort, k.DstPort = k.DstPort, k.SrcPort
	}
}

// isControl reports whether an ICMPv6 message is one that a link needs to work: neighbour discovery or multicast
// listener discovery (RFC 4890 4.4.1).
func isControl(typ uint8) bool { return typ >= 130 && typ <= 136 || typ == 143 }

// find returns what becomes of a packet with connection key q.key, and opens the connection if it may. s is its
// shard.
func (a *app) find(c *graph.Ctx, s *shard, q *ask, in int) verdict {
	k, seg := &q.key, &q.seg
	i, closed := q.place, -1 // closed: the place of a connection that is opened anew
	if uint(i) >= uint(s.conns.Places()) || !k.Same(&s.conns.At(i).Key) {
		i = s.conns.Find(k, q.hash)
	}
	if i >= 0 {
		x := &s.conns.At(i).Val
		held := x.flows.Any() && s.ahead.Hold(&x.flows)
		switch {
		case x.until < a.Now:
			s.release(i, a.Seed)
			c.Count(ctrOver, 1)
		default:
			if ok, r := a.recheck(x, k); !ok {
				s.release(i, a.Seed)
				c.Count(ctrEnded, 1)
				return verdict{false, r}
			}
			v := a.follow(s, x, k, in, seg)
			if held {
				s.letGo(i, x.settled(k.Proto == hdr.ProtoTCP))
			}
			if v.reason != reasonNew {
				a.place = i
				return v
			}
			closed = i
		}
	}
	if q.answer {
		return verdict{false, reasonNone}
	}
	if ok, r := a.permits(k, uint8(in), true); !ok {
		return verdict{false, r}
	}
	var former conn
	if closed >= 0 {
		former = s.conns.At(closed).Val
		s.release(closed, a.Seed)
	}
	x, evicted, v := s.open(k, q.hash, uint8(in), a.Now, &a.settings, a.Seed, len(a.st.shards))
	if x == nil {
		if closed >= 0 {
			s.restore(k, q.hash, former, a.Seed)
		}
		return v
	}
	if evicted {
		c.Count(ctrEvicted, 1)
	}
	x.gen, x.state = a.gen, oneWay
	if k.Proto == hdr.ProtoTCP {
		x.state = tcpSyn
		if seg.flags != flagSYN {
			x.state, x.flags = tcpOpen, unchecked
			s.settle(k, x, a.Seed)
		}
		note(&x.side[in], &x.side[1-in], seg, false)
	}
	x.until = a.Now.Add(a.patience(x, k.Proto))
	c.Count(ctrOpened, 1)
	return v
}

// follow returns what becomes of a packet of an existing connection x, and updates x. The reason reasonNew means
// that the packet opens the connection anew.
func (a *app) follow(s *shard, x *conn, k *flow.Key, in int, seg *segment) verdict {
	was := x.tentative()
	v := verdict{true, reasonKnown}
	switch {
	case k.Proto == hdr.ProtoTCP:
		if v = x.tcp(in, seg, a.strict); !v.pass {
			return v
		}
		x.flags &^= movedA << in
	case in != int(x.opener):
		x.state = bothWays
	}
	if was && !x.tentative() {
		s.settle(k, x, a.Seed)
	}
	x.until = a.Now.Add(a.patience(x, k.Proto))
	return v
}

// patience returns how long a connection is remembered after its last packet.
func (a *app) patience(x *conn, proto uint8) time.Duration {
	if proto == hdr.ProtoUDP {
		return a.udpTimes[x.state]
	}
	return a.settings.patience(x.state, proto)
}

// patience returns how long a connection of that protocol is remembered in that state.
func (a *settings) patience(state, proto uint8) time.Duration {
	switch state {
	case tcpSyn, tcpSynAck:
		return a.tcpHalf
	case tcpOpen:
		return a.tcpIdle
	case tcpClosing, tcpTimeWait:
		return a.tcpClose
	case tcpReset:
		return min(a.tcpClose, 10*time.Second)
	}
	d := a.otherIdle
	switch proto {
	case hdr.ProtoUDP:
		d = a.udpIdle
	case hdr.ProtoICMP, hdr.ProtoICMPv6:
		d = a.icmpIdle
	}
	if state == oneWay {
		d = min(d, a.tcpHalf)
	}
	return d
}

// recheck reports whether the current rules let connection x be opened, and if not, the reason. It asks the rules
// once after each change.
func (a *app) recheck(x *conn, k *flow.Key) (ok bool, r graph.Reason) {
	if x.gen == a.gen {
		return true, 0
	}
	if ok, r = a.permits(k, x.opener, false); ok {
		x.gen = a.gen
	}
	return ok, r
}

// permits reports whether the rules let a connection with key k be opened from port opener, and if not, the
// reason. With opens, the connection is new and counts for the rule's rate.
func (a *app) permits(k *flow.Key, opener uint8, opens bool) (bool, graph.Reason) {
	src, dst, sport, dport := &k.Src, &k.Dst, k.SrcPort, k.DstPort
	if opener == 1 {
		src, dst, sport, dport = dst, src, dport, sport
	}
	var v [numFields]table.Value
	t := a.acl[0]
	if k.Family == hdr.NetIPv6 {
		t = a.acl[1]
		v[fieldSrc], v[fieldDst] = table.Value{Hi: be.Uint64(src[:]), Lo: be.Uint64(src[8:])}, table.Value{Hi: be.Uint64(dst[:]), Lo: be.Uint64(dst[8:])}
	} else {
		v[fieldSrc], v[fieldDst] = table.Uint(uint64(be.Uint32(src[:]))), table.Uint(uint64(be.Uint32(dst[:])))
	}
	v[fieldIn], v[fieldProto] = table.Uint(uint64(opener)), table.Uint(uint64(k.Proto))
	v[fieldSport], v[fieldDport] = table.Uint(noPort), table.Uint(noPort)
	if k.Proto == hdr.ProtoTCP || k.Proto == hdr.ProtoUDP {
		v[fieldSport], v[fieldDport] = table.Uint(uint64(sport)), table.Uint(uint64(dport))
	}
	i := t.match(&v)
	if i < 0 {
		return a.allow, reasonDefault
	}
	n := &a.hits[familyIndex(k.Family)][i]
	n.Packets++
	n.Bytes += uint64(a.size)
	if m := t.meters[i]; m != nil && opens && !m.take(a.Now) {
		return false, reasonRate
	}
	return t.actions[i] != deny, reasonDenied
}

// about returns what becomes of an ICMP error. It passes if it quotes a packet of a connection, which came from
// the other side, and if its destination is the sender of that packet.
func (a *app) about(in int, frame []byte, d *hdr.Layers, outer *flow.Key) verdict {
	var q hdr.Layers
	if !flow.Quoted(frame, d, &q) {
		return verdict{false, reasonUnrelated}
	}
	var k flow.Key
	k.Addrs(frame, &q)
	k.Tag = d.VLANs()
	from := 1 - in // where the packet came from
	if k.Src != outer.Dst {
		return verdict{false, reasonUnrelated} // not to who sent that packet
	}
	l4 := frame[q.L4:q.End]
	switch k.Proto {
	case hdr.ProtoTCP, hdr.ProtoUDP:
		k.SrcPort, k.DstPort = be.Uint16(l4), be.Uint16(l4[2:])
	case hdr.ProtoICMP, hdr.ProtoICMPv6:
		request, answer, ok := flow.Query(k.Family, l4[0])
		if !ok {
			return verdict{false, reasonUnrelated} // no errors about errors
		}
		a.query(&k, hdr.ICMP(l4).ID(), request, from, answer)
	}
	if from == 1 {
		k = k.Reversed()
	}
	hash := k.Hash(a.Seed)
	s := a.st.take(hash)
	defer a.st.give(s)
	i := s.conns.Find(&k, hash)
	if i < 0 {
		return verdict{false, reasonUnrelated}
	}
	x := &s.conns.At(i).Val
	if s.hold(i) {
		defer s.letGo(i, true)
	}
	if ok, _ := a.recheck(x, &k); !ok || x.until < a.Now {
		return verdict{false, reasonUnrelated}
	}
	if k.Proto == hdr.ProtoTCP && a.strict && x.flags&unchecked == 0 && !x.sent(from, be.Uint32(l4[4:])) {
		return verdict{false, reasonUnrelated}
	}
	return verdict{true, reasonRelated}
}

// familyIndex returns the index of a family's rules in policy.acl.
func familyIndex(family uint8) int {
	if family == hdr.NetIPv6 {
		return 1
	}
	return 0
}

// recount makes counters for the current rules. A rule that was there before with the same action keeps its
// count.
func (a *app) recount(was *policy) {
	for f, t := range a.acl {
		old := a.hits[f]
		a.hits[f] = make([]table.Counts, len(t.actions))
		for p, i := range t.places {
			if was == nil {
				break
			}
			if k, ok := was.acl[f].places[p]; ok && was.acl[f].actions[k] == t.actions[i] {
				a.hits[f][i] = old[k]
			}
		}
	}
}

// counted adds to n the packets that a rule has decided: those that opened connections, or would have. Packets of
// existing connections are not looked up in the rules.
func (a *app) counted(t int, e *table.Entry, n *table.Counts) {
	if i, ok := a.acl[t].places[placeOf(e)]; ok {
		n.Packets += a.hits[t][i].Packets
		n.Bytes += a.hits[t][i].Bytes
	}
}

// report is what Report shows of the worker's shards.
type report struct {
	Connections map[string]int `json:"connections"` // by state
	Places      int            `json:"places"`
	Bytes       int            `json:"bytes"` // of memory
	Tentative   int            `json:"half_open"`
	Rules       int            `json:"rules"`

	a         *app
	shard, at int // looked at next
}

// Report implements graph.Reporter.
func (a *app) Report() any {
	r := &report{Connections: map[string]int{}, Rules: len(a.rules[0]) + len(a.rules[1]), a: a, shard: a.worker}
	return &graph.Gradual{Look: r.look, Value: func() any { return *r }}
}

// look counts the connections in the next n places, and reports whether more are left.
func (r *report) look(n int) (more bool) {
	if r.shard >= len(r.a.st.shards) {
		return false
	}
	s := r.a.st.take(uint64(r.shard))
	defer r.a.st.give(s)
	end := min(r.at+n, s.conns.Places())
	for i := s.conns.NextBefore(r.at, end); i >= 0; i = s.conns.NextBefore(i+1, end) {
		r.Connections[stateNames[s.conns.At(i).Val.state]]++
	}
	if r.at = end; end >= s.conns.Places() {
		r.Places += s.conns.Places()
		r.Bytes += s.conns.Bytes() + s.frags.Bytes()
		r.Tentative += s.tents
		r.shard, r.at = r.shard+r.a.workers, 0
	}
	return r.shard < len(r.a.st.shards)
}
