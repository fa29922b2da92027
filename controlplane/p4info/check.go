package p4info

import (
	"encoding/hex"
	"math/bits"
	"slices"
	"strings"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/nf/value"
)

// Update checks an update of a Write request, and brings its entity into canonical form: byte strings as short
// as possible, and the fields of keys, actions and values in the order of the P4Info. It changes u, even if it
// returns an error. It does not check whether the entity exists; the device does.
func (i *Info) Update(u *p4v1.Update) error {
	switch u.GetType() {
	case p4v1.Update_INSERT, p4v1.Update_MODIFY, p4v1.Update_DELETE:
	case p4v1.Update_UNSPECIFIED:
		return invalid("the update has no type: INSERT, MODIFY or DELETE")
	default:
		return invalid("the update has type %d: it may be INSERT, MODIFY or DELETE", u.GetType())
	}
	op := u.GetType()
	x := Of(u.GetEntity())
	switch x.Kind {
	case KindNone:
		return invalid("the update has no entity")
	case KindEntry:
		return i.tableEntry(op, x.Entry)
	case KindMember:
		return i.member(op, &x)
	case KindGroup:
		return i.group(op, &x)
	case KindMulticast, KindClone, KindReplication:
		return replication(op, &x)
	case KindExtern:
		return noExtern(&x)
	case KindDirectCounter, KindDirectMeter:
		return i.direct(op, &x)
	}
	o, err := i.object(&x)
	if err != nil {
		return err
	}
	where := x.Kind.String() + " " + o.Name
	if x.Always() && op != p4v1.Update_MODIFY {
		return invalid("%s may only be modified", where)
	}
	switch x.Kind {
	case KindCounter:
		err = checkCount(x.Count)
	case KindMeter:
		err = checkMeter(i.Meter(o.ID).MeterType, x.Rates, x.Colours)
	case KindRegister:
		err = i.data(i.Register(o.ID).Spec, x.Data)
	case KindValueSet:
		err = i.ValueSet(o.ID).members(x.Values)
	case KindDigest:
		if c := x.Digest; op != p4v1.Update_DELETE && (c.GetMaxTimeoutNs() < 0 || c.GetMaxListSize() < 0 || c.GetAckTimeoutNs() < 0) {
			err = invalid("a configuration below 0")
		}
	}
	return in(where, err)
}

// Query checks an entity of a Read request, and brings it into canonical form. Id 0 asks for all objects of the
// kind.
func (i *Info) Query(q *p4v1.Entity) error {
	x := Of(q)
	switch x.Kind {
	case KindNone:
		return invalid("the request has no entity")
	case KindEntry:
		return i.tableQuery(x.Entry)
	case KindDirectCounter, KindDirectMeter:
		if x.Entry == nil {
			return invalid("a %v is read by its table_entry", x.Kind)
		}
	case KindReplication:
		return invalid("the packet replication engine has multicast groups and clone sessions: ask for either")
	}
	if x.Colours != nil {
		return noColours()
	}
	if x.Entry != nil {
		if err := i.tableQuery(x.Entry); err != nil {
			return err
		}
		if t := i.Table(x.Object); t != nil && t.direct(x.Kind) == nil {
			return invalid("table %s has no %v", t.Name, x.Kind)
		}
		return nil
	}
	if x.Object == 0 {
		return nil
	}
	if x.Kind == KindExtern {
		return noExtern(&x)
	}
	o, err := i.object(&x)
	if err == nil && x.Kind == KindGroup && !i.Profile(o.ID).Selector {
		err = invalid("action profile %s has no groups: it is no selector", o.Name)
	}
	return err
}

func noColours() error {
	return refuse(codes.Unimplemented, "meters do not count packets by colour")
}

func noExtern(x *Entity) error {
	return refuse(codes.Unimplemented, "there are no externs of type 0x%x", x.Object)
}

