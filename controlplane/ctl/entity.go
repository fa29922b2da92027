package ctl

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	p4configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/value"
)

// kindOf says how entities of one kind are read from a file and written to it.
type kindOf struct {
	section string // the key of a device's list of them
	read    func(*p4info.Info, p4v1.Update_Type, *node) (*p4v1.Entity, error)
	is      func(*p4v1.Entity) bool
	write   func(*p4info.Info, *p4v1.Entity, *flow)
}

// kinds are all kinds of entities, in the order of a file: what is referred to is
// above what refers to it.
func kinds() []kindOf {
	return []kindOf{
		{"multicast", readMulticast, func(e *p4v1.Entity) bool {
			return e.GetPacketReplicationEngineEntry().GetMulticastGroupEntry() != nil
		}, writeMulticast},
		{"clone_sessions", readClone, func(e *p4v1.Entity) bool {
			return e.GetPacketReplicationEngineEntry().GetCloneSessionEntry() != nil
		}, writeClone},
		{"digests", readDigest, func(e *p4v1.Entity) bool { return e.GetDigestEntry() != nil }, writeDigest},
		{"value_sets", readValueSet, func(e *p4v1.Entity) bool { return e.GetValueSetEntry() != nil }, writeValueSet},
		{"meters", readMeter, func(e *p4v1.Entity) bool { return e.GetMeterEntry() != nil }, writeMeter},
		{"members", readMember, func(e *p4v1.Entity) bool { return e.GetActionProfileMember() != nil }, writeMember},
		{"groups", readGroup, func(e *p4v1.Entity) bool { return e.GetActionProfileGroup() != nil }, writeGroup},
		{"entries", readEntry, func(e *p4v1.Entity) bool { return e.GetTableEntry() != nil }, writeEntry},
		{"registers", readRegister, func(e *p4v1.Entity) bool { return e.GetRegisterEntry() != nil }, writeRegister},
		{"counters", readCounter, func(e *p4v1.Entity) bool { return e.GetCounterEntry() != nil }, writeCounter},
	}
}

// ParseEntity reads one entity as an intent's lists have it, in one line of YAML;
// its keys tell what it is. Op is what is to be done with it: to delete it, its key
// is enough.
func ParseEntity(info *p4info.Info, op p4v1.Update_Type, text string) (*p4v1.Entity, error) {
	n, err := parseYAML("entity", []byte(text))
	if err != nil {
		return nil, err
	}
	if err := n.want(mapping, "entity"); err != nil {
		return nil, err
	}
	has := func(k string) bool {
		return slices.ContainsFunc(n.keys, func(x *node) bool { return x.text == k })
	}
	section := ""
	for _, c := range []struct{ key, section string }{
		{"table", "entries"}, {"session", "clone_sessions"}, {"digest", "digests"}, {"meter", "meters"}, {"counter", "counters"},
		{"register", "registers"}, {"value_set", "value_sets"}, {"profile", "members"}, {"group", "multicast"},
	} {
		if section == "" && has(c.key) {
			section = c.section
		}
	}
	if section == "members" && has("group") {
		section = "groups"
	}
	for _, k := range kinds() {
		if k.section == section {
			return k.read(info, op, n)
		}
	}
	return nil, n.errorf("what is it? Want one of the keys table, profile, group, session, digest, meter, counter, register, value_set")
}

// EntryText is a table's entry as ParseEntity reads it: pairs of a field and its
// value, an action and pairs of its parameters and their values.
func EntryText(table string, match [][2]string, priority int, byDefault bool, action string, params [][2]string) string {
	w := &flow{}
	w.start()
	w.text("table", table)
	pairs := func(key string, list [][2]string) {
		if len(list) > 0 {
			w.open(key)
			for _, p := range list {
				w.text(p[0], p[1])
			}
			w.close()
		}
	}
	pairs("match", match)
	if priority != 0 {
		w.int("priority", int64(priority))
	}
	if byDefault {
		w.text("default", "true")
	}
	if action != "" {
		w.text("action", action)
	}
	pairs("params", params)
	w.close()
	return w.String()
}

// update is what makes a device hold e: what is always there is modified.
func update(e *p4v1.Entity) *p4v1.Update {
	t := p4v1.Update_INSERT
	if always(e) {
		t = p4v1.Update_MODIFY
	}
	return &p4v1.Update{Type: t, Entity: e}
}

