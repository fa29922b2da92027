package p4

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// wired is a program with an Ethernet-like header h (dst, src, kind: a byte
// each), metadata meta (a, b: 16 bits), an ingress table "t" by h.kind without
// entries, and an egress action.
func wired(in, eg arr) *source {
	s := newSource()
	s.header("h", false, arr{"dst", 8}, arr{"src", 8}, arr{"kind", 8})
	s.header("meta", true, arr{"a", 16}, arr{"b", 16})
	s.extra["field_lists"] = arr{obj{"id": 1, "name": "fl", "elements": arr{fld("meta", "a")}}}
	s.state("start", arr{extract("h")}, nil, to(nil))
	s.always(s.ingress, "ti", "in", s.action("in", nil, in...), nil)
	s.always(s.egress, "te", "eg", s.action("eg", nil, eg...), nil)
	return s
}

func assign(dst, src obj) obj { return prim("assign", dst, src) }

func expect(t *testing.T, got []sent, want ...sent) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}

func TestForward(t *testing.T) {
	sw := wired(arr{assign(std("egress_spec"), std("ingress_port")), assign(fld("h", "dst"), hexs("0x41"))},
		arr{assign(fld("h", "src"), std("egress_port"))}).load(t, Config{})
	got, r := run(sw, 5, "abcpayload")
	expect(t, got, sent{5, "A\x05cpayload"})
	if r != (Result{Emitted: 1}) {
		t.Errorf("%+v", r)
	}
	got, _ = run(sw, 5, "ab") // too short to parse: sent as it is
	expect(t, got, sent{5, "ab"})
}

func TestDrops(t *testing.T) {
	drop := prim("mark_to_drop", hdrv("standard_metadata"))
	for _, c := range []struct {
		name   string
		in, eg arr
		frame  string
		want   Reason
	}{
		{"ingress", arr{drop}, nil, "abc", IngressDrop},
		{"parser", arr{drop}, nil, "a", ParserError},
		{"egress", nil, arr{drop}, "abc", EgressDrop},
		{"group", arr{assign(std("mcast_grp"), hexs("0x7"))}, nil, "abc", NoReplica},
		{"group, then drop", arr{assign(std("mcast_grp"), hexs("0x7")), drop}, nil, "abc", IngressDrop},
		{"priority", arr{assign(std("priority"), hexs("0x7"))}, nil, "abc", NoQueue},
		{"assert", arr{prim("assert", wrap(exp("==", fld("h", "dst"), hexs("0x0"))))}, nil, "abc", Asserted},
		{"for ever", nil, arr{prim("recirculate", hexs("0x1"))}, "abc", PassLimit},
		{"resubmitted for ever", arr{prim("resubmit", hexs("0x1"))}, nil, "abc", PassLimit},
		{"loop", arr{prim("no_op"), prim("_jump", hexs("0x0"))}, nil, "abc", LoopLimit},
	} {
		sw := wired(c.in, c.eg).load(t, Config{Queues: 4})
		got, r := run(sw, 1, c.frame)
		if len(got) != 0 || r.Dropped != c.want || sw.Dropped(c.want) != 1 {
			t.Errorf("%s: %v, %v, want %s", c.name, r, got, c.want)
		}
	}
}

// TestDropPort: the port that drops is one that egress_spec can say.
func TestDropPort(t *testing.T) {
	s := wired(arr{prim("mark_to_drop", hdrv("standard_metadata"))}, nil)
	if _, r := run(s.load(t, Config{DropPort: 500}), 1, "abc"); r.Dropped != IngressDrop {
		t.Errorf("%+v", r)
	}
	p, err := Load(s.json())
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewSwitch(p, Config{DropPort: 512})
	if want := "invalid: drop port 512, the program's ports are 0 to 511"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestFailedParser: an assertion that does not hold, or a loop without end, ends
// the parser at once.
func TestFailedParser(t *testing.T) {
	for reason, code := range map[Reason]obj{
		Asserted:  prim("assert", wrap(exp("==", fld("h", "dst"), hexs("0x1")))),
		LoopLimit: prim("_jump", hexs("0x0")),
	} {
		s := newSource()
		s.header("h", false, arr{"dst", 8})
		s.state("start", arr{obj{"op": "primitive", "parameters": arr{code}}}, nil, to("start"))
		sw := s.load(t, Config{})
		states := 0
		sw.SetTrace(func(e Event) {
			if e.Kind == EventState {
				states++
			}
		})
		if _, r := run(sw, 0, "a"); r.Dropped != reason || states != 1 {
			t.Errorf("%v, %d states, want %v after 1", r, states, reason)
		}
	}
}

// TestDropOfACopy: what marks a copy of standard_metadata drops when it is copied
// back, and not before.
func TestDropOfACopy(t *testing.T) {
	for _, back := range []bool{false, true} {
		code := arr{assign(std("egress_spec"), std("ingress_port")), prim("mark_to_drop", hdrv("copy"))}
		if back {
			code = append(code, assign(std("egress_spec"), fld("copy", "egress_spec")))
		}
		s := wired(code, nil)
		s.header("copy", true, stdFields...)
		got, r := run(s.load(t, Config{}), 5, "abc")
		if dropped := len(got) == 0 && r.Dropped == IngressDrop; dropped != back {
			t.Errorf("copied back: %v; sent %v, %+v", back, got, r)
		}
	}
}

func TestMissIsTheReason(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"dst", 8})
	s.state("start", arr{extract("h")}, nil, to(nil))
	id := s.action("drop", nil, prim("mark_to_drop", hdrv("standard_metadata")))
	s.table(s.ingress, "t", "exact", arr{keyOf("exact", "h", "dst")}, arr{"drop"}, nil,
		obj{"default_entry": obj{"action_id": id, "action_data": arr{}}})
	sw := s.load(t, Config{})
	if _, r := run(sw, 0, "x"); r.Dropped != NoTableHit {
		t.Error(r)
	}
}

