package engine

import (
	"fmt"
	"math"
	"slices"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/value"
)

func refuse(c codes.Code, format string, args ...any) error {
	return &p4info.Error{Code: c, Text: fmt.Sprintf(format, args...)}
}

// table connects a table of the P4Info with the same table of the program.
type table struct {
	info *p4info.Table
	name string
	gone bool  // the compiler took it out of the program, as nothing depends on it
	keys []key // in the order of the program
	// top is the sum of an entry's priority in P4Runtime and its priority in nf/p4; 0: entries have no
	// priority.
	top int64
	// actions are the names by id, ids the ids by name.
	actions map[uint32]string
	ids     map[string]uint32
	states  map[p4.Handle]*more // for entries with any of it
}

// key is a field of a table's key in the program.
type key struct {
	field *p4info.Field
	match p4.MatchKind
	bits  int
}

// more holds the parts of an entry that nf/p4 does not keep.
type more struct {
	cookie   uint64 // controller_metadata
	metadata []byte
	set      *p4v1.ActionProfileActionSet
	group    uint32   // of the set
	members  []uint32 // of the set
}

func (m *more) empty() bool { return m.cookie == 0 && len(m.metadata) == 0 && m.set == nil }

// binding maps the objects of a P4Info to the objects of a program.
type binding struct {
	tables    map[uint32]*table
	digests   map[int]*digest // by the program's id
	valueSets map[uint32]*valueSet

	// Translations: names by URI; fields by table or value set and field; params by action and parameter;
	// byName by the action's name, in the order of its parameters.
	info   *p4info.Info
	names  map[string]*names
	fields map[uint64]*slot
	params map[uint64]*slot
	byName map[string][]*slot
	// Headers of packets with the program's widths, and the slots of their fields.
	packetIn, packetOut           *p4info.Header
	packetInSlots, packetOutSlots []*slot
}

// bind checks that a program and a P4Info belong together, and maps their objects.
func bind(i *p4info.Info, prog *p4.Program) (*binding, error) {
	b := &binding{tables: map[uint32]*table{}, digests: map[int]*digest{}, valueSets: map[uint32]*valueSet{},
		info: i, fields: map[uint64]*slot{}, params: map[uint64]*slot{}, byName: map[string][]*slot{}}
	var err error
	if b.names, err = translations(i); err != nil {
		return nil, err
	}
	if i.Proto.GetTypeInfo().GetError() != nil {
		b.names[p4info.ErrorType] = errorNames(prog.Errors())
	}
	for _, step := range []func(*p4.Program) error{b.bindActions, b.bindTables, b.bindCells, b.bindDigests, b.bindValueSets, b.bindProfiles} {
		if err := step(prog); err != nil {
			return nil, err
		}
	}
	if b.packetIn, b.packetInSlots, err = b.header(i.PacketIn, prog); err != nil {
		return nil, err
	}
	if b.packetOut, b.packetOutSlots, err = b.header(i.PacketOut, prog); err != nil {
		return nil, err
	}
	return b, nil
}

// takenOut returns the error for writes to a table that the compiler removed.
func (t *table) takenOut() error {
	return refuse(codes.Unimplemented, "table %s: the compiler took it out of the program, as nothing depends on it: it has no entries", t.name)
}

// settle gives a switch what the P4Info says about its tables and the JSON does not.
func (b *binding) settle(sw *p4.Switch) {
	for _, t := range b.tables {
		switch i := t.info; {
		case t.gone:
		case i.Const:
			_ = sw.Fix(t.name, true, 0)
		case i.Initial: // the JSON's size is the number of its entries
			_ = sw.Fix(t.name, false, int(min(i.Size, math.MaxInt32)))
		}
	}
}

// mismatch returns the error that P4Info and program differ.
func mismatch(format string, args ...any) error {
	return refuse(codes.InvalidArgument, "P4Info and program differ: "+format, args...)
}

func (b *binding) bindActions(prog *p4.Program) error {
	params := map[string][]p4.FieldInfo{}
	for _, a := range prog.Actions() {
		params[a.Name] = a.Params
	}
	for _, a := range b.info.Actions {
		ps, ok := params[a.Name]
		if !ok {
			continue // its table was optimised away
		}
		if len(ps) != len(a.Params) {
			return mismatch("action %s takes %d parameters, in the program %d", a.Name, len(a.Params), len(ps))
		}
		for n, p := range a.Params {
			s, err := b.slot("action "+a.Name+", parameter "+p.Name, p.Type, ps[n].Bits)
			if err != nil {
				return err
			}
			// A translated value may be wider than the program's.
			if s == nil && p.Type.Bits != ps[n].Bits {
				return mismatch("action %s, parameter %s has %d bits, in the program %d", a.Name, p.Name, p.Type.Bits, ps[n].Bits)
			}
			b.byName[a.Name] = append(b.byName[a.Name], s)
			if s != nil {
				b.params[slotKey(a.ID, p.ID)] = s
			}
		}
	}
	return nil
}

