package p4

import "math/rand/v2"

func (l *compiler) actions() {
	for _, j := range l.Actions {
		a := &action{index: len(l.p.actions)}
		a.Name = j.Name
		l.in("action "+a.Name, func() {
			a.ID = l.integer(j.ID, "id", 0, maxID)
			for _, p := range j.Params {
				bits := l.integer(p.Bitwidth, "width of parameter "+p.Name, 1, maxBits)
				a.Params = append(a.Params, FieldInfo{p.Name, bits})
				a.params = append(a.params, param{a.words, bits})
				a.words += words(bits)
			}
			l.params = a.params
			a.code = l.compile(j.Primitives)
			l.params = nil
		})
		if l.acts[a.ID] != nil {
			l.fail("two actions have id %d", a.ID)
		}
		l.acts[a.ID] = a
		l.p.actions = append(l.p.actions, a)
	}
}

// compile compiles the primitives of an action.
func (l *compiler) compile(ops []jsonOp) []step {
	code := make([]step, 0, len(ops))
	for _, op := range ops {
		l.in("primitive "+op.Op, func() {
			p, ok := l.p.arch.primitive(op.Op)
			if !ok {
				l.fail("unknown primitive")
			} else if n := len(op.Parameters); n != p.params {
				l.fail("%d parameters, want %d", n, p.params)
			}
			code = append(code, p.compile(call{l, op, len(ops)}))
		})
	}
	return code
}

// call is a primitive of an action that is being compiled.
type call struct {
	*compiler
	jsonOp
	of int
}

// number returns parameter i as a number, index as an index, a width or a distance, and place as the
// destination of an assignment.
func (c call) number(i int) *expr { return c.expression(&c.Parameters[i], sortData) }
func (c call) index(i int) lowFn  { return c.g.index(c.number(i)) }
func (c call) place(i int) *expr  { return c.target(c.number(i)) }

// name returns parameter i as the name of an object.
func (c call) name(i int) string { return c.Parameters[i].inner().text }

// two returns the first two parameters, both of sort s.
func (c call) two(s sort) (a, b *expr) {
	return c.expression(&c.Parameters[0], s), c.expression(&c.Parameters[1], s)
}

// assign stores a value in the first parameter.
func (c call) assign(e *expr) step { return step{run: c.g.store(c.place(0), e)} }

// primitive is a primitive with the number of its parameters.
type primitive struct {
	params  int
	compile func(c call) step
}

// primitives are the primitives of v1model.
var primitives = map[string]primitive{
	"assign":                              {2, func(c call) step { return c.assign(c.data(&c.Parameters[1])) }},
	"modify_field":                        {2, func(c call) step { return c.assign(c.data(&c.Parameters[1])) }},
	"add_to_field":                        {2, func(c call) step { return c.assign(arith(opAdd, c.number(0), c.number(1))) }},
	"subtract_from_field":                 {2, func(c call) step { return c.assign(arith(opSub, c.number(0), c.number(1))) }},
	"add":                                 {3, arithmetic(opAdd)},
	"subtract":                            {3, arithmetic(opSub)},
	"bit_xor":                             {3, arithmetic(opXor)},
	"bit_or":                              {3, arithmetic(opOr)},
	"bit_and":                             {3, arithmetic(opAnd)},
	"shift_left":                          {3, arithmetic(opShl)},
	"shift_right":                         {3, arithmetic(opShr)},
	"assign_VL":                           {2, func(c call) step { return c.assignVarbit(c.number(0), c.number(1)) }},
	"assign_header":                       {2, call.assignHeader},
	"copy_header":                         {2, call.assignHeader},
	"assign_union":                        {2, call.assignUnion},
	"assign_header_stack":                 {2, call.assignStack},
	"assign_union_stack":                  {2, call.assignUnionStack},
	"push":                                {2, call.shift},
	"pop":                                 {2, call.shift},
	"_jump":                               {1, func(c call) step { return c.jump(0, nil) }},
	"_jump_if_zero":                       {2, func(c call) step { return c.jump(1, c.condition(&c.Parameters[0])) }},
	"exit":                                {0, func(call) step { return step{run: func(k *packetState) { k.exit = true }} }},
	"no_op":                               {0, func(call) step { return step{run: func(*packetState) {}} }},
	"assume":                              {1, call.assert},
	"assert":                              {1, call.assert},
	"log_msg":                             {2, call.logMessage},
	"drop":                                {0, func(c call) step { return drop(c.p.std.egressSpec, c.p.std.group) }},
	"mark_to_drop":                        {1, call.markToDrop},
	"add_header":                          {1, func(c call) step { return c.addHeader(false) }},
	"add_header_fast":                     {1, func(c call) step { return c.addHeader(true) }},
	"remove_header":                       {1, call.removeHeader},
	"generate_digest":                     {2, func(c call) step { return request(c.index(1), func(k *packetState) *uint32 { return &k.digest }) }},
	"resubmit":                            {1, func(c call) step { return request(c.index(0), func(k *packetState) *uint32 { return &k.resubmitted }) }},
	"recirculate":                         {1, func(c call) step { return request(c.index(0), func(k *packetState) *uint32 { return &k.recirculate }) }},
	"clone_ingress_pkt_to_egress":         {2, call.clone},
	"clone_egress_pkt_to_egress":          {2, call.clone},
	"modify_field_rng_uniform":            {3, call.random},
	"modify_field_with_hash_based_offset": {4, call.hashed},
	"execute_meter":                       {3, call.meter},
	"count":                               {2, call.count},
	"register_read":                       {3, call.readRegister},
	"register_write":                      {3, call.writeRegister},
	"truncate":                            {1, call.cut},
}

