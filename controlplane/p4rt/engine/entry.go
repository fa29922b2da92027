package engine

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
)

// maxWeight is the highest weight of a group's member.
const maxWeight = 0xffff

// prepareEntry decodes an update of a table entry.
func (p *pipeline) prepareEntry(op p4v1.Update_Type, e *p4v1.TableEntry, undo bool) op {
	t := p.binding.tables[e.GetTableId()]
	if t.gone {
		return refused(t.takenOut())
	}
	if e.GetIsDefaultAction() {
		return p.prepareDefault(t, e)
	}
	key, prio := t.key(e)
	if op == p4v1.Update_DELETE {
		return func(sw *p4.Switch) (func(), error) {
			h, err := sw.Find(t.name, key, prio)
			if err != nil {
				return nil, err
			}
			return p.deleteEntry(sw, t, h, undo)
		}
	}
	x := p4.Entry{Key: key, Priority: prio, Timeout: clock.Duration(e.GetIdleTimeoutNs())}
	var set *p4v1.ActionProfileActionSet
	switch a := e.GetAction().GetType().(type) {
	case *p4v1.TableAction_Action:
		x.Action = t.action(a.Action)
	case *p4v1.TableAction_ActionProfileMemberId:
		if a.ActionProfileMemberId >= firstHidden {
			return refused(refuse(codes.NotFound, "there is no member %d", a.ActionProfileMemberId))
		}
		x.Member = a.ActionProfileMemberId
	case *p4v1.TableAction_ActionProfileGroupId:
		if a.ActionProfileGroupId >= firstHidden {
			return refused(refuse(codes.NotFound, "there is no group %d", a.ActionProfileGroupId))
		}
		x.Group = a.ActionProfileGroupId
	case *p4v1.TableAction_ActionProfileActionSet:
		set = a.ActionProfileActionSet
		for _, y := range set.GetActionProfileActions() {
			if y.GetWeight() > maxWeight {
				return refused(refuse(codes.InvalidArgument, "table %s: weight %d: the highest is %d", t.name, y.GetWeight(), maxWeight))
			}
		}
	}
	m := more{cookie: e.GetControllerMetadata(), metadata: e.GetMetadata()} //nolint:staticcheck // clients use it
	if op == p4v1.Update_INSERT {
		return func(sw *p4.Switch) (func(), error) {
			return p.insertEntry(sw, t, x, set, m, e)
		}
	}
	return func(sw *p4.Switch) (func(), error) {
		h, err := sw.Find(t.name, key, prio)
		if err != nil {
			return nil, err
		}
		return p.modifyEntry(sw, t, h, x, set, m, e, undo)
	}
}

func (p *pipeline) insertEntry(sw *p4.Switch, t *table, x p4.Entry, set *p4v1.ActionProfileActionSet, m more, e *p4v1.TableEntry) (func(), error) {
	if set != nil {
		// An entry that is there already is refused before members are made for it.
		if _, err := sw.Find(t.name, x.Key, x.Priority); err == nil {
			return nil, refuse(codes.AlreadyExists, "table %s: there is an entry with this key", t.name)
		}
		if err := p.makeSet(sw, t, set, &m); err != nil {
			return nil, err
		}
		x.Group = m.group
	}
	h, err := sw.Insert(t.name, x)
	if err != nil {
		if set != nil {
			p.dropSet(sw, t, &m)
		}
		return nil, err
	}
	if e.GetCounterData() != nil {
		_ = sw.SetEntryCount(t.name, h, count(e.GetCounterData()))
	}
	if !m.empty() {
		t.states[h] = &m
	}
	if c := e.GetMeterConfig(); c != nil {
		if err := sw.SetEntryMeter(t.name, h, rates(c)...); err != nil {
			_, _ = p.deleteEntry(sw, t, h, false)
			return nil, err
		}
	}
	return func() { _, _ = p.deleteEntry(sw, t, h, false) }, nil
}

// deleteEntry deletes an entry. With undo it returns a function that inserts the entry again.
func (p *pipeline) deleteEntry(sw *p4.Switch, t *table, h p4.Handle, undo bool) (func(), error) {
	var again *p4v1.TableEntry
	if undo {
		old, err := sw.Get(t.name, h)
		if err != nil {
			return nil, err
		}
		again = p.whole(sw, t, h, old)
	}
	if err := sw.Delete(t.name, h); err != nil {
		return nil, err
	}
	if m := t.states[h]; m != nil {
		delete(t.states, h)
		if m.set != nil {
			p.dropSet(sw, t, m)
		}
	}
	if !undo {
		return nil, nil
	}
	return func() { _, _ = p.prepareEntry(p4v1.Update_INSERT, again, false)(sw) }, nil
}

