package replicate_test

import (
	"fmt"
	"strings"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/replay"
	"github.com/quillon/quillon/nf/replicate"
)

// Clients are at port a, and the devices at port b. Each write goes to both devices, and its client gets one answer.
func Example() {
	kinds := []graph.Kind{*replicate.Kind()}
	spec, err := replay.Chain(kinds, "replicate,replicas=192.168.1.10@02:00:c0:a8:01:0a+192.168.1.11@02:00:c0:a8:01:0b,timeout=1ms,tries=2")
	if err != nil {
		fmt.Println(err)
		return
	}
	in := []string{"a=../../tests/pcap/replicate/a.pcap", "b=../../tests/pcap/replicate/b.pcap"}
	res, err := replay.RunFiles(replay.Config{Spec: spec, Kinds: kinds}, replay.Files{In: in})
	if err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(res.CounterText()) {
		if strings.HasPrefix(line, "replicate.counter.") {
			fmt.Print(line)
		}
	}
	// Output:
	// replicate.counter.answered 12
	// replicate.counter.degraded 3
	// replicate.counter.diverged 1
	// replicate.counter.down 2
	// replicate.counter.retransmitted 6
	// replicate.counter.unknown 2
}
