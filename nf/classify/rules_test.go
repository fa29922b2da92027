package classify_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/classify"
	"github.com/quillon/quillon/nf/classify/classifytest"
)

// TestManyRules compares sets of thousands of entries, which come and go, with a list.
func TestManyRules(t *testing.T) {
	fields := classifytest.Fields()
	for _, seed := range classifytest.Seeds() {
		for _, filled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, filled %v", seed, filled), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, 7))
				s := classify.New(fields)
				all := classifytest.Rules(rng, seed, 6000)
				live := map[uint32]bool{}
				check := func() {
					t.Helper()
					if s.Len() != len(live) {
						t.Fatalf("%d entries, want %d", s.Len(), len(live))
					}
					for range 60 {
						key := classifytest.Probe(rng, fields, all)
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
					if i%3 == 2 && i > 3000 { // and one goes
						gone := uint32(rng.IntN(len(all)))
						if live[gone] {
							s.Remove(gone)
							delete(live, gone)
						}
					}
					if i%300 == 299 || i == 10 {
						check()
					}
				}
				for e := range live {
					if got := s.Exact(all[e].Key, all[e].Mask, all[e].Order); got != e {
						t.Fatalf("entry %d is found as %d", e, got)
					}
				}
				key := classifytest.Probe(rng, fields, all)
				if n := testing.AllocsPerRun(10, func() { s.Find(key) }); n != 0 {
					t.Errorf("%v allocations", n)
				}
				nodes, inVectors := s.Parts()
				t.Logf("%d entries: %d nodes, %d in vectors", len(live), nodes, inVectors)
				if (inVectors > 0) != (seed == "random masks" || seed == "ranges" || seed == "fw") || nodes > len(live)*6/5 { // most leaves have a few entries
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
