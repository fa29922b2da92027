package engine_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/p4src"
)

// setEntry is an entry of the router's table ecmp for network 10.n.0.0/16, with an action set of two next hops.
func setEntry(n int, more string) string {
	const choose = `action_profile_actions { weight: 1 action { action_id: 19766418 params { param_id: 1 value: "\x%02x" } } }`
	return fmt.Sprintf(`table_entry { table_id: 37884245 match { field_id: 1 lpm { value: "\x0a\x%02x\x00\x00" prefix_len: 16 } } action { action_profile_action_set { `+choose+choose+` } } %s }`,
		n, 2*n, 2*n+1, more)
}

const profileMember = `action_profile_member { action_profile_id: 294569155 member_id: 1 action { action_id: 19766418 params { param_id: 1 value: "\x01" } } }`

// TestSetIDsComeAgain: behind the highest id of a part of an action set come those that no other set has.
func TestSetIDsComeAgain(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("ipv4_router")
	w.do(op("INSERT", setEntry(1, "")), op("INSERT", setEntry(2, "")))
	engine.NextSet(w.dev, 1<<32-2)
	w.do(op("INSERT", setEntry(3, "")), op("INSERT", setEntry(4, "")))
	w.texts("table_entry { table_id: 37884245 }",
		"table router_ingress.ecmp hdr.ipv4.dst=10.1.0.0/16 -> {router_ingress.choose(next_hop=2), router_ingress.choose(next_hop=3)}",
		"table router_ingress.ecmp hdr.ipv4.dst=10.2.0.0/16 -> {router_ingress.choose(next_hop=4), router_ingress.choose(next_hop=5)}",
		"table router_ingress.ecmp hdr.ipv4.dst=10.3.0.0/16 -> {router_ingress.choose(next_hop=6), router_ingress.choose(next_hop=7)}",
		"table router_ingress.ecmp hdr.ipv4.dst=10.4.0.0/16 -> {router_ingress.choose(next_hop=8), router_ingress.choose(next_hop=9)}")
	for n := 1; n <= 4; n++ {
		w.do(op("DELETE", setEntry(n, "")))
	}
	w.do(op("INSERT", profileMember)) // nothing is left of the sets
}

// TestSetOfARefusedEntry: an entry whose meter is refused leaves nothing of its action set.
func TestSetOfARefusedEntry(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	text, err := p4src.Files.ReadFile("ipv4_router.p4info.txtpb")
	if err != nil {
		t.Fatal(err)
	}
	const direct = 352321537 // a direct meter's id
	at := strings.Index(string(text), "id: 37884245")
	end := at + strings.Index(string(text)[at:], "size:")
	info, err := p4info.Parse(fmt.Appendf(nil, "%sdirect_resource_ids: %d\n%s\ndirect_meters { preamble { id: %[2]d name: \"rate\" } spec { unit: PACKETS } direct_table_id: 37884245 }\n", text[:end], direct, text[end:]))
	if err != nil {
		t.Fatal(err)
	}
	_, src := programFiles(t, "ipv4_router")
	var root map[string]any
	if err := json.Unmarshal(src, &root); err != nil {
		t.Fatal(err)
	}
	root["meter_arrays"] = append(root["meter_arrays"].([]any), map[string]any{"name": "rate", "id": 1, "is_direct": true, "rate_count": 1, "type": "packets",
		"result_target": []any{"scalars", "metadata_t.color"}})
	for _, p := range root["pipelines"].([]any) {
		for _, x := range p.(map[string]any)["tables"].([]any) {
			if x := x.(map[string]any); x["name"] == "router_ingress.ecmp" {
				x["direct_meters"] = "rate"
			}
		}
	}
	if src, err = json.Marshal(root); err != nil {
		t.Fatal(err)
	}
	w.info = info
	if err := w.set(commit, info, src); err != nil {
		t.Fatal(err)
	}
	w.refused(codes.InvalidArgument, op("INSERT", setEntry(1, "meter_config { cir: 1 cburst: 1 pir: 1 pburst: 1 }"))) // the program's meter has one rate
	w.texts("table_entry { table_id: 37884245 }")
	w.do(op("INSERT", profileMember)) // nothing is left of the set
}
