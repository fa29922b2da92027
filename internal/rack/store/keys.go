package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/internal/rack/rcuckoo"
	"github.com/quillon/quillon/internal/rack/sherman"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// fill makes a value from its number. numberOf is the inverse; false: no client wrote these bytes.
func fill(b []byte, n uint64) []byte {
	var w [8]byte
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(w[:], n*(1+uint64(i)<<32))
		copy(b[i:], w[:])
	}
	return b
}

func numberOf(b []byte, scratch []byte) (uint64, bool) {
	if len(b) < 8 {
		return 0, false
	}
	n := binary.LittleEndian.Uint64(b)
	return n, string(fill(scratch[:len(b)], n)) == string(b)
}

// values has buffers for the values that a client's sessions write and read.
type values struct {
	spec    ClientSpec
	bytes   [][]byte // by session
	scratch []byte
}

func newValues(c ClientSpec) *values {
	v := &values{spec: c, bytes: make([][]byte, c.Sessions), scratch: make([]byte, c.Value)}
	for i := range v.bytes {
		v.bytes[i] = make([]byte, c.Value)
	}
	return v
}

// of returns the value with this number, in the session's buffer.
func (v *values) of(session int, n uint64) []byte { return fill(v.bytes[session], n) }

// done reports the end of an operation: found says whether the key was there, and got is its value. d.Err is
// the library's error; unknown is the error that means that the operation may have happened or not.
func (v *values) done(end clock.Time, d Done, found bool, got []byte, unknown error) {
	if errors.Is(d.Err, unknown) {
		d.Unknown, d.Err = true, nil
	}
	if found && !d.Write && d.Err == nil {
		ok := false
		if d.Value, ok = numberOf(got[:min(len(got), v.spec.Value)], v.scratch); !ok {
			d.Err = errForeign
		}
	}
	v.spec.Done(end, &d)
}

// errForeign is the error about a value that no client wrote.
var errForeign = errors.New("a value was read that nobody wrote")

// Sherman.

var shermanKind = Kind{
	Name: "sherman", Summary: "a B+tree whose pages have locks in the NIC's memory (Wang, Lu and Shu, SIGMOD 2022)",
	CheckSpec: func(s *Spec) error {
		s.Value = cmp.Or(s.Value, 8)
		if s.Value != 8 {
			return fmt.Errorf("value %d: sherman's entries have values of 8 bytes", s.Value)
		}
		return nil
	},
	Memory: func(s Spec) int64 { return int64(shermanPagesOf(s))*sherman.PageSize + sherman.LockTable },
	New:    newSherman, Client: shermanClient, Ordered: true,
}

// shermanPages is how many pages a client gets: those that are there split once each at most while
// clients only write keys that are there.
const shermanPages = 8

type shermanStore struct {
	tree  *sherman.Tree
	grant sherman.Grant
}

// shermanPagesOf returns the number of pages: leaves are filled to 80 %, and inner pages are at most a tenth.
func shermanPagesOf(s Spec) int {
	return s.Keys*10/8/sherman.Entries*11/10 + 16 + s.Clients*shermanPages
}

func newSherman(s Spec) (Store, error) {
	keys := make([]uint64, s.Keys)
	for i := range keys {
		keys[i] = uint64(i) + 1
	}
	t, err := sherman.NewTree(sherman.Layout{Nodes: 1, RootAt: 64, Size: uint64(shermanPagesOf(s)) * sherman.PageSize}, keys, func(k uint64) uint64 { return k }, 0)
	if err != nil {
		return nil, err
	}
	return &shermanStore{tree: t}, nil
}

func (t *shermanStore) Serve(pd *rnic.PD) (err error) {
	t.grant, err = t.tree.Node(0).Serve(pd)
	return err
}

// shermanAnnounced is what a client is told when it connects.
type shermanAnnounced struct {
	Size, RootAt  uint64
	Memory, Locks region
	Chunk         uint64
	Pages         uint32
}

// region is onesided.Region, as it is announced.
type region = onesided.Region

