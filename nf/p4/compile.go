package p4

import (
	"math/rand/v2"
)

func (l *loader) actions(root any) {
	l.p.owner = make([]*header, l.p.slots)
	for _, h := range l.p.headers {
		l.p.owner[h.base] = h
	}
	for _, j := range list(get(root, "actions")) {
		a := &action{index: len(l.p.actions)}
		a.Name = text(get(j, "name"))
		l.in("action "+a.Name, func() {
			a.ID = l.number(get(j, "id"), "id", 0, 1<<31-1)
			for _, jp := range list(get(j, "runtime_data")) {
				name := text(get(jp, "name"))
				bits := l.number(get(jp, "bitwidth"), "width of parameter "+name, 1, maxBits)
				a.Params = append(a.Params, FieldInfo{name, bits})
				a.params = append(a.params, param{a.words, bits})
				a.words += words(bits)
			}
			l.params = a.params
			a.code = l.primitives(get(j, "primitives"))
			l.params = nil
		})
		if l.acts[a.ID] != nil {
			l.fail("two actions have id %d", a.ID)
		}
		l.acts[a.ID] = a
		l.p.actions = append(l.p.actions, a)
	}
}

// primitives compiles the primitives of an action.
func (l *loader) primitives(j any) []step {
	all := list(j)
	code := make([]step, 0, len(all))
	for _, jp := range all {
		name := text(get(jp, "op"))
		l.in("primitive "+name, func() { code = append(code, l.primitive(name, jp, len(all))) })
		if l.err != nil {
			return nil
		}
	}
	return code
}

// arity is how many parameters a primitive has.
var arity = map[string]int{
	"assign": 2, "modify_field": 2, "assign_VL": 2, "assign_header": 2, "copy_header": 2, "assign_union": 2,
	"assign_header_stack": 2, "assign_union_stack": 2, "push": 2, "pop": 2, "_jump": 1, "_jump_if_zero": 2,
	"exit": 0, "assume": 1, "assert": 1, "log_msg": 2, "modify_field_rng_uniform": 3, "add_to_field": 2,
	"subtract_from_field": 2, "add": 3, "subtract": 3, "bit_xor": 3, "bit_or": 3, "bit_and": 3, "shift_left": 3,
	"shift_right": 3, "drop": 0, "mark_to_drop": 1, "generate_digest": 2, "add_header": 1, "add_header_fast": 1,
	"remove_header": 1, "clone_ingress_pkt_to_egress": 2, "clone_egress_pkt_to_egress": 2, "resubmit": 1,
	"recirculate": 1, "modify_field_with_hash_based_offset": 4, "no_op": 0, "execute_meter": 3, "count": 2,
	"register_read": 3, "register_write": 3, "truncate": 1,
}

var arithmetic = map[string]op{"add": opAdd, "subtract": opSub, "bit_xor": opXor, "bit_or": opOr, "bit_and": opAnd,
	"shift_left": opShl, "shift_right": opShr, "add_to_field": opAdd, "subtract_from_field": opSub}

