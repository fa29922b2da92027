package p4info

import (
	"encoding/hex"
	"math/bits"
	"slices"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/nf/value"
)

// Update checks an update of a Write and gives its entity the canonical form:
// byte strings as short as they can be, the fields of keys, actions and values
// in the order of the P4Info. It changes u, also when it refuses it. Whether the
// entity exists is for the device to say.
func (i *Info) Update(u *p4v1.Update) error {
	switch u.GetType() {
	case p4v1.Update_INSERT, p4v1.Update_MODIFY, p4v1.Update_DELETE:
	case p4v1.Update_UNSPECIFIED:
		return invalid("the update has no type: INSERT, MODIFY or DELETE")
	default:
		return invalid("the update has type %d: it may be INSERT, MODIFY or DELETE", u.GetType())
	}
	op := u.GetType()
	onlyModify := func(what string) error {
		if op != p4v1.Update_MODIFY {
			return invalid("%s may only be modified", what)
		}
		return nil
	}
	switch e := u.GetEntity().GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return i.tableEntry(op, e.TableEntry)
	case *p4v1.Entity_ActionProfileMember:
		return i.member(op, e.ActionProfileMember)
	case *p4v1.Entity_ActionProfileGroup:
		return i.group(op, e.ActionProfileGroup)
	case *p4v1.Entity_CounterEntry:
		c := e.CounterEntry
		a, err := i.cell("counter", i.Counter(c.GetCounterId()), c.GetCounterId(), c.GetIndex())
		if err != nil {
			return err
		}
		if err := onlyModify("counter " + a.Name); err != nil {
			return err
		}
		return in("counter "+a.Name, checkCount(c.GetData()))
	case *p4v1.Entity_DirectCounterEntry:
		t, err := i.direct(e.DirectCounterEntry.GetTableEntry())
		if err != nil {
			return err
		}
		if t.Counter == nil {
			return invalid("table %s has no direct counter", t.Name)
		}
		if err := onlyModify("a direct counter of table " + t.Name); err != nil {
			return err
		}
		return in("table "+t.Name, checkCount(e.DirectCounterEntry.GetData()))
	case *p4v1.Entity_MeterEntry:
		m := e.MeterEntry
		a, err := i.cell("meter", i.Meter(m.GetMeterId()), m.GetMeterId(), m.GetIndex())
		if err != nil {
			return err
		}
		if err := onlyModify("meter " + a.Name); err != nil {
			return err
		}
		return in("meter "+a.Name, checkMeter(a.MeterType, m.GetConfig(), m.GetCounterData()))
	case *p4v1.Entity_DirectMeterEntry:
		t, err := i.direct(e.DirectMeterEntry.GetTableEntry())
		if err != nil {
			return err
		}
		if t.Meter == nil {
			return invalid("table %s has no direct meter", t.Name)
		}
		if err := onlyModify("a direct meter of table " + t.Name); err != nil {
			return err
		}
		return in("table "+t.Name, checkMeter(t.Meter.MeterType, e.DirectMeterEntry.GetConfig(), e.DirectMeterEntry.GetCounterData()))
	case *p4v1.Entity_RegisterEntry:
		r := e.RegisterEntry
		a, err := i.cell("register", i.Register(r.GetRegisterId()), r.GetRegisterId(), r.GetIndex())
		if err != nil {
			return err
		}
		if err := onlyModify("register " + a.Name); err != nil {
			return err
		}
		return in("register "+a.Name, i.data(a.Spec, r.GetData()))
	case *p4v1.Entity_PacketReplicationEngineEntry:
		return i.replication(op, e.PacketReplicationEngineEntry)
	case *p4v1.Entity_ValueSetEntry:
		v := e.ValueSetEntry
		s := i.ValueSet(v.GetValueSetId())
		if s == nil {
			return refuse(notFound, "there is no value set 0x%08x", v.GetValueSetId())
		}
		if err := onlyModify("value set " + s.Name); err != nil {
			return err
		}
		return in("value set "+s.Name, s.members(v))
	case *p4v1.Entity_DigestEntry:
		d := i.Digest(e.DigestEntry.GetDigestId())
		if d == nil {
			return refuse(notFound, "there is no digest 0x%08x", e.DigestEntry.GetDigestId())
		}
		c := e.DigestEntry.GetConfig()
		if op != p4v1.Update_DELETE && (c.GetMaxTimeoutNs() < 0 || c.GetMaxListSize() < 0 || c.GetAckTimeoutNs() < 0) {
			return invalid("digest %s: a configuration below 0", d.Name)
		}
		return nil
	case *p4v1.Entity_ExternEntry:
		return refuse(codes.Unimplemented, "there are no externs of type 0x%x", e.ExternEntry.GetExternTypeId())
	}
	return invalid("the update has no entity")
}

