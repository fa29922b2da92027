package onesided

import (
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// RedialAfter is the time after which a session that could not connect tries again.
const RedialAfter = 100 * time.Microsecond

// Cost is the cost of an operation.
type Cost struct {
	// RoundTrips is the number of posts for which the operation waited, one after the other. Messages is the number of
	// requests, and Bytes the length of their frames and of the answers' frames, one frame per message.
	RoundTrips, Messages, Bytes int
}

// Session has the connections of a client's thread, one queue pair to each memory node, and one post that is being
// made or under way. Stores embed it in their sessions.
type Session struct {
	Index int // in the client
	// QPs are the queue pairs by node; nil means not connected.
	QPs []*rnic.QP
	// WakeAt is the time at which the Loop calls Wake; clock.Never means that it does not.
	WakeAt clock.Time
	// Busy says that an operation is under way.
	Busy bool
	Cost // of the operation under way
	// WRs are the requests of the post, with their nodes.
	WRs   []rnic.SendWR
	Nodes []int
	bufs  [][]byte
	// Words are buffers for the answers of atomics and of READs of words.
	Words [][8]byte
	Arena
	// Put posts a request instead of queue pairs, in tests.
	Put func(node int, w *rnic.SendWR)

	posts   uint32 // number of the post that is under way
	ended   bool   // it has succeeded, and Done is not called yet (Fibers)
	pending int    // nodes that have not completed it
}

// NewSession makes a session with connections to this number of nodes, and with this number of Words for its posts.
func NewSession(index, nodes, words int) Session {
	return Session{Index: index, QPs: make([]*rnic.QP, nodes), WakeAt: clock.Never, Words: make([][8]byte, words)}
}

func (s *Session) base() *Session { return s }

// Pending reports whether a post is under way.
func (s *Session) Pending() bool { return s.pending > 0 }

// Begin begins a new post, without requests.
func (s *Session) Begin() { s.WRs, s.Nodes, s.bufs = s.WRs[:0], s.Nodes[:0], s.bufs[:0] }

// Ask adds a READ or a WRITE to the post, at an offset in a region, and returns it.
func (s *Session) Ask(op rnic.Op, node int, r Region, at int, buf []byte) *rnic.SendWR {
	s.WRs = append(s.WRs, rnic.SendWR{Op: op, RemoteAddr: r.VA + uint64(at), RKey: r.RKey})
	s.Nodes, s.bufs = append(s.Nodes, node), append(s.bufs, buf)
	return &s.WRs[len(s.WRs)-1]
}

// AskSwap adds a CAS from from to to; into receives the word's old value.
func (s *Session) AskSwap(node int, r Region, at int, from, to uint64, into []byte) {
	w := s.Ask(rnic.OpCompareSwap, node, r, at, into)
	w.Compare, w.Swap = from, to
}

// AskMasked adds a CAS that compares and swaps only the bits of mask.
func (s *Session) AskMasked(node int, r Region, at int, from, to, mask uint64, into []byte) {
	w := s.Ask(rnic.OpMaskedCompareSwap, node, r, at, into)
	w.Compare, w.Swap, w.CompareMask, w.SwapMask = from, to, mask, mask
}

// Post sends the requests of the post. The Loop calls Done when the last request to each node has succeeded.
// Post calls may before each request; if may returns false, Post sends neither this request nor later ones
// and returns ok = false. If it returns an error, the queue pair to node has failed.
func (s *Session) Post(may func(i int, w *rnic.SendWR) bool) (node int, ok bool, err error) {
	s.posts++
	s.pending, s.ended = 0, false
	for i := range s.WRs {
		w, n := &s.WRs[i], s.Nodes[i]
		if !may(i, w) {
			return n, false, nil
		}
		w.ID, w.SGL, w.Signaled = uint64(s.posts)<<16|uint64(s.Index), s.bufs[i:i+1], s.last(i)
		if w.Signaled {
			s.pending++
		}
		if err := s.put(n, w); err != nil {
			return n, false, err
		}
	}
	return 0, true, nil
}

// last reports whether the i-th request is the last one to its node.
func (s *Session) last(i int) bool { return !slices.Contains(s.Nodes[i+1:], s.Nodes[i]) }

// Aside sends a request that belongs to no post, so that nothing waits for its completion.
func (s *Session) Aside(node int, w *rnic.SendWR) error {
	w.ID, w.Signaled = uint64(s.Index), true // of post 0
	return s.put(node, w)
}

func (s *Session) put(node int, w *rnic.SendWR) error {
	s.count(w)
	if s.Put != nil {
		s.Put(node, w)
		return nil
	}
	err := s.QPs[node].PostSend(w)
	if err != nil {
		s.QPs[node].Fail()
	}
	return err
}

// count adds a request to the cost. Bytes counts frames with their Ethernet header and without FCS.
func (s *Session) count(w *rnic.SendWR) {
	const read, readResponse, write, ack, cas, masked, atomicAck = 74, 62, 74, 62, 86, 102, 70
	s.Messages++
	switch w.Op {
	case rnic.OpRead:
		s.Bytes += read + readResponse + len(w.SGL[0])
	case rnic.OpWrite:
		s.Bytes += write + ack + len(w.SGL[0])
	case rnic.OpMaskedCompareSwap:
		s.Bytes += masked + atomicAck
	default:
		s.Bytes += cas + atomicAck
	}
}

// Completed notes that a node has completed the post of this number, and reports whether the post under way has
// succeeded by this.
func (s *Session) Completed(post uint32) bool {
	if post != s.posts || s.pending == 0 {
		return false // of an earlier post
	}
	s.pending--
	return s.pending == 0
}

// Drop makes the session ignore the post under way: Done is not called for it.
func (s *Session) Drop() {
	s.posts++
	s.pending, s.ended = 0, false
}

// Fresh gives the session new buffers, because requests under way may still use the old ones.
func (s *Session) Fresh() {
	s.Arena, s.WRs, s.bufs = Arena{}, nil, nil
	s.Words = make([][8]byte, len(s.Words))
}

// Arena allocates memory for the READs and WRITEs of one post.
type Arena struct {
	b    []byte
	used int
}

// Reset frees all memory of the Arena.
func (a *Arena) Reset() { a.used = 0 }

// Take returns n bytes, which are not cleared.
func (a *Arena) Take(n int) []byte {
	if a.used+n > len(a.b) {
		a.b = make([]byte, max(2*len(a.b), n, 4096))
		a.used = 0
	}
	p := a.b[a.used : a.used+n : a.used+n]
	a.used += n
	return p
}

// Thread is a session of a store, as the Loop drives it.
type Thread interface {
	base() *Session
	// Next begins an operation, or returns false if there is none at present.
	Next(now clock.Time) bool
	// Wake continues the operation when the time WakeAt has come.
	Wake(now clock.Time)
	// Done continues the operation when the post has succeeded, Lost when the queue pair to node has failed.
	Done(now clock.Time)
	Lost(now clock.Time, node int)
}

// Loop runs the sessions of a client. It implements host.App; stores embed it in their clients.
type Loop[T Thread] struct {
	Sessions []T
	// CQ receives the completions of all queue pairs.
	CQ     *rnic.CQ
	Totals *Totals
	// Fibers, if not nil, are how the sessions share a thread. Otherwise each runs as if it had one of its own.
	Fibers *Fibers
	fibers fibers
	wcs    [64]rnic.WC
}

// Idle reports whether no operation is under way.
func (l *Loop[T]) Idle() bool {
	return !slices.ContainsFunc(l.Sessions, func(s T) bool { return s.base().Busy })
}

// Step implements host.App.
func (l *Loop[T]) Step(now clock.Time) bool {
	did := false
	for {
		n := l.CQ.Poll(l.wcs[:])
		for i := range l.wcs[:n] {
			l.complete(now, &l.wcs[i])
		}
		if n == 0 {
			break
		}
		did = true
	}
	for _, s := range l.Sessions {
		if b := s.base(); b.WakeAt != clock.Never && now >= b.WakeAt {
			b.WakeAt = clock.Never
			did = true
			s.Wake(now)
		}
		for l.Fibers == nil && !s.base().Busy && s.Next(now) {
			did = true
		}
	}
	return l.Fibers != nil && l.run(now) || did
}

// Deadline implements host.App.
func (l *Loop[T]) Deadline() clock.Time {
	at := clock.Never
	for _, s := range l.Sessions {
		at = min(at, s.base().WakeAt)
	}
	if l.Fibers != nil {
		at = min(at, l.fibers.until)
	}
	return at
}

// complete handles a completion. The last request of a post to each node is signaled, and every request that fails
// completes, too.
func (l *Loop[T]) complete(now clock.Time, w *rnic.WC) {
	t := l.Sessions[w.ID&0xFFFF]
	s := t.base()
	if w.Status != rnic.Success {
		for node, q := range s.QPs {
			if q != nil && q.QPN == w.QPN {
				l.Broke(t, node)
				t.Lost(now, node)
			}
		}
		return
	}
	if s.Completed(uint32(w.ID >> 16)) {
		l.Totals.RoundTrips++
		s.RoundTrips++
		if l.Fibers != nil {
			s.ended = true
			return
		}
		t.Done(now)
	}
}

// Broke counts and removes the queue pair of t to node, which has failed.
func (l *Loop[T]) Broke(t T, node int) {
	l.Totals.Broken++
	t.base().QPs[node] = nil
}
