package napt

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
)

// Translated frames are decided (package offload): those of open TCP sessions, and those of UDP flows while the
// private end sends. Their entries belong to a session or permission, or to the mapping for UDP with
// filter=endpoint. The times of mappings and sessions with entries are asked for before they are taken to be
// over.

// ofMapping is the bit that marks a ref (offload.Owner) as the place of a mapping. Other refs are places of
// sessions.
const ofMapping = 1 << 31

// decide adds NAPT's Part to the draft of frame x, which was translated with reason r, of the peer noted in
// a.peer.
func (a *app) decide(c *graph.Ctx, in int, x *packet.Buf, r graph.Reason) {
	if r == reasonIPv6 && a.offload {
		c.Decide(x, offload.Part{In: in}) // all of it passes
		return
	}
	if !a.offload || r != reasonOut && r != reasonIn {
		return
	}
	k := a.peer
	s := a.st.take(a.shard)
	defer a.st.give(s)
	if !s.mappings.Has(int(k.mapping)) {
		return // another worker has ended it
	}
	part := offload.Part{Owner: s, In: in}
	class := s.mappings.At(int(k.mapping)).Key.class
	switch {
	case class == classTCP:
		k.kind = tcpSession
	case class != classUDP:
		return
	case a.filter == byEndpoint:
		part.Ref = k.mapping | ofMapping
	default:
		if k.kind = mayPort; a.filter == byAddress {
			k.kind, k.port = mayAddress, 0
		}
	}
	if part.Ref == 0 {
		i := s.sessions.Find(&k, k.hash(a.Seed))
		if i < 0 {
			return
		}
		part.Ref = uint32(i)
		if class == classTCP {
			if !s.sessions.At(i).Val.open() {
				return
			}
			part.Alone, part.Quiet = true, a.tcpIdle
		}
		s.decided(i)
	}
	part.State = s.State(part.Ref)
	if class == classUDP && in == portA {
		part.OwnQuiet = a.udpIdle
	}
	c.Decide(x, part)
}

// Take implements offload.Sharer.
func (s *shard) Take() { s.turn.Take() }

// Give implements offload.Sharer.
func (s *shard) Give() { s.turn.Give() }

// State implements offload.Stater: it returns a hash of the mapping, of the session if there is one, and of the
// host's MAC address.
func (s *shard) State(ref uint32) uint64 {
	seed, i := s.owner.Seed, int(ref&^ofMapping)
	if ref&ofMapping == 0 {
		k := &s.sessions.At(i).Key
		seed, i = k.hash(seed), int(k.mapping)
	}
	p := s.mappings.At(i)
	mac := uint64(be.Uint16(p.Val.mac[:]))<<32 | uint64(be.Uint32(p.Val.mac[2:]))
	return hdr.Fold(hdr.Fold(p.Key.hash(seed), mac), uint64(p.Val.public)<<16|uint64(p.Val.port))
}

// open reports whether segments without SYN, FIN and RST change nothing of a TCP session but its time.
func (x *session) open() bool {
	return x.flags&(synOut|synIn|rst) == synOut|synIn && x.flags&(finOut|finIn) != finOut|finIn
}

// Decides implements offload.Owner.
func (s *shard) Decides(ref uint32) bool {
	if ref&ofMapping != 0 {
		return s.mappings.Has(int(ref &^ ofMapping))
	}
	i := int(ref)
	p := s.sessions.At(i)
	return s.sessions.Has(i) && (p.Key.kind != tcpSession || p.Val.open())
}

// Flows implements offload.Owner.
func (s *shard) Flows(ref uint32) *offload.Flows {
	if ref&ofMapping != 0 {
		return &s.mappings.At(int(ref &^ ofMapping)).Val.flows
	}
	return &s.sessions.At(int(ref)).Val.flows
}

