// Package classifytest makes sets of rules as networks have them, and keys of packets for them, for tests and benchmarks of classify.
package classifytest

import (
	"math/bits"
	"math/rand/v2"

	"github.com/quillon/quillon/nf/classify"
)

// Fields are those of rules about flows: source and destination address, source and destination port, protocol.
func Fields() []classify.Field {
	return []classify.Field{{Bits: 32}, {Bits: 32}, {Bits: 16, Range: true}, {Bits: 16, Range: true}, {Bits: 8}}
}

// Seeds are the sorts of rules. The first three are as ClassBench's seeds of these names are (Taylor and Turner, ClassBench: A Packet
// Classification Benchmark, INFOCOM 2005), in how prefix lengths, port ranges and wildcards are spread, and not made from its files: the filter of a
// router, with prefixes of networks that share their beginning and a known port; a firewall, with many wildcards; and chains of a Linux host, with
// pairs of hosts. The others are hard for some ways to search.
func Seeds() []string { return []string{"acl", "fw", "ipc", "random masks", "ranges", "one mask"} }

// Worst are sorts of rules made to be hard for a set: any bytes wanted and others not, so that a search goes down both branches everywhere; ranges
// that no packet of Probe's that is at their border is in; prefixes in prefixes; many groups of entries that no byte tells apart; masks that one
// key hits all; half of the entries told apart by one byte, half of the others by the next.
func Worst() []string {
	return []string{"subsets", "borders", "nested", "crowded", "one key", "tall"}
}

// Rules makes n rules of a seed, or of a sort of Worst's. Their numbers and orders are their places.
func Rules(rng *rand.Rand, seed string, n int) []classify.Entry {
	g := &generator{Rand: rng, nets: make([]uint32, 40)}
	for i := range g.nets {
		g.nets[i] = rng.Uint32()
	}
	all := make([]classify.Entry, n)
	for i := range all {
		e := classify.Entry{Number: uint32(i), Order: int32(i)}
		for _, c := range g.rule(seed) {
			e.Key, e.Mask = append(e.Key, c[0]), append(e.Mask, c[1])
		}
		all[i] = e
	}
	return all
}

type generator struct {
	*rand.Rand
	nets []uint32 // networks that addresses are of
}

// cond is a field's key and mask.
type cond [2]uint64

func (g *generator) rule(seed string) []cond {
	switch seed {
	case "acl":
		return []cond{g.prefix(0, 16, 24, 27, 30, 32), g.prefix(22, 24, 28, 32, 32), g.ports(10), g.ports(2), g.protocol()}
	case "fw":
		return []cond{g.prefix(0, 0, 8, 20, 24, 32), g.prefix(0, 0, 12, 24, 32), g.ports(5), g.ports(4), g.protocol()}
	case "ipc":
		return []cond{g.prefix(24, 28, 32, 32), g.prefix(24, 32, 32), g.ports(7), g.ports(5), g.protocol()}
	case "random masks":
		return []cond{g.bits(), g.bits(), g.ports(10), g.ports(10), g.protocol()}
	case "ranges":
		return []cond{{}, {}, g.short(), g.short(), {}}
	}
	if seed == "one mask" {
		return []cond{g.prefix(24), g.prefix(24), g.ports(10), g.ports(10), g.protocol()}
	}
	return g.worst(seed)
}

