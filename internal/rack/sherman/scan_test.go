package sherman

import (
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// alone runs a session whose requests a tree executes at once. before is called before each READ of a page.
func alone(t *testing.T, tree *Tree, ops []Op, before func(Addr)) []Result {
	t.Helper()
	n, err := rnic.New(rnic.Config{MAC: [6]byte{2}, IP: netip.AddrFrom4([4]byte{10, 0, 0, 1})})
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := tree.Chunk(0, 16)
	if err != nil {
		t.Fatal(err)
	}
	var got []Result
	c, err := NewClient(Config{
		Layout: tree.Layout, Sessions: 1, CQ: n.CreateCQ(1), Chunk: chunk,
		Dial: func(clock.Time, int, int) (*rnic.QP, Grant, error) {
			return &rnic.QP{}, Grant{Memory: Region{VA: memoryVA}}, nil
		},
		Next: func(clock.Time, int) (op Op, ok bool) {
			if len(ops) == 0 {
				return op, false
			}
			op, ops = ops[0], ops[1:]
			return op, true
		},
		Done: func(r *Result) {
			one := *r
			one.Pairs = append([]Pair(nil), r.Pairs...)
			got = append(got, one)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := c.Sessions[0]
	posted := 0
	s.Put = func(node int, w *rnic.SendWR) {
		m := tree.nodes[node]
		mem := m.locks[min(w.RemoteAddr, LockTable):]
		if w.RemoteAddr >= memoryVA {
			mem = m.mem[w.RemoteAddr-memoryVA:]
		}
		switch w.Op {
		case rnic.OpRead:
			if len(w.SGL[0]) == PageSize {
				before(AddrOf(node, w.RemoteAddr-memoryVA))
			}
			copy(w.SGL[0], mem)
		case rnic.OpWrite:
			copy(mem, w.SGL[0])
		case rnic.OpCompareSwap:
			copy(w.SGL[0], mem[:8])
			if le.Uint64(mem) == w.Compare {
				le.PutUint64(mem, w.Swap)
			}
		}
		posted++
	}
	for now := clock.Time(1); len(ops) > 0 || s.Busy; now++ {
		c.Step(now)
		for posted > 0 {
			posted = 0
			s.Done(now)
		}
		if now > 10_000 {
			t.Fatal("no end")
		}
	}
	return got
}

// Ranges cross leaves, parents and both nodes. Deleted keys are not in ranges. A deletion gives the lock
// back.
func TestRangeAndDelete(t *testing.T) {
	tree := loaded(t, 5000) // keys 3, 6, ..., values one more
	ops := []Op{{Kind: Range, Key: 1, To: 15_000}, {Kind: Range, Key: 100, To: 100}, {Kind: Range, Key: 99, To: 99}, {Kind: Range, Key: 15_001, To: MaxKey - 1},
		{Kind: Delete, Key: 99}, {Kind: Delete, Key: 99}, {Kind: Delete, Key: 100}, {Kind: Range, Key: 90, To: 105}, {Key: 99}, {Kind: Write, Key: 99, Value: 7}, {Kind: Range, Key: 99, To: 101}}
	got := alone(t, tree, ops, func(Addr) {})
	for i, want := range []int{5000, 0, 1, 0, 0, 0, 0, 5, 0, 0, 1} {
		if got[i].Err != nil || len(got[i].Pairs) != want {
			t.Errorf("%d: %v, %d pairs, want %d", i, got[i].Err, len(got[i].Pairs), want)
		}
	}
	for i, p := range got[0].Pairs {
		if p.Key != uint64(i+1)*3 || p.Value != p.Key+1 {
			t.Fatalf("%d: %+v", i, p)
		}
	}
	if !got[4].Found || got[5].Found || got[6].Found || got[8].Found || got[10].Pairs[0].Value != 7 {
		t.Errorf("%+v", got[4:])
	}
	// Leaves of a parent are read together: 5000 keys are on 117 leaves and 3 parents.
	if n := got[0].RoundTrips; n > 20 {
		t.Errorf("%d round trips", n)
	}
	if values, err := tree.Check(); err != nil || len(values) != 5000 {
		t.Errorf("%d, %v", len(values), err)
	}
}

// A range that meets half a WRITE reads again.
func TestRangeReadsAgain(t *testing.T) {
	for name, damage := range map[string]func(p page){
		"page":  func(p page) { p[frontAt]++ },
		"entry": func(p page) { p.entry(3)[0]++ },
	} {
		tree := loaded(t, 500)
		leaf := tree.page(Addr(le.Uint64(tree.nodes[0].mem[tree.RootAt:]))).child(0)
		reads := 0
		whole := append(page(nil), tree.page(leaf)...)
		got := alone(t, tree, []Op{{Kind: Range, Key: 1, To: 1500}}, func(a Addr) {
			if a != leaf {
				return
			}
			switch reads++; reads {
			case 1:
				damage(tree.page(leaf))
			case 2:
				copy(tree.page(leaf), whole)
			}
		})
		if len(got[0].Pairs) != 500 || got[0].Retries != 1 {
			t.Errorf("%s: %d pairs, %d retries", name, len(got[0].Pairs), got[0].Retries)
		}
	}
}