// always reports whether e cannot be inserted or deleted, only be modified.
func always(e *p4v1.Entity) bool {
	switch x := e.Entity.(type) {
	case *p4v1.Entity_TableEntry:
		return x.TableEntry.IsDefaultAction
	case *p4v1.Entity_MeterEntry, *p4v1.Entity_DirectMeterEntry, *p4v1.Entity_CounterEntry, *p4v1.Entity_DirectCounterEntry,
		*p4v1.Entity_RegisterEntry, *p4v1.Entity_ValueSetEntry:
		return true
	}
	return false
}

// Table entries.

// readEntry reads an entry of a table:
//
//	{table: NAME, match: {FIELD: VALUE}, priority: N, action: NAME, params: {NAME: VALUE}}
func readEntry(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	var table, action, metadata string
	var match, params, actions *node
	var member, group uint32
	var hasMember, hasGroup bool
	e := &p4v1.TableEntry{}
	keep := func(p **node) func(*node) error { return func(n *node) error { *p = n; return nil } }
	is := func(p *bool, f func(*node) error) func(*node) error {
		return func(n *node) error { *p = true; return f(n) }
	}
	err := n.fields("entry", map[string]func(*node) error{
		"table": textInto(&table), "match": keep(&match), "priority": intInto(&e.Priority), "default": boolInto(&e.IsDefaultAction),
		"action": textInto(&action), "params": keep(&params), "actions": keep(&actions),
		"member": is(&hasMember, intInto(&member)), "group": is(&hasGroup, intInto(&group)),
		"idle_timeout": nanosInto(&e.IdleTimeoutNs), "metadata": textInto(&metadata),
		"meter":   func(n *node) (err error) { e.MeterConfig, err = readRates(n); return err },
		"counter": func(n *node) (err error) { e.CounterData, err = readCounts(n); return err },
	})
	if err != nil {
		return nil, err
	}
	if table == "" {
		return nil, n.errorf("entry: table is missing")
	}
	t, err := p4info.ByName(info.Tables, "table", table)
	if err != nil {
		return nil, n.wrap("entry", err)
	}
	e.TableId = t.ID
	where := "table " + t.Name + ", entry " + short(match, e)
	fail := func(at *node, err error) (*p4v1.Entity, error) { return nil, at.wrap(where, err) }
	if match != nil && match.kind != null {
		if err := match.want(mapping, where+": match"); err != nil {
			return nil, err
		}
		if e.Match, err = readMatch(t.Fields, match); err != nil {
			return fail(match, err)
		}
	}
	if e.Metadata, err = readBytes(metadata); err != nil {
		return fail(n, fmt.Errorf("metadata: %w", err))
	}
	ways := 0
	for _, is := range []bool{action != "", hasMember, hasGroup, actions != nil} {
		if is {
			ways++
		}
	}
	if ways > 1 {
		return fail(n, errors.New("want one of action, member, group and actions"))
	}
	switch {
	case action != "":
		a, err := readAction(t, action, params, n)
		if err != nil {
			return fail(n, err)
		}
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}}
	case hasMember:
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileMemberId{ActionProfileMemberId: member}}
	case hasGroup:
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileGroupId{ActionProfileGroupId: group}}
	case actions != nil:
		set := &p4v1.ActionProfileActionSet{}
		err := eachInto(func(n *node) error {
			a, err := readSetAction(t, n)
			set.ActionProfileActions = append(set.ActionProfileActions, a)
			return err
		})(actions)
		if err != nil {
			return fail(actions, err)
		}
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileActionSet{ActionProfileActionSet: set}}
	case !e.IsDefaultAction && op != p4v1.Update_DELETE:
		return fail(n, errors.New("action is missing"))
	}
	if params != nil && action == "" {
		return fail(params, errors.New("params without an action"))
	}
	ent := &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: e}}
	return checked(info, op, n, where, ent)
}

// checked lets P4Info judge an entity that stands at n, and what is to be done
// with it; UNSPECIFIED: what makes a device hold it.
func checked(info *p4info.Info, op p4v1.Update_Type, n *node, where string, e *p4v1.Entity) (*p4v1.Entity, error) {
	u := update(e)
	if op != p4v1.Update_UNSPECIFIED {
		u.Type = op
	}
	err := info.Update(u)
	if err == nil {
		counted(info, e)
		normal(e)
		return e, nil
	}
	if t := e.GetTableEntry(); t != nil { // P4Info may not name the entry, and not as it was written
		msg := err.Error()
		if name := "table " + info.Table(t.TableId).Name; strings.HasPrefix(msg, name) {
			msg = strings.TrimPrefix(strings.TrimPrefix(msg, name), ": ")
			if strings.HasPrefix(msg, ", ") {
				_, msg, _ = strings.Cut(msg, ": ")
			}
		}
		return nil, n.wrap(where, errors.New(msg))
	}
	return nil, n.wrap("", err)
}

