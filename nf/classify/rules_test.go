package classify_test

import (
	"fmt"
	mathbig "math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/classify"
	"github.com/quillon/quillon/nf/classify/classifytest"
)

// TestManyRules compares sets of thousands of entries, which come and go, with a list.
func TestManyRules(t *testing.T) {
	fields := classifytest.Fields()
	for at, seed := range append(classifytest.Seeds(), classifytest.Worst()...) {
		worst := slices.Contains(classifytest.Worst(), seed)
		for _, filled := range []bool{false, true} {
			if testing.Short() && filled != (at%2 == 0) {
				continue // each of them once
			}
			t.Run(fmt.Sprintf("%s, filled %v", seed, filled), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, 7))
				s := classify.New(fields)
				all := classifytest.Rules(rng, seed, map[bool]int{false: 6000, true: 2500}[worst])
				for i := range all {
					all[i].Order = int32(i / 4) // so that some share theirs, and the lowest number comes first
				}
				live := map[uint32]bool{}
				check := func() {
					t.Helper()
					if s.Len() != len(live) {
						t.Fatalf("%d entries, want %d", s.Len(), len(live))
					}
					if err := s.Check(); err != nil {
						t.Fatal(err)
					}
					for range 60 {
						key := classifytest.Probe(rng, fields, all)
						if seed == "borders" {
							key[2] = []uint64{0x1200, 0xb000}[rng.IntN(2)] + rng.Uint64N(256)
						}
						if got, want := s.Find(key), classifytest.Walk(fields, all, live, key); got != want {
							t.Fatalf("%x finds %d, want %d", key, got, want)
						}
					}
				}
				if filled {
					s.Fill(all)
					for _, e := range all {
						live[e.Number] = true
					}
					check()
				}
				for i, at := range rng.Perm(len(all)) { // as they come, or not
					if e := &all[at]; !filled {
						s.Insert(e.Number, e.Key, e.Mask, e.Order)
						live[e.Number] = true
					}
					if i%3 == 2 && i > len(all)/2 { // and one goes
						gone := uint32(rng.IntN(len(all)))
						if live[gone] {
							s.Remove(gone)
							delete(live, gone)
						}
					}
					if i%300 == 299 || i == 10 || i%20 == 0 && i < 2000 && s.Dividing() {
						check()
					}
				}
				for e := range live {
					got := s.Exact(all[e].Key, all[e].Mask, all[e].Order)
					if !live[got] || all[got].Order != all[e].Order || !slices.Equal(all[got].Key, all[e].Key) || !slices.Equal(all[got].Mask, all[e].Mask) {
						t.Fatalf("entry %d is found as %d", e, got)
					}
				}
				key := classifytest.Probe(rng, fields, all)
				if n := testing.AllocsPerRun(10, func() { s.Find(key) }); n != 0 {
					t.Errorf("%v allocations", n)
				}
				nodes, inVectors := s.Parts()
				t.Logf("%d entries: %d nodes, %d in vectors", len(live), nodes, inVectors)
				if !worst && (inVectors > 0) != (seed == "random masks" || seed == "ranges" || seed == "fw") || nodes > len(live)*6/5 { // most leaves have a few entries
					t.Errorf("%d entries: %d nodes, %d in vectors", len(live), nodes, inVectors)
				}
				for e := range live {
					s.Remove(e)
					delete(live, e)
					if len(live)%500 == 7 {
						check()
					}
				}
				if s.Left() {
					t.Error("something is left")
				}
			})
		}
	}
}

// TestAnyFields: fields of any width, few entries and values, against a walk.
func TestAnyFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var fields []classify.Field
		for range rapid.IntRange(1, 4).Draw(t, "fields") {
			bits := rapid.OneOf(rapid.IntRange(1, 64), rapid.SampledFrom([]int{1, 8, 9, 16, 17, 32, 48, 64})).Draw(t, "bits")
			fields = append(fields, classify.Field{Bits: bits, Range: rapid.Bool().Draw(t, "range")})
		}
		number := func(bits int) uint64 {
			v := rapid.OneOf(rapid.Uint64Range(0, 3), rapid.Uint64()).Draw(t, "value")
			if rapid.IntRange(0, 3).Draw(t, "high") == 0 {
				v = ^v
			}
			return v & (1<<bits - 1) // bits of 64: all, as 1<<64 is 0
		}
		s := classify.New(fields)
		var all []classify.Entry
		live := map[uint32]bool{}
		for i := range rapid.IntRange(0, 120).Draw(t, "entries") {
			e := classify.Entry{Number: uint32(i), Order: int32(i / 3)}
			for _, f := range fields {
				k, m := number(f.Bits), number(f.Bits)
				if f.Range {
					k, m = min(k, m), max(k, m)
				} else {
					if rapid.IntRange(0, 2).Draw(t, "whole") > 0 {
						m = 1<<f.Bits - 1
					}
					k &= m
				}
				e.Key, e.Mask = append(e.Key, k), append(e.Mask, m)
			}
			all = append(all, e)
		}
		filled := rapid.Bool().Draw(t, "filled")
		if filled {
			s.Fill(all)
		}
		order := make([]int, len(all))
		for i := range order {
			order[i] = i
		}
		for i, at := range rapid.Permutation(order).Draw(t, "order") {
			e := all[at]
			if !filled {
				s.Insert(e.Number, slices.Clone(e.Key), slices.Clone(e.Mask), e.Order)
			}
			live[e.Number] = true
			if rapid.IntRange(0, 5).Draw(t, "remove") == 0 {
				gone := uint32(rapid.IntRange(0, len(all)-1).Draw(t, "gone"))
				if live[gone] {
					s.Remove(gone)
					delete(live, gone)
				}
			}
			if filled && i+1 < len(all) {
				continue // those behind it are in the set, too
			}
			key := make([]uint64, len(fields))
			for j, f := range fields {
				if key[j] = number(f.Bits); rapid.Bool().Draw(t, "like one") {
					key[j] = all[rapid.IntRange(0, len(all)-1).Draw(t, "which")].Key[j]
				}
			}
			if got, want := s.Find(key), classifytest.Walk(fields, all, live, key); got != want {
				t.Fatalf("%x finds %d, want %d", key, got, want)
			}
		}
	})
}

