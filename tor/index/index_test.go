package index

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// find is the slot with hash h for which ok holds, as a table looks for its
// keys; -1 when there is none.
func find(x *Index, h uint32, ok func(slot int32) bool) int32 {
	for p := x.Start(h); x.E[p] != 0; p = x.Next(p) {
		if s, same := x.Slot(p, h); same && ok(s) {
			return s
		}
	}
	return -1
}

func has(x *Index, h uint32, slot int32) bool {
	return find(x, h, func(s int32) bool { return s == slot }) == slot
}

func entries(x *Index) (n int) {
	for _, v := range x.E {
		if v != 0 {
			n++
		}
	}
	return n
}

// TestAgainstMap: whatever is put in and taken out, the index finds exactly the slots that are in, and
// nothing is left behind. Hashes are few, or at the ends of their range, so that they collide and probing
// goes around the end.
func TestAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "n")
		x := New(n)
		hash := rapid.OneOf(rapid.Uint32Range(0, 3), rapid.Uint32Range(1<<32-3, 1<<32-1), rapid.Uint32())
		in := map[int32]uint32{}
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			slot := rapid.Int32Range(0, int32(n)).Draw(t, "slot")
			h, ok := in[slot]
			switch {
			case ok:
				x.Del(h^1<<31, slot) // under another hash: not there
				x.Del(h, slot)
				delete(in, slot)
			case len(in) < n:
				h = hash.Draw(t, "hash")
				x.Put(h, slot)
				in[slot] = h
			}
			if e := entries(&x); e != len(in) {
				t.Fatalf("%d entries, want %d", e, len(in))
			}
			for s := range int32(n) + 1 {
				h, ok := in[s]
				if !ok {
					h = hash.Draw(t, "absent")
				}
				if has(&x, h, s) != ok {
					t.Fatalf("slot %d under hash %#x: found %v, want %v", s, h, !ok, ok)
				}
			}
		}
	})
}

// TestFull: as many slots as the index was made for, all under one hash. A search for a slot that is not in
// it ends, and finds nothing.
func TestFull(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 64, 1000} {
		x := New(n)
		for s := range int32(n) {
			x.Put(0xFFFFFFFF, s)
		}
		for s := range int32(n) {
			if !has(&x, 0xFFFFFFFF, s) {
				t.Fatalf("%d of %d is not found", s, n)
			}
		}
		if has(&x, 0xFFFFFFFF, int32(n)) || has(&x, 0, 0) || has(&x, 0xFFFFFFFE, 0) {
			t.Errorf("%d: found what was not put in", n)
		}
		if x.Bytes() != 8*len(x.E) || len(x.E) < 2*n || len(x.E) > max(2, 4*n) {
			t.Errorf("%d: %d places", n, len(x.E))
		}
		for s := range int32(n) {
			x.Del(0xFFFFFFFF, s)
		}
		x.Del(0xFFFFFFFF, 0) // not there any more
		if entries(&x) != 0 {
			t.Errorf("%d: %d left", n, entries(&x))
		}
	}
}

// churn replaces a slot of a full index, n times.
func churn(x *Index, h []uint32, from, n int) {
	for i := from; i < from+n; i++ {
		s := i % len(h)
		x.Del(h[s], int32(s))
		h[s] = uint32(Mix(uint64(i)))
		x.Put(h[s], int32(s))
	}
}

func filled(n int) (Index, []uint32) {
	x, h := New(n), make([]uint32, n)
	for s := range h {
		h[s] = uint32(Mix(uint64(s) << 32))
		x.Put(h[s], int32(s))
	}
	return x, h
}

// TestChurn: an index that was in use for long is as good as a new one: no tombstones, and the searched slots
// are as near.
func TestChurn(t *testing.T) {
	const n = 1 << 10
	x, h := filled(n)
	churn(&x, h, 0, 100*n)
	far, sum := uint32(0), uint32(0)
	for s, h := range h {
		if !has(&x, h, int32(s)) {
			t.Fatalf("%d is not found", s)
		}
		for p := x.Start(h); ; p = x.Next(p) {
			if v, ok := x.Slot(p, h); ok && v == int32(s) {
				d := (p - x.Start(h)) & x.mask
				sum, far = sum+d, max(far, d)
				break
			}
		}
	}
	if entries(&x) != n {
		t.Errorf("%d entries, want %d", entries(&x), n)
	}
	// Knuth 6.4: half full, a search that succeeds looks at 1.5 places.
	if mean := 1 + float64(sum)/n; mean > 1.8 || far > 64 {
		t.Errorf("a search looks at %.2f places, at most at %d", mean, far+1)
	}
}

func TestNoAllocation(t *testing.T) {
	x, h := filled(512)
	if n := testing.AllocsPerRun(100, func() {
		churn(&x, h, 0, 64)
		for s := range h {
			if !has(&x, h[s], int32(s)) {
				t.Fatal(s)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkFind(b *testing.B) {
	for _, n := range []int{16, 1 << 10, 1 << 16} {
		x, h := filled(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if s := i & (n - 1); !has(&x, h[s], int32(s)) {
					b.Fatal(s)
				}
			}
		})
	}
}

func BenchmarkChurn(b *testing.B) {
	x, h := filled(1 << 10)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		churn(&x, h, i, 1)
	}
}
