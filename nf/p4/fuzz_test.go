package p4

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// everything is a program with all that the builder can say.
func everything() *source {
	s := stacked(prim("push", obj{"type": "header_stack", "value": "e"}, hexs("0x1")), prim("pop", obj{"type": "header_stack", "value": "e"}, hexs("0x1")),
		prim("assign", wrap(elemOf(fld("e[0]", "v"))), wrap(elemOf(hexs("0x1")))),
		prim("register_write", obj{"type": "register_array", "value": "r"}, fld("e[0]", "v"), obj{"type": "register", "value": arr{"r", fld("e[1]", "v")}}),
		prim("count", obj{"type": "counter_array", "value": "c"}, fld("e[0]", "v")),
		prim("execute_meter", obj{"type": "meter_array", "value": "m"}, hexs("0x0"), std("priority")),
		prim("clone_ingress_pkt_to_egress", fld("e[0]", "v"), hexs("0x1")), prim("generate_digest", hexs("0x1"), hexs("0x1")),
		prim("modify_field_with_hash_based_offset", std("egress_spec"), hexs("0x0"), obj{"type": "calculation", "value": "calc"}, hexs("0x4")),
		prim("truncate", fld("e[2]", "v")),
		assign(fld("w", "big"), wrap(exp("*", fld("w", "big"), exp("usat_cast", exp("-", hexs("0x3"), fld("e[0]", "v")), hexs("0x50"))))))
	s.header("w", true, arr{"big", 200, true}, arr{"sat", 9, false, true})
	s.listTypes = append(s.listTypes, obj{"name": "v", "id": s.id(), "max_length": 9, "fields": arr{arr{"len", 8}, arr{"opt", "*"}}})
	s.instance("v", "v", false)
	s.deparse = append(s.deparse, "v")
	s.listStates[0].(obj)["transitions"].(arr)[0].(obj)["next_state"] = "more"
	s.state("more", arr{obj{"op": "set", "parameters": arr{fld("w", "big"), obj{"type": "lookahead", "value": arr{0, 130}}}},
		obj{"op": "extract_VL", "parameters": arr{obj{"type": "regular", "value": "v"}, wrap(exp("<<", fld("e[0]", "v"), hexs("0x3")))}}},
		arr{obj{"type": "field", "value": arr{"v", "len"}}},
		arr{obj{"type": "parse_vset", "value": "vs", "next_state": nil}, to("start")[0]})
	s.extra["parse_vsets"] = arr{obj{"name": "vs", "id": 0, "compressed_bitwidth": 8}}
	s.extra["field_lists"] = arr{obj{"id": 1, "name": "fl", "elements": arr{fld("w", "big")}}}
	s.extra["register_arrays"] = arr{obj{"name": "r", "id": 0, "size": 8, "bitwidth": 72}}
	s.extra["counter_arrays"] = arr{obj{"name": "c", "id": 0, "size": 8}}
	s.extra["meter_arrays"] = arr{obj{"name": "m", "id": 0, "type": "bytes", "rate_count": 2, "size": 8}}
	s.extra["learn_lists"] = arr{obj{"name": "learn", "id": 1, "elements": arr{fld("w", "big")}}}
	s.extra["calculations"] = arr{obj{"name": "calc", "id": 0, "algo": "csum16", "input": arr{fld("e[0]", "v"), hdrv("v"), obj{"type": "payload", "value": nil}}}}
	s.extra["checksums"] = arr{obj{"name": "cs", "id": 0, "target": arr{"e[1]", "v"}, "type": "generic", "calculation": "calc", "if_cond": nil}}
	again := s.action("again", nil, prim("_jump_if_zero", wrap(exp("==", std("instance_type"), hexs("0x0"))), hexs("0x2")), prim("recirculate", hexs("0x1")),
		prim("log_msg", obj{"type": "string", "value": "{}"}, obj{"type": "parameters_vector", "value": arr{fld("w", "big")}}))
	s.always(s.egress, "te", "again", again, nil)
	s.action("nop", nil)
	s.table(s.egress, "lpm", "lpm", arr{keyOf("exact", "e[0]", "v"), keyOf("lpm", "w", "big")}, arr{"nop"}, nil, obj{"support_timeout": true})
	return s
}

