package stf

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// Random programs for PSA, in the shape of p4c-bm2-psa's JSON.
type (
	obj = map[string]any
	arr = []any
)

// place is a field that expressions may name.
type place struct {
	header, name string
	bits         int
}

func (p place) value() obj { return obj{"type": "field", "value": arr{p.header, p.name}} }

func hexs(v uint64) obj { return obj{"type": "hexstr", "value": fmt.Sprintf("0x%x", v)} }

// prim is a primitive, whose expressions stand in the JSON as p4c writes them.
func prim(op string, p ...any) obj {
	for i, x := range p {
		if o, ok := x.(obj); ok && o["type"] == "expression" && op != "verify" {
			p[i] = obj{"type": "expression", "value": o}
		} else if ok && o["type"] == "local" {
			p[i] = obj{"type": "runtime_data", "value": o["value"]}
		}
	}
	return obj{"op": op, "parameters": arr(p)}
}

func named(kind, name string) obj { return obj{"type": kind, "value": name} }
func expr(op string, l, r any) obj {
	return obj{"type": "expression", "value": obj{"op": op, "left": l, "right": r}}
}
func either(cond, yes, no any) obj {
	return obj{"type": "expression", "value": obj{"op": "?", "cond": cond, "left": yes, "right": no}}
}

// author writes a random program. A header that a packet may lack is read only where it is there: bmv2 leaves in it what an
// earlier packet had.
type author struct {
	*rand.Rand
	// again: frames come again, and are cloned at egress. Then bmv2 takes other frames meanwhile, and so neither registers
	// nor meters are used. Without it, all frames keep their order.
	again            bool
	ids, nodes       int
	types, headers   arr
	actions, externs arr
	counters         arr
	wire             []string
	fields           map[string][]place
	ingress          bool   // where the action, the table or the state is
	guard            string // the header that is there
	params           []int  // widths
}

func (a *author) id() int { a.ids++; return a.ids }

func pick[T any](a *author, list []T) T { return list[a.IntN(len(list))] }

// inputs are fields of the architecture that the program may read.
func (a *author) inputs() []place {
	if !a.ingress {
		const in = "psa_egress_input_metadata"
		return []place{{in, "class_of_service", 8}, {in, "egress_port", 32}, {in, "packet_path", 32}, {in, "instance", 16}, {in, "parser_error", 32}}
	}
	const in = "psa_ingress_input_metadata"
	all := []place{{in, "packet_path", 32}, {in, "parser_error", 32}}
	if !a.again { // of a resubmitted packet psa_switch says 0
		all = append(all, place{in, "ingress_port", 32})
	}
	return all
}

// writable are fields that the program may read and write.
func (a *author) writable() place {
	of := []string{"meta", "h0"}
	if a.guard != "" {
		of = append(of, a.guard, a.guard)
	}
	return pick(a, a.fields[pick(a, of)])
}

func (a *author) readable() place {
	if a.IntN(4) == 0 {
		return pick(a, a.inputs())
	}
	return a.writable()
}

func (a *author) header(name, typ string, meta bool) {
	a.headers = append(a.headers, obj{"name": name, "id": a.id(), "header_type": typ, "metadata": meta})
	for _, t := range a.types {
		if t := t.(obj); t["name"] == typ {
			for _, f := range t["fields"].(arr) {
				f := f.(arr)
				a.fields[name] = append(a.fields[name], place{name, f[0].(string), f[1].(int)})
			}
		}
	}
	if !meta {
		a.wire = append(a.wire, name)
	}
}

// typ declares a type with fields of some widths; another field fills up the last byte.
func (a *author) typ(name string, widths ...int) {
	var fields arr
	bits := 0
	for i, w := range widths {
		fields = append(fields, arr{fmt.Sprintf("f%d", i), w, false})
		bits += w
	}
	if pad := -bits & 7; pad > 0 {
		fields = append(fields, arr{"pad", pad, false})
	}
	a.types = append(a.types, obj{"name": name, "id": a.id(), "fields": fields})
}

