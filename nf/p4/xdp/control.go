package xdp

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// pipes writes pipelines: nodes, tables, actions.
type pipes struct{ operator }

// place is a node in a pipeline.
type place struct {
	in   string
	node int
}

func (p place) label() string { return fmt.Sprintf("%s-%d", p.in, p.node) }

// end is the label behind a pipeline.
func end(in string) string { return in + "-end" }

// pipeline writes the nodes of a pipeline that are reached. Behind it is the label of its end.
func (g *pipes) pipeline(in string, first int) {
	g.in = in
	g.toNode(first)
	for _, n := range g.order(first) {
		if at := (place{in, n}); g.entered[at] {
			g.label(at.label())
			g.node(&g.p.Nodes[n])
		}
	}
	g.label(end(in))
}

// order is that of the nodes behind one, each behind all from which frames come to it.
func (g *pipes) order(first int) (nodes []int) {
	seen := map[int]bool{-1: true}
	var visit func(n int)
	visit = func(n int) {
		if n < 0 || seen[n] {
			return
		}
		seen[n] = true
		for _, next := range g.successors(&g.p.Nodes[n]) {
			visit(next)
		}
		nodes = append(nodes, n)
	}
	visit(first)
	slices.Reverse(nodes)
	return nodes
}

func (g *pipes) successors(n *ir.Node) []int {
	switch n.Kind {
	case ir.TestNode:
		return []int{n.Yes, n.No}
	case ir.ActionNode:
		return []int{n.Yes}
	}
	t := &g.p.Tables[n.Table]
	if t.Branches {
		return []int{t.Hit, t.Miss}
	}
	next := []int{t.BaseMiss}
	for _, a := range t.Actions {
		next = append(next, t.Next[a])
	}
	if t.Initial >= 0 {
		next = append(next, t.Next[t.Initial])
	}
	return next
}

// toNode goes on with a node; -1: the pipeline ends.
func (g *pipes) toNode(i int) { g.jump(g.nodeLabel(i)) }

func (g *pipes) nodeLabel(i int) string {
	if i < 0 {
		return end(g.in)
	}
	at := place{g.in, i}
	g.entered[at] = true
	return at.label()
}

func (g *pipes) node(n *ir.Node) {
	switch n.Kind {
	case ir.TestNode:
		defer g.about("condition", n.Name)()
		g.part(func() {
			g.branch(n.Test, false, g.nodeLabel(n.No), 0)
			g.toNode(n.Yes)
		})
	case ir.ActionNode:
		g.action(n.Action, argument{data: n.Data}, n.Yes)
	default:
		t := &g.p.Tables[n.Table]
		defer g.about("table", t.Name)()
		g.part(func() { g.table(n.Table, t) })
	}
}

// action writes an action, and goes on at node next.
func (g *pipes) action(i int, args argument, next int) {
	a := &g.p.Actions[i]
	was := g.args
	g.args = args
	defer g.about("action", a.Name)()
	targets := make([]string, len(a.Code)+1)
	for _, op := range a.Code {
		if to, ok := jumpTarget(&op); ok && to <= len(a.Code) && targets[to] == "" {
			targets[to] = g.fresh()
		}
	}
	if slices.ContainsFunc(a.Code, func(op ir.Call) bool { return usesRegisters(&op) }) {
		g.takeRegisters()
	}
	live := true // frames come here
	for n := range a.Code {
		if targets[n] != "" {
			g.label(targets[n])
			live = true
		}
		if live {
			live = g.part(func() { g.step(a, n, targets) })
		}
	}
	if targets[len(a.Code)] != "" {
		g.label(targets[len(a.Code)])
		live = true
	}
	g.args = was
	if live {
		g.toNode(next)
	}
}

// jumpTarget is the primitive that a jump goes to.
func jumpTarget(op *ir.Call) (int, bool) {
	if op.Name != "_jump" && op.Name != "_jump_if_zero" {
		return 0, false
	}
	v, ok := op.Args[len(op.Args)-1].Expr.Word()
	return int(v), ok
}

