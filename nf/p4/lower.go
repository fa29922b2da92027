package p4

import (
	"encoding/json"
	"slices"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// The operations of package ir have the same numbers as those of this package.
var (
	_ = [1]struct{}{}[int(ir.UnionHeader)-int(opUnionHeader)]
	_ = [1]struct{}{}[int(ir.StackCount)-int(opCount)]
	_ = [1]struct{}{}[int(ir.ToBool)-int(opToBool)]
	_ = [1]struct{}{}[int(ir.ValidHeader)-int(Valid)]
	_ = [1]struct{}{}[int(ir.ActionNode)-int(nodeAction)]
)

// LoadTree is like Load, and also returns the program as a tree for another executor (package xdp).
func LoadTree(src []byte) (*Program, *ir.Program, error) {
	var tree *ir.Program
	p, err := loadWith(src, func(l *compiler) { tree = lower(l) })
	return p, tree, err
}

// Tree returns the program as a tree, as LoadTree does. It reads the document again.
func (p *Program) Tree() (*ir.Program, error) {
	_, tree, err := LoadTree(p.src)
	return tree, err
}

// lowerer makes the tree of a loaded program. It reads the document again, because the loader has turned it
// into closures.
type lowerer struct {
	*compiler
	headers map[*header]*ir.Header
	fields  map[*header]map[*field]*ir.Field
	slots   map[int]*ir.Field // fields by the first word of their value
	valid   map[int]*ir.Header
	prog    *ir.Program
	stacks  map[*stack]*ir.HeaderStack
}

func lower(c *compiler) *ir.Program {
	if c.p.arch != &c.p.std {
		return &ir.Program{Architecture: c.p.Arch(), Start: -1, Ingress: noNode, Egress: noNode}
	}
	p := &ir.Program{Start: -1, Ingress: c.p.ingress, Egress: c.p.egress}
	l := &lowerer{c, map[*header]*ir.Header{}, map[*header]map[*field]*ir.Field{}, map[int]*ir.Field{}, map[int]*ir.Header{}, p, map[*stack]*ir.HeaderStack{}}
	l.lowerHeaders(p)
	l.lowerStandard(&p.Std)
	for i, j := range l.Actions {
		a := c.p.actions[i]
		c.params = a.params
		p.Actions = append(p.Actions, ir.Action{Name: a.Name, Words: a.words, Code: l.calls(j.Primitives)})
		c.params = nil
	}
	l.lowerParser(p)
	l.lowerPipelines(p)
	for _, d := range c.p.profiles {
		p.Profiles = append(p.Profiles, l.lowerProfile(d))
	}
	for _, d := range c.p.tables {
		p.Tables = append(p.Tables, l.lowerTable(d, p))
	}
	for i := range p.Tables { // each may run any action that one of them has
		if t := &p.Tables[i]; t.Profile != nil {
			t.DataWords = t.Profile.DataWords
		}
	}
	l.lowerChecksums(p)
	for _, d := range c.p.counters {
		p.Counters = append(p.Counters, ir.Array{Name: d.Name, Size: d.Size})
	}
	for _, d := range c.p.registers {
		p.Registers = append(p.Registers, d.lower())
	}
	for _, d := range c.p.meters {
		x := ir.Meters{Name: d.Name, Size: d.Size, Rates: d.rates, Bytes: d.Byte}
		if d.direct {
			x.Target = l.slots[d.target.slot]
		}
		p.Meters = append(p.Meters, x)
	}
	if d := c.p.deparsers[blockEgress]; d != nil {
		p.Deparser, p.DeparseOps = true, len(d.code)
		for _, h := range d.order {
			p.Deparse = append(p.Deparse, l.headers[h])
		}
	}
	return p
}

func (l *lowerer) lowerHeaders(p *ir.Program) {
	types := map[*headerType]int{}
	for i, h := range l.p.headers {
		if _, ok := types[h.typ]; !ok {
			types[h.typ] = len(types)
		}
		x := &ir.Header{Name: h.name, Index: i, Meta: h.meta, Bits: h.typ.bits, Varbit: h.typ.varbit != nil, Type: types[h.typ]}
		l.headers[h], l.fields[h], l.valid[h.base] = x, map[*field]*ir.Field{}, x
		for _, f := range h.typ.fields {
			y := &ir.Field{Name: f.name, Header: x, Bits: f.bits, BitOff: f.bitOff, Signed: f.signed, Saturate: f.saturate, Varbit: f.varbit}
			l.fields[h][f], l.slots[h.base+f.off] = y, y
			x.Fields = append(x.Fields, y)
		}
		p.Headers = append(p.Headers, x)
	}
	for _, h := range l.p.headers {
		for _, o := range h.others {
			l.headers[h].Others = append(l.headers[h].Others, l.valid[o])
		}
	}
}

func (l *lowerer) lowerStandard(to *ir.Standard) {
	s := &l.p.std
	for _, x := range []struct {
		to   **ir.Field
		from stdField
	}{
		{&to.IngressPort, s.ingressPort}, {&to.PacketLength, s.packetLength}, {&to.InstanceType, s.instanceType},
		{&to.EgressSpec, s.egressSpec}, {&to.EgressPort, s.egressPort}, {&to.ParserError, s.parserError},
		{&to.ChecksumError, s.checksumError}, {&to.IngressTime, s.ingressTime}, {&to.EgressTime, s.egressTime},
		{&to.Group, s.group}, {&to.Rid, s.rid}, {&to.Priority, s.priority}, {&to.EnqTime, s.enqTime},
		{&to.EnqDepth, s.enqDepth}, {&to.DeqTime, s.deqTime}, {&to.DeqDepth, s.deqDepth}, {&to.Qid, s.qid},
	} {
		if x.from.slot >= 0 {
			*x.to = l.slots[x.from.slot]
		}
	}
}

// tree returns an expression as a tree.
func (l *lowerer) tree(e *expr) *ir.Expr {
	if e == nil {
		return nil
	}
	if x := l.stackTree(e); x != nil {
		return x
	}
	x := &ir.Expr{Op: ir.Op(e.op), Neg: e.neg, Bits: e.bits, Const: e.c, At: e.idx, Sort: min(ir.Sort(e.sort), ir.OfOther)}
	if e.hdr != nil {
		x.Header = l.headers[e.hdr]
		if e.fld != nil {
			x.Field = l.fields[e.hdr][e.fld]
		}
	}
	if e.op == opStack {
		x.Stack = l.stackOf(e.stack)
	}
	for i, k := range e.kids {
		x.Kids[i] = l.tree(k)
	}
	return x
}

// calls returns the primitives of an action.
func (l *lowerer) calls(ops []jsonOp) []ir.Call {
	code := make([]ir.Call, 0, len(ops))
	for _, op := range ops {
		c := ir.Call{Name: op.Op}
		for i := range op.Parameters {
			c.Args = append(c.Args, l.arg(&op.Parameters[i]))
		}
		code = append(code, c)
	}
	return code
}

func (l *lowerer) arg(v *jsonValue) ir.Arg {
	a := ir.Arg{Object: -1}
	in := v.inner()
	switch v.typ {
	case "counter_array":
		a.Name, a.Object = in.text, find(l.document, l.ctrs, "counter", in.text)
	case "meter_array":
		a.Name, a.Object = in.text, find(l.document, l.mtrs, "meter", in.text)
	case "calculation":
		a.Name, a.Object = in.text, slices.IndexFunc(l.Calculations, func(c jsonCalculation) bool { return c.Name == in.text })
	case "register_array":
		a.Name, a.Object = in.text, find(l.document, l.regs, "register", in.text)
	case "string", "extern", "regular", "stack", "union_stack", "parameters_vector", "":
		a.Name = in.text
		if v.number != nil {
			a.Number = uint64(*v.number)
		}
	case "lookahead":
		a.Look = true
		a.Off, a.Bits = (&parserLoader{l.compiler}).lookahead(in)
	default:
		a.Expr = l.tree(l.expr(v))
	}
	return a
}

func (l *lowerer) lowerParser(p *ir.Program) {
	from := l.p.parser
	if from == nil {
		return
	}
	p.Parser, p.Start = true, from.starts[blockIngress]
	p.NoError, p.TooShort, p.InvalidArgument = from.errs.noError, from.errs.tooShort, from.errs.invalidArgument
	p.OutOfBounds, p.HeaderTooShort = from.errs.stackOutOfBounds, from.errs.headerTooShort
	for _, v := range l.p.vsets {
		p.ValueSets = append(p.ValueSets, v.name)
	}
	uses := 0
	for i, j := range l.Parsers[0].States {
		st := from.states[i]
		x := ir.State{Name: st.name, Next: st.next}
		for _, op := range j.Ops {
			x.Ops = append(x.Ops, l.parserCall(op))
		}
		for k, d := range st.parts {
			part := ir.KeyPart{Off: d.off, Bits: d.bits, At: d.at}
			switch {
			case d.where == nil:
				part.Look = true
			case d.slot >= 0 && l.slots[d.slot] != nil:
				part.Field = l.slots[d.slot]
			case d.slot >= 0:
				part.Valid = l.valid[d.slot]
			case !l.lastPart(&part, &j.Key[k]):
				part.Unknown = true
			}
			x.Parts = append(x.Parts, part)
		}
		for _, c := range st.cases {
			y := ir.Case{Value: c.value, Mask: c.mask, Next: c.next, ValueSet: c.vset + 1}
			if c.vset >= 0 {
				y.Use, uses = uses, uses+1
			}
			x.Cases = append(x.Cases, y)
		}
		p.States = append(p.States, x)
	}
}

func (l *lowerer) parserCall(op jsonOp) ir.Call {
	if op.Op == "primitive" {
		inner := make([]jsonOp, 1)
		if b, err := json.Marshal(&op.Parameters[0]); err != nil || json.Unmarshal(b, &inner[0]) != nil {
			l.fail("no primitive: %s", short(&op.Parameters[0]))
		}
		return l.calls(inner)[0]
	}
	c := ir.Call{Name: op.Op}
	for i := range op.Parameters {
		v := &op.Parameters[i]
		if i == 0 && (op.Op == "extract" || op.Op == "extract_VL") {
			switch v.typ {
			case "stack":
				c.Stack = l.stackOf(find(l.document, l.compiler.stacks, "header stack", v.inner().text))
			case "regular":
				c.Header = l.headers[find(l.document, l.names, "header", v.inner().text)]
			}
			continue
		}
		c.Args = append(c.Args, l.arg(v))
	}
	return c
}

func (l *lowerer) lowerPipelines(p *ir.Program) {
	tests := map[string]*jsonValue{}
	for _, j := range l.Pipelines {
		for i := range j.Conditionals {
			tests[j.Conditionals[i].Name] = &j.Conditionals[i].Expression
		}
	}
	for i := range l.p.nodes {
		n := &l.p.nodes[i]
		x := ir.Node{Kind: ir.NodeKind(n.kind), Name: n.name, Table: n.table, Yes: n.yes, No: n.no, Data: n.data}
		switch n.kind {
		case nodeTest:
			x.Test = l.tree(l.expression(tests[n.name], sortBool))
		case nodeAction:
			x.Action = n.act.index
		}
		p.Nodes = append(p.Nodes, x)
	}
}

func (l *lowerer) lowerTable(d *tableDef, p *ir.Program) ir.Table {
	t := ir.Table{Name: d.Name, Kind: ir.Match(d.kind), KeyWords: d.kw, DataWords: d.dw, Size: d.Size, Next: d.next, Hit: d.hit, Miss: d.miss,
		Branches: d.branches, BaseMiss: d.baseMiss, Meter: d.meter, Counters: d.Counters, Timeout: d.Timeout,
		ConstDefault: d.ConstDefault, Initial: -1, InitData: d.initData}
	if d.initial != nil {
		t.Initial = d.initial.index
	}
	for _, a := range d.actions {
		t.Actions = append(t.Actions, a.index)
	}
	if d.profile >= 0 {
		t.Profile = p.Profiles[d.profile]
		t.Profile.DataWords = max(t.Profile.DataWords, d.dw)
		for _, a := range l.p.profiles[d.profile].actions {
			if !slices.Contains(d.actions, a) {
				t.Actions = append(t.Actions, a.index)
			}
		}
	}
	for _, k := range d.keys {
		x := ir.Key{Match: ir.Match(k.kind), Bits: k.bits, Words: k.words, At: k.at, Mask: k.mask}
		if h := l.valid[k.slot]; k.where != nil {
			x.Unknown = true
		} else if h != nil {
			x.Valid = h
		} else {
			x.Field = l.slots[k.slot]
			if k.validity >= 0 {
				x.Valid = l.valid[k.validity]
			}
		}
		t.Keys = append(t.Keys, x)
	}
	return t
}

func (l *lowerer) lowerProfile(d *profileDef) *ir.Profile {
	p := &ir.Profile{Name: d.Name, Index: d.index, Size: d.Size, DataWords: d.dw}
	if d.hash != nil {
		p.Hash = &ir.Hash{Name: d.Name, Algorithm: d.hash.algo, Payload: d.hash.payload, Inputs: l.inputs(d.hash)}
	}
	return p
}

// inputs returns the inputs of a calculation.
func (l *lowerer) inputs(calc *calculation) (all []ir.Input) {
	for _, in := range calc.inputs {
		x := ir.Input{Value: in.value, Bits: in.bits}
		switch {
		case in.fld != nil:
			x.Field = l.fields[in.hdr][in.fld]
		case in.hdr != nil:
			x.Header = l.headers[in.hdr]
		}
		all = append(all, x)
	}
	return all
}

func (l *lowerer) lowerChecksums(p *ir.Program) {
	for _, j := range l.Calculations {
		calc := find(l.document, l.calcs, "calculation", j.Name)
		p.Hashes = append(p.Hashes, ir.Hash{Name: j.Name, Algorithm: j.Algo, Payload: calc.payload, Inputs: l.inputs(calc)})
	}
	for _, j := range l.Checksums {
		h, f := l.field(j.Target)
		calc := find(l.document, l.calcs, "calculation", j.Calculation)
		c := ir.Checksum{Name: j.Name, Field: l.fields[h][f], Sum: calc.sum, Payload: calc.payload}
		if j.If.json != nil {
			c.When = l.tree(l.truth(&j.If))
		}
		c.Inputs = l.inputs(calc)
		if j.Verify == nil || *j.Verify {
			p.Verify = append(p.Verify, c)
		}
		if j.Update == nil || *j.Update {
			p.Update = append(p.Update, c)
		}
	}
}
