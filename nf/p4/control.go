package p4

import (
	"fmt"
	"math"
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// named finds an object by name.
func named[T any](list []T, what, name string, of func(T) string) (int, error) {
	if i := slices.IndexFunc(list, func(x T) bool { return of(x) == name }); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("%s %s: %w", what, name, ErrNotFound)
}

// entries are the tables with their entries, default entries, direct counters and direct meters. Who controls the switch
// changes them; applyTable looks up rows and counts.
type entries struct {
	*common
	*actionProfiles
	tables []*table
}

func (s *entries) table(name string) (*table, error) {
	i, err := named(s.tables, "table", name, func(t *table) string { return t.def.Name })
	if err != nil {
		return nil, err
	}
	return s.tables[i], nil
}

// entry finds a live entry.
func (s *entries) entry(name string, h Handle) (*table, uint32, error) {
	t, err := s.table(name)
	if err != nil {
		return nil, 0, err
	}
	if int(h) >= len(t.rows) || !t.rows[h].live {
		return nil, 0, fmt.Errorf("table %s: entry %d: %w", name, h, ErrNotFound)
	}
	return t, uint32(h), nil
}

// target resolves what an entry, or a default entry, does: it writes the
// action's data, and returns the action or the places of a member or group.
func (s *entries) target(d *tableDef, e *Entry, data []uint64) (act *action, memberAt, groupAt uint32, err error) {
	if d.profile < 0 {
		if e.Member != 0 || e.Group != 0 {
			return nil, 0, 0, invalid("table %s has no action profile", d.Name)
		}
		act, err = d.action(e.Action, data)
		return act, 0, 0, err
	}
	p := s.profiles[d.profile]
	switch {
	case e.Action.Name != "" || (e.Member == 0) == (e.Group == 0):
		return nil, 0, 0, invalid("table %s takes a member or a group of %s", d.Name, d.Profile)
	case e.Group != 0 && !d.Selector:
		return nil, 0, 0, invalid("table %s takes no groups: %s is no selector", d.Name, d.Profile)
	case e.Member != 0:
		m := p.members[e.Member]
		if m == nil {
			return nil, 0, 0, fmt.Errorf("member %d of %s: %w", e.Member, d.Profile, ErrNotFound)
		}
		return nil, m.at, 0, nil
	}
	g := p.groups[e.Group]
	if g == nil {
		return nil, 0, 0, fmt.Errorf("group %d of %s: %w", e.Group, d.Profile, ErrNotFound)
	}
	return nil, 0, g.at, nil
}

// hold counts the use of a member or group, by n.
func (s *entries) hold(d *tableDef, memberAt, groupAt uint32, n int) {
	if memberAt != 0 {
		s.profiles[d.profile].memberAt.list[memberAt-1].uses += n
	}
	if groupAt != 0 {
		s.profiles[d.profile].groupAt.list[groupAt-1].uses += n
	}
}

// Insert adds an entry to a table.
func (s *entries) Insert(name string, e Entry) (Handle, error) {
	t, err := s.table(name)
	if err != nil {
		return 0, err
	}
	d := t.def
	switch {
	case d.Const:
		return 0, fmt.Errorf("table %s: its entries are the program's and %w", name, ErrConst)
	case len(d.keys) == 0:
		return 0, invalid("table %s has no key", name)
	}
	if err := d.checkTimeout(e.Timeout); err != nil {
		return 0, err
	}
	p, err := parseKey(d, e.Key, e.Priority)
	if err != nil {
		return 0, err
	}
	if t.same(p) != none {
		return 0, fmt.Errorf("table %s: an entry with this key %w", name, ErrExists)
	}
	if t.n >= d.Size {
		return 0, fmt.Errorf("table %s with %d entries is %w", name, t.n, ErrFull)
	}
	data := make([]uint64, d.dw)
	act, m, g, err := s.target(d, &e, data)
	if err != nil {
		return 0, err
	}
	r := row{act: -1, member: m, group: g}
	if act != nil {
		r.act = int32(act.index)
	}
	s.hold(d, m, g, 1)
	h := t.add(p, e.Priority, r, data)
	if d.Timeout {
		t.uses[h] = use{hit: s.now, timeout: e.Timeout}
	}
	return Handle(h), nil
}

func (d *tableDef) checkTimeout(t clock.Duration) error {
	switch {
	case t != 0 && !d.Timeout:
		return invalid("table %s: its entries have no timeout", d.Name)
	case t < 0:
		return invalid("table %s: timeout %v", d.Name, t)
	}
	return nil
}

// add fills a new row.
func (t *table) add(p parsedKey, priority int32, r row, data []uint64) uint32 {
	e := t.alloc()
	r.order, r.prio, r.prefix, r.live = p.order, priority, int16(min(p.prefix, math.MaxInt16)), true
	t.rows[e] = r
	copy(t.key(e), p.key)
	copy(t.entryData(e), data)
	if t.tupled() {
		copy(t.mask(e), p.mask)
	}
	t.m.insert(t, e)
	t.n++
	return e
}

// preset adds an entry of the program.
func (t *table) preset(e presetEntry) error {
	if t.same(e.parsedKey) != none {
		return fmt.Errorf("table %s: two entries of the program have the same key", t.def.Name)
	}
	t.add(e.parsedKey, e.priority, row{act: int32(e.act.index)}, e.data)
	return nil
}

// Modify gives an entry another action, member or group, and timeout. The key
// of e does not matter.
func (s *entries) Modify(name string, h Handle, e Entry) error {
	t, i, err := s.entry(name, h)
	if err != nil {
		return err
	}
	d := t.def
	if d.Const {
		return fmt.Errorf("table %s: its entries are the program's and %w", name, ErrConst)
	}
	if err := d.checkTimeout(e.Timeout); err != nil {
		return err
	}
	data := make([]uint64, d.dw)
	act, m, g, err := s.target(d, &e, data)
	if err != nil {
		return err
	}
	r := &t.rows[i]
	s.hold(d, m, g, 1)
	s.hold(d, r.member, r.group, -1)
	r.act, r.member, r.group = -1, m, g
	if act != nil {
		r.act = int32(act.index)
	}
	copy(t.entryData(i), data)
	if d.Timeout {
		t.uses[i] = use{hit: s.now, timeout: e.Timeout}
	}
	return nil
}

// Delete removes an entry.
func (s *entries) Delete(name string, h Handle) error {
	t, i, err := s.entry(name, h)
	if err != nil {
		return err
	}
	if t.def.Const {
		return fmt.Errorf("table %s: its entries are the program's and %w", name, ErrConst)
	}
	t.m.remove(t, i)
	r := &t.rows[i]
	s.hold(t.def, r.member, r.group, -1)
	*r = row{}
	if t.def.Counters {
		t.count[i] = Count{}
	}
	if t.def.Meters {
		t.meter[i] = meter{}
	}
	t.free = append(t.free, i)
	t.n--
	return nil
}

// Find is the entry with this key and priority.
func (s *entries) Find(name string, key []Match, priority int32) (Handle, error) {
	t, err := s.table(name)
	if err != nil {
		return 0, err
	}
	p, err := parseKey(t.def, key, priority)
	if err != nil {
		return 0, err
	}
	e := t.same(p)
	if e == none {
		return 0, fmt.Errorf("table %s: an entry with this key: %w", name, ErrNotFound)
	}
	return Handle(e), nil
}

// Len is the number of entries of a table.
func (s *entries) Len(name string) (int, error) {
	t, err := s.table(name)
	if err != nil {
		return 0, err
	}
	return t.n, nil
}

// Get is an entry as it was inserted, with values in as many bytes as their
// fields need.
func (s *entries) Get(name string, h Handle) (Entry, error) {
	t, i, err := s.entry(name, h)
	if err != nil {
		return Entry{}, err
	}
	return s.describe(t, i), nil
}

func (s *entries) describe(t *table, i uint32) Entry {
	r := &t.rows[i]
	e := Entry{Priority: r.prio}
	for _, kd := range t.def.keys {
		m := Match{Value: bigEndian(t.key(i)[kd.at:], kd.bits)}
		switch kd.kind {
		case LPM:
			m.Prefix = int(r.prefix)
		case Ternary, Range:
			m.Mask = bigEndian(t.mask(i)[kd.at:], kd.bits)
		}
		e.Key = append(e.Key, m)
	}
	switch {
	case r.act >= 0:
		e.Action = describeAction(s.prog.actions[r.act], t.entryData(i))
	case r.member != 0:
		e.Member = s.profiles[t.def.profile].memberAt.list[r.member-1].id
	default:
		e.Group = s.profiles[t.def.profile].groupAt.list[r.group-1].id
	}
	if t.def.Timeout {
		e.Timeout = t.uses[i].timeout
	}
	return e
}

func describeAction(a *action, data []uint64) Action {
	x := Action{Name: a.Name}
	for _, p := range a.params {
		x.Args = append(x.Args, bigEndian(data[p.at:], p.bits))
	}
	return x
}

// Entries calls yield for every entry of a table, until it returns false.
// The table must not change meanwhile.
func (s *entries) Entries(name string, yield func(Handle, Entry) bool) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	for i := range t.rows {
		if t.rows[i].live && !yield(Handle(i), s.describe(t, uint32(i))) {
			break
		}
	}
	return nil
}

