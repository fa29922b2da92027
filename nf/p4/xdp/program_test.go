package xdp

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Random programs, as values in the shape of p4c's JSON.
type (
	obj = map[string]any
	arr = []any
)

var stdFields = arr{arr{"ingress_port", 9}, arr{"egress_spec", 9}, arr{"egress_port", 9}, arr{"instance_type", 32},
	arr{"packet_length", 32}, arr{"enq_timestamp", 32}, arr{"enq_qdepth", 19}, arr{"deq_timedelta", 32},
	arr{"deq_qdepth", 19}, arr{"ingress_global_timestamp", 48}, arr{"egress_global_timestamp", 48},
	arr{"mcast_grp", 16}, arr{"egress_rid", 16}, arr{"checksum_error", 1}, arr{"parser_error", 32}, arr{"priority", 3},
	arr{"_padding", 3}}

// field is a field that expressions may name.
type field struct {
	header, name string
	bits         int
}

// author writes a random program.
type author struct {
	meters arr // direct ones
	random
	types, headers, actions arr
	fields                  []field // all that may be read
	wire                    []string
	byHeader                map[string][]field
	ids                     int
	params                  []int // widths, of the action that is written
	nodes                   int
	profiles                arr
	stackSize               int // 0: the program has no stack
	stacks                  arr
	elements                []string
	valueSets               arr
	variable                string // header with a field of variable length
	floods                  bool   // ingress sends frames to a multicast group, and egress is empty
	wild                    bool   // wild_test.go
	unions                  []string
}

func (a *author) id() int { a.ids++; return a.ids }

func (a *author) one(list ...any) any { return list[a.IntN(len(list))] }

func pick[T any](a *author, list []T) T { return list[a.IntN(len(list))] }

// width is one of those that programs have.
func (a *author) width(most int) int {
	if a.wild && a.IntN(6) == 0 {
		return a.wildWidth(most)
	}
	w := pick(a, []int{1, 2, 3, 4, 5, 7, 8, 8, 9, 12, 13, 16, 16, 20, 24, 31, 32, 32, 33, 40, 48, 48, 57, 63, 64, 64, 96, 128})
	return min(w, most)
}

func (a *author) header(name string, meta bool) {
	var fields arr
	bits := 0
	for n := range 1 + a.IntN(5) {
		w := a.width(128)
		signed := meta && w > 1 && w <= 64 && a.IntN(5) == 0
		if a.wild && a.IntN(8) == 0 {
			w = a.wildWidth(2048)
			signed = w > 1 && a.IntN(3) == 0
		}
		fields = append(fields, arr{fmt.Sprintf("f%d", n), w, signed, w <= 64 && a.IntN(8) == 0})
		a.field(name, fmt.Sprintf("f%d", n), w)
		bits += w
	}
	if pad := -bits & 7; pad > 0 && !meta {
		fields = append(fields, arr{"pad", pad, false})
		a.field(name, "pad", pad)
	}
	t := obj{"name": name + "_t", "id": a.id(), "fields": fields}
	if name == a.variable {
		t["fields"], t["max_length"] = append(fields, arr{"var", "*"}), (bits+7)/8+pick(a, []int{1, 8, 24})
	}
	a.types = append(a.types, t)
	a.headers = append(a.headers, obj{"name": name, "id": a.id(), "header_type": name + "_t", "metadata": meta})
}

func (a *author) field(header, name string, bits int) {
	f := field{header, name, bits}
	a.fields = append(a.fields, f)
	a.byHeader[header] = append(a.byHeader[header], f)
}

func fieldOf(f field) obj { return obj{"type": "field", "value": arr{f.header, f.name}} }

func hexs(v uint64) obj { return obj{"type": "hexstr", "value": fmt.Sprintf("0x%x", v)} }

func expr(op string, l, r any) obj {
	return obj{"type": "expression", "value": obj{"op": op, "left": l, "right": r}}
}

