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

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/value"
	"github.com/quillon/quillon/nf/yaml"
)

// section is how entities of one kind stand in a file.
type section struct {
	name   string // the key of a device's list of them
	kind   p4info.Kind
	many   string // they, for people
	one    string // one of them, in errors
	mark   string // the key of one that says which kind it is
	fields func(*form) []field
}

// sections are all kinds of entities, in the order of a file: what is referred to is
// above what refers to it.
var sections = []section{
	{"multicast", p4info.KindMulticast, "multicast groups", "multicast", "group", (*form).multicast},
	{"clone_sessions", p4info.KindClone, "clone sessions", "clone session", "session", (*form).clone},
	{"digests", p4info.KindDigest, "digests", "digest", "digest", (*form).digest},
	{"value_sets", p4info.KindValueSet, "value sets", "value set", "value_set", (*form).valueSet},
	{"meters", p4info.KindMeter, "meters", "meter", "meter", (*form).cell},
	{"members", p4info.KindMember, "members", "member", "profile", (*form).member},
	{"groups", p4info.KindGroup, "groups", "group", "", (*form).group},
	{"entries", p4info.KindEntry, "table entries", "entry", "table", (*form).entry},
	{"registers", p4info.KindRegister, "registers", "register", "register", (*form).cell},
	{"counters", p4info.KindCounter, "counters", "counter", "counter", (*form).cell},
}

// sectionOf is the section of a kind; nil: entities of it stand in no file.
func sectionOf(k p4info.Kind) *section {
	if i := slices.IndexFunc(sections, func(s section) bool { return s.kind == k }); i >= 0 {
		return &sections[i]
	}
	return nil
}

// ParseEntity reads one entity as an intent's lists have it, in one line of YAML;
// its keys tell what it is. Op is what is to be done with it: to delete it, its key
// is enough.
func ParseEntity(info *p4info.Info, op p4v1.Update_Type, text string) (*p4v1.Entity, error) {
	n, err := yaml.Tree("entity", []byte(text))
	if err != nil {
		return nil, err
	}
	if err := n.Want(yaml.Mapping, "entity"); err != nil {
		return nil, err
	}
	has := func(k string) bool {
		return slices.ContainsFunc(n.Keys, func(x *yaml.Node) bool { return x.Text == k })
	}
	for _, k := range []p4info.Kind{p4info.KindEntry, p4info.KindClone, p4info.KindDigest, p4info.KindMeter, p4info.KindCounter,
		p4info.KindRegister, p4info.KindValueSet, p4info.KindMember, p4info.KindMulticast} {
		if s := sectionOf(k); has(s.mark) {
			if k == p4info.KindMember && has("group") {
				s = sectionOf(p4info.KindGroup)
			}
			return s.read(info, op, n)
		}
	}
	return nil, n.Errorf("what is it? Want one of the keys table, profile, group, session, digest, meter, counter, register, value_set")
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
	if x := p4info.Of(e); x.Always() {
		t = p4v1.Update_MODIFY
	}
	return &p4v1.Update{Type: t, Entity: e}
}

// field is a key of a file's map, and what stands behind it: a value that at points to, or what read and write do.
type field struct {
	key   string
	at    any // *string, *bool, *int32, *uint32, *int64, *nanos; **yaml.Node: understood after all others
	read  func(*yaml.Node) error
	write func(*flow)
	empty bool // not written
}

// nanos is a duration in nanoseconds, as P4Runtime has it.
type nanos int64

// reader reads what stands behind the key.
func (f *field) reader() func(*yaml.Node) error {
	switch p := f.at.(type) {
	case *string:
		return yaml.Text(p)
	case *bool:
		return yaml.Bool(p)
	case *int32:
		return yaml.Int(p)
	case *uint32:
		return yaml.Int(p)
	case *int64:
		return yaml.Int(p)
	case *nanos:
		return yaml.Duration((*int64)(p))
	case **yaml.Node:
		return func(n *yaml.Node) error { *p = n; return nil }
	}
	return f.read
}