func (t *shermanStore) Join(int) ([]byte, error) {
	c, err := t.tree.Chunk(0, shermanPages)
	if err != nil {
		return nil, err
	}
	return pack(shermanAnnounced{t.tree.Size, t.tree.RootAt, t.grant.Memory, t.grant.Locks, uint64(c.At), uint32(c.Pages)}), nil
}

// Again keeps the pages that the client before has written, and gives the others away.
func (t *shermanStore) Again(announced []byte, _ int) ([]byte, error) {
	var a shermanAnnounced
	if err := unpack(announced, &a); err != nil {
		return nil, err
	}
	free := t.tree.Left(sherman.Chunk{At: sherman.Addr(a.Chunk), Pages: int(a.Pages)})
	a.Chunk, a.Pages = uint64(free.At), uint32(free.Pages)
	return pack(a), nil
}

func (t *shermanStore) Shared() []Span { return []Span{{t.grant.Locks.VA, sherman.LockTable}} }

func (t *shermanStore) Walk(died bool) (Contents, error) {
	values, err := t.tree.Check()
	if died && err != nil {
		// A client that dies with a lock keeps it: the tree cannot take the lock away.
		err = fmt.Errorf("%w (clients that died with locks keep them)", err)
	}
	return values, err
}

type shermanLibrary struct{ *sherman.Client }

func (shermanLibrary) Err() error { return nil }

func (l shermanLibrary) Facts() []Fact {
	s := l.Stats()
	return []Fact{{"searches", s.Searches}, {"writes", s.Writes}, {"deletes", s.Deletes}, {"ranges", s.Ranges}, {"round-trips", s.RoundTrips}, {"lock-failed", s.LockFailed}, {"locks-handed-over", s.HandedOver},
		{"splits", s.Splits}, {"torn", s.Torn}, {"connections-broken", s.Broken}}
}

func shermanClient(c ClientSpec) (Library, error) {
	var a shermanAnnounced
	if err := unpack(c.Announced, &a); err != nil {
		return nil, err
	}
	grant := sherman.Grant{Memory: a.Memory, Locks: a.Locks}
	x, err := sherman.NewClient(sherman.Config{
		Layout: sherman.Layout{Nodes: 1, Size: a.Size, RootAt: a.RootAt}, Client: c.Number, Sessions: c.Sessions, CQ: c.CQ,
		Chunk: sherman.Chunk{At: sherman.Addr(a.Chunk), Pages: int(a.Pages)},
		Dial: func(now clock.Time, session, _ int) (*rnic.QP, sherman.Grant, error) {
			qp, err := c.Dial(now, session)
			return qp, grant, err
		},
		Next: func(now clock.Time, session int) (sherman.Op, bool) {
			op, ok := c.Next(now, session)
			x := sherman.Op{Key: op.Key, Value: op.Value}
			switch {
			case op.Write && op.Value == 0:
				x.Kind = sherman.Delete
			case op.Write:
				x.Kind = sherman.Write
			case op.Last > 0:
				x.Kind, x.To = sherman.Range, op.Last
			}
			return x, ok
		},
		Done: func(r *sherman.Result) {
			c.Done(r.End, &Done{Session: r.Session, Start: r.Start, Write: r.Writes(), Value: r.Value, Pairs: r.Pairs, First: r.Retries == 0, Err: r.Err})
		},
	})
	return shermanLibrary{x}, err
}

// RCuckoo.

var rcuckooKind = Kind{
	Name: "rcuckoo", Summary: "a cuckoo hash table whose locks are bits in the NIC's memory (Grant, UCSD 2024)",
	CheckSpec: func(s *Spec) error {
		s.Value = cmp.Or(s.Value, 8)
		if s.Value < 8 || s.Value > 1<<20 {
			return fmt.Errorf("value %d: want 8 (in the entry) to %d bytes (in an extent)", s.Value, 1<<20)
		}
		return nil
	},
	Memory:      func(s Spec) int64 { l := cuckooLayout(s); return l.Memory() },
	EachSession: true, New: newRCuckoo, Client: rcuckooClient,
}

