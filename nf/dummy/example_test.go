package dummy_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/replay"
)

// All frames pass.
func Example() {
	kinds := []graph.Kind{*dummy.Kind()}
	spec, err := replay.Chain(kinds, "dummy")
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
	// dummy.frames.in 6
	// dummy.frames.out 6
}
