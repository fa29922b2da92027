package ctl

import (
	"bytes"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	p4configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/value"
	"github.com/quillon/quillon/p4src"
)

// everything is a P4Info with what p4src's programs have none of: every kind of
// match, a direct meter, a value set, references among tables.
const everything = `
tables {
  preamble { id: 0x02000001 name: "in.all" alias: "all" }
  match_fields { id: 1 name: "hdr.a" bitwidth: 48 match_type: EXACT }
  match_fields { id: 2 name: "hdr.ip6" bitwidth: 128 match_type: LPM }
  match_fields { id: 3 name: "hdr.c[0].$valid$" bitwidth: 1 match_type: TERNARY }
  match_fields { id: 4 name: "hdr.d" bitwidth: 200 match_type: RANGE }
  match_fields { id: 5 name: "hdr.ip" bitwidth: 32 match_type: OPTIONAL }
  match_fields { id: 6 name: "hdr.f" bitwidth: 12 match_type: TERNARY }
  action_refs { id: 0x01000001 }
  action_refs { id: 0x01000002 }
  initial_default_action { action_id: 0x01000002 }
  direct_resource_ids: 0x14000001
  size: 100
  idle_timeout_behavior: NOTIFY_CONTROL
}
tables {
  preamble { id: 0x02000002 name: "in.upper" alias: "upper" }
  match_fields { id: 1 name: "x" bitwidth: 8 match_type: EXACT annotations: "@refers_to(lower, x)" }
  action_refs { id: 0x01000001 }
  size: 6
}
tables {
  preamble { id: 0x02000003 name: "in.lower" alias: "lower" }
  match_fields { id: 1 name: "x" bitwidth: 8 match_type: EXACT }
  action_refs { id: 0x01000002 }
  size: 100
}
tables {
  preamble { id: 0x02000004 name: "in.profiled" alias: "profiled" }
  match_fields { id: 1 name: "x" bitwidth: 3 match_type: EXACT }
  action_refs { id: 0x01000001 }
  implementation_id: 0x11000001
  size: 100
}
actions { preamble { id: 0x01000001 name: "in.set" alias: "set" } params { id: 1 name: "mac" bitwidth: 48 } params { id: 2 name: "n" bitwidth: 9 } }
actions { preamble { id: 0x01000002 name: "nop" alias: "nop" } }
action_profiles { preamble { id: 0x11000001 name: "in.sel" alias: "sel" } table_ids: 0x02000004 with_selector: true size: 100 }
direct_meters { preamble { id: 0x14000001 name: "in.dm" alias: "dm" } spec { unit: BYTES } direct_table_id: 0x02000001 }
meters { preamble { id: 0x13000001 name: "in.m" alias: "m" } spec { unit: PACKETS } size: 4 }
counters { preamble { id: 0x12000001 name: "in.c" alias: "c" } spec { unit: BOTH } size: 4 }
registers { preamble { id: 0x16000001 name: "in.r" alias: "r" } type_spec { bitstring { bit { bitwidth: 96 } } } size: 4 }
digests { preamble { id: 0x17000001 name: "dig" alias: "dig" } type_spec { bitstring { bit { bitwidth: 9 } } } }
value_sets { preamble { id: 0x03000001 name: "pvs" alias: "pvs" } match { id: 1 name: "field" bitwidth: 16 match_type: EXACT } size: 4 }
`

