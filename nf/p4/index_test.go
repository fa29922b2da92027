package p4

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestHashIndex compares an index with a map while it grows, with keys that
// collide.
func TestHashIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x hashIndex
		few := rapid.SampledFrom([]uint64{3, 64, math.MaxUint64}).Draw(t, "hashes")
		hash := func(e uint32) uint64 { return uint64(e) * 0x9e3779b97f4a7c15 % few }
		find := func(e uint32) bool {
			return x.slots.of(e, hash(e)) >= 0 || x.old.of(e, hash(e)) >= 0
		}
		var in []uint32
		next := uint32(0)
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				if len(in) > 0 {
					i := rapid.IntRange(0, len(in)-1).Draw(t, "which")
					x.del(in[i], hash(in[i]), hash)
					if find(in[i]) {
						t.Fatalf("%d is still there", in[i])
					}
					in = slices.Delete(in, i, i+1)
				}
			default:
				x.add(next, hash(next), hash)
				in = append(in, next)
				next++
			}
			for _, e := range in {
				if !find(e) {
					t.Fatalf("%d is lost", e)
				}
			}
			if x.used != len(in) || 2*x.used > len(x.slots) {
				t.Fatalf("%d used of %d slots, %d entries", x.used, len(x.slots), len(in))
			}
		}
	})
}

// TestGrowsInSteps: an entry that is added moves few others.
func TestGrowsInSteps(t *testing.T) {
	var x hashIndex
	most, n := 0, 0
	hash := func(e uint32) uint64 { n++; return hashWords([]uint64{uint64(e)}) }
	for e := range uint32(100_000) {
		n = 0
		x.add(e, hash(e), hash)
		most = max(most, n)
	}
	if most > 16 {
		t.Errorf("one entry took %d hashes", most)
	}
	// Nor are the entries themselves copied often.
	sw := matchProgram("exact", []KeyInfo{{Match: Exact, Bits: 48}}).load(t, Config{})
	tab := sw.tables[0]
	copies, last := 0, 0
	for range 1 << 20 {
		if tab.alloc(); cap(tab.rows) != last {
			copies, last = copies+1, cap(tab.rows)
		}
	}
	if copies > 5 {
		t.Errorf("a million entries were copied %d times", copies)
	}
}