// constant is a number that is likely to be somewhere in a frame.
func (a *author) constant() obj {
	if a.wild && a.IntN(8) == 0 {
		return a.wildConstant()
	}
	switch a.IntN(5) {
	case 0:
		return hexs(a.Uint64() >> a.IntN(64))
	case 1:
		return hexs(1<<a.IntN(64) - 1)
	}
	return hexs(uint64(a.IntN(4)))
}

// number is an expression that is a number.
func (a *author) number(depth int) any {
	if depth == 0 || a.IntN(3) == 0 {
		switch {
		case len(a.params) > 0 && a.IntN(3) == 0:
			return obj{"type": "runtime_data", "value": a.IntN(len(a.params))}
		case a.IntN(3) == 0:
			return a.constant()
		case a.stackSize > 0 && a.IntN(4) == 0:
			return a.ofStack()
		}
		return fieldOf(pick(a, a.fields))
	}
	if a.wild && a.IntN(4) == 0 {
		if e := a.wildNumber(depth); e != nil {
			return e
		}
	}
	l, r := a.number(depth-1), a.number(depth-1)
	switch a.IntN(12) {
	case 0:
		return expr("two_comp_mod", l, hexs(uint64(1+a.IntN(64))))
	case 1:
		return expr(pick(a, []string{"usat_cast", "sat_cast"}), l, hexs(uint64(2+a.IntN(62))))
	case 2:
		return obj{"type": "expression", "value": obj{"op": "?", "left": l, "right": r, "cond": a.truth(depth - 1)}}
	case 3:
		return expr(pick(a, []string{"<<", ">>"}), l, hexs(uint64(a.IntN(70))))
	case 4:
		return expr(pick(a, []string{"<<", ">>", "/", "%"}), l, r)
	case 5:
		return expr("~", nil, r)
	case 6:
		return expr("b2d", nil, a.truth(depth-1))
	case 8: // a slice of a concatenation
		if a.IntN(2) == 0 {
			both := expr("|", expr("<<", expr("&", l, hexs(1<<(1+a.IntN(63))-1)), hexs(uint64(1+a.IntN(100)))), expr("&", r, hexs(1<<(1+a.IntN(63))-1)))
			return expr("&", expr(">>", both, hexs(uint64(a.IntN(120)))), hexs(1<<(1+a.IntN(63))-1))
		}
		return expr("&", expr(">>", l, hexs(uint64(a.IntN(64)))), hexs(1<<(1+a.IntN(63))-1))
	case 7: // a slice, as p4c writes it
		return expr("&", expr(">>", l, hexs(uint64(a.IntN(64)))), hexs(1<<(1+a.IntN(33))-1))
	}
	e := expr(pick(a, []string{"+", "-", "*", "&", "|", "^"}), l, r)
	if a.IntN(2) == 0 { // as p4c cuts a result
		return expr("&", e, hexs(1<<(1+a.IntN(63))-1))
	}
	return e
}

func (a *author) truth(depth int) any {
	if depth <= 0 {
		if a.IntN(2) == 0 {
			return expr("d2b", nil, obj{"type": "field", "value": arr{pick(a, a.wire), "$valid$"}})
		}
		return expr(pick(a, []string{"==", "!=", "<", ">="}), fieldOf(pick(a, a.fields)), a.constant())
	}
	switch a.IntN(6) {
	case 0:
		return expr(pick(a, []string{"and", "or"}), a.truth(depth-1), a.truth(depth-1))
	case 1:
		return expr("not", nil, a.truth(depth-1))
	case 2:
		return expr(pick(a, []string{"==", "!="}), a.truth(depth-1), a.truth(depth-1))
	case 3:
		return expr("d2b", nil, a.number(depth-1))
	}
	l, r := a.number(depth-1), a.number(depth-1)
	if a.IntN(3) == 0 {
		r = l
	}
	return expr(pick(a, []string{"==", "!=", "<", "<=", ">", ">="}), l, r)
}

func prim(op string, p ...any) obj { return obj{"op": op, "parameters": arr(p)} }