// short is an entry as errors name it, as it stands in the file.
func short(match *node, e *p4v1.TableEntry) string {
	if e.IsDefaultAction {
		return "default"
	}
	var b strings.Builder
	b.WriteByte('{')
	if match != nil && match.kind == mapping {
		for i, k := range match.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(k.text + ": " + match.list[i].text)
		}
	}
	b.WriteByte('}')
	if e.Priority != 0 {
		b.WriteString(" priority " + strconv.Itoa(int(e.Priority)))
	}
	return b.String()
}

func readMatch(fields []p4info.Field, n *node) ([]*p4v1.FieldMatch, error) {
	var out []*p4v1.FieldMatch
	for i, k := range n.keys {
		f, err := fieldNamed(fields, k.text)
		if err != nil {
			return nil, err
		}
		v := n.list[i]
		if v.kind != scalar {
			return nil, v.errorf("field %s: want a value, there is %s", f.Name, v.kind)
		}
		m, err := parseMatch(f, v.text)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.Name, err)
		}
		if m != nil {
			if slices.ContainsFunc(out, func(x *p4v1.FieldMatch) bool { return x.FieldId == m.FieldId }) {
				return nil, fmt.Errorf("field %s is there twice", f.Name)
			}
			out = append(out, m)
		}
	}
	return out, nil
}

// fieldNamed finds a field by its name or the end of it after a dot.
func fieldNamed(fields []p4info.Field, name string) (*p4info.Field, error) {
	var found []*p4info.Field
	var names []string
	for i := range fields {
		f := &fields[i]
		if f.Name == name {
			return f, nil
		}
		if strings.HasSuffix(f.Name, "."+name) {
			found = append(found, f)
		}
		names = append(names, f.Name)
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("field %s may be %s or %s", name, found[0].Name, found[1].Name)
	case len(names) == 0:
		return nil, fmt.Errorf("there is no field %s: there are none", name)
	}
	return nil, fmt.Errorf("there is no field %s; there are: %s", name, strings.Join(names, ", "))
}

// parseMatch reads what a field must be: VALUE, VALUE/LENGTH (a prefix, also as a
// mask), VALUE&&&MASK, LOW..HIGH; "*" is anything.
func parseMatch(f *p4info.Field, s string) (*p4v1.FieldMatch, error) {
	m := &p4v1.FieldMatch{FieldId: f.ID}
	if s == "*" && f.Match != p4configv1.MatchField_EXACT {
		return nil, nil
	}
	switch f.Match {
	case p4configv1.MatchField_EXACT:
		v, err := p4info.ParseValue(f.Type, s)
		m.FieldMatchType = &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: v}}
		return m, err
	case p4configv1.MatchField_OPTIONAL:
		v, err := p4info.ParseValue(f.Type, s)
		m.FieldMatchType = &p4v1.FieldMatch_Optional_{Optional: &p4v1.FieldMatch_Optional{Value: v}}
		return m, err
	case p4configv1.MatchField_LPM:
		v, length, err := parsePrefix(f.Type, s)
		if err != nil || length == 0 {
			return nil, err
		}
		m.FieldMatchType = &p4v1.FieldMatch_Lpm{Lpm: &p4v1.FieldMatch_LPM{Value: v, PrefixLen: int32(length)}}
		return m, nil
	case p4configv1.MatchField_TERNARY:
		v, mask, err := parseMasked(f.Type, s)
		if err != nil || mask == nil {
			return nil, err
		}
		m.FieldMatchType = &p4v1.FieldMatch_Ternary_{Ternary: &p4v1.FieldMatch_Ternary{Value: v, Mask: mask}}
		return m, nil
	case p4configv1.MatchField_RANGE:
		low, high, isRange := strings.Cut(s, "..")
		if !isRange {
			high = low
		}
		l, err := p4info.ParseValue(f.Type, low)
		if err != nil {
			return nil, err
		}
		h, err := p4info.ParseValue(f.Type, high)
		if err != nil {
			return nil, err
		}
		if value.Compare(l, h) > 0 {
			return nil, fmt.Errorf("%s: the range ends before it begins", s)
		}
		if value.IsZero(l) && value.Compare(h, value.Ones(f.Type.Bits)) == 0 {
			return nil, nil
		}
		m.FieldMatchType = &p4v1.FieldMatch_Range_{Range: &p4v1.FieldMatch_Range{Low: l, High: h}}
		return m, nil
	}
	return nil, fmt.Errorf("a match of type %v is not supported", f.Match)
}