func (a *author) widths() (all []int) {
	for range 1 + a.IntN(4) {
		all = append(all, pick(a, []int{1, 3, 4, 7, 8, 8, 9, 13, 16, 16, 17, 24, 32, 32, 33, 48, 63, 64, 65, 96, 128}))
	}
	return all
}

func (a *author) constant() obj {
	if a.IntN(3) == 0 {
		return hexs(a.Uint64() >> (1 + a.IntN(63)))
	}
	return hexs(uint64(a.IntN(5)))
}

// number is an expression, cut as p4c cuts it.
func (a *author) number(depth int) any {
	if depth == 0 || a.IntN(3) == 0 {
		switch {
		case len(a.params) > 0 && a.IntN(2) == 0:
			return obj{"type": "local", "value": a.IntN(len(a.params))}
		case a.IntN(4) == 0:
			return a.constant()
		}
		return a.readable().value()
	}
	l, r := a.number(depth-1), a.number(depth-1)
	cut := func(e any) any { return expr("&", e, hexs(1<<pick(a, []int{1, 8, 16, 31, 32, 48, 63})-1)) }
	switch a.IntN(8) {
	case 0:
		return either(a.truth(depth-1), l, r)
	case 1:
		return cut(expr("<<", l, hexs(uint64(a.IntN(40)))))
	case 2:
		return expr(">>", l, hexs(uint64(a.IntN(40))))
	case 3:
		return cut(expr("~", nil, r))
	case 4:
		return expr("b2d", nil, a.truth(depth-1))
	}
	return cut(expr(pick(a, []string{"+", "-", "*", "&", "|", "^"}), l, r))
}

func (a *author) truth(depth int) any {
	if depth <= 0 {
		return expr(pick(a, []string{"==", "!=", "<", ">="}), a.readable().value(), a.constant())
	}
	switch a.IntN(5) {
	case 0:
		return expr(pick(a, []string{"and", "or"}), a.truth(depth-1), a.truth(depth-1))
	case 1:
		return expr("not", nil, a.truth(depth-1))
	case 2:
		return valid(pick(a, a.wire))
	}
	return expr(pick(a, []string{"==", "!=", "<", "<=", ">", ">="}), a.number(depth-1), a.number(depth-1))
}

func valid(header string) obj { return expr("d2b", nil, place{header, "$valid$", 1}.value()) }

func (a *author) index() obj { return expr("&", a.number(1), hexs(7)) }

// list is a list of fields and numbers for a hash or a checksum; each of whole bits.
func (a *author) list(whole int) obj {
	var all arr
	bits := 0
	for range 1 + a.IntN(4) {
		f := a.readable()
		all, bits = append(all, f.value()), bits+f.bits
	}
	if over := bits % whole; over != 0 {
		all = append(all, obj{"type": "hexstr", "value": "0x1", "bitwidth": whole - over})
	}
	return obj{"type": "field_list", "value": all}
}

// output is a primitive that says what becomes of the packet.
func (a *author) output() obj {
	out := func(name string, v any) obj {
		header := "psa_egress_output_metadata"
		if a.ingress {
			header = "psa_ingress_output_metadata"
		}
		return prim("assign", place{header, name, 0}.value(), v)
	}
	first := func(path string, n uint64, v, otherwise any) any { // only the first time
		return either(expr("==", place{"psa_" + path + "_input_metadata", "packet_path", 32}.value(), hexs(n)), v, otherwise)
	}
	if !a.ingress {
		switch a.IntN(4) {
		case 0:
			return out("drop", hexs(uint64(a.IntN(2))))
		case 1:
			return out("clone_session_id", hexs(uint64(1+a.IntN(5))))
		}
		if !a.again {
			return out("clone", hexs(0))
		}
		return out("clone", first("egress", 1, hexs(1), hexs(0)))
	}
	switch a.IntN(10) {
	case 0:
		return out("drop", hexs(uint64(a.IntN(2))))
	case 1:
		return out("multicast_group", hexs(uint64(a.IntN(5))))
	case 2, 8:
		return out("clone", either(a.truth(0), hexs(1), hexs(0)))
	case 3, 4:
		return out("clone_session_id", hexs(uint64(1+a.IntN(5))))
	case 5:
		return out("class_of_service", a.number(1))
	case 6:
		if a.again {
			return out("resubmit", first("ingress", 0, hexs(1), hexs(0)))
		}
	case 7:
		if a.again {
			return out("egress_port", first("ingress", 0, hexs(0xfffffffa), hexs(5)))
		}
	}
	return out("egress_port", hexs(uint64(pick(a, wires))))
}

