package p4

// op is the operation of an expression.
type op uint8

const (
	opConst    op = iota
	opField       // of a header that is known
	opMember      // field of the header that kid 0 yields
	opLast        // field of the last header of a stack
	opLocal       // parameter of the action
	opScratch     // scratch words
	opRegister    // cell kid 0 of a register array
	opAdd
	opSub
	opMul
	opDiv
	opMod
	opShl
	opShr
	opAnd
	opOr
	opXor
	opNeg // bitwise
	opSignCast
	opSatCast
	opUsatCast
	opIf // kid 0 ? kid 1 : kid 2
	opToData
	opLastIndex
	opCount

	opTrue
	opFalse
	opEq
	opNe
	opLt
	opLe
	opGt
	opGe
	opEqBool
	opNeBool
	opEqHeader
	opNeHeader
	opEqUnion
	opNeUnion
	opAndAlso
	opOrElse
	opNot
	opValid
	opValidUnion
	opToBool

	opHeader
	opStack
	opUnion
	opUnionStack
	opElem      // kid 0 (stack) [kid 1]: header
	opUnionElem // kid 0 (union stack) [kid 1]: union
	opUnionHeader
)

// sort is the type of an expression's value.
type sort uint8

const (
	sortData sort = iota
	sortBool
	sortHeader
	sortStack
	sortUnion
	sortUnionStack
)

// expr is an expression. The value v of an expression of sortData is known to be in 0 <= v < 2^bits, or in
// -2^bits <= v < 2^bits if neg is set.
type expr struct {
	op   op
	sort sort
	neg  bool
	bits int
	kids [3]*expr

	c     []uint64 // constant, two's complement, wordsFor(e) words
	hdr   *header
	typ   *headerType // of a sortHeader
	fld   *field
	stack *stack
	union *union
	ustk  *unionStack
	reg   *registerDef
	idx   int // local: word; casts: width; union header: member
}

// maxRange is the highest number of bits that are kept of values that could grow without need, by shifts to the
// left or by products.
const maxRange = 2 * maxBits

// wordsFor returns the number of two's complement words that hold every value of e.
func wordsFor(e *expr) int { return (e.bits + 64) / 64 }

// fits reports whether one word holds every value of e: as an unsigned number, or as a signed one if e.neg is
// set.
func fits(e *expr) bool { return e.bits <= 63 || !e.neg && e.bits == 64 }

func (e *expr) constant() (uint64, bool) {
	if e.op == opConst && fits(e) {
		return e.c[0], true
	}
	return 0, false
}

func constExpr(v uint64) *expr {
	e := &expr{op: opConst, c: []uint64{v, 0}}
	for e.bits = 0; e.bits < 64 && v>>uint(e.bits) != 0; e.bits++ {
	}
	e.c = e.c[:wordsFor(e)]
	return e
}

func fieldExpr(h *header, f *field) *expr {
	e := &expr{op: opField, hdr: h, fld: f, bits: f.bits}
	e.signedAs(f)
	return e
}

// memberExpr returns the expression for field f of the header that h yields.
func memberExpr(h *expr, f *field) *expr {
	if h.op == opHeader {
		return fieldExpr(h.hdr, f)
	}
	e := &expr{op: opMember, fld: f, kids: [3]*expr{h}}
	e.signedAs(f)
	return e
}

func (e *expr) signedAs(f *field) {
	e.bits = f.bits
	if f.signed {
		e.neg, e.bits = true, f.bits-1
	}
}

// width returns the number of bits of the field or other place that e stands for.
func (e *expr) width() int {
	if e.fld != nil { // bits do not count a sign
		return e.fld.bits
	}
	return e.bits
}

// arith makes an arithmetic expression, and computes the bounds of its value.
func arith(o op, l, r *expr) *expr {
	e := &expr{op: o, kids: [3]*expr{l, r}}
	big := max(l.bits, r.bits)
	switch o {
	case opAdd:
		e.neg, e.bits = l.neg || r.neg, big+1
	case opSub:
		e.neg, e.bits = true, big+1
	case opMul:
		e.neg, e.bits = l.neg || r.neg, l.bits+r.bits+1
		if !e.neg {
			e.bits--
		}
	case opDiv:
		e.bits = l.bits
	case opMod:
		e.bits = min(l.bits, r.bits)
	case opAnd:
		switch {
		case l.neg && r.neg:
			e.neg, e.bits = true, big
		case l.neg:
			e.bits = r.bits
		case r.neg:
			e.bits = l.bits
		default:
			e.bits = min(l.bits, r.bits)
		}
	case opOr, opXor:
		e.neg, e.bits = l.neg || r.neg, big
	case opShl:
		by := 4096
		if n, ok := r.constant(); ok && !r.neg {
			by = int(min(n, maxRange))
		} else if r.bits < 12 {
			by = 1<<uint(r.bits) - 1
		}
		e.neg, e.bits = l.neg, l.bits+by
	case opShr:
		e.neg, e.bits = l.neg, l.bits
		if n, ok := r.constant(); ok && !r.neg {
			e.bits = max(0, l.bits-int(min(n, maxRange)))
		}
	}
	e.bits = min(e.bits, maxRange)
	return e
}

// cast makes an expression that brings l to width bits.
func cast(o op, l *expr, width int) *expr {
	e := &expr{op: o, kids: [3]*expr{l}, idx: width, bits: width}
	if o != opUsatCast {
		e.neg, e.bits = true, width-1
	}
	return e
}