// wide is a field's number of several words: the lowest first.
func wide(rng *rand.Rand, bits int) []uint64 {
	v := make([]uint64, (bits+63)/64)
	for i := range v {
		switch rng.IntN(4) {
		case 0: // 0
		case 1:
			v[i] = ^uint64(0)
		case 2:
			v[i] = rng.Uint64N(4)
		default:
			v[i] = rng.Uint64()
		}
		if end := bits - 64*i; end < 64 {
			v[i] &= 1<<end - 1
		}
	}
	return v
}

// big is a number of several words.
func big(v []uint64) *mathbig.Int {
	n := new(mathbig.Int)
	for i := len(v) - 1; i >= 0; i-- {
		n.Or(n.Lsh(n, 64), new(mathbig.Int).SetUint64(v[i]))
	}
	return n
}

// TestWideFields: fields of up to 200 bits in sets that grow to thousands, shrink, and grow again, with orders that many share, against a list.
func TestWideFields(t *testing.T) {
	worlds := 12
	if testing.Short() {
		worlds = 4
	}
	for seed := range worlds {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		var fields []classify.Field
		for range 1 + rng.IntN(4) {
			fields = append(fields, classify.Field{Bits: []int{1, 7, 8, 9, 16, 33, 64, 65, 128, 200}[rng.IntN(10)], Range: rng.IntN(3) == 0})
		}
		fields[0] = classify.Field{Bits: []int{65, 128, 200, 16}[seed%4], Range: seed%8 < 4}
		type rule struct {
			classify.Entry
			low, high []*mathbig.Int // of the fields: of a range its ends, else what to be and in which bits
		}
		var pool [][]uint64 // values that entries and packets share
		number := func(bits int) []uint64 {
			if len(pool) > 0 && rng.IntN(2) == 0 {
				if v := pool[rng.IntN(len(pool))]; big(v).BitLen() <= bits {
					return append(slices.Clone(v), make([]uint64, 4)...)[:(bits+63)/64]
				}
			}
			v := wide(rng, bits)
			if pool = append(pool, v); len(pool) > 40 {
				pool = pool[1:]
			}
			return slices.Clone(v)
		}
		whole := rng.IntN(4) // how often a field is wanted as a whole
		newRule := func(e uint32) rule {
			r := rule{Entry: classify.Entry{Number: e, Order: int32(rng.IntN(50) - 25)}}
			for _, f := range fields {
				k, m := number(f.Bits), number(f.Bits)
				switch {
				case f.Range && rng.IntN(4) < whole:
					m = slices.Clone(k)
				case f.Range && big(k).Cmp(big(m)) > 0:
					k, m = m, k
				case f.Range:
				case rng.IntN(4) < whole:
					m = wide(rng, f.Bits)
					for i := range m {
						m[i] = ^uint64(0)
						if end := f.Bits - 64*i; end < 64 {
							m[i] = 1<<end - 1
						}
					}
				default:
					for i := range k {
						k[i] &= m[i]
					}
				}
				r.Key, r.Mask = append(r.Key, k...), append(r.Mask, m...)
				r.low, r.high = append(r.low, big(k)), append(r.high, big(m))
			}
			return r
		}
		live := map[uint32]rule{}
		var there []uint32
		s := classify.New(fields)
		check := func() {
			t.Helper()
			if err := s.Check(); err != nil {
				t.Fatalf("seed %d, %v: %v", seed, fields, err)
			}
			for range 20 {
				var key []uint64
				var of []*mathbig.Int
				for _, f := range fields {
					k := number(f.Bits)
					key, of = append(key, k...), append(of, big(k))
				}
				want := classify.None
			next:
				for e, r := range live {
					for i, f := range fields {
						if f.Range && (of[i].Cmp(r.low[i]) < 0 || of[i].Cmp(r.high[i]) > 0) || !f.Range && new(mathbig.Int).And(of[i], r.high[i]).Cmp(r.low[i]) != 0 {
							continue next
						}
					}
					if want == classify.None || r.Order < live[want].Order || r.Order == live[want].Order && e < want {
						want = e
					}
				}
				if got := s.Find(key); got != want {
					t.Fatalf("seed %d, %v, %d entries: %x finds %d, want %d", seed, fields, len(live), key, got, want)
				}
			}
			if len(there) > 0 {
				e := there[rng.IntN(len(there))]
				got := s.Exact(live[e].Key, live[e].Mask, live[e].Order)
				if r, ok := live[got]; !ok || r.Order != live[e].Order || !slices.Equal(r.Key, live[e].Key) || !slices.Equal(r.Mask, live[e].Mask) {
					t.Fatalf("seed %d, %v: entry %d is found as %d", seed, fields, e, got)
				}
				if got := s.Exact(live[e].Key, live[e].Mask, 99); got != classify.None {
					t.Fatalf("seed %d: entry %d is found with another order", seed, got)
				}
			}
		}
		moved := &classify.Leaves{}
		for i, phase := range []struct{ ops, insert int }{{200, 9}, {2000, 8}, {1500, 1}, {900, 8}, {1500, 5}, {4000, 0}} {
			if i == 1 && seed%3 == 0 { // all at once
				s = classify.New(fields)
				var list []classify.Entry
				for _, r := range live {
					list = append(list, r.Entry)
				}
				s.Fill(list)
				moved = &classify.Leaves{}
			}
			for range phase.ops {
				if rng.IntN(10) < phase.insert {
					e := uint32(rng.IntN(8000))
					if _, ok := live[e]; ok {
						continue
					}
					r := newRule(e)
					s.Insert(e, slices.Clone(r.Key), slices.Clone(r.Mask), r.Order)
					live[e] = r
					there = append(there, e)
				} else if len(there) > 0 {
					at := rng.IntN(len(there))
					e := there[at]
					there[at] = there[len(there)-1]
					there = there[:len(there)-1]
					s.Remove(e)
					delete(live, e)
				}
				if n := s.Moved(moved); n > classify.Moves {
					t.Fatalf("seed %d, %d entries: a change moves %d", seed, len(live), n)
				}
				if rng.IntN(60) == 0 {
					check()
				}
			}
			check()
		}
		if len(live) != 0 || s.Left() || s.Words() > 0 {
			t.Errorf("seed %d: %d entries, %d words are left", seed, len(live), s.Words())
		}
	}
}

