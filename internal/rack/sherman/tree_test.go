package sherman

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Offsets of the published structure: packed, with these sizes.
func TestLayout(t *testing.T) {
	leaf, inner := make(page, PageSize), make(page, PageSize)
	leaf.reset(0, 3, 9)
	inner.reset(1, 0, MaxKey)
	if leaf.rearAt() != 1016 || inner.rearAt() != 1020 || Locks != 32768 || recordsAt != 44 {
		t.Errorf("rear versions at %d and %d, %d locks, records at %d", leaf.rearAt(), inner.rearAt(), Locks, recordsAt)
	}
	leaf.entry(1).set(0x0102030405060708, 0x1112131415161718)
	if got := leaf[44+18 : 44+36]; !slices.Equal(got, []byte{1, 8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 1}) {
		t.Errorf("entry % x", got)
	}
	a := AddrOf(3, 0x1000400)
	if a != 0x10004000003 || a.Node() != 3 || a.Off() != 0x1000400 || a.String() != "3:0x1000400" {
		t.Errorf("%v %#x", a, uint64(a))
	}
	if leaf.lowest() != 3 || leaf.highest() != 9 || leaf.records() != 0 || inner.level() != 1 {
		t.Errorf("%v", leaf[:recordsAt])
	}
	// Many pages have different locks; few pages share a lock.
	seen := map[int]int{}
	for i := range uint64(4096) {
		seen[LockOf(AddrOf(0, i*PageSize))]++
	}
	if len(seen) < 3700 {
		t.Errorf("4096 pages have %d locks", len(seen))
	}
}

func TestVersions(t *testing.T) {
	p := make(page, PageSize)
	p.reset(0, 0, MaxKey)
	for range 300 {
		if p.touch(); !p.whole() {
			t.Fatal("torn")
		}
		if p.entry(0).set(1, 1); !p.entry(0).whole() {
			t.Fatal("torn")
		}
	}
	p[frontAt]++
	p.entry(0)[0]++
	if p.whole() || p.entry(0).whole() {
		t.Error("half a write looks whole")
	}
}

// A split loses no entry, puts every entry where it belongs, and can be found from the left page.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		level := rapid.IntRange(0, 2).Draw(t, "level")
		p, right := make(page, PageSize), make(page, PageSize)
		p.reset(level, 10, 10_000)
		p.setSibling(7)
		p.setLeftmost(5)
		keys := rapid.SliceOfNDistinct(rapid.Uint64Range(11, 9999), p.capacity()+1, p.capacity()+1, rapid.ID[uint64]).Draw(t, "keys")
		var all []pair
		for _, k := range keys {
			all = append(all, pair{k, k << 20})
		}
		p.fill(all[:p.capacity()])
		slices.SortFunc(all, byKey)
		sep := p.split(right, 9, all)
		got := append(p.pairs(), right.pairs()...)
		if level > 0 {
			got = slices.Insert(got, len(p.pairs()), pair{sep, uint64(right.leftmost())})
		}
		if !slices.Equal(got, all) {
			t.Fatalf("%v became %v", all, got)
		}
		if p.highest() != sep || right.lowest() != sep || right.highest() != 10_000 || p.sibling() != 9 || right.sibling() != 7 || !p.whole() || !right.whole() || right.level() != level || p.lowest() != 10 {
			t.Fatal("bounds")
		}
		for _, x := range all {
			if level > 0 {
				q := p
				if x.key >= p.highest() {
					q = right
				}
				if q.down(x.key) != Addr(x.to) {
					t.Fatalf("key %d leads to %v", x.key, q.down(x.key))
				}
			}
		}
		if level > 0 && p.down(10) != 5 {
			t.Fatal("leftmost")
		}
	})
}

