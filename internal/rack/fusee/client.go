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
	// Insert puts a key that is not there.
	Insert
	// Update gives a key that is there another value.
	Update
	// Delete takes a key out.
	Delete
	// Recover repairs what a dead session has left, and takes over its memory. It must be
	// dead for so long that nothing it sent is on its way.
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
	// Dead is the number of the session that Recover is for.
	Dead uint16
}

// Result is what became of an operation; valid until the callback returns.
type Result struct {
	Session int
	Op
	// Found: the key was there before. An insertion changes nothing then, an update and a
	// deletion do nothing otherwise. Got is the value that was there; only reads and
	// insertions are told it: an update whose word lost to another's has happened just before
	// that, so that the other does not know what it replaced.
	Found      bool
	Got        []byte
	Err        error
	Start, End clock.Time
	// Retries is how often the operation began again.
	Retries int
	onesided.Cost
}

// Phase is what a client is doing when it may be made to fail.
type Phase uint8

const (
	// Writing posts an object.
	Writing Phase = iota
	// Proposing posts the CASes of a slot's backups, Fixing those of backups that have others' words.
	Proposing
	Fixing
	// Logging posts the old word into the object.
	Logging
	// Committing posts the CAS of the primary.
	Committing
	// Freeing marks an object that nothing refers to.
	Freeing
	// Repairing is all that of a recovery, and taking over blocks.
	Repairing
	numPhases
)

// View is who is a member of the store.
type View struct {
	// Epoch changes with Alive, which has a bit for each node.
	Epoch, Alive uint32
	// Until: nothing may be posted from then on before the view is looked at again.
	Until clock.Time
}

// Config describes a client. Zero values take the defaults given with them.
type Config struct {
	Layout
	Sessions int
	// ID is the number of the first session: all sessions of all lives of all clients
	// have different ones, from 1 on. A session's memory belongs to its number.
	ID uint16
	// CQ is where the completions of all the client's queue pairs arrive.
	CQ *rnic.CQ
	// Dial connects a session to a node anew; its queue pair before that, if any, is gone
	// for both sides when Dial returns. An error: try again later.
	Dial func(now clock.Time, session, node int) (*rnic.QP, Grant, error)
	// Alloc asks a region's primary for a block of objects of so many units (Cluster.Alloc).
	Alloc func(now clock.Time, owner uint16, region, units int) (block int, err error)
	// View is asked before every post (Master.View); nil: all nodes are members for ever.
	View func(now clock.Time) View
	// Suspect tells the master of a node that does not answer; nil: nobody is told.
	Suspect func(now clock.Time, node int)
	// Next is a session's next operation; false: none now.
	Next func(now clock.Time, session int) (Op, bool)
	// Done is told every operation's end; nil: nobody is.
	Done func(*Result)

	// Cache is how many keys a session remembers the slots of; 0 = 1024, negative: none.
	Cache int
	// MissRate is the share of a cached key's uses that found its slot changed, above which
	// its object is not read beside the slot; 0 = 0.1.
	MissRate float64
	// Blind insertions do not look whether another client inserts the key: they put it at
	// once, as the public code does. The workload knows that none does.
	Blind bool
	// Tries is how often an operation begins again; 0 = 1000.
	Tries int

	// FailAfter is how long a slot's word stays undecided, or an insertion tentative,
	// until whoever waits decides it; 0 = 100 ms. Memory of objects is not used anew before
	// it has been free for as long. A node that cannot be dialled for as long is gone; where
	// there is a master (Suspect), it has 16 times as long to take it out.
	FailAfter time.Duration
	// Cut, if not nil, is asked before every request of a post that changes something, the
	// i-th of it: true makes the session fail there. Nothing behind is posted. The
	// operation ends with ErrDied.
	Cut func(now clock.Time, session int, p Phase, i int) bool
}

// Stats are a client's totals.
type Stats struct {
	Done [5]uint64 // by Kind
	onesided.Totals
	Rules     [3]uint64 // rounds won as all, as the majority, as the least
	Lost      uint64    // rounds that another word won
	Helped    uint64    // rounds of others that were finished
	Killed    uint64    // tentative insertions of others that were taken back
	Withdrawn uint64    // own ones, since the key was there
	Waited    uint64    // readings of a slot that others decide
	Again     uint64    // operations that began again
	Hits      uint64    // reads of one round trip
	Stale     uint64    // uses of the cache that found the slot changed
	Torn      uint64    // objects that were not whole
	Collected uint64    // objects that were used anew
	Walked    uint64    // objects that recoveries looked at
	Redone    uint64    // operations of the dead that recoveries finished
	Undone    uint64    // operations of the dead that recoveries took back
	Taken     uint64    // blocks that recoveries took over
	Epochs    uint64    // changes of the view in the middle of an operation
}

// Add adds another client's totals.
func (s *Stats) Add(o Stats) { onesided.Add(s, o) }

// Client is the client library on one compute node. It implements host.App.
type Client struct {
	onesided.Loop[*session]
	cfg   Config
	stats Stats
	err   error // of the geometry: no session works
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
	for i := range c.Sessions {
		x.Sessions = append(x.Sessions, newSession(x, i))
	}
	return x, nil
}

// Stats are the totals so far.
func (c *Client) Stats() Stats { return c.stats }

// Err is why the client does not work: its geometry is not a node's.
func (c *Client) Err() error { return c.err }