// primitive compiles one of n primitives.
func (l *loader) primitive(name string, j any, n int) step {
	params := list(get(j, "parameters"))
	if want, ok := arity[name]; !ok {
		l.fail("unknown primitive")
		return step{}
	} else if len(params) != want {
		l.fail("%d parameters, want %d", len(params), want)
		return step{}
	}
	data := func(i int) *expr { return l.expression(params[i], sortData) }
	low := func(i int) lowFn { return l.g.index(data(i)) }
	assign := func(i int, e *expr) step { return step{run: l.g.store(l.place(data(i)), e)} }
	if o, ok := arithmetic[name]; ok {
		if len(params) == 2 {
			return assign(0, arith(o, data(0), data(1)))
		}
		return assign(0, arith(o, data(1), data(2)))
	}
	switch name {
	case "assign", "modify_field":
		e := l.expr(params[1], 0)
		if e.sort == sortBool {
			e = &expr{op: opToData, bits: 1, kids: [3]*expr{e}}
		}
		return assign(0, l.data(e, params[1]))
	case "assign_VL":
		return l.assignVarbit(data(0), data(1))
	case "assign_header", "copy_header":
		a, b := l.expression(params[0], sortHeader), l.expression(params[1], sortHeader)
		if a.typ != b.typ {
			l.fail("headers of different types")
			return step{}
		}
		to, from, w := l.g.base(a), l.g.base(b), a.typ.words
		return step{run: func(k *packetState) { k.assignHeader(to(k), from(k), w) }}
	case "assign_union":
		a, b := l.g.union(l.expression(params[0], sortUnion)), l.g.union(l.expression(params[1], sortUnion))
		return step{run: func(k *packetState) { k.assignUnion(a(k), b(k)) }}
	case "assign_header_stack":
		a, b := l.expression(params[0], sortStack).stack, l.expression(params[1], sortStack).stack
		if a.typ != b.typ || len(a.bases) != len(b.bases) {
			l.fail("header stacks of different types")
			return step{}
		}
		return step{run: func(k *packetState) {
			k.v[a.next] = k.v[b.next]
			for i := range a.bases {
				k.assignHeader(a.bases[i], b.bases[i], a.typ.words)
			}
		}}
	case "assign_union_stack":
		a, b := l.expression(params[0], sortUnionStack).ustk, l.expression(params[1], sortUnionStack).ustk
		if len(a.elems) != len(b.elems) {
			l.fail("header union stacks of different sizes")
			return step{}
		}
		return step{run: func(k *packetState) {
			k.v[a.next] = k.v[b.next]
			for i := range a.elems {
				k.assignUnion(a.elems[i], b.elems[i])
			}
		}}
	case "push", "pop":
		return l.shift(name, l.expr(params[0], 0), low(1))
	case "_jump", "_jump_if_zero":
		to, ok := data(len(params) - 1).constant()
		if !ok || to > uint64(n) {
			l.fail("a jump to no primitive: there are %d", n)
			return step{}
		}
		s := step{jump: int(to)}
		if name == "_jump_if_zero" {
			s.test = l.condition(params[0])
		}
		return s
	case "exit":
		return step{run: func(k *packetState) { k.exit = true }}
	case "assume", "assert":
		m := l.message(name)
		if f := sourceOf(j).text; f != "" {
			m.format = f
		}
		test := l.condition(params[0])
		return step{run: func(k *packetState) {
			if !test(k) {
				k.failed, k.exit = Asserted, true
				if k.sw.trace != nil {
					k.sw.event(EventAssert, m.index, 0)
				}
			}
		}}
	case "log_msg":
		return l.logMessage(params)
	case "modify_field_rng_uniform":
		return l.random(l.place(data(0)), low(1), low(2))
	case "drop":
		return l.drop(l.p.std.egressSpec, l.p.std.group)
	case "mark_to_drop":
		// The header may be a copy of standard_metadata, copied back later.
		h := l.expression(params[0], sortHeader).hdr
		at := func(name string) stdField {
			if h == nil {
				return stdField{slot: -1}
			}
			f := h.typ.index[name]
			if f == nil || f.bits > 64 {
				return stdField{slot: -1}
			}
			return stdField{h.base + f.off, mask64(f.bits)}
		}
		spec := at("egress_spec")
		if spec.slot < 0 {
			l.fail("want a header with egress_spec")
		}
		return l.drop(spec, at("mcast_grp"))
	case "generate_digest":
		id := low(1)
		return step{run: func(k *packetState) { k.digest = uint32(id(k) & 0xffff) }}
	case "add_header", "add_header_fast":
		h := l.expression(params[0], sortHeader)
		base, t, fast := l.g.base(h), h.typ, name == "add_header_fast"
		return step{run: func(k *packetState) {
			b := base(k)
			if b < 0 || k.v[b] != 0 {
				return
			}
			if !fast {
				clear(k.v[b : b+t.words])
				k.length += uint64(t.bits / 8)
			}
			k.setValid(b)
		}}
	case "remove_header":
		h := l.expression(params[0], sortHeader)
		base, t := l.g.base(h), h.typ
		return step{run: func(k *packetState) {
			if b := base(k); b >= 0 && k.v[b] != 0 {
				k.length -= uint64(k.bytes(t, b))
				k.v[b] = 0
			}
		}}
	case "clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress":
		id, fields := low(0), low(1)
		return step{run: func(k *packetState) {
			k.session = uint32(id(k)&0x7fff) | sessionValid
			k.cloneList = uint32(fields(k) & 0xffff)
		}}
	case "resubmit":
		id := low(0)
		return step{run: func(k *packetState) { k.resubmitted = uint32(id(k) & 0xffff) }}
	case "recirculate":
		id := low(0)
		return step{run: func(k *packetState) { k.recirculate = uint32(id(k) & 0xffff) }}
	case "modify_field_with_hash_based_offset":
		calc := l.calcs[text(get(params[2], "value"))]
		if calc == nil {
			l.fail("no calculation is called %s", short(get(params[2], "value")))
			return step{}
		}
		base, size := low(1), low(3)
		return l.storeComputed(l.place(data(0)), func(k *packetState) uint64 {
			v, b := calc.output(k), base(k)
			return v%max(1, size(k)) + b
		})
	case "no_op":
		return step{run: func(*packetState) {}}
	case "execute_meter", "count":
		return l.counting(name, params, low(1))
	case "register_read":
		r, ok := l.regs[text(get(params[1], "value"))]
		if !ok {
			l.fail("no register is called %s", short(get(params[1], "value")))
			return step{}
		}
		return l.readRegister(l.place(data(0)), r, data(2))
	case "register_write":
		r, ok := l.regs[text(get(params[0], "value"))]
		if !ok {
			l.fail("no register is called %s", short(get(params[0], "value")))
			return step{}
		}
		to := place{fld: &field{bits: l.p.registers[r].Bits}, slot: -1, reg: r, cell: low(1)}
		return step{run: l.g.store(to, data(2))}
	}
	size := low(0) // truncate
	return step{run: func(k *packetState) { k.truncate = int(min(uint64(k.truncate), size(k))) }}
}

