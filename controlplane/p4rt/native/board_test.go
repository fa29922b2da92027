package native_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/native"
	"github.com/quillon/quillon/nf/aead"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/police"
	"github.com/quillon/quillon/snic"
)

// empty is a board on which nothing is deployed, and a session with it.
type empty struct {
	*graphtest.Test
	t       *testing.T
	dev     *native.Device
	address string
	info    *p4info.Info
	s       *ctl.Session
}

func newEmpty(t *testing.T, roles map[string]p4rt.Role) *empty {
	t.Helper()
	kinds := []graph.Kind{*firewall.Kind(), *police.Kind(), *dummy.Kind(), *aead.Kind()}
	kinds = append([]graph.Kind{*snic.Kind(kinds...)}, kinds...)
	x := &empty{t: t, Test: graphtest.NewOuter(t, kinds, graph.Args{"deployment": "regions: {count: 4, area: 4}"})}
	var err error
	if x.dev, err = native.New(x.Inst); err != nil {
		t.Fatal(err)
	}
	server := p4rt.New(p4rt.Config{Roles: roles})
	if err := server.Add(1, x.dev); err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(p4rt.Options(nil)...)
	server.Register(g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		server.Close()
	})
	x.address = l.Addr().String()
	x.s = x.open("")
	p, err := x.s.GetPipeline(t.Context(), p4v1.GetForwardingPipelineConfigRequest_ALL)
	if err != nil {
		t.Fatal(err)
	}
	if x.info, err = p4info.New(p.Info); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *empty) open(role string) *ctl.Session {
	x.t.Helper()
	s, err := ctl.Open(&ctl.Dialer{}, ctl.Target{Name: "nic", Address: x.address, DeviceID: 1, Role: role}, ctl.Options{Clock: clock.NewWall()})
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(s.Close)
	if err := s.Ready(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
	return s
}

// intent is what a file says the board shall hold.
func (x *empty) intent(entries string) *ctl.Device {
	x.t.Helper()
	dir := x.t.TempDir()
	text, err := prototext.Marshal(x.info.Proto)
	if err != nil {
		x.t.Fatal(err)
	}
	file := filepath.Join(dir, "nic.yaml")
	for name, b := range map[string]string{
		"nic.p4info.txtpb": string(text),
		"nic.yaml":         fmt.Sprintf("devices:\n  nic:\n    address: %s\n    p4info: nic.p4info.txtpb\n    entries:\n%s", x.address, entries),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b), 0o600); err != nil {
			x.t.Fatal(err)
		}
	}
	in, err := ctl.ReadIntent(file)
	if err != nil {
		x.t.Fatal(err)
	}
	return in.Devices[0]
}

// apply brings the board to what a device shall hold.
func (x *empty) apply(d *ctl.Device) {
	x.t.Helper()
	diff, err := x.s.Compare(x.t.Context(), d, ctl.LeaveValues)
	if err != nil {
		x.t.Fatal(err)
	}
	o, err := x.s.Apply(x.t.Context(), diff, ctl.Limits{})
	if err == nil {
		err = o.Err()
	}
	if err != nil {
		x.t.Fatal(err)
	}
	if diff, err = x.s.Compare(x.t.Context(), d, ctl.LeaveValues); err != nil {
		x.t.Fatal(err)
	}
	for _, c := range diff.Changes {
		x.t.Errorf("a change is left: %s", c.Text(x.info))
	}
}

// updates are those that insert entries, a line each.
func (x *empty) updates(op p4v1.Update_Type, entries string) []*p4v1.Update {
	x.t.Helper()
	var out []*p4v1.Update
	for line := range strings.SplitSeq(strings.TrimSpace(entries), "\n") {
		e, err := ctl.ParseEntity(x.info, op, strings.TrimPrefix(strings.TrimSpace(line), "- "))
		if err != nil {
			x.t.Fatal(err)
		}
		out = append(out, &p4v1.Update{Type: op, Entity: e})
	}
	return out
}

func (x *empty) deployment() string { return x.Inst.Spec().Apps[graphtest.App].Args["deployment"] }

