package police_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/police"
	"github.com/quillon/quillon/nf/replay"
)

// A ping is below the committed rate: its packets are green, and ARP passes.
func Example() {
	kinds := []graph.Kind{*police.Kind()}
	spec, err := replay.Chain(kinds, "police,cir=1kbit")
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
	// police.counter.green 4
	// police.counter.green-bytes 336
	// police.frames.in 6
	// police.frames.out 6
	// police.reason.not-ip 2
}
