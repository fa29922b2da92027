package mem_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port/mem"
)

// What one end sends, the other end receives.
func ExampleNewWire() {
	pool, err := packet.NewPool(4, 2048, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	a, b := mem.NewWire("a", "b", pool, 16, clock.NewManual(0))
	var batch packet.Batch
	x := pool.Get()
	x.SetBytes([]byte("hello"))
	batch.Add(x)
	sent, _ := a.Tx(&batch)
	received, _ := b.Rx(&batch)
	fmt.Printf("%d %d %s\n", sent, received, batch.At(0).Bytes())
	batch.PutAll()
	// Output:
	// 1 1 hello
}