// wires are ports that one thread of psa_switch serves, which therefore keeps the order of the frames.
var wires = []uint32{1, 5, 9, 13}

// side is the register and the meter of a pipeline: psa_switch's ingress is ahead of its egress by any number of frames.
func (a *author) side() string {
	if a.ingress {
		return "0"
	}
	return "1"
}

func (a *author) primitive(i, count int) obj {
	switch a.IntN(16) {
	case 0, 1, 2:
		return a.output()
	case 3: // half of the indices are outside of the array
		return prim("_Counter_count", named("extern", pick(a, []string{"c0", "c1", "c2"})), expr("&", a.number(1), hexs(15)))
	case 4:
		return prim("_Hash_get_hash", named("extern", pick(a, []string{"crc16", "crc32", "identity", "csum16"})), a.writable().value(), a.list(1))
	case 5:
		return prim("_Hash_get_hash_mod", named("extern", pick(a, []string{"crc16", "crc32"})), a.writable().value(), a.constant(), a.list(1),
			hexs(pick(a, []uint64{1, 2, 7, 16, 1000, 1 << 16})))
	case 6:
		return prim("_jump_if_zero", expr("b2d", nil, a.truth(1)), hexs(uint64(i+1+a.IntN(count-i))))
	case 7:
		if a.guard != "" && i == count-1 {
			return prim("remove_header", named("header", a.guard))
		}
	case 8:
		if i == count-1 {
			return prim("add_header", named("header", pick(a, a.wire)))
		}
	case 9:
		if i == count-1 && a.IntN(3) == 0 {
			return prim("exit")
		}
	case 10, 11:
		if a.again {
			break
		}
		r := named("register_array", "r"+a.side())
		if a.IntN(2) == 0 {
			return prim("register_write", r, a.index(), a.number(1))
		}
		return prim("register_read", a.writable().value(), r, a.index())
	case 12:
		if !a.again {
			return prim("_Meter_execute", named("extern", "m"+a.side()), a.index(), pick(a, a.fields["meta"]).value())
		}
	case 13:
		if a.guard == "h1" && a.IntN(2) == 0 {
			return prim("assign_header", named("header", "twin"), named("header", "h1"))
		}
	}
	return prim("assign", a.writable().value(), a.number(3))
}

func (a *author) action(name string) int {
	data := arr{}
	a.params = nil
	for i := range a.IntN(3) {
		w := pick(a, []int{1, 8, 13, 16, 32, 32, 48, 64, 100})
		a.params = append(a.params, w)
		data = append(data, obj{"name": fmt.Sprintf("p%d", i), "bitwidth": w})
	}
	var code arr
	count := 1 + a.IntN(6)
	for i := range count {
		code = append(code, a.primitive(i, count))
	}
	a.params = nil
	return a.own(name, data, code...)
}

func (a *author) own(name string, data arr, code ...any) int {
	id := len(a.actions)
	a.actions = append(a.actions, obj{"name": name, "id": id, "runtime_data": data, "primitives": arr(code)})
	return id
}

