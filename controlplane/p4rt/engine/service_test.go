package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/p4src"
)

// advice checks the next message about arbitration.
func (c *controller) advice(code codes.Code, highest uint64) {
	c.w.t.Helper()
	m := c.next().GetArbitration()
	if m == nil || codes.Code(m.GetStatus().GetCode()) != code || m.GetElectionId().GetLow() != highest || m.GetDeviceId() != 1 {
		c.w.t.Fatalf("got %v (%v), want %v with election id %d", m, c.err, code, highest)
	}
}

// ended checks how a stream was ended.
func (c *controller) ended(code codes.Code) {
	c.w.t.Helper()
	if m := c.next(); m != nil || status.Code(c.err) != code {
		c.w.t.Fatalf("%v, %v, want %v", m, c.err, code)
	}
}

// TestArbitration goes through the specification's rules for claims.
func TestArbitration(t *testing.T) {
	w := newWorld(t, p4rt.Config{MaxStreams: 4})
	a := w.stream(10)
	a.advice(codes.OK, 10)
	b := w.stream(5)
	b.advice(codes.AlreadyExists, 10)
	a.none()
	w.stream(10).ended(codes.InvalidArgument) // another's
	n := w.stream(0)
	n.advice(codes.AlreadyExists, 10)

	// A higher claim: the others hear of it first.
	b.claim(11)
	a.advice(codes.AlreadyExists, 11)
	n.advice(codes.AlreadyExists, 11)
	b.advice(codes.OK, 11)
	// The primary steps down: there is none.
	b.claim(3)
	for _, c := range []*controller{a, b, n} {
		c.advice(codes.NotFound, 11)
	}
	// What is below the highest ever seen does not do.
	a.claim(10)
	a.advice(codes.NotFound, 11)
	b.none()
	a.claim(11)
	b.advice(codes.AlreadyExists, 11)
	n.advice(codes.AlreadyExists, 11)
	a.advice(codes.OK, 11)
	a.claim(11) // again
	b.advice(codes.AlreadyExists, 11)
	n.advice(codes.AlreadyExists, 11)
	a.advice(codes.OK, 11)
	// It goes: the others hear of it.
	a.cancel()
	b.advice(codes.NotFound, 11)
	n.advice(codes.NotFound, 11)
	c := w.stream(11) // comes back
	b.advice(codes.AlreadyExists, 11)
	n.advice(codes.AlreadyExists, 11)
	c.advice(codes.OK, 11)
	w.stream(1).advice(codes.AlreadyExists, 11)
	w.stream(2).ended(codes.ResourceExhausted)

	wrong := func(m *p4v1.MasterArbitrationUpdate) *controller {
		if err := b.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: m}}); err != nil {
			t.Fatal(err)
		}
		return b
	}
	wrong(&p4v1.MasterArbitrationUpdate{DeviceId: 2}).ended(codes.FailedPrecondition)
	b = w.stream(4)
	b.advice(codes.AlreadyExists, 11)
	wrong(&p4v1.MasterArbitrationUpdate{DeviceId: 1, Role: &p4v1.Role{Name: "other"}}).ended(codes.FailedPrecondition)
	b = w.stream(4)
	b.advice(codes.AlreadyExists, 11)
	strange, _ := anypb.New(&p4v1.Uint128{})
	wrong(&p4v1.MasterArbitrationUpdate{DeviceId: 1, Role: &p4v1.Role{Config: strange}}).ended(codes.InvalidArgument)

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := w.client.StreamChannel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: 9}}})
	if _, err := s.Recv(); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

