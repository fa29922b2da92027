package p4

import (
	"cmp"
	"math"
)

// The compiler from expressions to closures.

type (
	lowFn  func(k *packetState) uint64
	wideFn func(k *packetState, dst []uint64)
	testFn func(k *packetState) bool
	baseFn func(k *packetState) int
	// wordsFn returns the words of a value in the packet's state; nil: the value has no place.
	wordsFn func(k *packetState) []uint64
)

// code is a number that was compiled for one word or for several. low returns the lowest word, which is the
// whole value if the value fits; wide writes as many words as dst has. low exists because nearly all numbers
// fit, and returning them through memory, as wide does, would be slower.
type code struct {
	low  lowFn
	wide wideFn
}

// generator allots the scratch words that closures use.
type generator struct{ tmp int }

func (g *generator) words(n int) int {
	at := g.tmp
	g.tmp += n
	return at
}

func signExtend(v uint64, n int) uint64 {
	s := uint(64 - n)
	return uint64(int64(v<<s) >> s)
}

func constant[T any](v T) func(*packetState) T { return func(*packetState) T { return v } }

// choose returns a function that calls a or b, as c says.
func choose[T any](c testFn, a, b func(*packetState) T) func(*packetState) T {
	return func(k *packetState) T {
		if c(k) {
			return a(k)
		}
		return b(k)
	}
}

// value compiles e to its lowest n words.
func (g *generator) value(e *expr, n int) code {
	if n > 1 && fits(e) {
		a, neg := g.value(e, 1).low, e.neg
		return code{wide: func(k *packetState, dst []uint64) {
			dst[0] = a(k)
			fill := uint64(0)
			if neg {
				fill = signFill(dst[0])
			}
			for i := 1; i < len(dst); i++ {
				dst[i] = fill
			}
		}}
	}
	c := g.operation(e, n)
	if n == 1 && c.low == nil { // the lowest word depends on the others
		at := g.words(1)
		c.low = func(k *packetState) uint64 {
			t := k.tmp[at : at+1]
			c.wide(k, t)
			return t[0]
		}
	}
	return c
}

func (g *generator) low(e *expr) lowFn { return g.value(e, 1).low }

// operation compiles e. For several words the code has wide. For one word it has low if that needs only the
// lowest words of the operands, else wide.
func (g *generator) operation(e *expr, n int) code {
	l, r := e.kids[0], e.kids[1]
	switch e.op {
	case opConst:
		c := e.c
		return code{constant(c[0]), func(_ *packetState, dst []uint64) { extend(dst, c, true) }}
	case opField, opMember, opLast, opLocal, opScratch, opRegister:
		return g.read(e, n)
	case opAdd, opSub, opMul, opAnd, opOr, opXor:
		if n == 1 {
			return code{low: g.lowBinary(e)}
		}
		a, b, x, f := g.value(l, n).wide, g.value(r, n).wide, g.words(2*n), wideOps[e.op]
		return code{wide: func(k *packetState, dst []uint64) {
			s, t := k.tmp[x:x+n], k.tmp[x+n:x+2*n]
			a(k, s)
			b(k, t)
			f(dst, s, t)
		}}
	case opNeg:
		a := g.value(l, n)
		return code{func(k *packetState) uint64 { return ^a.low(k) }, func(k *packetState, dst []uint64) {
			a.wide(k, dst)
			wNot(dst)
		}}
	case opShl:
		a, by := g.value(l, n), g.index(r)
		c := code{func(k *packetState) uint64 { return a.low(k) << by(k) }, func(k *packetState, dst []uint64) {
			a.wide(k, dst)
			wShl(dst, dst, by(k))
		}}
		if s, ok := r.constant(); ok {
			c.low = func(k *packetState) uint64 { return a.low(k) << s }
		}
		return c
	case opShr:
		return g.shiftRight(e, n)
	case opDiv, opMod:
		return g.divide(e, n)
	case opSignCast:
		a, width := g.value(l, n), e.idx
		if n == 1 && width >= 64 {
			return a
		}
		return code{func(k *packetState) uint64 { return signExtend(a.low(k), width) }, func(k *packetState, dst []uint64) {
			a.wide(k, dst)
			wKeep(dst, width, true)
		}}
	case opSatCast, opUsatCast:
		return g.saturate(e, n)
	case opIf:
		c, a, b := g.test(l), g.value(r, n), g.value(e.kids[2], n)
		return code{choose(c, a.low, b.low), func(k *packetState, dst []uint64) {
			if c(k) {
				a.wide(k, dst)
			} else {
				b.wide(k, dst)
			}
		}}
	case opToData:
		return code{low: choose(g.test(l), constant[uint64](1), constant[uint64](0))}
	case opCount:
		next := l.next()
		return code{low: func(k *packetState) uint64 { return k.v[next] }}
	}
	next := l.next() // opLastIndex
	return code{low: func(k *packetState) uint64 { return k.v[next] - 1 }}
}

