package stf

import (
	"os"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/p4"
)

// TestConfigure sets up a switch with what a test's file has besides packets.
func TestConfigure(t *testing.T) {
	b, err := os.ReadFile("../../../p4src/l2_bridge.json")
	if err != nil {
		t.Fatal(err)
	}
	prog, err := p4.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	configure := func(text string) (*p4.Switch, error) {
		statements, err := Parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		sw, err := p4.NewSwitch(prog, p4.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return sw, Configure(sw, statements)
	}
	sw, err := configure(`
add dmac meta.vid:1 hdr.ethernet.dst:0x020000000001 forward(port:1)
packet 1 020000000001 020000000002 88b5
expect 7
no_packet
check_counter verdicts(0) packets == 99
setdefault vlan_flood no_flood()
mirroring_add 5 3
mc_mgrp_create 1
mc_node_create 0 2
mc_node_associate 1 0
`)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := sw.Len("bridge_ingress.dmac"); n != 1 || err != nil {
		t.Errorf("%d entries, %v", n, err)
	}
	if e, ok, err := sw.Default("bridge_ingress.vlan_flood"); !ok || e.Action.Name != "bridge_ingress.no_flood" || err != nil {
		t.Errorf("default %+v, %v", e, err)
	}
	if s, ok := sw.Session(5); !ok || len(s.Replicas) != 1 || s.Replicas[0].Port != 3 {
		t.Errorf("session %+v", s)
	}
	if n, err := sw.Count("bridge_ingress.verdicts", 0); n.Packets != 0 || err != nil {
		t.Errorf("a packet was sent: %+v, %v", n, err)
	}
	if _, err := configure("\nadd nothing x:1 y()"); err == nil || err.Error() != "line 2: the program has no table nothing" {
		t.Errorf("%v", err)
	}
}