// Numbers of the actions that calls run.
const pruneID, floodID = 1 << 20, 1<<20 + 1

var specField = field{"standard_metadata", "egress_spec", 9}

// action writes an action and returns its name and number.
func (a *author) action(n int) (string, int) {
	name := fmt.Sprintf("act%d", n)
	var data arr
	a.params = nil
	for i := range a.IntN(3) {
		w := a.width(64)
		a.params = append(a.params, w)
		data = append(data, obj{"name": fmt.Sprintf("p%d", i), "bitwidth": w})
	}
	var code arr
	count := 1 + a.IntN(5)
	for i := range count {
		code = append(code, a.primitive(i, count))
	}
	id := a.id()
	a.actions = append(a.actions, obj{"name": name, "id": id, "runtime_data": data, "primitives": code})
	a.params = nil
	return name, id
}

func (a *author) primitive(i, count int) obj {
	header := func() obj { return obj{"type": "header", "value": pick(a, a.wire)} }
	if a.stackSize > 0 && a.IntN(6) == 0 {
		return a.changesStack()
	}
	if a.wild && a.IntN(4) == 0 {
		if p := a.wildPrimitive(i, count); p != nil {
			return p.(obj)
		}
	}
	switch a.IntN(15) {
	case 0:
		return prim("add_header", header())
	case 1:
		if a.variable != "" && a.IntN(2) == 0 {
			return prim("remove_header", obj{"type": "header", "value": a.variable})
		}
		return prim("remove_header", header())
	case 13:
		if a.variable == "h2" { // h3 is behind it
			return prim("assign", fieldOf(pick(a, a.byHeader["h3"])), a.number(1))
		}
	case 2:
		if a.IntN(3) == 0 {
			return prim("mark_to_drop", obj{"type": "header", "value": "standard_metadata"})
		}
	case 3:
		return prim("count", obj{"type": "counter_array", "value": "c"}, a.number(1))
	case 4:
		return prim("assign_header", obj{"type": "header", "value": "h1"}, obj{"type": "header", "value": "twin"})
	case 12:
		if a.IntN(2) == 0 {
			return prim("assign", fieldOf(field{"standard_metadata", "mcast_grp", 16}), hexs(uint64(a.IntN(4))))
		}
	case 5, 6:
		return prim("assign", fieldOf(specField), hexs(uint64(a.IntN(8))))
	case 7:
		r := obj{"type": "register_array", "value": pick(a, []string{"r", "wide"})}
		at := pick(a, []any{hexs(uint64(a.IntN(9))), a.number(1), expr("&", a.number(1), hexs(7))})
		if a.IntN(2) == 0 {
			return prim("register_write", r, at, a.number(2))
		}
		return prim("register_read", fieldOf(pick(a, a.fields)), r, at)
	case 8:
		to := i + 1 + a.IntN(count-i)
		return prim("_jump_if_zero", a.truth(1), hexs(uint64(to)))
	case 9:
		if i == count-1 && a.IntN(3) == 0 {
			return prim("exit")
		}
	case 11:
		return prim("modify_field_with_hash_based_offset", fieldOf(pick(a, a.fields)), hexs(uint64(a.IntN(3))), obj{"type": "calculation", "value": fmt.Sprintf("hash%d", a.IntN(3))},
			hexs(pick(a, []uint64{0, 7, 16, 1000, 1 << 16, 1 << 32})))
	case 10:
		return prim("execute_meter", obj{"type": "meter_array", "value": pick(a, []string{"m", "bytes"})}, hexs(uint64(a.IntN(3))), fieldOf(pick(a, a.byHeader["meta"])))
	}
	return prim("assign", fieldOf(pick(a, a.fields)), a.number(3))
}

