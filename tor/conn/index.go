package conn

import (
	"math/bits"

	"github.com/quillon/quillon/tor/index"
)

// names is an index of rows by an address and a number that the host at this address chose: a
// queue pair number or a communication ID. It stores refs only; its users compare the keys.
type names struct {
	index.Index
	lo, hi uint64 // keys of the hash
}

// ref names one end of a row: the slot times 2, plus 1 for the client.
type ref int32

const noRef ref = -1

func refOf(s Slot, client bool) ref {
	if client {
		return ref(s<<1 | 1)
	}
	return ref(s << 1)
}

func (r ref) slot() Slot   { return Slot(r >> 1) }
func (r ref) client() bool { return r&1 != 0 }

func newNames(n int, seed uint64) names {
	return names{index.New(n), seed ^ 0xA0761D6478BD642F, seed>>32 ^ 0xE7037ED1A0B428DB}
}

// hash returns the hash of a name: one 64 by 64 bit multiplication, folded. It is keyed, so that
// a peer cannot choose names that collide.
func (x *names) hash(a Addr, n uint32) uint32 {
	hi, lo := bits.Mul64(a.lo^a.vlan<<48^x.lo, (a.hi+uint64(n)<<32+uint64(n))^x.hi)
	return uint32((hi ^ lo) >> 16)
}

// hash4 returns what hash returns for an IPv4 address in no VLAN; a is its Addr.lo.
func (x *names) hash4(a uint64, n uint32) uint32 {
	hi, lo := bits.Mul64(a^x.lo, (uint64(n)<<32+uint64(n))^x.hi)
	return uint32((hi ^ lo) >> 16)
}

func (x *names) put(a Addr, n uint32, r ref) { x.Put(x.hash(a, n), int32(r)) }
func (x *names) del(a Addr, n uint32, r ref) { x.Del(x.hash(a, n), int32(r)) }
