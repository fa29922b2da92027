package xdp

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/p4"
)

// What a wild program has beside what all random programs have: odd widths, parsers with loops, tables with entries of their own, and all that
// only the engine does.

// wildWidth is any width that a field may have, most of them small.
func (a *author) wildWidth(most int) int {
	return 1 + a.IntN(min(most, pick(a, []int{16, 64, 80, 130, 300, 2048})))
}

// wildConstant is negative, or has more than 64 bits.
func (a *author) wildConstant() obj {
	v := fmt.Sprintf("0x%x", a.Uint64()>>a.IntN(64))
	switch a.IntN(3) {
	case 0:
		v = "-" + v
	case 1:
		v += fmt.Sprintf("%016x", a.Uint64())
	case 2:
		v = "0x1" + strings.Repeat("0", a.IntN(40))
	}
	return obj{"type": "hexstr", "value": v}
}

// wildNumber is a number that others do not have; nil: none.
func (a *author) wildNumber(depth int) any {
	l := func() any { return a.number(depth - 1) }
	switch a.IntN(9) {
	case 0:
		return expr("two_comp_mod", l(), hexs(uint64(1+a.IntN(200))))
	case 1:
		return expr(pick(a, []string{"usat_cast", "sat_cast"}), l(), hexs(uint64(2+a.IntN(100))))
	case 2:
		return expr(pick(a, []string{"<<", ">>"}), l(), hexs(uint64(a.IntN(300))))
	case 3:
		return expr(pick(a, []string{"/", "%"}), a.constant(), a.constant())
	case 4:
		return expr(pick(a, []string{"/", "%"}), l(), a.constant())
	case 5:
		return expr(pick(a, []string{"+", "-", "*", "&", "|", "^"}), a.wildConstant(), l())
	case 6:
		return expr(pick(a, []string{"<<", ">>"}), a.constant(), l())
	}
	return nil
}

// stdWritten are fields of the architecture that programs may write.
var stdWritten = []field{{"standard_metadata", "ingress_port", 9}, {"standard_metadata", "egress_port", 9}, {"standard_metadata", "instance_type", 32},
	{"standard_metadata", "packet_length", 32}, {"standard_metadata", "enq_timestamp", 32}, {"standard_metadata", "enq_qdepth", 19},
	{"standard_metadata", "deq_timedelta", 32}, {"standard_metadata", "ingress_global_timestamp", 48}, {"standard_metadata", "egress_global_timestamp", 48},
	{"standard_metadata", "mcast_grp", 16}, {"standard_metadata", "egress_rid", 16}, {"standard_metadata", "checksum_error", 1},
	{"standard_metadata", "parser_error", 32}, {"standard_metadata", "priority", 3}}

// wildPrimitive is a primitive that others do not have; nil: none.
func (a *author) wildPrimitive(i, count int) any {
	n := func() any { return a.number(1) }
	header := func(name string) obj { return obj{"type": "header", "value": name} }
	switch a.IntN(22) {
	case 0:
		return prim("assign", obj{"type": "field", "value": arr{pick(a, a.wire), "$valid$"}}, n())
	case 1, 2:
		return prim("assign", fieldOf(pick(a, stdWritten)), n())
	case 3:
		return prim("assign_header", header("twin"), header("h1"))
	case 4:
		if len(a.elements) > 0 {
			return prim("assign_header", header(pick(a, a.elements)), header(pick(a, a.elements)))
		}
	case 5:
		return prim("truncate", hexs(uint64(a.IntN(100))))
	case 6:
		return prim(pick(a, []string{"recirculate", "resubmit"}), hexs(uint64(a.IntN(2))))
	case 7:
		return prim(pick(a, []string{"clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress"}), hexs(uint64(a.IntN(4))), hexs(uint64(a.IntN(2))))
	case 8:
		return prim("generate_digest", hexs(1), hexs(1))
	case 9:
		return prim(pick(a, []string{"assert", "assume"}), a.truth(2))
	case 10:
		return prim("no_op")
	case 11, 12:
		return prim("execute_meter", obj{"type": "meter_array", "value": pick(a, []string{"m", "bytes"})}, n(), fieldOf(pick(a, a.fields)))
	case 13:
		return prim("modify_field_with_hash_based_offset", fieldOf(pick(a, a.fields)), n(), obj{"type": "calculation", "value": fmt.Sprintf("hash%d", a.IntN(3))}, n())
	case 14:
		return prim(pick(a, []string{"add", "subtract", "bit_xor", "bit_or", "bit_and", "shift_left", "shift_right"}), fieldOf(pick(a, a.fields)), n(), n())
	case 15:
		return prim(pick(a, []string{"add_to_field", "subtract_from_field"}), fieldOf(pick(a, a.fields)), n())
	case 16:
		return prim("_jump", hexs(uint64(i+1+a.IntN(count-i))))
	case 17:
		return prim(pick(a, []string{"add_header", "remove_header", "add_header_fast"}), header(pick(a, a.wire)))
	case 18:
		return prim("drop")
	case 19:
		if len(a.unions) > 0 {
			return prim(pick(a, []string{"add_header", "remove_header"}), header(pick(a, a.unions)))
		}
	}
	return nil
}

