package p4

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/gaissmai/bart"

	"github.com/quillon/quillon/nf/classify"
)

// none stands for no entry.
const none = classify.None

// matcher finds the entry that a key hits. The keys are stored in the table's rows.
type matcher interface {
	find(t *table, key []uint64) uint32
	insert(t *table, e uint32)
	remove(t *table, e uint32)
}

// hashWords returns a hash of a key.
func hashWords(key []uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, w := range key {
		hi, lo := bits.Mul64(h^w, 0xd6e8feb86659fd93)
		h = hi ^ lo
	}
	return h
}

// hashIndex maps keys to entries by open addressing with linear probing, at most half full. It stores only
// entry numbers; the keys are in the owner's rows. When it grows, each add moves a few entries, so that no add
// takes long.
type hashIndex struct {
	slots slots
	used  int
	old   slots // the smaller slots, from which entries move; nil: the index does not grow now
	moved int   // slots of old whose entries have moved
}

// slots holds entry numbers + 1; 0 marks a free slot.
type slots []uint32

// tombstone marks a slot of old whose entry has moved or was deleted. A search continues after it.
const tombstone = ^uint32(0)

// home returns the slot at which the search for a hash begins.
func (s slots) home(h uint64) int { return int(h & uint64(len(s)-1)) }

func (s slots) put(e uint32, h uint64) {
	i := s.home(h)
	for s[i] != 0 {
		i = (i + 1) & (len(s) - 1)
	}
	s[i] = e + 1
}

// of returns the slot of an entry, or -1 if there is none.
func (s slots) of(e uint32, h uint64) int {
	if len(s) == 0 {
		return -1
	}
	i := s.home(h)
	for s[i] != e+1 {
		if s[i] == 0 {
			return -1
		}
		i = (i + 1) & (len(s) - 1)
	}
	return i
}

// add adds an entry whose key is not in the index.
func (x *hashIndex) add(e uint32, h uint64, hash func(e uint32) uint64) {
	if 2*(x.used+1) > len(x.slots) { // old was emptied long before
		x.old, x.moved, x.slots = x.slots, 0, make(slots, max(8, 2*len(x.slots)))
	}
	for end := min(x.moved+8, len(x.old)); x.moved < end; x.moved++ {
		if s := x.old[x.moved]; s != 0 && s != tombstone {
			x.slots.put(s-1, hash(s-1))
			x.old[x.moved] = tombstone
		}
	}
	if x.moved == len(x.old) {
		x.old, x.moved = nil, 0
	}
	x.slots.put(e, h)
	x.used++
}

// del removes an entry and closes the gap that it leaves.
func (x *hashIndex) del(e uint32, h uint64, hash func(e uint32) uint64) {
	if i := x.old.of(e, h); i >= 0 {
		x.old[i] = tombstone
		x.used--
		return
	}
	i := x.slots.of(e, h)
	if i < 0 {
		return
	}
	x.used--
	m := len(x.slots) - 1
	for j := (i + 1) & m; x.slots[j] != 0; j = (j + 1) & m {
		home := x.slots.home(hash(x.slots[j] - 1))
		if (j-home)&m >= (j-i)&m {
			x.slots[i] = x.slots[j]
			i = j
		}
	}
	x.slots[i] = 0
}

func sameWords(a, b []uint64) bool {
	for i, w := range a {
		if w != b[i] {
			return false
		}
	}
	return true
}

// exactMatcher is a hash of whole keys.
type exactMatcher struct{ idx hashIndex }

func (m *exactMatcher) find(t *table, key []uint64) uint32 {
	x := &m.idx
	if x.used == 0 {
		return none
	}
	h := hashWords(key)
	e := t.seek(x.slots, key, h)
	if e == none && x.old != nil {
		e = t.seek(x.old, key, h)
	}
	return e
}

// seek returns the entry of slots with a key.
func (t *table) seek(s slots, key []uint64, h uint64) uint32 {
	w := len(key)
	for i := s.home(h); s[i] != 0; i = (i + 1) & (len(s) - 1) {
		if x := s[i]; x != tombstone {
			at := int(x-1) * w
			if sameWords(key, t.keys[at:at+w]) {
				return x - 1
			}
		}
	}
	return none
}

func (m *exactMatcher) insert(t *table, e uint32) {
	m.idx.add(e, hashWords(t.key(e)), func(e uint32) uint64 { return hashWords(t.key(e)) })
}

func (m *exactMatcher) remove(t *table, e uint32) {
	m.idx.del(e, hashWords(t.key(e)), func(e uint32) uint64 { return hashWords(t.key(e)) })
}

// lpmMatcher matches a key that is one LPM field of at most 128 bits. The field is aligned to the left of an IP
// address, so that bart can look it up.
type lpmMatcher struct {
	routes bart.Fast[uint32]
	bits   int
}

func (m *lpmMatcher) addr(key []uint64) netip.Addr {
	if m.bits <= 32 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(key[0])<<uint(32-m.bits))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	lo, hi := key[0], uint64(0)
	if len(key) > 1 {
		hi = key[1]
	}
	if s := uint(128 - m.bits); s >= 64 {
		hi, lo = lo<<(s-64), 0
	} else if s > 0 {
		hi, lo = hi<<s|lo>>(64-s), lo<<s
	}
	binary.BigEndian.PutUint64(b[:], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}

func (m *lpmMatcher) find(_ *table, key []uint64) uint32 {
	e, ok := m.routes.Lookup(m.addr(key))
	if !ok {
		return none
	}
	return e
}

func (m *lpmMatcher) insert(t *table, e uint32) {
	m.routes.Insert(netip.PrefixFrom(m.addr(t.key(e)), int(t.rows[e].prefix)), e)
}

func (m *lpmMatcher) remove(t *table, e uint32) {
	m.routes.Delete(netip.PrefixFrom(m.addr(t.key(e)), int(t.rows[e].prefix)))
}

// setMatcher finds entries with any masks and ranges. The classify.Set stores their keys and masks.
type setMatcher struct{ *classify.Set }

func newSetMatcher(d *tableDef) setMatcher {
	var fields []classify.Field
	for _, k := range d.keys {
		fields = append(fields, classify.Field{Bits: k.bits, Range: k.kind == Range})
	}
	return setMatcher{classify.New(fields)}
}

func (m setMatcher) find(_ *table, key []uint64) uint32 { return m.Find(key) }

// insert does nothing, because table.add inserts the entry into the Set.
func (m setMatcher) insert(*table, uint32) {}

func (m setMatcher) remove(_ *table, e uint32) { m.Remove(e) }