// readFields reads a map.
func readFields(n *yaml.Node, what string, fields []field) error {
	known := make(map[string]func(*yaml.Node) error, len(fields))
	for i := range fields {
		known[fields[i].key] = fields[i].reader()
	}
	return n.Fields(what, known)
}

// watched is the port with which a member of a group comes and goes, where it has one.
func watched(port []byte, set func(port []byte)) field {
	return field{key: "watch_port", empty: port == nil,
		read: func(n *yaml.Node) (err error) {
			var text string
			if err = yaml.Text(&text)(n); err == nil && text != "" {
				if port, err = parsePort(text); err == nil {
					set(port)
				}
			}
			return err
		},
		write: func(w *flow) { w.int("watch_port", int64(p4info.PortNumber(port))) },
	}
}

// fields writes what is not empty of a map.
func (w *flow) fields(list []field) {
	for i := range list {
		f := &list[i]
		if f.empty {
			continue
		}
		switch p := f.at.(type) {
		case *string:
			w.text(f.key, *p)
		case *bool:
			w.text(f.key, strconv.FormatBool(*p))
		case *int32:
			w.int(f.key, int64(*p))
		case *uint32:
			w.int(f.key, int64(*p))
		case *int64:
			w.int(f.key, *p)
		case *nanos:
			w.text(f.key, time.Duration(*p).String())
		default:
			f.write(w)
		}
	}
}

// maps writes a list of n maps.
func (w *flow) maps(key string, n int, fields func(n int) []field) {
	w.list(key)
	for i := range n {
		w.item()
		w.fields(fields(i))
		w.close()
	}
	w.end()
}

// inside is a map in a map; fresh are the fields of one that is to be read.
func inside(key string, fields []field, fresh func() []field) field {
	return field{key: key, empty: fields == nil,
		read: func(n *yaml.Node) error { return readFields(n, key, fresh()) },
		write: func(w *flow) {
			w.open(key)
			w.fields(fields)
			w.close()
		},
	}
}

// form is an entity on its way from or to a file.
type form struct {
	info *p4info.Info
	x    p4info.Entity

	// These are understood when the whole map was read: names of objects, and what depends on them.
	name, act, value, metadata  string
	match, params, set, members *yaml.Node
	memberID, groupID           uint32 // of an action profile, in an entry
}

// newForm is one of x, with all that its kind has: to be filled in, or with nothing in it to be written.
func newForm(info *p4info.Info, x p4info.Entity) *form {
	f := &form{info: info, x: x}
	if o := info.Object(x.Kind, x.Object); o != nil {
		f.name = o.Name
	}
	if x.Kind == p4info.KindEntry && x.Entry == nil {
		f.x.Entry = &p4v1.TableEntry{}
	}
	if x.Kind == p4info.KindDigest && x.Digest == nil {
		f.x.Digest = &p4v1.DigestEntry_Config{}
	}
	if x.Kind.Cells() && x.Index == nil {
		f.x.Index = &p4v1.Index{}
	}
	return f
}

// Line is an entity as a file has it: one line of YAML, and the list it is of.
func Line(info *p4info.Info, e *p4v1.Entity) (section, text string) {
	x := p4info.Of(e)
	s := sectionOf(x.Kind)
	if s == nil {
		return "", ""
	}
	w := &flow{}
	w.start()
	w.fields(s.fields(newForm(info, x)))
	w.close()
	return s.name, w.String()
}