// everythingPSA is a program for PSA with all externs of PSA, whose frames take all paths.
func everythingPSA() *source {
	ck := extern("ck")
	s := psaWired(join(forward(unless("0x6", hexs("0xfffffffa"), hexs("0x9"))), arr{
		prim("_Counter_count", extern("c"), fld("h", "kind")), prim("_Meter_execute", extern("m"), fld("h", "kind"), fld("h", "src")),
		prim("_Hash_get_hash", extern("crc"), fld("meta", "a"), fields(hdrv("h"), obj{"type": "hexstr", "value": "0x0102", "bitwidth": 12}, fld("h", "kind"))),
		prim("_Hash_get_hash_mod", extern("crc"), fld("meta", "b"), hexs("0x7"), fields(exp("+", fld("h", "dst"), hexs("0x100"))["value"]), fld("h", "kind")),
		prim("modify_field_rng_uniform", fld("h", "dst"), hexs("0x3"), hexs("0x9")), prim("generate_digest", hexs("0x0")),
		assign(ost("clone"), hexs("0x1")), assign(ost("clone_session_id"), hexs("0x2")), assign(ost("resubmit"), unless("0x5", hexs("0x1"), hexs("0x0"))),
	}), arr{assign(eost("clone"), hexs("0x1")), assign(eost("clone_session_id"), hexs("0x2"))})
	s.deparsers(arr{prim("_InternetChecksum_add", ck, fields(fld("meta", "a"))), prim("_InternetChecksum_subtract", ck, fields(fld("meta", "b"))),
		prim("_InternetChecksum_get_state", ck, fld("meta", "a")), prim("_InternetChecksum_set_state", ck, fld("meta", "a")),
		prim("_InternetChecksum_get", ck, fld("meta", "b")), prim("_InternetChecksum_get_verify", ck, fld("h", "kind"), fld("meta", "b")),
		prim("_InternetChecksum_clear", ck), prim("set", fld("h", "dst"), fld("meta", "b"))}, arr{prim("_InternetChecksum_clear", ck)})
	s.extra["learn_lists"] = arr{obj{"id": 0, "name": "d", "elements": arr{fld("h", "src")}}}
	s.extra["counter_arrays"] = arr{obj{"name": "c", "id": 0, "size": 4, "is_direct": false}}
	s.extra["extern_instances"] = arr{obj{"name": "c", "id": 0, "type": "Counter", "attribute_values": attributes("n_counters", "0x00000004", "type", "0x02")},
		obj{"name": "m", "id": 1, "type": "Meter", "attribute_values": attributes("is_direct", 0, "n_meters", "0x00000004", "rate_count", 2, "type", "packets")},
		obj{"name": "crc", "id": 2, "type": "Hash", "attribute_values": attributes("algo", "crc32")}, obj{"name": "ck", "id": 3, "type": "InternetChecksum"}}
	return s
}

// exercise runs a frame and checks what always holds.
func exercise(t testing.TB, sw *Switch, port uint32, frame []byte) {
	keep := bytes.Clone(frame)
	n := 0
	r := sw.Process(sw.now+100, port, frame, func(uint32, []byte) { n++ })
	if n != r.Emitted || n == 0 && r.Dropped == NotDropped {
		t.Fatalf("%d frames left: %+v", n, r)
	}
	if !bytes.Equal(keep, frame) {
		t.Fatal("the frame was written to")
	}
	if len(sw.in)+len(sw.out) != 0 {
		t.Fatal("packets were left behind")
	}
}

func prepare(sw *Switch) {
	_ = sw.SetSession(2, Session{Replicas: []Replica{{Port: 1}, {Port: 2, Rid: 1}}})
	_ = sw.SetValueSet("vs", []ValueMember{{Value: []byte{1}}})
}