func everythingInfo(t testing.TB) *p4info.Info {
	t.Helper()
	m := &p4configv1.P4Info{}
	if err := prototext.Unmarshal([]byte(everything), m); err != nil {
		t.Fatal(err)
	}
	info, err := p4info.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func genBytes(t *rapid.T, bits int) []byte {
	v := new(big.Int).SetBytes(rapid.SliceOfN(rapid.Byte(), (bits+7)/8, (bits+7)/8).Draw(t, "value"))
	if rapid.Bool().Draw(t, "small") {
		v.And(v, big.NewInt(3))
	}
	return value.Canonical(v.And(v, bigOnes(bits)).Bytes())
}

func genAction(t *rapid.T, a *p4info.Action) *p4v1.Action {
	out := &p4v1.Action{ActionId: a.ID}
	for _, p := range a.Params {
		out.Params = append(out.Params, &p4v1.Action_Param{ParamId: p.ID, Value: genBytes(t, p.Type.Bits)})
	}
	return out
}

func genMatch(t *rapid.T, f *p4info.Field) *p4v1.FieldMatch {
	m := &p4v1.FieldMatch{FieldId: f.ID}
	v := new(big.Int).SetBytes(genBytes(t, f.Type.Bits))
	if f.Match != p4configv1.MatchField_EXACT && rapid.Bool().Draw(t, "any") {
		return nil
	}
	switch f.Match {
	case p4configv1.MatchField_EXACT:
		m.FieldMatchType = &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: value.Canonical(v.Bytes())}}
	case p4configv1.MatchField_OPTIONAL:
		m.FieldMatchType = &p4v1.FieldMatch_Optional_{Optional: &p4v1.FieldMatch_Optional{Value: value.Canonical(v.Bytes())}}
	case p4configv1.MatchField_LPM:
		n := rapid.IntRange(1, f.Type.Bits).Draw(t, "length")
		v.AndNot(v, bigOnes(f.Type.Bits-n))
		m.FieldMatchType = &p4v1.FieldMatch_Lpm{Lpm: &p4v1.FieldMatch_LPM{Value: value.Canonical(v.Bytes()), PrefixLen: int32(n)}}
	case p4configv1.MatchField_TERNARY:
		mask := new(big.Int).SetBytes(genBytes(t, f.Type.Bits))
		if mask.Sign() == 0 {
			return nil
		}
		v.And(v, mask)
		m.FieldMatchType = &p4v1.FieldMatch_Ternary_{Ternary: &p4v1.FieldMatch_Ternary{Value: value.Canonical(v.Bytes()), Mask: value.Canonical(mask.Bytes())}}
	case p4configv1.MatchField_RANGE:
		w := new(big.Int).SetBytes(genBytes(t, f.Type.Bits))
		if v.Cmp(w) > 0 {
			v, w = w, v
		}
		if v.Sign() == 0 && w.Cmp(bigOnes(f.Type.Bits)) == 0 {
			return nil
		}
		m.FieldMatchType = &p4v1.FieldMatch_Range_{Range: &p4v1.FieldMatch_Range{Low: value.Canonical(v.Bytes()), High: value.Canonical(w.Bytes())}}
	}
	return m
}

func genRates(t *rapid.T) *p4v1.MeterConfig {
	n := rapid.Int64Range(1, 1<<29)
	cir, burst := n.Draw(t, "cir"), n.Draw(t, "cburst")
	return &p4v1.MeterConfig{Cir: cir, Cburst: burst, Pir: cir + n.Draw(t, "pir"), Pburst: burst + n.Draw(t, "pburst")}
}

