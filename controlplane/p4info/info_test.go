package p4info_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/p4src"
)

func load(t testing.TB, name string) *p4info.Info {
	t.Helper()
	src, err := p4src.Files.ReadFile(name + ".p4info.txtpb")
	if err != nil {
		t.Fatal(err)
	}
	i, err := p4info.Parse(src)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func update(t testing.TB, text string) *p4v1.Update {
	t.Helper()
	u := &p4v1.Update{}
	if err := prototext.Unmarshal([]byte(text), u); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return u
}

func TestProgramsParse(t *testing.T) {
	for _, name := range p4src.Programs() {
		i := load(t, name)
		for _, form := range []func(proto.Message) ([]byte, error){proto.Marshal, prototext.Marshal} {
			b, err := form(i.Proto)
			if err != nil {
				t.Fatal(err)
			}
			again, err := p4info.Parse(b)
			if err != nil || !proto.Equal(i.Proto, again.Proto) {
				t.Errorf("%s: read again: %v", name, err)
			}
		}
	}
}

func TestNames(t *testing.T) {
	i := load(t, "ipv4_router")
	for _, name := range []string{"router_ingress.ipv4_lpm", "ipv4_lpm"} {
		tb, err := p4info.ByName(i.Tables, "table", name)
		if err != nil || tb.ID != 36085846 {
			t.Fatalf("%s: %v %v", name, tb, err)
		}
		if a, err := tb.Action("set_next_hop"); err != nil || a.ID != 30129241 {
			t.Error(a, err)
		}
		if _, err := tb.Action("forward"); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "router_ingress.set_group") {
			t.Error(err)
		}
	}
	if _, err := p4info.ByName(i.Tables, "table", "lpm"); err == nil || !strings.Contains(err.Error(), "router_ingress.ipv4_lpm") {
		t.Error(err)
	}
}

const route = `type: INSERT entity { table_entry { table_id: 36085846
	match { field_id: 1 lpm { value: "\x00\x0a\x00\x00\x00" prefix_len: 8 } }
	action { action { action_id: 30129241 params { param_id: 1 value: "\x00\x07" } } } } }`

func TestCanonical(t *testing.T) {
	i := load(t, "ipv4_router")
	u := update(t, route)
	if err := i.Update(u); err != nil {
		t.Fatal(err)
	}
	want := update(t, strings.NewReplacer(`\x00\x0a`, `\x0a`, `"\x00\x07"`, `"\x07"`).Replace(route))
	if !proto.Equal(u, want) {
		t.Errorf("got %v", u)
	}
	if got, want := i.Text(u.Entity), "table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 -> router_ingress.set_next_hop(next_hop=7)"; got != want {
		t.Errorf("%s\n%s", got, want)
	}
}

