package p4info

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// Key names an entity within its device: two entities in canonical form have
// the same Key if and only if a Write means the same thing by them. The first
// byte says what kind of entity it is. An empty Key: of no entity.
func Key(e *p4v1.Entity) string {
	switch x := e.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return string(appendEntry([]byte{'t'}, x.TableEntry))
	case *p4v1.Entity_DirectCounterEntry:
		return string(appendEntry([]byte{'C'}, x.DirectCounterEntry.GetTableEntry()))
	case *p4v1.Entity_DirectMeterEntry:
		return string(appendEntry([]byte{'M'}, x.DirectMeterEntry.GetTableEntry()))
	case *p4v1.Entity_ActionProfileMember:
		return key('a', uint64(x.ActionProfileMember.GetActionProfileId()), uint64(x.ActionProfileMember.GetMemberId()))
	case *p4v1.Entity_ActionProfileGroup:
		return key('g', uint64(x.ActionProfileGroup.GetActionProfileId()), uint64(x.ActionProfileGroup.GetGroupId()))
	case *p4v1.Entity_CounterEntry:
		return key('c', uint64(x.CounterEntry.GetCounterId()), indexKey(x.CounterEntry.GetIndex()))
	case *p4v1.Entity_MeterEntry:
		return key('m', uint64(x.MeterEntry.GetMeterId()), indexKey(x.MeterEntry.GetIndex()))
	case *p4v1.Entity_RegisterEntry:
		return key('r', uint64(x.RegisterEntry.GetRegisterId()), indexKey(x.RegisterEntry.GetIndex()))
	case *p4v1.Entity_ValueSetEntry:
		return key('v', uint64(x.ValueSetEntry.GetValueSetId()), 0)
	case *p4v1.Entity_DigestEntry:
		return key('d', uint64(x.DigestEntry.GetDigestId()), 0)
	case *p4v1.Entity_PacketReplicationEngineEntry:
		switch y := x.PacketReplicationEngineEntry.GetType().(type) {
		case *p4v1.PacketReplicationEngineEntry_MulticastGroupEntry:
			return key('G', uint64(y.MulticastGroupEntry.GetMulticastGroupId()), 0)
		case *p4v1.PacketReplicationEngineEntry_CloneSessionEntry:
			return key('S', uint64(y.CloneSessionEntry.GetSessionId()), 0)
		}
	case *p4v1.Entity_ExternEntry:
		return key('x', uint64(x.ExternEntry.GetExternTypeId()), uint64(x.ExternEntry.GetExternId()))
	}
	return ""
}

func indexKey(x *p4v1.Index) uint64 {
	if x == nil {
		return ^uint64(0)
	}
	return uint64(x.GetIndex())
}

func key(kind byte, a, b uint64) string {
	k := binary.AppendUvarint([]byte{kind}, a)
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
	bytes := func(v []byte) {
		k = binary.AppendUvarint(k, uint64(len(v)))
		k = append(k, v...)
	}
	for _, m := range list {
		k = binary.AppendUvarint(k, uint64(m.GetFieldId()))
		switch x := m.GetFieldMatchType().(type) {
		case *p4v1.FieldMatch_Exact_:
			bytes(x.Exact.GetValue())
		case *p4v1.FieldMatch_Optional_:
			bytes(x.Optional.GetValue())
		case *p4v1.FieldMatch_Lpm:
			bytes(x.Lpm.GetValue())
			k = binary.AppendUvarint(k, uint64(uint32(x.Lpm.GetPrefixLen())))
		case *p4v1.FieldMatch_Ternary_:
			bytes(x.Ternary.GetValue())
			bytes(x.Ternary.GetMask())
		case *p4v1.FieldMatch_Range_:
			bytes(x.Range.GetLow())
			bytes(x.Range.GetHigh())
		}
	}
	return k
}

