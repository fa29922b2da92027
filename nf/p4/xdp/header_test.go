package xdp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

// TestPacketLength: packet_length follows headers that come and go.
func TestPacketLength(t *testing.T) {
	header := func(name string) obj { return obj{"type": "header", "value": name} }
	var types, headers arr
	for i, fields := range []arr{stdFields, {arr{"f", 48}}, {arr{"f", 64}, arr{"g", 24}}, {arr{"length", 32}}} {
		name := []string{"standard_metadata", "gone", "new", "shown"}[i]
		types = append(types, obj{"name": name + "_t", "id": i, "fields": fields})
		headers = append(headers, obj{"name": name, "id": i, "header_type": name + "_t", "metadata": i == 0})
	}
	table := func(name, action string, id int) obj {
		return obj{"name": name, "init_table": name + "_t", "conditionals": arr{}, "tables": arr{obj{"name": name + "_t", "id": id, "match_type": "exact",
			"type": "simple", "max_size": 1, "key": arr{}, "actions": arr{action}, "action_ids": arr{id}, "next_tables": obj{action: nil}, "base_default_next": nil,
			"default_entry": obj{"action_id": id, "action_const": true, "action_data": arr{}, "action_entry_const": true}}}}
	}
	for _, change := range []arr{{prim("remove_header", header("gone"))}, {prim("add_header", header("new"))},
		{prim("add_header", header("new")), prim("remove_header", header("gone")), prim("remove_header", header("gone")), prim("add_header", header("new"))}} {
		root := obj{"__meta__": obj{"version": arr{2, 23}}, "header_types": types, "headers": headers,
			"actions": arr{obj{"name": "change", "id": 1, "runtime_data": arr{}, "primitives": append(change, prim("assign", fieldOf(specField), hexs(2)))},
				obj{"name": "show", "id": 2, "runtime_data": arr{},
					"primitives": arr{prim("assign", fieldOf(field{"shown", "length", 32}), fieldOf(field{"standard_metadata", "packet_length", 32}))}}},
			"parsers": arr{obj{"name": "parser", "id": 0, "init_state": "s", "parse_states": arr{obj{"name": "s", "id": 0,
				"parser_ops":     arr{prim("extract", obj{"type": "regular", "value": "gone"}), prim("extract", obj{"type": "regular", "value": "shown"})},
				"transition_key": arr{}, "transitions": arr{obj{"type": "default", "value": nil, "mask": nil, "next_state": nil}}}}}},
			"deparsers": arr{obj{"name": "deparser", "id": 0, "order": arr{"shown", "gone", "new"}}},
			"pipelines": arr{table("ingress", "change", 1), table("egress", "show", 2)}}
		b, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		w := newTwin(t, b)
		if w.frame(1, make([]byte, 60)); w.kernel != 1 {
			t.Errorf("the frame went to the engine: %v", w.engine)
		}
	}
}

// TestLongest: a frame that is longer than its port sends goes to the engine.
func TestLongest(t *testing.T) {
	w := newTwin(t, read(t, "../../../p4src/l2_bridge.json"))
	all, err := stf.Parse(strings.NewReader(bridgeEntries))
	if err != nil {
		t.Fatal(err)
	}
	w.both(func(sw *p4.Switch) error { return stf.Configure(sw, all) })
	b := frameOf(t, bridgeFrame)
	for longest, kernel := range map[int]int{len(b): 1, len(b) - 1: 0} {
		w.kernel = 0
		storeHalf(w.x.out, 2, uint32(longest))
		if w.frame(1, b); w.kernel != kernel {
			t.Errorf("%d bytes where %d are sent: %d in the kernel, in the engine: %v", len(b), longest, w.kernel, w.engine)
		}
	}
}
