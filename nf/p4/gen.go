package p4

// The compiler from expressions to closures. low yields the lowest word of a
// value, which for a value that fits is all of it; wide writes as many words as
// asked for; test yields a bool; base the place of a header in the state.

type (
	lowFn  func(k *packetState) uint64
	wideFn func(k *packetState, dst []uint64)
	testFn func(k *packetState) bool
	baseFn func(k *packetState) int
)

// generator hands out the scratch words that closures use.
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

// low compiles e to its lowest word.
func (g *generator) low(e *expr) lowFn {
	switch e.op {
	case opConst:
		c := e.c[0]
		return func(*packetState) uint64 { return c }
	case opField:
		slot := e.hdr.base + e.fld.off
		if e.fld.signed && e.fld.bits < 64 {
			n := e.fld.bits
			return func(k *packetState) uint64 { return signExtend(k.v[slot], n) }
		}
		return func(k *packetState) uint64 { return k.v[slot] }
	case opMember, opLast:
		base, off := g.holder(e), e.fld.off
		n := 64
		if e.fld.signed && e.fld.bits < 64 {
			n = e.fld.bits
		}
		return func(k *packetState) uint64 {
			b := base(k)
			if b < 0 {
				return 0
			}
			return signExtend(k.v[b+off], n)
		}
	case opLocal:
		at := e.idx
		return func(k *packetState) uint64 { return k.args[at] }
	case opScratch:
		at := e.idx
		return func(k *packetState) uint64 { return k.tmp[at] }
	case opRegister:
		r, w := e.regAt, e.reg.words
		idx := g.index(e.kids[0])
		return func(k *packetState) uint64 {
			cells := k.sw.registers[r]
			i := idx(k)
			if i >= uint64(len(cells)/w) {
				return 0
			}
			return cells[int(i)*w]
		}
	case opAdd, opSub, opMul, opAnd, opOr, opXor:
		return g.lowBinary(e)
	case opNeg:
		a := g.low(e.kids[0])
		return func(k *packetState) uint64 { return ^a(k) }
	case opShl:
		a, by := g.low(e.kids[0]), g.index(e.kids[1])
		if n, ok := e.kids[1].constant(); ok {
			return func(k *packetState) uint64 { return a(k) << n }
		}
		return func(k *packetState) uint64 { return a(k) << by(k) }
	case opShr:
		l := e.kids[0]
		if !fits(l) {
			break
		}
		a, by := g.low(l), g.index(e.kids[1])
		if l.neg {
			return func(k *packetState) uint64 { return uint64(int64(a(k)) >> by(k)) }
		}
		if n, ok := e.kids[1].constant(); ok {
			return func(k *packetState) uint64 { return a(k) >> n }
		}
		return func(k *packetState) uint64 { return a(k) >> by(k) }
	case opDiv, opMod:
		l, r := e.kids[0], e.kids[1]
		if !fits(l) || !fits(r) {
			break
		}
		a, b, div := g.natural(l), g.natural(r), e.op == opDiv
		return func(k *packetState) uint64 {
			x, y := a(k), b(k)
			switch {
			case y == 0:
				return 0
			case div:
				return x / y
			}
			return x % y
		}
	case opSignCast:
		a := g.low(e.kids[0])
		if n := e.idx; n < 64 {
			return func(k *packetState) uint64 { return signExtend(a(k), n) }
		}
		return a
	case opSatCast, opUsatCast:
		l := e.kids[0]
		if !fits(l) || !fits(e) {
			break
		}
		return g.lowSaturate(e)
	case opIf:
		c, a, b := g.test(e.kids[0]), g.low(e.kids[1]), g.low(e.kids[2])
		return func(k *packetState) uint64 {
			if c(k) {
				return a(k)
			}
			return b(k)
		}
	case opToData:
		t := g.test(e.kids[0])
		return func(k *packetState) uint64 {
			if t(k) {
				return 1
			}
			return 0
		}
	case opCount:
		next := e.kids[0].next()
		return func(k *packetState) uint64 { return k.v[next] }
	case opLastIndex:
		next := e.kids[0].next()
		return func(k *packetState) uint64 { return k.v[next] - 1 }
	}
	n := wordsFor(e)
	w, at := g.wideOp(e, n), g.words(n)
	return func(k *packetState) uint64 {
		t := k.tmp[at : at+n]
		w(k, t)
		return t[0]
	}
}

