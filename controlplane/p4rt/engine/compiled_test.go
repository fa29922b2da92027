package engine_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
)

// What p4c makes of a program that says more than its JSON does, or less: initial entries that are not const, const entries of which there are
// none, tables of which nothing is left, keys that are errors or elements of a stack, value sets of all kinds of matches, and digests of all
// types. The files are written by hand, in the form in which p4c's P4RuntimeSerializer and its bmv2 back end write them.

type (
	object = map[string]any
	list   = []any
)

func field(h, f string) object { return object{"type": "field", "value": list{h, f}} }

// compiled is the JSON of a program: a header (kind, index, x), a stack of two bytes, a value set before anything else, and tables one behind
// the other, of which each that is hit says where the packet goes.
func compiled(t *testing.T) []byte {
	t.Helper()
	key := func(match, name string, target any) list {
		return list{object{"match_type": match, "name": name, "target": target, "mask": nil}}
	}
	tables := list{}
	table := func(name, match string, key list, more object) {
		x := object{"name": name, "id": len(tables), "match_type": match, "type": "simple", "max_size": 1024, "key": key, "with_counters": false,
			"support_timeout": false, "direct_meters": nil, "action_ids": list{0, 1}, "actions": list{"send", "NoAction"},
			"default_entry": object{"action_id": 1, "action_const": false, "action_data": list{}, "action_entry_const": false}}
		maps.Copy(x, more)
		tables = append(tables, x)
	}
	entry := func(priority int, value, mask, port string) object {
		return object{"priority": priority, "match_key": list{object{"match_type": "ternary", "key": value, "mask": mask}}, "action_entry": object{"action_id": 0, "action_data": list{port}}}
	}
	table("initial", "ternary", key("ternary", "hdr.h.kind", list{"h", "kind"}), object{"max_size": 2,
		"entries": list{entry(1, "0x61", "0xff", "0x1"), entry(2, "0x60", "0xf0", "0x2")}})
	table("empty", "exact", key("exact", "hdr.h.kind", list{"h", "kind"}), object{"entries": list{}})
	table("failed", "exact", key("exact", "std.parser_error", list{"standard_metadata", "parser_error"}), nil)
	table("element", "exact", key("exact", "hdr.es[hdr.h.index].v", object{"op": "access_field", "right": 0, "left": object{"type": "expression",
		"value": object{"op": "dereference_header_stack", "left": object{"type": "header_stack", "value": "es"}, "right": field("h", "index")}}}), nil)
	table("member", "exact", key("exact", "meta.in_set", list{"meta", "in_set"}), nil)
	for n, x := range tables {
		var next any = "report"
		if n+1 < len(tables) {
			next = tables[n+1].(object)["name"]
		}
		x.(object)["next_tables"], x.(object)["base_default_next"] = object{"send": next, "NoAction": next}, next
	}
	assign := func(dst, src object) object { return object{"op": "assign", "parameters": list{dst, src}} }
	hex := func(s string) object { return object{"type": "hexstr", "value": s} }
	stack := object{"op": "extract", "parameters": list{object{"type": "stack", "value": "es"}}}
	program := object{
		"__meta__": object{"version": list{2, 23}},
		"errors":   list{list{"NoError", 0}, list{"PacketTooShort", 1}, list{"NoMatch", 2}, list{"Odd", 7}},
		"header_types": list{
			object{"name": "std_t", "id": 0, "fields": list{list{"ingress_port", 9, false}, list{"egress_spec", 9, false}, list{"egress_port", 9, false},
				list{"instance_type", 32, false}, list{"packet_length", 32, false}, list{"parser_error", 32, false}, list{"_padding", 5, false}}},
			object{"name": "meta_t", "id": 1, "fields": list{list{"in_set", 8, false}, list{"colour", 32, false}, list{"flag", 1, false}, list{"sign", 4, true}, list{"_padding", 3, false}}},
			object{"name": "h_t", "id": 2, "fields": list{list{"kind", 8, false}, list{"index", 8, false}, list{"x", 16, false}}},
			object{"name": "e_t", "id": 3, "fields": list{list{"v", 8, false}}},
		},
		"headers": list{
			object{"name": "standard_metadata", "id": 0, "header_type": "std_t", "metadata": true},
			object{"name": "meta", "id": 1, "header_type": "meta_t", "metadata": true},
			object{"name": "h", "id": 2, "header_type": "h_t", "metadata": false},
			object{"name": "es[0]", "id": 3, "header_type": "e_t", "metadata": false},
			object{"name": "es[1]", "id": 4, "header_type": "e_t", "metadata": false},
		},
		"header_stacks": list{object{"name": "es", "id": 0, "header_type": "e_t", "size": 2, "header_ids": list{3, 4}}},
		"parse_vsets":   list{object{"name": "parse.vs", "id": 0, "compressed_bitwidth": 24, "max_size": 8}},
		"learn_lists": list{object{"id": 1, "name": "digest", "elements": list{field("meta", "in_set"), field("standard_metadata", "parser_error"),
			field("meta", "colour"), field("meta", "flag"), field("meta", "sign"), field("h", "x")}}},
		"actions": list{
			object{"name": "send", "id": 0, "runtime_data": list{object{"name": "port", "bitwidth": 9}}, "primitives": list{assign(field("standard_metadata", "egress_spec"), object{"type": "runtime_data", "value": 0})}},
			object{"name": "NoAction", "id": 1, "runtime_data": list{}, "primitives": list{}},
			object{"name": "tell", "id": 2, "runtime_data": list{}, "primitives": list{assign(field("meta", "flag"), hex("0x1")), assign(field("meta", "sign"), hex("0xf")),
				assign(field("meta", "colour"), hex("0x2")), object{"op": "generate_digest", "parameters": list{hex("0x1"), hex("0x1")}}}},
		},
		"parsers": list{object{"name": "parser", "id": 0, "init_state": "start", "parse_states": list{
			object{"name": "start", "id": 0, "parser_ops": list{object{"op": "extract", "parameters": list{object{"type": "regular", "value": "h"}}}, stack, stack},
				"transition_key": list{field("h", "kind"), field("h", "x")},
				"transitions": list{object{"type": "parse_vset", "value": "parse.vs", "mask": nil, "next_state": "hit"},
					object{"type": "default", "value": nil, "mask": nil, "next_state": nil}}},
			object{"name": "hit", "id": 1, "parser_ops": list{object{"op": "set", "parameters": list{field("meta", "in_set"), hex("0x1")}}},
				"transition_key": list{}, "transitions": list{object{"type": "default", "value": nil, "mask": nil, "next_state": nil}}},
		}}},
		"deparsers": list{object{"name": "deparser", "id": 0, "order": list{"h", "es[0]", "es[1]"}}},
		"pipelines": list{
			object{"name": "ingress", "id": 0, "init_table": "initial", "conditionals": list{}, "action_profiles": list{},
				"tables": append(tables, object{"name": "report", "id": 9, "match_type": "exact", "type": "simple", "max_size": 1024, "key": list{}, "action_ids": list{2}, "actions": list{"tell"},
					"base_default_next": nil, "next_tables": object{"tell": nil}, "default_entry": object{"action_id": 2, "action_const": true, "action_data": list{}, "action_entry_const": true}})},
			object{"name": "egress", "id": 1, "init_table": nil, "tables": list{}, "conditionals": list{}, "action_profiles": list{}},
		},
	}
	b, err := json.Marshal(program)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// compiledInfo is the P4Info of it.
const compiledInfo = `
tables { preamble { id: 33000001 name: "initial" } match_fields { id: 1 name: "hdr.h.kind" bitwidth: 8 match_type: TERNARY } action_refs { id: 16000001 } action_refs { id: 16000002 } size: 4 has_initial_entries: true }
tables { preamble { id: 33000002 name: "empty" } match_fields { id: 1 name: "hdr.h.kind" bitwidth: 8 match_type: EXACT } action_refs { id: 16000001 } action_refs { id: 16000002 } size: 1024 is_const_table: true }
tables { preamble { id: 33000003 name: "failed" } match_fields { id: 1 name: "std.parser_error" match_type: EXACT } action_refs { id: 16000001 } action_refs { id: 16000002 } size: 1024 }
tables { preamble { id: 33000004 name: "element" } match_fields { id: 1 name: "hdr.es[hdr.h.index].v" bitwidth: 8 match_type: EXACT } action_refs { id: 16000001 } action_refs { id: 16000002 } size: 1024 }
tables { preamble { id: 33000005 name: "unused" } match_fields { id: 1 name: "hdr.h.x" bitwidth: 16 match_type: EXACT } action_refs { id: 16000003 } action_refs { id: 16000002 } size: 1024 direct_resource_ids: 318000001 }
tables { preamble { id: 33000006 name: "member" } match_fields { id: 1 name: "meta.in_set" bitwidth: 8 match_type: EXACT } action_refs { id: 16000001 } action_refs { id: 16000002 } size: 1024 }
actions { preamble { id: 16000001 name: "send" } params { id: 1 name: "port" bitwidth: 9 } }
actions { preamble { id: 16000002 name: "NoAction" } }
actions { preamble { id: 16000003 name: "gone" } }
direct_counters { preamble { id: 318000001 name: "hits" } spec { unit: BOTH } direct_table_id: 33000005 }
value_sets { preamble { id: 56000001 name: "parse.vs" } match { id: 1 name: "kind" bitwidth: 8 match_type: TERNARY } match { id: 2 name: "x" bitwidth: 16 match_type: RANGE } size: 8 }
digests { preamble { id: 385000001 name: "digest_0" } type_spec { tuple {
  members { new_type { name: "class_t" } } members { error { } } members { enum { name: "colour_t" } } members { bool { } } members { bitstring { int { bitwidth: 4 } } }
  members { struct { name: "inner_t" } } } } }
digests { preamble { id: 385000002 name: "unused_t" } type_spec { bitstring { bit { bitwidth: 7 } } } }
type_info {
  structs { key: "inner_t" value { members { name: "x" type_spec { bitstring { bit { bitwidth: 16 } } } } } }
  enums { key: "colour_t" value { members { name: "RED" } members { name: "GREEN" } members { name: "BLUE" } } }
  error { members: "NoError" members: "PacketTooShort" members: "NoMatch" members: "Odd" }
  new_types { key: "class_t" value { original_type { bitstring { bit { bitwidth: 8 } } } } }
}`

// newCompiled is a world that runs the program, with a P4Info that change has edited.
func newCompiled(t *testing.T, change func(string) string) (*world, *controller) {
	t.Helper()
	w := newWorld(t, p4rt.Config{})
	c := w.primary()
	text := compiledInfo
	if change != nil {
		text = change(text)
	}
	var err error
	if w.info, err = p4info.Parse([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.set(commit, w.info, compiled(t)); err != nil {
		t.Fatal(err)
	}
	return w, c
}

// sentTo is the port that sends a frame which comes in at port 0; -1: none.
func (w *world) sentTo(frame string) int {
	w.t.Helper()
	w.send(0, []byte(frame))
	at := -1
	for n := range ports {
		if out := w.got(n); len(out) > 0 && n != 0 {
			at = n
		}
	}
	return at
}

func TestInitialEntries(t *testing.T) {
	w, _ := newCompiled(t, nil)
	const all = "table_entry { table_id: 33000001 }"
	w.texts(all, "table initial hdr.h.kind=97&&&0xff priority=2 -> send(port=1)", "table initial hdr.h.kind=96&&&0xf0 priority=1 -> send(port=2)")
	if a, b := w.sentTo("a...  "), w.sentTo("b...  "); a != 1 || b != 2 {
		t.Errorf("a goes to %d, b to %d", a, b)
	}
	// A controller's entries are beside them, for the P4Info says that there is room; it changes them, and takes them out.
	if got := w.codes(insert, "{table: initial, match: {kind: 0x62}, priority: 7, action: send, params: {port: 3}}",
		"{table: initial, match: {kind: 0x61}, priority: 2, action: send, params: {port: 3}}",
		"{table: initial, match: {kind: 0x63}, priority: 2147483647, action: send, params: {port: 5}}",
		"{table: initial, match: {kind: 0x64}, priority: 1, action: send, params: {port: 5}}"); fmt.Sprint(got) != "[OK AlreadyExists OK ResourceExhausted]" {
		t.Fatal(got)
	}
	if got := w.codes(modify, "{table: initial, match: {kind: 0x61}, priority: 2, action: send, params: {port: 4}}"); got[0] != codes.OK {
		t.Fatal(got)
	}
	if got := w.codes(remove, `{table: initial, match: {kind: "0x60&&&0xf0"}, priority: 1}`); got[0] != codes.OK {
		t.Fatal(got)
	}
	for frame, want := range map[string]int{"a": 4, "b": 3, "c": 5, "d": -1} {
		if got := w.sentTo(frame + "...  "); got != want {
			t.Errorf("%s goes to %d, want %d", frame, got, want)
		}
	}
	// Another load of the program begins with its entries, reconciling goes on with what is there.
	had := w.read(all)
	if err := w.set(reconcile, w.info, compiled(t)); err != nil {
		t.Fatal(err)
	}
	if got := w.read(all); len(got) != len(had) {
		t.Errorf("reconciled: %v", got)
	}
	if err := w.set(commit, w.info, compiled(t)); err != nil {
		t.Fatal(err)
	}
	w.texts(all, "table initial hdr.h.kind=97&&&0xff priority=2 -> send(port=1)", "table initial hdr.h.kind=96&&&0xf0 priority=1 -> send(port=2)")
	if !w.read("table_entry { table_id: 33000001 }")[0].GetTableEntry().GetIsConst() {
		return
	}
	t.Error("is_const")
}

// The same JSON with const entries, and with a P4Info of another program.
func TestConstEntries(t *testing.T) {
	w, _ := newCompiled(t, func(s string) string {
		return strings.Replace(s, "has_initial_entries: true", "is_const_table: true", 1)
	})
	for _, entry := range []string{`table_id: 33000001 match { field_id: 1 ternary { value: "b" mask: "\xff" } } priority: 7`, `table_id: 33000002 match { field_id: 1 exact { value: "b" } }`} {
		w.refused(codes.PermissionDenied, op("INSERT", "table_entry { "+entry+" action { action { action_id: 16000002 } } }"))
	}
	for old, new := range map[string]string{"has_initial_entries: true": "", "is_const_table: true": "has_initial_entries: true"} {
		info, err := p4info.Parse([]byte(strings.Replace(compiledInfo, old, new, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.set(verify, info, compiled(t)); err == nil || !strings.Contains(err.Error(), "P4Info and program differ: table ") {
			t.Errorf("%s: %v", new, err)
		}
	}
}

// A table that the compiler took out is in the P4Info only.
func TestTableTakenOut(t *testing.T) {
	w, _ := newCompiled(t, nil)
	got, err := w.write(0, w.line(insert, "{table: unused, match: {x: 1}, action: gone}"))
	if got[0] != codes.Unimplemented || !strings.Contains(err.Error(), "table unused: the compiler took it out of the program") {
		t.Error(err)
	}
	w.refused(codes.Unimplemented, `type: MODIFY entity { table_entry { table_id: 33000005 is_default_action: true action { action { action_id: 16000003 } } } }`)
	w.refused(codes.Unimplemented, `type: MODIFY entity { direct_counter_entry { table_entry { table_id: 33000005 match { field_id: 1 exact { value: "\x01" } } } data { } } }`)
	for _, q := range everything {
		for _, e := range w.read(q) {
			if strings.Contains(w.info.Text(e), "unused") && e.GetDigestEntry() == nil {
				t.Errorf("read %v", e)
			}
		}
	}
	// A P4Info of which the program has nothing is that of another program.
	text := compiledInfo
	for _, name := range []string{"initial", "empty", "failed", "element", "member"} {
		text = strings.Replace(text, `name: "`+name+`"`, `name: "other_`+name+`"`, 1)
	}
	info, err := p4info.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.set(verify, info, compiled(t)); err == nil || !strings.Contains(err.Error(), "there is no table other_initial") {
		t.Error(err)
	}
}

func TestErrorKey(t *testing.T) {
	w, _ := newCompiled(t, nil)
	if got := w.codes(insert, "{table: failed, match: {parser_error: PacketTooShort}, action: send, params: {port: 4}}",
		"{table: failed, match: {parser_error: Even}, action: send, params: {port: 4}}",
		"{table: failed, match: {parser_error: '#99'}, action: NoAction}"); fmt.Sprint(got) != "[OK InvalidArgument OK]" {
		_, err := w.write(0, w.line(insert, "{table: failed, match: {parser_error: '#99'}, action: NoAction}"))
		t.Fatal(got, err)
	}
	w.texts("table_entry { table_id: 33000003 }", "table failed std.parser_error=PacketTooShort -> send(port=4)", "table failed std.parser_error=#99 -> NoAction()")
	if whole, short := w.sentTo("z...  "), w.sentTo("z.."); whole != -1 || short != 4 {
		t.Errorf("a whole frame goes to %d, a short one to %d", whole, short)
	}
}

func TestKeyOfAnElement(t *testing.T) {
	w, _ := newCompiled(t, nil)
	if got := w.codes(insert, "{table: element, match: {v: 0x78}, action: send, params: {port: 3}}", "{table: element, match: {v: 0}, action: send, params: {port: 5}}"); fmt.Sprint(got) != "[OK OK]" {
		t.Fatal(got)
	}
	for frame, want := range map[string]int{"z\x00..xy": 3, "z\x01..yx": 3, "z\x01..xy": -1, "z\x02..xx": 5, "z\x01..x": 5} {
		if got := w.sentTo(frame); got != want {
			t.Errorf("%q goes to %d, want %d", frame, got, want)
		}
	}
}

func TestValueSets(t *testing.T) {
	w, _ := newCompiled(t, nil)
	try := func(w *world, want map[string]int) {
		t.Helper()
		for frame, to := range want {
			if got := w.sentTo(frame); got != to {
				t.Errorf("%q goes to %d, want %d", frame, got, to)
			}
		}
	}
	hit := "{table: member, match: {in_set: 1}, action: send, params: {port: 4}}"
	if got := w.codes(insert, hit); got[0] != codes.OK {
		t.Fatal(got)
	}
	const q = "value_set_entry { value_set_id: 56000001 }"
	set := func(w *world, text string) {
		t.Helper()
		if got, err := w.write(0, w.line(modify, text)); err != nil {
			t.Fatal(got, err)
		}
	}
	set(w, `{value_set: vs, members: [{kind: "0x70&&&0xf0", x: "0x3000..0x3939"}, {x: 7..7}, {kind: 0x71}]}`)
	w.texts(q, "value set parse.vs {kind=112&&&0xf0 x=12288..14649; x=7..7; kind=113&&&0xff}")
	try(w, map[string]int{"p.00  ": 4, "p.99  ": 4, "p.9:  ": -1, "q.zz  ": 4, "\x01.\x00\x07  ": 4, "\x01.\x00\x06  ": -1, "\x8001  ": -1})
	set(w, "{value_set: vs, members: []}")
	try(w, map[string]int{"p.00  ": -1})

	// Prefixes.
	w, _ = newCompiled(t, func(s string) string {
		return strings.Replace(s, `bitwidth: 16 match_type: RANGE } size: 8`, `bitwidth: 16 match_type: LPM } size: 8`, 1)
	})
	w.codes(insert, hit)
	set(w, `{value_set: vs, members: [{kind: 0x71, x: 0x3000/8}]}`)
	w.texts(q, "value set parse.vs {kind=113&&&0xff x=12288/8}")
	try(w, map[string]int{"q.0z  ": 4, "q.1z  ": -1, "p.0z  ": -1})

	// Values that are translated: names, and numbers of another width.
	w, _ = newCompiled(t, func(s string) string {
		s = strings.Replace(s, `match { id: 1 name: "kind" bitwidth: 8 match_type: TERNARY }`, `match { id: 1 name: "kind" match_type: EXACT type_name { name: "kind_t" } }`, 1)
		s = strings.Replace(s, `match { id: 2 name: "x" bitwidth: 16 match_type: RANGE }`, `match { id: 2 name: "x" bitwidth: 32 match_type: EXACT type_name { name: "x_t" } }`, 1)
		return strings.Replace(s, "type_info {", `type_info {
			new_types { key: "kind_t" value { translated_type { uri: "k" sdn_string { } } annotations: "@p4runtime_translation_mappings({{\"first\", 112}})" } }
			new_types { key: "x_t" value { translated_type { uri: "x" sdn_bitwidth: 32 } } }`, 1)
	})
	w.codes(insert, hit)
	set(w, `{value_set: vs, members: [{kind: first, x: 0x3031}, {kind: second, x: 5}]}`)
	w.texts(q, "value set parse.vs {kind=first x=12337; kind=second x=5}")
	try(w, map[string]int{"p.01  ": 4, "p.02  ": -1, "\x01.\x00\x05  ": 4})
	if _, err := w.write(0, w.line(modify, `{value_set: vs, members: [{kind: first, x: 0x12345}]}`)); err == nil {
		t.Error("a value that the device has no bits for was taken")
	}
}

// A digest of all types that a message may have, under a name that only the P4Info has.
func TestDigestOfAllTypes(t *testing.T) {
	w, c := newCompiled(t, nil)
	for range len(c.in) {
		c.next()
	}
	w.do("type: INSERT entity { digest_entry { digest_id: 385000001 config { max_list_size: 1 } } }", "type: INSERT entity { digest_entry { digest_id: 385000002 config { } } }")
	w.send(0, []byte("z.01  "))
	w.send(0, []byte("z.02"))
	for n, want := range []string{
		`tuple { members { bitstring: "\x00" } members { error: "NoError" } members { enum: "BLUE" } members { bool: true } members { bitstring: "\xff" } members { struct { members { bitstring: "01" } } } }`,
		`tuple { members { bitstring: "\x00" } members { error: "PacketTooShort" } members { enum: "BLUE" } members { bool: true } members { bitstring: "\xff" } members { struct { members { bitstring: "02" } } } }`,
	} {
		got := c.next().GetDigest().GetData()
		x := &p4v1.P4Data{}
		if err := prototext.Unmarshal([]byte(want), x); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || !same(got[0], x) {
			t.Fatalf("message %d: %v, want %v", n, got, x)
		}
		v := w.info.Digests[0].Values(got[0])
		if names := []string{"NoError", "PacketTooShort"}; len(v) != 6 || string(v[1]) != names[n] || string(v[2]) != "BLUE" || !slices.Equal(v[4], []byte{0xff}) {
			t.Errorf("values %q", v)
		}
	}
}
