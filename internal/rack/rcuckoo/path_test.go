package rcuckoo

import (
	"testing"

	"github.com/quillon/quillon/internal/rack/onesided"
)

// A masked CAS takes as many locks of a word as it may, wherever in the word they are.
func TestLocksOfAMessage(t *testing.T) {
	for _, c := range []struct {
		most   int
		rows   []int
		groups []int // locks of each message
	}{
		{1, []int{1, 2}, []int{1, 1}},
		{2, []int{1, 2}, []int{2}}, // no aligned pair
		{2, []int{1, 30, 60}, []int{2, 1}},
		{64, []int{1, 30, 63, 64}, []int{3, 1}},
	} {
		l, err := Layout{Rows: 1024, RowsPerLock: 1, LocksPerMessage: c.most}.complete()
		if err != nil {
			t.Fatal(err)
		}
		p := lockPlan{l: &l}
		var room onesided.Arena
		p.plan(c.rows, true, 148, &room)
		if len(p.groups) != len(c.groups) {
			t.Fatalf("%d locks a message, rows %v: %d messages, not %d", c.most, c.rows, len(p.groups), len(c.groups))
		}
		for i, g := range p.groups {
			n := 0
			for m := g.mask; m != 0; m &= m - 1 {
				n++
			}
			if n != c.groups[i] || g.to-g.from != 1 {
				t.Errorf("%d locks a message, rows %v: message %d takes %d locks and %d READs, not %d and 1", c.most, c.rows, i, n, g.to-g.from, c.groups[i])
			}
		}
	}
}

// DFS turns back where a row must not be used, and goes at most maxDepth rows deep.
func TestDepthFirst(t *testing.T) {
	table, err := NewTable(Layout{Rows: 256, Hashing: HashCode, Form: Code})
	if err != nil {
		t.Fatal(err)
	}
	next, err := table.Fill(1, 0.9, func(uint32) []byte { return make([]byte, 4) })
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(32) {
		f := table.Finder(DFS, seed)
		first, _ := table.RowsOf(next)
		all := 0
		var only int
		for row := range 256 { // rows with a free entry
			if table.image(table.row(row)).hole() >= 0 {
				all, only = all+1, row
			}
		}
		if all == 0 || table.image(table.row(first)).hole() >= 0 {
			t.Fatal("the test needs a key whose first row is full, and a free entry")
		}
		if !f.find(next, table.row) || len(f.path) > maxDepth || int(f.path[0].row) != first {
			t.Fatalf("seed %d: path %v", seed, f.path)
		}
		// Only one way leads on: the others have to be given up.
		found := f.find(next, func(i int) row {
			if i != only && table.image(table.row(i)).hole() >= 0 {
				return nil
			}
			return table.row(i)
		})
		if found && (int(f.path[len(f.path)-1].row) != only || len(f.path) > maxDepth) {
			t.Fatalf("seed %d: path %v does not end in row %d", seed, f.path, only)
		}
		for i := 1; found && i < len(f.path); i++ {
			if k := table.image(table.row(int(f.path[i-1].row))).key(int(f.path[i-1].slot)); table.other(k, int(f.path[i-1].row)) != int(f.path[i].row) {
				t.Fatalf("seed %d: the entry of hop %d does not go to hop %d: %v", seed, i-1, i, f.path)
			}
		}
		next++
		for ; table.image(table.row(first)).hole() >= 0; next++ {
			first, _ = table.RowsOf(next)
		}
	}
}

// A free slot that another client has taken is no path any more, even if the row has another one.
func TestFreeSlotTaken(t *testing.T) {
	x := newNear(t, Layout{Rows: 64, Form: Code, Hashing: HashCode}, func(c *Config) { c.Blind = true })
	s := x.s
	s.key = 7
	if !speculate(s) || len(s.guess) != 1 || s.guess[0].slot != 0 {
		t.Fatalf("an empty cache gives the path %v", s.guess)
	}
	s.plan(s.rows, true, 148, &s.Arena)
	if !s.stillThere() {
		t.Error("an empty row is not as guessed")
	}
	m := s.c.cfg.image(s.rowLocked(int(s.guess[0].row)))
	m.put(0, cell{Key: 99})
	if s.stillThere() {
		t.Error("a slot that is taken counts as free")
	}
	if !s.find.find(7, s.inLocked) || len(s.find.path) != 1 || s.find.path[0].slot != 1 {
		t.Errorf("the second search finds %v", s.find.path)
	}
}