// next returns the slot that counts a stack's headers.
func (e *expr) next() int {
	if e.ustk != nil {
		return e.ustk.next
	}
	return e.stack.next
}

// where compiles the place of a field, of a parameter or of a register's cell.
func (g *generator) where(e *expr) wordsFn {
	w := words(e.width())
	switch e.op {
	case opField:
		at := e.hdr.base + e.fld.off
		return func(k *packetState) []uint64 { return k.v[at : at+w] }
	case opLocal:
		at := e.idx
		return func(k *packetState) []uint64 { return k.args[at : at+w] }
	case opScratch:
		at := e.idx
		return func(k *packetState) []uint64 { return k.tmp[at : at+w] }
	case opRegister:
		p, size, idx := e.reg.place, uint64(e.reg.Size), g.index(e.kids[0])
		return func(k *packetState) []uint64 {
			i := idx(k)
			if i >= size {
				return nil
			}
			return k.sw.registers[p.Group][int(i)*p.Stride+p.At:][:w]
		}
	}
	base, off := g.holder(e), e.fld.off // opMember, opLast
	return func(k *packetState) []uint64 {
		b := base(k)
		if b < 0 {
			return nil
		}
		return k.v[b+off : b+off+w]
	}
}

// read compiles the value at a place. A value without a place is 0.
func (g *generator) read(e *expr, n int) code {
	sign := 64 * n // that of the value's words, which goes on to the left
	if e.fld != nil && e.fld.signed {
		sign = e.fld.bits
	}
	at := e.idx
	switch {
	case n > 1:
	case e.op == opField && sign >= 64:
		at = e.hdr.base + e.fld.off
		return code{low: func(k *packetState) uint64 { return k.v[at] }}
	case e.op == opLocal:
		return code{low: func(k *packetState) uint64 { return k.args[at] }}
	case e.op == opScratch:
		return code{low: func(k *packetState) uint64 { return k.tmp[at] }}
	}
	where := g.where(e)
	return code{func(k *packetState) uint64 {
		if w := where(k); w != nil {
			return signExtend(w[0], min(sign, 64))
		}
		return 0
	}, func(k *packetState, dst []uint64) {
		extend(dst, where(k), false)
		wKeep(dst, sign, true)
	}}
}

func (g *generator) shiftRight(e *expr, n int) code {
	l, by := e.kids[0], g.index(e.kids[1])
	if n > 1 || !fits(l) {
		m := max(n, wordsFor(l))
		a, x := g.value(l, m).wide, g.words(m)
		return code{wide: func(k *packetState, dst []uint64) {
			s := k.tmp[x : x+m]
			a(k, s)
			wShr(s, s, by(k), signFill(s[m-1]))
			copy(dst, s)
		}}
	}
	a := g.low(l)
	if l.neg {
		return code{low: func(k *packetState) uint64 { return uint64(int64(a(k)) >> by(k)) }}
	}
	if s, ok := e.kids[1].constant(); ok {
		return code{low: func(k *packetState) uint64 { return a(k) >> s }}
	}
	return code{low: func(k *packetState) uint64 { return a(k) >> by(k) }}
}

