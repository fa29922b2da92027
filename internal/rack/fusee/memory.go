package fusee

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/rack/rnic"
)

// The addresses at which the memory is registered.
const (
	indexVA   = 1 << 40
	blocksVA  = 2 << 40
	objectsVA = 3 << 40
)

// Region is remote memory.
type Region = onesided.Region

// Grant is what a client must know about a memory node.
type Grant struct {
	Layout Layout
	// Index has room for all subtables; the node has copies of some. Blocks has the owner of each block of
	// the regions of which the node has copies, and Objects has these regions.
	Index, Blocks, Objects Region
}

// Memory is a memory node's memory, as its host sees it. It outlives the NIC that serves it.
type Memory struct {
	Layout
	node                   int
	index, blocks, objects []byte
}

// NewMemory makes the empty memory of one node.
func NewMemory(l Layout, node int) (*Memory, error) {
	l, err := l.complete()
	if err != nil {
		return nil, err
	}
	if node < 0 || node >= l.Nodes {
		return nil, fmt.Errorf("fusee: node %d is not one of %d", node, l.Nodes)
	}
	return &Memory{Layout: l, node: node, index: make([]byte, l.Subtables*l.subtableSize()), blocks: make([]byte, l.Replicas*l.Blocks*8), objects: make([]byte, l.Replicas*l.regionSize())}, nil
}

// Serve registers the memory in pd, so that its queue pairs can access the memory.
func (m *Memory) Serve(pd *rnic.PD) (Grant, error) { return m.ServeAt(pd, 0) }

// ServeAt is Serve with all addresses moved by offset.
func (m *Memory) ServeAt(pd *rnic.PD, offset uint64) (Grant, error) {
	g := Grant{Layout: m.Layout}
	err := onesided.Serve(pd, onesided.Part{Mem: m.index, VA: indexVA + offset, To: &g.Index}, onesided.Part{Mem: m.blocks, VA: blocksVA + offset, To: &g.Blocks},
		onesided.Part{Mem: m.objects, VA: objectsVA + offset, To: &g.Objects})
	return g, err
}

// blockWord returns the word of a block: owner u16 | units of its objects u8.
func blockWord(owner uint16, units int) uint64 { return uint64(owner) | uint64(units)<<16 }

func (m *Memory) blockAt(region, block int) ([]byte, bool) {
	k, ok := m.copyOn(m.node, region)
	if !ok {
		return nil, false
	}
	return m.blocks[(k*m.Blocks+block)*8:][:8], true
}

func (m *Memory) slotAt(sub, pos int) []byte { return m.index[sub*m.subtableSize()+8*pos:][:8] }

func (m *Memory) objectAt(a address, size int) ([]byte, bool) {
	k, ok := m.copyOn(m.node, a.node)
	if !ok || a.off < 0 || a.off+size > m.regionSize() {
		return nil, false
	}
	return m.objects[k*m.regionSize()+a.off:][:size], true
}

// Spoil changes a byte of an object to which a slot refers, for tests of checks; false: there is none.
func (m *Memory) Spoil() bool {
	for at := 0; at < len(m.index); at += 8 {
		if w := slot(le.Uint64(m.index[at:])); at%bucketSize != 0 && !w.free() {
			b, ok := m.objectAt(w.at(), headSize+1)
			if ok {
				b[headSize] ^= 1
			}
			return ok
		}
	}
	return false
}

// Cluster are all memory nodes; nil: the node has vanished.
type Cluster []*Memory

