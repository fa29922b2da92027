package p4

import (
	"encoding/json"
	"slices"
)

// parserLoader loads the parser and the deparser.
type parserLoader struct{ *compiler }

func (l *parserLoader) parsers() {
	p := &parser{starts: [numBlocks]int{-1, -1}, errs: parserErrors{
		noError: l.p.errors["NoError"], tooShort: l.p.errors["PacketTooShort"],
		stackOutOfBounds: l.p.errors["StackOutOfBounds"], headerTooShort: l.p.errors["HeaderTooShort"],
		timeout: l.p.errors["ParserTimeout"], invalidArgument: l.p.errors["ParserInvalidArgument"]}}
	for block, name := range l.p.arch.parsers() {
		if i := blockOf(l.Parsers, name, func(j jsonParser) string { return j.Name }); i >= 0 {
			l.p.parser = p
			l.parser(p, block, l.Parsers[i])
		}
	}
}

// anyName stands for the first parser or deparser of a program, whatever it is called. noName stands for none.
const (
	anyName = "*"
	noName  = ""
)

// blockOf returns the index of the parser or deparser with a name, or -1 if there is none.
func blockOf[T any](all []T, name string, nameOf func(T) string) int {
	switch {
	case name == noName || len(all) == 0:
		return -1
	case name == anyName:
		return 0
	}
	return slices.IndexFunc(all, func(x T) bool { return nameOf(x) == name })
}

// parser reads the parser of a block. Its states follow those of the parsers that were read before.
func (l *parserLoader) parser(p *parser, block int, j jsonParser) {
	index := map[string]int{}
	first := len(p.states)
	for _, js := range j.States {
		if _, ok := index[js.Name]; ok {
			l.fail("two parser states are called %q", js.Name)
		}
		index[js.Name] = len(p.states)
		p.states = append(p.states, &parseState{name: js.Name, next: -1})
	}
	next := func(name *string) int {
		if name == nil {
			return -1
		}
		return find(l.document, index, "parser state", *name)
	}
	for i, js := range j.States {
		l.in("parser state "+js.Name, func() { l.parseState(p, p.states[first+i], js, next) })
	}
	p.starts[block] = next(j.Init)
}

func (l *parserLoader) parseState(p *parser, st *parseState, j jsonState, next func(*string) int) {
	for _, op := range j.Ops {
		l.in("operation "+op.Op, func() { st.ops = append(st.ops, l.parseOp(p, op)) })
	}
	bits, padded := 0, 0
	for _, jk := range j.Key {
		part := l.keyPart(&jk)
		part.at, part.words = st.kw, words(part.bits)
		st.kw += part.words
		bits += part.bits
		padded += (part.bits + 7) / 8 * 8
		st.parts = append(st.parts, part)
	}
	if padded > maxBits {
		l.fail("a transition key of %d bits", padded)
	}
	st.key = l.g.words(st.kw)
	for _, t := range j.Transitions {
		c := parseCase{vset: -1, next: next(t.Next)}
		switch {
		case t.Type == "default" || t.Value == "default":
			st.next = c.next
			continue
		case t.Type == "hexstr" || t.Type == "":
			c.value, c.mask = l.keyWords(st, t.Value, padded), make([]uint64, st.kw)
			for i := range c.mask {
				c.mask[i] = ^uint64(0)
			}
			if t.Mask != nil {
				c.mask = l.keyWords(st, *t.Mask, padded)
			}
			for i := range c.value {
				c.value[i] &= c.mask[i]
			}
			if st.kw > 0 {
				c.value0, c.mask0 = c.value[0], c.mask[0]
			}
		case t.Type == "parse_vset":
			c.vset = l.valueSet(t.Value)
			def := l.p.vsets[c.vset]
			if def.bits != bits {
				l.fail("value set %s has %d bits, the key %d", def.name, def.bits, bits)
			}
			if t.Mask != nil {
				c.mask = l.hexWords(*t.Mask, bits)
			}
			def.parts = infos(st.parts, func(k keyPart) int { return k.bits })
			st.pack = l.g.words(2 * words(bits))
		default:
			l.fail("unknown transition %q", t.Type)
		}
		st.cases = append(st.cases, c)
	}
}

func (l *parserLoader) valueSet(name string) int {
	i := slices.IndexFunc(l.p.vsets, func(v *valueSetDef) bool { return v.name == name })
	if i < 0 {
		l.fail("no value set is called %q", name)
	}
	return i
}

