package napt

import (
	"encoding/binary"
	"math/bits"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/turn"
)

var be = binary.BigEndian

// Classes of protocols. Each has its own pools of ports.
const (
	classTCP = iota
	classUDP
	classICMP
	numClasses
)

// private is the key of a mapping: a private address and port, with VLANs, for a class.
type private struct {
	addr  uint32
	port  uint16 // or the identifier of an ICMP query
	class uint16
	vlans uint32 // of both tags
}

func (k *private) hash(seed uint64) uint64 {
	h := hdr.Fold(seed, uint64(k.addr)<<32|uint64(k.port)<<16|uint64(k.class))
	return hdr.Fold(hdr.Fold(h, uint64(k.vlans)), seed)
}

// mapping is the public address and port of a private end, and what is known of its host.
type mapping struct {
	until    clock.Time // it lives until then at least
	sessions uint32     // and while it has some
	public   uint16     // index of the address
	port     uint16
	mac      [6]byte // its host's
	moving   bool    // sessions may be decided for the address that it had before
	flows    offload.Flows
	decided  uint32 // the first of its sessions that were decided: its place, plus 1
}

func (m *mapping) over(now clock.Time) bool { return m.sessions == 0 && m.until < now }

// peer is the key of a session: a mapping, and an end outside that it communicates with.
type peer struct {
	mapping uint32 // its place
	addr    uint32
	port    uint16
	kind    uint16
}

// Kinds of sessions, as peer.kind has them.
const (
	tcpSession = iota + 1
	mayAddress // a permission for an address
	mayPort    // and port
)

func (k *peer) hash(seed uint64) uint64 {
	h := hdr.Fold(seed, uint64(k.mapping)<<32|uint64(k.addr))
	return hdr.Fold(hdr.Fold(h, uint64(k.port)|uint64(k.kind)<<16), seed)
}

// session is a TCP connection, or the permission of a peer to answer.
type session struct {
	until  clock.Time
	flags  uint8
	listed bool // among the decided ones of its mapping
	flows  offload.Flows
	// The neighbours in that list: their places, plus 1; 0 at the end or the beginning of the list.
	next, last uint32
}

// Bits of session.flags: which segments of a TCP connection were seen, from inside (Out) and from outside (In).
const (
	synOut = 1 << iota
	synIn
	finOut
	rst
	finIn
	allFlags = synOut | synIn | finOut | rst | finIn
)

// later says how the later fragments of a datagram are changed, and where they leave.
type later struct {
	src, dst uint32
	mac      [6]byte
	out      uint8
}

// pool has those ports of a public address that belong to one shard, for one class. Its slices are indexed by
// state.index.
type pool struct {
	mapping []uint32 // by port: place of the mapping, plus 1
	used    []uint64 // bits, by port; also those that nobody may have
	free    int
}

// shard has the mappings whose ports, private and public, select it (shardOf). A worker must have its turn.
type shard struct {
	_        [64]byte // nothing that frames read is on the line of the turn, which both workers write
	turn     turn.Turn
	mappings flow.Table[private, mapping]
	sessions flow.Table[peer, session]
	later    flow.Fragments[later]
	pools    [][numClasses]pool // by public address
	hosts    *flow.Counts       // mappings of private addresses, of all shards
	random   uint64

	ahead *offload.Table // of the flows of mappings and sessions
	owner *app           // some worker's, whose settings those of all are
}

// state is what the instances of all workers share.
type state struct {
	shards []shard
	lg     uint // of their number
	start  flow.Start
}

const maxShards = 32

func newState(s *settings, workers int) *state {
	n, lg := 1, uint(0)
	for n < workers && n < maxShards {
		n, lg = n*2, lg+1
	}
	st := &state{shards: make([]shard, n), lg: lg}
	hosts := new(flow.Counts)
	for i := range st.shards {
		x := &st.shards[i]
		x.hosts = hosts
		x.mappings = flow.New[private, mapping]((s.mappings + n - 1) / n)
		x.sessions = flow.New[peer, session]((s.sessions + n - 1) / n)
		x.later = flow.NewFragments[later](max(64, s.mappings/64/n))
		x.pools = make([][numClasses]pool, len(s.public))
		for p := range x.pools {
			for class := range x.pools[p] {
				x.pools[p][class] = st.newPool(i, s.ports, class)
			}
		}
	}
	return st
}

func (st *state) newPool(shard int, ports [2]uint16, class int) pool {
	n := 1 << 16 >> st.lg
	p := pool{mapping: make([]uint32, n), used: make([]uint64, n/64)}
	for i := range n {
		// An identifier of an ICMP query is a port of any number.
		if port := st.port(shard, i); class == classICMP || port >= ports[0] && port <= ports[1] {
			p.free++
		} else {
			p.used[i/64] |= 1 << (i % 64)
		}
	}
	return p
}

// shardOf returns the shard that a port selects, index the port's place in the pools of that shard, and port the
// port of such a place. Ports that differ in the last bit only are in the same shard.
func (st *state) shardOf(port uint16) int { return int(port) >> 1 & (len(st.shards) - 1) }
func (st *state) index(port uint16) int   { return int(port)>>(1+st.lg)<<1 | int(port)&1 }
func (st *state) port(shard, index int) uint16 {
	return uint16(index>>1<<(1+st.lg) | shard<<1 | index&1)
}

func (st *state) take(n int) *shard {
	s := &st.shards[n]
	if len(st.shards) > 1 {
		s.turn.Take()
	}
	return s
}

func (st *state) give(s *shard) {
	if len(st.shards) > 1 {
		s.turn.Give()
	}
}

