package engine_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
)

// model is what a device must hold: the entities that controllers made, by key.
// It knows no engine: an entity is there or not, a table has a size, what is
// referred to must be there, and what is referred to stays.
type model struct {
	info *p4info.Info
	m    map[string]*p4v1.Entity
}

func newModel(i *p4info.Info) *model { return &model{i, map[string]*p4v1.Entity{}} }

func (m *model) clone() *model { return &model{m.info, maps.Clone(m.m)} }

// apply makes an update, or says with which code it must be refused.
func (m *model) apply(u *p4v1.Update) codes.Code {
	u = proto.CloneOf(u)
	if err := m.info.Update(u); err != nil {
		return status.Code(err)
	}
	e, k := u.GetEntity(), p4info.Key(u.GetEntity())
	old := m.m[k]
	switch e.GetEntity().(type) {
	case *p4v1.Entity_TableEntry, *p4v1.Entity_ActionProfileMember, *p4v1.Entity_ActionProfileGroup, *p4v1.Entity_PacketReplicationEngineEntry, *p4v1.Entity_DigestEntry:
	default:
		return codes.OK // cells: not looked at
	}
	te := e.GetTableEntry()
	if te.GetIsDefaultAction() {
		return codes.OK
	}
	if x := e.GetPacketReplicationEngineEntry(); u.GetType() != p4v1.Update_DELETE {
		s := x.GetCloneSessionEntry()
		if s.GetClassOfService() > 7 {
			return codes.InvalidArgument
		}
		for _, r := range append(x.GetMulticastGroupEntry().GetReplicas(), s.GetReplicas()...) {
			if r.GetInstance() > 0xffff {
				return codes.InvalidArgument
			}
		}
	}
	for _, y := range te.GetAction().GetActionProfileActionSet().GetActionProfileActions() {
		if y.GetWeight() > 0xffff && u.GetType() != p4v1.Update_DELETE {
			return codes.InvalidArgument
		}
	}
	switch {
	case u.GetType() == p4v1.Update_INSERT && old != nil:
		return codes.AlreadyExists
	case u.GetType() != p4v1.Update_INSERT && old == nil:
		return codes.NotFound
	}
	if u.GetType() == p4v1.Update_DELETE {
		if m.used(e) {
			return codes.FailedPrecondition
		}
		delete(m.m, k)
		return codes.OK
	}
	if c := m.refers(e, old); c != codes.OK {
		return c
	}
	if old != nil && te != nil && te.GetAction() == nil {
		te.Action = old.GetTableEntry().GetAction()
	}
	if te != nil {
		te.CounterData, te.MeterConfig = nil, nil
	}
	m.m[k] = e
	return codes.OK
}

func memberKey(profile, id uint32) string {
	return p4info.Key(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: &p4v1.ActionProfileMember{ActionProfileId: profile, MemberId: id}}})
}

func groupKey(profile, id uint32) string {
	return p4info.Key(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: &p4v1.ActionProfileGroup{ActionProfileId: profile, GroupId: id}}})
}

