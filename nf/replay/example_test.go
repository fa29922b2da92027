package replay_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/replay"
)

// A wire leaves a capture as it is.
func ExampleRunFiles() {
	spec, err := replay.Chain(graph.Builtin(), "wire")
	if err != nil {
		fmt.Println(err)
		return
	}
	in := "../../tests/pcap/connectx-write-steering/10-packet-ingress.pcap"
	res, err := replay.RunFiles(replay.Config{Spec: spec, Kinds: graph.Builtin()}, replay.Files{In: []string{in}, Expect: in})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(res.Comparison, res.CounterText())
	// Output:
	// 10 packets, no difference
	// a.frames.in 10
	// b.frames.out 10
	// wire.frames.in 10
	// wire.frames.out 10
}
