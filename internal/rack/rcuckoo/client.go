package rcuckoo

import (
	"cmp"
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
	// Insert adds a key that is not in the table.
	Insert
	// Update gives a key that is in the table another value.
	Update
	// Delete removes a key.
	Delete
)

func (k Kind) String() string { return [...]string{"read", "insert", "update", "delete"}[k] }

// Op is an operation on the table.
type Op struct {
	Kind Kind
	Key  uint64
	// Value must not change until the operation ends: the client does not copy it.
	Value []byte
}

// Result is the outcome of an operation. It is valid until the callback returns.
type Result struct {
	Session int
	Op
	// Found: the key was there before. Then an insertion changes nothing; otherwise an update and a deletion
	// change nothing. Got is the value that was there. Of values in extents only reads get it.
	Found      bool
	Got        []byte
	Err        error
	Start, End clock.Time
	onesided.Cost
	// Tries is how many cuckoo paths an insertion locked. FirstFailed is how many of them were no longer
	// paths when they were locked. SecondFailed is how often the search of the locked rows found no other
	// path.
	Tries, FirstFailed, SecondFailed int
	// Retries counts the times when a lock was held or a row was torn.
	Retries int
	// LockBytes is the part of Bytes that the locks and the READs behind them took, without releases.
	LockBytes int
}

// Phase is what a client does when Config.Cut can make it fail.
type Phase uint8

const (
	// Locking posts the masked CAS that acquires locks, and READs behind it.
	Locking Phase = iota
	// Writing posts WRITEs of rows, and the release of the locks behind them.
	Writing
	// Releasing gives locks back.
	Releasing
	// Repairing takes leases, writes repaired rows, and frees the lock.
	Repairing
	numPhases
)

// Config describes a client. Zero values take the defaults given with them.
type Config struct {
	Layout
	Sessions int
	// CQ receives the completions of all the client's queue pairs.
	CQ *rnic.CQ
	// Dial connects a session anew. When Dial returns, an earlier queue pair of the session must be gone on
	// both sides. After an error the session tries again later.
	Dial func(now clock.Time, session int) (*rnic.QP, Grant, error)
	// Next returns a session's next operation; false: there is none now. A session without work calls it in
	// every Step.
	Next func(now clock.Time, session int) (Op, bool)
	// Done gets the result of every operation; nil: results are not told.
	Done func(*Result)
	// Chunk is the client's memory for values that do not fit into entries.
	Chunk Chunk
	// Outside puts values into extents even when they fit into entries.
	Outside bool

	Search Search
	// Cache is the size of a session's cache of rows in bytes; 0 = 64 KiB.
	Cache int
	// Flush empties the cache before every insertion.
	Flush bool
	// Covering is the distance in bytes up to which two rows are read with one READ; 0 = 148.
	Covering int
	// Short READs of a key's rows are as long as those of the public code, which uses a row's number of
	// entries (8) where it needs a row's bytes: 8 bytes for each row, so that one READ of 256 bytes is for 32
	// rows. No key can be found in them: a read ends when its READs have come. Short is for models of what
	// the authors measured.
	Short bool
	// Blind insertions do not look whether the key is there; the workload must know that it is not. They lock
	// only the rows of a path.
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

	// Self is the client's address. Place is the number of its first session's place, where the Layout has
	// places.
	Self  netip.Addr
	Place int
	// Shut asks that a session that seems dead be shut out, before a repair. The repair begins when the
	// session has been shut out for FailAfter. nil: sessions are not shut out.
	Shut onesided.Shutter

	// FailAfter is how long a lock may be held, or a row be torn, before the lock's holder counts as dead; 0
	// = 100 ms. A session that has not got all locks of an operation within an eighth of FailAfter gives its
	// locks back and begins again.
	FailAfter time.Duration
	// Torn writes a row with two requests, the CRC in the second one. A reader of an ordinary WRITE can see
	// it in such pieces, too.
	Torn bool
	// Cut, if not nil, is asked before every request that changes something; i is the request's number in its
	// post. true makes the session fail there: the requests behind are not posted, and what the session holds
	// is left for others to repair. The operation ends with ErrDied.
	Cut  func(now clock.Time, session int, p Phase, i int) bool
	Seed uint64
}

// Work is a client's own time for a read, an update and an insertion. Held is the part of the latter two that passes while the
// client holds its locks: it looks for the key in the rows that it has read, and makes the WRITEs. Insert is of an insertion
// whose search ends in its first row, which has a free entry. What others take in addition is Look for each further row that a search
// looks at, Again for a search of the locked rows, Move for each entry that moves, and Lock for each further masked CAS.
type Work struct {
	Read, Update, Insert, Held time.Duration
	Look, Again, Move, Lock    time.Duration
}

// of is the time that passes before the operation's first request.
func (w *Work) of(k Kind) time.Duration {
	switch k {
	case Read:
		return w.Read
	case Update:
		return w.Update - w.Held
	case Insert:
		return w.Insert - w.Held
	}
	return 0
}

// planned is the time between an insertion's search and its first request. The time of a first try's search has passed before.
func (w *Work) planned(try, looked, locks int) time.Duration {
	d := w.Look*time.Duration(looked-1) + w.Lock*time.Duration(locks-1)
	if try > 1 {
		d += w.Insert - w.Held
	}
	return d
}

// placed is the time that an insertion takes beyond Held while it holds its locks. looked is how many rows its second search looked at; 0: there was none.
func (w *Work) placed(looked, moves int) time.Duration {
	d := w.Move * time.Duration(moves)
	if looked > 0 {
		d += w.Again + w.Look*time.Duration(looked-1)
	}
	return d
}

// held is the part of it that passes while locks are held.
func (w *Work) held(k Kind) time.Duration {
	if k == Update || k == Insert {
		return w.Held
	}
	return 0
}

// Stats are a client's totals.
type Stats struct {
	Done [4]uint64 // by Kind
	onesided.Totals
	LockFailed   uint64 // masked CASes that found a lock held
	GaveBack     uint64 // times when a session gave locks back because others took too long
	Torn         uint64 // reads that met a torn row
	Confirmed    uint64 // reads that read the rows again because the key was not there
	FirstFailed  uint64
	SecondFailed uint64
	Suspected    uint64    // locks that were observed because their holder might be dead
	Cleared      uint64    // suspicions that were wrong
	Repaired     uint64    // locks of dead clients that were freed
	States       [4]uint64 // by the state in which repairs found rows (see judge)
	TookOver     uint64    // leases taken from dead repairers
	ShutOut      uint64    // sessions that seemed dead and were shut out
	NotShut      uint64    // sessions that seemed dead and were not shut out: their late WRITEs may land
	Robbed       uint64    // locks and leases that were gone when the session gave them back
	Abandoned    uint64    // times when a broken connection left locks behind
}

// Client is the client library on one compute node. It implements host.App.
type Client struct {
	onesided.Loop[*session]
	cfg   Config
	slab  slab
	stats Stats
	err   error // the client's geometry is not the server's: no session works
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
	c.FailAfter = cmp.Or(c.FailAfter, 100*time.Millisecond)
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

// Err is why the client does not work: its geometry is not the server's. nil: it works.
func (c *Client) Err() error { return c.err }
