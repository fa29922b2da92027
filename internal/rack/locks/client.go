package locks

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Work is what sessions do.
type Work uint8

const (
	Spin Work = iota
	Table
	Count
	CASCount
	Open
	numWorks
)

func (w Work) String() string {
	return [...]string{"spin", "table", "count", "cas-count", "open"}[w]
}

// Works returns all of them.
func Works() []Work { return []Work{Spin, Table, Count, CASCount, Open} }

// Config describes a client.
type Config struct {
	Layout
	Work Work
	// First is the number of the client's first session among those of all clients, Own the number of its
	// sessions. Each has a queue pair.
	First, Own int
	// Ops is the number of operations of a session (locks taken, counts made, requests posted).
	Ops int
	// Outstanding is the number of requests that a session of Open or Count has in flight; 0 = 8.
	Outstanding int
	// MTU scales the requests of Open that take several packets, in bytes; 0 = 1024.
	MTU int
	// ReleaseByCAS releases a spin lock by CAS owner -> 0 instead of WRITE 0.
	ReleaseByCAS bool
	// Tries is how often a session tries a lock that is held before it gives up this operation; 0 = 200.
	Tries int
	Seed  uint64
	// CQ receives the completions of all queue pairs of the client.
	CQ *rnic.CQ
	// Dial connects the session with this number (among all clients') again and says where the memory is.
	// When Dial returns, the session's earlier queue pair, if any, must be gone on both sides. After an error
	// the client tries again later.
	Dial func(now clock.Time, session int) (*rnic.QP, Grant, error)
	// Broke, if not nil, is called for each queue pair that failed, with its session and the status.
	Broke func(now clock.Time, session int, s rnic.Status)
	// Life differs between this client and those that had its sessions' numbers before and died; it counts
	// from 0.
	Life int
	// Dead reports whether a session of a life will never do anything again, and none of its requests is
	// under way: then its lock may be taken from it. Nil: no session dies.
	Dead func(session, life int) bool
	// More, if not nil, is called before each operation, in addition to the limit Ops; false: not now. A
	// session that has nothing to do calls it in every Step.
	More func(now clock.Time, session int) bool
	// Finished, if not nil, is called at the end of each operation; failed is how often the operation had to
	// try again.
	Finished func(now clock.Time, session int, start clock.Time, failed int)
	// WordLog and LockLog record the histories.
	WordLog *history.Log[history.Word, uint64]
	LockLog *history.Log[history.Lock, struct{}]
}

// Stats are the totals of a client.
type Stats struct {
	Done     uint64 // operations
	Requests uint64 // requests that were posted
	Failed   uint64 // CASes that found another value
	GaveUp   uint64 // operations given up because other sessions held the lock
	Stolen   uint64 // locks taken from dead sessions
	Broken   uint64 // queue pairs that failed
	Stuck    uint64 // sessions that ended because they cannot know which locks they hold
}

// Client does the work of its sessions. It implements host.App.
type Client struct {
	cfg      Config
	sessions []*session
	stats    Stats
	err      error
	now      clock.Time // time of the Step that is under way
	wcs      [64]rnic.WC
}

// redialAfter is the time after which a session that has no queue pair dials again.
const redialAfter = 100 * time.Microsecond

// New makes a client; its sessions dial in the first Step.
func New(c Config) (*Client, error) {
	c.Outstanding = cmp.Or(c.Outstanding, 8)
	c.MTU = cmp.Or(c.MTU, 1024)
	c.Tries = cmp.Or(c.Tries, 200)
	if c.Dead == nil {
		c.Dead = func(int, int) bool { return false }
	}
	switch {
	case c.CQ == nil || c.Dial == nil || c.WordLog == nil || c.LockLog == nil:
		return nil, errors.New("locks: a client needs a completion queue, a way to dial, and two histories")
	case c.Own < 1 || c.First < 0 || c.First+c.Own > c.Sessions:
		return nil, fmt.Errorf("locks: sessions %d to %d are not among %d", c.First, c.First+c.Own-1, c.Sessions)
	case c.Ops < 0 || c.Outstanding < 1 || c.Work >= numWorks:
		return nil, fmt.Errorf("locks: %d operations, %d outstanding, work %d: not possible", c.Ops, c.Outstanding, c.Work)
	}
	x := &Client{cfg: c}
	for i := range c.Own {
		s := &session{c: x, index: i, number: c.First + i, left: c.Ops,
			rng: rand.New(rand.NewPCG(c.Seed, uint64(c.Life)<<32|uint64(c.First+i)))}
		switch c.Work {
		case Spin:
			s.work = &spin{}
		case Table:
			s.work = &table{}
		case Count:
			s.work = &count{}
		case CASCount:
			s.work = &casCount{}
		case Open:
			s.work = newOpen(s)
		}
		x.sessions = append(x.sessions, s)
	}
	return x, nil
}

