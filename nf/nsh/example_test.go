package nsh_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/nsh"
	"github.com/quillon/quillon/nf/replay"
)

// The edge of a service path: packets from 10.0.0.0/8 get a header of the path, and ARP passes.
func Example() {
	kinds := []graph.Kind{*nsh.Kind()}
	spec, err := replay.Chain(kinds, "nsh,spi=7,si=3,dst=02:00:00:00:00:22,src=02:00:00:00:00:fe,match=src:10.0.0.0/8,exit=7")
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
	// nsh.frames.in 6
	// nsh.frames.out 6
	// nsh.reason.entered 4
	// nsh.reason.unmatched 2
}