// refers checks what an entity refers to.
func (m *model) refers(e, old *p4v1.Entity) codes.Code {
	const highest = 1<<31 - 1
	mixed := func(profile uint32, set bool) bool {
		for _, x := range m.m {
			if g := x.GetTableEntry().GetAction().GetActionProfileActionSet(); !set && g != nil && m.info.Table(x.GetTableEntry().GetTableId()).Profile.ID == profile {
				return true
			}
			if set && x.GetActionProfileMember().GetActionProfileId() == profile && profile != 0 {
				return true
			}
		}
		return false
	}
	switch x := e.GetEntity().(type) {
	case *p4v1.Entity_ActionProfileMember:
		if x.ActionProfileMember.GetMemberId() > highest || mixed(x.ActionProfileMember.GetActionProfileId(), false) {
			return codes.InvalidArgument
		}
	case *p4v1.Entity_ActionProfileGroup:
		g := x.ActionProfileGroup
		switch {
		case g.GetGroupId() > highest,
			old != nil && old.GetActionProfileGroup().GetMaxSize() != g.GetMaxSize(),
			mixed(g.GetActionProfileId(), false):
			return codes.InvalidArgument
		}
		for _, mb := range g.GetMembers() {
			if m.m[memberKey(g.GetActionProfileId(), mb.GetMemberId())] == nil {
				return codes.NotFound
			}
			if mb.GetWeight() > 0xffff {
				return codes.InvalidArgument
			}
		}
	case *p4v1.Entity_TableEntry:
		t := m.info.Table(x.TableEntry.GetTableId())
		switch a := x.TableEntry.GetAction().GetType().(type) {
		case *p4v1.TableAction_ActionProfileMemberId:
			if m.m[memberKey(t.Profile.ID, a.ActionProfileMemberId)] == nil {
				return codes.NotFound
			}
		case *p4v1.TableAction_ActionProfileGroupId:
			if m.m[groupKey(t.Profile.ID, a.ActionProfileGroupId)] == nil {
				return codes.NotFound
			}
		case *p4v1.TableAction_ActionProfileActionSet:
			if mixed(t.Profile.ID, true) {
				return codes.InvalidArgument
			}
		}
	case *p4v1.Entity_PacketReplicationEngineEntry:
		g, s := x.PacketReplicationEngineEntry.GetMulticastGroupEntry(), x.PacketReplicationEngineEntry.GetCloneSessionEntry()
		if g.GetMulticastGroupId() > 0xffff || s.GetSessionId() > 0x7fff {
			return codes.InvalidArgument
		}
	}
	return codes.OK
}

// used reports that something refers to an entity.
func (m *model) used(e *p4v1.Entity) bool {
	mb, g := e.GetActionProfileMember(), e.GetActionProfileGroup()
	if mb == nil && g == nil {
		return false
	}
	for _, x := range m.m {
		a := x.GetTableEntry().GetAction()
		if t := x.GetTableEntry(); t != nil {
			if pr := m.info.Table(t.GetTableId()).Profile; pr == nil || pr.ID != max(mb.GetActionProfileId(), g.GetActionProfileId()) {
				continue
			}
		}
		if mb != nil && a.GetActionProfileMemberId() == mb.GetMemberId() || g != nil && a.GetActionProfileGroupId() == g.GetGroupId() {
			return true
		}
		if mb != nil && x.GetActionProfileGroup().GetActionProfileId() == mb.GetActionProfileId() {
			for _, y := range x.GetActionProfileGroup().GetMembers() {
				if y.GetMemberId() == mb.GetMemberId() {
					return true
				}
			}
		}
	}
	return false
}

// check compares what a device holds with the model.
func (m *model) check(w *world) error {
	for _, q := range []string{"table_entry { }", "action_profile_member { }", "action_profile_group { }", "digest_entry { }",
		"packet_replication_engine_entry { multicast_group_entry { } }", "packet_replication_engine_entry { clone_session_entry { } }"} {
		list, err := w.tryRead(q)
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, e := range list {
			k := p4info.Key(e)
			want := m.m[k]
			if want == nil {
				return fmt.Errorf("%s is there", w.info.Text(e))
			}
			if seen[k] {
				return fmt.Errorf("%s is there twice", w.info.Text(e))
			}
			seen[k] = true
			if d := want.GetDigestEntry(); d != nil && d.GetConfig() == nil {
				continue
			}
			if !proto.Equal(want, e) {
				return fmt.Errorf("got %v\nwant %v", e, want)
			}
		}
		for k, e := range m.m {
			if sameKind(q, e) && !seen[k] {
				return fmt.Errorf("%s is not there", w.info.Text(e))
			}
		}
	}
	return nil
}