// read reads an entity of the section.
func (s *section) read(info *p4info.Info, op p4v1.Update_Type, n *yaml.Node) (*p4v1.Entity, error) {
	f := newForm(info, p4info.Entity{Kind: s.kind})
	if err := readFields(n, s.one, s.fields(f)); err != nil {
		return nil, err
	}
	x := &f.x
	switch s.kind {
	case p4info.KindMulticast, p4info.KindClone:
		return checked(info, op, n, "", x.Message())
	case p4info.KindEntry:
		return f.readEntry(op, n)
	}
	o, err := info.Named(s.kind, f.name)
	if err != nil {
		prefix := ""
		if s.kind == p4info.KindMember || s.kind == p4info.KindGroup {
			prefix = s.one
		}
		return nil, n.Wrap(prefix, err)
	}
	x.Object = o.ID
	switch s.kind {
	case p4info.KindMember:
		where := fmt.Sprintf("action profile %s, member %d", o.Name, x.ID)
		tables := info.Profile(o.ID).Tables
		if len(tables) == 0 {
			return nil, n.Errorf("%s: no table uses it", where)
		}
		if op != p4v1.Update_DELETE {
			if x.Action, err = readAction(tables[0], f.act, f.params, n); err != nil {
				return nil, n.Wrap(where, err)
			}
		}
	case p4info.KindRegister:
		where := fmt.Sprintf("register %s, index %d", o.Name, x.Index.Index)
		r := info.Register(o.ID)
		if r.Bits == 0 {
			return nil, n.Errorf("%s: its elements are no unsigned integers", where)
		}
		v, err := p4info.ParseValue(p4info.Type{Bits: r.Bits}, f.value)
		if err != nil {
			return nil, n.Wrap(where+", value", err)
		}
		x.Data = &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: v}}
	case p4info.KindValueSet:
		if f.members == nil {
			break
		}
		err := yaml.Each(func(n *yaml.Node) error {
			if err := n.Want(yaml.Mapping, "member"); err != nil {
				return err
			}
			m, err := readMatch(info.ValueSet(o.ID).Fields, n)
			x.Values = append(x.Values, &p4v1.ValueSetMember{Match: m})
			return err
		})(f.members)
		if err != nil {
			return nil, f.members.Wrap("value set "+o.Name, err)
		}
	}
	return checked(info, op, n, "", x.Message())
}

// The kinds, as they stand in a file.

// multicast is {group: ID, ports: [1, 2, {port: 3, instance: 1}]}.
func (f *form) multicast() []field {
	return []field{{key: "group", at: &f.x.ID}, f.ports()}
}

// clone is {session: ID, ports: [1], class_of_service: N, packet_length: N}.
func (f *form) clone() []field {
	return []field{{key: "session", at: &f.x.ID}, f.ports(),
		{key: "class_of_service", at: &f.x.Class, empty: f.x.Class == 0}, {key: "packet_length", at: &f.x.Length, empty: f.x.Length == 0}}
}

// ports is a list of ports: numbers, or {port: N, instance: N}.
func (f *form) ports() field {
	return field{key: "ports",
		read: yaml.Each(func(n *yaml.Node) error {
			r := &p4v1.Replica{}
			port := n.Text
			if n.Kind != yaml.Scalar {
				if err := readFields(n, "ports", []field{{key: "port", at: &port}, {key: "instance", at: &r.Instance}}); err != nil {
					return err
				}
			}
			v, err := parsePort(port)
			if err != nil {
				return n.Wrap("port", err)
			}
			r.PortKind = &p4v1.Replica_Port{Port: v}
			f.x.Replicas = append(f.x.Replicas, r)
			return nil
		}),
		write: func(w *flow) {
			w.list("ports")
			for _, r := range f.x.Replicas {
				port := strconv.FormatUint(uint64(p4info.ReplicaPort(r)), 10)
				if r.Instance == 0 {
					w.value(port)
					continue
				}
				w.item()
				w.fields([]field{{key: "port", at: &port}, {key: "instance", at: &r.Instance}})
				w.close()
			}
			w.end()
		},
	}
}

// digest is {digest: NAME, max_timeout: 100ms, max_list: N, ack_timeout: 1s}.
func (f *form) digest() []field {
	c := f.x.Digest
	return []field{{key: "digest", at: &f.name}, {key: "max_timeout", at: (*nanos)(&c.MaxTimeoutNs)}, {key: "max_list", at: &c.MaxListSize}, {key: "ack_timeout", at: (*nanos)(&c.AckTimeoutNs)}}
}

