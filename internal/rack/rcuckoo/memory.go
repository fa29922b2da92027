package rcuckoo

import (
	"errors"
	"fmt"
	"slices"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/rack/rnic"
)

// Addresses at which the memory is registered. The lock table is at 0, since device memory is there.
const (
	locksVA   = 0
	tableVA   = 1 << 40
	leasesVA  = 2 << 40
	extentsVA = 3 << 40
)

// Region is remote memory.
type Region = onesided.Region

// Grant is what a client must know of the server.
type Grant struct {
	Layout                        Layout
	Table, Locks, Leases, Extents Region
}

// Table is the server's memory, as the server's host sees it. It outlives the NIC that serves it.
type Table struct {
	Layout
	rows, locks, leases, extents []byte
	used                         int // of the extents' memory
	find                         *finder
}

// NewTable makes an empty table.
func NewTable(l Layout) (*Table, error) {
	l, err := l.complete()
	if err != nil {
		return nil, err
	}
	t := &Table{Layout: l, rows: make([]byte, l.placesAt()+placeSize*l.Places), locks: make([]byte, l.Locks/8), leases: make([]byte, 8*l.Regions), extents: make([]byte, l.Extents)}
	t.find = newFinder(&t.Layout, BFS, 0)
	for i := range l.Rows {
		t.image(t.row(i)).seal()
	}
	for i := range l.Regions {
		le.PutUint64(t.leases[8*i:], freeLease(i))
	}
	return t, nil
}

func (t *Table) row(i int) row {
	n := t.RowSize()
	return t.rows[i*n : (i+1)*n : (i+1)*n]
}

// LockBytes is the size of the lock table, which is registered at address 0.
func (t *Table) LockBytes() int { return len(t.locks) }

// Serve lets the queue pairs of pd reach the memory.
func (t *Table) Serve(pd *rnic.PD) (Grant, error) {
	g := Grant{Layout: t.Layout}
	err := onesided.Serve(pd, onesided.Part{Mem: t.rows, VA: tableVA, To: &g.Table}, onesided.Part{Mem: t.locks, VA: locksVA, To: &g.Locks},
		onesided.Part{Mem: t.leases, VA: leasesVA, To: &g.Leases}, onesided.Part{Mem: t.extents, VA: extentsVA, To: &g.Extents})
	return g, err
}

// Chunk is the memory for one client's values.
type Chunk struct {
	At, Size int
	// Values is the size of the values that an earlier client may have put there; 0: there was no earlier
	// client.
	Values int
}

// Chunk gives a client n bytes for extents.
func (t *Table) Chunk(n int) (Chunk, error) {
	n = (n + 7) &^ 7
	if n < 0 || t.used+n > len(t.extents) {
		return Chunk{}, fmt.Errorf("rcuckoo: no room for %d bytes of extents: %d of %d are given", n, t.used, len(t.extents))
	}
	c := Chunk{At: t.used, Size: n}
	t.used += n
	return c, nil
}

// Errors of operations.
var (
	// ErrKey: a key is 0 or has more than 32 bits.
	ErrKey = errors.New("rcuckoo: keys are 1 to 2^32-1")
	// ErrValue: the table takes no values of that size.
	ErrValue = errors.New("rcuckoo: a value has the size that fits into an entry, or needs a wide entry and an extent of up to 64 MiB")
	// ErrFull: no cuckoo path leads to a free entry.
	ErrFull = errors.New("rcuckoo: the table is full")
	// ErrNoExtent: the client's memory for extents is used up.
	ErrNoExtent = errors.New("rcuckoo: no memory for the value: give the client a larger chunk")
	// ErrUnknown: the connection broke while the operation wrote. It may have happened or not.
	ErrUnknown = errors.New("rcuckoo: the connection broke in the middle: the operation may have happened or not")
	// ErrTorn: a row stays torn although its lock is not held by another session.
	ErrTorn = errors.New("rcuckoo: a row is torn though nobody writes it")
	// ErrDied: the client was made to fail (Config.Cut).
	ErrDied = errors.New("rcuckoo: the client died in the middle")
	// ErrExists: an insertion found the key (bulk loads only).
	ErrExists = errors.New("rcuckoo: the key is there already")
)

// Path tells what an insertion changed in the table.
type Path struct {
	// Rows is how many rows it wrote. Span is how far apart the outermost of them are, in rows and with both
	// of them: 1 when no entry was moved.
	Rows, Span int
}

// Insert adds a key with an inline value to the table, as a program on its host does.
func (t *Table) Insert(key uint32, value []byte) (Path, error) {
	if key == 0 {
		return Path{}, ErrKey
	}
	if len(value) > t.InlineSize() {
		return Path{}, ErrValue
	}
	a, b := t.RowsOf(key)
	if t.image(t.row(a)).find(key) >= 0 || t.image(t.row(b)).find(key) >= 0 {
		return Path{}, ErrExists
	}
	return t.InsertNew(key, value, t.find)
}