func (g *generator) worst(seed string) []cond {
	switch seed {
	case "subsets":
		bytes := func() (c cond) {
			for at := 0; at < 32; at += 8 {
				if v := g.Uint64N(4); v > 0 {
					c[0] |= v / 2 << at
					c[1] |= 255 << at
				}
			}
			return c
		}
		port := func() cond {
			if v := g.Uint64N(3); v > 0 {
				return cond{v, v}
			}
			return usual[0]
		}
		return []cond{bytes(), bytes(), port(), port(), {6, 254 + g.Uint64N(2)}}
	case "borders":
		low := 0x1210 + g.Uint64N(0x60)
		return []cond{{}, {}, {low, 0x8000 + g.Uint64N(0x4000)}, usual[0], {}}
	case "nested":
		n := g.IntN(33)
		mask := uint64(0xFFFFFFFF) << uint(32-n) & 0xFFFFFFFF
		m := g.IntN(33)
		other := uint64(0xFFFFFFFF) << uint(32-m) & 0xFFFFFFFF
		low := g.Uint64N(0x8000)
		return []cond{{0x0A0B0C0D & mask, mask}, {0xC0A80102 & other, other}, {low, 0xFFFF - low}, usual[0], {}}
	case "crowded":
		x, y := g.bits(), g.bits()
		group := g.Uint64N(1 << 10)
		return []cond{{group<<16 | x[0]&0xFFFF, 0xFFFF0000 | x[1]&0xFFFF}, y, g.short(), g.short(), {}}
	}
	if seed == "tall" {
		var two [2]cond
		at := 8 * min(bits.TrailingZeros64(g.Uint64()), 7)
		two[at/32] = cond{g.Uint64N(256) << (at % 32), 255 << (at % 32)}
		return []cond{two[0], two[1], g.short(), usual[0], {}}
	}
	m := g.Uint64N(1 << 32)
	return []cond{{0, m}, {0, g.Uint64N(1 << 32)}, usual[0], usual[0], {}} // one key
}

// prefix is one of the lengths, of one of the networks.
func (g *generator) prefix(lengths ...int) cond {
	n := lengths[g.IntN(len(lengths))]
	a := g.nets[g.IntN(len(g.nets))] ^ g.Uint32()>>uint(8+g.IntN(16))
	mask := uint64(0xFFFFFFFF) << uint(32-n) & 0xFFFFFFFF
	return cond{uint64(a) & mask, mask}
}

// usual are the ranges of ports that most rules have.
var usual = [...]cond{{0, 65535}, {1024, 65535}, {0, 1023}, {80, 80}, {443, 443}, {53, 53}, {5060, 5061}, {6000, 6063}, {137, 139}, {8000, 8999}}

// ports are a range; any of ten have all.
func (g *generator) ports(any int) cond {
	if g.IntN(10) < any {
		return usual[0]
	}
	if g.IntN(3) > 0 {
		return usual[g.IntN(len(usual))]
	}
	low := g.Uint64N(65536)
	return cond{low, low + g.Uint64N(2)*g.Uint64N(65536-low)}
}

func (g *generator) protocol() cond { return cond{[]uint64{6, 17, 1}[g.IntN(3)], 255} }

func (g *generator) bits() cond {
	m := g.Uint64N(1 << 32)
	return cond{g.Uint64N(1<<32) & m, m}
}

func (g *generator) short() cond {
	low := g.Uint64N(60000)
	return cond{low, low + g.Uint64N(2000)}
}

// Probe is the key of a packet that hits one of the rules, or, one in eight, is a little beside it.
func Probe(rng *rand.Rand, fields []classify.Field, rules []classify.Entry) []uint64 {
	e := &rules[rng.IntN(len(rules))]
	key := make([]uint64, len(fields))
	for i, f := range fields {
		k, m := e.Key[i], e.Mask[i]
		if f.Range {
			k += rng.Uint64N(m - k + 1)
		} else {
			k |= rng.Uint64N(1<<f.Bits) &^ m
		}
		key[i] = k
	}
	if rng.IntN(8) == 0 {
		key[rng.IntN(len(key))] ^= 1 << rng.IntN(8)
	}
	return key
}

// Walk is what a set of the rules must find, by a walk of them from the first to the last, which are in their order; live says which of them are in
// it, nil: all.
func Walk(fields []classify.Field, rules []classify.Entry, live map[uint32]bool, key []uint64) uint32 {
next:
	for i := range rules {
		e := &rules[i]
		if live != nil && !live[e.Number] {
			continue
		}
		for j, f := range fields {
			if f.Range && (key[j] < e.Key[j] || key[j] > e.Mask[j]) || !f.Range && (key[j]^e.Key[j])&e.Mask[j] != 0 {
				continue next
			}
		}
		return e.Number
	}
	return classify.None
}