func arithmetic(o op) func(call) step {
	return func(c call) step { return c.assign(arith(o, c.number(1), c.number(2))) }
}

func (c call) assignHeader() step {
	a, b := c.two(sortHeader)
	if a.typ != b.typ {
		c.fail("headers of different types")
	}
	to, from, w := c.g.base(a), c.g.base(b), a.typ.words
	return step{run: func(k *packetState) { k.assignHeader(to(k), from(k), w) }}
}

func (c call) assignUnion() step {
	x, y := c.two(sortUnion)
	a, b := c.g.union(x), c.g.union(y)
	return step{run: func(k *packetState) { k.assignUnion(a(k), b(k)) }}
}

func (c call) assignStack() step {
	x, y := c.two(sortStack)
	a, b := x.stack, y.stack
	if a.typ != b.typ || len(a.bases) != len(b.bases) {
		c.fail("header stacks of different types")
	}
	return step{run: func(k *packetState) {
		k.v[a.next] = k.v[b.next]
		for i := range a.bases {
			k.assignHeader(a.bases[i], b.bases[i], a.typ.words)
		}
	}}
}

func (c call) assignUnionStack() step {
	x, y := c.two(sortUnionStack)
	a, b := x.ustk, y.ustk
	if len(a.elems) != len(b.elems) {
		c.fail("header union stacks of different sizes")
	}
	return step{run: func(k *packetState) {
		k.v[a.next] = k.v[b.next]
		for i := range a.elems {
			k.assignUnion(a.elems[i], b.elems[i])
		}
	}}
}

// jump jumps to the primitive whose number is parameter i. With a test it jumps when the test fails.
func (c call) jump(i int, test testFn) step {
	to, ok := c.number(i).constant()
	if !ok || to > uint64(c.of) {
		c.fail("a jump to no primitive: there are %d", c.of)
	}
	return step{jump: int(to), test: test}
}

func (c call) assert() step {
	m := c.message(c.Op)
	if c.Source.Text != "" {
		m.format = c.Source.Text
	}
	test := c.condition(&c.Parameters[0])
	return step{run: func(k *packetState) {
		if !test(k) {
			k.failed, k.exit = Asserted, true
			k.sw.event(EventAssert, m.index, 0)
		}
	}}
}

// markToDrop compiles mark_to_drop. Its header may be a copy of standard_metadata that is copied back later.
func (c call) markToDrop() step {
	h := c.expression(&c.Parameters[0], sortHeader).hdr
	spec, group := stdFieldOf(h, "egress_spec"), stdFieldOf(h, "mcast_grp")
	if spec.slot < 0 {
		c.fail("want a header with egress_spec")
	}
	return drop(spec, group)
}