// condition compiles a parameter that is true, or not 0.
func (l *loader) condition(j any) testFn {
	e := l.expr(j, 0)
	if e.sort == sortData {
		e = &expr{op: opToBool, sort: sortBool, kids: [3]*expr{e}}
	}
	return l.g.test(l.want(e, sortBool, j))
}

func (k *packetState) assignHeader(to, from, w int) {
	switch {
	case to < 0 || to == from:
	case from < 0 || k.v[from] == 0:
		k.v[to] = 0
	default:
		k.setValid(to)
		copy(k.v[to+1:to+w], k.v[from+1:from+w])
	}
}

func (k *packetState) assignUnion(to, from *union) {
	if to == nil || from == nil || to == from {
		return
	}
	for i, h := range to.members {
		if i < len(from.members) && from.members[i].typ == h.typ {
			k.assignHeader(h.base, from.members[i].base, h.typ.words)
		}
	}
}

// assignVarbit copies a varbit with its length.
func (l *loader) assignVarbit(a, b *expr) step {
	if a.fld == nil || b.fld == nil || !a.fld.varbit || !b.fld.varbit {
		l.fail("want two fields of variable length")
		return step{}
	}
	to, from := l.fieldBase(a), l.fieldBase(b)
	f, g := a.fld, b.fld
	return step{run: func(k *packetState) {
		x, y := to(k), from(k)
		if x < 0 || y < 0 {
			return
		}
		n := min(k.v[y+g.lengthOff], uint64(f.bits))
		dst := k.v[x+f.off : x+f.off+words(f.bits)]
		extend(dst, k.v[y+g.off:y+g.off+words(g.bits)], false)
		wKeep(dst, int(n), false)
		k.v[x+f.lengthOff] = n
	}}
}

