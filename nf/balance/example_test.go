package balance_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/balance"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/replay"
)

// Packets to other addresses and ports than the virtual ones pass.
func Example() {
	kinds := []graph.Kind{*balance.Kind()}
	spec, err := replay.Chain(kinds, "balance,vip=10.0.0.2,port=80,backends=10.0.0.3@02:00:00:00:00:03")
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
	// balance.frames.in 6
	// balance.frames.out 6
	// balance.reason.not-balanced 6
}
