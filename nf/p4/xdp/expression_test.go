package xdp

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/quillon/quillon/nf/p4"
)

// results is how many expressions a program of TestRandomExpressions has.
const results = 8

// withExpressions is the JSON of a program that stores numbers in the fields of the header out, which is behind the header in.
func (a *author) withExpressions(all arr) []byte {
	var code arr
	for i, e := range all {
		code = append(code, prim("assign", fieldOf(field{"out", fmt.Sprintf("r%d", i), 64}), e))
	}
	code = append(code, prim("assign", fieldOf(specField), hexs(2)))
	root := obj{"__meta__": obj{"version": arr{2, 23}}, "header_types": a.types, "headers": a.headers,
		"actions": arr{obj{"name": "all", "id": 1, "runtime_data": arr{}, "primitives": code}},
		"parsers": arr{obj{"name": "parser", "id": 0, "init_state": "s", "parse_states": arr{obj{"name": "s", "id": 0,
			"parser_ops":     arr{prim("extract", obj{"type": "regular", "value": "in"}), prim("extract", obj{"type": "regular", "value": "out"})},
			"transition_key": arr{}, "transitions": arr{obj{"type": "default", "value": nil, "mask": nil, "next_state": nil}}}}}},
		"deparsers": arr{obj{"name": "deparser", "id": 0, "order": arr{"in", "out"}}},
		"pipelines": arr{obj{"name": "ingress", "init_table": "t", "conditionals": arr{}, "tables": arr{obj{"name": "t", "id": 1, "match_type": "exact",
			"type": "simple", "max_size": 1, "key": arr{}, "actions": arr{"all"}, "action_ids": arr{1}, "next_tables": obj{"all": nil}, "base_default_next": nil,
			"default_entry": obj{"action_id": 1, "action_const": true, "action_data": arr{}, "action_entry_const": true}}}},
			obj{"name": "egress", "init_table": nil, "tables": arr{}, "conditionals": arr{}}}}
	b, err := json.Marshal(root)
	if err != nil {
		panic(err)
	}
	return b
}

// runs reports whether the kernel runs a program whole.
func runs(src []byte) bool {
	_, tree, err := p4.LoadTree(src)
	if err != nil {
		return false
	}
	r := Analyse(tree, p4.Config{})
	for _, p := range r.Parts {
		if len(p.Engine) > 0 {
			return false
		}
	}
	return r.Kernel
}

// TestRandomExpressions: random expressions have the same values in both.
func TestRandomExpressions(t *testing.T) {
	top := newRandom(t)
	for n := range rounds(t, 60) {
		a := &author{random: random{newRandomOf(top.Uint64())}, byHeader: map[string][]field{}}
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			a.types = arr{obj{"name": "standard_metadata_t", "id": a.id(), "fields": stdFields}}
			a.headers = arr{obj{"name": "standard_metadata", "id": a.id(), "header_type": "standard_metadata_t", "metadata": true}}
			var in, out arr
			bits := 0
			for i := range 10 {
				w := a.width(pick(a, []int{64, 64, 128}))
				name := fmt.Sprintf("f%d", i)
				in = append(in, arr{name, w, w > 1 && w <= 64 && a.IntN(3) == 0})
				a.field("in", name, w)
				bits += w
			}
			in = append(in, arr{"pad", 8 - bits%8, false})
			bits = 0
			for i := range results {
				w := 64
				if a.IntN(2) == 0 {
					w = a.width(64)
				}
				out = append(out, arr{fmt.Sprintf("r%d", i), w, false})
				bits += w
			}
			out = append(out, arr{"pad", 8 - bits%8, false})
			for name, fields := range map[string]arr{"in": in, "out": out} {
				a.types = append(a.types, obj{"name": name + "_t", "id": a.id(), "fields": fields})
				a.headers = append(a.headers, obj{"name": name, "id": a.id(), "header_type": name + "_t", "metadata": false})
			}
			a.wire = []string{"in", "out"}
			var all arr
			for tries := 0; len(all) < results && tries < 500; tries++ {
				e := a.number(1 + a.IntN(4))
				if runs(a.withExpressions(arr{e})) {
					all = append(all, e)
				}
			}
			src := a.withExpressions(all)
			w := newTwin(t, src)
			for range 60 {
				b := make([]byte, 171+8*results)
				for i := range b {
					switch a.IntN(4) {
					case 0:
						b[i] = 0xff
					case 1, 2:
						b[i] = byte(a.IntN(256))
					}
				}
				if w.frame(1, b); t.Failed() {
					t.Fatalf("the program: %s", src)
				}
			}
			if w.kernel < 60 {
				t.Errorf("%d frames in the kernel, in the engine: %v", w.kernel, w.engine)
			}
		})
	}
}
