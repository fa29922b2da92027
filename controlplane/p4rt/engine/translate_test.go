package engine_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
)

// newNamed is a world that runs names.p4, with a controller that is primary.
func newNamed(t testing.TB) (*world, *controller) {
	t.Helper()
	w := newWorld(t, p4rt.Config{})
	c := w.primary()
	text, err := os.ReadFile("testdata/names.p4info.txtpb")
	if err != nil {
		t.Fatal(err)
	}
	json, err := os.ReadFile("testdata/names.json")
	if err != nil {
		t.Fatal(err)
	}
	if w.info, err = p4info.Parse(text); err != nil {
		t.Fatal(err)
	}
	if err := w.set(p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, w.info, json); err != nil {
		t.Fatal(err)
	}
	return w, c
}

// line is an update as an intent has its entity.
func (w *world) line(op p4v1.Update_Type, text string) *p4v1.Update {
	w.t.Helper()
	e, err := ctl.ParseEntity(w.info, op, text)
	if err != nil {
		w.t.Fatal(err)
	}
	return &p4v1.Update{Type: op, Entity: e}
}

func (w *world) codes(op p4v1.Update_Type, texts ...string) []codes.Code {
	w.t.Helper()
	var list []*p4v1.Update
	for _, x := range texts {
		list = append(list, w.line(op, x))
	}
	got, _ := w.write(0, list...)
	return got
}

const (
	insert = p4v1.Update_INSERT
	modify = p4v1.Update_MODIFY
	remove = p4v1.Update_DELETE

	networks = "table_entry { table_id: 46736356 }"
	routes   = "table_entry { table_id: 45698565 }"
)