func (a *author) parser() obj {
	var states arr
	for i := range a.wire[:4] {
		next := func() any {
			if a.stackSize > 0 && a.IntN(2) == 0 {
				return "loop"
			}
			if a.wild && a.IntN(8) == 0 {
				return fmt.Sprintf("s%d", a.IntN(4))
			}
			if i == 3 || a.IntN(5) == 0 && a.wire[i] != a.variable {
				return nil
			}
			return fmt.Sprintf("s%d", i+1+a.IntN(3-i))
		}
		var ops arr
		if a.IntN(8) == 0 {
			ops = append(ops, prim("advance", hexs(uint64(8*a.IntN(3)))))
		}
		if a.wire[i] == a.variable {
			length := any(expr("&", expr("<<", fieldOf(pick(a, a.byHeader[a.wire[a.IntN(i)]])), hexs(uint64(2+a.IntN(3)))), hexs(pick(a, []uint64{0x18, 0x38, 0x3c, 0xf8}))))
			if a.IntN(8) == 0 {
				length = a.number(2)
			}
			ops = append(ops, prim("extract_VL", obj{"type": "regular", "value": a.variable}, length))
		} else {
			ops = append(ops, prim("extract", obj{"type": "regular", "value": a.wire[i]}))
		}
		if a.IntN(3) == 0 {
			a.params = nil
			ops = append(ops, prim("set", fieldOf(pick(a, a.byHeader["meta"])), a.number(2)))
		}
		if a.IntN(4) == 0 {
			ops = append(ops, prim("set", fieldOf(pick(a, a.byHeader["meta"])), obj{"type": "lookahead", "value": arr{a.IntN(9), 1 + a.IntN(pick(a, []int{40, 64, 130}))}}))
		}
		if a.IntN(6) == 0 {
			ops = append(ops, prim("verify", a.truth(1), hexs(3)))
		}
		if a.wild {
			ops = append(ops, a.wildOps()...)
		}
		var key, cases arr
		if f := pick(a, a.byHeader[a.wire[i]]); a.IntN(5) > 0 {
			bits := (f.bits + 7) / 8 * 8
			packed := f.bits
			if key = (arr{fieldOf(f)}); a.IntN(4) == 0 {
				n := pick(a, []int{8, 8, 13, 72})
				key = append(key, obj{"type": "lookahead", "value": arr{a.IntN(4), n}})
				bits, packed = bits+(n+7)/8*8, packed+n
			}
			if a.IntN(3) == 0 {
				set := fmt.Sprintf("vs%d", len(a.valueSets))
				same := slices.IndexFunc(a.valueSets, func(v any) bool { return v.(obj)["compressed_bitwidth"] == packed })
				if same >= 0 && a.IntN(2) == 0 {
					set = a.valueSets[same].(obj)["name"].(string)
				} else {
					a.valueSets = append(a.valueSets, obj{"name": set, "id": len(a.valueSets), "compressed_bitwidth": packed, "max_size": 16})
				}
				c := obj{"type": "parse_vset", "value": set, "mask": nil, "next_state": next()}
				if a.IntN(3) == 0 {
					c["mask"] = fmt.Sprintf("0x%x", a.Uint64()&ones(min(packed, 63)))
				}
				cases = append(cases, c)
			}
			for range a.IntN(3) {
				c := obj{"type": "hexstr", "value": fmt.Sprintf("0x%x", a.Uint64N(4)&ones(min(bits, 63))), "mask": nil, "next_state": next()}
				if a.IntN(2) == 0 {
					c["mask"] = fmt.Sprintf("0x%x", a.Uint64N(8)&ones(min(bits, 63)))
				}
				cases = append(cases, c)
			}
		}
		cases = append(cases, obj{"type": "default", "value": nil, "mask": nil, "next_state": next()})
		states = append(states, obj{"name": fmt.Sprintf("s%d", i), "id": i, "parser_ops": ops, "transition_key": key, "transitions": cases})
	}
	if a.stackSize > 0 {
		states = append(states, a.stackState("loop", a.one(nil, nil, "s3")))
	}
	return obj{"name": "parser", "id": 0, "init_state": "s0", "parse_states": states}
}

