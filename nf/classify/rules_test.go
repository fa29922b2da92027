package classify

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// fiveTuple are the fields of rules about flows: addresses, ports, protocol.
var fiveTuple = []Field{{Bits: 32}, {Bits: 32}, {Bits: 16, Range: true}, {Bits: 16, Range: true}, {Bits: 8}}

// rules makes n rules as such sets are: those of a firewall (many wildcards), of a router's filter (prefixes of networks that
// share their beginning, a known port), and of an intrusion detector (pairs of hosts). They are alike in how prefix lengths, ranges and
// wildcards are spread to what ClassBench's seeds acl, fw and ipc have, and are not made from them. The others are hard for some ways to search.
func rules(rng *rand.Rand, n int, sort string) []Entry {
	ports := [][2]uint64{{0, 65535}, {1024, 65535}, {0, 1023}, {80, 80}, {443, 443}, {53, 53}, {5060, 5061}, {6000, 6063}, {137, 139}, {8000, 8999}}
	nets := make([]uint32, 40)
	for i := range nets {
		nets[i] = rng.Uint32()
	}
	type cond [2]uint64
	prefix := func(lengths ...int) cond {
		n := lengths[rng.IntN(len(lengths))]
		a := nets[rng.IntN(len(nets))] ^ rng.Uint32()>>uint(8+rng.IntN(16))
		mask := uint64(0xFFFFFFFF) << uint(32-n) & 0xFFFFFFFF
		return cond{uint64(a) & mask, mask}
	}
	span := func(any int) cond { // any of ten have no condition
		p := ports[0]
		if rng.IntN(10) >= any {
			p = ports[rng.IntN(len(ports))]
			if rng.IntN(3) == 0 {
				p[0] = rng.Uint64N(65536)
				p[1] = p[0] + rng.Uint64N(2)*rng.Uint64N(65536-p[0])
			}
		}
		return cond(p)
	}
	proto := func() cond { return cond{[]uint64{6, 17, 1}[rng.IntN(3)], 255} }
	bits := func() cond { m := rng.Uint64N(1 << 32); return cond{rng.Uint64N(1<<32) & m, m} }
	short := func() cond { at := rng.Uint64N(60000); return cond{at, at + rng.Uint64N(2000)} }
	all := make([]Entry, n)
	for i := range all {
		var key []cond
		switch sort {
		case "acl":
			key = []cond{prefix(0, 16, 24, 27, 30, 32), prefix(22, 24, 28, 32, 32), span(10), span(2), proto()}
		case "fw":
			key = []cond{prefix(0, 0, 8, 20, 24, 32), prefix(0, 0, 12, 24, 32), span(5), span(4), proto()}
		case "ipc":
			key = []cond{prefix(24, 28, 32, 32), prefix(24, 32, 32), span(7), span(5), proto()}
		case "random masks":
			key = []cond{bits(), bits(), span(10), span(10), proto()}
		case "ranges":
			key = []cond{{}, {}, short(), short(), {}}
		case "one mask":
			key = []cond{prefix(24), prefix(24), span(10), span(10), proto()}
		}
		e := Entry{Number: uint32(i), Order: int32(i / 4)}
		for _, c := range key {
			e.Key, e.Mask = append(e.Key, c[0]), append(e.Mask, c[1])
		}
		all[i] = e
	}
	return all
}

var sorts = []string{"acl", "fw", "ipc", "random masks", "ranges", "one mask"}

// probe is a key of a packet that most likely hits one of the entries.
func probe(rng *rand.Rand, fields []Field, list []Entry) []uint64 {
	e := list[rng.IntN(len(list))]
	var key []uint64
	for j, f := range fields {
		k, m := e.Key[j], e.Mask[j]
		if f.Range {
			k += rng.Uint64N(m - k + 1)
		} else {
			k |= rng.Uint64N(1<<f.Bits) &^ m
		}
		key = append(key, k)
	}
	if rng.IntN(8) == 0 {
		key[rng.IntN(len(key))] ^= 1 << rng.IntN(8)
	}
	return key
}

// walk is what Find must find: the list is searched from its first to its last.
func walk(fields []Field, list []Entry, live map[uint32]bool, key []uint64) uint32 {
	best := None
next:
	for i := range list {
		e := &list[i]
		if !live[e.Number] || best != None && (e.Order > list[best].Order || e.Order == list[best].Order && e.Number > best) {
			continue
		}
		for j, f := range fields {
			if f.Range && (key[j] < e.Key[j] || key[j] > e.Mask[j]) || !f.Range && (key[j]^e.Key[j])&e.Mask[j] != 0 {
				continue next
			}
		}
		best = e.Number
	}
	return best
}

// TestManyRules compares sets of thousands of entries, which come and go, with a list.
func TestManyRules(t *testing.T) {
	for _, sort := range sorts {
		for _, filled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, filled %v", sort, filled), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, 7))
				s := New(fiveTuple)
				all := rules(rng, 6000, sort)
				live := map[uint32]bool{}
				check := func() {
					t.Helper()
					if s.Len() != len(live) {
						t.Fatalf("%d entries, want %d", s.Len(), len(live))
					}
					for range 60 {
						key := probe(rng, fiveTuple, all)
						if got, want := s.Find(key), walk(fiveTuple, all, live, key); got != want {
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
				for i, e := range all {
					if !filled {
						s.Insert(e.Number, e.Key, e.Mask, e.Order)
						live[e.Number] = true
					}
					if i%3 == 2 && i > 3000 { // and one goes
						gone := uint32(rng.IntN(i))
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
					if got := s.Exact(all[e].Key, all[e].Mask, all[e].Order); got == None || all[got].Order != all[e].Order {
						t.Fatalf("entry %d is found as %d", e, got)
					}
				}
				key := probe(rng, fiveTuple, all)
				if n := testing.AllocsPerRun(10, func() { s.Find(key) }); n != 0 {
					t.Errorf("%v allocations", n)
				}
				for e := range live {
					s.Remove(e)
					delete(live, e)
					if len(live)%500 == 7 {
						check()
					}
				}
				if x := &s.root; x.n != 0 || x.chunk != noChunk || len(x.list) != 0 || x.vec != nil && x.vec.n != 0 {
					t.Errorf("left: %+v", x)
				}
			})
		}
	}
}

// BenchmarkFind looks keys up in sets of rules, and BenchmarkChange replaces one.
func BenchmarkFind(b *testing.B) {
	for _, sort := range sorts {
		for _, n := range []int{10, 100, 1000, 10_000, 100_000} {
			for _, filled := range []bool{true, false} {
				b.Run(fmt.Sprintf("%s/%d/filled=%v", sort, n, filled), func(b *testing.B) {
					rng := rand.New(rand.NewPCG(1, 7))
					all := rules(rng, n, sort)
					s := New(fiveTuple)
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
						keys[i] = probe(rng, fiveTuple, all)
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
