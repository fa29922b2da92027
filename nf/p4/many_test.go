package p4

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// fiveTuple are the keys of rules about flows: addresses, ports, protocol.
var fiveTuple = []KeyInfo{{Match: Ternary, Bits: 32}, {Match: Ternary, Bits: 32}, {Match: Range, Bits: 16}, {Match: Range, Bits: 16}, {Match: Ternary, Bits: 8}}

// rules makes n rules as such sets are: those of a firewall (many wildcards), of a router's filter (prefixes of networks that
// share their beginning, a known port), and of an intrusion detector (pairs of hosts). They are alike in how prefix lengths, ranges and
// wildcards are spread to what ClassBench's seeds acl, fw and ipc have, and are not made from them.
func rules(rng *rand.Rand, n int, sort string) []Entry {
	ports := [][2]uint16{{0, 65535}, {1024, 65535}, {0, 1023}, {80, 80}, {443, 443}, {53, 53}, {5060, 5061}, {6000, 6063}, {137, 139}, {8000, 8999}}
	nets := make([]uint32, 40)
	for i := range nets {
		nets[i] = rng.Uint32()
	}
	prefix := func(lengths ...int) Match {
		n := lengths[rng.IntN(len(lengths))]
		a := nets[rng.IntN(len(nets))] ^ rng.Uint32()>>uint(8+rng.IntN(16))
		mask := uint32(0xFFFFFFFF) << uint(32-n)
		if n == 0 {
			mask = 0
		}
		return Match{Value: binary.BigEndian.AppendUint32(nil, a&mask), Mask: binary.BigEndian.AppendUint32(nil, mask)}
	}
	span := func(any int) Match { // any of ten have no condition
		p := ports[0]
		if rng.IntN(10) >= any {
			p = ports[rng.IntN(len(ports))]
			if rng.IntN(3) == 0 {
				p[0] = uint16(rng.Uint32())
				p[1] = p[0] + uint16(rng.IntN(2)*rng.IntN(int(65536-uint32(p[0]))))
			}
		}
		return Match{Value: binary.BigEndian.AppendUint16(nil, p[0]), Mask: binary.BigEndian.AppendUint16(nil, p[1])}
	}
	proto := func() Match { return Match{Value: []byte{[]byte{6, 17, 1}[rng.IntN(3)]}, Mask: []byte{255}} }
	all := make([]Entry, n)
	for i := range all {
		var key []Match
		switch sort {
		case "acl":
			key = []Match{prefix(0, 16, 24, 27, 30, 32), prefix(22, 24, 28, 32, 32), span(10), span(2), proto()}
		case "fw":
			key = []Match{prefix(0, 0, 8, 20, 24, 32), prefix(0, 0, 12, 24, 32), span(5), span(4), proto()}
		case "ipc":
			key = []Match{prefix(24, 28, 32, 32), prefix(24, 32, 32), span(7), span(5), proto()}
		case "random masks":
			any := func() Match {
				m := rng.Uint32()
				return Match{Value: binary.BigEndian.AppendUint32(nil, rng.Uint32()&m), Mask: binary.BigEndian.AppendUint32(nil, m)}
			}
			key = []Match{any(), any(), span(10), span(10), proto()}
		case "ranges":
			key = []Match{prefix(0), prefix(0), span(0), span(0), {Value: []byte{0}, Mask: []byte{0}}}
			key[2].Value[0], key[3].Value[0] = byte(rng.Uint32()), byte(rng.Uint32())
			for _, m := range key[2:4] {
				low := binary.BigEndian.Uint16(m.Value)
				binary.BigEndian.PutUint16(m.Mask, low+uint16(rng.IntN(min(2000, int(65536-uint32(low))))))
			}
		case "one mask":
			key = []Match{prefix(24), prefix(24), span(10), span(10), proto()}
		}
		all[i] = Entry{Key: key, Priority: int32(i/4 + 1), Action: Action{"send", [][]byte{binary.BigEndian.AppendUint32(nil, uint32(i))}}}
	}
	return all
}

