package fusee

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
)

var le = binary.LittleEndian

// Layout is the geometry of a store. Clients and memory nodes must agree on it.
type Layout struct {
	// Nodes is the number of memory nodes, 1 to 16; 0 = 1.
	Nodes int
	// Replicas is the number of nodes that have a copy of each slot and of each object, the primary included;
	// 0 = 1, at most 5.
	Replicas int
	// Subtables is the number of subtables, a power of two; 0 = 32.
	Subtables int
	// Groups is the number of bucket groups of a subtable, an even number; 0 = 64. A group is two main
	// buckets and an overflow bucket that both use.
	Groups int
	// Unit is the unit of objects' sizes in bytes, a power of two from 64; 0 = 256.
	Unit int
	// Block is the size of a block in bytes, which holds objects of one size; 0 = 64 KiB. Blocks is the
	// number of blocks of which each node is the primary; 0 = 256.
	Block, Blocks int
}

const (
	bucketSlots = 7
	bucketSize  = 8 + 8*bucketSlots // the first word is the subtable's depth and prefix
	groupSize   = 3 * bucketSize
	combined    = 2 * bucketSize // a main bucket and the overflow bucket beside it
	maxReplicas = 5
	maxUnits    = 63
)

// complete sets defaults, and refuses values that are out of range.
func (l Layout) complete() (Layout, error) {
	l.Nodes = cmp.Or(l.Nodes, 1)
	l.Replicas = cmp.Or(l.Replicas, 1)
	l.Subtables = cmp.Or(l.Subtables, 32)
	l.Groups = cmp.Or(l.Groups, 64)
	l.Unit = cmp.Or(l.Unit, 256)
	l.Block = cmp.Or(l.Block, 64<<10)
	l.Blocks = cmp.Or(l.Blocks, 256)
	switch {
	case l.Nodes < 1 || l.Nodes > 16:
		return l, fmt.Errorf("fusee: a store has 1 to 16 memory nodes, not %d", l.Nodes)
	case l.Replicas < 1 || l.Replicas > maxReplicas || l.Replicas > l.Nodes:
		return l, fmt.Errorf("fusee: there are 1 to %d replicas, each on a node of its own of %d, not %d", maxReplicas, l.Nodes, l.Replicas)
	case l.Subtables < 1 || l.Subtables > 1<<16 || l.Subtables&(l.Subtables-1) != 0:
		return l, fmt.Errorf("fusee: an index has 1, 2, 4 ... or 65536 subtables, not %d", l.Subtables)
	case l.Groups < 2 || l.Groups > 1<<24 || l.Groups%2 != 0:
		return l, fmt.Errorf("fusee: a subtable has 2 to 2^24 bucket groups, an even number, not %d", l.Groups)
	case l.Unit < 64 || l.Unit > 4096 || l.Unit&(l.Unit-1) != 0:
		return l, fmt.Errorf("fusee: objects are multiples of 64, 128 ... or 4096 bytes, not of %d", l.Unit)
	case l.Block < l.Unit || l.Block > 1<<26 || l.Block%l.Unit != 0:
		return l, fmt.Errorf("fusee: a block has a multiple of %d bytes, up to 64 MiB, not %d", l.Unit, l.Block)
	case l.Blocks < 1 || l.Block*l.Blocks > 1<<36:
		return l, fmt.Errorf("fusee: a node has 1 block or more, and up to 64 GiB of them, not %d", l.Blocks)
	}
	return l, nil
}

func (l *Layout) subtableSize() int { return l.Groups * groupSize }

func (l *Layout) regionSize() int { return l.Block * l.Blocks }

// copyOn returns which of the node's copies belongs to the ring that begins at node first; false: none does.
func (l *Layout) copyOn(node, first int) (int, bool) {
	k := (node - first%l.Nodes + l.Nodes) % l.Nodes
	return k, k < l.Replicas
}

// Capacity returns the number of slots.
func (l *Layout) Capacity() int { return l.Subtables * l.Groups * 3 * bucketSlots }

// Memory returns the bytes of a node's memory. No field of the layout may be 0.
func (l *Layout) Memory() int64 {
	return int64(l.Subtables*l.subtableSize()) + int64(l.Replicas)*(int64(l.Blocks)*8+int64(l.regionSize()))
}

// MaxKey is the longest key, in bytes.
const MaxKey = 1024

// hashed is what is computed from a key's hash.
type hashed struct {
	fp  uint8
	sub int
	// bucket are the offsets of the key's two combined buckets in the subtable.
	bucket [2]int
}

// sum64 is FNV-1a, finished like MurmurHash3. Any hash of 64 bits would do.
func sum64(key []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range key {
		h = (h ^ uint64(b)) * 1099511628211
	}
	h = (h ^ h>>33) * 0xFF51AFD7ED558CCD
	h = (h ^ h>>33) * 0xC4CEB9FE1A85EC53
	return h ^ h>>33
}