// TestWhoMayWrite: the checks of a Write, in their order.
func TestWhoMayWrite(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	ctx := context.Background()
	try := func(r *p4v1.WriteRequest, want codes.Code) {
		t.Helper()
		if _, err := w.client.Write(ctx, r); status.Code(err) != want {
			t.Errorf("%v: %v, want %v", r, err, want)
		}
	}
	one, two := &p4v1.Uint128{Low: 1}, &p4v1.Uint128{Low: 2}
	try(&p4v1.WriteRequest{DeviceId: 2}, codes.NotFound)
	try(&p4v1.WriteRequest{DeviceId: 1, Role: "r"}, codes.NotFound)
	try(&p4v1.WriteRequest{DeviceId: 1, ElectionId: one}, codes.PermissionDenied)
	c := w.primary()
	try(&p4v1.WriteRequest{DeviceId: 1, ElectionId: one}, codes.FailedPrecondition) // no pipeline
	if _, err := w.tryRead("table_entry { }"); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	r, err := w.client.GetForwardingPipelineConfig(ctx, &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 1})
	if err != nil || r.GetConfig() != nil {
		t.Error(r, err)
	}
	w.program("ipv4_router")
	try(&p4v1.WriteRequest{DeviceId: 1, ElectionId: one}, codes.OK)
	try(&p4v1.WriteRequest{DeviceId: 1}, codes.PermissionDenied)
	try(&p4v1.WriteRequest{DeviceId: 1, ElectionId: two}, codes.PermissionDenied)
	try(&p4v1.WriteRequest{DeviceId: 1, ElectionId: one, Atomicity: 9}, codes.InvalidArgument)
	try(&p4v1.WriteRequest{DeviceId: 1, ElectionId: one, RoleId: 5}, codes.InvalidArgument) //nolint:staticcheck // it must be refused
	c.claim(2)
	c.next()
	try(&p4v1.WriteRequest{DeviceId: 1, ElectionId: one}, codes.PermissionDenied)
	try(&p4v1.WriteRequest{DeviceId: 1, ElectionId: two}, codes.OK)
	c.cancel()
	for range 1000 {
		if _, err = w.client.Write(ctx, &p4v1.WriteRequest{DeviceId: 1, ElectionId: two}); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	try(&p4v1.WriteRequest{DeviceId: 1, ElectionId: two}, codes.PermissionDenied)

	if caps, err := w.client.Capabilities(ctx, &p4v1.CapabilitiesRequest{DeviceId: 1}); err != nil || caps.GetP4RuntimeApiVersion() != "1.5.0" {
		t.Error(caps, err)
	}
	if _, err := w.client.Capabilities(ctx, &p4v1.CapabilitiesRequest{DeviceId: 7}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if _, err := w.client.Write(ctx, &p4v1.WriteRequest{DeviceId: 1, Updates: []*p4v1.Update{{Entity: &p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{
		RegisterEntry: &p4v1.RegisterEntry{Data: &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: make([]byte, p4rt.MaxMessage+1)}}}}}}}}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("an oversized message: %v", err)
	}
	if _, err := w.tryRead(""); fmt.Sprint(perUpdate(t, 1, err)) != "[InvalidArgument]" {
		t.Errorf("an empty entity: %v", err)
	}
}

// TestRoles: a role's P4Info says what it may write and hear.
func TestRoles(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("l2_bridge")
	part := &configv1.P4Info{}
	for _, x := range w.info.Proto.GetTables() {
		if strings.HasSuffix(x.GetPreamble().GetName(), "mac") {
			part.Tables = append(part.Tables, x)
		}
	}
	config, err := anypb.New(part)
	if err != nil {
		t.Fatal(err)
	}
	w.role = "macs"
	c := w.stream(0)
	c.next()
	if err := c.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: 1,
		Role: &p4v1.Role{Name: "macs", Config: config}, ElectionId: &p4v1.Uint128{Low: 1}}}}); err != nil {
		t.Fatal(err)
	}
	if m := c.next().GetArbitration(); m.GetStatus().GetCode() != 0 || m.GetRole().GetName() != "macs" || !same(m.GetRole().GetConfig(), config) {
		t.Fatal(m)
	}
	w.do(op("INSERT", dmac), op("INSERT", smac))
	w.refused(codes.PermissionDenied, op("INSERT", flood))
	w.refused(codes.PermissionDenied, op("INSERT", digest))
	w.refused(codes.PermissionDenied, op("MODIFY", "counter_entry { counter_id: 309130399 }"))
	w.refused(codes.InvalidArgument, op("MODIFY", "direct_counter_entry { table_entry { table_id: 43557776 } }"))
	info, json := programFiles(t, "l2_bridge")
	if err := w.set(commit, info, json); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	for _, e := range w.read("table_entry { }", "counter_entry { }") {
		if id := e.GetTableEntry().GetTableId(); id != 42577946 && id != 43557776 {
			t.Error("read outside of the role: ", e)
		}
	}
	if err := c.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{}}}); err != nil {
		t.Fatal(err)
	}
	if e := c.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.PermissionDenied {
		t.Error(e)
	}
}