// probes are keys of packets: most of them hit a rule.
func probes(rng *rand.Rand, t *table, n int) [][]uint64 {
	all := make([][]uint64, n)
	for i := range all {
		e := uint32(rng.IntN(len(t.rows)))
		key := slices.Clone(t.key(e))
		for j, d := range t.def.keys {
			if x := t.mask(e)[j]; d.kind == Range {
				key[j] += rng.Uint64N(x - key[j] + 1)
			} else {
				key[j] |= rng.Uint64N(1<<d.bits) &^ x
			}
		}
		if rng.IntN(8) == 0 {
			key[rng.IntN(3)] ^= 1 << rng.IntN(8)
		}
		all[i] = key
	}
	return all
}

// TestManyEntries compares tables of thousands of entries, which come and go, with a list.
func TestManyEntries(t *testing.T) {
	for _, sort := range []string{"acl", "fw", "ipc", "random masks", "ranges", "one mask"} {
		t.Run(sort, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 7))
			sw := matchProgram("range", fiveTuple).load(t, Config{})
			tbl := sw.tables[0]
			live := map[uint32]bool{}
			homes := [3]int{}
			for i, e := range rules(rng, 6000, sort) {
				if h, err := sw.Insert("t", e); err == nil {
					live[uint32(h)] = true
				}
				if i%3 == 2 && i > 3000 { // and one goes
					h := uint32(rng.IntN(len(tbl.rows)))
					if err := sw.Delete("t", Handle(h)); (err == nil) != live[h] {
						t.Fatal(err)
					}
					delete(live, h)
				}
				if i%300 != 299 && i != 10 {
					continue
				}
				for _, key := range probes(rng, tbl, 60) {
					want := none
					for e := range live {
						if tbl.hits(e, key) && (want == none || tbl.wins(e, want)) {
							want = e
						}
					}
					if got := tbl.m.find(tbl, key); got != want {
						t.Fatalf("after %d: %x finds %d, want %d", i, key, got, want)
					}
				}
			}
			keys := probes(rng, tbl, 100)
			if n := testing.AllocsPerRun(10, func() {
				for _, key := range keys {
					tbl.m.find(tbl, key)
				}
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
			for e := range live {
				homes[tbl.rows[e].home]++
				p := parsedKey{key: tbl.key(e), mask: tbl.mask(e), order: tbl.rank(e)}
				if got := tbl.same(p); got != e {
					t.Fatalf("entry %d is found as %d", e, got)
				}
			}
			t.Logf("%d entries: %d in tuples, %d in vectors", len(live), homes[inTuple], homes[inVectors])
			if (homes[inTuple] > 0) != (sort == "one mask" || sort == "ranges") && sort != "fw" && sort != "ipc" {
				t.Errorf("in few, tuples and vectors: %v", homes)
			}
			for e := range live {
				if err := sw.Delete("t", Handle(e)); err != nil {
					t.Fatal(err)
				}
			}
			m := tbl.m.(*tupleMatcher)
			for _, s := range m.segs {
				if s.used != (lane{}) || s.n != 0 || len(s.order) != 0 {
					t.Errorf("something is left: %d, %v", s.n, s.order)
				}
			}
			if len(m.masks) != 0 || len(m.tuples) != 0 || m.vectors.n != 0 {
				t.Errorf("left: %d masks, %d tuples", len(m.masks), len(m.tuples))
			}
		})
	}
}

// BenchmarkManyEntries looks keys up in tables of rules.
func BenchmarkManyEntries(b *testing.B) {
	for _, sort := range []string{"acl", "fw", "ipc", "random masks", "ranges", "one mask"} {
		for _, n := range []int{10, 100, 1000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", sort, n), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, 7))
				sw := matchProgram("range", fiveTuple).load(b, Config{})
				tbl := sw.tables[0]
				began := time.Now()
				for _, e := range rules(rng, n, sort) {
					_, _ = sw.Insert("t", e)
				}
				took := time.Since(began)
				keys := probes(rng, tbl, 4096)
				i, hit := 0, 0
				for b.Loop() {
					if tbl.m.find(tbl, keys[i&4095]) != none {
						hit++
					}
					i++
				}
				b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/insert")
			})
		}
	}
}