// EntriesFrom is Entries from an entry on, or from the next one if the entry was deleted: a
// walk may pause, and go on behind its last entry after the table has
// changed. It returns where to go on, and whether there may be more entries.
func (s *entries) EntriesFrom(name string, from Handle, yield func(Handle, Entry) bool) (next Handle, more bool, err error) {
	t, err := s.table(name)
	if err != nil {
		return 0, false, err
	}
	for i := int(from); i < len(t.rows); i++ {
		if t.rows[i].live && !yield(Handle(i), s.describe(t, uint32(i))) {
			return Handle(i + 1), i+1 < len(t.rows), nil
		}
	}
	return Handle(len(t.rows)), false, nil
}

// SetDefault sets what a table does for a packet that no entry matches. Key and
// priority of e do not matter.
func (s *entries) SetDefault(name string, e Entry) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	d := t.def
	if d.ConstDefault {
		return fmt.Errorf("table %s: its default entry is the program's and %w", name, ErrConst)
	}
	data := make([]uint64, d.dw)
	act, m, g, err := s.target(d, &e, data)
	if err != nil {
		return err
	}
	if d.constAction != nil && act != d.constAction {
		return fmt.Errorf("table %s: its default action %s %w", name, d.constAction.Name, ErrConst)
	}
	s.hold(d, m, g, 1)
	s.hold(d, t.member, t.group, -1)
	t.act, t.actData, t.member, t.group = act, data, m, g
	return nil
}