// divide compiles a quotient or a remainder. Like bmv2, it does not divide negative numbers.
func (g *generator) divide(e *expr, n int) code {
	l, r, div := e.kids[0], e.kids[1], e.op == opDiv
	if n > 1 || !fits(l) || !fits(r) {
		m := max(n, wordsFor(l), wordsFor(r))
		a, b, x := g.value(l, m).wide, g.value(r, m).wide, g.words(4*m)
		return code{wide: func(k *packetState, dst []uint64) {
			t := k.tmp[x : x+4*m]
			s, d, quo, rest := t[:m], t[m:2*m], t[2*m:3*m], t[3*m:]
			a(k, s)
			b(k, d)
			if int64(s[m-1]) < 0 || int64(d[m-1]) < 0 {
				clear(dst)
				return
			}
			wDivMod(quo, rest, s, d)
			if div {
				copy(dst, quo)
			} else {
				copy(dst, rest)
			}
		}}
	}
	a, b := g.low(l), g.low(r)
	return code{low: func(k *packetState) uint64 {
		x, y := a(k), b(k)
		switch {
		case y == 0 || l.neg && int64(x) < 0 || r.neg && int64(y) < 0:
			return 0
		case div:
			return x / y
		}
		return x % y
	}}
}

// saturate compiles a saturating cast.
func (g *generator) saturate(e *expr, n int) code {
	l, width, signed := e.kids[0], e.idx, e.op == opSatCast
	if n > 1 || !fits(l) || !fits(e) {
		m := max(n, wordsFor(l), 2)
		a, x := g.value(l, m).wide, g.words(m)
		return code{wide: func(k *packetState, dst []uint64) {
			s := k.tmp[x : x+m]
			a(k, s)
			wSaturate(s, width, signed)
			copy(dst, s)
		}}
	}
	a, low, top := g.low(l), int64(0), mask64(width)
	if signed {
		top = mask64(width - 1)
		low = -int64(top) - 1
	}
	high := int64(min(top, math.MaxInt64))
	if !l.neg {
		return code{low: func(k *packetState) uint64 { return min(a(k), top) }}
	}
	return code{low: func(k *packetState) uint64 {
		return uint64(min(max(int64(a(k)), low), high))
	}}
}

// index compiles a number that is an index, a width or a distance. A negative or too large number becomes the
// largest uint64.
func (g *generator) index(e *expr) lowFn {
	if fits(e) {
		return g.low(e) // negative: large as an unsigned number
	}
	n := wordsFor(e)
	w, at := g.value(e, n).wide, g.words(n)
	return func(k *packetState) uint64 {
		t := k.tmp[at : at+n]
		w(k, t)
		if !wZero(t[1:]) {
			return ^uint64(0)
		}
		return t[0]
	}
}

func (g *generator) lowBinary(e *expr) lowFn {
	l, r := e.kids[0], e.kids[1]
	// The shapes that compilers write most: a field and a constant.
	if c, ok := r.constant(); ok && l.op == opField && !l.fld.signed {
		slot := l.hdr.base + l.fld.off
		switch e.op {
		case opAdd:
			return func(k *packetState) uint64 { return k.v[slot] + c }
		case opAnd:
			return func(k *packetState) uint64 { return k.v[slot] & c }
		}
	}
	a, b := g.low(l), g.low(r)
	if c, ok := r.constant(); ok {
		switch e.op {
		case opAdd:
			return func(k *packetState) uint64 { return a(k) + c }
		case opAnd:
			return func(k *packetState) uint64 { return a(k) & c }
		}
	}
	switch e.op {
	case opAdd:
		return func(k *packetState) uint64 { return a(k) + b(k) }
	case opSub:
		return func(k *packetState) uint64 { return a(k) - b(k) }
	case opMul:
		return func(k *packetState) uint64 { return a(k) * b(k) }
	case opAnd:
		return func(k *packetState) uint64 { return a(k) & b(k) }
	case opOr:
		return func(k *packetState) uint64 { return a(k) | b(k) }
	}
	return func(k *packetState) uint64 { return a(k) ^ b(k) }
}

