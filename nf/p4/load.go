package p4

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// loader turns JSON into a Program. The first thing that is wrong is kept in
// err; what follows it goes on with harmless values, and is thrown away.
type loader struct {
	p      *Program
	g      generator
	err    error
	where  []string
	types  map[string]*headerType
	names  map[string]*header
	ids    map[int]*header
	stacks map[string]*stack
	unions map[string]*union
	byUID  map[int]*union
	ustks  map[string]*unionStack
	alias  map[string][2]string
	calcs  map[string]*calculation
	regs   map[string]int
	ctrs   map[string]int
	mtrs   map[string]int
	acts   map[int]*action
	nodes  map[string]int
	params []param // of the action that is compiled
	cells  int     // words of all counters, meters and registers
}

// Load reads a compiled program. An error says what is wrong, and where.
func Load(src []byte) (*Program, error) {
	var root any
	if err := json.Unmarshal(src, &root); err != nil {
		return nil, fmt.Errorf("p4: no JSON: %w", err)
	}
	l := &loader{p: &Program{ingress: noNode, egress: noNode, errors: map[string]uint32{}},
		types: map[string]*headerType{}, names: map[string]*header{}, ids: map[int]*header{},
		stacks: map[string]*stack{}, unions: map[string]*union{}, byUID: map[int]*union{}, ustks: map[string]*unionStack{},
		alias: map[string][2]string{}, calcs: map[string]*calculation{}, regs: map[string]int{}, ctrs: map[string]int{},
		mtrs: map[string]int{}, acts: map[int]*action{}, nodes: map[string]int{}}
	if _, ok := root.(map[string]any); !ok {
		return nil, fmt.Errorf("p4: the JSON is no object: want the output of p4c-bm2-ss")
	}
	for _, step := range []func(any){l.version, l.headers, l.aliases, l.standard, l.errorCodes, l.arrays, l.calculations,
		l.valueSets, l.fieldLists, l.digests, l.actions, l.parsers, l.deparsers, l.pipelines, l.checksums} {
		step(root)
		if l.err != nil {
			return nil, l.err
		}
	}
	if l.p.tmp = l.g.tmp; l.p.tmp > maxSlots {
		return nil, fmt.Errorf("p4: the expressions need %d words at once, more than %d", l.p.tmp, maxSlots)
	}
	return l.p, nil
}

// fail notes the first error.
func (l *loader) fail(format string, args ...any) {
	if l.err == nil {
		at := strings.Join(l.where, ", ")
		if at != "" {
			at += ": "
		}
		// Names of a program may have any characters in them; an error is one line.
		l.err = errors.New("p4: " + strings.Map(printed, at+fmt.Sprintf(format, args...)))
	}
}