// Text is an entity in one line, in names:
//
//	table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 -> set_next_hop(next_hop=1)
func (i *Info) Text(e *p4v1.Entity) string {
	index := func(x *p4v1.Index) string {
		if x == nil {
			return "[*]"
		}
		return fmt.Sprintf("[%d]", x.GetIndex())
	}
	name := func(id uint32) string {
		if o, ok := i.byID[id].(interface{ object() *Object }); ok {
			return o.object().Name
		}
		return fmt.Sprintf("0x%08x", id)
	}
	switch x := e.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return i.entryText(x.TableEntry)
	case *p4v1.Entity_DirectCounterEntry:
		return "direct counter of " + i.entryText(x.DirectCounterEntry.GetTableEntry()) + countText(x.DirectCounterEntry.GetData())
	case *p4v1.Entity_DirectMeterEntry:
		return "direct meter of " + i.entryText(x.DirectMeterEntry.GetTableEntry()) + meterText(x.DirectMeterEntry.GetConfig())
	case *p4v1.Entity_ActionProfileMember:
		m := x.ActionProfileMember
		s := fmt.Sprintf("action profile %s member %d", name(m.GetActionProfileId()), m.GetMemberId())
		if m.GetAction() != nil {
			s += " -> " + i.actionText(m.GetAction())
		}
		return s
	case *p4v1.Entity_ActionProfileGroup:
		g := x.ActionProfileGroup
		s := fmt.Sprintf("action profile %s group %d", name(g.GetActionProfileId()), g.GetGroupId())
		for n, m := range g.GetMembers() {
			s += []string{", ", " -> members "}[b2i(n == 0)] + fmt.Sprint(m.GetMemberId())
			if m.GetWeight() != 1 {
				s += fmt.Sprintf("*%d", m.GetWeight())
			}
		}
		return s
	case *p4v1.Entity_CounterEntry:
		return "counter " + name(x.CounterEntry.GetCounterId()) + index(x.CounterEntry.GetIndex()) + countText(x.CounterEntry.GetData())
	case *p4v1.Entity_MeterEntry:
		return "meter " + name(x.MeterEntry.GetMeterId()) + index(x.MeterEntry.GetIndex()) + meterText(x.MeterEntry.GetConfig())
	case *p4v1.Entity_RegisterEntry:
		s := "register " + name(x.RegisterEntry.GetRegisterId()) + index(x.RegisterEntry.GetIndex())
		if x.RegisterEntry.GetData() != nil {
			s += " = " + DataText(x.RegisterEntry.GetData())
		}
		return s
	case *p4v1.Entity_ValueSetEntry:
		v := x.ValueSetEntry
		s := fmt.Sprintf("value set %s {", name(v.GetValueSetId()))
		var fields []Field
		if vs := i.ValueSet(v.GetValueSetId()); vs != nil {
			fields = vs.Fields
		}
		for n, m := range v.GetMembers() {
			if n > 0 {
				s += "; "
			}
			s += matchText(fields, m.GetMatch())
		}
		return s + "}"
	case *p4v1.Entity_DigestEntry:
		s := "digest " + name(x.DigestEntry.GetDigestId())
		if c := x.DigestEntry.GetConfig(); c != nil {
			s += fmt.Sprintf(" lists of %d, %d ns, acknowledged in %d ns", c.GetMaxListSize(), c.GetMaxTimeoutNs(), c.GetAckTimeoutNs())
		}
		return s
	case *p4v1.Entity_PacketReplicationEngineEntry:
		switch y := x.PacketReplicationEngineEntry.GetType().(type) {
		case *p4v1.PacketReplicationEngineEntry_MulticastGroupEntry:
			return fmt.Sprintf("multicast group %d", y.MulticastGroupEntry.GetMulticastGroupId()) + replicaText(y.MulticastGroupEntry.GetReplicas())
		case *p4v1.PacketReplicationEngineEntry_CloneSessionEntry:
			return fmt.Sprintf("clone session %d", y.CloneSessionEntry.GetSessionId()) + replicaText(y.CloneSessionEntry.GetReplicas())
		}
	}
	return "nothing"
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func countText(c *p4v1.CounterData) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(" = %d packets, %d bytes", c.GetPacketCount(), c.GetByteCount())
}

func meterText(c *p4v1.MeterConfig) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(" = committed %d burst %d, peak %d burst %d", c.GetCir(), c.GetCburst(), c.GetPir(), c.GetPburst())
}

func replicaText(list []*p4v1.Replica) string {
	var s []string
	for _, r := range list {
		t := fmt.Sprint(ReplicaPort(r))
		if r.GetInstance() != 0 {
			t += fmt.Sprintf("#%d", r.GetInstance())
		}
		s = append(s, t)
	}
	return " -> ports " + strings.Join(s, ", ")
}

// DataText is a value of any type.
func DataText(d *p4v1.P4Data) string {
	list := func(l []*p4v1.P4Data) string {
		var s []string
		for _, x := range l {
			s = append(s, DataText(x))
		}
		return "{" + strings.Join(s, ", ") + "}"
	}
	switch x := d.GetData().(type) {
	case *p4v1.P4Data_Bitstring:
		return "0x" + hex.EncodeToString(x.Bitstring)
	case *p4v1.P4Data_Bool:
		return fmt.Sprint(x.Bool)
	case *p4v1.P4Data_Struct:
		return list(x.Struct.GetMembers())
	case *p4v1.P4Data_Tuple:
		return list(x.Tuple.GetMembers())
	case *p4v1.P4Data_EnumValue:
		return "0x" + hex.EncodeToString(x.EnumValue)
	case *p4v1.P4Data_Enum:
		return x.Enum
	}
	return "?"
}

