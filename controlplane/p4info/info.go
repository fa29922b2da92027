package p4info

import (
	"strings"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"

	"github.com/quillon/quillon/nf/table"
)

// Info is a P4Info that New has found consistent. It never changes, so any number of goroutines may use it.
type Info struct {
	Proto *configv1.P4Info

	// The objects, in the order of the message.
	Tables         []*Table
	Actions        []*Action
	Profiles       []*Profile
	Counters       []*Array
	Meters         []*Array
	Registers      []*Array
	DirectCounters []*Direct
	DirectMeters   []*Direct
	Digests        []*Digest
	ValueSets      []*ValueSet
	// PacketIn and PacketOut are the headers of packet-in and packet-out messages; nil: the program has none.
	PacketIn, PacketOut *Header

	byID map[uint32]object
	of   map[string][]*Object // by what they are called: counter, action profile
}

// object is implemented by all types of objects, which embed Object.
type object interface{ object() *Object }

// Object holds what objects of all kinds have.
type Object struct {
	ID          uint32
	Name, Alias string
	Annotations []string
	kind        string // what it is called: counter, action profile
}

func (o *Object) object() *Object { return o }

// What returns the word for the kind of the object: table, action profile, counter.
func (o *Object) What() string { return o.kind }

// Field is a field of a key, a parameter of an action, or a metadata field of a packet header.
type Field struct {
	ID    uint32
	Name  string
	Type  Type
	Match configv1.MatchField_MatchType // of a key's field
	// Annotations are those of the P4Info, such as @refers_to.
	Annotations []string
}

// Table is a match-action table.
type Table struct {
	Object
	Proto   *configv1.Table
	Fields  []Field
	Actions []ActionRef
	// Priority tells whether entries need a priority, because a field is ternary, range or optional.
	Priority bool
	Const    bool // its entries are the program's
	Initial  bool // the program has entries of it
	// ConstDefault is the default action if the program makes it constant, else nil.
	ConstDefault *Action
	IdleTimeout  bool
	Size         int64
	Profile      *Profile // nil: a direct table
	Counter      *Direct  // nil: none
	Meter        *Direct  // nil: none
}

// ActionRef is an action that a table may have.
type ActionRef struct {
	*Action
	Scope configv1.ActionRef_Scope
}

// Action is an action.
type Action struct {
	Object
	Proto  *configv1.Action
	Params []Field
}

// Profile is an action profile or an action selector.
type Profile struct {
	Object
	Proto    *configv1.ActionProfile
	Tables   []*Table
	Selector bool
}

// Array is an array of counters, meters or registers.
type Array struct {
	Object
	Size int64
	// Spec is the type of a register's elements. Bits is their width if the type is an unsigned integer.
	Spec *configv1.P4DataTypeSpec
	Bits int
	// These are of a counter or a meter.
	CounterUnit configv1.CounterSpec_Unit
	MeterUnit   configv1.MeterSpec_Unit
	MeterType   configv1.MeterSpec_Type
}

// Direct is a direct counter or a direct meter.
type Direct struct {
	Object
	Table       *Table
	CounterUnit configv1.CounterSpec_Unit
	MeterUnit   configv1.MeterSpec_Unit
	MeterType   configv1.MeterSpec_Type
}

// Digest is a digest: a type of message that the device sends to the controller.
type Digest struct {
	Object
	Spec *configv1.P4DataTypeSpec
	// Fields are the values of a message in order, the members of nested structs included. Fields is nil if a
	// message cannot carry a type of the digest, such as a header union. A value of an enum or an error is a
	// name, and its field has 0 bits.
	Fields []Field
	shape  *shape
}

// ValueSet is a parser's value set.
type ValueSet struct {
	Object
	Fields []Field
	Size   int32
}

// New makes an Info of a P4Info. It checks that each object has an id of its own, that references lead to
// existing objects, and that widths are known. The message must not be changed afterwards.
func New(p *configv1.P4Info) (*Info, error) {
	if p == nil {
		return nil, invalid("there is no P4Info")
	}
	i := builder{&Info{Proto: p, byID: map[uint32]object{}, of: map[string][]*Object{}}}
	for _, step := range []func() error{i.addActions, i.addProfiles, i.addTables, i.addArrays, i.addDirect, i.addRest} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return i.Info, nil
}