// TestRefusals has one line for each rule that the specification states.
func TestRefusals(t *testing.T) {
	i := load(t, "ipv4_router")
	entry := func(s string) string { return "type: INSERT entity { table_entry { " + s + " } }" }
	const to = ` action { action { action_id: 30129241 params { param_id: 1 value: "\x07" } } }`
	const ten = ` match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } }`
	const group = ` match { field_id: 1 exact { value: "\xe0\x00\x00\x01" } }`
	const repl = ` action { action { action_id: 22853191 params { param_id: 1 value: "\x07" } } }`
	for _, c := range []struct {
		code codes.Code
		says string
		text string
	}{
		{codes.OK, "", entry("table_id: 36085846" + ten + to)},
		{codes.OK, "", entry("table_id: 36085846" + to)}, // matches everything
		{codes.NotFound, "no table 0x00000001", entry("table_id: 1" + ten + to)},
		{codes.NotFound, "no table 0x00000000", entry(to)},
		{codes.InvalidArgument, "no type", `entity { table_entry { table_id: 36085846 } }`},
		{codes.InvalidArgument, "no entity", `type: INSERT`},
		{codes.InvalidArgument, "table router_ingress.ipv4_lpm: there is no field 2", entry(`table_id: 36085846 match { field_id: 2 exact { value: "1" } }` + to)},
		{codes.InvalidArgument, "field hdr.ipv4.dst: an exact match, the field's is lpm", entry(`table_id: 36085846 match { field_id: 1 exact { value: "1" } }` + to)},
		{codes.InvalidArgument, "is there twice", entry("table_id: 36085846" + ten + ten + to)},
		{codes.InvalidArgument, "leave the field out", entry(`table_id: 36085846 match { field_id: 1 lpm { value: "\x00" } }` + to)},
		{codes.InvalidArgument, "behind its prefix", entry(`table_id: 36085846 match { field_id: 1 lpm { value: "\x0a\x00\x00\x01" prefix_len: 8 } }` + to)},
		{codes.InvalidArgument, "length 33", entry(`table_id: 36085846 match { field_id: 1 lpm { value: "\x0a\x00\x00\x01" prefix_len: 33 } }` + to)},
		{codes.OutOfRange, "needs 33 bits", entry(`table_id: 36085846 match { field_id: 1 lpm { value: "\x01\x00\x00\x00\x00" prefix_len: 8 } }` + to)},
		{codes.OutOfRange, "empty", entry(`table_id: 36085846 match { field_id: 1 lpm { value: "" prefix_len: 8 } }` + to)},
		{codes.InvalidArgument, "without a value", entry(`table_id: 36085846 match { field_id: 1 }` + to)},
		{codes.InvalidArgument, "priority 3", entry("table_id: 36085846 priority: 3" + ten + to)},
		{codes.InvalidArgument, "an action is missing", entry("table_id: 36085846" + ten)},
		{codes.InvalidArgument, "no action 0x01681f90", entry("table_id: 36085846" + ten + `action { action { action_id: 23601040 } }`)},
		{codes.PermissionDenied, "default entry only", entry("table_id: 36085846" + ten + `action { action { action_id: 20892174 } }`)},
		{codes.InvalidArgument, "parameter next_hop is missing", entry("table_id: 36085846" + ten + `action { action { action_id: 30129241 } }`)},
		{codes.InvalidArgument, "no parameter 2", entry("table_id: 36085846" + ten + `action { action { action_id: 30129241 params { param_id: 2 value: "1" } } }`)},
		{codes.InvalidArgument, "next_hop is there twice", entry("table_id: 36085846" + ten + `action { action { action_id: 30129241 params { param_id: 1 value: "1" } params { param_id: 1 value: "1" } } }`)},
		{codes.OutOfRange, "parameter next_hop: value 0x010000 needs 17 bits", entry("table_id: 36085846" + ten + `action { action { action_id: 30129241 params { param_id: 1 value: "\x01\x00\x00" } } }`)},
		{codes.InvalidArgument, "the table has no action profile", entry("table_id: 36085846" + ten + `action { action_profile_member_id: 1 }`)},
		{codes.InvalidArgument, "idle timeout", entry("table_id: 36085846 idle_timeout_ns: 5" + ten + to)},
		{codes.InvalidArgument, "no direct meter", entry("table_id: 36085846 meter_config { cir: 5 }" + ten + to)},
		{codes.InvalidArgument, "below 0", entry("table_id: 36085846 counter_data { packet_count: -5 }" + ten + to)},
		{codes.InvalidArgument, "is_const", entry("table_id: 36085846 is_const: true" + ten + to)},
		{codes.PermissionDenied, "constant", `type: MODIFY entity { table_entry { table_id: 36085846 is_default_action: true } }`},
		{codes.InvalidArgument, "only be modified", entry("table_id: 37884245 is_default_action: true")},
		{codes.InvalidArgument, "a priority above 0", entry("table_id: 46073810" + group + repl)},
		{codes.OK, "", entry("table_id: 46073810 priority: 1" + group + repl)},
		{codes.InvalidArgument, "field hdr.ipv4.dst is missing", entry("table_id: 46073810 priority: 1" + repl)},
		{codes.InvalidArgument, "outside of mask", entry(`table_id: 46073810 priority: 1 match { field_id: 2 ternary { value: "\x02" mask: "\x01" } }` + group + repl)},
		{codes.InvalidArgument, "a mask of 0", entry(`table_id: 46073810 priority: 1 match { field_id: 2 ternary { value: "\x00" mask: "\x00" } }` + group + repl)},
		{codes.OutOfRange, "mask: the value is empty", entry(`table_id: 46073810 priority: 1 match { field_id: 2 ternary { value: "\x00" } }` + group + repl)},
		{codes.InvalidArgument, "takes members and groups", entry("table_id: 37884245" + ten + to)},
		{codes.OK, "", entry("table_id: 37884245" + ten + "action { action_profile_group_id: 1 }")},
		{codes.InvalidArgument, "weight 0", entry("table_id: 37884245" + ten + `action { action_profile_action_set { action_profile_actions { action { action_id: 21257015 } } } }`)},
		{codes.OK, "", entry("table_id: 37884245" + ten + `action { action_profile_action_set { action_profile_actions { weight: 1 action { action_id: 21257015 } } } }`)},
		{codes.InvalidArgument, "only be modified", `type: INSERT entity { counter_entry { counter_id: 314588144 index { } } }`},
		{codes.OutOfRange, "index 512", `type: MODIFY entity { counter_entry { counter_id: 314588144 index { index: 512 } } }`},
		{codes.InvalidArgument, "index -1", `type: MODIFY entity { counter_entry { counter_id: 314588144 index { index: -1 } } }`},
		{codes.NotFound, "no counter 0x14fc5404", `type: MODIFY entity { counter_entry { counter_id: 352080900 } }`}, // a meter's id
		{codes.InvalidArgument, "no direct counter", `type: MODIFY entity { direct_counter_entry { table_entry { table_id: 37884245 } } }`},
		{codes.InvalidArgument, "a peak rate", `type: MODIFY entity { meter_entry { meter_id: 352080900 config { cir: 5 pir: 4 } } }`},
		{codes.Unimplemented, "by colour", `type: MODIFY entity { meter_entry { meter_id: 352080900 counter_data { } } }`},
		{codes.InvalidArgument, "multicast group 0", `type: INSERT entity { packet_replication_engine_entry { multicast_group_entry { } } }`},
		{codes.InvalidArgument, "there twice", `type: INSERT entity { packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { egress_port: 1 } replicas { port: "\x00\x01" } } } }`},
		{codes.InvalidArgument, "its backup port 1", `type: INSERT entity { packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { egress_port: 1 backup_replicas { port: "\x00\x01" } } } } }`},
		{codes.InvalidArgument, "its backup port 2", `type: INSERT entity { packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { egress_port: 1 backup_replicas { port: "\x02" } backup_replicas { port: "\x02" } } } } }`},
		{codes.OutOfRange, "a backup replica", `type: INSERT entity { packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { egress_port: 1 backup_replicas { } } } } }`},
		{codes.ResourceExhausted, "17 backup replicas", `type: INSERT entity { packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { egress_port: 1 ` + strings.Repeat(`backup_replicas { port: "\x02" } `, 17) + `} } } }`},
		{codes.InvalidArgument, "clone session 0", `type: DELETE entity { packet_replication_engine_entry { clone_session_entry { } } }`},
		{codes.InvalidArgument, "member 0", `type: DELETE entity { action_profile_member { action_profile_id: 294569155 } }`},
		{codes.InvalidArgument, "an action is missing", `type: INSERT entity { action_profile_member { action_profile_id: 294569155 member_id: 1 } }`},
		{codes.InvalidArgument, "member 5 is there twice", `type: INSERT entity { action_profile_group { action_profile_id: 294569155 group_id: 1 members { member_id: 5 weight: 1 } members { member_id: 5 weight: 1 } } }`},
		{codes.ResourceExhausted, "a size of 3, at most 2", `type: INSERT entity { action_profile_group { action_profile_id: 294569155 group_id: 1 max_size: 2 members { member_id: 5 weight: 3 } } }`},
		{codes.NotFound, "no digest", `type: INSERT entity { digest_entry { digest_id: 5 } }`},
		{codes.Unimplemented, "externs", `type: INSERT entity { extern_entry { } }`},
	} {
		u := update(t, c.text)
		err := i.Update(u)
		if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s\n  got %v: %v\n  want %v: %s", c.text, status.Code(err), err, c.code, c.says)
		}
		if err == nil {
			again := proto.Clone(u).(*p4v1.Update)
			if err := i.Update(again); err != nil || !proto.Equal(u, again) {
				t.Errorf("%s: the canonical form is not stable: %v", c.text, err)
			}
		}
	}
}

