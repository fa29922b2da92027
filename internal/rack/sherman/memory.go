package sherman

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/rack/rnic"
)

// RootAt is Sherman's offset of the root pointer in node 0's memory.
const RootAt = 16 << 20

// Layout describes the memory of all nodes.
type Layout struct {
	Nodes int
	// Size is the memory of a node in bytes.
	Size uint64
	// RootAt is the offset of the root pointer in node 0's memory, a multiple of 8
	// above 0; pages lie behind it. 0 = RootAt.
	RootAt uint64
}

// memoryVA is the address at which nodes register their memory. It differs from that of the lock table.
const memoryVA = 1 << 40

// Region is remote memory.
type Region = onesided.Region

// Grant is what a client must know about a node.
type Grant struct{ Memory, Locks Region }

// Memory is a node's memory and its lock table. It outlives the NIC that serves it.
type Memory struct {
	mem, locks []byte
}

// Serve registers the memory in pd, so that its queue pairs can access the memory.
func (m *Memory) Serve(pd *rnic.PD) (Grant, error) {
	var g Grant
	err := onesided.Serve(pd, onesided.Part{Mem: m.mem, VA: memoryVA, To: &g.Memory}, onesided.Part{Mem: m.locks, To: &g.Locks})
	return g, err
}

// Tree is the memory of a whole tree, as the nodes' hosts see it.
type Tree struct {
	Layout
	nodes []*Memory
	// free is the offset, by node, at which the next page of a bulk load, or the next chunk, begins.
	free []uint64
}

// NewTree makes memory with a tree of the keys, which must be ascending and differ. valueOf returns a key's
// value. fill is how full the pages are (0 to 1; 0 = 0.8).
func NewTree(l Layout, keys []uint64, valueOf func(uint64) uint64, fill float64) (*Tree, error) {
	l.RootAt = cmp.Or(l.RootAt, RootAt)
	if l.Nodes < 1 || l.Nodes > 1<<16 || l.RootAt%8 != 0 || l.Size < l.RootAt+8+PageSize || l.Size >= 1<<40 {
		return nil, fmt.Errorf("sherman: %+v: want a node, and memory for the root pointer and pages behind it", l)
	}
	fill = cmp.Or(fill, 0.8)
	if !(fill > 0 && fill <= 1) {
		return nil, fmt.Errorf("sherman: pages cannot be %v full", fill)
	}
	t := &Tree{Layout: l}
	for range l.Nodes {
		t.nodes = append(t.nodes, &Memory{make([]byte, l.Size), make([]byte, LockTable)})
		t.free = append(t.free, (l.RootAt+8+PageSize-1)/PageSize*PageSize)
	}
	all := make([]pair, len(keys))
	for i, k := range keys {
		if k == 0 || k == MaxKey || i > 0 && k <= keys[i-1] || valueOf(k) == 0 {
			return nil, fmt.Errorf("sherman: keys are ascending, 1 to 2^64-2, and values are not 0: key %#x is not so", k)
		}
		all[i] = pair{k, valueOf(k)}
	}
	root, err := t.load(all, 0, fill)
	if err != nil {
		return nil, err
	}
	le.PutUint64(t.nodes[0].mem[l.RootAt:], uint64(root))
	return t, nil
}

// load builds the pages of one level, and those of the levels above.
func (t *Tree) load(all []pair, level int, fill float64) (Addr, error) {
	size := Entries
	if level > 0 {
		size = Branches + 1 // with the leftmost child
	}
	size = max(int(float64(size)*fill), 2)
	var up []pair
	var last page
	for at := 0; at == 0 || at < len(all); at += size {
		part := all[at:min(at+size, len(all))]
		node := len(up) % t.Nodes
		a, ok := t.alloc(node, PageSize)
		if !ok {
			return 0, errors.New("sherman: the memory is too small for the keys")
		}
		p := t.page(a)
		low := uint64(0)
		if at > 0 {
			low = part[0].key
			last.setHighest(low)
			last.setSibling(a)
		}
		p.reset(level, low, MaxKey)
		if level > 0 {
			p.setLeftmost(Addr(part[0].to))
			part = part[1:]
		}
		p.fill(part)
		up = append(up, pair{low, uint64(a)})
		last = p
	}
	if len(up) == 1 {
		return Addr(up[0].to), nil
	}
	return t.load(up, level+1, fill)
}

// alloc takes n bytes of a node's memory.
func (t *Tree) alloc(node int, n uint64) (Addr, bool) {
	off := t.free[node]
	if off+n > t.Size {
		return 0, false
	}
	t.free[node] += n
	return AddrOf(node, off), true
}

// Chunk gives a client memory for n pages on a node.
func (t *Tree) Chunk(node, n int) (Chunk, error) {
	a, ok := t.alloc(node, uint64(n)*PageSize)
	if !ok {
		return Chunk{}, fmt.Errorf("sherman: node %d has no room for %d pages", node, n)
	}
	return Chunk{a, n}, nil
}

