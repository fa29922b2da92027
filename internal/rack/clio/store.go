package clio

import (
	"encoding/binary"
	"math/bits"

	"github.com/quillon/quillon/nf/hdr/clio"
)

// entries is how many keys a bucket line has room for, beside its link: a line is
// 64 bytes.
const entries = 7

// bucket is a line of the hash table. link is another line's index, 0: none.
type bucket struct {
	entry [entries]entry
	link  uint64
}

// entry of a bucket: what a key's block is and how large (KeyValueHashEntry):
//
//	0 pointer in units of 16 bytes:32 | 32 value size:16 | 48 key size:4 | 52 valid | 56 check:8
//
// check is the key's lowest byte: a block is read only when it matches.
type entry uint64

const valid entry = 1 << 52

func makeEntry(ptr uint32, key uint64, keySize uint8, valueSize int) entry {
	return entry(ptr) | entry(valueSize)<<32 | entry(keySize&15)<<48 | valid | entry(key&0xFF)<<56
}

func (e entry) ptr() uint32    { return uint32(e) }
func (e entry) valueSize() int { return int(e >> 32 & 0xFFFF) }
func (e entry) is(key uint64, keySize uint8) bool {
	return e&valid != 0 && e>>56 == entry(key&0xFF) && e>>48&15 == entry(keySize&15)
}

// classes are the sizes of blocks: Clio's 32 to 512 bytes, and two of ours for
// longer values. A block has the key, 8 bytes, and the value.
var classes = [...]int{32, 64, 128, 256, 512, 1040, 1456}

func classOf(valueSize int) int {
	for i, n := range classes {
		if valueSize+clio.MaxKey <= n {
			return i
		}
	}
	return -1
}

// unit is what pointers count; a chunk is what memory is taken in.
const (
	unit  = 16
	chunk = 1 << 20
)

// Store is a device's keys and values: a hash table of bucket lines, and blocks.
type Store struct {
	lines  []bucket // the first are by hash, the others linked
	mask   uint32
	chunks [][]byte
	used   int // of the last chunk
	limit  int // bytes
	free   [len(classes)][]uint32
	keys   int
}

// NewStore makes an empty store with 2^hashBits lines (Clio: 2^8), and more of them
// when they are full, and at most so many bytes of blocks.
func NewStore(hashBits, limit int) *Store {
	s := &Store{lines: make([]bucket, 1<<hashBits), mask: 1<<hashBits - 1, limit: limit}
	return s
}

// Keys is how many there are.
func (s *Store) Keys() int { return s.keys }

// hash is Bob Jenkins' lookup3 of the key, as Clio's Lookup3 has it for a width of
// 64 bits: two words, and a third of 0.
func hash(key uint64) uint32 {
	const seed = 0xDEADBEEF + 64/32
	a, b, c := seed+uint32(key), seed+uint32(key>>32), uint32(seed)
	rot := bits.RotateLeft32
	c = (c ^ b) - rot(b, 14)
	a = (a ^ c) - rot(c, 11)
	b = (b ^ a) - rot(a, 25)
	c = (c ^ b) - rot(b, 16)
	a = (a ^ c) - rot(c, 4)
	b = (b ^ a) - rot(a, 14)
	c = (c ^ b) - rot(b, 24)
	return c
}

func (s *Store) block(ptr uint32, class int) []byte {
	at := int(ptr) * unit
	return s.chunks[at/chunk][at%chunk:][:classes[class]]
}

// find is a key's entry, and its block; nil when there is none.
func (s *Store) find(key uint64, keySize uint8) (*entry, []byte) {
	for l := &s.lines[hash(key)&s.mask]; ; l = &s.lines[l.link] {
		for i := range l.entry {
			e := &l.entry[i]
			if !e.is(key, keySize) {
				continue
			}
			if p := s.block(e.ptr(), classOf(e.valueSize())); binary.LittleEndian.Uint64(p) == key {
				return e, p
			}
		}
		if l.link == 0 {
			return nil, nil
		}
	}
}

// vacancy is an entry that is free in a key's lines.
func (s *Store) vacancy(key uint64) *entry {
	i := uint64(hash(key) & s.mask)
	for {
		l := &s.lines[i]
		for k := range l.entry {
			if l.entry[k]&valid == 0 {
				return &l.entry[k]
			}
		}
		if l.link == 0 {
			s.lines = append(s.lines, bucket{})
			n := uint64(len(s.lines) - 1)
			s.lines[i].link = n
			return &s.lines[n].entry[0]
		}
		i = l.link
	}
}

// take is a free block; false: there is no memory left.
func (s *Store) take(class int) (uint32, bool) {
	if f := s.free[class]; len(f) > 0 {
		s.free[class] = f[:len(f)-1]
		return f[len(f)-1], true
	}
	if len(s.chunks) == 0 || s.used+classes[class] > chunk {
		if (len(s.chunks)+1)*chunk > s.limit {
			return 0, false
		}
		s.chunks = append(s.chunks, make([]byte, chunk))
		s.used = 0
	}
	at := (len(s.chunks)-1)*chunk + s.used
	s.used += classes[class]
	return uint32(at / unit), true
}

// put makes an entry hold a value; false: no memory.
func (s *Store) put(e *entry, key uint64, keySize uint8, value []byte) bool {
	class := classOf(len(value))
	if class < 0 {
		return false
	}
	ptr := e.ptr()
	if *e&valid == 0 || classOf(e.valueSize()) != class {
		var ok bool
		if ptr, ok = s.take(class); !ok {
			return false
		}
		s.release(*e)
	}
	p := s.block(ptr, class)
	binary.LittleEndian.PutUint64(p, key)
	copy(p[clio.MaxKey:], value)
	*e = makeEntry(ptr, key, keySize, len(value))
	return true
}

func (s *Store) release(e entry) {
	if e&valid != 0 {
		class := classOf(e.valueSize())
		s.free[class] = append(s.free[class], e.ptr())
	}
}

// Read is a key's value, valid until the key changes.
func (s *Store) Read(key uint64, keySize uint8) ([]byte, clio.Status) {
	e, p := s.find(key, keySize)
	if e == nil {
		return nil, clio.Invalid
	}
	return p[clio.MaxKey:][:e.valueSize()], clio.OK
}

// Create adds a key; Invalid: there is one, or no room.
func (s *Store) Create(key uint64, keySize uint8, value []byte) clio.Status {
	if e, _ := s.find(key, keySize); e != nil || !s.put(s.vacancy(key), key, keySize, value) {
		return clio.Invalid
	}
	s.keys++
	return clio.OK
}

// Update changes a key; Invalid: there is none, or no room.
func (s *Store) Update(key uint64, keySize uint8, value []byte) clio.Status {
	if e, _ := s.find(key, keySize); e == nil || !s.put(e, key, keySize, value) {
		return clio.Invalid
	}
	return clio.OK
}

// Delete takes a key away; Invalid: there is none.
func (s *Store) Delete(key uint64, keySize uint8) clio.Status {
	e, _ := s.find(key, keySize)
	if e == nil {
		return clio.Invalid
	}
	s.release(*e)
	*e = 0
	s.keys--
	return clio.OK
}

// RoomFor is what DeviceConfig.HashBits and Memory must be for so many keys with values of a size.
func RoomFor(keys, size int) (hashBits, memory int) {
	hashBits = min(max(bits.Len(uint(keys/(entries-2))), 8), 24)
	class := classes[max(0, classOf(size))]
	return hashBits, (keys/(chunk/class) + 2) * chunk
}