func drop(spec, group stdField) step {
	return step{run: func(k *packetState) {
		spec.set(k, uint64(k.sw.cfg.DropPort))
		group.set(k, 0)
	}}
}

func (c call) addHeader(fast bool) step {
	h := c.expression(&c.Parameters[0], sortHeader)
	base, t := c.g.base(h), h.typ
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
}

func (c call) removeHeader() step {
	h := c.expression(&c.Parameters[0], sortHeader)
	base, t := c.g.base(h), h.typ
	return step{run: func(k *packetState) {
		if b := base(k); b >= 0 && k.v[b] != 0 {
			k.length -= uint64(k.bytes(t, b))
			k.v[b] = 0
		}
	}}
}

// request returns a step that stores the id of a field list, as a request to the architecture.
func request(id lowFn, of func(k *packetState) *uint32) step {
	return step{run: func(k *packetState) { *of(k) = uint32(id(k) & 0xffff) }}
}

func (c call) clone() step {
	id, fields := c.index(0), c.index(1)
	return step{run: func(k *packetState) {
		k.session = uint32(id(k)&0x7fff) | sessionValid
		k.cloneList = uint32(fields(k) & 0xffff)
	}}
}

func (c call) cut() step {
	size := c.index(0)
	return step{run: func(k *packetState) { k.truncate = int(min(uint64(k.truncate), size(k))) }}
}

// condition compiles a parameter that is a bool, or a number that counts as true if it is not 0.
func (l *compiler) condition(v *jsonValue) testFn { return l.g.test(l.truth(v)) }

