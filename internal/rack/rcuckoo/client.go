package rcuckoo

import (
	"fmt"
	"net/netip"
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
)

func (k Kind) String() string { return [...]string{"read", "insert", "update", "delete"}[k] }

// Op is an operation on the table.
type Op struct {
	Kind Kind
	Key  uint64
	// Value is used in place until the operation ends.
	Value []byte
}

// Result is what became of an operation; valid until the callback returns.
type Result struct {
	Session int
	Op
	// Found: the key was there before. An insertion changes nothing then, an update
	// and a deletion do nothing otherwise. Got is the value that was there; only reads
	// are told one that lies in an extent.
	Found      bool
	Got        []byte
	Err        error
	Start, End clock.Time
	onesided.Cost
	// Tries is how many cuckoo paths an insertion locked. FirstFailed is how many of
	// them were no paths any more once they were locked, SecondFailed how often the
	// search of the locked rows found no other.
	Tries, FirstFailed, SecondFailed int
	// Retries is how often a lock was held, or a row torn.
	Retries int
	// LockBytes are those of Bytes that locks and the READs behind them took, without releases.
	LockBytes int
}

// Phase is what a client is doing when it may be made to fail.
type Phase uint8

const (
	// Locking posts a lock's acquisition, and READs behind it.
	Locking Phase = iota
	// Writing posts rows, and the locks' release behind them.
	Writing
	// Releasing gives locks back.
	Releasing
	// Repairing takes leases, writes repaired rows, frees the lock.
	Repairing
	numPhases
)

// Config describes a client. Zero values take the defaults given with them.
type Config struct {
	Layout
	Sessions int
	// CQ is where the completions of all the client's queue pairs arrive.
	CQ *rnic.CQ
	// Dial connects a session anew; its queue pair before that, if any, is gone for
	// both sides when Dial returns. An error: try again later.
	Dial func(now clock.Time, session int) (*rnic.QP, Grant, error)
	// Next is a session's next operation; false: none now. A session that has
	// nothing to do asks in every Step.
	Next func(now clock.Time, session int) (Op, bool)
	// Done is told every operation's end; nil: nobody is.
	Done func(*Result)
	// Chunk is the client's memory for values that do not fit into entries.
	Chunk Chunk
	// Outside puts values into extents even when they fit into entries.
	Outside bool

	Search Search
	// Cache is the size of a session's cache of rows; 0 = 64 KiB.
	Cache int
	// Flush empties the cache before every insertion.
	Flush bool
	// Covering is how many bytes two rows may be apart to be read at once; 0 = 148.
	Covering int
	// Short READs of a key's rows are as long as the public code's, which takes a row's number of entries for its bytes: 8
	// for each row, so that one READ covers 32 rows in 256 bytes. Nothing can be found in them: reads end when they
	// have come. It is for models of what the authors have measured.
	Short bool
	// Blind insertions do not look whether the key is there: the workload knows that
	// it is not. They lock a path's rows only.
	Blind bool
	// Fence makes the READs behind a masked CAS wait until it has returned: a round trip
	// more. The authors set it (section 3.2.2, footnote 1).
	Fence bool
	// Work is the client's own time for an operation, before its first request. It is for models of what the
	// authors have measured.
	Work Work
	// Tries is how many paths an insertion locks before the table counts as full;
	// 0 = 1000.
	Tries int

	// Self is the client's address, and Place the first of its sessions' places, where the Layout has some.
	Self  netip.Addr
	Place int
	// Shut has sessions shut out that seem dead, before a repair, which begins when that was so for FailAfter. nil: nobody
	// is asked.
	Shut onesided.Shutter

	// FailAfter is how long a lock is held, or a row torn, until its holder counts as
	// dead; 0 = 100 ms. A client that has not got all locks of an operation within
	// an eighth of it gives them back and begins again.
	FailAfter time.Duration
	// Torn writes a row with two requests, the CRC in the second, as a WRITE may be
	// seen in pieces.
	Torn bool
	// Cut, if not nil, is asked before every request of a post that changes
	// something, the i-th of it: true makes the client fail there. Nothing behind is
	// posted, and what it holds is for others to repair. The operation ends with
	// ErrDied.
	Cut  func(now clock.Time, session int, p Phase, i int) bool
	Seed uint64
}