// valueSet is {value_set: NAME, members: [{FIELD: VALUE}]}.
func (f *form) valueSet() []field {
	return []field{{key: "value_set", at: &f.name}, {key: "members", at: &f.members, write: func(w *flow) {
		w.maps("members", len(f.x.Values), func(n int) []field { return matches(f.info.ValueSet(f.x.Object).Fields, f.x.Values[n].Match) })
	}}}
}

// cell is {meter: NAME, index: N, cir: N, cburst: N, pir: N, pburst: N}, {counter: NAME, index: N, packets: N, bytes: N}
// or {register: NAME, index: N, value: VALUE}.
func (f *form) cell() []field {
	x := &f.x
	list := []field{{key: x.Kind.String(), at: &f.name}, {key: "index", at: &x.Index.Index}}
	fresh := x.Object == 0 // to be read
	switch x.Kind {
	case p4info.KindMeter:
		if fresh {
			x.Rates = &p4v1.MeterConfig{}
		}
		return append(list, rates(x.Rates)...)
	case p4info.KindCounter:
		if fresh {
			x.Count = &p4v1.CounterData{}
		}
		return append(list, counts(x.Count)...)
	}
	if r := f.info.Register(x.Object); r != nil {
		f.value = p4info.FormatValue(r.Name, p4info.Type{Bits: r.Bits}, x.Data.GetBitstring())
	}
	return append(list, field{key: "value", at: &f.value})
}

// rates are a meter's: cir: N, cburst: N, pir: N, pburst: N.
func rates(c *p4v1.MeterConfig) []field {
	if c == nil {
		return nil
	}
	return []field{{key: "cir", at: &c.Cir}, {key: "cburst", at: &c.Cburst}, {key: "pir", at: &c.Pir}, {key: "pburst", at: &c.Pburst},
		{key: "eburst", at: &c.Eburst, empty: c.Eburst == 0}}
}

// counts are a counter's: packets: N, bytes: N.
func counts(c *p4v1.CounterData) []field {
	if c == nil {
		return nil
	}
	return []field{{key: "packets", at: &c.PacketCount}, {key: "bytes", at: &c.ByteCount}}
}

// member is {profile: NAME, member: ID, action: NAME, params: {NAME: VALUE}}.
func (f *form) member() []field {
	return append([]field{{key: "profile", at: &f.name}, {key: "member", at: &f.x.ID}}, f.actionFields(f.x.Action, &f.act, &f.params)...)
}

// actionFields are action: NAME, params: {NAME: VALUE}.
func (f *form) actionFields(a *p4v1.Action, name *string, params **yaml.Node) []field {
	act := f.info.Action(a.GetActionId())
	if act != nil {
		*name = act.Name
	}
	return []field{{key: "action", at: name, empty: act == nil}, {key: "params", at: params, empty: act == nil || len(a.Params) == 0, write: func(w *flow) {
		w.open("params")
		for _, p := range a.Params {
			if x := p4info.FieldByID(act.Params, p.ParamId); x != nil {
				w.text(x.Name, p4info.FormatValue(x.Name, x.Type, p.Value))
			}
		}
		w.close()
	}}}
}

// group is {profile: NAME, group: ID, members: [{member: ID, weight: N}], max_size: N}.
func (f *form) group() []field {
	member := func(m *p4v1.ActionProfileGroup_Member) []field {
		return []field{{key: "member", at: &m.MemberId}, {key: "weight", at: &m.Weight}, watched(m.GetWatchPort(), func(port []byte) {
			m.WatchKind = &p4v1.ActionProfileGroup_Member_WatchPort{WatchPort: port}
		})}
	}
	return []field{{key: "profile", at: &f.name}, {key: "group", at: &f.x.ID}, {key: "max_size", at: &f.x.MaxSize, empty: f.x.MaxSize == 0}, {
		key: "members",
		read: yaml.Each(func(n *yaml.Node) error {
			m := &p4v1.ActionProfileGroup_Member{Weight: 1}
			f.x.Members = append(f.x.Members, m)
			return readFields(n, "member", member(m))
		}),
		write: func(w *flow) {
			w.maps("members", len(f.x.Members), func(n int) []field { return member(f.x.Members[n]) })
		},
	}}
}

