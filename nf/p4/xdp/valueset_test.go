package xdp

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/p4"
)

// asking is a program that sends frames to port 3 whose first 16 bits are in the value set vs, and others to port 2.
func asking(t *testing.T) []byte { return askingOf(t, 1) }

// askingOf is the same program for frames of which one of the first so many numbers of 16 bits is in the value set. In the key of the first one
// bits are divided in two parts.
func askingOf(t *testing.T, numbers int) []byte {
	t.Helper()
	to := func(name string, id, port int) obj {
		return obj{"name": name, "id": id, "runtime_data": arr{}, "primitives": arr{prim("assign", fieldOf(specField), hexs(uint64(port)))}}
	}
	state := func(name string, id int, ops, key, cases arr) obj {
		return obj{"name": name, "id": id, "parser_ops": ops, "transition_key": key, "transitions": cases}
	}
	end := obj{"type": "default", "value": nil, "mask": nil, "next_state": nil}
	asks := func(next any) arr {
		return arr{obj{"type": "parse_vset", "value": "vs", "mask": nil, "next_state": "in"}, obj{"type": "default", "value": nil, "mask": nil, "next_state": next}}
	}
	next := func(n int) any {
		if n < numbers {
			return fmt.Sprintf("s%d", n)
		}
		return nil
	}
	states := arr{state("s", 0, arr{prim("extract", obj{"type": "regular", "value": "h"})}, arr{fieldOf(field{"h", "a", 7}), fieldOf(field{"h", "b", 9})}, asks(next(1))),
		state("in", 1, arr{prim("extract", obj{"type": "regular", "value": "in"})}, arr{}, arr{end})}
	for n := 1; n < numbers; n++ {
		states = slices.Insert(states, 0, any(state(fmt.Sprintf("s%d", n), 1+n, arr{}, arr{obj{"type": "lookahead", "value": arr{16 * (n - 1), 16}}}, asks(next(n+1)))))
	}
	b, err := json.Marshal(obj{"__meta__": obj{"version": arr{2, 23}},
		"header_types": arr{obj{"name": "std_t", "id": 1, "fields": stdFields}, obj{"name": "h_t", "id": 2, "fields": arr{arr{"a", 7, false}, arr{"b", 9, false}}}},
		"headers": arr{obj{"name": "standard_metadata", "id": 1, "header_type": "std_t", "metadata": true},
			obj{"name": "h", "id": 2, "header_type": "h_t", "metadata": false}, obj{"name": "in", "id": 3, "header_type": "h_t", "metadata": false}},
		"parse_vsets": arr{obj{"name": "vs", "id": 0, "compressed_bitwidth": 16, "max_size": 4}},
		"actions":     arr{to("two", 1, 2), to("three", 2, 3)},
		"parsers":     arr{obj{"name": "parser", "id": 0, "init_state": "s", "parse_states": states}},
		"deparsers":   arr{obj{"name": "deparser", "id": 0, "order": arr{"h", "in"}}},
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
	set(members(maxValues + 1))
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

// values are members of a value set, of one value each.
func values(all ...uint64) (members []p4.ValueMember) {
	for _, v := range all {
		members = append(members, p4.ValueMember{Value: bigEndian(v)})
	}
	return members
}

// askingFrame is a frame that begins with numbers of 16 bits.
func askingFrame(numbers ...uint16) []byte {
	b := make([]byte, 64)
	for i, n := range numbers {
		binary.BigEndian.PutUint16(b[2*i:], n)
	}
	return b
}

// TestValueSetOfStates: each of the states that ask a value set asks for the same members, also when there is no room for them.
func TestValueSetOfStates(t *testing.T) {
	w := newTwin(t, askingOf(t, 3))
	set := func(all []p4.ValueMember) {
		w.both(func(sw *p4.Switch) error { return sw.SetValueSet("vs", all) })
	}
	frames := func() {
		for n := range 3 {
			for _, v := range []uint16{3, 5, 7, 9} {
				numbers := []uint16{99, 99, 99}
				numbers[n] = v
				w.frame(1, askingFrame(numbers...))
			}
		}
	}
	set(values(3, 5))
	frames()
	set(values(5, 7))
	frames()
	if w.kernel != 24 || len(w.engine) > 0 {
		t.Errorf("%d frames in the kernel, in the engine: %v", w.kernel, w.engine)
	}
	var many []uint64
	for i := range uint64(maxValues + 1) {
		many = append(many, 9+2*i)
	}
	set(values(many...))
	frames()
	if why := w.x.Stopped()["vs"]; w.kernel != 24 || !strings.Contains(why, "pieces") {
		t.Errorf("%d frames in the kernel, stopped: %q", w.kernel, why)
	}
	set([]p4.ValueMember{{Value: bigEndian(0), Ranges: []p4.ValueRange{{Shift: 0, Bits: 16, Low: bigEndian(4), High: bigEndian(7)}}}}) // no part of the first key
	frames()
	if why := w.x.Stopped()["vs"]; !strings.Contains(why, "no part") {
		t.Errorf("%d frames in the kernel, stopped: %q", w.kernel, why)
	}
	was := w.kernel
	set(values(7, 9))
	frames()
	if w.kernel != was+12 || len(w.x.Stopped()) > 0 {
		t.Errorf("%d frames in the kernel, stopped: %v", w.kernel-was, w.x.Stopped())
	}
}

// TestValueSetRanges: a range whose lowest value is above its highest has no number, and all ranges of a part must hold.
func TestValueSetRanges(t *testing.T) {
	w := newTwin(t, asking(t))
	of := func(low, high uint64) p4.ValueRange {
		return p4.ValueRange{Shift: 0, Bits: 9, Low: bigEndian(low), High: bigEndian(high)}
	}
	for _, ranges := range [][]p4.ValueRange{{of(0x105, 0x003)}, {of(5, 3)}, {of(3, 300), of(20, 511)}, {of(0, 511)}, {of(511, 511)}, {of(0, 0)}} {
		w.both(func(sw *p4.Switch) error {
			return sw.SetValueSet("vs", []p4.ValueMember{{Value: bigEndian(0), Ranges: ranges}})
		})
		for key := range uint16(520) {
			w.frame(1, padded(key))
		}
	}
}