// extent returns the bytes of memory that a value takes, and chunk those of a client's memory for the values
// that it writes. Values stay in the chunk until other clients have replaced them.
func extent(value int) int { return rcuckoo.ExtentSize(value) }
func chunk(value int) int  { return 1024 * extent(value) }

type rcuckooStore struct {
	table   *rcuckoo.Table
	grant   rcuckoo.Grant
	spec    Spec
	scratch []byte
	given   int // places of sessions
}

// cuckooLayout returns a table with room for s.
func cuckooLayout(s Spec) rcuckoo.Layout {
	l := rcuckoo.Layout{Wide: true, RowsPerLock: 16, Places: s.Sessions}
	// Three quarters of the entries are used. A larger table has more rows that are full by chance, so fewer
	// are used there.
	l.Rows = 2 * (s.Keys*4/3/rcuckoo.Slots/2 + 8)
	if s.Keys > 1<<22 {
		l.Rows = 2 * (s.Keys*8/5/rcuckoo.Slots/2 + 8)
	}
	// A small table has a bit for each lock, so that each client can see the whole of it.
	for l.Locks = 64; l.Locks < l.Rows/l.RowsPerLock && l.Locks < rcuckoo.LockTable; l.Locks *= 2 {
	}
	if s.Value != l.InlineSize() {
		l.Extents = s.Keys*extent(s.Value) + s.Clients*chunk(s.Value)
	}
	return l
}

func newRCuckoo(s Spec) (Store, error) {
	l := cuckooLayout(s)
	t, err := rcuckoo.NewTable(l)
	if err != nil {
		return nil, err
	}
	b := make([]byte, s.Value)
	value := func(k uint32) []byte { return fill(b, uint64(k)) }
	x := &rcuckooStore{table: t, spec: s, scratch: make([]byte, s.Value)}
	if l.Extents > 0 {
		_, err = t.FillExtents(1, s.Keys, s.Value, value)
		return x, err
	}
	for k := range s.Keys {
		if _, err = t.Insert(uint32(k)+1, value(uint32(k)+1)); err != nil {
			return nil, fmt.Errorf("key %d: %w", k+1, err)
		}
	}
	return x, nil
}

func (t *rcuckooStore) Serve(pd *rnic.PD) (err error) {
	t.grant, err = t.table.Serve(pd)
	return err
}

// rcuckooAnnounced is what a client is told when it connects.
type rcuckooAnnounced struct {
	Rows, RowsPerLock, LocksPerMessage, Locks, Regions uint32
	Form, Hashing                                      uint8
	Wide, Independent                                  bool
	Factor                                             uint64 // a float64, by its bits
	Extents                                            uint64
	Table, LockTable, Leases, Values                   region
	ChunkAt, ChunkSize                                 uint64
	Place, Places                                      uint32
	Again                                              bool // another client had the chunk before
}

func (t *rcuckooStore) Join(sessions int) ([]byte, error) {
	l, g := &t.table.Layout, &t.grant
	if t.given+sessions > l.Places {
		return nil, fmt.Errorf("rcuckoo: no room for %d sessions: %d of %d are given: start the memory node with more (--most-sessions)", sessions, t.given, l.Places)
	}
	var c rcuckoo.Chunk
	if l.Extents > 0 {
		var err error
		if c, err = t.table.Chunk(chunk(t.spec.Value)); err != nil {
			return nil, err
		}
	}
	place := t.given
	t.given += sessions
	return pack(rcuckooAnnounced{uint32(l.Rows), uint32(l.RowsPerLock), uint32(l.LocksPerMessage), uint32(l.Locks), uint32(l.Regions),
		uint8(l.Form), uint8(l.Hashing), l.Wide, l.Independent, math.Float64bits(l.Factor), uint64(l.Extents),
		g.Table, g.Locks, g.Leases, g.Extents, uint64(c.At), uint64(c.Size), uint32(place), uint32(l.Places), false}), nil
}

// Again tells the next client to search the chunk for extents that are free.
func (t *rcuckooStore) Again(announced []byte, _ int) ([]byte, error) {
	var a rcuckooAnnounced
	if err := unpack(announced, &a); err != nil {
		return nil, err
	}
	a.Again = true
	return pack(a), nil
}

