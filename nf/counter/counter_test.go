package counter

import (
	"slices"
	"testing"
	"unsafe"
)

func TestCommit(t *testing.T) {
	s := NewSet([]Def{{Name: "a"}, {Name: "b"}, {Name: "c"}})
	s.Add(0, 3)
	s.Set(2, 9)
	if s.Live(0) != 3 || s.Load(0) != 0 || s.Load(2) != 0 {
		t.Error("seen before it was committed")
	}
	s.Commit()
	s.Add(0, ^uint64(0)) // one is taken back
	if got := s.Snapshot(nil); !slices.Equal(got, []uint64{3, 0, 9}) {
		t.Errorf("%v", got)
	}
	s.Commit()
	if s.Load(0) != 2 {
		t.Errorf("%d", s.Load(0))
	}
	if n := testing.AllocsPerRun(100, func() { s.Add(1, 1); s.Commit() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// However many counters there are, a commit shows all of them, and nothing else
// does.
func TestCommitMany(t *testing.T) {
	for _, n := range []int{1, 63, 64, 65, 200} {
		s := NewSet(make([]Def, n))
		live, shown := make([]uint64, n), make([]uint64, n)
		for i := range 20 * n {
			id, by := i*i%n, uint64(i)
			if i%3 == 0 {
				s.Set(ID(id), by)
				live[id] = by
			} else {
				s.Add(ID(id), by)
				live[id] += by
			}
			if i%7 == 0 {
				s.Commit()
				copy(shown, live)
			}
			if got := s.Snapshot(nil); !slices.Equal(got, shown) {
				t.Fatalf("%d counters, after %d changes: %v, want %v", n, i+1, got, shown)
			}
		}
	}
}

// What is written of one set lies on no line of the processor's cache that another's does: each worker has sets of
// its own, which are made one after the other.
func TestLines(t *testing.T) {
	owner := map[uintptr]*Set{}
	for range 64 {
		s := NewSet(make([]Def, 5))
		for _, at := range []unsafe.Pointer{unsafe.Pointer(&s.dirty), unsafe.Pointer(&s.live[0]), unsafe.Pointer(&s.live[4]),
			unsafe.Pointer(&s.pub[0]), unsafe.Pointer(&s.pub[4])} {
			l := uintptr(at) / 64
			if o := owner[l]; o != nil && o != s {
				t.Fatal("two sets have a line in common")
			}
			owner[l] = s
		}
	}
}
