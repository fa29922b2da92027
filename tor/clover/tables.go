package clover

import "github.com/quillon/quillon/tor/index"

// keyState holds what is known of one key, in 40 bytes; with free list and index, a key takes 60
// bytes. The numbers of appends continue when a slot gets another key.
type keyState struct {
	key    uint64
	epoch  uint32 // changes whenever what was known is dropped
	tail   int32  // address slot of the tail; noSlot: not known
	sent   uint32 // number of the newest steered append
	sure   uint32 // all appends up to this one are known to be linked, or out of the chain
	cuts   uint32 // how often appends were given up: those that were steered before the last time, and were not known to be linked then, never will be
	waits  int32  // place of the first held answer that waits for more of them to be linked; 0: none
	hits   uint32 // uses since the last hot-key round
	seen   uint16 // age when it was last used
	server uint8
	used   bool
}

// known reports whether the key's tail is known.
func (k *keyState) known() bool { return k.tail != noSlot }

// usedAt notes that the key was used at an age. It does not write an unchanged age, because another
// worker may have the cache line.
func (k *keyState) usedAt(age uint16) {
	if k.seen != age {
		k.seen = age
	}
}

const noSlot = int32(-1)

type keyTable struct {
	s     []keyState
	ix    index.Index
	seed  uint64
	free  []int32
	epoch uint32
	n     int // number of slots in use
}

func newKeyTable(n int) keyTable {
	t := keyTable{s: make([]keyState, n), free: make([]int32, 0, n), ix: index.New(n)}
	for i := n - 1; i >= 0; i-- {
		t.s[i].tail = noSlot
		t.free = append(t.free, int32(i))
	}
	return t
}

func keyHash(server uint16, key uint64) uint32 { return uint32(index.Mix(key ^ uint64(server)<<48)) }

// hash returns the hash of a key. It is keyed, so that no client can choose keys that collide.
func (t *keyTable) hash(server uint16, key uint64) uint32 { return keyHash(server, key^t.seed) }

func (t *keyTable) find(server uint16, key uint64) int32 {
	h := t.hash(server, key)
	for p := t.ix.Start(h); t.ix.E[p] != 0; p = t.ix.Next(p) {
		if s, ok := t.ix.Slot(p, h); ok && t.s[s].key == key && uint16(t.s[s].server) == server {
			return s
		}
	}
	return noSlot
}

// insert adds a key that the table does not hold, and returns its slot; noSlot if no slot is free.
func (t *keyTable) insert(server uint16, key uint64) int32 {
	n := len(t.free) - 1
	if n < 0 {
		return noSlot
	}
	s := t.free[n]
	t.free = t.free[:n]
	t.n++
	t.epoch++
	k := &t.s[s]
	*k = keyState{key: key, server: uint8(server), epoch: t.epoch, cuts: k.cuts, sent: k.sent, sure: k.sent, tail: noSlot, used: true}
	t.ix.Put(t.hash(server, key), s)
	return s
}

// remove removes the key in slot s. It does not free the slot, because addresses may still name it.
func (t *keyTable) remove(s int32) {
	k := &t.s[s]
	t.ix.Del(t.hash(uint16(k.server), k.key), s)
	t.epoch++
	*k = keyState{epoch: t.epoch, cuts: k.cuts + 1, sent: k.sent, sure: k.sent, tail: noSlot}
	t.n--
}

// drop forgets the tail of key slot s.
func (t *keyTable) drop(s int32) {
	t.epoch++
	k := &t.s[s]
	k.tail, k.epoch = noSlot, t.epoch
}

func (t *keyTable) len() int   { return t.n }
func (t *keyTable) bytes() int { return len(t.s)*(40+4+4) + t.ix.Bytes() } // with the list of keys that were given up

// entry is one address to which an entry of a chain was written: 16 bytes.
// info packs, from the low end: key slot+1 (24 bits; 0 = free), entry version
// (8), region (16), slab class (4), flags (4), age (8).
type entry struct {
	va   uint64
	info uint64
}

const (
	maxKeys      = 1<<24 - 2
	entryTouched = 1 << 52 // a CAS was sent to this address since it was written
	entryClaimed = 1 << 53 // it is not known whether the server has executed the WRITE of this entry
)

func packEntry(key int32, version uint8, region uint16, class uint8) uint64 {
	return uint64(uint32(key+1)&0xFFFFFF) | uint64(version)<<24 | uint64(region)<<32 | uint64(class&15)<<48
}

func (e *entry) used() bool     { return e.info&0xFFFFFF != 0 }
func (e *entry) key() int32     { return int32(e.info&0xFFFFFF) - 1 }
func (e *entry) version() uint8 { return uint8(e.info >> 24) }
func (e *entry) region() uint16 { return uint16(e.info >> 32) }
func (e *entry) class() uint8   { return uint8(e.info>>48) & 15 }
func (e *entry) age() uint8     { return uint8(e.info >> 56) }
func (e *entry) touched() bool  { return e.info&entryTouched != 0 }
func (e *entry) claimed() bool  { return e.info&entryClaimed != 0 }

// ways is the associativity of the address table: 4 entries share a cache line.
const ways = 4

// addrTable finds the key of an address. It is set-associative; a new address replaces the oldest entry
// of its set, and a tail only if all are tails. If a tail is replaced, its key's tail is forgotten, so
// that a known tail is always in the table.
type addrTable struct {
	e    []entry
	mask uint32 // number of sets, less 1
	seed uint32 // key of the hash that selects the set
	n    uint32 // number of inserts, for the stamp
	tick uint8  // age stamp of new entries
}

func newAddrTable(n int) addrTable {
	sets := 1
	for sets*ways < n {
		sets *= 2
	}
	return addrTable{e: make([]entry, sets*ways), mask: uint32(sets - 1)}
}

func (t *addrTable) set(server uint16, va uint64) int32 {
	return int32(uint32(index.Mix(va^uint64(server)<<48^uint64(t.seed)<<16))&t.mask) * ways
}

func (t *addrTable) bytes() int { return len(t.e) * 16 }

func (t *addrTable) clear() { clear(t.e) }