// parsePrefix reads VALUE/LENGTH; a VALUE alone is one of full length.
func parsePrefix(t p4info.Type, s string) (v []byte, length int, err error) {
	number, tail, has := strings.Cut(s, "/")
	length = t.Bits
	if has {
		if length, err = strconv.Atoi(tail); err != nil || length < 0 || length > t.Bits {
			return nil, 0, fmt.Errorf("%s: want a prefix of 0 to %d bits", s, t.Bits)
		}
	}
	if v, err = p4info.ParseValue(t, number); err != nil {
		return nil, 0, err
	}
	if mask := value.Prefix(length, t.Bits); !value.Within(v, mask) {
		return nil, 0, fmt.Errorf("%s has bits behind its prefix: want %s/%d", s, p4info.FormatValue("ip", t, value.And(v, mask)), length)
	}
	return v, length, nil
}

// parseMasked reads VALUE&&&MASK, a prefix, or a VALUE that must be equal; a nil
// mask is anything.
func parseMasked(t p4info.Type, s string) (v, mask []byte, err error) {
	val, tail, has := strings.Cut(s, "&&&")
	if !has {
		v, length, err := parsePrefix(t, s)
		if err != nil || length == 0 {
			return nil, nil, err
		}
		return v, value.Prefix(length, t.Bits), nil
	}
	if v, err = p4info.ParseValue(t, strings.TrimSpace(val)); err != nil {
		return nil, nil, err
	}
	if mask, err = p4info.ParseValue(t, strings.TrimSpace(tail)); err != nil {
		return nil, nil, fmt.Errorf("mask: %w", err)
	}
	if value.IsZero(mask) && value.IsZero(v) {
		return nil, nil, nil
	}
	if !value.Within(v, mask) {
		return nil, nil, fmt.Errorf("%s has bits that its mask leaves out", s)
	}
	return v, mask, nil
}

func readAction(t *p4info.Table, name string, params, at *node) (*p4v1.Action, error) {
	ref, err := t.Action(name)
	if err != nil {
		return nil, at.wrap("", err)
	}
	return readParams(ref.Action, params)
}

func readParams(act *p4info.Action, params *node) (*p4v1.Action, error) {
	a := &p4v1.Action{ActionId: act.ID}
	if params == nil || params.kind == null {
		return a, nil
	}
	if err := params.want(mapping, "params"); err != nil {
		return nil, err
	}
	for i, k := range params.keys {
		p, err := fieldNamed(act.Params, k.text)
		if err != nil {
			return nil, k.wrap("", fmt.Errorf("action %s: %s", act.Name, strings.ReplaceAll(err.Error(), "field", "parameter")))
		}
		x := params.list[i]
		if p.Type.Bits == 0 && x.kind == mapping {
			s, err := object(x)
			if err != nil {
				return nil, fmt.Errorf("action %s, parameter %s: %w", act.Name, p.Name, err)
			}
			a.Params = append(a.Params, &p4v1.Action_Param{ParamId: p.ID, Value: []byte(s)})
			continue
		}
		if x.kind != scalar {
			return nil, x.errorf("action %s, parameter %s: want a value, there is %s", act.Name, p.Name, x.kind)
		}
		v, err := p4info.ParseValue(p.Type, x.text)
		if err != nil {
			return nil, fmt.Errorf("action %s, parameter %s: %w", act.Name, p.Name, err)
		}
		a.Params = append(a.Params, &p4v1.Action_Param{ParamId: p.ID, Value: v})
	}
	return a, nil
}