// object returns the object that an entity belongs to, and checks the index of a cell. An entity without an
// index means all cells.
func (i *Info) object(x *Entity) (*Object, error) {
	o, index := i.Object(x.Kind, x.Object), x.Index.GetIndex()
	switch {
	case o == nil:
		return nil, refuse(notFound, "there is no %s 0x%08x", kinds[x.Kind].object, x.Object)
	case index < 0:
		return nil, invalid("%v %s: index %d", x.Kind, o.Name, index)
	case x.Index != nil && index >= i.Array(o.ID).Size:
		return nil, refuse(codes.OutOfRange, "%v %s: index %d, it has %d", x.Kind, o.Name, index, i.Array(o.ID).Size)
	}
	return o, nil
}

func (i *Info) tableQuery(e *p4v1.TableEntry) error {
	if e.GetTableId() == 0 {
		if len(e.GetMatch()) > 0 || e.GetAction() != nil || e.GetPriority() != 0 || len(e.GetMetadata()) > 0 || e.GetControllerMetadata() != 0 {
			return invalid("a read of all tables takes no filter")
		}
		return nil
	}
	t := i.Table(e.GetTableId())
	if t == nil {
		return refuse(notFound, "there is no table 0x%08x", e.GetTableId())
	}
	where := "table " + t.Name
	if e.GetMeterCounterData() != nil {
		return refuse(codes.Unimplemented, "%s: meters do not count packets by colour", where)
	}
	if e.GetTimeSinceLastHit() != nil && (!t.IdleTimeout || e.GetIsDefaultAction()) {
		return invalid("%s: its entries have no idle timeout", where)
	}
	if e.GetIsDefaultAction() && (len(e.GetMatch()) > 0 || e.GetPriority() != 0) {
		return invalid("%s: the default entry has no match and no priority", where)
	}
	if len(e.GetMatch()) > 0 {
		m, err := match(t.Fields, e.GetMatch())
		if err != nil {
			return in(where, err)
		}
		e.Match = m
	}
	switch a := e.GetAction().GetType().(type) {
	case nil:
	case *p4v1.TableAction_Action:
		if id := a.Action.GetActionId(); id != 0 && t.ActionID(id) == nil {
			return invalid("%s: there is no action 0x%08x", where, id)
		}
	default:
		return invalid("%s: entries are found by the id of an action only", where)
	}
	return nil
}

// tableEntry checks a table entry of a Write request.
func (i *Info) tableEntry(op p4v1.Update_Type, e *p4v1.TableEntry) error {
	t := i.Table(e.GetTableId())
	if t == nil {
		return refuse(notFound, "there is no table 0x%08x", e.GetTableId())
	}
	where := "table " + t.Name
	if e.GetIsConst() {
		return invalid("%s: is_const is for the program to say", where)
	}
	if e.GetIsDefaultAction() {
		return in(where+", default entry", i.defaultEntry(op, t, e))
	}
	if len(t.Fields) == 0 {
		return invalid("%s has no key: it has a default entry only", where)
	}
	m, err := match(t.Fields, e.GetMatch())
	if err != nil {
		return in(where, err)
	}
	e.Match = m
	switch {
	case t.Priority && e.GetPriority() <= 0:
		return invalid("%s: entries need a priority above 0, as the key has ternary, range or optional fields", where)
	case !t.Priority && e.GetPriority() != 0:
		return invalid("%s: priority %d, its entries have none", where, e.GetPriority())
	}
	if t.Const && (op != p4v1.Update_MODIFY || e.GetAction() != nil) {
		return refuse(codes.PermissionDenied, "%s: its entries are constant", where)
	}
	if op == p4v1.Update_DELETE {
		return nil // nothing but the key counts
	}
	if e.GetAction() == nil {
		if op == p4v1.Update_INSERT {
			return i.inEntry(e, invalid("an action is missing"))
		}
	} else if err := i.tableAction(t, e.GetAction(), false); err != nil {
		return i.inEntry(e, err)
	}
	if e.GetIdleTimeoutNs() != 0 && (!t.IdleTimeout || e.GetIdleTimeoutNs() < 0) {
		return i.inEntry(e, invalid("idle timeout of %d ns: the table %s", e.GetIdleTimeoutNs(), map[bool]string{true: "has them above 0", false: "has none"}[t.IdleTimeout]))
	}
	if e.GetTimeSinceLastHit() != nil {
		return i.inEntry(e, invalid("time_since_last_hit is read only"))
	}
	return i.inEntry(e, i.directResources(t, e))
}