// step writes a primitive of an action.
func (g *pipes) step(a *ir.Action, n int, targets []string) {
	op := &a.Code[n]
	if to, ok := jumpTarget(op); ok {
		if to <= n {
			unsupported("it goes round in a loop")
		}
		if op.Name == "_jump" {
			g.jump(targets[to])
		} else {
			g.branch(op.Args[0].Expr, false, targets[to], 0)
		}
		return
	}
	if !g.primitive(op, a) {
		return
	}
	// The engine does what is behind an exit in its action.
	last := n == len(a.Code)-1
	if !last {
		to, ok := jumpTarget(&a.Code[n+1])
		last = ok && a.Code[n+1].Name == "_jump" && to == len(a.Code)
	}
	if !last {
		unsupported("it does more behind an exit")
	}
	g.jump(end(g.in))
}

// operator writes primitives.
type operator struct{ computer }

// engineOnly says of primitives why only the engine has them.
var engineOnly = map[string]string{
	"generate_digest":             "it sends a digest to the controller",
	"resubmit":                    "it resubmits the frame",
	"recirculate":                 "it recirculates the frame",
	"clone_ingress_pkt_to_egress": "it clones the frame",
	"clone_egress_pkt_to_egress":  "it clones the frame",
	"modify_field_rng_uniform":    "it draws a random number",
	"truncate":                    "it truncates the frame",
}

var arithmetic = map[string]ir.Op{"add": ir.Add, "subtract": ir.Sub, "bit_xor": ir.Xor, "bit_or": ir.Or, "bit_and": ir.And, "shift_left": ir.Shl,
	"shift_right": ir.Shr, "add_to_field": ir.Add, "subtract_from_field": ir.Sub}

// primitive writes a primitive. It reports whether the pipeline ends there.
func (g *operator) primitive(op *ir.Call, _ *ir.Action) (exits bool) {
	if o, ok := arithmetic[op.Name]; ok {
		n := len(op.Args)
		g.assign(op.Args[0].Expr, combined(o, op.Args[n-2].Expr, op.Args[n-1].Expr))
		return false
	}
	switch op.Name {
	case "assign", "modify_field":
		g.assign(op.Args[0].Expr, op.Args[1].Expr)
	case "add_header", "add_header_fast":
		g.addHeader(named(op.Args[0].Expr), op.Name == "add_header_fast")
	case "remove_header":
		g.removeHeader(named(op.Args[0].Expr))
	case "assign_header", "copy_header":
		g.assignHeader(known(op.Args[0].Expr), known(op.Args[1].Expr))
	case "mark_to_drop", "drop":
		spec, group := g.p.Std.EgressSpec, g.p.Std.Group
		if op.Name == "mark_to_drop" {
			h := known(op.Args[0].Expr)
			spec, group = member(h, "egress_spec"), member(h, "mcast_grp")
		}
		g.storeStd(spec, uint64(g.opt.DropPort))
		g.storeStd(group, 0)
		g.next.written[spec] = true
	case "push", "pop":
		g.shiftStack(op)
	case "count":
		g.count(op)
	case "modify_field_with_hash_based_offset":
		g.hash(op)
	case "register_read":
		g.readRegister(op)
	case "register_write":
		g.writeRegister(op)
	case "execute_meter":
		g.meter(op)
	case "assert", "assume":
		ok := g.fresh()
		g.branch(op.Args[0].Expr, true, ok, 0)
		g.pass("it asserts what does not hold")
		g.label(ok)
	case "no_op", "log_msg":
	case "exit":
		return true
	default:
		if why := engineOnly[op.Name]; why != "" {
			unsupported("%s", why)
		}
		unsupported("primitive %s is not translated", op.Name)
	}
	return false
}

// combined is an arithmetic expression with bounds that are wide enough: what is assigned is cut to its place.
func combined(o ir.Op, a, b *ir.Expr) *ir.Expr {
	e := &ir.Expr{Op: o, Kids: [3]*ir.Expr{a, b}, Bits: 65, Neg: true}
	return e
}