// genEntities is a state that a device can be in: canonical, each key once, no
// reference to what is not there, no table too full.
func genEntities(t *rapid.T, info *p4info.Info) []*p4v1.Entity {
	var out []*p4v1.Entity
	seen, count := map[string]bool{}, map[uint32]int64{}
	add := func(e *p4v1.Entity) {
		for _, need := range info.References(e) {
			if !seen[need.Key] {
				return
			}
		}
		if err := info.Update(update(e)); err != nil {
			t.Fatalf("%s: %v", info.Text(e), err)
		}
		counted(info, e)
		normal(e)
		if x := e.GetTableEntry(); x != nil && !x.IsDefaultAction && !seen[p4info.Key(e)] {
			if count[x.TableId]++; count[x.TableId] > info.Table(x.TableId).Size {
				return
			}
		}
		if k := p4info.Key(e); !seen[k] {
			seen[k] = true
			out = append(out, e)
		}
	}
	times := func(n int) int { return rapid.IntRange(0, n).Draw(t, "count") }
	for range times(3) {
		g := &p4v1.MulticastGroupEntry{MulticastGroupId: rapid.Uint32Range(1, 4).Draw(t, "id")}
		for p := range times(3) {
			g.Replicas = append(g.Replicas, &p4v1.Replica{PortKind: &p4v1.Replica_Port{Port: value.Bytes(uint64(p + 1))}, Instance: rapid.Uint32Range(0, 2).Draw(t, "instance")})
		}
		add(&p4v1.Entity{Entity: &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4v1.PacketReplicationEngineEntry{
			Type: &p4v1.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: g}}}})
	}
	for range times(2) {
		add(p4info.Entity{Kind: p4info.KindClone, ID: rapid.Uint32Range(1, 4).Draw(t, "id"), Length: int32(times(100)),
			Replicas: []*p4v1.Replica{{PortKind: &p4v1.Replica_Port{Port: value.Bytes(510)}}}}.Message())
	}
	for _, d := range info.Digests {
		add(&p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: &p4v1.DigestEntry{DigestId: d.ID, Config: &p4v1.DigestEntry_Config{
			MaxTimeoutNs: rapid.Int64Range(0, 1e12).Draw(t, "timeout"), MaxListSize: int32(times(10)), AckTimeoutNs: 1e9,
		}}}})
	}
	for _, m := range info.Meters {
		for range times(3) {
			add(&p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{MeterId: m.ID, Index: &p4v1.Index{Index: rapid.Int64Range(0, m.Size-1).Draw(t, "index")}, Config: genRates(t)}}})
		}
	}
	sets := map[*p4info.Profile]bool{} // profiles without members
	for _, p := range info.Profiles {
		if sets[p] = rapid.Bool().Draw(t, "one shot"); sets[p] {
			continue
		}
		for range times(4) {
			a := p.Tables[0].Actions[0].Action
			add(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: &p4v1.ActionProfileMember{ActionProfileId: p.ID, MemberId: rapid.Uint32Range(1, 5).Draw(t, "member"), Action: genAction(t, a)}}})
		}
		for range times(3) {
			g := &p4v1.ActionProfileGroup{ActionProfileId: p.ID, GroupId: rapid.Uint32Range(1, 3).Draw(t, "group"), MaxSize: 100}
			for id := range uint32(1 + times(3)) {
				g.Members = append(g.Members, &p4v1.ActionProfileGroup_Member{MemberId: id + 1, Weight: int32(1 + times(2))})
			}
			add(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: g}})
		}
	}
	for _, tb := range info.Tables {
		for range times(6) {
			if len(tb.Fields) == 0 {
				break
			}
			e := &p4v1.TableEntry{TableId: tb.ID}
			for i := range tb.Fields {
				if m := genMatch(t, &tb.Fields[i]); m != nil {
					e.Match = append(e.Match, m)
				}
			}
			if tb.Priority {
				e.Priority = rapid.Int32Range(1, 1<<20).Draw(t, "priority")
			}
			if tb.IdleTimeout {
				e.IdleTimeoutNs = int64(times(5)) * 1e9
			}
			if tb.Meter != nil && rapid.Bool().Draw(t, "metered") {
				e.MeterConfig = genRates(t)
			}
			if tb.Counter != nil && rapid.Bool().Draw(t, "counted") {
				e.CounterData = &p4v1.CounterData{PacketCount: 1, ByteCount: int64(times(100))}
			}
			if rapid.Bool().Draw(t, "metadata") {
				e.Metadata = []byte{0, 1}
			}
			var usable []*p4info.Action
			for _, a := range tb.Actions {
				if a.Scope != p4configv1.ActionRef_DEFAULT_ONLY {
					usable = append(usable, a.Action)
				}
			}
			act := usable[rapid.IntRange(0, len(usable)-1).Draw(t, "action")]
			switch {
			case tb.Profile == nil:
				e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: genAction(t, act)}}
			case !sets[tb.Profile] && rapid.Bool().Draw(t, "grouped"):
				e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileGroupId{ActionProfileGroupId: rapid.Uint32Range(1, 3).Draw(t, "group")}}
			case sets[tb.Profile]:
				set := &p4v1.ActionProfileActionSet{}
				for range 1 + times(2) {
					set.ActionProfileActions = append(set.ActionProfileActions, &p4v1.ActionProfileAction{Action: genAction(t, act), Weight: int32(1 + times(3)),
						WatchKind: &p4v1.ActionProfileAction_WatchPort{WatchPort: value.Bytes(uint64(times(500)))}})
				}
				e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileActionSet{ActionProfileActionSet: set}}
			default:
				e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_ActionProfileMemberId{ActionProfileMemberId: rapid.Uint32Range(1, 5).Draw(t, "member")}}
			}
			add(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: e}})
		}
		if tb.ConstDefault == nil && tb.Profile == nil && tb.Proto.GetInitialDefaultAction() != nil && rapid.Bool().Draw(t, "default") {
			act := tb.Actions[rapid.IntRange(0, len(tb.Actions)-1).Draw(t, "default action")]
			if act.Scope != p4configv1.ActionRef_TABLE_ONLY {
				a := genAction(t, act.Action)
				if !proto.Equal(a, tb.InitialDefault()) {
					add(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: tb.ID, IsDefaultAction: true, Action: &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}}}}})
				}
			}
		}
	}
	for _, r := range info.Registers {
		for range times(2) {
			if r.Size == 0 || r.Bits == 0 {
				continue
			}
			v := genBytes(t, r.Bits)
			if !zeroData(&p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: v}}) {
				add(&p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: &p4v1.RegisterEntry{RegisterId: r.ID, Index: &p4v1.Index{Index: rapid.Int64Range(0, r.Size-1).Draw(t, "index")},
					Data: &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: v}}}}})
			}
		}
	}
	for _, c := range info.Counters {
		add(&p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: c.ID, Index: &p4v1.Index{Index: rapid.Int64Range(0, c.Size-1).Draw(t, "index")},
			Data: &p4v1.CounterData{PacketCount: int64(1 + times(100)), ByteCount: int64(times(100))}}}})
	}
	for _, v := range info.ValueSets {
		x := &p4v1.ValueSetEntry{ValueSetId: v.ID}
		for n := range 1 + times(2) {
			x.Members = append(x.Members, &p4v1.ValueSetMember{Match: []*p4v1.FieldMatch{{FieldId: 1, FieldMatchType: &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: value.Bytes(uint64(n))}}}}})
		}
		add(&p4v1.Entity{Entity: &p4v1.Entity_ValueSetEntry{ValueSetEntry: x}})
	}
	return out
}

