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

// Spec is what a memory node is to hold.
type Spec struct {
	Keys int // 1 to Keys, each with itself as its value; of locks: words
	// Value is the bytes of a value; 0 = the store's own.
	Value int
	// Clients is how many there is room for, and Sessions how many they have together.
	Clients, Sessions int
	// Work is what sessions do, where a Kind has Works.
	Work string
}

// Span is memory by its address.
type Span struct{ VA, Len uint64 }

// Store is a memory node's side of a store.
type Store interface {
	// Serve lets the queue pairs of pd reach the memory.
	Serve(pd *rnic.PD) error
	// Join gives the next client, of so many sessions, its place, and returns what it must
	// know: at most MaxAnnounced bytes. After an error nothing is taken.
	Join(sessions int) ([]byte, error)
	// Again gives a place, as it was announced, to another client: who had it is gone for good, and nothing of it is on
	// its way. What was written stays.
	Again(announced []byte, sessions int) ([]byte, error)
	// Shared is memory that only clients change, word by word: locks. A middlebox may keep it.
	Shared() []Span
	// Walk looks at the memory at rest: whether it is sound, where clients may have died
	// in the middle, and what it holds, to be compared with what clients were told.
	Walk(died bool) (Contents, error)
}

// Contents is what a memory node holds: the numbers of values by key (which begin as the
// keys), or of locks the words by address (which begin as 0).
type Contents map[uint64]uint64

// MaxAnnounced is how many bytes a Store has to tell a client.
const MaxAnnounced = 196 - headLen

// ClientSpec is what a store's client library needs.
type ClientSpec struct {
	Announced []byte
	Number    int // of the client, as the server counts
	Sessions  int
	Value     int // bytes of a value
	CQ        *rnic.CQ
	Seed      uint64
	// Dial connects a session anew; see the libraries.
	Dial func(now clock.Time, session int) (*rnic.QP, error)
	// Self is the client's address, and Patience how long others may stand still until they count as dead; 0: the store's
	// own. Shut asks a fence on the way to shut them out.
	Self     netip.Addr
	Patience time.Duration
	Shut     onesided.Shutter
	// Next is a session's next operation, false: none now.
	Next func(now clock.Time, session int) (Op, bool)
	// Done is told every operation's end.
	Done func(now clock.Time, d *Done)
	// Log records what locks' sessions did.
	Log *Log
}

// Op is an operation of a key/value store.
type Op struct {
	Key   uint64
	Write bool
	// Value is the number of a write's value: the first 8 bytes, of which the rest is made; 0: the key is deleted.
	Value uint64
	// Last makes a read one of all keys from Key to Last; 0: of Key alone.
	Last uint64
}

// Pair is a key with its value.
type Pair = sherman.Pair

// Done is the end of an operation.
type Done struct {
	Session int
	Start   clock.Time
	Write   bool
	Value   uint64 // of a read; 0: the key is not there
	Pairs   []Pair // of a read of several keys: those that are there
	// First: nothing had to be tried again.
	First bool
	// Unknown: the connection broke, and nobody knows whether a write happened.
	Unknown bool
	Err     error
}

// Library is a store's client library with the work that it does.
type Library interface {
	host.App
	// Idle reports that no operation is under way.
	Idle() bool
	// Err is what ended the work, or must not have happened.
	Err() error
	// Facts are what the library has counted, by name.
	Facts() []Fact
}

// Fact is a count with its name.
type Fact struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// Log is what clients were told: of a key/value store Keys, of locks the others.
type Log struct {
	Keys  history.Log[history.Register, uint64]
	Words history.Log[history.Word, uint64]
	Locks history.Log[history.Lock, struct{}]
}

// Kind is a kind of store.
type Kind struct {
	Name, Summary string
	// Works are what sessions can do; none: read and write keys, by YCSB.
	Works []string
	// Ordered: it has its keys in order, so that ranges can be read, and deletes keys.
	Ordered bool
	// EachSession: each session takes a place of Spec.Sessions, and not each client one.
	EachSession bool
	// CheckSpec refuses what cannot be, and fills in what is 0.
	CheckSpec func(s *Spec) error
	// Memory is how many bytes the memory of a checked Spec takes.
	Memory func(s Spec) int64
	// New makes it.
	New func(s Spec) (Store, error)
	// Client makes a client library; an error where what was announced is not its own's.
	Client func(c ClientSpec) (Library, error)
}

// kinds is the one table of stores: who adds one adds it here.
var kinds = []*Kind{&locksKind, &shermanKind, &rcuckooKind, &fuseeKind}

// Kinds are all stores.
func Kinds() []*Kind { return kinds }

// Names are theirs.
func Names() (names []string) {
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// Named is the kind with a name.
func Named(name string) (*Kind, error) {
	for _, k := range kinds {
		if k.Name == name {
			return k, nil
		}
	}
	return nil, fmt.Errorf("store %q is none of %s", name, strings.Join(Names(), ", "))
}

// Check refuses what cannot be, and fills in what is 0.
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

// mostMemory is how many bytes a memory node has at most, and any machine has less.
const mostMemory = 1 << 33

// fits refuses what takes more memory than most, and says how many keys fit.
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

// pack appends fixed-size values; unpack reads them.
func pack(v any) []byte {
	b, err := binary.Append(nil, be, v)
	if err != nil {
		panic(err) // v is not of fixed size
	}
	return b
}

func unpack(b []byte, v any) error {
	if _, err := binary.Decode(b, be, v); err != nil {
		return errors.New("what the server tells is too short: it is of another version")
	}
	return nil
}

// Verdict is what a check of everything came to.
type Verdict struct {
	Keys    int    `json:"keys"`    // that the memory holds: of locks, words
	Written uint64 `json:"written"` // writes that were acknowledged: of locks, all operations that change words
	Lost    int    `json:"lost"`    // keys that were there, and are not
	Checked int    `json:"checked"` // operations for which there must be one order
	Wrong   string `json:"wrong,omitempty"`
}

// OK reports that nothing is wrong.
func (v *Verdict) OK() bool { return v.Wrong == "" && v.Lost == 0 }

// Judge checks what clients were told, and what a memory at rest holds. Nobody else may have worked
// on it. died: clients may have died in the middle. Without the memory (nil) only what
// clients were told is checked.
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

// close ends the histories with what the memory holds.
func (l *Log) close(held Contents, keys int, v *Verdict) {
	if l.Words.Len() > 0 {
		reader := l.Words.NewClient()
		for a, w := range held {
			l.Words.Return(l.Words.Call(reader, clock.Never, history.Word{Op: rnic.OpRead, Addr: a}), clock.Never-1, w)
		}
		return
	}
	deleted := map[uint64]bool{} // at some time: whether they may be away at the end, the history says
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

// mostClients is more than any session's number in a history of keys.
const mostClients = 1 << 30