// keyWords reads the value of a transition. In the JSON each part of the key is padded to whole bytes.
func (l *parserLoader) keyWords(st *parseState, hex string, padded int) []uint64 {
	out := make([]uint64, st.kw)
	all := l.hexWords(hex, padded)
	at := padded
	for _, part := range st.parts {
		bits := (part.bits + 7) / 8 * 8
		at -= bits
		w := make([]uint64, len(all))
		wShr(w, all, uint64(at), 0)
		extend(out[part.at:part.at+part.words], w, false)
		wKeep(out[part.at:part.at+part.words], bits, false)
	}
	return out
}

func (l *parserLoader) keyPart(v *jsonValue) keyPart {
	in := v.inner()
	switch v.typ {
	case "field", "stack_field":
		e := l.expression(v, sortData)
		part := keyPart{slot: -1, where: l.g.where(e), bits: e.width()}
		if e.op == opField {
			part.slot = e.hdr.base + e.fld.off
		}
		return part
	case "union_stack_field":
		s, m := l.unionMember(in)
		t := s.elems[0].members[m].typ
		f := l.member(t, in.at(2).text, "header type", t.name)
		all := &expr{op: opUnionStack, sort: sortUnionStack, ustk: s}
		u := &expr{op: opUnionElem, sort: sortUnion, ustk: s, kids: [3]*expr{all, lastIndex(all)}}
		h := &expr{op: opUnionHeader, sort: sortHeader, idx: m, typ: t, kids: [3]*expr{u}}
		return keyPart{slot: -1, where: l.g.where(memberExpr(h, f)), bits: f.bits}
	case "lookahead":
		off, bits := l.lookahead(in)
		return keyPart{slot: -1, off: off, bits: bits}
	}
	l.fail("unknown part of a transition key: %q", v.typ)
	return keyPart{}
}

// lookahead reads the offset and the width of a lookahead, in bits.
func (l *parserLoader) lookahead(in *jsonValue) (off, bits int) {
	return l.integer(in.at(0), "offset of a lookahead", 0, maxBits), l.integer(in.at(1), "width of a lookahead", 1, maxBits)
}

// unionMember finds the stack of unions and the index of the member in [stack, member].
func (l *parserLoader) unionMember(in *jsonValue) (*unionStack, int) {
	s, name := find(l.document, l.ustks, "header union stack", in.at(0).text), in.at(1).text
	m := slices.Index(s.elems[0].types, name)
	if m < 0 {
		l.fail("header union stack %s has no member %q", s.name, name)
	}
	return s, m
}

// parserOps are the operations of a parser with the numbers of their parameters.
var parserOps = map[string]int{"extract": 1, "extract_VL": 2, "set": 2, "verify": 2, "shift": 1, "advance": 1, "primitive": 1}

func (l *parserLoader) parseOp(p *parser, op jsonOp) parseOp {
	params := op.Parameters
	if n, ok := parserOps[op.Op]; !ok {
		l.fail("unknown operation")
	} else if n != len(params) {
		l.fail("%d parameters, want %d", len(params), n)
	}
	e := &p.errs
	switch op.Op {
	case "extract", "extract_VL":
		return l.extraction(e, params)
	case "set":
		return l.parserSet(e, params)
	case "verify":
		test := l.condition(&params[0])
		code := func(*packetState) uint64 { return uint64(*params[1].number) }
		if params[1].number == nil {
			code = l.g.index(l.expression(&params[1], sortData))
		}
		return func(k *packetState) int64 {
			if test(k) {
				return parsed
			}
			return int64(code(k) & maxID)
		}
	case "shift":
		n := 8 * uint64(l.integer(&params[0], "bytes to shift", 0, maxFrame))
		return func(k *packetState) int64 { return k.advance(e, n) }
	case "advance":
		n := l.g.index(l.expression(&params[0], sortData))
		return func(k *packetState) int64 { return k.advance(e, n(k)) }
	}
	inner := make([]jsonOp, 1)
	if b, err := json.Marshal(&params[0]); err != nil || json.Unmarshal(b, &inner[0]) != nil {
		l.fail("no primitive: %s", short(&params[0]))
	}
	code := l.compile(inner)
	return func(k *packetState) int64 {
		execute(k, code)
		return parsed
	}
}

// advance skips n bits.
func (k *packetState) advance(e *parserErrors, n uint64) int64 {
	switch {
	case n%8 != 0:
		return int64(e.invalidArgument)
	case n/8 > uint64(len(k.frame)-k.at):
		return int64(e.tooShort)
	}
	k.at += int(n / 8)
	return parsed
}

