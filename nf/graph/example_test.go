package graph_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// A wire between two ports, in memory and in given time.
func ExampleInstance() {
	spec, err := graph.ParseSpec([]byte(`
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {w: {kind: wire}}
links: [a.out -> w.a, w.b -> b.in, b.out -> w.b, w.a -> a.in]
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	pool, _ := packet.NewPool(64, 2048, nil)
	clk := clock.NewManual(0)
	a, left := mem.NewWire("a", "left", pool, 16, clk)
	b, right := mem.NewWire("b", "right", pool, 16, clk)
	inst, err := graph.New(graph.Config{
		Spec: spec, Kinds: graph.Builtin(), Clock: clk,
		Ports: map[string][]port.Port{"a": {a}, "b": {b}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var batch packet.Batch
	frame := pool.Get()
	frame.SetBytes([]byte("hello"))
	batch.Add(frame)
	_, _ = left.Tx(&batch)
	_, _ = inst.Step(clk.Now())
	_, _ = right.Rx(&batch)
	fmt.Printf("%s\n", batch.At(0).Bytes())
	fmt.Println(inst.Conservation())
	// Output:
	// hello
	// <nil>
}
