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

// section describes how a file holds the entities of one kind.
type section struct {
	name string // the key of a device's list of them
	kind p4info.Kind
	many string // what people call several of them
	one  string // what errors call one of them
	mark string // the key that tells the kind of an entity without a list around it
	keys func(*form)
}

// sections are all kinds of entities in the order of a file: a kind comes after the kinds that its entities
// refer to.
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

// sectionOf returns the index of a kind's section, or -1 if files do not hold entities of the kind.
func sectionOf(k p4info.Kind) int {
	return slices.IndexFunc(sections, func(s section) bool { return s.kind == k })
}

// ParseEntity reads one entity from one line of YAML, in the form of an intent's lists; its keys tell its kind.
// op is what will be done with the entity: a deletion needs only the entity's key.
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
		if has(sections[sectionOf(k)].mark) {
			if k == p4info.KindMember && has("group") {
				k = p4info.KindGroup
			}
			return sections[sectionOf(k)].read(info, op, n)
		}
	}
	return nil, n.Errorf("what is it? Want one of the keys table, profile, group, session, digest, meter, counter, register, value_set")
}

// EntryText returns a table entry in the form that ParseEntity reads. match has pairs of a field and its value,
// params pairs of a parameter and its value.
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

// update returns the update that makes a device hold e: an insertion, or a modification if e is an entity that
// always exists.
func update(e *p4v1.Entity) *p4v1.Update {
	t := p4v1.Update_INSERT
	if x := p4info.Of(e); x.Always() {
		t = p4v1.Update_MODIFY
	}
	return &p4v1.Update{Type: t, Entity: e}
}

// form is an entity that is being read from a file or written to one. For each kind a method (multicast, entry,
// ...) names the keys that an entity has in a file. When writing, naming a key writes it. When reading, naming
// a key only adds it to known, because a file may have its keys in any order.
type form struct {
	info    *p4info.Info
	x       p4info.Entity
	out     flow
	reading bool
	known   map[string]func(*yaml.Node) error // what reads the value of each key

	// Values that can be understood only after the whole map was read: names of objects, and values that depend
	// on them.
	name, act, value, metadata  string
	match, params, set, members *yaml.Node
	memberID, groupID           uint32 // of an action profile, in an entry
}

// fill adds the empty messages that the kind needs and x lacks.
func (f *form) fill() {
	x := &f.x
	if x.Kind == p4info.KindEntry && x.Entry == nil {
		x.Entry = &p4v1.TableEntry{}
	}
	if x.Kind == p4info.KindDigest && x.Digest == nil {
		x.Digest = &p4v1.DigestEntry_Config{}
	}
	if x.Kind.Cells() && x.Index == nil {
		x.Index = &p4v1.Index{}
	}
}

// nanos is a duration in nanoseconds, as in P4Runtime's messages.
type nanos int64

// key names a key. at points to its value: a *string, *bool, *int32, *uint32, *int64 or *nanos.
func (f *form) key(key string, at any) {
	if f.reading {
		f.known[key] = reader(at)
		return
	}
	w := &f.out
	switch p := at.(type) {
	case *string:
		w.text(key, *p)
	case *bool:
		w.text(key, strconv.FormatBool(*p))
	case *int32:
		w.int(key, int64(*p))
	case *uint32:
		w.int(key, int64(*p))
	case *int64:
		w.int(key, *p)
	case *nanos:
		w.text(key, time.Duration(*p).String())
	}
}

// keyIf names a key that is written only if there is true.
func (f *form) keyIf(there bool, key string, at any) {
	if f.reading || there {
		f.key(key, at)
	}
}

// later names a key whose value is kept in at until all keys were read. It returns true if the caller has to
// write the value.
func (f *form) later(key string, at **yaml.Node, there bool) bool {
	if f.reading {
		f.known[key] = func(n *yaml.Node) error { *at = n; return nil }
	}
	return !f.reading && there
}

