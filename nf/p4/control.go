package p4

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// named returns the index of the object with a name.
func named[T any](list []T, what, name string, of func(T) string) (int, error) {
	if i := slices.IndexFunc(list, func(x T) bool { return of(x) == name }); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("%s %s: %w", what, name, ErrNotFound)
}

// entries holds the tables with their entries, default entries, direct counters and direct meters. The
// controller of the switch changes them through its methods; applyTable looks up rows and counts in them.
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

// entry returns the table and the row of an entry, or an error if there is no such entry.
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

// target finds out what an entry, or a default entry, does. It writes the action's arguments to data, and
// returns the action, or the place of the member or group.
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

// hold adds n to the number of uses of a member or group.
func (s *entries) hold(d *tableDef, memberAt, groupAt uint32, n int) {
	if memberAt != 0 {
		s.profiles[d.profile].memberAt.list[memberAt-1].uses += n
	}
	if groupAt != 0 {
		s.profiles[d.profile].groupAt.list[groupAt-1].uses += n
	}
}

// Fix sets what the JSON does not say about a table: whether controllers may change its entries (fixed is true
// for "const entries", also if there are none, and false for "entries"), and how many entries it holds, because
// the JSON counts only the program's entries for such tables. A size below that number has no effect.
func (s *entries) Fix(name string, fixed bool, size int) error {
	t, err := s.table(name)
	if err == nil {
		t.fixed, t.size = fixed, max(size, t.def.Size)
	}
	return err
}