// table writes a table of a pipeline; next is the name of the node behind it.
func (a *author) table(name string, next any, names []string, ids []int) obj {
	kind := pick(a, []string{"exact", "exact", "lpm", "ternary", "range"})
	var keys arr
	prefixed := kind == "lpm"
	for i := range 1 + a.IntN(3) {
		f := pick(a, a.fields)
		match := "exact"
		if i == 0 {
			match = kind
		} else if kind != "exact" && kind != "lpm" {
			match = pick(a, []string{"exact", "ternary"})
			if kind == "range" {
				if match = pick(a, []string{"exact", "ternary", "range", "range", "lpm"}); match == "lpm" && prefixed {
					match = "range" // a table has one LPM field
				}
				prefixed = prefixed || match == "lpm"
			}
		}
		target := arr{f.header, f.name}
		if match == "exact" && a.IntN(6) == 0 {
			target = arr{pick(a, a.wire), "$valid$"}
		}
		keys = append(keys, obj{"match_type": match, "name": fmt.Sprintf("k%d", i), "target": target, "mask": nil})
	}
	t := obj{"name": name, "id": a.id(), "match_type": kind, "type": "simple", "max_size": 64, "key": keys, "with_counters": a.IntN(2) == 0,
		"support_timeout": a.IntN(3) == 0, "base_default_next": next}
	var acts, actIDs arr
	branches := obj{}
	for range 1 + a.IntN(3) {
		i := a.IntN(len(names))
		acts, actIDs = append(acts, names[i]), append(actIDs, ids[i])
		branches[names[i]] = a.one(next, next, nil)
	}
	if a.IntN(3) == 0 {
		branches = obj{"__HIT__": next, "__MISS__": a.one(next, nil)}
	}
	if len(a.profiles) > 0 && a.IntN(2) == 0 {
		p := pick(a, a.profiles).(obj)
		t["type"], t["action_profile"] = "indirect", p["name"]
		if p["selector"] != nil {
			t["type"] = a.one("indirect", "indirect_ws", "indirect_ws", "indirect_ws")
		}
	}
	if a.IntN(3) == 0 {
		to := pick(a, append(a.byHeader["meta"], a.byHeader["h1"]...))
		t["direct_meters"] = name + "_meter"
		a.meters = append(a.meters, obj{"name": name + "_meter", "id": 2 + len(a.meters), "is_direct": true, "rate_count": 2, "type": a.one("bytes", "packets"),
			"size": 64, "binding": name, "result_target": arr{to.header, to.name}})
	}
	t["actions"], t["action_ids"], t["next_tables"] = acts, actIDs, branches
	if a.wild {
		a.wildTable(t)
	}
	return t
}

func (a *author) pipeline(name string, tables int, names []string, ids []int) obj {
	list, conds := arr{}, arr{}
	if name == "egress" && (a.IntN(3) == 0 || a.floods) {
		tables = 0 // so that the copies of a frame are equal
	}
	p := obj{"name": name}
	var next any
	if name == "ingress" && a.floods {
		p["action_calls"] = arr{obj{"name": "flood", "id": 0, "action_id": floodID, "next_node": nil}}
		next = "flood"
	}
	for i := tables - 1; i >= 0; i-- {
		t := fmt.Sprintf("%s_t%d", name, i)
		list = append(list, a.table(t, next, names, ids))
		next = t
		if a.IntN(2) == 0 {
			a.nodes++
			c := fmt.Sprintf("node%d", a.nodes)
			conds = append(conds, obj{"name": c, "id": a.nodes, "expression": a.truth(2), "true_next": t, "false_next": a.one(t, list[max(0, len(list)-2)].(obj)["name"])})
			next = c
		}
	}
	if name == "egress" && a.IntN(2) == 0 { // no copy goes back
		a.nodes++
		conds = append(conds, obj{"name": "back", "id": a.nodes, "true_next": "prune", "false_next": next,
			"expression": expr("==", fieldOf(field{"standard_metadata", "egress_port", 9}), fieldOf(field{"standard_metadata", "ingress_port", 9}))})
		p["action_calls"] = arr{obj{"name": "prune", "id": 0, "action_id": pruneID, "next_node": nil}}
		next = "back"
	}
	p["init_table"], p["tables"], p["conditionals"], p["action_profiles"] = next, list, conds, arr{}
	if name == "ingress" {
		p["action_profiles"] = a.profiles
	}
	return p
}