func (i *Info) entryText(e *p4v1.TableEntry) string {
	t := i.Table(e.GetTableId())
	if t == nil {
		return fmt.Sprintf("table 0x%08x", e.GetTableId())
	}
	s := "table " + t.Name + " " + i.keyText(e)
	if e.GetAction() != nil {
		s += " -> " + i.tableActionText(e.GetAction())
	}
	return s
}

// keyText is what an entry of a table matches.
func (i *Info) keyText(e *p4v1.TableEntry) string {
	t := i.Table(e.GetTableId())
	if e.GetIsDefaultAction() {
		return "default"
	}
	s := matchText(t.Fields, e.GetMatch())
	if e.GetPriority() != 0 {
		s += fmt.Sprintf(" priority=%d", e.GetPriority())
	}
	return s
}

// plainly is a string that people read, in quotes unless it is plainly a word.
func plainly(f *Field, s string) string {
	if f.Type.Bits == 0 && (s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(" ,()=\"", r) })) {
		return strconv.Quote(s)
	}
	return s
}

func matchText(fields []Field, list []*p4v1.FieldMatch) string {
	var s []string
	for _, m := range list {
		f := byID(fields, m.GetFieldId())
		if f == nil {
			s = append(s, fmt.Sprintf("field %d", m.GetFieldId()))
			continue
		}
		s = append(s, f.Name+"="+plainly(f, f.MatchText(m)))
	}
	if len(s) == 0 {
		return "*"
	}
	return strings.Join(s, " ")
}

// MatchText is the value that a field of a key is matched with: a value, for
// LPM value/length, for ternary value&&&mask, for a range low..high.
func (f *Field) MatchText(m *p4v1.FieldMatch) string {
	v := func(b []byte) string { return FormatValue(f.Name, f.Type, b) }
	switch x := m.GetFieldMatchType().(type) {
	case *p4v1.FieldMatch_Exact_:
		return v(x.Exact.GetValue())
	case *p4v1.FieldMatch_Optional_:
		return v(x.Optional.GetValue())
	case *p4v1.FieldMatch_Lpm:
		return fmt.Sprintf("%s/%d", v(x.Lpm.GetValue()), x.Lpm.GetPrefixLen())
	case *p4v1.FieldMatch_Ternary_:
		return v(x.Ternary.GetValue()) + "&&&0x" + hex.EncodeToString(x.Ternary.GetMask())
	case *p4v1.FieldMatch_Range_:
		return v(x.Range.GetLow()) + ".." + v(x.Range.GetHigh())
	}
	return "?"
}

func (i *Info) tableActionText(a *p4v1.TableAction) string {
	switch x := a.GetType().(type) {
	case *p4v1.TableAction_Action:
		return i.actionText(x.Action)
	case *p4v1.TableAction_ActionProfileMemberId:
		return fmt.Sprintf("member %d", x.ActionProfileMemberId)
	case *p4v1.TableAction_ActionProfileGroupId:
		return fmt.Sprintf("group %d", x.ActionProfileGroupId)
	case *p4v1.TableAction_ActionProfileActionSet:
		var s []string
		for _, y := range x.ActionProfileActionSet.GetActionProfileActions() {
			t := i.actionText(y.GetAction())
			if y.GetWeight() != 1 {
				t += fmt.Sprintf("*%d", y.GetWeight())
			}
			s = append(s, t)
		}
		return "{" + strings.Join(s, ", ") + "}"
	}
	return "?"
}

func (i *Info) actionText(a *p4v1.Action) string {
	x := i.Action(a.GetActionId())
	if x == nil {
		return fmt.Sprintf("action 0x%08x", a.GetActionId())
	}
	var s []string
	for _, p := range a.GetParams() {
		if f := byID(x.Params, p.GetParamId()); f != nil {
			s = append(s, f.Name+"="+plainly(f, FormatValue(f.Name, f.Type, p.GetValue())))
		} else {
			s = append(s, fmt.Sprintf("parameter %d", p.GetParamId()))
		}
	}
	return x.Name + "(" + strings.Join(s, ", ") + ")"
}