func infos(t testing.TB) []*p4info.Info {
	t.Helper()
	all := []*p4info.Info{everythingInfo(t)}
	for _, name := range p4src.Programs() {
		dir := t.TempDir()
		file, _ := program(t, dir, name)
		m, err := ReadP4Info(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		info, err := p4info.New(m)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, info)
	}
	return all
}

// What is written of a device and read again is equal, and what is applied from it
// makes another device equal, too.
func TestDumpRoundTrip(t *testing.T) {
	all := infos(t)
	f := ctltest.New(1, 2)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	s := open(t, &Dialer{}, at, 1, options())
	s2 := open(t, &Dialer{}, at, 2, options())
	for _, s := range []*Session{s, s2} {
		if err := s.Ready(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		info := all[rapid.IntRange(0, len(all)-1).Draw(rt, "program")]
		want := genEntities(rt, info)
		d := &Device{Target: Target{Name: "x"}, Info: info, Pipeline: NewPipeline(info.Proto, []byte("{}")), Entities: want}
		ctx := within(t)
		for _, x := range []*Session{s, s2} {
			if err := x.SetPipeline(ctx, p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, d.Pipeline); err != nil {
				rt.Fatal(err)
			}
		}
		// The other one holds something else.
		before := &Device{Target: Target{Name: "y"}, Info: info, Pipeline: d.Pipeline, Entities: genEntities(rt, info)}
		if diff, err := s2.Diff(ctx, before, CompareValues); err != nil {
			rt.Fatal(err)
		} else if o, err := s2.Apply(ctx, diff, Limits{}); err != nil || o.Err() != nil {
			rt.Fatal(err, o.Err())
		}
		diff, err := s.Diff(ctx, d, CompareValues)
		if err != nil {
			rt.Fatal(err)
		}
		if o, err := s.Apply(ctx, diff, Limits{Updates: 3}); err != nil || o.Err() != nil {
			rt.Fatal(err, o.Err())
		}
		dir := t.TempDir()
		b, err := proto.Marshal(info.Proto)
		if err != nil {
			rt.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "p.bin"), b, 0o644); err != nil {
			rt.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "p.json"), []byte("{}"), 0o644); err != nil {
			rt.Fatal(err)
		}
		var text bytes.Buffer
		if n, err := s.Dump(ctx, info, "p.bin", "p.json", &text); err != nil || n != len(want) {
			rt.Fatalf("%d entities in the dump, want %d: %v\n%s", n, len(want), err, text.String())
		}
		in, err := parseIntent(filepath.Join(dir, "dump.yaml"), text.Bytes())
		if err != nil {
			rt.Fatalf("%v\n%s", err, text.String())
		}
		got := map[string]*p4v1.Entity{}
		for _, e := range in.Devices[0].Entities {
			got[p4info.Key(e)] = e
		}
		for _, w := range want {
			if !proto.Equal(w, got[p4info.Key(w)]) {
				rt.Fatalf("%s became %s\n%s", info.Text(w), info.Text(got[p4info.Key(w)]), text.String())
			}
		}
		diff, err = s2.Diff(ctx, in.Devices[0], CompareValues)
		if err != nil {
			rt.Fatal(err)
		}
		if o, err := s2.Apply(ctx, diff, Limits{}); err != nil || o.Err() != nil {
			rt.Fatal(err, o.Err())
		}
		var again bytes.Buffer
		if _, err := s2.Dump(ctx, info, "p.bin", "p.json", &again); err != nil {
			rt.Fatal(err)
		}
		if _, x, _ := strings.Cut(text.String(), "p4info"); !strings.HasSuffix(again.String(), x) {
			rt.Fatalf("restored:\n%s\nof\n%s", again.String(), text.String())
		}
	})
}