// builder is an Info while New fills it.
type builder struct{ *Info }

// add registers an object under its id and its kind.
func (i builder) add(kind string, pre *configv1.Preamble, x object) error {
	o := x.object()
	*o = Object{pre.GetId(), pre.GetName(), pre.GetAlias(), pre.GetAnnotations(), kind}
	if o.ID == 0 {
		return invalid("P4Info: %s %q has no id", kind, o.Name)
	}
	if o.Name == "" {
		return invalid("P4Info: %s 0x%08x has no name", kind, o.ID)
	}
	if i.byID[o.ID] != nil {
		return invalid("P4Info: %s %s: its id 0x%08x is taken", kind, o.Name, o.ID)
	}
	i.byID[o.ID] = x
	i.of[kind] = append(i.of[kind], o)
	return nil
}

// typeOf returns the type of a value from its width and the named type, if it has one.
func (i builder) typeOf(where string, width int32, named *configv1.P4NamedType) (Type, error) {
	t := Type{int(width), named.GetName()}
	if t == (Type{}) && i.Proto.GetTypeInfo().GetError() != nil {
		return Type{0, ErrorType}, nil // p4c gives no width to a field that is an error
	}
	if t.Named != "" {
		if nt := i.Proto.GetTypeInfo().GetNewTypes()[t.Named]; nt != nil {
			switch tr := nt.GetTranslatedType().GetSdnType().(type) {
			case *configv1.P4NewTypeTranslation_SdnString_:
				return Type{0, t.Named}, nil
			case *configv1.P4NewTypeTranslation_SdnBitwidth:
				t.Bits = int(tr.SdnBitwidth)
			}
		}
	}
	if t.Bits <= 0 || t.Bits > 1<<16 {
		return t, invalid("P4Info: %s: a width of %d bits", where, t.Bits)
	}
	return t, nil
}

// Translation returns how controllers see the values of a named type (@p4runtime_translation); nil: they see
// the values as the device has them.
func (i *Info) Translation(named string) *configv1.P4NewTypeTranslation {
	return i.Proto.GetTypeInfo().GetNewTypes()[named].GetTranslatedType()
}

func (i builder) addActions() error {
	for _, p := range i.Proto.GetActions() {
		a := &Action{Proto: p}
		if err := i.add("action", p.GetPreamble(), a); err != nil {
			return err
		}
		for _, q := range p.GetParams() {
			if err := i.field("action "+a.Name+", parameter ", &a.Params, q); err != nil {
				return err
			}
		}
		i.Actions = append(i.Actions, a)
	}
	return nil
}

// field appends a field, a parameter or a metadata field to a list.
func (i builder) field(where string, list *[]Field, m interface {
	GetId() uint32
	GetName() string
	GetBitwidth() int32
	GetTypeName() *configv1.P4NamedType
	GetAnnotations() []string
}) error {
	where += m.GetName()
	t, err := i.typeOf(where, m.GetBitwidth(), m.GetTypeName())
	if err != nil {
		return err
	}
	if m.GetId() == 0 || FieldByID(*list, m.GetId()) != nil {
		return invalid("P4Info: %s: its id %d is 0 or taken", where, m.GetId())
	}
	*list = append(*list, Field{ID: m.GetId(), Name: m.GetName(), Type: t, Annotations: m.GetAnnotations()})
	return nil
}

func (i builder) matchFields(where string, list []*configv1.MatchField) ([]Field, error) {
	var out []Field
	for _, m := range list {
		if err := i.field(where+", field ", &out, m); err != nil {
			return nil, err
		}
		f := &out[len(out)-1]
		switch f.Match = m.GetMatchType(); f.Match {
		case configv1.MatchField_EXACT, configv1.MatchField_OPTIONAL:
		case configv1.MatchField_LPM, configv1.MatchField_TERNARY, configv1.MatchField_RANGE:
			if f.Type.Bits == 0 {
				return nil, invalid("P4Info: %s, field %s: a string cannot be matched by %v", where, f.Name, f.Match)
			}
		default:
			return nil, invalid("P4Info: %s, field %s: unknown match type %v %q", where, f.Name, f.Match, m.GetOtherMatchType())
		}
	}
	return out, nil
}

