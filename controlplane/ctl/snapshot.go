package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	p4configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/value"
)

// Query is one kind of entities that is read of a device at a time: a device that
// does not know the kind says so for all of it.
type Query struct {
	what string
	ask  []*p4v1.Entity
	keys string // the first bytes of the Keys of what comes
}

// Cells reports whether a query is for cells of a counter, meter or register, of which those that are zero, or not
// set, are shown only when that is asked for.
func (q Query) Cells() bool {
	switch q.ask[0].Entity.(type) {
	case *p4v1.Entity_CounterEntry, *p4v1.Entity_MeterEntry, *p4v1.Entity_RegisterEntry:
		return true
	}
	return false
}

// Scope says what is read of a device.
type Scope struct {
	Leave []*p4info.Table // not of these tables
	// Arrays is whether counters and registers are read: dumps have them.
	Arrays bool
	// Named are the entities of an intent: of meters, value sets and digests
	// those are read that have a name there. With All, all are.
	Named []*p4v1.Entity
	All   bool
}

// queries are what there is to ask of a device with this P4Info.
func (sc Scope) queries(info *p4info.Info) []Query {
	named := map[uint32]bool{}
	directMeters := map[uint32]bool{}
	for _, e := range sc.Named {
		switch x := e.Entity.(type) {
		case *p4v1.Entity_MeterEntry:
			named[x.MeterEntry.MeterId] = true
		case *p4v1.Entity_ValueSetEntry:
			named[x.ValueSetEntry.ValueSetId] = true
		case *p4v1.Entity_DigestEntry:
			named[x.DigestEntry.DigestId] = true
		case *p4v1.Entity_TableEntry:
			if x.TableEntry.MeterConfig != nil {
				directMeters[x.TableEntry.TableId] = true
			}
			named[x.TableEntry.TableId] = true
		}
	}
	tables := Query{what: "table entries", keys: "t"}
	for _, t := range info.Tables {
		if slices.Contains(sc.Leave, t) {
			continue
		}
		initial := t.Proto.GetHasInitialEntries() && !named[t.ID] && !sc.All
		if len(t.Fields) > 0 && !t.Const && !initial {
			q := &p4v1.TableEntry{TableId: t.ID}
			if t.Meter != nil && (sc.All || directMeters[t.ID]) {
				q.MeterConfig = &p4v1.MeterConfig{}
			}
			if t.Counter != nil && sc.Arrays {
				q.CounterData = &p4v1.CounterData{}
			}
			tables.ask = append(tables.ask, &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: q}})
		}
		if t.ConstDefault == nil && t.Profile == nil && (t.Proto.GetInitialDefaultAction() != nil || named[t.ID] || sc.All) {
			tables.ask = append(tables.ask, &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: t.ID, IsDefaultAction: true}}})
		}
	}
	members, groups := Query{what: "members", keys: "a"}, Query{what: "groups", keys: "g"}
	for _, p := range info.Profiles {
		if left(sc.Leave, p) {
			continue
		}
		members.ask = append(members.ask, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: &p4v1.ActionProfileMember{ActionProfileId: p.ID}}})
		if p.Selector {
			groups.ask = append(groups.ask, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: &p4v1.ActionProfileGroup{ActionProfileId: p.ID}}})
		}
	}
	meters, sets, digests := Query{what: "meters", keys: "m"}, Query{what: "value sets", keys: "v"}, Query{what: "digests", keys: "d"}
	for _, m := range info.Meters {
		if sc.All || named[m.ID] {
			meters.ask = append(meters.ask, &p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{MeterId: m.ID}}})
		}
	}
	for _, v := range info.ValueSets {
		if sc.All || named[v.ID] {
			sets.ask = append(sets.ask, &p4v1.Entity{Entity: &p4v1.Entity_ValueSetEntry{ValueSetEntry: &p4v1.ValueSetEntry{ValueSetId: v.ID}}})
		}
	}
	for _, d := range info.Digests {
		if sc.All || named[d.ID] {
			digests.ask = append(digests.ask, &p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: &p4v1.DigestEntry{DigestId: d.ID}}})
		}
	}
	all := []Query{
		{what: "multicast groups", keys: "G", ask: []*p4v1.Entity{multicast(&p4v1.MulticastGroupEntry{})}},
		{what: "clone sessions", keys: "S", ask: []*p4v1.Entity{cloneSession(&p4v1.CloneSessionEntry{})}},
		digests, sets, meters, members, groups, tables,
	}
	if sc.Arrays {
		registers, counters := Query{what: "registers", keys: "r"}, Query{what: "counters", keys: "c"}
		for _, r := range info.Registers {
			registers.ask = append(registers.ask, &p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: &p4v1.RegisterEntry{RegisterId: r.ID}}})
		}
		for _, c := range info.Counters {
			counters.ask = append(counters.ask, &p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: c.ID}}})
		}
		all = append(all, registers, counters)
	}
	return slices.DeleteFunc(all, func(q Query) bool { return len(q.ask) == 0 })
}

