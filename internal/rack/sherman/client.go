package sherman

import (
	"errors"
	"fmt"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Kind is what an operation does.
type Kind uint8

// Kinds of operations.
const (
	Search Kind = iota // the value of a key is asked for
	Write              // and set, whether the key is there or not
	Delete             // the key is taken away
	Range              // all keys from Key to To are asked for, with their values
)

// Op is an operation on the tree.
type Op struct {
	Kind
	Key   uint64 // 1 to 2^64-2
	Value uint64 // of a Write; not 0
	To    uint64 // of a Range: its last key
}

// Writes reports whether the operation may change the tree.
func (o *Op) Writes() bool { return o.Kind == Write || o.Kind == Delete }

// Pair is a key with its value.
type Pair struct{ Key, Value uint64 }

// Result is what became of an operation; valid until the callback returns.
type Result struct {
	Session int
	Op
	Found bool // the key is there, of a Search with Value, or was there until its Delete
	// Pairs are what a Range found, by key. Each key is as it was at one moment of the operation, but not all
	// at the same moment.
	Pairs      []Pair
	Err        error
	Start, End clock.Time
	onesided.Cost
	// Retries is how often a lock was held by another client, or a page torn.
	Retries int
}

// Errors of operations.
var (
	// ErrKey: the key or the value is none, or the range.
	ErrKey = errors.New("sherman: keys are 1 to 2^64-2, values are not 0, and ranges do not end before they begin")
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
	// Flat: sessions take locks each for itself, as if they were clients of one session, and
	// hand none over.
	Flat bool
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
	onesided.Totals
	Searches, Writes uint64
	Deletes, Ranges  uint64
	LockFailed       uint64 // CASes that found the lock held
	HandedOver       uint64 // locks that went to another session of the client
	Splits, NewRoots uint64
	Torn             uint64 // pages and entries that were read again
	Siblings         uint64 // steps to the right
}

// Add adds another client's counts.
func (s *Stats) Add(o Stats) { onesided.Add(s, o) }

// Client is the client library on one compute node. Its sessions share the cache
// of internal pages and hand locks over to each other. It implements host.App.
type Client struct {
	onesided.Loop[*session]
	cfg       Config
	locks     map[lockKey]*localLock
	cache     map[Addr]page
	root      Addr // 0: not known
	rootLevel int
	used      int // pages of the chunk
	stats     Stats
}

// maxTorn is how often a torn page is read again; a writer needs some round
// trips.
const maxTorn = 10_000

// NewClient makes a client; it asks Next for work in its first Step.
func NewClient(c Config) (*Client, error) {
	if c.RootAt == 0 {
		c.RootAt = RootAt
	}
	if c.CQ == nil || c.Dial == nil || c.Next == nil || c.Sessions < 1 || c.Sessions > 1<<16 || c.Nodes < 1 || c.Client < 0 {
		return nil, fmt.Errorf("sherman: client %d of %d sessions and %d nodes needs these, a completion queue, a way to dial, and work", c.Client, c.Sessions, c.Nodes)
	}
	x := &Client{cfg: c, locks: map[lockKey]*localLock{}, cache: map[Addr]page{}}
	x.CQ, x.Totals = c.CQ, &x.stats.Totals
	for i := range c.Sessions {
		s := &session{Session: onesided.NewSession(i, c.Nodes, 1), c: x, tag: uint64(c.Client)<<32 + uint64(i) + 1, links: make([]link, c.Nodes),
			img: make(page, PageSize), right: make(page, PageSize)}
		x.Sessions = append(x.Sessions, s)
	}
	return x, nil
}

// Warm puts all inner pages of a tree at rest into the cache, as after many operations.
func (c *Client) Warm(t *Tree) error {
	c.root = Addr(le.Uint64(t.nodes[0].mem[t.RootAt:]))
	first := c.root
	for top := true; ; top = false {
		p, err := t.look(first)
		if err != nil {
			return err
		}
		if top {
			c.rootLevel = p.level()
		}
		if p.level() == 0 {
			return nil
		}
		below := p.leftmost()
		for c.keep(first, p); p.sibling() != 0; c.keep(first, p) {
			if first = p.sibling(); c.cache[first] != nil {
				return fmt.Errorf("sherman: level %d has no end", p.level())
			}
			if p, err = t.look(first); err != nil {
				return err
			}
		}
		first = below
	}
}

// Stats are the totals so far.
func (c *Client) Stats() Stats { return c.stats }

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
