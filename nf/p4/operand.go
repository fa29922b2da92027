package p4

// Expressions of the JSON: operands, which have a type and a value, and operations,
// which have an op and operands.

var sortNames = [...]string{"number", "bool", "header", "header stack", "header union", "header union stack"}

// maxDepth is how deep expressions may be nested.
const maxDepth = 1000

// expression reads an expression of sort want.
func (l *compiler) expression(v *jsonValue, want sort) *expr {
	return l.sorted(l.expr(v), want, v)
}

// sorted returns e, which was read from v; loading fails if e is not of sort want.
func (l *compiler) sorted(e *expr, want sort, v *jsonValue) *expr {
	if e.sort != want {
		l.fail("a %s where a %s belongs: %s", sortNames[e.sort], sortNames[want], short(v))
	}
	return e
}

// data reads a number. A bool becomes 1 or 0.
func (l *compiler) data(v *jsonValue) *expr {
	e := l.expr(v)
	if e.sort == sortBool {
		return &expr{op: opToData, bits: 1, kids: [3]*expr{e}}
	}
	return l.sorted(e, sortData, v)
}

// expr reads an expression.
func (l *compiler) expr(v *jsonValue) *expr {
	if l.depth++; l.depth > maxDepth {
		l.fail("an expression is nested deeper than %d", maxDepth)
	}
	defer func() { l.depth-- }()
	in := v.inner()
	switch v.typ {
	case "expression":
		if in.op == "" { // an expression in an expression
			return l.expr(in)
		}
		return l.operation(in)
	case "field":
		if l.self != nil {
			return fieldExpr(l.self, l.member(l.self.typ, in.at(1).text, "header", l.self.name))
		}
		if at := in.at(0); at.op != "" { // of an element of a stack, as p4c writes its validity
			h := l.sorted(l.operation(at), sortHeader, v)
			return memberExpr(h, l.member(h.typ, in.at(1).text, "header type", h.typ.name))
		}
		return fieldExpr(l.fieldOf(in))
	case "hexstr":
		return constBig(l.hex(in.text))
	case "bool":
		if in.truth {
			return &expr{op: opTrue, sort: sortBool}
		}
		return &expr{op: opFalse, sort: sortBool}
	case "local", "runtime_data":
		if len(l.params) == 0 {
			l.fail("an action's parameter where there is none")
		}
		p := l.params[l.integer(in, "index of a parameter", 0, len(l.params)-1)]
		return &expr{op: opLocal, idx: p.at, bits: p.bits}
	case "register":
		return l.cellExpr(in.at(0).text, l.expression(in.at(1), sortData))
	case "header":
		return headerExpr(find(l.document, l.names, "header", in.text))
	case "header_stack":
		return stackExpr(find(l.document, l.stacks, "header stack", in.text))
	case "stack_field":
		return l.lastOf(find(l.document, l.stacks, "header stack", in.at(0).text), in.at(1).text)
	case "header_union":
		return &expr{op: opUnion, sort: sortUnion, union: find(l.document, l.unions, "header union", in.text)}
	case "header_union_stack":
		return &expr{op: opUnionStack, sort: sortUnionStack, ustk: find(l.document, l.ustks, "header union stack", in.text)}
	}
	l.fail("unknown expression: %s", short(v))
	return nil
}

func (l *compiler) cellExpr(register string, index *expr) *expr {
	i := find(l.document, l.regs, "register", register)
	r := l.p.registers[i]
	return &expr{op: opRegister, reg: r, bits: r.Bits, kids: [3]*expr{index}}
}

func headerExpr(h *header) *expr { return &expr{op: opHeader, sort: sortHeader, hdr: h, typ: h.typ} }

func stackExpr(s *stack) *expr { return &expr{op: opStack, sort: sortStack, stack: s, typ: s.typ} }

// lastOf returns a field of the last header of a stack, or that header.
func (l *compiler) lastOf(s *stack, name string) *expr {
	if name == "last" && s.typ.index[name] == nil {
		st := stackExpr(s)
		return &expr{op: opElem, sort: sortHeader, typ: s.typ, kids: [3]*expr{st, lastIndex(st)}}
	}
	f := l.member(s.typ, name, "header type", s.typ.name)
	e := &expr{op: opLast, stack: s, fld: f}
	e.signedAs(f)
	return e
}

func lastIndex(s *expr) *expr { return &expr{op: opLastIndex, neg: true, bits: 20, kids: [3]*expr{s}} }

var (
	dataOps = map[string]op{"+": opAdd, "-": opSub, "*": opMul, "/": opDiv, "%": opMod, "<<": opShl, ">>": opShr,
		"&": opAnd, "|": opOr, "^": opXor}
	castOps = map[string]op{"two_comp_mod": opSignCast, "sat_cast": opSatCast, "usat_cast": opUsatCast}
	// boolOps are operations that yield a bool, with the sort of their operands. If they have one operand, it
	// is the right one.
	boolOps = map[string]struct {
		op   op
		of   sort
		kids int
	}{"<": {opLt, sortData, 2}, "<=": {opLe, sortData, 2}, ">": {opGt, sortData, 2}, ">=": {opGe, sortData, 2},
		"and": {opAndAlso, sortBool, 2}, "or": {opOrElse, sortBool, 2}, "not": {opNot, sortBool, 1}, "d2b": {opToBool, sortData, 1},
		"valid": {opValid, sortHeader, 1}, "valid_union": {opValidUnion, sortUnion, 1}}
	// equalOps are the operations == and != for each sort of operands.
	equalOps = map[sort][2]op{sortData: {opEq, opNe}, sortBool: {opEqBool, opNeBool}, sortHeader: {opEqHeader, opNeHeader},
		sortUnion: {opEqUnion, opNeUnion}}
)