// left reports whether all of a profile's tables are left to somebody else.
func left(leave []*p4info.Table, p *p4info.Profile) bool {
	for _, t := range p.Tables {
		if !slices.Contains(leave, t) {
			return false
		}
	}
	return len(p.Tables) > 0
}

// Unread is a kind of entities that a device does not show.
type Unread struct {
	What string
	Why  error
	keys string
}

// Scan reads what a device holds, and gives each entity in canonical form. Kinds
// that the device cannot show are told, and are no error.
func (s *Session) Scan(ctx context.Context, info *p4info.Info, sc Scope, yield func(*p4v1.Entity) error) ([]Unread, error) {
	return s.Ask(ctx, info, sc.queries(info), false, yield)
}

// Ask is Scan for some queries. With zero, cells of arrays come that are zero or
// not set, too.
func (s *Session) Ask(ctx context.Context, info *p4info.Info, ask []Query, zero bool, yield func(*p4v1.Entity) error) ([]Unread, error) {
	var unread []Unread
	for _, q := range ask {
		var members map[string]bool
		if q.keys == "a" {
			members = map[string]bool{}
		}
		each := func(e *p4v1.Entity) error {
			e, err := stored(info, e, zero)
			if e == nil || err != nil {
				return err
			}
			if members != nil { // PI copies those with weights, and shows the copies
				key := p4info.Key(e)
				if members[key] {
					return nil
				}
				members[key] = true
			}
			return yield(e)
		}
		var err error
		if strings.Contains("dag", q.keys) {
			for _, one := range q.ask {
				err = s.Read(ctx, each, one)
				switch c := status.Code(err); {
				case c == codes.NotFound && q.keys == "d": // PI does not find a digest that nobody asked for
					err = nil
				case c == codes.InvalidArgument && q.keys != "d": // nor members of a profile with sets of actions
					err = nil
				}
				if err != nil {
					break
				}
			}
		} else {
			err = s.Read(ctx, each, q.ask...)
		}
		if status.Code(err) == codes.Unimplemented {
			unread = append(unread, Unread{q.what, err, q.keys})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: reading %s: %w", s.Target, q.what, err)
		}
	}
	return unread, nil
}