// inside names a key whose value is a map with keys of its own.
func (f *form) inside(key string, there bool, keys func(*form)) {
	if f.reading {
		f.known[key] = func(n *yaml.Node) error { return f.read(n, key, func() { keys(f) }) }
	} else if there {
		f.out.open(key)
		keys(f)
		f.out.close()
	}
}

// maps names a key whose value is a list of n maps. keys names the keys of map i. When reading, keys is called
// with i from 0 on.
func (f *form) maps(key, one string, n int, keys func(f *form, i int)) {
	if f.reading {
		i := -1
		f.known[key] = yaml.Each(func(n *yaml.Node) error {
			i++
			return f.read(n, one, func() { keys(f, i) })
		})
		return
	}
	f.out.list(key)
	for i := range n {
		f.out.item()
		keys(f, i)
		f.out.close()
	}
	f.out.end()
}

// watchPort names the key for the watch port of a group's member, or of an action in a set. While that port is
// down the device does not use the member.
func (f *form) watchPort(of interface{ GetWatchPort() []byte }) {
	if !f.reading {
		if port := of.GetWatchPort(); port != nil {
			f.out.int("watch_port", int64(p4info.PortNumber(port)))
		}
		return
	}
	f.known["watch_port"] = func(n *yaml.Node) error {
		var text string
		if err := yaml.Text(&text)(n); err != nil || text == "" {
			return err
		}
		port, err := parsePort(text)
		if err != nil {
			return err
		}
		switch of := of.(type) {
		case *p4v1.ActionProfileGroup_Member:
			of.WatchKind = &p4v1.ActionProfileGroup_Member_WatchPort{WatchPort: port}
		case *p4v1.ActionProfileAction:
			of.WatchKind = &p4v1.ActionProfileAction_WatchPort{WatchPort: port}
		}
		return nil
	}
}

// reader returns a function that reads a value into what at points to.
func reader(at any) func(*yaml.Node) error {
	switch p := at.(type) {
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
	}
	return yaml.Duration((*int64)(at.(*nanos)))
}

// read reads a map with the keys that keys names.
func (f *form) read(n *yaml.Node, what string, keys func()) error {
	f.reading, f.known = true, map[string]func(*yaml.Node) error{}
	keys()
	return n.Fields(what, f.known)
}

// Line returns an entity as a file holds it: one line of YAML, and the name of the list that it belongs to.
func Line(info *p4info.Info, e *p4v1.Entity) (section, text string) {
	i, text := line(info, e)
	if i < 0 {
		return "", ""
	}
	return sections[i].name, text
}

// line is like Line, and returns the index of the section; -1: files do not hold entities of this kind.
func line(info *p4info.Info, e *p4v1.Entity) (section int, text string) {
	f := &form{info: info, x: p4info.Of(e)}
	i := sectionOf(f.x.Kind)
	if i < 0 {
		return i, ""
	}
	if o := info.Object(f.x.Kind, f.x.Object); o != nil {
		f.name = o.Name
	}
	f.fill()
	f.out.start()
	sections[i].keys(f)
	f.out.close()
	return i, f.out.String()
}

