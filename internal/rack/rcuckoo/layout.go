package rcuckoo

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc64"
)

var le = binary.LittleEndian

// Form is what a row looks like.
type Form uint8

const (
	// Paper: 8 entries, a version of 8 bits, and a CRC-64 over both, as in the text. Each row verifies
	// itself.
	Paper Form = iota
	// Code: 8 entries only, as in the public code.
	Code
)

func (f Form) String() string { return [...]string{"paper", "code"}[f] }

// Slots is how many entries a row has.
const Slots = 8

// Layout is the geometry of a table. Clients and the server must agree on it.
type Layout struct {
	Rows int
	Form Form
	// Wide entries have 16 bytes: a key and a value of 8 bytes, or a key and the value's address. Other
	// entries have 8 bytes: a key and a value of 4 bytes each.
	Wide bool
	// Hashing says how a key's rows are found. Independent: the second row does not depend on the first.
	Hashing     Hashing
	Independent bool
	// Factor sets how far apart a key's rows are; 0 = 2.3.
	Factor float64
	// RowsPerLock rows share a lock; 0 = 16. One masked CAS takes at most LocksPerMessage locks, a power of
	// two up to 64; 0 = 64.
	RowsPerLock, LocksPerMessage int
	// Locks is the number of lock bits, a multiple of 64; 0 = LockTable. In a table that needs more locks,
	// several locks share a bit.
	Locks int
	// Regions is how many repairs can be under way at once, 1 to 128; 0 = 16.
	Regions int
	// Extents is the size in bytes of the memory for values outside of entries.
	Extents int
	// Places is how many sessions have a place in the table's memory, where they write which locks they want.
	// So the holder of a lock can be found after its death; 0: there are no places.
	Places int
}

// LockTable is how many lock bits a ConnectX-5's device memory (256 KiB) has.
const LockTable = 256 << 10 << 3

// maxRows keeps numbers of rows in 31 bits.
const maxRows = 1 << 30

// complete fills in the zero fields, and checks all.
func (l Layout) complete() (Layout, error) {
	for _, x := range []struct {
		v *int
		d int
	}{{&l.RowsPerLock, 16}, {&l.LocksPerMessage, 64}, {&l.Locks, LockTable}, {&l.Regions, 16}} {
		if *x.v == 0 {
			*x.v = x.d
		}
	}
	l.Factor = cmp.Or(l.Factor, 2.3)
	switch {
	case l.Rows < 2 || l.Rows > maxRows || l.Rows%2 != 0:
		return l, fmt.Errorf("rcuckoo: a table has 2 to 2^30 rows, an even number, not %d", l.Rows)
	case l.Form > Code || l.Hashing > HashCode:
		return l, fmt.Errorf("rcuckoo: row form %d or hashing %d is not known", l.Form, l.Hashing)
	case !(l.Factor > 1 && l.Factor <= 16):
		return l, fmt.Errorf("rcuckoo: the factor is above 1 and at most 16, not %v", l.Factor)
	case l.RowsPerLock < 1 || l.RowsPerLock > 4096:
		return l, fmt.Errorf("rcuckoo: a lock is of 1 to 4096 rows, not %d", l.RowsPerLock)
	case l.LocksPerMessage < 1 || l.LocksPerMessage > 64 || l.LocksPerMessage&(l.LocksPerMessage-1) != 0:
		return l, fmt.Errorf("rcuckoo: a message takes 1, 2, 4 ... or 64 locks, not %d", l.LocksPerMessage)
	case l.Locks < 64 || l.Locks%64 != 0 || l.Locks > LockTable:
		return l, fmt.Errorf("rcuckoo: a table has 64 to %d locks, a multiple of 64, not %d", LockTable, l.Locks)
	case l.Regions < 1 || l.Regions > 128:
		return l, fmt.Errorf("rcuckoo: a table has 1 to 128 regions, not %d", l.Regions)
	case l.Extents < 0 || uint64(l.Extents) >= 1<<48 || l.Extents > 0 && !l.Wide:
		return l, fmt.Errorf("rcuckoo: extents are memory of 0 to 2^48 bytes that wide entries point to, not %d", l.Extents)
	case l.Places < 0 || l.Places > maxPlaces:
		return l, fmt.Errorf("rcuckoo: a table has places for 0 to %d sessions, not %d", maxPlaces, l.Places)
	}
	return l, nil
}

// EntrySize is an entry's size in bytes.
func (l *Layout) EntrySize() int {
	if l.Wide {
		return 16
	}
	return 8
}

// InlineSize is the size of the values that lie in entries.
func (l *Layout) InlineSize() int { return l.EntrySize() / 2 }

// RowSize is a row's size in bytes. The version takes 8 of them, of which 7 are empty.
func (l *Layout) RowSize() int {
	if l.Form == Code {
		return Slots * l.EntrySize()
	}
	return Slots*l.EntrySize() + 16
}