// Queries are what reads the object or the kind of a name; without one, all there
// is. A second name is the index of a cell.
func Queries(info *p4info.Info, names ...string) ([]Query, error) {
	all := Scope{All: true, Arrays: true}.queries(info)
	if len(names) == 0 {
		return all, nil
	}
	name := names[0]
	for _, k := range kinds() {
		if k.section != name {
			continue
		}
		var some []Query
		for _, q := range all {
			if k.is(q.ask[0]) {
				some = append(some, q)
			}
		}
		if len(some) == 0 {
			return nil, fmt.Errorf("the program has no %s", strings.ReplaceAll(name, "_", " "))
		}
		if len(names) > 1 {
			return nil, fmt.Errorf("an index is of one counter, meter or register: name it instead of %s", name)
		}
		return some, nil
	}
	id, kind := uint32(0), ""
	found := func(o p4info.Object, what string) {
		if o.Name == name || o.Alias == name || strings.HasSuffix(o.Name, "."+name) {
			if id != 0 && o.Name != name {
				kind += " and "
			} else {
				kind = ""
			}
			id = o.ID
			kind += what + " " + o.Name
		}
	}
	for _, t := range info.Tables {
		found(t.Object, "table")
	}
	for _, p := range info.Profiles {
		found(p.Object, "action profile")
	}
	for what, list := range map[string][]*p4info.Array{"counter": info.Counters, "meter": info.Meters, "register": info.Registers} {
		for _, a := range list {
			found(a.Object, what)
		}
	}
	for _, d := range info.Digests {
		found(d.Object, "digest")
	}
	for _, v := range info.ValueSets {
		found(v.Object, "value set")
	}
	switch {
	case id == 0:
		return nil, fmt.Errorf("the program has nothing that is called %s; quillon ctl read shows all there is", name)
	case strings.Contains(kind, " and "):
		return nil, fmt.Errorf("%s may be %s: write it in full", name, kind)
	}
	var index *p4v1.Index
	if len(names) > 1 {
		n, err := strconv.ParseInt(names[1], 0, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("index %q: want a number from 0", names[1])
		}
		index = &p4v1.Index{Index: n}
	}
	var some []Query
	for _, q := range all {
		q.ask = slices.DeleteFunc(slices.Clone(q.ask), func(e *p4v1.Entity) bool { return objectOf(e) != id })
		for _, e := range q.ask {
			switch x := e.Entity.(type) {
			case *p4v1.Entity_CounterEntry:
				x.CounterEntry.Index = index
			case *p4v1.Entity_MeterEntry:
				x.MeterEntry.Index = index
			case *p4v1.Entity_RegisterEntry:
				x.RegisterEntry.Index = index
			default:
				if index != nil {
					return nil, fmt.Errorf("%s has no indices", kind)
				}
			}
		}
		if len(q.ask) > 0 {
			some = append(some, q)
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("%s is the program's: there is nothing to read", kind)
	}
	return some, nil
}

// objectOf is the id of the object that an entity is of.
func objectOf(e *p4v1.Entity) uint32 {
	switch x := e.Entity.(type) {
	case *p4v1.Entity_TableEntry:
		return x.TableEntry.TableId
	case *p4v1.Entity_ActionProfileMember:
		return x.ActionProfileMember.ActionProfileId
	case *p4v1.Entity_ActionProfileGroup:
		return x.ActionProfileGroup.ActionProfileId
	case *p4v1.Entity_CounterEntry:
		return x.CounterEntry.CounterId
	case *p4v1.Entity_MeterEntry:
		return x.MeterEntry.MeterId
	case *p4v1.Entity_RegisterEntry:
		return x.RegisterEntry.RegisterId
	case *p4v1.Entity_DigestEntry:
		return x.DigestEntry.DigestId
	case *p4v1.Entity_ValueSetEntry:
		return x.ValueSetEntry.ValueSetId
	}
	return 0
}

// Sections are the names of the lists of an intent, in their order.
func Sections() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.section)
	}
	return names
}

// Text is an entity in one line for people, with its counts.
func Text(info *p4info.Info, e *p4v1.Entity) string {
	text := info.Text(e)
	t := e.GetTableEntry()
	if t == nil {
		return text
	}
	if t.IdleTimeoutNs != 0 {
		text += fmt.Sprintf(", idle timeout %v", time.Duration(t.IdleTimeoutNs))
	}
	if c := t.MeterConfig; c != nil {
		text += fmt.Sprintf(", meter committed %d burst %d, peak %d burst %d", c.Cir, c.Cburst, c.Pir, c.Pburst)
	}
	if c := t.CounterData; c != nil {
		text += fmt.Sprintf(", %d packets, %d bytes", c.PacketCount, c.ByteCount)
	}
	return text
}

// stored is an entity that a device showed, in canonical form and without what
// belongs to the moment; nil: it is the program's, or, without zero, like new.
func stored(info *p4info.Info, e *p4v1.Entity, zero bool) (*p4v1.Entity, error) {
	counted(info, e)
	switch x := e.Entity.(type) {
	case *p4v1.Entity_TableEntry:
		t := x.TableEntry
		if t.IsConst {
			return nil, nil
		}
		t.TimeSinceLastHit, t.MeterCounterData, t.ControllerMetadata = nil, nil, 0 //nolint:staticcheck // servers of before 1.4 set it
		if t.IsDefaultAction && t.Action == nil {
			return nil, nil
		}
		if unset(t.MeterConfig) {
			t.MeterConfig = nil
		}
		if c := t.CounterData; !zero && c != nil && c.PacketCount == 0 && c.ByteCount == 0 {
			t.CounterData = nil
		}
	case *p4v1.Entity_MeterEntry:
		x.MeterEntry.CounterData = nil
		if unset(x.MeterEntry.Config) {
			if zero {
				return e, nil
			}
			return nil, nil
		}
	case *p4v1.Entity_CounterEntry:
		if c := x.CounterEntry.Data; !zero && c.GetPacketCount() == 0 && c.GetByteCount() == 0 {
			return nil, nil
		}
	case *p4v1.Entity_RegisterEntry:
		if !zero && zeroData(x.RegisterEntry.Data) {
			return nil, nil
		}
	case *p4v1.Entity_ValueSetEntry:
		if len(x.ValueSetEntry.Members) == 0 {
			return nil, nil
		}
	case *p4v1.Entity_DigestEntry:
		if x.DigestEntry.Config == nil {
			return nil, nil
		}
	}
	if err := info.Update(update(e)); err != nil {
		var refused *p4info.Error
		if errors.As(err, &refused) && refused.Code == codes.PermissionDenied {
			return nil, nil // a constant one
		}
		return nil, fmt.Errorf("the device shows what its P4Info does not allow: %w", err)
	}
	normal(e)
	return e, nil
}

