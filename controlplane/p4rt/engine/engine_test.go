package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/p4src"
)

const (
	verify    = p4v1.SetForwardingPipelineConfigRequest_VERIFY
	save      = p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE
	commit    = p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT
	realise   = p4v1.SetForwardingPipelineConfigRequest_COMMIT
	reconcile = p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT
	goOn      = p4v1.WriteRequest_CONTINUE_ON_ERROR
	rollback  = p4v1.WriteRequest_ROLLBACK_ON_ERROR
	atOnce    = p4v1.WriteRequest_DATAPLANE_ATOMIC
)

// everything is a query for each kind of entity.
var everything = []string{
	"table_entry { }", "table_entry { is_default_action: true }", "action_profile_member { }", "action_profile_group { }",
	"counter_entry { }", "direct_counter_entry { table_entry { } }", "meter_entry { }", "direct_meter_entry { table_entry { } }",
	"register_entry { }", "value_set_entry { }", "digest_entry { }", "extern_entry { }",
	"packet_replication_engine_entry { multicast_group_entry { } }", "packet_replication_engine_entry { clone_session_entry { } }",
}

// TestPrograms: every program of p4src is taken, all that it has can be read,
// and what was read is canonical.
func TestPrograms(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	programs := p4src.Programs()
	if testing.Short() {
		programs = programs[:1] // the arrays of others are long
	}
	for _, name := range programs {
		w.program(name)
		n := 0
		for _, q := range everything {
			for _, e := range w.read(q) {
				if n++; n > 100 && n%97 != 0 {
					continue // arrays are long
				}
				x := e.String()
				if te := e.GetTableEntry(); te != nil && !te.GetIsDefaultAction() || te == nil {
					if err := w.info.Query(e); err != nil {
						t.Errorf("%s: %s: %v", name, x, err)
					}
				}
				if e.String() != x {
					t.Errorf("%s: not canonical: %s", name, x)
				}
			}
		}
		if n == 0 {
			t.Errorf("%s: nothing to read", name)
		}
		r, err := w.client.GetForwardingPipelineConfig(context.Background(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 1})
		if err != nil || !same(r.GetConfig().GetP4Info(), w.info.Proto) || len(r.GetConfig().GetP4DeviceConfig()) == 0 || r.GetConfig().GetCookie().GetCookie() != 42 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

const (
	routerMAC = "\x02\x00\x00\x00\x00\x01"
	hostMAC   = "\x02\x00\x00\x00\x00\x09"
)

// ipv4 is a frame to the router.
func ipv4(dst string, ttl byte) []byte {
	f := []byte(routerMAC + hostMAC + "\x08\x00")
	h := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, ttl, 17, 0, 0, 10, 9, 9, 9, 0, 0, 0, 0}
	for n, s := range strings.Split(dst, ".") {
		for _, c := range s {
			h[16+n] = h[16+n]*10 + byte(c-'0')
		}
	}
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(append(f, h...), make([]byte, 26)...)
}

func checksum(h []byte) uint16 {
	sum := uint32(0)
	for n := 0; n < len(h); n += 2 {
		if n != 10 {
			sum += uint32(binary.BigEndian.Uint16(h[n:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Tables and actions of ipv4_router.
const (
	toPort1  = `table_entry { table_id: 45655381 match { field_id: 1 exact { value: "\x07" } } action { action { action_id: 23601040 params { param_id: 1 value: "\x02\x00\x00\x00\x00\x22" } params { param_id: 2 value: "\x02\x00\x00\x00\x00\x01" } params { param_id: 3 value: "\x01" } } } }`
	ten      = `table_entry { table_id: 36085846 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } action { action { action_id: 30129241 params { param_id: 1 value: "\x07" } } } }`
	isRouter = `table_entry { table_id: 35910587 match { field_id: 1 exact { value: "\x00" } } match { field_id: 2 exact { value: "\x02\x00\x00\x00\x00\x01" } } action { action { action_id: 21257015 } } }`
)

func op(kind, entity string) string { return "type: " + kind + " entity { " + entity + " }" }

func TestRouter(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("ipv4_router")
	w.do(op("INSERT", isRouter), op("INSERT", ten), op("INSERT", toPort1))
	w.refused(codes.AlreadyExists, op("INSERT", ten))
	w.send(0, ipv4("10.1.2.3", 64), ipv4("11.1.2.3", 64))
	out := w.got(1)
	if len(out) != 1 || out[0][22] != 63 || !bytes.HasPrefix(out[0], []byte("\x02\x00\x00\x00\x00\x22")) {
		t.Fatalf("port 1 sent %x", out)
	}
	w.texts(`table_entry { table_id: 36085846 counter_data { } }`,
		"table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 -> router_ingress.set_next_hop(next_hop=7)")
	e := w.read(`table_entry { table_id: 36085846 counter_data { } }`)[0].GetTableEntry()
	if e.GetCounterData().GetPacketCount() != 1 || e.GetCounterData().GetByteCount() == 0 {
		t.Errorf("counted %v", e.GetCounterData())
	}
	w.texts(`direct_counter_entry { table_entry { table_id: 36085846 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } } }`,
		"direct counter of table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 = 1 packets, 60 bytes")
	w.do(op("MODIFY", `direct_counter_entry { table_entry { table_id: 36085846 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } } data { packet_count: 5 } }`))
	w.texts(`direct_counter_entry { table_entry { table_id: 36085846 } }`,
		"direct counter of table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 = 5 packets, 0 bytes")
	if _, err := w.tryRead(`direct_counter_entry { table_entry { table_id: 36085846 match { field_id: 1 lpm { value: "\x0b\x00\x00\x00" prefix_len: 8 } } } }`); fmt.Sprint(perUpdate(t, 1, err)) != "[NotFound]" {
		t.Error(err)
	}

	// The default entry counts what misses.
	missed := `direct_counter_entry { table_entry { table_id: 36085846 is_default_action: true } }`
	w.texts(missed, "direct counter of table router_ingress.ipv4_lpm default = 1 packets, 60 bytes")
	if e := w.read(`table_entry { table_id: 36085846 is_default_action: true counter_data { } }`)[0].GetTableEntry(); e.GetCounterData().GetPacketCount() != 1 {
		t.Errorf("the default entry counted %v", e.GetCounterData())
	}
	w.do(op("MODIFY", strings.Replace(missed, "true } }", "true } data { packet_count: 7 byte_count: 9 } }", 1)))
	w.texts(missed, "direct counter of table router_ingress.ipv4_lpm default = 7 packets, 9 bytes")
	w.refused(codes.InvalidArgument, op("INSERT", `table_entry { table_id: 36085846 is_default_action: true counter_data { packet_count: 3 } }`))

	// A change of the action leaves the count alone, one without an action all.
	punt := strings.Replace(ten, `action_id: 30129241 params { param_id: 1 value: "\x07" }`, "action_id: 17185962", 1)
	w.do(op("MODIFY", punt))
	w.do(op("MODIFY", `table_entry { table_id: 36085846 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } metadata: "mine" controller_metadata: 9 }`))
	e = w.read(`table_entry { table_id: 36085846 counter_data { } }`)[0].GetTableEntry()
	if e.GetCounterData().GetPacketCount() != 5 || e.GetAction().GetAction().GetActionId() != 17185962 || string(e.GetMetadata()) != "mine" {
		t.Error(e)
	}
	w.refused(codes.PermissionDenied, op("MODIFY", `table_entry { table_id: 36085846 is_default_action: true }`))
	w.refused(codes.NotFound, op("DELETE", strings.Replace(ten, "len: 8", "len: 9", 1)))
	w.do(op("DELETE", ten))
	w.refused(codes.NotFound, op("DELETE", ten))
	w.refused(codes.NotFound, op("MODIFY", ten))
	w.texts(`table_entry { table_id: 36085846 }`)

	// Filters.
	w.do(op("INSERT", ten))
	other := strings.NewReplacer(`\x0a`, `\x0b`, `30129241 params { param_id: 1 value: "\x07" }`, "17185962").Replace(ten)
	w.do(op("INSERT", other))
	const viaTen = "table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 -> router_ingress.set_next_hop(next_hop=7)"
	const viaOther = "table router_ingress.ipv4_lpm hdr.ipv4.dst=11.0.0.0/8 -> router_ingress.punt()"
	w.texts(`table_entry { table_id: 36085846 action { action { action_id: 17185962 } } }`, viaOther)
	w.texts(`table_entry { table_id: 36085846 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } }`, viaTen)
	w.texts(`table_entry { table_id: 36085846 }`, viaTen, viaOther)
	w.texts(`table_entry { table_id: 36085846 metadata: "mine" }`)
	if !w.read(`table_entry { table_id: 36085846 is_default_action: true }`)[0].GetTableEntry().GetIsConst() {
		t.Error("the default entry is constant, and does not say so")
	}
}

func TestPacketIO(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	c := w.primary()
	w.program("ipv4_router")
	w.do(op("INSERT", isRouter))
	w.do(op("INSERT", strings.Replace(ten, `action_id: 30129241 params { param_id: 1 value: "\x07" }`, "action_id: 17185962", 1)))
	f := ipv4("10.1.2.3", 64)
	w.send(0, f)
	in := c.next().GetPacket()
	if in == nil || !bytes.Equal(in.GetPayload(), f) || len(in.GetMetadata()) != 3 || string(in.GetMetadata()[0].GetValue()) != "\x00" {
		t.Errorf("packet in: %v", in)
	}
	send := func(m *p4v1.PacketOut) {
		if err := c.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: m}}); err != nil {
			t.Fatal(err)
		}
	}
	send(&p4v1.PacketOut{Payload: f, Metadata: []*p4v1.PacketMetadata{{MetadataId: 1, Value: []byte{2}}, {MetadataId: 2, Value: []byte{0}}}})
	send(&p4v1.PacketOut{Payload: f, Metadata: []*p4v1.PacketMetadata{{MetadataId: 7, Value: []byte{2}}}})
	// The refusal of the second says that the first was sent.
	if e := c.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.InvalidArgument || e.GetPacketOut().GetPacketOut() == nil {
		t.Error(e)
	}
	if out := w.got(2); len(out) != 1 || !bytes.Equal(out[0], f) {
		t.Errorf("port 2 sent %x", out)
	}
	send(&p4v1.PacketOut{Payload: make([]byte, 1<<16), Metadata: []*p4v1.PacketMetadata{{MetadataId: 1, Value: []byte{2}}, {MetadataId: 2, Value: []byte{0}}}})
	if e := c.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.InvalidArgument {
		t.Error(e)
	}
	// A backup sends none.
	b := w.stream(0)
	b.next()
	if err := b.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{}}}); err != nil {
		t.Fatal(err)
	}
	if e := b.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.PermissionDenied {
		t.Error(e)
	}
}

const (
	smac   = `table_entry { table_id: 42577946 idle_timeout_ns: 1000000000 match { field_id: 1 exact { value: "\x01" } } match { field_id: 2 exact { value: "\x02\x00\x00\x00\x00\x0a" } } action { action { action_id: 18542872 params { param_id: 1 value: "\x00" } } } }`
	dmac   = `table_entry { table_id: 43557776 match { field_id: 1 exact { value: "\x01" } } match { field_id: 2 exact { value: "\x02\x00\x00\x00\x00\x0a" } } action { action { action_id: 19017622 params { param_id: 1 value: "\x00" } } } }`
	flood  = `packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 metadata: "all" replicas { port: "\x00\x00" } replicas { egress_port: 1 } replicas { port: "\x02" instance: 5 } replicas { port: "\x03" backup_replicas { port: "\x00\x02" instance: 6 } } } }`
	digest = `digest_entry { digest_id: 398033514 config { max_timeout_ns: 1000000 max_list_size: 2 ack_timeout_ns: 5000000000 } }`
)

func ether(dst, src byte) []byte {
	return append([]byte{2, 0, 0, 0, 0, dst, 2, 0, 0, 0, 0, src, 0x12, 0x34}, make([]byte, 46)...)
}

// TestBridge: a learning switch by digests, with multicast and idle timeouts.
func TestBridge(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	c := w.primary()
	w.program("l2_bridge")
	w.do(op("INSERT", digest), op("INSERT", flood))
	w.refused(codes.AlreadyExists, op("INSERT", digest))
	w.texts(`digest_entry { }`, "digest learn_t lists of 2, 1000000 ns, acknowledged in 5000000000 ns")
	w.texts(`packet_replication_engine_entry { multicast_group_entry { } }`, "multicast group 1 -> ports 0, 1, 2#5, 3 or 2#6")
	g := w.read(`packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }`)[0].GetPacketReplicationEngineEntry().GetMulticastGroupEntry()
	if string(g.GetMetadata()) != "all" || string(g.GetReplicas()[0].GetPort()) != "\x00" {
		t.Error(g)
	}
	// Two stations: one list, in which nothing is twice.
	w.send(0, ether(9, 10), ether(9, 10), ether(9, 11))
	list := c.next().GetDigest()
	if list.GetListId() == 0 || len(list.GetData()) != 2 || string(list.GetData()[0].GetStruct().GetMembers()[0].GetBitstring()) != "\x02\x00\x00\x00\x00\x0a" ||
		list.GetTimestamp() != int64(w.clk.Now()) {
		t.Fatal(list)
	}
	for n, want := range []int{0, 3, 3, 3} {
		if out := w.got(n); len(out) != want {
			t.Errorf("port %d: %d frames", n, len(out))
		}
	}
	// A backup serves while its port has no link.
	if err := w.inst.Visit("sw", 0, func(a graph.App) { a.(*p4.App).SetLinks(map[uint32]bool{3: true}) }); err != nil {
		t.Fatal(err)
	}
	w.send(0, ether(9, 10))
	for n, want := range []int{0, 1, 2, 0} {
		if out := w.got(n); len(out) != want {
			t.Errorf("port %d: %d frames", n, len(out))
		}
	}
	// What was not acknowledged does not come again, what was does.
	w.send(0, ether(9, 10))
	ack := func(id uint32) {
		if err := c.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_DigestAck{DigestAck: &p4v1.DigestListAck{DigestId: id, ListId: list.GetListId()}}}); err != nil {
			t.Fatal(err)
		}
	}
	ack(list.GetDigestId())
	ack(5)
	if e := c.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.InvalidArgument { // the first was taken by now
		t.Fatal(e)
	}
	w.send(0, ether(9, 10), ether(9, 11))
	if again := c.next().GetDigest(); len(again.GetData()) != 2 || again.GetListId() == list.GetListId() {
		t.Fatal(again)
	}
	w.do(op("DELETE", digest))
	w.refused(codes.NotFound, op("DELETE", digest))
	w.refused(codes.NotFound, op("MODIFY", digest))

	// Learned: no flooding any more, and ageing.
	w.do(op("INSERT", smac), op("INSERT", dmac))
	for n := range ports {
		w.got(n)
	}
	w.send(1, ether(10, 11))
	if out := w.got(0); len(out) != 1 {
		t.Errorf("port 0: %d frames", len(out))
	}
	if out := w.got(2); len(out) != 0 {
		t.Errorf("port 2: %d frames", len(out))
	}
	w.clk.advance(2 * time.Second)
	w.send(1, ether(10, 11)) // tells the time
	idle := c.next().GetIdleTimeoutNotification()
	if len(idle.GetTableEntry()) != 1 || idle.GetTableEntry()[0].GetIdleTimeoutNs() != 1e9 ||
		p4info.Key(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: idle.GetTableEntry()[0]}}) != p4info.Key(canonicalOf(t, w, op("INSERT", smac))) {
		t.Error(idle)
	}
	x := w.read(`table_entry { table_id: 42577946 time_since_last_hit { } }`)[0].GetTableEntry()
	if x.GetTimeSinceLastHit() == nil {
		t.Error(x)
	}
	w.refused(codes.InvalidArgument, op("INSERT", strings.Replace(dmac, "match", "idle_timeout_ns: 1 match", 1)))
	w.do(op("DELETE", flood))
	w.refused(codes.NotFound, op("DELETE", flood))
}