func (i *Info) defaultEntry(op p4v1.Update_Type, t *Table, e *p4v1.TableEntry) error {
	switch {
	case op != p4v1.Update_MODIFY:
		return invalid("it may only be modified")
	case len(e.GetMatch()) > 0:
		return invalid("it has no match")
	case e.GetPriority() != 0:
		return invalid("it has no priority")
	case e.GetIdleTimeoutNs() != 0 || e.GetTimeSinceLastHit() != nil:
		return invalid("it has no idle timeout")
	case t.ConstDefault != nil:
		return refuse(codes.PermissionDenied, "it is constant: %s", t.ConstDefault.Name)
	case t.Profile != nil:
		return refuse(codes.PermissionDenied, "it is constant, as the table has action profile %s", t.Profile.Name)
	}
	if e.GetAction() != nil {
		if err := i.tableAction(t, e.GetAction(), true); err != nil {
			return err
		}
	}
	return i.directResources(t, e)
}

func (i *Info) directResources(t *Table, e *p4v1.TableEntry) error {
	if e.GetCounterData() != nil {
		if t.Counter == nil {
			return invalid("the table has no direct counter")
		}
		if err := checkCount(e.GetCounterData()); err != nil {
			return err
		}
	}
	if e.GetMeterConfig() != nil || e.GetMeterCounterData() != nil {
		if t.Meter == nil {
			return invalid("the table has no direct meter")
		}
		return checkMeter(t.Meter.MeterType, e.GetMeterConfig(), e.GetMeterCounterData())
	}
	return nil
}

// inEntry puts the table and the key of an entry in front of the text of an error.
func (i *Info) inEntry(e *p4v1.TableEntry, err error) error {
	if err == nil {
		return nil
	}
	return in("table "+i.Table(e.GetTableId()).Name+", entry "+i.keyText(e), err)
}

// arranged returns list in the order of fields. It returns an error if an element has an id that no field has,
// or if two elements have the same id. Errors call a field kind.
func arranged[T any](fields []Field, kind string, list []T, id func(T) uint32) ([]T, error) {
	place := func(x T) int { return slices.IndexFunc(fields, func(f Field) bool { return f.ID == id(x) }) }
	list = list[:min(len(list), len(fields)+1)] // where there are more, one of these is wrong
	last, sorted := -1, true
	for _, x := range list {
		at := last + 1 // most are in order
		if at >= len(fields) || fields[at].ID != id(x) {
			at = place(x)
		}
		if at < 0 {
			return nil, invalid("there is no %s %d", kind, id(x))
		}
		sorted = sorted && at > last
		last = at
	}
	if sorted {
		return list, nil
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b T) int { return place(a) - place(b) })
	for n := range list[1:] {
		if id(list[n]) == id(list[n+1]) {
			return nil, invalid("%s %s is there twice", kind, fields[place(list[n])].Name)
		}
	}
	return list, nil
}

// match checks a key, and returns it in the order of the fields, without fields that match every value.
func match(fields []Field, list []*p4v1.FieldMatch) ([]*p4v1.FieldMatch, error) {
	list, err := arranged(fields, "field", list, (*p4v1.FieldMatch).GetFieldId)
	if err != nil {
		return nil, err
	}
	rest := list
	for n := range fields {
		f := &fields[n]
		if len(rest) == 0 || rest[0].GetFieldId() != f.ID {
			if f.Match == configv1.MatchField_EXACT {
				return nil, invalid("field %s is missing: it is matched exactly", f.Name)
			}
			continue
		}
		if err := f.match(rest[0]); err != nil {
			return nil, in("field "+f.Name, err)
		}
		rest = rest[1:]
	}
	return list, nil
}