// entry is an entry of a table:
//
//	{table: NAME, match: {FIELD: VALUE}, priority: N, action: NAME, params: {NAME: VALUE}}
func (f *form) entry() []field {
	e := f.x.Entry
	if len(e.Metadata) > 0 {
		f.metadata = "0x" + hex.EncodeToString(e.Metadata)
	}
	act, does := f.actionFields(e.Action.GetAction(), &f.act, &f.params), e.Action.GetType()
	_, isMember := does.(*p4v1.TableAction_ActionProfileMemberId)
	_, isGroup := does.(*p4v1.TableAction_ActionProfileGroupId)
	f.memberID, f.groupID = e.Action.GetActionProfileMemberId(), e.Action.GetActionProfileGroupId()
	set := e.Action.GetActionProfileActionSet()
	return []field{
		{key: "table", at: &f.name},
		{key: "default", at: &e.IsDefaultAction, empty: !e.IsDefaultAction},
		{key: "match", at: &f.match, empty: len(e.Match) == 0, write: func(w *flow) {
			w.open("match")
			w.fields(matches(f.info.Table(e.TableId).Fields, e.Match))
			w.close()
		}},
		{key: "priority", at: &e.Priority, empty: e.Priority == 0},
		act[0], act[1],
		{key: "member", at: &f.memberID, empty: !isMember},
		{key: "group", at: &f.groupID, empty: !isGroup},
		{key: "actions", at: &f.set, empty: set == nil, write: func(w *flow) {
			w.maps("actions", len(set.ActionProfileActions), func(n int) []field {
				return f.setAction(set.ActionProfileActions[n], new(string), new(*yaml.Node))
			})
		}},
		{key: "idle_timeout", at: (*nanos)(&e.IdleTimeoutNs), empty: e.IdleTimeoutNs == 0},
		inside("meter", rates(e.MeterConfig), func() []field {
			e.MeterConfig = &p4v1.MeterConfig{}
			return rates(e.MeterConfig)
		}),
		inside("counter", counts(e.CounterData), func() []field {
			e.CounterData = &p4v1.CounterData{}
			return counts(e.CounterData)
		}),
		{key: "metadata", at: &f.metadata, empty: f.metadata == ""},
	}
}

// setAction is {action: NAME, params: {NAME: VALUE}, weight: N, watch_port: N}.
func (f *form) setAction(a *p4v1.ActionProfileAction, name *string, params **yaml.Node) []field {
	return append(f.actionFields(a.Action, name, params), field{key: "weight", at: &a.Weight}, watched(a.GetWatchPort(), func(port []byte) {
		a.WatchKind = &p4v1.ActionProfileAction_WatchPort{WatchPort: port}
	}))
}

// readEntry reads what of an entry depends on its table.
func (f *form) readEntry(op p4v1.Update_Type, n *yaml.Node) (*p4v1.Entity, error) {
	e := f.x.Entry
	if f.name == "" {
		return nil, n.Errorf("entry: table is missing")
	}
	o, err := f.info.Named(p4info.KindEntry, f.name)
	if err != nil {
		return nil, n.Wrap("entry", err)
	}
	t := f.info.Table(o.ID)
	e.TableId = t.ID
	where := "table " + t.Name + ", entry " + short(f.match, e)
	fail := func(at *yaml.Node, err error) (*p4v1.Entity, error) { return nil, at.Wrap(where, err) }
	if f.match != nil && f.match.Kind != yaml.Null {
		if err := f.match.Want(yaml.Mapping, where+": match"); err != nil {
			return nil, err
		}
		if e.Match, err = readMatch(t.Fields, f.match); err != nil {
			return fail(f.match, err)
		}
	}
	if e.Metadata, err = readBytes(f.metadata); err != nil {
		return fail(n, fmt.Errorf("metadata: %w", err))
	}
	ways := 0
	if f.act != "" {
		ways++
	}
	for _, k := range n.Keys {
		switch k.Text {
		case "member":
			e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileMemberId{ActionProfileMemberId: f.memberID}}
			ways++
		case "group":
			e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileGroupId{ActionProfileGroupId: f.groupID}}
			ways++
		case "actions":
			ways++
		}
	}
	switch {
	case ways > 1:
		return fail(n, errors.New("want one of action, member, group and actions"))
	case f.act != "":
		a, err := readAction(t, f.act, f.params, n)
		if err != nil {
			return fail(n, err)
		}
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}}
	case f.set != nil:
		set := &p4v1.ActionProfileActionSet{}
		err := yaml.Each(func(n *yaml.Node) error {
			var name string
			var params *yaml.Node
			a := &p4v1.ActionProfileAction{Weight: 1}
			err := readFields(n, "actions", f.setAction(a, &name, &params))
			if err == nil {
				a.Action, err = readAction(t, name, params, n)
			}
			set.ActionProfileActions = append(set.ActionProfileActions, a)
			return err
		})(f.set)
		if err != nil {
			return fail(f.set, err)
		}
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileActionSet{ActionProfileActionSet: set}}
	case ways == 0 && !e.IsDefaultAction && op != p4v1.Update_DELETE:
		return fail(n, errors.New("action is missing"))
	}
	if f.params != nil && f.act == "" {
		return fail(f.params, errors.New("params without an action"))
	}
	return checked(f.info, op, n, where, f.x.Message())
}