// next returns a random number (SplitMix64).
func (s *shard) next() uint64 {
	s.random += 0x9E3779B97F4A7C15
	z := (s.random ^ s.random>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// pick takes a free port of the pool and returns its index: want if that is free, otherwise a random one of the
// same parity, or else of the other parity. It returns a negative number if no port is free.
func (p *pool) pick(want int, random uint64) int {
	if p.free == 0 {
		return -1
	}
	i := want
	if p.used[want/64]>>(want%64)&1 != 0 {
		parity := uint64(0x5555555555555555) << (want & 1)
		if i = p.search(parity, random); i < 0 {
			i = p.search(^parity, random)
		}
	}
	p.used[i/64] |= 1 << (i % 64)
	p.free--
	return i
}

// search returns the first free index whose bit is in mask, cyclically from a random one on, or a negative
// number.
func (p *pool) search(mask, random uint64) int {
	n := len(p.used)
	at, bit := int(random>>32%uint64(n)), uint(random%64)
	for k := range n + 1 {
		free := ^p.used[at] & mask
		switch k {
		case 0:
			free = free >> bit << bit
		case n: // again where it began, what is before
			free &= 1<<bit - 1
		}
		if free != 0 {
			return at*64 + bits.TrailingZeros64(free)
		}
		if at++; at == n {
			at = 0
		}
	}
	return -1
}

func (p *pool) release(i int) {
	p.mapping[i] = 0
	p.used[i/64] &^= 1 << (i % 64)
	p.free++
}

// hostHash returns the hash under which the mappings of a private address are counted.
func hostHash(k *private, seed uint64) uint64 {
	return hdr.Fold(seed, uint64(k.addr)<<24|uint64(k.vlans))
}

// forget ends the mapping in place i, which has no sessions.
func (st *state) forget(s *shard, i int, seed uint64) {
	p := s.mappings.At(i)
	s.withdraw(&p.Val.flows)
	s.pools[p.Val.public][p.Key.class].release(st.index(p.Val.port))
	s.hosts.Sub(hostHash(&p.Key, seed))
	s.mappings.Del(i)
}

// end ends the session in place i.
func (s *shard) end(i int) {
	s.undecide(i)
	s.mappings.At(int(s.sessions.At(i).Key.mapping)).Val.sessions--
	s.sessions.Del(i)
}

// room frees a place for a mapping with that hash, if a mapping there is over. It returns false if none is.
func (st *state) room(s *shard, hash uint64, now clock.Time, seed uint64) bool {
	a, b := s.mappings.Sets(hash)
	for _, first := range [2]int{a, b} {
		for i := s.mappings.NextBefore(first, first+flow.Ways); i >= 0; i = s.mappings.NextBefore(i+1, first+flow.Ways) {
			if s.gone(i, now) {
				st.forget(s, i, seed)
				return true
			}
		}
	}
	return false
}

// greedy reports whether a session may lose its place to a new one: it is no open TCP connection, and its mapping
// has more than a sixteenth of all sessions. A host that scans thus uses up its own sessions.
func (s *shard) greedy(p *flow.Place[peer, session]) bool {
	return p.Val.flags&(synOut|synIn) != synOut|synIn && int(s.mappings.At(int(p.Key.mapping)).Val.sessions) > s.sessions.Len()/16
}

// touch finds or makes the session with a peer, and returns nil if there is no place. A new session may take the
// place of one that is over, of a SYN from outside that nobody has answered, or of a greedy one. near is the
// session's probable place, or negative.
func (s *shard) touch(k *peer, near int, now clock.Time, seed uint64) *session {
	if uint(near) < uint(s.sessions.Places()) {
		if p := s.sessions.At(near); p.Key == *k && p.Val.until >= now {
			return &p.Val
		}
	}
	hash := k.hash(seed)
	i := s.sessions.Find(k, hash)
	if i < 0 {
		if i = s.sessions.Add(k, hash); i < 0 {
			a, b := s.sessions.Sets(hash)
			greedy := -1
			for _, first := range [2]int{a, b} {
				for j := first; j < first+flow.Ways; j++ {
					p := s.sessions.At(j)
					if s.over(j, now) || p.Val.flags == synIn && i < 0 {
						i = j
					}
					if greedy < 0 && s.greedy(p) {
						greedy = j
					}
				}
			}
			if i < 0 {
				if i = greedy; i < 0 {
					return nil
				}
			}
			s.end(i)
			if i = s.sessions.Find(k, hash); i >= 0 {
				return &s.sessions.At(i).Val // what has ended has made it (Used)
			}
			i = s.sessions.Add(k, hash)
		}
		s.mappings.At(int(k.mapping)).Val.sessions++
	} else if s.over(i, now) {
		s.undecide(i)
		s.sessions.At(i).Val = session{}
	}
	return &s.sessions.At(i).Val
}

// has returns the session with a peer, or nil if there is none or its time is over.
func (s *shard) has(k *peer, now clock.Time, seed uint64) *session {
	i := s.sessions.Find(k, k.hash(seed))
	if i < 0 || s.over(i, now) {
		return nil
	}
	return &s.sessions.At(i).Val
}

// sweep looks at 1/steps of all places, forgets the sessions and mappings that are over, and counts those
// mappings.
func (st *state) sweep(s *shard, steps int, now clock.Time, seed uint64) (gone int) {
	from, to := s.sessions.Sweep((s.sessions.Places() + steps - 1) / steps)
	for i := s.sessions.NextBefore(from, to); i >= 0; i = s.sessions.NextBefore(i+1, to) {
		if s.over(i, now) {
			s.end(i)
		}
	}
	from, to = s.mappings.Sweep((s.mappings.Places() + steps - 1) / steps)
	for i := s.mappings.NextBefore(from, to); i >= 0; i = s.mappings.NextBefore(i+1, to) {
		if s.gone(i, now) {
			st.forget(s, i, seed)
			gone++
		}
	}
	return gone
}