// Controllers speak of ports and networks by names, the program by numbers; mappings of the
// program, and values that the device chooses.
func TestTranslation(t *testing.T) {
	w, c := newNamed(t)
	if got := w.codes(insert,
		`{table: networks, match: {port: eth1, kind: 1}, priority: 1, action: join, params: {network: blue, class: 0x10000, number: 7}}`,
		`{table: networks, match: {kind: 2}, priority: 1, action: join, params: {network: red, class: 0x20000, number: 255}}`,
		`{table: routes, match: {network: blue, class: "0x10000&&&0xffffffff"}, priority: 1, action: forward, params: {port: eth2}}`,
		`{table: routes, match: {network: red}, priority: 1, action: learn}`,
		`{table: routes, match: {network: red, class: 0x20000}, priority: 2, action: punt}`,
	); fmt.Sprint(got) != "[OK OK OK OK OK]" {
		t.Fatal(got)
	}
	// A packet by names: from eth1 in network blue to eth2.
	w.send(1, []byte{1, 9})
	if out := w.got(2); len(out) != 1 || string(out[0]) != "\x01\x09" {
		t.Errorf("port 2 sent %x", out)
	}
	w.send(2, []byte{1, 9}) // not eth1
	if out := w.got(2); len(out) != 0 {
		t.Errorf("port 2 sent %x", out)
	}
	w.texts(networks, "table ingress.networks port=eth1 kind=1 priority=1 -> ingress.join(network=blue, class=65536, number=7)",
		"table ingress.networks kind=2 priority=1 -> ingress.join(network=red, class=131072, number=255)")
	w.texts(`table_entry { table_id: 46736356 priority: 1 match { field_id: 1 optional { value: "eth1" } } match { field_id: 2 exact { value: "\x01" } } }`,
		"table ingress.networks port=eth1 kind=1 priority=1 -> ingress.join(network=blue, class=65536, number=7)")
	w.texts(`table_entry { table_id: 46736356 priority: 1 match { field_id: 1 optional { value: "eth7" } } match { field_id: 2 exact { value: "\x01" } } }`)

	// Packets to the controller say where they come from, also if that has no name.
	w.send(2, []byte{2, 5})
	w.send(3, []byte{2, 5})
	for _, want := range []string{"eth2", "#3"} {
		p := c.next().GetPacket()
		if m := p.GetMetadata(); len(m) != 2 || string(m[0].GetValue()) != want || string(m[1].GetValue()) != "\x02\x00\x00" || string(p.GetPayload()) != "\x02\x05" {
			t.Errorf("a packet: %v, want it from %s", p, want)
		}
	}
	out := func(port, class string) {
		t.Helper()
		if err := c.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{Payload: []byte{3, 3}, Metadata: []*p4v1.PacketMetadata{
			{MetadataId: 1, Value: []byte(port)}, {MetadataId: 2, Value: []byte(class)}}}}}); err != nil {
			t.Fatal(err)
		}
	}
	out("eth2", "\x01\x00\x00")
	out("eth9", "\x01\x00\x00")
	if e := c.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.NotFound || !strings.Contains(e.GetMessage(), "eth9") {
		t.Errorf("to a port of no such name: %v", e)
	}
	out("eth2", "\x05")
	if e := c.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.InvalidArgument {
		t.Errorf("of an unknown class: %v", e)
	}
	out("#3", "\x01\x00\x00")
	out("eth9", "\x01\x00\x00") // the answer to it says that the others were taken
	c.next()
	w.step()
	if a, b := w.got(2), w.got(3); len(a) != 1 || len(b) != 1 || string(a[0]) != "\x03\x03" {
		t.Errorf("packets of the controller: %x and %x", a, b)
	}

	// Digests, too.
	w.do(op("INSERT", `digest_entry { digest_id: 400386219 config { max_list_size: 1 } }`))
	if got := w.codes(remove, `{table: routes, match: {network: red, class: 0x20000}, priority: 2}`); got[0] != codes.OK {
		t.Fatal(got)
	}
	w.send(2, []byte{2, 77})
	d := c.next().GetDigest().GetData()
	if len(d) != 1 || prototext.Format(d[0]) != prototext.Format(&p4v1.P4Data{Data: &p4v1.P4Data_Struct{Struct: &p4v1.P4StructLike{Members: []*p4v1.P4Data{
		{Data: &p4v1.P4Data_Bitstring{Bitstring: []byte("red")}}, {Data: &p4v1.P4Data_Bitstring{Bitstring: []byte{255}}}, {Data: &p4v1.P4Data_Bitstring{Bitstring: []byte{77}}}}}}}) {
		t.Errorf("a digest: %v", d)
	}

	// What cannot be translated.
	for text, want := range map[string]codes.Code{
		`{table: routes, match: {network: blue, class: 0x30000}, priority: 1, action: drop}`:                                             codes.InvalidArgument,
		`{table: routes, match: {network: blue, class: "0x10000&&&0xffff0000"}, priority: 1, action: drop}`:                              codes.Unimplemented,
		`{table: routes, match: {network: blue}, priority: 3, action: forward, params: {port: "#512"}}`:                                  codes.OutOfRange,
		`{table: routes, match: {network: blue}, priority: 3, action: forward, params: {port: "#2"}}`:                                    codes.InvalidArgument,
		`{table: routes, match: {network: blue}, priority: 3, action: forward, params: {port: "#02"}}`:                                   codes.InvalidArgument,
		`{table: routes, match: {network: ` + strings.Repeat("x", 256) + `}, priority: 3, action: drop}`:                                 codes.OutOfRange,
		`{table: networks, match: {kind: 9}, priority: 1, action: join, params: {network: blue, class: 0x10000, number: 256}}`:           codes.OutOfRange,
		`{table: networks, match: {port: eth1, kind: 1}, priority: 1, action: join, params: {network: blue, class: 0x10000, number: 1}}`: codes.AlreadyExists,
	} {
		if got := w.codes(insert, text); got[0] != want {
			t.Errorf("%s: %v, want %v", text, got[0], want)
		}
	}
	if got := w.codes(remove, `{table: routes, match: {network: green}, priority: 1}`); got[0] != codes.NotFound {
		t.Errorf("a network that is not there: %v", got)
	}
	if got := w.codes(insert, `{table: routes, match: {network: "#0"}, priority: 3, action: forward, params: {port: "#9"}}`); got[0] != codes.OK {
		t.Errorf("values without a name: %v", got)
	}
	w.texts(`table_entry { table_id: 45698565 priority: 3 }`, `table ingress.routes network=#0 priority=3 -> ingress.forward(port=#9)`)
}

