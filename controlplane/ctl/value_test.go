package ctl

import (
	"os"
	"testing"

	"google.golang.org/protobuf/proto"

	p4configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/yaml"
)

func TestMatches(t *testing.T) {
	type kind = p4configv1.MatchField_MatchType
	for _, c := range []struct {
		kind kind
		bits int
		text string
		want string // as P4Info writes it; "" is an error, "*" anything
	}{
		{p4configv1.MatchField_EXACT, 9, "5", "5"}, {p4configv1.MatchField_EXACT, 9, "*", ""}, {p4configv1.MatchField_EXACT, 9, "5/9", ""},
		{p4configv1.MatchField_LPM, 32, "10.0.0.0/8", "10.0.0.0/8"}, {p4configv1.MatchField_LPM, 32, "10.0.0.1", "10.0.0.1/32"}, {p4configv1.MatchField_LPM, 32, "0/0", "*"},
		{p4configv1.MatchField_LPM, 32, "*", "*"}, {p4configv1.MatchField_LPM, 32, "10.0.0.0/33", ""}, {p4configv1.MatchField_LPM, 32, "10.0.0.0/-1", ""}, {p4configv1.MatchField_LPM, 32, "10.0.0.0/x", ""},
		{p4configv1.MatchField_TERNARY, 32, "10.0.0.0/8", "10.0.0.0&&&0xff000000"}, {p4configv1.MatchField_TERNARY, 32, "10.0.0.1", "10.0.0.1&&&0xffffffff"},
		{p4configv1.MatchField_TERNARY, 32, "10.0.0.1 &&& 255.0.0.255", "10.0.0.1&&&0xff0000ff"}, {p4configv1.MatchField_TERNARY, 32, "1&&&2", ""}, {p4configv1.MatchField_TERNARY, 32, "0&&&0", "*"},
		{p4configv1.MatchField_TERNARY, 32, "1&&&x", ""}, {p4configv1.MatchField_RANGE, 16, "80..90", "80..90"}, {p4configv1.MatchField_RANGE, 16, "80", "80..80"},
		{p4configv1.MatchField_RANGE, 16, "90..80", ""}, {p4configv1.MatchField_RANGE, 16, "0..65535", "*"}, {p4configv1.MatchField_RANGE, 16, "0..65536", ""},
		{p4configv1.MatchField_OPTIONAL, 16, "*", "*"}, {p4configv1.MatchField_OPTIONAL, 16, "7", "7"},
	} {
		f := &p4info.Field{ID: 1, Name: "ip", Type: p4info.Type{Bits: c.bits}, Match: c.kind}
		m, err := parseMatch(f, c.text)
		got := ""
		switch {
		case err == nil && m == nil:
			got = "*"
		case err == nil:
			got = f.MatchText(m)
		}
		if got != c.want {
			t.Errorf("%v %q: %q %v, want %q", c.kind, c.text, got, err, c.want)
		}
	}
}

func TestReadP4Info(t *testing.T) {
	dir := t.TempDir()
	b, err := proto.Marshal(everythingInfo(t).Proto)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"/x.bin": b, "/x.txtpb": []byte(everything)} {
		if err := os.WriteFile(dir+name, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if m, err := ReadP4Info(dir + name); err != nil || len(m.Tables) != 4 {
			t.Errorf("%s: %d tables, %v", name, len(m.GetTables()), err)
		}
	}
}

// FuzzIntent: any text is refused in one or more lines, or gives entities that are
// the same after they were written and read again.
func FuzzIntent(f *testing.F) {
	info := everythingInfo(f)
	for _, s := range []string{
		"entries: [{table: all, match: {hdr.a: 1, ip6: '::/0', d: 1..2, ip: 10.0.0.1, hdr.f: 1&&&3}, priority: 1, action: set, params: {mac: 02:00:00:00:00:01, n: 0x1}, idle_timeout: 1s}]",
		"entries: [{table: profiled, match: {x: 1}, actions: [{action: set, params: {mac: 1, n: 1}, weight: 2, watch_port: 3}]}]\nmulticast: [{group: 1, ports: [1, {port: 2, instance: 3}]}]",
		"members: [{profile: sel, member: 1, action: set, params: {mac: 1, n: 2}}]\ngroups: [{profile: sel, group: 1, members: [{member: 1, weight: 2}]}]",
		"registers: [{register: r, index: 1, value: 0xff}]\ncounters: [{counter: c, index: 0, packets: 1, bytes: 2}]\nmeters: [{meter: m, index: 1, cir: 1, cburst: 2, pir: 3, pburst: 4}]",
		"digests: [{digest: dig, max_timeout: 1ms, max_list: 1, ack_timeout: 0s}]\nvalue_sets: [{value_set: pvs, members: [{field: 1}]}]\nclone_sessions: [{session: 1, ports: [1]}]",
		"entries: &a [*a]", "a: {b: ", "? x\n: y",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		root, err := yaml.Tree("f", []byte(text))
		if err != nil || root.Kind != yaml.Mapping {
			return
		}
		d := &Device{Info: info}
		lists := make([][]*yaml.Node, len(sections))
		known := map[string]func(*yaml.Node) error{}
		for i, s := range sections {
			known[s.name] = yaml.Each(func(n *yaml.Node) error { lists[i] = append(lists[i], n); return nil })
		}
		if root.Fields("device", known) != nil || d.readSections(lists) != nil {
			return
		}
		for _, e := range d.Entities {
			name, line := Line(info, e)
			n, err := yaml.Tree("g", []byte(line))
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			s := sections[sectionOf(p4info.Of(e).Kind)]
			again, err := s.read(info, p4v1.Update_UNSPECIFIED, n)
			if err != nil || s.name != name || !proto.Equal(e, again) {
				t.Fatalf("%s became %s (%v)", info.Text(e), line, err)
			}
		}
	})
}