// truth reads a bool, or a number that counts as true if it is not 0.
func (l *compiler) truth(v *jsonValue) *expr {
	e := l.expr(v)
	if e.sort == sortData {
		e = &expr{op: opToBool, sort: sortBool, kids: [3]*expr{e}}
	}
	return l.sorted(e, sortBool, v)
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

// assignVarbit copies a varbit field and its length.
func (l *compiler) assignVarbit(a, b *expr) step {
	if a.fld == nil || b.fld == nil || !a.fld.varbit || !b.fld.varbit {
		l.fail("want two fields of variable length")
	}
	to, from := l.g.holder(a), l.g.holder(b)
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

// shift compiles push and pop.
func (c call) shift() step {
	var rows [][]int // bases of headers that move together
	var w []int      // their numbers of words
	e := c.expr(&c.Parameters[0])
	size := 0
	switch e.sort {
	case sortStack:
		rows, w, size = [][]int{e.stack.bases}, []int{e.typ.words}, len(e.stack.bases)
	case sortUnionStack:
		size = len(e.ustk.elems)
		for i, h := range e.ustk.elems[0].members {
			var bases []int
			for _, u := range e.ustk.elems {
				bases = append(bases, u.members[i].base)
			}
			rows, w = append(rows, bases), append(w, h.typ.words)
		}
	default:
		c.fail("a %s where a stack belongs", sortNames[e.sort])
	}
	next, by, push := e.next(), c.index(1), c.Op == "push"
	return step{run: func(k *packetState) {
		n := int(min(by(k), uint64(size)))
		if push {
			k.v[next] = min(k.v[next]+uint64(n), uint64(size))
		} else {
			k.v[next] -= min(k.v[next], uint64(n))
		}
		if n == 0 {
			return
		}
		for r, bases := range rows {
			k.shift(bases, w[r], n, push)
		}
	}}
}

// shift moves headers of w words by n places, up or down, and clears the places that become free.
func (k *packetState) shift(bases []int, w, n int, up bool) {
	for i := range bases {
		to, from := bases[i], i+n
		if up {
			to, from = bases[len(bases)-1-i], len(bases)-1-i-n
		}
		if from >= 0 && from < len(bases) {
			copy(k.v[to:to+w], k.v[bases[from]:])
		} else {
			clear(k.v[to : to+w])
		}
	}
}

// message registers the format of a log message.
func (l *compiler) message(format string) *logMessage {
	m := &logMessage{format: format, index: len(l.p.logs)}
	l.p.logs = append(l.p.logs, m)
	return m
}

func (c call) logMessage() step {
	m := c.message(c.name(0))
	for _, v := range c.Parameters[1].inner().list {
		e := c.data(v)
		n := wordsFor(e)
		at := c.g.words(n)
		m.values = append(m.values, logValue{c.g.store(&expr{op: opScratch, idx: at, bits: 64 * n}, e), n, at})
	}
	return step{run: m.log}
}

// computed returns a scratch word for a number that Go code computes, and a function that stores the number in
// parameter to.
func (c call) computed(to int) (at int, store func(k *packetState)) {
	at = c.g.words(1)
	return at, c.g.store(c.place(to), &expr{op: opScratch, idx: at, bits: 64})
}

// random stores a random number between the second and the third parameter. It stores nothing if the third is
// smaller.
func (c call) random() step {
	at, store := c.computed(0)
	lo, hi := c.index(1), c.index(2)
	return step{run: func(k *packetState) {
		a, b := lo(k), hi(k)
		if a > b {
			return
		}
		k.tmp[at] = a + uniform(k.sw.rand, b-a)
		store(k)
	}}
}

// uniform returns a random number from 0 to most.
func uniform(r *rand.Rand, most uint64) uint64 {
	if most == ^uint64(0) {
		return r.Uint64()
	}
	return r.Uint64N(most + 1)
}

func (c call) hashed() step {
	calc := find(c.document, c.calcs, "calculation", c.name(2))
	at, store := c.computed(0)
	base, size := c.index(1), c.index(3)
	return step{run: func(k *packetState) {
		v, b := calc.output(k), base(k)
		k.tmp[at] = v%max(1, size(k)) + b
		store(k)
	}}
}

// A counter or a meter ignores an index that is too large.

func (c call) count() step {
	i, index := find(c.document, c.ctrs, "counter", c.name(0)), c.index(1)
	return step{run: func(k *packetState) {
		cells, n := k.sw.counters[i], index(k)
		if n < uint64(len(cells)) {
			cells[n].Packets++
			cells[n].Bytes += uint64(k.arrived)
		}
	}}
}

func (c call) meter() step {
	i, index := find(c.document, c.mtrs, "meter", c.name(0)), c.index(1)
	def := c.p.meters[i]
	at, store := c.computed(2)
	return step{run: func(k *packetState) {
		cells, n := k.sw.meters[i], index(k)
		if n < uint64(def.Size) {
			k.tmp[at] = k.sw.color(def, def.at(cells, int(n)), k.arrived)
			store(k)
		}
	}}
}

// cell returns the cell of a register; register and index are the numbers of the parameters.
func (c call) cell(register, index int) *expr {
	return c.cellExpr(c.name(register), c.number(index))
}

// readRegister reads a register. If the index is too large, the destination keeps its value.
func (c call) readRegister() step {
	to, cell := c.place(0), c.cell(1, 2)
	where := c.g.where(cell)
	if f := to.fld; to.op == opField && cell.reg.Bits <= f.bits && f.bits <= 64 && !f.saturate {
		at := f.off + to.hdr.base
		return step{run: func(k *packetState) {
			if w := where(k); w != nil {
				k.v[at] = w[0]
			}
		}}
	}
	n := cell.reg.words
	at := c.g.words(n)
	store := c.g.store(to, &expr{op: opScratch, idx: at, bits: cell.bits})
	return step{run: func(k *packetState) {
		if w := where(k); w != nil {
			copy(k.tmp[at:at+n], w)
			store(k)
		}
	}}
}

func (c call) writeRegister() step { return step{run: c.g.store(c.cell(0, 1), c.number(2))} }

// target returns e if a value may be assigned to it, else loading fails.
func (l *compiler) target(e *expr) *expr {
	switch e.op {
	case opField, opMember, opLast, opRegister:
		return e
	}
	l.fail("an assignment to what is no field")
	return nil
}