// Memory is how many bytes the table takes. The layout's fields must be filled in.
func (l *Layout) Memory() int64 {
	return int64(l.placesAt()) + int64(placeSize*l.Places) + int64(l.Locks/8) + int64(l.Extents)
}

// logical is a row's lock, if each lock had a bit of its own.
func (l *Layout) logical(row int) int { return row / l.RowsPerLock }

// lockOf is the bit that stands for a logical lock.
func (l *Layout) lockOf(logical int) int { return logical % l.Locks }

// logicals is how many logical locks there are.
func (l *Layout) logicals() int { return (l.Rows + l.RowsPerLock - 1) / l.RowsPerLock }

// regionOf is the region of a lock bit. Neighbours are mostly in one region.
func (l *Layout) regionOf(lock int) int {
	return lock * l.Regions / min(l.Locks, l.logicals())
}

// Layout of an entry in a row:
//
//	narrow:  key u32 | value 4 bytes
//	wide:    word u64 = key<<32 | size<<1 | type | value 8 bytes, or the extent's offset u64
//
// type 1: the value is in an extent, and size counts units of 8 bytes. Key 0: there is no entry.

// row is the image of a row.
type row []byte

// image is a view of a row's bytes.
type image struct {
	l *Layout
	b row
}

func (l *Layout) image(b []byte) image { return image{l, b} }

// entry is the bytes of an entry.
func (m image) entry(slot int) []byte {
	n := m.l.EntrySize()
	return m.b[slot*n : (slot+1)*n]
}

// key is an entry's key; 0: there is no entry.
func (m image) key(slot int) uint32 {
	if m.l.Wide {
		return le.Uint32(m.b[slot*16+4:])
	}
	return le.Uint32(m.b[slot*8:])
}

// find is the slot of a key; -1: the row does not have it.
func (m image) find(key uint32) int {
	for i := range Slots {
		if m.key(i) == key {
			return i
		}
	}
	return -1
}

// hole is a free slot; -1: none.
func (m image) hole() int { return m.find(0) }

var ecma = crc64.MakeTable(crc64.ECMA)

// versionAt is where the version lies in a row.
func (l *Layout) versionAt() int { return Slots * l.EntrySize() }

// seal gives the row the next version, and computes its CRC.
func (m image) seal() {
	if m.l.Form == Code {
		return
	}
	n := m.l.versionAt()
	m.b[n]++
	le.PutUint64(m.b[n+8:], crc64.Checksum(m.b[:n+8], ecma))
}

// whole reports whether the row's CRC is right.
func (m image) whole() bool {
	if m.l.Form == Code {
		return true
	}
	n := m.l.versionAt()
	return le.Uint64(m.b[n+8:]) == crc64.Checksum(m.b[:n+8], ecma)
}

// sum is a number that changes with the row. (The CRC over a row and its CRC is always the same.)
func (m image) sum() uint64 {
	if m.l.Form == Paper {
		return le.Uint64(m.b[m.l.versionAt()+8:])
	}
	return crc64.Checksum(m.b, ecma)
}

// sumOf is a number that changes with any of the rows.
func (l *Layout) sumOf(rows []byte) (sum uint64) {
	for n := l.RowSize(); len(rows) >= n; rows = rows[n:] {
		sum = sum*0x9E3779B97F4A7C15 + l.image(rows[:n]).sum()
	}
	return sum
}

// put writes an entry.
func (m image) put(slot int, e cell) {
	b := m.entry(slot)
	if !m.l.Wide {
		le.PutUint32(b, e.Key)
		copy(b[4:8], e.inline[:4])
		return
	}
	w := uint64(e.Key) << 32
	if e.extent {
		w |= uint64((e.size+7)/8)<<1 | 1
		le.PutUint64(b[8:], e.at)
	} else {
		copy(b[8:], e.inline[:])
	}
	le.PutUint64(b, w)
}

// get decodes an entry.
func (m image) get(slot int) cell {
	b := m.entry(slot)
	e := cell{Key: m.key(slot)}
	if !m.l.Wide {
		copy(e.inline[:4], b[4:8])
		return e
	}
	if w := le.Uint64(b); w&1 != 0 {
		e.extent, e.size, e.at = true, int(w>>1&0x7FFFFF)*8, le.Uint64(b[8:])&(1<<48-1)
		return e
	}
	copy(e.inline[:], b[8:])
	return e
}

// cell is a key with its value, or with the place of its value.
type cell struct {
	Key    uint32
	inline [8]byte
	extent bool
	size   int    // of the value, in an extent; rounded up to 8 when read from a row
	at     uint64 // offset of the extent
}

// maxValue is the largest size of an extent in bytes.
const maxValue = 1 << 26
