package firewall

import (
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/turn"
)

// State of a connection.
const (
	tcpSyn    = iota + 1 // half-open: a SYN was seen
	tcpSynAck            // half-open: and its answer
	oneWay               // not TCP: nobody has answered
	firm                 // from here on a connection keeps its place until its time is over
	bothWays  = iota     // not TCP: answered
	tcpOpen
	tcpClosing  // an end, or both, has sent its FIN
	tcpTimeWait // both ends have, and both are acknowledged
	tcpReset
	numStates
)

var stateNames = [numStates]string{
	tcpSyn: "syn", tcpSynAck: "syn-ack", oneWay: "one-way", bothWays: "both-ways", tcpOpen: "open",
	tcpClosing: "closing", tcpTimeWait: "time-wait", tcpReset: "reset",
}

// conn is a connection. In its key Src is the address on port a's side, and Tag
// its VLANs; for the ports of an ICMP query see query.
type conn struct {
	until  clock.Time // it is forgotten then
	gen    uint16     // of the rules that let it be
	state  uint8
	opener uint8 // the port that its first packet came from
	flags  uint8
	flows  offload.Flows // in the kernel
	side   [2]side       // of TCP, by port
}

// Flags of a connection.
const (
	// Its windows are not known: its beginning was not seen, or it has segments in
	// fragments, whose length the first one does not say.
	unchecked = 1 << iota
	movedA    // it was loaded, and nothing has passed from port a since
	movedB
)

func (c *conn) tentative() bool { return c.state < firm }

// shard has the connections whose hashes fall to it.
type shard struct {
	_       [64]byte // nothing that frames read is on the line of the turn, which both workers write
	turn    turn.Turn
	conns   flow.Table[flow.Key, conn]
	frags   flow.Table[flow.Key, clock.Time] // datagrams whose first fragment passed, and until when
	openers *flow.Counts                     // connections of those who opened them, of all shards
	sources *flow.Counts                     // of these the tentative ones
	tents   int                              // tentative ones

	ahead *offload.Table // of the connections that have flows
	owner *app           // some worker's, whose settings those of all are
}

// state is what the instances of all workers share.
type state struct {
	shards []shard
	start  flow.Start
	last   atomic.Pointer[policy]
}

// maxShards is how many workers have a share of their own.
const maxShards = 32

func newState(conns, workers int) *state {
	n := 1
	for n < workers && n < maxShards {
		n *= 2
	}
	st := &state{shards: make([]shard, n)}
	openers, sources := new(flow.Counts), new(flow.Counts)
	for i := range st.shards {
		st.shards[i].openers, st.shards[i].sources = openers, sources
		st.shards[i].conns = flow.New[flow.Key, conn]((conns + n - 1) / n)
		st.shards[i].frags = flow.New[flow.Key, clock.Time](max(64, conns/64/n))
	}
	return st
}

// take is the shard of a hash, whose turn it is then.
func (st *state) take(hash uint64) *shard {
	if len(st.shards) == 1 {
		return &st.shards[0]
	}
	s := &st.shards[hash&uint64(len(st.shards)-1)]
	s.turn.Take()
	return s
}

func (st *state) give(s *shard) {
	if len(st.shards) > 1 {
		s.turn.Give()
	}
}

// source is the hash of who opened a connection: an IPv4 address, or 64 bits of an
// IPv6 one, which is what a host may choose its addresses from.
func source(k *flow.Key, opener uint8, seed uint64) uint64 {
	a := &k.Src
	if opener == 1 {
		a = &k.Dst
	}
	return hdr.Fold(hdr.Fold(seed, be.Uint64(a[:8])), uint64(k.Family))
}

// release forgets the connection in place i.
func (s *shard) release(i int, seed uint64) {
	p := s.conns.At(i)
	if p.Val.flows.Any() {
		s.ahead.Withdraw(&p.Val.flows)
	}
	from := source(&p.Key, p.Val.opener, seed)
	s.openers.Sub(from)
	if p.Val.tentative() {
		s.tents--
		s.sources.Sub(from)
	}
	s.conns.Del(i)
}

// settle counts a connection that is tentative no longer.
func (s *shard) settle(k *flow.Key, c *conn, seed uint64) {
	s.tents--
	s.sources.Sub(source(k, c.opener, seed))
}

// open gives a new connection, which is tentative, a place.
func (s *shard) open(k *flow.Key, hash uint64, opener uint8, now clock.Time, set *settings, seed uint64, share int) (*conn, bool, verdict) {
	from := source(k, opener, seed)
	if s.sources.Of(from) >= set.halfPerSource {
		return nil, false, verdict{false, reasonHalfSource}
	}
	if set.perSource > 0 && s.openers.Of(from) >= set.perSource {
		return nil, false, verdict{false, reasonSource}
	}
	i, evicted, most := -1, false, s.tents >= max(1, set.half/share)
	if !most {
		i = s.conns.Add(k, hash)
	}
	if i < 0 {
		if i = s.victim(hash, now, most); i < 0 {
			if !most {
				return nil, false, verdict{false, reasonFull}
			}
			return nil, false, verdict{false, reasonHalf}
		}
		evicted = s.conns.At(i).Val.until >= now
		s.release(i, seed)
		i = s.conns.Add(k, hash)
	}
	s.tents++
	s.sources.Add(from)
	s.openers.Add(from)
	c := &s.conns.At(i).Val
	c.opener = opener
	return c, evicted, verdict{true, reasonNew}
}

// victim is a place for that hash that may be another's: one whose time is over,
// or else that of the tentative one whose time is over first. Others stay; with
// tentative, all but those. It is negative when there is none.
func (s *shard) victim(hash uint64, now clock.Time, tentative bool) int {
	a, b := s.conns.Sets(hash)
	best := -1
	for _, first := range [2]int{a, b} {
		for i := s.conns.NextBefore(first, first+flow.Ways); i >= 0; i = s.conns.NextBefore(i+1, first+flow.Ways) {
			c := &s.conns.At(i).Val
			if tentative && !c.tentative() {
				continue
			}
			if s.over(i, now) {
				return i
			}
			if c.tentative() && (best < 0 || c.until < s.conns.At(best).Val.until) {
				best = i
			}
		}
	}
	return best
}

// sweep forgets what is over among n places.
func (s *shard) sweep(n int, now clock.Time, seed uint64) (gone int) {
	from, to := s.conns.Sweep(n)
	for i := s.conns.NextBefore(from, to); i >= 0; i = s.conns.NextBefore(i+1, to) {
		if s.over(i, now) {
			s.release(i, seed)
			gone++
		}
	}
	return gone
}

// fragTime is how long fragments of a datagram are waited for (RFC 8200 4.5 gives
// them a minute in their receiver).
const fragTime = 30e9

// fragment notes that the first fragment of a datagram passed.
func (s *shard) fragment(k *flow.Key, hash uint64, now clock.Time) {
	i := s.frags.Find(k, hash)
	if i < 0 {
		i = s.frags.Add(k, hash)
	}
	if i < 0 { // full: the one that is over first gives way
		a, b := s.frags.Sets(hash)
		i = a
		for _, first := range [2]int{a, b} {
			for j := first; j < first+flow.Ways; j++ {
				if s.frags.At(j).Val < s.frags.At(i).Val {
					i = j
				}
			}
		}
		s.frags.Replace(i, k, hash)
	}
	s.frags.At(i).Val = now.Add(fragTime)
}