// table writes a table with actions of its own; next is the node behind it.
func (a *author) table(name string, next any) (t, profile obj) {
	kind := pick(a, []string{"exact", "exact", "lpm", "ternary", "range"})
	var keys arr
	for i := range 1 + a.IntN(3) {
		match := kind
		if i > 0 {
			match = "exact"
			if kind == "ternary" || kind == "range" {
				match = pick(a, []string{"exact", kind, "ternary"})
			}
		}
		f := a.readable()
		if match == "exact" && a.IntN(6) == 0 {
			f = place{pick(a, a.wire), "$valid$", 1}
		}
		keys = append(keys, obj{"match_type": match, "name": fmt.Sprintf("k%d", i), "target": arr{f.header, f.name}, "mask": nil})
	}
	t = obj{"name": name, "id": a.id(), "match_type": kind, "type": "simple", "max_size": 64, "key": keys, "with_counters": a.IntN(2) == 0,
		"support_timeout": false, "direct_meters": nil, "base_default_next": next}
	if t["with_counters"] == true {
		a.counters = append(a.counters, obj{"name": name + "_counter", "id": len(a.counters), "is_direct": true, "binding": name})
	}
	var acts, ids arr
	branches := obj{}
	for i := range 1 + a.IntN(3) {
		n := fmt.Sprintf("%s_a%d", name, i)
		acts, ids = append(acts, n), append(ids, a.action(n))
		branches[n] = next
		if a.IntN(5) == 0 {
			branches[n] = nil
		}
	}
	if a.IntN(3) == 0 {
		branches = obj{"__HIT__": next, "__MISS__": pick(a, []any{next, next, nil})}
	}
	t["actions"], t["action_ids"], t["next_tables"] = acts, ids, branches
	if a.IntN(4) == 0 {
		profile = obj{"name": name + "_profile", "id": a.id(), "max_size": 16}
		t["type"], t["action_profile"] = "indirect", profile["name"]
		if a.IntN(2) == 0 {
			var in arr
			for range 1 + a.IntN(3) {
				in = append(in, a.readable().value())
			}
			t["type"], profile["selector"] = "indirect_ws", obj{"algo": pick(a, []string{"crc16", "crc32"}), "input": in}
		}
	}
	return t, profile
}

// pipeline has tables, each behind a condition or not.
func (a *author) pipeline(name string) obj {
	a.ingress = name == "ingress"
	p := obj{"name": name, "id": a.id(), "action_calls": arr{}}
	list, conds, profiles := arr{}, arr{}, arr{}
	var next any
	for i := 2 + a.IntN(2); i >= 0; i-- {
		t := fmt.Sprintf("%s_t%d", name, i)
		if a.guard = ""; a.IntN(2) == 0 {
			a.guard = pick(a, a.wire[1:])
		}
		table, profile := a.table(t, next)
		list = append(list, table)
		if profile != nil {
			profiles = append(profiles, profile)
		}
		cond := a.guard
		a.guard = ""
		if cond != "" || a.IntN(3) == 0 {
			is := a.truth(2)
			if cond != "" {
				is = valid(cond)
			}
			a.nodes++
			c := fmt.Sprintf("node_%d", a.nodes)
			conds = append(conds, obj{"name": c, "id": a.nodes, "expression": is, "true_next": t, "false_next": next})
			next = c
		} else {
			next = t
		}
	}
	if a.ingress {
		out := func(name string, v any) obj {
			return prim("assign", place{"psa_ingress_output_metadata", name, 0}.value(), v)
		}
		to := expr("|", expr("<<", expr("&", a.fields["h0"][1].value(), hexs(3)), hexs(2)), hexs(1))
		what, which := a.fields["h0"][0].value(), a.fields["h0"][1].value()
		when := func(is uint64, v, otherwise any) any { return either(expr("==", what, hexs(is)), v, otherwise) }
		code := []any{out("drop", hexs(0)), out("egress_port", to), out("clone_session_id", expr("+", expr("&", which, hexs(3)), hexs(1))),
			out("multicast_group", when(1, expr("&", which, hexs(3)), hexs(0))), out("clone", when(2, hexs(1), hexs(0)))}
		if a.again {
			first := expr("==", place{"psa_ingress_input_metadata", "packet_path", 32}.value(), hexs(0))
			code = append(code, out("resubmit", either(first, when(3, hexs(1), hexs(0)), hexs(0))),
				out("egress_port", either(first, when(0, to, hexs(0xfffffffa)), to)))
		}
		code = append(code, out("class_of_service", a.fields["h0"][4].value()))
		id := a.own("send", arr{}, code...)
		p["action_calls"] = arr{obj{"name": "send", "id": 0, "action_id": id, "next_node": next}}
		next = "send"
	} else { // what egress finds shows in h0
		in := func(name string) obj { return place{"psa_egress_input_metadata", name, 0}.value() }
		id := a.own("show", arr{}, prim("assign", a.fields["h0"][4].value(), in("class_of_service")), prim("assign", a.fields["h0"][3].value(),
			expr("|", expr("<<", in("instance"), hexs(16)), expr("|", expr("<<", in("parser_error"), hexs(8)), in("packet_path")))),
			prim("assign", a.fields["h0"][7].value(), a.fields["meta"][4].value()))
		p["action_calls"] = arr{obj{"name": "show", "id": 0, "action_id": id, "next_node": next}}
		next = "show"
	}
	p["init_table"], p["tables"], p["conditionals"], p["action_profiles"] = next, list, conds, profiles
	return p
}