// frames are how many have come to a task.
func (x *empty) frames(task string) (n uint64) {
	for _, c := range x.Inst.Counters() {
		if c.Node == graphtest.App+"/"+task && c.Group == "frames" && c.Name == "in" {
			n = c.Value
		}
	}
	return n
}

// datagram is one of UDP from 10.0.0.src to a port.
func datagram(src byte, to uint16) []byte {
	b := make([]byte, 12, 64)
	b = binary.BigEndian.AppendUint16(b, hdr.EtherIPv4)
	b = append(b, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, hdr.ProtoUDP, 0, 0, 10, 0, 0, src, 10, 0, 1, 1)
	sum := hdr.Checksum(b[14:34], 0)
	binary.BigEndian.PutUint16(b[24:], sum)
	b = binary.BigEndian.AppendUint16(b, 1000+uint16(src))
	b = binary.BigEndian.AppendUint16(b, to)
	return append(b, 0, 8, 0, 0)
}

const whole = `
      - {table: rules, match: {hdr.ipv4.src: 10.0.0.0/8}, priority: 5, action: to_dag, params: {uid: 7}}
      - {table: rules, priority: 1, action: refuse}
      - {table: dags, match: {uid: 7}, action: go, params: {tenant: alice, run: "meter -> fw -> wait"}}
      - {table: dags, match: {uid: 8}, action: go, params: {tenant: bob, run: "fw -> wait; meter"}}
      - {table: tenants, match: {tenant: alice}, action: weight, params: {weight: 0.3}}
      - {table: tenants, match: {tenant: bob}, action: weight, params: {weight: 1}}
      - {table: tasks, match: {task: wait}, action: run, params: {kind: dummy, args: "", more: {latency: 20us, area: 1, remote: false, credits: 3}}}
      - {table: tasks, match: {task: fw}, action: run, params: {kind: firewall, args: {default: deny, rules: "allow+proto:udp+dport:53"}, more: ""}}
      - {table: tasks, match: {task: meter}, action: run, params: {kind: police, args: {cir: 1Gbit}, more: {reads: "length,ip-addresses", drops: true}}}
`

