package engine_test

import (
	"os"
	"slices"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
)

// A program for PSA, as p4c compiles it: entries, a clone session with all classes of service, counters, meters, digests, and packets
// from and to the controller.
func TestPSA(t *testing.T) {
	const file = "../../../tests/p4/testdata/psa/router"
	text, err := os.ReadFile(file + ".p4info.txtpb")
	if err != nil {
		t.Fatal(err)
	}
	json, err := os.ReadFile(file + ".json")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, p4rt.Config{})
	c := w.primary()
	if w.info, err = p4info.Parse(text); err != nil {
		t.Fatal(err)
	}
	if err := w.set(commit, w.info, json); err != nil {
		t.Fatal(err)
	}
	if arch := w.info.Proto.GetPkgInfo().GetArch(); arch != "psa" {
		t.Errorf("the architecture is %q", arch)
	}
	for range len(c.in) {
		c.next()
	}
	if got := w.codes(insert,
		"{table: routes, match: {dst: 10.1.0.0/16}, action: forward, params: {port: 2, dst: 02:00:00:00:00:02, src: 02:00:00:00:00:01}}",
		"{table: acl, match: {ist.ingress_port: 1}, priority: 5, action: mirror, params: {session: 3, cell: 7}}"); !slices.Equal(got, []codes.Code{codes.OK, codes.OK}) {
		t.Fatal(got)
	}
	w.do("type: INSERT entity { packet_replication_engine_entry { clone_session_entry { session_id: 3 class_of_service: 200 replicas { port: \"\\x03\" instance: 1 } } } }",
		"type: INSERT entity { digest_entry { digest_id: 387590670 config { max_list_size: 1 } } }",
		"type: MODIFY entity { meter_entry { meter_id: 350165886 index { index: 7 } config { cir: 0 cburst: 1 pir: 0 pburst: 1 } } }")
	w.refused(codes.InvalidArgument, "type: MODIFY entity { packet_replication_engine_entry { clone_session_entry { session_id: 3 class_of_service: 256 replicas { port: \"\\x03\" instance: 1 } } } }")

	w.send(1, ipv4("10.1.2.3", 64))
	if a, b := w.got(2), w.got(3); len(a) != 1 || len(b) != 1 {
		t.Errorf("%d routed, %d mirrored", len(a), len(b))
	}
	d := c.next().GetDigest().GetData()
	if len(d) != 1 || string(w.info.Digests[0].Values(d[0])[1]) != "\x01" {
		t.Errorf("learned %v", d)
	}
	w.texts("counter_entry { counter_id: 308532063 index { index: 2 } }", "counter ingress.routed[2] = 1 packets, 60 bytes")

	w.send(1, ipv4("10.9.2.3", 64)) // red: dropped, but mirrored, and learned again
	if a := w.got(3); len(a) != 1 {
		t.Errorf("%d mirrored", len(a))
	}
	c.next()
	w.send(2, ipv4("10.9.2.3", 64)) // has no route, and is not metered
	var in *p4v1.PacketIn
	for in == nil {
		in = c.next().GetPacket()
	}
	if m := in.GetMetadata(); len(m) != 1 || string(m[0].GetValue()) != "\x02" || string(in.GetPayload()) != string(ipv4("10.9.2.3", 64)) {
		t.Errorf("packet in: %v", in)
	}
	for _, id := range []uint32{1, 9} { // the refusal of the second says that the first was sent
		out := &p4v1.PacketOut{Payload: in.GetPayload(), Metadata: []*p4v1.PacketMetadata{{MetadataId: id, Value: []byte{3}}}}
		if err := c.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: out}}); err != nil {
			t.Fatal(err)
		}
	}
	if e := c.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.InvalidArgument {
		t.Error(e)
	}
	if got := w.got(3); len(got) != 1 || string(got[0]) != string(in.GetPayload()) {
		t.Errorf("packet out: %x", got)
	}
}
