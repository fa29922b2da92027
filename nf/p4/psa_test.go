package p4

import (
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// psaSource is a program for PSA with a header h of three bytes (dst, src, kind), metadata meta (a, b: 16 bits), and the
// same parser and deparser on both sides.
func psaSource() *source {
	s := &source{extra: obj{}}
	for _, h := range []struct {
		name   string
		fields arr
	}{
		{"psa_ingress_parser_input_metadata", arr{arr{"ingress_port", 32}, arr{"packet_path", 32}}},
		{"psa_egress_parser_input_metadata", arr{arr{"egress_port", 32}, arr{"packet_path", 32}}},
		{"psa_ingress_input_metadata", arr{arr{"ingress_port", 32}, arr{"packet_path", 32}, arr{"ingress_timestamp", 64}, arr{"parser_error", 32}}},
		{"psa_ingress_output_metadata", arr{arr{"class_of_service", 8}, arr{"clone", 1}, arr{"clone_session_id", 16}, arr{"drop", 1},
			arr{"resubmit", 1}, arr{"multicast_group", 32}, arr{"egress_port", 32}, arr{"_padding", 5}}},
		{"psa_egress_input_metadata", arr{arr{"class_of_service", 8}, arr{"egress_port", 32}, arr{"packet_path", 32}, arr{"instance", 16},
			arr{"egress_timestamp", 64}, arr{"parser_error", 32}}},
		{"psa_egress_deparser_input_metadata", arr{arr{"egress_port", 32}}},
		{"psa_egress_output_metadata", arr{arr{"clone", 1}, arr{"clone_session_id", 16}, arr{"drop", 1}, arr{"_padding", 6}}},
		{"meta", arr{arr{"a", 16}, arr{"b", 16}}},
	} {
		s.header(h.name, true, h.fields...)
	}
	s.header("h", false, arr{"dst", 8}, arr{"src", 8}, arr{"kind", 8})
	pipe := func(name string) obj {
		return obj{"name": name, "init_table": nil, "tables": arr{}, "conditionals": arr{}, "action_profiles": arr{}}
	}
	s.ingress, s.egress = pipe("ingress"), pipe("egress")
	states := arr{obj{"name": "start", "id": 0, "parser_ops": arr{extract("h")}, "transition_key": arr{}, "transitions": to(nil)}}
	s.extra["parsers"] = arr{obj{"name": "ingress_parser", "id": 0, "init_state": "start", "parse_states": states},
		obj{"name": "egress_parser", "id": 1, "init_state": "start", "parse_states": states}}
	s.deparsers(nil, nil)
	return s
}

// deparsers sets the primitives of the deparsers.
func (s *source) deparsers(in, eg arr) {
	order := arr{"h"}
	s.extra["deparsers"] = arr{obj{"name": "ingress_deparser", "id": 0, "order": order, "primitives": in},
		obj{"name": "egress_deparser", "id": 1, "order": order, "primitives": eg}}
}

// psaWired is psaSource with an action for each pipeline.
func psaWired(in, eg arr) *source {
	s := psaSource()
	s.always(s.ingress, "ti", "in", s.action("in", nil, in...), nil)
	s.always(s.egress, "te", "eg", s.action("eg", nil, eg...), nil)
	return s
}

func ist(f string) obj  { return fld("psa_ingress_input_metadata", f) }
func ost(f string) obj  { return fld("psa_ingress_output_metadata", f) }
func eist(f string) obj { return fld("psa_egress_input_metadata", f) }
func eost(f string) obj { return fld("psa_egress_output_metadata", f) }

// unless returns a, or b if the packet took a path.
func unless(path string, a, b obj) obj {
	return wrap(obj{"type": "expression", "value": obj{"op": "?", "cond": exp("==", ist("packet_path"), hexs("%s", path)), "left": b, "right": a}})
}

// forward is what sends a packet to a port.
func forward(port obj) arr {
	return arr{assign(ost("drop"), hexs("0x0")), assign(ost("egress_port"), port)}
}

func join(all ...arr) (out arr) {
	for _, a := range all {
		out = append(out, a...)
	}
	return out
}

// showPath is for an egress that writes the path to src and the instance to kind.
var showPath = arr{assign(fld("h", "src"), eist("packet_path")), assign(fld("h", "kind"), eist("instance"))}

func TestPSAUnicast(t *testing.T) {
	sw := psaWired(join(forward(ist("ingress_port")), arr{assign(fld("h", "dst"), ist("packet_path")), assign(fld("meta", "a"), hexs("0x41")),
		assign(ost("class_of_service"), hexs("0xc8"))}),
		arr{assign(fld("h", "src"), eist("packet_path")), assign(fld("h", "kind"), fld("meta", "a"))}).load(t, Config{})
	got, r := run(sw, 5, "abcpayload")
	expect(t, got, sent{5, "\x00\x01Apayload"}) // user metadata comes with it
	if r != (Result{Emitted: 1}) {
		t.Errorf("%+v", r)
	}
	if sw.Program().Arch() != "psa" {
		t.Error(sw.Program().Arch())
	}
	// All of 32 bits of a port, and the class of service of eight bits.
	sw = psaWired(join(forward(hexs("0xfffffffd")), arr{assign(ost("class_of_service"), hexs("0xc8"))}),
		arr{assign(fld("h", "dst"), eist("class_of_service"))}).load(t, Config{})
	got, _ = run(sw, 5, "abc")
	expect(t, got, sent{psaPortCPU, "\xc8bc"})
}

// TestPSABytes: egress parses what ingress's deparser wrote, and finds no header of ingress.
func TestPSABytes(t *testing.T) {
	s := psaWired(join(forward(hexs("0x2")), arr{prim("remove_header", hdrv("h"))}), arr{assign(fld("h", "src"), eist("parser_error"))})
	sw := s.load(t, Config{})
	got, _ := run(sw, 1, "abcdefg")
	expect(t, got, sent{2, "d\x00fg"})
	got, _ = run(sw, 1, "abcd") // too short for egress's parser
	expect(t, got, sent{2, "d"})
	s = psaWired(forward(hexs("0x2")), nil)
	s.extra["deparsers"].(arr)[0].(obj)["order"] = arr{} // ingress's h is valid to the end of ingress
	got, _ = run(s.load(t, Config{}), 1, "abcd")
	expect(t, got, sent{2, "d"})
}

func TestPSADrops(t *testing.T) {
	for _, c := range []struct {
		name   string
		in, eg arr
		frame  string
		want   Reason
	}{
		{"by default", nil, nil, "abc", IngressDrop},
		{"parser", nil, nil, "a", ParserError},
		{"resubmit does not count", arr{assign(ost("resubmit"), hexs("0x1"))}, nil, "abc", IngressDrop},
		{"egress", forward(hexs("0x1")), arr{assign(eost("drop"), hexs("0x1"))}, "abc", EgressDrop},
		{"egress, to ingress", forward(hexs("0xfffffffa")), arr{assign(eost("drop"), hexs("0x1"))}, "abc", EgressDrop},
		{"group", join(forward(hexs("0x1")), arr{assign(ost("multicast_group"), hexs("0x7"))}), nil, "abc", NoReplica},
		{"resubmitted for ever", arr{assign(ost("drop"), hexs("0x0")), assign(ost("resubmit"), hexs("0x1"))}, nil, "abc", PassLimit},
		{"recirculated for ever", forward(hexs("0xfffffffa")), nil, "abc", PassLimit},
		{"assert", arr{prim("assert", wrap(exp("==", fld("h", "dst"), hexs("0x0"))))}, nil, "abc", Asserted},
	} {
		sw := psaWired(c.in, c.eg).load(t, Config{})
		got, r := run(sw, 1, c.frame)
		if len(got) != 0 || r.Dropped != c.want || sw.Dropped(c.want) != 1 {
			t.Errorf("%s: %v, %v, want %s", c.name, got, r, c.want)
		}
	}
}

func TestPSAMulticast(t *testing.T) {
	sw := psaWired(join(forward(hexs("0x1")), arr{assign(ost("multicast_group"), hexs("0x7")), assign(fld("meta", "a"), hexs("0x41"))}),
		append(slices.Clone(showPath), assign(fld("h", "dst"), fld("meta", "a")))).load(t, Config{})
	if err := sw.SetMulticast(7, []Replica{{Port: 2, Rid: 8}, {Port: 3, Rid: 9}}); err != nil {
		t.Fatal(err)
	}
	got, r := run(sw, 5, "abcd")
	expect(t, got, sent{2, "A\x02\x08d"}, sent{3, "A\x02\x09d"})
	if r != (Result{Emitted: 2}) {
		t.Errorf("%+v", r)
	}
}

// TestPSAResubmit: the packet comes again as it came, from the same port, with all metadata zero.
func TestPSAResubmit(t *testing.T) {
	sw := psaWired(join(forward(ist("ingress_port")), arr{assign(ost("resubmit"), unless("0x5", hexs("0x1"), hexs("0x0"))),
		assign(fld("h", "src"), ist("packet_path")), assign(fld("h", "kind"), fld("meta", "a")),
		assign(fld("h", "dst"), exp("+", fld("h", "dst"), hexs("0x1"))), assign(fld("meta", "a"), hexs("0x41"))}), nil).load(t, Config{})
	got, r := run(sw, 4, "abcd")
	expect(t, got, sent{4, "b\x05\x00d"})
	if r != (Result{Emitted: 1}) {
		t.Errorf("%+v", r)
	}
}

// TestPSARecirculate: the packet comes again as egress wrote it, from port PSA_PORT_RECIRCULATE, with all metadata zero.
func TestPSARecirculate(t *testing.T) {
	low := func(e obj) obj { return exp("&", e, hexs("0xff")) }
	sw := psaWired(join(forward(unless("0x6", hexs("0xfffffffa"), hexs("0x9"))), arr{assign(fld("h", "src"), low(ist("ingress_port"))),
		assign(fld("h", "kind"), fld("meta", "a")), assign(fld("meta", "a"), hexs("0x41"))}),
		arr{assign(fld("h", "dst"), exp("+", fld("h", "dst"), hexs("0x1")))}).load(t, Config{})
	got, r := run(sw, 4, "abcd")
	expect(t, got, sent{9, "c\xfa\x00d"})
	if r != (Result{Emitted: 1}) {
		t.Errorf("%+v", r)
	}
}

// TestPSARecirculateCopies: a group and a clone session may have PSA_PORT_RECIRCULATE among their ports.
func TestPSARecirculateCopies(t *testing.T) {
	eg := arr{assign(fld("h", "dst"), exp("+", fld("h", "dst"), hexs("0x1"))), assign(fld("h", "src"), eist("packet_path")), assign(fld("h", "kind"), eist("instance"))}
	both := []Replica{{Port: 2, Rid: 1}, {Port: psaPortRecirculate, Rid: 2}}
	for _, c := range []struct {
		name string
		ask  arr
		want []sent
	}{
		{"group", arr{assign(ost("multicast_group"), unless("0x6", hexs("0x7"), hexs("0x0")))}, []sent{{2, "b\x02\x01d"}, {9, "c\x01\x00d"}}},
		{"session", arr{assign(ost("clone"), unless("0x6", hexs("0x1"), hexs("0x0"))), assign(ost("clone_session_id"), hexs("0x3"))},
			[]sent{{2, "b\x03\x01d"}, {9, "b\x01\x00d"}, {9, "c\x01\x00d"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sw := psaWired(join(forward(hexs("0x9")), c.ask), eg).load(t, Config{})
			if err := errors.Join(sw.SetMulticast(7, both), sw.SetSession(3, Session{Replicas: both})); err != nil {
				t.Fatal(err)
			}
			got, r := run(sw, 4, "abcd")
			slices.SortFunc(got, func(a, b sent) int { return strings.Compare(a.String(), b.String()) })
			expect(t, got, c.want...)
			if r.Dropped != NotDropped {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestPSACloneIngress: clones are the frame as it came, whether the original is forwarded or dropped.
func TestPSACloneIngress(t *testing.T) {
	change := arr{assign(fld("h", "dst"), hexs("0x7a")), assign(fld("meta", "a"), hexs("0x41")), assign(ost("clone"), hexs("0x1")), assign(ost("clone_session_id"), hexs("0x3"))}
	eg := append(slices.Clone(showPath), assign(fld("h", "dst"), exp("+", fld("h", "dst"), fld("meta", "a"))))
	sw := psaWired(change, eg).load(t, Config{})
	got, r := run(sw, 4, "abcd") // there is no session 3 yet
	if len(got) != 0 || r.Dropped != IngressDrop {
		t.Error(got, r)
	}
	if err := sw.SetSession(3, Session{Replicas: []Replica{{Port: 8, Rid: 1}, {Port: 9, Rid: 2}}}); err != nil {
		t.Fatal(err)
	}
	got, r = run(sw, 4, "abcd")
	expect(t, got, sent{8, "a\x03\x01d"}, sent{9, "a\x03\x02d"})
	if r != (Result{Emitted: 2, Dropped: IngressDrop}) {
		t.Errorf("%+v", r)
	}
	sw = psaWired(join(forward(hexs("0x1")), change), eg).load(t, Config{})
	if err := errors.Join(sw.SetSession(3, Session{Group: 5}), sw.SetMulticast(5, []Replica{{Port: 7, Rid: 3}})); err != nil {
		t.Fatal(err)
	}
	got, _ = run(sw, 4, "abcd")
	expect(t, got, sent{7, "a\x03\x03d"}, sent{1, "\xbb\x01\x00d"})
}

// TestPSACloneEgress: clones are the frame that egress wrote, and are made even if egress drops the packet.
func TestPSACloneEgress(t *testing.T) {
	isClone := wrap(exp("==", eist("packet_path"), hexs("0x4")))
	not := func(e obj) obj {
		return wrap(obj{"type": "expression", "value": obj{"op": "?", "cond": e, "left": hexs("0x0"), "right": hexs("0x1")}})
	}
	sw := psaWired(forward(hexs("0x1")), arr{assign(eost("clone"), not(isClone)), assign(eost("clone_session_id"), hexs("0x3")),
		assign(eost("drop"), not(isClone)), assign(fld("h", "dst"), exp("+", fld("h", "dst"), hexs("0x1"))), assign(fld("h", "src"), eist("packet_path")),
		assign(fld("h", "kind"), eist("class_of_service"))}).load(t, Config{})
	if err := sw.SetSession(3, Session{Replicas: []Replica{{Port: 8, Rid: 1}}, Priority: 200}); err != nil {
		t.Fatal(err)
	}
	got, r := run(sw, 4, "abcd")
	expect(t, got, sent{8, "c\x04\xc8d"})
	if r != (Result{Emitted: 1, Dropped: EgressDrop}) {
		t.Errorf("%+v", r)
	}
}

// TestPSATruncation: a session cuts its clones before egress, which may make them longer again.
func TestPSATruncation(t *testing.T) {
	ask := func(f func(string) obj) arr {
		return arr{assign(f("clone"), hexs("0x1")), assign(f("clone_session_id"), hexs("0x3"))}
	}
	isClone := wrap(exp(">=", eist("packet_path"), hexs("0x3")))
	eg := join(arr{prim("_jump_if_zero", isClone, hexs("0x4")), prim("add_header", hdrv("h")), assign(fld("h", "src"), eist("packet_path")), prim("_jump", hexs("0x6"))},
		ask(eost))
	for _, c := range []struct {
		name   string
		in     arr
		length int
		want   []sent
	}{
		{"ingress, in the middle of a header", ask(ost), 2, []sent{{8, "\x00\x03\x00ab"}}},
		{"ingress, behind the header", ask(ost), 4, []sent{{8, "a\x03cd"}}},
		{"ingress, longer than the frame", ask(ost), 9, []sent{{8, "a\x03cde"}}},
		{"egress", forward(hexs("0x1")), 2, []sent{{1, "abcde"}, {8, "\x00\x04\x00ab"}}},
	} {
		sw := psaWired(c.in, eg).load(t, Config{})
		if err := sw.SetSession(3, Session{Replicas: []Replica{{Port: 8}}, Length: c.length}); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) {
			got, _ := run(sw, 4, "abcde")
			expect(t, got, c.want...)
		})
	}
}

// TestPSAClasses: a class of service that ports do not have counts as class 0.
func TestPSAClasses(t *testing.T) {
	for class, want := range map[int]byte{0: 0, 7: 7, 8: 0, 200: 0} {
		sw := psaWired(join(forward(hexs("0x1")), arr{assign(ost("class_of_service"), hexs("%#x", class))}),
			arr{assign(fld("h", "dst"), eist("class_of_service"))}).load(t, Config{Queues: 8})
		got, r := run(sw, 4, "abc")
		expect(t, got, sent{1, string([]byte{want, 'b', 'c'})})
		if r != (Result{Emitted: 1}) {
			t.Errorf("class %d: %+v", class, r)
		}
	}
}

// TestPSASessionToCPU: a switch begins with the clone session PSA_CLONE_SESSION_TO_CPU, which a controller may change.
func TestPSASessionToCPU(t *testing.T) {
	sw := psaWired(arr{assign(ost("clone"), hexs("0x1"))}, showPath).load(t, Config{})
	got, _ := run(sw, 4, "abcd")
	expect(t, got, sent{psaPortCPU, "a\x03\x00d"})
	if err := sw.SetSession(0, Session{Replicas: []Replica{{Port: 7, Rid: 1}}}); err != nil {
		t.Fatal(err)
	}
	got, _ = run(sw, 4, "abcd")
	expect(t, got, sent{7, "a\x03\x01d"})
	if _, ok := wired(nil, nil).load(t, Config{}).Session(0); ok {
		t.Error("v1model has a session, too")
	}
}

func TestPSATimes(t *testing.T) {
	sw := psaWired(join(forward(hexs("0x1")), arr{assign(fld("h", "dst"), ist("ingress_timestamp"))}), arr{assign(fld("h", "src"), eist("egress_timestamp"))}).load(t, Config{})
	var out string
	sw.Process(0x4142_000, 1, []byte("xyz"), func(_ uint32, f []byte) { out = string(f) })
	us := 0x4142_000 / 1000
	if out != string([]byte{byte(us), byte(us), 'z'}) {
		t.Errorf("%q at %d µs", out, us)
	}
}

// attributes are the arguments of an extern's constructor.
func attributes(all ...any) (out arr) {
	for i := 0; i < len(all); i += 2 {
		out = append(out, obj{"name": all[i], "type": "hexstr", "value": all[i+1]})
	}
	return out
}

func extern(name string) obj { return obj{"type": "extern", "value": name} }

func fields(all ...any) obj { return obj{"type": "field_list", "value": arr(all)} }

func TestPSACounterRegisterMeter(t *testing.T) {
	s := psaWired(join(forward(hexs("0x1")), arr{
		prim("_Counter_count", extern("c"), fld("h", "kind")),
		prim("_Meter_execute", extern("m"), fld("h", "kind"), fld("h", "src")),
		prim("register_read", fld("h", "dst"), obj{"type": "register_array", "value": "r"}, hexs("0x1")),
		prim("register_write", obj{"type": "register_array", "value": "r"}, hexs("0x1"), fld("h", "kind")),
	}), nil)
	s.extra["counter_arrays"] = arr{obj{"name": "c", "id": 0, "size": 4, "is_direct": false}}
	s.extra["register_arrays"] = arr{obj{"name": "r", "id": 0, "size": 4, "bitwidth": 8}}
	s.extra["extern_instances"] = arr{obj{"name": "c", "id": 0, "type": "Counter", "attribute_values": attributes("n_counters", "0x00000004", "type", "0x02")},
		obj{"name": "m", "id": 1, "type": "Meter", "attribute_values": attributes("is_direct", 0, "n_meters", "0x00000004", "rate_count", 2, "type", "packets")}}
	sw := s.load(t, Config{})
	if m := sw.Program().Meters(); len(m) != 1 || m[0].Size != 4 || m[0].Byte {
		t.Fatalf("%+v", m)
	}
	got, _ := run(sw, 1, "ab\x02") // without rates all is green
	expect(t, got, sent{1, "\x00\x01\x02"})
	if err := sw.SetMeter("m", 2, Rate{0, 1}, Rate{0, 2}); err != nil {
		t.Fatal(err)
	}
	for _, color := range []string{"\x01", "\x02", "\x00", "\x00"} { // green, yellow, red, red
		got, _ := run(sw, 1, "ab\x02")
		expect(t, got, sent{1, "\x02" + color + "\x02"})
	}
	if n, err := sw.Count("c", 2); err != nil || n != (Count{Packets: 5, Bytes: 15}) {
		t.Error(n, err)
	}
	got, _ = run(sw, 1, "ab\x09") // a counter, a meter and a register that are not there
	expect(t, got, sent{1, "\x02b\x09"})
}

// TestPSADirect: direct meters have PSA's colors, too.
func TestPSADirect(t *testing.T) {
	s := psaSource()
	id := s.action("in", nil, forward(hexs("0x1"))...)
	s.extra["meter_arrays"] = arr{obj{"name": "dm", "id": 0, "is_direct": true, "rate_count": 2, "type": "packets", "size": 4, "binding": "t", "result_target": arr{"h", "src"}}}
	s.extra["counter_arrays"] = arr{obj{"name": "dc", "id": 0, "is_direct": true, "binding": "t"}}
	s.table(s.ingress, "t", "exact", arr{keyOf("exact", "h", "dst")}, arr{"in"}, nil, obj{"with_counters": true, "direct_meters": "dm", "action_ids": arr{id}})
	sw := s.load(t, Config{})
	h, err := sw.Insert("t", Entry{Key: []Match{{Value: []byte("a")}}, Action: Action{Name: "in"}})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := run(sw, 1, "abc")
	expect(t, got, sent{1, "a\x01c"})
	if err := sw.SetEntryMeter("t", h, Rate{0, 0}, Rate{0, 1}); err != nil {
		t.Fatal(err)
	}
	for _, color := range []string{"\x02", "\x00"} {
		got, _ := run(sw, 1, "abc")
		expect(t, got, sent{1, "a" + color + "c"})
	}
	if n, err := sw.EntryCount("t", h); err != nil || n.Packets != 3 {
		t.Error(n, err)
	}
}

// TestPSASelector: a table may have an action selector, in the form that the JSON has for v1model.
func TestPSASelector(t *testing.T) {
	s := psaSource()
	s.action("send", arr{arr{"port", 32}}, forward(param_(0))...)
	s.ingress["action_profiles"] = arr{obj{"name": "ap", "id": 0, "max_size": 3, "selector": obj{"algo": "identity", "input": arr{fld("h", "kind")}}}}
	s.table(s.ingress, "t", "exact", arr{keyOf("exact", "h", "dst")}, arr{"send"}, nil, obj{"type": "indirect_ws", "action_profile": "ap"})
	sw := s.load(t, Config{})
	err := errors.Join(sw.SetMember("ap", 1, Action{"send", [][]byte{{7}}}), sw.SetMember("ap", 2, Action{"send", [][]byte{{8}}}),
		sw.SetGroup("ap", 1, []GroupMember{{ID: 1}, {ID: 2}}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sw.Insert("t", Entry{Key: []Match{{Value: []byte("a")}}, Group: 1}); err != nil {
		t.Fatal(err)
	}
	for i, port := range []uint32{7, 8} {
		frame := "ab" + string([]byte{byte(i)})
		got, _ := run(sw, 1, frame)
		expect(t, got, sent{port, frame})
	}
}

func TestPSAHash(t *testing.T) {
	s := psaWired(join(forward(hexs("0x1")), arr{
		prim("_Hash_get_hash", extern("crc"), fld("meta", "a"), fields(hdrv("h"), obj{"type": "hexstr", "value": "0x0102", "bitwidth": 12}, fld("h", "kind"))),
		prim("_Hash_get_hash_mod", extern("crc"), fld("meta", "b"), hexs("0x7"), fields(exp("&", exp("+", fld("h", "dst"), hexs("0x100")), hexs("0xff"))["value"], fld("h", "src"), fld("h", "kind")), hexs("0x64")),
		assign(fld("h", "dst"), exp(">>", fld("meta", "a"), hexs("0x8"))), assign(fld("h", "src"), fld("meta", "a")), assign(fld("h", "kind"), fld("meta", "b")),
	}), nil)
	s.extra["extern_instances"] = arr{obj{"name": "crc", "id": 0, "type": "Hash", "attribute_values": attributes("algo", "crc32")}}
	got, _ := run(s.load(t, Config{}), 1, "abcd")
	// 24 + 12 + 8 bits with four zeros before them, and the three bytes alone.
	one, two := crc32.ChecksumIEEE([]byte{0x06, 0x16, 0x26, 0x31, 0x02, 0x63}), crc32.ChecksumIEEE([]byte("abc"))
	expect(t, got, sent{1, string([]byte{byte(one >> 8), byte(one), byte(two%100 + 7), 'd'})})
	s.extra["extern_instances"] = arr{obj{"name": "crc", "id": 0, "type": "Hash", "attribute_values": attributes("algo", "md5")}}
	if _, err := Load(s.json()); err == nil || !strings.Contains(err.Error(), `Hash crc: unknown hash algorithm "md5"`) {
		t.Error(err)
	}
}

// TestPSAChecksum: add, subtract, state and verification, in parser, pipeline and deparser; a packet finds nothing of the packet before it.
func TestPSAChecksum(t *testing.T) {
	words := func(v ...int) obj {
		var all arr
		for _, x := range v {
			all = append(all, obj{"type": "hexstr", "value": hexs("0x%04x", x)["value"]})
		}
		return fields(all...)
	}
	s := psaWired(forward(hexs("0x1")), nil)
	s.deparsers(arr{
		prim("_InternetChecksum_add", extern("ck"), words(0x1234, 0xffff, 0xf00d)),
		prim("_InternetChecksum_subtract", extern("ck"), words(0x1234, 0)),
		prim("_InternetChecksum_get_state", extern("ck"), fld("meta", "a")), // 0xf00d
		prim("_InternetChecksum_set_state", extern("other"), fld("meta", "a")),
		prim("_InternetChecksum_get", extern("other"), fld("meta", "b")),
		prim("_InternetChecksum_get_verify", extern("other"), fld("h", "kind"), fld("meta", "b")),
		prim("_InternetChecksum_clear", extern("other")),
		prim("_InternetChecksum_get_verify", extern("other"), fld("h", "src"), fld("meta", "b")),
		prim("set", fld("h", "dst"), exp(">>", fld("meta", "b"), hexs("0x8"))),
	}, nil)
	s.extra["extern_instances"] = arr{obj{"name": "ck", "id": 0, "type": "InternetChecksum"}, obj{"name": "other", "id": 1, "type": "InternetChecksum"}}
	sw := s.load(t, Config{})
	for range 2 {
		got, _ := run(sw, 1, "abcd")
		expect(t, got, sent{1, "\x0f\x00\x01d"}) // the high byte of 0x0ff2; wrong, right
	}
	s.deparsers(arr{prim("_InternetChecksum_add", extern("ck"), fields(fld("h", "dst")))}, nil)
	if _, err := Load(s.json()); err == nil || !strings.Contains(err.Error(), "8 bits are no whole number of 16-bit words") {
		t.Error(err)
	}
}

func TestPSADigest(t *testing.T) {
	s := psaWired(arr{prim("generate_digest", hexs("0x0"))}, nil) // the packet is dropped
	s.extra["learn_lists"] = arr{obj{"id": 0, "name": "d", "elements": arr{fld("h", "src"), fld("psa_ingress_input_metadata", "ingress_port")}}}
	var got []string
	sw := s.load(t, Config{Digest: func(d Digest) { got = append(got, d.Name+":"+string(d.Data)) }})
	run(sw, 5, "abc")
	if !slices.Equal(got, []string{"d:b\x00\x00\x00\x05"}) {
		t.Errorf("%q", got)
	}
}

// TestPSADigests: a packet may have messages of several digests, each with what its fields were when it was packed.
func TestPSADigests(t *testing.T) {
	s := psaWired(join(arr{prim("generate_digest", hexs("0x0")), assign(fld("h", "src"), hexs("0x58")), prim("generate_digest", hexs("0x1")),
		assign(fld("h", "src"), hexs("0x59"))}, forward(hexs("0x1"))), nil)
	s.deparsers(arr{prim("generate_digest", hexs("0x0"))}, nil)
	s.extra["learn_lists"] = arr{obj{"id": 0, "name": "d", "elements": arr{fld("h", "src")}}, obj{"id": 1, "name": "e", "elements": arr{fld("h", "src"), fld("h", "dst")}}}
	var digests []string
	sw := s.load(t, Config{Digest: func(d Digest) { digests = append(digests, d.Name+":"+string(d.Data)) }})
	got, _ := run(sw, 5, "abc")
	expect(t, got, sent{1, "aYc"})
	if want := []string{"d:b", "e:Xa", "d:Y"}; !slices.Equal(digests, want) {
		t.Errorf("%q, want %q", digests, want)
	}
}

// TestPSAPrimitives: primitives that ask for something of v1model are refused, for nobody would do it.
func TestPSAPrimitives(t *testing.T) {
	for op, params := range map[string]arr{"drop": {}, "mark_to_drop": {hdrv("meta")}, "resubmit": {hexs("0x1")}, "recirculate": {hexs("0x1")}, "truncate": {hexs("0x5")},
		"clone_ingress_pkt_to_egress": {hexs("0x1"), hexs("0x1")}, "clone_egress_pkt_to_egress": {hexs("0x1"), hexs("0x1")}} {
		_, err := Load(psaWired(arr{prim(op, params...)}, nil).json())
		if want := "p4: action in, primitive " + op + ": unknown primitive"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestPSALoad: a program for PSA that lacks a field of its architecture is refused.
func TestPSALoad(t *testing.T) {
	s := psaSource()
	s.listTypes = slices.DeleteFunc(s.listTypes, func(x any) bool { return x.(obj)["name"] == "psa_egress_output_metadata" })
	s.listHeaders = slices.DeleteFunc(s.listHeaders, func(x any) bool { return x.(obj)["name"] == "psa_egress_output_metadata" })
	_, err := Load(s.json())
	if err == nil || !strings.Contains(err.Error(), "psa_egress_output_metadata.clone: this is no program for PSA") {
		t.Error(err)
	}
}

// TestPSAAllocates: a packet that takes all paths allocates nothing.
func TestPSAAllocates(t *testing.T) {
	sw := psaWired(join(forward(unless("0x6", hexs("0xfffffffa"), hexs("0x9"))), arr{assign(ost("clone"), hexs("0x1")), assign(ost("clone_session_id"), hexs("0x3"))}), showPath).load(t, Config{})
	if err := sw.SetSession(3, Session{Replicas: []Replica{{Port: 8, Rid: 1}, {Port: 9, Rid: 2}}}); err != nil {
		t.Fatal(err)
	}
	frame := []byte("abcdefghijklmnopqrstuvwxyz")
	emit := func(uint32, []byte) {}
	f := func() {
		if r := sw.Process(sw.now+1, 1, frame, emit); r.Emitted != 5 {
			t.Fatal(r)
		}
	}
	f()
	if n := testing.AllocsPerRun(100, f); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestPSAApp: an app runs a program for PSA without a word about it, and PSA_PORT_CPU is the port to the controller.
func TestPSAApp(t *testing.T) {
	s := psaWired(join(forward(hexs("0x7")), arr{assign(ost("egress_port"), unless("0x0", hexs("0x8"), fld("h", "kind"))),
		assign(fld("h", "src"), exp("&", ist("ingress_port"), hexs("0xff")))}), nil)
	x := graphtest.New(t, *Kind(), graph.Args{"program": programFile(t, s)})
	if r := x.Push("3", []byte("ab\x07d")); len(r.Out["7"]) != 1 || string(r.Out["7"][0].Bytes) != "a\x03\x07d" {
		t.Errorf("%+v", r)
	}
	if r := x.Push("cpu", []byte("ab\x07d")); len(r.Out["7"]) != 1 || string(r.Out["7"][0].Bytes) != "a\xfd\x07d" {
		t.Errorf("from the controller: %+v", r)
	}
	for _, c := range []struct {
		cpu  string
		want int
	}{{"", 1}, {"510", 0}, {"none", 0}} {
		s := psaWired(forward(hexs("0xfffffffd")), nil)
		args := graph.Args{"program": programFile(t, s)}
		if c.cpu != "" {
			args["cpu"] = c.cpu
		}
		if r := graphtest.New(t, *Kind(), args).Push("3", []byte("abcd")); len(r.Punted) != c.want {
			t.Errorf("cpu=%s: %+v", c.cpu, r)
		}
	}
}

// TestPSATracePort: a frame that comes again has the port that the program finds.
func TestPSATracePort(t *testing.T) {
	sw := psaWired(forward(unless("0x6", hexs("0xfffffffa"), hexs("0x9"))), nil).load(t, Config{})
	var ports []int
	sw.SetTrace(func(e Event) {
		if e.Kind == EventReceived {
			ports = append(ports, e.Object)
		}
	})
	run(sw, 5, "abc")
	if want := []int{5, psaPortRecirculate}; !slices.Equal(ports, want) {
		t.Errorf("%v, want %v", ports, want)
	}
}