// TestFewOfMany: what is left of many entries takes no more memory than it would alone, ten times, and searches read while others do.
func TestFewOfMany(t *testing.T) {
	fields := classifytest.Fields()
	for _, seed := range []string{"random masks", "crowded", "borders"} {
		rng := rand.New(rand.NewPCG(4, 2))
		all := classifytest.Rules(rng, seed, 20_000)
		s, few := classify.New(fields), classify.New(fields)
		for _, e := range all {
			s.Insert(e.Number, e.Key, e.Mask, e.Order)
		}
		most := s.Words()
		live := map[uint32]bool{}
		for i, at := range rng.Perm(len(all)) {
			if e := &all[at]; i < 500 {
				live[e.Number] = true
				few.Insert(e.Number, e.Key, e.Mask, e.Order)
			} else {
				s.Remove(e.Number)
			}
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		if got, alone := s.Words(), few.Words(); got > 10*max(alone, 20_000) {
			t.Errorf("%s: %d words, at first %d, alone %d", seed, got, most, alone)
		}
		for e := range live {
			if len(live) > 40 {
				s.Remove(e)
				delete(live, e)
			}
		}
		if got := s.Words(); got > 3*13*300 { // three words for each of the values of 13 bytes
			t.Errorf("%s: 40 entries have %d words", seed, got)
		}
		var wg sync.WaitGroup
		for n := range 4 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(n), 2))
				for range 300 {
					key := classifytest.Probe(rng, fields, all)
					if got, want := s.Find(key), classifytest.Walk(fields, all, live, key); got != want {
						t.Errorf("%s: %x finds %d, want %d", seed, key, got, want)
					}
				}
			})
		}
		wg.Wait()
	}
}

// BenchmarkFind looks keys up in sets of rules.
func BenchmarkFind(b *testing.B) {
	fields := classifytest.Fields()
	for _, seed := range classifytest.Seeds() {
		for _, n := range []int{10, 100, 1000, 10_000, 100_000} {
			for _, filled := range []bool{true, false} {
				b.Run(fmt.Sprintf("%s/%d/filled=%v", seed, n, filled), func(b *testing.B) {
					rng := rand.New(rand.NewPCG(1, 7))
					all := classifytest.Rules(rng, seed, n)
					s := classify.New(fields)
					began := time.Now()
					if filled {
						s.Fill(all)
					} else {
						for _, e := range all {
							s.Insert(e.Number, e.Key, e.Mask, e.Order)
						}
					}
					took := time.Since(began)
					keys := make([][]uint64, 4096)
					for i := range keys {
						keys[i] = classifytest.Probe(rng, fields, all)
					}
					i := 0
					for b.Loop() {
						s.Find(keys[i&4095])
						i++
					}
					b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/insert")
				})
			}
		}
	}
}
