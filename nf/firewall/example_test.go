package firewall_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/replay"
)

// Connections are opened from the side of port a only. The capture is of a ping between two hosts, of which the first is
// at port a; all its frames come in there.
func Example() {
	kinds := []graph.Kind{*firewall.Kind()}
	spec, err := replay.Chain(kinds, "firewall,rules=allow+in:a")
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
	// b.frames.out 4
	// firewall.counter.connections 1
	// firewall.counter.connections-opened 1
	// firewall.frames.dropped 2
	// firewall.frames.in 6
	// firewall.frames.out 4
	// firewall.reason.known 1
	// firewall.reason.no-connection 2
	// firewall.reason.not-ip 2
	// firewall.reason.opened 1
}