// TestGivenRoles: the server was told what roles there are.
func TestGivenRoles(t *testing.T) {
	w := newWorld(t, p4rt.Config{Roles: map[string]p4rt.Role{"macs": {Objects: []string{"bridge_ingress.dmac", "smac"}}, "loader": {Pipeline: true}}})
	w.role = "loader"
	w.primary()
	w.program("l2_bridge")
	w.refused(codes.PermissionDenied, op("INSERT", dmac))
	w.role = "macs"
	w.primary()
	w.do(op("INSERT", dmac), op("INSERT", smac))
	w.refused(codes.PermissionDenied, op("INSERT", flood))
	w.role = "other"
	w.stream(1).ended(codes.InvalidArgument)
	w.role = ""
	w.primary()
	w.do(op("INSERT", flood))
}

func TestPipelineConfig(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	router, routerJSON := programFiles(t, "ipv4_router")
	bridge, bridgeJSON := programFiles(t, "l2_bridge")
	code := func(want codes.Code, err error) {
		t.Helper()
		if status.Code(err) != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	code(codes.InvalidArgument, w.set(0, router, routerJSON))
	code(codes.InvalidArgument, w.set(verify, nil, nil))
	code(codes.InvalidArgument, w.set(verify, router, nil))
	code(codes.InvalidArgument, w.set(verify, router, []byte("{")))
	code(codes.InvalidArgument, w.set(verify, router, bridgeJSON)) // of another program
	code(codes.NotFound, w.set(realise, nil, nil))
	code(codes.OK, w.set(verify, router, routerJSON))
	if _, err := w.tryRead("table_entry { }"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("VERIFY changed something: %v", err)
	}
	code(codes.OK, w.set(commit, router, routerJSON))
	w.info = router
	w.do(op("INSERT", isRouter), op("INSERT", ten), op("INSERT", toPort1))
	send := func(want int) {
		t.Helper()
		w.send(0, ipv4("10.1.2.3", 64))
		if out := w.got(1); len(out) != want {
			t.Errorf("port 1 sent %d frames, want %d", len(out), want)
		}
	}
	send(1)
	// A failure leaves all as it was.
	code(codes.InvalidArgument, w.set(commit, bridge, routerJSON))
	send(1)

	// Saved: requests are about the new one, frames go through the old one.
	code(codes.OK, w.set(save, router, routerJSON))
	w.texts("table_entry { table_id: 36085846 }")
	send(1)
	w.do(op("INSERT", isRouter))
	code(codes.InvalidArgument, w.set(realise, router, routerJSON))
	code(codes.OK, w.set(realise, nil, nil))
	send(0)
	w.do(op("INSERT", ten), op("INSERT", toPort1))
	send(1)
	code(codes.NotFound, w.set(realise, nil, nil))

	// Reconcile: what was written stays, and counts go on.
	w.do(op("MODIFY", "counter_entry { counter_id: 314588144 index { index: 3 } data { packet_count: 77 } }"),
		op("MODIFY", "meter_entry { meter_id: 352080900 index { index: 3 } config { cir: 1 cburst: 2 pir: 3 pburst: 4 } }"))
	before := fmt.Sprint(w.read(everything...))
	code(codes.OK, w.set(reconcile, router, routerJSON))
	if after := fmt.Sprint(w.read(everything...)); after != before {
		t.Errorf("before: %s\n after: %s", before, after)
	}
	send(1)
	code(codes.InvalidArgument, w.set(reconcile, bridge, bridgeJSON))
	send(1)
	code(codes.OK, w.set(commit, router, routerJSON))
	send(0)

	for _, c := range []struct {
		kind                 p4v1.GetForwardingPipelineConfigRequest_ResponseType
		info, config, cookie bool
	}{{0, true, true, true}, {1, false, false, true}, {2, true, false, true}, {3, false, true, true}} {
		r, err := w.client.GetForwardingPipelineConfig(context.Background(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 1, ResponseType: c.kind})
		if err != nil || (r.GetConfig().GetP4Info() != nil) != c.info || (len(r.GetConfig().GetP4DeviceConfig()) > 0) != c.config || (r.GetConfig().GetCookie() != nil) != c.cookie {
			t.Errorf("%v: %v", c.kind, err)
		}
	}
}

// TestAtomicity: all or nothing, and what would have been made says so.
func TestAtomicity(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("ipv4_router")
	w.do(op("INSERT", toPort1), op("INSERT", `action_profile_member { action_profile_id: 294569155 member_id: 1 action { action_id: 21257015 } }`))
	for _, a := range []p4v1.WriteRequest_Atomicity{rollback, atOnce} {
		before := fmt.Sprint(w.read(everything...))
		list := []*p4v1.Update{}
		for _, x := range []string{
			op("INSERT", ten), op("DELETE", toPort1), op("INSERT", isRouter),
			op("MODIFY", "counter_entry { counter_id: 314588144 data { packet_count: 7 } }"),
			op("MODIFY", "meter_entry { meter_id: 352080900 index { index: 3 } config { cir: 1 cburst: 2 pir: 3 pburst: 4 } }"),
			op("INSERT", `packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 4 replicas { port: "\x01" } } }`),
			op("INSERT", `packet_replication_engine_entry { clone_session_entry { session_id: 4 replicas { port: "\x01" } } }`),
			op("INSERT", `action_profile_member { action_profile_id: 294569155 member_id: 2 action { action_id: 21257015 } }`),
			op("MODIFY", `action_profile_member { action_profile_id: 294569155 member_id: 1 action { action_id: 19766418 params { param_id: 1 value: "\x09" } } }`),
			op("INSERT", `action_profile_group { action_profile_id: 294569155 group_id: 9 members { member_id: 1 weight: 2 } }`),
			op("INSERT", `table_entry { table_id: 37884245 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } action { action_profile_group_id: 9 } }`),
			op("INSERT", toPort1), op("MODIFY", strings.Replace(toPort1, `\x22`, `\x23`, 1)),
			op("INSERT", ten), // fails
			op("DELETE", isRouter),
		} {
			list = append(list, parseUpdate(t, x))
		}
		got, err := w.write(a, list...)
		for n, c := range got {
			want := codes.Aborted
			if n == len(got)-2 {
				want = codes.AlreadyExists
			}
			if c != want {
				t.Errorf("%v, update %d: %v in %v", a, n, c, err)
			}
		}
		if after := fmt.Sprint(w.read(everything...)); after != before {
			t.Errorf("%v\nbefore: %s\n after: %s", a, before, after)
		}
		// A wrong one keeps all from being tried.
		got, err = w.write(a, parseUpdate(t, op("INSERT", ten)), parseUpdate(t, op("INSERT", "table_entry { }")))
		if fmt.Sprint(got) != "[Aborted NotFound]" {
			t.Errorf("%v: %v", got, err)
		}
		if got, err := w.write(a, append(list[:13:13], list[14])...); err != nil {
			t.Errorf("%v: %v %v", a, got, err)
		}
		if _, err := w.write(goOn, list[:11]...); err == nil {
			t.Error("what was there was inserted again")
		}
		w.program("ipv4_router")
		w.do(op("INSERT", toPort1), op("INSERT", `action_profile_member { action_profile_id: 294569155 member_id: 1 action { action_id: 21257015 } }`))
	}
	// What cannot be done at once at all is no matter of single updates.
	many := make([]*p4v1.Update, 10_001)
	for n := range many {
		many[n] = parseUpdate(t, op("INSERT", ten))
	}
	if _, err := w.write(atOnce, many...); status.Code(err) != codes.Unimplemented || len(status.Convert(err).Details()) != 0 {
		t.Error(err)
	}
	// Each for itself.
	got, err := w.write(goOn, parseUpdate(t, op("INSERT", ten)), parseUpdate(t, op("INSERT", ten)), parseUpdate(t, op("INSERT", isRouter)))
	if fmt.Sprint(got) != "[OK AlreadyExists OK]" {
		t.Errorf("%v: %v", got, err)
	}
	if st := status.Convert(err); st.Code() != codes.Unknown || !strings.Contains(st.Message(), "1 of 3") {
		t.Error(err)
	}
}

// TestSelector: members, groups and action sets.
func TestSelector(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("ipv4_router")
	member := func(id int, hop string) string {
		return fmt.Sprintf(`action_profile_member { action_profile_id: 294569155 member_id: %d action { action_id: 19766418 params { param_id: 1 value: "%s" } } }`, id, hop)
	}
	group := func(members string) string {
		return `action_profile_group { action_profile_id: 294569155 group_id: 9 max_size: 8 ` + members + ` }`
	}
	const prefix = `table_id: 37884245 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } }`
	w.refused(codes.NotFound, op("INSERT", group("members { member_id: 1 weight: 1 }")))
	w.do(op("INSERT", member(1, `\x01`)), op("INSERT", member(2, `\x02`)))
	w.refused(codes.AlreadyExists, op("INSERT", member(1, `\x01`)))
	w.refused(codes.NotFound, op("MODIFY", member(3, `\x01`)))
	w.do(op("INSERT", group(`members { member_id: 2 weight: 3 watch_port: "\x00\x01" } members { member_id: 1 weight: 1 }`)))
	w.refused(codes.InvalidArgument, op("MODIFY", strings.Replace(group(""), "max_size: 8", "max_size: 7", 1)))
	w.refused(codes.NotFound, op("INSERT", "table_entry { "+prefix+" action { action_profile_group_id: 8 } }"))
	w.do(op("INSERT", "table_entry { "+prefix+" action { action_profile_group_id: 9 } }"))
	w.refused(codes.FailedPrecondition, op("DELETE", group("")))
	w.refused(codes.FailedPrecondition, op("DELETE", member(1, "")))
	w.texts("action_profile_member { action_profile_id: 294569155 }",
		"action profile router_ingress.ecmp_selector member 1 -> router_ingress.choose(next_hop=1)",
		"action profile router_ingress.ecmp_selector member 2 -> router_ingress.choose(next_hop=2)")
	w.texts("action_profile_group { group_id: 9 action_profile_id: 294569155 }", "action profile router_ingress.ecmp_selector group 9 -> members 2*3, 1")
	w.texts("table_entry { table_id: 37884245 }", "table router_ingress.ecmp hdr.ipv4.dst=10.0.0.0/8 -> group 9")
	g := w.read("action_profile_group { }")[0].GetActionProfileGroup()
	if g.GetMaxSize() != 8 || string(g.GetMembers()[0].GetWatchPort()) != "\x01" {
		t.Error(g)
	}
	const set = `action { action_profile_action_set { action_profile_actions { weight: 2 action { action_id: 19766418 params { param_id: 1 value: "\x05" } } } action_profile_actions { weight: 1 action { action_id: 21257015 } } } }`
	eleven := strings.Replace(prefix, `\x0a`, `\x0b`, 1)
	w.refused(codes.InvalidArgument, op("INSERT", "table_entry { "+eleven+set+" }")) // mixed
	w.do(op("DELETE", "table_entry { "+prefix+" }"), op("DELETE", group("")), op("DELETE", member(1, "")), op("DELETE", member(2, "")))
	w.do(op("INSERT", "table_entry { "+eleven+set+" }"))
	w.refused(codes.AlreadyExists, op("INSERT", "table_entry { "+eleven+set+" }"))
	w.refused(codes.InvalidArgument, op("INSERT", member(1, `\x01`))) // mixed
	const text = "table router_ingress.ecmp hdr.ipv4.dst=11.0.0.0/8 -> {router_ingress.choose(next_hop=5)*2, NoAction()}"
	w.texts("table_entry { table_id: 37884245 }", text)
	w.texts("action_profile_member { }")
	w.texts("action_profile_group { }")
	w.do(op("MODIFY", "table_entry { "+eleven+` metadata: "m" }`)) // the set stays
	w.texts("table_entry { table_id: 37884245 }", text)
	w.do(op("MODIFY", "table_entry { "+eleven+strings.Replace(set, "weight: 2", "weight: 4", 1)+" }"))
	w.texts("table_entry { table_id: 37884245 }", strings.Replace(text, "*2", "*4", 1))
	w.do(op("DELETE", "table_entry { "+eleven+" }"))
	w.do(op("INSERT", member(1, `\x01`))) // nothing is left of the sets
}

// TestReconcileEach: every program can take the place of itself.
func TestReconcileEach(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	for _, name := range p4src.Programs() {
		w.program(name)
		_, json := programFiles(t, name)
		if err := w.set(reconcile, w.info, json); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPacketOutOfAnotherProgram: what was checked against the program before, which
// has just been replaced, is refused.
func TestPacketOutOfAnotherProgram(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("ipv4_router")
	for _, m := range [][]*p4v1.PacketMetadata{nil, {{MetadataId: 99, Value: []byte{1}}}} {
		if err := w.dev.PacketOut(&p4v1.PacketOut{Payload: make([]byte, 60), Metadata: m}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", m, err)
		}
	}
}

// TestManyRoles: roles that had a primary are remembered, so they are bounded; the
// others are forgotten with their controllers.
func TestManyRoles(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	for n := range 3000 {
		w.role = fmt.Sprint("backup", n)
		c := w.stream(0)
		c.advice(codes.NotFound, 0)
		c.cancel()
	}
	refused := 0
	for n := range 3000 {
		w.role = fmt.Sprint("role", n)
		c := w.stream(1)
		if m := c.next(); m == nil && status.Code(c.err) == codes.ResourceExhausted {
			refused++
		} else if m.GetArbitration().GetStatus().GetCode() != 0 {
			t.Fatal(m, c.err)
		}
		c.cancel()
	}
	if refused != 2000 {
		t.Errorf("%d of 3000 roles were refused, want 2000", refused)
	}
	w.role = ""
	w.primary()
}

// TestReadErrors: of several requests the good ones are answered, and the status
// says of each what became of it.
func TestReadErrors(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("ipv4_router")
	w.do(op("INSERT", ten), op("INSERT", toPort1))
	got, err := w.tryRead(
		"table_entry { table_id: 36085846 }",
		"table_entry { table_id: 5 }",
		`direct_counter_entry { table_entry { table_id: 36085846 match { field_id: 1 lpm { value: "\x0b\x00\x00\x00" prefix_len: 8 } } } }`,
		"counter_entry { counter_id: 314588144 index { index: 1000000 } }",
		"",
		"table_entry { table_id: 45655381 }")
	if each := fmt.Sprint(perUpdate(t, 6, err)); each != "[OK NotFound NotFound OutOfRange InvalidArgument OK]" || status.Code(err) != codes.Unknown {
		t.Errorf("%s: %v", each, err)
	}
	if len(got) != 2 || got[0].GetTableEntry().GetTableId() != 36085846 || got[1].GetTableEntry().GetTableId() != 45655381 {
		t.Error(got)
	}
	if m := status.Convert(err).Message(); !strings.Contains(m, "4 of 6 requests") || !strings.Contains(m, "there is no table 0x00000005") {
		t.Error(m)
	}
}

// TestSingleRateMeters: the engine's meters have two rates, so an excess burst
// would be forgotten.
func TestSingleRateMeters(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	for kind, want := range map[configv1.MeterSpec_Type]codes.Code{configv1.MeterSpec_SINGLE_RATE_TWO_COLOR: codes.OK, configv1.MeterSpec_SINGLE_RATE_THREE_COLOR: codes.InvalidArgument} {
		info, json := programFiles(t, "ipv4_router")
		info.Proto.Meters[0].Spec.Type = kind
		if err := w.set(commit, info, json); status.Code(err) != want {
			t.Errorf("%v: %v", kind, err)
		}
	}
}

// TestWholeArrays: an array is written in parts, so that frames do not wait for it,
// and is taken back in whole.
func TestWholeArrays(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("swordbox_steer")
	const all = `register_entry { register_id: 384855550 data { bitstring: "\x07" } }` // 4096 of them
	info, json := programFiles(t, "swordbox_steer")
	p, err := w.dev.Build(info, json)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := engine.Steps(p, parseUpdate(t, op("MODIFY", all))); err != nil || n < 100 {
		t.Errorf("%v: %d parts", err, n)
	}
	sum := func() (sum int) {
		list := w.read("register_entry { register_id: 384855550 }")
		for _, e := range list {
			sum += int(e.GetRegisterEntry().GetData().GetBitstring()[0])
		}
		if len(list) != 4096 {
			t.Errorf("%d elements", len(list))
		}
		return sum
	}
	for _, a := range []p4v1.WriteRequest_Atomicity{rollback, atOnce} {
		got, err := w.write(a, parseUpdate(t, op("MODIFY", all)), parseUpdate(t, op("DELETE", "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 5 } }")))
		if fmt.Sprint(got) != "[Aborted NotFound]" || sum() != 0 {
			t.Errorf("%v: %v, sum %d", a, err, sum())
		}
	}
	three := parseUpdate(t, op("MODIFY", all))
	if _, err := w.write(atOnce, three, three, three); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	w.do(op("MODIFY", all))
	if sum() != 7*4096 {
		t.Errorf("sum %d", sum())
	}
}

// TestWrongSession: what is wrong with a clone session is told before that it is
// not there.
func TestWrongSession(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("ipv4_router")
	w.refused(codes.InvalidArgument, op("MODIFY", "packet_replication_engine_entry { clone_session_entry { session_id: 4 class_of_service: 8 } }"))
	w.refused(codes.NotFound, op("MODIFY", "packet_replication_engine_entry { clone_session_entry { session_id: 4 class_of_service: 7 } }"))
	w.refused(codes.NotFound, op("DELETE", "packet_replication_engine_entry { clone_session_entry { session_id: 4 class_of_service: 8 } }"))
}
