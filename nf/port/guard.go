package port

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Guarder is a Port whose kernel filter knows single words of servers' memory, atomics
// to which must not cross untouched. The guard outlives the process, as the filter
// does, and is one for all queues of an interface, and for both interfaces of a pair.
// It holds while the filter says Guarded, for GuardFor after a worker was there last.
type Guarder interface {
	// Guard is the guard, in memory that the kernel's program looks into. It may be
	// used after Close: then nobody looks.
	Guard() (*Guard, error)
}

// GuardFor is how long a guard holds without a worker: a worker that is gone for good holds
// nobody up. An app that records guarded words takes no older record over.
const GuardFor = time.Minute

// A guard has sets of places, and a word is guarded in any place of one set. Before the
// sets is a line of the processor's cache for the port's own use.
const (
	guardSets = 1 << 11
	guardWays = 8
	// GuardLen is its length in words of 8 bytes.
	GuardLen = (1 + guardSets) * guardWays
)

// Guard is the words of servers' memory atomics to which must not cross untouched, and
// for each the one that may: the atomic that links the entry which is to be linked
// there. A place is 0 while it is free, else what Word.Place says. It is stored in one
// piece, so that the kernel's program, which may look at any time, finds it as it was or
// as it is.
//
// One app of a graph guards words (graph.New refuses several), a worker of it at a time.
// So taken, which is much smaller, tells by a bit for each place whether it is taken, and nobody waits for that memory to
// guard a word.
type Guard struct {
	mem   []uint64
	taken *[guardSets]uint8
}

// NewGuard is a guard in memory of GuardLen words that outlives the process; nil: in
// memory that does not.
func NewGuard(mem []uint64) *Guard {
	if mem == nil {
		mem = make([]uint64, GuardLen)
	}
	g := &Guard{mem[:GuardLen:GuardLen], new([guardSets]uint8)}
	for i := range g.taken {
		g.count(i)
	}
	return g
}

// count finds which places of a set are taken.
func (g *Guard) count(set int) {
	t := uint8(0)
	for i, v := range g.set(set) {
		if v != 0 {
			t |= 1 << i
		}
	}
	g.taken[set] = t
}

// Factors of the hashes. The program computes the same.
const (
	GuardMul1 uint64 = 0x9E3779B97F4A7C15
	GuardMul2 uint64 = 0xC2B2AE3D27D4EB4F
	GuardMul3 uint64 = 0x165667B19E3779F9
	GuardMul4 uint64 = 0xD6E8FEB86659FD93
)

// Word is the hash of a word of memory. The upper 11 bits say which set it is in, bits 21
// to 52 which word it is of those of the set.
type Word uint64

// Words is what WordAt begins with, for the words of a server. Its address is taken as a
// frame has it, IPv4 mapped into IPv6.
func Words(server netip.Addr) uint64 {
	a := server.As16()
	return binary.NativeEndian.Uint64(a[:])*GuardMul1 + binary.NativeEndian.Uint64(a[8:])*GuardMul2
}

// WordAt is the word at a virtual address of a server with these Words.
func WordAt(words, va uint64) Word {
	h := (words ^ va) * GuardMul3
	h ^= h >> 32
	return Word(h * GuardMul4)
}

// GuardLink is how far the swap operand of an atomic is shifted down before it is
// hashed. Above are the handle and the version of the entry that is linked.
const GuardLink = 19

// Place is what a place has that guards w from all atomics but those whose swap
// operand links the same entry as swap.
func (w Word) Place(swap uint64) uint64 {
	return w.tag()<<32 | swap>>GuardLink*GuardMul3>>32
}

func (w Word) set() int { return int(w >> 53) }

func (w Word) tag() uint64 { return uint64(w)<<11>>32 | 1 }

// Room reports whether there is a place for w.
func (g *Guard) Room(w Word) bool { return g.taken[w.set()] != 1<<guardWays-1 }

// Put has a place that is free have v, of w's Place. It does nothing when there is none.
func (g *Guard) Put(w Word, v uint64) {
	t := &g.taken[w.set()]
	if i := bits.TrailingZeros8(^*t); i < guardWays {
		*t |= 1 << i
		g.at(w)[i] = v
	}
}

// Take has a place of w's that has v be free.
func (g *Guard) Take(w Word, v uint64) {
	set := g.at(w)
	for i := range set {
		if set[i] == v {
			set[i] = 0
			g.taken[w.set()] &^= 1 << i
			return
		}
	}
}

// at are the places that w may be in.
func (g *Guard) at(w Word) *[guardWays]uint64 { return g.set(w.set()) }

// set are the places of a set.
func (g *Guard) set(i int) *[guardWays]uint64 { return (*[guardWays]uint64)(g.mem[(1+i)*guardWays:]) }

// Holds reports whether an atomic to w with this swap operand must not go there.
func (g *Guard) Holds(w Word, swap uint64) bool {
	mine, holds := w.Place(swap), false
	for _, v := range g.at(w) {
		if v == mine {
			return false
		}
		holds = holds || v>>32 == w.tag()
	}
	return holds
}

// Stops reports whether a frame to a server must not go there: an atomic of a reliable
// connection, RC or XRC, that Holds. bth is the frame from its base transport header on.
// The program in the kernel decides the same.
func (g *Guard) Stops(server netip.Addr, bth []byte) bool {
	if len(bth) < 12 {
		return false
	}
	switch bth[0] & 0x1F {
	case 0x13, 0x14, 0x18, 0x19: // those of IBTA, and Mellanox' masked ones
	default:
		return false
	}
	eth := bth[12:]
	switch {
	case bth[0]>>5 == 0:
	case bth[0]>>5 == 5 && len(eth) > 4: // an extended header is between
		eth = eth[4:]
	default:
		return false
	}
	if len(eth) < 20 {
		return false
	}
	return g.Holds(WordAt(Words(server), binary.BigEndian.Uint64(eth)), binary.BigEndian.Uint64(eth[12:]))
}

// Empty reports whether no word is guarded. It may be asked by any goroutine.
func (g *Guard) Empty() bool {
	for i := range g.mem[guardWays:] {
		if atomic.LoadUint64(&g.mem[guardWays+i]) != 0 {
			return false
		}
	}
	return true
}

// Replace guards the words of o and no others. Words of both stay guarded all the time.
func (g *Guard) Replace(o *Guard) {
	for n := range guardSets {
		have, want := g.set(n), o.set(n)
		for i, v := range have {
			if v != 0 && count(have[:i+1], v) > count(want[:], v) {
				have[i] = 0
			}
		}
		for _, v := range want {
			if v != 0 && count(have[:], v) < count(want[:], v) {
				have[slices.Index(have[:], 0)] = v
			}
		}
		g.count(n)
	}
}

// Add guards what o does, too, as far as there are places: of guards of two pairs, whose
// interfaces are joined anew.
func (g *Guard) Add(o *Guard) {
	for n := range guardSets {
		have := g.set(n)
		for _, v := range o.set(n) {
			if i := slices.Index(have[:], 0); v != 0 && i >= 0 && !slices.Contains(have[:], v) {
				have[i] = v
			}
		}
		g.count(n)
	}
	*g.Seen() = max(*g.Seen(), *o.Seen())
}

func count(set []uint64, v uint64) (n int) {
	for _, x := range set {
		if x == v {
			n++
		}
	}
	return n
}

// Seen is where the port stores when a worker was there last: CLOCK_MONOTONIC, ns.
func (g *Guard) Seen() *uint64 { return &g.mem[0] }
