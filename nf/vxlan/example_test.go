package vxlan_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/replay"
	"github.com/quillon/quillon/nf/vxlan"
)

// Frames from port a leave by port b in a tunnel.
func Example() {
	kinds := []graph.Kind{*vxlan.Kind()}
	spec, err := replay.Chain(kinds, "vxlan,vni=42,local=192.0.2.1,local-mac=02:00:00:00:00:01,remote=192.0.2.2,remote-mac=02:00:00:00:00:02")
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := replay.RunFiles(replay.Config{Spec: spec, Kinds: kinds}, replay.Files{In: []string{"../../examples/ping.pcap"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(res.CounterText())
	// Output:
	// a.frames.in 6
	// b.frames.out 6
	// vxlan.frames.in 6
	// vxlan.frames.out 6
	// vxlan.reason.encapsulated 6
}