// ResetDefault gives a table the default entry of the program again.
func (s *entries) ResetDefault(name string) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	s.hold(t.def, t.member, t.group, -1)
	t.act, t.actData, t.member, t.group = t.def.initial, t.def.initData, 0, 0
	return nil
}

// Default is the default entry of a table; false: there is none.
func (s *entries) Default(name string) (Entry, bool, error) {
	t, err := s.table(name)
	if err != nil {
		return Entry{}, false, err
	}
	switch {
	case t.act != nil:
		return Entry{Action: describeAction(t.act, t.actData)}, true, nil
	case t.member != 0:
		return Entry{Member: s.profiles[t.def.profile].memberAt.list[t.member-1].id}, true, nil
	case t.group != 0:
		return Entry{Group: s.profiles[t.def.profile].groupAt.list[t.group-1].id}, true, nil
	}
	return Entry{}, false, nil
}

// EntryCount is what the direct counter of an entry counted.
func (s *entries) EntryCount(name string, h Handle) (Count, error) {
	t, i, err := s.entry(name, h)
	if err != nil {
		return Count{}, err
	}
	if !t.def.Counters {
		return Count{}, invalid("table %s has no direct counter", name)
	}
	return t.count[i], nil
}

// SetEntryCount sets the direct counter of an entry.
func (s *entries) SetEntryCount(name string, h Handle, c Count) error {
	t, i, err := s.entry(name, h)
	if err != nil {
		return err
	}
	if !t.def.Counters {
		return invalid("table %s has no direct counter", name)
	}
	t.count[i] = c
	return nil
}

