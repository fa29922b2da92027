package mirror_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/mirror"
	"github.com/quillon/quillon/nf/replay"
)

// Each ICMP packet leaves twice, by the same output.
func Example() {
	kinds := []graph.Kind{*mirror.Kind()}
	spec, err := replay.Chain(kinds, "mirror,match=proto:1,by=b")
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
	// b.frames.out 10
	// mirror.counter.copied 4
	// mirror.frames.generated 4
	// mirror.frames.in 6
	// mirror.frames.out 10
	// mirror.reason.copy 4
}