// addUnion gives a program a header union "u" of two headers.
func (a *author) addUnion(root obj) {
	if !a.wild || len(a.unions) == 0 {
		return
	}
	root["header_union_types"] = arr{obj{"name": "u_t", "id": 1, "headers": arr{arr{"a", "ua_t"}, arr{"b", "ub_t"}}}}
	var ids arr
	for _, h := range a.headers {
		if slices.Contains(a.unions, h.(obj)["name"].(string)) {
			ids = append(ids, h.(obj)["id"])
		}
	}
	root["header_unions"] = arr{obj{"name": "u", "id": 1, "union_type": "u_t", "header_ids": ids}}
}

func (a *author) unionHeaders() {
	if !a.wild || a.IntN(2) == 0 {
		return
	}
	for _, name := range []string{"a", "b"} {
		bits := 8 * (1 + a.IntN(12))
		first := 1 + a.IntN(bits-1)
		a.types = append(a.types, obj{"name": "u" + name + "_t", "id": a.id(), "fields": arr{arr{"f", first, false}, arr{"g", bits - first, false}}})
		a.headers = append(a.headers, obj{"name": "u." + name, "id": a.id(), "header_type": "u" + name + "_t", "metadata": false})
		a.field("u."+name, "f", first)
		a.field("u."+name, "g", bits-first)
		a.unions = append(a.unions, "u."+name)
	}
}

// wildOps are operations of a parser's state.
func (a *author) wildOps() (ops arr) {
	if len(a.unions) > 0 && a.IntN(3) == 0 {
		ops = append(ops, prim("extract", obj{"type": "regular", "value": pick(a, a.unions)}))
	}
	switch a.IntN(6) {
	case 0:
		ops = append(ops, prim("primitive", prim(pick(a, []string{"add_header", "remove_header"}), obj{"type": "header", "value": pick(a, a.wire)})))
	case 1:
		ops = append(ops, prim("primitive", prim("assign_header", obj{"type": "header", "value": "twin"}, obj{"type": "header", "value": "h1"})))
	case 2:
		ops = append(ops, prim("shift", a.IntN(20)))
	case 3:
		ops = append(ops, prim("set", fieldOf(pick(a, a.fields)), a.number(2)))
	}
	return ops
}

// call is an action with arguments, as the program has them for an entry of its own.
func (a *author) call(name string) obj {
	for _, x := range a.actions {
		o := x.(obj)
		if o["name"] != name {
			continue
		}
		data := arr{}
		params, _ := o["runtime_data"].(arr)
		for _, p := range params {
			data = append(data, fmt.Sprintf("0x%x", a.Uint64()&ones(min(64, p.(obj)["bitwidth"].(int)))))
		}
		return obj{"action_id": o["id"], "action_data": data}
	}
	panic(name)
}

