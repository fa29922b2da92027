package kvcache_test

import (
	"fmt"
	"strings"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/kvcache"
	"github.com/quillon/quillon/nf/replay"
)

// Clients are at port a, and a device at port b. The capture has reads that are answered from the cache, and writes that make
// entries invalid.
func Example() {
	kinds := []graph.Kind{*kvcache.Kind()}
	spec, err := replay.Chain(kinds, "kvcache,entries=2,value=16,settle=1ms")
	if err != nil {
		fmt.Println(err)
		return
	}
	in := []string{"a=../../tests/pcap/kvcache/a.pcap", "b=../../tests/pcap/kvcache/b.pcap"}
	res, err := replay.RunFiles(replay.Config{Spec: spec, Kinds: kinds}, replay.Files{In: in})
	if err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(res.CounterText()) {
		if strings.HasPrefix(line, "kvcache.counter.") {
			fmt.Print(line)
		}
	}
	// Output:
	// kvcache.counter.bytes 4
	// kvcache.counter.entries 1
	// kvcache.counter.evicted 3
	// kvcache.counter.expired 2
	// kvcache.counter.filled 8
	// kvcache.counter.spoiled 6
	// kvcache.counter.written 2
}