// object is a map of values as a JSON object of strings, with sorted names and without
// spaces: what tables of quillon's own server take for arguments. An empty map is the empty
// string.
func object(n *node) (string, error) {
	m := map[string]string{}
	for i, k := range n.keys {
		if n.list[i].kind != scalar {
			return "", n.list[i].errorf("%s: want a value, there is %s", k.text, n.list[i].kind)
		}
		m[k.text] = n.list[i].text
	}
	if len(m) == 0 {
		return "", nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(m)
	return strings.TrimSuffix(b.String(), "\n"), err
}

func readSetAction(t *p4info.Table, n *node) (*p4v1.ActionProfileAction, error) {
	var name, port string
	var params *node
	a := &p4v1.ActionProfileAction{Weight: 1}
	err := n.fields("actions", map[string]func(*node) error{
		"action": textInto(&name), "params": func(n *node) error { params = n; return nil },
		"weight": intInto(&a.Weight), "watch_port": textInto(&port),
	})
	if err != nil {
		return nil, err
	}
	if a.Action, err = readAction(t, name, params, n); err != nil {
		return nil, err
	}
	if port != "" {
		v, err := parsePort(port)
		if err != nil {
			return nil, n.wrap("watch_port", err)
		}
		a.WatchKind = &p4v1.ActionProfileAction_WatchPort{WatchPort: v}
	}
	return a, nil
}

func parsePort(s string) ([]byte, error) {
	v, _, err := value.Parse(s)
	if err == nil && value.BitLen(v) > 32 {
		err = fmt.Errorf("%s is too large for a port", s)
	}
	return v, err
}

func readBytes(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	digits, ok := strings.CutPrefix(s, "0x")
	b, err := hex.DecodeString(digits)
	if !ok || err != nil {
		return nil, fmt.Errorf("%q: want bytes as in 0x01ff", s)
	}
	return b, nil
}

// readRates reads a meter's rates: {cir: N, cburst: N, pir: N, pburst: N}.
func readRates(n *node) (*p4v1.MeterConfig, error) {
	c := &p4v1.MeterConfig{}
	return c, n.fields("meter", map[string]func(*node) error{
		"cir": intInto(&c.Cir), "cburst": intInto(&c.Cburst), "pir": intInto(&c.Pir), "pburst": intInto(&c.Pburst), "eburst": intInto(&c.Eburst),
	})
}

// readCounts reads {packets: N, bytes: N}.
func readCounts(n *node) (*p4v1.CounterData, error) {
	c := &p4v1.CounterData{}
	return c, n.fields("counter", map[string]func(*node) error{"packets": intInto(&c.PacketCount), "bytes": intInto(&c.ByteCount)})
}

func writeEntry(info *p4info.Info, e *p4v1.Entity, w *flow) {
	x := e.GetTableEntry()
	t := info.Table(x.TableId)
	w.text("table", t.Name)
	if x.IsDefaultAction {
		w.text("default", "true")
	}
	if len(x.Match) > 0 {
		w.open("match")
		writeMatch(t.Fields, x.Match, w)
		w.close()
	}
	if x.Priority != 0 {
		w.int("priority", int64(x.Priority))
	}
	switch a := x.Action.GetType().(type) {
	case *p4v1.TableAction_Action:
		writeAction(info, a.Action, w)
	case *p4v1.TableAction_ActionProfileMemberId:
		w.int("member", int64(a.ActionProfileMemberId))
	case *p4v1.TableAction_ActionProfileGroupId:
		w.int("group", int64(a.ActionProfileGroupId))
	case *p4v1.TableAction_ActionProfileActionSet:
		w.list("actions")
		for _, s := range a.ActionProfileActionSet.ActionProfileActions {
			w.item()
			writeAction(info, s.Action, w)
			w.int("weight", int64(s.Weight))
			if p := s.GetWatchPort(); p != nil {
				w.int("watch_port", int64(p4info.PortNumber(p)))
			}
			w.close()
		}
		w.end()
	}
	if x.IdleTimeoutNs != 0 {
		w.text("idle_timeout", time.Duration(x.IdleTimeoutNs).String())
	}
	if c := x.MeterConfig; c != nil {
		w.open("meter")
		writeRates(c, w)
		w.close()
	}
	if c := x.CounterData; c != nil {
		w.open("counter")
		writeCounts(c, w)
		w.close()
	}
	if len(x.Metadata) > 0 {
		w.text("metadata", "0x"+hex.EncodeToString(x.Metadata))
	}
}

func writeMatch(fields []p4info.Field, list []*p4v1.FieldMatch, w *flow) {
	for _, m := range list {
		if f := fieldByID(fields, m.FieldId); f != nil {
			w.text(f.Name, f.MatchText(m))
		}
	}
}

func fieldByID(fields []p4info.Field, id uint32) *p4info.Field {
	for i := range fields {
		if fields[i].ID == id {
			return &fields[i]
		}
	}
	return nil
}

func writeAction(info *p4info.Info, a *p4v1.Action, w *flow) {
	act := info.Action(a.GetActionId())
	if act == nil {
		return
	}
	w.text("action", act.Name)
	if len(a.Params) > 0 {
		w.open("params")
		for _, p := range a.Params {
			if f := fieldByID(act.Params, p.ParamId); f != nil {
				w.text(f.Name, p4info.FormatValue(f.Name, f.Type, p.Value))
			}
		}
		w.close()
	}
}

func writeRates(c *p4v1.MeterConfig, w *flow) {
	w.int("cir", c.Cir)
	w.int("cburst", c.Cburst)
	w.int("pir", c.Pir)
	w.int("pburst", c.Pburst)
	if c.Eburst != 0 {
		w.int("eburst", c.Eburst)
	}
}

func writeCounts(c *p4v1.CounterData, w *flow) {
	w.int("packets", c.PacketCount)
	w.int("bytes", c.ByteCount)
}

// Members and groups of action profiles.

// readMember reads {profile: NAME, member: ID, action: NAME, params: {NAME: VALUE}}.
func readMember(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	var profile, action string
	var params *node
	m := &p4v1.ActionProfileMember{}
	err := n.fields("member", map[string]func(*node) error{
		"profile": textInto(&profile), "member": intInto(&m.MemberId), "action": textInto(&action),
		"params": func(n *node) error { params = n; return nil },
	})
	if err != nil {
		return nil, err
	}
	p, err := p4info.ByName(info.Profiles, "action profile", profile)
	if err != nil {
		return nil, n.wrap("member", err)
	}
	m.ActionProfileId = p.ID
	where := fmt.Sprintf("action profile %s, member %d", p.Name, m.MemberId)
	if len(p.Tables) == 0 {
		return nil, n.errorf("%s: no table uses it", where)
	}
	if op != p4v1.Update_DELETE {
		if m.Action, err = readAction(p.Tables[0], action, params, n); err != nil {
			return nil, n.wrap(where, err)
		}
	}
	return checked(info, op, n, where, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: m}})
}

