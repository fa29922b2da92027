package stf

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/p4"
)

func router(t testing.TB) *p4.Program {
	t.Helper()
	b, err := os.ReadFile("../../../p4src/ipv4_router.json")
	if err != nil {
		t.Fatal(err)
	}
	prog, err := p4.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// try runs statements on the router.
func try(t *testing.T, prog *p4.Program, text string) (Result, error) {
	t.Helper()
	all, err := Parse(strings.NewReader(text))
	if err != nil {
		return Result{}, err
	}
	return Run(prog, all, p4.Config{})
}

func TestRefused(t *testing.T) {
	prog := router(t)
	for _, c := range []struct{ text, want string }{
		{"frobnicate 1", "line 1: frobnicate: no such statement"},
		{"\n# x\n  7", `line 3: "7" is no statement`},
		{"packet 1", "line 1: packet: want a frame"},
		{"packet 1 123", "3 digits are no whole number of bytes"},
		{"packet 1 12*4", `'*' is no digit of a frame`},
		{"packet x 12", "want a port"},
		{"expect 1 12$ 3", "data behind $"},
		{"packet 1 12 wait", "is no digit of a frame"},
		{"wait 1", `what is "1"?`},
		{"remove some", "want: remove all"},
		{"add", "want a name"},
		{"add ipv4_lpm dst:", "want a number"},
		{"add ipv4_lpm 9999999999 dst:1 punt()", "9999999999 is too large"},
		{"add ipv4_lpm dst:0x0a**/8 punt()", "* together with"},
		{"add ipv4_lpm dst:1 punt", "want (arguments) behind action punt"},
		{"add ipv4_lpm dst:1 punt(", "want a name"},
		{"add ipv4_lpm dst:1 punt() = 7", "want a label"},
		{"add nothing dst:1 punt()", "the program has no table nothing"},
		{"add ipv4_lpm dst:1 fly()", "the program has no action fly"},
		{"add ipv4_lpm dst:1 ipv4.dst:2 punt()", "line 1: table router_ingress.ipv4_lpm, field ipv4.dst has two values"},
		{"add ipv4_lpm source:1 punt()", "has no field source"},
		{"add ipv4_lpm dst:1 set_next_hop()", "parameter next_hop has no value"},
		{"add ipv4_lpm dst:1 set_next_hop(hop:1)", "has no parameter hop"},
		{"add ipv4_lpm dst:1 set_next_hop(next_hop:1, next_hop:1)", "has two values"},
		{"add ipv4_lpm dst:1 set_next_hop(next_hop:0x10000)", "wider than 16 bits"},
		{"add ipv4_lpm dst:1/33 punt()", "prefix length 33"},
		{"add ipv4_lpm dst:1..2 punt()", "takes a number or a prefix"},
		{"add next_hop next_hop:1/2 forward(dst:1, src:1, port:1)", "an exact match takes a number"},
		{"add ipv4_multicast ingress_port:1/2 replicate(group:1)", "a ternary match takes a number or a mask"},
		{"add ipv4_lpm dst:1 punt()\nadd ipv4_lpm dst:1 punt()", "line 2: "},
		{"setdefault ipv4_lpm punt()", "line 1: "},
		{"check_counter port_rx(1", "want )"},
		{"check_counter port_rx(1) frames == 1", "want packets or bytes"},
		{"check_counter port_rx(1) packets = 1", "want ==, !="},
		{"check_counter port_rx(A) packets == 1", "no entry is called A"},
		{"check_counter port_rx(600) packets == 1", "line 1: "},
		{"check_counter tx(1) packets == 1", "the program has no counter tx"},
		{"check_register r(0) == 1", "the program has no register r"},
		{"mirroring_add 1", "want 2 numbers"},
		{"mirroring_add 1 2 3", `what is "3"?`},
		{"mirroring_get 5", "there is no session 5"},
		{"mc_node_associate 1 0", "there is no node 0"},
		{"mc_node_create 0 1\nmc_node_associate 1 0", "line 2: there is no group 1"},
		{"mc_mgrp_create 1\nmc_mgrp_create 1", "exists already"},
		{"mc_node_create 70000 1", "more than 16 bits"},
		{"meter_set_rates port_meter 1", "want RATE:BURST"},
		{"meter_set_rates port_meter 1 1:x", "want a number"},
		{"meter_set_rates port_meter 1 99999999999:1 1:1", "too much"},
		{"counter_write port_rx 1 2", "want 3 numbers"},
		{"packet 1 " + strings.Repeat("0", maxLine), "line 1: "},
	} {
		_, err := try(t, prog, c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: the error has several lines: %v", c.text, err)
		}
	}
}

// TestFailures: what does not come out as expected is found.
func TestFailures(t *testing.T) {
	const (
		// A packet_out to port 2 of 4 bytes.
		out = "packet 510 0100 aabbccdd\n"
		// The parser needs an Ethernet header.
		frame = "packet 510 0100 020000000001 020000000002 88b5 aabb\n"
		want  = "020000000001 020000000002 88b5 aabb"
	)
	prog := router(t)
	for _, c := range []struct {
		text string
		want []string
	}{
		{frame + "expect 2 " + want + "$", nil},
		{frame + "expect 2 " + want, nil},
		{frame + "expect 2 02******0001", nil},
		{frame + "expect 2", nil},
		{frame + "expect 2 $", []string{"line 2: port 2: frame 1 differs at byte 0"}},
		{frame + "expect 2 " + want[:len(want)-1] + "$", []string{"line 2: port 2: frame 1 differs at byte 15"}},
		{frame + "expect 2 " + want + "0", []string{"line 2: port 2: frame 1 differs at byte 16"}},
		{frame + "expect 2 " + want[:3] + "1", []string{"line 2: port 2: frame 1 differs at byte 1"}},
		{frame, []string{"port 2: nothing expected frame 1"}},
		{frame + "expect 2\nexpect 2", []string{"line 3: port 2: no frame came, want any"}},
		{frame + "expect 3", []string{"port 2: nothing expected", "line 2: port 3: no frame came"}},
		{frame + "expect 2\nno_packet", []string{"line 3: want no frame of the last packet, got 1"}},
		{frame + frame + "expect 2 " + want + "\nexpect 2", nil},
		{frame + "expect 2\ncheck_counter port_rx(510) packets == 2", []string{"line 3: counter port_rx has 1 packets, want == 2"}},
		{frame + "expect 2\ncheck_counter port_rx(510) bytes > 17", nil},
		{frame + "expect 2\ncheck_counter port_rx(510)", []string{"want == 0"}},
		{frame + "expect 2\ncheck_counter port_rx(510) packets != 1", []string{"want != 1"}},
		{frame + "expect 2\ncheck_counter port_rx(510) packets < 1", []string{"want < 1"}},
		{frame + "expect 2\ncheck_counter port_rx(510) packets >= 2", []string{"want >= 2"}},
	} {
		r, err := try(t, prog, c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if len(r.Failures) != len(c.want) {
			t.Errorf("%q: %v, want %q", c.text, r.Failures, c.want)
			continue
		}
		for i, f := range r.Failures {
			if !strings.Contains(f.String(), c.want[i]) {
				t.Errorf("%q: %v, want %q", c.text, f, c.want[i])
			}
		}
	}
	if _, err := try(t, prog, out); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	names := []string{"a.x", "b.x", "b.xx", "c.y", "z"}
	for in, want := range map[string]string{"a.x": "a.x", "y": "c.y", "z": "z", "xx": "b.xx", ".y": "c.y"} {
		if got, err := resolve("table", in, names); got != want || err != nil {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"x", "w", ""} {
		if got, err := resolve("table", in, names); err == nil {
			t.Errorf("%q is %s", in, got)
		}
	}
	info := p4.TableInfo{Name: "t", Keys: []p4.KeyInfo{{Name: "hdr.extra[2].h"}, {Name: "hdr.vlan.$valid$"}, {Name: "data.f1"}}}
	for in, want := range map[string]int{"extra$2.h": 0, "hdr.vlan.valid": 1, "vlan.$valid$": 1, "hdr.vlan": 1, "f1": 2} {
		if got, err := keyField(info, in); got != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", in, got, err, want)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		kind p4.MatchKind
		bits int
		text string
		want p4.Match
	}{
		{p4.Exact, 16, "0x1234", p4.Match{Value: []byte{0x12, 0x34}}},
		{p4.LPM, 32, "0x0a000000/8", p4.Match{Value: []byte{10, 0, 0, 0}, Prefix: 8}},
		{p4.LPM, 32, "0x0a01****", p4.Match{Value: []byte{10, 1, 0, 0}, Prefix: 16}},
		{p4.LPM, 32, "0x0a010203", p4.Match{Value: []byte{10, 1, 2, 3}, Prefix: 32}},
		{p4.LPM, 9, "0x1**", p4.Match{Value: []byte{1, 0}, Prefix: 1}},
		{p4.LPM, 9, "3", p4.Match{Value: []byte{3}, Prefix: 9}},
		{p4.Ternary, 16, "0x25**", p4.Match{Value: []byte{0x25, 0}, Mask: []byte{0xff, 0}}},
		{p4.Ternary, 16, "0x25", p4.Match{Value: []byte{0x25}, Mask: []byte{0xff}}},
		{p4.Ternary, 4, "0b*1*0", p4.Match{Value: []byte{4}, Mask: []byte{5}}},
		{p4.Ternary, 9, "0x1ff", p4.Match{Value: []byte{1, 0xff}, Mask: []byte{1, 0xff}}},
		{p4.Ternary, 9, "5", p4.Match{Value: []byte{5}, Mask: []byte{1, 0xff}}},
		{p4.Ternary, 9, "5&&&0x0f", p4.Match{Value: []byte{5}, Mask: []byte{0x0f}}},
		{p4.Range, 16, "1..0x3ff", p4.Match{Value: []byte{1}, Mask: []byte{3, 0xff}}},
		{p4.Range, 16, "7", p4.Match{Value: []byte{7}, Mask: []byte{7}}},
	} {
		v, err := (&lexer{rest: c.text}).value()
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		got, err := match(p4.KeyInfo{Match: c.kind, Bits: c.bits}, v)
		if err != nil || !cmp.Equal(got, c.want) {
			t.Errorf("%v %s: %v, %v", c.kind, c.text, cmp.Diff(c.want, got), err)
		}
	}
}

// TestPriority: of the entries that match, the highest number wins.
func TestPriority(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prio := rapid.SliceOfNDistinct(rapid.IntRange(0, 1<<31-1), 2, 2, rapid.ID[int]).Draw(t, "priorities")
		b, err := os.ReadFile("../../../p4src/ipv4_router.json")
		if err != nil {
			t.Fatal(err)
		}
		prog, err := p4.Load(b)
		if err != nil {
			t.Fatal(err)
		}
		text := "mc_node_create 0 1\nmc_node_create 0 2\n"
		for i, p := range prio {
			text += fmt.Sprintf("mc_mgrp_create %d\nmc_node_associate %d %d\nadd ipv4_multicast %d hdr.ipv4.dst:0xe0000001 ingress_port:%s replicate(group:%d)\n",
				i+1, i+1, i, p, []string{"0x**7", "7"}[i], i+1)
		}
		winner := 1
		if prio[1] > prio[0] {
			winner = 2
		}
		text += "packet 7 01005e000001 020000000001 0800 4500001400000000400099e9 01000000 e0000001\n"
		text += fmt.Sprintf("expect %d\n", winner)
		all, err := Parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(prog, all, p4.Config{})
		if err != nil || len(r.Failures) > 0 {
			t.Fatalf("%v, %v\n%s", r.Failures, err, text)
		}
	})
}

// FuzzParse: any text is statements or one clear line.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("../../../tests/p4/*/*.stf")
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b[:min(len(b), 2000)]))
	}
	for _, s := range []string{"add t 5 a.b[1]:0x1*&&&2 \"q x\".act(x:1, y:0b1) = A", "expect 1 *f$", "check_counter c($A) bytes <= 5",
		"meter_set_rates m 1 0.5:4 1:0x10", "add t a:1..2 b:0o17/3 c()", "remove all\nno_packet\nwait", "add t \"", "add t a["} {
		f.Add(s)
	}
	prog := router(f)
	f.Fuzz(func(t *testing.T, text string) {
		all, err := Parse(strings.NewReader(text))
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "line ") {
				t.Fatalf("no clear line: %v", err)
			}
			return
		}
		if _, err := Run(prog, all, p4.Config{}); err != nil && !strings.HasPrefix(err.Error(), "line ") {
			t.Fatalf("no clear line: %v", err)
		}
	})
}