// counted leaves of an entity's counts those that its counter is for: bmv2 shows
// both, but takes only these.
func counted(info *p4info.Info, e *p4v1.Entity) {
	var d *p4v1.CounterData
	var unit p4configv1.CounterSpec_Unit
	if c := e.GetCounterEntry(); c != nil && info.Counter(c.CounterId) != nil {
		d, unit = c.Data, info.Counter(c.CounterId).CounterUnit
	}
	if x := e.GetTableEntry(); x != nil {
		if t := info.Table(x.TableId); t != nil && t.Counter != nil {
			d, unit = x.CounterData, t.Counter.CounterUnit
		}
	}
	switch {
	case d == nil:
	case unit == p4configv1.CounterSpec_PACKETS:
		d.ByteCount = 0
	case unit == p4configv1.CounterSpec_BYTES:
		d.PacketCount = 0
	}
}

// unset reports whether a meter has no rates: bmv2 shows those as very large.
func unset(c *p4v1.MeterConfig) bool {
	return c == nil || c.Cir == 0 && c.Cburst == 0 && c.Pir == 0 && c.Pburst == 0
}

func zeroData(d *p4v1.P4Data) bool {
	b := d.GetBitstring()
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return d == nil || b != nil
}

// normal puts lists whose order means nothing in order.
func normal(e *p4v1.Entity) {
	replicas := func(list []*p4v1.Replica) {
		for _, r := range list {
			r.PortKind = &p4v1.Replica_Port{Port: value.Bytes(uint64(p4info.ReplicaPort(r)))}
		}
		slices.SortFunc(list, func(a, b *p4v1.Replica) int {
			pa, pb := p4info.ReplicaPort(a), p4info.ReplicaPort(b)
			if pa != pb {
				return int(int64(pa) - int64(pb))
			}
			return int(int64(a.Instance) - int64(b.Instance))
		})
	}
	switch x := e.Entity.(type) {
	case *p4v1.Entity_PacketReplicationEngineEntry:
		replicas(x.PacketReplicationEngineEntry.GetMulticastGroupEntry().GetReplicas())
		replicas(x.PacketReplicationEngineEntry.GetCloneSessionEntry().GetReplicas())
	case *p4v1.Entity_ActionProfileGroup:
		slices.SortFunc(x.ActionProfileGroup.Members, func(a, b *p4v1.ActionProfileGroup_Member) int {
			return int(int64(a.MemberId) - int64(b.MemberId))
		})
	}
}

// equal reports whether a device that shows have holds what want says. Counts are
// not compared.
func equal(want, have *p4v1.Entity) bool {
	switch w := want.Entity.(type) {
	case *p4v1.Entity_TableEntry:
		h, ok := have.Entity.(*p4v1.Entity_TableEntry)
		if !ok {
			return false
		}
		a, b := w.TableEntry, h.TableEntry
		return proto.Equal(a.Action, b.Action) && a.IdleTimeoutNs == b.IdleTimeoutNs && string(a.Metadata) == string(b.Metadata) &&
			sameRates(a.MeterConfig, b.MeterConfig)
	case *p4v1.Entity_ActionProfileGroup:
		h := have.GetActionProfileGroup()
		if w.ActionProfileGroup.MaxSize == 0 && h != nil && h.MaxSize != 0 { // the device's own choice
			h = proto.Clone(h).(*p4v1.ActionProfileGroup)
			h.MaxSize = 0
		}
		return proto.Equal(w.ActionProfileGroup, h)
	}
	if w, h := want.GetMeterEntry(), have.GetMeterEntry(); w != nil && h != nil {
		return sameRates(w.Config, h.Config)
	}
	return proto.Equal(want, have)
}

// sameRates compares rates. bmv2 keeps them in other units and shows them rounded
// down: what it was told may come back as one less.
func sameRates(a, b *p4v1.MeterConfig) bool {
	near := func(x, y int64) bool { return x-y <= 1 && y-x <= 1 }
	return (a == nil) == (b == nil) && near(a.GetCir(), b.GetCir()) && near(a.GetPir(), b.GetPir()) &&
		a.GetCburst() == b.GetCburst() && a.GetPburst() == b.GetPburst() && a.GetEburst() == b.GetEburst()
}