// TestKey: fields in any order and with any zeros are the same entry.
func TestKey(t *testing.T) {
	i := load(t, "ipv4_router")
	keyOf := func(text string) string {
		u := update(t, "type: DELETE entity { table_entry { table_id: 46073810 priority: 1 "+text+"} }")
		if err := i.Update(u); err != nil {
			t.Fatal(err)
		}
		return p4info.Key(u.Entity)
	}
	a := keyOf(`match { field_id: 1 exact { value: "\x01" } } match { field_id: 2 ternary { value: "\x01" mask: "\x03" } }`)
	b := keyOf(`match { field_id: 2 ternary { value: "\x00\x01" mask: "\x00\x03" } } match { field_id: 1 exact { value: "\x00\x01" } }`)
	c := keyOf(`match { field_id: 2 ternary { value: "\x01" mask: "\x01" } } match { field_id: 1 exact { value: "\x01" } }`)
	if a != b || a == c {
		t.Errorf("%x %x %x", a, b, c)
	}
}

func TestCanonicalValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "value")
		zeros := rapid.IntRange(0, 5).Draw(t, "zeros")
		c, err := p4info.Canonical(append(make([]byte, zeros), v...), 8*len(v))
		if err != nil {
			t.Fatal(err)
		}
		if len(c) > 1 && c[0] == 0 || len(c) == 0 {
			t.Fatalf("%x is not the shortest", c)
		}
		if !bytes.Equal(append(make([]byte, len(v)-len(c)), c...), v) {
			t.Fatalf("%x became %x", v, c)
		}
	})
}