// match checks one field of a key.
func (f *Field) match(m *p4v1.FieldMatch) error {
	c := CondOf(m)
	if c.Value == nil {
		if _, other := m.GetFieldMatchType().(*p4v1.FieldMatch_Other); other {
			return refuse(codes.Unimplemented, "a match of an unknown type")
		}
		return invalid("a match without a value")
	}
	if c.Match != f.Match {
		return invalid("%s match, the field's is %s", [...]string{
			configv1.MatchField_EXACT: "an exact", configv1.MatchField_OPTIONAL: "an optional", configv1.MatchField_LPM: "an LPM",
			configv1.MatchField_TERNARY: "a ternary", configv1.MatchField_RANGE: "a range",
		}[c.Match], MatchName(f.Match))
	}
	var err error
	if *c.Value, err = f.Type.canonical(*c.Value); err != nil {
		if c.Match == configv1.MatchField_RANGE {
			err = in("low", err)
		}
		return err
	}
	if c.More != nil {
		if *c.More, err = f.Type.canonical(*c.More); err != nil {
			return in(map[bool]string{true: "high", false: "mask"}[c.Match == configv1.MatchField_RANGE], err)
		}
	}
	bits := f.Type.Bits
	switch c.Match {
	case configv1.MatchField_LPM:
		switch n := int(*c.Prefix); {
		case n == 0:
			return invalid("a prefix of length 0 matches everything: leave the field out")
		case n < 0 || n > bits:
			return invalid("a prefix of length %d, the field has %d bits", n, bits)
		case value.TrailingZeros(*c.Value) < bits-n:
			return invalid("value 0x%x has bits behind its prefix of length %d", *c.Value, n)
		}
	case configv1.MatchField_TERNARY:
		switch {
		case value.IsZero(*c.More):
			return invalid("a mask of 0 matches everything: leave the field out")
		case !value.Within(*c.Value, *c.More):
			return invalid("value 0x%x has bits outside of mask 0x%x", *c.Value, *c.More)
		}
	case configv1.MatchField_RANGE:
		switch {
		case value.Compare(*c.Value, *c.More) > 0:
			return invalid("a range from 0x%x to 0x%x", *c.Value, *c.More)
		case value.IsZero(*c.Value) && value.Compare(*c.More, value.Ones(bits)) == 0:
			return invalid("a range of all values matches everything: leave the field out")
		}
	}
	return nil
}

// MatchName returns the name of a match kind in P4 source, as "lpm".
func MatchName(m configv1.MatchField_MatchType) string { return strings.ToLower(m.String()) }