func (i builder) addProfiles() error {
	for _, p := range i.Proto.GetActionProfiles() {
		x := &Profile{Proto: p, Selector: p.GetWithSelector()}
		if err := i.add("action profile", p.GetPreamble(), x); err != nil {
			return err
		}
		i.Profiles = append(i.Profiles, x)
	}
	return nil
}

func (i builder) addTables() error {
	for _, p := range i.Proto.GetTables() {
		t := &Table{Proto: p, Const: p.GetIsConstTable(), Initial: p.GetHasInitialEntries(), Size: p.GetSize(),
			IdleTimeout: p.GetIdleTimeoutBehavior() == configv1.Table_NOTIFY_CONTROL}
		if err := i.add("table", p.GetPreamble(), t); err != nil {
			return err
		}
		where := "table " + t.Name
		var err error
		if t.Fields, err = i.matchFields(where, p.GetMatchFields()); err != nil {
			return err
		}
		for _, f := range t.Fields {
			switch f.Match {
			case configv1.MatchField_TERNARY, configv1.MatchField_RANGE, configv1.MatchField_OPTIONAL:
				t.Priority = true
			}
		}
		for _, r := range p.GetActionRefs() {
			a := i.Action(r.GetId())
			if a == nil {
				return invalid("P4Info: %s: there is no action 0x%08x", where, r.GetId())
			}
			t.Actions = append(t.Actions, ActionRef{a, r.GetScope()})
		}
		if id := p.GetConstDefaultActionId(); id != 0 {
			if t.ConstDefault = i.Action(id); t.ConstDefault == nil {
				return invalid("P4Info: %s: there is no action 0x%08x, its constant default", where, id)
			}
		}
		if id := p.GetImplementationId(); id != 0 {
			x := i.Profile(id)
			if x == nil {
				return invalid("P4Info: %s: there is no action profile 0x%08x", where, id)
			}
			t.Profile = x
			x.Tables = append(x.Tables, t)
		}
		i.Tables = append(i.Tables, t)
	}
	for _, x := range i.Profiles {
		for _, id := range x.Proto.GetTableIds() {
			if t := i.Table(id); t == nil || t.Profile != x {
				return invalid("P4Info: action profile %s: table 0x%08x does not use it", x.Name, id)
			}
		}
	}
	return nil
}

func (i builder) addArrays() error {
	add := func(list *[]*Array, kind string, pre *configv1.Preamble, a *Array) error {
		if a.Size < 0 {
			return invalid("P4Info: %s %s: a size of %d", kind, pre.GetName(), a.Size)
		}
		*list = append(*list, a)
		return i.add(kind, pre, a)
	}
	for _, p := range i.Proto.GetCounters() {
		if err := add(&i.Counters, "counter", p.GetPreamble(), &Array{Size: p.GetSize(), CounterUnit: p.GetSpec().GetUnit()}); err != nil {
			return err
		}
	}
	for _, p := range i.Proto.GetMeters() {
		a := &Array{Size: p.GetSize(), MeterUnit: p.GetSpec().GetUnit(), MeterType: p.GetSpec().GetType()}
		if err := add(&i.Meters, "meter", p.GetPreamble(), a); err != nil {
			return err
		}
	}
	for _, p := range i.Proto.GetRegisters() {
		a := &Array{Size: int64(p.GetSize()), Spec: p.GetTypeSpec()}
		if w, ok := i.width(a.Spec); ok {
			a.Bits = w
		}
		if err := add(&i.Registers, "register", p.GetPreamble(), a); err != nil {
			return err
		}
	}
	return nil
}