// checksum is over some fields of a header, in another of at least 16 bits; nil: there is none.
func (a *author) checksums() (calcs, sums arr) {
	h := pick(a, a.wire)
	for _, f := range a.byHeader[h] {
		if f.bits < 8 || f.bits > 64 || len(sums) > 1 {
			continue
		}
		var in arr
		for _, g := range a.byHeader[h] {
			if g != f {
				in = append(in, obj{"type": "field", "value": arr{g.header, g.name}})
			}
		}
		if a.IntN(2) == 0 {
			in = append(in, obj{"type": "hexstr", "value": "0x0123", "bitwidth": 16})
		}
		if a.IntN(2) == 0 {
			m := pick(a, a.byHeader["meta"])
			in = append(in, obj{"type": "field", "value": arr{m.header, m.name}})
		}
		if h == a.variable && a.IntN(3) > 0 {
			in = append(in, obj{"type": "field", "value": arr{h, "var"}})
		}
		name := fmt.Sprintf("calc%d", len(calcs))
		calcs = append(calcs, obj{"name": name, "id": len(calcs), "algo": "csum16", "input": in})
		update := a.IntN(2) == 0
		sums = append(sums, obj{"name": "sum" + name, "id": len(sums), "target": arr{f.header, f.name}, "type": "generic", "calculation": name,
			"verify": !update, "update": update, "if_cond": expr("d2b", nil, obj{"type": "field", "value": arr{h, "$valid$"}})})
	}
	return calcs, sums
}

// hash is a hash of fields, headers and numbers.
func (a *author) hash() obj {
	var in arr
	for range 1 + a.IntN(5) {
		switch f := pick(a, a.byHeader["meta"]); a.IntN(9) {
		case 0:
			in = append(in, obj{"type": "hexstr", "value": "0x01", "bitwidth": 1 + 8*a.IntN(3)})
		case 1:
			in = append(in, obj{"type": "field", "value": arr{"standard_metadata", "packet_length"}})
		case 2:
			in = append(in, obj{"type": "header", "value": pick(a, a.wire)})
		case 3, 4:
			f = pick(a, a.byHeader[pick(a, a.wire)])
			fallthrough
		default:
			in = append(in, obj{"type": "field", "value": arr{f.header, f.name}})
		}
	}
	return obj{"algo": pick(a, []string{"crc32", "crc32", "crc16", "csum16"}), "input": in}
}

