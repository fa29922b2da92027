package fusee

import (
	"cmp"
	"fmt"
	"time"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Kind is what an operation does.
type Kind uint8

const (
	// Read asks for the value of a key.
	Read Kind = iota
	// Insert adds a key that does not exist.
	Insert
	// Update gives an existing key another value.
	Update
	// Delete removes a key.
	Delete
	// Recover repairs what a dead session has left, and takes over its memory. The session must have been
	// dead for so long that none of its requests is under way.
	Recover
)

func (k Kind) String() string {
	return [...]string{"read", "insert", "update", "delete", "recover"}[k]
}

// Op is an operation on the store.
type Op struct {
	Kind Kind
	// Key and Value are used in place until the operation ends.
	Key, Value []byte
	// Dead is the number of the session that Recover repairs.
	Dead uint16
}

// Result is the result of an operation, valid until the callback returns.
type Result struct {
	Session int
	Op
	// Found: the key existed before. If it did, an insertion changes nothing; if it did not, an update or a
	// deletion changes nothing. Got is the value that the key had; only reads and insertions get it. An
	// update gets none: if its word lost to another update's, it counts as executed just before that one, so
	// the other update does not know which value it replaced.
	Found      bool
	Got        []byte
	Err        error
	Start, End clock.Time
	// Retries is how often the operation started again.
	Retries int
	onesided.Cost
}

// Phase is what a client is doing at a moment at which it may be made to fail (Config.Cut).
type Phase uint8

const (
	// Writing posts an object.
	Writing Phase = iota
	// Proposing posts the CASes of a slot's backups, Fixing those of backups that have another client's word.
	Proposing
	Fixing
	// Logging posts the old word into the object.
	Logging
	// Committing posts the CAS of the primary.
	Committing
	// Freeing marks an object that nothing refers to.
	Freeing
	// Repairing is everything that a recovery posts, to repair operations and to take over blocks.
	Repairing
	numPhases
)

// View says which nodes are members of the store.
type View struct {
	// Alive has a bit for each node. Epoch changes whenever Alive does.
	Epoch, Alive uint32
	// From Until on, nothing may be posted before the view is read again.
	Until clock.Time
}

// Config describes a client. Zero values take the defaults given with them.
type Config struct {
	Layout
	Sessions int
	// ID is the number of the first session. The sessions of all lives of all clients have different numbers,
	// from 1 on. A session's memory belongs to its number.
	ID uint16
	// CQ receives the completions of all queue pairs of the client.
	CQ *rnic.CQ
	// Dial connects a session to a node again. When Dial returns, the session's earlier queue pair to the
	// node, if any, must be gone on both sides. After an error the client tries again later.
	Dial func(now clock.Time, session, node int) (*rnic.QP, Grant, error)
	// Alloc asks a region's primary for a block of objects of so many units (Cluster.Alloc).
	Alloc func(now clock.Time, owner uint16, region, units int) (block int, err error)
	// View is called before every post (Master.View); nil: all nodes are members for ever.
	View func(now clock.Time) View
	// Suspect tells the master that a node does not answer; nil: there is no master.
	Suspect func(now clock.Time, node int)
	// Next returns a session's next operation; false: there is none at present.
	Next func(now clock.Time, session int) (Op, bool)
	// Done, if not nil, is called at the end of every operation.
	Done func(*Result)

	// Cache is the number of keys whose slots a session remembers; 0 = 1024, negative: none.
	Cache int
	// MissRate is a share of the uses of a cached key: if more of them found the slot changed, the key's
	// object is not read together with the slot; 0 = 0.1.
	MissRate float64
	// Wide clients use the cache as the public code does. All sessions share one cache. Reads, updates and deletions
	// of a key that the cache has read its object together with both buckets: if the slot has changed, the buckets are
	// there already, and a stale entry costs no round trip. MissRate says when the object is not read, and the client's
	// own update counts as a use that found the slot changed.
	Wide bool
	// Blind insertions do not check whether another client inserts the same key. They make their word
	// permanent at once, as the public code does. The workload must make sure that no other client inserts
	// the key.
	Blind bool
	// Eager updates mark the replaced object beside the CAS of the slot, whether they win or not, as those of the
	// public code. It takes effect where slots have one replica: there an old word that a CAS did not find was replaced.
	// The loser's WRITE falls on memory that the winner has freed, and reuses after FailAfter. So FailAfter must be longer than
	// requests may be repeated, or a late WRITE marks an object as freed that is in use.
	Eager bool
	// Tries is how often an operation starts again; 0 = 1000.
	Tries int

	// Fibers, if Nap is not 0, says that the sessions are fibers of one thread, as those of the public code.
	Fibers Fibers

	// FailAfter is how long a slot may stay undecided, or an insertion tentative, until a session that waits
	// decides it; 0 = 100 ms. Memory of objects is not reused before it has been free for this time. A node
	// that cannot be dialled for this time is gone; if there is a master (Suspect), the session waits 16
	// times as long for the master to remove the node.
	FailAfter time.Duration
	// Cut, if not nil, is called before every request of a post that changes something, the i-th of the post.
	// If it returns true, the session fails there: it posts nothing more, and the operation ends with
	// ErrDied.
	Cut func(now clock.Time, session int, p Phase, i int) bool
}

// Fibers is how the sessions of a client share its thread. Nap and Late are those of onesided.Fibers. Post is the
// thread's work for each post.
type Fibers struct{ Nap, Late, Post time.Duration }

// Stats are a client's totals.
type Stats struct {
	Done [5]uint64 // by Kind
	onesided.Totals
	Rules     [3]uint64 // rounds won by all backups, by the majority, by the least word
	Lost      uint64    // rounds that another word won
	Helped    uint64    // rounds of other sessions that were finished
	Killed    uint64    // tentative insertions of other sessions that were taken back
	Withdrawn uint64    // own insertions that were taken back, because the key existed
	Waited    uint64    // READs of a slot whose round another session decides
	Again     uint64    // operations that started again
	Hits      uint64    // reads of one round trip
	Stale     uint64    // uses of the cache for which the slot had changed
	Torn      uint64    // objects that were not whole
	Collected uint64    // objects that were reused
	Walked    uint64    // objects that recoveries examined
	Redone    uint64    // operations of dead sessions that recoveries finished
	Undone    uint64    // operations of dead sessions that recoveries took back
	Taken     uint64    // blocks that recoveries took over
	Epochs    uint64    // changes of the view in the middle of an operation
}

// Add adds the totals of another client.
func (s *Stats) Add(o Stats) { onesided.Add(s, o) }

// Client is the client library on one compute node. It implements host.App.
type Client struct {
	onesided.Loop[*session]
	cfg   Config
	stats Stats
	cache cache // of Wide clients
	err   error // the geometry does not fit: no session works
}

// NewClient makes a client; it asks Next for work in its first Step.
func NewClient(c Config) (*Client, error) {
	var err error
	if c.Layout, err = c.Layout.complete(); err != nil {
		return nil, err
	}
	c.Cache = cmp.Or(c.Cache, 1024)
	c.MissRate = cmp.Or(c.MissRate, 0.1)
	c.Tries = cmp.Or(c.Tries, 1000)
	c.FailAfter = cmp.Or(c.FailAfter, 100*time.Millisecond)
	if c.CQ == nil || c.Dial == nil || c.Alloc == nil || c.Next == nil || c.Sessions < 1 || c.Sessions > 1<<15 {
		return nil, fmt.Errorf("fusee: a client of %d sessions needs 1 to 32768 of these, a completion queue, ways to dial and to get memory, and work", c.Sessions)
	}
	if c.ID == 0 || int(c.ID)+c.Sessions > 1<<16 {
		return nil, ErrOwner
	}
	if c.Cache > 1<<24 || !(c.MissRate >= 0 && c.MissRate <= 1) || c.Tries < 0 || c.FailAfter < 0 {
		return nil, fmt.Errorf("fusee: a cache of %d keys, a share of %v, %d tries or a timeout of %v cannot be", c.Cache, c.MissRate, c.Tries, c.FailAfter)
	}
	x := &Client{cfg: c}
	x.CQ, x.Totals = c.CQ, &x.stats.Totals
	if c.Wide {
		x.cache.init(c.Cache)
		x.cache.counts = true
	}
	for i := range c.Sessions {
		x.Sessions = append(x.Sessions, newSession(x, i))
	}
	if f := c.Fibers; f.Nap > 0 {
		x.Fibers = &onesided.Fibers{Nap: f.Nap, Late: f.Late, Work: func(int) time.Duration { return f.Post }}
	}
	return x, nil
}

// Stats returns the totals so far.
func (c *Client) Stats() Stats { return c.stats }

// Err returns why the client does not work: its geometry differs from a node's.
func (c *Client) Err() error { return c.err }