func sameKind(q string, e *p4v1.Entity) bool {
	f := e.ProtoReflect().WhichOneof(e.ProtoReflect().Descriptor().Oneofs().Get(0))
	if r := e.GetPacketReplicationEngineEntry(); r != nil {
		return strings.Contains(q, "multicast") == (r.GetMulticastGroupEntry() != nil) && strings.HasPrefix(q, string(f.Name()))
	}
	return strings.HasPrefix(q, string(f.Name())+" ")
}

// seeds are valid updates that others are mutated from.
func seeds(t testing.TB) []*p4v1.Update {
	var list []*p4v1.Update
	for _, e := range []string{ten, toPort1, isRouter, strings.Replace(ten, "len: 8", "len: 7", 1),
		`table_entry { table_id: 46073810 priority: 3 match { field_id: 1 exact { value: "\xe0\x00\x00\x01" } } match { field_id: 2 ternary { value: "\x01" mask: "\x03" } } action { action { action_id: 22853191 params { param_id: 1 value: "\x07" } } } }`,
		`table_entry { table_id: 37884245 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } action { action_profile_group_id: 1 } metadata: "m" }`,
		`table_entry { table_id: 37884245 match { field_id: 1 lpm { value: "\x0b\x00\x00\x00" prefix_len: 8 } } action { action_profile_member_id: 1 } controller_metadata: 6 }`,
		`table_entry { table_id: 37884245 match { field_id: 1 lpm { value: "\x0c\x00\x00\x00" prefix_len: 8 } } action { action_profile_action_set { action_profile_actions { weight: 2 action { action_id: 19766418 params { param_id: 1 value: "\x05" } } } } } }`,
		`action_profile_member { action_profile_id: 294569155 member_id: 1 action { action_id: 21257015 } }`,
		`action_profile_member { action_profile_id: 294569155 member_id: 2 action { action_id: 19766418 params { param_id: 1 value: "\x09" } } }`,
		`action_profile_group { action_profile_id: 294569155 group_id: 1 members { member_id: 1 weight: 2 } members { member_id: 2 weight: 1 watch_port: "\x01" } }`,
		`packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 4 replicas { port: "\x01" } replicas { egress_port: 2 instance: 3 } } }`,
		`packet_replication_engine_entry { clone_session_entry { session_id: 4 replicas { port: "\x01" } } }`,
		`counter_entry { counter_id: 314588144 index { index: 3 } data { packet_count: 7 } }`,
		`meter_entry { meter_id: 352080900 index { index: 3 } config { cir: 1 cburst: 2 pir: 3 pburst: 4 } }`,
	} {
		for _, op := range []string{"INSERT", "MODIFY", "DELETE"} {
			list = append(list, parseUpdate(t, "type: "+op+" entity { "+e+" }"))
		}
	}
	return list
}

// mutate changes a field of a message somewhere; pick draws a number below n.
func mutate(m protoreflect.Message, pick func(n int) int) {
	var set []protoreflect.FieldDescriptor
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool { set = append(set, f); return true })
	all := m.Descriptor().Fields()
	if len(set) == 0 || pick(6) == 0 {
		f := all.Get(pick(all.Len()))
		if f.Message() != nil && !f.IsList() && !f.IsMap() {
			m.Mutable(f) // an empty message
			return
		}
		set = append(set[:0], f)
	}
	slices.SortFunc(set, func(a, b protoreflect.FieldDescriptor) int { return int(a.Number() - b.Number()) })
	f := set[pick(len(set))]
	switch {
	case pick(8) == 0:
		m.Clear(f)
	case f.IsMap():
	case f.IsList():
		l := m.Mutable(f).List()
		switch {
		case l.Len() == 0 || pick(8) == 0:
			if f.Message() != nil {
				l.AppendMutable()
			}
		case f.Message() == nil:
		case pick(8) == 0:
			l.Append(protoreflect.ValueOfMessage(proto.Clone(l.Get(pick(l.Len())).Message().Interface()).ProtoReflect()))
		default:
			mutate(l.Get(pick(l.Len())).Message(), pick)
		}
	case f.Message() != nil:
		if f.Message().FullName() != "google.protobuf.Any" {
			mutate(m.Mutable(f).Message(), pick)
		}
	default:
		m.Set(f, scalar(f, m.Get(f), pick))
	}
}