// A value that an entry has by its number is not another name's: names are apart, and so are entries.
func TestNumbersAndNames(t *testing.T) {
	w, _ := newNamed(t)
	route := func(network string) string {
		return fmt.Sprintf(`{table: routes, match: {network: %q}, priority: 1, action: drop}`, network)
	}
	if got := w.codes(insert, route("#1"), route("#3"), route("blue"), route("red"), route("green")); fmt.Sprint(got) != "[OK OK OK OK OK]" {
		t.Error(got)
	}
	var got []string
	for _, e := range w.read(routes) {
		got = append(got, string(e.GetTableEntry().GetMatch()[0].GetExact().GetValue()))
	}
	slices.Sort(got)
	if fmt.Sprint(got) != "[#1 #3 blue green red]" {
		t.Errorf("entries of %v", got)
	}
	if got := w.codes(insert, route("#2")); got[0] != codes.InvalidArgument {
		t.Errorf("the number of a value with a name: %v", got)
	}
	// Numbers make room as names do.
	if got := w.codes(remove, route("#1"), route("#3")); fmt.Sprint(got) != "[OK OK]" {
		t.Error(got)
	}
	for n := range 12 {
		if got := w.codes(insert, route(fmt.Sprint("net", n))); got[0] != codes.OK {
			t.Errorf("network %d: %v", n, got)
		}
	}
	if got := w.codes(insert, route("one more")); got[0] != codes.ResourceExhausted {
		t.Error(got)
	}
}

// Names that no entry has any more make room for others, and those that are in use do
// not: there are 15 values for networks.
func TestNamesRunOut(t *testing.T) {
	w, _ := newNamed(t)
	route := func(n int) string {
		return fmt.Sprintf(`{table: routes, match: {network: net%d}, priority: 1, action: drop}`, n)
	}
	for n := range 15 {
		if got := w.codes(insert, route(n)); got[0] != codes.OK {
			t.Fatalf("network %d: %v", n, got)
		}
	}
	if got := w.codes(insert, route(15)); got[0] != codes.ResourceExhausted {
		t.Errorf("a 16th: %v", got)
	}
	if got := w.codes(remove, route(4)); got[0] != codes.OK {
		t.Error(got)
	}
	if got := w.codes(insert, route(15), route(16)); fmt.Sprint(got) != "[OK ResourceExhausted]" {
		t.Errorf("for one that is gone: %v", got)
	}
	if got := w.codes(insert, route(3)); got[0] != codes.AlreadyExists {
		t.Errorf("one that was there all the time: %v", got)
	}
	// In a parameter a name is in use as well.
	if got := w.codes(remove, route(5)); got[0] != codes.OK {
		t.Error(got)
	}
	if got := w.codes(insert, `{table: networks, match: {kind: 2}, priority: 1, action: join, params: {network: net5, class: 0x20000, number: 1}}`); got[0] != codes.OK {
		t.Error(got)
	}
	if got := w.codes(insert, route(17)); got[0] != codes.ResourceExhausted {
		t.Errorf("the name of a parameter was taken: %v", got)
	}
	w.texts(networks, "table ingress.networks kind=2 priority=1 -> ingress.join(network=net5, class=131072, number=1)")
}