func writeMember(info *p4info.Info, e *p4v1.Entity, w *flow) {
	m := e.GetActionProfileMember()
	w.text("profile", info.Profile(m.ActionProfileId).Name)
	w.int("member", int64(m.MemberId))
	writeAction(info, m.Action, w)
}

// readGroup reads {profile: NAME, group: ID, members: [{member: ID, weight: N}], max_size: N}.
func readGroup(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	var profile string
	g := &p4v1.ActionProfileGroup{}
	err := n.fields("group", map[string]func(*node) error{
		"profile": textInto(&profile), "group": intInto(&g.GroupId), "max_size": intInto(&g.MaxSize),
		"members": eachInto(func(n *node) error {
			m := &p4v1.ActionProfileGroup_Member{Weight: 1}
			var port string
			err := n.fields("member", map[string]func(*node) error{
				"member": intInto(&m.MemberId), "weight": intInto(&m.Weight), "watch_port": textInto(&port),
			})
			if err == nil && port != "" {
				var v []byte
				v, err = parsePort(port)
				m.WatchKind = &p4v1.ActionProfileGroup_Member_WatchPort{WatchPort: v}
			}
			g.Members = append(g.Members, m)
			return err
		}),
	})
	if err != nil {
		return nil, err
	}
	p, err := p4info.ByName(info.Profiles, "action profile", profile)
	if err != nil {
		return nil, n.wrap("group", err)
	}
	g.ActionProfileId = p.ID
	where := fmt.Sprintf("action profile %s, group %d", p.Name, g.GroupId)
	return checked(info, op, n, where, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: g}})
}

func writeGroup(info *p4info.Info, e *p4v1.Entity, w *flow) {
	g := e.GetActionProfileGroup()
	w.text("profile", info.Profile(g.ActionProfileId).Name)
	w.int("group", int64(g.GroupId))
	if g.MaxSize != 0 {
		w.int("max_size", int64(g.MaxSize))
	}
	w.list("members")
	for _, m := range g.Members {
		w.item()
		w.int("member", int64(m.MemberId))
		w.int("weight", int64(m.Weight))
		if p := m.GetWatchPort(); p != nil {
			w.int("watch_port", int64(p4info.PortNumber(p)))
		}
		w.close()
	}
	w.end()
}

// The replication engine.

// readReplicas reads a list of ports: numbers, or {port: N, instance: N}.
func readReplicas(list *[]*p4v1.Replica) func(*node) error {
	return eachInto(func(n *node) error {
		r := &p4v1.Replica{}
		port := n.text
		if n.kind != scalar {
			err := n.fields("ports", map[string]func(*node) error{"port": textInto(&port), "instance": intInto(&r.Instance)})
			if err != nil {
				return err
			}
		}
		v, err := parsePort(port)
		if err != nil {
			return n.wrap("port", err)
		}
		r.PortKind = &p4v1.Replica_Port{Port: v}
		*list = append(*list, r)
		return nil
	})
}