// Done reports whether all sessions have ended.
func (c *Client) Done() bool {
	return !slices.ContainsFunc(c.sessions, func(s *session) bool { return !s.ended })
}

// Quiet reports whether no operation is under way: each session has ended, or More has stopped it.
func (c *Client) Quiet() bool {
	return !slices.ContainsFunc(c.sessions, func(s *session) bool { return !s.ended && (!s.paused || len(s.reqs) > 0) })
}

// Stop lets all sessions end after the operations that they have begun.
func (c *Client) Stop() {
	for _, s := range c.sessions {
		s.left = 0
	}
}

// Err returns the first error: something that must not happen.
func (c *Client) Err() error { return c.err }

// Stats returns the totals so far.
func (c *Client) Stats() Stats { return c.stats }

// Step implements host.App.
func (c *Client) Step(now clock.Time) bool {
	did := false
	c.now = now
	for _, s := range c.sessions {
		switch {
		case s.ended:
		case s.qp == nil && now >= s.dialAt:
			s.dial(now)
			did = true
		case s.qp != nil && s.paused && len(s.reqs) == 0:
			s.paused = false
			s.work.start(s, now, false)
			did = did || len(s.reqs) > 0
		}
	}
	for {
		n := c.cfg.CQ.Poll(c.wcs[:])
		for i := range c.wcs[:n] {
			w := &c.wcs[i]
			s := c.sessions[w.ID&0xFFFF]
			if uint32(w.ID>>32) == s.dials && s.qp != nil {
				s.complete(now, w)
			}
		}
		if n == 0 {
			return did
		}
		did = true
	}
}

// Deadline implements host.App.
func (c *Client) Deadline() clock.Time {
	at := clock.Never
	for _, s := range c.sessions {
		if !s.ended && s.qp == nil {
			at = min(at, s.dialAt)
		}
	}
	return at
}

// worker is the work of a session, with an implementation for each Work.
type worker interface {
	// start begins, or continues from where the session stands: at first, when More allows operations again,
	// and with another queue pair after the last one broke (again). The outcome of what was under way then is
	// unknown.
	start(s *session, now clock.Time, again bool)
	// done is called at the end of the oldest request.
	done(s *session, now clock.Time, r *request)
}

// request is a request that was posted on the queue pair. Requests complete in order.
type request struct {
	step  int // defined by the worker
	word  history.Word
	ids   int // number of its first operation in the history
	words int // number of its operations in the history
	buf   []byte
	small bool // buf is from eight
	at    clock.Time
	value uint64 // the answer of a READ of one word, or of an atomic
}

// session is one queue pair and the work on it.
type session struct {
	c      *Client
	index  int // in the client
	number int // among all clients' sessions
	qp     *rnic.QP
	grant  Grant
	dials  uint32
	conn   int // the connection's number in the history
	dialAt clock.Time
	work   worker
	rng    *rand.Rand
	left   int // operations to begin
	seq    uint64
	ended  bool
	paused bool       // More returned false
	begun  clock.Time // when the newest operation began
	failed int        // how often that operation had to try again
	reqs   []request  // outstanding, oldest first
	spare  [][]byte   // 8-byte buffers
}