// next is the slot that counts a stack's headers.
func (e *expr) next() int {
	if e.ustk != nil {
		return e.ustk.next
	}
	return e.stack.next
}

// natural is low of a value that fits, with 0 for a negative one: bmv2 divides
// no negative numbers.
func (g *generator) natural(e *expr) lowFn {
	f := g.low(e)
	if !e.neg {
		return f
	}
	return func(k *packetState) uint64 { return uint64(max(0, int64(f(k)))) }
}

// index is a number that is an index, a width or a distance: one that is
// negative or too large is the largest there is.
func (g *generator) index(e *expr) lowFn {
	if fits(e) {
		return g.low(e) // negative: large as an unsigned number
	}
	n := wordsFor(e)
	w, at := g.wide(e, n), g.words(n)
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

// lowSaturate compiles a saturating cast whose operand and result fit.
func (g *generator) lowSaturate(e *expr) lowFn {
	l, n := e.kids[0], e.idx
	a := g.low(l)
	if e.op == opUsatCast {
		top := mask64(n)
		if l.neg {
			return func(k *packetState) uint64 {
				v := a(k)
				if int64(v) < 0 {
					return 0
				}
				return min(v, top)
			}
		}
		return func(k *packetState) uint64 { return min(a(k), top) }
	}
	top := int64(mask64(n - 1))
	if !l.neg {
		return func(k *packetState) uint64 { return min(a(k), uint64(top)) }
	}
	return func(k *packetState) uint64 { return uint64(min(max(int64(a(k)), -top-1), top)) }
}

// wide compiles e to its lowest n words.
func (g *generator) wide(e *expr, n int) wideFn {
	if fits(e) {
		a, neg := g.low(e), e.neg
		return func(k *packetState, dst []uint64) {
			v := a(k)
			fill := uint64(0)
			if neg {
				fill = signFill(v)
			}
			dst[0] = v
			for i := 1; i < n; i++ {
				dst[i] = fill
			}
		}
	}
	return g.wideOp(e, n)
}

// wideOp compiles the operation e for n words, whether one would do or not.
func (g *generator) wideOp(e *expr, n int) wideFn {
	switch e.op {
	case opConst:
		c := e.c
		return func(_ *packetState, dst []uint64) { extend(dst[:n], c, true) }
	case opField:
		slot, w, signed, width := e.hdr.base+e.fld.off, words(e.fld.bits), e.fld.signed, e.fld.bits
		return func(k *packetState, dst []uint64) {
			extend(dst[:n], k.v[slot:slot+w], false)
			if signed {
				wKeep(dst[:n], width, true)
			}
		}
	case opMember, opLast:
		base, f := g.holder(e), e.fld
		w := words(f.bits)
		return func(k *packetState, dst []uint64) {
			b := base(k)
			if b < 0 {
				clear(dst[:n])
				return
			}
			extend(dst[:n], k.v[b+f.off:b+f.off+w], false)
			if f.signed {
				wKeep(dst[:n], f.bits, true)
			}
		}
	case opLocal:
		at, w := e.idx, words(e.bits)
		return func(k *packetState, dst []uint64) { extend(dst[:n], k.args[at:at+w], false) }
	case opScratch:
		at, w := e.idx, words(e.bits)
		return func(k *packetState, dst []uint64) { extend(dst[:n], k.tmp[at:at+w], false) }
	case opRegister:
		r, w := e.regAt, e.reg.words
		idx := g.index(e.kids[0])
		return func(k *packetState, dst []uint64) {
			cells := k.sw.registers[r]
			i := idx(k)
			if i >= uint64(len(cells)/w) {
				clear(dst[:n])
				return
			}
			extend(dst[:n], cells[int(i)*w:int(i)*w+w], false)
		}
	case opAdd, opSub, opMul, opAnd, opOr, opXor:
		a, b := g.wide(e.kids[0], n), g.wide(e.kids[1], n)
		x, y := g.words(n), g.words(n)
		o := e.op
		return func(k *packetState, dst []uint64) {
			s, t := k.tmp[x:x+n], k.tmp[y:y+n]
			a(k, s)
			b(k, t)
			dst = dst[:n]
			switch o {
			case opAdd:
				wAdd(dst, s, t)
			case opSub:
				wSub(dst, s, t)
			case opMul:
				wMul(dst, s, t)
			case opAnd:
				for i := range dst {
					dst[i] = s[i] & t[i]
				}
			case opOr:
				for i := range dst {
					dst[i] = s[i] | t[i]
				}
			default:
				for i := range dst {
					dst[i] = s[i] ^ t[i]
				}
			}
		}
	case opNeg:
		a := g.wide(e.kids[0], n)
		return func(k *packetState, dst []uint64) {
			a(k, dst)
			for i := range dst[:n] {
				dst[i] = ^dst[i]
			}
		}
	case opShl:
		a, by := g.wide(e.kids[0], n), g.index(e.kids[1])
		return func(k *packetState, dst []uint64) {
			a(k, dst)
			wShl(dst[:n], dst[:n], by(k))
		}
	case opShr:
		l := e.kids[0]
		m := max(n, wordsFor(l))
		a, by, x := g.wide(l, m), g.index(e.kids[1]), g.words(m)
		return func(k *packetState, dst []uint64) {
			s := k.tmp[x : x+m]
			a(k, s)
			wShr(s, s, by(k), signFill(s[m-1]))
			copy(dst[:n], s)
		}
	case opDiv, opMod:
		l, r := e.kids[0], e.kids[1]
		m := max(n, wordsFor(l), wordsFor(r))
		a, b, x, div := g.wide(l, m), g.wide(r, m), g.words(4*m), e.op == opDiv
		return func(k *packetState, dst []uint64) {
			t := k.tmp[x : x+4*m]
			s, d, quo, rest := t[:m], t[m:2*m], t[2*m:3*m], t[3*m:]
			a(k, s)
			b(k, d)
			if int64(s[m-1]) < 0 || int64(d[m-1]) < 0 {
				clear(dst[:n])
				return
			}
			wDivMod(quo, rest, s, d)
			if div {
				copy(dst[:n], quo)
			} else {
				copy(dst[:n], rest)
			}
		}
	case opSignCast:
		a, width := g.wide(e.kids[0], n), e.idx
		return func(k *packetState, dst []uint64) {
			a(k, dst)
			wKeep(dst[:n], width, true)
		}
	case opSatCast, opUsatCast:
		l := e.kids[0]
		m := max(n, wordsFor(l))
		a, x, width, signed := g.wide(l, m), g.words(m), e.idx, e.op == opSatCast
		return func(k *packetState, dst []uint64) {
			s := k.tmp[x : x+m]
			a(k, s)
			wSaturate(s, width, signed)
			copy(dst[:n], s)
		}
	case opIf:
		c, a, b := g.test(e.kids[0]), g.wide(e.kids[1], n), g.wide(e.kids[2], n)
		return func(k *packetState, dst []uint64) {
			if c(k) {
				a(k, dst)
			} else {
				b(k, dst)
			}
		}
	}
	return func(_ *packetState, dst []uint64) { clear(dst[:n]) } // others always fit
}

// test compiles a bool.
func (g *generator) test(e *expr) testFn {
	switch e.op {
	case opTrue:
		return func(*packetState) bool { return true }
	case opEq, opNe, opLt, opLe, opGt, opGe:
		return g.compare(e)
	case opEqBool, opNeBool:
		a, b, want := g.test(e.kids[0]), g.test(e.kids[1]), e.op == opEqBool
		return func(k *packetState) bool { return (a(k) == b(k)) == want }
	case opEqHeader, opNeHeader:
		a, b, want := g.base(e.kids[0]), g.base(e.kids[1]), e.op == opEqHeader
		t := e.kids[0].typ
		if t != e.kids[1].typ {
			return func(*packetState) bool { return !want }
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
		a, x := g.wide(l, n), g.words(n)
		return func(k *packetState) bool {
			t := k.tmp[x : x+n]
			a(k, t)
			return !wZero(t)
		}
	case opIf:
		c, a, b := g.test(e.kids[0]), g.test(e.kids[1]), g.test(e.kids[2])
		return func(k *packetState) bool {
			if c(k) {
				return a(k)
			}
			return b(k)
		}
	}
	return func(*packetState) bool { return false }
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
		return func(k *packetState) bool {
			x, y := int64(a(k)), int64(b(k))
			switch {
			case x < y:
				return outcome(o, -1)
			case x > y:
				return outcome(o, 1)
			}
			return outcome(o, 0)
		}
	}
	n := max(wordsFor(l), wordsFor(r))
	a, b, x, y := g.wide(l, n), g.wide(r, n), g.words(n), g.words(n)
	return func(k *packetState) bool {
		s, t := k.tmp[x:x+n], k.tmp[y:y+n]
		a(k, s)
		b(k, t)
		return outcome(o, wCmpSigned(s, t))
	}
}

// outcome is the truth of a comparison of numbers that compare as c.
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

// base compiles a header to its place; -1: there is none.
func (g *generator) base(e *expr) baseFn {
	switch e.op {
	case opHeader:
		b := e.hdr.base
		return func(*packetState) int { return b }
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
		c, a, b := g.test(e.kids[0]), g.base(e.kids[1]), g.base(e.kids[2])
		return func(k *packetState) int {
			if c(k) {
				return a(k)
			}
			return b(k)
		}
	}
	return func(*packetState) int { return -1 }
}

// holder compiles the header whose field e is.
func (g *generator) holder(e *expr) baseFn {
	if e.op == opMember {
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

// union compiles a header union; nil: there is none.
func (g *generator) union(e *expr) func(k *packetState) *union {
	switch e.op {
	case opUnion:
		u := e.union
		return func(*packetState) *union { return u }
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
		c, a, b := g.test(e.kids[0]), g.union(e.kids[1]), g.union(e.kids[2])
		return func(k *packetState) *union {
			if c(k) {
				return a(k)
			}
			return b(k)
		}
	}
	return func(*packetState) *union { return nil }
}

// validMember is the valid header of a union; nil: none.
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

// sameHeader compares as P4's == does in bmv2: two valid headers with the same
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

// place is where an assignment goes.
type place struct {
	fld  *field
	base baseFn // of its header
	slot int    // base is known; else -1
	reg  int    // register array; -1: none
	cell lowFn
}

// store compiles dst = src. A value is cut to the field's width, or brought
// into its range when the field saturates.
func (g *generator) store(dst place, src *expr) func(k *packetState) {
	if dst.reg >= 0 {
		return g.storeRegister(dst, src)
	}
	f := dst.fld
	if f.saturate {
		o := opUsatCast
		if f.signed {
			o = opSatCast
		}
		src = cast(o, src, f.bits)
	}
	if f.bits > 64 {
		return g.storeWide(dst, src)
	}
	m, at := mask64(f.bits), dst.slot
	if at >= 0 {
		if c, ok := src.constant(); ok {
			c &= m
			return func(k *packetState) { k.v[at] = c }
		}
		if src.op == opField && !src.fld.signed && src.bits <= f.bits {
			from := src.hdr.base + src.fld.off
			return func(k *packetState) { k.v[at] = k.v[from] }
		}
		a := g.low(src)
		return func(k *packetState) { k.v[at] = a(k) & m }
	}
	a, base, off := g.low(src), dst.base, f.off
	return func(k *packetState) {
		if b := base(k); b >= 0 {
			k.v[b+off] = a(k) & m
		}
	}
}

func (g *generator) storeWide(dst place, src *expr) func(k *packetState) {
	f := dst.fld
	n := words(f.bits)
	a, x, at, base := g.wide(src, n), g.words(n), dst.slot, dst.base
	return func(k *packetState) {
		to := at
		if to < 0 {
			b := base(k)
			if b < 0 {
				return
			}
			to = b + f.off
		}
		t := k.tmp[x : x+n]
		a(k, t)
		wKeep(t, f.bits, false)
		copy(k.v[to:to+n], t)
	}
}

func (g *generator) storeRegister(dst place, src *expr) func(k *packetState) {
	r, n, bits := dst.reg, words(dst.fld.bits), dst.fld.bits
	if n == 1 {
		a, cell, m := g.low(src), dst.cell, mask64(bits)
		return func(k *packetState) {
			cells, i := k.sw.registers[r], cell(k)
			if i < uint64(len(cells)) {
				cells[i] = a(k) & m
			}
		}
	}
	a, x, cell := g.wide(src, n), g.words(n), dst.cell
	return func(k *packetState) {
		cells := k.sw.registers[r]
		i := cell(k)
		if i >= uint64(len(cells)/n) {
			return
		}
		t := k.tmp[x : x+n]
		a(k, t)
		wKeep(t, bits, false)
		copy(cells[int(i)*n:], t)
	}
}