func TestHeader(t *testing.T) {
	i := load(t, "ipv4_router")
	h := i.PacketIn
	if h == nil || h.Len() != 3 {
		t.Fatal(h)
	}
	meta, rest, err := h.Unpack([]byte{0x80, 0x80, 0x07, 'x'})
	if err != nil || string(rest) != "x" {
		t.Fatal(rest, err)
	}
	if got := p4info.PortNumber(meta[0].Value); got != 0x101 {
		t.Errorf("port %#x", got)
	}
	if got := h.Pack(nil, meta); !bytes.Equal(got, []byte{0x80, 0x80, 0x07}) {
		t.Errorf("packed %x", got)
	}
	if _, _, err := h.Unpack([]byte{1, 2}); err == nil {
		t.Error("a short packet passed")
	}
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 3, 3).Draw(t, "header")
		m, _, err := h.Unpack(b)
		if err != nil {
			t.Fatal(err)
		}
		m, err = h.Metadata(m)
		if err != nil || !bytes.Equal(h.Pack(nil, m), b) {
			t.Fatal(err)
		}
	})
	if _, err := i.PacketOut.Metadata(nil); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	if _, err := i.PacketOut.Metadata([]*p4v1.PacketMetadata{{MetadataId: 1, Value: []byte{2, 0}}}); status.Code(err) != codes.OutOfRange {
		t.Error(err)
	}
	if m, err := i.PacketOut.Metadata([]*p4v1.PacketMetadata{{MetadataId: 1, Value: []byte{0, 1}}}); err != nil || len(m) != 2 {
		t.Error(m, err) // padding may be left out
	}
}

func TestInconsistent(t *testing.T) {
	for says, text := range map[string]string{
		"has no id":                 `tables { preamble { name: "t" } }`,
		"has no name":               `tables { preamble { id: 1 } }`,
		"is taken":                  `tables { preamble { id: 1 name: "t" } } actions { preamble { id: 1 name: "a" } }`,
		"no action 0x00000007":      `tables { preamble { id: 1 name: "t" } action_refs { id: 7 } }`,
		"no action profile 0x00000": `tables { preamble { id: 1 name: "t" } implementation_id: 7 }`,
		"a width of 0 bits":         `tables { preamble { id: 1 name: "t" } match_fields { id: 1 name: "f" match_type: EXACT } }`,
		"unknown match type":        `tables { preamble { id: 1 name: "t" } match_fields { id: 1 name: "f" bitwidth: 4 other_match_type: "fuzzy" } }`,
		"no table 0x00000009":       `direct_counters { preamble { id: 1 name: "c" } direct_table_id: 9 }`,
		"a size of -1":              `counters { preamble { id: 1 name: "c" } size: -1 }`,
		"P4Info:":                   `tables {`,
	} {
		if _, err := p4info.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), says) || status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := p4info.New(nil); err == nil {
		t.Error("nil passed")
	}
	// A translated type: its own width, or any string.
	i, err := p4info.Parse([]byte(`tables { preamble { id: 1 name: "t" }
		match_fields { id: 1 name: "p" type_name { name: "port_t" } match_type: EXACT }
		match_fields { id: 2 name: "s" type_name { name: "name_t" } match_type: OPTIONAL } }
		type_info { new_types { key: "port_t" value { translated_type { sdn_bitwidth: 32 } } }
		new_types { key: "name_t" value { translated_type { sdn_string { } } } } }`))
	if err != nil {
		t.Fatal(err)
	}
	if f := i.Tables[0].Fields; f[0].Type.Bits != 32 || f[1].Type.Bits != 0 {
		t.Error(f)
	}
	for text, want := range map[string]codes.Code{"": codes.OK, "Ethernet0": codes.OK, "\x00\n": codes.OK, "\xff": codes.InvalidArgument,
		strings.Repeat("x", p4info.MaxString): codes.OK, strings.Repeat("x", p4info.MaxString+1): codes.OutOfRange} {
		u := &p4v1.Update{Type: p4v1.Update_DELETE, Entity: &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: 1, Priority: 1, Match: []*p4v1.FieldMatch{
			{FieldId: 1, FieldMatchType: &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: []byte{1}}}},
			{FieldId: 2, FieldMatchType: &p4v1.FieldMatch_Optional_{Optional: &p4v1.FieldMatch_Optional{Value: []byte(text)}}},
		}}}}}
		if err := i.Update(u); status.Code(err) != want {
			t.Errorf("%.20q: %v, want %v", text, err, want)
		}
		if line := i.Text(u.Entity); strings.ContainsAny(line, "\n\x00") {
			t.Errorf("%q", line)
		}
	}
}

