package sherman

import (
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Op is an operation on the tree: the value of a key is asked for, or set.
type Op struct {
	Key   uint64 // 1 to 2^64-2
	Write bool
	Value uint64 // not 0
}

// Result is what became of an operation; valid until the callback returns.
type Result struct {
	Session int
	Op
	Found      bool // a search: the key is there, with Value
	Err        error
	Start, End clock.Time
	// RoundTrips is how many requests the operation waited for, one after the
	// other.
	RoundTrips int
	// Retries is how often a lock was held by another client, or a page torn.
	Retries int
}

// Errors of operations.
var (
	// ErrKey: the key or the value is none.
	ErrKey = errors.New("sherman: keys are 1 to 2^64-2, values are not 0")
	// ErrFull: the client's chunk is used up.
	ErrFull = errors.New("sherman: no memory for another page: give the client a larger chunk")
	// ErrTorn: a page stays torn, as the client that was writing it has died.
	ErrTorn = errors.New("sherman: a page is torn however often it is read")
)

// Chunk is memory for pages of one client.
type Chunk struct {
	At    Addr
	Pages int
}

// Config describes a client.
type Config struct {
	Layout
	// Client is the client's number: part of the tags of its locks.
	Client   int
	Sessions int
	Chunk    Chunk
	// CQ is where the completions of all the client's queue pairs arrive.
	CQ *rnic.CQ
	// Dial connects a session to a node anew; its queue pair before that, if any,
	// is gone for both sides when Dial returns. An error: try again later.
	Dial func(now clock.Time, session, node int) (*rnic.QP, Grant, error)
	// Next is a session's next operation; false: none now. A session that has
	// nothing to do asks in every Step.
	Next func(now clock.Time, session int) (Op, bool)
	// Done is told every operation's end; nil: nobody is.
	Done func(*Result)
	// WordLog, if not nil, records what is done to the words of the lock table;
	// LockAddr are its addresses.
	WordLog *history.Log[history.Word, uint64]
}

// LockAddr is how a lock word is called in the history.
func LockAddr(node, index int) uint64 { return uint64(node)<<32 | uint64(index)*8 }

// Stats are a client's totals.
type Stats struct {
	Searches, Writes, Errors uint64
	RoundTrips               uint64
	LockFailed               uint64 // CASes that found the lock held
	HandedOver               uint64 // locks that went to another session of the client
	Splits, NewRoots         uint64
	Torn                     uint64 // pages and entries that were read again
	Siblings                 uint64 // steps to the right
	Broken                   uint64 // queue pairs that failed
}

// Client is the client library on one compute node. Its sessions share the cache
// of internal pages and hand locks over to each other. It implements host.App.
type Client struct {
	cfg       Config
	sessions  []*session
	locks     map[lockKey]*localLock
	cache     map[Addr]page
	root      Addr // 0: not known
	rootLevel int
	used      int // pages of the chunk
	stats     Stats
	wcs       [64]rnic.WC
}

const (
	redialAfter = 100 * time.Microsecond
	// maxTorn is how often a torn page is read again; a writer needs some round
	// trips.
	maxTorn = 10_000
)

// NewClient makes a client; it asks Next for work in its first Step.
func NewClient(c Config) (*Client, error) {
	if c.RootAt == 0 {
		c.RootAt = RootAt
	}
	if c.CQ == nil || c.Dial == nil || c.Next == nil || c.Sessions < 1 || c.Sessions > 1<<16 || c.Nodes < 1 || c.Client < 0 {
		return nil, fmt.Errorf("sherman: client %d of %d sessions and %d nodes needs these, a completion queue, a way to dial, and work", c.Client, c.Sessions, c.Nodes)
	}
	x := &Client{cfg: c, locks: map[lockKey]*localLock{}, cache: map[Addr]page{}}
	for i := range c.Sessions {
		s := &session{c: x, index: i, tag: uint64(c.Client)<<32 + uint64(i) + 1, links: make([]link, c.Nodes),
			img: make(page, PageSize), right: make(page, PageSize)}
		x.sessions = append(x.sessions, s)
	}
	return x, nil
}

// Stats are the totals so far.
func (c *Client) Stats() Stats { return c.stats }

// Idle reports whether no operation is under way.
func (c *Client) Idle() bool {
	for _, s := range c.sessions {
		if s.step != stepIdle {
			return false
		}
	}
	return true
}

// Step implements host.App.
func (c *Client) Step(now clock.Time) bool {
	did := false
	for {
		n := c.cfg.CQ.Poll(c.wcs[:])
		for i := range c.wcs[:n] {
			c.complete(now, &c.wcs[i])
		}
		if n == 0 {
			break
		}
		did = true
	}
	for _, s := range c.sessions {
		if s.down && now >= s.dialAt {
			s.fire(now)
			did = true
		}
		for s.step == stepIdle {
			op, ok := c.cfg.Next(now, s.index)
			if !ok {
				break
			}
			did = true
			s.begin(now, op)
		}
	}
	return did
}

// Deadline implements host.App.
func (c *Client) Deadline() clock.Time {
	at := clock.Never
	for _, s := range c.sessions {
		if s.down {
			at = min(at, s.dialAt)
		}
	}
	return at
}

// alloc takes a page of the client's chunk; 0: there is none left.
func (c *Client) alloc() Addr {
	if c.used == c.cfg.Chunk.Pages {
		return 0
	}
	a := c.cfg.Chunk.At
	a = AddrOf(a.Node(), a.Off()+uint64(c.used)*PageSize)
	c.used++
	return a
}

// keep puts an internal page into the cache.
func (c *Client) keep(a Addr, p page) {
	old, ok := c.cache[a]
	if !ok {
		old = make(page, PageSize)
		c.cache[a] = old
	}
	copy(old, p)
}

// complete takes a completion. Only the last request of a post asks for one, so
// that it speaks for the session's step; but every request that fails has one.
func (c *Client) complete(now clock.Time, w *rnic.WC) {
	s := c.sessions[w.ID&0xFFFF]
	node := int(w.ID >> 16 & 0xFFFF)
	l := &s.links[node]
	if uint32(w.ID>>32) != l.dials || l.qp == nil {
		return // of a queue pair before
	}
	if w.Status != rnic.Success {
		c.stats.Broken++
		l.qp = nil
		if s.step != stepIdle && s.step != stepWait && node == s.node {
			s.lost = true
			s.fire(now)
		}
		return
	}
	c.stats.RoundTrips++
	s.res.RoundTrips++
	if s.logged {
		s.logged = false
		c.cfg.WordLog.Return(s.log, now, le.Uint64(s.word[:]))
	}
	s.done(now)
}