// Left returns the part of a client's chunk that was never written. A client writes its pages one after the
// other.
func (t *Tree) Left(c Chunk) Chunk {
	for c.Pages > 0 && slices.ContainsFunc(t.page(c.At), func(b byte) bool { return b != 0 }) {
		c = Chunk{AddrOf(c.At.Node(), c.At.Off()+PageSize), c.Pages - 1}
	}
	return c
}

// Node returns the memory of a node.
func (t *Tree) Node(i int) *Memory { return t.nodes[i] }

// page returns the page at an address that is known to be a page's.
func (t *Tree) page(a Addr) page {
	return page(t.nodes[a.Node()].mem[a.Off():][:PageSize:PageSize])
}

// look returns the page at any address, or an error.
func (t *Tree) look(a Addr) (page, error) {
	if a.Node() >= t.Nodes || a.Off() < t.RootAt+8 || a.Off()+PageSize > t.Size {
		return nil, fmt.Errorf("sherman: %v is not the address of a page", a)
	}
	return t.page(a), nil
}

// Lock returns the word of a lock.
func (t *Tree) Lock(node, index int) uint64 { return le.Uint64(t.nodes[node].locks[8*index:]) }

// Check checks the tree at rest: every level from left to right has ascending keys and bounds that fit; every
// page below the root is found from above; no page is torn, and no lock is held. It returns the keys and
// values of the leaves.
func (t *Tree) Check() (map[uint64]uint64, error) {
	for n := range t.nodes {
		for i := range Locks {
			if w := t.Lock(n, i); w != 0 {
				return nil, fmt.Errorf("sherman: lock %d of node %d is still held as %#x", i, n, w)
			}
		}
	}
	values := make(map[uint64]uint64)
	first := Addr(le.Uint64(t.nodes[0].mem[t.RootAt:]))
	top, err := t.look(first)
	if err != nil {
		return nil, err
	}
	children := map[Addr]uint64{} // children by address, with their lowest keys, of the next level
	for level := top.level(); level >= 0; level-- {
		next := map[Addr]uint64{}
		var below Addr
		low := uint64(0)
		for a, n := first, 0; a != 0; n++ {
			p, err := t.look(a)
			switch {
			case err != nil:
				return nil, err
			case uint64(n) > t.Size/PageSize*uint64(t.Nodes):
				return nil, fmt.Errorf("sherman: level %d has no end", level)
			case p.level() != level || !p.whole() || p.lowest() != low || p.highest() <= low:
				return nil, fmt.Errorf("sherman: page %v of level %d, keys from %#x, is torn or of another place: level %d, keys %#x to %#x", a, level, low, p.level(), p.lowest(), p.highest())
			}
			if k, ok := children[a]; ok && k != low {
				return nil, fmt.Errorf("sherman: page %v begins at %#x, and at %#x above", a, low, k)
			}
			delete(children, a)
			all := p.pairs()
			for i, x := range all {
				if x.key < low || x.key >= p.highest() || i > 0 && x.key == all[i-1].key {
					return nil, fmt.Errorf("sherman: key %#x is twice in, or not of, page %v, %#x to %#x", x.key, a, low, p.highest())
				}
				if level == 0 {
					values[x.key] = x.to
				} else if _, ok := next[Addr(x.to)]; ok {
					return nil, fmt.Errorf("sherman: page %v is twice in the level above", Addr(x.to))
				} else {
					next[Addr(x.to)] = x.key
				}
			}
			if level > 0 {
				next[p.leftmost()] = low
				if n == 0 {
					below = p.leftmost()
				}
				for i := 1; i < p.records(); i++ {
					if p.branchKey(i) <= p.branchKey(i-1) {
						return nil, fmt.Errorf("sherman: page %v is not sorted", a)
					}
				}
			} else {
				for i := range Entries {
					if !p.entry(i).whole() {
						return nil, fmt.Errorf("sherman: entry %d of leaf %v is torn", i, a)
					}
				}
			}
			low = p.highest()
			if a = p.sibling(); a == 0 && low != MaxKey {
				return nil, fmt.Errorf("sherman: level %d ends at %#x", level, low)
			}
		}
		for a := range children {
			return nil, fmt.Errorf("sherman: page %v is not where the level above says", a)
		}
		first, children = below, next
	}
	return values, nil
}

// Spoil gives an existing key another value, for tests.
func (t *Tree) Spoil(key, value uint64) {
	for off := t.RootAt + 8; ; off++ {
		if off += (PageSize - off%PageSize) % PageSize; off+PageSize > t.Size {
			return
		}
		if p := t.page(AddrOf(0, off)); p.level() == 0 {
			if i, found := p.find(key); found {
				p.entry(i).set(key, value)
			}
		}
	}
}