// tableAction checks the action of an entry.
func (i *Info) tableAction(t *Table, a *p4v1.TableAction, isDefault bool) error {
	switch x := a.GetType().(type) {
	case *p4v1.TableAction_Action:
		if t.Profile != nil {
			return invalid("a direct action, the table takes members and groups of action profile %s", t.Profile.Name)
		}
		return t.action(x.Action, isDefault)
	case *p4v1.TableAction_ActionProfileMemberId:
		if t.Profile == nil {
			return invalid("an action profile member, the table has no action profile")
		}
		if x.ActionProfileMemberId == 0 {
			return invalid("member 0: ids begin with 1")
		}
		return nil
	case *p4v1.TableAction_ActionProfileGroupId:
		if t.Profile == nil || !t.Profile.Selector {
			return invalid("an action profile group, the table has no action selector")
		}
		if x.ActionProfileGroupId == 0 {
			return invalid("group 0: ids begin with 1")
		}
		return nil
	case *p4v1.TableAction_ActionProfileActionSet:
		if t.Profile == nil || !t.Profile.Selector {
			return invalid("an action set, the table has no action selector")
		}
		s := x.ActionProfileActionSet
		if s.GetActionSelectionMode() != 0 || s.GetSizeSemantics() != 0 {
			return refuse(codes.Unimplemented, "an action set with a selection mode or size semantics of its own")
		}
		var weights []int32
		for n, y := range s.GetActionProfileActions() {
			if y.GetAction() == nil {
				return invalid("action set, action %d is missing", n+1)
			}
			if err := t.action(y.GetAction(), false); err != nil {
				return in("action set", err)
			}
			weights = append(weights, y.GetWeight())
			if p, ok := y.GetWatchKind().(*p4v1.ActionProfileAction_WatchPort); ok {
				c, err := port(p.WatchPort)
				if err != nil {
					return in("action set, watch port", err)
				}
				p.WatchPort = c
			}
		}
		return in("action set", t.Profile.weights(weights, 0, codes.InvalidArgument))
	}
	return invalid("an action without a value")
}

// action checks an action of a table.
func (t *Table) action(a *p4v1.Action, isDefault bool) error {
	r := t.ActionID(a.GetActionId())
	if r == nil {
		return invalid("there is no action 0x%08x", a.GetActionId())
	}
	switch {
	case isDefault && r.Scope == configv1.ActionRef_TABLE_ONLY:
		return refuse(codes.PermissionDenied, "action %s is for entries only, not for the default entry", r.Name)
	case !isDefault && r.Scope == configv1.ActionRef_DEFAULT_ONLY:
		return refuse(codes.PermissionDenied, "action %s is for the default entry only", r.Name)
	}
	return in("action "+r.Name, r.params(a))
}

// InitialDefault returns the default action that the table has at first, in canonical form, or nil if the
// P4Info does not name one.
func (t *Table) InitialDefault() *p4v1.Action {
	d := t.Proto.GetInitialDefaultAction()
	if d == nil {
		return nil
	}
	a := &p4v1.Action{ActionId: d.ActionId}
	for _, x := range d.Arguments {
		a.Params = append(a.Params, &p4v1.Action_Param{ParamId: x.ParamId, Value: x.Value})
	}
	if r := t.ActionID(d.ActionId); r != nil {
		_ = r.params(a) // what does not fit is left as it is
	}
	return a
}

// params checks the arguments of an action, and sorts them in the order of the parameters.
func (a *Action) params(x *p4v1.Action) error {
	list, err := arranged(a.Params, "parameter", x.GetParams(), (*p4v1.Action_Param).GetParamId)
	if err != nil {
		return err
	}
	for n := range a.Params {
		f := &a.Params[n]
		if n >= len(list) || list[n].GetParamId() != f.ID {
			return invalid("parameter %s is missing", f.Name)
		}
		if list[n].Value, err = f.Type.canonical(list[n].GetValue()); err != nil {
			return in("parameter "+f.Name, err)
		}
	}
	x.Params = list
	return nil
}

// weights checks the weights of a group or an action set. maxSize is the group's own limit; if it is 0, the
// limit of the profile counts. tooMany is the code of the error if the limit is exceeded.
func (p *Profile) weights(list []int32, maxSize int32, tooMany codes.Code) error {
	limit := int64(p.Proto.GetMaxGroupSize())
	if maxSize > 0 {
		limit = int64(maxSize)
	}
	members := p.Proto.GetSumOfMembers()
	sum := int64(0)
	for _, w := range list {
		switch {
		case p.Proto.GetWeightsDisallowed() && w != 0:
			return invalid("weight %d, action profile %s has none", w, p.Name)
		case !p.Proto.GetWeightsDisallowed() && w <= 0:
			return invalid("weight %d: it must be above 0", w)
		case members.GetMaxMemberWeight() > 0 && w > members.GetMaxMemberWeight():
			return invalid("weight %d: action profile %s has them up to %d", w, p.Name, members.GetMaxMemberWeight())
		}
		sum += int64(max(w, 1))
	}
	if members != nil {
		sum = int64(len(list))
	}
	if limit > 0 && sum > limit {
		return refuse(tooMany, "a size of %d, at most %d", sum, limit)
	}
	return nil
}