func (p *pipeline) modifyEntry(sw *p4.Switch, t *table, h p4.Handle, x p4.Entry, set *p4v1.ActionProfileActionSet, m more, e *p4v1.TableEntry, undo bool) (func(), error) {
	var old p4.Entry
	var before *p4v1.TableEntry
	if undo || e.GetAction() == nil {
		var err error
		if old, err = sw.Get(t.name, h); err != nil {
			return nil, err
		}
	}
	if undo {
		before = p.whole(sw, t, h, old)
	}
	was := t.states[h]
	if !t.info.Const {
		if e.GetAction() == nil { // the action stays
			x.Action, x.Member, x.Group = old.Action, old.Member, old.Group
			if was != nil {
				m.set, m.group, m.members = was.set, was.group, was.members
			}
		} else if set != nil {
			if err := p.makeSet(sw, t, set, &m); err != nil {
				return nil, err
			}
			x.Group = m.group
		}
		if err := sw.Modify(t.name, h, x); err != nil {
			if set != nil {
				p.dropSet(sw, t, &m)
			}
			return nil, err
		}
		if was != nil && was.set != nil && e.GetAction() != nil {
			p.dropSet(sw, t, was)
		}
		if m.empty() {
			delete(t.states, h)
		} else {
			t.states[h] = &m
		}
	}
	if e.GetCounterData() != nil {
		_ = sw.SetEntryCount(t.name, h, count(e.GetCounterData()))
	}
	if t.info.Meter != nil {
		if err := sw.SetEntryMeter(t.name, h, rates(e.GetMeterConfig())...); err != nil {
			return nil, err
		}
	}
	if !undo {
		return nil, nil
	}
	return func() {
		if t.info.Const {
			before.Action = nil
		}
		_, _ = p.prepareEntry(p4v1.Update_MODIFY, before, false)(sw)
	}, nil
}

func (p *pipeline) prepareDefault(t *table, e *p4v1.TableEntry) op {
	a := e.GetAction().GetAction()
	m := more{cookie: e.GetControllerMetadata(), metadata: e.GetMetadata()} //nolint:staticcheck // clients use it
	return func(sw *p4.Switch) (func(), error) {
		old, there, err := sw.Default(t.name)
		if err != nil {
			return nil, err
		}
		direct, err := t.writeDefault(sw, e)
		if err != nil {
			return nil, err
		}
		m := m
		if a == nil {
			m = more{}
			err = sw.ResetDefault(t.name)
		} else {
			err = sw.SetDefault(t.name, p4.Entry{Action: t.action(a)})
		}
		if err != nil {
			direct()
			return nil, err
		}
		was := t.states[p4.DefaultEntry]
		t.states[p4.DefaultEntry] = &m
		return func() {
			t.states[p4.DefaultEntry] = was
			direct()
			if there {
				_ = sw.SetDefault(t.name, old)
			} else {
				_ = sw.ResetDefault(t.name)
			}
		}, nil
	}
}

// writeDefault writes the direct counter and meter of the default entry, and returns a function that undoes it.
// As with other entries, the counter stays if e has no counter data, and the meter is reset if e has no meter
// configuration.
func (t *table) writeDefault(sw *p4.Switch, e *p4v1.TableEntry) (func(), error) {
	back := func() {}
	if t.info.Meter != nil {
		undo, err := t.setMeter(sw, p4.DefaultEntry, e.GetMeterConfig())
		if err != nil {
			return nil, err
		}
		back = undo
	}
	if e.GetCounterData() == nil {
		return back, nil
	}
	undo, err := t.setCount(sw, p4.DefaultEntry, e.GetCounterData())
	if err != nil {
		back()
		return nil, err
	}
	return func() { back(); undo() }, nil
}

// setCount sets the direct counter of an entry.
func (t *table) setCount(sw *p4.Switch, h p4.Handle, c *p4v1.CounterData) (undo func(), err error) {
	return swap(count(c), func() (p4.Count, error) { return sw.EntryCount(t.name, h) }, func(c p4.Count) error { return sw.SetEntryCount(t.name, h, c) })
}

// setMeter configures the direct meter of an entry.
func (t *table) setMeter(sw *p4.Switch, h p4.Handle, c *p4v1.MeterConfig) (undo func(), err error) {
	return swap(rates(c), func() ([]p4.Rate, error) { return sw.EntryMeter(t.name, h) }, func(r []p4.Rate) error { return sw.SetEntryMeter(t.name, h, r...) })
}

