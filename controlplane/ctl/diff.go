package ctl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
)

// Change is one update that brings a device closer to its intent.
type Change struct {
	Type   p4v1.Update_Type
	Entity *p4v1.Entity // of a deletion: what the device holds
	Old    *p4v1.Entity // of a modification: what the device holds; nil: unknown
	// Blind says that the device does not show entities of this kind. If the entity exists already, the
	// insertion becomes a modification.
	Blind bool
}

// Diff is the difference between what a device holds and its intent.
type Diff struct {
	Device  *Device
	Load    string   // why the program is loaded first; "" when it is not
	Changes []Change // in the order of a plan
	Same    int      // entities that are as the intent has them
	Unread  []Unread

	ranks map[uint32]int // of tables, by id; nil: from the P4Info's references
}

// rank is the rank of an entity.
func (d *Diff) rank(e *p4v1.Entity) int {
	if d.ranks == nil {
		d.ranks = ranks(d.Device.Info)
	}
	return rankOf(d.ranks, e)
}

// Values says how a Diff treats registers and counters, whose values the program changes.
type Values uint8

const (
	LeaveValues   Values = iota
	WriteValues          // as the intent has them: the program was just loaded
	CompareValues        // as the intent has them, and others are zero
)

// Diff returns the difference between what the session's device holds and d.
func (s *Session) Diff(ctx context.Context, d *Device, v Values) (*Diff, error) {
	out := &Diff{Device: d}
	want := make(map[string]*p4v1.Entity, len(d.Entities))
	size := map[uint32]int64{} // entries that a table holds
	for _, e := range d.Entities {
		if v != CompareValues && isValue(e) {
			if v == WriteValues {
				out.Changes = append(out.Changes, Change{Type: p4v1.Update_MODIFY, Entity: e})
			}
			continue
		}
		want[p4info.Key(e)] = e
	}
	unread, err := s.Scan(ctx, d.Info, Scope{Leave: d.Leave, Named: d.Entities, Arrays: v == CompareValues, All: v == CompareValues}, func(have *p4v1.Entity) error {
		if t := have.GetTableEntry(); t != nil && !t.IsDefaultAction {
			size[t.TableId]++
		}
		key := p4info.Key(have)
		w := want[key]
		delete(want, key)
		switch {
		case w == nil:
			if c, ok := removed(d.Info, have); ok {
				out.Changes = append(out.Changes, c)
			} else {
				out.Same++
			}
		case equal(w, have) && (v != CompareValues || proto.Equal(w.GetTableEntry().GetCounterData(), have.GetTableEntry().GetCounterData())):
			out.Same++
		default:
			out.Changes = append(out.Changes, Change{Type: p4v1.Update_MODIFY, Entity: recounted(d.Info, w, v), Old: have})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, e := range d.Entities { // in the intent's order
		key := p4info.Key(e)
		if want[key] == nil {
			continue
		}
		blind := slices.ContainsFunc(unread, func(u Unread) bool { return u.kind.Of(e) })
		out.Changes = append(out.Changes, Change{Type: update(e).Type, Entity: e, Blind: blind})
	}
	for _, u := range unread { // a kind of which the intent has nothing is not missed
		if slices.ContainsFunc(out.Changes, func(c Change) bool { return c.Blind && u.kind.Of(c.Entity) }) {
			out.Unread = append(out.Unread, u)
		}
	}
	out.order(size)
	return out, nil
}

// recounted returns e with a counter of zero, if counters are compared and the intent has no counter data for
// e. Without counter data a Write would leave the counter as it is.
func recounted(info *p4info.Info, e *p4v1.Entity, v Values) *p4v1.Entity {
	t := e.GetTableEntry()
	if t == nil || t.IsDefaultAction || v != CompareValues || t.CounterData != nil || info.Table(t.TableId).Counter == nil {
		return e
	}
	e = proto.Clone(e).(*p4v1.Entity)
	e.GetTableEntry().CounterData = &p4v1.CounterData{}
	return e
}

func isValue(e *p4v1.Entity) bool {
	return p4info.KindRegister.Of(e) || p4info.KindCounter.Of(e)
}

// removed returns the change that removes an entity. An entity that cannot be deleted gets its initial value;
// ok is false if it has that already.
func removed(info *p4info.Info, have *p4v1.Entity) (Change, bool) {
	x := p4info.Of(have)
	if !x.Always() {
		return Change{Type: p4v1.Update_DELETE, Entity: have}, true
	}
	switch x.Kind {
	case p4info.KindEntry:
		first := info.Table(x.Object).InitialDefault()
		if first == nil || proto.Equal(first, x.Entry.Action.GetAction()) {
			return Change{}, false
		}
		// An entry without an action resets the default action to the program's.
		x.Entry = proto.CloneOf(x.Entry)
		x.Entry.Action, x.Entry.Metadata, x.Entry.CounterData, x.Entry.MeterConfig = nil, nil, nil, nil
	case p4info.KindMeter:
		x.Rates = nil
	case p4info.KindValueSet:
		x.Values = nil
	case p4info.KindCounter:
		x.Count = &p4v1.CounterData{}
	case p4info.KindRegister:
		x.Data = &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: []byte{0}}}
	default:
		return Change{}, false
	}
	return Change{Type: p4v1.Update_MODIFY, Entity: x.Message(), Old: have}, true
}

// Ranks. An entity has a higher rank than the entities to which it refers.
const (
	rankGround = iota // multicast groups, clone sessions, digests, arrays
	rankMember
	rankGroup
	rankTables // and up, by references among tables
)

// ranks returns the ranks of the tables, by their @refers_to annotations. Tables that refer to each other in a
// circle keep the order of the P4Info, because no order would be right for them.
func ranks(info *p4info.Info) map[uint32]int {
	rank := map[uint32]int{}
	var visit func(t *p4info.Table, path []*p4info.Table) int
	visit = func(t *p4info.Table, path []*p4info.Table) int {
		if r, ok := rank[t.ID]; ok {
			return r
		}
		r := rankTables
		for _, name := range refersTo(t) {
			to, err := p4info.ByName(info.Tables, "table", name)
			if err != nil || to == t || slices.Contains(path, to) {
				continue
			}
			r = max(r, visit(to, append(path, t))+1)
		}
		rank[t.ID] = r
		return r
	}
	for _, t := range info.Tables {
		visit(t, nil)
	}
	return rank
}

// refersTo returns the names of the tables to which keys or parameters of t refer: @refers_to(TABLE, FIELD).
func refersTo(t *p4info.Table) []string {
	var names []string
	add := func(annotations []string) {
		for _, a := range annotations {
			args, ok := strings.CutPrefix(strings.TrimSpace(a), "@refers_to(")
			if !ok {
				continue
			}
			name, _, _ := strings.Cut(strings.TrimSuffix(args, ")"), ",")
			names = append(names, strings.Trim(strings.TrimSpace(name), `"`))
		}
	}
	for _, f := range t.Fields {
		add(f.Annotations)
	}
	for _, a := range t.Actions {
		for _, p := range a.Params {
			add(p.Annotations)
		}
		add(a.Annotations)
	}
	return names
}

func rankOf(tables map[uint32]int, e *p4v1.Entity) int {
	switch x := p4info.Of(e); x.Kind {
	case p4info.KindMember:
		return rankMember
	case p4info.KindGroup:
		return rankGroup
	case p4info.KindEntry:
		return tables[x.Object]
	}
	return rankGround
}

// order sorts the changes so that no entity refers to one that does not exist: first insertions and
// modifications, from low ranks to high ones, and after them deletions, from high ranks to low ones. Only if a
// table has no room for both its old and its new entries do its deletions come first.
func (d *Diff) order(size map[uint32]int64) {
	anew := d.restyled()
	grows := map[uint32]int64{}
	for _, c := range d.Changes {
		if t := c.Entity.GetTableEntry(); t != nil && c.Type == p4v1.Update_INSERT {
			grows[t.TableId]++
		}
	}
	phase := func(c Change) int {
		switch c.Type {
		case p4v1.Update_DELETE:
			if anew[d.Device.Info.ProfileOf(c.Entity)] {
				return 0
			}
			if t := c.Entity.GetTableEntry(); t != nil && grows[t.TableId] > 0 && size[t.TableId]+grows[t.TableId] > d.Device.Info.Table(t.TableId).Size {
				return 0
			}
			return 2
		}
		return 1
	}
	type place struct{ phase, rank int }
	at := func(c Change) place {
		p := place{phase(c), d.rank(c.Entity)}
		if c.Type == p4v1.Update_DELETE {
			p.rank = -p.rank
		}
		return p
	}
	slices.SortStableFunc(d.Changes, func(a, b Change) int {
		x, y := at(a), at(b)
		if x.phase != y.phase {
			return x.phase - y.phase
		}
		return x.rank - y.rank
	})
}

// restyled returns the action profiles whose entries change from members to action sets, or back. A profile
// cannot have both at a time, so the entries of its tables are deleted and inserted instead of modified.
func (d *Diff) restyled() map[*p4info.Profile]bool {
	info := d.Device.Info
	type style struct{ sets, members bool }
	was, is := map[*p4info.Profile]style{}, map[*p4info.Profile]style{}
	note := func(m map[*p4info.Profile]style, e *p4v1.Entity) {
		p := info.ProfileOf(e)
		if p == nil {
			return
		}
		s := m[p]
		if e.GetTableEntry().GetAction().GetActionProfileActionSet() != nil {
			s.sets = true
		} else {
			s.members = true
		}
		m[p] = s
	}
	for _, c := range d.Changes {
		switch {
		case c.Type == p4v1.Update_DELETE:
			note(was, c.Entity)
		case c.Old != nil:
			note(was, c.Old)
			note(is, c.Entity)
		default:
			note(is, c.Entity)
		}
	}
	anew := map[*p4info.Profile]bool{}
	for p, s := range is {
		anew[p] = s.sets && was[p].members || s.members && was[p].sets
	}
	var split []Change
	for i := range d.Changes {
		c := &d.Changes[i]
		if c.Type == p4v1.Update_MODIFY && c.Old != nil && anew[info.ProfileOf(c.Entity)] {
			split = append(split, Change{Type: p4v1.Update_DELETE, Entity: c.Old})
			c.Type, c.Old = p4v1.Update_INSERT, nil
		}
	}
	d.Changes = append(d.Changes, split...)
	return anew
}

// Batch is a part of a plan. The order of changes in a batch does not matter.
type Batch struct {
	Changes []Change
}

// Updates returns the updates of the batch.
func (b Batch) Updates() []*p4v1.Update {
	out := make([]*p4v1.Update, len(b.Changes))
	for i, c := range b.Changes {
		out[i] = &p4v1.Update{Type: c.Type, Entity: c.Entity}
	}
	return out
}

// Plan cuts the changes into batches within the limits.
func (d *Diff) Plan(l Limits) []Batch {
	var plan []Batch
	for from := 0; from < len(d.Changes); {
		to := from + 1
		first := d.Changes[from]
		for to < len(d.Changes) && d.rank(d.Changes[to].Entity) == d.rank(first.Entity) &&
			(d.Changes[to].Type == p4v1.Update_DELETE) == (first.Type == p4v1.Update_DELETE) {
			to++
		}
		run := Batch{d.Changes[from:to]}
		at := from
		for _, part := range l.split(run.Updates()) {
			plan = append(plan, Batch{d.Changes[at : at+len(part)]})
			at += len(part)
		}
		from = to
	}
	return plan
}

// Text returns a change for people: a sign (+, -, ~) and the entity; for a modification the old entity, too.
func (c Change) Text(info *p4info.Info) string {
	text := info.Text(c.Entity)
	switch c.Type {
	case p4v1.Update_INSERT:
		return "+ " + text
	case p4v1.Update_DELETE:
		return "- " + text
	}
	if t := c.Entity.GetTableEntry(); t != nil && t.IsDefaultAction && t.Action == nil {
		text += " -> " + programs(info, t)
	}
	if c.Old == nil {
		return "~ " + text
	}
	return "~ " + text + " (was: " + tail(info.Text(c.Old)) + ")"
}

// programs returns the text of the default action that the program itself gives a table.
func programs(info *p4info.Info, t *p4v1.TableEntry) string {
	if a := info.Table(t.TableId).InitialDefault(); a != nil {
		e := &p4v1.TableEntry{TableId: t.TableId, IsDefaultAction: true, Action: &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}}}
		return tail(info.Text(p4info.EntryOf(e))) + ", the program's"
	}
	return "the program's"
}

// tail returns the part of an entity's text that follows its key.
func tail(text string) string {
	for _, sep := range []string{" -> ", " = "} {
		if _, t, ok := strings.Cut(text, sep); ok {
			return t
		}
	}
	return text
}

// Summary returns the numbers of changes as text.
func (d *Diff) Summary() string {
	n := map[p4v1.Update_Type]int{}
	for _, c := range d.Changes {
		n[c.Type]++
	}
	if len(d.Changes) == 0 {
		return fmt.Sprintf("nothing to do, %d as they shall be", d.Same)
	}
	return fmt.Sprintf("%d to insert, %d to modify, %d to delete, %d as they shall be",
		n[p4v1.Update_INSERT], n[p4v1.Update_MODIFY], n[p4v1.Update_DELETE], d.Same)
}
