package p4

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"unicode"
)

// document is the JSON, and the Program that Load makes from it. The first error ends the loading: fail panics
// with a loadError, and Load returns it.
//
// The loaders build on each other: the parser and the pipelines need what their expressions name (compiler),
// the compiler needs the headers (shapes), and shapes needs the document.
type document struct {
	*jsonProgram
	p     *Program
	where []string
}

// shapes holds the headers, header stacks and unions, and finds them and their fields by name.
type shapes struct {
	*document
	types  map[string]*headerType
	names  map[string]*header
	ids    map[int]*header
	stacks map[string]*stack
	unions map[string]*union
	byUID  map[int]*union
	ustks  map[string]*unionStack
	alias  map[string]fieldName
}

// compiler compiles expressions and actions. It also loads what these name besides headers: calculations,
// counters, meters and registers.
type compiler struct {
	*shapes
	externs
	g      generator
	calcs  map[string]*calculation
	regs   map[string]int
	ctrs   map[string]int
	mtrs   map[string]int
	acts   map[int]*action
	params []param // parameters of the action that is compiled
	self   *header // the header of all fields of an expression; nil: each field names its header
	depth  int     // depth of the expression that is read
	cells  int     // number of words of all counters, meters and registers
}

// fieldName is the name of a header and of one of its fields.
type fieldName [2]string

type loadError struct{ error }

// Load reads a compiled program. An error says what is wrong, and where in the JSON.
func Load(src []byte) (*Program, error) { return loadWith(src, nil) }

// loadWith is like Load, and calls more, if it is not nil, after the program was loaded.
func loadWith(src []byte, more func(l *compiler)) (p *Program, err error) {
	j, err := decode(src)
	if err != nil {
		return nil, err
	}
	defer func() {
		switch x := recover().(type) {
		case nil:
		case loadError:
			p, err = nil, x.error
		default:
			panic(x)
		}
	}()
	l := &compiler{
		shapes: &shapes{document: &document{jsonProgram: j, p: &Program{ingress: noNode, egress: noNode, errors: map[string]uint32{}}},
			types: map[string]*headerType{}, names: map[string]*header{}, ids: map[int]*header{}, stacks: map[string]*stack{},
			unions: map[string]*union{}, byUID: map[int]*union{}, ustks: map[string]*unionStack{}, alias: map[string]fieldName{}},
		calcs: map[string]*calculation{}, regs: map[string]int{}, ctrs: map[string]int{}, mtrs: map[string]int{}, acts: map[int]*action{}}
	parsers, pipelines := &parserLoader{l}, &pipelineLoader{l, map[string]int{}}
	for _, step := range []func(){l.version, l.headers, l.headerGroups, l.aliases, l.architecture, l.errorCodes, l.externInstances, l.arrays,
		l.calculations, l.lists, l.actions, parsers.parsers, parsers.deparsers, pipelines.pipelines, l.checksums} {
		step()
	}
	if l.p.tmp = l.g.tmp; l.p.tmp > maxSlots {
		l.fail("the expressions need %d words at once, more than %d", l.p.tmp, maxSlots)
	}
	if more != nil {
		more(l)
	}
	l.p.src = src
	return l.p, nil
}

// fail ends the loading.
func (l *document) fail(format string, args ...any) {
	at := strings.Join(l.where, ", ")
	if at != "" {
		at += ": "
	}
	// Names of a program may have any characters in them; an error is one line.
	panic(loadError{errors.New("p4: " + strings.Map(printed, at+fmt.Sprintf(format, args...)))})
}