func writeReplicas(list []*p4v1.Replica, w *flow) {
	w.list("ports")
	for _, r := range list {
		port := strconv.FormatUint(uint64(p4info.ReplicaPort(r)), 10)
		if r.Instance == 0 {
			w.value(port)
			continue
		}
		w.item()
		w.text("port", port)
		w.int("instance", int64(r.Instance))
		w.close()
	}
	w.end()
}

// readMulticast reads {group: ID, ports: [1, 2, {port: 3, instance: 1}]}.
func readMulticast(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	g := &p4v1.MulticastGroupEntry{}
	err := n.fields("multicast", map[string]func(*node) error{"group": intInto(&g.MulticastGroupId), "ports": readReplicas(&g.Replicas)})
	if err != nil {
		return nil, err
	}
	return checked(info, op, n, "", multicast(g))
}

func multicast(g *p4v1.MulticastGroupEntry) *p4v1.Entity {
	return &p4v1.Entity{Entity: &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4v1.PacketReplicationEngineEntry{
		Type: &p4v1.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: g},
	}}}
}

func cloneSession(s *p4v1.CloneSessionEntry) *p4v1.Entity {
	return &p4v1.Entity{Entity: &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4v1.PacketReplicationEngineEntry{
		Type: &p4v1.PacketReplicationEngineEntry_CloneSessionEntry{CloneSessionEntry: s},
	}}}
}

func writeMulticast(_ *p4info.Info, e *p4v1.Entity, w *flow) {
	g := e.GetPacketReplicationEngineEntry().GetMulticastGroupEntry()
	w.int("group", int64(g.MulticastGroupId))
	writeReplicas(g.Replicas, w)
}

// readClone reads {session: ID, ports: [1], class_of_service: N, packet_length: N}.
func readClone(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	s := &p4v1.CloneSessionEntry{}
	err := n.fields("clone session", map[string]func(*node) error{
		"session": intInto(&s.SessionId), "ports": readReplicas(&s.Replicas),
		"class_of_service": intInto(&s.ClassOfService), "packet_length": intInto(&s.PacketLengthBytes),
	})
	if err != nil {
		return nil, err
	}
	return checked(info, op, n, "", cloneSession(s))
}

func writeClone(_ *p4info.Info, e *p4v1.Entity, w *flow) {
	s := e.GetPacketReplicationEngineEntry().GetCloneSessionEntry()
	w.int("session", int64(s.SessionId))
	writeReplicas(s.Replicas, w)
	if s.ClassOfService != 0 {
		w.int("class_of_service", int64(s.ClassOfService))
	}
	if s.PacketLengthBytes != 0 {
		w.int("packet_length", int64(s.PacketLengthBytes))
	}
}

// Digests, meters, counters, registers, value sets.

// readDigest reads {digest: NAME, max_timeout: 100ms, max_list: N, ack_timeout: 1s}.
func readDigest(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	var name string
	c := &p4v1.DigestEntry_Config{}
	err := n.fields("digest", map[string]func(*node) error{
		"digest": textInto(&name), "max_timeout": nanosInto(&c.MaxTimeoutNs), "max_list": intInto(&c.MaxListSize), "ack_timeout": nanosInto(&c.AckTimeoutNs),
	})
	if err != nil {
		return nil, err
	}
	d, err := p4info.ByName(info.Digests, "digest", name)
	if err != nil {
		return nil, n.wrap("", err)
	}
	return checked(info, op, n, "digest "+d.Name, &p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: &p4v1.DigestEntry{DigestId: d.ID, Config: c}}})
}

func writeDigest(info *p4info.Info, e *p4v1.Entity, w *flow) {
	d := e.GetDigestEntry()
	w.text("digest", info.Digest(d.DigestId).Name)
	w.text("max_timeout", time.Duration(d.Config.GetMaxTimeoutNs()).String())
	w.int("max_list", int64(d.Config.GetMaxListSize()))
	w.text("ack_timeout", time.Duration(d.Config.GetAckTimeoutNs()).String())
}

// readMeter reads {meter: NAME, index: N, cir: N, cburst: N, pir: N, pburst: N}.
func readMeter(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	var name string
	index, c := &p4v1.Index{}, &p4v1.MeterConfig{}
	err := n.fields("meter", map[string]func(*node) error{
		"meter": textInto(&name), "index": intInto(&index.Index),
		"cir": intInto(&c.Cir), "cburst": intInto(&c.Cburst), "pir": intInto(&c.Pir), "pburst": intInto(&c.Pburst), "eburst": intInto(&c.Eburst),
	})
	if err != nil {
		return nil, err
	}
	m, err := p4info.ByName(info.Meters, "meter", name)
	if err != nil {
		return nil, n.wrap("", err)
	}
	return checked(info, op, n, "meter "+m.Name, &p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{MeterId: m.ID, Index: index, Config: c}}})
}

