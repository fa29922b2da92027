package p4_test

import (
	"fmt"
	"os"

	"github.com/quillon/quillon/nf/p4"
)

// A compiled program, an entry of a table, and a packet.
func ExampleSwitch() {
	src, err := os.ReadFile("../../p4src/l2_bridge.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	prog, err := p4.Load(src)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range prog.Tables() {
		if !t.Hidden {
			fmt.Println(t.Name, len(t.Keys))
		}
	}
	sw, err := p4.NewSwitch(prog, p4.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	// No port is in a VLAN, and no multicast group has members yet.
	r := sw.Process(0, 1, make([]byte, 64), func(port uint32, frame []byte) { fmt.Println("left by", port) })
	fmt.Println(r.Emitted, r.Dropped)
	// Output:
	// bridge_ingress.port_vlan 1
	// bridge_ingress.vlan_member 2
	// bridge_ingress.smac 2
	// bridge_ingress.dmac 2
	// bridge_ingress.vlan_flood 1
	// bridge_egress.vlan_egress 3
	// 0 no-replica
}