// FuzzLoad: a program is refused or runs; never a panic, never without end.
func FuzzLoad(f *testing.F) {
	f.Add(everything().json())
	f.Add(everythingPSA().json())
	f.Add(matchProgram("ternary", []KeyInfo{{Match: Ternary, Bits: 9}}).json())
	f.Add([]byte(`{"header_types":[{"name":"x","id":0,"fields":[["a",-1]]}]}`))
	f.Add([]byte(`{"header_types":[{"name":"x\n\u001b[2J","id":0,"fields":[["a",-1]]}]}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 1<<16 {
			return
		}
		p, err := Load(src)
		if err != nil {
			if bytes.ContainsRune([]byte(err.Error()), '\n') {
				t.Fatalf("more than one line: %v", err)
			}
			return
		}
		if p.slots > 1<<16 {
			return
		}
		for _, r := range p.registers {
			if r.Size > 1<<16 {
				return
			}
		}
		for _, a := range append(p.Counters(), p.Meters()...) {
			if a.Size > 1<<16 {
				return
			}
		}
		sw, err := NewSwitch(p, Config{MaxPasses: 20})
		if err != nil {
			return
		}
		prepare(sw)
		exercise(t, sw, 1, []byte("\x02\x04\x05\x01\x02\x03\x04abcdefghijklmnopqrstuvwxyz"))
	})
}

// TestBrokenPrograms breaks every part of a program: it must be refused or run.
func TestBrokenPrograms(t *testing.T) {
	for name, s := range map[string]*source{"v1model": everything(), "psa": everythingPSA()} {
		t.Run(name, func(t *testing.T) { breakParts(t, s) })
	}
}

func breakParts(t *testing.T, s *source) {
	var root any
	if err := json.Unmarshal(s.json(), &root); err != nil {
		t.Fatal(err)
	}
	tried := 0
	var walk func(v any, set func(any))
	walk = func(v any, set func(any)) {
		for _, bad := range []any{nil, "x", float64(-1), float64(1 << 40), []any{}, map[string]any{}} {
			if tried++; testing.Short() && tried%5 != 0 {
				continue
			}
			set(bad)
			src, _ := json.Marshal(root)
			p, err := Load(src)
			if err != nil {
				if strings.Contains(err.Error(), "\n") {
					t.Fatalf("more than one line: %v", err)
				}
				continue
			}
			if sw, err := NewSwitch(p, Config{MaxPasses: 8}); err == nil {
				prepare(sw)
				exercise(t, sw, 1, []byte("\x02\x04\x05\x01\x02\x03\x04abcdefghijklmnopqrstuvwxyz"))
			}
		}
		set(v)
		switch x := v.(type) {
		case map[string]any:
			for k, e := range x {
				walk(e, func(n any) { x[k] = n })
			}
		case []any:
			for i, e := range x {
				walk(e, func(n any) { x[i] = n })
			}
		}
	}
	for k, e := range root.(map[string]any) {
		walk(e, func(n any) { root.(map[string]any)[k] = n })
	}
	t.Logf("%d broken programs", tried)
}

// FuzzPacket: no frame makes the engine panic, hang or leave something behind.
func FuzzPacket(f *testing.F) {
	all := []*Switch{everything().load(f, Config{MaxPasses: 50, Seed: 1}), everythingPSA().load(f, Config{MaxPasses: 50, Seed: 1})}
	for _, sw := range all {
		prepare(sw)
	}
	f.Add(uint16(1), []byte("\x02\x04\x05\x01\x02\x03\x04abcdefghijklmnopqrstuvwxyz"))
	f.Add(uint16(510), []byte("\x01"))
	f.Add(uint16(0), []byte{})
	f.Fuzz(func(t *testing.T, port uint16, frame []byte) {
		for _, sw := range all {
			exercise(t, sw, uint32(port), frame)
		}
	})
}

// TestNoAllocation: packets are processed in memory that is there, clones,
// recirculations, digests and drops included.
func TestNoAllocation(t *testing.T) {
	sw := everything().load(t, Config{Digest: func(Digest) {}})
	prepare(sw)
	frames := [][]byte{[]byte("\x02\x04\x05\x01\x02\x03\x04abcdefghijklmnopqrstuvwxyz"), []byte("\x01"), nil, bytes.Repeat([]byte{2}, 1500)}
	emit := func(uint32, []byte) {}
	all := func() {
		for _, f := range frames {
			sw.Process(sw.now+100, 1, f, emit)
		}
	}
	all()
	if n := testing.AllocsPerRun(100, all); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSwappedParts puts parts of a program in places where others belong.
func TestSwappedParts(t *testing.T) {
	both := [][]byte{everything().json(), everythingPSA().json()}
	rapid.Check(t, func(t *rapid.T) {
		src := rapid.SampledFrom(both).Draw(t, "program")
		var root any
		if err := json.Unmarshal(src, &root); err != nil {
			t.Fatal(err)
		}
		type place struct {
			v   any
			set func(any)
		}
		for range rapid.IntRange(1, 3).Draw(t, "swaps") {
			var all []place
			var walk func(v any, set func(any))
			walk = func(v any, set func(any)) {
				all = append(all, place{v, set})
				switch x := v.(type) {
				case map[string]any:
					for _, k := range slices.Sorted(maps.Keys(x)) {
						walk(x[k], func(n any) { x[k] = n })
					}
				case []any:
					for i := range x {
						walk(x[i], func(n any) { x[i] = n })
					}
				}
			}
			for _, k := range slices.Sorted(maps.Keys(root.(map[string]any))) {
				walk(root.(map[string]any)[k], func(n any) { root.(map[string]any)[k] = n })
			}
			from := all[rapid.IntRange(0, len(all)-1).Draw(t, "from")].v
			// A copy: a part that contains itself would not end.
			b, _ := json.Marshal(from)
			var part any
			_ = json.Unmarshal(b, &part)
			all[rapid.IntRange(0, len(all)-1).Draw(t, "to")].set(part)
		}
		broken, _ := json.Marshal(root)
		p, err := Load(broken)
		if err != nil {
			return
		}
		sw, err := NewSwitch(p, Config{MaxPasses: 8})
		if err != nil {
			return
		}
		prepare(sw)
		sw.Process(1, 1, []byte("\x02\x04\x05\x01\x02\x03\x04abcdefghijklmnopqrstuvwxyz"), func(uint32, []byte) {})
	})
}

// TestTooMuchState: arrays that would take all memory are refused by Load.
func TestTooMuchState(t *testing.T) {
	for n, ok := range map[int]bool{2: true, 9: false} {
		s := wired(nil, nil)
		var all arr
		for i := range n {
			all = append(all, obj{"name": fmt.Sprint("r", i), "id": i, "size": 1 << 25, "bitwidth": 64})
		}
		s.extra["register_arrays"] = all
		_, err := Load(s.json())
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "more than 268435456 words of counters, meters and registers") {
			t.Errorf("%d registers: %v", n, err)
		}
	}
}
