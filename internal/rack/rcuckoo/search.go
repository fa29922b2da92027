package rcuckoo

import "math/rand/v2"

// Search is how a cuckoo path is looked for.
type Search uint8

const (
	// BFS finds a shortest path.
	BFS Search = iota
	// AStar is BFS that looks first at one row: the row with a free entry that is nearest to the path's
	// beginning.
	AStar
	// DFS follows one victim after another, as the public code does: in each row it begins at the same slot, which
	// was drawn, goes at most 30 rows deep, and turns back where it finds nothing.
	DFS
)

func (s Search) String() string { return [...]string{"BFS", "A*", "DFS"}[s] }

// hop is a step of a cuckoo path: the entry at slot of row moves to the next hop's place. The last hop's slot
// is free.
type hop struct{ row, slot int32 }

type node struct {
	row, parent, via int32 // via: the slot in the parent's row
}

// finder looks for paths.
type finder struct {
	l      *Layout
	search Search
	start  int32 // slot at which DFS begins in each row; the public code draws one a second, for all
	nodes  []node
	ahead  []int32 // nodes to look at first
	seen   map[int32]struct{}
	path   []hop
	looked int // rows that the last search looked at
}

func newFinder(l *Layout, s Search, seed uint64) *finder {
	return &finder{l: l, search: s, start: rand.New(rand.NewPCG(seed, 0xC0C0)).Int32N(Slots), seen: map[int32]struct{}{}}
}

const (
	// maxNodes is how many rows a search looks at at most.
	maxNodes = 2048
	// maxDepth is how many rows a path of DFS has at most (DEPTH_LIMIT of the public code), and maxFollowed how many
	// entries one search follows.
	maxDepth, maxFollowed = 30, 1 << 14
	// maxNear is how many rows away A* looks for the nearest free entry.
	maxNear = 512
)

// find looks for a path that begins at a key's first row. look returns a row's image, or nil if the row must
// not be used. false: there is no path.
func (f *finder) find(key uint32, look func(row int) row) bool {
	first, _ := f.l.RowsOf(key)
	f.looked = 0
	if f.search == DFS {
		f.path = f.path[:0]
		clear(f.seen)
		return f.descend(key, int32(first), look)
	}
	target := int32(-1)
	if f.search == AStar {
		target = f.nearest(first, look)
	}
	clear(f.seen)
	f.nodes = append(f.nodes[:0], node{int32(first), -1, 0})
	f.seen[int32(first)] = struct{}{}
	f.ahead = f.ahead[:0]
	for i := 0; ; {
		at := int32(i)
		if n := len(f.ahead); n > 0 {
			at, f.ahead = f.ahead[n-1], f.ahead[:n-1]
		} else if i++; at >= int32(len(f.nodes)) {
			return false
		}
		b := look(int(f.nodes[at].row))
		if b == nil {
			continue
		}
		f.looked++
		m := f.l.image(b)
		if hole := m.hole(); hole >= 0 {
			f.trace(at, int32(hole))
			return true
		}
		f.expand(at, m, target)
	}
}

// expand adds the rows to which entries of a node's row can move.
func (f *finder) expand(at int32, m image, target int32) {
	here := f.nodes[at].row
	for s := range int32(Slots) {
		if len(f.nodes) >= maxNodes {
			return
		}
		to := int32(f.l.other(m.key(int(s)), int(here)))
		if _, ok := f.seen[to]; ok {
			continue
		}
		f.seen[to] = struct{}{}
		f.nodes = append(f.nodes, node{to, at, s})
		if to == target {
			f.ahead = append(f.ahead, int32(len(f.nodes)-1))
		}
	}
}

// trace makes the path that ends at a free slot of a node's row.
func (f *finder) trace(at, slot int32) {
	f.path = f.path[:0]
	for at >= 0 {
		n := f.nodes[at]
		f.path = append(f.path, hop{n.row, slot})
		at, slot = n.parent, n.via
	}
	for i, k := 0, len(f.path)-1; i < k; i, k = i+1, k-1 {
		f.path[i], f.path[k] = f.path[k], f.path[i]
	}
}

// nearest is the row with a free entry that is nearest to first; -1: none is near.
func (f *finder) nearest(first int, look func(row int) row) int32 {
	t := f.l.Rows
	for d := range min(maxNear, t) {
		for _, r := range [2]int{(first + d) % t, (first - d + t) % t} {
			if b := look(r); b != nil && f.l.image(b).hole() >= 0 {
				return int32(r)
			}
		}
	}
	return -1
}

// descend follows the entry of key to row, and goes on with one of the row's entries after another until a row has
// a free entry. seen has the keys that were followed.
func (f *finder) descend(key uint32, to int32, look func(row int) row) bool {
	if _, ok := f.seen[int32(key)]; ok || len(f.path) >= maxDepth || len(f.seen) >= maxFollowed {
		return false
	}
	f.seen[int32(key)] = struct{}{}
	b := look(int(to))
	if b == nil {
		return false
	}
	f.looked++
	m := f.l.image(b)
	if hole := m.hole(); hole >= 0 {
		f.path = append(f.path, hop{to, int32(hole)})
		return true
	}
	for i := range int32(Slots) {
		s := (f.start + i) % Slots
		k := m.key(int(s))
		f.path = append(f.path, hop{to, s})
		if f.descend(k, int32(f.l.other(k, int(to))), look) {
			return true
		}
		f.path = f.path[:len(f.path)-1]
	}
	return false
}
