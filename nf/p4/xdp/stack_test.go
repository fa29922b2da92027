package xdp

import "fmt"

// stackMost is how many headers the stack of a random program has at most.
const stackMost = 4

// addStack gives a program a stack "s" of small headers, of which the lowest bit of the first field ends a loop of the parser.
func (a *author) addStack() {
	if a.IntN(2) == 0 {
		return
	}
	w := pick(a, []int{2, 8, 13, 40})
	fields := arr{arr{"more", w, false}, arr{"v", pick(a, []int{8, 30, 64, 80}), false}}
	bits := w + fields[1].(arr)[1].(int)
	if pad := -bits & 7; pad > 0 {
		fields = append(fields, arr{"pad", pad, false})
	}
	a.types = append(a.types, obj{"name": "s_t", "id": a.id(), "fields": fields})
	a.stackSize = 1 + a.IntN(stackMost)
	var ids arr
	for i := range a.stackSize {
		name := fmt.Sprintf("s[%d]", i)
		id := a.id()
		ids = append(ids, id)
		a.headers = append(a.headers, obj{"name": name, "id": id, "header_type": "s_t", "metadata": false})
		a.elements = append(a.elements, name)
		for _, f := range fields {
			a.field(name, f.(arr)[0].(string), f.(arr)[1].(int))
		}
	}
	a.stacks = arr{obj{"name": "s", "id": 0, "header_type": "s_t", "header_ids": ids}}
}

var theStack = obj{"type": "header_stack", "value": "s"}

// elementAt is the element that a frame chooses.
func (a *author) elementAt() obj {
	index := a.one(hexs(uint64(a.IntN(5))), expr("last_stack_index", nil, theStack), expr("-", expr("size_stack", nil, theStack), hexs(1)),
		expr("&", fieldOf(pick(a, a.byHeader["meta"])), hexs(3)), expr("-", fieldOf(pick(a, a.byHeader["h0"])), hexs(1)))
	return expr("dereference_header_stack", theStack, index)
}

func (a *author) elementField() obj {
	return expr("access_field", a.elementAt(), a.IntN(2))
}

// ofStack is a number that a stack has.
func (a *author) ofStack() any {
	switch a.IntN(5) {
	case 0:
		return expr("last_stack_index", nil, theStack)
	case 1:
		return expr("size_stack", nil, theStack)
	case 2:
		return obj{"type": "stack_field", "value": arr{"s", a.one("v", "more")}}
	case 3:
		return expr("b2d", nil, expr("valid", nil, a.elementAt()))
	}
	return a.elementField()
}

// changesStack is a primitive that changes a stack.
func (a *author) changesStack() obj {
	switch a.IntN(5) {
	case 0:
		return prim("assign", a.elementField(), a.number(2))
	case 1:
		return prim("add_header", obj{"type": "header", "value": pick(a, a.elements)})
	}
	return prim(pick(a, []string{"push", "push", "pop"}), theStack, hexs(uint64(a.IntN(4))))
}

// stackState is a state that extracts the next header of the stack, again and again.
func (a *author) stackState(name string, next any) obj {
	ops := arr{prim("extract", obj{"type": "stack", "value": "s"})}
	if a.IntN(3) == 0 {
		ops = append(ops, prim("set", fieldOf(pick(a, a.byHeader["meta"])), a.ofStack()))
	}
	if a.IntN(6) == 0 {
		ops = append(ops, prim("extract", obj{"type": "stack", "value": "s"}))
	}
	w := a.byHeader["s[0]"][0].bits
	c := obj{"type": "hexstr", "value": "0x01", "mask": "0x01", "next_state": next}
	if w > 8 || a.IntN(2) == 0 {
		c["value"], c["mask"] = "0x00", "0x03"
	}
	return obj{"name": name, "id": 9, "parser_ops": ops, "transition_key": arr{obj{"type": "stack_field", "value": arr{"s", "more"}}},
		"transitions": arr{c, obj{"type": "default", "value": nil, "mask": nil, "next_state": name}}}
}