func scalar(f protoreflect.FieldDescriptor, v protoreflect.Value, pick func(n int) int) protoreflect.Value {
	by := []int64{-1, 1, 0, 2, 1 << 31, 1 << 16}[pick(6)]
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(!v.Bool())
	case protoreflect.BytesKind:
		b := slices.Clone(v.Bytes())
		switch {
		case pick(4) == 0:
			b = append([]byte{0}, b...)
		case pick(4) == 0 || len(b) == 0:
			b = append(b, byte(pick(256)))
		case pick(4) == 0:
			b = b[1:]
		default:
			b[pick(len(b))] ^= 1 << pick(8)
		}
		return protoreflect.ValueOfBytes(b)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(v.String() + "x")
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(pick(5)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(v.Int() + by))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(v.Int() + by)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(v.Uint()) + uint32(by))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(v.Uint() + uint64(by))
	}
	return v
}

// play sends requests drawn by pick, and holds each answer against the model.
func play(t testing.TB, of *world, list []*p4v1.Update, requests int, pick func(n int) int) error {
	x := *of
	w := &x
	w.t = t
	w.program("ipv4_router")
	m := newModel(w.info)
	for range requests {
		a := []p4v1.WriteRequest_Atomicity{goOn, goOn, rollback, atOnce}[pick(4)]
		var updates []*p4v1.Update
		for range 1 + pick(6) {
			u := proto.CloneOf(list[pick(len(list))])
			for range max(0, pick(5)-2) {
				mutate(u.ProtoReflect(), pick)
			}
			updates = append(updates, u)
		}
		next := m.clone()
		want := make([]codes.Code, len(updates))
		bad := -1
		// What is wrong in itself is found before anything is made.
		valid := true
		for _, u := range updates {
			valid = valid && m.info.Update(proto.CloneOf(u)) == nil
		}
		for n, u := range updates {
			switch {
			case a == goOn:
				want[n] = next.apply(u)
			case !valid:
				want[n] = codes.Aborted
				if err := m.info.Update(proto.CloneOf(u)); err != nil {
					want[n] = status.Code(err)
				}
			case bad >= 0:
				want[n] = codes.Aborted
			default:
				if want[n] = next.apply(u); want[n] != codes.OK {
					bad = n
				}
			}
		}
		if bad >= 0 {
			for n := range bad {
				want[n] = codes.Aborted
			}
		}
		if a != goOn && (bad >= 0 || !valid) {
			next = m
		}
		got, err := w.write(a, updates...)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%v: %v\n got %v\nwant %v\nfor %v", a, err, got, want, updates)
		}
		m = next
		if err := m.check(w); err != nil {
			return fmt.Errorf("after %v: %v", updates, err)
		}
	}
	return nil
}

// TestModel: a device does what the model says, whatever it is asked.
func TestModel(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	list := seeds(t)
	rapid.Check(t, func(r *rapid.T) {
		if err := play(t, w, list, 8, func(n int) int { return rapid.IntRange(0, n-1).Draw(r, "pick") }); err != nil {
			r.Fatal(err)
		}
	})
}

// FuzzRequests is TestModel from bytes: each draws one number.
func FuzzRequests(f *testing.F) {
	f.Add([]byte("insert, modify and delete"))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20})
	w := newWorld(f, p4rt.Config{})
	w.primary()
	list := seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		err := play(t, w, list, 1+len(b)/16, func(n int) int {
			if len(b) == 0 {
				return 0
			}
			x := int(b[0]) % n
			b = b[1:]
			return x
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
