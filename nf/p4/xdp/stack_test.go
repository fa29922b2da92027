package xdp

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/p4"
)

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

// extracting is a program that extracts header h and as many headers of a stack of size headers as ops says. It writes the parser's error, and a
// number, to h, and sends the frame to port 2.
func extracting(t testing.TB, size, ops int, number any) []byte {
	field := func(h, name string) obj { return obj{"type": "field", "value": arr{h, name}} }
	parse := arr{prim("extract", obj{"type": "regular", "value": "h"})}
	for range ops {
		parse = append(parse, prim("extract", obj{"type": "stack", "value": "s"}))
	}
	headers := arr{obj{"name": "standard_metadata", "id": 1, "header_type": "std_t", "metadata": true}, obj{"name": "h", "id": 2, "header_type": "h_t", "metadata": false}}
	var ids, order arr
	for i := range size {
		name := fmt.Sprintf("s[%d]", i)
		headers = append(headers, obj{"name": name, "id": 3 + i, "header_type": "s_t", "metadata": false})
		ids, order = append(ids, 3+i), append(order, name)
	}
	root := obj{"__meta__": obj{"version": arr{2, 23}},
		"header_types": arr{obj{"name": "std_t", "id": 1, "fields": stdFields},
			obj{"name": "h_t", "id": 2, "fields": arr{arr{"error", 32, false}, arr{"v", 32, false}}},
			obj{"name": "s_t", "id": 3, "fields": arr{arr{"more", 8, false}, arr{"v", 8, false}}}},
		"headers":       headers,
		"header_stacks": arr{obj{"name": "s", "id": 0, "header_type": "s_t", "header_ids": ids}},
		"errors":        arr{arr{"NoError", 0}, arr{"PacketTooShort", 1}, arr{"NoMatch", 2}, arr{"StackOutOfBounds", 4}},
		"actions": arr{obj{"name": "tell", "id": 1, "runtime_data": arr{}, "primitives": arr{
			prim("assign", field("h", "error"), field("standard_metadata", "parser_error")),
			prim("assign", field("h", "v"), number),
			prim("assign", field("standard_metadata", "egress_spec"), hexs(2))}}},
	}
	return oneAction(t, root, "tell", parse, append(arr{"h"}, order...))
}

// TestStackFull: a parser that extracts more headers than a stack has ends with StackOutOfBounds, in the kernel as in the engine.
func TestStackFull(t *testing.T) {
	for ops, want := range []byte{0, 0, 4} {
		w := newTwin(t, extracting(t, 1, ops, hexs(0)))
		f := make([]byte, 64)
		w.frame(1, f)
		if _, _, out, _ := w.inKernel(1, f); out[3] != want {
			t.Errorf("%d headers: error %d, want %d", ops, out[3], want)
		}
		w.kernel++
		w.counts()
		if w.kernel != 2 {
			t.Errorf("the engine had the frame: %v", w.engine)
		}
	}
}

// TestStackNested: an expression whose index is an element of a stack, whose index is one of a stack again, is translated in bounded time.
func TestStackNested(t *testing.T) {
	var number any = hexs(0)
	for depth := range 12 {
		number = expr("access_field", expr("dereference_header_stack", theStack, number), 1)
		_, tree, err := p4.LoadTree(extracting(t, 32, 1, number))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		r := Analyse(tree, p4.Config{})
		if took := time.Since(begin); took > 5*time.Second {
			t.Fatalf("%d indices: it takes %v, and has %d instructions", depth+1, took, r.Instructions)
		}
		if r.Kernel != (depth < 2) {
			t.Errorf("%d indices: in the kernel %v, %s", depth+1, r.Kernel, r.Why)
		}
	}
}
