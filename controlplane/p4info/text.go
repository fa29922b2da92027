package p4info

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// Text returns an entity as one line of text, with names instead of ids:
//
//	table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 -> set_next_hop(next_hop=1)
func (i *Info) Text(e *p4v1.Entity) string {
	x := Of(e)
	if x.Kind == KindEntry {
		return i.entryText(x.Entry)
	}
	name := fmt.Sprintf("0x%08x", x.Object)
	if o := i.byID[x.Object]; o != nil {
		name = o.object().Name
	}
	s := x.Kind.String() + " " + name
	switch x.Kind {
	case KindDirectCounter, KindDirectMeter:
		return x.Kind.String() + " of " + i.entryText(x.Entry) + countText(x.Count) + meterText(x.Rates)
	case KindMember, KindGroup:
		s = fmt.Sprintf("action profile %s %v %d", name, x.Kind, x.ID)
		if x.Action != nil {
			s += " -> " + i.actionText(x.Action)
		}
		for n, m := range x.Members {
			if n == 0 {
				s += " -> members "
			} else {
				s += ", "
			}
			s += fmt.Sprint(m.GetMemberId()) + weightText(m.GetWeight())
		}
		return s
	case KindCounter, KindMeter, KindRegister:
		index := "[*]"
		if x.Index != nil {
			index = fmt.Sprintf("[%d]", x.Index.GetIndex())
		}
		s += index + countText(x.Count) + meterText(x.Rates)
		if x.Data != nil {
			s += " = " + DataText(x.Data)
		}
		return s
	case KindValueSet:
		var fields []Field
		if v := i.ValueSet(x.Object); v != nil {
			fields = v.Fields
		}
		var members []string
		for _, m := range x.Values {
			members = append(members, matchText(fields, m.GetMatch()))
		}
		return s + " {" + strings.Join(members, "; ") + "}"
	case KindDigest:
		if c := x.Digest; c != nil {
			s += fmt.Sprintf(" lists of %d, %d ns, acknowledged in %d ns", c.GetMaxListSize(), c.GetMaxTimeoutNs(), c.GetAckTimeoutNs())
		}
		return s
	case KindMulticast, KindClone:
		return fmt.Sprintf("%v %d", x.Kind, x.ID) + replicaText(x.Replicas)
	}
	return "nothing"
}

// weightText returns the text of a weight; a weight of 1 has none.
func weightText(w int32) string {
	if w == 1 {
		return ""
	}
	return fmt.Sprintf("*%d", w)
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
	one := func(port, instance uint32) string {
		if instance == 0 {
			return fmt.Sprint(port)
		}
		return fmt.Sprintf("%d#%d", port, instance)
	}
	var s []string
	for _, r := range list {
		t := one(ReplicaPort(r), r.GetInstance())
		for _, b := range r.GetBackupReplicas() {
			t += " or " + one(PortNumber(b.GetPort()), b.GetInstance())
		}
		s = append(s, t)
	}
	return " -> ports " + strings.Join(s, ", ")
}

// DataText returns the text of a value of any type.
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

// keyText returns the text of an entry's key.
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

// plainly returns s for people to read: in quotes if s is empty or has characters that would make the line
// ambiguous.
func plainly(f *Field, s string) string {
	if f.Type.Bits == 0 && (s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(" ,()=\"", r) })) {
		return strconv.Quote(s)
	}
	return s
}

func matchText(fields []Field, list []*p4v1.FieldMatch) string {
	var s []string
	for _, m := range list {
		f := FieldByID(fields, m.GetFieldId())
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

// MatchText returns the text of a match: a value, for LPM value/length, for ternary value&&&mask, for a range
// low..high.
func (f *Field) MatchText(m *p4v1.FieldMatch) string {
	c := CondOf(m)
	if c.Value == nil {
		return "?"
	}
	v := FormatValue(f.Name, f.Type, *c.Value)
	switch c.Match {
	case configv1.MatchField_LPM:
		return v + "/" + strconv.Itoa(int(*c.Prefix))
	case configv1.MatchField_TERNARY:
		return v + "&&&0x" + hex.EncodeToString(*c.More)
	case configv1.MatchField_RANGE:
		return v + ".." + FormatValue(f.Name, f.Type, *c.More)
	}
	return v
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
			s = append(s, i.actionText(y.GetAction())+weightText(y.GetWeight()))
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
		if f := FieldByID(x.Params, p.GetParamId()); f != nil {
			s = append(s, f.Name+"="+plainly(f, FormatValue(f.Name, f.Type, p.GetValue())))
		} else {
			s = append(s, fmt.Sprintf("parameter %d", p.GetParamId()))
		}
	}
	return x.Name + "(" + strings.Join(s, ", ") + ")"
}