// Query checks an entity of a Read, and gives it the canonical form. An id of 0
// reads all objects of the kind.
func (i *Info) Query(q *p4v1.Entity) error {
	unknown := func(kind string, id uint32) error { return refuse(notFound, "there is no %s 0x%08x", kind, id) }
	index := func(kind string, of *Array, id uint32, x *p4v1.Index) error {
		if id == 0 {
			return nil
		}
		_, err := i.cell(kind, of, id, x)
		return err
	}
	switch e := q.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return i.tableQuery(e.TableEntry)
	case *p4v1.Entity_ActionProfileMember:
		if id := e.ActionProfileMember.GetActionProfileId(); id != 0 && i.Profile(id) == nil {
			return unknown("action profile", id)
		}
	case *p4v1.Entity_ActionProfileGroup:
		id := e.ActionProfileGroup.GetActionProfileId()
		if id == 0 {
			break
		}
		p := i.Profile(id)
		if p == nil {
			return unknown("action profile", id)
		}
		if !p.Selector {
			return invalid("action profile %s has no groups: it is no selector", p.Name)
		}
	case *p4v1.Entity_CounterEntry:
		c := e.CounterEntry
		return index("counter", i.Counter(c.GetCounterId()), c.GetCounterId(), c.GetIndex())
	case *p4v1.Entity_MeterEntry:
		m := e.MeterEntry
		if m.GetCounterData() != nil {
			return refuse(codes.Unimplemented, "meters do not count packets by colour")
		}
		return index("meter", i.Meter(m.GetMeterId()), m.GetMeterId(), m.GetIndex())
	case *p4v1.Entity_RegisterEntry:
		r := e.RegisterEntry
		return index("register", i.Register(r.GetRegisterId()), r.GetRegisterId(), r.GetIndex())
	case *p4v1.Entity_DirectCounterEntry:
		te := e.DirectCounterEntry.GetTableEntry()
		if te == nil {
			return invalid("a direct counter is read by its table_entry")
		}
		if err := i.tableQuery(te); err != nil {
			return err
		}
		if t := i.Table(te.GetTableId()); t != nil && t.Counter == nil {
			return invalid("table %s has no direct counter", t.Name)
		}
	case *p4v1.Entity_DirectMeterEntry:
		te := e.DirectMeterEntry.GetTableEntry()
		if te == nil {
			return invalid("a direct meter is read by its table_entry")
		}
		if e.DirectMeterEntry.GetCounterData() != nil {
			return refuse(codes.Unimplemented, "meters do not count packets by colour")
		}
		if err := i.tableQuery(te); err != nil {
			return err
		}
		if t := i.Table(te.GetTableId()); t != nil && t.Meter == nil {
			return invalid("table %s has no direct meter", t.Name)
		}
	case *p4v1.Entity_PacketReplicationEngineEntry:
		if e.PacketReplicationEngineEntry.GetType() == nil {
			return invalid("the packet replication engine has multicast groups and clone sessions: ask for either")
		}
	case *p4v1.Entity_ValueSetEntry:
		if id := e.ValueSetEntry.GetValueSetId(); id != 0 && i.ValueSet(id) == nil {
			return unknown("value set", id)
		}
	case *p4v1.Entity_DigestEntry:
		if id := e.DigestEntry.GetDigestId(); id != 0 && i.Digest(id) == nil {
			return unknown("digest", id)
		}
	case *p4v1.Entity_ExternEntry:
		if e.ExternEntry.GetExternTypeId() != 0 {
			return refuse(codes.Unimplemented, "there are no externs of type 0x%x", e.ExternEntry.GetExternTypeId())
		}
	default:
		return invalid("the request has no entity")
	}
	return nil
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

// tableEntry checks an entry of a table for a write.
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

// inEntry puts the text of an entry's key in front of an error.
func (i *Info) inEntry(e *p4v1.TableEntry, err error) error {
	if err == nil {
		return nil
	}
	return in("table "+i.Table(e.GetTableId()).Name+", entry "+i.keyText(e), err)
}