// parser begins with h0, which all frames have; the states for the other headers come in an order of their own.
func (a *author) parser(name string) obj {
	a.ingress, a.guard = name == "ingress_parser", ""
	rest := []string{"h1", "h2", "twin"}
	a.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	var states arr
	order := append([]string{"h0"}, rest...)
	input := place{"psa_egress_parser_input_metadata", "packet_path", 32}
	if a.ingress {
		input.header = "psa_ingress_parser_input_metadata"
	}
	for i, h := range order {
		to := func() any {
			if n := i + 1 + a.IntN(5-i); n < 4 {
				return "s" + order[n]
			}
			return nil
		}
		ops := arr{prim("extract", named("regular", h))}
		read := func() any {
			if a.IntN(4) == 0 {
				return input.value()
			}
			return pick(a, a.fields[pick(a, []string{h, "h0", "meta"})]).value()
		}
		if a.IntN(2) == 0 {
			ops = append(ops, prim("set", pick(a, a.fields["meta"]).value(), expr("&", expr(pick(a, []string{"+", "^", "-"}), read(), read()), hexs(0xffff))))
		}
		if i == 0 && a.ingress && a.IntN(2) == 0 { // all frames have two bytes behind h0
			ops = append(ops, prim("set", pick(a, a.fields["meta"]).value(), obj{"type": "lookahead", "value": arr{a.IntN(2) * 8, 8}}))
		}
		if a.IntN(5) == 0 {
			ops = append(ops, prim("verify", expr("!=", read(), a.constant()), hexs(uint64(1+a.IntN(4)))))
		}
		if a.ingress && a.IntN(3) == 0 {
			ck := named("extern", "ck")
			for _, p := range []obj{prim("_InternetChecksum_clear", ck), prim("_InternetChecksum_add", ck, obj{"type": "field_list", "value": arr{
				a.fields["h0"][2].value(), a.fields["h0"][3].value()}}), prim("_InternetChecksum_get", ck, pick(a, a.fields["meta"]).value())} {
				ops = append(ops, prim("primitive", p))
			}
		}
		key, cases := arr{}, arr{}
		if a.IntN(5) > 0 {
			f := pick(a, a.fields[pick(a, []string{h, "h0"})])
			key = arr{f.value()}
			for range a.IntN(3) {
				c := obj{"type": "hexstr", "value": fmt.Sprintf("0x%0*x", (f.bits+7)/8*2, a.IntN(4)&(1<<min(f.bits, 9)-1)), "mask": nil, "next_state": to()}
				if a.IntN(2) == 0 {
					c["mask"] = fmt.Sprintf("0x%0*x", (f.bits+7)/8*2, a.IntN(8)&(1<<min(f.bits, 9)-1))
				}
				cases = append(cases, c)
			}
		}
		cases = append(cases, obj{"type": "default", "value": nil, "mask": nil, "next_state": to()})
		states = append(states, obj{"name": "s" + h, "id": a.id(), "parser_ops": ops, "transition_key": key, "transitions": cases})
	}
	return obj{"name": name, "id": a.id(), "init_state": "sh0", "parse_states": states}
}

func (a *author) extern(name, typ string, attributes ...any) {
	var all arr
	for i := 0; i < len(attributes); i += 2 {
		kind := "hexstr"
		if s, ok := attributes[i+1].(string); ok && !strings.HasPrefix(s, "0x") {
			kind = "string"
		}
		all = append(all, obj{"name": attributes[i], "type": kind, "value": attributes[i+1]})
	}
	x := obj{"name": name, "id": len(a.externs), "type": typ}
	if all != nil {
		x["attribute_values"] = all
	}
	a.externs = append(a.externs, x)
}