// EntryMeter is the configuration of an entry's direct meter; none: all green.
func (s *entries) EntryMeter(name string, h Handle) ([]Rate, error) {
	t, i, err := s.entry(name, h)
	if err != nil {
		return nil, err
	}
	if !t.def.Meters {
		return nil, invalid("table %s has no direct meter", name)
	}
	return t.meter[i].config(), nil
}

// SetEntryMeter configures an entry's direct meter: the committed rate and the
// peak rate; none resets it.
func (s *entries) SetEntryMeter(name string, h Handle, rates ...Rate) error {
	t, i, err := s.entry(name, h)
	if err != nil {
		return err
	}
	if !t.def.Meters {
		return invalid("table %s has no direct meter", name)
	}
	if err := checkRates(s.prog.meters[t.def.meter], rates); err != nil {
		return err
	}
	t.meter[i].configure(s.now, rates)
	return nil
}

// DefaultCount is what the direct counter of a table's default entry counted: misses.
// bmv2 counts none.
func (s *entries) DefaultCount(name string) (Count, error) {
	t, err := s.table(name)
	if err == nil && !t.def.Counters {
		err = invalid("table %s has no direct counter", name)
	}
	if err != nil {
		return Count{}, err
	}
	return t.defCount, nil
}

// SetDefaultCount sets that counter.
func (s *entries) SetDefaultCount(name string, c Count) error {
	if _, err := s.DefaultCount(name); err != nil {
		return err
	}
	t, err := s.table(name)
	if err == nil {
		t.defCount = c
	}
	return err
}

// DefaultMeter is the configuration of the direct meter of a table's default entry;
// none: what a miss finds in the meter's result stays there, as in bmv2.
func (s *entries) DefaultMeter(name string) ([]Rate, error) {
	t, err := s.table(name)
	if err == nil && !t.def.Meters {
		err = invalid("table %s has no direct meter", name)
	}
	if err != nil {
		return nil, err
	}
	return t.defMeter.config(), nil
}

// SetDefaultMeter configures that meter, as SetEntryMeter does an entry's.
func (s *entries) SetDefaultMeter(name string, rates ...Rate) error {
	if _, err := s.DefaultMeter(name); err != nil {
		return err
	}
	t, err := s.table(name)
	if err != nil {
		return err
	}
	if err := checkRates(s.prog.meters[t.def.meter], rates); err != nil {
		return err
	}
	t.defMeter.configure(s.now, rates)
	return nil
}

func checkRates(d *meterDef, rates []Rate) error {
	if len(rates) != 0 && len(rates) != d.rates {
		return invalid("meter %s has %d rates, not %d", d.Name, d.rates, len(rates))
	}
	for i := 1; i < len(rates); i++ {
		if rates[i-1].PerSecond > rates[i].PerSecond {
			return invalid("meter %s: rate %d is below the one before", d.Name, rates[i].PerSecond)
		}
	}
	return nil
}

// EntryIdle is how long an entry has not been hit, at the time of the last
// packet.
func (s *entries) EntryIdle(name string, h Handle) (clock.Duration, error) {
	t, i, err := s.entry(name, h)
	if err != nil {
		return 0, err
	}
	if !t.def.Timeout {
		return 0, invalid("table %s: its entries have no timeout", name)
	}
	return s.now.Sub(t.uses[i].hit), nil
}

// ExpiredFrom looks at n entries of a table, from one on, calls yield for those that were not hit for
// their timeout, and starts their timeout again. It returns where to go on; false: these were
// the last.
func (s *entries) ExpiredFrom(name string, from Handle, n int, yield func(Handle, Entry)) (next Handle, more bool, err error) {
	t, err := s.table(name)
	if err != nil {
		return 0, false, err
	}
	end := min(int(from)+n, len(t.uses))
	for i := int(from); i < end; i++ {
		if u := &t.uses[i]; t.rows[i].live && u.timeout > 0 && s.now.Sub(u.hit) >= u.timeout {
			yield(Handle(i), s.describe(t, uint32(i)))
			u.hit = s.now
		}
	}
	return Handle(end), end < len(t.uses), nil
}