func loaded(t *testing.T, n int) *Tree {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = uint64(i+1) * 3
	}
	tree, err := NewTree(Layout{Nodes: 2, RootAt: 64, Size: 1 << 20}, keys, func(k uint64) uint64 { return k + 1 }, 0)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestLoad(t *testing.T) {
	for _, n := range []int{0, 1, 43, 44, 3000} {
		values, err := loaded(t, n).Check()
		if err != nil || len(values) != n {
			t.Fatalf("%d keys: %d, %v", n, len(values), err)
		}
		for k, v := range values {
			if v != k+1 || k%3 != 0 {
				t.Errorf("key %d has value %d", k, v)
			}
		}
	}
	same := func(k uint64) uint64 { return k }
	for _, c := range []struct {
		l    Layout
		keys []uint64
		fill float64
	}{
		{Layout{}, nil, 0}, {Layout{Nodes: 1}, nil, 0}, {Layout{Nodes: 1, RootAt: 4, Size: 1 << 20}, nil, 0},
		{Layout{Nodes: 1, RootAt: 64, Size: 4096}, make([]uint64, 3), 0},
		{Layout{Nodes: 1, RootAt: 64, Size: 1 << 20}, []uint64{2, 1}, 0},
		{Layout{Nodes: 1, RootAt: 64, Size: 1 << 20}, []uint64{MaxKey}, 0},
		{Layout{Nodes: 1, RootAt: 64, Size: 1 << 20}, nil, 2},
		{Layout{Nodes: 1, RootAt: 64, Size: 2048}, ascending(500), 0},
	} {
		if _, err := NewTree(c.l, c.keys, same, c.fill); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
	if _, err := loaded(t, 1).Chunk(0, 5000); err == nil {
		t.Error("a chunk without memory")
	}
}

func ascending(n int) []uint64 {
	k := make([]uint64, n)
	for i := range k {
		k[i] = uint64(i + 1)
	}
	return k
}

// The check must be able to fail.
func TestCheckFindsDamage(t *testing.T) {
	for _, c := range []struct {
		name, why string
		damage    func(t *Tree, root, leaf page)
	}{
		{"nothing", "", func(*Tree, page, page) {}},
		{"lock held", "lock 7 of node 1", func(t *Tree, _, _ page) { t.nodes[1].locks[7*8+3] = 1 }},
		{"torn page", "torn", func(_ *Tree, _, leaf page) { leaf[frontAt]++ }},
		{"torn entry", "entry 0", func(_ *Tree, _, leaf page) { leaf.entry(0)[0]++ }},
		{"key of another page", "not of", func(_ *Tree, _, leaf page) { leaf.entry(0).set(99999, 1) }},
		{"key twice", "twice", func(_ *Tree, _, leaf page) { leaf.entry(0).set(leaf.entry(1).key(), 1) }},
		{"bounds", "another place", func(_ *Tree, _, leaf page) { leaf.setLowest(leaf.lowest() + 1) }},
		{"no neighbour", "ends at", func(_ *Tree, _, leaf page) { leaf.setSibling(0) }},
		{"circle", "another place", func(t *Tree, root, leaf page) { leaf.setSibling(root.child(0)) }},
		{"address of nothing", "not the address", func(_ *Tree, _, leaf page) { leaf.setSibling(AddrOf(9, 0)) }},
		{"not sorted", "not sorted", func(_ *Tree, root, _ page) {
			all := root.pairs()
			all[0], all[1] = all[1], all[0]
			root.fill(all)
		}},
		{"child of another", "twice", func(_ *Tree, root, _ page) {
			all := root.pairs()
			all[1].to += 1024 << 16
			root.fill(all)
		}},
		{"root pointer", "not the address", func(t *Tree, _, _ page) { clear(t.nodes[0].mem[t.RootAt:][:8]) }},
	} {
		tree := loaded(t, 500)
		root := tree.page(Addr(le.Uint64(tree.nodes[0].mem[tree.RootAt:])))
		c.damage(tree, root, tree.page(root.child(1)))
		_, err := tree.Check()
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestNewClientRefuses(t *testing.T) {
	n, err := rnic.New(rnic.Config{MAC: [6]byte{2}, IP: netip.AddrFrom4([4]byte{10, 0, 0, 1})})
	if err != nil {
		t.Fatal(err)
	}
	good := Config{
		Layout: Layout{Nodes: 1}, Sessions: 1, CQ: n.CreateCQ(1),
		Dial: func(clock.Time, int, int) (*rnic.QP, Grant, error) { return nil, Grant{}, rnic.ErrState },
		Next: func(clock.Time, int) (Op, bool) { return Op{}, false },
	}
	if _, err := NewClient(good); err != nil {
		t.Error(err)
	}
	for i, change := range []func(*Config){
		func(c *Config) { c.CQ = nil }, func(c *Config) { c.Dial = nil }, func(c *Config) { c.Next = nil },
		func(c *Config) { c.Sessions = 0 }, func(c *Config) { c.Nodes = 0 }, func(c *Config) { c.Client = -1 },
	} {
		c := good
		change(&c)
		if _, err := NewClient(c); err == nil {
			t.Errorf("change %d: no error", i)
		}
	}
	// Invalid keys are refused, and a server that does not answer is dialled again.
	ops := []Op{{Key: 0}, {Key: MaxKey}, {Key: 5, Kind: Write}, {Key: 5, Kind: Range, To: 4}, {Key: 5, Kind: Range, To: MaxKey}, {Key: 5, Kind: Range + 1}, {Key: 5}}
	var errs []error
	good.Next = func(clock.Time, int) (op Op, ok bool) {
		if len(ops) == 0 {
			return op, false
		}
		op, ops = ops[0], ops[1:]
		return op, true
	}
	good.Done = func(r *Result) { errs = append(errs, r.Err) }
	c, err := NewClient(good)
	if err != nil {
		t.Fatal(err)
	}
	c.Step(1000)
	if len(errs) != 6 || slices.ContainsFunc(errs, func(err error) bool { return err != ErrKey }) || c.Idle() {
		t.Errorf("%v", errs)
	}
	if d := c.Deadline(); d != clock.Time(1000).Add(onesided.RedialAfter) {
		t.Errorf("dials again at %d", d)
	}
}

// TestLeft: the written pages of a chunk whose client has gone are not given out again.
func TestLeft(t *testing.T) {
	tree, err := NewTree(Layout{Nodes: 1, RootAt: 64, Size: 16 * PageSize}, []uint64{1, 2}, func(k uint64) uint64 { return k }, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tree.Chunk(0, 3)
	if err != nil {
		t.Fatal(err)
	}
	for used := range 4 {
		if left := tree.Left(c); left.Pages != 3-used || left.At.Off() != c.At.Off()+uint64(used)*PageSize {
			t.Fatalf("%d pages are written: %+v", used, left)
		}
		if used < 3 {
			tree.page(AddrOf(0, c.At.Off()+uint64(used)*PageSize))[PageSize-1] = 1
		}
	}
}
