package registry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/dag"
)

// TestLists: an argument that is a list may be one in YAML, of texts or of entries of its table. It means what its short form means.
func TestLists(t *testing.T) {
	for _, c := range []struct{ kind, arg, list, short, more string }{
		{"firewall", "rules", `[{action: allow, in: a}, {action: deny, dst: 10.0.0.0/8, proto: tcp, dport: 80-90, priority: 99}]`,
			"allow+in:a+prio:20;deny+dst:10.0.0.0/8+proto:tcp+dport:80-90+prio:99", ""},
		{"firewall", "rules", `["allow+in:a", "deny+proto:udp"]`, "allow+in:a\ndeny+proto:udp", ""},
		{"firewall", "rules6", `[{action: allow, proto: icmp}]`, "allow+proto:icmp+prio:10", ""},
		{"balance", "backends", `[{backend: 10.0.0.1, action: up, mac: "02:00:00:00:00:01", weight: 1}, {backend: "fd00::1", action: drain, mac: "02:00:00:00:00:02", weight: 2}]`,
			"10.0.0.1@02:00:00:00:00:01+fd00::1@02:00:00:00:00:02*2/drain", "vip: [10.0.0.9, \"fd00::9\"], port: 80, mac: \"02:00:00:00:00:64\", "},
		{"vxlan", "tenants", `[{vid: 100, vni: 5000}, {vid: 200, vni: 5001}]`, "100:5000+200:5001",
			"local: 10.0.0.1, remote: 10.0.0.2, local-mac: \"02:00:00:00:00:01\", remote-mac: \"02:00:00:00:00:02\", "},
		{"clover-steer", "only", `[{action: leave, key: 5, ipv4.dst: 10.0.0.1, priority: 7}]`, "", ""},
		{"clover-steer", "servers", "[10.0.0.1, 10.0.0.2]", "10.0.0.1\n10.0.0.2", ""},
		{"swordbox", "servers", `["10.0.0.1=fd00::1", 10.0.0.2]`, "10.0.0.1=fd00::1\n10.0.0.2", ""},
		{"swordbox", "track", "[{va: 0x1000..0x1fff}]", "1000+1000#10", ""},
		{"swordbox", "track", "[1000+1000, 3000+8]", "1000+1000\n3000+8", ""},
		{"napt", "private", "[10.0.0.0/8, 192.168.0.0/16]", "10.0.0.0/8\n192.168.0.0/16", "public: [203.0.113.1], "},
		{"mirror", "match", `["src:10.0.0.0/8", "proto:6"]`, "src:10.0.0.0/8\nproto:6", ""},
	} {
		spec := fmt.Sprintf("apps:\n  x: {kind: %s, args: {%s%s: %s}}\n", c.kind, c.more, c.arg, c.list)
		s, err := graph.ParseSpec([]byte(spec))
		if err == nil {
			err = s.Validate(Kinds(), nil)
		}
		if err != nil {
			t.Errorf("%s\n%v", spec, err)
			continue
		}
		args := s.Apps["x"].Args
		if got := args[c.arg]; got != c.short && c.short != "" {
			t.Errorf("%s: %s is %q, not %q", c.kind, c.list, got, c.short)
		}
		for _, k := range Kinds() {
			if k.Name == c.kind {
				if _, err := k.New(graph.Env{Name: "x", Workers: 1, Asked: true, Share: func(f func() any) any { return f() }}, args); err != nil {
					t.Errorf("%s: %v", c.kind, err)
				}
			}
		}
	}
}

// TestBadLists: an error is one line, and says where.
func TestBadLists(t *testing.T) {
	for list, want := range map[string]string{
		"rules: [{action: allow, in: a}, {action: permit}]": "spec:5:40: app x: table acl has no action permit; it has allow, deny and limit",
		"rules: [{in: a}]":                                       "spec:5:16: app x: table acl: action: is missing",
		"rules: [{action: allow, in: c}]":                        "in=c: want a, b, or a number of 1 bit",
		"rules: [{action: allow, colour: red}]":                  "table acl has no field colour; it has in, src, dst, proto, sport, dport, rate, burst, priority and action",
		"rules: [{action: allow, dst: 10.0.0.0/40}]":             "want a prefix length from 0 to 32",
		"rules: [{action: allow, priority: -1}]":                 "priority: -1: want a number above 0",
		"conns: [{a: b}]":                                        "conns= is no table: want a text, or a list of texts",
		"rules: [allow, {action: deny}]":                         "want a text",
		"rules: {action: deny}":                                  "want a text",
		"rules: [[allow]]":                                       "want a text",
		"rules: [\"allow\\nallow\"]":                             "item 1 of a list has several lines",
		"rules: [{action: allow, dst: 10.0.0.1, dst: 10.0.0.2}]": "dst",
		"rules: [{action: allow, in: a, priority: 7}, {action: allow, in: a, priority: 7}]": "there is another with the same conditions and priority",
	} {
		spec := "# a spec\n\napps:\n  x: {kind: firewall, args: {\n      " + list + "}}\n"
		s, err := graph.ParseSpec([]byte(spec))
		if err == nil {
			err = s.Validate(Kinds(), nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, not %q", list, err, want)
		}
	}
}

// TestListsOfTasks: so it is with the arguments of a board's tasks.
func TestListsOfTasks(t *testing.T) {
	const text = `
regions: {count: 1, area: 1}
tasks:
  fw: {kind: firewall, args: {rules: [{action: allow, in: a}], rules6: [%s]}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: fw}]
rules: [{match: all, dag: 1}]
`
	for rule, want := range map[string]string{
		"{action: allow, proto: udp}": "",
		"{action: let}":               "task fw: table acl_ipv6 has no action let; it has allow, deny and limit",
	} {
		s, err := dag.Parse(fmt.Appendf(nil, text, rule))
		if err != nil {
			t.Fatal(err)
		}
		d, err := snic.Check(s, Functions(), nil)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, not %q", err, want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Tasks[0].Args["rules"] + ", " + d.Tasks[0].Args["rules6"]; got != "allow+in:a+prio:10, allow+proto:udp+prio:10" {
			t.Errorf("%q", got)
		}
	}
}