// fieldBase is the header of a field.
func (l *loader) fieldBase(e *expr) baseFn {
	if e.op == opField {
		b := e.hdr.base
		return func(*packetState) int { return b }
	}
	return l.g.holder(e)
}

// shift compiles push and pop.
func (l *loader) shift(name string, e *expr, by lowFn) step {
	var rows [][]int // bases of what moves together
	var w []int      // and their words
	next := 0
	switch e.sort {
	case sortStack:
		rows, w, next = [][]int{e.stack.bases}, []int{e.typ.words}, e.stack.next
	case sortUnionStack:
		next = e.ustk.next
		for i, h := range e.ustk.elems[0].members {
			var bases []int
			for _, u := range e.ustk.elems {
				if u.members[i].typ != h.typ {
					l.fail("header union stack %s: unions of different types", e.ustk.name)
					return step{}
				}
				bases = append(bases, u.members[i].base)
			}
			rows, w = append(rows, bases), append(w, h.typ.words)
		}
	default:
		l.fail("a %s where a stack belongs", sortNames[e.sort])
		return step{}
	}
	size := 0
	if len(rows) > 0 {
		size = len(rows[0])
	}
	if name == "push" {
		return step{run: func(k *packetState) {
			n := int(min(by(k), uint64(size)))
			k.v[next] = min(k.v[next]+uint64(n), uint64(size))
			for r, bases := range rows {
				for i := size - 1; i >= 0; i-- {
					to := k.v[bases[i] : bases[i]+w[r]]
					if i >= n {
						copy(to, k.v[bases[i-n]:])
					} else if n > 0 {
						clear(to)
					}
				}
			}
		}}
	}
	return step{run: func(k *packetState) {
		n := int(min(by(k), uint64(size)))
		k.v[next] -= min(k.v[next], uint64(n))
		for r, bases := range rows {
			for i := range size {
				to := k.v[bases[i] : bases[i]+w[r]]
				if i+n < size {
					copy(to, k.v[bases[i+n]:])
				} else if n > 0 {
					clear(to)
				}
			}
		}
	}}
}

// message makes a log message.
func (l *loader) message(format string) *logMessage {
	m := &logMessage{format: format, index: len(l.p.logs)}
	l.p.logs = append(l.p.logs, m)
	return m
}

func (l *loader) logMessage(params []any) step {
	m := l.message(text(get(params[0], "value")))
	for _, j := range list(get(params[1], "value")) {
		e := l.expr(j, 0)
		if e.sort == sortBool {
			e = &expr{op: opToData, bits: 1, kids: [3]*expr{e}}
		}
		e = l.data(e, j)
		n := wordsFor(e)
		m.values = append(m.values, logValue{get: l.g.wide(e, n), words: n, at: l.g.words(n)})
	}
	return step{run: m.log}
}

func (l *loader) drop(spec, group stdField) step {
	return step{run: func(k *packetState) {
		spec.set(k, uint64(k.sw.cfg.DropPort))
		group.set(k, 0)
	}}
}

// storeComputed stores a number that Go code computes.
func (l *loader) storeComputed(to place, f lowFn) step {
	at := l.g.words(1)
	store := l.g.store(to, &expr{op: opScratch, idx: at, bits: 64})
	return step{run: func(k *packetState) {
		k.tmp[at] = f(k)
		store(k)
	}}
}

// random stores a number from lo to hi; nothing when there is none.
func (l *loader) random(to place, lo, hi lowFn) step {
	at := l.g.words(1)
	store := l.g.store(to, &expr{op: opScratch, idx: at, bits: 64})
	return step{run: func(k *packetState) {
		a, b := lo(k), hi(k)
		if a > b {
			return
		}
		k.tmp[at] = a + uniform(k.sw.rand, b-a)
		store(k)
	}}
}

// uniform is a number from 0 to most.
func uniform(r *rand.Rand, most uint64) uint64 {
	if most == ^uint64(0) {
		return r.Uint64()
	}
	return r.Uint64N(most + 1)
}

