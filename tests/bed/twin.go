package bed

import (
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// World is a rack with its queue pairs, their rights and settings, the server's
// memory, and everything that everybody does: what is played on a bare wire and
// through a box alike. RandomWorld makes one of a seed.
type World struct {
	IPv6        bool
	MTU         int
	Profile     rnic.Profile
	Link        rnic.Link
	AckCoalesce int
	Clients     int
	Domains     int
	Memories    int
	Regions     []Region
	Queues      []Queue
	Events      []Event // of the server's CPU and its machine, by time
	Spoofs      []Spoof // by time
	Odd         []Odd   // by time
	Managed     bool    // the connection manager's datagrams pass
	Late        bool    // the box comes under traffic, with an event
	Crash       bool    // the box's end is no clean one
	CE          int     // one of so many of the clients' frames meets congestion; 0 = none
	Faults      fault.Mix
	// Alive is how long a number of a server's queue pair rests, and Gone for how long nobody knows of a client that it went; see Limits.
	Alive, Gone time.Duration
	// Workers is how many the box has; 0 = 1.
	Workers int
	// Journal is how long a write to the disk of the box's machine takes; 0: it has none.
	Journal time.Duration
	// Recycle: numbers of queue pairs that are gone are given to new ones at once, of other sessions too, where the connection
	// manager tells of both connections.
	Recycle bool
	// Chaos has the connection manager's datagrams come twice, late, or not at all, and attempts be refused; 0: it does not.
	Chaos uint64
	// Front: Twins.Front is in front of the box.
	Front bool
	// Second is the second NIC of the server's machine: it has every other protection domain, with memory of its own. Joined: the box is
	// told that both addresses are one server's.
	Second Second
	Joined bool
	// Passes: operations of one client on different words may pass each other, as on
	// several queue pairs. What was flushed behind one that was refused may have been executed.
	Passes bool
}

// Region is memory of the server's under an R_Key. Regions of one memory show it
// at different addresses, or with different rights.
type Region struct {
	Domain, Memory int
	VA             uint64
	Length         int // from the memory's beginning
	Access         rnic.Access
	Fast           bool // may be invalidated
	// Window: what clients are given is a memory window of type 1 or 2B over the
	// region, and not the region; one of type 2B only session Owner can use.
	Window rnic.WindowType
	Owner  int
}

// Queue is a session: its queue pairs, which are made again when they break, and
// what its client does.
type Queue struct {
	Client, Domain int
	Gives          rnic.Access // the server's end
	Near, Far      rnic.Conn   // settings of the client's end and of the server's
	Receives       int         // that the server posts at once, for each life
	Gap            time.Duration
	Outstanding    int
	Steps          []Step
	// Paths are the path MTUs of its connections, one after the other and from the first on again; none: the world's.
	Paths []int
	// Again: a connection that ends of its own accord leaves its queue pairs' numbers to the next one.
	Again [2]bool // the client's, the server's
	// Unseen: no datagrams of the connection manager tell of its connections.
	Unseen bool
	// Lost are frames behind the first READ of several packets of each connection, by place from 1 on, that never
	// arrive: on the way to the server, and from there.
	Lost [2][]int
	// Back is what the server asks of the client over its connections.
	Back []Back
}

// Back is a request of the server's to the client.
type Back struct {
	At time.Duration // after the world's beginning
	Op rnic.Op       // a SEND, READ, WRITE or FETCH-ADD
	// Length is that of a SEND, READ or WRITE.
	Length int
}

// nic is the server's NIC that has a protection domain.
func (w *World) nic(domain int) int {
	if w.Second == NoSecond {
		return 0
	}
	return domain & 1
}

// nicKey is an R_Key of one of the server's NICs.
type nicKey struct {
	nic  int
	rkey uint32
}

// path is the path MTU of the connection of some life, from 1 on.
func (w *World) path(q *Queue, life int) int {
	if len(q.Paths) == 0 {
		return w.MTU
	}
	return q.Paths[(life-1)%len(q.Paths)]
}

// Step is an operation.
type Step struct {
	Think    time.Duration // after the step before was posted
	Anew     bool          // when all before it are through the connection ends, and another one begins
	Op       rnic.Op
	Region   int    // whose R_Key
	Stale    bool   // the R_Key before the last
	Offset   uint64 // in the region
	Length   int    // of a READ, WRITE or SEND
	Block    bool   // the session's own cells, and not a shared word
	Compare  uint64
	Swap     uint64
	Mask     uint64 // of a masked CAS, for both
	Fence    bool
	Unsignal bool
}

// Event is what happens at the server.
type Event struct {
	At     time.Duration
	What   Happening
	Region int
	Offset uint64
	Value  uint64
	For    time.Duration
}

// Happening is a sort of event.
type Happening uint8

const (
	Reregister Happening = iota // the region gets a new R_Key at its address
	CPUWrite                    // the server's CPU writes a word
	Stalled                     // the server does nothing; what is sent to it waits
	Frozen                      // the server does nothing; what is sent to it is lost
	BoxEnds                     // the box stops, and the next one starts after For
	BoxReloads                  // the box is given another setting, and perhaps starts anew
	BoxSleeps                   // the box does not run: what need not be held crosses unseen
	BoxComes                    // the first box starts
	BoxFences                   // a fence in front of the box shuts out the client of session Region for some time: all of it, or, with an even Value, that connection
	BoxReboots                  // as BoxEnds, with all that the box's machine has but its disk
)

// Odd is an operation of somebody else's on a shared word, in a way that rnic does
// not speak.
type Odd struct {
	At      time.Duration
	Way     Way
	Region  int
	Offset  uint64
	Op      rnic.Op // a WRITE, a FETCH-ADD or a CAS
	Compare uint64
	Swap    uint64
}

// Way is how an odd operation comes.
type Way uint8

const (
	ByXRC Way = iota
	ByDC
	ByUC
	ByPieces // IP fragments, or an IPv6 extension header
	numWays
)

// Layout of a memory: words that everybody shares, words that the server's CPU
// writes, and then blocks, one a session.
const (
	sharedWords = 3
	cpuWord     = 64
	cpuWords    = 2
	firstBlock  = 256
)

// Twin is a world with its box.
type Twin struct {
	World
	Box *Box
}

// record is an operation that a session did.
type record struct {
	Step
	queue, life int
	id          int
	seq         uint64 // of a WRITE to a block, or a SEND
	region      *Region
	rkey        uint32
	since       clock.Time // when its queue pair was connected
	mtu         int        // of its path
	end         int        // of its connection in play.ends
	posted      clock.Time
	done        clock.Time
	status      rnic.Status
	data        []byte
	log         int // in words; -1: none
	open        bool
}

// epoch is the time of an R_Key, of a region or a window.
type epoch struct {
	mr       *rnic.MR // nil: of a window
	mw       *rnic.MW
	rkey     uint32
	from, to clock.Time
}

func (k *epoch) valid() bool {
	if k.mr != nil {
		return k.mr.Valid()
	}
	return k.mw.Bound() && k.mw.RKey == k.rkey
}

// TwinResult is what a run came to.
type TwinResult struct {
	Took    time.Duration
	Struck  int
	Records []*record
	Ops     [numClasses]int
	Words   *history.Log[history.Word, uint64]
	Slowest time.Duration
	Counts  map[string]uint64 // of the box
}

// Class is what may become of an operation, as its client sees it.
type Class uint8

const (
	OK Class = iota
	AccessError
	InvalidRequest
	OperationError
	RetryExceeded
	RNRExceeded
	Flushed
	Unfinished
	numClasses
)

var classNames = [numClasses]string{"ok", "access error", "invalid request", "operation error", "retries exceeded", "RNR retries exceeded", "flushed", "no completion"}

func (c Class) String() string { return classNames[c] }

// ClassOf is the class of a completion's status.
func ClassOf(s rnic.Status) Class {
	switch s {
	case rnic.Success:
		return OK
	case rnic.RemoteAccessError:
		return AccessError
	case rnic.RemoteInvalidRequestError:
		return InvalidRequest
	case rnic.RemoteOperationError:
		return OperationError
	case rnic.RetryExceededError:
		return RetryExceeded
	case rnic.RNRRetryExceededError:
		return RNRExceeded
	case rnic.WRFlushError:
		return Flushed
	}
	return Unfinished
}