// owner returns a word with which a session marks what it holds or writes. No other session uses it, and it
// differs from call to call.
func (s *session) owner() uint64 {
	s.seq++
	return uint64(s.number+1)<<40 | uint64(s.c.cfg.Life)<<32 | s.seq
}

// OwnerOf returns the session and the life whose mark an owner is.
func OwnerOf(owner uint64) (session, life int) { return int(owner>>40) - 1, int(owner >> 32 & 0xFF) }

func (s *session) dial(now clock.Time) {
	qp, g, err := s.c.cfg.Dial(now, s.number)
	if err != nil {
		s.dialAt = now.Add(redialAfter)
		return
	}
	s.qp, s.grant = qp, g
	s.dials++
	s.paused = false
	s.conn = s.c.cfg.WordLog.NewClient()
	s.work.start(s, now, s.dials > 1)
}

// begin begins one of the operations that are left; false: there is none now. If none is left, the session
// ends when no request is outstanding.
func (s *session) begin() bool {
	if s.left == 0 {
		s.ended = len(s.reqs) == 0
		return false
	}
	if f := s.c.cfg.More; f != nil && !f(s.c.now, s.number) {
		s.paused = true
		return false
	}
	s.left--
	s.begun, s.failed = s.c.now, 0
	return true
}

// finish counts an operation that began at start.
func (s *session) finish(start clock.Time) {
	s.c.stats.Done++
	if f := s.c.cfg.Finished; f != nil {
		f(s.c.now, s.number, start, s.failed)
	}
}

// again notes that the operation must try again.
func (s *session) again() {
	s.c.stats.Failed++
	s.failed++
}

func (s *session) wrong(format string, args ...any) {
	if s.c.err == nil {
		s.c.err = fmt.Errorf("locks: session %d: %s", s.number, fmt.Sprintf(format, args...))
	}
}

func (s *session) eight() []byte {
	if n := len(s.spare); n > 0 {
		b := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return b
	}
	return make([]byte, 8)
}

// post sends a request; buf is what the request reads into or writes.
func (s *session) post(step int, r request, op rnic.Op, to Region, off uint64, buf []byte) {
	r.step, r.buf, r.at = step, buf, s.c.now
	s.reqs = append(s.reqs, r)
	s.c.stats.Requests++
	err := s.qp.PostSend(&rnic.SendWR{
		ID: uint64(s.dials)<<32 | uint64(s.index), Op: op, SGL: [][]byte{buf}, RemoteAddr: to.VA + off, RKey: to.RKey,
		Compare: r.word.Compare, Swap: r.word.Swap, CompareMask: r.word.CompareMask, SwapMask: r.word.SwapMask, Signaled: true,
	})
	if err != nil {
		s.wrong("post: %v", err)
	}
}

// ask posts an operation on one shared word and records it.
func (s *session) ask(now clock.Time, step int, w history.Word) {
	buf := s.eight()
	if w.Op == rnic.OpWrite {
		binary.LittleEndian.PutUint64(buf, w.Swap)
	}
	id := s.c.cfg.WordLog.Call(s.conn, now, w)
	s.post(step, request{word: w, ids: id, words: 1, small: true}, w.Op, s.grant.Words, w.Addr-wordsVA, buf)
}

// complete handles a completion.
func (s *session) complete(now clock.Time, w *rnic.WC) {
	if w.Status != rnic.Success {
		// Operations under way stay open in the history, with an unknown end.
		s.c.stats.Broken++
		if f := s.c.cfg.Broke; f != nil {
			f(now, s.number, w.Status)
		}
		s.qp, s.reqs = nil, s.reqs[:0]
		s.dialAt = now
		return
	}
	r := s.reqs[0]
	copy(s.reqs, s.reqs[1:])
	s.reqs = s.reqs[:len(s.reqs)-1]
	for i := range r.words {
		r.value = binary.LittleEndian.Uint64(r.buf[8*i:])
		s.c.cfg.WordLog.Return(r.ids+i, now, r.value)
	}
	if r.small {
		s.spare = append(s.spare, r.buf)
	}
	s.work.done(s, now, &r)
}
