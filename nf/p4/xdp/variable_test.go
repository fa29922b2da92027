package xdp

import (
	"encoding/json"
	"maps"
	"testing"
)

// varying is a program whose header v ends with a field of h.n bytes, at most 24, which a checksum covers. It removes v if h.what is 1, and
// shows the parser's error and packet_length in h.
func varying(t *testing.T) []byte {
	t.Helper()
	of := func(header, name string) obj { return obj{"type": "field", "value": arr{header, name}} }
	valid := expr("d2b", nil, of("v", "$valid$"))
	action := func(name string, id int, code ...any) obj {
		return obj{"name": name, "id": id, "runtime_data": arr{}, "primitives": arr(code)}
	}
	call := func(name string, id int, next any) obj {
		return obj{"name": name, "id": id, "action_id": id, "next_node": next}
	}
	b, err := json.Marshal(obj{"__meta__": obj{"version": arr{2, 23}},
		"header_types": arr{obj{"name": "std_t", "id": 0, "fields": stdFields},
			obj{"name": "h_t", "id": 1, "fields": arr{arr{"n", 8, false}, arr{"what", 8, false}, arr{"error", 32, false}, arr{"length", 32, false}}},
			obj{"name": "v_t", "id": 2, "fields": arr{arr{"a", 16, false}, arr{"sum", 16, false}, arr{"var", "*"}}, "max_length": 28}},
		"headers": arr{obj{"name": "standard_metadata", "id": 0, "header_type": "std_t", "metadata": true},
			obj{"name": "h", "id": 1, "header_type": "h_t", "metadata": false}, obj{"name": "v", "id": 2, "header_type": "v_t", "metadata": false}},
		"errors": arr{arr{"NoError", 0}, arr{"PacketTooShort", 1}, arr{"NoMatch", 2}, arr{"StackOutOfBounds", 4}, arr{"HeaderTooShort", 5}, arr{"ParserInvalidArgument", 6}},
		"actions": arr{action("go", 0, prim("assign", fieldOf(specField), hexs(2)), prim("assign", of("h", "error"), of("standard_metadata", "parser_error"))),
			action("gone", 1, prim("remove_header", obj{"type": "header", "value": "v"})),
			action("show", 2, prim("assign", of("h", "length"), of("standard_metadata", "packet_length")))},
		"parsers": arr{obj{"name": "parser", "id": 0, "init_state": "s", "parse_states": arr{obj{"name": "s", "id": 0, "transition_key": arr{},
			"parser_ops": arr{prim("extract", obj{"type": "regular", "value": "h"}),
				prim("extract_VL", obj{"type": "regular", "value": "v"}, expr("&", expr("<<", of("h", "n"), hexs(3)), hexs(0x7ff)))},
			"transitions": arr{obj{"type": "default", "value": nil, "mask": nil, "next_state": nil}}}}}},
		"deparsers":    arr{obj{"name": "deparser", "id": 0, "order": arr{"h", "v"}}},
		"calculations": arr{obj{"name": "calc", "id": 0, "algo": "csum16", "input": arr{of("v", "a"), of("v", "var")}}},
		"checksums": arr{obj{"name": "sum", "id": 0, "target": arr{"v", "sum"}, "type": "generic", "calculation": "calc", "verify": false, "update": true,
			"if_cond": valid}},
		"pipelines": arr{obj{"name": "ingress", "init_table": "go", "tables": arr{}, "action_profiles": arr{},
			"conditionals": arr{obj{"name": "asks", "id": 0, "expression": expr("==", of("h", "what"), hexs(1)), "true_next": "gone", "false_next": nil}},
			"action_calls": arr{call("go", 0, "asks"), call("gone", 1, nil)}},
			obj{"name": "egress", "init_table": "show", "tables": arr{}, "conditionals": arr{}, "action_calls": arr{call("show", 2, nil)}}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVariable: fields of all lengths, in frames that have enough bytes and in frames that have not, whose header stays or leaves no more.
func TestVariable(t *testing.T) {
	w := newTwin(t, varying(t))
	r := newRandom(t)
	frames, want := 0, map[string]int{} // frames for the engine
	for n := range 32 {
		for rest := range 40 {
			for what := range 2 {
				b := make([]byte, 14+rest)
				for i := range b {
					b[i] = byte(r.Uint64())
				}
				b[0], b[1] = byte(n), byte(what)
				w.frame(1, b)
				frames++
				switch {
				case n > min(rest, 24): // the parser fails
				case n%4 != 0:
					want["state s: a checksum covers a field of variable length that does not end with 32 bits"]++
				case what == 1 && 10+rest-n < 14: // the kernel wants an Ethernet header
					want["there is no room for longer headers, or too little is left"]++
				}
			}
		}
	}
	if !maps.Equal(w.engine, want) || w.kernel < frames/2 {
		t.Errorf("%d of %d frames in the kernel, in the engine: %v, want %v", w.kernel, frames, w.engine, want)
	}
}
