package p4

import "math/bits"

// Numbers of several words are slices of words, least significant first, in
// two's complement: arithmetic modulo 2^(64n).

// signFill returns the word that continues w to the left: its sign bit in all bits.
func signFill(w uint64) uint64 { return uint64(int64(w) >> 63) }

// extend copies src to dst, which may be longer or shorter.
func extend(dst, src []uint64, signed bool) {
	n := copy(dst, src)
	fill := uint64(0)
	if signed && len(src) > 0 {
		fill = signFill(src[len(src)-1])
	}
	for ; n < len(dst); n++ {
		dst[n] = fill
	}
}

func wAdd(dst, a, b []uint64) {
	var c uint64
	for i := range dst {
		dst[i], c = bits.Add64(a[i], b[i], c)
	}
}

func wSub(dst, a, b []uint64) {
	var c uint64
	for i := range dst {
		dst[i], c = bits.Sub64(a[i], b[i], c)
	}
}

// wMul multiplies. dst must not overlap a or b.
func wMul(dst, a, b []uint64) {
	clear(dst)
	for i := range dst {
		var carry uint64
		for j := 0; i+j < len(dst); j++ {
			hi, lo := bits.Mul64(a[i], b[j])
			var c uint64
			lo, c = bits.Add64(lo, carry, 0)
			hi += c
			dst[i+j], c = bits.Add64(dst[i+j], lo, 0)
			carry = hi + c
		}
	}
}

func wNot(a []uint64) {
	for i := range a {
		a[i] = ^a[i]
	}
}

// wordwise returns a function that applies f to each pair of words.
func wordwise(f func(a, b uint64) uint64) func(dst, a, b []uint64) {
	return func(dst, a, b []uint64) {
		for i := range dst {
			dst[i] = f(a[i], b[i])
		}
	}
}

// wideOps are operations on several words. dst must not overlap a or b.
var wideOps = map[op]func(dst, a, b []uint64){opAdd: wAdd, opSub: wSub, opMul: wMul,
	opAnd: wordwise(func(a, b uint64) uint64 { return a & b }),
	opOr:  wordwise(func(a, b uint64) uint64 { return a | b }),
	opXor: wordwise(func(a, b uint64) uint64 { return a ^ b })}

// wShl shifts a to the left by n bits. dst may be a.
func wShl(dst, a []uint64, n uint64) {
	w := int(min(n/64, uint64(len(dst))))
	s := uint(n % 64)
	for i := len(dst) - 1; i >= 0; i-- {
		var v uint64
		if j := i - w; j >= 0 {
			v = a[j] << s
			if s > 0 && j > 0 {
				v |= a[j-1] >> (64 - s)
			}
		}
		dst[i] = v
	}
}

// wShr shifts a, which is as long as dst, to the right by n bits, and fills the free bits from fill. dst may be
// a.
func wShr(dst, a []uint64, n, fill uint64) {
	w := int(min(n/64, uint64(len(dst))))
	s := uint(n % 64)
	at := func(i int) uint64 {
		if i < len(a) {
			return a[i]
		}
		return fill
	}
	for i := range dst {
		v := at(i+w) >> s
		if s > 0 {
			v |= at(i+w+1) << (64 - s)
		}
		dst[i] = v
	}
}

// wCmp compares unsigned numbers of the same length.
func wCmp(a, b []uint64) int {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i] != b[i] {
			if a[i] < b[i] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// wCmpSigned compares signed numbers of the same length.
func wCmpSigned(a, b []uint64) int {
	if n := len(a) - 1; int64(a[n]) < 0 != (int64(b[n]) < 0) {
		if int64(a[n]) < 0 {
			return -1
		}
		return 1
	}
	return wCmp(a, b)
}

func wZero(a []uint64) bool {
	for _, w := range a {
		if w != 0 {
			return false
		}
	}
	return true
}

// wDivMod divides the unsigned a by b, bit by bit. q is the quotient and r the remainder; both are 0 if b is 0.
// All four have the same length, and no two are the same slice.
func wDivMod(q, r, a, b []uint64) {
	clear(q)
	clear(r)
	if wZero(b) {
		return
	}
	for i := len(a)*64 - 1; i >= 0; i-- {
		over := r[len(r)-1] >> 63
		wShl(r, r, 1)
		r[0] |= a[i/64] >> uint(i%64) & 1
		if over != 0 || wCmp(r, b) >= 0 {
			wSub(r, r, b)
			q[i/64] |= 1 << uint(i%64)
		}
	}
}

// wKeep keeps the lowest n bits of a, and fills the bits above with zeros, or, if signed, with their sign.
func wKeep(a []uint64, n int, signed bool) {
	if n >= 64*len(a) {
		return
	}
	i, s := n/64, uint(n%64)
	fill := uint64(0)
	if signed && n > 0 && a[(n-1)/64]>>uint((n-1)%64)&1 != 0 {
		fill = ^uint64(0)
	}
	a[i] = a[i]&(1<<s-1) | fill<<s
	for i++; i < len(a); i++ {
		a[i] = fill
	}
}

// wSaturate brings the signed a into the range of n bits.
func wSaturate(a []uint64, n int, signed bool) {
	negative := int64(a[len(a)-1]) < 0
	if !signed {
		switch {
		case negative:
			clear(a)
		case !wWithin(a, n):
			wOnes(a, n)
		}
		return
	}
	// A number fits n bits with a sign when all bits from n-1 on are the sign.
	fill := signFill(a[len(a)-1])
	for i := n - 1; i < 64*len(a); i++ {
		if a[i/64]>>uint(i%64)&1 != fill&1 {
			wOnes(a, n-1)
			if negative {
				wNot(a)
			}
			return
		}
	}
}

// wWithin reports whether the unsigned a is below 2^n.
func wWithin(a []uint64, n int) bool {
	for i := n / 64; i < len(a); i++ {
		w := a[i]
		if i == n/64 {
			w >>= uint(n % 64)
		}
		if w != 0 {
			return false
		}
	}
	return true
}

// wOnes makes a the number 2^n - 1.
func wOnes(a []uint64, n int) {
	for i := range a {
		a[i] = mask64(max(0, min(64, n-64*i)))
	}
}
