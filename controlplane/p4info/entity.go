package p4info

import (
	"encoding/binary"
	"fmt"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quillon/quillon/nf/value"
)

// Kind is a kind of P4Runtime entity.
type Kind uint8

const (
	KindNone Kind = iota // of no entity
	KindEntry
	KindDirectCounter
	KindDirectMeter
	KindMember
	KindGroup
	KindCounter
	KindMeter
	KindRegister
	KindValueSet
	KindDigest
	KindMulticast
	KindClone
	KindReplication // of the packet replication engine, and neither of the two above
	KindExtern
)

// kinds holds the differences between the kinds. A new kind needs a row here, and a case in Of and in Message.
var kinds = [...]struct {
	name   string
	object string // what the object is called to which an entity belongs; "": to none
	key    byte   // the first of Key; 0: it has none
	always bool   // can neither be inserted nor deleted, only be modified
	cells  bool   // its object is an array, with an index
}{
	KindNone:          {name: "nothing"},
	KindEntry:         {name: "entry", object: "table", key: 't'},
	KindDirectCounter: {name: "direct counter", object: "table", key: 'C', always: true},
	KindDirectMeter:   {name: "direct meter", object: "table", key: 'M', always: true},
	KindMember:        {name: "member", object: "action profile", key: 'a'},
	KindGroup:         {name: "group", object: "action profile", key: 'g'},
	KindCounter:       {name: "counter", object: "counter", key: 'c', always: true, cells: true},
	KindMeter:         {name: "meter", object: "meter", key: 'm', always: true, cells: true},
	KindRegister:      {name: "register", object: "register", key: 'r', always: true, cells: true},
	KindValueSet:      {name: "value set", object: "value set", key: 'v', always: true},
	KindDigest:        {name: "digest", object: "digest", key: 'd'},
	KindMulticast:     {name: "multicast group", key: 'G'},
	KindClone:         {name: "clone session", key: 'S'},
	KindReplication:   {name: "nothing"},
	KindExtern:        {name: "extern", object: "extern", key: 'x'},
}

func (k Kind) String() string { return kinds[k].name }

// Cells reports whether an entity of this kind means one cell, or all cells, of an array.
func (k Kind) Cells() bool { return kinds[k].cells }

// Of reports whether an entity is of the kind.
func (k Kind) Of(e *p4v1.Entity) bool { return Of(e).Kind == k }

// Entity holds the parts of a P4Runtime entity. Parts that its kind does not have are nil or 0. The pointers
// and slices are those of the message: whoever changes one changes the message.
type Entity struct {
	Kind   Kind
	Object uint32      // the id of its table, action profile, counter, ...; 0: of all of them
	ID     uint32      // of a member, group, multicast group or clone session
	Index  *p4v1.Index // of a cell; nil: of all
	// Entry is the table entry, or the entry that a direct counter or meter belongs to.
	Entry    *p4v1.TableEntry
	Action   *p4v1.Action // of a member
	Members  []*p4v1.ActionProfileGroup_Member
	MaxSize  int32 // of a group
	Count    *p4v1.CounterData
	Rates    *p4v1.MeterConfig
	Colours  *p4v1.MeterCounterData
	Data     *p4v1.P4Data // of a register
	Values   []*p4v1.ValueSetMember
	Digest   *p4v1.DigestEntry_Config
	Replicas []*p4v1.Replica
	Metadata []byte // of a multicast group
	Class    uint32 // of service, of a clone session
	Length   int32  // of a clone session's packets, in bytes; 0: all
	Extern   *anypb.Any
}

