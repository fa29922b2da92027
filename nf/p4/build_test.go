package p4

import (
	"encoding/json"
	"fmt"
	"testing"
)

// The tests write programs as Go values in the shape of the JSON.
type (
	obj = map[string]any
	arr = []any
)

// stdFields are the fields of v1model's standard_metadata.
var stdFields = arr{arr{"ingress_port", 9}, arr{"egress_spec", 9}, arr{"egress_port", 9}, arr{"instance_type", 32},
	arr{"packet_length", 32}, arr{"enq_timestamp", 32}, arr{"enq_qdepth", 19}, arr{"deq_timedelta", 32},
	arr{"deq_qdepth", 19}, arr{"ingress_global_timestamp", 48}, arr{"egress_global_timestamp", 48},
	arr{"mcast_grp", 16}, arr{"egress_rid", 16}, arr{"checksum_error", 1}, arr{"parser_error", 32}, arr{"priority", 3},
	arr{"_padding", 3}}

// source is a program under construction.
type source struct {
	order                  arr
	extra                  obj
	ingress, egress        obj
	deparse                arr
	ids                    int
	listActions            arr
	listTypes, listHeaders arr
	listStates             arr
}

func newSource() *source {
	s := &source{extra: obj{}}
	s.header("standard_metadata", true, stdFields...)
	std := func(h string, names ...string) {
		for _, n := range names {
			s.order = append(s.order, arr{h + "." + n, arr{"standard_metadata", n}})
		}
	}
	std("intrinsic_metadata", "ingress_global_timestamp", "egress_global_timestamp", "mcast_grp", "egress_rid", "priority")
	std("queueing_metadata", "enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")
	s.ingress = obj{"name": "ingress", "init_table": nil, "tables": arr{}, "conditionals": arr{}, "action_profiles": arr{}}
	s.egress = obj{"name": "egress", "init_table": nil, "tables": arr{}, "conditionals": arr{}, "action_profiles": arr{}}
	return s
}

func (s *source) id() int { s.ids++; return s.ids }

// header declares a header and its type of the same name.
func (s *source) header(name string, meta bool, fields ...any) {
	s.listTypes = append(s.listTypes, obj{"name": name, "id": s.id(), "fields": arr(fields)})
	s.instance(name, name, meta)
	if !meta {
		s.deparse = append(s.deparse, name)
	}
}

// instance declares another header of a type and returns its id.
func (s *source) instance(name, typ string, meta bool) int {
	id := s.id()
	s.listHeaders = append(s.listHeaders, obj{"name": name, "id": id, "header_type": typ, "metadata": meta})
	return id
}

// action declares an action and returns its id.
func (s *source) action(name string, params arr, primitives ...any) int {
	id := s.id()
	var data arr
	for _, p := range params {
		data = append(data, obj{"name": p.(arr)[0], "bitwidth": p.(arr)[1]})
	}
	s.listActions = append(s.listActions, obj{"name": name, "id": id, "runtime_data": data, "primitives": arr(primitives)})
	return id
}

// state declares a parser state; the first is the start.
func (s *source) state(name string, ops, key, transitions arr) {
	s.listStates = append(s.listStates, obj{"name": name, "id": s.id(), "parser_ops": ops, "transition_key": key, "transitions": transitions})
}

// table adds a table to a pipeline; the first is its start.
func (s *source) table(pipe obj, name, kind string, keys arr, actions arr, next any, more obj) {
	branches := obj{}
	for _, a := range actions {
		branches[a.(string)] = next
	}
	t := obj{"name": name, "id": s.id(), "match_type": kind, "type": "simple", "max_size": 1024, "key": keys,
		"actions": actions, "next_tables": branches, "base_default_next": next}
	for k, v := range more {
		t[k] = v
	}
	pipe["tables"] = append(pipe["tables"].(arr), t)
	if pipe["init_table"] == nil {
		pipe["init_table"] = name
	}
}

// always adds a table without key whose action always runs.
func (s *source) always(pipe obj, name, action string, id int, next any) {
	s.table(pipe, name, "exact", arr{}, arr{action}, next,
		obj{"default_entry": obj{"action_id": id, "action_const": true, "action_data": arr{}, "action_entry_const": true}})
}

func (s *source) json() []byte {
	root := obj{"__meta__": obj{"version": arr{2, 23}}, "header_types": s.listTypes, "headers": s.listHeaders,
		"field_aliases": s.order, "actions": s.listActions, "pipelines": arr{s.ingress, s.egress},
		"deparsers": arr{obj{"name": "deparser", "id": 0, "order": s.deparse}}}
	if len(s.listStates) > 0 {
		root["parsers"] = arr{obj{"name": "parser", "id": 0, "init_state": s.listStates[0].(obj)["name"], "parse_states": s.listStates}}
	}
	for k, v := range s.extra {
		root[k] = v
	}
	b, err := json.Marshal(root)
	if err != nil {
		panic(err)
	}
	return b
}

// load loads the program and makes a switch.
func (s *source) load(t testing.TB, c Config) *Switch {
	t.Helper()
	p, err := Load(s.json())
	if err != nil {
		t.Fatal(err)
	}
	sw, err := NewSwitch(p, c)
	if err != nil {
		t.Fatal(err)
	}
	return sw
}

// Shapes of values.
func fld(h, f string) obj { return obj{"type": "field", "value": arr{h, f}} }
func std(f string) obj    { return fld("standard_metadata", f) }
func hexs(format string, v ...any) obj {
	return obj{"type": "hexstr", "value": fmt.Sprintf(format, v...)}
}
func param_(i int) obj             { return obj{"type": "runtime_data", "value": i} }
func hdrv(name string) obj         { return obj{"type": "header", "value": name} }
func prim(op string, p ...any) obj { return obj{"op": op, "parameters": arr(p)} }
func exp(op string, l, r any) obj {
	return obj{"type": "expression", "value": obj{"op": op, "left": l, "right": r}}
}
func wrap(e obj) obj { return obj{"type": "expression", "value": e} }
func to(next any) arr {
	return arr{obj{"type": "default", "value": nil, "mask": nil, "next_state": next}}
}
func extract(h string) obj {
	return obj{"op": "extract", "parameters": arr{obj{"type": "regular", "value": h}}}
}
func keyOf(kind, h, f string) obj {
	return obj{"match_type": kind, "name": h + "." + f, "target": arr{h, f}, "mask": nil}
}

// sent is a frame that left.
type sent struct {
	port  uint32
	frame string
}

// run processes a frame and returns what left.
func run(s *Switch, port uint32, frame string) ([]sent, Result) {
	var out []sent
	r := s.Process(s.now+1000, port, []byte(frame), func(port uint32, f []byte) { out = append(out, sent{port, string(f)}) })
	return out, r
}

// String shows bytes that are no text.
func (s sent) String() string { return fmt.Sprintf("%d:%q", s.port, s.frame) }