// TestCircleOfTypes: a type that is made of itself has no width, and no end either.
func TestCircleOfTypes(t *testing.T) {
	const circle = `type_spec { new_type { name: "a" } }`
	i, err := p4info.Parse([]byte(`registers { preamble { id: 1 name: "r" } size: 1 ` + circle + ` } digests { preamble { id: 2 name: "d" } ` + circle + ` }
		type_info { new_types { key: "a" value { original_type { new_type { name: "b" } } } }
		new_types { key: "b" value { original_type { new_type { name: "a" } } } } }`))
	if err != nil {
		t.Fatal(err)
	}
	u := update(t, `type: MODIFY entity { register_entry { register_id: 1 data { bitstring: "\x01" } } }`)
	if err := i.Update(u); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

// TestStructsOfStructs: a short P4Info whose digest would have a hundred million fields is one of a digest that nobody can have, and an empty struct is one.
func TestStructsOfStructs(t *testing.T) {
	var types strings.Builder
	for n := range 8 {
		fmt.Fprintf(&types, `structs { key: "s%d" value { `, n)
		for range 10 {
			if n == 7 {
				types.WriteString(`members { name: "x" type_spec { bitstring { bit { bitwidth: 8 } } } } `)
			} else {
				fmt.Fprintf(&types, `members { name: "x" type_spec { struct { name: "s%d" } } } `, n+1)
			}
		}
		types.WriteString(`} } `)
	}
	types.WriteString(`structs { key: "none" value {} } structs { key: "pair" value { members { name: "e" type_spec { struct { name: "none" } } } members { name: "v" type_spec { bitstring { bit { bitwidth: 8 } } } } } }`)
	i, err := p4info.Parse([]byte(`digests { preamble { id: 1 name: "much" } type_spec { struct { name: "s0" } } }
		digests { preamble { id: 2 name: "some" } type_spec { struct { name: "s6" } } }
		digests { preamble { id: 3 name: "empty" } type_spec { struct { name: "pair" } } } type_info { ` + types.String() + ` }`))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(i.Digests[0].Fields); n != 0 {
		t.Errorf("%d fields", n)
	}
	if n := len(i.Digests[1].Fields); n != 100 {
		t.Errorf("%d fields, want 100", n)
	}
	d := i.Digests[2]
	if m := d.Message([][]byte{{7}}); len(m.GetStruct().GetMembers()) != 2 || len(d.Values(m)) != 1 || d.Values(m)[0][0] != 7 {
		t.Errorf("%v has %v", m, d.Values(m))
	}
}

// FuzzInfo: no P4Info is the end of the process.
func FuzzInfo(f *testing.F) {
	b, _ := proto.Marshal(load(f, "ipv4_router").Proto)
	f.Add(b)
	f.Fuzz(func(_ *testing.T, b []byte) {
		p := &configv1.P4Info{}
		if proto.Unmarshal(b, p) == nil {
			_, _ = p4info.New(p)
		}
	})
}

func FuzzUpdate(f *testing.F) {
	i := load(f, "ipv4_router")
	b, _ := proto.Marshal(update(f, route))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		u := &p4v1.Update{}
		if proto.Unmarshal(b, u) != nil {
			return
		}
		q := proto.Clone(u).(*p4v1.Update)
		_ = i.Query(q.Entity)
		_ = i.Text(u.Entity)
		if i.Update(u) != nil {
			return
		}
		again := proto.Clone(u).(*p4v1.Update)
		if err := i.Update(again); err != nil || !proto.Equal(u, again) || p4info.Key(u.Entity) == "" {
			t.Fatalf("%v: the canonical form is not stable: %v", u, err)
		}
	})
}
