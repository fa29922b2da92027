package rcuckoo

import (
	"testing"
	"time"
)

// Sessions that fill a table know of its rows what they met when they were there last: full rows that others have filled, too, but not
// all of them, and no key is lost.
func TestPrime(t *testing.T) {
	l := Layout{Rows: 512, Form: Code, Hashing: HashCode}
	table, err := NewTable(l)
	if err != nil {
		t.Fatal(err)
	}
	whole := func(c *Config) { c.Blind, c.Cache = true, 512*64 }
	var clients []*Client
	for range 20 {
		clients = append(clients, newNear(t, l, whole).c)
	}
	next, err := table.Prime(clients, 1, 0.85, make([]byte, 4))
	if want := 512 * Slots * 85 / 100; err != nil || int(next)-1 != want || table.Count() != want {
		t.Fatalf("%d keys of %d, %d entries, %v", next-1, want, table.Count(), err)
	}
	if values, wrong := table.Check(false); wrong != nil || len(values) != int(next)-1 {
		t.Errorf("%d keys of %d, %v", len(values), next-1, wrong)
	}
	full, known := 0, 0
	for _, c := range clients {
		for i := range 512 {
			if table.image(table.row(i)).hole() < 0 {
				full++
				if table.image(c.Sessions[0].inCache(i)).hole() < 0 {
					known++
				}
			}
		}
	}
	if known < full/2 || known > full*95/100 {
		t.Errorf("of %d full rows clients know %d", full, known)
	}
	s := clients[0].Sessions[0]
	s.forget()
	if s.rowInCache(1); s.reach || table.image(s.rowInCache(1)).hole() != 0 {
		t.Error("a row is known although the session has forgotten all")
	}
}

// Of an insertion's time, that of further rows, lock messages and moved entries is in addition, and a further try takes it anew.
func TestInsertionTime(t *testing.T) {
	w := Work{Insert: 100, Held: 40, Look: 7, Again: 5, Move: 3, Lock: 11}
	for _, c := range []struct{ got, want time.Duration }{
		{w.planned(1, 1, 1), 0}, {w.planned(1, 3, 1), 14}, {w.planned(1, 1, 2), 11}, {w.planned(2, 2, 1), 60 + 7},
		{w.placed(0, 0), 0}, {w.placed(0, 2), 6}, {w.placed(1, 0), 5}, {w.placed(3, 1), 5 + 14 + 3},
	} {
		if c.got != c.want {
			t.Errorf("%d ns, not %d", c.got, c.want)
		}
	}
}
