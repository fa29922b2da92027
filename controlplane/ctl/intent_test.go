package ctl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/p4src"
)

// program writes the files of a program of p4src into a folder.
func program(t testing.TB, dir, name string) (info, config string) {
	t.Helper()
	for _, ext := range []string{".p4info.txtpb", ".json"} {
		b, err := p4src.Files.ReadFile(name + ext)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+ext), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return name + ".p4info.txtpb", name + ".json"
}

// intent reads an intent for one device of a program.
func intent(t testing.TB, address, name, entities string) (*Device, error) {
	t.Helper()
	dir := t.TempDir()
	info, config := program(t, dir, name)
	text := "devices:\n  s1:\n    address: " + address + "\n    p4info: " + info + "\n    config: " + config + "\n" + entities
	file := filepath.Join(dir, "intent.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	in, err := ReadIntent(file)
	if err != nil {
		return nil, err
	}
	return in.Devices[0], nil
}

func mustIntent(t testing.TB, address, name, entities string) *Device {
	t.Helper()
	d, err := intent(t, address, name, entities)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const routerEntities = `
    multicast:
      - {group: 7, ports: [1, 2, {port: 3, instance: 1}]}
    clone_sessions:
      - {session: 1, ports: [510], packet_length: 128}
    meters:
      - {meter: port_meter, index: 3, cir: 1000, cburst: 1500, pir: 2000, pburst: 3000}
    members:
      - {profile: ecmp_selector, member: 1, action: choose, params: {next_hop: 1}}
      - {profile: ecmp_selector, member: 2, action: choose, params: {next_hop: 0x2}}
    groups:
      - {profile: ecmp_selector, group: 1, members: [{member: 1}, {member: 2, weight: 3}], max_size: 4}
    entries:
      - {table: router_ingress.router_mac, match: {ingress_port: 1, ethernet.dst: 02:00:00:00:00:01}, action: NoAction}
      - table: ipv4_lpm
        match: {hdr.ipv4.dst: 10.0.0.0/8}
        action: set_next_hop
        params: {next_hop: 1}
      - {table: ipv4_lpm, match: {hdr.ipv4.dst: 0.0.0.0/0}, action: punt}
      - {table: ipv4_lpm, match: {dst: 10.1.0.0/16}, action: set_group}
      - {table: ecmp, match: {hdr.ipv4.dst: 10.1.0.0/16}, group: 1}
      - {table: next_hop, match: {next_hop: 1}, action: forward, params: {dst: 02-00-00-00-00-02, src: "0x020000000001", port: 2}}
      - {table: ipv4_multicast, match: {hdr.ipv4.dst: 224.0.0.5, ingress_port: 0x1&&&0x1}, priority: 10, action: replicate, params: {group: 7}}
      - {table: ipv4_multicast, match: {hdr.ipv4.dst: 224.0.0.6, ingress_port: "*"}, priority: 1, action: replicate, params: {group: 7}}
    counters:
      - {counter: verdicts, index: 1, packets: 5}
`

func TestIntent(t *testing.T) {
	d := mustIntent(t, "127.0.0.1:9559", "ipv4_router", routerEntities)
	var got []string
	for _, e := range d.Entities {
		got = append(got, d.Info.Text(e))
	}
	text := strings.Join(got, "\n")
	for _, want := range []string{
		"multicast group 7 -> ports 1, 2, 3#1",
		"router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 -> router_ingress.set_next_hop(next_hop=1)",
		"router_ingress.ipv4_lpm * -> router_ingress.punt()",
		"router_ingress.next_hop meta.next_hop=1 -> router_ingress.forward(dst=02:00:00:00:00:02, src=02:00:00:00:00:01, port=2)",
		"router_ingress.ecmp hdr.ipv4.dst=10.1.0.0/16 -> group 1",
		"hdr.ipv4.dst=224.0.0.5 standard_metadata.ingress_port=1&&&0x01 priority=10",
		"hdr.ipv4.dst=224.0.0.6 priority=1",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if len(d.Entities) != 15 || d.Pipeline.Cookie == 0 {
		t.Errorf("%d entities, cookie %d", len(d.Entities), d.Pipeline.Cookie)
	}
}

// Every error names the place, what it is about, and the field.
func TestIntentErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"    entries:\n      - {table: nothing, action: a}", "intent.yaml:7: entry: there is no table nothing; there are: router_ingress.router_mac,"},
		{"    entries:\n      - {action: a}", "intent.yaml:7: entry: table is missing"},
		{"    entries:\n      - {table: ipv4_lpm, match: {hdr.ipv4.dst: 10.0.0.1/8}, action: punt}",
			"intent.yaml:7: table router_ingress.ipv4_lpm, entry {hdr.ipv4.dst: 10.0.0.1/8}: field hdr.ipv4.dst: 10.0.0.1/8 has bits behind its prefix: want 10.0.0.0/8"},
		{"    entries:\n      - table: ipv4_lpm\n        action: punt\n        match:\n          hdr.ipv4.dst: 300.0.0.0/8",
			`intent.yaml:10: table router_ingress.ipv4_lpm, entry {hdr.ipv4.dst: 300.0.0.0/8}: field hdr.ipv4.dst: "300.0.0.0" is not a value`},
		{"    entries:\n      - {table: ipv4_lpm, match: {hdr.ipv4.src: 10.0.0.0/8}, action: punt}", "intent.yaml:7: table router_ingress.ipv4_lpm, entry {hdr.ipv4.src: 10.0.0.0/8}: there is no field hdr.ipv4.src; there are: hdr.ipv4.dst"},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: forward}", "there is no action forward; there are: router_ingress.set_next_hop,"},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: set_next_hop}", "entry {dst: 10.0.0.0/8}: action router_ingress.set_next_hop: "},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: set_next_hop, params: {next_hop: 65536}}", "action router_ingress.set_next_hop, parameter next_hop: 65536 needs 17 bits, the field has 16"},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: set_next_hop, params: {hop: 1}}", "there is no parameter hop; there are: next_hop"},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: no_route}", "action router_ingress.no_route is for the default entry only"},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: punt, priority: 5}", "priority"},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}}", "action is missing"},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: punt, member: 1}", "want one of action, member, group and actions"},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, acton: punt}", "entry: acton is not known; there are: action,"},
		{"    entries:\n      - {table: ipv4_multicast, match: {dst: 224.0.0.5}, action: replicate, params: {group: 7}}", "entry {dst: 224.0.0.5}: entries need a priority"},
		{"    entries:\n      - {table: router_mac, match: {ingress_port: 1}, action: NoAction}", "entry {ingress_port: 1}: field hdr.ethernet.dst is missing"},
		{"    entries:\n      - {table: router_mac, match: {ingress_port: 512, dst: 02:00:00:00:00:01}, action: NoAction}", "field standard_metadata.ingress_port: 512 needs 10 bits, the field has 9"},
		{"    entries:\n      - {table: router_mac, match: {ingress_port: 10.0.0.1, dst: 02:00:00:00:00:01}, action: NoAction}", "10.0.0.1 has 32 bits, the field has 9"},
		{"    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: punt}\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: refuse}", "intent.yaml:8: table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 -> router_ingress.refuse() is there twice: see line 7"},
		{"    entries:\n      - {table: ecmp, match: {dst: 10.0.0.0/8}, group: 1}", "intent.yaml:7: table router_ingress.ecmp hdr.ipv4.dst=10.0.0.0/8 -> group 1: there is no group 1 of action profile router_ingress.ecmp_selector"},
		{"    entries:\n      - {table: ipv4_lpm, default: true, action: punt}", "entry default: it is constant"},
		{"    multicast:\n      - {group: 0, ports: [1]}", "multicast group 0"},
		{"    multicast:\n      - {group: 1, ports: [1, 1]}", "twice"},
		{"    meters:\n      - {meter: port_meter, index: 512, cir: 1}", "512"},
		{"    meters:\n      - {meter: port_meter, index: x}", `intent.yaml:7: meter: index: "x" is not a value`},
		{"    entries:\n      - {table: ipv4_lpm, match: 5, action: punt}", "match: want a map, there is a value"},
		{"    entries: 5", "entries: want a list, there is a value"},
		{"    leave: [nothing]", "leave: there is no table nothing"},
		{"    leave: [ipv4_lpm]\n    entries:\n      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: punt}", "its table is to be left"},
		{"    nonsense: 1", "intent.yaml:6: device s1: nonsense is not known"},
		{"    entries: [", "intent.yaml:"},
		{"    device_id: 0", "device_id is 0"},
		{"    device_id: 1\n    device_id: 2", "device_id"},
		{"  s2: {address: 127.0.0.1:9559, p4info: ipv4_router.p4info.txtpb}", "devices s1 and s2 are the same"},
		{"  s2: {address: a, p4info: none.txtpb}", "intent.yaml:6: device s2: open"},
		{"  s2: {address: a, p4info: ipv4_router.json}", "no P4Info"},
		{"  s2: {p4info: a}", "address is missing"},
		{"  s2: {address: a}", "p4info is missing"},
		{"  s2: *x", `intent.yaml:6: there is no anchor "x" above`},
	} {
		_, err := intent(t, "127.0.0.1:9559", "ipv4_router", c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

func TestDigestsInIntents(t *testing.T) {
	d := mustIntent(t, "127.0.0.1:1", "l2_bridge", `
    digests: [{digest: learn_t, max_timeout: 100ms, max_list: 10, ack_timeout: 1s}]
    leave: [smac, dmac]
    entries: [{table: vlan_member, default: true, action: refuse_member}]
`)
	if len(d.Entities) != 2 || len(d.Leave) != 2 || d.Entities[0].GetDigestEntry().Config.MaxTimeoutNs != 1e8 {
		t.Errorf("%v", d.Entities)
	}
}

// connect opens a session to a fake device and loads d's program there.
func connect(t *testing.T, f *ctltest.Server, name, entities string) (*Session, *Device) {
	t.Helper()
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	d := mustIntent(t, at, name, entities)
	s := open(t, &Dialer{}, at, 1, options())
	if err := s.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	return s, d
}

func apply(t *testing.T, s *Session, d *Device) *Outcome {
	t.Helper()
	diff, err := s.Compare(within(t), d, LeaveValues)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Apply(within(t), diff, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestApplyIsIdempotent(t *testing.T) {
	f := ctltest.New(1)
	s, d := connect(t, f, "ipv4_router", routerEntities)
	if o := apply(t, s, d); !o.Loaded || o.Done != 15 || o.Err() != nil {
		t.Errorf("first: %+v %v", o, o.Err())
	}
	writes := f.Writes
	if o := apply(t, s, d); o.Loaded || o.Done != 0 || f.Writes != writes {
		t.Errorf("second: %+v", o)
	}
	// What others add and change goes; a route that they took comes back.
	err := s.Write(within(t), 0,
		&p4v1.Update{Type: p4v1.Update_INSERT, Entity: entity(t, d.Info, "{table: ipv4_lpm, match: {dst: 11.0.0.0/8}, action: refuse}")},
		&p4v1.Update{Type: p4v1.Update_MODIFY, Entity: entity(t, d.Info, "{table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: refuse}")},
		&p4v1.Update{Type: p4v1.Update_DELETE, Entity: entity(t, d.Info, "{table: next_hop, match: {next_hop: 1}, action: forward, params: {dst: 1, src: 1, port: 1}}")},
	)
	if err != nil {
		t.Fatal(err)
	}
	diff, err := s.Compare(within(t), d, LeaveValues)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range diff.Changes {
		lines = append(lines, c.Text(d.Info))
	}
	want := []string{
		"~ table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 -> router_ingress.set_next_hop(next_hop=1) (was: router_ingress.refuse())",
		"+ table router_ingress.next_hop meta.next_hop=1 -> router_ingress.forward(dst=02:00:00:00:00:02, src=02:00:00:00:00:01, port=2)",
		"- table router_ingress.ipv4_lpm hdr.ipv4.dst=11.0.0.0/8 -> router_ingress.refuse()",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if diff.Summary() != "1 to insert, 1 to modify, 1 to delete, 12 as they shall be" {
		t.Error(diff.Summary())
	}
	if o := apply(t, s, d); o.Done != 3 || o.Err() != nil {
		t.Errorf("third: %+v", o)
	}
}

// entity reads one table entry.
func entity(t *testing.T, info *p4info.Info, text string) *p4v1.Entity {
	t.Helper()
	e, err := ParseEntity(info, p4v1.Update_UNSPECIFIED, text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestDefaultsGoBack(t *testing.T) {
	f := ctltest.New(1)
	s, d := connect(t, f, "l2_bridge", "    entries: [{table: vlan_member, default: true, action: refuse_member}, {table: port_vlan, default: true, action: set_vid, params: {vid: 7}}]")
	if o := apply(t, s, d); o.Done != 2 {
		t.Errorf("%+v", o)
	}
	e := *d
	e.Entities = d.Entities[:1]
	diff, err := s.Compare(within(t), &e, LeaveValues)
	if err != nil || len(diff.Changes) != 1 {
		t.Fatalf("%+v %v", diff, err)
	}
	if got := diff.Changes[0].Text(d.Info); got != "~ table bridge_ingress.port_vlan default -> bridge_ingress.set_vid(vid=1), the program's (was: bridge_ingress.set_vid(vid=7))" {
		t.Error(got)
	}
	if o := apply(t, s, &e); o.Done != 1 {
		t.Errorf("%+v", o)
	}
	if o := apply(t, s, &e); o.Done != 0 {
		t.Errorf("%+v", o)
	}
}

func TestFailedUpdatesAreTold(t *testing.T) {
	f := ctltest.New(1)
	f.Refuse = func(u *p4v1.Update) *p4v1.Error {
		if p := u.Entity.GetTableEntry().GetAction().GetAction().GetParams(); len(p) == 3 {
			return ctltest.Failed(codes.ResourceExhausted, "no room")
		}
		return nil
	}
	s, d := connect(t, f, "ipv4_router", routerEntities)
	o := apply(t, s, d)
	if o.Done != 14 || len(o.Failed) != 1 || !strings.Contains(o.Failed[0].Text(d.Info), "insert table router_ingress.next_hop meta.next_hop=1 -> router_ingress.forward(") ||
		!strings.HasSuffix(o.Failed[0].Text(d.Info), "ResourceExhausted: no room") {
		t.Errorf("%+v %v", o, o.Err())
	}
	f.Lock()
	f.Refuse = nil
	f.Unlock()
	if o := apply(t, s, d); o.Done != 1 || o.Err() != nil {
		t.Errorf("%+v", o)
	}
}

// What cannot be read is written, and written again as a modification.
func TestUnreadableKinds(t *testing.T) {
	f := ctltest.New(1)
	f.Hidden = "Gm"
	s, d := connect(t, f, "ipv4_router", routerEntities)
	for n, want := range []int{15, 2, 2} {
		diff, err := s.Compare(within(t), d, LeaveValues)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 && (len(diff.Unread) != 2 || diff.Unread[0].What != "multicast groups") {
			t.Errorf("unread: %+v", diff.Unread)
		}
		o, err := s.Apply(within(t), diff, Limits{})
		if err != nil || o.Err() != nil || o.Done != want {
			t.Errorf("%d: %+v %v %v", n, o, err, o.Err())
		}
	}
	// What the device gives as a reason is a comment of one line in a dump.
	var b strings.Builder
	if _, err := s.Dump(within(t), d.Info, "p4info", "config", &b); err != nil || !strings.Contains(b.String(), "# not shown by the device: meters (no reads of this kind (Unimplemented))\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestOtherPrograms(t *testing.T) {
	f := ctltest.New(1)
	s, bridge := connect(t, f, "l2_bridge", "")
	apply(t, s, bridge)
	router := mustIntent(t, bridge.Address, "ipv4_router", routerEntities)
	diff, err := s.Compare(within(t), router, LeaveValues)
	if err != nil || diff.Load != "the device has another" || len(diff.Changes) != 15 {
		t.Fatalf("%+v %v", diff, err)
	}
	router.Pipeline = nil
	if _, err := s.Compare(within(t), router, LeaveValues); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("%v", err)
	}
	f.Restart(1)
	until(t, s, "primary again", func(s Status) bool { return s.Losses == 1 && s.State == Primary })
	if _, err := s.Compare(within(t), router, LeaveValues); !errors.Is(err, ErrNoPipeline) {
		t.Errorf("%v", err)
	}
	// A program that somebody else loaded, without our cookie, is the same.
	other := *bridge.Pipeline
	other.Cookie = 5
	if err := s.SetPipeline(within(t), p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, &other); err != nil {
		t.Fatal(err)
	}
	if diff, err := s.Compare(within(t), bridge, LeaveValues); err != nil || diff.Load != "" {
		t.Errorf("%+v %v", diff, err)
	}
}
