package rcuckoo

import (
	"math"
	"math/bits"
)

// Hashing is how a key's two rows are found.
type Hashing uint8

const (
	// HashText is the text's: three salts, trailing zeros, any distance.
	HashText Hashing = iota
	// HashCode is the public code's: bytes of the key inverted instead of salts, leading zeros of 32 bits, an
	// approximate power; first rows are odd and second rows even.
	HashCode
)

func (h Hashing) String() string { return [...]string{"text", "code"}[h] }

// xxh64 is XXH64 of the 4 bytes of key, low byte first (Collet, "xxHash").
func xxh64(key uint32, seed uint64) uint64 {
	const (
		p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
		p5         = 0x27D4EB2F165667C5
	)
	h := seed + p5 + 4
	h ^= uint64(key) * p1
	h = bits.RotateLeft64(h, 23)*p2 + p3
	h ^= h >> 33
	h *= p2
	h ^= h >> 29
	h *= p3
	return h ^ h>>32
}

// fastPow approximates a^b by the exponent's bits (Schraudolph, "A fast, compact
// approximation of the exponential function", 1999).
func fastPow(a, b float64) float64 {
	const one = 1072632447
	hi := int32(math.Float64bits(a) >> 32)
	x := int32(b*float64(hi-one) + one)
	return math.Float64frombits(uint64(uint32(x)) << 32)
}

// RowsOf returns a key's first and second row. They can be the same row.
func (l *Layout) RowsOf(key uint32) (first, second int) {
	t := uint64(l.Rows)
	if l.Hashing == HashCode {
		h1 := xxh64(key, 0) | 1
		h2 := xxh64(key^0xFFFF, 0)
		first = int(h1 % t)
		if l.Independent {
			return first, int(h2 % (t / 2) * 2)
		}
		z := bits.LeadingZeros32(uint32(xxh64(key^0xFFFF0000, 0)))
		m := uint64(min(max(fastPow(l.Factor, float64(z)+l.Factor), 1), math.MaxInt32))
		return first, int((uint64(first) + (h2%m | 1)) % t)
	}
	first = int(xxh64(key, 1) % t)
	h2 := xxh64(key, 2)
	if l.Independent {
		return first, int(h2 % t)
	}
	z := bits.TrailingZeros64(xxh64(key, 3))
	m := uint64(min(math.Pow(l.Factor, l.Factor+float64(z)), math.MaxInt64/4))
	return first, int((uint64(first) + h2%max(m, 1)) % t)
}

// other is the second of a key's rows if row is the first, and the first otherwise; row itself if both are
// one.
func (l *Layout) other(key uint32, row int) int {
	a, b := l.RowsOf(key)
	if a == row {
		return b
	}
	return a
}
