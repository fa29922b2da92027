package trace_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/trace"
)

// A ring keeps the newest records.
func ExampleRing() {
	r := trace.NewRing(2)
	for packet := range uint32(3) {
		r.Add(trace.Record{Packet: packet + 1, App: 1})
	}
	for _, x := range r.Snapshot(nil) {
		fmt.Println(x.Packet)
	}
	// Output:
	// 2
	// 3
}