// match checks a key, and puts it into the order of the fields. Fields that
// match everything are left out.
func match(fields []Field, list []*p4v1.FieldMatch) ([]*p4v1.FieldMatch, error) {
	sorted := true
	at := 0
	var seen uint64 // of the first 64 fields
	for _, m := range list {
		n := at // most keys are in order
		if n >= len(fields) || fields[n].ID != m.GetFieldId() {
			n = slices.IndexFunc(fields, func(f Field) bool { return f.ID == m.GetFieldId() })
			if n < 0 {
				return nil, invalid("the key has no field %d", m.GetFieldId())
			}
			sorted = sorted && n >= at
		}
		if n < 64 && seen>>n&1 != 0 || n >= 64 && twice(list, m.GetFieldId()) {
			return nil, invalid("field %s is there twice", fields[n].Name)
		}
		if n < 64 {
			seen |= 1 << n
		}
		at = n + 1
		if err := fields[n].match(m); err != nil {
			return nil, in("field "+fields[n].Name, err)
		}
	}
	for n := range fields {
		if fields[n].Match == configv1.MatchField_EXACT && (n < 64 && seen>>n&1 == 0 || n >= 64 && !there(list, fields[n].ID)) {
			return nil, invalid("field %s is missing: it is matched exactly", fields[n].Name)
		}
	}
	if !sorted {
		list = slices.Clone(list)
		slices.SortFunc(list, func(a, b *p4v1.FieldMatch) int { return place(fields, a) - place(fields, b) })
	}
	return list, nil
}

func place(fields []Field, m *p4v1.FieldMatch) int {
	return slices.IndexFunc(fields, func(f Field) bool { return f.ID == m.GetFieldId() })
}

func there(list []*p4v1.FieldMatch, id uint32) bool {
	return slices.ContainsFunc(list, func(m *p4v1.FieldMatch) bool { return m.GetFieldId() == id })
}

func twice(list []*p4v1.FieldMatch, id uint32) bool {
	n := 0
	for _, m := range list {
		if m.GetFieldId() == id {
			n++
		}
	}
	return n > 1
}

// match checks one field of a key.
func (f *Field) match(m *p4v1.FieldMatch) (err error) {
	wrong := func(kind string) error {
		return invalid("%s match, the field's is %s", kind, MatchName(f.Match))
	}
	bits := f.Type.Bits
	switch x := m.GetFieldMatchType().(type) {
	case *p4v1.FieldMatch_Exact_:
		if f.Match != configv1.MatchField_EXACT {
			return wrong("an exact")
		}
		x.Exact.Value, err = f.Type.canonical(x.Exact.GetValue())
	case *p4v1.FieldMatch_Optional_:
		if f.Match != configv1.MatchField_OPTIONAL {
			return wrong("an optional")
		}
		x.Optional.Value, err = f.Type.canonical(x.Optional.GetValue())
	case *p4v1.FieldMatch_Lpm:
		if f.Match != configv1.MatchField_LPM {
			return wrong("an LPM")
		}
		if x.Lpm.Value, err = f.Type.canonical(x.Lpm.GetValue()); err != nil {
			return err
		}
		n := int(x.Lpm.GetPrefixLen())
		switch {
		case n == 0:
			return invalid("a prefix of length 0 matches everything: leave the field out")
		case n < 0 || n > bits:
			return invalid("a prefix of length %d, the field has %d bits", n, bits)
		case value.TrailingZeros(x.Lpm.Value) < bits-n:
			return invalid("value 0x%s has bits behind its prefix of length %d", hex.EncodeToString(x.Lpm.Value), n)
		}
	case *p4v1.FieldMatch_Ternary_:
		if f.Match != configv1.MatchField_TERNARY {
			return wrong("a ternary")
		}
		if x.Ternary.Value, err = f.Type.canonical(x.Ternary.GetValue()); err != nil {
			return err
		}
		if x.Ternary.Mask, err = f.Type.canonical(x.Ternary.GetMask()); err != nil {
			return in("mask", err)
		}
		switch {
		case value.IsZero(x.Ternary.Mask):
			return invalid("a mask of 0 matches everything: leave the field out")
		case !value.Within(x.Ternary.Value, x.Ternary.Mask):
			return invalid("value 0x%s has bits outside of mask 0x%s", hex.EncodeToString(x.Ternary.Value), hex.EncodeToString(x.Ternary.Mask))
		}
	case *p4v1.FieldMatch_Range_:
		if f.Match != configv1.MatchField_RANGE {
			return wrong("a range")
		}
		if x.Range.Low, err = f.Type.canonical(x.Range.GetLow()); err != nil {
			return in("low", err)
		}
		if x.Range.High, err = f.Type.canonical(x.Range.GetHigh()); err != nil {
			return in("high", err)
		}
		switch {
		case value.Compare(x.Range.Low, x.Range.High) > 0:
			return invalid("a range from 0x%s to 0x%s", hex.EncodeToString(x.Range.Low), hex.EncodeToString(x.Range.High))
		case value.IsZero(x.Range.Low) && value.Compare(x.Range.High, value.Ones(bits)) == 0:
			return invalid("a range of all values matches everything: leave the field out")
		}
	case *p4v1.FieldMatch_Other:
		return refuse(codes.Unimplemented, "a match of an unknown type")
	default:
		return invalid("a match without a value")
	}
	return err
}