// Of returns the parts of e.
func Of(e *p4v1.Entity) (x Entity) { // x is filled in where it is: to copy it costs more than all else here
	switch m := e.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		x.Kind, x.Object, x.Entry = KindEntry, m.TableEntry.GetTableId(), m.TableEntry
	case *p4v1.Entity_DirectCounterEntry:
		c := m.DirectCounterEntry
		x.Kind, x.Object, x.Entry, x.Count = KindDirectCounter, c.GetTableEntry().GetTableId(), c.GetTableEntry(), c.GetData()
	case *p4v1.Entity_DirectMeterEntry:
		d := m.DirectMeterEntry
		x.Kind, x.Object, x.Entry = KindDirectMeter, d.GetTableEntry().GetTableId(), d.GetTableEntry()
		x.Rates, x.Colours = d.GetConfig(), d.GetCounterData()
	case *p4v1.Entity_ActionProfileMember:
		a := m.ActionProfileMember
		x.Kind, x.Object, x.ID, x.Action = KindMember, a.GetActionProfileId(), a.GetMemberId(), a.GetAction()
	case *p4v1.Entity_ActionProfileGroup:
		g := m.ActionProfileGroup
		x.Kind, x.Object, x.ID, x.Members, x.MaxSize = KindGroup, g.GetActionProfileId(), g.GetGroupId(), g.GetMembers(), g.GetMaxSize()
	case *p4v1.Entity_CounterEntry:
		c := m.CounterEntry
		x.Kind, x.Object, x.Index, x.Count = KindCounter, c.GetCounterId(), c.GetIndex(), c.GetData()
	case *p4v1.Entity_MeterEntry:
		r := m.MeterEntry
		x.Kind, x.Object, x.Index, x.Rates, x.Colours = KindMeter, r.GetMeterId(), r.GetIndex(), r.GetConfig(), r.GetCounterData()
	case *p4v1.Entity_RegisterEntry:
		r := m.RegisterEntry
		x.Kind, x.Object, x.Index, x.Data = KindRegister, r.GetRegisterId(), r.GetIndex(), r.GetData()
	case *p4v1.Entity_ValueSetEntry:
		x.Kind, x.Object, x.Values = KindValueSet, m.ValueSetEntry.GetValueSetId(), m.ValueSetEntry.GetMembers()
	case *p4v1.Entity_DigestEntry:
		x.Kind, x.Object, x.Digest = KindDigest, m.DigestEntry.GetDigestId(), m.DigestEntry.GetConfig()
	case *p4v1.Entity_PacketReplicationEngineEntry:
		x.Kind = KindReplication
		if g := m.PacketReplicationEngineEntry.GetMulticastGroupEntry(); g != nil {
			x.Kind, x.ID, x.Replicas, x.Metadata = KindMulticast, g.GetMulticastGroupId(), g.GetReplicas(), g.GetMetadata()
		} else if s := m.PacketReplicationEngineEntry.GetCloneSessionEntry(); s != nil {
			x.Kind, x.ID, x.Replicas, x.Class, x.Length = KindClone, s.GetSessionId(), s.GetReplicas(), s.GetClassOfService(), s.GetPacketLengthBytes()
		}
	case *p4v1.Entity_ExternEntry:
		x.Kind, x.Object, x.ID, x.Extern = KindExtern, m.ExternEntry.GetExternTypeId(), m.ExternEntry.GetExternId(), m.ExternEntry.GetEntry()
	}
	return x
}

