package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sort"
	"strings"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/internal/rack/sherman"
	"github.com/quillon/quillon/internal/resident"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Spec is what a memory node holds.
type Spec struct {
	Keys int // keys 1 to Keys; the number of each one's value is the key. For locks: the number of words
	// Value is the number of bytes of a value; 0 = the store's own.
	Value int
	// Clients is the number of clients for which there is room, and Sessions the number of sessions of all of
	// them.
	Clients, Sessions int
	// Work is what sessions do, for a Kind with Works.
	Work string
}

// Span is a range of memory.
type Span struct{ VA, Len uint64 }

// Store is a memory node's side of a store.
type Store interface {
	// Serve registers the memory in pd, so that its queue pairs can access the memory.
	Serve(pd *rnic.PD) error
	// Join gives a place to the next client, which has this number of sessions, and returns what the client
	// must know: at most MaxAnnounced bytes. After an error no place is taken.
	Join(sessions int) ([]byte, error)
	// Again gives a place, by its announcement, to another client. The client before must be gone for good,
	// with none of its requests under way. What was written stays.
	Again(announced []byte, sessions int) ([]byte, error)
	// Shared is the memory that only clients change, word by word: locks. A middlebox may keep these words.
	Shared() []Span
	// Walk reads the memory at rest, and returns what it holds, to be compared with the clients' answers, or
	// an error if the memory is not sound. died: clients may have died in the middle of an operation.
	Walk(died bool) (Contents, error)
}

// Contents is what a memory node holds: by key the number of its value (at first the key itself), or for
// locks the words by address (at first 0).
type Contents map[uint64]uint64

// MaxAnnounced is the most bytes that a Store may announce: a ConnectReply carries 196.
const MaxAnnounced = 196 - headLen

// ClientSpec is what a store's client library is made with.
type ClientSpec struct {
	Announced []byte
	Number    int // the client's number, as the server counts
	Sessions  int
	Value     int // bytes of a value
	CQ        *rnic.CQ
	Seed      uint64
	// Dial connects a session again; see the libraries.
	Dial func(now clock.Time, session int) (*rnic.QP, error)
	// Self is the client's address. Patience is the time after which others that do nothing count as dead; 0:
	// the store's own. Shut asks a fence on the way to shut them out.
	Self     netip.Addr
	Patience time.Duration
	Shut     onesided.Shutter
	// Next returns a session's next operation; false: there is none at present.
	Next func(now clock.Time, session int) (Op, bool)
	// Done is called at the end of each operation.
	Done func(now clock.Time, d *Done)
	// Log records what sessions of the store locks did.
	Log *Log
}

// Op is an operation of a key/value store.
type Op struct {
	Key   uint64
	Write bool
	// Value is the number of the value to be written: its first 8 bytes, from which the rest is made; 0: the
	// key is deleted.
	Value uint64
	// Last makes a read one of all keys from Key to Last; 0: the read is of Key alone.
	Last uint64
}

// Pair is a key with its value.
type Pair = sherman.Pair

// Done is the end of an operation.
type Done struct {
	Session int
	Start   clock.Time
	Write   bool
	Value   uint64 // value that was read; 0: the key is not there
	Pairs   []Pair // keys of a range that are there
	// First: the operation succeeded at the first try.
	First bool
	// Unknown: the connection broke, so it is not known whether a write happened.
	Unknown bool
	Err     error
}

// Library is a store's client library, with the work that it does.
type Library interface {
	host.App
	// Idle reports whether no operation is under way.
	Idle() bool
	// Err returns an error that ended the work, or that must not happen.
	Err() error
	// Facts returns the library's counters.
	Facts() []Fact
}

// Fact is a counter with its name.
type Fact struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// Log records operations and their answers: Keys those of key/value stores, Words and Locks those of the
// store locks.
type Log struct {
	Keys  history.Log[history.Register, uint64]
	Words history.Log[history.Word, uint64]
	Locks history.Log[history.Lock, struct{}]
}

// Kind is a kind of store.
type Kind struct {
	Name, Summary string
	// Works are what sessions can do; none: they read and write keys, by YCSB.
	Works []string
	// Ordered: the store orders its keys, so that clients can read ranges; and clients can delete keys.
	Ordered bool
	// EachSession: each session takes one of Spec.Sessions places. Otherwise each client takes a place.
	EachSession bool
	// CheckSpec refuses values that the store cannot have, and sets defaults.
	CheckSpec func(s *Spec) error
	// Memory returns how many bytes a checked Spec takes.
	Memory func(s Spec) int64
	// New makes the store.
	New func(s Spec) (Store, error)
	// Client makes a client library. It returns an error if the announcement is not of this store.
	Client func(c ClientSpec) (Library, error)
}

// kinds is the only table of stores: a new store is added here.
var kinds = []*Kind{&locksKind, &shermanKind, &rcuckooKind, &fuseeKind}

// Kinds returns all stores.
func Kinds() []*Kind { return kinds }