// read reads an entity of the section.
func (s *section) read(info *p4info.Info, op p4v1.Update_Type, n *yaml.Node) (*p4v1.Entity, error) {
	f := &form{info: info, x: p4info.Entity{Kind: s.kind}}
	f.fill()
	if err := f.read(n, s.one, func() { s.keys(f) }); err != nil {
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

// The kinds of entities in a file.

// multicast is {group: ID, ports: [1, 2, {port: 3, instance: 1}]}.
func (f *form) multicast() {
	f.key("group", &f.x.ID)
	f.ports()
}

// clone is {session: ID, ports: [1], class_of_service: N, packet_length: N}.
func (f *form) clone() {
	f.key("session", &f.x.ID)
	f.ports()
	f.keyIf(f.x.Class != 0, "class_of_service", &f.x.Class)
	f.keyIf(f.x.Length != 0, "packet_length", &f.x.Length)
}

// ports is a list of ports: numbers, or {port: N, instance: N}.
func (f *form) ports() {
	if f.reading {
		f.known["ports"] = yaml.Each(f.readPort)
		return
	}
	w := &f.out
	w.list("ports")
	for _, r := range f.x.Replicas {
		port := int64(p4info.ReplicaPort(r))
		if r.Instance == 0 {
			w.number(port)
			continue
		}
		w.item()
		w.int("port", port)
		w.int("instance", int64(r.Instance))
		w.close()
	}
	w.end()
}

func (f *form) readPort(n *yaml.Node) error {
	r := &p4v1.Replica{}
	port := n.Text
	if n.Kind != yaml.Scalar {
		err := f.read(n, "ports", func() {
			f.key("port", &port)
			f.key("instance", &r.Instance)
		})
		if err != nil {
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
}

// digest is {digest: NAME, max_timeout: 100ms, max_list: N, ack_timeout: 1s}.
func (f *form) digest() {
	c := f.x.Digest
	f.key("digest", &f.name)
	f.key("max_timeout", (*nanos)(&c.MaxTimeoutNs))
	f.key("max_list", &c.MaxListSize)
	f.key("ack_timeout", (*nanos)(&c.AckTimeoutNs))
}

// valueSet is {value_set: NAME, members: [{FIELD: VALUE}]}.
func (f *form) valueSet() {
	f.key("value_set", &f.name)
	if f.later("members", &f.members, true) {
		f.maps("members", "member", len(f.x.Values), func(f *form, i int) {
			f.matches(f.info.ValueSet(f.x.Object).Fields, f.x.Values[i].Match)
		})
	}
}

// cell is {meter: NAME, index: N, cir: N, cburst: N, pir: N, pburst: N}, {counter: NAME, index: N, packets: N, bytes: N}
// or {register: NAME, index: N, value: VALUE}.
func (f *form) cell() {
	x := &f.x
	f.key(x.Kind.String(), &f.name)
	f.key("index", &x.Index.Index)
	switch x.Kind {
	case p4info.KindMeter:
		f.rates(&x.Rates)
	case p4info.KindCounter:
		f.counts(&x.Count)
	default:
		if r := f.info.Register(x.Object); r != nil {
			f.value = p4info.FormatValue(r.Name, p4info.Type{Bits: r.Bits}, x.Data.GetBitstring())
		}
		f.key("value", &f.value)
	}
}

// rates are a meter's: cir: N, cburst: N, pir: N, pburst: N.
func (f *form) rates(at **p4v1.MeterConfig) {
	if f.reading {
		*at = &p4v1.MeterConfig{}
	}
	if c := *at; c != nil {
		f.key("cir", &c.Cir)
		f.key("cburst", &c.Cburst)
		f.key("pir", &c.Pir)
		f.key("pburst", &c.Pburst)
		f.keyIf(c.Eburst != 0, "eburst", &c.Eburst)
	}
}

// counts are a counter's: packets: N, bytes: N.
func (f *form) counts(at **p4v1.CounterData) {
	if f.reading {
		*at = &p4v1.CounterData{}
	}
	if c := *at; c != nil {
		f.key("packets", &c.PacketCount)
		f.key("bytes", &c.ByteCount)
	}
}

// member is {profile: NAME, member: ID, action: NAME, params: {NAME: VALUE}}.
func (f *form) member() {
	f.key("profile", &f.name)
	f.key("member", &f.x.ID)
	f.action(f.x.Action)
}

// action is action: NAME, params: {NAME: VALUE}.
func (f *form) action(a *p4v1.Action) {
	act := f.info.Action(a.GetActionId())
	if act != nil {
		f.act = act.Name
	}
	f.keyIf(act != nil, "action", &f.act)
	if f.later("params", &f.params, act != nil && len(a.Params) > 0) {
		f.out.open("params")
		for _, p := range a.Params {
			if x := p4info.FieldByID(act.Params, p.ParamId); x != nil {
				f.out.text(x.Name, p4info.FormatValue(x.Name, x.Type, p.Value))
			}
		}
		f.out.close()
	}
}

// group is {profile: NAME, group: ID, members: [{member: ID, weight: N}], max_size: N}.
func (f *form) group() {
	f.key("profile", &f.name)
	f.key("group", &f.x.ID)
	f.keyIf(f.x.MaxSize != 0, "max_size", &f.x.MaxSize)
	f.maps("members", "member", len(f.x.Members), func(f *form, i int) {
		if f.reading {
			f.x.Members = append(f.x.Members, &p4v1.ActionProfileGroup_Member{Weight: 1})
		}
		m := f.x.Members[i]
		f.key("member", &m.MemberId)
		f.key("weight", &m.Weight)
		f.watchPort(m)
	})
}

// entry is an entry of a table:
//
//	{table: NAME, match: {FIELD: VALUE}, priority: N, action: NAME, params: {NAME: VALUE}}
func (f *form) entry() {
	e := f.x.Entry
	if len(e.Metadata) > 0 {
		f.metadata = "0x" + hex.EncodeToString(e.Metadata)
	}
	does := e.Action.GetType()
	_, isMember := does.(*p4v1.TableAction_ActionProfileMemberId)
	_, isGroup := does.(*p4v1.TableAction_ActionProfileGroupId)
	f.memberID, f.groupID = e.Action.GetActionProfileMemberId(), e.Action.GetActionProfileGroupId()
	f.key("table", &f.name)
	f.keyIf(e.IsDefaultAction, "default", &e.IsDefaultAction)
	if f.later("match", &f.match, len(e.Match) > 0) {
		f.out.open("match")
		f.matches(f.info.Table(e.TableId).Fields, e.Match)
		f.out.close()
	}
	f.keyIf(e.Priority != 0, "priority", &e.Priority)
	f.action(e.Action.GetAction())
	f.keyIf(isMember, "member", &f.memberID)
	f.keyIf(isGroup, "group", &f.groupID)
	if set := e.Action.GetActionProfileActionSet(); f.later("actions", &f.set, set != nil) {
		f.maps("actions", "actions", len(set.ActionProfileActions), func(f *form, i int) {
			f.setAction(f.x.Entry.Action.GetActionProfileActionSet().ActionProfileActions[i])
		})
	}
	f.keyIf(e.IdleTimeoutNs != 0, "idle_timeout", (*nanos)(&e.IdleTimeoutNs))
	f.inside("meter", e.MeterConfig != nil, func(f *form) { f.rates(&f.x.Entry.MeterConfig) })
	f.inside("counter", e.CounterData != nil, func(f *form) { f.counts(&f.x.Entry.CounterData) })
	f.keyIf(f.metadata != "", "metadata", &f.metadata)
}

// setAction is {action: NAME, params: {NAME: VALUE}, weight: N, watch_port: N}.
func (f *form) setAction(a *p4v1.ActionProfileAction) {
	f.action(a.Action)
	f.key("weight", &a.Weight)
	f.watchPort(a)
}

// matches writes the fields of a key.
func (f *form) matches(fields []p4info.Field, list []*p4v1.FieldMatch) {
	for _, m := range list {
		if x := p4info.FieldByID(fields, m.FieldId); x != nil {
			f.out.text(x.Name, x.MatchText(m))
		}
	}
}

// readEntry reads the parts of an entry that depend on its table.
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
			a := &p4v1.ActionProfileAction{Weight: 1}
			one := &form{info: f.info}
			err := one.read(n, "actions", func() { one.setAction(a) })
			if err == nil {
				a.Action, err = readAction(t, one.act, one.params, n)
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

// checked checks an entity, and the operation on it, against the P4Info. n is its place in the file.
// UNSPECIFIED stands for the operation that makes a device hold the entity.
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
	if t := e.GetTableEntry(); t != nil { // the error of p4info does not name the entry as the file has it
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

// short returns an entry's key as the file has it, for errors.
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
		p, err := p4info.FieldByName(act.Params, "parameter", k.Text)
		if err != nil {
			return nil, k.Wrap("", fmt.Errorf("action %s: %w", act.Name, err))
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

// object returns a map of values as a JSON object of strings, with sorted names and without spaces, because
// tables of quillon's own server take arguments in this form. For an empty map it returns the empty string.
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
