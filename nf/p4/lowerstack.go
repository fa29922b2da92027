package p4

import "github.com/quillon/quillon/nf/p4/internal/ir"

// Bounds of a tree that chooses among the elements of a stack. Each element costs a comparison with the index, which may be such a choice
// itself: maxChoice is the highest number of nodes of all these indices.
const (
	maxElements = 32
	maxChoice   = 1024
)

// stackOf returns a stack as a follower sees it. Its counter is a field of metadata that has no name in the program.
func (l *lowerer) stackOf(s *stack) *ir.HeaderStack {
	if x, ok := l.stacks[s]; ok {
		return x
	}
	h := &ir.Header{Name: s.name + ".next", Index: len(l.prog.Headers), Meta: true, Bits: 32, Type: -1}
	x := &ir.HeaderStack{Name: s.name, Next: &ir.Field{Name: "count", Header: h, Bits: 32}}
	h.Fields = []*ir.Field{x.Next}
	l.prog.Headers = append(l.prog.Headers, h)
	for _, e := range s.elems {
		x.Elems = append(x.Elems, l.headers[e])
	}
	l.stacks[s] = x
	return x
}

// each returns a field of each element of a stack; nil stands for the validity.
func (l *lowerer) each(s *stack, f *field) (all []*ir.Field) {
	for _, e := range s.elems {
		all = append(all, l.fields[e][f])
	}
	return all
}

// chosen returns the tree of an index of a stack, or false if the choice among the elements would be too large.
func (l *lowerer) chosen(s *stack, index *expr) (*ir.Expr, bool) {
	x, left := l.tree(index), maxChoice/len(s.elems)
	var count func(e *ir.Expr) bool
	count = func(e *ir.Expr) bool {
		left--
		return e == nil || left >= 0 && count(e.Kids[0]) && count(e.Kids[1]) && count(e.Kids[2])
	}
	return x, count(x)
}

func (s *stack) small() bool { return len(s.elems) <= maxElements }

// stackTree returns an expression that looks into a header stack as a choice among the elements, or nil if e is none. A
// value that no element has is 0.
func (l *lowerer) stackTree(e *expr) *ir.Expr {
	kid := e.kids[0]
	switch {
	case e.op == opMember && kid.op == opElem && kid.kids[0].stack != nil && kid.kids[0].stack.small():
		s := kid.kids[0].stack
		index, fits := l.chosen(s, kid.kids[1])
		if !fits {
			return &ir.Expr{Op: ir.Member, Neg: e.neg, Bits: e.bits}
		}
		return l.choices(e, s, index, 0, l.each(s, e.fld))
	case e.op == opValid && kid.op == opElem && kid.kids[0].stack != nil && kid.kids[0].stack.small():
		s := kid.kids[0].stack
		index, fits := l.chosen(s, kid.kids[1])
		if !fits {
			return &ir.Expr{Op: ir.Valid, Sort: ir.Bool, Kids: [3]*ir.Expr{{Op: ir.Elem, Sort: ir.OfHeader}}}
		}
		x := &ir.Expr{Op: ir.False, Sort: ir.Bool}
		for i := len(s.elems) - 1; i >= 0; i-- {
			valid := &ir.Expr{Op: ir.Valid, Sort: ir.Bool, Kids: [3]*ir.Expr{{Op: ir.HeaderOf, Sort: ir.OfHeader, Header: l.headers[s.elems[i]]}}}
			x = &ir.Expr{Op: ir.If, Sort: ir.Bool, Kids: [3]*ir.Expr{equals(index, i), valid, x}}
		}
		return x
	case e.op == opLast && e.stack.small():
		return l.choices(e, e.stack, l.countOf(e.stack), 1, l.each(e.stack, e.fld))
	case e.op == opCount && kid.stack != nil:
		return l.countOf(kid.stack)
	case e.op == opLastIndex && kid.stack != nil:
		return &ir.Expr{Op: ir.Sub, Neg: true, Bits: e.bits, Kids: [3]*ir.Expr{l.countOf(kid.stack), constTree(1)}}
	}
	return nil
}

// choices returns a field of the element at index - first.
func (l *lowerer) choices(e *expr, s *stack, index *ir.Expr, first int, fields []*ir.Field) *ir.Expr {
	x := constTree(0)
	for i := len(fields) - 1; i >= 0; i-- {
		f := &ir.Expr{Op: ir.FieldOf, Neg: e.neg, Bits: e.bits, Header: l.headers[s.elems[i]], Field: fields[i]}
		x = &ir.Expr{Op: ir.If, Neg: e.neg, Bits: e.bits, Kids: [3]*ir.Expr{equals(index, i+first), f, x}}
	}
	return x
}

func (l *lowerer) countOf(s *stack) *ir.Expr {
	f := l.stackOf(s).Next
	return &ir.Expr{Op: ir.FieldOf, Bits: f.Bits, Header: f.Header, Field: f}
}

func constTree(v uint64) *ir.Expr { return &ir.Expr{Op: ir.Const, Bits: 32, Const: []uint64{v}} }

func equals(index *ir.Expr, i int) *ir.Expr {
	return &ir.Expr{Op: ir.Eq, Sort: ir.Bool, Kids: [3]*ir.Expr{index, constTree(uint64(i))}}
}

// lastPart lowers a part of a transition key that is a field of a stack's last header. It returns false for all others.
func (l *lowerer) lastPart(to *ir.KeyPart, v *jsonValue) bool {
	if v.typ != "stack_field" {
		return false
	}
	e := l.expression(v, sortData)
	if e.op != opLast || e.fld == validity {
		return false
	}
	to.Last, to.Each = l.stackOf(e.stack), l.each(e.stack, e.fld)
	return true
}
