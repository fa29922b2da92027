package xdp

import (
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/p4"
)

// asking is a program that sends frames to port 3 whose first 16 bits are in the value set vs, and others to port 2.
func asking(t *testing.T) []byte {
	t.Helper()
	to := func(name string, id, port int) obj {
		return obj{"name": name, "id": id, "runtime_data": arr{}, "primitives": arr{prim("assign", fieldOf(specField), hexs(uint64(port)))}}
	}
	state := func(name string, id int, ops, key, cases arr) obj {
		return obj{"name": name, "id": id, "parser_ops": ops, "transition_key": key, "transitions": cases}
	}
	end := obj{"type": "default", "value": nil, "mask": nil, "next_state": nil}
	b, err := json.Marshal(obj{"__meta__": obj{"version": arr{2, 23}},
		"header_types": arr{obj{"name": "std_t", "id": 1, "fields": stdFields}, obj{"name": "h_t", "id": 2, "fields": arr{arr{"a", 7, false}, arr{"b", 9, false}}}},
		"headers": arr{obj{"name": "standard_metadata", "id": 1, "header_type": "std_t", "metadata": true},
			obj{"name": "h", "id": 2, "header_type": "h_t", "metadata": false}, obj{"name": "in", "id": 3, "header_type": "h_t", "metadata": false}},
		"parse_vsets": arr{obj{"name": "vs", "id": 0, "compressed_bitwidth": 16, "max_size": 4}},
		"actions":     arr{to("two", 1, 2), to("three", 2, 3)},
		"parsers": arr{obj{"name": "parser", "id": 0, "init_state": "s", "parse_states": arr{
			state("s", 0, arr{prim("extract", obj{"type": "regular", "value": "h"})}, arr{fieldOf(field{"h", "a", 7}), fieldOf(field{"h", "b", 9})},
				arr{obj{"type": "parse_vset", "value": "vs", "mask": nil, "next_state": "in"}, end}),
			state("in", 1, arr{prim("extract", obj{"type": "regular", "value": "in"})}, arr{}, arr{end})}}},
		"deparsers": arr{obj{"name": "deparser", "id": 0, "order": arr{"h", "in"}}},
		"pipelines": arr{obj{"name": "ingress", "init_table": "asks", "tables": arr{}, "action_profiles": arr{},
			"conditionals": arr{obj{"name": "asks", "id": 0, "expression": expr("d2b", nil, obj{"type": "field", "value": arr{"in", "$valid$"}}), "true_next": "three", "false_next": "two"}},
			"action_calls": arr{obj{"name": "two", "id": 0, "action_id": 1, "next_node": nil}, obj{"name": "three", "id": 1, "action_id": 2, "next_node": nil}}},
			obj{"name": "egress", "init_table": nil, "tables": arr{}, "conditionals": arr{}}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestValueSet: members that were there before the kernel are in the kernel, more members than fit are not, and fewer are again.
func TestValueSet(t *testing.T) {
	w := newTwin(t, asking(t))
	members := func(n int) []p4.ValueMember {
		var all []p4.ValueMember
		for i := range n {
			all = append(all, p4.ValueMember{Value: bigEndian(uint64(3 * i))})
		}
		return all
	}
	set := func(all []p4.ValueMember) {
		w.both(func(sw *p4.Switch) error { return sw.SetValueSet("vs", all) })
	}
	frames := func() {
		for i := range uint16(500) {
			b := make([]byte, 64)
			binary.BigEndian.PutUint16(b, i)
			w.frame(1, b)
		}
	}
	frames()
	w.x.End()
	set(members(100))
	w.x.Begin(w.sw, w.now)
	frames()
	if w.kernel != 1000 {
		t.Errorf("%d frames in the kernel; in the engine: %v", w.kernel, w.engine)
	}
	set(members(valueSlots + 1))
	frames()
	if why := w.x.Stopped()["vs"]; w.kernel != 1000 || !strings.Contains(why, "pieces") {
		t.Errorf("%d frames in the kernel, stopped: %q", w.kernel, why)
	}
	part := p4.ValueMember{Value: bigEndian(0), Ranges: []p4.ValueRange{{Shift: 0, Bits: 9, Low: bigEndian(17), High: bigEndian(300)}}}
	set([]p4.ValueMember{part})
	frames()
	if w.kernel != 1500 || len(w.x.Stopped()) > 0 {
		t.Errorf("%d frames in the kernel, stopped: %v", w.kernel, w.x.Stopped())
	}
	part.Ranges[0] = p4.ValueRange{Shift: 1, Bits: 8, Low: bigEndian(17), High: bigEndian(200)}
	set([]p4.ValueMember{part})
	frames()
	if why := w.x.Stopped()["vs"]; w.kernel != 1500 || !strings.Contains(why, "no part") {
		t.Errorf("%d frames in the kernel, stopped: %q", w.kernel, why)
	}
}

// TestValueSetParts: members with values, masks and ranges of the parts of a key, of which the first is in the highest bits.
func TestValueSetParts(t *testing.T) {
	w := newTwin(t, asking(t))
	r := newRandom(t)
	frames := 0
	for n := range 300 {
		key := uint16(r.Uint64())
		m := p4.ValueMember{Value: bigEndian(uint64(key))}
		if n%3 > 0 {
			m.Mask = bigEndian(r.Uint64() & 0xffff)
		}
		if n%3 > 1 {
			m.Ranges = []p4.ValueRange{{Shift: 9, Bits: 7, Low: []byte{byte(key >> 9 / 2)}, High: []byte{byte(key >> 9)}},
				{Shift: 0, Bits: 9, Low: bigEndian(uint64(key & 0x1ff / 3)), High: bigEndian(uint64(key & 0x1ff))}}[n%2 : n%2+1]
		}
		w.both(func(sw *p4.Switch) error { return sw.SetValueSet("vs", []p4.ValueMember{m}) })
		w.frame(1, padded(key))
		w.frame(1, padded(uint16(r.Uint64())))
		for bit := range 16 {
			w.frame(1, padded(key^1<<bit))
		}
		frames += 18
	}
	if w.kernel != frames {
		t.Errorf("%d of %d frames in the kernel, in the engine: %v", w.kernel, frames, w.engine)
	}
}
