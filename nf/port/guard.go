package port

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Guarder is a Port whose kernel filter has a Guard: a set of words of servers' memory, atomics
// to which must not cross untouched. The guard outlives the process, as the filter does. All
// queues of an interface, and both interfaces of a pair, share one guard. The guard has an
// effect while the filter is Guarded, until GuardFor after the last sign of a worker.
type Guarder interface {
	// Guard returns the guard, in memory that the kernel's program reads. The caller may use
	// the guard after Close, but without any effect on frames.
	Guard() (*Guard, error)
}

// GuardFor is the time for which a guard has an effect without a worker. It is limited so that
// a worker that is gone for good does not stop clients for ever. An app that records guarded
// words does not take over a record that is older than this.
const GuardFor = time.Minute

// A guard consists of sets of places. The hash of a word selects its set, and the word is in any
// place of that set. The guard's memory begins with one cache line for the port's own use (see Seen).
const (
	guardSets = 1 << 11
	guardWays = 8
	// GuardLen is the length of a guard's memory in words of 8 bytes.
	GuardLen = (1 + guardSets) * guardWays
)

// Guard is a set of words of servers' memory, atomics to which must not cross untouched. For each
// word there is one exception: the atomic that links the entry which is to be linked at that word.
// A place is 0 while it is free; otherwise it has the value of Word.Place. A place is written by
// one store, so that the kernel's program, which may read at any time, finds the old or the new value.
//
// Only one app of a graph guards words (graph.New refuses several), and only one worker of it at a
// time. Therefore the process can keep in taken, which is much smaller than mem, one bit for each
// place that is not free; to find a free place it need not read mem.
type Guard struct {
	mem   []uint64
	taken *[guardSets]uint8
}

// NewGuard returns a guard in mem, which has GuardLen words and whose contents it keeps. If mem
// is nil, the guard is in memory of the process and ends with it.
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

// count sets the bits of taken for one set from the guard's memory.
func (g *Guard) count(set int) {
	t := uint8(0)
	for i, v := range g.set(set) {
		if v != 0 {
			t |= 1 << i
		}
	}
	g.taken[set] = t
}

// Factors of the hashes. The kernel's program computes the same hashes.
const (
	GuardMul1 uint64 = 0x9E3779B97F4A7C15
	GuardMul2 uint64 = 0xC2B2AE3D27D4EB4F
	GuardMul3 uint64 = 0x165667B19E3779F9
	GuardMul4 uint64 = 0xD6E8FEB86659FD93
)

// Word is the hash of a server and a virtual address. Its upper 11 bits are the number of the
// set, and bits 21 to 52 distinguish the words of a set.
type Word uint64

// Words returns the part of WordAt's hash that depends on the server alone. It hashes the 16
// bytes of the server's address in network byte order, with IPv4 mapped into IPv6.
func Words(server netip.Addr) uint64 {
	a := server.As16()
	return binary.NativeEndian.Uint64(a[:])*GuardMul1 + binary.NativeEndian.Uint64(a[8:])*GuardMul2
}

// WordAt returns the hash of the word at virtual address va of the server for which Words returned words.
func WordAt(words, va uint64) Word {
	h := (words ^ va) * GuardMul3
	h ^= h >> 32
	return Word(h * GuardMul4)
}

// GuardLink is the number of low bits of an atomic's swap operand that are left out of its hash.
// The bits above them are the handle and the version of the entry that is linked.
const GuardLink = 19

// Place returns the value of a place that guards w from all atomics except those whose swap
// operand links the same entry as swap does.
func (w Word) Place(swap uint64) uint64 {
	return w.tag()<<32 | swap>>GuardLink*GuardMul3>>32
}

func (w Word) set() int { return int(w >> 53) }

func (w Word) tag() uint64 { return uint64(w)<<11>>32 | 1 }

// Room reports whether w's set has a free place.
func (g *Guard) Room(w Word) bool { return g.taken[w.set()] != 1<<guardWays-1 }

// Put stores v, a value of w.Place, in a free place of w's set. It does nothing if no place is free.
func (g *Guard) Put(w Word, v uint64) {
	t := &g.taken[w.set()]
	if i := bits.TrailingZeros8(^*t); i < guardWays {
		*t |= 1 << i
		g.at(w)[i] = v
	}
}

// Take frees one place of w's set that has the value v, if there is such a place.
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

// at returns the places of w's set.
func (g *Guard) at(w Word) *[guardWays]uint64 { return g.set(w.set()) }

// set returns the places of set number i.
func (g *Guard) set(i int) *[guardWays]uint64 { return (*[guardWays]uint64)(g.mem[(1+i)*guardWays:]) }

// Holds reports whether the guard stops an atomic to w with this swap operand.
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

// Stops reports whether the guard stops a frame to the server: an atomic of RC or XRC for which
// Holds is true. bth is the frame from its base transport header on, of any length.
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

// Empty reports whether no word is guarded. Any goroutine may call it.
func (g *Guard) Empty() bool {
	for i := range g.mem[guardWays:] {
		if atomic.LoadUint64(&g.mem[guardWays+i]) != 0 {
			return false
		}
	}
	return true
}

// Replace makes g guard the words of o and no others. Words that both guard stay guarded all the time.
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

// Add makes g guard the words of o, too, as far as g has free places, and gives g the later Seen of
// both. It serves when interfaces of two pairs become one pair, and their guards one guard.
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

// Seen returns the place where the port stores the time of the last sign of a worker: CLOCK_MONOTONIC, in ns.
func (g *Guard) Seen() *uint64 { return &g.mem[0] }