func (i *Info) member(op p4v1.Update_Type, x *Entity) error {
	o, err := i.object(x)
	if err != nil {
		return err
	}
	p := i.Profile(o.ID)
	switch {
	case x.ID == 0:
		return invalid("action profile %s: member 0: ids begin with 1", p.Name)
	case op == p4v1.Update_DELETE:
		return nil
	case x.Action == nil:
		return invalid("action profile %s, member %d: an action is missing", p.Name, x.ID)
	case len(p.Tables) == 0:
		return invalid("action profile %s, member %d: no table uses it", p.Name, x.ID)
	}
	for _, t := range p.Tables { // any of them may use the member
		if err := t.action(x.Action, false); err != nil {
			return in("action profile "+p.Name+", member: table "+t.Name, err)
		}
	}
	return nil
}

func (i *Info) group(op p4v1.Update_Type, x *Entity) error {
	o, err := i.object(x)
	if err != nil {
		return err
	}
	p := i.Profile(o.ID)
	switch {
	case !p.Selector:
		return invalid("action profile %s has no groups: it is no selector", p.Name)
	case x.ID == 0:
		return invalid("action profile %s: group 0: ids begin with 1", p.Name)
	case op == p4v1.Update_DELETE:
		return nil
	}
	where := "action profile " + p.Name + ", group"
	if m := p.Proto.GetMaxGroupSize(); x.MaxSize < 0 || m > 0 && x.MaxSize > m {
		return in(where, invalid("a maximum size of %d, the profile's is %d", x.MaxSize, m))
	}
	seen := map[uint32]bool{}
	var weights []int32
	for _, m := range x.Members {
		if m.GetMemberId() == 0 {
			return in(where, invalid("member 0: ids begin with 1"))
		}
		if seen[m.GetMemberId()] {
			return in(where, invalid("member %d is there twice", m.GetMemberId()))
		}
		seen[m.GetMemberId()] = true
		weights = append(weights, m.GetWeight())
		if w, ok := m.GetWatchKind().(*p4v1.ActionProfileGroup_Member_WatchPort); ok && len(w.WatchPort) > 0 {
			c, err := port(w.WatchPort)
			if err != nil {
				return in(where+", watch port", err)
			}
			w.WatchPort = c
		}
	}
	return in(where, p.weights(weights, x.MaxSize, codes.ResourceExhausted))
}

// port checks the number of a port, and returns it in canonical form.
func port(v []byte) ([]byte, error) {
	if len(v) == 0 {
		return v, nil
	}
	return Canonical(v, 32)
}

// PortNumber returns the port number that a byte string of at most 32 bits holds.
func PortNumber(v []byte) uint32 { return uint32(value.Uint64(v)) }

// direct checks a direct counter or meter, and the entry that it belongs to.
func (i *Info) direct(op p4v1.Update_Type, x *Entity) error {
	e := x.Entry
	if e == nil {
		return invalid("the table_entry is missing")
	}
	t := i.Table(x.Object)
	if t == nil {
		return refuse(notFound, "there is no table 0x%08x", x.Object)
	}
	if e.GetIsDefaultAction() {
		if len(e.GetMatch()) > 0 || e.GetPriority() != 0 {
			return invalid("table %s: the default entry has no match and no priority", t.Name)
		}
	} else {
		m, err := match(t.Fields, e.GetMatch())
		if err != nil {
			return in("table "+t.Name, err)
		}
		e.Match = m
		if t.Priority != (e.GetPriority() > 0) {
			return invalid("table %s: priority %d", t.Name, e.GetPriority())
		}
	}
	d := t.direct(x.Kind)
	switch {
	case d == nil:
		return invalid("table %s has no %v", t.Name, x.Kind)
	case op != p4v1.Update_MODIFY:
		return invalid("a %v of table %s may only be modified", x.Kind, t.Name)
	case x.Kind == KindDirectCounter:
		return in("table "+t.Name, checkCount(x.Count))
	}
	return in("table "+t.Name, checkMeter(d.MeterType, x.Rates, x.Colours))
}