// MatchName is P4's name of a match kind.
func MatchName(m configv1.MatchField_MatchType) string {
	switch m {
	case configv1.MatchField_EXACT:
		return "exact"
	case configv1.MatchField_LPM:
		return "lpm"
	case configv1.MatchField_TERNARY:
		return "ternary"
	case configv1.MatchField_RANGE:
		return "range"
	case configv1.MatchField_OPTIONAL:
		return "optional"
	}
	return m.String()
}

// tableAction checks what an entry does.
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

// InitialDefault is the table's default action before anybody sets another, in canonical form; nil: the P4Info does
// not tell.
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

// params checks an action's arguments, and puts them into the order of the
// parameters.
func (a *Action) params(x *p4v1.Action) error {
	list := x.GetParams()
	ordered := true
	for n, p := range list {
		if n >= len(a.Params) || a.Params[n].ID != p.GetParamId() {
			ordered = false
			if byID(a.Params, p.GetParamId()) == nil {
				return invalid("there is no parameter %d", p.GetParamId())
			}
		}
	}
	if !ordered {
		list = slices.Clone(list)
		order := func(p *p4v1.Action_Param) int {
			return slices.IndexFunc(a.Params, func(f Field) bool { return f.ID == p.GetParamId() })
		}
		slices.SortFunc(list, func(a, b *p4v1.Action_Param) int { return order(a) - order(b) })
	}
	for n := range a.Params {
		f := &a.Params[n]
		if n >= len(list) || list[n].GetParamId() != f.ID {
			if n > 0 && n < len(list) && list[n].GetParamId() == a.Params[n-1].ID {
				return invalid("parameter %s is there twice", a.Params[n-1].Name)
			}
			return invalid("parameter %s is missing", f.Name)
		}
		v, err := f.Type.canonical(list[n].GetValue())
		if err != nil {
			return in("parameter "+f.Name, err)
		}
		list[n].Value = v
	}
	if len(list) > len(a.Params) {
		return invalid("parameter %s is there twice", byID(a.Params, list[len(list)-1].GetParamId()).Name)
	}
	x.Params = list
	return nil
}

// weights checks the weights of a group or an action set; maxSize is the
// group's own, 0: that of the profile.
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

func (i *Info) member(op p4v1.Update_Type, m *p4v1.ActionProfileMember) error {
	p := i.Profile(m.GetActionProfileId())
	if p == nil {
		return refuse(notFound, "there is no action profile 0x%08x", m.GetActionProfileId())
	}
	if m.GetMemberId() == 0 {
		return invalid("action profile %s: member 0: ids begin with 1", p.Name)
	}
	if op == p4v1.Update_DELETE {
		return nil
	}
	if m.GetAction() == nil {
		return invalid("action profile %s, member %d: an action is missing", p.Name, m.GetMemberId())
	}
	if len(p.Tables) == 0 {
		return invalid("action profile %s, member %d: no table uses it", p.Name, m.GetMemberId())
	}
	for _, t := range p.Tables { // any of them may use the member
		if err := t.action(m.GetAction(), false); err != nil {
			return in("action profile "+p.Name+", member: table "+t.Name, err)
		}
	}
	return nil
}