// Used implements offload.Owner.
func (s *shard) Used(ref uint32, u *offload.Usage) {
	a := s.owner
	renew := func(until *clock.Time, at clock.Time) { *until = max(*until, at) }
	if ref&ofMapping != 0 {
		renew(&s.mappings.At(int(ref&^ofMapping)).Val.until, u.Last[portA].Add(a.udpIdle))
		return
	}
	p := s.sessions.At(int(ref))
	m := &s.mappings.At(int(p.Key.mapping)).Val
	if p.Key.kind != tcpSession {
		renew(&p.Val.until, u.Last[portA].Add(a.udpIdle))
		renew(&m.until, u.Last[portA].Add(a.udpIdle))
		return
	}
	if p.Val.open() {
		renew(&p.Val.until, u.Newest().Add(a.tcpIdle))
	}
	until := u.Last[portA].Add(a.tcpTrans)
	renew(&m.until, until)
	if a.filter != byAddress || until < s.ahead.Time() {
		return
	}
	// The permission may have been forgotten, because no segment has come here meanwhile. It is made again if a
	// place is free.
	k := peer{mapping: p.Key.mapping, addr: p.Key.addr, kind: mayAddress}
	hash := k.hash(a.Seed)
	i := s.sessions.Find(&k, hash)
	if i < 0 {
		if i = s.sessions.Add(&k, hash); i < 0 {
			return
		}
		m.sessions++
	}
	renew(&s.sessions.At(i).Val.until, until)
}

// lead has the shards use the offload.Table that runs flows in front of the graph.
func (a *app) lead(c *graph.Ctx) {
	t := c.Ahead()
	if t == a.led {
		return
	}
	for i := range a.st.shards {
		s := a.st.take(i)
		// A Table of other workers ends before this one begins, so that no flows of it are left.
		if t != nil {
			s.ahead, s.owner = t, a
		}
		a.st.give(s)
	}
	a.led = t
}

// ask updates a session's time by what the kernel has done for it.
func (s *shard) ask(i int) {
	if f := &s.sessions.At(i).Val.flows; f.Any() {
		s.ahead.Ask(s, uint32(i), f)
	}
}

// over reports whether the time of the session in place i is over, after asking the kernel for its last frame.
func (s *shard) over(i int, now clock.Time) bool {
	x := &s.sessions.At(i).Val
	if x.until < now {
		s.ask(i)
	}
	return x.until < now
}

// gone reports whether the mapping in place i is over, after asking the kernel for its last frame.
func (s *shard) gone(i int, now clock.Time) bool {
	m := &s.mappings.At(i).Val
	if m.sessions == 0 && m.until < now && m.flows.Any() {
		s.ahead.Ask(s, uint32(i)|ofMapping, &m.flows)
	}
	return m.over(now)
}

// decided lists the session in place i among those of its mapping that may have entries. moved needs the list,
// because entries contain the MAC address of the host.
func (s *shard) decided(i int) {
	p := s.sessions.At(i)
	if p.Val.listed {
		return
	}
	m := &s.mappings.At(int(p.Key.mapping)).Val
	p.Val.listed, p.Val.next, p.Val.last = true, m.decided, 0
	if m.decided != 0 {
		s.sessions.At(int(m.decided - 1)).Val.last = uint32(i) + 1
	}
	m.decided = uint32(i) + 1
}

// undecide ends the entries of the session in place i, and takes the session off the list of its mapping.
func (s *shard) undecide(i int) {
	p := s.sessions.At(i)
	s.withdraw(&p.Val.flows)
	if !p.Val.listed {
		return
	}
	if p.Val.next != 0 {
		s.sessions.At(int(p.Val.next - 1)).Val.last = p.Val.last
	}
	if p.Val.last != 0 {
		s.sessions.At(int(p.Val.last - 1)).Val.next = p.Val.next
	} else {
		s.mappings.At(int(p.Key.mapping)).Val.decided = p.Val.next
	}
	p.Val.listed, p.Val.next, p.Val.last = false, 0, 0
}

// maxMoves is the number of sessions that moved undecides for one frame.
const maxMoves = 1024

// moved ends what was decided for the mapping in place i, because its host has another MAC address. If more than
// maxMoves sessions are listed, the next frames of the host continue: all of them come here.
func (s *shard) moved(i int) {
	m := &s.mappings.At(i).Val
	s.withdraw(&m.flows)
	for n := 0; m.decided != 0 && n < maxMoves; n++ {
		s.undecide(int(m.decided - 1))
	}
	m.moving = m.decided != 0
}

// withdraw ends the entries in f.
func (s *shard) withdraw(f *offload.Flows) {
	if f.Any() {
		s.ahead.Withdraw(f)
	}
}