// maxDivision is the highest number of bits of the operands of a division.
const maxDivision = 4096

// operation reads an operation: {op, left, right, cond}.
func (l *compiler) operation(v *jsonValue) *expr {
	if o, ok := dataOps[v.op]; ok {
		a := constExpr(0)
		if v.left.json != nil || v.op != "+" && v.op != "-" {
			a = l.expression(v.left, sortData)
		}
		b := l.expression(v.right, sortData)
		if (o == opDiv || o == opMod) && max(a.bits, b.bits) > maxDivision {
			l.fail("a division of numbers of more than %d bits", maxDivision)
		}
		return arith(o, a, b)
	}
	if o, ok := boolOps[v.op]; ok {
		e := &expr{op: o.op, sort: sortBool}
		for i, x := range []*jsonValue{v.left, v.right}[2-o.kids:] {
			e.kids[i] = l.expression(x, o.of)
		}
		return e
	}
	if o, ok := castOps[v.op]; ok {
		a := l.expression(v.left, sortData)
		width, ok := l.expression(v.right, sortData).constant()
		if !ok || width < 1 || width > maxBits {
			l.fail("%s to a width that is no constant from 1 to %d", v.op, maxBits)
		}
		return cast(o, a, int(width))
	}
	switch v.op {
	case "==", "!=":
		a := l.expr(v.left)
		both, ok := equalOps[a.sort]
		if !ok {
			l.fail("a %s cannot be compared", sortNames[a.sort])
		}
		e := &expr{op: both[0], sort: sortBool, kids: [3]*expr{a, l.expression(v.right, a.sort)}}
		if v.op == "!=" {
			e.op = both[1]
		}
		return e
	case "~":
		a := l.expression(v.right, sortData)
		return &expr{op: opNeg, neg: true, bits: a.bits, kids: [3]*expr{a}}
	case "b2d":
		return &expr{op: opToData, bits: 1, kids: [3]*expr{l.expression(v.right, sortBool)}}
	case "?":
		c, a := l.expression(v.cond, sortBool), l.expr(v.left)
		return l.choice(c, a, l.expression(v.right, a.sort))
	}
	return l.part(v)
}

// choice returns the choice between two values. Two headers must have the same type, so that their fields are
// at the same offsets.
func (l *compiler) choice(cond, a, b *expr) *expr {
	if a.sort == sortStack || a.sort == sortUnionStack || a.typ != b.typ {
		l.fail("a choice of a %s where both must be of one type", sortNames[a.sort])
	}
	return &expr{op: opIf, sort: a.sort, kids: [3]*expr{cond, a, b}, neg: a.neg || b.neg, bits: max(a.bits, b.bits), typ: a.typ}
}

// part reads an operation that yields a part of a stack, a union or a header.
func (l *compiler) part(v *jsonValue) *expr {
	switch v.op {
	case "dereference_stack", "dereference_header_stack":
		s, at := l.expression(v.left, sortStack), l.expression(v.right, sortData)
		if i, ok := at.constant(); ok && i < uint64(len(s.stack.elems)) {
			return headerExpr(s.stack.elems[i])
		}
		return &expr{op: opElem, sort: sortHeader, typ: s.typ, kids: [3]*expr{s, at}}
	case "dereference_union_stack":
		s := l.expression(v.left, sortUnionStack)
		return &expr{op: opUnionElem, sort: sortUnion, ustk: s.ustk, kids: [3]*expr{s, l.expression(v.right, sortData)}}
	case "last_stack_index", "size_stack":
		s := l.expr(v.right)
		if s.sort != sortStack && s.sort != sortUnionStack {
			l.fail("%s of a %s", v.op, sortNames[s.sort])
		}
		if v.op == "size_stack" {
			return &expr{op: opCount, bits: 20, kids: [3]*expr{s}}
		}
		return lastIndex(s)
	case "access_field":
		h := l.expression(v.left, sortHeader)
		i := l.integer(v.right, "place of a field", 0, len(h.typ.fields))
		if i == len(h.typ.fields) {
			return memberExpr(h, validity)
		}
		return memberExpr(h, h.typ.fields[i])
	case "access_union_header":
		u := l.expression(v.left, sortUnion)
		one := u.union
		if u.op == opUnionElem {
			one = u.ustk.elems[0]
		}
		if one == nil || len(one.members) == 0 {
			l.fail("a header of a union that is not known")
		}
		i := l.integer(v.right, "place of a header", 0, len(one.members)-1)
		if u.op == opUnion {
			return headerExpr(one.members[i])
		}
		return &expr{op: opUnionHeader, sort: sortHeader, idx: i, typ: one.members[i].typ, kids: [3]*expr{u}}
	}
	l.fail("unknown operation %q", v.op)
	return nil
}