// counting compiles execute_meter and count; an index that is too large does
// nothing.
func (l *loader) counting(name string, params []any, index lowFn) step {
	array := text(get(params[0], "value"))
	if name == "count" {
		i, ok := l.ctrs[array]
		if !ok {
			l.fail("no counter is called %q", array)
			return step{}
		}
		return step{run: func(k *packetState) {
			cells, n := k.sw.counters[i], index(k)
			if n < uint64(len(cells)) {
				cells[n].Packets++
				cells[n].Bytes += uint64(k.arrived)
			}
		}}
	}
	i, ok := l.mtrs[array]
	if !ok {
		l.fail("no meter is called %q", array)
		return step{}
	}
	at, def := l.g.words(1), l.p.meters[i]
	store := l.g.store(l.place(l.expression(params[2], sortData)), &expr{op: opScratch, idx: at, bits: 64})
	return step{run: func(k *packetState) {
		cells, n := k.sw.meters[i], index(k)
		if n < uint64(len(cells)) {
			k.tmp[at] = cells[n].execute(def, k.sw.now, k.arrived)
			store(k)
		}
	}}
}

// readRegister reads a register; an index that is too large leaves the
// destination as it is.
func (l *loader) readRegister(to place, r int, index *expr) step {
	d := l.p.registers[r]
	if f := to.fld; to.reg < 0 && to.slot >= 0 && d.words == 1 && d.Bits <= f.bits && f.bits <= 64 && !f.saturate {
		at, idx := to.slot, l.g.index(index)
		return step{run: func(k *packetState) {
			cells, i := k.sw.registers[r], idx(k)
			if i < uint64(len(cells)) {
				k.v[at] = cells[i]
			}
		}}
	}
	store := l.g.store(to, &expr{op: opRegister, reg: d, regAt: r, bits: d.Bits, kids: [3]*expr{index}})
	idx := l.g.index(index)
	return step{run: func(k *packetState) {
		if idx(k) < uint64(d.Size) {
			store(k)
		}
	}}
}

func (l *loader) parsers(root any) {
	all := list(get(root, "parsers"))
	if len(all) == 0 {
		return
	}
	j := all[0]
	p := &parser{start: -1, errs: parserErrors{
		noError: l.p.errors["NoError"], tooShort: l.p.errors["PacketTooShort"],
		stackOutOfBounds: l.p.errors["StackOutOfBounds"], headerTooShort: l.p.errors["HeaderTooShort"],
		timeout: l.p.errors["ParserTimeout"], invalidArgument: l.p.errors["ParserInvalidArgument"]}}
	l.p.parser = p
	index := map[string]int{}
	states := list(get(j, "parse_states"))
	for i, js := range states {
		name := text(get(js, "name"))
		if _, ok := index[name]; ok {
			l.fail("two parser states are called %q", name)
		}
		index[name] = i
		p.states = append(p.states, &parseState{name: name, next: -1})
	}
	next := func(v any) int {
		if v == nil {
			return -1
		}
		i, ok := index[text(v)]
		if !ok {
			l.fail("no parser state is called %s", short(v))
			return -1
		}
		return i
	}
	for i, js := range states {
		l.in("parser state "+p.states[i].name, func() { l.parseState(p, p.states[i], js, next) })
		if l.err != nil {
			return
		}
	}
	p.start = next(get(j, "init_state"))
}

