package napt

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/turn"
)

var be = binary.BigEndian

// Protocols, as pools of ports are numbered.
const (
	classTCP = iota
	classUDP
	classICMP
	numClasses
)

// private is a private end: the key of a mapping.
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

// mapping is what a private end is outside.
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

// peer is who a mapping has to do with: the key of a session.
type peer struct {
	mapping uint32 // its place
	addr    uint32
	port    uint16
	kind    uint16
}

// Kinds of peers.
const (
	tcpSession = iota + 1
	mayAddress // a permission for an address
	mayPort    // and port
)

func (k *peer) hash(seed uint64) uint64 {
	h := hdr.Fold(seed, uint64(k.mapping)<<32|uint64(k.addr))
	return hdr.Fold(hdr.Fold(h, uint64(k.port)|uint64(k.kind)<<16), seed)
}

// session is a TCP connection, or a permission.
type session struct {
	until  clock.Time
	flags  uint8
	listed bool // among the decided ones of its mapping
	flows  offload.Flows
	// Its neighbours there: places, plus 1; 0: it is the last, or the first.
	next, last uint32
}

// The segments that were seen of a TCP connection.
const (
	synOut = 1 << iota
	synIn
	finOut
	rst
	finIn
	allFlags = synOut | synIn | finOut | rst | finIn
)

// later is what becomes of the later fragments of a datagram.
type later struct {
	until    clock.Time
	src, dst uint32
	mac      [6]byte
	out      uint8
}

// pool are the ports of a public address that are a shard's, for a class.
type pool struct {
	mapping []uint32 // by port: place of the mapping, plus 1
	used    []uint64 // bits, by port; also those that nobody may have
	free    int
}

// shard has the mappings whose ports, private and public, fall to it.
type shard struct {
	_        [64]byte // nothing that frames read is on the line of the turn, which both workers write
	turn     turn.Turn
	mappings flow.Table[private, mapping]
	sessions flow.Table[peer, session]
	later    flow.Table[flow.Key, later]
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
		x.later = flow.New[flow.Key, later](max(64, s.mappings/64/n))
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

// shardOf is the shard that a port falls to, and index is its place in a pool
// there; neighbours that differ in the last bit stay together.
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

// next is a random number (SplitMix64).
func (s *shard) next() uint64 {
	s.random += 0x9E3779B97F4A7C15
	z := (s.random ^ s.random>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// pick takes a free port: want when it is free, otherwise one at random of the
// same parity, or else of any; negative: there is none.
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

// search is the first free place, from a random one on, of those in mask.
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

// hostHash is what mappings of a private address are counted under.
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

// room makes sure that a mapping with that hash finds a place, where one is over.
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

// greedy reports whether the session gives way to another where there is no place:
// it is no open TCP connection, and its mapping has more than a sixteenth of all
// sessions. So a host that scans uses up its own.
func (s *shard) greedy(p *flow.Place[peer, session]) bool {
	return p.Val.flags&(synOut|synIn) != synOut|synIn && int(s.mappings.At(int(p.Key.mapping)).Val.sessions) > s.sessions.Len()/16
}

// touch finds or makes the session with a peer; nil: there is no place. A place
// is taken from one that is over, or from a SYN from outside that nobody has
// answered, or from one that is greedy. The session may be in place near.
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

// has is the session with a peer; nil: there is none, or it is over.
func (s *shard) has(k *peer, now clock.Time, seed uint64) *session {
	i := s.sessions.Find(k, k.hash(seed))
	if i < 0 || s.over(i, now) {
		return nil
	}
	return &s.sessions.At(i).Val
}

// sweep forgets what is over among a part of all places.
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

// laterTime is how long later fragments are waited for.
const laterTime = 30 * time.Second

// note remembers what becomes of later fragments.
func (s *shard) note(k *flow.Key, hash uint64, x later) {
	i := s.later.Find(k, hash)
	if i < 0 {
		i = s.later.Add(k, hash)
	}
	if i < 0 { // full: the one that is over first gives way
		a, b := s.later.Sets(hash)
		i = a
		for _, first := range [2]int{a, b} {
			for j := first; j < first+flow.Ways; j++ {
				if s.later.At(j).Val.until < s.later.At(i).Val.until {
					i = j
				}
			}
		}
		s.later.Replace(i, k, hash)
	}
	s.later.At(i).Val = x
}