// hash returns the places of a key: a combined bucket in each half of the subtable.
func (l *Layout) hash(key []byte) hashed {
	h := sum64(key)
	half := uint64(l.Groups) // of 2 combined buckets a group
	first := h % half
	tag := h>>16&0xFFFF | 1
	second := (first^tag*0xC6A4A7935BD1E995)%half + half
	at := func(c uint64) int { return int(c/2)*groupSize + int(c%2)*bucketSize }
	return hashed{fp: uint8(h>>48 ^ h>>56), sub: int(h >> 32 & uint64(l.Subtables-1)), bucket: [2]int{at(first), at(second)}}
}

// overflow reports whether a slot of a combined bucket is in the overflow bucket.
func overflow(bucket, slot int) bool {
	return (bucket/bucketSize%3 == 0) == (slot >= bucketSlots)
}

// slot is a word of the index:
//
//	fingerprint u8 | size u6, deleted, tentative | node u8 | address in units of 64 bytes, 40 bits, high byte first
//
// 0: the slot was never used. The two flags are not the authors' (package comment).
type slot uint64

const (
	tentative slot = 1 << 15
	deleted   slot = 1 << 14
)

// address is the place of an object: an offset in the copies of a node's region.
type address struct {
	node int
	off  int
}

func makeSlot(fp uint8, units int, a address) slot {
	var b [8]byte
	b[0], b[1], b[2] = fp, byte(units), byte(a.node)
	p := uint64(a.off) >> 6 // units of 64 bytes, the smallest unit
	b[3], b[4], b[5], b[6], b[7] = byte(p>>32), byte(p>>24), byte(p>>16), byte(p>>8), byte(p)
	return slot(le.Uint64(b[:]))
}

func (s slot) fp() uint8  { return uint8(s) }
func (s slot) units() int { return int(s >> 8 & maxUnits) }

// free reports whether an insertion may take the slot.
func (s slot) free() bool { return s == 0 || s&deleted != 0 }

func (s slot) at() address {
	p := bits.ReverseBytes64(uint64(s)) & (1<<40 - 1)
	return address{node: int(s >> 16 & 0xFF), off: int(p) << 6}
}

// tomb returns the word that stands for a deletion, or for an insertion that was taken back. It refers to the
// object of s, so that no two of them are equal while the object is not reused.
func (s slot) tomb() slot { return s&^(tentative|0xFF) | deleted }

// An object is
//
//	state u8 | op u8 | key's length u16 | value's length u32 | key | value |
//	CRC of all but the state u32 | 12 bytes of 0 | the slot's old word u64 | its check u8 | op u8 | 6 bytes of 0
//
// The last 32 bytes are the log entry.
const (
	headSize = 8
	tailSize = 32
	oldAt    = 16 // in the tail
	oldSize  = 9
)

// States of an object.
const (
	stateUsed  = 1
	stateFreed = 2 // nothing refers to the object: its owner may reuse it later
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// units returns the number of units that an object takes.
func (l *Layout) units(key, value int) int {
	return (headSize + key + value + tailSize + l.Unit - 1) / l.Unit
}

// putObject makes an object in b, and returns the part of b that must be written.
func putObject(b []byte, op Kind, key, value []byte) []byte {
	b[0], b[1] = stateUsed, byte(op)
	le.PutUint16(b[2:], uint16(len(key)))
	le.PutUint32(b[4:], uint32(len(value)))
	n := headSize + copy(b[headSize:], key)
	n += copy(b[n:], value)
	tail := b[n : n+tailSize]
	clear(tail)
	le.PutUint32(tail, crc32.Checksum(b[1:n], castagnoli))
	tail[25] = byte(op)
	return b[:n+tailSize]
}

// object is a view of an object's bytes.
type object struct {
	op         Kind
	state      byte
	key, value []byte
	tail       []byte
}

// getObject decodes an object; false: it is not whole.
func getObject(b []byte) (o object, ok bool) {
	k, v := int(le.Uint16(b[2:])), int(le.Uint32(b[4:]))
	n := headSize + k + v
	if v > len(b) || n+tailSize > len(b) {
		return o, false
	}
	o = object{op: Kind(b[1]), state: b[0], key: b[headSize : headSize+k], value: b[headSize+k : n], tail: b[n : n+tailSize]}
	return o, le.Uint32(o.tail) == crc32.Checksum(b[1:n], castagnoli)
}

// putOld writes what commits the log entry: the word that the operation replaces, and its check.
func putOld(b []byte, old slot) []byte {
	le.PutUint64(b, uint64(old))
	b[8] = checkOld(b)
	return b[:oldSize]
}

func checkOld(b []byte) byte { return byte(crc32.Checksum(b[:8], castagnoli)) | 1 }

// old returns the word that the operation replaced; false: the log entry was not committed.
func (o *object) old() (slot, bool) {
	b := o.tail[oldAt:]
	return slot(le.Uint64(b)), b[8] == checkOld(b)
}
