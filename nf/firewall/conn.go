package firewall

import (
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/turn"
)

// States of a connection.
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

// conn is a connection. In its key, Src is the address on port a's side, and Tag has the VLANs; app.query says
// what the key of an ICMP query has in the place of ports.
type conn struct {
	until  clock.Time // it is forgotten then
	gen    uint16     // of the rules that let it be
	state  uint8
	opener uint8 // the port that its first packet came from
	flags  uint8
	// With the flag again, the opener's last SYN: its window, and what parseSegment found of its scale.
	scale uint8
	win   uint16
	flows offload.Flows // in the kernel
	side  [2]side       // of TCP, by port
	syn   uint32        // the number behind that SYN
}

// Flags of a connection.
const (
	// unchecked: the windows are not known, because the beginning of the connection was not seen, or because it
	// has segments in fragments, whose length the first fragment does not say.
	unchecked = 1 << iota
	movedA    // it was loaded, and nothing has passed from port a since
	movedB
	// again: the opener has sent a SYN after the handshake began, and no segment of the connection has passed since.
	again
)

// noScale is conn.scale of a SYN without the option.
const noScale = 0xFF

func (c *conn) tentative() bool { return c.state < firm }

// shard has the connections whose hashes select it. A worker must have its turn (state.take).
type shard struct {
	_       [64]byte // nothing that frames read is on the line of the turn, which both workers write
	turn    turn.Turn
	conns   flow.Table[flow.Key, conn]
	frags   flow.Fragments[struct{}]
	openers *flow.Counts // connections of those who opened them, of all shards
	sources *flow.Counts // of these the tentative ones
	tents   int          // tentative ones

	ahead *offload.Table // of the connections that have flows
	owner *app           // some worker's, whose settings those of all are
}

// state is what the instances of all workers share.
type state struct {
	shards []shard
	start  flow.Start
	last   atomic.Pointer[policy]
}

// maxShards is the largest number of shards: one for each worker, rounded up to a power of two.
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
		st.shards[i].frags = flow.NewFragments[struct{}](max(64, conns/64/n))
	}
	return st
}

// take returns the shard of a hash, and waits for the turn at it. give ends the turn.
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

// source returns the hash of the address that opened a connection: an IPv4 address, or the upper 64 bits of an
// IPv6 address, because a host may choose the lower bits.
func source(k *flow.Key, opener uint8, seed uint64) uint64 {
	a := &k.Src
	if opener == 1 {
		a = &k.Dst
	}
	return hdr.Fold(hdr.Fold(seed, be.Uint64(a[:8])), uint64(k.Family))
}

// release forgets the connection in place i, and ends its entries in the kernel.
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

// restore takes back the release of a connection c that is not tentative. Nothing was added since.
func (s *shard) restore(k *flow.Key, hash uint64, c conn, seed uint64) {
	if i := s.conns.Add(k, hash); i >= 0 {
		c.flows = offload.Flows{}
		s.conns.At(i).Val = c
		s.openers.Add(source(k, c.opener, seed))
	}
}

// settle removes a connection from the counts of tentative ones, because it has become open.
func (s *shard) settle(k *flow.Key, c *conn, seed uint64) {
	s.tents--
	s.sources.Sub(source(k, c.opener, seed))
}

// open adds a new connection, which is tentative, and reports whether a living one was evicted for it. It returns
// nil and the reason if a limit is reached or no place is free. share is the number of shards.
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

// victim returns a place for that hash that may be taken from its connection: one whose time is over, or else
// that of the tentative connection whose time is over first. With tentative, only tentative connections may lose
// their place. victim returns a negative number if there is no such place.
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

// sweep looks at the next n places, and forgets the connections whose time is over.
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