// Message returns the P4Runtime entity that has the parts x; it is the inverse of Of. It does not copy the
// parts.
func (x Entity) Message() *p4v1.Entity {
	e := &p4v1.Entity{}
	switch x.Kind {
	case KindEntry:
		return EntryOf(x.Entry)
	case KindDirectCounter:
		e.Entity = &p4v1.Entity_DirectCounterEntry{DirectCounterEntry: &p4v1.DirectCounterEntry{TableEntry: x.Entry, Data: x.Count}}
	case KindDirectMeter:
		e.Entity = &p4v1.Entity_DirectMeterEntry{DirectMeterEntry: &p4v1.DirectMeterEntry{TableEntry: x.Entry, Config: x.Rates, CounterData: x.Colours}}
	case KindMember:
		e.Entity = &p4v1.Entity_ActionProfileMember{ActionProfileMember: &p4v1.ActionProfileMember{ActionProfileId: x.Object, MemberId: x.ID, Action: x.Action}}
	case KindGroup:
		e.Entity = &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: &p4v1.ActionProfileGroup{
			ActionProfileId: x.Object, GroupId: x.ID, Members: x.Members, MaxSize: x.MaxSize}}
	case KindCounter:
		e.Entity = &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: x.Object, Index: x.Index, Data: x.Count}}
	case KindMeter:
		e.Entity = &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{MeterId: x.Object, Index: x.Index, Config: x.Rates, CounterData: x.Colours}}
	case KindRegister:
		e.Entity = &p4v1.Entity_RegisterEntry{RegisterEntry: &p4v1.RegisterEntry{RegisterId: x.Object, Index: x.Index, Data: x.Data}}
	case KindValueSet:
		e.Entity = &p4v1.Entity_ValueSetEntry{ValueSetEntry: &p4v1.ValueSetEntry{ValueSetId: x.Object, Members: x.Values}}
	case KindDigest:
		e.Entity = &p4v1.Entity_DigestEntry{DigestEntry: &p4v1.DigestEntry{DigestId: x.Object, Config: x.Digest}}
	case KindMulticast, KindClone, KindReplication:
		r := &p4v1.PacketReplicationEngineEntry{}
		if x.Kind == KindMulticast {
			r.Type = &p4v1.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: &p4v1.MulticastGroupEntry{
				MulticastGroupId: x.ID, Replicas: x.Replicas, Metadata: x.Metadata}}
		} else if x.Kind == KindClone {
			r.Type = &p4v1.PacketReplicationEngineEntry_CloneSessionEntry{CloneSessionEntry: &p4v1.CloneSessionEntry{
				SessionId: x.ID, Replicas: x.Replicas, ClassOfService: x.Class, PacketLengthBytes: x.Length}}
		}
		e.Entity = &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: r}
	case KindExtern:
		e.Entity = &p4v1.Entity_ExternEntry{ExternEntry: &p4v1.ExternEntry{ExternTypeId: x.Object, ExternId: x.ID, Entry: x.Extern}}
	}
	return e
}

// EntryOf returns a table entry as an entity.
func EntryOf(e *p4v1.TableEntry) *p4v1.Entity {
	return &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: e}}
}

// Always reports whether the entity can only be modified, and neither inserted nor deleted.
func (x *Entity) Always() bool {
	return kinds[x.Kind].always || x.Kind == KindEntry && x.Entry.GetIsDefaultAction()
}

// Reference is a member or a group of an action profile that an entity refers to.
type Reference struct {
	Key  string // of what is needed
	Text string
}

// References returns the members that a group refers to, or the member or group that a table entry refers to.
func (i *Info) References(e *p4v1.Entity) (need []Reference) {
	x := Of(e)
	add := func(k Kind, p *Profile, id uint32) {
		y := Entity{Kind: k, Object: p.ID, ID: id}
		need = append(need, Reference{y.Key(), fmt.Sprintf("%v %d of action profile %s", k, id, p.Name)})
	}
	for _, m := range x.Members {
		add(KindMember, i.Profile(x.Object), m.MemberId)
	}
	switch a := x.Entry.GetAction().GetType().(type) {
	case *p4v1.TableAction_ActionProfileMemberId:
		add(KindMember, i.Table(x.Object).Profile, a.ActionProfileMemberId)
	case *p4v1.TableAction_ActionProfileGroupId:
		add(KindGroup, i.Table(x.Object).Profile, a.ActionProfileGroupId)
	}
	return need
}

// ProfileOf returns the action profile of a member or a group, or the one of an entry's table; nil: the entry
// is a default entry, or there is no profile.
func (i *Info) ProfileOf(e *p4v1.Entity) *Profile {
	x := Of(e)
	if t := x.Entry; t != nil && !t.IsDefaultAction {
		return i.Table(x.Object).Profile
	}
	return i.Profile(x.Object)
}

// Key returns a string that identifies an entity within its device: two entities in canonical form have the
// same Key if and only if they are the same entity for a Write request. The first byte tells the kind. The Key
// of an entity that cannot be written is "".
func Key(e *p4v1.Entity) string {
	x := Of(e)
	return x.Key()
}

// Key is like the function Key, for an entity of which the parts are known.
func (x *Entity) Key() string {
	switch k := &kinds[x.Kind]; {
	case k.key == 0:
		return ""
	case k.object == "table":
		return string(appendEntry([]byte{k.key}, x.Entry))
	case k.cells && x.Index == nil:
		return key(k.key, x.Object, ^uint64(0))
	case k.cells:
		return key(k.key, x.Object, uint64(x.Index.GetIndex()))
	default:
		return key(k.key, x.Object, uint64(x.ID))
	}
}