// direct returns the table's direct counter if k is KindDirectCounter, else its direct meter; nil: the table
// has none.
func (t *Table) direct(k Kind) *Direct {
	if k == KindDirectCounter {
		return t.Counter
	}
	return t.Meter
}

func checkCount(c *p4v1.CounterData) error {
	if c.GetByteCount() < 0 || c.GetPacketCount() < 0 {
		return invalid("a count below 0")
	}
	return nil
}

func checkMeter(t configv1.MeterSpec_Type, c *p4v1.MeterConfig, n *p4v1.MeterCounterData) error {
	if n != nil {
		return noColours()
	}
	if c == nil {
		return nil
	}
	switch {
	case c.GetCir() < 0 || c.GetCburst() < 0 || c.GetPir() < 0 || c.GetPburst() < 0 || c.GetEburst() < 0:
		return invalid("a rate or a burst below 0")
	case t == configv1.MeterSpec_TWO_RATE_THREE_COLOR && c.GetEburst() != 0:
		return invalid("an excess burst, the meter has two rates")
	case t == configv1.MeterSpec_TWO_RATE_THREE_COLOR && c.GetPir() < c.GetCir():
		return invalid("a peak rate of %d below the committed rate of %d", c.GetPir(), c.GetCir())
	case t != configv1.MeterSpec_TWO_RATE_THREE_COLOR && (c.GetPir() != c.GetCir() || c.GetPburst() != c.GetCburst()):
		return invalid("the peak rate and burst differ from the committed ones, the meter has a single rate")
	case t == configv1.MeterSpec_SINGLE_RATE_TWO_COLOR && c.GetEburst() != 0:
		return invalid("an excess burst, the meter has two colours")
	}
	return nil
}

// data checks a value against its type.
func (i *Info) data(s *configv1.P4DataTypeSpec, d *p4v1.P4Data) error {
	if d.GetData() == nil {
		return invalid("the value is missing")
	}
	if w, ok := i.width(s); ok {
		switch x := d.GetData().(type) {
		case *p4v1.P4Data_Bitstring:
			v, err := Canonical(x.Bitstring, w)
			x.Bitstring = v
			return err
		case *p4v1.P4Data_EnumValue:
			v, err := Canonical(x.EnumValue, w)
			x.EnumValue = v
			return err
		case *p4v1.P4Data_Bool:
			if s.GetBool() != nil {
				return nil
			}
		}
		return invalid("the value is no number of %d bits", w)
	}
	if n := s.GetBitstring().GetInt().GetBitwidth(); n > 0 {
		v, err := canonicalSigned(d.GetBitstring(), int(n))
		if err != nil {
			return err
		}
		d.Data = &p4v1.P4Data_Bitstring{Bitstring: v}
		return nil
	}
	var specs []*configv1.P4DataTypeSpec
	var values []*p4v1.P4Data
	switch t := s.GetTypeSpec().(type) {
	case *configv1.P4DataTypeSpec_Struct:
		for _, m := range i.Proto.GetTypeInfo().GetStructs()[t.Struct.GetName()].GetMembers() {
			specs = append(specs, m.GetTypeSpec())
		}
		values = d.GetStruct().GetMembers()
	case *configv1.P4DataTypeSpec_Tuple:
		specs, values = t.Tuple.GetMembers(), d.GetTuple().GetMembers()
	default:
		return refuse(codes.Unimplemented, "values of this type")
	}
	if len(values) != len(specs) {
		return invalid("the value has %d members, there must be %d", len(values), len(specs))
	}
	for n := range specs {
		if err := i.data(specs[n], values[n]); err != nil {
			return err
		}
	}
	return nil
}