// What is read is what was written, whatever came and went.
func TestTranslationModel(t *testing.T) {
	w, _ := newNamed(t)
	rapid.Check(t, func(rt *rapid.T) {
		model := map[string]*p4v1.Entity{}
		for _, q := range []string{networks, routes} {
			for _, e := range w.read(q) {
				if _, err := w.write(0, &p4v1.Update{Type: remove, Entity: e}); err != nil {
					rt.Fatal(err)
				}
			}
		}
		name := rapid.SampledFrom([]string{"", "a", "b", "eth1", "#0", "#1", "#3", "\n", "€", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o"})
		for range rapid.IntRange(1, 30).Draw(rt, "writes") {
			var batch []*p4v1.Update
			for range rapid.IntRange(1, 3).Draw(rt, "updates") {
				text := fmt.Sprintf(`{table: routes, match: {network: %q}, priority: 1, action: forward, params: {port: %q}}`, name.Draw(rt, "network"), name.Draw(rt, "port"))
				if rapid.Bool().Draw(rt, "other table") {
					text = fmt.Sprintf(`{table: networks, match: {port: %q, kind: 1}, priority: 1, action: join, params: {network: %q, class: 0x10000, number: 1}}`, name.Draw(rt, "port"), name.Draw(rt, "network"))
				}
				batch = append(batch, w.line(rapid.SampledFrom([]p4v1.Update_Type{insert, insert, modify, remove}).Draw(rt, "op"), text))
			}
			got, _ := w.write(p4v1.WriteRequest_Atomicity(rapid.IntRange(0, 2).Draw(rt, "atomicity")), batch...)
			for i, u := range batch {
				k := p4info.Key(u.Entity)
				switch {
				case got[i] != codes.OK:
				case u.Type == remove:
					delete(model, k)
				default:
					model[k] = proto.CloneOf(u.Entity)
				}
			}
			there := map[string]*p4v1.Entity{}
			for _, q := range []string{networks, routes} {
				for _, e := range w.read(q) {
					there[p4info.Key(e)] = e
				}
			}
			if !slices.Equal(slices.Sorted(maps.Keys(there)), slices.Sorted(maps.Keys(model))) {
				rt.Fatalf("%v, want %v", there, model)
			}
			for _, e := range there { // as a dump has it
				_, text := ctl.Line(w.info, e)
				if back, err := ctl.ParseEntity(w.info, insert, text); err != nil || !proto.Equal(back, e) {
					rt.Fatalf("%s: %v, %v", text, back, err)
				}
			}
			for k, e := range model {
				if !proto.Equal(there[k].GetTableEntry().GetAction(), e.GetTableEntry().GetAction()) {
					rt.Fatalf("%s, want %s", w.info.Text(there[k]), w.info.Text(e))
				}
			}
		}
	})
}

// Mappings that a program's annotation has are one to one, or are refused.
func FuzzMappings(f *testing.F) {
	for _, a := range []string{`{ { "" , 0 } , { "eth1" , 1 } }`, `{{"a",1},{"b",1}}`, `{{"a",1},{"a",2}}`, `{}`, `{{"a",512}}`, `{{"\"}}",0x10},}`, `{{`, `{{"a"`, `{{"a",1}{"b",2}}`} {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, a string) {
		to, err := engine.Mappings("@p4runtime_translation_mappings("+a+")", 9)
		seen := map[uint64]bool{}
		for name, v := range to {
			if err == nil && (seen[v] || v > 511 || len(name) > 255) {
				t.Errorf("%q: %v", a, to)
			}
			seen[v] = true
		}
	})
}

func TestMappings(t *testing.T) {
	for a, want := range map[string]string{
		`{ { "" , 0 } , { "eth1" , 1 } }`: "map[:0 eth1:1]", `{}`: "map[]", `{{"\"}}",0x10},}`: `map["}}:16]`, `{{"a",1},{"a",1}}`: "map[a:1]",
		`{{"a",1},{"b",1}}`: "two names", `{{"a",1},{"a",2}}`: "two values", `{{"a",512}}`: "there are 9 bits", `{{`: "no string", `{{"a"`: "no pair", `{{"a",1}{"b",2}}`: "no list", `{{"a",-1}}`: "no value", ``: "no list",
	} {
		to, err := engine.Mappings("@p4runtime_translation_mappings("+a+")", 9)
		got := fmt.Sprint(to)
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%s: %s, want %s", a, got, want)
		}
	}
}
