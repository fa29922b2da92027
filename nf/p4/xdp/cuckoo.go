package xdp

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// A hash table in memory that the program addresses itself. A look-up takes a quarter of the time that the
// kernel's own hash takes, because that needs a call. Besides, the memory of an entry is not given to another
// entry while a program may still read it, which the kernel's hash does not promise.
//
// An entry is a record: its key, and what the program reads of it. A slot is a 32-bit word that leads to a
// record: 1 + the record's number, and in the upper 8 bits a tag, which is some bits of the key's hash. Slots
// are in buckets of four. The slot of a key is in one of two buckets (cuckoo hashing), and the program looks at
// all eight slots. A record is written while no slot leads to it. One store to its slot makes it visible, and
// may replace an older record of the same key. A record to which no slot leads waits for a grace period before
// it is written again.
type cuckoo struct {
	cuckooShape
	slots   *shared
	records *shared
	recs    *rest
	seed    uint64
}

// cuckooShape is the size of a table's hash.
type cuckooShape struct {
	keyWords int
	words    int // of a record
	buckets  int // a power of two
	records  int
}

// Bounds of a hash: the records' memory in bytes, and what a slot holds.
const (
	maxRecords = 1<<24 - 2
	maxMemory  = 64 << 20
	slotsOf    = 4 // a bucket
	recordBits = 24
	maxSteps   = 512 // slots that are looked at for room
)

// shapeOf returns the shape for a table with keys of keyWords words; ok is false if it would be too large.
func shapeOf(t *ir.Table, keyWords int) (s cuckooShape, ok bool) {
	size := max(1, t.Size)
	if size > maxRecords/2 {
		return s, false
	}
	s = cuckooShape{keyWords: keyWords, records: size + spare(size),
		buckets: 1 << bits.Len(uint(size-1)/2)} // at most half of the slots are in use
	s.words = stride(keyWords+entrySize(t)/8, s.records)
	return s, 8*s.words*s.records <= maxMemory
}

// stride returns the number of words from one record to the next. If there is room, a record of up to 64 bytes lies in one line of the cache.
func stride(words, records int) int {
	if n := 1 << bits.Len(uint(words-1)); n <= 8 && 8*n*records <= maxMemory {
		return n
	}
	return words
}

// spare returns the number of records that a table has beside one for each entry. They are needed for the
// records that wait for a grace period.
func spare(size int) int { return max(min(4*size, 4096), size/4) + begins }

// multiplier mixes a word of a key into the hash: an odd number whose bits look random.
const multiplier = 0xd6e8feb86659fd93

// hash returns the hash of a key, as the program computes it.
func (c *cuckoo) hash(key []uint64) uint64 {
	h := c.seed
	for _, w := range key {
		h = (h ^ w) * multiplier
		h ^= h >> 32
	}
	return h
}

func (c *cuckoo) bucket(h uint64, second int) int { return int(h>>(24*second)) & (c.buckets - 1) }

func tag(h uint64) uint32 { return uint32(h >> 56) }

func (c *cuckoo) slot(i int) *uint32 { return (*uint32)(unsafe.Pointer(&c.slots.mem[4*i])) }

// record returns the number of the record to which slot i leads, and whether there is one.
func (c *cuckoo) record(i int) (uint32, bool) {
	v := *c.slot(i) & (1<<recordBits - 1)
	return v - 1, v != 0
}

// key returns the key of a record.
func (c *cuckoo) key(record uint32) []uint64 {
	key := make([]uint64, c.keyWords)
	for w := range key {
		key[w] = *c.records.word(int(record)*c.words + w)
	}
	return key
}

// find returns the slot of a key, or -1.
func (c *cuckoo) find(key []uint64, h uint64) int {
	for second := range 2 {
		for j := range slotsOf {
			i := c.bucket(h, second)*slotsOf + j
			r, there := c.record(i)
			if !there || *c.slot(i)>>recordBits != tag(h) {
				continue
			}
			same := true
			for w, v := range key {
				same = same && *c.records.word(int(r)*c.words + w) == v
			}
			if same {
				return i
			}
		}
	}
	return -1
}

// room returns a free slot for a key with hash h: the first free one, because the program looks there first, in
// the bucket that has more free slots. If both buckets are full, entries move to their other buckets until a
// slot is free. A moved entry is in both buckets for a grace period, because a program that has looked into the
// new bucket before the entry came there would otherwise find it in neither. -1 means that there is no room.
func (c *cuckoo) room(h uint64) (int, error) {
	slot, most := -1, 0
	var first []step
	for second := range 2 {
		free, last := 0, -1
		for j := slotsOf - 1; j >= 0; j-- {
			i := c.bucket(h, second)*slotsOf + j
			first = append(first, step{i, -1})
			if *c.slot(i) == 0 {
				free, last = free+1, i
			}
		}
		if free > most {
			slot, most = last, free
		}
	}
	if slot >= 0 {
		return slot, nil
	}
	path := c.path(first)
	if path == nil {
		return -1, nil
	}
	for n := len(path) - 1; n > 0; n-- {
		atomic.StoreUint32(c.slot(path[n]), *c.slot(path[n-1]))
		if err := c.recs.g.now(); err != nil {
			atomic.StoreUint32(c.slot(path[n]), 0) // else the entry would be there when it is deleted
			return -1, err
		}
	}
	return path[0], nil
}

// step is a slot on a path. The entry of the step with index from in the list may move into slot.
type step struct{ slot, from int }