// entry returns an entry of nf/p4 as P4Runtime has it.
func (t *table) entry(h p4.Handle, x p4.Entry, m *more) *p4v1.TableEntry {
	e := &p4v1.TableEntry{TableId: t.info.ID, IsDefaultAction: h == p4.DefaultEntry, IdleTimeoutNs: int64(x.Timeout)}
	if !e.IsDefaultAction {
		t.match(e, x.Key, x.Priority)
	}
	switch {
	case m != nil && m.set != nil:
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileActionSet{ActionProfileActionSet: m.set}}
	case x.Member != 0:
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileMemberId{ActionProfileMemberId: x.Member}}
	case x.Group != 0:
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileGroupId{ActionProfileGroupId: x.Group}}
	default:
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: t.describe(x.Action)}}
	}
	if m != nil {
		e.ControllerMetadata, e.Metadata = m.cookie, m.metadata //nolint:staticcheck // clients use it
	}
	return e
}

// whole returns an entry with its direct counter and meter.
func (p *pipeline) whole(sw *p4.Switch, t *table, h p4.Handle, x p4.Entry) *p4v1.TableEntry {
	q := &p4v1.TableEntry{CounterData: &p4v1.CounterData{}, MeterConfig: &p4v1.MeterConfig{}}
	return t.message(q, p.readEntry(sw, t, q, h, x)).GetTableEntry()
}

// reading holds what the worker has read of an entry; message makes a message of it outside of the worker.
type reading struct {
	h     p4.Handle
	x     p4.Entry
	m     *more
	count p4.Count
	rates []p4.Rate
	idle  clock.Duration
}

// readEntry reads an entry, with the direct resources that a query asks for. The worker calls it.
func (p *pipeline) readEntry(sw *p4.Switch, t *table, q *p4v1.TableEntry, h p4.Handle, x p4.Entry) reading {
	s := reading{h: h, x: x, m: t.states[h]}
	if q.GetCounterData() != nil && t.info.Counter != nil {
		s.count, _ = sw.EntryCount(t.name, h)
	}
	if q.GetMeterConfig() != nil && t.info.Meter != nil {
		s.rates, _ = sw.EntryMeter(t.name, h)
	}
	if q.GetTimeSinceLastHit() != nil && t.info.IdleTimeout {
		s.idle, _ = sw.EntryIdle(t.name, h)
	}
	return s
}

func (t *table) message(q *p4v1.TableEntry, s reading) *p4v1.Entity {
	e := t.entry(s.h, s.x, s.m)
	if q.GetCounterData() != nil && t.info.Counter != nil {
		e.CounterData = counterData(s.count)
	}
	if q.GetMeterConfig() != nil {
		e.MeterConfig = meterConfig(s.rates)
	}
	if q.GetTimeSinceLastHit() != nil && t.info.IdleTimeout {
		e.TimeSinceLastHit = &p4v1.TableEntry_IdleTimeout{ElapsedNs: int64(s.idle)}
	}
	return p4info.EntryOf(e)
}

// readEntries yields the entries of a table.
func (p *pipeline) readEntries(q *p4v1.TableEntry, yield func(*p4v1.Entity) error) error {
	t := p.binding.tables[q.GetTableId()]
	if t.gone {
		return nil
	}
	if q.GetIsDefaultAction() {
		return p.readDefault(t, q, yield)
	}
	if len(q.GetMatch()) > 0 && (!t.info.Priority || q.GetPriority() != 0) {
		key, prio := t.key(q)
		var s reading
		var found bool
		err := p.visit(func(sw *p4.Switch) bool {
			if h, err := sw.Find(t.name, key, prio); err == nil {
				if x, err := sw.Get(t.name, h); err == nil {
					s, found = p.readEntry(sw, t, q, h, x), true
				}
			}
			return false
		})
		if err != nil || !found {
			return err
		}
		return yield(t.message(q, s))
	}
	var list []reading
	from, more := p4.Handle(0), true
	for more {
		list = list[:0]
		var failed error
		err := p.visit(func(sw *p4.Switch) bool {
			n := 0
			from, more, failed = sw.EntriesFrom(t.name, from, func(h p4.Handle, x p4.Entry) bool {
				list = append(list, p.readEntry(sw, t, q, h, x))
				n++
				return n < 8
			})
			return failed == nil && more && len(list) < 1024
		})
		if err == nil {
			err = failed
		}
		if err != nil {
			return codeOf(err)
		}
		for _, s := range list {
			if err := yield(t.message(q, s)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pipeline) readDefault(t *table, q *p4v1.TableEntry, yield func(*p4v1.Entity) error) error {
	var s reading
	err := p.visit(func(sw *p4.Switch) bool {
		x, _, _ := sw.Default(t.name)
		s = p.readEntry(sw, t, q, p4.DefaultEntry, x)
		return false
	})
	if err != nil {
		return err
	}
	e := t.message(q, s)
	if x := e.GetTableEntry(); t.ids[s.x.Action.Name] == 0 { // there is none, or the P4Info does not have it
		x.Action = nil
	}
	return yield(e)
}
