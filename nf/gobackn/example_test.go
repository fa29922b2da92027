package gobackn_test

import (
	"fmt"
	"strings"

	"github.com/quillon/quillon/nf/gobackn"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/replay"
)

// Clients with sessions are at port a, and a device without at port b. The capture has frames that are lost, doubled and late.
func Example() {
	kinds := []graph.Kind{*gobackn.Kind()}
	spec, err := replay.Chain(kinds, "gobackn,window=4,backlog=2,ack-every=4,ack-delay=100us,timeout=1ms,tries=3,sessions=2,per-client=1")
	if err != nil {
		fmt.Println(err)
		return
	}
	in := []string{"a=../../tests/pcap/gobackn/a.pcap", "b=../../tests/pcap/gobackn/b.pcap"}
	res, err := replay.RunFiles(replay.Config{Spec: spec, Kinds: kinds}, replay.Files{In: in})
	if err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(res.CounterText()) {
		if strings.HasPrefix(line, "gobackn.counter.") {
			fmt.Print(line)
		}
	}
	// Output:
	// gobackn.counter.given-up 1
	// gobackn.counter.retransmitted 7
	// gobackn.counter.timeouts 5
}