// From any state to any other: every update is accepted, whatever refers to
// whatever, and then there is nothing left to do.
func TestApplyConverges(t *testing.T) {
	all := infos(t)
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	s := open(t, &Dialer{}, at, 1, options())
	if err := s.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		info := all[rapid.IntRange(0, len(all)-1).Draw(rt, "program")]
		p := NewPipeline(info.Proto, nil)
		ctx := within(t)
		if err := s.SetPipeline(ctx, p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, p); err != nil {
			rt.Fatal(err)
		}
		limits := Limits{Updates: rapid.IntRange(1, 5).Draw(rt, "batch")}
		for range 3 {
			d := &Device{Target: Target{Name: "x"}, Info: info, Pipeline: p, Entities: genEntities(rt, info)}
			diff, err := s.Compare(ctx, d, LeaveValues)
			if err != nil {
				rt.Fatal(err)
			}
			for _, b := range diff.Plan(limits) {
				if len(b.Changes) > limits.Updates {
					rt.Fatalf("a batch of %d", len(b.Changes))
				}
				// Servers may change the order in a batch.
				if rapid.Bool().Draw(rt, "reversed") {
					slices.Reverse(b.Changes)
				}
				if err := s.Write(ctx, 0, b.Updates()...); err != nil {
					for _, c := range diff.Changes {
						rt.Log(c.Text(info))
					}
					rt.Fatal(err)
				}
			}
			if diff, err = s.Compare(ctx, d, LeaveValues); err != nil || len(diff.Changes) > 0 {
				for _, c := range diff.Changes {
					rt.Log(c.Text(info))
				}
				rt.Fatalf("%d changes are left: %v", len(diff.Changes), err)
			}
		}
	})
}

// The tables to which others refer come first, and go last.
func TestOrderByReferences(t *testing.T) {
	info := everythingInfo(t)
	upper, lower := info.Tables[1].ID, info.Tables[2].ID
	r := ranks(info)
	if r[upper] != r[lower]+1 || r[lower] != rankTables {
		t.Errorf("ranks %v", r)
	}
	entry := func(table uint32, x byte) *p4v1.Entity {
		return &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: table, Match: []*p4v1.FieldMatch{{FieldId: 1, FieldMatchType: &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: []byte{x}}}}}}}}
	}
	d := &Diff{Device: &Device{Info: info}, Changes: []Change{
		{Type: p4v1.Update_DELETE, Entity: entry(lower, 1)},
		{Type: p4v1.Update_INSERT, Entity: entry(upper, 2)},
		{Type: p4v1.Update_DELETE, Entity: entry(upper, 1)},
		{Type: p4v1.Update_INSERT, Entity: entry(lower, 2)},
	}}
	d.order(map[uint32]int64{upper: 1, lower: 1})
	var got []string
	for _, c := range d.Changes {
		got = append(got, c.Text(info)[:20])
	}
	if strings.Join(got, ";") != "+ table in.lower x=2;+ table in.upper x=2;- table in.upper x=1;- table in.lower x=1" {
		t.Errorf("%q", got)
	}
	// A full table makes room first.
	d.order(map[uint32]int64{upper: 6, lower: 1})
	if d.Changes[0].Type != p4v1.Update_DELETE || d.Changes[0].Entity.GetTableEntry().TableId != upper {
		t.Errorf("first %s", d.Changes[0].Text(info))
	}
	if len(d.Plan(Limits{})) != 4 {
		t.Error("batches mix ranks")
	}
}

// bigOnes is the greatest number of a width.
func bigOnes(bits int) *big.Int {
	return new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(bits)), big.NewInt(1))
}