// A board that begins empty is set up by P4Runtime, by a file as by one request, whatever
// the order in it; traffic takes the chain; and a dump restores it on another one.
func TestBoard(t *testing.T) {
	x := newEmpty(t, nil)
	if r := x.Push("p0", datagram(1, 53)); len(r.Out["p1"]) != 1 {
		t.Fatal("an empty board does not switch")
	}
	x.apply(x.intent(whole))
	x.Advance(20 * time.Millisecond)
	x.Push("p0", datagram(1, 53), datagram(2, 80))
	r := x.Advance(10 * time.Millisecond)
	if len(r.Out["p1"]) != 1 || x.frames("meter") != 2 || x.frames("fw") != 2 || x.frames("wait") != 1 {
		t.Errorf("%d came out; %d, %d and %d to the tasks", len(r.Out["p1"]), x.frames("meter"), x.frames("fw"), x.frames("wait"))
	}

	dir := t.TempDir()
	file := filepath.Join(dir, "dump.yaml")
	n, err := x.s.Save(t.Context(), file, filepath.Join(dir, "p.txtpb"), filepath.Join(dir, "p.json"))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(file)
	if n < 9 {
		t.Errorf("%d entities were saved:\n%s", n, text)
	}
	y := newEmpty(t, nil)
	in, err := ctl.ReadIntent(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	y.apply(in.Devices[0])
	z := newEmpty(t, nil)
	if err := z.s.Write(t.Context(), p4v1.WriteRequest_DATAPLANE_ATOMIC, z.updates(p4v1.Update_INSERT, whole)...); err != nil {
		t.Fatal(err)
	}
	for _, other := range []*empty{y, z} {
		diff, err := other.s.Compare(t.Context(), x.intent(whole), ctl.LeaveValues)
		if err != nil || len(diff.Changes) > 0 {
			t.Errorf("%v, %d changes to the first board:\n%s", err, len(diff.Changes), other.deployment())
		}
	}
	z.Advance(20 * time.Millisecond)
	z.Push("p0", datagram(1, 53))
	if r := z.Advance(10 * time.Millisecond); len(r.Out["p1"]) != 1 || z.frames("wait") != 1 {
		t.Error("frames do not take the chain that came in one request")
	}

	// Nothing is left when all of it goes.
	if err := z.s.Write(t.Context(), p4v1.WriteRequest_ROLLBACK_ON_ERROR, z.updates(p4v1.Update_DELETE, whole)...); err != nil {
		t.Fatal(err)
	}
	if r := z.Push("p0", datagram(1, 80)); len(r.Out["p1"]) != 1 {
		t.Error("a board that is empty again does not switch")
	}
}

// Tasks come, change and go by P4Runtime between frames: none of these is lost, and those
// of a DAG find its tasks as they are then.
func TestBoardUnderTraffic(t *testing.T) {
	x := newEmpty(t, nil)
	x.apply(x.intent(whole))
	x.Advance(20 * time.Millisecond)
	sent, came := 0, 0
	push := func() {
		for src := range byte(8) {
			came += len(x.Push("p0", datagram(1+src, 53)).Out["p1"])
			sent++
		}
		came += len(x.Advance(100 * time.Microsecond).Out["p1"])
	}
	do := func(op p4v1.Update_Type, entries string) {
		t.Helper()
		push()
		if err := x.s.Write(t.Context(), p4v1.WriteRequest_DATAPLANE_ATOMIC, x.updates(op, entries)...); err != nil {
			t.Fatal(err)
		}
		push()
	}
	for n := range 20 {
		do(insert, fmt.Sprintf(`{table: tasks, match: {task: t%d}, action: run, params: {kind: dummy, args: "", more: {latency: 5us}}}`, n))
		do(modify, fmt.Sprintf(`{table: dags, match: {uid: 7}, action: go, params: {tenant: alice, run: "fw -> t%d"}}`, n))
		do(modify, fmt.Sprintf(`{table: tasks, match: {task: t%d}, action: run, params: {kind: dummy, args: "", more: {latency: 9us}}}`, n))
		came += len(x.Advance(10 * time.Millisecond).Out["p1"])
		push()
		if x.frames(fmt.Sprintf("t%d", n)) == 0 {
			t.Fatalf("no frame came to t%d", n)
		}
		do(modify, `{table: dags, match: {uid: 7}, action: go, params: {tenant: alice, run: "meter -> fw -> wait"}}`)
		do(remove, fmt.Sprintf(`{table: tasks, match: {task: t%d}}`, n))
	}
	came += len(x.Advance(50 * time.Millisecond).Out["p1"])
	if came != sent {
		t.Errorf("%d of %d frames came out", came, sent)
	}
}

// What is wrong is refused with what the YAML would be, and what runs stays; of a request
// that asks for all or none nothing is done.
func TestBoardRefuses(t *testing.T) {
	x := newEmpty(t, map[string]p4rt.Role{"tenants": {Objects: []string{"dags", "rules", "tenants"}}})
	if err := x.s.Write(t.Context(), 0, x.updates(p4v1.Update_INSERT, whole)...); err != nil {
		t.Fatal(err)
	}
	was := x.deployment()
	refused := func(err error) (codes.Code, string) {
		var w *ctl.WriteError
		if !errors.As(err, &w) {
			t.Fatalf("not refused: %v", err)
		}
		f := w.Failed[len(w.Failed)-1]
		return f.Code, f.Error()
	}
	for _, c := range []struct {
		op    p4v1.Update_Type
		entry string
		code  codes.Code
		want  string
	}{
		{insert, `{table: tasks, match: {task: x}, action: run, params: {kind: fyrewall, args: "", more: ""}}`, codes.FailedPrecondition, `unknown kind "fyrewall" (did you mean "firewall"?)`},
		{insert, `{table: tasks, match: {task: x}, action: run, params: {kind: firewall, args: {defolt: deny}, more: ""}}`, codes.FailedPrecondition, `firewall has no argument "defolt"`},
		{insert, `{table: tasks, match: {task: x}, action: run, params: {kind: firewall, args: {default: maybe}, more: ""}}`, codes.FailedPrecondition, "default=maybe"},
		{insert, `{table: tasks, match: {task: x}, action: run, params: {kind: dummy, args: "", more: {area: 5}}}`, codes.FailedPrecondition, "never fits"},
		{insert, `{table: tasks, match: {task: x}, action: run, params: {kind: dummy, args: "cost: 1us", more: ""}}`, codes.InvalidArgument, "want a JSON object"},
		{insert, `{table: tasks, match: {task: fw}, action: run, params: {kind: dummy, args: "", more: ""}}`, codes.AlreadyExists, "task=fw"},
		{remove, `{table: tasks, match: {task: fw}}`, codes.FailedPrecondition, `unknown task "fw"`},
		{remove, `{table: tasks, match: {task: x}}`, codes.NotFound, "task=x"},
		{remove, `{table: tenants, match: {tenant: bob}}`, codes.FailedPrecondition, `unknown tenant "bob"`},
		{insert, `{table: tasks, match: {task: x}, action: run, params: {kind: aead, args: {keys: /etc/shadow, out: 0x100@10.0.2.0/24}, more: ""}}`, codes.PermissionDenied, "keys=/etc/shadow: a controller may not name files"},
	} {
		for _, a := range []p4v1.WriteRequest_Atomicity{p4v1.WriteRequest_CONTINUE_ON_ERROR, p4v1.WriteRequest_ROLLBACK_ON_ERROR} {
			code, text := refused(x.s.Write(t.Context(), a, x.updates(c.op, c.entry)...))
			if code != c.code || !strings.Contains(text, c.want) {
				t.Errorf("%s: %v %s; want %v %q", c.entry, code, text, c.code, c.want)
			}
		}
	}
	good := x.updates(insert, `{table: tasks, match: {task: y}, action: run, params: {kind: dummy, args: "", more: ""}}`)
	bad := x.updates(remove, `{table: tasks, match: {task: fw}}`)
	if err := x.s.Write(t.Context(), p4v1.WriteRequest_DATAPLANE_ATOMIC, append(good, bad...)...); err == nil {
		t.Error("a part of a request that asks for all or none")
	}
	if x.deployment() != was {
		t.Errorf("the deployment is another one now:\n%s", x.deployment())
	}

	// A role that is not told so does not deploy tasks.
	other := x.open("tenants")
	if err := other.Write(t.Context(), 0, x.updates(modify, `{table: tenants, match: {tenant: bob}, action: weight, params: {weight: 2}}`)...); err != nil {
		t.Error(err)
	}
	if code, text := refused(other.Write(t.Context(), 0, good...)); code != codes.PermissionDenied {
		t.Errorf("%v: %s", code, text)
	}
	if err := x.s.Write(t.Context(), 0, good...); err != nil {
		t.Error(err)
	}
}

// Controllers name files of one directory, and those that are named already.
func TestFiles(t *testing.T) {
	x := newEmpty(t, nil)
	dir, elsewhere := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, elsewhere} {
		if err := os.WriteFile(filepath.Join(d, "keys"), []byte("0x100 000102030405060708090a0b0c0d0e0f10111213\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	x.dev.Files(dir + "/")
	task := func(op p4v1.Update_Type, name, file, more string) error {
		return x.s.Write(t.Context(), 0, x.updates(op, fmt.Sprintf(`{table: tasks, match: {task: %s}, action: run, params: {kind: aead, args: {keys: %q, out: 0x100@10.0.2.0/24}, more: %s}}`, name, file, more))...)
	}
	for _, file := range []string{elsewhere + "/keys", dir + "/../" + filepath.Base(elsewhere) + "/keys", dir + "/x/../keys", "keys", dir + "//keys", dir} {
		if err := task(insert, "seal", file, `""`); err == nil || !strings.Contains(err.Error(), "a controller may name files in "+dir) {
			t.Errorf("%s: %v", file, err)
		}
	}
	if err := task(insert, "seal", dir+"/keys", `""`); err != nil {
		t.Error(err)
	}
	// Whoever has the machine names what files there are.
	if err := x.Set(graph.Args{"deployment": strings.ReplaceAll(x.deployment(), dir, elsewhere)}); err != nil {
		t.Fatal(err)
	}
	if err := task(modify, "seal", elsewhere+"/keys", "{area: 2}"); err != nil {
		t.Errorf("a file that was named already: %v", err)
	}
	if err := task(insert, "open", elsewhere+"/keys", `""`); err == nil {
		t.Error("another task reads it, too")
	}
}