// checked lets P4Info judge an entity that stands at n, and what is to be done
// with it; UNSPECIFIED: what makes a device hold it.
func checked(info *p4info.Info, op p4v1.Update_Type, n *yaml.Node, where string, e *p4v1.Entity) (*p4v1.Entity, error) {
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
		return nil, n.Wrap(where, errors.New(msg))
	}
	return nil, n.Wrap("", err)
}

// short is an entry as errors name it, as it stands in the file.
func short(match *yaml.Node, e *p4v1.TableEntry) string {
	if e.IsDefaultAction {
		return "default"
	}
	var b strings.Builder
	b.WriteByte('{')
	if match != nil && match.Kind == yaml.Mapping {
		for i, k := range match.Keys {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(k.Text + ": " + match.List[i].Text)
		}
	}
	b.WriteByte('}')
	if e.Priority != 0 {
		b.WriteString(" priority " + strconv.Itoa(int(e.Priority)))
	}
	return b.String()
}

func readAction(t *p4info.Table, name string, params, at *yaml.Node) (*p4v1.Action, error) {
	ref, err := t.Action(name)
	if err != nil {
		return nil, at.Wrap("", err)
	}
	return readParams(ref.Action, params)
}

func readParams(act *p4info.Action, params *yaml.Node) (*p4v1.Action, error) {
	a := &p4v1.Action{ActionId: act.ID}
	if params == nil || params.Kind == yaml.Null {
		return a, nil
	}
	if err := params.Want(yaml.Mapping, "params"); err != nil {
		return nil, err
	}
	for i, k := range params.Keys {
		p, err := fieldNamed(act.Params, k.Text)
		if err != nil {
			return nil, k.Wrap("", fmt.Errorf("action %s: %s", act.Name, strings.ReplaceAll(err.Error(), "field", "parameter")))
		}
		x := params.List[i]
		if p.Type.Bits == 0 && x.Kind == yaml.Mapping {
			s, err := object(x)
			if err != nil {
				return nil, fmt.Errorf("action %s, parameter %s: %w", act.Name, p.Name, err)
			}
			a.Params = append(a.Params, &p4v1.Action_Param{ParamId: p.ID, Value: []byte(s)})
			continue
		}
		if x.Kind != yaml.Scalar {
			return nil, x.Errorf("action %s, parameter %s: want a value, there is %s", act.Name, p.Name, x.Kind)
		}
		v, err := p4info.ParseValue(p.Type, x.Text)
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
func object(n *yaml.Node) (string, error) {
	m := map[string]string{}
	for i, k := range n.Keys {
		if n.List[i].Kind != yaml.Scalar {
			return "", n.List[i].Errorf("%s: want a value, there is %s", k.Text, n.List[i].Kind)
		}
		m[k.Text] = n.List[i].Text
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