// NewCluster makes an empty store.
func NewCluster(l Layout) (Cluster, error) {
	l, err := l.complete()
	if err != nil {
		return nil, err
	}
	c := make(Cluster, l.Nodes)
	for i := range c {
		if c[i], err = NewMemory(l, i); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Errors of operations.
var (
	// ErrKey means that a key is too short or too long.
	ErrKey = fmt.Errorf("fusee: keys have 1 to %d bytes", MaxKey)
	// ErrValue means that the value is too long.
	ErrValue = fmt.Errorf("fusee: a key and its value fit into %d units of memory", maxUnits)
	// ErrFull means that both buckets of the key are full.
	ErrFull = errors.New("fusee: the index is full: both buckets of the key have no slot")
	// ErrNoMemory means that no node gives the client another block.
	ErrNoMemory = errors.New("fusee: no memory for the object: the nodes have no block left")
	// ErrUnknown means that the connection broke, so it is not known whether the operation happened.
	ErrUnknown = errors.New("fusee: the connection broke in the middle: the operation may have happened or not")
	// ErrGone means that all nodes that had what is needed are gone, or do not answer.
	ErrGone = errors.New("fusee: no memory node answers that has the key's slots, or its object")
	// ErrBusy means that other sessions change the key all the time.
	ErrBusy = errors.New("fusee: others change the key's slots all the time")
	// ErrDied means that the client was made to fail (Config.Cut).
	ErrDied = errors.New("fusee: the client died in the middle")
	// ErrOwner means that a session's number is out of range, or that a session would repair itself.
	ErrOwner = errors.New("fusee: sessions have numbers from 1 to 65535, and repair others' than their own")
)

// layout returns the layout of the first node that has not vanished.
func (c Cluster) layout() *Layout {
	for _, m := range c {
		if m != nil {
			return &m.Layout
		}
	}
	return nil
}

// Alloc gives an owner a block for objects of this number of units in a region. It stands for a request to a memory
// node's processor, which does not use the index.
func (c Cluster) Alloc(owner uint16, region, units int) (int, error) {
	l := c.layout()
	if l == nil || owner == 0 || units < 1 || units > maxUnits || units*l.Unit > l.Block || region < 0 || region >= l.Nodes {
		return 0, ErrNoMemory
	}
	var first *Memory
	for i := range l.Replicas {
		if m := c[(region+i)%l.Nodes]; m != nil && first == nil {
			first = m
		}
	}
	if first == nil {
		return 0, ErrNoMemory
	}
	for i := range l.Blocks {
		b, ok := first.blockAt(region, i)
		if !ok || le.Uint64(b) != 0 {
			continue
		}
		for _, m := range c {
			if m == nil {
				continue
			}
			if b, ok := m.blockAt(region, i); ok {
				le.PutUint64(b, blockWord(owner, units))
			}
		}
		return i, nil
	}
	return 0, ErrNoMemory
}

// Give gives a block that is in use to another owner. The number of the new owner must not be used by a
// session.
func (c Cluster) Give(owner uint16, region, block int) {
	for _, m := range c {
		if m == nil {
			continue
		}
		if b, ok := m.blockAt(region, block); ok {
			le.PutUint64(b, blockWord(owner, int(le.Uint64(b)>>16)))
		}
	}
}

// Place returns where the slot of a key is; false: the key does not exist.
func (c Cluster) Place(key []byte) (Place, bool) {
	l := c.layout()
	h := l.hash(key)
	first := c[h.sub%l.Nodes]
	for _, at := range h.bucket {
		for i := range 2 * bucketSlots {
			p := slotPos(at, i)
			w := slot(le.Uint64(first.slotAt(h.sub, p)))
			if w.free() || w.fp() != h.fp {
				continue
			}
			if b, ok := first.objectAt(w.at(), w.units()*l.Unit); ok {
				if o, ok := getObject(b); ok && bytes.Equal(o.key, key) {
					return Place{p, w}, true
				}
			}
		}
	}
	return Place{}, false
}

// Filler inserts keys with the nodes' host processors, before clients come.
type Filler struct {
	c     Cluster
	owner uint16
	used  map[int]*filling // by units
	turn  int
}

type filling struct{ region, block, used int }

// Filler makes a Filler; its objects belong to owner.
func (c Cluster) Filler(owner uint16) *Filler {
	return &Filler{c: c, owner: owner, used: map[int]*filling{}}
}

// Insert adds a key, which must not exist.
func (f *Filler) Insert(key, value []byte) error {
	l := f.c.layout()
	n := l.units(len(key), len(value))
	if len(key) == 0 || len(key) > MaxKey {
		return ErrKey
	}
	if n > maxUnits {
		return ErrValue
	}
	x := f.used[n]
	if x == nil || (x.used+n)*l.Unit > l.Block {
		x = &filling{region: f.turn % l.Nodes}
		f.turn++
		var err error
		if x.block, err = f.c.Alloc(f.owner, x.region, n); err != nil {
			return err
		}
		f.used[n] = x
	}
	h := l.hash(key)
	pos := -1
	load := [2]int{}
	first := f.c[h.sub%l.Nodes]
	word := func(bucket, s int) (int, slot) {
		p := slotPos(bucket, s)
		return p, slot(le.Uint64(first.slotAt(h.sub, p)))
	}
	for b, at := range h.bucket {
		for s := range 2 * bucketSlots {
			if _, w := word(at, s); !w.free() {
				load[b]++
			}
		}
	}
	pick := 0
	if load[1] < load[0] {
		pick = 1
	}
	for _, b := range []int{pick, 1 - pick} {
		for _, over := range []bool{false, true} {
			for s := range 2 * bucketSlots {
				if p, w := word(h.bucket[b], s); pos < 0 && w.free() && overflow(h.bucket[b], s) == over {
					pos = p
				}
			}
		}
	}
	if pos < 0 {
		return ErrFull
	}
	a := address{x.region, x.block*l.Block + x.used*l.Unit}
	x.used += n
	for _, m := range f.c {
		if b, ok := m.objectAt(a, n*l.Unit); ok {
			putObject(b, Insert, key, value)
		}
		if _, ok := l.copyOn(m.node, h.sub); ok {
			le.PutUint64(m.slotAt(h.sub, pos), uint64(makeSlot(h.fp, n, a)))
		}
	}
	return nil
}

// slotPos returns the index of the word, in the subtable, of a combined bucket's slot.
func slotPos(bucket, s int) int {
	return bucket/8 + s/bucketSlots*(bucketSize/8) + 1 + s%bucketSlots
}

// Check checks the store at rest: copies of slots are equal, each key is there once, each object is whole on
// all nodes that have it and belongs to one slot only, and nothing is tentative. It returns the values. Nodes
// that are nil are left out.
func (c Cluster) Check() (map[string][]byte, error) {
	l := c.layout()
	if l == nil {
		return nil, ErrGone
	}
	values, users := map[string][]byte{}, map[address]string{}
	for sub := range l.Subtables {
		for pos := range l.subtableSize() / 8 {
			if pos%(bucketSize/8) == 0 {
				continue
			}
			w, err := c.checkSlot(sub, pos)
			if err != nil {
				return nil, err
			}
			if w == 0 {
				continue
			}
			where := fmt.Sprintf("slot %d of subtable %d, %#x", pos, sub, uint64(w))
			if u := users[w.at()]; u != "" {
				return nil, fmt.Errorf("fusee: %s and %s have one object", where, u)
			}
			users[w.at()] = where
			o, err := c.checkObject(w)
			switch {
			case err != nil:
				return nil, fmt.Errorf("fusee: %s: %w", where, err)
			case w&tentative != 0:
				return nil, fmt.Errorf("fusee: %s is tentative", where)
			case w&deleted != 0:
				continue
			case values[string(o.key)] != nil:
				return nil, fmt.Errorf("fusee: key %q is there twice", o.key)
			}
			if h := l.hash(o.key); h.sub != sub || h.fp != w.fp() {
				return nil, fmt.Errorf("fusee: %s has key %q, which belongs elsewhere", where, o.key)
			}
			values[string(o.key)] = append([]byte{}, o.value...)
		}
	}
	return values, nil
}

func (c Cluster) checkSlot(sub, pos int) (w slot, err error) {
	found := false
	l := c.layout()
	for i := range l.Replicas {
		m := c[(sub+i)%l.Nodes]
		if m == nil {
			continue
		}
		x := slot(le.Uint64(m.slotAt(sub, pos)))
		if found && x != w {
			return 0, fmt.Errorf("fusee: slot %d of subtable %d is %#x, and %#x on node %d", pos, sub, uint64(w), uint64(x), m.node)
		}
		w, found = x, true
	}
	return w, nil
}

func (c Cluster) checkObject(w slot) (o object, err error) {
	found := false
	for _, m := range c {
		if m == nil {
			continue
		}
		b, ok := m.objectAt(w.at(), w.units()*m.Unit)
		if !ok {
			continue
		}
		x, ok := getObject(b)
		switch {
		case !ok:
			return o, fmt.Errorf("the object is torn on node %d", m.node)
		case x.state != stateUsed:
			return o, fmt.Errorf("the object is free on node %d", m.node)
		case found && (!bytes.Equal(x.key, o.key) || !bytes.Equal(x.value, o.value)):
			return o, fmt.Errorf("the object is another one on node %d", m.node)
		}
		o, found = x, true
	}
	if !found {
		return o, errors.New("no node has the object")
	}
	return o, nil
}

// Count returns how many slots are used.
func (c Cluster) Count() int {
	n := 0
	l := c.layout()
	for sub := range l.Subtables {
		m := c[sub%l.Nodes]
		for pos := range l.subtableSize() / 8 {
			if pos%(bucketSize/8) != 0 && !slot(le.Uint64(m.slotAt(sub, pos))).free() {
				n++
			}
		}
	}
	return n
}