// Insert adds an entry to a table, and returns its handle.
func (s *entries) Insert(name string, e Entry) (Handle, error) {
	t, err := s.table(name)
	if err != nil {
		return 0, err
	}
	d := t.def
	switch {
	case t.fixed:
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
	if t.n >= t.size {
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
	s.tellRow(t, h)
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

// add stores an entry in a free row.
func (t *table) add(p parsedKey, priority int32, r row, data []uint64) uint32 {
	e := t.alloc()
	r.prio, r.prefix, r.live = priority, int16(min(p.prefix, math.MaxInt16)), true
	t.rows[e] = r
	copy(t.entryData(e), data)
	if t.set != nil {
		t.set.Insert(e, p.key, p.mask, p.order)
	} else {
		copy(t.key(e), p.key)
		t.m.insert(t, e)
	}
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

// Modify gives an entry another action, member or group, and another timeout. It ignores the key of e.
func (s *entries) Modify(name string, h Handle, e Entry) error {
	t, i, err := s.entry(name, h)
	if err != nil {
		return err
	}
	d := t.def
	if t.fixed {
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
	s.tellRow(t, i)
	return nil
}

// Delete removes an entry.
func (s *entries) Delete(name string, h Handle) error {
	t, i, err := s.entry(name, h)
	if err != nil {
		return err
	}
	if t.fixed {
		return fmt.Errorf("table %s: its entries are the program's and %w", name, ErrConst)
	}
	s.tellGone(t, i)
	t.m.remove(t, i)
	r := &t.rows[i]
	s.hold(t.def, r.member, r.group, -1)
	*r = row{}
	if t.def.Counters {
		t.count[i] = Count{}
		s.freshEntry(t, int(i))
	}
	if t.def.Meters {
		s.configure(s.prog.meters[t.def.meter].at(t.meter, int(i)), nil)
	}
	t.free = append(t.free, i)
	t.n--
	return nil
}

// Find returns the entry with a key and a priority.
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

// Len returns the number of entries of a table.
func (s *entries) Len(name string) (int, error) {
	t, err := s.table(name)
	if err != nil {
		return 0, err
	}
	return t.n, nil
}

// Get returns an entry as it was inserted, each value in as many bytes as its field needs.
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
			m.Mask = bigEndian(t.set.Mask(i)[kd.at:], kd.bits)
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

// Entries calls yield for every entry of a table until yield returns false. The table must not be changed
// meanwhile.
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

// EntriesFrom is like Entries, and begins with entry from, or with the next one if that was deleted. A walk may
// therefore pause, and continue after the table was changed. EntriesFrom returns the handle with which to
// continue, and whether there may be more entries.
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

// SetDefault sets the default entry of a table, which is used for packets that match no entry. It ignores key
// and priority of e.
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
	s.tellDefault(t)
	return nil
}

// ResetDefault restores the default entry that the program gives a table.
func (s *entries) ResetDefault(name string) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	s.hold(t.def, t.member, t.group, -1)
	t.act, t.actData, t.member, t.group = t.def.initial, t.def.initData, 0, 0
	s.tellDefault(t)
	return nil
}

// Default returns the default entry of a table, and whether it has one.
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

// row returns the table and the row of an entry; the row of the default entry is defaultRow.
func (s *entries) row(name string, h Handle) (*table, int, error) {
	if h == DefaultEntry {
		t, err := s.table(name)
		return t, defaultRow, err
	}
	t, i, err := s.entry(name, h)
	return t, int(i), err
}

// counter returns the direct counter of an entry.
func (s *entries) counter(name string, h Handle) (*table, int, *Count, error) {
	t, i, err := s.row(name, h)
	switch {
	case err != nil:
		return nil, 0, nil, err
	case !t.def.Counters:
		return nil, 0, nil, invalid("table %s has no direct counter", name)
	case i == defaultRow:
		return t, i, &t.defCount, nil
	}
	return t, i, &t.count[i], nil
}

// EntryCount returns the direct counter of an entry. The counter of DefaultEntry counts misses; bmv2 counts
// none.
func (s *entries) EntryCount(name string, h Handle) (Count, error) {
	t, i, c, err := s.counter(name, h)
	if err != nil {
		return Count{}, err
	}
	return s.both(t, i, *c), nil
}

// SetEntryCount sets the direct counter of an entry, or of DefaultEntry.
func (s *entries) SetEntryCount(name string, h Handle, to Count) error {
	t, i, c, err := s.counter(name, h)
	if err == nil {
		*c = to
		s.freshEntry(t, i)
	}
	return err
}

// entryMeter returns the direct meter of an entry.
func (s *entries) entryMeter(name string, h Handle) (*table, ir.Meter, error) {
	t, i, err := s.row(name, h)
	switch {
	case err != nil:
		return nil, nil, err
	case !t.def.Meters:
		return nil, nil, invalid("table %s has no direct meter", name)
	case i == defaultRow:
		return t, t.defMeter, nil
	}
	return t, s.prog.meters[t.def.meter].at(t.meter, i), nil
}

// EntryMeter returns the configuration of an entry's direct meter. Without rates all packets are green; with
// DefaultEntry they leave the meter's result field unchanged, as in bmv2.
func (s *entries) EntryMeter(name string, h Handle) ([]Rate, error) {
	_, m, err := s.entryMeter(name, h)
	if err != nil {
		return nil, err
	}
	return configured(m), nil
}

// SetEntryMeter configures the direct meter of an entry, or of DefaultEntry: first the committed rate, then the
// peak rate. Without rates it resets the meter.
func (s *entries) SetEntryMeter(name string, h Handle, rates ...Rate) error {
	t, m, err := s.entryMeter(name, h)
	if err == nil {
		err = checkRates(s.prog.meters[t.def.meter], rates)
	}
	if err == nil {
		s.configure(m, rates)
	}
	return err
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

// EntryIdle returns how long an entry has not been hit, at the time of the last packet.
func (s *entries) EntryIdle(name string, h Handle) (clock.Duration, error) {
	t, i, err := s.entry(name, h)
	if err != nil {
		return 0, err
	}
	if !t.def.Timeout {
		return 0, invalid("table %s: its entries have no timeout", name)
	}
	s.tellHit(t, i)
	return s.now.Sub(t.uses[i].hit), nil
}

// ExpiredFrom looks at n entries of a table, beginning with entry from. It calls yield for those that were neither
// hit nor reported during their timeout. It returns the entry with which to continue; more
// is false if there are no more entries.
func (s *entries) ExpiredFrom(name string, from Handle, n int, yield func(Handle, Entry)) (next Handle, more bool, err error) {
	t, err := s.table(name)
	if err != nil {
		return 0, false, err
	}
	end := min(int(from)+n, len(t.uses))
	for i := int(from); i < end; i++ {
		s.tellHit(t, uint32(i))
		if u := &t.uses[i]; t.rows[i].live && u.timeout > 0 && s.now.Sub(max(u.hit, u.told)) >= u.timeout {
			yield(Handle(i), s.describe(t, uint32(i)))
			u.told = s.now
		}
	}
	return Handle(end), end < len(t.uses), nil
}

// arrays holds the indirect counters, the meters and the registers, by their index in the program, and the
// members of value sets. The controller of the switch reads and sets them; primitives and parser states use the
// cells and members.
type arrays struct {
	*common
	registers [][]uint64 // by group
	counters  [][]Count
	meters    [][]uint64
	vsets     []valueSet
}

// cell returns the index of an array, and checks that the array has the element.
func cell[T interface{ info() *ArrayInfo }](list []T, what, name string, index int) (int, error) {
	i, err := named(list, what, name, func(x T) string { return x.info().Name })
	if err != nil {
		return 0, err
	}
	if n := list[i].info().Size; index < 0 || index >= n {
		return 0, invalid("%s %s: index %d, it has %d", what, name, index, n)
	}
	return i, nil
}

func (a *arrayDef) info() *ArrayInfo    { return &a.ArrayInfo }
func (r *registerDef) info() *ArrayInfo { return &r.ArrayInfo }
func (m *meterDef) info() *ArrayInfo    { return &m.ArrayInfo }

// Count returns an element of an indirect counter.
func (s *arrays) Count(name string, index int) (Count, error) {
	i, err := cell(s.prog.counters, "counter", name, index)
	if err != nil {
		return Count{}, err
	}
	c := s.counters[i][index]
	if s.follow != nil {
		x := s.follow.Count(i, index)
		c.Packets, c.Bytes = c.Packets+x.Packets, c.Bytes+x.Bytes
	}
	return c, nil
}

// SetCount sets an element of an indirect counter.
func (s *arrays) SetCount(name string, index int, c Count) error {
	i, err := cell(s.prog.counters, "counter", name, index)
	if err != nil {
		return err
	}
	s.counters[i][index] = c
	if s.follow != nil {
		s.follow.ResetCount(i, index)
	}
	return nil
}

// Register returns the value of a register, big-endian.
func (s *arrays) Register(name string, index int) ([]byte, error) {
	i, err := cell(s.prog.registers, "register", name, index)
	if err != nil {
		return nil, err
	}
	d := s.prog.registers[i]
	if s.follow != nil {
		s.follow.Lock()
		defer s.follow.Unlock()
	}
	return bigEndian(d.at(s.registers, index), d.Bits), nil
}

// SetRegister sets a register to a value, big-endian.
func (s *arrays) SetRegister(name string, index int, value []byte) error {
	i, err := cell(s.prog.registers, "register", name, index)
	if err != nil {
		return err
	}
	d := s.prog.registers[i]
	v := make([]uint64, d.words)
	if !number(v, value, d.Bits) {
		return invalid("register %s: %x is wider than %d bits", name, value, d.Bits)
	}
	if s.follow != nil {
		s.follow.Lock()
		defer s.follow.Unlock()
	}
	copy(d.at(s.registers, index), v)
	return nil
}

// Meter returns the configuration of an indirect meter. Without rates all packets are green.
func (s *arrays) Meter(name string, index int) ([]Rate, error) {
	i, err := cell(s.prog.meters, "meter", name, index)
	if err != nil {
		return nil, err
	}
	if s.prog.meters[i].direct {
		return nil, invalid("meter %s is direct: it belongs to entries", name)
	}
	return configured(s.prog.meters[i].at(s.meters[i], index)), nil
}

// SetMeter configures an indirect meter: first the committed rate, then the peak rate. Without rates it resets
// the meter.
func (s *arrays) SetMeter(name string, index int, rates ...Rate) error {
	i, err := cell(s.prog.meters, "meter", name, index)
	if err != nil {
		return err
	}
	d := s.prog.meters[i]
	if d.direct {
		return invalid("meter %s is direct: it belongs to entries", name)
	}
	if err := checkRates(d, rates); err != nil {
		return err
	}
	s.configure(d.at(s.meters[i], index), rates)
	return nil
}

// ValueMember is a member of a value set: the values of the fields of a transition's key, one after the other
// without gaps, big-endian.
type ValueMember struct {
	Value []byte
	// Mask has the bits that are compared; nil: all bits except those of Ranges.
	Mask   []byte
	Ranges []ValueRange
}

// ValueRange says that a field of the key must be between Low and High, inclusive. Shift is the number of bits
// of the key after the field.
type ValueRange struct {
	Shift, Bits int
	Low, High   []byte
}

// SetValueSet sets the members of a parser's value set.
func (s *arrays) SetValueSet(name string, members []ValueMember) error {
	i, err := named(s.prog.vsets, "value set", name, func(d *valueSetDef) string { return d.name })
	if err != nil {
		return err
	}
	d := s.prog.vsets[i]
	all := make([]vsetMember, 0, len(members))
	for _, m := range members {
		x := vsetMember{value: make([]uint64, words(d.bits)), mask: make([]uint64, words(d.bits)), from: m}
		if !number(x.value, m.Value, d.bits) || !number(x.mask, m.Mask, d.bits) {
			return invalid("value set %s: %x or mask %x is wider than %d bits", name, m.Value, m.Mask, d.bits)
		}
		if m.Mask == nil {
			prefixMask(x.mask, d.bits, d.bits)
		}
		for _, r := range m.Ranges {
			w := words(d.bits)
			y := vsetRange{shift: uint64(r.Shift), bits: r.Bits, low: make([]uint64, w), high: make([]uint64, w)}
			if r.Bits < 1 || r.Shift < 0 || r.Shift+r.Bits > d.bits || !number(y.low, r.Low, r.Bits) || !number(y.high, r.High, r.Bits) {
				return invalid("value set %s: a range from %x to %x of %d bits in front of %d", name, r.Low, r.High, r.Bits, r.Shift)
			}
			field := make([]uint64, w)
			prefixMask(field, r.Bits, r.Bits)
			wShl(field, field, y.shift)
			for j := range field {
				x.mask[j] &^= field[j]
			}
			x.ranges = append(x.ranges, y)
		}
		for j := range x.value {
			x.value[j] &= x.mask[j]
		}
		all = append(all, x)
	}
	s.vsets[i].members = all
	s.tellValueSet(i, &s.vsets[i])
	return nil
}

// ValueSet returns the members of a parser's value set as they were set.
func (s *arrays) ValueSet(name string) ([]ValueMember, error) {
	i, err := named(s.prog.vsets, "value set", name, func(d *valueSetDef) string { return d.name })
	if err != nil {
		return nil, err
	}
	var all []ValueMember
	for _, m := range s.vsets[i].members {
		all = append(all, m.from)
	}
	return all, nil
}

// replication says where copies of a packet go. The controller of the switch sets it. The pipelines call
// session and replicas for each packet that is cloned or sent to a group.
type replication struct {
	*common
	*actionProfiles
	groups   [][]Replica // by number; none: no such group
	sessions []session   // by number
}

// SetMulticast sets the replicas of a multicast group. Without replicas it deletes the group.
func (s *replication) SetMulticast(group uint32, replicas []Replica) error {
	if group == 0 || group > 0xffff {
		return invalid("multicast group %d: groups are 1 to %d", group, 0xffff)
	}
	s.groups = put(s.groups, int(group), slices.Clone(replicas))
	s.tellMulticast(group)
	return nil
}

// Multicast returns the replicas of a multicast group.
func (s *replication) Multicast(group uint32) []Replica { return slices.Clone(s.replicas(group)) }

// SetSession sets a clone session (a mirroring session). Ids are 0 to 32767.
func (s *replication) SetSession(id uint32, ses Session) error {
	if id > 0x7fff {
		return invalid("clone session %d: the highest is %d", id, 0x7fff)
	}
	if ses.Length < 0 || ses.Priority < 0 || ses.Priority >= s.cfg.Queues {
		return invalid("clone session %d: a length of %d, a priority of %d: want priorities below %d", id, ses.Length, ses.Priority, s.cfg.Queues)
	}
	ses.Replicas = slices.Clone(ses.Replicas)
	s.sessions = put(s.sessions, int(id), session{ses, true})
	return nil
}

// Session returns a clone session, and whether it exists.
func (s *replication) Session(id uint32) (Session, bool) {
	ses, ok := s.session(id)
	ses.Replicas = slices.Clone(ses.Replicas)
	return ses, ok
}

// DeleteSession removes a clone session.
func (s *replication) DeleteSession(id uint32) error {
	if _, ok := s.session(id); !ok {
		return fmt.Errorf("clone session %d: %w", id, ErrNotFound)
	}
	s.sessions[id] = session{}
	return nil
}

// actionProfiles holds the action profiles with their members and groups, and the ports that are down, whose
// members groups avoid. The controller of the switch changes them; entries refer to members and groups in them.
type actionProfiles struct {
	*common
	profiles []*profile
	down     map[uint32]bool // ports
}

func (s *actionProfiles) profile(name string) (*profile, error) {
	i, err := named(s.profiles, "action profile", name, func(p *profile) string { return p.def.Name })
	if err != nil {
		return nil, err
	}
	return s.profiles[i], nil
}

// SetMember adds a member to an action profile, or gives it another action.
func (s *actionProfiles) SetMember(profile string, id uint32, a Action) error {
	p, err := s.profile(profile)
	if err != nil {
		return err
	}
	if id == 0 {
		return invalid("action profile %s: 0 is no member", profile)
	}
	data := make([]uint64, p.def.dw)
	act, err := findAction("action profile "+profile, p.def.actions, a, data)
	if err != nil {
		return err
	}
	m := p.members[id]
	if m == nil {
		if p.def.Size > 0 && len(p.members) >= p.def.Size {
			return fmt.Errorf("action profile %s with %d members is %w", profile, len(p.members), ErrFull)
		}
		m = &member{id: id}
		p.members[id] = m
		m.at = p.memberAt.put(m)
	}
	m.act, m.data = act, data
	s.tellMember(p, m)
	return nil
}

// Member returns the action of a member.
func (s *actionProfiles) Member(profile string, id uint32) (Action, error) {
	p, err := s.profile(profile)
	if err != nil {
		return Action{}, err
	}
	m := p.members[id]
	if m == nil {
		return Action{}, fmt.Errorf("member %d of %s: %w", id, profile, ErrNotFound)
	}
	return describeAction(m.act, m.data), nil
}

// Members returns the ids of a profile's members, ascending.
func (s *actionProfiles) Members(profile string) ([]uint32, error) {
	p, err := s.profile(profile)
	if err != nil {
		return nil, err
	}
	return sortedIDs(p.members), nil
}

func sortedIDs[V any](m map[uint32]V) []uint32 {
	return slices.Sorted(maps.Keys(m))
}

// DeleteMember removes a member. It returns ErrInUse if an entry or a group uses the member.
func (s *actionProfiles) DeleteMember(profile string, id uint32) error {
	p, err := s.profile(profile)
	if err != nil {
		return err
	}
	m := p.members[id]
	if m == nil {
		return fmt.Errorf("member %d of %s: %w", id, profile, ErrNotFound)
	}
	if m.uses > 0 {
		return fmt.Errorf("member %d of %s is %w", id, profile, ErrInUse)
	}
	delete(p.members, id)
	p.memberAt.drop(m.at)
	if s.follow != nil {
		s.follow.Member(p.def.index, m.at, -1, nil)
	}
	return nil
}

// SetGroup sets the members of a group of an action selector, and adds the group if it does not exist.
func (s *actionProfiles) SetGroup(profile string, id uint32, members []GroupMember) error {
	p, err := s.profile(profile)
	if err != nil {
		return err
	}
	if !p.def.Selector {
		return invalid("action profile %s is no selector", profile)
	}
	if id == 0 {
		return invalid("action profile %s: 0 is no group", profile)
	}
	seen := map[uint32]bool{}
	for _, gm := range members {
		switch {
		case p.members[gm.ID] == nil:
			return fmt.Errorf("member %d of %s: %w", gm.ID, profile, ErrNotFound)
		case seen[gm.ID]:
			return fmt.Errorf("group %d of %s: member %d %w in it", id, profile, gm.ID, ErrExists)
		case gm.Weight < 0 || gm.Weight > math.MaxUint16:
			return invalid("group %d of %s: weight %d", id, profile, gm.Weight)
		}
		seen[gm.ID] = true
	}
	g := p.groups[id]
	if g == nil {
		g = &group{id: id}
		p.groups[id] = g
		g.at = p.groupAt.put(g)
	}
	for _, gm := range g.members {
		p.members[gm.ID].uses--
	}
	g.members = slices.Clone(members)
	slices.SortFunc(g.members, func(a, b GroupMember) int { return int(int64(a.ID) - int64(b.ID)) })
	for _, gm := range g.members {
		p.members[gm.ID].uses++
	}
	p.refresh(g, s.down)
	s.tellGroup(p, g)
	return nil
}

// Group returns the members of a group.
func (s *actionProfiles) Group(profile string, id uint32) ([]GroupMember, error) {
	p, err := s.profile(profile)
	if err != nil {
		return nil, err
	}
	g := p.groups[id]
	if g == nil {
		return nil, fmt.Errorf("group %d of %s: %w", id, profile, ErrNotFound)
	}
	return slices.Clone(g.members), nil
}

// Groups returns the ids of a selector's groups, ascending.
func (s *actionProfiles) Groups(profile string) ([]uint32, error) {
	p, err := s.profile(profile)
	if err != nil {
		return nil, err
	}
	return sortedIDs(p.groups), nil
}

// DeleteGroup removes a group. It returns ErrInUse if an entry uses the group.
func (s *actionProfiles) DeleteGroup(profile string, id uint32) error {
	p, err := s.profile(profile)
	if err != nil {
		return err
	}
	g := p.groups[id]
	if g == nil {
		return fmt.Errorf("group %d of %s: %w", id, profile, ErrNotFound)
	}
	if g.uses > 0 {
		return fmt.Errorf("group %d of %s is %w", id, profile, ErrInUse)
	}
	for _, gm := range g.members {
		p.members[gm.ID].uses--
	}
	delete(p.groups, id)
	p.groupAt.drop(g.at)
	if s.follow != nil {
		s.follow.Group(p.def.index, g.at, false, nil)
	}
	return nil
}

func (s *actionProfiles) refreshAll() {
	for _, p := range s.profiles {
		for _, g := range p.groups {
			p.refresh(g, s.down)
			s.tellGroup(p, g)
		}
	}
}

// SetLink sets whether a port is up. Members of groups that watch a port that is down get no packets. At first
// all ports are up.
func (s *replication) SetLink(port uint32, up bool) {
	if up {
		delete(s.down, port)
	} else {
		s.down[port] = true
	}
	s.linksChanged()
}

// setLinks sets the ports that are down; all other ports are up.
func (s *replication) setLinks(down map[uint32]bool) {
	s.down = maps.Clone(down)
	if s.down == nil {
		s.down = map[uint32]bool{}
	}
	s.linksChanged()
}

// linksChanged has groups and replicas of ports that are down served by others.
func (s *replication) linksChanged() {
	s.refreshAll()
	for g, replicas := range s.groups {
		if slices.ContainsFunc(replicas, func(r Replica) bool { return len(r.Backups) > 0 }) {
			s.tellMulticast(uint32(g))
		}
	}
}