// wildTable changes a table: entries and a default entry of its own, no key, masks.
func (a *author) wildTable(t obj) {
	names := t["actions"].(arr)
	name := func() string { return names[a.IntN(len(names))].(string) }
	if t["type"] == "simple" && a.IntN(3) == 0 {
		d := a.call(name())
		d["action_const"], d["action_entry_const"] = a.IntN(3) == 0, a.IntN(3) == 0
		t["default_entry"] = d
	}
	keys := t["key"].(arr)
	for _, k := range keys {
		if o := k.(obj); o["match_type"] == "exact" && a.IntN(4) == 0 {
			if bits := a.bitsOf(o["target"].(arr)); bits > 0 {
				o["mask"] = fmt.Sprintf("0x%x", a.Uint64()&ones(min(bits, 64)))
			}
		}
	}
	switch {
	case a.IntN(8) == 0:
		t["key"], t["match_type"] = arr{}, "exact"
		delete(t, "direct_meters")
	case t["type"] == "simple" && a.IntN(4) == 0:
		var entries arr
		for n := range 1 + a.IntN(5) {
			var match arr
			for _, k := range keys {
				o := k.(obj)
				bits := a.bitsOf(o["target"].(arr))
				if bits == 0 {
					bits = 1
				}
				low := func() string { return fmt.Sprintf("0x%x", a.value(bits)) }
				m := obj{"match_type": o["match_type"], "key": low()}
				switch o["match_type"] {
				case "lpm":
					m["prefix_length"] = a.IntN(bits + 1)
				case "ternary":
					m["mask"] = low()
				case "range":
					x, y := low(), low()
					if x > y {
						x, y = y, x
					}
					m["start"], m["end"] = x, y
					delete(m, "key")
				}
				match = append(match, m)
			}
			entries = append(entries, obj{"match_key": match, "action_entry": a.call(name()), "priority": 1 + n})
		}
		t["entries"] = entries
	}
	if a.IntN(4) == 0 {
		t["max_size"] = 1 + a.IntN(3)
	}
}

// bitsOf is the width of a field; 0: it is a validity.
func (a *author) bitsOf(target arr) int {
	for _, f := range a.byHeader[target[0].(string)] {
		if f.name == target[1] {
			return f.bits
		}
	}
	for _, f := range a.fields {
		if f.header == target[0] && f.name == target[1] {
			return f.bits
		}
	}
	return 0
}

// headerBytes are the lengths of the headers of a wild program.
func (a *author) headerBytes() (all []int) {
	for _, h := range a.headers {
		if o := h.(obj); o["metadata"] == false {
			bits := 0
			for _, f := range a.byHeader[o["name"].(string)] {
				bits += f.bits
			}
			all = append(all, bits/8)
		}
	}
	return all
}

// wildPayload is a frame that is as long as some of the headers are, or one byte more or less, or as long as any frame.
func (r random) wildPayload(headers []int) []byte {
	n := r.IntN(4)
	for _, h := range headers {
		if r.IntN(2) == 0 {
			n += h
		}
	}
	switch r.IntN(8) {
	case 0:
		n = 1400 + r.IntN(130)
	case 1:
		n = r.IntN(1500)
	}
	return r.bytes(min(max(14, n-2), 2900))
}

// write does to both switches what a controller may do at any time.
func (w *twin) write(r random) {
	w.Helper()
	p := w.sw.Program()
	switch r.IntN(4) {
	case 0:
		if all := p.Registers(); len(all) > 0 {
			x := all[r.IntN(len(all))]
			i, v := r.IntN(x.Size+1), r.value(x.Bits)
			w.both(func(sw *p4.Switch) error { return sw.SetRegister(x.Name, i, v) })
		}
	case 1:
		i, v := r.IntN(9), p4.Count{Packets: r.Uint64() >> r.IntN(64), Bytes: r.Uint64() >> r.IntN(64)}
		w.both(func(sw *p4.Switch) error { return sw.SetCount("c", i, v) })
	case 2:
		id := uint32(r.IntN(4))
		s := p4.Session{Length: r.IntN(2) * r.IntN(80), Replicas: []p4.Replica{{Port: uint32(r.IntN(6)), Rid: uint16(r.IntN(2))}}}
		w.both(func(sw *p4.Switch) error { return sw.SetSession(id, s) })
	case 3:
		id := uint32(r.IntN(4))
		w.both(func(sw *p4.Switch) error { return sw.DeleteSession(id) })
	}
}