func writeMeter(info *p4info.Info, e *p4v1.Entity, w *flow) {
	m := e.GetMeterEntry()
	w.text("meter", info.Meter(m.MeterId).Name)
	w.int("index", m.GetIndex().GetIndex())
	if m.Config != nil {
		writeRates(m.Config, w)
	}
}

// readCounter reads {counter: NAME, index: N, packets: N, bytes: N}.
func readCounter(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	var name string
	index, d := &p4v1.Index{}, &p4v1.CounterData{}
	err := n.fields("counter", map[string]func(*node) error{
		"counter": textInto(&name), "index": intInto(&index.Index), "packets": intInto(&d.PacketCount), "bytes": intInto(&d.ByteCount),
	})
	if err != nil {
		return nil, err
	}
	c, err := p4info.ByName(info.Counters, "counter", name)
	if err != nil {
		return nil, n.wrap("", err)
	}
	return checked(info, op, n, "counter "+c.Name, &p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: c.ID, Index: index, Data: d}}})
}

func writeCounter(info *p4info.Info, e *p4v1.Entity, w *flow) {
	c := e.GetCounterEntry()
	w.text("counter", info.Counter(c.CounterId).Name)
	w.int("index", c.GetIndex().GetIndex())
	if c.Data != nil {
		writeCounts(c.Data, w)
	}
}

// readRegister reads {register: NAME, index: N, value: VALUE}.
func readRegister(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	var name, text string
	index := &p4v1.Index{}
	err := n.fields("register", map[string]func(*node) error{
		"register": textInto(&name), "index": intInto(&index.Index), "value": textInto(&text),
	})
	if err != nil {
		return nil, err
	}
	r, err := p4info.ByName(info.Registers, "register", name)
	if err != nil {
		return nil, n.wrap("", err)
	}
	where := fmt.Sprintf("register %s, index %d", r.Name, index.Index)
	if r.Bits == 0 {
		return nil, n.errorf("%s: its elements are no unsigned integers", where)
	}
	v, err := p4info.ParseValue(p4info.Type{Bits: r.Bits}, text)
	if err != nil {
		return nil, n.wrap(where+", value", err)
	}
	return checked(info, op, n, where, &p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: &p4v1.RegisterEntry{
		RegisterId: r.ID, Index: index, Data: &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: v}},
	}}})
}

func writeRegister(info *p4info.Info, e *p4v1.Entity, w *flow) {
	x := e.GetRegisterEntry()
	r := info.Register(x.RegisterId)
	w.text("register", r.Name)
	w.int("index", x.GetIndex().GetIndex())
	w.text("value", p4info.FormatValue(r.Name, p4info.Type{Bits: r.Bits}, x.GetData().GetBitstring()))
}

// readValueSet reads {value_set: NAME, members: [{FIELD: VALUE}]}.
func readValueSet(info *p4info.Info, op p4v1.Update_Type, n *node) (*p4v1.Entity, error) {
	var name string
	var members *node
	err := n.fields("value set", map[string]func(*node) error{
		"value_set": textInto(&name), "members": func(n *node) error { members = n; return nil },
	})
	if err != nil {
		return nil, err
	}
	v, err := p4info.ByName(info.ValueSets, "value set", name)
	if err != nil {
		return nil, n.wrap("", err)
	}
	where := "value set " + v.Name
	x := &p4v1.ValueSetEntry{ValueSetId: v.ID}
	if members != nil {
		err := eachInto(func(n *node) error {
			if err := n.want(mapping, "member"); err != nil {
				return err
			}
			m, err := readMatch(v.Fields, n)
			x.Members = append(x.Members, &p4v1.ValueSetMember{Match: m})
			return err
		})(members)
		if err != nil {
			return nil, members.wrap(where, err)
		}
	}
	return checked(info, op, n, where, &p4v1.Entity{Entity: &p4v1.Entity_ValueSetEntry{ValueSetEntry: x}})
}

func writeValueSet(info *p4info.Info, e *p4v1.Entity, w *flow) {
	x := e.GetValueSetEntry()
	v := info.ValueSet(x.ValueSetId)
	w.text("value_set", v.Name)
	w.list("members")
	for _, m := range x.Members {
		w.item()
		writeMatch(v.Fields, m.Match, w)
		w.close()
	}
	w.end()
}