func (l *loader) parseState(p *parser, st *parseState, j any, next func(any) int) {
	for _, jo := range list(get(j, "parser_ops")) {
		name := text(get(jo, "op"))
		l.in("operation "+name, func() { st.ops = append(st.ops, l.parseOp(p, name, list(get(jo, "parameters")))) })
		if l.err != nil {
			return
		}
	}
	keyBits := 0
	for _, jk := range list(get(j, "transition_key")) {
		part := l.keyPart(jk)
		part.at, part.words = st.kw, words(part.bits)
		st.kw += part.words
		keyBits += (part.bits + 7) / 8 * 8
		st.parts = append(st.parts, part)
	}
	if keyBits > maxBits {
		l.fail("a transition key of %d bits", keyBits)
		return
	}
	st.key = l.g.words(st.kw)
	for _, jt := range list(get(j, "transitions")) {
		kind := "hexstr"
		if has(jt, "type") {
			kind = text(get(jt, "type"))
		}
		value := get(jt, "value")
		if text(value) == "default" {
			kind = "default"
		}
		to := next(get(jt, "next_state"))
		switch kind {
		case "default":
			st.next = to
		case "hexstr":
			c := parseCase{vset: -1, next: to, value: l.keyWords(st, value, keyBits)}
			c.mask = make([]uint64, st.kw)
			for i := range c.mask {
				c.mask[i] = ^uint64(0)
			}
			if m := get(jt, "mask"); m != nil {
				c.mask = l.keyWords(st, m, keyBits)
				for i := range c.value {
					c.value[i] &= c.mask[i]
				}
			}
			if st.kw > 0 {
				c.value0, c.mask0 = c.value[0], c.mask[0]
			}
			st.cases = append(st.cases, c)
		case "parse_vset":
			c := parseCase{vset: -1, next: to}
			for i, v := range l.p.vsets {
				if v.name == text(value) {
					c.vset = i
				}
			}
			if c.vset < 0 {
				l.fail("no value set is called %s", short(value))
				return
			}
			bits, key := l.p.vsets[c.vset].bits, 0
			for _, part := range st.parts {
				key += part.bits
			}
			if bits != key {
				l.fail("value set %s has %d bits, the key %d", text(value), bits, key)
				return
			}
			if m := get(jt, "mask"); m != nil {
				c.mask = l.hexWords(m, bits)
			}
			st.pack = l.g.words(2 * words(bits))
			st.cases = append(st.cases, c)
		default:
			l.fail("unknown transition %q", kind)
		}
	}
}

// keyWords reads a transition's value: the key's parts, each padded to bytes.
func (l *loader) keyWords(st *parseState, v any, keyBits int) []uint64 {
	out := make([]uint64, st.kw)
	all := l.hexWords(v, keyBits)
	at := keyBits
	for _, part := range st.parts {
		at -= (part.bits + 7) / 8 * 8
		w := make([]uint64, len(all))
		wShr(w, all, uint64(at), 0)
		extend(out[part.at:part.at+part.words], w, false)
		wKeep(out[part.at:part.at+part.words], (part.bits+7)/8*8, false)
	}
	return out
}

func (l *loader) keyPart(j any) keyPart {
	v := get(j, "value")
	switch t := text(get(j, "type")); t {
	case "field":
		h, f := l.field(v)
		b := h.base
		return keyPart{slot: b + f.off, base: func(*packetState) int { return b }, off: f.off, bits: f.bits}
	case "stack_field":
		e := l.expr(j, 0)
		if e.op != opLast {
			return keyPart{slot: -1, bits: 1}
		}
		return keyPart{slot: -1, base: l.g.holder(e), off: e.fld.off, bits: e.fld.bits}
	case "union_stack_field":
		s := l.ustks[text(elem(v, 0))]
		if s == nil {
			l.fail("no header union stack is called %s", short(elem(v, 0)))
			return keyPart{bits: 1}
		}
		m := l.unionMember(s, text(elem(v, 1)))
		if m < 0 {
			return keyPart{bits: 1}
		}
		f := l.member(s.elems[0].members[m].typ, text(elem(v, 2)))
		return keyPart{slot: -1, off: f.off, bits: f.bits, base: func(k *packetState) int {
			if n := k.v[s.next]; n > 0 && n <= uint64(len(s.elems)) {
				return s.elems[n-1].members[m].base
			}
			return -1
		}}
	case "lookahead":
		return keyPart{slot: -1, off: l.number(elem(v, 0), "offset of a lookahead", 0, maxBits), bits: l.number(elem(v, 1), "width of a lookahead", 1, maxBits)}
	default:
		l.fail("unknown part of a transition key: %q", t)
		return keyPart{bits: 1}
	}
}