// Work is a client's own time for a read, and for an update.
type Work struct{ Read, Update time.Duration }

func (w *Work) of(k Kind) time.Duration {
	switch k {
	case Read:
		return w.Read
	case Update:
		return w.Update
	}
	return 0
}

// Stats are a client's totals.
type Stats struct {
	Done [4]uint64 // by Kind
	onesided.Totals
	LockFailed   uint64 // masked CASes that found a lock held
	GaveBack     uint64 // times that some locks were given back since others took too long
	Torn         uint64 // reads of torn rows
	Confirmed    uint64 // reads that looked again since the key was not there
	FirstFailed  uint64
	SecondFailed uint64
	Suspected    uint64    // locks that were looked at more closely
	Cleared      uint64    // suspicions that were wrong
	Repaired     uint64    // locks of dead clients that were freed
	States       [4]uint64 // in which repairs found rows
	TookOver     uint64    // leases of dead repairers
	ShutOut      uint64    // sessions that others had shut out when they seemed dead
	NotShut      uint64    // sessions that seemed dead, and that nobody shuts out: their late WRITEs may land
	Robbed       uint64    // locks that were gone when they were to be released
	Abandoned    uint64    // times that locks were left behind by a broken connection
}

// Client is the client library on one compute node. It implements host.App.
type Client struct {
	onesided.Loop[*session]
	cfg   Config
	slab  slab
	stats Stats
	err   error // of the geometry: no session works
}

// Add adds another client's totals.
func (s *Stats) Add(o Stats) { onesided.Add(s, o) }

// NewClient makes a client; it asks Next for work in its first Step.
func NewClient(c Config) (*Client, error) {
	var err error
	if c.Layout, err = c.Layout.complete(); err != nil {
		return nil, err
	}
	for _, x := range []struct {
		v *int
		d int
	}{{&c.Cache, 64 << 10}, {&c.Covering, 148}, {&c.Tries, 1000}} {
		if *x.v == 0 {
			*x.v = x.d
		}
	}
	if c.FailAfter == 0 {
		c.FailAfter = 100 * time.Millisecond
	}
	if c.CQ == nil || c.Dial == nil || c.Next == nil || c.Sessions < 1 || c.Sessions > 1<<16 {
		return nil, fmt.Errorf("rcuckoo: a client of %d sessions needs 1 to 65536 of these, a completion queue, a way to dial, and work", c.Sessions)
	}
	if c.Cache < 0 || c.Covering < 0 || c.Tries < 0 || c.FailAfter < 0 || c.Search > DFS {
		return nil, fmt.Errorf("rcuckoo: a cache of %d bytes, covering READs of %d, %d tries or a timeout of %v cannot be", c.Cache, c.Covering, c.Tries, c.FailAfter)
	}
	if c.Places > 0 && (c.Place < 0 || c.Place+c.Sessions > c.Places) {
		return nil, fmt.Errorf("rcuckoo: %d sessions from place %d on: there are %d places", c.Sessions, c.Place, c.Places)
	}
	x := &Client{cfg: c, slab: newSlab(c.Chunk)}
	x.CQ, x.Totals = c.CQ, &x.stats.Totals
	for i := range c.Sessions {
		x.Sessions = append(x.Sessions, newSession(x, i))
	}
	return x, nil
}

// Stats are the totals so far.
func (c *Client) Stats() Stats { return c.stats }

// Err is why the client does not work: its geometry is not the server's.
func (c *Client) Err() error { return c.err }