// program is the JSON of a random program.
func (a *author) program() []byte {
	a.byHeader = map[string][]field{}
	a.types = append(a.types, obj{"name": "standard_metadata_t", "id": a.id(), "fields": stdFields})
	a.headers = append(a.headers, obj{"name": "standard_metadata", "id": a.id(), "header_type": "standard_metadata_t", "metadata": true})
	length := field{"standard_metadata", "packet_length", 32}
	a.fields = append(a.fields, field{"standard_metadata", "ingress_port", 9}, length, length, length, field{"standard_metadata", "egress_port", 9},
		field{"standard_metadata", "parser_error", 32}, field{"standard_metadata", "ingress_global_timestamp", 48},
		field{"standard_metadata", "egress_global_timestamp", 48}, field{"standard_metadata", "enq_timestamp", 32}, field{"standard_metadata", "checksum_error", 1}, specField)
	a.header("meta", true)
	if a.IntN(2) == 0 {
		a.variable = pick(a, []string{"h2", "h2", "h3"})
	}
	for i := range 4 {
		name := fmt.Sprintf("h%d", i)
		a.header(name, false)
		a.wire = append(a.wire, name)
	}
	// Another header of the type of h1.
	a.headers = append(a.headers, obj{"name": "twin", "id": a.id(), "header_type": "h1_t", "metadata": false})
	for _, f := range a.byHeader["h1"] {
		a.field("twin", f.name, f.bits)
	}
	a.wire = append(a.wire, "twin")
	a.addStack()
	a.unionHeaders()
	std := func(name string) arr {
		return arr{"intrinsic_metadata." + name, arr{"standard_metadata", name}}
	}
	var names []string
	var ids []int
	a.actions = append(a.actions, obj{"name": "prune", "id": pruneID, "runtime_data": arr{}, "primitives": arr{prim("mark_to_drop", obj{"type": "header", "value": "standard_metadata"})}})
	if a.floods {
		a.actions = append(a.actions, obj{"name": "flood", "id": floodID, "runtime_data": arr{},
			"primitives": arr{prim("assign", fieldOf(field{"standard_metadata", "mcast_grp", 16}), hexs(uint64(1+a.IntN(3))))}})
	}
	for i := range 6 {
		n, id := a.action(i)
		names, ids = append(names, n), append(ids, id)
	}
	order := arr{"h0", "h1", "h2", "h3", "twin"}
	if a.IntN(4) == 0 {
		order = arr{"twin", "h2", "h0", "h3"}
	}
	for _, e := range append(a.elements, a.unions...) {
		order = append(order, e)
	}
	calcs, sums := a.checksums()
	for i := range 3 {
		h := a.hash()
		h["name"], h["id"] = fmt.Sprintf("hash%d", i), len(calcs)
		calcs = append(calcs, h)
	}
	for i := range a.IntN(3) {
		p := obj{"name": fmt.Sprintf("prof%d", i), "id": i, "max_size": a.one(0, 3, 8, 64)}
		if a.IntN(3) > 0 {
			p["selector"] = a.hash()
		}
		a.profiles = append(a.profiles, p)
	}
	parser := a.parser() // which makes value sets
	root := obj{"__meta__": obj{"version": arr{2, 23}}, "header_types": a.types, "headers": a.headers, "actions": a.actions,
		"field_aliases": arr{std("ingress_global_timestamp"), std("egress_global_timestamp"), std("mcast_grp"), std("egress_rid"), std("priority")},
		"parsers":       arr{parser},
		"header_stacks": a.stacks, "parse_vsets": a.valueSets,
		"errors":         arr{arr{"NoError", 0}, arr{"PacketTooShort", 1}, arr{"NoMatch", 2}, arr{"StackOutOfBounds", 4}, arr{"HeaderTooShort", 5}, arr{"ParserInvalidArgument", 6}},
		"deparsers":      arr{obj{"name": "deparser", "id": 0, "order": order}},
		"pipelines":      arr{a.pipeline("ingress", 3, names, ids), a.pipeline("egress", 1, names, ids)},
		"counter_arrays": arr{obj{"name": "c", "id": 0, "size": 8}}, "calculations": calcs, "checksums": sums,
		"register_arrays": arr{obj{"name": "r", "id": 0, "size": 8, "bitwidth": pick(a, []int{1, 17, 32, 64})}, obj{"name": "wide", "id": 1, "size": 5, "bitwidth": 96}},
		"meter_arrays": append(a.meters, obj{"name": "m", "id": 0, "type": "packets", "rate_count": 2, "size": 4},
			obj{"name": "bytes", "id": 1, "type": "bytes", "rate_count": 2, "size": 4})}
	if a.wild {
		list := arr{fieldOf(pick(a, a.byHeader["meta"])), obj{"type": "field", "value": arr{"standard_metadata", "ingress_port"}}}
		root["field_lists"], root["learn_lists"] = arr{obj{"id": 1, "name": "kept", "elements": list}}, arr{obj{"id": 1, "name": "learnt", "elements": list}}
		a.addUnion(root)
	}
	b, err := json.Marshal(root)
	if err != nil {
		panic(err)
	}
	return b
}