// width returns the width of a type whose values are unsigned integers, and whether it is one.
func (i *Info) width(s *configv1.P4DataTypeSpec) (int, bool) {
	// A type may be made of another, and that of a third; not in a circle.
	for range len(i.Proto.GetTypeInfo().GetNewTypes()) + 1 {
		switch t := s.GetTypeSpec().(type) {
		case *configv1.P4DataTypeSpec_Bitstring:
			w := int(t.Bitstring.GetBit().GetBitwidth())
			return w, w > 0
		case *configv1.P4DataTypeSpec_Bool:
			return 1, true
		case *configv1.P4DataTypeSpec_NewType:
			nt := i.Proto.GetTypeInfo().GetNewTypes()[t.NewType.GetName()]
			if tr := nt.GetTranslatedType(); tr != nil {
				return int(tr.GetSdnBitwidth()), tr.GetSdnBitwidth() > 0
			}
			s = nt.GetOriginalType()
		case *configv1.P4DataTypeSpec_SerializableEnum:
			e := i.Proto.GetTypeInfo().GetSerializableEnums()[t.SerializableEnum.GetName()]
			w := int(e.GetUnderlyingType().GetBitwidth())
			return w, w > 0
		default:
			return 0, false
		}
	}
	return 0, false
}

func (i builder) addDirect() error {
	add := func(kind string, pre *configv1.Preamble, d *Direct, table uint32, list *[]*Direct, slot func(*Table) **Direct) error {
		if err := i.add(kind, pre, d); err != nil {
			return err
		}
		if d.Table = i.Table(table); d.Table == nil {
			return invalid("P4Info: %s %s: there is no table 0x%08x", kind, d.Name, table)
		}
		at := slot(d.Table)
		if *at != nil {
			return invalid("P4Info: table %s has two: %s %s", d.Table.Name, kind, d.Name)
		}
		*at, *list = d, append(*list, d)
		return nil
	}
	for _, p := range i.Proto.GetDirectCounters() {
		d := &Direct{CounterUnit: p.GetSpec().GetUnit()}
		if err := add("direct counter", p.GetPreamble(), d, p.GetDirectTableId(), &i.DirectCounters, func(t *Table) **Direct { return &t.Counter }); err != nil {
			return err
		}
	}
	for _, p := range i.Proto.GetDirectMeters() {
		d := &Direct{MeterUnit: p.GetSpec().GetUnit(), MeterType: p.GetSpec().GetType()}
		if err := add("direct meter", p.GetPreamble(), d, p.GetDirectTableId(), &i.DirectMeters, func(t *Table) **Direct { return &t.Meter }); err != nil {
			return err
		}
	}
	return nil
}

func (i builder) addRest() error {
	for _, p := range i.Proto.GetDigests() {
		d := &Digest{Spec: p.GetTypeSpec()}
		if err := i.add("digest", p.GetPreamble(), d); err != nil {
			return err
		}
		room := maxParts
		if d.shape = i.shapeOf("", d.Spec, &d.Fields, 0, &room); d.shape == nil {
			d.Fields = nil
		}
		i.Digests = append(i.Digests, d)
	}
	for _, p := range i.Proto.GetValueSets() {
		v := &ValueSet{Size: p.GetSize()}
		err := i.add("value set", p.GetPreamble(), v)
		if err != nil {
			return err
		}
		if v.Fields, err = i.matchFields("value set "+v.Name, p.GetMatch()); err != nil {
			return err
		}
		i.ValueSets = append(i.ValueSets, v)
	}
	for _, p := range i.Proto.GetControllerPacketMetadata() {
		h := &Header{}
		if err := i.add("header", p.GetPreamble(), h); err != nil {
			return err
		}
		for _, m := range p.GetMetadata() {
			if err := i.field("header "+h.Name+", metadata ", &h.Fields, m); err != nil {
				return err
			}
			h.bits += h.Fields[len(h.Fields)-1].Type.Bits
		}
		switch h.Name {
		case "packet_in":
			i.PacketIn = h
		case "packet_out":
			i.PacketOut = h
		}
	}
	return nil
}

func find[T any](i *Info, id uint32) *T {
	x, _ := any(i.byID[id]).(*T)
	return x
}