func canonicalOf(t *testing.T, w *world, update string) *p4v1.Entity {
	u := parseUpdate(t, update)
	if err := w.info.Update(u); err != nil {
		t.Fatal(err)
	}
	return u.GetEntity()
}

// TestDefaultEntryDirect: the default entry has a direct counter as others have, which
// a change can set and take back.
func TestDefaultEntryDirect(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("nt_classifier")
	q := `table_entry { table_id: 40364259 is_default_action: true counter_data { } }`
	count := func(want int64) {
		t.Helper()
		if e := w.read(q)[0].GetTableEntry(); e.GetCounterData().GetPacketCount() != want {
			t.Errorf("counted %v, want %d", e.GetCounterData(), want)
		}
	}
	w.send(0, ipv4("10.1.2.3", 64))
	w.got(1)
	count(1)
	w.do(op("MODIFY", `table_entry { table_id: 40364259 is_default_action: true counter_data { packet_count: 5 } }`))
	count(5)
	bad := parseUpdate(t, op("DELETE", `table_entry { table_id: 40364259 priority: 1 }`))
	six := parseUpdate(t, op("MODIFY", `table_entry { table_id: 40364259 is_default_action: true counter_data { packet_count: 6 } }`))
	if _, err := w.write(p4v1.WriteRequest_ROLLBACK_ON_ERROR, six, bad); err == nil {
		t.Error("an entry that is not there was deleted")
	}
	count(5)
	w.do(op("MODIFY", `table_entry { table_id: 40364259 is_default_action: true }`)) // without data it stays
	count(5)
}