// path returns the slots that lead from one of the first slots to a free one; each is in the other bucket of
// the entry before it. It finds the shortest path.
func (c *cuckoo) path(steps []step) []int {
	seen := map[int]bool{}
	for _, s := range steps {
		seen[s.slot] = true
	}
	for n := 0; n < len(steps) && n < maxSteps; n++ {
		i := steps[n].slot
		r, _ := c.record(i)
		h := c.hash(c.key(r))
		other := c.bucket(h, 0)
		if other == i/slotsOf {
			other = c.bucket(h, 1)
		}
		for j := other * slotsOf; j < (other+1)*slotsOf; j++ {
			if *c.slot(j) == 0 {
				path := []int{j}
				for at := n; at >= 0; at = steps[at].from {
					path = append(path, steps[at].slot)
				}
				slices.Reverse(path)
				return path
			}
			if !seen[j] {
				seen[j] = true
				steps = append(steps, step{j, n})
			}
		}
	}
	return nil
}

func (c *cuckoo) put(key []uint64, value []uint64) error {
	r, err := c.recs.take()
	if err != nil {
		return err
	}
	for w, v := range key {
		c.records.store(int(r)*c.words+w, v)
	}
	for w, v := range value {
		c.records.store(int(r)*c.words+len(key)+w, v)
	}
	h := c.hash(key)
	i := c.find(key, h)
	if i >= 0 {
		old, _ := c.record(i)
		c.recs.leave(old)
	} else if i, err = c.room(h); err != nil || i < 0 {
		c.recs.back(r)
		if err != nil {
			return err
		}
		return fmt.Errorf("too many keys have the same places in a hash of %d entries", c.cuckooShape.records)
	}
	atomic.StoreUint32(c.slot(i), tag(h)<<recordBits|(r+1))
	return nil
}

func (c *cuckoo) delete(key []uint64) error {
	i := c.find(key, c.hash(key))
	if i < 0 {
		return errors.New("it is not there")
	}
	r, _ := c.record(i)
	atomic.StoreUint32(c.slot(i), 0)
	c.recs.leave(r)
	return nil
}

// newCuckoo makes the hash of a table with keys of keyWords words.
func (x *Executor) newCuckoo(t *ir.Table, keyWords int, seed uint64) (c *cuckoo, err error) {
	c = &cuckoo{seed: seed}
	c.cuckooShape, _ = shapeOf(t, keyWords)
	c.recs = x.graces.rest(c.cuckooShape.records)
	if c.slots, err = x.newShared("p4_slots", 4*slotsOf*c.buckets); err == nil {
		c.records, err = x.newShared("p4_records", 8*c.words*c.cuckooShape.records)
	}
	return c, err
}

// mix takes the key's word in R1 into the hash in R2; R3 is the multiplier. It changes R0.
func (g *emitter) mix() {
	g.with(asm.Xor, asm.R2, asm.R1)
	g.with(asm.Mul, asm.R2, asm.R3)
	g.with(asm.Mov, asm.R0, asm.R2)
	g.calc(asm.RSh, asm.R0, 32)
	g.with(asm.Xor, asm.R2, asm.R0)
}

// lookCuckoo leaves the entry of the packet's key in rEntry; none: it jumps to miss.
func (g *pipes) lookCuckoo(n int, t *ir.Table, miss string) {
	at := keyAt(t.KeyWords)
	g.imm(asm.R2, g.opt.Seed)
	g.imm(asm.R3, multiplier)
	for i := range t.Keys {
		k := &t.Keys[i]
		for w := range k.Words {
			g.key(k, w)
			g.keep(asm.RFP, at+8*(k.At+w), asm.R1, asm.DWord)
			g.mix()
		}
	}
	s, _ := shapeOf(t, t.KeyWords)
	g.probe(n, s, at, rEntry, miss)
}

// probe leaves in entry the one of the key at a place of the stack, whose hash is in R2; none: it jumps to miss. It changes R0, R1, R3 and R4.
func (g *emitter) probe(n int, s cuckooShape, at int, entry asm.Register, miss string) {
	found := g.fresh()
	g.with(asm.Mov, asm.R4, asm.R2)
	g.calc(asm.RSh, asm.R4, 56)
	for second := range 2 {
		g.with(asm.Mov, asm.R1, asm.R2)
		if second > 0 {
			g.calc(asm.RSh, asm.R1, 24)
		}
		g.calc(asm.And, asm.R1, s.buckets-1)
		g.calc(asm.LSh, asm.R1, 4)
		g.address(asm.R3, g.maps.slots[n])
		g.with(asm.Add, asm.R3, asm.R1)
		for j := range slotsOf {
			next := g.fresh()
			g.load(asm.R1, asm.R3, 4*j, asm.Word)
			g.with(asm.Mov, asm.R0, asm.R1)
			g.calc(asm.RSh, asm.R0, recordBits)
			g.compareRegs(asm.JNE, asm.R0, asm.R4, next)
			g.calc(asm.And, asm.R1, 1<<recordBits-1)
			g.calc(asm.Sub, asm.R1, 1)
			g.whenImm(asm.JGE, asm.R1, s.records, next) // also a free one's
			g.calc(asm.Mul, asm.R1, 8*s.words)
			g.address(entry, g.maps.tables[n])
			g.with(asm.Add, entry, asm.R1)
			for w := range s.keyWords {
				g.load(asm.R0, entry, 8*w, asm.DWord)
				g.load(asm.R1, asm.RFP, at+8*w, asm.DWord)
				g.compareRegs(asm.JNE, asm.R0, asm.R1, next)
			}
			g.jump(found)
			g.label(next)
		}
	}
	g.jump(miss)
	g.label(found)
	g.calc(asm.Add, entry, 8*s.keyWords)
}