// psaProgram is the JSON of a random program. What all programs for PSA have is taken from one.
func psaProgram(t *testing.T, r *rand.Rand, again bool) []byte {
	src, err := os.ReadFile("../../../tests/p4/testdata/psa/paths.json")
	if err != nil {
		t.Fatal(err)
	}
	var root obj
	if err := json.Unmarshal(src, &root); err != nil {
		t.Fatal(err)
	}
	a := &author{Rand: r, again: again, fields: map[string][]place{}, ids: 100}
	var types, headers arr
	for _, x := range root["header_types"].(arr) {
		if strings.HasPrefix(x.(obj)["name"].(string), "psa_") {
			types = append(types, x)
		}
	}
	for _, x := range root["headers"].(arr) {
		if strings.HasPrefix(x.(obj)["name"].(string), "psa_") {
			headers = append(headers, x)
		}
	}
	a.typ("h0_t", 8, 8, 16, 32, 8, 3, 5, 48)
	a.typ("h1_t", a.widths()...)
	a.typ("h2_t", a.widths()...)
	a.typ("meta_t", 1, 8, 16, 32, 48, 64, 100)
	a.header("h0", "h0_t", false)
	a.header("h1", "h1_t", false)
	a.header("h2", "h2_t", false)
	a.header("twin", "h1_t", false)
	a.header("meta", "meta_t", true)
	for _, c := range []struct{ name, typ string }{{"c0", "0x0"}, {"c1", "0x1"}, {"c2", "0x2"}} {
		a.extern(c.name, "Counter", "n_counters", "0x00000008", "type", c.typ)
		a.counters = append(a.counters, obj{"name": c.name, "id": len(a.counters), "size": 8, "is_direct": false})
	}
	for i, typ := range []string{"packets", "bytes"} {
		a.extern(fmt.Sprintf("m%d", i), "Meter", "is_direct", 0, "n_meters", "0x00000008", "rate_count", 2, "type", typ)
	}
	for _, algo := range []string{"crc16", "crc32", "identity", "csum16"} {
		a.extern(algo, "Hash", "algo", algo)
	}
	a.extern("ck", "InternetChecksum")
	root["parsers"] = arr{a.parser("ingress_parser"), a.parser("egress_parser")}
	root["pipelines"] = arr{a.pipeline("ingress"), a.pipeline("egress")}
	deparser := func(name string) obj {
		order := append([]string{}, a.wire...)
		a.Shuffle(len(order)-1, func(i, j int) { order[1+i], order[1+j] = order[1+j], order[1+i] })
		return obj{"name": name, "id": a.id(), "order": order, "primitives": arr{}}
	}
	root["deparsers"] = arr{deparser("ingress_deparser"), deparser("egress_deparser")}
	root["header_types"], root["headers"] = append(types, a.types...), append(headers, a.headers...)
	root["actions"], root["extern_instances"], root["counter_arrays"] = a.actions, a.externs, a.counters
	root["register_arrays"] = arr{obj{"name": "r0", "id": 0, "size": 8, "bitwidth": pick(a, []int{1, 17, 32})}, obj{"name": "r1", "id": 1, "size": 8, "bitwidth": 48}}
	// Numbers are what bmv2 finds headers and types by, from 0 on.
	for _, list := range []arr{root["header_types"].(arr), root["headers"].(arr)} {
		for i, x := range list {
			x.(obj)["id"] = i
		}
	}
	b, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// psaFrames are frames for a program of psaProgram: all of them have h0 and two bytes.
func psaFrames(r *rand.Rand, n int) (in []input) {
	for range n {
		b := make([]byte, 18+r.IntN(80))
		for i := range b {
			switch r.IntN(4) {
			case 0:
				b[i] = byte(r.IntN(256))
			case 1, 2:
				b[i] = byte(r.IntN(4))
			}
		}
		in = append(in, input{pick(&author{Rand: r}, wires), b})
	}
	return in
}
