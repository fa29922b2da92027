package packet_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/packet"
)

// A frame has one owner, who gives it back. Headers are put in front of it without a copy.
func ExamplePool() {
	pool, err := packet.NewPool(4, 2048, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	b := pool.Get()
	b.SetBytes([]byte("payload"))
	if h, ok := b.Prepend(2); ok {
		copy(h, "h:")
	}
	fmt.Printf("%s, %d of %d free\n", b.Bytes(), pool.Free(), pool.Slots())
	b.Put()
	fmt.Printf("%d of %d free\n", pool.Free(), pool.Slots())
	// Output:
	// h:payload, 3 of 4 free
	// 4 of 4 free
}