func (b *binding) bindTables(prog *p4.Program) error {
	there := 0
	for _, t := range b.info.Tables {
		x := &table{info: t, name: t.Name, actions: map[uint32]string{}, ids: map[string]uint32{}, states: map[p4.Handle]*more{}}
		b.tables[t.ID] = x
		pt, ok := prog.Table(t.Name)
		for _, r := range t.Actions {
			x.actions[r.ID], x.ids[r.Name] = r.Name, r.ID
		}
		if x.gone = !ok; x.gone {
			continue
		}
		there++
		if err := b.bindTable(x, &pt); err != nil {
			return err
		}
	}
	// The compiler takes out a table that nothing depends on; a program of which it took out all is another one than the P4Info's.
	if there == 0 && len(b.info.Tables) > 0 && slices.ContainsFunc(prog.Tables(), func(t p4.TableInfo) bool { return !t.Hidden }) {
		return mismatch("there is no table %s", b.info.Tables[0].Name)
	}
	return nil
}

func (b *binding) bindTable(x *table, pt *p4.TableInfo) error {
	t := x.info
	if err := b.bindKey(x, pt.Keys); err != nil {
		return err
	}
	for _, r := range t.Actions {
		if t.Profile == nil && !slices.ContainsFunc(pt.Actions, func(a p4.ActionInfo) bool { return a.Name == r.Name }) {
			return mismatch("table %s: there is no action %s", t.Name, r.Name)
		}
	}
	for _, a := range pt.Actions {
		if _, ok := x.ids[a.Name]; !ok {
			x.ids[a.Name] = 0
		}
	}
	switch {
	// The JSON does not tell const entries from others, and shows no empty ones.
	case pt.Const && !t.Const && !t.Initial:
		return mismatch("table %s: only the program has entries of it", t.Name)
	case !pt.Const && t.Initial:
		return mismatch("table %s: the program has no entries of it", t.Name)
	case t.Priority != pt.Priority:
		return mismatch("table %s: its entries have priorities in one of them only", t.Name)
	case (t.Profile == nil) != (pt.Profile == "") || t.Profile != nil && t.Profile.Name != pt.Profile:
		return mismatch("table %s: its action profile is %q in the program", t.Name, pt.Profile)
	case t.Counter != nil && !pt.Counters:
		return mismatch("table %s: the program has no direct counter", t.Name)
	case t.Meter != nil && !pt.Meters:
		return mismatch("table %s: the program has no direct meter", t.Name)
	case t.IdleTimeout && !pt.Timeout:
		return mismatch("table %s: the program has no idle timeout", t.Name)
	}
	if t.Priority {
		x.top = math.MaxInt32
	}
	return nil
}

func (b *binding) bindKey(x *table, keys []p4.KeyInfo) error {
	t := x.info
	if len(keys) != len(t.Fields) {
		return mismatch("table %s has %d fields, in the program %d", t.Name, len(t.Fields), len(keys))
	}
	for n := range t.Fields {
		f, k := &t.Fields[n], keys[n]
		s, err := b.slot("table "+t.Name+", field "+f.Name, f.Type, k.Bits)
		if err != nil {
			return err
		}
		if s != nil {
			b.fields[slotKey(t.ID, f.ID)] = s
		}
		switch {
		case s == nil && f.Type.Bits != k.Bits:
			return mismatch("table %s, field %s has %d bits, in the program %d", t.Name, f.Name, f.Type.Bits, k.Bits)
		case !fits(f.Match, k.Match):
			return mismatch("table %s, field %s is matched by %s, in the program by %v", t.Name, f.Name, p4info.MatchName(f.Match), k.Match)
		}
		x.keys = append(x.keys, key{f, k.Match, k.Bits})
	}
	return nil
}

// bindCells maps counters, meters and registers.
func (b *binding) bindCells(prog *p4.Program) error {
	for _, x := range []struct {
		kind string
		list []*p4info.Array
		prog []p4.ArrayInfo
	}{{"counter", b.info.Counters, prog.Counters()}, {"meter", b.info.Meters, prog.Meters()}, {"register", b.info.Registers, prog.Registers()}} {
		for _, a := range x.list {
			at := slices.IndexFunc(x.prog, func(p p4.ArrayInfo) bool { return p.Name == a.Name })
			if at < 0 {
				return mismatch("there is no %s %s", x.kind, a.Name)
			}
			if p := x.prog[at]; int64(p.Size) != a.Size || x.kind == "register" && a.Bits != 0 && a.Bits != p.Bits {
				return mismatch("%s %s has %d elements, in the program %d of %d bits", x.kind, a.Name, a.Size, p.Size, p.Bits)
			}
		}
	}
	for _, m := range b.info.Meters {
		if m.MeterType == configv1.MeterSpec_SINGLE_RATE_THREE_COLOR {
			return refuse(codes.InvalidArgument, "meter %s has an excess burst: the engine's have two rates", m.Name)
		}
	}
	for _, m := range b.info.DirectMeters {
		if m.MeterType == configv1.MeterSpec_SINGLE_RATE_THREE_COLOR {
			return refuse(codes.InvalidArgument, "direct meter %s has an excess burst: the engine's have two rates", m.Name)
		}
	}
	return nil
}