func (l *loader) unionMember(s *unionStack, name string) int {
	for i, m := range s.elems[0].types {
		if m == name {
			return i
		}
	}
	l.fail("header union stack %s has no member %q", s.name, name)
	return -1
}

func (l *loader) parseOp(p *parser, name string, params []any) parseOp {
	nothing := func(*packetState) int64 { return parsed }
	want := map[string]int{"extract": 1, "extract_VL": 2, "set": 2, "verify": 2, "shift": 1, "advance": 1, "primitive": 1}
	if n, ok := want[name]; !ok {
		l.fail("unknown operation")
		return nothing
	} else if n != len(params) {
		l.fail("%d parameters, want %d", len(params), n)
		return nothing
	}
	e := &p.errs
	switch name {
	case "extract", "extract_VL":
		return l.extraction(p, params)
	case "set":
		return l.parserSet(e, params)
	case "verify":
		test := l.condition(params[0])
		var code lowFn
		if f, ok := params[1].(float64); ok {
			code = func(*packetState) uint64 { return uint64(f) }
		} else {
			code = l.g.index(l.expression(params[1], sortData))
		}
		return func(k *packetState) int64 {
			if test(k) {
				return parsed
			}
			return int64(code(k) & 0x7fffffff)
		}
	case "shift":
		n := l.number(params[0], "bytes to shift", 0, maxFrame)
		return func(k *packetState) int64 { return k.advance(e, 8*uint64(n)) }
	case "advance":
		n := l.g.index(l.expression(params[0], sortData))
		return func(k *packetState) int64 { return k.advance(e, n(k)) }
	}
	code := l.primitives([]any{params[0]})
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

func (l *loader) parserSet(e *parserErrors, params []any) parseOp {
	dst := l.expression(params[0], sortData)
	if dst.op != opField {
		l.fail("a destination that is no field")
	}
	if text(get(params[1], "type")) == "lookahead" {
		v := get(params[1], "value")
		off := l.number(elem(v, 0), "offset of a lookahead", 0, maxBits)
		bits := l.number(elem(v, 1), "width of a lookahead", 1, maxBits)
		w := words(bits)
		at := l.g.words(w)
		store := l.g.store(l.place(dst), &expr{op: opScratch, idx: at, bits: bits})
		return func(k *packetState) int64 {
			if (off+bits+7)/8 > len(k.frame)-k.at {
				return int64(e.tooShort)
			}
			readWide(k.tmp[at:at+w], k.frame[k.at:], off, bits)
			store(k)
			return parsed
		}
	}
	src := l.expr(params[1], 0)
	var run func(k *packetState)
	switch {
	case dst.fld != nil && dst.fld.varbit && src.fld != nil && src.fld.varbit:
		run = l.assignVarbit(dst, src).run
	case src.sort == sortBool:
		run = l.g.store(l.place(dst), &expr{op: opToData, bits: 1, kids: [3]*expr{src}})
	default:
		run = l.g.store(l.place(dst), l.data(src, params[1]))
	}
	return func(k *packetState) int64 {
		run(k)
		return parsed
	}
}

// extraction compiles extract and extract_VL.
func (l *loader) extraction(p *parser, params []any) parseOp {
	e := &p.errs
	nothing := func(*packetState) int64 { return parsed }
	v := get(params[0], "value")
	var t *headerType
	var base baseFn
	next, size := -1, 0
	switch kind := text(get(params[0], "type")); kind {
	case "regular":
		h := l.header(v)
		t = h.typ
		b := h.base
		base = func(*packetState) int { return b }
	case "stack":
		s := l.stacks[text(v)]
		if s == nil {
			l.fail("no header stack is called %s", short(v))
			return nothing
		}
		t, next, size = s.typ, s.next, len(s.bases)
		base = func(k *packetState) int { return s.bases[k.v[s.next]] }
	case "union_stack":
		s := l.ustks[text(elem(v, 0))]
		if s == nil {
			l.fail("no header union stack is called %s", short(v))
			return nothing
		}
		m := l.unionMember(s, text(elem(v, 1)))
		if m < 0 {
			return nothing
		}
		t, next, size = s.elems[0].members[m].typ, s.next, len(s.elems)
		for _, u := range s.elems {
			if u.members[m].typ != t {
				l.fail("header union stack %s: unions of different types", s.name)
				return nothing
			}
		}
		base = func(k *packetState) int { return s.elems[k.v[s.next]].members[m].base }
	default:
		l.fail("unknown target %q", kind)
		return nothing
	}
	if l.err != nil {
		return nothing
	}
	var length lowFn
	switch {
	case len(params) == 2:
		if t.varbit == nil {
			l.fail("header type %s has no field of variable length", t.name)
			return nothing
		}
		length = l.g.index(l.expression(params[1], sortData))
	case t.varbit != nil:
		return l.extractComputed(e, t, text(get(params[0], "type")), v)
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

// extractComputed compiles the extraction of a header that computes the length
// of its varbit from its own fields in front of it.
func (l *loader) extractComputed(e *parserErrors, t *headerType, kind string, v any) parseOp {
	nothing := func(*packetState) int64 { return parsed }
	if t.lengthExp == nil || kind != "regular" {
		l.fail("header type %s: nothing says how long field %s is", t.name, t.varbit.name)
		return nothing
	}
	h := l.header(v)
	// The fields of the expression are those of the header that is extracted.
	self := "\x00self"
	l.names[self] = h
	length := l.g.index(l.expression(rename(t.lengthExp, self), sortData))
	delete(l.names, self)
	ahead := 0
	for _, f := range t.fields {
		if f.varbit {
			break
		}
		ahead += f.bits
	}
	return func(k *packetState) int64 {
		if (ahead+7)/8 > len(k.frame)-k.at {
			return int64(e.tooShort)
		}
		for _, f := range t.fields {
			if f.varbit {
				break
			}
			readWide(k.v[h.base+f.off:h.base+f.off+words(f.bits)], k.frame[k.at:], f.bitOff, f.bits)
		}
		if err := k.extractVariable(e, t, h.base, length(k)); err != parsed {
			return err
		}
		k.setValid(h.base)
		return parsed
	}
}

// rename gives the fields of an expression another header.
func rename(j any, to string) any {
	switch x := j.(type) {
	case map[string]any:
		y := map[string]any{}
		for k, v := range x {
			y[k] = rename(v, to)
		}
		if text(x["type"]) == "field" {
			y["value"] = []any{to, elem(x["value"], 1)}
		}
		return y
	case []any:
		y := make([]any, len(x))
		for i, v := range x {
			y[i] = rename(v, to)
		}
		return y
	}
	return j
}

func (l *loader) deparsers(root any) {
	all := list(get(root, "deparsers"))
	if len(all) == 0 {
		return
	}
	l.p.deparser = &deparser{code: l.primitives(get(all[0], "primitives"))}
	for _, v := range list(get(all[0], "order")) {
		h := l.header(v)
		if h.meta || h.typ.bits%8 != 0 {
			l.fail("deparser: %s is no header", h.name)
			return
		}
		l.p.deparser.order = append(l.p.deparser.order, h)
	}
}

func (l *loader) checksums(root any) {
	for _, j := range list(get(root, "checksums")) {
		c := &checksum{name: text(get(j, "name"))}
		l.in("checksum "+c.name, func() {
			c.hdr, c.fld = l.field(get(j, "target"))
			c.calc = l.calcs[text(get(j, "calculation"))]
			switch {
			case c.calc == nil:
				l.fail("no calculation is called %s", short(get(j, "calculation")))
			case c.fld.bits > 64:
				l.fail("field %s has more than 64 bits", c.fld.name)
			case c.fld == validity:
				l.fail("a validity is no checksum")
			}
			if cond := get(j, "if_cond"); cond != nil {
				c.when = l.condition(cond)
			}
		})
		if truth(get(j, "verify"), true) {
			l.p.verify = append(l.p.verify, c)
		}
		if truth(get(j, "update"), true) {
			l.p.update = append(l.p.update, c)
		}
	}
}
