package napt_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/napt"
	"github.com/quillon/quillon/nf/replay"
)

// Private hosts at port a get mappings to a public address; ARP passes.
func Example() {
	kinds := []graph.Kind{*napt.Kind()}
	spec, err := replay.Chain(kinds, "napt,public=198.51.100.1,mac=02:00:00:00:00:01")
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
	// napt.counter.mappings 2
	// napt.counter.mappings-made 2
	// napt.frames.in 6
	// napt.frames.out 6
	// napt.reason.not-ip 2
	// napt.reason.outward 4
}
