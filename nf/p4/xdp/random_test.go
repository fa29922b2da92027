package xdp

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// random makes what tests need at random, the same for the same seed.
type random struct{ *rand.Rand }

func newRandom(t testing.TB) random {
	seed := uint64(1)
	if s := os.Getenv("QUILLON_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	return random{newRandomOf(seed)}
}

func newRandomOf(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// change is a frame with some bytes changed, most of them in its headers, or cut short.
func (r random) change(b []byte) []byte {
	b = append([]byte{}, b...)
	for range r.IntN(4) {
		if len(b) == 0 {
			return b
		}
		i := r.IntN(min(len(b), 60))
		switch r.IntN(4) {
		case 0:
			b[i] = byte(r.IntN(256))
		case 1:
			b[i] ^= 1 << r.IntN(8)
		case 2:
			b[i] += byte(r.IntN(3)) - 1
		case 3:
			if r.IntN(3) == 0 {
				b = b[:r.IntN(len(b)+1)]
			}
		}
	}
	return b
}
