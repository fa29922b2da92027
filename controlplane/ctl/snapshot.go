package ctl

import (
	"cmp"
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
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/nf/value"
)

// Query asks for entities of one kind in one request. Kinds have separate requests because a device that does
// not support a kind refuses the whole request.
type Query struct {
	what string
	kind p4info.Kind // of what comes
	ask  []*p4v1.Entity
}

// Cells reports whether a query asks for cells of a counter, meter or register. Ask yields cells that are zero,
// or not set, only if its argument zero is true.
func (q Query) Cells() bool { return q.kind.Cells() }

// Scope says which entities of a device are read.
type Scope struct {
	Leave []*p4info.Table // not of these tables
	// Arrays says that counters and registers are read, too. Dumps need them.
	Arrays bool
	// Named are the entities of an intent. Only those meters, value sets and digests are read that the intent
	// names; with All all of them are read.
	Named []*p4v1.Entity
	All   bool
}

// queries returns all queries for a device with this P4Info.
func (sc Scope) queries(info *p4info.Info) []Query {
	named, metered := map[uint32]bool{}, map[uint32]bool{} // objects; tables with a meter
	for _, e := range sc.Named {
		x := p4info.Of(e)
		named[x.Object] = true
		if x.Entry.GetMeterConfig() != nil {
			metered[x.Object] = true
		}
	}
	var all []Query
	for _, s := range sections {
		q := Query{what: s.many, kind: s.kind}
		ask := func(x p4info.Entity) { q.ask = append(q.ask, x.Message()) }
		switch s.kind {
		case p4info.KindMulticast, p4info.KindClone:
			ask(p4info.Entity{Kind: s.kind})
		case p4info.KindEntry:
			for _, t := range info.Tables {
				if !slices.Contains(sc.Leave, t) {
					q.ask = append(q.ask, sc.ofTable(t, named[t.ID], metered[t.ID])...)
				}
			}
		default:
			for _, o := range info.Objects(s.kind) {
				is := true
				switch s.kind {
				case p4info.KindMember, p4info.KindGroup:
					p := info.Profile(o.ID)
					is = !left(sc.Leave, p) && (p.Selector || s.kind == p4info.KindMember)
				case p4info.KindDigest, p4info.KindValueSet, p4info.KindMeter:
					is = sc.All || named[o.ID]
				case p4info.KindRegister, p4info.KindCounter:
					is = sc.Arrays
				}
				if is {
					ask(p4info.Entity{Kind: s.kind, Object: o.ID})
				}
			}
		}
		if len(q.ask) > 0 {
			all = append(all, q)
		}
	}
	return all
}

// ofTable returns the queries for a table: for its entries, and for its default entry.
func (sc Scope) ofTable(t *p4info.Table, named, metered bool) (ask []*p4v1.Entity) {
	initial := t.Proto.GetHasInitialEntries() && !named && !sc.All
	if len(t.Fields) > 0 && !t.Const && !initial {
		q := &p4v1.TableEntry{TableId: t.ID}
		if t.Meter != nil && (sc.All || metered) {
			q.MeterConfig = &p4v1.MeterConfig{}
		}
		if t.Counter != nil && sc.Arrays {
			q.CounterData = &p4v1.CounterData{}
		}
		ask = append(ask, p4info.EntryOf(q))
	}
	if t.ConstDefault == nil && t.Profile == nil && (t.Proto.GetInitialDefaultAction() != nil || named || sc.All) {
		ask = append(ask, p4info.EntryOf(&p4v1.TableEntry{TableId: t.ID, IsDefaultAction: true}))
	}
	return ask
}

// left reports whether all tables of a profile are in leave.
func left(leave []*p4info.Table, p *p4info.Profile) bool {
	stays := func(t *p4info.Table) bool { return !slices.Contains(leave, t) }
	return len(p.Tables) > 0 && !slices.ContainsFunc(p.Tables, stays)
}

// Unread is a kind of entities that a device does not show, and the device's error.
type Unread struct {
	What string
	Why  error
	kind p4info.Kind
}

// Scan reads what a device holds, and yields each entity in canonical form. It returns the kinds that the
// device cannot show; they are not an error.
func (s *Session) Scan(ctx context.Context, info *p4info.Info, sc Scope, yield func(*p4v1.Entity) error) ([]Unread, error) {
	return s.Ask(ctx, info, sc.queries(info), false, yield)
}

