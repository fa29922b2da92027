package clio

import (
	"encoding/binary"
	"math/bits"

	"github.com/quillon/quillon/nf/hdr/clio"
)

// entries is the number of keys for which a bucket line has room, beside its link: a line has 64 bytes.
const entries = 7

// bucket is a line of the hash table. link is the index of another line; 0: none.
type bucket struct {
	entry [entries]entry
	link  uint64
}

// entry of a bucket: where the block of a key is and how long its value is (Clio's KeyValueHashEntry):
//
//	0 pointer in units of 16 bytes:32 | 32 value size:16 | 48 key size:4 | 52 valid | 56 check:8
//
// check is the lowest byte of the key: the block is read only if it matches.
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

// classes are the sizes of blocks, in bytes: Clio's 32 to 512, and two for longer values that Clio does not
// have. A block holds the key, 8 bytes, and the value.
var classes = [...]int{32, 64, 128, 256, 512, 1040, 1456}

func classOf(valueSize int) int {
	for i, n := range classes {
		if valueSize+clio.MaxKey <= n {
			return i
		}
	}
	return -1
}

// unit is the unit of pointers, in bytes; memory is taken in chunks of chunk bytes.
const (
	unit  = 16
	chunk = 1 << 20
)

// Store has a device's keys and values: a hash table of bucket lines, and blocks.
type Store struct {
	lines  []bucket // the first ones are found by hash, the others by links
	mask   uint32
	chunks [][]byte
	used   int // bytes of the last chunk
	limit  int // bytes
	free   [len(classes)][]uint32
	keys   int
}

// NewStore makes an empty store with 2^hashBits lines (Clio: 2^8), which adds lines when they are full. Its
// blocks take at most limit bytes.
func NewStore(hashBits, limit int) *Store {
	s := &Store{lines: make([]bucket, 1<<hashBits), mask: 1<<hashBits - 1, limit: limit}
	return s
}

// Keys returns the number of keys.
func (s *Store) Keys() int { return s.keys }

// hash is Bob Jenkins' lookup3 of the key, as Clio's Lookup3 computes it for a width of 64 bits: of the key's
// two words and a third one that is 0.
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

// find returns a key's entry and its block; nil if there is none.
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

// vacancy returns a free entry in the lines of a key.
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

// take returns a free block; false: no memory is left.
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

// put stores a value and refers to it in e; false: there is no memory.
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

// Read returns a key's value, valid until the key changes; Invalid: there is no such key.
func (s *Store) Read(key uint64, keySize uint8) ([]byte, clio.Status) {
	e, p := s.find(key, keySize)
	if e == nil {
		return nil, clio.Invalid
	}
	return p[clio.MaxKey:][:e.valueSize()], clio.OK
}

// Create adds a key; Invalid: the key exists, or there is no room.
func (s *Store) Create(key uint64, keySize uint8, value []byte) clio.Status {
	if e, _ := s.find(key, keySize); e != nil || !s.put(s.vacancy(key), key, keySize, value) {
		return clio.Invalid
	}
	s.keys++
	return clio.OK
}

// Update changes a key; Invalid: there is no such key, or no room.
func (s *Store) Update(key uint64, keySize uint8, value []byte) clio.Status {
	if e, _ := s.find(key, keySize); e == nil || !s.put(e, key, keySize, value) {
		return clio.Invalid
	}
	return clio.OK
}

// Delete removes a key; Invalid: there is no such key.
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

// RoomFor returns DeviceConfig.HashBits and Memory for this number of keys with values of size bytes.
func RoomFor(keys, size int) (hashBits, memory int) {
	hashBits = min(max(bits.Len(uint(keys/(entries-2))), 8), 24)
	class := classes[max(0, classOf(size))]
	return hashBits, (keys/(chunk/class) + 2) * chunk
}