func key(kind byte, a uint32, b uint64) string {
	k := binary.AppendUvarint([]byte{kind}, uint64(a))
	return string(binary.AppendUvarint(k, b))
}

func appendEntry(k []byte, e *p4v1.TableEntry) []byte {
	k = binary.BigEndian.AppendUint32(k, e.GetTableId())
	if e.GetIsDefaultAction() {
		return append(k, 'd')
	}
	k = binary.BigEndian.AppendUint32(k, uint32(e.GetPriority()))
	return appendMatch(k, e.GetMatch())
}

func appendMatch(k []byte, list []*p4v1.FieldMatch) []byte {
	for _, m := range list {
		k = binary.AppendUvarint(k, uint64(m.GetFieldId()))
		c := CondOf(m)
		for _, v := range [...]*[]byte{c.Value, c.More} {
			if v != nil {
				k = binary.AppendUvarint(k, uint64(len(*v)))
				k = append(k, *v...)
			}
		}
		if c.Prefix != nil {
			k = binary.AppendUvarint(k, uint64(uint32(*c.Prefix)))
		}
	}
	return k
}

// Cond is the condition of one field of a key. Its pointers point into the message.
type Cond struct {
	Match  configv1.MatchField_MatchType // unspecified: of none of these types
	Value  *[]byte                       // of a range: its begin
	More   *[]byte                       // the mask of a ternary match, the end of a range; nil: others have none
	Prefix *int32                        // the length of an LPM's prefix; nil: others have none
}

// CondOf returns the parts of a match.
func CondOf(m *p4v1.FieldMatch) Cond {
	switch x := m.GetFieldMatchType().(type) {
	case *p4v1.FieldMatch_Exact_:
		return Cond{Match: configv1.MatchField_EXACT, Value: &x.Exact.Value}
	case *p4v1.FieldMatch_Optional_:
		return Cond{Match: configv1.MatchField_OPTIONAL, Value: &x.Optional.Value}
	case *p4v1.FieldMatch_Lpm:
		return Cond{Match: configv1.MatchField_LPM, Value: &x.Lpm.Value, Prefix: &x.Lpm.PrefixLen}
	case *p4v1.FieldMatch_Ternary_:
		return Cond{Match: configv1.MatchField_TERNARY, Value: &x.Ternary.Value, More: &x.Ternary.Mask}
	case *p4v1.FieldMatch_Range_:
		return Cond{Match: configv1.MatchField_RANGE, Value: &x.Range.Low, More: &x.Range.High}
	}
	return Cond{}
}

// Matching returns a match of the field, of the match kind that the field has. more is the mask, or the end of
// the range. Matching returns nil if the prefix length or the mask is 0, because the field then matches all
// values.
func (f *Field) Matching(v, more []byte, prefix int) *p4v1.FieldMatch {
	m := &p4v1.FieldMatch{FieldId: f.ID}
	switch f.Match {
	case configv1.MatchField_EXACT:
		m.FieldMatchType = &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: v}}
	case configv1.MatchField_OPTIONAL:
		m.FieldMatchType = &p4v1.FieldMatch_Optional_{Optional: &p4v1.FieldMatch_Optional{Value: v}}
	case configv1.MatchField_LPM:
		if prefix == 0 {
			return nil
		}
		m.FieldMatchType = &p4v1.FieldMatch_Lpm{Lpm: &p4v1.FieldMatch_LPM{Value: v, PrefixLen: int32(prefix)}}
	case configv1.MatchField_TERNARY:
		if value.IsZero(more) {
			return nil
		}
		m.FieldMatchType = &p4v1.FieldMatch_Ternary_{Ternary: &p4v1.FieldMatch_Ternary{Value: v, Mask: more}}
	case configv1.MatchField_RANGE:
		m.FieldMatchType = &p4v1.FieldMatch_Range_{Range: &p4v1.FieldMatch_Range{Low: v, High: more}}
	}
	return m
}