func printed(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// in calls f; errors meanwhile name what, too.
func (l *document) in(what string, f func()) {
	l.where = append(l.where, what)
	f()
	l.where = l.where[:len(l.where)-1]
}

// find returns the object with a key; loading fails if there is none.
func find[K comparable, T any](l *document, all map[K]T, what string, key K) T {
	x, ok := all[key]
	if !ok {
		l.fail("no %s is called %s", what, short(key))
	}
	return x
}

// integer returns a number without a fraction. v is a *float64 or a *jsonValue.
func (l *document) integer(v any, what string, lowest, highest int) int {
	n, _ := v.(*float64)
	if j, ok := v.(*jsonValue); ok {
		n = j.number
	}
	if n == nil || *n != float64(int64(*n)) || *n < float64(lowest) || *n > float64(highest) {
		l.fail("%s is %s, want an integer from %d to %d", what, short(v), lowest, highest)
	}
	return int(*n)
}

// optional returns a number without a fraction, or otherwise if v is nil.
func (l *document) optional(v *float64, what string, otherwise, lowest, highest int) int {
	if v == nil {
		return otherwise
	}
	return l.integer(v, what, lowest, highest)
}

// maxID is the highest id, and the highest number of an error.
const maxID = 1<<31 - 1

// hex parses a hexstr: a hexadecimal number with an optional sign and 0x.
func (l *document) hex(s string) *big.Int {
	digits, neg := strings.CutPrefix(s, "-")
	digits = strings.TrimPrefix(digits, "0x")
	n, ok := new(big.Int), len(digits) > 0 && len(digits) <= maxBits/4
	if ok {
		_, ok = n.SetString(digits, 16)
	}
	if !ok || n.Sign() < 0 {
		l.fail("%s is no hexadecimal number", short(s))
	}
	if neg {
		n.Neg(n)
	}
	return n
}

// hexWords parses a hexstr that is not negative and fits into bits.
func (l *document) hexWords(s string, bits int) []uint64 {
	n := l.hex(s)
	if n.Sign() < 0 || n.BitLen() > bits {
		l.fail("%s does not fit %d bits", short(s), bits)
	}
	return bigWords(n, words(bits))
}

// bigWords returns n as w words of two's complement, the least significant first.
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

// decimal returns a two's complement number in decimal.
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

func (l *document) version() {
	if v := l.Meta.Version; v != nil && (len(v) == 0 || v[0] != 2) {
		l.fail("format version %s, want 2.x: compile with a current p4c-bm2-ss or p4c-bm2-psa", short(v))
	}
}

// slot allots n words of the state, and returns the first.
func (l *shapes) slot(n int) int {
	at := l.p.slots
	if n > maxSlots-at {
		l.fail("the headers need more than %d words", maxSlots)
	}
	l.p.slots += n
	return at
}

func (l *shapes) headers() {
	for _, j := range l.HeaderTypes {
		t := &headerType{name: j.Name, index: map[string]*field{}}
		l.in("header type "+t.name, func() { l.headerType(t, j) })
		if l.types[t.name] != nil {
			l.fail("two header types are called %q", t.name)
		}
		l.types[t.name] = t
	}
	for _, j := range l.Headers {
		h := &header{name: j.Name, typ: find(l.document, l.types, "header type", j.Type), meta: j.Metadata}
		h.id = l.integer(j.ID, "id of header "+h.name, 0, maxID)
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
	}
	l.p.owner = make([]*header, l.p.slots)
	for _, h := range l.p.headers {
		l.p.owner[h.base] = h
	}
}

// headerGroups reads stacks, unions and stacks of unions.
func (l *shapes) headerGroups() {
	for _, j := range l.HeaderStacks {
		s := &stack{name: j.Name, typ: find(l.document, l.types, "header type", j.Type), next: l.slot(1), elems: l.headersByID(j.Headers)}
		for _, h := range s.elems {
			if h.typ != s.typ {
				l.fail("header stack %s: header %s is no %s", s.name, h.name, s.typ.name)
			}
			s.bases = append(s.bases, h.base)
		}
		l.stacks[s.name] = s
	}
	types := map[string][]string{}
	for _, j := range l.UnionTypes {
		var members []string
		for _, m := range j.Headers {
			members = append(members, m.at(0).text)
		}
		types[j.Name] = members
	}
	for _, j := range l.Unions {
		u := &union{name: j.Name, types: types[j.UnionType], members: l.headersByID(j.Headers)}
		if len(u.members) != len(u.types) {
			l.fail("header union %s has %d headers, its type %d", u.name, len(u.members), len(u.types))
		}
		for _, h := range u.members {
			for _, o := range u.members {
				if o != h {
					h.others = append(h.others, o.base)
				}
			}
		}
		l.unions[u.name] = u
		l.byUID[l.integer(j.ID, "id of header union "+u.name, 0, maxID)] = u
	}
	for _, j := range l.UnionStacks {
		s := &unionStack{name: j.Name, next: l.slot(1)}
		for _, id := range j.Unions {
			u := l.byUID[l.integer(id, "a header_union_id", 0, maxID)]
			if u == nil || len(s.elems) > 0 && !slices.EqualFunc(u.members, s.elems[0].members, (*header).sameType) {
				l.fail("header union stack %s: %s is no union of its type", s.name, short(id))
			}
			s.elems = append(s.elems, u)
		}
		if len(s.elems) == 0 {
			l.fail("header union stack %s is empty", s.name)
		}
		l.ustks[s.name] = s
	}
}

func (h *header) sameType(o *header) bool { return h.typ == o.typ }

func (l *shapes) headersByID(ids []*float64) (all []*header) {
	for _, id := range ids {
		h := l.ids[l.integer(id, "a header id", 0, maxID)]
		if h == nil {
			l.fail("no header has id %s", short(id))
		}
		all = append(all, h)
	}
	return all
}

func (l *shapes) headerType(t *headerType, j jsonHeaderType) {
	t.words, t.lengthExp = 1, &j.LengthExp
	for _, jf := range j.Fields {
		f := &field{name: jf.at(0).text, signed: jf.at(2).truth, saturate: jf.at(3).truth, off: t.words, bitOff: t.bits}
		if t.index[f.name] != nil {
			l.fail("two fields are called %q", f.name)
		}
		t.index[f.name] = f
		t.fields = append(t.fields, f)
		if jf.at(1).text == "*" {
			if t.varbit != nil {
				l.fail("two fields of variable length: %s and %s", t.varbit.name, f.name)
			}
			f.varbit, t.varbit = true, f
			continue
		}
		f.bits = l.integer(jf.at(1), "width of field "+f.name, 1, maxBits)
		if f.signed && f.bits < 2 {
			l.fail("field %s: a signed field has at least 2 bits", f.name)
		}
		t.words += words(f.bits)
		if t.bits += f.bits; t.bits > maxBits {
			l.fail("more than %d bits", maxBits)
		}
	}
	maxBytes := l.optional(j.MaxLength, "max_length", 0, 0, maxBits/8)
	if f := t.varbit; f != nil {
		f.bits = maxBytes*8 - t.bits
		if maxBytes == 0 {
			f.bits = 2048
		}
		if f.bits <= 0 {
			l.fail("max_length %d leaves nothing for field %s", maxBytes, f.name)
		}
		// The varbit goes to the end of the state.
		f.off = t.words
		f.lengthOff = t.words + words(f.bits)
		t.words = f.lengthOff + 1
	}
	t.planLoads()
}

// validity is the validity of a header, as a field.
var validity = &field{name: "$valid$", bits: 1}

// field finds a field by the names of its header and itself, or by an alias. The field $valid$ of a header is
// its validity.
func (l *shapes) field(name fieldName) (*header, *field) {
	name = l.resolve(name)
	h := find(l.document, l.names, "header", name[0])
	return h, l.member(h.typ, name[1], "header", h.name)
}

// fieldOf finds the field of [header, field].
func (l *shapes) fieldOf(v *jsonValue) (*header, *field) {
	return l.field(fieldName{v.at(0).text, v.at(1).text})
}

// member finds a field of a header type; what and of say whose it is.
func (l *shapes) member(t *headerType, name, what, of string) *field {
	if name == validity.name {
		return validity
	}
	f := t.index[name]
	if f == nil {
		l.fail("%s %s has no field %q", what, of, name)
	}
	return f
}

func (l *shapes) aliases() {
	for _, j := range l.FieldAliases {
		to := j.at(1)
		l.fieldOf(to)
		l.alias[j.at(0).text] = fieldName{to.at(0).text, to.at(1).text}
	}
}

// resolve returns the field that an alias stands for, or name if it is no alias.
func (l *shapes) resolve(name fieldName) fieldName {
	if to, ok := l.alias[name[0]+"."+name[1]]; ok {
		return to
	}
	return name
}

// standard finds the fields that the architecture uses.
func (l *shapes) standard() {
	s := &l.p.std
	for _, x := range []struct {
		to           *stdField
		header, name string
		must         bool // of a program for v1model
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
		name := l.resolve(fieldName{x.header, x.name})
		*x.to = stdFieldOf(l.names[name[0]], name[1])
		if x.must && l.p.arch == s && x.to.slot < 0 {
			l.fail("no field %s.%s: this is no program for v1model", x.header, x.name)
		}
	}
}

// stdFieldOf returns a field of a header. h may be nil, and the field may be missing.
func stdFieldOf(h *header, name string) stdField {
	if h == nil || h.typ.index[name] == nil || h.typ.index[name].bits > 64 {
		return stdField{slot: -1}
	}
	f := h.typ.index[name]
	return stdField{h.base + f.off, mask64(f.bits)}
}

var coreErrors = []string{"NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout", "ParserInvalidArgument"}

func (l *document) errorCodes() {
	next := uint32(0)
	for _, j := range l.Errors {
		name := j.at(0).text
		v := uint32(l.integer(j.at(1), "value of error "+name, 0, maxID))
		l.p.errors[name] = v
		next = max(next, v+1)
	}
	for _, name := range coreErrors {
		if _, ok := l.p.errors[name]; !ok {
			l.p.errors[name] = next
			next++
		}
	}
}

// maxArray is the highest number of elements of an array. maxCells is the highest number of words of all arrays
// together; it stands for 2 GiB.
const (
	maxArray = 1 << 26
	maxCells = 1 << 28
)

// array reads what all arrays have; words is the length of an element.
func (l *compiler) array(j jsonArray, what string, words int) ArrayInfo {
	a := ArrayInfo{Name: j.Name}
	a.ID = l.integer(j.ID, "id of "+what+" "+a.Name, 0, maxID)
	a.Size = l.optional(j.Size, "size of "+what+" "+a.Name, 0, 0, maxArray)
	if l.cells += a.Size * words; l.cells > maxCells {
		l.fail("more than %d words of counters, meters and registers", maxCells)
	}
	return a
}

func (l *compiler) arrays() {
	for _, j := range l.CounterArrays {
		if !j.Direct {
			c := &arrayDef{l.array(j, "counter", 2)}
			l.ctrs[c.Name] = len(l.p.counters)
			l.p.counters = append(l.p.counters, c)
		}
	}
	for _, j := range l.MeterArrays {
		m := &meterDef{direct: j.Direct, rates: l.optional(j.RateCount, "rate_count of meter "+j.Name, 2, 1, 8), psa: l.p.Arch() == "psa"}
		if m.direct {
			j.Size = nil
			h, f := l.fieldOf(&j.ResultTarget)
			m.target = stdField{h.base + f.off, mask64(f.bits)}
		}
		m.ArrayInfo = l.array(j, "meter", m.words())
		if m.Byte = j.Type == "bytes"; !m.Byte && j.Type != "packets" {
			l.fail("meter %s counts %q, want bytes or packets", m.Name, j.Type)
		}
		l.mtrs[m.Name] = len(l.p.meters)
		l.p.meters = append(l.p.meters, m)
	}
	for _, j := range l.RegisterArrays {
		bits := l.integer(j.Bitwidth, "bitwidth of register "+j.Name, 1, maxBits)
		r := &registerDef{ArrayInfo: l.array(j, "register", words(bits)), words: words(bits)}
		if r.Bits = bits; r.Size*r.words > maxArray {
			l.fail("register %s: more than %d words", r.Name, maxArray)
		}
		l.regs[r.Name] = len(l.p.registers)
		l.p.registers = append(l.p.registers, r)
	}
	l.p.placeRegisters()
}

func (l *compiler) calculations() {
	for _, j := range l.Calculations {
		c := &calculation{name: j.Name, index: len(l.p.calcs)}
		l.in("calculation "+c.name, func() { l.calculation(c, j) })
		l.calcs[c.name] = c
		l.p.calcs = append(l.p.calcs, c)
	}
}

func (l *compiler) calculation(c *calculation, j jsonCalculation) {
	if c.hash = algorithm(j.Algo); c.hash == nil {
		l.fail("unknown hash algorithm %q", j.Algo)
	}
	c.algo = j.Algo
	c.sum = j.Algo == "csum16" || j.Algo == "cksum16"
	for _, in := range j.Input {
		switch in.Type {
		case "field":
			h, f := l.fieldOf(&in.Value)
			c.inputs = append(c.inputs, input{hdr: h, fld: f})
		case "header":
			c.inputs = append(c.inputs, input{hdr: find(l.document, l.names, "header", in.Value.text)})
		case "hexstr":
			n := l.integer(in.Bitwidth, "bitwidth", 0, maxBits)
			c.inputs = append(c.inputs, input{value: l.hexWords(in.Value.text, n), bits: n})
		case "payload":
			c.payload = true
		default:
			l.fail("unknown input %q", in.Type)
		}
	}
	if c.sum {
		c.planSum()
	}
}

// lists reads value sets, the lists of fields that copies of a packet keep, and the digests.
func (l *shapes) lists() {
	for _, j := range l.ValueSets {
		bits := l.integer(j.Bits, "width of value set "+j.Name, 1, maxBits)
		l.p.vsets = append(l.p.vsets, &valueSetDef{name: j.Name, bits: bits})
	}
	for _, j := range l.FieldLists {
		id := l.integer(j.ID, "id of field list "+j.Name, 0, 1<<16-1)
		var ranges []copyRange
		for _, e := range j.Elements {
			switch e.typ {
			case "field":
				h, f := l.fieldOf(e.inner())
				ranges = append(ranges, copyRange{h.base + f.off, words(f.bits)})
				if f.varbit {
					ranges = append(ranges, copyRange{h.base + f.lengthOff, 1})
				}
			case "header":
				h := find(l.document, l.names, "header", e.inner().text)
				ranges = append(ranges, copyRange{h.base + 1, h.typ.words - 1})
			}
		}
		l.p.lists = put(l.p.lists, id, ranges)
	}
	for _, j := range l.LearnLists {
		d := &digestDef{DigestInfo: DigestInfo{Name: j.Name, ID: l.integer(j.ID, "id of learn list "+j.Name, 0, maxID)}}
		for _, e := range j.Elements {
			v := e.inner()
			h, f := l.fieldOf(v)
			d.fields = append(d.fields, slotField{h.base + f.off, f.bits})
			d.Fields = append(d.Fields, FieldInfo{v.at(0).text + "." + f.name, f.bits})
		}
		l.p.digests = append(l.p.digests, d)
	}
}

func (l *compiler) checksums() {
	for _, j := range l.Checksums {
		c := &checksum{name: j.Name}
		l.in("checksum "+c.name, func() {
			c.hdr, c.fld = l.field(j.Target)
			c.calc = find(l.document, l.calcs, "calculation", j.Calculation)
			switch {
			case c.fld.bits > 64:
				l.fail("field %s has more than 64 bits", c.fld.name)
			case c.fld == validity:
				l.fail("a validity is no checksum")
			}
			if j.If.json != nil {
				c.when = l.condition(&j.If)
			}
		})
		if j.Verify == nil || *j.Verify {
			l.p.verify = append(l.p.verify, c)
		}
		if j.Update == nil || *j.Update {
			l.p.update = append(l.p.update, c)
		}
	}
}