// TestCloneIngress: a clone is the packet as it came, with the metadata of the
// field list; the original goes its way.
func TestCloneIngress(t *testing.T) {
	in := arr{assign(fld("h", "dst"), hexs("0x58")), assign(fld("meta", "a"), hexs("0x1234")), assign(fld("meta", "b"), hexs("0x5678")),
		assign(std("egress_spec"), hexs("0x2")), prim("clone_ingress_pkt_to_egress", hexs("0x5"), hexs("0x1"))}
	eg := arr{prim("_jump_if_zero", wrap(exp("==", std("instance_type"), hexs("0x1"))), hexs("0x4")),
		assign(fld("h", "src"), fld("meta", "a")), assign(fld("h", "kind"), fld("meta", "b")), prim("truncate", hexs("0x4"))}
	sw := wired(in, eg).load(t, Config{})
	got, _ := run(sw, 1, "abcdef")
	expect(t, got, sent{2, "Xbcdef"}) // no session, no clone
	if err := sw.SetSession(5, Session{Replicas: []Replica{{Port: 9}}}); err != nil {
		t.Fatal(err)
	}
	got, _ = run(sw, 1, "abcdef")
	expect(t, got, sent{9, "a\x34\x00d"}, sent{2, "Xbcdef"})
	if err := sw.SetMulticast(3, []Replica{{Port: 6}, {Port: 7, Rid: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := sw.SetSession(5, Session{Group: 3}); err != nil {
		t.Fatal(err)
	}
	got, _ = run(sw, 1, "abcdef")
	expect(t, got, sent{6, "a\x34\x00d"}, sent{7, "a\x34\x00d"}, sent{2, "Xbcdef"})
	// Clones may be cut, and queued by another priority.
	if err := sw.SetSession(5, Session{Group: 3, Replicas: []Replica{{Port: 9}}, Length: 2, Priority: 7}); err != nil {
		t.Fatal(err)
	}
	got, _ = run(sw, 1, "abcdef")
	expect(t, got, sent{6, "a\x34"}, sent{7, "a\x34"}, sent{9, "a\x34"}, sent{2, "Xbcdef"})
	for _, bad := range []Session{{Length: -1}, {Priority: 8}, {Priority: -1}} {
		if err := sw.SetSession(5, bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if err := sw.DeleteSession(5); err != nil {
		t.Fatal(err)
	}
	if err := sw.DeleteSession(5); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// TestCloneEgress: a clone has the headers as they are behind egress, and goes
// through egress again.
func TestCloneEgress(t *testing.T) {
	eg := arr{prim("_jump_if_zero", wrap(exp("==", std("instance_type"), hexs("0x0"))), hexs("0x4")),
		assign(fld("h", "dst"), hexs("0x31")), assign(fld("meta", "a"), hexs("0x41")), prim("clone_egress_pkt_to_egress", hexs("0x0"), hexs("0x1")),
		assign(fld("h", "src"), fld("meta", "a"))}
	sw := wired(nil, eg).load(t, Config{})
	if err := sw.SetSession(0, Session{Replicas: []Replica{{Port: 4}}}); err != nil {
		t.Fatal(err)
	}
	got, _ := run(sw, 1, "abcd")
	expect(t, got, sent{0, "1Acd"}, sent{4, "1Acd"})
	if err := sw.SetSession(0, Session{Replicas: []Replica{{Port: 4}}, Length: 3}); err != nil {
		t.Fatal(err)
	}
	got, _ = run(sw, 1, "abcd")
	expect(t, got, sent{0, "1Acd"}, sent{4, "1Ac"})
}

func TestMulticast(t *testing.T) {
	sw := wired(arr{assign(std("mcast_grp"), hexs("0x1")), assign(fld("h", "dst"), hexs("0x58"))},
		arr{assign(fld("h", "src"), std("egress_rid")), assign(fld("h", "kind"), std("instance_type"))}).load(t, Config{})
	if err := sw.SetMulticast(1, []Replica{{Port: 1, Rid: 10}, {Port: 2, Rid: 20}, {Port: 1, Rid: 30}}); err != nil {
		t.Fatal(err)
	}
	got, _ := run(sw, 0, "abcdef")
	expect(t, got, sent{1, "X\x0a\x05def"}, sent{2, "X\x14\x05def"}, sent{1, "X\x1e\x05def"})
	// While its port is down the first of its backups whose port is up is in a replica's place.
	if err := sw.SetMulticast(1, []Replica{{Port: 1, Rid: 10, Backups: []Replica{{Port: 4, Rid: 40}, {Port: 2, Rid: 50}}}, {Port: 3, Rid: 30}}); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		down []uint32
		want sent
	}{{nil, sent{1, "X\x0a\x05def"}}, {[]uint32{1, 3}, sent{4, "X\x28\x05def"}}, {[]uint32{1, 4}, sent{2, "X\x32\x05def"}}, {[]uint32{1, 2, 4}, sent{1, "X\x0a\x05def"}},
		{[]uint32{2, 4}, sent{1, "X\x0a\x05def"}}} {
		down := map[uint32]bool{}
		for _, p := range x.down {
			down[p] = true
		}
		sw.setLinks(down)
		got, _ = run(sw, 0, "abcdef")
		expect(t, got, x.want, sent{3, "X\x1e\x05def"})
	}
}

// TestReplicasAreBounded: replicas that could not pass egress are not made.
func TestReplicasAreBounded(t *testing.T) {
	sw := wired(arr{assign(std("mcast_grp"), hexs("0x5"))}, nil).load(t, Config{MaxPasses: 16})
	if err := sw.SetMulticast(5, make([]Replica, 1000)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, r := run(sw, 0, "abc")
		if len(got) != 15 || r != (Result{15, PassLimit}) || len(sw.spare) > 20 {
			t.Errorf("%d frames left: %+v; %d packets in memory", len(got), r, len(sw.spare))
		}
	}
	if n := sw.Dropped(PassLimit); n != 2*985 {
		t.Errorf("%d dropped", n)
	}
}

func TestResubmitAndRecirculate(t *testing.T) {
	resubmitOnce := arr{assign(fld("h", "dst"), fld("meta", "a")), assign(fld("h", "src"), std("instance_type")), assign(fld("meta", "b"), hexs("0x1")),
		prim("_jump_if_zero", wrap(exp("==", std("instance_type"), hexs("0x0"))), hexs("0x6")),
		assign(fld("meta", "a"), hexs("0x41")), prim("resubmit", hexs("0x1"))}
	got, _ := run(wired(resubmitOnce, nil).load(t, Config{}), 0, "abcd")
	expect(t, got, sent{0, "A\x06cd"})

	recirculateOnce := arr{assign(fld("h", "src"), std("instance_type")),
		prim("_jump_if_zero", wrap(exp("==", fld("meta", "a"), hexs("0x0"))), hexs("0x6")),
		assign(fld("meta", "a"), hexs("0x41")), assign(fld("h", "dst"), hexs("0x58")), prim("recirculate", hexs("0x1")), prim("_jump", hexs("0x7")),
		assign(fld("h", "kind"), std("packet_length"))}
	s := wired(nil, recirculateOnce)
	sw := s.load(t, Config{})
	got, _ = run(sw, 0, "abcd")
	expect(t, got, sent{0, "X\x00\x04d"})
}

// TestCutClone: a clone that its session cuts is cut also where it is recirculated.
func TestCutClone(t *testing.T) {
	in := arr{prim("_jump_if_zero", wrap(exp("==", std("instance_type"), hexs("0x0"))), hexs("0x3")), prim("clone_ingress_pkt_to_egress", hexs("0x5"), hexs("0x1")), prim("_jump", hexs("0x4")),
		assign(fld("h", "kind"), std("packet_length"))}
	eg := arr{prim("_jump_if_zero", wrap(exp("==", std("instance_type"), hexs("0x1"))), hexs("0x2")), prim("recirculate", hexs("0x1"))}
	sw := wired(in, eg).load(t, Config{})
	if err := sw.SetSession(5, Session{Replicas: []Replica{{Port: 9}}, Length: 4}); err != nil {
		t.Fatal(err)
	}
	got, _ := run(sw, 1, "abcdef")
	expect(t, got, sent{0, "abcdef"}, sent{0, "ab\x04d"})
}

func TestTimestampsAndLength(t *testing.T) {
	s := wired(nil, arr{prim("add_header", hdrv("x")), assign(fld("x", "t"), std("ingress_global_timestamp")), assign(fld("h", "kind"), std("packet_length"))})
	s.header("x", false, arr{"t", 48})
	sw := s.load(t, Config{Start: 1_000_000})
	var got string
	sw.Process(5_000_000, 0, []byte("abcdef"), func(_ uint32, f []byte) { got = string(f) })
	if want := "ab\x06\x00\x00\x00\x00\x0f\xa0def"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// stacked is a program with a stack of three one-byte headers, extracted until
// one is odd.
func stacked(in ...any) *source {
	s := newSource()
	s.listTypes = append(s.listTypes, obj{"name": "e", "id": s.id(), "fields": arr{arr{"v", 8}}})
	var ids arr
	for i := range 3 {
		name := fmt.Sprintf("e[%d]", i)
		ids = append(ids, s.instance(name, "e", false))
		s.deparse = append(s.deparse, name)
	}
	s.extra["header_stacks"] = arr{obj{"name": "e", "id": 0, "header_type": "e", "header_ids": ids}}
	s.extra["errors"] = arr{arr{"NoError", 0}, arr{"PacketTooShort", 1}, arr{"StackOutOfBounds", 3}, arr{"Mine", 9}}
	s.state("start", arr{obj{"op": "extract", "parameters": arr{obj{"type": "stack", "value": "e"}}}},
		arr{obj{"type": "stack_field", "value": arr{"e", "v"}}},
		arr{obj{"type": "hexstr", "value": "0x01", "mask": "0x01", "next_state": nil}, obj{"type": "default", "value": nil, "mask": nil, "next_state": "start"}})
	s.always(s.ingress, "ti", "in", s.action("in", nil, in...), nil)
	return s
}

func elemOf(i obj) obj {
	return exp("access_field", exp("dereference_header_stack", obj{"type": "header_stack", "value": "e"}, i), 0)
}

func TestStack(t *testing.T) {
	valid := func(i obj) obj {
		return obj{"type": "field", "value": arr{elemOf(i)["value"].(obj)["left"].(obj)["value"], "$valid$"}}
	}
	stackv := obj{"type": "header_stack", "value": "e"}
	for _, c := range []struct {
		name        string
		in          arr
		frame, want string
	}{
		{"parse", nil, "\x02\x04\x05xyz", "\x02\x04\x05xyz"},
		{"push", arr{prim("push", stackv, hexs("0x1")), prim("add_header", hdrv("e[0]")), assign(fld("e[0]", "v"), hexs("0x41"))}, "\x02\x05xyz", "A\x02\x05xyz"},
		{"push over the end", arr{prim("push", stackv, hexs("0x2"))}, "\x02\x04\x05xyz", "\x02xyz"},
		{"push all", arr{prim("push", stackv, hexs("0x9"))}, "\x02\x04\x05xyz", "xyz"},
		{"pop", arr{prim("pop", stackv, hexs("0x1"))}, "\x02\x04\x05xyz", "\x04\x05xyz"},
		{"pop all", arr{prim("pop", stackv, hexs("0x9"))}, "\x02\x05xyz", "xyz"},
		{"runtime index", arr{prim("assign", wrap(elemOf(fld("e[0]", "v"))), hexs("0x41"))}, "\x01xyz", "\x01xyz"},
		{"runtime index in range", arr{prim("assign", wrap(elemOf(exp("-", fld("e[0]", "v"), hexs("0x1")))), hexs("0x41"))}, "\x02\x03xyz", "\x02Axyz"},
		{"out of range", arr{prim("assign", wrap(elemOf(fld("e[0]", "v"))), hexs("0x41")), prim("assign", fld("e[0]", "v"), wrap(elemOf(hexs("0x7"))))}, "\x09xyz", "\x00xyz"},
		{"validity", arr{assign(fld("e[0]", "v"), valid(exp("-", fld("e[0]", "v"), hexs("0x1"))))}, "\x02\x05xyz", "\x01\x05xyz"},
		{"no validity", arr{assign(fld("e[0]", "v"), valid(fld("e[0]", "v")))}, "\x02\x05xyz", "\x00\x05xyz"},
		{"last index", arr{prim("assign", fld("e[0]", "v"), wrap(exp("last_stack_index", nil, stackv)))}, "\x02\x04\x05xyz", "\x02\x04\x05xyz"},
		{"last header", arr{prim("assign_header", hdrv("e[0]"), wrap(obj{"type": "stack_field", "value": arr{"e", "last"}}))}, "\x02\x04\x05xyz", "\x05\x04\x05xyz"},
		{"full", arr{prim("assign", fld("e[0]", "v"), std("parser_error"))}, "\x02\x04\x06xyz", "\x03\x04\x06xyz"},
		{"short", arr{prim("assign", fld("e[0]", "v"), std("parser_error"))}, "\x02", "\x01"},
	} {
		got, _ := run(stacked(c.in...).load(t, Config{}), 0, c.frame)
		if len(got) != 1 || got[0].frame != c.want {
			t.Errorf("%s: %v, want %q", c.name, got, c.want)
		}
	}
}

func TestUnion(t *testing.T) {
	s := newSource()
	s.header("sel", false, arr{"k", 8})
	s.header("a", false, arr{"x", 8})
	s.header("b", false, arr{"y", 16})
	ids := arr{s.listHeaders[2].(obj)["id"], s.listHeaders[3].(obj)["id"]}
	s.extra["header_union_types"] = arr{obj{"name": "u_t", "id": 0, "headers": arr{arr{"a", "a"}, arr{"b", "b"}}}}
	s.extra["header_unions"] = arr{obj{"name": "u", "id": 0, "union_type": "u_t", "header_ids": ids}}
	s.state("start", arr{extract("sel"), extract("a")}, arr{obj{"type": "field", "value": arr{"sel", "k"}}},
		arr{obj{"type": "hexstr", "value": "0x02", "mask": nil, "next_state": "second"}, to(nil)[0]})
	s.state("second", arr{extract("b")}, nil, to(nil))
	s.always(s.ingress, "ti", "in", s.action("in", nil,
		assign(fld("sel", "k"), wrap(exp("b2d", nil, exp("valid_union", nil, obj{"type": "header_union", "value": "u"}))))), nil)
	sw := s.load(t, Config{})
	got, _ := run(sw, 0, "\x01Arest")
	expect(t, got, sent{0, "\x01Arest"})
	got, _ = run(sw, 0, "\x02ABCrest") // b takes the place of a
	expect(t, got, sent{0, "\x01BCrest"})
	got, _ = run(sw, 0, "\x07")
	expect(t, got, sent{0, "\x00"})
}

func TestVarbit(t *testing.T) {
	s := newSource()
	s.header("n", false, arr{"len", 8})
	s.listTypes = append(s.listTypes, obj{"name": "v", "id": s.id(), "max_length": 5, "fields": arr{arr{"a", 8}, arr{"opt", "*"}, arr{"b", 8}}})
	s.instance("v", "v", false)
	s.deparse = append(s.deparse, "v")
	s.extra["errors"] = arr{arr{"NoError", 0}, arr{"PacketTooShort", 1}, arr{"HeaderTooShort", 4}, arr{"ParserInvalidArgument", 6}}
	s.state("start", arr{extract("n"), obj{"op": "extract_VL", "parameters": arr{obj{"type": "regular", "value": "v"},
		wrap(fld("n", "len"))}}}, nil, to(nil))
	s.always(s.ingress, "ti", "in", s.action("in", nil, assign(fld("n", "len"), std("parser_error")), assign(fld("v", "b"), hexs("0x58"))), nil)
	sw := s.load(t, Config{})
	for in, want := range map[string]string{
		"\x00ABrest":    "\x00AXrest",
		"\x18AoptBrest": "\x00AoptXrest",
		"\x20AoptsBres": "\x04AoptsBres", // longer than the header may be
		"\x07ABrest":    "\x06ABrest",
		"\x18Aopt":      "\x01Aopt",
	} {
		if got, _ := run(sw, 0, in); len(got) != 1 || got[0].frame != want {
			t.Errorf("%q: %v, want %q", in, got, want)
		}
	}
}

func TestVerifyLookaheadAdvance(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"a", 8})
	s.header("meta", true, arr{"x", 12})
	s.extra["errors"] = arr{arr{"NoError", 0}, arr{"PacketTooShort", 1}, arr{"Mine", 9}}
	s.state("start", arr{
		obj{"op": "set", "parameters": arr{fld("meta", "x"), obj{"type": "lookahead", "value": arr{4, 12}}}},
		extract("h"),
		obj{"op": "verify", "parameters": arr{exp("!=", fld("h", "a"), hexs("0x00")), hexs("0x9")}},
		obj{"op": "advance", "parameters": arr{hexs("0x10")}},
	}, arr{obj{"type": "lookahead", "value": arr{0, 8}}}, arr{obj{"type": "hexstr", "value": "0x7a", "mask": nil, "next_state": "z"}, to(nil)[0]})
	s.state("z", arr{obj{"op": "advance", "parameters": arr{hexs("0x8")}}}, nil, to(nil))
	s.always(s.ingress, "ti", "in", s.action("in", nil, prim("_jump_if_zero", std("parser_error"), hexs("0x3")), assign(fld("h", "a"), std("parser_error")),
		prim("_jump", hexs("0x4")), assign(fld("h", "a"), fld("meta", "x"))), nil)
	sw := s.load(t, Config{})
	for in, want := range map[string]string{
		"abcdef": "bdef",
		"abczef": "bef",
		"\x00bc": "\x09bc",
		"ab":     "\x01b",
		"abc":    "\x01", // the lookahead of the key has nothing to look at
	} {
		if got, _ := run(sw, 0, in); len(got) != 1 || got[0].frame != want {
			t.Errorf("%q: %v, want %q", in, got, want)
		}
	}
}

func TestValueSet(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"a", 4}, arr{"b", 12})
	s.header("x", false, arr{"v", 8})
	s.extra["parse_vsets"] = arr{obj{"name": "vs", "id": 0, "compressed_bitwidth": 16}}
	s.state("start", arr{extract("h")}, arr{obj{"type": "field", "value": arr{"h", "a"}}, obj{"type": "field", "value": arr{"h", "b"}}},
		arr{obj{"type": "parse_vset", "value": "vs", "mask": nil, "next_state": "x"}, to(nil)[0]})
	s.state("x", arr{extract("x")}, nil, to(nil))
	s.always(s.ingress, "ti", "in", s.action("in", nil, prim("remove_header", hdrv("x"))), nil)
	sw := s.load(t, Config{})
	got, _ := run(sw, 0, "abc")
	expect(t, got, sent{0, "abc"})
	if err := sw.SetValueSet("vs", []ValueMember{{Value: []byte("zz")}, {Value: []byte("ab")}}); err != nil {
		t.Fatal(err)
	}
	got, _ = run(sw, 0, "abc")
	expect(t, got, sent{0, "ab"})
	if err := sw.SetValueSet("vs", []ValueMember{{Value: []byte("abc")}}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if got, err := sw.ValueSet("vs"); err != nil || !slices.EqualFunc(got, []string{"zz", "ab"}, func(a ValueMember, b string) bool { return string(a.Value) == b }) {
		t.Errorf("%v, %v", got, err)
	}
	// A set of another width than the key has no place beside it.
	s.extra["parse_vsets"] = append(s.extra["parse_vsets"].(arr), obj{"name": "wide", "id": 1, "compressed_bitwidth": 300})
	s.listStates[0].(obj)["transitions"] = arr{obj{"type": "parse_vset", "value": "wide", "mask": nil, "next_state": "x"},
		obj{"type": "parse_vset", "value": "vs", "mask": nil, "next_state": "x"}}
	p, err := Load(s.json())
	if want := "p4: parser state start: value set wide has 300 bits, the key 16"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	if err == nil {
		sw, _ = NewSwitch(p, Config{})
		if err := sw.SetValueSet("wide", []ValueMember{{}}); err != nil {
			t.Fatal(err)
		}
		run(sw, 0, "abc")
	}
}

func TestRegistersCountersHash(t *testing.T) {
	s := wired(arr{prim("register_read", fld("meta", "a"), obj{"type": "register_array", "value": "r"}, fld("h", "dst")),
		prim("register_write", obj{"type": "register_array", "value": "r"}, fld("h", "dst"), wrap(exp("+", fld("meta", "a"), hexs("0x1")))),
		prim("count", obj{"type": "counter_array", "value": "c"}, fld("h", "dst")),
		prim("modify_field_with_hash_based_offset", fld("h", "src"), hexs("0x10"), obj{"type": "calculation", "value": "calc"}, hexs("0x8")),
		assign(fld("h", "kind"), fld("meta", "a"))}, nil)
	s.extra["register_arrays"] = arr{obj{"name": "r", "id": 0, "size": 4, "bitwidth": 9}}
	s.extra["counter_arrays"] = arr{obj{"name": "c", "id": 0, "size": 4}}
	s.extra["calculations"] = arr{obj{"name": "calc", "id": 0, "algo": "identity", "input": arr{fld("h", "kind")}}}
	sw := s.load(t, Config{})
	if err := sw.SetRegister("r", 2, []byte{1, 0xff}); err != nil {
		t.Fatal(err)
	}
	got, _ := run(sw, 0, "\x02\x00\x0fxx")
	expect(t, got, sent{0, "\x02\x17\xffxx"})
	got, _ = run(sw, 0, "\x02\x00\x0fxx")
	expect(t, got, sent{0, "\x02\x17\x00xx"})
	got, _ = run(sw, 0, "\x09\x00\x0fxx") // beyond the arrays
	expect(t, got, sent{0, "\x09\x17\x00xx"})
	if v, err := sw.Register("r", 2); err != nil || string(v) != "\x00\x01" {
		t.Errorf("%x %v", v, err)
	}
	if c, err := sw.Count("c", 2); err != nil || c != (Count{2, 10}) {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := sw.Count("c", 4); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := sw.SetRegister("r", 0, []byte{2, 0}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// TestMeter: packets at twice the committed and below the peak rate are yellow
// half of the time; RFC 2698 with full buckets at first.
func TestMeter(t *testing.T) {
	s := wired(arr{prim("execute_meter", obj{"type": "meter_array", "value": "m"}, hexs("0x0"), fld("h", "dst"))}, nil)
	s.extra["meter_arrays"] = arr{obj{"name": "m", "id": 0, "type": "packets", "rate_count": 2, "size": 1, "is_direct": false}}
	sw := s.load(t, Config{})
	colors := func(gap time.Duration, n int) string {
		var b strings.Builder
		for range n {
			sw.Process(sw.now.Add(gap), 0, []byte("abc"), func(_ uint32, f []byte) { b.WriteByte('0' + f[0]) })
		}
		return b.String()
	}
	if got := colors(0, 3); got != "000" {
		t.Errorf("not configured: %s", got)
	}
	if err := sw.SetMeter("m", 0, Rate{1000, 2}, Rate{2000, 4}); err != nil {
		t.Fatal(err)
	}
	if got := colors(0, 6); got != "001122" {
		t.Errorf("a burst: %s", got)
	}
	if got := colors(500*time.Microsecond, 6); got != "101010" {
		t.Errorf("at twice the committed rate: %s", got)
	}
	if err := sw.SetMeter("m", 0, Rate{3000, 2}, Rate{2000, 4}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := sw.SetMeter("m", 0); err != nil {
		t.Fatal(err)
	}
	if got := colors(0, 5); got != "00000" {
		t.Errorf("reset: %s", got)
	}
}

// TestFastMeter: a rate whose tokens since the beginning are more than can be
// counted is no limit, and stays so.
func TestFastMeter(t *testing.T) {
	for _, rate := range []uint64{1, 1 << 40, math.MaxInt64, math.MaxUint64} {
		m := make(ir.Meter, ir.MeterWords(2))
		m.Configure(0, []ir.Rate{{PerSecond: rate, Burst: 2}, {PerSecond: rate, Burst: 2}})
		for hour := range uint64(100) {
			if c := m.Color(hour*3600*ir.Million, 1); c != 0 {
				t.Errorf("%d a second, color %d after %d hours", rate, c, hour)
				break
			}
		}
	}
}

func TestDigest(t *testing.T) {
	s := wired(arr{prim("generate_digest", hexs("0x1"), hexs("0x3"))}, nil)
	s.extra["learn_lists"] = arr{obj{"name": "learn", "id": 3, "elements": arr{fld("h", "src"), std("ingress_port")}}}
	var got []string
	sw := s.load(t, Config{Digest: func(d Digest) { got = append(got, d.Name+string(d.Data)) }})
	run(sw, 0x101, "abc")
	if !slices.Equal(got, []string{"learnb\x01\x01"}) {
		t.Errorf("%q", got)
	}
}

func TestChecksums(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"a", 16}, arr{"sum", 16}, arr{"ok", 8})
	s.state("start", arr{extract("h")}, nil, to(nil))
	s.always(s.ingress, "ti", "in", s.action("in", nil, assign(fld("h", "ok"), std("checksum_error")), assign(fld("h", "a"), hexs("0x1234"))), nil)
	s.extra["calculations"] = arr{obj{"name": "calc", "id": 0, "algo": "csum16", "input": arr{fld("h", "a"), obj{"type": "payload", "value": nil}}}}
	s.extra["checksums"] = arr{obj{"name": "cs", "id": 0, "target": arr{"h", "sum"}, "type": "generic", "calculation": "calc",
		"if_cond": exp("!=", fld("h", "a"), hexs("0x0"))}}
	sw := s.load(t, Config{})
	got, _ := run(sw, 0, "\x00\x01\xff\xfc_\x00\x02")
	expect(t, got, sent{0, "\x12\x34\xed\xc9\x00\x00\x02"})
	got, _ = run(sw, 0, "\x00\x01\xff\xfd_\x00\x02")
	expect(t, got, sent{0, "\x12\x34\xed\xc9\x01\x00\x02"})
	got, _ = run(sw, 0, "\x00\x00\xff\xfd_\x00\x02") // the condition does not ask
	expect(t, got, sent{0, "\x12\x34\xed\xc9\x00\x00\x02"})
}

func TestHashes(t *testing.T) {
	// Check values of the catalogue of parametrised CRC algorithms.
	for name, want := range map[string]uint64{"crc16": 0xbb3d, "crc32": 0xcbf43926, "crcCCITT": 0x29b1,
		"xor16": 0x3132 ^ 0x3334 ^ 0x3536 ^ 0x3738 ^ 0x3900, "xor32": 0x31323334 ^ 0x35363738 ^ 0x39000000,
		"csum16": 0xf62a, "identity": 0x3132333435363738,
		"crc8_custom": 0xf4, "crc16_custom": 0xbb3d, "crc32_custom": 0xcbf43926} {
		if got := algorithm(name)([]byte("123456789")); got != want {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
	}
	for want, c := range map[uint64]CRC{0xcbf43926: {32, 0x04c11db7, 0xffffffff, 0xffffffff, true, true}, 0xe3069283: {32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true},
		0x6c40df5f0b497347: {64, 0x42f0e1eba9ea3693, 0, 0, false, false}, 0x906e: {16, 0x1021, 0xffff, 0xffff, true, true}, 0xa1: {8, 0x31, 0, 0, true, true}} {
		if got := c.hash()([]byte("123456789")); got != want {
			t.Errorf("%+v: %x, want %x", c, got, want)
		}
	}
}

func TestSelector(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"dst", 8}, arr{"flow", 8})
	s.state("start", arr{extract("h")}, nil, to(nil))
	s.action("send", arr{arr{"port", 9}}, assign(std("egress_spec"), param_(0)))
	s.ingress["action_profiles"] = arr{obj{"name": "ap", "id": 0, "max_size": 3, "selector": obj{"algo": "identity", "input": arr{fld("h", "flow")}}}}
	s.table(s.ingress, "t", "exact", arr{keyOf("exact", "h", "dst")}, arr{"send"}, nil, obj{"type": "indirect_ws", "action_profile": "ap"})
	sw := s.load(t, Config{})
	for id := uint32(1); id <= 3; id++ {
		if err := sw.SetMember("ap", id, Action{"send", [][]byte{{byte(10 * id)}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sw.SetMember("ap", 4, Action{"send", [][]byte{{1}}}); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(sw.SetGroup("ap", 7, []GroupMember{{ID: 2}, {ID: 1, Weight: 2}, {ID: 3, Watch: 30, HasWatch: true}}))
	_, err := sw.Insert("t", Entry{Key: []Match{{Value: []byte{1}}}, Group: 7})
	must(err)
	h, err := sw.Insert("t", Entry{Key: []Match{{Value: []byte{2}}}, Member: 3})
	must(err)
	ports := func(dst byte) (all []uint32) {
		for flow := range byte(4) {
			got, _ := run(sw, 0, string([]byte{dst, flow}))
			all = append(all, got[0].port)
		}
		return all
	}
	if got := ports(1); !slices.Equal(got, []uint32{10, 10, 20, 30}) {
		t.Errorf("by weight: %v", got)
	}
	if got := ports(2); !slices.Equal(got, []uint32{30, 30, 30, 30}) {
		t.Errorf("one member: %v", got)
	}
	sw.SetLink(30, false)
	if got := ports(1); !slices.Equal(got, []uint32{10, 10, 20, 10}) {
		t.Errorf("port 30 is down: %v", got)
	}
	must(sw.SetMember("ap", 1, Action{"send", [][]byte{{11}}}))
	if got := ports(1); !slices.Equal(got, []uint32{11, 11, 20, 11}) {
		t.Errorf("modified: %v", got)
	}
	for _, err := range []error{sw.DeleteMember("ap", 3), sw.DeleteGroup("ap", 7)} {
		if !errors.Is(err, ErrInUse) {
			t.Error(err)
		}
	}
	must(sw.SetGroup("ap", 7, nil))
	if got := ports(1); !slices.Equal(got, []uint32{0, 0, 0, 0}) {
		t.Errorf("an empty group: %v", got)
	}
	must(sw.Delete("t", h))
	must(sw.DeleteMember("ap", 3))
	// A group takes memory for its members, whatever their weights.
	heavy := []GroupMember{{ID: 1, Weight: math.MaxUint16}, {ID: 2, Weight: math.MaxUint16}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for id := range uint32(64) {
		must(sw.SetGroup("ap", id+1, heavy))
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / 64; n > 4096 {
		t.Errorf("%d bytes a group", n)
	}
	if got := ports(1); !slices.Equal(got, []uint32{11, 11, 11, 11}) {
		t.Errorf("heavy: %v", got)
	}
}

// TestSharedProfile: tables that share an action profile have copies of its
// actions, by the same names; each goes on behind its own.
func TestSharedProfile(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"dst", 8}, arr{"src", 8})
	s.state("start", arr{extract("h")}, nil, to(nil))
	port, bump := arr{arr{"port", 9}}, assign(fld("h", "src"), wrap(exp("+", fld("h", "src"), hexs("0x1"))))
	send := func() int { return s.action("send", port, assign(std("egress_spec"), param_(0))) }
	first, second := send(), send()
	other := s.action("other", nil)
	s.ingress["action_profiles"] = arr{obj{"name": "ap", "id": 0, "max_size": 3}}
	shared := func(ids ...any) obj { return obj{"type": "indirect", "action_profile": "ap", "action_ids": arr(ids)} }
	s.table(s.ingress, "t1", "exact", arr{keyOf("exact", "h", "dst")}, arr{"send"}, "t2", shared(first))
	s.table(s.ingress, "t2", "exact", arr{keyOf("exact", "h", "dst")}, arr{"send", "other"}, "last", shared(second, other))
	s.always(s.ingress, "last", "bump", s.action("bump", nil, bump), nil)
	sw := s.load(t, Config{})
	if p := sw.Program().Profiles()[0]; len(p.Actions) != 2 || p.Actions[0].Name != "send" || p.Actions[1].Name != "other" {
		t.Errorf("actions %v", p.Actions)
	}
	for id, a := range map[uint32]Action{1: {"send", [][]byte{{7}}}, 2: {Name: "other"}} {
		if err := sw.SetMember("ap", id, a); err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"t1", "t2"} {
			if _, err := sw.Insert(table, Entry{Key: []Match{{Value: []byte{'0' + byte(id)}}}, Member: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, _ := run(sw, 0, "1a")
	expect(t, got, sent{7, "1b"})
	got, _ = run(sw, 0, "2a") // t1 has no such action: it goes on as without one
	expect(t, got, sent{0, "2b"})
}

func TestDirectResourcesOfMisses(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"dst", 8})
	s.state("start", arr{extract("h")}, nil, to(nil))
	s.action("nop", nil)
	s.extra["meter_arrays"] = arr{obj{"name": "dm", "id": 0, "type": "bytes", "rate_count": 2, "is_direct": true, "binding": "t", "result_target": arr{"h", "dst"}}}
	s.table(s.ingress, "t", "exact", arr{keyOf("exact", "h", "dst")}, arr{"nop"}, nil, obj{"with_counters": true, "direct_meters": "dm"})
	sw := s.load(t, Config{})
	// Misses are counted, and metered when the default entry's meter has rates.
	miss := func(want string) {
		t.Helper()
		got, _ := run(sw, 0, "zbc")
		expect(t, got, sent{0, want})
	}
	miss("zbc")
	if r, err := sw.EntryMeter("t", DefaultEntry); err != nil || len(r) != 0 {
		t.Errorf("%v %v", r, err)
	}
	if err := sw.SetEntryMeter("t", DefaultEntry, Rate{1, 4}, Rate{1, 8}); err != nil {
		t.Fatal(err)
	}
	miss("\x00bc")
	miss("\x01bc")
	if c, err := sw.EntryCount("t", DefaultEntry); err != nil || c != (Count{3, 9}) {
		t.Errorf("%v %v", c, err)
	}
	if r, err := sw.EntryMeter("t", DefaultEntry); err != nil || !slices.Equal(r, []Rate{{1, 4}, {1, 8}}) {
		t.Errorf("%v %v", r, err)
	}
	if err := sw.SetEntryCount("t", DefaultEntry, Count{9, 9}); err != nil {
		t.Error(err)
	}
	if err := sw.SetEntryMeter("t", DefaultEntry); err != nil {
		t.Error(err)
	}
	miss("zbc")
	if c, _ := sw.EntryCount("t", DefaultEntry); c != (Count{10, 12}) {
		t.Errorf("%v", c)
	}
	for _, err := range []error{sw.SetEntryCount("x", DefaultEntry, Count{}), sw.SetEntryMeter("x", DefaultEntry), sw.SetEntryMeter("t", DefaultEntry, Rate{1, 1})} {
		if err == nil {
			t.Error("no table, or another meter")
		}
	}
}

func TestIdleTimeoutsAndDirectCounters(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"dst", 8})
	s.state("start", arr{extract("h")}, nil, to(nil))
	s.action("nop", nil)
	s.extra["meter_arrays"] = arr{obj{"name": "dm", "id": 0, "type": "bytes", "rate_count": 2, "is_direct": true, "binding": "t", "result_target": arr{"h", "dst"}}}
	s.table(s.ingress, "t", "exact", arr{keyOf("exact", "h", "dst")}, arr{"nop"}, nil,
		obj{"with_counters": true, "support_timeout": true, "direct_meters": "dm"})
	sw := s.load(t, Config{})
	h, err := sw.Insert("t", Entry{Key: []Match{{Value: []byte("a")}}, Action: Action{Name: "nop"}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := sw.SetEntryMeter("t", h, Rate{1, 4}, Rate{1, 8}); err != nil {
		t.Fatal(err)
	}
	got, _ := run(sw, 0, "abc")
	expect(t, got, sent{0, "\x00bc"})
	got, _ = run(sw, 0, "abc")
	expect(t, got, sent{0, "\x01bc"})
	if c, err := sw.EntryCount("t", h); err != nil || c != (Count{2, 6}) {
		t.Errorf("%v %v", c, err)
	}
	hit := sw.now
	expired := func(after time.Duration) (n int) {
		sw.Advance(hit.Add(after))
		if _, more, err := sw.ExpiredFrom("t", 0, 10, func(x Handle, _ Entry) {
			if x != h {
				t.Errorf("%d expired", x)
			}
			n++
		}); err != nil || more {
			t.Error(more, err)
		}
		return n
	}
	if a, b := expired(time.Second-1), expired(time.Second); a != 0 || b != 1 {
		t.Errorf("expired: %d, %d", a, b)
	}
}

func TestConstEntries(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"dst", 8})
	s.state("start", arr{extract("h")}, nil, to(nil))
	id := s.action("send", arr{arr{"port", 9}}, assign(std("egress_spec"), param_(0)))
	entry := func(prio int, port string, match obj) obj {
		match["match_type"] = "ternary"
		return obj{"priority": prio, "match_key": arr{match}, "action_entry": obj{"action_id": id, "action_data": arr{port}}}
	}
	s.table(s.ingress, "t", "ternary", arr{keyOf("ternary", "h", "dst")}, arr{"send"}, nil, obj{
		"entries":       arr{entry(2, "0x2", obj{"key": "0x60", "mask": "0xf0"}), entry(1, "0x1", obj{"key": "0x61", "mask": "0xff"})},
		"default_entry": obj{"action_id": id, "action_data": arr{"0x3"}, "action_const": true, "action_entry_const": true}})
	sw := s.load(t, Config{})
	for in, port := range map[string]uint32{"a": 1, "b": 2, "z": 3} {
		got, _ := run(sw, 0, in)
		expect(t, got, sent{port, in})
	}
	e := Entry{Key: []Match{{Any: true}}, Priority: 9, Action: Action{"send", [][]byte{{1}}}}
	if _, err := sw.Insert("t", e); !errors.Is(err, ErrConst) {
		t.Error(err)
	}
	if err := sw.SetDefault("t", e); !errors.Is(err, ErrConst) {
		t.Error(err)
	}
	if err := sw.Delete("t", 0); !errors.Is(err, ErrConst) {
		t.Error(err)
	}
}

func TestExitEndsThePipeline(t *testing.T) {
	s := wired(arr{assign(std("egress_spec"), hexs("0x2")), prim("exit")}, arr{assign(fld("h", "dst"), hexs("0x45"))})
	s.always(s.ingress, "after", "late", s.action("late", nil, assign(std("egress_spec"), hexs("0x3"))), nil)
	for _, x := range s.ingress["tables"].(arr) {
		if x.(obj)["name"] == "ti" {
			x.(obj)["next_tables"] = obj{"in": "after"}
		}
	}
	got, _ := run(s.load(t, Config{}), 0, "abc")
	expect(t, got, sent{2, "Ebc"})
}

func TestTrace(t *testing.T) {
	s := wired(arr{prim("log_msg", obj{"type": "string", "value": "a={} b={}"}, obj{"type": "parameters_vector", "value": arr{fld("h", "dst"), hexs("-0x2")}})}, nil)
	p, err := Load(s.json())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	sw, _ := NewSwitch(p, Config{Trace: func(e Event) { got = append(got, p.Describe(e)) }})
	run(sw, 1, "abc")
	want := []string{"3 bytes come in on port 1", "parser", "state start", "ingress", "action in()", "log: a=97 b=-2",
		"egress", "action eg()", "deparser", "3 bytes leave on port 0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestLogMessage: places for values that are not there stay, values without a
// place are left out.
func TestLogMessage(t *testing.T) {
	for format, want := range map[string]string{"a={} b={}": "a=97 b=-2", "a={}!": "a=97!", "plain": "plain", "{}{}{}": "97-2{}", "": ""} {
		s := wired(arr{prim("log_msg", obj{"type": "string", "value": format}, obj{"type": "parameters_vector", "value": arr{fld("h", "dst"), hexs("-0x2")}})}, nil)
		sw := s.load(t, Config{})
		got := "?"
		sw.SetTrace(func(e Event) {
			if e.Kind == EventLog {
				got = e.Text
			}
		})
		if run(sw, 1, "abc"); got != want {
			t.Errorf("%q gives %q, want %q", format, got, want)
		}
	}
}

// TestTraceOfNoAction: what runs behind a table that ran no action is not that
// table's.
func TestTraceOfNoAction(t *testing.T) {
	s := newSource()
	s.header("h", false, arr{"dst", 8})
	s.state("start", arr{extract("h")}, nil, to(nil))
	id := s.action("late", nil)
	s.table(s.ingress, "t", "exact", arr{keyOf("exact", "h", "dst")}, arr{"late"}, "after", nil)
	s.always(s.ingress, "after", "late", id, nil)
	var got []string
	for _, x := range s.load(t, Config{}).Trace(0, 0, 1, []byte("a"), func(uint32, []byte) {}).Copies[0].Steps {
		got = append(got, x.String())
	}
	want := []string{"1 bytes come in on port 1", "parser", "state start", "ingress", "table t misses: h.dst = 0x61", "no action", "action late()",
		"egress", "deparser", "1 bytes leave on port 0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestRandomIsSeeded(t *testing.T) {
	s := wired(arr{prim("modify_field_rng_uniform", fld("h", "dst"), hexs("0x10"), hexs("0x13"))}, nil)
	frames := func(seed uint64) string {
		sw := s.load(t, Config{Seed: seed})
		all := ""
		for range 64 {
			got, _ := run(sw, 0, "abc")
			if c := got[0].frame[0]; c < 0x10 || c > 0x13 {
				t.Fatalf("%x is out of range", c)
			}
			all += got[0].frame[:1]
		}
		return all
	}
	if frames(1) != frames(1) || frames(1) == frames(2) {
		t.Error("the seed does not decide")
	}
}

// TestUnionStack: a parser fills a stack of header unions and looks at the last of
// them; an action asks which are valid, pops one and compares two.
func TestUnionStack(t *testing.T) {
	stackv := obj{"type": "header_union_stack", "value": "us"}
	elem := func(i int) obj { return exp("dereference_union_stack", stackv, hexs("0x%x", i)) }
	b2d := func(e any) obj { return exp("b2d", nil, e) }
	bit := func(n int, e any) obj { return exp("<<", b2d(e), hexs("0x%x", n)) }
	a1 := exp("access_field", exp("access_union_header", elem(1), 0), 0)
	for in, want := range map[string]string{
		// Bit 0: element 0 is valid; 1: element 2; 2: element 1's first header holds 1;
		// 3: elements 0 and 1 are the same. Element 0 goes.
		"\x01\x01\x02\x07\x08xyz": `[15:"\x01\x02\a\bxyz"]`, "\x01\x03xy": `[1:"\x03xy"]`, "\x03xy": `[1:"xy"]`,
	} {
		s := newSource()
		var unions, unionIDs arr
		s.listTypes = append(s.listTypes, obj{"name": "a", "id": s.id(), "fields": arr{arr{"v", 8}}}, obj{"name": "b", "id": s.id(), "fields": arr{arr{"v", 16}}})
		for i := range 4 {
			var ids arr
			for _, m := range []string{"a", "b"} {
				name := fmt.Sprintf("us[%d].%s", i, m)
				ids = append(ids, s.instance(name, m, false))
				s.deparse = append(s.deparse, name)
			}
			unions = append(unions, obj{"name": fmt.Sprintf("us[%d]", i), "id": i, "union_type": "u", "header_ids": ids})
			unionIDs = append(unionIDs, i)
		}
		s.extra["header_union_types"] = arr{obj{"name": "u", "id": 0, "headers": arr{arr{"a", "a"}, arr{"b", "b"}}}}
		s.extra["header_unions"] = unions
		s.extra["header_union_stacks"] = arr{obj{"name": "us", "id": 0, "union_type": "u", "header_union_ids": unionIDs}}
		take := func(m string) arr {
			return arr{obj{"op": "extract", "parameters": arr{obj{"type": "union_stack", "value": arr{"us", m}}}}}
		}
		go_ := func(v, next string) any {
			return obj{"type": "hexstr", "value": v, "mask": nil, "next_state": next}
		}
		s.state("start", take("a"), arr{obj{"type": "union_stack_field", "value": arr{"us", "a", "v"}}},
			arr{go_("0x01", "start"), go_("0x02", "second"), to(nil)[0]})
		s.state("second", take("b"), nil, to(nil))
		port := exp("|", exp("|", bit(0, exp("valid_union", nil, elem(0))), bit(1, exp("valid_union", nil, elem(2)))),
			exp("|", bit(2, exp("==", a1, hexs("0x1"))), bit(3, exp("==", elem(0), elem(1)))))
		id := s.action("go", nil, prim("assign", std("egress_spec"), wrap(port)), prim("pop", stackv, hexs("0x1")))
		s.always(s.ingress, "t", "go", id, nil)
		out, _ := run(s.load(t, Config{}), 1, in)
		if got := fmt.Sprint(out); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