// test compiles a bool expression.
func (g *generator) test(e *expr) testFn {
	switch e.op {
	case opTrue:
		return constant(true)
	case opEq, opNe, opLt, opLe, opGt, opGe:
		return g.compare(e)
	case opEqBool, opNeBool:
		a, b, want := g.test(e.kids[0]), g.test(e.kids[1]), e.op == opEqBool
		return func(k *packetState) bool { return (a(k) == b(k)) == want }
	case opEqHeader, opNeHeader:
		a, b, want := g.base(e.kids[0]), g.base(e.kids[1]), e.op == opEqHeader
		t := e.kids[0].typ
		if t != e.kids[1].typ {
			return constant(!want)
		}
		return func(k *packetState) bool { return k.sameHeader(t, a(k), b(k)) == want }
	case opEqUnion, opNeUnion:
		a, b, want := g.union(e.kids[0]), g.union(e.kids[1]), e.op == opEqUnion
		return func(k *packetState) bool { return k.sameUnion(a(k), b(k)) == want }
	case opAndAlso:
		a, b := g.test(e.kids[0]), g.test(e.kids[1])
		return func(k *packetState) bool { return a(k) && b(k) }
	case opOrElse:
		a, b := g.test(e.kids[0]), g.test(e.kids[1])
		return func(k *packetState) bool { return a(k) || b(k) }
	case opNot:
		a := g.test(e.kids[0])
		return func(k *packetState) bool { return !a(k) }
	case opValid:
		if e.kids[0].op == opHeader {
			slot := e.kids[0].hdr.base
			return func(k *packetState) bool { return k.v[slot] != 0 }
		}
		a := g.base(e.kids[0])
		return func(k *packetState) bool {
			b := a(k)
			return b >= 0 && k.v[b] != 0
		}
	case opValidUnion:
		a := g.union(e.kids[0])
		return func(k *packetState) bool { return k.validMember(a(k)) != nil }
	case opToBool:
		l := e.kids[0]
		if fits(l) {
			a := g.low(l)
			return func(k *packetState) bool { return a(k) != 0 }
		}
		n := wordsFor(l)
		a, x := g.value(l, n).wide, g.words(n)
		return func(k *packetState) bool {
			t := k.tmp[x : x+n]
			a(k, t)
			return !wZero(t)
		}
	case opIf:
		return choose(g.test(e.kids[0]), g.test(e.kids[1]), g.test(e.kids[2]))
	}
	return constant(false) // opFalse
}

func (g *generator) compare(e *expr) testFn {
	l, r, o := e.kids[0], e.kids[1], e.op
	unsigned := fits(l) && fits(r) && !l.neg && !r.neg
	if c, ok := r.constant(); ok && unsigned && l.op == opField && (o == opEq || o == opNe) {
		slot, want := l.hdr.base+l.fld.off, o == opEq
		return func(k *packetState) bool { return (k.v[slot] == c) == want }
	}
	if unsigned {
		a, b := g.low(l), g.low(r)
		switch o {
		case opEq:
			return func(k *packetState) bool { return a(k) == b(k) }
		case opNe:
			return func(k *packetState) bool { return a(k) != b(k) }
		case opLt:
			return func(k *packetState) bool { return a(k) < b(k) }
		case opLe:
			return func(k *packetState) bool { return a(k) <= b(k) }
		case opGt:
			return func(k *packetState) bool { return a(k) > b(k) }
		}
		return func(k *packetState) bool { return a(k) >= b(k) }
	}
	if l.bits <= 63 && r.bits <= 63 {
		a, b := g.low(l), g.low(r)
		return func(k *packetState) bool { return outcome(o, cmp.Compare(int64(a(k)), int64(b(k)))) }
	}
	n := max(wordsFor(l), wordsFor(r))
	a, b, x, y := g.value(l, n).wide, g.value(r, n).wide, g.words(n), g.words(n)
	return func(k *packetState) bool {
		s, t := k.tmp[x:x+n], k.tmp[y:y+n]
		a(k, s)
		b(k, t)
		return outcome(o, wCmpSigned(s, t))
	}
}

// outcome returns the result of a comparison of two numbers; c is negative, 0 or positive as the first is less,
// equal or greater.
func outcome(o op, c int) bool {
	switch o {
	case opEq:
		return c == 0
	case opNe:
		return c != 0
	case opLt:
		return c < 0
	case opLe:
		return c <= 0
	case opGt:
		return c > 0
	}
	return c >= 0
}