// Table returns the table with an id, or nil if no table has it. Action, Profile and the methods that follow do
// the same for other kinds of objects.
func (i *Info) Table(id uint32) *Table       { return find[Table](i, id) }
func (i *Info) Action(id uint32) *Action     { return find[Action](i, id) }
func (i *Info) Profile(id uint32) *Profile   { return find[Profile](i, id) }
func (i *Info) Digest(id uint32) *Digest     { return find[Digest](i, id) }
func (i *Info) ValueSet(id uint32) *ValueSet { return find[ValueSet](i, id) }
func (i *Info) Array(id uint32) *Array       { return find[Array](i, id) }
func (i *Info) Counter(id uint32) *Array     { return i.array(id, KindCounter) }
func (i *Info) Meter(id uint32) *Array       { return i.array(id, KindMeter) }
func (i *Info) Register(id uint32) *Array    { return i.array(id, KindRegister) }

func (i *Info) array(id uint32, k Kind) *Array {
	if a := i.Array(id); a != nil && a.kind == kinds[k].object {
		return a
	}
	return nil
}

// Object returns the object with an id to which entities of kind k belong, or nil if there is none.
func (i *Info) Object(k Kind, id uint32) *Object {
	if x := i.byID[id]; x != nil && x.object().kind == kinds[k].object {
		return x.object()
	}
	return nil
}

// Objects returns all objects to which entities of kind k belong, in the order of the message.
func (i *Info) Objects(k Kind) []*Object { return i.of[kinds[k].object] }

// Named finds one of Objects(k) by its name, as ByName does.
func (i *Info) Named(k Kind, name string) (*Object, error) {
	return ByName(i.Objects(k), kinds[k].object, name)
}

// ByName finds an object in one of Info's lists by its name, by its alias, or by the end of its name after a
// dot. It returns an error if no object, or more than one, has the name. Errors call an object kind.
//
//	t, err := p4info.ByName(info.Tables, "table", "ipv4_lpm")
func ByName[T object](list []T, kind, name string) (T, error) {
	i, err := called(len(list), kind, name, func(i int) (full, alias string) { return list[i].object().Name, list[i].object().Alias })
	if err != nil {
		var none T
		return none, err
	}
	return list[i], nil
}

// FieldByName finds a field of a key, or a parameter of an action, by its name or by the end of its name after
// a dot. Errors call the field kind.
func FieldByName(list []Field, kind, name string) (*Field, error) {
	i, err := called(len(list), kind, name, func(i int) (full, alias string) { return list[i].Name, list[i].Name })
	if err != nil {
		return nil, err
	}
	return &list[i], nil
}

func called(n int, kind, name string, names func(i int) (full, alias string)) (int, error) {
	found := table.Called(n, name, names)
	full := func(of []int, between string) string {
		var list []string
		for _, i := range of {
			s, _ := names(i)
			list = append(list, s)
		}
		return strings.Join(list, between)
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return 0, refuse(notFound, "%s %s may be %s: write it in full", kind, name, full(found, " or "))
	case n == 0:
		return 0, refuse(notFound, "there is no %s %s: there are none", kind, name)
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return 0, refuse(notFound, "there is no %s %s; there are: %s", kind, name, full(all, ", "))
}

// Action finds an action of the table by its name, as ByName does.
func (t *Table) Action(name string) (*ActionRef, error) {
	var list []*ActionRef
	for n := range t.Actions {
		list = append(list, &t.Actions[n])
	}
	r, err := ByName(list, "action", name)
	return r, in("table "+t.Name, err)
}

// ActionID returns the table's action with an id, or nil if the table does not have it.
func (t *Table) ActionID(id uint32) *ActionRef {
	for n := range t.Actions {
		if t.Actions[n].ID == id {
			return &t.Actions[n]
		}
	}
	return nil
}

// FieldByID returns the field with an id, or nil if there is none.
func FieldByID(list []Field, id uint32) *Field {
	for n := range list {
		if list[n].ID == id {
			return &list[n]
		}
	}
	return nil
}
