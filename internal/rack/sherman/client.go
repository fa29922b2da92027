package sherman

import (
	"cmp"
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
	Search Kind = iota // returns the value of a key
	Write              // sets the value of a key, whether it exists or not
	Delete             // removes a key
	Range              // returns all keys from Key to To, with their values
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

// Result is the result of an operation, valid until the callback returns.
type Result struct {
	Session int
	Op
	Found bool // the key exists (a Search also sets Value), or existed until its Delete
	// Pairs are the keys that a Range found, in order. Each key's value is that of one moment of the
	// operation, but not all values are of the same moment.
	Pairs      []Pair
	Err        error
	Start, End clock.Time
	onesided.Cost
	// Retries is how often a lock was held by another client, or a page was torn.
	Retries int
}

// Errors of operations.
var (
	// ErrKey means that the key, the value or the range is not valid.
	ErrKey = errors.New("sherman: keys are 1 to 2^64-2, values are not 0, and ranges do not end before they begin")
	// ErrFull means that the client's chunk is used up.
	ErrFull = errors.New("sherman: no memory for another page: give the client a larger chunk")
	// ErrTorn means that a page stays torn, because the client that was writing it has died.
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
	// Client is the client's number, which is a part of the tags of its locks.
	Client   int
	Sessions int
	Chunk    Chunk
	// Flat: each session takes locks for itself, as if it were a client of its own; sessions hand no locks
	// over.
	Flat bool
	// CQ receives the completions of all queue pairs of the client.
	CQ *rnic.CQ
	// Dial connects a session to a node again. When Dial returns, the session's earlier queue pair to the
	// node, if any, must be gone on both sides. After an error the client tries again later.
	Dial func(now clock.Time, session, node int) (*rnic.QP, Grant, error)
	// Next returns a session's next operation; false: there is none at present. A session that has nothing to
	// do calls it in every Step.
	Next func(now clock.Time, session int) (Op, bool)
	// Done, if not nil, is called at the end of every operation.
	Done func(*Result)
	// WordLog, if not nil, records the operations on the words of the lock table; LockAddr gives their
	// addresses.
	WordLog *history.Log[history.Word, uint64]
}

// LockAddr returns the address of a lock word in the history.
func LockAddr(node, index int) uint64 { return uint64(node)<<32 | uint64(index)*8 }

// Stats are the totals of a client.
type Stats struct {
	onesided.Totals
	Searches, Writes uint64
	Deletes, Ranges  uint64
	LockFailed       uint64 // CASes that found the lock held
	HandedOver       uint64 // locks that were handed to another session of the client
	Splits, NewRoots uint64
	Torn             uint64 // pages and entries that were read again
	Siblings         uint64 // times that a search went on at the right neighbour
}

// Add adds the totals of another client.
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

// maxTorn is how often a torn page is read again; a writer needs a few round trips.
const maxTorn = 10_000

// NewClient makes a client; it asks Next for work in its first Step.
func NewClient(c Config) (*Client, error) {
	c.RootAt = cmp.Or(c.RootAt, RootAt)
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

// Warm puts all internal pages of a tree at rest into the cache, as many operations would.
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

// Stats returns the totals so far.
func (c *Client) Stats() Stats { return c.stats }

// alloc takes a page of the client's chunk; 0: no page is left.
func (c *Client) alloc() Addr {
	if c.used == c.cfg.Chunk.Pages {
		return 0
	}
	a := c.cfg.Chunk.At
	a = AddrOf(a.Node(), a.Off()+uint64(c.used)*PageSize)
	c.used++
	return a
}

// keep copies an internal page into the cache.
func (c *Client) keep(a Addr, p page) {
	old, ok := c.cache[a]
	if !ok {
		old = make(page, PageSize)
		c.cache[a] = old
	}
	copy(old, p)
}