// InsertNew is Insert for a key that is not in the table; the caller must know this.
func (t *Table) InsertNew(key uint32, value []byte, f *finder) (Path, error) {
	if !f.find(key, t.row) {
		return Path{}, ErrFull
	}
	e := cell{Key: key}
	copy(e.inline[:], value)
	return t.shift(f.path, e), nil
}

// shift moves the entries along a path, and puts an entry at the path's beginning.
func (t *Table) shift(path []hop, e cell) Path {
	lo, hi := path[0].row, path[0].row
	for i := len(path) - 1; i >= 0; i-- {
		h := path[i]
		lo, hi = min(lo, h.row), max(hi, h.row)
		m := t.image(t.row(int(h.row)))
		if i > 0 {
			p := path[i-1]
			copy(m.entry(int(h.slot)), t.image(t.row(int(p.row))).entry(int(p.slot)))
		} else {
			m.put(int(h.slot), e)
		}
		m.seal()
	}
	return Path{len(path), int(hi-lo) + 1}
}

// Finder returns a search for the bulk insertions of a model.
func (t *Table) Finder(s Search, seed uint64) *finder { return newFinder(&t.Layout, s, seed) }

// Fill inserts keys, the first of which is next, until share of the entries are used. It returns the key
// after the last.
func (t *Table) Fill(next uint32, share float64, valueOf func(key uint32) []byte) (uint32, error) {
	n := int(share*float64(t.Rows*Slots)) - t.Count()
	for range n {
		if _, err := t.InsertNew(next, valueOf(next), t.find); err != nil {
			return next, err
		}
		next++
	}
	return next, nil
}

// FillExtents inserts as many keys with values of size bytes in extents.
func (t *Table) FillExtents(next uint32, keys, size int, valueOf func(key uint32) []byte) (uint32, error) {
	c, err := t.Chunk(keys * classOf(size))
	if err != nil {
		return next, err
	}
	for range keys {
		if !t.find.find(next, t.row) {
			return next, ErrFull
		}
		putExtent(t.extents[c.At:], next, valueOf(next))
		t.shift(t.find.path, cell{Key: next, extent: true, size: size, at: uint64(c.At)})
		c.At += classOf(size)
		next++
	}
	return next, nil
}

// Count is how many entries are used.
func (t *Table) Count() int {
	n := 0
	for i := range t.Rows {
		m := t.image(t.row(i))
		for s := range Slots {
			if m.key(s) != 0 {
				n++
			}
		}
	}
	return n
}

// Held is how many lock bits are set.
func (t *Table) Held() int {
	n := 0
	for _, b := range t.locks {
		for ; b != 0; b &= b - 1 {
			n++
		}
	}
	return n
}

// Check checks the table at rest: every row is whole, every key is in one of its rows and there only once,
// the values are where the entries say, and no lock or lease is held (unless dead: then dead clients may hold
// some). It returns the values.
func (t *Table) Check(dead bool) (map[uint32][]byte, error) {
	values := map[uint32][]byte{}
	for i := range t.Rows {
		m := t.image(t.row(i))
		if !m.whole() {
			return nil, fmt.Errorf("rcuckoo: row %d is torn", i)
		}
		for s := range Slots {
			k := m.key(s)
			if k == 0 {
				continue
			}
			if a, b := t.RowsOf(k); a != i && b != i {
				return nil, fmt.Errorf("rcuckoo: key %d is in row %d, not in %d or %d", k, i, a, b)
			}
			if values[k] != nil {
				return nil, fmt.Errorf("rcuckoo: key %d is there twice", k)
			}
			e := m.get(s)
			v := append([]byte{}, e.inline[:t.InlineSize()]...)
			if e.extent {
				var err error
				if e.at+uint64(e.size)+extentHeader > uint64(len(t.extents)) {
					return nil, fmt.Errorf("rcuckoo: key %d: the value is outside of the extents", k)
				}
				if v, err = getExtent(t.extents[e.at:][:e.size+extentHeader], k); err != nil {
					return nil, err
				}
				v = append([]byte{}, v...)
			}
			values[k] = v
		}
	}
	if n := t.Held(); n > 0 && !dead {
		return nil, fmt.Errorf("rcuckoo: %d locks are still held", n)
	}
	for i := range t.Regions {
		if w := le.Uint64(t.leases[8*i:]); leaseSet(w) && !dead {
			return nil, fmt.Errorf("rcuckoo: lease %d is still held as %#x", i, w)
		}
	}
	return values, nil
}

// Clone is a copy of the table.
func (t *Table) Clone() *Table {
	c := *t
	c.rows, c.locks, c.leases, c.extents = slices.Clone(t.rows), slices.Clone(t.locks), slices.Clone(t.leases), slices.Clone(t.extents)
	c.find = newFinder(&c.Layout, BFS, 0)
	return &c
}

// Tear damages the CRC of a row, for tests and for models of failures.
func (t *Table) Tear(i int) { t.row(i)[t.RowSize()-1] ^= 1 }