// named is the header that an expression names.
func named(e *ir.Expr) *ir.Header {
	if e.Op != ir.HeaderOf {
		unsupported("it changes an element of a header stack or a union")
	}
	return e.Header
}

// known is the header that an expression names, if its length is fixed.
func known(e *ir.Expr) *ir.Header {
	if named(e).Varbit {
		unsupported("header %s has a field of variable length", e.Header.Name)
	}
	return e.Header
}

// member is a field of a header by its name; nil: it has none.
func member(h *ir.Header, name string) *ir.Field {
	i := slices.IndexFunc(h.Fields, func(f *ir.Field) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return h.Fields[i]
}

func (g *operator) addHeader(h *ir.Header, fast bool) {
	if h.Meta {
		return // it is valid already
	}
	there := g.fresh()
	g.readValid(h, asm.R1)
	g.whenImm(asm.JNE, asm.R1, 0, there)
	g.move(h)
	if !fast {
		g.clearBytes(h)
		if at, ok := g.lay.extra[h]; ok {
			g.set(at, 0)
		}
		g.clearTail(h)
		g.length(asm.Add, h)
	}
	g.setValid(h)
	g.label(there)
}

// length changes packet_length by a header.
func (g *emitter) length(op asm.ALUOp, h *ir.Header) {
	g.get(asm.R1, atLength)
	g.add(op.Imm(asm.R1, int32(h.Bits/8)))
	g.put(atLength, asm.R1)
}

func (g *operator) removeHeader(h *ir.Header) {
	if h.Meta {
		unsupported("it makes metadata invalid")
	}
	gone := g.fresh()
	g.readValid(h, asm.R1)
	g.whenImm(asm.JEq, asm.R1, 0, gone)
	g.move(h)
	g.length(asm.Sub, h)
	g.lengthExtra(h)
	g.setInvalid(h)
	g.label(gone)
}

func (g *operator) assignHeader(to, from *ir.Header) {
	if to == from {
		return
	}
	if to.Meta != from.Meta {
		unsupported("it assigns metadata to a header")
	}
	if to.Meta {
		for i, f := range to.Fields {
			if !g.u.read[f] {
				continue
			}
			for w := range (f.Bits + 63) / 64 {
				g.readField(from.Fields[i], w, asm.R1)
				g.writeField(f, w, asm.R1)
			}
		}
		return
	}
	gone, done := g.fresh(), g.fresh()
	g.move(to)
	g.readValid(from, asm.R1)
	g.whenImm(asm.JEq, asm.R1, 0, gone)
	g.setValid(to)
	a, b := g.bytesOf(to), g.bytesOf(from)
	g.copyBytes(rState, a, rState, b, (to.Bits+63)/64*8)
	g.jump(done)
	g.label(gone)
	g.setInvalid(to)
	g.label(done)
}

// count has a counter counted when the frame comes to its end.
func (g *operator) count(op *ir.Call) {
	skip := g.fresh()
	i := op.Args[0].Object
	if size := g.p.Counters[i].Size; size > maxCounters {
		unsupported("counter %s has %d cells", op.Args[0].Name, size)
	}
	g.value(index(op.Args[1].Expr), 0)
	m := g.mark()
	g.marked = append(g.marked, marked{m, g.maps.places.counters[i], g.p.Counters[i].Size})
	g.add(asm.JGE.Imm(pool[0], int32(g.p.Counters[i].Size), skip))
	g.add(asm.Add.Imm(pool[0], 1))
	g.add(asm.StoreMem(rState, int16(m), pool[0], asm.DWord))
	g.label(skip)
}

// cell leaves the address of word r, which is below the map's number of words, in R2. It changes r, which is not R2.
func (g *emitter) cell(fd int, r asm.Register) {
	g.calc(asm.LSh, r, 3)
	g.address(asm.R2, fd)
	g.with(asm.Add, asm.R2, r)
}