func (t *rcuckooStore) Shared() []Span {
	return []Span{{t.grant.Locks.VA, uint64(t.table.LockBytes())}, {t.grant.Leases.VA, uint64(8 * t.table.Regions)}}
}

func (t *rcuckooStore) Walk(died bool) (Contents, error) {
	values, err := t.table.Check(died)
	if err != nil {
		return nil, err
	}
	held := Contents{}
	for k, v := range values {
		// The memory of an extent is rounded up to 8 bytes.
		n, ok := numberOf(v[:min(len(v), t.spec.Value)], t.scratch)
		if !ok {
			return nil, fmt.Errorf("rcuckoo: key %d: %w", k, errForeign)
		}
		held[uint64(k)] = n
	}
	return held, nil
}

// rcuckooPatience is the time after which the holder of a lock counts as dead: much longer than a machine
// pauses that is shared with others.
const rcuckooPatience = 2 * time.Second

type rcuckooLibrary struct{ *rcuckoo.Client }

func (l rcuckooLibrary) Facts() []Fact {
	s := l.Stats()
	return []Fact{{"reads", s.Done[rcuckoo.Read]}, {"updates", s.Done[rcuckoo.Update]}, {"round-trips", s.RoundTrips}, {"messages", s.Messages},
		{"lock-failed", s.LockFailed}, {"locks-given-back", s.GaveBack}, {"torn", s.Torn}, {"suspected", s.Suspected}, {"repaired", s.Repaired}, {"shut-out", s.ShutOut}, {"not-shut-out", s.NotShut}, {"robbed", s.Robbed}, {"connections-broken", s.Broken}}
}

func rcuckooClient(c ClientSpec) (Library, error) {
	var a rcuckooAnnounced
	if err := unpack(c.Announced, &a); err != nil {
		return nil, err
	}
	l := rcuckoo.Layout{Rows: int(a.Rows), Form: rcuckoo.Form(a.Form), Wide: a.Wide, Hashing: rcuckoo.Hashing(a.Hashing), Independent: a.Independent,
		Factor: math.Float64frombits(a.Factor), RowsPerLock: int(a.RowsPerLock), LocksPerMessage: int(a.LocksPerMessage), Locks: int(a.Locks),
		Regions: int(a.Regions), Extents: int(a.Extents), Places: int(a.Places)}
	grant := rcuckoo.Grant{Layout: l, Table: a.Table, Locks: a.LockTable, Leases: a.Leases, Extents: a.Values}
	v := newValues(c)
	chunk := rcuckoo.Chunk{At: int(a.ChunkAt), Size: int(a.ChunkSize)}
	if a.Again {
		chunk.Values = c.Value
	}
	x, err := rcuckoo.NewClient(rcuckoo.Config{
		Layout: l, Sessions: c.Sessions, CQ: c.CQ, Chunk: chunk, FailAfter: cmp.Or(c.Patience, rcuckooPatience),
		Self: c.Self, Place: int(a.Place), Shut: c.Shut,
		Outside: c.Value != l.InlineSize(), Seed: c.Seed,
		Dial: func(now clock.Time, session int) (*rnic.QP, rcuckoo.Grant, error) {
			qp, err := c.Dial(now, session)
			return qp, grant, err
		},
		Next: func(now clock.Time, session int) (rcuckoo.Op, bool) {
			op, ok := c.Next(now, session)
			k := rcuckoo.Op{Kind: rcuckoo.Read, Key: op.Key}
			if op.Write {
				k.Kind, k.Value = rcuckoo.Update, v.of(session, op.Value)
			}
			return k, ok
		},
		Done: func(r *rcuckoo.Result) {
			v.done(r.End, Done{Session: r.Session, Start: r.Start, Write: r.Kind != rcuckoo.Read, First: r.Retries == 0, Err: r.Err}, r.Found, r.Got, rcuckoo.ErrUnknown)
		},
	})
	return rcuckooLibrary{x}, err
}