// Ask is like Scan, for some queries. With zero it also yields cells that are zero or not set.
func (s *Session) Ask(ctx context.Context, info *p4info.Info, ask []Query, zero bool, yield func(*p4v1.Entity) error) ([]Unread, error) {
	var unread []Unread
	for _, q := range ask {
		var members map[string]bool
		if q.kind == p4info.KindMember {
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
		if digests := q.kind == p4info.KindDigest; digests || q.kind == p4info.KindMember || q.kind == p4info.KindGroup {
			for _, one := range q.ask {
				err = s.Read(ctx, each, one)
				switch c := status.Code(err); {
				case c == codes.NotFound && digests: // PI does not find a digest to which nobody has subscribed
					err = nil
				case c == codes.InvalidArgument && !digests: // nor members of a profile with sets of actions
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
			unread = append(unread, Unread{q.what, err, q.kind})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: reading %s: %w", s.Target, q.what, err)
		}
	}
	return unread, nil
}

// Queries returns the queries for the object, or the kind, that a name means; without a name, all queries. A
// second name is the index of a cell.
func Queries(info *p4info.Info, names ...string) ([]Query, error) {
	all := Scope{All: true, Arrays: true}.queries(info)
	if len(names) == 0 {
		return all, nil
	}
	name := names[0]
	if i := slices.IndexFunc(sections, func(s section) bool { return s.name == name }); i >= 0 {
		some := slices.DeleteFunc(all, func(q Query) bool { return q.kind != sections[i].kind })
		switch {
		case len(some) == 0:
			return nil, fmt.Errorf("the program has no %s", strings.ReplaceAll(name, "_", " "))
		case len(names) > 1:
			return nil, fmt.Errorf("an index is of one counter, meter or register: name it instead of %s", name)
		}
		return some, nil
	}
	id, kind, err := objectNamed(info, name)
	if err != nil {
		return nil, err
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
		one := Query{what: q.what, kind: q.kind}
		for _, e := range q.ask {
			x := p4info.Of(e)
			if x.Object != id {
				continue
			}
			if index != nil && !x.Kind.Cells() {
				return nil, fmt.Errorf("%s has no indices", kind)
			}
			if index != nil {
				x.Index = index
			}
			one.ask = append(one.ask, x.Message())
		}
		if len(one.ask) > 0 {
			some = append(some, one)
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("%s is the program's: there is nothing to read", kind)
	}
	return some, nil
}

// objectNamed finds an object that can be read, by its name, its alias or the end of its name. kind is the word
// for the object's kind, and its name.
func objectNamed(info *p4info.Info, name string) (id uint32, kind string, err error) {
	var all []*p4info.Object
	for _, k := range []p4info.Kind{p4info.KindEntry, p4info.KindMember, p4info.KindCounter, p4info.KindMeter, p4info.KindRegister, p4info.KindDigest, p4info.KindValueSet} {
		all = append(all, info.Objects(k)...)
	}
	var found []string
	for _, i := range table.Called(len(all), name, func(i int) (full, alias string) { return all[i].Name, all[i].Alias }) {
		id = all[i].ID
		found = append(found, all[i].What()+" "+all[i].Name)
	}
	switch {
	case len(found) == 0:
		err = fmt.Errorf("the program has nothing that is called %s; quillon ctl read shows all there is", name)
	case len(found) > 1:
		err = fmt.Errorf("%s may be %s: write it in full", name, strings.Join(found, " and "))
	}
	return id, strings.Join(found, " and "), err
}

// Sections returns the names of the lists of an intent, in their order.
func Sections() []string {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

// Text returns an entity as one line for people, with its counts.
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

// stored returns an entity of a device in canonical form, without values that change by themselves, such as
// times and colours. It returns nil if the entity is the program's, or, without zero, if it has its initial
// value.
func stored(info *p4info.Info, e *p4v1.Entity, zero bool) (*p4v1.Entity, error) {
	counted(info, e)
	x := p4info.Of(e)
	switch x.Kind {
	case p4info.KindEntry:
		t := x.Entry
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
	case p4info.KindMeter:
		if x.Colours = nil; unset(x.Rates) {
			if zero {
				return x.Message(), nil
			}
			return nil, nil
		}
		e = x.Message()
	case p4info.KindCounter:
		if !zero && x.Count.GetPacketCount() == 0 && x.Count.GetByteCount() == 0 {
			return nil, nil
		}
	case p4info.KindRegister:
		if !zero && zeroData(x.Data) {
			return nil, nil
		}
	case p4info.KindValueSet:
		if len(x.Values) == 0 {
			return nil, nil
		}
	case p4info.KindDigest:
		if x.Digest == nil {
			return nil, nil
		}
	}
	if err := info.Update(update(e)); err != nil {
		if refused, ok := errors.AsType[*p4info.Error](err); ok && refused.Code == codes.PermissionDenied {
			return nil, nil // a constant one
		}
		return nil, fmt.Errorf("the device shows what its P4Info does not allow: %w", err)
	}
	normal(e)
	return e, nil
}

// counted removes the count (packets or bytes) that an entity's counter does not have, because bmv2 shows both
// and takes only those of the counter's unit.
func counted(info *p4info.Info, e *p4v1.Entity) {
	x := p4info.Of(e)
	d, unit := x.Count, p4configv1.CounterSpec_UNSPECIFIED
	if c := info.Counter(x.Object); c != nil {
		unit = c.CounterUnit
	}
	if t := info.Table(x.Object); t != nil && t.Counter != nil && x.Kind == p4info.KindEntry {
		d, unit = x.Entry.CounterData, t.Counter.CounterUnit
	}
	switch {
	case d == nil:
	case unit == p4configv1.CounterSpec_PACKETS:
		d.ByteCount = 0
	case unit == p4configv1.CounterSpec_BYTES:
		d.PacketCount = 0
	}
}

// unset reports whether a meter has no rates. bmv2 shows very large rates for such a meter.
func unset(c *p4v1.MeterConfig) bool {
	return c == nil || c.Cir == 0 && c.Cburst == 0 && c.Pir == 0 && c.Pburst == 0
}

func zeroData(d *p4v1.P4Data) bool {
	b := d.GetBitstring()
	return d == nil || b != nil && value.IsZero(b)
}

// normal sorts the lists whose order has no meaning, and writes ports in one form.
func normal(e *p4v1.Entity) {
	x := p4info.Of(e)
	for _, r := range x.Replicas {
		r.PortKind = &p4v1.Replica_Port{Port: value.Bytes(uint64(p4info.ReplicaPort(r)))}
	}
	slices.SortFunc(x.Replicas, func(a, b *p4v1.Replica) int {
		return cmp.Or(cmp.Compare(p4info.ReplicaPort(a), p4info.ReplicaPort(b)), cmp.Compare(a.Instance, b.Instance))
	})
	slices.SortFunc(x.Members, func(a, b *p4v1.ActionProfileGroup_Member) int { return cmp.Compare(a.MemberId, b.MemberId) })
}

// equal reports whether have, as a device shows it, is what want asks for. It does not compare counts.
func equal(want, have *p4v1.Entity) bool {
	w, h := p4info.Of(want), p4info.Of(have)
	if w.Kind != h.Kind {
		return false
	}
	switch w.Kind {
	case p4info.KindEntry:
		a, b := w.Entry, h.Entry
		return proto.Equal(a.Action, b.Action) && a.IdleTimeoutNs == b.IdleTimeoutNs && string(a.Metadata) == string(b.Metadata) &&
			sameRates(a.MeterConfig, b.MeterConfig)
	case p4info.KindMeter:
		return sameRates(w.Rates, h.Rates)
	case p4info.KindGroup:
		if w.MaxSize == 0 { // the device's own choice
			h.MaxSize = 0
		}
		return proto.Equal(want, h.Message())
	}
	return proto.Equal(want, have)
}

// sameRates compares rates. It accepts a difference of one, because bmv2 keeps rates in other units and rounds
// down what it shows.
func sameRates(a, b *p4v1.MeterConfig) bool {
	near := func(x, y int64) bool { return x-y <= 1 && y-x <= 1 }
	return (a == nil) == (b == nil) && near(a.GetCir(), b.GetCir()) && near(a.GetPir(), b.GetPir()) &&
		a.GetCburst() == b.GetCburst() && a.GetPburst() == b.GetPburst() && a.GetEburst() == b.GetEburst()
}
