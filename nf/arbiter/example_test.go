package arbiter_test

import (
	"fmt"
	"strings"

	"github.com/quillon/quillon/nf/arbiter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/replay"
)

// Clients behind port a ask for locks: some are granted, one is denied, one stands in line, and one dies.
func Example() {
	kinds := []graph.Kind{*arbiter.Kind()}
	spec, err := replay.Chain(kinds, "arbiter,addr=10.0.0.9,max-lease=20ms,settle=1ms")
	if err != nil {
		fmt.Println(err)
		return
	}
	in := []string{"a=../../tests/pcap/arbiter/a.pcap", "b=../../tests/pcap/arbiter/b.pcap"}
	res, err := replay.RunFiles(replay.Config{Spec: spec, Kinds: kinds}, replay.Files{In: in})
	if err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(res.CounterText()) {
		if strings.HasPrefix(line, "arbiter.counter.") {
			fmt.Print(line)
		}
	}
	// Output:
	// arbiter.counter.clients 3
	// arbiter.counter.denied 2
	// arbiter.counter.died 1
	// arbiter.counter.granted 4
	// arbiter.counter.locks 2
	// arbiter.counter.released 1
	// arbiter.counter.repeated 1
	// arbiter.counter.words 2
}