func printed(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// in runs f with a part of the program added to what errors name.
func (l *loader) in(what string, f func()) {
	l.where = append(l.where, what)
	f()
	l.where = l.where[:len(l.where)-1]
}

// The accessors of JSON values. A value of another sort is the zero value.

func get(v any, key string) any {
	o, _ := v.(map[string]any)
	return o[key]
}

func has(v any, key string) bool {
	o, _ := v.(map[string]any)
	return o[key] != nil
}

func list(v any) []any {
	a, _ := v.([]any)
	return a
}

func elem(v any, i int) any {
	if a := list(v); i < len(a) {
		return a[i]
	}
	return nil
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func truth(v any, otherwise bool) bool {
	if b, ok := v.(bool); ok {
		return b
	}
	return otherwise
}

// number is an integer from lowest to highest.
func (l *loader) number(v any, what string, lowest, highest int) int {
	f, ok := v.(float64)
	if !ok || f != float64(int64(f)) || f < float64(lowest) || f > float64(highest) {
		l.fail("%s is %s, want an integer from %d to %d", what, short(v), lowest, highest)
		return lowest
	}
	return int(f)
}

// short shows a JSON value in an error.
func short(v any) string {
	b, _ := json.Marshal(v)
	if len(b) > 40 {
		b = append(b[:40], "..."...)
	}
	return string(b)
}

// hex reads a hexstr: a number with an optional sign and 0x.
func (l *loader) hex(v any) *big.Int {
	s := text(v)
	digits, neg := strings.CutPrefix(s, "-")
	digits = strings.TrimPrefix(digits, "0x")
	n, ok := new(big.Int), len(digits) > 0 && len(digits) <= maxBits/4
	if ok {
		_, ok = n.SetString(digits, 16)
	}
	if !ok || n.Sign() < 0 {
		l.fail("%s is no hexadecimal number", short(v))
		return new(big.Int)
	}
	if neg {
		n.Neg(n)
	}
	return n
}

// hexWords reads a hexstr that is at least 0 and fits bits.
func (l *loader) hexWords(v any, bits int) []uint64 {
	n := l.hex(v)
	if n.Sign() < 0 || n.BitLen() > bits {
		l.fail("%s does not fit %d bits", short(v), bits)
		return make([]uint64, words(bits))
	}
	return bigWords(n, words(bits))
}

// bigWords is n in w words of two's complement.
func bigWords(n *big.Int, w int) []uint64 {
	out := make([]uint64, w)
	b := new(big.Int).Abs(n).Bytes()
	for i, x := range b {
		if at := len(b) - 1 - i; at/8 < w {
			out[at/8] |= uint64(x) << uint(at%8*8)
		}
	}
	if n.Sign() < 0 {
		zero := make([]uint64, w)
		wSub(out, zero, out)
	}
	return out
}

// decimal shows a number in two's complement.
func decimal(v []uint64) string {
	neg := int64(v[len(v)-1]) < 0
	a := slices.Clone(v)
	if neg {
		wSub(a, make([]uint64, len(a)), v)
	}
	n := new(big.Int)
	for i := len(a) - 1; i >= 0; i-- {
		n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(a[i]))
	}
	if neg {
		n.Neg(n)
	}
	return n.String()
}

func constBig(n *big.Int) *expr {
	e := &expr{op: opConst, bits: n.BitLen(), neg: n.Sign() < 0}
	if e.bits > maxRange {
		e.bits = maxRange
	}
	e.c = bigWords(n, wordsFor(e))
	return e
}

func (l *loader) version(root any) {
	v := get(get(root, "__meta__"), "version")
	if v == nil {
		return
	}
	if major, _ := elem(v, 0).(float64); major != 2 {
		l.fail("format version %s, want 2.x: compile with a current p4c-bm2-ss", short(v))
	}
}

// slot takes words of the state.
func (l *loader) slot(n int) int {
	at := l.p.slots
	if n > maxSlots-at {
		l.fail("the headers need more than %d words", maxSlots)
		return 0
	}
	l.p.slots += n
	return at
}

func (l *loader) headers(root any) {
	for _, j := range list(get(root, "header_types")) {
		t := &headerType{name: text(get(j, "name")), index: map[string]*field{}}
		l.in("header type "+t.name, func() { l.headerType(t, j) })
		if l.types[t.name] != nil {
			l.fail("two header types are called %q", t.name)
		}
		l.types[t.name] = t
	}
	for _, j := range list(get(root, "headers")) {
		h := &header{name: text(get(j, "name")), typ: l.typeOf(get(j, "header_type")), meta: truth(get(j, "metadata"), false)}
		if l.err != nil {
			return
		}
		h.id = l.number(get(j, "id"), "id of header "+h.name, 0, 1<<31-1)
		if l.names[h.name] != nil || l.ids[h.id] != nil {
			l.fail("two headers are called %q, or have id %d", h.name, h.id)
		}
		if !h.meta && h.typ.bits%8 != 0 {
			l.fail("header %s has %d bits, want whole bytes", h.name, h.typ.bits)
		}
		h.base = l.slot(h.typ.words)
		if h.meta {
			l.p.reset = append(l.p.reset, slotValue{h.base, 1})
		}
		l.names[h.name], l.ids[h.id] = h, h
		l.p.headers = append(l.p.headers, h)
		if l.err != nil {
			return
		}
	}
	for _, j := range list(get(root, "header_stacks")) {
		s := &stack{name: text(get(j, "name")), typ: l.typeOf(get(j, "header_type")), next: l.slot(1)}
		for _, id := range list(get(j, "header_ids")) {
			h := l.headerByID(id)
			if h == nil {
				return
			}
			if h.typ != s.typ {
				l.fail("header stack %s: header %s is no %s", s.name, h.name, s.typ.name)
				return
			}
			s.bases, s.elems = append(s.bases, h.base), append(s.elems, h)
		}
		l.stacks[s.name] = s
	}
	types := map[string][]string{}
	for _, j := range list(get(root, "header_union_types")) {
		var members []string
		for _, m := range list(get(j, "headers")) {
			members = append(members, text(elem(m, 0)))
		}
		types[text(get(j, "name"))] = members
	}
	for _, j := range list(get(root, "header_unions")) {
		u := &union{name: text(get(j, "name")), types: types[text(get(j, "union_type"))]}
		for _, id := range list(get(j, "header_ids")) {
			h := l.headerByID(id)
			if h == nil {
				return
			}
			u.members = append(u.members, h)
		}
		if len(u.members) != len(u.types) {
			l.fail("header union %s has %d headers, its type %d", u.name, len(u.members), len(u.types))
			return
		}
		for _, h := range u.members {
			for _, o := range u.members {
				if o != h {
					h.others = append(h.others, o.base)
				}
			}
		}
		l.unions[u.name] = u
		l.byUID[l.number(get(j, "id"), "id of header union "+u.name, 0, 1<<31-1)] = u
	}
	for _, j := range list(get(root, "header_union_stacks")) {
		s := &unionStack{name: text(get(j, "name")), next: l.slot(1)}
		for _, id := range list(get(j, "header_union_ids")) {
			u := l.byUID[l.number(id, "a header_union_id", 0, 1<<31-1)]
			if u == nil || len(s.elems) > 0 && len(u.members) != len(s.elems[0].members) {
				l.fail("header union stack %s: %s is no union of its type", s.name, short(id))
				return
			}
			s.elems = append(s.elems, u)
		}
		if len(s.elems) == 0 {
			l.fail("header union stack %s is empty", s.name)
			return
		}
		l.ustks[s.name] = s
	}
}

func (l *loader) headerType(t *headerType, j any) {
	t.words = 1
	maxBytes := 0
	if has(j, "max_length") {
		maxBytes = l.number(get(j, "max_length"), "max_length", 0, maxBits/8)
	}
	for _, jf := range list(get(j, "fields")) {
		f := &field{name: text(elem(jf, 0)), signed: truth(elem(jf, 2), false), saturate: truth(elem(jf, 3), false),
			off: t.words, bitOff: t.bits}
		if t.index[f.name] != nil {
			l.fail("two fields are called %q", f.name)
		}
		t.index[f.name] = f
		t.fields = append(t.fields, f)
		if text(elem(jf, 1)) == "*" {
			if t.varbit != nil {
				l.fail("two fields of variable length: %s and %s", t.varbit.name, f.name)
			}
			f.varbit, t.varbit = true, f
			continue
		}
		f.bits = l.number(elem(jf, 1), "width of field "+f.name, 1, maxBits)
		if f.signed && f.bits < 2 {
			l.fail("field %s: a signed field has at least 2 bits", f.name)
		}
		t.words += words(f.bits)
		t.bits += f.bits
		if t.bits > maxBits {
			l.fail("more than %d bits", maxBits)
			return
		}
	}
	if f := t.varbit; f != nil {
		f.bits = maxBytes*8 - t.bits
		if maxBytes == 0 {
			f.bits = 2048
		}
		if f.bits <= 0 {
			l.fail("max_length %d leaves nothing for field %s", maxBytes, f.name)
			f.bits = 8
		}
		// The varbit goes to the end of the state.
		f.off = t.words
		f.lengthOff = t.words + words(f.bits)
		t.words = f.lengthOff + 1
	}
	t.lengthExp = get(j, "length_exp")
	t.planLoads()
}

func (l *loader) typeOf(v any) *headerType {
	t := l.types[text(v)]
	if t == nil {
		l.fail("no header type is called %s", short(v))
		return &headerType{index: map[string]*field{}, words: 1}
	}
	return t
}

func (l *loader) headerByID(v any) *header {
	h := l.ids[l.number(v, "a header id", 0, 1<<31-1)]
	if h == nil {
		l.fail("no header has id %s", short(v))
	}
	return h
}

// header finds a header by name; on failure it is a header without fields.
func (l *loader) header(v any) *header {
	h := l.names[text(v)]
	if h == nil {
		l.fail("no header is called %s", short(v))
		return &header{typ: &headerType{index: map[string]*field{}, words: 1}}
	}
	return h
}

var noField = &field{name: "?", bits: 1}

// field finds [header, field], or an alias; the field $valid$ of a header is
// its validity.
func (l *loader) field(v any) (*header, *field) {
	hn, fn := text(elem(v, 0)), text(elem(v, 1))
	if a, ok := l.alias[hn+"."+fn]; ok {
		hn, fn = a[0], a[1]
	}
	h := l.names[hn]
	if h == nil {
		l.fail("no header is called %q", hn)
		return &header{typ: &headerType{index: map[string]*field{}, words: 1}}, noField
	}
	if fn == "$valid$" {
		return h, validity
	}
	f := h.typ.index[fn]
	if f == nil {
		l.fail("header %s has no field %q", hn, fn)
		return h, noField
	}
	return h, f
}

// validity is a header's validity as a field.
var validity = &field{name: "$valid$", bits: 1}

func (l *loader) aliases(root any) {
	for _, j := range list(get(root, "field_aliases")) {
		to := elem(j, 1)
		l.field(to)
		l.alias[text(elem(j, 0))] = [2]string{text(elem(to, 0)), text(elem(to, 1))}
	}
}

func (l *loader) standard(any) {
	std := func(header, name string) stdField {
		if a, ok := l.alias[header+"."+name]; ok {
			header, name = a[0], a[1]
		}
		h := l.names[header]
		if h == nil || h.typ.index[name] == nil {
			return stdField{slot: -1}
		}
		f := h.typ.index[name]
		return stdField{h.base + f.off, mask64(f.bits)}
	}
	s := &l.p.std
	for _, x := range []struct {
		to           *stdField
		header, name string
		must         bool
	}{
		{&s.ingressPort, "standard_metadata", "ingress_port", true},
		{&s.packetLength, "standard_metadata", "packet_length", true},
		{&s.instanceType, "standard_metadata", "instance_type", true},
		{&s.egressSpec, "standard_metadata", "egress_spec", true},
		{&s.egressPort, "standard_metadata", "egress_port", true},
		{&s.parserError, "standard_metadata", "parser_error", false},
		{&s.checksumError, "standard_metadata", "checksum_error", false},
		{&s.ingressTime, "intrinsic_metadata", "ingress_global_timestamp", false},
		{&s.egressTime, "intrinsic_metadata", "egress_global_timestamp", false},
		{&s.group, "intrinsic_metadata", "mcast_grp", false},
		{&s.rid, "intrinsic_metadata", "egress_rid", false},
		{&s.priority, "intrinsic_metadata", "priority", false},
		{&s.enqTime, "queueing_metadata", "enq_timestamp", false},
		{&s.enqDepth, "queueing_metadata", "enq_qdepth", false},
		{&s.deqTime, "queueing_metadata", "deq_timedelta", false},
		{&s.deqDepth, "queueing_metadata", "deq_qdepth", false},
		{&s.qid, "queueing_metadata", "qid", false},
	} {
		*x.to = std(x.header, x.name)
		if x.must && x.to.slot < 0 {
			l.fail("no field %s.%s: this is no program for v1model", x.header, x.name)
		}
	}
}

var coreErrors = []string{"NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout", "ParserInvalidArgument"}

func (l *loader) errorCodes(root any) {
	next := uint32(0)
	for _, j := range list(get(root, "errors")) {
		v := uint32(l.number(elem(j, 1), "value of error "+text(elem(j, 0)), 0, 1<<31-1))
		l.p.errors[text(elem(j, 0))] = v
		next = max(next, v+1)
	}
	for _, name := range coreErrors {
		if _, ok := l.p.errors[name]; !ok {
			l.p.errors[name] = next
			next++
		}
	}
}

// maxArray is the longest array, and maxCells how many words all have, 2 GiB.
const (
	maxArray = 1 << 26
	maxCells = 1 << 28
)

// hold counts the words of an array.
func (l *loader) hold(n int) {
	if l.cells += n; l.cells > maxCells {
		l.fail("more than %d words of counters, meters and registers", maxCells)
	}
}

func (l *loader) array(j any, what string) ArrayInfo {
	a := ArrayInfo{Name: text(get(j, "name"))}
	a.ID = l.number(get(j, "id"), "id of "+what+" "+a.Name, 0, 1<<31-1)
	if has(j, "size") {
		a.Size = l.number(get(j, "size"), "size of "+what+" "+a.Name, 0, maxArray)
	}
	return a
}

func (l *loader) arrays(root any) {
	for _, j := range list(get(root, "counter_arrays")) {
		if truth(get(j, "is_direct"), false) {
			continue
		}
		c := &arrayDef{l.array(j, "counter")}
		l.hold(2 * c.Size)
		l.ctrs[c.Name] = len(l.p.counters)
		l.p.counters = append(l.p.counters, c)
	}
	for _, j := range list(get(root, "meter_arrays")) {
		m := &meterDef{ArrayInfo: l.array(j, "meter"), direct: truth(get(j, "is_direct"), false), rates: 2}
		switch t := text(get(j, "type")); t {
		case "bytes":
			m.Byte = true
		case "packets":
		default:
			l.fail("meter %s counts %q, want bytes or packets", m.Name, t)
		}
		if has(j, "rate_count") {
			m.rates = l.number(get(j, "rate_count"), "rate_count of meter "+m.Name, 1, 8)
		}
		if m.direct {
			h, f := l.field(get(j, "result_target"))
			m.target = stdField{h.base + f.off, mask64(f.bits)}
		} else {
			l.hold(5 * m.Size)
		}
		l.mtrs[m.Name] = len(l.p.meters)
		l.p.meters = append(l.p.meters, m)
	}
	for _, j := range list(get(root, "register_arrays")) {
		r := &registerDef{ArrayInfo: l.array(j, "register")}
		r.Bits = l.number(get(j, "bitwidth"), "bitwidth of register "+r.Name, 1, maxBits)
		r.words = words(r.Bits)
		if r.Size*r.words > maxArray {
			l.fail("register %s: more than %d words", r.Name, maxArray)
			return
		}
		l.hold(r.Size * r.words)
		l.regs[r.Name] = len(l.p.registers)
		l.p.registers = append(l.p.registers, r)
	}
}

func (l *loader) calculations(root any) {
	for _, j := range list(get(root, "calculations")) {
		c := &calculation{name: text(get(j, "name")), index: len(l.p.calcs)}
		l.in("calculation "+c.name, func() { l.calculation(c, j) })
		l.calcs[c.name] = c
		l.p.calcs = append(l.p.calcs, c)
	}
}

func (l *loader) calculation(c *calculation, j any) {
	algo := text(get(j, "algo"))
	if c.hash = algorithm(algo); c.hash == nil {
		l.fail("unknown hash algorithm %q", algo)
	}
	c.sum = algo == "csum16" || algo == "cksum16"
	for _, in := range list(get(j, "input")) {
		v := get(in, "value")
		switch t := text(get(in, "type")); t {
		case "field":
			h, f := l.field(v)
			c.inputs = append(c.inputs, input{hdr: h, fld: f})
		case "header":
			c.inputs = append(c.inputs, input{hdr: l.header(v)})
		case "hexstr":
			n := l.number(get(in, "bitwidth"), "bitwidth", 0, maxBits)
			c.inputs = append(c.inputs, input{value: l.hexWords(v, n), bits: n})
		case "payload":
			c.payload = true
		default:
			l.fail("unknown input %q", t)
		}
	}
	if c.sum && l.err == nil {
		c.planSum()
	}
}

func (l *loader) valueSets(root any) {
	for _, j := range list(get(root, "parse_vsets")) {
		name := text(get(j, "name"))
		bits := l.number(get(j, "compressed_bitwidth"), "width of value set "+name, 1, maxBits)
		l.p.vsets = append(l.p.vsets, &valueSetDef{name, bits})
	}
}

func (l *loader) fieldLists(root any) {
	for _, j := range list(get(root, "field_lists")) {
		id := l.number(get(j, "id"), "id of field list "+text(get(j, "name")), 0, 1<<16-1)
		var ranges []copyRange
		for _, e := range list(get(j, "elements")) {
			switch text(get(e, "type")) {
			case "field":
				h, f := l.field(get(e, "value"))
				ranges = append(ranges, copyRange{h.base + f.off, words(f.bits)})
				if f.varbit {
					ranges = append(ranges, copyRange{h.base + f.lengthOff, 1})
				}
			case "header":
				h := l.header(get(e, "value"))
				ranges = append(ranges, copyRange{h.base + 1, h.typ.words - 1})
			}
		}
		l.p.lists = put(l.p.lists, id, ranges)
	}
}

func (l *loader) digests(root any) {
	for _, j := range list(get(root, "learn_lists")) {
		d := &digestDef{DigestInfo: DigestInfo{Name: text(get(j, "name"))}}
		d.ID = l.number(get(j, "id"), "id of learn list "+d.Name, 0, 1<<31-1)
		for _, e := range list(get(j, "elements")) {
			v := get(e, "value")
			h, f := l.field(v)
			d.fields = append(d.fields, slotField{h.base + f.off, f.bits})
			d.Fields = append(d.Fields, FieldInfo{text(elem(v, 0)) + "." + f.name, f.bits})
		}
		l.p.digests = append(l.p.digests, d)
	}
}

// expression reads an expression. Its sort is that asked for, or l has failed.
func (l *loader) expression(j any, want sort) *expr {
	e := l.expr(j, 0)
	if e.sort != want {
		l.fail("an expression yields a %s, want a %s: %s", sortNames[e.sort], sortNames[want], short(j))
		return broken(want)
	}
	return e
}

var sortNames = [...]string{"number", "bool", "header", "header stack", "header union", "header union stack"}

// broken stands for an expression that failed.
func broken(s sort) *expr {
	if s == sortData {
		return constExpr(0)
	}
	e := &expr{op: opFalse, sort: s, typ: &headerType{index: map[string]*field{}, words: 1}}
	e.stack, e.ustk, e.union = &stack{typ: e.typ}, &unionStack{elems: []*union{{}}}, &union{}
	e.hdr = &header{typ: e.typ}
	return e
}

// maxDepth is how deep expressions may be nested.
const maxDepth = 1000

func (l *loader) expr(j any, depth int) *expr {
	if depth > maxDepth {
		l.fail("an expression is nested deeper than %d", maxDepth)
	}
	if l.err != nil {
		return constExpr(0)
	}
	v := get(j, "value")
	switch t := text(get(j, "type")); t {
	case "expression":
		if !has(v, "op") { // an expression in an expression
			return l.expr(v, depth+1)
		}
		return l.operation(v, depth)
	case "field":
		if at := elem(v, 0); has(at, "op") { // of an element of a stack, as p4c writes its validity
			h := l.want(l.operation(at, depth+1), sortHeader, j)
			return memberExpr(h, l.member(h.typ, text(elem(v, 1))))
		}
		h, f := l.field(v)
		return fieldExpr(h, f)
	case "hexstr":
		return constBig(l.hex(v))
	case "bool":
		if truth(v, false) {
			return &expr{op: opTrue, sort: sortBool}
		}
		return &expr{op: opFalse, sort: sortBool}
	case "local", "runtime_data":
		if len(l.params) == 0 {
			l.fail("an action's parameter where there is none")
			return constExpr(0)
		}
		p := l.params[l.number(v, "index of a parameter", 0, len(l.params)-1)]
		return &expr{op: opLocal, idx: p.at, bits: p.bits}
	case "register":
		i, ok := l.regs[text(elem(v, 0))]
		if !ok {
			l.fail("no register is called %s", short(elem(v, 0)))
			return constExpr(0)
		}
		idx := l.expr(elem(v, 1), depth+1)
		return &expr{op: opRegister, reg: l.p.registers[i], regAt: i, bits: l.p.registers[i].Bits, kids: [3]*expr{l.data(idx, j)}}
	case "header":
		h := l.header(v)
		return &expr{op: opHeader, sort: sortHeader, hdr: h, typ: h.typ}
	case "header_stack":
		s := l.stacks[text(v)]
		if s == nil {
			l.fail("no header stack is called %s", short(v))
			return broken(sortStack)
		}
		return &expr{op: opStack, sort: sortStack, stack: s, typ: s.typ}
	case "stack_field":
		s := l.stacks[text(elem(v, 0))]
		if s == nil {
			l.fail("no header stack is called %s", short(elem(v, 0)))
			return constExpr(0)
		}
		name := text(elem(v, 1))
		if name == "last" && s.typ.index[name] == nil { // the header, not a field of it
			st := &expr{op: opStack, sort: sortStack, stack: s, typ: s.typ}
			last := &expr{op: opLastIndex, neg: true, bits: 20, kids: [3]*expr{st}}
			return &expr{op: opElem, sort: sortHeader, typ: s.typ, kids: [3]*expr{st, last}}
		}
		f := l.member(s.typ, name)
		e := &expr{op: opLast, stack: s, fld: f}
		e.signedAs(f)
		return e
	case "header_union":
		u := l.unions[text(v)]
		if u == nil {
			l.fail("no header union is called %s", short(v))
			return broken(sortUnion)
		}
		return &expr{op: opUnion, sort: sortUnion, union: u}
	case "header_union_stack":
		s := l.ustks[text(v)]
		if s == nil {
			l.fail("no header union stack is called %s", short(v))
			return broken(sortUnionStack)
		}
		return &expr{op: opUnionStack, sort: sortUnionStack, ustk: s}
	default:
		l.fail("unknown expression: %s", short(j))
	}
	return constExpr(0)
}

func (l *loader) member(t *headerType, name string) *field {
	if name == "$valid$" {
		return validity
	}
	f := t.index[name]
	if f == nil {
		l.fail("header type %s has no field %q", t.name, name)
		return noField
	}
	return f
}

func (l *loader) want(e *expr, s sort, j any) *expr {
	if e.sort != s {
		l.fail("a %s where a %s belongs: %s", sortNames[e.sort], sortNames[s], short(j))
		return broken(s)
	}
	return e
}

func (l *loader) data(e *expr, j any) *expr { return l.want(e, sortData, j) }

var dataOps = map[string]op{"+": opAdd, "-": opSub, "*": opMul, "/": opDiv, "%": opMod, "<<": opShl, ">>": opShr,
	"&": opAnd, "|": opOr, "^": opXor}

var orderOps = map[string]op{"<": opLt, "<=": opLe, ">": opGt, ">=": opGe}

// maxDivision is the widest number that is divided.
const maxDivision = 4096

// operation reads {op, left, right, cond}.
func (l *loader) operation(j any, depth int) *expr {
	name := text(get(j, "op"))
	left := func(s sort) *expr { return l.want(l.expr(get(j, "left"), depth+1), s, j) }
	right := func(s sort) *expr { return l.want(l.expr(get(j, "right"), depth+1), s, j) }
	if o, ok := dataOps[name]; ok {
		a := constExpr(0)
		if has(j, "left") || name != "+" && name != "-" {
			a = left(sortData)
		}
		b := right(sortData)
		if (o == opDiv || o == opMod) && max(a.bits, b.bits) > maxDivision {
			l.fail("a division of numbers of more than %d bits", maxDivision)
		}
		return arith(o, a, b)
	}
	if o, ok := orderOps[name]; ok {
		return &expr{op: o, sort: sortBool, kids: [3]*expr{left(sortData), right(sortData)}}
	}
	switch name {
	case "==", "!=":
		a, b := l.expr(get(j, "left"), depth+1), l.expr(get(j, "right"), depth+1)
		e := &expr{sort: sortBool, kids: [3]*expr{a, l.want(b, a.sort, j)}}
		for _, x := range []struct {
			s      sort
			eq, ne op
		}{{sortData, opEq, opNe}, {sortBool, opEqBool, opNeBool}, {sortHeader, opEqHeader, opNeHeader}, {sortUnion, opEqUnion, opNeUnion}} {
			if a.sort == x.s {
				e.op = x.eq
				if name == "!=" {
					e.op = x.ne
				}
				return e
			}
		}
		l.fail("a %s cannot be compared", sortNames[a.sort])
		return broken(sortBool)
	case "and":
		return &expr{op: opAndAlso, sort: sortBool, kids: [3]*expr{left(sortBool), right(sortBool)}}
	case "or":
		return &expr{op: opOrElse, sort: sortBool, kids: [3]*expr{left(sortBool), right(sortBool)}}
	case "not":
		return &expr{op: opNot, sort: sortBool, kids: [3]*expr{right(sortBool)}}
	case "~":
		a := right(sortData)
		return &expr{op: opNeg, neg: true, bits: a.bits, kids: [3]*expr{a}}
	case "valid":
		return &expr{op: opValid, sort: sortBool, kids: [3]*expr{right(sortHeader)}}
	case "valid_union":
		return &expr{op: opValidUnion, sort: sortBool, kids: [3]*expr{right(sortUnion)}}
	case "d2b":
		return &expr{op: opToBool, sort: sortBool, kids: [3]*expr{right(sortData)}}
	case "b2d":
		return &expr{op: opToData, bits: 1, kids: [3]*expr{right(sortBool)}}
	case "two_comp_mod", "sat_cast", "usat_cast":
		a, w := left(sortData), right(sortData)
		width, ok := w.constant()
		if !ok || width < 1 || width > maxBits {
			l.fail("%s to a width that is no constant from 1 to %d", name, maxBits)
			width = 1
		}
		return cast(map[string]op{"two_comp_mod": opSignCast, "sat_cast": opSatCast, "usat_cast": opUsatCast}[name], a, int(width))
	case "?":
		c := l.want(l.expr(get(j, "cond"), depth+1), sortBool, j)
		a := l.expr(get(j, "left"), depth+1)
		return choice(c, a, right(a.sort))
	case "dereference_stack", "dereference_header_stack":
		s := left(sortStack)
		e := &expr{op: opElem, sort: sortHeader, typ: s.stack.typ, kids: [3]*expr{s, right(sortData)}}
		if i, ok := e.kids[1].constant(); ok && i < uint64(len(s.stack.elems)) {
			return &expr{op: opHeader, sort: sortHeader, hdr: s.stack.elems[i], typ: s.stack.typ}
		}
		return e
	case "dereference_union_stack":
		s := left(sortUnionStack)
		return &expr{op: opUnionElem, sort: sortUnion, ustk: s.ustk, kids: [3]*expr{s, right(sortData)}}
	case "last_stack_index", "size_stack":
		s := l.expr(get(j, "right"), depth+1)
		if s.sort != sortStack && s.sort != sortUnionStack {
			l.fail("%s of a %s", name, sortNames[s.sort])
			return constExpr(0)
		}
		if name == "size_stack" {
			return &expr{op: opCount, bits: 20, kids: [3]*expr{s}}
		}
		return &expr{op: opLastIndex, neg: true, bits: 20, kids: [3]*expr{s}}
	case "access_field":
		h := left(sortHeader)
		i := l.number(get(j, "right"), "place of a field", 0, max(0, len(h.typ.fields)))
		f := validity
		if i < len(h.typ.fields) {
			f = h.typ.fields[i]
		}
		return memberExpr(h, f)
	case "access_union_header":
		u := left(sortUnion)
		one := u.union
		if u.op == opUnionElem && len(u.ustk.elems) > 0 {
			one = u.ustk.elems[0]
		}
		if one == nil || len(one.members) == 0 {
			l.fail("a header of a union that is not known")
			return broken(sortHeader)
		}
		i := l.number(get(j, "right"), "place of a header", 0, len(one.members)-1)
		if u.op == opUnion {
			return &expr{op: opHeader, sort: sortHeader, hdr: u.union.members[i], typ: u.union.members[i].typ}
		}
		return &expr{op: opUnionHeader, sort: sortHeader, idx: i, typ: one.members[i].typ, kids: [3]*expr{u}}
	}
	l.fail("unknown operation %s", strconv.Quote(name))
	return constExpr(0)
}

// place is what an assignment may go to.
func (l *loader) place(e *expr) place {
	switch e.op {
	case opField:
		return place{fld: e.fld, slot: e.hdr.base + e.fld.off, reg: -1}
	case opMember, opLast:
		return place{fld: e.fld, slot: -1, base: l.g.holder(e), reg: -1}
	case opRegister:
		return place{fld: &field{bits: e.reg.Bits}, slot: -1, reg: e.regAt, cell: l.g.index(e.kids[0])}
	}
	l.fail("an assignment to what is no field")
	return place{fld: noField, slot: 0, reg: -1}
}
