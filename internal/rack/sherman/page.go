package sherman

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
)

// Addr is a global address: the memory node in the low 16 bits, the offset in the node's memory above. 0: no
// address.
type Addr uint64

// AddrOf returns the address of an offset on a node.
func AddrOf(node int, off uint64) Addr { return Addr(off<<16 | uint64(node)) }

// Node returns the memory node.
func (a Addr) Node() int { return int(a & 0xFFFF) }

// Off returns the offset in the node's memory.
func (a Addr) Off() uint64 { return uint64(a >> 16) }

func (a Addr) String() string { return fmt.Sprintf("%d:%#x", a.Node(), a.Off()) }

// Layout of a page; all integers are little-endian.
//
//	 0  8  embedded lock or CRC (not used)
//	 8  1  front version
//	 9  8  leftmost child (internal)
//	17  8  right sibling
//	25  1  level; leaves are 0
//	26  2  index of the last record, -1: none (internal)
//	28  8  lowest key
//	36  8  highest key, not included
//	44     61 records {key 8, child 8} or 54 {version 1, key 8, value 8, version 1}
//	..  1  rear version
const (
	PageSize = 1024

	frontAt    = 8
	leftmostAt = 9
	siblingAt  = 17
	levelAt    = 25
	lastAt     = 26
	lowestAt   = 28
	highestAt  = 36
	recordsAt  = 44

	// Branches is the number of records of an internal page, Entries that of a leaf.
	Branches   = 61
	branchSize = 16
	Entries    = 54
	entrySize  = 18
	// Offsets in an entry.
	entryKeyAt   = 1
	entryValueAt = 9
	entryRearAt  = 17

	internalRearAt = recordsAt + Branches*branchSize // 1020
	leafRearAt     = recordsAt + Entries*entrySize   // 1016
)

// MaxKey is above all keys, and 0 is below.
const MaxKey = ^uint64(0)

var le = binary.LittleEndian

// page is the bytes of a page.
type page []byte

func (p page) leftmost() Addr         { return Addr(le.Uint64(p[leftmostAt:])) }
func (p page) setLeftmost(a Addr)     { le.PutUint64(p[leftmostAt:], uint64(a)) }
func (p page) sibling() Addr          { return Addr(le.Uint64(p[siblingAt:])) }
func (p page) setSibling(a Addr)      { le.PutUint64(p[siblingAt:], uint64(a)) }
func (p page) level() int             { return int(p[levelAt]) }
func (p page) records() int           { return int(int16(le.Uint16(p[lastAt:]))) + 1 } // internal
func (p page) setRecords(n int)       { le.PutUint16(p[lastAt:], uint16(int16(n-1))) }
func (p page) lowest() uint64         { return le.Uint64(p[lowestAt:]) }
func (p page) setLowest(k uint64)     { le.PutUint64(p[lowestAt:], k) }
func (p page) highest() uint64        { return le.Uint64(p[highestAt:]) }
func (p page) setHighest(k uint64)    { le.PutUint64(p[highestAt:], k) }
func (p page) branch(i int) []byte    { return p[recordsAt+i*branchSize:][:branchSize] }
func (p page) branchKey(i int) uint64 { return le.Uint64(p.branch(i)) }
func (p page) child(i int) Addr       { return Addr(le.Uint64(p.branch(i)[8:])) }
func (p page) entryAt(i int) int      { return recordsAt + i*entrySize }
func (p page) entry(i int) entry      { return entry(p[p.entryAt(i):][:entrySize]) }

func (p page) rearAt() int {
	if p.level() == 0 {
		return leafRearAt
	}
	return internalRearAt
}

// whole reports whether one WRITE left the page like this.
func (p page) whole() bool { return p[frontAt] == p[p.rearAt()] }

// touch sets the page's next version.
func (p page) touch() {
	p[frontAt]++
	p[p.rearAt()] = p[frontAt]
}

// reset makes the page empty.
func (p page) reset(level int, lowest, highest uint64) {
	clear(p)
	p[levelAt] = byte(level)
	p.setRecords(0)
	p.setLowest(lowest)
	p.setHighest(highest)
	p.touch()
}

// entry is a record of a leaf; value 0: the entry is free.
type entry []byte

func (e entry) key() uint64   { return le.Uint64(e[entryKeyAt:]) }
func (e entry) value() uint64 { return le.Uint64(e[entryValueAt:]) }
func (e entry) whole() bool   { return e[0]&15 == e[entryRearAt]&15 }

// set writes key and value, with the entry's next version.
func (e entry) set(key, value uint64) {
	v := (e[0] + 1) & 15
	e[0], e[entryRearAt] = v, v
	le.PutUint64(e[entryKeyAt:], key)
	le.PutUint64(e[entryValueAt:], value)
}

// down returns the child of an internal page that has key, or to the right of which key is.
func (p page) down(key uint64) Addr {
	a := p.leftmost()
	for i := range p.records() {
		if p.branchKey(i) > key {
			break
		}
		a = p.child(i)
	}
	return a
}

// find returns the index of key's entry in a leaf, or of a free entry if there is none; -1: the leaf is full.
func (p page) find(key uint64) (i int, found bool) {
	free := -1
	for i := range Entries {
		e := p.entry(i)
		switch {
		case e.value() == 0:
			if free < 0 {
				free = i
			}
		case e.key() == key:
			return i, true
		}
	}
	return free, false
}

// pair is a key with its value or its child.
type pair struct{ key, to uint64 }

func byKey(a, b pair) int { return cmp.Compare(a.key, b.key) }

// pairs returns the records of a page, sorted by key.
func (p page) pairs() []pair {
	var all []pair
	if p.level() > 0 {
		for i := range p.records() {
			all = append(all, pair{p.branchKey(i), uint64(p.child(i))})
		}
	} else {
		for i := range Entries {
			if e := p.entry(i); e.value() != 0 {
				all = append(all, pair{e.key(), e.value()})
			}
		}
	}
	slices.SortFunc(all, byKey)
	return all
}

// fill replaces the records of a page.
func (p page) fill(all []pair) {
	if p.level() == 0 {
		for i := range Entries {
			switch e := p.entry(i); {
			case i < len(all):
				e.set(all[i].key, all[i].to)
			case e.value() != 0:
				e.set(0, 0)
			}
		}
		return
	}
	for i, x := range all {
		le.PutUint64(p.branch(i), x.key)
		le.PutUint64(p.branch(i)[8:], x.to)
	}
	p.setRecords(len(all))
}

// capacity returns the number of records that a page holds.
func (p page) capacity() int {
	if p.level() == 0 {
		return Entries
	}
	return Branches
}

// split moves the upper half of all, which has one record more than p holds, to right, and returns the lowest
// key there. at is the address of right.
func (p page) split(right page, at Addr, all []pair) uint64 {
	half := len(all) / 2
	sep := all[half].key
	right.reset(p.level(), sep, p.highest())
	right.setSibling(p.sibling())
	if p.level() > 0 {
		// The middle key goes to the level above; its child becomes the leftmost one.
		right.setLeftmost(Addr(all[half].to))
		right.fill(all[half+1:])
	} else {
		right.fill(all[half:])
	}
	p.fill(all[:half])
	p.setSibling(at)
	p.setHighest(sep)
	p.touch()
	return sep
}