// digest connects a digest of the P4Info with the program's digest that sends its messages.
type digest struct {
	info  *p4info.Digest
	slots []*slot // of its fields; nil: the value is not translated
	bits  []int   // widths of its fields
}

// bindDigests maps digests by name. The compiler gives another name to a digest whose type has no name; such a
// digest gets the first of the program's digests that fits. A digest that the compiler removed sends nothing.
func (b *binding) bindDigests(prog *p4.Program) error {
	free := prog.Digests()
	take := func(d *p4info.Digest, p p4.DigestInfo) error {
		x, err := b.digest(d, &p)
		if err == nil {
			b.digests[p.ID] = x
			free = slices.DeleteFunc(free, func(q p4.DigestInfo) bool { return q.ID == p.ID })
		}
		return err
	}
	var open []*p4info.Digest
	for _, d := range b.info.Digests {
		if d.Fields == nil {
			return refuse(codes.Unimplemented, "digest %s: messages of this type", d.Name)
		}
		is := func(p p4.DigestInfo) bool { return p.Name == d.Name }
		if !slices.ContainsFunc(free, is) {
			open = append(open, d)
		}
		for at := slices.IndexFunc(free, is); at >= 0; at = slices.IndexFunc(free, is) {
			if err := take(d, free[at]); err != nil {
				return err
			}
		}
	}
	for _, d := range open {
		err := error(nil)
		for _, p := range slices.Clone(free) {
			if err = take(d, p); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// digest maps a digest to one of the program's, or returns an error if they do not fit.
func (b *binding) digest(d *p4info.Digest, p *p4.DigestInfo) (*digest, error) {
	if len(p.Fields) != len(d.Fields) {
		return nil, mismatch("digest %s has %d fields, in the program %d", d.Name, len(d.Fields), len(p.Fields))
	}
	x := &digest{info: d}
	for n := range p.Fields {
		f, bits := &d.Fields[n], p.Fields[n].Bits
		s, err := b.slot("digest "+d.Name, f.Type, bits)
		if err != nil {
			return nil, err
		}
		if s == nil && f.Type.Bits != bits && f.Type.Bits > 0 { // a number of an enum has any width
			return nil, mismatch("digest %s, field %s has %d bits, in the program %d", d.Name, f.Name, f.Type.Bits, bits)
		}
		x.slots, x.bits = append(x.slots, s), append(x.bits, bits)
	}
	return x, nil
}

// message returns the message of a digest whose fields lie in b one after the other, each in whole bytes.
func (d *digest) message(b []byte) *p4v1.P4Data {
	var list [][]byte
	for i, bits := range d.bits {
		n := (bits + 7) / 8
		v := append([]byte(nil), value.Canonical(b[:n])...)
		if s := d.slots[i]; s != nil {
			v = s.toSDN(v)
		}
		list = append(list, v)
		b = b[n:]
	}
	return d.info.Message(list)
}

// valueSet is a value set of the P4Info, with the program's widths.
type valueSet struct {
	info   *p4info.ValueSet
	bits   int
	widths []int // of its fields
}

func (b *binding) bindValueSets(prog *p4.Program) error {
	for _, v := range b.info.ValueSets {
		at := slices.IndexFunc(prog.ValueSets(), func(p p4.ValueSetInfo) bool { return p.Name == v.Name })
		if at < 0 {
			return mismatch("there is no value set %s", v.Name)
		}
		p := prog.ValueSets()[at]
		x := &valueSet{info: v, bits: p.Bits}
		left := p.Bits
		for n, f := range v.Fields {
			width := f.Type.Bits
			if b.named(f.Type) != nil {
				if len(p.Parts) != len(v.Fields) {
					return mismatch("value set %s has %d fields, in the program %d", v.Name, len(v.Fields), len(p.Parts))
				}
				width = p.Parts[n]
			}
			s, err := b.slot("value set "+v.Name+", field "+f.Name, f.Type, width)
			if err != nil {
				return err
			}
			if s != nil {
				b.fields[slotKey(v.ID, f.ID)] = s
			}
			x.widths = append(x.widths, width)
			left -= width
		}
		if left != 0 {
			return mismatch("value set %s has %d bits, in the program %d", v.Name, p.Bits-left, p.Bits)
		}
		b.valueSets[v.ID] = x
	}
	return nil
}

// member returns a member of a value set as nf/p4 takes it.
func (v *valueSet) member(m *p4v1.ValueSetMember) p4.ValueMember {
	x := p4.ValueMember{Value: make([]byte, (v.bits+7)/8), Mask: make([]byte, (v.bits+7)/8)}
	left, ms := v.bits, m.GetMatch() // in the order of the fields
	for n, f := range v.info.Fields {
		w := v.widths[n]
		left -= w
		if len(ms) == 0 || ms[0].GetFieldId() != f.ID {
			continue // it matches everything
		}
		c := p4info.CondOf(ms[0])
		ms = ms[1:]
		mask := value.Ones(w)
		switch c.Match {
		case configv1.MatchField_RANGE:
			x.Ranges = append(x.Ranges, p4.ValueRange{Shift: left, Bits: w, Low: *c.Value, High: *c.More})
			continue
		case configv1.MatchField_TERNARY:
			mask = *c.More
		case configv1.MatchField_LPM:
			mask = value.Prefix(int(*c.Prefix), w)
		}
		orShifted(x.Value, *c.Value, left)
		orShifted(x.Mask, mask, left)
	}
	return x
}

func (b *binding) bindProfiles(prog *p4.Program) error {
	for _, p := range b.info.Profiles {
		found := false
		for _, q := range prog.Profiles() {
			found = found || q.Name == p.Name && q.Selector == p.Selector
		}
		used := slices.ContainsFunc(p.Tables, func(t *p4info.Table) bool { return !b.tables[t.ID].gone })
		if !found && used {
			return mismatch("there is no such action profile as %s", p.Name)
		}
	}
	return nil
}

func fits(m configv1.MatchField_MatchType, k p4.MatchKind) bool {
	switch m {
	case configv1.MatchField_EXACT:
		return k == p4.Exact || k == p4.Valid
	case configv1.MatchField_LPM:
		return k == p4.LPM
	case configv1.MatchField_TERNARY, configv1.MatchField_OPTIONAL:
		return k == p4.Ternary
	case configv1.MatchField_RANGE:
		return k == p4.Range
	}
	return false
}

// isOnes reports whether all bits of v, a number of width bits, are set.
func isOnes(v []byte, width int) bool { return string(value.Canonical(v)) == string(value.Ones(width)) }

// key returns an entry's key and priority as nf/p4 takes them.
func (t *table) key(e *p4v1.TableEntry) ([]p4.Match, int32) {
	list := make([]p4.Match, len(t.keys))
	ms := e.GetMatch() // in the order of the fields
	for n := range t.keys {
		k := &t.keys[n]
		if len(ms) == 0 || ms[0].GetFieldId() != k.field.ID {
			list[n].Any = true
			continue
		}
		c := p4info.CondOf(ms[0])
		list[n].Value = *c.Value
		if c.More != nil {
			list[n].Mask = *c.More
		}
		if c.Prefix != nil {
			list[n].Prefix = int(*c.Prefix)
		}
		ms = ms[1:]
	}
	if t.top == 0 {
		return list, 0
	}
	return list, int32(t.top - int64(e.GetPriority()))
}

// match puts a key of nf/p4 and its priority into e.
func (t *table) match(e *p4v1.TableEntry, list []p4.Match, priority int32) {
	for n := range t.keys {
		k, m := &t.keys[n], list[n]
		switch k.field.Match {
		case configv1.MatchField_OPTIONAL:
			if value.IsZero(m.Mask) {
				continue
			}
		case configv1.MatchField_RANGE: // of the program's width
			if value.IsZero(m.Value) && isOnes(m.Mask, k.bits) {
				continue
			}
		}
		more := m.Mask
		if len(more) > 0 {
			more = value.Canonical(more)
		}
		if f := k.field.Matching(value.Canonical(m.Value), more, m.Prefix); f != nil {
			e.Match = append(e.Match, f)
		}
	}
	if t.top != 0 {
		e.Priority = int32(t.top - int64(priority))
	}
}

// action returns an action as nf/p4 takes it.
func (t *table) action(a *p4v1.Action) p4.Action {
	x := p4.Action{Name: t.actions[a.GetActionId()]}
	for _, p := range a.GetParams() {
		x.Args = append(x.Args, p.GetValue())
	}
	return x
}

// describe returns an action of nf/p4 as P4Runtime has it.
func (t *table) describe(a p4.Action) *p4v1.Action {
	id := t.ids[a.Name]
	x := &p4v1.Action{ActionId: id}
	if r := t.info.ActionID(id); r != nil {
		for n, v := range a.Args {
			x.Params = append(x.Params, &p4v1.Action_Param{ParamId: r.Params[n].ID, Value: value.Canonical(v)})
		}
	}
	return x
}
