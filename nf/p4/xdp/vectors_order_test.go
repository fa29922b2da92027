package xdp

import (
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// tape is the memory of bit vectors at each time: the stores are numbered.
type tape struct {
	v      *vectors
	at     map[int][]int // by word, the numbers of its stores
	value  map[int][]uint64
	stores int
	ops    []int // the number of the first store of each change
	states [][]ruled
}

// ruled is an entry as the test knows it.
type ruled struct {
	rank      uint64
	low, high uint16
	record    uint32
}

func newTape(shape vectorsShape) *tape {
	p := &tape{v: newVectors(shape, &shared{mem: make([]byte, shape.memory())}), at: map[int][]int{}, value: map[int][]uint64{}, states: [][]ruled{nil}}
	store := p.v.store
	p.v.store = func(w int, x uint64) {
		store(w, x)
		p.at[w], p.value[w] = append(p.at[w], p.stores), append(p.value[w], x)
		p.stores++
	}
	return p
}

// first is the place of the first number that is not below n.
func first(all []int, n int) int {
	k, _ := slices.BinarySearch(all, n)
	return k
}

// read is what a word was when n stores had been made.
func (p *tape) read(w, n int) uint64 {
	k := first(p.at[w], n)
	if k == 0 {
		return 0
	}
	return p.value[w][k-1]
}

// look looks a key up, as a frame does, at the times that next returns. ok is false if the frame meets a change.
func (p *tape) look(key uint16, next func() int) (record uint32, ok bool) {
	generation := p.read(generationAt, next())
	if generation&1 != 0 {
		return 0, false
	}
	half := halfOf(generation)
	for w := range p.v.words {
		in := p.read(p.v.live(half)+w, next())
		for n, b := range []int{int(key >> 8), int(key & 0xff)} {
			if n == 0 || in != 0 {
				in &= p.read(p.v.vector(n, b)+w, next())
			}
		}
		if in == 0 {
			continue
		}
		bit := 0
		for in>>bit&1 == 0 {
			bit++
		}
		record = uint32(p.read(p.v.numbers(half)+64*w+bit, next()))
		break
	}
	return record, p.read(generationAt, next()) == generation
}

// when returns the first state, from one on and up to another one, in which a key hits a record; -1: there is none.
func (p *tape) when(key uint16, record uint32, from, to int) int {
	for k := from; k <= to; k++ {
		best := ruled{rank: 1 << 63}
		for _, e := range p.states[k] {
			if key >= e.low && key <= e.high && e.rank < best.rank {
				best = e
			}
		}
		if best.record == record {
			return k
		}
	}
	return -1
}

// TestInterleavedChanges plays frames whose steps lie in any way among the stores of changes. What a frame sees is right at some time while
// it looks, and a frame behind another one sees nothing older.
func TestInterleavedChanges(t *testing.T) {
	r := newRandom(t)
	shape, _ := vectorsShape{bytes: vectorBytes(0, 16)}.sized(128)
	p := newTape(shape)
	table := &ir.Table{Keys: []ir.Key{{Match: ir.Range, Bits: 16, Words: 1}}, KeyWords: 1}
	var have []ruled
	record := uint32(0)
	for range 4000 {
		p.ops = append(p.ops, p.stores)
		record++
		i := 0
		if len(have) > 0 {
			i = r.IntN(len(have))
		}
		what := r.IntN(5)
		switch {
		case len(have) > 36 || len(have) > 4 && what < 2:
			if _, err := p.v.delete(have[i].rank); err != nil {
				t.Fatal(err)
			}
			have = slices.Delete(slices.Clone(have), i, i+1)
		default:
			e := ruled{r.Uint64() >> 2, uint16(r.IntN(300)), 0, record}
			e.high = e.low + uint16(r.IntN(300))
			have = slices.Clone(have)
			if what == 2 && len(have) > 0 {
				e.rank, e.low, e.high = have[i].rank, have[i].low, have[i].high
				have[i] = e
			} else if k, n := p.v.ofRank(e.rank); n == 0 {
				have = append(have, e)
			} else {
				t.Fatal("a rank comes twice", k)
			}
			pieces, err := piecesOf(table, &ir.Row{Key: []uint64{uint64(e.low)}, Mask: []uint64{uint64(e.high)}})
			if err == nil {
				_, _, err = p.v.put(e.rank, pieces, e.record-1)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		p.states = append(p.states, have)
	}
	// stateAt is the number of the state behind all changes that have begun when n stores had been made, or that have ended.
	begun := func(n int) int { return first(p.ops, n) }
	ended := func(n int) int { return max(0, first(p.ops, n+1)-1) }
	seen, met := 0, 0
	for range 400_000 {
		now := r.IntN(p.stores)
		if r.IntN(4) > 0 { // where slots go and come
			if k := p.at[p.v.live(r.IntN(2))+r.IntN(p.v.words)]; len(k) > 0 {
				now = max(0, k[r.IntN(len(k))]-r.IntN(3))
			}
		}
		span := 1 << r.IntN(10)
		next := func() int {
			if r.IntN(4) == 0 {
				now = min(p.stores, now+r.IntN(span))
			}
			return now
		}
		from, state := now, 0
		for range 3 { // frames one behind another
			key := uint16(r.IntN(600))
			got, ok := p.look(key, next)
			if !ok {
				met++
				break
			}
			seen++
			state = p.when(key, got, max(state, ended(from)), begun(now))
			if state < 0 {
				t.Fatalf("store %d to %d of %d: key %d hits record %d, which is right in no state from %d to %d", from, now, p.stores, key, got, ended(from), begun(now))
			}
			from = now
		}
	}
	t.Logf("%d stores; %d frames, %d met changes", p.stores, seen, met)
	if seen < 50_000 || met < 1000 {
		t.Error("nothing is compared")
	}
}