// Names returns the names of all stores.
func Names() (names []string) {
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// Named returns the store with this name.
func Named(name string) (*Kind, error) {
	for _, k := range kinds {
		if k.Name == name {
			return k, nil
		}
	}
	return nil, fmt.Errorf("store %q is none of %s", name, strings.Join(Names(), ", "))
}

// Check refuses values that the store cannot have, or for which the machine has no memory, and sets defaults.
func (k *Kind) Check(s *Spec) error {
	s.Clients = cmp.Or(s.Clients, 64)
	s.Sessions = cmp.Or(s.Sessions, 1024)
	if s.Work == "" && len(k.Works) > 0 {
		s.Work = k.Works[0]
	}
	switch {
	case s.Keys < 1 || s.Keys > 1<<24:
		return fmt.Errorf("keys %d: want 1 to %d", s.Keys, 1<<24)
	case s.Clients < 1 || s.Clients > 1<<12:
		return fmt.Errorf("clients %d: want 1 to %d", s.Clients, 1<<12)
	case s.Sessions < 1 || s.Sessions > 1<<14:
		return fmt.Errorf("sessions %d: want 1 to %d", s.Sessions, 1<<14)
	case s.Work != "" && len(k.Works) == 0:
		return fmt.Errorf("work %q: %s has keys and values, and no work but to read and write them", s.Work, k.Name)
	}
	for i, w := range k.Works {
		if w == s.Work {
			break
		}
		if i == len(k.Works)-1 {
			return fmt.Errorf("work %q is none of %s", s.Work, strings.Join(k.Works, ", "))
		}
	}
	if err := k.CheckSpec(s); err != nil {
		return err
	}
	most := int64(mostMemory)
	if n := resident.May(); n > 0 {
		most = min(most, n)
	}
	return k.fits(*s, most)
}

// mostMemory is the most bytes that a memory node takes, even if the machine has more.
const mostMemory = 1 << 33

// fits refuses a Spec that takes more than most bytes, and says how many keys fit.
func (k *Kind) fits(s Spec, most int64) error {
	n := k.Memory(s)
	if n <= most {
		return nil
	}
	keys := sort.Search(s.Keys, func(i int) bool {
		less := s
		less.Keys = i + 1
		return k.Memory(less) > most
	})
	what := fmt.Sprintf("keys %d", s.Keys)
	if s.Value > 0 {
		what += fmt.Sprintf(", value %d", s.Value)
	}
	if keys == 0 {
		return fmt.Errorf("%s: they take %d MB of memory, of %d that a memory node may have here: ask for fewer clients and sessions, or smaller values", what, n>>20, most>>20)
	}
	return fmt.Errorf("%s: they take %d MB of memory, of %d that a memory node may have here: at most %d keys fit", what, n>>20, most>>20, keys)
}

var be = binary.BigEndian

// pack writes fixed-size values big-endian; unpack reads them.
func pack(v any) []byte {
	b, err := binary.Append(nil, be, v)
	if err != nil {
		panic(err) // the type of v has no fixed size
	}
	return b
}

func unpack(b []byte, v any) error {
	if _, err := binary.Decode(b, be, v); err != nil {
		return errors.New("what the server tells is too short: it is of another version")
	}
	return nil
}

// Verdict is the result of a check of all operations.
type Verdict struct {
	Keys    int    `json:"keys"`    // keys in the memory; for locks words
	Written uint64 `json:"written"` // acknowledged writes; for locks all operations that change words
	Lost    int    `json:"lost"`    // keys that were there at first, were never deleted, and are missing
	Checked int    `json:"checked"` // operations that were checked for one order
	Wrong   string `json:"wrong,omitempty"`
}

// OK reports whether nothing is wrong.
func (v *Verdict) OK() bool { return v.Wrong == "" && v.Lost == 0 }

// Judge checks the recorded answers, and what a memory at rest holds. No other clients may have worked on the
// memory. died: clients may have died in the middle of an operation. Without the memory (nil) only the
// answers are checked.
func (l *Log) Judge(m Store, died bool, keys int) Verdict {
	var v Verdict
	for _, o := range l.Keys.Ops() {
		if o.In.Write && !o.Open() {
			v.Written++
		}
	}
	for _, o := range l.Words.Ops() {
		if o.In.Op != rnic.OpRead && !o.Open() {
			v.Written++
		}
	}
	v.Checked = l.Keys.Len() + l.Words.Len() + l.Locks.Len()
	if m != nil {
		held, err := m.Walk(died)
		if err != nil {
			v.Wrong = err.Error()
			return v
		}
		v.Keys = len(held)
		l.close(held, keys, &v)
	}
	initial := func(k uint64) uint64 { return k }
	if err := errors.Join(history.Check(history.Registers(initial), &l.Keys, 0), history.Check(history.Words(nil), &l.Words, 0),
		history.Check(history.Locks(), &l.Locks, 0)); err != nil {
		v.Wrong = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return v
}

// close adds a read of all that the memory holds to the end of the histories.
func (l *Log) close(held Contents, keys int, v *Verdict) {
	if l.Words.Len() > 0 {
		reader := l.Words.NewClient()
		for a, w := range held {
			l.Words.Return(l.Words.Call(reader, clock.Never, history.Word{Op: rnic.OpRead, Addr: a}), clock.Never-1, w)
		}
		return
	}
	deleted := map[uint64]bool{} // keys that were deleted at any time: only the history can say whether they may be missing
	for _, o := range l.Keys.Ops() {
		if o.In.Write && o.In.Value == 0 {
			deleted[o.In.Key] = true
		}
	}
	for k := uint64(1); k <= uint64(keys); k++ {
		n, ok := held[k]
		if !ok && !deleted[k] {
			v.Lost++
		}
		l.Keys.Return(l.Keys.Call(mostClients, clock.Never-1, history.Register{Key: k}), clock.Never-1, n)
	}
}

// mostClients is a client number in a history of keys that no session has.
const mostClients = 1 << 30