func (i *Info) group(op p4v1.Update_Type, g *p4v1.ActionProfileGroup) error {
	p := i.Profile(g.GetActionProfileId())
	switch {
	case p == nil:
		return refuse(notFound, "there is no action profile 0x%08x", g.GetActionProfileId())
	case !p.Selector:
		return invalid("action profile %s has no groups: it is no selector", p.Name)
	case g.GetGroupId() == 0:
		return invalid("action profile %s: group 0: ids begin with 1", p.Name)
	case op == p4v1.Update_DELETE:
		return nil
	}
	where := "action profile " + p.Name + ", group"
	if m := p.Proto.GetMaxGroupSize(); g.GetMaxSize() < 0 || m > 0 && g.GetMaxSize() > m {
		return in(where, invalid("a maximum size of %d, the profile's is %d", g.GetMaxSize(), m))
	}
	seen := map[uint32]bool{}
	var weights []int32
	for _, m := range g.GetMembers() {
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
	return in(where, p.weights(weights, g.GetMaxSize(), codes.ResourceExhausted))
}

// port checks a port's number.
func port(v []byte) ([]byte, error) {
	if len(v) == 0 {
		return v, nil
	}
	return Canonical(v, 32)
}

// PortNumber is the number of a port in a byte string of at most 32 bits.
func PortNumber(v []byte) uint32 { return uint32(value.Uint64(v)) }

// cell checks the index of an array's element; nil: all.
func (i *Info) cell(kind string, a *Array, id uint32, x *p4v1.Index) (*Array, error) {
	switch {
	case a == nil:
		return nil, refuse(notFound, "there is no %s 0x%08x", kind, id)
	case x.GetIndex() < 0:
		return nil, invalid("%s %s: index %d", kind, a.Name, x.GetIndex())
	case x != nil && x.GetIndex() >= a.Size:
		return nil, refuse(codes.OutOfRange, "%s %s: index %d, it has %d", kind, a.Name, x.GetIndex(), a.Size)
	}
	return a, nil
}

// direct checks the entry that a direct resource belongs to.
func (i *Info) direct(e *p4v1.TableEntry) (*Table, error) {
	if e == nil {
		return nil, invalid("the table_entry is missing")
	}
	t := i.Table(e.GetTableId())
	if t == nil {
		return nil, refuse(notFound, "there is no table 0x%08x", e.GetTableId())
	}
	if e.GetIsDefaultAction() {
		if len(e.GetMatch()) > 0 || e.GetPriority() != 0 {
			return nil, invalid("table %s: the default entry has no match and no priority", t.Name)
		}
		return t, nil
	}
	m, err := match(t.Fields, e.GetMatch())
	if err != nil {
		return nil, in("table "+t.Name, err)
	}
	e.Match = m
	if t.Priority != (e.GetPriority() > 0) {
		return nil, invalid("table %s: priority %d", t.Name, e.GetPriority())
	}
	return t, nil
}

func checkCount(c *p4v1.CounterData) error {
	if c.GetByteCount() < 0 || c.GetPacketCount() < 0 {
		return invalid("a count below 0")
	}
	return nil
}

func checkMeter(t configv1.MeterSpec_Type, c *p4v1.MeterConfig, n *p4v1.MeterCounterData) error {
	if n != nil {
		return refuse(codes.Unimplemented, "meters do not count packets by colour")
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

// canonicalSigned is Canonical for two's complement.
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
func (i *Info) replication(op p4v1.Update_Type, e *p4v1.PacketReplicationEngineEntry) error {
	switch x := e.GetType().(type) {
	case *p4v1.PacketReplicationEngineEntry_MulticastGroupEntry:
		g := x.MulticastGroupEntry
		if g.GetMulticastGroupId() == 0 {
			return invalid("multicast group 0: ids begin with 1")
		}
		if op == p4v1.Update_DELETE {
			return nil
		}
		return in("multicast group", replicas(g.GetReplicas()))
	case *p4v1.PacketReplicationEngineEntry_CloneSessionEntry:
		s := x.CloneSessionEntry
		if s.GetSessionId() == 0 {
			return invalid("clone session 0: ids begin with 1")
		}
		if op == p4v1.Update_DELETE {
			return nil
		}
		if s.GetPacketLengthBytes() < 0 {
			return invalid("clone session %d: a packet length of %d", s.GetSessionId(), s.GetPacketLengthBytes())
		}
		return in("clone session", replicas(s.GetReplicas()))
	}
	return invalid("neither a multicast group nor a clone session")
}

// ReplicaPort is the port of a replica, however it is written.
func ReplicaPort(r *p4v1.Replica) uint32 {
	if p, ok := r.GetPortKind().(*p4v1.Replica_Port); ok {
		return PortNumber(p.Port)
	}
	return r.GetEgressPort() //nolint:staticcheck // clients of before 1.4 use it
}

func replicas(list []*p4v1.Replica) error {
	type one struct{ port, instance uint32 }
	seen := map[one]bool{}
	for _, r := range list {
		if len(r.GetBackupReplicas()) > 0 {
			return refuse(codes.Unimplemented, "backup replicas")
		}
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
	}
	return nil
}

func (s *ValueSet) members(e *p4v1.ValueSetEntry) error {
	if s.Size > 0 && len(e.GetMembers()) > int(s.Size) {
		return refuse(codes.ResourceExhausted, "%d members, it has room for %d", len(e.GetMembers()), s.Size)
	}
	seen := map[string]bool{}
	for _, m := range e.GetMembers() {
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