func (l *parserLoader) parserSet(e *parserErrors, params []jsonValue) parseOp {
	dst := l.expression(&params[0], sortData)
	if dst.op != opField {
		l.fail("a destination that is no field")
	}
	if params[1].typ == "lookahead" {
		off, bits := l.lookahead(params[1].inner())
		w := words(bits)
		at := l.g.words(w)
		store := l.g.store(l.target(dst), &expr{op: opScratch, idx: at, bits: bits})
		return func(k *packetState) int64 {
			if (off+bits+7)/8 > len(k.frame)-k.at {
				return int64(e.tooShort)
			}
			readWide(k.tmp[at:at+w], k.frame[k.at:], off, bits)
			store(k)
			return parsed
		}
	}
	src := l.data(&params[1])
	run := l.g.store(l.target(dst), src)
	if dst.fld.varbit && src.fld != nil && src.fld.varbit {
		run = l.assignVarbit(dst, src).run
	}
	return func(k *packetState) int64 {
		run(k)
		return parsed
	}
}

// extraction compiles extract and extract_VL. The target is a header, or the next header of a stack.
func (l *parserLoader) extraction(e *parserErrors, params []jsonValue) parseOp {
	var t *headerType
	var base baseFn
	next, size := -1, 0
	var h *header
	switch in := params[0].inner(); params[0].typ {
	case "regular":
		h = find(l.document, l.names, "header", in.text)
		t = h.typ
		base = func(*packetState) int { return h.base }
	case "stack":
		s := find(l.document, l.stacks, "header stack", in.text)
		t, next, size = s.typ, s.next, len(s.bases)
		base = func(k *packetState) int { return s.bases[k.v[s.next]] }
	case "union_stack":
		s, m := l.unionMember(in)
		t, next, size = s.elems[0].members[m].typ, s.next, len(s.elems)
		base = func(k *packetState) int { return s.elems[k.v[s.next]].members[m].base }
	default:
		l.fail("unknown target %q", params[0].typ)
	}
	var length lowFn
	switch {
	case len(params) == 2:
		if t.varbit == nil {
			l.fail("header type %s has no field of variable length", t.name)
		}
		length = l.g.index(l.expression(&params[1], sortData))
	case t.varbit != nil:
		return l.extractComputed(e, t, h)
	}
	return func(k *packetState) int64 {
		if next >= 0 && k.v[next] >= uint64(size) {
			return int64(e.stackOutOfBounds)
		}
		b := base(k)
		var err int64
		if length != nil {
			err = k.extractVariable(e, t, b, length(k))
		} else {
			err = k.extract(e, t, b, 0)
		}
		if err != parsed {
			return err
		}
		k.setValid(b)
		if next >= 0 {
			k.v[next]++
		}
		return parsed
	}
}

// extractComputed compiles the extraction of a header whose varbit has a length that is computed from fields
// before it in the header.
func (l *parserLoader) extractComputed(e *parserErrors, t *headerType, h *header) parseOp {
	if t.lengthExp.json == nil || h == nil {
		l.fail("header type %s: nothing says how long field %s is", t.name, t.varbit.name)
	}
	l.self = h
	length := l.g.index(l.expression(t.lengthExp, sortData))
	l.self = nil
	var ahead []*field
	bits := 0
	for _, f := range t.fields {
		if f.varbit {
			break
		}
		ahead = append(ahead, f)
		bits += f.bits
	}
	return func(k *packetState) int64 {
		if (bits+7)/8 > len(k.frame)-k.at {
			return int64(e.tooShort)
		}
		for _, f := range ahead {
			readWide(k.v[h.base+f.off:h.base+f.off+words(f.bits)], k.frame[k.at:], f.bitOff, f.bits)
		}
		if err := k.extractVariable(e, t, h.base, length(k)); err != parsed {
			return err
		}
		k.setValid(h.base)
		return parsed
	}
}

func (l *parserLoader) deparsers() {
	for block, name := range l.p.arch.deparsers() {
		i := blockOf(l.Deparsers, name, func(j jsonDeparser) string { return j.Name })
		if i < 0 {
			continue
		}
		d := &deparser{code: l.compile(l.Deparsers[i].Primitives)}
		for _, name := range l.Deparsers[i].Order {
			h := find(l.document, l.names, "header", name)
			if h.meta || h.typ.bits%8 != 0 {
				l.fail("deparser: %s is no header", h.name)
			}
			d.order = append(d.order, h)
		}
		l.p.deparsers[block] = d
	}
}