// canonicalSigned is like Canonical, for integers in two's complement.
func canonicalSigned(v []byte, width int) ([]byte, error) {
	if len(v) == 0 {
		return nil, refuse(codes.OutOfRange, "the value is empty")
	}
	for len(v) > 1 && (v[0] == 0 && v[1] < 0x80 || v[0] == 0xff && v[1] >= 0x80) {
		v = v[1:]
	}
	top := v[0]
	if top >= 0x80 {
		top = ^top
	}
	if n := 8*(len(v)-1) + bits.Len8(top) + 1; n > width {
		return nil, refuse(codes.OutOfRange, "value 0x%s needs %d bits with its sign, there are %d", hex.EncodeToString(v), n, width)
	}
	return v, nil
}

// replication checks an entry of the packet replication engine.
func replication(op p4v1.Update_Type, x *Entity) error {
	switch {
	case x.Kind == KindReplication:
		return invalid("neither a multicast group nor a clone session")
	case x.ID == 0:
		return invalid("%v 0: ids begin with 1", x.Kind)
	case op == p4v1.Update_DELETE:
		return nil
	case x.Length < 0:
		return invalid("%v %d: a packet length of %d", x.Kind, x.ID, x.Length)
	}
	return in(x.Kind.String(), replicas(x.Replicas))
}

// ReplicaPort returns the port of a replica, from the field port or from the older field egress_port.
func ReplicaPort(r *p4v1.Replica) uint32 {
	if p, ok := r.GetPortKind().(*p4v1.Replica_Port); ok {
		return PortNumber(p.Port)
	}
	return r.GetEgressPort() //nolint:staticcheck // clients of before 1.4 use it
}

// maxBackups is the highest number of backup replicas of a replica. It bounds the work for each packet.
const maxBackups = 16

func replicas(list []*p4v1.Replica) error {
	type one struct{ port, instance uint32 }
	seen := map[one]bool{}
	for _, r := range list {
		switch p := r.GetPortKind().(type) {
		case *p4v1.Replica_Port:
			c, err := Canonical(p.Port, 32)
			if err != nil {
				return in("port", err)
			}
			p.Port = c
		case nil:
			return invalid("a replica without a port")
		}
		k := one{ReplicaPort(r), r.GetInstance()}
		if seen[k] {
			return invalid("port %d with instance %d is there twice", k.port, k.instance)
		}
		seen[k] = true
		own := map[one]bool{k: true}
		if n := len(r.GetBackupReplicas()); n > maxBackups {
			return refuse(codes.ResourceExhausted, "port %d: %d backup replicas, at most %d", k.port, n, maxBackups)
		}
		for _, b := range r.GetBackupReplicas() {
			c, err := Canonical(b.GetPort(), 32)
			if err != nil {
				return in("port of a backup replica", err)
			}
			b.Port = c
			x := one{PortNumber(c), b.GetInstance()}
			if own[x] {
				return invalid("port %d: its backup port %d with instance %d is there twice", k.port, x.port, x.instance)
			}
			own[x] = true
		}
	}
	return nil
}

func (s *ValueSet) members(list []*p4v1.ValueSetMember) error {
	if s.Size > 0 && len(list) > int(s.Size) {
		return refuse(codes.ResourceExhausted, "%d members, it has room for %d", len(list), s.Size)
	}
	seen := map[string]bool{}
	for _, m := range list {
		list, err := match(s.Fields, m.GetMatch())
		if err != nil {
			return err
		}
		m.Match = list
		k := string(appendMatch(nil, list))
		if seen[k] {
			return refuse(codes.AlreadyExists, "a member is there twice")
		}
		seen[k] = true
	}
	return nil
}