// base compiles a header expression to the place of the header; -1: there is none.
func (g *generator) base(e *expr) baseFn {
	switch e.op {
	case opHeader:
		return constant(e.hdr.base)
	case opElem:
		bases, idx := e.kids[0].stack.bases, g.index(e.kids[1])
		return func(k *packetState) int {
			i := idx(k)
			if i >= uint64(len(bases)) {
				return -1
			}
			return bases[i]
		}
	case opUnionHeader:
		u, m := g.union(e.kids[0]), e.idx
		return func(k *packetState) int {
			if x := u(k); x != nil {
				return x.members[m].base
			}
			return -1
		}
	case opIf:
		return choose(g.test(e.kids[0]), g.base(e.kids[1]), g.base(e.kids[2]))
	}
	return constant(-1)
}

// holder compiles the place of the header whose field e is.
func (g *generator) holder(e *expr) baseFn {
	switch e.op {
	case opField:
		return constant(e.hdr.base)
	case opMember:
		return g.base(e.kids[0])
	}
	bases, next := e.stack.bases, e.stack.next
	return func(k *packetState) int {
		if n := k.v[next]; n > 0 && n <= uint64(len(bases)) {
			return bases[n-1]
		}
		return -1
	}
}

// union compiles a header union expression; nil: there is no union.
func (g *generator) union(e *expr) func(k *packetState) *union {
	switch e.op {
	case opUnion:
		return constant(e.union)
	case opUnionElem:
		elems, idx := e.kids[0].ustk.elems, g.index(e.kids[1])
		return func(k *packetState) *union {
			i := idx(k)
			if i >= uint64(len(elems)) {
				return nil
			}
			return elems[i]
		}
	case opIf:
		return choose(g.test(e.kids[0]), g.union(e.kids[1]), g.union(e.kids[2]))
	}
	return constant[*union](nil)
}

// validMember returns the valid header of a union, or nil if none is valid.
func (k *packetState) validMember(u *union) *header {
	if u != nil {
		for _, h := range u.members {
			if k.v[h.base] != 0 {
				return h
			}
		}
	}
	return nil
}

// sameHeader compares headers as P4's == does in bmv2: they are equal if both are valid and have the same
// fields.
func (k *packetState) sameHeader(t *headerType, a, b int) bool {
	if a < 0 || b < 0 || k.v[a] == 0 || k.v[b] == 0 {
		return false
	}
	x, y := k.v[a:a+t.words], k.v[b:b+t.words]
	for i := range x {
		if x[i] != y[i] {
			return false
		}
	}
	return true
}

func (k *packetState) sameUnion(a, b *union) bool {
	x, y := k.validMember(a), k.validMember(b)
	if x == nil || y == nil {
		return false
	}
	for i, h := range a.members {
		if h == x {
			return i < len(b.members) && b.members[i] == y && k.sameHeader(x.typ, x.base, y.base)
		}
	}
	return false
}

// store compiles the assignment dst = src. It cuts the value to the width of dst, or brings it into the range
// of dst if the field saturates.
func (g *generator) store(dst, src *expr) func(k *packetState) {
	bits := dst.width()
	if f := dst.fld; f != nil && f.saturate {
		o := opUsatCast
		if f.signed {
			o = opSatCast
		}
		src = cast(o, src, bits)
	}
	n, m := words(bits), mask64(bits)
	if n == 1 && dst.op == opField {
		return g.storeSlot(dst.hdr.base+dst.fld.off, m, src)
	}
	a, where := g.value(src, n), g.where(dst)
	if n == 1 {
		return func(k *packetState) {
			if w := where(k); w != nil {
				w[0] = a.low(k) & m
			}
		}
	}
	x := g.words(n)
	return func(k *packetState) {
		if w := where(k); w != nil {
			t := k.tmp[x : x+n]
			a.wide(k, t)
			wKeep(t, bits, false)
			copy(w, t)
		}
	}
}

// storeSlot compiles an assignment to a word of the state. m has the bits that the field has.
func (g *generator) storeSlot(at int, m uint64, src *expr) func(k *packetState) {
	if c, ok := src.constant(); ok {
		c &= m
		return func(k *packetState) { k.v[at] = c }
	}
	if src.op == opField && !src.fld.signed && mask64(src.bits) <= m {
		from := src.hdr.base + src.fld.off
		return func(k *packetState) { k.v[at] = k.v[from] }
	}
	a := g.low(src)
	return func(k *packetState) { k.v[at] = a(k) & m }
}
