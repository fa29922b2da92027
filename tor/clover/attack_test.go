package clover

import (
	"testing"
	"time"
)

// unmix is the inverse of index.Mix.
func unmix(x uint64) uint64 {
	inverse := func(m uint64) uint64 {
		r := m
		for range 6 {
			r *= 2 - m*r
		}
		return r
	}
	x ^= x >> 33
	x *= inverse(0xc4ceb9fe1a85ec53)
	x ^= x >> 33
	x *= inverse(0xff51afd7ed558ccd)
	return x ^ x>>33
}

// A client of the store's chooses the keys of its entries. What it costs to find the keys of
// others does not grow with what it chose.
func TestAttackChosenKeys(t *testing.T) {
	const places = 1 << 16
	cost := func(key func(k uint64) uint64) time.Duration {
		table := newKeyTable(places)
		table.seed = 0x5EED
		for k := range uint64(places / 2) {
			table.insert(0, key(k))
		}
		for k := range uint64(1000) {
			table.insert(0, k)
		}
		best := time.Hour
		for range 3 {
			begin := time.Now()
			for k := range uint64(1000) {
				table.find(0, k)
			}
			best = min(best, time.Since(begin)/1000)
		}
		return best
	}
	fair := cost(func(k uint64) uint64 { return 1<<20 + k })
	chosen := cost(func(k uint64) uint64 { return unmix(k<<32 | 7) })
	t.Logf("to find another client's key takes %v, and %v when somebody chose half of the keys", fair, chosen)
	if chosen > 20*fair+time.Microsecond {
		t.Errorf("to find another client's key takes %v; %v when somebody chose half of the keys", fair, chosen)
	}
}

// A client that chooses the addresses of its entries does not choose whose entries these displace.
func TestAttackChosenAddresses(t *testing.T) {
	fair := newAddrTable(1 << 16)
	keyed := fair
	keyed.seed = 0x5EED
	const others = 1000
	one, n := map[int32]bool{}, 0
	for va := uint64(1) << 32; n < others; va += 64 {
		if fair.set(0, va) == fair.set(0, 0) {
			one[keyed.set(0, va)] = true
			n++
		}
	}
	// Of 1,000 addresses in 16,384 sets some 30 share one by chance.
	if len(one) < 9*others/10 {
		t.Errorf("%d addresses that are in one set without a seed are in %d with one", others, len(one))
	}
}
